"""Syntax -> IR: evaluates what is static, applies blocks, and checks every shape on the way.

An `Elaborator` builds one model.  A block is elaborated once for each distinct set of hyper-parameters and shapes; its sizes are
re-rooted to its own names on entry and rewritten into the caller's on return, so that each block reads as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from archdsl.diagnostics import ArchError, Diagnostic, Label, did_you_mean, error
from archdsl.ir import dims, masks
from archdsl.ir.dims import Expr, Lit, Num, Poly, Shape, Var, binary, expr_text, literal, num, same_shape, shape_text, symbol
from archdsl.ir.frame import Frame, ModelInput, Once, Turn, Use
from archdsl.ir.graph import (
    BOOLEANS,
    INTEGERS,
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    CondNode,
    ConfigField,
    Graph,
    Handle,
    Init,
    Input,
    LoopNode,
    LossNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    Weight,
    captured,
    node_outputs,
    reads,
    subgraphs,
)
from archdsl.ir.masks import Mask
from archdsl.ir.op import At, Primitive
from archdsl.ir.program import (
    CONSTANTS,
    FUNCTIONS,
    WORDS,
    Module,
    every_name,
    find_in_library,
    pick_model,
)
from archdsl.ir.schemes import SCHEMES
from archdsl.ir.site import Site, coerce, options_of, unknown_option, whole_size
from archdsl.ir.static import (
    Declared,
    Instance,
    ListValue,
    Pattern,
    Plus,
    Ref,
    Scheme,
    Template,
    Times,
    Word,
    kind_of,
    localise,
    outward_pattern,
    static_key,
)
from archdsl.limits import MAX_BLOCK_DEPTH, MAX_DIGITS, MAX_LIST, MAX_NODES
from archdsl.ops import registry
from archdsl.source import Span
from archdsl.syntax import ast


class Absent:
    """An optional tensor that was left out."""


ABSENT = Absent()


class Poison:
    """The value of a name whose statement was wrong: what depends on it says nothing more."""


POISON = Poison()


class Poisoned(Exception):
    """Raised where a poisoned name is read: the error has been reported."""


@dataclass(frozen=True, eq=False)
class MaskRule:
    """`window`, `keys` …: a mask that still needs its argument."""

    name: str


@dataclass(frozen=True)
class Function:
    """`shared`, `accepts`, `offer`."""

    name: str


@dataclass(frozen=True, eq=False)
class SchemeRule:
    """A scheme that still takes numbers."""

    name: str


@dataclass(frozen=True)
class Training:
    """The condition `training`."""


@dataclass(eq=False)
class BodyState:
    """What a body being run has come to: its results, and what its loops emit."""

    result: tuple[Any, ...] | None = None
    emits: list[list[Value]] = field(default_factory=list)
    inline: bool = False
    first: str = ""


class Scope:
    """Names of one body. A loop's turn and a comprehension have a scope inside it."""

    __slots__ = ("body", "carried", "frame", "module", "parent", "vars")

    def __init__(self, module: Module, frame: Frame, body: BodyState, parent: Scope | None = None) -> None:
        self.module = module
        self.frame = frame
        self.body = body
        self.parent = parent
        self.vars: dict[str, Any] = {}
        self.carried: set[str] | None = None

    def inner(self) -> Scope:
        return Scope(self.module, self.frame, self.body, self)

    def get(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.vars:
                return scope.vars[name]
            scope = scope.parent
        return MISSING

    def chain(self, name: str) -> list[Any]:
        """Every meaning of a name in the body, the innermost first."""
        found, scope = [], self
        while True:
            if name in scope.vars:
                found.append(scope.vars[name])
            if scope.parent is None:
                return found
            scope = scope.parent

    def names(self) -> set[str]:
        found: set[str] = set(self.vars)
        if self.parent is not None:
            found |= self.parent.names()
        return found


MISSING = object()

SIZE_TYPES = {"token": "token", "int": "int", "bool": "bool", "padding": "padding", "documents": "documents", "float": "float", "float32": "float32", "bfloat16": "bfloat16"}  # fmt: skip
ARITHMETIC = {"+": "plus", "-": "minus", "*": "times", "/": "divide", "//": "floor_divide", "%": "modulo", "**": "power"}
COMPARE = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
NEUTRAL = {("+", 0), ("-", 0), ("*", 1), ("/", 1)}
NUMBER_FUNCTIONS = {
    "sqrt", "exp", "log", "sin", "cos", "tanh", "abs", "sign", "floor", "ceil", "minimum", "maximum",
}  # fmt: skip


def is_tensor(value: Any) -> bool:
    return isinstance(value, Value | Absent) or (isinstance(value, list) and all(isinstance(v, Value) for v in value))


class Elaborator:
    """Builds one model of a program."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.memo: dict[Hashable, Block] = {}
        self.broken: set[Hashable] = set()
        self.problems: list[Diagnostic] = []
        self.keep: list[Value] = []
        self.nodes = 0
        self.depth = 0
        self.user_spans: list[Span] = []
        """Where the user's spec applied the blocks that are being elaborated, the innermost last."""
        self.root: Frame | None = None
        self.inputs: dict[str, Value] = {}
        self.optional_inputs: set[str] = set()
        self.made_inputs: dict[str, Value] = {}
        self.input_by_slots = False
        self.instances: dict[Hashable, Instance] = {}

    # --- reporting ------------------------------------------------------------------------------------------------------

    def report(self, problem: ArchError) -> None:
        """Note what is wrong; what goes wrong within the library is shown where the user called it."""
        for d in problem.diagnostics:
            if self.user_spans:
                d = _shown_at(d, self.user_spans[-1])
            if not any(d.code == p.code and d.span == p.span and d.message == p.message for p in self.problems):
                self.problems.append(d)

    def count_node(self, node: Node) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise error("E0404", f"the model has more than {MAX_NODES:,} operations in its distinct blocks", node.span)

    def condition(self, frame: Frame, op: str, left: Num, right: Num, message: str, span: Span) -> None:
        """Demand a relation of sizes; `%` means that right divides left."""
        if left.static and right.static:
            holds = dims.mod(left.value, right.value) == 0 if op == "%" else TESTS[op](left.value, right.value)
            if not holds:
                raise self._broken_condition(op, left, right, message, span)
            if op == "%":
                self.remember(frame, dims.Bin("%", left.expr, right.expr), "==", Lit("0"), message)
            return
        if op == "%" and dims.mod(left.value, right.value) == 0:
            return
        known = ("checked", op, left.value, right.value)
        if (op in ("==", "<=", ">=") and left.value == right.value) or known in frame.made:
            return
        frame.made[known] = Value((), "bool")
        frame.put(CheckNode(op, left, right, message, span), 0)

    def remember(self, frame: Frame, left: Expr, op: str, right: Expr, message: str) -> None:
        """A condition that holds and that the emitted code checks again for other numbers of its user."""
        if isinstance(left, dims.Bin) and left.op == "%" and right == Lit("0") and _always_divides(left):
            return
        entry = (left, op, right, message)
        if (dims.free_names(left) or dims.free_names(right)) and entry not in frame.asserts:
            frame.asserts.append(entry)

    def _exact(self, frame: Frame, value: Num) -> None:
        """`head_dim = width / heads` is whole only if heads divides width: the emitted code checks it for other numbers."""
        e = value.expr
        if isinstance(e, dims.Bin) and e.op == "/" and isinstance(value.value, int):
            names = f"{expr_text(e.right)} divides {expr_text(e.left)}"
            self.remember(frame, dims.Bin("%", e.left, e.right), "==", Lit("0"), names)

    def _broken_condition(self, op: str, left: Num, right: Num, message: str, span: Span) -> ArchError:
        shown = {"%": "is not a multiple of", "==": "is not", "<=": "is more than", "<": "is not less than", ">=": "is less than", ">": "is not more than", "!=": "is"}[op]  # fmt: skip
        labels = [Label(n.origin, f"{_spelled(n)} comes from here") for n in (left, right) if n.origin is not None and n.origin != span]
        return error("E0401", f"{message}: {_spelled(left)} {shown} {_spelled(right)}", span, labels=labels)

    # --- names ------------------------------------------------------------------------------------------------------------

    def lookup(self, name: str, scope: Scope, span: Span, *, applied: bool = False, expect: str | None = None) -> Any:
        """The meaning of a name; where it is applied, what cannot be applied is skipped."""
        for value in scope.chain(name):
            if value is POISON:
                raise Poisoned
            if not applied or _applicable(value):
                return value
        if expect in ("scheme", "scaling"):
            special = self._special(name, expect)
            if special is not None:
                return special
        value = self._global(name, scope, span)
        if value is not MISSING:
            return value
        if "." in name:
            return self._field(name, scope, span)
        every = every_name(scope.module) | scope.names()
        found = scope.get(name)
        if applied and found is not MISSING:
            raise error("E0206", f"`{name}` is {kind_of(found)}: it cannot be applied", span)
        help_ = did_you_mean(name, every)
        raise error("E0206", f"nothing is called `{name}` here", span, help=help_)

    def _special(self, name: str, expect: str) -> Any:
        if expect == "scheme" and name in SCHEMES:
            return SchemeRule(name)
        if expect == "scaling":
            from archdsl.ir.scalings import SCALINGS

            if name in SCALINGS:
                return SchemeRule(name)
        return None

    def _global(self, name: str, scope: Scope, span: Span) -> Any:
        found = scope.module.find(name)
        if found is not None:
            return self._declared(*found, name, span)
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name == "training":
            return Training()
        if name in FUNCTIONS:
            return Function(name)
        library = find_in_library(name)
        if library is not None:
            return self._declared(*library, name, span)
        if name in masks.RULES or name in masks.TENSOR_RULES:
            return Mask(name) if not masks.RULES.get(name, ("tensor",)) or name in ("padding", "documents") else MaskRule(name)
        op = registry.find(name)
        if op is not None:
            return Template(op, {}, "", span)
        if name in SCHEMES or name in ("yarn", "ntk", "llama3", "longrope"):
            return SchemeRule(name)
        if name in WORDS:
            return Word(name)
        return MISSING

    def _declared(self, module: Module, declaration: Any, name: str, span: Span) -> Any:
        if isinstance(declaration, ast.Let):
            if name not in module.constants:
                root = self.root or Frame(self, "constants", span, root=True)
                scope = Scope(module, root, BodyState())
                module.constants[name] = POISON  # a let that needs itself
                value = self.ev(declaration.value, scope)
                module.constants[name] = value.labelled(declaration.name) if isinstance(value, Template) else value
                if isinstance(value, Instance):
                    value.label = value.label or declaration.name
            value = module.constants[name]
            if value is POISON:
                raise error("E0212", f"`{name}` is defined by itself", declaration.span)
            return value
        if isinstance(declaration, ast.Variant):
            scope = Scope(module, self.root or Frame(self, name, span, root=True), BodyState())
            return self.ev(declaration.value, scope)
        return Template(Declared(declaration, module), {}, "", span)

    def _field(self, name: str, scope: Scope, span: Span) -> Any:
        """`patches.image`: a hyper-parameter of a block value."""
        head, _, key = name.rpartition(".")
        value = self.lookup(head, scope, span)
        if isinstance(value, Instance):
            value = value.template
        if not isinstance(value, Template):
            raise error("E0206", f"`{head}` is {kind_of(value)}: it has no hyper-parameters to read", span)
        if key not in {h.name for h in _hypers(value)}:
            raise unknown_option(key, value.name, {h.name for h in _hypers(value)}, span)
        if key not in value.args and next(h for h in _hypers(value) if h.name == key).default is None:
            raise error("E0205", f"`{head}` has not been given its `{key}`", span)
        return self._field_of(value, key, scope)

    def _field_of(self, value: Template, key: str, scope: Scope) -> Any:
        """A hyper-parameter of a block value, given or by default."""
        hypers = {h.name: h for h in _hypers(value)}
        if key in value.args:
            return value.args[key]
        default = hypers[key].default
        if default is None:
            return None
        inner = Scope(value.target.module if isinstance(value.target, Declared) else scope.module, scope.frame, BodyState())
        inner.vars.update(value.args)
        return self.ev(default, inner, hypers[key].kind)

    # --- expressions ------------------------------------------------------------------------------------------------------

    def ev(self, e: Any, scope: Scope, expect: str | None = None) -> Any:
        """The value of an expression: static, a tensor, a list of tensors, or a tuple of several results."""
        method: Callable[..., Any] = getattr(self, f"_ev_{type(e).__name__}")
        return method(e, scope, expect)

    def _ev_Number(self, e: ast.Number, scope: Scope, expect: str | None) -> Num:
        text = e.text.replace("_", "")
        mantissa, _, exponent = text.lower().partition("e")
        if len(mantissa) > MAX_DIGITS or (exponent and abs(int(exponent)) > MAX_DIGITS):
            raise error("E0404", "this number is too long", e.span)
        value = dims.whole(Fraction(text))
        if exponent and isinstance(value, int) and value > 2**53:
            value = float(text)  # 1e38 bounds scores: it is no count
        plain = e.text if not (isinstance(value, int) and (e.text.startswith("0") or exponent or "." in text)) else literal(value)
        return Num(value, Lit(plain) if isinstance(plain, str) else plain, e.span)

    def _ev_String(self, e: ast.String, scope: Scope, expect: str | None) -> str:
        return e.value

    def _ev_Name(self, e: ast.Name, scope: Scope, expect: str | None) -> Any:
        value = self.lookup(e.id, scope, e.span, expect=expect)
        if isinstance(value, SchemeRule):
            return self._scheme(value, (), e.span)
        return value

    def _ev_Unary(self, e: ast.Unary, scope: Scope, expect: str | None) -> Any:
        value = self._drawn(self.ev(e.operand, scope), scope, e.operand.span)
        if e.op == "not":
            if isinstance(value, bool):
                return not value
            raise error("E0203", f"`not` takes true or false, and {kind_of(value)} was given", e.span, help="for tensors write `~`")
        if e.op == "~":
            if isinstance(value, Mask):
                return masks.complement(value)
            if isinstance(value, Value):
                return self.primitive(scope.frame, scope, "logical_not", [value], {}, e.span)[0]
        elif isinstance(value, Num):
            expr = Lit(f"-{value.expr.text}") if isinstance(value.expr, Lit) else dims.Bin("*", Lit("-1"), value.expr)
            return Num(dims.neg(value.value), expr, e.span)
        elif isinstance(value, Value):
            return self.primitive(scope.frame, scope, "negate", [value], {}, e.span)[0]
        raise error("E0203", f"`{e.op}` cannot be applied to {kind_of(value)}", e.span)

    def _ev_IfElse(self, e: ast.IfElse, scope: Scope, expect: str | None) -> Any:
        return self.ev(e.then if self.truth(e.condition, scope) else e.otherwise, scope, expect)

    def _ev_Ellipsis(self, e: ast.Ellipsis, scope: Scope, expect: str | None) -> Any:
        raise error("E0203", "`...` stands in shapes and indices only", e.span)

    def _ev_List(self, e: ast.List, scope: Scope, expect: str | None) -> Any:
        items = [self.ev(i, scope) for i in e.items]
        if items and all(isinstance(i, Value) for i in items):
            return items
        return _concat([_one_item(i) for i in items], e.span)

    def _ev_Comprehension(self, e: ast.Comprehension, scope: Scope, expect: str | None) -> Any:
        results = []
        for item in self.iterable(e.iterable, scope):
            inner = scope.inner()
            inner.vars[e.name] = item
            results.append(self.ev(e.element, inner))
        if results and all(isinstance(r, Value) for r in results):
            return results
        return _concat([_one_item(r) for r in results], e.span)

    def _ev_As(self, e: ast.As, scope: Scope, expect: str | None) -> Any:
        if isinstance(e.value, ast.Call):
            return self._call(e.value, scope, as_name=e.name)
        raise error("E0203", "`as` names an application", e.span, help="write `block(…)(x) as name` or `x -> block as name`")

    def _ev_Binary(self, e: ast.Binary, scope: Scope, expect: str | None) -> Any:
        if e.op in ("and", "or"):
            left = self.truth(e.left, scope)
            return left and self.truth(e.right, scope) if e.op == "and" else left or self.truth(e.right, scope)
        a = self._drawn(self.ev(e.left, scope), scope, e.left.span)
        b = self._drawn(self.ev(e.right, scope), scope, e.right.span)
        return self.operate(e.op, a, b, e, scope)

    def operate(self, op: str, a: Any, b: Any, e: ast.Binary, scope: Scope) -> Any:
        """One of the operators on two values."""
        if isinstance(a, Num) and isinstance(b, Num):
            return self._numbers(op, a, b, e)
        if op in ("&", "|") and (isinstance(a, Mask) or isinstance(b, Mask) or (_mask_typed(a) and _mask_typed(b))):
            m, n = self._as_mask(a, e.left.span), self._as_mask(b, e.right.span)
            return masks.both(m, n) if op == "&" else masks.either(m, n)
        tensors = [v for v in (a, b) if isinstance(v, Value)]
        if isinstance(a, Value) and isinstance(b, Num) and (op, b.value) in NEUTRAL:
            return a
        if isinstance(b, Value) and isinstance(a, Num) and (op, a.value) in (("+", 0), ("*", 1)):
            return b
        if tensors and all(isinstance(v, Value | Num) for v in (a, b)):
            name = {**ARITHMETIC, **COMPARE, "&": "logical_and", "|": "logical_or"}[op]
            return self.primitive(scope.frame, scope, name, [a, b], {}, e.span, spans=[e.left.span, e.right.span])[0]
        if op in ("==", "!="):
            return _equal(a, b) == (op == "==")
        if op == "*" and isinstance(a, Num) and isinstance(b, ListValue | Template | Instance):
            return _repeat(a, _one_item(b) if not isinstance(b, ListValue) else b, e.span)
        if op == "*" and isinstance(b, Num) and isinstance(a, ListValue | Template | Instance):
            return _repeat(b, _one_item(a) if not isinstance(a, ListValue) else a, e.span)
        if op == "+" and all(isinstance(v, ListValue | Template | Instance) for v in (a, b)):
            return _concat([v if isinstance(v, ListValue) else _one_item(v) for v in (a, b)], e.span)
        if op == "+" and isinstance(a, list) and isinstance(b, list):
            return a + b
        for value, side in ((a, e.left), (b, e.right)):
            if isinstance(value, Absent):
                raise error("E0203", f"the tensor here was left out, so `{op}` cannot use it", side.span, help="guard it: `if m != none { … }`")
            if isinstance(value, tuple):
                raise error("E0203", f"`{op}` takes one tensor, and this has {len(value)} results", side.span, help="bind them first: `a, b = …`")
        raise error("E0203", f"`{op}` cannot join {kind_of(a)} and {kind_of(b)}", e.span)

    def _numbers(self, op: str, a: Num, b: Num, e: ast.Binary) -> Any:
        if op in COMPARE:
            if op in ("==", "!=") and a.value == b.value:
                return op == "=="
            if a.static and b.static:
                return TESTS[op](a.value, b.value)
            raise error(
                "E0402",
                f"`{_spelled(a)} {op} {_spelled(b)}` is known only when the model runs",
                e.span,
                help="demand it with `assert`; an `if` is decided when the spec is compiled",
            )
        if op in ("&", "|"):
            raise error("E0203", f"`{op}` joins masks or bool tensors, not numbers", e.span)
        try:
            return binary(op, a, b, e.span)
        except ZeroDivisionError:
            raise error("E0401", f"division by zero: {_spelled(b)} is 0", e.right.span) from None
        except (OverflowError, MemoryError):
            raise error("E0404", "this number would be too large", e.span) from None
        except ValueError:
            raise error("E0401", f"{_spelled(a)} {op} {_spelled(b)} is not a real number", e.span) from None

    def _as_mask(self, value: Any, span: Span) -> Mask:
        if isinstance(value, Mask):
            return value
        if isinstance(value, Value) and value.dtype in ("padding", "documents"):
            return Mask(value.dtype, tensor=value)
        if isinstance(value, Value) and value.is_bool:
            raise error("E0203", "a bool tensor is no mask by itself", span, help="say what it tells: `keys(real)` or `queries(real)`")
        raise error("E0203", f"this must be a mask, and it is {kind_of(value)}", span)

    def _ev_Index(self, e: ast.Index, scope: Scope, expect: str | None) -> Any:
        value = self.ev(e.value, scope)
        if isinstance(value, ListValue | list):
            items = value.items if isinstance(value, ListValue) else value
            index = self.ev(e.items[0], scope)
            if len(e.items) != 1 or not isinstance(index, Num) or not isinstance(index.value, int):
                raise error("E0203", "a list is read by one whole number", e.span)
            if not -len(items) <= index.value < len(items):
                raise error("E0303", f"the list has {len(items)} elements, and {index.value} was asked for", e.items[0].span)
            return items[index.value]
        if not isinstance(value, Value):
            raise error("E0203", f"only tensors and lists can be indexed, and this is {kind_of(value)}", e.value.span)
        items: list[Any] = []
        for item in e.items:
            if isinstance(item, ast.Ellipsis):
                items.append("...")
            elif isinstance(item, ast.Slice):
                low = self.number(item.low, scope) if item.low is not None else None
                high = self.number(item.high, scope) if item.high is not None else None
                items.append(("slice", low, high))
            else:
                found = self.ev(item, scope)
                if isinstance(found, Value) and len(e.items) == 1:
                    return self.primitive(scope.frame, scope, "lookup", [value, found], {}, e.span)[0]
                if not isinstance(found, Num):
                    raise error("E0203", f"an index is a number, a slice or `...`, and this is {kind_of(found)}", item.span)
                items.append(found)
        return self.primitive(scope.frame, scope, "index", [value], {"items": tuple(items)}, e.span)[0]

    def number(self, e: ast.Expr, scope: Scope) -> Num:
        value = self.ev(e, scope)
        if not isinstance(value, Num):
            raise error("E0203", f"this must be a number, and it is {kind_of(value)}", e.span)
        return value

    def truth(self, e: ast.Expr, scope: Scope) -> bool:
        value = self.ev(e, scope)
        if isinstance(value, bool):
            return value
        if isinstance(value, Value):
            raise error(
                "E0402",
                "a condition is decided when the spec is compiled, and this is a tensor",
                e.span,
                help="`where(c, a, b)` chooses by element",
            )
        if isinstance(value, Training):
            raise error("E0203", "`training` stands alone: `if training { … }`", e.span)
        raise error("E0203", f"a condition is true or false, and this is {kind_of(value)}", e.span)

    def iterable(self, e: ast.Expr, scope: Scope) -> list[Any]:
        value = self.ev(e, scope)
        if isinstance(value, Num):
            count = self._count(value, e.span)
            return [Num(i, Lit(str(i)), e.span) for i in range(count)]
        if isinstance(value, ListValue):
            return list(value.items)
        if isinstance(value, list):
            return value
        if isinstance(value, Template | Instance):
            return [value]
        raise error("E0203", f"`for` runs over a list or up to a number, and this is {kind_of(value)}", e.span)

    def _count(self, value: Num, span: Span) -> int:
        if not value.static:
            raise error("E0402", f"`{_spelled(value)}` is known only when the model runs, so nothing can be repeated that often", span, help="a recurrence over time is a `scan`")  # fmt: skip
        count = whole_size(value, "int", "a number of repetitions", span).value
        assert isinstance(count, int)
        if count < 0 or count > MAX_LIST:
            raise error("E0404", f"{count} repetitions: a list has at most {MAX_LIST:,} elements", span)
        return count

    # --- applications -----------------------------------------------------------------------------------------------------

    def _ev_Call(self, e: ast.Call, scope: Scope, expect: str | None) -> Any:
        return self._call(e, scope, expect=expect)

    def _callee(self, e: ast.Expr, scope: Scope, expect: str | None = None) -> Any:
        if isinstance(e, ast.Name):
            return self.lookup(e.id, scope, e.span, applied=True, expect=expect)
        return self.ev(e, scope)

    def _call(self, e: ast.Call, scope: Scope, *, as_name: str = "", piped: Any = None, expect: str | None = None) -> Any:
        callee = self._callee(e.function, scope, expect)
        if isinstance(callee, Function):
            value = self._builtin(callee.name, e, scope)
            if piped is None and not as_name:
                return value
            # `x -> offer(router, experts: 8)` applies what was offered to.
            return self._apply_args(value, [(None, piped, e.span)] if piped is not None else [], scope, e.span, as_name)
        if isinstance(callee, MaskRule | Mask):
            return self._mask_call(callee, e, scope)
        kinds = {h.name: h.kind for h in _hypers(callee)} if isinstance(callee, Template) else {}
        order = [h.kind for h in _hypers(callee) if h.name not in callee.args] if isinstance(callee, Template) else []
        if isinstance(callee, Template) and isinstance(callee.target, Primitive) and callee.name == "einsum":
            order = ["string"]
        args: list[tuple[str | None, Any, Span]] = []
        for i, arg in enumerate(e.args):
            kind = kinds.get(arg.name) if arg.name else (order[i] if i < len(order) else None)
            value = self.ev(arg.value, scope, kind if kind in ("scheme", "scaling") else None)
            args.append((arg.name, value if kind == "scheme" else self._drawn(value, scope, arg.value.span), arg.value.span))
        if isinstance(callee, SchemeRule):
            return self._scheme(callee, args, e.span)
        if piped is not None:
            args.insert(0, (None, piped, e.span))
        return self._apply_args(callee, args, scope, e.span, as_name)

    def _ev_Pipeline(self, e: ast.Pipeline, scope: Scope, expect: str | None) -> Any:
        value = self._drawn(self.ev(e.head, scope), scope, e.head.span)
        before = e.head
        for stage in e.stages:
            if isinstance(value, tuple):
                raise error("E0203", f"a pipeline carries one tensor, and this has {len(value)} results", before.span, help="bind them first: `a, b = …`")
            if not is_tensor(value) or isinstance(value, Absent):
                what = "a tensor that was left out" if isinstance(value, Absent) else kind_of(value)
                raise error("E0203", f"a pipeline carries a tensor, and this is {what}", before.span)
            as_name, inner = (stage.name, stage.value) if isinstance(stage, ast.As) else ("", stage)
            if isinstance(inner, ast.Call):
                value = self._call(inner, scope, as_name=as_name, piped=value)
            else:
                callee = self._callee(inner, scope)
                value = self._apply_args(callee, [(None, value, before.span)], scope, inner.span, as_name)
            before = stage
        return value

    def _apply_args(
        self, callee: Any, args: Sequence[tuple[str | None, Any, Span]], scope: Scope, span: Span, as_name: str
    ) -> Any:
        """A call with its arguments evaluated: sets hyper-parameters, or, if there are tensors, applies."""
        if not isinstance(callee, Template | Instance):
            raise error("E0206", f"{kind_of(callee)} cannot be applied", span)
        target = callee.target if isinstance(callee, Template) else callee.template.target
        if isinstance(target, Primitive) and target.elementwise and not target.header.hypers:
            return self._elementwise(target, args, scope, span, as_name)
        tensor_names = {p.name for p in _tensor_params(target)}
        static: dict[str, tuple[Any, Span]] = {}
        in_order: list[tuple[Any, Span]] = []
        tensors: list[tuple[Any, Span]] = []
        named: dict[str, tuple[Any, Span]] = {}
        for name, value, where in args:
            if isinstance(value, tuple):
                raise error("E0203", f"this has {len(value)} results, and one tensor is wanted", where, help="bind them first: `a, b = …`")
            given_tensor = is_tensor(value) or (
                isinstance(value, Instance) and isinstance(target, Primitive) and (name in tensor_names if name else _wants_table(target, in_order, tensors))
            )
            if name is None:
                (tensors if given_tensor else in_order).append((value, where))
            elif name in static or name in named:
                raise error("E0205", f"`{name}` is given twice", where)
            elif given_tensor and name not in tensor_names:
                if isinstance(value, Absent):
                    continue
                raise error(
                    "E0205",
                    f"`{target.name}` has no tensor `{name}`",
                    where,
                    help=did_you_mean(name, tensor_names) or f"its tensors are {', '.join(f'`{n}`' for n in sorted(tensor_names))}",
                )
            elif given_tensor or (name in tensor_names and value is None):
                named[name] = (ABSENT if value is None else value, where)
            else:
                static[name] = (value, where)
        template = callee if isinstance(callee, Template) else callee.template
        if isinstance(callee, Instance) and (static or in_order):
            raise error("E0205", f"the shared `{callee.name}` has its hyper-parameters already", span, help="give them where it is shared")
        template = self.with_options(template, static, in_order, span)
        no_tensors = isinstance(target, Primitive) and not target.header.tensors
        if not tensors and not named and not no_tensors:
            if as_name:
                raise error("E0205", f"`as {as_name}` names an application, and no tensor is given here", span)
            return template if isinstance(callee, Template) else callee
        instance = callee if isinstance(callee, Instance) else None
        return self.apply_template(template, tensors, named, scope, span, as_name, instance)

    def _elementwise(self, op: Primitive, args: Sequence[tuple[str | None, Any, Span]], scope: Scope, span: Span, as_name: str) -> Any:
        """An element-wise function takes numbers too; of numbers alone it is a number."""
        params = [p.name for p in op.header.tensors or ()]
        if not args:
            return Template(op, {}, "", span)
        given: dict[str, tuple[Any, Span]] = {}
        for name, value, where in args:
            slot = name or next((p for p in params if p not in given), None)
            if slot is None or slot not in params or slot in given:
                raise error("E0205", f"`{op.name}` takes {', '.join(params)}", where, notes=[f"its signature is {op.signature}"])
            if not isinstance(value, Value | Num):
                raise error("E0203", f"`{op.name}` takes tensors and numbers, and {kind_of(value)} was given", where)
            given[slot] = (value, where)
        missing = [p for p in params if p not in given]
        if missing:
            raise error("E0205", f"`{op.name}` still needs {', '.join(f'`{m}`' for m in missing)}", span)
        inputs = [given[p][0] for p in params]
        numbers = [v for v in inputs if isinstance(v, Num)]
        if len(numbers) == len(inputs):
            if op.name not in NUMBER_FUNCTIONS:
                raise error("E0203", f"`{op.name}` needs a tensor", span)
            try:
                return dims.function(op.name, numbers, span)
            except (ValueError, OverflowError, ZeroDivisionError):
                raise error("E0401", f"{op.name}({', '.join(map(_spelled, numbers))}) is not a number", span) from None
        return self.primitive(scope.frame, scope, op.name, inputs, {}, span, spans=[given[p][1] for p in params])[0]

    def with_options(
        self, template: Template, static: Mapping[str, tuple[Any, Span]], in_order: Sequence[tuple[Any, Span]], span: Span
    ) -> Template:
        """The block with more hyper-parameters set. Raises E0201 for an unknown one, E0203 for a wrong kind."""
        if not static and not in_order:
            return template
        target = template.target
        if isinstance(target, Primitive):
            free = {k: (v, span) for k, v in template.args.items()}
            merged = options_of(target, {**free, **static}, in_order, span)
            args = {}
            kinds = {h.name: h for h in target.header.hypers or ()}
            for name, (value, where) in merged.items():
                hyper = kinds.get(name)
                if hyper is None or hyper.kind in ("sizes", "named_sizes"):
                    args[name] = value
                else:
                    args[name] = coerce(value, hyper.kind, _default_none(hyper), f"`{name}` of `{target.name}`", where)
            return replace(template, args=args)
        hypers = {h.name: h for h in _hypers(template)}
        merged = {k: (v, span) for k, v in template.args.items()}
        for name, (value, where) in static.items():
            if name not in hypers:
                raise unknown_option(name, template.name, hypers, where)
            merged[name] = (value, where)
        rest = list(in_order)
        for name in hypers:
            if rest and name not in merged:
                merged[name] = rest.pop(0)
        if rest:
            raise error(
                "E0205",
                f"`{template.name}` was given more static arguments than it has hyper-parameters left",
                rest[0][1],
                help=f"its hyper-parameters are {', '.join(f'`{n}`' for n in hypers)}" if hypers else "it has no hyper-parameters",
            )
        args = {}
        for name in hypers:
            if name in merged:
                value, where = merged[name]
                checked = coerce(value, hypers[name].kind, _default_none(hypers[name]), f"`{name}` of `{template.name}`", where)
                args[name] = checked.at(where) if isinstance(checked, Num) and checked.origin is None else checked
        return replace(template, args=args)

    def apply_template(
        self,
        template: Template,
        tensors: Sequence[tuple[Any, Span]],
        named: Mapping[str, tuple[Any, Span]],
        scope: Scope,
        span: Span,
        as_name: str = "",
        instance: Instance | None = None,
    ) -> Any:
        """Apply a block to tensors; a tuple if it has several results."""
        if instance is not None and not instance.label:
            instance.label = as_name or template.label
        if isinstance(template.target, Primitive):
            inputs, spans = self._primitive_inputs(template.target, tensors, named, scope, span)
            outputs = self.primitive(
                scope.frame, scope, template.target, inputs, template.args, span,
                spans=spans, as_name=as_name, label=template.label, instance=instance,
            )  # fmt: skip
        else:
            outputs = self.apply_declared(template, tensors, named, scope, span, as_name, instance)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def apply(
        self, block: Any, scope: Scope, span: Span, *, numbers: Sequence[Num] = (), tensors: Sequence[Value | None] = (), as_name: str = ""
    ) -> Any:
        """Apply a block value that a primitive was given."""
        instance = block if isinstance(block, Instance) else None
        template = block.template if isinstance(block, Instance) else block
        template = self.with_options(template, {}, [(n, span) for n in numbers], span)
        given = [(ABSENT if t is None else t, span) for t in tensors]
        return self.apply_template(template, given, {}, scope, span, as_name, instance)

    # --- primitives -------------------------------------------------------------------------------------------------------

    def _primitive_inputs(
        self,
        op: Primitive,
        tensors: Sequence[tuple[Any, Span]],
        named: Mapping[str, tuple[Any, Span]],
        scope: Scope,
        span: Span,
    ) -> tuple[list[Input], list[Span | None]]:
        params = list(op.header.tensors or ())
        given: dict[str, tuple[Any, Span]] = dict(named)
        rest = list(tensors)
        extra: list[tuple[Any, Span]] = []
        for param in params:
            if rest and param.name not in given:
                given[param.name] = rest.pop(0)
        if rest:
            if not op.variadic:
                raise error("E0205", f"`{op.name}` takes {len(params)} tensor{'s' * (len(params) != 1)}, and more were given", rest[0][1], notes=[f"its signature is {op.signature}"])  # fmt: skip
            extra = rest
        inputs: list[Input] = []
        spans: list[Span | None] = []
        for param in params:
            value, where = given.get(param.name, (None, None))
            if value is None and param.default is None:
                raise error("E0205", f"`{op.name}` still needs its tensor `{param.name}`", span, notes=[f"its signature is {op.signature}"])
            if isinstance(value, Absent):
                if param.default is None:
                    raise error("E0203", f"the tensor given for `{param.name}` was left out here", where or span, help="guard it: `if m != none { … }`")
                value = None
            inputs.append(self._input(value, op, param.name, scope, where or span))
            spans.append(where)
        for value, where in extra:
            inputs.append(self._input(value, op, params[-1].name, scope, where))
            spans.append(where)
        flat: list[Input] = []
        flat_spans: list[Span | None] = []
        for v, s in zip(inputs, spans, strict=True):
            # A list of tensors stands for its elements: concat(skips).
            for item in v if isinstance(v, list) else [v]:
                flat.append(item)
                flat_spans.append(s)
        return flat, flat_spans

    def _input(self, value: Any, op: Primitive, name: str, scope: Scope, span: Span) -> Any:
        if value is None or isinstance(value, Value | Num):
            return value
        if isinstance(value, list):
            if not op.variadic:
                raise error("E0205", f"`{op.name}` takes one tensor for `{name}`, and this is a list of them", span)
            return value
        if isinstance(value, Instance):
            return self.weight_of(value, scope, span)
        raise error("E0203", f"`{name}` of `{op.name}` is a tensor, and this is {kind_of(value)}", span)

    def weight_of(self, instance: Instance, scope: Scope, span: Span) -> Value:
        """The single matrix of a shared primitive, as a tensor."""
        if instance.node is None:
            self._fix_by_options(instance, scope, span)
        matrices = [w for w in instance.node.weights if w.kind in ("matrix", "embedding")] if instance.node else []
        if len(matrices) != 1:
            raise error("E0203", f"the shared `{instance.name}` has no single weight matrix to tie to", span, help="share an `embedding` or a `linear`")
        found = scope.frame.satisfy(Use(instance, matrices[0].name, {}))
        assert isinstance(found, Value)
        return found

    def _fix_by_options(self, instance: Instance, scope: Scope, span: Span) -> None:
        """An embedding's table is known before its first use: all its sizes are options."""
        target = instance.template.target
        if not (isinstance(target, Primitive) and target.name == "embedding"):
            raise error("E0211", f"the shared `{instance.name}` has no sizes yet: apply it before its weight is read", span)
        site = self._site(scope.frame, scope, target, [Value((num(1),), "int")], instance.template.args, span)
        weights = tuple(site._weight(w) for w in target.weights(site))
        instance.node = OpNode(target, site.options, (), (), weights, span=span, instance=instance)

    def _site(self, frame: Frame, scope: Scope, op: Primitive, inputs: Sequence[Input], options: Mapping[str, Any], span: Span, spans: Sequence[Span | None] = ()) -> Site:  # fmt: skip
        site = Site(op, frame, scope, span)
        site.inputs = tuple(inputs)
        site.input_spans = list(spans)
        for hyper in op.header.hypers or ():
            if hyper.name in options:
                value = options[hyper.name]
                if isinstance(value, Num) and value.origin is not None and value.origin.source is span.source:
                    site.spans[hyper.name] = value.origin
                site.options[hyper.name] = value
            elif hyper.kind == "sizes":
                site.options[hyper.name] = ()
            elif hyper.kind == "named_sizes":
                site.options[hyper.name] = {}
            elif hyper.default is None:
                raise error("E0205", f"`{op.name}` still needs its `{hyper.name}`", span, notes=[f"its signature is {op.signature}"])
            else:
                scope_ = Scope(self.module, frame, BodyState())
                default = self.ev(hyper.default, scope_, hyper.kind)
                site.options[hyper.name] = coerce(default, hyper.kind, True, hyper.name, span)
        named = {k: v for k, v in options.items() if k not in site.options}
        for hyper in op.header.hypers or ():
            if hyper.kind == "named_sizes":
                site.options[hyper.name] = {**(options.get(hyper.name) or {}), **named}
        site.bind_axes()
        return site

    def primitive(
        self,
        frame: Frame,
        scope: Scope,
        op: Primitive | str,
        inputs: Sequence[Input],
        options: Mapping[str, Any],
        span: Span,
        level: int | None = None,
        hint: str = "",
        *,
        spans: Sequence[Span | None] = (),
        as_name: str = "",
        label: str = "",
        instance: Instance | None = None,
    ) -> tuple[Value, ...]:
        """Apply a primitive; its outputs."""
        if isinstance(op, str):
            found = registry.find(op)
            assert found is not None, op
            op = found
        if instance is not None:
            options, handle = self._instance_options(instance, options, frame)
        site = self._site(frame, scope, op, inputs, options, span, spans)
        site.as_name, site.label, site.level = as_name, label, level
        if instance is not None:
            site.instance, site.handle = instance, handle
        if op.own_type:
            site.inputs = tuple(
                self.primitive(frame, scope, "cast", [v], {"dtype": "float"}, span)[0] if isinstance(v, Value) and v.dtype in ("float32", "bfloat16") else v
                for v in site.inputs
            )
        op.check(site)
        outputs = tuple(op.build(site))
        if instance is not None and handle is not None:
            self._fix_bind(frame, instance, site.axes)
        if hint:
            for value in outputs:
                if not value.name:
                    object.__setattr__(value, "name", hint)
        return outputs

    def _instance_options(self, instance: Instance, options: Mapping[str, Any], frame: Frame) -> tuple[Mapping[str, Any], Handle | None]:
        """Options of a shared primitive as seen here, and the handle where it lives in another block."""
        if instance.owner is frame:
            frame.satisfy(Use(instance, "", {}))
            return options, None
        joined: dict[str, Expr] = {}
        label = instance.label or instance.name
        options = {k: localise(f"{label}_{k}", v, joined) for k, v in options.items()}
        instance.joined.update(joined)
        handle = frame.satisfy(Use(instance, "", {}))
        assert isinstance(handle, Handle)
        return options, handle

    def _fix_bind(self, frame: Frame, instance: Instance, axes: Mapping[str, Num]) -> None:
        """The first use tells the owner what the shared block's axes are in its names."""
        context = next(c for c in frame.contexts.values() if isinstance(c.recipe, Use) and c.recipe.instance is instance and not c.recipe.weight)
        if not context.recipe.bind:
            object.__setattr__(context.recipe, "bind", {k: n.expr for k, n in axes.items()})

    def once_type(self, frame: Frame, demand: Once) -> tuple[Shape, str]:
        """Shape and type of a demand, in the frame's names."""
        inputs = [i if i is None or isinstance(i, Num) else self._demand_value(frame, i) for i in demand.inputs]
        op = registry.get(demand.op)
        span = demand.span or frame.span
        scope = Scope(self.module, frame, BodyState())
        site = self._site(frame, scope, op, inputs, demand.options, span)
        return tuple(op.shapes(site)[0]), op.dtypes(site)[0]

    def _demand_value(self, frame: Frame, demand: Any) -> Value:
        known = frame.contexts.get(demand.key)
        if known is not None and isinstance(known.value, Value):
            return known.value
        if isinstance(demand, Once):
            shape, dtype = self.once_type(frame, demand)
            return Value(shape, dtype, demand.hint)
        if isinstance(demand, ModelInput):
            return self.model_input_value(demand)
        value = demand.value
        assert isinstance(value, Value)
        return value

    def put_once(self, frame: Frame, demand: Once, inputs: Sequence[Input], level: int) -> Value:
        scope = Scope(self.module, frame, BodyState())
        instance = demand.instance
        return self.primitive(
            frame, scope, demand.op, inputs, demand.options, demand.span or frame.span, level, demand.hint, instance=instance
        )[0]

    # --- the model's inputs of a kind -----------------------------------------------------------------------------------------

    def model_input_value(self, demand: ModelInput) -> Value:
        axis = demand.axis
        name = f"{demand.kind}"
        dim = Num(axis, Var(f"{name}.1") if isinstance(axis, Poly) else literal(axis))  # type: ignore[arg-type]
        return Value((Num(symbol("batch"), Var(f"{name}.0")), dim), demand.kind, name, demand.span)

    def find_model_input(self, demand: ModelInput) -> Value:
        """The declared input of that kind over that axis; a model of slots gets one because it is asked for."""
        same_kind = [v for v in self.inputs.values() if v.dtype == demand.kind]
        for value in same_kind:
            if value.rank == 2 and value.shape[1].value == demand.axis:
                return value
        span = demand.span
        if self.input_by_slots:
            for name, value in self.inputs.items():
                if value.dtype == "token" and value.rank == 2 and value.shape[1].value == demand.axis:
                    made = Value(value.shape, demand.kind, f"{name}_{demand.kind}", span)
                    self.made_inputs[f"{name}_{demand.kind}"] = made
                    assert self.root is not None
                    return self.root.own(made, 0)
            for name, value in self.inputs.items():
                for i, d in enumerate(value.shape):
                    if i > 0 and d.value == demand.axis:
                        made = Value((value.shape[0], d), demand.kind, demand.kind, span)
                        self.made_inputs[f"{name}_{demand.kind}"] = made
                        assert self.root is not None
                        return self.root.own(made, 0)
        axes = ", ".join(f"`{n}` over {v.shape[1]}" for n, v in self.inputs.items() if v.dtype == demand.kind) or "none"
        raise error(
            "E0403",
            f"`{demand.kind}` asks for an input of that kind over an axis of {demand.axis}, and the model has {axes}",
            span,
            help=f"give the model an input such as `real: {demand.kind}[batch, {demand.axis}]`, or leave `{demand.kind}` out of the mask",
        )

    # --- declared blocks ------------------------------------------------------------------------------------------------------

    def apply_declared(
        self,
        template: Template,
        tensors: Sequence[tuple[Any, Span]],
        named: Mapping[str, tuple[Any, Span]],
        scope: Scope,
        span: Span,
        as_name: str = "",
        instance: Instance | None = None,
    ) -> tuple[Value, ...]:
        """Apply a block of the language. Errors inside the library are shown where the user wrote the block."""
        self.depth += 1
        if not span.source.library:
            self.user_spans.append(span)
        try:
            if self.depth > MAX_BLOCK_DEPTH:
                raise error("E0207", f"blocks are nested more than {MAX_BLOCK_DEPTH} deep: `{template.name}` applies itself", span)
            if _is_inline(template):
                return self._inline(template, tensors, named, scope, span)
            return self._outline(template, tensors, named, scope, span, as_name, instance)
        except ArchError as problem:
            if span.source.library:
                raise
            raise ArchError([_shown_at(d, span) for d in problem.diagnostics]) from None
        finally:
            self.depth -= 1
            if not span.source.library:
                self.user_spans.pop()

    def _inline(
        self, template: Template, tensors: Sequence[tuple[Any, Span]], named: Mapping[str, tuple[Any, Span]], scope: Scope, span: Span
    ) -> tuple[Value, ...]:
        frame = scope.frame
        assert isinstance(template.target, Declared)
        body = BodyState(inline=True)
        inner = Scope(template.target.module, frame, body)
        for name, value in template.args.items():
            inner.vars[name] = value.labelled(name) if isinstance(value, Template) else value
        given = self._match_tensors(template, tensors, named, inner, span, {}, reroot=False)
        inner.vars.update(given)
        self._defaults(template, inner, span, None)
        self._check_shapes(template, inner, given, span)
        stash, frame.pending = frame.pending, []
        try:
            outputs = self._body(template, inner, given, span)
            frame.settle(None)
        finally:
            frame.pending = stash + frame.pending
        return outputs

    def _outline(
        self,
        template: Template,
        tensors: Sequence[tuple[Any, Span]],
        named: Mapping[str, tuple[Any, Span]],
        scope: Scope,
        span: Span,
        as_name: str,
        instance: Instance | None,
    ) -> tuple[Value, ...]:
        frame = scope.frame
        call, given = self._call_block(template, tensors, named, frame, span, frame.copies, instance)
        if instance is None:
            frame.put(call)
            frame.name_later(as_name or template.label or template.name, bool(as_name or template.label), False)
        else:
            self._place_instance(call, instance, frame, span)
        return call.outputs

    def _place_instance(self, call: CallNode, instance: Instance, frame: Frame, span: Span) -> None:
        if instance.block is None:
            instance.block = call.block
        elif instance.block.key != call.block.key:
            raise error(
                "E0305",
                f"the shared `{instance.name}` got its sizes at its first use, and these tensors have others",
                span,
                labels=[Label(instance.span, "shared here")] if instance.span else [],
                help="share a block only where the sizes are the same",
            )
        if instance.owner is not frame:
            # The numbers of the template are the owner's; only axes are known by this frame's names.
            bind = {k: e for k, e in call.bind.items()}
            handle = frame.satisfy(Use(instance, "", bind))
            assert isinstance(handle, Handle)
            object.__setattr__(call, "handle", handle)
        else:
            frame.satisfy(Use(instance, "", call.bind))
            object.__setattr__(call, "name", instance.path)
        object.__setattr__(call, "instance", instance)
        frame.put(call)

    def _call_block(
        self,
        template: Template,
        tensors: Sequence[tuple[Any, Span]],
        named: Mapping[str, tuple[Any, Span]],
        frame: Frame,
        span: Span,
        copies: Num | None,
        instance: Instance | None = None,
    ) -> tuple[CallNode, dict[str, Any]]:
        """A call of a block that has a module of its own, put nowhere yet."""
        assert isinstance(template.target, Declared)
        bind: dict[str, Expr] = {}
        args = {k: v for k, v in template.args.items()}
        if instance is not None and instance.owner is not frame:
            joined: dict[str, Expr] = {}
            label = instance.label or instance.name
            args = {k: localise(f"{label}_{k}", v, joined) for k, v in args.items()}
            instance.joined.update(joined)
        own = {k: localise(k, v, bind) for k, v in args.items()}
        init = localise("init", frame.init, bind) if frame.init is not None else None
        if copies is not None:
            bind["expert_count"] = copies.expr
        local = replace(template, args=own)
        inner_frame = Frame(self, template.name, _name_span(template.target.node))
        inner_frame.init = init
        inner_frame.copies = copies.named("expert_count") if copies is not None else None
        body = BodyState()
        inner = Scope(template.target.module, inner_frame, body)
        inner.vars.update(own)
        inner_frame.known.update({k: v for k, v in own.items() if isinstance(v, Num)})
        given = self._match_tensors(template, tensors, named, inner, span, bind, reroot=True)
        key = self._block_key(template, own, given, init, copies, inner)
        if key in self.broken:
            raise Poisoned
        block = self.memo.get(key)
        if block is None:
            before = len(self.problems)
            try:
                block = self._elaborate(local, inner, given, key, span)
            except (ArchError, Poisoned):
                self.broken.add(key)
                raise
            if len(self.problems) > before:
                self.broken.add(key)
            self.memo[key] = block
        for name, value in block.hypers.items():
            # A number that was not given is the default's own, unless the body computes it from others.
            if isinstance(value, Num) and name not in bind and isinstance(value.expr, Var) and name not in block.local:
                bind[name] = literal(value.value) if not isinstance(value.value, Poly) else value.expr
        names = outward_names(block, bind)
        call_inputs = [self._caller_input(p, tensors, named, i, template) for i, p in enumerate(block.tensor_names)]
        contexts = frame.contexts_at(block.contexts, names)
        bind = {**bind, **{k: v for k, v in names.items() if "." in k}}
        outputs = tuple(
            Value(tuple(d.outward(names).at(d.origin or span) for d in v.shape), v.dtype, "", span) for v in block.graph.outputs if v is not None
        )
        call = CallNode(block, tuple(call_inputs), contexts, outputs, bind, alias=template.alias, span=span)
        return call, given

    def _caller_input(
        self, name: str, tensors: Sequence[tuple[Any, Span]], named: Mapping[str, tuple[Any, Span]], index: int, template: Template
    ) -> Value | None:
        if name in named:
            value = named[name][0]
        else:
            assert isinstance(template.target, Declared)
            free = [p.name for p in _tensor_params(template.target) if p.name not in named]
            at = free.index(name) if name in free else len(free)
            value = tensors[at][0] if at < len(tensors) else None
        return value if isinstance(value, Value) else None

    def _block_key(self, template: Template, own: Mapping[str, Any], given: Mapping[str, Any], init: Any, copies: Num | None, scope: Scope) -> Hashable:  # fmt: skip
        assert isinstance(template.target, Declared)
        tensors = []
        seen: dict[int, str] = {}
        for name, value in given.items():
            if not isinstance(value, Value):
                continue
            alias = seen.setdefault(id(value), name)
            tensors.append((name, alias, tuple(d.value for d in value.shape), value.dtype))
        return (
            id(template.target.node),
            tuple((k, _value_key(v), _names_in(v)) for k, v in own.items()),
            tuple(tensors),
            static_key(init),
            None if copies is None else copies.value,
        )

    def _elaborate(self, template: Template, scope: Scope, given: Mapping[str, Any], key: Hashable, span: Span) -> Block:
        assert isinstance(template.target, Declared)
        node, frame = template.target.node, scope.frame
        scope.vars.update(given)
        self._defaults(template, scope, span, frame)
        self._check_shapes(template, scope, given, span)
        outputs = self._body(template, scope, given, span)
        frame.settle(None)
        params = []
        inputs = []
        seen: set[int] = set()
        for param in _tensor_params(template.target):
            value = given.get(param.name)
            if isinstance(value, Value) and id(value) not in seen:
                seen.add(id(value))
                params.append(param.name)
                inputs.append(value)
        results = node.header.results
        graph = frame.graph(inputs, outputs)
        read = {id(v) for v in captured(graph)} | _handles(graph)
        return Block(
            name=node.name,
            key=key,
            doc=node.doc,
            span=_name_span(node),
            graph=graph,
            header=node.header,
            tensor_names=tuple(params),
            result_names=tuple(r.name for r in results) if results and len(results) == len(outputs) else (None,) * len(outputs),
            contexts=tuple(c for c in frame.contexts.values() if (id(c.value.instance) if isinstance(c.value, Handle) else id(c.value)) in read),
            hypers={h.name: scope.vars[h.name] for h in _hypers(template) if h.name in scope.vars},
            local=dict(frame.local),
            axes=dict(frame.axes),
            asserts=tuple(frame.asserts),
            instances=tuple(frame.instances),
            library=template.target.module.source.library,
            copies=frame.copies,
        )

    def _match_tensors(
        self,
        template: Template,
        tensors: Sequence[tuple[Any, Span]],
        named: Mapping[str, tuple[Any, Span]],
        scope: Scope,
        span: Span,
        bind: dict[str, Expr],
        *,
        reroot: bool,
    ) -> dict[str, Any]:
        """Tensors by the block's names, and the axes they bind. With `reroot` each becomes a value of the block's own."""
        assert isinstance(template.target, Declared)
        params = _tensor_params(template.target)
        found: dict[str, tuple[Any, Span]] = dict(named)
        rest = list(tensors)
        for param in params:
            if rest and param.name not in found:
                found[param.name] = rest.pop(0)
        if rest:
            names = ", ".join(f"`{p.name}`" for p in params)
            raise error("E0205", f"`{template.name}` takes {names}, and {len(rest)} more tensor{'s were' if len(rest) > 1 else ' was'} given", rest[0][1])  # fmt: skip
        given: dict[str, Any] = {}
        hyper_names = {h.name for h in _hypers(template)}
        for param in params:
            value, where = found.get(param.name, (None, span))
            if value is None:
                if param.default is None:
                    raise error("E0205", f"`{template.name}` still needs its tensor `{param.name}`", span)
                if isinstance(param.default, ast.Name) and param.default.id in given:
                    other = given[param.default.id]
                    given[param.name] = other
                    if isinstance(other, Value):
                        self._bind_axes(param, other, scope, where, {}, hyper_names, False, template.name)
                    continue
                given[param.name] = ABSENT
                continue
            if isinstance(value, Absent):
                if param.default is None:
                    raise error("E0203", f"`{template.name}` needs `{param.name}`, which was left out here", where)
                given[param.name] = ABSENT
                continue
            if isinstance(value, list):
                raise error("E0205", f"`{param.name}` of `{template.name}` is one tensor, and this is a list of them", where)
            self._check_type(param, value, where, template.name)
            given[param.name] = self._bind_axes(param, value, scope, where, bind, hyper_names, reroot, template.name)
        return given

    def _check_type(self, param: ast.TensorParam, value: Value, span: Span, owner: str) -> None:
        kind = _tensor_kind(param.type)
        if kind is None:
            return
        fits = (
            (kind in ("token", "int", "documents") and value.is_int)
            or (kind in ("bool", "padding") and value.is_bool)
            or (kind in ("float", "float32", "bfloat16") and value.is_float)
        )
        if not fits:
            raise error("E0304", f"`{param.name}` of `{owner}` is of type {kind}, and a tensor of type {value.dtype} was given", span)

    def _bind_axes(
        self,
        param: ast.TensorParam,
        value: Value,
        scope: Scope,
        span: Span,
        bind: dict[str, Expr],
        hypers: set[str],
        reroot: bool,
        owner: str,
    ) -> Value:
        dims_ = list(param.type.dims)
        spot = next((i for i, d in enumerate(dims_) if isinstance(d, ast.Ellipsis)), None)
        fixed = len(dims_) - (spot is not None)
        if value.rank < fixed or (spot is None and value.rank != fixed):
            raise error(
                "E0302",
                f"`{owner}` takes {param.name}: {param.type.span.text}, and a tensor with {value.rank} axes was given: {shape_text(value.shape)}",
                span,
                labels=[Label(value.span, "it was made here")] if value.span and value.span != span else [],
            )
        rest = value.rank - fixed
        shape: list[Num] = []
        position = 0
        for dim in dims_:
            if isinstance(dim, ast.Ellipsis):
                for k in range(rest):
                    size = value.shape[position + k]
                    if reroot:
                        name = f"{param.name}.{position + k}"
                        bind[name] = size.expr
                        size = size.named(name)
                    shape.append(size)
                position += rest
                continue
            size = value.shape[position]
            if isinstance(dim, ast.Name) and dim.id not in scope.vars and "." not in dim.id:
                size = size.at(value.shape[position].origin)
                if reroot:
                    bind[dim.id] = size.expr
                    size = size.named(dim.id)
                if dim.id not in hypers:
                    scope.vars[dim.id] = size
                    if reroot:
                        scope.frame.axes[dim.id] = size
                else:
                    # A hyper-parameter with a default is checked against it later; one without is bound by the tensor.
                    scope.vars.setdefault(f"axis {dim.id}", size)
            elif reroot:
                size = size.named(f"{param.name}.{position}")
                bind[f"{param.name}.{position}"] = value.shape[position].expr
            shape.append(size)
            position += 1
        if not reroot:
            return value
        dtype = value.dtype if param.type.kind in (None, "float") else param.type.kind
        if value.dtype in ("padding", "documents") and param.type.kind in ("bool", "int"):
            dtype = param.type.kind
        local = Value(tuple(shape), dtype, param.name, param.span, True)
        return scope.frame.own(local, 0)

    def _defaults(self, template: Template, scope: Scope, span: Span, frame: Frame | None) -> None:
        """Hyper-parameters that were not given; they may be computed from others and from axes."""
        for hyper in _hypers(template):
            if hyper.name in template.args:
                continue
            axis = scope.vars.pop(f"axis {hyper.name}", None)
            if hyper.default is None:
                if axis is None:
                    raise error(
                        "E0205",
                        f"`{template.name}` still needs its `{hyper.name}`",
                        span,
                        labels=[Label(hyper.span, "declared here, without a default")],
                    )
                scope.vars[hyper.name] = axis
                if frame is not None:
                    frame.axes[hyper.name] = axis
                continue
            value = self.ev(hyper.default, scope, hyper.kind)
            value = coerce(value, hyper.kind, _default_none(hyper), f"`{hyper.name}` of `{template.name}`", hyper.default.span)
            if isinstance(value, Num) and frame is not None:
                if dims.free_names(value.expr):
                    frame.local[hyper.name] = value.expr
                    self._exact(frame, value)
                value = value.named(hyper.name)
            elif isinstance(value, Template):
                value = value.labelled(hyper.name)
            scope.vars[hyper.name] = value

    def _check_shapes(self, template: Template, scope: Scope, given: Mapping[str, Any], span: Span) -> None:
        """Sizes of the signature that are expressions, numbers or hyper-parameters must be those of the tensors."""
        assert isinstance(template.target, Declared)
        for name in [n for n in scope.vars if n.startswith("axis ")]:
            del scope.vars[name]
        for param in _tensor_params(template.target):
            value = given.get(param.name)
            if isinstance(value, Value):
                self._same_dims(param.type, value, scope, f"`{param.name}` of `{template.name}`", span, bind=False)

    def _same_dims(self, type_: ast.TensorType, value: Value, scope: Scope, what: str, span: Span, *, bind: bool) -> list[Num]:
        """Compare a shape with a written one; a name that is not bound yet is bound by it."""
        dims_ = list(type_.dims)
        spot = next((i for i, d in enumerate(dims_) if isinstance(d, ast.Ellipsis)), None)
        fixed = len(dims_) - (spot is not None)
        if value.rank < fixed or (spot is None and value.rank != fixed):
            raise error("E0302", f"{what} is written with {fixed} axes, {type_.span.text}, and has {value.rank}: {shape_text(value.shape)}", span)
        after = len(dims_) - spot - 1 if spot is not None else 0
        result = list(value.shape)
        for i, dim in enumerate(dims_):
            if isinstance(dim, ast.Ellipsis):
                continue
            position = i if spot is None or i < spot else value.rank - after + (i - spot - 1)
            size = value.shape[position]
            if isinstance(dim, ast.Name) and bind and scope.get(dim.id) is MISSING:
                expr = size.expr
                if dims.free_names(expr) and expr != Var(dim.id):
                    scope.frame.local.setdefault(dim.id, expr) if not scope.body.inline and size.static else None
                scope.vars[dim.id] = size.named(dim.id) if size.static and dim.id in scope.frame.local else size
                result[position] = scope.vars[dim.id]
                continue
            wanted = self.ev(dim, scope)
            if not isinstance(wanted, Num):
                raise error("E0203", f"a size is a number, and `{dim.span.text}` is {kind_of(wanted)}", dim.span)
            wanted = whole_size(wanted, "int", "a size", dim.span)
            if isinstance(wanted.value, Poly) and wanted.value.denominator != 1 and "/" in expr_text(wanted.expr):
                self._divides(wanted, scope.frame, dim.span)
            if not dims.equal_where_whole(size.value, wanted.value):
                labels = [Label(size.origin, f"{size} comes from here")] if size.origin is not None and size.origin != span else []
                if wanted.origin is not None and wanted.origin not in (span, dim.span) and wanted.origin != size.origin:
                    labels.append(Label(wanted.origin, f"{wanted} comes from here"))
                labels.append(Label(dim.span, f"this asks for {_dim_words(dim.span.text, wanted)}"))
                raise error("E0301", f"{what} is {shape_text(value.shape)}, and its axis `{dim.span.text}` should be {wanted}", span, labels=labels)
            result[position] = Num(wanted.value, wanted.expr, size.origin)
        return result

    def _divides(self, size: Num, frame: Frame, span: Span) -> None:
        """`time / 4` makes "4 divides time" a condition on the input."""
        assert isinstance(size.value, Poly)
        d = size.value.denominator
        top, bottom = Num(dims.mul(size.value, d), dims.Bin("*", Lit(str(d)), size.expr), size.origin), num(d)
        if isinstance(size.expr, dims.Bin) and size.expr.op == "/":
            by = dims.expr_value(dims.substitute(size.expr.right, self._literals(frame)))
            if isinstance(by, int):
                top, bottom = Num(dims.mul(size.value, by), size.expr.left, size.origin), Num(by, size.expr.right)
        self.condition(frame, "%", top, bottom, f"{_spelled(top)} must be a multiple of {bottom}", span)

    def _literals(self, frame: Frame) -> dict[str, Expr]:
        """Names of the frame that are known numbers."""
        return {k: literal(n.value) for k, n in frame.known.items() if not isinstance(n.value, Poly)}

    # --- bodies ---------------------------------------------------------------------------------------------------------------

    def _body(self, template: Template, scope: Scope, given: Mapping[str, Any], span: Span) -> tuple[Value, ...]:
        assert isinstance(template.target, Declared)
        node = template.target.node
        if not isinstance(node.body, ast.Body):
            value = self._alias(node, scope, given)
        elif node.body.slots or not node.body.items:
            value = self._slots(node, scope, given)
        else:
            value = self._equations(node.body, scope, given, node)
        outputs = value if isinstance(value, tuple) else (value,)
        flat: list[Value] = []
        for item in outputs:
            for v in item if isinstance(item, list) else [item]:
                if not isinstance(v, Value):
                    raise error("E0203", f"a block gives tensors back, and this is {kind_of(v)}", _name_span(node))
                flat.append(v)
        results = node.header.results
        if results is None:
            first = next((v for v in given.values() if isinstance(v, Value)), None)
            if len(flat) == 1 and first is not None and node.body and self._result_is_first(node) and not same_shape(first.shape, flat[0].shape):
                raise error(
                    "E0301",
                    f"`{node.name}` says nothing of its result, so it should have the shape of its first tensor, {shape_text(first.shape)}; "
                    f"it has {shape_text(flat[0].shape)}",
                    _name_span(node),
                    help=f"write the result behind the tensors: `-> {_shape_of(flat[0])}`",
                )
            return tuple(flat)
        if len(results) != len(flat):
            raise error("E0205", f"`{node.name}` declares {len(results)} result{'s' * (len(results) > 1)} and gives {len(flat)} back", _name_span(node))
        checked = []
        for result, value in zip(results, flat, strict=True):
            what = f"the result `{result.name}` of `{node.name}`" if result.name else f"the result of `{node.name}`"
            where = value.span if value.span and not value.span.source.library else result.span
            shape = tuple(self._same_dims(result.type, value, scope, what, where, bind=True))
            if not same_shape(shape, value.shape):
                # `time / 4` is what the result promises; the condition that makes it so has been noted.
                object.__setattr__(value, "shape", shape)
            checked.append(value)
        return tuple(checked)

    def _result_is_first(self, node: Any) -> bool:
        """Without `->` the result has the first tensor's shape: demanded of blocks of equations that name their tensors, outside the library."""
        return isinstance(node, ast.Block) and not node.inline and isinstance(node.body, ast.Body) and not node.body.slots and node.header.tensors is not None and not node.name_span.source.library  # fmt: skip

    def _alias(self, node: Any, scope: Scope, given: Mapping[str, Any]) -> Any:
        """`block swiglu(hidden) = glu_mlp(…)`: the body of the other block, in this one's names."""
        value = self.ev(node.body, scope)
        if isinstance(value, Instance):
            raise error("E0203", "a block is one call of another, and this is shared", node.body.span)
        if not isinstance(value, Template):
            raise error("E0203", f"a block is one call of another, and this is {kind_of(value)}", node.body.span)
        tensors = {k: (v, node.body.span) for k, v in given.items() if isinstance(v, Value)}
        ordered = [v for v in tensors.values()]
        if isinstance(value.target, Declared):
            return self._inline(value, ordered, {}, scope, node.body.span)
        return self.apply_template(replace(value, label=""), ordered, {}, scope, node.body.span)

    def _slots(self, node: Any, scope: Scope, given: Mapping[str, Any]) -> Any:
        """A body of slots is a call of the library's block."""
        meaning, skip = self._slot_meaning(node)
        target = find_in_library(meaning)
        assert target is not None, meaning
        declared = Declared(target[1], target[0])  # type: ignore[arg-type]
        kinds = {h.name: h.kind for h in declared.node.header.hypers or ()}
        args: dict[str, tuple[Any, Span]] = {}
        for item in node.body.items:
            if isinstance(item, ast.Slot):
                if item.key in args:
                    raise error("E0202", f"the slot `{item.key}` is given twice", item.key_span)
                if item.key not in kinds and item.key not in skip:
                    raise error(
                        "E0201",
                        f"`{node.name}` has no slot `{item.key}`",
                        item.key_span,
                        help=did_you_mean(item.key, kinds) or f"its slots are {', '.join(f'`{k}`' for k in kinds)}",
                    )
                value = self.ev(item.value, scope, kinds.get(item.key))
                if isinstance(value, Value) and value.dtype in ("padding", "documents"):
                    value = self._as_mask(value, item.value.span)
                if isinstance(value, Template):
                    value = value.labelled(item.key)
                if item.key == "init" and isinstance(value, Scheme):
                    scope.frame.init = value
                args[item.key] = (value, item.value.span)
            elif isinstance(item, ast.Let | ast.Assert):
                self._statement(item, scope)
            else:
                raise error("E0215", "slots and equations do not mix", item.span, help="write the whole body in one of the two ways")
        template = self.with_options(Template(declared, {}), args, (), _name_span(node))
        tensors = [(v, _name_span(node)) for v in given.values() if isinstance(v, Value)]
        if isinstance(node, ast.Model):
            return self.apply_declared(template, tensors, {}, scope, _name_span(node))
        named = {k: (v, _name_span(node)) for k, v in given.items() if isinstance(v, Value)}
        wanted = {p.name for p in declared.node.header.tensors or ()}
        ordered = [named.pop(k) for k in list(named) if k not in wanted]
        return self.apply_declared(template, ordered, named, scope, _name_span(node))

    def _slot_meaning(self, node: Any) -> tuple[str, frozenset[str]]:
        if isinstance(node, ast.Block):
            return "transformer_block", frozenset()
        keys = {s.key for s in node.body.slots}
        if "encoder" in keys or "decoder" in keys:
            return "encoder_decoder", frozenset()
        if "input" in keys and not _is_tokens(node):
            return "input_model", frozenset()
        return "language_model", frozenset()

    def _equations(self, body: ast.Body, scope: Scope, given: Mapping[str, Any], node: Any) -> Any:
        first = next((k for k, v in given.items() if isinstance(v, Value)), "")
        before = scope.vars.get(first)
        slots = body.slots
        if slots:
            raise error("E0215", "slots and equations do not mix", slots[0].span)
        self.statements(body.items, scope)
        if scope.body.result is not None:
            return scope.body.result if len(scope.body.result) != 1 else scope.body.result[0]
        last = scope.vars.get(first)
        if last is POISON:
            raise Poisoned
        if not first or last is before:
            raise error(
                "E0213",
                f"`{node.name}` gives nothing back",
                _name_span(node),
                help=f"end it with `return …`, or bind `{first}` again" if first else "end it with `return …`",
            )
        return last

    def statements(self, items: Sequence[Any], scope: Scope) -> None:
        """Run statements in order; each error is reported, and what depends on it stays silent."""
        before: Any = None
        for item in items:
            if scope.body.result is not None:
                if isinstance(before, ast.Return):
                    self.report(error("E0214", "nothing after `return` is ever used", item.span))
                return
            before = item
            try:
                self._statement(item, scope)
            except (ArchError, Poisoned) as problem:
                if isinstance(problem, ArchError):
                    self.report(problem)
                scope.frame.pending = []
                for name in _bound_names(item):
                    scope.vars[name] = POISON
                if isinstance(item, ast.Return | ast.Emit):
                    raise Poisoned from None
    def _statement(self, item: Any, scope: Scope) -> None:
        method: Callable[..., None] = getattr(self, f"_do_{type(item).__name__}")
        method(item, scope)

    def _do_Let(self, s: ast.Let, scope: Scope) -> None:
        value = self.ev(s.value, scope)
        if is_tensor(value) or isinstance(value, tuple):
            raise error("E0203", "`let` names static things: a number, a block, a mask, a list", s.span, help=f"bind a tensor without it: `{s.name} = …`")
        if s.name in scope.vars and not isinstance(scope.vars[s.name], Value):
            raise error("E0202", f"`{s.name}` is bound already, and a `let` is bound once", s.span)
        if isinstance(value, Template):
            value = value.labelled(s.name)
        elif isinstance(value, Instance):
            value.label = value.label or s.name
        elif isinstance(value, Num) and not scope.body.inline and dims.free_names(value.expr) and value.expr != Var(s.name):
            scope.frame.local[s.name] = value.expr
            self._exact(scope.frame, value)
            value = value.named(s.name)
        scope.vars[s.name] = value

    def _do_Assign(self, s: ast.Assign, scope: Scope) -> None:
        if isinstance(s.value, ast.Scan):
            values: Any = self._scan(s.value, scope)
        elif isinstance(s.value, ast.For):
            values = self._for(s.value, scope, collect=True)
        else:
            values = self.ev(s.value, scope)
        scope.frame.settle(s.names[0] if len(s.names) == 1 else None)
        if len(s.names) == 1:
            self._bind(s.names[0], values, s.type, scope, s.span)
            return
        got = values if isinstance(values, tuple) else tuple(values) if isinstance(values, list) else (values,)
        if len(got) != len(s.names):
            raise error("E0205", f"{len(s.names)} names are bound here, and there {'is' if len(got) == 1 else 'are'} {len(got)} result{'s' * (len(got) != 1)}", s.span)  # fmt: skip
        for name, value in zip(s.names, got, strict=True):
            self._bind(name, value, s.type, scope, s.span)

    def _bind(self, name: str, value: Any, type_: ast.TensorType | None, scope: Scope, span: Span) -> None:
        if isinstance(value, tuple):
            raise error("E0205", f"there are {len(value)} results and one name", span, help=f"name them all: `{name}, other = …`")
        if not is_tensor(value):
            raise error("E0203", f"`{name} = …` binds a tensor, and this is {kind_of(value)}", span, help=f"static things are bound by `let {name} = …`")
        if isinstance(value, list):
            for v in value:
                if not v.name:
                    object.__setattr__(v, "name", name)
        if isinstance(value, Value):
            if type_ is not None:
                if type_.kind is not None:
                    self._check_type(ast.TensorParam(name, type_, None, span=type_.span), value, span, "this statement")
                shape = self._same_dims(type_, value, scope, f"`{name}`", span, bind=True)
                if not value.name:
                    # No one has read the value yet: it takes on the sizes as the annotation spells them.
                    object.__setattr__(value, "shape", tuple(shape))
            if not value.name:
                object.__setattr__(value, "name", name)
                object.__setattr__(value, "user_named", not scope.body.inline)
        scope.vars[name] = value

    def _do_Update(self, s: ast.Update, scope: Scope) -> None:
        old = self.lookup(s.name, scope, s.span)
        if not isinstance(old, Value):
            raise error("E0203", f"`{s.name} += …` needs a tensor `{s.name}`, and it is {kind_of(old)}", s.span)
        added = self.ev(s.value, scope)
        if not isinstance(added, Value | Num):
            raise error("E0203", f"`+=` adds a tensor, and this is {kind_of(added)}", s.value.span)
        total = self.primitive(scope.frame, scope, "plus", [old, added], {}, s.span, spans=[s.span, s.value.span])[0]
        scope.frame.settle(None)
        if not same_shape(total.shape, old.shape):
            raise error("E0301", f"`{s.name} += …` keeps the shape {shape_text(old.shape)}, and the sum is {shape_text(total.shape)}", s.span)
        self._bind(s.name, total, s.type, scope, s.span)

    def _do_Param(self, s: ast.Param, scope: Scope) -> None:
        frame = scope.frame
        shape = []
        for dim in s.type.dims:
            size = self.ev(dim, scope)
            if not isinstance(size, Num):
                raise error("E0203", f"a size is a number, and this is {kind_of(size)}", dim.span)
            size = whole_size(size, "size", "a size", dim.span)
            if not size.static and s.kind == "param":
                raise error("E0402", f"the weight `{s.name}` would have a size, {size}, that is known only when the model runs", dim.span, help="fix it by a hyper-parameter")  # fmt: skip
            shape.append(size)
        wanted = tuple(shape)
        dtype = _tensor_kind(s.type) or "float"
        init = self._first_value(s, wanted, scope)
        if frame.copies is not None:
            wanted = (frame.copies, *wanted)
        stored = "int64" if dtype in INTEGERS else "bool" if dtype in BOOLEANS else "float"
        if s.kind == "param" and stored != "float":
            raise error("E0203", f"a weight holds real numbers, and `{s.name}` would hold {dtype}", s.type.span, help="a constant is a `buffer`")
        weight = Weight("", wanted, "raw", init, s.kind == "param", s.kind == "param", dtype=stored)
        value = Value(tuple(shape), dtype, s.name, s.span, not scope.body.inline)
        frame.param(ParamNode(weight, value, frame.allocate(s.name), s.span))
        scope.vars[s.name] = value

    def _first_value(self, s: ast.Param, shape: Shape, scope: Scope) -> Init:
        """A scheme, or an expression of numbers, `indices` and draws, as a graph of its own."""
        frame = Frame(self, scope.frame.name, s.span)
        frame.local = scope.frame.local
        inner = Scope(scope.module, frame, BodyState(), scope)
        inner.vars["shape of the weight"] = shape
        value = self.ev(s.value, inner, "scheme")
        if isinstance(value, Scheme):
            return Init(value.name, value.numbers)
        if isinstance(value, Num):
            return Init("constant", {"value": value})
        if not isinstance(value, Value):
            raise error("E0203", f"a weight's first value is a scheme or an expression of numbers, and this is {kind_of(value)}", s.value.span)
        if value.rank > len(shape) or any(a.value not in (b.value, 1) for a, b in zip(reversed(value.shape), reversed(shape), strict=False)):
            raise error("E0301", f"`{s.name}` is {shape_text(shape)}, and its first value is {shape_text(value.shape)}", s.value.span)
        bad = next((n for n in frame.nodes if isinstance(n, OpNode) and n.op.numpy is None), None)
        if bad is not None or any(not isinstance(n, OpNode) for n in frame.nodes):
            name = bad.op.name if bad is not None else "this"
            raise error("E0204", f"`{name}` cannot stand in a weight's first value", s.value.span, help="use arithmetic, exp, log, indices and draws such as normal(0.02)")
        return Init("expression", {}, Graph((), tuple(frame.nodes), (value,)))

    def _drawn(self, value: Any, scope: Scope, span: Span) -> Any:
        """In a weight's first value, a scheme that something is computed with is a draw of the weight's shape."""
        shape = scope.get("shape of the weight") if isinstance(value, Scheme) else MISSING
        if shape is MISSING:
            return value
        return self.primitive(scope.frame, scope, "draw", [], {"scheme": value, "dims": shape}, span)[0]

    def _scheme(self, rule: SchemeRule, args: Sequence[tuple[str | None, Any, Span]], span: Span) -> Scheme:
        from archdsl.ir.scalings import SCALINGS

        fields = SCHEMES.get(rule.name) if rule.name in SCHEMES else SCALINGS[rule.name]
        assert fields is not None
        numbers: dict[str, Num] = {}
        for name, value, where in args:
            key = name or next((f for f in fields if f not in numbers), None)
            if key is None or key not in fields:
                raise unknown_option(name or "?", rule.name, fields, where)
            if isinstance(value, ListValue):
                numbers.update({f"{key}.{i}": v for i, v in enumerate(value.items)})
                continue
            if isinstance(value, bool):
                value = num(int(value))
            if not isinstance(value, Num):
                raise error("E0203", f"`{key}` of `{rule.name}` is a number, and {kind_of(value)} was given", where)
            numbers[key] = value
        for key, default in fields.items():
            if key not in numbers and f"{key}.0" not in numbers:
                if default is None:
                    raise error("E0205", f"`{rule.name}` still needs its `{key}`", span)
                if default == default:  # NaN: may be left out
                    numbers[key] = num(Fraction(str(default)) if isinstance(default, float) else default)
        return Scheme(rule.name, {k: numbers[k] for k in sorted(numbers, key=lambda n: list(fields).index(n.partition(".")[0]))})

    def _do_If(self, s: ast.If, scope: Scope) -> None:
        if isinstance(s.condition, ast.Name) and s.condition.id == "training" and scope.get("training") is MISSING:
            self._if_training(s, scope)
            return
        self.statements(s.then if self.truth(s.condition, scope) else s.otherwise, scope)

    def _if_training(self, s: ast.If, scope: Scope) -> None:
        frame = scope.frame
        before = dict(scope.vars)
        results: list[dict[str, Any]] = []
        graphs: list[list[Node]] = []
        for branch in (s.then, s.otherwise):
            inner = scope.inner()
            with frame.level() as nodes:
                self.statements(branch, inner)
            graphs.append(nodes)
            results.append(inner.vars)
        if scope.body.result is not None:
            raise error("E0214", "`return` cannot stand in `if training`", s.span, help="bind a name in both branches and return it after them")
        names = [n for n in dict.fromkeys([*results[0], *results[1]]) if isinstance(results[0].get(n, before.get(n)), Value)]
        names = [n for n in names if isinstance(results[0].get(n, before.get(n, scope.get(n))), Value) and isinstance(results[1].get(n, before.get(n, scope.get(n))), Value)]
        outputs, then_out, else_out = [], [], []
        for name in names:
            a, b = results[0].get(name, scope.get(name)), results[1].get(name, scope.get(name))
            if not same_shape(a.shape, b.shape):
                raise error("E0301", f"`{name}` is {shape_text(a.shape)} in training and {shape_text(b.shape)} otherwise", s.span)
            then_out.append(a)
            else_out.append(b)
            outputs.append(Value(a.shape, a.dtype, name, s.span, not scope.body.inline))
        frame.put(CondNode(Graph((), tuple(graphs[0]), tuple(then_out)), Graph((), tuple(graphs[1]), tuple(else_out)), tuple(outputs), s.span))
        for name, value in zip(names, outputs, strict=True):
            scope.vars[name] = value

    def _do_Assert(self, s: ast.Assert, scope: Scope) -> None:
        message = s.message or f"`{s.condition.span.text}` must hold"
        self._assert(s.condition, message, s, scope)

    def _assert(self, e: ast.Expr, message: str, s: ast.Assert, scope: Scope) -> None:
        if isinstance(e, ast.Binary) and e.op == "and":
            self._assert(e.left, message, s, scope)
            self._assert(e.right, message, s, scope)
            return
        if isinstance(e, ast.Call) and isinstance(e.function, ast.Name) and e.function.id == "causal":
            self._assert_causal(e, scope, s)
            return
        if isinstance(e, ast.Binary) and e.op in COMPARE:
            a, b = self.ev(e.left, scope), self.ev(e.right, scope)
            if isinstance(a, Num) and isinstance(b, Num):
                if not (a.static and b.static):
                    known = ("checked", e.op, a.value, b.value)
                    if (a.value == b.value and e.op in ("==", "<=", ">=")) or known in scope.frame.made:
                        return
                    scope.frame.made[known] = Value((), "bool")
                    scope.frame.put(CheckNode(e.op, a, b, message, s.span))
                    return
                if TESTS[e.op](a.value, b.value):
                    self.remember(scope.frame, a.expr, e.op, b.expr, message)
                    return
                labels = [Label(n.origin, f"{_spelled(n)} comes from here") for n in (a, b) if n.origin is not None and n.origin != e.span and not n.origin.source.library]
                raise error("E0401", f"{message}: {_spelled(a)} {e.op} {_spelled(b)} does not hold", s.span, labels=labels)
            if self.operate(e.op, a, b, e, scope) is True:
                return
            raise error("E0401", message, s.span)
        if not self.truth(e, scope):
            raise error("E0401", message, s.span)

    def _assert_causal(self, e: ast.Call, scope: Scope, s: ast.Assert) -> None:
        ahead, tensor = 1, None
        for arg in e.args:
            value = self.ev(arg.value, scope)
            if isinstance(value, Value) and tensor is None:
                tensor = value
            elif isinstance(value, Num) and arg.name in (None, "ahead") and isinstance(value.value, int):
                ahead = value.value
            else:
                raise error("E0203", "`causal(y, ahead: 1)` takes a tensor and how many tokens ahead it predicts", arg.span)
        if tensor is None:
            raise error("E0205", "`causal(y)` needs the tensor", e.span)
        scope.frame.put(CausalNode(tensor, ahead, s.span))

    def _do_Return(self, s: ast.Return, scope: Scope) -> None:
        if scope.carried is not None:
            raise error("E0214", "`return` cannot stand in a loop", s.span, help="bind a name in the loop and return it after it")
        values: list[Any] = []
        for e in s.values:
            value = self.ev(e, scope)
            if isinstance(value, tuple):
                values.extend(value)
            elif isinstance(value, list):
                values.append(value)
            elif isinstance(value, Value):
                values.append(value)
            elif isinstance(value, Absent):
                raise error("E0203", "the tensor returned here was left out", e.span)
            else:
                raise error("E0203", f"`return` gives tensors back, and this is {kind_of(value)}", e.span)
        scope.frame.settle(None)
        scope.body.result = tuple(values)

    def _do_Emit(self, s: ast.Emit, scope: Scope) -> None:
        if not scope.body.emits:
            raise error("E0214", "`emit` stands in the body of a `scan`, or of a `for` whose list is bound", s.span)
        value = self.ev(s.value, scope)
        scope.frame.settle(None)
        if not isinstance(value, Value):
            raise error("E0203", f"`emit` takes a tensor, and this is {kind_of(value)}", s.span)
        scope.body.emits[-1].append(value)

    def _do_Loss(self, s: ast.Loss, scope: Scope) -> None:
        frame = scope.frame
        with frame.level() as nodes:
            value = self.ev(s.value, scope)
            frame.settle(None)
        if not isinstance(value, Value) or value.rank != 0:
            what = shape_text(value.shape) if isinstance(value, Value) else kind_of(value)
            raise error("E0302", f"`loss {s.name}` is a scalar, and this is {what}", s.value.span, help="reduce it first, for example with `mean`")
        then = Graph((), (*nodes, LossNode(value, s.name, s.span)), ())
        frame.put(CondNode(then, Graph((), (), ()), (), s.span))

    # --- loops ----------------------------------------------------------------------------------------------------------------

    def _do_For(self, s: ast.For, scope: Scope) -> None:
        self._for(s, scope, collect=False)

    def _for(self, s: ast.For, scope: Scope, *, collect: bool) -> Any:
        frame = scope.frame
        source = self.ev(s.iterable, scope)
        pattern: Pattern | None = None
        if isinstance(source, ListValue):
            items, pattern = list(source.items), source.pattern
        elif isinstance(source, Num):
            count = self._count(source, s.iterable.span)
            used = s.name in _names_read(s.body)
            items = [Num(i, Lit(str(i)), s.iterable.span) for i in range(count)] if used else [None] * count
            pattern = Times(source.expr, Ref(0)) if not used else None
        elif isinstance(source, list):
            items = source
        elif isinstance(source, Template | Instance):
            items, pattern = [source], Ref(0)
        else:
            raise error("E0203", f"`for` runs over a list or up to a number, and this is {kind_of(source)}", s.iterable.span)
        carried = [n for n in dict.fromkeys(_assigned(s.body)) if isinstance(scope.get(n), Value)]
        state: list[Value] = [scope.get(n) for n in carried]
        starts = tuple(state)
        bodies: list[tuple[Graph, list[Value]]] = []
        memo: dict[Hashable, int] = {}
        turns: list[int] = []
        emitted: list[tuple[Value, ...]] = []
        names: dict[tuple[str, int], str] = {}
        for item in items:
            shapes = tuple((tuple(d.value for d in v.shape), v.dtype) for v in state)
            key = (_value_key(item), shapes)
            if key not in memo:
                memo[key] = len(bodies)
                bodies.append(self._turn(s, scope, item, carried, state, names, collect))
            index = memo[key]
            turns.append(index)
            graph, emits = bodies[index]
            ends = graph.outputs[: len(carried)]
            state = [Value(v.shape, v.dtype, n, v.span, True) for n, v in zip(carried, ends, strict=True) if v is not None]
            emitted.append(tuple(Value(v.shape, v.dtype, "", v.span) for v in emits))
        if not items:
            return []
        distinct = _distinct(items)
        if pattern is not None and (len(bodies) != len(distinct)):
            pattern = None
        node = LoopNode(s.name, tuple(g for g, _ in bodies), tuple(turns), pattern, starts, tuple(state), tuple(emitted), s.span)
        frame.put(node)
        for name, value in zip(carried, state, strict=True):
            scope.vars[name] = value
        return [v for turn in emitted for v in turn] if collect else None

    def _turn(
        self, s: ast.For, scope: Scope, item: Any, carried: list[str], state: list[Value], names: dict[tuple[str, int], str], collect: bool
    ) -> tuple[Graph, list[Value]]:
        frame = scope.frame
        inner = scope.inner()
        inner.carried = set(carried)
        emits: list[Value] = []
        with frame.level() as nodes:
            inputs = [frame.own(Value(v.shape, v.dtype, n, v.span, True)) for n, v in zip(carried, state, strict=True)]
            inner.vars.update(zip(carried, inputs, strict=True))
            if item is not None:
                inner.vars[s.name] = item.labelled(s.name) if isinstance(item, Template) else item
            frame.turns.append(Turn(names))
            if collect:
                scope.body.emits.append(emits)
            try:
                self.statements(s.body, inner)
                frame.settle(None)
            finally:
                frame.turns.pop()
                if collect:
                    scope.body.emits.pop()
            ends = [inner.vars[n] for n in carried]
            if any(e is POISON for e in ends):
                raise Poisoned
            graph = Graph(tuple(inputs), tuple(nodes), (*ends, *emits))
        return graph, emits

    def _scan(self, s: ast.Scan, scope: Scope) -> Any:
        frame = scope.frame
        sequences = []
        for e in s.sequences:
            value = self.ev(e, scope)
            if not isinstance(value, Value) or value.rank < 2:
                raise error("E0203", "`scan` runs along axis 1 of tensors", e.span)
            sequences.append(value)
        if len(s.names) != len(sequences):
            raise error("E0205", f"{len(s.names)} names run over {len(sequences)} tensors", s.span)
        length = sequences[0].shape[1]
        for value, e in zip(sequences, s.sequences, strict=True):
            if value.shape[1].value != length.value:
                raise error("E0301", f"the tensors of a scan have one length: {length} and {value.shape[1]} differ", e.span)
        starts: list[Value | Num] = []
        inner = scope.inner()
        inner.carried = {c.name for c in s.carries}
        emits: list[Value] = []
        types: list[tuple[Shape, str]] = []
        for c in s.carries:
            start = self.ev(c.start, scope)
            shape = self._carry_shape(c, start, scope, sequences[0])
            starts.append(start)
            types.append((shape, _tensor_kind(c.type) or (start.dtype if isinstance(start, Value) else "float")))
        frame.settle(None)
        with frame.level() as nodes:
            carries = [frame.own(Value(shape, t, c.name, c.span, True)) for c, (shape, t) in zip(s.carries, types, strict=True)]
            slices = [
                frame.own(Value((v.shape[0], *v.shape[2:]), v.dtype, n, s.span, True)) for n, v in zip(s.names, sequences, strict=True)
            ]
            inner.vars.update({c.name: v for c, v in zip(s.carries, carries, strict=True)})
            inner.vars.update(dict(zip(s.names, slices, strict=True)))
            scope.body.emits.append(emits)
            try:
                self.statements(s.body, inner)
                frame.settle(None)
            finally:
                scope.body.emits.pop()
            ends = []
            for c, (shape, _) in zip(s.carries, types, strict=True):
                end = inner.vars[c.name]
                if end is POISON:
                    raise Poisoned
                if not same_shape(end.shape, shape):
                    raise error("E0301", f"`{c.name}` is carried as {shape_text(shape)}, and a step makes it {shape_text(end.shape)}", c.span)
                ends.append(end)
            kept = _hoist(nodes, {id(v) for v in (*carries, *slices)}, len(frame.turns) == 0)
            graph = Graph((*carries, *slices), tuple(kept[1]), (*ends, *emits))
        for node in kept[0]:
            frame.put(node)
        if not emits and not s.carries:
            raise error("E0214", "a scan emits something or carries something", s.span)
        batch = sequences[0].shape[0]
        stacked = tuple(Value((batch, length, *v.shape[1:]), v.dtype, "", s.span) for v in emits)
        finals = tuple(Value(shape, t, c.name, c.span, True) for c, (shape, t) in zip(s.carries, types, strict=True))
        frame.put(ScanNode(graph, tuple(starts), tuple(sequences), stacked, finals, length, s.span))
        scope.vars.update({c.name: v for c, v in zip(s.carries, finals, strict=True)})
        if not stacked:
            return finals if len(finals) > 1 else finals[0]
        return stacked if len(stacked) > 1 else stacked[0]

    def _carry_shape(self, c: ast.Carry, start: Any, scope: Scope, first: Value) -> Shape:
        if isinstance(start, Value):
            return tuple(self._same_dims(c.type, start, scope, f"the start of `{c.name}`", c.start.span, bind=True))
        if not isinstance(start, Num):
            raise error("E0203", f"a carried tensor starts as a tensor or a number, and this is {kind_of(start)}", c.start.span)
        shape = []
        for i, dim in enumerate(c.type.dims):
            if isinstance(dim, ast.Ellipsis):
                raise error("E0203", "a carried tensor that starts as a number needs its whole shape", dim.span)
            if i == 0 and isinstance(dim, ast.Name) and scope.get(dim.id) is MISSING:
                shape.append(first.shape[0])
                continue
            size = self.ev(dim, scope)
            if not isinstance(size, Num):
                raise error("E0203", f"a size is a number, and this is {kind_of(size)}", dim.span)
            shape.append(whole_size(size, "size", "a size", dim.span))
        return tuple(shape)

    # --- builtins -------------------------------------------------------------------------------------------------------------

    def _builtin(self, name: str, e: ast.Call, scope: Scope) -> Any:
        if name == "shared":
            if len(e.args) != 1 or e.args[0].name is not None:
                raise error("E0205", "`shared` takes one block", e.span)
            value = self.ev(e.args[0].value, scope)
            if isinstance(value, Instance):
                return value
            if not isinstance(value, Template):
                raise error("E0203", f"`shared` takes a block, and this is {kind_of(value)}", e.span)
            owner = self.root if scope.frame.name == "constants" and self.root is not None else scope.frame
            return Instance(replace(value, label=""), owner, "", e.span)
        if not e.args:
            raise error("E0205", f"`{name}` takes a block", e.span)
        block = self.ev(e.args[0].value, scope)
        if name in ("accepts", "given"):
            key = self.ev(e.args[1].value, scope) if len(e.args) == 2 else None
            if not isinstance(key, str):
                raise error("E0205", f'`{name}(block, "name")` takes a block and the name of a hyper-parameter', e.span)
            if name == "given":
                return isinstance(block, Template) and key in block.args
            return isinstance(block, Template) and key in {h.name for h in _hypers(block)}
        if name == "option":
            key = self.ev(e.args[1].value, scope) if len(e.args) == 3 else None
            if not isinstance(key, str) or not isinstance(block, Template):
                raise error("E0205", '`option(block, "name", otherwise)` reads a hyper-parameter of a block, if it has it', e.span)
            value = self._field_of(block, key, scope) if key in {h.name for h in _hypers(block)} else None
            return self.ev(e.args[2].value, scope) if value is None else value
        if block is None or isinstance(block, Instance):
            return block
        if not isinstance(block, Template):
            raise error("E0203", f"`offer` takes a block first, and this is {kind_of(block)}", e.span)
        declared = {h.name for h in _hypers(block)}
        found: dict[str, tuple[Any, Span]] = {}
        for arg in e.args[1:]:
            if arg.name is None:
                raise error("E0205", "what is offered is named: `offer(block, mask: m)`", arg.span)
            if arg.name not in declared or arg.name in block.args:
                continue
            value = self.ev(arg.value, scope)
            if value is not None and not isinstance(value, Absent):
                found[arg.name] = (value, arg.value.span)
        return self.with_options(block, found, (), e.span)

    def _mask_call(self, callee: MaskRule | Mask, e: ast.Call, scope: Scope) -> Mask:
        name = callee.name if isinstance(callee, MaskRule) else callee.rule
        args = [(a.name, self.ev(a.value, scope), a.value.span) for a in e.args]
        if name in masks.TENSOR_RULES:
            if len(args) == 1 and isinstance(args[0][1], Value):
                value, where = args[0][1], args[0][2]
                wants_bool = name in ("keys", "queries", "padding")
                if (wants_bool and not value.is_bool) or (not wants_bool and not value.is_int):
                    raise error("E0304", f"`{name}` reads a tensor of type {'bool' if wants_bool else 'int'}, and this is {value.dtype}", where)
                return Mask(name, tensor=value)
            raise error("E0205", f"`{name}` takes one tensor", e.span)
        fields = masks.RULES[name]
        numbers: dict[str, Num] = {}
        for key, value, where in args:
            key = key or next((f for f in fields if f not in numbers), None)
            if key is None or key not in fields:
                raise error("E0205", f"the mask `{name}` takes {', '.join(fields) or 'no numbers'}", where)
            if not isinstance(value, Num):
                raise error("E0203", f"`{key}` of the mask `{name}` is a number, and this is {kind_of(value)}", where)
            numbers[key] = whole_size(value, "int" if key == "seed" else "size", f"`{key}` of the mask `{name}`", where)
        if name == "random" and "seed" not in numbers:
            numbers["seed"] = num(0)
        missing = [f for f in fields if f not in numbers]
        if missing:
            raise error("E0205", f"the mask `{name}` still needs its {missing[0]}: `{name}(128)`", e.span)
        return Mask(name, tuple(numbers[f] for f in fields))

    def expert(self, site: Site, block: Any, copies: Num, width: Num) -> CallNode:
        """A block elaborated for rows of its own, every weight with a leading axis."""
        if isinstance(block, Instance):
            raise error("E0203", "an expert cannot be shared: every expert has its own weights", site.span)
        frame = site.frame
        rows = Num(symbol("rows"), Var("rows"), site.span)
        row = frame.own(Value((rows, width), "float", "x", site.span))
        if frame.copies is not None:
            raise error("E0204", "experts cannot hold experts", site.span)
        if isinstance(block.target, Primitive) or _is_inline(block):
            wrapped = find_in_library("only")
            assert wrapped is not None
            block = Template(Declared(wrapped[1], wrapped[0]), {"block": block})  # type: ignore[arg-type]
        call, _ = self._call_block(block, [(row, site.span)], {}, frame, site.span, copies)
        if len(call.outputs) != 1 or not same_shape(call.outputs[0].shape, row.shape):
            found = ", ".join(shape_text(o.shape) for o in call.outputs)
            raise error("E0301", f"an expert gives back the shape it gets, {shape_text(row.shape)}, and `{block.name}` gives {found}", site.span)
        self._check_expert(call.block, site.span)
        return call

    def _check_expert(self, block: Block, span: Span) -> None:
        for node in block.graph.nodes:
            if isinstance(node, CallNode):
                self._check_expert(node.block, span)
            elif isinstance(node, OpNode) and node.weights and not node.op.has_grouped():
                raise error("E0204", f"`{node.op.name}` cannot stand in an expert: its weights have no form for many experts at once", span, help="linear, layernorm and rmsnorm can")  # fmt: skip
            elif isinstance(node, OpNode) and node.op.mixes and any(r and r[0] != At(((0, Fraction(1)),)) for r in node.op.reads(node)):
                raise error("E0204", f"an expert mixes no positions, and `{node.op.name}` does", span)
            elif not isinstance(node, OpNode | CheckNode):
                raise error("E0204", "an expert is a plain block: no loops, raw weights or conditions", span)

    # --- the model ------------------------------------------------------------------------------------------------------------

    def build(self, name: str | None, overrides: Mapping[str, str]) -> Model:
        """Elaborate the model (or variant) of that name, with hyper-parameters set as given. Raises ArchError with all that is wrong."""
        declaration = pick_model(self.module, name)
        try:
            model = self._build(declaration, overrides)
        except ArchError as problem:
            self.report(problem)
        except Poisoned:
            pass
        if self.problems:
            raise ArchError(self.problems)
        return model

    def _build(self, declaration: ast.Model | ast.Variant, overrides: Mapping[str, str]) -> Model:
        frame = Frame(self, declaration.name, declaration.name_span, root=True)
        self.root = frame
        given: dict[str, tuple[Any, Span]] = {}
        node, module = declaration, self.module
        chain = set()
        while isinstance(node, ast.Variant):
            if node.name in chain:
                raise error("E0212", f"the variant `{node.name}` is defined by itself", node.name_span)
            chain.add(node.name)
            node, module, args = self._variant(node, module, frame)
            given = {**args, **given}
        hypers = {h.name: h for h in node.header.hypers or ()}
        given, slots = self._overrides(overrides, hypers, node, given)
        template = Template(Declared(node, module), {})
        template = self.with_options(template, given, (), declaration.name_span)
        scope = Scope(module, frame, BodyState())
        missing = [h.name for h in hypers.values() if h.default is None and h.name not in template.args]
        if missing:
            raise error("E0205", f"`{declaration.name}` needs `{missing[0]}`", declaration.name_span, help=f"give it: `--set {missing[0]}=…`, or a default in the spec")  # fmt: skip
        for key, value in template.args.items():
            if isinstance(value, Num):
                if dims.free_names(value.expr):
                    value = Num(value.value, literal(value.value) if not isinstance(value.value, Poly) else value.expr, value.origin)
                scope.vars[key] = value.named(key)
            else:
                scope.vars[key] = value.labelled(key) if isinstance(value, Template) else value
        for h in hypers.values():
            if h.name not in template.args and h.default is not None:
                value = coerce(self.ev(h.default, scope, h.kind), h.kind, _default_none(h), f"`{h.name}`", h.default.span)
                if isinstance(value, Num) and dims.free_names(value.expr):
                    frame.local[h.name] = value.expr
                scope.vars[h.name] = value.named(h.name) if isinstance(value, Num) else value.labelled(h.name) if isinstance(value, Template) else value
        config = {h: scope.vars[h] for h in hypers if isinstance(scope.vars[h], Num) and h not in frame.local}
        by_slots = bool(node.body.slots) or not node.body.items
        if by_slots:
            outputs = self._slot_model(node, scope, config, slots)
        else:
            self._equation_inputs(node, scope)
            outputs = self._body(template, scope, dict(self.inputs), declaration.name_span)
        frame.settle(None)
        return self._model(declaration, node, frame, scope, config, outputs)

    def _variant(self, node: ast.Variant, module: Module, frame: Frame) -> tuple[Any, Module, dict[str, tuple[Any, Span]]]:
        call = node.value
        function = call.function if isinstance(call, ast.Call) else call
        if not isinstance(function, ast.Name):
            raise error("E0203", "a variant is a model with other hyper-parameters: `variant big = base(layers: 24)`", node.span)
        found = module.find(function.id)
        if found is None or not isinstance(found[1], ast.Model | ast.Variant):
            raise error("E0210", f"nothing that can be compiled is called `{function.id}`", function.span, help=did_you_mean(function.id, [n for n in module.visible()]))
        scope = Scope(module, frame, BodyState())
        args: dict[str, tuple[Any, Span]] = {}
        for arg in call.args if isinstance(call, ast.Call) else ():
            if arg.name is None:
                raise error("E0205", "a variant names the hyper-parameters it sets", arg.span)
            args[arg.name] = (self.ev(arg.value, scope), arg.value.span)
        target = found[1]
        model = target
        if isinstance(model, ast.Model):
            names = {h.name for h in model.header.hypers or ()}
            for key, (_, where) in args.items():
                if key not in names:
                    raise unknown_option(key, model.name, names, where)
        return target, found[0], args

    def _overrides(
        self, overrides: Mapping[str, str], hypers: Mapping[str, ast.Hyper], node: ast.Model, given: dict[str, tuple[Any, Span]]
    ) -> tuple[dict[str, tuple[Any, Span]], dict[str, tuple[Any, Span]]]:
        from archdsl.source import Source
        from archdsl.syntax.parse import parse_expression

        found, slots = dict(given), {}
        settable = {s.key for s in node.body.slots} & {"vocab", "context", "width"}
        for key, text in overrides.items():
            source = Source("--set", text)
            value = self.ev(parse_expression(source), Scope(self.module, self.root or Frame(self, "set", node.span), BodyState()))
            span = Span(source, 0, len(text))
            if key in hypers:
                found[key] = (value, span)
            elif key in settable:
                slots[key] = (value, span)
            else:
                names = {*hypers, *settable}
                raise error("E0201", f"`{node.name}` has no hyper-parameter `{key}` to set", span, help=did_you_mean(key, names) or f"it has {', '.join(f'`{n}`' for n in sorted(names))}")  # fmt: skip
        return found, slots

    def _equation_inputs(self, node: ast.Model, scope: Scope) -> None:
        """The model's tensors: a size that no hyper-parameter fixes stays symbolic."""
        for param in node.header.tensors or ():
            shape = []
            for dim in param.type.dims:
                if isinstance(dim, ast.Ellipsis):
                    raise error("E0203", "a model's input has a whole shape", dim.span)
                if isinstance(dim, ast.Name) and scope.get(dim.id) is MISSING:
                    scope.vars[dim.id] = Num(symbol(dim.id), Var(dim.id), dim.span)
                size = self.ev(dim, scope)
                if not isinstance(size, Num):
                    raise error("E0203", f"a size is a number, and this is {kind_of(size)}", dim.span)
                size = whole_size(size, "size", "a size", dim.span)
                if isinstance(size.value, Poly) and size.value.denominator != 1:
                    self._divides(size, scope.frame, dim.span)
                shape.append(size)
            kind = _tensor_kind(param.type) or "float"
            if param.name in scope.vars:
                raise error("E0202", f"`{param.name}` is a size or hyper-parameter too", param.span, help="give the tensor another name")
            value = Value(tuple(shape), kind, param.name, param.span, True)
            self.inputs[param.name] = scope.frame.own(value, 0)
            if param.default is not None:
                self.optional_inputs.add(param.name)
        if not self.inputs:
            raise error("E0205", f"the model `{node.name}` has no input", node.name_span, help="`model name(…)(tokens: token[batch, time]) { … }`")
        for name, value in self.inputs.items():
            scope.vars[name] = value

    def _slot_model(self, node: ast.Model, scope: Scope, config: dict[str, Any], overrides: Mapping[str, tuple[Any, Span]]) -> tuple[Value, ...]:
        frame = scope.frame
        self.input_by_slots = True
        meaning, _ = self._slot_meaning(node)
        target = find_in_library(meaning)
        assert target is not None
        declared = Declared(target[1], target[0])  # type: ignore[arg-type]
        hypers = {h.name: h for h in declared.node.header.hypers or ()}
        args: dict[str, tuple[Any, Span]] = {}
        for item in node.body.items:
            if isinstance(item, ast.Let | ast.Assert):
                self._statement(item, scope)
                continue
            if not isinstance(item, ast.Slot):
                raise error("E0215", "slots and equations do not mix", item.span, help="write the whole body in one of the two ways")
            if item.key in args:
                raise error("E0202", f"the slot `{item.key}` is given twice", item.key_span)
            if item.key not in hypers:
                listed = ", ".join(f"`{k}`" for k in hypers)
                raise error("E0201", f"a model of slots has no slot `{item.key}`", item.key_span, help=did_you_mean(item.key, hypers) or f"its slots are {listed}")
            value, where = self.ev(item.value, scope, hypers[item.key].kind), item.value.span
            if item.key in overrides:
                value, where = overrides[item.key]
            if item.key in ("vocab", "context", "width"):
                value = coerce(value, "size", False, f"`{item.key}`", where)
                assert isinstance(value, Num)
                if item.key in overrides or not dims.free_names(value.expr):
                    config.setdefault(item.key, value)
                    value = value.named(item.key)
            if isinstance(value, Template):
                value = value.labelled(item.key)
            if item.key == "init" and isinstance(value, Scheme):
                frame.init = value
            args[item.key] = (value, where)
        required = [h.name for h in hypers.values() if h.default is None and h.name not in args]
        if required:
            raise error("E0205", f"`{node.name}` still needs its slot `{required[0]}`", node.name_span, help=f"for example `{required[0]}: …`")
        template = self.with_options(Template(declared, {}), args, (), node.name_span)
        if meaning == "input_model":
            tensors = self._input_tensors(args["input"], scope, node)
        else:
            tensors = []
            for param in declared.node.header.tensors or ():
                shape = []
                for dim in param.type.dims:
                    assert isinstance(dim, ast.Name)
                    if dim.id not in scope.vars or not isinstance(scope.vars[dim.id], Num) or scope.vars[dim.id].static:
                        scope.vars[dim.id] = Num(symbol(dim.id), Var(dim.id), node.name_span)
                    shape.append(scope.vars[dim.id])
                value = frame.own(Value(tuple(shape), param.type.kind or "float", param.name, node.name_span, True), 0)
                self.inputs[param.name] = value
                if param.default is not None:
                    self.optional_inputs.add(param.name)
                tensors.append((value, node.name_span))
        return self.apply_declared(template, tensors, {}, scope, node.name_span)

    def _input_tensors(self, slot: tuple[Any, Span], scope: Scope, node: ast.Model) -> list[tuple[Value, Span]]:
        """The inputs of a model are those of the block in its `input` slot."""
        block, span = slot
        if not isinstance(block, Template) or not isinstance(block.target, Declared):
            raise error("E0203", f"`input` is `tokens`, or a block such as patches(…), and this is {kind_of(block)}", span)
        inner = Scope(block.target.module, scope.frame, BodyState())
        for k, v in block.args.items():
            inner.vars[k] = v
        tensors = []
        for param in _tensor_params(block.target):
            for h in _hypers(block):
                if h.name not in inner.vars and h.default is not None and not isinstance(h.default, ast.Name):
                    inner.vars[h.name] = self.ev(h.default, inner, h.kind)
            shape = []
            for dim in param.type.dims:
                if isinstance(dim, ast.Name) and inner.get(dim.id) is MISSING:
                    inner.vars[dim.id] = Num(symbol(dim.id), Var(dim.id), param.span)
                size = self.ev(dim, inner)
                assert isinstance(size, Num)
                shape.append(size)
            value = scope.frame.own(Value(tuple(shape), param.type.kind or "float", param.name, node.name_span, True), 0)
            self.inputs[param.name] = value
            tensors.append((value, span))
        return tensors

    def _model(self, declaration: Any, node: ast.Model, frame: Frame, scope: Scope, config: dict[str, Any], outputs: tuple[Value, ...]) -> Model:  # fmt: skip
        root = frame.graph((), outputs)
        read = {id(v) for v in captured(root)}
        inputs: dict[str, Value] = {}
        for name, value in self.inputs.items():
            if name not in self.optional_inputs or id(value) in read or (not self.input_by_slots and name in self.optional_inputs):
                inputs[name] = value
        made = self.made_inputs
        for kind in ("padding", "documents"):
            of_kind = {k: v for k, v in made.items() if v.dtype == kind}
            if len(of_kind) == 1:
                value = next(iter(of_kind.values()))
                object.__setattr__(value, "name", kind)
                inputs[kind] = value
            else:
                for key, value in of_kind.items():
                    object.__setattr__(value, "name", key)
                    inputs[key] = value
        results = node.header.results
        names: tuple[str | None, ...] = tuple(r.name for r in results) if results and len(results) == len(outputs) else (None,) * len(outputs)
        symbols = dict.fromkeys(s for v in inputs.values() for d in v.shape if isinstance(d.value, Poly) for s in sorted(d.value.symbols))
        context = config.get("context")
        block = Block(
            name=declaration.name,
            key=("model", declaration.name),
            doc=declaration.doc if isinstance(declaration, ast.Model) else node.doc,
            span=declaration.name_span,
            graph=Graph(tuple(inputs.values()), root.nodes, tuple(outputs)),
            header=node.header,
            tensor_names=tuple(inputs),
            result_names=names,
            contexts=(),
            hypers={k: v for k, v in scope.vars.items() if k in {h.name for h in node.header.hypers or ()}},
            local=dict(frame.local),
            axes={},
            asserts=tuple(frame.asserts),
            instances=tuple(frame.instances),
        )
        fields = tuple(ConfigField(k, v) for k, v in config.items())
        tree = self.module.tree
        return Model(
            declaration.name, block, fields, tuple(symbols), context, tree.doc or node.doc, self.module.source.name, self.module.source.text
        )


# --- helpers ------------------------------------------------------------------------------------------------------------------


def outward_names(block: Block, bind: Mapping[str, Expr]) -> dict[str, Expr]:
    """Every name of a block in its caller's names, those it computes itself included."""
    names = dict(bind)
    for name, expr in block.local.items():
        if name not in names:
            names[name] = dims.substitute(expr, names)
    return names


def _handles(graph: Graph) -> set[int]:
    """Shared instances that a graph applies or hands on and that live in another block."""
    found: set[int] = set()
    for node in graph.nodes:
        if isinstance(node, OpNode | CallNode) and node.handle is not None:
            found.add(id(node.handle.instance))
        if isinstance(node, CallNode):
            found |= {id(c.instance) for c in node.contexts if isinstance(c, Handle)}
        for inner in subgraphs(node):
            found |= _handles(inner)
    return found


def _always_divides(remainder: dims.Bin) -> bool:
    """`heads * head_dim % heads` is 0 whatever the numbers are."""
    try:
        quotient = dims.div(dims.expr_value(remainder.left), dims.expr_value(remainder.right))
    except (ArithmeticError, ValueError):
        return False
    return isinstance(quotient, int) or (isinstance(quotient, Poly) and dims.is_size_like(quotient))


def _spelled(n: Num) -> str:
    text = expr_text(n.expr) if not any("." in x for x in dims.free_names(n.expr)) else str(n)
    return text if text.replace("_", "") == str(n) else f"{text} = {n}" if n.static else text


def _tensor_kind(t: ast.TensorType) -> str | None:
    """The type that a shape is written with, if any. Raises E0203 for an unknown one."""
    if t.kind is not None and t.kind not in SIZE_TYPES:
        help_ = did_you_mean(t.kind, SIZE_TYPES) or f"types are {', '.join(SIZE_TYPES)}"
        raise error("E0203", f"`{t.kind}` is no type of tensors", t.span, help=help_)
    return t.kind


def _dim_words(text: str, n: Num) -> str:
    return f"{text} = {n}" if text != str(n) and n.static else str(n)


def _shape_of(value: Value) -> str:
    return f"[{', '.join(expr_text(d.expr) if '.' not in expr_text(d.expr) else str(d) for d in value.shape)}]"


def _applicable(value: Any) -> bool:
    return isinstance(value, Template | Instance | MaskRule | Function | SchemeRule)


def _mask_typed(value: Any) -> bool:
    return isinstance(value, Value) and value.dtype in ("padding", "documents")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Absent) or isinstance(b, Absent):
        return (a is None or isinstance(a, Absent)) and (b is None or isinstance(b, Absent))
    if isinstance(a, Value | list) or isinstance(b, Value | list):
        return False
    if isinstance(a, Template) and isinstance(b, Template):
        same_target = static_key(replace(a, args={}, label="")) == static_key(replace(b, args={}, label=""))
        return same_target and all(k in a.args and static_key(a.args[k]) == static_key(v) for k, v in b.args.items())
    if isinstance(a, str | Word) and isinstance(b, str | Word | None) or isinstance(b, str | Word) and a is None:
        return ("none" if a is None else str(a)) == ("none" if b is None else str(b))
    if isinstance(a, Word | Mask | Template) and isinstance(b, Word | Mask | Template) and type(a) is not type(b):
        return (a.rule if isinstance(a, Mask) else a.name) == (b.rule if isinstance(b, Mask) else b.name)
    return static_key(a) == static_key(b)


