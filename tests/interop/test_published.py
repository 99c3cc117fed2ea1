"""Configs as they were published, with fields of years and of forks: what is imported has the published size.

`published.json` has a hundred of them. Their counts are those of transformers' classes; but for BART's, where a row of
biases of logits is a buffer there and a weight here, DINOv2's, whose token for masked patches is of training alone, and
the untied T5s', which transformers 5 ties (the checkpoints' own counts stand here). Some are refused, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from archdsl.diagnostics import ArchError
from archdsl.interop.convert import import_folder

PUBLISHED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published.json").read_text())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_imported(name: str, tmp_path: Path) -> None:
    published = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(published["config"]))
    try:
        found: int | str = import_folder(tmp_path / "config.json", tmp_path / "m.arch").parameters
    except ArchError as problem:
        found = f"{problem.diagnostics[0].message} {problem.diagnostics[0].help}"
    wanted = published["imported"]
    assert wanted in found if isinstance(wanted, str) and isinstance(found, str) else wanted == found


def test_what_is_ignored(tmp_path: Path) -> None:
    """`--ignore` names a field, or an object of fields."""
    config = PUBLISHED["qwen25_7b_1m"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = {"ignore": ["dual_chunk_attention_config"]}
    assert import_folder(tmp_path / "config.json", tmp_path / "m.arch", **options).parameters == 7_615_616_512


@pytest.mark.parametrize("kind", ["xlm-roberta", "camembert"])
def test_classes_of_another_name(kind: str, tmp_path: Path) -> None:
    """A type that is a family under another name: its classes come in by that name, and go out by it."""
    from archdsl.frontend.load import load
    from archdsl.interop.convert import named_mapping
    from archdsl.interop.huggingface import config_of

    prefix = {"xlm-roberta": "XLMRoberta", "camembert": "Camembert"}[kind]
    for head in ("ForMaskedLM", "ForSequenceClassification", "Model"):
        config = PUBLISHED["roberta_base"]["config"] | {"model_type": kind, "architectures": [prefix + head]}
        (tmp_path / "config.json").write_text(json.dumps(config))
        import_folder(tmp_path / "config.json", tmp_path / "m.arch")
        model = load(tmp_path / "m.arch")
        assert config_of(named_mapping(kind), kind, model)["architectures"] == [prefix + head]
