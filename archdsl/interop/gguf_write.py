"""Models as GGUF files, where llama.cpp has their architecture: weights, fields and the tokenizer beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import error
from archdsl.files import MAX_CONFIG, read_bytes, read_json, written_beside
from archdsl.interop.gguf import CHAT_TEMPLATE, CONTROL, ENDS, SPLITS, TOKEN_IDS
from archdsl.interop.huggingface import config_fields
from archdsl.interop.mapping import Mapper
from archdsl.interop.native import native_type
from archdsl.packages import install
from archdsl.weights.carried import (
    ADDITIONAL,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    carried,
    fields_of,
    token_ids,
)
from archdsl.weights.safetensors import BYTES, Checkpoint, Progress, saved

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archdsl.ir.graph import Model

PREFIX = "gguf_"
"""How the types of mappings begin that are architectures of llama.cpp."""
NORMAL, UNUSED = 1, 5
"""The types of a token that is text, and of one that stands for none."""


def write_gguf(
    model: Model,
    weights: Path,
    output: Path,
    progress: Progress | None = None,
    remark: Callable[[str], None] = lambda _: None,
) -> int:
    """Write a model with weights in its own names as a GGUF file, and into it what is carried: tokenizer, ids of
    special tokens, chat templates; how many tensors there are. Matrices keep their types; what has one axis is float32,
    as llama.cpp wants it. `remark` is called with what has no place there.

    Raises ArchError: E0502 where the package gguf is not installed, E0534 where the model is no architecture of
    llama.cpp that is known, E0503 for weights of another model. Raises OSError."""
    try:
        from gguf import GGMLQuantizationType, GGUFWriter
    except ImportError:
        raise error("E0502", "GGUF files need the package gguf", help=install("gguf")) from None
    import numpy as np

    found = native_type(model, PREFIX)
    mapper = Mapper(found.mapping, found.model)
    checkpoint = Checkpoint(weights)
    checkpoint.demand(saved(model))
    ours = {theirs: name for name, theirs in found.names.items()}
    kind = found.kind.removeprefix(PREFIX)
    stored: dict[str, str] = {}
    with written_beside(output) as beside, checkpoint:
        writer = GGUFWriter(beside, kind)
        for name, value in config_fields(found.config):
            if name.startswith(f"{kind}.") and value is not None:
                (writer.add_float32 if name.partition(".")[2] in REALS else writer.add_uint32)(name, value)
        vocab = next(t.shape[0] for t in mapper.transfers if "token_embd.weight" in t.theirs)
        _add_texts(writer, carried(model, weights), vocab, remark)
        for t in mapper.transfers:
            own = checkpoint.entries[ours[t.ours[0]]].dtype
            for name in t.theirs:
                stored[name] = own if own in ("F16", "BF16") and len(t.shape) > 1 else "F32"
                size = BYTES[stored[name]] * math.prod(t.shape)
                writer.add_tensor_info(
                    name, t.shape, np.dtype("float32"), size, raw_dtype=GGMLQuantizationType[stored[name]]
                )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for t in mapper.transfers:
            own = checkpoint.entries[ours[t.ours[0]]].dtype
            made = t.to_theirs([checkpoint.bits(ours[n]) for n in t.ours])
            for name, bits in zip(t.theirs, made, strict=True):
                writer.write_tensor_data(_numbers(np.ascontiguousarray(bits), own, stored[name]))
                if progress is not None:
                    progress(name, bits.size)
        writer.close()
    return len(stored)


REALS = ("attention.layer_norm_rms_epsilon", "rope.freq_base")
"""Fields of an architecture that are float32."""


def _numbers(bits: NDArray[Any], own: str, stored: str) -> NDArray[Any]:
    """Bits of a type as the file stores them: as they are, or as float32."""
    import numpy as np

    if own == stored:
        return bits
    if own == "BF16":
        return (bits.astype("<u4") << np.uint32(16)).view("<f4")
    return bits.view({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[own]).astype("<f4")


def _add_texts(writer: Any, files: Mapping[str, Path], vocab: int, remark: Callable[[str], None]) -> None:
    """Add the tokenizer, the ids of special tokens and the chat templates among files that are carried."""
    if TOKENIZER in files and (missing := _add_tokenizer(writer, files[TOKENIZER], vocab)):
        remark(f"no tokenizer is in the file: {missing}")
    settings, ids = fields_of(files, TOKENIZER_CONFIG), token_ids(files)
    ends = ids.pop("eos_token_id", [])
    ends = ends if isinstance(ends, list) else [ends]
    ids |= dict(zip(("eos_token_id", *ENDS[-max(len(ends) - 1, 1) :]), ends, strict=False))
    for name, field in TOKEN_IDS.items():
        if type(i := ids.get(name)) is int and 0 <= i < vocab:
            writer.add_uint32(field, i)
    for name in ("add_bos_token", "add_eos_token"):
        if isinstance(settings.get(name), bool):
            writer.add_bool(f"tokenizer.ggml.{name}", settings[name])
    templates = _templates(files, settings)
    for name, text in templates.items():
        writer.add_string(CHAT_TEMPLATE if name == "default" else f"{CHAT_TEMPLATE}.{name}", text)
    if named := sorted(templates.keys() - {"default"}):
        writer.add_array(f"{CHAT_TEMPLATE}s", named)


def _templates(files: Mapping[str, Path], settings: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates by name: those of the tokenizer's settings, and of files of their own, which count more."""
    said = settings.get("chat_template")
    listed = said if isinstance(said, list) else [{"name": "default", "template": said}]
    found = {str(t.get("name")): t.get("template") for t in listed if isinstance(t, dict)}
    for file, path in files.items():
        folder, _, name = file.rpartition("/")
        if file == TEMPLATE or (folder == ADDITIONAL and name.endswith(".jinja")):
            try:
                text = read_bytes(path, MAX_CONFIG).decode("utf-8")
            except (OSError, ValueError) as problem:
                raise error("E0503", f"`{path}` is no chat template: {problem}") from None
            found[name.removesuffix(".jinja") if folder else "default"] = text
    return {name: text for name, text in found.items() if isinstance(text, str) and re.fullmatch(r"\w[\w-]*", name)}


