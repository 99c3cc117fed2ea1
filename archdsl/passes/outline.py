"""A decoder as a library holds it: the model that makes hidden states in a block of its own, and the LM head behind it.

The block is called `model`, so that its weights are `model.…`; the head is the linear layer `lm_head`. A head that is
tied to the embedding becomes a linear layer too, and `tie` says which weight it shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import is_

from archdsl.diagnostics import ArchError, error
from archdsl.frozen import Entity
from archdsl.ir import verify
from archdsl.ir.dims import Expr, Var, free_names
from archdsl.ir.graph import (
    Block,
    CallNode,
    CheckNode,
    Graph,
    Handle,
    LoopNode,
    Model,
    Node,
    OpNode,
    Value,
    WeightNode,
    node_outputs,
    reads,
)
from archdsl.ir.paths import safe_name
from archdsl.ir.static import SharedModule
from archdsl.ir.walk import every_node
from archdsl.ir.weights import weights

BASE, HEAD = "model", "lm_head"
"""What the library calls the two parts."""
OWN_TYPE = "archdsl_"
"""How a `model_type` of ours begins."""


class Outlined(Entity):
    """`model` is the decoder with `base` as a block of its own, which gives `hidden` [batch, time, width]; `head` is
    the linear layer that makes logits of it. `paths` maps every weight of the original model to its new path; `tie` is
    the weight that the head shares with the embedding, by its new path, or ''."""

    model: Model
    base: Block
    hidden: Value
    head: OpNode
    paths: Mapping[str, str]
    tie: str


def outline(model: Model) -> Outlined:
    """Put all before the LM head into a block `model`. Raises ArchError E0534 where there is no such head."""
    renamed = replace(model, block=_renamed(model.block, {}))
    found = _outlined(renamed)
    paths = {w.path: found.paths[new.path] for w, new in zip(weights(model), weights(renamed), strict=True)}
    return replace(found, paths=paths)


def _renamed(block: Block, known: dict[Block, Block]) -> Block:
    """The block with `q_norm` beside a layer `q` called `norm_q`, here and below: vLLM renames whatever begins with the
    path of a layer that it puts together with others. Shared blocks, and those that a scan has split, stay as they are:
    each is in several places one block."""

    def graph(graph: Graph) -> Graph:
        names = {n.name for n in graph.nodes if isinstance(n, OpNode) and n.weights}
        nodes = tuple(node(n, names) for n in graph.nodes)
        return graph if all(map(is_, nodes, graph.nodes)) else replace(graph, nodes=nodes)

    def node(n: Node, names: set[str]) -> Node:
        if isinstance(n, OpNode):
            first, _, rest = n.name.partition("_")
            other = f"{rest}_{first}"
            apart = first in names and other not in names and n.instance is None
            return replace(n, name=other) if apart and other.isidentifier() and safe_name(other) == other else n
        if isinstance(n, CallNode) and n.instance is None and n.step is None:
            below = _renamed(n.block, known)
            return n if below is n.block else replace(n, block=below)
        if isinstance(n, LoopNode):
            bodies = tuple(map(graph, n.bodies))
            return n if all(map(is_, bodies, n.bodies)) else replace(n, bodies=bodies)
        return n

    if block not in known:
        made = graph(block.graph)
        known[block] = block if made is block.graph else replace(block, graph=made)
    return known[block]


def _outlined(model: Model) -> Outlined:
    graph = model.block.graph
    makers = {v: node for node in graph.nodes for v in node_outputs(node)}
    node = makers.get(_output(model))
    while not (isinstance(node, OpNode) and _is_head(node, makers)):
        given = [v for v in reads(node) if v.rank == 3] if isinstance(node, OpNode | CallNode) else []
        only = isinstance(node, OpNode) and node.op.elementwise
        if not isinstance(node, OpNode | CallNode) or len(given) != 1 or not (only or isinstance(node, CallNode)):
            raise refuse(model, "its output is not made by an LM head: one linear layer over the vocabulary")
        node = makers.get(given[0])
    hidden = node.tensor(0)
    head, tie = _own_head(model, node, makers)
    return _split(model, hidden, node, head, tie)


def _output(model: Model) -> Value:
    outputs = [v for _, v in model.outputs]
    if len(outputs) != 1 or outputs[0].rank != 3:
        raise refuse(model, "it has more than one output, or one that is not [batch, time, vocab]")
    return outputs[0]


def _is_head(node: OpNode, makers: Mapping[Value, Node]) -> bool:
    """Whether an op is a linear layer with a weight of its own or of another module."""
    own = any(w.kind == "matrix" for w in node.weights) and not node.blocks and len([*reads(node)]) == 1
    return own or any(isinstance(makers.get(v), WeightNode) for v in reads(node))


def _own_head(model: Model, node: OpNode, makers: Mapping[Value, Node]) -> tuple[OpNode, str]:
    """The head as a linear layer of its own; the weight that it shares with the embedding."""
    table = next((n for v in reads(node) if isinstance(n := makers.get(v), WeightNode)), None)
    if table is None:
        return replace(node, name=HEAD, instance=None, handle=None), ""
    untied = node.op.untied(node)
    if untied is None:
        raise refuse(model, f"`{node.op.name}` reads a weight of another module")
    return replace(untied, name=HEAD), f"{BASE}.{table.instance.path}.{table.weight}"


def _split(model: Model, hidden: Value, node: OpNode, head: OpNode, tie: str) -> Outlined:
    block, graph = model.block, model.block.graph
    behind: list[Node] = []
    logits = {*node.outputs}
    for n in graph.nodes:
        if not logits.isdisjoint(reads(n)):
            behind.append(n)
            if others := [v for v in reads(n) if v not in logits]:
                named = f"`{others[0].name}`" if others[0].name else "another tensor"
                raise refuse(model, f"what stands behind its LM head reads {named} too, and only logits reach it")
            logits |= {*node_outputs(n)}
    nodes = tuple(n for n in graph.nodes if n not in (node, *behind))
    read = {v for n in nodes for v in reads(n)} | {hidden}
    nodes = tuple(n for n in nodes if not isinstance(n, WeightNode) or n.output in read)
    shared = node.instance
    before, later = {*_shared(nodes)}, {*_shared(behind)}
    for instance in block.instances:
        if [instance is shared, instance in before, instance in later].count(True) > 1:
            why = "is one layer for two that are apart there: the model, its LM head, and what stands behind that"
            raise refuse(model, f"`{instance.path}` {why}")
    base = replace(
        block,
        key=(block.key, BASE),
        graph=Graph(graph.inputs, nodes, (hidden,)),
        result_names=(None,),
        instances=tuple(i for i in block.instances if i is not shared and i not in later),
    )
    sizes = (n for v in graph.inputs for d in v.shape for n in free_names(d.expr))
    names = [*block.axes, *(f.name for f in model.config), *sizes]
    bind: dict[str, Expr] = {name: Var(name) for name in names if name not in block.local}
    outer = replace(hidden)
    call = CallNode(base, graph.inputs, (), (outer,), bind, name=BASE, alias=BASE, span=block.span)
    last = replace(head, inputs=(outer, *head.inputs[1:]))
    checks = (n for n in nodes if isinstance(n, CheckNode))
    root = replace(
        block,
        graph=Graph(graph.inputs, (*checks, call, last, *behind), graph.outputs),
        instances=tuple(i for i in block.instances if i in later),
        asserts=(),
        decisions=(),
    )
    outlined = replace(model, block=root)
    old = shared.path if shared is not None else node.name
    new = {w.path for w in weights(outlined)}
    paths = {}
    for w in weights(model):
        inside = w.path if w.path in new else f"{BASE}.{w.path}"
        paths[w.path] = f"{HEAD}{w.path.removeprefix(old)}" if not tie and w.path.startswith(f"{old}.") else inside
    verify.checked(outlined, verify.violations, "outlining")
    return Outlined(outlined, base, hidden, last, paths, tie)


def _shared(nodes: Sequence[Node]) -> Iterator[SharedModule]:
    """Yield the shared instances that nodes apply, read or hand on."""
    for node in every_node(Graph((), tuple(nodes), ())):
        if isinstance(node, OpNode | CallNode | WeightNode) and node.instance is not None:
            yield node.instance
        if isinstance(node, CallNode):
            yield from (c.instance for c in node.contexts if isinstance(c, Handle))


def refuse(model: Model, why: str, help: str = "") -> ArchError:
    """A model that the library's classes cannot hold, and why."""
    message = f"`{model.name}` cannot be a folder for transformers: {why}"
    return error("E0534", message, help=help or "`--to torch --with generate` decodes it without transformers")
