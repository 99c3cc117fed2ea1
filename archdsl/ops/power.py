"""`**`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num, at_least_zero
from archdsl.ir.graph import Input, OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Arithmetic, arithmetic_type


class Power(Arithmetic):
    """`a ** b`, element by element. Whole numbers give float32, unless the exponent is a number that is whole and not
    negative."""

    signature = "power()(a: number[...], b: number[...]) -> [...]"
    numpy = "float_power"
    examples = (
        Example("x ** 2"),
        Example("exp(x) ** -0.5"),
        Example("2 ** x"),
        Example("-(x + 1) ** 2"),
        Example("10_000 ** -(ids / 8)", "ids: int[8]", gradients=False),
        Example("ids ** 2", "ids: int[8]", gradients=False),
        Example("(ids + 1) ** -2", "ids: int[8]", gradients=False),
        Example("2 ** (-2 * ids)", "ids: int[8]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        found = arithmetic_type(call.inputs, call)
        return ("float32" if found == "int" and not _keeps_whole(call, call.inputs[1]) else found,)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        a, b = g.args()
        exponent = node.inputs[1]
        found = known_power(g, a, float(exponent)) if isinstance(exponent, Num) and exponent.static else None
        return g.Pow(a, b) if found is None else found

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if node.outputs[0].is_float and arithmetic_type(node.inputs) == "int":
            return e.py("{0}.float() ** {1}" if isinstance(node.inputs[0], Value) else "{0} ** {1}.float()")
        return e.py("{0} ** {1}")


def _keeps_whole(call: Application, exponent: Input) -> bool:
    """Whether whole numbers have whole powers with that exponent."""
    if not isinstance(exponent, Num) or not call.is_whole(exponent):
        return False
    return call.holds(">=", exponent, 0) if exponent.static else at_least_zero(exponent.value)


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
