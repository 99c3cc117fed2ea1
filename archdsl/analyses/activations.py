"""What a step of training keeps in memory besides weights: activations saved for the backward pass, the temporaries of
the objective and of both passes, and when the most is alive.

The emitted file itself is run, over tensors without numbers (`archdsl.eager`), so that what is counted is what the code
does: saved bytes are those that autograd saves for the emitted module, storage by storage, and the peak is that of the
storages alive. With recomputation it is the file of `archdsl compile --checkpoint`. The objective is the cross-entropy,
in float32, of every output with a last axis of classes, and the mean square of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from archdsl.analyses.flops import demand_sizes, sizes_at
from archdsl.diagnostics import error
from archdsl.eager import functions as f
from archdsl.eager.engine import backward
from archdsl.eager.modules import Module, cast
from archdsl.eager.tensors import CPU, CUDA, DTYPES, DType, Node, Profile, Session, Tensor, Unknown
from archdsl.eager.world import model_of
from archdsl.ir.cost import whole_at
from archdsl.ir.graph import Model
from archdsl.lower.torch import Extras, emit

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
    """Whether the saved bytes are those of PyTorch to the byte."""
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
    session = Session(PROFILES[backend])
    with session.running():
        try:
            return _Step(model, sizes, session, backend, recompute, fixed, optimizer).run(DTYPES[dtype])
        except Unknown as problem:
            raise error(
                "E0512",
                f"the memory of activations is not known: the emitted code uses `{problem}`",
                help="weights, gradients, states and FLOPs are counted all the same",
            ) from None


class _Step:
    def __init__(
        self,
        model: Model,
        sizes: dict[str, int],
        session: Session,
        backend: Backend,
        recompute: Recompute,
        fixed: int,
        optimizer: int,
    ) -> None:
        self.model, self.sizes, self.session = model, sizes, session
        self.backend, self.recompute, self.optimizer = backend, recompute, optimizer
        self.fixed = fixed
        self.phase, self.part = "forward", ""
        self.events: list[Event] = []
        self.dropped: dict[str, int] = {}
        """Of a compiled step: bytes that it does not store, by part."""

    def run(self, dtype: DType) -> StepMemory:
        session = self.session
        module = model_of(emit(self.model, Extras(checkpoint=self.recompute), layout=False))
        cast(module, dtype)
        given = inputs_of(self.model, self.sizes, dtype)
        own = sum(t.nbytes for t in given.values())
        session.fixed = False
        session.enter = self.enter
        results = outputs_of(module, given)
        found = saved(results)
        kept = sum(entry[0] for entry in found.values())
        if self.backend == "compiled":
            kept -= self.drop(results, found)
        self.close()
        self.phase, self.part, before = "objective", "", session.live
        targets = sum(8 * t.numel() // t.shape[-1] for t in results if t.ndim > 1)
        session.enter = lambda path: None
        losses = [objective(results)]
        del results
        self.close()
        most = self.events[-1].peak
        self.phase = "backward"
        session.enter = self.enter
        # Nothing but the backward pass holds the loss, which it lets go of.
        backward(losses.pop())
        self.close()
        most = max(most, self.events[len(self.events) - self.backwards()].peak)
        self.phase, self.part = "optimizer", ""
        session.scratch(self.optimizer)
        self.close()
        events = self.shifted(own + targets)
        top = max(events, key=lambda e: e.peak)
        return StepMemory(
            backend=self.backend,
            measured=self.backend in MEASURED,
            exact=self.backend in MEASURED,
            recompute=self.recompute,
            saved=kept,
            objective=max(0, most - before),
            inputs=own + targets,
            optimizer=self.optimizer,
            peak=top.peak,
            peak_at=top.event,
            by_block=list(by_block(module, found)),
            timeline=events,
        )

    # --- events ---

    def enter(self, path: str) -> None:
        """A module begins, or goes on after one within it."""
        part = part_of(path)
        if part != self.part:
            self.close()
            self.part = part

    def close(self) -> None:
        """End a stretch."""
        session = self.session
        name = {"objective": "objective", "optimizer": "optimizer step"}.get(
            self.phase, f"{self.phase} {self.part or 'model'}"
        )
        if session.peak or self.phase == "optimizer":
            event = Event(event=name, bytes=session.live, peak=session.peak)
            if self.events and self.events[-1].event == name:
                last = self.events.pop()
                event.peak = max(event.peak, last.peak)
            self.events.append(event)
        session.peak = session.live

    def backwards(self) -> int:
        """How many events there are since the backward pass began."""
        return sum(e.event.startswith("backward") for e in self.events)

    def shifted(self, inputs: int) -> list[Event]:
        """The events with all that is there throughout; of a compiled step, without what it does not store."""
        gone = 0
        found = []
        last = {e.event: i for i, e in enumerate(self.events)}
        for i, e in enumerate(self.events):
            phase, _, part = e.event.partition(" ")
            ends = last[e.event] == i
            if phase == "forward" and ends:
                gone += self.dropped.get(part, 0)
            base = self.fixed + inputs - gone
            found.append(Event(event=e.event, bytes=e.bytes + base, peak=e.peak + base))
            if phase == "backward" and ends:
                gone -= self.dropped.get(part, 0)
        return found

    def drop(self, results: list[Tensor], found: dict[int, Saved]) -> int:
        """The bytes that a compiled step does not store: results of pointwise steps from what is stored."""
        makers: dict[int, Node] = {}
        for node in nodes_of(results):
            for serial in node.made:
                makers.setdefault(serial, node)
        known: dict[int, bool] = {}

        def made_again(serial: int) -> bool:
            node = makers.get(serial)
            return (
                node is not None
                and node.name in POINTWISE
                and all(s in found or known.get(s, False) for s in node.read)
            )

        for node in sorted(makers.values(), key=lambda n: n.sequence):
            for serial in node.made:
                known[serial] = made_again(serial)
        total = 0
        for serial in sorted(found):
            if known.get(serial):
                nbytes, where, _ = found[serial]
                part = part_of(where) or "model"
                self.dropped[part] = self.dropped.get(part, 0) + nbytes
                total += nbytes
                found[serial] = (0, where, "")
        return total


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
    found = module(**given)
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


def saved(results: Iterable[Tensor]) -> dict[int, Saved]:
    """Every storage that the steps behind these tensors keep, by its number."""
    found: dict[int, Saved] = {}
    for node in nodes_of(results):
        for t in node.saved:
            if not t.storage.fixed:
                found.setdefault(t.storage.serial, (t.storage.nbytes, node.where, node.name))
    return found


def by_block(module: Module, found: Mapping[int, Saved]) -> Iterator[BlockActivations]:
    """A row for each module that saves something, in the order of the modules, those of all indices together."""
    bytes_of: dict[str, int] = {}
    for nbytes, where, _ in found.values():
        steps = where.split(".") if where else []
        for depth in range(len(steps) + 1):
            path = ".".join(steps[:depth])
            bytes_of[path] = bytes_of.get(path, 0) + nbytes
    rows: dict[tuple[str, str], BlockActivations] = {}
    for path, inner in module.named_modules():
        if bytes_of.get(path):
            starred = ".".join("*" if s.isdecimal() else s for s in path.split(".")) or "model"
            name = type(inner).__name__
            row = rows.setdefault((starred, name), BlockActivations(path=starred, block=name, count=0, bytes=0))
            row.count += 1
            row.bytes += bytes_of[path]
    yield from (row for row in rows.values() if row.block != "ModuleList")


def part_of(path: str) -> str:
    """The part of the model that a module belongs to: a layer, or what stands in the model itself."""
    steps = path.split(".")
    return ".".join(steps[:2]) if len(steps) > 1 and steps[1].isdecimal() else steps[0]
