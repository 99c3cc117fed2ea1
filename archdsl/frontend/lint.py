"""What is not wrong but looks like a mistake, or runs slower than it need: findings W…, in the user's own files
only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from archdsl.dependence.causality import assumptions, walked
from archdsl.dependence.rows import mixing
from archdsl.diagnostics import Diagnostic
from archdsl.diagnostics.source import Span
from archdsl.frontend.modules import WORDS, SpecModule, find_primitive
from archdsl.frontend.schemes import SCALINGS, SCHEMES
from archdsl.ir import masks
from archdsl.ir.dims import Num
from archdsl.ir.graph import Block, CallNode, Graph, Input, LoopNode, Model, OpNode, Value
from archdsl.ir.paths import is_reserved
from archdsl.ir.walk import every_node, nodes_below, ops_below
from archdsl.ir.weights import weights
from archdsl.ops import registry
from archdsl.resources import library_index
from archdsl.syntax import ast

GRAIN = 64
"""What tensor cores and vocabularies like to be a multiple of."""

ALIGNED, SMALL = 8, 512
"""What the sizes of a matrix of 16 bits are a multiple of, if matrix units are to take it as it is; below the second it
hardly matters."""

HEAD_GRAIN, LARGEST_HEAD = 8, 256
"""What the fused attention kernels take."""

HIDES = -1e4
"""The largest number that is taken for minus infinity where scores are masked by it."""

DEEPEST_POST_NORM = 24
"""Post-norm networks beyond this depth need help to train (Wang et al., 2022)."""


def lints(model: Model, module: SpecModule) -> list[Diagnostic]:
    """Findings about a model and the file it stands in, in the order of the file."""
    found = [
        *_unused(module),
        *_dead(module),
        *_without_effect(module),
        *_hiding(module),
        *_renamed(model),
        *_sizes(model),
        *_matrices(model),
        *_heads(model),
        *_post_norm(model, module),
        *_assumed(model),
        *_mixed_rows(model),
        *_widened(model),
        *_infinite_products(model),
        *_finite_masks(model),
    ]
    unique = {(d.code, d.message, d.span): d for d in found}
    return sorted(unique.values(), key=lambda d: d.span.start if d.span is not None else 0)


# --- names ------------------------------------------------------------------------------------------------------------


def _unused(module: SpecModule) -> Iterator[Diagnostic]:
    """W0201: hyper-parameters and lets that nothing reads, and in a file of models blocks."""
    everywhere = ast.names_in(module.tree.declarations)
    compiled = any(isinstance(d, ast.ModelDecl) for d in module.names.values())
    for name, declaration in module.names.items():
        if compiled and isinstance(declaration, ast.BlockDecl) and name not in everywhere:
            yield _not_used("block", name, declaration.name_span)
        if isinstance(declaration, ast.Let):
            if name not in everywhere:
                yield _not_used("constant", name, declaration.span)
        elif isinstance(declaration, ast.BlockDecl | ast.ModelDecl):
            read = ast.names_in((declaration.header, declaration.body))
            for hyper in declaration.header.hypers or ():
                if hyper.name not in read:
                    yield _not_used("hyper-parameter", hyper.name, hyper.span)
            for let in ast.walk(declaration.body):
                if isinstance(let, ast.Let) and let.name not in read:
                    yield _not_used("constant", let.name, let.span)


def _not_used(what: str, name: str, span: Span) -> Diagnostic:
    return Diagnostic("W0201", f"the {what} `{name}` is never used", span, help="use it, or leave it out")


# --- what has no effect -----------------------------------------------------------------------------------------------


def _dead(module: SpecModule) -> Iterator[Diagnostic]:
    """W0203: tensors that are computed or taken in bodies of equations, and that nothing reads."""
    for declaration in module.names.values():
        if not isinstance(declaration, ast.BlockDecl | ast.ModelDecl) or not isinstance(declaration.body, ast.Body):
            continue
        body, tensors = declaration.body, declaration.header.tensors or ()
        if body.is_of_slots:
            continue
        read = ast.names_in((declaration.header, body))
        first = tensors[0].name if tensors else "x"
        if not any(isinstance(s, ast.Return) for s in _statements(body)):
            read.add(first)  # its last value is the result
        for tensor in tensors:
            if (
                tensor.name not in read
                and tensor.type.kind not in masks.INPUTS
                and not _sizes_read(tensor, tensors, body)
                and not _only_applied(tensors)
            ):
                yield _nothing_reads(f"the tensor `{tensor.name}` is taken, and", tensor.span)
        for statement in _statements(body):
            if isinstance(statement, ast.Assign) and not read.intersection(statement.names):
                names = ", ".join(f"`{n}`" for n in statement.names)
                one = len(statement.names) == 1
                yield _nothing_reads(f"{names} {'is' if one else 'are'} computed, and", statement.span, one)
            elif isinstance(statement, ast.Param) and statement.name not in read:
                yield _nothing_reads(f"the weight `{statement.name}` is made, and", statement.span)


def _sizes_read(tensor: ast.TensorParam, tensors: Iterable[ast.TensorParam], body: ast.Body) -> bool:
    """Whether a body reads the length of an axis that this tensor alone has: it may be there for that."""
    others = {d.id for t in tensors if t is not tensor for d in t.type.dims if isinstance(d, ast.Name)}
    return not ({d.id for d in tensor.type.dims if isinstance(d, ast.Name)} - others).isdisjoint(ast.names_in(body))


def _only_applied(tensors: Sequence[ast.TensorParam]) -> bool:
    """Whether the only tensor is `[...]`, of which nothing is asked: without one, a block cannot be applied."""
    return len(tensors) == 1 and all(isinstance(d, ast.Ellipsis) for d in tensors[0].type.dims)


def _nothing_reads(what: str, span: Span, one: bool = True) -> Diagnostic:
    help_ = "use it, or leave it out" if one else "use them, or leave them out"
    return Diagnostic("W0203", f"{what} nothing reads {'it' if one else 'them'}", span, help=help_)


def _statements(body: ast.Body) -> list[ast.Statement]:
    """Every statement of a body, those in loops and choices too."""
    return [x for x in ast.walk(body.items) if isinstance(x, ast.Statement)]


def _without_effect(module: SpecModule) -> Iterator[Diagnostic]:
    """W0405: slots that change nothing, and layers and models of nothing."""
    for declaration in module.names.values():
        if not isinstance(declaration, ast.BlockDecl | ast.ModelDecl) or not isinstance(declaration.body, ast.Body):
            continue
        slots = {s.key: s for s in declaration.body.slots}
        if not slots or not declaration.body.is_of_slots:
            continue
        said = {key: s.value.id for key, s in slots.items() if isinstance(s.value, ast.Name)}
        if isinstance(declaration, ast.ModelDecl):
            blocks = slots.get("blocks")
            empty = blocks is not None and _is_empty(blocks.value)
            if blocks is not None and empty:
                yield Diagnostic("W0405", "the model has no layers", blocks.span, help="for example `12 * layer`")
            continue
        if not any(said.get(key, "") != "none" for key in ("attention", "cross_attention", "ffn") if key in slots):
            help_ = "give it an `attention`, an `ffn` or both"
            yield Diagnostic("W0405", f"`{declaration.name}` does nothing", declaration.name_span, help=help_)
        elif said.get("placement") == "none" and "norm" in slots and said.get("norm") != "none":
            yield Diagnostic(
                "W0405",
                "the `norm` has no effect: with `placement: none` it stands nowhere",
                slots["norm"].span,
                help="say where it stands, `placement: pre`, or leave it out",
            )


def _is_empty(e: ast.Expr) -> bool:
    """Whether a list is plainly one of no layers: `[]`, `0 * layer`."""
    if isinstance(e, ast.List):
        return not e.items
    return isinstance(e, ast.Binary) and e.op == "*" and isinstance(e.left, ast.Number) and e.left.text == "0"


def _hiding(module: SpecModule) -> Iterator[Diagnostic]:
    """W0202: declarations that hide a name of the library."""
    words = {*WORDS, *SCHEMES, *masks.RULES, *masks.TENSOR_RULES} - {*SCALINGS}  # a scaling is asked for by its option
    taken = {**dict.fromkeys(words, "a word"), **library_index()}
    taken |= dict.fromkeys(filter(find_primitive, registry.names()), "a primitive")
    for name, declaration in module.names.items():
        if name in taken:
            span = declaration.span if isinstance(declaration, ast.Let) else declaration.name_span
            what = taken[name] if taken[name].startswith("a ") else f"a block (std/{taken[name]}.arch)"
            yield Diagnostic(
                "W0202",
                f"`{name}` hides {what} of the library with the same name",
                span,
                help="that is allowed; another name tells them apart",
            )


def _renamed(model: Model) -> Iterator[Diagnostic]:
    """W0204: weights that are saved under another name than the spec gives."""
    found: dict[str, Span | None] = {}
    for weight in weights(model):
        for step in weight.path.split("."):
            if step.endswith("_") and is_reserved(step[:-1]) and not re.search(rf"\b{step}\b", model.source_text):
                found.setdefault(step, weight.span)
    for step, span in found.items():
        text = f"`{step[:-1]}` is saved as `{step}`: what is emitted has an attribute `{step[:-1]}` of its own"
        yield Diagnostic("W0204", text, span, help="another name is the same in the spec and in checkpoints")


# --- sizes ------------------------------------------------------------------------------------------------------------


def _sizes(model: Model) -> Iterator[Diagnostic]:
    """W0401, W0403: vocabularies and widths that are no multiple of 64."""
    for field in model.config:
        size = field.value.value
        if field.name not in ("vocab", "width") or not isinstance(size, int) or size < GRAIN or size % GRAIN == 0:
            continue
        if field.name == "vocab" and not any(
            o and o.shape and o.shape[-1].value == size for o in model.block.graph.outputs
        ):
            continue  # tokens are read, but none is predicted
        code, why = ("W0401", "the output projection") if field.name == "vocab" else ("W0403", "every matrix product")
        yield Diagnostic(
            code,
            f"`{field.name}` is {size}, no multiple of {GRAIN}: {why} runs slower than it could",
            _in_file(field.value.origin) or model.block.span,
            help=f"{-(-size // GRAIN) * GRAIN} is the next one",
        )


def _matrices(model: Model) -> Iterator[Diagnostic]:
    """W0406: matrices with a side that matrix units do not take as it is; the vocabulary and the width are said
    already."""
    known = {f.value.value for f in model.config if f.name in ("vocab", "width")}
    for block, span in _blocks(model.block, model.block.span, set()):
        for node in _ops(block.graph):
            for weight in node.weights if node.op.family == "linear" else ():
                for size in weight.shape[-2:]:
                    number = size.value
                    if not isinstance(number, int) or number < SMALL or number % ALIGNED == 0 or number in known:
                        continue
                    yield Diagnostic(
                        "W0406",
                        f"a matrix has a side of {number}, no multiple of {ALIGNED}: it runs slower than it could",
                        _in_file(size.origin) or _in_file(node.span) or span,
                        help=f"{number // ALIGNED * ALIGNED} and {-(-number // ALIGNED) * ALIGNED} are the next ones",
                    )


def _in_file(span: Span | None) -> Span | None:
    return span if span is not None and not span.source.library and span.source.name != "--set" else None


def _heads(model: Model) -> Iterator[Diagnostic]:
    """W0402: sizes of heads that no fused attention kernel takes."""
    for block, span in _blocks(model.block, model.block.span, set()):
        for node in _ops(block.graph):
            if node.op.family != "attention" or not isinstance(node.inputs[0], Value):
                continue
            size: Num = node.inputs[0].shape[-1]
            if isinstance(size.value, int) and (size.value % HEAD_GRAIN or size.value > LARGEST_HEAD):
                yield Diagnostic(
                    "W0402",
                    f"heads of size {size.value} are slow: fused attention takes multiples of {HEAD_GRAIN} "
                    f"up to {LARGEST_HEAD}",
                    span,
                    help="64 and 128 are usual",
                )


def _blocks(block: Block, span: Span, seen: set[int]) -> Iterator[tuple[Block, Span]]:
    """Each distinct block, and the nearest span in the user's files."""
    if id(block) in seen:
        return
    seen.add(id(block))
    span = _in_file(block.span) or span
    yield block, span
    for node in every_node(block.graph):
        if isinstance(node, CallNode):
            yield from _blocks(node.block, _in_file(node.span) or span, seen)


