"""A lifted spec against its module: shapes, outputs, decode steps, and what a training step does otherwise.

Before outputs are compared, every weight gets random numbers added: a gain of 1 or a bias of 0 would hide another one
that was taken for it. The module keeps its own: it is called with others in their place."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from archdsl.diagnostics import ArchError, shortened
from archdsl.interop.lift.declared import Declaration
from archdsl.interop.lift.export import Exported, Lengths, Value, export, waits
from archdsl.interop.lift.inputs import Input
from archdsl.interop.lift.module import Number, Subject, asked, is_hollow, prepared, role, said
from archdsl.interop.lift.report import TOLERANCE, InitialValue, LiftCheck
from archdsl.interop.lift.table import Table
from archdsl.ir.paths import starred
from archdsl.run.difference import IncomparableError, farthest
from archdsl.weights.safetensors import arrays, saved

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archdsl.ir.graph import Model

CALLS = ((2, 11), (1, 67))
"""Batches and lengths that are compared: others than those of the recording, and beyond small windows."""
STEPS = 24
"""So many single decode steps behind a prompt are compared."""
PROMPT = 6
SEEDS = 4
"""So many times a module is initialized to measure how."""


@dataclass(frozen=True)
class Side:
    """The module in one configuration, and how it is called."""

    module: nn.Module
    changes: Mapping[str, Number]
    """What is other than in its own configuration."""
    numbers: Mapping[str, Number]
    inputs: Sequence[Input]
    results: Sequence[int]
    """Which of the tensors that it returns are the spec's results."""
    lengths: Lengths
    """The lengths that it takes."""

    def example(self, batch: int, time: int, seed: int = 0) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {i.name: i.made(batch, time, self.numbers, generator) for i in self.inputs}

    def length(self, time: int) -> int:
        """A length that it takes, if `time` is none."""
        contexts = [int(v) for n, v in self.numbers.items() if role(n) == "context" and v > 0]
        return self.lengths.near(min([time, *contexts]))

    def call(self, weights: Mapping[str, Tensor], example: Mapping[str, Tensor]) -> list[Tensor]:
        """Return its results with other weights in place of its own. Raises ArchError E0544."""
        with asked(f"`{type(self.module).__name__}` cannot be called"), torch.no_grad():
            result = torch.func.functional_call(self.module, dict(weights), (), dict(example))
        leaves = [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor)]
        return [leaves[i] for i in self.results]


def at(changes: Mapping[str, Number]) -> str:
    """Return in words which configuration it is."""
    return f" at {', '.join(f'{k}={v}' for k, v in changes.items())}" if changes else ""


# --- weights ----------------------------------------------------------------------------------------------------------


def size(module: nn.Module) -> int:
    """Return how many parameters a module has."""
    return sum(p.numel() for p in module.parameters())


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of a module by each of its names."""
    named = dict(module.named_parameters(remove_duplicate=False))
    return {**{k: v.detach() for k, v in named.items()}, **dict(module.named_buffers(remove_duplicate=False))}


def unread(recorded: Exported) -> set[str]:
    """The parameters that take no part in the results of a call, by all of their names."""
    read = {value.name for value in reached(recorded) if value.op == "weight"}
    groups = shared(recorded.module)
    return {name for name, alike in groups.items() if not read & {*alike}}


def parameters(side: Side, model: Model, table: Table, unread: Collection[str]) -> LiftCheck:
    """Compare the weights of the spec with those of the module: every name, every shape, and how many numbers. Those
    that are `unread` are nothing of the spec's."""
    theirs = tensors(side.module)
    own = {name: p for name, p in side.module.named_parameters() if name not in unread}
    groups = shared(side.module)
    wrong: list[str] = []
    used: set[str] = set()
    count = 0
    for info in saved(model):
        row = table.of(info.path)
        if row is None or row.theirs not in theirs:
            wrong.append(f"`{info.path}` is nothing of the module's")
            continue
        shape = tuple(theirs[row.theirs].shape)
        shape = (*shape[:-2], *shape[:-3:-1]) if row.transposed else shape
        if shape != tuple(info.shape):
            wrong.append(f"`{info.path}` is {list(info.shape)}, and `{row.theirs}` {list(shape)}")
        used |= {n for n in groups.get(row.theirs, ()) if n in own} or {row.theirs}
        count += info.size if info.weight.trained else 0
    wrong += [f"the spec has no `{name}` {list(p.shape)}" for name, p in own.items() if name not in used]
    total = sum(p.numel() for p in own.values())
    text = f"{total:,} parameters in {len(own):,} tensors"
    if wrong:
        more = f" and {len(wrong) - 3} more" if wrong[3:] else ""
        text = f"weights differ{at(side.changes)}: {'; '.join(wrong[:3])}{more}"
    elif count > total:
        wrong, text = ["more"], f"the spec has {count:,} parameters{at(side.changes)}, and the module {total:,}"
    return LiftCheck(
        what="parameters", configuration=dict(side.changes), passed=not wrong, difference=None, message=text
    )