def _value_key(value: Any) -> Hashable:
    return ("value", id(value)) if isinstance(value, Value) else static_key(value)


def _names_in(value: Any) -> Hashable:
    """Which of a static value's numbers were given, and so have names of their own."""
    if isinstance(value, Template):
        return tuple((k, _names_in(v)) for k, v in value.args.items())
    return ()


def _hypers(value: Any) -> Sequence[ast.Hyper]:
    if isinstance(value, Instance):
        value = value.template
    if not isinstance(value, Template):
        return ()
    target = value.target
    header = target.header if isinstance(target, Primitive) else target.node.header
    return header.hypers or ()


def _tensor_params(target: Any) -> Sequence[ast.TensorParam]:
    """The tensors of a block; a block of slots that names none has `x` and, with cross-attention, `memory`."""
    if isinstance(target, Primitive):
        return target.header.tensors or ()
    node = target.node
    if node.header.tensors is not None:
        tensors: Sequence[ast.TensorParam] = node.header.tensors
        return tensors
    if isinstance(node, ast.Model):
        return ()
    span = node.name_span
    if not isinstance(node.body, ast.Body):
        return _alias_params(node, target.module)
    if not any(s.key == "cross_attention" for s in node.body.slots):
        return (ast.TensorParam("x", ast.TensorType(None, (ast.Ellipsis(span=span), ast.Name("width", span=span)), span=span), None, span=span),)
    axes = tuple(ast.Name(n, span=span) for n in ("batch", "source", "memory_width"))
    x_axes = tuple(ast.Name(n, span=span) for n in ("batch", "time", "width"))
    none = ast.Name("none", span=span)
    return (
        ast.TensorParam("x", ast.TensorType(None, x_axes, span=span), None, span=span),
        ast.TensorParam("memory", ast.TensorType(None, axes, span=span), none, span=span),
    )


