"""Formatting keeps the tree and every comment, and is done after one turn."""

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archdsl.diagnostics import ArchError
from archdsl.diagnostics.source import Source
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE
from archdsl.syntax.format import format_expr, format_file, format_tree
from archdsl.syntax.layout import BINDING
from archdsl.syntax.parse import parse, parse_expression, tokens
from archdsl.syntax.parser_tables import tables

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.arch"))

SNIPPETS = """
import "blocks/common.arch" as c
import "x.arch"
let slow = if a then b else if c then d else (x -> f)
block recurrent(hidden: size = 4 * width, act: block)
  (xs: [batch, time, width], c0: [batch, hidden] = none)
-> (y: [batch, time, hidden], c: [batch, hidden]) {
  ys = scan h: [batch, hidden] = 0, c: [batch, hidden] = c0 for x_t, z_t in xs, zs {
    h, c = lstm_cell(hidden)(x_t, h, c)   emit h
  }
  skips = for layer in 3 * layer { x = layer(x)  emit x }
  if training { loss aux = mean(x) } else if a == b and not c { buffer t: [hidden] = zeros } else { x = y }
  if a { x = b }
  else { x = c
  }
  assert time <= context, "short"
  assert causal(x, ahead: 1)
  x += x[..., -1][:, 1:][:n] : [batch, ...]
  return x -> f -> g(2) as h, (a | ~b & c), -2 ** -1, (-2) ** 2, [i * 2 for i in 12], [], f(x)(y) as z
}
inline block nothing {}
block same(heads) = gqa(heads: heads, kv_heads: 1, some_long_name: some_long_value, other_long_name: another_value)
variant v = c.base(heads: 1)
"""


def formatted(text: str) -> str:
    source = Source("t.arch", text)
    return format_file(parse(source), source)


def assert_stable(text: str) -> str:
    once = formatted(text)
    assert parse(Source("t.arch", once)) == parse(Source("t.arch", text))
    assert formatted(once) == once
    return once


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_examples_are_in_canonical_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert formatted(text) == text


def test_all_statements() -> None:
    once = assert_stable(SNIPPETS)
    assert max(map(len, once.split("\n"))) <= 120


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("let a=1", "let a = 1\n"),
        ("", ""),
        ("# only a comment", "# only a comment\n"),
        ("let a = 1 # why\n\n\n\nlet b=2", "let a = 1  # why\n\nlet b = 2\n"),
        ("let a = 1\nlet bcd = 2", "let a = 1\nlet bcd = 2\n"),
        ("let a   = 1\nlet bcd = 2", "let a   = 1\nlet bcd = 2\n"),
        ("let a   = 1\nlet bcde = 2", "let a = 1\nlet bcde = 2\n"),
        ("let a = f( x,y, )", "let a = f(x, y)\n"),
        ("let a = ((1 + (2 * 3)))", "let a = 1 + 2 * 3\n"),
        ("let a = n // 2 * (b + c)", "let a = (n // 2) * (b + c)\n"),
        ("let a = if c then x -> f else y", "let a = if c then (x -> f) else y\n"),
        ("block a { mask: x\nplacement : y }", "block a {\n  mask:      x\n  placement: y\n}\n"),
        ("block a { # why\nmask: x # m\n# end\n}", "block a {  # why\n  mask: x  # m\n  # end\n}\n"),
        ("block a # why\n{ mask: x }", "block a # why\n{\n  mask: x\n}\n"),
        ("let a = f(x, # one\n  y)", "let a = f(x, # one\n  y)\n"),
        ("\ufefflet a = 1\r\nlet b = 2\r\n", "let a = 1\nlet b = 2\n"),
    ],
)
def test_small_texts(text: str, expected: str) -> None:
    assert assert_stable(text) == expected


def built(tree: Any) -> Any:
    """A tree as if nobody had written it: each node stands nowhere."""
    if not isinstance(tree, ast.Node):
        return ast.mapped(tree, built)
    spans = {name: NOWHERE for name in tree.__dataclass_fields__ if name.endswith("span")}
    return replace(ast.mapped(tree, built), **spans)


def assert_built_is_stable(text: str) -> str:
    """Printed without its source, a text says the same, and is in canonical form."""
    tree = parse(Source("t.arch", text))
    printed = format_tree(built(tree))
    assert parse(Source("t.arch", printed)) == tree
    assert formatted(printed) == printed
    return printed


