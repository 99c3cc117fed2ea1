"""Two models side by side: which parts of one are parts of the other, and what was added, removed, changed, resized or
renamed.

Parts are aligned by structure, level by level: the steps of the model, those of a layer, those of a block in it. Two
parts are matched where they do the same and stand among the same neighbours, then where they do the same, then by what
they are called. What a number follows from is told once: a size that both specs write alike, `4 * width`, is no change
of its own where `width` has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import blake2b
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel

from archdsl.estimates.counts import Counts
from archdsl.estimates.flops import Parts, per_token, per_token_of_parts, sizes_at
from archdsl.estimates.memory import estimate as memory_of
from archdsl.estimates.params import ParamsReport
from archdsl.estimates.params import estimate as parameters_of
from archdsl.ir.dims import Num, Var, axis_of, expr_text, shape_text, symbol, value_in
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    CondNode,
    Graph,
    LoopNode,
    LossNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    Weight,
    WeightNode,
    node_outputs,
    operands,
    subgraphs,
)
from archdsl.ir.masks import Mask
from archdsl.ir.paths import ranges
from archdsl.ir.static import BlockValue, Declared, ListValue, Scheme, SharedModule
from archdsl.ir.text import init_text, is_said, static
from archdsl.ir.walk import calls_of, is_module
from archdsl.ir.weights import shape_of, weights_of
from archdsl.shown import Shown

if TYPE_CHECKING:
    from networkx import DiGraph

Status = Literal["same", "added", "removed", "changed", "resized", "renamed"]
TOLD = frozenset({"added", "removed", "changed", "renamed"})
"""What is said of a part by itself; `same` needs no word, and `resized` follows from something else."""
NEIGHBOURS = 2
"""How many steps of data around a part make its surroundings."""
NAMED = 4
"""How many sources of a part's data are named."""
ALIKE = 0.5
"""Two blocks of different names are one that was renamed where so many of their parts are the same; else another."""


# --- the parts of a model ---------------------------------------------------------------------------------------------


class Content(NamedTuple):
    """What a part does: equal for parts that do the same, whatever their names, and whatever else they are called."""

    plain: str
    named: str
    """Equal where the names are, too."""


class Known(NamedTuple):
    """A number that a block was given: what it comes to, and how it is written, by the Config's name if it has one."""

    value: Size | None
    written: str


@dataclass(eq=False)
class Part:
    """A step of a graph, a shared module, or a kind of layer in a stack."""

    step: str
    """Its name in the path of weights, or ''."""
    kind: str
    """The block or primitive."""
    node: Node | Graph | SharedModule
    content: Content
    params: int = 0
    """Of one."""
    count: int = 1
    layers: tuple[int, ...] = ()
    """Which iterations of a stack it is."""
    alias: str = ""
    """The `let` of the spec that tells two kinds of layers apart."""

    @property
    def block(self) -> Block | None:
        return self.node.block if isinstance(self.node, CallNode | SharedModule) else None

    @property
    def bind(self) -> Mapping[str, Any]:
        return self.node.bind if isinstance(self.node, CallNode | SharedModule) else {}

    @property
    def inputs(self) -> list[Value | None]:
        return _inputs(self.node) if not isinstance(self.node, Graph | SharedModule) else []

    @property
    def outputs(self) -> tuple[Value, ...]:
        return node_outputs(self.node) if not isinstance(self.node, Graph | SharedModule) else ()

    @property
    def is_users(self) -> bool:
        """Whether it is a block that a spec declares."""
        return self.block is not None and not self.block.library

    @property
    def title(self) -> str:
        kind = f"{self.kind} ({self.alias})" if self.alias not in ("", self.kind) and self.layers else self.kind
        kind = f"shared {kind}" if isinstance(self.node, SharedModule) else kind
        return f"{self.step}: {kind}" if self.step not in ("", self.kind) else kind


