"""Declared bodies as the equations they stand for: `archdsl show --expand`.

A body of slots is a call of a library block that is itself written in equations.  In the model its block has a graph:
what of the library holds, what was offered to whom and what each part is called is decided there.  The nodes become
statements again (single uses are put where they are used, tensors get the library's names for them), printed in place
of the declaration; what the user wrote in a slot is said as it is written there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any

from archdsl.diagnostics import error
from archdsl.diagnostics.source import Source, Span
from archdsl.frontend.bodies import slot_block
from archdsl.frontend.headers import tensor_params
from archdsl.frontend.lists import value_key
from archdsl.frontend.modules import SpecModule, find_in_library, find_primitive, models
from archdsl.frontend.root import Elaborator
from archdsl.frontend.schemes import GIVEN, SAVED
from archdsl.ir.closure import instantiated_names
from archdsl.ir.dims import Expr, Lit, Num, Var, axis_of, expr_text, free_names, substitute
from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    Handle,
    LoopNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    Value,
    WeightNode,
    node_outputs,
)
from archdsl.ir.masks import INPUTS, Mask
from archdsl.ir.op import Primitive
from archdsl.ir.static import (
    BlockValue,
    Declared,
    ElementRef,
    EnumValue,
    InitRules,
    ListValue,
    Pattern,
    RepeatedPattern,
    Scheme,
    SharedModule,
    instantiate,
    kind_of,
)
from archdsl.ir.walk import calls_of, nodes_below
from archdsl.ir.wording import one_of
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE
from archdsl.syntax.format import format_expr, format_file
from archdsl.syntax.layout import hyper, results, tensor_param, tensor_type
from archdsl.syntax.limits import MAX_NESTING
from archdsl.syntax.parse import parse, parse_expression


class ExpansionError(Exception):
    """Something of a body cannot be said in equations; the declaration stays."""


# --- what is written down ---------------------------------------------------------------------------------------------


class Tensor(ast.Name):
    """A tensor in an expression, which has no name yet."""

    value: Value


@dataclass
class Statement:
    """Tensors made by an expression; with `before`, another statement: the text before the expression and behind it;
    with `loop`, the head of a loop whose body makes the one tensor of the one that it starts with."""

    outputs: tuple[Value, ...]
    expr: ast.Expr
    before: str = ""
    after: str = ""
    loop: str = ""


def name_of(name: str) -> ast.Name:
    return ast.Name(name, span=NOWHERE)


def arg(value: ast.Expr, name: str | None = None) -> ast.Arg:
    return ast.Arg(name, value, span=NOWHERE)


def binary(op: str, a: ast.Expr, b: ast.Expr) -> ast.Expr:
    return ast.Binary(op, a, b, span=NOWHERE)


def given(function: ast.Expr, args: Sequence[ast.Arg]) -> ast.Expr:
    """A function, or a call, with more arguments."""
    if isinstance(function, ast.Call):
        return ast.Call(function.function, (*function.args, *args), span=NOWHERE)
    return ast.Call(function, tuple(args), span=NOWHERE) if args else function


@cache
def expr_of(expr: Expr) -> ast.Expr:
    """Arithmetic of sizes as an expression of the language."""
    unnamed = next((name for name in free_names(expr) if axis_of(name) is not None), None)
    if unnamed is not None:
        raise ExpansionError(f"a size without a name: {unnamed}")
    return parse_expression(Source("number", expr_text(expr)))


def type_of(value: Value) -> str:
    """The type of a tensor as it is declared."""
    shape = tuple(expr_of(d.expr) for d in value.shape)
    return tensor_type(ast.TensorType(None if value.dtype == "float" else value.dtype, shape, span=NOWHERE))


# --- from nodes to statements -----------------------------------------------------------------------------------------


class _Writer:
    """Writes the graph of one block, whose body is one of slots."""

    def __init__(self, module: SpecModule, node: ast.BlockDecl | ast.ModelDecl, model: Model, block: Block) -> None:
        assert isinstance(node.body, ast.Body)
        self.module, self.node, self.body, self.block = module, node, node.body, block
        # What says the name of a tensor is said by its value: the name may mean another one by then.
        tensors = set() if block is model.block else set(block.tensor_names)
        said = {s.key: s.value for s in node.body.slots if tensors.isdisjoint(ast.names_in(s.value))}
        self.slots = {key: (said[key], value) for key, value in block.slots.items() if key in said}
        lets = {item.name: item.value for item in node.body.items if isinstance(item, ast.Let)}
        self.lets = {*lets}
        self.blocks = {name for name, value in block.hypers.items() if isinstance(value, BlockValue | SharedModule)}
        self.blocks |= {n for n, e in lets.items() if not isinstance(e, ast.Number | ast.Unary | ast.Binary)}
        """Names that may stand for blocks here."""
        self.hypers = tuple(node.header.hypers or ())
        known = {h.name for h in self.hypers}
        if block is model.block:
            for f in model.config:
                if f.name not in known:
                    e = said[f.name] if self.lets.isdisjoint(ast.names_in(said[f.name])) else expr_of(f.value.expr)
                    self.hypers += (ast.Hyper(f.name, None, e, span=NOWHERE),)
        self.numbers = instantiated_names(block, {name: Var(name) for name in self.lets | known})
        """Each name of a number, and what it is in the names that the declaration has: an inline block has others."""
        self.statements: list[Statement] = []
        self.said: set[str] = set()
        """Names that the heads of loops say."""
        self.names: dict[Value, str] = {}
        """What tensors would be called, where that is not their own name."""
        self.steps: dict[Value, str] = {}
        """What raw weights must be called."""
        self.made: dict[str, ast.Expr] = {}
        """Those that get a `let`: what makes them."""
        named = [(name_of(name), v) for name, v in block.hypers.items()]
        named += [(e, v) for e, v in self.slots.values() if isinstance(e, ast.Name)]
        self.modules: dict[SharedModule, ast.Expr] = {v: e for e, v in named if isinstance(v, SharedModule)}
        """How shared blocks are said."""
        handed = ((c.value, c.source) for c in block.contexts if isinstance(c.source, Handle))
        self.weights = {value: source.instance for value, source in handed if isinstance(value, Value)}
        """Of which shared block a tensor is the weight."""
        self.own = {*block.graph.inputs, *(v for n in block.graph.nodes for v in node_outputs(n))}
        for made in block.graph.nodes:
            self._state(made)

    # --- nodes ---

    def _state(self, node: Node) -> None:
        match node:
            case OpNode():
                self.statements.append(Statement(node.outputs, self._op(node)))
            case CallNode():
                self.statements.append(Statement(node.outputs, self._call(node)))
            case LoopNode():
                self._loop(node)
            case ParamNode():
                self._param(node)
            case WeightNode():
                self.weights[node.output] = node.instance
            case CheckNode():
                # What an operation demands of its sizes it demands again.
                if node.span is not None and node.span.text.startswith("assert"):
                    condition = binary(node.op, self._value(node.left), self._value(node.right))
                    self._assert(node, Statement((), condition, "assert ", f', "{node.message}"'))
            case CausalNode():
                ahead = [arg(expr_of(Lit(str(node.ahead))), "ahead")] if node.ahead != 1 else []
                claim = given(name_of("causal"), [arg(self._read(node.value)), *ahead])
                self._assert(node, Statement((), claim, "assume " if node.assumed else "assert "))
            case _:
                raise ExpansionError("an inline block has a `scan`, or a part for training alone")

    def _assert(self, node: CheckNode | CausalNode, said: Statement) -> None:
        """An assertion, once; those that stand beside the slots are there already."""
        if not _within(node.span, self.node.span) and said not in self.statements:
            self.statements.append(said)

    def _param(self, node: ParamNode) -> None:
        weight, value, init = node.weight, node.output, node.weight.init
        if init.graph is not None:
            raise ExpansionError(f"the first value of `{value.name}` is computed")
        first = name_of(GIVEN) if init.scheme == GIVEN else self._value(Scheme(init.scheme, init.numbers))
        if weight.saved and not weight.trained:
            first = given(name_of(SAVED), [arg(first)])
        self.steps[value] = node.name
        before = f"{'param' if weight.trained else 'buffer'} {node.name}: {type_of(value)} = "
        self.statements.append(Statement((value,), first, before))

    def _loop(self, node: LoopNode) -> None:
        """A loop of the library over the list in a slot: its body applies what the list holds."""
        loops = (x for x in ast.walk(slot_block(self.node).node.body) if isinstance(x, ast.For) and x.span == node.span)
        key = next((x.iterable.id for x in loops if isinstance(x.iterable, ast.Name)), None)
        if key is None:
            raise ExpansionError("an inline block has a `for`")
        ((start,), (after,)) = node.starts, node.outputs
        self.names[start] = after.name
        calls = (n for body in node.bodies for n in body.nodes if isinstance(n, CallNode))
        read = {name: v for call in calls for name, v in zip(call.block.tensor_names, call.inputs, strict=True)}
        memory = [arg(self._read(v), name) for name, v in read.items() if name == "memory" and v in self.own]
        if key == "decoder" and not memory:
            raise ExpansionError("no layer of its decoder takes `memory`")
        body = self._applied(name_of(node.variable), [start], memory, key)
        self.said |= {node.variable, *ast.names_in(self.slots[key][0])}
        head = f"for {node.variable} in {format_expr(self.slots[key][0])} {{"
        self.statements.append(Statement((after,), body, loop=head))

    # --- applications ---

    def _op(self, node: OpNode) -> ast.Expr:
        op = node.op
        if op.symbol == "[]":
            every = [ast.Slice(None, None, span=NOWHERE)] * int(node.options.get("axis", 0))
            items = (*every, *map(self._item, node.options.get("items", ())), *map(self._read, node.inputs[1:]))
            return ast.Index(self._read(node.inputs[0]), items, span=NOWHERE)
        if symbol := op.sign or op.relation or op.symbol:
            *left, right = map(self._read, node.inputs)
            return binary(symbol, left[0], right) if left else ast.Unary(symbol, right, span=NOWHERE)
        if find_primitive(op.name) is None:
            raise ExpansionError(f"`{op.name}` cannot be written")
        options: dict[str, Any] = {}
        for name, value in node.options.items():
            options.update(value if isinstance(value, Mapping) else {name: value})
        held = _within(node.span, slot_block(self.node).node.span)
        function = self._instance(node.instance) if node.instance else self._block(op, options, held)
        step = node.name if (node.weights or node.blocks) and node.instance is None else ""
        left_out = node.inputs.index(None) if None in node.inputs else len(node.inputs)
        names = [t.name for t in op.header.tensors or ()][left_out:]
        named = [(n, v) for n, v in zip(names, node.inputs[left_out:], strict=False) if v is not None]
        return self._applied(function, node.inputs[:left_out], [arg(self._read(v), n) for n, v in named], step)

    def _call(self, node: CallNode) -> ast.Expr:
        block, by_name = node.block, dict(zip(node.block.tensor_names, node.inputs, strict=True))
        required = [p.name for p in block.header.tensors or () if p.default is None] or [block.tensor_names[0]]
        in_order = [by_name[name] for name in required]
        named = [arg(self._read(v), name) for name, v in by_name.items() if name not in required]
        if node.instance is not None:
            return self._applied(self._instance(node.instance), in_order, named, "")
        hypers = instantiate(block.hypers, instantiated_names(block, node.bind))
        computed = {k for k, v in hypers.items() if k in block.axes or (isinstance(v, Num) and k in block.local)}
        function = self._block(block, {k: v for k, v in hypers.items() if k not in computed}, True)
        return self._applied(function, in_order, named, node.name)

    def _applied(self, function: ast.Expr, tensors: Sequence[Any], named: list[ast.Arg], step: str) -> ast.Expr:
        """A block or primitive applied: `residual(x, h)` as a call, `x -> unembed(words)` as a pipeline, which carries
        the one tensor."""
        base = function.function if isinstance(function, ast.Call) else function
        read = [self._read(v) for v in tensors]
        joins = len(read) > 1 and not any(v in self.weights for v in tensors)
        piped = bool(read) and not (joins and isinstance(function, ast.Name))
        extra = [*map(arg, read[1:] if piped else read), *named]
        if extra and isinstance(function, ast.Call) and not named:
            function = given(given(base, extra), function.args)
        else:
            function = given(function, extra)
        # A `linear` without a name of its own may be called by what it is bound to.
        if step and (base != name_of(step) or step == "linear"):
            function = ast.As(function, step, name_span=NOWHERE, span=NOWHERE)
        return ast.Pipeline(read[0], (function,), span=NOWHERE) if piped else function

    def _read(self, value: Any) -> ast.Expr:
        """A tensor, a number, or a shared block of which the weight is taken."""
        if isinstance(value, Value):
            return self._instance(self.weights[value]) if value in self.weights else Tensor("", value, span=NOWHERE)
        return self._value(value)

    def _item(self, item: Any) -> ast.Expr:
        """An item of an index."""
        if isinstance(item, Num):
            return self._value(item)
        if isinstance(item, str):
            return ast.Ellipsis(span=NOWHERE)
        low, high = (None if end is None else self._value(end) for end in item[1:])
        return ast.Slice(low, high, span=NOWHERE)

    def _instance(self, instance: SharedModule) -> ast.Expr:
        """A shared block: by its name, by that of a `let` that is written here, or as it is made."""
        if instance in self.modules:
            return self.modules[instance]
        name = instance.label
        found = next((x for x in self.body.items if isinstance(x, ast.Let) and x.name == name), self._found(name))
        if found is not None and _within(instance.span, found.span):
            return name_of(name)
        if instance not in self.block.instances:
            raise ExpansionError(f"{kind_of(instance)} has no name")
        shared = given(name_of("shared"), [arg(self._value(instance.template))])
        if not name or found is not None or name in self.block.hypers:
            return shared
        self.made[name] = shared
        return name_of(name)

    # --- static values ---

    def _block(self, of: Any, values: Mapping[str, Any], held: bool = False) -> ast.Expr:
        """A block or primitive with its hyper-parameters, without those that it takes anyway. Where a slot may have
        `held` it, as it is said there, with what the library adds."""
        hypers = {h.name: h for h in of.header.hypers or ()}
        slots = [self.slots[key] for key in self.slots if held and self._holds(key, of, values)]
        said, slot = max(slots, key=lambda found: len(found[1].args), default=(None, None))
        rest = values.keys() - (slot.args.keys() if slot is not None else ())
        names = [name for name in {**hypers, **values} if name in rest]
        args = [arg(e, n) for n in names if (e := self._hyper(hypers.get(n), n, values, held)) is not None]
        if said is not None:
            return given(said, args)
        function: ast.Expr = name_of(self._visible(of))
        first: list[ast.Arg] = []
        for h in hypers.values() if isinstance(of, Primitive) else ():
            if not args or args[0].name != h.name or h.default is not None:
                break  # what a primitive must be given goes without names
            value = args.pop(0).value
            first += map(arg, value.items) if h.kind == "sizes" and isinstance(value, ast.List) else [arg(value)]
        return given(given(function, first), args)

    def _holds(self, key: str, of: Any, values: Mapping[str, Any]) -> bool:
        """Whether a slot says a block that has been given nothing else."""
        e, block = self.slots[key]
        if not isinstance(block, BlockValue) or not isinstance(e, ast.Name | ast.Call):
            return False
        if _header(block.target) is not of.header or not values.keys() >= block.args.keys():
            return False
        return all(self._value(v) == self._value(values[n]) for n, v in block.args.items())

    def _hyper(self, h: ast.Hyper | None, name: str, values: Mapping[str, Any], held: bool) -> ast.Expr | None:
        """The value of a hyper-parameter, as the slot of its name says it; None if the block takes it anyway."""
        kind, default = (h.kind or "", h.default) if h is not None else ("", None)
        value = values[name]
        plain = said = self._value(value, kind)
        if held and name in self.slots and not isinstance(value, Num | SharedModule):
            e, slot = self.slots[name]
            said = e if plain == self._value(slot, kind) else plain
            if said is e and ast.names_in(e) & (self.lets | self.block.hypers.keys()):
                return e
        if isinstance(default, ast.Name) and default.id in values:
            default = self._value(values[default.id], kind)
        usual = plain == default
        if isinstance(plain, ast.Number | ast.Unary) and isinstance(default, ast.Number | ast.Unary):
            usual = float(format_expr(plain)) == float(format_expr(default))
        return None if usual or (default is None and value == ()) else said

    def _found(self, name: str) -> Any:
        """What the file declares by a name, or None."""
        return (self.module.find(name) or (None, None))[1]

    def _visible(self, of: Block | Primitive | ast.BlockDecl | ast.ModelDecl) -> str:
        """The name under which the file can say a block or primitive."""
        if of.header in (_header(find_primitive(of.name)), _header((find_in_library(of.name) or (0, None))[1])):
            if self._found(of.name) is not None or of.name in self.blocks:
                raise ExpansionError(f"the file's own `{of.name}` hides the library's")
            return of.name
        for seen in self.module.visible():
            if _header(self._found(seen)) is of.header:
                return seen
        raise ExpansionError(f"`{of.name}` has no name in this file")

    def _value(self, value: Any, kind: str = "") -> ast.Expr:
        """A static value as an expression of the body, for an option of that kind. Raises ExpansionError."""
        match value:
            case Num():
                return expr_of(substitute(value.expr, self.numbers))
            case None | bool():
                return name_of("none" if value is None else str(value).lower())
            case EnumValue(name):
                return name_of(name)
            case str():  # what an option took as a word is a string from then on
                return name_of(value) if kind in ("word", "type") else ast.String(value, span=NOWHERE)
            case SharedModule():
                return self._instance(value)
            case BlockValue(target, args):
                return self._block(target.node if isinstance(target, Declared) else target, args)
            case Scheme(name, numbers, lists):
                given_ = {k: n for k, n in numbers.items() if n.origin is not None or len(numbers) == 1}
                return given(name_of(name), [arg(self._value(v), k) for k, v in {**lists, **given_}.items()])
            case InitRules(rules):
                first = [(r.pattern, self._value(r.scheme)) for r in rules]
                said = tuple(ast.Rule(pattern, e, pattern_span=NOWHERE, span=NOWHERE) for pattern, e in first)
                return ast.Rules(said, span=NOWHERE)
            case Mask():
                return self._mask(value)
            case ListValue():
                return self._list(value)
            case tuple():
                items = tuple(map(self._value, value))
                return items[0] if kind == "ints" and len(items) == 1 else ast.List(items, span=NOWHERE)
        raise ExpansionError(f"{kind_of(value)} has no name")

    def _mask(self, mask: Mask) -> ast.Expr:
        if mask.rule in ("&", "|"):
            return reduce(partial(binary, mask.rule), map(self._mask, mask.parts))
        if mask.rule == "~":
            return ast.Unary("~", self._mask(mask.parts[0]), span=NOWHERE)
        read = [] if mask.tensor is None else [self._read(mask.tensor)]
        if read and mask.rule in INPUTS:
            return read[0]  # a tensor that is a mask by its type
        return given(name_of(mask.rule), [*map(arg, read), *map(arg, map(self._value, mask.numbers))])

    def _list(self, value: ListValue) -> ast.Expr:
        distinct = [self._value(v) for v in {value_key(v): v for v in value.items}.values()]

        def spell(p: Pattern) -> ast.Expr:
            if isinstance(p, ElementRef):
                return ast.List((distinct[p.index],), span=NOWHERE)
            if isinstance(p, RepeatedPattern):
                known = {*free_names(p.count)} <= self.lets | self.block.hypers.keys()
                return binary("*", expr_of(p.count if known else Lit(str(p.times))), spell(p.part))
            return reduce(partial(binary, "+"), map(spell, p.parts)) if p.parts else ast.List((), span=NOWHERE)

        return spell(value.pattern)


def _within(span: Span | None, around: Span) -> bool:
    return span is not None and span.source is around.source and around.start <= span.start < around.end


def _header(target: Any) -> ast.Header | None:
    """What a block, model or primitive declares; None for anything else."""
    return getattr(target.node if isinstance(target, Declared) else target, "header", None)


# --- statements as text -----------------------------------------------------------------------------------------------


def replaced(e: Any, tensors: Mapping[Value, ast.Expr]) -> Any:
    """An expression with tensors replaced."""
    if isinstance(e, Tensor):
        return tensors.get(e.value, e)
    e = ast.mapped(e, partial(replaced, tensors=tensors))
    if isinstance(e, ast.Pipeline) and isinstance(e.head, ast.Pipeline):
        return ast.Pipeline(e.head.head, (*e.head.stages, *e.stages), span=NOWHERE)
    return e


def trace(e: Any) -> Iterator[Value | None]:
    """Tensors read, and None for each application, in the order in which they happen."""
    if isinstance(e, Tensor):
        yield e.value
    elif isinstance(e, ast.Pipeline):
        yield from trace(e.head)
        for stage in e.stages:
            yield from trace(stage)
            yield None
    else:
        for part in ast.parts(e):
            yield from trace(part)
        if isinstance(e, ast.Call):
            yield None


def fold(statements: Sequence[Statement], kept: set[Value]) -> list[Statement]:
    """Put what is used once, by the next statement, where it is used: not past another application, whose weights come
    first."""
    uses = Counter(v for s in statements for v in trace(s.expr))
    found: list[Statement] = []
    for s in reversed(statements):
        following = found[-1] if found else s
        if len(s.outputs) == 1 and not (s.before or s.loop or following.before or following.loop):
            value = s.outputs[0]
            if uses[value] == 1 and value not in kept and _fits(s.expr, following.expr, value):
                found[-1] = Statement(following.outputs, replaced(following.expr, {value: s.expr}))
                continue
        found.append(s)
    return found[::-1]


def _fits(made: ast.Expr, into: ast.Expr, value: Value) -> bool:
    steps = list(trace(into))
    if value not in steps or None in steps[: steps.index(value)]:
        return False
    # A sum keeps a statement of its own: `(x + f) -> norm` is hard to read.
    if isinstance(made, ast.Binary):
        return isinstance(into, ast.Binary) and into.op == made.op == "+"
    return _depth(into) + _depth(made) < MAX_NESTING // 4


def _depth(e: ast.Node) -> int:
    return 1 + max(map(_depth, ast.parts(e)), default=0)


def named(
    statements: Sequence[Statement], fixed: Mapping[Value, str], preferred: Mapping[Value, str], reserved: set[str]
) -> dict[Value, str]:
    """Names for tensors: the library's own, one name for several as long as none of them is still to be read."""
    names = dict(fixed)
    holders = {name: value for value, name in fixed.items()}
    last = {v: i for i, s in enumerate(statements) for v in trace(s.expr) if v is not None}
    for i, s in enumerate(statements):
        for value in (v for v in s.outputs if v not in fixed):
            # The library reads none of what a loop changes again behind it.
            first = next(v for v in trace(s.expr) if v is not None) if s.loop else None
            name = base = names[first] if first is not None else preferred.get(value) or value.name or "y"
            n = 1
            while name in reserved or (name in holders and last.get(holders[name], -1) > i):
                n += 1
                name = f"{base}_{n}"
            names[value] = name
            holders[name] = value
    return names


