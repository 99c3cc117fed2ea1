"""Applications of primitives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from archdsl.diagnostics import error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.block_builder import BlockBuilder, handle_key
from archdsl.frontend.kinds import coerce
from archdsl.frontend.op_call import OpCall
from archdsl.frontend.scopes import Absent, BlockCall, BodyState, Scope
from archdsl.frontend.signatures import Signature, Signatures
from archdsl.ir.dims import Expr, Num, num
from archdsl.ir.graph import Handle, Input, OpNode, Value
from archdsl.ir.masks import Mask
from archdsl.ir.op import Primitive
from archdsl.ir.static import ListValue, SharedModule, abstract, free_name


class Primitives:
    """Applies primitives."""

    def __init__(self, state: Elaboration, signatures: Signatures) -> None:
        self.state = state
        self.signatures = signatures

    # --- inputs -------------------------------------------------------------------------------------------------------

    def inputs(self, op: Primitive, call: BlockCall) -> tuple[list[Input | Mask], list[Span | None]]:
        """The inputs of a primitive in the order of its signature, and where each was written."""
        given = Signature.of(op, call.span).pairs(call.tensors, call.named)
        return [self._input(value, call.scope, where) for _, value, where in given], [where for _, _, where in given]

    def _input(self, value: Any, scope: Scope, span: Span) -> Input | Mask:
        """An input as a node has it: a shared block stands for its weight."""
        if isinstance(value, SharedModule):
            return self._weight_of(value, scope, span)
        return None if isinstance(value, Absent) else value

    def _weight_of(self, instance: SharedModule, scope: Scope, span: Span) -> Value:
        """The single matrix of a shared primitive, as a tensor."""
        target = instance.template.target
        if isinstance(target, Primitive) and instance.node is None:
            self._fix_by_options(target, instance, scope, span)
        weights = instance.node.weights if isinstance(target, Primitive) else ()
        matrices = [w for w in weights if w.kind in ("matrix", "embedding")]
        if len(matrices) != 1:
            raise error(
                "E0203",
                f"the shared `{instance.name}` has no single weight matrix to tie to",
                span,
                help="share an `embedding` or a `linear`",
            )
        return scope.frame.weight(Handle(instance, matrices[0].name), {})

    def _fix_by_options(self, target: Primitive, instance: SharedModule, scope: Scope, span: Span) -> None:
        """An embedding's table is known before its first use: all its sizes are options."""
        if target.family != "embedding":
            text = f"the shared `{instance.name}` has no sizes yet: apply it before its weight is read"
            raise error("E0211", text, span)
        site = self._site(scope, target, [Value((num(1),), "int")], instance.template.args, span)
        weights = site.drawn_outside(instance, [site.own_weight(w) for w in target.weights(site)])
        instance.node = OpNode(target, site.options, (), (), weights, span=span, instance=instance)

    # --- applications -------------------------------------------------------------------------------------------------

    def _site(
        self,
        scope: Scope,
        op: Primitive,
        inputs: Sequence[Input],
        options: Mapping[str, Any],
        span: Span,
        spans: Sequence[Span | None] = (),
    ) -> OpCall:
        """The application with its options by name, defaults filled in, and its axes bound."""
        frame = scope.frame
        site = OpCall(op, scope, span, self.state)
        site.inputs = tuple(inputs)
        site.input_spans = list(spans)
        single = {h.name for h in op.header.hypers or () if h.kind != "named_sizes"}
        for hyper in op.header.hypers or ():
            if hyper.name not in single:  # all others together, one of which may be called like it
                site.options[hyper.name] = {k: v for k, v in options.items() if k not in single}
            elif hyper.name in options:
                value = options[hyper.name]
                if isinstance(value, Num) and value.origin is not None and value.origin.source is span.source:
                    site.spans[hyper.name] = value.origin
                site.options[hyper.name] = _in_order(value) if hyper.kind == "sizes" else value
            elif hyper.kind == "sizes":
                site.options[hyper.name] = ()
            elif hyper.default is None:
                notes = [f"its signature is {op.signature}"]
                raise error("E0205", f"`{op.name}` still needs its `{hyper.name}`", span, notes=notes)
            else:
                default = self.state.ev(hyper.default, Scope(self.state.module, frame, BodyState()), hyper.kind)
                site.options[hyper.name] = coerce(default, hyper.kind, True, hyper.name, span)
        site.axes = self.signatures.match_inputs(op, inputs, spans, site.options, frame, span)
        return site

    def apply(
        self,
        scope: Scope,
        op: Primitive | str,
        inputs: Sequence[Input | Mask],
        options: Mapping[str, Any],
        span: Span,
        hint: str = "",
        label: str = "",
        instance: SharedModule | None = None,
        *,
        spans: Sequence[Span | None] = (),
    ) -> tuple[Value, ...]:
        """Apply a primitive; its outputs, called by the hint if they have no name. The label, if there is one, is the
        step in the path of names."""
        if isinstance(op, str):
            op = _primitive(op)
        frame, handle = scope.frame, None
        if instance is not None:
            options, handle = self._instance_options(instance, options, frame)
        tensors = [None if isinstance(v, Mask) else v for v in inputs]
        site = self._site(scope, op, tensors, options, span, spans)
        site.masks = {i: v for i, v in enumerate(inputs) if isinstance(v, Mask)}
        wrong = next((i for i in site.masks if i not in op.takes_masks), None)
        if wrong is not None:
            param = Signature.of(op, span).param(wrong)
            where = spans[wrong] if wrong < len(spans) else None
            raise error(
                "E0203",
                f"`{param.name}` of `{op.name}` is a tensor, and a mask was given",
                where or span,
                help="a mask chooses among tensors: `where(mask, scores, -inf)`",
            )
        site.label, site.instance, site.handle = label, instance, handle
        if op.own_type or (frame.copies is not None and op.has_grouped()):
            site.inputs = tuple(self._own_type(v, scope, span) for v in site.inputs)
        op.check(site)
        outputs = tuple(op.build(site))
        if instance is not None and handle is not None:
            _fix_bind(frame, instance, site.axes)
        if hint:
            for value in outputs:
                if not value.name:
                    object.__setattr__(value, "name", hint)
        return outputs

    def _own_type(self, value: Input, scope: Scope, span: Span) -> Input:
        """A tensor of a type that was asked for by name, cast back to the model's own."""
        if not isinstance(value, Value) or value.dtype not in ("float32", "bfloat16"):
            return value
        return self.apply(scope, "cast", [value], {"dtype": "float"}, span, hint=value.name)[0]

    def _instance_options(
        self, instance: SharedModule, options: Mapping[str, Any], frame: BlockBuilder
    ) -> tuple[Mapping[str, Any], Handle | None]:
        """Options of a shared primitive as seen here, and the handle where it lives in another block."""
        here = instance.owner is frame
        if not here:
            own = {k: v for k, v in options.items() if k not in instance.template.args}
            joined = joined_names(instance, {k: v for k, v in options.items() if k not in own}, self.state.words)
            options = {**own, **joined}
        handle = frame.handle(instance, {})
        return options, None if here else handle


