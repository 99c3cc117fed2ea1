"""Signatures: which tensor is which, what it holds, how many axes it has and how long they are. Primitives and declared
blocks are matched here alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from archdsl.diagnostics import ArchError, Label, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.block_builder import BlockBuilder
from archdsl.frontend.headers import axes_of, hypers_of, tensor_kind, tensor_params
from archdsl.frontend.scopes import ABSENT, MISSING, Absent, BlockCall, BodyState, Given, Scope
from archdsl.frozen import Frozen
from archdsl.ir import dims
from archdsl.ir.conditions import fraction
from archdsl.ir.dims import Expr, Num, Poly, Shape, Var, axis_name, expr_text, literal, num, shape_text
from archdsl.ir.graph import BOOLEANS, FLOATS, INTEGERS, Input, Value
from archdsl.ir.op import Primitive
from archdsl.ir.ranges import ROUND, whole_size
from archdsl.ir.signature import promoted
from archdsl.ir.static import Declared, kind_of
from archdsl.ir.wording import dim_words, format_name, format_number, holds, listed
from archdsl.syntax import ast

FITS: dict[str, tuple[str, ...]] = {
    "float": FLOATS,
    "float32": ("float32",),
    "bfloat16": ("bfloat16",),
    "number": (*INTEGERS, *FLOATS),
    **dict.fromkeys(INTEGERS, INTEGERS),
    **dict.fromkeys(BOOLEANS, BOOLEANS),
}
"""The types of tensors that fit a written one. Without one, all do."""

TAKEN = {
    "float": "real numbers",
    "float32": "real numbers of type float32",
    "bfloat16": "real numbers of type bfloat16",
    "number": "numbers",
    **dict.fromkeys(INTEGERS, "whole numbers"),
    **dict.fromkeys(BOOLEANS, "tensors of true and false"),
}


class Signature(Frozen):
    """The tensors that a primitive or a declared block takes, and where it is applied."""

    name: str
    params: Sequence[ast.TensorParam]
    span: Span
    variadic: bool = False
    """Whether the last of the tensors may be given any number of times."""
    one_type: Sequence[str] = ()
    """Tensors that hold numbers of one type."""
    text: str = ""
    """A primitive's signature as the language writes it."""

    @classmethod
    def of(cls, target: Primitive | Declared, span: Span, name: str = "") -> Signature:
        """The signature of a primitive or of a declared block, applied at `span`."""
        if isinstance(target, Primitive):
            params = target.header.tensors or ()
            return cls(target.name, params, span, target.variadic, target.one_type, target.signature)
        return cls(name or target.name, tensor_params(target), span)

    @property
    def notes(self) -> list[str]:
        """What an error says of a primitive, whose declaration no file shows."""
        return [f"its signature is {self.text}"] if self.text else []

    def param(self, i: int) -> ast.TensorParam:
        """What input i is an input for."""
        return self.params[min(i, len(self.params) - 1)]

    def pairs(self, tensors: Sequence[Given], named: Mapping[str, Given]) -> list[tuple[ast.TensorParam, Any, Span]]:
        """Each tensor with what is given for it: by its name, or in order. ABSENT stands for one that was left out,
        None for one that is not given. Raises E0203 and E0205."""
        found, rest = dict(named), list(tensors)
        for param in self.params:
            if rest and param.name not in found:
                found[param.name] = rest.pop(0)
        if rest and not self.variadic:
            takes = listed(p.name for p in self.params) or "no tensors"
            more = f"{len(rest)} {'more ' if self.params else ''}tensor{'s were' if len(rest) > 1 else ' was'} given"
            raise error("E0205", f"`{self.name}` takes {takes}, and {more}", rest[0][1], notes=self.notes)
        given = [(p, *found.get(p.name, (None, self.span))) for p in self.params]
        given += [(self.params[-1], value, span) for value, span in rest]
        for param, value, span in given:
            if value is None and param.default is None:
                text = f"`{self.name}` still needs its tensor `{param.name}`"
                raise error("E0205", text, self.span, notes=self.notes)
            if isinstance(value, Absent) and param.default is None:
                text = f"`{self.name}` needs `{param.name}`, which was left out here"
                raise error("E0203", text, span, help=f"guard it: `if {span.text} != none {{ … }}`")
            if isinstance(value, list) and not self.variadic:
                text = f"`{param.name}` of `{self.name}` is one tensor, and this is a list of them"
                raise error("E0205", text, span)
        # A list of tensors stands for its elements: concat(skips).
        return [(p, v, span) for p, value, span in given for v in (value if isinstance(value, list) else [value])]

    # --- what tensors hold --------------------------------------------------------------------------------------------

    def demand_kind(self, param: ast.TensorParam, value: Value | Num, span: Span | None, frame: BlockBuilder) -> None:
        """Raises E0304 where a tensor holds something else than the signature says, or where a number stands for what
        is none."""
        which = f" as `{param.name}`" if len(self.params) > 1 else ""
        kind = tensor_kind(param.type)
        takes = f"`{self.name}` takes {TAKEN.get(kind or '')}{which}"
        demand_kind(kind, value, takes, self.span, self._label(value, span), frame)

    def demand_one_type(self, inputs: Sequence[tuple[ast.TensorParam, Any, Span | None]], frame: BlockBuilder) -> None:
        """Raises E0304 where tensors that PyTorch does not bring together are of different types."""
        alike = [(v, span) for p, v, span in inputs if p.name in self.one_type and isinstance(v, Value)]
        for value, span in alike[1:]:
            first = alike[0][0]
            if promoted([value]) != promoted([first]):
                raise error(
                    "E0304",
                    f"`{self.name}` takes {'tensors' if len(self.params) == 1 else listed(self.one_type)} of one type, "
                    f"but {format_name(first)} is {first.dtype} and {format_name(value)} is {value.dtype}",
                    self.span,
                    labels=self._label(value, span) + frame.typed(value, self.span) + frame.typed(first, self.span),
                    help=f"bring them together first: `cast({promoted([first, value])})`",
                )

    # --- their axes ---------------------------------------------------------------------------------------------------

    def axes(self, param: ast.TensorParam, value: Value, span: Span | None) -> list[tuple[ast.Expr, range]]:
        """Which axes each entry of the written shape stands for. Raises E0302 where the tensor has more or fewer."""
        entries = axes_of(param.type.dims, value.rank)
        if entries is None:
            axes = "1 axis" if value.rank == 1 else f"{value.rank} axes"
            raise error(
                "E0302",
                f"`{self.name}` takes {param.name}: {param.type.span.text}, "
                f"but {format_name(value)} has {axes}: {shape_text(value.shape)}",
                self.span,
                labels=self._label(value, span) or self._origin(value),
            )
        return entries

    def _label(self, value: Any, span: Span | None) -> list[Label]:
        """What was given, where that is not the place of the error itself."""
        if span is None or span == self.span or not isinstance(value, Value):
            return []
        return [Label(span, f"{f'`{value.name}`' if value.name else 'this'} is {shape_text(value.shape)}")]

    def _origin(self, value: Value) -> list[Label]:
        """Where a tensor comes from."""
        return [Label(value.span, "it was made here")] if value.span and value.span != self.span else []


