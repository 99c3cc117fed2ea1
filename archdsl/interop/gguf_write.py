"""Models as GGUF files, where llama.cpp has their architecture: weights, fields and the tokenizer beside them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import error
from archdsl.files import read_json, written_beside
from archdsl.interop.gguf import CONTROL, SPLITS
from archdsl.interop.huggingface import config_fields
from archdsl.interop.mapping import Mapper
from archdsl.interop.native import native_type
from archdsl.packages import install
from archdsl.weights.safetensors import BYTES, Checkpoint, Progress, saved

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archdsl.ir.graph import Model

PREFIX = "gguf_"
"""How the types of mappings begin that are architectures of llama.cpp."""
NORMAL = 1
"""The type of a token that is text."""


def write_gguf(model: Model, weights: Path, output: Path, progress: Progress | None = None) -> int:
    """Write a model with weights in its own names as a GGUF file, and into it the tokenizer that lies beside them; how
    many tensors there are. Matrices keep their types; what has one axis is float32, as llama.cpp wants it.

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
        _add_tokenizer(writer, weights)
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


def _add_tokenizer(writer: Any, weights: Path) -> None:
    """Add the byte-pair tokenizer beside the weights, if it splits texts in a way that GGUF has a name for."""
    path = weights.with_name(f"{weights.stem}.tokenizer.json")
    if not path.is_file():
        return
    try:
        tokenizer = read_json(path)
        model = tokenizer.get("model", {})
        split = next((name for name, how in SPLITS.items() if how == tokenizer.get("pre_tokenizer")), None)
        if model.get("type") != "BPE" or split is None:
            return
        added = {t["id"]: t for t in tokenizer.get("added_tokens", ())}
        texts = {i: text for text, i in model["vocab"].items()} | {i: t["content"] for i, t in added.items()}
        kinds = [CONTROL if added.get(i, {}).get("special") else NORMAL for i in sorted(texts)]
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        said = f"`{path}` is no tokenizer: {type(problem).__name__} {problem}"
        raise error("E0503", said, help="take it away, or save it with the package tokenizers") from None
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list([texts[i] for i in sorted(texts)])
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