def shared(module: nn.Module) -> dict[str, list[str]]:
    """All names of the tensor that each name is."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return {name: alike for alike in names.values() for name in alike}


def perturbed(module: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Its parameters, and buffers that wait for numbers, with random numbers added, each by one of its names."""
    generator = torch.Generator().manual_seed(seed)

    def moved(p: Tensor) -> Tensor:
        if not p.is_floating_point():
            return p.detach().clone()
        noise = torch.randn(p.shape, generator=generator) * (0.1 if p.dim() < 2 else 0.02)
        return p.detach().float() + noise

    kept = module.state_dict()
    buffers = [(name, b) for name, b in module.named_buffers() if name in kept and waits(b)]
    return {name: moved(p) for name, p in (*module.named_parameters(), *buffers)}


def _ours(side: Side, model: Model, table: Table, weights: Mapping[str, Tensor], ours: nn.Module) -> None:
    """Give a module of ours the weights of theirs. Raises KeyError or RuntimeError where they do not fit."""
    named = {**tensors(side.module), **weights}
    for alike in shared(side.module).values():
        moved = next((weights[n] for n in alike if n in weights), None)
        named |= dict.fromkeys(alike, moved) if moved is not None else {}
    state = {}
    for path, value in ours.state_dict().items():
        row = table.of(path)
        if row is None:
            raise KeyError(path)
        tensor = named[row.theirs]
        state[path] = (tensor.mT if row.transposed else tensor).to(value.dtype)
    ours.load_state_dict(state)


# --- outputs ----------------------------------------------------------------------------------------------------------


def outputs(side: Side, model: Model, table: Table, names: Sequence[str]) -> LiftCheck:
    """Compare the outputs of the emitted module with the module's own, at two other batches and lengths than were
    recorded. `names` are the inputs in the spec's order."""
    from archdsl.backends.torch import emit
    from archdsl.run.load import load_source

    ours = load_source(emit(model))().eval()
    worst, calls = 0.0, []
    weights = perturbed(side.module)
    message = ""
    try:
        _ours(side, model, table, weights, ours)
        for seed, (batch, time) in enumerate(CALLS):
            time = side.length(time)
            example = side.example(batch, time, seed)
            calls.append(f"{batch} × {time}")
            expected = side.call(weights, example)
            with torch.no_grad():
                found = ours(*(example[n] for n in names))
            found = [found] if isinstance(found, Tensor) else [*found]
            message = message or _shapes_differ(expected, found)
            if not message:
                worst = max(worst, farthest(found, expected))
    except IncomparableError as problem:
        message = f"outputs{at(side.changes)} cannot be compared: {problem}"
    except (KeyError, ValueError, RuntimeError, AssertionError) as problem:
        message = f"the emitted module cannot be called: {said(problem)}"
    except ArchError as problem:
        message = problem.diagnostics[0].message
    equal = f"outputs{at(side.changes)} are equal to {worst:.1e} of the largest"
    apart_by = f"outputs{at(side.changes)} differ by {worst:.1e} of the largest, and {TOLERANCE:g} passes"
    shown = f" (batch × length {', '.join(dict.fromkeys(calls))})"
    return _judged("outputs", side, worst, message, equal + shown, apart_by + shown)


def _judged(
    what: Literal["outputs", "decode steps"], side: Side, worst: float, wrong: str, equal: str, differs: str
) -> LiftCheck:
    """Return the check of a comparison. Its message is `wrong` if that is not empty, else `equal` where `worst` is
    within the tolerance, else `differs`."""
    passed = not wrong and worst <= TOLERANCE
    return LiftCheck(
        what=what,
        configuration=dict(side.changes),
        passed=passed,
        difference=worst if not wrong and math.isfinite(worst) else None,
        message=wrong or (equal if passed else differs),
    )


