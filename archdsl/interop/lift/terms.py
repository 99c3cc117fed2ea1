"""The lifted graph: applications of the language's primitives, before they are statements of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from archdsl.interop.lift.export import Size, Value


@dataclass(eq=False, repr=False)
class Term:
    """One application of a primitive of the language.

    `op` is the primitive's name (`linear`), an operator of two tensors (`+`, `**`, `<=`, `&`), or one of

    - `input`, with its name as an option, and `param`, a weight that is read as a tensor;
    - `item`, one result of an op with several: `i`;
    - `index`, `x[..., 3]` or `x[:, 1:4]`: the `axis` and `at`, or `low` and `high`, each None where it is open;
    - `formula`, an expression of the language that reads no tensor: `value`;
    - `table`, numbers that nothing explains: `values`, a list.

    A name that begins with `_` is a part of an idiom that has no word of its own: where the idiom is not met, `plain`
    is what it was made of.
    """

    op: str
    args: tuple[Any, ...] = ()
    """Tensors, and numbers or sizes where an operator has one: `x + 1`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """By the names of the primitive's hyper-parameters: a number, a word (`true`, a name of the language), a size, an
    expression (a mask), or a list of these."""
    weights: Mapping[str, Value] = field(default_factory=dict)
    """By the names of the primitive's own weights: `weight`, `bias`. Of `param` the only one is ``."""
    shape: tuple[Size, ...] = ()
    source: Value | None = None
    """What it was in the module's graph: says the module, the author's lines, and the order."""
    plain: Term | None = None
    turned: frozenset[str] = frozenset()
    """Weights that the module keeps transposed."""
    low: torch.dtype | None = None
    """Its type where the module's weights are bfloat16; by default that of the source."""
    named: Mapping[str, Term] = field(default_factory=dict)
    """Tensors that are given by name: the `sink` of attention."""

    def __post_init__(self) -> None:
        if self.low is None and self.source is not None:
            self.low = self.source.low

    def operands(self) -> Iterator[Term]:
        """Yield the terms that it reads."""
        yield from (a for a in (*self.args, *self.named.values()) if isinstance(a, Term))
