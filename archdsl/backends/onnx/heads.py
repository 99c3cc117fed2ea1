"""Heads side by side: attention and rotary positions that take [batch, time, heads * head_dim] as linear layers make
it.

Cutting heads off and moving them in front of time is what the language says, and a copy of the tensor each time.
Where operators read and write heads in place, nodes that only move them fall away. Works on nodes before they are a
graph; who else wants the moved tensor still has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

MOVED = (0, 2, 1, 3)


class Heads(NamedTuple):
    """A tensor [batch, heads, time, head_dim] as what it was moved from, and the rotary positions between."""

    flat: ir.Value
    heads: int
    rotary: ir.Node | None = None


def side_by_side(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """The nodes, heads left in place where they can be. What nothing reads any more is still among them."""
    mover = _Mover(nodes)
    for node in nodes:
        if node.op_type == "Attention" and not node.domain:
            mover.attention(node)
    for node in nodes:
        if node.op_type == "Reshape":
            mover.joined(node)
    return [made for node in nodes for made in (*mover.before.get(id(node), ()), node)]


class _Mover:
    def __init__(self, nodes: Sequence[ir.Node]) -> None:
        self.known = {id(n) for n in nodes}
        self.before: dict[int, list[ir.Node]] = {}
        """New nodes, by the old one that they stand in front of."""
        self.rotated: dict[int, ir.Value] = {}

    def attention(self, node: ir.Node) -> None:
        """Queries, keys and values as they came, and a result whose heads nothing needs to move back."""
        given = [_heads(x) for x in node.inputs[:3]]
        joined = self._only_joined(node.outputs[0])
        if len(node.inputs) > 4 or len(node.outputs) > 1 or joined is None or any(h is None for h in given):
            return
        heads = [h for h in given if h is not None]
        counts = {"q_num_heads": heads[0].heads, "kv_num_heads": heads[1].heads}
        inputs = [self.in_position(h) for h in heads]
        made = _like(node, [*inputs, *node.inputs[3:]], counts, joined.outputs[0])
        self.before.setdefault(id(node), []).append(made)

    def joined(self, node: ir.Node) -> None:
        """Heads that are moved back from where they were moved to."""
        shape = _numbers(node.inputs[1])
        moved = _moved(node.inputs[0])
        heads = _heads(moved) if moved is not None else None
        if shape is None or len(shape) != 3 or shape[:2] != [0, 0] or heads is None:
            return
        found = self.in_position(heads)
        ir.convenience.replace_all_uses_with(node.outputs[0], found)

    def in_position(self, heads: Heads) -> ir.Value:
        """The tensor before its heads were moved, turned where the moved one was."""
        if heads.rotary is None:
            return heads.flat
        if id(heads.rotary) not in self.rotated:
            old = heads.rotary.outputs[0]
            out = ir.Value(name=f"{old.name}_in_position", type=old.type, shape=heads.flat.shape)
            inputs = [heads.flat, *heads.rotary.inputs[1:]]
            made = _like(heads.rotary, inputs, {"num_heads": heads.heads}, out, fresh=True)
            self.before.setdefault(id(heads.rotary), []).append(made)
            self.rotated[id(heads.rotary)] = out
        return self.rotated[id(heads.rotary)]

    def _only_joined(self, x: ir.Value) -> ir.Node | None:
        """The node that joins the heads of a result, if nothing else reads it."""
        for operator in ("Transpose", "Reshape"):
            users = x.consumers()
            if len(users) != 1 or users[0].op_type != operator or id(users[0]) not in self.known:
                return None
            user = users[0]
            if operator == "Transpose" and tuple(user.attributes["perm"].value) != MOVED:
                return None
            if operator == "Reshape":
                shape = _numbers(user.inputs[1])
                return user if shape is not None and len(shape) == 3 and shape[:2] == [0, 0] else None
            x = user.outputs[0]
        return None


def _like(
    node: ir.Node,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    out: ir.Value,
    fresh: bool = False,
) -> ir.Node:
    """The same operator on other inputs. Its output stands for `out`, or is it where that is `fresh`."""
    result = out if fresh else ir.Value(name=node.outputs[0].name, type=out.type, shape=out.shape)
    if not fresh:
        ir.convenience.replace_all_uses_with(out, result)
    kept = {name: a.value for name, a in node.attributes.items()}
    return ir.node(node.op_type, inputs, {**kept, **attributes}, outputs=[result], name=result.name)


def _heads(x: ir.Value | None) -> Heads | None:
    """What x was moved from, if it is [batch, heads, time, head_dim] and cut from the last of three axes."""
    producer = x.producer() if x is not None else None
    if producer is not None and producer.op_type == "RotaryEmbedding" and not producer.domain:
        inner = _heads(producer.inputs[0])
        return Heads(inner.flat, inner.heads, producer) if inner is not None and inner.rotary is None else None
    cut = _moved(x)
    reshape = cut.producer() if cut is not None else None
    if reshape is None or reshape.op_type != "Reshape":
        return None
    flat, shape = reshape.inputs[0], _numbers(reshape.inputs[1])
    if flat is None or shape is None or len(shape) != 4 or shape[:2] != [0, 0] or shape[2] <= 0 or not _of_three(flat):
        return None
    return Heads(flat, shape[2])


def _of_three(x: ir.Value) -> bool:
    """Whether it has three axes."""
    producer = x.producer()
    return (
        len(x.shape) == 3 if x.shape is not None else producer is not None and producer.op_type == "GroupQueryAttention"
    )


def _moved(x: ir.Value | None) -> ir.Value | None:
    """The tensor whose axes of heads and time x has changed about."""
    producer = x.producer() if x is not None else None
    if producer is None or producer.op_type != "Transpose" or tuple(producer.attributes["perm"].value) != MOVED:
        return None
    return producer.inputs[0]


def _numbers(x: ir.Value | None) -> list[int] | None:
    """A vector of constants."""
    if x is None or x.const_value is None:
        return None
    return [int(n) for n in x.const_value.numpy().reshape(-1)]
