"""What a checkpoint holds beside its tensors: tokenizer, chat templates, settings of generation, `config.json`.

All of it lies in one folder, `NAME.hf` beside `NAME.safetensors` or `NAME.arch`, each file as it was to the byte."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import error
from archdsl.files import MAX_CONFIG, make_folder, open_regular, read_json, remove, write_text, written_beside

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
TOKENIZER_CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
ADDITIONAL = "additional_chat_templates"
LOOSE = (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, GENERATION)
"""Files that also go along where they lie in the folder of the weights, as in one of Hugging Face."""
KINDS = (".jinja", ".json", ".model", ".tiktoken", ".txt")
LICENSE = re.compile(r"(LICEN[CS]E|NOTICE|USE_POLICY)\b.*", re.IGNORECASE)
TENSORS = (".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors")
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
OF_TOKENS = re.compile(r"(bos|eos|pad|sep|cls|unk|mask|decoder_start)_token_id")


def folder_of(path: Path) -> Path:
    """Return the folder that belongs to a file of weights or a spec."""
    return path.with_suffix(".hf")


def files_beside_tensors(folder: Path) -> dict[str, Path]:
    """Return the files of a checkpoint's folder that go along with its tensors, by their names in it: settings, texts
    and tokenizers, and those of folders below that hold no tensors (`additional_chat_templates`). Code, model cards and
    indexes of tensors do not."""
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            files |= {path.name: path} if _goes_along(path) else {}
        elif path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            below = sorted(path.iterdir())
            if not any(p.suffix in TENSORS for p in below):
                files |= {f"{path.name}/{p.name}": p for p in below if p.is_file() and _goes_along(p)}
    return files


def _goes_along(path: Path) -> bool:
    name = path.name
    if name.startswith(".") or name.endswith(".index.json"):
        return False
    return path.suffix in KINDS or LICENSE.fullmatch(name) is not None


def carry(files: Mapping[str, bytes], output: Path) -> list[Path]:
    """Write files into the folder of `output`, in place of those of another checkpoint; their paths. Raises OSError."""
    folder = folder_of(output)
    if folder.is_dir():
        for name, path in files_beside_tensors(folder).items():
            if name not in files:
                remove(path)
    for name, content in files.items():
        target = folder / name
        make_folder(target.parent)
        with written_beside(target) as beside:
            beside.write_bytes(content)
    return [folder / name for name in files]


def carried(model: Model, weights: Path | None) -> dict[str, Path]:
    """Return the files that go along with a model, by the names that programs look for: those of the folder of its
    weights; else of that of its spec; else a tokenizer and settings in the same folder as the weights. A
    `config.json` is also that of the spec where the weights come without one."""
    spec = model.origin.spec.path if model.origin is not None else None
    folders = [folder_of(path) for path in (weights, spec) if path is not None]
    known = [files_beside_tensors(folder) for folder in folders if folder.is_dir()]
    if known:
        config = next((files[CONFIG] for files in known if CONFIG in files), None)
        return known[0] if config is None else {**known[0], CONFIG: config}
    loose = [weights.with_name(name) for name in LOOSE] if weights is not None else []
    return {path.name: path for path in loose if path.is_file()}


def copy(files: Mapping[str, Path], folder: Path, tokens: Mapping[str, Any] | None = None) -> list[Path]:
    """Copy files into a folder, all but `config.json`, which every format has its own of, and say how a tokenizer is
    read that comes without that; what lies there then. Ids of `tokens` take the place of those that the settings of
    generation have. Raises OSError."""
    copies = []
    for name, source in files.items():
        if name == CONFIG:
            continue
        target = folder / name
        copies.append(target)
        if not (target.exists() and target.samefile(source)):
            make_folder(target.parent)
            with open_regular(source) as file, written_beside(target) as beside, beside.open("wb") as copied:
                shutil.copyfileobj(file, copied)
    if TOKENIZER in files and TOKENIZER_CONFIG not in files:
        copies.append(folder / TOKENIZER_CONFIG)
        write_text(copies[-1], '{\n  "tokenizer_class": "PreTrainedTokenizerFast"\n}\n')
    if tokens:
        target = folder / GENERATION
        copies += [target] * (target not in copies)
        write_text(target, json.dumps({**fields_of(files, GENERATION), **tokens}, indent=2) + "\n")
    return copies


def fields_of(files: Mapping[str, Path], name: str) -> dict[str, Any]:
    """Return the fields of a JSON file among those that are carried; none where there is no such file, or no object in
    it."""
    try:
        fields = read_json(files[name], MAX_CONFIG)
    except (KeyError, OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def dtype_of(said: Mapping[str, Any], stored: Iterable[str]) -> str:
    """Return the type of a checkpoint's numbers as configs call it (`bfloat16`): that which its config names if some of
    the tensors are of it, else that of the first. `stored` are their types as safetensors calls them (`BF16`)."""
    kinds = [DTYPES[kind] for kind in stored if kind in DTYPES]
    word = said.get("dtype") or said.get("torch_dtype")
    return str(word) if word in kinds or (word and not kinds) else next(iter(kinds), "float32")


def token_ids(files: Mapping[str, Path], order: Sequence[str] = (GENERATION, CONFIG)) -> dict[str, Any]:
    """Return the ids of special tokens (`eos_token_id`): those of the first file that names them."""
    fields = {
        name: value for file in reversed(order) for name, value in fields_of(files, file).items() if value is not None
    }
    return {name: value for name, value in fields.items() if OF_TOKENS.fullmatch(name)}


def demand_tokens(code: str, ids: Mapping[str, int | Sequence[int] | None], vocab: int | None) -> None:
    """Raise ArchError with this code for an id of special tokens, `eos_token_id`, that is none of the `vocab` there
    are."""
    for name, given in ids.items():
        for token in [given] if isinstance(given, int) else given or ():
            if vocab is not None and not 0 <= token < vocab:
                said = f"`--{name.replace('_', '-')} {token}` is no token of the model"
                raise error(code, said, help=f"they are 0 to {vocab - 1:,}")
