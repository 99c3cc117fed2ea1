"""What all parts of the elaborator share: its state, reports, conditions on sizes, and what the parts ask of each
other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import ArchError, Diagnostic, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.block_builder import BlockBuilder, Hoisted, ModelInput
from archdsl.frontend.modules import SpecModule, words
from archdsl.frontend.scopes import Scope
from archdsl.ir import dims
from archdsl.ir.dims import Expr, Lit, Num, Poly, Shape, expr_text, literal, num
from archdsl.ir.graph import Block, CallNode, CheckNode, Condition, Input, Node, Value
from archdsl.ir.op import Primitive
from archdsl.ir.ranges import RANGES, TESTS
from archdsl.ir.static import BlockValue, Declared, ListValue, SharedModule, counts_of, numbers_of
from archdsl.ir.wording import FIXED_NUMBER, SIZE, WHOLE, WRITTEN_OUT, format_number, origins
from archdsl.resources import library_files, library_source
from archdsl.syntax import ast
from archdsl.syntax.limits import MAX_NODES, MAX_PROBLEMS, MAX_STEPS, raising

if TYPE_CHECKING:
    from archdsl.frontend.op_call import OpCall

OTHERWISE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", "<=": ">", ">": "<="}
"""What holds where a test does not."""
HOPELESS = frozenset({"E0107", "E0207", "E0404"})
"""What never ends, or is too large: what follows would be so too."""
BROKEN = {
    "%": "is not a multiple of",
    "==": "is not",
    "!=": "is",
    "<": "is not less than",
    "<=": "is more than",
    ">": "is not more than",
    ">=": "is less than",
}


class GivenUpError(Exception):
    """A model that costs more than the compiler takes. No statement after it is looked at: it would be refused too."""

    def __init__(self, message: str, limit: str, span: Span | None) -> None:
        super().__init__(message)
        self.problem = error("E0404", message, span, help=raising(limit))


class Elaboration(ABC):
    """One model being built."""

    root: BlockBuilder
    """The frame of the model."""

    def __init__(self, module: SpecModule) -> None:
        self.module = module
        self.memo: dict[Hashable, Block] = {}
        self.broken: set[Hashable] = set()
        """Keys of blocks that have been reported as wrong."""
        self.problems: list[Diagnostic] = []
        self.reported = 0
        """How often something was reported, what is known already included."""
        self.keep: list[Value] = []
        """Tensors are known by identity: while the model is built, none may be freed."""
        self.nodes = 0
        self.steps = 0
        """Expressions that were evaluated, and iterations of loops."""
        self.loops: dict[int, tuple[list[str], set[str]]] = {}
        """Of each loop's body, by its identity, the names that it assigns and those that it reads."""
        self.turning: list[ast.For] = []
        """Loops of which an iteration is being run."""
        self.depth = 0
        self.user_spans: list[Span] = []
        """Where the user's spec applied the blocks that are being elaborated, the innermost last."""
        self.applied: list[str] = []
        """The names of those blocks, the library's too."""
        self.hopeless = False
        """Whether something was found behind which nothing can be checked."""
        self.slot_spans: list[tuple[Declared, Mapping[str, Span]]] = []
        """The library's blocks that bodies of slots stand for, and where each slot was written."""
        self.inputs: dict[str, Value] = {}
        self.optional_inputs: set[str] = set()
        self.made_inputs: dict[str, Value] = {}
        """Inputs of a model of slots that its masks ask for."""
        self.input_by_slots = False
        self.context: Num | None = None
        """Of a model of slots: the length of its longest sequence."""

    @cached_property
    def words(self) -> frozenset[str]:
        """Every name that is said in the files of the spec and in the library."""
        sources = [*(m.source for m in self.module.files()), *map(library_source, library_files())]
        return words("\n".join(s.text for s in sources))

    # --- reporting ----------------------------------------------------------------------------------------------------

    def report(self, problem: ArchError) -> None:
        """Note what is wrong; what goes wrong within the library is shown where the user called it."""
        self.reported += len(problem.diagnostics)
        for d in problem.diagnostics if len(self.problems) < MAX_PROBLEMS else ():
            self.hopeless = self.hopeless or d.code in HOPELESS
            if self.user_spans:
                d = shown_at(d, self.user_spans[-1])
            if not any(d.code == p.code and d.span == p.span and d.message == p.message for p in self.problems):
                self.problems.append(d)

    def count_step(self, span: Span | None, steps: int = 1) -> None:
        """Raises GivenUpError where building the model takes too long."""
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise GivenUpError(f"more than {MAX_STEPS:,} expressions are evaluated", "steps", span)

    def count_node(self, node: Node) -> None:
        """Raises GivenUpError where the model becomes too large."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            text = f"the model has more than {MAX_NODES:,} operations in its distinct blocks"
            raise GivenUpError(text, "nodes", node.span)

    def not_a_tensor(self, name: str, scope: Scope, span: Span) -> None:
        """Raises E0202 where a static thing would take the name of a tensor, which loops carry from iteration to
        iteration."""
        if isinstance(scope.get(name), Value):
            raise error("E0202", f"`{name}` is a tensor here already", span, help="choose another name")

    # --- conditions ---------------------------------------------------------------------------------------------------

    def condition(self, frame: BlockBuilder, op: str, left: Num, right: Num, message: str, span: Span) -> None:
        """Demand a relation of sizes; `%` means that right divides left. Raises E0401 where it does not hold."""
        divides = op == "%" and dims.mod(left.value, right.value) == 0
        if left.static and right.static:
            if not (divides if op == "%" else TESTS[op](left.value, right.value)):
                text = f"{message}: {format_number(left)} {BROKEN[op]} {format_number(right)}"
                raise error("E0401", text, span, labels=origins((left, right), span))
            if divides:
                self.remember(frame, dims.Bin("%", left.expr, right.expr), "==", Lit("0"), message)
            else:
                self.decide(frame, left.expr, op, right.expr, message)
        elif not divides:
            self.check_when_run(frame, op, left, right, message, span, 0)

    def check_when_run(
        self, frame: BlockBuilder, op: str, left: Num, right: Num, message: str, span: Span, level: int | None = None
    ) -> None:
        """A condition that only the running model can decide, checked there once (in the graph of that level, if
        said)."""
        if op in ("==", "<=", ">=") and self.same(frame, left, right, message):
            return
        known = ("checked", op, left.value, right.value)
        if known in frame.made:
            return
        frame.made[known] = Value((), "bool")
        frame.put(CheckNode(op, left, right, message, span), level)

    def remember(self, frame: BlockBuilder, left: Expr, op: str, right: Expr, message: str) -> None:
        """A condition that holds and that the emitted class checks again for other numbers of its user."""
        if isinstance(left, dims.Bin) and left.op == "%" and right == Lit("0") and _always_divides(left):
            return
        entry = Condition(left, op, right, message)
        if (dims.free_names(left) or dims.free_names(right)) and entry not in frame.asserts:
            frame.asserts.append(entry)

    def remember_exact(self, frame: BlockBuilder, value: Num) -> None:
        """`head_dim = width / heads` is whole only if heads divides width: the emitted code checks it for other
        numbers."""
        e = value.expr
        if isinstance(e, dims.Bin) and e.op == "/" and isinstance(value.value, int):
            names = f"{expr_text(e.left)} must be a multiple of {expr_text(e.right)}"
            self.remember(frame, dims.Bin("%", e.left, e.right), "==", Lit("0"), names)

    def remember_count(self, frame: BlockBuilder, source: Any, iterations: int) -> None:
        """Iterations that differ are written out one by one: the emitted code refuses another number of them."""
        if isinstance(source, Num):
            self.remember(frame, source.expr, "==", dims.literal(iterations), WRITTEN_OUT)

    # --- decisions ----------------------------------------------------------------------------------------------------

    # Whatever the graph depends on, and that is not written into it as an expression, is asked here: the answer is a
    # condition that the emitted code holds its user's numbers to.

    def decide(self, frame: BlockBuilder, left: Expr, op: str, right: Expr, message: str) -> None:
        """Record a condition that holds, in the frame's names. One on literals alone, or on one expression twice, says
        nothing."""
        if left == right or not (dims.free_names(left) or dims.free_names(right)):
            return
        frame.decisions.setdefault((left, op, right), Condition(left, op, right, message))

    def holds(self, frame: BlockBuilder, op: str, a: Num, b: Num | float, message: str) -> bool:
        """Whether `a op b` of static numbers; the answer is recorded."""
        b = b if isinstance(b, Num) else num(b)
        found = TESTS[op](a.value, b.value)
        self.decide(frame, a.expr, op if found else OTHERWISE[op], b.expr, message)
        return found

    def same(self, frame: BlockBuilder, a: Num, b: Num, message: str) -> bool:
        """Whether two sizes are equal; if so, that is recorded. Where they are not, nothing is: what stands for sizes
        that differ stands for equal ones too."""
        if a.value != b.value:
            return False
        if a.expr is not b.expr:
            self.decide(frame, a.expr, "==", b.expr, message)
        return True

    def same_shape(self, frame: BlockBuilder, a: Shape, b: Shape, message: str) -> bool:
        """Whether two shapes are equal; if so, that is recorded."""
        return dims.same_shape(a, b) and all(self.same(frame, x, y, message) for x, y in zip(a, b, strict=True))

    def fits(self, frame: BlockBuilder, a: Num, b: Num, message: str) -> bool:
        """Whether an axis of size a can stand for one of size b: they are equal, or it is 1. What holds is recorded."""
        if self.same(frame, a, b, message):
            return True
        if a.value == 1:
            self.fixed(frame, a, message)
        return a.value == 1

    def same_static(self, frame: BlockBuilder, a: Any, b: Any, message: str) -> None:
        """Record that two static values that mean the same, whichever numbers stand in them, mean the same."""
        for x, y in zip(numbers_of(a), numbers_of(b), strict=True):
            self.same(frame, x, y, message)

    def fixed(self, frame: BlockBuilder, n: Num, message: str = FIXED_NUMBER) -> int | Fraction | float:
        """A static number that the graph depends on in a way of its own: no other will do."""
        assert not isinstance(n.value, Poly), n.expr
        if dims.free_names(n.expr):
            self.decide(frame, n.expr, "==", literal(n.value), message)
        return n.value

    def fixed_counts(self, frame: BlockBuilder, source: Any) -> None:
        """How long a list is, where what is made of its elements is written out one by one."""
        for repeated in counts_of(source.pattern) if isinstance(source, ListValue) else ():
            self.decide(frame, repeated.count, "==", literal(repeated.times), WRITTEN_OUT)

    def demand_count(self, frame: BlockBuilder, count: Num) -> None:
        """Record that something is repeated at all, or not at all: where there are no iterations, what they ask of the
        blocks around is not there either."""
        if count.value == 0:
            self.fixed(frame, count, WRITTEN_OUT)
        else:
            self.demand_size(frame, count, "size")

    def demand_size(self, frame: BlockBuilder, n: Any, kind: str | None) -> None:
        """Record that a number is one of a kind: `int` a whole number, `size` one of at least 1, `positive` one
        above 0. It was checked."""
        if not isinstance(n, Num) or not n.static or isinstance(n.expr, Lit):
            return
        if kind in RANGES:
            for op, bound in RANGES[kind].bounds:
                self.decide(frame, n.expr, op, literal(bound), f"{expr_text(n.expr)} must be {RANGES[kind].words}")
        elif kind in ("size", "int") and not (isinstance(n.expr, dims.Var) and n.expr.name in frame.sizes):
            self.decide(frame, dims.Bin("%", n.expr, Lit("1")), "==", Lit("0"), WHOLE)
            if kind == "size":
                self.decide(frame, n.expr, ">=", Lit("1"), SIZE)

    def is_whole(self, frame: BlockBuilder, n: Num, message: str) -> bool:
        """Whether a static number is a whole one; the answer is recorded."""
        found = isinstance(n.value, int)
        self.decide(frame, dims.Bin("%", n.expr, Lit("1")), "==" if found else "!=", Lit("0"), message)
        return found

    # --- what parts ask of later ones ---------------------------------------------------------------------------------

    @abstractmethod
    def ev(self, e: Any, scope: Scope, expect: str | None = None) -> Any:
        """The value of an expression: static, a tensor, a list of tensors, or a tuple of several results. `expect` is
        the kind that is wanted: schemes and scalings have names of their own."""

    @abstractmethod
    def apply(
        self,
        block: Any,
        scope: Scope,
        span: Span,
        *,
        numbers: Sequence[Num] = (),
        tensors: Sequence[Value | None] = (),
    ) -> Any:
        """Apply a block value that a primitive was given."""

    @abstractmethod
    def primitive(
        self,
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
        instance: SharedModule | None = None,
    ) -> tuple[Value, ...]:
        """Apply a primitive (in the graph of an outer level, if said); its outputs, called by the hint if they have no
        name."""

    @abstractmethod
    def once_type(self, frame: BlockBuilder, demand: Hoisted) -> tuple[Shape, str]:
        """Shape and type of a demand, in the frame's names."""

    @abstractmethod
    def put_once(self, frame: BlockBuilder, demand: Hoisted, inputs: Sequence[Input], level: int) -> Value:
        """The value of a demand, computed in that level of the frame."""

    @abstractmethod
    def expert(self, site: OpCall, block: Any, copies: Num, width: Num) -> CallNode:
        """A block elaborated for rows of its own, every weight with a leading axis."""

    @abstractmethod
    def body(self, template: BlockValue, scope: Scope, given: Mapping[str, Any]) -> tuple[Value, ...]:
        """Run the body of a block; its results, checked against the signature."""

    @abstractmethod
    def statements(self, items: Sequence[ast.Statement], scope: Scope) -> None:
        """Run statements in order; each error is reported, and what depends on it stays silent."""

    @abstractmethod
    def model_input_value(self, demand: ModelInput) -> Value:
        """A stand-in for the model's input of a kind, in a block."""

    @abstractmethod
    def find_model_input(self, demand: ModelInput) -> Value:
        """The declared input of that kind over that axis; a model of slots gets one because it is asked for."""


def _always_divides(remainder: dims.Bin) -> bool:
    """`heads * head_dim % heads` is 0 whatever the numbers are."""
    try:
        quotient = dims.div(dims.expr_value(remainder.left, True), dims.expr_value(remainder.right, True))
    except (ArithmeticError, ValueError):
        return False
    return dims.is_size_like(quotient)


def shown_at(d: Diagnostic, span: Span) -> Diagnostic:
    """A diagnostic of the library, shown where the user wrote the block."""
    if d.span is None or not d.span.source.library:
        return d
    inner = d.span
    labels = tuple(x for x in d.labels if not x.span.source.library and x.span != span)
    if d.code == "E0205":  # what is missing was to be given there, whoever asks for it
        return replace(d, span=span, labels=labels)
    note = f"in {inner.source.name}"
    if inner.end > 0:
        note += f":{inner.line}: {inner.source.line(inner.line).strip()}"
    return replace(d, span=span, labels=labels, notes=(*d.notes, note))
