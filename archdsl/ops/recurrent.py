"""Recurrent layers, their cells, and scans along time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from archdsl.ir.cost import Amount, Cost, contracted, elements, times
from archdsl.ir.dims import Shape, binary, num, shape_text, sub
from archdsl.ir.graph import OpNode, Value, Weight
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    Lengths,
    OnnxScope,
    Primitive,
    Reads,
    Saved,
    State,
    TorchScope,
    Tree,
    same,
    shown,
    up_to,
)
from archdsl.ir.signature import promoted
from archdsl.ir.wording import format_name
from archdsl.ops._common import demand_like, number, own_but, tensor_inputs
from archdsl.ops._onnx import in_square, recurrence, zeros


def constructed(node: OpNode, e: TorchScope, cls: str, **more: Any) -> Tree:
    """What makes a recurrent module of that class."""
    if not node.options["bias"]:
        more["bias"] = False
    sizes = (node.tensor(0).shape[-1], number(node, "hidden"))
    return e.py(f"{cls}({{*sizes}}, {{**more}})", sizes=sizes, more=more)


class Recurrent(Primitive):
    """A recurrence whose weights are those of torch's modules."""

    own_type = True
    in_place = True
    module: ClassVar[str]
    """torch's class, or the class of the emitted file that stands for it."""
    gates: ClassVar[int]
    suffix: ClassVar[str] = ""
    """What the names of weights end in."""

    def check(self, call: Application) -> None:
        if call.options.get("act", "tanh") not in ("tanh", "relu"):
            raise call.error(
                "E0204",
                f"a plain recurrence has the activation `tanh` or `relu`, not `{call.options['act']}`",
                option="act",
                help="any other is a `scan`: `ys = scan h: [batch, hidden] = 0 for x_t in x { h = … emit h }`",
            )

    def weights(self, call: Application) -> Sequence[Weight]:
        """Under torch's names. It draws all of them by the hidden size."""
        hidden, inputs = call.size("hidden"), call.axes["inputs"]
        rows, end = binary("*", num(self.gates), hidden), self.suffix
        found = [
            Weight(f"weight_ih{end}", (rows, inputs), "matrix", fan_in=hidden, fan_out=rows),
            Weight(f"weight_hh{end}", (rows, hidden), "matrix", fan_in=hidden, fan_out=rows),
        ]
        if call.options["bias"]:
            found += [
                Weight(f"bias_{kind}{end}", (rows,), "bias", fan_in=hidden, fan_out=rows) for kind in ("ih", "hh")
            ]
        return found

    def saves(self, node: OpNode) -> Saved:
        """Every state; and where there are gates, these, and what the new state is made of."""
        shape = (num(self.gates + 1), *node.tensor(0).shape[:-1], number(node, "hidden"))
        return Saved(outputs=(0,), own=((Amount(times(shape)), node.outputs[0].dtype),) if self.gates > 1 else ())

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return constructed(node, e, self.module)


class Layer(Recurrent):
    """A recurrent layer: [batch, time, inputs] to [batch, time, hidden]."""

    family = "recurrence"
    worth_hoisting = True
    suffix = "_l0"
    carried: ClassVar[tuple[str, ...]] = ("h",)
    """What one step hands to the next."""
    order: ClassVar[tuple[int, ...]]
    """Which of torch's gates stands where in ONNX."""

    def flops(self, node: OpNode) -> Cost:
        """Each position by the weights of the input, each state by those of the states; no gradient reaches a start of
        zeros."""
        x, hidden = node.tensor(0), number(node, "hidden")
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

    def certain(self, node: OpNode, k: int, i: int, axis: int, position: int, length: Lengths) -> int | None:
        """In reverse, of the positions from its own on the last."""
        last = length(node.tensor(0).shape[1].value) - 1
        return last if i == 0 and axis == 1 and node.options["reverse"] else None

    def states(self, node: OpNode) -> Sequence[State]:
        if node.options["reverse"]:
            return ()
        shape = (node.tensor(0).shape[0], number(node, "hidden"))
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


