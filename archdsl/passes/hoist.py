"""What can be computed further out is: for all blocks and layers that read it once, by the nearest caller that has what
it depends on; and before a scan what no step of it changes, a block of which a part is fixed being split in two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from archdsl.diagnostics.source import Span
from archdsl.ir.closure import contexts_read, instantiated_names
from archdsl.ir.decisions import Decisions
from archdsl.ir.dims import Expr, Num, free_names, substitute
from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    CondNode,
    Context,
    Graph,
    Handle,
    Input,
    LoopNode,
    LossNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    captured,
    node_outputs,
    operands,
    reads,
)
from archdsl.ir.static import SharedModule, instantiate, numbers_of, static_key
from archdsl.ir.walk import calls_of, every_node, runs
from archdsl.ir.wording import MERGED

Moving = OpNode | CallNode
"""A node that may be computed further out: an op, or a call of a shared block."""


def hoisted(model: Model) -> Model:
    """The model with each op that depends only on sizes, positions, shared weights and tensors of blocks around moved
    to the nearest block that has them, once for all that read it. Blocks read what was moved by contexts.

    What equations make of positions moves where it would be computed more than once."""
    blocks = _Blocks(model.block)
    root = blocks.hoisted(model.block, root=True)
    if names := root.told_apart():
        root = _Block(blocks, model.block, root=True, names=names)
    return replace(model, block=root.block)


class _Blocks:
    """The blocks of a model, each rewritten once."""

    def __init__(self, root: Block) -> None:
        self.done: dict[Block, _Block] = {}
        self.repeated = _repeated(root)

    def hoisted(self, block: Block, root: bool = False) -> _Block:
        """A block without what its callers compute."""
        found = self.done.get(block)
        if found is None:
            found = self.done[block] = _Block(self, block, root)
        return found


class _Block:
    """One block being rewritten. `levels` are the graphs being written: the block's own, then those of loops, scans and
    conditions."""

    def __init__(self, blocks: _Blocks, raw: Block, root: bool, names: Mapping[int, str] | None = None) -> None:
        self.blocks, self.raw, self.root = blocks, raw, root
        self.names = names or {}
        """What to call what moves here, by how much of it was there before: see `told_apart`."""
        self.readers: dict[Value, set[str]] = {}
        """By which names the spec calls the blocks that are handed a tensor of this block, or one around it."""
        self.around = {c.value: c for c in raw.contexts if isinstance(c.value, Value)}
        """What stands for tensors of blocks around."""
        self.handles = {c.value.instance: c for c in raw.contexts if isinstance(c.value, Handle)}
        self.levels: list[list[Node]] = []
        self.level_of: dict[Value, int | None] = {}
        """On which level a tensor is made; None if it depends on nothing of this block."""
        self.repeated = raw.span in blocks.repeated
        self.iterations = 0
        """The number of `for` loops around."""
        self.branches = 0
        """The number of conditions around."""
        self.makers: dict[Value, Moving] = {}
        """What may move, by what it gives."""
        self.made: dict[Hashable, Moving] = {}
        """The same by what they compute."""
        self.waiting: set[Value] = set()
        """What they give that nothing has read yet."""
        self.written: set[Value] = set()
        """Of what may move: what equations make of positions."""
        self.constants: dict[Value, list[Node]] = {}
        """Of what may move: what depends on sizes alone, each with the graph that it stands in: it moves with others
        that read it."""
        self.carried: set[Value] = set()
        """Those that do so, and that nothing else has read yet."""
        self.same: dict[Value, Value] = {}
        """What stands for a tensor that is computed twice."""
        self.contexts: dict[Value | SharedModule, Context] = {}
        """What the block reads of the blocks around it, in the order of first use."""
        self.merged = Decisions()
        self.block = self.rewritten()

    def rewritten(self) -> Block:
        """The block without what its callers compute."""
        raw = self.raw
        graph = self.graph(raw.graph)
        for instance in raw.instances:
            if instance.block is not None:
                instance.block = self.blocks.hoisted(instance.block).block
        decided = dict.fromkeys((*self.merged.decisions.values(), *raw.decisions))
        return replace(raw, graph=graph, contexts=tuple(self.contexts.values()), decisions=tuple(decided))

    # --- graphs -------------------------------------------------------------------------------------------------------

    def graph(self, graph: Graph) -> Graph:
        """Rewrite a graph, which stands one level further in than those being written."""
        nodes: list[Node] = []
        self.levels.append(nodes)
        depth = len(self.levels) - 1
        self.level_of.update(dict.fromkeys(graph.inputs, depth))
        for node in graph.nodes:
            self.take(node)
        outputs = tuple(None if v is None else self.read(v) for v in graph.outputs)
        gone = {v for v in self.carried if self.constants[v] is nodes}
        nodes[:] = [n for n in nodes if gone.isdisjoint(node_outputs(n))]
        self.levels.pop()
        self.made = {k: n for k, n in self.made.items() if (self.level_of[n.outputs[0]] or 0) < max(depth, 1)}
        return Graph(graph.inputs, tuple(nodes), outputs)

    def put(self, node: Node, level: int = -1) -> None:
        """Append a node to the graph of a level."""
        self.levels[level].append(node)
        self.level_of.update(dict.fromkeys(node_outputs(node), level % len(self.levels)))

    def take(self, node: Node) -> None:
        """Rewrite a node: one that moves waits until something reads it."""
        match node:
            case OpNode():
                moving = _with_inputs(node, map(self.standing, node.inputs))
                if self.moves(moving):
                    self.same[node.outputs[0]] = self.move(moving, here=True)
                    return
                self.put(self.op(node))
                if self.is_constant(moving):
                    self.makers[node.outputs[0]] = moving
                    self.constants[node.outputs[0]] = self.levels[-1]
            case CallNode() if node.instance is None:
                self.put(self.call(node))
            case CallNode():
                inputs, contexts = (tuple(map(self.standing, of)) for of in (node.inputs, node.contexts))
                call = replace(node, inputs=inputs, contexts=contexts)
                if self.call_moves(call):
                    self.same[node.outputs[0]] = self.move(call, here=True)
                else:
                    self.put(self.call(node))
            case LoopNode():
                starts = tuple(map(self.read, node.starts))
                self.iterations += 1
                bodies = tuple(map(self.graph, node.bodies))
                self.iterations -= 1
                self.put(replace(node, starts=starts, bodies=bodies))
            case ScanNode():
                self.scan(node)
            case CondNode():
                self.branches += 1
                then, otherwise = self.graph(node.then), self.graph(node.otherwise)
                self.branches -= 1
                self.put(replace(node, then=then, otherwise=otherwise))
            case CausalNode() | LossNode():
                self.put(replace(node, value=self.read(node.value)))
            case _:
                self.put(node)

    def scan(self, node: ScanNode) -> None:
        """Rewrite a scan: what no step of it changes stands before it."""
        starts = tuple(self.read(v) if isinstance(v, Value) else v for v in node.starts)
        sequences = tuple(map(self.read, node.sequences))
        body = self.graph(node.body)
        changing = {id(v) for v in body.inputs}
        fixed, steps = hoist(body.nodes, changing, split_calls=not self.iterations)
        for before in fixed:
            self.put(before)
        self.put(replace(node, starts=starts, sequences=sequences, body=replace(body, nodes=tuple(steps))))

    def standing(self, x: Any) -> Any:
        """An input, or what stands for it where it is a tensor that is computed twice."""
        return self.same.get(x, x) if isinstance(x, Value) else x

    # --- what stays ---------------------------------------------------------------------------------------------------

    def read(self, value: Value) -> Value:
        """A tensor where it is read: what waits is computed now, or becomes a context."""
        value = self.same.get(value, value)
        self.carried.discard(value)
        if value in self.around:
            self.contexts.setdefault(value, self.around[value])
        if value in self.waiting:
            self.waiting.remove(value)
            node, level = self.makers[value], self.level_of[value]
            once = value in self.written and not self.repeated and node.instance is None
            here = self.root or value in self.constants or once
            if level is None and not here:
                self.contexts[value] = Context(self.called(value), value, node)
            else:
                instance = node.instance
                node = self.op(node) if isinstance(node, OpNode) else self.call(node)
                if instance is not None:
                    node = replace(node, handle=None, name=instance.path)
                if instance is not None and isinstance(node, OpNode):
                    instance.node = node
                self.put(node, level or 0)
        return value

    def op(self, node: OpNode) -> OpNode:
        """An op that stays, with what it reads."""
        node = _with_inputs(node, [self.read(i) if isinstance(i, Value) else i for i in node.inputs])
        self.apply(node.handle)
        return replace(node, blocks={k: self.call(c) for k, c in node.blocks.items()}) if node.blocks else node

    def call(self, node: CallNode) -> CallNode:
        """A call, with what it reads and what its block is handed."""
        callee = self.blocks.hoisted(node.block)
        names = instantiated_names(node.block, node.bind)
        given = dict(zip((c.value for c in node.block.contexts), node.contexts, strict=True))
        inputs = tuple(None if v is None else self.read(v) for v in node.inputs)
        self.apply(node.handle)
        contexts: list[Value | Handle | None] = []
        for context in callee.block.contexts:
            value = context.value
            if isinstance(value, Handle):
                self.apply(value)
                contexts.append(given[value])
            else:
                found = self.read(self.brought(value, callee, names, given))
                self.readers.setdefault(found, set()).add(node.alias)
                contexts.append(found)
        kept = [c.value for c in callee.block.contexts]
        unread = _names(given) - _names(kept)
        gone = [v.instance for v in given if isinstance(v, Handle) and v not in kept and v.instance.joined]
        if gone:  # a shared block that callers apply now: nor does the block know its numbers
            spelled = _spelled(callee.block.graph)
            unread |= {name for instance in gone for name in instance.joined if name not in spelled}
        bind = {k: e for k, e in node.bind.items() if k not in unread}
        return replace(node, block=callee.block, inputs=inputs, contexts=tuple(contexts), bind=bind)

    def apply(self, handle: Handle | None) -> None:
        """Note that a shared block is used, which may live in another block."""
        if handle is not None and handle.instance in self.handles:
            self.contexts.setdefault(handle.instance, self.handles[handle.instance])

    # --- what moves ---------------------------------------------------------------------------------------------------

    def moves(self, node: OpNode) -> bool:
        """Whether an op is computed where all that it reads is known."""
        if node.op.hoisted:
            return not node.weights or node.instance is not None
        tensors = [v for v in node.inputs if isinstance(v, Value)]
        known = [v for v in tensors if v not in self.constants]
        if not _plain(node) or not all(map(self.is_free, known)):
            return False
        if node.op.at_positions(node) or any(v in self.written for v in known):
            return (self.repeated or self.iterations > 0) and not self.branches
        return bool(known)

    def call_moves(self, node: CallNode) -> bool:
        """Whether a shared block, which is applied to what equations make of positions, is applied where that is
        known."""
        tensors = [*operands(node)]
        free = all(map(self.is_free, tensors)) and any(v in self.written for v in tensors)
        return free and len(node.outputs) == 1 and not _draws_noise(node) and not self.branches

    def is_free(self, value: Value) -> bool:
        """Whether a tensor depends on nothing of this block."""
        return value in self.around or self.level_of[value] is None

    def is_constant(self, node: OpNode) -> bool:
        """Whether an op gives the same whatever the positions are."""
        tensors = [v for v in node.inputs if isinstance(v, Value)]
        speaks = node.op.hoisted or node.op.at_positions(node)
        return _plain(node) and not speaks and all(v in self.constants for v in tensors)

    def move(self, node: Moving, here: bool = False) -> Value:
        """What a node that moves gives: one stands for all that compute the same. `here` it stands in this block."""
        tensors = [*operands(node)]
        self.carried |= {v for v in tensors if v in self.constants and v not in self.waiting}
        written = any(v in self.written for v in tensors)
        if isinstance(node, OpNode):
            written = not node.op.hoisted and (written or node.op.at_positions(node))
        inputs = tuple(i.value if isinstance(i, Num) else id(i) for i in node.inputs)
        what: Hashable = id(node.instance)
        if isinstance(node, OpNode) and node.instance is None:
            what = node.op.name, static_key(node.options)
        # What equations of another block say, or of other numbers, is another thing, even if it is equal now.
        said = (not here and node.span, *(n.expr for n in _numbers(node))) if written and node.instance is None else ()
        known = self.made.setdefault((what, inputs, said), node)
        value = known.outputs[0]
        if known is node:
            own = [v for v in tensors if v not in self.around and v not in self.constants]
            levels = [n for n in map(self.level_of.__getitem__, own) if n is not None]
            if node.instance in self.raw.instances:
                levels.append(0)
            self.level_of[value] = max(levels, default=None)
            self.makers[value] = node
            self.waiting.add(value)
            if written:
                self.written.add(value)
            elif isinstance(node, OpNode) and self.is_constant(node):
                self.constants[value] = []
        else:
            self.merged.same_static([*_numbers(known)], [*_numbers(node)], MERGED)
        return value

    def called(self, value: Value) -> str:
        """Name a tensor that moves: as the spec does, else by its op and the first tensor that the op reads."""
        node = self.makers.get(value)
        if value.name or node is None:
            return value.name
        if isinstance(node, CallNode):
            return node.block.name
        inputs = [v for v in node.inputs if isinstance(v, Value)]
        if node.op.moves and inputs:
            return self.called(inputs[0])
        hint = next((h for h in node.op.hints if h.isidentifier()), node.op.name)
        return f"{hint}_{inputs[0].name}" if inputs and inputs[0].name else hint

    def told_apart(self) -> dict[int, str]:
        """Names for tensors of one name, each read by layers that the spec calls by one: `near_mask`, `far_mask`. Each
        under the number of those that moved here before it."""
        called = {i: self.called(v) for i, v in enumerate(self.makers) if v in self.readers}
        alike, found = Counter(called.values()), dict[int, str]()
        for i, value in enumerate(self.makers):
            readers = self.readers.get(value, set()) - {""}
            if readers == self.readers.get(value) and len(readers) == 1 and alike[called[i]] > 1:
                found[i] = f"{readers.pop()}_{called[i]}"
        return {i: name for i, name in found.items() if [*found.values()].count(name) == 1}

    def brought(
        self,
        value: Value,
        callee: _Block,
        names: Mapping[str, Expr],
        given: Mapping[Value | Handle, Value | Handle | None],
    ) -> Value:
        """What stands here for a tensor that a callee reads: the one that it is `given`, or what an op gives that moved
        out of the callee."""
        if value in given:
            found = given[value]
            assert isinstance(found, Value), value
            return self.same.get(found, found)
        node = callee.makers[value]
        if node.instance is not None and node.instance in self.raw.instances:
            names = {**node.instance.joined, **names}

        def here(x: Any) -> Any:
            return self.brought(x, callee, names, given) if isinstance(x, Value) else instantiate(x, names)

        hinted = isinstance(node, OpNode) and node.op.hints
        inputs = tuple(map(here, node.inputs))
        name = self.names.get(len(self.makers)) or value.name or ("" if hinted else callee.called(value))
        outputs = (Value(instantiate(value.shape, names), value.dtype, name, value.span),)
        if isinstance(node, CallNode):
            contexts, bind = tuple(map(here, node.contexts)), {k: substitute(e, names) for k, e in node.bind.items()}
            return self.move(replace(node, inputs=inputs, contexts=contexts, outputs=outputs, bind=bind))
        weights = tuple(replace(w, shape=instantiate(w.shape, names)) for w in node.weights)
        more = {"options": instantiate(node.options, names), "axes": instantiate(node.axes, names)}
        return self.move(replace(node, inputs=inputs, outputs=outputs, weights=weights, **more))


def _with_inputs(node: OpNode, inputs: Iterable[Input]) -> OpNode:
    """The op with other inputs; itself where they are the same."""
    found = tuple(inputs)
    return node if found == node.inputs else replace(node, inputs=found)


def _plain(node: OpNode) -> bool:
    """Whether an op computes one tensor of what it reads alone: it has no weights, and draws nothing."""
    return not (node.weights or node.blocks or node.op.noisy) and len(node.outputs) == 1


def _repeated(root: Block) -> set[Span]:
    """Where blocks are declared that run more than once, whatever their numbers: those of one declaration may be one
    class."""
    calls: dict[Block, Counter[Block]] = {}

    def visit(block: Block) -> None:
        if block not in calls:
            found: Counter[Block] = Counter()
            for node, times, _ in runs(block.graph):
                for call in calls_of(node):
                    found[call.block] += times
            for callee in found:
                visit(callee)
            calls[block] = found  # behind all that it calls

    visit(root)
    often = Counter({root: 1})
    for block in reversed(calls):
        for callee, times in calls[block].items():
            often[callee] += min(often[block], 2) * times
    declared: Counter[Span] = Counter()
    for block, times in often.items():
        declared[block.span] += times
    return {span for span, times in declared.items() if times > 1}


def _names(values: Iterable[Value | Handle]) -> set[str]:
    """The names in the shapes of tensors."""
    return {name for v in values if isinstance(v, Value) for d in v.shape for name in free_names(d.expr)}


def _spelled(graph: Graph) -> set[str]:
    """The names that the numbers of a graph's nodes are spelled with."""
    found: set[str] = set()
    for node in every_node(graph):
        if isinstance(node, OpNode):
            numbers = numbers_of((node.inputs, node.options, [w.shape for w in node.weights]))
            found.update(name for n in numbers for name in free_names(n.expr))
        elif isinstance(node, CallNode):
            found.update(name for e in node.bind.values() for name in free_names(e))
    return found


