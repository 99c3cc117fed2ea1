"""The `step` of a class: its `forward` for the new positions of a sequence, given what was kept of those before them.

It is lowered from the same graph, node by node.  What does not depend on the sequence stands under `if cache.first`;
keys and values are appended to caches; recurrences begin where they ended.  A `Cache` holds all that is kept, in the
order in which a step comes to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from archdsl.backends.torch.features.decode_schedule import Role, Roles, inner_graphs, nodes_within
from archdsl.backends.torch.features.reading import Reading, refuse
from archdsl.backends.torch.lower import Kind, Lowered, Lowering, Modules, Parameter, cache_name, context_type
from archdsl.backends.torch.program import Bind, Check, Conditional, Do, Step, Suite, absent
from archdsl.backends.torch.scope import TorchNodeScope
from archdsl.backends.torch.tree import NumberLeaf, PyNode, Read, Variable, call_tree, lift, mapped, py
from archdsl.ir import dims, static
from archdsl.ir.dims import Lit, Num, Var
from archdsl.ir.graph import (
    CallNode,
    CheckNode,
    CondNode,
    Graph,
    Handle,
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
from archdsl.ir.walk import block_tensors, every_node
from archdsl.passes.dce import live
from archdsl.passes.forms import ALL, NEW, has, in_front, is_time

if TYPE_CHECKING:
    from archdsl.backends.torch.classes import ClassGroup
    from archdsl.backends.torch.features.generate import Generate


class StepScope(TorchNodeScope):
    """The TorchScope of a node in a step."""

    in_steps = True
    trains = False
    lowering: StepLowering

    @property
    def linear(self) -> str:  # type: ignore[override]
        return "linear" if self.lowering.section.on_cpu else "F.linear"

    def positions(self, length: Num, offset: Num | None = None) -> Tree:
        form, front = self.lowering.form.get(self.node), in_front(length, self.lowering.reading.time)
        if front or form is not None:
            found = self._keys_behind(length, front) if front else self.lowering.of_form(form or ALL)
            return found if offset is None else self.py("{x} + {offset}", x=found, offset=offset)
        middle = self.lowering.roles.at_positions.get(self.node)
        if middle is None:
            return super().positions(length, offset)
        found = py("{s}.positions", s=self.lowering.state)
        if middle:
            found = py(f"{{x}}[:{', None' * middle}]", x=found)
        return self.lowering.positions(found if offset is None else self.py("{x} + {offset}", x=found, offset=offset))

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[Tree, Tree] | None:
        time, state = self.lowering.reading.time, self.lowering.state
        if not has(queries, time) and not has(keys, time):
            return None
        front = in_front(keys, time)
        if not (is_time(queries, time) or queries.value == 1) or not (front or is_time(keys, time)):
            raise refuse(f"a decode step has no pairs of {queries} queries and {keys} keys")
        form = self.lowering.form.get(self.node)
        if form is not None:
            new, every = self.lowering.of_form(form), self.lowering.of_form(ALL)
            if front:
                every = self.let("key", self._keys_behind(keys, front))
                return self.let("query", py("{x}[:, None] + {front}", x=new, front=self._front(keys, front))), every
            return self.let("query", py("{x}[:, None]", x=new)), every
        axes = ", None" * middle
        key = py("{s}.keys", s=state)
        if self.node in self.lowering.roles.window:
            last = py("{s}.last({n})", s=state, n=self.lowering.window(self.node))
            key = py(f"{{x}}[:{axes}, None]", x=last)
        if front:
            key, before = self._keys_behind(keys, front), self._front(keys, front)
            query = py(f"{{s}}.positions[:{axes}, :, None] + {{before}}", s=state, before=before)
            return self.let("query", query), self.let("key", key)
        return self.let("query", py(f"{{s}}.positions[:{axes}, :, None]", s=state)), self.let("key", key)

    def _front(self, length: Num, front: int) -> Num:
        """How many places stand in front of the sequence, as they are spelled in a length of `n + time`."""
        expr, local = length.expr, self.lowering.block.local
        while names := {n: local[n] for n in dims.free_names(expr) if n in local}:
            expr = dims.substitute(expr, names)
        none = {n: Lit("0") for n in dims.free_names(expr) if self.lowering.is_length(n)}
        return Num(front, dims.substitute(expr, none))

    def _keys_behind(self, length: Num, front: int) -> Tree:
        """The places of all positions so far behind a fixed prefix, and of those in it."""
        count = self._front(length, front)
        return py("torch.arange({n} + {s}.end, device={s}.positions.device)", n=count, s=self.lowering.state)

    def varies_by_row(self, i: int) -> bool:
        return (self.lowering.declared.get(self.node, self.node), i) in self.lowering.roles.varying

    def newest(self, i: int) -> Tree:
        state, value = self.lowering.state, self.node.inputs[i]
        if isinstance(value, Value) and not self.lowering.of_time(value):  # of an encoder's sequence
            return super().input(i)
        if not self._at_all_positions(i):
            return super().input(i)
        if (self.lowering.declared.get(self.node, self.node), i) in self.lowering.roles.at_keys:
            return py("{x}[{s}.positions]", x=self.input(i), s=state)
        return py("{s}.newest({x})", s=state, x=super().input(i))

    def input(self, i: int) -> Tree:
        roles = self.lowering.roles
        key = self.lowering.declared.get(self.node, self.node), i
        if key in roles.at_keys:
            return self.lowering.read(self.lowering.in_form(self.node.inputs[i], ALL))
        more = roles.varying.get(key, 0)
        if more:
            return py(f"{{x}}[:{', None' * more}]", x=super().input(i))
        return self.newest(i) if self._is_own_padding(i) else super().input(i)

    def _at_all_positions(self, i: int) -> bool:
        """Return whether input `i` holds the positions of earlier steps beside the new ones."""
        value, roles = self.node.inputs[i], self.lowering.roles
        key = self.lowering.declared.get(self.node, self.node), i
        padding = isinstance(value, Value) and value.dtype == "padding"
        kept = value in roles.kept_values and value not in roles.both
        return padding or kept or key in roles.everywhere or key in roles.at_keys

    def _is_own_padding(self, i: int) -> bool:
        """Whether an input says of all positions so far which are real, and the node reads that of the new ones
        alone."""
        value = self.node.inputs[i]
        real = isinstance(value, Value) and value.dtype == "padding"
        return real and self.lowering.declared.get(self.node, self.node) not in self.lowering.roles.readers

    @property
    def for_few_rows(self) -> bool:  # type: ignore[override]
        return self.lowering.section.on_cpu

    @property
    def divided(self) -> bool:
        return self.lowering.declared.get(self.node, self.node) in self.lowering.classes.divided

    def causal(self, mask: Tree) -> Tree | None:
        found = py("{s}.first", s=self.lowering.state)
        if mask == self.lowering.mask:
            return found
        contexts = zip(self.lowering.block.contexts, self.lowering.kinds, strict=True)
        either = any(kind == "either" and Read(c.value) == mask for c, kind in contexts)
        return py("{mask} is None and {causal}", mask=mask, causal=found) if either else None

    def mask(self, i: int) -> tuple[str, Tree | None]:
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        return ("tensor", self.input(i)) if isinstance(value, Value) else ("", None)


class StepLowering(Lowering):
    """Lowers the step of one block. Its modules are those of `forward`, which are there already."""

    trains = False

    def __init__(self, section: Generate, forward: Lowered, kinds: Sequence[Kind], roles: Roles, name: str) -> None:
        graph = roles.block.graph
        if roles.block is section.reading.model.block:
            results = [v for v in graph.outputs if v is not None]
            graph = Graph(graph.inputs, graph.nodes, tuple(results[i] for i in section.reading.results))
        super().__init__(section.classes, replace(roles.block, graph=graph), kinds)
        self.lowered.method.name, self.lowered.method.block = name, roles.block
        if roles.block is section.reading.model.block and len(graph.outputs) < len(results):
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
        self.unmasked = absent(forward.method.steps)
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
        self.twins: dict[Any, Tree] = {}
        """What is one value in `forward`, and has another form here."""
        self.narrows = False
        """Whether the model's step can be asked for one place of each row."""
        self.root = roles.block is section.reading.model.block
        self.modules = Modules(self)
        self.modules.names = {*forward.modules.names}
        self.modules.instances = {*forward.modules.instances}
        self.modules.without_weights = dict(forward.modules.without_weights)
        self.lowered.modules = self.modules
        self.optional: list[Parameter] = []
        """Inputs that only the first step takes."""
        self.stepping: tuple[ClassGroup, str] | None = None
        """The class and the method of the block that is called."""
        self.once = False
        """Within what the first step alone computes."""

    # --- the whole block ---

    def run(self) -> Lowered:
        self.parameters()
        self.graph(self.block.graph)
        method = self.lowered.method
        method.steps = tuple(self.steps)
        method.results = tuple(self.read(o) for o in self.block.graph.outputs if o is not None)
        method.parameters += self.optional
        return self.lowered

    def parameters(self) -> None:
        block, method = self.block, self.lowered.method
        found: list[tuple[Value | None, Parameter]] = []
        for name, value in zip(block.tensor_names, block.graph.inputs, strict=True):
            method.hints[value] = name
            found.append((value, Parameter(value, "Tensor")))
        masks: list[tuple[Value | None, Parameter]] = []
        for context, kind in zip(block.contexts, self.kinds, strict=True):
            if isinstance(context.value, Handle):
                handle = Variable(context.name)
                self.modules.handles[context.value.instance] = handle
                found.append((None, Parameter(handle, "nn.Module")))
            elif kind == "causal":
                self.aliases[context.value] = self.mask
            else:
                method.hints[context.value] = context.name
                shown = context_type(context, False).partition(" | ")[0]  # no mask in blocks
                (masks if kind == "either" else found).append((context.value, Parameter(context.value, shown)))
        if self.grouped:
            found.append((None, Parameter(self.ends, "Tensor")))
        found += masks
        if self.root:
            moving = {*self.reading.taken}
            for value in block.graph.inputs:
                if value.dtype == "padding" and value in self.reading.moving and self.of_time(value):
                    self.aliases[value] = py("{s}.real", s=self.state)
            late = [(v, p) for v, p in found if v is not None and v not in moving]
            found = [(v, p) for v, p in found if v is None or v in moving]
            self.optional = [Parameter(p.target, "Tensor | None", "None") for v, p in late if v not in self.aliases]
        method.parameters = [p for _, p in found] + [Parameter(self.states, "Cache")]

    @property
    def mask(self) -> Tree:
        return py("{s}.mask", s=self.state)

    def any_tensor(self) -> Tree:
        """A parameter that every step is given; an encoder's input is there in the first alone."""
        return Read(self.lowered.method.parameters[0].target) if self.root else super().any_tensor()

    def always_given(self) -> Sequence[Value]:
        """Inputs that are there in every step: what the first alone reads is None in the others."""
        role, inputs = self.roles.role, self.block.graph.inputs
        later = [n for n in nodes_within(self.block.graph) if role.get(n) not in (None, Role.FIRST, Role.NOTHING)]
        read = {*self.reading.taken} if self.root else {v for n in later for v in reads(n)} - {*self.roles.held}
        return [v for v in inputs if v in read]

    def of_time(self, value: Value) -> bool:
        return any(has(d, self.reading.time) for d in value.shape)

    def graph(self, graph: Graph) -> None:
        role = self.roles.role
        if self.once or (graph.nodes and graph.nodes[0] not in role):  # of a scan
            super().graph(graph)
            return
        top = self.root and graph is self.block.graph
        if top:
            first = self.lowered.method.parameters[0].target
            self.put(Do(py("{s}.begin({x})", s=self.state, x=Read(first))))
            for value in graph.inputs:
                if value in self.reading.caches:
                    kept = self.keeping([Read(value)], self.reading.caches[value], value.rank)
                    self.put(taken((value,), kept))
        early = [n for n in graph.nodes if role[n] is Role.FIRST]
        always = [n for n in graph.nodes if role[n] is Role.ALWAYS]
        read_early = {v for n in early for v in reads(n)}
        before = live(always, read_early, inputs_of=reads, outputs_of=node_outputs)
        for node in before:
            self.node(node, graph)
        self.first(early, graph)
        narrowed, read = self.narrowed(graph) if top else (None, None)
        for node in graph.nodes:
            if node in self.roles.forms:
                self.in_forms(node, graph)
            apart = role[node] is Role.PAIRS and node in self.roles.forms
            if role[node] in (Role.STEP, Role.PAIRS, Role.ALWAYS) and not apart and node not in before:
                self.node(node, graph)
            if read is not None and node is narrowed:
                self.narrow(read)

    def narrowed(self, graph: Graph) -> tuple[IrNode | None, Value | None]:
        """The last node of the model that looks at other positions, and the one tensor [batch, new, …] that is read of
        it and of those before: from there on the positions that are not wanted can be left out."""
        nodes = [n for n in graph.nodes if self.roles.role[n] in (Role.STEP, Role.PAIRS)]
        special = [i for i, n in enumerate(nodes) if self.is_special(n)]
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
            return roles.callees[node].special()
        if isinstance(node, OpNode):
            return any(node in part for part in (roles.kept, roles.readers, roles.latent, roles.carries))
        return isinstance(node, ScanNode) or any(self.is_special(n) for g in inner_graphs(node) for n in g.nodes)

    def narrow(self, value: Value) -> None:
        """Leave out the positions that are not wanted: of each row one alone may be."""
        at = Variable("at")
        x = self.read(value)
        narrowed = Variable(value.name or self.lowered.method.hints.get(value, "h"))
        some = py("{x}[torch.arange({x}.size(0), device={x}.device), {at}][:, None]", x=x, at=Read(at))
        test = py("{at} is not None", at=Read(at))
        note = "the logits of this position of each row alone are wanted"
        self.put(Conditional(test, Suite((), (), (some,)), Suite((), (), (x,)), (narrowed,), note))
        self.aliases[value] = Read(narrowed)
        self.narrows = True
        self.optional.append(Parameter(at, "Tensor | None", "None"))

    def first(self, nodes: Sequence[IrNode], graph: Graph) -> None:
        """What is computed once, and what is kept of it."""
        made = {v for n in nodes for v in node_outputs(n)}
        given = self.block.graph.inputs if self.root and graph is self.block.graph else ()
        held = [v for v in self.roles.held if v in made or v in given]
        if not nodes and not held:
            return
        around, known = self.steps, dict(self.locals)
        self.steps, self.once = [], True
        for node in nodes:
            self.node(node, graph)
        self.once = False
        if held:
            for value in held:
                self.named(value)
            self.put(Do(py("{s}.store({*xs})", s=self.state, xs=[self.read(v) for v in held])))
        passing = [v for v in self.passing(made, nodes, graph) if v not in held and v not in self.aliases]
        inner = tuple(self.for_all(s) for s in self.steps)
        self.steps, self.locals = around, known
        if all(isinstance(n, CheckNode) for n in nodes) and not held:  # which may be asked again
            self.steps += inner
            return
        values = [*held, *passing]
        self.put(self.at_first(inner, [self.read(v) for v in values], values, len(held)))

    def at_first(
        self, steps: Sequence[Step], made: Sequence[Tree], values: Sequence[Value], held: int, note: str = ""
    ) -> Step:
        """What the first step computes. Of what it makes the first `held` are read in all others, which have the rest
        as None."""
        names = [v.name or self.lowered.method.hints.get(v, "h") for v in values]
        results, again = (tuple(map(Variable, names)) for _ in range(2))
        later = [taken(again[:held], py("{s}.stored()", s=self.state))] if held else []
        ends = [*map(Read, again[:held]), *(lift(None) for _ in again[held:])]
        self.aliases |= dict(zip(values, map(Read, results), strict=True))
        test, then = py("{s}.first", s=self.state), Suite((), tuple(steps), tuple(made))
        return Conditional(test, then, Suite((), tuple(later), tuple(ends)), results, note)

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
            value = self.block.axes.get(name) or self.block.hypers.get(name)
            return NumberLeaf(Var(name), value.value if isinstance(value, Num) else self.numbers.worth(Var(name)))

        def leaf(x: Any) -> Any:
            if isinstance(x, NumberLeaf) and any(map(self.is_length, dims.free_names(x.expr))):
                return self.numbers.spelled_by(x.expr, "real" if x.real else "sizes", name)
            return x

        made: Step = mapped(step, leaf)
        return made

    def is_length(self, name: str) -> bool:
        """Whether a name is the length of the sequence."""
        value = self.block.axes.get(name)
        value = self.block.hypers.get(name) if value is None else value
        if isinstance(value, Num):
            return is_time(value, self.reading.time)
        sizes = (d for v in block_tensors(self.block) for d in v.shape)
        return any(isinstance(d.expr, Var) and d.expr.name == name and is_time(d, self.reading.time) for d in sizes)

    # --- nodes ---

    def node(self, node: IrNode, graph: Graph) -> None:
        if isinstance(node, CondNode):
            self.graph(node.otherwise)
            for outer, inner in zip(node.outputs, node.otherwise.outputs, strict=True):
                assert inner is not None
                self.put(Bind((outer,), self.read(inner)))
        elif isinstance(node, ScanNode) and node in self.roles.carries:
            self.scan_on(node, graph)
        elif not isinstance(node, LossNode):
            super().node(node, graph)

    def check(self, node: CheckNode) -> None:
        """Ask for a least length of all positions so far."""
        if self.roles.role.get(node) is Role.ALWAYS:
            self.put(Check(py("{n} <= {s}.end", n=self.numbers.short(node.left), s=self.state), node.message))
        else:
            super().check(node)

    def scope(self, node: OpNode) -> TorchNodeScope:
        return StepScope(self, node)

    def op(self, node: OpNode, graph: Graph) -> None:
        if not node.op.needs_tensor(node.options, node.inputs):
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
        self.twins[value] = Read(found)
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
        self.twins[found.value] = keys
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

    def named(self, value: Value) -> Tree:
        """A value that has a local of its own."""
        for i, step in enumerate(self.steps):
            if isinstance(step, Bind) and step.targets == (value,):
                self.steps[i] = replace(step, nested=False)
        return self.read(value)

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
        starts: list[Value] = []
        trees: list[Tree] = []
        for start, state in zip(node.starts, node.body.inputs, strict=False):
            tree = self.filled(node, start, state) if isinstance(start, Num) else self.read(start)
            trees.append(py("lambda: {x}", x=tree))
            starts.append(replace(state))
        self.put(taken(tuple(starts), py("{s}.state({*starts})", s=self.state, starts=trees)))
        self.scan(replace(node, starts=tuple(starts)), graph)
        self.put(Do(py("{s}.set_state({*xs})", s=self.state, xs=[self.read(v) for v in node.finals])))

    # --- calls ---

    def call(self, node: CallNode, graph: Graph) -> None:
        callee = self.roles.callees.get(node)  # none of a call within a scan
        if callee is not None and self.roles.role[node] in (Role.STEP, Role.PAIRS) and callee.special():
            group = self.classes.group(node.block)
            self.stepping = group, self.section.method(group, callee)
        else:
            self.stepping = None
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
