"""What a step of training keeps in memory besides weights: activations saved for the backward pass, the temporaries of
the objective and of both passes, and when the most is alive.

The emitted file itself is run, over tensors without numbers (`archdsl.eager`), so that what is counted is what the code
does: saved bytes are those that autograd saves for the emitted module, storage by storage, and the peak is that of the
storages alive. With recomputation it is the file of `archdsl compile --checkpoint`. The objective is the cross-entropy,
in float32, of every output with a last axis of classes, and the mean square of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from archdsl.analyses.flops import demand_sizes, sizes_at
from archdsl.backends.torch import Extras, emit
from archdsl.diagnostics import error
from archdsl.eager import functions as f
from archdsl.eager.engine import Frame, backward
from archdsl.eager.modules import Module, cast
from archdsl.eager.stacks import Stretch, fresh, shorten, stretches
from archdsl.eager.tensors import CPU, CUDA, DTYPES, DType, Node, Profile, Session, Tensor, Unknown
from archdsl.eager.world import model_of
from archdsl.ir.cost import whole_at
from archdsl.ir.graph import Model

Backend = Literal["cpu-eager", "cuda-eager", "compiled"]
Recompute = Literal["none", "selective", "full"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

PROFILES: Mapping[Backend, Profile] = {"cpu-eager": CPU, "cuda-eager": CUDA, "compiled": CUDA}
MEASURED = {"cpu-eager"}
"""Backends whose figures the tests compare with those of PyTorch; the others follow from its source alone."""

POINTWISE = frozenset({
    "Exp", "Log", "Log2", "Sqrt", "Rsqrt", "Reciprocal", "Sin", "Cos", "Tanh", "Sigmoid", "Erf", "Relu", "Gelu",
    "Silu", "Mish", "Elu", "LeakyRelu", "Softplus", "Hardswish", "Hardsigmoid", "NanToNum", "Abs", "Neg",
    "LogSigmoid", "Add", "Sub", "Mul", "Div", "Pow", "Remainder", "Clamp", "Maximum", "Where", "MaskedFill", "Glu",
    "Prelu", "ToCopy", "Clone", "LayerNorm", "RmsNorm", "Cat", "Stack", "Pad", "Expand", "View", "Permute",
})  # fmt: skip
"""Steps that a compiled backward pass does again rather than store their result: of norms, only the row's statistics
are stored."""


class Event(BaseModel):
    """A stretch of the step: one part of the model forwards or backwards, the objective, or the optimizer."""

    event: str
    """`forward blocks.3`, `objective`, `backward blocks.3`, `optimizer step`; the part is a path of weights, `model`
    for what stands in the model itself."""
    bytes: int
    """Alive at its end: everything, weights and the optimizer's states included."""
    peak: int
    """The most that is alive within it."""


class BlockActivations(BaseModel):
    """What the modules of one path save, those of all layers together."""

    path: str
    """`*` stands for every index; `model` is what stands in the model itself."""
    block: str
    """The emitted class."""
    count: int
    bytes: int
    """Saved by the modules themselves and by all within; a storage counts for the first that saves it."""


class StepMemory(BaseModel):
    """The memory of one step of training."""

    backend: Backend
    measured: bool
    """Whether figures of this backend have been compared with those of PyTorch."""
    exact: bool
    """Whether the saved bytes are those of PyTorch to the byte. Where sizes depend on numbers (experts with a capacity,
    which drop choices) they are the most that it can save."""
    recompute: Recompute
    saved: int
    """Activations that the forward pass keeps for the backward pass: distinct storages, without weights, buffers and
    the model's inputs."""
    objective: int
    """The most that the objective adds to them, forwards and backwards."""
    inputs: int
    """The model's inputs and the targets."""
    optimizer: int
    """Temporaries of the optimizer's step."""
    peak: int
    """The most that is alive, weights, gradients and the optimizer's states included."""
    peak_at: str
    """The event in which that is."""
    by_block: list[BlockActivations]
    timeline: list[Event] = Field(exclude=True)


