"""What a model was decided from, in the names of its Config.

Every block records, in its own names, the conditions under which it is what it is.  Here they are carried to the root,
through the names that each call binds, and become conditions on the numbers that a user may set.  What says nothing is
left out: a condition on literals, two sides that are equal whatever the numbers are, a product that is at least 1
because its factors are.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from fractions import Fraction
from typing import Any, TypeGuard

from archdsl.frozen import Frozen
from archdsl.ir import dims
from archdsl.ir.closure import instantiated_names
from archdsl.ir.dims import Bin, Expr, Fn, Lit, Num, Opaque, Poly, Symbol, Value, Var, divides, free_names, substitute
from archdsl.ir.graph import Block, CallNode, CheckNode, Condition, Graph, Handle, Model, OpNode
from archdsl.ir.ranges import NUMBERS, TESTS
from archdsl.ir.static import EnumValue
from archdsl.ir.walk import calls_of, every_node
from archdsl.ir.wording import FIXED_NUMBER, SIZE, WHOLE

Said = tuple[Expr, str, Expr]
ZERO, ONE = Lit("0"), Lit("1")
SIZES = "sizes and counts must be whole numbers of at least 1"
BACKWARDS = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
BOUNDS = ("<", "<=")
ROUNDED = "{} must be a whole number: compile again with --set"
CROWD = 4
"""So many conditions on the same fields are said one by one; of more, the fields are said to be what they are."""
LONGEST = 40
"""Characters of an expression that stands in a message."""
SHARED = "what is shared has one size wherever it is used"


def conditions(model: Model) -> tuple[Condition, ...]:
    """All that the structure of a model was decided from, as conditions on the fields of its Config, each once. They
    hold for the model's own numbers; whoever sets others gets the same structure as long as they hold.

    An equality of sizes that only the running model knows gives those of the static numbers in it."""
    carried = _Carrier().closed(model.block).conditions
    root = _Root(model)
    found: dict[Said, Condition] = {}
    known = -1
    while known < len(root.sizes):  # of what is a size other things follow
        known = len(root.sizes)
        found.clear()
        for condition in carried:
            for said in root.said(condition):
                left, op, right = said
                if (right, BACKWARDS[op], left) not in found:
                    found.setdefault(said, Condition(*said, root.message(condition, left)))
        root.sizes |= {left.name for left, op, right in found if isinstance(left, Var) and _is_size(op, right)}
    kept = _pinned([c for said, c in found.items() if not _follows(said, found)], root.values)
    kept.sort(key=lambda c: max(_roundings(c.left), _roundings(c.right)))  # what they divide by is not 0
    counted, bounded = root.counted(carried), {c.left for c in kept if _is_size(c.op, c.right)}  # from below
    for name in map(Var, reversed(root.values)):
        if name.name in counted - root.sizes:
            kept.insert(0, Condition(Bin("%", name, ONE), "==", ZERO, f"{name.name} must be a whole number"))
        elif name.name in root.sizes - counted and name not in bounded:
            kept.insert(0, Condition(name, ">=", ONE, f"{name.name} must be at least 1"))
    sizes = [Var(name) for name in root.values if name in root.sizes & counted]
    if sizes:
        least = Fn("minimum", tuple(sizes)) if len(sizes) > 1 else sizes[0]
        kept.insert(0, Condition(least, ">=", ONE, SIZES))
    return tuple(kept)


def named_message(c: Condition) -> str:
    """Return the message of a condition on Config fields; a text that names none of them begins with the condition."""
    left, op, right = c.left, c.op, c.right
    if isinstance(left, Fn) and op == "<" and isinstance(difference := left.args[0], Bin):  # abs(a - b) < 1e-9
        left, op, right = difference.left, "==", difference.right
    names = sorted({*free_names(left), *free_names(right)})
    text = f"{dims.expr_text(left)} {op} {dims.expr_text(right)}"
    text = text if len(text) <= LONGEST else " and ".join(names)
    if "this number" in c.message:
        return c.message.replace("this number", text)
    named = not {*names}.isdisjoint(re.findall(r"\w+", c.message))
    return c.message if named else f"{text}: {c.message}"


def choices(model: Model) -> dict[str, bool | str | None]:
    """Return the hyper-parameters of a model that are a bool, a word or none, by name, as Python values. The graph is
    built for them."""
    blocks = {h.name for h in model.block.header.hypers or () if h.kind == "block"}
    values = {n: v.name if isinstance(v, EnumValue) else v for n, v in model.block.hypers.items() if n not in blocks}
    return {n: v for n, v in values.items() if v is None or isinstance(v, bool | str)}


def longest_sequence(graph: Graph, context: Num) -> dict[str, Expr]:
    """Return the sizes of the running model that are at most the `context`, by their names."""
    return {
        s.name: context.expr
        for node in graph.nodes
        if isinstance(node, CheckNode) and node.op == "<=" and node.right.expr == context.expr
        for s in node.left.symbols
        if node.left.value == dims.symbol(s.name)
    }


# --- from blocks to the root ------------------------------------------------------------------------------------------


class _Closed(Frozen):
    """A block with all that it calls, in its names: conditions, and sizes of what is shared, by what they are of."""

    conditions: dict[Condition, None] = field(default_factory=dict)
    uses: dict[Hashable, dict[Expr, None]] = field(default_factory=dict)


class _Carrier:
    """Carries conditions from blocks to their callers, each block once."""

    def __init__(self) -> None:
        self.known: dict[Block, _Closed] = {}
        self.joined: set[str] = set()
        """Numbers of shared blocks, which have one name in all blocks below their owner."""

    def closed(self, block: Block) -> _Closed:
        if block not in self.known:
            found = _Closed(dict.fromkeys((*block.asserts, *block.decisions)))
            for node in every_node(block.graph):
                if isinstance(node, CheckNode) and node.op in BOUNDS:
                    bound = Condition(node.left.expr, node.op, node.right.expr, node.message)
                    found.conditions.setdefault(bound)
                elif isinstance(node, OpNode):
                    self._of_op(node, found)
                for call in calls_of(node):
                    self._of_call(call, found)
                    real = {h.name for h in call.block.header.hypers or () if h.kind in NUMBERS}
                    given = (_written_out(e, block.local) for name, e in call.bind.items() if name not in real)
                    whole = (Condition(Bin("%", e, ONE), "==", ZERO, ROUNDED) for e in given if not isinstance(e, Lit))
                    found.conditions.update(dict.fromkeys(whole))
            for exprs in found.uses.values():
                first, *others = exprs
                found.conditions.update((Condition(first, "==", other, SHARED), None) for other in others)
            self.known[block] = found
        return self.known[block]

    def _of_op(self, node: OpNode, found: _Closed) -> None:
        if node.instance is None:
            return
        self.joined |= node.instance.joined.keys()
        for weight in node.weights:
            for axis, size in enumerate(weight.shape):
                found.uses.setdefault((node.instance, weight.name, axis), {})[size.expr] = None

    def _of_call(self, call: CallNode, found: _Closed) -> None:
        inner = self.closed(call.block)
        for value in call.contexts:
            if isinstance(value, Handle):
                self.joined |= value.instance.joined.keys()
        names = instantiated_names(call.block, call.bind)
        for condition in inner.conditions:
            left, right = self._outward(condition.left, names), self._outward(condition.right, names)
            if left is not None and right is not None and left != right and (free_names(left) or free_names(right)):
                found.conditions[Condition(left, condition.op, right, condition.message)] = None
        for key, exprs in inner.uses.items():
            for expr in exprs:
                outer = self._outward(expr, names)
                if outer is not None:
                    found.uses.setdefault(key, {})[outer] = None
        if call.instance is not None:
            self.joined |= call.instance.joined.keys()
            for name, expr in call.bind.items():
                found.uses.setdefault((call.instance, "bind", name), {})[expr] = None

    def _outward(self, expr: Expr, names: Mapping[str, Expr]) -> Expr | None:
        """An expression in the caller's names; None where the caller has none for it."""
        if all(n in names or n in self.joined for n in free_names(expr)):
            return substitute(expr, names)
        return None