def _ops(graph: Graph) -> Iterable[OpNode]:
    return (n for n in every_node(graph) if isinstance(n, OpNode))


def _post_norm(model: Model, module: SpecModule) -> Iterator[Diagnostic]:
    """W0404: deep stacks of post-norm layers whose residual is plain."""
    for node in every_node(model.block.graph):
        if not isinstance(node, LoopNode) or len(node.iterations) <= DEEPEST_POST_NORM:
            continue
        for body in node.bodies:
            for call in body.nodes:
                declaration = module.names.get(call.block.name) if isinstance(call, CallNode) else None
                if isinstance(declaration, ast.BlockDecl) and isinstance(declaration.body, ast.Body):
                    slots = {s.key: s.value for s in declaration.body.slots}
                    placement = slots.get("placement")
                    residual = slots.get("residual")
                    plain = residual is None or (isinstance(residual, ast.Name) and residual.id == "add")
                    if isinstance(placement, ast.Name) and placement.id == "post" and plain:
                        yield Diagnostic(
                            "W0404",
                            f"{len(node.iterations)} layers with post-norm and a plain residual are hard to train",
                            placement.span,
                            help="use `placement: pre`, or `residual: deepnorm(layers)` with `init: deepnorm(layers)`",
                        )


# --- dependence -------------------------------------------------------------------------------------------------------


