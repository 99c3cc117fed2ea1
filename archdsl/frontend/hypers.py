"""Hyper-parameters: those that a call gives, and the others, by the axes of tensors or by their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from archdsl.diagnostics import ArchError, Diagnostic, Label, Proposal, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.block_builder import BlockBuilder
from archdsl.frontend.headers import default_none, hypers_of
from archdsl.frontend.kinds import coerce, takes, unknown_option
from archdsl.frontend.scopes import BlockCall, Given, Scope
from archdsl.ir import dims
from archdsl.ir.dims import Num, expr_text
from archdsl.ir.op import Primitive
from archdsl.ir.static import BlockValue
from archdsl.ir.wording import format_number, listed, origins
from archdsl.syntax import ast


def bind_defaults(
    state: Elaboration, call: BlockCall, scope: Scope, sizes: Mapping[str, Num], frame: BlockBuilder | None
) -> None:
    """Bind hyper-parameters that were not given: by the axes of tensors, or by their defaults, which may be
    computed from others and from axes. `frame` is that of a block with a module of its own."""
    template = call.template
    for name, hyper in hypers_of(template).items():
        if name in template.args:
            continue
        if hyper.default is None:
            if name not in sizes:
                labels = [Label(hyper.span, "declared here, without a default")]
                text = f"`{template.name}` still needs its `{name}`"
                help_ = f"give it: `{template.name}({name}: …)`"
                raise error("E0205", text, call.span, labels=labels, help=help_)
            scope.vars[name] = sizes[name]
            if frame is not None:
                frame.axes[name] = sizes[name]
            continue
        value = state.ev(hyper.default, scope, hyper.kind)
        what = f"`{name}` of `{template.name}`"
        if hyper.kind in ("size", "int") and isinstance(value, Num) and isinstance(value.value, Fraction):
            raise _divides_not(state, value, hyper.default, scope, what)
        value = coerce(value, hyper.kind, default_none(hyper), what, hyper.default.span)
        scope.frame.demand_size(value, hyper.kind)
        if isinstance(value, Num) and name in sizes:
            scope.frame.same(sizes[name], value, f"{what} is the size of an axis that is given")
        if isinstance(value, Num) and frame is not None:
            if hyper.kind == "size":
                frame.sizes.add(name)
            if dims.free_names(value.expr):
                frame.local[name] = value.expr
                frame.remember_exact(value)
            value = value.named(name)
        elif isinstance(value, BlockValue):
            value = value.labelled(name)
        scope.vars[name] = value


def _divides_not(state: Elaboration, value: Num, default: ast.Expr, scope: Scope, what: str) -> ArchError:
    """Return the error of a default such as `width / heads` that is no whole number. It names both numbers."""
    assert isinstance(value.value, Fraction)
    sides: list[Any] = []
    if isinstance(default, ast.Binary) and default.op == "/":
        sides = [state.ev(default.left, scope), state.ev(default.right, scope)]
    if not all(isinstance(n, Num) and isinstance(n.value, int) for n in sides) or not sides:
        text = f"{what} must be a whole number, but {expr_text(value.expr)} = {float(value.value):g}"
        return error("E0401", text, default.span)
    top, bottom = sides
    span = state.user_spans[-1] if default.span.source.library and state.user_spans else default.span
    text = f"{what} is {default.span.text}, and {format_number(top)} is not a multiple of {format_number(bottom)}"
    labels = origins([n for n in sides if n.origin is None or not n.origin.source.library], span)
    near = ((bottom, _divisors(top.value)), (top, _multiples(bottom.value, top.value)))
    proposals = [Proposal(expr_text(n.expr), n.origin, tuple(values)) for n, values in near if n.origin is not None]
    return ArchError([Diagnostic("E0401", text, span, labels=tuple(labels), proposals=tuple(proposals))])


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, 4096) + 1) if number % n == 0]


def _multiples(number: int, near: int) -> list[int]:
    """Return the multiples of `number` next to `near`, and the even ones: RoPE needs an even number of channels."""
    return sorted({n for of in (number, 2 * number) for n in (near // of * of, (near // of + 1) * of) if n > 0})


def _by_name(problem: ArchError, free: Sequence[str], where: Span) -> ArchError:
    """A value of the wrong kind for the option at its place, where just one of the `free` options takes it."""
    first = problem.diagnostics[0]
    if first.help or len(free) != 1:
        return problem
    return ArchError([replace(first, help=f"give it by its name: `{free[0]}: {where.text}`")])


def with_options(
    template: BlockValue,
    static: Mapping[str, Given],
    in_order: Sequence[Given],
    span: Span,
    frame: BlockBuilder,
) -> BlockValue:
    """The block with more hyper-parameters set. Raises E0201 for an unknown one, E0203 for a wrong kind."""
    if not static and not in_order:
        return template
    before = {k: (v, span) for k, v in template.args.items()}
    hypers = hypers_of(template)
    merged = arguments(template, {**before, **static}, in_order)
    args: dict[str, Any] = {}
    for name, (value, where) in merged.items():
        hyper = hypers.get(name)
        if hyper is not None and hyper.kind not in ("sizes", "named_sizes"):
            try:
                value = coerce(value, hyper.kind, default_none(hyper), f"`{name}` of `{template.name}`", where)
            except ArchError as problem:
                if takes(hyper.kind, value) or all(where is not w for _, w in in_order):
                    raise
                free = [h.name for n, h in hypers.items() if n not in merged and takes(h.kind, value)]
                raise _by_name(problem, free, where) from None
            frame.demand_size(value, hyper.kind)
        args[name] = value
    return replace(template, args=args)


def arguments(template: BlockValue, given: Mapping[str, Given], in_order: Sequence[Given]) -> dict[str, Given]:
    """Static arguments by name: those in order fill the hyper-parameters that have not been given."""
    hypers, op = hypers_of(template), template.target if isinstance(template.target, Primitive) else None
    if not any(h.kind == "named_sizes" for h in hypers.values()):
        for name, (_, where) in given.items():
            if name not in hypers:
                elsewhere = op.elsewhere.get(name, "") if op is not None else ""
                raise unknown_option(name, template.name, hypers, where, elsewhere)
    found, rest = dict(given), list(in_order)
    for name, hyper in hypers.items():
        if not rest or name in found or hyper.kind == "named_sizes":
            continue
        # A variadic one takes every number in order.
        found[name] = (tuple(v for v, _ in rest), rest[0][1]) if hyper.kind == "sizes" else rest[0]
        rest = [] if hyper.kind == "sizes" else rest[1:]
    if rest and op is not None:
        text = f"`{op.name}` was given more static arguments than it has options"
        raise error("E0205", text, rest[0][1], notes=[f"its signature is {op.signature}"])
    if rest:
        text = f"`{template.name}` was given more static arguments than it has hyper-parameters left"
        help_ = f"its hyper-parameters are {listed(hypers)}" if hypers else "it has no hyper-parameters"
        raise error("E0205", text, rest[0][1], help=help_)
    return found if op is not None else {name: found[name] for name in hypers if name in found}
