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


@pytest.mark.parametrize("name", ["deepseek_v3", "t5_base", "mamba_130m"])
def test_golden_of_a_step(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDENS / f"{name}.step.txt", archdsl.show(name, "ir", decode=True))


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


def test_a_mask_that_is_turned_round_is_said_so() -> None:
    text = "model m(x: [batch, time, 8]) {{ return x -> mha(heads: 2, mask: {}) }}"
    for mask in ("~window(3)", "~(causal & window(3))", "causal & ~window(3)"):
        printed = print_model(archdsl.load(text=text.format(mask)))
        said = mask.replace("~window(3)", "~(window(3))")
        assert f"mask(time, time, mask: {said}, heads" in printed


def test_numbers_of_masks_are_named_by_their_rules() -> None:
    """Within a block, which may stand for several: a second number of one rule is counted."""
    text = """
block pair(masks: list)(x: [..., 8]) -> [..., 8] { for k in masks { x = x -> mha(heads: 2, mask: k) } return x }
block outer(n, k)(x: [..., 8]) -> [..., 8] { return x -> pair(masks: [window(n) & window(k), window(n)]) }
model m(n = 3, k = 4)(x: [batch, time, 8]) { return x -> outer(n, k) -> outer(k, n) }"""
    printed = print_model(archdsl.load(text=text))
    assert "with masks_0_window = n, masks_0_window_2 = k, masks_1_window = n\n" in printed
    assert "hyper masks = [window(masks_0_window) & window(masks_0_window_2), window(masks_1_window)]\n" in printed


BRANCHES = {
    "y = x\n  if training { y = x * 2 }\n  return y": ["times(%x, 2)", "%x"],
    "y = x\n  if training { assert time > 3 } else { y = x * 2 }\n  return y": ["check time > 3", "times(%x, 2)"],
    "if training { assert time > 3 } else { assert time > 2 }\n  return x": ["check time > 3", "check time > 2"],
    "if training { assert time > 3 }\n  return x": ["check time > 3", None],
    "y = x * 2\n  if training { } else { y = x }\n  return y": ["%y", "%x"],
}


@pytest.mark.parametrize("body", BRANCHES)
def test_both_branches_are_printed_unless_one_holds_nothing(body: str) -> None:
    printed = print_model(archdsl.load(text=f"model m(x: [batch, time, 8]) {{\n  {body}\n}}"))
    _, _, inside = printed.partition("if training {")
    training, other, otherwise = inside.rpartition("} else {")
    first, second = BRANCHES[body]
    assert bool(other) == (second is not None)
    assert first in (training or otherwise)
    assert second is None or second in otherwise.partition("}")[0]


def test_numbers_have_all_their_digits() -> None:
    body = "return x * a * b + c"
    text = f"model m(a = 0.1234567891, b = 1 / 3, c = 1e-12)(x: [batch, time, 8]) {{ {body} }}"
    assert "config a = 0.1234567891, b = 1 / 3, c = 1e-12\n" in print_model(archdsl.load(text=text))
