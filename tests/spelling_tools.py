"""Every number of a model against its spelling: what its expression comes to in the names of its block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from archdsl.ir import dims
from archdsl.ir.dims import Bin, Expr, Fn, Lit, Num, Poly, Value, Var, expr_text, symbol
from archdsl.ir.graph import Block, CallNode, CheckNode, Graph, Model, OpNode, node_outputs, subgraphs
from archdsl.ir.graph import Value as Tensor
from archdsl.ir.masks import Mask
from archdsl.ir.static import ListValue, Scheme, Template

Names = dict[str, Value]


def worth(e: Expr, names: Mapping[str, Value]) -> Value:
    if isinstance(e, Lit):
        return dims.whole(Fraction(e.text.replace("_", "")))
    if isinstance(e, Var):
        return names[e.name]
    if isinstance(e, Fn):
        return dims.apply_function(e.name, *(worth(a, names) for a in e.args))
    assert isinstance(e, Bin)
    return dims.OPERATORS[e.op](worth(e.left, names), worth(e.right, names))


def alike(a: Value, b: Value) -> bool:
    if isinstance(a, Poly) or isinstance(b, Poly) or not (isinstance(a, float) or isinstance(b, float)):
        return a == b
    return abs(a - b) <= 1e-9 * abs(b)


def numbers_in(value: Any) -> Iterator[Num]:
    """Every number of a static value."""
    if isinstance(value, Num):
        yield value
    elif isinstance(value, Template | dict):
        for v in (value.args if isinstance(value, Template) else value).values():
            yield from numbers_in(v)
    elif isinstance(value, Scheme):
        yield from value.numbers.values()
    elif isinstance(value, Mask):
        yield from numbers_in((*value.numbers, *value.parts))
    elif isinstance(value, tuple | list | ListValue):
        for v in value.items if isinstance(value, ListValue) else value:
            yield from numbers_in(v)


class Spelling:
    """`wrong` says of which numbers of a model the spelling is another number."""

    def __init__(self, model: Model) -> None:
        self.wrong: list[str] = []
        self.seen: dict[int, Names] = {}
        self.joined: set[str] = set()
        """Names of numbers of shared blocks, the same in every block that these are handed to."""
        self.spelled: list[tuple[str, Expr, Value, Names]] = []
        """Where each number stands, how it is spelled, what it is, and the names of its block."""
        given: Names = {f.name: f.value.value for f in model.config}
        given |= {d.expr.name: d.value for _, v in model.inputs for d in v.shape if isinstance(d.expr, Var)}
        self._block(model.block, given)
        for where, expr, value, names in self.spelled:
            try:
                found = worth(expr, names)
            except KeyError as problem:
                self.wrong.append(f"{where}: `{expr_text(expr)}` says {problem}, which is no name there")
                continue
            if not alike(found, value):
                self.wrong.append(f"{where}: `{expr_text(expr)}` is {found}, and the number {value}")

    def _block(self, block: Block, given: Names) -> Names:
        """The names of a block; `given` are those that its caller binds."""
        if id(block) in self.seen:
            return self.seen[id(block)]
        names = dict(given)
        self.joined.update(name for instance in block.instances for name in instance.joined)
        own = [*numbers_in([*block.hypers.values(), *block.axes.values(), block.copies])]
        contexts = [c.value for c in block.contexts if isinstance(c.value, Tensor)]
        for n in (*own, *(d for v in (*block.graph.inputs, *contexts) for d in v.shape)):
            if isinstance(n.expr, Var) and not alike(names.setdefault(n.expr.name, n.value), n.value):
                self.wrong.append(f"{block.name}: `{n.expr.name}` is {names[n.expr.name]} and {n.value}")
        for name, expr in block.local.items():
            names.setdefault(name, worth(expr, names))
        self.seen[id(block)] = names
        for graph in _graphs(block.graph):
            self._graph(graph, block, names)
        return names

    def _graph(self, graph: Graph, block: Block, names: Names) -> None:
        def note(what: str, value: Any) -> None:
            where = f"{block.name}, {what}"
            self.spelled.extend((where, n.expr, n.value, names) for n in numbers_in(value))

        for node in graph.nodes:
            note(f"result of {type(node).__name__}", [v.shape for v in node_outputs(node)])
            if isinstance(node, OpNode):
                note(f"options of {node.op.name}", [*node.options.values()])
                note(f"inputs of {node.op.name}", [*node.inputs])
                note(f"weights of {node.op.name}", [(w.shape, w.init.numbers) for w in node.weights])
                for call in node.blocks.values():
                    self._call(call, block, {**names, "rows": symbol("rows")})
            elif isinstance(node, CallNode):
                self._call(node, block, names)
            elif isinstance(node, CheckNode):
                note("condition", (node.left, node.right))

    def _call(self, call: CallNode, block: Block, names: Names) -> None:
        given = {name: value for name, value in names.items() if name in self.joined}
        for name, expr in call.bind.items():
            try:
                given[name] = worth(expr, names)
            except KeyError:
                self.wrong.append(f"{block.name} hands `{expr_text(expr)}` to {call.block.name}")
        inner = self._block(call.block, given)
        for name, value in given.items():
            if name in call.bind and not alike(inner.get(name, value), value):
                self.wrong.append(
                    f"{block.name} hands {value} to `{name}` of {call.block.name}, which is {inner[name]}"
                )


def _graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.nodes:
        for inner in subgraphs(node):
            yield from _graphs(inner)