def _alias_params(node: ast.Block, module: Module) -> Sequence[ast.TensorParam]:
    """`block mqa(heads) = gqa(…)` has gqa's tensors."""
    e = node.body
    while isinstance(e, ast.Call):
        e = e.function
    if isinstance(e, ast.Name):
        found = module.find(e.id) or find_in_library(e.id)
        if found is not None and isinstance(found[1], ast.Block) and found[1] is not node:
            return _tensor_params(Declared(found[1], found[0]))
        op = registry.find(e.id)
        if found is None and op is not None and op.header.tensors:
            return op.header.tensors
    span = node.name_span
    return (ast.TensorParam("x", ast.TensorType(None, (ast.Ellipsis(span=span), ast.Name("width", span=span)), span=span), None, span=span),)


def _is_inline(template: Template) -> bool:
    return isinstance(template.target, Declared) and isinstance(template.target.node, ast.Block) and template.target.node.inline


def _is_tokens(node: ast.Model) -> bool:
    return any(s.key == "input" and isinstance(s.value, ast.Name) and s.value.id == "tokens" for s in node.body.slots)


def _default_none(hyper: ast.Hyper) -> bool:
    return isinstance(hyper.default, ast.Name) and hyper.default.id == "none"


def _wants_table(op: Primitive, in_order: Sequence[Any], tensors: Sequence[Any]) -> bool:
    """Whether a shared block given in order stands for a tensor of the primitive (its weight) and not for an option."""
    return len(in_order) >= len(op.header.hypers or ()) or not any(h.kind in ("block", "position") for h in op.header.hypers or ())


