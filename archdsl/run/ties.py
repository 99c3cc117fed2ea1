"""Equal values: ONNX takes the one of the lower index, PyTorch any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class LowerIndexFirst(TorchFunctionMode):
    """Within it PyTorch chooses and sorts equal values as ONNX does, the lower index first."""

    def __init__(self) -> None:
        super().__init__()
        self.ties: dict[str, None] = {}
        """The functions that have chosen otherwise by themselves."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result, name = func(*args, **kwargs or {}), getattr(func, "__name__", "")
        if name not in ("topk", "sort", "argsort", "argmax"):
            return result
        names = ("x", "k", "dim") if name == "topk" else ("x", "dim")
        options = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        dim = options.get("dim", -1)
        largest = options.get("descending", False) if name in ("sort", "argsort") else True
        values, indices = options["x"].sort(dim=dim, descending=largest, stable=True)
        if name in ("topk", "argmax"):
            count = options.get("k", 1)
            values, indices = values.narrow(dim, 0, count), indices.narrow(dim, 0, count)
        if name == "argmax" and not options.get("keepdim", False):
            indices = indices.squeeze(dim)
        if not torch.equal(indices, result if isinstance(result, torch.Tensor) else result.indices):
            self.ties[name] = None
        return indices if isinstance(result, torch.Tensor) else type(result)((values, indices))
