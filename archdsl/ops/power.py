"""`**`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import POWER, UNARY, Application, Code, Example, OnnxScope, TorchScope
from archdsl.ops._common import Numeric


class Power(Numeric):
    """`a ** b`, element by element."""

    signature = "power()(a: [...], b: [...]) -> [...]"
    numpy = "float_power"
    examples = (
        Example("x ** 2"),
        Example("exp(x) ** -0.5"),
        Example("2 ** x"),
        Example("-(x + 1) ** 2"),
        Example("10_000 ** -(ids / 8)", "ids: int[8]", gradients=False),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        base, exponent = call.inputs
        if (
            isinstance(base, Value)
            and base.is_int
            and isinstance(exponent, Num)
            and exponent.static
            and float(exponent) < 0
        ):
            raise call.error(
                "E0304",
                f"whole numbers have no power {exponent} that is whole",
                input=0,
                help="make them real numbers first: `cast(float32)`",
            )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        a, b = g.args()
        exponent = node.inputs[1]
        if isinstance(exponent, Num) and exponent.static:
            found = known_power(g, a, float(exponent))
            return g.Pow(a, b) if found is None else found
        if not node.outputs[0].is_int:
            return g.Pow(a, b)
        # A whole number to a power below 0 is 0, but for 1 and -1.
        vanishes = g.And(g.Less(b, 0), g.Not(g.Equal(g.Abs(a), 1)))
        return g.Where(vanishes, 0, g.Pow(a, g.Abs(b)))

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{e.operand(0, POWER + 1)} ** {e.operand(1, UNARY)}", POWER)


def known_power(g: OnnxScope, x: Any, exponent: float) -> Any:
    """A power as products and roots, as PyTorch computes it too and, of whole numbers, exactly; None for one that has
    to be computed by logarithms."""
    if exponent in (0.5, -0.5):
        root = g.Sqrt(x)
        return root if exponent > 0 else g.Div(1.0, root)
    whole = abs(int(exponent))
    if exponent != int(exponent) or not 1 <= whole <= (3 if g.dtype(x) != "int" else 63):
        return None
    found, square = None, x
    while whole:
        if whole % 2:
            found = square if found is None else g.Mul(found, square)
        whole //= 2
        if whole:
            square = g.Mul(square, square)
    return found if exponent > 0 else g.Div(1.0, found)
