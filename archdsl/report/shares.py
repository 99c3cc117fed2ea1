"""Which share of a model each box of a drawing stands for: of its parameters, or of its FLOPs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from archdsl.estimates.counts import Counts
from archdsl.ir.graph import CallNode, Graph, Model, Node, OpNode, ParamNode, ScanNode, Weight, WeightNode
from archdsl.ir.static import SharedModule
from archdsl.ir.walk import calls_of, nodes_below, runs
from archdsl.ir.weights import shape_of

Claim = tuple[tuple[tuple[int, int], ...], float]
"""What a box stands for. It counts where each (thing, use) is the first use of that thing that is drawn."""


class Measure(Protocol):
    """What boxes are measured by."""

    def own(self, node: Node) -> float:
        """Return what one use of a node counts for, without what is shared and counts once."""

    def common(self, shared: SharedModule) -> float | None:
        """Return what something shared counts for at its first use; None where every use counts by itself."""

    def steps(self, node: ScanNode) -> float:
        """Return how often the body of a scan counts."""


class Parameters:
    """The parameters of boxes."""

    def __init__(self) -> None:
        self.counts = Counts()

    def own(self, node: Node) -> float:
        if isinstance(node, ParamNode):
            return _trained([node.weight])
        if not isinstance(node, OpNode | CallNode) or node.instance is not None:
            return 0
        called = sum(self.counts.called(call).total for call in calls_of(node))
        return called + (_trained(node.weights) if isinstance(node, OpNode) else 0)

    def common(self, shared: SharedModule) -> float:
        if shared.block is not None:
            return self.counts.block(shared.block).total
        return _trained(shared.node.weights) + sum(self.counts.block(c.block).total for c in calls_of(shared.node))

    def steps(self, node: ScanNode) -> float:
        return 1


def _trained(weights: Iterable[Weight]) -> int:
    return sum(math.prod(shape_of(w)) for w in weights if w.trained)


class Work:
    """The FLOPs of boxes in inference, as `estimate` counts them by default."""

    def __init__(self, model: Model) -> None:
        """Raises ArchError E0503 where the model has no sizes at the default length."""
        from archdsl.estimates.flops import NodeFlops

        self.flops = NodeFlops(model)

    def own(self, node: Node) -> float:
        if isinstance(node, OpNode):
            return self.flops.op(node)
        return self.flops.block(node.block) if isinstance(node, CallNode) else 0

    def common(self, shared: SharedModule) -> None:
        return None

    def steps(self, node: ScanNode) -> float:
        return self.flops.size(node.length.value)


class Shares:
    """What boxes claim, while they are drawn one after the other."""

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.often = 1.0
        """How often what is drawn now is in the model."""
        self.within: tuple[tuple[int, int], ...] = ()
        """The use of a shared block that is drawn now, if one is."""
        self.uses = 0
        self.sets: dict[int, float] = {}
        """How often the block in which something shared lives is in the model."""

    def claims(self, *nodes: Node) -> list[Claim]:
        """What a box of these nodes stands for."""
        found: list[Claim] = [(self.within, self.measure.own(node) * self.often) for node in nodes]
        for shared in (s for node in nodes for s in _shared_by(node)):
            amount = self.measure.common(shared)
            if amount is not None:
                found.append(((self._use(id(shared)),), amount * self.sets.get(id(shared), 1.0)))
        return found

    def weight(self, node: ParamNode) -> tuple[int, list[Claim]]:
        """A raw weight: a number for it, and the claims of a box that reads it."""
        self.uses += 1
        number = -self.uses  # no `id`
        return number, self.read(number, self.claims(node))

    def read(self, weight: int, claims: Sequence[Claim]) -> list[Claim]:
        """The claims of one more box that reads a raw weight: of several such boxes the first has it."""
        use = self._use(weight)
        return [((*(other for other in uses if other[0] != weight), use), amount) for uses, amount in claims]

    def of_turn(self, body: Graph) -> float:
        """Of one turn of a loop."""
        return sum(times * self.measure.own(node) for node, times, _ in runs(body))

    def _use(self, thing: int) -> tuple[int, int]:
        self.uses += 1
        return thing, self.uses

    @contextmanager
    def times(self, count: float) -> Iterator[None]:
        """While something is drawn that is so often in what is drawn now."""
        before, self.often = self.often, self.often * count
        yield
        self.often = before

    @contextmanager
    def inside(self, node: CallNode) -> Iterator[None]:
        """While the body of a block is drawn."""
        before = self.often, self.within
        shared = node.instance
        if shared is not None and self.measure.common(shared) is not None:
            self.often, self.within = self.sets.get(id(shared), 1.0), (self._use(id(shared)),)
        self.sets |= {id(inner): self.often for inner in node.block.instances}
        yield
        self.often, self.within = before


def amounts(boxes: Sequence[Sequence[Claim]]) -> list[float]:
    """What each box stands for, given what all claim: of something shared the first use that is drawn counts."""
    first: dict[int, int] = {}
    for thing, use in (u for claims in boxes for uses, _ in claims for u in uses):
        first[thing] = min(use, first.get(thing, use))
    return [sum(n for uses, n in claims if all(first[thing] == use for thing, use in uses)) for claims in boxes]


def _shared_by(node: Node) -> Iterator[SharedModule]:
    """Yield what a node applies, itself and within the blocks it calls, that lives outside of them."""
    if isinstance(node, OpNode | CallNode | WeightNode) and node.instance is not None:
        yield node.instance
    elif isinstance(node, OpNode | CallNode):
        blocks = [call.block for call in calls_of(node)]
        below = [inner for block in blocks for inner in nodes_below(block.graph)]
        blocks += [call.block for inner in below for call in calls_of(inner)]
        owned = {id(shared) for block in blocks for shared in block.instances}
        used = [n.instance for n in below if isinstance(n, OpNode | CallNode | WeightNode) and n.instance is not None]
        yield from (shared for shared in used if id(shared) not in owned)
