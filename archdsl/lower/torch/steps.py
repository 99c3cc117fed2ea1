"""The `step` of a class: its `forward` for the new places of a sequence, given what was kept of those before them.

It is written from the same graph, node by node.  What does not depend on the sequence, and tables of places, stand
under `if state.first`; keys and values are appended to caches; recurrences begin where they ended.  A `State` holds all
that is kept, in the order in which a step comes to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from archdsl.analyses.decode import Plan, has, is_time
from archdsl.ir import dims
from archdsl.ir.dims import Num, Var
from archdsl.ir.graph import (
    Block,
    CallNode,
    CondNode,
    Graph,
    LoopNode,
    LossNode,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
    node_outputs,
    reads,
)
from archdsl.ir.op import Code
from archdsl.lower.python import local_name
from archdsl.lower.torch.block import BlockWriter
from archdsl.lower.torch.few_rows import LINEAR
from archdsl.lower.torch.locals import Hold
from archdsl.lower.torch.reading import block_tensors
from archdsl.lower.torch.roles import Role, Roles, inner_graphs, nodes_within, refuse
from archdsl.lower.torch.scan import filled, write_scan
from archdsl.lower.torch.scope import NodeScope
from archdsl.lower.torch.text import NAME_TOKEN
from archdsl.lower.torch.written import Group, Kind, Parameter

if TYPE_CHECKING:
    from archdsl.lower.torch.generate import Generate


class StepScope(NodeScope):
    """The TorchScope of a node in a step."""

    writer: StepWriter

    @property
    def in_steps(self) -> bool:
        return True

    @property
    def linear(self) -> str:
        return self.helper(LINEAR)

    @property
    def declared(self) -> OpNode:
        return self.writer.declared.get(self.node, self.node)

    def axis_from(self, i: int, axis: int | None) -> int | None:
        value = self.node.inputs[i]  # in a step it may have one axis more, in front
        return axis - value.rank if axis is not None and isinstance(value, Value) else axis

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[str, str] | None:
        plan = self.writer.plan
        if not has(queries, plan.time) and not has(keys, plan.time):
            return None
        if not (is_time(queries, plan.time) or queries.value == 1) or not is_time(keys, plan.time):
            raise refuse(f"pairs of {queries} queries and {keys} keys have no meaning in a step")
        axes = "".join(", None" for _ in range(middle))
        key = "state.keys"
        if self.node in self.writer.roles.window:
            key = f"state.last({self.writer.window(self.node)})[:{axes}, None]"
        return self.local("query", f"state.positions[:{axes}, :, None]"), self.local("key", key)

    def newest(self, i: int) -> str:
        if self.node.inputs[i] in self.writer.roles.whole:
            return f"{super().at(i)}[state.positions]"
        return f"state.newest({self.arg(i)})"

    def at(self, i: int) -> str:
        if self.node.inputs[i] in self.writer.roles.whole:
            return f"{super().at(i)}[: state.end]"
        return super().at(i)

    def mask(self, i: int) -> tuple[str, str]:
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        return ("tensor", self.arg(i)) if isinstance(value, Value) else ("", "")


class StepWriter(BlockWriter):
    """Writes the step of one block. Its modules are those of `forward`, which are there already."""

    def __init__(self, section: Generate, forward: BlockWriter, kinds: Sequence[Kind], roles: Roles) -> None:
        graph = pruned(roles.block.graph, roles)
        if roles.block is section.plan.model.block:  # what follows the sequence is its first output
            graph = Graph(graph.inputs, graph.nodes, tuple(v for v in graph.outputs if v is not None)[:1])
        super().__init__(section.classes, replace(roles.block, graph=graph), kinds, forward.locals.avoid)
        self.section = section
        self.plan: Plan = section.plan
        self.roles = roles
        group = section.classes.by_block.get(roles.block)
        self.declared: dict[OpNode, OpNode] = {}
        """The nodes of the model of which those written here have other inputs."""
        self.narrows = False
        """Whether the model's step can be asked for one place of each row."""
        self.members = group.members if group is not None else [roles.block]
        self.root = roles.block is section.plan.model.block
        self.modules.made = set(forward.modules.made)
        self.modules.shared_made = set(forward.modules.shared_made)
        self.modules.stateless_made = dict(forward.modules.stateless_made)

    # --- the whole block ---

    def write(self) -> None:
        self._parameters()
        self.body(self.block.graph)
        self._return()
        self.written.forward = self.locals.lines

    def _parameters(self) -> None:
        known = self.locals
        known.keep("state")
        known.keep("at")
        super()._parameters()
        for context, kind in zip(self.block.contexts, self.kinds, strict=True):
            if kind == "causal":
                assert isinstance(context.value, Value)
                self.elided.discard(context.value)
                known.bound[context.value] = "state.mask"
        parameters = [Parameter(p.name, p.type.split(" | ")[0]) for p in self.written.parameters]  # no mask in blocks
        later = []
        if self.root:
            by_name = dict(zip(map(local_name, self.block.tensor_names), self.block.graph.inputs, strict=True))
            moving = {v for v in self.plan.step.inputs if v.dtype != "padding"}
            for value in self.block.graph.inputs:
                if value.dtype == "padding" and value in self.plan.step.inputs and self.roles_of_time(value):
                    known.bound[value] = "state.real"
            late = [p for p in parameters if by_name.get(p.name) not in moving]
            parameters = [p for p in parameters if p not in late]
            later = [
                Parameter(p.name, "Tensor | None", "None")
                for p in late
                if by_name[p.name] not in known.bound or known.bound[by_name[p.name]] != "state.real"
            ]
        first_only = {
            v
            for v in block_tensors(self.block)
            if all(self.roles.role.get(n) is Role.FIRST for n in self.block.graph.nodes if v in reads(n))
        }
        self.late = frozenset(known.bound[v] for v in first_only if v in known.bound)
        self.written.parameters = [*parameters, Parameter("state", "State"), *later]

    def roles_of_time(self, value: Value) -> bool:
        return any(has(d, self.plan.time) for d in value.shape)

    def body(self, graph: Graph) -> None:
        role, known = self.roles.role, self.locals
        if graph.nodes and graph.nodes[0] not in role:  # of a scan
            super().body(graph)
            return
        if self.root and graph is self.block.graph:
            first = next(p.name for p in self.written.parameters)
            known.line(f"state.begin({first})")
            for value in graph.inputs:
                if value in self.plan.caches:
                    name = known.bound[value]
                    known.line(f"{name} = {self.keeping([name], self.plan.caches[value].axis, value.rank)}")
        for node in graph.nodes:
            if role[node] is Role.ALWAYS:
                self._node(node, graph)
        self.first([n for n in graph.nodes if role[n] in (Role.FIRST, Role.TABLE)], graph)
        narrowed, read = self.narrowed(graph) if self.root and graph is self.block.graph else (None, None)
        for node in graph.nodes:
            if role[node] in (Role.STEP, Role.PAIRS):
                self._node(node, graph)
            if read is not None and node is narrowed:
                self.narrow(read)

    def narrowed(self, graph: Graph) -> tuple[Node | None, Value | None]:
        """The last node of the model that looks at other places, and the one tensor [batch, new, …] that is read of it
        and of those before: from there on the places that are not wanted can be left out."""
        nodes = [n for n in graph.nodes if self.roles.role[n] in (Role.STEP, Role.PAIRS)]
        special = [i for i, n in enumerate(nodes) if self.is_special(n)]
        if not special or self.section.tokens is None:
            return None, None
        tail = nodes[special[-1] + 1 :]
        made = {v for n in tail for v in node_outputs(n)}
        outside = {v for n in tail for v in reads(n) if v not in made}
        flats = self.plan.root.values if self.plan.root is not None else {}
        moving = [v for v in outside if flats.get(v) in self.plan.forms]
        fits = len(moving) == 1 and moving[0].rank == 3 and has(moving[0].shape[1], self.plan.time)
        return (nodes[special[-1]], moving[0]) if fits and graph.outputs[0] in made else (None, None)

    def is_special(self, node: Node) -> bool:
        """Whether a node reads or keeps other places than the own."""
        roles = self.roles
        if isinstance(node, CallNode):
            return roles.callees[node].special()
        if isinstance(node, OpNode):
            return any(node in part for part in (roles.kept, roles.readers, roles.latent, roles.carries))
        return isinstance(node, ScanNode) or any(self.is_special(n) for g in inner_graphs(node) for n in g.nodes)

    def narrow(self, value: Value) -> None:
        """Leave out the places that are not wanted."""
        name, known = self.locals.named(value), self.locals
        known.line("if at is not None:  # of each row this place alone is wanted")
        known.lines.append(
            (known.indent + 1, f"{name} = {name}[torch.arange({name}.size(0), device={name}.device), at][:, None]")
        )
        self.narrows = True
        self.written.parameters.append(Parameter("at", "Tensor | None", "None"))

    def first(self, nodes: Sequence[Node], graph: Graph) -> None:
        """What is computed once, and what is kept of it."""
        known, made = self.locals, {v for n in nodes for v in node_outputs(n)}
        given = self.block.graph.inputs if self.root and graph is self.block.graph else ()
        held = [v for v in self.roles.held if v in made or v in given]
        if not nodes and not held:
            return
        taken = set(known.holder)
        around, known.lines = known.lines, []
        known.indent += 1
        for node in nodes:
            self._node(node, graph)
        for value in held:
            known.named(value)
        passing = [v for v in self.passing(made, nodes, graph) if v not in held]
        for value in passing:
            known.named(value)
        known.indent -= 1
        lines, known.lines = known.lines, around
        for value in passing:
            if known.bound[value] not in taken:
                known.line(f"{known.bound[value]} = None")
        names = [known.bound[v] for v in held]
        if lines or names:
            known.line("if state.first:")
            known.lines += [(i, self.for_all(text)) for i, text in lines]
        if names:
            known.lines.append((known.indent + 1, f"state.hold({', '.join(names)})"))
            self.fetch(held, names)

    def fetch(self, held: Sequence[Value], names: Sequence[str]) -> None:
        """The lines that read what is held; of tables, the rows of the new places."""
        known, rows = self.locals, self.roles.rows
        if len(held) == 1:
            known.line(f"{names[0]} = state.held(){self.picked(held[0])}")
        else:
            known.line(f"{', '.join(names)} = state.held()")
            for value, name in zip(held, names, strict=True):
                if value in rows:
                    known.line(f"{name} = {name}{self.picked(value)}")
        for value, name in zip(held, names, strict=True):
            known.hold(value, name)

    def picked(self, value: Value) -> str:
        """The rows of a table at the new places: [batch, …, new, …]."""
        if value not in self.roles.rows:
            return ""
        axis, between = self.roles.rows[value]
        middle = "".join(", None" for _ in range(between))
        places = f"state.positions[:{middle}]" if middle else "state.positions"
        return f"[{':, ' * axis}{places}]"

    def passing(self, made: set[Value], nodes: Sequence[Node], graph: Graph) -> list[Value]:
        """What the first step computes and hands to what keeps of it what it needs."""
        later = [n for n in graph.nodes if n not in set(nodes)]
        read = (v for n in later for v in reads(n))
        return list(dict.fromkeys(v for v in (*read, *graph.outputs) if v is not None and v in made))

    def for_all(self, text: str) -> str:
        """A line with the length of the sequence replaced by that of all places to come."""
        return NAME_TOKEN.sub(lambda m: "state.length" if self.is_length(m[1]) else m[0], text)

    def is_length(self, name: str) -> bool:
        """Whether a name is the length of the sequence."""
        value = self.block.axes.get(name)
        value = self.block.hypers.get(name) if value is None else value
        if isinstance(value, Num):
            return is_time(value, self.plan.time)
        sizes = (d for v in block_tensors(self.block) for d in v.shape)
        return any(isinstance(d.expr, Var) and d.expr.name == name and is_time(d, self.plan.time) for d in sizes)

    # --- nodes ---

    def _node(self, node: Node, graph: Graph) -> None:
        if isinstance(node, CondNode):
            self.body(node.otherwise)
            for outer, inner in zip(node.outputs, node.otherwise.outputs, strict=True):
                assert inner is not None
                self.locals.bound[outer] = self.locals.named(inner)
        elif isinstance(node, ScanNode) and node in self.roles.carries:
            self._scan_on(node, graph)
        elif not isinstance(node, LossNode):
            super()._node(node, graph)

    def scope(self, node: OpNode) -> NodeScope:
        return StepScope(self, node)

    def _op(self, node: OpNode, graph: Graph) -> None:
        if not node.op.needs_tensor(node.options, node.inputs):
            self.locals.bound[node.outputs[0]] = "state.mask"
            return
        if node in self.roles.carries:
            self._recurrence(node, graph)
            return
        if node in self.roles.latent:
            self._absorbed(node, graph)
            return
        super()._op(self._with_kept(node), graph)
        for value in node.outputs:
            if value in self.roles.kept_values:
                name, known = self.locals.named(value), self.locals
                known.line(f"{name} = {self.keeping([name], self.roles.kept_values[value], value.rank)}")

    def _with_kept(self, node: OpNode) -> OpNode:
        """The node with inputs of which all places are read: what is new of them is appended to what was kept."""
        kept = self.roles.kept.get(node, ())
        if not kept:
            return node
        known, inputs = self.locals, list(node.inputs)
        values = [v for i in kept if isinstance(v := node.inputs[i], Value)]
        axis, rank = node.op.keeps(node).get(kept[0], (values[0].rank - 2, ""))[0], values[0].rank
        texts = [known.take(v, 0) for v in values]
        names = []
        for i, value in zip(kept, values, strict=True):
            role = node.op.keeps(node).get(i, (0, "kept"))[1]
            names.append(known.fresh(local_name(value.name or known.hints.get(value) or role)))
            inputs[i] = found = replace(value)
            known.uses[found] = 1
            known.hold(found, names[-1])
        if node in self.roles.window:
            known.line(f"{', '.join(names)} = state.keep_last({', '.join(texts)}, window={self.window(node)})")
        else:
            known.line(f"{', '.join(names)} = {self.keeping(texts, axis, rank)}")
        here = replace(node, inputs=tuple(inputs))
        self.declared[here] = node
        return here

    def window(self, node: OpNode) -> str:
        """How many places a windowed attention sees; the number itself in a class of which others have no window."""
        number = self.roles.window[node]
        names = set(dims.free_names(number.expr))
        if all(names <= window_names(b) for b in self.members):
            return self.numbers.forward(number)
        return f"{int(number):_}" if int(number) > 9999 else str(int(number))

    def keeping(self, texts: Sequence[str], axis: int, rank: int) -> str:
        where = "" if axis == rank - 2 else f", axis={axis}"
        return f"state.keep({', '.join(texts)}{where})"

    def _absorbed(self, node: OpNode, graph: Graph) -> None:
        """Attention to what keys and values are linear maps of, place by place: what they make of the rows of an
        identity matrix are the maps."""
        known, scope = self.locals, StepScope(self, node)
        base, chain = self.roles.latent[node]
        names = [known.named(v) for v in base]
        widths = [self.numbers.forward(v.shape[-1]) for v in base]
        kept = [f"{n}.squeeze(1)" if v.rank == 4 else n for n, v in zip(names, base, strict=True)]
        rows = known.own("rows")
        together = kept[0] if len(kept) == 1 else f"torch.cat(({', '.join(kept)}), dim=-1)"
        known.line(f"{rows} = state.keep({together})")
        known.line("if state.first:  # the maps of keys and values: what is made of the rows of an identity matrix")
        known.indent += 1
        total = " + ".join(widths)
        like = f"dtype={names[0]}.dtype, device={names[0]}.device"
        parts = [known.own(f"{name}_rows" if len(base) > 1 else "identity") for name in names]
        split = "" if len(base) == 1 else f".split(({', '.join(widths)}), dim=-1)"
        known.line(f"{', '.join(parts)} = torch.eye({total}, {like})[None]{split}")
        for value, part in zip(base, parts, strict=True):
            known.bound[value] = f"{part}[:, None]" if value.rank == 4 else part
        for step in chain:
            super()._op(step, graph)
        maps = [v for v in node.inputs[1:3] if isinstance(v, Value)]
        held = [known.named(v) for v in maps]
        known.line(f"state.hold({', '.join(held)})")
        known.indent -= 1
        known.line(f"{', '.join(held)} = state.held()")
        for value, name in zip(base, names, strict=True):
            known.bound[value] = name
        for value in maps:
            known.spend(value)
        code, reads = scope.fill(node.op.torch_absorbed(node, scope, rows, held[0], held[1]))
        self.result(node.outputs[0], code, reads, graph, node)
        known.named(node.outputs[0])
        known.disown()

    def _recurrence(self, node: OpNode, graph: Graph) -> None:
        """An op that begins where it ended."""
        known, scope = self.locals, StepScope(self, node)
        known.note_hints(node)
        past = []
        first = next(i for i, v in enumerate(node.inputs) if isinstance(v, Value))
        like = scope.named_inputs(scope.at(first))
        starts = []
        for state, start in zip(node.op.states(node), node.op.torch_starts(node, scope), strict=True):
            sizes = ", ".join(self.numbers.forward(d) for d in state.shape)
            kind = {"float32": ", dtype=torch.float32"}.get(state.dtype, "")
            past.append(known.own(local_name(state.name)))
            starts.append(scope.named_inputs(start) if start else f"{like}.new_zeros({sizes}{kind})")
        known.line(f"{', '.join(past)} = state.recall({', '.join(f'lambda: {s}' for s in starts)})")
        made, after = node.op.torch_step(node, scope, past)
        several = [made] if isinstance(made, str | Code) else list(made)
        states = [scope.named_inputs(text) for text in after]
        for value, code in zip(node.outputs, several, strict=False):
            text, reads = scope.fill(code if isinstance(code, Code) else Code(code))
            if known.holder.get(text.text) is Hold.OWN:
                known.hold(value, text.text)
            elif known.uses.get(value, 0):
                self.result(value, text, reads, graph, node)
                known.named(value)  # before its states are overwritten
        known.line(f"state.hand_on({', '.join(states)})")
        known.disown()

    def _scan_on(self, node: ScanNode, graph: Graph) -> None:
        """A recurrence written out that begins where it ended."""
        known = self.locals
        sequence = known.named(node.sequences[0])
        starts, names, texts = [], [], []
        for start, state in zip(node.starts, node.body.inputs, strict=False):
            name = local_name(state.name or "h")
            texts.append(filled(self, node, start, state, sequence) if isinstance(start, Num) else known.take(start, 0))
            starts.append(replace(state))
            names.append(known.fresh(name))
            known.uses[starts[-1]] = 1
            known.hold(starts[-1], names[-1])
        known.line(f"{', '.join(names)} = state.recall({', '.join(f'lambda: {t}' for t in texts)})")
        write_scan(self, replace(node, starts=tuple(starts)), graph)
        known.line(f"state.hand_on({', '.join(known.bound[v] for v in node.finals)})")

    # --- calls ---

    def _call(self, node: CallNode, graph: Graph) -> None:
        callee = self.roles.callees.get(node)  # none of a call within a scan
        if callee is not None and self.roles.role[node] is Role.STEP and callee.special():
            self.stepping = self.section.method(self.classes.group(node.block), callee)
        else:
            self.stepping = ""
        super()._call(node, graph)

    def called(self, node: CallNode, module: str, args: Sequence[str]) -> str:
        if not self.stepping:
            return super().called(node, module, args)
        return f"{module}.{self.stepping}({', '.join([*args, 'state'])})"

    def _arguments(self, node: CallNode, group: Group) -> tuple[list[str], frozenset[str]]:
        losses, group.first.losses = group.first.losses, False
        try:
            return super()._arguments(node, group)
        finally:
            group.first.losses = losses


def window_names(block: Block) -> set[str]:
    """Names in the numbers of a block's windows."""
    nodes = (n for n in nodes_within(block.graph) if isinstance(n, OpNode))
    windows = (n.op.window(n) for n in nodes)
    return {name for w in windows if w is not None for name in dims.free_names(w[1].expr)}


def pruned(graph: Graph, roles: Roles) -> Graph:
    """The graph without what no step needs."""
    nodes: list[Node] = []
    between = {n for _, chain in roles.latent.values() for n in chain}
    for node in graph.nodes:
        if isinstance(node, ParamNode | WeightNode) or node in between or roles.role[node] is not Role.NOTHING:
            inner = tuple(pruned(g, roles) for g in inner_graphs(node))
            if isinstance(node, LoopNode) and inner != node.bodies:
                new: Node = replace(node, bodies=inner)
                roles.role[new] = roles.role[node]
                nodes.append(new)
            else:
                nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


__all__ = ["StepWriter"]
