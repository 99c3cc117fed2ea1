"""`selective_scan`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import PLUS, TIMES, Application, Code, Example, Primitive, TorchScope
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

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        e.helper(LINEAR_RECURRENCE)
        scan = f"{e.helper(SELECTIVE_SCAN)}({', '.join(e.arg(i) for i in range(5))})"
        return Code(f"{scan} + {e.operand(5, TIMES)} * {e.operand(0, TIMES + 1)}", PLUS) if e.has(5) else Code(scan)
