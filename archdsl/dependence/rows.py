"""Whether the rows of a batch are computed apart: what stands in a row of a result depends on that row alone.

The same walk that proves causality follows the first axis of the inputs instead of those of their sequences."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from archdsl.dependence.domain import ANYWHERE, ONE, ZERO, Bound, Fact, Form, Layout, flat_layout
from archdsl.dependence.solve import DependenceWalk, InputAxis
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.dims import mul, symbol
from archdsl.ir.graph import Model, OpNode, Value
from archdsl.ir.interpreter import Run
from archdsl.ir.op import EVERYWHERE, Reads

BATCH = symbol("batch")


def mixing(model: Model, rows: DimValue = BATCH) -> tuple[str | None, OpNode | None] | None:
    """The first result of the model of which a row depends on other rows, and the op that mixes them, if it can be
    told; None where every row depends on itself alone. `rows` is how many there are."""
    walk = _Rows([InputAxis(name, value, 0) for name, value in model.inputs if _has_rows(value, rows)])
    inputs: list[Fact | None] = []
    for name, value in model.inputs:
        own = Form(tuple((ONE if axis == 0 else ZERO,) for axis in range(value.rank)), ZERO)
        bounds: tuple[Bound, ...] = tuple(
            (own,) if s.name == name and _has_rows(value, rows) else () for s in walk.sources
        )
        inputs.append(Fact(flat_layout(value), bounds) if any(bounds) else None)
    run = walk.run(model.block.graph, inputs)
    for result, value in model.outputs:
        if _has_rows(value, rows) and not _is_apart(run.fact(value), {0}):
            return result, walk.first
    return None


def _has_rows(value: Value, rows: DimValue) -> bool:
    return value.rank > 0 and value.shape[0].value == rows


def _is_apart(fact: Fact | None, axes: Collection[int]) -> bool:
    """Whether every element depends on the row alone at whose position it stands along one of some axes."""
    return fact is None or all(
        bound is not None and all(_is_own(form, fact.layout, axes) for form in bound) for bound in fact.bounds
    )


def _is_own(form: Form, layout: Layout, axes: Collection[int]) -> bool:
    """Whether a form counts the rows along one of some axes, which may be made of several parts."""
    read = _read(form, layout)
    if form.offset != 0 or len(read) != 1 or read[0] not in axes:
        return False
    step: DimValue = 1
    for scale, size in reversed([*zip(form.scales[read[0]], layout[read[0]], strict=True)]):
        if scale and size != 1:
            if scale != step:
                return False
            step = mul(step, size)
    return True


def _read(form: Form, layout: Layout) -> list[int]:
    """The axes along which a form grows."""
    return [
        axis
        for axis, (scales, parts) in enumerate(zip(form.scales, layout, strict=True))
        if any(scale and size != 1 for scale, size in zip(scales, parts, strict=True))
    ]


def _never_own(form: Form, layout: Layout) -> bool:
    """Whether a form is that of other rows, or of one row for all, and no cut or merged axis makes it the own one
    again. A bound would not tell: these rows are not behind the own one."""
    return form.offset <= 0 and len(_read(form, layout)) < 2 and not _is_own(form, layout, range(len(layout)))


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
        for value in node.outputs:
            if (fact := run.fact(value)) is not None:
                bounds = [ANYWHERE if any(_never_own(f, fact.layout) for f in b or ()) else b for b in fact.bounds]
                run.facts[value] = Fact(fact.layout, tuple(bounds), fact.known, fact.positions)
        if self.first is None and not all(_is_apart(run.fact(v), range(v.rank)) for v in node.outputs):
            self.first = node
