"""`archdsl generate`: the emitted module goes on from prompts, token by token."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from archdsl.diagnostics import error
from archdsl.diagnostics.exhausted import exhaustion_told
from archdsl.files import MAX_JSON, read_bytes
from archdsl.frozen import Frozen
from archdsl.ir.graph import Model
from archdsl.packages import install
from archdsl.run.smoke import demand_torch, device_called, fits, load_weights, one_line

if TYPE_CHECKING:
    import torch

IDS = re.compile(r"\s*\d+([\s,]+\d+)*\s*")


class GenerateReport(BaseModel):
    """What `archdsl generate` prints."""

    model: str
    device: str
    dtype: str
    prompts: list[list[int]]
    """Their tokens."""
    tokens: list[list[int]]
    """Those that follow, row by row; what ends a row is its last."""
    texts: list[str] | None
    """The same as text, where there is a tokenizer."""
    first_token_ms: float
    """From the prompts to the first token."""
    tokens_per_second: float
    """Of all rows together, the first of each left out."""


class Sampling(Frozen):
    """How a token is chosen: see `stream` of an emitted module."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None


class Text:
    """Between text and tokens: by a `tokenizer.json`, or tokens written as numbers."""

    def __init__(self, path: Path | None) -> None:
        self.tokenizer: Any = None
        if path is not None:
            try:
                from tokenizers import Tokenizer
            except ImportError:
                raise error("E0502", "a tokenizer needs the package `tokenizers`", help=install("text")) from None
            try:
                self.tokenizer = Tokenizer.from_str(read_bytes(path, MAX_JSON).decode("utf-8"))
            except Exception as problem:  # of whatever type: the package raises Exception itself
                raise error("E0503", f"`{path}` is no tokenizer: {one_line(problem)}") from None

    def tokens(self, text: str) -> list[int]:
        """Raises ArchError E0503 where there is no tokenizer, and the text is no numbers."""
        if self.tokenizer is not None:
            found: list[int] = self.tokenizer.encode(text).ids
        elif IDS.fullmatch(text):
            found = [int(n) for n in re.findall(r"\d+", text)]
        else:
            raise error(
                "E0503",
                f"without a tokenizer a prompt is token ids, and this is {text[:40]!r}",
                help="`--tokenizer tokenizer.json` reads text; else write `--prompt '15 27 3'`",
            )
        if not found:
            raise error("E0503", "a prompt has at least one token")
        return found

    def text(self, tokens: Sequence[int]) -> str:
        if self.tokenizer is None:
            return " ".join(map(str, tokens))
        found: str = self.tokenizer.decode(list(tokens))
        return found


@exhaustion_told()
def generate(
    model: Model,
    prompts: Sequence[str],
    *,
    given: Mapping[str, str] | None = None,
    weights: Path | None = None,
    tokenizer: Path | None = None,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    stop: Sequence[int] = (),
    device: str = "cpu",
    dtype: str = "float32",
    compiled: bool = False,
    told: Callable[[int, str], None] | None = None,
) -> GenerateReport:
    """Go on from prompts, all as one batch. `given` are texts for further inputs of tokens, such as an encoder's.
    `told` hears of each row's text as it grows: the row, and what is new.

    Raises ArchError: E0502 where torch, the tokenizer's package or the device is missing; E0503 where the model or its
    inputs do not fit; E0504 where the model cannot be taken step by step or gives no logits of tokens."""
    torch = demand_torch()
    from archdsl.backends.torch import Extras, emit
    from archdsl.run.load import load_source

    sampling = sampling or Sampling()
    _demand_sampling(sampling)
    text = Text(tokenizer)
    where = device_called(torch, device)
    source = emit(model, Extras(frozenset({"generate", "cpu"} if where.type == "cpu" and of_amd() else {"generate"})))
    fits(torch, model, where, dtype, gradients=False)
    rows = [text.tokens(p) for p in prompts]
    _demand_known(model, [*stop, *(token for row in rows for token in row)])
    torch.manual_seed(sampling.seed or 0)
    with torch.device(where):
        module = load_source(source)()
    if weights is not None:
        load_weights(module, weights, where)
    module = module.to(getattr(torch, dtype)).eval()
    if not hasattr(module, "stream"):
        raise error("E0504", f"`{model.name}` does not go from tokens to logits of tokens, so there is none to sample")
    inputs = _others(torch, model, module, text, given or {}, len(rows), where)
    longest = max(map(len, rows))
    batch = torch.tensor([[0] * (longest - len(r)) + r for r in rows], device=where)
    real = torch.tensor([[False] * (longest - len(r)) + [True] * len(r) for r in rows], device=where)
    found: list[list[int]] = [[] for _ in rows]
    shown = [""] * len(rows)
    times = [perf_counter()]
    try:
        stream = module.stream(
            batch,
            max_new_tokens,
            **inputs,
            attention_mask=None if bool(real.all()) else real,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=sampling.seed,
            stop=stop,
            compiled=compiled,
        )
        for token in stream:
            for i, number in enumerate(token.tolist()):
                if found[i] and found[i][-1] in stop:
                    continue
                found[i].append(number)
                if told is not None:
                    after = text.text(found[i])
                    if not after.endswith("\ufffd"):  # a character may take several tokens
                        told(i, after[len(shown[i]) :])
                        shown[i] = after
            times.append(perf_counter())
    except (AssertionError, ValueError, IndexError) as problem:
        said = f"the model refused its inputs: {one_line(problem)}"
        raise error(
            "E0503", said, help="a prompt of another length, fewer tokens, or ids that its embedding has"
        ) from None
    later = times[-1] - times[1] if len(times) > 2 else 0.0
    return GenerateReport(
        model=model.name,
        device=str(where),
        dtype=dtype,
        prompts=rows,
        tokens=found,
        texts=[text.text(t) for t in found] if tokenizer is not None else None,
        first_token_ms=1e3 * (times[1] - times[0]) if len(times) > 1 else 0.0,
        tokens_per_second=sum(len(t) - 1 for t in found) / later if later else 0.0,
    )


