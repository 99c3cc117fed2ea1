"""The rules of a well-formed Model: each is a function whose docstring is the rule, and which yields its violations.

A rule looks at one part of a model in the block around it, and asks primitives by their contract alone.
`archdsl.ir.verify.walk` applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any

from archdsl.diagnostics import ArchError
from archdsl.ir import dims, reapplied, static
from archdsl.ir import graph as ir
from archdsl.ir.conditions import longest_sequence
from archdsl.ir.dims import Expr, Num, Poly, Shape, expr_text
from archdsl.ir.paths import safe_name
from archdsl.ir.ranges import TESTS
from archdsl.ir.signature import spread
from archdsl.ir.static import ElementRef, Pattern, RepeatedPattern
from archdsl.ir.walk import is_module, runs

Wrong = Iterator[str]


@dataclass(eq=False)
class BlockNames:
    """A block and the values of its names; `joined` are those that are numbers of shared blocks of blocks around."""

    block: ir.Block
    values: dict[str, dims.Value]
    joined: set[str] = field(default_factory=set)
    known: dict[int, dims.Value] = field(default_factory=dict)
    """The values of expressions that were evaluated, by their id."""

    def evaluate(self, expr: Expr) -> dims.Value | None:
        """Return the value of an expression in the names of the block, None where it has none."""
        try:
            return dims.value_in(expr, self.values, self.known)
        except (KeyError, ArithmeticError, ValueError):
            return None


# --- numbers and types ------------------------------------------------------------------------------------------------


def equal(a: dims.Value, b: dims.Value) -> bool:
    """Whether two numbers are equal up to the last bits of floats, divisions being exact when the model runs."""
    if isinstance(a, float) or isinstance(b, float):
        return not isinstance(a, Poly) and not isinstance(b, Poly) and isclose(a, b, rel_tol=1e-12)
    return dims.equal_where_whole(a, b) or dims.equal_where_whole(b, a)


def same_dims(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(equal(x.value, y.value) for x, y in zip(a, b, strict=True))


def same_type(a: Any, b: Any) -> bool:
    """Whether both are tensors, of one shape and element type; token ids are integers."""
    if not isinstance(a, ir.Value) or not isinstance(b, ir.Value):
        return False
    held = [("int" if v.is_int else "bool" if v.is_bool else v.dtype) for v in (a, b)]
    return held[0] == held[1] and same_dims(a.shape, b.shape)


def shown(thing: Any) -> str:
    """Return the type of a tensor or weight as text, or those of several."""
    if isinstance(thing, ir.Value | ir.Weight):
        return f"{thing.dtype}{dims.shape_text(thing.shape)}"
    return ", ".join(map(shown, thing)) or "nothing" if isinstance(thing, Sequence) else type(thing).__name__


def differing(what: str, found: Sequence[Any], due: Sequence[Any]) -> Wrong:
    """Yield one violation where two lists of tensors differ in length, or in the type of any pair."""
    if len(found) != len(due) or not all(map(same_type, found, due)):
        yield f"{what}: {shown(found)} for {shown(due)}"


def numbers(thing: Any) -> Iterator[Num]:
    """Yield the numbers that a part of the IR holds itself, those of its nodes and of called blocks left out."""
    if isinstance(thing, ir.Value):
        yield from thing.shape
    elif isinstance(thing, ir.Weight):
        yield from static.numbers_of((thing.shape, thing.fan_in, thing.fan_out, thing.init.numbers))
    elif isinstance(thing, tuple):
        yield from (n for item in thing for n in numbers(item))
    elif isinstance(thing, ir.Block):
        yield from numbers((thing.hypers, thing.axes, thing.copies, tuple(c.value for c in thing.contexts)))
    elif isinstance(thing, ir.Graph):
        yield from numbers(thing.inputs)
    elif isinstance(thing, ir.Node):
        yield from numbers(tuple(v for v in vars(thing).values() if not isinstance(v, ir.Block)))
    else:
        yield from static.numbers_of(thing)


def weights_of(node: ir.Node) -> tuple[ir.Weight, ...]:
    return node.weights if isinstance(node, ir.OpNode) else (node.weight,) if isinstance(node, ir.ParamNode) else ()


# --- models and blocks ------------------------------------------------------------------------------------------------


def whole_model(model: ir.Model, at: BlockNames) -> Wrong:
    """A model has no contexts, its symbols are those of its inputs, and its config holds each hyper-parameter that is a
    number and is not computed from others, once."""
    symbols = {s for n in numbers(model.block.graph.inputs) for s in n.symbols}
    fields = {f.name: f.value for f in model.config if f.value.static}
    if model.block.contexts or symbols != {*model.symbols}:
        yield f"{len(model.block.contexts)} contexts, symbols {model.symbols} for {symbols}"
    settable = {h for h, n in model.block.hypers.items() if isinstance(n, Num) and h not in model.block.local}
    context = model.context
    if context is not None and "context" not in fields and not longest_sequence(model.block.graph, context):
        yield f"no sequence is bounded by the context {context}"
    own, field = (n and n.value for n in (context, fields.get("context", context)))
    if len(fields) != len(model.config) or settable - {*fields} or own != field:
        yield f"the config is {[f.name for f in model.config]}, the context {model.context}"


def numbers_of(thing: Any, at: BlockNames) -> Wrong:
    """The value of every number is that of its expression in the names of the block."""
    for n in numbers(thing):
        value = at.evaluate(n.expr)
        if value is None or not equal(value, n.value):
            yield f"`{expr_text(n.expr)}` evaluates to {value}, but the number is {n.value}"


def names_of_block(block: ir.Block, at: BlockNames) -> Wrong:
    """Every tensor and result has an entry among the names, no name twice; local names have values; asserts hold."""
    for given, values in ((block.tensor_names, block.graph.inputs), (block.result_names, block.graph.outputs)):
        known = [n for n in given if n is not None]
        if len(given) != len(values) or len({*known}) != len(known):
            yield f"{len(values)} values have the names {given}"
    yield from (f"`{n}` has no value" for n, e in block.local.items() if at.evaluate(e) is None)
    for left, op, right, _ in block.asserts:
        a, b = at.evaluate(left), at.evaluate(right)
        if a is None or b is None or not TESTS[op](a, b):
            yield f"`{expr_text(left)} {op} {expr_text(right)}` is {a} {op} {b}"


def paths(block: ir.Block, at: BlockNames) -> Wrong:
    """Steps in the paths of weights are names of attributes, each used by one node, or by the iterations of one loop;
    a shared instance is one block or one primitive."""
    taken: dict[str, int] = {}
    for name, owner in (*((i.path, id(i)) for i in block.instances), *_steps(block.graph)):
        if taken.setdefault(name, owner) != owner or not name.isidentifier() or safe_name(name) != name:
            yield f"the step `{name}`"
    yield from (f"the instance `{i.path}`" for i in block.instances if (i.block is None) == (i.node is None))


def _steps(graph: ir.Graph) -> Iterator[tuple[str, int]]:
    """Yield each step with the id of its owner: the outermost loop, a block that a scan has split, or the node."""
    for node, _, loop in runs(graph):
        if is_module(node):
            split = isinstance(node, ir.CallNode) and (node.step or (node.block.before and node.block))
            yield node.name, id(loop or split or node)


# --- primitives and weights -------------------------------------------------------------------------------------------


def inputs_of_op(node: ir.OpNode, at: BlockNames) -> Wrong:
    """The inputs are those of the primitive's signature, and axes of one name have one size."""
    op, params = node.op, node.op.header.tensors or ()
    more = len(node.inputs) - len(params)
    if more < -1 if op.variadic else more != op.further_inputs:
        yield f"there are {len(node.inputs)} inputs"
    for i, value in enumerate(node.inputs if params and not op.elementwise else ()):
        if not isinstance(value, ir.Value):
            continue
        axes = spread(params[min(i, len(params) - 1)].type.dims, value.rank)
        if len(axes) != value.rank:
            yield f"input {i} is {shown(value)}"
        for name, size in zip(axes, value.shape, strict=False):
            due = node.axes.get(name, node.options.get(name))
            if name.isidentifier() and not (isinstance(due, Num) and equal(due.value, size.value)):
                yield f"the axis `{name}` of input {i} is {size}, but {due} for the node"


