"""The model: its hyper-parameters and inputs, and the settings of variants and of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from archdsl.diagnostics import ArchError, Diagnostic, Label, did_you_mean, error
from archdsl.diagnostics.source import Source, Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.block_builder import BlockBuilder, GivenUpError, Ledger
from archdsl.frontend.blocks import Blocks
from archdsl.frontend.bodies import Bodies, slot_block, slots_with_equals
from archdsl.frontend.calls import Calls
from archdsl.frontend.expressions import Expressions
from archdsl.frontend.first_values import Rule, unused
from archdsl.frontend.functions import Functions
from archdsl.frontend.headers import (
    default_none,
    demand_applicable,
    hypers_of,
    result_names,
    stored_kind,
    tensor_params,
)
from archdsl.frontend.hypers import with_options
from archdsl.frontend.kinds import coerce, unknown_option
from archdsl.frontend.longest import beyond_context
from archdsl.frontend.loops import Loops
from archdsl.frontend.modules import SpecModule, pick_model
from archdsl.frontend.names import Names
from archdsl.frontend.primitives import Primitives
from archdsl.frontend.scopes import MISSING, BlockCall, BodyState, Given, ReportedError, Scope
from archdsl.frontend.signatures import Signatures, demand_written
from archdsl.frontend.statements import Statements
from archdsl.ir import dims, verify
from archdsl.ir.dims import Num, Poly, TooLargeError, Var, symbol
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import Block, ConfigField, Graph, Model, Value, captured
from archdsl.ir.static import BlockValue, Declared, format_value, kind_of
from archdsl.ir.walk import operations
from archdsl.ir.wording import format_number, listed, one_of
from archdsl.passes.hoist import hoisted
from archdsl.syntax import ast
from archdsl.syntax.limits import MAX_OPERATIONS

SIZE_SLOTS = ("vocab", "context", "width")
"""Slots of a model that are hyper-parameters too: numbers of the config that can be set."""

EXAMPLES = {
    "vocab": "50_257",
    "context": "1024",
    "width": "768",
    "blocks": "12 * layer",
    "encoder": "6 * encoder_layer",
    "decoder": "6 * decoder_layer",
}
"""What a slot that a model needs may hold."""


class Elaborator:
    """Builds one model of a program: `Elaborator(module).build(name, overrides)`. An elaborator builds once."""

    def __init__(self, module: SpecModule) -> None:
        state = self.state = Elaboration(module)
        signatures = self.signatures = Signatures(state)
        primitives = Primitives(state, signatures)
        names = Names(state)
        functions = Functions(state, primitives, names)
        blocks = Blocks(state, signatures)
        calls = Calls(state, primitives, names, functions, blocks)
        expressions = self.expressions = Expressions(state, primitives, names, functions, calls)
        loops = Loops(state, signatures, expressions)
        statements = Statements(state, signatures, primitives, names, expressions, loops)
        bodies = self.bodies = Bodies(state, signatures, blocks, calls, expressions, statements)
        # What parts ask of those that are made after them.
        state.ev, state.statements, state.body = expressions.ev, statements.run, bodies.run
        state.primitive, state.apply, state.expert = primitives.apply, calls.apply, blocks.expert
        state.find_model_input = self.find_model_input
        self.inputs: dict[str, Value] = {}
        self.optional_inputs: set[str] = set()
        self.made_inputs: dict[str, Value] = {}
        """Inputs of a model of slots that its masks ask for."""
        self.input_by_slots = False
        self.context: Num | None = None
        """Of a model of slots: the length of its longest sequence."""

    def build(self, name: str | None, overrides: Mapping[str, str], *, hoist: bool = True) -> Model:
        """Elaborate the model (or variant) of that name, with hyper-parameters set as given; without `hoist` each block
        computes what its body says. Raises ArchError with all that is wrong."""
        declaration = pick_model(self.state.module, name)
        try:
            model = self._build(declaration, overrides, hoist)
        except ArchError as problem:
            self.state.report(problem)
        except ReportedError:
            pass
        except GivenUpError as problem:
            self.state.user_spans.clear()
            self.state.report(problem.problem)
        except TooLargeError as problem:  # of sizes in the names of the blocks around
            span = declaration.name_span
            self.state.report(error("E0404", f"a size of `{declaration.name}` is too long", span, help=str(problem)))
        except RecursionError:
            text = f"what `{declaration.name}` is made of is nested too deep"
            help_ = "write a repetition as a list or a `for`"
            self.state.report(error("E0107", text, declaration.name_span, help=help_))
        else:
            if not self.state.problems:
                return verify.checked(model, verify.violations, "elaboration")
        raise ArchError(in_order(self.state.problems))

    def _build(self, declaration: ast.ModelDecl | ast.Variant, overrides: Mapping[str, str], hoist: bool) -> Model:
        frame = self.state.root = BlockBuilder(Ledger(), declaration.name, declaration.name_span)
        node, module, given = self._settled(declaration)
        of_hypers, of_slots = self._overrides(overrides, node)
        template = BlockValue(Declared(node, module), {})
        template = with_options(template, {**given, **of_hypers}, (), declaration.name_span, frame)
        scope = Scope(module, frame, BodyState())
        self._bind_hypers(declaration, template, scope)
        hypers = hypers_of(template)
        frame.own_names = {*hypers, *SIZE_SLOTS}
        config = {h: scope.vars[h] for h in hypers if isinstance(scope.vars[h], Num) and h not in frame.local}
        if node.body.is_of_slots:
            outputs = self._slot_model(node, scope, config, of_slots)
            self._check_header(node, outputs, scope)
        else:
            if not slots_with_equals(node):  # else `body` says so
                self._equation_inputs(node, scope)
                frame.own_names |= scope.vars.keys()
            outputs = self.bodies.run(template, scope, dict(self.inputs))
        frame.settle(None)
        model = self._model(declaration, node, scope, config, outputs)
        frame.block = model.block
        if not self.state.problems:
            self._demand_use()
        if self.context is not None:
            for problem in beyond_context(model.block.graph, self.context):
                self.state.report(ArchError([problem]))
        if self.state.problems:
            return model
        model = hoisted(model) if hoist else model
        if (count := operations(model.block.graph)) > MAX_OPERATIONS:
            text = f"with every loop and every block written out, the model has {count:,} operations"
            raise GivenUpError(text, "operations", declaration.name_span)
        return model

    def _demand_use(self) -> None:
        """Report (E0217) each rule for first values that decides for no weight, wherever its body is applied."""
        used = {rule.span for rule, _ in self.bodies.rules if rule.fate == "decides"}
        worst: dict[Span, tuple[Rule, BlockBuilder]] = {}
        for rule, frame in self.bodies.rules:
            known = worst.get(rule.span)
            if rule.span not in used and (known is None or known[0].fate_rank < rule.fate_rank):
                worst[rule.span] = rule, frame
        for rule, frame in worst.values():
            assert frame.block is not None  # nothing is wrong: every frame became one
            self.state.report(unused(rule, frame.block))

    # --- hyper-parameters ---------------------------------------------------------------------------------------------

    def _settled(self, declaration: ast.ModelDecl | ast.Variant) -> tuple[ast.ModelDecl, SpecModule, dict[str, Given]]:
        """The model behind a variant, the file it is in, and what the variants set."""
        node, module = declaration, self.state.module
        given: dict[str, Given] = {}
        chain: set[str] = set()
        while isinstance(node, ast.Variant):
            if node.name in chain:
                raise error("E0212", f"the variant `{node.name}` is defined by itself", node.name_span)
            chain.add(node.name)
            node, module, args = self._variant(node, module)
            given = {**args, **given}
        return node, module, given

    def _variant(
        self, node: ast.Variant, module: SpecModule
    ) -> tuple[ast.ModelDecl | ast.Variant, SpecModule, dict[str, Given]]:
        call = node.value
        function = call.function if isinstance(call, ast.Call) else call
        if not isinstance(function, ast.Name):
            text = "a variant is a model with other hyper-parameters: `variant big = base(layers: 24)`"
            raise error("E0203", text, node.span)
        home, target = module.find(function.id) or (module, None)
        if not isinstance(target, ast.ModelDecl | ast.Variant):
            help_ = did_you_mean(function.id, module.visible())
            raise error("E0210", f"nothing that can be compiled is called `{function.id}`", function.span, help=help_)
        scope = Scope(module, self.state.root, BodyState())
        args: dict[str, Given] = {}
        for arg in call.args if isinstance(call, ast.Call) else ():
            if arg.name is None:
                raise error("E0205", "a variant names the hyper-parameters it sets", arg.span)
            args[arg.name] = (self.expressions.ev(arg.value, scope), arg.value.span)
        if isinstance(target, ast.ModelDecl):
            names = {h.name for h in target.header.hypers or ()}
            for key, (_, where) in args.items():
                if key not in names:
                    raise unknown_option(key, target.name, names, where)
        return target, home, args

    def _overrides(
        self, overrides: Mapping[str, str], node: ast.ModelDecl
    ) -> tuple[dict[str, Given], dict[str, Given]]:
        """What is set from outside: hyper-parameters, and slots that are numbers. Raises E0201 for anything else."""
        from archdsl.syntax.parse import parse_expression

        hypers = {h.name for h in node.header.hypers or ()}
        settable = {s.key for s in node.body.slots if s.key in SIZE_SLOTS}
        of_hypers: dict[str, Given] = {}
        of_slots: dict[str, Given] = {}
        for key, text in overrides.items():
            source, scope = Source("--set", text), Scope(self.state.module, self.state.root, BodyState())
            value = self.expressions.ev(parse_expression(source), scope)
            span = Span(source, 0, len(text))
            if key in hypers:
                of_hypers[key] = (value, span)
            elif key in settable:
                of_slots[key] = (value, span)
            else:
                help_ = one_of(key, sorted(hypers | settable), "it has")
                raise error("E0201", f"`{node.name}` has no hyper-parameter `{key}` to set", span, help=help_)
        return of_hypers, of_slots

    def _bind_hypers(self, declaration: ast.ModelDecl | ast.Variant, template: BlockValue, scope: Scope) -> None:
        """Bind all hyper-parameters, those that are set before the defaults that may be computed from them."""
        hypers = hypers_of(template)
        missing = [name for name, h in hypers.items() if h.default is None and name not in template.args]
        if missing:
            names = listed(missing)
            if isinstance(declaration, ast.Variant):
                help_ = f"set it where the variant is declared: `{missing[0]}: …`"
            else:
                help_ = f"give it: `--set {missing[0]}=…`, or a default in the spec"
            labels = [Label(hypers[m].span, "declared here, without a default") for m in missing]
            span = declaration.name_span
            raise error("E0205", f"`{declaration.name}` needs {names}", span, labels=labels, help=help_)
        for name, value in template.args.items():
            scope.vars[name] = _called(name, value)
            scope.frame.demand_size(scope.vars[name], hypers[name].kind)
        for name, h in hypers.items():
            if name in template.args or h.default is None:
                continue
            value = self.expressions.ev(h.default, scope, h.kind)
            value = coerce(value, h.kind, default_none(h), f"`{name}`", h.default.span)
            if isinstance(value, Num) and dims.free_names(value.expr):
                scope.frame.local[name] = value.expr
            scope.vars[name] = _called(name, value)
            scope.frame.demand_size(scope.vars[name], h.kind)

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _equation_inputs(self, node: ast.ModelDecl, scope: Scope) -> None:
        """The model's tensors: a size that no hyper-parameter fixes stays symbolic."""
        for param in node.header.tensors or ():
            shape = []
            for dim in param.type.dims:
                if isinstance(dim, ast.Ellipsis):
                    raise error("E0203", "a model's input has a whole shape", dim.span)
                if isinstance(dim, ast.Name) and scope.get(dim.id) is MISSING:
                    scope.vars[dim.id] = Num(symbol(dim.id), Var(dim.id), dim.span)
                size = self.expressions.size(dim, scope)
                shape.append(size)
            kind = stored_kind(param.type) or "float"
            self._add_input(param, Value(tuple(shape), kind, param.name, param.span, True))
        if not self.inputs:
            help_ = "`model name(…)(tokens: token[batch, time]) { … }`"
            raise error("E0205", f"the model `{node.name}` has no input", node.name_span, help=help_)
        scope.vars.update(self.inputs)

    def _add_input(self, param: ast.TensorParam, value: Value) -> Value:
        """An input of the model, which may be left out if it has a default."""
        self.inputs[param.name] = self.state.root.own(value)
        if param.default is not None:
            self.optional_inputs.add(param.name)
        return value

    def _slot_model(
        self, node: ast.ModelDecl, scope: Scope, config: dict[str, Any], overrides: Mapping[str, Given]
    ) -> tuple[Value, ...]:
        """A model of slots: a call of the library's block, whose inputs are the model's."""
        self.input_by_slots = True
        declared, span = slot_block(node), node.name_span
        sizes: dict[str, Num] = {}

        def adjust(key: str, value: Any, where: Span) -> Given:
            if key in overrides:
                value, where = overrides[key]
            if key in SIZE_SLOTS:
                value = coerce(value, "size", False, f"`{key}`", where)
                assert isinstance(value, Num)
                sizes[key] = value.at(where)
                if key in overrides or not dims.free_names(value.expr):
                    config.setdefault(key, value)
                    value = value.named(key)
                scope.frame.demand_size(value, "size")
            return value, where

        args = self.bodies.slot_arguments(node, declared, scope, "a model of slots", adjust)
        self._one_meaning(sizes, node, scope)
        if "context" in sizes:
            self.context = args["context"][0].at(sizes["context"].origin)
        hypers = hypers_of(BlockValue(declared, {}))
        required = [name for name, h in hypers.items() if h.default is None and name not in args]
        if required and self.state.problems:
            raise ReportedError  # a slot by a wrong name is missing under its right one
        if required:
            text = f"`{node.name}` still needs its slot{'s' * (len(required) > 1)} {listed(required)}"
            help_ = "for example " + ", ".join(f"`{name}: {EXAMPLES.get(name, '…')}`" for name in required)
            raise error("E0205", text, span, help=help_)
        template = with_options(BlockValue(declared, {}), args, (), span, scope.frame)
        if declared.name == "input_model":
            tensors = self._input_tensors(args["input"], scope, node)
        else:
            tensors = self._library_tensors(declared, scope, node)
        return self.bodies.apply_slots(node, BlockCall(template, tensors, {}, scope, span))

    def _check_header(self, node: ast.ModelDecl, outputs: Sequence[Value], scope: Scope) -> None:
        """Compare what the header of a model of slots says of its inputs and results with those that the slots make.

        Raises E0205 for other inputs, and what results raise."""
        named = node.header.tensors or ()
        needed = {name: v for name, v in self.inputs.items() if name not in self.optional_inputs}
        if named and not needed.keys() <= {p.name for p in named} <= self.inputs.keys():
            takes = listed(f"{name}: {v.dtype}{dims.shape_text(v.shape)}" for name, v in needed.items())
            help_ = "leave them out of the header, or write the body in equations: `archdsl show SPEC --expand` does so"
            raise error("E0205", f"by its slots `{node.name}` takes {takes}", named[0].span, help=help_)
        for param in named:
            what = f"the input `{param.name}` of `{node.name}`"
            demand_written(what, param.type, self.inputs[param.name], param.span)
            self.signatures.same_dims(param.type, self.inputs[param.name], scope, what, param.span, bind=True)
        if node.header.results is not None:
            self.bodies.check_results(node, node.header.results, outputs, scope)

    def _one_meaning(self, sizes: Mapping[str, Num], node: ast.ModelDecl, scope: Scope) -> None:
        """Raise E0202 where a slot such as `width` is not the hyper-parameter or `let` of its name."""
        entries: list[ast.Hyper | ast.Let] = [*(node.header.hypers or ())]
        entries += (i for i in node.body.items if isinstance(i, ast.Let))
        declared = {e.name: e for e in entries}
        problems: list[Diagnostic] = []
        for key, size in sizes.items():
            known = scope.get(key)
            if known is MISSING or size.expr in (Var(key), known.expr if isinstance(known, Num) else None):
                continue
            first = declared[key]
            is_ = f"`{key}` is a {'`let`' if isinstance(first, ast.Let) else 'hyper-parameter'} of `{node.name}`"
            text = f"{is_} and a slot with a value of its own, {format_number(size)}"
            labels = (Label(first.span, f"this is {format_value(known)}"),)
            help_ = f"a model has one `{key}`: write `{key}: {key}`, or call the other something else"
            problems.append(Diagnostic("E0202", text, size.origin, labels=labels, help=help_))
        if problems:
            raise ArchError(problems)

    def _library_tensors(self, declared: Declared, scope: Scope, node: ast.ModelDecl) -> list[Given]:
        """The inputs that the library's block declares, all their axes symbolic."""
        span = node.name_span
        tensors: list[Given] = []
        for param in declared.node.header.tensors or ():
            names = [dim.id for dim in param.type.dims if isinstance(dim, ast.Name)]
            shape = [_run_time_size(name, scope, span) for name in names]
            value = Value(tuple(shape), stored_kind(param.type) or "float", param.name, span, True)
            tensors.append((self._add_input(param, value), span))
        return tensors

    def _input_tensors(self, slot: Given, scope: Scope, node: ast.ModelDecl) -> list[Given]:
        """The inputs of a model are those of the block in its `input` slot."""
        block, span = slot
        if not isinstance(block, BlockValue) or not isinstance(block.target, Declared):
            text = f"`input` is `tokens`, or a block such as patches(…), and this is {kind_of(block)}"
            raise error("E0203", text, span)
        demand_applicable(block.target, span)
        inner = Scope(block.target.module, scope.frame, BodyState())
        inner.vars.update(block.args)
        for name, h in hypers_of(block).items():
            if name not in inner.vars and h.default is not None and not isinstance(h.default, ast.Name):
                inner.vars[name] = self.expressions.ev(h.default, inner, h.kind)
        tensors: list[Given] = []
        for param in tensor_params(block.target):
            shape = []
            for dim in param.type.dims:
                if isinstance(dim, ast.Ellipsis):
                    text = f"the inputs of a model have whole shapes, and `{block.name}` takes {param.type.span.text}"
                    raise error("E0203", text, span, help="put a block around it, with each axis named")
                if isinstance(dim, ast.Name) and inner.get(dim.id) is MISSING:
                    inner.vars[dim.id] = _run_time_size(dim.id, scope, param.span)
                shape.append(self.expressions.size(dim, inner))
            value = Value(tuple(shape), stored_kind(param.type) or "float", param.name, node.name_span, True)
            self.inputs[param.name] = scope.frame.own(value)
            tensors.append((value, span))
        return tensors

    def find_model_input(self, kind: str, axis: DimValue, span: Span) -> Value:
        """The declared input of that kind over that axis; a model of slots gets one because it is asked for."""
        for value in (*self.inputs.values(), *self.made_inputs.values()):
            if value.dtype == kind and value.rank == 2 and value.shape[1].value == axis:
                return value
        if self.input_by_slots:
            for name, value in self.inputs.items():
                if value.dtype == "token" and value.rank == 2 and value.shape[1].value == axis:
                    return self._make_input(name, Value(value.shape, kind, f"{name}_{kind}", span))
            for name, value in self.inputs.items():
                for size in value.shape[1:]:
                    if size.value == axis:
                        return self._make_input(name, Value((value.shape[0], size), kind, kind, span))
        own = (
            ", ".join(f"`{n}` {dims.shape_text(v.shape)}" for n, v in self.inputs.items() if v.dtype == kind) or "none"
        )
        raise error(
            "E0403",
            f"`{kind}` asks for an input of that kind over an axis of {axis}, and the model has {own}",
            span,
            help=f"give the model an input such as `real: {kind}[batch, {axis}]`, or leave `{kind}` out of the mask",
        )

    def _make_input(self, source: str, made: Value) -> Value:
        """An input of a model of slots that belongs to another one."""
        self.made_inputs[f"{source}_{made.dtype}"] = made
        return self.state.root.own(made)

    # --- the result ---------------------------------------------------------------------------------------------------

    def _model(
        self,
        declaration: ast.ModelDecl | ast.Variant,
        node: ast.ModelDecl,
        scope: Scope,
        config: Mapping[str, Num],
        outputs: tuple[Value, ...],
    ) -> Model:
        frame = scope.frame
        root = frame.graph((), outputs)
        inputs = self._final_inputs(root)
        block = Block(
            name=declaration.name,
            key=("model", declaration.name),
            doc=declaration.doc if isinstance(declaration, ast.ModelDecl) else node.doc,
            span=declaration.name_span,
            graph=Graph(tuple(inputs.values()), root.nodes, outputs),
            header=node.header,
            tensor_names=tuple(inputs),
            result_names=result_names(node, len(outputs)),
            contexts=(),
            hypers={k: v for k, v in scope.vars.items() if k in {h.name for h in node.header.hypers or ()}},
            local=dict(frame.local),
            axes={},
            asserts=tuple(frame.asserts),
            decisions=tuple(frame.decisions.values()),
            instances=tuple(frame.instances),
            slots=frame.slots,
        )
        sizes = [d.value for v in inputs.values() for d in v.shape]
        symbols = dict.fromkeys(s for size in sizes if isinstance(size, Poly) for s in sorted(size.symbols))
        source, doc = self.state.module.source, self.state.module.tree.doc or node.doc
        fields = tuple(ConfigField(k, v) for k, v in config.items())
        context = self.context if self.context is not None else config.get("context")
        return Model(declaration.name, block, fields, tuple(symbols), context, doc, source.name, source.text)

    def _final_inputs(self, graph: Graph) -> dict[str, Value]:
        """The model's inputs: a model of slots has only those optional ones that are read, and what its masks asked
        for, called by their kind where there is one of it."""
        read = {id(v) for v in captured(graph)}
        inputs = {
            name: value
            for name, value in self.inputs.items()
            if name not in self.optional_inputs or not self.input_by_slots or id(value) in read
        }
        for kind in ("padding", "documents"):
            made = {k: v for k, v in self.made_inputs.items() if v.dtype == kind}
            for name, value in made.items():
                final = kind if len(made) == 1 else name
                object.__setattr__(value, "name", final)
                inputs[final] = value
        return inputs


def _run_time_size(name: str, scope: Scope, span: Span) -> Num:
    """A size of an input under its name, with `_` behind it where the model calls something else so."""
    own = name
    while scope.get(own) is not MISSING:
        own += "_"
    return Num(symbol(name), Var(own), span)


def in_order(problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Problems in the order of the text, file by file as they were found."""
    files = {d.span.source.name: i for i, d in reversed([*enumerate(problems)]) if d.span is not None}
    return sorted(problems, key=lambda d: (files[d.span.source.name], d.span.start) if d.span is not None else (-1, 0))


def _called(name: str, value: Any) -> Any:
    """A hyper-parameter of the model under its name."""
    if isinstance(value, Num):
        return value.named(name)
    return value.labelled(name) if isinstance(value, BlockValue) else value