def demand_kind(
    kind: str | None,
    value: Value | Num,
    takes: str,
    span: Span,
    labels: Sequence[Label] = (),
    frame: BlockBuilder | None = None,
) -> None:
    """Raises E0304 where a tensor is not of a written type; `takes` says who wrote it. The `frame` knows where the
    tensor came to its type."""
    if kind is None:
        return
    if isinstance(value, Num):
        if kind in BOOLEANS:
            help_ = "compare first: `x != 0`; a choice at compile time is `if condition then a else b`"
            raise error("E0304", f"{takes}, but a number was given", span, help=help_)
    elif value.dtype not in FITS[kind]:
        text = f"{takes}, but {format_name(value)} holds {holds(value, exact=kind in FLOATS)}"
        if frame is not None and kind in FLOATS:
            labels = [*labels, *frame.typed(value, span)]
        raise error("E0304", text, span, labels=labels, help=_cure(kind, value))


def demand_written(
    what: str, type_: ast.TensorType, value: Value, span: Span, frame: BlockBuilder | None = None
) -> None:
    """Raises E0304 where a tensor is not of the type that a statement or a result gives it."""
    kind = tensor_kind(type_)
    demand_kind(kind, value, f"{what} is declared as {kind}[…], {TAKEN.get(kind or '')}", span, (), frame)


