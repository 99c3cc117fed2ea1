"""Whether what stands at a position of a result stays as it is when the sequence goes on.

The walk that proves causality follows the positions of everything that is made without a tensor (indices, what is the
same everywhere, slices of weights) in place of those of the model's inputs. Which row of a table is read is the choice
of another tensor, whatever the length of the table."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce

from archdsl.dependence.domain import ANYWHERE, ONE, Bound, Fact, flat_layout, join
from archdsl.dependence.solve import DependenceWalk, InputAxis, claimed, meets, ratio_of, same_axis
from archdsl.ir.dims import excess
from archdsl.ir.graph import Model, OpNode, Value
from archdsl.ir.interpreter import Run
from archdsl.ir.op import At, Reads


def stays(model: Model, output: Value, sequence: InputAxis) -> tuple[bool, OpNode | None]:
    """Whether no position of the output depends on how many come later; and the first op by which one does, if it can
    be told."""
    walk = _Lengths([sequence])
    run = walk.run(model.block.graph, [None] * len(model.block.graph.inputs))
    return walk.stays(output, run.fact(output)), walk.first


class _Lengths(DependenceWalk):
    """A walk that remembers where later positions are read first."""

    first: OpNode | None = None

    def op(self, node: OpNode, run: Run[Fact]) -> None:
        super().op(node, run)
        if self.first is None and not all(self.stays(v, run.fact(v)) for v in node.outputs):
            self.first = node

    def result(self, node: OpNode, k: int, facts: Sequence[Fact | None]) -> Fact | None:
        found = super().result(node, k, facts)
        output = node.outputs[k]
        if any(f is not None for f in facts) or not self.axes(output):
            return found
        claims = (claimed(output.rank, a, self.ratio(output, a), self.ahead(output, a)) for a in self.axes(output))
        own: Bound = reduce(join, claims)
        layout = flat_layout(output)
        return self.fact(layout, (own,), *self.made(node, k, layout))

    def reads(self, node: OpNode, k: int) -> Sequence[Reads]:
        chosen = node.op.chosen
        found = super().reads(node, k)
        return [tuple(at or At() for at in read) if i in chosen else read for i, read in enumerate(found)]

    def axes(self, value: Value) -> list[int]:
        """The axes that run along the sequence."""
        (source,) = self.sources
        size = source.value.shape[source.axis].value
        return [a for a, d in enumerate(value.shape) if same_axis(size, d.value)]

    def ahead(self, value: Value, axis: int) -> int:
        """1 where the places of an axis are those of the sequence; of an axis of `n + time` the first n stand in front
        of it, and each place is there n positions earlier."""
        (source,) = self.sources
        return 1 - excess(value.shape[axis].value, source.value.shape[source.axis].value)

    def ratio(self, value: Value, axis: int) -> Fraction:
        return ratio_of(self.sources[0], value.shape[axis].value)

    def stays(self, value: Value, fact: Fact | None) -> bool:
        """Whether a tensor reads no later position than one of its own."""
        bound = fact.bounds[0] if fact is not None else ()
        if fact is None or not bound:
            return bound is not ANYWHERE
        along: list[tuple[int | None, Fraction]] = [(a, self.ratio(value, a)) for a in self.axes(value)]
        along = along or [(None, ONE)]
        return all(any(meets((form,), fact.layout, a, ratio, 1, ()) for a, ratio in along) for form in bound)