class _Side:
    """One of the two models, each of its blocks looked at once."""

    def __init__(self, model: Model) -> None:
        self.counts = Counts()
        self.digests: dict[Graph | Block, Content] = {}
        self.shared: dict[SharedModule, Content] = {}
        self.parts: dict[Graph, list[Part]] = {}
        names: dict[str, Size] = {s.name: symbol(s.name) for s in model.symbols}
        names |= {f.name: f.value.value for f in model.config}
        self.names: dict[Block, dict[str, Size]] = {model.block: _with_local(names, model.block)}
        self.settings: dict[Block, dict[str, str]] = {model.block: {f.name: f.name for f in model.config}}
        self.root = Part("", "model", CallNode(model.block, (), (), (), {}), self.of_block(model.block))
        self.root.params = self.counts.block(model.block).total

    # --- what it does, without names and with them ---

    def of_block(self, block: Block) -> Content:
        if block not in self.digests:
            for index, instance in enumerate(block.instances):
                inner = self.of_block(instance.block) if instance.block is not None else self.of_op(instance.node)
                self.shared[instance] = _content(index, inner, step=instance.path)
            parts = [self.shared[i] for i in block.instances]
            parts += [self.of_block(block.before)] if block.before is not None else []
            # Masks and positions also say what the blocks around make for this one.
            around = [v for v in block.hypers.values() if isinstance(v, Mask | BlockValue) and not _is_block(v)]
            options = [static(v, str) for v in around]
            self.digests[block] = _content(self.of_graph(block.graph), options, *parts, step=block.name)
        return self.digests[block]

    def of_graph(self, graph: Graph) -> Content:
        """Return digests of a graph, made of what its results are computed from. Values from outside are numbered in
        the order in which they are read; modules with weights of their own that do the same to the same inputs, in the
        order in which the results need them."""
        if graph not in self.digests:
            steps = [n for n in graph.nodes if not isinstance(n, CheckNode | CausalNode)]
            does = {node: self.of_node(node) for node in steps}
            made, plain = _wired(graph, steps, {node: d.plain for node, d in does.items()})
            many = Counter(made[node] for node in steps if _is_own(node))
            if twins := [n for n in _as_needed(graph) if n in made and _is_own(n) and many[made[n]] > 1]:
                turns = {node: sum(made[t] == made[node] for t in twins[:i]) for i, node in enumerate(twins)}
                made, plain = _wired(graph, steps, {n: _digest(d.plain, turns.get(n)) for n, d in does.items()})
            _, named = _wired(graph, steps, {node: d.named for node, d in does.items()})
            self.digests[graph] = Content(plain, _digest(plain, named))
        return self.digests[graph]

    def of_node(self, node: Node) -> Content:
        if isinstance(node, CallNode):
            inner = [self.shared[node.instance]] if node.instance in self.shared else []
            return _content("call", self.of_block(node.block), *inner, node.step is not None, step=node.name)
        if isinstance(node, OpNode):
            shared = node.instance is not None and self.shared.get(node.instance)
            return shared or self.of_op(node)
        if isinstance(node, LoopNode):
            return _content("loop", *map(self.of_graph, node.bodies), node.iterations, len(node.emitted))
        if isinstance(node, ParamNode):
            return _content("param", self.of_weight(node.weight), step=node.name)
        if isinstance(node, WeightNode):
            return _content("weight", self.shared.get(node.instance, ""), node.weight)
        if isinstance(node, LossNode):
            return _content("loss", step=node.name)
        starts = [str(v) for v in node.starts if isinstance(v, Num)] if isinstance(node, ScanNode) else []
        return _content(_kind(node), starts, *map(self.of_graph, subgraphs(node)))

    def of_op(self, node: OpNode) -> Content:
        options = [(k, static(v, str)) for k, v in node.options.items() if is_said(v) and not _is_block(v)]
        numbers = [str(v) for v in node.inputs if isinstance(v, Num)]
        inner = [self.of_block(call.block) for call in node.blocks.values()]
        weights = map(self.of_weight, node.weights)
        counts = (str(node.copies), str(node.active))
        return _content(node.op.name, options, numbers, *weights, *inner, *counts, step=node.name)

    def of_weight(self, weight: Weight) -> str:
        init = self.of_graph(weight.init.graph).plain if weight.init.graph is not None else init_text(weight.init, str)
        shape = [str(n) for n in weight.shape]
        return _digest(weight.name, shape, weight.kind, weight.trained, weight.saved, weight.dtype, init)

    # --- its numbers ---

    def enter(self, part: Part, owner: Block) -> None:
        """Find what the names of a block stand for: numbers, and fields of the Config."""
        assert part.block is not None
        if part.block not in self.names:
            names: dict[str, Size] = {}
            for name, expr in part.bind.items():
                _evaluate(name, expr, self.names.get(owner, {}), names)
            self.names[part.block] = _with_local(names, part.block)
            settings = self.settings.get(owner, {})
            self.settings[part.block] = {
                name: settings[expr.name]
                for name, expr in part.bind.items()
                if isinstance(expr, Var) and expr.name in settings
            }

    def number(self, part: Part, name: str, owner: Block) -> Known:
        """A number that a block which stands in `owner` was given."""
        block = part.block
        if name not in part.bind:
            local = block.local.get(name) if block is not None else None
            return Known(self.names[block].get(name), f"let {expr_text(local)}") if block and local else Known(None, "")
        expr, into = part.bind[name], dict[str, Size]()
        _evaluate(name, expr, self.names.get(owner, {}), into)
        setting = self.settings.get(owner, {}).get(expr.name) if isinstance(expr, Var) else None
        return Known(into.get(name), setting or expr_text(expr))

    # --- its parts ---

    def children(self, part: Part) -> list[Part]:
        """Return the parts of a part. A shared module is a part of its owner, and of nothing that uses it."""
        node = part.node
        if isinstance(node, SharedModule):
            return self.of_call(node.block) if node.block is not None else []
        if isinstance(node, CallNode):
            return self.of_call(node.block) if node.instance is None else []
        if isinstance(node, OpNode):
            calls = calls_of(node) if node.instance is None else ()
            return [self.part(call, name=name) for name, call in zip(node.blocks, calls, strict=False)]
        if isinstance(node, LoopNode):
            layers = [self.layer(node, i) for i in range(len(node.bodies))]
            if len({p.alias for p in layers}) == 1:
                for layer in layers:
                    layer.alias = ""
            return layers
        return [p for g in ((node,) if isinstance(node, Graph) else subgraphs(node)) for p in self.of_steps(g)]

    def of_call(self, block: Block) -> list[Part]:
        found = []
        for instance in block.instances:
            params = self.counts.block(instance.block).total if instance.block is not None else _own(instance.node)
            kind = instance.block.name if instance.block is not None else instance.node.op.name
            found.append(Part(instance.path, kind, instance, self.shared[instance], params))
        return found + self.of_steps(block.graph)

    def of_steps(self, graph: Graph) -> list[Part]:
        """The steps of a graph, without checks and without what only makes masks and tables for the blocks in it."""
        if graph not in self.parts:
            needed = {v for v in graph.outputs if v is not None}
            kept: list[Node] = []
            for node in reversed(graph.nodes):
                if isinstance(node, CheckNode | CausalNode):
                    continue
                outputs = node_outputs(node)
                if needed.isdisjoint(outputs) and outputs and not is_module(node) and not subgraphs(node):
                    continue
                kept.append(node)
                needed |= {v for v in _inputs(node) if v is not None}
            self.parts[graph] = [self.part(node) for node in reversed(kept)]
        return self.parts[graph]

    def part(self, node: Node, name: str | None = None) -> Part:
        step = node.name if name is None and isinstance(node, CallNode | OpNode | ParamNode | LossNode) else name or ""
        found = Part(step, _kind(node), node, self.of_node(node))
        if isinstance(node, CallNode):
            found.alias = node.alias
            found.params = self.counts.called(node).total if node.instance is None else 0
        elif isinstance(node, OpNode):
            found.params = _own(node) + sum(p.params for p in self.children(found)) if node.instance is None else 0
        elif isinstance(node, ParamNode):
            found.params = prod(shape_of(node.weight)) if node.weight.trained else 0
        else:
            found.params = sum(p.count * p.params for p in self.children(found))
        return found

    def layer(self, loop: LoopNode, index: int) -> Part:
        """A kind of layer: the block where the body of the loop is but that."""
        body = loop.bodies[index]
        steps = self.of_steps(body)
        if len(steps) == 1 and steps[0].block is not None:
            one = steps[0]
            found = Part(one.step, one.kind, one.node, self.of_graph(body), one.params)
            found.alias = one.alias
        else:
            params = sum(p.count * p.params for p in steps)
            found = Part(loop.variable, "layer", body, self.of_graph(body), params)
        found.layers = tuple(i for i, which in enumerate(loop.iterations) if which == index)
        found.count = len(found.layers)
        return found