def _shapes_differ(expected: Sequence[Tensor], found: Sequence[Tensor]) -> str:
    theirs, ours = ([list(t.shape) for t in side] for side in (expected, found))
    return "" if theirs == ours else f"outputs are {ours}, and the module's {theirs}"


def decode_steps(side: Side, model: Model, table: Table, names: Sequence[str]) -> LiftCheck | str | None:
    """Compare single decode steps, with a KV cache, with the module's own call on the whole sequence. None where the
    model is no decoder of one sequence; a text where it cannot be decoded, which says why."""
    from archdsl.backends.torch import Extras, emit
    from archdsl.run.load import load_source
    from archdsl.run.torch_decoder import TorchDecoder

    if len(side.inputs) != 1 or side.inputs[0].kind != "token" or side.inputs[0].open != ("batch", "time"):
        return None
    try:
        source = emit(model, Extras(frozenset({"generate"})))
    except ArchError as problem:
        return f"it cannot be decoded step by step: {problem.diagnostics[0].message}"
    ours = load_source(source)().eval()
    weights = perturbed(side.module, 1)
    time = side.length(PROMPT + STEPS)
    prompt = min(PROMPT, time - 1)
    if prompt < 1:
        return None
    try:
        _ours(side, model, table, weights, ours)
        example = side.example(2, time, 2)
        whole, decoder = side.call(weights, example), TorchDecoder(model, ours)
        expected = [whole[i] for i in decoder.results]
        found = decoder.run({n: example[n] for n in names}, [prompt, *[1] * (time - prompt)])
        message = _shapes_differ(expected, found)
        worst = 0.0 if message else farthest(found, expected)
    except IncomparableError as problem:
        message, worst = f"decode steps cannot be compared: {problem}", 0.0
    except (KeyError, ValueError, RuntimeError, AssertionError) as problem:
        message, worst = f"decode steps of the emitted module fail: {said(problem)}", 0.0
    except ArchError as problem:
        message, worst = problem.diagnostics[0].message, 0.0
    steps, largest = f"{time - prompt} decode steps with a cache{at(side.changes)}", "of the module's largest output"
    equal, differs = (f"{steps} {verb} {worst:.1e} {largest}" for verb in ("are equal to", "differ by"))
    return _judged("decode steps", side, worst, message, equal, differs)


# --- training ---------------------------------------------------------------------------------------------------------


def in_training(
    side: Side, recorded: Exported, example: Mapping[str, Tensor], declarations: Sequence[Declaration] = ()
) -> list[str]:
    """Return what a training step of the module does that its evaluation does not, by the paths of its parts: another
    recording, of training, is compared op by op."""
    axes = {i.name: i.open for i in side.inputs}
    flags = {part: part.training for part in side.module.modules()}
    try:
        side.module.train()
        other = export(side.module, example, axes, declarations, types=False)
    except ArchError as problem:
        return [f"its training step cannot be traced: {problem.diagnostics[0].message}"]
    finally:
        for part, flag in flags.items():
            part.training = flag
    if other.decomposed and not recorded.decomposed:  # the running statistics of a norm are written into
        recorded = export(side.module, example, axes, declarations, types=False, decomposed=True)
    before, after = _calls(recorded), _calls(other)
    found: dict[str, dict[str, None]] = {}
    for place in {**before, **after}:
        for op in {**before.get(place, {}), **after.get(place, {})}:
            own, new = before.get(place, {}).get(op, []), after.get(place, {}).get(op, [])
            if own != new:
                found.setdefault(_training_text(op, own, new), {})[place] = None
    return [f"in training, {text}: {', '.join([*places][:4])}" for text, places in found.items()]


