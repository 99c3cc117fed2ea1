"""A model with an encoder in two parts: what reads the source alone, which is computed once, and what decodes with its
result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from archdsl.ir.dims import Symbol
from archdsl.ir.graph import Block, CallNode, CheckNode, Graph, Node, Value, node_outputs, reads
from archdsl.ir.walk import above, calls_of, module_names, nodes_below
from archdsl.passes.forms import has
from archdsl.passes.outline import BASE, Outlined


def divided(outlined: Outlined, time: Symbol, refuse: Callable[[str], Exception]) -> Outlined:
    """Return the model with all of `base` that reads the source as the block `base.before`. Its one result, the memory,
    is the last input of what is left. Masks, and what depends on weights or positions alone, each part computes itself.
    Raises what `refuse` makes of the reason why the model has no such parts."""
    base, graph, root = outlined.base, outlined.base.graph, outlined.model.block
    target = {v for v in graph.inputs if any(has(d, time) for d in v.shape)}
    ids = {v for v in target if v.dtype == "token"}
    source = {v for v in graph.inputs if v.dtype == "token"} - ids
    moving, early = _followers(graph, target), _followers(graph, source)
    needed: set[Value] = {outlined.hidden}
    later: set[Node] = set()
    for node in reversed(graph.nodes):
        made = needed & {*node_outputs(node)}
        if made and (made & moving or not made & early):
            later.add(node)
            needed |= {*reads(node)}
    if needed & source:
        raise refuse("its decoder reads the tokens of the source beside what its encoder makes of them")
    crossing = [v for n in graph.nodes for v in node_outputs(n) if v in needed and v in early and v not in moving]
    if len(crossing) != 1 or crossing[0].rank != 3 or crossing[0].shape[0].value != graph.inputs[0].shape[0].value:
        named = ", ".join(f"`{v.name}`" if v.name else "a tensor" for v in crossing) or "nothing"
        raise refuse(f"its decoder reads {named} of its encoder, and there it reads one tensor [batch, source, width]")
    (memory,) = crossing
    first = above(graph, memory)
    before = [n for n in graph.nodes if not first.isdisjoint(node_outputs(n)) or _is_of(n, early - moving, time)]
    after = [n for n in graph.nodes if n in later or n not in before]
    after.sort(key=lambda n: {*reads(n)} != ids)  # the embedding of its tokens first
    common = module_names(Graph((), tuple(n for n in before if n in after), ()))
    if common:
        raise refuse(f"`{common[0]}` is read by its encoder and its decoder, and belongs to no `shared` block")
    encoder = replace(_part(base, before, (), (memory,)), key=(base.key, "encoder"), instances=(), asserts=())
    decoder = replace(_part(base, after, (memory,), (outlined.hidden,)), before=encoder)
    (call,) = (n for n in root.graph.nodes if isinstance(n, CallNode) and n.block is base)
    given = replace(memory)
    once = CallNode(encoder, encoder.graph.inputs, (), (given,), call.bind, name=BASE, alias=BASE, step=decoder)
    inputs = (*decoder.graph.inputs[:-1], given)
    nodes: list[Node] = []
    for node in root.graph.nodes:
        if node not in before:
            nodes += [once, replace(call, block=decoder, inputs=inputs)] if node is call else [node]
    model = replace(outlined.model, block=replace(root, graph=replace(root.graph, nodes=tuple(nodes))))
    return replace(outlined, model=model, base=decoder)


def _followers(graph: Graph, values: Iterable[Value]) -> set[Value]:
    """Return tensors, and all that is computed from them."""
    found = {*values}
    for node in graph.nodes:
        if not found.isdisjoint(reads(node)):
            found.update(node_outputs(node))
    return found


def _is_of(node: Node, early: set[Value], time: Symbol) -> bool:
    """Whether a node that nothing may read is the encoder's: it looks at the source, or at its length."""
    if isinstance(node, CheckNode):
        return not has(node.left, time) and not has(node.right, time)
    return not early.isdisjoint(node_outputs(node) or reads(node))


def _part(block: Block, nodes: Sequence[Node], given: tuple[Value, ...], outputs: tuple[Value, ...]) -> Block:
    """A part of a block, with the inputs that it reads, then what it is given of another."""
    read = {v for n in nodes for v in reads(n)}
    kept = [(n, v) for n, v in zip(block.tensor_names, block.graph.inputs, strict=True) if v in read]
    return replace(
        block,
        graph=Graph((*(v for _, v in kept), *given), tuple(nodes), outputs),
        tensor_names=(*(n for n, _ in kept), *(v.name or "memory" for v in given)),
    )


def blocks_below(graph: Graph) -> set[Block]:
    """Return every block that a graph calls, and those that these call."""
    return {call.block for node in nodes_below(graph) for call in calls_of(node)}