def _renumbered(vocab: Mapping[str, int], added: Mapping[int, Any]) -> tuple[int, int] | None:
    """Return the first id of an added token that the package tokenizers reads as another, and that: it numbers those
    that the vocabulary lacks one after another, whatever the file says. None where there is none."""
    last = -1
    for i, token in added.items():
        own = vocab.get(token["content"], max(last + 1, len(vocab)))
        if own != i:
            return i, own
        last = max(last, own)
    return None


def _add_tokenizer(writer: Any, path: Path, vocab: int) -> str:
    """Add a byte-pair tokenizer that splits texts in a way that GGUF has a name for, and tokens without a text up to
    the vocabulary of the model; why not, of others."""
    try:
        tokenizer = read_json(path)
        model = tokenizer.get("model", {})
        split = next((name for name, how in SPLITS.items() if how == tokenizer.get("pre_tokenizer")), None)
        if model.get("type") != "BPE" or split is None:
            return f"`{path}` is no byte-pair tokenizer that splits texts as {' or '.join(SPLITS)} does"
        added = {t["id"]: t for t in tokenizer.get("added_tokens", ())}
        words = [*model["vocab"].items(), *((t["content"], i) for i, t in added.items())]
        if not all(isinstance(text, str) and type(i) is int and i >= 0 for text, i in words):
            raise ValueError("an entry is no text with a whole number")
        if len({*model["vocab"].values()}) < len(model["vocab"]):
            raise ValueError("two texts are one token")
        texts = {i: text for text, i in words}
        if max(texts, default=0) >= vocab:
            return f"`{path}` has a token {max(texts):,}, and the model's vocabulary is {vocab:,}"
        if (other := _renumbered(model["vocab"], added)) is not None:
            return (
                f"`{path}` says that `{texts[other[0]]}` is token {other[0]:,}, and tokenizers reads it as {other[1]:,}"
            )
        kinds = [CONTROL if added.get(i, {}).get("special") else NORMAL if i in texts else UNUSED for i in range(vocab)]
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        said = f"`{path}` is no tokenizer: {type(problem).__name__} {problem}"
        raise error("E0503", said, help="take it away, or save it with the package tokenizers") from None
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list([texts.get(i, f"[PAD{i}]") for i in range(vocab)])
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    return ""
