"""The tree of a model: what stands in what, with the shape that each part gives back and the parameters it holds."""

from __future__ import annotations

from collections import Counter

from pydantic import BaseModel

from archdsl.estimates.counts import Counts
from archdsl.ir.dims import Shape
from archdsl.ir.graph import Block, CallNode, LoopNode, Model, Node, OpNode, ParamNode, Weight, subgraphs
from archdsl.ir.static import SharedModule
from archdsl.ir.walk import every_node
from archdsl.ir.weights import shape_of


class TreeNode(BaseModel):
    """One part of the model; the parts of a loop that are alike are one branch."""

    name: str
    """Its step in the path of names; `blocks.0-2` or `blocks.*` for several."""
    block: str
    """The block or primitive, as declared; `param` or `buffer` for a raw weight."""
    count: int
    source: str
    output: list[str]
    """The shapes that it gives back."""
    weights: dict[str, tuple[int, ...]]
    params: int
    """Of one."""
    shared: bool
    children: list[TreeNode]


def tree(model: Model) -> TreeNode:
    """The model as a tree of what has weights. Each distinct block is looked at once, but shown where it stands."""
    count = Counts()
    memo: dict[int, list[TreeNode]] = {}

    def of_block(block: Block) -> list[TreeNode]:
        if id(block) not in memo:
            found = [of_instance(i) for i in block.instances]
            for node in block.graph.nodes:
                found += of_node(node)
            memo[id(block)] = found
        return memo[id(block)]

    def of_instance(instance: SharedModule) -> TreeNode:
        if instance.block is not None:
            block = instance.block
            outputs = tuple(v.shape for v in block.graph.outputs if v is not None)
            return _branch(
                instance.path,
                block.name,
                str(instance.span),
                outputs,
                (),
                count.block(block).total,
                of_block(block),
                shared=True,
            )
        node = instance.node
        return _branch(
            instance.path,
            node.op.name,
            str(instance.span),
            (),
            node.weights,
            held(node),
            _inner(node),
            shared=True,
        )

    def held(node: OpNode) -> int:
        return _own(node.weights) + sum(count.block(c.block).total for c in node.blocks.values())

    def _inner(node: OpNode) -> list[TreeNode]:
        return [b for call in node.blocks.values() for b in of_block(call.block)]

    def of_node(node: Node) -> list[TreeNode]:
        if isinstance(node, CallNode):
            block = node.block
            if (
                node.instance is not None
                or node.step is not None
                or not (count.whole(block) or count.block(block).weights)
            ):
                return []
            outputs = tuple(v.shape for v in node.outputs)
            # A scan may have split the block: what it prepares stands before its steps.
            prepared = [b for n in block.before.graph.nodes for b in of_node(n)] if block.before is not None else []
            return [
                _branch(
                    node.name,
                    block.name,
                    str(node.span),
                    outputs,
                    (),
                    count.whole(block),
                    prepared + of_block(block),
                )
            ]
        if isinstance(node, OpNode):
            if node.instance is not None or not (node.weights or node.blocks):
                return []
            outputs = tuple(v.shape for v in node.outputs)
            return [_branch(node.name, node.op.name, str(node.span), outputs, node.weights, held(node), _inner(node))]
        if isinstance(node, ParamNode):
            kind = "param" if node.weight.trained else "buffer"
            return [
                _branch(node.name, kind, str(node.span), (node.output.shape,), (node.weight,), _own((node.weight,)), [])
            ]
        if isinstance(node, LoopNode):
            return of_loop(node)
        return [b for graph in subgraphs(node) for n in graph.nodes for b in of_node(n)]

    def of_loop(node: LoopNode) -> list[TreeNode]:
        """A branch for each application of each distinct body, with the indices at which it stands."""
        parts = [[b for n in body.nodes for b in of_node(n)] for body in node.bodies]
        if any(isinstance(n, LoopNode) for body in node.bodies for n in every_node(body)):
            # Indices run over the outermost loop: within nested ones only the count is told.
            times = Counter(node.iterations)
            found = [(b, times[i]) for i, branches in enumerate(parts) for b in branches]
            return [
                b.model_copy(update={"name": f"{b.name.partition('.')[0]}.*", "count": b.count * n}) for b, n in found
            ]
        at: dict[int, list[int]] = {}
        seen: Counter[str] = Counter()
        for iteration in node.iterations:
            for b in parts[iteration]:
                at.setdefault(id(b), []).append(seen[b.name])
                seen[b.name] += 1
        return [
            b.model_copy(update={"name": f"{b.name}.{_indices(at[id(b)])}", "count": len(at[id(b)])})
            for branches in parts
            for b in branches
            if id(b) in at
        ]

    root = model.block
    outputs = tuple(v.shape for _, v in model.outputs)
    return _branch(model.name, "model", str(root.span), outputs, (), count.block(root).total, of_block(root))


def _indices(found: list[int]) -> str:
    """`0-2` for neighbours, `*` for anything else."""
    if len(found) == 1:
        return str(found[0])
    return f"{found[0]}-{found[-1]}" if found == list(range(found[0], found[-1] + 1)) else "*"


def _own(weights: tuple[Weight, ...]) -> int:
    total = 0
    for weight in weights:
        size = 1
        for dim in shape_of(weight):
            size *= dim
        total += size if weight.trained else 0
    return total


def _branch(
    name: str,
    block: str,
    source: str,
    outputs: tuple[Shape, ...],
    weights: tuple[Weight, ...],
    params: int,
    children: list[TreeNode],
    *,
    shared: bool = False,
) -> TreeNode:
    return TreeNode(
        name=name,
        block=block,
        count=1,
        source=source,
        output=[f"[{', '.join(str(d) for d in shape)}]" for shape in outputs],
        weights={w.name: shape_of(w) for w in weights},
        params=params,
        shared=shared,
        children=children,
    )
