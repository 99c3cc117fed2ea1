"""The list of what decodes, `decoding.txt`: nothing leaves it, and what has become possible is written there."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from decoding import MODES, PARALLEL, accepted, cases, listed, measured
from torch_emit.test_huggingface import WRITTEN_FOR
from zoo import sizes

LISTED = listed()
FOLDERS = tuple(map(int, version("transformers").split(".")[:2])) >= WRITTEN_FOR
SAMPLE = ["deepseek_v2:deepseek_v2_lite", "hf/bart:mbart", "hf/gemma3_text", "hf/jamba", "hf/opt", "hf/whisper"]
"""Latents, an encoder beside keys and values, windows, states, learned positions; `pytest --every` takes all."""
EACH = 30
"""Specs that the same processes run."""


def told(name: str, found: set[str]) -> str:
    """What is to be done where the list says something else."""
    more, fewer = sorted(found - LISTED[name]), sorted(LISTED[name] - found)
    if (fewer and all(mode.startswith("!") for mode in fewer)) or (more and not fewer):
        return f"{name} decodes in more ways, {more}: `python tests/decoding.py {name}` writes them into the list"
    return f"{name} no longer decodes as before: without {fewer}, with {more}"


def agree(names: list[str], modes: set[str]) -> None:
    """Run those modes of specs that are listed, and compare."""
    wanted = {name: {m for m in LISTED[name] if m.removeprefix("!") in modes} for name in names}
    for name, found in measured(wanted).items():
        assert found == wanted[name], told(name, found | (LISTED[name] - wanted[name]))


def test_the_list_has_every_spec() -> None:
    """Each mode has someone."""
    missing = " ".join(name for name in cases() if name not in LISTED)
    assert not missing, f"`python tests/decoding.py {missing}` writes them into the list"
    assert [*LISTED] == [*cases()]
    every = {f"{back_end} {mode}" for back_end, modes in MODES.items() for mode in modes}
    assert {mode.removeprefix("!") for modes in LISTED.values() for mode in modes} == every


@pytest.mark.parametrize("name", LISTED)
def test_what_back_ends_take_is_listed(name: str) -> None:
    """By planning and lowering alone; that it is right is for the next tests."""
    found = {f"!{m}" if f"!{m}" in LISTED[name] else m for m in accepted(cases()[name]()).modes}
    assert found == LISTED[name], told(name, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in LISTED if LISTED[n]] if sizes.every else SAMPLE)
def test_what_is_listed_gives_what_the_whole_gives(name: str) -> None:
    modes = {mode.removeprefix("!") for mode in LISTED[name]} - {PARALLEL}
    agree([name], {mode for mode in modes if FOLDERS or not mode.startswith("folder")})


SHARED = [name for name in LISTED if PARALLEL in LISTED[name] or f"!{PARALLEL}" in LISTED[name]]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(SHARED), EACH) if sizes.every else [0])
def test_devices_that_share_layers_give_what_one_gives(first: int) -> None:
    agree(SHARED[first : first + EACH] if sizes.every else SAMPLE[::3], {PARALLEL})
