"""Which models of transformers `archdsl lift` brings in: tiny ones of every type with a causal head, built from their
default configurations with small numbers, each in a process of its own.

    python benchmarks/lift.py                     # all types: some twenty minutes on two cores
    python benchmarks/lift.py llama gemma2        # these
    python benchmarks/lift.py x                   # features of x-transformers, which is installed by hand
    python benchmarks/lift.py --json results.json # kept as they come; types that are there already are not run again
    python benchmarks/lift.py --json results.json -o benchmarks/lift.json --none   # of these, what the docs say

`-o` writes of every type how far it came, and why no further, into a file that the table in `docs/checkpoints.md` is
made of (`pytest --update-golden tests/docs/test_reference.py`); types that were not run stay in it as they were.

A line of the table says how far each came: exported, lifted, equal (parameters, outputs at other lengths, decode
steps), proved causal; and otherwise why not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SECONDS = 240
"""So long may a type take."""

SMALL: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 96),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "embedding_size", "hidden_size_global", "attention_hidden_size"), 48
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "n_inner",
            "decoder_ffn_dim",
            "encoder_ffn_dim",
            "ffn_hidden_size",
            "d_ff",
            "intermediate_size_mlp",
            "shared_intermediate_size",
            "dim_ff",
        ),
        80,
    ),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "shared_experts_intermediate_size"), 24
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers", "num_blocks"), 4
    ),
    **dict.fromkeys(
        (
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
            "decoder_attention_heads",
            "encoder_attention_heads",
            "attention_heads",
            "linear_num_value_heads",
            "linear_num_heads",
            "swa_num_attention_heads",
        ),
        4,
    ),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads", "swa_num_key_value_heads", "encoder_layers_"), 2),
    **dict.fromkeys(
        ("head_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "swa_head_dim", "kv_channels"),
        12,
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "model_max_length", "max_seq_len", "n_ctx"), 128),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_k"), 2),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rotary_dim", "index_head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "num_kv_shared_layers"), 1),
    **dict.fromkeys(("sliding_window", "window_size", "sliding_window_size", "attention_chunk_size"), 8),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size", "mamba_chunk_size", "chunk_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 12),
    "qk_head_dim": 16,
    "index_n_heads": 2,
    "hidden_size_per_layer_input": 8,
    "image_size": 32,
    "patch_size": 8,
    "num_lstm_layers": 1,
}
"""Numbers of configurations that are replaced, where a configuration has them."""
DERIVED = {"head_dim", "num_key_value_heads", "num_experts_per_tok", "num_local_experts", "n_routed_experts"}
"""Of these, what is also set where the configuration leaves it open."""
SHARED_KEYS = {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}
OWN: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"num_expert_group": 1},
    "blt": {"encoder_hash_byte_group_vocab": 100},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 96},
    "gemma4_text": SHARED_KEYS,
    "gemma4_unified_text": SHARED_KEYS,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"expert_ffn_hidden_size": 24, "zero_expert_num": 2, "num_layers": 2},
    "mamba2": {"head_dim": 12, "num_heads": 8},
    "qwen4_exp_text": {
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "ngram_vocab_size_base": 100,
        "split_ngram_parts": 2,
    },
    "reformer": {"axial_pos_embds": False},
    "stablelm": {"partial_rotary_factor": 0.5},
    "xlm": {"emb_dim": 48},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "attention_hidden_size": 96},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "mamba_headdim": 12,
        "attention_hidden_size": 96,
    },
    "zaya": {"num_experts_per_tok": 1},
}
"""What else a type needs in order to be built small."""


def tiny(config_class: Any) -> Any:
    """A configuration with small numbers, and without tokens that mean something. Lists of layers are made anew."""
    config = config_class()

    def small(settings: dict[str, Any]) -> dict[str, Any]:
        numbers = SMALL | {"num_key_value_heads": 4, "head_dim": 8} if "kv_lora_rank" in settings else SMALL
        found = {}
        for name, value in settings.items():
            if isinstance(value, dict) and value.get("model_type"):
                found[name] = {"model_type": value["model_type"], **small(value)}
            elif name in numbers and (type(value) is int or (value is None and name in DERIVED)):
                found[name] = numbers[name]
            elif name.endswith("_token_id") and isinstance(value, int):
                found[name] = 0
        return found | OWN.get(settings["model_type"], {})

    return config_class(**small(config.to_dict()), use_cache=False)


OTHERS = "x:"
"""What the name of a feature of x-transformers begins with here."""
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"rotary_pos_emb": True},
    "xpos": {"rotary_xpos": True},
    "alibi": {"alibi_pos_bias": True},
    "relative bias": {"rel_pos_bias": True},
    "dynamic bias": {"dynamic_pos_bias": True},
    "rmsnorm": {"use_rmsnorm": True},
    "simple rmsnorm": {"use_simple_rmsnorm": True},
    "scalenorm": {"use_scalenorm": True},
    "glu": {"ff_glu": True},
    "swiglu": {"ff_glu": True, "ff_swish": True},
    "squared relu": {"ff_relu_squared": True},
    "no biases": {"ff_no_bias": True},
    "norm behind the activation": {"ff_post_act_ln": True},
    "one head of keys": {"attn_one_kv_head": True},
    "groups of queries": {"attn_kv_heads": 2},
    "normed queries and keys": {"attn_qk_norm": True},
    "learned scales of these": {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
    "sandwich": {"sandwich_norm": True},
    "gated residual": {"gate_residual": True},
    "scaled residual": {"scale_residual": True},
    "norm behind the branch": {"pre_norm": False},
    "macaron": {"macaron": True},
    "shifted tokens": {"shift_tokens": 1},
    "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "largest scores": {"attn_sparse_topk": 4},
    "gated values": {"attn_gate_values": True},
    "memory of keys": {"attn_num_mem_kv": 4},
    "capped scores": {"attn_softclamp_logits": True},
    "sigmoid": {"attn_sigmoid": True},
    "laser": {"attn_laser": True},
    "attention on attention": {"attn_on_attn": True},
    "scaled heads": {"attn_head_scale": True},
    "a key of zeros": {"attn_add_zero_kv": True},
    "layer scale": {"use_layerscale": True},
    "hyper-connections": {"num_residual_streams": 2},
    "residual scores": {"residual_attn": True},
    "dynamic tanh": {"use_dynamic_tanh": True},
    "shared layers": {"weight_tie_layers": True},
    "sdpa": {"attn_flash": True},
}
"""Features of x-transformers, and what its `Decoder` takes for each."""


def other(feature: str) -> Any:
    """A tiny decoder of x-transformers with a feature."""
    package = importlib.import_module("x_transformers")
    layers = package.Decoder(dim=48, depth=2, heads=4, attn_dim_head=32, **FEATURES[feature])
    return package.TransformerWrapper(num_tokens=96, max_seq_len=128, attn_layers=layers)


def ours(kind: str) -> tuple[Any, Any]:
    """A tiny model of a type of transformers, and its configuration."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    cls = getattr(transformers, names if isinstance(names, str) else names[0])
    config = tiny(cls.config_class or CONFIG_MAPPING[kind])
    if hasattr(config, "is_decoder") and not getattr(config, "is_encoder_decoder", False):
        config.is_decoder = True
    return cls(config), config


