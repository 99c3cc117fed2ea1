"""The abstract interpretation of a model: what an analysis knows of its tensors, found forwards from the inputs.

A block is visited once for each set of facts that arrives, an iteration of a loop likewise: a model of a thousand
layers costs what its distinct blocks do. A subclass says what is known of the results of primitives and scans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from archdsl.frozen import Entity
from archdsl.ir.graph import CallNode, CondNode, Graph, LoopNode, Node, OpNode, ScanNode

Fact = TypeVar("Fact")


@dataclass(eq=False)
class Run(Generic[Fact]):
    """One visit of a graph, given the facts of its inputs. `inner` holds the visits of what its nodes contain: a call's
    one, a loop's by iteration, a condition's by branch."""

    graph: Graph
    parent: Run[Fact] | None = None
    facts: dict[object, Fact | None] = field(default_factory=dict)
    inner: dict[Node, list[Run[Fact]]] = field(default_factory=dict)

    def fact(self, value: object) -> Fact | None:
        """Return what is known of a value of this graph or of one around it; None for nothing, and for a number."""
        run: Run[Fact] | None = self
        while run is not None:
            if value in run.facts:
                return run.facts[value]
            run = run.parent
        return None

    @property
    def ends(self) -> list[Fact | None]:
        """The facts of the results of the graph."""
        return [self.fact(v) for v in self.graph.outputs if v is not None]


class Level(Entity, Generic[Fact]):
    """One level of a visit: the run, and the node in it that holds the next level."""

    run: Run[Fact]
    node: Node
    iteration: int = 0


class Interpreter(ABC, Generic[Fact]):
    """Visits what runs, forwards."""

    def __init__(self) -> None:
        self.memo: dict[Hashable, Run[Fact]] = {}
        self.levels: list[Level[Fact]] = []
        """Where the visit is, the outermost first."""
        self.depth = 0
        """The number of scans around: facts in a block may be said in terms of their steps."""

    # --- what a subclass says ---

    @abstractmethod
    def op(self, node: OpNode, run: Run[Fact]) -> None:
        """Note what is known of the outputs of a primitive."""

    @abstractmethod
    def scan(self, node: ScanNode, run: Run[Fact]) -> None:
        """Note what is known of the outputs of a recurrence, and its runs: a fixed point over its steps."""

    @abstractmethod
    def either(self, facts: Sequence[Fact | None]) -> Fact | None:
        """Return what is known of a tensor that is one of several."""

    def leaf(self, node: Node, run: Run[Fact]) -> None:
        """Note what is known of a weight, or what a claim or loss says; by default nothing."""

    def nodes(self, graph: Graph) -> Sequence[Node]:
        """Return the nodes of a graph that are visited, in their order."""
        return graph.nodes

    def branches(self, node: CondNode) -> Sequence[Graph]:
        """Return the branches of a condition that may be taken."""
        return node.then, node.otherwise

    # --- the visit ---

    def run(self, graph: Graph, inputs: Sequence[Fact | None], parent: Run[Fact] | None = None) -> Run[Fact]:
        """Visit a graph, given the facts of its inputs, within the run of the graph around it."""
        return self.visit(Run(graph, parent, dict(zip(graph.inputs, inputs, strict=True))))

    def visit(self, run: Run[Fact]) -> Run[Fact]:
        """Visit the nodes of a graph whose inputs are known; the run."""
        for node in self.nodes(run.graph):
            if isinstance(node, OpNode):
                self.op(node, run)
            elif isinstance(node, CallNode):
                run.inner[node] = [self.called(node, [run.fact(v) for v in node.inputs], run)]
                run.facts.update(zip(node.outputs, run.inner[node][0].ends, strict=True))
            elif isinstance(node, LoopNode):
                self.loop(node, run)
            elif isinstance(node, ScanNode):
                self.scan(node, run)
            elif isinstance(node, CondNode):
                self.condition(node, run)
            else:
                self.leaf(node, run)
        return run

    def within(
        self, graph: Graph, inputs: Sequence[Fact | None], run: Run[Fact], node: Node, iteration: int = 0
    ) -> Run[Fact]:
        """Visit a graph inside a node."""
        self.levels.append(Level(run, node, iteration))
        inner = self.run(graph, inputs, run)
        self.levels.pop()
        return inner

    def called(self, node: CallNode, inputs: Sequence[Fact | None], run: Run[Fact]) -> Run[Fact]:
        """Visit the block of a call, or find that it has been visited with the same facts."""
        block = node.block
        facts = (*inputs, *(run.fact(c) for c in node.contexts))
        key = (block, facts, self.depth)
        inner = self.memo.get(key)
        if inner is None:
            values: tuple[object, ...] = (*block.graph.inputs, *(c.value for c in block.contexts))
            self.levels.append(Level(run, node))
            inner = self.memo[key] = self.visit(Run(block.graph, None, dict(zip(values, facts, strict=True))))
            self.levels.pop()
        return inner

    def loop(self, node: LoopNode, run: Run[Fact]) -> None:
        """Visit a loop iteration by iteration, those with the same facts once."""
        state = [run.fact(v) for v in node.starts]
        runs = run.inner[node] = []
        memo: dict[Hashable, Run[Fact]] = {}
        after: dict[tuple[int, int], Run[Fact]] = {}  # by body and the visit before it; comparing facts takes longer
        inner: Run[Fact] | None = None
        for iteration, which in enumerate(node.iterations):
            step = which, id(inner)
            inner = after.get(step)
            if inner is None:
                key = (which, *state)
                inner = memo.get(key)
                if inner is None:
                    inner = memo[key] = self.within(node.bodies[which], state, run, node, iteration)
                after[step] = inner
            runs.append(inner)
            ends = inner.ends
            state = ends[: len(state)]
            if node.emitted:
                run.facts.update(zip(node.emitted[iteration], ends[len(state) :], strict=True))
        run.facts.update(zip(node.outputs, state, strict=True))

    def condition(self, node: CondNode, run: Run[Fact]) -> None:
        """Visit the branches of a condition, of which either may be taken."""
        runs = [self.within(graph, (), run, node, i) for i, graph in enumerate(self.branches(node))]
        run.inner[node] = runs
        for value, *facts in zip(node.outputs, *(r.ends for r in runs), strict=True):
            run.facts[value] = self.either(facts)
