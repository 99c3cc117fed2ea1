"""An example of each row of the product's tables: tests run over these, so that a new row is in them at once."""

from archdsl.ir.dims import num
from archdsl.ir.masks import RULES, TENSOR_RULES, Mask

POSITIONS: dict[str, Mask] = {name: Mask(name, tuple(map(num, rule.example))) for name, rule in RULES.items()}
"""Masks that compare positions, each with the numbers of its example."""


def spelled(boolean: str, whole: str) -> list[str]:
    """Every mask as it is written, for tensors of these names; of the model's inputs their names alone."""
    tensors = {"bool": boolean, "int": whole}
    read = [name if rule.is_input else f"{name}({tensors[rule.kind]})" for name, rule in TENSOR_RULES.items()]
    return [*map(str, POSITIONS.values()), *read]
