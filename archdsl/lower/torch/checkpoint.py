"""Activation checkpointing: what each layer of a stack computes inside is computed again backwards, not stored.

`full` keeps the input of each layer (Chen et al., 2016). `selective` also keeps what products with weights give, so
that attention's core and all that is element by element is computed again (Korthikanti et al., 2022): what `archdsl
estimate --flops` counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from archdsl.diagnostics import error
from archdsl.ir.graph import Block, CallNode, CondNode, Graph, LoopNode, OpNode, ScanNode, subgraphs
from archdsl.lower.torch.extras import Section

if TYPE_CHECKING:
    from archdsl.lower.torch.file import FileWriter

PRODUCTS = '''
def products() -> tuple[Any, Any]:
    """What to keep of a layer: what products with weights give. The rest is computed again."""
    names = ("mm", "addmm", "_grouped_mm", "convolution")
    kept = [getattr(torch.ops.aten, name).default for name in names if hasattr(torch.ops.aten, name)]
    return create_selective_checkpoint_contexts(kept)
'''

UNCHANGED = '''
@contextmanager
def unchanged(layer: nn.Module, again: Any) -> Iterator[None]:
    """Computing `again` leaves running statistics as they are."""
    buffers = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    try:
        with again:
            yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)


def contexts(layer: nn.Module) -> tuple[Any, Any]:
    """What a layer is computed in, first and again."""
    first, again = {both}
    return first, unchanged(layer, again)
'''

CALL = '''
def checkpointed(layer: nn.Module, *inputs: Any, **named: Any) -> Any:
    """Call a layer. In training the backward computes again {what}."""
    if not (layer.training and torch.is_grad_enabled()):
        return layer(*inputs, **named)
{compiled}    return checkpoint(layer, *inputs, use_reentrant=False{context}, **named)
'''

COMPILED = """    if torch.compiler.is_compiling():  # which changes running statistics only once
        return checkpoint(layer, *inputs, use_reentrant=False{context}, **named)
"""

CALL_WITH_LOSSES = '''
def checkpointed_with_losses(layer: nn.Module, *inputs: Any, losses: dict[str, Tensor] | None, **named: Any) -> Any:
    """The same of a layer with losses of its own: they are added once."""
    if losses is None or not (layer.training and torch.is_grad_enabled()):
        return layer(*inputs, losses=losses, **named)

    def run(*inputs: Any, **named: Any) -> Any:
        own: dict[str, Tensor] = {}
        return layer(*inputs, losses=own, **named), own

    y, own = checkpoint(run, *inputs, use_reentrant=False{context}, **named)
    for name, value in own.items():
        losses[name] = losses.get(name, 0) + value
    return y
'''

AGAIN = {
    "full": "all that is in it",
    "selective": "attention's core and what is element by element",
}


class Checkpointing(Section):
    """Calls of layers through `torch.utils.checkpoint`.

    Raises ArchError E0527 where the model has no stack of layers, or `selective` finds nothing in it to keep."""

    def __init__(self, file: FileWriter, kind: Literal["selective", "full"]) -> None:
        self.file = file
        self.kind = kind
        found = list(layers(file.model.block.graph))
        if not found:
            raise error(
                "E0527",
                f"`{file.model.name}` has no stack of layers to compute again",
                help="a layer is a block that a `for` over a list calls; compile it without `--checkpoint`",
            )
        kept = [n for n in found if not any(op.op.writes_over for op in ops(n.block))] if kind == "selective" else found
        if not kept:
            raise error(
                "E0527",
                f"the layers of `{file.model.name}` are recurrences, of which no product can be kept alone",
                help="`--checkpoint full` computes whole layers again",
            )
        file.classes.checkpointed = frozenset(kept)
        self.statistics = any(w.kind == "buffer" for n in kept for op in ops(n.block) for w in op.weights)
        """Whether training changes buffers of the layers."""

    def helpers(self) -> Mapping[str, str]:
        found = {}
        context = ""
        if self.kind == "selective":
            found["products"] = PRODUCTS.strip()
            context = ", context_fn=products"
        if self.statistics:
            both = "products()" if self.kind == "selective" else "nullcontext(), nullcontext()"
            found["contexts"] = UNCHANGED.strip().replace("{both}", both)
            context = ", context_fn=partial(contexts, layer)"
        compiled = ""
        if self.statistics:
            kept = ", context_fn=products" if self.kind == "selective" else ""
            compiled = COMPILED.replace("{context}", kept)
        texts = "\n".join(text for written in self.file.classes.written() for _, text in written.forward)
        for name, source in (("checkpointed", CALL), ("checkpointed_with_losses", CALL_WITH_LOSSES)):
            if f"{name}(" in texts:
                text = source.strip().replace("{what}", AGAIN[self.kind]).replace("{context}", context)
                found[name] = text.replace("{compiled}", compiled)
        return found


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


def call(module: str, args: Sequence[str]) -> str:
    """The text of a layer's call."""
    losses = bool(args) and args[-1] in ("losses", "losses=losses")
    listed = [*args[:-1], "losses=losses"] if losses else args
    return f"checkpointed{'_with_losses' if losses else ''}({', '.join([module, *listed])})"
