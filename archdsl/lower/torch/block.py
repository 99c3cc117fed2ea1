"""One block's text: its modules, and its `forward` in the order of its graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from archdsl.ir import dims
from archdsl.ir.dims import Expr, Num
from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    CondNode,
    Graph,
    Handle,
    LoopNode,
    LossNode,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
)
from archdsl.ir.op import COMPARE, PLUS, TIMES, Code
from archdsl.lower.init_torch import first_value, init_statements
from archdsl.lower.python import local_name
from archdsl.lower.torch import checkpoint
from archdsl.lower.torch.conditions import write_condition
from archdsl.lower.torch.locals import LONG, Locals, Pending
from archdsl.lower.torch.loops import LoopWriter
from archdsl.lower.torch.modules import Modules
from archdsl.lower.torch.numbers import Numbers
from archdsl.lower.torch.reading import direct_reads, is_dead
from archdsl.lower.torch.scan import write_scan
from archdsl.lower.torch.scope import NodeScope
from archdsl.lower.torch.shards import SCORES, SHARDS, SUM_GRADIENTS
from archdsl.lower.torch.text import quoted
from archdsl.lower.torch.written import Group, Kind, Parameter, Resolver, Written, context_kind, context_type, is_mask

if TYPE_CHECKING:
    from archdsl.lower.torch.classes import Classes


def write_block(classes: Classes, block: Block, kinds: Sequence[Kind] | None) -> BlockWriter:
    """The block as written. `kinds` says which of its contexts are masks that need no tensor; None while blocks are
    being grouped."""
    avoid: frozenset[str] = frozenset()
    while True:
        writer = BlockWriter(classes, block, kinds, avoid)
        writer.write()
        # A local would hide a helper of the same name: once more, without that local.
        clash = writer.written.helpers.keys() & writer.local_names()
        if not clash:
            return writer
        avoid |= clash


class BlockWriter:
    """Writes one block, or the part of one that a scan computes once."""

    def __init__(self, classes: Classes, block: Block, kinds: Sequence[Kind] | None, avoid: frozenset[str]) -> None:
        self.classes = classes
        self.block = block
        self.kinds = kinds if kinds is not None else ["either" if is_mask(c) else "tensor" for c in block.contexts]
        self.written = Written()
        self.numbers = Numbers(block, self.written.names)
        self.locals = Locals(block, avoid)
        self.modules = Modules(classes, block, self.numbers, self.written)
        self.grouped = block.copies is not None
        """Whether every weight has a leading axis of experts."""
        self.elided: set[Value] = set()
        """Masks that need no tensor."""
        self.any_tensor = ""
        """A parameter that is a tensor: it knows the device."""
        self.shards: dict[str, None] | None = None
        """Sizes of which a device has a part where several share the block, as `__init__` writes them."""
        self.late: frozenset[str] = frozenset()
        """Parameters that may be None: their sizes are read where they are needed."""
        self.preparing: BlockWriter | None = None
        """Who wrote the part that a scan computes once."""

    # --- the whole block ---

    def write(self) -> None:
        written = self.written
        if self.block.before is not None:
            self._write_before(self.block.before)
        self._parameters()
        self._asserts()
        self.body(self.block.graph)
        self._return()
        for instance in self.block.instances:
            self.modules.instance(instance)
        statements = init_statements(self.classes.model, self.block, self.numbers.init)
        written.init += [self.modules.template(t) for t in statements]
        if self.shards is not None:
            written.init.append(self.modules.template(f"self.shards = Shards({', '.join(self.shards)})"))
        if written.losses:
            written.parameters.append(Parameter("losses", "dict[str, Tensor] | None", "None"))
        written.forward = self.locals.lines

    def local_names(self) -> set[str]:
        return self.locals.used | (self.preparing.local_names() if self.preparing is not None else set())

    def _write_before(self, block: Block) -> None:
        """The part of the block that a scan computes once: its modules come first, its text is a method of its own."""
        first = BlockWriter(self.classes, block, [context_kind(c) for c in block.contexts], self.locals.avoid)
        first.modules.made = self.modules.made
        first.modules.stateless_made = self.modules.stateless_made
        first.write()
        w, before = self.written, first.written
        self.preparing, w.before = first, before
        w.init += before.init
        w.sites += before.sites
        w.laws += before.laws
        w.helpers.update(before.helpers)
        w.early |= before.early
        w.names.update(before.names)

    def _parameters(self) -> None:
        """Tensors, then what the block needs of the model around; masks that may be left out come last."""
        block, parameters, optional = self.block, self.written.parameters, []
        for name, value in zip(block.tensor_names, block.graph.inputs, strict=True):
            text = self.locals.reserve(local_name(name))
            self.locals.hold(value, text)
            parameters.append(Parameter(text, "Tensor"))
            self.any_tensor = self.any_tensor or text
        for i, (context, kind) in enumerate(zip(block.contexts, self.kinds, strict=True)):
            if isinstance(context.value, Handle):
                text = self.locals.reserve(local_name(context.name))
                self.modules.handles[context.value.instance] = text
                parameters.append(Parameter(text, "nn.Module"))
            elif kind == "causal":
                self.elided.add(context.value)
            else:
                text = self.locals.reserve(local_name(context.name))
                self.locals.hold(context.value, text)
                kind_of_value = context_type(context)
                if kind == "either":
                    self.written.optional[i] = text
                    optional.append(Parameter(text, f"{kind_of_value} | None", "None"))
                else:
                    parameters.append(Parameter(text, kind_of_value))
        if self.grouped:
            parameters.append(Parameter(self.locals.reserve("groups"), "Groups"))
        parameters += optional

    def _asserts(self) -> None:
        for condition in self.block.asserts:
            left, _, right, _ = condition
            if not any("." in n for n in (*dims.free_names(left), *dims.free_names(right))):
                self._assert(*condition)

    def _assert(self, left: Expr, op: str, right: Expr, message: str) -> None:
        def text(r: Resolver) -> str:
            a = self.numbers.init_expr(left, r, COMPARE + 1)
            b = self.numbers.init_expr(right, r, COMPARE + 1)
            # A condition on numbers alone holds, or there would be no code.
            return f'assert {a} {op} {b}, "{quoted(message)}"' if re.search(r"[A-Za-z]", a + b) else ""

        self.modules.line(text)

    def _return(self) -> None:
        texts = [self.locals.take(o, 0) for o in self.block.graph.outputs if o is not None]
        if len(texts) > 1:
            self.written.returns = f"tuple[{', '.join(['Tensor'] * len(texts))}]"
        self.locals.line(f"return {', '.join(texts)}")

    def note_shards(self, size: Num | None = None) -> None:
        """The block asks about the devices that share its heads."""
        if self.shards is None:
            self.shards = {}
            self.modules.helper(SUM_GRADIENTS)
            self.modules.helper(SHARDS)
        if size is not None:
            self.shards[self.numbers.init(size)] = None

    # --- nodes ---

    def body(self, graph: Graph) -> None:
        """The lines of a graph: the block's own, or one within a loop, scan or condition."""
        nodes = graph.nodes
        if graph is self.block.graph:
            # Conditions speak of the inputs' sizes alone: they stand first.
            nodes = tuple(sorted(nodes, key=lambda n: not isinstance(n, CheckNode)))
        for node in nodes:
            if not is_dead(node, self.locals.uses):
                self._node(node, graph)

    def _node(self, node: Node, graph: Graph) -> None:
        match node:
            case OpNode():
                self._op(node, graph)
            case CallNode():
                self._call(node, graph)
            case LoopNode():
                LoopWriter(self, node).write()
            case ScanNode():
                write_scan(self, node, graph)
            case CondNode():
                write_condition(self, node)
            case ParamNode():
                self._param(node)
            case WeightNode():
                self.locals.bound[node.output] = f"{self.modules.instance(node.instance)}.{node.weight}"
            case CheckNode():
                self._check(node)
            case LossNode():
                self._loss(node)
            case CausalNode():
                pass  # proved by the analysis

    def scope(self, node: OpNode) -> NodeScope:
        """What an op writes itself through."""
        return NodeScope(self, node)

    def _op(self, node: OpNode, graph: Graph) -> None:
        if not node.op.needs_tensor(node.options, node.inputs):
            self.elided.add(node.outputs[0])
            return
        self.locals.note_hints(node)
        scope = self.scope(node)
        grouped = None
        if self.grouped and (node.weights or node.blocks):
            grouped = node.op.torch_grouped(node, scope, "groups")
            self.modules.need_groups()
        made = grouped if grouped is not None else node.op.torch(node, scope)
        if self.classes.sharding is not None and node in self.classes.sharding.scores:
            made = f"{scope.helper(SCORES)}({scope.arg(0)}, {scope.arg(1)})"
        several = [made] if isinstance(made, str | Code) else made
        codes = [c if isinstance(c, Code) else Code(c) for c in several]
        if node.instance is None and node.weights:
            self.written.laws.append((node.name, node))
        if len(codes) == 1 and len(node.outputs) > 1:
            self.locals.unpack(node.outputs, scope.fill(codes[0])[0].text)
            return
        for value, code in zip(node.outputs, codes, strict=False):
            if len(codes) == 1 or self.locals.uses.get(value, 0) != 0:
                self.result(value, *scope.fill(code), graph, node)

    def result(self, value: Value, code: Code, reads: frozenset[str], graph: Graph, node: Node) -> None:
        """Bind the result, or keep it to be nested into the one expression that reads it."""
        uses = self.locals.uses.get(value, 0)
        if uses == 0:
            self.locals.line(f"_ = {code.text}")
            return
        self._shape_note(value, node)
        is_output = any(o is value for o in graph.outputs) and graph is self.block.graph
        nest = uses == 1 and (is_output or not (value.user_named and value.name))
        if nest and len(code.text) < LONG:
            self.locals.pending[value] = Pending(code, reads)
        else:
            self.locals.bind(value, code)

    def _shape_note(self, value: Value, node: Node) -> None:
        """The shape is worth a comment where the number or order of axes changes."""
        first = next(iter(direct_reads(node)), None)
        if not value.name or first is None:
            return
        if first.rank == value.rank and not (isinstance(node, OpNode) and node.op.moves_axes):
            return
        try:
            shown = [dims.expr_text(dims.shortest(d.expr, {})) for d in value.shape]
        except (KeyError, TypeError):
            return
        if not any("." in s for s in shown):
            self.locals.notes[value] = f"  # [{', '.join(shown)}]"

    # --- calls ---

    def _call(self, node: CallNode, graph: Graph) -> None:
        if node.handle is not None:
            module, group = self.modules.handles[node.handle.instance], self.classes.group(node.block)
        elif node.instance is not None:
            module, group = self.modules.instance(node.instance), self.classes.group(node.block)
        else:
            site = self.modules.site(node.step or node.block, node.bind, node.alias)
            module, group = self.modules.add(node.name, lambda r: r.construct(site)), site.group
        args, reads = self._arguments(node, group)
        text = self.called(node, module, args)
        if len(node.outputs) == 1:
            self.result(node.outputs[0], Code(text), reads, graph, node)
        else:
            self.locals.unpack(node.outputs, text)

    def called(self, node: CallNode, module: str, args: Sequence[str]) -> str:
        """The text of a call."""
        if node in self.classes.checkpointed:
            return checkpoint.call(module, args)
        return f"{module}{'.prepare' if node.step is not None else ''}({', '.join(args)})"

    def _arguments(self, node: CallNode, group: Group) -> tuple[list[str], frozenset[str]]:
        """What a block is called with, in the order of its parameters, and the locals that this reads."""
        args: list[str] = []
        reads: frozenset[str] = frozenset()
        for tensor in node.inputs:
            if tensor is not None:
                reads |= self.locals.reads_of(tensor)
                args.append(self.locals.take(tensor, 0))
        optional: dict[str, str] = {}
        skipped = ""
        for i, value in enumerate(node.contexts):
            if isinstance(value, Handle):
                args.append(self.modules.handed(value))
                continue
            kind = self._kind_of(node, group, i)
            if kind == "causal":
                continue
            assert value is not None
            if kind == "either" and value in self.elided:
                self.locals.spend(value)
                skipped = skipped or group.latest.optional[i]
                continue
            text = self.locals.take(value, 0)
            reads |= {text}
            if kind == "either":
                name = group.latest.optional[i]
                optional[name] = f"{name}={text}" if skipped else text
            else:
                args.append(text)
        if self.grouped:
            args.append("groups")
        args += optional.values()
        if group.first.losses:
            self.written.losses = True
            args.append("losses=losses" if skipped else "losses")
        return args, reads

    def _kind_of(self, node: CallNode, group: Group, i: int) -> Kind:
        """Of a context of the block that is called."""
        context = node.block.contexts[i]
        if node.step is not None:
            return context_kind(context)
        if self.classes.kinds_known:
            return group.kind(i)
        return "either" if is_mask(context) else "tensor"

    # --- the others ---

    def _param(self, node: ParamNode) -> None:
        if all(d.static for d in node.weight.shape):
            self.locals.bound[node.output] = self.modules.raw(node)
            return
        # A constant whose size only the running model knows is made where it is used.
        device = f"{self.any_tensor}.device"
        made = first_value(node.weight, self.numbers.forward, self.written.helpers, device=device)
        self.locals.bind(node.output, Code(made))

    def _check(self, node: CheckNode) -> None:
        if node.op == "%":
            left, right = self.numbers.forward(node.left, TIMES), self.numbers.forward(node.right, TIMES + 1)
            condition = f"{left} % {right} == 0"
        else:
            left, right = self.numbers.forward(node.left, COMPARE + 1), self.numbers.forward(node.right, COMPARE + 1)
            condition = f"{left} {node.op} {right}"
        self.locals.line(f'assert {condition}, "{quoted(node.message)}"')

    def _loss(self, node: LossNode) -> None:
        self.written.losses = True
        text = self.locals.take(node.value, PLUS + 1)
        self.locals.line(f'losses["{node.name}"] = losses.get("{node.name}", 0) + {text}')
