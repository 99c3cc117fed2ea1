"""`selective_scan`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import PLUS, TIMES, Application, Code, Example, OnnxScope, Primitive, TorchScope
from archdsl.ir.signature import promoted
from archdsl.ops._common import demand_floats
from archdsl.ops.linear_recurrence import LINEAR_RECURRENCE

SELECTIVE_SCAN = '''
def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Mamba: h[t] = exp(delta[t] a) h[t - 1] + delta[t] b[t] x[t] in each channel, read by y[t] = c[t] · h[t]."""
    delta = delta.float()
    decay = (delta[..., None] * a.float()).exp()  # [batch, time, channels, state]
    h = linear_recurrence(decay, (delta * x)[..., None] * b[:, :, None])
    return (h @ c.float()[..., None]).squeeze(-1).to(x.dtype)
'''


class SelectiveScan(Primitive):
    """The selective state space of Mamba (Gu and Dao, 2023): `h[t] = exp(delta[t] a) h[t-1] + delta[t] b[t] x[t]`.

    The result is `y[t] = c[t] · h[t] + skip x[t]`. x and delta (positive) are [batch, time, channels]; a, negative,
    [channels, state]; b and c [batch, time, state]; skip [channels]. In float32, in parallel over time."""

    signature = (
        "selective_scan()"
        "(x: [batch, time, channels], delta: [batch, time, channels], a: [channels, state], "
        "b: [batch, time, state], c: [batch, time, state], skip: [channels] = none) -> [batch, time, channels]"
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

    def check(self, call: Application) -> None:
        demand_floats(self, call)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted(call.inputs[::5]),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """Step by step: only states of one step, not those of all, are in memory."""
        kind = g.dtype(g.arg(0))
        x, delta, b, c = (g.Transpose(g.arg(i, "float32"), perm=[1, 0, 2]) for i in (0, 1, 3, 4))
        a = g.arg(2, "float32")
        delta, x = g.Unsqueeze(delta, [-1]), g.Unsqueeze(g.Mul(delta, x), [-1])
        b, c = g.Unsqueeze(b, [2]), g.Unsqueeze(c, [-1])

        def step(h: Any, delta_t: Any, x_t: Any, b_t: Any, c_t: Any) -> tuple[Any, Any]:
            decay = g.Exp(g.Mul(delta_t, a))
            after = g.Add(g.Mul(decay, h), g.Mul(x_t, b_t))
            return after, g.MatMul(after, c_t)

        start = g.Expand(g.constant(0.0, "float32"), [g.size(0, 0), g.Shape(a)])
        _, y = g.scan(step, [start], [delta, x, b, c], axis=0)
        y = g.cast(g.Transpose(g.Squeeze(y, [3]), perm=[1, 0, 2]), kind)
        if not g.has(5):
            return y
        own = node.outputs[0].dtype
        return g.Add(g.cast(y, own), g.Mul(g.arg(5, own), g.arg(0, own)))

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        e.helper(LINEAR_RECURRENCE)
        scan = f"{e.helper(SELECTIVE_SCAN)}({', '.join(e.arg(i) for i in range(5))})"
        return Code(f"{scan} + {e.operand(5, TIMES)} * {e.operand(0, TIMES + 1)}", PLUS) if e.has(5) else Code(scan)
