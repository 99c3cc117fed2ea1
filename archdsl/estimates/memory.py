"""What a model keeps in memory: weights, gradients, the optimizer's states, and what a decoder keeps of the tokens
before; exact, in bytes, from the IR alone. Of a step of training also what `archdsl.estimates.activations` estimates.

Weights are counted once where they are shared or tied. A gradient has the type of its weight, and so have the states of
the optimizers of PyTorch; with `master_weights` there is a float32 copy of every weight of a narrower type, and the
states are those of the copy: 2 + 2 + 12 bytes a parameter of Adam in bfloat16 (Rajbhandari et al., 2020, section 3.1).

What a decoder keeps is what a step of `archdsl compile --to onnx --decode` takes in and hands on: the tensors of
`archdsl.passes.flat_step`. Emitted PyTorch holds these too, and tables that are the same for all tokens, which are
not counted: made of positions, or of weights alone (MLA's, absorbed).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Literal

from pydantic import BaseModel

from archdsl.diagnostics import ArchError
from archdsl.estimates.activations import Event, Measured, StepMemory
from archdsl.estimates.activations import estimate as step_of
from archdsl.estimates.dtypes import BYTES, Dtype, width
from archdsl.estimates.flops import EstimateReport, demand_sizes, sizes_at
from archdsl.estimates.kernels import Cut
from archdsl.estimates.loss import Loss, default_loss
from archdsl.estimates.params import output_projections
from archdsl.frozen import Frozen
from archdsl.ir.cost import elements, whole_at
from archdsl.ir.dims import Shape
from archdsl.ir.graph import Model, Value, Weight
from archdsl.ir.paths import layers_of, starred
from archdsl.ir.weights import weights as every_weight
from archdsl.passes.checkpoint import Checkpoint
from archdsl.passes.flat_step import FlatStep, decode_step
from archdsl.passes.flatten import FlatNode, FlatOp, FlatScan

Optimizer = Literal["sgd", "sgd-momentum", "adam", "adamw", "adamw8bit", "adafactor", "muon"]

SMALLEST_8BIT, BLOCK_8BIT, CODES_8BIT = 4096, 256, 256
"""Of `adamw8bit` (Dettmers et al., 2022, section 2; as bitsandbytes 0.50 has it): tensors with fewer numbers keep
float32 states; so many numbers share a scale; so many values has a code."""

# --- the report -------------------------------------------------------------------------------------------------------


class StateMemory(BaseModel):
    """One state of the optimizer, for all weights together."""

    name: str
    """As the optimizer calls it: `exp_avg`."""
    dtype: str
    numbers: int
    bytes: int


class KeptMemory(BaseModel):
    """Tensors that a decoder keeps, of all layers that are alike.

    A `cache` holds all positions so far and grows with every token. A `state` is of a fixed size. What is computed
    `once`, before the first step, follows from the other inputs (keys and values of cross-attention)."""

    kind: Literal["cache", "state", "once"]
    name: str
    """Its role: `key`, `value`, `latent`, or the tensor's name."""
    path: str
    """What reads it, or whose state it is; `*` stands for every index."""
    layers: list[int] = []
    """Those that the first `*` of `path` stands for."""
    dtype: str
    count: int
    """How many such tensors there are: one for each layer."""
    per_token: int
    """Bytes by which one more token of one sequence lets all of them grow."""
    bytes: int
    """All of them, for the whole batch."""
    window: int | None
    """No later token reads more positions than these, its own included; None where all are read."""
    windowed_bytes: int
    """What a ring of `window` positions would hold; `bytes` where there is no window."""


