"""One application of a primitive in a spec: its arguments, checked against the signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from archdsl.diagnostics import ArchError, Label, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.first_values import by_scheme, drawn
from archdsl.frontend.scopes import Scope
from archdsl.ir.dims import Num, Poly, free_names, is_size_like, num, shape_text, whole_axis
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import CallNode, Handle, Input, OpNode, Value, Weight
from archdsl.ir.masks import Mask
from archdsl.ir.op import Primitive
from archdsl.ir.reapplied import Applied
from archdsl.ir.static import (
    BlockValue,
    InitRules,
    SharedModule,
)
from archdsl.syntax.limits import MAX_AXES


class OpCall(Applied):
    """The Application that a primitive is handed: see `archdsl.ir.op.Application`."""

    def __init__(self, op: Primitive, scope: Scope, span: Span, state: Elaboration) -> None:
        self.op = op
        self.frame = scope.frame
        self.scope = scope
        self.state = state
        self.span = span
        self.options: dict[str, Any] = {}
        self.spans: dict[str, Span] = {}
        self.input_spans: list[Span | None] = []
        self.inputs: tuple[Input, ...] = ()
        self.masks: dict[int, Mask] = {}
        self.axes: dict[str, Num] = {}
        self.instance: SharedModule | None = None
        self.handle: Handle | None = None
        self.label = ""
        """What the step is to be called."""
        self.step = ""
        """The step in the path of names, where it is known before the node is made."""

    @property
    def base(self) -> str:
        """What the step is made of."""
        return self.label or self.op.name

    # --- what primitives ask ---

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
            frame.name_later(self.base, bool(self.label), op.family == "linear", self.step)
        elif instance is not None and self.handle is None:
            object.__setattr__(node, "name", instance.path)
        return outputs

    def apply(self, name: str, *inputs: Input, called: str = "", **options: Any) -> Value:
        outputs = self.state.primitive(self.scope, name, inputs, options, self.span, called, "", None)
        return outputs[0]

    def apply_block(
        self,
        block: Any,
        inputs: Sequence[Input],
        label: str,
        called: Sequence[str] = (),
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[Value, ...]:
        if isinstance(block, BlockValue):
            block = block.labelled(label)
        tensors = [v for v in inputs if not isinstance(v, Num)]
        numbers = [v for v in inputs if isinstance(v, Num)]
        result = self.state.apply(block, numbers, tensors, self.scope, self.span, options)
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
        found = self.state.primitive(self.scope, target, inputs, options, self.span, called, "position", instance)
        return found[0] if outputs == 1 else found

    def expert(self, block: Any, copies: Num, width: Num) -> CallNode:
        self.step = self.step or self.frame.step(self.base)
        return self.state.expert(block, copies, width, self.scope, self.frame.steps(self.step), self.span)

    def model_input(self, kind: str, length: Num) -> Value:
        axis, step = whole_axis(length)
        value = self.frame.bring(self.state.find_model_input(kind, axis, self.span), kind)
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
        step, rules = self.frame.rules_of(instance, self.state.words)
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
