"""The section `varlen`: windows and packed documents by FlashAttention for sequences of different lengths."""

from __future__ import annotations

from archdsl.backends.torch.classes import Classes
from archdsl.backends.torch.features import Section
from archdsl.diagnostics import error


class Varlen(Section):
    """Masks of windows and documents as what they let a query see, which the kernel is told on CUDA.

    Raises ArchError E0528 where the model has no such mask in blocks."""

    def __init__(self, classes: Classes) -> None:
        super().__init__(classes)
        classes.varlen = True

    def settle(self) -> None:
        lowered = [self.classes.root, *(one for group in self.classes.groups for one in group.lowered)]
        if not any("spans_of" in one.helpers for one in lowered):
            raise error(
                "E0528",
                f"`--with varlen` has nothing to do in `{self.classes.model.name}`: "
                "no attention without `softcap` and `sink` has a mask that is a window or documents alone, or both",
                help="leave it out: FlexAttention and the kernel for causal masks need no option",
            )
