"""`scatter_add`"""

from archdsl.ir.op import Example
from archdsl.ops._scatter import Scattering


class ScatterAdd(Scattering):
    """x with the values added at the given positions along an axis; all three are equal in the other axes."""

    reduction = "add"
    signature = "scatter_add(axis: int = -1)(x: [...], places: int[...], values: [...]) -> [...]"
    examples = (
        Example("scatter_add(x, places, values)", "x: [2, 5, 8], places: int[2, 5, 3], values: [2, 5, 3]"),
        Example("scatter_add(x, places, values, axis: 1)", "x: [2, 5, 8], places: int[2, 3, 8], values: [2, 3, 8]"),
    )
