"""`ones`"""

from archdsl.ir.op import Example
from archdsl.ops._filled import Filled


class Ones(Filled):
    """A tensor of ones of the model's own type: `ones(batch, 8)`."""

    filling = 1.0
    placed = True
    signature = "ones(dims: sizes) -> [...]"
    numpy = "ones"
    examples = (Example("x + ones(5, 8)"), Example("concat(ones(2, 1, 8), x, axis: 1)"))