def _cure(kind: str, value: Value) -> str:
    """How to come to a tensor of a kind from one that is not."""
    if kind in BOOLEANS:
        return "compare first: `x != 0`"
    if kind in INTEGERS:
        return "ids are declared `token[batch, time]` or `int[batch, time]`; `cast(int)` makes whole numbers of others"
    if value.dtype == "token":
        return "token ids are looked up first: `tokens -> embedding(vocab, width)`"
    if kind == "number":
        return "make it one of numbers first: `cast(int)` or `cast(float)`"
    return f"make it one of real numbers first: `cast({kind})`"


class Signatures:
    """Compares the axes of tensors with those that are declared."""

    def __init__(self, state: Elaboration) -> None:
        self.state = state

    # --- tensors ------------------------------------------------------------------------------------------------------

    def match_inputs(
        self,
        op: Primitive,
        inputs: Sequence[Input],
        spans: Sequence[Span | None],
        options: Mapping[str, Any],
        frame: BlockBuilder,
        span: Span,
    ) -> dict[str, Num]:
        """The sizes of the axes that a primitive's signature names, apart from those that are options. Raises E0301,
        E0302 and E0304."""
        signature = Signature.of(op, span)
        given = [
            (signature.param(i), value, spans[i] if i < len(spans) else None)
            for i, value in enumerate(inputs)
            if value is not None
        ]
        numbers = {k: v for k, v in options.items() if isinstance(v, Num)}
        scope = Scope(self.state.module, frame, BodyState())
        scope.vars.update(numbers)
        shaped = []
        for param, value, where in given:
            signature.demand_kind(param, value, where, frame)
            if isinstance(value, Value) and not _any_shape(param.type):
                _bind_axes(signature, param, value, scope, where, None, {})
                shaped.append((param, value))
        signature.demand_one_type(given, frame)
        for param, value in shaped:
            self._same_axes(signature, param, value, scope)
        return {k: v for k, v in scope.vars.items() if k not in numbers}

    def check_shapes(self, call: BlockCall, scope: Scope, given: Mapping[str, Any]) -> None:
        """Sizes of the signature that are expressions, numbers or hyper-parameters must be those of the tensors."""
        signature = Signature.of(call.declared, call.span, call.template.name)
        for param in signature.params:
            value = given.get(param.name)
            if isinstance(value, Value):
                self._same_axes(signature, param, value, scope)

    def _same_axes(self, signature: Signature, param: ast.TensorParam, value: Value, scope: Scope) -> None:
        what = f"`{param.name}` of `{signature.name}`"
        self.same_dims(param.type, value, scope, what, signature.span, bind=False)

    def same_dims(
        self, type_: ast.TensorType, value: Value, scope: Scope, what: str, span: Span, *, bind: bool
    ) -> Shape:
        """Compare a shape with a written one; its sizes as they are written. With `bind` a name that is not bound yet
        is bound by it. Raises E0301 or E0302."""
        entries = axes_of(type_.dims, value.rank)
        if entries is None:
            fixed = len(type_.dims) - any(isinstance(d, ast.Ellipsis) for d in type_.dims)
            text = f"{what} is written with {fixed} axes, {type_.span.text}, and has {value.rank}"
            way = (
                "an index or a reduction such as `mean(1)` drops an axis"
                if value.rank > fixed
                else "`unsqueeze(axis)` adds one"
            )
            raise error("E0302", f"{text}: {shape_text(value.shape)}", span, help=way)
        result = list(value.shape)
        for dim, axes in entries:
            if isinstance(dim, ast.Ellipsis):
                continue
            size = value.shape[axes.start]
            if isinstance(dim, ast.Name) and bind and scope.get(dim.id) is MISSING:
                result[axes.start] = scope.vars[dim.id] = _new_name(dim.id, size, scope)
                continue
            wanted = self._size_of(dim, scope)
            if not isinstance(wanted, Num):
                raise error("E0203", f"a size is a number, and `{dim.span.text}` is {kind_of(wanted)}", dim.span)
            wanted = whole_size(wanted, "int", "a size", dim.span)
            scope.frame.demand_size(wanted, "int")
            if isinstance(wanted.value, Poly) and wanted.value.denominator != 1 and "/" in expr_text(wanted.expr):
                divides(wanted, scope, dim.span)
            if not scope.frame.same(size, wanted, f"{what} has the shape that is written") and not (
                dims.equal_where_whole(size.value, wanted.value)
            ):
                text = f"{what} is {shape_text(value.shape)}, and its axis `{dim.span.text}` should be {wanted}"
                raise error("E0301", text, span, labels=_size_labels(dim, size, wanted, span))
            result[axes.start] = Num(wanted.value, wanted.expr, size.origin)
        return tuple(result)

    def _size_of(self, dim: ast.Expr, scope: Scope) -> Any:
        """What a written size comes to. Raises E0206 for a name in an expression that no axis binds."""
        try:
            return self.state.ev(dim, scope)
        except ArchError as problem:
            (first, *_) = problem.diagnostics
            if first.code != "E0206" or first.help or isinstance(dim, ast.Name):
                raise
            help_ = f"a name alone takes the size of its axis: write one, such as `rows`, for `{dim.span.text}`"
            raise ArchError([replace(first, help=help_)]) from None


