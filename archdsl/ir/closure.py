"""What a block takes from the blocks around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from archdsl.ir import dims
from archdsl.ir.dims import Expr
from archdsl.ir.graph import Block, CallNode, Context, Graph, Handle, OpNode, captured
from archdsl.ir.walk import every_node


def instantiated_names(block: Block, bind: Mapping[str, Expr]) -> dict[str, Expr]:
    """Every name of a block in its caller's names, those it computes itself included."""
    names = dict(bind)
    for name, expr in block.local.items():
        if name not in names:
            names[name] = dims.substitute(expr, names)
    return names


def contexts_read(contexts: Iterable[Context], graph: Graph) -> tuple[Context, ...]:
    """Those of the implicit inputs that a graph reads, applies or hands on."""
    read = {id(v) for v in captured(graph)} | _handles(graph)
    return tuple(c for c in contexts if id(c.value.instance if isinstance(c.value, Handle) else c.value) in read)


def _handles(graph: Graph) -> set[int]:
    """Shared instances that a graph applies or hands on and that live in another block."""
    found: set[int] = set()
    for node in every_node(graph):
        if isinstance(node, OpNode | CallNode) and node.handle is not None:
            found.add(id(node.handle.instance))
        if isinstance(node, CallNode):
            found |= {id(c.instance) for c in node.contexts if isinstance(c, Handle)}
    return found
