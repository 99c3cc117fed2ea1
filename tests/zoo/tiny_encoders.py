"""Tiny settings of the encoders, the encoder-decoders and the models with an attention of their own."""

from __future__ import annotations

ENCODER = {"layers": 2, "width": 32, "heads": 4, "vocab": 97, "context": 32}
TWO_STREAMS = {"layers": 2, "width": 32, "heads": 4, "vocab": 97}
T5 = {"layers": 2, "width": 32, "heads": 4, "head_dim": 12, "hidden": 48, "vocab": 97}
SWITCH = {"pairs": 1, "width": 32, "heads": 2, "hidden": 48, "experts": 4, "vocab": 97}
REFORMER = {
    "quarters": 1,
    "width": 32,
    "heads": 2,
    "head_dim": 8,
    "hidden": 48,
    "vocab": 97,
    "local_chunk": 4,
    "chunk": 8,
    "buckets": 4,
    "rounds": 2,
    "rows": 8,
    "columns": 4,
    "row_width": 12,
}
PAIRED = {"pairs": 1, "factor": 6, "rounds": 1} | {
    k: v for k, v in REFORMER.items() if k not in ("quarters", "local_chunk", "rounds")
}
PERFORMER = {"layers": 2, "width": 32, "heads": 4, "hidden": 48, "features": 16, "context": 32}
IMAGE = {"pairs": 1, "width": 32, "heads": 2, "side": 3, "stride": 4, "vocab": 97}

TINY: dict[str, dict[str, int]] = {
    **{f"transformer:transformer_{size}": ENCODER | {"hidden": 48} for size in ("base", "big")},
    **{
        f"bert:bert_{name}": ENCODER
        for head in ("sequence_classifier", "token_classifier", "span_classifier")
        for name in (head, f"large_{head}")
    },
    **{f"bert:bert_{size}": ENCODER for size in ("base", "large")},
    **{f"roberta:roberta_{size}": ENCODER for size in ("base", "large")},
    **{f"albert:albert_{size}": ENCODER | {"embedding_width": 16} for size in ("base", "large", "xlarge", "xxlarge")},
    **{f"xlnet:xlnet_{name}": TWO_STREAMS for name in ("base", "large", "base_encoder", "large_encoder")},
    **{f"t5:t5_{size}": T5 for size in ("small", "base", "large", "3b", "11b")},
    **{f"t5:t5_v1_1_{size}": T5 for size in ("small", "base", "large", "xl", "xxl")},
    **{f"switch:switch_{name}": SWITCH for name in ("base_8", "base_128", "large_128", "xxl")},
    "switch:switch_c": {"layers": 2, **{k: v for k, v in SWITCH.items() if k != "pairs"}},
    **{
        f"linformer:linformer{sharing}": ENCODER | {"rank": 8}
        for sharing in ("", "_key_value", "_headwise", "_unshared")
    },
    "reformer:reformer_enwik8": REFORMER,
    "reformer:reformer_crime_and_punishment": PAIRED,
    "performer:performer": PERFORMER,
    "performer:performer_bidirectional": PERFORMER,
    **{f"bigbird:bigbird_{s}": ENCODER | {"window": 2, "globals": 2, "randoms": 3} for s in ("base", "large")},
    "sparse_transformer:sparse_transformer_cifar10": IMAGE,
    "sparse_transformer:sparse_transformer_imagenet64": IMAGE,
    "sparse_transformer:sparse_transformer_enwik8": ENCODER | {"stride": 4, "summary": 2},
    **{
        f"norms:{name}": ENCODER
        for name in (
            "post_layernorm",
            "pre_layernorm",
            "pre_rmsnorm",
            "sandwich_layernorm",
            "branch_layernorm",
            "post_batchnorm",
            "post_powernorm",
            "post_deepnorm",
        )
    },
}
"""`file:model` and what is set there."""