def _numbers(node: Moving) -> Iterator[Num]:
    """The numbers that a node which moves is made of, in one order for all that compute the same."""
    yield from (i for i in node.inputs if isinstance(i, Num))
    if isinstance(node, OpNode) and node.instance is None:
        yield from numbers_of(node.options)


def hoist(nodes: Sequence[Node], changing: AbstractSet[int], *, split_calls: bool) -> tuple[list[Node], list[Node]]:
    """What no step of a scan changes, and the rest. Random draws and conditions stay; a block is split if a part of it
    is fixed. `changing` holds the identities of the tensors that differ from step to step."""
    varying = set(changing)
    before: list[Node] = []
    inside: list[Node] = []
    for node in nodes:
        if (
            isinstance(node, OpNode | CallNode | ParamNode)
            and not any(id(v) in varying for v in reads(node))
            and not _draws_noise(node)
        ):
            before.append(node)
            continue
        parts = _split(node, varying) if split_calls and isinstance(node, CallNode) and node.instance is None else None
        if parts is not None:
            before.append(parts[0])
            node = parts[1]
        inside.append(node)
        varying |= {id(v) for v in node_outputs(node)}
    return before, inside


def _split(call: CallNode, varying: AbstractSet[int]) -> tuple[CallNode, CallNode] | None:
    """A call whose block computes something from fixed tensors alone: one call that prepares it, one that takes the
    step. None for other calls."""
    block = call.block
    changing = {
        id(inner)
        for inner, given in zip(block.graph.inputs, call.inputs, strict=True)
        if given is not None and id(given) in varying
    }
    changing |= {id(c.value) for c, given in zip(block.contexts, call.contexts, strict=True) if id(given) in varying}
    fixed, rest = hoist(block.graph.nodes, changing, split_calls=False)
    if not any(isinstance(n, CallNode) or (isinstance(n, OpNode) and n.op.worth_hoisting) for n in fixed):
        return None
    made = {id(v) for n in fixed for v in node_outputs(n)}
    step_graph = Graph((), tuple(rest), block.graph.outputs)
    crossing = [v for v in dict.fromkeys(captured(step_graph)) if id(v) in made]
    first = _part(block, Graph((), tuple(fixed), tuple(crossing)), [])
    step = replace(_part(block, step_graph, crossing), before=first)
    names = instantiated_names(block, call.bind)
    outer = tuple(Value(tuple(d.outward(names) for d in v.shape), v.dtype, v.name, v.span) for v in crossing)
    given = {id(v): g for v, g in zip(block.graph.inputs, call.inputs, strict=True)}
    contexts = {id(c): g for c, g in zip(block.contexts, call.contexts, strict=True)}
    prepare = replace(
        call,
        block=first,
        inputs=tuple(given[id(v)] for v in first.graph.inputs),
        contexts=tuple(contexts[id(c)] for c in first.contexts),
        outputs=outer,
        step=step,
    )
    stepping = replace(
        call,
        block=step,
        inputs=(*(given[id(v)] for v in step.graph.inputs if id(v) in given), *outer),
        contexts=tuple(contexts[id(c)] for c in step.contexts),
    )
    return prepare, stepping


def _part(block: Block, graph: Graph, crossing: Sequence[Value]) -> Block:
    """A part of a block: the inputs and contexts that it reads, and what crosses over from the part before."""
    read = {id(v) for v in captured(graph)}
    kept = [(n, v) for n, v in zip(block.tensor_names, block.graph.inputs, strict=True) if id(v) in read]
    taken = {n for n, _ in kept}
    names = []
    for i, v in enumerate(crossing):
        name = v.name or f"prepared_{i + 1}"
        while name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    return replace(
        block,
        key=(block.key, "part", tuple(id(n) for n in graph.nodes)),
        graph=Graph((*(v for _, v in kept), *crossing), graph.nodes, graph.outputs),
        tensor_names=(*(n for n, _ in kept), *names),
        result_names=(None,) * len(graph.outputs),
        contexts=contexts_read(block.contexts, graph),
    )


def _draws_noise(node: Node) -> bool:
    """Whether a node, or a block that it calls, draws random numbers."""
    if isinstance(node, OpNode):
        return node.op.noisy
    return isinstance(node, CallNode) and any(_draws_noise(n) for n in node.block.graph.nodes)
