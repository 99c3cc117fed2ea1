"""What primitives say of parts holds: each device's part of the inputs gives its part of the output."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import archdsl
from archdsl.api import to_torch
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Example, Parts
from archdsl.ops import registry

CASES = [
    pytest.param(example, id=f"{name}-{i}")
    for name in sorted(registry.names())
    for i, example in enumerate(registry.get(name).examples)
]
DEVICES = 2


def drawn(value: Value, example: Example) -> Tensor:
    shape = [int(d) for d in value.shape]
    if value.is_bool:
        return torch.rand(shape) < 0.5
    return torch.randint(example.below, shape) if value.is_int else torch.randn(shape)


def ways(node: OpNode) -> list[tuple[tuple[int | None, ...], Parts]]:
    """Every way to cut inputs that the op says it can do its part of, in equal parts."""
    values = node.inputs
    axes = [[None, *range(v.rank)] if isinstance(v, Value) else [None] for v in values]
    found = []
    for cut in itertools.product(*axes):
        if all(axis is None for axis in cut):
            continue
        sizes = [v.shape[a].value for v, a in zip(values, cut, strict=True) if isinstance(v, Value) and a is not None]
        if any(not isinstance(s, int) or s % DEVICES for s in sizes):
            continue
        parts = node.op.parts(node, cut)
        # What is cut of weights and numbers, the emitted model says: tests of the section `parallel` train it.
        if parts is None or parts.axis is None or parts.weights or parts.numbers:
            continue
        if all(n.static and int(n) % DEVICES == 0 for n in parts.sizes):
            found.append((cut, parts))
    return found


@pytest.mark.parametrize("example", CASES)
def test_parts_of_inputs_give_parts_of_outputs(example: Example) -> None:
    torch.manual_seed(0)
    model = archdsl.load(text=f"model m({example.inputs}) {{ {example.statements} return {example.expression} }}")
    nodes = [n for n in model.block.graph.nodes if isinstance(n, OpNode)]
    if len(nodes) != 1 or nodes[0].inputs != model.block.graph.inputs:
        return
    module = to_torch(model).eval()
    given = {name: drawn(value, example) for name, value in model.inputs}
    whole = outputs(module(**given))
    for cut, parts in ways(nodes[0]):
        for device in range(DEVICES):
            mine = {}
            for i, (name, tensor) in enumerate(given.items()):
                axis = cut[i] if cut[i] is not None else parts.own.get(i)
                mine[name] = tensor if axis is None else tensor.chunk(DEVICES, axis)[device]
            for y, expected in zip(outputs(module(**mine)), whole, strict=True):
                torch.testing.assert_close(
                    y, expected.chunk(DEVICES, parts.axis)[device], msg=lambda m, cut=cut: f"{cut}: {m}"
                )


def outputs(result: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return [result] if isinstance(result, Tensor) else result


def test_most_primitives_say_something() -> None:
    """The ways above are many: the test would else hold of nothing."""
    count = 0
    for case in CASES:
        (example,) = case.values
        assert isinstance(example, Example)
        model = archdsl.load(text=f"model m({example.inputs}) {{ {example.statements} return {example.expression} }}")
        for node in model.block.graph.nodes:
            if isinstance(node, OpNode) and node.op.name not in ("mask", "rope_table"):
                count += len(ways(node))
    assert count > 150
