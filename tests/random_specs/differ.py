"""What the compiler says of a spec, against what its emitted code does.

`differ(text)` compares; `python -m tests.random_specs.differ --count 2000 --seed 1` does so for many random specs, goes
on after one that fails, and shrinks at the end what it found."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import re
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from activation_tools import saved_bytes
from decode_tools import differences, inputs_for, torch_differences, widen
from flops_tools import counted, predicted
from init_tools import different
from onnx_tools import distance, onnx_bytes, run, state
from torch import Tensor, nn
from torch_versions import VERSION

from archdsl import api
from archdsl.backends.onnx.store import inline, serialized
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.onnx.write import write
from archdsl.backends.torch import Extras, emit
from archdsl.backends.torch.python import field_name
from archdsl.dependence.causality import prove
from archdsl.dependence.rows import BATCH as ROWS
from archdsl.dependence.rows import mixing
from archdsl.diagnostics import ArchError
from archdsl.estimates.activations import estimate as step_memory
from archdsl.estimates.flops import sizes_at
from archdsl.estimates.params import estimate, vocabulary
from archdsl.ir.dims import evaluate
from archdsl.ir.graph import CausalNode, Model
from archdsl.ir.text import print_model
from archdsl.ir.weights import shape_of, weights
from archdsl.passes.step import stepped
from archdsl.run.load import load_source
from archdsl.run.measure import measure

BATCH, TIME = 2, 8
TOLERANCE = 2e-4
LEAK = 1e-9
"""What a place of the result changes by, relative to the largest number, where it depends on what was changed."""


class MismatchError(AssertionError):
    """Two sides that should be equal and are not; `kind` says which."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass
class Seen:
    """What was compared, and what the verdicts were."""

    counts: Counter[str] = field(default_factory=Counter)
    seed: int = 0
    """Of the batch."""

    def note(self, what: str) -> None:
        self.counts[what] += 1


EVERYTHING = frozenset({"flops", "activations", "ort-cpu", "configs", "sections"})
"""What takes more than half of the time: FLOPs and saved bytes as PyTorch counts them, graphs for onnxruntime's own
operators, more than one other Config, and the sections that a file may have."""


def differ(text: str, seen: Seen | None = None, *, more: Collection[str] = EVERYTHING, tame: str = "") -> None:
    """Compare a spec with what is emitted, `more` of EVERYTHING too, and with `tame`, the same spec under other names.
    Raises MismatchError."""
    seen = seen or Seen()
    model = accepted(text)
    module = weighted(model)
    without_numbers(model)
    sizes = sizes_for(model)
    rewritten(text, model)
    same_bytes(text, model)
    parameters(model, module)
    inputs = inputs_for(model, sizes)
    if not shapes(model, module, inputs, sizes):
        seen.note("too large for float32: nothing more is compared")
        return
    gradients(model, inputs)
    rows(model, inputs, seen)
    if "flops" in more:
        flops(model, {**sizes, **{s.name: 16 for s in model.symbols if s.name != "batch"}})
    if "activations" in more:
        activations(model, module, inputs, seen)
    onnx(model, sizes, "portable", seen)
    if "ort-cpu" in more:
        onnx(model, sizes, "ort-cpu", seen)
    causality(model, sizes, seen)
    decoding(model, seen)
    configs(text, model, sizes, seen, 6 if "configs" in more else 1)
    if "sections" in more:
        sections(model, inputs, seen)
    if tame not in ("", text):
        twin(model, accepted(tame), sizes)
        seen.note("under other names")


def accepted(text: str) -> Model:
    try:
        return api.load(text=text, allow_noncausal=True)
    except ArchError as problem:
        raise MismatchError("refused", str(problem)) from None


@lru_cache(maxsize=1)
def source_of(model: Model) -> str:
    return emit(model)


def weighted(model: Model, seed: int = 0) -> nn.Module:
    """The emitted module, every weight of which can be seen in its results."""
    torch.manual_seed(seed)
    module: nn.Module = load_source(source_of(model))()
    widen(module)
    return module.eval()


def sizes_for(model: Model) -> dict[str, int]:
    return {s.name: BATCH if s.name == "batch" else TIME for s in model.symbols}


# --- texts ------------------------------------------------------------------------------------------------------------

_LINE = re.compile(r"<text>:\d+")


def ir_of(model: Model) -> str:
    """The printed IR without the lines of the spec."""
    return _LINE.sub("<text>", print_model(model))


