"""The grouped product as an operator of its own, registered with torch: one helper."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def opaque_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The grouped product, into which no compiler looks: x [rows, in] by weight [experts, in, out]; or x [in, rows] by
    weight [rows, out], which gives [experts, in, out]."""
    return torch.ops.archdsl.opaque_matmul(x, weight, ends)


def opaque_shape(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    experts = ends.shape if weight.dim() == 2 else ()
    return x.new_empty(*experts, x.size(0), weight.size(-1))


def opaque_gradients(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight, ends = context.saved_tensors
    gradient = gradient.contiguous()
    return opaque_matmul(gradient, weight.transpose(1, 2), ends), opaque_matmul(x.t(), gradient, ends), None


if not hasattr(torch.ops.archdsl, "opaque_matmul"):  # once for all files of a process
    torch.library.define("archdsl::opaque_matmul", "(Tensor x, Tensor weight, Tensor ends) -> Tensor")
    torch.library.impl("archdsl::opaque_matmul", "CPU", lambda x, weight, ends: F.grouped_mm(x, weight, offs=ends))
    torch.library.register_fake("archdsl::opaque_matmul", opaque_shape)
    torch.library.register_autograd(
        "archdsl::opaque_matmul",
        opaque_gradients,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
