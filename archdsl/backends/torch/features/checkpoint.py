"""Activation checkpointing: what each layer of a stack computes inside is computed again backwards, not stored.

`full` keeps the input of each layer (Chen et al., 2016). `selective` also keeps what products with weights give, so
that attention's core and all that is element by element is computed again (Korthikanti et al., 2022): what `archdsl
estimate --flops` counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from archdsl.backends.torch.classes import Classes
from archdsl.backends.torch.features import Section
from archdsl.ir.walk import ops_below
from archdsl.passes.checkpoint import checkpointed


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
        super().__init__(classes)
        self.kind = kind
        kept = checkpointed(classes.model, kind)
        classes.checkpointed = frozenset(kept)
        self.statistics = any(w.kind == "buffer" for n in kept for op in ops_below(n.block.graph) for w in op.weights)
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