def _name_span(node: Any) -> Span:
    span: Span = node.name_span
    return span


def _one_item(value: Any) -> ListValue:
    return ListValue((value,), Ref(0))


def _distinct(items: Sequence[Any]) -> dict[Hashable, int]:
    keys: dict[Hashable, int] = {}
    for item in items:
        keys.setdefault(_value_key(item), len(keys))
    return keys


def _concat(parts: Sequence[ListValue], span: Span) -> ListValue:
    items: list[Any] = []
    patterns: list[Pattern] = []
    keys: dict[Hashable, int] = {}
    for part in parts:
        own: dict[Hashable, int] = _distinct(part.items)
        for key in own:
            keys.setdefault(key, len(keys))
        back = {index: keys[key] for key, index in own.items()}
        patterns.append(_renumber(part.pattern, back))
        items.extend(part.items)
    if len(items) > MAX_LIST:
        raise error("E0404", f"a list has at most {MAX_LIST:,} elements", span)
    flat: list[Pattern] = []
    for p in patterns:
        flat.extend(p.parts if isinstance(p, Plus) else (p,))
    return ListValue(tuple(items), flat[0] if len(flat) == 1 else Plus(tuple(flat)))


def _renumber(pattern: Pattern, back: Mapping[int, int]) -> Pattern:
    if isinstance(pattern, Ref):
        return Ref(back[pattern.index])
    if isinstance(pattern, Times):
        return Times(pattern.count, _renumber(pattern.part, back))
    return Plus(tuple(_renumber(p, back) for p in pattern.parts))