def _line(s: Statement, names: Mapping[Value, str]) -> str:
    tensors = {v: name_of(name) for v, name in names.items()}
    targets = ", ".join(names[v] for v in s.outputs)
    e = replaced(s.expr, tensors)
    if s.before:
        return f"  {s.before}{format_expr(e)}{s.after}"
    adds = isinstance(e, ast.Binary) and e.op == "+" and e.left == name_of(targets)
    line = f"{targets} += {format_expr(e.right)}" if adds else f"{targets} = {format_expr(e)}"
    return f"  {s.loop}\n    {line}\n  }}" if s.loop else f"  {line}"


def _text(writer: _Writer) -> str:
    """The declaration in equations."""
    block, graph = writer.block, writer.block.graph
    expressions = [*ast.walk((*(s.expr for s in writer.statements), *writer.made.values()))]
    calls = [e for s in writer.statements for e in ast.walk(s.expr) if isinstance(e, ast.Call)]
    for call, times in Counter(format_expr(e) for e in calls if e.function == name_of("shared")).items():
        if times > 1:
            raise ExpansionError(f"`{call}` would be written twice, and make two")
    if not {e.value for e in expressions if isinstance(e, Tensor)} <= writer.own:
        raise ExpansionError("a mask of it reads a tensor of another block")
    returned = [v for v in graph.outputs if v is not None]
    inputs = dict(zip(graph.inputs, block.tensor_names, strict=True))
    last = ast.List(tuple(Tensor("", v, span=NOWHERE) for v in returned), span=NOWHERE)
    statements = [*fold(writer.statements, {*returned}), Statement((), last, "return ")]
    top, said = _top(writer, writer.said.union(e.id for e in expressions if isinstance(e, ast.Name)))
    hypers = {h.name for h in writer.hypers}
    for name in inputs.values():
        if name in hypers or (name in said and (name in writer.lets or writer.module.find(name) is not None)):
            raise ExpansionError(f"`{name}` is a tensor too")
    inputs.update(writer.steps)
    names = named(statements, inputs, writer.names, said | hypers)
    lines = [*top, *(_line(s, names) for s in statements[:-1])]
    first = next(iter(block.tensor_names), None)
    if [names[v] for v in returned] != [first] or returned[0] in inputs:
        # The last value of the first tensor is given back anyway, where it was bound again.
        lines.append(f"  return {', '.join(names[v] for v in returned)}")
    return "\n".join([f"{_head(writer, first)} {{", *lines, "}"])


