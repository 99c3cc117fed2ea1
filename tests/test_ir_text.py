"""The printed IR: complete, and the same as yesterday."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import archdsl
from archdsl.ir.text import print_model

GOLDENS = Path(__file__).parent / "goldens" / "ir"
SPECS = ("gpt2", "deepseek_v3", "transformer_base", "seq2seq", "albert_base")


@pytest.mark.parametrize("name", SPECS)
def test_golden(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDENS / f"{name}.txt", print_model(archdsl.load(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [e.name for e in archdsl.list_zoo() if e.kind == "model"])
def test_every_block_once(name: str) -> None:
    text = print_model(archdsl.load(name))
    heads = [line.split()[1] for line in text.splitlines() if line.startswith(("block ", "model "))]
    assert len(heads) == len(set(heads))
    called = set(re.findall(r"= call (?:prepare |step )?([a-z][\w.]*)\(", text))
    assert called <= set(heads)


def test_sizes_are_spelled_as_in_the_block() -> None:
    text = print_model(archdsl.load("gpt2"))
    assert "  local head_dim = width / heads = 64\n" in text
    assert "    weight: [heads * head_dim, width] matrix, depth_scaled(std: init_std, layers: init_layers)\n" in text


def test_only_linear_in_distinct_blocks() -> None:
    few, many = (print_model(archdsl.load("gpt2", set={"layers": n})) for n in (2, 1000))
    assert few.count("\n") == many.count("\n")


def test_a_mask_says_which_tensor_hides_keys() -> None:
    model = archdsl.load(
        text="model m(x: [batch, time, 8]) { keep = mean(x, axis: -1) > 0\n"
        "return x -> mha(heads: 2, mask: causal & keys(keep)) }"
    )
    assert "keys(%keep)" in print_model(model)
