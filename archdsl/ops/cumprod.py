"""`cumprod`"""

from archdsl.ir.op import Example
from archdsl.ops._running import Running


class CumProd(Running):
    """The product of all places up to the own, along an axis."""

    signature = "cumprod(axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("x -> cumprod"),
        Example("x -> cumprod(axis: 1)"),
        Example("cumprod(real)", "real: bool[2, 5]", gradients=False),
    )
