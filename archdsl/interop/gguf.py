"""GGUF files of llama.cpp: their tensors, dequantized, their fields, and the tokenizer that lies within.

Numbers are dequantized by llama.cpp's own package, gguf."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import error, shortened
from archdsl.interop.gguf_header import read_header
from archdsl.interop.mapping import Shape
from archdsl.packages import install
from archdsl.weights.carried import ADDITIONAL, GENERATION, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPLITS: dict[str, dict[str, Any]] = {
    "gpt-2": BYTE_LEVEL,
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
}
"""How a text is split before its parts become tokens, by the name that GGUF has for it."""

ENDS = ("eom_token_id", "eot_token_id")
"""Further tokens that end a text: of a message, of a turn. `eos_token_id` of Hugging Face is a list then."""
TOKEN_IDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "eom_token_id": "tokenizer.ggml.eom_token_id",
    "eot_token_id": "tokenizer.ggml.eot_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
    "sep_token_id": "tokenizer.ggml.seperator_token_id",
    "unk_token_id": "tokenizer.ggml.unknown_token_id",
    "mask_token_id": "tokenizer.ggml.mask_token_id",
}
"""Ids of special tokens, and the fields that hold them."""
CHAT_TEMPLATE = "tokenizer.chat_template"

CONTROL = 3
"""The type of a token that is no text: `<|im_start|>`."""


class GgufFile:
    """One file, with the interface of a folder of Hugging Face. `config` has its `model_type` `gguf_llama`, its fields
    by their own names, and what only the tensors say: `vocab_size` and `tie_word_embeddings`.

    Raises ArchError: E0502 where the package gguf is not installed, E0533 where the file is none."""

    def __init__(self, path: Path) -> None:
        try:
            from gguf.constants import GGML_QUANT_SIZES
        except ImportError:
            raise error("E0502", "GGUF files need the package gguf", help=install("gguf")) from None
        try:
            blocks = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
            self.fields, self.tensors = read_header(path, blocks)
        except OSError as problem:
            raise error("E0533", f"`{path}` cannot be read: {problem.strerror}") from None
        except ValueError as problem:
            raise error("E0533", f"`{path}` is no GGUF file: {shortened(str(problem), 200)}") from None
        self.path = path
        kind = str(self.fields.get("general.architecture"))
        self.config: dict[str, Any] = {"model_type": f"gguf_{kind}"}
        for name, value in self.fields.items():
            if name.startswith(f"{kind}."):
                self.config[name] = _shortest(value)
        self.config["tie_word_embeddings"] = "output.weight" not in self.tensors
        if "token_embd.weight" in self.tensors:
            self.config["vocab_size"] = self.shapes["token_embd.weight"][0]

    @property
    def shapes(self) -> dict[str, Shape]:
        return {name: t.shape[::-1] for name, t in self.tensors.items()}

    def type_of(self, name: str) -> str:
        """What the tensor becomes: quantized ones are float32."""
        kind = self._kind(name)
        return kind if kind in ("F32", "F16", "BF16") else "F32"

    def tensor(self, name: str) -> NDArray[Any]:
        """The numbers of a tensor as bits, in its shape. Raises ArchError E0532 for a quantization that the package
        gguf does not know."""
        import numpy as np
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        entry = self.tensors[name]
        kind = self.type_of(name)
        data: NDArray[Any] = np.memmap(self.path, "<u1", "r", entry.start, entry.size)
        if self._kind(name) != kind:
            rows = data.reshape(*entry.shape[:0:-1], -1)
            try:
                data = dequantize(rows, GGMLQuantizationType(entry.kind))
            except (NotImplementedError, ValueError) as problem:  # what the package says of such a type
                raise error("E0532", f"`{name}` is quantized as {self._kind(name)}: {problem}") from None
        return data.view("<u4" if kind == "F32" else "<u2").reshape(self.shapes[name])

    def _kind(self, name: str) -> str:
        """What llama.cpp calls the type of a tensor: `Q4_K`."""
        from gguf.constants import GGMLQuantizationType

        return GGMLQuantizationType(self.tensors[name].kind).name

    def tokenizer(self) -> str | None:
        """The `tokenizer.json` of a byte-pair tokenizer that splits texts in a way that is known; None for others."""
        found = {n.removeprefix("tokenizer.ggml."): v for n, v in self.fields.items()}
        split = SPLITS.get(str(found.get("pre", "gpt-2")))
        if found.get("model") != "gpt2" or split is None:
            return None
        tokens, merges, kinds = (found.get(name, []) for name in ("tokens", "merges", "token_type"))
        texts = all(isinstance(v, list) and all(isinstance(t, str) for t in v) for v in (tokens, merges))
        if not texts or not isinstance(kinds, list) or len(kinds) > len(tokens):
            raise error("E0533", f"the tokenizer in `{self.path}` cannot be read", help="`--no-weights` leaves it out")
        special = [
            {"id": i, "content": tokens[i], "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for i, kind in enumerate(kinds)
            if kind == CONTROL
        ]
        model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}}
        model |= {"merges": [m.split(" ", 1) for m in merges]}
        return json.dumps(
            {"version": "1.0", "added_tokens": special, "pre_tokenizer": split, "decoder": BYTE_LEVEL, "model": model},
            ensure_ascii=False,
        )

    def token_ids(self) -> dict[str, int]:
        """The ids of special tokens, those that are some of the vocabulary, by Hugging Face's names."""
        ids = {name: self.fields.get(field) for name, field in TOKEN_IDS.items()}
        most = self.config.get("vocab_size", 0)
        return {name: i for name, i in ids.items() if type(i) is int and 0 <= i < most}

    def beside(self) -> dict[str, bytes]:
        """The files that are carried along, by name: tokenizer, chat templates, settings of generation."""
        files: dict[str, str] = {}
        ids = self.token_ids()
        if (tokenizer := self.tokenizer()) is not None:
            tokens = self.fields["tokenizer.ggml.tokens"]
            known = {name: i for name, i in ids.items() if name not in ENDS and i < len(tokens)}
            named = {name.removesuffix("_id"): tokens[i] for name, i in known.items()}
            adds = {f"add_{x}_token": self.fields.get(f"tokenizer.ggml.add_{x}_token") for x in ("bos", "eos")}
            adds = {name: value for name, value in adds.items() if isinstance(value, bool)}
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named, **adds}
            files |= {TOKENIZER: tokenizer, TOKENIZER_CONFIG: json.dumps(settings, indent=2, ensure_ascii=False) + "\n"}
        for field, template in self.fields.items():
            if field == CHAT_TEMPLATE and isinstance(template, str):
                files[TEMPLATE] = template
            elif (met := re.fullmatch(rf"{CHAT_TEMPLATE}\.(\w[\w-]*)", field)) and isinstance(template, str):
                files[f"{ADDITIONAL}/{met[1]}.jinja"] = template
        ends = [ids[name] for name in ("eos_token_id", *ENDS) if name in ids]
        generation: dict[str, Any] = {name: ids[name] for name in ("bos_token_id", "pad_token_id") if name in ids}
        if ends := [*dict.fromkeys(ends)]:
            generation["eos_token_id"] = ends if len(ends) > 1 else ends[0]
        if generation:
            files[GENERATION] = json.dumps(generation, indent=2) + "\n"
        return {name: text.encode() for name, text in files.items()}

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *problem: object) -> None:
        pass


def _shortest(value: Any) -> Any:
    """A float32 as the shortest number that it is: 1e-5, not 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value))) if isinstance(value, float) else value
