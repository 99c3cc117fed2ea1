"""Every section of the emitted file, one by one and together: a row of a table, told of wherever they are listed."""

from __future__ import annotations

import pytest
import torch
from cli_tools import TINY, run
from torch_versions import VERSION

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.backends.torch.features import NAMES, SECTIONS, Name
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