def _repeat(count: Num, part: ListValue, span: Span) -> ListValue:
    if not count.static:
        raise error("E0402", f"`{_spelled(count)}` is known only when the model runs, so nothing can be repeated that often", span)
    n = whole_size(count, "int", "a number of repetitions", span).value
    assert isinstance(n, int)
    if n < 0 or n * len(part.items) > MAX_LIST:
        raise error("E0404", f"a list has at most {MAX_LIST:,} elements, and this would have {n * len(part.items):,}", span)
    if n == 0:
        return ListValue((), Plus(()))
    return ListValue(part.items * n, Times(count.expr, part.pattern))


def _assigned(items: Sequence[Any]) -> list[str]:
    """Names of tensors that statements bind, in order."""
    found: list[str] = []
    for item in items:
        found.extend(_bound_names(item))
    return found


def _bound_names(item: Any) -> list[str]:
    if isinstance(item, ast.Assign):
        names = list(item.names)
        if isinstance(item.value, ast.Scan):
            names += [c.name for c in item.value.carries]
        elif isinstance(item.value, ast.For):
            names += _assigned(item.value.body)
        return names
    if isinstance(item, ast.Update | ast.Let | ast.Param):
        return [item.name]
    if isinstance(item, ast.If):
        return _assigned(item.then) + _assigned(item.otherwise)
    if isinstance(item, ast.For):
        return _assigned(item.body)
    return []


