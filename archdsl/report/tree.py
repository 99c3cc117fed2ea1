"""The tree of a model: what stands in what, with the shape that each part gives back and the parameters it holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from pydantic import BaseModel

from archdsl.diagnostics.source import Span
from archdsl.estimates.counts import Counts
from archdsl.ir.dims import Shape, shape_text
from archdsl.ir.graph import Block, CallNode, Graph, LoopNode, Model, Node, OpNode, Weight
from archdsl.ir.paths import ranges
from archdsl.ir.static import SharedModule
from archdsl.ir.walk import every_node, is_module, modules, runs
from archdsl.ir.weights import shape_of


class TreeNode(BaseModel):
    """One part of the model; the parts of a loop that are alike are one branch."""

    name: str
    """Its step in the path of names; for several `blocks.0-4,6-10`, in loops within loops `blocks.*`."""
    layers: list[int] = []
    """Their indices."""
    alias: str = ""
    """What the spec calls it, where there are other layers of its block in the list."""
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

    @property
    def stack(self) -> str:
        """Return the list that it is in: `blocks`; nothing for what is no layer."""
        return self.name.partition(".")[0] if self.layers else ""

    @property
    def place(self) -> str:
        """Return its name as people read it: `blocks.0–4,6–10`."""
        return f"{self.stack}.{ranges(self.layers)}" if self.layers else self.name

    @property
    def kind(self) -> str:
        """Return its block as people read it: `decoder (near)`, `shared embedding`."""
        return f"{'shared ' * self.shared}{self.block}" + f" ({self.alias})" * bool(self.alias)


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
        found: list[TreeNode] = []
        for part, times, loop in runs(graph):
            branch = self.of_module(part)
            if branch is not None and loop is not None:
                nested = any(isinstance(n, LoopNode) for body in loop.bodies for n in every_node(body))
                layers = [*map(int, steps[part])]
                name = f"{branch.name}.{'*' if nested else ranges(layers, '-')}"
                alias = part.alias if isinstance(part, CallNode) else ""
                branch = branch.model_copy(update={"name": name, "layers": layers, "alias": alias, "count": times})
            found += [branch] if branch is not None else []
        blocks = Counter((b.stack, b.block) for b in found)
        return [
            b if b.alias != b.block and blocks[b.stack, b.block] > 1 else b.model_copy(update={"alias": ""})
            for b in found
        ]

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


def in_turn(layers: Sequence[TreeNode]) -> str:
    """Return in which order the kinds of layers of one list follow each other, where one comes back after another:
    `4 × (5 near, far), 2 near`; else nothing, since the kinds stand in their order."""
    numbers = [n for kind in layers for n in kind.layers]
    if numbers == sorted(numbers):
        return ""
    words = [kind.alias or kind.block for kind in layers]
    if len({*words}) < len(words):
        words = [f"like {kind.layers[0]}" for kind in layers]
    order = [word for _, word in sorted((n, w) for kind, w in zip(layers, words, strict=True) for n in kind.layers)]
    period = next(p for p in range(1, len(order) + 1) if order[p:] == order[:-p])
    times, rest = divmod(len(order), period)
    said = f"{times} × ({_in_order(order[:period])})" if times > 1 else _in_order(order[:period])
    return f"{said}, {_in_order(order[-rest:])}" if rest else said


def _in_order(words: Sequence[str]) -> str:
    counts = ((word, len([*alike])) for word, alike in groupby(words))
    return ", ".join(f"{n} {word}" if n > 1 else word for word, n in counts)


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
