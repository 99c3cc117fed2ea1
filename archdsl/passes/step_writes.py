"""A block rewritten for a step of decoding: each op in the forms that are asked of it, and between forms the nodes that
keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from archdsl.ir.dims import Num, Var, of_atom
from archdsl.ir.graph import (
    AppendNode,
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    CondNode,
    Context,
    FirstNode,
    Graph,
    Handle,
    Init,
    LoopNode,
    LossNode,
    NewestNode,
    Node,
    OnceNode,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
    node_outputs,
    reads,
)
from archdsl.ir.static import each_number
from archdsl.ir.walk import block_tensors
from archdsl.passes.forms import ALL, FIRST, FIXED, NEW, Form, blame, refuse, shown
from archdsl.passes.kinds import Kind, values_of
from archdsl.passes.step_asks import Asks, Made, Pattern, Read, Taken, Wants, patterned
from archdsl.passes.step_sizes import StepSizes, renumbered


class Writes:
    """Writes what `asks` says. `origins` notes what each new node stands for."""

    def __init__(self, asks: Asks, sizes: StepSizes, origins: dict[Node | Value, Node | Value]) -> None:
        self.asks, self.sizes, self.origins = asks, sizes, origins
        self.block = asks.block
        self.have: dict[tuple[Value, Form], Value] = {}
        self.inside = False
        """Whether what is written is computed once."""
        self.names: dict[str, int] = {}
        self.parts: dict[Block, Block] = {}
        """Of blocks that a scan has split, the second part."""

    def written(self, given: tuple[Kind, ...], wants: Wants, root: bool) -> Made:
        """Write the block; its results are those that are wanted."""
        block, sizes = self.block, self.sizes
        nodes: list[Node] = []
        taken: list[tuple[Taken, Value]] = []
        for i, value in enumerate(block_tensors(block)):
            taken += [(Taken(i, form, read), self.define(value, form)) for form, read in self.taken_forms(value, root)]
            self.derive(value, nodes)
        count = len(block.graph.inputs)
        names = [self.titled(block.tensor_names[t.tensor], t) for t, _ in taken if t.tensor < count]
        nodes += self.graph(block.graph)
        results = [(n, v) for n, v in zip(block.result_names, block.graph.outputs, strict=True) if v is not None]
        once = Counter(i for i, _ in wants)
        found = replace(
            block,
            key=(block.key, "step", given, wants),
            graph=Graph(
                tuple(v for t, v in taken if t.tensor < count),
                tuple(nodes),
                tuple(self.get(results[i][1], form) for i, form in wants),
            ),
            tensor_names=tuple(names),
            result_names=tuple(
                name if (name := results[i][0]) is None or once[i] == 1 or NEW in form else f"{name} of all"
                for i, form in wants
            ),
            contexts=tuple(self.contexts(taken)),
            hypers={k: v for k, v in block.hypers.items() if sizes.own or not sizes.mentions(v)},
            local={k: v for k, v in block.local.items() if sizes.own or k not in sizes.timed},
            axes=self.own_axes(root),
            asserts=tuple(c for c in block.asserts if not sizes.names_time(c.left, c.right)),
            decisions=tuple(c for c in block.decisions if not sizes.names_time(c.left, c.right)),
            before=None,
        )
        return Made(found, tuple(t for t, _ in taken))

    def contexts(self, taken: Sequence[tuple[Taken, Value]]) -> Iterator[Context]:
        """The implicit inputs: of a tensor one for each form in which it is taken."""
        tensors = block_tensors(self.block)
        for context in self.block.contexts:
            if isinstance(context.value, Handle):
                yield context
                continue
            for t, made in taken:
                if tensors[t.tensor] is context.value:
                    yield replace(context, name=self.titled(context.name, t), value=made)

    def own_axes(self, root: bool) -> dict[str, Num]:
        """The names of axes that have nothing to do with time; of the model, those of the two sizes of time as well."""
        own = self.sizes.own
        found = {k: n for k, n in self.block.axes.items() if own or not self.sizes.mentions(n)}
        symbols = self.sizes.symbols if root else {}
        lengths = self.sizes.timed - self.block.local.keys()
        sizes = [(self.sizes.named(name, form), symbols[form]) for form in (NEW, ALL) if root for name in lengths]
        sizes += [(size.name, size) for form, size in symbols.items() if form == FIRST and not own]
        return found | {name: Num(of_atom(size), Var(name)) for name, size in sizes}

    def titled(self, name: str, taken: Taken) -> str:
        """The name of a tensor; one that is taken in two forms says which."""
        value = block_tensors(self.block)[taken.tensor]
        if len(self.asks.asked.get(value, ())) < 2:
            return name
        return f"{name} of all" if ALL in taken.form else f"{name} at first" if FIRST in taken.form else name

    def taken_forms(self, value: Value, root: bool) -> list[tuple[Form, Read]]:
        """The forms in which a block takes a tensor: those that it reads, for what is kept of a tensor is kept once,
        where it is made, for all that read it. A model takes each of its inputs in one form."""
        asked = self.asks.asked.get(value, {})
        own = self.asks.natural(value)
        return [(own, asked.get(own, Read()))] if root else list(asked.items())

    def graph(self, graph: Graph) -> list[Node]:
        """Write the nodes of a graph that something asks for."""
        wanted = [n for n in graph.nodes if self.is_wanted(n)]
        first = [] if self.inside else [n for n in wanted if self.is_of(n, Kind.ONCE)]
        nodes: list[Node] = []
        if first:
            known = [n for n in wanted if self.is_of(n, Kind.WEIGHTS)]
            for node in known:
                self.node(node, nodes)
            inside: list[Node] = []
            self.inside = True
            for node in first:
                self.node(node, inside)
            self.inside = False
            crossing = tuple(v for n in first for v in node_outputs(n) if v in self.asks.late)
            taken = {*known, *first}
            wanted = [n for n in wanted if n not in taken]
            if crossing:
                once = OnceNode(Graph((), tuple(inside), crossing), tuple(map(replace, crossing)), self.free("once"))
                nodes.append(once)
                self.origins.update(zip(once.outputs, crossing, strict=True))
                for value, outer in zip(crossing, once.outputs, strict=True):
                    self.have[value, self.asks.natural(value)] = outer
                    self.derive(value, nodes)
        for node in wanted:
            self.node(node, nodes)
        return nodes

    def is_of(self, node: Node, kind: Kind) -> bool:
        """Whether the results of a node are of a kind."""
        return not isinstance(node, CheckNode | CondNode) and self.asks.kind_of(node) == kind

    def is_wanted(self, node: Node) -> bool:
        """Whether a step has a node: a check of what must divide the length is none of it."""
        if isinstance(node, CheckNode):
            return node.op != "%" or not self.sizes.speaks((node.left, node.right))
        if isinstance(node, CondNode):
            return bool(node.otherwise.nodes)
        return any(v in self.asks.asked for v in node_outputs(node))

    def node(self, node: Node, nodes: list[Node]) -> None:
        """Write a node, and what gives its results in their other forms."""
        start = len(nodes)
        match node:
            case CondNode():
                nodes += self.graph(node.otherwise)
                return
            case CausalNode() | LossNode():
                return
            case CheckNode():
                nodes.append(replace(node, left=self.sizes.num(node.left, ALL), right=self.sizes.num(node.right, ALL)))
            case OpNode():
                self.op(node, nodes)
            case CallNode():
                self.call(node, nodes)
            case LoopNode():
                self.loop(node, nodes)
            case ScanNode():
                self.scan(node, nodes)
            case ParamNode():
                form = self.asks.forms.whole(node.output)
                made = self.define(node.output, form)
                weight = node.weight
                if made is not node.output:
                    shape = tuple(self.sizes.num(d, ALL) for d in weight.shape)
                    weight = replace(weight, shape=shape, init=self.first(weight.init))
                nodes.append(replace(node, weight=weight, output=made))
            case WeightNode():
                self.define(node.output, self.asks.forms.whole(node.output))
                nodes.append(node)
        self.origins.update((n, node) for n in nodes[start:] if n is not node)
        for value in node_outputs(node):
            self.derive(value, nodes)

    def first(self, init: Init) -> Init:
        """Return how the first value of a buffer is computed, for all positions."""

        def number(n: Num) -> Num:
            return self.sizes.num(n, ALL)

        def tensor(value: Value) -> Value:
            return made.setdefault(value, replace(value, shape=tuple(map(number, value.shape))))

        made: dict[Value, Value] = {}
        graph = init.graph
        if graph is not None:
            nodes = tuple(renumbered(n, number, tensor) for n in graph.nodes if isinstance(n, OpNode))
            graph = Graph((), nodes, tuple(tensor(v) for v in graph.outputs if v is not None))
        return replace(init, numbers=each_number(init.numbers, number), graph=graph)

    def define(self, value: Value, form: Form) -> Value:
        """A tensor in a form: itself where it has no axis of time."""
        made, shape = value, self.sizes.shape(value, form)
        if any(a is not b for a, b in zip(shape, value.shape, strict=True)):
            made = replace(value, shape=shape)
        if made is not value:
            self.origins[made] = value
        self.have[value, form] = made
        return made

    def derive(self, value: Value, nodes: list[Node]) -> None:
        """Write the nodes that give a tensor in the other forms that are asked for."""
        for form, read in self.asks.asked.get(value, {}).items():
            if (value, form) in self.have or (self.inside and FIRST in form):
                continue
            found = next(
                ((f, made) for (v, f), made in self.have.items() if v is value and _differ(f, form) == 1), None
            )
            if found is None:
                raise refuse(f"{shown(value)} is read in a form in which no step has it", value.span)
            have, made = found
            axis = next(a for a, (h, f) in enumerate(zip(have, form, strict=True)) if h != f)
            if form[axis] == FIRST and self.sizes.own:
                self.have[value, form] = made
                continue
            output = self.define(value, form)
            if form[axis] == FIRST:
                nodes.append(FirstNode(made, output, axis, span=value.span))
            elif form[axis] == NEW:
                nodes.append(NewestNode(made, output, axis, span=value.span))
            else:
                name = self.free(value.name or read.role or self.called(value))
                window = read.window if read.bounded else None
                nodes.append(AppendNode(made, output, axis, name, read.role, window, span=value.span))

    def called(self, value: Value) -> str:
        """What to call a tensor without a name: as what it is made of."""
        while not value.name:
            maker = self.asks.makers.get(value)
            value = next(iter(reads(maker)), Value((), name="kept")) if maker is not None else Value((), name="kept")
        return value.name

    def free(self, name: str) -> str:
        """A name for what is kept that nothing else in the block has."""
        self.names[name] = count = self.names.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def get(self, value: Value | None, form: Form) -> Value:
        """A tensor in a form in which it is there."""
        assert value is not None
        return self.have[self.asks.same.get(value, value), form]

    def standing(self, x: Any, form: Form | None = None) -> Any:
        """A tensor in a form, its own unless one is given; anything else as it is."""
        if not isinstance(x, Value):
            return x
        x = self.asks.same.get(x, x)
        return self.have[x, self.asks.natural(x) if form is None else form]

    def op(self, node: OpNode, nodes: list[Node]) -> None:
        """Write an op in each form that is asked for."""
        kind = self.asks.kind_of(node)
        if kind <= Kind.ONCE:
            tensors = {i: (FIXED,) * v.rank for i, v in enumerate(node.inputs) if isinstance(v, Value)}
            self.put(node, tensors, [(FIXED,) * v.rank for v in node.outputs], nodes)
        elif kind == Kind.POSITIONS or node in self.asks.chain:
            for pattern in self.asks.patterns[node]:
                outputs = [p for v in node.outputs if (p := patterned(v, pattern, self.asks.forms.axes(v))) is not None]
                self.put(node, self.asks.positions_read(node, outputs), outputs, nodes)
        else:
            taken = self.asks.forms.take(node, node in self.asks.whole)
            kept = self.free(f"{node.name or node.op.name}_state") if taken.states else ""
            self.put(node, {i: form for i, form, _ in taken.wanted}, taken.forms, nodes, kept)

    def put(
        self, node: OpNode, inputs: Mapping[int, Form], outputs: Sequence[Form], nodes: list[Node], kept: str = ""
    ) -> None:
        """Write an op in a form."""
        changed = self.sizes.assigned(node, inputs, outputs)
        if changed is None:
            raise blame(node, "is given a length that may be that of queries or of keys")
        read = tuple(
            self.standing(v, inputs.get(i, (FIXED,) * v.rank) if isinstance(v, Value) else None)
            for i, v in enumerate(changed.inputs)
        )
        made = tuple(self.define(v, form) for v, form in zip(node.outputs, outputs, strict=True))
        blocks = {k: replace(c, contexts=tuple(map(self.standing, c.contexts))) for k, c in node.blocks.items()}
        nodes.append(replace(changed, inputs=read, outputs=made, blocks=blocks, kept=kept))

    def call(self, node: CallNode, nodes: list[Node]) -> None:
        """Write the calls of a block, once for each of its rewritings."""
        bind = {k: e for k, e in node.bind.items() if not self.sizes.names_time(e)}
        timed = {k: e for k, e in node.bind.items() if k not in bind}
        for k, e in timed.items():
            grows = any(map(self.asks.forms.grows, sizes_called(k, node.block)))
            bind |= {self.sizes.named(k, form): self.sizes.expr(e, form, grows) for form in (NEW, ALL)}
        if timed and not self.sizes.own and (first := self.sizes.symbols.get(FIRST)) is not None:
            bind[first.name] = Var(first.name)
        tensors, count = [*node.inputs, *values_of(node.contexts)], len(node.inputs)
        for wants, made in self.asks.calls.get(node, ()):
            given = [(t.tensor < count, self.get(tensors[t.tensor], t.form)) for t in made.takes]
            values = iter([v for is_input, v in given if not is_input])
            handles = iter([h for h in node.contexts if isinstance(h, Handle)])
            block = self.parts.get(node.block, made.block)
            contexts = (next(handles) if isinstance(c.value, Handle) else next(values) for c in block.contexts)
            one = replace(node, inputs=tuple(v for is_input, v in given if is_input), contexts=tuple(contexts))
            outputs = tuple(self.define(node.outputs[i], form) for i, form in wants)
            nodes.append(replace(one, block=block, outputs=outputs, bind=bind, step=self.second(node, block)))
        if node not in self.asks.calls:
            one = replace(node, inputs=tuple(map(self.standing, node.inputs)))
            outputs = tuple(self.define(v, self.asks.natural(v)) for v in node.outputs)
            one = replace(one, contexts=tuple(map(self.standing, node.contexts)))
            nodes.append(replace(one, outputs=outputs, bind=bind, step=self.second(node, node.block)))

    def second(self, node: CallNode, first: Block) -> Block | None:
        """Of a call that only prepares, the block that takes the steps, which is written later."""
        steps = next((made for n, (made, *_) in self.asks.calls.items() if n.block is node.step), None)
        if node.step is None or steps is None:
            return node.step
        self.parts[node.step] = found = replace(steps[1].block, before=first)
        return found

    def loop(self, node: LoopNode, nodes: list[Node]) -> None:
        """Write a loop, whose turns hand on each tensor in each form that is read."""
        asks, count = self.asks, len(node.starts)
        slots, emits = [*asks.slots[node]], [*asks.emits[node]]

        def defined(values: Sequence[Value], taken: Sequence[tuple[int, Pattern]]) -> tuple[Value, ...]:
            return tuple(self.define(values[i], asks.formed(values[i], pattern)) for i, pattern in taken)

        def given(values: Sequence[Value | None], taken: Sequence[tuple[int, Pattern]]) -> tuple[Value, ...]:
            return tuple(self.get(values[i], asks.formed(values[i], pattern)) for i, pattern in taken)

        bodies = []
        for body in node.bodies:
            inner: list[Node] = []
            inputs = defined(body.inputs, slots)
            for value in body.inputs:
                self.derive(value, inner)
            inner += self.graph(body)
            ends = (*given(body.outputs[:count], slots), *given(body.outputs[count:], emits))
            bodies.append(Graph(inputs, tuple(inner), ends))
        starts, outputs = given(node.starts, slots), defined(node.outputs, slots)
        emitted = tuple(defined(values, emits) for values in node.emitted)
        nodes.append(replace(node, bodies=tuple(bodies), starts=starts, outputs=outputs, emitted=emitted))

    def scan(self, node: ScanNode, nodes: list[Node]) -> None:
        """Write a scan, which is kept where it runs along the sequence."""
        form = NEW if self.asks.kind_of(node) == Kind.SEQUENCE else ALL
        inputs = tuple(self.define(v, self.asks.natural(v)) for v in node.body.inputs)
        inner = self.graph(node.body)
        outputs = tuple(self.standing(v) for v in node.body.outputs)
        nodes.append(
            replace(
                node,
                body=Graph(inputs, tuple(inner), outputs),
                starts=tuple(self.standing(v) for v in node.starts),
                sequences=tuple(self.standing(v) for v in node.sequences),
                stacked=tuple(self.define(v, self.asks.natural(v)) for v in node.stacked),
                finals=tuple(self.define(v, self.asks.natural(v)) for v in node.finals),
                length=self.sizes.num(node.length, form),
                kept=self.free("scan_state") if self.asks.runs_along(node) else "",
            )
        )


def sizes_called(name: str, block: Block) -> list[Num]:
    """Return what a name of a block may be."""
    value = block.axes.get(name)
    value = block.hypers.get(name) if value is None else value
    if isinstance(value, Num):
        return [value]
    sizes = (d for v in block_tensors(block) for d in v.shape)
    return [d for d in sizes if isinstance(d.expr, Var) and d.expr.name == name]


def _differ(a: Form, b: Form) -> int:
    """Count the axes along which two forms of a tensor differ."""
    return sum(x != y for x, y in zip(a, b, strict=True))
