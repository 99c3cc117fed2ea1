"""The notation of mappings: what an equation does to numbers, and what is refused where it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from archdsl.diagnostics import ArchError
from archdsl.frontend.load import load
from archdsl.interop.checkpoint_file import read
from archdsl.interop.mapping import Mapper


def one_weight(*shape: int) -> str:
    """A spec whose only weight is of a shape."""
    total = len(shape) * "sum(" + "table" + len(shape) * ")"
    return f"""
block thing(heads)(x: [..., width]) -> [..., width] {{
  param table: {[*shape]} = zeros
  return x + {total}
}}

model m(width = 4, heads = 3)(x: [batch, time, width]) -> [batch, time, width] {{
  return x -> thing(heads: heads) as t
}}
"""


EQUATIONS = {
    "[1 1 h 1] = [h 1]": ((6, 1), (1, 1, 6, 1), lambda x: x.reshape(6, 1)),
    "[h 1] = [1 h 1 1]": ((1, 6, 1, 1), (6, 1), lambda x: x.reshape(1, 6, 1, 1)),
    "[1 a b] = [b 1 a]": ((5, 1, 2), (1, 2, 5), lambda x: x[0].T.reshape(5, 1, 2)),
    "[1] = []": ((), (1,), lambda x: x.reshape(())),
    "[a (b 1)] = [(1 b) a]": ((5, 2), (2, 5), lambda x: x.T),
    "[(heads d 2) 1] = [(heads 2 d)]": ((12,), (12, 1), lambda x: x.reshape(3, 2, 2).swapaxes(1, 2).reshape(12)),
}


def mapper_of(text: str, spec: str, folder: Path) -> Mapper:
    (folder / "m.checkpoint").write_text(text)
    return Mapper(read(folder / "m.checkpoint"), load("m.arch", text=spec))


@pytest.mark.parametrize("equation", EQUATIONS)
def test_axes_of_one_number_stand_anywhere(equation: str, tmp_path: Path) -> None:
    """There and back, against numpy."""
    shape, theirs, ours = EQUATIONS[equation]
    left, right = equation.split(" = ")
    mapper = mapper_of(f"a {left} = t.table {right}", one_weight(*shape), tmp_path)
    [transfer] = mapper.transfers
    assert transfer.shape == theirs
    numbers = np.arange(np.prod(theirs, dtype=int), dtype="<f4").reshape(theirs)
    [weight] = transfer.to_ours([numbers])
    np.testing.assert_array_equal(weight, ours(numbers), strict=True)
    np.testing.assert_array_equal(transfer.to_theirs([weight])[0], numbers, strict=True)


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("= a", "`=` is not expected here", "="),
        ("a = b }", "`}` is not expected here", "}"),
        ("a @ " + "@" * 99, "`@` is not", "@"),
        ("a = \n\n", "the file ends within a line or a block", "="),
        ("a { b = c", "the file ends within", "c"),
        ("a {", "the file ends within", "{"),
        ("a.{b,c} = d.{e,f,g}", "2 tensors of theirs and 3 of ours", "a.{b,c} = d.{e,f,g}"),
        ("config { a = b { c } }", "kinds of layers are pairs", "a = b { c }"),
        ("config { a = b { c: d: e } }", "kinds of layers are pairs", "a = b { c: d: e }"),
        ("a.{b,c} { d = e }", "a prefix of rules has neither axes, nor alternatives", "a.{b,c} { d = e }"),
        ("a [i o] = b", "an equation names the axes of both sides", "a [i o] = b"),
        ("a.{b,c} [{} i] = b.{c,d} [{} i]", "pieces lie in one tensor of theirs", "a.{b,c} [{} i] = b.{c,d} [{} i]"),
        (";".join(["a" + ".{x,y}" * 12 + " = b" + ".{x,y}" * 12] * 3), "these are more than 10,000 rules", "a"),
    ],
)
def test_what_is_no_mapping_is_said_where_it_stands(text: str, message: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "m.checkpoint").write_text(text)
    with pytest.raises(ArchError) as raised:
        read(tmp_path / "m.checkpoint")
    [found] = raised.value.diagnostics
    assert found.code == "E0531"
    assert message in found.message
    assert found.span is not None
    assert found.span.text.startswith(place)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("a [b c] = t.table [(b c) 1]", "`t.table` is [6, 2], not [(b c) 1]"),
        ("a [(b c)] = t.table [(b c)]", "`t.table` is [6, 2], not [(b c)]"),
        ("a [b c d] = t.table [b (c d)]", "`t.table` is [6, 2], not [b (c d)]"),
        ("a [4 b c] = t.table [(4 b) c]", "`t.table` is [6, 2], not [(4 b) c]"),
        ("a [heads b width] = t.table [(heads b) width]", "`t.table` is [6, 2], not [(heads b) width]"),
        ("a.{b,c} = t.{table,table}", "2 rules give `t.table`"),
        ("a.* = t.table", "`a.*` and `t.table` have different numbers of `*`"),
        ("a [{} i] = t.{table,other} [{} i]", "`a` has 2 pieces, and the spec 1 of them"),
        ("a [o i] = t.other [o i]", "no rule of `m.checkpoint` gives 1 weights of the spec: `t.table`"),
    ],
)
def test_a_rule_that_does_not_fit_a_weight_is_told(rules: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArchError) as raised:
        mapper_of(rules, one_weight(6, 2), tmp_path)
    [found] = raised.value.diagnostics
    assert (found.code, message in found.message) == ("E0532", True), found.message
    assert (found.span is None) is message.startswith("no rule")


@pytest.mark.parametrize("axes", ["i o", "k o", "i k"])
def test_a_matrix_of_the_spec_has_outputs_before_inputs(axes: str, tmp_path: Path) -> None:
    spec = "model m(x: [batch, 6]) -> [batch, 2] {\n  return x -> linear(2, bias: false)\n}\n"
    with pytest.raises(ArchError) as raised:
        mapper_of(f"a [{axes}] = linear [{axes}]", spec, tmp_path)
    [found] = raised.value.diagnostics
    assert found.message == f"`linear.weight` is a matrix [outputs, inputs], not [{axes}]"
    assert mapper_of("a [i o] = linear [o i]", spec, tmp_path).transfers[0].shape == (6, 2)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("[h k] = [h]", "only one side has the axis `k`"),
        ("[h] = [h heads]", "only one side has the axis `heads`"),
        ("[h h] = [h h]", "the axis `h` stands twice"),
        ("[(h 2) 2] = [2 (2 h)]", "the axis `2` stands twice"),
        ("[h] = [{} h]", "only one side has the axis `{}`"),
        ("[* h] = [* h]", "only one side has the axis `*`"),
        ("[h 2] = [h 3]", "only one side has the axis `2`"),
    ],
)
def test_an_equation_has_each_axis_once_on_both_sides(equation: str, message: str, tmp_path: Path) -> None:
    left, right = equation.split(" = ")
    with pytest.raises(ArchError) as raised:
        mapper_of(f"a {left} = t.table {right}", one_weight(6, 2), tmp_path)
    [found] = raised.value.diagnostics
    assert (found.code, message in found.message, found.span is not None) == ("E0531", True, True), found.message


TWO_ROPES = """
block layer(heads, position) {
  attention: mha(heads: heads)
  mask:      causal
  position:  position
  ffn:       swiglu(hidden: 8)
  norm:      rmsnorm
}

