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