def _top(writer: _Writer, said: set[str]) -> tuple[list[str], set[str]]:
    """Return the lines above the equations, and `said` with the names that they say. The lines are the items beside the
    slots, then a `let` for each shared block of the library, but no `let` that nothing reads."""
    items: list[tuple[Any, str]] = [(item, item.span.text) for item in writer.body.items]
    items += [(ast.Let(n, e, span=NOWHERE), f"let {n} = {format_expr(e)}") for n, e in writer.made.items()]
    lines: list[str] = []
    for item, text in reversed(items):
        if item.name in said if isinstance(item, ast.Let) else not isinstance(item, ast.Slot) or item.key == "init":
            said = said | ast.names_in(item)
            lines.append(f"  {text}")
    return lines[::-1], said


def _head(writer: _Writer, first: str | None) -> str:
    """The head of the declaration, its tensors named."""
    node, block = writer.node, writer.block
    head = node.name + (f"({', '.join(map(hyper, writer.hypers))})" if writer.hypers else "")
    behind = results(node.header)
    if isinstance(node, ast.ModelDecl):
        pairs = zip(block.tensor_names, block.graph.inputs, strict=True)
        return f"model {head}({', '.join(f'{name}: {type_of(v)}' for name, v in pairs)}){behind}"
    own = next((t for t in node.header.tensors or () if t.name == "x"), None)
    if not behind and own is not None and first != "x":
        # Else the result of equations would have the shape of the first tensor.
        behind = f" -> {tensor_type(own.type)}"
    return f"block {head}({', '.join(map(tensor_param, tensor_params(Declared(node, writer.module))))}){behind}"


