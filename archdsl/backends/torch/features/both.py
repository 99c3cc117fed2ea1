"""A block lowered for `forward` without a cache and for a step: two programs, each with its own view of what values and
expressions are, and one where both do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from archdsl.backends.torch.classes import Classes
from archdsl.backends.torch.features.fork import Weaver, aligned, renamed
from archdsl.backends.torch.lower import Kind, Lowering
from archdsl.backends.torch.program import Conditional, Step, Target
from archdsl.backends.torch.tree import Read, Variable, leaves
from archdsl.ir.dims import Num
from archdsl.ir.graph import Block, Value
from archdsl.ir.op import Tree

Mode = Literal["whole", "step", "both"]
"""What a node is lowered for: `forward` without a cache, a step, or one method that is both."""


@dataclass
class View:
    """What values and expressions are in one of the two programs: see `Lowering`."""

    aliases: dict[Value, Tree] = field(default_factory=dict)
    elided: set[Value] = field(default_factory=set)
    locals: dict[Tree, Tree] = field(default_factory=dict)
    counted: dict[Tree, Num] = field(default_factory=dict)


class BothLowering(Lowering):
    """Lowers one block for both programs."""

    def __init__(self, classes: Classes, block: Block, kinds: Sequence[Kind]) -> None:
        super().__init__(classes, block, kinds)
        self.mode: Mode = "both"
        self.trains = False
        self.other = View()
        """The view of the other program: of that without a cache while a step is lowered, and the other way round."""
        self.states = Variable("cache", state=True)
        self.state = Read(self.states)
        self.source: dict[Target, Target] = {}
        """Which value of `forward` it is that has another form, or a local of its own, in a step."""
        self.paired: set[Target] = set()
        """Locals of a step that are locals of `forward`, too."""

    @contextmanager
    def lowered_for(self, mode: Mode) -> Iterator[None]:
        """Lower for one of the two programs."""
        around, self.mode = self.mode, mode
        turned = (mode == "whole") != (around == "whole")
        if turned:
            self.turn()
        yield
        if turned:
            self.turn()
        self.mode = around

    def turn(self) -> None:
        """Exchange the views of the two programs."""
        own = self.other
        self.other = View(**{name: getattr(self, name) for name in vars(own)})
        for name, known in vars(own).items():
            setattr(self, name, known)
        self.trains = not self.trains

    def captured(self, mode: Mode, does: Callable[[], None]) -> list[Step]:
        """The statements that something puts for one of the two programs."""
        start = len(self.steps)
        with self.lowered_for(mode):
            does()
        found = self.steps[start:]
        del self.steps[start:]
        return found

    def captured_both(self, plain: Callable[[], None], step: Callable[[], None]) -> tuple[list[Step], list[Step]]:
        """The statements without a cache, and those with one; both make the same modules."""
        recording, known = self.modules.recording, dict(self.aliases)
        recorded = len(recording or ())
        theirs = self.captured("step", step)
        for value, tree in self.aliases.items():
            if isinstance(tree, Read) and known.get(value) != tree:
                self.source.setdefault(tree.value, value)
        if recording is not None:
            del recording[recorded:]
        return self.captured("whole", plain), theirs

    def woven(self, plain: Sequence[Step], step: Sequence[Step]) -> list[Step]:
        """Return both programs as one, in which what they do alike stands once."""
        weaver = Weaver(self.state, Read(self.losses), self.source)
        known = [x.value for x in self.locals.values() if isinstance(x, Read) and isinstance(x.value, Variable)]
        found = aligned(weaver, plain, step, [v for v in known if v not in self.paired])
        self.paired |= {*weaver.renamed.values()}
        for name in ("aliases", "locals", "counted") if weaver.renamed else ():
            mine = getattr(self.other, name)
            setattr(self.other, name, {renamed(k, weaver.renamed): renamed(x, weaver.renamed) for k, x in mine.items()})
        return found

    def is_asked(self, s: Step) -> bool:
        """Whether a statement does nothing unless something is given that may be left out."""
        return isinstance(s, Conditional) and any(x == Read(self.losses) for x in leaves(s.test))
