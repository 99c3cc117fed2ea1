"""What an import passes over changes nothing that transformers computes (`config_fields.py` compares and keeps it)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from interop.cases import CASES, YARN
from interop.config_fields import ABSENT, DATA, ROUNDING, Subject, changed
from zoo import sizes

from archdsl.diagnostics import ArchError
from archdsl.interop.checkpoint_file import shipped
from archdsl.interop.huggingface import is_neutral

DATA_READ = json.loads(DATA.read_text())
COMPARED: dict[str, dict[str, dict[str, Any]]] = DATA_READ["fields"]
IN_PIECES = {"chunk_size", "mamba_chunk_size", "chunk_size_feed_forward", "use_cache"}
"""Fields that compute the same numbers in other pieces or by other kernels, which round otherwise."""
ONE_OTHER = {("modernbert", "classifier_pooling"), ("mpt", "attn_config.attn_pdrop")}
"""Fields that have one other legal value: a word of two, a rate that is to be a whole number."""
OF_CLASSES = {("beit", "add_fpn")}
"""Fields of classes that the family does not have, whose other value a model of two layers cannot have: below."""


def ignored() -> Iterator[tuple[str, str]]:
    """Yield each type with each field that an import of it may pass over: those of its list that it does not read by
    another name, and those of all types."""
    for kind, mapping in shipped().items():
        rows = COMPARED.get(kind, {})  # of a type that is another's alias there are none
        read = {name for field in mapping.fields for name in field.names}
        own = (n for n in mapping.ignored if kind in COMPARED and n not in read and (kind, n) not in OF_CLASSES)
        yield from ((kind, n) for n in own)
        yield from ((kind, n) for n in rows if is_neutral(n) and n not in read)


def test_every_ignored_field_changes_no_bit_at_two_other_values() -> None:
    """Of a bool there is one. What differs by rounding, below the bound of the data, is listed."""
    assert len({*ignored()}) > 1_000
    assert DATA_READ["bound"] == ROUNDING
    for kind, name in ignored():
        row = COMPARED[kind][name]
        enough = row["others"] >= (1 if isinstance(row["default"], bool) else 2)
        assert enough != ((kind, name) in ONE_OTHER), (kind, name)
        assert not row["changed"], (kind, name)
        assert row["same"] or name in IN_PIECES, (kind, name)
        assert not row["rounding"] or name in IN_PIECES, (kind, name)
        assert row["apart"] < ROUNDING, (kind, name)


def test_no_other_field_that_is_passed_over_changes_anything() -> None:
    wrong = [(kind, name) for kind, rows in COMPARED.items() for name, row in rows.items() if row["changed"]]
    assert not wrong


@pytest.mark.slow
def test_pyramids_of_beit_are_of_other_classes() -> None:
    case = CASES["beit"]
    subject = Subject(replace(case, more={**case.more, "num_hidden_layers": 3}), full=False)
    config = subject.config | {"add_fpn": True, "out_indices": [0, 1, 2, 3]}
    assert subject.passed_over(config)
    assert subject.effect(config) == 0


def spelled(config: dict[str, Any], field: str) -> dict[str, Any]:
    """Spell what a config says of rope as older files do, where a field is one of theirs: an import refuses a file that
    has it in both ways."""
    if not field.startswith("rope_scaling."):
        return config
    rope = dict(config["rope_parameters"])
    others = {n: v for n, v in config.items() if n != "rope_parameters"}
    return {**others, "rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}


SAMPLE = sorted(CASES) if sizes.every else ["dots1", "smollm3", "exaone4-full"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_is_compared_again(name: str) -> None:
    subject = Subject(CASES[name], full=True)
    known = COMPARED[CASES[name].kind]
    sample = [
        (field, value) for field in subject.mapping.ignored if field in known for value in known[field]["same"][:2]
    ]
    assert sample or sizes.every, "a type that passes over nothing"
    for field, value in sample:
        config = changed(spelled(subject.config, field), field, value)
        assert subject.passed_over(config), field
        assert subject.effect(config) in (0, None), field


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("ctrl", {"num_hidden_layers": 0}),
        ("deberta_v2", {"pos_att_type": None}),
        ("deepseek_v3", {"num_local_experts": 4}),
        ("deepseek_v3", {"num_local_experts": 0}),
        ("deepseek_v3-scaled", {"rope_parameters": {**YARN, "mscale": 1.0}}),
        ("dots1", {"sliding_window": 4, "layer_types": 2 * ["sliding_attention"]}),
        ("smollm3", {"sliding_window": 4, "layer_types": 4 * ["sliding_attention"]}),
        ("qwen2", {"is_causal": False}),
        ("qwen2_moe", {"mlp_only_layers": [0]}),
        ("qwen3_moe", {"mlp_only_layers": [1]}),
        ("bart", {"num_hidden_layers": 1}),
        ("cohere2", {"head_dim": 16}),
        ("convnext", {"num_stages": 3}),
        ("deberta_v2", {"pooler_hidden_size": 32}),
        ("deepseek_v3", {"head_dim": 16}),
        ("esm", {"emb_layer_norm_before": True}),
        ("falcon", {"num_ln_in_parallel_attn": 3}),
        ("falcon", {"output_attentions": True}),
        ("falcon", {"parallel_attn": None}),
        ("gpt_neox", {"rotary_pct": 0.5}),
        ("imagegpt", {"reorder_and_upcast_attn": True}),
        ("longt5", {"scale_decoder_outputs": None}),
        ("modernbert", {"classifier_activation": "relu"}),
        ("mt5", {"is_gated_act": None}),
        ("nemotron_h", {"layer_types": 6 * ["mlp"]}),
        ("nemotron_h", {"layer_types": []}),
        ("recurrent_gemma", {"block_types": ["attention", "recurrent", "recurrent"]}),
        ("siglip", {"vision_config.hidden_size": ABSENT}),
        ("switch_transformers", {"router_dtype": "bfloat16"}),
        ("t5", {"dense_act_fn": "silu"}),
        ("t5", {"is_gated_act": True}),
        ("t5gemma", {"decoder.attn_logit_softcapping": None}),
        ("t5gemma", {"decoder.sliding_window": ABSENT}),
        ("t5gemma", {"encoder.vocab_size": ABSENT}),
        ("vit-model", {"pooler_output_size": 32}),
        ("xglm", {"pad_token_id": 3}),
    ],
)
def test_a_field_that_changes_something_is_refused(name: str, config: dict[str, Any]) -> None:
    subject = Subject(CASES[name], full=True)
    wrong = subject.config
    for field, value in config.items():
        wrong = changed(wrong, field, value)
    with pytest.raises(ArchError, match="E0533"):
        subject.imported(wrong)
