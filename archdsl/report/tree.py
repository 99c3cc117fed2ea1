"""The tree of a model: what stands in what, with the shape that each part gives back and the parameters it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pydantic import BaseModel

from archdsl.diagnostics.source import Span
from archdsl.estimates.counts import Counts
from archdsl.ir.dims import Shape, shape_text
from archdsl.ir.graph import Block, CallNode, Graph, LoopNode, Model, Node, OpNode, Weight
from archdsl.ir.static import SharedModule
from archdsl.ir.walk import every_node, is_module, modules, runs
from archdsl.ir.weights import shape_of


class TreeNode(BaseModel):
    """One part of the model; the parts of a loop that are alike are one branch."""

    name: str
    """Its step in the path of names; for several `blocks.0-4,6-10`, in loops within loops `blocks.*`."""
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
    root = model.block
    branches = _Branches()
    outputs = [v.shape for _, v in model.outputs]
    return _branch(model.name, "model", root.span, outputs, branches.counts.block(root).total, branches.of_block(root))


class _Branches:
    """The branches of blocks, each block's made once."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.memo: dict[Block, list[TreeNode]] = {}

    def of_block(self, block: Block) -> list[TreeNode]:
        if block not in self.memo:
            self.memo[block] = [self.of_instance(i) for i in block.instances] + self.of_graph(block.graph)
        return self.memo[block]

    def of_instance(self, instance: SharedModule) -> TreeNode:
        path, span, block, node = instance.path, instance.span, instance.block, instance.node
        if block is not None:
            outputs = [v.shape for v in block.graph.outputs if v is not None]
            params, children = self.counts.block(block).total, self.of_block(block)
            return _branch(path, block.name, span, outputs, params, children, shared=True)
        return _branch(path, node.op.name, span, [], self.held(node), self.inner(node), node.weights, shared=True)

    def held(self, node: OpNode) -> int:
        """The parameters of a primitive, those of the blocks that it applies included."""
        return _own(node.weights) + sum(self.counts.block(c.block).total for c in node.blocks.values())

    def inner(self, node: OpNode) -> list[TreeNode]:
        return [b for call in node.blocks.values() for b in self.of_block(call.block)]

    def of_graph(self, graph: Graph) -> list[TreeNode]:
        """A branch for each module of a graph that has weights, with the indices at which it stands in a list."""
        steps: dict[Node, list[str]] = {}
        for node, step in modules(graph):
            steps.setdefault(node, []).append(step.rpartition(".")[2])
        found = []
        for part, times, loop in runs(graph):
            branch = self.of_module(part)
            if branch is not None and loop is not None:
                nested = any(isinstance(n, LoopNode) for body in loop.bodies for n in every_node(body))
                name = f"{branch.name}.{'*' if nested else indices_text([*map(int, steps[part])])}"
                branch = branch.model_copy(update={"name": name, "count": times})
            found += [branch] if branch is not None else []
        return found

    def of_module(self, node: Node) -> TreeNode | None:
        """The branch of one application; None for what has no weights of its own."""
        if not is_module(node):
            return None
        outputs = [v.shape for v in node.outputs]
        if isinstance(node, CallNode):
            block = node.block
            params = self.counts.whole(block)
            if node.step is not None or not (params or self.counts.block(block).weights):
                return None
            # A scan may have split the block: what it prepares stands before its steps.
            prepared = self.of_graph(block.before.graph) if block.before is not None else []
            return _branch(node.name, block.name, node.span, outputs, params, prepared + self.of_block(block))
        if isinstance(node, OpNode):
            params, weights = self.held(node), node.weights
            return _branch(node.name, node.op.name, node.span, outputs, params, self.inner(node), weights)
        kind = "param" if node.weight.trained else "buffer"
        return _branch(node.name, kind, node.span, outputs, _own((node.weight,)), [], (node.weight,))


def indices_text(found: list[int]) -> str:
    """Return indices in short: `0-2` for neighbours, `0,4,…,48` where all are equally far apart, else the stretches of
    neighbours: `0-4,6-10`."""
    stretches: list[list[int]] = []
    for index in found:
        if stretches and index == stretches[-1][-1] + 1:
            stretches[-1].append(index)
        else:
            stretches.append([index])
    if len(stretches) == len(found) > 3 and len({b - a for a, b in pairwise(found)}) == 1:
        return f"{found[0]},{found[1]},…,{found[-1]}"
    return ",".join(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in stretches)


def _own(weights: tuple[Weight, ...]) -> int:
    return sum(math.prod(shape_of(w)) for w in weights if w.trained)


def _branch(
    name: str,
    block: str,
    source: Span | None,
    outputs: Sequence[Shape],
    params: int,
    children: list[TreeNode],
    weights: Sequence[Weight] = (),
    *,
    shared: bool = False,
) -> TreeNode:
    return TreeNode(
        name=name,
        block=block,
        count=1,
        source=str(source),
        output=[shape_text(shape) for shape in outputs],
        weights={w.name: shape_of(w) for w in weights},
        params=params,
        shared=shared,
        children=children,
    )