model m(layers = 4, width = 8, heads = 2) {
  let near = layer(heads: heads, position: rope())
  let far  = layer(heads: heads, position: rope(interleaved: true))

  vocab:   16
  context: 32
  width:   width
  blocks:  2 * near + 2 * far
  norm:    rmsnorm
  head:    lm
}
"""


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("rope halves ; rope pairs in blocks.2 ; rope pairs in blocks.3.attention", ""),
        ("rope pairs ; rope halves in blocks.0 ; rope halves in blocks.1", ""),
        ("rope halves", "turns `pairs` of channels together in `blocks.*.attention`, and the checkpoint's `halves`"),
        ("rope halves ; rope pairs in blocks.2", "turns `pairs` of channels together in `blocks.*.attention`"),
        ("rope pairs in blocks.2 ; rope pairs in blocks.3", "turns `halves` of channels together"),
        ("rope pairs ; rope halves in blocks.0 ; rope halves in blocks.1 ; rope halves in head", "a rope in `head`"),
        ("rope halves ; rope wholes in blocks.2", "`rope` is `halves` or `pairs`"),
    ],
)
def test_parts_of_a_model_turn_other_channels_together(lines: str, message: str, tmp_path: Path) -> None:
    rules = "token_embedding = token_embedding ; blocks = blocks ; norm = norm ; head = head"
    if not message:
        assert mapper_of(f"{lines}\n{rules}", TWO_ROPES, tmp_path).taken
        return
    with pytest.raises(ArchError) as raised:
        mapper_of(f"{lines}\n{rules}", TWO_ROPES, tmp_path)
    assert message in str(raised.value.diagnostics[0].message)