def _calls(recorded: Exported) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
    """The numbers that each operator is called with, by the module that calls it, those of all layers together."""
    found: dict[str, dict[str, list[tuple[Any, ...]]]] = {}
    for value in reached(recorded):
        if value.op in ("input", "weight", "constant", "item") or value.op in SAME_IN_BOTH:
            continue
        if value.op in DROPOUT and recorded.decomposed:  # in evaluation it has no parts
            continue
        place = value.places[-1] if value.places else None
        name = (
            f"`{starred(place.module)}` ({place.cls})" if place is not None else f"`{type(recorded.module).__name__}`"
        )
        rates = [a for a in (*value.args, *value.options.values()) if isinstance(a, float)]
        if value.op in DROPOUT:  # whether it is on is what training is
            rates = []
        numbers = (*rates, *(a for a in value.args if isinstance(a, bool) and value.op in NORMS))
        found.setdefault(name, {}).setdefault(value.op, []).append(numbers)
    return found


DROPOUT = {"dropout", "alpha_dropout", "feature_dropout", "native_dropout"}
NORMS = {
    "batch_norm", "instance_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training",
}  # fmt: skip
SAME_IN_BOTH = {"view", "reshape", "clone", "contiguous", "to", "_to_copy", "alias", "detach", "expand", "unsqueeze"}
"""Operators that say nothing of what is computed."""
RANDOM = {"bernoulli", "rand", "rand_like", "randn", "randn_like", "uniform", "normal", "exponential", "empty_like"}


def reached(recorded: Exported) -> list[Value]:
    """The values that the results are computed of, in the order of the calls."""
    seen: set[Value] = set()
    todo = [value for _, value in recorded.results]
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            todo += value.operands()
    return sorted(seen, key=lambda v: v.index)


def _training_text(op: str, own: Sequence[tuple[Any, ...]], new: Sequence[tuple[Any, ...]]) -> str:
    if op in NORMS:
        return "statistics of the batch take the place of running ones"
    if op.rstrip("_") in RANDOM:
        return f"there is noise (`{op}`)"
    if len(own) != len(new):
        return f"`{op}` is called {len(new)} times, not {len(own)}"
    a, b = next((a, b) for a, b in zip(own, new, strict=True) if a != b)
    if op == "scaled_dot_product_attention":
        return f"attention has dropout ({', '.join(str(n) for n in b if n not in a)})"
    return f"`{op}` has the numbers {[*b]}, not {[*a]}"


# --- first values -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """How a weight is drawn, measured over several seeds."""

    kind: str
    mean: float
    std: float
    count: int

    def __str__(self) -> str:
        if self.kind == "constant":
            return {0.0: "zeros", 1.0: "ones"}.get(self.mean, f"constant({self.mean:.3g})")
        if self.kind == "numbers":
            return "the same numbers whatever the seed"
        if self.kind == "uniform":
            return f"uniform({self.std * 3**0.5:.3g})"
        return (
            f"normal({self.std:.3g})"
            if abs(self.mean) < 4 * self.std / self.count**0.5
            else (f"normal({self.std:.3g}, {self.mean:.3g})")
        )

    def like(self, other: Drawn) -> bool:
        """Whether both may be draws of one law."""
        if self.kind != other.kind and "constant" in (self.kind, other.kind):
            return False
        if self.kind == "numbers" or other.kind == "numbers":
            return False
        few = min(self.count, other.count)
        near = max(abs(self.std), abs(other.std)) * 5 / few**0.5 + 1e-7
        same_kind = self.kind == other.kind or few < 1_000
        return (
            same_kind
            and abs(self.mean - other.mean) <= near * 2
            and abs(self.std - other.std) <= near + 0.02 * self.std
        )


def drawn(samples: Sequence[NDArray[Any]]) -> Drawn:
    """Measure some draws of one weight."""
    import numpy as np

    whole = np.stack([np.asarray(s, np.float64).reshape(-1) for s in samples])
    first = float(whole.flat[0]) if whole.size else 0.0
    if (whole == first).all():
        return Drawn("constant", first, 0.0, whole.size)
    if len(whole) > 1 and (whole == whole[0]).all():
        return Drawn("numbers", float(whole.mean()), float(whole.std()), whole.size)
    mean, std = float(whole.mean()), float(whole.std())
    farthest = float(np.abs(whole - mean).max())
    return Drawn("uniform" if whole.size > 30 and farthest < 1.8 * std else "normal", mean, std, whole.size)


