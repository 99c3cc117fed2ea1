"""A model unrolled: every call written out, every iteration of a loop, each value with one meaning.

Blocks are shared, so a value of a block stands for as many tensors as the block is called.  What must tell them apart
(the ONNX graph, what a decoder keeps between steps) works on this form.  It is linear in the number of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from functools import lru_cache
from typing import Any

from archdsl.frozen import Entity
from archdsl.ir import verify
from archdsl.ir.dims import Num
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import (
    Block,
    CallNode,
    CondNode,
    FormNode,
    Graph,
    Handle,
    Input,
    LoopNode,
    Model,
    Node,
    OnceNode,
    OpNode,
    ParamNode,
    Reading,
    ScanNode,
    Value,
    Weight,
    WeightNode,
    node_outputs,
)
from archdsl.ir.paths import Step, counter
from archdsl.ir.static import SharedModule
from archdsl.ir.walk import modules
from archdsl.passes.dce import live


class FlatWeight(Entity):
    """A weight at its position: its path, and the node that declares it."""

    path: str
    weight: Weight
    block: Block
    node: OpNode | ParamNode


class FlatOp(Reading, Entity):
    """One use of a primitive. `node` says what it is; its tensors are those given here."""

    node: OpNode
    inputs: tuple[Input, ...]
    outputs: tuple[Value, ...]
    path: str
    """Where it stands: the path of its weights, or of the block around it."""
    weights: Mapping[str, FlatWeight] = field(default_factory=dict)
    blocks: Mapping[str, FlatGraph] = field(default_factory=dict)
    """The blocks that it applies itself; of their weights, each has a leading axis of copies."""


class FlatParam(Entity):
    """A weight read as a tensor."""

    weight: FlatWeight
    output: Value

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ()

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.output,)


class FlatScan(Entity):
    """A recurrence along axis 1: see `ScanNode`. The body may read the values around it."""

    node: ScanNode
    body: FlatGraph
    starts: tuple[Value | Num, ...]
    sequences: tuple[Value, ...]
    stacked: tuple[Value, ...]
    finals: tuple[Value, ...]
    path: str

    @property
    def inputs(self) -> tuple[Input, ...]:
        own = {id(v) for v in self.body.inputs} | {id(v) for n in self.body.nodes for v in n.outputs}
        read = (v for n in self.body.nodes for v in n.inputs if isinstance(v, Value))
        around = dict.fromkeys(v for v in (*read, *self.body.outputs) if id(v) not in own)
        return (*self.starts, *self.sequences, *around)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self.stacked + self.finals


class FlatForm(Entity):
    """In a step of decoding, what gives a tensor in its other form."""

    node: FormNode
    value: Value
    output: Value
    path: str
    """Of the block that it stands in."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.value,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.output,)


FlatNode = FlatOp | FlatParam | FlatScan | FlatForm


class FlatGraph(Entity):
    """Nodes in an order in which they can be computed."""

    inputs: tuple[Value, ...]
    nodes: tuple[FlatNode, ...]
    outputs: tuple[Value, ...]


class Unrolled(Entity):
    """What became of one call of a block: of each of its nodes once for every iteration of the loops around it, and of
    the calls in it."""

    block: Block
    path: str
    """Where its weights live."""
    nodes: dict[Node, list[FlatNode]] = field(default_factory=dict)
    calls: dict[CallNode, list[Unrolled]] = field(default_factory=dict)
    applied: dict[CallNode, list[Unrolled]] = field(default_factory=dict)
    """The same of blocks that ops apply themselves: experts."""
    values: dict[Value, Value] = field(default_factory=dict)
    """The block's values in the flat graph; of those in a loop, the last iteration's."""

    def homes(self) -> Iterator[tuple[FlatNode, Unrolled]]:
        """Yield each node, those of inner calls too, with the call of a block in which it stands."""
        yield from ((flat, self) for flats in self.nodes.values() for flat in flats)
        for calls in self.calls.values():
            for call in calls:
                yield from call.homes()


def flatten(model: Model) -> FlatGraph:
    """The model's graph for inference (the branch of `if training` that is not training, no losses), unrolled, without
    what no output needs."""
    return unroll(model)[0]


