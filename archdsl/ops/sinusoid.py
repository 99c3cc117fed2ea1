"""`sinusoid`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.dims import Num, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope, Tree
from archdsl.ops._common import equals, number, usual
from archdsl.ops.rope_table import frequencies


class Sinusoid(Primitive):
    """The table of sinusoidal positions (Vaswani et al., 2017): sin and cos of `position * theta ** (-2i / width)`.

    Positions count from `offset`. The sines stand before the cosines; with `interleaved` they take turns. It is
    float32."""

    placed = True
    passes = 2
    signature = (
        "sinusoid(length: size, width: size, theta: positive = 10_000, interleaved: bool = false, offset: int = 0) "
        "-> float32[length, width]"
    )
    mixes = False
    examples = (
        Example("x + sinusoid(5, 8)"),
        Example("sinusoid(5, 8, theta: 100, interleaved: true, offset: 2)", gradients=False),
    )

    def at_positions(self, node: OpNode) -> bool:
        return True

    def check(self, call: Application) -> None:
        call.condition("%", call.size("width"), num(2), "the width must be even: half are sines, half cosines")
        usual(call, theta=10_000, offset=0)

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
        """Radians a position."""
        if width.static and theta.static:
            return g.constant(frequencies(float(theta), int(width)), "float32")
        own = g.number(width, "float32")
        exponents = g.Div(g.Range(g.constant(0.0, "float32"), own, 2.0), own)
        return g.Pow(g.number(theta, "float32"), g.Neg(exponents))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        function = "interleaved_sinusoid" if node.options["interleaved"] else "sinusoid"
        length, offset, theta = number(node, "length"), number(node, "offset"), number(node, "theta")
        positions = e.positions(length, None if equals(offset, 0) else offset)
        wave = () if equals(theta, 10_000) else (theta,)
        width = number(node, "width")
        return e.py(f"{function}({{x}}, {{width}}, {{*wave}})", x=positions, width=width, wave=wave)
