"""What a step of decoding says of each node of the unrolled model: the lowering of a step goes by these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from archdsl.diagnostics import ArchError, error
from archdsl.diagnostics.source import Span
from archdsl.ir.dims import Num
from archdsl.ir.graph import AppendNode, CallNode, FirstNode, Model, NewestNode, Node, Value
from archdsl.ir.static import numbers_of
from archdsl.passes.flat_step import FlatStep, Latent, unroll_step
from archdsl.passes.flatten import FlatForm, FlatNode, FlatOp, FlatParam, Unrolled, unroll
from archdsl.passes.forms import ALL, NEW, has, in_front, is_time, reads_numbers
from archdsl.passes.step import stepped


class Reading:
    """Reads a step by the nodes and tensors of the whole model, unrolled."""

    def __init__(self, model: Model) -> None:
        """Raises ArchError E0504 where the model's output depends on later positions, or an op has no step."""
        self.model = model
        self.step: FlatStep = unroll_step(stepped(model))
        self.time = self.step.of.time
        flat, self.root = unroll(model)
        self.whole = dict(_pairs(self.step.root, self.root, self.step.of.origins))
        """Of each node of the step the model's."""
        own = dict(model.inputs)
        self.values = {v: own[n] for n, v in self.step.of.model.inputs}
        """Of each tensor of the step the model's."""
        self.values |= {a: b for n, o in self.whole.items() for a, b in zip(n.outputs, o.outputs, strict=True)}
        for node in self.step.step.nodes:
            if isinstance(node, FlatForm):
                self.values[node.output] = self.values[node.value]
        self.copies: dict[FlatNode, list[FlatNode]] = {}
        """Of each node of the model those of the step: what is made of positions alone may stand there in two forms."""
        for node in self.step.step.nodes:
            if not isinstance(node, FlatForm):
                self.copies.setdefault(self.whole[node], []).append(node)
        self.nodes = [n for n in flat.nodes if n in self.copies]
        self.before = {self.whole[n] for n in self.step.before.nodes if not isinstance(n, FlatForm)}
        self.output = flat.outputs[0]
        self.results = self.step.of.results
        """Which outputs of the model a step gives."""
        steps = self.step.step.nodes
        again = {v for n in steps if not isinstance(n, FlatForm) or not isinstance(n.node, FirstNode) for v in n.inputs}
        self.crossing = {self.values[v] for v in self.step.before.outputs if v in again}
        """What the first step computes and later ones read."""
        self.taken = [self.values[v] for v in self.step.taken]
        self.makers = {v: n for n in self.nodes for v in n.outputs}
        self.readers: dict[Value, list[tuple[FlatNode, int]]] = {}
        for node in self.nodes:
            for i, v in enumerate(node.inputs):
                if isinstance(v, Value):
                    self.readers.setdefault(v, []).append((node, i))
        self.positional = {self.values[v] for v in self.step.positional}
        self.moving = {self.values[v] for v in (*self.step.moving, *self.step.step.inputs)}
        self.caches: dict[Value, int] = {}
        """Tensors of which all positions are kept: the axis of these."""
        self.carries: set[FlatNode] = set()
        """Recurrences."""
        for kept in self.step.kept:
            if isinstance(kept.node, FlatForm):
                self.caches[self.values[kept.node.output]] = kept.axis
            else:
                self.carries.add(self.whole[kept.node])
        self.led = self.step.of.first is not None and not self.reads_beside()
        """Whether places in front of the sequence go through the layers, and no scores are read beside their own."""
        self.front = self.of_front()
        """How many of them a cache counts with the tokens."""
        self.leading = {n for n in self.nodes if self.leads(n)}
        """What puts them there, or cuts them off."""
        self.latents: Mapping[FlatNode, Latent] = {self.whole[n]: latent for n, latent in self.step.latents.items()}

    def of_front(self) -> int:
        """Return how many places in front of the sequence go through the layers; a cache counts them with its tokens.
        Raises ArchError E0504 where these are not as many everywhere, or tensors of tokens are read beside them."""
        step, of = self.step, self.step.of
        if not self.led:
            return 0
        counts = dict.fromkeys(of.front(k.shape[k.axis]) for k in step.kept if k.kind == "cache")
        several = "not as many places stand in front of the sequence everywhere that positions are"
        if len(counts) > 1:
            raise refuse(f"{several} kept")
        timed = [(n, v, [of.front(d) for d in v.shape if of.has(d)]) for n in step.step.nodes for v in n.outputs]
        pairs = [f for _, v, fronts in timed for f in fronts if len(fronts) > 1 or v in step.positional]
        front = next(iter(counts), max(pairs, default=0))
        for node, value, fronts in timed:
            read = [v for v in node.inputs if isinstance(v, Value)]
            whole = not isinstance(node, FlatForm) and (len(fronts) > 1 or any(map(step.of_all, read)))
            counted = {front} if whole else {front, 0} if value in step.positional else {*fronts}
            if not counted.issuperset(fronts):
                raise refuse(f"{several} read", None if isinstance(node, FlatForm) else span_of(node))
        if any(v.dtype == "padding" and any(map(of.has, v.shape)) for v in step.step.inputs):
            raise refuse(
                "places in front of the sequence go through the layers, and an input says which tokens are padding"
            )
        return front

    def leads(self, node: FlatNode) -> bool:
        """Whether an op puts places in front of the sequence, or cuts them off. Raises ArchError E0504 where it does
        anything else."""
        if not self.led or not isinstance(node, FlatOp):
            return False
        tensors = [(i, v) for i, v in enumerate(node.inputs) if isinstance(v, Value) and self.fronts(v)]
        read = [v for i, v in tensors if reads_numbers(node.node, i)]
        made = {front for v in node.outputs for front in self.fronts(v)}
        if all(self.fronts(v) == made for v in read) or any(self.reads_all(node, i) for i in range(len(node.inputs))):
            return False
        output, value = node.outputs[0], read[0]
        apart = [a for a, (d, e) in enumerate(zip(value.shape, output.shape, strict=False)) if d.value != e.value]
        same = len(read) == len(node.outputs) == len(apart) == 1 and value.rank == output.rank
        if not same or output in self.positional:
            raise refuse("an op that cuts off places in front of the sequence does something else, too", span_of(node))
        return True

    def fronts(self, value: Value) -> set[int]:
        """How many places stand in front of the sequence along the axes of time of a tensor."""
        return {in_front(d, self.time) for d in value.shape if has(d, self.time)}

    def counts(self, size: Num) -> bool:
        """Whether a size is that of the positions that a cache counts."""
        return in_front(size, self.time) == self.front if self.front else is_time(size, self.time)

    def moving_copies(self, node: FlatNode) -> Iterator[FlatNode]:
        """Yield what stands for a node in the step, if that depends on the sequence. Projections of what is kept are
        left out: attention reads that in their place."""
        for copy in self.copies.get(node, ()):
            if copy not in self.step.chain and any(v in self.step.moving for v in copy.outputs):
                yield copy

    def reads_all(self, node: FlatNode, i: int) -> bool:
        """Whether a node that depends on the sequence reads all positions of an input."""
        inputs = (copy.inputs[i] for copy in self.moving_copies(node))
        return any(self.step.of_all(v) for v in inputs if isinstance(v, Value))

    def reads_beside(self) -> bool:
        """Whether each step computes a tensor that depends on the sequence for all positions along two axes."""
        return any(
            len(self.step.of_all(v)) == 2 for n in self.step.step.nodes for v in n.outputs if v in self.step.moving
        )

    def is_given_all(self, node: FlatNode) -> bool:
        """Whether an op that depends on the sequence is given the number of all positions so far."""
        ops = (copy.node for copy in self.moving_copies(node) if isinstance(copy, FlatOp))
        return any(has(n, self.step.of.all) for op in ops for n in numbers_of(op.options))

    def form(self, copy: FlatNode, i: int) -> tuple[str, ...]:
        """The forms of the axes of time of an input of a node of the step."""
        value = copy.inputs[i]
        assert isinstance(value, Value)
        of = self.step.of
        return tuple(NEW if has(d, of.new) else ALL for d in value.shape if of.has(d))

    def is_new(self, copy: FlatNode) -> bool:
        """Whether a result of a node of the step has new positions."""
        return any(map(self.step.is_new, copy.outputs))

    def spreads(self, node: FlatNode) -> bool:
        """Whether an op does nothing but expand the first axis of a tensor of positions from 1 to the batch."""
        return any(isinstance(c, FlatOp) and self.step.spreads(c) for c in self.copies.get(node, ()))


def refuse(message: str, span: Span | None = None) -> ArchError:
    help_ = "compile it without `generate`; `--to onnx --decode` may take it step by step"
    return error("E0504", message, span, help=help_)


def misread(node: FlatNode) -> ArchError:
    return refuse("this op reads pairs of positions in a way that has no decode step", span_of(node))


def span_of(node: FlatNode) -> Span | None:
    return node.weight.node.span if isinstance(node, FlatParam) else node.node.span


def _pairs(step: Unrolled, whole: Unrolled, origins: Mapping[Node, Node]) -> Iterator[tuple[FlatNode, FlatNode]]:
    """Each node of an unrolled step with that of the unrolled model."""
    for node, flats in step.nodes.items():
        if not isinstance(node, AppendNode | NewestNode | FirstNode):
            yield from zip(flats, whole.nodes[origins.get(node, node)], strict=True)
    for node, calls in step.calls.items():
        origin = origins.get(node, node)
        assert isinstance(origin, CallNode)
        for one, other in zip(calls, whole.calls[origin], strict=True):
            yield from _pairs(one, other, origins)
