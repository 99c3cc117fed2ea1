"""What a program can ask of the compiler. Nothing here loads a back end before it is used, or the compiler before it is
asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from archdsl.diagnostics import ArchError, Diagnostic, did_you_mean, error

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
    from archdsl.frontend.modules import Module
    from archdsl.ir.graph import Model
    from archdsl.syntax import ast

Settings = Mapping[str, "str | int | float | bool"]

_COMPILED = re.compile(r"^(model|variant)[ \t]+([^\W\d]\w*)", re.MULTILINE)
_COMMENT = re.compile(r"\A(?:[ \t]*#[^\n]*\n)*")


# --- what a spec is called --------------------------------------------------------------------------------------------


class ZooEntry(NamedTuple):
    """A model or variant that ships with the compiler."""

    name: str
    kind: str
    """`model` or `variant`."""
    file: str
    """Its file's name in the zoo: `gpt2.arch`."""
    description: str
    """The file's first line."""


@cache
def list_zoo() -> tuple[ZooEntry, ...]:
    """Every model and variant of the zoo, by file. Looks at texts only: nothing is parsed."""
    from archdsl.resources import zoo_files

    found = []
    for path in zoo_files().values():
        text = path.read_text(encoding="utf-8", errors="replace")
        comment = _COMMENT.match(text)
        lines = comment[0].splitlines() if comment else []
        about = lines[0].lstrip("# \t").rstrip() if lines else ""
        found += [ZooEntry(m[2], m[1], path.name, about) for m in _COMPILED.finditer(text)]
    return tuple(found)


class Spec(NamedTuple):
    """A spec that was found: its text, where it lies, below which folder it may import, and which of its models is
    meant."""

    source: Source
    path: Path | None
    root: Path | None
    model: str | None


def find_spec(spec: str | Path | None, *, text: str | None = None, model: str | None = None) -> Spec:
    """The spec of a path, `path:model`, or the name of a model of the zoo; or of a text.

    Raises ArchError: E0108 where there is no such file or it cannot be read, E0210 where the zoo has no such model."""
    if text is not None:
        from archdsl.syntax.parse import given_text

        return Spec(given_text(str(spec) if spec is not None else "<text>", text), None, None, model)
    if spec is None:
        raise TypeError("give a spec: a path, the name of a model of the zoo, or text=…")
    name = str(spec)
    if isinstance(spec, Path) or _is_path(name):
        return _file(Path(name), name, model)
    head, colon, tail = name.rpartition(":")
    if colon and head and (_is_path(head) or head in _stems()) and tail.isidentifier():
        if _is_path(head):
            return _file(Path(head), head, model or tail)
        return _zoo(head, model or tail)
    return _zoo(name, model)


def _is_path(name: str) -> bool:
    if name.endswith(".arch"):
        return True
    if "/" in name or "\\" in name:
        return not name.rpartition(":")[2].isidentifier()
    try:
        return Path(name).is_file() and name not in _stems() and all(e.name != name for e in list_zoo())
    except (OSError, ValueError):
        return False


def _stems() -> Mapping[str, Path]:
    from archdsl.resources import zoo_files

    return zoo_files()


def _file(path: Path, shown: str, model: str | None) -> Spec:
    from archdsl.syntax.parse import read_source

    try:
        full = path.resolve()
        here = Path.cwd()
    except (OSError, ValueError, RuntimeError) as problem:
        raise error("E0108", f"`{shown}` cannot be read: {problem}") from None
    below = full.is_relative_to(here)
    root = here if below else full.parent
    return Spec(
        read_source(full, full.relative_to(root).as_posix()) if below else read_source(full, shown), full, root, model
    )


def _zoo(name: str, model: str | None) -> Spec:
    from archdsl.syntax.parse import read_source

    files = _stems()
    entries = [e for e in list_zoo() if e.name == name]
    if entries:
        # A model that two files declare is the one of the file that is called so.
        entry = next((e for e in entries if e.file == f"{name}.arch"), entries[0])
        path, model = files[entry.file.removesuffix(".arch")], model or name
    elif name in files:
        path = files[name]
    else:
        known = {e.name for e in list_zoo()} | set(files)
        raise error(
            "E0210",
            f"the zoo has no model `{name}`, and there is no file of that name",
            help=did_you_mean(name, known)
            or "`archdsl list` shows the zoo; a spec of your own is given as a path: `model.arch`",
        )
    return Spec(read_source(path, path.name), path, path.parent, model)