# --- at the root ------------------------------------------------------------------------------------------------------


class _Root:
    """Conditions in the names of the model's own block, brought to the fields of its Config."""

    def __init__(self, model: Model) -> None:
        self.local = model.block.local
        self.values = {f.name: f.value.value for f in model.config}
        self.whole = {name for name, value in self.values.items() if isinstance(value, int)}
        self.sizes: set[str] = set()
        """Fields that have to be at least 1."""
        self.longest = longest_sequence(model.block.graph, model.context) if model.context is not None else {}

    def said(self, condition: Condition) -> Iterator[Said]:
        """The condition in the names of fields; nothing where it says nothing, or cannot be said by them."""
        left, right = self._expanded(condition.left), self._expanded(condition.right)
        if condition.message == ROUNDED and not self._is_whole_here(left):
            return
        if condition.op in BOUNDS:  # what holds for the longest sequence holds for all
            left, right = substitute(left, self.longest), substitute(right, self.longest)
        names = {*free_names(left), *free_names(right)}
        pairs: list[Said] = []
        if not names or left == right or self.always(left, condition.op, right):
            return
        if names <= self.values.keys():
            pairs = [(left, condition.op, right)]
        elif condition.op == "==":
            pairs = self._of_running(left, right)
        elif condition.op == "<=":
            difference = _value(Bin("-", left, right))
            if isinstance(difference, Poly) and {s.name for s in difference.symbols} <= self.values.keys():
                # What only the running model knows is the same on both sides.
                pairs = [(more, "<=", less) for more, _, less in self._coefficients(left, right) or ()]
        for pair in pairs:
            found = self._solved(*_names_first(*self._without_fractions(*pair)))
            if found[0] != found[2] and not self.always(*found):
                yield self._for_floats(*found)

    def counted(self, conditions: Iterable[Condition]) -> set[str]:
        """Return the fields that must be whole numbers, because sizes, counts or positions are made of them."""
        exprs = (
            self._expanded(c.left)
            for c in conditions
            if c.message in (SIZE, WHOLE) or (_says_whole(c.left, c.op, c.right) and c.message != ROUNDED)
        )
        return {name for expr in exprs for name in free_names(expr)} & self.whole

    def _is_whole_here(self, remainder: Expr) -> bool:
        """Whether a number given to a block, of which this is the remainder of division by 1, is whole for the model's
        own fields."""
        return {*free_names(remainder)} <= self.values.keys() and self._holds(remainder, "==", ZERO)

    def _expanded(self, expr: Expr) -> Expr:
        """With what the names of the model's own block are computed from."""
        return _written_out(expr, {n: e for n, e in self.local.items() if n not in self.values})

    def _of_running(self, left: Expr, right: Expr) -> list[Said]:
        """Of two equal sizes that only the running model knows what has to be equal in them; nothing where that cannot
        be told."""
        pairs = self._coefficients(left, right)
        if pairs is None:
            pairs = list(self._descent(left, right))
            if not all({*free_names(a), *free_names(b)} <= self.values.keys() for a, _, b in pairs):
                return []
        return pairs if all(self._holds(*pair) for pair in pairs) else []

    def _coefficients(self, left: Expr, right: Expr) -> list[Said] | None:
        """As polynomials of the running model's sizes they have the same coefficients; None where they are none."""
        difference = _value(Bin("-", left, right))
        if difference is None or (isinstance(difference, Poly) and any(" " in s.name for s in difference.symbols)):
            return None
        sides: dict[Hashable, tuple[list[Expr], list[Expr]]] = {}
        for monomial, coefficient in difference.terms if isinstance(difference, Poly) else ():
            own = [(a, power) for a, power in monomial if isinstance(a, Symbol) and a.name in self.values]
            rest = [(a, power) for a, power in monomial if (a, power) not in own]
            if any(isinstance(a, Opaque) and _fields_of(a, self.values) for a, _ in rest):
                return None
            term: Expr = dims.literal(dims.whole_number(abs(coefficient)))
            for atom, power in own:
                assert isinstance(atom, Symbol)
                for _ in range(abs(power)):
                    term = _times(term, Var(atom.name)) if power > 0 else Bin("/", term, Var(atom.name))
            sides.setdefault(tuple(rest), ([], []))[coefficient < 0].append(term)
        return [(_sum(more), "==", _sum(less)) for more, less in sides.values()]

    def _descent(self, a: Expr, b: Expr) -> Iterator[Said]:
        """Of two equal sizes of the running model what has to be equal in them: `time / 4` and `time / patch`."""
        if a == b:
            return
        if isinstance(a, Bin) and isinstance(b, Bin) and a.op == b.op:
            yield from (*self._descent(a.left, b.left), *self._descent(a.right, b.right))
        elif isinstance(a, Fn) and isinstance(b, Fn) and a.name == b.name and len(a.args) == len(b.args):
            other = b.args[::-1]
            turned = a.name in ("minimum", "maximum") and any(x == y for x, y in zip(a.args, other, strict=True))
            for x, y in zip(a.args, other if turned else b.args, strict=True):
                yield from self._descent(x, y)
        else:
            yield a, "==", b

    def message(self, condition: Condition, left: Expr) -> str:
        """What is said of a condition: of a size that is computed, what it is computed from."""
        if condition.message == WHOLE and isinstance(left, Bin) and left.op == "%" and left.right != ONE:
            return f"{dims.expr_text(left.left)} must be a multiple of {dims.expr_text(left.right)}"
        if condition.message == ROUNDED:
            assert isinstance(condition.left, Bin)
            text = dims.expr_text(self._expanded(condition.left.left))
            return ROUNDED.format(text if len(text) <= LONGEST else "a product")
        if condition.message == WHOLE and isinstance(condition.left, Bin):
            text = dims.expr_text(self._expanded(condition.left.left))
            return f"{text} must be a whole number" if len(text) <= LONGEST else WHOLE
        text = dims.expr_text(self._expanded(condition.left))
        if condition.message == SIZE and not text.isidentifier() and len(text) <= LONGEST:
            return f"{text} must be at least 1"
        return condition.message

    # --- what holds anyway ---

    def always(self, left: Expr, op: str, right: Expr) -> bool:
        """Whether it holds whatever the fields are, those that are `sizes` being at least 1."""
        if _says_whole(left, op, right) and self._is_integral(left.left):
            return True
        names = {*free_names(left), *free_names(right)}
        if not names <= self.whole and any(map(_roundings, (left, right))):
            return False
        if op == ">=" and right == ONE and self._is_positive(left):
            return True  # a quotient of sizes: that it is whole is a condition of its own
        if op in (">", ">=", "!=") and right == ZERO and self._is_positive(left):
            return True
        if isinstance(left, Bin) and left.op == "%" and right == ZERO and op == "==":
            return self._is_whole(_value(Bin("/", left.left, left.right)))
        difference = _value(Bin("-", left, right))
        if difference is None:
            return False
        if not isinstance(difference, Poly):
            return TESTS[op](difference, 0)
        if op in ("<", "<="):
            difference, op = dims.neg(difference), BACKWARDS[op]
            assert isinstance(difference, Poly)
        if op not in (">=", ">", "!="):
            return False
        return self._at_least(difference, 0 if op == ">=" else 1)

    def _is_whole(self, value: Value | None) -> bool:
        """Whether a value is a whole number whatever the fields are."""
        if isinstance(value, Poly):
            return dims.is_size_like(value) and {s.name for s in value.symbols} <= self.whole
        return isinstance(value, int)

    def _at_least(self, value: Poly, bound: int) -> bool:
        """Whether a sum of products of sizes, and of quotients of them that are rounded down, is at least that much."""
        least = Fraction(0)
        for monomial, coefficient in value.terms:
            factors = [self._least(a) if power > 0 else None for a, power in monomial]
            if None in factors or (monomial and coefficient < 0):
                return False
            least += coefficient * math.prod(n for n in factors if n is not None)
        return least >= bound

    def _least(self, atom: Symbol | Opaque) -> int | None:
        """The least that a size, or a quotient that is rounded down, can be; None of what is neither."""
        if isinstance(atom, Symbol):
            return 1 if self._is_size_of(atom) else None
        top, *below = atom.args
        if atom.function != "floor" or not isinstance(top, Poly):
            return None
        if not all(self._is_above_zero(n) for n in below):
            return None
        if all(c > 0 and all(self._is_size_of(a) for a, _ in monomial) for monomial, c in top.terms):
            return int(all(isinstance(n, int) and self._at_least(top, n) for n in below or [1]))
        return 0 if self._at_least(top, 0) else None

    def _is_above_zero(self, value: Value) -> bool:
        """Whether a number is surely above 0: a sum of products of sizes, none of them subtracted, is."""
        if not isinstance(value, Poly):
            return value > 0
        return all(c > 0 and all(self._is_size_of(a) for a, _ in monomial) for monomial, c in value.terms)

    def _is_size_of(self, atom: Symbol | Opaque) -> bool:
        return isinstance(atom, Symbol) and atom.name in self.sizes

    def _is_positive(self, expr: Expr) -> bool:
        if isinstance(expr, Lit):
            return Fraction(expr.text) > 0
        if isinstance(expr, Var):
            return expr.name in self.sizes
        if isinstance(expr, Bin):
            sides = (expr.left,) if expr.op == "**" else (expr.left, expr.right)
            return expr.op in ("+", "*", "/", "**") and all(map(self._is_positive, sides))
        return expr.name in ("sqrt", "exp", "ceil", "minimum", "maximum") and all(map(self._is_positive, expr.args))

    def _is_integral(self, expr: Expr) -> bool:
        return dims.is_integral(expr, self.whole.__contains__)

    # --- without rounding ---

    def _without_fractions(self, left: Expr, op: str, right: Expr) -> Said:
        """The same of whole numbers: `heads * dims == width` for `dims == width / heads`."""
        names = {*free_names(left), *free_names(right)}
        if not names <= self.whole:
            return left, op, right
        if isinstance(left, Bin) and left.op == "%" and right == ZERO and op in ("==", "!="):
            return Bin("%", *_cancelled(*fraction(Bin("/", left.left, left.right)))), op, ZERO
        if not (_has_fraction(left) or _has_fraction(right)):
            return left, op, right
        (a, below_a), (b, below_b) = fraction(left), fraction(right)
        if op in ("==", "!=") or (self._is_positive(below_a) and self._is_positive(below_b)):
            return _times(a, below_b), op, _times(b, below_a)
        return left, op, right

    def _solved(self, left: Expr, op: str, right: Expr) -> Said:
        """`depth == 10` for `depth - 1 == 9`, where one name is compared; of whole numbers `n >= 3` for `n > 2`."""
        difference = _value(Bin("-", left, right))
        terms = dict(difference.terms) if isinstance(difference, Poly) else {}
        constant = terms.pop((), Fraction(0))
        if len(terms) == 1:
            ((monomial, coefficient),) = terms.items()
            bound = -constant / coefficient
            atom, power = monomial[0]
            if len(monomial) == 1 and isinstance(atom, Symbol) and power == 1 and atom.name in self.whole:
                left, op = Var(atom.name), op if coefficient > 0 else BACKWARDS[op]
                if bound.denominator != 1 and op in (">", ">="):
                    op, bound = ">=", Fraction(math.ceil(bound))
                elif bound.denominator != 1 and op in ("<", "<="):
                    op, bound = "<=", Fraction(math.floor(bound))
                right = dims.literal(dims.whole_number(bound))
        if op == ">" and isinstance(right, Lit) and self._is_integral(left) and self._is_integral(right):
            return left, ">=", dims.literal(int(Fraction(right.text)) + 1)
        return left, op, right

    def _for_floats(self, left: Expr, op: str, right: Expr) -> Said:
        """Python's own floats may miss an equality by their last bit: then that the sides are as good as equal."""
        if op != "==" or all(self._is_integral(e) or isinstance(e, Lit | Var) for e in (left, right)):
            return left, op, right
        if isinstance(left, Bin) and left.op == "%" and right == ZERO:
            top = left.left if left.right == ONE else Bin("/", left.left, left.right)
            left, right = top, Fn("floor", (Bin("+", top, Lit("0.5")),))
        return Fn("abs", (Bin("-", left, right),)), "<", Lit("1e-9")

    def _holds(self, left: Expr, op: str, right: Expr) -> bool:
        """Whether it holds for the model's own numbers."""
        own = {name: dims.literal(value) for name, value in self.values.items() if not isinstance(value, Poly)}
        return TESTS[op](*(dims.expr_value(substitute(e, own)) for e in (left, right)))