def _assumed(model: Model) -> Iterator[Diagnostic]:
    """W0407: causality that is assumed."""
    for claim, needed in assumptions(model).items():
        name = f"`{claim.value.name}`" if claim.value.name else "a tensor"
        if needed:
            text = f"{name} is taken for causal without a proof"
            help_ = "decoding step by step relies on it: `archdsl verify` compares its numbers"
        else:
            text = f"{name} is assumed to be causal, which is proved"
            help_ = "write `assert causal(…)`, or leave it out"
        yield Diagnostic("W0407", text, claim.span, help=help_)


def _mixed_rows(model: Model) -> Iterator[Diagnostic]:
    """W0408: rows of a batch that are not computed apart."""
    found = mixing(model)
    if found is not None:
        name, node = found
        what = f"`{name}`" if name else "the result"
        by = f": `{node.op.name}` mixes them" if node is not None else ""
        text = f"a row of {what} depends on other rows of the batch{by}"
        help_ = "what is computed of a row then depends on its batch"
        yield Diagnostic("W0408", text, node.span if node is not None else None, help=help_)


def _widened(model: Model) -> Iterator[Diagnostic]:
    """W0409: layers that make float32 of what they hand on."""
    for loop in nodes_below(model.block.graph):
        if not isinstance(loop, LoopNode) or not loop.iterations:
            continue
        body = loop.bodies[loop.iterations[0]]
        for start, end in zip(loop.starts, body.outputs, strict=False):
            if end is None or (start.dtype, end.dtype) != ("float", "float32"):
                continue
            mixed = (n for n in ops_below(body) if n.op.elementwise and n.outputs[0].dtype == "float32")
            spans = (n.span for n in mixed if any(isinstance(v, Value) and v.dtype == "float" for v in n.inputs))
            span = next((s for s in spans if s is not None and not s.source.library), loop.span)
            text = "the layers hand on float32, in which all that follows is computed, whatever the model's type"
            help_ = "`cast_like(y, x)` brings a tensor to the type of another"
            yield Diagnostic("W0409", text, span, help=help_)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _infinite_products(model: Model) -> Iterator[Diagnostic]:
    """W0410: products of infinity and what may be 0, which are NaN."""
    for block, span in _blocks(model.block, model.block.span, set()):
        nodes = [*_ops(block.graph)]
        makers = {v: n for n in nodes for v in n.outputs}
        for node in nodes:
            if node.op.sign != "*":
                continue
            for x, other in (node.inputs, node.inputs[::-1]):
                literal = isinstance(x, Num) and isinstance(other, Value)
                masked = any(map(math.isinf, _picked(x, makers)))
                if (literal and math.isinf(_plain(x))) or (masked and 0.0 in _picked(other, makers)):
                    text = "infinity is multiplied by what may be 0, which gives NaN"
                    help_ = "choose between them instead: `where(mask, -inf, scores)`"
                    yield Diagnostic("W0410", text, _in_file(node.span) or span, help=help_)
                    break


