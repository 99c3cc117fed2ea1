"""Hyper-parameters of the zoo's models, so small that a model runs at once.

Each `tiny_<part>.py` beside this file holds a table, `TINY`: a model's name, `file:model`, and its settings.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

every = False
"""Whether all models are tested where a sample stands for them: `pytest --every`."""
SAMPLE = (
    *("gpt2:gpt2", "mixtral:mixtral_8x7b", "t5:t5_small", "mistral:mistral_7b", "mamba:mamba_130m", "palm:palm_8b"),
    *("reformer:reformer_crime_and_punishment", "sparsely_gated_moe:moe_4", "sparsely_gated_moe:moe_256_h"),
    *("gpt_oss:gpt_oss_120b", "llama4:llama4_scout", "gemma2:gemma2_2b", "glm4_5:glm4_5", "deepseek_v3:deepseek_v3"),
    *("ntm:ntm_repeat_copy", "rnn_encoder_decoder:sutskever_2014", "seq2seq_attention:seq2seq_cosine"),
    *("conformer:conformer_transducer_l", "performer:performer", "pythia:pythia_12b", "bloom:bloom_560m"),
    *("pixel_rnn:pixel_rnn_mnist", "show_attend_tell:show_attend_tell", "convmixer:convmixer_1536_20"),
    *("wavenet:wavenet", "graph_mamba:graph_mamba", "xlnet:xlnet_base", "rwkv7:rwkv7_0_1b"),
    *("kimi_linear:kimi_linear_48b", "gla:gla_1_3b", "path_attention:path_760m", "forgetting_transformer:fox_pro_760m"),
    *("log_linear_attention:log_linear_mamba2", "mamba3:mamba3_1_5b"),
)
"""Models that together use every primitive of the zoo with every choice of its options: `test_the_sample_has_all`."""
SPECS = Path(__file__).resolve().parents[2] / "specs"


@cache
def tables() -> dict[str, dict[str, int]]:
    """All tables as one."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted(Path(__file__).parent.glob("tiny_*.py")):
        found |= import_module(f"zoo.{path.stem}").TINY
    return found


def sample() -> list[str]:
    """Models of which each has something that no other has, or all that differ."""
    return distinct() if every else [*SAMPLE]


def distinct() -> list[str]:
    """One model of those of a file whose tiny copies are the same."""
    found: dict[str, str] = {}
    for name, settings in tables().items():
        found.setdefault(f"{name.partition(':')[0]} {sorted(settings.items())}", name)
    return [*found.values()]


def place(name: str) -> tuple[Path, str]:
    """The file of a model, and its name there."""
    stem, _, model = name.partition(":")
    return SPECS / f"{stem}.arch", model
