"""What a training step keeps in memory besides weights, estimated from the graph: the tensors saved for the backward
pass, the temporaries of both passes and of the loss, and when the most is alive.

Ops run one by one, as PyTorch runs them, with the fused kernels of an accelerator: each op says what its gradients
need (`Primitive.saves`, and the sides of its contractions), a tensor that several ops keep counts once, and views share
the memory of what they view. Attention keeps queries, keys, values, its result and a number for each query; a norm its
input and two numbers a row. The loss is the cross-entropy, in float32, of every output over its last axis.

Activation checkpointing is that of `archdsl compile --checkpoint`: `full` keeps the input of each layer (Chen et al.,
2016), `selective` also what products with weights give.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal

from pydantic import BaseModel, Field

from archdsl.analyses.flops import demand_sizes, sizes_at
from archdsl.backends.torch.features.checkpoint import checkpointed
from archdsl.budget.dtypes import Dtype, width
from archdsl.budget.kernels import Cut, Whole, is_view, viewed, wanting
from archdsl.ir.cost import Cost, elements, whole_at
from archdsl.ir.flat import FlatGraph, FlatNode, FlatOp, FlatParam, FlatScan, Unrolled, unroll, walk, weights_read
from archdsl.ir.graph import CallNode, Input, Model, OpNode, Value
from archdsl.ir.op import Saved

Recompute = Literal["none", "selective", "full"]

# --- the report -------------------------------------------------------------------------------------------------------


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
    """What the blocks of one path save, those of all layers together."""

    path: str
    """`*` stands for every index; `model` is the model itself."""
    block: str
    count: int
    bytes: int
    """Saved by the blocks themselves and by all within; a tensor counts for the first that saves it."""


class StepMemory(BaseModel):
    """The memory of one step of training, as the graph tells it."""

    recompute: Recompute
    saved: int
    """Activations that the forward pass keeps for the backward pass: without weights, buffers and the model's
    inputs."""
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


class Measured(BaseModel):
    """The memory of one step of training as PyTorch has it on a CPU: see `archdsl.budget.measured`."""

    exact: bool
    """False where numbers decide how many rows there are (experts with a capacity): then the most is taken."""
    saved: int
    """Storages that autograd keeps after the forward pass: without weights, buffers and the model's inputs."""
    forward: int
    """The most that is alive until the loss is known, weights and the optimizer's states included."""
    backward: int
    """The most that is alive in the backward pass."""
    peak: int


def estimate(
    model: Model,
    *,
    batch: int = 1,
    seq: int | None = None,
    dtype: Dtype = "float32",
    recompute: Recompute = "none",
    fixed: int = 0,
    gradients: int = 0,
    optimizer: int = 0,
) -> StepMemory:
    """Estimate one step. `fixed` are bytes that are there throughout (weights, buffers, optimizer state), `gradients`
    those of all weights, `optimizer` what the optimizer's step takes beside them.

    Raises ArchError E0503 where the model has no sizes at these lengths, and E0527 where it has no layers to compute
    again."""
    sizes = sizes_at(model, batch, seq)
    demand_sizes(model, sizes)
    return _Step(model, sizes, dtype, recompute).report(fixed, gradients, optimizer)


# --- what ops keep ----------------------------------------------------------------------------------------------------

Key = Value | tuple[object, ...]
"""A tensor that is kept: a value of the graph that is no view, or what an op makes for its own gradients."""


