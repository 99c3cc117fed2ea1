"""What an emitted file can hold beside the plain model: sections that are asked for by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal, get_args

from archdsl.frozen import Frozen
from archdsl.passes.checkpoint import Checkpoint

if TYPE_CHECKING:
    from archdsl.backends.torch.classes import Classes
    from archdsl.backends.torch.lower import Method
    from archdsl.backends.torch.text import Scheduled
    from archdsl.ir.graph import Block

Name = Literal["generate", "loss", "parallel", "cpu", "float8", "varlen"]
NAMES: tuple[Name, ...] = get_args(Name)
SECTIONS: dict[Name, str] = {
    "generate": "generate:Generate",
    "cpu": "cpu:Cpu",
    "float8": "float8:Float8",
    "varlen": "varlen:Varlen",
    "loss": "loss:LossSection",
    "parallel": "parallel:Parallel",
}
"""The module and class of each section, in the order of the file."""


class Extras(Frozen):
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

    reads_config = False
    """Whether it reads `model.config`."""

    def __init__(self, classes: Classes) -> None:
        self.classes = classes

    @classmethod
    def of(cls, classes: Classes, extras: Extras, before: Sequence[Section]) -> Section:
        """Make the section for a file that is asked for `extras`; `before` are those that come first in the file."""
        return cls(classes)

    def reads(self, block: Block) -> Iterable[str]:
        """Names of a block that its further methods read."""
        return ()

    def settle(self) -> None:
        """Add methods to classes, when it is known which blocks are one class and before names have their meaning."""

    def helpers(self) -> Iterable[str]:
        """Names of helpers that it needs above the model's classes."""
        return ()

    def sources(self) -> Mapping[str, str]:
        """Functions that it writes itself above the model's classes: sources by name."""
        return {}

    def forward(self) -> Method | None:
        """The model's `forward` where the section writes it in another way."""
        return None

    def merge(self) -> None:
        """Add methods that read what other sections have made of the model's `forward`."""

    def init(self) -> Iterable[str]:
        """Lines for the end of the `__init__` of the model's class, without indentation."""
        return ()

    def draws(self) -> Iterable[str]:
        """Lines for the end of its `init_weights`, without indentation."""
        return ()

    def methods(self) -> Iterable[str]:
        """Sources of methods of the model's class, without indentation."""
        return ()

    def functions(self, forward: Scheduled) -> Iterable[str]:
        """Sources of functions below the model's class, whose `forward` has its names."""
        return ()


def sections(classes: Classes, extras: Extras) -> list[Section]:
    """The sections that were asked for, in the order of the file."""
    found: list[Section] = []
    for name, place in SECTIONS.items():
        if name in extras.sections:
            module, _, cls = place.partition(":")
            section: type[Section] = getattr(import_module(f"{__name__}.{module}"), cls)
            found.append(section.of(classes, extras, found))
    if extras.checkpoint != "none":
        from archdsl.backends.torch.features.checkpoint import Checkpointing

        found.append(Checkpointing(classes, extras.checkpoint))
    return found