def match_tensors(call: BlockCall, scope: Scope, bind: dict[str, Expr] | None) -> tuple[dict[str, Any], dict[str, Num]]:
    """Tensors by the block's names, and the hyper-parameters that their axes give a size. The other axes are bound
    in the scope. With `bind` each tensor becomes a value of the block's own, and `bind` gets what its sizes are for
    the caller."""
    signature = Signature.of(call.declared, call.span, call.template.name)
    given: dict[str, Any] = {}
    sizes: dict[str, Num | None] = dict.fromkeys(hypers_of(call.template))
    for param, value, where in signature.pairs(call.tensors, call.named):
        if isinstance(value, Value):
            signature.demand_kind(param, value, where, call.scope.frame)
            given[param.name] = _bind_axes(signature, param, value, scope, where, bind, sizes)
        elif value is None and isinstance(param.default, ast.Name) and param.default.id in given:
            # `memory = x`: one tensor under two names, which is the block's own already.
            other = given[param.name] = given[param.default.id]
            if isinstance(other, Value):
                _bind_axes(signature, param, other, scope, where, None, sizes)
        else:
            given[param.name] = ABSENT
    return given, {name: size for name, size in sizes.items() if size is not None}


def demand_whole(size: Num, what: str, scope: Scope, span: Span) -> None:
    """`time / 4` as a size makes "4 divides time" a condition on the input. Raises E0401 for what only the running
    model knows and no condition makes whole: `sqrt(time)`."""
    if not isinstance(size.value, Poly) or scope.frame.surely_whole(size.value):
        return
    if not dims.is_size_like(dims.mul(size.value, size.value.denominator)):
        text = f"{what} must be a whole number, and `{format_number(size)}` need not be one"
        raise error("E0401", text, span, help=ROUND)
    divides(size, scope, span)


def divides(size: Num, scope: Scope, span: Span) -> None:
    """`time / 4` makes "4 divides time" a condition on the input. Raises E0401 where a name in it is no whole
    number: the emitted code would compute in floats."""
    assert isinstance(size.value, Poly)
    made_of = dims.substitute(size.expr, scope.frame.local)
    for name, number in (_known(size.expr, scope) | _known(made_of, scope)).items():
        if not isinstance(dims.expr_value(number), int):
            text = f"`{format_number(size)}` must be a whole number, and `{name}` in it is {expr_text(number)}"
            raise error("E0401", text, span, help=ROUND)
    top, bottom, expr = size, num(1), size.expr
    while isinstance(expr, dims.Bin) and expr.op == "/" and not dims.is_size_like(top.value):
        by = dims.expr_value(dims.substitute(expr.right, _known(expr.right, scope)))
        if not isinstance(by, int):
            break
        bottom = dims.binary("*", bottom, Num(by, expr.right))
        top, expr = Num(dims.mul(top.value, by), expr.left, size.origin), expr.left
    if not dims.is_size_like(top.value):
        d = size.value.denominator
        above, below = fraction(size.expr)
        whole = above if below == dims.literal(d) else dims.Bin("*", dims.literal(d), size.expr)
        top, bottom = Num(dims.mul(size.value, d), dims.shortest(whole, {}), size.origin), num(d)
    scope.frame.condition("%", top, bottom, f"{format_number(top)} must be a multiple of {bottom}", span)


