"""Calls that make static values: `shared`, `offer` and the like, masks, schemes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from archdsl.diagnostics import error
from archdsl.ir import masks
from archdsl.ir.dims import Num, num
from archdsl.ir.elaborate.base import Elaboration
from archdsl.ir.elaborate.headers import hypers_of
from archdsl.ir.elaborate.scope import Absent, Argument, Given, MaskRule, SchemeRule, Scope
from archdsl.ir.graph import Value
from archdsl.ir.masks import Mask
from archdsl.ir.scalings import SCALINGS
from archdsl.ir.schemes import SCHEMES
from archdsl.ir.site import unknown_option, whole_size
from archdsl.ir.static import Instance, ListValue, Scheme, Template, kind_of
from archdsl.source import Span
from archdsl.syntax import ast


class Functions(Elaboration):
    """Evaluates calls of what is no block."""

    # --- functions of blocks ------------------------------------------------------------------------------------------

    def function(self, name: str, e: ast.Call, scope: Scope) -> Any:
        if name == "shared":
            return self._shared(e, scope)
        if not e.args:
            raise error("E0205", f"`{name}` takes a block", e.span)
        block = self.ev(e.args[0].value, scope)
        if name in ("accepts", "given"):
            key = self.ev(e.args[1].value, scope) if len(e.args) == 2 else None
            if not isinstance(key, str):
                text = f'`{name}(block, "name")` takes a block and the name of a hyper-parameter'
                raise error("E0205", text, e.span)
            return isinstance(block, Template) and key in (block.args if name == "given" else hypers_of(block))
        if name == "option":
            return self._option(block, e, scope)
        return self._offer(block, e, scope)

    def _shared(self, e: ast.Call, scope: Scope) -> Instance:
        if len(e.args) != 1 or e.args[0].name is not None:
            raise error("E0205", "`shared` takes one block", e.span)
        value = self.ev(e.args[0].value, scope)
        if isinstance(value, Instance):
            return value
        if not isinstance(value, Template):
            raise error("E0203", f"`shared` takes a block, and this is {kind_of(value)}", e.span)
        return Instance(replace(value, label=""), scope.frame, "", e.span)

    def _option(self, block: Any, e: ast.Call, scope: Scope) -> Any:
        key = self.ev(e.args[1].value, scope) if len(e.args) == 3 else None
        if not isinstance(key, str) or not isinstance(block, Template):
            text = '`option(block, "name", otherwise)` reads a hyper-parameter of a block, if it has it'
            raise error("E0205", text, e.span)
        value = self.hyper_of(block, key, scope) if key in hypers_of(block) else None
        return self.ev(e.args[2].value, scope) if value is None else value

    def _offer(self, block: Any, e: ast.Call, scope: Scope) -> Any:
        """The block with those of the offered hyper-parameters set that it has and that have not been set."""
        if block is None or isinstance(block, Instance):
            return block
        if not isinstance(block, Template):
            raise error("E0203", f"`offer` takes a block first, and this is {kind_of(block)}", e.span)
        declared = hypers_of(block)
        found: dict[str, Given] = {}
        for arg in e.args[1:]:
            if arg.name is None:
                raise error("E0205", "what is offered is named: `offer(block, mask: m)`", arg.span)
            if arg.name not in declared or arg.name in block.args:
                continue
            value = self.ev(arg.value, scope)
            if value is not None and not isinstance(value, Absent):
                found[arg.name] = (value, arg.value.span)
        return self.with_options(block, found, (), e.span)

    # --- masks --------------------------------------------------------------------------------------------------------

    def mask(self, callee: MaskRule | Mask, e: ast.Call, scope: Scope) -> Mask:
        name = callee.name if isinstance(callee, MaskRule) else callee.rule
        args = [(a.name, self.ev(a.value, scope), a.value.span) for a in e.args]
        if name in masks.TENSOR_RULES:
            return _tensor_mask(name, args, e.span)
        fields = masks.RULES[name]
        numbers: dict[str, Num] = {}
        for given, value, where in args:
            key = given or next((f for f in fields if f not in numbers), None)
            if key is None or key not in fields:
                raise error("E0205", f"the mask `{name}` takes {', '.join(fields) or 'no numbers'}", where)
            what = f"`{key}` of the mask `{name}`"
            if not isinstance(value, Num):
                raise error("E0203", f"{what} is a number, and this is {kind_of(value)}", where)
            numbers[key] = whole_size(value, "int" if key == "seed" else "size", what, where)
        if name == "random" and "seed" not in numbers:
            numbers["seed"] = num(0)
        missing = [f for f in fields if f not in numbers]
        if missing:
            raise error("E0205", f"the mask `{name}` still needs its {missing[0]}: `{name}(128)`", e.span)
        return Mask(name, tuple(numbers[f] for f in fields))

    # --- schemes ------------------------------------------------------------------------------------------------------

    def scheme(self, rule: SchemeRule, args: Sequence[Argument], span: Span) -> Scheme:
        fields = SCHEMES[rule.name] if rule.name in SCHEMES else SCALINGS[rule.name]
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
            if not value.static:
                raise error(
                    "E0402", f"`{key}` of `{rule.name}` is {value}, which is known only when the model runs", where
                )
            numbers[key] = value
        for key, default in fields.items():
            if key in numbers or f"{key}.0" in numbers:
                continue
            if default is None:
                raise error("E0205", f"`{rule.name}` still needs its `{key}`", span)
            if not math.isnan(default):  # else it may be left out
                numbers[key] = num(Fraction(str(default)))
        order = list(fields)
        return Scheme(
            rule.name, {k: numbers[k] for k in sorted(numbers, key=lambda k: order.index(k.partition(".")[0]))}
        )

    def drawn(self, value: Any, scope: Scope, span: Span) -> Any:
        shape = scope.body.weight_shape
        if shape is None or not isinstance(value, Scheme):
            return value
        return self.primitive(scope.frame, scope, "draw", [], {"scheme": value, "dims": shape}, span)[0]


def _tensor_mask(name: str, args: Sequence[Argument], span: Span) -> Mask:
    """`keys(real)`, `same(document)`: a mask that reads a tensor."""
    if len(args) != 1 or not isinstance(args[0][1], Value):
        raise error("E0205", f"`{name}` takes one tensor", span)
    _, value, where = args[0]
    wants_bool = name in ("keys", "queries", "padding")
    if not (value.is_bool if wants_bool else value.is_int):
        wanted = "bool" if wants_bool else "int"
        raise error("E0304", f"`{name}` reads a tensor of type {wanted}, and this is {value.dtype}", where)
    return Mask(name, tensor=value)
