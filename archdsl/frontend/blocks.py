"""Applications of declared blocks: within the block around, or as a module of their own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from archdsl.diagnostics import ArchError, Label, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import HOPELESS, Elaboration, shown_at
from archdsl.frontend.block_builder import BlockBuilder
from archdsl.frontend.first_values import Fate, within
from archdsl.frontend.headers import hypers_of, is_inline, library_block, result_names, tensor_params
from archdsl.frontend.hypers import bind_defaults
from archdsl.frontend.lists import value_key
from archdsl.frontend.modules import words
from archdsl.frontend.primitives import joined_names
from archdsl.frontend.scopes import BlockCall, BodyState, ReportedError, Scope
from archdsl.frontend.signatures import Signatures, match_tensors
from archdsl.ir.closure import instantiated_names
from archdsl.ir.dims import Expr, Num, Poly, Var, axis_of, literal, shape_text, symbol
from archdsl.ir.graph import Block, CallNode, CheckNode, OpNode, Value
from archdsl.ir.op import Primitive, same
from archdsl.ir.static import BlockValue, SharedModule, abstract, free_name
from archdsl.ir.walk import every_node, typed_at
from archdsl.ir.wording import listed
from archdsl.syntax import ast
from archdsl.syntax.limits import MAX_BLOCK_DEPTH


class Blocks:
    """Applies declared blocks."""

    def __init__(self, state: Elaboration, signatures: Signatures) -> None:
        self.state = state
        self.signatures = signatures
        self.memo: dict[Hashable, Block] = {}
        """Blocks by what makes them: each is elaborated once."""
        self.fates: dict[Hashable, list[Fate]] = {}
        """Of each of those blocks, what came of the rules for first values around it."""
        self.broken: set[Hashable] = set()
        """Keys of blocks that have been reported as wrong."""
        self.applied: list[str] = []
        """The names of the blocks that are being elaborated, the innermost last."""

    def apply(self, call: BlockCall) -> tuple[Value, ...]:
        """Apply a block of the language. Errors inside the library are shown where the user wrote the block."""
        span = call.span
        if not span.source.library:
            self.state.user_spans.append(span)
        try:
            with self.within(call):
                written_in = is_inline(call.template) and call.instance is None  # what is shared lives in one place
                return self.apply_inline(call) if written_in else self._outline(call)
        except (ArchError, ReportedError) as problem:
            if isinstance(problem, ArchError) and not span.source.library:
                problem = ArchError([shown_at(d, span) for d in problem.diagnostics])
            hopeless = self.state.hopeless or (
                isinstance(problem, ArchError) and problem.diagnostics[0].code in HOPELESS
            )
            promised = None if hopeless else self._promised(call)
            if promised is None:
                raise problem from None
            if isinstance(problem, ArchError):
                self.state.report(problem)
            assert self.state.problems, "a wrong block has been reported"
            return promised
        finally:
            if not span.source.library:
                self.state.user_spans.pop()

    @contextmanager
    def within(self, call: BlockCall) -> Iterator[None]:
        """Count what is done meanwhile as part of an application. Raises E0207 where applications never end."""
        self.state.depth += 1
        self.applied.append(call.template.name)
        try:
            if self.state.depth > MAX_BLOCK_DEPTH:
                raise error("E0207", _recursion(self.applied), call.span, help="a repetition is a list, `12 * layer`")
            yield
        finally:
            self.state.depth -= 1
            self.applied.pop()

    def _promised(self, call: BlockCall) -> tuple[Value, ...] | None:
        """The result of a wrong block of the user's, if it has the shape of its first tensor: what follows can then
        be checked all the same."""
        target = call.declared
        if target.node.name_span.source.library or not isinstance(target.node, ast.BlockDecl) or target.node.inline:
            return None
        params, results = tensor_params(target), target.node.header.results
        first = call.input(params[0].name) if params else None
        if first is None or not first.is_float or not isinstance(target.node.body, ast.Body):
            return None
        if results is not None and [_dims_text(r.type) for r in results] != [_dims_text(params[0].type)]:
            return None
        return (call.scope.frame.own(Value(first.shape, first.dtype, "", call.span)),)

    def apply_inline(self, call: BlockCall) -> tuple[Value, ...]:
        """Apply a block of the language within the block around: it has no module of its own."""
        frame = call.scope.frame
        inner = Scope(call.declared.module, frame, BodyState(inline=True))
        for name, value in call.template.args.items():
            inner.vars[name] = value.labelled(name) if isinstance(value, BlockValue) else value
        given, sizes = match_tensors(call, inner, None)
        inner.vars.update(given)
        bind_defaults(self.state, call, inner, sizes, None)
        self.signatures.check_shapes(call, inner, given)
        stash, frame.pending, init = frame.pending, [], frame.init
        try:
            outputs = self.state.body(call.template, inner, given)
            frame.settle(None)
        finally:
            frame.pending, frame.init = stash + frame.pending, init
        return outputs

    def _outline(self, call: BlockCall) -> tuple[Value, ...]:
        """A call of a block that has a module of its own."""
        frame, own_name = call.scope.frame, call.as_name or call.template.label
        if call.instance is None:
            step = frame.step(own_name or call.template.name)
            node = self._call_block(call, frame.copies, frame.steps(step))
            frame.put(node)
            frame.name_later(step, True, False, step)
        else:
            node = self._call_block(call, frame.copies)
            self._place_instance(node, call.instance, frame, call.span)
        return node.outputs

    def _place_instance(self, call: CallNode, instance: SharedModule, frame: BlockBuilder, span: Span) -> None:
        """Put a call of a shared block, which lives where it was made."""
        if instance.block is None:
            instance.block = call.block
        elif _with_any_run_time_size(instance.block.key) != _with_any_run_time_size(call.block.key):
            first, second = instance.block.hypers, call.block.hypers
            differ = [k for k, n in second.items() if isinstance(n, Num) and value_key(first[k]) != value_key(n)]
            both = instance.block.graph.inputs, call.block.graph.inputs
            before, now = (" and ".join(shape_text(v.shape) for v in given) for given in both)
            what, how = "sizes", ""
            if differ:
                before, now = (" and ".join(f"`{k}: {h[k]}`" for k in differ) for h in (first, second))
            elif before == now:
                before, now = (" and ".join(f"{v.dtype}{shape_text(v.shape)}" for v in given) for given in both)
                what, how = "types", ": `x -> cast_like(y)` has the type of y"
            raise error(
                "E0305",
                f"the shared `{instance.name}` got its {what} at its first use, for {before}; here it is given {now}",
                span,
                labels=[Label(instance.span, "shared here")] if instance.span else [],
                help=f"share a block only where the {what} are the same{how}",
            )
        if instance.owner is not frame:
            # The numbers of the template are the owner's; only axes are known by this frame's names.
            object.__setattr__(call, "handle", frame.handle(instance, call.bind))
        else:
            frame.handle(instance, call.bind)
            object.__setattr__(call, "name", instance.path)
        object.__setattr__(call, "instance", instance)
        frame.put(call)

    def _call_block(self, call: BlockCall, copies: Num | None, steps: Sequence[str] = ()) -> CallNode:
        """A call of a block that has a module of its own, put nowhere yet; `steps` lead to it from the block around, if
        it is not a shared one."""
        template, frame = call.template, call.scope.frame
        args = template.args
        if call.instance is not None and call.instance.owner is not frame:
            fixed = call.instance.template.args  # the rest is of its use, in this block's own names
            args = {**args, **joined_names(call.instance, {k: args[k] for k in fixed}, self.state.words)}
        bind: dict[str, Expr] = {}
        own, inner = self._frame_within(call, args, copies, steps, bind)
        scope = Scope(call.declared.module, inner, BodyState())
        scope.vars.update(own)
        given, sizes = match_tensors(call, scope, bind)
        inner.own_names |= scope.vars.keys()
        for name, value in args.items():
            _demand_readable(template.name, name, value, given, call.span)
        block = self._block(replace(call, template=replace(template, args=own)), scope, given, sizes)
        return _called(call, block, {**_read_of_shared(args, frame), **bind, **_not_given(block, bind)})

    def _frame_within(
        self, call: BlockCall, args: Mapping[str, Any], copies: Num | None, steps: Sequence[str], bind: dict[str, Expr]
    ) -> tuple[dict[str, Any], BlockBuilder]:
        """The hyper-parameters in the called block's own names, and the frame that it is elaborated in. `bind` gets
        what these names are for the caller."""
        target, hypers, frame = call.declared, hypers_of(call.template), call.scope.frame
        taken = words(target.node.span.text)
        own = {k: abstract(k, v, bind, taken) for k, v in args.items()}
        inner = BlockBuilder(frame.ledger, call.template.name, target.node.name_span)
        inner.sizes = {name for name, hyper in hypers.items() if hyper.kind == "size" and name in own}
        inner.known.update({k: v for k, v in own.items() if isinstance(v, Num)})
        inner.own_names = {*hypers}
        rules = frame.init
        if call.instance is not None:
            path, rules = frame.rules_of(call.instance, self.state.words)
            steps = [path]
        inner.init = within(rules, steps, bind, taken)
        if copies is not None:
            inner.copies = abstract(free_name("expert_count", copies.expr, bind, taken), copies, bind)
        return own, inner

    def _block(self, call: BlockCall, scope: Scope, given: Mapping[str, Any], sizes: Mapping[str, Num]) -> Block:
        """The block for these hyper-parameters and tensors, elaborated once. Raises ReportedError where that was wrong
        before."""
        key = _block_key(call, scope.frame, given)
        if key in self.broken:
            raise ReportedError
        block = self.memo.get(key)
        if block is None:
            before = len(self.state.problems)
            try:
                block = self._elaborate(call, scope, given, sizes, key)
            except (ArchError, ReportedError):
                self.broken.add(key)
                raise
            if len(self.state.problems) > before:
                self.broken.add(key)
            self.memo[key] = block
            self.fates[key] = [rule.fate for rule in scope.frame.init]
        for rule, fate in zip(scope.frame.init, self.fates[key], strict=False):
            rule.note(fate)
        return block

    def _elaborate(
        self, call: BlockCall, scope: Scope, given: Mapping[str, Any], sizes: Mapping[str, Num], key: Hashable
    ) -> Block:
        target, node, frame = call.declared, call.declared.node, scope.frame
        scope.vars.update(given)
        bind_defaults(self.state, call, scope, sizes, frame)
        self.signatures.check_shapes(call, scope, given)
        outputs = self.state.body(call.template, scope, given)
        frame.settle(None)
        inputs: dict[int, tuple[str, Value]] = {}
        for param in tensor_params(target):
            value = given.get(param.name)
            if isinstance(value, Value):
                inputs.setdefault(id(value), (param.name, value))
        graph = frame.graph([v for _, v in inputs.values()], outputs)
        frame.block = Block(
            name=node.name,
            key=key,
            doc=node.doc,
            span=node.name_span,
            graph=graph,
            header=node.header,
            tensor_names=tuple(n for n, _ in inputs.values()),
            result_names=result_names(node, len(outputs)),
            contexts=tuple(frame.contexts.values()),
            hypers={name: scope.vars[name] for name in hypers_of(call.template) if name in scope.vars},
            local=dict(frame.local),
            axes=dict(frame.axes),
            asserts=tuple(frame.asserts),
            decisions=tuple(frame.decisions.values()),
            instances=tuple(frame.instances),
            library=target.module.source.library,
            copies=frame.copies,
            slots=frame.slots,
        )
        return frame.block

    # --- experts ------------------------------------------------------------------------------------------------------

    def expert(self, block: Any, copies: Num, width: Num, scope: Scope, steps: Sequence[str], span: Span) -> CallNode:
        """A block elaborated for rows of its own, every weight with a leading axis; `steps` lead to it."""
        if isinstance(block, SharedModule):
            raise error("E0203", "an expert cannot be shared: every expert has its own weights", span)
        frame = scope.frame
        rows = Num(symbol("rows"), Var("expert.0"), span)
        row = frame.own(Value((rows, width), "float", "x", span))
        if frame.copies is not None:
            raise error("E0204", "experts cannot hold experts", span)
        module = block
        if isinstance(block.target, Primitive) or is_inline(block):
            module = BlockValue(library_block("only"), {"inner": block})
        call = self._call_block(BlockCall(module, [(row, span)], {}, scope, span), copies, steps)
        if len(call.outputs) != 1 or not frame.same_shape(
            call.outputs[0].shape, row.shape, "an expert gives back the shape it gets"
        ):
            found = ", ".join(shape_text(o.shape) for o in call.outputs)
            raise error(
                "E0301",
                f"an expert gives back the shape it gets, {shape_text(row.shape)}, and `{block.name}` gives {found}",
                span,
            )
        kind = call.outputs[0].dtype
        if kind != "float":
            text = f"an expert gives back real numbers of the model's own type, and `{block.name}` gives {kind}"
            made = typed_at(
                every_node(call.block.graph), next(v for v in call.block.graph.outputs if v is not None), {}
            )
            labels = [Label(made, f"{kind} from here on")] if made is not None else []
            raise error("E0304", text, span, labels=labels, help="bring them back at its end: `cast(float)`")
        _check_expert(call.block, span)
        return call


def _called(call: BlockCall, block: Block, bind: Mapping[str, Expr]) -> CallNode:
    """The call of a block whose own names are bound, with what it reads of the blocks around."""
    span, frame, template = call.span, call.scope.frame, call.template
    names = instantiated_names(block, bind)
    contexts = frame.contexts_at(block.contexts, names)
    outputs = tuple(
        Value(tuple(d.outward(names).at(d.origin or span) for d in v.shape), v.dtype, "", span)
        for v in block.graph.outputs
        if v is not None
    )
    bind = {**bind, **{k: v for k, v in names.items() if axis_of(k) is not None}}
    place = template.span if span.source.library and template.span is not None else span
    inputs = tuple(map(call.input, block.tensor_names))
    return CallNode(block, inputs, contexts, outputs, bind, alias=template.alias, span=place)


def _not_given(block: Block, bind: Mapping[str, Expr]) -> dict[str, Expr]:
    """The hyper-parameters that were not given: the numbers of their defaults, unless the body computes them from
    others."""
    return {
        name: literal(value.value) if not isinstance(value.value, Poly) else value.expr
        for name, value in block.hypers.items()
        if isinstance(value, Num) and name not in bind and isinstance(value.expr, Var) and name not in block.local
    }


def _read_of_shared(args: Mapping[str, Any], frame: BlockBuilder) -> dict[str, Expr]:
    """What a block reads of the shared blocks that it is given, `table.width`: their owner knows the number, others
    hand on the name."""
    found: dict[str, Expr] = {}
    for value in args.values():
        if isinstance(value, SharedModule):
            found |= value.joined if value.owner is frame else {name: Var(name) for name in value.joined}
    return found


def _dims_text(type_: ast.TensorType) -> tuple[str, ...]:
    return tuple(d.span.text for d in type_.dims)


def _recursion(names: Sequence[str]) -> str:
    """What is said of blocks that never end."""
    last = names[-1]
    before = next((i for i in range(len(names) - 2, -1, -1) if names[i] == last), None)
    if before is None:
        return f"blocks are nested more than {MAX_BLOCK_DEPTH} deep"
    around = dict.fromkeys(names[before + 1 : -1])
    return f"`{last}` applies itself" + (f" by way of {listed(around)}" if around else "")


def _block_key(call: BlockCall, frame: BlockBuilder, given: Mapping[str, Any]) -> Hashable:
    """Equal for applications that make the same block: of tensors, shapes, names of axes, types and which are one
    count."""
    tensors = []
    seen: dict[int, str] = {}
    for name, value in given.items():
        if isinstance(value, Value):
            alias = seen.setdefault(id(value), name)
            tensors.append((name, alias, tuple((d.value, d.expr) for d in value.shape), value.dtype))
    return (
        id(call.declared.node),
        tuple((k, value_key(v)) for k, v in call.template.args.items()),
        tuple(tensors),
        tuple(rule.key for rule in frame.init),
        None if frame.copies is None else frame.copies.value,
    )


def _check_expert(block: Block, span: Span) -> None:
    """Raises E0204 for what has no form for many experts at once."""
    for node in block.graph.nodes:
        if isinstance(node, OpNode | CallNode) and node.instance is not None:
            text = f"an expert has no shared block in it, and `{node.instance.name}` is one"
            raise error("E0204", text, span, help="every expert has weights of its own, each applied once")
        if isinstance(node, CallNode):
            _check_expert(node.block, span)
        elif not isinstance(node, OpNode | CheckNode):
            raise error("E0204", "an expert is a plain block: no loops, raw weights or conditions", span)
        elif isinstance(node, OpNode) and node.weights and not node.op.has_grouped():
            raise error(
                "E0204",
                f"`{node.op.name}` cannot stand in an expert: its weights have no form for many experts at once",
                span,
                help="linear, layernorm and rmsnorm can",
            )
        elif isinstance(node, OpNode) and (_numbers_rows(node) or (node.op.mixes and _reads_rows(node))):
            raise error(
                "E0204",
                f"an expert mixes no positions, and `{node.op.name}` does",
                span,
                help="an expert gets its tokens from all sequences, in no order: mix positions before or after",
            )


def _reads_rows(node: OpNode) -> bool:
    """Whether an op reads other rows of an expert than its own."""
    return any(r and r[0] != same(0) for r in node.op.reads(node))


def _numbers_rows(node: OpNode) -> bool:
    """Whether an op counts the rows of an expert, as a mask or `indices` does."""
    sizes = (d.value for v in node.outputs for d in v.shape)
    return node.op.positional and any(isinstance(n, Poly) and n.symbols & symbol("rows").symbols for n in sizes)


def _demand_readable(block: str, name: str, value: Any, given: Mapping[str, Any], span: Span) -> None:
    """A hyper-parameter that only the running model knows must be the length of some axis of the block's tensors."""
    if not isinstance(value, Num) or value.static:
        return
    if any(d.value == value.value for v in given.values() if isinstance(v, Value) for d in v.shape):
        return
    raise error(
        "E0402",
        f"`{name}` of `{block}` is {value}, which is known only when the model runs and is no axis of its tensors",
        value.origin or span,
        help="give the block a tensor that has this axis, or a number",
    )


def _with_any_run_time_size(key: Any) -> Any:
    """A block's key, every size that only the running model knows being as good as any other."""
    if isinstance(key, Poly):
        return "?"
    return tuple(_with_any_run_time_size(k) for k in key) if isinstance(key, tuple) else key
