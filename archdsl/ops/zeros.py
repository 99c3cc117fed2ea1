"""`zeros`"""

from archdsl.ir.op import Example
from archdsl.ops._filled import Filled


class Zeros(Filled):
    """A tensor of zeros of the model's own type: `zeros(batch, 8)`."""

    filling = 0.0
    placed = True
    signature = "zeros(dims: sizes) -> [...]"
    numpy = "zeros"
    examples = (Example("x + zeros(5, 8)"), Example("concat(zeros(2, 1, 8), x, axis: 1)"))
