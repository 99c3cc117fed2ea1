"""An example of each row of the product's tables: tests run over these, so that a new row is in them at once."""

from collections.abc import Collection

from archdsl.frontend.schemes import SCALINGS, SCHEMES
from archdsl.ir.dims import num
from archdsl.ir.masks import RULES, TENSOR_RULES, Mask
from archdsl.ops.elementwise import FUNCTIONS, REAL

POSITIONS: dict[str, Mask] = {name: Mask(name, tuple(map(num, rule.example))) for name, rule in RULES.items()}
"""Masks that compare positions, each with the numbers of its example."""


def spelled(boolean: str, whole: str) -> list[str]:
    """Every mask as it is written, for tensors of these names; of the model's inputs their names alone."""
    tensors = {"bool": boolean, "int": whole}
    read = [name if rule.is_input else f"{name}({tensors[rule.kind]})" for name, rule in TENSOR_RULES.items()]
    return [*map(str, POSITIONS.values()), *read]


ACTIVATIONS = [row.name for row in FUNCTIONS if row.signature.endswith(REAL)]
"""Functions of real numbers, which take all of them."""


def law(name: str) -> str:
    """A scheme or scaling as it is written, with the numbers that it needs."""
    fields = (SCHEMES | SCALINGS)[name].items()
    numbers = [f"{key}: {'[1, 2]' if f.many else '8'}" for key, f in fields if f.default is None and f.needed]
    return f"{name}({', '.join(numbers)})" if numbers else name


def with_the_rest(laws: list[str], but: Collection[str] = ()) -> list[str]:
    """Schemes as they are written, and all that are not among them, `but` for some."""
    named = {text.partition("(")[0] for text in laws}
    return [*laws, *(law(name) for name in SCHEMES if name not in named and name not in but)]