class Cell(Recurrent):
    """One step of a recurrence: the rows of the input and of the state to the next state."""

    mixes = False

    def check(self, call: Application) -> None:
        rank = len(call.shape(0))
        for i in range(1, len(call.inputs)):
            if len(call.shape(i)) != rank:
                raise call.error(
                    "E0302",
                    f"`{self.name}` steps rows of equal number, but {format_name(call.tensor(0))} has {rank} axes and "
                    f"{format_name(call.tensor(i))} has {len(call.shape(i))}",
                    input=i,
                )
            demand_like(self, call, i, but=rank - 1)
        super().check(call)

    def flops(self, node: OpNode) -> Cost:
        x, h = tensor_inputs(node, 0, 1)
        rows = (*x.shape[:-1], num(self.gates), number(node, "hidden"))
        found = (
            contracted((*rows, x.shape[-1]), (0,), ("weight_ih",)),
            contracted((*rows, h.shape[-1]), (1,), ("weight_hh",)),
        )
        return Cost(found, (Amount(times((3, *rows))),))

    def state_shape(self, call: Application) -> Shape:
        return (*call.shape(0)[:-1], call.size("hidden"))

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.tensor(0).rank
        return (own_but(rank, rank - 1),) * len(node.inputs)

    def gates_of(self, node: OpNode, g: OnnxScope, kind: str, i: int) -> Any:
        """An input (`ih`) or a state (`hh`) by its weights."""
        own = node.outputs[0].dtype
        bias = g.cast(g.weight(f"bias_{kind}"), own) if node.options["bias"] else None
        return g.linear(g.arg(i, own), g.cast(g.weight(f"weight_{kind}"), own), bias)

    def rows(self, node: OpNode, e: TorchScope, i: int) -> Tree:
        """An input as torch's cells take it, with one leading axis at most."""
        return e.py("{x}.flatten(0, -2)", x=e.input(i)) if node.tensor(0).rank > 2 else e.input(i)

    def back(self, node: OpNode, e: TorchScope, y: Tree) -> Tree:
        """A result with the leading axes again."""
        if node.tensor(0).rank <= 2:
            return y
        return e.py("{y}.unflatten(0, {sizes})", y=y, sizes=(-1, *node.tensor(0).shape[1:-1]))

    def torch(self, node: OpNode, e: TorchScope) -> Tree | Sequence[Tree]:
        return self.back(node, e, e.py("{module}({*rows})", rows=[self.rows(node, e, i) for i in range(2)]))


class Rnn(Layer):
    """A plain recurrence along time (Elman, 1990): `act(x @ weight_ih.T + h @ weight_hh.T + biases)`, step by step.

    It starts from `h`, or zeros; `act` is `tanh` or `relu`. With `reverse` from the last position to the first. It
    is torch's module, with its kernel."""

    signature = (
        "rnn(hidden: size, act: word = tanh, bias: bool = true, reverse: bool = false, init: scheme = none)"
        "(x: float[batch, time, inputs], h: float[batch, hidden] = none) -> [batch, time, hidden]"
    )
    gates = 1
    order = (0,)
    examples = shown(
        "x -> rnn(6)",
        "rnn(6, act: relu, bias: false)(x, h)  # x: [2, 5, 8], h: [2, 6]",
        "x -> rnn(6, reverse: true)",
    )

    def attributes(self, node: OpNode) -> dict[str, Any]:
        return {**super().attributes(node), "activations": [node.options["act"].capitalize()]}

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return constructed(node, e, "RNN" if node.options["act"] == "tanh" else "ReluRNN")


class Gru(Layer):
    """Gated recurrent units along time (Cho et al., 2014): the state after every step, from `h` or zeros.

    The last one is `y[:, -1]`. With `reverse` from the last position to the first. Weights are torch's: gates reset,
    update, new; two vectors of bias. It is torch's module, with its kernel."""

    signature = (
        "gru(hidden: size, bias: bool = true, reverse: bool = false, init: scheme = none)"
        "(x: float[batch, time, inputs], h: float[batch, hidden] = none) -> [batch, time, hidden]"
    )
    module = "GRU"
    gates = 3
    order = (1, 0, 2)
    examples = shown(
        "x -> gru(6)",
        "gru(6, bias: false)(x, h)  # x: [2, 5, 8], h: [2, 6]",
        "x -> gru(6, reverse: true)",
    )

    def attributes(self, node: OpNode) -> dict[str, Any]:
        return {**super().attributes(node), "linear_before_reset": 1}


