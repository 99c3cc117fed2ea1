"""What a program can ask of the compiler. Nothing here loads a back end before it is used, or the compiler before it is
asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from archdsl.diagnostics import did_you_mean, error
from archdsl.frontend.load import (
    Settings,
    Spec,
    ZooEntry,
    check,
    check_found,
    find_spec,
    list_zoo,
    load,
    load_found,
    module_of,
    setting_text,
)

if TYPE_CHECKING:
    from torch import nn

    from archdsl.backends.onnx.store import OnnxFiles
    from archdsl.backends.torch.features import Checkpoint
    from archdsl.diagnostics.source import Source
    from archdsl.estimates.activations import Recompute
    from archdsl.estimates.dtypes import Dtype
    from archdsl.estimates.flops import Convention, Flops
    from archdsl.estimates.memory import Memory, Optimizer
    from archdsl.estimates.params import ParamsReport
    from archdsl.ir.graph import Model

__all__ = [
    "Settings",
    "Spec",
    "ZooEntry",
    "check",
    "check_found",
    "draw_weights",
    "estimate",
    "expand",
    "find_spec",
    "flops",
    "format_text",
    "list_zoo",
    "load",
    "load_found",
    "memory",
    "module_from",
    "module_of",
    "onnx_from",
    "source_for",
    "to_onnx",
    "to_torch",
    "torch_source",
]


def estimate(
    spec: str | Path | None = None,
    *,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> ParamsReport:
    """Exact parameter counts, from the IR alone. Arguments and errors as for `load`."""
    from archdsl.estimates.params import estimate as count

    return count(load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal))


def flops(
    spec: str | Path | None = None,
    *,
    batch: int = 1,
    seq: int | None = None,
    convention: Convention = "exact",
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> Flops:
    """Exact FLOPs for `batch` sequences of `seq` places (2,048 or the context, if less), from the IR alone.

    `convention` (exact, dense, megatron, palm, kaplan) says how attention, or all of it, is counted. Other arguments
    and errors as for `load`, and ArchError E0503 where the model refuses these sizes."""
    from archdsl.estimates.flops import estimate as count

    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    return count(loaded, batch=batch, seq=seq, convention=convention).flops


def memory(
    spec: str | Path | None = None,
    *,
    batch: int = 1,
    seq: int | None = None,
    dtype: Dtype = "float32",
    optimizer: Optimizer = "adamw",
    master_weights: bool = False,
    recompute: Recompute = "none",
    measure: bool = False,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> Memory:
    """Exact bytes of weights, gradients and the optimizer's states in `dtype`, and of what a decoder keeps of `batch`
    sequences of `seq` places (2,048 or the context, if less), from the IR alone.

    `optimizer` is sgd, sgd-momentum, adam, adamw, adamw8bit, adafactor or muon; with `master_weights` it works on a
    float32 copy of weights of another type. Of a step of training it is estimated what it saves for its backward pass,
    and its peak; `recompute` is none, selective or full. With `measure` PyTorch runs the emitted file on fake tensors:
    the bytes are then exact in `measured`. Other arguments and errors as for `flops`, and E0512 where numbers decide
    what is measured."""
    from archdsl.estimates.memory import estimate as count

    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    found = count(
        loaded,
        batch=batch,
        seq=seq,
        dtype=dtype,
        optimizer=optimizer,
        master_weights=master_weights,
        recompute=recompute,
    )
    if not measure:
        return found
    from archdsl.run.measure import with_measured

    return with_measured(found, loaded, recompute)


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def torch_source(
    spec: str | Path | None = None,
    *,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    sections: Collection[str] = (),
    checkpoint: Checkpoint = "none",
) -> str:
    """The model as one PyTorch file that imports only the standard library and torch. Loads no torch. `sections` are
    parts beside the plain model; `checkpoint` says what the backward pass computes again. Arguments and errors as for
    `load`; E0508 for a section that there is not."""
    from archdsl.backends.torch import Extras, emit
    from archdsl.backends.torch.features import NAMES

    for name in sections:
        if name not in NAMES:
            help_ = did_you_mean(name, NAMES) or f"there are {', '.join(NAMES)}"
            raise error("E0508", f"an emitted file has no section `{name}`", help=help_)
    extras = Extras(frozenset(n for n in NAMES if n in sections), checkpoint)
    return emit(load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal), extras)


def to_torch(
    spec: str | Path | None = None,
    *,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> nn.Module:
    """The model as a module, made by executing what `torch_source` gives. Arguments and errors as for `load`; needs
    torch."""
    return module_from(load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal))


def module_from(model: Model) -> nn.Module:
    """The emitted module of a loaded model."""
    from archdsl.backends.torch import emit
    from archdsl.run.load import load_source

    module: nn.Module = load_source(emit(model))()
    return module


def source_for(
    spec: str | Path,
    to: str,
    *,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    sections: Collection[str] = (),
    checkpoint: Checkpoint = "none",
) -> str:
    """The spec compiled to a back end, as text. Raises ArchError: E0501 for one that there is not."""
    if to != "torch":
        help_ = "`--to torch` writes one PyTorch file, `--to onnx` a graph"
        raise error("E0501", f"there is no lowering to `{to}`", help=did_you_mean(to, ["torch", "onnx"]) or help_)
    return torch_source(spec, set=set, allow_noncausal=allow_noncausal, sections=sections, checkpoint=checkpoint)


def draw_weights(
    model: Model, seed: int, dtype: str, path: Path, progress: Callable[[str, int], None] | None = None
) -> None:
    """Draw every weight as the spec says and write a safetensors file, one tensor at a time and without torch. The same
    seed draws the same numbers everywhere. `progress` is told each path and how many numbers it holds. Raises OSError
    where it cannot be written."""
    from archdsl.weights.safetensors import draw

    draw(model, seed, dtype, path, progress)


# --- ONNX -------------------------------------------------------------------------------------------------------------


def to_onnx(
    spec: str | Path | None = None,
    output: str | Path = "model.onnx",
    *,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    dtype: str = "float32",
    target: str = "portable",
    quantize: str | None = None,
    keep: Sequence[str] = (),
    weights: str | Path | None = None,
    seed: int | None = None,
    store: Literal["safetensors", "onnx_data", "inline"] = "safetensors",
    decode: bool = False,
    logits: Literal["all", "last"] = "all",
    bos_token_id: int | None = None,
    eos_token_id: Sequence[int] = (),
    pad_token_id: int | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> OnnxFiles:
    """Write the model as an ONNX graph for inference, batch and lengths open; which files there are now.

    `output` is a file `….onnx`, or a directory for `model.onnx`. `dtype` (float32, float16, bfloat16) is that of
    weights and activations; `target` is `portable`, or an execution provider of onnxruntime whose own operators may be
    used: `ort-cpu`, `ort-cuda`. `quantize` (int8, int4) stores the matrices of linear maps in so few bits, but for
    those whose path a pattern of `keep` matches.

    The weights come from a safetensors file (`weights`) or are drawn (`seed`), and go to where `store` says: a
    safetensors file beside the graph, in PyTorch's layout; a file of plain numbers beside it; or the graph itself. With
    neither, the graph refers to the safetensors file that `draw_weights` would write beside it.

    With `decode`, the graph takes the new tokens and what it kept of those before; what a model computes once before
    the first step is a graph of its own, `encoder.onnx` beside `model.onnx`, `x_encoder.onnx` beside `x.onnx`. A
    directory then also gets `config.json` and `genai_config.json`, by which optimum and onnxruntime-genai load it,
    where they can feed the model (`remark` of what is returned says why not). They hold the ids of tokens with a
    meaning: padding is by default what ends a text, or 0. `logits` says whether a step gives those of all new tokens,
    or of each row's last alone, which is all that generating asks of a prompt.

    Loads no torch. Other arguments and errors as for `load`, and ArchError: E0502 where onnx or onnx-ir is missing,
    E0503 where `weights` is not the model's, E0504 where it cannot be written like this. Raises OSError where a file
    cannot be written."""
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    return onnx_from(
        loaded,
        output,
        dtype=dtype,
        target=target,
        quantize=quantize,
        keep=keep,
        weights=Path(weights) if weights is not None else None,
        seed=seed,
        store=store,
        decode=decode,
        logits=logits,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        progress=progress,
    )


def onnx_from(
    model: Model,
    output: str | Path,
    *,
    dtype: str = "float32",
    target: str = "portable",
    quantize: str | None = None,
    keep: Sequence[str] = (),
    weights: Path | None = None,
    seed: int | None = None,
    store: Literal["safetensors", "onnx_data", "inline"] = "safetensors",
    decode: bool = False,
    logits: Literal["all", "last"] = "all",
    bos_token_id: int | None = None,
    eos_token_id: Sequence[int] = (),
    pad_token_id: int | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> OnnxFiles:
    """`to_onnx` for a loaded model."""
    from archdsl.backends.onnx import demand_packages

    demand_packages("writing ONNX", "onnx", "onnx_ir")
    if logits not in ("all", "last") or (logits == "last" and not decode):
        raise error(
            "E0504",
            f"no graph of a {'step' if decode else 'whole sequence'} gives the logits of `{logits}`",
            help="a step, with `decode`, gives those of `all` new tokens, or of the `last` of each row",
        )
    if decode:
        from archdsl.backends.onnx.runtimes import Tokens, save_steps

        return save_steps(
            model,
            output,
            Tokens(bos_token_id, tuple(eos_token_id), pad_token_id),
            dtype=dtype,
            target=target,
            quantize=quantize,
            keep=keep,
            last=logits == "last",
            weights=weights,
            seed=seed,
            store=store,
            progress=progress,
        )
    from archdsl.backends.onnx.store import graph_path, save
    from archdsl.backends.onnx.write import write

    written = write(model, dtype=dtype, target=target, quantize=quantize, keep=keep)
    path = graph_path(output)
    return save({path: written}, model, weights=weights, seed=seed, store=store, progress=progress)


# --- texts ------------------------------------------------------------------------------------------------------------


def format_text(source: Source) -> str:
    """A spec in its canonical form. Raises ArchError for one that cannot be parsed."""
    from archdsl.syntax.format import format_file
    from archdsl.syntax.parse import parse

    return format_file(parse(source), source)


def expand(spec: str | Path, *, set: Settings | None = None, block: str | None = None) -> str:
    """A spec with its declared bodies written out as the equations they stand for; with `block`, only that block or
    model."""
    from archdsl.frontend.expand import expand_spec

    found = find_spec(spec)
    return expand_spec(module_of(found), found.model, {k: setting_text(v) for k, v in (set or {}).items()}, block)
