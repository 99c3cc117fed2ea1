"""Imports only go down, and importing the compiler imports no back end."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "archdsl"

# From the bottom up; a module may import from its own layer or below.
LAYERS = (
    ("archdsl.source", "archdsl.stopping", "archdsl.version"),
    ("archdsl.diagnostics",),
    ("archdsl.limits", "archdsl.resources", "archdsl.render", "archdsl.files", "archdsl.hardware"),
    ("archdsl.syntax",),
    ("archdsl.ir",),
    ("archdsl.ops",),
    ("archdsl.dependence",),
    ("archdsl.analyses",),
    ("archdsl.lower",),
    ("archdsl.backends",),
    ("archdsl.budget",),  # which measures the emitted file
    (
        "archdsl",
        "archdsl.api",
        "archdsl.fit",
        "archdsl.generation",
        "archdsl.inference",
        "archdsl.reference",
        "archdsl.schemas",
        "archdsl.sweep",
        "archdsl.trial",
        "archdsl.verification",
        "archdsl.zoo",
        "archdsl.zoo_page",
    ),
    ("archdsl.views", "archdsl.plots", "archdsl.cli", "archdsl.__main__"),
)
# A spec names primitives, and the primitives are written in terms of the IR.
UPWARD = {("archdsl.ir.program", "archdsl.ops.registry")}

BACK_ENDS = ("matplotlib", "onnx", "onnx_ir", "onnxruntime", "torch", "transformers")


def _module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _layer(module: str) -> int | None:
    if module == "archdsl":
        return next(i for i, names in enumerate(LAYERS) if "archdsl" in names)
    for i, names in enumerate(LAYERS):
        if any(module == name or module.startswith(name + ".") for name in names if name != "archdsl"):
            return i
    return None


def _imported(path: Path) -> Iterator[tuple[str, int]]:
    """The modules of the package that a file imports anywhere in it, functions and type checking included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            # `from archdsl.ops import registry` imports a module, `from archdsl.source import Span` a name of one
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else str(node.module) for name in full]
        else:
            continue
        yield from ((name, node.lineno) for name in names if name.split(".")[0] == "archdsl")


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_go_down(module: str) -> None:
    own = _layer(module)
    assert own is not None, f"{module} is in no layer: give it one in LAYERS"
    upward = []
    for target, line in _imported(MODULES[module]):
        layer = _layer(target)
        assert layer is not None, f"{module}:{line} imports {target}, which is in no layer"
        if layer > own and (module, target) not in UPWARD:
            upward.append(f"{module}:{line} imports {target}, which lies above it")
    assert upward == []


def test_every_exception_is_needed() -> None:
    needed = {(module, target) for module, _ in UPWARD for target, _ in _imported(MODULES[module])}
    assert needed >= UPWARD


@pytest.mark.parametrize("module", ["archdsl", "archdsl.cli"])
def test_importing_loads_no_back_end(module: str) -> None:
    script = f"import sys, {module}; print(*sorted(sys.modules.keys() & set(sys.argv[1:])))"
    done = subprocess.run([sys.executable, "-c", script, *BACK_ENDS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == []
