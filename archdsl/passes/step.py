"""A step of decoding as a Model: each block with nodes that say what is kept.

The axis of time is two sizes here: the positions that are new in this step, and all so far. A tensor that depends on
the sequence has the new positions along its first axis of time and all along its second; what is made of positions
alone is computed in each form that is asked for. Where one form is made and another read there is a node: `append` to
what is kept of a sequence, `newest` of what is there for all. A recurrence is kept under a name. What depends on other
inputs alone is in a node `once`.

A block is rewritten once for the kinds of its inputs and the forms that are asked of its results; what it asks of its
caller in turn is part of the answer. What an op asks is told by `archdsl.passes.forms`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import field, replace
from functools import lru_cache

from archdsl.frozen import Entity
from archdsl.ir import verify
from archdsl.ir.dims import Num, Poly, Symbol
from archdsl.ir.graph import Block, Model, Node
from archdsl.passes.forms import ALL, NEW, Forms, has
from archdsl.passes.kinds import Kind, Kinds
from archdsl.passes.sequence import DecodedSequence
from archdsl.passes.step_asks import Asks, Made, Wants
from archdsl.passes.step_sizes import StepSizes
from archdsl.passes.step_writes import Writes


class Stepped(Entity):
    """A model, and a step of it."""

    whole: Model
    model: Model
    """The step. Its only output is the first of the whole model."""
    time: Symbol
    new: Symbol
    all: Symbol
    origins: Mapping[Node, Node] = field(repr=False)
    """What a node of a step stands for in the whole model, where it is another."""

    def has(self, size: Num) -> bool:
        """Whether a size depends on how many positions there are."""
        return has(size, self.new) or has(size, self.all)

    def sizes(self, sizes: Mapping[str, int], new: int = 1) -> dict[str, int]:
        """The sizes of the model, with those of a step of so many new positions; the length counts these, too."""
        return {**sizes, self.new.name: new, self.all.name: sizes[self.time.name]}


@lru_cache(maxsize=4)
def stepped(model: Model, latents: bool = True) -> Stepped:
    """Return a step of a model; the last few are remembered. Without `latents` keys and values are kept as they are.
    Raises ArchError E0504 where its output depends on later positions, or an op has no step."""
    sequence = DecodedSequence.of(model)
    found = _Stepper(model, sequence.time, latents).found
    sequence.demand_known()
    return found


class _Stepper:
    """Rewrites the blocks of a model, each once for the kinds of its tensors and the forms asked of its results."""

    def __init__(self, model: Model, time: Symbol, latents: bool) -> None:
        self.time, self.latents = time, latents
        self.symbols = {NEW: Symbol(f"new {time}"), ALL: Symbol(f"all {time}")}
        self.origins: dict[Node, Node] = {}
        self.made: dict[Hashable, Made] = {}
        block = model.block
        moving = [v for v in block.graph.inputs if any(has(d, time) for d in v.shape)]
        forms = Forms(time, moving[0].shape[0].value)
        self.kinds = Kinds(forms)
        given = tuple(Kind.SEQUENCE if v in moving else Kind.ONCE for v in block.graph.inputs)
        output = next(v for _, v in model.outputs)
        self.kinds.demand_graph(block.graph, self.kinds.kinds(block, given)[0], False, [output])
        made = self.run(block, given, ((0, forms.natural(output)),), frozenset({time.name}), False, root=True)
        sizes = (d.value for v in made.block.graph.inputs for d in v.shape)
        symbols = dict.fromkeys(s for size in sizes if isinstance(size, Poly) for s in size.symbols)
        step = replace(model, block=made.block, symbols=tuple(symbols))
        verify.checked(step, verify.violations, "taking a step")
        self.found = Stepped(model, step, time, self.symbols[NEW], self.symbols[ALL], self.origins)

    def run(
        self, block: Block, given: tuple[Kind, ...], wants: Wants, timed: frozenset[str], scan: bool, root: bool = False
    ) -> Made:
        """Rewrite a block, whose names `timed` depend on the length of the sequence."""
        key = block, given, wants, timed, scan
        if key not in self.made:
            sizes = StepSizes(self.time, self.symbols, timed, block.local)
            asks = Asks(block, given, wants, scan, self.kinds, sizes, self.run, self.latents)
            self.made[key] = Writes(asks, sizes, self.origins).written(given, wants, root)
        return self.made[key]
