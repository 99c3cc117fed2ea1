"""Bodies: slots, equations, or a call of another block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from archdsl.diagnostics import ArchError, Label, error, nearest
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.block_builder import BlockBuilder
from archdsl.frontend.blocks import Blocks
from archdsl.frontend.calls import Calls
from archdsl.frontend.expressions import Expressions, as_mask
from archdsl.frontend.first_values import Rule, said, whole
from archdsl.frontend.headers import default_none, demand_applicable, hypers_of, library_block, tensor_params
from archdsl.frontend.hypers import with_options
from archdsl.frontend.kinds import coerce
from archdsl.frontend.loops import assigned
from archdsl.frontend.scopes import POISON, BlockCall, Given, ReportedError, Scope
from archdsl.frontend.signatures import Signatures, demand_written
from archdsl.frontend.statements import Statements
from archdsl.ir.dims import same_shape, shape_text
from archdsl.ir.graph import Value
from archdsl.ir.static import BlockValue, Declared, InitRules, JoinedPattern, ListValue, Scheme, SharedModule, kind_of
from archdsl.ir.wording import one_of, written_shape
from archdsl.syntax import ast

DISPENSABLE = frozenset({"blocks", "encoder", "decoder", "norm", "head", "heads", "position", "dropout", "init"})
"""Slots of a model without which the others can still be checked."""


class Bodies:
    """Runs bodies."""

    def __init__(
        self,
        state: Elaboration,
        signatures: Signatures,
        blocks: Blocks,
        calls: Calls,
        expressions: Expressions,
        statements: Statements,
    ) -> None:
        self.state = state
        self.signatures = signatures
        self.blocks = blocks
        self.calls = calls
        self.expressions = expressions
        self.statements = statements
        self.rules: list[tuple[Rule, BlockBuilder]] = []
        """The rules for first values that bodies say, and where."""

    def run(self, template: BlockValue, scope: Scope, given: Mapping[str, Any]) -> tuple[Value, ...]:
        """Run the body of a block; its results, checked against the signature."""
        assert isinstance(template.target, Declared)
        node = template.target.node
        meant = slots_with_equals(node)
        if meant:
            raise _with_equals(meant)
        if not isinstance(node.body, ast.Body):
            value = self._alias(node.body, scope, given)
        elif node.body.is_of_slots:
            value = self._slots(node, scope, given)
        else:
            value = self._equations(node, node.body, scope, given)
        flat: list[Value] = []
        for item in value if isinstance(value, tuple) else (value,):
            for v in item if isinstance(item, list) else [item]:
                if not isinstance(v, Value):
                    raise error("E0203", f"a block gives tensors back, and this is {kind_of(v)}", node.name_span)
                flat.append(v)
        if not flat:
            raise error("E0213", f"`{node.name}` gives an empty list back", node.name_span)
        if node.header.results is None:
            first = next((v for v in given.values() if isinstance(v, Value)), None)
            self._check_like_first(node, first, flat, scope)
        else:
            self.check_results(node, node.header.results, flat, scope)
        return tuple(flat)

    def check_results(
        self,
        node: ast.BlockDecl | ast.ModelDecl,
        results: Sequence[ast.Result],
        values: Sequence[Value],
        scope: Scope,
    ) -> None:
        """Results as the signature declares them: they take on the sizes that it promises."""
        if len(results) != len(values):
            declared = f"{len(results)} result{'s' * (len(results) > 1)}"
            raise error("E0205", f"`{node.name}` declares {declared} and gives {len(values)} back", node.name_span)
        for result, value in zip(results, values, strict=True):
            what = f"the result `{result.name}` of `{node.name}`" if result.name else f"the result of `{node.name}`"
            where = value.span if value.span and not value.span.source.library else result.span
            demand_written(what, result.type, value, where, scope.frame)
            shape = self.signatures.same_dims(result.type, value, scope, what, where, bind=True)
            if not same_shape(shape, value.shape):
                # `time / 4` is what the result promises; the condition that makes it so has been noted.
                object.__setattr__(value, "shape", shape)

    def _check_like_first(
        self,
        node: ast.BlockDecl | ast.ModelDecl,
        first: Value | None,
        results: Sequence[Value],
        scope: Scope,
    ) -> None:
        """Without `->` the result has the first tensor's shape: demanded of blocks of equations that name their
        tensors, outside the library."""
        demanded = (
            isinstance(node, ast.BlockDecl)
            and not node.inline
            and isinstance(node.body, ast.Body)
            and not node.body.is_of_slots
            and node.header.tensors is not None
            and not node.name_span.source.library
        )
        if not demanded or first is None or len(results) != 1:
            return
        if scope.frame.same_shape(first.shape, results[0].shape, f"`{node.name}` keeps the shape of its tensor"):
            return
        raise error(
            "E0301",
            f"`{node.name}` says nothing of its result, so it should have the shape of its first tensor, "
            f"{shape_text(first.shape)}; it has {shape_text(results[0].shape)}",
            node.name_span,
            help=f"write the result behind the tensors: `-> {written_shape(results[0])}`",
        )

    # --- one call of another block ------------------------------------------------------------------------------------

    def _alias(self, body: ast.Expr, scope: Scope, given: Mapping[str, Any]) -> Any:
        """`block swiglu(hidden) = glu_mlp(…)`: the body of the other block, in this one's names."""
        value = self.expressions.ev(body, scope)
        if isinstance(value, SharedModule):
            raise error("E0203", "a block is one call of another, and this is shared", body.span)
        if not isinstance(value, BlockValue):
            raise error("E0203", f"a block is one call of another, and this is {kind_of(value)}", body.span)
        demand_applicable(value.target, body.span)
        tensors = [(v, body.span) for v in given.values() if isinstance(v, Value)]
        if isinstance(value.target, Declared):
            call = BlockCall(value, tensors, {}, scope, body.span)
            with self.blocks.within(call):
                return self.blocks.apply_inline(call)
        return self.calls.apply_template(BlockCall(replace(value, label=""), tensors, {}, scope, body.span))

    # --- slots --------------------------------------------------------------------------------------------------------

    def _slots(self, node: ast.BlockDecl | ast.ModelDecl, scope: Scope, given: Mapping[str, Any]) -> Any:
        """A body of slots is a call of the library's block."""
        assert isinstance(node.body, ast.Body)
        declared, span = slot_block(node), node.name_span
        args = self.slot_arguments(node, declared, scope, f"`{node.name}`")
        template = with_options(BlockValue(declared, {}), args, (), span, scope.frame)
        tensors = {k: (v, span) for k, v in given.items() if isinstance(v, Value)}
        names = {p.name for p in tensor_params(declared)} if isinstance(node, ast.BlockDecl) else set()
        ordered = [t for k, t in tensors.items() if k not in names]
        named = {k: t for k, t in tensors.items() if k in names}
        if isinstance(node, ast.BlockDecl):
            # Any others are there for the slots to read: a mask may be made of them.
            ordered = ordered[: ("x" not in named) + ("cross_attention" in args and "memory" not in named)]
        return self.apply_slots(node, BlockCall(template, ordered, named, scope, span))

    def apply_slots(self, node: ast.BlockDecl | ast.ModelDecl, call: BlockCall) -> tuple[Value, ...]:
        """Apply the library's block that a body of slots stands for."""
        assert isinstance(node.body, ast.Body)
        self.state.slot_spans.append((call.declared, {s.key: s.span for s in node.body.slots}))
        try:
            return self.blocks.apply(call)
        finally:
            self.state.slot_spans.pop()

    def slot_arguments(
        self,
        node: ast.BlockDecl | ast.ModelDecl,
        declared: Declared,
        scope: Scope,
        owner: str,
        adjust: Callable[[str, Any, Span], Given] | None = None,
    ) -> dict[str, Given]:
        """The values of a body of slots, as the library's block takes them; `owner` is what an error calls the body.
        `adjust` has the last word on a slot's value."""
        assert isinstance(node.body, ast.Body)
        hypers = hypers_of(BlockValue(declared, {}))
        args: dict[str, Given] = {}
        written = {item.key for item in node.body.items if isinstance(item, ast.Slot)}
        broken: set[str] = set()
        for item in node.body.items:
            key = item.key if isinstance(item, ast.Slot) else ""
            if isinstance(item, ast.Slot) and key not in hypers:
                help_ = one_of(key, hypers, "its slots are")
                self.state.report(error("E0201", f"{owner} has no slot `{key}`", item.key_span, help=help_))
                key = nearest(key, hypers)  # taken as that one, to go on
                if not key or key in written:
                    continue
            elif (
                isinstance(item, ast.Assign)
                and not isinstance(item.value, ast.For | ast.Scan)
                and item.names[0] in hypers
            ):
                self.state.report(_with_equals([item]))
                key = item.names[0]
                item = ast.Slot(key, item.value, span=item.span, key_span=item.span)
            try:
                self._slot_argument(item, key, hypers, scope, adjust, args)
            except (ArchError, ReportedError) as problem:
                # The other slots may be wrong too, each for itself.
                if isinstance(problem, ArchError):
                    self.state.report(problem)
                if isinstance(item, ast.Let):
                    scope.vars[item.name] = POISON
                broken.add(key)
        if broken and isinstance(node, ast.ModelDecl) and broken <= DISPENSABLE:
            # Without them the rest can be checked.
            empty = ListValue((), JoinedPattern(()))
            args.update({key: (empty, node.name_span) for key in broken if hypers[key].kind == "list"})
        elif broken:
            raise ReportedError
        scope.frame.slots = scope.frame.slots or {key: value for key, (value, _) in args.items()}
        return args

    def _slot_argument(
        self,
        item: ast.Slot | ast.Statement,
        key: str,
        hypers: Mapping[str, ast.Hyper],
        scope: Scope,
        adjust: Callable[[str, Any, Span], Given] | None,
        args: dict[str, Given],
    ) -> None:
        """One slot's value, or a `let` or `assert` among the slots."""
        if isinstance(item, ast.Let | ast.Assert):
            self.statements.run_one(item, scope)
            return
        if not isinstance(item, ast.Slot):
            help_ = "write the whole body in one of the two ways"
            raise error("E0215", "slots and equations do not mix", item.span, help=help_)
        if key in args:
            labels = [Label(args[key][1], "given here first")] if not args[key][1].source.library else []
            raise error("E0202", f"the slot `{key}` is given twice", item.key_span, labels=labels)
        hyper = hypers[key]
        value, where = self.expressions.ev(item.value, scope, hyper.kind), item.value.span
        if isinstance(value, Value) and value.dtype in ("padding", "documents"):
            value = as_mask(value, where)
        if adjust is not None:
            value, where = adjust(key, value, where)
        if hyper.kind not in ("word", "size"):
            coerce(value, hyper.kind, default_none(hyper), f"the slot `{key}`", where)
        if isinstance(value, BlockValue):
            value = value.labelled(key)
        if key == "init":
            self.say_init(value, item, scope)
        args[key] = (value, where)

    def say_init(self, value: Any, slot: ast.Slot, scope: Scope) -> None:
        """The slot `init`: a scheme for all weights of the body that is run, or rules by name."""
        frame = scope.frame
        if isinstance(value, Scheme):
            frame.init += (whole(value, slot.span),)
        elif isinstance(value, InitRules):
            found = tuple(map(said, value.rules))
            frame.init += found
            self.rules += [(rule, frame) for rule in found]

    # --- equations ----------------------------------------------------------------------------------------------------

    def _equations(
        self,
        node: ast.BlockDecl | ast.ModelDecl,
        body: ast.Body,
        scope: Scope,
        given: Mapping[str, Any],
    ) -> Any:
        """Statements, below an `init` if there is one; without `return` the result is the last value of the first
        tensor."""
        first = next((k for k, v in given.items() if isinstance(v, Value)), "")
        before = scope.vars.get(first)
        known = len(self.state.problems)
        statements: list[ast.Statement] = []
        slot: ast.Slot | None = None
        for item in body.items:
            if not isinstance(item, ast.Slot):
                statements.append(item)
            elif slot is not None:
                labels = [Label(slot.value.span, "given here first")]
                raise error("E0202", "the slot `init` is given twice", item.key_span, labels=labels)
            elif all(isinstance(s, ast.Let | ast.Assert) for s in statements):
                slot = item
                self.statements.run(statements, scope)
                value = self.expressions.ev(slot.value, scope, "scheme")
                self.say_init(coerce(value, "scheme", True, "the slot `init`", slot.value.span), slot, scope)
                statements = []
            else:
                text = "`init` says how the weights below it are drawn: it stands before the equations"
                raise error("E0215", text, item.span)
        self.statements.run(statements, scope)
        if scope.body.result is not None:
            return scope.body.result
        last = scope.vars.get(first)
        if last is POISON or (last is before and len(self.state.problems) > known):
            raise ReportedError
        if not first or (last is before and first not in assigned(statements)):
            bound = assigned([s for s in statements if isinstance(s, ast.Assign)])
            help_ = f"end it with `return {bound[-1] if bound else '…'}`"
            help_ += f", or bind `{first}` again: `{first} += …`" if first else ""
            raise error("E0213", f"`{node.name}` gives nothing back", node.name_span, help=help_)
        return last


