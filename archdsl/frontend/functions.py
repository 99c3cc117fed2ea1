"""Calls that make static values: `shared`, `offer` and the like, masks, schemes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from archdsl.diagnostics import Label, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.block_builder import BlockBuilder
from archdsl.frontend.headers import hypers_of, tensor_params
from archdsl.frontend.hypers import with_options
from archdsl.frontend.kinds import coerce, name_place, unknown_option
from archdsl.frontend.names import Names
from archdsl.frontend.primitives import Primitives
from archdsl.frontend.schemes import ASCENDING, SCALINGS, SCHEMES, Field
from archdsl.frontend.scopes import Absent, Argument, Given, MaskRule, SchemeRule, Scope, is_tensor
from archdsl.frontend.signatures import TAKEN, demand_kind, demand_whole
from archdsl.ir import masks
from archdsl.ir.dims import Num, num
from archdsl.ir.graph import Value
from archdsl.ir.masks import Mask
from archdsl.ir.ranges import whole_size
from archdsl.ir.static import BlockValue, Declared, ListValue, Scheme, SharedModule, kind_of
from archdsl.ir.wording import format_number, listed
from archdsl.syntax import ast


class Functions:
    """Evaluates calls of what is no block."""

    def __init__(self, state: Elaboration, primitives: Primitives, names: Names) -> None:
        self.state = state
        self.primitives = primitives
        self.names = names

    # --- functions of blocks ------------------------------------------------------------------------------------------

    def call(self, name: str, e: ast.Call, scope: Scope) -> tuple[Any, list[Argument]]:
        """A call of `shared`, `accepts`, `given`, `option` or `offer`: its value, and the tensors that were offered."""
        if name == "offer" and e.args:
            return self._offer(self.state.ev(e.args[0].value, scope), e, scope)
        return self._static(name, e, scope), []

    def _static(self, name: str, e: ast.Call, scope: Scope) -> Any:
        """A call of another than `offer`."""
        if name == "shared":
            return self._shared(e, scope)
        if not e.args:
            raise error("E0205", f"`{name}` takes a block", e.span)
        block = self.state.ev(e.args[0].value, scope)
        if name in ("accepts", "given"):
            key = self.state.ev(e.args[1].value, scope) if len(e.args) == 2 else None
            if not isinstance(key, str):
                text = f'`{name}(block, "name")` takes a block and the name of a hyper-parameter'
                raise error("E0205", text, e.span)
            return isinstance(block, BlockValue) and key in (block.args if name == "given" else hypers_of(block))
        return self._option(block, e, scope)

    def _shared(self, e: ast.Call, scope: Scope) -> SharedModule | BlockValue:
        if len(e.args) != 1 or e.args[0].name is not None:
            raise error("E0205", "`shared` takes one block", e.span)
        value = self.state.ev(e.args[0].value, scope)
        if isinstance(value, SharedModule):
            return value
        if not isinstance(value, BlockValue):
            raise error("E0203", f"`shared` takes a block, and this is {kind_of(value)}", e.span)
        if own_weights(value):
            return SharedModule(replace(value, label=""), scope.frame, "", e.span)
        if not given_weights(value):
            return value  # there is nothing to share
        raise error(
            "E0203",
            f"`{value.name}` has no weights of its own that could be shared: the block that it is given has",
            e.span,
            help=f"declare a block around `{value.name}` and share that; a position can be shared by itself",
        )

    def _option(self, block: Any, e: ast.Call, scope: Scope) -> Any:
        key = self.state.ev(e.args[1].value, scope) if len(e.args) == 3 else None
        if not isinstance(key, str) or not isinstance(block, BlockValue):
            text = '`option(block, "name", otherwise)` reads a hyper-parameter of a block, if it has it'
            raise error("E0205", text, e.span)
        value = self.names.hyper_of(block, key, scope) if key in hypers_of(block) else None
        return self.state.ev(e.args[2].value, scope) if value is None else value

    def _offer(self, block: Any, e: ast.Call, scope: Scope) -> tuple[Any, list[Argument]]:
        """The block with those of the offered hyper-parameters set that it has and that have not been set, and those of
        the offered tensors that it takes, by name, beside its first."""
        if block is None:
            return block, []
        if not isinstance(block, BlockValue | SharedModule):
            raise error("E0203", f"`offer` takes a block first, and this is {kind_of(block)}", e.span)
        template = block.template if isinstance(block, SharedModule) else block
        declared = () if isinstance(block, SharedModule) else hypers_of(block).keys() - template.args.keys()
        takes = {p.name for p in tensor_params(template.target)[1:]}
        found: dict[str, Given] = {}
        tensors: list[Argument] = []
        for arg in e.args[1:]:
            if arg.name is None:
                raise error("E0205", "what is offered is named: `offer(block, mask: m)`", arg.span)
            if arg.name not in declared and arg.name not in takes:
                continue
            value = self.state.ev(arg.value, scope)
            if value is None or isinstance(value, Absent):
                continue
            if is_tensor(value) and arg.name in takes:
                tensors.append((arg.name, value, arg.value.span))
            elif arg.name in declared:
                found[arg.name] = (value, arg.value.span)
        if isinstance(block, BlockValue):
            block = with_options(block, found, (), e.span, scope.frame)
        return block, tensors

    # --- masks --------------------------------------------------------------------------------------------------------

    def mask(self, callee: MaskRule | Mask, e: ast.Call, scope: Scope) -> Mask:
        """A call of a mask: `window(128)`, `keys(real)`."""
        name = callee.name if isinstance(callee, MaskRule) else callee.rule
        args = [(a.name, self.state.ev(a.value, scope), a.value.span) for a in e.args]
        if name in masks.TENSOR_RULES:
            return _tensor_mask(name, args, e.span)
        fields = masks.RULES[name].numbers
        numbers: dict[str, Num] = {}
        for key, (value, where) in _by_name(name, fields, args).items():
            what = f"`{key}` of the mask `{name}`"
            if not isinstance(value, Num):
                raise error("E0203", f"{what} is a number, and this is {kind_of(value)}", where)
            kind = "int" if key == "seed" else "size"
            numbers[key] = whole_size(value, kind, what, where)
            demand_whole(value, what, scope, where)
            scope.frame.demand_size(numbers[key], kind)
        if name == "random" and "seed" not in numbers:
            numbers["seed"] = num(0)
        missing = [f for f in fields if f not in numbers]
        if missing:
            example = ", ".join(map(str, masks.RULES[name].example))
            raise error("E0205", f"the mask `{name}` still needs its {missing[0]}: `{name}({example})`", e.span)
        return Mask(name, tuple(numbers[f] for f in fields))

    # --- schemes ------------------------------------------------------------------------------------------------------

    def scheme(self, rule: SchemeRule, args: Sequence[Argument], scope: Scope, span: Span) -> Scheme:
        """A scheme or scaling with its numbers."""
        fields = SCHEMES[rule.name] if rule.name in SCHEMES else SCALINGS[rule.name]
        given = _by_name(rule.name, fields, args)
        numbers: dict[str, Num] = {}
        lists: dict[str, tuple[Num, ...]] = {}
        for key, field in fields.items():
            what = f"`{key}` of `{rule.name}`"
            if key not in given:
                if field.default is not None:
                    numbers[key] = num(Fraction(str(field.default)))
                elif field.needed:
                    raise error("E0205", f"`{rule.name}` still needs its `{key}`", span)
                continue
            value, where = given[key]
            if not field.many:
                numbers[key] = _scheme_number(value, field, what, where, scope.frame)
            elif not isinstance(value, ListValue):
                raise error("E0203", f"{what} is a list of numbers, and {kind_of(value)} was given", where)
            else:
                lists[key] = tuple(_scheme_number(v, field, what, where, scope.frame) for v in value.items)
        if rule.name in ASCENDING:
            less, how, more = ASCENDING[rule.name]
            text = f"`{less}` of `{rule.name}` must be {how} `{more}`"
            if not scope.frame.holds("<" if how == "less than" else "<=", numbers[less], numbers[more], text):
                text += f", and they are {format_number(numbers[less])} and {format_number(numbers[more])}"
                raise error("E0204", text, given[less if less in given else more][1])
        if rule.name == "longrope" and "factor" in numbers and numbers["original"].value == 1:
            text = "`longrope` with a `factor` compares contexts by their logarithms, and that of 1 is 0"
            raise error("E0204", text, given["original"][1], help="give an `original` context above 1")
        return Scheme(rule.name, numbers, lists)

    def drawn(self, value: Any, scope: Scope, span: Span) -> Any:
        """In a weight's first value, a scheme that something is computed with is a draw of the weight's shape."""
        shape = scope.body.weight_shape
        if shape is None or not isinstance(value, Scheme):
            return value
        return self.primitives.apply(scope, "draw", [], {"scheme": value, "dims": shape}, span)[0]


def _by_name(owner: str, fields: Collection[str], args: Sequence[Argument]) -> dict[str, Given]:
    """The numbers of a mask, scheme or scaling by name: those without one fill the fields that were not given. Raises
    E0201 for an unknown name, E0205 for a number that is given twice or one too many."""
    found: dict[str, Given] = {}
    for name, value, where in args:
        key = name or next((f for f in fields if f not in found), None)
        if key is None:
            takes = f"takes {listed(fields)}" if fields else "takes no numbers"
            raise error("E0205", f"`{owner}` was given more numbers than it takes", where, help=f"it {takes}")
        if key not in fields:
            raise unknown_option(key, owner, fields, where)
        if key in found:
            labels = [Label(name_place(key, found[key][1]), "given here first")]
            raise error("E0205", f"`{key}` is given twice", name_place(key, where), labels=labels)
        found[key] = (value, where)
    return found


def _scheme_number(value: Any, field: Field, what: str, span: Span, frame: BlockBuilder) -> Num:
    """A number of a scheme or scaling. Raises E0203, E0204, E0401, or E0402 for what only the running model knows."""
    if isinstance(value, bool):
        value = num(int(value))
    if not isinstance(value, Num):
        raise error("E0203", f"{what} is a number, and {kind_of(value)} was given", span)
    if not value.static:
        raise error("E0402", f"{what} is {value}, which is known only when the model runs", span)
    found: Num = coerce(value, field.kind, False, what, span)
    frame.demand_size(found, field.kind)
    return found


def _tensor_mask(name: str, args: Sequence[Argument], span: Span) -> Mask:
    """`keys(real)`, `same(document)`: a mask that reads a tensor."""
    if len(args) != 1 or not isinstance(args[0][1], Value):
        raise error("E0205", f"`{name}` takes one tensor", span)
    _, value, where = args[0]
    kind = masks.TENSOR_RULES[name].kind
    demand_kind(kind, value, f"`{name}` takes {TAKEN[kind]}", where)
    return Mask(name, tensor=value)


def own_weights(block: BlockValue) -> bool:
    """Whether an application of a block may have weights of its own."""
    return isinstance(block.target, Declared) or block.target.may_have_weights()


def given_weights(block: BlockValue) -> bool:
    """Whether the blocks that a block is given may have weights."""
    given = block.args.values()
    inner = (v for v in given if isinstance(v, BlockValue))
    return any(isinstance(v, SharedModule) for v in given) or any(own_weights(b) or given_weights(b) for b in inner)
