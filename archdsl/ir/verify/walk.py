"""Applies the rules to every part of a model. Rules of more than one part stand here: a value has one definition, a
name one value, a shared instance one owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from archdsl.ir import dims
from archdsl.ir import graph as ir
from archdsl.ir.dims import Num, Var
from archdsl.ir.static import SharedModule
from archdsl.ir.verify.rules import RULES, BlockNames, equal, numbers, numbers_of, weights_of


class VerifyWalk:
    """Applies the rules to each block of a model once, after its first caller."""

    def __init__(self, model: ir.Model) -> None:
        self.found: list[str] = []
        self.blocks: dict[ir.Block, BlockNames] = {}
        self.joined: dict[SharedModule, dict[str, dims.Value]] = {}
        """The values of numbers of shared instances, by the names that other blocks have for them."""
        self.owners: dict[SharedModule, int] = {}
        at = self.enter(model.block, {f.name: f.value.value for f in model.config})
        self.apply(model, at)
        self.visit(at)

    def say(self, at: BlockNames, thing: Any, wrong: Iterable[str]) -> None:
        what = f"`{thing.op.name}`" if isinstance(thing, ir.OpNode) else type(thing).__name__
        span = getattr(thing, "span", None) or at.block.span
        self.found += [f"{what} in `{at.block.name}` ({span}): {w}" for w in wrong]

    def apply(self, thing: Any, at: BlockNames) -> None:
        for rule in (numbers_of, *RULES.get(type(thing), ())):
            self.say(at, thing, (f"{' '.join(str(rule.__doc__).split())} {w}" for w in rule(thing, at)))

    def enter(self, block: ir.Block, names: Mapping[str, dims.Value]) -> BlockNames:
        """Evaluate the names of a block: those that its first caller binds, and those of its own sizes."""
        at = self.blocks[block] = BlockNames(block, dict(names))
        for handle in (c.value for c in block.contexts if isinstance(c.value, ir.Handle)):
            at.values.update(self.joined.get(handle.instance, {}))
            at.joined.update(self.joined.get(handle.instance, {}))
        for n in numbers((block, *block.graph.inputs)):
            if isinstance(n.expr, Var) and n.expr.name not in block.local:
                at.values.setdefault(n.expr.name, n.value)
        for _ in block.local:  # one may be computed from another
            at.values |= {n: v for n, e in block.local.items() if (v := at.evaluate(e)) is not None}
        return at

    def visit(self, at: BlockNames) -> None:
        """Apply the rules to a block and to the blocks that it calls."""
        block = at.block
        for shared in block.instances:  # the parts of a block that a scan has split are one owner
            self.joined[shared] = {n: v for n, e in shared.joined.items() if (v := at.evaluate(e)) is not None}
            if self.owners.setdefault(shared, id(block.hypers)) != id(block.hypers):
                self.say(at, block, [f"the instance `{shared.path}` has another owner"])
        self.apply(block, at)
        contexts = {id(c.value) for c in block.contexts}
        self.graph(block.graph, at, contexts, set(contexts))

    def graph(self, graph: ir.Graph, at: BlockNames, visible: set[int], defined: set[int]) -> None:
        """Apply the rules to a graph. A value is defined once in its block, and read after its definition in the same
        graph or in one inside it."""

        def define(thing: Any, values: Sequence[ir.Value]) -> None:
            self.say(at, thing, (f"{v} is defined twice" for v in values if id(v) in defined))
            visible.update(id(v) for v in values)
            defined.update(id(v) for v in values)

        def demand(thing: Any, values: Iterable[Any]) -> None:
            lost = (v for v in values if isinstance(v, ir.Value) and id(v) not in visible)
            self.say(at, thing, (f"{v} is read outside its scope" for v in lost))

        define(graph, graph.inputs)
        self.apply(graph, at)
        for node in graph.nodes:
            demand(node, ir.operands(node))
            self.apply(node, at)
            for inner in ir.subgraphs(node):
                self.graph(inner, at, set(visible), defined)
            for first in (w.init.graph for w in weights_of(node)):
                if first is not None:
                    self.graph(first, at, set(), set())
            for call in node.blocks.values() if isinstance(node, ir.OpNode) else ():
                demand(node, call.contexts)
                self.call(call, at, numbers(call.inputs))
            if isinstance(node, ir.CallNode):
                self.call(node, at)
            define(node, ir.node_outputs(node))
        demand(graph, graph.outputs)

    def call(self, call: ir.CallNode, at: BlockNames, rows: Iterable[Num] = ()) -> None:
        """Check that a call binds every name of the block, to its value there. `rows` are sizes of an input that no
        graph defines: the rows of an expert."""
        sizes = {n.expr.name: n.value for n in rows if isinstance(n.expr, Var)}
        here = BlockNames(at.block, {**at.values, **sizes}) if sizes else at
        bound = {name: here.evaluate(expr) for name, expr in call.bind.items()}
        if call.block not in self.blocks:
            self.visit(self.enter(call.block, {n: v for n, v in bound.items() if v is not None}))
        names = self.blocks[call.block].values
        unbound = names.keys() - bound.keys() - call.block.local.keys() - self.blocks[call.block].joined
        for name, value in (*bound.items(), *((n, None) for n in unbound)):
            if value is None or not equal(names.setdefault(name, value), value):
                self.say(at, call, [f"`{name}` of `{call.block.name}` is {names.get(name)}, and bound to {value}"])