def _content(*parts: object, step: str = "") -> Content:
    plain = [p.plain if isinstance(p, Content) else p for p in parts]
    return Content(_digest(*plain), _digest(step, *(p.named if isinstance(p, Content) else p for p in parts)))


def _wired(graph: Graph, steps: Sequence[Node], does: Mapping[Node, str]) -> tuple[dict[Node, str], str]:
    """Return a digest of what each node makes, by what it does and reads, and one of what the graph makes."""
    tokens: dict[Value, str] = {v: f"input {i}" for i, v in enumerate(graph.inputs)}
    made: dict[Node, str] = {}
    for node in steps:
        read = [tokens.setdefault(v, f"outer {len(tokens)}") if v is not None else "" for v in _all_inputs(node)]
        made[node] = _digest(does[node], *read)
        tokens |= {v: f"{made[node]} {i}" for i, v in enumerate(node_outputs(node))}
    results = [tokens.get(v, "outer") if v is not None else "" for v in graph.outputs]
    # Others do nothing where nothing reads them.
    kept = sorted(made[node] for node in steps if _has_weights(node) or not node_outputs(node))
    return made, _digest(*results, *kept)


def _has_weights(node: Node) -> bool:
    return is_module(node) or bool(subgraphs(node))


def _is_own(node: Node) -> bool:
    """Whether no other node has its weights."""
    return _has_weights(node) and getattr(node, "instance", None) is None


def _as_needed(graph: Graph) -> list[Node]:
    """Return the nodes that results are made of, in the order in which these need them, and then the others."""
    makers = {v: node for node in graph.nodes for v in node_outputs(node)}
    found: dict[Node, None] = {}
    waiting = [*reversed(graph.outputs)]
    while waiting:
        node = makers.get(value) if (value := waiting.pop()) is not None else None
        if node is not None and node not in found:
            found[node] = None
            waiting += reversed(_all_inputs(node))
    return [*found, *(node for node in graph.nodes if node not in found)]


