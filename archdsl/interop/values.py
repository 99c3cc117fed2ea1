"""Numbers of a tensor that are others in the spec: `norm.weight -> add(1) = norm.weight`. Each function has an inverse,
so that one line serves both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from archdsl.diagnostics import error
from archdsl.weights.safetensors import READABLE, TYPES, encoded, kind_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[Any]


class ValueMap(NamedTuple):
    """What becomes of every number of theirs: `add(n)`, `times(n)` or `neg_exp`, which is -exp(x)."""

    name: str
    number: float

    def to_ours(self, bits: Numbers, kind: str, path: str) -> Numbers:
        """The bits of a tensor of a safetensors type, its numbers being ours. Raises ArchError E0532 for numbers that
        the function has no value for."""
        return _mapped(FUNCTIONS[self.name][0], self, bits, kind, path)

    def to_theirs(self, bits: Numbers, kind: str, path: str) -> Numbers:
        """The same the other way about."""
        return _mapped(FUNCTIONS[self.name][1], self, bits, kind, path)


def _neg_exp(x: Numbers, _: float) -> Numbers:
    import numpy as np

    return -np.exp(x)


def _log_neg(x: Numbers, _: float) -> Numbers:
    import numpy as np

    return np.log(-x)


FUNCTIONS: Mapping[str, tuple[Callable[[Numbers, float], Numbers], Callable[[Numbers, float], Numbers]]] = {
    "add": (lambda x, n: x + n, lambda x, n: x - n),
    "times": (lambda x, n: x * n, lambda x, n: x / n),
    "neg_exp": (_neg_exp, _log_neg),
}
"""Each with its inverse."""


def _mapped(
    function: Callable[[Numbers, float], Numbers], value: ValueMap, bits: Numbers, kind: str, path: str
) -> Numbers:
    import numpy as np

    if kind_of(kind) != "float":
        raise error("E0532", f"`{path}` holds whole numbers, and `{value.name}` is for real ones")
    wide = (bits.astype("<u4") << np.uint32(16)).view("<f4") if kind == "BF16" else bits.view(READABLE[kind])
    with np.errstate(all="ignore"):
        made = function(wide.astype("<f8"), value.number)
    if not np.isfinite(made).all() and np.isfinite(wide).all():
        raise error("E0532", f"`{path}` holds numbers that `{value.name}` does not come to")
    if kind == "F64":
        return made.view(bits.dtype)
    dtype = next(name for name, other in TYPES.items() if other == kind)
    return np.frombuffer(encoded(made, dtype, path), bits.dtype).reshape(bits.shape)