def estimate(
    model: Model,
    *,
    batch: int = 1,
    seq: int | None = None,
    dtype: str = "float32",
    backend: Backend = "cpu-eager",
    recompute: Recompute = "none",
    fixed: int = 0,
    optimizer: int = 0,
) -> StepMemory:
    """Run one step. `fixed` are bytes that are there throughout (weights, buffers, states), `optimizer` those that the
    optimizer's step takes beside the gradients.

    Raises ArchError E0503 where the model has no sizes at these lengths, E0512 where its emitted code does what cannot
    be followed without numbers, and E0527 where it has no layers to compute again."""
    sizes = sizes_at(model, batch, seq)
    demand_sizes(model, sizes)
    try:
        return _Step(model, sizes, backend, recompute, fixed, optimizer).run(DTYPES[dtype])
    except Unknown as problem:
        raise error(
            "E0512",
            f"the memory of activations is not known: the emitted code uses `{problem}`",
            help="weights, gradients, states and FLOPs are counted all the same",
        ) from None


@dataclass(frozen=True)
class _Kept:
    """A storage that is saved: when and where that was, its bytes, and how many of them a compiled step does not
    store."""

    sequence: int
    where: str
    nbytes: int
    dropped: int = 0


@dataclass(frozen=True)
class _Stretch:
    """Turns of a stack that are alike, in what was followed, and when each began in the forward pass."""

    stretch: Stretch
    began: Sequence[int]


@dataclass(frozen=True)
class _Followed:
    """A step that was run. Of the events without what is there throughout."""

    modules: list[tuple[str, str]]
    """Paths and classes."""
    kept: list[_Kept]
    events: list[tuple[str, str, int, int]]
    """Of each its phase, its part, the bytes alive at its end, and the most within it."""
    objective: int
    targets: int
    stretches: list[_Stretch]

    def same(self, other: _Followed) -> bool:
        """Whether both are the same step."""

        def told(step: _Followed) -> object:
            return sorted((k.where, k.nbytes, k.dropped) for k in step.kept)

        ours, theirs = (self.events, self.modules, self.objective), (other.events, other.modules, other.objective)
        return ours == theirs and self.targets == other.targets and told(self) == told(other)

    def longer(self, more: Sequence[int]) -> _Followed | None:
        """The same step with so many more turns of each stretch; None where its turns do not follow each other."""
        found: _Followed | None = self
        # The last one of a list first: so the places of those before it stay as they are.
        for i in reversed(range(len(self.stretches))):
            found = found and _repeated(found, self.stretches[i], more[i])
        return found


def _repeated(step: _Followed, own: _Stretch, more: int) -> _Followed | None:
    """Repeat a turn in the middle. Its copies are what it is, but for the bytes that each leaves behind."""
    s = own.stretch
    middle = s.turns // 2
    behind = s.at + (middle + 1) * s.period
    """The first place behind the turn."""
    events: list[tuple[str, str, int, int]] = []
    grown = 0
    for phase in dict.fromkeys(e[0] for e in step.events):
        those = [e for e in step.events if e[0] == phase]
        turns = [s.turn(e[1]) for e in those]
        order = [t for t, _ in groupby(t for t in turns if t is not None)]
        if not order:
            events += [(p, part, alive + grown, most + grown) for p, part, alive, most in those]
            continue
        forward = order == [*range(s.turns)]
        if not forward and order != [*reversed(range(s.turns))]:
            return None
        first = turns.index(middle)
        after = turns.index(middle + 1 if forward else middle - 1)
        growth = those[after - 1][2] - those[first - 1][2]
        for p, part, alive, most in those[:after]:
            name = s.moved(part, more, behind if forward else s.at + middle * s.period)
            events.append((p, name, alive + grown, most + grown))
        for n in range(1, more + 1):
            far = grown + n * growth
            at = n if forward else more - n
            events += [
                (p, s.moved(part, at, s.at), alive + far, most + far) for p, part, alive, most in those[first:after]
            ]
        grown += more * growth
        for p, part, alive, most in those[after:]:
            events.append((p, s.moved(part, more, behind), alive + grown, most + grown))
    start, end = own.began[middle], own.began[middle + 1]
    kept = []
    for k in step.kept:
        kept.append(replace(k, where=s.moved(k.where, more, behind)))
        if start < k.sequence <= end:
            kept += [replace(k, where=s.moved(k.where, n, s.at)) for n in range(1, more + 1)]
    modules: list[tuple[str, str]] = []
    copied = [m for m in step.modules if s.turn(m[0]) == middle]
    for path, name in step.modules:
        if copied and s.place(path) is not None and (s.place(path) or 0) >= behind:
            modules += _copies(s, copied, more)
            copied = []
        modules.append((s.moved(path, more, behind), name))
    return replace(step, modules=modules, kept=kept, events=events)


