"""A folder that transformers loads: two Python files, `config.json`, weights, and the tokenizer that came with them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from archdsl.backends.huggingface.module import LibraryWriter
from archdsl.backends.torch.numbers import value_of
from archdsl.backends.torch.python import field_name
from archdsl.diagnostics import ArchError
from archdsl.files import make_folder, together, write_text, written_beside
from archdsl.ir.dims import Num
from archdsl.ir.graph import Model
from archdsl.ir.walk import ops_below
from archdsl.weights.carried import CONFIG, GENERATION, carried, copy, dtype_of, fields_of, token_ids
from archdsl.weights.initialization import laws_of
from archdsl.weights.safetensors import Checkpoint, Progress, numbers, saved, write_raw, write_tensors

DROPOUT = re.compile(r".*dropout.*|.*_pdrop")
OF_TEXTS = ("finetuning_task", "id2label", "label2id", "problem_type", "task_specific_params", "tokenizer_class")
"""Fields of a config that hold whatever the model computes."""


@together()
def save(
    model: Model,
    output: Path,
    *,
    weights: Path | None = None,
    seed: int | None = None,
    tokens: Mapping[str, Any] | None = None,
    no_type: ArchError | None = None,
    progress: Progress | None = None,
    remark: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write a model as a folder for transformers; the files that there are.

    `weights` is a safetensors file in the spec's names, or they are drawn with a `seed`; with neither there are none.
    `tokens` are ids of special tokens (`eos_token_id`). What is `carried` goes along: tokenizer, templates, settings of
    generation, ids and labels; `remark` is called with what of the checkpoint's config these classes do not do, and
    with why it is no type of transformers' own, where that was looked for: `no_type`. Raises ArchError E0534 where
    transformers cannot hold the model, E0503 for weights of another one, both before anything is written; OSError."""
    stem = model.name
    options = ["--remote-code", *([f"--weights={weights.name}"] if weights is not None else [])]
    options += [f"--seed={seed}"] if seed is not None else []
    for name, value in (tokens or {}).items():
        ids = value if isinstance(value, list) else [value]
        options += [f"--{name.replace('_', '-')}={token}" for token in ids]
    try:
        writer = LibraryWriter(model, stem, options)
        configuration, modeling = writer.written()
    except ArchError as problem:
        raise _refused(problem, no_type) from None
    checkpoint = Checkpoint(weights) if weights is not None else None
    if checkpoint is not None:
        checkpoint.demand(saved(model))
    make_folder(output)
    found: list[Path] = []
    paths = writer.classes.decoder.outlined.paths
    if no_type is not None:
        nearest = next(iter(no_type.diagnostics[0].notes), "")
        differs = f" (the nearest: {nearest})" if nearest else ""
        remark(f"`{model.name}` is not a known type of transformers{differs}: written as remote code")
    beside = carried(model, weights)
    said = fields_of(beside, CONFIG)
    if said and (difference := other_dropout(model, said)):
        remark(difference)
    if checkpoint is not None:
        copied(checkpoint, output / "model.safetensors", paths, progress)
    elif seed is not None:
        drawn(model, output / "model.safetensors", paths, seed, progress)
    if checkpoint is not None or seed is not None:
        found.append(output / "model.safetensors")
    found += copy(beside, output, tokens)
    classes = writer.classes
    encodes = classes.decoder.encoder is not None
    special = {**token_ids(beside, (CONFIG, GENERATION)), **(tokens or {})}
    if encodes and "bos_token_id" in special:
        special.setdefault("decoder_start_token_id", special["bos_token_id"])
    config = {
        "architectures": [classes.root_class],
        "auto_map": {
            "AutoConfig": f"configuration_{stem}.{classes.config_class}",
            "AutoModel": f"modeling_{stem}.{classes.base.name}",
            f"AutoModelFor{'Seq2Seq' if encodes else 'Causal'}LM": f"modeling_{stem}.{classes.root_class}",
            **{f"AutoModel{ending}": f"modeling_{stem}.{name}" for ending, name in classes.classifiers.items()},
        },
        "model_type": writer.config.kind,
        **{field_name(name): value_of(n.value) for name, n in classes.config.items()},
        **classes.library_fields,
        **{name: said[name] for name in OF_TEXTS if said.get(name) is not None},
        **special,
        "dtype": dtype_of(said, [e.dtype for e in checkpoint.entries.values()] if checkpoint is not None else ()),
    }
    files = {
        f"configuration_{stem}.py": configuration,
        f"modeling_{stem}.py": modeling,
        CONFIG: json.dumps(config, indent=2) + "\n",
    }
    for name, text in files.items():
        write_text(output / name, text)
        found.append(output / name)
    return found


def _refused(problem: ArchError, no_type: ArchError | None) -> ArchError:
    """Return `problem`, which refuses remote code, with a note: why the model is no native type (`no_type`), or that
    one was not looked for."""
    first, *others = problem.diagnostics
    if no_type is None:
        notes: tuple[str, ...] = ("as a type of transformers, without `--remote-code`, it may have a folder",)
    else:
        known = no_type.diagnostics[0]
        notes = (known.message, *known.notes)
    return ArchError([replace(first, notes=(*first.notes, *notes)), *others])


def other_dropout(model: Model, said: Mapping[str, Any]) -> str:
    """Return what a checkpoint's config says of dropout where the spec has other rates; '' where they agree."""
    ops = [*ops_below(model.block.graph)]
    values = [op.options.get(name) for op in ops for name in ("dropout", "rate")]
    ours = sorted({float(rate) for rate in values if isinstance(rate, Num) and rate.value})
    theirs = {n: v for n, v in said.items() if DROPOUT.fullmatch(n) and isinstance(v, int | float) and v}
    if sorted({*theirs.values()}) == ours:
        return ""
    listed = ", ".join(f"{name} {rate}" for name, rate in theirs.items())
    own = ", ".join(map(str, ours))
    return f"dropout in training is the spec's, {own or 'none'}; the checkpoint's config has {listed or 'none'}"


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
