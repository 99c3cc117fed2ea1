"""Imports only go down, from room to room and within each, and importing the compiler imports no back end."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import networkx
import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "archdsl"

# From the bottom up; a module may import from its own room or those below.
ROOMS = (
    ("archdsl.version", "archdsl.signals", "archdsl.files", "archdsl.frozen", "archdsl.packages", "archdsl.shown"),
    ("archdsl.diagnostics",),
    ("archdsl.ranges",),
    ("archdsl.resources",),
    ("archdsl.syntax",),
    ("archdsl.ir",),
    ("archdsl.ops",),
    ("archdsl.dependence",),
    ("archdsl.passes",),  # below the frontend, which hoists what a scan repeats
    ("archdsl.frontend",),
    ("archdsl.weights",),
    ("archdsl.estimates",),
    ("archdsl.backends",),
    ("archdsl.run",),
    ("archdsl.interop",),
    ("archdsl.zoo",),
    ("archdsl.report",),
    ("archdsl", "archdsl.api"),
    ("archdsl.cli", "archdsl.__main__"),
)

LOOSE = {
    "__init__.py",
    "__main__.py",
    "api.py",
    "files.py",
    "frozen.py",
    "packages.py",
    "ranges.py",
    "resources.py",
    "shown.py",
    "signals.py",
    "version.py",
    "zoo.py",
}
"""Modules that lie in no folder."""

BACK_ENDS = ("matplotlib", "onnx", "onnx_ir", "onnxruntime", "torch", "transformers")


def _module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _room(module: str) -> int | None:
    if module == "archdsl":
        return next(i for i, names in enumerate(ROOMS) if "archdsl" in names)
    for i, names in enumerate(ROOMS):
        if any(module == name or module.startswith(name + ".") for name in names if name != "archdsl"):
            return i
    return None


When = Literal["loading", "calling", "typing"]
"""When an import happens: as the module is loaded, in a function, or for the type checker alone."""


class Import(NamedTuple):
    module: str
    line: int
    when: When


def _imports(path: Path) -> Iterator[Import]:
    """The modules of the package that a file imports, wherever it does."""
    todo: list[tuple[ast.AST, When]] = [(ast.parse(path.read_text(encoding="utf-8")), "loading")]
    while todo:
        node, when = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and when == "loading":
            when = "calling"
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            when = "typing"
        todo += [(child, when) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            # `from archdsl.ops import registry` imports a module, `from archdsl.diagnostics import error` a name of one
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else str(node.module) for name in full]
        else:
            continue
        yield from (Import(name, node.lineno, when) for name in names if name.split(".")[0] == "archdsl")


@pytest.fixture(scope="module")
def imports() -> dict[str, list[Import]]:
    return {module: sorted(set(_imports(path))) for module, path in MODULES.items()}


def test_imports_only_go_down(imports: dict[str, list[Import]]) -> None:
    rooms = {name: _room(name) for name in {*MODULES, *(i.module for found in imports.values() for i in found)}}
    assert [name for name, room in rooms.items() if room is None] == [], "give each a room in ROOMS"
    upward = [
        (module, target, line)
        for module, found in imports.items()
        for target, line, _ in found
        if rooms[target] > rooms[module]  # type: ignore[operator]
    ]
    assert [f"{a}:{line} imports {b}, which lies above it" for a, b, line in upward] == []


def test_no_back_end_asks_the_frontend(imports: dict[str, list[Import]]) -> None:
    """What was elaborated says all that a back end, an estimate or a proof needs."""
    rooms = ("archdsl.backends.", "archdsl.dependence.", "archdsl.passes.", "archdsl.weights.")
    found = {(m, i.module) for m, seen in imports.items() if m.startswith(rooms) for i in seen}
    assert [(m, target) for m, target in sorted(found) if target.startswith("archdsl.frontend")] == []


def test_the_parts_of_the_front_end_are_given_to_each_other() -> None:
    """None is a kind of another, and none reads what another keeps for itself."""
    trees = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.glob("frontend/*.py")}
    classes = [n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    own = {c.name for c in classes}
    kinds = [f"{c.name} is a kind of {b}" for c in classes for b in own & set(map(ast.unparse, c.bases))]
    private = [
        f"{name}:{node.lineno} reads {ast.unparse(node)}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_|replace$|make$)", node.attr)
        if ast.unparse(node.value) not in ("self", "cls")
    ]
    assert (kinds, private) == ([], [])


def test_no_module_lies_loose() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == LOOSE


# Modules that import each other, and where: the list may only get shorter.
CIRCLES: dict[tuple[When, ...], list[set[str]]] = {
    ("loading",): [],
    ("loading", "calling"): [
        {"syntax.hints", "syntax.parse"},
        {"ir.op", "ir.signature"},
        {"backends.torch.classes", "backends.torch.features", "backends.torch.features.checkpoint"},
    ],
    ("loading", "typing"): [
        {"backends.onnx.moe", "backends.onnx.quantize", "backends.onnx.scope", "backends.onnx.write"},
        {
            "backends.torch.classes",
            "backends.torch.features",
            "backends.torch.lower",
            "backends.torch.scope",
            "backends.torch.text",
        },
        {"backends.torch.features.generate", "backends.torch.features.step_scope", "backends.torch.features.steps"},
        {"backends.torch.loops", "backends.torch.schedule"},
        {"ir.cost", "ir.graph", "ir.masks", "ir.op", "ir.static"},
    ],
}


@pytest.mark.parametrize("when", CIRCLES)
def test_no_circles(when: tuple[When, ...], imports: dict[str, list[Import]]) -> None:
    graph = networkx.DiGraph(
        (module.removeprefix("archdsl."), found.module.removeprefix("archdsl."))
        for module in MODULES
        for found in imports[module]
        if found.when in when
    )
    found = [set(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    assert sorted(found, key=min) == sorted(CIRCLES[when], key=min)


@pytest.mark.parametrize("module", ["archdsl", "archdsl.cli"])
def test_importing_loads_no_back_end(module: str) -> None:
    script = f"import sys, {module}; print(*sorted(sys.modules.keys() & set(sys.argv[1:])))"
    done = subprocess.run([sys.executable, "-c", script, *BACK_ENDS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == []
