"""Declared bodies as the equations they stand for: `archdsl show --expand`.

A body of slots is a call of a library block that is itself written in equations.  The expander elaborates the spec as
always and notes, within that call, every application of a block to tensors: which of the library's conditions hold,
what was offered to whom and what each part is called is then decided.  The notes become statements again (single uses
are put where they are used, tensors get the library's names for them), printed in place of the declaration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

from archdsl.diagnostics import error
from archdsl.diagnostics.source import Source, Span
from archdsl.frontend.block_builder import BlockBuilder
from archdsl.frontend.expressions import unchanged
from archdsl.frontend.headers import hypers_of, is_inline, tensor_params
from archdsl.frontend.lists import value_key
from archdsl.frontend.modules import SpecModule, models
from archdsl.frontend.root import Elaborator
from archdsl.frontend.schemes import GIVEN, SAVED
from archdsl.frontend.scopes import BlockCall, Scope
from archdsl.frontend.statements import first_value
from archdsl.ir import dims
from archdsl.ir.dims import Num
from archdsl.ir.graph import CallNode, OpNode, Value
from archdsl.ir.masks import Mask
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
    kind_of,
)
from archdsl.ir.wording import one_of
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE
from archdsl.syntax.format import format_expr, format_file
from archdsl.syntax.layout import hyper, results, tensor_param, tensor_type
from archdsl.syntax.limits import MAX_NESTING
from archdsl.syntax.parse import parse


class ExpansionError(Exception):
    """Something of a body cannot be said in equations; the declaration stays."""


# --- what is written down ---------------------------------------------------------------------------------------------


@dataclass
class Def:
    """Tensors made by one expression. Tensors within expressions are names such as `%140`."""

    outputs: tuple[int, ...]
    expr: ast.Expr


@dataclass
class Kept:
    """Another statement, as text around expressions: an assertion, a weight, a `let`."""

    write: Callable[[Mapping[int, str]], str]
    reads: tuple[ast.Expr, ...] = ()
    outputs: tuple[int, ...] = ()


@dataclass
class ExpandedLoop:
    """`carried` holds, for each tensor: the one before the loop, the body's, the body's last, the one after the
    loop."""

    variable: str
    iterable: ast.Expr
    body: list[Note]
    carried: list[tuple[int, int, int, int]]


Note = Def | Kept | ExpandedLoop
_Path = OpNode | CallNode | SharedModule | str | None


@dataclass(eq=False)
class Recorder:
    """What one declared body does."""

    node: ast.BlockDecl | ast.ModelDecl
    scope: Scope
    notes: list[Note] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    """Preferred names of tensors; the inputs' are fixed."""
    inputs: dict[int, str] = field(default_factory=dict)
    results: tuple[int, ...] = ()
    fields: dict[str, ast.Expr] = field(default_factory=dict)
    """Slots that become hyper-parameters of an expanded model: `vocab`, `context`."""
    tensors: tuple[str, ...] = ()
    """The inputs of an expanded model, as written."""
    failed: str = ""
    asserted: list[ast.Expr] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    """Tensors that have been noted, or were there before."""
    once: list[ast.Expr] = field(default_factory=list)
    """Parts of slots that may be said only once: each time would be another shared block, or another application."""
    quiet: int = 0
    """Within the application of a block that stays as it is."""

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Note nothing of what is applied meanwhile."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1


class Expander(Elaborator):
    """Elaborates, and notes what declared bodies do."""

    def __init__(self, module: SpecModule) -> None:
        super().__init__(module)
        self.recorders: dict[int, Recorder] = {}
        self.done: list[Recorder] = []
        self.origins: dict[int, tuple[ast.Expr, frozenset[str]]] = {}
        self.slot_values: set[int] = set()
        self.alive: list[Any] = []
        self.iteration: tuple[Recorder, ExpandedLoop] | None = None
        self.carried: list[tuple[str, int, int]] = []
        self.slot: Recorder | None = None
        """The body of which a slot is being evaluated."""
        self.item: Any = None
        """What the variable of the innermost loop stands for in the iteration that is being run."""

    # --- which bodies ---

    def _slots(self, node: Any, scope: Scope, given: Mapping[str, Any]) -> Any:
        if node.name_span.source.library or isinstance(node, ast.ModelDecl):
            return super()._slots(node, scope, given)
        recorder = self._begin(node, scope)
        for name, value in given.items():
            if isinstance(value, Value):
                self._incoming(recorder, value, name)
        result = super()._slots(node, scope, given)
        self._end(recorder, result)
        return result

    def _slot_model(self, node: Any, scope: Scope, config: dict[str, Any], overrides: Any) -> Any:
        recorder = self._begin(node, scope)
        before = set(config)
        result = super()._slot_model(node, scope, config, overrides)
        for item in node.body.slots:
            if item.key in config and item.key not in before:
                recorder.fields[item.key] = item.value
        for name, value in {**self.inputs, **self.made_inputs}.items():
            self._incoming(recorder, value, name)
        self._end(recorder, result)
        return result

    def _begin(self, node: Any, scope: Scope) -> Recorder:
        recorder = Recorder(node, scope)
        self.recorders[id(scope.frame)] = recorder
        for name, value in scope.vars.items():
            self._register(value, ast.Name(name, span=NOWHERE))
        for slot in node.body.slots:
            self.slot_values.add(id(slot.value))
        return recorder

    def _end(self, recorder: Recorder, result: Any) -> None:
        flat = result if isinstance(result, tuple) else (result,)
        values = [v for item in flat for v in (item if isinstance(item, list) else [item])]
        recorder.results = tuple(id(v) for v in values)
        del self.recorders[id(recorder.scope.frame)]
        self.done.append(recorder)

    def _incoming(self, recorder: Recorder, value: Value, name: str) -> None:
        recorder.inputs[id(value)] = name
        recorder.known.add(id(value))
        self.alive.append(value)

    def _recorder(self, frame: BlockBuilder) -> Recorder | None:
        found = self.recorders.get(id(frame))
        return found if found is not None and not found.quiet and not found.failed else None

    # --- where static values come from ---

    def _register(self, value: Any, expr: ast.Expr) -> None:
        if isinstance(value, BlockValue):
            self.alive.append(value.args)
            self.origins[id(value.args)] = (expr, frozenset(value.args))
        elif isinstance(value, Mask | ListValue | Scheme | InitRules | SharedModule):
            self.alive.append(value)
            self.origins[id(value)] = (expr, frozenset())

    def ev(self, e: Any, scope: Scope, expect: str | None = None) -> Any:
        if id(e) in self.slot_values:
            # Nothing of a slot is noted: it is computed where its text is written.
            around, self.slot = self.slot, self.recorders[id(scope.frame)]
            with self.slot.silent():
                value = self._part(e, scope, expect)
            self.slot = around
            self._register(value, e)
            return value
        return super().ev(e, scope, expect) if self.slot is None else self._part(e, scope, expect)

    def _part(self, e: Any, scope: Scope, expect: str | None) -> Any:
        """The value of a part of a slot."""
        value = super().ev(e, scope, expect)
        made = isinstance(value, Value) or (isinstance(value, SharedModule) and id(value) not in self.origins)
        if self.slot is not None and made and isinstance(e, ast.Call | ast.Pipeline):
            self.slot.once.append(e)
        return value

    def with_options(
        self, template: BlockValue, static: Any, in_order: Any, span: Span, frame: BlockBuilder
    ) -> BlockValue:
        result = super().with_options(template, static, in_order, span, frame)
        origin = self.origins.get(id(template.args))
        if origin is not None and result.args is not template.args:
            expr, known = origin
            extra = [(k, v) for k, v in result.args.items() if k not in known and not _is_default(template, k, v)]
            try:
                expr = _given(expr, self._options(template, extra))
            except ExpansionError:
                return result
            self.alive.append(result.args)
            self.origins[id(result.args)] = (expr, frozenset(result.args))
        return result

    def _options(self, template: BlockValue, options: Iterable[tuple[str, Any]]) -> list[ast.Arg]:
        """Hyper-parameters of a block as named arguments. Raises ExpansionError."""
        words = {h.name for h in hypers_of(template).values() if h.kind in ("word", "type")}
        # What an option took as a word is a string from then on.
        return [arg(name_of(v) if k in words and isinstance(v, str) else self.written(v), k) for k, v in options]

    def written(self, value: Any) -> ast.Expr:
        """A static value as an expression of the body. Raises ExpansionError."""
        if isinstance(value, Num):
            return expr_of(value.expr)
        key = id(value.args) if isinstance(value, BlockValue) else id(value)
        if isinstance(value, BlockValue | Mask | ListValue | Scheme | InitRules | SharedModule) and key in self.origins:
            return self.origins[key][0]
        if value is None or isinstance(value, bool):
            return name_of("none" if value is None else str(value).lower())
        if isinstance(value, EnumValue):
            return name_of(value.name)
        if isinstance(value, str):
            return ast.String(value, span=NOWHERE)
        if isinstance(value, BlockValue):
            return self._template(value)
        if isinstance(value, Scheme):
            return _given(name_of(value.name), [arg(self.written(n), k) for k, n in value.numbers.items()])
        if isinstance(value, Mask):
            return self._mask(value)
        if isinstance(value, ListValue):
            return self._list(value)
        if isinstance(value, tuple):
            return list_of(*map(self.written, value))
        raise ExpansionError(f"{kind_of(value)} has no name")

    def _template(self, template: BlockValue) -> ast.Expr:
        """A block by its name, with its hyper-parameters in their order; those that a primitive must be given go
        without names."""
        hypers = list(hypers_of(template).values())
        order = {h.name: i for i, h in enumerate(hypers)}
        given = sorted(template.args.items(), key=lambda a: order.get(a[0], len(order)))
        args = self._options(template, ((k, v) for k, v in given if not _is_default(template, k, v)))
        function: ast.Expr = name_of(self._visible(template))
        if isinstance(template.target, Primitive):
            first: list[ast.Arg] = []
            while args and order.get(args[0].name or "") == len(first) and hypers[len(first)].default is None:
                first.append(arg(args.pop(0).value))
            function = called(function, first) if first else function
        return _given(function, args)

    def _visible(self, template: BlockValue) -> str:
        """The name under which the file can say a block."""
        name = template.target.name
        found = self.module.find(name)
        if isinstance(template.target, Primitive) or template.target.module.source.library:
            if found is not None:
                raise ExpansionError(f"the file's own `{name}` hides the library's")
            return name
        target = template.target
        for seen in self.module.visible():
            declared = self.module.find(seen)
            if declared is not None and declared[1] is target.node:
                return seen
        raise ExpansionError(f"`{name}` has no name in this file")

    def _mask(self, mask: Mask) -> ast.Expr:
        if id(mask) in self.origins:
            return self.origins[id(mask)][0]
        if mask.rule in ("&", "|"):
            return _joined(mask.rule, map(self._mask, mask.parts))
        if mask.rule == "~":
            return unary("~", self._mask(mask.parts[0]))
        args = [arg(expr_of(n.expr)) for n in mask.numbers]
        if mask.tensor is not None:
            return tensor(mask.tensor)  # one that is a mask by its type; other masks of tensors are slots' own
        return called(name_of(mask.rule), args) if args else name_of(mask.rule)

    def _list(self, value: ListValue) -> ast.Expr:
        elements = {value_key(v): v for v in value.items}
        distinct = [list_of(self.written(v)) for v in elements.values()]

        def spell(p: Pattern) -> ast.Expr:
            if isinstance(p, ElementRef):
                return distinct[p.index]
            if isinstance(p, RepeatedPattern):
                return binary("*", expr_of(p.count), spell(p.part))
            return _joined("+", map(spell, p.parts)) if p.parts else list_of()

        return spell(value.pattern)

    # --- applications ---

    def read(self, value: Any) -> ast.Expr:
        """A tensor, number or shared block where a tensor is taken."""
        if isinstance(value, Value):
            self.alive.append(value)
            return tensor(value)
        return self.written(value)

    def _note(self, recorder: Recorder, result: Any, make: Callable[[], ast.Expr]) -> None:
        values = [v for v in (result if isinstance(result, tuple) else (result,)) if isinstance(v, Value)]
        if not values or any(id(v) in recorder.known for v in values):
            return  # a dropout of 0 gives back what it got
        recorder.known |= {id(v) for v in values}
        self.alive += values
        try:
            recorder.notes.append(Def(tuple(id(v) for v in values), make()))
        except ExpansionError as problem:
            recorder.failed = str(problem)

    def apply_template(self, call: BlockCall) -> Any:
        template, instance, frame = call.template, call.instance, call.scope.frame
        recorder = self._recorder(frame)
        if recorder is None or _expands(template):
            return super().apply_template(call)
        before = len(frame.nodes)
        recorder.known |= {id(v) for v, _ in (*call.tensors, *call.named.values())}
        with recorder.silent():
            result = super().apply_template(call)
        made = [n for n in frame.nodes[before:] if isinstance(n, OpNode | CallNode)]
        node = made[-1] if made and not is_inline(template) else None

        def make() -> ast.Expr:
            callee = self.written(instance or template)
            positional = [self.read(v) for v, _ in call.tensors if v is not None]
            named = ((k, v) for k, (v, _) in call.named.items() if isinstance(v, Value | SharedModule | Num))
            by_name = tuple(arg(self.read(v), k) for k, v in named)
            joins = all(isinstance(v, Value) for v, _ in call.tensors)
            path: _Path = node if instance is None else instance
            if instance is not None and instance is self.item:
                path = call.as_name or None  # other elements of the list, which are not shared, take that name
            return _Application(
                callee, by_name, tuple(positional), path, _natural(template, callee), joins, span=NOWHERE
            )

        self._note(recorder, result, make)
        return result

    def _noted(self, scope: Scope, work: Callable[[], Any], make: Callable[[], ast.Expr]) -> Any:
        """The result of `work`, noted as what `make` writes where the body is one that is noted."""
        recorder = self._recorder(scope.frame)
        if recorder is None:
            return work()
        with recorder.silent():
            result = work()
        self._note(recorder, result, make)
        return result

    def _elementwise(self, op: Primitive, args: Any, scope: Scope, span: Span) -> Any:
        def make() -> ast.Expr:
            by_name = tuple(arg(self.read(v), k) for k, v, _ in args if k is not None)
            positional = tuple(self.read(v) for k, v, _ in args if k is None)
            return _Application(name_of(op.name), by_name, positional, None, op.name, span=NOWHERE)

        return self._noted(scope, partial(super()._elementwise, op, args, scope, span), make)

    def operate(self, op: str, a: Any, b: Any, e: ast.Binary, scope: Scope) -> Any:
        if unchanged(op, a, b) is not None:
            return super().operate(op, a, b, e, scope)

        def make() -> ast.Expr:
            return binary(op, self.read(a), self.read(b))

        return self._noted(scope, partial(super().operate, op, a, b, e, scope), make)

    def _index(self, e: ast.Index, scope: Scope) -> Any:
        if self._recorder(scope.frame) is None:
            return super()._index(e, scope)
        value = self.ev(e.value, scope)
        # The tensor has been evaluated and noted: what is indexed now is that very tensor.
        inner = scope.inner()
        inner.vars["indexed tensor"] = value
        of_value = replace(e, value=ast.Name("indexed tensor", span=e.value.span))

        def make() -> ast.Expr:
            items = tuple(self._index_item(i, scope) for i in e.items)
            return ast.Index(tensor(value), items, span=NOWHERE)

        return self._noted(scope, partial(super()._index, of_value, inner), make)

    def _index_item(self, item: ast.Expr, scope: Scope) -> ast.Expr:
        if isinstance(item, ast.Slice):
            low, high = (None if end is None else self._index_item(end, scope) for end in (item.low, item.high))
            return ast.Slice(low, high, span=NOWHERE)
        return self.read(self.ev(item, scope))

    # --- statements ---

    def say_init(self, value: Any, slot: ast.Slot, scope: Scope) -> None:
        super().say_init(value, slot, scope)
        recorder = self._recorder(scope.frame)
        if recorder is not None and scope is recorder.scope:
            recorder.notes.append(Kept(lambda names: f"init: {format_expr(slot.value)}"))

    def statement(self, item: Any, scope: Scope) -> None:
        recorder = self._recorder(scope.frame)
        if recorder is None:
            super().statement(item, scope)
            return
        if scope is recorder.scope:
            # The user's own `let` or `assert` beside the slots.
            with recorder.silent():
                super().statement(item, scope)
            text = item.span.text
            recorder.notes.append(Kept(lambda names: text))
            if isinstance(item, ast.Let):
                self._register(scope.vars[item.name], name_of(item.name))
            return
        super().statement(item, scope)
        try:
            if isinstance(item, ast.Let) and isinstance(scope.vars[item.name], SharedModule):
                instance = scope.vars[item.name]
                if id(instance) not in self.origins:
                    made = self.written(instance.template)
                    recorder.notes.append(Kept(lambda names: f"let {instance.label} = shared({spelled(made, names)})"))
                    self._register(instance, name_of(instance.label))
            elif isinstance(item, ast.Assert):
                message = f', "{item.message}"' if item.message is not None else ""
                self._claim_kept(item.condition, message, scope, recorder)
        except ExpansionError as problem:
            recorder.failed = str(problem)

    def _claim_kept(self, condition: ast.Expr, message: str, scope: Scope, recorder: Recorder) -> None:
        """Static conditions hold and are gone; what only the running model knows stays, and what is to be proved."""
        if (
            isinstance(condition, ast.Call)
            and isinstance(condition.function, ast.Name)
            and condition.function.id == "causal"
        ):
            args = [arg(self.read(self.ev(a.value, scope)), a.name) for a in condition.args]
            usual = arg(number_of("1"), "ahead")
            call: ast.Expr = called(name_of("causal"), [a for a in args if a != usual])
        elif isinstance(condition, ast.Binary) and condition.op in ("==", "!=", "<", "<=", ">", ">="):
            a, b = self.ev(condition.left, scope), self.ev(condition.right, scope)
            if not (isinstance(a, Num) and isinstance(b, Num)) or (a.static and b.static):
                return
            call = binary(condition.op, expr_of(a.expr), expr_of(b.expr))
        else:
            return
        if call not in recorder.asserted:
            recorder.asserted.append(call)
            recorder.notes.append(Kept(lambda names: f"assert {spelled(call, names)}{message}", (call,)))

    def _bind(self, name: str, value: Any, type_: Any, scope: Scope, span: Span) -> None:
        super()._bind(name, value, type_, scope, span)
        recorder = self._recorder(scope.frame)
        if recorder is not None and isinstance(value, Value):
            recorder.names[id(value)] = name
            self.alive.append(value)

    def _param(self, s: ast.Param, scope: Scope) -> None:
        super()._param(s, scope)
        recorder = self._recorder(scope.frame)
        if recorder is None:
            return
        value = scope.vars[s.name]
        self.alive.append(value)
        shape = ", ".join(format_expr(expr_of(d.expr)) for d in value.shape)
        value_of = first_value(s, scope)
        first = GIVEN if value_of is None else format_expr(self.written(self.ev(value_of, scope, "scheme")))
        first = f"{SAVED}({first})" if value_of not in (None, s.value) else first
        kind = s.type.kind or ""
        recorder.names[id(value)] = s.name
        recorder.notes.append(
            Kept(lambda names: f"{s.kind} {names[id(value)]}: {kind}[{shape}] = {first}", (), (id(value),))
        )

    def for_loop(self, s: ast.For, scope: Scope, *, collect: bool) -> Any:
        recorder = self._recorder(scope.frame)
        if recorder is None or collect:
            return super().for_loop(s, scope, collect=collect)
        iterable = self.written(self.ev(s.iterable, scope))
        loop = ExpandedLoop(s.name, iterable, [], [])
        self.carried = []
        outer, before = recorder.notes, dict(scope.vars)
        self.iteration = (recorder, loop)
        try:
            result = super().for_loop(s, scope, collect=collect)
        finally:
            recorder.notes = outer
        if recorder.failed:
            return result
        carried = []
        for name, first, last in self.carried:
            after = scope.vars[name]
            self.alive += [after, before.get(name)]
            carried.append((id(self._start(before, scope, name)), first, last, id(after)))
        loop.carried = carried
        outer.append(loop)
        return result

    def _start(self, before: Mapping[str, Any], scope: Scope, name: str) -> Any:
        return before[name] if name in before else (scope.parent.get(name) if scope.parent is not None else None)

    def _iteration(
        self, s: ast.For, scope: Scope, item: Any, carried: list[str], state: list[Value], names: Any, collect: bool
    ) -> Any:
        recorder = self._recorder(scope.frame)
        if recorder is None or self.iteration is None:
            return super()._iteration(s, scope, item, carried, state, names, collect)
        _, loop = self.iteration
        first = not loop.body and not loop.carried
        recorder.notes = []
        key = id(item.args) if isinstance(item, BlockValue) else id(item)
        origin, around = self.origins.get(key), self.item
        self.item = item
        if isinstance(item, BlockValue | SharedModule):
            self._register(item, name_of(s.name))
        try:
            graph, emits = super()._iteration(s, scope, item, carried, state, names, collect)
        finally:
            self.item = around
            if origin is not None:
                self.origins[key] = origin
        if first:
            loop.body = recorder.notes
            ends = graph.outputs[: len(carried)]
            self.carried = [(n, id(i), id(e)) for n, i, e in zip(carried, graph.inputs, ends, strict=True)]
            self.alive += [*graph.inputs, *ends]
        return graph, emits


