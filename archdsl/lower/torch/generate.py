"""The section `generate`: a step of decoding for every class that keeps something, and sampling on top of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from archdsl.analyses.decode import plan
from archdsl.lower.torch.extras import Section
from archdsl.lower.torch.roles import Assigner, Roles
from archdsl.lower.torch.steps import StepWriter

if TYPE_CHECKING:
    from archdsl.lower.torch.block import BlockWriter
    from archdsl.lower.torch.file import FileWriter
    from archdsl.lower.torch.written import Group

STATE = '''
class State:
    """What a step of decoding needs of the places before it: keys and values, what recurrences hand on, and what is
    computed once. Steps come to it always in the same order."""

    def __init__(self, length: int, start: Tensor | None = None) -> None:
        self.length = length  # places that there is room for
        self.kept: list[tuple[Tensor, ...]] = []
        self.start = start  # where each row's next place is, if they differ
        self.end = 0

    def begin(self, x: Tensor) -> None:
        """A step for x [batch, new, …]."""
        self.first, self.cursor, new = not self.kept and self.end == 0, 0, x.size(1)
        self.begun, self.end = self.end, self.end + new
        self.batch, self.device = x.size(0), x.device
        place = torch.arange(self.begun, self.end, device=x.device)[None]
        self.positions = place if self.start is None else self.start[:, None] + place - self.begun
        self.keys = torch.arange(self.end, device=x.device)
        self.mask = None  # that of the keys before each new place, where it says anything
        if self.start is not None or (new > 1 and not self.first):
            self.mask = self.keys <= self.positions[:, None, :, None]
        if self.start is not None:
            self.start = self.start + new

    @property
    def real(self) -> Tensor:
        """All places so far are tokens [batch, all]: those that are none are never looked at."""
        return torch.ones(self.batch, self.end, dtype=torch.bool, device=self.device)

    def newest(self, x: Tensor) -> Tensor:
        """Of x [batch, all] the new places."""
        return x.gather(1, self.positions.expand(x.size(0), -1))

    def hold(self, *tensors: Tensor) -> None:
        """Keep what the first step has computed."""
        self.kept.append(tensors)

    def held(self) -> Tensor | tuple[Tensor, ...]:
        """What the first step has computed."""
        tensors = self.kept[self.cursor]
        self.cursor += 1
        return tensors if len(tensors) > 1 else tensors[0]

    def keep(self, *tensors: Tensor, axis: int = -2) -> Tensor | tuple[Tensor, ...]:
        """Put the new places behind those before them; all of them so far."""
        if self.first:
            shapes = ([*t.shape[:axis], self.length, *t.shape[axis:][1:]] for t in tensors)
            self.kept.append(tuple(t.new_zeros(shape) for t, shape in zip(tensors, shapes)))
        buffers = self.kept[self.cursor]
        self.cursor += 1
        for buffer, new in zip(buffers, tensors):
            if self.start is None:
                buffer.narrow(axis, self.begun, new.size(axis)).copy_(new)
            else:
                rows = torch.arange(new.size(0), device=new.device)[:, None]
                buffer.movedim(axis, 1)[rows, self.positions] = new.movedim(axis, 1)
        found = tuple(buffer.narrow(axis, 0, self.end) for buffer in buffers)
        return found if len(found) > 1 else found[0]

    def recall(self, *zeros: Callable[[], Tensor]) -> Tensor | tuple[Tensor, ...]:
        """What a recurrence handed on; before the first place, what it starts from."""
        if self.first:
            self.kept.append(tuple(make() for make in zeros))
        found = self.kept[self.cursor]
        return found if len(found) > 1 else found[0]

    def hand_on(self, *tensors: Tensor) -> None:
        """What the recurrence is to find in the next step."""
        self.kept[self.cursor] = tensors
        self.cursor += 1
'''


class Generate(Section):
    """Steps for every class that keeps something, and the model's `generate`.

    Raises ArchError E0504 where the model cannot be taken step by step."""

    def __init__(self, file: FileWriter) -> None:
        self.file = file
        self.classes = file.classes
        self.plan = plan(file.model)
        self.written: dict[Group | None, dict[object, tuple[str, StepWriter]]] = {}

    def write(self) -> None:
        roles = Assigner(self.plan).root()
        self._write(None, roles)

    def _write(self, group: Group | None, roles: Roles) -> str:
        """Write the step of a class, once for every way in which it is taken; its name."""
        known = self.written.setdefault(group, {})
        signature = roles.signature()
        if signature not in known:
            forward = self.classes.writer(group)
            kinds = [] if group is None else [group.kind(i) for i in range(len(group.block.contexts))]
            writer = StepWriter(self, forward, kinds, roles)
            attributes = {*forward.modules.made, *forward.modules.stateless_made.values()}
            name = "step" if "step" not in attributes else "advance"
            known[signature] = f"{name}_{len(known) + 1}" if known else name, writer
            writer.write()
            if group is not None:
                self.classes.add_names(group, writer.written)
        return known[signature][0]

    def method(self, group: Group, roles: Roles) -> str:
        """The name of the step of a class that is called."""
        return self._write(group, roles)

    def further(self, group: Group | None) -> Iterable[tuple[str, BlockWriter]]:
        return self.written.get(group, {}).values()

    def helpers(self) -> Mapping[str, str]:
        found = {"State": STATE.strip()}
        for known in self.written.values():
            for _, writer in known.values():
                found |= {name: source.strip() for name, source in writer.written.helpers.items()}
        return found
