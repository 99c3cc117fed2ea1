"""What steps of decoding hand on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class State:
    """What a step of decoding needs of the places before it: keys and values, what recurrences hand on, and what is
    computed once. Every step comes to it in the same order."""

    def __init__(self, length: int, static: bool = False) -> None:
        self.length = length  # places that there is room for
        self.static = static  # whether tensors keep their sizes from step to step, as a compiled step wants it
        self.kept: list[tuple[Tensor, ...]] = []
        self.fresh = True
        self.lengths: Tensor | None = None  # of the rows in the first step, if they differ
        self.end = 0  # places so far
        self.start: Tensor | None = None  # the next place of each row, if they differ
        self.active: Tensor | None = None  # rows that go on; the others stay as they are

    def begin(self, x: Tensor) -> None:
        """A step for x [batch, new, …]."""
        self.first, self.fresh, self.cursor, self.batch = self.fresh, False, 0, x.size(0)
        new = x.size(1)
        place = torch.arange(new, device=x.device)
        if self.first or self.start is None:
            self.begun, self.end = self.end, self.end + new
            self.positions = self.begun + place[None]
            if self.static:
                self.start = torch.full((1,), new, device=x.device)
        else:
            self.end = self.length if self.static else self.end + new
            self.positions = self.start[:, None] + place
            self.start = self.start + (new if self.active is None else new * self.active)
        self.keys = torch.arange(self.end, device=x.device)
        # The mask of the keys up to each new place: none where all are seen, or where the kernel knows it.
        self.mask = None
        if not self.first and (self.start is not None or new > 1):
            self.mask = self.keys <= self.positions[:, None, :, None]

    @property
    def real(self) -> Tensor:
        """Which places are tokens [batch, all]: as far as any place looks, all of them."""
        return torch.ones(self.batch, self.end, dtype=torch.bool, device=self.keys.device)

    def newest(self, x: Tensor) -> Tensor:
        """Of x [batch, all] the new places."""
        return x.gather(1, self.positions.expand(x.size(0), -1))

    def hold(self, *tensors: Tensor) -> None:
        """Keep what the first step has computed."""
        self.kept.append(tensors)

    def held(self) -> Any:
        """What the first step has computed."""
        tensors = self.kept[self.cursor]
        self.cursor += 1
        return tensors if len(tensors) > 1 else tensors[0]

    def keep(self, *tensors: Tensor, axis: int = -2) -> Any:
        """Put the new places behind those before them; all of them so far."""
        if self.first:
            axes = [axis % t.dim() for t in tensors]
            shapes = [(*t.shape[:a], self.length, *t.shape[a + 1 :]) for t, a in zip(tensors, axes)]
            self.kept.append(tuple(t.new_zeros(shape) for t, shape in zip(tensors, shapes)))
        buffers = self.kept[self.cursor]
        self.cursor += 1
        for buffer, new in zip(buffers, tensors):
            if self.first or self.start is None:
                buffer.narrow(axis, self.begun, new.size(axis)).copy_(new)
            else:
                rows = torch.arange(new.size(0), device=new.device)[:, None]
                buffer.movedim(axis, 1)[rows, self.positions] = new.movedim(axis, 1)
        found = tuple(buffer.narrow(axis, 0, self.end) for buffer in buffers)
        return found if len(found) > 1 else found[0]

    def recall(self, *starts: Callable[[], Tensor]) -> Any:
        """What a recurrence handed on; before the first place, what it starts from."""
        if self.first:
            self.kept.append(tuple(make() for make in starts))
        found = self.kept[self.cursor]
        return found if len(found) > 1 else found[0]

    def hand_on(self, *tensors: Tensor) -> None:
        """What the recurrence is to find in the next step."""
        if self.active is not None:
            shapes = [(-1, *[1] * (t.dim() - 1)) for t in tensors]
            before = self.kept[self.cursor]
            tensors = tuple(torch.where(self.active.view(s), t, b) for s, t, b in zip(shapes, tensors, before))
        self.kept[self.cursor] = tensors
        self.cursor += 1

    def last(self, window: int) -> Tensor:
        """The places of the keys that `keep_last` gives [1 or batch, keys]; of one that holds nothing yet, the end."""
        if self.first or self.length <= window:
            return self.keys[None]
        slots, new = torch.arange(window, device=self.keys.device), self.positions.size(1)
        latest = self.positions[:, :1] - int(new > 1)  # of the places that are in the buffer
        places = latest - (latest - slots) % window
        places = torch.where(places < 0, self.length, places)
        return places if new == 1 else torch.cat((places, self.positions), dim=1)

    def keep_last(self, *tensors: Tensor, window: int) -> Any:
        """Put the new places where those stand that no window shows any more; all that one of the new ones may see."""
        if self.length <= window:
            return self.keep(*tensors)
        if self.first:
            self.kept.append(tuple(t.new_zeros(*t.shape[:-2], window, t.size(-1)) for t in tensors))
        buffers = self.kept[self.cursor]
        self.cursor += 1
        new, rows = tensors[0].size(-2), torch.arange(self.batch, device=self.keys.device)[:, None]
        found = tensors if self.first else tuple(torch.cat(pair, dim=-2) for pair in zip(buffers, tensors) if new > 1)
        # The last new places of each row, as many as there is room for.
        lengths = self.lengths[:, None] if self.first and self.lengths is not None else new
        index = (lengths - min(new, window) + torch.arange(min(new, window), device=rows.device)[None]).clamp(min=0)
        slots = (self.positions[:, :1] + index) % window
        for buffer, tensor in zip(buffers, tensors):
            buffer.movedim(-2, 1)[rows, slots] = tensor.movedim(-2, 1)[rows, index]
        return found or buffers
