"""What recurrent layers and their cells share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from archdsl.ir.cost import Amount, Cost, contracted, times
from archdsl.ir.dims import Num, Shape, binary, num, sub
from archdsl.ir.graph import OpNode, Value, Weight
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    OnnxScope,
    Primitive,
    Reads,
    Saved,
    State,
    TorchScope,
    Tree,
    same,
    up_to,
)
from archdsl.ir.wording import called
from archdsl.ops._common import demand_like, first_input, number, own_but


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


def constructed(node: OpNode, e: TorchScope, cls: str, **more: Any) -> Tree:
    """What makes a recurrent module of that class."""
    if not node.options["bias"]:
        more["bias"] = False
    sizes = (first_input(node).shape[-1], number(node, "hidden"))
    return e.py(f"{cls}({{*sizes}}, {{**more}})", sizes=sizes, more=more)


def saved(node: OpNode, gates: int) -> Saved:
    """Every state; and where there are gates, these, and what the new state is made of."""
    shape = (num(gates + 1), *first_input(node).shape[:-1], number(node, "hidden"))
    return Saved(outputs=(0,), own=((Amount(times(shape)), node.outputs[0].dtype),) if gates > 1 else ())


class Layer(Primitive):
    """A recurrent layer: [batch, time, inputs] to [batch, time, hidden]."""

    own_type = True
    writes_over = True

    gates: ClassVar[int]
    carried: ClassVar[tuple[str, ...]] = ("h",)
    """What one step hands to the next."""
    order: ClassVar[tuple[int, ...]]
    """Which of torch's gates stands where in ONNX."""

    def weights(self, call: Application) -> Sequence[Weight]:
        return recurrent_weights(call, self.gates, "_l0")

    def saves(self, node: OpNode) -> Saved:
        return saved(node, self.gates)

    def flops(self, node: OpNode) -> Cost:
        """Each position by the weights of the input, each state by those of the states; no gradient reaches a start of
        zeros."""
        x, hidden = first_input(node), number(node, "hidden")
        rows, weights = (x.shape[0], num(self.gates), hidden), tuple(w.name for w in node.weights)
        start = tuple(i for i, h in enumerate(node.inputs) if i and isinstance(h, Value))
        found = (
            contracted((*rows, *x.shape[1:]), (0,), ("weight_ih_l0",)),
            contracted((*rows, hidden), start, ("weight_hh_l0",)),
            contracted((*rows, hidden, sub(x.shape[1].value, 1)), (0, *start, *weights), ("weight_hh_l0",)),
        )
        return Cost(found, (Amount(times((3, *rows, x.shape[1]))),))

    def reads(self, node: OpNode) -> Sequence[Reads]:
        time = EVERYWHERE if node.options["reverse"] else up_to(1)
        states: list[Reads] = [(same(0), EVERYWHERE) if isinstance(h, Value) else () for h in node.inputs[1:]]
        return ((same(0), time, EVERYWHERE), *states)

    def states(self, node: OpNode) -> Sequence[State]:
        if node.options["reverse"]:
            return ()
        shape = (first_input(node).shape[0], number(node, "hidden"))
        return tuple(State(name, shape, node.outputs[0].dtype, 1) for name in self.carried)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        starts = [g.arg(i) for i in range(1, len(node.inputs)) if g.has(i)]
        return self.run(node, g, g.arg(0), starts, None)[0]

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Padding goes behind the real positions of each row, which the operator then stops at."""
        given = [g.arg(i) for i in range(1, len(node.inputs)) if g.has(i)]
        starts = [g.Where(g.first, start, state) for start, state in zip(given, past, strict=True)] if given else past
        lengths = None
        if g.valid is not None:
            lengths = g.cast(g.ReduceSum(g.cast(g.valid, "int"), [1], keepdims=0), "int32")
        y, *last = self.run(node, g, g.turned(g.arg(0)), starts, lengths)
        return g.turned(y, back=True), last

    def run(self, node: OpNode, g: OnnxScope, x: Any, starts: Sequence[Any], lengths: Any) -> list[Any]:
        """All states [batch, time, hidden], and the last of each kind [batch, hidden]."""
        # onnxruntime has no kernel in bfloat16, and on the CPU none in float16: it crashes where a matrix comes after.
        x = g.Transpose(g.cast(x, "float32"), perm=[1, 0, 2])
        kind = g.dtype(x)
        inputs, states = (self.reordered(g, f"weight_{n}_l0", kind) for n in ("ih", "hh"))
        bias = None
        if node.options["bias"]:
            bias = g.Concat(*(self.reordered(g, f"bias_{n}_l0", kind) for n in ("ih", "hh")), axis=1)
        operator, count = getattr(g, self.name.upper()), 1 + len(self.carried)
        given = [g.Unsqueeze(g.cast(s, kind), [0]) for s in starts]
        y, *last = operator(x, inputs, states, bias, lengths, *given, outputs=count, **self.attributes(node))
        return [g.Transpose(g.Squeeze(y, [1]), perm=[1, 0, 2]), *(g.Squeeze(s, [0]) for s in last)]

    def reordered(self, g: OnnxScope, name: str, dtype: str) -> Any:
        """A weight with its gates in the order of ONNX, and an axis of directions."""
        weight = g.cast(g.weight(name), dtype)
        if self.gates > 1:
            parts = g.Split(weight, axis=0, num_outputs=self.gates, outputs=self.gates)
            weight = g.Concat(*(parts[i] for i in self.order), axis=0)
        return g.Unsqueeze(weight, [0])

    def attributes(self, node: OpNode) -> dict[str, Any]:
        """Those of the operator."""
        direction = "reverse" if node.options["reverse"] else "forward"
        return {"hidden_size": int(number(node, "hidden")), "direction": direction}

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        y = e.let("y", e.py("{module}({0}, {start})", start=past[0]))
        return y, (e.py("{y}[:, -1]", y=y),)

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        return [e.input(i) if e.has(i) else None for i in range(1, 1 + len(self.carried))]

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        """The module applied to the input, and to the starts that were given."""
        starts = [e.input(i) for i in range(1, len(node.inputs)) if e.has(i)]
        if node.options["reverse"]:
            return e.py("{module}({0}.flip(1), {*starts}).flip(1)", starts=starts)
        return e.py("{module}({0}, {*starts})", starts=starts)


class Cell(Primitive):
    """One step of a recurrence: the rows of the input and of the state to the next state."""

    own_type = True
    writes_over = True

    gates: ClassVar[int]
    mixes = False

    def check(self, call: Application) -> None:
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

    def saves(self, node: OpNode) -> Saved:
        return saved(node, self.gates)

    def flops(self, node: OpNode) -> Cost:
        x, h = first_input(node), node.inputs[1]
        assert isinstance(h, Value)
        rows = (*x.shape[:-1], num(self.gates), number(node, "hidden"))
        found = (
            contracted((*rows, x.shape[-1]), (0,), ("weight_ih",)),
            contracted((*rows, h.shape[-1]), (1,), ("weight_hh",)),
        )
        return Cost(found, (Amount(times((3, *rows))),))

    def state_shape(self, call: Application) -> Shape:
        return (*call.shape(0)[:-1], call.size("hidden"))

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return (own_but(rank, rank - 1),) * len(node.inputs)

    def gates_of(self, node: OpNode, g: OnnxScope, kind: str, i: int) -> Any:
        """An input (`ih`) or a state (`hh`) by its weights."""
        own = node.outputs[0].dtype
        bias = g.cast(g.weight(f"bias_{kind}"), own) if node.options["bias"] else None
        return g.linear(g.arg(i, own), g.cast(g.weight(f"weight_{kind}"), own), bias)

    def rows(self, node: OpNode, e: TorchScope, i: int) -> Tree:
        """An input as torch's cells take it, with one leading axis at most."""
        return e.py("{x}.flatten(0, -2)", x=e.input(i)) if first_input(node).rank > 2 else e.input(i)

    def leading_sizes(self, node: OpNode) -> tuple[int | Num, ...]:
        """The leading axes that `rows` made one."""
        return (-1, *first_input(node).shape[1:-1])

    def back(self, node: OpNode, e: TorchScope, y: Tree) -> Tree:
        """A result with the leading axes again."""
        if first_input(node).rank <= 2:
            return y
        return e.py("{y}.unflatten(0, {sizes})", y=y, sizes=self.leading_sizes(node))
