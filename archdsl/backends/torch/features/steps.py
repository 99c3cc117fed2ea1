"""What a class does in a step: its `forward` for the new positions of a sequence, given what was kept of those before
them.

Each node is asked what it does without a cache and what with one; where the two differ, both stand in `forward`, under
`if cache is None`.  What does not depend on the sequence stands under `if cache.first`; keys and values are appended to
caches; recurrences begin where they ended.  A `Cache` holds all that is kept, in the order in which a step comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from archdsl.backends.torch.features.decode_schedule import Role, Roles, inner_graphs, nodes_within
from archdsl.backends.torch.features.fork import Weaver, aligned, of_step, once, renamed, resolved, training
from archdsl.backends.torch.features.reading import Reading, refuse
from archdsl.backends.torch.features.step_scope import StepScope
from archdsl.backends.torch.lower import (
    LOSSES,
    Kind,
    Lowered,
    Lowering,
    Method,
    Modules,
    Parameter,
    cache_name,
)
from archdsl.backends.torch.program import (
    Bind,
    Check,
    Conditional,
    Do,
    Fork,
    Step,
    Suite,
    Target,
    absent,
    all_read,
    every,
)
from archdsl.backends.torch.scope import TorchNodeScope
from archdsl.backends.torch.tree import NumberLeaf, PyNode, Read, Variable, call_tree, leaves, lift, mapped, py
from archdsl.ir import dims, static
from archdsl.ir.dims import Expr, Lit, Num, Var
from archdsl.ir.graph import (
    Block,
    CallNode,
    CheckNode,
    CondNode,
    Graph,
    LoopNode,
    LossNode,
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
from archdsl.passes.forms import ALL, NEW, has, in_front, is_time
from archdsl.passes.step_writes import sizes_called

if TYPE_CHECKING:
    from archdsl.backends.torch.classes import ClassGroup
    from archdsl.backends.torch.features.generate import Generate
    from archdsl.backends.torch.lower import Ending


Mode = Literal["whole", "step", "both"]
"""What a node is lowered for: `forward` without a cache, a step, or one method that is both."""


@dataclass
class View:
    """What values and expressions are in one of the two programs: see `Lowering`."""

    aliases: dict[Value, Tree] = field(default_factory=dict)
    elided: set[Value] = field(default_factory=set)
    locals: dict[Tree, Tree] = field(default_factory=dict)
    counted: dict[Tree, Num] = field(default_factory=dict)


class StepLowering(Lowering):
    """Lowers one block for steps. Its modules are those of `forward`, which are there already."""

    def __init__(
        self, section: Generate, forward: Lowered, kinds: Sequence[Kind], roles: Roles, name: str, apart: bool
    ) -> None:
        """With `apart` the step is a method of its own; else it is `forward` with a cache."""
        graph = roles.block.graph
        self.root = roles.block is section.reading.model.block
        if self.root:
            results = [v for v in graph.outputs if v is not None]
            graph = Graph(graph.inputs, graph.nodes, tuple(results[i] for i in section.reading.results))
        super().__init__(section.classes, replace(roles.block, graph=graph), kinds)
        self.mode: Mode = "both"
        self.apart = apart
        self.trains = False
        self.other = View()
        """The view of the other program: of that without a cache while a step is lowered, and the other way round."""
        self.lowered.method.name, self.lowered.method.block = name, roles.block
        if self.root and len(graph.outputs) < len(results):
            numbers = ", ".join(str(i + 1) for i in section.reading.results)
            self.lowered.method.doc = (
                f"Give, of what `forward` gives, all that has a step: {numbers} of {len(results)}."
            )
        idle = {v for n in nodes_within(graph) if roles.role[n] is Role.NOTHING for v in node_outputs(n)}
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
        self.reading: Reading = section.reading
        self.roles = roles
        self.states = Variable("cache", state=True)
        self.state = Read(self.states)
        self.declared: dict[OpNode, OpNode] = {}
        """The nodes of the model of which those lowered here have other inputs."""
        self.form: dict[IrNode, str] = {}
        """Of nodes that pairs of positions are computed from: for which positions they are lowered here."""
        self.all_of: dict[Value, Value] = {}
        """All positions of what is read at its new ones, too."""
        self.formed: dict[tuple[Value, str], Value] = {}
        """What these make, in each form."""
        self.source: dict[Target, Target] = {}
        """Which value of `forward` it is that has another form, or a local of its own, in a step."""
        self.paired: set[Target] = set()
        """Locals of a step that are locals of `forward`, too."""
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
        self.once = False
        """Within what the first step alone computes."""

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
            results = tuple(self.read(o) for o in self.block.graph.outputs if o is not None)
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
        )

    def begin(self) -> None:
        """Begin a step of the model."""
        first = next(v for v in self.block.graph.inputs if v not in self.late)
        steps: list[Step] = [Do(py("{s}.begin({x})", s=self.state, x=Read(first)))]
        if self.reading.front:
            count = self.numbers.short(Num(self.reading.front, self.of_front(self.block)))
            steps.append(Do(py("{s}.lead({n})", s=self.state, n=count)))
        for value in self.block.graph.inputs:
            if value in self.reading.caches:
                kept = self.keeping([Read(value)], self.reading.caches[value], value.rank)
                steps.append(taken((value,), kept))
        self.put(Fork((), tuple(steps)))
        if self.ending is not None:
            self.steps += self.ending.before

    def of_front(self, block: Block) -> Expr:
        """How many places in front of the sequence go through the layers, as a block spells it, or a block that it
        calls."""
        time, local = self.reading.time, block.local
        for node in nodes_within(block.graph):
            for size in (d for v in node_outputs(node) for d in v.shape):
                if self.reading.counts(size):
                    expr = size.expr
                    while names := {n: local[n] for n in dims.free_names(expr) if n in local}:
                        expr = dims.substitute(expr, names)
                    tokens = [n for n in dims.free_names(expr) if any(is_time(d, time) for d in sizes_called(n, block))]
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
        self.real = [v for v in inputs if v.dtype == "padding" and v in self.reading.moving and self.of_time(v)]
        self.aliases |= {v: py("{s}.real", s=self.state) for v in self.real}
        self.late = [v for v in inputs if v not in self.reading.taken]
        if self.apart:
            given = [p for p in method.parameters if p.target not in self.late]
            method.parameters = [p._replace(type=p.type.partition(" | ")[0], default="") for p in given]
            self.optional = [Parameter(v, "Tensor | None", "None") for v in self.late if v not in self.real]

    # --- without a cache, and with one ---

    @contextmanager
    def lowered_for(self, mode: Mode) -> Iterator[None]:
        """Lower for one of the two programs."""
        around, self.mode = self.mode, mode
        turned = (mode == "whole") != (around == "whole")
        if turned:
            self.turn()
        yield
        if turned:
            self.turn()
        self.mode = around

    def turn(self) -> None:
        """Exchange the views of the two programs."""
        own = self.other
        self.other = View(**{name: getattr(self, name) for name in vars(own)})
        for name, known in vars(own).items():
            setattr(self, name, known)
        self.trains = not self.trains

    def captured(self, mode: Mode, does: Callable[[], None]) -> list[Step]:
        """The statements that something puts for one of the two programs."""
        start = len(self.steps)
        with self.lowered_for(mode):
            does()
        found = self.steps[start:]
        del self.steps[start:]
        return found

    def captured_both(self, plain: Callable[[], None], step: Callable[[], None]) -> tuple[list[Step], list[Step]]:
        """The statements without a cache, and those with one; both make the same modules."""
        recording, known = self.modules.recording, dict(self.aliases)
        recorded = len(recording or ())
        theirs = self.captured("step", step)
        for value, tree in self.aliases.items():
            if isinstance(tree, Read) and known.get(value) != tree:
                self.source.setdefault(tree.value, value)
        if recording is not None:
            del recording[recorded:]
        return self.captured("whole", plain), theirs

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

    def woven(self, plain: Sequence[Step], step: Sequence[Step]) -> list[Step]:
        """Both programs as one."""
        weaver = Weaver(self.state, Read(self.losses), self.source)
        known = [x.value for x in self.locals.values() if isinstance(x, Read) and isinstance(x.value, Variable)]
        found = aligned(weaver, plain, step, [v for v in known if v not in self.paired])
        self.paired |= {*weaver.renamed.values()}
        for name in ("aliases", "locals", "counted") if weaver.renamed else ():
            mine = getattr(self.other, name)
            setattr(self.other, name, {renamed(k, weaver.renamed): renamed(x, weaver.renamed) for k, x in mine.items()})
        return found

    def is_asked(self, s: Step) -> bool:
        """Whether a statement does nothing unless something is given that may be left out."""
        return isinstance(s, Conditional) and any(x == Read(self.losses) for x in leaves(s.test))

    def agree(self, values: Iterable[Value | None]) -> None:
        """Have tensors in one local, without a cache and with one."""
        for value in (v for v in values if v is not None):
            plain, step = self.other.aliases.get(value, Read(value)), self.read(value)
            if plain != step and not (isinstance(step, Read) and Read(self.source.get(step.value)) == plain):
                found = Variable(value.name or self.lowered.method.hints.get(value, "h"))
                one, other = (Bind((found,), tree, nested=False) for tree in (plain, step))
                self.put(Fork((one,), (other,)))
                step = Read(found)
            self.aliases[value] = self.other.aliases[value] = step

    def within(self, graph: Graph, inputs: Sequence[Any], outputs: Sequence[Value]) -> Suite:
        known = dict(self.other.locals)
        found = super().within(graph, inputs, outputs)
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
        role, inputs = self.roles.role, self.block.graph.inputs
        if self.mode == "whole":
            return inputs
        later = [n for n in nodes_within(self.block.graph) if role.get(n) not in (None, Role.FIRST, Role.NOTHING)]
        read = {*self.reading.taken} if self.root else {v for n in later for v in reads(n)} - {*self.roles.held}
        return [v for v in inputs if v in read]

    def of_time(self, value: Value) -> bool:
        return any(has(d, self.reading.time) for d in value.shape)

    def graph(self, graph: Graph) -> None:
        role = self.roles.role
        if self.mode == "whole" or self.once or (graph.nodes and graph.nodes[0] not in role):  # of a scan
            super().graph(graph)
            return
        top = self.root and graph is self.block.graph
        nodes = self.in_order(graph)
        early = [n for n in nodes if role[n] is Role.FIRST and not self.asks_again(n)]
        always = [n for n in nodes if role[n] is Role.ALWAYS]
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
        self.agree(graph.outputs)

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
        if isinstance(node, LoopNode | CondNode) and self.roles.role[node] is not Role.NOTHING:
            super().node(node, graph)
        elif isinstance(node, OpNode) and node in self.roles.leading:
            self.lead(node, graph)
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
        """What a step does at a node."""
        role = self.roles.role[node]
        if node in self.roles.forms:
            self.in_forms(node, graph)
        apart = role is Role.PAIRS and node in self.roles.forms
        if role is Role.FIRST:  # a condition on what does not depend on the sequence
            self.steps += map(self.for_all, self.captured("step", lambda: self.node(node, graph)))
        elif role is not Role.NOTHING and not apart:
            self.node(node, graph)

    def narrowed(self, graph: Graph) -> tuple[IrNode | None, Value | None]:
        """The last node of the model that looks at other positions, and the one tensor [batch, new, …] that is read of
        it and of those before: from there on the positions that are not wanted can be left out."""
        nodes = [n for n in graph.nodes if self.roles.role[n] in (Role.STEP, Role.PAIRS)]
        special = [i for i, n in enumerate(nodes) if self.is_special(n) or self.is_led(n)]
        if not special or self.section.tokens is None or len(graph.outputs) > 1:
            return None, None
        tail = nodes[special[-1] + 1 :]
        made = {v for n in tail for v in node_outputs(n)}
        outside = {v for n in tail for v in reads(n) if v not in made}
        flats = self.reading.root.values
        moving = [v for v in outside if flats.get(v) in self.reading.moving]
        fits = len(moving) == 1 and moving[0].rank == 3 and has(moving[0].shape[1], self.reading.time)
        fits = fits and not any(self.of_time(v) for v in outside if v not in moving)  # tables of positions
        fits = fits and not any(n in self.roles.at_positions or n in self.roles.forms for n in tail)
        inner = [n for n in every_node(replace(graph, nodes=tuple(tail))) if isinstance(n, OpNode)]
        spelled = static.numbers_of([(n.options, n.inputs) for n in inner])
        fits = fits and not any(has(d, self.reading.time) for d in spelled)  # as `unflatten` spells its sizes
        return (nodes[special[-1]], moving[0]) if fits and graph.outputs[0] in made else (None, None)

    def is_special(self, node: IrNode) -> bool:
        """Whether a node reads or keeps other positions than the own."""
        roles = self.roles
        if isinstance(node, CallNode):
            return bool(self.section.method(self.classes.group(node.block), roles.callees[node]))
        if isinstance(node, OpNode):
            return any(node in part for part in (roles.kept, roles.readers, roles.latent, roles.carries))
        return isinstance(node, ScanNode) or any(self.is_special(n) for g in inner_graphs(node) for n in g.nodes)

    def is_led(self, node: IrNode) -> bool:
        """Whether a node reads or makes places in front of the sequence."""
        sizes = (d for v in (*reads(node), *node_outputs(node)) for d in v.shape)
        return self.reading.led and any(in_front(d, self.reading.time) for d in sizes)

    def narrow(self, value: Value) -> None:
        """Leave out the positions that are not wanted: of each row one alone may be."""
        self.at = at = Variable("at")
        self.agree([value])
        x = self.read(value)
        narrowed = Variable(value.name or self.lowered.method.hints.get(value, "h"))
        some = py("{x}[torch.arange({x}.size(0), device={x}.device), {at}][:, None]", x=x, at=Read(at))
        test = py("{at} is not None", at=Read(at))
        note = "the logits of this position of each row alone are wanted"
        self.put(Conditional(test, Suite((), (), (some,)), Suite((), (), (x,)), (narrowed,), note))
        self.aliases[value] = self.other.aliases[value] = Read(narrowed)
        self.optional.append(Parameter(at, "Tensor | None", "None"))

    def first(self, nodes: Sequence[IrNode], graph: Graph) -> None:
        """What is computed once, and what is kept of it."""
        made = {v for n in nodes for v in node_outputs(n)}
        given = self.block.graph.inputs if self.root and graph is self.block.graph else ()
        held = [v for v in self.roles.held if v in made or v in given]
        if not nodes and not held:
            return
        known = dict(self.locals), dict(self.other.locals)
        compute = partial(self.compute, nodes, graph)
        plain, step = self.captured_both(compute, compute)
        passing = [v for v in self.passing(made, nodes, graph) if v not in held and v not in self.aliases]
        values, start = [*held, *passing], len(self.steps)
        self.steps += self.woven(plain, [self.for_all(s) for s in step])
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
            self.node(node, graph)
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

    def for_all(self, step: Step, length: str = "{s}.capacity") -> Step:
        """A statement with the length of the sequence replaced by that of all positions to come."""

        def name(name: str) -> Tree:
            if self.is_length(name):
                return py(length, s=self.state)
            if self.is_of_tokens(name):
                return py(f"({length} - {{s}}.front)", s=self.state)
            value = self.block.axes.get(name) or self.block.hypers.get(name)
            return NumberLeaf(Var(name), value.value if isinstance(value, Num) else self.numbers.worth(Var(name)))

        def leaf(x: Any) -> Any:
            names = dims.free_names(x.expr) if isinstance(x, NumberLeaf) else ()
            if isinstance(x, NumberLeaf) and any(self.is_length(n) or self.is_of_tokens(n) for n in names):
                return self.numbers.spelled_by(x.expr, "real" if x.real else "sizes", name)
            return x

        made: Step = mapped(step, leaf)
        return made

    def is_length(self, name: str) -> bool:
        """Whether a name is the length of the sequence, with what stands in front of it."""
        return any(map(self.reading.counts, sizes_called(name, self.block)))

    def is_of_tokens(self, name: str) -> bool:
        """Whether a name is the length of the sequence alone, where something stands in front of it."""
        return self.reading.front > 0 and any(is_time(d, self.reading.time) for d in sizes_called(name, self.block))

    # --- nodes ---

    def node(self, node: IrNode, graph: Graph) -> None:
        if isinstance(node, ScanNode) and node in self.roles.carries:
            self.scan_on(node, graph)
        elif self.mode == "whole":
            super().node(node, graph)
        elif isinstance(node, CondNode):
            self.graph(node.otherwise)
            for outer, inner in zip(node.outputs, node.otherwise.outputs, strict=True):
                assert inner is not None
                self.put(Bind((outer,), self.read(inner)))
        elif not isinstance(node, LossNode):
            super().node(node, graph)

    def check(self, node: CheckNode) -> None:
        """Ask for a least length of all positions so far."""
        if self.mode != "whole" and self.roles.role.get(node) is Role.ALWAYS:
            end = "{s}.end" if self.reading.counts(node.right) else "{s}.end - {s}.front"
            self.put(Check(py(f"{{n}} <= {end}", n=self.numbers.short(node.left), s=self.state), node.message))
        else:
            super().check(node)

    def scope(self, node: OpNode) -> TorchNodeScope:
        return TorchNodeScope(self, node) if self.mode == "whole" else StepScope(self, node)

    def op(self, node: OpNode, graph: Graph) -> None:
        if self.mode == "whole":
            super().op(node, graph)
            if node.outputs[0] in self.unmasked:
                self.put(Bind((node.outputs[0],), lift(None), nested=False))
        elif not node.op.needs_tensor(node.options, node.inputs):
            if node.outputs[0] in self.unmasked:
                self.put(Bind((node.outputs[0],), self.mask, nested=False))
            else:
                self.aliases[node.outputs[0]] = self.mask
        elif node in self.roles.carries:
            self.recurrence(node, graph)
        elif node in self.roles.latent:
            self.absorbed(node, graph)
        else:
            around, self.steps = self.steps, []
            super().op(self.with_kept(node), graph)
            longer = node in self.roles.lengthened
            self.steps = [*around, *(self.for_all(s, "{s}.end") if longer else s for s in self.steps)]
            for value in node.outputs:
                if value in self.roles.kept_values:
                    kept = Variable(value.name or self.lowered.method.hints.get(value, "h"))
                    tree = self.keeping([self.read(value)], self.roles.kept_values[value], value.rank)
                    self.put(taken((kept,), tree))
                    if value in self.roles.both:
                        self.all_of[value] = replace(value)
                    self.aliases[self.all_of.get(value, value)] = Read(kept)
                    self.source[kept] = value

    def in_forms(self, node: IrNode, graph: Graph) -> None:
        """What pairs of positions are made of, in each form that is read: at all positions, or at the new ones of all
        rows, one after another."""
        assert isinstance(node, OpNode | ParamNode)
        forms, outputs = self.roles.forms[node], node_outputs(node)
        alone = self.roles.role[node] is Role.PAIRS
        for form, wanted in forms.items():
            made = outputs if alone and form == next(iter(forms)) else tuple(map(self.twin, outputs))
            here: IrNode = replace(node, output=made[0]) if isinstance(node, ParamNode) else node
            if isinstance(node, OpNode):
                inputs = tuple(self.in_form(v, wanted[i]) if i in wanted else v for i, v in enumerate(node.inputs))
                here = replace(node, inputs=inputs, outputs=made)
            self.form[here] = form
            around, self.steps = self.steps, []
            super().node(here, graph)
            self.steps = [*around, *(self.for_all(s, "{s}.end") if form == ALL else s for s in self.steps)]
            self.formed |= {(v, form): m for v, m in zip(outputs, made, strict=True)}
        for value in outputs:
            if alone and value in self.roles.rows:
                self.by_row(value)

    def twin(self, value: Value) -> Value:
        """The value in another form, under its name."""
        found = replace(value)
        self.lowered.method.hints[found] = value.name or self.lowered.method.hints.get(value, "h")
        self.source[found] = value
        return found

    def in_form(self, value: Any, form: str) -> Any:
        """A value in the form that is read; rows of all positions, if it is there for these alone."""
        own = self.roles.own_form.get(value)
        if own == form or (value, form) in self.formed:
            return self.formed.get((value, form), value)
        if own != ALL and (value, ALL) not in self.formed:
            name = value.name or "a tensor"
            raise refuse(f"`{name}`, made of pairs of positions, is both handed on and changed", value.span)
        axis = next(a for a, d in enumerate(value.shape) if has(d, self.reading.time))
        every, found = self.read(self.formed.get((value, ALL), value)), self.twin(value)
        self.aliases[found] = py(f"{{x}}[{':, ' * axis}{{at}}]", x=every, at=self.of_form(form))
        return found

    def of_form(self, form: str) -> Tree:
        """The positions for which something is computed: all, or the new ones of all rows, one after another."""
        new, every = (py(text, s=self.state) for text in ("{s}.positions.flatten()", "{s}.keys"))
        nodes = (n for n in self.roles.forms if isinstance(n, OpNode) and (n.op.at_positions(n) or n.op.makes_mask))
        asked = {f for n in nodes for f in self.roles.forms[n]}
        if len(asked) == 1 or form not in asked:
            return self.positions(new if form == NEW else every)
        found, keys = self.positions(new), self.shared("keys", every)
        assert isinstance(found, Read)
        assert isinstance(keys, Read)
        self.source[keys.value] = found.value
        return found if form == NEW else keys

    def by_row(self, value: Value) -> None:
        """Cut the axis of new positions into that of batch, in front, and theirs."""
        axis, between = self.roles.rows[value]
        if axis == 0 and (value, NEW) not in self.formed:  # it is there for all positions alone
            tree = py("{x}[{s}.positions]", x=self.read(self.formed[value, ALL]), s=self.state)
        else:
            new = self.read(self.in_form(value, NEW))
            tree = py("{s}.by_row({x}, {*axis})", s=self.state, x=new, axis=[axis] * bool(axis))
        for (other, form), made in self.formed.items():
            if other is made is value:  # whose name is that of its rows from here on
                self.formed[value, form] = self.twin(value)
                self.aliases[self.formed[value, form]] = self.read(value)
        if between:  # or it has axes of size 1 in front that no reader has more
            tree = py(f"{{x}}[:{', None' * between or ', 0' * -between}]", x=tree)
        found = Variable(value.name or self.lowered.method.hints.get(value, "h"))
        self.put(Bind((found,), tree, nested=False))
        self.aliases[value] = Read(found)

    def with_kept(self, node: OpNode) -> OpNode:
        """The node with inputs of which all positions are read: what is new of them is appended to what was kept."""
        kept = self.roles.kept.get(node, ())
        inputs = list(node.inputs)
        for i, value in enumerate(inputs):
            if isinstance(value, Value) and value in self.all_of and (node, i) in self.roles.everywhere:
                inputs[i] = self.all_of[value]
        given = [v for i in kept if isinstance(v := inputs[i], Value)]
        own = dict(zip(given, self.roles.kept_axes.get(node, ()), strict=True))
        axes = [(axis, v.rank) for v, axis in own.items()]
        trees = [self.read(v) for v in own]
        found: dict[Value, Value] = {}
        for i, value in zip(kept, given, strict=True):
            role = node.op.cached_inputs(node).get(i, (0, "kept"))[1]
            inputs[i] = found.setdefault(value, replace(value))
            self.source[inputs[i]] = value
            self.lowered.method.hints.setdefault(found[value], self.lowered.method.hints.get(value) or role)
        if inputs == [*node.inputs]:
            return node
        every = [*found.values()]
        if own and node in self.roles.window:
            window = self.window(node)
            tree = py("{s}.update_window({*xs}, window={n})", s=self.state, xs=trees, n=window)
            if node in self.section.partly:
                tree = py("{tree} if {n} else {s}.update({*xs})", tree=tree, n=window, s=self.state, xs=trees)
            self.put(taken(tuple(every), tree))
        else:
            for axis, rank in dict.fromkeys(axes):
                alike = [i for i, one in enumerate(axes) if one == (axis, rank)]
                tree = self.keeping([trees[i] for i in alike], axis, rank)
                self.put(taken(tuple(every[i] for i in alike), tree))
        here = replace(node, inputs=tuple(inputs))
        self.declared[here] = node
        return here

    def window(self, node: OpNode) -> Tree:
        """How many positions a windowed attention sees."""
        return self.numbers.short(self.roles.window[node])

    def keeping(self, trees: Sequence[Tree], axis: int, rank: int) -> Tree:
        where = {} if axis == rank - 2 else {"axis": axis}
        return py("{s}.update({*xs}, {**where})", s=self.state, xs=trees, where=where)

    def absorbed(self, node: OpNode, graph: Graph) -> None:
        """Attention to what keys and values are projections of, position by position: what they make of the rows of an
        identity matrix are the maps."""
        scope = StepScope(self, node)
        base, chain = self.roles.latent[node]
        hints = self.lowered.method.hints
        names = [v.name or hints.get(v, "h") for v in base]
        given = [self.named(v) for v in base]
        widths = [self.numbers.short(v.shape[-1]) for v in base]
        flat = [py("{x}.squeeze(1)", x=x) if v.rank == 4 else x for x, v in zip(given, base, strict=True)]
        rows = Variable("rows")
        together = flat[0] if len(flat) == 1 else py("torch.cat(({*xs},), dim=-1)", xs=flat)
        self.put(taken((rows,), py("{s}.update({x})", s=self.state, x=together)))
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
            self.aliases[value] = py("{x}[:, None]", x=Read(part)) if value.rank == 4 else Read(part)
        for step in chain:
            super().op(step, graph)
        maps = [v for v in node.inputs[1:3] if isinstance(v, Value)]
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
            if isinstance(tree, Read) and isinstance(tree.value, Variable) and not output.name:
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
        self.agree(node.starts)
        gone = self.other.elided & self.unmasked
        self.other.elided -= gone
        super().loop(node)
        self.other.elided |= gone

    # --- calls ---

    def call(self, node: CallNode, graph: Graph) -> None:
        callee = self.roles.callees.get(node)  # none of a call within a scan
        if self.mode == "whole" or callee is None or self.roles.role[node] not in (Role.STEP, Role.PAIRS):
            self.stepping = None
        else:
            group = self.classes.group(node.block)
            name = self.section.method(group, callee)
            self.stepping = (group, name) if name else None
        super().call(node, graph)

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
        callee = self.roles.callees.get(node)
        given = {} if callee is None else callee.given
        if given:
            inputs = zip(node.block.graph.inputs, node.inputs, strict=True)
            node = replace(node, inputs=tuple(self.in_form(v, given[i]) if i in given else v for i, v in inputs))
        try:
            return super().arguments(node, group)
        finally:
            group.first.losses = losses


def taken(targets: tuple[Value | Variable, ...], tree: Tree) -> Bind:
    """What a method of the cache gives, which is a tuple."""
    return Bind(targets, tree if len(targets) > 1 else py("{x}[0]", x=tree), nested=False)
