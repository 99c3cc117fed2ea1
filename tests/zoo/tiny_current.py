"""Sizes at which the decoders of the zoo since 2023 can be run: `stem:model` to what is set."""

from __future__ import annotations

from zoo.tiny_decoders import VOCAB

_GROUPED = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48, "vocab": VOCAB, "context": 64}
_HEADS = dict(_GROUPED, head_dim=8)
_EXPERTS = dict(_HEADS, experts=6, top_k=2)
_OF_FOUR = {"layers": 4}

_SIZES: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "gemma2": (dict(_HEADS, window=6), ("2b", "9b", "27b")),
    "gemma3": (dict(_HEADS, layers=7, window=6), ("1b", "270m", "4b", "12b", "27b")),
    "gpt_oss": (dict(_EXPERTS, window=6), ("120b", "20b")),
    "granite3": (_GROUPED, ("2b", "8b")),
    "llama3_2": (_GROUPED, ("1b", "3b")),
    "olmo2": (_GROUPED, ("7b", "1b", "13b", "32b")),
    "olmo3": (dict(_GROUPED, window=6) | _OF_FOUR, ("7b", "32b")),
    "pythia": (
        {"layers": 2, "width": 32, "heads": 2, "vocab": VOCAB, "context": 64},
        ("12b", "14m", "70m", "160m", "410m", "1b", "1_4b", "2_8b", "6_9b"),
    ),
    "qwen2_5": (_GROUPED, ("7b", "0_5b", "1_5b", "3b", "14b", "32b", "72b")),
    "qwen3": (_HEADS, ("8b", "0_6b", "1_7b", "4b", "14b", "32b")),
}

TINY: dict[str, dict[str, int]] = {
    **{f"{stem}:{stem}_{size}": settings for stem, (settings, sizes) in _SIZES.items() for size in sizes},
    **{f"qwen3:qwen3_{size}": _EXPERTS for size in ("30b_a3b", "235b_a22b")},
    **{f"glm4_5:{name}": dict(_EXPERTS, dense_layers=1, expert_hidden=16) for name in ("glm4_5", "glm4_5_air")},
    "llama4:llama4_scout": dict(_HEADS, experts=6, chunk=6, growth=4) | _OF_FOUR,
    "llama4:llama4_maverick": dict(_HEADS, dense_hidden=40, experts=6, chunk=6, growth=4) | _OF_FOUR,
    **{
        f"mistral_small:{name}": _HEADS
        for name in ("mistral_small_24b", "mistral_7b_v0_3", "mistral_nemo_12b", "mistral_large_123b")
    },
    "phi4:phi4_14b": _GROUPED,
    **{f"phi4:phi3_{size}": dict(_GROUPED, window=6) for size in ("mini", "medium")},
    **{f"smollm:smollm2_{size}": _GROUPED for size in ("1_7b", "135m", "360m")},
    "smollm:smollm3_3b": _GROUPED | _OF_FOUR,
}
