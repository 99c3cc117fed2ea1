"""IR -> PyTorch source: one file that reads as if it had been typed by hand.

Blocks are written twice.  First each in its own names, which groups them: blocks whose text is equal are one class, whatever their
sizes.  Then, callers first, every name of a class finds its meaning: a field of the Config, a number, or an argument; and the text
is written for good.  Structure is resolved here: no flag of the Config is ever asked in a `forward`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from archdsl.ir import dims
from archdsl.ir.dims import Bin, Expr, Fn, Lit, Num, Poly, Var, is_size_like
from archdsl.ir.frame import MODULE_ATTRIBUTES, ModelInput, Once, Use
from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    CondNode,
    Context,
    Graph,
    Handle,
    LoopNode,
    LossNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
    captured,
    node_outputs,
    subgraphs,
)
from archdsl.ir.op import ATOM, Code
from archdsl.ir.static import Instance, Pattern, Plus, Ref, Times
from archdsl.lower.python import WIDTH, class_name, formatted, local_name, singular

IN, NAME, FREE, END = "\x02", "\x04", "\x05", "\x03"
INPUT_TOKEN = re.compile(f"{IN}(-?\\d+):(\\d+){END}")
PART = "\x06"
PART_TOKEN = re.compile(f"{PART}(\\w+){END}")
NAME_TOKEN = re.compile(f"{NAME}([^{END}]*){END}")
FREE_TOKEN = re.compile(f"{FREE}([^{END}]*){END}")
RELEASED = -5
"""In place of a value: the local may be bound again."""
LONG = 96
"""An expression is not nested into another if the line would become longer than this."""

ACCESS = f"{NAME}losses{END}"


# --- resolvers: what a block's own names are called in the final text --------------------------------------------------------


class Resolver:
    """Names in `__init__`, and constructors of the classes of callees. This one leaves names as they are: for comparing texts."""

    def name(self, name: str) -> str:
        return name

    def construct(self, site: Site) -> str:
        shown = ", ".join(f"{n}={dims.expr_text(site.bind[n])}" for n in site.group.free if n in site.bind)
        return f"<{site.group.number}>({shown})"


@dataclass(eq=False)
class Site:
    """A place where a class is instantiated: the caller's group, and the callee's names in the caller's."""

    group: Group
    bind: dict[str, Expr]
    caller: Group | None = None
    alias: str = ""
    block: Block | None = None


Line = Callable[[Resolver], str]


@dataclass(eq=False)
class Written:
    """One block's text. `init` are lines of `__init__`; `forward` are (indent, line) with tokens for names."""

    init: list[Line]
    forward: list[tuple[int, str]]
    parameters: list[tuple[str, str, str]]
    """(name, type, default or '')."""
    returns: str
    sites: list[Site]
    helpers: dict[str, str]
    names: dict[str, None]
    """Names of the block read in `__init__`, in order."""
    settings: dict[str, None]
    """Names read in `forward`."""
    losses: bool
    laws: list[tuple[str, OpNode | ParamNode, bool]] = field(default_factory=list)
    """What has weights: (attribute, node, whether a loop makes a list of it)."""
    before: Written | None = None
    """The part of the block that a scan computes once, as a method `prepare`."""


@dataclass(eq=False)
class Group:
    """Blocks with the same text: one class."""

    number: int
    block: Block
    members: list[Block]
    first: Written
    free: list[str] = field(default_factory=list)
    name: str = ""
    sites: list[Site] = field(default_factory=list)
    resolution: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    text: str = ""
    needs_config: bool = False
    final: Written | None = None

    def kind(self, i: int) -> str:
        """Of the i-th context: `causal` (a mask that needs no tensor), `tensor`, or `either`."""
        kinds = {_context_kind(m.contexts[i]) for m in self.members}
        return kinds.pop() if len(kinds) == 1 else "either"


def _is_causal(once: Once) -> bool:
    if once.op != "mask" or once.options["mask"].rule != "causal" or once.options.get("plain"):
        return False
    queries, keys = once.inputs[0], once.inputs[1]
    return isinstance(queries, Num) and isinstance(keys, Num) and queries.value == keys.value


def _context_kind(context: Context) -> str:
    return "causal" if isinstance(context.recipe, Once) and _is_causal(context.recipe) else "tensor"


# --- writing one block ------------------------------------------------------------------------------------------------------------