class Memory(BaseModel):
    """Bytes in weights and activations of type `dtype`, for a batch of `batch` sequences of `seq` positions."""

    dtype: Dtype
    algorithm: Optimizer
    master_weights: bool
    loss: Loss
    """Which kernel computes the cross-entropy of a step of training."""
    batch: int
    seq: int
    sizes: dict[str, int]
    """Every size that only the running model knows."""
    weights: int
    buffers: int
    """What is not trained, saved with the weights or not."""
    gradients: int
    optimizer: int
    """The optimizer's states, a float32 copy of the weights included."""
    model_states: int
    """Weights, buffers, gradients and the optimizer's states."""
    decode_state: int | None
    """What is kept between two steps of decoding once `seq` positions are there; None where the model cannot be taken
    step by step, for which `no_decode_state` gives the reason."""
    decode_state_per_token: int | None
    """Bytes by which one more token of one sequence lets it grow."""
    decode_state_windowed: int | None
    """The same where the KV cache of a window is a ring of its positions, as in emitted PyTorch."""
    no_decode_state: str | None
    activations: int | None = None
    """What a forward pass saves for the backward pass, an estimate; None where it was not asked for, or is not known,
    for which `no_activations` gives the reason."""
    peak: int | None = None
    """The most that is alive in a step of training, everything included; an estimate."""
    no_activations: str | None = None
    measured: Measured | None = None
    """The same of the emitted file as PyTorch runs it on a CPU, where that was asked for."""
    by_state: list[StateMemory]
    kept: list[KeptMemory]
    step: StepMemory | None = None
    """Of a step of training: what it saves, by block, and when the most is alive."""
    timeline: list[Event] = []
    """What is alive in the course of that step."""


class MemoryReport(EstimateReport):
    """What `archdsl estimate` prints."""

    memory: Memory


def estimate(
    model: Model,
    *,
    batch: int = 1,
    seq: int | None = None,
    dtype: Dtype = "float32",
    optimizer: Optimizer = "adamw",
    master_weights: bool = False,
    checkpoint: Checkpoint = "none",
    loss: Loss | None = None,
    step: bool = True,
) -> Memory:
    """Count bytes. `seq` is 2,048 or the model's context, if less, where it is not given. A `step` of training, which
    computes again in its backward pass what `checkpoint` says, is estimated too; `archdsl.run.measure` measures it.
    `loss` is the kernel of its cross-entropy, that of emitted code where it is None.

    Raises ArchError E0503 where the model has no sizes at these lengths, and E0526 where its loss cannot be computed in
    chunks."""
    sizes = sizes_at(model, batch, seq)
    demand_sizes(model, sizes)
    tensors = list(_tensors(model))
    weights = sum(t.times * t.numbers * BYTES[dtype] for t in tensors if t.weight.trained)
    buffers = sum(t.times * t.numbers * width(t.weight.dtype, dtype) for t in tensors if not t.weight.trained)
    states = optimizer_states(model, tensors, dtype, optimizer, master_weights)
    optimizer_bytes = sum(s.bytes for s in states)
    steps, reason = decode_step(model)
    kept = None if steps is None else list(_kept(steps, sizes, dtype))
    found, unknown = None, None
    fixed = weights + buffers + optimizer_bytes
    if step:
        working = step_temporaries(tensors, dtype, optimizer, master_weights)
        try:
            found = step_of(
                model,
                batch=batch,
                seq=seq,
                dtype=dtype,
                checkpoint=checkpoint,
                loss=loss,
                fixed=fixed,
                gradients=weights,
                optimizer=working,
            )
        except ArchError as problem:
            if problem.diagnostics[0].code != "E0527":
                raise
            unknown = problem.diagnostics[0].message
    return Memory(
        dtype=dtype,
        algorithm=optimizer,
        master_weights=master_weights,
        loss=loss or default_loss(model),
        batch=batch,
        seq=next((n for name, n in sizes.items() if name != "batch"), seq or 1),
        sizes=sizes,
        weights=weights,
        buffers=buffers,
        gradients=weights,
        optimizer=optimizer_bytes,
        model_states=2 * weights + buffers + optimizer_bytes,
        decode_state=None if kept is None else sum(k.bytes for k in kept),
        decode_state_per_token=None if kept is None else sum(k.per_token for k in kept),
        decode_state_windowed=None if kept is None else sum(k.windowed_bytes for k in kept),
        no_decode_state=reason,
        activations=None if found is None else found.saved,
        peak=None if found is None else found.peak,
        no_activations=unknown,
        by_state=states,
        kept=kept or [],
        step=found,
        timeline=[] if found is None else found.timeline,
    )


