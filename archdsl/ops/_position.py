"""What positions that act inside attention have in common."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from archdsl.ir.graph import Value
from archdsl.ir.masks import Mask
from archdsl.ir.op import Application, Primitive, TorchScope, Tree
from archdsl.ir.static import Instance, Scheme, Template


class Position(Primitive):
    """A position scheme that `sdpa(…, position: …)` may be given."""

    def attend(
        self, call: Application, position: Any, q: Value, k: Value, mask: Mask, rotated: bool
    ) -> tuple[Value, Value, Value | None]:
        """Queries and keys as they enter the scores, and what is added to the scores."""
        raise TypeError(f"{type(self).__name__} does not say how it acts")


def arguments(position: Any) -> dict[str, Any]:
    """What a position was given."""
    template = position.template if isinstance(position, Instance) else position
    assert isinstance(template, Template)
    return dict(template.args)


@dataclass(frozen=True)
class Factor:
    """What scores are multiplied with: the number, and how PyTorch writes it."""

    value: float
    torch: Callable[[TorchScope], Tree]

    def __str__(self) -> str:
        return f"{self.value:g}"


def attention_scale(position: Any, call: Application) -> Factor | None:
    """The factor that the scaling of a rope puts on the scores: YaRN and LongRoPE sharpen attention over longer
    contexts."""
    if position is None:
        return None
    scaling = arguments(position).get("scaling")
    if not isinstance(scaling, Scheme):
        return None
    numbers = scaling.numbers
    if scaling.name == "yarn" and call.holds("!=", numbers["mscale"], 0) and call.holds(">", numbers["factor"], 1):
        value = (0.1 * float(numbers["mscale"]) * math.log(float(numbers["factor"])) + 1) ** 2
        return Factor(
            value,
            lambda e: e.py("(0.1 * {mscale} * math.log({factor}) + 1) ** 2", **numbers),
        )
    if scaling.name == "longrope" and "factor" in numbers and call.holds(">", numbers["factor"], 1):
        if not call.holds(">", numbers["original"], 1, "`longrope` stretches a context of more than one position"):
            raise call.error(
                "E0204",
                f"`longrope` stretches a context of more than one position, and `original` is {numbers['original']}",
                option="position",
            )
        value = 1 + math.log(float(numbers["factor"])) / math.log(float(numbers["original"]))
        return Factor(
            value,
            lambda e: e.py("1 + math.log({factor}) / math.log({original})", **numbers),
        )
    return None