def _finite_masks(model: Model) -> Iterator[Diagnostic]:
    """W0411: large numbers that stand for minus infinity before a softmax, where it is known that decoding pays for
    them, or where they are added."""
    finite = walked(model).finite
    for block, span in _blocks(model.block, model.block.span, set()):
        nodes = [*_ops(block.graph)]
        makers = {v: n for n in nodes for v in n.outputs}
        for node in nodes:
            if node.op.elementwise or node.op.constant(node, (-math.inf,)) is None:
                continue
            found = [n for n, added in _masking(node.inputs[0], makers, False) if added or float(n) == finite.get(node)]
            if not found and finite.get(node, 0.0) > HIDES:
                continue
            number = float(found[0]) if found else finite[node]
            text = f"scores are masked by {number:g}, and what it hides counts as read: no step may be decoded"
            help_ = "write `-inf`, or `softmax(scores, mask: m)`, which gives 0 where a query sees no key"
            place = found[0].origin if found else None
            yield Diagnostic("W0411", text, _in_file(place) or _in_file(node.span) or span, help=help_)


def _masking(x: Input, makers: Mapping[Value, OpNode], added: bool) -> Iterator[tuple[Num, bool]]:
    """The numbers of at most HIDES that scores are plainly seen to be masked by, and whether each is added to them."""
    if isinstance(x, Num) and HIDES >= _plain(x) > -math.inf:
        yield x, added
    node = makers.get(x) if isinstance(x, Value) else None
    if node is None:
        return
    if node.op.moves:
        yield from _masking(node.inputs[0], makers, added)
    elif node.op.sign == "*":
        for a, b in (node.inputs, node.inputs[::-1]):
            if isinstance(a, Num):
                yield from _masking(b, makers, added)
            if isinstance(a, Num) and added:  # times a mask of zeros and ones
                yield from _masking(a, makers, True)
    elif node.op.elementwise and node.op.combines(node) is not None:
        for part in node.inputs:
            yield from _masking(part, makers, len(node.inputs) > 1 or added)
    elif node.op.chosen:
        for i in node.op.chosen:
            yield from _masking(node.inputs[i], makers, added)


def _picked(x: Input, makers: Mapping[Value, OpNode]) -> set[float]:
    """Numbers that elements of a tensor are plainly seen to be: those that `where` chooses, and 0 and 1 of a truth
    value."""
    while isinstance(x, Value) and not x.is_bool and x in makers and makers[x].op.moves:
        x = makers[x].inputs[0]
    if isinstance(x, Value) and x.is_bool:
        return {0.0, 1.0}
    node = makers.get(x) if isinstance(x, Value) else None
    if node is None or not node.op.elementwise:
        return set()
    rest = (None,) * (len(node.inputs) - 1)
    chosen = (node.op.picks(node, (truth, *rest)) for truth in (0.0, 1.0))
    return {_plain(node.inputs[i]) for i in chosen if i is not None}


def _plain(x: Input) -> float:
    """The number that an input is; NaN for tensors and for sizes that only the running model knows."""
    return float(x) if isinstance(x, Num) and x.static else math.nan