class _Application(ast.Call):
    """A block applied to tensors, `args` by name. Its step in the path is known when the statement has ended: the node
    has it then."""

    tensors: tuple[ast.Expr, ...]
    path: _Path
    """What holds its step, or the step itself."""
    natural: str
    joins: bool = True
    """Whether what follows the first tensor is tensors too, and no shared block."""

    def resolve(self) -> ast.Expr:
        """The call or pipeline that it is written as."""
        path, tensors, named = self.path, self.tensors, self.args
        name = path or ""
        if not isinstance(name, str):
            name = name.label if isinstance(name, SharedModule) else name.name
        function: ast.Expr = self.function
        extra = (*map(arg, tensors[1:]), *named)
        if not tensors and not named:
            return function
        # `residual(x, h)` as a call; `x -> unembed(words)` as a pipeline, which carries the one tensor.
        piped = bool(tensors) and not (isinstance(self.function, ast.Name) and len(tensors) > 1 and self.joins)
        if not piped:
            extra = (*map(arg, tensors), *named)
        if extra:
            args = function.args if isinstance(function, ast.Call) else ()
            base = function.function if isinstance(function, ast.Call) else function
            function = called(base, (*args, *extra) if named or not args else (*extra, *args))
        # A `linear` without a name of its own may be called by what it is bound to.
        if name and (name != self.natural or name == "linear"):
            function = ast.As(function, name, name_span=NOWHERE, span=NOWHERE)
        if not piped:
            return function
        head = tensors[0]
        if isinstance(head, ast.Pipeline):
            return ast.Pipeline(head.head, (*head.stages, function), span=NOWHERE)
        return ast.Pipeline(head, (function,), span=NOWHERE)


