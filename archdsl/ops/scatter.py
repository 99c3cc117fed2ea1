"""`scatter`"""

from archdsl.ir.op import Example
from archdsl.ops._scatter import Scattering


class Scatter(Scattering):
    """x with the values written at the given positions, which differ, along an axis; the other axes of all are
    equal."""

    passes = 0
    signature = "scatter(axis: int = -1)(x: [...], places: int[...], values: [...]) -> [...]"
    examples = (
        Example("scatter(x, argsort(y), y)", "x: [2, 8], y: [2, 3]"),
        Example("scatter(x, argsort(y, axis: 1), y, axis: 1)", "x: [2, 5, 8], y: [2, 3, 8]"),
    )
