"""`delta_rule`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Amount, Cost, contracted, times
from archdsl.ir.dims import Shape, add, binary, div, floordiv, mul, num, shape_text, sub
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import OpNode, Value
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
    shown,
    up_to,
)
from archdsl.ops._common import tensor_inputs
from archdsl.ops._onnx import END, padded
from archdsl.ops.attention.linear_attention import (
    CHUNK,
    by_channel,
    copies,
    decay_of,
    decay_reads,
    demand_decay,
    empty_state,
    pairs_in_chunk,
    token_by_token,
)


class DeltaRule(Primitive):
    """Linear attention that corrects what its state holds (Schlag et al., 2021; Yang et al., 2024): the delta rule.

    `S[t] = d S[t - 1] + k[t] u[t]`, where `d = exp(log_decay[t])` and `u[t] = beta[t] (v[t] - k[t] · (d S[t - 1]))`;
    the result is `q[t] · S[t]`. q and k are [batch, groups, time, dim], each of their heads serving a group of those of
    v, [batch, heads, time, value]. `log_decay`, at most 0, is [batch, heads, time] or those of these axes that it has
    from the right; or [batch, heads, time, dim], a decay for each channel of k. `read` takes the place of k where the
    state is read to be corrected. S starts from `state`, or from 0. In float32, in chunks of 64 positions.

    With a further axis behind time, k, v, beta and `read` are several steps of S for each position (DeltaProduct): it
    decays before the first, and q reads it after the last."""

    family = "linear attention"
    typed = 2
    signature = (
        "delta_rule()"
        "(q: float[batch, groups, time, dim], k: float[batch, groups, time, ..., dim], "
        "v: float[batch, heads, time, ..., value], beta: float[batch, heads, time, ...], log_decay: float[...] = none, "
        "read: float[batch, groups, time, ..., dim] = none, "
        "state: float[batch, heads, dim, value] = none) -> [batch, heads, time, value]"
    )
    one_type = ("q", "k", "v")
    examples = shown(
        "delta_rule(l2_normalize(q), l2_normalize(k), v, sigmoid(b))"
        "  # q: [2, 3, 5, 4], k: [2, 3, 5, 4], v: [2, 3, 5, 6], b: [2, 3, 5]",
        "delta_rule(q, l2_normalize(k), v, sigmoid(b), log_sigmoid(g))"
        "  # q: [1, 2, 70, 4], k: [1, 2, 70, 4], v: [1, 2, 70, 3], b: [1, 2, 70], g: [1, 2, 70]",
        "delta_rule(q, l2_normalize(k), v, sigmoid(b), log_sigmoid(g))"
        "  # q: [1, 2, 70, 4], k: [1, 2, 70, 4], v: [1, 2, 70, 3], b: [1, 2, 70], g: [1, 2, 70, 4]",
        "delta_rule(q, l2_normalize(k), v, sigmoid(b), log_sigmoid(g))"
        "  # q: [2, 1, 5, 4], k: [2, 1, 5, 4], v: [2, 3, 5, 4], b: [2, 3, 5], g: [3, 1]",
        "delta_rule(q, l2_normalize(k), v, sigmoid(b), log_sigmoid(g), read: 0.5 * l2_normalize(k), state: s)"
        "  # q: [2, 3, 5, 4], k: [2, 3, 5, 4], v: [2, 3, 5, 4], b: [2, 3, 5], g: [2, 3, 5], s: [2, 3, 4, 4]",
        "delta_rule(q, l2_normalize(k), v, sigmoid(b), log_sigmoid(g))"
        "  # q: [1, 2, 40, 4], k: [1, 2, 40, 2, 4], v: [1, 2, 40, 2, 3], b: [1, 2, 40, 2], g: [1, 2, 40]",
        "delta_rule(q, l2_normalize(k), v, sigmoid(b), log_sigmoid(g), read: l2_normalize(k))"
        "  # q: [2, 1, 5, 4], k: [2, 1, 5, 3, 4], v: [2, 2, 5, 3, 6], b: [2, 2, 5, 3], g: [2, 2, 5, 4]",
    )

    def check(self, call: Application) -> None:
        call.condition("%", call.axes["heads"], call.axes["groups"], "the heads of q and k divide those of v")
        given = [i for i in (1, 2, 3, 5) if call.inputs[i] is not None]
        steps = [call.shape(i)[3:] if i == 3 else call.shape(i)[3:-1] for i in given]
        if any(len(s) > 1 or len(s) != len(steps[0]) or not all(map(call.same, s, steps[0])) for s in steps):
            shapes = ", ".join(shape_text(call.shape(i)) for i in given)
            text = f"k, v, beta and `read` have one axis of steps behind time or none of them has: {shapes}"
            raise call.error("E0302", text, input=3)
        if call.inputs[4] is not None:
            demand_decay(call, 4, call.shape(2)[:3], call.axes["dim"])

    def build(self, call: Application) -> Sequence[Value]:
        """Build the node; q and k are first repeated from groups to heads."""
        heads, groups = call.axes["heads"], call.axes["groups"]
        if call.same(heads, groups, "the delta rule is written for groups == heads"):
            return call.node()
        each = binary("/", heads, groups)
        found = list(call.inputs)
        for i in (0, 1, 5):
            if found[i] is not None:
                found[i] = call.apply("repeat", call.tensor(i), called=call.tensor(i).name, times=each, axis=num(1))
        return (call.apply(self.name, *found),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        own: Reads = (same(0), same(1))
        earlier: Reads = (*own, up_to(2), *(EVERYWHERE for _ in substeps(node)))
        return [
            (*own, same(2), EVERYWHERE),
            (*earlier, EVERYWHERE),
            (*earlier, same(3)),
            earlier,
            decay_reads(node.inputs[4]),
            (*earlier, EVERYWHERE) if node.inputs[5] is not None else (),
            (*own, EVERYWHERE, same(3)) if node.inputs[6] is not None else (),
        ]

    def flops(self, node: OpNode) -> Cost:
        """As it is computed: chunks of 64 positions, the last one filled up; a triangular solve as a product with the
        whole matrix. The first state gets no gradient where it is zeros, nor does the last, which nothing reads."""
        q, v = tensor_inputs(node, 0, 2)
        rows, dim, value = times(v.shape[:2]), q.shape[3], v.shape[-1]
        columns = add(dim.value, value.value)
        positions = positions_of(node)
        decay = (4,) if node.inputs[4] is not None else ()
        read: tuple[int | str, ...] = (5 if node.inputs[5] is not None else 1, 3)
        written = (1, 2, 3, *decay, *read)
        first = (6,) if node.inputs[6] is not None else ()
        channels, pairs = decay if by_channel(node.inputs[4]) else (), pairs_in_chunk(node.inputs[4])
        behind = sub(positions, CHUNK)  # the positions of all chunks but one
        found = [
            contracted((rows, positions, dim, pairs), (0, *channels), (1, *channels)),
            contracted((rows, positions, dim, pairs), (*read, *channels), (1, *channels)),
            contracted((rows, positions, CHUNK, columns), (1, *read, *decay), (2, 3, *read, *decay)),
            contracted((rows, positions, value, CHUNK), (0, 1, *decay), written),
            contracted((rows, behind, dim, value), (1, *decay), written),
            contracted((rows, CHUNK, dim, value), (), ()),
        ]
        for reader in ((0, *decay), (*read, 1, *decay)):
            found.append(contracted((rows, CHUNK, dim, value), reader, first))
            found.append(contracted((rows, behind, dim, value), reader, (*written, *first)))
        return Cost(tuple(found), (Amount(times((rows, positions, 4, columns))),))

    def step_flops(self, node: OpNode) -> Cost:
        """The recurrence: the state is read and written in each step, and read by the query."""
        q, v = tensor_inputs(node, 0, 2)
        once = (*v.shape[:3], q.shape[3], v.shape[-1])
        sizes = (*once, *substeps(node))
        found = (contracted(sizes, (1,), (2,)), contracted(sizes, (1,), (1, 2, 3)), contracted(once, (0,), (1, 2, 3)))
        return Cost(found, (Amount(times(sizes)),))

    def saves(self, node: OpNode) -> Saved:
        """What the chunks keep, in float32: copies of what comes in, decayed and not; scores, and the state before each
        chunk. Where channels decay apart, copies of each half of a half for `decayed_scores`."""
        q, v = tensor_inputs(node, 0, 2)
        rows, positions, dim, value = times(v.shape[:2]), positions_of(node), q.shape[3], v.shape[-1]
        keys, scores = (25, 2) if by_channel(node.inputs[4]) else (6, 3 if node.inputs[4] is None else 5)
        kept = (
            (keys, (rows, positions, dim)),
            (3, (rows, positions, value)),
            (scores, (rows, positions, CHUNK)),
            (1, (rows, div(positions, CHUNK), dim, value)),
        )
        return Saved(own=copies(kept, "float32"), sides=False)

    def states(self, node: OpNode) -> Sequence[State]:
        k, v = tensor_inputs(node, 1, 2)
        return (State("state", (*v.shape[:2], k.shape[-1], v.shape[-1]), "float32", 2),)

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        return (e.py("{6}.float()") if e.has(6) else None,)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        more = {name: e.input(i) for i, name in ((6, "state"), (5, "read")) if e.has(i)}
        form = self.called(node, "") + "{0}, {1}, {2}, {3}, {d}, {**more})[0]"
        return e.py(form, d=self.decay(node, e), more=more)

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        more = {"read": e.input(5)} if e.has(5) else {}
        form = self.called(node, "_on") + "{0}, {1}, {2}, {3}, {d}, {state}, {**more})"
        y, after = e.unpack(("y", "state"), e.py(form, d=self.decay(node, e), state=past[0], more=more))
        return y, (after,)

    def called(self, node: OpNode, suffix: str) -> str:
        """The beginning of a call of the helper that computes it."""
        function = "channel_delta_rule" if by_channel(node.inputs[4]) else "delta_rule"
        return f"with_substeps({function}, " if substeps(node) else f"{function}{suffix}("

    def decay(self, node: OpNode, e: TorchScope) -> Tree:
        """The logarithms of the decays, zeros where there are none."""
        if e.has(4):
            return e.input(4)
        return e.py("torch.zeros_like({3}[..., 0])" if substeps(node) else "torch.zeros_like({3})")

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        k, v = (g.arg(i, "float32") for i in (1, 2))
        return self.scanned(node, g, g.arg(6, "float32") if g.has(6) else empty_state(g, k, v))[0]

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        start = g.Where(g.first, g.arg(6, "float32"), past[0]) if g.has(6) else past[0]
        y, last = self.scanned(node, g, start)
        return y, [last]

    def scanned(self, node: OpNode, g: OnnxScope, start: Any) -> tuple[Any, Any]:
        """Padding corrects nothing and decays nothing, so the state stays as it is."""
        q, k, v = (g.arg(i, "float32") for i in range(3))
        decay = decay_of(g, 4, q, by_channel(node.inputs[4])) if g.has(4) else None
        read = g.arg(5, "float32") if g.has(5) else k
        beta = g.gated(g.arg(3, "float32"), 0.0, 3 + len(substeps(node)), 2)
        if not substeps(node):
            y, last = token_by_token(g, start, q, k, v, decay, beta, read)
            return g.cast(y, g.dtype(g.arg(2))), last
        (steps,) = map(int, substeps(node))

        def joined(x: Any) -> Any:
            """[batch, heads, time, steps, …] with each step a position."""
            return g.Reshape(x, [0, 0, -1, g.Shape(x, start=4)])

        q = joined(padded(g, g.Unsqueeze(q, [3]), steps - 1, 0, 3))
        if decay is not None:
            decay = joined(padded(g, g.Unsqueeze(decay, [3]), 0, steps - 1, 3))
        beta = g.Reshape(beta, [0, 0, -1])
        y, last = token_by_token(g, start, q, joined(k), joined(v), decay, beta, joined(read))
        return g.cast(g.Slice(y, [steps - 1], [END], [2], [steps]), g.dtype(g.arg(2))), last


def substeps(node: OpNode) -> Shape:
    """The axis of steps for each position, if there is one."""
    return node.tensor(3).shape[3:]


def positions_of(node: OpNode) -> DimValue:
    """How many positions its chunks have, several for each of the sequence where there are several steps."""
    return mul(CHUNK, floordiv(add(times(node.tensor(3).shape[2:]), CHUNK - 1), CHUNK))