class Lstm(Layer):
    """Long short-term memory along time (Hochreiter and Schmidhuber, 1997): the state after every step.

    It starts from `h` and `c`, or zeros. With `reverse` from the last position to the first. Weights are torch's: gates
    input, forget, cell, output; two vectors of bias. It is torch's module, with its kernel."""

    signature = (
        "lstm(hidden: size, bias: bool = true, reverse: bool = false, init: scheme = none)"
        "(x: float[batch, time, inputs], h: float[batch, hidden] = none, c: float[batch, hidden] = none) "
        "-> [batch, time, hidden]"
    )
    module = "LSTM"
    gates = 4
    carried = ("h", "c")
    order = (0, 3, 1, 2)
    examples = shown(
        "x -> lstm(6)",
        "lstm(6, bias: false)(x, h, c)  # x: [2, 5, 8], h: [2, 6], c: [2, 6]",
        "x -> lstm(6, reverse: true)",
    )

    def check(self, call: Application) -> None:
        super().check(call)
        if (call.inputs[1] is None) != (call.inputs[2] is None):
            raise call.error(
                "E0204",
                "`lstm` starts from both `h` and `c`, or from neither",
                help="give `zeros(batch, hidden)` for the other one",
            )

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        step = e.py("lstm_on({module}, {0}, {*past})", past=past)
        y, h, c = e.unpack(("y", *self.carried), step)
        return y, (h, c)