# --- the spec ---------------------------------------------------------------------------------------------------------


def expand_spec(module: SpecModule, model: str | None, overrides: Mapping[str, str], only: str | None) -> str:
    """The file with every declared body that its models use written out; with `only`, that declaration alone.

    Raises ArchError where the spec is wrong, and E0210 where it declares no such block."""
    source, tree = module.source, module.tree
    declared = {d.name: d for d in tree.declarations if isinstance(d, ast.BlockDecl | ast.ModelDecl)}
    if only is not None and only not in declared:
        help_ = one_of(only, declared, "it has")
        raise error("E0210", f"{source.name} declares no block or model `{only}`", help=help_)
    bodies = {id(d.header): d for d in declared.values() if isinstance(d.body, ast.Body) and d.body.is_of_slots}
    texts: dict[str, str] = {}
    inline = [d.name for d in bodies.values() if isinstance(d, ast.BlockDecl) and d.inline]
    why = dict.fromkeys(inline, "an inline block is a part of those around it")
    for name in [model] if model is not None else list(models(module)):
        built = Elaborator(module).build(name, overrides, hoist=False)
        calls = (call for node in nodes_below(built.block.graph) for call in calls_of(node))
        for block in dict.fromkeys([built.block, *(call.block for call in calls)]):
            node = bodies.get(id(block.header))
            if node is None or isinstance(node, ast.ModelDecl) != (block is built.block):
                continue
            try:
                text = _text(_Writer(module, node, built, block))
                if texts.setdefault(node.name, text) != text:
                    raise ExpansionError("its equations depend on what it is given")
            except ExpansionError as problem:
                why.setdefault(node.name, str(problem))
        module.constants.clear()
    text, end = "", 0
    for name, declaration in declared.items():
        if name in why:
            note = f"# Kept as it is declared: {why[name]}.\n"
            noted = source.text[: declaration.span.start].endswith(note)
            texts[name] = f"{'' if noted else note}{declaration.span.text}"
        text += source.text[end : declaration.span.start] + texts.get(name, declaration.span.text)
        end = declaration.span.end
    text = text + source.text[end:] if only is None else texts.get(only, declared[only].span.text)
    result = Source(source.name, text)
    return format_file(parse(result), result)