class Saving:
    """What the gradients of ops need, in bytes of the part that a device has."""

    def __init__(
        self,
        graph: FlatGraph,
        sizes: Mapping[str, int],
        dtype: Dtype,
        *,
        wants: Mapping[Value, bool] | None = None,
        cut: Cut | None = None,
        scores: bool = False,
    ) -> None:
        self.sizes, self.dtype, self.scores = dict(sizes), dtype, scores
        self.wants = wanting(graph) if wants is None else wants
        self.cut = cut or Whole()
        self.makers: dict[Value, FlatNode] = {v: n for n in walk(graph) for v in n.outputs}
        self.roots: dict[Value, Value] = {}
        self.numel: dict[int, tuple[object, int]] = {}
        self.known: dict[OpNode, tuple[Saved, Cost]] = {}
        """What an op saves and computes, which all its uses share."""

    def elements(self, value: Value) -> int:
        key = id(value.shape)
        if key not in self.numel:
            self.numel[key] = value.shape, whole_at(elements(value.shape), self.sizes)
        return self.numel[key][1]

    def bytes(self, value: Value) -> float:
        """Of the part of a tensor that a device has."""
        return self.elements(value) * width(value.dtype, self.dtype) / self.cut.share(value)

    def root(self, value: Value) -> Value:
        """The tensor whose memory a value shares."""
        if value not in self.roots:
            self.roots[value] = viewed(value, self.makers)
        return self.roots[value]

    def depends(self, value: Input) -> bool:
        """Whether a gradient of a tensor is wanted."""
        return isinstance(value, Value) and self.wants.get(value, False)

    def is_weight(self, value: Value) -> bool:
        return isinstance(self.makers.get(value), FlatParam)

    def of(self, nodes: Iterable[FlatNode]) -> dict[Key, float]:
        """Return what some nodes keep, each tensor once."""
        return {key: size for node in nodes for key, size in self.kept(node)}

    def entering(self, nodes: Sequence[FlatNode]) -> dict[Key, float]:
        """Return the tensors, not weights, that some nodes read from those before them and that want a gradient."""
        own = {v for n in nodes for v in n.outputs}
        read = (v for n in nodes for v in n.inputs if isinstance(v, Value) and v not in own and self.depends(v))
        return {root: self.bytes(root) for root in map(self.root, read) if not self.is_weight(root)}

    def products(self, nodes: Iterable[FlatNode]) -> dict[Key, float]:
        """Return what products with weights give."""
        found: dict[Key, float] = {}
        for node in nodes:
            if isinstance(node, FlatOp):
                sides = (side for c in self.asked(node)[1].contractions for side in (*c.left, *c.right))
                if any(isinstance(side, str) for side in sides):
                    found.update({self.root(v): self.bytes(v) for v in node.outputs if self.depends(v)})
                for inner in node.blocks.values():
                    found.update(self.with_rows(node, inner, self.products))
        return found

    def asked(self, node: FlatOp) -> tuple[Saved, Cost]:
        if node.node not in self.known:
            self.known[node.node] = node.node.op.saves(node.node), node.node.op.flops(node.node)
        return self.known[node.node]

    def kept(self, node: FlatNode) -> Iterator[tuple[Key, float]]:
        """Yield what a node keeps."""
        if isinstance(node, FlatScan):
            length = whole_at(node.node.length.value, self.sizes)
            yield from ((("step", key), size * length) for key, size in self.of(node.body.nodes).items())
        elif isinstance(node, FlatOp) and any(self.depends(v) for v in node.outputs):
            saved, cost = self.asked(node)
            crossed = [(one, other) for c in cost.contractions for one, other in ((c.left, c.right), (c.right, c.left))]
            crossed += [((one,), (other,)) for one in saved.factors for other in saved.factors if one != other]
            inputs = {*saved.inputs}
            for one, other in crossed:
                if any(
                    node.weights[s].weight.trained if isinstance(s, str) else self.depends(node.inputs[s]) for s in one
                ):
                    inputs |= {s for s in other if isinstance(s, int)}
            for value in [*(node.inputs[i] for i in sorted(inputs)), *(node.outputs[i] for i in saved.outputs)]:
                if isinstance(value, Value) and not self.is_weight(self.root(value)):
                    yield self.root(value), self.bytes(self.root(value))
            for i, (amount, dtype) in enumerate((*saved.own, *(saved.scores if self.scores else ()))):
                numbers = whole_at(amount.flops, self.sizes) / self.cut.share(node.outputs[0])
                yield (id(node), i), numbers * width(dtype, self.dtype)
            for inner in node.blocks.values():
                yield from self.with_rows(node, inner, self.of).items()

    def with_rows(
        self, node: FlatOp, inner: FlatGraph, ask: Callable[[Iterable[FlatNode]], dict[Key, float]]
    ) -> dict[Key, float]:
        """Ask about a block that an op applies to rows, each going to `active` of its copies: the rows that a device
        is sent."""
        x = node.inputs[0]
        assert isinstance(x, Value)
        assert node.node.active is not None
        around, numel = self.sizes, self.numel
        rows = self.elements(x) // int(x.shape[-1]) * int(node.node.active)
        self.sizes, self.numel = {**around, "rows": rows}, {}
        found = {key: size / self.cut.rows(node) for key, size in ask(inner.nodes).items()}
        self.sizes, self.numel = around, numel
        return found


# --- one step on one device -------------------------------------------------------------------------------------------


