"""Ids of tokens with a meaning: as they are given, or as a checkpoint has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from archdsl.frozen import Frozen
from archdsl.weights.carried import token_ids


class Tokens(Frozen):
    """Ids with a meaning, which no spec tells. `end` are those that end a text: without one, optimum generates as many
    tokens as it is asked for, and onnxruntime-genai ends at that of padding. `padding` fills the rows of a batch: by
    default the first of `end`, or 0."""

    begin: int | None = None
    end: tuple[int, ...] = ()
    padding: int | None = None


def with_those_of(tokens: Tokens, files: Mapping[str, Path], vocab: int) -> Tokens:
    """The tokens, those that were not given by the `generation_config.json` or `config.json` among the files, where
    they name some of the vocabulary."""
    fields = token_ids(files)

    def ids(name: str) -> tuple[int, ...]:
        value = fields.get(f"{name}_token_id")
        each = value if isinstance(value, list) else [value]
        return tuple(i for i in each if type(i) is int and 0 <= i < vocab)

    def first(name: str) -> int | None:
        return next(iter(ids(name)), None)

    return replace(
        tokens,
        begin=tokens.begin if tokens.begin is not None else next(iter(ids("decoder_start") or ids("bos")), None),
        end=tokens.end or ids("eos"),
        padding=first("pad") if tokens.padding is None else tokens.padding,
    )
