"""Expressions: operators, indices, lists and conditions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from archdsl.diagnostics import error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.calls import Calls
from archdsl.frontend.functions import Functions
from archdsl.frontend.kinds import coerce
from archdsl.frontend.lists import as_list, concat, repeat, repetitions
from archdsl.frontend.names import Names
from archdsl.frontend.primitives import Primitives
from archdsl.frontend.scopes import Absent, SchemeRule, Scope, TrainingCondition
from archdsl.frontend.signatures import demand_whole
from archdsl.ir import dims, masks
from archdsl.ir.dims import Lit, Num, binary, literal, num
from archdsl.ir.graph import Node, OpNode, ParamNode, Value, node_outputs
from archdsl.ir.masks import Mask
from archdsl.ir.ranges import whole_size
from archdsl.ir.static import (
    INFINITE,
    BlockValue,
    ElementRef,
    EnumValue,
    InitRule,
    InitRules,
    ListValue,
    Scheme,
    SharedModule,
    as_operand,
    kind_of,
    numbers_of,
    static_key,
)
from archdsl.ir.wording import MERGED, format_number
from archdsl.syntax import ast
from archdsl.syntax.limits import MAX_DIGITS, MAX_LIST, MAX_MASK, raising

COMPARE = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
OPERATORS = {
    "+": "plus",
    "-": "minus",
    "*": "times",
    "/": "divide",
    "//": "floor_divide",
    "%": "modulo",
    "**": "power",
    "&": "logical_and",
    "|": "logical_or",
    **COMPARE,
}
"""The primitives that operators on tensors stand for."""
NEUTRAL = {("+", 0), ("-", 0), ("*", 1), ("/", 1)}
"""Numbers that change nothing behind an operator, and (`+` and `*`) before it."""
JOIN_MASKS = "masks are joined by `&` (both) and `|` (either): `causal & window(128)`"
MASK_TYPES = ("padding", "documents")
PATTERN = re.compile(r"[A-Za-z0-9_.*]+")
"""What the names of weights are made of, and `*`."""


class Expressions:
    """Evaluates expressions."""

    def __init__(
        self, state: Elaboration, primitives: Primitives, names: Names, functions: Functions, calls: Calls
    ) -> None:
        self.state = state
        self.primitives = primitives
        self.names = names
        self.functions = functions
        self.calls = calls

    def ev(self, e: Any, scope: Scope, expect: str | None = None) -> Any:
        """The value of an expression: static, a tensor, a list of tensors, or a tuple of several results. `expect` is
        the kind that is wanted: schemes and scalings have names of their own."""
        self.state.count_step(e.span)
        match e:
            case ast.Number():
                return self._number(e)
            case ast.String():
                return e.value
            case ast.Name():
                value = self.names.lookup(e.id, scope, e.span, expect=expect)
                return self.functions.scheme(value, (), scope, e.span) if isinstance(value, SchemeRule) else value
            case ast.Unary():
                return self._unary(e, scope)
            case ast.Binary():
                return self._binary(e, scope)
            case ast.IfElse():
                return self.ev(e.then if self.truth(e.condition, scope) else e.otherwise, scope, expect)
            case ast.List():
                return self._list_of([self.ev(i, scope) for i in e.items], e.span)
            case ast.Comprehension():
                return self._comprehension(e, scope)
            case ast.Rules():
                return self._init_rules(e, scope)
            case ast.Index():
                return self._index(e, scope)
            case ast.Call():
                return self.calls.call(e, scope, expect=expect)
            case ast.Pipeline():
                return self.calls.pipeline(e, scope)
            case _:
                assert isinstance(e, ast.As), e
                assert isinstance(e.value, ast.Call), e.value  # the grammar says so
                return self.calls.call(e.value, scope, as_name=e.name)

    # --- literals -----------------------------------------------------------------------------------------------------

    def _number(self, e: ast.Number) -> Num | EnumValue:
        if e.text in INFINITE:
            return EnumValue(e.text)
        text = e.text.replace("_", "")
        mantissa, _, exponent = text.lower().partition("e")
        if len(mantissa) > MAX_DIGITS or (exponent and abs(int(exponent)) > MAX_DIGITS):
            text = f"a number has at most {MAX_DIGITS} digits, zeros included"
            raise error("E0404", text, e.span, help=raising("digits"))
        value = dims.whole(Fraction(text))
        if exponent and isinstance(value, int) and value > 2**53:
            value = float(text)  # 1e38 bounds scores: it is no count
        if isinstance(value, int) and (e.text.startswith("0") or exponent or "." in text):
            return Num(value, literal(value), e.span)
        return Num(value, Lit(e.text), e.span)

    def _list_of(self, items: list[Any], span: Span) -> ListValue | list[Value]:
        if items and all(isinstance(i, Value) for i in items):
            return items
        return concat([ListValue((i,), ElementRef(0)) for i in items], span)

    def _comprehension(self, e: ast.Comprehension, scope: Scope) -> Any:
        results: list[Any] = []
        length = 0
        source = self.ev(e.iterable, scope)
        items = elements(source, e.iterable.span)
        scope.frame.remember_count(source, len(items))
        scope.frame.fixed_counts(source)
        for item in items:
            inner = scope.inner()
            inner.vars[e.name] = item
            results.append(self.ev(e.element, inner))
            length += len(results[-1].items) if isinstance(results[-1], ListValue) else 1
            if length > MAX_LIST:  # before the rest is evaluated, which may be long too
                raise error("E0404", f"a list has at most {MAX_LIST:,} elements", e.span, help=raising("list"))
        return self._list_of(results, e.span)

    def _init_rules(self, e: ast.Rules, scope: Scope) -> InitRules:
        """Rules for first values. Raises E0204 for a pattern that no name can match, E0203 for what is no scheme."""
        rules: list[InitRule] = []
        for rule in e.items:
            if not PATTERN.fullmatch(rule.pattern):
                text = "a rule says weights by their names, in which `*` stands for any characters"
                help_ = 'for example `"blocks.*.ffn.down"` or `"*.out.bias"`'
                raise error("E0204", text, rule.pattern_span, help=help_)
            what, where = f'the rule `"{rule.pattern}"`', rule.value.span
            scheme = coerce(self.ev(rule.value, scope, "scheme"), "scheme", False, what, where)
            if not isinstance(scheme, Scheme):
                raise error("E0203", f"{what} is one scheme, and {kind_of(scheme)} was given", where)
            rules.append(InitRule(rule.pattern, scheme, rule.span))
        return InitRules(tuple(rules))

    # --- operators ----------------------------------------------------------------------------------------------------

    def _unary(self, e: ast.Unary, scope: Scope) -> Any:
        value = self.functions.drawn(self.ev(e.operand, scope), scope, e.operand.span)
        if e.op == "not":
            if isinstance(value, bool):
                return not value
            raise error(
                "E0203",
                f"`not` takes true or false, and {kind_of(value)} was given",
                e.span,
                help="for tensors write `~`",
            )
        if e.op == "~":
            if isinstance(value, Mask):
                return masks.complement(value)
            if isinstance(value, Value):
                return self.primitives.apply(scope, "logical_not", [value], {}, e.span)[0]
        elif isinstance(value, Num):
            return Num(dims.neg(value.value), dims.negated(value.expr), e.span)
        elif isinstance(value, Value):
            return self.primitives.apply(scope, "negate", [value], {}, e.span)[0]
        elif isinstance(value, EnumValue) and value.name in INFINITE:
            return EnumValue(value.name.removeprefix("-") if value.name.startswith("-") else f"-{value.name}")
        raise error("E0203", f"`{e.op}` cannot be applied to {kind_of(value)}", e.span)

    def _binary(self, e: ast.Binary, scope: Scope) -> Any:
        if e.op in ("and", "or"):
            decided = self.truth(e.left, scope)
            return decided if decided == (e.op == "or") else self.truth(e.right, scope)
        a = self.functions.drawn(self.ev(e.left, scope), scope, e.left.span)
        b = self.functions.drawn(self.ev(e.right, scope), scope, e.right.span)
        return self.operate(e.op, a, b, e, scope)

    def operate(self, op: str, a: Any, b: Any, e: ast.Binary, scope: Scope) -> Any:
        """One of the operators on two values."""
        if isinstance(a, Num) and isinstance(b, Num):
            return self._numbers(op, a, b, e, scope)
        for mask, other in ((a, b), (b, a)):
            if isinstance(mask, Mask) and isinstance(other, Value) and not _mask_typed(other):
                return self._with_mask(op, mask, other, e, scope)
        if op in ("&", "|") and (isinstance(a, Mask) or isinstance(b, Mask) or (_mask_typed(a) and _mask_typed(b))):
            m, n = as_mask(a, e.left.span), as_mask(b, e.right.span)
            if m.rules + n.rules > MAX_MASK:
                raise error("E0404", f"a mask has at most {MAX_MASK:,} rules", e.span, help=raising("mask"))
            self._joined(m, n, scope)
            return masks.both(m, n) if op == "&" else masks.either(m, n)
        same = unchanged(op, a, b)
        if same is not None:
            scope.frame.fixed(b if same is a else a)
            return same
        a, b = (as_operand(v) if isinstance(other, Value) else v for v, other in ((a, b), (b, a)))
        if isinstance(a, Value | Num) and isinstance(b, Value | Num):
            spans = [e.left.span, e.right.span]
            return self.primitives.apply(scope, OPERATORS[op], [a, b], {}, e.span, spans=spans)[0]
        if op in ("==", "!="):
            found = _equal(a, b)
            self._compared(found, a, b, e, scope)
            return found == (op == "==")
        if op == "*" and isinstance(a, Num) and isinstance(b, ListValue | BlockValue | SharedModule):
            return self._repeated(a, b, e, scope)
        if op == "*" and isinstance(b, Num) and isinstance(a, ListValue | BlockValue | SharedModule):
            return self._repeated(b, a, e, scope)
        if op == "+" and all(isinstance(v, ListValue | BlockValue | SharedModule) for v in (a, b)):
            return concat([as_list(a), as_list(b)], e.span)
        if op == "+" and isinstance(a, list) and isinstance(b, list):
            return a + b
        for value, side in ((a, e.left), (b, e.right)):
            if isinstance(value, Absent):
                raise error(
                    "E0203",
                    f"the tensor here was left out, so `{op}` cannot use it",
                    side.span,
                    help=f"guard it: `if {side.span.text} != none {{ … }}`",
                )
            if isinstance(value, tuple):
                raise error(
                    "E0203",
                    f"`{op}` takes one tensor, and this has {len(value)} results",
                    side.span,
                    help="bind them first: `a, b = …`",
                )
        help_ = JOIN_MASKS if isinstance(a, Mask) and isinstance(b, Mask) else ""
        raise error("E0203", f"`{op}` cannot join {kind_of(a)} and {kind_of(b)}", e.span, help=help_)

    def _with_mask(self, op: str, mask: Mask, other: Value, e: ast.Binary, scope: Scope) -> Value:
        """A mask joined with a tensor of pairs: what both let see (`&`), or either (`|`), or the tensor with 0 where
        nothing is seen (`*`). Raises E0203 for other operators, and for a tensor of positions."""
        if op == "*" and not other.is_bool:
            return self.primitives.apply(scope, "where", [mask, other, num(0)], {}, e.span)[0]
        if op not in ("&", "|"):
            hides = "`where(mask, scores, -inf)` hides scores, `where(mask, x, 0)` makes others 0"
            raise error("E0203", f"`{op}` cannot join a mask and a tensor", e.span, help=hides)
        square = other.rank == 2 and other.shape[0].value == other.shape[1].value
        if not other.is_bool or (other.rank < 3 and not square):
            as_mask(other, e.span)
        if op == "&" and mask.rule == "full":
            return other
        return self.primitives.apply(scope, OPERATORS[op], [mask, other], {}, e.span)[0]

    def _repeated(self, count: Num, part: Any, e: ast.Binary, scope: Scope) -> ListValue:
        found = repeat(count, as_list(part), e.span)
        scope.frame.demand_count(count)
        return found

    def _joined(self, a: Mask, b: Mask, scope: Scope) -> None:
        """Of two masks joined, those that are equal are one."""
        seen: dict[Any, Mask] = {}
        for mask in (*a.leaves(), *b.leaves()):
            first = seen.setdefault(mask.key, mask)
            if first is not mask:
                scope.frame.same_static(first, mask, MERGED)

    def _compared(self, equal: bool, a: Any, b: Any, e: ast.Binary, scope: Scope) -> None:
        """Record what the numbers in two static values have to do with their being equal."""
        if isinstance(a, BlockValue) and isinstance(b, BlockValue):
            both = [(a.args[k], v) for k, v in b.args.items() if k in a.args]
        else:
            both = [(a, b)]
        for x, y in both:
            if equal:
                scope.frame.same_static(x, y, _decided(e))
            elif static_key(x) != static_key(y):
                pairs = list(zip(numbers_of(x), numbers_of(y), strict=False))
                found = next(((m, n) for m, n in pairs if m.value != n.value), None)
                if found is not None and all(n.static for n in found):
                    scope.frame.holds("==", *found, _decided(e))
                return

    def _numbers(self, op: str, a: Num, b: Num, e: ast.Binary, scope: Scope) -> Any:
        if op in COMPARE:
            if op in ("==", "!=") and scope.frame.same(a, b, _decided(e)):
                return op == "=="
            if a.static and b.static:
                return scope.frame.holds(op, a, b, _decided(e))
            raise error(
                "E0402",
                f"`{format_number(a)} {op} {format_number(b)}` is known only when the model runs",
                e.span,
                help="demand it with `assert`; an `if` is decided when the spec is compiled",
            )
        if op in ("&", "|"):
            raise error("E0203", f"`{op}` joins masks or bool tensors, not numbers", e.span)
        if op in ("/", "//", "%") and b.static:
            scope.frame.holds("!=", b, 0, f"`{e.span.text}` must not divide by 0")
        if op == "**" and a.static and b.static and (float(b) < 0 or not isinstance(b.value, int)):
            least = ">" if float(b) < 0 else ">="
            scope.frame.holds("!=" if isinstance(b.value, int) else least, a, 0, f"`{e.span.text}` must be a number")
        try:
            return binary(op, a, b, e.span)
        except ZeroDivisionError:
            zero = e.left if op == "**" else e.right
            what = f"`{zero.span.text}` is 0" if zero.span.text != "0" else ""
            if op == "**":
                what = f"{what}, which" if what else "0"
                what += " cannot be raised to a negative power"
            raise error("E0401", f"division by zero{what and f': {what}'}", zero.span) from None
        except (OverflowError, MemoryError) as problem:
            help_ = str(problem) if isinstance(problem, dims.TooLargeError) else ""
            raise error("E0404", "this number would be too large", e.span, help=help_) from None
        except ValueError:
            of = "" if isinstance(a.expr, Lit) else f": `{e.left.span.text}` is {a}"
            help_ = "of a negative number only whole powers are real"
            raise error("E0401", f"`{e.span.text}` is not a real number{of}", e.span, help=help_) from None

    # --- indices ------------------------------------------------------------------------------------------------------

    def _index(self, e: ast.Index, scope: Scope) -> Any:
        value = self.ev(e.value, scope)
        if isinstance(value, ListValue | list):
            return self._element(value, e, scope)
        if not isinstance(value, Value):
            raise error("E0203", f"only tensors and lists can be indexed, and this is {kind_of(value)}", e.value.span)
        items: list[Any] = []
        for item in e.items:
            if isinstance(item, ast.Ellipsis):
                items.append("...")
            elif isinstance(item, ast.Slice):
                items.append(("slice", self._bound(item.low, scope), self._bound(item.high, scope)))
            else:
                python = isinstance(item, ast.Name) and item.id == "None"  # in NumPy a new axis
                found = None if python else self.ev(item, scope)
                if isinstance(found, Value) and item is e.items[-1] and all(i == ("slice", None, None) for i in items):
                    along = {"axis": num(len(items))} if items else {}
                    _count_as_table(value, scope.frame.nodes)
                    return self.primitives.apply(scope, "lookup", [value, found], along, e.span)[0]
                if not isinstance(found, Num):
                    text = f"an index is a number, a slice or `...`, and this is {kind_of(found)}"
                    help_ = "`unsqueeze(axis)` adds an axis" if found is None else ""
                    raise error("E0203", text, item.span, help=help_)
                demand_whole(found, "an index", scope, item.span)
                items.append(found)
        return self.primitives.apply(scope, "index", [value], {"items": tuple(items)}, e.span)[0]

    def _element(self, source: ListValue | list[Value], e: ast.Index, scope: Scope) -> Any:
        items = source.items if isinstance(source, ListValue) else source
        index = None if isinstance(e.items[0], ast.Slice) else self.ev(e.items[0], scope)
        if len(e.items) != 1 or not isinstance(index, Num) or not isinstance(index.value, int):
            raise error("E0203", "a list is read by one whole number", e.span)
        if not -len(items) <= index.value < len(items):
            text = f"the list has {len(items)} elements, and {index.value} was asked for"
            raise error("E0303", text, e.items[0].span)
        scope.frame.fixed(index)
        scope.frame.fixed_counts(source)
        return items[index.value]

    def _bound(self, e: ast.Expr | None, scope: Scope) -> Num | None:
        """An end of a slice."""
        if e is None:
            return None
        value = self.ev(e, scope)
        if not isinstance(value, Num):
            raise error("E0203", f"this must be a number, and it is {kind_of(value)}", e.span)
        demand_whole(value, "the end of a slice", scope, e.span)
        return value

    # --- what is decided now ------------------------------------------------------------------------------------------

    def truth(self, e: ast.Expr, scope: Scope) -> bool:
        """A condition that is decided now. Raises E0402 for a tensor, E0203 for anything else."""
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
        if isinstance(value, TrainingCondition):
            raise error("E0203", "`training` stands alone: `if training { … }`", e.span)
        help_ = JOIN_MASKS if isinstance(value, Mask) else ""
        raise error("E0203", f"a condition is true or false, and this is {kind_of(value)}", e.span, help=help_)

    def size(self, e: ast.Expr, scope: Scope) -> Num:
        """An expression as a size. Raises E0203 or E0401 where it is none."""
        value = self.ev(e, scope)
        if not isinstance(value, Num):
            raise error("E0203", f"a size is a number, and this is {kind_of(value)}", e.span)
        value = whole_size(value, "size", "a size", e.span)
        demand_whole(value, "a size", scope, e.span)
        scope.frame.demand_size(value, "size")
        return value


def as_mask(value: Any, span: Span) -> Mask:
    """A mask, or a tensor that is one by its type. Raises E0203 for anything else."""
    if isinstance(value, Mask):
        return value
    if _mask_typed(value):
        return Mask(value.dtype, tensor=value)
    if isinstance(value, Value) and value.is_bool:
        raise error(
            "E0203",
            "a bool tensor is no mask by itself",
            span,
            help="say which positions it masks: `keys(real)` or `queries(real)`",
        )
    raise error("E0203", f"this must be a mask, and it is {kind_of(value)}", span)


def elements(value: Any, span: Span) -> list[Any]:
    """What a loop runs over: the elements of a list, or the numbers below one. Raises E0203 for anything else."""
    if isinstance(value, Num):
        return [Num(i, Lit(str(i)), span) for i in range(repetitions(value, span))]
    if isinstance(value, ListValue):
        return list(value.items)
    if isinstance(value, list):
        return value
    if isinstance(value, BlockValue | SharedModule):
        return [value]
    raise error("E0203", f"`for` runs over a list or up to a number, and this is {kind_of(value)}", span)


def _decided(e: ast.Binary) -> str:
    """What is recorded of a comparison in a spec."""
    return f"`{' '.join(e.span.text.split())}` was decided by these numbers: compile again with --set"


def unchanged(op: str, a: Any, b: Any) -> Value | None:
    """The tensor to which an operator does nothing: `x + 0`, `1 * x`. Its type stays, too: `ids / 1` is of floats, and
    truth values are added as whole numbers."""
    for value, n in ((a, b), *([(b, a)] if op in "+*" else ())):
        if isinstance(value, Value) and isinstance(n, Num) and (op, n.value) in NEUTRAL:
            return value if value.is_float or (value.is_int and op != "/") else None
    return None


def _mask_typed(value: Any) -> bool:
    """Whether a tensor is a mask by its type."""
    return isinstance(value, Value) and value.dtype in MASK_TYPES


def _equal(a: Any, b: Any) -> bool:
    """`==` of static values. A block with fewer hyper-parameters set stands for all that agree with it in those."""
    if isinstance(a, Absent) or isinstance(b, Absent):
        return (a is None or isinstance(a, Absent)) and (b is None or isinstance(b, Absent))
    if isinstance(a, Value | list) or isinstance(b, Value | list):
        return False
    if isinstance(a, BlockValue) and isinstance(b, BlockValue):
        same_target = static_key(replace(a, args={}, label="")) == static_key(replace(b, args={}, label=""))
        return same_target and all(k in a.args and static_key(a.args[k]) == static_key(v) for k, v in b.args.items())
    words = [_word(a), _word(b)]
    if None not in words and any(v is None or isinstance(v, str | EnumValue) for v in (a, b)):
        return words[0] == words[1]
    return static_key(a) == static_key(b)


def _word(value: Any) -> str | None:
    """What a value is called where it is an option's word: words that options took are strings, `causal` is a mask
    too, `mean` a block."""
    if value is None or isinstance(value, str | EnumValue):
        return "none" if value is None else str(value)
    return value.rule if isinstance(value, Mask) else value.name if isinstance(value, BlockValue) else None


def _count_as_table(value: Value, nodes: Sequence[Node]) -> None:
    """Note of a weight that rows of it are looked up, as of an embedding."""
    makers = {v: n for n in nodes for v in node_outputs(n)}
    node = makers.get(value)
    while isinstance(node, OpNode) and node.op.moves:
        node = makers.get(node.tensor(0))
    if isinstance(node, ParamNode) and node.weight.trained:
        object.__setattr__(node, "weight", replace(node.weight, kind="embedding"))
