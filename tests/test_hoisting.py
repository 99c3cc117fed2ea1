"""What moves out of blocks: a model computes the same with the pass and without it, and each thing once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from decode_tools import inputs_for
from hypothesis import HealthCheck, given, settings
from near import distance
from random_specs.strategies import HOSTILE, Twins, twins
from torch import Tensor, nn

import archdsl
from archdsl.backends.torch import emit
from archdsl.diagnostics import ArchError
from archdsl.run.load import load_source

HERE = Path(__file__).parent


def apart(**spec: Any) -> float:
    """How far what the emitted file of a spec gives is from what it gives where nothing moves."""
    with patch("archdsl.frontend.root.hoisted", lambda model: model):
        as_written = archdsl.load(allow_noncausal=True, **spec)
    model = archdsl.load(allow_noncausal=True, **spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted, found = (load_source(emit(m))().eval() for m in (as_written, model))
    torch.manual_seed(0)
    for weight in wanted.parameters():
        nn.init.normal_(weight, std=0.3)
    found.load_state_dict(wanted.state_dict())
    inputs = inputs_for(model, {"batch": 2, "time": 8}).values()
    results = []
    for module in (wanted, found):
        torch.manual_seed(1)
        made = module(*inputs)
        results.append([made] if isinstance(made, Tensor) else list(made))
    return max(distance(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(twins(HOSTILE))
def test_what_moves_stays_what_it_is(made: Twins) -> None:
    try:
        found = apart(text=made.text)
    except ArchError:
        return  # which other tests look at
    assert found < 1e-4


SPECS = [
    *HERE.glob("parity/unusual/*.arch"),
    *HERE.glob("truth/equations_*.arch"),
    *HERE.glob("random_specs/kept/*table*.arch"),
]


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_models_with_tables_of_their_own(path: Path) -> None:
    assert apart(spec=path) < 1e-5


def where(text: str) -> dict[str, int]:
    """How often each class of the emitted file makes positions."""
    classes = archdsl.torch_source(text=text).split("\nclass ")[1:]
    return {c.partition("(")[0]: c.count("torch.arange") for c in classes if "torch.arange" in c}


def layered(body: str, blocks: str = "3 * layer", more: str = "") -> str:
    return f"""{more}
    block layer(x: [batch, time, width]) -> [batch, time, width] {{ {body} }}
    model m {{ vocab: 9 context: 8 width: 6 blocks: {blocks} head: lm }}"""


COUNTED = {
    "a table of a layer": (layered("x += x * cast(unsqueeze(indices(time), 1), float)"), {"M": 1}),
    "of a block in the layer": (
        layered(
            "x += x -> inner",
            more="block inner(x: [batch, time, width]) { return x * cast_like(unsqueeze(indices(time), 1), x) }",
        ),
        {"M": 1},
    ),
    "in a layer that runs once": (
        layered("x += x * cast(unsqueeze(indices(time), 1), float)", "1 * layer"),
        {"Layer": 1},
    ),
    "by two blocks alike": (
        layered(
            "x += x -> one(b: 1) -> one(b: 2)",
            more="block one(b)(x: [batch, time, width]) { return x * b * cast_like(unsqueeze(indices(time), 1), x) }",
        ),
        {"M": 1},
    ),
    "in layers that differ": (
        """block layer(n)(x: [batch, time, width]) -> [batch, time, width] {
          x += x * n * cast(unsqueeze(indices(time), 1), float)
        }
        model m { vocab: 9 context: 8 width: 6 blocks: [layer(n: n + 1) for n in 3] head: lm }""",
        {"M": 1},
    ),
    "with a weight of the layer": (
        layered("param a: [1] = ones\n x += x * a * cast(unsqueeze(indices(time), 1), float)"),
        {"M": 1},
    ),
    "where training": (
        layered("if training { x = x * cast(unsqueeze(indices(time), 1), float) }"),
        {"Layer": 1},
    ),
    "of channels": (layered("x += x * cos(indices(width) * 0.1)"), {"M": 1}),
}


@pytest.mark.parametrize("case", COUNTED)
def test_positions_are_made_once(case: str) -> None:
    text, wanted = COUNTED[case]
    assert where(text) == wanted
    assert apart(text=text) < 1e-6


def test_what_a_block_says_twice_is_handed_to_it_once() -> None:
    text = layered(
        """angle = unsqueeze(indices(time), 1) * exp(indices(3) * -0.5)
        a, b = x -> chunk(2)
        x += cast_like(concat(a * cos(angle) - b * sin(angle), b * cos(angle) + a * sin(angle), axis: -1), x)"""
    )
    source = archdsl.torch_source(text=text)
    assert [source.count(f"torch.{name}(") for name in ("cos", "sin", "exp", "arange")] == [1, 1, 1, 2]
    assert apart(text=text) < 1e-6


def test_constants_stay_where_they_are_read() -> None:
    text = layered("x = x + fill(0.5, batch, time, width)")
    assert "torch.full" in archdsl.torch_source(text=text).partition("class M(")[0]


def test_a_config_is_held_to_no_more() -> None:
    """Two tables of numbers that happen to be equal stay two."""
    text = """
    block turn(n)(x: [batch, time, width]) { return x * cast_like(unsqueeze(indices(time) % n, 1), x) }
    block layer(a, b)(x: [batch, time, width]) -> [batch, time, width] { x += x -> turn(a) -> turn(b) }
    model m(a = 3, b = 3) { vocab: 9 context: 8 width: 6 blocks: 2 * layer(a, b) head: lm }"""
    made = load_source(archdsl.torch_source(text=text))
    other = load_source(archdsl.torch_source(text=text, set={"a": 2, "b": 5}))()
    mine = made(made.__init__.__globals__["Config"](a=2, b=5))
    mine.load_state_dict(other.state_dict())
    tokens = torch.randint(9, (2, 8))
    assert distance(mine(tokens), other(tokens)) < 1e-6


PLACES = {
    "of the file": "let p = shared({p})\n"
    "block layer {{ attention: mha(heads: 2) mask: causal position: p ffn: mlp(hidden: 8) }}\n"
    "model m {{ {slots} blocks: 2 * layer }}",
    "of the model": "block layer(q) {{ attention: mha(heads: 2) mask: causal position: q ffn: mlp(hidden: 8) }}\n"
    "model m {{ let p = shared({p})\n {slots} blocks: 2 * layer(q: p) }}",
    "by way of a block that runs once": "block stack(q)(x: [batch, time, width]) -> [batch, time, width] {{\n"
    "  for i in 3 {{ x += x -> mha(heads: 2, position: q) }}\n}}\n"
    "model m {{ let p = shared({p})\n {slots} blocks: 1 * stack(q: p) }}",
    "of two stacks": "let p = shared({p})\n"
    "block a {{ attention: mha(heads: 2) position: p ffn: mlp(hidden: 8) }}\n"
    "block b(q) {{ attention: gqa(heads: 2, kv_heads: 1) position: q ffn: mlp(hidden: 8) }}\n"
    "model m {{ {slots} blocks: 2 * a + 2 * b(q: p) }}",
}
SHARED = ("relative_bias(buckets: 8, max_distance: 16)", "transformer_xl(width: 8)", "far(heads: 2)")
FAR = """block far(heads: size)(i: int[time], j: int[source]) -> [heads, time, source] {
  param slope: [heads, 1, 1] = normal(1)
  return -slope * log(1 + abs(unsqueeze(i, 1) - j))
}
"""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("position", SHARED)
def test_what_is_shared_is_applied_by_its_owner(position: str, place: str) -> None:
    """Wherever it is declared; queries of its own are what a position waits for in each layer."""
    text = FAR + PLACES[place].format(p=position, slots="vocab: 9 context: 16 width: 8 head: lm(tied: true)")
    assert apart(text=text) < 1e-5
    uses = archdsl.torch_source(text=text, allow_noncausal=True).count("self.p(")
    stacks = 2 if place == "of two stacks" else 1  # by attention of two blocks
    assert uses == (0 if position.startswith("transformer_xl") else stacks)