def _is_default(template: BlockValue, name: str, value: Any) -> bool:
    """Whether a number or word is what the block takes anyway."""
    hyper = hypers_of(template).get(name)
    default = hyper.default if hyper is not None else None
    if value is None or isinstance(value, bool):
        return default == name_of("none" if value is None else str(value).lower())
    return isinstance(value, Num) and isinstance(default, ast.Number) and expr_of(value.expr) == default


def _expands(template: BlockValue) -> bool:
    """Inline blocks of the library are written out; those of the user stay calls."""
    return is_inline(template) and isinstance(template.target, Declared) and template.target.module.source.library


def _natural(template: BlockValue, callee: ast.Expr) -> str:
    """What an application of the callee would be called without `as`."""
    base = callee.function if isinstance(callee, ast.Call) else callee
    if isinstance(base, ast.Name) and base.id != template.target.name:
        return base.id
    return template.target.name


def list_of(*elements: ast.Expr) -> ast.List:
    return ast.List(elements, span=NOWHERE)


def _joined(op: str, parts: Iterable[ast.Expr]) -> ast.Expr:
    return reduce(partial(binary, op), parts)


def tensor(value: Value) -> ast.Name:
    return ast.Name(f"%{id(value)}", span=NOWHERE)


def name_of(name: str) -> ast.Name:
    return ast.Name(name, span=NOWHERE)


