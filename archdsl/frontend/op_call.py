"""One application of a primitive in a spec: its arguments, checked against the signature."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import ArchError, Label, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.first_values import by_scheme, drawn
from archdsl.frontend.scalings import SCALINGS
from archdsl.frontend.schemes import SCHEMES
from archdsl.ir.dims import Num, Poly, Shape, free_names, is_size_like, num, shape_text, whole_axis
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import CallNode, Handle, Input, OpNode, Value, Weight
from archdsl.ir.masks import Mask
from archdsl.ir.op import Primitive
from archdsl.ir.ranges import NUMBERS, RANGES, demand_range, whole_size
from archdsl.ir.static import (
    BlockValue,
    ElementRef,
    EnumValue,
    InitRules,
    ListValue,
    Scheme,
    SharedModule,
    as_operand,
    kind_of,
)
from archdsl.ir.wording import one_of
from archdsl.syntax.limits import MAX_AXES

if TYPE_CHECKING:
    from archdsl.frontend.base import Elaboration
    from archdsl.frontend.scopes import Scope

TYPES = ("float", "float32", "bfloat16", "int", "bool")


class OpCall:
    """The Application that a primitive is handed: see `archdsl.ir.op.Application`."""

    def __init__(self, op: Primitive, scope: Scope, span: Span) -> None:
        self.op = op
        self.frame = scope.frame
        self.scope = scope
        self.elaborator: Elaboration = scope.frame.elaborator
        self.span = span
        self.options: dict[str, Any] = {}
        self.spans: dict[str, Span] = {}
        self.input_spans: list[Span | None] = []
        self.inputs: tuple[Input, ...] = ()
        self.masks: dict[int, Mask] = {}
        self.axes: dict[str, Num] = {}
        self.instance: SharedModule | None = None
        self.handle: Handle | None = None
        self.as_name = ""
        self.label = ""
        self.step = ""
        """The step in the path of names, where it is known before the node is made."""

    @property
    def base(self) -> str:
        """What the step is made of."""
        return self.as_name or self.label or self.op.name

    # --- what primitives ask ---

    def shape(self, i: int) -> Shape:
        value = self.inputs[i]
        return value.shape if isinstance(value, Value) else ()

    def tensor(self, i: int) -> Value:
        value = self.inputs[i]
        assert isinstance(value, Value), (self.op.name, i)
        return value

    def size(self, option: str) -> Num:
        value = self.options[option]
        assert isinstance(value, Num), (self.op.name, option)
        return value

    def error(
        self,
        code: str,
        message: str,
        *,
        option: str = "",
        input: int | None = None,
        help: str = "",
        notes: Sequence[str] = (),
    ) -> ArchError:
        span = self.spans.get(option) or self._given_at(option) or self.span
        labels = []
        if input is not None and isinstance(self.inputs[input], Value):
            value = self.tensor(input)
            here = self.input_spans[input] if input < len(self.input_spans) else None
            text = f"{f'`{value.name}`' if value.name else 'this'} is {shape_text(value.shape)}"
            if here is not None and here != span:
                labels.append(Label(here, text))
        return error(code, message, span, labels=labels, help=help, notes=notes)

    def _given_at(self, option: str) -> Span | None:
        """Where the user gave an option to a block of the library that hands it on."""
        value = self.options.get(option)
        place = value.origin if isinstance(value, Num) else value.span if isinstance(value, BlockValue) else None
        return place if self.span.source.library and place is not None and not place.source.library else None

    def condition(self, op: str, left: Num, right: Num, message: str) -> None:
        self.frame.condition(op, left, right, message, self.span)

    def holds(self, op: str, a: Num, b: Num | float, message: str = "") -> bool:
        return self.frame.holds(op, a, b, message or self._decided())

    def keeps(self, a: Num, op: str, b: Num, message: str) -> None:
        self.frame.decide(a.expr, op, b.expr, message)

    def same(self, a: Num, b: Num, message: str = "") -> bool:
        return self.frame.same(a, b, message or f"`{self.op.name}` needs these sizes to be equal")

    def fits(self, a: Num, b: Num) -> bool:
        return self.frame.fits(a, b, f"an axis of `{self.op.name}` fits another")

    def is_number(self, n: Num, value: float) -> bool:
        found = n.static and float(n) == value
        if found:
            self.frame.fixed(n, self._decided())
        return found

    def is_whole(self, n: Num) -> bool:
        if isinstance(n.value, Poly):
            return is_size_like(n.value)
        kind = "whole numbers" if isinstance(n.value, int) else "fractions"
        return self.frame.is_whole(n, f"`{self.op.name}` was compiled for {kind}: compile again with --set")

    def fixed(self, n: Num) -> int:
        return int(self.frame.fixed(n, self._decided()))

    def _decided(self) -> str:
        return f"`{self.op.name}` was compiled for this number: compile again with --set"

    def node(
        self,
        *,
        inputs: Sequence[Input] | None = None,
        blocks: Mapping[str, CallNode] | None = None,
        copies: Num | None = None,
        active: Num | None = None,
    ) -> tuple[Value, ...]:
        if inputs is not None:
            self.inputs = tuple(inputs)
        frame, op = self.frame, self.op
        shapes, dtypes = op.shapes(self), op.dtypes(self)
        if max(map(len, shapes), default=0) > MAX_AXES:
            raise self.error("E0404", f"a tensor has at most {MAX_AXES} axes")
        weights = tuple(self.own_weight(w) for w in op.weights(self))
        outputs = tuple(Value(tuple(s), d, "", self.span) for s, d in zip(shapes, dtypes, strict=True))
        instance = self.instance
        if instance is not None:
            weights = self.drawn_outside(instance, weights)
        node = OpNode(
            op,
            self.options,
            self.inputs,
            outputs,
            weights,
            blocks or {},
            copies,
            active,
            dict(self.axes),
            instance=instance,
            handle=self.handle,
            span=self.span,
        )
        if instance is not None:
            if instance.node is None:
                instance.node = node
            elif _sizes(instance.node.weights) != _sizes(weights):
                first = instance.node.weights[0].shape if instance.node.weights else ()
                raise self.error(
                    "E0305",
                    f"the shared `{instance.name}` got its sizes at its first use: its weight is {shape_text(first)}, "
                    f"but here it would be {shape_text(weights[0].shape)}",
                    help="share a block only where the sizes are the same",
                )
        frame.put(node)
        if (weights or blocks) and instance is None:
            explicit = bool(self.as_name or self.label)
            frame.name_later(self.base, explicit, op.family == "linear", self.step)
        elif instance is not None and self.handle is None:
            object.__setattr__(node, "name", instance.path)
        return outputs

    def apply(self, name: str, *inputs: Input, called: str = "", **options: Any) -> Value:
        outputs = self.elaborator.primitive(self.scope, name, inputs, options, self.span, called)
        return outputs[0]

    def apply_block(
        self, block: Any, inputs: Sequence[Input], label: str, called: Sequence[str] = ()
    ) -> tuple[Value, ...]:
        if isinstance(block, BlockValue):
            block = block.labelled(label)
        tensors = [v for v in inputs if not isinstance(v, Num)]
        numbers = [v for v in inputs if isinstance(v, Num)]
        result = self.elaborator.apply(block, self.scope, self.span, numbers=numbers, tensors=tensors)
        outputs: tuple[Value, ...] = result if isinstance(result, tuple) else (result,)
        for value, name in zip(outputs, called, strict=False):
            if not value.name:
                object.__setattr__(value, "name", name)
        return outputs

    def apply_position(
        self, position: Any, inputs: Sequence[Input], options: Mapping[str, Any], called: str = "", outputs: int = 1
    ) -> Any:
        instance = position if isinstance(position, SharedModule) else None
        target = position.template.target if instance is not None else position.target
        found = self.elaborator.primitive(
            self.scope,
            target,
            inputs,
            options,
            self.span,
            called,
            as_name="position",
            label="position",
            instance=instance,
        )
        return found[0] if outputs == 1 else found

    def expert(self, block: Any, copies: Num, width: Num) -> CallNode:
        self.step = self.step or self.frame.step(self.base)
        return self.elaborator.expert(self, block, copies, width)

    def model_input(self, kind: str, length: Num) -> Value:
        axis, step = whole_axis(length)
        value = self.frame.bring(self.elaborator.find_model_input(kind, axis, self.span), kind)
        if step == 1:
            return value
        for name in free_names(length.expr):  # of which the step is made
            known = self.frame.known.get(name)
            if known is not None and known.static:
                self.fixed(known.named(name))
        return self.apply("every", value, called=value.name, step=num(step), axis=num(1))

    def bring(self, value: Value) -> Value:
        return self.frame.bring(value)

    # --- weights ---

    def drawn_outside(self, instance: SharedModule, weights: Sequence[Weight]) -> tuple[Weight, ...]:
        """The weights of a shared primitive, drawn as it is said where it lives."""
        step, rules = self.frame.rules_of(instance, self.elaborator.words)
        return drawn(rules, [step], weights)

    def own_weight(self, weight: Weight) -> Weight:
        frame, scheme = self.frame, self.options.get("init")
        if isinstance(scheme, InitRules):
            text = f"`init` of `{self.op.name}` is one scheme for all its weights, and rules by name were given"
            help_ = "rules stand in the slot `init` of a block or model"
            raise self.error("E0203", text, option="init", help=help_)
        if scheme is not None and weight.init.scheme == "default":
            weight = by_scheme(weight, scheme, self.span)
        shape = weight.shape if frame.copies is None else (frame.copies, *weight.shape)
        if any(not d.static for d in shape):
            loose = next(d for d in shape if not d.static)
            raise self.error(
                "E0402",
                f"a weight of `{self.op.name}` would have the shape {shape_text(shape)}, "
                f"but `{loose}` is known only when the model runs",
                help="fix the size by a hyper-parameter, or bring the axis out of the way with `transpose`",
            )
        return replace(weight, shape=shape)


def _sizes(weights: Sequence[Weight]) -> list[tuple[DimValue, ...]]:
    return [tuple(d.value for d in w.shape) for w in weights]


def coerce(value: Any, kind: str | None, default_none: bool, what: str, span: Span) -> Any:
    """A static value as an option of a kind; raises E0203 if it is of another, E0204 or E0401 for a number that is none
    of that kind."""
    if kind is None or (value is None and (default_none or kind in ("block", "position", "scheme"))):
        return value
    words, test = KINDS[kind]
    if kind == "word":
        name = getattr(value, "rule", None) or getattr(value, "name", None)
        if isinstance(name, str) and not isinstance(value, SharedModule):
            return name
        if value is None:
            return "none"
        if isinstance(value, str):
            return value
        if isinstance(value, Num):
            return value
    if kind == "type" and (name := value.name if isinstance(value, EnumValue) else value) in TYPES:
        return name
    if kind == "ints":
        if isinstance(value, Num):
            value = ListValue((value,), ElementRef(0))
        if isinstance(value, ListValue) and all(isinstance(v, Num) and isinstance(v.value, int) for v in value.items):
            return value.items
    if kind in ("size", "int") and isinstance(value, Num):
        return whole_size(value, kind, what, span)
    if kind in RANGES and isinstance(value, Num):
        demand_range(value, kind, what, span)
    if kind == "scheme" and isinstance(value, BlockValue) and value.name in ("zeros", "ones"):
        return Scheme(value.name)
    if test(value):
        return value
    help_ = _instead(value, kind, what)
    raise error("E0203", f"{what} is {words}, and {kind_of(value)} was given", span, help=help_)


def _instead(value: Any, kind: str, what: str) -> str:
    """What was probably meant by a value of the wrong kind."""
    if as_operand(value) is not value:
        return "`inf` stands among tensors: `where(seen, scores, -inf)`"
    if isinstance(value, str) and (value.isidentifier() or value.replace(".", "", 1).replace("_", "").isdecimal()):
        return f"write it without quotes: `{value}`"
    if kind == "bool" and isinstance(value, Num) and value.value in (0, 1):
        return "write `true`" if value.value else "write `false`"
    if kind == "block" and value is True and "norm" in what:
        return "write the norm itself: `rmsnorm` or `layernorm`"
    if kind == "block" and value is False:
        return "write `none`, or leave it out"
    if kind == "added" and isinstance(value, BlockValue | SharedModule):
        return f"`{value.name}` acts inside attention: give it to the layers, in their `position`"
    if what == "the slot `ffn`" and isinstance(value, Num):
        return f"a size belongs to a block: `mlp(hidden: {value})`"
    if kind == "list" and isinstance(value, Num):
        return f"layers are repeated by `*`: `{value} * layer`"
    if kind == "mask" and isinstance(value, ListValue):
        return "masks are joined by `&` (both) and `|` (either): `causal & window(128)`"
    return ""


def _is_added_position(value: Any) -> bool:
    template = value.template if isinstance(value, SharedModule) else value
    return isinstance(template, BlockValue) and not hasattr(template.target, "attend")


def _is_of(family: Collection[str], value: Any) -> bool:
    return isinstance(value, Scheme) and value.name in family


KINDS: dict[str, tuple[str, Any]] = {
    "size": ("a whole number", lambda v: isinstance(v, Num)),
    "int": ("a whole number", lambda v: isinstance(v, Num)),
    **{kind: ("a number", lambda v: isinstance(v, Num)) for kind in NUMBERS},
    "bool": ("`true` or `false`", lambda v: isinstance(v, bool)),
    "string": ("a string", lambda v: isinstance(v, str)),
    "word": ("a word", lambda v: isinstance(v, EnumValue)),
    "type": ("a type: float, float32, bfloat16, int or bool", lambda v: False),
    "block": ("a block", lambda v: isinstance(v, BlockValue | SharedModule)),
    "mask": ("a mask", lambda v: isinstance(v, Mask)),
    "position": ("a position", lambda v: isinstance(v, BlockValue | SharedModule)),
    "added": (
        "a position that is added to the embedding: learned or sinusoidal",
        _is_added_position,
    ),
    "scheme": ("a scheme such as normal(0.02)", lambda v: isinstance(v, InitRules) or _is_of(SCHEMES, v)),
    "scaling": ("a scaling of rope: linear, ntk, yarn, llama3 or longrope", lambda v: _is_of(SCALINGS, v)),
    "list": ("a list", lambda v: isinstance(v, ListValue | tuple | BlockValue | SharedModule)),
    "ints": ("a whole number or a list of them", lambda v: False),
}


def takes(kind: str | None, value: Any) -> bool:
    """Whether a static value is of a kind."""
    return kind in KINDS and bool(KINDS[kind][1](value))


def unknown_option(name: str, owner: str, declared: Any, span: Span, help: str = "") -> ArchError:
    names = sorted(declared)
    help_ = help or (one_of(name, names, "it takes") if names else "it takes no options")
    return error("E0201", f"`{owner}` has no option `{name}`", name_place(name, span), help=help_)


def name_place(name: str, value: Span) -> Span:
    """Where the name of an argument stands, in front of its value."""
    before = value.source.text[: value.start]
    found = re.search(rf"\b{re.escape(name)}\s*:\s*\Z", before[-len(name) - 80 :])
    if found is None:
        return value
    start = value.start - len(found[0])
    return Span(value.source, start, start + len(name))