def rewritten(text: str, model: Model) -> None:
    """The formatter changes nothing that matters, and is done after one turn."""
    once = api.format_text(text=text)
    if api.format_text(text=once) != once:
        raise MismatchError("format", "formatting twice gives another text")
    if ir_of(accepted(once)) != ir_of(model):
        raise MismatchError("format", "the formatted spec is another model")


def same_bytes(text: str, model: Model) -> None:
    again = accepted(text)
    if emit(again) != source_of(model):
        raise MismatchError("bytes", "two emitted files differ")
    weights_of = {k: t.detach().numpy() for k, t in state(weighted(model))}
    made = []
    for one in (model, again):
        written = write(one, GraphOptions())
        inline(written, weights_of)
        made.append(serialized(written))
    if made[0] != made[1]:
        raise MismatchError("bytes", "two ONNX graphs differ")


# --- counts and shapes ------------------------------------------------------------------------------------------------


def without_numbers(model: Model) -> None:
    """The module built on `meta` has the parameters, the names and the shapes that are counted, and no numbers. Given
    memory and initialized, it has those of any other."""
    made = load_source(source_of(model))
    with torch.device("meta"):
        module = made()
    parameters(model, module)
    elsewhere = [name for name, p in module.named_parameters() if not p.is_meta]
    if elsewhere:
        raise MismatchError("meta", f"numbers of {', '.join(elsewhere)} are made on another device")
    other = different(made, made())
    if other:
        raise MismatchError("meta", f"{', '.join(other)} are initialized otherwise after `to_empty`")


def parameters(model: Model, module: nn.Module) -> None:
    found = sum(p.numel() for p in module.parameters())
    if estimate(model).params.total != found:
        raise MismatchError("parameters", f"{estimate(model).params.total} are predicted, the module has {found}")
    said = {w.path: shape_of(w.weight) for w in weights(model) if w.weight.saved}
    held = {k: tuple(t.shape) for k, t in state(module)}
    if said != held:
        raise MismatchError("parameters", f"the state differs: {sorted(set(said.items()) ^ set(held.items()))}")


def shapes(model: Model, module: nn.Module, inputs: Mapping[str, Tensor], sizes: Mapping[str, int]) -> bool:
    """Compare shapes; whether the results are finite. Products of products may outgrow float32, and then
    smaller weights make them finite."""
    with torch.no_grad():
        results = results_of(module, inputs)
    for (name, value), found in zip(model.outputs, results, strict=True):
        expected = [int(evaluate(d.value, dict(sizes))) for d in value.shape]
        if list(found.shape) != expected:
            raise MismatchError("shapes", f"{name or 'the result'} is {list(found.shape)}, predicted {expected}")
    if all(found.isfinite().all() for found in results):
        return True
    with torch.no_grad():
        for p in module.parameters():
            p *= 0.1
        if not all(found.isfinite().all() for found in results_of(module, inputs)):
            raise MismatchError("finite", "the results are not finite")
    return False


def rows(model: Model, inputs: Mapping[str, Tensor], seen: Seen) -> None:
    """Where rows of a batch are shown to be computed apart, the first alone gives what it gives among others."""
    apart = mixing(model) is None
    if not apart or not all(value.rank and value.shape[0].value == ROWS for _, value in model.outputs):
        return
    module = weighted(model).eval()
    held = [value.rank > 0 and value.shape[0].value == ROWS for _, value in model.inputs]
    alone = {k: x[:1] if own else x for (k, x), own in zip(inputs.items(), held, strict=True)}
    with torch.no_grad():
        pairs = zip(results_of(module, inputs), results_of(module, alone), strict=True)
    seen.note("rows apart")
    for among, first in pairs:
        if distance(first.float(), among[:1].float()) > TOLERANCE:
            raise MismatchError("rows", "a row gives something else beside others")


def results_of(module: nn.Module, inputs: Mapping[str, Tensor], *more: Any) -> list[Tensor]:
    return list(_flat(module(*inputs.values(), *more)))


def _flat(results: Any) -> Iterator[Tensor]:
    if isinstance(results, Tensor):
        yield results
    else:
        for item in results.values() if isinstance(results, Mapping) else results:
            yield from _flat(item)