def slots_with_equals(node: ast.BlockDecl | ast.ModelDecl) -> list[ast.Assign]:
    """The statements of a body that were meant as slots: it binds nothing but names of slots, and has no tensors."""
    if not isinstance(node.body, ast.Body) or node.header.tensors is not None:
        return []
    items = [i for i in node.body.items if not isinstance(i, ast.Let | ast.Assert | ast.Slot)]
    if any(s.key != "init" for s in node.body.slots):
        return []
    names = hypers_of(BlockValue(slot_block(node), {}))
    meant = [i for i in items if isinstance(i, ast.Assign) and len(i.names) == 1 and i.names[0] in names]
    return meant if len(meant) == len(items) else []


def _with_equals(items: Sequence[ast.Assign]) -> ArchError:
    first = items[0]
    more = [Label(i.span, "and this") for i in items[1:]]
    value = " ".join(first.value.span.text.split())
    help_ = f"write `{first.names[0]}: {value if len(value) <= 60 else '…'}`"
    return error("E0216", "a slot is given with `:`, not with `=`", first.span, labels=more, help=help_)


def slot_block(node: ast.BlockDecl | ast.ModelDecl) -> Declared:
    """The library's block that a body of slots calls."""
    if isinstance(node, ast.BlockDecl):
        return library_block("transformer_block")
    slots = {s.key: s.value for s in node.body.slots}
    if "encoder" in slots or "decoder" in slots:
        return library_block("encoder_decoder")
    source = slots.get("input")
    if source is None or (isinstance(source, ast.Name) and source.id == "tokens"):
        return library_block("language_model")
    return library_block("input_model")
