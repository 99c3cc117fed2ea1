"""`shift`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, binary, num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, State, TorchScope, Tree
from archdsl.ir.wording import called
from archdsl.ops._common import (
    axis_of,
    demand_at_most,
    equals,
    first_input,
    later,
    number,
    own_but,
    place,
    replaced,
    usual,
)
from archdsl.ops._onnx import padded


class Shift(Primitive):
    """`out[t] = x[t - by]` along an axis: everything `by` positions later (below 0: earlier); the rest becomes
    `fill`."""

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
        fill = call.size("fill")
        if not call.tensor(0).is_float and not call.is_whole(fill):
            raise call.error(
                "E0204",
                f"{called(call.tensor(0))} holds whole numbers, which {call.size('fill')} is not",
                option="fill",
            )
        usual(call, fill=0)
        far = by if call.holds(">=", by, 0) else binary("-", num(0), by)
        demand_at_most(call, far, call.shape(0)[axis], "`shift` goes by no more places than there are")

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if call.is_number(call.size("by"), 0) else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(0),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis = place(node)
        return (own_but(first_input(node).rank, axis, later(axis, number(node, "by"), -1)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        by = int(number(node, "by"))
        return padded(g, g.arg(0), by, -by, place(node), number(node, "fill"))

    def states(self, node: OpNode) -> Sequence[State]:
        """The last positions, less `fill`, so that there is nothing before the first."""
        x, axis, by = first_input(node), place(node), number(node, "by")
        if x.is_bool or int(by) < 0 or axis == 0:
            return ()
        return (State("shifted", replaced(x.shape, axis, by), x.dtype, axis),)

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        axis, rank, fill, by = place(node), first_input(node).rank, number(node, "fill"), int(number(node, "by"))
        x = g.gated(g.Sub(g.arg(0), fill), 0, rank, axis)
        both = g.Concat(past[0], x, axis=axis)
        return g.Add(g.Slice(both, [0], [-by], [axis]), fill), [g.tail(both, by, rank, axis)]

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        axis, by = place(node), int(number(node, "by"))
        both = e.let("places", e.py("torch.cat(({past}, {0}), dim={axis})", past=past[0], axis=axis))
        lead = ":, " * axis
        y = e.py(f"{{both}}[{lead}:{{end}}]", both=both, end=-by)
        return y, (e.py(f"{{both}}[{lead}{{start}}:]", both=both, start=-by),)

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        fill = number(node, "fill")
        if equals(fill, 0):
            return (None,)
        sizes = replaced(first_input(node).shape, place(node), number(node, "by"))
        return (e.py("{0}.new_full({sizes}, {fill})", sizes=sizes, fill=fill),)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        by, fill = int(number(node, "by")), number(node, "fill")
        after = first_input(node).rank - 1 - place(node)
        more = {} if equals(fill, 0) else {"value": fill}
        return e.py("F.pad({0}, {widths}, {**more})", widths=(*(0, 0) * after, by, -by), more=more)
