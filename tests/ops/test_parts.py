"""What primitives say of parts holds: each device's part of the inputs gives its part of the output."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

import archdsl
from archdsl.api import to_torch
from archdsl.ir.graph import Model, OpNode, Value
from archdsl.ir.op import Example, Parts
from archdsl.ops import registry

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


def test_parts_of_inputs_give_parts_of_outputs() -> None:
    """For the examples that are one op; the ways are many, and of most vocabularies."""
    torch.manual_seed(0)
    found: set[str] = set()
    count = 0
    for name in sorted(registry.names()):
        for example in registry.get(name).examples:
            model = archdsl.load(
                text=f"model m({example.inputs}) {{ {example.statements} return {example.expression} }}"
            )
            nodes = [n for n in model.block.graph.nodes if isinstance(n, OpNode)]
            possible = ways(nodes[0]) if len(nodes) == 1 and nodes[0].inputs == model.block.graph.inputs else []
            if possible:
                found.add(name)
                count += len(possible)
                parts_agree(model, example, possible)
    assert count > 240
    assert len(found) > 80, sorted(found)


def parts_agree(model: Model, example: Example, possible: Sequence[tuple[tuple[int | None, ...], Parts]]) -> None:
    """Compare each device's part of the outputs with that of the whole."""
    module = to_torch(model).eval()
    given = {name: drawn(value, example) for name, value in model.inputs}
    whole = outputs(module(**given))
    for cut, parts in possible:
        for device in range(DEVICES):
            mine = {}
            for i, (name, tensor) in enumerate(given.items()):
                axis = cut[i] if cut[i] is not None else parts.own.get(i)
                mine[name] = tensor if axis is None else tensor.chunk(DEVICES, axis)[device]
            for y, expected in zip(outputs(module(**mine)), whole, strict=True):
                torch.testing.assert_close(
                    y, expected.chunk(DEVICES, parts.axis)[device], msg=lambda m, cut=cut: f"{example} {cut}: {m}"
                )


def outputs(result: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return [result] if isinstance(result, Tensor) else result
