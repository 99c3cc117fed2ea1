"""What the cross-entropy of a training step holds in memory, by the kernel that computes it.

Of n logits in a type of e bytes a number, backwards the most:

- `eager`: `F.cross_entropy(logits.float())`, op by op: 12 n bytes, the log-softmax that is kept, its gradient, and
  theirs in float32. Forwards (e + 8) n: the logits, their copy in float32, the log-softmax. Over shards of a vocabulary
  (`loss_parallel` of PyTorch) both are 4 n more.
- `fused`: one kernel, as compilers and libraries have it: 2 e n bytes, the logits and their gradient, and a number in
  float32 for each position.
- `chunked`: `chunked_cross_entropy` of `archdsl compile --with loss`: `eager` for `CHUNK` positions at a time, whose
  logits are computed again backwards. Beside it are the gradients of all hidden states, and those of the head's weights
  once more where there are several chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from archdsl.diagnostics import ArchError
from archdsl.estimates.head import head_of
from archdsl.estimates.kernels import Sized
from archdsl.frozen import Frozen
from archdsl.ir.graph import Model, Value

Loss = Literal["chunked", "fused", "eager"]

CHUNK = 1024
"""How many positions `chunked_cross_entropy` takes at a time."""


def default_loss(model: Model) -> Loss:
    """Return how emitted code and `examples/train.py` compute the loss of a model: in chunks where that can be."""
    try:
        head_of(model)
    except ArchError:
        return "eager"
    return "chunked"


class LossMemory(Frozen):
    """Bytes that a loss adds at its peak, the logits included."""

    forward: float
    """Bytes beyond what is alive when the forward pass ends."""
    backward: float
    """Bytes beyond what the forward pass keeps for the backward pass."""


def of_logits(sized: Sized, outputs: Sequence[Value], loss: Loss) -> LossMemory:
    """Return the memory of a loss over whole outputs; several outputs are differentiated one at a time."""
    forward = kept = most = 0.0
    for value in outputs:
        numbers = sized.elements(value) / sized.cut.share(value)
        size = sized.bytes(value)
        if loss == "fused":
            rows = 4 * numbers * sized.cut.vocabulary(value) / max(1, int(value.shape[-1]) if value.rank else 1)
            kept, most = kept + size + rows, max(most, size)
            forward += rows
        else:
            parts = 4 * numbers * (sized.cut.vocabulary(value) > 1)
            forward += parts + 4 * numbers * (2 if sized.width(value) < 4 else 1)
            kept, most = kept + 4 * numbers, max(most, 8 * numbers + parts)
    return LossMemory(forward, kept + most)