class RnnCell(Cell):
    """One step of a plain recurrence (Elman, 1990): `act(x @ weight_ih.T + h @ weight_hh.T + biases)`.

    `act` is `tanh` or `relu`. It is torch's module, with its kernel and the names of its weights."""

    signature = (
        "rnn_cell(hidden: size, act: word = tanh, bias: bool = true, init: scheme = none)"
        "(x: float[..., inputs], h: float[..., hidden]) -> [..., hidden]"
    )
    gates = 1
    examples = shown(
        "rnn_cell(6)(x, h)  # x: [2, 8], h: [2, 6]",
        "rnn_cell(6, act: relu, bias: false)(x, h)  # x: [2, 3, 8], h: [2, 3, 6]",
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        y = g.Add(self.gates_of(node, g, "ih", 0), self.gates_of(node, g, "hh", 1))
        return g.Tanh(y) if node.options["act"] == "tanh" else g.Relu(y)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        more = {} if node.options["act"] == "tanh" else {"nonlinearity": "relu"}
        return constructed(node, e, "nn.RNNCell", **more)


class GruCell(Cell):
    """One step of gated recurrent units (Cho et al., 2014): the state after `x`, given the one before, `h`.

    It is torch's module, with its kernel; its weights: gates reset, update, new; two vectors of bias."""

    signature = (
        "gru_cell(hidden: size, bias: bool = true, init: scheme = none)(x: float[..., inputs], h: float[..., hidden]) "
        "-> [..., hidden]"
    )
    module = "nn.GRUCell"
    gates = 3
    examples = shown(
        "gru_cell(6)(x, h)  # x: [2, 8], h: [2, 6]",
        "gru_cell(6, bias: false)(x, h)  # x: [2, 3, 8], h: [2, 3, 6]",
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, h = (
            g.Split(self.gates_of(node, g, kind, i), axis=-1, num_outputs=3, outputs=3)
            for i, kind in enumerate(("ih", "hh"))
        )
        reset, update = (g.Sigmoid(g.Add(a, b)) for a, b in zip(x[:2], h[:2], strict=True))
        new = g.Tanh(g.Add(x[2], g.Mul(reset, h[2])))
        return g.Add(new, g.Mul(update, g.Sub(g.arg(1, g.dtype(new)), new)))


class LstmCell(Cell):
    """One step of long short-term memory (Hochreiter and Schmidhuber, 1997): state and cell after `x`: two results.

    `h` and `c` are those before. It is torch's module, with its kernel; its weights: gates input, forget, cell, output;
    two vectors of bias."""

    signature = (
        "lstm_cell(hidden: size, bias: bool = true, init: scheme = none)"
        "(x: float[..., inputs], h: float[..., hidden], c: float[..., hidden]) "
        "-> (state: [..., hidden], cell: [..., hidden])"
    )
    module = "nn.LSTMCell"
    gates = 4
    examples = (
        Example("h, c", "x: [2, 8], h: [2, 6], c: [2, 6]", statements="h, c = lstm_cell(6)(x, h, c)"),
        Example(
            "y", "x: [2, 3, 8], h: [2, 3, 6], c: [2, 3, 6]", statements="y, c = lstm_cell(6, bias: false)(x, h, c)"
        ),
    )

    def shapes(self, call: Application) -> Sequence[Shape]:
        return self.state_shape(call), self.state_shape(call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        gates = g.Add(self.gates_of(node, g, "ih", 0), self.gates_of(node, g, "hh", 1))
        come, stay, new, out = g.Split(gates, axis=-1, num_outputs=4, outputs=4)
        kept = g.Mul(g.Sigmoid(stay), g.arg(2, g.dtype(gates)))
        cell = g.Add(kept, g.Mul(g.Sigmoid(come), g.Tanh(new)))
        return g.Mul(g.Sigmoid(out), g.Tanh(cell)), cell

    def torch(self, node: OpNode, e: TorchScope) -> Tree | Sequence[Tree]:
        x, *states = (self.rows(node, e, i) for i in range(3))
        after = e.py("{module}({x}, {states})", x=x, states=states)
        if node.tensor(0).rank == 2:
            return after
        h, c = e.unpack(("h", "c"), after)
        return [self.back(node, e, state) for state in (h, c)]


class LinearRecurrence(Primitive):
    """`h[t] = a[t] * h[t - 1] + b[t]` along axis 1, element by element, in float32; h starts from `start`, or from 0.

    `a` has the axes of `b`, or 1 in place of those after time. It is computed in parallel over time (up to 2,097,152
    positions)."""

    family = "recurrence"
    passes = 2
    typed = 1
    signature = (
        "linear_recurrence()(a: float[batch, time, ...], b: float[batch, time, ...], start: float[batch, ...] = none) "
        "-> [batch, time, ...]"
    )
    examples = shown(
        "linear_recurrence(sigmoid(x), y)  # x: [2, 5, 8], y: [2, 5, 8]",
        "linear_recurrence(sigmoid(x), y, h)  # x: [2, 70, 3], y: [2, 70, 3], h: [2, 3]",
        "linear_recurrence(sigmoid(x), y)  # x: [2, 5, 1, 1], y: [2, 5, 3, 4]",
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

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        own = own_but(rank, 1, up_to(1))
        a = tuple(
            At() if d.value == 1 != node.outputs[0].shape[i].value else read
            for i, (d, read) in enumerate(zip(node.tensor(0).shape, own, strict=True))
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
        h, last = e.unpack(("states", "h"), e.py("linear_recurrence_on({0}, {1}, {past})", past=past[0]))
        return h, (last,)

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        return (e.py("{2}.float()") if e.has(2) else None,)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if not e.has(2):
            return e.py("linear_recurrence({0}, {1})")
        return e.py("linear_recurrence_on({0}, {1}, {2}.float())[0]")


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


class SelectiveScan(Primitive):
    """The selective state space of Mamba (Gu and Dao, 2023): `h[t] = exp(delta[t] a) h[t-1] + delta[t] b[t] x[t]`.

    The result is `y[t] = c[t] · h[t] + skip x[t]`. x and delta (positive) are [batch, time, channels]; a, negative,
    [channels, state]; b and c [batch, time, state]; skip [channels]. In float32, in parallel over time."""

    family = "recurrence"
    signature = (
        "selective_scan()"
        "(x: float[batch, time, channels], delta: float[batch, time, channels], a: float[channels, state], "
        "b: float[batch, time, state], c: float[batch, time, state], skip: float[channels] = none) "
        "-> [batch, time, channels]"
    )
    examples = shown(
        "selective_scan(x, softplus(d), -exp(a), b, c, skip: s)"
        "  # x: [2, 5, 8], d: [2, 5, 8], a: [8, 4], b: [2, 5, 4], c: [2, 5, 4], s: [8]",
        "selective_scan(x, softplus(d), -exp(a), b, c)"
        "  # x: [1, 70, 3], d: [1, 70, 3], a: [3, 2], b: [1, 70, 2], c: [1, 70, 2]",
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted(call.inputs[::5]),)

    def flops(self, node: OpNode) -> Cost:
        """The reading of the states is a contraction; what makes them is done number by number: decays (2), terms (2)
        and steps (2)."""
        x, a = tensor_inputs(node, 0, 2)
        read = contracted((*x.shape, a.shape[-1]), (0, 1, 2, 3), (4,))
        skip = (Amount(times((2, elements(x.shape)))),) if node.inputs[5] is not None else ()
        return Cost((read,), (Amount(times((6, *x.shape, a.shape[-1]))), *skip))

    def states(self, node: OpNode) -> Sequence[State]:
        x, a = tensor_inputs(node, 0, 2)
        return (State("state", (x.shape[0], *a.shape), "float32", 1),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return self.scanned(node, g, None)[0]

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        y, last = self.scanned(node, g, past[0])
        return y, [last]

    def scanned(self, node: OpNode, g: OnnxScope, start: Any) -> tuple[Any, Any]:
        """By chunks, all at once, then the states between them, then all again, from these. Only states of one position
        in each chunk, not those of all positions, are in memory."""
        kind, chunks = g.dtype(g.arg(0)), in_square(g, g.size(0, 1))
        x, b, c = (g.arg(i, "float32") for i in (0, 3, 4))
        delta = g.gated(g.arg(1, "float32"), 0.0, 3, 1)  # where it is 0 a state stays as it is
        x, delta, b, c = (chunks.cut(g, t, 3) for t in (g.Mul(delta, x), delta, b, c))
        a = g.arg(2, "float32")
        x, delta, b, c = (g.Unsqueeze(t, [axis]) for t, axis in ((x, -1), (delta, -1), (b, -2), (c, -1)))

        def step(h: Any, delta_t: Any, x_t: Any, b_t: Any) -> Any:
            return g.Add(g.Mul(g.Exp(g.Mul(delta_t, a)), h), g.Mul(x_t, b_t))

        def read(h: Any, delta_t: Any, x_t: Any, b_t: Any, c_t: Any) -> tuple[Any, Any]:
            after = step(h, delta_t, x_t, b_t)
            return after, g.MatMul(after, c_t)

        nothing = g.Expand(g.constant(0.0, "float32"), [chunks.count, g.size(0, 0), g.Shape(a)])
        (sums,) = g.scan(lambda h, *slices: (step(h, *slices),), [nothing], [delta, x, b])
        products = g.Exp(g.Mul(g.ReduceSum(delta, [0], keepdims=0), a))
        first = zeros(g, sums, 1) if start is None else start
        last, states = g.scan(lambda h, p, s: (g.Add(g.Mul(p, h), s), h), [first], [products, sums])
        _, y = g.scan(read, [states], [delta, x, b, c])
        y = g.cast(chunks.joined(g, g.Squeeze(y, [-1]), 3), kind)
        if not g.has(5):
            return y, last
        own = node.outputs[0].dtype
        return g.Add(g.cast(y, own), g.Mul(g.arg(5, own), g.arg(0, own))), last

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        scan = e.py("selective_scan_on({0}, {1}, {2}, {3}, {4}, {state})", state=past[0])
        y, state = e.unpack(("y", "state"), scan)
        return self.skipped(e, y), (state,)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return self.skipped(e, e.py("selective_scan({0}, {1}, {2}, {3}, {4})"))

    def skipped(self, e: TorchScope, y: Tree) -> Tree:
        """What the states give, and the input itself by its factors."""
        return e.py("{y} + {5} * {0}", y=y) if e.has(5) else y