def _names_read(items: Any) -> set[str]:
    """Every name that a piece of syntax mentions."""
    found: set[str] = set()
    stack: list[Any] = [items]
    while stack:
        x = stack.pop()
        if isinstance(x, tuple | list):
            stack.extend(x)
        elif isinstance(x, ast.Name):
            found.add(x.id.partition(".")[0])
            found.add(x.id)
        elif isinstance(x, ast.Update):
            found.add(x.name)
            stack.extend((x.value, x.type))
        elif isinstance(x, ast.Node):
            stack.extend(getattr(x, f) for f in x.__dataclass_fields__ if f not in ("span", "name_span", "key_span"))
    return found


def _hoist(nodes: Sequence[Node], varying: set[int], split_calls: bool) -> tuple[list[Node], list[Node]]:
    """What no step of a scan changes, and the rest. Random draws and conditions stay; a block is split if a part of it is fixed."""
    before: list[Node] = []
    inside: list[Node] = []
    for node in nodes:
        if isinstance(node, OpNode | CallNode | ParamNode) and not any(id(v) in varying for v in reads(node)) and not _draws_noise(node):
            before.append(node)
            continue
        parts = _split(node, varying) if split_calls and isinstance(node, CallNode) and node.instance is None else None
        if parts is not None:
            before.append(parts[0])
            node = parts[1]
        inside.append(node)
        varying |= {id(v) for v in node_outputs(node)}
    return before, inside