def tried(kind: str) -> dict[str, Any]:
    """Lift a tiny model of a type, or with a feature."""
    import torch

    from archdsl.diagnostics import ArchError
    from archdsl.interop.lift.lifting import lift
    from archdsl.interop.lift.module import Subject, prepared

    row: dict[str, Any] = {"type": kind, "stage": "not built"}
    try:
        torch.manual_seed(0)
        module, config = (other(kind.removeprefix(OTHERS)), None) if kind.startswith(OTHERS) else ours(kind)
        module = prepared(module.float())
        with torch.no_grad():
            module(torch.randint(1, 90, (2, 7)))
    except Exception as problem:
        return {**row, "why": f"{type(problem).__name__}: {problem}".splitlines()[0][:160]}
    try:
        name = type(module).__name__
        found = lift(Subject(name, lambda _: module, {}, config, module, name), whole=False)
    except ArchError as problem:
        told = problem.diagnostics[0]
        stages = {"E0540": "not exported", "E0541": "not exported", "E0547": "wrong spec"}
        return {
            **row,
            "stage": stages.get(told.code, "not lifted"),
            "why": told.message[:300],
            "notes": [*told.notes][:3],
        }
    report = found.report
    failed = [c.message for c in report.checks if not c.passed]
    return {
        **row,
        "stage": "differs" if failed else "equal",
        "lines": len(report.text.splitlines()),
        "proved": report.causal,
        "decoded": any(c.what == "decode steps" and c.passed for c in report.checks),
        "difference": max((c.difference for c in report.checks if c.difference is not None), default=None),
        "why": failed[0][:300] if failed else "",
        "remarks": report.remarks,
    }


def run(kind: str) -> dict[str, Any]:
    """`tried` in a process of its own."""
    command = [sys.executable, __file__, "--one", kind]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    except subprocess.TimeoutExpired:
        return {"type": kind, "stage": "too slow", "why": f"more than {SECONDS} s"}
    except (ValueError, IndexError):
        return {
            "type": kind,
            "stage": "failed",
            "why": (done.stderr.strip().splitlines() or ["nothing was said"])[-1][:300],
        }


def line(row: dict[str, Any]) -> str:
    marks = " ".join(word for word in ("proved", "decoded") if row.get(word))
    return f"{row['type']:30} {row['stage']:13} {marks:15} {row.get('lines', ''):>4}  {row.get('why', '')[:90]}"


def keep(path: Path, rows: list[dict[str, Any]], kinds: Iterable[str]) -> None:
    """Write how far each type came, and why no further, over what the file says of them; others are `not tried`."""
    import transformers

    before = json.loads(path.read_text(encoding="utf-8"))["types"] if path.exists() else {}
    new = {row["type"]: {"stage": row["stage"], "why": row.get("why", "")} for row in rows}
    found = {kind: new.get(kind) or before.get(kind) or {"stage": "not tried", "why": ""} for kind in sorted(kinds)}
    text = json.dumps({"transformers": transformers.__version__, "types": found}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--none", action="store_true", help="run no type that is not there already")
    parser.add_argument("--one")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(tried(asked.one)))
        return
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    rows = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else []
    known = {row["type"] for row in rows}
    wanted = [] if asked.none else [*asked.types] or [*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    if wanted == ["x"]:
        wanted = [OTHERS + feature for feature in FEATURES]
    todo = [kind for kind in wanted if kind not in known]
    with ThreadPoolExecutor(asked.jobs) as pool:
        for row in pool.map(run, todo):
            rows.append(row)
            print(line(row), flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(rows, indent=1))
    if asked.output:
        keep(asked.output, rows, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    stages = [row["stage"] for row in rows]
    print(f"{len(rows)} types: " + ", ".join(f"{stages.count(s)} {s}" for s in dict.fromkeys(stages)))
    print(
        f"{sum(bool(r.get('proved')) for r in rows)} proved causal, {sum(bool(r.get('decoded')) for r in rows)} decoded"
    )


if __name__ == "__main__":
    main()
