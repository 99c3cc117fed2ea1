"""A step of decoding with its nodes erased, which is to be the model: what is appended is the tensor itself, the newest
positions are all, and the two sizes of time are one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from archdsl.interop.sameness import Form
from archdsl.ir.dims import Num, of_atom, with_symbol
from archdsl.ir.graph import (
    Block,
    FormNode,
    Graph,
    Model,
    Node,
    OnceNode,
    OpNode,
    ScanNode,
    Value,
)
from archdsl.ir.masks import Mask
from archdsl.ir.static import SharedModule, each_number
from archdsl.passes.dce import live
from archdsl.passes.flatten import FlatGraph, flatten
from archdsl.passes.step import Stepped


def difference(step: Stepped) -> str:
    """Say what the step computes otherwise than the model, '' if nothing."""
    whole = flatten(step.whole)
    given = tuple(whole.outputs[i] for i in step.results)
    whole = FlatGraph(whole.inputs, live(whole.nodes, given), given)
    a, b = Form(whole), Form(flatten(erased(step)))
    if a.outputs != b.outputs:
        return b.difference(a)
    pairs = a.paired(b)
    if pairs is None or any(x != y for x, y in pairs.items()):
        return "reads other weights"
    return ""


def erased(step: Stepped) -> Model:
    """The step as a model without nodes of decoding."""
    time = of_atom(step.time)

    def number(n: Num) -> Num:
        value = n.value
        for symbol, size in step.as_whole(time).items():
            value = with_symbol(value, symbol.name, size)
        return Num(value, n.expr, n.origin)

    return replace(step.model, block=_Eraser(number).block(step.model.block), symbols=step.whole.symbols)


class _Eraser:
    def __init__(self, number: Callable[[Num], Num]) -> None:
        self.number = number
        self.blocks: dict[Block, Block] = {}
        self.values: dict[Value, Value] = {}

    def block(self, block: Block) -> Block:
        if block not in self.blocks:
            around, self.values = self.values, {}
            contexts = tuple(self.part(c) for c in block.contexts)
            graph = self.graph(block.graph)
            before = None if block.before is None else self.block(block.before)
            self.blocks[block] = replace(block, graph=graph, contexts=contexts, before=before)
            self.values = around
        return self.blocks[block]

    def graph(self, graph: Graph) -> Graph:
        inputs = tuple(map(self.value, graph.inputs))
        nodes: list[Node] = []
        for node in graph.nodes:
            self.node(node, nodes)
        return Graph(inputs, tuple(nodes), tuple(None if v is None else self.value(v) for v in graph.outputs))

    def node(self, node: Node, nodes: list[Node]) -> None:
        if isinstance(node, FormNode):
            self.values[node.output] = self.value(node.value)
        elif isinstance(node, OnceNode):
            inner = self.graph(node.body)
            nodes += inner.nodes
            for outer, made in zip(node.outputs, inner.outputs, strict=True):
                assert made is not None
                self.values[outer] = made
        else:
            made = replace(node, **{f.name: self.part(getattr(node, f.name)) for f in fields(node)})
            nodes.append(replace(made, kept="") if isinstance(made, OpNode | ScanNode) else made)

    def value(self, value: Value) -> Value:
        if value not in self.values:
            self.values[value] = replace(value, shape=tuple(map(self.number, value.shape)))
        return self.values[value]

    def part(self, x: Any) -> Any:
        match x:
            case Value():
                return self.value(x)
            case Num() | Mask():
                return each_number(x, self.number)
            case Block():
                return self.block(x)
            case Graph():
                return self.graph(x)
            case tuple():
                return tuple(map(self.part, x))
            case dict():
                return {k: self.part(v) for k, v in x.items()}
            case SharedModule():
                return x
        if is_dataclass(x) and type(x).__module__ == "archdsl.ir.graph":
            return replace(x, **{f.name: self.part(getattr(x, f.name)) for f in fields(x)})
        return x
