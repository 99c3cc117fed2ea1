"""Declared blocks: their tensors, sizes and hyper-parameters against their signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from archdsl.diagnostics import ArchError, Label, error
from archdsl.ir import dims
from archdsl.ir.dims import Expr, Lit, Num, Poly, Shape, Var, expr_text, literal, num, shape_text
from archdsl.ir.elaborate.base import Elaboration
from archdsl.ir.elaborate.headers import axes_of, default_none, hypers_of, tensor_kind, tensor_params
from archdsl.ir.elaborate.scope import ABSENT, MISSING, Absent, Given, Scope
from archdsl.ir.frame import Frame
from archdsl.ir.graph import Value
from archdsl.ir.site import coerce, whole_size
from archdsl.ir.static import Declared, Template, kind_of
from archdsl.ir.wording import dim_words, listed, origins, spelled
from archdsl.source import Span
from archdsl.syntax import ast

FITS = {
    "token": "int",
    "int": "int",
    "documents": "int",
    "bool": "bool",
    "padding": "bool",
    "float": "float",
    "float32": "float",
    "bfloat16": "float",
}
"""What a tensor holds that fits a written type."""


class Signatures(Elaboration):
    """Matches what is given with what is declared."""

    # --- tensors ------------------------------------------------------------------------------------------------------

    def match_tensors(
        self,
        template: Template,
        tensors: Sequence[Given],
        named: Mapping[str, Given],
        scope: Scope,
        span: Span,
        bind: dict[str, Expr] | None,
    ) -> tuple[dict[str, Any], dict[str, Num]]:
        assert isinstance(template.target, Declared)
        params = tensor_params(template.target)
        found: dict[str, Given] = dict(named)
        rest = list(tensors)
        for param in params:
            if rest and param.name not in found:
                found[param.name] = rest.pop(0)
        if rest:
            more = f"{len(rest)} more tensor{'s were' if len(rest) > 1 else ' was'} given"
            text = f"`{template.name}` takes {listed(p.name for p in params)}, and {more}"
            raise error("E0205", text, rest[0][1])
        given: dict[str, Any] = {}
        sizes = dict.fromkeys(hypers_of(template))
        for param in params:
            value, where = found.get(param.name, (None, span))
            if value is None and param.default is None:
                raise error("E0205", f"`{template.name}` still needs its tensor `{param.name}`", span)
            if isinstance(value, Absent) and param.default is None:
                raise error("E0203", f"`{template.name}` needs `{param.name}`, which was left out here", where)
            if isinstance(value, list):
                text = f"`{param.name}` of `{template.name}` is one tensor, and this is a list of them"
                raise error("E0205", text, where)
            if isinstance(value, Value):
                self.check_type(param.name, param.type, value, where, template.name)
                given[param.name] = _bind_axes(param, value, scope, where, bind, sizes, template.name)
            elif value is None and isinstance(param.default, ast.Name) and param.default.id in given:
                # `memory = x`: one tensor under two names, which is the block's own already.
                other = given[param.name] = given[param.default.id]
                if isinstance(other, Value):
                    _bind_axes(param, other, scope, where, None, sizes, template.name)
            else:
                given[param.name] = ABSENT
        return given, {name: size for name, size in sizes.items() if size is not None}

    def check_type(self, name: str, type_: ast.TensorType, value: Value, span: Span, owner: str) -> None:
        kind = tensor_kind(type_)
        holds = "int" if value.is_int else "bool" if value.is_bool else "float" if value.is_float else ""
        if kind is not None and FITS[kind] != holds:
            text = f"`{name}` of `{owner}` is of type {kind}, and a tensor of type {value.dtype} was given"
            raise error("E0304", text, span)

    # --- hyper-parameters ---------------------------------------------------------------------------------------------

    def defaults(
        self, template: Template, scope: Scope, span: Span, sizes: Mapping[str, Num], frame: Frame | None
    ) -> None:
        for name, hyper in hypers_of(template).items():
            if name in template.args:
                continue
            if hyper.default is None:
                if name not in sizes:
                    labels = [Label(hyper.span, "declared here, without a default")]
                    text = f"`{template.name}` still needs its `{name}`"
                    help_ = f"give it: `{template.name}({name}: …)`"
                    raise error("E0205", text, span, labels=labels, help=help_)
                scope.vars[name] = sizes[name]
                if frame is not None:
                    frame.axes[name] = sizes[name]
                continue
            value = self.ev(hyper.default, scope, hyper.kind)
            what = f"`{name}` of `{template.name}`"
            if hyper.kind in ("size", "int") and isinstance(value, Num) and isinstance(value.value, Fraction):
                raise self._divides_not(value, hyper.default, scope, what)
            value = coerce(value, hyper.kind, default_none(hyper), what, hyper.default.span)
            if isinstance(value, Num) and frame is not None:
                if dims.free_names(value.expr):
                    frame.local[name] = value.expr
                    self.remember_exact(frame, value)
                value = value.named(name)
            elif isinstance(value, Template):
                value = value.labelled(name)
            scope.vars[name] = value

    def _divides_not(self, value: Num, default: ast.Expr, scope: Scope, what: str) -> ArchError:
        """A default such as `width / heads` that is no whole number: the error tells of the two numbers."""
        assert isinstance(value.value, Fraction)
        sides: list[Any] = []
        if isinstance(default, ast.Binary) and default.op == "/":
            sides = [self.ev(default.left, scope), self.ev(default.right, scope)]
        if not all(isinstance(n, Num) and isinstance(n.value, int) for n in sides) or not sides:
            text = f"{what} must be a whole number, but {expr_text(value.expr)} = {float(value.value):g}"
            return error("E0401", text, default.span)
        top, bottom = sides
        span = self.user_spans[-1] if default.span.source.library and self.user_spans else default.span
        fitting = _divisors_near(top.value, bottom.value)
        return error(
            "E0401",
            f"{what} is {default.span.text}, and {spelled(top)} is not a multiple of {spelled(bottom)}",
            span,
            labels=origins([n for n in sides if n.origin is None or not n.origin.source.library], span),
            help=f"{' and '.join(map(str, fitting))} would fit" if fitting else "",
        )

    # --- sizes --------------------------------------------------------------------------------------------------------

    def check_shapes(self, template: Template, scope: Scope, given: Mapping[str, Any], span: Span) -> None:
        assert isinstance(template.target, Declared)
        for param in tensor_params(template.target):
            value = given.get(param.name)
            if isinstance(value, Value):
                self.same_dims(param.type, value, scope, f"`{param.name}` of `{template.name}`", span, bind=False)

    def same_dims(
        self, type_: ast.TensorType, value: Value, scope: Scope, what: str, span: Span, *, bind: bool
    ) -> Shape:
        entries = axes_of(type_.dims, value.rank)
        if entries is None:
            fixed = len(type_.dims) - any(isinstance(d, ast.Ellipsis) for d in type_.dims)
            text = f"{what} is written with {fixed} axes, {type_.span.text}, and has {value.rank}"
            raise error("E0302", f"{text}: {shape_text(value.shape)}", span)
        result = list(value.shape)
        for dim, axes in entries:
            if isinstance(dim, ast.Ellipsis):
                continue
            size = value.shape[axes.start]
            if isinstance(dim, ast.Name) and bind and scope.get(dim.id) is MISSING:
                result[axes.start] = scope.vars[dim.id] = _new_name(dim.id, size, scope)
                continue
            wanted = self.ev(dim, scope)
            if not isinstance(wanted, Num):
                raise error("E0203", f"a size is a number, and `{dim.span.text}` is {kind_of(wanted)}", dim.span)
            wanted = whole_size(wanted, "int", "a size", dim.span)
            if isinstance(wanted.value, Poly) and wanted.value.denominator != 1 and "/" in expr_text(wanted.expr):
                self.divides(wanted, scope.frame, dim.span)
            if not dims.equal_where_whole(size.value, wanted.value):
                text = f"{what} is {shape_text(value.shape)}, and its axis `{dim.span.text}` should be {wanted}"
                raise error("E0301", text, span, labels=_size_labels(dim, size, wanted, span))
            result[axes.start] = Num(wanted.value, wanted.expr, size.origin)
        return tuple(result)

    def divides(self, size: Num, frame: Frame, span: Span) -> None:
        assert isinstance(size.value, Poly)
        d = size.value.denominator
        top, bottom = Num(dims.mul(size.value, d), dims.Bin("*", Lit(str(d)), size.expr), size.origin), num(d)
        if isinstance(size.expr, dims.Bin) and size.expr.op == "/":
            known: dict[str, Expr] = {
                k: literal(n.value) for k, n in frame.known.items() if not isinstance(n.value, Poly)
            }
            by = dims.expr_value(dims.substitute(size.expr.right, known))
            if isinstance(by, int):
                top, bottom = Num(dims.mul(size.value, by), size.expr.left, size.origin), Num(by, size.expr.right)
        self.condition(frame, "%", top, bottom, f"{spelled(top)} must be a multiple of {bottom}", span)


def _divisors_near(number: int, near: int) -> list[int]:
    """The divisors of a number below and above another."""
    reach = range(1, min(number, 4096) + 1)
    below = [n for n in reach if n < near and number % n == 0]
    above = [n for n in reach if n > near and number % n == 0]
    return [*below[-1:], *above[:1]]


def _bind_axes(
    param: ast.TensorParam,
    value: Value,
    scope: Scope,
    span: Span,
    bind: dict[str, Expr] | None,
    sizes: dict[str, Num | None],
    owner: str,
) -> Value:
    """Bind the names of a tensor's axes: in the scope, or, of those that are hyper-parameters, in `sizes`. With `bind`
    the result is a value of the block's own, its sizes under its own names, and `bind` gets what they are for the
    caller."""
    entries = axes_of(param.type.dims, value.rank)
    if entries is None:
        text = f"`{owner}` takes {param.name}: {param.type.span.text}, and a tensor with {value.rank} axes was given"
        labels = [Label(value.span, "it was made here")] if value.span and value.span != span else []
        raise error("E0302", f"{text}: {shape_text(value.shape)}", span, labels=labels)
    shape: list[Num] = []
    for dim, axes in entries:
        named = isinstance(dim, ast.Name) and dim.id not in scope.vars and "." not in dim.id
        for i in axes:
            size = value.shape[i]
            name = dim.id if named and isinstance(dim, ast.Name) else f"{param.name}.{i}"
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
    kind = param.type.kind
    dtype = value.dtype if kind is None or kind == "float" else kind
    return scope.frame.own(Value(tuple(shape), dtype, param.name, param.span, True), 0)


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