@lru_cache(maxsize=2)
def unroll(model: Model) -> tuple[FlatGraph, Unrolled]:
    """The same, and what became of each call. The last ones are remembered."""
    graph, root, _ = unroll_all(model)
    return verify.checked(graph, violations, "unrolling"), root


def unroll_all(model: Model) -> tuple[FlatGraph, Unrolled, Set[FlatNode]]:
    """The graph of a model, what became of each call, and what the first step of decoding computes for all."""
    flattener = Flattener()
    block = model.block
    scope = FlatScope(block, "", {v: v for v in block.graph.inputs}, {i: i.path for i in block.instances})
    flattener.graph(block.graph, scope, str)
    outputs = tuple(scope.values[v] for v in block.graph.outputs if v is not None)
    return FlatGraph(block.graph.inputs, live(flattener.nodes, outputs), outputs), scope.unrolled, flattener.once


def walk(graph: FlatGraph) -> Iterator[FlatNode]:
    """Every node, those of inner graphs included."""
    for node in graph.nodes:
        yield node
        if isinstance(node, FlatScan):
            yield from walk(node.body)
        elif isinstance(node, FlatOp):
            for inner in node.blocks.values():
                yield from walk(inner)


def weights_read(graph: FlatGraph) -> dict[str, FlatWeight]:
    """Every weight that the graph reads, by its path, in order of first use."""
    found: dict[str, FlatWeight] = {}
    for node in walk(graph):
        for weight in node.weights.values() if isinstance(node, FlatOp) else ():
            found.setdefault(weight.path, weight)
        if isinstance(node, FlatParam):
            found.setdefault(node.weight.path, node.weight)
    return found


@dataclass
class FlatScope:
    """One call of a block: its values and shared blocks in the flat graph's."""

    block: Block
    prefix: str
    values: dict[Value, Value]
    instances: dict[SharedModule, str]
    """Where each shared block lives."""
    unrolled: Unrolled = field(init=False)

    def __post_init__(self) -> None:
        self.unrolled = Unrolled(self.block, self.prefix.rstrip("."), values=self.values)

    def add(self, node: Node, flat: FlatNode) -> FlatNode:
        """Note what became of a node."""
        self.unrolled.nodes.setdefault(node, []).append(flat)
        return flat

    def of(self, value: Input) -> Input:
        return self.values[value] if isinstance(value, Value) else value


