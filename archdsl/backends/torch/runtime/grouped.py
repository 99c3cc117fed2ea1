"""What every class of experts builds on: rows sorted by expert, and the product of each with its own matrix."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply x [rows, in], sorted by expert, by weight [experts, in, out]; `ends` [experts] is where rows end."""
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        x, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (x, weight))
    kinds = (torch.bfloat16,) if torch.compiler.is_compiling() else (torch.bfloat16, torch.float16, torch.float32)
    aligned = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    if hasattr(F, "grouped_mm") and aligned and x.dtype in kinds:  # torch >= 2.10
        return F.grouped_mm(x, weight, offs=ends)
    rows = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ matrix for part, matrix in zip(rows, weight)])


def expert_of_rows(ends: Tensor, count: int) -> Tensor:
    """Return the expert of each of `count` rows, which are sorted by expert."""
    return torch.searchsorted(ends, torch.arange(count, device=ends.device), right=True)


class GroupedLinear(nn.Module):
    """One linear layer per expert, for rows sorted by expert."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))

    def reset_parameters(self) -> None:
        bound = self.weight.size(2) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return grouped_mm(x, self.weight.transpose(1, 2), ends)


class GroupedAffine(nn.Module):
    """One linear layer with a bias per expert, for rows sorted by expert."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(experts, outputs))

    def reset_parameters(self) -> None:
        bound = self.weight.size(2) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return grouped_mm(x, self.weight.transpose(1, 2), ends) + self.bias[expert_of_rows(ends, x.size(0))]
