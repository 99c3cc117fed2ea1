"""What an emitted file can hold beside the plain model: sections that are asked for by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from archdsl.lower.torch.block import BlockWriter
    from archdsl.lower.torch.file import FileWriter
    from archdsl.lower.torch.written import Group

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


class Section:
    """One part of the file beside the plain model: what it adds, nothing by default."""

    def write(self) -> None:
        """Write what depends on the classes, when each has its `forward` and before names have their meaning."""

    def further(self, group: Group | None) -> Iterable[tuple[str, BlockWriter]]:
        """Methods of a class (None: the model's own) beside `forward`: their names, and who wrote them."""
        return ()

    def helpers(self) -> Mapping[str, str]:
        """Functions and classes that it needs above the model's classes: sources by name."""
        return {}

    def methods(self) -> Iterable[str]:
        """Sources of methods of the model's class, without indentation."""
        return ()

    def init(self) -> Iterable[str]:
        """Lines for the end of the `__init__` of the model's class, without indentation."""
        return ()

    def forward(self) -> Sequence[str] | None:
        """The lines of the model's `forward` where the section writes it in another way."""
        return None

    def functions(self) -> Iterable[str]:
        """Sources of functions below the model's class."""
        return ()


def sections(writer: FileWriter, extras: Extras) -> list[Section]:
    """The sections that were asked for, in the order of the file."""
    from archdsl.lower.torch.checkpoint import Checkpointing
    from archdsl.lower.torch.generate import Generate
    from archdsl.lower.torch.loss import Loss
    from archdsl.lower.torch.parallel import Parallel

    made = {"generate": Generate, "loss": Loss, "parallel": Parallel}
    found = [make(writer) for name, make in made.items() if name in extras.sections]
    return found if extras.checkpoint == "none" else [*found, Checkpointing(writer, extras.checkpoint)]
