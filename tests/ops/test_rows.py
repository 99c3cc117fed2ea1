"""An element-wise function is one row; what is outside of `archdsl/ops` asks ops for traits, never for their names."""

import ast
from pathlib import Path

import pytest
import torch
from docs.reference_pages import primitives_page
from onnx_tools import distance, onnx_bytes, run

import archdsl
from archdsl.api import to_torch
from archdsl.ops import registry
from archdsl.ops.elementwise import REAL, Function
from archdsl.report.reference import explain

SNAKE = Function(
    "snake",
    REAL,
    "{0} + torch.sin({0}) ** 2",
    lambda g, x: g.Add(x, g.Mul(g.Sin(x), g.Sin(x))),
    "`x + sin(x) ** 2` (Ziyin et al., 2020).",
)


def test_a_row_is_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(registry.primitives(), "snake", SNAKE)
        model = archdsl.load(text="model m(x: [2, 5]) { return x -> snake }")
        module, x = to_torch(model), torch.randn(2, 5)
        torch.testing.assert_close(module(x), x + torch.sin(x) ** 2)
        (y,) = run(onnx_bytes(model, module), {"x": x})
        assert distance(y, module(x)) < 1e-6
        assert "`x + sin(x) ** 2` (Ziyin et al., 2020)." in explain("snake")
        assert "## snake" in primitives_page()
    assert registry.find("snake") is None


PACKAGE = Path(archdsl.__file__).parent


def test_every_vocabulary_is_looked_through() -> None:
    files = (p.relative_to(PACKAGE / "ops").with_suffix("") for p in (PACKAGE / "ops").rglob("[a-z]*.py"))
    assert {".".join(f.parts) for f in files} == {*registry.VOCABULARIES, "registry"}


OUTSIDE = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parts[len(PACKAGE.parts)] != "ops"]


def _is_name_of_op(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "name" and ast.unparse(node.value).split(".")[-1] == "op"


def test_no_name_of_an_op_is_asked_for() -> None:
    asked = []
    for path in OUTSIDE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            looked_up = node.args[:1] if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".get") else []
            looked_up += [node.slice] if isinstance(node, ast.Subscript) else []
            if any(map(_is_name_of_op, [*compared, *looked_up])):
                asked.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert asked == []
