"""Who reads what in a graph: what a value's reader needs to know to nest, name or drop it."""

from __future__ import annotations

from collections import Counter
from typing import TypeGuard

from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    Graph,
    LoopNode,
    LossNode,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    captured,
    subgraphs,
)


def direct_reads(node: Node) -> list[Value]:
    """Values that the node's own text reads, those of its inner graphs left out."""
    if isinstance(node, OpNode):
        return [v for v in node.inputs if isinstance(v, Value)]
    if isinstance(node, CallNode):
        return [v for v in (*node.inputs, *node.contexts) if isinstance(v, Value)]
    if isinstance(node, LoopNode):
        return list(node.starts)
    if isinstance(node, ScanNode):
        return [v for v in (*node.starts, *node.sequences) if isinstance(v, Value)]
    if isinstance(node, LossNode):
        return [node.value]
    return []  # an `assert causal` is proved, not written


def reads_within(graph: Graph) -> Counter[Value]:
    """How often each value is read by a graph and those inside it. A value read within an inner graph must have a name,
    and counts twice there."""
    found: Counter[Value] = Counter()
    for node in graph.nodes:
        found.update(direct_reads(node))
        for inner in subgraphs(node):
            found.update(reads_within(inner))
            for value in captured(inner):
                found[value] += 2
    found.update(o for o in graph.outputs if o is not None)
    return found


def is_dead(node: Node, uses: Counter[Value]) -> bool:
    """Nothing reads it and it holds no weights."""
    if isinstance(node, OpNode):
        if (node.weights or node.blocks) and node.instance is None:
            return False
        return not any(uses[o] > 0 for o in node.outputs)
    return isinstance(node, CausalNode)


def _has_modules(node: Node) -> TypeGuard[OpNode | CallNode]:
    return isinstance(node, CallNode) or (isinstance(node, OpNode) and bool(node.weights or node.blocks))


def module_names(graph: Graph) -> list[str]:
    """Steps in the path of names that the graph's own applications take (those of shared blocks left out)."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        if isinstance(node, ParamNode) or (_has_modules(node) and node.name and node.instance is None):
            found.setdefault(node.name)
        for inner in subgraphs(node):
            found.update(dict.fromkeys(module_names(inner)))
    return list(found)


def block_tensors(block: Block) -> list[Value]:
    """Every tensor that a block is handed: its inputs, then its contexts'."""
    return [*block.graph.inputs, *(c.value for c in block.contexts if isinstance(c.value, Value))]
