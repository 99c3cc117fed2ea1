"""Recurrent layers and cells of torch, step by step as the CPU does them.

Gates are changed in place, so that what a product in place needs of its own first value is kept as a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from archdsl.eager import functions as f
from archdsl.eager.modules import Recurrence
from archdsl.eager.tensors import Gradients, Tensor, float32, uint8


def in_place(name: str, x: Tensor, inputs: Sequence[Tensor], saved: Sequence[Tensor], rule: f.Backward) -> Tensor:
    """A function that writes its result where x is."""
    return f.recorded(name, Tensor(x.shape, x.dtype, x.strides, x.storage), inputs, saved, rule)


def added(x: Tensor, other: Tensor) -> Tensor:
    return in_place("Add", x, [x, other], [], lambda s, g: (g, g))


def multiplied(x: Tensor, other: Tensor) -> Tensor:
    first, second = x.requires_grad, other.requires_grad
    saved = [*([other] if first else []), *([f.clone(x.alias())] if second else [])]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return (f.mul(g, kept[0]) if first else None, f.mul(g, kept[-1]) if second else None)

    return in_place("Mul", x, [x, other], saved, backward)


def activated(x: Tensor) -> Tensor:
    """sigmoid, tanh or relu in place: the result is kept."""
    return in_place("Sigmoid", x, [x], [x], lambda s, g: (f.fresh(g.shape, g.dtype, g),))


Step = Callable[[Tensor, Sequence[Tensor], Sequence[Any], bool], tuple[Tensor, ...]]


def gru_step(x: Tensor, state: Sequence[Tensor], weights: Sequence[Any], ready: bool) -> tuple[Tensor, ...]:
    """`ready`: x has been through the weights of the input."""
    h = state[0]
    given = f.chunk(x if ready else f.linear(x, weights[0], weights[2]), 3, 1)
    own = f.chunk(f.linear(h, weights[1], weights[3]), 3, 1)
    reset = activated(added(own[0], given[0]))
    update = activated(added(own[1], given[1]))
    new = activated(f.add(given[2], multiplied(own[2], reset)))
    return (added(multiplied(f.sub(h, new), update), new),)


def rnn_step(x: Tensor, state: Sequence[Tensor], weights: Sequence[Any], ready: bool) -> tuple[Tensor, ...]:
    own = f.linear(state[0], weights[1], weights[3])
    return (f.tanh(f.add(own, x if ready else f.linear(x, weights[0], weights[2]))),)


def rnn_layer_step(x: Tensor, state: Sequence[Tensor], weights: Sequence[Any], ready: bool) -> tuple[Tensor, ...]:
    return (activated(added(f.linear(state[0], weights[1], weights[3]), x)),)


def lstm_step(x: Tensor, state: Sequence[Tensor], weights: Sequence[Any], ready: bool) -> tuple[Tensor, ...]:
    h, c = state
    own = f.linear(h, weights[1], weights[3])
    gates = f.chunk(added(own, x if ready else f.linear(x, weights[0], weights[2])), 4, 1)
    come, stay, new, out = (activated(g) for g in gates)
    cell = added(f.mul(stay, c), f.mul(come, new))
    return f.mul(out, f.tanh(cell)), cell


def weights_of(flat: Sequence[Tensor], bias: bool) -> list[Any]:
    return [*flat[:2], *(flat[2:4] if bias else (None, None))]


def layer(step: Step, x: Tensor, states: Sequence[Tensor], flat: Sequence[Tensor], bias: bool) -> tuple[Any, ...]:
    """Along time, batch first: all inputs go through their weights at once."""
    weights = weights_of(flat, bias)
    given = f.linear(f.transpose(x, 0, 1), weights[0], weights[2])
    state: tuple[Tensor, ...] = tuple(f.select(s, 0, 0) for s in states)
    found = []
    for x_t in f.unbind(given, 0):
        state = step(x_t, state, weights, True)
        found.append(state[0])
    return f.transpose(f.stack(found, 0), 0, 1), *(f.unsqueeze(s, 0) for s in state)


def gru(x: Tensor, start: Tensor, flat: Sequence[Tensor], bias: bool, *_: Any) -> tuple[Any, ...]:
    return layer(gru_step, x, [start], flat, bias)


def rnn(x: Tensor, start: Tensor, flat: Sequence[Tensor], bias: bool, *_: Any) -> tuple[Any, ...]:
    return layer(rnn_layer_step, x, [start], flat, bias)


def lstm(x: Tensor, starts: Sequence[Tensor], flat: Sequence[Tensor], bias: bool, *_: Any) -> tuple[Any, ...]:
    """One kernel for all steps, with a workspace of its own."""
    batch, time = x.shape[:2]
    hidden = flat[1].shape[1]
    turned = f.contiguous(f.transpose(x, 0, 1))
    y = Tensor((time, batch, hidden), x.dtype)
    last = [Tensor((batch, hidden), x.dtype) for _ in range(2)]
    # Without biases the kernel is handed zeros, as large as the weights.
    biases = list(flat[2:4]) if bias else [Tensor(w.shape, x.dtype) for w in flat[:2]]
    space = Tensor((workspace(batch, time, x.shape[2], hidden, x.dtype.itemsize),), uint8)
    inputs = [turned, *flat, *starts]
    saved = [*starts, turned, *flat[:2], *biases, y, *last, space]
    shapes, wants = [t.shape for t in inputs], [t.requires_grad for t in inputs]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        """All gradients, wanted or not, are made, in float32 whatever the type."""
        found = [Tensor(n, float32) for n in shapes]
        return [t if wanted else None for t, wanted in zip(found, wants, strict=True)]

    result = f.recorded("MkldnnRnn", y, inputs, saved, backward)
    return f.transpose(result, 0, 1), *(f.unsqueeze(t, 0) for t in last)


def workspace(batch: int, time: int, inputs: int, hidden: int, itemsize: int) -> int:
    """Bytes that oneDNN keeps of a layer of LSTM, each part in whole pages: gates, and the states before and after it,
    in rows as long as the input and as the state."""

    def row(n: int, size: int) -> int:
        """A row of n numbers, in whole lines of the cache, and not of a length that lets lines collide."""
        line = 64 // size
        n = -(-n // line) * line
        return (n + line if n % 256 == 0 else n) * size

    widest, places = max(inputs, hidden), (time + 1) * batch
    regions = (
        time * batch * row(4 * hidden, itemsize),
        2 * places * row(widest, itemsize),
        2 * places * row(widest, 4),
        2 * places * row(widest, 4),
        2 * places * hidden * itemsize,
        2 * places * hidden * 4,
        time * batch * row(hidden, itemsize),
    )
    return sum(-(-n // 4096) * 4096 for n in regions)


def cell(step: Step, gates: int) -> type[Recurrence]:
    """`nn.GRUCell` and its kin."""

    class Cell(Recurrence):
        def suffix(self) -> str:
            return ""

        def forward(self, x: Tensor, state: Any = None) -> Any:
            given = [state] if isinstance(state, Tensor) else list(state)
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            weights = [getattr(self, n, None) if self.bias or "weight" in n else None for n in names]
            found = step(x, given, weights, False)
            return found[0] if len(found) == 1 else found

    Cell.gates = gates
    return Cell


GRUCell, LSTMCell, RNNCell = cell(gru_step, 3), cell(lstm_step, 4), cell(rnn_step, 1)
