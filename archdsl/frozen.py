"""Families of frozen dataclasses, of which the base class makes each."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Frozen:
    """What is compared by content."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, **how: Any) -> None:
        dataclass(frozen=True, **how)(cls)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
class Entity:
    """What is known by identity: two that are made alike differ, unless a class says `eq`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, eq: bool = False) -> None:
        dataclass(frozen=True, eq=eq)(cls)
