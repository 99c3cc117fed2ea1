"""Whether the rows of a batch are computed apart: what stands in a row of a result depends on that row alone.

The same walk that proves causality follows the first axis of the inputs instead of those of their sequences."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from archdsl.dependence.domain import ONE, ZERO, Bound, Fact, Form, flat_layout
from archdsl.dependence.solve import DependenceWalk, InputAxis
from archdsl.ir.dims import symbol
from archdsl.ir.graph import Model, OpNode, Value
from archdsl.ir.interpreter import Run
from archdsl.ir.op import EVERYWHERE, Reads

BATCH = symbol("batch")


def mixing(model: Model) -> tuple[str | None, OpNode | None] | None:
    """The first result of the model of which a row depends on other rows, and the op that mixes them, if it can be
    told; None where every row depends on itself alone."""
    walk = _Rows([InputAxis(name, value, 0) for name, value in model.inputs if _has_rows(value)])
    inputs: list[Fact | None] = []
    for name, value in model.inputs:
        own = Form(tuple((ONE if axis == 0 else ZERO,) for axis in range(value.rank)), ZERO)
        bounds: tuple[Bound, ...] = tuple((own,) if s.name == name and _has_rows(value) else () for s in walk.sources)
        inputs.append(Fact(flat_layout(value), bounds) if any(bounds) else None)
    run = walk.run(model.block.graph, inputs)
    for result, value in model.outputs:
        if _has_rows(value) and not _is_apart(run.fact(value), {0}):
            return result, walk.first
    return None


def _has_rows(value: Value) -> bool:
    return value.rank > 0 and value.shape[0].value == BATCH


def _is_apart(fact: Fact | None, axes: Collection[int]) -> bool:
    """Whether every element depends on the row alone at whose position it stands along one of some axes."""
    forms = [bound for bound in fact.bounds if bound != ()] if fact is not None else []
    return all(bound is not None and all(_is_own(form, axes) for form in bound) for bound in forms)


def _is_own(form: Form, axes: Collection[int]) -> bool:
    read = [axis for axis, scales in enumerate(form.scales) if any(scales)]
    return form.offset == 0 and len(read) == 1 and read[0] in axes


class _Rows(DependenceWalk):
    """A walk that remembers where rows are mixed first."""

    first: OpNode | None = None

    def reads(self, node: OpNode, k: int) -> Sequence[Reads]:
        """A row before is as much another one as a row behind."""
        found = super().reads(node, k)
        return [tuple(EVERYWHERE if at is not None and at.earlier else at for at in read) for read in found]

    def op(self, node: OpNode, run: Run[Fact]) -> None:
        first = node.inputs[0] if node.inputs else None
        if node.op.batch_statistics and isinstance(first, Value):  # of the batch in training alone
            run.facts |= dict.fromkeys(node.outputs, run.fact(first))
            return
        super().op(node, run)
        if self.first is None and not all(_is_apart(run.fact(v), range(v.rank)) for v in node.outputs):
            self.first = node