def gradients(model: Model, inputs: Mapping[str, Tensor]) -> None:
    """Every parameter has a gradient, and a finite one: random specs use each of their weights."""
    torch.manual_seed(1)
    module = weighted(model).train().double()  # in which squares of squares do not overflow
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    losses: dict[str, Tensor] = {}
    more = [losses] if len(inspect.signature(module.forward).parameters) > len(inputs) else []
    results = [*results_of(module, inputs, *more), *losses.values()]
    moving = [y.double() for y in results if y.requires_grad]
    if moving:
        torch.stack([(y * torch.randn_like(y)).sum() for y in moving]).sum().backward()
    missing = [name for name, p in module.named_parameters() if p.grad is None]
    if missing:
        raise MismatchError("gradients", f"none reaches {', '.join(missing)}")
    wild = [name for name, p in module.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    if wild:
        raise MismatchError("gradients", f"not finite: {', '.join(wild)}")


def flops(model: Model, sizes: Mapping[str, int]) -> None:
    said, found = predicted(model, sizes), counted(model, sizes, "cpu")  # with numbers: experts' rows end at them
    if said != found:
        raise MismatchError("flops", f"{said} are predicted (forward, step), torch counts {found}")


def activations(model: Model, module: nn.Module, inputs: Mapping[str, Tensor], seen: Seen) -> None:
    """What autograd saves, to the byte; the estimate need only be there."""
    step_memory(model, batch=BATCH, seq=TIME)
    try:
        said = measure(model, sizes_at(model, BATCH, TIME), dtype="float32", checkpoint="none", loss="eager", fixed=0)
    except ArchError as problem:
        if "E0512" not in str(problem):
            raise
        seen.note("saved bytes not known")
        return
    _, found = saved_bytes(module.train(), inputs)
    module.eval()
    normalized = any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in module.modules())
    if said.saved != found and (said.exact or (said.saved < found and not normalized)):
        raise MismatchError("activations", f"{said.saved:,} bytes are measured, autograd saves {found:,}")
    seen.note("saved bytes" if said.exact else "saved bytes at most")


# --- ONNX -------------------------------------------------------------------------------------------------------------


