"""Which kernel `scaled_dot_product_attention` takes on a CUDA device, by the conditions of torch's sources.

They are those of aten/src/ATen/native/transformers/{sdp_utils_cpp.h, cuda/sdp_utils.cpp}, as of torch 2.13."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

HALF = (torch.bfloat16, torch.float16)
MASKED = 8
"""Numbers of 16 bits in a row of 16 bytes, in which kernels read."""


@dataclass(frozen=True)
class Card:
    """A device; `cudnn` of one where cuDNN is asked first, sm90 and sm100."""

    name: str
    cudnn: bool


CARDS = (Card("A100", cudnn=False), Card("H100", cudnn=True))


@dataclass(frozen=True)
class Call:
    """One call, as far as kernels ask: shapes, types and strides."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    dense: bool
    mask: tuple[int, ...] | None
    mask_dtype: torch.dtype | None
    mask_dense: bool
    causal: bool
    shared: bool
    """Whether heads of keys may be fewer than those of queries (`enable_gqa`)."""

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Call:
        return cls(
            tuple(q.shape),
            tuple(k.shape),
            tuple(v.shape),
            (q.dtype, k.dtype, v.dtype),
            all(_dense(t) for t in (q, k, v)),
            None if attn_mask is None else tuple(attn_mask.shape),
            None if attn_mask is None else attn_mask.dtype,
            attn_mask is None or _dense(attn_mask),
            is_causal,
            enable_gqa,
        )


def _dense(x: Tensor) -> bool:
    return x.size(-1) == 1 or x.stride(-1) == 1


class Calls(TorchFunctionMode):
    """Collects the calls that are made within it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[Call] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.found.add(Call.of(*args, **kwargs))
        return func(*args, **kwargs)


def refusals(call: Call, card: Card) -> dict[str, list[str]]:
    """Return why each fused kernel does not take a call; of the one that does there is nothing."""
    return {"flash": _flash(call), "efficient": _efficient(call), **({"cudnn": _cudnn(call)} if card.cudnn else {})}


def fused(call: Call, card: Card) -> bool:
    """Whether a fused kernel takes a call: else torch writes attention out, and stores all scores."""
    return any(not why for why in refusals(call, card).values())


def wrong_mask(call: Call) -> str:
    """Return what is wrong with a mask on CUDA: the memory-efficient kernel raises, cuDNN reads its bytes as another
    type."""
    if call.mask_dtype in (None, torch.bool, call.dtypes[0]):
        return ""
    return f"a mask of {call.mask_dtype} beside queries of {call.dtypes[0]}"


def _all(call: Call) -> list[str]:
    why = []
    if not len(call.q) == len(call.k) == len(call.v) == 4:
        why.append("not four axes")
    elif not call.q[0] == call.k[0] == call.v[0]:
        why.append("batches differ")
    if len({*call.dtypes}) > 1 or call.dtypes[0] not in HALF:
        why.append("types")
    if not (call.dense and call.mask_dense):
        why.append("the last axis is not contiguous")
    return why


def _heads(call: Call, shared: bool) -> list[str]:
    if len(call.q) != 4 or call.q[1] == call.k[1] == call.v[1]:
        return []
    return [] if shared and call.shared and call.q[1] % call.k[1] == 0 else ["heads that share keys"]


def _flash(call: Call) -> list[str]:
    why = _all(call) + _heads(call, shared=True)
    if call.mask is not None:
        why.append("a mask")
    if not call.q[-1] == call.k[-1] == call.v[-1] <= 256:
        why.append("sizes of heads")
    if call.causal and call.q[-2] != call.k[-2]:
        why.append("causal, and lengths differ")
    return why


def _efficient(call: Call) -> list[str]:
    why = _all(call) + _heads(call, shared=False)
    if call.q[-1] != call.k[-1] or call.q[-1] % MASKED or call.v[-1] % MASKED:
        why.append("sizes of heads")
    return why


def _cudnn(call: Call) -> list[str]:
    why = _all(call) + _heads(call, shared=True)
    most = 192 if (call.q[-1], call.v[-1]) == (192, 128) else 128
    if max(call.q[-1], call.v[-1]) > most or call.q[-1] % MASKED or call.v[-1] % MASKED:
        why.append("sizes of heads")
    if call.k[-2] == 1:
        why.append("one key")
    if call.mask is not None and len(call.q) == 4:
        axes = zip(reversed(call.mask), (call.k[-2], call.q[-2], call.q[1], call.q[0]), strict=False)
        if len(call.mask) not in (2, 4) or any(size not in (1, whole) for size, whole in axes):
            why.append("the shape of the mask")
    return why
