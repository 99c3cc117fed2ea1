"""Every vocabulary is looked through; what is outside of `archdsl/ops` asks ops for traits, never for their names."""

import ast
from pathlib import Path

import archdsl
from archdsl.ops import registry

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
