"""A step of decoding as a Model: each block with nodes that say what is kept.

The axis of time is two sizes here: the positions that are new in this step, and all so far. A tensor that depends on
the sequence has the new positions along its first axis of time and all along its second; what is made of positions
alone is computed in each form that is asked for. Where one form is made and another read there is a node: `append` to
what is kept of a sequence, `newest` of what is there for all. A recurrence is kept under a name. What depends on other
inputs alone is in a node `once`.

1. What an op reads at its own position alone (`Primitive.reads`) it needs in the form of its result; what it reads
   whole, or says that it keeps (`Primitive.cached_inputs`: the keys and values of attention), it needs of all
   positions: such a tensor is kept, once, however many read it.
2. A tensor with two axes of time (scores, masks) has new positions along the first and all along the second. Where an
   op reads it beside its own position along the first (a convolution over queries and keys), it is computed anew for
   all positions along both, and so is what it is made of, back to tensors with one axis of time.
3. A recurrence hands on a state of a fixed size (`Primitive.states`), which is zeros before the first token.
4. Tensors made of positions alone (masks, rope tables, positions) are computed in each form that is asked for. One with
   an axis of the batch (`ones(batch, time, 1)`) is computed at the new positions, as what depends on tokens is.
5. Keys and values that are, position by position, projections of something much narrower are not kept; that is. The
   narrowest such tensors are a minimum cut between what is not linear and the keys and values (MLA's latent).
6. What depends on other inputs than the sequence (an encoder's result, keys and values of cross-attention) is computed
   once, before the first step.
7. [batch, time] may be merged into one axis (`flatten(0, 1)`) and cut again: of its positions, too, the new ones are
   computed. Nothing else makes such an axis.
8. The first output is what tokens are drawn from: a model of which it has no step has none. Of the others a step gives,
   in their order, each that follows the sequence, with one axis of time, at its new positions; and each that depends on
   weights alone, as it is. It leaves out what the last step alone could know (a mean over time), what looks at later
   positions, what has two axes of time or none of rows, and what other inputs alone determine, which is not a step's.
9. Along an axis of `n + time` n places stand in front of the sequence (`concat(own, k)`, `pad(n)`). Such a tensor is
   computed in each step, in front of all positions of what it is made of, which are kept. Ops that read it at its own
   positions are computed so, too; and attention and the like may read all of it.
10. Where that will not do, as they are queries, too, or a recurrence reads them, such places go through the layers: in
   the first step they are new as its tokens are, and later ones read what is kept of them. A size that is 1 in the
   first step and 0 in all others says so: a tensor of `n + time` has `n * first + new` new positions, `n + all` in all.
   What is joined to it (`concat`) is there in the first step alone, by a node `first`.

A block is rewritten once for the kinds of its inputs and the forms that are asked of its results; what it asks of its
caller in turn is part of the answer. What an op asks is told by `archdsl.passes.forms`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import TypeVar

from archdsl.diagnostics import ArchError
from archdsl.frozen import Entity
from archdsl.ir import verify
from archdsl.ir.dims import Num, Poly, Symbol, free_names
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import Block, Model, Node, Value
from archdsl.passes.forms import ALL, FIRST, NEW, BehindError, Forms, has, in_front
from archdsl.passes.kinds import Kind, Kinds
from archdsl.passes.sequence import DecodedSequence
from archdsl.passes.step_asks import Asks, Made, Wants
from archdsl.passes.step_sizes import StepSizes
from archdsl.passes.step_writes import Writes

Part = TypeVar("Part", bound=Node | Value)


class Stepped(Entity):
    """A model, and a step of it."""

    whole: Model
    model: Model
    """The step."""
    results: tuple[int, ...]
    """Which outputs of the whole model it gives, by their numbers: the first, and those others that have a step."""
    time: Symbol
    new: Symbol
    all: Symbol
    first: Symbol | None
    """1 in the first step, 0 in all later ones, where places in front of the sequence go through the layers."""
    origins: Mapping[Node | Value, Node | Value] = field(repr=False)
    """What a node or a tensor of a step stands for in the whole model, where it is another."""
    kinds: Mapping[Block, Mapping[Value, Kind]] = field(repr=False)
    """Of each block of the step, what the tensors depend on of that which it stands for."""

    @property
    def led(self) -> bool:
        """Whether places in front of the sequence go through the layers."""
        return self.first is not None

    def origin(self, found: Part) -> Part:
        """The node, or the tensor, of the whole model that one of the step stands for."""
        own = self.origins.get(found, found)
        assert isinstance(own, type(found))
        return own

    def has(self, size: Num) -> bool:
        """Whether a size depends on how many positions there are."""
        return has(size, self.new) or has(size, self.all)

    def sizes(self, sizes: Mapping[str, int], new: int = 1) -> dict[str, int]:
        """The sizes of the model, with those of a later step of so many new positions; the length counts these, too."""
        first = {self.first.name: 0} if self.first is not None else {}
        return {**sizes, self.new.name: new, self.all.name: sizes[self.time.name], **first}

    def front(self, size: Num) -> int:
        """How many places that go through the layers stand in front of the sequence along an axis of new positions, in
        the first step, or of all."""
        if self.first is None:
            return 0
        size = size.where(self.first.name, 1)
        return in_front(size, self.new) or in_front(size, self.all)

    def as_whole(self, length: Size) -> dict[Symbol, Size]:
        """The sizes of the first step, where all positions of so many are new."""
        return {self.new: length, self.all: length, **({self.first: 1} if self.first is not None else {})}


@lru_cache(maxsize=4)
def stepped(model: Model, latents: bool = True, apart: bool = True) -> Stepped:
    """Return a step of a model; the last few are remembered. Without `latents` keys and values are kept as they are. If
    not `apart`, the new positions have the size of the whole model's, and tensors that have these alone are its own.
    Raises ArchError E0504 where its first output depends on later positions, or an op has no step."""
    sequence = DecodedSequence.of(model)
    stepper = _Stepper(model, sequence.time, latents, apart)
    try:
        found = stepper.step((0,))
    except BehindError:
        stepper = _Stepper(model, sequence.time, latents, apart, led=True)
        found = stepper.step((0,))
    sequence.demand_known()
    for i, kind in enumerate(stepper.results):
        follows = kind == Kind.SEQUENCE and sequence.is_followed_by(stepper.outputs[i])
        if i and (follows or kind == Kind.WEIGHTS):
            try:
                found = _Stepper(model, sequence.time, latents, apart, found.led).step((*found.results, i))
            except ArchError as problem:
                if problem.diagnostics[0].code != "E0504":
                    raise
    return found


class _Stepper:
    """Rewrites the blocks of a model for one step, each once for the kinds of its tensors and the forms asked of its
    results."""

    def __init__(self, model: Model, time: Symbol, latents: bool, apart: bool, led: bool = False) -> None:
        """With `led` places in front of the sequence go through the layers in the first step."""
        self.time, self.latents = time, latents
        self.symbols = {form: Symbol(f"{form} {time}") for form in ((NEW, ALL, FIRST) if led else (NEW, ALL))}
        self.symbols |= {} if apart else {NEW: time}
        self.origins: dict[Node | Value, Node | Value] = {}
        self.kinds_of: dict[Block, Mapping[Value, Kind]] = {}
        self.made: dict[Hashable, Made] = {}
        self.model, block = model, model.block
        moving = self.moving = [v for v in block.graph.inputs if any(has(d, time) for d in v.shape)]
        forms = Forms(time, moving[0].shape[0].value, led)
        self.kinds = Kinds(forms)
        self.given = tuple(Kind.SEQUENCE if v in moving else Kind.ONCE for v in block.graph.inputs)
        self.kind, self.results = self.kinds.kinds(block, self.given)
        self.outputs = [v for _, v in model.outputs]

    def step(self, results: tuple[int, ...]) -> Stepped:
        """Return the step that gives these of the model's outputs. Raises ArchError E0504 where one of them has
        none."""
        block, time, outputs = self.model.block, self.time, [self.outputs[i] for i in results]
        self.kinds.demand_graph(block.graph, self.kind, False, outputs)
        lengths = (d.expr for v in self.moving for d in v.shape if has(d, time))
        timed = frozenset(name for expr in lengths for name in free_names(expr))
        wants = tuple((i, self.kinds.forms.natural(v)) for i, v in zip(results, outputs, strict=True))
        made = self.run(block, self.given, wants, timed, False, root=True)
        sizes = (d.value for v in made.block.graph.inputs for d in v.shape)
        symbols = dict.fromkeys(s for size in sizes if isinstance(size, Poly) for s in size.symbols)
        step = replace(self.model, block=made.block, symbols=tuple(symbols))
        verify.checked(step, verify.violations, "taking a step")
        new, every, first = (self.symbols.get(form) for form in (NEW, ALL, FIRST))
        assert new is not None
        assert every is not None
        return Stepped(self.model, step, results, time, new, every, first, self.origins, self.kinds_of)

    def run(
        self, block: Block, given: tuple[Kind, ...], wants: Wants, timed: frozenset[str], scan: bool, root: bool = False
    ) -> Made:
        """Rewrite a block, whose names `timed` depend on the length of the sequence."""
        key = block, given, wants, timed, scan
        if key not in self.made:
            sizes = StepSizes(self.time, self.symbols, timed, block.local)
            asks = Asks(block, given, wants, scan, self.kinds, sizes, self.run, self.latents)
            self.made[key] = made = Writes(asks, sizes, self.origins).written(given, wants, root)
            self.kinds_of[made.block] = asks.kind
        return self.made[key]
