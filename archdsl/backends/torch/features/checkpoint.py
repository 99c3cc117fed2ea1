"""Activation checkpointing: what each layer of a stack computes inside is computed again backwards, not stored.

`full` keeps the input of each layer (Chen et al., 2016). `selective` also keeps what products with weights give, so
that attention's core and all that is element by element is computed again (Korthikanti et al., 2022): what `archdsl
estimate --flops` counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from archdsl.backends.torch.classes import Classes
from archdsl.backends.torch.features import Section
from archdsl.diagnostics import error
from archdsl.ir.graph import Block, CallNode, CondNode, Graph, LoopNode, Model, OpNode, ScanNode, subgraphs


def contexts(both: str) -> str:
    """What a layer whose running statistics must stay as they are is computed in."""
    return f'''
def contexts(layer: nn.Module) -> tuple[Any, Any]:
    """What a layer is computed in, first and again."""
    first, again = {both}
    return first, unchanged(layer, again)
'''.strip()


def call(what: str, context: str, compiled: str) -> str:
    """The call of a layer."""
    return f'''
def checkpointed(layer: nn.Module, *inputs: Any, **named: Any) -> Any:
    """Call a layer. In training the backward computes again {what}."""
    if not (layer.training and torch.is_grad_enabled()):
        return layer(*inputs, **named)
{compiled}    return checkpoint(layer, *inputs, use_reentrant=False{context}, **named)
'''.strip()


def call_with_losses(context: str) -> str:
    """The call of a layer that has losses."""
    return f'''
def checkpointed_with_losses(layer: nn.Module, *inputs: Any, losses: dict[str, Tensor] | None, **named: Any) -> Any:
    """The same of a layer with losses of its own: they are added once."""
    if losses is None or not (layer.training and torch.is_grad_enabled()):
        return layer(*inputs, losses=losses, **named)

    def run(*inputs: Any, **named: Any) -> Any:
        own: dict[str, Tensor] = {{}}
        return layer(*inputs, losses=own, **named), own

    y, own = checkpoint(run, *inputs, use_reentrant=False{context}, **named)
    for name, value in own.items():
        losses[name] = losses.get(name, 0) + value
    return y
'''.strip()


def compiled(context: str) -> str:
    """What a call does while it is compiled."""
    return f"""    if torch.compiler.is_compiling():  # which changes running statistics only once
        return checkpoint(layer, *inputs, use_reentrant=False{context}, **named)
"""


AGAIN = {
    "full": "all that is in it",
    "selective": "attention's core and what is element by element",
}


class Checkpointing(Section):
    """Calls of layers through `torch.utils.checkpoint`. Errors as of `checkpointed`."""

    def __init__(self, classes: Classes, kind: Literal["selective", "full"]) -> None:
        self.classes = classes
        self.kind = kind
        kept = checkpointed(classes.model, kind)
        classes.checkpointed = frozenset(kept)
        self.statistics = any(w.kind == "buffer" for n in kept for op in ops(n.block) for w in op.weights)
        """Whether training changes buffers of the layers."""

    def helpers(self) -> Iterable[str]:
        return (*("products",) * (self.kind == "selective"), *("unchanged",) * self.statistics)

    def sources(self) -> Mapping[str, str]:
        found = {}
        kept = context = ", context_fn=products" if self.kind == "selective" else ""
        while_compiling = ""
        if self.statistics:
            found["contexts"] = contexts("products()" if self.kind == "selective" else "nullcontext(), nullcontext()")
            context, while_compiling = ", context_fn=partial(contexts, layer)", compiled(kept)
        called = {name for c in self.classes.classes.values() for name in c.lowered.helpers}
        if "checkpointed" in called:
            found["checkpointed"] = call(AGAIN[self.kind], context, while_compiling)
        if "checkpointed_with_losses" in called:
            found["checkpointed_with_losses"] = call_with_losses(context)
        return found


def checkpointed(model: Model, kind: Literal["none", "selective", "full"]) -> list[CallNode]:
    """Return the calls of layers that are computed again.

    Raises ArchError E0527 where the model has no stack of layers, or `selective` finds nothing in it to keep."""
    if kind == "none":
        return []
    found = list(layers(model.block.graph))
    if not found:
        raise error(
            "E0527",
            f"`{model.name}` has no stack of layers to compute again",
            help="a layer is a block that a `for` over a list calls; compile it without `--checkpoint`",
        )
    kept = [n for n in found if not any(op.op.writes_over for op in ops(n.block))] if kind == "selective" else found
    if not kept:
        raise error(
            "E0527",
            f"the layers of `{model.name}` are recurrences, of which no product can be kept alone",
            help="`--checkpoint full` computes whole layers again",
        )
    return kept


def layers(graph: Graph) -> Iterator[CallNode]:
    """The calls that the turns of the outermost loops make, in the model's own graph and those of blocks it calls."""
    for node in graph.nodes:
        if isinstance(node, LoopNode):
            for body in node.bodies:
                yield from _calls(body)
        elif isinstance(node, CondNode):
            for inner in subgraphs(node):
                yield from layers(inner)
        elif isinstance(node, CallNode):
            yield from layers(node.block.graph)


def _calls(graph: Graph) -> Iterator[CallNode]:
    """The calls of a turn: within a recurrence there are steps, and no layers."""
    for node in graph.nodes:
        if isinstance(node, CallNode):
            if node.step is None:
                yield node
        elif not isinstance(node, ScanNode | OpNode):
            for inner in subgraphs(node):
                yield from _calls(inner)


def ops(block: Block) -> Iterator[OpNode]:
    """Every op of a block and of those that it calls."""
    waiting = [block.graph]
    while waiting:
        for node in waiting.pop().nodes:
            waiting += subgraphs(node)
            if isinstance(node, OpNode):
                yield node
                waiting += [call.block.graph for call in node.blocks.values()]
            elif isinstance(node, CallNode):
                waiting.append(node.block.graph)
