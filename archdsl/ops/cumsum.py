"""`cumsum`"""

from archdsl.ir.op import Example
from archdsl.ops._running import Running


class CumSum(Running):
    """The sum of all places up to the own, along an axis."""

    signature = "cumsum(axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("x -> cumsum"),
        Example("x -> cumsum(axis: 1)"),
        Example("cumsum(real)", "real: bool[2, 5]", gradients=False),
    )
