"""`linear_recurrence`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, shape_text
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, At, Example, OnnxScope, Primitive, Reads, State, TorchScope, same, up_to
from archdsl.ops._common import demand_floats, first_input, listed, own_but
from archdsl.ops._onnx import recurrence

LINEAR_RECURRENCE = '''
def linear_recurrence(a: Tensor, b: Tensor) -> Tensor:
    """h[t] = a[t] * h[t - 1] + b[t] along axis 1: chunks of 32 places side by side, then what each hands on."""
    time, rest = b.size(1), (0, 0) * (b.dim() - 2)
    padding = (*rest, 32, 32 * (time // 32 + 1) - time)  # a chunk of zeros before the first
    # 32 steps, each [batch, chunk, ...]
    a_steps, b_steps = (F.pad(t.float(), padding).unfold(1, 32, 32).unbind(-1) for t in (a, b))
    states, products = [b_steps[0]], [a_steps[0]]
    for a_t, b_t in zip(a_steps[1:], b_steps[1:]):
        states.append(a_t * states[-1] + b_t)
        products.append(a_t * products[-1])

    # The state after a chunk, from 2, 4, 8, … chunks; a fixed number of turns, so that time can be any when exported.
    carry, factor = states[-1], products[-1]
    chunk = torch.arange(carry.size(1), device=b.device)
    for distance in (2**i for i in range(16)):
        before = (chunk - distance).clamp(min=0)
        carry = carry + factor * carry.index_select(1, before)
        factor = factor * factor.index_select(1, before)
    start = carry.index_select(1, (chunk - 1).clamp(min=0)).unsqueeze(2)
    h = torch.stack(states, dim=2) + torch.stack(products, dim=2) * start
    return h.flatten(1, 2).index_select(1, torch.arange(32, 32 + time, device=b.device)).to(b.dtype)
'''


class LinearRecurrence(Primitive):
    """`h[t] = a[t] * h[t - 1] + b[t]` along axis 1, element by element, in float32; h starts from `start`, or from 0.

    `a` has the axes of `b`, or 1 in place of those after time. It is computed in parallel over time (up to 2,097,152
    places)."""

    passes = 2
    signature = (
        "linear_recurrence()(a: [batch, time, ...], b: [batch, time, ...], start: [batch, ...] = none) "
        "-> [batch, time, ...]"
    )
    examples = (
        Example("linear_recurrence(sigmoid(x), y)", "x: [2, 5, 8], y: [2, 5, 8]"),
        Example("linear_recurrence(sigmoid(x), y, h)", "x: [2, 70, 3], y: [2, 70, 3], h: [2, 3]"),
        Example("linear_recurrence(sigmoid(x), y)", "x: [2, 5, 1, 1], y: [2, 5, 3, 4]"),
    )

    def check(self, call: Application) -> None:
        demand_floats(self, call)
        a, b = call.shape(0), call.shape(1)
        if len(a) != len(b):
            raise call.error(
                "E0302",
                f"`linear_recurrence` needs factors with the axes of terms, not {shape_text(a)} and {shape_text(b)}",
                input=1,
                help="`unsqueeze(axis)` adds an axis of size 1",
            )
        if any(x.value != y.value and x.value != 1 for x, y in zip(a[2:], b[2:], strict=True)):
            raise call.error(
                "E0301",
                f"an axis of the factors is that of the terms or 1, but they are {shape_text(a)} and {shape_text(b)}",
                input=0,
            )
        if call.inputs[2] is not None:
            demand_start(self, call)

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(1),)

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

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[str]) -> tuple[str, Sequence[str]]:
        step = listed(["0", "0"] * (node.outputs[0].rank - 2) + ["1", "0"])
        terms = f"torch.cat(({past[0]}.unsqueeze(1), {e.at(1)}.float()), dim=1)"
        h = e.local("states", f"{e.helper(LINEAR_RECURRENCE)}(F.pad({e.arg(0)}, {step}), {terms})[:, 1:]")
        return f"{h}.type_as({e.arg(1)})", (f"{h}[:, -1]",)

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[str]:
        return (f"{e.at(2)}.float()" if e.has(2) else "",)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        function = e.helper(LINEAR_RECURRENCE)
        if not e.has(2):
            return f"{function}({e.arg(0)}, {e.arg(1)})"
        # The start is one step more, which nothing comes before.
        step = listed(["0", "0"] * (node.outputs[0].rank - 2) + ["1", "0"])
        terms = f"torch.cat(({e.at(2)}.unsqueeze(1), {e.arg(1)}), dim=1)"
        return f"{function}(F.pad({e.arg(0)}, {step}), {terms})[:, 1:]"


def demand_start(op: Primitive, call: Application) -> None:
    """The start has the axes of the terms but for time."""
    terms, start = call.shape(1), call.shape(2)
    wanted = (terms[0], *terms[2:])
    if tuple(d.value for d in wanted) != tuple(d.value for d in start):
        raise call.error(
            "E0301",
            f"`{op.name}` starts from {shape_text(wanted)}, the terms without time, but `start` is {shape_text(start)}",
            input=2,
        )
