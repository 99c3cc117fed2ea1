"""Cross-entropy that never holds the logits of all positions."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class ChunkedLoss(torch.autograd.Function):
    """Sum a loss over chunks of rows. Gradients are computed along with it, so that no more than one chunk's logits are
    ever stored, and none are computed twice."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: Callable[[Tensor, Tensor], Tensor],
        hidden: Tensor,
        targets: Tensor,
        rows: int,
        *weights: Tensor,
    ) -> Tensor:
        sums, parts = [], []
        totals = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
        for x, target in zip(hidden.split(rows), targets.split(rows)):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                value = loss(x, target)
            part, *gradients = torch.autograd.grad(value, (x, *weights))
            sums.append(value.detach())
            parts.append(part)
            for total, gradient in zip(totals, gradients):
                total += gradient
        ctx.save_for_backward(torch.cat(parts), *totals)
        return torch.stack(sums).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *weights = ctx.saved_tensors
        return None, grad * hidden, None, None, *(grad * weight for weight in weights)


def cross_entropy(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, *weights: Tensor, rows: int = 512
) -> Tensor:
    """Compute the mean cross-entropy of `logits(hidden)` [batch, time, vocab] with targets [batch, time], -100 being
    ignored, for `rows` positions at a time. `weights` are the parameters that the logits are computed with."""

    def total(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits(x[None])[0].float(), target, reduction="sum")

    hidden, targets = hidden.flatten(0, 1), targets.flatten()
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        found = ChunkedLoss.apply(total, hidden, targets, rows, *(w for w in weights if w.requires_grad))
    else:  # no compiled forward computes gradients: the backward makes each chunk's logits again
        chunks = zip(hidden.split(rows), targets.split(rows))
        found = sum(checkpoint(total, x, target, use_reentrant=False) for x, target in chunks)
    return found / (targets != -100).sum()
