"""`sinusoid`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num, binary, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope
from archdsl.ops._common import equals, number
from archdsl.ops.rope_table import frequencies

SINUSOID = '''
def sinusoid(place: Tensor, width: int, theta: float = 10_000) -> Tensor:
    """Waves of 2π to 2π · theta places: the sines of all of them, then the cosines (Vaswani et al., 2017)."""
    angle = place[:, None] * theta ** -(torch.arange(0, width, 2, device=place.device) / width)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)
'''

INTERLEAVED_SINUSOID = '''
def interleaved_sinusoid(place: Tensor, width: int, theta: float = 10_000) -> Tensor:
    """Waves of 2π to 2π · theta places: the sine and the cosine of each in turn (Vaswani et al., 2017)."""
    angle = place[:, None] * theta ** -(torch.arange(0, width, 2, device=place.device) / width)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
'''


class Sinusoid(Primitive):
    """The table of sinusoidal positions (Vaswani et al., 2017): sin and cos of `place * theta ** (-2i / width)`.

    Places count from `offset`. The sines stand before the cosines; with `interleaved` they take turns. It is
    float32."""

    placed = True
    passes = 2
    signature = (
        "sinusoid(length: size, width: size, theta: number = 10_000, interleaved: bool = false, offset: int = 0) "
        "-> [length, width]"
    )
    mixes = False
    examples = (
        Example("x + sinusoid(5, 8)"),
        Example("sinusoid(5, 8, theta: 100, interleaved: true, offset: 2)", gradients=False),
    )

    def check(self, call: Application) -> None:
        call.condition("%", call.size("width"), num(2), "every wave has a sine and a cosine")

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float32",)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        places, offset = g.places(number(node, "length")), number(node, "offset")
        if not equals(offset, 0):
            places = g.Add(places, offset)
        waves = self.waves(g, number(node, "width"), number(node, "theta"))
        angle = g.Mul(g.Unsqueeze(g.cast(places, "float32"), [-1]), waves)
        if not node.options["interleaved"]:
            return g.Concat(g.Sin(angle), g.Cos(angle), axis=-1)
        pairs = g.Concat(*(g.Unsqueeze(t, [-1]) for t in (g.Sin(angle), g.Cos(angle))), axis=-1)
        return g.Reshape(pairs, [*([0] * (2 if g.by_row else 1)), -1])

    def waves(self, g: OnnxScope, width: Num, theta: Num) -> Any:
        """Radians a place."""
        if width.static and theta.static:
            return g.constant(frequencies(float(theta), int(width)), "float32")
        own = g.number(width, "float32")
        exponents = g.Div(g.Range(g.constant(0.0, "float32"), own, 2.0), own)
        return g.Pow(g.number(theta, "float32"), g.Neg(exponents))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        function = e.helper(INTERLEAVED_SINUSOID if node.options["interleaved"] else SINUSOID)
        length, offset, theta = number(node, "length"), number(node, "offset"), number(node, "theta")
        first = "" if equals(offset, 0) else f"{e.number(offset)}, "
        places = f"torch.arange({first}{e.number(binary('+', length, offset))}, device={e.device()})"
        wave = "" if equals(theta, 10_000) else f", {e.number(theta)}"
        return f"{function}({places}, {e.number(number(node, 'width'))}{wave})"