def binary(op: str, a: ast.Expr, b: ast.Expr) -> ast.Binary:
    return ast.Binary(op, a, b, span=NOWHERE)


def unary(op: str, a: ast.Expr) -> ast.Unary:
    return ast.Unary(op, a, span=NOWHERE)


def called(function: ast.Expr, args: Iterable[ast.Arg]) -> ast.Call:
    return ast.Call(function, tuple(args), span=NOWHERE)


def _given(function: ast.Expr, args: Sequence[ast.Arg]) -> ast.Expr:
    """A function, or a call, with more arguments."""
    if isinstance(function, ast.Call):
        return called(function.function, (*function.args, *args))
    return called(function, args) if args else function


def arg(value: ast.Expr, name: str | None = None) -> ast.Arg:
    return ast.Arg(name, value, span=NOWHERE)


def number_of(text: str) -> ast.Number:
    return ast.Number(text, span=NOWHERE)


def expr_of(expr: dims.Expr) -> ast.Expr:
    """Arithmetic of sizes as an expression of the language."""
    if isinstance(expr, dims.Lit):
        return unary("-", number_of(expr.text[1:])) if expr.text.startswith("-") else number_of(expr.text)
    if isinstance(expr, dims.Var):
        if "." in expr.name:
            raise ExpansionError(f"a size without a name: {expr.name}")
        return name_of(expr.name)
    if isinstance(expr, dims.Bin):
        return binary(expr.op, expr_of(expr.left), expr_of(expr.right))
    return called(name_of(expr.name), [arg(expr_of(a)) for a in expr.args])


