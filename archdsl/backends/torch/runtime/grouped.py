"""What every class of experts builds on: rows sorted by expert, and the product of each with its own matrix."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archdsl.backends.torch.runtime.opaque_matmul import opaque_matmul


class Groups(NamedTuple):
    """Rows sorted by expert: where each expert's rows end, and the expert of each row."""

    ends: Tensor
    expert: Tensor


def blockwise_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The same product where sizes may not depend on the rows that each expert gets: they are moved apart into blocks
    of one expert each, three blocks for every expert at most."""
    rows, count = torch.arange(x.size(0), device=x.device), weight.size(0)
    size = -(-x.size(0) // (2 * count))
    starts = F.pad(ends[:-1], (1, 0))
    blocks = (ends - starts + size - 1) // size  # that an expert needs
    last = blocks.cumsum(0)
    expert = torch.searchsorted(ends, rows, right=True)
    place = rows - starts[expert] + (last - blocks)[expert] * size
    apart = x.new_zeros(3 * count * size, x.size(1)).index_copy(0, place, x).unflatten(0, (3 * count, size))
    expert = torch.searchsorted(last, torch.arange(3 * count, device=x.device), right=True).clamp(max=count - 1)
    return (apart @ weight[expert]).flatten(0, 1)[place]


def grouped_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each expert's rows of x times its own matrix."""
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        x, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (x, weight))
    compiling = torch.compiler.is_compiling()
    aligned = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    if hasattr(F, "grouped_mm") and aligned:
        if x.dtype == torch.bfloat16 or not compiling:
            return F.grouped_mm(x, weight, offs=ends)
        if x.device.type == "cpu" and not torch.compiler.is_exporting():  # the kernel is traced in bfloat16 only
            return opaque_matmul(x, weight, ends)
    if compiling:
        return blockwise_matmul(x, weight, ends)
    parts = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight)])


class GroupedLinear(nn.Module):
    """One weight matrix an expert. The rows of x are sorted by expert."""

    def __init__(self, experts: int, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(experts, outputs)) if bias else None
        for weight in self.parameters():
            nn.init.uniform_(weight, -(inputs**-0.5), inputs**-0.5)

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        y = grouped_matmul(x, self.weight.transpose(1, 2), groups.ends)
        return y if self.bias is None else y + self.bias[groups.expert]
