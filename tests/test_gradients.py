"""Which tensors a gradient is wanted of, against those that autograd keeps one for; what the backward pass costs."""

from __future__ import annotations

from random import Random

import pytest
import torch
from flops_tools import counted, sizes_of
from torch_versions import measured

import archdsl
from archdsl.api import to_torch
from archdsl.estimates.kernels import kernels
from archdsl.passes.flatten import flatten
from archdsl.passes.gradients import wanting

TIME = 6
"""Steps of a scan: more than it takes for a gradient to pass through all that is carried."""
MADE = (
    "{a} + {b}",
    "{a} * {b}",
    "where({a} > {b}, {a}, 0.5)",
    "where({a} > {b}, 1, 0) * {c}",
    "stop_gradient({a})",
    "stop_gradient({a}) + 0 * {b}",
    "cast({a} > {b}, float)",
    "{a} -> linear(4) as n{i}",
    "{a} -> layernorm as n{i}",
    "{a} -> mlp(hidden: 8) as n{i}",
    "softmax({a})",
    "{a} // 2",
    "one_hot(4)(argmax({a})) * {b}",
)
"""Tensors of [batch, time, 4] made of others."""


def scan(draw: Random, values: list[str], i: int) -> tuple[list[str], list[str]]:
    """A scan, with what it makes: up to four states, each made of itself, of the others or of a slice."""
    states = [f"h{i}_{k}" for k in range(draw.randint(1, 4))]
    read = draw.choice(values)
    starts = ", ".join(f"{s}: [batch, 4] = {draw.choice(('0', f'{draw.choice(values)}[:, 0]'))}" for s in states)
    body = [f"g = {draw.choice(states)} + 0.5 * r"]
    known = [*states, "g"]
    for k, state in enumerate(draw.sample(states, len(states))):
        made = draw.choice(("{a}", "{a}", "{a} + r", "stop_gradient({a})", "{a} -> linear(4) as m{i}_{k}"))
        body.append(f"{state} = {made.format(a=draw.choice(known), i=i, k=k)}")
    emitted = draw.choice((*states, "g"))
    lines = [f"y{i} = scan {starts} for r in {read} {{", *(f"  {b}" for b in body), f"  emit {emitted}", "}"]
    return lines, [f"y{i}", *(f"unsqueeze({s}, axis: 1) + 0 * x" for s in states)]


def drawn(seed: int) -> str:
    """A model that returns all that it makes."""
    draw = Random(seed)
    values, lines = ["x", "w"], ["param v: [4] = normal(0.5)", "buffer u: [4] = 0.5", "w = x * u"]
    for i in range(draw.randint(3, 6)):
        if draw.random() < 0.45:
            more, made = scan(draw, values, i)
            lines += more
            for k, text in enumerate(made[1:]):
                lines.append(f"z{i}_{k} = {text}")
            values += [made[0], *(f"z{i}_{k}" for k in range(len(made) - 1))]
            continue
        a, (b, c) = draw.choice(values), draw.choices([*values, "v"], k=2)
        lines.append(f"y{i} = x * 0 + ({draw.choice(MADE).format(a=a, b=b, c=c, i=i)})")
        values.append(f"y{i}")
    return "model m(x: [batch, time, 4]) {\n  " + "\n  ".join([*lines, f"return {', '.join(values[1:])}"]) + "\n}\n"


@pytest.mark.parametrize("part", range(4))
def test_a_gradient_is_wanted_where_autograd_has_one(part: int) -> None:
    found = {True: 0, False: 0}
    for seed in range(12 * part, 12 * part + 12):
        text = drawn(seed)
        model = archdsl.load(text=text, allow_noncausal=True)
        graph = flatten(model)
        wants = wanting(graph)
        results = to_torch(model).train()(torch.randn(2, TIME, 4))
        for (name, _), value, result in zip(model.outputs, graph.outputs, results, strict=True):
            assert wants.get(value, False) == result.requires_grad, f"{name} of {text}"
            found[result.requires_grad] += 1
    assert min(found.values()) > 10


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # Of states that change places a gradient is wanted of either, in one step or the other.
        (
            """model m(x: [batch, time, 4]) {
              param v: [4] = normal(0.5)
              y = scan h: [batch, 4] = x[:, 0] * v, g: [batch, 4] = 0 for r in x { t = h h = g g = t + r emit h }
              return y, h, g
            }""",
            [True, True, True],
        ),
        # Experts have weights, and what chooses them may have none.
        (
            """block e(x: [..., width]) -> [..., width] { return x -> linear(width) }
            block plain(x: [..., width]) -> [..., width] { return x * 2 }
            model m(x: [2, 6, 8], w: [2, 6, 2], c: int[2, 6, 2]) {
              return experts(e, 3)(x, w, c), experts(plain, 3)(x, w, c)
            }""",
            [True, False],
        ),
    ],
)
def test_states_that_change_places_and_experts(text: str, wanted: list[bool]) -> None:
    graph = flatten(archdsl.load(text=text, allow_noncausal=True))
    wants = wanting(graph)
    assert [wants.get(v, False) for v in graph.outputs] == wanted


SCANS = {
    "what it emits": "y = scan h: [batch, 4] = s for r in x { h = h -> linear(4) as a emit h } return y -> OUT",
    "its last state": "y = scan h: [batch, 4] = s for r in x { h = h -> linear(4) as a emit r } return h -> OUT",
    "a state that is handed on": """y = scan h: [batch, 4] = s, g: [batch, 4] = s for r in x {
      g = h
      h = (h -> linear(4) as a) + r
      emit g
    }
    return (g + h) -> OUT""",
    "a state that is given": "y = scan h: [batch, 4] = s for r in x { h = r + 0 * h emit h } return y -> OUT",
    "only a slice": "y = scan h: [batch, 4] = 0 for r in x { h = r emit h } return h -> OUT",
    "beside a scan": "y = scan h: [batch, 4] = s for r in x { h = h -> linear(4) as a emit h } return y, x -> OUT",
    "a sequence that is made": """y = scan h: [batch, 4] = s for r in x -> linear(4) as b {
      h = h + (r -> linear(4) as a)
      emit h
    }
    return y -> OUT""",
}


@measured
@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("out", ["linear(8) as out", "layernorm -> linear(8) as out"])
def test_kernels_around_a_scan_do_what_torch_counts(name: str, out: str) -> None:
    """The backward pass of a projection is twice its forward where its input wants a gradient, else once."""
    body = f"param v: [4] = normal(0.5)\n s = v + 0 * x[:, 0]\n {SCANS[name].replace('OUT', out)}"
    model = archdsl.load(text=f"model m(x: [batch, time, 4]) {{ {body} }}", allow_noncausal=True)
    sizes = sizes_of(model, 2, TIME)
    found = kernels(flatten(model), sizes, "float32")
    forward, step = counted(model, sizes, "cpu")
    assert sum(k.flops for k in found) == forward
    assert sum(k.flops + k.backward_flops for k in found) == step
