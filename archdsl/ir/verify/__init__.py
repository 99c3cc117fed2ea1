"""Verification of the IR: a violation is a fault of the compiler, never of the spec.

`rules` says what must be true of a Model, `walk` applies it. Both are loaded only where verification is `enabled`: in
the tests, and by `archdsl --debug`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from archdsl.diagnostics import InternalError

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

Made = TypeVar("Made")

enabled = False
"""Whether `checked` verifies."""


def checked(made: Made, wrong: Callable[[Made], Iterable[str]], after: str) -> Made:
    """Return the result of a pass unchanged. Raises InternalError where verification is enabled and `wrong` yields
    violations."""
    if enabled and (messages := [*wrong(made)]):
        more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
        raise InternalError(f"after {after}: {messages[0]}{more}")
    return made


def violations(model: Model) -> list[str]:
    """Return the violations in a model, each with the node, the block, the line of the spec and the rule."""
    from archdsl.ir.verify.walk import VerifyWalk

    return VerifyWalk(model).found