def onnx(model: Model, sizes: Mapping[str, int], target: str, seen: Seen) -> None:
    """onnxruntime gives the module's numbers. What is chosen by comparing numbers (experts, the largest) may turn on a
    rounding, so numbers must differ with other weights, too."""
    far = []
    for seed in (0, 1, 2):
        module, inputs = weighted(model, seed), inputs_for(model, dict(sizes), seed)
        with torch.no_grad():
            expected = results_of(module, inputs)
        found = run(onnx_bytes(model, module, target=target), inputs)
        apart = max(distance(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
        if apart <= TOLERANCE:
            seen.note(f"onnx {target}")
            return
        far.append(apart)
    raise MismatchError(f"onnx {target}", f"differs by {', '.join(f'{d:.1e}' for d in far)}")


def decoding(model: Model, seen: Seen) -> None:
    try:
        steps = stepped(model)
    except ArchError as problem:
        if "E0504" not in str(problem):
            raise
        seen.note("no decoding")
        return
    if steps.time.name not in {s.name for s in model.symbols}:
        return
    for back_end, found in (("onnx", differences), ("torch", torch_differences)):
        try:
            apart = found(model)
        except ArchError as problem:
            if "E0504" not in str(problem):
                raise
            seen.note(f"no decoding in {back_end}")
            continue
        wrong = {how: f"{d:.1e}" for how, d in apart.items() if not d <= TOLERANCE}
        if wrong and tied(model):
            seen.note("a choice among equals, which each back end takes as it likes")
            continue
        if wrong:
            kind = f"decoding in {back_end} ({', '.join(wrong)})"
            raise MismatchError(kind, f"differs from the whole sequence: {wrong}")
        seen.note(f"decoding in {back_end}")
        if "left" in apart:
            seen.note(f"decoding of rows of two lengths in {back_end}")


def tied(model: Model) -> bool:
    """Whether the k largest are chosen where the next one is as large, as of a sigmoid that is 1, or equals are put in
    order."""
    topk, argsort, gaps = Tensor.topk, Tensor.argsort, []

    def watched(x: Tensor, k: int, *more: Any, **named: Any) -> Any:
        if k < x.size(-1) and not more and not named:
            values = topk(x, k + 1).values
            gaps.append(float((values[..., k - 1] - values[..., k]).min()))
        return topk(x, k, *more, **named)

    def ordered(x: Tensor, *more: Any, **named: Any) -> Tensor:
        axis = named.get("dim", -1)
        if not more and x.size(axis) > 1:
            gaps.append(float(x.sort(dim=axis).values.diff(dim=axis).min()))
        return argsort(x, *more, **named)

    changed = patch.multiple(Tensor, topk=watched, argsort=ordered)
    with changed, torch.no_grad():
        weighted(model)(**inputs_for(model, sizes_for(model)))
    return 0.0 in gaps


# --- the same model otherwise -----------------------------------------------------------------------------------------


def configs(text: str, model: Model, sizes: Mapping[str, int], seen: Seen, count: int) -> None:
    """With another Config the module is what `--set` counts, weight for weight and number for number, or it is refused
    by a sentence."""
    made = load_source(source_of(model))
    given = inspect.signature(made).parameters.get("config")
    if given is None:
        return
    sizes_of = {f.name: f.value.value for f in model.config if isinstance(f.value.value, int)}
    options = [
        (name, n) for turn in range(3) for name, value in sizes_of.items() for n in others(value)[turn : turn + 1]
    ]
    start = zlib.crc32(text.encode()) if count == 1 else 0
    for turn in range(min(count, len(options))):
        name, value = options[(start + turn) % len(options)]
        config(text, model, (made, type(given.default)), name, value, sizes, seen)


def others(value: int) -> list[int]:
    return [2 * value, value + 1, *([value - 1] if value > 1 else [])]


def config(
    text: str, model: Model, file: tuple[Any, Any], name: str, value: int, sizes: Mapping[str, int], seen: Seen
) -> None:
    """One other Config. `file` has the classes of the module and of its Config."""
    made, config_class = file
    where = f"with {name} = {value}"
    try:
        counted_model: Model | None = api.load(text=text, set={name: value}, allow_noncausal=True)
    except ArchError as problem:
        counted_model, refused = None, problem.diagnostics[0].code
    try:
        module = made(config_class(**{field_name(name): value})).eval()
    except (AssertionError, ValueError) as problem:
        if len(str(problem).split()) < 3:
            raise MismatchError("config", f"{where} is refused by {str(problem)!r}, which is no sentence") from None
        seen.note("another Config, refused" if counted_model is not None else "another Config, refused by all")
        return
    except Exception as problem:
        raise MismatchError("config", f"{where} fails: {type(problem).__name__}: {problem}") from None
    if counted_model is None:
        silently(module, model, f"{where}, which `--set` refuses by {refused}", sizes)
        seen.note("another Config, refused by --set, fails when it is run")
        return
    other = load_source(emit(counted_model))().eval()
    inputs = inputs_for(counted_model, dict(sizes))
    try:
        parameters(counted_model, module)
        other.load_state_dict(module.state_dict())
        with torch.no_grad():
            expected = results_of(other, inputs)
            found = results_of(module, inputs)
    except (MismatchError, RuntimeError) as problem:
        raise MismatchError("config", f"{where}: {problem}") from None
    if any(differs(ours, theirs) for ours, theirs in zip(found, expected, strict=True)):
        raise MismatchError("config", f"{where} gives another result than what `--set` counts")
    seen.note("another Config")


def silently(module: nn.Module, model: Model, where: str, sizes: Mapping[str, int]) -> None:
    """What `--set` refuses and a Config does not must not run as if nothing were wrong."""
    try:
        with torch.no_grad():
            results_of(module, inputs_for(model, dict(sizes)))
    except (AssertionError, RuntimeError, ValueError, IndexError):
        return
    raise MismatchError("config refused by --set", f"the module runs {where}")


def differs(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    return found.shape != expected.shape or distance(found.float().numpy(), expected) > tolerance


def sections(model: Model, inputs: Mapping[str, Tensor], seen: Seen) -> None:
    """Files with further sections, and those that compute activations again, are the same model: its results and its
    gradients."""
    for extras in (
        Extras(frozenset({"loss"})),
        Extras(frozenset({"parallel"})),
        Extras(frozenset({"generate"}), "selective"),
        Extras(checkpoint="full"),
        *[Extras(frozenset({"varlen"}))] * (VERSION >= (2, 11)),  # which has the function that the file imports
    ):
        what = extras.options.strip()
        try:
            module = load_source(emit(model, extras), load_source(source_of(model)).__name__)()
        except ArchError as problem:
            if not problem.diagnostics[0].code.startswith("E05"):
                raise
            seen.note(f"not written {what}")
            continue
        plain = weighted(model).train()
        module.load_state_dict(plain.state_dict())
        found, expected = (step_of(m, inputs) for m in (module.train(), plain))
        if found.keys() != expected.keys():
            raise MismatchError(f"section {what}", f"gradients of others: {found.keys() ^ expected.keys()}")
        for name, value in expected.items():
            if differs(found[name], value, 1e-4):
                raise MismatchError(f"section {what}", f"another {name}")
        seen.note(f"the same {what}")


def step_of(module: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Results by number, and gradients by name, of a step of training."""
    torch.manual_seed(2)
    results = results_of(module, inputs)
    found = {f"result {i}": y.detach() for i, y in enumerate(results)}
    weighed = [
        (y.float() * torch.sin(torch.arange(y.numel()).view_as(y) + 1.0)).sum() for y in results if y.requires_grad
    ]
    if weighed:
        torch.stack(weighed).sum().backward()
    return found | {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def twin(model: Model, tame: Model, sizes: Mapping[str, int]) -> None:
    """The same spec under tame names has the same weights and gives the same."""
    module, other = weighted(model), weighted(tame)
    names, shapes_of = zip(*((k, tuple(t.shape)) for k, t in state(module)), strict=True) if state(module) else ((), ())
    others_names = [k for k, _ in state(other)]
    if list(shapes_of) != [tuple(t.shape) for _, t in state(other)]:
        raise MismatchError("twin", "under tame names the weights have other shapes")
    weights_of = dict(state(module))
    other.load_state_dict({to: weights_of[name].detach() for name, to in zip(names, others_names, strict=True)})
    inputs = inputs_for(model, dict(sizes))
    with torch.no_grad():
        ours = results_of(module, inputs)
        theirs = results_of(other, dict(enumerate(inputs.values())))  # type: ignore[arg-type]
    for found, expected in zip(ours, theirs, strict=True):
        if differs(found, expected):
            raise MismatchError("twin", "under tame names the result is another")


# --- causality --------------------------------------------------------------------------------------------------------


def causality(model: Model, sizes: Mapping[str, int], seen: Seen) -> None:
    """What is proved holds; what is refused can be seen, but for what the analysis does not follow."""
    claims = [n.ahead for n in _claims(model)]
    if not claims:
        seen.note("no claim of causality")
        return
    proved = not prove(model)
    shown = any(leaks(model, sizes, max(claims), seed) for seed in range(1 if proved else 4))
    if proved and shown:
        raise MismatchError("causality", "proved, and yet a later place changes an earlier one")
    seen.note("causal, proved" if proved else "not causal, shown" if shown else "not proved, and not shown")


def _claims(model: Model) -> Iterator[CausalNode]:
    yield from (n for n in model.block.graph.nodes if isinstance(n, CausalNode))


def leaks(model: Model, sizes: Mapping[str, int], ahead: int, seed: int) -> bool:
    """Whether what is read at a place of the model's sequence changes the first result more than `ahead - 1` places
    before."""
    inputs = {k: t.double() if t.is_floating_point() else t for k, t in inputs_for(model, dict(sizes), seed).items()}
    module = weighted(model, seed).double()
    # Experts sort their rows: what is drawn for them would stand elsewhere.
    drawn = (patch.object(F, "dropout", lambda x, *_, **__: x), patch.object(torch, "randn_like", torch.ones_like))
    with without_grouped_mm(), drawn[0], drawn[1]:
        rows = min(vocabulary(model) or 11, 11)
        return any(_leaks(module.train(mode), inputs, ahead, seed, rows) for mode in (False, True))


def _leaks(module: nn.Module, inputs: Mapping[str, Tensor], ahead: int, seed: int, rows: int) -> bool:
    source = "target" if "target" in inputs else next(iter(inputs))
    x = inputs[source]
    generator = torch.Generator().manual_seed(seed)

    def first(changed: Tensor) -> Tensor:
        torch.manual_seed(seed)  # the same noise each time
        with torch.no_grad():
            return results_of(module, {**inputs, source: changed})[0].double()

    before = first(x)
    scale = before.abs().max().clamp_min(1.0)
    for place in range(ahead, x.size(1)):
        changed = x.clone()
        if x.is_floating_point():
            changed[:, place] += 3 * torch.randn(x[:, place].shape, generator=generator, dtype=torch.double)
        else:
            changed[:, place] = (changed[:, place] + torch.randint(1, 7, (x.size(0),), generator=generator)) % rows
        difference = (first(changed) - before).abs().flatten(2).amax(dim=(0, 2)) / scale
        if (difference[: place - ahead + 1] > LEAK).any():
            return True
    return False


@contextlib.contextmanager
def without_grouped_mm() -> Iterator[None]:
    """Torch's kernel for experts takes no float64; emitted code does without it where torch has none."""
    kernel = F.__dict__.get("grouped_mm")
    if kernel is not None:
        del F.grouped_mm
    try:
        yield
    finally:
        if kernel is not None:
            F.grouped_mm = kernel


# --- many of them -----------------------------------------------------------------------------------------------------


def failing(
    text: str, seen: Seen | None = None, *, more: Collection[str] = EVERYTHING, tame: str = ""
) -> tuple[str, str] | None:
    """What is wrong with a spec and how it is told apart from other failures; None if nothing is."""
    try:
        differ(text, seen, more=more, tame=tame)
    except MismatchError as problem:
        return problem.kind, str(problem)
    except Exception as problem:
        last = [f for f in inspect.getinnerframes(problem.__traceback__) if "archdsl" in f.filename][-1:]
        where = f"{Path(last[0].filename).name}:{last[0].function}" if last else ""
        where = re.sub(r"<archdsl_emitted_\w+>", "emitted", where)
        return f"{type(problem).__name__} {where}", f"{type(problem).__name__} {where}: {problem}"
    finally:
        forget()
    return None


def forget() -> None:
    """Drop the emitted modules that are loaded."""
    import linecache

    for name in [n for n in sys.modules if n.startswith("archdsl_emitted_")]:
        linecache.cache.pop(f"<{name}>", None)
        del sys.modules[name]


def many(
    count: int,
    first_seed: int,
    *,
    shrink: bool,
    report: Callable[[str], None],
    keep: Path | None = None,
    quick: bool = False,
    hostile: bool = True,
) -> int:
    """Draw and compare specs, batch by batch; how many kinds of failure there were."""
    from hypothesis import HealthCheck, Phase, find, given, seed, settings

    from random_specs.strategies import Twins, twins

    quiet = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}
    seen, found, begun, done = Seen(), {}, time.monotonic(), 0
    seen.seed = first_seed
    while done < count:

        @seed(seen.seed)
        @settings(max_examples=min(50, count - done), phases=[Phase.generate], **quiet)
        @given(twins(hostile))
        def compare(made: Twins) -> None:
            nonlocal done
            done += 1
            text = made.text
            wrong = failing(text, seen, more=() if quick and done % 3 else EVERYTHING, tame=made.tame)
            if wrong is not None and (wrong[0] not in found or len(text) < len(found[wrong[0]][0])):
                if wrong[0] not in found:
                    report(f"seed {seen.seed}: {wrong[1][:300]}\n{text}")
                found[wrong[0]] = (text, wrong[1])
            if wrong is not None:
                seen.note(f"FAILED {wrong[0]}")

        compare()
        report(f"{done} specs, seed {seen.seed}, {time.monotonic() - begun:.0f} s, {len(found)} kinds of failure")
        seen.seed += 1
    for what, times in sorted(seen.counts.items()):
        report(f"{times:6,}  {what}")
    for i, (kind, (text, message)) in enumerate(found.items()):
        if shrink:
            try:
                text = find(
                    twins(hostile),
                    lambda t, kind=kind: (failing(t.text, tame=t.tame) or ("",))[0] == kind,
                    settings=settings(max_examples=100, phases=[Phase.generate, Phase.shrink], **quiet),
                ).text
            except Exception:
                report("(not found again)")
        report(f"\n{message}\n{text}")
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"found_{first_seed}_{i}.arch").write_text(
                f"# {message.splitlines()[0][:200]}\n{text}", encoding="utf-8"
            )
    return len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch of 50; each next has one more")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--quick", action="store_true", help="count FLOPs and run ort-cpu for every third only")
    parser.add_argument("--tame", action="store_true", help="no hostile names, values without names, …")
    parser.add_argument("--keep", type=Path, help="a folder for what failed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    warnings.filterwarnings("ignore")
    wrong = many(
        given.count,
        given.seed,
        shrink=not given.no_shrink,
        report=lambda s: print(s, flush=True),
        keep=given.keep,
        quick=given.quick,
        hostile=not given.tame,
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
