"""Hyper-parameters of the zoo's models, so small that a model runs at once.

Each `tiny_<part>.py` beside this file holds a table, `TINY`: a model's name, `file:model`, and its settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path

every = False
"""Whether families are tested dearly that are made of what another is made of: `pytest --every`."""
LIKE = {
    **dict.fromkeys(("gpt1", "megatron", "turing_nlg"), "gpt2"),
    **dict.fromkeys(("llama", "llama2", "deepseek_llm"), "llama3"),
    "chinchilla": "gopher",
    "gemma2": "hf/gemma2",
    "gemma3": "hf/gemma3_text",
    "glm4_5": "hf/glm4_moe",
    "gpt_oss": "hf/gpt_oss",
    "granite3": "hf/granite",
    "llama3_2": "llama3",
    "llama4": "hf/llama4_text",
    "mistral_small": "mistral",
    "olmo2": "hf/olmo2",
    "olmo3": "hf/olmo3",
    "phi4": "hf/phi3",
    "pythia": "hf/gpt_neox",
    "qwen2_5": "hf/qwen2",
    "qwen3": "hf/qwen3",
    "smollm": "hf/smollm3",
}
"""Such families, and that other one: of the zoo, or of the specs that checkpoints are imported after, whose types are
compared with `transformers`."""
SPECS = Path(__file__).resolve().parents[2] / "specs"


@cache
def tables() -> dict[str, dict[str, int]]:
    """All tables as one."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted(Path(__file__).parent.glob("tiny_*.py")):
        found |= import_module(f"zoo.{path.stem}").TINY
    return found


def families() -> list[str]:
    """The first model of each file that has layers of its own."""
    first = {name.partition(":")[0]: name for name in reversed(tables())}
    return dear(sorted(first.values()))


def dear(names: Iterable[str]) -> list[str]:
    """Those of models that are worth more than being counted, trained and compared with their references."""
    return [name for name in names if every or name.partition(":")[0] not in LIKE]


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
