"""Hyper-parameters that a call does not give: by the axes of tensors, or by their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from archdsl.diagnostics import ArchError, Label, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.block_builder import BlockBuilder
from archdsl.frontend.headers import default_none, hypers_of
from archdsl.frontend.op_call import coerce
from archdsl.frontend.scopes import Scope
from archdsl.ir import dims
from archdsl.ir.dims import Num, expr_text
from archdsl.ir.static import BlockValue
from archdsl.ir.wording import format_number, origins
from archdsl.syntax import ast


class Defaults(Elaboration):
    """Binds the hyper-parameters of declared blocks that were not given."""

    def defaults(
        self, template: BlockValue, scope: Scope, span: Span, sizes: Mapping[str, Num], frame: BlockBuilder | None
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
            self.demand_size(scope.frame, value, hyper.kind)
            if isinstance(value, Num) and name in sizes:
                self.same(scope.frame, sizes[name], value, f"{what} is the size of an axis that is given")
            if isinstance(value, Num) and frame is not None:
                if hyper.kind == "size":
                    frame.sizes.add(name)
                if dims.free_names(value.expr):
                    frame.local[name] = value.expr
                    self.remember_exact(frame, value)
                value = value.named(name)
            elif isinstance(value, BlockValue):
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
            f"{what} is {default.span.text}, and {format_number(top)} is not a multiple of {format_number(bottom)}",
            span,
            labels=origins([n for n in sides if n.origin is None or not n.origin.source.library], span),
            help=f"{' and '.join(map(str, fitting))} would fit" if fitting else "",
        )


def _divisors_near(number: int, near: int) -> list[int]:
    """The divisors of a number below and above another."""
    reach = range(1, min(number, 4096) + 1)
    below = [n for n in reach if n < near and number % n == 0]
    above = [n for n in reach if n > near and number % n == 0]
    return [*below[-1:], *above[:1]]
