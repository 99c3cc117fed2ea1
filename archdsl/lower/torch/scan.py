"""A recurrence: one Python loop over the places of its sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archdsl.ir.dims import Num
from archdsl.ir.graph import Graph, ScanNode, Value, captured
from archdsl.ir.op import Code
from archdsl.lower.python import local_name
from archdsl.lower.torch.locals import Hold
from archdsl.lower.torch.text import loop_header

if TYPE_CHECKING:
    from archdsl.lower.torch.block import BlockWriter


def write_scan(writer: BlockWriter, node: ScanNode, graph: Graph) -> None:
    """The states carry their names through the loop; what is emitted is collected in lists and stacked behind it."""
    known = writer.locals
    around = list(captured(node.body))
    for value in around:
        known.settle(value)
    sequences = []
    for value in node.sequences:
        known.spend(value)
        sequences.append(known.named(value))
    states, slices = node.body.inputs[: len(node.starts)], node.body.inputs[len(node.starts) :]
    carried = []
    for start, state in zip(node.starts, states, strict=True):
        name = local_name(state.name or "h")
        if isinstance(start, Num):
            carried.append(known.fresh(name))
            known.line(f"{carried[-1]} = {filled(writer, node, start, state, sequences[0])}")
            known.keep(carried[-1])
        else:
            carried.append(known.carry(start, name))
    lists = []
    for value in node.stacked:
        lists.append(known.reserve(_list_name(value)))
        known.line(f"{lists[-1]} = []")
    before = dict(known.holder)
    variables = []
    for value in slices:
        variables.append(known.reserve(local_name(value.name or "x_t")))
        known.hold(value, variables[-1])
    known.line(loop_header(variables, [f"{s}.unbind(1)" for s in sequences], ""))
    for value, name in zip(states, carried, strict=True):
        known.hold(value, name)
    known.indent += 1
    known.protect(around)
    writer.body(node.body)
    known.protect(around, -1)
    _step(writer, node, carried, lists)
    known.indent -= 1
    known.holder = before
    for value, name in zip(node.stacked, lists, strict=True):
        known.holder[name] = Hold.RELEASED
        if known.uses.get(value, 0) > 0:
            writer.result(value, Code(f"torch.stack({name}, dim=1)"), frozenset((name,)), graph, node)
    for value, name in zip(node.finals, carried, strict=True):
        known.hold(value, name)


def _step(writer: BlockWriter, node: ScanNode, carried: list[str], lists: list[str]) -> None:
    """The end of a step: the states take their new values, what is emitted is appended. What is emitted may read a
    state from before the step or from after it."""
    known = writer.locals
    outputs = [o for o in node.body.outputs if o is not None]
    ends, emits = outputs[: len(carried)], outputs[len(carried) :]
    texts = [known.take(value, 0) for value in emits]
    renamed = all(known.bound.get(end) == name for end, name in zip(ends, carried, strict=True))
    ends_texts = [known.take(end, 0) for end in ends]
    if renamed:
        known.rebind(carried, ends_texts)
    for name, text in zip(lists, texts, strict=True):
        known.line(f"{name}.append({text})")
    if not renamed:
        known.rebind(carried, ends_texts)


def filled(writer: BlockWriter, node: ScanNode, start: Num, state: Value, like: str) -> str:
    """A state that starts as a number: a tensor where the sequence is, of the model's own type or the state's."""
    sizes = ", ".join(writer.numbers.forward(d) for d in state.shape)
    dtype = ""
    if state.dtype == "float32":
        dtype = ", dtype=torch.float32"
    elif state.dtype == "float" and node.sequences[0].dtype != "float":
        dtype = f", dtype={writer.locals.own_type()}"
    if start.value in (0, 1):
        return f"{like}.new_{'ones' if start.value == 1 else 'zeros'}({sizes}{dtype})"
    return f"{like}.new_full(({sizes}), {writer.numbers.forward(start)}{dtype})"


def _list_name(value: Value) -> str:
    """A list of what is called `state` is `states`."""
    if not value.name:
        return "steps"
    return local_name(value.name if value.name.endswith("s") else f"{value.name}s")