COLDEST = 1e-3
"""The lowest temperature: by less, logits are divided beyond what their type holds."""


def _demand_sampling(sampling: Sampling) -> None:
    """Raise ArchError E0503 for numbers that choose no token, or that nothing would read."""
    if 0 < sampling.temperature < COLDEST:
        raise error("E0503", f"a temperature is 0 (greedy) or at least {COLDEST}, not {sampling.temperature:g}")
    if sampling.top_p == 0:
        raise error(
            "E0503", "top_p 0 leaves no token to choose from", help="above 0; or `--temperature 0`, the likeliest"
        )
    if not sampling.temperature and (sampling.top_k is not None or sampling.top_p is not None):
        name = "top_k" if sampling.top_k is not None else "top_p"
        said = f"{name} has no effect at temperature 0, where the likeliest token is taken"
        raise error("E0503", said, help="give a temperature too: `--temperature 1`")


def _demand_known(model: Model, tokens: Sequence[int]) -> None:
    """Raise ArchError E0503 for a token that the model has not."""
    from archdsl.estimates.params import vocabulary

    rows = vocabulary(model)
    if rows and (most := max(tokens, default=0)) >= rows:
        raise error("E0503", f"there is no token {most}: `{model.name}` has {rows:,}, from 0 on")


def of_amd() -> bool:
    """Whether the processor is one of AMD, on which oneDNN multiplies few rows in half the time of MKL; on those of
    Intel it is no faster (docs/performance.md)."""
    try:
        about = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        about = platform.processor()
    return "AuthenticAMD" in about


def _others(
    torch: Any, model: Model, module: Any, text: Text, given: Mapping[str, str], rows: int, where: torch.device
) -> dict[str, Any]:
    """Inputs beside the sequence: those of tokens as they are given, padding that says that every position is real."""
    from archdsl.backends.torch.python import local_name

    code = type(module).stream.__wrapped__.__code__
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found: dict[str, Any] = {}
    values = {local_name(n): v for n, v in model.inputs if local_name(n) in taken[2:]}
    for name in given:
        if name not in values or values[name].dtype != "token":
            there = ", ".join(n for n, v in values.items() if v.dtype == "token") or "none"
            raise error("E0503", f"the model takes no further input of tokens `{name}`", help=f"there is: {there}")
    for name, value in values.items():
        if value.dtype == "token":
            if name not in given:
                raise error("E0503", f"the model also reads `{name}`", help=f"give it: `--input {name}='…'`")
            found[name] = torch.tensor([text.tokens(given[name])] * rows, device=where)
        elif not value.is_bool:
            raise error(
                "E0503",
                f"the model also reads `{name}`, which is no text",
                help="`archdsl.to_torch` gives a module that takes it",
            )
    lengths = {d.value: x.size(i) for n, x in found.items() for i, d in enumerate(values[n].shape)}
    for name, value in values.items():
        if value.is_bool:
            shape = [rows if i == 0 else lengths.get(d.value, 1) for i, d in enumerate(value.shape)]
            found[name] = torch.ones(shape, dtype=torch.bool, device=where)
    return found