# --- from notes to statements -----------------------------------------------------------------------------------------


def transform(e: Any, visit: Callable[[ast.Name], ast.Expr]) -> Any:
    """An expression with its tensors replaced."""
    return visit(e) if isinstance(e, ast.Name) else ast.mapped(e, lambda part: transform(part, visit))


def settle(e: Any) -> Any:
    """Applications as calls and pipelines."""
    e = ast.mapped(e, settle)
    return e.resolve() if isinstance(e, _Application) else e


def trace(e: Any) -> Iterator[int | None]:
    """Tensors read (by id) and applications made (None), in the order in which they happen."""
    if isinstance(e, ast.Name):
        if e.id.startswith("%"):
            yield int(e.id[1:])
    elif isinstance(e, _Application):
        yield from trace((*e.tensors, *e.args, e.function))
        yield None
    else:
        for part in ast.parts(e):
            yield from trace(part)


def reads(note: Note) -> Iterator[int]:
    if isinstance(note, Def):
        yield from (v for v in trace(note.expr) if v is not None)
    elif isinstance(note, Kept):
        yield from (v for e in note.reads for v in trace(e) if v is not None)
    else:
        yield from (start for start, *_ in note.carried)
        made = {v for n in note.body for v in outputs(n)} | {first for _, first, _, _ in note.carried}
        yield from (v for n in note.body for v in reads(n) if v not in made)


def outputs(note: Note) -> tuple[int, ...]:
    return tuple(after for *_, after in note.carried) if isinstance(note, ExpandedLoop) else note.outputs


def fold(notes: list[Note], kept: set[int]) -> list[Note]:
    """Put what is used once, by the next statement, where it is used: not past another application, whose weights come
    first."""
    result: list[Note] = []
    uses: dict[int, int] = {}
    for note in notes:
        for value in reads(note):
            uses[value] = uses.get(value, 0) + 1
    for note in reversed(notes):
        if isinstance(note, ExpandedLoop):
            note.body = fold(note.body, kept)
        following = result[-1] if result else None
        if isinstance(note, Def) and len(note.outputs) == 1 and isinstance(following, Def):
            value = note.outputs[0]
            if uses.get(value) == 1 and value not in kept and _fits(note.expr, following.expr, value):
                result[-1] = Def(following.outputs, _put(following.expr, f"%{value}", note.expr))
                continue
        result.append(note)
    return result[::-1]


def _put(into: ast.Expr, marker: str, made: ast.Expr) -> ast.Expr:
    found: ast.Expr = transform(into, lambda n: made if n.id == marker else n)
    return found


