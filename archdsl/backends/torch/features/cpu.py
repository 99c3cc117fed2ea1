"""The section `cpu`: linear layers of few rows by oneDNN, for decoding on a CPU."""

from __future__ import annotations

from collections.abc import Iterable

from archdsl.backends.torch.features import Section


class Cpu(Section):
    """`for_decoding(model)` and `prepacked(model, rows)`; the section `generate` decodes through the first on a CPU."""

    def helpers(self) -> Iterable[str]:
        experts = any("GroupedLinear" in c.lowered.helpers for c in self.classes.classes.values())
        return ("linear", "DecodingGroupedLinear" if experts else "prepacked")
