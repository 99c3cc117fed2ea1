"""What a primitive costs: floating-point operations as exact functions of its sizes.

A multiply and an add are two operations. A *contraction* sums products over an axis: everything that a matrix unit
does. All other arithmetic is counted apart, element by element. What attention does for each pair of a query and a key
is multiplied with the pairs that its mask lets through, which are counted last, once sizes are numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from archdsl.frozen import Entity, Frozen
from archdsl.ir.dims import Num, Poly, Shape, Value, evaluate, mul
from archdsl.ir.masks import Mask


class Pairs(Entity):
    """The pairs of a query and a key that a mask lets through, the last query standing at the last key."""

    mask: Mask
    queries: Num
    keys: Num

    @property
    def key(self) -> Hashable:
        """Equal for equal numbers of pairs."""
        return self.mask.key, self.queries.value, self.keys.value

    @property
    def all(self) -> Value:
        """Every pair, seen or not."""
        return mul(self.queries.value, self.keys.value)

    def __str__(self) -> str:
        return f"pairs({self.mask}, {self.queries}, {self.keys})"


class Amount(Frozen):
    """FLOPs; for each pair, where `pairs` are given."""

    flops: Value
    pairs: Pairs | None = None


class Contraction(Frozen):
    """A sum of products of two sides. The gradient by either side costs as much as the contraction itself.

    `left` and `right` say what each side is made of: inputs by their number, weights by their name; () for a side that
    no gradient reaches."""

    amount: Amount
    left: tuple[int | str, ...]
    right: tuple[int | str, ...]


class Cost(Frozen):
    """One use of a primitive, forwards."""

    contractions: tuple[Contraction, ...] = ()
    elementwise: tuple[Amount, ...] = ()


def times(sizes: Iterable[Num | Value]) -> Value:
    """The product of sizes."""
    found: Value = 1
    for size in sizes:
        found = mul(found, size.value if isinstance(size, Num) else size)
    return found


def contracted(
    sizes: Iterable[Num | Value],
    left: tuple[int | str, ...],
    right: tuple[int | str, ...],
    pairs: Pairs | None = None,
) -> Contraction:
    """A contraction that multiplies and adds as often as the product of the sizes says."""
    return Contraction(Amount(mul(2, times(sizes)), pairs), left, right)


def elements(shape: Shape) -> Value:
    """How many numbers a tensor holds."""
    return times(shape)


def whole_at(value: Value, sizes: dict[str, int]) -> int:
    """The number that a count is at these sizes. Raises ValueError where it is not whole."""
    found = evaluate(value, sizes) if isinstance(value, Poly) else value
    if found != int(found):
        raise ValueError(f"{value} is {float(found):g}")
    return int(found)