def initial_values(
    subject: Subject, model_at: Sequence[tuple[Mapping[str, Number], Model]], table: Table
) -> list[InitialValue]:
    """Compare how the module and the spec draw each weight, in some configurations with the spec's model there; return
    what differs. A scheme is named where it fits all configurations."""
    measured: dict[str, list[Measured]] = {}
    depth = ""
    for changes, model in model_at:
        own: dict[str, list[NDArray[Any]]] = defaultdict(list)
        theirs: dict[str, list[NDArray[Any]]] = defaultdict(list)
        for seed in range(SEEDS):
            for path, numbers in arrays(model, seed):
                own[path].append(numbers)
            torch.manual_seed(seed)
            with suppress(ArchError):
                module = subject.build(changes)
                held = tensors(module)
                for path in own:
                    row = table.of(path)
                    if row is not None and row.theirs in held:
                        theirs[path].append(held[row.theirs].float().numpy())
        numbers_at = {**subject.numbers, **changes}
        depth, layers = next(((n, float(v)) for n, v in numbers_at.items() if role(n) == "layers"), ("", 0.0))
        grouped: dict[str, list[str]] = defaultdict(list)
        for path in theirs:
            grouped[starred(path)].append(path)
        for name, paths in grouped.items():
            if all(len(theirs[p]) == SEEDS for p in paths):
                pair = [drawn([_joined([of[p][s] for p in paths]) for s in range(SEEDS)]) for of in (theirs, own)]
                shape = theirs[paths[0]][0].shape
                measured.setdefault(name, []).append(Measured(pair[0], pair[1], shape, layers))
    found = []
    for name, pairs in measured.items():
        other = next((p for p in pairs if not p.theirs.like(p.ours)), None)
        if other is not None:
            scheme = _scheme(pairs, depth.rpartition(".")[2])
            found.append(InitialValue(weight=name, module=str(other.theirs), spec=str(other.ours), scheme=scheme))
    return found


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    import numpy as np

    return np.concatenate([np.asarray(p).reshape(-1) for p in parts])


class Measured(NamedTuple):
    """How a weight is drawn in one configuration."""

    theirs: Drawn
    ours: Drawn
    shape: tuple[int, ...]
    layers: float


def _scheme(pairs: Sequence[Measured], depth: str) -> str | None:
    """A scheme of the language that fits in every configuration, if there is one; of one size alone none is known.
    `depth` is what the configuration calls the number of layers."""
    own = [p.theirs for p in pairs]
    if own[0].kind == "numbers" or (own[0].kind != "constant" and len({p.shape for p in pairs}) < 2):
        return None
    if all(a.like(own[0]) for a in own):
        count = sum(a.count for a in own)
        mean, std = (sum(n * a.count for n, a in zip(of, own, strict=True)) / count for of in _moments(own))
        return str(Drawn(own[0].kind, _round(mean, count), _round(std, count), count))
    scaled = [Drawn(a.kind, a.mean, a.std * (2 * n) ** 0.5, a.count) for a, _, _, n in pairs]
    if all(p.layers > 0 for p in pairs) and all(s.kind == "normal" and s.like(scaled[0]) for s in scaled):
        return f"depth_scaled({_round(scaled[0].std, scaled[0].count):.3g}, {depth})"
    return None


def _moments(own: Sequence[Drawn]) -> tuple[list[float], list[float]]:
    return [a.mean for a in own], [a.std for a in own]


def _round(number: float, count: int) -> float:
    """A number as somebody has written it: the shortest that so many draws do not speak against."""
    for digits in (1, 2):
        short = float(f"{number:.{digits}g}")
        if abs(short - number) <= max(3 / (2 * count) ** 0.5, 1e-3) * abs(number):
            return short
    return number


# --- one configuration ------------------------------------------------------------------------------------------------


def side_of(
    subject: Subject,
    changes: Mapping[str, Number],
    module: nn.Module,
    inputs: Sequence[Input],
    results: Sequence[int],
    lengths: Lengths,
) -> Side:
    """The module in one configuration, ready to be compared."""
    return Side(prepared(module), changes, {**subject.numbers, **changes}, inputs, results, lengths)


def runs(side: Side) -> bool:
    """Whether the module can be called: a large one has no numbers."""
    return not is_hollow(side.module)


def messages(checks: Iterator[LiftCheck] | Sequence[LiftCheck]) -> str:
    """Return in one line what did not pass."""
    return shortened("; ".join(c.message for c in checks if not c.passed), 400)
