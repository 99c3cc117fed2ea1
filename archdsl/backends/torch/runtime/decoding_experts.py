"""What `decoding` has, for a model with experts. Their product of few rows is an operator registered with torch: all of
it is one helper."""

from typing import Any

import torch
from torch import Tensor, nn

from archdsl.backends.torch.runtime.decoding import DecodingLinear
from archdsl.backends.torch.runtime.decoding_linear import few_rows, packs, plain
from archdsl.backends.torch.runtime.grouped import GroupedLinear


class DecodingGroupedLinear(GroupedLinear):
    """One linear layer per expert, for few rows, without gradients."""

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        if not 0 < x.size(0) <= 64 or x.dtype != torch.float32 or not plain(x, self.weight):
            return super().forward(x, ends)
        return torch.ops.archdsl.few_rows_by_expert(x, self.weight, ends)


def few_rows_by_expert(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply each expert's rows of x by its own matrix [experts, out, in]."""
    rows = [0, *ends.tolist()]
    return torch.cat([few_rows(x[i:j], w) for i, j, w in zip(rows, rows[1:], weight) if i < j])


if not hasattr(torch.ops.archdsl, "few_rows_by_expert"):
    torch.library.define("archdsl::few_rows_by_expert", "(Tensor x, Tensor weight, Tensor ends) -> Tensor")
    torch.library.impl("archdsl::few_rows_by_expert", "CPU", few_rows_by_expert)
    torch.library.register_fake("archdsl::few_rows_by_expert", lambda x, w, ends: x.new_empty(len(x), w.size(1)))


def for_decoding(model: nn.Module) -> Any:
    """Return the model as other modules around the same weights, whose linear layers are for few rows."""
    classes: dict[type, type] = {nn.Linear: DecodingLinear, GroupedLinear: DecodingGroupedLinear}
    twins = {module: object.__new__(type(module)) for module in model.modules()}
    for module, twin in twins.items():  # past what wrappers make of copying and setting
        inner = {name: twins.get(child) for name, child in module._modules.items()}
        twin.__dict__.update(module.__dict__, _modules=inner)
        twin.__class__ = classes.get(type(module), type(module))
    return twins[model]


def prepacked(model: nn.Module, rows: int = 1) -> Any:
    """Return the model for decoding `rows` sequences at a time on a CPU, without gradients. It shares all weights and
    holds packed copies of those of linear layers, in types that the CPU computes in, which later changes of the weights
    do not reach."""
    packed = for_decoding(model)
    for module in packed.modules():
        if isinstance(module, DecodingLinear) and packs(module.weight.dtype):
            module.packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), rows)
    return packed