def _copies(s: Stretch, modules: Sequence[tuple[str, str]], more: int) -> list[tuple[str, str]]:
    return [(s.moved(path, n, s.at), name) for n in range(1, more + 1) for path, name in modules]


FEW = 4
"""So many turns of a stretch are followed, and one more to see that it does what was expected of it."""


class _Step:
    def __init__(
        self,
        model: Model,
        sizes: dict[str, int],
        backend: Backend,
        recompute: Recompute,
        fixed: int,
        optimizer: int,
    ) -> None:
        self.model, self.sizes = model, sizes
        self.backend, self.recompute, self.optimizer = backend, recompute, optimizer
        self.fixed = fixed
        self.first = 0
        """Number of the last storage of a weight."""
        self.bounded = False

    def run(self, dtype: DType) -> StepMemory:
        with Session(PROFILES[self.backend]).running() as session:
            source = emit(self.model, Extras(checkpoint=self.recompute), layout=False)
            module = model_of(source)
            cast(module, dtype)
            given = inputs_of(self.model, self.sizes, dtype)
        self.first = session.serial
        return self.told(self.followed(module, given, source), sum(t.nbytes for t in given.values()))

    def followed(self, module: Module, given: Mapping[str, Tensor], source: str) -> _Followed:
        """The step of the whole model; some turns of each stretch are followed where all others do as they do."""
        whole = stretches(module, source, 2 * FEW + 2)
        if not whole:
            return self.follow(module, given)
        layers = {s.name: list(module._modules[s.name].children()) for s in whole}
        few, more = (self.follow(module, given, shorten(module, layers, whole, n)) for n in (FEW, FEW + 1))
        expected = few.longer([1] * len(whole))
        if expected is not None and expected.same(more):
            found = more.longer([s.turns - FEW - 1 for s in whole])
            if found is not None:
                return found
        shorten(module, layers, [], 0)
        return self.follow(module, given)

    def follow(self, module: Module, given: Mapping[str, Tensor], stretches: Sequence[Stretch] = ()) -> _Followed:
        """Run the step."""
        fresh(module)
        session = Session(PROFILES[self.backend])
        session.fixed = False
        session.serial = self.first  # of another number than the weights
        with session.running():
            found = _Run(session, self.backend, self.optimizer, stretches).run(module, given)
        self.bounded |= session.bounded
        return found

    def told(self, step: _Followed, own: int) -> StepMemory:
        events = self.shifted(step, own + step.targets)
        top = max(events, key=lambda e: e.peak)
        return StepMemory(
            backend=self.backend,
            measured=self.backend in MEASURED,
            exact=self.backend in MEASURED and not self.bounded,
            recompute=self.recompute,
            saved=sum(k.nbytes - k.dropped for k in step.kept),
            objective=step.objective,
            inputs=own + step.targets,
            optimizer=self.optimizer,
            peak=top.peak,
            peak_at=top.event,
            by_block=list(by_block(step.modules, step.kept)),
            timeline=events,
        )

    def shifted(self, step: _Followed, inputs: int) -> list[Event]:
        """The events with all that is there throughout; of a compiled step, without what it does not store."""
        dropped: dict[str, int] = {}
        for k in step.kept:
            if k.dropped:
                part = part_of(k.where)
                dropped[part] = dropped.get(part, 0) + k.dropped
        gone = 0
        found = []
        last = {(phase, part): i for i, (phase, part, _, _) in enumerate(step.events)}
        for i, (phase, part, alive, most) in enumerate(step.events):
            ends = last[phase, part] == i
            if phase == "forward" and ends:
                gone += dropped.get(part, 0)
            base = self.fixed + inputs - gone
            name = {"objective": "objective", "optimizer": "optimizer step"}.get(phase, f"{phase} {part or 'model'}")
            found.append(Event(event=name, bytes=alive + base, peak=most + base))
            if phase == "backward" and ends:
                gone -= dropped.get(part, 0)
        return found


