"""`**`"""

from __future__ import annotations

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import POWER, UNARY, Application, Code, Example, TorchScope
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

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{e.operand(0, POWER + 1)} ** {e.operand(1, UNARY)}", POWER)