def _written_out(expr: Expr, local: Mapping[str, Expr]) -> Expr:
    """An expression with what its names are computed from."""
    for _ in range(len(local) + 1):
        names = {n: local[n] for n in free_names(expr) if n in local}
        if not names:
            break
        expr = substitute(expr, names)
    return expr


def _pinned(conditions: Sequence[Condition], values: Mapping[str, Value]) -> list[Condition]:
    """The conditions, those that crowd as fields that keep their numbers: windows that divide an image at every stage,
    a kind of layer for each remainder. Other numbers that fit, too, are then refused."""
    names = {c: frozenset({*free_names(c.left), *free_names(c.right)}) for c in conditions}
    crowds = Counter(names.values())
    pinned = {name for found, count in crowds.items() if count > CROWD for name in found}
    own = {n: dims.literal(v) for n, v in values.items() if n in pinned and not isinstance(v, Poly)}
    kept = [Condition(Var(n), "==", v, FIXED_NUMBER) for n, v in own.items()]
    return kept + [c for c in conditions if not names[c] <= pinned]


def _names_first(left: Expr, op: str, right: Expr) -> Said:
    """`width > 0` for `0 < width`."""
    return (right, BACKWARDS[op], left) if not free_names(left) else (left, op, right)


def _cancelled(top: Expr, bottom: Expr) -> tuple[Expr, Expr]:
    """A quotient of products without what is in both."""
    value = _value(Bin("/", top, bottom))
    if not isinstance(value, Poly) or len(value.terms) != 1:
        return top, bottom
    monomial, coefficient = value.terms[0]
    a: Expr = dims.literal(coefficient.numerator)
    b: Expr = dims.literal(coefficient.denominator)
    for atom, power in monomial:
        if not isinstance(atom, Symbol) or " " in atom.name:
            return top, bottom
        for _ in range(abs(power)):
            a, b = (_times(a, Var(atom.name)), b) if power > 0 else (a, _times(b, Var(atom.name)))
    return a, b


