"""Who reads what in a graph: what a value's reader needs to know to nest, name or drop it."""

from __future__ import annotations

from collections import Counter

from archdsl.ir.graph import (
    Block,
    CausalNode,
    Graph,
    Node,
    OpNode,
    Value,
    captured,
    operands,
    subgraphs,
)
from archdsl.ir.walk import every_node, is_module, owns_weights


def direct_reads(node: Node) -> list[Value]:
    """Values that the node's own text reads, those of its inner graphs left out."""
    return [] if isinstance(node, CausalNode) else list(operands(node))  # an `assert causal` is proved, not written


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
        return not owns_weights(node) and not any(uses[o] > 0 for o in node.outputs)
    return isinstance(node, CausalNode)


def module_names(graph: Graph) -> list[str]:
    """Steps in the path of names that the graph's own applications take (those of shared blocks left out)."""
    found = (n.name for n in every_node(graph) if is_module(n))
    return list(dict.fromkeys(name for name in found if name))


def block_tensors(block: Block) -> list[Value]:
    """Every tensor that a block is handed: its inputs, then its contexts'."""
    return [*block.graph.inputs, *(c.value for c in block.contexts if isinstance(c.value, Value))]
