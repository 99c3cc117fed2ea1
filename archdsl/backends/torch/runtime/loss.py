"""Cross-entropy that never holds the logits of all positions."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def chunked_cross_entropy(head: Callable[[Tensor], Tensor], x: Tensor, targets: Tensor, chunk: int = 1024) -> Tensor:
    """Compute the mean cross-entropy of head(x) [batch, time, vocab] with targets [batch, time] (-100: ignored), whose
    logits exist for one chunk of tokens at a time; the backward pass computes them again."""

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(head(x[None])[0].float(), targets, reduction="sum")

    chunks = zip(x.flatten(0, 1).split(chunk), targets.flatten().split(chunk))
    losses = [checkpoint(loss, *pair, use_reentrant=False) for pair in chunks]
    return torch.stack(losses).sum() / (targets != -100).sum()
