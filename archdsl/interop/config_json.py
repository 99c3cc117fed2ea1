"""`config.json` of a folder that is written: what the spec says, and what the checkpoint had beside it.

A config that was imported comes out as it came in as long as it says what the spec says. Of a spec that was changed, or
of another type, the config is the spec's, and only what says nothing of the computation goes along: ids of tokens,
labels, dropout, settings of generation."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from archdsl.interop.checkpoint_file import CheckpointFile
from archdsl.interop.huggingface import config_of, is_neutral

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

OF_FILES = ("auto_map", "quantization_config")
"""Fields about the folder that was read."""


def whole_config(
    mapping: CheckpointFile, kind: str, model: Model, said: Mapping[str, Any], same: bool
) -> dict[str, Any]:
    """Return the config.json of a model as a type of transformers, with what a config that was imported (`said`) has
    beside the spec's numbers; `same` tells that it is of this model. Raises ArchError E0531 for a field that the spec
    does not say."""
    classes = {"architectures": [architecture(mapping, kind)]}
    if same:
        return {**classes, **{name: value for name, value in said.items() if name not in OF_FILES}}
    own = config_of(mapping, kind, model)
    placed = {*(n for f in mapping.fields for n in f.names), *(n for q in mapping.quotients for n in q[:2])}
    rest = _neutral(said, placed | {"architectures", "model_type", "num_labels", *OF_FILES})
    labels = rest.get("id2label")
    if "num_labels" in own and isinstance(labels, dict) and len(labels) != own["num_labels"]:
        del rest["id2label"]
        rest.pop("label2id", None)
    return {**classes, **_joined(own, rest)}


def architecture(mapping: CheckpointFile, kind: str) -> str:
    """Return the class of transformers of a type."""
    begin = mapping.prefixes.get(kind) or "".join(word.capitalize() for word in kind.split("_"))
    return begin if begin.endswith("Model") else f"{begin}ForCausalLM"


def _neutral(config: Mapping[str, Any], left_out: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Return the fields that say nothing of the computation, but for those whose dotted names are left out."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if prefix + name in left_out:
            continue
        if isinstance(value, dict) and value:
            below = _neutral(value, left_out, f"{prefix}{name}.")
            fields |= {name: below} if below else {}
        elif is_neutral(prefix + name):
            fields[name] = value
    return fields


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of both, within objects too; where both have one, that of the second."""
    joined = {**first, **second}
    for name in first.keys() & second.keys():
        if isinstance(first[name], dict) and isinstance(second[name], dict):
            joined[name] = _joined(first[name], second[name])
    return joined


def json_text(value: Any) -> str:
    """Return JSON as transformers writes it into files."""
    return json.dumps(value, indent=2) + "\n"
