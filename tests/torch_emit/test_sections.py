"""Every section of the emitted file, one by one and together: a row of a table, told of wherever they are listed."""

from __future__ import annotations

import pytest
import torch
from cli_tools import TINY, run
from torch_versions import VERSION

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.backends.torch.features import NAMES, SECTIONS, Name
from archdsl.ir.wording import WRITTEN_OUT
from archdsl.run.load import load_source

SPEC = TINY.replace("causal", "causal & window(4)")


def needs_newer(section: Name) -> bool:
    return section == "varlen" and VERSION < (2, 11)


def test_every_name_is_a_row_and_told_of() -> None:
    assert {*SECTIONS} == {*NAMES}, "a name in `Name` and a row in SECTIONS, for each section"
    listed = ", ".join(NAMES)
    assert listed in " ".join((archdsl.torch_source.__doc__ or "").split())
    assert listed in " ".join(run("compile", "--help")[1].replace("│", " ").split())


@pytest.mark.slow
@pytest.mark.parametrize("sections", [*([name] for name in NAMES), list(NAMES)], ids=",".join)
def test_what_a_section_leaves_as_it_is(sections: list[Name]) -> None:
    """The weights, the logits, and how the file says it was made."""
    if any(map(needs_newer, sections)):
        pytest.skip("torch 2.11 has varlen_attn")
    model = archdsl.load(text=SPEC, set={"width": 32})
    torch.manual_seed(0)
    plain = load_source(emit(model))().eval()
    source = emit(model, Extras(frozenset(sections)))
    assert f"--with {','.join(sections)}" in source
    made = load_source(source)().eval()
    made.load_state_dict(plain.state_dict())
    tokens = torch.randint(64, (2, 11))
    with torch.no_grad():
        torch.testing.assert_close(made(tokens), plain(tokens))


TWO_KINDS = """
block layer(mask, theta) { attention: mha(heads: 2)  mask: mask  position: rope(theta: theta)  ffn: mlp(hidden: 16) }
model m(layers = 8, near = layer(mask: causal & window(4), theta: 100), far = layer(mask: causal, theta: 1000)) {
  vocab: 64  context: 16  width: 16  blocks: (layers // 3) * (2 * near + far) + (layers % 3) * near  head: lm
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("section", [name for name in NAMES if name != "varlen"])  # no kernel of its has both masks
def test_a_section_keeps_the_loop_over_layers(section: Name) -> None:
    """Layers that differ in what they are given are one loop of any length, as in the plain file."""
    source = emit(archdsl.load(text=TWO_KINDS), Extras(frozenset([section])))
    assert WRITTEN_OUT not in source
    assert "self.blocks[" not in source