def results_of_op(node: ir.OpNode, at: BlockNames) -> Wrong:
    """Outputs and weights are those that the primitive has for these inputs and options."""
    try:
        due, weights = reapplied.results(node), reapplied.weights(node)
    except (ArchError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as problem:
        yield f"they cannot be computed: {problem}"
        return
    yield from differing("outputs", node.outputs, due)
    found = [(w.name, w.kind, w.trained, w.saved, w.dtype) for w in node.weights]
    same = found == [(w.name, w.kind, w.trained, w.saved, w.dtype) for w in weights]
    copies = () if at.block.copies is None else (at.block.copies,)
    if not same or not all(same_dims(w.shape, (*copies, *d.shape)) for w, d in zip(node.weights, weights, strict=True)):
        yield f"weights: {shown(node.weights)} for {shown(weights)}"


def weights(node: ir.OpNode | ir.ParamNode, at: BlockNames) -> Wrong:
    """The sizes of weights are static and positive (of unsaved buffers they may be symbolic), their names differ, and
    the graph of an initial value has no inputs and one output, which broadcasts to the weight."""
    own = weights_of(node)
    if len({w.name for w in own}) != len(own):
        yield shown(own)
    for w in own:
        if (w.trained or w.saved) and not all(isinstance(d.value, int) and d.value > 0 for d in w.shape):
            yield shown(w)
        if (first := w.init.graph) is not None:
            made = [v.shape for v in first.outputs if v is not None and v.rank <= len(w.shape)]
            axes = [axis for shape in made for axis in zip(reversed(shape), reversed(w.shape), strict=False)]
            if first.inputs or len(made) != 1 or any(a.value not in (1, b.value) for a, b in axes):
                yield f"{shown(w)} of {shown(first.outputs)}"


def reads_of_weights(node: ir.ParamNode | ir.WeightNode, at: BlockNames) -> Wrong:
    """A weight that is read as a tensor belongs to the node or to the shared primitive, and has the type read."""
    shared = node.instance.node.weights if isinstance(node, ir.WeightNode) and node.instance.node is not None else ()
    due = (node.weight,) if isinstance(node, ir.ParamNode) else [w for w in shared if w.name == node.weight]
    stored = [ir.Value(w.shape, {"int64": "int"}.get(w.dtype, w.dtype)) for w in due]
    yield from differing("weight", node.outputs, stored)


# --- what is shared, calls --------------------------------------------------------------------------------------------


def uses_of_shared(node: ir.OpNode | ir.CallNode | ir.WeightNode, at: BlockNames) -> Wrong:
    """A shared instance belongs to the block and is used under its path, or reaches the block through a context."""
    handed = {c.value.instance for c in at.block.contexts if isinstance(c.value, ir.Handle)}
    here, owner, handle = {*at.block.instances}, node.instance, getattr(node, "handle", None)
    if handle is not None and (handle.instance is not owner or owner not in handed):
        yield "the handle is in no context of the block"
    elif (
        owner is not None and handle is None and (owner not in here or getattr(node, "name", owner.path) != owner.path)
    ):
        yield f"`{owner.path}` is not of this block"
    for given in node.contexts if isinstance(node, ir.CallNode) else ():
        if isinstance(given, ir.Handle) and given.instance not in handed | here:
            yield f"`{given.instance.path}` is handed on from nowhere"


def arguments(node: ir.CallNode, at: BlockNames) -> Wrong:
    """Inputs, contexts and outputs of a call have the types that the called block gives them; a call that prepares the
    steps of a scan calls the part before them."""
    block, due = node.block, [c.value for c in node.block.contexts]
    yield from differing("inputs", node.inputs, block.graph.inputs)
    yield from differing("outputs", node.outputs, [v for v in block.graph.outputs if v is not None])
    yield from differing("contexts", *([v for v in vs if not isinstance(v, ir.Handle)] for vs in (node.contexts, due)))
    given, wanted = ([(v.instance, v.weight) for v in vs if isinstance(v, ir.Handle)] for vs in (node.contexts, due))
    if given != wanted or (node.step is not None and node.step.before is not block):
        yield f"{len(given)} handles for {len(wanted)}, before `{node.step.name if node.step else ''}`"


# --- loops, scans, conditions -----------------------------------------------------------------------------------------


def iterations(node: ir.LoopNode, at: BlockNames) -> Wrong:
    """Each iteration takes the tensors that the one before carries, the first the starts, and the last leaves the
    outputs; the list has one element for each iteration, and every body is used."""
    if {*node.iterations} != {*range(len(node.bodies))} or len(node.emitted) not in (0, len(node.iterations)):
        yield f"iterations {node.iterations} of {len(node.bodies)} bodies, of which {len(node.emitted)} emit"
        return
    if node.pattern is not None and _elements(node.pattern, at) != [*node.iterations]:
        yield f"the list is {_elements(node.pattern, at)}, but the iterations are {node.iterations}"
    state: Sequence[Any] = node.starts
    for t, which in enumerate(node.iterations):
        body, count = node.bodies[which], len(node.starts)
        yield from differing(f"inputs of iteration {t}", body.inputs, state)
        yield from differing(
            f"emissions of iteration {t}", node.emitted[t] if node.emitted else (), body.outputs[count:]
        )
        state = body.outputs[:count]
    yield from differing("outputs", node.outputs, state)


def _elements(pattern: Pattern, at: BlockNames) -> list[int]:
    """Return the index of every element of a list."""
    if isinstance(pattern, ElementRef):
        return [pattern.index]
    if isinstance(pattern, RepeatedPattern):
        count = at.evaluate(pattern.count)
        return _elements(pattern.part, at) * (count if isinstance(count, int) else 0)
    return [i for part in pattern.parts for i in _elements(part, at)]


def steps(node: ir.ScanNode, at: BlockNames) -> Wrong:
    """A step of a scan takes the carried tensors and a slice of each sequence, and gives the carried tensors and a
    slice of each that is stacked; all sequences have one length."""
    body, count = node.body, len(node.starts)
    starts = [c if isinstance(s, Num) else s for s, c in zip(node.starts, body.inputs, strict=False)]
    ends = body.outputs[:count]
    yield from differing("starts", starts, body.inputs[:count])
    yield from differing("carried", ends, body.inputs[:count])
    yield from differing("results", node.finals, body.inputs[:count])
    for along, inner in ((node.sequences, body.inputs[count:]), (node.stacked, body.outputs[count:])):
        slices = [ir.Value((v.shape[0], *v.shape[2:]), v.dtype) for v in along]
        yield from differing("slices", inner, slices)
        if not all(equal(v.shape[1].value, node.length.value) for v in along):
            yield f"{shown(along)} along {node.length}"


def branches(node: ir.CondNode, at: BlockNames) -> Wrong:
    """Both branches of a condition have its outputs, and no inputs."""
    for branch in (node.then, node.otherwise):
        yield from differing("outputs", branch.outputs, node.outputs)
        yield from differing("inputs", branch.inputs, ())


def check(node: ir.CheckNode, at: BlockNames) -> Wrong:
    """A run-time check compares sizes of which one at least is symbolic."""
    if node.op not in (*TESTS, "%") or (node.left.static and node.right.static):
        yield f"`{node.left} {node.op} {node.right}`"


def loss(node: ir.LossNode, at: BlockNames) -> Wrong:
    """A loss is a scalar of real numbers."""
    if node.value.rank or not node.value.is_float:
        yield shown(node.value)


# --- a step of decoding -----------------------------------------------------------------------------------------------


def between_forms(node: ir.FormNode, at: BlockNames) -> Wrong:
    """Two forms of a tensor differ in the size of one axis: what the first step alone has in one that is fixed, all
    others in one that is not in either."""
    sizes = [*node.value.shape]
    own, other = sizes[node.axis], node.output.shape[node.axis]
    fixed = isinstance(node, ir.FirstNode)
    if own.static != fixed or other.static or equal(own.value, other.value):
        yield f"{shown(node.value)} and {shown(node.output)} along axis {node.axis}"
    sizes[node.axis] = other
    yield from differing("output", [node.output], [ir.Value(tuple(sizes), node.value.dtype)])


def once(node: ir.OnceNode, at: BlockNames) -> Wrong:
    """What is computed once has no inputs, and its results have the types of the outputs."""
    yield from differing("inputs", node.body.inputs, ())
    yield from differing("outputs", node.outputs, node.body.outputs)


def kept_names(block: ir.Block, at: BlockNames) -> Wrong:
    """What a block keeps has names, each of one thing."""
    taken: set[str] = set()
    for node, _, _ in runs(block.graph):
        name = node.name if isinstance(node, ir.AppendNode | ir.OnceNode) else getattr(node, "kept", "")
        if name in taken:
            yield f"the name `{name}` of two things that are kept"
        taken |= {name} - {""}


Rule = Callable[[Any, BlockNames], Wrong]
RULES: dict[type, tuple[Rule, ...]] = {
    ir.Model: (whole_model,),
    ir.Block: (names_of_block, paths, kept_names),
    ir.OpNode: (inputs_of_op, results_of_op, weights, uses_of_shared),
    ir.CallNode: (arguments, uses_of_shared),
    ir.LoopNode: (iterations,),
    ir.ScanNode: (steps,),
    ir.CondNode: (branches,),
    ir.ParamNode: (weights, reads_of_weights),
    ir.WeightNode: (uses_of_shared, reads_of_weights),
    ir.CheckNode: (check,),
    ir.LossNode: (loss,),
    ir.AppendNode: (between_forms,),
    ir.NewestNode: (between_forms,),
    ir.FirstNode: (between_forms,),
    ir.OnceNode: (once,),
}
"""The rules of each kind of part; `numbers_of` is one of all."""