def _says_whole(left: Expr, op: str, right: Expr) -> TypeGuard[Bin]:
    """Whether a condition says that something is a whole number: `… % 1 == 0`."""
    return isinstance(left, Bin) and left.op == "%" and left.right == ONE and op == "==" and right == ZERO


def _is_size(op: str, right: Expr) -> bool:
    """Whether what is compared is at least 1."""
    if not isinstance(right, Lit):
        return False
    least = Fraction(right.text)
    return (op in (">=", "==") and least >= 1) or (op == ">" and least >= 1)


def _follows(said: Said, found: Mapping[Said, Condition]) -> bool:
    """Whether it says nothing beside others: on names that have one value each, or of a multiple of what is divided."""
    left, op, right = said
    names = {*free_names(left), *free_names(right)}
    fixed = {a.name for a, test, b in found if isinstance(a, Var) and test == "==" and isinstance(b, Lit)}
    if names <= fixed and not (isinstance(left, Var) and op == "=="):
        return True
    if not (isinstance(left, Bin) and left.op == "%" and op == "==" and right == ZERO):
        return False
    top, bottom = left.left, left.right
    parts = (top.left, top.right) if isinstance(top, Bin) and top.op == "*" else ()
    if isinstance(bottom, Lit):
        tests = (
            a for a, *zero in found if isinstance(a, Bin) and a.op == "%" and a.left == top and zero == [op, right]
        )
        divisors = (a.right for a in tests)
        if any(isinstance(n, Lit) and n != bottom and Fraction(n.text) % Fraction(bottom.text) == 0 for n in divisors):
            return True
    return any((Bin("%", part, bottom), "==", ZERO) in found for part in parts)


