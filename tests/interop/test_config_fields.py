"""What an import passes over changes nothing that transformers computes (`config_fields.py` compares and keeps it)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from interop.cases import CASES
from interop.config_fields import DATA, Subject, changed

from archdsl.diagnostics import ArchError
from archdsl.interop.checkpoint_file import shipped

COMPARED: dict[str, dict[str, dict[str, list[Any]]]] = json.loads(DATA.read_text())
IN_PIECES = {"chunk_size", "mamba_chunk_size", "chunk_size_feed_forward", "use_cache"}
"""Fields that compute the same numbers in other pieces or by other kernels, which round otherwise."""


def test_every_field_on_an_ignore_list_changes_no_bit() -> None:
    for kind, mapping in shipped().items():
        for name in mapping.ignored if not kind.startswith("gguf_") else ():
            if (kind, name) == ("beit", "add_fpn") or kind not in COMPARED:
                continue  # a model of three layers, below; a type that is another's alias
            row = COMPARED[kind][name]
            tried = [*row["same"], *(row["rounding"] if name in IN_PIECES else ())]
            assert tried, (kind, name)
            assert not row["changed"], (kind, name)
            assert name in IN_PIECES or not row["rounding"], (kind, name)


def test_no_other_field_that_is_passed_over_changes_anything() -> None:
    wrong = [(kind, name) for kind, rows in COMPARED.items() for name, row in rows.items() if row["changed"]]
    assert not wrong


@pytest.mark.slow
def test_pyramids_of_beit_are_of_other_classes() -> None:
    case = CASES["beit"]
    subject = Subject(replace(case, more={**case.more, "num_hidden_layers": 3}), full=False)
    config = subject.config | {"add_fpn": True, "out_indices": [0, 1, 2, 3]}
    assert subject.passed_over(config)
    assert subject.effect(config) == "same"


@pytest.mark.slow
@pytest.mark.parametrize("on", [False, True])
def test_falcon_with_attentions_has_no_causal_mask_in_transformers(on: bool) -> None:
    """Why `output_attentions` is passed over though outputs change: the class itself attends to later tokens then."""
    subject = Subject(CASES["falcon"], full=True)
    model = subject._filled(subject._made(subject.config | {"output_attentions": on}))
    ids = torch.arange(16)[None]
    with torch.no_grad():
        first, other = (model(x).logits[:, 0] for x in (ids, torch.cat([ids[:, :-1], ids[:, :1]], 1)))
    assert torch.equal(first, other) is not on


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dots1", "esm"])
def test_a_sample_is_compared_again(name: str) -> None:
    subject = Subject(CASES[name], full=True)
    for field in subject.mapping.ignored:
        for value in COMPARED[CASES[name].kind][field]["same"][:1]:
            config = changed(subject.config, field, value)
            assert subject.passed_over(config)
            assert subject.effect(config) == "same", field


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("dots1", {"sliding_window": 4, "layer_types": 2 * ["sliding_attention"]}),
        ("smollm3", {"sliding_window": 4, "layer_types": 4 * ["sliding_attention"]}),
        ("qwen2_moe", {"mlp_only_layers": [0]}),
        ("qwen3_moe", {"mlp_only_layers": [1]}),
        ("bart", {"num_hidden_layers": 1}),
        ("cohere2", {"head_dim": 16}),
        ("convnext", {"num_stages": 3}),
        ("deberta_v2", {"pooler_hidden_size": 32}),
        ("deepseek_v3", {"head_dim": 16}),
        ("esm", {"emb_layer_norm_before": True}),
        ("falcon", {"num_ln_in_parallel_attn": 3}),
        ("modernbert", {"classifier_activation": "relu"}),
        ("recurrent_gemma", {"block_types": ["attention", "recurrent", "recurrent"]}),
        ("switch_transformers", {"router_dtype": "bfloat16"}),
        ("t5", {"dense_act_fn": "silu"}),
        ("t5", {"is_gated_act": True}),
        ("vit-model", {"pooler_output_size": 32}),
        ("xglm", {"pad_token_id": 3}),
    ],
)
def test_a_field_that_changes_something_is_refused(name: str, config: dict[str, Any]) -> None:
    subject = Subject(CASES[name], full=True)
    with pytest.raises(ArchError, match="E0533"):
        subject.imported(subject.config | config)