def _in_order(value: Any) -> tuple[Any, ...]:
    """Sizes one by one, which were given so or as a list: `split(3, 5)`, `split(sizes: [3, 5])`."""
    given = value if isinstance(value, tuple) else (value,)
    return tuple(n for v in given for n in (v.items if isinstance(v, ListValue) else (v,)))


def _primitive(name: str) -> Primitive:
    from archdsl.ops import registry

    return registry.get(name)


def joined_names(instance: SharedModule, options: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """The options of a shared block that lives in another one, its numbers under names such as `table_vocab` that are
    not `taken`: they stand for the same in every block that the shared one is handed to."""
    joined: dict[str, Expr] = {}
    label = instance.label or instance.name
    found = {}
    for k, v in options.items():
        name = f"{label}_{k}"
        found[k] = abstract(free_name(name, v.expr, joined, taken) if isinstance(v, Num) else name, v, joined, taken)
    instance.joined.update(joined)
    return found


def _fix_bind(frame: BlockBuilder, instance: SharedModule, axes: Mapping[str, Num]) -> None:
    """The first use tells the owner what the shared block's axes are in its names."""
    use = frame.contexts[handle_key(Handle(instance))]
    if not use.bind:
        object.__setattr__(use, "bind", {k: n.expr for k, n in axes.items()})