def _value(expr: Expr) -> Value | None:
    """An expression as a value over the fields, None where there is none. Of a fraction that is rounded nothing is
    known but that it is one number."""
    try:
        return dims.expr_value(_with_atoms(expr))
    except (ArithmeticError, ValueError):
        return None


def _with_atoms(expr: Expr) -> Expr:
    """With a name in place of each fraction that is rounded."""
    if isinstance(expr, Bin):
        if expr.op in ("//", "%") and (divides(expr.left) or divides(expr.right)):
            return Var(dims.expr_text(expr))
        return Bin(expr.op, _with_atoms(expr.left), _with_atoms(expr.right))
    if isinstance(expr, Fn):
        if expr.name in ("floor", "ceil") and any(map(divides, expr.args)):
            return Var(dims.expr_text(expr))
        return Fn(expr.name, tuple(map(_with_atoms, expr.args)))
    return expr


def _roundings(expr: Expr) -> int:
    """Return how many operators that round are nested in it."""
    if isinstance(expr, Bin):
        return (expr.op in ("//", "%")) + max(_roundings(expr.left), _roundings(expr.right))
    if isinstance(expr, Fn):
        return (expr.name in ("floor", "ceil")) + max(map(_roundings, expr.args))
    return 0


def _has_fraction(expr: Expr) -> bool:
    """Whether arithmetic has made a fraction of it."""
    if isinstance(expr, Lit):
        return Fraction(expr.text).denominator != 1
    if isinstance(expr, Bin):
        return expr.op == "/" or (expr.op in "+-*%" and (_has_fraction(expr.left) or _has_fraction(expr.right)))
    return False


