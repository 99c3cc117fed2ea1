"""What notebooks show as HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class Shown:
    """A report that a notebook shows as a command prints it."""

    html: ClassVar[Callable[[Any], str] | None] = None
    """How; the layer that prints reports lies above them and registers it (`archdsl.api`)."""

    def _repr_html_(self) -> str | None:
        return Shown.html(self) if Shown.html is not None else None
