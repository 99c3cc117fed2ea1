"""`linear_recurrence`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, shape_text
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, At, Example, OnnxScope, Primitive, Reads, State, TorchScope, Tree, same, up_to
from archdsl.ir.signature import promoted
from archdsl.ops._common import first_input, own_but
from archdsl.ops._onnx import recurrence


class LinearRecurrence(Primitive):
    """`h[t] = a[t] * h[t - 1] + b[t]` along axis 1, element by element, in float32; h starts from `start`, or from 0.

    `a` has the axes of `b`, or 1 in place of those after time. It is computed in parallel over time (up to 2,097,152
    positions)."""

    passes = 2
    signature = (
        "linear_recurrence()(a: float[batch, time, ...], b: float[batch, time, ...], start: float[batch, ...] = none) "
        "-> [batch, time, ...]"
    )
    examples = (
        Example("linear_recurrence(sigmoid(x), y)", "x: [2, 5, 8], y: [2, 5, 8]"),
        Example("linear_recurrence(sigmoid(x), y, h)", "x: [2, 70, 3], y: [2, 70, 3], h: [2, 3]"),
        Example("linear_recurrence(sigmoid(x), y)", "x: [2, 5, 1, 1], y: [2, 5, 3, 4]"),
    )

    def check(self, call: Application) -> None:
        a, b = call.shape(0), call.shape(1)
        if len(a) != len(b):
            raise call.error(
                "E0302",
                f"`linear_recurrence` needs factors with the axes of terms, not {shape_text(a)} and {shape_text(b)}",
                input=1,
                help="`unsqueeze(axis)` adds an axis of size 1",
            )
        if not all(call.fits(x, y) for x, y in zip(a[2:], b[2:], strict=True)):
            raise call.error(
                "E0301",
                f"an axis of the factors is that of the terms or 1, but they are {shape_text(a)} and {shape_text(b)}",
                input=0,
            )
        if call.inputs[2] is not None:
            demand_start(self, call)

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(1),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(1).dtype,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        own = own_but(rank, 1, up_to(1))
        a = tuple(
            At() if d.value == 1 != node.outputs[0].shape[i].value else read
            for i, (d, read) in enumerate(zip(first_input(node).shape, own, strict=True))
        )
        start = tuple(same(i if i == 0 else i + 1) for i in range(rank - 1))
        return a, own, start if isinstance(node.inputs[2], Value) else ()

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        start = g.arg(2, "float32") if g.has(2) else None
        rank = node.outputs[0].rank
        return recurrence(g, g.arg(0, "float32"), g.arg(1, "float32"), g.size(1, 1), rank, start)[0]

    def states(self, node: OpNode) -> Sequence[State]:
        shape = node.outputs[0].shape
        return (State("h", (shape[0], *shape[2:]), "float32", 1),)

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        rank = node.outputs[0].rank
        a, b = (g.gated(g.arg(i, "float32"), fill, rank, 1) for i, fill in ((0, 1.0), (1, 0.0)))
        start = g.Where(g.first, g.arg(2, "float32"), past[0]) if g.has(2) else past[0]
        h, last = recurrence(g, a, b, g.size(1, 1), rank, start)
        return h, [last]

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        start, terms = e.py("{past}.unsqueeze(1)", past=past[0]), e.py("{1}.float()")
        h = e.let("states", self.begun(node, e, start, terms))
        return e.py("{h}.type_as({1})", h=h), (e.py("{h}[:, -1]", h=h),)

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        return (e.py("{2}.float()") if e.has(2) else None,)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if not e.has(2):
            return e.py("linear_recurrence({0}, {1})")
        alike = promoted(node.inputs[1:2]) == promoted(node.inputs[2:])
        start = e.input(2) if alike else e.py("{2}.type_as({1})")
        return self.begun(node, e, e.py("{start}.unsqueeze(1)", start=start), e.input(1))

    def begun(self, node: OpNode, e: TorchScope, start: Tree, terms: Tree) -> Tree:
        """The recurrence from a start on: one step more, which nothing comes before."""
        both = e.py("torch.cat(({start}, {terms}), dim=1)", start=start, terms=terms)
        step = (0, 0) * (node.outputs[0].rank - 2) + (1, 0)
        return e.py("linear_recurrence(F.pad({0}, {step}), {both})[:, 1:]", step=step, both=both)


def demand_start(op: Primitive, call: Application) -> None:
    """The start has the axes of the terms but for time."""
    terms, start = call.shape(1), call.shape(2)
    wanted = (terms[0], *terms[2:])
    if len(wanted) != len(start) or not all(call.same(d, w) for d, w in zip(start, wanted, strict=True)):
        raise call.error(
            "E0301",
            f"`{op.name}` starts from {shape_text(wanted)}, the terms without time, but `start` is {shape_text(start)}",
            input=2,
        )
