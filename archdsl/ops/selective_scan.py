"""`selective_scan`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Amount, Cost, contracted, elements, times
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, State, TorchScope, Tree
from archdsl.ir.signature import promoted
from archdsl.ops._onnx import in_square, zeros


class SelectiveScan(Primitive):
    """The selective state space of Mamba (Gu and Dao, 2023): `h[t] = exp(delta[t] a) h[t-1] + delta[t] b[t] x[t]`.

    The result is `y[t] = c[t] · h[t] + skip x[t]`. x and delta (positive) are [batch, time, channels]; a, negative,
    [channels, state]; b and c [batch, time, state]; skip [channels]. In float32, in parallel over time."""

    signature = (
        "selective_scan()"
        "(x: float[batch, time, channels], delta: float[batch, time, channels], a: float[channels, state], "
        "b: float[batch, time, state], c: float[batch, time, state], skip: float[channels] = none) "
        "-> [batch, time, channels]"
    )
    examples = (
        Example(
            "selective_scan(x, softplus(d), -exp(a), b, c, skip: s)",
            "x: [2, 5, 8], d: [2, 5, 8], a: [8, 4], b: [2, 5, 4], c: [2, 5, 4], s: [8]",
        ),
        Example(
            "selective_scan(x, softplus(d), -exp(a), b, c)",
            "x: [1, 70, 3], d: [1, 70, 3], a: [3, 2], b: [1, 70, 2], c: [1, 70, 2]",
        ),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted(call.inputs[::5]),)

    def flops(self, node: OpNode) -> Cost:
        """The reading of the states is a contraction; what makes them is done number by number: decays (2), terms (2)
        and steps (2)."""
        x, a = node.inputs[0], node.inputs[2]
        assert isinstance(x, Value)
        assert isinstance(a, Value)
        read = contracted((*x.shape, a.shape[-1]), (0, 1, 2, 3), (4,))
        skip = (Amount(times((2, elements(x.shape)))),) if node.inputs[5] is not None else ()
        return Cost((read,), (Amount(times((6, *x.shape, a.shape[-1]))), *skip))

    def states(self, node: OpNode) -> Sequence[State]:
        x, a = node.inputs[0], node.inputs[2]
        assert isinstance(x, Value)
        assert isinstance(a, Value)
        return (State("h", (x.shape[0], *a.shape), "float32", 1),)

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
        (sums,) = g.scan(lambda h, *slices: (step(h, *slices),), [nothing], [delta, x, b], axis=0)
        products = g.Exp(g.Mul(g.ReduceSum(delta, [0], keepdims=0), a))
        first = zeros(g, sums, 1) if start is None else start
        last, states = g.scan(lambda h, p, s: (g.Add(g.Mul(p, h), s), h), [first], [products, sums], axis=0)
        _, y = g.scan(read, [states], [delta, x, b, c], axis=0)
        y = g.cast(chunks.joined(g, g.Squeeze(y, [-1]), 3), kind)
        if not g.has(5):
            return y, last
        own = node.outputs[0].dtype
        return g.Add(g.cast(y, own), g.Mul(g.arg(5, own), g.arg(0, own))), last

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        scan = e.py("selective_scan_on({0}, {1}, {2}, {3}, {4}, {h})", h=past[0])
        y, h = e.unpack(("y", "h"), scan)
        return self.skipped(e, y), (h,)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return self.skipped(e, e.py("selective_scan({0}, {1}, {2}, {3}, {4})"))

    def skipped(self, e: TorchScope, y: Tree) -> Tree:
        """What the states give, and the input itself by its factors."""
        return e.py("{y} + {5} * {0}", y=y) if e.has(5) else y
