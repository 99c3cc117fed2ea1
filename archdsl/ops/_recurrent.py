"""What recurrent layers and their cells share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from archdsl.ir.dims import Shape, binary, num
from archdsl.ir.graph import OpNode, Value, Weight
from archdsl.ir.op import EVERYWHERE, Application, Primitive, Reads, TorchScope, same
from archdsl.ops._common import called, demand_like, demand_own_type, first_input, listed, number, own_but


def recurrent_weights(call: Application, gates: int, suffix: str) -> Sequence[Weight]:
    """The weights of torch's recurrent modules, under its names. It draws all of them by the hidden size."""
    hidden, inputs = call.size("hidden"), call.axes["inputs"]
    rows = binary("*", num(gates), hidden)
    found = [
        Weight(f"weight_ih{suffix}", (rows, inputs), "matrix", fan_in=hidden, fan_out=rows),
        Weight(f"weight_hh{suffix}", (rows, hidden), "matrix", fan_in=hidden, fan_out=rows),
    ]
    if call.options["bias"]:
        found += [Weight(f"bias_{kind}{suffix}", (rows,), "bias", fan_in=hidden, fan_out=rows) for kind in ("ih", "hh")]
    return found


def demand_act(call: Application) -> None:
    if call.options["act"] not in ("tanh", "relu"):
        raise call.error(
            "E0204",
            f"a plain recurrence has the activation `tanh` or `relu`, not `{call.options['act']}`",
            option="act",
            help="any other is a `scan`: `ys = scan h: [batch, hidden] = 0 for x_t in x { h = … emit h }`",
        )


class Layer(Primitive):
    """A recurrent layer: [batch, time, inputs] to [batch, time, hidden]."""

    own_type = True

    gates: ClassVar[int]

    def check(self, call: Application) -> None:
        demand_own_type(self, call)

    def weights(self, call: Application) -> Sequence[Weight]:
        return recurrent_weights(call, self.gates, "_l0")

    def reads(self, node: OpNode) -> Sequence[Reads]:
        time = EVERYWHERE if node.options["reverse"] else same(1)
        states: list[Reads] = [(same(0), EVERYWHERE) if isinstance(h, Value) else () for h in node.inputs[1:]]
        return ((same(0), time, EVERYWHERE), *states)

    def constructor(self, node: OpNode, e: TorchScope, cls: str, more: str = "") -> str:
        bias = "" if node.options["bias"] else ", bias=False"
        return f"{cls}({e.init(first_input(node).shape[-1])}, {e.init(number(node, 'hidden'))}{more}{bias})"

    def applied(self, node: OpNode, e: TorchScope, module: str) -> str:
        """The module applied to the input, and to the starts that were given."""
        starts = "".join(f", {e.arg(i)}" for i in range(1, len(node.inputs)) if e.has(i))
        if node.options["reverse"]:
            return f"{module}({e.at(0)}.flip(1){starts}).flip(1)"
        return f"{module}({e.arg(0)}{starts})"


class Cell(Primitive):
    """One step of a recurrence: the rows of the input and of the state to the next state."""

    own_type = True

    gates: ClassVar[int]
    mixes = False

    def check(self, call: Application) -> None:
        demand_own_type(self, call)
        rank = len(call.shape(0))
        for i in range(1, len(call.inputs)):
            if len(call.shape(i)) != rank:
                raise call.error(
                    "E0302",
                    f"`{self.name}` steps rows of equal number, but {called(call.tensor(0))} has {rank} axes and "
                    f"{called(call.tensor(i))} has {len(call.shape(i))}",
                    input=i,
                )
            demand_like(self, call, i, but=rank - 1)

    def weights(self, call: Application) -> Sequence[Weight]:
        return recurrent_weights(call, self.gates, "")

    def state_shape(self, call: Application) -> Shape:
        return (*call.shape(0)[:-1], call.size("hidden"))

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return (own_but(rank, rank - 1),) * len(node.inputs)

    def module(self, node: OpNode, e: TorchScope, cls: str, more: str = "") -> str:
        bias = "" if node.options["bias"] else ", bias=False"
        return e.module(f"{cls}({e.init(first_input(node).shape[-1])}, {e.init(number(node, 'hidden'))}{more}{bias})")

    def rows(self, node: OpNode, e: TorchScope, i: int) -> str:
        """An input as torch's cells take it, with one leading axis at most."""
        return f"{e.at(i)}.flatten(0, -2)" if first_input(node).rank > 2 else e.arg(i)

    def back(self, node: OpNode, e: TorchScope) -> str:
        """The leading axes again."""
        shape = first_input(node).shape
        return f".unflatten(0, {listed(['-1', *(e.number(n) for n in shape[1:-1])])})" if len(shape) > 2 else ""
