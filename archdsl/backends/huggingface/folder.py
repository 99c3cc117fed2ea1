"""A folder that transformers loads: two Python files, `config.json`, weights, and the tokenizer that came with them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from archdsl.backends.huggingface.module import LibraryWriter
from archdsl.backends.torch.numbers import value_of
from archdsl.backends.torch.python import field_name
from archdsl.files import write_text, written_beside
from archdsl.ir.graph import Model
from archdsl.weights.carried import carried, copy
from archdsl.weights.initialization import laws_of
from archdsl.weights.safetensors import Checkpoint, Progress, numbers, saved, write_raw, write_tensors

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def save(
    model: Model,
    output: Path,
    *,
    weights: Path | None = None,
    seed: int | None = None,
    tokens: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write a model as a folder for transformers; the files that there are.

    `weights` is a safetensors file in the spec's names, or they are drawn with a `seed`; with neither there are none.
    `tokens` are ids of special tokens (`eos_token_id`). Raises ArchError E0534 where transformers cannot hold the
    model, E0503 for weights of another one, both before anything is written; OSError."""
    stem = model.name
    writer = LibraryWriter(model, stem)
    configuration, modeling = writer.written()
    checkpoint = Checkpoint(weights) if weights is not None else None
    if checkpoint is not None:
        checkpoint.demand(saved(model))
    output.mkdir(parents=True, exist_ok=True)
    found: list[Path] = []
    paths = writer.classes.decoder.outlined.paths
    dtype = "float32"
    if checkpoint is not None:
        dtype = next((DTYPES[e.dtype] for e in checkpoint.entries.values() if e.dtype in DTYPES), dtype)
        copied(checkpoint, output / "model.safetensors", paths, progress)
    elif seed is not None:
        drawn(model, output / "model.safetensors", paths, seed, progress)
    if checkpoint is not None or seed is not None:
        found.append(output / "model.safetensors")
    found += copy(carried(weights), output)
    found += [path for path in tokens_beside(tokens, output) if path not in found]
    classes = writer.classes
    config = {
        "architectures": [classes.root_class],
        "auto_map": {
            "AutoConfig": f"configuration_{stem}.{classes.config_class}",
            "AutoModel": f"modeling_{stem}.{classes.base.name}",
            "AutoModelForCausalLM": f"modeling_{stem}.{classes.root_class}",
        },
        "model_type": writer.config.kind,
        **{field_name(name): value_of(n.value) for name, n in classes.config.items()},
        **classes.library_fields,
        **(tokens or {}),
        "dtype": dtype,
    }
    files = {
        f"configuration_{stem}.py": configuration,
        f"modeling_{stem}.py": modeling,
        "config.json": _json(config),
    }
    for name, text in files.items():
        write_text(output / name, text)
        found.append(output / name)
    return found


def tokens_beside(tokens: Mapping[str, Any] | None, output: Path) -> list[Path]:
    """Write ids of special tokens where `generate` reads them, unless there is such a file already."""
    path = output / "generation_config.json"
    if not tokens or path.is_file():
        return []
    write_text(path, _json(tokens))
    return [path]


def copied(checkpoint: Checkpoint, output: Path, paths: Mapping[str, str], progress: Progress | None = None) -> None:
    """Copy a file of weights, each under another name."""
    entries = [(paths[name], e.dtype, e.shape) for name, e in checkpoint.entries.items()]
    with checkpoint, written_beside(output) as file, file.open("wb") as opened:
        write = write_raw(opened, entries)
        for name in checkpoint.entries:
            bits = checkpoint.bits(name)
            write(bits)
            if progress is not None:
                progress(name, bits.size)


def drawn(model: Model, output: Path, paths: Mapping[str, str], seed: int, progress: Progress | None = None) -> None:
    """Write the weights that `archdsl init` draws, each under another name."""
    infos = {paths[i.path]: i for i in saved(model)}
    laws = laws_of(model)
    renamed = [replace(info, path=path) for path, info in infos.items()]
    with written_beside(output) as file, file.open("wb") as opened, ThreadPoolExecutor(os.cpu_count()) as pool:
        write_tensors(opened, renamed, "float32", lambda i: numbers(infos[i.path], laws, seed, pool), progress)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
