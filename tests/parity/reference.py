"""Tiny models of `transformers`, randomly initialised so that every tensor matters: what emitted modules must equal.

Nothing is downloaded: a class is built from a configuration of a few layers of width 32 to 64, and every weight is
drawn from one seeded generator.  Matrices keep the size of what passes through them (`gain / sqrt(fan in)`), embeddings
have spread 0.5, gains of norms 1 ± 0.2, biases 0.2, so that nothing saturates and nothing vanishes; routers are twice
as wide, so that every expert is chosen.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

VOCAB, TIME, SOURCE, BATCH = 97, 24, 19, 2

ROUTER = re.compile(r"(^|\.)(gate|router|classifier)(\.classifier)?\.weight$")
POSITIONS = re.compile(r"position|cls_token|mask_token")


def tiny(
    model: str | Callable[[], type],
    config: str,
    settings: Mapping[str, Any],
    *,
    gain: float = 0.9,
    keep: Sequence[str] = (),
    seed: int = 0,
) -> nn.Module:
    """The model in evaluation mode, float32, with plain attention, no dropout, no cache.

    Tensors that match one of `keep` are not redrawn.
    """
    cfg = getattr(transformers, config)(**settings)
    for key in vars(cfg):
        if ("drop" in key or "jitter" in key) and isinstance(getattr(cfg, key), float):
            setattr(cfg, key, 0.0)
    cfg._attn_implementation = "eager"
    if hasattr(cfg, "use_cache"):
        cfg.use_cache = False
    made = getattr(transformers, model) if isinstance(model, str) else model()
    torch.manual_seed(seed)
    module: nn.Module = made(cfg).float().eval()
    randomise(module, seed, gain, keep)
    if hasattr(module, "tie_weights"):
        module.tie_weights()
    return module


def randomise(module: nn.Module, seed: int, gain: float, keep: Sequence[str] = ()) -> None:
    """Redraw every weight, and every saved buffer that takes part in the result."""
    generator = torch.Generator().manual_seed(seed)
    owners = {id(p): (m, n) for m in module.modules() for n, p in m.named_parameters(recurse=False)}
    saved = set(module.state_dict())
    with torch.no_grad():
        for name, p in module.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if not any(re.search(k, name) for k in keep):
                p.copy_(_drawn(name, p, noise, *owners[id(p)], gain))
        for name, b in module.named_buffers():
            if name in saved and b.is_floating_point() and not any(re.search(k, name) for k in keep):
                noise = torch.rand(b.shape, generator=generator)
                b.copy_(1 + 0.5 * noise if name.endswith("running_var") else 0.3 * (noise - 0.5))


def _drawn(name: str, p: Tensor, noise: Tensor, owner: nn.Module, leaf: str, gain: float) -> Tensor:
    if leaf in ("A_log", "D", "dt_bias", "time_decay", "time_first"):
        return p + 0.1 * noise
    if "norm" in type(owner).__name__.lower() and leaf == "weight":
        # A few norms multiply by 1 + weight, and say so by starting at zero.
        return (1.0 if p.detach().any() else 0.0) + 0.2 * noise
    if isinstance(owner, nn.Embedding) or (POSITIONS.search(name) and p.dim() > 1):
        return 0.5 * noise
    if p.dim() < 2:
        return 0.2 * noise
    if ROUTER.search(name) and "shared" not in name:
        return 2 * noise / math.sqrt(p.shape[-1])
    return gain * noise / math.sqrt(_fan_in(p, owner, leaf))


def _fan_in(p: Tensor, owner: nn.Module, leaf: str) -> int:
    if isinstance(owner, nn.Linear | nn.Conv1d | nn.Conv2d):
        return p[0].numel()
    if type(owner).__name__.startswith("XLNet"):
        return p.shape[1] * p.shape[2] if leaf == "o" else p.shape[0]
    if isinstance(owner, Conv1D):
        return p.shape[0]
    stored_inputs_first = type(owner).__name__ in ("GptOssExperts", "Llama4TextExperts")
    return p.shape[1] if stored_inputs_first else p.shape[-1]


def tokens(generator: torch.Generator, time: int = TIME) -> Tensor:
    """Token ids; 0 to 3 are left out, which several models take for padding, start and end."""
    return torch.randint(4, VOCAB, (BATCH, time), generator=generator)