def fraction(expr: Expr) -> tuple[Expr, Expr]:
    """A quotient of two expressions without quotients, but for those within functions and powers."""
    if isinstance(expr, Lit):
        if expr.text in ("inf", "-inf") or (value := Fraction(expr.text)).denominator == 1:
            return expr, ONE
        return dims.literal(value.numerator), dims.literal(value.denominator)
    if isinstance(expr, Bin) and expr.op == "**" and isinstance(expr.right, Lit) and expr.right.text.isdecimal():
        top, below = fraction(expr.left)
        return (expr, ONE) if below == ONE else (Bin("**", top, expr.right), Bin("**", below, expr.right))
    if not isinstance(expr, Bin) or expr.op not in ("+", "-", "*", "/"):
        return expr, ONE
    (a, below_a), (b, below_b) = fraction(expr.left), fraction(expr.right)
    if expr.op == "*":
        return _times(a, b), _times(below_a, below_b)
    if expr.op == "/":
        return _times(a, below_b), _times(below_a, b)
    if below_a == below_b:
        return Bin(expr.op, a, b), below_a
    return Bin(expr.op, _times(a, below_b), _times(b, below_a)), _times(below_a, below_b)


def _fields_of(value: Opaque | Poly | int | Fraction | float, names: Mapping[str, Any]) -> bool:
    """Whether one of these names is in it."""
    if isinstance(value, Poly):
        return any(s.name in names for s in value.symbols)
    return isinstance(value, Opaque) and any(_fields_of(a, names) for a in value.args)


def _sum(terms: Sequence[Expr]) -> Expr:
    total: Expr = ZERO
    for term in terms:
        total = term if total == ZERO else Bin("+", total, term)
    return total


def _times(a: Expr, b: Expr) -> Expr:
    """Return the product of two expressions: without a factor of 1, and of two numbers as one number."""
    if isinstance(a, Lit) and isinstance(b, Lit):
        return dims.literal(dims.whole_number(Fraction(a.text) * Fraction(b.text)))
    if ONE in (a, b):
        return b if a == ONE else a
    return Bin("*", a, b)