class _Run:
    """One run of the step."""

    def __init__(self, session: Session, backend: Backend, optimizer: int, stretches: Sequence[Stretch]) -> None:
        self.session, self.backend, self.optimizer = session, backend, optimizer
        self.phase, self.part = "forward", ""
        self.events: list[tuple[str, str, int, int]] = []
        self.stretches = stretches
        self.began: dict[str, int] = {}
        """How many steps of the backward pass there were when each part began in the forward pass."""

    def run(self, module: Module, given: Mapping[str, Tensor]) -> _Followed:
        session = self.session
        session.enter = self.enter
        results = outputs_of(module, given)
        found = saved_by(results)
        compiled = self.backend == "compiled"
        dropped = self.dropped(results, found) if compiled else set()
        kept = [_Kept(n.sequence, n.where, size, size if i in dropped else 0) for i, (n, size) in found.items()]
        del found
        self.close()
        self.phase, self.part, before = "objective", "", session.live
        targets = sum(8 * t.numel() // t.shape[-1] for t in results if t.ndim > 1)
        session.enter = lambda path: None
        losses = [objective(results)]
        del results
        self.close()
        most = self.events[-1][3]
        self.phase = "backward"
        session.enter = self.enter
        # Nothing but the backward pass holds the loss, which it lets go of.
        backward(losses.pop())
        self.close()
        most = max(most, next(e[3] for e in self.events if e[0] == "backward"))
        self.phase, self.part = "optimizer", ""
        session.scratch(self.optimizer)
        self.close()
        return _Followed(
            [(path, type(inner).__name__) for path, inner in module.named_modules()],
            kept,
            self.events,
            max(0, most - before),
            targets,
            [
                _Stretch(s, [self.began.get(f"{s.name}.{s.at + i * s.period}", 0) for i in range(s.turns)])
                for s in self.stretches
            ],
        )

    # --- events ---

    def enter(self, path: str) -> None:
        """A module begins, or goes on after one within it."""
        part = part_of(path)
        if part != self.part:
            self.close()
            self.part = part
            if self.phase == "forward":
                self.began.setdefault(part, self.session.sequence)

    def close(self) -> None:
        """End a stretch."""
        session = self.session
        if session.peak or self.phase == "optimizer":
            most = session.peak
            if self.events and self.events[-1][:2] == (self.phase, self.part):
                most = max(most, self.events.pop()[3])
            self.events.append((self.phase, self.part, session.live, most))
        session.peak = session.live

    def dropped(self, results: list[Tensor], found: Mapping[int, tuple[Node | Frame, int]]) -> set[int]:
        """The storages that a compiled step does not store: results of pointwise steps from what is stored."""
        makers: dict[int, Node] = {}
        for node in nodes_of(results):
            for serial in node.made:
                makers.setdefault(serial, node)
        known: set[int] = set()
        for node in sorted(makers.values(), key=lambda n: n.sequence):
            for serial in node.made:
                maker = makers[serial]
                again = maker.name in POINTWISE and all(s in found or s in known for s in maker.read)
                (known.add if again else known.discard)(serial)
        return known & found.keys()


# --- parts ------------------------------------------------------------------------------------------------------------


def inputs_of(model: Model, sizes: dict[str, int], dtype: DType) -> dict[str, Tensor]:
    """The model's inputs: tensors without numbers."""
    found = {}
    for name, value in model.inputs:
        shape = [whole_at(d.value, sizes) for d in value.shape]
        kind = DTYPES["bool"] if value.is_bool else DTYPES["int64"] if value.is_int else dtype
        found[name] = Tensor(shape, DTYPES.get(value.dtype, kind))
    return found


def outputs_of(module: Module, given: Mapping[str, Tensor]) -> list[Tensor]:
    found = module(*given.values())  # whatever the emitted parameters are called
    return list(found) if isinstance(found, tuple) else [found]


def objective(results: Iterable[Tensor]) -> Tensor:
    """The sum of the losses of all outputs that have a gradient."""
    total: Any = 0
    for t in results:
        if not t.requires_grad:
            continue
        wide = f.cast(t, DTYPES["float32"])
        if t.ndim > 1:
            rows = f.reshape(wide, (-1, t.shape[-1]))
            total = f.add(f.cross_entropy(rows, rows.shape[0]), total)
        else:
            total = f.add(f.mean(f.square(wide)), total)
    return total if isinstance(total, Tensor) else Tensor((), DTYPES["float32"])


Saved = tuple[int, str, str]
"""Of a storage: its bytes, the path of the module that saved it first, and the step that did."""


def nodes_of(results: Iterable[Tensor]) -> list[Node]:
    """The steps of the backward pass behind these tensors, the first one first."""
    found: dict[int, Node] = {}
    stack = [t.node for t in results if t.node is not None]
    while stack:
        node = stack.pop()
        if node.sequence not in found:
            found[node.sequence] = node
            stack += [edge[0] for edge in node.edges if isinstance(edge, tuple)]
    return [found[i] for i in sorted(found)]


def saved_by(results: Iterable[Tensor]) -> dict[int, tuple[Node | Frame, int]]:
    """Every storage that the steps behind these tensors keep, by its number: the first of them, and its bytes. Of steps
    within a checkpoint it is the checkpoint that keeps."""
    found: dict[int, tuple[Node | Frame, int]] = {}
    frames: set[Frame] = set()
    for node in nodes_of(results):
        for saved in node.saved:
            if isinstance(saved, Tensor):
                keeper: Node | Frame = node
                tensors = [saved]
            elif saved.frame not in frames:
                keeper, tensors = saved.frame, saved.frame.kept()
                frames.add(saved.frame)
            else:
                continue
            for t in tensors:
                if not t.storage.fixed:
                    found.setdefault(t.storage.serial, (keeper, t.storage.nbytes))
    return found


def saved(results: Iterable[Tensor]) -> dict[int, Saved]:
    """Every storage that the steps behind these tensors keep, by its number."""
    return {serial: (size, node.where, node.name) for serial, (node, size) in saved_by(results).items()}


def by_block(modules: Iterable[tuple[str, str]], kept: Iterable[_Kept]) -> Iterator[BlockActivations]:
    """A row for each module that saves something, in the order of the modules, those of all indices together."""
    bytes_of: dict[str, int] = {}
    for k in kept:
        path = k.where
        bytes_of[path] = bytes_of.get(path, 0) + k.nbytes - k.dropped
        while path:
            path = path.rpartition(".")[0]
            bytes_of[path] = bytes_of.get(path, 0) + k.nbytes - k.dropped
    rows: dict[tuple[str, str], BlockActivations] = {}
    for path, name in modules:
        if bytes_of.get(path):
            starred = ".".join("*" if s.isdecimal() else s for s in path.split(".")) or "model"
            row = rows.setdefault((starred, name), BlockActivations(path=starred, block=name, count=0, bytes=0))
            row.count += 1
            row.bytes += bytes_of[path]
    yield from (row for row in rows.values() if row.block != "ModuleList")


def part_of(path: str) -> str:
    """The part of the model that a module belongs to: a layer, or what stands in the model itself."""
    steps = path.split(".")
    return ".".join(steps[:2]) if len(steps) > 1 and steps[1].isdecimal() else steps[0]