def _digest(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _kind(node: Node) -> str:
    if isinstance(node, CallNode):
        return node.block.name
    if isinstance(node, OpNode):
        return node.op.name
    if isinstance(node, ParamNode):
        return "param" if node.weight.trained else "buffer"
    words = {LoopNode: "layers", ScanNode: "scan", CondNode: "if training", WeightNode: "tied weight", LossNode: "loss"}
    return words[type(node)]


def _own(node: OpNode) -> int:
    return sum(prod(shape_of(w)) for w in node.weights if w.trained)


def _is_block(value: Any) -> bool:
    """Whether an option is a block that a spec or the library declares, or several: its parts are compared instead."""
    if isinstance(value, ListValue):
        return any(map(_is_block, value.items))
    if isinstance(value, tuple | list):
        return any(map(_is_block, value))
    return isinstance(value, SharedModule) or (isinstance(value, BlockValue) and isinstance(value.target, Declared))


def _all_inputs(node: Node) -> list[Value | None]:
    """The tensors that a node reads, its contexts and those of inner graphs included."""
    contexts = [c for c in node.contexts if isinstance(c, Value)] if isinstance(node, CallNode) else []
    return [*_inputs(node), *contexts]


def _inputs(node: Node) -> list[Value | None]:
    """The tensors that a node reads as data: masks and tables that a block is handed are none of them."""
    if isinstance(node, OpNode):
        return [v if isinstance(v, Value) else None for v in node.inputs]
    if isinstance(node, CallNode):
        return list(node.inputs)
    inner = dict.fromkeys(v for graph in subgraphs(node) for v in _from_outside(graph))
    return [*operands(node), *inner]


def _from_outside(graph: Graph) -> Iterator[Value]:
    own = {*graph.inputs}
    for node in graph.nodes:
        yield from (v for v in _inputs(node) if v is not None and v not in own)
        own |= {*node_outputs(node)}
    yield from (v for v in graph.outputs if v is not None and v not in own)


def _with_local(names: dict[str, Size], block: Block) -> dict[str, Size]:
    for name, expr in block.local.items():
        _evaluate(name, expr, names, names)
    return names


def _evaluate(name: str, expr: Any, names: Mapping[str, Size], into: dict[str, Size]) -> None:
    with suppress(KeyError, ArithmeticError, ValueError):  # a name of another block: nothing is told of it here
        into.setdefault(name, value_in(expr, names, {}))


# --- the alignment ----------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """One thing that is otherwise: an option, `reads` (where its data comes from) or `layers` (which of a stack)."""

    name: str
    before: str
    after: str


@dataclass(eq=False)
class Aligned:
    """A part of either model, or a part of both."""

    before: Part | None
    after: Part | None
    status: Status = "same"
    changes: list[Change] = field(default_factory=list)
    children: list[Aligned] = field(default_factory=list)
    """The parts of both, and of either; none of what is the same, or is another block altogether."""

    @property
    def is_other(self) -> bool:
        """Whether another block, or primitive, stands in its place."""
        return self.before is not None and self.after is not None and not _comparable(self.before, self.after)


def align(before: Model, after: Model) -> Aligned:
    """Align the parts of two models."""
    return _Aligner(before, after).root


def _comparable(a: Part, b: Part) -> bool:
    """Whether what differs is told by their parts."""
    return type(a.node) is type(b.node) and (a.kind == b.kind or (a.is_users and b.is_users))


class _Aligner:
    def __init__(self, before: Model, after: Model) -> None:
        self.a, self.b = _Side(before), _Side(after)
        self.inner: dict[tuple[object, ...], list[Aligned]] = {}
        owners = (before.block, after.block)
        self.root = self.pair(self.a.root, self.b.root, owners)
        self.root.changes += _interface(before, after)
        if self.root.changes:
            self.root.status = "changed"

    def pair(self, a: Part, b: Part, owners: tuple[Block, Block]) -> Aligned:
        """Compare two parts, which stand in the blocks `owners`."""
        found = Aligned(a, b)
        if a.count != b.count:
            found.changes.append(Change("count", f"{a.count:,}", f"{b.count:,}"))
        if a.block is not None and b.block is not None:
            self.a.enter(a, owners[0])
            self.b.enter(b, owners[1])
        other = found.is_other
        if other:
            found.changes += self.of_blocks(a, b, owners)
        elif a.content != b.content:
            found.changes += self.options(a, b, owners)
            found.children = self.below(a, b, owners)
            if a.kind != b.kind and a.is_users and _likeness(found.children) < ALIKE:
                other, found.children = True, []
            found.changes = [c for c in found.changes if not _handed_down(c, found.children)]
        if other or found.changes or any(c.status in TOLD for c in found.children):
            found.status = "changed"
        elif (a.step, a.kind) != (b.step, b.kind):
            found.status = "renamed"
        elif a.params != b.params or any(c.status == "resized" for c in found.children):
            found.status = "resized"
        return found

    def below(self, a: Part, b: Part, owners: tuple[Block, Block]) -> list[Aligned]:
        """Align the parts of two parts, those of two blocks once."""
        key = tuple((p.block or p.node, isinstance(p.node, CallNode) and p.node.instance is not None) for p in (a, b))
        if key not in self.inner:
            if a.block is not None and b.block is not None:
                owners = (a.block, b.block)
            self.inner[key] = self.aligned(self.a.children(a), self.b.children(b), owners)
            if a.block is not None and a.block.library:
                # What a block of the library is made of follows from its options.
                told = [c for c in self.inner[key] if c.before is not None and c.after is not None]
                self.inner[key] = [
                    c for c in told if _has_parts(c.before) or _has_parts(c.after) or c.status in ("same", "resized")
                ]
        return self.inner[key]

    def aligned(self, a: list[Part], b: list[Part], owners: tuple[Block, Block]) -> list[Aligned]:
        """Align two lists of parts, in the order of the second; what was removed stands behind what it followed."""
        matched = _matches(a, b)
        pairs = {j: self.pair(a[i], b[j], owners) for i, j in matched.items()}
        _compare_reads(a, b, matched, pairs)
        behind: dict[int, list[Aligned]] = {-1: []}
        last = -1
        for i, part in enumerate(a):
            if i in matched:
                last = matched[i]
                behind[last] = [pairs[last]]
            else:
                behind[last].append(self.alone(self.a, part, "removed"))
        found = behind[-1]
        for j, part in enumerate(b):
            found += behind.get(j) or [self.alone(self.b, part, "added")]
        order = [p for p in pairs.values() if p.before and p.after and p.before.layers != p.after.layers]
        if len(pairs) == len(a) == len(b) and all(
            p.before and p.after and p.before.count == p.after.count for p in order
        ):
            for p in order:
                p.changes.append(Change("layers", *(ranges(q.layers) for q in (p.before, p.after) if q)))
                p.status = "changed"
        return found

    def alone(self, side: _Side, part: Part, status: Status) -> Aligned:
        """A part of one model; of a stack the kinds of its layers are the parts."""
        inner = side.children(part) if isinstance(part.node, LoopNode) else []
        found = Aligned(None, part, status) if status == "added" else Aligned(part, None, status)
        found.children = [self.alone(side, layer, status) for layer in inner]
        return found

    # --- what is otherwise ---

    def options(self, a: Part, b: Part, owners: tuple[Block, Block]) -> list[Change]:
        if isinstance(a.node, SharedModule) and isinstance(b.node, SharedModule):
            given = [part.node.template.args for part in (a, b) if isinstance(part.node, SharedModule)]
            names = [n for n in dict.fromkeys([*given[0], *given[1]]) if not _is_block(given[0].get(n))]
            return [c for n in names for c in _changed(n, *(args.get(n) for args in given))]
        if isinstance(a.node, OpNode) and isinstance(b.node, OpNode):
            return list(_of_ops(a.node, b.node))
        if isinstance(a.node, ParamNode) and isinstance(b.node, ParamNode):
            return list(_of_weights((a.node.weight,), (b.node.weight,), shapes=True))
        if isinstance(a.node, ScanNode) and isinstance(b.node, ScanNode):
            return list(_of_numbers("start", a.node.starts, b.node.starts))
        return self.of_blocks(a, b, owners)

    def of_blocks(self, a: Part, b: Part, owners: tuple[Block, Block]) -> list[Change]:
        """Options of two blocks that differ: of the library's all, of a spec's own the numbers, the rest being told by
        its parts."""
        if a.block is None or b.block is None:
            return []
        found: list[Change] = []
        hypers, axes = (a.block.hypers, b.block.hypers), {*a.block.axes, *b.block.axes}
        library = not a.is_users and not b.is_users
        for name in dict.fromkeys([*hypers[0], *hypers[1]]) if library else ():
            values = [h.get(name) for h in hypers]
            both = a.kind == b.kind or all(name in h for h in hypers)
            if both and not all(map(_is_block, values)) and not all(isinstance(v, Num) for v in values):
                found += _changed(name, *values)
        told = tuple(f"{c.name}_" for c in found)
        names = [n for n in dict.fromkeys([*a.bind, *b.bind]) if axis_of(n) is None and n not in axes]
        if not library:
            names += [n for n in dict.fromkeys([*a.block.local, *b.block.local]) if n not in names]
        for name in names:
            known = [side.number(p, name, o) for side, p, o in zip((self.a, self.b), (a, b), owners, strict=True)]
            before, after = known
            if name.startswith(told) or before.value == after.value or before.written == after.written:
                continue
            first = name.startswith("init_") and None in (before.value, after.value)  # told by the weights
            if None not in (before.value, after.value) or (library and _alone(*known) and not first):
                found.append(Change(name, *("none" if k.value is None else _number(k.value) for k in known)))
        return [*found, *(_drawn_otherwise(a.block, b.block) if library else ())]


def _drawn_otherwise(a: Block, b: Block) -> Iterator[Change]:
    """Weights of two blocks that are drawn otherwise, not only by other numbers."""
    before = {info.path: info.weight for info in weights_of(a)}
    found: dict[tuple[str, str], list[str]] = {}
    for info in weights_of(b):
        x, y = before.get(info.path), info.weight
        if x is not None and init_text(x.init) != init_text(y.init) and _init(x) != _init(y):
            found.setdefault((_init(x), _init(y)), []).append(info.path.removesuffix(".weight"))
    told = {path for paths in found.values() for path in paths}
    for values, paths in found.items():
        paths = [p for p in paths if p.rpartition(".")[0] not in told]  # a bias that follows its matrix
        if not paths:
            continue
        yield Change(f"init of {', '.join(paths)}", *values)


def _alone(*known: Known) -> bool:
    """Whether an option that only one of two blocks has is a number of its own, and does not follow from what is told
    elsewhere."""
    return any(k.value and k.written[:1].isdigit() for k in known)


def _handed_down(change: Change, children: Iterable[Aligned]) -> bool:
    """Say of a part what its owner calls by its name: `ffn_hidden` of a layer is `hidden` of its `ffn`."""
    for child in children:
        before, after = child.before, child.after
        name = change.name.removeprefix(f"{before.step}_") if before is not None and before.step else change.name
        if before is None or after is None or name == change.name or not (name in before.bind and name in after.bind):
            continue
        own = change._replace(name=name)
        if own not in child.changes and not _handed_down(own, child.children):
            child.changes.append(own)
        child.status = "changed"
        return True
    return False


def _has_parts(part: Part | None) -> bool:
    return part is not None and (part.block is not None or (isinstance(part.node, OpNode) and bool(part.node.blocks)))


def _likeness(children: Iterable[Aligned]) -> float:
    both = list(children)
    return sum(c.before is not None and c.after is not None and not c.is_other for c in both) / len(both) if both else 0


def _matches(a: Sequence[Part], b: Sequence[Part]) -> dict[int, int]:
    """Match parts of two lists: the most alike first, those that are equally alike in order."""
    from networkx import weisfeiler_lehman_subgraph_hashes

    graphs = [_data(parts) for parts in (a, b)]
    around = [
        weisfeiler_lehman_subgraph_hashes(graph.to_undirected(), node_attr="does", iterations=NEIGHBOURS)
        for graph in graphs
    ]
    found: dict[int, int] = {}
    taken: set[int] = set()

    def between(side: int, i: int) -> Hashable:
        """The matched parts that a part reads, and those that read it."""
        ends = [[found.get(n) if side == 0 else n for n in of[i]] for of in (graphs[side].pred, graphs[side].succ)]
        sources, readers = (frozenset(n for n in end if n in taken) for end in ends)
        return (sources, readers) if sources and readers else None

    tiers: list[Callable[[int, int, Part], Hashable]] = [
        lambda side, i, p: (p.content.plain, *around[side][i], p.step),
        lambda side, i, p: (p.content.plain, p.step),
        lambda side, i, p: (p.content.plain, *around[side][i]),
        lambda side, i, p: p.content.plain,
        lambda side, i, p: (p.step, p.kind, p.alias),
        lambda side, i, p: (p.step, p.kind),
        lambda side, i, p: None if p.layers else p.step or None,
        lambda side, i, p: (p.kind, type(p.node)) if not p.step else None,
        lambda side, i, p: between(side, i) if not p.step else None,
    ]
    left = (dict(enumerate(a)), dict(enumerate(b)))
    for tier in tiers:
        waiting: dict[Hashable, list[int]] = {}
        for i, part in reversed(left[0].items()):
            if (key := tier(0, i, part)) is not None:
                waiting.setdefault(key, []).append(i)
        new = {same.pop(): j for j, part in left[1].items() if (same := waiting.get(tier(1, j, part)))}
        for i, j in new.items():
            del left[0][i], left[1][j]
        found |= new
        taken |= {*new.values()}
    layers = [sorted((i for i in side if side[i].layers), key=lambda i: -side[i].count) for side in left]
    return found | dict(zip(*layers, strict=False))


def _data(parts: Sequence[Part]) -> DiGraph[int]:
    """The parts with the data between them."""
    from networkx import DiGraph

    graph: DiGraph[int] = DiGraph()
    makers = {v: i for i, p in enumerate(parts) for v in p.outputs}
    for i, part in enumerate(parts):
        graph.add_node(i, does=part.content.plain)
        graph.add_edges_from((makers[v], i) for v in part.inputs if v in makers)
    return graph


def _compare_reads(a: list[Part], b: list[Part], matched: Mapping[int, int], pairs: Mapping[int, Aligned]) -> None:
    """Say of parts of both models where their data comes from, if that is somewhere else; what was added or removed on
    the way counts as what it reads itself."""
    sources = [_Sources(a, {*matched}), _Sources(b, {*matched.values()})]
    for i, j in matched.items():
        if isinstance(a[i].node, SharedModule) or isinstance(b[j].node, SharedModule):
            continue
        if len(a[i].inputs) != len(b[j].inputs):
            read = [{s for v in p.inputs for s in side.of(v)} for side, p in zip(sources, (a[i], b[j]), strict=True)]
            ports = [(read[0], read[1])]
        else:
            ports = [(sources[0].of(v), sources[1].of(w)) for v, w in zip(a[i].inputs, b[j].inputs, strict=True)]
        if any({matched[s] if isinstance(s, int) else s for s in x} != y for x, y in ports):
            read = [{s for port in ports for s in port[k]} for k in (0, 1)]
            texts = [side.text(found) for side, found in zip(sources, read, strict=True)]
            if texts[0] != texts[1]:  # of primitives without a name one is as good as another
                pairs[j].changes.append(Change("reads", *texts))
                pairs[j].status = "changed"


class _Sources:
    """Finds what a value comes from: parts that both models have, by their number, or inputs, by name."""

    def __init__(self, parts: list[Part], matched: set[int]) -> None:
        self.parts, self.matched = parts, matched
        self.makers = {v: i for i, p in enumerate(parts) for v in p.outputs}
        self.through: dict[int, set[int | str]] = {}
        for i, part in enumerate(parts):
            if i not in matched:
                self.through[i] = {s for v in part.inputs for s in self.of(v)}

    def of(self, value: Value | None) -> set[int | str]:
        if value is None:
            return set()
        maker = self.makers.get(value)
        if maker is None:
            return {"outside"}
        # What is in no order of the data, as layers are, is not read by each other.
        return {maker} if maker in self.matched else self.through.get(maker, set())

    def text(self, found: set[int | str]) -> str:
        names = [(self.parts[s].step or self.parts[s].kind) if isinstance(s, int) else "input" for s in found]
        more = [f"{len(names) - NAMED:,} more"] if len(names) > NAMED else []
        return " and ".join([*sorted(names)[:NAMED], *more]) or "nothing"


def _changed(name: str, before: Any, after: Any) -> Iterator[Change]:
    """An option, unless both specs write it alike or it comes to the same."""
    if static(before) != static(after):
        texts = static(before, _of_num), static(after, _of_num)
        if texts[0] != texts[1]:
            yield Change(name, *texts)


def _of_ops(a: OpNode, b: OpNode) -> Iterator[Change]:
    for name in dict.fromkeys([*a.options, *b.options]):
        values = [o.get(name) for o in (a.options, b.options)]
        if not any(map(callable, values)) and not all(map(_is_block, values)):
            yield from _changed(name, *values)
    yield from _of_numbers("input", a.inputs, b.inputs)
    yield from _of_weights(a.weights, b.weights)


def _of_numbers(what: str, a: Sequence[object], b: Sequence[object]) -> Iterator[Change]:
    """Numbers among what a node reads."""
    for i, (x, y) in enumerate(zip_longest(a, b), 1):
        if isinstance(x, Num) or isinstance(y, Num):
            yield from _changed(f"{what} {i}", *(v if isinstance(v, Num) else "a tensor" for v in (x, y)))


def _of_weights(a: Sequence[Weight], b: Sequence[Weight], shapes: bool = False) -> Iterator[Change]:
    for x, y in zip(a, b, strict=False):
        if shapes:
            yield from _changed("shape", [*x.shape], [*y.shape])
        texts = init_text(x.init), init_text(y.init)
        values = _init(x), _init(y)
        if (texts[0] != texts[1] or x.init.graph is not None) and values[0] != values[1]:
            yield Change(f"init of {x.name or 'the weight'}", *values)


def _init(weight: Weight) -> str:
    """How a weight is drawn; of an expression the numbers in it."""
    init = weight.init
    if init.scheme == "default" and weight.kind == "bias" and weight.fan_in is None:
        return "zeros"  # a norm's, which another scheme leaves at 0 too
    if init.graph is None:
        return init_text(init, _of_num)
    nodes = [n for n in init.graph.nodes if isinstance(n, OpNode)]
    given = [v for n in nodes for v in (*n.inputs, *n.options.values()) if isinstance(v, Num | Scheme | ListValue)]
    numbers = [static(v, _of_num) for v in given]
    return f"expression of {', '.join([*(n.op.name for n in nodes), *numbers])}"


def _of_num(n: Num) -> str:
    return _number(n.value)


def _number(value: Size) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{float(value):g}" if isinstance(value, Fraction | float) else str(value)


def _interface(before: Model, after: Model) -> Iterator[Change]:
    """Inputs and outputs that differ in name, type, number of axes, or a size that is written otherwise."""
    for what in ("inputs", "outputs"):
        tensors: list[list[tuple[str | None, Value]]] = [list(getattr(m, what)) for m in (before, after)]
        kinds = [[(name, v.dtype, v.rank) for name, v in side] for side in tensors]
        sizes = [[d for _, v in side for d in v.shape] for side in tensors]
        if kinds[0] != kinds[1] or any(
            x.static and y.static and x.value != y.value and expr_text(x.expr) != expr_text(y.expr)
            for x, y in zip(*sizes, strict=True)
        ):
            told = [[f"{name or ''}: {v.dtype}{shape_text(v.shape)}".lstrip(": ") for name, v in t] for t in tensors]
            yield Change(what, *(", ".join(side) for side in told))


# --- the report -------------------------------------------------------------------------------------------------------


class Quantity(BaseModel):
    """A number of both models; None where one has none."""

    name: str
    unit: Literal["parameters", "FLOPs", "bytes"]
    before: float | int | None
    after: float | int | None
    difference: float | int | None


class SettingDiff(BaseModel):
    """A field of the Config that differs; None where a model has no such field."""

    name: str
    before: int | float | None
    after: int | float | None


class OptionDiff(BaseModel):
    """What differs in a part, as text. `count` is how often it is repeated, `layers` which of a stack it is, `reads`
    where its data comes from; other names are options."""

    name: str
    before: str
    after: str


class PartDiff(BaseModel):
    """A part of either model, or of both. Parts of what is the same, or is another block altogether, are not listed."""

    status: Status
    """`changed` itself or in a part of it; `resized` where its size follows from what is told elsewhere."""
    before: str | None
    """What it is called: its step and its block."""
    after: str | None
    path: str
    """Where it stands: `blocks.*.attention`."""
    params_before: int
    """Parameters of all its repetitions."""
    params_after: int
    flops_before: float | None
    """FLOPs of all its repetitions for a token, forwards; None of primitives inside of layers."""
    flops_after: float | None
    library: bool
    """Whether it is a block of the library: what it is made of follows from its options and sizes."""
    changes: list[OptionDiff]
    parts: list[PartDiff]


class DiffReport(BaseModel, Shown):
    """What `archdsl diff` prints."""

    before: str
    after: str
    sources: tuple[str, str]
    same: bool
    seq: int
    """The sequence length of FLOPs and decode state."""
    totals: list[Quantity]
    """FLOPs are those of one token, memory is in bytes."""
    settings: list[SettingDiff]
    root: PartDiff


class FilesDiffReport(BaseModel):
    """What `archdsl diff --all` prints: models of two files, by name."""

    removed: list[str]
    """Models that only the first declares."""
    added: list[str]
    models: list[DiffReport]
    """Those of both."""

    @property
    def same(self) -> bool:
        return not self.removed and not self.added and all(m.same for m in self.models)


def diff(before: Model, after: Model, *, seq: int | None = None) -> DiffReport:
    """Compare two models. FLOPs and decode state are those of a sequence of `seq` positions: 2,048, or the smaller
    context, where it is not given.

    Raises ArchError E0503 where a model refuses that length."""
    models = (before, after)
    reports = [parameters_of(m) for m in models]
    lengths = [max((n for name, n in sizes_at(m, 1, None).items() if name != "batch"), default=1) for m in models]
    seq = seq or min(lengths)
    settings = [
        SettingDiff(name=n, before=reports[0].config.get(n), after=reports[1].config.get(n))
        for n in dict.fromkeys([*reports[0].config, *reports[1].config])
        if reports[0].config.get(n) != reports[1].config.get(n)
    ]
    aligner = _Aligner(before, after)
    found = aligner.root
    wired = {side.of_graph(model.block.graph) for side, model in zip((aligner.a, aligner.b), models, strict=True)}
    contents = {p.content.plain for p in (found.before, found.after) if p is not None}
    root = _Told(*(per_token_of_parts(m, r, seq=seq) for m, r in zip(models, reports, strict=True))).part(
        found, "", 1, 1
    )
    return DiffReport(
        before=before.name,
        after=after.name,
        sources=(before.source_name, after.source_name),
        same=not settings and root.status not in TOLD and len(contents) == len(wired) == 1,
        seq=seq,
        totals=list(_totals(models, reports, seq)),
        settings=settings,
        root=root,
    )


def _totals(models: Sequence[Model], reports: Sequence[ParamsReport], seq: int) -> Iterator[Quantity]:
    flops = [per_token(m, r, seq=seq) for m, r in zip(models, reports, strict=True)]
    memory = [memory_of(m, seq=seq, dtype="bfloat16", master_weights=True, step=False) for m in models]
    kept = "KV cache" if all(k.kind == "cache" for m in memory for k in m.kept) else "decode state"
    rows: list[tuple[str, Literal["parameters", "FLOPs", "bytes"], list[float | int | None]]] = [
        ("parameters", "parameters", [r.params.total for r in reports]),
        ("active per token", "parameters", [r.params.active for r in reports]),
        ("FLOPs per token, forward", "FLOPs", [f[0] for f in flops]),
        ("FLOPs per token, training", "FLOPs", [f[1] for f in flops]),
        (f"{kept} per token", "bytes", [m.decode_state_per_token for m in memory]),
        (kept, "bytes", [m.decode_state for m in memory]),
        ("weights", "bytes", [m.weights for m in memory]),
        ("training, without activations", "bytes", [m.model_states for m in memory]),
    ]
    for name, unit, (x, y) in rows:
        difference = None if x is None or y is None else y - x
        yield Quantity(name=name, unit=unit, before=x, after=y, difference=difference)


class _Told:
    """Makes the report of an alignment, with FLOPs of parts."""

    def __init__(self, before: Parts, after: Parts) -> None:
        self.flops = (before, after)

    def part(self, found: Aligned, path: str, *times: int) -> PartDiff:
        sides = (found.before, found.after)
        some = found.after or found.before
        assert some is not None
        path = f"{path}.{some.step}".strip(".") if some.step else path
        times = tuple(n * p.count if p is not None else 0 for n, p in zip(times, sides, strict=True))
        flops = [_flops_of(p, f, path, n) for p, f, n in zip(sides, self.flops, times, strict=True)]
        inner = f"{path}.*" if some.layers else path
        return PartDiff(
            status=found.status,
            before=found.before.title if found.before is not None else None,
            after=found.after.title if found.after is not None else None,
            path=inner,
            params_before=found.before.params * times[0] if found.before else 0,
            params_after=found.after.params * times[1] if found.after else 0,
            flops_before=flops[0],
            flops_after=flops[1],
            library=some.block is not None and some.block.library,
            changes=[OptionDiff(name=c.name, before=c.before, after=c.after) for c in found.changes],
            parts=[self.part(c, inner, *times) for c in found.children],
        )


def _flops_of(part: Part | None, flops: Parts, path: str, times: int) -> float | None:
    if part is None:
        return None
    blocks = [part.block] if part.block is not None else []
    blocks += [c.block for c in calls_of(part.node)] if isinstance(part.node, OpNode) else []
    if not blocks:
        return flops.ops.get(path) if part.step else None
    return sum(flops.blocks.get(b, 0.0) for b in blocks) * times
