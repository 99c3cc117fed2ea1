"""The section `float8`: linear layers that multiply in float8, in training."""

from __future__ import annotations

from collections.abc import Iterable

from archdsl.backends.torch.features import Section


class Float8(Section):
    """`use_float8(module)`, which lets the linear layers of a module do so."""

    def helpers(self) -> Iterable[str]:
        return ("use_float8",)
