"""What an emitted file can hold beside the plain model: sections that are asked for by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

if TYPE_CHECKING:
    from archdsl.lower.torch.file import FileWriter

Name = Literal["generate", "loss", "parallel"]
NAMES: tuple[Name, ...] = get_args(Name)
Checkpoint = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Extras:
    """`sections` are those to write; `checkpoint` is what the backward pass computes again instead of storing it."""

    sections: frozenset[Name] = frozenset()
    checkpoint: Checkpoint = "none"

    @property
    def options(self) -> str:
        """How the command line asks for them, with a space in front."""
        chosen = ",".join(n for n in NAMES if n in self.sections)
        return (f" --with {chosen}" if chosen else "") + (
            f" --checkpoint {self.checkpoint}" if self.checkpoint != "none" else ""
        )


PLAIN = Extras()


class Section(Protocol):
    """One part of the file beside the plain model."""

    def helpers(self) -> Mapping[str, str]:
        """Functions and classes that it needs above the model's classes: sources by name."""

    def methods(self) -> Iterable[str]:
        """Sources of methods of the model's class, without indentation."""

    def functions(self) -> Iterable[str]:
        """Sources of functions below the model's class."""


def sections(writer: FileWriter, extras: Extras) -> list[Section]:
    """The sections that were asked for, in the order of the file."""
    return []