def texts_of(folder: Path) -> list[str]:
    """Every spec below a folder, and every one that a page quotes as far as it can be parsed."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.arch"))]
    for page in sorted(folder.rglob("*.md")):
        texts += re.findall(r"^```arch\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for text in texts if can_be_parsed(text)]


def can_be_parsed(text: str) -> bool:
    try:
        parse(Source("t.arch", text))
    except ArchError:
        return False
    return True


@pytest.mark.parametrize(
    ("folder", "least"), [("specs", 150), ("examples", 5), ("tests", 5), ("docs", 10), ("archdsl", 10)]
)
def test_trees_without_a_source_are_printed(folder: str, least: int) -> None:
    texts = texts_of(ROOT / folder)
    assert len(texts) >= least
    for text in texts:
        assert_built_is_stable(text)


def test_all_statements_without_a_source() -> None:
    printed = assert_built_is_stable(SNIPPETS)
    assert max(map(len, printed.split("\n"))) <= 120
    assert "  if training {\n    loss aux = mean(x)\n  } else if a == b and not c {\n    buffer" in printed
    assert "\n\ninline block nothing {}\n\nblock same(" in printed
    assert 'import "blocks/common.arch" as c\nimport "x.arch"\n\nlet slow' in printed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# of the file\n",
        "# of both\nblock a {}\n",
        "# of the file\n\n# of the block,\n#\n# in two\nblock a {}\n\nmodel b {\n  mask:      x\n  placement: y\n}\n",
        "let a = 1\nlet b = 2\n\nblock a {\n  if a {}\n  else {\n    if b {}\n    x = y\n  }\n}\n",
        "block a {\n  if a {}\n  else if b {\n    x = y\n  } else {\n    x = z\n  }\n  return x\n}\n",
    ],
)
def test_what_is_printed_without_a_source(text: str) -> None:
    assert format_tree(built(parse(Source("t.arch", text)))) == text == formatted(text)


def test_a_doc_stays_a_comment() -> None:
    block = replace(
        built(parse(Source("t.arch", "block a {}"))).declarations[0], doc="one\r\x1b[31m\u2028two\nlet b = 1"
    )
    printed = format_tree(ast.File((block,), span=NOWHERE, doc="the file\n"))
    assert printed == "# the file\n#\n\n# one\ufffd\ufffd[31m\ufffdtwo\n# let b = 1\nblock a {}\n"


def test_parts_from_a_source_keep_the_order_they_are_given() -> None:
    """A tree may be put together of parts that stand elsewhere, in another order."""
    block = parse(Source("t.arch", "block a {\n  x = b\n  # why\n  y = c\n}")).declarations[0]
    assert isinstance(block, ast.BlockDecl)
    assert isinstance(block.body, ast.Body)
    turned = replace(block, body=replace(block.body, items=block.body.items[::-1]))
    assert format_tree(ast.File((turned,), span=NOWHERE)) == "block a {\n  y = c\n  x = b\n}\n"


@pytest.mark.parametrize(
    ("start", "part", "op"), [("not ", "a_long_name == other_name", "and"), ("-", "a_long_name * other_name", "+")]
)
def test_a_long_operand_is_broken_below_its_sign(start: str, part: str, op: str) -> None:
    """Six long parts in parentheses behind a sign: one on each line, below each other, and read back as the same."""
    text = f"model m(x: [batch, 8]) {{ let a = {start}({f' {op} '.join(6 * [part])}) return x }}"
    found = formatted(text)
    lines = [line for line in found.splitlines() if part in line]
    assert len(lines) == 6
    assert len({line.index(part) for line in lines}) == 1
    assert formatted(found) == found


def test_long_lines_are_broken() -> None:
    entries = ", ".join(f"argument_{i}: value_{i}" for i in range(12))
    once = assert_stable(f"let a = block_of(inner({entries}))\nlet b = block_of(\n{entries})")
    assert max(map(len, once.split("\n"))) <= 120
    assert "\nlet b = block_of(\n  argument_0" in once


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), path=st.sampled_from([*EXAMPLES, None]))
def test_no_comment_is_lost(seed: int, path: Path | None) -> None:
    """Comments at any place between two words survive, in order, and the rest keeps its meaning."""
    text = path.read_text(encoding="utf-8") if path else SNIPPETS
    chance = random.Random(seed)
    out, last = [], 0
    for i, token in enumerate(tokens(tables(), text)):
        out.append(text[last : token.start])
        if chance.random() < 0.03:
            out.append(f"{chance.choice(['', ' ', chr(10)])}# note {i}\n")
        out.append(token.text)
        last = token.end
    once = assert_stable("".join(out))
    notes = [line.rsplit("# note ", 1)[1] for line in "".join(out).split("\n") if "# note " in line]
    assert [line.rsplit("# note ", 1)[1] for line in once.split("\n") if "# note " in line] == notes


NAMES = st.sampled_from(["x", "width", "time", "c.decoder", "none", "layer_norm"])
WORDS = st.sampled_from(["x", "heads", "bias"])


def _larger(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    args = st.lists(st.builds(ast.Arg, st.none() | WORDS, inner, span=st.just(NOWHERE)), max_size=3).map(tuple)
    several = st.lists(inner, max_size=3).map(tuple)
    pattern = st.sampled_from(["*", "*.out", "blocks.*.ffn"])
    rule = st.builds(ast.Rule, pattern, inner, span=st.just(NOWHERE), pattern_span=st.just(NOWHERE))
    call = st.builds(ast.Call, inner, args, span=st.just(NOWHERE))
    name = st.builds(ast.Name, NAMES, span=st.just(NOWHERE))
    stage = name | call
    named_stage = st.builds(ast.As, stage, WORDS, span=st.just(NOWHERE), name_span=st.just(NOWHERE))
    part = st.builds(ast.Slice, st.none() | inner, st.none() | inner, span=st.just(NOWHERE))
    items = st.lists(inner | part | st.just(ast.Ellipsis(span=NOWHERE)), min_size=1, max_size=3).map(tuple)
    operators = st.sampled_from(sorted(BINDING.keys() - {"not"}))
    return (
        st.builds(ast.Unary, st.sampled_from(["-", "~", "not"]), inner, span=st.just(NOWHERE))
        | st.builds(ast.Binary, operators, inner, inner, span=st.just(NOWHERE))
        | st.builds(ast.IfElse, inner, inner, inner, span=st.just(NOWHERE))
        | st.builds(ast.List, several, span=st.just(NOWHERE))
        | st.builds(ast.Comprehension, inner, WORDS, inner, span=st.just(NOWHERE))
        | st.builds(ast.Rules, st.lists(rule, min_size=1, max_size=3).map(tuple), span=st.just(NOWHERE))
        | call
        | st.builds(ast.Index, inner, items, span=st.just(NOWHERE))
        | st.builds(ast.As, call, WORDS, span=st.just(NOWHERE), name_span=st.just(NOWHERE))
        | st.builds(
            ast.Pipeline, inner, st.lists(stage | named_stage, min_size=1, max_size=3).map(tuple), span=st.just(NOWHERE)
        )
    )


LEAVES = (
    st.builds(ast.Number, st.sampled_from(["0", "50_257", "1e-5", "0.02"]), span=st.just(NOWHERE))
    | st.builds(ast.String, st.sampled_from(["", "b h t d -> b t h d"]), span=st.just(NOWHERE))
    | st.builds(ast.Name, NAMES, span=st.just(NOWHERE))
)
EXPRESSIONS = st.recursive(LEAVES, _larger, max_leaves=12)


@settings(deadline=None, max_examples=150)
@given(expr=EXPRESSIONS)
def test_expressions_survive_being_written(expr: ast.Expr) -> None:
    assert parse_expression(Source("e", format_expr(expr))) == expr


@settings(deadline=None, max_examples=60)
@given(expr=EXPRESSIONS)
def test_expressions_survive_being_broken_into_lines(expr: ast.Expr) -> None:
    text = f"block long_name {{ some_rather_long_slot_name_that_leaves_no_room_for_what_follows: {format_expr(expr)} }}"
    assert_stable(text)


@settings(deadline=None, max_examples=60)
@given(expr=EXPRESSIONS)
def test_expressions_without_a_source_are_broken_into_lines(expr: ast.Expr) -> None:
    slot = ast.Slot(
        "some_rather_long_slot_name_that_leaves_no_room_for_what_follows", expr, span=NOWHERE, key_span=NOWHERE
    )
    header = ast.Header(None, None, None, span=NOWHERE)
    body = ast.Body((slot,), span=NOWHERE)
    block = ast.BlockDecl("a", False, header, body, span=NOWHERE, name_span=NOWHERE)
    tree = ast.File((block, ast.Let("b", expr, span=NOWHERE)), span=NOWHERE)
    printed = format_tree(tree)
    assert parse(Source("t.arch", printed)) == tree
    assert formatted(printed) == printed
