"""FLOPs as torch counts them: an emitted module run under `FlopCounterMode`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from archdsl import api
from archdsl.estimates.cost import Total, work_of
from archdsl.ir.cost import whole_at
from archdsl.ir.dims import Poly, evaluate, mul
from archdsl.ir.graph import Model

aten = torch.ops.aten


def _grouped(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Rows by the matrix of their group; or, for the gradient of the matrices, columns by rows of the same group."""
    return 2 * a[0] * a[1] * b[-1]


def _convolution_backward(
    grad: Any,
    x: Any,
    w: Any,
    _b: Any,
    _s: Any,
    _p: Any,
    _d: Any,
    transposed: bool,
    _o: Any,
    _g: Any,
    mask: Any,
    **_: Any,
) -> int:
    """As much as the convolution for each gradient. Torch's own formula multiplies that of a grouped weight with the
    number of groups."""
    return conv_flop_count(x, w, grad, transposed=transposed) * (bool(mask[0]) + bool(mask[1]))


def _vector(a: Any, *_: Any, **__: Any) -> int:
    return 2 * prod(a)


def _triangular(a: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    """As the product with the whole matrix."""
    return 2 * prod(out_shape) * a[-1]


# What torch omits, or counts wrong.
FORMULAS = {
    aten.linalg_solve_triangular: _triangular,
    **({aten._grouped_mm: _grouped} if hasattr(aten, "_grouped_mm") else {}),
    aten.convolution_backward: _convolution_backward,
    aten.mv: _vector,
    aten.dot: _vector,
}


def sizes_of(model: Model, batch: int = 2, time: int = 16) -> dict[str, int]:
    """Sizes at which a model can be run."""
    context = model.context.value if model.context is not None else None
    length = min(time, context) if isinstance(context, int) else time
    return {s.name: batch if s.name == "batch" else length for s in model.symbols}


def counted(model: Model, sizes: Mapping[str, int], device: str = "meta", below: int = 1) -> tuple[int, int]:
    """What torch counts: forward in evaluation, and forward and backward in training, losses included. Whole numbers
    are as many of each from 0 to `below`: what they choose is chosen evenly, as the prediction takes it to be."""
    dtype = torch.bfloat16 if device == "meta" else torch.float32
    with torch.device(device):
        module = api.to_torch(model).to(dtype)
    inputs = {name: _input(v, sizes, device, dtype, below) for name, v in model.inputs}
    with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
        return _forward(module.eval(), inputs), _step(module.train(), inputs)


def _input(value: Any, sizes: Mapping[str, int], device: str, dtype: torch.dtype, below: int) -> Tensor:
    shape = [int(evaluate(d.value, sizes)) if isinstance(d.value, Poly) else int(d.value) for d in value.shape]
    if value.is_int:
        return (torch.arange(prod(shape), device=device) % below).view(shape)
    if value.is_bool:
        return torch.ones(shape, dtype=torch.bool, device=device)
    return torch.randn(shape, dtype=dtype if value.dtype == "float" else getattr(torch, value.dtype), device=device)


def _forward(module: nn.Module, inputs: dict[str, Tensor]) -> int:
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        module(*inputs.values())
    return counter.get_total_flops()


def _step(module: nn.Module, inputs: dict[str, Tensor]) -> int:
    losses: dict[str, Tensor] = {}
    more = [losses] if len(inspect.signature(module.forward).parameters) > len(inputs) else []
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        results = [*_flat(module(*inputs.values(), *more)), *losses.values()]
        wanted = [t.float().sum() for t in results if t.is_floating_point() and t.requires_grad]
        if wanted:
            torch.stack(wanted).sum().backward()
    return counter.get_total_flops()


def _flat(results: Any) -> Iterator[Tensor]:
    if isinstance(results, Tensor):
        yield results
    elif isinstance(results, Mapping):
        yield from _flat(tuple(results.values()))
    else:
        for item in results:
            yield from _flat(item)


def dense(total: Total, sizes: Mapping[str, int]) -> int:
    """A sum with every pair of a query and a key."""
    return sum(
        whole_at(flops if pairs is None else mul(flops, pairs.all), dict(sizes)) for pairs, flops in total.amounts
    )


def predicted(model: Model, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The same from the IR."""
    step = work_of(model, training=True).total
    forward = dense(work_of(model, training=False).total.forward, sizes)
    return forward, dense(step.forward, sizes) + dense(step.backward, sizes)
