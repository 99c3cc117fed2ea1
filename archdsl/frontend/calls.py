"""Calls of blocks: which arguments are tensors, which are hyper-parameters, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from archdsl.diagnostics import ArchError, Label, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration, shown_at
from archdsl.frontend.blocks import Blocks
from archdsl.frontend.functions import Functions
from archdsl.frontend.headers import demand_applicable, hypers_of, tensor_params
from archdsl.frontend.hypers import with_options
from archdsl.frontend.kinds import name_place
from archdsl.frontend.modules import FUNCTIONS
from archdsl.frontend.names import Names
from archdsl.frontend.primitives import Primitives
from archdsl.frontend.scopes import (
    ABSENT,
    MISSING,
    Absent,
    Argument,
    BlockCall,
    FunctionValue,
    Given,
    MaskRule,
    SchemeRule,
    Scope,
    is_tensor,
)
from archdsl.frontend.signatures import Signature, demand_whole
from archdsl.ir import dims
from archdsl.ir.dims import Num
from archdsl.ir.graph import Value
from archdsl.ir.masks import INPUTS, Mask
from archdsl.ir.op import Primitive
from archdsl.ir.static import BlockValue, Declared, ListValue, SharedModule, as_operand, kind_of
from archdsl.ir.wording import format_number, one_of
from archdsl.syntax import ast

SIZES = frozenset({"size", "int", "sizes", "named_sizes", "ints"})
"""Kinds of options that are whole numbers, of which those of names that a primitive does not declare are, too."""


@dataclass
class Arguments:
    """What a call gives, by kind."""

    tensors: list[Given] = field(default_factory=list)
    named: dict[str, Given] = field(default_factory=dict)
    """Tensors by name."""
    in_order: list[Given] = field(default_factory=list)
    static: dict[str, Given] = field(default_factory=dict)
    """Hyper-parameters by name."""


class Calls:
    """Evaluates calls of blocks."""

    def __init__(
        self, state: Elaboration, primitives: Primitives, names: Names, functions: Functions, blocks: Blocks
    ) -> None:
        self.state = state
        self.primitives = primitives
        self.names = names
        self.functions = functions
        self.blocks = blocks

    def call(
        self, e: ast.Call, scope: Scope, *, as_name: str = "", piped: Any = None, expect: str | None = None
    ) -> Any:
        """The value of a call; `piped` is the tensor that a pipeline carries to it."""
        callee = self._callee(e.function, scope, expect)
        carried: list[Argument] = [] if piped is None else [(None, piped, e.span)]
        if isinstance(callee, FunctionValue):
            value, tensors = self.functions.call(callee.name, e, scope)
            if not carried and not as_name:
                if tensors:
                    text = f"`offer` gives tensors where the block is applied: `x -> {e.span.text}`"
                    raise error("E0205", text, tensors[0][2])
                return value
            # `x -> offer(router, experts: 8)` applies what was offered to.
            return self._apply_args(value, [*carried, *tensors], scope, e.span, as_name)
        if isinstance(callee, MaskRule | Mask):
            return self.functions.mask(callee, e, scope)
        args = self._arguments(e, callee, scope)
        if isinstance(callee, SchemeRule):
            return self.functions.scheme(callee, args, scope, e.span)
        return self._apply_args(callee, [*carried, *args], scope, e.span, as_name)

    def _callee(self, e: ast.Expr, scope: Scope, expect: str | None = None) -> Any:
        if isinstance(e, ast.Name):
            return self.names.lookup(e.id, scope, e.span, applied=True, expect=expect)
        return self.state.ev(e, scope)

    def _arguments(self, e: ast.Call, callee: Any, scope: Scope) -> list[Argument]:
        """The arguments evaluated: a hyper-parameter that is a scheme or a scaling has names of its own."""
        kinds: dict[str, str | None] = {}
        in_order: list[str | None] = []
        if isinstance(callee, BlockValue):
            kinds = {h.name: h.kind for h in hypers_of(callee).values()}
            in_order = [kind for name, kind in kinds.items() if name not in callee.args]
        known = isinstance(callee, BlockValue) and not _may_be_any(e.function, scope)
        args: list[Argument] = []
        for i, arg in enumerate(e.args):
            kind = kinds.get(arg.name) if arg.name else (in_order[i] if i < len(in_order) else None)
            value = self.state.ev(arg.value, scope, kind if kind in ("scheme", "scaling") else None)
            if kind != "scheme":
                value = self.functions.drawn(value, scope, arg.value.span)
            if known and arg.name and arg.name not in kinds and isinstance(value, Absent):
                _demand_tensor(callee.target, arg.name, arg.value.span)
            args.append((arg.name, value, arg.value.span))
        return args

    def pipeline(self, e: ast.Pipeline, scope: Scope) -> Any:
        """`x -> f -> g`."""
        value = self.functions.drawn(self.state.ev(e.head, scope), scope, e.head.span)
        before = e.head
        for stage in e.stages:
            if isinstance(value, tuple):
                raise error(
                    "E0203",
                    f"a pipeline carries one tensor, and this has {len(value)} results",
                    before.span,
                    help="bind them first: `a, b = …`",
                )
            if not is_tensor(value) or isinstance(value, Absent):
                raise error("E0203", f"a pipeline carries a tensor, and this is {kind_of(value)}", before.span)
            as_name, inner = (stage.name, stage.value) if isinstance(stage, ast.As) else ("", stage)
            if isinstance(inner, ast.Call):
                value = self.call(inner, scope, as_name=as_name, piped=value)
            else:
                callee = self._callee(inner, scope)
                value = self._apply_args(callee, [(None, value, before.span)], scope, inner.span, as_name)
            before = stage
        return value

    def _apply_args(self, callee: Any, args: Sequence[Argument], scope: Scope, span: Span, as_name: str) -> Any:
        """A call with its arguments evaluated: sets hyper-parameters, or, if there are tensors, applies."""
        if not isinstance(callee, BlockValue | SharedModule):
            raise error("E0206", f"{kind_of(callee)} cannot be applied", span)
        instance = callee if isinstance(callee, SharedModule) else None
        template = callee.template if isinstance(callee, SharedModule) else callee
        target = template.target
        demand_applicable(target, template.span if span.source.library and template.span is not None else span)
        if isinstance(target, Primitive) and target.elementwise and not target.header.hypers:
            return self._elementwise(target, args, scope, span)
        sorted_ = _by_kind(target, args)
        if instance is not None and (sorted_.static or sorted_.in_order):
            raise error(
                "E0205",
                f"the shared `{callee.name}` has its hyper-parameters already",
                span,
                help="give them where it is shared",
            )
        template = with_options(template, sorted_.static, sorted_.in_order, span, scope.frame)
        no_tensors = isinstance(target, Primitive) and not target.header.tensors
        if not sorted_.tensors and not sorted_.named and not no_tensors:
            if as_name:
                raise error("E0205", f"`as {as_name}` names an application, and no tensor is given here", span)
            if instance is not None:
                return instance
            return template if span.source.library else replace(template, span=span)
        call = BlockCall(template, sorted_.tensors, sorted_.named, scope, span, as_name, instance)
        return self.apply_template(call)

    def _elementwise(self, op: Primitive, args: Sequence[Argument], scope: Scope, span: Span) -> Any:
        """An element-wise function takes numbers too; of numbers alone it is a number."""
        if not args:
            return BlockValue(op, {}, "", span)
        if any(isinstance(value, Value | Mask) for _, value, _ in args):
            args = [(name, as_operand(value), where) for name, value, where in args]
        by_kind = _by_kind(op, args, numbers=True)
        for value, where in (*by_kind.in_order, *by_kind.static.values(), *by_kind.tensors, *by_kind.named.values()):
            if not isinstance(value, Value | Num | Absent | list) and not (op.takes_masks and isinstance(value, Mask)):
                is_block = isinstance(value, BlockValue | SharedModule)
                help_ = f"a tensor goes through both by arrows: `x -> {where.text} -> {op.name}`" if is_block else ""
                text = f"`{op.name}` takes tensors and numbers, and {kind_of(value)} was given"
                raise error("E0203", text, where, help=help_)
        given = Signature.of(op, span).pairs(by_kind.tensors, by_kind.named)
        inputs = [value for _, value, _ in given]
        numbers = [v for v in inputs if isinstance(v, Num)]
        if len(numbers) == len(inputs):
            if not op.of_numbers:
                help_ = "numbers alone are taken by operators, `abs`, `floor`, `sqrt`, `exp`, `log` and the like"
                raise error("E0203", f"`{op.name}` needs a tensor", span, help=help_)
            domain = dims.domain(op.name)
            if domain is not None and numbers[0].static:
                scope.frame.holds(domain, numbers[0], 0, f"`{span.text}` must be a number")
            try:
                return dims.function(op.name, numbers, span)
            except OverflowError as problem:
                help_ = str(problem) if isinstance(problem, dims.TooLargeError) else "the largest float is 1.8e308"
                raise error("E0404", "this number would be too large", span, help=help_) from None
            except (ValueError, ZeroDivisionError):
                raise error(
                    "E0401", f"{op.name}({', '.join(map(format_number, numbers))}) is not a number", span
                ) from None
        return self.primitives.apply(scope, op.name, inputs, {}, span, spans=[where for *_, where in given])[0]

    # --- applications -------------------------------------------------------------------------------------------------

    def apply_template(self, call: BlockCall) -> Any:
        """Apply a block to tensors; a tuple if it has several results."""
        if call.instance is not None and not call.instance.label:
            call.instance.label = call.as_name or call.template.label
        place = call.template.span if call.span.source.library else None
        if place is None or place.source.library:
            return self._apply_here(call)
        # The library applies a block that the user named: what goes wrong in it is shown at that name.
        self.state.user_spans.append(place)
        try:
            return self._apply_here(call)
        except ArchError as problem:
            raise ArchError([shown_at(d, place) for d in problem.diagnostics]) from None
        finally:
            self.state.user_spans.pop()

    def _apply_here(self, call: BlockCall) -> Any:
        outputs: tuple[Value, ...]
        template = call.template
        if isinstance(template.target, Primitive):
            for name, value in template.args.items():
                hyper = hypers_of(template).get(name)
                for n in _sizes_in(value) if hyper is None or hyper.kind in SIZES else ():
                    demand_whole(n, f"`{name}` of `{template.name}`", call.scope, n.origin or call.span)
            inputs, spans = self.primitives.inputs(template.target, call)
            op, label = template.target, call.as_name or template.label
            outputs = self.primitives.apply(
                call.scope, op, inputs, template.args, call.span, "", label, call.instance, spans=spans
            )
        else:
            outputs = self.blocks.apply(call)
        return outputs[0] if len(outputs) == 1 else outputs

    def apply(
        self,
        block: Any,
        numbers: Sequence[Num],
        tensors: Sequence[Value | None],
        scope: Scope,
        span: Span,
        options: Mapping[str, Any],
    ) -> Any:
        """Apply a block value that a primitive was given, and that it gives further hyper-parameters."""
        instance = block if isinstance(block, SharedModule) else None
        template = block.template if isinstance(block, SharedModule) else block
        template = with_options(template, {}, [(n, span) for n in numbers], span, scope.frame)
        template = replace(template, args={**template.args, **options})
        given = [(ABSENT if t is None else t, span) for t in tensors]
        return self.apply_template(BlockCall(template, given, {}, scope, span, "", instance))


def _sizes_in(value: Any) -> Iterator[Num]:
    """The numbers of an option, given in order or as a list."""
    if isinstance(value, Num):
        yield value
    elif isinstance(value, tuple | ListValue):
        for item in value if isinstance(value, tuple) else value.items:
            yield from _sizes_in(item)


def _by_kind(target: Primitive | Declared, args: Sequence[Argument], numbers: bool = False) -> Arguments:
    """Tensors and static arguments apart; with `numbers` these stand for tensors. Raises E0205 for one given twice and
    for a tensor that the block has not."""
    tensor_names = {p.name for p in tensor_params(target)}
    found = Arguments()
    takes_masks = isinstance(target, Primitive) and bool(target.takes_masks)
    for name, value, where in args:
        if isinstance(value, tuple):
            raise error(
                "E0203",
                f"this has {len(value)} results, and one tensor is wanted",
                where,
                help="bind them first: `a, b = …`",
            )
        given_tensor = is_tensor(value) or (numbers and isinstance(value, Num))
        if isinstance(value, Mask) and (name in tensor_names or name is None):
            given_tensor = takes_masks
            if name is not None and not takes_masks:
                raise error(
                    "E0203",
                    f"`{name}` of `{target.name}` is a tensor, and a mask was given",
                    where,
                    help="a block takes a mask as a hyper-parameter, `f(m: mask)(x: …)`, and gives it to "
                    "`softmax(scores, mask: m)` or `where(m, scores, -inf)`",
                )
        if isinstance(value, SharedModule) and isinstance(target, Primitive):
            given_tensor = name in tensor_names if name else _wants_table(target, found.in_order)
        if name is None:
            (found.tensors if given_tensor else found.in_order).append((value, where))
        elif name in found.static or name in found.named:
            first = (found.static.get(name) or found.named[name])[1]
            labels = [Label(name_place(name, first), "given here first")]
            raise error("E0205", f"`{name}` is given twice", name_place(name, where), labels=labels)
        elif given_tensor and name not in tensor_names:
            if isinstance(value, Absent):
                continue  # a block that is given need not take what is left out
            header = target.header if isinstance(target, Primitive) else target.node.header
            if hyper := next((h for h in header.hypers or () if h.name == name), None):
                if hyper.kind == "mask" and isinstance(value, Value) and value.dtype in INPUTS:
                    found.static[name] = (Mask(value.dtype, tensor=value), where)
                    continue
                help_ = "`keys(t)` and `queries(t)` are masks made of a tensor" if hyper.kind == "mask" else ""
                raise error(
                    "E0203", f"`{name}` of `{target.name}` is static, and a tensor was given", where, help=help_
                )
            _demand_tensor(target, name, where)
        elif given_tensor or (name in tensor_names and value is None):
            found.named[name] = (ABSENT if value is None else value, where)
        else:
            found.static[name] = (value, where)
    return found


def _may_be_any(e: ast.Expr, scope: Scope) -> bool:
    """Whether a callee is what the body is given, or an element of a list: no declaration that its text names."""
    while isinstance(e, ast.Call):
        e = e.function
    return not isinstance(e, ast.Name) or e.id in FUNCTIONS or scope.get(e.id) is not MISSING


def _demand_tensor(target: Primitive | Declared, name: str, where: Span) -> None:
    """Raises E0205 where a block has no tensor of that name."""
    names = {p.name for p in tensor_params(target)}
    if name not in names:
        help_ = one_of(name, sorted(names), "its tensors are")
        raise error("E0205", f"`{target.name}` has no tensor `{name}`", name_place(name, where), help=help_)


def _wants_table(op: Primitive, in_order: Sequence[Given]) -> bool:
    """Whether a shared block given in order stands for a tensor of the primitive (its weight) and not for an option."""
    hypers = op.header.hypers or ()
    return len(in_order) >= len(hypers) or not any(h.kind in ("block", "position") for h in hypers)