# --- the front half ---------------------------------------------------------------------------------------------------


def load(
    spec: str | Path | None = None,
    *,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> Model:
    """Read, elaborate and check a spec.

    `spec` is a path, `path:model`, or the name of a model of the zoo; `text` is a spec itself. `model` picks one where
    a file declares several (the first by default), and `set` gives its hyper-parameters other values. Raises ArchError
    with everything that is wrong; a logit that later tokens reach is an error too, unless `allow_noncausal`."""
    return load_found(find_spec(spec, text=text, model=model), set, allow_noncausal)


def load_found(spec: Spec, set: Settings | None = None, allow_noncausal: bool = False) -> Model:
    """`load` for a spec that `find_spec` has found."""
    model, causality = _elaborate(spec, set)
    wrong = [d for d in causality if d.is_error and not allow_noncausal]
    if wrong:
        raise ArchError(wrong)
    return model


def _elaborate(spec: Spec, set: Settings | None) -> tuple[Model, list[Diagnostic]]:
    from archdsl.dependence.causality import prove

    model = _build(module_of(spec), spec.model, set)
    return model, prove(model)


def _build(module: Module, name: str | None, set: Settings | None) -> Model:
    from archdsl.frontend.lowering import Elaborator

    return Elaborator(module).build(name, {k: _setting(v) for k, v in (set or {}).items()})


def module_of(spec: Spec) -> Module:
    """The file of a spec and its imports, parsed."""
    from archdsl.frontend.modules import Loader

    return Loader(spec.root).load(spec.source, spec.path)


def _setting(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def check(
    spec: str | Path | None = None,
    *,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> tuple[Diagnostic, ...]:
    """Everything that can be said against a spec, errors and lints; () for one that is fine. Arguments as for `load`;
    never raises ArchError. Without `model`, every model and variant that the file declares is checked."""
    try:
        found = find_spec(spec, text=text, model=model)
        return check_found(found, set, allow_noncausal)
    except ArchError as problem:
        return problem.diagnostics


def check_found(spec: Spec, set: Settings | None = None, allow_noncausal: bool = False) -> tuple[Diagnostic, ...]:
    """`check` for a spec that `find_spec` has found."""
    from archdsl.dependence.causality import prove
    from archdsl.frontend.lint import lints
    from archdsl.frontend.modules import models

    names: list[str | None] = [spec.model]
    found: dict[tuple[str, str, object], Diagnostic] = {}
    try:
        parsed = module_of(spec)
        if spec.model is None and not set:
            names = [*_settled(models(parsed))] or [None]
    except ArchError as problem:
        return problem.diagnostics
    for name in names:
        try:
            module = parsed.fresh()
            model = _build(module, name, set)
            said = [*model.diagnostics, *([] if allow_noncausal else prove(model)), *lints(model, module)]
        except ArchError as problem:
            said = list(problem.diagnostics)
        for d in said:
            place = (d.span.source.name, d.span.start, d.span.end) if d.span is not None else None
            found.setdefault((d.code, d.message, place), d)
    return tuple(found.values())


def _settled(declared: Mapping[str, ast.Model | ast.Variant]) -> list[str]:
    """The models that can be checked: one that must be given a number is checked as each of its variants."""
    from archdsl.syntax import ast

    based_on = set()
    for d in declared.values():
        call = d.value if isinstance(d, ast.Variant) else None
        function = call.function if isinstance(call, ast.Call) else call
        if isinstance(function, ast.Name):
            based_on.add(function.id)

    def is_open(d: ast.Model | ast.Variant) -> bool:
        return isinstance(d, ast.Model) and any(h.default is None for h in d.header.hypers or ())

    return [n for n, d in declared.items() if n not in based_on or not is_open(d)]


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
    return count(
        loaded,
        batch=batch,
        seq=seq,
        dtype=dtype,
        optimizer=optimizer,
        master_weights=master_weights,
        recompute=recompute,
        measure=measure,
    )


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


def demand_packages(what: str, *names: str) -> None:
    """Raises ArchError E0502 where one of these packages is not installed."""
    from importlib.util import find_spec as installed

    missing = [name for name in names if installed(name) is None]
    if missing:
        raise error(
            "E0502",
            f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            help="pip install 'archdsl[onnx]'",
        )


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
    return expand_spec(module_of(found), found.model, {k: _setting(v) for k, v in (set or {}).items()}, block)
