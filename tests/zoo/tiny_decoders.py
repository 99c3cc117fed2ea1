"""Sizes at which the decoders of the zoo can be run: `stem:model` to what is set."""

from __future__ import annotations

VOCAB = 97

_GPT = {"layers": 2, "width": 32, "heads": 4, "vocab": VOCAB, "context": 64}
_LLAMA = dict(_GPT, hidden=48)
_GROUPED = dict(_LLAMA, kv_heads=2)
_LATENT = {"width": 32, "heads": 4, "q_rank": 20, "kv_rank": 12, "nope_dim": 8, "rope_dim": 4, "v_dim": 8, "hidden": 48}
_V2 = dict(_LATENT, layers=3, experts=8, top_k=3, expert_hidden=16, groups=4, top_groups=2, vocab=VOCAB, context=64)
_V3 = dict(
    _LATENT, dense_layers=1, sparse_layers=2, experts=8, top_k=3, expert_hidden=16, groups=4, top_groups=2, vocab=VOCAB
)
_GATED = {"experts": 6, "top_k": 2, "width": 16, "hidden": 24, "vocab": VOCAB}

_SIZES: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "gpt1": (_GPT, ("gpt1",)),
    "gpt2": (_GPT, ("gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl")),
    "gpt3": (
        dict(_GPT, layers=4, band=5),
        tuple(f"gpt3_{size}" for size in ("small", "medium", "large", "xl", "2_7b", "6_7b", "13b", "175b")),
    ),
    "gptj": (
        {"layers": 2, "width": 32, "heads": 4, "rotary": 4, "vocab": VOCAB, "context": 64},
        ("gptj_6b",),
    ),
    "megatron": (_GPT, ("megatron_355m", "megatron_2_5b", "megatron_8_3b")),
    "turing_nlg": (_GPT, ("turing_nlg_17b",)),
    "llama": (_LLAMA, ("llama_7b", "llama_13b", "llama_33b", "llama_65b")),
    "llama2": (_GROUPED, ("llama2_7b", "llama2_13b", "llama2_70b")),
    "llama3": (_GROUPED, ("llama3", "llama3_8b", "llama3_70b", "llama3_405b", "llama3_3_70b")),
    "deepseek_llm": (_GROUPED, ("deepseek_llm_7b", "deepseek_llm_67b")),
    "deepseek_v2": (_V2, ("deepseek_v2",)),
    "deepseek_v3": (_V3, ("deepseek_v3", "deepseek_v3_mtp")),
    "mistral": (dict(_GROUPED, window=6), ("mistral_7b",)),
    "mixtral": (dict(_GROUPED, experts=5), ("mixtral_8x7b", "mixtral_8x22b")),
    "palm": (dict(_GPT, head_dim=12), ("palm_8b", "palm_62b", "palm_540b")),
    "gopher": (_GPT, tuple(f"gopher_{size}" for size in ("44m", "117m", "417m", "1_4b", "7_1b", "280b"))),
    "chinchilla": (_GPT, ("chinchilla_70b",)),
    "glm_130b": (_LLAMA, ("glm_130b", "glm_100_layers")),
    "deepnet": (_GPT, ("deepnet_1000", "deepnet_200", "deepnet_200_wide", "deepnet_decoder", "deepnet_decoder_100")),
    "alibi": (_GPT, ("alibi_1_3b",)),
    "bloom": (_GPT, tuple(f"bloom_{size}" for size in ("560m", "1_1b", "1_7b", "3b", "7_1b", "176b"))),
    "sparsely_gated_moe": (_GATED, ("moe_32", "moe_256")),
    "mamba": (
        {"layers": 2, "width": 32, "state": 8, "vocab": VOCAB, "context": 64},
        tuple(f"mamba_{size}" for size in ("130m", "370m", "790m", "1_4b", "2_8b")),
    ),
    "rwkv7": (
        {
            "layers": 3,
            "width": 16,
            "head_dim": 8,
            "decay_rank": 3,
            "rate_rank": 4,
            "value_rank": 2,
            "gate_rank": 5,
            "vocab": VOCAB,
        },
        ("rwkv7_0_1b", "rwkv7_0_4b", "rwkv7_1_5b", "rwkv7_2_9b"),
    ),
    "graph_mamba": (
        {"layers": 2, "width": 16, "state": 4, "features": 5, "classes": 3},
        ("graph_mamba",),
    ),
}

TINY: dict[str, dict[str, int]] = {
    **{f"{stem}:{model}": settings for stem, (settings, models) in _SIZES.items() for model in models},
    "deepseek_v2:deepseek_v2_lite": dict(_V2, q_rank=0, groups=1, top_groups=1),
    "glm_130b:glm_130b_prefix": {k: v for k, v in _LLAMA.items() if k != "context"},
    # Where every expert is asked there is no load to balance.
    "sparsely_gated_moe:moe_4": dict(_GATED, experts=4, top_k=4),
    **{f"sparsely_gated_moe:moe_{size}_h": dict(_GATED, experts=12, groups=4, top_k=4) for size in (256, 1024, 4096)},
}
