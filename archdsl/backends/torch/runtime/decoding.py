"""A model as other modules around the same weights, whose linear layers are for few rows."""

from typing import Any

import torch
from torch import Tensor, nn

from archdsl.backends.torch.runtime.decoding_linear import linear, packs


class DecodingLinear(nn.Linear):
    """A linear layer for few rows, without gradients."""

    packed: Tensor | None = None  # the weight in the order in which oneDNN reads it fastest

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is None:
            return linear(x, self.weight, self.bias)
        return torch.ops.archdsl.few_rows(x, self.packed, self.bias)


def for_decoding(model: nn.Module) -> Any:
    """Return the model as other modules around the same weights, whose linear layers are for few rows."""
    classes: dict[type, type] = {nn.Linear: DecodingLinear}
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