def _split(call: CallNode, varying: set[int]) -> tuple[CallNode, CallNode] | None:
    """A call whose block computes something from fixed tensors alone: one call that prepares it, one that takes the step."""
    block = call.block
    changing = {id(inner) for inner, given in zip(block.graph.inputs, call.inputs, strict=True) if given is not None and id(given) in varying}
    changing |= {id(c.value) for c, given in zip(block.contexts, call.contexts, strict=True) if id(given) in varying}
    fixed, rest = _hoist(block.graph.nodes, set(changing), False)
    if not any(isinstance(n, CallNode) or (isinstance(n, OpNode) and n.op.name in CONTRACTIONS) for n in fixed):
        return None
    made = {id(v): v for n in fixed for v in node_outputs(n)}
    step_graph = Graph((), tuple(rest), block.graph.outputs)
    crossing = [v for v in dict.fromkeys(captured(step_graph)) if id(v) in made]
    first = _part(block, Graph((), tuple(fixed), tuple(crossing)), [])
    step = replace(_part(block, step_graph, crossing), before=first)
    outer = [Value(tuple(d.outward(outward_names(block, call.bind)) for d in v.shape), v.dtype, v.name, v.span) for v in crossing]
    given = {id(v): g for v, g in zip(block.graph.inputs, call.inputs, strict=True)}
    contexts = {id(c): g for c, g in zip(block.contexts, call.contexts, strict=True)}
    prepare = replace(
        call,
        block=first,
        inputs=tuple(given[id(v)] for v in first.graph.inputs),
        contexts=tuple(contexts[id(c)] for c in first.contexts),
        outputs=tuple(outer),
        step=step,
    )
    stepping = replace(
        call,
        block=step,
        inputs=(*(given[id(v)] for v in step.graph.inputs if id(v) in given), *outer),
        contexts=tuple(contexts[id(c)] for c in step.contexts),
    )
    return prepare, stepping


