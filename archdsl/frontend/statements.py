"""Statements: bindings, weights, conditions, results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, assert_never

from archdsl.diagnostics import ArchError, Diagnostic, Label, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.block_builder import BlockBuilder
from archdsl.frontend.expressions import COMPARE, Expressions
from archdsl.frontend.first_values import NO_MATRIX, drawn_by_itself
from archdsl.frontend.headers import stored_kind
from archdsl.frontend.loops import Loops, bound_names, not_a_tensor
from archdsl.frontend.names import BIND_BEFORE, Names
from archdsl.frontend.primitives import Primitives
from archdsl.frontend.schemes import FIXED, GIVEN, SAVED
from archdsl.frontend.scopes import MISSING, POISON, Absent, BodyState, ReportedError, Scope, is_tensor
from archdsl.frontend.signatures import Signatures, demand_written
from archdsl.ir import dims
from archdsl.ir.dims import Num, Poly, Shape, Var, is_size_like, shape_text
from archdsl.ir.graph import (
    BOOLEANS,
    INTEGERS,
    CausalNode,
    CondNode,
    Graph,
    Init,
    LossNode,
    Node,
    OpNode,
    ParamNode,
    Value,
    Weight,
)
from archdsl.ir.ranges import TESTS
from archdsl.ir.signature import promoted
from archdsl.ir.static import BlockValue, ListValue, Scheme, SharedModule, kind_of, numbers_of
from archdsl.ir.wording import format_number, origins
from archdsl.syntax import ast


class Statements:
    """Runs statements."""

    def __init__(
        self,
        state: Elaboration,
        signatures: Signatures,
        primitives: Primitives,
        names: Names,
        expressions: Expressions,
        loops: Loops,
    ) -> None:
        self.state = state
        self.signatures = signatures
        self.primitives = primitives
        self.names = names
        self.expressions = expressions
        self.loops = loops

    def run(self, items: Sequence[ast.Statement], scope: Scope) -> None:
        """Run statements in order; each error is reported, and what depends on it stays silent."""
        before: ast.Statement | None = None
        for item in items:
            if scope.body.result is not None:
                if isinstance(before, ast.Return):
                    self.state.report(error("E0214", "nothing after `return` is ever used", item.span))
                return
            before = item
            try:
                self.run_one(item, scope)
            except (ArchError, ReportedError) as problem:
                if isinstance(problem, ArchError):
                    self.state.report(self._not_bound_yet(problem, scope))
                scope.frame.pending = []
                for name in bound_names(item):
                    if not isinstance(item, ast.Update):  # which keeps the shape, whatever is added
                        scope.vars[name] = POISON
                # What follows in the library only repeats it in other words.
                if isinstance(item, ast.Return | ast.Emit) or item.span.source.library or self.state.hopeless:
                    raise ReportedError from None

    def _not_bound_yet(self, problem: ArchError, scope: Scope) -> ArchError:
        """Say of a block of the library that stands where a tensor should, and is called as one that the loop around it
        binds, that no tensor of this name was bound before the loop."""
        found = []
        for d in problem.diagnostics:
            text = d.span.text if d.span is not None else ""
            name = next((n for n in re.findall(r"[^\W\d]\w*", text) if n == text or f"block `{n}`" in d.message), "")
            unknown = d.code == "E0206"  # which says so itself
            around = d.span is not None and self.state.bound_around(name, d.span)
            if around and not unknown and scope.get(name) is MISSING:
                text = f"`{name}` is a block of the library here: no tensor of that name was bound before the loop"
                d = Diagnostic("E0206", text, d.span, help=BIND_BEFORE.format(name=name))
            found.append(d)
        return ArchError(found)

    def run_one(self, item: ast.Statement, scope: Scope) -> None:
        """Run one statement."""
        match item:
            case ast.Let():
                self._let(item, scope)
            case ast.Assign():
                self._assign(item, scope)
            case ast.Update():
                self._update(item, scope)
            case ast.Param():
                self._param(item, scope)
            case ast.For():
                self.loops.for_loop(item, scope, collect=False)
            case ast.If():
                self._if(item, scope)
            case ast.Assert():
                message = item.message or f"`{item.condition.span.text}` must hold"
                self._assert(item.condition, message, item, scope)
            case ast.Assume():
                self._assume(item, scope)
            case ast.Return():
                self._return(item, scope)
            case ast.Emit():
                self._emit(item, scope)
            case ast.Loss():
                self._loss(item, scope)
            case _:
                assert_never(item)

    # --- bindings -----------------------------------------------------------------------------------------------------

    def _let(self, s: ast.Let, scope: Scope) -> None:
        value = self.expressions.ev(s.value, scope)
        if is_tensor(value) or isinstance(value, tuple):
            raise error(
                "E0203",
                "`let` names static things: a number, a block, a mask, a list",
                s.span,
                help=f"bind a tensor without it: `{s.name} = …`",
            )
        not_a_tensor(s.name, scope, s.span)
        if s.name in scope.vars:
            labels = [Label(scope.lets[s.name], "bound here first")] if s.name in scope.lets else []
            text = f"`{s.name}` is bound already, and a `let` is bound once"
            raise error("E0202", text, s.span, labels=labels, help="choose another name")
        if isinstance(value, BlockValue):
            value = value.labelled(s.name)
        elif isinstance(value, SharedModule):
            value.label = value.label or s.name
        elif (
            isinstance(value, Num)
            and not (scope.body.inline and (s.span.source.library or s.name in scope.frame.own_names))
            and not self._varies(s, scope)
            and dims.free_names(value.expr)
            and value.expr != Var(s.name)
        ):
            # Of uses of an inline block that differ, only the first can have the name in the emitted class.
            known = scope.frame.local.setdefault(s.name, value.expr)
            scope.frame.remember_exact(value)
            value = value.named(s.name) if known == value.expr else value
        scope.vars[s.name] = value
        scope.lets[s.name] = s.span

    @staticmethod
    def _varies(s: ast.Let, scope: Scope) -> bool:
        """Note whether a `let` is another number in each iteration of a loop: no name in the emitted class is all of
        them."""
        varying = scope.frame.varying
        if varying.isdisjoint(ast.names_in(s.value)):
            return False
        varying.add(s.name)
        return True

    def _assign(self, s: ast.Assign, scope: Scope) -> None:
        if isinstance(s.value, ast.Scan):
            values: Any = self.loops.scan(s.value, scope)
        elif isinstance(s.value, ast.For):
            values = self.loops.for_loop(s.value, scope, collect=True)
        else:
            values = self.expressions.ev(s.value, scope)
        scope.frame.settle(s.names[0] if len(s.names) == 1 else None)
        if len(s.names) == 1:
            self._bind(s.names[0], values, s.type, scope, s.span)
            return
        got = values if isinstance(values, tuple) else tuple(values) if isinstance(values, list) else (values,)
        if len(got) != len(s.names):
            there = "is 1 result" if len(got) == 1 else f"are {len(got)} results"
            raise error("E0205", f"{len(s.names)} names are bound here, and there {there}", s.span)
        for name, value in zip(s.names, got, strict=True):
            self._bind(name, value, s.type, scope, s.span)

    def _bind(self, name: str, value: Any, type_: ast.TensorType | None, scope: Scope, span: Span) -> None:
        if isinstance(value, tuple):
            help_ = f"name them all: `{name}, other = …`"
            raise error("E0205", f"there are {len(value)} results and one name", span, help=help_)
        if not is_tensor(value):
            help_ = f"static things are bound by `let {name} = …`"
            if value is None:
                help_ = f"where the first iteration of a loop makes it, bind any tensor before: `{name} = x`"
            raise error("E0203", f"`{name} = …` binds a tensor, and this is {kind_of(value)}", span, help=help_)
        if isinstance(value, list):
            for v in value:
                if not v.name:
                    object.__setattr__(v, "name", name)
        if isinstance(value, Value):
            if type_ is not None:
                demand_written(f"`{name}`", type_, value, span, scope.frame)
                shape = self.signatures.same_dims(type_, value, scope, f"`{name}`", span, bind=True)
                if not value.name:
                    # No one has read the value yet: it takes on the sizes as the annotation spells them.
                    object.__setattr__(value, "shape", shape)
            if not value.name:
                object.__setattr__(value, "name", name)
                object.__setattr__(value, "user_named", not scope.body.inline)
        scope.vars[name] = value

    def _update(self, s: ast.Update, scope: Scope) -> None:
        old = self.names.lookup(s.name, scope, s.span)
        if not isinstance(old, Value):
            raise error("E0203", f"`{s.name} += …` needs a tensor `{s.name}`, and it is {kind_of(old)}", s.span)
        added = self.expressions.ev(s.value, scope)
        if not isinstance(added, Value | Num):
            raise error("E0203", f"`+=` adds a tensor, and this is {kind_of(added)}", s.value.span)
        total = self.primitives.apply(scope, "plus", [old, added], {}, s.span, spans=[s.span, s.value.span])[0]
        scope.frame.settle(None)
        if not scope.frame.same_shape(total.shape, old.shape, f"`{s.name} += …` keeps the shape"):
            raise error(
                "E0301",
                f"`{s.name} += …` keeps the shape {shape_text(old.shape)}, and the sum is {shape_text(total.shape)}",
                s.span,
            )
        self._bind(s.name, total, s.type, scope, s.span)

    # --- weights ------------------------------------------------------------------------------------------------------

    def _param(self, s: ast.Param, scope: Scope) -> None:
        frame, trained = scope.frame, s.kind == "param"
        sizes: list[Num] = []
        for dim in s.type.dims:
            if isinstance(dim, ast.Ellipsis):
                text = f"`{s.name}` is made here, and so needs its whole shape: `...` stands for axes of what is given"
                raise error("E0203", text, dim.span, help="write the size of each axis: `[width]`")
            size = self.expressions.size(dim, scope)
            if trained and not size.static:
                text = f"the weight `{s.name}` would have a size, {size}, that is known only when the model runs"
                raise error("E0402", text, dim.span, help="fix it by a hyper-parameter")
            sizes.append(size)
        shape = tuple(sizes)
        dtype = stored_kind(s.type) or "float"
        stored = "int64" if dtype in INTEGERS else "bool" if dtype in BOOLEANS else "float"
        if trained and stored != "float":
            text = f"a weight holds real numbers, and `{s.name}` would hold {dtype}"
            raise error("E0203", text, s.type.span, help="a constant is a `buffer`")
        first = first_value(s, scope)
        asked = first is not s.value
        if asked and trained:
            text = f"a `param` is part of the state, and trained from a first value: `{s.name}` needs one"
            raise error("E0203", text, s.value.span, help="a `buffer` may be `given`, or `saved(zeros)`")
        init = Init(GIVEN) if first is None else self._first_value(s, first, shape, scope, stored)
        full = shape if frame.copies is None else (frame.copies, *shape)
        # What is drawn cannot be made again: it belongs to the state, trained or not.
        kept = trained or asked or _is_drawn(init)
        unknown = next((d for d in shape if not d.static), None)
        if kept and unknown is not None:
            why = "is part of the state" if asked or trained else "is drawn at random and so part of the state"
            text = f"`{s.name}` {why}, but its size {unknown} is not fixed"
            raise error("E0402", text, s.value.span, help="fix the size by a hyper-parameter, and read a part of it")
        weight = Weight("", full, "raw", init, trained, kept, dtype=stored)
        own = "float" if stored == "float" else dtype
        value = Value(shape, own, s.name, s.span, not scope.body.inline)
        step = frame.allocate(s.name)
        frame.param(ParamNode(weight, value, step, s.span))
        drawn_by_itself(frame.init, frame.steps(step))
        if own != dtype:  # a weight follows the model's type: one of another is cast where it is read
            value = self.primitives.apply(scope, "cast", [value], {"dtype": dtype}, s.span, hint=s.name)[0]
        scope.vars[s.name] = value

    def _first_value(self, s: ast.Param, first: ast.Expr, shape: Shape, scope: Scope, stored: str) -> Init:
        """A scheme, a list of numbers, or an expression of numbers, `indices` and draws, as a graph of its own."""
        frame = BlockBuilder(scope.frame.ledger, scope.frame.name, s.span)
        frame.local, frame.decisions = scope.frame.local, scope.frame.decisions
        frame.asserts = scope.frame.asserts
        span = first.span
        value = self.expressions.ev(first, Scope(scope.module, frame, BodyState(weight_shape=shape), scope), "scheme")
        if stored != "float":
            self._demand_exact(s, value, stored, frame, span)
        if isinstance(value, Scheme):
            if value.name == "orthogonal" and len(shape) < 2:
                raise error("E0204", NO_MATRIX.format(s.name), span)
            return Init(value.name, value.numbers)
        if isinstance(value, ListValue):
            whole = f"`{s.name}` holds whole numbers"
            numbers, inner = [*numbers_of(value)], Scope(scope.module, frame, BodyState(), scope)
            value = self.primitives.apply(inner, "listed", [], {"values": value}, span)[0]
            if stored != "float" and not all(frame.is_whole(n, whole) for n in numbers if n.static):
                raise error("E0203", f"{whole}, and its first value has others", span)
        fixed = all(d.static for d in shape)
        if isinstance(value, Num):
            if fixed:
                self._known_before(value, span)
            return Init("constant", {"value": value})
        if not isinstance(value, Value):
            text = f"a weight's first value is a scheme, numbers or an expression of them, and this is {kind_of(value)}"
            raise error("E0203", text, span)
        pairs = zip(reversed(value.shape), reversed(shape), strict=False)
        fits = f"the first value of `{s.name}` has its shape"
        if value.rank > len(shape) or not all(frame.fits(a, b, fits) for a, b in pairs):
            text = f"`{s.name}` is {shape_text(shape)}, and its first value is {shape_text(value.shape)}"
            raise error("E0301", text, span)
        bad = next((n for n in frame.nodes if isinstance(n, OpNode) and n.op.numpy is None), None)
        if bad is not None or any(not isinstance(n, OpNode) for n in frame.nodes):
            name = bad.op.name if bad is not None else "this"
            help_ = "use arithmetic, exp, log, indices and draws such as normal(0.02)"
            raise error("E0204", f"`{name}` cannot stand in a weight's first value", span, help=help_)
        for node in frame.nodes if fixed else ():
            assert isinstance(node, OpNode)
            for n in numbers_of((*node.inputs, *node.options.values())):
                self._known_before(n, span)
        return Init("expression", {}, Graph((), tuple(frame.nodes), (value,)))

    def _demand_exact(self, s: ast.Param, value: Any, stored: str, frame: BlockBuilder, span: Span) -> None:
        """Refuse (E0203) a first value that whole numbers or booleans cannot hold as it is: draws and fractions."""
        whole = f"`{s.name}` holds {'booleans' if stored == 'bool' else 'whole numbers'}"
        if isinstance(value, Scheme) and value.name not in FIXED:
            raise error("E0203", f"{whole}, and its first value is drawn at random", span)
        number = value.numbers.get("value") if isinstance(value, Scheme) else value
        if isinstance(number, Num):
            exact = is_size_like(number.value) if isinstance(number.value, Poly) else frame.is_whole(number, whole)
            if not exact:
                raise error("E0203", f"{whole}, and its first value is {number}", span)
        if isinstance(value, Value) and value.is_float:
            help_ = (
                "compare it: `… > 0`"
                if stored == "bool"
                else "divide by `//`, or hold real numbers and round where it is read"
            )
            raise error("E0203", f"{whole}, and its first value holds real numbers", span, help=help_)

    def _known_before(self, n: Num, span: Span) -> None:
        """A weight of fixed sizes is made with the module, before any input is there."""
        if not n.static:
            raise error(
                "E0402", f"a weight's first value cannot depend on {n}, which only the running model knows", span
            )

    # --- conditions ---------------------------------------------------------------------------------------------------

    def _if(self, s: ast.If, scope: Scope) -> None:
        if isinstance(s.condition, ast.Name) and s.condition.id == "training" and scope.get("training") is MISSING:
            self._if_training(s, scope)
            return
        self.run(s.then if self.expressions.truth(s.condition, scope) else s.otherwise, scope)

    def _if_training(self, s: ast.If, scope: Scope) -> None:
        """Both branches are kept; tensors that either of them binds are what it makes of them."""
        frame = scope.frame
        results: list[dict[str, Any]] = []
        graphs: list[list[Node]] = []
        for branch in (s.then, s.otherwise):
            inner = scope.inner()
            with frame.level() as nodes:
                self.run(branch, inner)
            graphs.append(nodes)
            results.append(inner.vars)
        if scope.body.result is not None:
            help_ = "bind a name in both branches and return it after them"
            raise error("E0214", "`return` cannot stand in `if training`", s.span, help=help_)
        outputs, then_out, else_out = [], [], []
        for name in dict.fromkeys([*results[0], *results[1]]):
            a, b = (found.get(name, scope.get(name)) for found in results)
            if a is POISON or b is POISON:
                scope.vars[name] = POISON
            if not isinstance(a, Value) or not isinstance(b, Value):
                continue
            if not frame.same_shape(a.shape, b.shape, f"`{name}` has one shape, in training and otherwise"):
                text = f"`{name}` is {shape_text(a.shape)} in training and {shape_text(b.shape)} otherwise"
                raise error("E0301", text, s.span)
            a, b = (
                self._promoted(v, promoted([a, b]), nodes, scope, s.span)
                for v, nodes in zip((a, b), graphs, strict=True)
            )
            then_out.append(a)
            else_out.append(b)
            outputs.append(Value(a.shape, a.dtype, name, s.span, not scope.body.inline))
        then = Graph((), tuple(graphs[0]), tuple(then_out))
        otherwise = Graph((), tuple(graphs[1]), tuple(else_out))
        frame.put(CondNode(then, otherwise, tuple(outputs), s.span))
        scope.vars.update({v.name: v for v in outputs})

    def _promoted(self, value: Value, dtype: str, nodes: list[Node], scope: Scope, span: Span) -> Value:
        """The value in a type; what casts it is put behind the nodes of its branch."""
        if promoted([value]) == dtype:
            return value
        with scope.frame.level() as more:
            value = self.primitives.apply(scope, "cast", [value], {"dtype": dtype}, span, hint=value.name)[0]
        nodes.extend(more)
        return value

    def _assert(self, e: ast.Expr, message: str, s: ast.Assert, scope: Scope) -> None:
        """Check a condition now, or leave it to the running model; of several joined by `and`, each by itself."""
        if isinstance(e, ast.Binary) and e.op == "and":
            self._assert(e.left, message, s, scope)
            self._assert(e.right, message, s, scope)
        elif isinstance(e, ast.Call) and isinstance(e.function, ast.Name) and e.function.id == "causal":
            self._claim(e, scope, s.span)
        elif isinstance(e, ast.Binary) and e.op in COMPARE:
            a, b = self.expressions.ev(e.left, scope), self.expressions.ev(e.right, scope)
            if isinstance(a, Num) and isinstance(b, Num):
                self._assert_numbers(e, a, b, message, s, scope)
            elif self.expressions.operate(e.op, a, b, e, scope) is not True:
                raise error("E0401", message, self._slot_of(s, e, message) or s.span)
        elif not self.expressions.truth(e, scope):
            raise error("E0401", message, self._slot_of(s, e, message) or s.span)

    def _slot_of(self, s: ast.Assert, condition: ast.Expr, message: str) -> Span | None:
        """The slot that a condition of the block behind a body of slots is about, where the user wrote it."""
        if not self.state.slot_spans or not s.span.source.library:
            return None
        declared, slots = self.state.slot_spans[-1]
        block = declared.node.span
        if block.source is not s.span.source or not block.start <= s.span.start < block.end:
            return None
        names = [*re.findall(r"\w+", condition.span.text), *re.findall(r"`(\w+)`", message)]
        return next((slots[name] for name in names if name in slots), None)

    def _assert_numbers(self, e: ast.Binary, a: Num, b: Num, message: str, s: ast.Assert, scope: Scope) -> None:
        if not (a.static and b.static):
            scope.frame.check_when_run(e.op, a, b, message, s.span)
        elif TESTS[e.op](a.value, b.value):
            scope.frame.remember(a.expr, e.op, b.expr, message)
        else:
            numbers, broken = [a, b], f"{format_number(a)} {e.op} {format_number(b)} does not hold"
            if isinstance(e.left, ast.Binary) and e.left.op == "%" and e.op == "==" and b.value == 0:
                left, right = self.expressions.ev(e.left.left, scope), self.expressions.ev(e.left.right, scope)
                if isinstance(left, Num) and isinstance(right, Num):
                    numbers, broken = (
                        [left, right],
                        f"{format_number(left)} is not a multiple of {format_number(right)}",
                    )
            users = [n for n in numbers if n.origin is not None and not n.origin.source.library]
            raise error("E0401", f"{message}: {broken}", s.span, labels=origins(users, e.span))

    def _assume(self, s: ast.Assume, scope: Scope) -> None:
        e = s.condition
        if not (isinstance(e, ast.Call) and isinstance(e.function, ast.Name) and e.function.id == "causal"):
            raise error(
                "E0203",
                "only causality is assumed: `assume causal(y)`",
                e.span,
                help="a condition that can be checked is written `assert condition`",
            )
        self._claim(e, scope, s.span, assumed=True)

    def _claim(self, e: ast.Call, scope: Scope, span: Span, assumed: bool = False) -> None:
        """`causal(y, ahead: n)` behind `assert` or `assume`."""
        ahead, tensor = 1, None
        for arg in e.args:
            value = self.expressions.ev(arg.value, scope)
            if isinstance(value, Value) and tensor is None:
                tensor = value
            elif isinstance(value, Num) and arg.name in (None, "ahead") and isinstance(value.value, int):
                ahead = value.value
                scope.frame.fixed(value)
            else:
                text = "`causal(y, ahead: 1)` takes a tensor and how many tokens ahead it predicts"
                raise error("E0203", text, arg.span)
        if tensor is None:
            raise error("E0205", "`causal(y)` needs the tensor", e.span)
        scope.frame.put(CausalNode(tensor, ahead, span, assumed))

    # --- results ------------------------------------------------------------------------------------------------------

    def _return(self, s: ast.Return, scope: Scope) -> None:
        if scope.in_loop:
            help_ = "bind a name in the loop and return it after it"
            raise error("E0214", "`return` cannot stand in a loop", s.span, help=help_)
        values: list[Any] = []
        for e in s.values:
            value = self.expressions.ev(e, scope)
            if isinstance(value, tuple):
                values.extend(value)
            elif isinstance(value, list | Value):
                values.append(value)
            elif isinstance(value, Absent):
                raise error("E0203", "the tensor returned here was left out", e.span)
            else:
                raise error("E0203", f"`return` gives tensors back, and this is {kind_of(value)}", e.span)
        scope.frame.settle(None)
        scope.body.result = tuple(values)

    def _emit(self, s: ast.Emit, scope: Scope) -> None:
        if not scope.body.emits:
            raise error("E0214", "`emit` stands in the body of a `scan`, or of a `for` whose list is bound", s.span)
        value = self.expressions.ev(s.value, scope)
        scope.frame.settle(None)
        if not isinstance(value, Value):
            raise error("E0203", f"`emit` takes a tensor, and this is {kind_of(value)}", s.span)
        scope.body.emits[-1].append(value)

    def _loss(self, s: ast.Loss, scope: Scope) -> None:
        frame = scope.frame
        with frame.level() as nodes:
            value = self.expressions.ev(s.value, scope)
            frame.settle(None)
        if not isinstance(value, Value) or value.rank != 0:
            what = shape_text(value.shape) if isinstance(value, Value) else kind_of(value)
            raise error(
                "E0302",
                f"`loss {s.name}` is a scalar, and this is {what}",
                s.value.span,
                help="reduce it first, for example with `mean`",
            )
        then = Graph((), (*nodes, LossNode(value, s.name, s.span)), ())
        frame.put(CondNode(then, Graph((), (), ()), (), s.span))


def first_value(s: ast.Param, scope: Scope) -> ast.Expr | None:
    """The expression of a weight's first value: that within `saved(…)`, none of one that is `given`."""
    e = s.value.function if isinstance(s.value, ast.Call) else s.value
    if not isinstance(e, ast.Name) or scope.get(e.id) is not MISSING or scope.module.find(e.id) is not None:
        return s.value
    if e.id == GIVEN and e is s.value:
        return None
    if e.id != SAVED:
        return s.value
    if not isinstance(s.value, ast.Call) or len(s.value.args) != 1 or s.value.args[0].name is not None:
        raise error("E0205", "`saved` takes one first value", s.value.span, help="for example `saved(zeros)`")
    return s.value.args[0].value


def _is_drawn(init: Init) -> bool:
    """Whether a first value is random."""
    if init.graph is None:
        return init.scheme not in FIXED
    drawn = (n.options.get("scheme") for n in init.graph.nodes if isinstance(n, OpNode))
    return any(isinstance(s, Scheme) and s.name not in FIXED for s in drawn)