def _fits(made: ast.Expr, into: ast.Expr, value: int) -> bool:
    steps = list(trace(into))
    if value not in steps or None in steps[: steps.index(value)]:
        return False
    # A sum keeps a statement of its own: `(x + f) -> norm` is hard to read.
    if isinstance(made, ast.Binary):
        return isinstance(into, ast.Binary) and into.op == made.op == "+"
    return _depth(into) + _depth(made) < MAX_NESTING // 4


def _depth(e: ast.Node) -> int:
    return 1 + max(map(_depth, ast.parts(e)), default=0)


class _Namer:
    """Names for tensors: the library's own, one name for several as long as none of them is still to be read."""

    def __init__(self, reserved: set[str], preferred: Mapping[int, str]) -> None:
        self.reserved = reserved
        self.preferred = preferred
        self.names: dict[int, str] = {}

    def run(self, notes: Sequence[Note], after: set[int], forced: Mapping[int, str], holders: dict[str, int]) -> None:
        """Name what the notes make; `after` is read behind them."""
        last: dict[int, int] = {}
        for i, note in enumerate(notes):
            for value in reads(note):
                last[value] = i
        for value in after:
            last[value] = len(notes)
        for i, note in enumerate(notes):
            if isinstance(note, ExpandedLoop):
                self._loop(note, i, last, holders)
                continue
            for value in outputs(note):
                self._name(value, i, last, forced, holders)

    def _loop(self, loop: ExpandedLoop, i: int, last: Mapping[int, int], holders: dict[str, int]) -> None:
        inner: dict[int, str] = {}
        for start, first, end, after in loop.carried:
            # The library reads none of what a loop changes again behind it.
            inner[end] = self.names[first] = self.names[after] = self.names[start]
        carried = {self.names[first]: first for _, first, _, _ in loop.carried}
        # What lies around the loop is read in every iteration, or behind it.
        taken = {n: v for n, v in holders.items() if last.get(v, -1) >= i and n not in carried}
        reserved, self.reserved = self.reserved, self.reserved | set(taken)
        self.run(loop.body, set(inner), inner, dict(carried))
        self.reserved = reserved
        for *_, after in loop.carried:
            holders[self.names[after]] = after

    def _name(
        self, value: int, i: int, last: Mapping[int, int], forced: Mapping[int, str], holders: dict[str, int]
    ) -> None:
        if value in forced:
            name = forced[value]
        else:
            base, n = self.preferred.get(value, "y"), 1
            name = base
            while (
                name in self.reserved
                or name in forced.values()
                or (name in holders and last.get(holders[name], -1) > i)
            ):
                n += 1
                name = f"{base}_{n}"
        self.names[value] = name
        holders[name] = value


def spelled(e: ast.Expr, names: Mapping[int, str]) -> str:
    """An expression with its tensors by their names, on one line."""
    return format_expr(settle(transform(e, lambda n: name_of(names[int(n.id[1:])]) if n.id.startswith("%") else n)))


def _lines(notes: Sequence[Note], names: Mapping[int, str], indent: str) -> list[str]:
    found = []
    for note in notes:
        if isinstance(note, Kept):
            found.append(indent + note.write(names))
        elif isinstance(note, ExpandedLoop):
            found.append(f"{indent}for {note.variable} in {spelled(note.iterable, names)} {{")
            found += _lines(note.body, names, indent + "  ")
            found.append(indent + "}")
        else:
            found.append(indent + _definition(note, names))
    return found


def _definition(note: Def, names: Mapping[int, str]) -> str:
    targets = ", ".join(names[v] for v in note.outputs)
    e = note.expr
    first = e.left if isinstance(e, ast.Binary) and e.op == "+" else None
    if isinstance(e, ast.Binary) and isinstance(first, ast.Name) and spelled(first, names) == targets:
        return f"{targets} += {spelled(e.right, names)}"
    return f"{targets} = {spelled(e, names)}"


def _mentioned(e: Any) -> Iterator[str]:
    """Names that an expression says, tensors aside."""
    return (x.id for x in ast.walk(e) if isinstance(x, ast.Name) and not x.id.startswith("%"))


def _said(notes: Sequence[Note]) -> set[str]:
    """Names of blocks and numbers, which no tensor may take."""
    found: set[str] = set()
    for note in notes:
        if isinstance(note, Def):
            found |= set(_mentioned(note.expr))
        elif isinstance(note, ExpandedLoop):
            found |= {note.variable, *_mentioned(note.iterable)} | _said(note.body)
    return found


def _parts(note: Note) -> Iterator[ast.Node]:
    """Yield every syntax node of the expressions in a note."""
    if isinstance(note, ExpandedLoop):
        yield from ast.walk((note.iterable, *(e for n in note.body for e in _parts(n))))
    else:
        yield from ast.walk(note.expr if isinstance(note, Def) else note.reads)


