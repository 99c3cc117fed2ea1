"""`sinusoid`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.dims import binary, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, Primitive, TorchScope
from archdsl.ops._common import equals, number

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

    def torch(self, node: OpNode, e: TorchScope) -> str:
        function = e.helper(INTERLEAVED_SINUSOID if node.options["interleaved"] else SINUSOID)
        length, offset, theta = number(node, "length"), number(node, "offset"), number(node, "theta")
        first = "" if equals(offset, 0) else f"{e.number(offset)}, "
        places = f"torch.arange({first}{e.number(binary('+', length, offset))}, device={e.device()})"
        wave = "" if equals(theta, 10_000) else f", {e.number(theta)}"
        return f"{function}({places}, {e.number(number(node, 'width'))}{wave})"