# --- weights and states -----------------------------------------------------------------------------------------------


class Tensor(Frozen):
    """A weight that so many layers have."""

    weight: Weight
    times: int
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        return prod(self.shape)


def _tensors(model: Model) -> Iterator[Tensor]:
    """Every weight and buffer, saved or not. Constants whose size only the running model knows are made where they are
    used: nothing keeps them."""
    counts: dict[int, tuple[Weight, int, tuple[int, ...]]] = {}
    for info in every_weight(model):
        weight = info.weight
        if all(d.static for d in weight.shape):
            _, times, _ = counts.get(id(weight), (weight, 0, info.shape))
            counts[id(weight)] = (weight, times + 1, info.shape)
    for weight, times, shape in counts.values():
        yield Tensor(weight, times, shape)


State = tuple[str, str, int]
"""Its name, its type, and how many numbers it holds of one weight."""


def optimizer_states(
    model: Model, tensors: list[Tensor], dtype: Dtype, optimizer: Optimizer, master_weights: bool
) -> list[StateMemory]:
    """What the optimizer keeps of all weights, each state once."""
    found: dict[tuple[str, str], int] = {}

    def add(name: str, kind: str, numbers: int) -> None:
        found[name, kind] = found.get((name, kind), 0) + numbers

    copied = master_weights and dtype != "float32"
    own: Dtype = "float32" if copied else dtype
    heads = {id(w) for w in output_projections(model)} if optimizer == "muon" else set()
    for t in tensors:
        if not t.weight.trained:
            continue
        if copied:
            add("master_weights", "float32", t.times * t.numbers)
        hidden = t.weight.kind == "matrix" and len(t.shape) == 2 and id(t.weight) not in heads
        for name, kind, numbers in _of_weight(optimizer, t, own, hidden):
            add(name, kind, t.times * numbers)
    if any(kind == "uint8" for _, kind in found):
        # What each code stands for, of either state: tables that all weights share.
        add("codes", "float32", 2 * CODES_8BIT)
    return [
        StateMemory(name=name, dtype=kind, numbers=n, bytes=n * BYTES[kind]) for (name, kind), n in found.items() if n
    ]


COPIES: Mapping[Optimizer, int] = {"adafactor": 2, "muon": 3}
"""How many tensors as large as a weight an optimizer makes at once while it changes it; none where one kernel does it
all (`fused=True`). Of Muon, an update and two steps towards an orthogonal one."""


def step_temporaries(tensors: list[Tensor], dtype: Dtype, optimizer: Optimizer, master_weights: bool) -> int:
    """What a step of the optimizer takes beside weights, gradients and states: it goes from weight to weight. With
    master weights a gradient is cast for its weight."""
    own: Dtype = "float32" if master_weights else dtype
    largest = max((t.numbers for t in tensors if t.weight.trained), default=0)
    return largest * ((BYTES["float32"] if own != dtype else 0) + COPIES.get(optimizer, 0) * BYTES[own])


