"""What each op of a model computes and moves: the FLOPs of its contractions, and bytes to and from memory.

A *kernel* reads its inputs and weights once, and writes its results once; what it needs in between stays on the chip.
So attention moves queries, keys, values and results, but no scores (Dao et al., 2022). Two profiles differ in what one
kernel is:

* **fused**: element-wise ops that follow each other without a contraction between them are one kernel, norms,
  activations, rotations and residual sums among them: tensors that nothing else reads are never written. What a
  compiler does.
* not fused: every op is a kernel. What PyTorch does op by op.

Reshaping, transposing and splitting move nothing: they are views. A table that is looked up is read where it is looked
up. Of routed experts those are read that any of the tokens is expected to choose, if all are chosen equally often.

Backwards a contraction is done again for each side that wants a gradient, with the traffic that it has forwards;
everything else reads the gradients of its results and its inputs, and writes their gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from weakref import WeakKeyDictionary

from archdsl.estimates.dtypes import Dtype, width
from archdsl.estimates.mask_density import count
from archdsl.frozen import Frozen
from archdsl.ir.cost import Amount, Cost, elements, whole_at
from archdsl.ir.graph import OpNode, Value
from archdsl.passes.flat_step import FlatStep
from archdsl.passes.flatten import FlatGraph, FlatNode, FlatOp, FlatScan, FlatWeight
from archdsl.passes.gradients import wanting


class Kernel(Frozen):
    """One use of an op on one device. Of an op within a recurrence, all its steps."""

    path: str
    op: str
    dtype: str
    """The type that it computes in: `float` (the model's own), `float32`, …"""
    flops: float
    """Of its contractions, forwards."""
    bytes: float
    backward_flops: float
    backward_bytes: float
    node: int
    """Which node of the graph it belongs to, from 0."""
    core: bool
    """Whether it multiplies pairs of queries and keys."""


class Cut:
    """How a model is spread over devices, as far as one of them asks: by how much its own share is smaller. Here one
    device has everything."""

    def share(self, value: Value) -> float:
        """Of a tensor."""
        return 1

    def held(self, weight: FlatWeight) -> float:
        """Of a weight."""
        return 1

    def vocabulary(self, value: Value) -> int:
        """Return over how many devices the vocabulary is sharded where the loss reads logits."""
        return 1

    def work(self, node: FlatNode) -> int:
        """Of what an op computes."""
        return 1

    def rows(self, node: FlatOp) -> int:
        """Of the rows that the experts of an op are given."""
        return 1

    def exchanged(self, node: FlatNode) -> Sequence[Exchange]:
        """Return the tensors that an op reads or makes whole, of which a device keeps a shard."""
        return ()

    @property
    def senders(self) -> int:
        """How many devices send rows to the experts that a device holds."""
        return 1


class Exchange(Frozen):
    """A tensor that is gathered for an op, or that it makes as partial sums, which are scattered."""

    value: Value
    share: float
    """By how much what a device has of it while the op runs is smaller than the tensor."""
    backward: int
    """How many tensors of that size there are backwards: its gradient, and where the op reads it itself once more."""


def kernels(
    graph: FlatGraph,
    sizes: Mapping[str, int],
    dtype: Dtype,
    *,
    fused: bool = True,
    step: FlatStep | None = None,
    cut: Cut | None = None,
    scores: Callable[[FlatOp], str | None] | None = None,
) -> list[Kernel]:
    """Every op of a model's graph at these sizes; with a `step`, of one step of decoding, whose graph it is. `scores`
    says in which type attention stores all scores; None where it stores none."""
    sizes = sizes if step is None else step.of.sizes(sizes)
    return list(_KernelWalk(sizes, dtype, fused, step, cut or Cut(), scores).graph(graph, 1.0, 1.0, None))


_VIEWS: WeakKeyDictionary[OpNode, bool] = WeakKeyDictionary()


def is_view(node: FlatNode) -> bool:
    """Whether an op only says how to read its one input: nothing is moved. All uses of an op are alike."""
    if not isinstance(node, FlatOp):
        return False
    found = _VIEWS.get(node.node)
    if found is None:
        found = _VIEWS[node.node] = _only_reads(node)
    return found


def _only_reads(node: FlatOp) -> bool:
    if node.weights or node.blocks:
        return False
    op, tensors = node.node.op, [v for v in node.inputs if isinstance(v, Value)]
    if len(tensors) != 1 or op.passes or any(v.dtype != tensors[0].dtype for v in node.outputs):
        return op.regroups(node.node) is not None
    return op.regroups(node.node) is not None or op.is_projection(node.node) or _at_most(node.outputs, tensors[0])


def _at_most(outputs: Sequence[Value], x: Value) -> bool:
    """Whether results together hold no more numbers than one tensor, whatever the sizes."""
    return all(o.rank <= x.rank for o in outputs) and all(
        d.value in {e.value for e in x.shape} or (d.static and any(e.static and int(d) <= int(e) for e in x.shape))
        for o in outputs
        for d in o.shape
    )


def viewed(value: Value, makers: Mapping[Value, FlatNode]) -> Value:
    """The tensor whose memory this one shares: itself, or what a view reads."""
    while True:
        maker = makers.get(value)
        if maker is None or not is_view(maker):
            return value
        value = next(v for v in maker.inputs if isinstance(v, Value))


class Sized:
    """Bytes of tensors at some sizes, of the part that a device has."""

    def __init__(self, sizes: Mapping[str, int], dtype: Dtype, cut: Cut) -> None:
        self.sizes, self.dtype, self.cut = dict(sizes), dtype, cut
        self.numbers: dict[int, tuple[object, int]] = {}

    def elements(self, value: Value) -> int:
        """How many numbers the whole tensor has."""
        key = id(value.shape)
        if key not in self.numbers:
            self.numbers[key] = value.shape, whole_at(elements(value.shape), self.sizes)
        return self.numbers[key][1]

    def width(self, value: Value) -> int:
        """How many bytes a number of it takes."""
        return width(value.dtype, self.dtype)

    def bytes(self, value: Value) -> float:
        return self.elements(value) * self.width(value) / self.cut.share(value)


class _KernelWalk(Sized):
    def __init__(
        self,
        sizes: Mapping[str, int],
        dtype: Dtype,
        fused: bool,
        step: FlatStep | None,
        cut: Cut,
        scores: Callable[[FlatOp], str | None] | None = None,
    ) -> None:
        super().__init__(sizes, dtype, cut)
        self.fused, self.step, self.scores = fused, step, scores
        self.pairs: dict[object, int] = {}
        self.costs: dict[object, tuple[object, Cost]] = {}
        self.wants: dict[Value, bool] = {}
        self.fusable: dict[int, bool] = {}
        self.within: dict[int, _KernelWalk] = {}
        """Experts, by how many rows they are given."""
        self.projected: _KernelWalk | None = None
        """Keys and values that are projections of what is kept: queries are projected instead, at the new positions."""
        if step is not None and step.chain:
            self.projected = _KernelWalk({**sizes, step.of.all.name: step.one_projected}, dtype, fused, None, cut)
            self.projected.wants = self.wants

    def amount(self, amount: Amount) -> int:
        flops = whole_at(amount.flops, self.sizes)
        if amount.pairs is None:
            return flops
        queries, keys = (whole_at(n.value, self.sizes) for n in (amount.pairs.queries, amount.pairs.keys))
        key = amount.pairs.mask.key, queries, keys
        if key not in self.pairs:
            self.pairs[key] = count(amount.pairs.mask, queries, keys, self.sizes)
        return flops * self.pairs[key]

    # --- graphs ---

    def graph(self, graph: FlatGraph, times: float, experts: float, number: int | None) -> Iterator[Kernel]:
        """Kernels of a graph that is run so many times; `experts` is the part of weights with copies that is read, and
        `number` the node that a graph within belongs to."""
        if number is None:
            self.wants.update(wanting(graph))
        around = _Around(graph, self.fused, self.fusable)
        for i, node in enumerate(graph.nodes):
            if isinstance(node, FlatOp):
                walk = self.projected if self.projected is not None and self.absorbs(node) else self
                yield from walk.op(node, around, times, experts, i if number is None else number)
            elif isinstance(node, FlatScan):
                length = 1 if node.node.kept else whole_at(node.node.length.value, self.sizes)
                yield from self.graph(node.body, times * length, experts, i if number is None else number)

    def op(self, node: FlatOp, around: _Around, times: float, experts: float, number: int) -> Iterator[Kernel]:
        cost = self.cost(node)
        work = self.cut.work(node)
        flops = back_flops = back_bytes = 0.0
        weights = self.weights(node) * experts
        read = self.read(node, around)
        written = self.written(node, around)
        traffic = weights + times * (sum(read) + sum(written) + self.carried(node) + self.stored(node) / work)
        for part in cost.contractions:
            amount = self.amount(part.amount) * times / work
            sides = sum(
                any(node.weights[s].weight.trained if isinstance(s, str) else self.wanted(node, s) for s in side)
                for side in (part.left, part.right)
            )
            flops += amount
            back_flops += sides * amount
            back_bytes = max(back_bytes, sides * traffic)
        if not cost.contractions and any(self.wants.get(v, False) for v in node.outputs):
            back_bytes = times * (sum(written) + 2 * sum(n for i, n in enumerate(read) if self.wanted(node, i)))
        kernel = Kernel(
            node.path,
            node.node.op.name,
            next((v.dtype for v in (*node.outputs, *node.inputs) if isinstance(v, Value) and v.is_float), "float"),
            flops,
            traffic,
            back_flops,
            back_bytes,
            number,
            any(part.amount.pairs is not None for part in cost.contractions),
        )
        if kernel.flops or kernel.bytes:
            yield kernel
        for inner in node.blocks.values():
            yield from self.experts(node, node.inputs[0], inner, times, number)

    def experts(self, node: FlatOp, x: object, inner: FlatGraph, times: float, number: int) -> Iterator[Kernel]:
        """The block that an op applies itself to rows, each row going to `active` of its copies."""
        assert isinstance(x, Value)
        assert node.node.active is not None
        assert node.node.copies is not None
        copies, active = int(node.node.copies), int(node.node.active)
        tokens = prod(whole_at(d.value, self.sizes) for d in x.shape[:-1]) // self.cut.rows(node)
        met = 1 - (1 - active / copies) ** (max(tokens, 1) * self.cut.senders)
        rows = max(tokens, 1) * active
        if rows not in self.within:
            self.within[rows] = _KernelWalk({**self.sizes, "rows": rows}, self.dtype, self.fused, None, self.cut)
            self.within[rows].wants = self.wants
        yield from self.within[rows].graph(inner, times, met, number)

    # --- one op ---

    def absorbs(self, node: FlatOp) -> bool:
        return self.step is not None and node in self.step.chain

    def cost(self, node: FlatOp) -> Cost:
        """Layers that are alike are asked once."""
        key = id(node.node)
        if key not in self.costs:
            op = node.node.op
            self.costs[key] = node.node, op.flops(node.node) if self.step is None else op.step_flops(node.node)
        return self.costs[key][1]

    def wanted(self, node: FlatOp, i: int) -> bool:
        value = node.inputs[i]
        return isinstance(value, Value) and self.wants.get(value, False)

    def weights(self, node: FlatOp) -> float:
        """Bytes of weights that are read; of a table only what is looked up."""
        found = 0.0
        for weight in node.weights.values():
            if not all(d.static for d in weight.weight.shape):
                continue
            size = prod(map(int, weight.weight.shape)) * width(weight.weight.dtype, self.dtype) / self.cut.held(weight)
            if weight.weight.kind == "embedding" and not self.cost(node).contractions:
                size = min(size, sum(self.bytes(v) for v in node.outputs))
            found += size
        return found

    def read(self, node: FlatOp, around: _Around) -> list[float]:
        """Bytes of each input that come from memory."""
        found: list[float] = []
        if is_view(node):
            return [0.0] * len(node.inputs)
        picks = not node.node.op.passes and not self.cost(node).contractions and not node.blocks
        most = sum(self.bytes(v) for v in node.outputs)
        latent = self.step.latents.get(node) if self.step is not None else None
        kept = node.node.op.cached_inputs(node.node)
        for i, value in enumerate(node.inputs):
            if not isinstance(value, Value) or around.is_inside(node, value):
                found.append(0.0)
            elif latent is not None and i in kept:
                # The latents are cached and read, once for keys and values.
                first = i == min(kept)
                found.append(sum(self.bytes(form.output) for form in latent.base) if first else 0.0)
            else:
                size = self.bytes(value) * self.seen(node, i)
                found.append(min(size, most) if picks else size)
        return found

    def seen(self, node: FlatOp, i: int) -> float:
        """The part of all positions of a cache that is read."""
        if self.step is None or not self.step.of_all(node.tensor(i)):
            return 1.0
        bound = node.node.op.lookback(node.node, i) if i in node.node.op.cached_inputs(node.node) else None
        (axis,) = self.step.of_all(node.tensor(i))[-1:]
        positions = whole_at(node.tensor(i).shape[axis].value, self.sizes)
        return 1.0 if bound is None else min(1.0, (bound + 1) / positions)

    def written(self, node: FlatOp, around: _Around) -> list[float]:
        if is_view(node) or not node.node.op.needs_tensor(node.node.options, node.node.inputs):
            return [0.0] * len(node.outputs)
        return [0.0 if around.stays(value) else self.bytes(value) for value in node.outputs]

    def stored(self, node: FlatOp) -> float:
        """Bytes of scores that attention writes and reads: their product, the softmax of it, the sum of values."""
        kind = self.scores(node) if self.scores is not None else None
        if kind is None:
            return 0.0
        numbers, _ = node.node.op.saves(node.node).scores[0]
        return 4 * whole_at(numbers.flops, self.sizes) * width(kind, self.dtype)

    def carried(self, node: FlatOp) -> float:
        """Bytes of states that a step of decoding reads and writes."""
        states = node.node.op.states(node.node) if node.node.kept else ()
        return sum(2 * self.bytes(Value(s.shape, s.dtype, s.name)) for s in states)


class _Around:
    """Which tensors of a graph are written, and who reads them from memory."""

    def __init__(self, graph: FlatGraph, fused: bool, known: dict[int, bool]) -> None:
        self.makers: dict[Value, FlatNode] = {v: n for n in graph.nodes for v in n.outputs}
        self.readers: dict[Value, list[FlatNode]] = defaultdict(list)
        self.results = {self.root(v) for v in graph.outputs}
        self.regions: dict[int, int] = {}
        """Of nodes in one kernel, another one of it; the last of them stands for all."""
        self.first: dict[tuple[int, Value], FlatNode] = {}
        self.absent = {
            v
            for n in graph.nodes
            if isinstance(n, FlatOp) and not n.node.op.needs_tensor(n.node.options, n.node.inputs)
            for v in n.outputs
        }
        fusing: set[int] = set()
        depth: dict[Value, int] = {}
        """How many kernels that do not fuse lie before a tensor: only equals join; no kernel waits for itself."""
        for node in graph.nodes:
            inputs = [v for v in node.inputs if isinstance(v, Value)]
            level = max((depth.get(v, 0) for v in inputs), default=0)
            if not is_view(node):
                self.regions[id(node)] = id(node)
                for value in inputs:
                    self.readers[self.root(value)].append(node)
                if isinstance(node, FlatOp) and id(node.node) not in known:
                    known[id(node.node)] = _is_fusable(node)
                if fused and isinstance(node, FlatOp) and known[id(node.node)]:
                    for value in inputs:
                        maker = self.makers.get(self.root(value))
                        if maker is not None and id(maker) in fusing and depth.get(value) == level:
                            self.join(id(node), id(maker))
                    fusing.add(id(node))
                else:
                    level += 1
            depth.update(dict.fromkeys(node.outputs, level))
        for value, nodes in self.readers.items():
            for node in nodes:
                self.first.setdefault((self.region(node), value), node)

    def root(self, value: Value) -> Value:
        return viewed(value, self.makers)

    def region(self, node: FlatNode) -> int:
        found = self.regions.get(id(node), id(node))
        while self.regions.get(found, found) != found:
            found = self.regions[found]
        return found

    def join(self, a: int, b: int) -> None:
        roots = []
        for one in (a, b):
            while self.regions[one] != one:
                one = self.regions[one]
            roots.append(one)
        self.regions[roots[0]] = roots[1]

    def is_inside(self, node: FlatNode, value: Value) -> bool:
        """Whether the kernel of a node has a tensor already: it made it, read it before, or there is none."""
        root = self.root(value)
        if root in self.absent:
            return True
        maker = self.makers.get(root)
        if maker is not None and self.region(maker) == self.region(node):
            return True
        return self.first.get((self.region(node), root)) is not node

    def stays(self, value: Value) -> bool:
        """Whether nothing but the kernel that makes it reads a tensor."""
        if value in self.results:
            return False
        own = self.region(self.makers[value])
        readers = self.readers.get(value, [])
        return bool(readers) and all(self.region(n) == own for n in readers)


def _is_fusable(node: FlatOp) -> bool:
    """Whether an op goes number by number, or keeps the shape of its input without a contraction."""
    op = node.node.op
    tensors = [v for v in node.inputs if isinstance(v, Value)]
    casts = len(tensors) == 1 and any(v.dtype != tensors[0].dtype for v in node.outputs)
    if node.blocks or is_view(node) or not (op.passes or casts) or op.flops(node.node).contractions:
        return False
    same = bool(tensors) and all(
        [d.value for d in v.shape] == [d.value for d in tensors[0].shape] for v in node.outputs
    )
    return op.elementwise or (same and node.outputs[0].is_float)
