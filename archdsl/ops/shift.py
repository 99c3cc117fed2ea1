"""`shift`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, State, TorchScope
from archdsl.ops._common import (
    axis_of,
    called,
    demand_at_most,
    equals,
    first_input,
    is_whole,
    later,
    listed,
    number,
    own_but,
    place,
    replaced,
)
from archdsl.ops._onnx import padded


class Shift(Primitive):
    """`out[t] = x[t - by]` along an axis: everything `by` places later (below 0: earlier); the rest becomes `fill`."""

    passes = 0
    signature = "shift(by: int = 1, axis: int = 1, fill: number = 0)(x: [...]) -> [...]"
    examples = (
        Example("x -> shift"),
        Example("x -> shift(2, fill: 0.5)"),
        Example("x -> shift(-1)"),
        Example("x -> shift(1, axis: -1)"),
        Example("ids -> shift(fill: 4)", "ids: int[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        axis = axis_of(self, call)
        by = call.size("by")
        if not isinstance(by.value, int):
            raise call.error(
                "E0204",
                f"`shift` goes by a number of places that is known before the model runs, not by {by}",
                option="by",
            )
        if not call.tensor(0).is_float and not is_whole(call.size("fill")):
            raise call.error(
                "E0204",
                f"{called(call.tensor(0))} holds whole numbers, which {call.size('fill')} is not",
                option="fill",
            )
        demand_at_most(call, num(abs(by.value)), call.shape(0)[axis], "`shift` goes by no more places than there are")

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if equals(call.size("by"), 0) else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(0),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis = place(node)
        return (own_but(first_input(node).rank, axis, later(axis, number(node, "by"), -1)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        by = int(number(node, "by"))
        return padded(g, g.arg(0), by, -by, place(node), number(node, "fill"))

    def states(self, node: OpNode) -> Sequence[State]:
        """The last places, less `fill`, so that there is nothing before the first."""
        x, axis, by = first_input(node), place(node), number(node, "by")
        if x.is_bool or int(by) < 0 or axis == 0:
            return ()
        return (State("shifted", replaced(x.shape, axis, by), x.dtype, axis),)

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        axis, rank, fill, by = place(node), first_input(node).rank, number(node, "fill"), int(number(node, "by"))
        x = g.gated(g.Sub(g.arg(0), fill), 0, rank, axis)
        both = g.Concat(past[0], x, axis=axis)
        return g.Add(g.Slice(both, [0], [-by], [axis]), fill), [g.tail(both, by, rank, axis)]

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[str]) -> tuple[str, Sequence[str]]:
        axis, by = place(node), int(number(node, "by"))
        both = e.local("places", f"torch.cat(({past[0]}, {e.arg(0)}), dim={axis})")
        lead = ":, " * axis
        return f"{both}[{lead}:-{by}]", (f"{both}[{lead}-{by}:]",)

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[str]:
        fill = number(node, "fill")
        if equals(fill, 0):
            return ("",)
        sizes = ", ".join(e.number(d) for d in replaced(first_input(node).shape, place(node), number(node, "by")))
        return (f"{e.at(0)}.new_full(({sizes}), {e.number(fill)})",)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        rank, axis, fill = first_input(node).rank, place(node), number(node, "fill")
        by = int(number(node, "by"))
        amounts = ["0", "0"] * (rank - 1 - axis) + [str(by), str(-by)]
        value = "" if equals(fill, 0) else f", value={e.number(fill)}"
        return f"F.pad({e.arg(0)}, {listed(amounts)}{value})"
