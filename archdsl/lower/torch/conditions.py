"""`if training`: the one condition that is asked when the model runs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from archdsl.ir.graph import CondNode, LossNode, Value, captured
from archdsl.lower.python import local_name
from archdsl.lower.torch.reading import reads_within

if TYPE_CHECKING:
    from archdsl.lower.torch.block import BlockWriter


def write_condition(writer: BlockWriter, node: CondNode) -> None:
    """Both branches bind the same names. Where all that a branch does is to add to the losses, whether they are wanted
    is the condition."""
    known = writer.locals
    branches = (node.then, node.otherwise)
    for inner in branches:
        for value in captured(inner):
            known.settle(value)
    inside: Counter[Value] = Counter()
    for inner in branches:
        inside.update(reads_within(inner))
    names = []
    for k, value in enumerate(node.outputs):
        base = local_name(value.name or "h")
        held = known.holder.get(base)
        ends = {g.outputs[k] for g in branches}
        if isinstance(held, Value) and held in ends and known.uses.get(held, 0) <= inside[held]:
            # One branch leaves the value as it is and nothing reads the old one later: it is changed in place.
            known.flush(base)
            names.append(base)
        else:
            names.append(known.reserve(base) if base in known.holder else known.fresh(base))
    only_loss = not node.outputs and any(isinstance(n, LossNode) for n in node.then.nodes)
    before = dict(known.holder)
    for inner, opening in (
        (node.then, "if losses is not None:" if only_loss else "if self.training:"),
        (node.otherwise, "else:"),
    ):
        opened = len(known.lines)
        known.line(opening)
        known.indent += 1
        writer.body(inner)
        for name, output in zip(names, inner.outputs, strict=True):
            assert output is not None
            text = known.take(output, 0)
            if text != name:
                known.line(f"{name} = {text}")
        if len(known.lines) == opened + 1:
            if inner is node.otherwise:
                known.lines.pop()
            else:
                known.line("pass")
        known.indent -= 1
        known.holder = dict(before)
    for name, value in zip(names, node.outputs, strict=True):
        known.hold(value, name)
