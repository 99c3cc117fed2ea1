"""Scans: what no step changes is computed before the loop, and a block of which a part is fixed is split in two."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from archdsl.ir.closure import contexts_read, instantiated_names
from archdsl.ir.graph import Block, CallNode, Graph, Node, OpNode, ParamNode, Value, captured, node_outputs, reads


def hoist(nodes: Sequence[Node], changing: AbstractSet[int], *, split_calls: bool) -> tuple[list[Node], list[Node]]:
    """What no step of a scan changes, and the rest. Random draws and conditions stay; a block is split if a part of it
    is fixed. `changing` holds the identities of the tensors that differ from step to step."""
    varying = set(changing)
    before: list[Node] = []
    inside: list[Node] = []
    for node in nodes:
        if (
            isinstance(node, OpNode | CallNode | ParamNode)
            and not any(id(v) in varying for v in reads(node))
            and not _draws_noise(node)
        ):
            before.append(node)
            continue
        parts = _split(node, varying) if split_calls and isinstance(node, CallNode) and node.instance is None else None
        if parts is not None:
            before.append(parts[0])
            node = parts[1]
        inside.append(node)
        varying |= {id(v) for v in node_outputs(node)}
    return before, inside


def _split(call: CallNode, varying: AbstractSet[int]) -> tuple[CallNode, CallNode] | None:
    """A call whose block computes something from fixed tensors alone: one call that prepares it, one that takes the
    step. None for other calls."""
    block = call.block
    changing = {
        id(inner)
        for inner, given in zip(block.graph.inputs, call.inputs, strict=True)
        if given is not None and id(given) in varying
    }
    changing |= {id(c.value) for c, given in zip(block.contexts, call.contexts, strict=True) if id(given) in varying}
    fixed, rest = hoist(block.graph.nodes, changing, split_calls=False)
    if not any(isinstance(n, CallNode) or (isinstance(n, OpNode) and n.op.worth_hoisting) for n in fixed):
        return None
    made = {id(v) for n in fixed for v in node_outputs(n)}
    step_graph = Graph((), tuple(rest), block.graph.outputs)
    crossing = [v for v in dict.fromkeys(captured(step_graph)) if id(v) in made]
    first = _part(block, Graph((), tuple(fixed), tuple(crossing)), [])
    step = replace(_part(block, step_graph, crossing), before=first)
    names = instantiated_names(block, call.bind)
    outer = tuple(Value(tuple(d.outward(names) for d in v.shape), v.dtype, v.name, v.span) for v in crossing)
    given = {id(v): g for v, g in zip(block.graph.inputs, call.inputs, strict=True)}
    contexts = {id(c): g for c, g in zip(block.contexts, call.contexts, strict=True)}
    prepare = replace(
        call,
        block=first,
        inputs=tuple(given[id(v)] for v in first.graph.inputs),
        contexts=tuple(contexts[id(c)] for c in first.contexts),
        outputs=outer,
        step=step,
    )
    stepping = replace(
        call,
        block=step,
        inputs=(*(given[id(v)] for v in step.graph.inputs if id(v) in given), *outer),
        contexts=tuple(contexts[id(c)] for c in step.contexts),
    )
    return prepare, stepping


def _part(block: Block, graph: Graph, crossing: Sequence[Value]) -> Block:
    """A part of a block: the inputs and contexts that it reads, and what crosses over from the part before."""
    read = {id(v) for v in captured(graph)}
    kept = [(n, v) for n, v in zip(block.tensor_names, block.graph.inputs, strict=True) if id(v) in read]
    taken = {n for n, _ in kept}
    names = []
    for i, v in enumerate(crossing):
        name = v.name or f"prepared_{i + 1}"
        while name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    return replace(
        block,
        key=(block.key, "part", tuple(id(n) for n in graph.nodes)),
        graph=Graph((*(v for _, v in kept), *crossing), graph.nodes, graph.outputs),
        tensor_names=(*(n for n, _ in kept), *names),
        result_names=(None,) * len(graph.outputs),
        contexts=contexts_read(block.contexts, graph),
    )


def _draws_noise(node: Node) -> bool:
    """Whether a node, or a block that it calls, draws random numbers."""
    if isinstance(node, OpNode):
        return node.op.noisy
    return isinstance(node, CallNode) and any(_draws_noise(n) for n in node.block.graph.nodes)
