"""Where the LM head of a model begins: the hidden states that logits are computed from, each position by itself. A loss
in chunks of tokens (`--with loss`, `--loss chunked`) computes the logits of a chunk from the hidden states of it.
"""

from __future__ import annotations

from archdsl.diagnostics import ArchError, error
from archdsl.estimates.params import vocabulary
from archdsl.frozen import Frozen
from archdsl.ir.dims import shape_text
from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    Graph,
    Model,
    Node,
    OpNode,
    ParamNode,
    Value,
    WeightNode,
    node_outputs,
    reads,
)
from archdsl.ir.op import same
from archdsl.passes.dce import live


class Head(Frozen):
    """The last nodes of a model's graph: from hidden states to logits, each position by itself."""

    hidden: Value
    nodes: tuple[Node, ...]


def head_of(model: Model) -> Head:
    """Return the nodes between hidden states and logits, found from the logits backwards.

    Raises ArchError E0526 where logits are not computed position by position from one tensor."""
    graph = model.block.graph
    results = [v for v in graph.outputs if v is not None]
    if len(results) != 1:
        raise refuse(model, f"it has {len(results)} results")
    value = results[0]
    shape = shape_text(value.shape)
    if vocabulary(model) is None:
        raise refuse(model, f"it reads no tokens, and its result is {shape}")
    if not value.is_float or value.rank != 3:
        raise refuse(model, f"its result is {shape}, and no logits [batch, time, classes]")
    made = {v: node for node in graph.nodes for v in node_outputs(node)}
    of_weights = made_of_weights(graph)
    nodes: dict[Node, None] = {}
    while True:
        node = made.get(value)
        if not isinstance(node, OpNode | CallNode) or len(node.outputs) != 1 or not _by_position(node, value):
            raise refuse(model, "its logits are not made position by position from one tensor")
        contexts = node.contexts if isinstance(node, CallNode) else ()
        tensors = [v for v in (*node.inputs, *contexts) if isinstance(v, Value)]
        data = [v for v in tensors if v not in of_weights]
        if len(data) != 1 or data[0] not in node.inputs:
            raise refuse(model, "its logits are not made position by position from one tensor")
        nodes[node] = None
        nodes |= dict.fromkeys(live(graph.nodes, of_weights & {*tensors}, inputs_of=reads, outputs_of=node_outputs))
        value = data[0]
        if _contracts(node):
            break
    ordered = tuple(n for n in graph.nodes if n in nodes)
    own = {v for n in ordered for v in node_outputs(n)} - of_weights
    others = (n for n in graph.nodes if n not in nodes and not isinstance(n, CausalNode))
    if any(v in own for n in others for v in reads(n)):
        raise refuse(model, "what makes its logits is read elsewhere, too")
    return Head(value, ordered)


def refuse(model: Model, message: str) -> ArchError:
    return error(
        "E0526",
        f"`{model.name}` has no cross-entropy over its positions: {message}",
        help="compile it without `loss`: `forward` gives its results, and `estimate --loss eager` what theirs takes",
    )


def made_of_weights(graph: Graph) -> set[Value]:
    """Return the weights of a graph, and the values that are computed from them alone."""
    found: set[Value] = set()
    for node in graph.nodes:
        tensors = [v for v in node.inputs if isinstance(v, Value)] if isinstance(node, OpNode) else []
        if isinstance(node, ParamNode | WeightNode) or (tensors and found.issuperset(tensors)):
            found |= {*node_outputs(node)}
    return found


def _by_position(node: OpNode | CallNode, result: Value) -> bool:
    """Return whether each position of the result reads only the same position of the node's inputs of three axes."""
    if isinstance(node, OpNode):
        wanted = tuple(same(i) for i in range(result.rank - 1))
        tensors = [(v, r) for v, r in zip(node.inputs, node.op.reads(node), strict=True) if isinstance(v, Value)]
        return result.rank == 3 and all(r[:-1] == wanted for v, r in tensors if v.rank == 3)
    return _positions_apart(node.block)


def _positions_apart(block: Block) -> bool:
    """Return whether every node of a block computes each position by itself."""
    of_weights = made_of_weights(block.graph)
    for node in block.graph.nodes:
        if isinstance(node, CheckNode | CausalNode) or of_weights.issuperset(node_outputs(node)):
            continue
        if not isinstance(node, OpNode | CallNode):
            return False
        if len(node.outputs) != 1 or not _by_position(node, node.outputs[0]):
            return False
    return True


def _contracts(node: Node) -> bool:
    """Return whether a node applies a linear layer."""
    if isinstance(node, CallNode):
        return any(_contracts(n) for n in node.block.graph.nodes)
    return isinstance(node, OpNode) and bool(node.op.flops(node).contractions)
