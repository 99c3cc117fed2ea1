"""What steps of decoding hand on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Cache:
    """The KV cache, the states of recurrences, and tensors computed once; decode steps visit them in one order."""

    lengths: Tensor | None = None  # of the rows in the first step, where they differ
    active: Tensor | None = None  # rows whose recurrences go on, where others stay as they are

    def __init__(self, capacity: int, static: bool = False) -> None:
        self.capacity = capacity  # in positions
        self.static = static  # whether tensors keep sizes and addresses from step to step, as a compiled step wants it
        self.entries: list[tuple[Tensor, ...]] = []
        self.end = 0  # positions so far
        self.start: Tensor | None = None  # the next position of each row, where they differ

    def begin(self, x: Tensor) -> None:
        """Begin a step for x [batch, new, …]."""
        self.first, self.cursor, self.batch, new = not self.entries, 0, x.size(0), x.size(1)
        positions = torch.arange(new, device=x.device)
        if self.start is None:
            self.past, self.end = self.end, self.end + new
            self.positions = self.past + positions[None]
            if self.static:
                self.start = torch.full((1,), new, device=x.device)
        else:
            self.end = self.capacity if self.static else self.end + new
            self.positions = self.start[:, None] + positions
            self.start += new
        self.keys = torch.arange(self.end, device=x.device)
        # The causal mask of the new positions: none where all keys are attended to, or where the kernel knows it.
        self.mask, self.causal = None, self.first and new > 1
        if not self.first and (self.start is not None or new > 1):
            self.mask = self.keys <= self.positions[:, None, :, None]

    @property
    def real(self) -> Tensor:
        """Return which positions are tokens [batch, all]: all that any position attends to."""
        return torch.ones(self.batch, self.end, dtype=torch.bool, device=self.keys.device)

    def newest(self, x: Tensor) -> Tensor:
        """Return the new positions of x [batch, all]."""
        return x.gather(1, self.positions.expand(x.size(0), -1))

    def store(self, *tensors: Tensor) -> None:
        """Keep tensors that the first step has computed."""
        self.entries.append(tensors)

    def stored(self) -> Any:
        """Return the next tensors that the first step has computed."""
        tensors = self.entries[self.cursor]
        self.cursor += 1
        return tensors if len(tensors) > 1 else tensors[0]

    def update(self, *tensors: Tensor, axis: int = -2) -> Any:
        """Append the new positions; return all so far."""
        if self.first:
            axes = [axis % t.dim() for t in tensors]
            shapes = [(*t.shape[:a], self.capacity, *t.shape[a + 1 :]) for t, a in zip(tensors, axes)]
            self.entries.append(tuple(t.new_zeros(shape) for t, shape in zip(tensors, shapes)))
        buffers = self.entries[self.cursor]
        self.cursor += 1
        for buffer, new in zip(buffers, tensors):
            if self.first or self.start is None:
                buffer.narrow(axis, self.past, new.size(axis)).copy_(new)
            else:
                rows = torch.arange(new.size(0), device=new.device)[:, None]
                buffer.movedim(axis, 1)[rows, self.positions] = new.movedim(axis, 1)
        found = tuple(buffer.narrow(axis, 0, self.end) for buffer in buffers)
        return found if len(found) > 1 else found[0]

    def state(self, *starts: Callable[[], Tensor]) -> Any:
        """Return the state of a recurrence; in the first step, its initial state."""
        if self.first:
            self.entries.append(tuple(make() for make in starts))
        found = self.entries[self.cursor]
        return found if len(found) > 1 else found[0]

    def set_state(self, *tensors: Tensor) -> None:
        """Keep the state of a recurrence for the next step."""
        if self.active is not None:
            shapes = [(-1, *[1] * (t.dim() - 1)) for t in tensors]
            before = self.entries[self.cursor]
            tensors = tuple(torch.where(self.active.view(s), t, b) for s, t, b in zip(shapes, tensors, before))
        if self.static and not self.first:
            for state, tensor in zip(self.entries[self.cursor], tensors):
                state.copy_(tensor)
        else:
            self.entries[self.cursor] = tuple(t.clone() for t in tensors) if self.static else tensors
        self.cursor += 1

    def last(self, window: int) -> Tensor:
        """Return the positions of the keys that `update_window` gives [1 or batch, keys]; of an empty slot, the end."""
        if self.first or self.capacity <= window:
            return self.keys[None]
        slots, new = torch.arange(window, device=self.keys.device), self.positions.size(1)
        latest = self.positions[:, :1] - int(new > 1)  # of the positions in the buffer
        positions = latest - (latest - slots) % window
        positions = torch.where(positions < 0, self.capacity, positions)
        return positions if new == 1 else torch.cat((positions, self.positions), dim=1)

    def update_window(self, *tensors: Tensor, window: int) -> Any:
        """Write the new positions into the ring of the last `window`; return all that the new ones may attend to."""
        if self.capacity <= window:
            return self.update(*tensors)
        if self.first:
            self.entries.append(tuple(t.new_zeros(*t.shape[:-2], window, t.size(-1)) for t in tensors))
        buffers = self.entries[self.cursor]
        self.cursor += 1
        new, rows = tensors[0].size(-2), torch.arange(self.batch, device=self.keys.device)[:, None]
        found = tensors if self.first else tuple(torch.cat(pair, dim=-2) for pair in zip(buffers, tensors) if new > 1)
        # The last new positions of each row, as many as fit.
        lengths = self.lengths[:, None] if self.first and self.lengths is not None else new
        index = (lengths - min(new, window) + torch.arange(min(new, window), device=rows.device)[None]).clamp(min=0)
        slots = (self.positions[:, :1] + index) % window
        for buffer, tensor in zip(buffers, tensors):
            buffer.movedim(-2, 1)[rows, slots] = tensor.movedim(-2, 1)[rows, index]
        return found or buffers
