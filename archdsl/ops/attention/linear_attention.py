"""`linear_attention`"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from archdsl.ir.cost import Amount, Cost, contracted, times
from archdsl.ir.dims import Num, Shape, add, binary, floordiv, mul, num, shape_text
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import Input, OpNode, Value
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
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
from archdsl.ops._common import number, tensor_inputs
from archdsl.ops._onnx import END, in_chunks, padded, with_kernel

CHUNK = 64
"""Positions that are taken together."""


class LinearAttention(Primitive):
    """Attention without softmax (Katharopoulos et al., 2020): the sum over s of `(q[t] · k[s]) v[s]`, in linear time.

    q is [batch, groups, time, dim], k [batch, groups, source, dim], v [batch, heads, source, value]: as many heads of q
    and k as of v, or each serves a group of them. `causal` sums over s <= t; `normalize` divides by the sum of the
    `q[t] · k[s]`, plus `eps`. `log_decay`, at most 0, with the axes [batch, heads, time] or those of them that it has
    from the right, scales each term by `exp(log_decay[s + 1] + … + log_decay[t])` (RetNet, Mamba-2); as [batch, heads,
    time, dim] each channel of k by its own (GLA)."""

    family = "linear attention"
    typed = 2
    signature = (
        "linear_attention(causal: bool = true, normalize: bool = false, eps: positive = 1e-6)"
        "(q: float[batch, groups, time, dim], k: float[batch, groups, source, dim], "
        "v: float[batch, heads, source, value], log_decay: float[...] = none) -> [batch, heads, time, value]"
    )
    one_type = ("q", "k", "v")
    examples = shown(
        "linear_attention(q, k, v)  # q: [2, 3, 5, 4], k: [2, 3, 5, 4], v: [2, 3, 5, 6]",
        "linear_attention(elu(q) + 1, elu(k) + 1, v, normalize: true)"
        "  # q: [1, 2, 70, 4], k: [1, 2, 70, 4], v: [1, 2, 70, 4]",
        "linear_attention(q, k, v, causal: false)  # q: [2, 3, 5, 4], k: [2, 3, 7, 4], v: [2, 3, 7, 6]",
        "linear_attention(elu(q) + 1, elu(k) + 1, v, causal: false, normalize: true, eps: 1e-3)"
        "  # q: [2, 3, 5, 4], k: [2, 3, 7, 4], v: [2, 3, 7, 6]",
        "linear_attention(q, k, v, log_decay: log_sigmoid(g))"
        "  # q: [1, 3, 70, 4], k: [1, 3, 70, 4], v: [1, 3, 70, 6], g: [1, 3, 70]",
        "linear_attention(q, k, v, log_decay: log_sigmoid(g))"
        "  # q: [2, 3, 5, 4], k: [2, 3, 5, 4], v: [2, 3, 5, 6], g: [3, 1]",
        "linear_attention(q, k, v, log_decay: log_sigmoid(g))"
        "  # q: [1, 2, 70, 4], k: [1, 2, 70, 4], v: [1, 6, 70, 3], g: [1, 6, 70]",
        "linear_attention(q, k, v, log_decay: log_sigmoid(g))"
        "  # q: [1, 2, 70, 4], k: [1, 2, 70, 4], v: [1, 2, 70, 3], g: [1, 2, 70, 4]",
        "linear_attention(elu(q) + 1, elu(k) + 1, v, normalize: true, log_decay: log_sigmoid(g))"
        "  # q: [2, 1, 5, 4], k: [2, 1, 5, 4], v: [2, 3, 5, 6], g: [1, 3, 1, 4]",
    )

    def check(self, call: Application) -> None:
        call.condition("%", call.axes["heads"], call.axes["groups"], "the heads of q and k divide those of v")
        if call.options["causal"]:
            call.condition("==", call.axes["time"], call.axes["source"], "causal attention has a query for every key")
        if call.inputs[3] is None:
            return
        if not call.options["causal"]:
            raise call.error(
                "E0204",
                "`log_decay` counts the positions since each key, so it needs `causal: true`",
                option="causal",
                input=3,
            )
        demand_decay(call, 3, call.shape(2)[:3], call.axes["dim"])

    def build(self, call: Application) -> Sequence[Value]:
        """Build the node; without a decay of heads, q and k are first repeated from groups to heads."""
        heads, groups = call.axes["heads"], call.axes["groups"]
        if (call.inputs[3] is not None and len(call.shape(3)) < 4) or call.same(
            heads, groups, "attention is written for groups == heads"
        ):
            return call.node()
        q, k = (call.apply("repeat", call.tensor(i), times=binary("/", heads, groups), axis=num(1)) for i in range(2))
        return (call.apply(self.name, q, k, *call.inputs[2:], **call.options),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        source = up_to(2) if node.options["causal"] else EVERYWHERE
        q, v = tensor_inputs(node, 0, 2)
        group = same(1) if q.shape[1].value == v.shape[1].value else EVERYWHERE
        found: list[Reads] = [
            (same(0), group, same(2), EVERYWHERE),
            (same(0), group, source, EVERYWHERE),
            (same(0), same(1), source, same(3)),
        ]
        return [*found, decay_reads(node.inputs[3])]

    def flops(self, node: OpNode) -> Cost:
        """Causal sums as they are computed: chunks of 64 positions, the last one filled up and an empty one behind
        it."""
        if not node.options["causal"]:
            return self.step_flops(node)
        q, v = tensor_inputs(node, 0, 2)
        dim, value, rows = q.shape[3], self.columns(node), times(v.shape[:2])
        positions = mul(CHUNK, add(floordiv(q.shape[2].value, CHUNK), 2))
        decay = (3,) if node.inputs[3] is not None else ()
        channels, heads = (decay, ()) if by_channel(node.inputs[3]) else ((), decay)
        found = (
            contracted((rows, positions, dim, value), (1, *channels), (2, *heads)),
            contracted((rows, positions, dim, value), (0, *decay), (1, 2, *decay)),
            contracted((*q.shape[:2], positions, dim, pairs_in_chunk(node.inputs[3])), (0, *channels), (1, *channels)),
            contracted((rows, positions, value, CHUNK), (0, 1, *decay), (2,)),
        )
        return Cost(found, self.scaling(node, positions))

    def saves(self, node: OpNode) -> Saved:
        """Causal sums keep what the chunks are made of, and the states between them; those that decay in float32, and
        what `linear_recurrence` keeps of them."""
        if not node.options["causal"]:
            return super().saves(node)
        q, v = tensor_inputs(node, 0, 2)
        dim, value, rows = q.shape[3].value, self.columns(node), times(v.shape[:2])
        chunks = add(floordiv(q.shape[2].value, CHUNK), 2)
        queries, values, scores = 2, 1, 1
        kept: list[tuple[int, tuple[Num | DimValue, ...]]] = [(1, (rows, chunks, dim, value))]
        if node.inputs[3] is not None:
            queries, values, scores = (18, 1, 1) if by_channel(node.inputs[3]) else (2, 3, 3)
            steps = mul(32, add(floordiv(chunks, 32), 2))
            kept += [(2, (rows, steps, dim, value)), (1, (Fraction(1, 2), rows, steps, dim, value))]
        kept += [
            (queries, (*q.shape[:2], chunks, CHUNK, dim)),
            (values, (rows, chunks, CHUNK, value)),
            (scores, (rows, chunks, CHUNK, CHUNK)),
            (int(bool(node.options["normalize"])), (rows, q.shape[2], value)),
        ]
        return Saved(own=copies(kept, "float" if node.inputs[3] is None else "float32"), sides=False)

    def step_flops(self, node: OpNode) -> Cost:
        """Each key and value go into the state, and each query reads it."""
        q, k, v = tensor_inputs(node, 0, 1, 2)
        rows, value = times(v.shape[:2]), self.columns(node)
        kept = contracted((rows, *k.shape[2:], value), (1,), (2,))
        read = contracted((rows, *q.shape[2:], value), (0,), (1, 2))
        return Cost((kept, read), self.scaling(node, q.shape[2].value))

    def columns(self, node: OpNode) -> DimValue:
        """How many numbers a value has, with the one that sums what values are multiplied with."""
        (v,) = tensor_inputs(node, 2)
        return add(v.shape[3].value, int(bool(node.options["normalize"])))

    def scaling(self, node: OpNode, positions: DimValue) -> tuple[Amount, ...]:
        """What is done number by number: the division by the sum, and the decay of values and sums."""
        v, y = node.tensor(2), node.outputs[0]
        divided = (Amount(times(y.shape)),) if node.options["normalize"] else ()
        decayed = (
            (Amount(times((2, *v.shape[:2], positions, self.columns(node)))),) if node.inputs[3] is not None else ()
        )
        return (*divided, *decayed)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        decays = g.has(3)
        kind = "float32" if decays else None
        q, k, v = self.of_heads(node, g, 0, kind), self.of_heads(node, g, 1, kind), g.arg(2, kind)
        if node.options["normalize"]:
            # A column of ones gives the sum of what each value is multiplied with.
            v = g.cast(padded(g, v, 0, 1, 3, 1.0), g.dtype(v))
        decay = decay_of(g, 3, q, by_channel(node.inputs[3])) if decays else None
        if by_channel(node.inputs[3]):
            y, _ = token_by_token(g, empty_state(g, k, v), q, k, v, decay)
        elif node.options["causal"]:
            y, _ = self.causal(g, q, k, v, decay)
        else:
            y = g.MatMul(q, g.MatMul(g.Transpose(k, perm=[0, 1, 3, 2]), v))
        return self.normalized(node, g, y)

    def states(self, node: OpNode) -> Sequence[State]:
        if not node.options["causal"]:
            return ()
        k, v = tensor_inputs(node, 1, 2)
        columns = binary("+", v.shape[3], num(1)) if node.options["normalize"] else v.shape[3]
        return (State("kv", (*v.shape[:2], k.shape[3], columns), "float32", 2),)

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        q, v = self.of_heads(node, g, 0, "float32"), g.arg(2, "float32")
        k = g.gated(self.of_heads(node, g, 1, "float32"), 0.0, 4, 2)
        if node.options["normalize"]:
            v = padded(g, v, 0, 1, 3, 1.0)
        decay = decay_of(g, 3, q, by_channel(node.inputs[3])) if g.has(3) else None
        if by_channel(node.inputs[3]):
            y, after = token_by_token(g, past[0], q, k, v, decay)
        else:
            y, after = self.causal(g, q, k, v, decay, past[0])
        return self.normalized(node, g, y), [after]

    def of_heads(self, node: OpNode, g: OnnxScope, i: int, kind: str | None) -> Any:
        """Queries or keys of each head of the values."""
        x, (groups, heads) = g.arg(i, kind), (node.tensor(j).shape[1] for j in (i, 2))
        if groups.value == heads.value:
            return x
        each = g.Expand(g.Unsqueeze(x, [2]), [1, 1, binary("/", heads, groups), 1, 1])
        return g.Reshape(each, [0, -1, g.Shape(x, start=2)])

    def normalized(self, node: OpNode, g: OnnxScope, y: Any) -> Any:
        """The sums over values by that of what they are multiplied with, where they are to be."""
        if not node.options["normalize"]:
            return y
        sums = g.Slice(y, [-1], [END], [3])
        return g.Div(g.Slice(y, [0], [-1], [3]), g.Add(sums, number(node, "eps")))

    def causal(self, g: OnnxScope, q: Any, k: Any, v: Any, log_decay: Any, start: Any = None) -> tuple[Any, Any]:
        """Within chunks of 64 positions by scores, between them by a state, which begins with `start` or zeros; and the
        state after the last."""
        length = g.size(0, 2)
        each, count, missing = in_chunks(g, length, CHUNK)
        alone = start is None and isinstance(count, int) and count == 1

        def cut(x: Any) -> Any:
            """[batch, heads, chunk, position, dim]"""
            kind = g.dtype(x)
            if not isinstance(missing, int) or missing:
                x = g.cast(padded(g, x, 0, missing, 2), kind)
            return g.Reshape(x, [0, 0, count, each, g.Shape(x, start=3)])

        q, k, v = cut(q), cut(k), cut(v)
        scores, after = g.MatMul(q, swapped(g, k)), None
        if log_decay is None:
            sums = g.cast(g.MatMul(swapped(g, k), v), "float32")
            states = g.CumSum(sums, g.constant(2, "int"), exclusive=1)
            if start is not None:
                states = g.Add(g.Unsqueeze(start, [2]), states)
                after = g.Add(start, g.ReduceSum(sums, [2], keepdims=0))
            states = g.cast(states, g.dtype(v))
        else:
            passed = cut(log_decay)
            left = g.Exp(g.CumSum(passed, g.constant(3, "int")))  # of what was there as the chunk began
            square = g.Trilu(g.Expand(passed, g.Shape(scores)), g.constant(-1, "int"), upper=0)
            decay = g.Exp(g.CumSum(square, g.constant(3, "int")))  # of each key for each query
            scores = g.Mul(scores, decay)
            last = g.Slice(left, [-1], [END], [3])
            sums = g.MatMul(swapped(g, k), g.Mul(v, swapped(g, g.Slice(decay, [-1], [END], [3]))))
            if start is None:
                shape = [g.Shape(sums, start=0, end=2), g.Shape(sums, start=3)]
                start = g.Expand(g.constant(0.0, "float32"), shape)
            chunks = [g.Transpose(x, perm=[2, 0, 1, 3, 4]) for x in (last, sums)]
            after, states = g.scan(lambda s, f, u: (g.Add(g.Mul(f, s), u), s), [start], chunks)
            states = g.Transpose(states, perm=[1, 2, 0, 3, 4])
            q = g.Mul(q, left)
        inside = g.MatMul(lower(g, scores), v)
        y = inside if alone else g.Add(g.MatMul(q, states), inside)
        y = g.Reshape(y, [0, 0, -1, g.Shape(v, start=4)])
        return (y if isinstance(missing, int) and not missing else g.Slice(y, [0], [length], [2])), after

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if not node.options["normalize"]:
            return self.weighted(node, e, e.input(2))
        return self.divided(node, e, e.let("y", self.weighted(node, e, self.with_ones(e))))

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        values = self.with_ones(e) if node.options["normalize"] else e.input(2)
        form = "linear_attention_on({0}, {1}, {v}, {kv})"
        if e.has(3):
            form = decaying(node) + "_on({0}, {1}, {v}, {3}, {kv})"
        on = e.py(form, v=values, kv=past[0])
        y, after = e.unpack(("y", self.states(node)[0].name), on)
        return (self.divided(node, e, y) if node.options["normalize"] else y), (after,)

    def weighted(self, node: OpNode, e: TorchScope, v: Tree) -> Tree:
        """The sum over values `v`."""
        if not node.options["causal"]:
            return e.py("{0} @ ({1}.transpose(-2, -1) @ {v})", v=v)
        if not e.has(3):
            return e.py("causal_linear_attention({0}, {1}, {v})", v=v)
        return e.py(decaying(node) + "({0}, {1}, {v}, {3})", v=v)

    def with_ones(self, e: TorchScope) -> Tree:
        """The values with a column of ones, which gives the sum of what each value is multiplied with."""
        return e.py("F.pad({2}, (0, 1), value=1.0)")

    def divided(self, node: OpNode, e: TorchScope, y: Tree) -> Tree:
        """The sums over values by that of what they are multiplied with."""
        return e.py("{y}[..., :-1] / ({y}[..., -1:] + {eps})", y=y, eps=number(node, "eps"))


def swapped(g: OnnxScope, x: Any) -> Any:
    """[batch, heads, chunk, position, dim] with its last two axes changed about."""
    return g.Transpose(x, perm=[0, 1, 2, 4, 3])


def lower(g: OnnxScope, scores: Any) -> Any:
    """Scores of keys up to the query."""
    return g.cast(g.Trilu(with_kernel(g, scores), None, upper=0), g.dtype(scores))


def demand_decay(call: Application, i: int, wanted: Shape, dim: Num) -> None:
    """Raise E0301 where input i, logarithms of decays, has other axes than `wanted` ([batch, heads, time]), some of
    them from the right, or these and `dim`."""
    given = call.shape(i)
    axes = (*wanted, dim) if len(given) > 3 else wanted
    if len(given) > 4 or not all(call.fits(d, w) for d, w in zip(given[::-1], axes[::-1], strict=False)):
        raise call.error(
            "E0301",
            f"`log_decay` has the axes {shape_text(wanted)} or some from the right, or {shape_text((*wanted, dim))}, "
            f"but it is {shape_text(given)}",
            input=i,
            help="one decay for each head is [heads, 1]",
        )


def decay_reads(decay: Input) -> Reads:
    """Return the positions that a query reads of `log_decay` (None: it is left out): all up to its own."""
    shape = decay.shape if isinstance(decay, Value) else ()
    own: Reads = (same(0), same(1), up_to(2))
    own = (*own, EVERYWHERE) if by_channel(decay) else own[3 - len(shape) :]
    return tuple(At() if d.value == 1 else read for d, read in zip(shape, own, strict=True))


def copies(kept: Iterable[tuple[int, tuple[Num | DimValue, ...]]], dtype: str) -> tuple[tuple[Amount, str], ...]:
    """Tensors that are kept, given how many there are of each shape."""
    return tuple((Amount(times(sizes)), dtype) for count, sizes in kept for _ in range(count))


def decaying(node: OpNode) -> str:
    """The name of the helper that computes it where states decay."""
    return ("channel" if by_channel(node.inputs[3]) else "decayed") + "_linear_attention"


def by_channel(decay: Input) -> bool:
    """Whether logarithms of decays are one for each channel of the keys."""
    return isinstance(decay, Value) and decay.rank == 4


def pairs_in_chunk(decay: Input) -> DimValue:
    """How many keys of its chunk of 64 positions a query is multiplied with: all; or where channels decay apart those
    of the half before its own, then of the quarter, and so on, some 63 / 2."""
    return Fraction(CHUNK - 1, 2) if by_channel(decay) else CHUNK


def decay_of(g: OnnxScope, i: int, k: Any, channels: bool) -> Any:
    """Input i, logarithms of decays, as [batch, heads, time, dim or 1]; 0 where there is padding."""
    rank = 4 if channels else 3
    decay = g.gated(g.Expand(g.arg(i, "float32"), g.Shape(k, start=0, end=rank)), 0.0, rank, 2)
    return decay if channels else g.Unsqueeze(decay, [-1])


def empty_state(g: OnnxScope, k: Any, v: Any) -> Any:
    """Return a state of zeros: [batch, heads, dim, value]."""
    return g.Expand(
        g.constant(0.0, "float32"), [g.Shape(v, start=0, end=2), g.Shape(k, start=-1), g.Shape(v, start=-1)]
    )


def token_by_token(
    g: OnnxScope, start: Any, q: Any, k: Any, v: Any, log_decay: Any, beta: Any = None, read: Any = None
) -> tuple[Any, Any]:
    """Run a state over positions: it decays, takes the product of a key and a value (with `beta`, the value less what
    `read` finds in the state, times beta), and is read by the query. The results, and the last state."""

    def moved(x: Any, *axes: int) -> Any:
        """[batch, heads, time, …] by position, with axes of size 1 for products of matrices."""
        return g.Unsqueeze(g.Transpose(x, perm=[2, 0, 1, *range(3, 5 - len(axes))]), [*axes])

    row, column = (3,), (4,)
    sequences = [moved(q, *row), moved(k, *column), moved(v, *row)]
    if log_decay is not None:
        sequences.append(g.Exp(moved(log_decay, *column)))
    if beta is not None:
        sequences += [moved(beta, 3, 4), moved(read, *row)]

    def step(state: Any, q_t: Any, k_t: Any, v_t: Any, *more: Any) -> tuple[Any, Any]:
        if log_decay is not None:
            state = g.Mul(more[0], state)
        if beta is not None:
            beta_t, read_t = more[-2:]
            v_t = g.Mul(beta_t, g.Sub(v_t, g.MatMul(read_t, state)))
        state = g.Add(state, g.MatMul(k_t, v_t))
        return state, g.MatMul(q_t, state)

    last, y = g.scan(step, [start], sequences)
    return g.Transpose(g.Squeeze(y, [3]), perm=[1, 2, 0, 3]), last