class Flattener:
    """Unrolls a graph node by node."""

    def __init__(self) -> None:
        self.nodes: list[FlatNode] = []
        self.once: set[FlatNode] = set()
        """What the first step of decoding computes for all."""

    def graph(self, graph: Graph, scope: FlatScope, step: Step) -> None:
        for node in graph.nodes:
            self.node(node, scope, step)

    def node(self, node: Node, scope: FlatScope, step: Step) -> None:
        match node:
            case OpNode():
                self.op(node, scope, step)
            case CallNode():
                self.call(node, scope, step)
            case LoopNode():
                self.loop(node, scope, step)
            case ScanNode():
                self.scan(node, scope, step)
            case CondNode():
                self.condition(node, scope, step)
            case ParamNode():
                path = scope.prefix + step(node.name)
                found = FlatParam(FlatWeight(path, node.weight, scope.block, node), fresh(node.output, scope))
                self.nodes.append(scope.add(node, found))
            case WeightNode():
                self.weight(node, scope)
            case FormNode():
                made = FlatForm(node, scope.values[node.value], fresh(node.output, scope), scope.prefix.rstrip("."))
                self.nodes.append(scope.add(node, made))
            case OnceNode():
                start = len(self.nodes)
                self.graph(node.body, scope, step)
                self.once.update(self.nodes[start:])
                given = [scope.values[v] for v in node.body.outputs if v is not None]
                scope.values.update(zip(node.outputs, given, strict=True))
            case _:
                pass  # conditions on sizes, proofs and losses leave no trace in what is run

    def op(self, node: OpNode, scope: FlatScope, step: Step) -> None:
        owner = node.instance
        declared = node
        if owner is not None:
            path, block = scope.instances[owner], scope.block
            declared = owner.node
        elif node.weights or node.blocks:
            path, block = scope.prefix + step(node.name), scope.block
        else:
            path, block = scope.prefix.rstrip("."), scope.block
        weights = {w.name: FlatWeight(f"{path}.{w.name}", w, block, declared) for w in declared.weights}
        blocks = {name: self.inner(call, f"{path}.", scope) for name, call in declared.blocks.items()}
        inputs = tuple(scope.of(v) for v in node.inputs)
        outputs = tuple(fresh(v, scope) for v in node.outputs)
        self.nodes.append(scope.add(node, FlatOp(node, inputs, outputs, path, weights, blocks)))

    def inner(self, call: CallNode, prefix: str, scope: FlatScope) -> FlatGraph:
        """The graph of a block that a primitive applies itself."""
        around, self.nodes = self.nodes, []
        block = call.block
        instances = {**scope.instances, **{i: prefix + i.path for i in block.instances}}
        inside = FlatScope(block, prefix, {v: v for v in block.graph.inputs}, instances)
        scope.unrolled.applied.setdefault(call, []).append(inside.unrolled)
        self.contexts(call, scope, inside)
        self.graph(block.graph, inside, str)
        outputs = tuple(inside.values[v] for v in block.graph.outputs if v is not None)
        found, self.nodes = FlatGraph(block.graph.inputs, live(self.nodes, outputs), outputs), around
        return found

    def contexts(self, call: CallNode, scope: FlatScope, inside: FlatScope) -> None:
        for context, given in zip(call.block.contexts, call.contexts, strict=True):
            if isinstance(given, Handle):
                assert isinstance(context.value, Handle)
                inside.instances[context.value.instance] = scope.instances[given.instance]
            elif given is not None:
                assert isinstance(context.value, Value)
                inside.values[context.value] = scope.values[given]

    def call(self, node: CallNode, scope: FlatScope, step: Step) -> None:
        block = node.block
        owner = node.instance if node.handle is None else node.handle.instance
        prefix = f"{scope.instances[owner] if owner is not None else scope.prefix + step(node.name)}."
        instances = {i: prefix + i.path for b in (block, block.before) if b is not None for i in b.instances}
        inside = FlatScope(block, prefix, {}, {**scope.instances, **instances})
        scope.unrolled.calls.setdefault(node, []).append(inside.unrolled)
        for inner, given in zip(block.graph.inputs, node.inputs, strict=True):
            if given is not None:
                inside.values[inner] = scope.values[given]
        self.contexts(node, scope, inside)
        self.graph(block.graph, inside, str)
        results = [v for v in block.graph.outputs if v is not None]
        for outer, value in zip(node.outputs, results, strict=True):
            scope.values[outer] = inside.values[value]

    def loop(self, node: LoopNode, scope: FlatScope, step: Step) -> None:
        inner = step if step is not str else counter()
        carried = [scope.values[v] for v in node.starts]
        for iteration, body in enumerate(node.iterations):
            graph = node.bodies[body]
            scope.values.update(zip(graph.inputs, carried, strict=True))
            self.graph(graph, scope, inner)
            results = [scope.values[v] for v in graph.outputs if v is not None]
            carried = results[: len(carried)]
            if node.emitted:
                scope.values.update(zip(node.emitted[iteration], results[len(carried) :], strict=True))
        scope.values.update(zip(node.outputs, carried, strict=True))

    def scan(self, node: ScanNode, scope: FlatScope, step: Step) -> None:
        starts = tuple(scope.of(v) for v in node.starts)
        sequences = tuple(scope.values[v] for v in node.sequences)
        around, self.nodes = self.nodes, []
        inputs = tuple(fresh(v, scope) for v in node.body.inputs)
        self.graph(node.body, scope, step)
        outputs = tuple(scope.values[v] for v in node.body.outputs if v is not None)
        body, self.nodes = FlatGraph(inputs, live(self.nodes, outputs), outputs), around
        stacked = tuple(fresh(v, scope) for v in node.stacked)
        finals = tuple(fresh(v, scope) for v in node.finals)
        found = tuple(v for v in starts if v is not None)
        made = FlatScan(node, body, found, sequences, stacked, finals, scope.prefix.rstrip("."))
        self.nodes.append(scope.add(node, made))

    def condition(self, node: CondNode, scope: FlatScope, step: Step) -> None:
        if step is not str:
            for _ in modules(node.then, step):
                pass  # what follows keeps its numbers
        self.graph(node.otherwise, scope, step)
        for outer, value in zip(node.outputs, node.otherwise.outputs, strict=True):
            assert value is not None
            scope.values[outer] = scope.values[value]

    def weight(self, node: WeightNode, scope: FlatScope) -> None:
        path, declared = scope.instances[node.instance], node.instance.node
        weight = next(w for w in declared.weights if w.name == node.weight)
        found = FlatWeight(f"{path}.{node.weight}", weight, scope.block, declared)
        self.nodes.append(scope.add(node, FlatParam(found, fresh(node.output, scope))))