def _of_weight(optimizer: Optimizer, t: Tensor, dtype: Dtype, hidden: bool) -> Iterator[State]:
    """The states of one weight of that type. A `hidden` one is a matrix between layers: no table, no output
    projection."""
    n = t.numbers
    if optimizer == "sgd-momentum" or (optimizer == "muon" and hidden):
        # Muon (Jordan et al., 2024) orthogonalizes the momentum of matrices; all other weights are left to AdamW.
        yield "momentum_buffer", dtype, n
    elif optimizer in ("adam", "adamw", "muon"):
        yield "exp_avg", dtype, n
        yield "exp_avg_sq", dtype, n
        yield "step", "float32", 1
    elif optimizer == "adamw8bit":
        # Its types do not depend on that of the weight; the step is no tensor.
        kind = "uint8" if n >= SMALLEST_8BIT else "float32"
        yield "exp_avg", kind, n
        yield "exp_avg_sq", kind, n
        if kind == "uint8":
            yield "absmax", "float32", 2 * -(-n // BLOCK_8BIT)
    elif optimizer == "adafactor":
        # Shazeer and Stern, 2018, section 3, over the last two axes: one number a row, and one a column.
        if len(t.shape) > 1:
            yield "row_var", dtype, n // t.shape[-1]
            yield "col_var", dtype, n // t.shape[-2]
        else:
            yield "variance", dtype, n
        yield "step", "float32", 1


# --- decoding ---------------------------------------------------------------------------------------------------------


class _Kept(Frozen):
    """One tensor that is kept."""

    kind: Literal["cache", "state", "once"]
    name: str
    path: str
    dtype: str
    one: int
    """Numbers of one sequence; of a cache, of one of its positions."""
    all: int
    positions: int
    window: int | None

    @property
    def held(self) -> int:
        """All numbers where the cache of a window is a ring of its positions."""
        ring = self.window is not None and self.window < self.positions
        return self.all // self.positions * (self.window or 0) if ring else self.all


def _kept(steps: FlatStep, sizes: Mapping[str, int], dtype: Dtype) -> Iterator[KeptMemory]:
    """What a step takes in and hands on, tensors that are alike together."""
    alike: dict[_Kept, list[str]] = {}
    for tensor in decode_tensors(steps, sizes, Cut()):
        alike.setdefault(replace(tensor, path=starred(tensor.path)), []).append(tensor.path)
    for t, paths in alike.items():
        count = len(paths)
        size = count * width(t.dtype, dtype)
        yield KeptMemory(
            kind=t.kind,
            name=t.name,
            path=t.path,
            layers=layers_of(paths),
            dtype=dtype if t.dtype == "float" else t.dtype,
            count=count,
            per_token=size * t.one if t.kind == "cache" else 0,
            bytes=size * t.all,
            window=t.window,
            windowed_bytes=size * t.held,
        )


def decode_tensors(steps: FlatStep, sizes: Mapping[str, int], cut: Cut) -> Iterator[_Kept]:
    """Yield what a step takes in and hands on of the part that a device has, each tensor with its path."""
    sizes = steps.of.sizes(sizes)
    yield from _between(steps, sizes, cut)
    yield from _once(steps, sizes, cut)


def _between(steps: FlatStep, sizes: Mapping[str, int], cut: Cut) -> Iterator[_Kept]:
    """Caches and states, in the order of the layers."""
    alone = {**sizes, **({"batch": 1} if "batch" in sizes else {})}
    counted: dict[int, tuple[int, int]] = {}
    for kept in steps.kept:
        if id(kept.shape) not in counted:  # the layers of a stack share it
            counted[id(kept.shape)] = _numbers(kept.shape, alone), _numbers(kept.shape, sizes)
        one, every = counted[id(kept.shape)]
        if kept.kind == "state":
            yield _Kept("state", kept.role, kept.path, kept.dtype, one, every, 1, None)
            continue
        (value,) = kept.node.outputs
        share = cut.share(value)
        positions = whole_at(kept.shape[kept.axis].value, dict(sizes))
        held = round(one / positions / share), round(every / share)
        yield _Kept("cache", kept.role, kept.path, kept.dtype, *held, positions, kept.window)


def _once(steps: FlatStep, sizes: Mapping[str, int], cut: Cut) -> Iterator[_Kept]:
    """What is computed before the first step and read in all of them."""
    first: dict[Value, tuple[FlatNode, int]] = {}
    for node in steps.step.nodes:
        for i, value in enumerate(node.inputs):
            if isinstance(value, Value):
                first.setdefault(value, (node, i))
    for value in steps.before.outputs:
        node, i = first[value]
        role = node.node.op.cached_inputs(node.node).get(i, (0, ""))[1] if isinstance(node, FlatOp) else ""
        path = "" if not isinstance(node, FlatOp | FlatScan) else node.path
        numbers = round(_numbers(value.shape, sizes) / cut.share(value))
        yield _Kept("once", role or value.name or "tensor", path, value.dtype, numbers, numbers, 1, None)


def _numbers(shape: Shape, sizes: Mapping[str, int]) -> int:
    return whole_at(elements(shape), dict(sizes))