def _text(recorder: Recorder) -> str:
    """The declaration in equations."""
    node = recorder.node
    if recorder.failed:
        raise ExpansionError(recorder.failed)
    said = Counter(id(e) for note in recorder.notes for e in _parts(note))
    for e in recorder.once:
        if said[id(e)] > 1:
            raise ExpansionError(f"`{' '.join(e.span.text.split())}` would be written twice, and make two")
    kept = set(recorder.results)
    for note in recorder.notes:
        if isinstance(note, ExpandedLoop):
            kept |= {v for four in note.carried for v in four}
    notes = fold(recorder.notes, kept)
    hypers = tuple(node.header.hypers or ())
    hypers += tuple(ast.Hyper(k, None, e, span=NOWHERE) for k, e in recorder.fields.items())
    lets = (
        {item.name for item in node.body.items if isinstance(item, ast.Let)}
        if isinstance(node.body, ast.Body)
        else set()
    )
    reserved = {h.name for h in hypers} | lets | _said(notes)
    namer = _Namer(reserved, recorder.names)
    namer.names.update(recorder.inputs)
    namer.run(notes, set(recorder.results), {}, {name: value for value, name in recorder.inputs.items()})
    lines = _lines(notes, namer.names, "  ")
    returned = [namer.names[r] for r in recorder.results]
    first = next(iter(recorder.inputs.values()), None)
    if returned != [first] or recorder.results[0] in recorder.inputs:
        # The last value of the first tensor is given back anyway, where it was bound again.
        lines.append(f"  return {', '.join(returned)}")
    tensors = recorder.tensors or tuple(tensor_param(t) for t in node.header.tensors or ())
    keyword = "model" if isinstance(node, ast.ModelDecl) else "inline block" if node.inline else "block"
    head = f"{keyword} {node.name}" + (f"({', '.join(map(hyper, hypers))})" if hypers else "")
    own = next((t for t in node.header.tensors or () if t.name == "x"), None)
    behind = results(node.header)
    if isinstance(node, ast.BlockDecl) and not behind and own is not None and first != "x":
        # Else the result of equations would have the shape of the first tensor.
        behind = f" -> {tensor_type(own.type)}"
    head += f"({', '.join(tensors)}){behind}"
    return "\n".join([f"{head} {{", *lines, "}"])


# --- the spec ---------------------------------------------------------------------------------------------------------


def expand_spec(module: SpecModule, model: str | None, overrides: Mapping[str, str], only: str | None) -> str:
    """The file with every declared body that its models use written out; with `only`, that declaration alone.

    Raises ArchError where the spec is wrong, and E0210 where it declares no such block."""
    source, tree = module.source, module.tree
    declared = {d.name: d for d in tree.declarations if isinstance(d, ast.BlockDecl | ast.ModelDecl)}
    if only is not None and only not in declared:
        help_ = one_of(only, declared, "it has")
        raise error("E0210", f"{source.name} declares no block or model `{only}`", help=help_)
    texts: dict[str, str] = {}
    why: dict[str, str] = {}
    for name in [model] if model is not None else list(models(module)):
        for recorder in _recordings(module, name, overrides):
            _settle_text(recorder, texts, why)
    replaced = []
    for name, declaration in declared.items():
        if name in texts:
            replaced.append((declaration, texts[name]))
        elif name in why:
            note = f"# Kept as it is declared: {why[name]}.\n"
            said = source.text[: declaration.span.start].endswith(note)
            replaced.append((declaration, f"{'' if said else note}{declaration.span.text}"))
    if only is not None:
        text = {d.name: t for d, t in replaced}.get(only, declared[only].span.text)
    else:
        text, end = "", 0
        for declaration, new in replaced:
            text += source.text[end : declaration.span.start] + new
            end = declaration.span.end
        text += source.text[end:]
    result = Source(source.name, text)
    return format_file(parse(result), result)


def _recordings(module: SpecModule, name: str | None, overrides: Mapping[str, str]) -> list[Recorder]:
    expander = Expander(module)
    built = expander.build(name, overrides)
    for recorder in expander.done:
        if isinstance(recorder.node, ast.ModelDecl):
            params = []
            for n, value in built.inputs:
                shape = tuple(expr_of(d.expr) for d in value.shape)
                kind = None if value.dtype == "float" else value.dtype
                params.append(f"{n}: {tensor_type(ast.TensorType(kind, shape, span=NOWHERE))}")
                recorder.inputs[id(value)] = n
            recorder.tensors = tuple(params)
        elif recorder.node.header.tensors is None:
            found = tensor_params(Declared(recorder.node, module))
            recorder.tensors = tuple(tensor_param(t) for t in found)
    module.constants.clear()
    # Tensors are known by identity: each recorder's frame keeps the expander, and with it every tensor, alive.
    return expander.done


def _settle_text(recorder: Recorder, texts: dict[str, str], why: dict[str, str]) -> None:
    name = recorder.node.name
    if name in why:
        return
    try:
        text = _text(recorder)
    except ExpansionError as problem:
        why[name] = str(problem)
        texts.pop(name, None)
        return
    if texts.setdefault(name, text) != text:
        why[name] = "its equations depend on what it is given"
        del texts[name]