class Writer:
    """Writes one block. `kinds` says which of its contexts are masks that need no tensor; None while blocks are being grouped."""

    def __init__(self, emitter: Emitter, block: Block, *, root: bool, kinds: Sequence[str] | None) -> None:
        self.emitter = emitter
        self.block = block
        self.root = root
        self.kinds = list(kinds) if kinds is not None else ["either" if _context_kind(c) == "causal" or _is_mask(c) else "tensor" for c in block.contexts]
        self.written = Written([], [], [], "Tensor", [], {}, {}, {}, False)
        self.grouped = block.copies is not None
        self.indent = 0
        self.bound: dict[int, str] = {}
        self.pending: dict[int, tuple[Code, Value, set[str]]] = {}
        self.holder: dict[str, int] = {}
        self.uses: dict[int, int] = {}
        self.handles: dict[int, str] = {}
        self.attributes: set[str] = set()
        self.stateless: dict[str, str] = {}
        self.made_instances: set[int] = set()
        self.made: set[str] = set()
        self.modules: dict[str, str] = {}
        self.loop_sites: dict[str, list[Callable[[], Line]]] | None = None
        self.recording: list[tuple[str, Line]] | None = None
        self.locals: dict[str, str] = {}
        self.values = _values(block)
        self.elided: set[int] = set()
        self.any_tensor = ""
        self.notes: dict[int, str] = {}
        self.hints: dict[int, str] = {}
        self.preparing: Writer | None = None
        self.names_used: set[str] = set()
        self.avoid: set[str] = set()

    # --- the whole block ---

    def write(self) -> Written:
        written = self._write()
        clash = set(written.helpers) & self.names_used
        if clash:
            # A local would hide a helper of the same name: once more, without that local.
            again = Writer(self.emitter, self.block, root=self.root, kinds=self.kinds)
            again.avoid = self.avoid | clash
            written = again.write()
            self.__dict__.update(again.__dict__)
        return written

    def _write(self) -> Written:
        block, w = self.block, self.written
        if block.before is not None:
            self._write_before(block.before)
        graph = block.graph
        self._count(graph)
        for name, value in zip(block.tensor_names, graph.inputs, strict=True):
            text = self._reserve(local_name(name))
            self._hold(value, text)
            optional = self.root and False
            w.parameters.append((text, "Tensor", "None" if optional else ""))
            self.any_tensor = self.any_tensor or text
        late: list[tuple[str, str, str]] = []
        for context, kind in zip(block.contexts, self.kinds, strict=True):
            if isinstance(context.value, Handle):
                text = self._reserve(local_name(context.name))
                self.handles[id(context.value.instance)] = text
                w.parameters.append((text, "nn.Module", ""))
                continue
            if kind == "causal":
                self.elided.add(id(context.value))
                continue
            text = self._reserve(local_name(context.name))
            self._hold(context.value, text)
            (late if kind == "either" else w.parameters).append((text, "Tensor | None" if kind == "either" else "Tensor", "None" if kind == "either" else ""))
        if self.grouped:
            w.parameters.append((self._reserve("groups"), "Groups", ""))
        w.parameters += late
        self._asserts()
        self._body(graph)
        self._return(graph)
        for instance in block.instances:
            self._make_instance(instance)
        from archdsl.lower.init_torch import init_statements

        w.init += [self.text_line(t) for t in init_statements(self.emitter.model, block, lambda n, s=0: self.init(n, s))]
        if w.losses:
            w.parameters.append(("losses", "dict[str, Tensor] | None", "None"))
        return w

    def _write_before(self, block: Block) -> None:
        """The part of the block that a scan computes once: its modules come first, its text is a method of its own."""
        first = Writer(self.emitter, block, root=False, kinds=[_context_kind(c) for c in block.contexts])
        first.made, first.stateless, first.avoid = self.made, self.stateless, self.avoid
        w, self.preparing = self.written, first
        w.before = first._write()
        w.init += w.before.init
        w.sites += w.before.sites
        w.laws += w.before.laws
        w.helpers.update(w.before.helpers)
        w.names.update(w.before.names)
        self.names_used |= first.names_used

    def _asserts(self) -> None:
        for left, op, right, message in self.block.asserts:
            names = [*dims.free_names(left), *dims.free_names(right)]
            if any("." in n for n in names):
                continue
            self.written.init.append(lambda r, a=left, o=op, b=right, m=message: self._assert_line(r, a, o, b, m))

    def _assert_line(self, r: Resolver, left: Expr, op: str, right: Expr, message: str) -> str:
        a, b = self.init_expr(left, r, 41), self.init_expr(right, r, 41)
        return "" if not re.search(r"[A-Za-z]", a + b) else f'assert {a} {op} {b}, "{_quoted(message)}"'

    def _return(self, graph: Graph) -> None:
        outputs = [o for o in graph.outputs if o is not None]
        texts = [self.take(o, 0) for o in outputs]
        if len(texts) > 1:
            self.written.returns = f"tuple[{', '.join(['Tensor'] * len(texts))}]"
        self.line(f"return {', '.join(texts)}")

    # --- liveness ---

    def _count(self, graph: Graph) -> None:
        """How often each value is read; a value read within an inner graph must have a name, and counts twice."""

        def inside(g: Graph) -> None:
            for node in g.nodes:
                for v in _direct_reads(node) if not isinstance(node, CausalNode) else ():
                    self.uses[id(v)] = self.uses.get(id(v), 0) + 1
                for inner in subgraphs(node):
                    inside(inner)
                    for v in captured(inner):
                        self.uses[id(v)] = self.uses.get(id(v), 0) + 2
            for o in g.outputs:
                if o is not None:
                    self.uses[id(o)] = self.uses.get(id(o), 0) + 1

        inside(graph)

    def _dead(self, node: Node) -> bool:
        """Nothing reads it and it holds no weights."""
        if isinstance(node, OpNode) and (node.weights or node.blocks) and node.instance is None:
            return False
        if isinstance(node, CausalNode):
            return True
        if isinstance(node, OpNode):
            return not any(self.uses.get(id(o), 0) > 0 for o in node.outputs)
        return False

    # --- locals ---

    def line(self, text: str) -> None:
        self.written.forward.append((self.indent, text))

    def _reserve(self, base: str) -> str:
        name, n = base, 1
        while name in self.holder or name in self.avoid:
            n += 1
            name = f"{base}_{n}"
        self.holder[name] = 0
        self.names_used.add(name)
        return name

    def _hold(self, value: Value, name: str) -> None:
        self.names_used.add(name)
        self.bound[id(value)] = name
        self.holder[name] = id(value)

    def fresh(self, base: str) -> str:
        """A local name whose old value, if any, is read no more."""
        name, n = base, 1
        while name in self.avoid or name in self.holder and (self.uses.get(self.holder[name], 0) > 0 or self.holder[name] == 0):
            n += 1
            name = f"{base}_{n}"
        self._flush(name)
        return name

    def _flush(self, name: str) -> None:
        """Expressions not written yet that read a local about to change get a name first."""
        for key, (code, value, reads) in list(self.pending.items()):
            if name in reads and key in self.pending:
                del self.pending[key]
                self.bind(value, code)

    def bind(self, value: Value, code: Code, hint: str = "") -> str:
        name = self.fresh(local_name(value.name or hint or self._hint(value)))
        self._assign(name, code.text, value)
        self._hold(value, name)
        return name

    def _assign(self, name: str, text: str, value: Value) -> None:
        """An assignment, with the shape behind it if that fits on the line."""
        comment = self.notes.get(id(value), "")
        fits = 8 + 4 * self.indent + len(NAME_TOKEN.sub(r"self.\1", f"{name} = {text}{comment}")) <= WIDTH
        self.line(f"{name} = {text}{comment if fits else ''}")

    def _hint(self, value: Value) -> str:
        """A name for a value that the spec has none for."""
        return self.hints.get(id(value)) or ("h" if value.is_float else "found")

    def _note_hints(self, node: OpNode) -> None:
        for value, hint in zip(node.outputs, node.op.hints, strict=False):
            first = node.inputs[0]
            name = (first.name or self.hints.get(id(first), "")) if hint == "=" and isinstance(first, Value) else hint
            if name:
                self.hints[id(value)] = name

    def take(self, value: Value, strength: int) -> str:
        """The text of a value that is read here."""
        self.uses[id(value)] = self.uses.get(id(value), 1) - 1
        if id(value) in self.pending:
            code, _, _ = self.pending.pop(id(value))
            return code.within(strength)
        return self.bound[id(value)]

    def named(self, value: Value) -> str:
        """The local name of a value; binds it if it has none yet."""
        if id(value) in self.pending:
            code, v, _ = self.pending.pop(id(value))
            return self.bind(v, code)
        return self.bound[id(value)]

    def own_type(self) -> str:
        """The type of the model's own numbers."""
        for value in self.block.graph.inputs:
            name = self.bound.get(id(value), "")
            if value.dtype == "float" and self.holder.get(name) == id(value):
                return f"{name}.dtype"
        return "next(self.parameters()).dtype"

    # --- numbers ---

    def number(self, n: Num, strength: int = 0, *, real: bool = False) -> str:
        """A number in `forward`. With `real` it meets tensors, and `time / 3` is no size that must be whole."""
        expr = self._short(n)
        return self._expr(expr, strength, lambda name: f"{NAME}{name}{END}", n.static or real)

    def _short(self, n: Num) -> Expr:
        return dims.shortest(n.expr, self.block.local) if dims.free_names(n.expr) else n.expr

    def init(self, n: Num, strength: int = 0) -> str:
        """Text for `__init__`, with tokens for names."""
        expr = self._short(n)
        for name in dims.free_names(expr):
            self._reads(name)
        return self._expr(expr, strength, lambda name: f"{FREE}{name}{END}", True)

    def _reads(self, name: str) -> None:
        """Note a name that `__init__` reads, and those that a local one is computed from."""
        if name in self.block.local:
            for inner in dims.free_names(self.block.local[name]):
                self._reads(inner)
        self.written.names.setdefault(name)

    def init_expr(self, expr: Expr, r: Resolver, strength: int = 0) -> str:
        expr = dims.shortest(expr, self.block.local)
        for name in dims.free_names(expr):
            self._reads(name)
        return self._expr(expr, strength, r.name, True)

    def _expr(self, expr: Expr, above: int, name: Callable[[str], str], static: bool) -> str:
        """An expression as Python: exact division of whole numbers is `//`."""
        if isinstance(expr, Lit):
            return f"({expr.text})" if expr.text.startswith("-") and above > 80 else expr.text
        if isinstance(expr, Var):
            return name(expr.name)
        if isinstance(expr, Fn):
            args = [self._expr(a, 0, name, static) for a in expr.args]
            if expr.name in ("ceil", "floor") and isinstance(expr.args[0], Bin) and expr.args[0].op == "/":
                top = self._expr(expr.args[0].left, 80, name, static)
                bottom = self._expr(expr.args[0].right, 71, name, static)
                return f"(-(-{top} // {bottom}))" if expr.name == "ceil" else f"({top} // {bottom})"
            known = {"minimum": "min", "maximum": "max", "abs": "abs"}
            if expr.name == "sign":
                return f"math.copysign(1, {args[0]})"
            return f"{known.get(expr.name, f'math.{expr.name}')}({', '.join(args)})"
        own, op = dims.PRECEDENCE[expr.op], expr.op
        if op == "/" and isinstance(self._value(expr), int) and isinstance(self._value(expr.left), int):
            op = "//"
        elif op == "/" and not static:
            op = "//"
        left = self._expr(expr.left, own + (op == "**"), name, static)
        right = self._expr(expr.right, own + (op != "**"), name, static)
        text = f"{left} {op} {right}"
        if op == "*" and isinstance(self._value(expr), int) and not all(isinstance(self._value(x), int) for x in (expr.left, expr.right)):
            return f"round({text})"
        return f"({text})" if own < above else text

    def _value(self, expr: Expr) -> Any:
        try:
            value = dims.expr_value(dims.substitute(expr, self.values))
        except (ArithmeticError, ValueError):
            return None
        return value

    # --- weights ---

    def attribute(self, name: str) -> str:
        return f"self.{name}"

    def add_module(self, name: str, constructor: Line) -> str:
        """A submodule under a step of the path of names; in a loop, the loop's variable for it."""
        if self.recording is not None:
            self.recording.append((name, constructor))
            return self.modules[name]
        if name not in self.made:
            self.made.add(name)
            self.written.init.append(lambda r: f"self.{name} = {constructor(r)}")
        return f"self.{name}"

    def text_line(self, text: str) -> Line:
        """A line of `__init__` with tokens for names."""
        return lambda r: FREE_TOKEN.sub(lambda m: r.name(m[1]), text)

    def _make_instance(self, instance: Instance) -> None:
        """The module of a shared block that lives here."""
        if id(instance) in self.made_instances:
            return
        self.made_instances.add(id(instance))
        if instance.block is not None:
            site = self.site(instance.block, dict(instance.bind), instance.template.alias or instance.label)
            self.written.init.append(lambda r: f"self.{instance.path} = {r.construct(site)}")
            return
        node = instance.node
        names = {**instance.joined, **instance.bind}
        scope = ConstructorScope(self, names)
        node.op.torch(node, scope)
        self.written.helpers.update(scope.helpers)
        self.written.laws.append((instance.path, node, False))
        line = self.text_line(scope.constructor)
        self.written.init.append(lambda r: f"self.{instance.path} = {line(r)}")

    def site(self, block: Block, bind: dict[str, Expr], alias: str = "") -> Site:
        group = self.emitter.group(block)
        site = Site(group, bind, None, alias, block)
        for name in group.free:
            expr = bind.get(name)
            if expr is not None:
                for inner in dims.free_names(dims.shortest(expr, self.block.local)):
                    self._reads(inner)
        self.written.sites.append(site)
        return site

    # --- nodes ---

    def _body(self, graph: Graph) -> None:
        outermost = graph is self.block.graph
        if outermost:
            # Conditions speak of the inputs' sizes alone: they stand first.
            for node in graph.nodes:
                if isinstance(node, CheckNode):
                    self._CheckNode(node, graph)
        for node in graph.nodes:
            if not self._dead(node) and not (outermost and isinstance(node, CheckNode)):
                getattr(self, f"_{type(node).__name__}")(node, graph)

    def _OpNode(self, node: OpNode, graph: Graph) -> None:
        if node.op.name == "mask" and _node_is_causal(node):
            self.elided.add(id(node.outputs[0]))
            return
        self._note_hints(node)
        scope = NodeScope(self, node)
        if self.grouped and (node.weights or node.blocks):
            grouped = node.op.torch_grouped(node, scope, "groups")
            code: Any = grouped if grouped is not None else node.op.torch(node, scope)
            self.need_groups()
        else:
            code = node.op.torch(node, scope)
        codes = [code] if isinstance(code, str | Code) else list(code)
        codes = [c if isinstance(c, Code) else Code(c) for c in codes]
        if node.instance is None:
            self._note_weights(node)
        if len(codes) == 1 and len(node.outputs) > 1:
            self._several(codes[0], node, scope)
            return
        for value, c in zip(node.outputs, codes, strict=False):
            if self.uses.get(id(value), 0) == 0 and len(codes) > 1:
                continue
            filled, reads = scope.fill(c)
            self._result(value, filled, reads, graph, node)

    def _note_weights(self, node: OpNode | ParamNode) -> None:
        if isinstance(node, ParamNode) or node.weights:
            self.written.laws.append((node.name, node, self.recording is not None))

    def _several(self, code: Code, node: OpNode, scope: NodeScope) -> None:
        filled, _ = scope.fill(code)
        names = []
        for value in node.outputs:
            if self.uses.get(id(value), 0) == 0:
                names.append("_")
                continue
            name = self.fresh(local_name(value.name or self._hint(value)))
            while name in names:
                name = self._reserve(name)
            names.append(name)
            self._hold(value, name)
        self.line(f"{', '.join(names)} = {filled.text}")

    def _result(self, value: Value, code: Code, reads: set[str], graph: Graph, node: Node) -> None:
        """Bind the result, or keep it to be nested into the one expression that reads it."""
        uses = self.uses.get(id(value), 0)
        if uses == 0:
            self.line(f"_ = {code.text}" if code.strength == ATOM or True else "")
            return
        self._shape_note(value, node)
        is_output = any(o is value for o in graph.outputs) and graph is self.block.graph
        nest = uses == 1 and (is_output or not (value.user_named and value.name))
        if nest and len(code.text) < LONG:
            self.pending[id(value)] = (code, value, reads)
        else:
            self.bind(value, code)

    def _shape_note(self, value: Value, node: Node) -> None:
        first = next((v for v in _direct_reads(node) if isinstance(v, Value)), None)
        if not value.name or first is None:
            return
        if first.rank == value.rank and not (isinstance(node, OpNode) and node.op.name in ("transpose", "permute")):
            if not (isinstance(node, OpNode) and node.op.name == "split_heads"):
                return
        try:
            shown = [dims.expr_text(dims.shortest(d.expr, {})) for d in value.shape]
        except (KeyError, TypeError):
            return
        if any("." in s for s in shown):
            return
        self.notes[id(value)] = f"  # [{', '.join(shown)}]"

    def _CallNode(self, node: CallNode, graph: Graph) -> None:
        name = node.name
        if node.handle is not None:
            module = self.handles[id(node.handle.instance)]
            group = self.emitter.group(node.block)
        elif node.instance is not None:
            self._make_instance(node.instance)
            module, group = f"self.{node.instance.path}", self.emitter.group(node.block)
        else:
            site = self.site(node.step or node.block, dict(node.bind), node.alias)
            module, group = self.add_module(name, lambda r: r.construct(site)), site.group
        args, reads = self.call_arguments(node, group)
        code = Code(f"{module}.prepare({', '.join(args)})" if node.step is not None else f"{module}({', '.join(args)})")
        if len(node.outputs) == 1:
            self._result(node.outputs[0], code, reads, graph, node)
            return
        names = []
        for value in node.outputs:
            if self.uses.get(id(value), 0) == 0:
                names.append("_")
            else:
                names.append(self.fresh(local_name(value.name or self._hint(value))))
                self._hold(value, names[-1])
        self.line(f"{', '.join(names)} = {code.text}")

    def call_arguments(self, node: CallNode, group: Group, skip_inputs: bool = False) -> tuple[list[str], set[str]]:
        args: list[str] = []
        late: list[str] = []
        reads: set[str] = set()
        for value in () if skip_inputs else node.inputs:
            if value is None:
                continue
            reads |= self._read_names(value)
            args.append(self.take(value, 0))
        for i, value in enumerate(node.contexts):
            if node.step is not None:
                kind = _context_kind(node.block.contexts[i])
            else:
                kind = group.kind(i) if self.kinds_known else ("either" if _is_mask(node.block.contexts[i]) else "tensor")
            if isinstance(value, Handle):
                args.append(self.handle_text(value))
                continue
            if kind == "causal":
                continue
            assert isinstance(value, Value)
            if id(value) in self.elided:
                if kind == "either":
                    self.uses[id(value)] = self.uses.get(id(value), 1) - 1
                    continue
            text = self.take(value, 0)
            reads |= {text}
            (late if kind == "either" else args).append(text)
        if self.grouped:
            args.append("groups")
        args += late
        if group.first.losses:
            self.written.losses = True
            args.append("losses=losses" if late == [] and any(group.kind(i) == "either" for i in range(len(node.contexts))) else "losses")
        return args, reads

    @property
    def kinds_known(self) -> bool:
        return self.emitter.kinds_known

    def handle_text(self, handle: Handle) -> str:
        if id(handle.instance) in self.handles:
            return self.handles[id(handle.instance)]
        self._make_instance(handle.instance)
        return f"self.{handle.instance.path}"

    def _read_names(self, value: Value) -> set[str]:
        if id(value) in self.pending:
            return self.pending[id(value)][2]
        return {self.bound[id(value)]} if id(value) in self.bound else set()

    def _WeightNode(self, node: WeightNode, graph: Graph) -> None:
        self._make_instance(node.instance)
        self.bound[id(node.output)] = f"self.{node.instance.path}.{node.weight}"

    def _ParamNode(self, node: ParamNode, graph: Graph) -> None:
        weight = node.weight
        if any(not d.static for d in weight.shape):
            assert weight.init is not None
            self._run_time_buffer(node)
            return
        from archdsl.lower.init_torch import first_value

        made = first_value(weight, lambda n, s=0: self.init(n, s), self.written.helpers)
        line = self.text_line(made)
        if weight.trained:
            text = self.add_module(node.name, lambda r: f"nn.Parameter({line(r)})")
        elif self.recording is not None:
            text = self.add_module(node.name, lambda r: f"nn.Parameter({line(r)}, requires_grad=False)")
        else:
            self.written.init.append(lambda r: f'self.register_buffer("{node.name}", {line(r)}, persistent=False)')
            text = f"self.{node.name}"
        self.bound[id(node.output)] = text

    def _run_time_buffer(self, node: ParamNode) -> None:
        """A constant whose size only the running model knows is made where it is used."""
        from archdsl.lower.init_torch import first_value

        made = first_value(node.weight, self.number, self.written.helpers, device=f"{self.any_tensor}.device")
        self.bind(node.output, Code(made))

    def _CheckNode(self, node: CheckNode, graph: Graph) -> None:
        left, right = self.number(node.left, 41), self.number(node.right, 41)
        message = _quoted(node.message)
        if node.op == "%":
            self.line(f'assert {self.number(node.left, 70)} % {self.number(node.right, 71)} == 0, "{message}"')
        else:
            self.line(f'assert {left} {node.op} {right}, "{message}"')

    def _LossNode(self, node: LossNode, graph: Graph) -> None:
        self.written.losses = True
        text = self.take(node.value, 61)
        self.line(f'losses["{node.name}"] = losses.get("{node.name}", 0) + {text}')

    # --- conditions ---

    def _CondNode(self, node: CondNode, graph: Graph) -> None:
        for inner in (node.then, node.otherwise):
            for value in captured(inner):
                self._settle(value)
        inside: dict[int, int] = {}
        for inner in (node.then, node.otherwise):
            for key, count in _reads_within(inner).items():
                inside[key] = inside.get(key, 0) + count
        names = []
        for k, value in enumerate(node.outputs):
            base = local_name(value.name or "h")
            held = self.holder.get(base, RELEASED)
            ends = {id(g.outputs[k]) for g in (node.then, node.otherwise)}
            if held in ends and self.uses.get(held, 0) <= inside.get(held, 0):
                # One branch leaves the value as it is and nothing reads the old one later: it is changed in place.
                self._flush(base)
                names.append(base)
            else:
                names.append(self._reserve(base) if base in self.holder else self.fresh(base))
        only_loss = any(isinstance(n, LossNode) for n in node.then.nodes) and not node.outputs
        before = dict(self.holder)
        for inner, opening in ((node.then, "if losses is not None:" if only_loss else "if self.training:"), (node.otherwise, "else:")):
            opened = len(self.written.forward)
            self.line(opening)
            self.indent += 1
            self._body(inner)
            for name, output in zip(names, inner.outputs, strict=True):
                assert output is not None
                text = self.take(output, 0)
                if text != name:
                    self.line(f"{name} = {text}")
            if len(self.written.forward) == opened + 1:
                if opening == "else:":
                    self.written.forward.pop()
                else:
                    self.line("pass")
            self.indent -= 1
            self.holder = dict(before)
        for name, value in zip(names, node.outputs, strict=True):
            self._hold(value, name)

    def _settle(self, value: Value) -> None:
        """A value that an inner graph reads has a name before it."""
        self.uses[id(value)] = self.uses.get(id(value), 2) - 2
        if id(value) in self.pending:
            code, v, _ = self.pending.pop(id(value))
            self.uses[id(value)] += 0
            self.bind(v, code)

    def _protect(self, values: Sequence[Value], by: int) -> None:
        """What a loop reads from around it is read again in the next turn: its local must not be bound anew within."""
        for value in values:
            self.uses[id(value)] = self.uses.get(id(value), 0) + by

    # --- loops ---

    def _LoopNode(self, node: LoopNode, graph: Graph) -> None:
        outside: dict[int, list[Value]] = {b: list(dict.fromkeys(captured(g))) for b, g in enumerate(node.bodies)}
        for values in outside.values():
            for value in values:
                self._settle(value)
        carried = []
        for start, end in zip(node.starts, node.outputs, strict=True):
            carried.append(self._carry(start, local_name(end.name or "x")))
        lists = []
        width = len(node.emitted[0]) if node.emitted else 0
        for j in range(width):
            name = self._reserve(local_name(node.emitted[0][j].name or "collected"))
            self.line(f"{name} = []")
            lists.append(name)
        protected = [v for values in outside.values() for v in values]
        self._protect(protected, 1)
        parts = [self._loop_body(node, b, carried, outside, lists) for b in range(len(node.bodies))]
        self._protect(protected, -1)
        texts = {tuple(p.lines) for p in parts}
        orders = {tuple(n for n, _ in p.modules) for p in parts}
        counts = {n: sum(1 for t in node.turns for m, _ in parts[t].modules if m == n) for p in parts for n, _ in p.modules}
        for name in dict.fromkeys(n for p in parts for n, _ in p.modules):
            self._module_list(name, node, parts)
        once = all(len({m for m, _ in p.modules}) == len(p.modules) for p in parts)
        sliced = any(PART_TOKEN.search(text) for p in parts for _, text in p.lines)
        if len(texts) == 1 and len(orders) == 1 and once and not sliced:
            self._one_loop(node, parts)
        elif len(texts) == 1 and len(orders) == 1 and not parts[0].varying and len(node.turns) > 1:
            self._indexed_loop(node, parts[0])
        else:
            self._runs(node, parts, counts)
        if self.recording is not None:
            self.recording.extend(m for t in node.turns for m in parts[t].modules)
        if width:
            for t, emitted in enumerate(node.emitted):
                for j, value in enumerate(emitted):
                    self.bound[id(value)] = f"{lists[j]}[{t}]"
        for name, end in zip(carried, node.outputs, strict=True):
            self._hold(end, name)

    def _carry(self, start: Value, name: str) -> str:
        """The local that a loop carries: the start's own if nothing else reads it."""
        self.uses[id(start)] = self.uses.get(id(start), 1) - 1
        if id(start) in self.pending:
            code, value, _ = self.pending.pop(id(start))
            chosen = self.fresh(name)
            self._assign(chosen, code.text, value)
            self.holder[chosen] = 0
            self.bound[id(start)] = chosen
            return chosen
        own = self.bound[id(start)]
        if own.isidentifier() and self.uses.get(id(start), 0) <= 0 and own == name:
            self._flush(own)
            self.holder[own] = 0
            return own
        chosen = self.fresh(name)
        self.line(f"{chosen} = {own}")
        self.holder[chosen] = 0
        return chosen

    def _loop_body(self, node: LoopNode, b: int, carried: list[str], outside: dict[int, list[Value]], lists: list[str]) -> BodyText:
        graph = node.bodies[b]
        before = dict(self.holder)
        kept_bound = dict(self.bound)
        lines, self.written.forward = self.written.forward, []
        recording, self.recording = self.recording, []
        outer_modules = dict(self.modules)
        varying: dict[str, Value] = {}
        aligned = len({len(v) for v in outside.values()}) == 1
        for k, value in enumerate(outside[b]):
            others = [outside[o][k] for o in outside] if aligned else [value]
            if len({id(o) for o in others}) > 1 and not any(self.bound.get(id(o), "").startswith("self.") for o in others):
                shown = next((o for o in others if id(o) not in self.elided), value)
                name = self._varying_name(local_name(shown.name or "given"), {id(o) for o in others}, carried, varying)
                if id(value) in self.elided:
                    self.elided.discard(id(value))
                    varying[name] = value
                    self.bound[id(value)] = name
                    self.notes[id(value)] = "None"
                else:
                    varying[name] = value
                    self.bound[id(value)] = name
        for name in _module_names(graph):
            if name not in self.modules:
                variable = singular(name)
                taken = set(self.holder) | set(self.modules.values())
                while variable in taken or variable in varying or variable in carried:
                    variable += "_"
                self.modules[name] = variable
        for value, name in zip(graph.inputs, carried, strict=True):
            self._hold(value, name)
        indent, self.indent = self.indent, 0
        self._body(graph)
        ends = list(graph.outputs[: len(carried)])
        for value, name in zip(graph.outputs[len(carried) :], lists, strict=True):
            # Before the carried names change: what is emitted may be a value from before the turn.
            assert value is not None
            self.line(f"{name}.append({self.take(value, 0)})")
        self._assign_ends(ends, carried)
        self.indent = indent
        body = BodyText(self.written.forward, list(self.recording), dict(self.modules), varying)
        for value in outside[b]:
            if self.notes.get(id(value)) == "None":
                del self.notes[id(value)]
                self.elided.add(id(value))
                body.none.add(id(value))
        self.written.forward = lines
        self.recording = recording
        self.modules = outer_modules if recording is not None else self.modules
        self.bound = {**self.bound, **kept_bound}
        self.holder = before
        return body

    def _varying_name(self, base: str, others: set[int], carried: list[str], varying: Mapping[str, Value]) -> str:
        """The loop's variable for what differs from turn to turn; it may take the name of one of the values it runs over."""
        if base in self.holder and self.holder[base] not in others:
            base = singular(base)
        name, n = base, 1
        while name in carried or name in varying or (name in self.holder and self.holder[name] not in others and self.holder[name] != -1):
            n += 1
            name = f"{base}_{n}"
        return name

    def _assign_ends(self, ends: list[Value | None], carried: list[str]) -> None:
        """Give the carried names their values after the turn, without one overwriting what another still reads."""
        texts: list[str] = []
        for end in ends:
            assert end is not None
            texts.append(self.take(end, 0))
        changed = [(n, t) for n, t in zip(carried, texts, strict=True) if n != t]
        if len(changed) == 1:
            self.line(f"{changed[0][0]} = {changed[0][1]}")
        elif changed:
            self.line(f"{', '.join(n for n, _ in changed)} = {', '.join(t for _, t in changed)}")

    def _source(self, name: str) -> str:
        """The list of a loop's modules: the module's own, or, in a loop within a loop, the part that belongs to the outer turn."""
        return f"self.{name}" if self.recording is None else f"{PART}{name}{END}"

    def _indexed_loop(self, node: LoopNode, part: BodyText) -> None:
        """Equal turns that use several modules of a list each: turn i has its slice."""
        names = [n for n, _ in part.modules]
        each = {n: names.count(n) for n in names}
        words = {w for _, text in part.lines for w in re.findall(r"\w+", text)} | set(self.holder)
        index = next(n for n in ("i", "j", "k", *(f"i_{n}" for n in range(2, 99))) if n not in words)
        seen: dict[str, int] = {}
        nested = {m[1] for _, text in part.lines for m in PART_TOKEN.finditer(text)}
        self.line(f"for {index} in range({self._length(node)}):")
        lines = []
        for indent, text in part.lines:
            def piece(m: re.Match[str]) -> str:
                n = each[m[1]]
                return f"{self._source(m[1])}[{n} * {index} : {n} * ({index} + 1)]"

            text = PART_TOKEN.sub(piece, text)
            for name in each:
                if name not in nested:

                    def place(m: re.Match[str], name: str = name) -> str:
                        k = seen.get(name, 0)
                        seen[name] = k + 1
                        at = index if each[name] == 1 else f"{each[name]} * {index} + {k}" if k else f"{each[name]} * {index}"
                        return f"{self._source(name)}[{at}]{m[1]}"

                    text = re.sub(rf"(?<![\w.\x06]){re.escape(part.variables[name])}\b()", place, text)
            lines.append((indent, text))
        self._indented(lines)

    def _one_loop(self, node: LoopNode, parts: list[BodyText]) -> None:
        first = parts[0]
        variables, sources = [], []
        for name, _ in first.modules:
            variables.append(first.variables[name])
            sources.append(self._source(name))
        for name in first.varying:
            variables.append(name)
            sources.append(self._list_of(node, [self._outer(p, p.varying[name]) for p in parts]))
        if not variables:
            count = self._length(node)
            self.line(f"for _ in range({count}):")
        elif len(variables) == 1:
            self.line(f"for {variables[0]} in {sources[0]}:")
        else:
            self.line(f"for {', '.join(variables)} in zip({', '.join(sources)}):")
        self._indented(first.lines)

    def _outer(self, part: BodyText, value: Value) -> str:
        return "None" if id(value) in part.none else self.bound[id(value)]

    def _indented(self, lines: Sequence[tuple[int, str]]) -> None:
        for indent, text in lines or [(0, "pass")]:
            self.written.forward.append((self.indent + 1 + indent, text))

    def _runs(self, node: LoopNode, parts: list[BodyText], counts: Mapping[str, int]) -> None:
        """Turns of different kinds: one loop for each run of equal ones, or for each turn of a period."""
        turns = list(node.turns)
        runs: list[tuple[int, int]] = []
        for t in turns:
            if runs and runs[-1][0] == t:
                runs[-1] = (t, runs[-1][1] + 1)
            else:
                runs.append((t, 1))
        period = next((p for p in range(2, 13) if len(turns) % p == 0 and all(turns[i] == turns[i % p] for i in range(len(turns)))), 0)
        position: dict[str, int] = {}
        sliced = any(PART_TOKEN.search(t) for p in parts for _, t in p.lines)
        if len(runs) > 3 and period and period < len(turns) and not sliced:
            self._period(node, parts, turns[:period], len(turns) // period)
            return
        for body, count in runs:
            part = parts[body]
            names = [n for n, _ in part.modules]
            each = {n: names.count(n) for n in names}
            slices = []
            for name in dict.fromkeys(names):
                low = position.get(name, 0)
                high = low + each[name] * count
                position[name] = high
                whole = low == 0 and high == counts[name]
                slices.append((name, low, high, whole))
            lines = [(i, self._outer_names(text, part)) for i, text in part.lines]
            if count == 1 or any(v > 1 for v in each.values()) or any(PART_TOKEN.search(t) for _, t in lines):
                for k in range(count):
                    seen: dict[str, int] = {}
                    for i, text in lines:
                        self.written.forward.append((self.indent + i, self._indexed(text, part, slices, each, k, seen)))
                continue
            variables = [part.variables[n] for n, *_ in slices]
            sources = [
                self._source(n) if whole else f"{self._source(n)}[{low or ''}:{'' if high == counts[n] else high}]"
                for n, low, high, whole in slices
            ]
            if not variables:
                self.line(f"for _ in range({count}):")
            elif len(variables) == 1:
                self.line(f"for {variables[0]} in {sources[0]}:")
            else:
                self.line(f"for {', '.join(variables)} in zip({', '.join(sources)}):")
            self._indented(lines)

    def _outer_names(self, text: str, part: BodyText) -> str:
        for name, value in part.varying.items():
            outer = self._outer(part, value)
            if outer != name:
                text = re.sub(rf"\b{re.escape(name)}\b", outer, text)
        return text

    def _indexed(self, text: str, part: BodyText, slices: Any, each: Mapping[str, int], turn: int, seen: dict[str, int]) -> str:
        nested = {m[1] for _, line in part.lines for m in PART_TOKEN.finditer(line)}
        for name, low, _, _ in slices:
            variable = part.variables[name]
            first = low + turn * each[name]
            text = text.replace(f"{PART}{name}{END}", f"{self._source(name)}[{first}:{first + each[name]}]" if self.recording is None else f"\x07{name}\x07[{first}:{first + each[name]}]")

            def place(m: re.Match[str], name: str = name, low: int = low) -> str:
                k = seen.get(name, 0)
                seen[name] = k + 1
                return f"{self._source(name)}[{low + turn * each[name] + k}]{m[1]}"

            if name not in nested:
                text = re.sub(rf"(?<![\w.\x06\x07]){re.escape(variable)}\b()", place, text)
        return re.sub("\x07(\\w+)\x07", lambda m: f"{PART}{m[1]}{END}", text)

    def _period(self, node: LoopNode, parts: list[BodyText], turns: list[int], repeats: int) -> None:
        """`local, local, global` again and again: one loop over the groups."""
        variables, sources, blocks = [], [], []
        per: dict[str, int] = {}
        total = {n: sum(1 for t in turns for m, _ in parts[t].modules if m == n) for t in turns for n, _ in parts[t].modules}
        for k, t in enumerate(turns):
            part = parts[t]
            lines = [(i, self._outer_names(text, part)) for i, text in part.lines]
            for name, _ in part.modules:
                offset = per.get(name, 0)
                per[name] = offset + 1
                variable = f"{part.variables[name]}_{k + 1}" if total[name] > 1 else part.variables[name]
                old = part.variables[name]
                lines = [(i, re.sub(rf"(?<![\w.]){re.escape(old)}(?=\(|\.|,|\))", variable, text, count=1)) for i, text in lines]
                variables.append(variable)
                sources.append(f"{self._source(name)}[{offset or ''}::{total[name]}]")
            blocks.append(lines)
        if not variables:
            self.line(f"for _ in range({repeats}):")
        elif len(variables) == 1:
            self.line(f"for {variables[0]} in {sources[0].removesuffix('[::1]')}:")
        else:
            self.line(f"for {', '.join(variables)} in zip({', '.join(sources)}):")
        for lines in blocks:
            self._indented(lines)

    def _length(self, node: LoopNode) -> str:
        if node.pattern is None:
            return str(len(node.turns))
        return self._forward_expr(_pattern_length(node.pattern))

    def _forward_expr(self, expr: Expr, strength: int = 0) -> str:
        return self._expr(dims.shortest(expr, self.block.local), strength, lambda n: f"{NAME}{n}{END}", True)

    def _list_of(self, node: LoopNode, items: list[str]) -> str:
        """A list with one entry a turn, written as the spec writes its list."""
        if node.pattern is None:
            return f"[{', '.join(items[t] for t in node.turns)}]"
        return self._pattern_text(node.pattern, items)

    def _pattern_text(self, pattern: Pattern, items: list[str], inside: bool = False) -> str:
        if isinstance(pattern, Ref):
            return f"[{items[pattern.index]}]"
        if isinstance(pattern, Times):
            part = self._pattern_text(pattern.part, items, True)
            return f"{self._forward_expr(pattern.count, 71)} * {part}" if part.startswith("[") else f"{self._forward_expr(pattern.count, 71)} * ({part})"
        parts = [self._pattern_text(p, items) for p in pattern.parts]
        if all(re.fullmatch(r"\[[^\[\]]*\]", p) for p in parts):
            return f"[{', '.join(p[1:-1] for p in parts)}]"
        return " + ".join(parts)

    def _module_list(self, name: str, node: LoopNode, parts: list[BodyText]) -> None:
        """The ModuleList of all modules of one name, in the order of turns."""
        makers: list[list[Line]] = [[line for n, line in p.modules if n == name] for p in parts]
        if self.recording is not None:
            # An inner loop: the outer one makes the list.
            return
        if name in self.made:
            return
        self.made.add(name)
        raw = any(isinstance(n, ParamNode) and n.name == name for g in node.bodies for n in g.nodes)
        kind = "nn.ParameterList" if raw else "nn.ModuleList"
        pattern = node.pattern
        if pattern is not None:
            for e in _pattern_counts(pattern):
                for n in dims.free_names(dims.shortest(e, self.block.local)):
                    self._reads(n)
        self.written.init.append(lambda r: f"self.{name} = {kind}({self._list_text(r, node, makers)})")

    def _list_text(self, r: Resolver, node: LoopNode, makers: list[list[Line]]) -> str:
        texts = [[line(r) for line in m] for m in makers]
        if node.pattern is not None and all(len(t) == 1 for t in texts):
            return self._ctor_pattern(node.pattern, [t[0] for t in texts], r, top=True)
        flat = [t for turn in node.turns for t in texts[turn]]
        runs: list[tuple[str, int]] = []
        for t in flat:
            if runs and runs[-1][0] == t:
                runs[-1] = (t, runs[-1][1] + 1)
            else:
                runs.append((t, 1))
        if len(runs) == 1 and runs[0][1] > 1:
            return f"{runs[0][0]} for _ in range({runs[0][1]})"
        return "[" + ", ".join(t if n == 1 else f"*({t} for _ in range({n}))" for t, n in runs) + "]"

    def _ctor_pattern(self, pattern: Pattern, texts: list[str], r: Resolver, top: bool = False) -> str:
        used = {texts[i] for i in _pattern_refs(pattern)}
        if len(used) == 1 and not isinstance(pattern, Ref):
            count = self.init_expr(_pattern_length(pattern), r)
            text = f"{used.pop()} for _ in range({count})"
            return text if top else f"*({text})"
        if isinstance(pattern, Ref):
            return f"[{texts[pattern.index]}]" if top else texts[pattern.index]
        if isinstance(pattern, Times):
            refs = _flat_refs(pattern.part)
            count = self.init_expr(pattern.count, r)
            if refs is not None:
                choices = ", ".join(texts[i] for i in refs)
                text = f"make() for _ in range({count}) for make in ({', '.join(f'lambda: {texts[i]}' for i in refs)})"
                del choices
                inner = ", ".join(texts[i] for i in refs)
                text = f"layer for _ in range({count}) for layer in ({inner})"
                return text if top else f"*({text})"
            inner = self._ctor_pattern(pattern.part, texts, r)
            text = f"layer for _ in range({count}) for layer in ({inner},)"
            return text if top else f"*({text})"
        parts = [self._ctor_pattern(p, texts, r) for p in pattern.parts]
        return f"[{', '.join(parts)}]"

    def _ScanNode(self, node: ScanNode, graph: Graph) -> None:
        for value in captured(node.body):
            self._settle(value)
        sequences = []
        for value in node.sequences:
            self.uses[id(value)] = self.uses.get(id(value), 1) - 1
            sequences.append(self.named(value))
        carried = []
        carries = node.body.inputs[: len(node.starts)]
        for start, value in zip(node.starts, carries, strict=True):
            name = local_name(value.name or "h")
            if isinstance(start, Num):
                chosen = self.fresh(name)
                sizes = ", ".join(self.number(d) for d in value.shape)
                made = "new_zeros" if start.value == 0 else "new_ones" if start.value == 1 else "new_full"
                body = f"({sizes})" if made != "new_full" else f"(({sizes}), {self.number(start)})"
                dtype = ", dtype=torch.float32" if value.dtype == "float32" else ""
                if value.dtype == "float" and node.sequences[0].dtype != "float":
                    dtype = f", dtype={self.own_type()}"
                self.line(f"{chosen} = {sequences[0]}.{made}{body[:-1]}{dtype})")
                self.holder[chosen] = 0
            else:
                chosen = self._carry(start, name)
            carried.append(chosen)
        lists = []
        for value in node.stacked:
            lists.append(self._reserve(self._list_name(value)))
            self.line(f"{lists[-1]} = []")
        variables = []
        before = dict(self.holder)
        for value in node.body.inputs[len(node.starts) :]:
            variables.append(self._reserve(local_name(value.name or "x_t")))
            self._hold(value, variables[-1])
        if len(sequences) == 1:
            self.line(f"for {variables[0]} in {sequences[0]}.unbind(1):")
        else:
            self.line(f"for {', '.join(variables)} in zip({', '.join(f'{s}.unbind(1)' for s in sequences)}):")
        for value, name in zip(carries, carried, strict=True):
            self._hold(value, name)
        self.indent += 1
        protected = list(captured(node.body))
        self._protect(protected, 1)
        self._body(node.body)
        self._protect(protected, -1)
        emits = node.body.outputs[len(carried) :]
        texts = []
        for value in emits:
            assert value is not None
            texts.append(self.take(value, 0))
        ends = node.body.outputs[: len(carried)]
        # What is emitted may read the state before or after the step: it is appended once the state has its new name.
        moved = [self.bound.get(id(e)) if e is not None and id(e) in self.bound else None for e in ends]
        simple = all(m == c for m, c in zip(moved, carried, strict=True))
        if simple:
            self._assign_ends(list(ends), carried)
            for name, text in zip(lists, texts, strict=True):
                self.line(f"{name}.append({text})")
        else:
            for name, text in zip(lists, texts, strict=True):
                self.line(f"{name}.append({text})")
            self._assign_ends(list(ends), carried)
        self.indent -= 1
        self.holder = before
        for value, name in zip(node.stacked, lists, strict=True):
            self.holder[name] = RELEASED
            if self.uses.get(id(value), 0) > 0:
                self._result(value, Code(f"torch.stack({name}, dim=1)"), {name}, graph, node)
        for value, name in zip(node.finals, carried, strict=True):
            self._hold(value, name)

    def _list_name(self, value: Value) -> str:
        return local_name(value.name + "s" if value.name and not value.name.endswith("s") else value.name or "steps")

    def need_groups(self) -> None:
        self.written.helpers.setdefault("Groups", GROUPS)
        self.written.helpers.setdefault("grouped_matmul", GROUPED_MATMUL)


@dataclass(eq=False)
class BodyText:
    """One body of a loop: its lines, the modules it makes in order, the variables for them, and what differs between bodies."""

    lines: list[tuple[int, str]]
    modules: list[tuple[str, Line]]
    variables: dict[str, str]
    varying: dict[str, Value]
    none: set[int] = field(default_factory=set)


GROUPS = '''
class Groups(NamedTuple):
    """Rows sorted by expert: where each expert's rows end, and the expert of each row."""

    ends: Tensor
    expert: Tensor
'''

GROUPED_MATMUL = '''
def grouped_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each expert's rows of x times its own matrix."""
    compiling = torch.compiler.is_compiling()
    if hasattr(F, "grouped_mm") and (x.dtype == torch.bfloat16 or not compiling):
        return F.grouped_mm(x, weight, offs=ends)
    if compiling:  # the grouped kernel is traced in bfloat16 only, and how many rows an expert gets is not known
        expert = torch.searchsorted(ends, torch.arange(x.size(0), device=x.device), right=True)
        y = x.new_zeros(x.size(0), weight.size(-1))
        for i, matrix in enumerate(weight):
            y = torch.where((expert == i)[:, None], x @ matrix, y)
        return y
    parts = x.tensor_split(ends[:-1].cpu())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight)])
'''


class NodeScope:
    """The TorchScope of one node: texts with tokens for inputs, filled in once it is known how often each is read."""

    def __init__(self, writer: Writer, node: OpNode) -> None:
        self.w = writer
        self.node = node

    def arg(self, i: int) -> str:
        return self.operand(i, 0)

    def at(self, i: int) -> str:
        return self.operand(i, ATOM)

    def operand(self, i: int, strength: int) -> str:
        value = self.node.inputs[i]
        if isinstance(value, Num):
            whole = is_size_like(value.value) if isinstance(value.value, Poly) else True
            return self.w.number(value, strength, real=not whole)
        assert value is not None, (self.node.op.name, i)
        return f"{IN}{i}:{strength}{END}"

    def has(self, i: int) -> bool:
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def mask(self, i: int) -> tuple[str, str]:
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        if not isinstance(value, Value):
            return "", ""
        if id(value) in self.w.elided:
            self.w.uses[id(value)] = self.w.uses.get(id(value), 1) - 1
            return "causal", ""
        for context, kind in zip(self.w.block.contexts, self.w.kinds, strict=True):
            if context.value is value and kind == "either":
                return "either", self.arg(i)
        return "tensor", self.arg(i)

    def number(self, n: Num, strength: int = 0) -> str:
        return self.w.number(n, strength)

    def init(self, n: Num, strength: int = 0) -> str:
        return self.w.init(n, strength)

    def size(self, i: int, axis: int) -> str:
        return f"{self.at(i)}.size({axis})"

    def module(self, constructor: str) -> str:
        node, w = self.node, self.w
        if node.handle is not None:
            return w.handles[id(node.handle.instance)]
        if node.instance is not None:
            w._make_instance(node.instance)
            return f"self.{node.instance.path}"
        return w.add_module(node.name, w.text_line(constructor))

    def stateless(self, name: str, constructor: str) -> str:
        w = self.w
        if constructor not in w.stateless:
            attribute, n = name, 1
            taken = set(w.stateless.values()) | _module_names(w.block.graph)
            while attribute in taken:
                n += 1
                attribute = f"{name}_{n}"
            w.stateless[constructor] = attribute
            line = w.text_line(constructor)
            w.written.init.append(lambda r: f"self.{attribute} = {line(r)}")
        return f"self.{w.stateless[constructor]}"

    def helper(self, source: str) -> str:
        name = _defined(source)
        self.w.written.helpers.setdefault(name, source)
        if "Groups" in source:
            self.w.need_groups()
        return name

    def local(self, hint: str, code: Code | str) -> str:
        text, _ = self.fill(code if isinstance(code, Code) else Code(code), keep=True)
        w = self.w
        if w.locals.get(text.text) in w.holder and w.holder[w.locals[text.text]] == -1:
            return w.locals[text.text]
        name, n = local_name(hint), 1
        while name in w.holder:
            n += 1
            name = f"{local_name(hint)}_{n}"
        w.line(f"{name} = {text.text}")
        w.holder[name] = -1
        w.locals[text.text] = name
        return name

    def device(self) -> str:
        for i, value in enumerate(self.node.inputs):
            if isinstance(value, Value):
                return f"{self.at(i)}.device"
        return f"{self.w.any_tensor}.device"

    def dtype(self) -> str:
        for i, value in enumerate(self.node.inputs):
            if isinstance(value, Value) and value.dtype == "float":
                return f"{self.at(i)}.dtype"
        return self.w.own_type()

    def child(self, name: str) -> str:
        call = self.node.blocks[name]
        site = self.w.site(call.block, dict(call.bind), call.alias)
        self.w.need_groups()
        return self.w.add_module(self.node.name, lambda r: r.construct(site))

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple((v.name or "y") if self.w.uses.get(id(v), 0) else "" for v in self.node.outputs)

    def fill(self, code: Code, keep: bool = False) -> tuple[Code, set[str]]:
        """The text with its inputs in place: nested if each is read once and the line stays short, else by name."""
        w = self.w
        counts: dict[int, int] = {}
        for m in INPUT_TOKEN.finditer(code.text):
            counts[int(m[1])] = counts.get(int(m[1]), 0) + 1
        reads: set[str] = set()
        texts: dict[int, str] = {}
        order = sorted(counts, key=lambda i: -self._length(i))
        total = len(INPUT_TOKEN.sub("", code.text)) + sum(self._length(i) for i in counts)
        for i in order:
            value = self.node.inputs[i]
            assert isinstance(value, Value)
            if id(value) in w.pending and (counts[i] > 1 or keep or total > LONG):
                total -= self._length(i)
                texts[i] = w.named(value)
        for i in counts:
            value = self.node.inputs[i]
            assert isinstance(value, Value)
            reads |= w._read_names(value)
        same: dict[int, tuple[Code, set[str]]] = {}
        for i in counts:
            value = self.node.inputs[i]
            assert isinstance(value, Value)
            if not keep:
                w.uses[id(value)] = w.uses.get(id(value), 1) - 1
            if i not in texts and id(value) in w.pending:
                same[i] = (w.pending[id(value)][0], set())

        def place(m: re.Match[str]) -> str:
            i, strength = int(m[1]), int(m[2])
            if i in texts:
                return texts[i]
            if i in same:
                return same[i][0].within(strength)
            value = self.node.inputs[i]
            assert isinstance(value, Value)
            return w.bound[id(value)]

        text = INPUT_TOKEN.sub(place, code.text).replace(".transpose(1, 2).transpose(1, 2)", "")
        for i in same:
            value = self.node.inputs[i]
            w.pending.pop(id(value), None)
        return Code(text, code.strength), reads

    def _length(self, i: int) -> int:
        value = self.node.inputs[i]
        assert isinstance(value, Value)
        if id(value) in self.w.pending:
            return len(self.w.pending[id(value)][0].text)
        return len(self.w.bound.get(id(value), ""))


class ConstructorScope(NodeScope):
    """Only the constructor of a shared primitive is wanted, in its owner's names."""

    def __init__(self, writer: Writer, names: Mapping[str, Expr]) -> None:
        self.w = writer
        self.names = names
        self.constructor = ""
        self.helpers: dict[str, str] = {}

    def operand(self, i: int, strength: int) -> str:
        return "x"

    def has(self, i: int) -> bool:
        return False

    def number(self, n: Num, strength: int = 0) -> str:
        return "0"

    def init(self, n: Num, strength: int = 0) -> str:
        return self.w.init(n.outward(self.names), strength)

    def module(self, constructor: str) -> str:
        self.constructor = constructor
        return "module"

    def helper(self, source: str) -> str:
        name = _defined(source)
        self.helpers.setdefault(name, source)
        return name

    def local(self, hint: str, code: Code | str) -> str:
        return hint

    def device(self) -> str:
        return "device"


# --- the file -----------------------------------------------------------------------------------------------------------------------


class FinalResolver(Resolver):
    """Names as the class finally knows them."""

    def __init__(self, emitter: Emitter, group: Group | None, local: Mapping[str, str]) -> None:
        self.emitter = emitter
        self.group = group
        self.local = local

    def name(self, name: str) -> str:
        if self.group is None:
            return self.emitter.root_name(name)
        if name in self.local:
            return self.local[name]
        return self.group.resolution.get(name, name)

    def construct(self, site: Site) -> str:
        return self.emitter.constructor(site, self)


class Emitter:
    """Writes one model's file."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.groups: list[Group] = []
        self.by_block: dict[int, Group] = {}
        self.by_text: dict[str, Group] = {}
        self.kinds_known = False
        self.config = {f.name: f.value for f in model.config}
        self.root_writer: Writer | None = None
        self.laws: Any = None

    def group(self, block: Block) -> Group:
        """The class of a block."""
        if id(block) in self.by_block:
            return self.by_block[id(block)]
        written = Writer(self, block, root=False, kinds=None).write()
        text = self._comparable(block, written)
        group = self.by_text.get(text)
        if group is None:
            group = Group(len(self.groups), block, [], written)
            before = _setting_names(written.before) if written.before is not None else []
            names = dict.fromkeys([*written.names, *before, *_setting_names(written)])
            group.free = [n for n in self._with_sources(block, names) if not self._dynamic(block, n)]
            self.by_text[text] = group
            self.groups.append(group)
        group.members.append(block)
        self.by_block[id(block)] = group
        return group

    def _with_sources(self, block: Block, names: Mapping[str, None]) -> list[str]:
        """Names that the caller must give: those the block computes itself stand for what they are computed from."""
        found: dict[str, None] = {}

        def add(name: str) -> None:
            if name in block.local:
                for inner in dims.free_names(block.local[name]):
                    add(inner)
            else:
                found.setdefault(name)

        for name in names:
            add(name)
        order = {n: i for i, n in enumerate([*block.hypers, *block.axes])}
        return sorted(found, key=lambda n: order.get(n, len(order)))

    def _dynamic(self, block: Block, name: str) -> bool:
        value = block.axes.get(name) or block.hypers.get(name)
        if isinstance(value, Num):
            return not value.static
        return "." in name and not _static_synthetic(block, name)

    def _comparable(self, block: Block, w: Written) -> str:
        from archdsl.lower.init_torch import law_key

        r = Resolver()
        init = [line(r) for line in w.init]
        forward = [f"{i}{t}" for part in (w.before, w) if part is not None for i, t in part.forward]
        parameters = [f"{n}: {t} = {d}" for n, t, d in w.parameters]
        weights = [f"{name}:{_law_key(node)}{law_key(self.model, block, node)}" for name, node, _ in w.laws]
        dynamic = sorted(n for n in {*w.names, *_setting_names(w)} if self._dynamic(block, n))
        local = [f"{k}={dims.expr_text(v)}" for k, v in block.local.items()]
        return "\n".join([block.name, str(id(block.span.source)), str(block.span.start), *parameters, *init, *forward, *weights, *dynamic, *local])

    # --- names ---

    def root_name(self, name: str) -> str:
        local = self.model.block.local
        if name in self.config:
            return f"config.{name}"
        if name in local:
            assert self.root_writer is not None
            return self.root_writer._expr(local[name], ATOM, self.root_name, True)
        value = self.model.block.hypers.get(name)
        return dims.expr_text(dims.literal(value.value)) if isinstance(value, Num) and not isinstance(value.value, Poly) else name

    def constructor(self, site: Site, resolver: FinalResolver) -> str:
        group = site.group
        args = ["config"] if group.needs_config else []
        block = self.model.block if resolver.group is None else resolver.group.block
        writer = self.root_writer if resolver.group is None else self.writers[resolver.group.number]
        assert writer is not None
        for name in group.arguments:
            expr = site.bind.get(name, Var(name))
            text = writer.init_expr(expr, resolver)
            if text == self.default(group, name):
                continue
            args.append(f"{_argument(name)}={text}")
        del block
        return f"{group.name}({', '.join(args)})"

    def default(self, group: Group, name: str) -> str | None:
        """The value an argument has in the declaration, where that is a plain number."""
        from archdsl.syntax import ast

        for hyper in group.block.header.hypers or ():
            if hyper.name == name and isinstance(hyper.default, ast.Number):
                return str(hyper.default.text)
        return None

    def resolve(self) -> None:
        """Callers first: what each name of each class is."""
        pending = list(self.groups)
        done: set[int] = set()
        assert self.root_writer is not None
        for site in self.root_writer.written.sites:
            site.caller = None
            site.group.sites.append(site)
        for group in self.groups:
            assert group.final is not None
            for site in group.final.sites:
                site.caller = group
                site.group.sites.append(site)
        while pending:
            ready = [g for g in pending if all(s.caller is None or s.caller.number in done for s in g.sites)]
            for group in ready or pending[:1]:
                self._resolve_group(group)
                done.add(group.number)
                pending.remove(group)
        for group in self.groups:  # callees come first in the list
            assert group.final is not None
            used = [v for v in group.resolution.values() if v.startswith("config.")]
            group.needs_config = bool(used) or any(s.group.needs_config for s in group.final.sites)

    def _resolve_group(self, group: Group) -> None:
        for name in group.free:
            texts = []
            for site in group.sites:
                caller = site.caller
                resolver = FinalResolver(self, caller, {})
                writer = self.root_writer if caller is None else self.writers[caller.number]
                assert writer is not None
                expr = site.bind.get(name)
                texts.append(writer.init_expr(expr, _Expanded(resolver, caller)) if expr is not None else "")
            one = texts[0] if texts and len(set(texts)) == 1 else None
            if one is not None and re.fullmatch(r"config\.\w+", one):
                group.resolution[name] = one
            elif one is not None and re.fullmatch(r"-?[\d_.]+(e-?\d+)?", one) and name not in self._own(group):
                group.resolution[name] = one
            else:
                group.resolution[name] = _argument(name)
                group.arguments.append(name)

    def _own(self, group: Group) -> set[str]:
        return {*group.block.hypers, *group.block.axes}

    # --- classes ---

    def emit(self) -> str:
        model = self.model
        root = Writer(self, model.block, root=True, kinds=[])
        root.write()
        self.kinds_known = True
        self.writers: dict[int, Writer] = {}
        for group in self.groups:
            writer = Writer(self, group.block, root=False, kinds=[group.kind(i) for i in range(len(group.block.contexts))])
            group.final = writer.write()
            self.writers[group.number] = writer
        self.root_writer = Writer(self, model.block, root=True, kinds=[])
        self.root_writer.write()
        self.resolve()
        self._name_classes()
        classes = []
        for group in self.groups:
            classes.append(self._class(group))
        classes.append(self._root_class())
        helpers: dict[str, str] = {}
        for written in [g.final for g in self.groups] + [self.root_writer.written]:
            assert written is not None
            helpers.update({k: v for k, v in written.helpers.items() if k not in helpers})
        ordered = sorted(helpers, key=lambda k: HELPER_ORDER.get(k, 5))
        body = "\n\n\n".join([self._config(), *(helpers[k].strip() for k in ordered), *classes])
        return formatted(f"{self._header(body)}\n\n\n{body}\n")

    def _name_classes(self) -> None:
        taken: dict[str, list[Group]] = {}
        for group in self.groups:
            taken.setdefault(class_name(group.block.name), []).append(group)
        helpers = {k for g in self.groups if g.final is not None for k in g.final.helpers}
        assert self.root_writer is not None
        used = helpers | set(self.root_writer.written.helpers) | {"Config"}
        self.root_class = class_name(self.model.name)
        while self.root_class in used:
            self.root_class += "Model"
        used.add(self.root_class)
        for base, groups in taken.items():
            aliases = {g.number: {s.alias for s in g.sites if s.alias} - {g.block.name} for g in groups}
            for group in groups:
                name = base
                own = aliases[group.number]
                others = set().union(*(a for n, a in aliases.items() if n != group.number))
                if (len(groups) > 1 or name in used) and len(own - others) == 1 and len(own) == 1:
                    prefix = class_name(singular(next(iter(own))))
                    name = prefix if prefix.endswith(base) else prefix + base
                number = 2
                plain = name
                while name in used:
                    name = f"{plain}{number}"
                    number += 1
                used.add(name)
                group.name = name

    def _class(self, group: Group) -> str:
        assert group.final is not None
        w, writer = group.final, self.writers[group.number]
        local_lines, local = self._locals(group, writer)
        r = FinalResolver(self, group, local)
        init: list[str] = []
        for line in w.init:
            text = line(r)
            if text:
                init.append(text)
        asserts = _once([t for t in init if t.startswith("assert ")])
        rest = [t for t in init if not t.startswith("assert ")]
        used = "\n".join(init)
        preparing: list[str] = []
        early: list[str] = []
        if w.before is not None:
            assert writer.preparing is not None
            lines, early = self._forward(w.before, group, writer.preparing, r, rest)
            preparing = [*self._forward_lines(w.before, lines, "prepare"), ""]
        forward, settings = self._forward(w, group, writer, r, rest)
        settings = list(dict.fromkeys([*early, *settings]))
        settings_text = "\n".join(settings)
        local_lines = [t for n, t in local_lines if re.search(rf"\b{n}\b", used) or re.search(rf"\b{n}\b", settings_text)]
        parameters = ["self"]
        if group.needs_config:
            parameters.append("config: Config")
        late = []
        for name in group.arguments:
            kind = "float" if self._is_float(group, name) else "int"
            default = self.default(group, name)
            (late if default is not None else parameters).append(f"{_argument(name)}: {kind}" + (f" = {default}" if default is not None else ""))
        parameters += late
        lines = [f"class {group.name}(nn.Module):", f'    """{self._doc(group.block)}"""', ""]
        late_asserts = [t for t in asserts if any(re.search(rf"\b{n}\b", t) for n in local)]
        asserts = [t for t in asserts if t not in late_asserts]
        body = [*asserts, *local_lines, *late_asserts, *settings, *rest]
        if body:
            lines += [f"    def __init__({', '.join(parameters)}) -> None:", "        super().__init__()"]
            lines += [f"        {t}" for t in body] + [""]
        else:  # what it was to be given it can read off its tensors: callers, which come later, give it nothing
            group.needs_config, group.arguments = False, []
        lines += preparing + self._forward_lines(w, forward)
        return "\n".join(lines)

    def _locals(self, group: Group, writer: Writer) -> tuple[list[tuple[str, str]], dict[str, str]]:
        """Names that the class computes itself: `head_dim = config.width // config.heads`."""
        lines, local = [], {}
        for name, expr in group.block.local.items():
            if any(self._dynamic(group.block, n) for n in dims.free_names(expr)):
                continue
            r = FinalResolver(self, group, local)
            text = writer._expr(expr, 0, r.name, True)
            spelled = _argument(name)
            lines.append((spelled, f"{spelled} = {text}"))
            local[name] = spelled
        return lines, local

    def _forward(self, w: Written, group: Group | None, writer: Writer, r: FinalResolver, made: Sequence[str]) -> tuple[list[tuple[int, str]], list[str]]:
        """Lines with every name in place, and the settings that `__init__` makes for them."""
        attributes = {m[1] for t in made if (m := re.match(r"self\.(\w+) = ", t))} | MODULE_ATTRIBUTES
        settings: dict[str, str] = {}
        counts: dict[str, int] = {}
        block = writer.block
        for _, text in w.forward:
            for m in NAME_TOKEN.finditer(text):
                counts[m[1]] = counts.get(m[1], 0) + 1
        dynamic: dict[str, str] = {}
        opening: list[tuple[int, str]] = []

        def place(m: re.Match[str]) -> str:
            name = m[1]
            if name in dynamic:
                return dynamic[name]
            where = self._run_time(block, name, writer)
            if where is not None:
                where = NAME_TOKEN.sub(place, where)
                if counts.get(name, 0) > 1 and "." not in name and local_name(name) not in writer.holder:
                    dynamic[name] = local_name(name)
                    opening.append((0, f"{local_name(name)} = {where}"))
                else:
                    dynamic[name] = where
                return dynamic[name]
            text = r.name(name)
            if re.fullmatch(r"-?[\d_.]+(e-?\d+)?", text):
                return text
            if group is None:
                return re.sub(r"\bconfig\.", "self.config.", text)
            key = _argument(name)
            if key in attributes:
                key = f"num_{key}"
            settings[key] = text
            return f"self.{key}"

        lines = [(i, NAME_TOKEN.sub(place, text)) for i, text in w.forward]
        return [*opening, *lines], [f"self.{k} = {v}" for k, v in settings.items()]

    def _run_time(self, block: Block, name: str, writer: Writer) -> str | None:
        """How the running model knows a size: `tokens.size(1)`; None for a static one."""
        if "." in name:
            tensor, _, axis = name.rpartition(".")
            for value in [*block.graph.inputs, *(c.value for c in block.contexts if isinstance(c.value, Value))]:
                if any(isinstance(d.expr, Var) and d.expr.name == name for d in value.shape):
                    return f"{writer.bound.get(id(value), local_name(tensor))}.size({axis})"
            return None
        value = block.axes.get(name)
        if value is None:
            value = block.hypers.get(name)
        if isinstance(value, Num) and value.static:
            return None
        if block is self.model.block and (name in self.config or name in block.local):
            return None
        for tensor, v in zip(block.tensor_names, block.graph.inputs, strict=True):
            for i, d in enumerate(v.shape):
                if d.expr == Var(name) and not d.static:
                    return f"{local_name(tensor)}.size({i})"
        for context in block.contexts:
            if isinstance(context.value, Value):
                for i, d in enumerate(context.value.shape):
                    if d.expr == Var(name) and not d.static and id(context.value) in writer.bound:
                        return f"{writer.bound[id(context.value)]}.size({i})"
        if isinstance(value, Num):
            for tensor, v in zip(block.tensor_names, block.graph.inputs, strict=True):
                for i, d in enumerate(v.shape):
                    if d.value == value.value:
                        return f"{local_name(tensor)}.size({i})"
        if name in block.local:
            inner = block.local[name]
            if any(self._run_time(block, n, writer) is not None for n in dims.free_names(inner)):
                return writer._expr(inner, ATOM, lambda n: f"{NAME}{n}{END}", False)
        return None

    def _forward_lines(self, w: Written, forward: Sequence[tuple[int, str]], name: str = "forward") -> list[str]:
        parameters = ["self", *(f"{n}: {t}" + (f" = {d}" if d else "") for n, t, d in w.parameters)]
        lines = [f"    def {name}({', '.join(parameters)}) -> {w.returns}:"]
        return [*lines, *(f"        {'    ' * i}{t}" for i, t in forward)]

    def _is_float(self, group: Group, name: str) -> bool:
        value = group.block.hypers.get(name)
        if isinstance(value, Num):
            return not isinstance(value.value, int) or (name in ("scale", "dropout", "theta", "eps"))
        for site in group.sites:
            text = dims.expr_text(site.bind.get(name, Var(name)))
            if re.fullmatch(r"[\d_]*\.[\d_]+|[\d_.]+e-?\d+", text):
                return True
        return False

    def _doc(self, block: Block) -> str:
        text = _first_sentence(block.doc)
        where = f"{block.name} ({block.span})"
        return f"{text} {where}".strip() if not text else f"{text}\n\n    {where}\n    "

    def _root_class(self) -> str:
        writer = self.root_writer
        assert writer is not None
        w, block = writer.written, self.model.block
        r = FinalResolver(self, None, {})
        init = [t for t in (line(r) for line in w.init) if t]
        asserts = _once([t for t in init if t.startswith("assert ")])
        rest = [t for t in init if not t.startswith("assert ")]
        forward, _ = self._forward(w, None, writer, r, rest)
        lines = [f"class {self.root_class}(nn.Module):", f'    """{block.name} ({block.span})"""', ""]
        lines += ["    def __init__(self, config: Config = Config()) -> None:", "        super().__init__()"]
        if any("self.config" in t for _, t in forward):
            lines.append("        self.config = config")
        lines += [f"        {t}" for t in [*asserts, *rest]]
        lines += ["", *self._forward_lines(w, forward)]
        return "\n".join(lines)

    def _config(self) -> str:
        lines = ["@dataclass(frozen=True)", "class Config:"]
        for name, value in self.config.items():
            kind = "int" if isinstance(value.value, int) else "float"
            text = dims.expr_text(value.expr) if isinstance(value.expr, Lit) else dims.expr_text(dims.literal(value.value)) if not isinstance(value.value, Poly) else "0"
            origin = value.origin
            if origin is not None and re.fullmatch(r"[\d_]+(\.\d+)?(e-?\d+)?", origin.text):
                text = origin.text
            lines.append(f"    {name}: {kind} = {text}")
        if not self.config:
            lines.append('    """The spec has no numbers to set."""')
        return "\n".join(lines)

    def _header(self, body: str) -> str:
        from archdsl.analyses.params import total
        from archdsl.version import __version__ as VERSION

        model = self.model
        title = _first_sentence(model.doc) or f"{model.name}."
        digest = hashlib.sha256(model.source_text.encode()).hexdigest()[:12]
        command = f"archdsl compile {model.source_name}:{model.name} --to torch"
        imports = []
        if re.search(r"\bmath\.", body):
            imports.append("import math")
        imports.append("from dataclasses import dataclass")
        if "NamedTuple" in body:
            imports.append("from typing import NamedTuple")
        third = ["import torch"] if re.search(r"(?<![\w.])torch\.", body) else []
        if re.search(r"\bF\.", body):
            third.append("import torch.nn.functional as F")
        third.append("from torch import Tensor, nn")
        return (
            f'"""{_quoted(title)}\n\n{total(model):,} parameters. Made by archdsl {VERSION} from {model.source_name} ({digest}):\n    {command}\n"""\n\n'
            + "\n".join(imports)
            + "\n\n"
            + "\n".join(third)
        )


class _Expanded(Resolver):
    """A caller's names with those it computes itself written out: is the callee's name simply a field of the Config?"""

    def __init__(self, inner: FinalResolver, caller: Group | None) -> None:
        self.inner = inner
        self.caller = caller

    def name(self, name: str) -> str:
        return self.inner.name(name)


HELPER_ORDER = {"Groups": 0, "grouped_matmul": 1, "frequencies": 1, "yarn_scaling": 2, "llama3_scaling": 2, "rope_table": 3}


# --- helpers ----------------------------------------------------------------------------------------------------------------------------


def _values(block: Block) -> dict[str, Expr]:
    """What every name of a block is worth, as literals: for telling whether a division is exact."""
    found: dict[str, Expr] = {}

    def note(value: Any) -> None:
        from archdsl.ir.masks import Mask
        from archdsl.ir.static import ListValue, Scheme, Template

        if isinstance(value, Num) and isinstance(value.expr, Var) and not isinstance(value.value, Poly):
            found[value.expr.name] = dims.literal(value.value)
        elif isinstance(value, Template):
            for v in value.args.values():
                note(v)
        elif isinstance(value, Scheme):
            for v in value.numbers.values():
                note(v)
        elif isinstance(value, Mask):
            for n in value.numbers:
                note(n)
            for p in value.parts:
                note(p)
        elif isinstance(value, ListValue):
            for v in value.items[:1]:
                note(v)

    for value in [*block.hypers.values(), *block.axes.values()]:
        note(value)
    for name, expr in block.local.items():
        value = dims.expr_value(dims.substitute(expr, found))
        if not isinstance(value, Poly):
            found[name] = dims.literal(value)
    return found


def _is_mask(context: Context) -> bool:
    r = context.recipe
    return isinstance(r, Once) and r.op == "mask" and not r.options.get("plain")


def _node_is_causal(node: OpNode) -> bool:
    queries, keys = node.inputs[0], node.inputs[1]
    return (
        node.options["mask"].rule == "causal"
        and not node.options["plain"]
        and isinstance(queries, Num)
        and isinstance(keys, Num)
        and queries.value == keys.value
    )


def _direct_reads(node: Node) -> list[Value]:
    if isinstance(node, OpNode):
        return [v for v in node.inputs if isinstance(v, Value)]
    if isinstance(node, CallNode):
        return [v for v in (*node.inputs, *node.contexts) if isinstance(v, Value)]
    if isinstance(node, LoopNode):
        return list(node.starts)
    if isinstance(node, ScanNode):
        return [v for v in (*node.starts, *node.sequences) if isinstance(v, Value)]
    if isinstance(node, LossNode):
        return [node.value]
    if isinstance(node, CausalNode):
        return [node.value]
    return []


def _reads_within(graph: Graph) -> dict[int, int]:
    """How often each value is read by a graph and those inside it, ends of inner graphs included."""
    found: dict[int, int] = {}
    for node in graph.nodes:
        for value in _direct_reads(node):
            found[id(value)] = found.get(id(value), 0) + 1
        for inner in subgraphs(node):
            for key, count in _reads_within(inner).items():
                found[key] = found.get(key, 0) + count
            for value in captured(inner):
                found[id(value)] = found.get(id(value), 0) + 2
    for output in graph.outputs:
        if output is not None:
            found[id(output)] = found.get(id(output), 0) + 1
    return found


def _module_names(graph: Graph) -> set[str]:
    """Steps in the path of names that the graph's own applications take (those of shared blocks left out)."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        if isinstance(node, OpNode | CallNode) and node.name and node.instance is None and (isinstance(node, CallNode) or node.weights or node.blocks):
            found.setdefault(node.name)
        elif isinstance(node, ParamNode):
            found.setdefault(node.name)
        for inner in subgraphs(node):
            found.update(dict.fromkeys(_module_names(inner)))
    return set(found)


def _setting_names(w: Written) -> list[str]:
    return list(dict.fromkeys(m[1] for _, t in w.forward for m in NAME_TOKEN.finditer(t)))


def _static_synthetic(block: Block, name: str) -> bool:
    for value in [*block.graph.inputs, *(c.value for c in block.contexts if isinstance(c.value, Value))]:
        for d in value.shape:
            if isinstance(d.expr, Var) and d.expr.name == name:
                return d.static
    return False


def _law_key(node: OpNode | ParamNode) -> str:
    weights = [node.weight] if isinstance(node, ParamNode) else node.weights
    parts = []
    for w in weights:
        numbers = ",".join(f"{k}={dims.expr_text(n.expr)}" for k, n in w.init.numbers.items())
        parts.append(f"{w.name}:{w.init.scheme}({numbers})")
    return ";".join(parts)


def _once(asserts: list[str]) -> list[str]:
    """Each condition once, with the first of its messages."""
    return list({t.partition(", \"")[0]: t for t in reversed(asserts)}.values())[::-1]


def _argument(name: str) -> str:
    return local_name(name.replace(".", "_"))


def _defined(source: str) -> str:
    m = re.search(r"^(?:def|class) (\w+)", source.strip(), re.MULTILINE)
    assert m is not None
    return m[1]


def _quoted(text: str) -> str:
    """Text of a spec within a Python string or docstring."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _first_sentence(doc: str) -> str:
    text = " ".join(doc.split())
    m = re.match(r"(.*?[.!?])(?= [A-Z`]|$)", text)
    found = m[1] if m else text
    while m and re.search(r"\b(al|e\.g|i\.e|vs|cf|Eq|Fig|Sec)\.$", found) and len(found) < len(text):
        rest = re.match(r"(.*?[.!?])(?= [A-Z`]|$)", text[len(found) :])
        if rest is None:
            return _quoted(text)
        found += rest[1]
    return _quoted(found)


def _pattern_length(pattern: Pattern) -> Expr:
    if isinstance(pattern, Ref):
        return Lit("1")
    if isinstance(pattern, Times):
        inner = _pattern_length(pattern.part)
        return pattern.count if inner == Lit("1") else _constant(Bin("*", pattern.count, inner))
    total: Expr = Lit("0")
    for part in pattern.parts:
        length = _pattern_length(part)
        total = length if total == Lit("0") else _constant(Bin("+", total, length))
    return total


def _constant(expr: Expr) -> Expr:
    if not dims.free_names(expr):
        value = dims.expr_value(expr)
        if isinstance(value, int):
            return dims.literal(value)
    return expr


def _pattern_counts(pattern: Pattern) -> list[Expr]:
    if isinstance(pattern, Times):
        return [pattern.count, *_pattern_counts(pattern.part)]
    if isinstance(pattern, Plus):
        return [c for p in pattern.parts for c in _pattern_counts(p)]
    return []


def _pattern_refs(pattern: Pattern) -> set[int]:
    if isinstance(pattern, Ref):
        return {pattern.index}
    if isinstance(pattern, Times):
        return _pattern_refs(pattern.part)
    return set().union(*(_pattern_refs(p) for p in pattern.parts)) if pattern.parts else set()


def _flat_refs(pattern: Pattern) -> list[int] | None:
    if isinstance(pattern, Ref):
        return [pattern.index]
    if isinstance(pattern, Plus) and all(isinstance(p, Ref) for p in pattern.parts):
        return [p.index for p in pattern.parts if isinstance(p, Ref)]
    return None


def emit(model: Model) -> str:
    """The model as one Python file that imports the standard library and torch only.

    Class of the model: `class_name(model.name)`; its `Config` holds the spec's own numbers.
    """
    return Emitter(model).emit()


