"""The application of a primitive that made a node: what `archdsl.ir.verify` asks the primitive with again."""

from __future__ import annotations

from typing import Any

from archdsl.frontend.block_builder import BlockBuilder
from archdsl.frontend.op_call import OpCall
from archdsl.frontend.root import Elaborator
from archdsl.frontend.scopes import BodyState, Scope
from archdsl.ir.graph import OpNode


def application(node: OpNode) -> OpCall:
    """Rebuild the application of a primitive that made a node, in a frame of its own: the model is not changed."""
    nothing: Any = None  # no name is looked up
    span = node.span or nothing
    frame = BlockBuilder(Elaborator(nothing), node.op.name, span)
    site = OpCall(node.op, Scope(nothing, frame, BodyState()), span)
    site.inputs, site.options, site.axes = node.inputs, dict(node.options), dict(node.axes)
    return site
