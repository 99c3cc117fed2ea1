"""Which kernel `scaled_dot_product_attention` takes on a CUDA device: what is called, asked by the conditions that
estimates know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from archdsl.estimates import attention_kernels
from archdsl.estimates.attention_kernels import AttentionCall, Capability


@dataclass(frozen=True)
class Card:
    """A device."""

    name: str
    sm: Capability


CARDS = (Card("A100", (8, 0)), Card("H100", (9, 0)))


class Call(AttentionCall):
    """One call of tensors."""

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
            tuple(_name(t.dtype) for t in (q, k, v)),
            all(_dense(t) for t in (q, k, v)),
            None if attn_mask is None else tuple(attn_mask.shape),
            None if attn_mask is None else _name(attn_mask.dtype),
            attn_mask is None or _dense(attn_mask),
            is_causal,
            enable_gqa,
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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


def refusals(call: AttentionCall, card: Card) -> dict[str, list[str]]:
    """Return why each fused kernel does not take a call; of the one that does there is nothing."""
    return attention_kernels.refusals(call, card.sm)


def fused(call: AttentionCall, card: Card) -> bool:
    """Whether a fused kernel takes a call: else torch writes attention out, and stores all scores."""
    return attention_kernels.fused(call, card.sm)


def wrong_mask(call: Call) -> str:
    """Return what is wrong with a mask on CUDA: the memory-efficient kernel raises, cuDNN reads its bytes as another
    type."""
    if call.mask_dtype in (None, "bool", call.dtypes[0]):
        return ""
    return f"a mask of {call.mask_dtype} beside queries of {call.dtypes[0]}"
