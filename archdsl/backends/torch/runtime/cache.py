"""What steps of decoding hand on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Cache:
    """KV cache and recurrent states. `lengths` [batch]: of ragged prompts; `static`: tensors keep size and address."""

    active: Tensor | None = None  # which rows of recurrent states a step changes [batch]; None: all

    def __init__(self, capacity: int, lengths: Tensor | None = None, static: bool = False) -> None:
        self.capacity, self.lengths, self.static = capacity, lengths, static
        self.entries: list[list[Tensor]] = []
        self.end = 0  # positions so far
        self.start: Any = None  # the next position of each row [1 or batch, 1]

    def begin(self, x: Tensor) -> None:
        """Begin a step for x [batch, new, …]."""
        self.first, self.kept = self.start is None, iter(self.entries)  # each layer takes the next
        self.positions = (0 if self.first else self.start) + torch.arange(x.size(1), device=x.device)[None]
        after = self.positions[:, -1:] + 1 if self.lengths is None else self.lengths[:, None].clone()
        self.start = after if self.first else self.start.add_(x.size(1))
        self.end = self.capacity if self.static and not self.first else self.end + x.size(1)
        self.keys = torch.arange(self.end, device=x.device)
        self.rows = torch.arange(x.size(0), device=x.device)[:, None]
        later = not self.first and (self.static or self.positions.numel() > 1)  # some keys are later than a position
        self.mask = torch.arange(self.end, device=x.device) <= self.positions[:, None, :, None] if later else None

    def lead(self, count: int) -> None:
        """Put `count` positions in front of the tokens; the first step computes them, too."""
        self.front = count
        if self.first:
            self.capacity, self.start, self.end = self.capacity + count, self.start + count, self.end + count
            self.keys = torch.arange(self.end, device=self.rows.device)
            self.positions = self.keys[None]

    @property
    def behind(self) -> Tensor:
        """Return the positions of the new tokens [1 or batch, new], counted from the first one."""
        return (self.positions[:, self.front :] if self.first else self.positions) - self.front

    @property
    def real(self) -> Tensor:
        """Return which positions are tokens [batch, all]: all that any position attends to."""
        return torch.ones(len(self.rows), self.end, dtype=torch.bool, device=self.rows.device)

    def newest(self, x: Tensor, axis: int = 1) -> Tensor:
        """Return the new positions of x [batch, …, all, …]."""
        return x.movedim(axis, 1)[self.rows, self.positions].movedim(1, axis)

    def by_row(self, x: Tensor, axis: int = 0) -> Tensor:
        """Cut an axis of the new positions of all rows: [1 or batch, …, new, …]."""
        return x.unflatten(axis, self.positions.shape).movedim(axis, 0)

    def store(self, *tensors: Tensor) -> None:
        """Keep tensors that the first step has computed."""
        self.entries.append([*tensors])
        next(self.kept)

    def stored(self) -> list[Tensor]:
        """Return the next tensors that the first step has kept."""
        return next(self.kept)

    def update(self, *tensors: Tensor, axis: int = -2) -> list[Tensor]:
        """Append the new positions; return all so far."""
        if self.first:
            self.entries.append([t.new_zeros(*t.shape[:axis], self.capacity, *t.shape[axis:][1:]) for t in tensors])
        buffers = next(self.kept)
        for buffer, new in zip(buffers, tensors):
            buffer.movedim(axis, 1)[self.rows, self.positions] = new.movedim(axis, 1)
        return [buffer.narrow(axis, 0, self.end) for buffer in buffers]

    def state(self, *starts: Callable[[], Tensor]) -> list[Tensor]:
        """Return the state of a recurrence; in the first step, its initial state."""
        if self.first:
            self.entries.append([make() for make in starts])
        self.last_state = next(self.kept)
        return [t.clone() if self.static else t for t in self.last_state]  # `set_state` writes over them

    def set_state(self, *tensors: Tensor) -> None:
        """Keep the state of a recurrence for the next step."""
        if self.active is not None:
            pairs = zip(tensors, self.last_state)
            tensors = tuple(torch.where(self.active.view(-1, *[1] * (t.dim() - 1)), t, b) for t, b in pairs)
        if self.static and not self.first:
            for state, tensor in zip(self.last_state, tensors):
                state.copy_(tensor)
        else:
            self.last_state[:] = [t.clone() for t in tensors] if self.first else tensors  # views hold all of a prompt

    def last(self, window: int) -> Tensor:
        """Return the positions of the keys that `update_window` gives [1 or batch, keys]; of an empty slot, the end."""
        if self.first:
            return self.keys[None]
        several = self.positions.size(1) > 1
        latest = self.positions[:, :1] - int(several)  # of the positions in the ring
        positions = latest - (latest - self.keys[:window]) % window
        positions = torch.where(positions < 0, self.capacity, positions)
        return torch.cat((positions, self.positions), dim=1) if several else positions

    def update_window(self, *tensors: Tensor, window: int) -> list[Tensor]:
        """Write the new positions into the ring of the last `window`; return all that the new ones may attend to."""
        if self.first:
            size = min(window, self.capacity) + 1  # the last slot takes what is not kept
            self.entries.append([t.new_zeros(*t.shape[:-2], size, t.size(-1)) for t in tensors])
        buffers = next(self.kept)
        found = [buffer[..., : min(window, self.end), :] for buffer in buffers]
        if self.first or self.positions.size(1) > 1:  # before the ring is written to
            found = [*tensors] if self.first else [torch.cat(pair, dim=-2) for pair in zip(found, tensors)]
        kept = (self.positions < self.start) & (self.positions >= self.start - window)
        slots = torch.where(kept, self.positions % window, -1)
        for buffer, new in zip(buffers, tensors):
            buffer.movedim(-2, 1)[self.rows, slots] = new.movedim(-2, 1)
        return found
