"""What a class does in a step: its `forward` for the new positions of a sequence, given what was kept of those before
them.

Each node is asked what it does without a cache and what with one; where the two differ, both stand in `forward`, under
`if cache is None`.  What does not depend on the sequence stands under `if cache.first`; keys and values are appended to
caches; recurrences begin where they ended.  A `Cache` holds all that is kept, in the order in which a step comes to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from archdsl.backends.torch.features.by_row import refuse
from archdsl.backends.torch.features.fork import of_step, once, resolved, training
from archdsl.backends.torch.features.step_scope import StepScope
from archdsl.backends.torch.features.tables import TableLowering
from archdsl.backends.torch.features.taking import Taking, When, inner_graphs, nodes_within
from archdsl.backends.torch.lower import (
    LOSSES,
    Kind,
    Lowered,
    Method,
    Modules,
    Parameter,
    cache_name,
)
from archdsl.backends.torch.program import (
    Bind,
    Conditional,
    Do,
    Fork,
    Step,
    Suite,
    absent,
    all_read,
    every,
)
from archdsl.backends.torch.scope import TorchNodeScope
from archdsl.backends.torch.tree import PyNode, Read, Variable, call_tree, lift, py
from archdsl.ir import dims, static
from archdsl.ir.dims import Expr, Lit, Num
from archdsl.ir.graph import (
    Block,
    CallNode,
    CheckNode,
    CondNode,
    Graph,
    LoopNode,
    LossNode,
    NewestNode,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    node_outputs,
    reads,
)
from archdsl.ir.graph import Node as IrNode
from archdsl.ir.op import Tree
from archdsl.ir.walk import every_node
from archdsl.passes.dce import live, live_nodes
from archdsl.passes.forms import has, in_front
from archdsl.passes.kinds import Kind as Dependence

if TYPE_CHECKING:
    from archdsl.backends.torch.classes import ClassGroup
    from archdsl.backends.torch.features.generate import Generate
    from archdsl.backends.torch.lower import Ending


class StepLowering(TableLowering):
    """Lowers one block for steps. Its modules are those of `forward`, which are there already."""

    def __init__(
        self, section: Generate, forward: Lowered, kinds: Sequence[Kind], taking: Taking, name: str, apart: bool
    ) -> None:
        """With `apart` the step is a method of its own; else it is `forward` with a cache."""
        graph = taking.block.graph
        self.root = taking is section.taking
        results = [v for v in graph.outputs if v is not None]
        if self.root:
            graph = Graph(graph.inputs, graph.nodes, tuple(results[i] for i in section.decoding.step.results))
        super().__init__(section.classes, replace(taking.block, graph=graph), kinds, taking)
        self.apart = apart
        self.lowered.method.name, self.lowered.method.block = name, taking.block
        self.lowered.method.whole, self.lowered.method.unread = taking.whole, taking.unread
        if self.root and len(graph.outputs) < len(results):
            numbers = ", ".join(str(i + 1) for i in section.decoding.step.results)
            self.lowered.method.doc = (
                f"Give, of what `forward` gives, all that has a step: {numbers} of {len(results)}."
            )
        idle = {v for n in nodes_within(graph) if taking.when[n] is When.NEVER for v in node_outputs(n)}
        inner = [g for node in nodes_within(graph) for g in inner_graphs(node)]
        carried = [v for node in nodes_within(graph) if isinstance(node, LoopNode) for v in node.starts]
        given = [v for node in nodes_within(graph) if isinstance(node, CallNode) for v in reads(node)]
        unread = [*carried, *given, *(v for each in (graph, *inner) for v in each.outputs)]  # whoever is handed it
        self.aliases |= {v: lift(None) for v in unread if v in idle}
        self.ending: Ending | None = section.classes.ending if self.root and not apart else None
        self.forward = forward.method if self.ending is None else self.ending.method
        self.losses = self.losses if self.ending is None else self.ending.losses
        self.unmasked = absent(self.forward.steps)
        self.section = section
        self.handed_on: dict[Graph, tuple[Value | None, ...]] = {}
        """What the graphs of loops hand on in a step."""
        self.starts: dict[ScanNode, tuple[Value, ...]] = {}
        """What recurrences written out begin with."""
        self.joined: Method | None = None
        """The `forward` that is a step, too."""
        self.at: Variable | None = None
        """The parameter that asks the model for one place of each row alone."""
        self.modules = Modules(self)
        self.modules.names = {*forward.modules.names}
        self.modules.instances = {*forward.modules.instances}
        self.modules.without_weights = dict(forward.modules.without_weights)
        self.lowered.modules = self.modules
        self.late: list[Value] = []
        """Inputs that only the first step takes."""
        self.real: list[Value] = []
        """Those that say which positions are tokens, as the cache knows."""
        self.optional: list[Parameter] = []
        """Parameters behind the cache."""
        self.stepping: tuple[ClassGroup, str] | None = None
        """The class and the method of the block that is called."""

    # --- the whole block ---

    def run(self) -> Lowered:
        method = self.lowered.method
        self.parameters()
        if self.root:
            self.begin()
        self.graph(self.block.graph)
        if self.ending is not None:
            steps, results = self.ending.after(self.read(self.ending.hidden))
            self.steps += steps
        else:
            results = tuple(self.read(self.handed(o, self.taking.step.graph)) for o in self.block.graph.outputs if o)
        if not self.apart:
            self.join(results)
        method.steps, method.results = of_step(self.steps, self.state, Read(self.losses)), results
        method.parameters += [Parameter(self.states, "Cache"), *self.optional]
        return self.lowered

    @property
    def differs(self) -> bool:
        """Whether a step takes what is kept, or does otherwise than `forward`: more than to leave out what it does not
        need."""
        forks = (s for s in every(self.steps) if isinstance(s, Fork) and not s.free)
        less = all(not f.step and all(isinstance(s, Bind) for s in f.plain) for f in forks)
        return not less or self.states in all_read(self.steps)

    def join(self, results: tuple[Tree, ...]) -> None:
        """Make the method that is both."""
        method, plain = self.lowered.method, self.forward
        given = method.parameters
        if self.ending is not None:
            given = plain.parameters
        elif self.lowered.losses:
            given = [*given, Parameter(self.losses, LOSSES, "None")]
        cache = Parameter(self.states, "Cache | None", "None")
        given = [p._replace(type="Tensor | None") if p.target in self.late else p for p in given]
        self.joined = replace(
            plain,
            parameters=[*given, cache, *self.optional],
            steps=resolved(self.steps, results, self.state, Read(self.losses), self.source),
            results=results,
            hints={**plain.hints, **method.hints},
            whole=method.whole,
            unread=method.unread,
        )

    def begin(self) -> None:
        """Begin a step of the model."""
        first = next(v for v in self.block.graph.inputs if v not in self.late)
        steps: list[Step] = [Do(py("{s}.begin({x})", s=self.state, x=Read(first)))]
        if self.decoding.front:
            count = self.numbers.short(Num(self.decoding.front, self.of_front(self.block)))
            steps.append(Do(py("{s}.lead({n})", s=self.state, n=count)))
        self.put(Fork((), tuple(steps)))
        if self.ending is not None:
            self.steps += self.ending.before

    def of_front(self, block: Block) -> Expr:
        """How many places in front of the sequence go through the layers, as a block spells it, or a block that it
        calls."""
        local = block.local
        for node in nodes_within(block.graph):
            for size in (d for v in node_outputs(node) for d in v.shape):
                if self.decoding.counts(size):
                    expr = size.expr
                    while names := {n: local[n] for n in dims.free_names(expr) if n in local}:
                        expr = dims.substitute(expr, names)
                    tokens = [n for n in dims.free_names(expr) if self.is_time(n, block)]
                    if tokens:
                        return dims.substitute(expr, dict.fromkeys(tokens, Lit("0")))
        for node in nodes_within(block.graph):
            if isinstance(node, CallNode):
                found = self.of_front(node.block)
                return dims.substitute(found, node.bind)
        raise AssertionError("nothing is put in front of the sequence")

    def parameters(self) -> None:
        """Those of `forward`. What the first step alone takes may be None; a step of its own has it behind the
        cache."""
        block, method = self.block, self.lowered.method
        with self.lowered_for("whole"):
            super().parameters()
        causal = (c for c, kind in zip(block.contexts, self.kinds, strict=True) if kind == "causal")
        self.aliases |= {c.value: self.mask for c in causal if isinstance(c.value, Value)}
        inputs = block.graph.inputs if self.root else ()
        self.real = [v for v in inputs if v.dtype == "padding" and self.of_time(v)]
        self.aliases |= {v: py("{s}.real", s=self.state) for v in self.real}
        self.late = [v for v in inputs if v not in self.decoding.taken]
        if self.apart:
            given = [p for p in method.parameters if p.target not in self.late]
            method.parameters = [p._replace(type=p.type.partition(" | ")[0], default="") for p in given]
            self.optional = [Parameter(v, "Tensor | None", "None") for v in self.late if v not in self.real]

    # --- without a cache, and with one ---

    def put_both(self, node: IrNode, graph: Graph) -> None:
        """What a node does without a cache, and with one: once where they do the same."""
        plain, step = self.captured_both(lambda: self.node(node, graph), lambda: self.step_of(node, graph))
        for value in node_outputs(node):
            own = self.other.aliases.get(value)
            if isinstance(own, Read) and value not in self.aliases:
                plain.append(Bind((value,), own))
                del self.other.aliases[value]
        if not step and plain and all(map(self.is_asked, plain)):
            self.put(Fork(tuple(plain), (), free=True))
        else:
            self.steps += self.woven(plain, step)

    def agree(self, values: Iterable[Value | None]) -> None:
        """Have tensors in one local, without a cache and with one."""
        for value in (v for v in values if v is not None):
            own = self.origin(value)
            plain, step = self.other.aliases.get(own, Read(own)), self.read(value)
            if plain != step and not (isinstance(step, Read) and Read(self.source.get(step.value)) == plain):
                found = Variable(value.name or self.lowered.method.hints.get(value, "h"))
                one, other = (Bind((found,), tree, nested=False) for tree in (plain, step))
                self.put(Fork((one,), (other,)))
                step = Read(found)
            self.aliases[value] = self.other.aliases[value] = self.other.aliases[own] = step

    def within(self, graph: Graph, inputs: Sequence[Any], outputs: Sequence[Value]) -> Suite:
        known = dict(self.other.locals)
        ends = dict(zip(graph.outputs, self.handed_on.get(graph, graph.outputs), strict=True))
        found = super().within(graph, inputs, [v for o in outputs if (v := ends[o]) is not None])
        self.other.locals = known
        return found

    @property
    def mask(self) -> Tree:
        return py("{s}.mask", s=self.state)

    def any_tensor(self) -> Tree:
        """A parameter that every step is given; an encoder's input is there in the first alone."""
        if not self.root or self.once or self.mode == "whole":
            return super().any_tensor()
        return Read(next(v for v in self.block.graph.inputs if v not in self.late))

    def always_given(self) -> Sequence[Value]:
        """Inputs that are there in every step: what the first alone reads is None in the others."""
        when, inputs = self.taking.when, self.block.graph.inputs
        if self.mode == "whole":
            return inputs
        later = [n for n, w in when.items() if w in (When.ALWAYS, When.STEP)]
        read = {*self.decoding.taken} if self.root else {v for n in later for v in reads(n)} - {*self.taking.held}
        return [v for v in inputs if v in read]

    def of_time(self, value: Value) -> bool:
        return any(has(d, self.decoding.step.time) for d in value.shape)

    def graph(self, graph: Graph) -> None:
        when = self.taking.when
        if self.mode == "whole" or self.once or (graph.nodes and graph.nodes[0] not in when):  # of a scan
            super().graph(graph)
            return
        self.put_forms((*graph.inputs, *self.contexts(graph)))
        top = self.root and graph is self.block.graph
        nodes = self.in_order(graph)
        early = [n for n in nodes if when[n] is When.FIRST and not self.asks_again(n)]
        always = [n for n in nodes if when[n] is When.ALWAYS]
        read_early = {v for n in early for v in reads(n)}
        before = live(always, read_early, inputs_of=reads, outputs_of=node_outputs)
        narrowed, read = self.narrowed(graph) if top else (None, None)
        if not early:
            self.first(early, graph)
        for node in nodes:
            if early and node is early[0]:
                for known in before:
                    self.visit(known, graph)
                self.first(early, graph)
            if node not in before and node not in early:
                self.visit(node, graph)
            if read is not None and node is narrowed:
                self.narrow(read)
        self.agree(self.handed_on.get(graph) or [o and self.handed(o, self.taking.step.graph) for o in graph.outputs])

    def contexts(self, graph: Graph) -> list[Value]:
        """What the block is handed implicitly."""
        values = (c.value for c in self.block.contexts) if graph is self.block.graph else ()
        return [v for v in values if isinstance(v, Value)]

    def handed(self, value: Value, graph: Graph) -> Value:
        """The form in which a graph of the step hands a tensor on."""
        return next((v for v in graph.outputs if v is not None and self.origin(v) is value), value)

    def asks_again(self, node: IrNode) -> bool:
        """Whether a node is a condition on what each step knows."""
        if not isinstance(node, CheckNode):
            return False
        known = {s for v in self.block.graph.inputs if v not in self.late for d in v.shape for s in d.symbols}
        late = {s for v in self.late for d in v.shape for s in d.symbols} - known
        return late.isdisjoint(node.left.symbols | node.right.symbols)

    def in_order(self, graph: Graph) -> Sequence[IrNode]:
        """The nodes of a graph, without those that a section writes at the end of the model."""
        own = graph is self.block.graph
        nodes = (n for n in live_nodes(graph) if self.ending is None or not own or n not in self.ending.nodes)
        return sorted(nodes, key=lambda n: own and not isinstance(n, CheckNode))

    def visit(self, node: IrNode, graph: Graph) -> None:
        """Write a node."""
        if isinstance(node, LoopNode | CondNode) and self.taking.when[node] is not When.NEVER:
            super().node(node, graph)
            self.put_forms(node_outputs(node))
        elif isinstance(node, OpNode) and node in self.taking.leading:
            self.lead(node, graph)
            self.put_forms(node.outputs)
        else:
            self.put_both(node, graph)

    def lead(self, node: OpNode, graph: Graph) -> None:
        """Put places in front of the sequence, or cut them off: those are there in the first step alone."""
        (given,) = (v for v in node.inputs if isinstance(v, Value) and self.of_time(v))
        (output,) = node.outputs
        self.agree([given])
        around, self.steps = self.steps, []
        compute = partial(super().node, node, graph)
        self.steps += self.woven(*self.captured_both(compute, compute))
        self.agree([output])
        steps, made, x = self.steps, self.read(output), self.read(given)
        self.steps = around
        found = Variable(output.name or self.lowered.method.hints.get(output, "h"))
        self.put(Conditional(once(self.state), Suite((), tuple(steps), (made,)), Suite((), (), (x,)), (found,)))
        self.aliases[output] = self.other.aliases[output] = Read(found)

    def step_of(self, node: IrNode, graph: Graph) -> None:
        """Write what a step does at a node of the block."""
        when = self.taking.when[node]
        if when is When.FIRST:  # a condition on what does not depend on the sequence
            self.computed_once(node, graph)
        elif when is not When.NEVER and node not in self.taking.chain:
            around, self.instead = self.instead, self.taking.instead(node)
            for here in self.taking.copies.get(node, [node]):
                if here not in self.taking.idle:
                    self.stepping_node(here, graph)
            self.instead = around
        self.other_forms(node_outputs(node))

    def computed_once(self, node: IrNode, graph: Graph) -> None:
        """What a step does at a node for all steps."""
        around, self.length = self.length, py("{s}.capacity", s=self.state)
        copies = self.taking.copies.get(node, [node])
        for here in copies if isinstance(node, OpNode | ParamNode | CheckNode) else [node]:
            self.stepping_node(here, graph)
        self.length = around

    def stepping_node(self, node: IrNode, graph: Graph) -> None:
        """Write a node of the step; what its results are read as goes by their locals."""
        self.node(node, graph)
        for value in node_outputs(node):
            if value in self.aliases and self.local(value) is not value:
                self.aliases[self.local(value)] = self.aliases.pop(value)

    def put_forms(self, values: Sequence[Value]) -> None:
        """What gives tensors in their other forms, with a cache."""
        if found := self.captured("step", lambda: self.other_forms(values)):
            self.put(Fork((), tuple(found)))

    def other_forms(self, values: Sequence[Value]) -> None:
        """What gives tensors in their other forms."""
        for form in (f for v in values for f in self.taking.forms.get(v, ())):
            if isinstance(form, NewestNode):
                self.newest(form)
            elif form in self.taking.appended:
                self.twin(form.output)
                tree = self.keeping([self.read(form.value)], form.axis, form.value.rank)
                self.put(taken((form.output,), tree))

    def narrowed(self, graph: Graph) -> tuple[IrNode | None, Value | None]:
        """The last node of the model that looks at other positions, and the one tensor [batch, new, …] that is read of
        it and of those before: from there on the positions that are not wanted can be left out."""
        when = self.taking.when
        nodes = [n for n in graph.nodes if when[n] is When.STEP]
        special = [i for i, n in enumerate(nodes) if self.is_special(n) or self.is_led(n)]
        if not special or self.section.tokens is None or len(graph.outputs) > 1:
            return None, None
        tail = nodes[special[-1] + 1 :]
        made = {v for n in tail for v in node_outputs(n)}
        outside = {v for n in tail for v in reads(n) if v not in made}
        moving = [v for v in outside if self.taking.kind[v] == Dependence.SEQUENCE]
        fits = len(moving) == 1 and moving[0].rank == 3 and has(moving[0].shape[1], self.decoding.step.time)
        fits = fits and not any(self.of_time(v) for v in outside if v not in moving)  # tables of positions
        copies = [c for n in tail for c in self.taking.copies.get(n, ())]
        fits = fits and not any(c in self.taking.at_positions or c in self.taking.flatly for c in copies)
        inner = [n for n in every_node(replace(graph, nodes=tuple(tail))) if isinstance(n, OpNode)]
        spelled = static.numbers_of([(n.options, n.inputs) for n in inner])
        fits = fits and not any(has(d, self.decoding.step.time) for d in spelled)  # as `unflatten` spells its sizes
        return (nodes[special[-1]], moving[0]) if fits and graph.outputs[0] in made else (None, None)

    def is_special(self, node: IrNode) -> bool:
        """Whether a node reads or keeps other positions than the own."""
        taking = self.taking
        copies = taking.copies.get(node, [])
        if isinstance(node, CallNode):
            group = self.classes.group(node.block)
            return any(self.section.method(group, taking.callees[c]) for c in copies if c in taking.callees)
        if isinstance(node, OpNode):
            return any(taking.all_read(c) or (isinstance(c, OpNode) and c.kept) for c in copies)
        return isinstance(node, ScanNode) or any(self.is_special(n) for g in inner_graphs(node) for n in g.nodes)

    def is_led(self, node: IrNode) -> bool:
        """Whether a node reads or makes places in front of the sequence."""
        sizes = (d for v in (*reads(node), *node_outputs(node)) for d in v.shape)
        return self.decoding.step.led and any(in_front(d, self.decoding.step.time) for d in sizes)

    def narrow(self, value: Value) -> None:
        """Leave out the positions that are not wanted: of each row one alone may be."""
        self.at = at = Variable("at")
        self.agree([value])
        x = self.read(value)
        narrowed = Variable(value.name or self.lowered.method.hints.get(value, "h"))
        some = py("{x}.take_along_dim({at}[:, None, None], dim=1)", x=x, at=Read(at))
        test = py("{at} is not None", at=Read(at))
        note = "only the logits at this position of each row"
        self.put(Conditional(test, Suite((), (), (some,)), Suite((), (), (x,)), (narrowed,), note))
        self.aliases[value] = self.other.aliases[value] = Read(narrowed)
        self.optional.append(Parameter(at, "Tensor | None", "None"))

    def first(self, nodes: Sequence[IrNode], graph: Graph) -> None:
        """What is computed once, and what is kept of it."""
        made = {v for n in nodes for v in node_outputs(n)}
        given = self.block.graph.inputs if self.root and graph is self.block.graph else ()
        held = [v for v in self.taking.held if v in made or v in given]
        if not nodes and not held:
            return
        known = dict(self.locals), dict(self.other.locals)
        compute = partial(self.compute, nodes, graph)
        plain, step = self.captured_both(compute, compute)
        passing = [v for v in self.passing(made, nodes, graph) if v not in held and v not in self.aliases]
        values, start = [*held, *passing], len(self.steps)
        self.steps += self.woven(plain, step)
        for value in values:
            self.named(value)
        self.agree(values)
        steps = self.steps[start:]
        del self.steps[start:]
        self.locals, self.other.locals = known
        trees = [self.read(v) for v in values]
        if held:
            steps.append(Fork((), (Do(py("{s}.store({*xs})", s=self.state, xs=trees[: len(held)])),)))
        self.put(self.at_first(steps, trees, values, len(held), test=once(self.state)))
        self.other.aliases |= {v: self.read(v) for v in values}

    def compute(self, nodes: Sequence[IrNode], graph: Graph) -> None:
        """What is computed once."""
        self.once = True
        for node in nodes:
            if self.mode == "whole":
                self.node(node, graph)
            else:
                self.computed_once(node, graph)
        self.once = False

    def at_first(
        self,
        steps: Sequence[Step],
        made: Sequence[Tree],
        values: Sequence[Value],
        held: int,
        note: str = "",
        test: Tree | None = None,
    ) -> Step:
        """What the first step computes. Of what it makes the first `held` are read in all others, which have the rest
        as None."""
        names = [v.name or self.lowered.method.hints.get(v, "h") for v in values]
        results, again = (tuple(map(Variable, names)) for _ in range(2))
        later = [taken(again[:held], py("{s}.stored()", s=self.state))] if held else []
        ends = [*map(Read, again[:held]), *(lift(None) for _ in again[held:])]
        self.aliases |= dict(zip(values, map(Read, results), strict=True))
        then = Suite((), tuple(steps), tuple(made))
        return Conditional(
            test or py("{s}.first", s=self.state), then, Suite((), tuple(later), tuple(ends)), results, note
        )

    def passing(self, made: set[Value], nodes: Sequence[IrNode], graph: Graph) -> list[Value]:
        """What the first step computes and hands to what keeps of it what it needs."""
        later = [n for n in graph.nodes if n not in {*nodes}]
        read = (v for n in later for v in reads(n))
        return list(dict.fromkeys(v for v in (*read, *graph.outputs) if v is not None and v in made))

    # --- nodes ---

    def node(self, node: IrNode, graph: Graph) -> None:
        if isinstance(node, ScanNode) and self.is_carried(node):
            self.scan_on(self.origin(node), graph)
        elif self.mode == "whole":
            super().node(node, graph)
        elif isinstance(node, CondNode):
            self.graph(node.otherwise)
            for outer, inner in zip(node.outputs, node.otherwise.outputs, strict=True):
                assert inner is not None
                self.put(Bind((outer,), self.read(inner)))
        elif not isinstance(node, LossNode):
            super().node(node, graph)

    def is_carried(self, node: ScanNode) -> bool:
        """Whether a scan of the block or of the step goes on where the one before it ended."""
        return any(isinstance(n, ScanNode) and n.kept for n in (node, *self.taking.copies.get(node, ())))

    def scope(self, node: OpNode) -> TorchNodeScope:
        return TorchNodeScope(self, node) if self.mode == "whole" else StepScope(self, node)

    def op(self, node: OpNode, graph: Graph) -> None:
        if self.mode == "whole":
            super().op(node, graph)
            if node.outputs[0] in self.unmasked:
                self.put(Bind((node.outputs[0],), lift(None), nested=False))
        elif not self.needs_tensor(node):
            mask = self.local(node.outputs[0])
            if mask in self.unmasked:
                self.put(Bind((mask,), self.mask, nested=False))
            else:
                self.aliases[mask] = self.mask
        elif node.kept:
            self.recurrence(node, graph)
        elif node in self.taking.latent:
            self.absorbed(node, graph)
        else:
            self.append(node)
            if node in self.taking.flatly:
                self.table(node, graph)
            if node not in self.taking.flat:
                self.by_length = node in self.taking.by_length
                super().op(node, graph)
                self.by_length = False

    def needs_tensor(self, node: OpNode) -> bool:
        """Whether the kernels of the whole model are given a mask as a tensor."""
        origin = self.origin(node)
        return origin.op.needs_tensor(origin.options, origin.inputs)

    def append(self, node: OpNode) -> None:
        """Append what attention reads alone to what was kept of it."""
        appends = self.taking.kept.get(node, [])
        own = list(dict.fromkeys(a for v in node.inputs for a in appends if a.output is v))
        if not own:
            return
        roles, origin = node.op.cached_inputs(node), self.origin(node)
        for each in own:
            i = next(i for i, v in enumerate(node.inputs) if v is each.output)
            value = self.origin(each.value)
            self.source[each.output] = value
            self.lowered.method.hints[each.output] = (
                value.name or self.lowered.method.hints.get(value) or roles.get(i, (0, "kept"))[1]
            )
        trees = [self.read(a.value) for a in own]
        every = [a.output for a in own]
        if origin in self.taking.window:
            window = self.window(origin)
            tree = py("{s}.update_window({*xs}, window={n})", s=self.state, xs=trees, n=window)
            if origin in self.section.partly:
                tree = py("{tree} if {n} else {s}.update({*xs})", tree=tree, n=window, s=self.state, xs=trees)
            self.put(taken(tuple(every), tree))
            return
        axes = [(a.axis, a.value.rank) for a in own]
        for axis, rank in dict.fromkeys(axes):
            alike = [i for i, one in enumerate(axes) if one == (axis, rank)]
            tree = self.keeping([trees[i] for i in alike], axis, rank)
            self.put(taken(tuple(every[i] for i in alike), tree))

    def window(self, node: OpNode) -> Tree:
        """How many positions a windowed attention sees."""
        return self.numbers.short(self.taking.window[node])

    def keeping(self, trees: Sequence[Tree], axis: int, rank: int) -> Tree:
        where = {} if axis == rank - 2 else {"axis": axis}
        return py("{s}.update({*xs}, {**where})", s=self.state, xs=trees, where=where)

    def absorbed(self, node: OpNode, graph: Graph) -> None:
        """Attention to what keys and values are projections of, position by position: what they make of the rows of an
        identity matrix are the maps."""
        scope = StepScope(self, node)
        every, chain = self.taking.latent[node]
        base = [self.origin(v) for v in every]
        hints = self.lowered.method.hints
        names = [v.name or hints.get(v, "h") for v in base]
        here = len(self.taking.kept.get(node, ())) == len(every)
        given = [self.named(v) for v in (base if here else every)]
        widths = [self.numbers.short(v.shape[-1]) for v in base]
        flat = [py("{x}.squeeze(1)", x=x) if v.rank == 4 else x for x, v in zip(given, base, strict=True)]
        rows = Variable("rows")
        together = flat[0] if len(flat) == 1 else py("torch.cat(({*xs},), dim=-1)", xs=flat)
        appended = taken((rows,), py("{s}.update({x})", s=self.state, x=together))
        self.put(appended if here else Bind((rows,), together))
        around, known, aliases = self.steps, dict(self.locals), dict(self.aliases)
        self.steps = []
        total: Tree = widths[0]
        for width in widths[1:]:
            total = py("{a} + {b}", a=total, b=width)
        identity = py("torch.eye({n}, dtype={x}.dtype, device={x}.device)[None]", n=total, x=given[0])
        parts = [Variable(f"{name}_rows" if len(base) > 1 else "identity") for name in names]
        if len(base) > 1:
            identity = py("{x}.split(({*widths},), dim=-1)", x=identity, widths=widths)
        self.put(Bind(tuple(parts), identity, nested=False))
        for value, part in zip(base, parts, strict=True):
            own = self.local(value)
            self.aliases[own] = py("{x}[:, None]", x=Read(part)) if value.rank == 4 else Read(part)
        for step in chain:
            super().op(step, graph)
        maps = [self.origin(v) for v in node.inputs[1:3] if isinstance(v, Value)]
        made = [self.read(v) for v in maps]
        self.put(Do(py("{s}.store({*xs})", s=self.state, xs=made)))
        inner = tuple(self.steps)
        self.steps, self.locals, self.aliases = around, known, aliases
        note = "the maps of keys and values: what is made of the rows of an identity matrix"
        self.put(self.at_first(inner, made, maps, len(maps), note))
        keys, values = map(self.read, maps)
        tree = node.op.torch_absorbed(node, scope, Read(rows), keys, values)
        self.put(Bind((node.outputs[0],), tree, nested=False, note=self.note(node.outputs[0], node)))

    def recurrence(self, node: OpNode, graph: Graph) -> None:
        """An op that begins where it ended."""
        scope = StepScope(self, node)
        past = []
        first = next(i for i, v in enumerate(node.inputs) if isinstance(v, Value))
        like, value = scope.input(first), node.inputs[first]
        assert isinstance(value, Value)
        self.named(value)
        starts: list[Tree] = []
        for state, start in zip(node.op.states(node), node.op.torch_starts(node, scope), strict=True):
            sizes = [self.numbers.short(d) for d in state.shape]
            kind = {"dtype": py("torch.float32")} if state.dtype == "float32" else {}
            past.append(Variable(state.name))
            zeros = py("{x}.new_zeros({*sizes}, {**kind})", x=like, sizes=sizes, kind=kind)
            starts.append(py("lambda: {x}", x=zeros if start is None else start))
        self.put(taken(tuple(past), py("{s}.state({*starts})", s=self.state, starts=starts)))
        made, after = node.op.torch_step(node, scope, [Read(p) for p in past])
        several = [made] if isinstance(made, Tree) else list(made)
        for output, tree in zip(node.outputs, several, strict=False):  # before its states are overwritten
            if isinstance(tree, Read) and isinstance(tree.value, Variable) and output.name in ("", tree.value.hint):
                self.aliases[output] = tree  # it has a name already
                continue
            self.put(Bind((output,), tree, nested=False, always=True, note=self.note(output, node)))
        self.put(Do(py("{s}.set_state({*xs})", s=self.state, xs=list(after))))

    def scan_on(self, node: ScanNode, graph: Graph) -> None:
        """A recurrence written out that begins where it ended."""
        starts = self.starts.setdefault(node, tuple(map(replace, node.body.inputs[: len(node.starts)])))
        trees = [
            self.filled(node, start, state) if isinstance(start, Num) else self.read(start)
            for start, state in zip(node.starts, node.body.inputs, strict=False)
        ]
        if self.mode == "whole":
            for value, tree in zip(starts, trees, strict=True):
                self.put(Bind((value,), tree, nested=False))
        else:
            first = [py("lambda: {x}", x=tree) for tree in trees]
            self.put(taken(starts, py("{s}.state({*starts})", s=self.state, starts=first)))
        self.scan(replace(node, starts=starts), graph)
        if self.mode != "whole":
            self.put(Do(py("{s}.set_state({*xs})", s=self.state, xs=[self.read(v) for v in node.finals])))

    def condition(self, node: CondNode) -> None:
        """`if training`, which no step is."""
        if self.mode == "whole":
            super().condition(node)
            return
        outputs = [[v for v in g.outputs if v is not None] for g in (node.then, node.otherwise)]
        with self.lowered_for("whole"):
            then = self.within(node.then, (), outputs[0])
        otherwise = self.within(node.otherwise, (), outputs[1])
        self.put(Conditional(training(self.state), then, otherwise, node.outputs))

    def loop(self, node: LoopNode) -> None:
        found = next((n for n in self.taking.copies.get(node, ()) if isinstance(n, LoopNode)), None)
        if found is not None and self.mode != "whole" and not self.once:
            node = self.stepping_loop(node, found)
        self.agree(node.starts)
        gone = self.other.elided & self.unmasked
        self.other.elided -= gone
        super().loop(node)
        self.other.elided |= gone

    def stepping_loop(self, node: LoopNode, step: LoopNode) -> LoopNode:
        """A loop of the block that hands on what that of the step does."""
        origin = self.origin
        slots = {origin(v): i for i, v in enumerate(step.bodies[0].inputs)}
        if len(slots) < len(step.starts):
            value = next(v for i, v in enumerate(step.bodies[0].inputs) if slots[origin(v)] != i)
            raise refuse(f"`{value.name or 'a tensor'}` is read both at its new positions and at all of them")
        carried = [slots.get(v) for v in node.bodies[0].inputs]
        for body, inner in zip(node.bodies, step.bodies, strict=True):
            ends = [inner.outputs[s] if s is not None else None for s in carried]
            others = inner.outputs[len(step.starts) :]
            emitted = {origin(v): v for v in others if v is not None}
            more = [emitted.get(v, v) if v is not None else None for v in body.outputs[len(carried) :]]
            self.handed_on[body] = (*(self.shown(e, v) for e, v in zip(ends, body.outputs, strict=False)), *more)
        starts = (
            self.shown(step.starts[s] if s is not None else None, v) for s, v in zip(carried, node.starts, strict=True)
        )
        return replace(node, starts=tuple(v for v in starts if v is not None))

    def shown(self, value: Value | None, own: Value | None) -> Value | None:
        """A tensor of the step as the block calls it; its own where the step has none."""
        if value is None:
            return own
        found = self.taking.shown.get(value, value)
        return own if own is not None and self.taking.inner(own) is found else found

    # --- calls ---

    def call(self, node: CallNode, graph: Graph) -> None:
        self.stepping, origin = None, self.origin(node)
        callee = self.taking.callees.get(node)  # none of a call within a scan
        if self.mode == "step" and callee is not None and not self.once and self.taking.when[origin] is When.STEP:
            group = self.classes.group(origin.block)
            name = self.section.method(group, callee)
            self.stepping = (group, name) if name else None
            node = self.stepping_call(origin, node, callee)
        super().call(node if self.mode == "step" and callee is not None else origin, graph)

    def stepping_call(self, node: CallNode, step: CallNode, callee: Taking) -> CallNode:
        """A call of the block with the forms of tensors that that of the step has."""
        given: dict[Value, Value] = {}
        for own, (inner, outer) in callee.given(step).items():
            given[own] = outer
            if inner in callee.read_flat:
                given[own] = replace(outer)
                self.aliases[given[own]] = self.read_flat(outer)
        results = {self.origin(inner): outer for inner, outer in zip(step_outputs(step), step.outputs, strict=True)}
        if len(results) < len(step.outputs):
            raise refuse(f"a result of `{node.block.name}` is read at its new positions and at all of them", node.span)
        own_inputs = zip(node.block.graph.inputs, node.inputs, strict=True)
        own_contexts = zip(node.block.contexts, node.contexts, strict=True)
        outputs = zip((v for v in node.block.graph.outputs if v is not None), node.outputs, strict=True)
        return replace(
            node,
            inputs=tuple(given.get(inner, outer) for inner, outer in own_inputs),
            contexts=tuple(
                given.get(c.value, outer) if isinstance(c.value, Value) else outer for c, outer in own_contexts
            ),
            outputs=tuple(results.get(inner, outer) for inner, outer in outputs),
        )

    def called(self, node: CallNode, module: Tree, args: list[Tree], keywords: dict[str, Tree]) -> Tree:
        if self.stepping is None:
            return super().called(node, module, args, keywords)
        group, name = self.stepping
        if name != "forward":
            return call_tree(PyNode("Attribute", (module, name)), [*args, self.state], keywords)
        merged = self.classes.merged[group]
        if not any(p.default for p in merged.plain.parameters):
            return call_tree(module, [*args, self.state], keywords)
        return call_tree(module, args, {**keywords, cache_name(merged.method): self.state})

    def arguments(self, node: CallNode, group: ClassGroup) -> tuple[list[Tree], dict[str, Tree]]:
        if self.mode == "whole":
            return super().arguments(node, group)
        losses, group.first.losses = group.first.losses, False
        try:
            return super().arguments(node, group)
        finally:
            group.first.losses = losses


def step_outputs(node: CallNode) -> list[Value]:
    """What a block that is called gives back."""
    return [v for v in node.block.graph.outputs if v is not None]


def taken(targets: tuple[Value | Variable, ...], tree: Tree) -> Bind:
    """What a method of the cache gives, which is a tuple."""
    return Bind(targets, tree if len(targets) > 1 else py("{x}[0]", x=tree), nested=False)
