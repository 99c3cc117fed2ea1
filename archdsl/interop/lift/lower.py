"""ATen's operators in the words of the language, one at a time; `idioms.py` then finds what several say together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from archdsl.diagnostics import ArchError, error
from archdsl.interop.lift.declared import STANDS
from archdsl.interop.lift.export import BATCH, TIME, Exported, Size, Value
from archdsl.interop.lift.holes import formula
from archdsl.interop.lift.idioms import rewritten
from archdsl.interop.lift.meanings import MEANINGS
from archdsl.interop.lift.positions import Positions
from archdsl.interop.lift.terms import Term
from archdsl.ops import registry
from archdsl.syntax import ast

SAME = {
    "abs", "ceil", "cos", "elu", "erf", "exp", "floor", "log", "log_sigmoid", "mish", "reciprocal", "relu", "rsqrt",
    "selu", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "square", "tanh", "maximum", "minimum",
    "where",
}  # fmt: skip
"""Operators with a primitive of the same name, whose tensors come in the same order."""
OTHER_NAMES = {
    "neg": "negate", "negative": "negate", "absolute": "abs", "hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid",
}  # fmt: skip
OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=", "remainder": "%", "floor_divide": "//", "subtract": "-", "multiply": "*", "divide": "/",
    "true_divide": "/", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "not_equal": "!=",
}  # fmt: skip
TRUTHS = {
    "logical_and": "&", "logical_or": "|", "logical_xor": "!=", "logical_not": "logical_not", "bitwise_and": "&",
    "bitwise_or": "|", "bitwise_xor": "!=", "bitwise_not": "logical_not", "__and__": "&", "__or__": "|",
    "__xor__": "!=",
}  # fmt: skip
"""Operators of true and false. Those that do not begin with `logical` are of bits, where they are given numbers."""
UNCHANGED = {"clone", "contiguous", "detach", "alias", "lift_fresh_copy", "expand_as", "positive"}
"""Operators whose result is their operand; `expand_as` where the shapes are equal."""


class Lowering:
    """The terms of a graph. A tensor whose first axis is two of ours in one (`batch * time`, `batch * heads`) has a
    term with both: such merging comes and goes around products, and changes nothing."""

    def __init__(self, exported: Exported, positions: Positions) -> None:
        self.exported = exported
        self.positions = positions
        self.terms: dict[Value, Term] = {}
        self.casts: dict[Term, Term] = {}
        """Constants in the type of the module, by what they were made of."""
        self.declarations: dict[str, ast.BlockDecl] = {}
        """Blocks that stand for modules, and what these use, by their names."""

    def results(self) -> list[tuple[str, Term]]:
        """Lower what the results read. Raises ArchError E0542 for what the language has no words for."""
        for value in self._needed([value for _, value in self.exported.results]):
            self.term(value)
        return [(name, self._plain(self._unmerged(value))) for name, value in self.exported.results]

    def _needed(self, roots: Sequence[Value]) -> list[Value]:
        """What the roots read, in the order of the calls; nothing that only constants go into."""
        found: set[Value] = set()
        todo = [*roots]
        while todo:
            value = todo.pop()
            if value not in found:
                found.add(value)
                if not self.positions.constant(value):
                    todo += value.operands()
        return sorted(found, key=lambda v: v.index)

    def _plain(self, root: Term) -> Term:
        """A term without parts of idioms and unexpanded constants below it."""
        made: dict[Term, Term] = {}
        spelled: dict[Term, Term] = {}
        todo = [root]
        while todo:
            term = todo[-1]
            if term in made:
                todo.pop()
                continue
            now = spelled.setdefault(term, spelled.get(term) or self._spelled_out(term))
            if missing := [t for t in now.operands() if t not in made]:
                todo += missing
                continue
            now.args = tuple(self._typed(a, made[a], now) if isinstance(a, Term) else a for a in now.args)
            now.named = {name: made[a] for name, a in now.named.items()}
            made[term] = now
            todo.pop()
        return made[root]

    def _typed(self, was: Term, now: Term, reader: Term) -> Term:
        """A constant of real numbers, which are float32 here, in the type that the module gives it."""
        value, source = was.source, reader.source
        if was.op != "_constant" or value is None or value.dtype is None or not value.dtype.is_floating_point:
            return now
        if value.low == torch.float32 or (source is not None and self.positions.constant(source)):
            return now
        return self.casts.setdefault(was, Term("cast", (now,), {"dtype": "float"}, shape=now.shape, source=value))

    def _spelled_out(self, term: Term) -> Term:
        while term.op.startswith("_"):
            if term.plain is None and term.op != "_constant":
                assert term.source is not None
                raise _wordless(term.source)
            term = self._constant(term) if term.plain is None else term.plain
        return term

    # --- values -------------------------------------------------------------------------------------------------------

    def term(self, value: Value) -> Term:
        """The term of a value. `results` asks for operands first, so that a deep graph takes no deep recursion."""
        if value not in self.terms:
            self.terms[value] = self._lowered(value)
        return self.terms[value]

    def operand(self, x: Any) -> Any:
        """A term, a number or a size; a constant of one element is its number."""
        if not isinstance(x, Value):
            return x
        if self.positions.constant(x) and (number := self.positions.scalar(x)) is not None:
            return number
        return self.term(x)

    def _lowered(self, value: Value) -> Term:
        if value.op == "input":
            return Term("input", options={"name": value.name}, shape=value.shape, source=value)
        if value.op == "weight":
            return Term("param", weights={"": value}, shape=value.shape, source=value)
        if self.positions.constant(value):
            return Term("_constant", shape=value.shape, source=value)
        return rewritten(self._called(value), self.positions)

    def _constant(self, term: Term) -> Term:
        """A constant that no idiom has taken, as the module computes it."""
        value = term.source
        assert value is not None
        if len(value.shape) == 1 and (offset := self.positions.arange(value)) is not None:
            places = Term("indices", options={"length": value.shape[-1]}, shape=value.shape[-1:], source=value)
            return self._binary(value, "+", places, offset) if offset else places
        if len(value.shape) == 1 and (written := self.positions.vector(value)) is not None:
            return Term("formula", options={"value": written}, shape=value.shape, source=value)
        if (number := self.positions.scalar(value)) is not None and value.shape:
            filled = self._filled(value, number, value.shape)
            whole = value.dtype is not None and not value.dtype.is_floating_point
            kind = "bool" if value.dtype == torch.bool else "int"
            return Term("cast", (filled,), {"dtype": kind}, shape=value.shape, source=value) if whole else filled
        if value.op == "constant":
            assert value.tensor is not None
            if value.tensor.numel() > MOST_NUMBERS:
                text = f"`{value.name}` holds {value.tensor.numel():,} numbers that no formula gives"
                raise error("E0542", text, notes=_where(value))
            true = value.dtype == torch.bool
            options = {"values": (value.tensor.int() if true else value.tensor).tolist()}
            return Term("table", options=options | ({"kind": "bool"} if true else {}), shape=value.shape, source=value)
        return self._called(value)

    def _called(self, value: Value) -> Term:
        """One call of an operator."""
        name = value.op if value.op.startswith("__") else value.op.rstrip("_")
        options = {
            k: v for k, v in value.options.items() if k not in ("device", "layout", "pin_memory", "memory_format")
        }
        self._demand_sizes(value)
        try:
            if name in OPERATORS:
                return self._operator(value, OPERATORS[name], *value.args, **options)
            if name in TRUTHS:
                return self._logical(value, TRUTHS[name], value.args)
            if name in SAME or name in OTHER_NAMES:
                return self._same(value, OTHER_NAMES.get(name, name))
            if name in UNCHANGED and value.shape == value.args[0].shape:
                return self.term(value.args[0])
            method: Callable[..., Term] | None = getattr(self, f"do_{name}", None)
            if method is not None:
                return method(value, *value.args, **options)
        except TypeError:  # an argument that this operator is not known to have
            given = [*value.options, *(a for a in value.args[1:] if not isinstance(a, Value))]
            raise _wordless(value, f"with {', '.join(map(str, given))}") from None
        raise _wordless(value)

    def _demand_sizes(self, value: Value) -> None:
        """Raise ArchError E0542 where a call is given a size, or a number, that cannot be written."""
        for size in pytree.tree_leaves((value.args, dict(value.options))):
            if isinstance(size, sympy.Basic) and not size.free_symbols <= {BATCH, TIME}:
                raise _wordless(value, "a number that is read out of a tensor")
            if isinstance(size, sympy.Expr):
                try:
                    formula(size)
                except ArchError as problem:
                    raise _wordless(value, problem.diagnostics[0].message) from None

    def _made(
        self, value: Value, op: str, args: Iterable[Any], options: dict[str, Any] | None = None, **more: Any
    ) -> Term:
        """A term of a value: its shape is the value's, with both axes where the operands' first is two in one."""
        args = tuple(args)
        shape = value.shape
        terms = [a for a in args if isinstance(a, Term)]
        rank = len(shape)
        two = bool(rank) and isinstance(shape[0], sympy.Mul)
        merged = next((t for t in terms if two and len(t.shape) > 1 and _total(t.shape[:2]) == shape[0]), None)
        if merged is not None:
            shape = (*merged.shape[:2], *shape[1:])
        elif shape[:1] == (1,) and terms:
            grown = rank - max((len(v.shape) for v in value.operands()), default=rank)
            missing = rank - grown - max(len(t.shape) for t in terms)
            shape = shape[max(missing, 0) :]  # axes of size 1 that were left out
        return Term(op, args, options=options or {}, shape=shape, source=value, **more)

    def _merged(self, value: Value) -> bool:
        return len(self.term(value).shape) > len(value.shape)

    def _unmerged(self, value: Value) -> Term:
        """The term of a value in exactly its shape."""
        term = self.term(value)
        while len(term.shape) < len(value.shape):  # axes of size 1 that were left out
            term = Term("unsqueeze", (term,), {"axis": 0}, shape=(1, *term.shape), source=value)
        if not self._merged(value):
            return term
        return Term("flatten", (term,), {"first": 0, "last": 1}, shape=value.shape, source=value)

    def _axis(self, x: Value, axis: int) -> int:
        """An axis of a value as an axis of its term: from the end where their ranks differ, or it is the last."""
        axis %= len(x.shape)
        rank = len(self.term(x).shape)
        if (rank > len(x.shape) and axis == 0) or len(x.shape) - axis > rank:
            raise _wordless(x, "an operation along an axis that is two in one, or one of size 1")
        return axis - len(x.shape) if rank != len(x.shape) or axis == len(x.shape) - 1 else axis

    def _along(self, x: Value, axis: int) -> tuple[Term, int]:
        """The term of a value and an axis of it, which is one axis of the term too."""
        if self._merged(x) and axis % len(x.shape) == 0:
            return self._unmerged(x), 0
        return self.term(x), self._axis(x, axis)

    # --- numbers ------------------------------------------------------------------------------------------------------

    def _same(self, value: Value, word: str) -> Term:
        """The primitive of that name, of the same tensors; what numbers PyTorch has behind these are its
        hyper-parameters in their order. Those that are as PyTorch has them by default are not written."""
        schema = getattr(value.call, "_schema", None)
        defaults = [a.default_value if a.has_default_value() else None for a in schema.arguments] if schema else []
        args = [*value.args]
        while args and len(args) <= len(defaults) and args[-1] == defaults[len(args) - 1] is not None:
            args.pop()
        header = registry.get(word).header
        tensors, hypers = len(header.tensors or ()), [h.name for h in header.hypers or ()]
        if len(args) > tensors + len(hypers) or value.options:
            raise _wordless(value, f"with {', '.join(map(str, (*args[tensors:], *value.options)))}")
        options = dict(zip(hypers, args[tensors:], strict=False))
        return self._made(value, word, map(self.operand, args[:tensors]), options)

    def _logical(self, value: Value, word: str, args: Sequence[Any]) -> Term:
        """An operator of true and false; a number is true where it is not 0."""
        terms = [self.operand(a) for a in args]
        for i, a in enumerate(args):
            if isinstance(a, Value) and a.dtype != torch.bool:
                if not value.op.startswith("logical"):
                    raise _wordless(value, "an operator of bits")
                terms[i] = self._made(value, "!=", (terms[i], 0))
        return self._made(value, word, terms)

    def _operator(
        self, value: Value, sign: str, x: Any, y: Any, alpha: Any = 1, rounding_mode: str | None = None
    ) -> Term:
        a, b = self.operand(x), self.operand(y)
        if sign == "**" and b == 2:
            return self._made(value, "square", (a,))
        if rounding_mode == "floor":
            sign = "//"
        elif rounding_mode is not None:
            raise _wordless(value, f"rounding_mode={rounding_mode}")
        return self._binary(value, sign, a, self._times(value, b, alpha))

    def _times(self, value: Value, x: Any, number: Any) -> Any:
        """A tensor or a number, so many times."""
        return self._binary(value, "*", x, number) if isinstance(x, Term) else x * number

    def _binary(self, value: Value, sign: str, a: Any, b: Any) -> Term:
        if not isinstance(a, Term) and not isinstance(b, Term):
            raise _wordless(value, "an operator of two numbers")
        if isinstance(a, Term) and ((sign in "+-" and b == 0) or (sign in "*/" and b == 1)) and not isinstance(b, Term):
            return a
        if isinstance(b, Term) and ((sign == "+" and a == 0) or (sign == "*" and a == 1)) and not isinstance(a, Term):
            return b
        return self._made(value, sign, (a, b))

    def do_rsub(self, value: Value, a: Value, b: Any, alpha: Any = 1) -> Term:
        return self._operator(value, "-", b, a, alpha)

    def do_clamp(self, value: Value, x: Value, min: Any = None, max: Any = None) -> Term:
        term, numbers = self.term(x), {}
        for name, word, bound in (("low", "maximum", min), ("high", "minimum", max)):
            if isinstance(limit := self.operand(bound), Term):
                term = self._made(value, word, (term, limit))
            elif limit is not None:
                numbers[name] = limit
        return self._made(value, "clamp", (term,), numbers) if numbers else term

    do_clamp_min = do_clip = do_clamp

    def do_clamp_max(self, value: Value, x: Value, max: Any) -> Term:
        return self.do_clamp(value, x, None, max)

    def do_expm1(self, value: Value, x: Value) -> Term:
        return self._binary(value, "-", self._made(value, "exp", (self.term(x),)), 1)

    def do_log1p(self, value: Value, x: Value) -> Term:
        return self._made(value, "log", (self._binary(value, "+", self.term(x), 1),))

    def do_gelu(self, value: Value, x: Value, approximate: str = "none") -> Term:
        return self._made(value, "gelu_tanh" if approximate == "tanh" else "gelu", (self.term(x),))

    def do_leaky_relu(self, value: Value, x: Value, slope: float = 0.01) -> Term:
        return self._made(value, "leaky_relu", (self.term(x),), {} if slope == 0.01 else {"slope": slope})

    def do_softmax(self, value: Value, x: Value, axis: int, dtype: Any = None, *rest: Any) -> Term:
        axis = self._axis(x, axis)
        return self._made(value, "softmax", (self._in_float32(value, x),), {} if axis == -1 else {"axis": axis})

    def _in_float32(self, value: Value, x: Value) -> Term:
        """The operand of an operator whose results are float32 by themselves; here they have the operand's type."""
        term = self.term(x)
        if value.low != torch.float32 or term.low in (None, torch.float32):
            return term
        return Term("cast", (term,), {"dtype": "float32"}, shape=term.shape, source=value)

    do__softmax = do_softmax

    def do_log_softmax(self, value: Value, x: Value, axis: int, dtype: Any = None) -> Term:
        axis = self._axis(x, axis)
        return self._made(value, "log_softmax", (self._in_float32(value, x),), {} if axis == -1 else {"axis": axis})

    do__log_softmax = do_log_softmax

    def do_masked_fill(self, value: Value, x: Value, mask: Value, number: Any) -> Term:
        return self._made(value, "where", (self.term(mask), self.operand(number), self.term(x)))

    def do_to(self, value: Value, x: Value, *rest: Any, **more: Any) -> Term:
        """A cast among real numbers is one where the module in bfloat16 makes one."""
        term = self.term(x)
        real = value.dtype is not None and value.dtype.is_floating_point
        if real and x.dtype is not None and x.dtype.is_floating_point:
            if value.low is None or term.low is None or value.low == term.low:
                return term
            kind = "float32" if value.low == torch.float32 else "float"
        elif value.dtype == x.dtype:
            return term
        else:
            kind = "bool" if value.dtype == torch.bool else "float" if real else "int"
        return self._made(value, "cast", (term,), {"dtype": kind})

    do__to_copy = do_type_as = do_to

    def do_view_as_complex(self, value: Value, x: Value) -> Term:
        return self._made(value, "_complex", (self.term(x),))

    def do_view_as_real(self, value: Value, x: Value) -> Term:
        return self._made(value, "_real", (self.term(x),))

    def do_dropout(self, value: Value, x: Value, rate: float, train: bool = False) -> Term:
        if rate and train:
            raise _wordless(value, NOISY)
        term = self.term(x)
        return self._made(value, "dropout", (term,), {"rate": rate}) if rate else term

    do_feature_dropout = do_dropout

    def do_native_dropout(self, value: Value, x: Value, rate: float, train: bool | None) -> Term:
        """Refuse dropout: decomposed operators have it in training alone."""
        raise _wordless(value, NOISY)

    def _reduced(self, value: Value, op: str, x: Value, axes: Any, keep: bool) -> Term:
        term = self.term(x)
        if not x.shape and op != "var":  # of one number
            return term
        if axes is None or axes == []:
            term = self._unmerged(x)
            places = [-1] if len(x.shape) == 1 else [*range(len(x.shape))]
        else:
            places = [self._axis(x, a) for a in (axes if isinstance(axes, list | tuple) else [axes])]
        options: dict[str, Any] = {} if places == [-1] else {"axis": places[0] if len(places) == 1 else places}
        return self._made(value, op, (term,), {**options, **({"keep": "true"} if keep else {})})

    def do_mean(self, value: Value, x: Value, axis: Any = None, keepdim: bool = False, dtype: Any = None) -> Term:
        return self._reduced(value, "mean", x, axis, keepdim)

    def do_sum(self, value: Value, x: Value, axis: Any = None, keepdim: bool = False, dtype: Any = None) -> Term:
        return self._reduced(value, "sum", x, axis, keepdim)

    def do_amax(self, value: Value, x: Value, axis: Any = None, keepdim: bool = False) -> Term:
        return self._reduced(value, "max", x, axis, keepdim)

    def do_amin(self, value: Value, x: Value, axis: Any = None, keepdim: bool = False) -> Term:
        return self._reduced(value, "min", x, axis, keepdim)

    def do_linalg_vector_norm(
        self, value: Value, x: Value, power: Any = 2, axes: Any = None, keepdim: bool = False, dtype: Any = None
    ) -> Term:
        if power != 2:
            raise _wordless(value, f"the norm of power {power}")
        total = self._reduced(value, "sum", x, axes, keepdim)
        (term,) = total.args
        total.args = (Term("square", (term,), shape=term.shape, source=value),)
        return Term("sqrt", (total,), shape=total.shape, source=value)

    def do_logsumexp(self, value: Value, x: Value, axis: Any, keepdim: bool = False) -> Term:
        return self._reduced(value, "logsumexp", x, axis, keepdim)

    def do_var(
        self,
        value: Value,
        x: Value,
        axis: Any = None,
        unbiased: bool = True,
        keepdim: bool = False,
        correction: Any = None,
    ) -> Term:
        if unbiased if correction is None else correction != 0:
            raise _wordless(value, "a variance over n - 1; `var` is over n")
        return self._reduced(value, "var", x, axis, keepdim)

    def do_max(self, value: Value, x: Value, axis: Any = None, keepdim: bool = False) -> Term:
        if isinstance(axis, Value):
            return self._made(value, "maximum", (self.term(x), self.operand(axis)))
        return self._reduced(value, "max", x, axis, keepdim)

    def do_min(self, value: Value, x: Value, axis: Any = None, keepdim: bool = False) -> Term:
        if isinstance(axis, Value):
            return self._made(value, "minimum", (self.term(x), self.operand(axis)))
        return self._reduced(value, "min", x, axis, keepdim)

    def do_outer(self, value: Value, x: Value, y: Value) -> Term:
        term = self.term(x)
        column = Term("unsqueeze", (term,), {"axis": -1}, shape=(*term.shape, 1), source=value)
        return self._made(value, "*", (column, self.term(y)))

    do_ger = do_outer

    def do_argmax(self, value: Value, x: Value, axis: Any = None, keepdim: bool = False) -> Term:
        return self._place(value, x, axis, keepdim, least=False)

    def do_argmin(self, value: Value, x: Value, axis: Any = None, keepdim: bool = False) -> Term:
        return self._place(value, x, axis, keepdim, least=True)

    def _place(self, value: Value, x: Value, axis: int | None, keep: bool, *, least: bool) -> Term:
        """The index of the largest, or of the `least`, which is the largest of the negated; without an axis that among
        all elements."""
        term = self._unmerged(x) if axis is None else self.term(x)
        if axis is None and len(x.shape) > 1:
            options = {"first": 0, "last": len(x.shape) - 1}
            term = Term("flatten", (term,), options, shape=(_total(x.shape),), source=value)
        if least:
            term = Term("negate", (term,), shape=term.shape, source=value)
        if axis is not None:
            return self._made(value, "argmax", (term,), {**self._last(x, axis), **_if(keep=keep)})
        found = Term("argmax", (term,), source=value)
        for n in range(len(value.shape)):
            found = Term("unsqueeze", (found,), {"axis": 0}, shape=(1,) * (n + 1), source=value)
        return found

    def do_cumsum(self, value: Value, x: Value, axis: int, dtype: Any = None) -> Term:
        return self._made(value, "cumsum", (self.term(x),), {"axis": self._axis(x, axis)})

    def do_cumprod(self, value: Value, x: Value, axis: int, dtype: Any = None) -> Term:
        return self._made(value, "cumprod", (self.term(x),), {"axis": self._axis(x, axis)})

    def do_topk(
        self, value: Value, x: Value, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
    ) -> Term:
        if not largest:
            raise _wordless(value, "the least, not the largest")
        return self._made(value, "topk", (self.term(x),), {"k": k, **self._last(x, axis)})

    def do_sort(self, value: Value, x: Value, axis: int = -1, descending: bool = False) -> Term:
        return self._made(value, "sort", (self.term(x),), {**self._last(x, axis), **_if(descending=descending)})

    def do_argsort(self, value: Value, x: Value, axis: int = -1, descending: bool = False) -> Term:
        return self._made(value, "argsort", (self.term(x),), {**self._last(x, axis), **_if(descending=descending)})

    def _last(self, x: Value, axis: int) -> dict[str, Any]:
        axis = self._axis(x, axis)
        return {} if axis == -1 else {"axis": axis}

    # --- weights ------------------------------------------------------------------------------------------------------

    def _linear(self, value: Value, x: Value, weight: Value, bias: Value | None, turned: bool) -> Term:
        """`x W^T + b`, or with a weight that the module keeps as [inputs, features]."""
        features = weight.shape[1 if turned else 0]
        weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        options: dict[str, Any] = {"features": features, **({"bias": "false"} if bias is None else {})}
        return self._made(
            value, "linear", (self.term(x),), options, weights=weights, turned=frozenset({"weight"} if turned else ())
        )

    def do_linear(self, value: Value, x: Value, w: Value, b: Value | None = None) -> Term:
        if w.op == "weight" and (b is None or b.op == "weight"):
            return self._linear(value, x, w, b, turned=False)
        turned = Term("transpose", (self.term(w),), {"a": 0, "b": 1}, shape=w.shape[::-1], source=value)
        product = self._made(value, "matmul", (self.term(x), turned))
        return product if b is None else self._made(value, "+", (product, self.term(b)))

    def do_addmm(self, value: Value, bias: Value, x: Value, w: Value, beta: Any = 1, alpha: Any = 1) -> Term:
        if bias.op == w.op == "weight" and beta == alpha == 1:
            return self._linear(value, x, w, bias, turned=True)
        product = self._made(value, "matmul", (self.term(x), self.term(w)))
        return self._sum(value, bias, product, beta, alpha)

    def do_baddbmm(self, value: Value, bias: Value, x: Value, y: Value, beta: Any = 1, alpha: Any = 1) -> Term:
        product = rewritten(self._made(value, "matmul", (self.term(x), self.term(y))), self.positions)
        return self._sum(value, bias, product, beta, alpha)

    def _sum(self, value: Value, bias: Value, product: Term, beta: Any, alpha: Any) -> Term:
        """`beta * bias + alpha * product`."""
        scaled = rewritten(self._binary(value, "*", product, alpha), self.positions)
        if beta == 0:
            return scaled
        added = self.operand(bias)
        added = self._binary(value, "*", added, beta) if isinstance(added, Term) else added * beta
        return self._binary(value, "+", scaled, added)

    def do_matmul(self, value: Value, x: Value, y: Value) -> Term:
        inner = y.args[0] if y.op in ("t", "numpy_T", "transpose", "permute") else None
        if isinstance(inner, Value) and inner.op == "weight" and len(inner.shape) == 2:
            return self._linear(value, x, inner, None, turned=False)
        if y.op == "weight" and len(y.shape) == 2:
            return self._linear(value, x, y, None, turned=True)
        a, b = self.term(x), self.term(y)
        if len(x.shape) == len(y.shape) == 1:
            return Term("sum", (Term("*", (a, b), shape=a.shape, source=value),), source=value)
        if len(x.shape) == 1:
            a = Term("unsqueeze", (a,), {"axis": 0}, shape=(1, *a.shape), source=value)
            product = Term("matmul", (a, b), shape=(*b.shape[:-2], 1, b.shape[-1]), source=value)
            return self._made(value, "squeeze", (product,), {"axis": -2})
        if len(y.shape) == 1:
            b = Term("unsqueeze", (b,), {"axis": -1}, shape=(*b.shape, 1), source=value)
            product = Term("matmul", (a, b), shape=(*a.shape[:-1], 1), source=value)
            return self._made(value, "squeeze", (product,), {"axis": -1})
        return self._made(value, "matmul", (a, b))

    do_mm = do_bmm = do_mv = do_dot = do_matmul

    def _turned(self, x: Value, value: Value) -> Term:
        """A tensor with its last two axes swapped."""
        return Term("transpose", (self.term(x),), {"a": -2, "b": -1}, shape=_swapped(x.shape), source=value)

    def do_einsum(self, value: Value, pattern: str, xs: Sequence[Value], path: Any = None) -> Term:
        read, _, gives = pattern.replace(" ", "").partition("->")
        groups = read.split(",")
        if "." in pattern or not gives or any(self._merged(x) for x in xs):
            raise _wordless(value, f"the pattern {pattern}")
        if len(groups) == 2 and min(map(len, groups)) > 1 and {g[:-2] for g in (*groups, gives)} == {gives[:-2]}:
            (*_, i, a), (*_, b, c) = map(list, groups)
            if (a, gives[-2:]) == (c, i + b):  # q k^T
                return self._made(value, "matmul", (self.term(xs[0]), self._turned(xs[1], value)))
            if (a, gives[-2:]) == (b, i + c):
                return self._made(value, "matmul", [self.term(x) for x in xs])
        if len(groups) == 2 and len(groups[1]) == 1 and gives == "".join(groups):
            return self.do_outer(value, *xs)
        spaced, result = ", ".join(map(" ".join, groups)), " ".join(gives)
        return self._made(value, "einsum", [self.term(x) for x in xs], {"pattern": f"{spaced} -> {result}"})

    def do_embedding(self, value: Value, table: Value, ids: Value, *rest: Any) -> Term:
        if table.op != "weight":
            return self._made(value, "lookup", (self.term(table), self.term(ids)))
        options = {"rows": table.shape[0], "width": table.shape[1]}
        if self.positions.constant(ids) and (offset := self.positions.arange(ids)) is not None:
            row = Term("indices", options={"length": ids.shape[-1]}, shape=ids.shape[-1:], source=ids)
            row = self._binary(ids, "+", row, offset) if offset else row
            return Term("embedding", (row,), options, {"weight": table}, (*row.shape, table.shape[1]), value)
        return self._made(value, "embedding", (self.term(ids),), options, weights={"weight": table})

    def _norm(self, value: Value, op: str, x: Value, weights: dict[str, Value | None], options: dict[str, Any]) -> Term:
        kept = {name: w for name, w in weights.items() if w is not None}
        if any(w.op != "weight" for w in kept.values()):
            plain = self._made(value, op, (self.term(x),), options | dict.fromkeys(weights, "false"))
            scaled = self._binary(value, "*", plain, self.term(kept["weight"])) if "weight" in kept else plain
            return self._binary(value, "+", scaled, self.term(kept["bias"])) if "bias" in kept else scaled
        options |= {name: "false" for name, w in weights.items() if w is None}
        return self._made(value, op, (self.term(x),), options, weights=kept)

    def do_layer_norm(
        self,
        value: Value,
        x: Value,
        over: Sequence[int],
        w: Value | None = None,
        b: Value | None = None,
        eps: float = 1e-5,
        *rest: Any,
    ) -> Term:
        if len(over) != 1:
            raise _wordless(value, "a norm over several axes")
        return self._norm(value, "layernorm", x, {"weight": w, "bias": b}, {"eps": eps})

    def do_rms_norm(
        self, value: Value, x: Value, over: Sequence[int], w: Value | None = None, eps: float | None = None
    ) -> Term:
        if len(over) != 1:
            raise _wordless(value, "a norm over several axes")
        return self._norm(
            value, "rmsnorm", x, {"weight": w}, {"eps": torch.finfo(torch.float32).eps if eps is None else eps}
        )

    def do_experts(
        self, value: Value, x: Value, chosen: Value, weights: Value, params: Sequence[Value], which: int
    ) -> Term:
        """The operator of `meanings.py`: `expert` is what each computes."""
        how = MEANINGS[which]
        names = [n for n in (how.up, how.down, how.up_bias, how.down_bias) if n is not None]
        named = {self._expert_weight(how, n): w for n, w in zip(names, params, strict=True)}
        count, *sizes = params[1].shape
        options = {"expert": how, "hidden": sizes[0 if how.turned else 1], "count": count}
        turned = frozenset(n for n in named if how.turned and n.endswith(".weight"))
        return self._made(
            value,
            "experts",
            (self.term(x), self.term(weights), self.term(chosen)),
            options,
            weights=named,
            turned=turned,
        )

    def do_declared(self, value: Value, inputs: Sequence[Value], params: Sequence[Value], which: int) -> Term:
        """The operator of `declared.py`: a call of its block."""
        stand = STANDS[which]
        named = dict(zip(stand.weights, params, strict=True))
        options = {n: ("true" if v else "false") if isinstance(v, bool) else v for n, v in stand.hypers.items()}
        self.declarations |= {d.name: d for d in stand.declaration.file.declarations if isinstance(d, ast.BlockDecl)}
        return self._made(value, stand.declaration.block.name, [self.term(x) for x in inputs], options, weights=named)

    @staticmethod
    def _expert_weight(how: Any, name: str) -> str:
        """A weight of the module as one of the expert's block."""
        of_bias = {how.up_bias: how.up, how.down_bias: how.down}
        return f"{of_bias[name]}.bias" if name in of_bias else f"{name}.weight"

    def do_prelu(self, value: Value, x: Value, w: Value) -> Term:
        if w.op != "weight" or w.shape != (1,):
            raise _wordless(value, "a slope for each channel")
        return self._made(value, "prelu", (self.term(x),), {}, weights={"weight": w})

    def do_scaled_dot_product_attention(
        self, value: Value, q: Value, k: Value, v: Value, mask: Value | None = None, dropout: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Term:  # fmt: skip
        head = q.shape[-1]
        options: dict[str, Any] = {}
        tensors = [self.term(q), self.term(k), self.term(v)]
        if is_causal:
            options["mask"] = "causal"
        elif mask is not None:
            read = self.positions.mask(mask) if self.positions.constant(mask) else None
            if read is None and mask.dtype == torch.bool:
                raise _wordless(value, "attention with a mask that depends on more than positions")
            if read is None:
                tensors.append(self.term(mask))
            else:
                options["mask"] = read
        if scale is not None and not (isinstance(head, int) and math.isclose(scale, head**-0.5, rel_tol=1e-6)):
            options["scale"] = scale
        if dropout:
            raise _wordless(value, NOISY)
        return self._made(value, "sdpa", tensors, options)

    def do_conv1d(
        self, value: Value, x: Value, w: Value, b: Value | None = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Term:  # fmt: skip
        """Ours are channels last: [batch, time, channels]."""
        stride, padding, dilation = (p[0] if isinstance(p, list | tuple) else p for p in (stride, padding, dilation))
        w = _viewed(w)
        if w.op != "weight" or not (b is None or b.op == "weight"):
            raise _wordless(value, "a convolution with a computed weight")
        term = rewritten(self._turned(x, value), self.positions)
        if isinstance(padding, int) and padding:
            places = (*term.shape[:-2], term.shape[-2] + 2 * padding, term.shape[-1])
            term = Term("pad", (term,), {"before": padding, "after": padding, "axis": -2}, shape=places, source=value)
        options = {
            "features": w.shape[0],
            "kernel": w.shape[2],
            **_if(1, stride=stride, dilation=dilation, groups=groups),
        }
        options |= {"padding": "same" if padding == "same" else "none", **({"bias": "false"} if b is None else {})}
        weights = {"weight": w} if b is None else {"weight": w, "bias": b}
        inner = Term("conv1d", (term,), options, weights, shape=_swapped(value.shape), source=value)
        inner = rewritten(inner, self.positions)
        return Term("transpose", (inner,), {"a": -2, "b": -1}, shape=value.shape, source=value)

    # --- shapes -------------------------------------------------------------------------------------------------------

    def do_item(self, value: Value, x: Value, i: int) -> Term:
        if x.op == "unbind":
            return self.do_select(value, x.args[0], x.args[1] if len(x.args) > 1 else 0, i)
        if x.op in ("max", "min") and i == 1:
            place = self.do_argmin if x.op == "min" else self.do_argmax
            return place(value, *x.args, **x.options)
        if self.term(x).op == "_constant":
            self.terms[x] = self._called(x)
        term = self.term(x)
        if (x.op in ("max", "min") and i == 0) or (x.op == "declared" and x.results == 1):
            return term
        shape = value.shape
        if isinstance(first := term.args[0], Term) and len(first.shape) == len(shape) + 1:
            shape = (*first.shape[:2], *shape[1:])
        return Term("item", (term,), {"i": i}, shape=shape, source=value)

    def do_unbind(self, value: Value, x: Value, axis: int = 0) -> Term:
        return self.term(x)

    def do_split(self, value: Value, x: Value, size: Any, axis: int = 0) -> Term:
        if not isinstance(size, list | tuple):
            full = [size] * (value.results - 1)
            size = [*full, x.shape[axis] - sum(full)]
        if len({*size}) == 1:
            return self._made(value, "chunk", (self.term(x),), {"parts": len(size), **self._last(x, axis)})
        return self._made(value, "split", (self.term(x),), {"sizes": [*size], **self._last(x, axis)})

    do_split_with_sizes = do_split

    def do_chunk(self, value: Value, x: Value, parts: int, axis: int = 0) -> Term:
        if isinstance(total := x.shape[axis], int) and total % parts:
            return self.do_split(value, x, -(-total // parts), axis)
        return self._made(value, "chunk", (self.term(x),), {"parts": parts, **self._last(x, axis)})

    def do_cat(self, value: Value, xs: Sequence[Value], axis: int = 0) -> Term:
        full = [x for x in xs if 0 not in x.shape]
        if len(full) == 1:
            return self.term(full[0])
        return self._made(value, "concat", [self.term(x) for x in full], self._last(full[0], axis))

    do_concat = do_concatenate = do_cat

    def do_stack(self, value: Value, xs: Sequence[Value], axis: int = 0) -> Term:
        axis %= len(value.shape)
        return self._made(
            value, "stack", [self.term(x) for x in xs], {"axis": -1 if axis == len(value.shape) - 1 else axis}
        )

    def do_slice(self, value: Value, x: Value, axis: int = 0, low: Any = None, high: Any = None, step: int = 1) -> Term:
        term, place = self._along(x, axis)
        size = x.shape[axis]
        low, high = (i + size if isinstance(i, int) and i < 0 and isinstance(size, int) else i for i in (low, high))
        low = None if low == 0 else low
        longest = size if isinstance(size, int) else 1 << 60
        high = None if high == size or (isinstance(high, int) and high > longest) else high
        if low is not None or high is not None:
            term = self._made(value, "index", (term,), {"axis": place, "low": low, "high": high})
        if step == 1:
            return term
        return self._made(value, "every", (term,), {"step": step, "axis": place})

    def do_new_empty(self, value: Value, *rest: Any, **more: Any) -> Term:
        return Term("_empty", shape=value.shape, source=value)

    do_empty = do_empty_like = do_new_empty

    def do_copy(self, value: Value, into: Value, x: Value, *rest: Any) -> Term:
        return self.do_expand(value, x)

    def do_slice_scatter(
        self, value: Value, x: Value, part: Value, axis: int = 0, low: Any = None, high: Any = None, step: int = 1
    ) -> Term:
        """A tensor with a range of an axis written anew: the parts beside each other. What was empty has none."""
        size = x.shape[axis]
        low = 0 if low is None else low
        open_ = (
            high is None
            or high == size
            or (isinstance(high, int) and high >= (size if isinstance(size, int) else MOST))
        )
        if step != 1:
            raise _wordless(value, "a range with a step")
        if low == 0 and open_:
            return self.term(part)
        whole, place = self.term(x), self._axis(x, axis)
        if whole.op == "_empty" and low == 0:
            return self._made(value, "_begun", (self.term(part),), {"axis": place, "high": high})
        if whole.op == "_begun" and open_ and (whole.options["axis"], whole.options["high"]) == (place, low):
            parts = [whole.args[0], self.term(part)]
        elif whole.op in ("_empty", "_begun"):
            raise _wordless(value, "a tensor of which a part stays empty")
        else:
            rest = [(None, low)] if low != 0 else []
            rest += [] if open_ else [(high, None)]
            cuts = [
                Term("index", (whole,), {"axis": place, "low": a, "high": b}, shape=value.shape, source=value)
                for a, b in rest
            ]
            parts = [*cuts[: low != 0], self.term(part), *cuts[low != 0 :]]
        return self._made(value, "concat", parts, {} if place == -1 else {"axis": place})

    def do_narrow(self, value: Value, x: Value, axis: int, start: Any, length: Any) -> Term:
        return self.do_slice(value, x, axis, start, start + length)

    def do_select(self, value: Value, x: Value, axis: int, i: Any) -> Term:
        term, place = self._along(x, axis)
        return self._made(value, "index", (term,), {"axis": place, "at": i})

    def do_transpose(self, value: Value, x: Value, a: int, b: int) -> Term:
        rank = len(x.shape)
        places = sorted(i % rank for i in (a, b))
        term, _ = self._along(x, places[0])
        if len(term.shape) > rank or places == [rank - 2, rank - 1]:
            places = [i - rank for i in places]
        return self._made(value, "transpose", (term,), {"a": places[0], "b": places[1]})

    do_swapaxes = do_swapdims = do_transpose

    def do_mT(self, value: Value, x: Value) -> Term:  # noqa: N802 - PyTorch's name
        return self.do_transpose(value, x, -2, -1)

    def do_numpy_T(self, value: Value, x: Value) -> Term:  # noqa: N802 - PyTorch's name
        return self.do_permute(value, x, [*range(len(x.shape))][::-1])

    do_t = do_numpy_T

    def do_permute(self, value: Value, x: Value, axes: Sequence[int]) -> Term:
        term = self.term(x)
        places = [a % len(x.shape) for a in axes]
        if self._merged(x) and places[0] != 0:
            term = self._unmerged(x)
        elif self._merged(x):
            places = [0, *(a + 1 for a in places)]
        moved = [i for i, a in enumerate(places) if i != a]
        if len(moved) == 2:
            a, b = moved if moved[1] < len(places) - 1 or moved[0] != moved[1] - 1 else (-2, -1)
            return self._made(value, "transpose", (term,), {"a": a, "b": b})
        return self._made(value, "permute", (term,), {"axes": places}) if moved else term

    def do_unsqueeze(self, value: Value, x: Value, axis: int) -> Term:
        axis %= len(value.shape)
        term = self._unmerged(x) if axis == 0 else self.term(x)
        place = axis + len(term.shape) - len(x.shape)
        if place < 0:  # before axes of size 1 that were left out
            return term
        shape = (*term.shape[:place], 1, *term.shape[place:])
        if axis == len(x.shape) or len(term.shape) > len(x.shape):
            place -= len(shape)
        return Term("unsqueeze", (term,), {"axis": place}, shape=shape, source=value)

    def do_squeeze(self, value: Value, x: Value, axis: Any = None) -> Term:
        axes = (
            [i for i, s in enumerate(x.shape) if s == 1]
            if axis is None
            else [axis]
            if isinstance(axis, int)
            else [*axis]
        )
        axes = [a for a in axes if x.shape[a] == 1]
        term = self.term(x)
        for place in sorted((a % len(x.shape) - len(x.shape) for a in axes), key=lambda a: a):
            rank = len(term.shape)
            shape = (*term.shape[: rank + place], *term.shape[rank + place + 1 :])
            term = Term("squeeze", (term,), {"axis": place}, shape=shape, source=value)
        return term

    def do_expand(self, value: Value, x: Value, sizes: Any = None, implicit: bool = False) -> Term:
        term = self.term(x)
        for _ in range(len(value.shape) - len(x.shape)):
            term = Term("unsqueeze", (term,), {"axis": 0}, shape=(1, *term.shape), source=value)
        wanted = (*term.shape[:2], *value.shape[1:]) if self._merged(x) else value.shape
        for i, (old, new) in enumerate(zip(term.shape, wanted, strict=False)):
            if old != new:
                shape = (*term.shape[:i], new, *term.shape[i + 1 :])
                term = Term("expand", (term,), {"axis": i, "size": new}, shape=shape, source=value)
        return term

    do_broadcast_to = do_expand_as = do_expand

    def do_repeat_interleave(
        self, value: Value, x: Value, times: Any, axis: int | None = None, output_size: Any = None
    ) -> Term:
        if axis is None and len(x.shape) == 1:
            axis = 0
        if axis is None or isinstance(times, Value):
            raise _wordless(value, "all axes, repeated as one" if axis is None else "each as often as a tensor says")
        return self._made(value, "repeat", (self.term(x),), {"times": times, "axis": self._axis(x, axis)})

    def do_repeat(self, value: Value, x: Value, times: Sequence[int]) -> Term:
        """`repeat` of torch is `tile` here."""
        term = self.term(x)
        times = [1] * (len(value.shape) - len(times)) + [*times]
        for _ in range(len(value.shape) - len(x.shape)):
            term = Term("unsqueeze", (term,), {"axis": 0}, shape=(1, *term.shape), source=value)
        for i, n in enumerate(times):
            if n != 1:
                shape = (*term.shape[:i], _total((term.shape[i], n)), *term.shape[i + 1 :])
                how = {"axis": i, "size": n} if term.shape[i] == 1 else {"times": n, "axis": i}
                term = Term("expand" if term.shape[i] == 1 else "tile", (term,), how, shape=shape, source=value)
        return term

    do_tile = do_repeat

    def do_flip(self, value: Value, x: Value, axes: Sequence[int]) -> Term:
        term = self.term(x)
        for axis in axes:
            term = self._made(value, "flip", (term,), {"axis": self._axis(x, axis)})
        return term

    def do_roll(self, value: Value, x: Value, by: Sequence[int], axes: Sequence[int] = ()) -> Term:
        if not axes:
            raise _wordless(value, "all axes, rolled as one")
        term = self.term(x)
        for step, axis in zip(by, axes, strict=True):
            term = self._made(value, "roll", (term,), {"by": step, "axis": self._axis(x, axis)})
        return term

    def do_tril(self, value: Value, x: Value, by: int = 0) -> Term:
        raise _wordless(value, "a triangle of what is not a mask")

    do_triu = do_tril

    def do_pad(self, value: Value, x: Value, pads: Sequence[int], mode: str = "constant", number: Any = 0) -> Term:
        if mode != "constant":
            raise _wordless(value, f"padding by {mode}")
        term = self.term(x)
        for i in range(0, len(pads), 2):
            axis = -1 - i // 2
            before, after = pads[i], pads[i + 1]
            rank = len(term.shape) + axis
            if before < 0 or after < 0:  # that many are cut off
                size = term.shape[rank] + min(before, 0) + min(after, 0)
                options = {"axis": axis, "low": -before if before < 0 else None, "high": after if after < 0 else None}
                shape = (*term.shape[:rank], size, *term.shape[rank + 1 :])
                term = Term("index", (term,), options, shape=shape, source=value)
            before, after = max(before, 0), max(after, 0)
            if before or after:
                shape = (*term.shape[:rank], term.shape[rank] + before + after, *term.shape[rank + 1 :])
                options = {**_if(0, before=before, after=after), "axis": axis, **_if(0, value=number or 0)}
                term = Term("pad", (term,), options, shape=shape, source=value)
        return term

    def do_constant_pad_nd(self, value: Value, x: Value, pads: Sequence[int], number: Any = 0) -> Term:
        return self.do_pad(value, x, pads, number=number)

    def do_gather(self, value: Value, x: Value, axis: int, ids: Value, **more: Any) -> Term:
        return self._made(value, "gather", (self.term(x), self.term(ids)), self._last(x, axis))

    def do_scatter(self, value: Value, x: Value, axis: int, ids: Value, values: Any) -> Term:
        into, places = self.term(x), self.term(ids)
        what = self.term(values) if isinstance(values, Value) else self._filled(value, values, places.shape)
        return self._made(value, "scatter", (into, places, what), self._last(x, axis))

    def do_index(self, value: Value, x: Value, ids: Sequence[Value | None]) -> Term:
        given = [(axis, i) for axis, i in enumerate(ids) if i is not None]
        if len(given) > 1:
            raise _wordless(value, "indexing by several tensors")
        return self._indexed(value, x, *given[0])

    def do_index_select(self, value: Value, x: Value, axis: int, ids: Value) -> Term:
        return self._indexed(value, x, axis % len(x.shape), ids)

    def _indexed(self, value: Value, x: Value, axis: int, ids: Value) -> Term:
        """A tensor at the positions of another along an axis: a range of it where these are constant, else the rows of
        a table."""
        positions = self._positions(ids) if self.positions.constant(ids) else None
        if positions is not None and (bounds := _range(positions, x.shape[axis])) is not None:
            return self.do_slice(value, x, axis, *bounds)
        if axis == 0 and ids.dtype != torch.bool:
            return self._made(value, "lookup", (self.term(x), self.term(ids)))
        if self.positions.constant(ids) and self.positions.arange(ids) == 0 and x.shape[axis] == TIME:
            return self.term(x)
        raise _wordless(value, "positions that are no range of the axis")

    def _positions(self, ids: Value) -> list[int] | None:
        """The positions that a constant of one axis gives, or at which it is true, if these are the same at every
        length."""
        if len(ids.shape) != 1 or not isinstance(ids.shape[0], int):
            return None
        first, second = (self.positions.at(ids, time) for time in self.positions.few[:2])
        if not torch.equal(first, second):
            return None
        found = first.nonzero().flatten() if first.dtype == torch.bool else first
        return [int(n) for n in found]

    def do_arange(self, value: Value, *args: Any, **more: Any) -> Term:
        low, _, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
        places = Term("indices", options={"length": value.shape[0]}, shape=value.shape, source=value)
        scaled = self._binary(value, "*", places, step)
        return self._binary(value, "+", scaled, low)

    def do_full(self, value: Value, *args: Any, fill_value: Any = None, **more: Any) -> Term:
        return self._filled(value, args[-1] if fill_value is None else fill_value)

    def do_zeros(self, value: Value, *args: Any, **more: Any) -> Term:
        return self._filled(value, 0)

    def do_ones(self, value: Value, *args: Any, **more: Any) -> Term:
        return self._filled(value, 1)

    do_full_like = do_new_full = do_full
    do_zeros_like = do_new_zeros = do_zeros
    do_ones_like = do_new_ones = do_ones

    def _filled(self, value: Value, number: Any, shape: Sequence[Size] | None = None) -> Term:
        """A tensor of one number, by default in the shape of the value, or of the term that it is made like."""
        if shape is None:
            like = next((v for v in value.operands() if v.shape == value.shape and self._merged(v)), None)
            shape = value.shape if like is None else self.term(like).shape
        word = {0: "zeros", 1: "ones"}.get(number)
        options = {**({} if word else {"value": number}), "dims": [*shape]}
        return Term(word or "fill", (), options, shape=tuple(shape), source=value)

    def do_view(self, value: Value, x: Value, *rest: Any, **more: Any) -> Term:
        """A reshape as axes that are merged and cut."""
        if value.dtype != x.dtype:
            raise _wordless(value, "the bits of a tensor as another type")
        term = self.term(x)
        old, new = term.shape, value.shape
        if old == new or (self._merged(x) and (*new[:1],) == x.shape[:1] and old[2:] == new[1:]):
            return term
        if self._merged(x) and new[:1] == x.shape[:1]:  # what stays two in one
            new = (*old[:2], *new[1:])
        if (
            not self._merged(x)
            and 1 not in old[:2]
            and len(new) == len(old) - 1
            and new[1:] == old[2:]
            and _total(old[:2]) == _total(new[:1])
        ):
            return term  # becomes two in one
        steps = _steps(old, new)
        if steps is None:
            raise _wordless(value, f"a view of {[*old]} as {[*new]}")
        if len(steps[0][0]) == 2 and len(steps[0][1]) == 1 and not isinstance(steps[0][1][0], int):
            new = (*old[:2], *new[1:])  # two in one from here on
            steps = [((s,), (s,)) for s in old[:2]] + steps[1:]
        at = 0
        for was, now in steps:
            if len(was) == len(now) == 1:
                at += 1
                continue
            shape, rank = term.shape, len(term.shape)
            if len(was) > 1:
                shape = (*shape[:at], _total(was), *shape[at + len(was) :])
                term = Term("flatten", (term,), {"first": at, "last": at + len(was) - 1}, shape=shape, source=value)
            elif not was:
                shape = (*shape[:at], 1, *shape[at:])
                term = Term("unsqueeze", (term,), {"axis": at}, shape=shape, source=value)
                at += 1
                continue
            if not now:
                shape = (*shape[:at], *shape[at + 1 :])
                term = Term("squeeze", (term,), {"axis": at}, shape=shape, source=value)
            elif len(now) > 1:
                rank = len(term.shape)
                axis = -1 if at == rank - 1 else at
                shape = (*shape[:at], *now, *shape[at + 1 :])
                term = Term("unflatten", (term,), {"axis": axis, "sizes": [*now]}, shape=shape, source=value)
            term = rewritten(term, self.positions)
            at += len(now)
        return term

    do_reshape = do_flatten = do_unflatten = do__unsafe_view = do_ravel = do_view_as = do_reshape_as = do_view


MOST = 1 << 60
"""The end of a range that is open has this size or more."""
NOISY = "dropout that is on outside training: `training=self.training` turns it off"
MOST_NUMBERS = 4096
"""A table with more numbers is no text for a reader."""


def _range(positions: Sequence[int], size: Size) -> tuple[int | None, int | None, int] | None:
    """Start, end and step of the slice of an axis that gives these positions, of which some may count from the end;
    None where there is none."""
    if isinstance(size, int):
        positions = [p % size for p in positions]
    steps = {b - a for a, b in pairwise(positions)} or {1}
    step = steps.pop()
    if not positions or steps or step < 1 or positions[0] < 0 <= positions[-1]:
        return None
    end = positions[-1] + 1
    return positions[0], end if end else None, step


def _if(default: Any = False, **options: Any) -> dict[str, Any]:
    """The options that differ from their default."""
    return {k: "true" if v is True else v for k, v in options.items() if v != default}


def _viewed(weight: Value) -> Value:
    """The weight of which a value is a view in the same shape."""
    inner = weight
    while inner.op in ("unsqueeze", "squeeze", "view", "reshape", "to", "contiguous"):
        inner = inner.args[0]
    return inner if inner.op == "weight" and inner.shape == weight.shape else weight


def _swapped(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _total(sizes: Iterable[Size]) -> Size:
    product = sympy.Integer(1)
    for size in sizes:
        product = product * size
    product = sympy.expand(product)
    return int(product) if product.is_Integer else product


def _steps(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[tuple[Size, ...], tuple[Size, ...]]] | None:
    """Groups of neighbouring axes with the same number of elements before and after, each as small as can be; None
    where a group cuts and merges at once and nothing else."""
    steps: list[tuple[tuple[Size, ...], tuple[Size, ...]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and old[i] == 1 and (j == len(new) or new[j] != 1):
            steps.append(((1,), ()))
            i += 1
            continue
        if j < len(new) and new[j] == 1 and (i == len(old) or old[i] != 1):
            steps.append(((), (1,)))
            j += 1
            continue
        if i == len(old) or j == len(new):
            return None
        a, b = i + 1, j + 1
        while (before := _total(old[i:a])) != (after := _total(new[j:b])):
            quotient = sympy.cancel(sympy.sympify(after) / before)
            grows = sympy.fraction(quotient)[0] != 1
            if grows and a < len(old):
                a += 1
            elif b < len(new):
                b += 1
            else:
                return None
        steps.append((tuple(old[i:a]), tuple(new[j:b])))
        i, j = a, b
    return steps


def _where(value: Value) -> list[str]:
    """The module that was being called and the line of its source."""
    module = [f"in `{value.places[-1].path}`, a {value.places[-1].cls}"] if value.places else []
    line = [f"{value.frames[-1].file}:{value.frames[-1].line}"] if value.frames else []
    return module + line


def _wordless(value: Value, why: str = "") -> ArchError:
    said = f": {why}" if why else ""
    return error(
        "E0542", f"`{value.op}` of {[list(v.shape) for v in value.operands()]} has no words{said}", notes=_where(value)
    )
