"""Sizes at which the decoders with linear attention, and what came of it, can be run: `stem:model` to what is set."""

from __future__ import annotations

from zoo.tiny_decoders import VOCAB

_SMALL = {"layers": 3, "width": 24, "hidden": 32, "vocab": VOCAB, "context": 256}
_HEADS = dict(_SMALL, heads=2)
_KIMI = {"layers": 5, "width": 32, "hidden": 48, "head_dim": 8, "kv_rank": 12, "nope_dim": 8, "rope_dim": 4, "v_dim": 8}
_LEVELS = {"layers": 2, "width": 24, "hidden": 32, "heads": 2, "head_dim": 8, "state": 6, "levels": 9, "vocab": VOCAB}
_TURNING = {"layers": 2, "width": 24, "hidden": 32, "heads": 2, "head_dim": 8, "state": 10, "angles": 3, "vocab": VOCAB}
_FINCH = {"width": 24, "head_dim": 8, "mix_rank": 3, "decay_rank": 5, "layers": 2, "vocab": VOCAB, "context": 256}

_SIZES: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "kimi_linear": (_HEADS | _KIMI | {"experts": 8, "top_k": 3, "expert_hidden": 16}, ("kimi_linear_48b",)),
    "gated_deltanet": (dict(_HEADS, head_dim=8, layers=2), ("gated_deltanet_1_3b",)),
    "gla": (dict(_HEADS, rank=4, layers=2, width=32), ("gla_1_3b", "gla_340m")),
    "hgrn2": ({k: v for k, v in _HEADS.items() if k != "context"}, ("hgrn2_1_3b",)),
    "delta_product": (_HEADS, ("delta_product_2", "delta_product_3", "gated_delta_product_2", "delta_net_340m")),
    "comba": (dict(_HEADS, head_dim=6, layers=2), ("comba_1_3b",)),
    "path_attention": (dict(_HEADS, rank=4), ("path_760m",)),
    "forgetting_transformer": (
        _HEADS,
        tuple(f"fox_{kind}_{size}" for kind in ("pro", "llama") for size in ("760m", "360m", "125m")),
    ),
    "log_linear_attention": (_LEVELS, ("log_linear_mamba2",)),
    "mamba3": (dict(_TURNING, context=256), ("mamba3_1_5b",)),
    "rwkv6": (_FINCH, tuple(f"rwkv6_{size}" for size in ("1_6b", "3b", "7b", "14b"))),
}

TINY: dict[str, dict[str, int]] = {
    f"{stem}:{model}": settings for stem, (settings, models) in _SIZES.items() for model in models
}
