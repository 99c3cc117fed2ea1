"""The emitted PyTorch of every model of the zoo: kept in the repository, the same on every run, and clean."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import archdsl
from archdsl.api import ZooEntry, list_zoo

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = Path(__file__).parent / "goldens" / "torch"
ZOO = [pytest.param(entry, id=entry.name) for entry in list_zoo()]

# What is kept: models, not their variants, which differ in numbers.
MODELS = [entry.name for entry in list_zoo() if entry.kind == "model"]

# ruff's default rules, but for the length of lines, which names of the user's may exceed.
RULES = ("E4", "E7", "E9", "F")


@cache
def emitted(name: str) -> str:
    return archdsl.torch_source(name)


@pytest.mark.parametrize("name", MODELS)
def test_golden(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDENS / f"{name}.py", emitted(name))


SECTIONS = {
    "generate": ("llama3_8b", "mistral_7b", "deepseek_v2_lite", "mamba_130m", "lstm_lm_small", "t5_small"),
}
"""Sections beside the plain model, and the models whose files with them are kept."""


@pytest.mark.parametrize(("section", "name"), [(s, n) for s, names in SECTIONS.items() for n in names])
def test_golden_with_a_section(section: str, name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDENS / section / f"{name}.py", archdsl.torch_source(name, features=[section]))


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDENS.glob("*.py")} <= set(MODELS)


@pytest.mark.parametrize("entry", ZOO)
def test_imports_only_torch(entry: ZooEntry) -> None:
    for node in ast.walk(ast.parse(emitted(entry.name))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names | {"torch"}


def _functions(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]


@pytest.mark.parametrize("entry", ZOO)
def test_structure_is_resolved(entry: ZooEntry) -> None:
    """No module that does nothing, and no question of the configuration in any `forward`."""
    source = emitted(entry.name)
    assert "Identity" not in source
    assert "Dropout(0.0)" not in source
    assert "Dropout(0)" not in source
    for forward in _functions(ast.parse(source), "forward"):
        for node in ast.walk(forward):
            if isinstance(node, ast.If | ast.IfExp):
                assert "config" not in ast.unparse(node.test), f"line {node.lineno}"


@pytest.mark.parametrize("entry", ZOO)
def test_nothing_is_longer_than_a_line(entry: ZooEntry) -> None:
    long = [i for i, line in enumerate(emitted(entry.name).splitlines(), 1) if len(line) > 120]
    assert long == []


@pytest.mark.slow
def test_ruff_has_nothing_to_say(tmp_path: Path) -> None:
    for entry in list_zoo():
        (tmp_path / f"{entry.name}.py").write_text(emitted(entry.name), encoding="utf-8")
    for arguments in (["check", "--select", ",".join(RULES)], ["format", "--check", "--config", "line-length = 120"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "--isolated", "--no-cache", "."],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_same_bytes_whatever_the_hash_seed() -> None:
    names = list(dict.fromkeys(entry.file.removesuffix(".arch") for entry in list_zoo()))
    script = "import sys, archdsl\nfor name in sys.argv[1:]: sys.stdout.write(archdsl.torch_source(name))"
    outputs = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            [sys.executable, "-c", script, *names], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1