def _known(expr: Expr, scope: Scope) -> dict[str, Expr]:
    """The names of an expression that stand for numbers, and these."""
    found: dict[str, Expr] = {}
    for name in dims.free_names(expr):
        value = scope.get(name)
        if not isinstance(value, Num) or value.expr != Var(name):
            value = scope.frame.known.get(name)
        if isinstance(value, Num) and not isinstance(value.value, Poly):
            found[name] = literal(value.value)
    return found


def _any_shape(type_: ast.TensorType) -> bool:
    """Whether every shape fits: `[...]`."""
    return len(type_.dims) == 1 and isinstance(type_.dims[0], ast.Ellipsis)


def _bind_axes(
    signature: Signature,
    param: ast.TensorParam,
    value: Value,
    scope: Scope,
    span: Span | None,
    bind: dict[str, Expr] | None,
    sizes: dict[str, Num | None],
) -> Value:
    """Bind the names of a tensor's axes: in the scope, or, of those that are hyper-parameters, in `sizes`. With `bind`
    the result is a value of the block's own, its sizes under its own names, and `bind` gets what they are for the
    caller."""
    shape: list[Num] = []
    for dim, axes in signature.axes(param, value, span):
        named = isinstance(dim, ast.Name) and dim.id not in scope.vars and "." not in dim.id
        known = scope.frame.axes.get(dim.id) if isinstance(dim, ast.Name) and bind is not None else None
        if isinstance(dim, ast.Name) and bind is not None and dim.id in bind:
            named = False  # it names an axis already: that others are equal is still to be seen
        for i in axes:
            size = value.shape[i]
            if isinstance(dim, ast.Name) and bind is not None and known is not None and bind.get(dim.id) == size.expr:
                shape.append(known.at(size.origin))  # the same to the letter, whatever the numbers are
                continue
            name = dim.id if named and isinstance(dim, ast.Name) else axis_name(param.name, i)
            if bind is not None:
                bind[name] = size.expr
                size = size.named(name)
            if named and name not in sizes:
                scope.vars[name] = size
                if bind is not None:
                    scope.frame.axes[name] = size
            elif named and sizes[name] is None:
                # One with a default is compared with it later; one without takes the size.
                sizes[name] = size
            shape.append(size)
    if bind is None:
        return value
    scope.frame.tensors.add(param.name)
    kind = param.type.kind
    dtype = kind if kind in (*INTEGERS, *BOOLEANS) else value.dtype
    return scope.frame.own(Value(tuple(shape), dtype, param.name, param.span, True))


def _new_name(name: str, size: Num, scope: Scope) -> Num:
    """A size under the name that a written shape gives it."""
    frame = scope.frame
    if not scope.body.inline and size.static and dims.free_names(size.expr) and size.expr != Var(name):
        frame.local.setdefault(name, size.expr)
    return size.named(name) if size.static and frame.local.get(name) == size.expr else size


def _size_labels(dim: ast.Expr, size: Num, wanted: Num, span: Span) -> list[Label]:
    """Where the two sizes that differ come from."""
    labels = []
    if size.origin is not None and size.origin != span:
        labels.append(Label(size.origin, f"{size} comes from here"))
    if wanted.origin is not None and wanted.origin not in (span, dim.span, size.origin):
        labels.append(Label(wanted.origin, f"{wanted} comes from here"))
    return [*labels, Label(dim.span, f"this asks for {dim_words(dim.span.text, wanted)}")]