def _part(block: Block, graph: Graph, crossing: Sequence[Value]) -> Block:
    """A part of a block: the inputs and contexts that it reads, and what crosses over from the part before."""
    read = {id(v) for v in captured(graph)} | _handles(graph)
    kept = [(n, v) for n, v in zip(block.tensor_names, block.graph.inputs, strict=True) if id(v) in read]
    taken = {n for n, _ in kept}
    names = []
    for i, v in enumerate(crossing):
        name = v.name or f"prepared_{i + 1}"
        while name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    contexts = tuple(c for c in block.contexts if (id(c.value.instance) if isinstance(c.value, Handle) else id(c.value)) in read)
    return replace(
        block,
        key=(block.key, "part", tuple(id(n) for n in graph.nodes)),
        graph=Graph((*(v for _, v in kept), *crossing), graph.nodes, graph.outputs),
        tensor_names=(*(n for n, _ in kept), *names),
        result_names=(None,) * len(graph.outputs),
        contexts=contexts,
    )


CONTRACTIONS = frozenset({"linear", "matmul", "einsum", "conv1d", "conv2d", "sdpa", "embedding", "experts", "gru", "lstm", "rnn"})


def _draws_noise(node: Node) -> bool:
    if isinstance(node, OpNode):
        return node.op.name in NOISY
    return isinstance(node, CallNode) and any(_draws_noise(n) for n in node.block.graph.nodes)


NOISY = frozenset({"dropout"})


def _shown_at(d: Diagnostic, span: Span) -> Diagnostic:
    """A diagnostic of the library, shown where the user wrote the block."""
    if d.span is None or not d.span.source.library:
        return d
    inner = d.span
    note = f"in {inner.source.name}:{inner.line}: {inner.source.line(inner.line).strip()}" if inner.end > 0 else f"in {inner.source.name}"
    labels = tuple(x for x in d.labels if not x.span.source.library and x.span != span)
    return replace(d, span=span, labels=labels, notes=(*d.notes, note))