class _Step:
    """One step: the tensors alive, op by op, forwards and backwards."""

    def __init__(self, model: Model, sizes: dict[str, int], dtype: Dtype, recompute: Recompute) -> None:
        self.graph, self.root = unroll(model)
        self.nodes = self.graph.nodes
        self.recompute = recompute
        self.saving = Saving(self.graph, sizes, dtype)
        again = set(checkpointed(model, recompute))
        layers = {call.path for node, call in calls(self.root) if node in again}
        self.layers = [layer_of(path_of(n), layers) for n in self.nodes]
        self.inputs = round(sum(self.saving.bytes(v) for v in self.graph.inputs))
        self.outputs = [v for v in self.graph.outputs if self.saving.depends(v)]
        self.kept: dict[Key, float] = {}
        """What the forward pass leaves."""
        self.until: dict[Key, int] = {}
        """The first node that keeps it: the last whose gradients read it."""
        self.again: dict[int, dict[Key, float]] = {}
        """By the last node of a layer, what its backward pass has computed again."""
        for key, nodes in groupby(range(len(self.nodes)), lambda i: self.layers[i]):
            self.keep([*nodes], computed_again=bool(key))
        self.live = self.most = 0.0
        self.events: list[tuple[str, str, float, float]] = []

    def keep(self, numbers: list[int], computed_again: bool) -> None:
        """Note what nodes that follow each other keep."""
        nodes = [self.nodes[i] for i in numbers]
        of_node = {i: dict(self.saving.kept(self.nodes[i])) for i in numbers}
        if computed_again:
            first = self.saving.entering(nodes)
            if self.recompute == "selective":
                first |= self.saving.products(nodes)
            self.again[numbers[-1]] = {k: n for kept in of_node.values() for k, n in kept.items() if k not in first}
            of_node = {**of_node, numbers[0]: {**first, **of_node[numbers[0]]}}
        else:
            first = {k: n for kept in of_node.values() for k, n in kept.items()}
        self.kept.update({k: n for k, n in first.items() if k not in self.graph.inputs})
        for i in reversed(numbers):
            self.until.update({k: min(i, self.until.get(k, i)) for k in of_node[i]})

    # --- the step ---

    def report(self, fixed: int, gradients: int, optimizer: int) -> StepMemory:
        saving, n = self.saving, self.saving.elements
        targets = sum(8 * n(v) // int(v.shape[-1]) for v in self.outputs if v.rank > 1)
        fixed += self.inputs + targets
        self.forward()
        before, wide = self.live, [4 * n(v) for v in self.outputs]
        # Logarithms of probabilities are kept; forwards from scores of that type, backwards with two gradients.
        narrow = [4 * n(v) for v in self.outputs if width(v.dtype, saving.dtype) < 4]
        self.most = before + max(sum(wide) + max(narrow, default=0), sum(wide) + 2 * max(wide, default=0))
        objective = self.most - before
        self.close("objective", "")
        self.backward()
        events = [
            Event(
                event="objective" if phase == "objective" else f"{phase} {part or 'model'}",
                bytes=round(alive) + fixed,
                peak=round(most) + fixed,
            )
            for phase, part, alive, most in self.events
        ]
        after = fixed + gradients
        events.append(Event(event="optimizer step", bytes=after, peak=after + optimizer))
        top = max(events, key=lambda e: e.peak)
        return StepMemory(
            recompute=self.recompute,
            saved=round(sum(self.kept.values())),
            objective=round(objective),
            inputs=self.inputs + targets,
            optimizer=optimizer,
            peak=top.peak,
            peak_at=top.event,
            by_block=list(self.by_block()),
            timeline=events,
        )

    def add(self, size: float) -> None:
        self.live += size
        self.most = max(self.most, self.live)

    def close(self, phase: str, part: str) -> None:
        """End an event, or more of the last one."""
        if self.events and self.events[-1][:2] == (phase, part):
            self.most = max(self.most, self.events.pop()[3])
        self.events.append((phase, part, self.live, self.most))
        self.most = self.live

    def forward(self) -> None:
        """Each tensor from the op that makes it to the last that reads it, unless it is kept."""
        saving, last = self.saving, {}
        for i, node in enumerate(self.nodes):
            last.update({saving.root(v): i for v in (*node.inputs, *node.outputs) if isinstance(v, Value)})
        last.update({saving.root(v): len(self.nodes) for v in self.graph.outputs})
        alive: dict[Key, float] = {}
        for i, node in enumerate(self.nodes):
            if isinstance(node, FlatParam) or is_view(node):
                continue
            made = {v: saving.bytes(v) for v in node.outputs if exists(node)}
            extra = {k: n for k, n in saving.kept(node) if k not in last}
            self.add(sum(made.values()) + sum(extra.values()))
            alive |= made
            self.live -= sum(n for k, n in extra.items() if k not in self.kept)
            over = [v for v in (*node.inputs, *node.outputs) if isinstance(v, Value) and last[saving.root(v)] == i]
            self.live -= sum(alive.pop(r, 0.0) for r in {*map(saving.root, over)} if r not in self.kept)
            self.close("forward", part_of(path_of(node)))

    def backward(self) -> None:
        """Each gradient from the op that gives it first to the op that made its tensor; those of weights stay."""
        saving = self.saving
        alive, gradients = dict(self.kept), dict[Value, float]()
        weights: set[str] = set()
        ends: dict[int, list[Key]] = {}
        for key, i in self.until.items():
            ends.setdefault(i, []).append(key)
        self.live = sum(alive.values())
        for value in map(saving.root, self.outputs):
            gradients[value] = saving.bytes(value)
        self.add(sum(gradients.values()))
        for i, node in reversed([*enumerate(self.nodes)]):
            fresh = {k: n for k, n in self.again.get(i, {}).items() if k not in alive}
            alive |= fresh
            self.add(sum(fresh.values()))
            if not isinstance(node, FlatParam) and not is_view(node) and any(saving.depends(v) for v in node.outputs):
                roots = {saving.root(v): None for v in node.inputs if isinstance(v, Value) and saving.depends(v)}
                read = [m for m in map(saving.makers.get, roots) if isinstance(m, FlatParam)]
                more = 0.0
                for root in roots:
                    if root in gradients:
                        more = max(more, gradients[root])
                    elif not saving.is_weight(root):
                        gradients[root] = saving.bytes(root)
                        self.add(gradients[root])
                for path, weight in weights_read(FlatGraph((), (node, *read), ())).items():
                    if weight.weight.trained and path not in weights:
                        weights.add(path)
                        self.add(saving.bytes(Value(weight.weight.shape, weight.weight.dtype)))
                inner = isinstance(node, FlatScan) or bool(node.blocks)
                more += max((n for _, n in saving.kept(node)), default=0.0) if inner else 0.0
                self.add(more)
                self.live -= more
                self.live -= sum(gradients.pop(v, 0.0) for v in node.outputs)
            self.live -= sum(alive.pop(k, 0.0) for k in ends.get(i, ()))
            self.close("backward", part_of(path_of(node)))

    # --- parts ---

    def by_block(self) -> Iterator[BlockActivations]:
        """A row for each block that saves something, in the order of the calls, those of all indices together."""
        bytes_of: dict[str, float] = {}
        for key, size in self.kept.items():
            path = path_of(self.nodes[self.until[key]])
            for step in {path, *(path[:i] for i, c in enumerate(path) if c == "."), ""}:
                bytes_of[step] = bytes_of.get(step, 0.0) + size
        rows: dict[tuple[str, str], BlockActivations] = {}
        sums: dict[tuple[str, str], float] = {}
        for call in {c.path: c for c in (self.root, *(c for _, c in calls(self.root)))}.values():
            if bytes_of.get(call.path):
                starred = ".".join("*" if s.isdecimal() else s for s in call.path.split(".")) or "model"
                key = starred, call.block.name
                row = rows.setdefault(key, BlockActivations(path=starred, block=call.block.name, count=0, bytes=0))
                row.count += 1
                sums[key] = sums.get(key, 0.0) + bytes_of[call.path]
                row.bytes = round(sums[key])
        yield from rows.values()


def calls(root: Unrolled) -> Iterator[tuple[CallNode, Unrolled]]:
    """Yield every call within one, callers first."""
    for node, found in root.calls.items():
        for call in found:
            yield node, call
            yield from calls(call)


def exists(node: FlatNode) -> bool:
    """Whether there is a tensor for each result: not of a mask that is just causal."""
    return not isinstance(node, FlatOp) or node.node.op.needs_tensor(node.node.options, node.inputs)


def path_of(node: FlatNode) -> str:
    return node.weight.path if isinstance(node, FlatParam) else node.path


def layer_of(path: str, layers: Container[str]) -> str:
    """The layer that a path lies in, or is; "" where there is none."""
    while path and path not in layers:
        path = path.rpartition(".")[0]
    return path


def part_of(path: str) -> str:
    """The part of the model that a path belongs to: a layer, or what stands in the model itself."""
    steps = path.split(".")
    return ".".join(steps[:2]) if len(steps) > 1 and steps[1].isdecimal() else steps[0]