def fresh(value: Value, scope: FlatScope) -> Value:
    """A value of its own for this position."""
    scope.values[value] = found = replaced(value)
    return found


def flat_init(graph: Graph) -> FlatGraph:
    """The expression of a weight's first value."""
    nodes = [FlatOp(n, n.inputs, n.outputs, "") for n in graph.nodes if isinstance(n, OpNode)]
    return FlatGraph((), tuple(nodes), tuple(v for v in graph.outputs if v is not None))


# --- rules ------------------------------------------------------------------------------------------------------------


def violations(graph: FlatGraph) -> Iterator[str]:
    """Yield the violations in an unrolled graph: see `archdsl.ir.verify`."""
    yield from _wrong(graph, set())
    shapes: dict[str, list[Size]] = {}
    for node in walk(graph):
        read = (node.weight,) if isinstance(node, FlatParam) else ()
        for found in node.weights.values() if isinstance(node, FlatOp) else read:
            shape = [d.value for d in found.weight.shape]
            if shapes.setdefault(found.path, shape) != shape:  # a shared block may be another for another length
                yield f"`{found.path}` is the path of two weights"


def _wrong(graph: FlatGraph, visible: set[int]) -> Iterator[str]:
    """A value is defined once, and read after its definition in the same graph or in one inside it; the tensors of a
    node have the types that the node of its block has."""
    from archdsl.ir.verify.rules import differing

    defined = [*graph.inputs]
    for node in (*graph.nodes, None):
        visible.update(id(v) for v in defined)
        if node is None:
            break
        where = f"{type(node).__name__} `{getattr(node, 'path', '')}`: "
        lost = (v for v in node.inputs if isinstance(v, Value) and id(v) not in visible)
        yield from (f"{where}{v} is read outside its scope" for v in lost)
        yield from (f"{where}{v} is defined twice" for v in node.outputs if id(v) in visible)
        for what, found, due in _types(node):
            yield from (where + w for w in differing(what, found, due))
        inner = node.blocks.values() if isinstance(node, FlatOp) else (node.body,) if isinstance(node, FlatScan) else ()
        for further in inner:
            yield from (where + w for w in _wrong(further, set(visible)))
        defined = [*node.outputs]
    yield from (f"{v} is given back and not defined" for v in graph.outputs if id(v) not in visible)


def _types(node: FlatNode) -> Iterator[tuple[str, Sequence[Any], Sequence[Any]]]:
    """Yield the tensors of a node, kind by kind, with those of the node of its block."""
    if isinstance(node, FlatOp):
        yield "inputs", _tensors(node.inputs), _tensors(node.node.inputs)
        declared = [Value(w.shape, w.dtype) for w in node.node.weights]
        yield "weights", [Value(w.weight.shape, w.weight.dtype) for w in node.weights.values()], declared
    if isinstance(node, FlatScan):
        yield "starts", _tensors(node.starts), _tensors(node.node.starts)
        yield "sequences", node.sequences, node.node.sequences
        yield "inputs of a step", node.body.inputs, node.node.body.inputs
        yield "results of a step", node.body.outputs, node.node.body.outputs
    if not isinstance(node, FlatParam):
        yield "outputs", node.outputs, node_outputs(node.node)


def _tensors(values: Sequence[Input]) -> list[Value]:
    return [v for v in values if isinstance(v, Value)]
