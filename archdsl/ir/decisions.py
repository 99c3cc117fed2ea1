"""What a block was decided from: conditions on sizes that hold, and that the emitted code holds its user's numbers
to."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from archdsl.ir import dims
from archdsl.ir.dims import Expr, Lit, Num, Poly, Shape, expr_text, literal, num
from archdsl.ir.graph import Condition
from archdsl.ir.ranges import RANGES, TESTS
from archdsl.ir.static import ListValue, counts_of, numbers_of
from archdsl.ir.wording import FIXED_NUMBER, SIZE, WHOLE, WRITTEN_OUT

OTHERWISE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", "<=": ">", ">": "<="}
"""What holds where a test does not."""


class Decisions:
    """Conditions of one block, recorded while it is elaborated."""

    def __init__(self) -> None:
        self.local: dict[str, Expr] = {}
        """What the names of the block are computed from."""
        self.asserts: list[Condition] = []
        """Those that the emitted class checks again."""
        self.decisions: dict[tuple[Expr, str, Expr], Condition] = {}
        self.sizes: set[str] = set()
        """Names that are known to stand for whole numbers of at least 1."""

    def remember(self, left: Expr, op: str, right: Expr, message: str) -> None:
        """A condition that holds and that the emitted class checks again for other numbers of its user."""
        spelled: Expr | None = left
        while isinstance(spelled, dims.Bin) and spelled.op == "%" and right == Lit("0"):
            if _always_divides(spelled):
                return
            further = dims.substitute(spelled, self.local)  # `inner` as `heads * head_dim`
            spelled = None if further == spelled else further
        if left == right:  # and the same for all numbers
            return
        entry = Condition(left, op, right, message)
        if (dims.free_names(left) or dims.free_names(right)) and entry not in self.asserts:
            self.asserts.append(entry)

    def remember_exact(self, value: Num) -> None:
        """`head_dim = width / heads` is whole only if heads divides width: the emitted code checks it for other
        numbers."""
        e = value.expr
        if isinstance(e, dims.Bin) and e.op == "/" and isinstance(value.value, int):
            by_whole = dims.is_integral(e.right, lambda _: True)
            said = f"must be a multiple of {expr_text(e.right)}" if by_whole else "must be a whole number"
            message = f"{expr_text(e.left if by_whole else e)} {said}"
            self.remember(dims.Bin("%", e.left, e.right), "==", Lit("0"), message)

    def remember_count(self, source: Any, iterations: int) -> None:
        """Iterations that differ are written out one by one: the emitted code refuses another number of them."""
        if isinstance(source, Num):
            self.remember(source.expr, "==", dims.literal(iterations), WRITTEN_OUT)

    # Whatever the graph depends on, and that is not written into it as an expression, is asked here: the answer is a
    # condition that the emitted code holds its user's numbers to.

    def decide(self, left: Expr, op: str, right: Expr, message: str) -> None:
        """Record a condition that holds, in the block's names. One on literals alone, or on one expression twice, says
        nothing."""
        if left == right or not (dims.free_names(left) or dims.free_names(right)):
            return
        self.decisions.setdefault((left, op, right), Condition(left, op, right, message))

    def holds(self, op: str, a: Num, b: Num | float, message: str) -> bool:
        """Whether `a op b` of static numbers; the answer is recorded."""
        b = b if isinstance(b, Num) else num(b)
        found = TESTS[op](a.value, b.value)
        self.decide(a.expr, op if found else OTHERWISE[op], b.expr, message)
        return found

    def same(self, a: Num, b: Num, message: str) -> bool:
        """Whether two sizes are equal; if so, that is recorded. Where they are not, nothing is: what stands for sizes
        that differ stands for equal ones too."""
        if a.value != b.value:
            return False
        if a.expr is not b.expr:
            self.decide(a.expr, "==", b.expr, message)
        return True

    def same_shape(self, a: Shape, b: Shape, message: str) -> bool:
        """Whether two shapes are equal; if so, that is recorded."""
        return dims.same_shape(a, b) and all(self.same(x, y, message) for x, y in zip(a, b, strict=True))

    def fits(self, a: Num, b: Num, message: str) -> bool:
        """Whether an axis of size a can stand for one of size b: they are equal, or it is 1. What holds is recorded."""
        if self.same(a, b, message):
            return True
        if a.value == 1:
            self.fixed(a, message)
        return a.value == 1

    def same_static(self, a: Any, b: Any, message: str) -> None:
        """Record that two static values that mean the same, whichever numbers stand in them, mean the same."""
        for x, y in zip(numbers_of(a), numbers_of(b), strict=True):
            self.same(x, y, message)

    def fixed(self, n: Num, message: str = FIXED_NUMBER) -> int | Fraction | float:
        """A static number that the graph depends on in a way of its own: no other will do."""
        assert not isinstance(n.value, Poly), n.expr
        if dims.free_names(n.expr):
            self.decide(n.expr, "==", literal(n.value), message)
        return n.value

    def fixed_counts(self, source: Any) -> None:
        """How long a list is, where what is made of its elements is written out one by one."""
        for repeated in counts_of(source.pattern) if isinstance(source, ListValue) else ():
            self.decide(repeated.count, "==", literal(repeated.times), WRITTEN_OUT)

    def demand_count(self, count: Num) -> None:
        """Record that something is repeated at all, or not at all: where there are no iterations, what they ask of the
        blocks around is not there either."""
        if count.value == 0:
            self.fixed(count, WRITTEN_OUT)
        else:
            self.demand_size(count, "size")

    def demand_size(self, n: Any, kind: str | None) -> None:
        """Record that a number is one of a kind: `int` a whole number, `size` one of at least 1, `positive` one
        above 0. It was checked."""
        if not isinstance(n, Num) or not n.static or isinstance(n.expr, Lit):
            return
        if kind in RANGES:
            for op, bound in RANGES[kind].bounds:
                self.decide(n.expr, op, literal(bound), f"{expr_text(n.expr)} must be {RANGES[kind].words}")
        elif kind in ("size", "int") and not (isinstance(n.expr, dims.Var) and n.expr.name in self.sizes):
            self.decide(dims.Bin("%", n.expr, Lit("1")), "==", Lit("0"), WHOLE)
            if kind == "size":
                self.decide(n.expr, ">=", Lit("1"), SIZE)

    def is_whole(self, n: Num, message: str) -> bool:
        """Whether a static number is a whole one; the answer is recorded."""
        found = isinstance(n.value, int)
        self.decide(dims.Bin("%", n.expr, Lit("1")), "==" if found else "!=", Lit("0"), message)
        return found


def _always_divides(remainder: dims.Bin) -> bool:
    """`heads * head_dim % heads` is 0 whatever the numbers are."""
    try:
        quotient = dims.div(dims.expr_value(remainder.left, True), dims.expr_value(remainder.right, True))
    except (ArithmeticError, ValueError):
        return False
    return dims.is_size_like(quotient)
