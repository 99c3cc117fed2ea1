"""Linear layers that multiply in float8, in training."""

from typing import Any

import torch
from torch import Tensor, nn


def float8_product(a: Tensor, b: Tensor, a_type: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Compute a [m, k] @ b [k, n] in float8, each scaled so that its largest number is that of its type; m is free, k
    and n are multiples of 16."""
    scaled, scales = [], []
    for x, dtype in ((a, a_type), (b, torch.float8_e4m3fn)):
        scales.append(x.abs().amax().float().clamp(min=1e-12) / torch.finfo(dtype).max)
        scaled.append((x.float() / scales[-1]).to(dtype))
    rows, columns = scaled[0].contiguous(), scaled[1].t().contiguous().t()  # the orders that the kernels take
    return torch._scaled_mm(rows, columns, scales[0], scales[1], out_dtype=a.dtype)  # F.scaled_mm breaks graphs of 2.11


class Float8Product(torch.autograd.Function):
    """x [rows, in] @ weight [out, in].T in float8; gradients, of wider range, are e5m2 (Micikevicius et al., 2022)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return float8_product(x, weight.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        of_x = float8_product(grad, weight, torch.float8_e5m2)
        return of_x, float8_product(grad.t(), x, torch.float8_e5m2)


class Float8Linear(nn.Linear):
    """A linear layer that multiplies in float8; what comes in and goes out, and the weight, are as in `nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        rows, weight = x.reshape(-1, x.size(-1)), self.weight
        if rows.size(0) % 16:  # which the weight's gradient sums over
            return super().forward(x)
        if torch.is_autocast_enabled(x.device.type):
            rows, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (rows, weight))
        y = Float8Product.apply(rows, weight).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


def use_float8(module: nn.Module) -> None:
    """Let the linear layers of a module multiply in float8, those whose sizes are multiples of 16. Give it what bears
    few bits, `model.blocks` rather than the model with its head."""
    for layer in module.modules():
        if type(layer) is nn.Linear and layer.in_features % 16 == layer.out_features % 16 == 0:
            layer.__class__ = Float8Linear
