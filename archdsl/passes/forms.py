"""Along time a tensor is wanted in one of two forms: its new positions, or all of them so far. What stands in front of
the sequence is wanted in the first step alone, where it goes through the layers. What one op asks of its inputs so that
its results have theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from archdsl.diagnostics import ArchError, error
from archdsl.diagnostics.source import Span
from archdsl.frozen import Frozen
from archdsl.ir.dims import Num, Poly, Symbol, excess, of_atom
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import At, Reads, State, same
from archdsl.ir.static import numbers_of

NEW, ALL, FIXED, FIRST = "new", "all", "", "first"
Form = tuple[str, ...]
"""For each axis of a tensor: NEW or ALL positions of the sequence; FIXED where it has nothing to do with time; FIRST
where its places, in front of those of the sequence, are there in the first step alone."""
ALWAYS = "reads a position that is always the same one"
CARRIED = "`cumsum(where(unsqueeze(indices(time), 1) == 0, x, 0), axis: 1)` has the first one at every position"
OTHERS = "reads other positions than its own beside places that stand in front of the sequence"
WITH_A_NUMBER = "with a fixed number it has a step, of sequences that are as long, which `pad` makes of shorter ones"
BEHIND = (
    "places in front of a sequence may be put there, `concat(own, x, axis: 1)`, and cut off again, `x[:, n:]`; "
    "`shift(n)`, and a convolution with `padding: causal`, read earlier positions themselves"
)


class BehindError(ArchError):
    """Places in front of the sequence are read otherwise than by what reads all positions: each step cannot put them
    there again."""


class Taken(Frozen):
    """How an op that depends on the sequence is taken."""

    forms: tuple[Form, ...]
    """Of its results."""
    length: str | None
    """The form of the axis whose length the op is given, if that is the sequence's."""
    states: tuple[State, ...]
    keeps: bool
    wanted: tuple[tuple[int, Form, str], ...]
    """Inputs with an axis of time: the form that each is needed in, and the role in which it is kept."""


class Forms:
    """The forms of tensors along one sequence. `batch` is the size of the axis of its rows.

    Places in front of the sequence are put there in each step, unless they are `led` through the layers by the first
    one, as its positions are."""

    def __init__(self, time: Symbol, batch: Size, led: bool = False) -> None:
        self.time = time
        self.batch = batch
        self.led = led

    def axes(self, value: Value) -> list[int]:
        """The axes of a tensor that grow with the sequence."""
        return [i for i, d in enumerate(value.shape) if has(d, self.time)]

    def timed(self, inputs: Iterable[Any]) -> list[tuple[int, Value]]:
        """Inputs that have an axis of time, with their numbers."""
        return [(i, v) for i, v in enumerate(inputs) if isinstance(v, Value) and self.axes(v)]

    def speaks(self, inputs: Iterable[Any], outputs: Iterable[Value]) -> bool:
        """Whether a node is given the length of the sequence, or makes an axis of it."""
        numbers = [v for v in inputs if isinstance(v, Num)]
        return any(has(n, self.time) for n in numbers) or any(map(self.axes, outputs))

    def natural(self, value: Value) -> Form:
        """The form in which what depends on the sequence is computed: new positions along the first axis of time, all
        along the second; all behind a prefix that each step puts there."""
        axes = self.axes(value)
        form = [FIXED] * value.rank
        for axis, one in zip(axes, (NEW, ALL), strict=False):
            form[axis] = ALL if in_front(value.shape[axis], self.time) and not self.led else one
        return tuple(form)

    def whole(self, value: Value) -> Form:
        """All positions along every axis of time."""
        axes = self.axes(value)
        return tuple(ALL if i in axes else FIXED for i in range(value.rank))

    def take(self, node: OpNode, whole: bool = False) -> Taken:
        """How an op that depends on the sequence is taken. `whole` says that its results, which have two axes of time,
        are computed for all positions along both."""
        kept = {
            i: (axis, role)
            for i, (axis, role) in node.op.cached_inputs(node).items()
            if has(node.tensor(i).shape[axis], self.time)
        }
        forms = [self.result(node, v, whole) for v in node.outputs]
        for i in range(len(node.outputs)):
            self.demand_merged(node, i)
            if not self.led:
                self.demand_behind(node, i)
        states = self.states(node, whole)
        found: list[tuple[int, Form, str]] = []
        for i, value in self.timed(node.inputs):
            wanted: list[str] = [FIXED] * value.rank
            for axis in self.axes(value):
                if len(self.axes(value)) == 2:
                    wanted[axis] = self.of_pairs(node, i, axis, forms[0])
                elif kept.get(i, (None, ""))[0] == axis:
                    wanted[axis] = ALL
                elif states and self.front(value) and not self.led:
                    raise behind(node)
                else:  # a recurrence keeps for itself what it needs of earlier positions
                    wanted[axis] = NEW if states else self.wanted(node, i, axis, forms)
            found.append((i, tuple(wanted), kept.get(i, (0, ""))[1]))
        found += [(i, form, "") for i, form in self.in_first_step(node, forms[0]).items()]
        return Taken(tuple(forms), self.length(node, forms[0]), states, bool(kept), tuple(found))

    def in_first_step(self, node: OpNode, form: Form) -> dict[int, Form]:
        """Inputs without an axis of time that an op joins to new positions, and the form in which it reads them."""
        found: dict[int, Form] = {}
        axis = next((a for a, f in enumerate(form) if f == NEW), None)
        for i, value in enumerate(node.inputs if self.led and node.op.joins and axis is not None else ()):
            if isinstance(value, Value) and not self.axes(value):
                found[i] = tuple(FIRST if a == axis else FIXED for a in range(value.rank))
        return found

    def result(self, node: Any, value: Value, whole: bool = False) -> Form:
        """The form in which a node makes a result that depends on the sequence. Raises ArchError E0504 where no step
        can have it so."""
        axes = self.axes(value)
        if whole and len(axes) == 2:
            return self.whole(value)
        for i, axis in enumerate(axes):
            front = in_front(value.shape[axis], self.time)
            if front and i < 1 < len(axes) and not self.led:
                raise behind(node, f"makes pairs of {value.shape[axis]} positions")
            if not (front or _linear(value.shape[axis], self.time)):
                raise self.made_otherwise(node, value.shape[axis])
        if len(axes) > 2:
            raise blame(node, "makes a tensor with three axes of time")
        return self.natural(value)

    def made_otherwise(self, node: Any, size: Num) -> ArchError:
        """The error for a node that makes an axis of other positions than those of the sequence, of that size."""
        given = isinstance(node, OpNode) and any(has(n, self.time) for n in numbers_of(node.options))
        help_ = WITH_A_NUMBER if given else ""
        if excess(of_atom(self.time), size.value):
            help_ = "`shift(1)` moves each position to the next, and leaves as many as there were"
        return blame(node, f"makes an axis of {size} positions", help_)

    def states(self, node: OpNode, whole: bool = False) -> tuple[State, ...]:
        """What a recurrence along time hands on; none where it runs along another axis, or along that of all keys."""
        states = tuple(node.op.states(node))
        return states if states and self.result(node, node.outputs[0], whole)[states[0].axis] == NEW else ()

    def length(self, node: OpNode, form: Form) -> str | None:
        """The form of the axis whose length an op is given: of those that it does not read of its inputs."""
        lengths = [n for n in numbers_of(node.options) if has(n, self.time)]
        if not lengths or ALL not in form:
            return None
        read = {a for reads in node.op.reads(node) for at in reads if at is not None for a, _ in at.axes}
        added = [f for a, f in enumerate(form) if f and a not in read]
        return added[0] if len(lengths) == len(added) == 1 else FIXED

    def of_pairs(self, node: OpNode, i: int, axis: int, form: Form) -> str:
        """The form that an axis of an input with two axes of time is needed in: all keys, whatever the latest is that a
        query sees."""
        read = node.op.reads_of(node, 0)[i][axis]
        if isinstance(read, At) and not any(form[a] for a, _ in read.axes) and not read.also:
            raise blame(node, ALWAYS)
        own = self.own(node, 0, read, node.tensor(i).shape[axis])
        return (form[own] if own is not None else FIXED) or ALL

    def own(self, node: OpNode, result: int, read: At | None, size: Num) -> int | None:
        """The axis of a result at whose position alone an op reads along an axis of that size. Places in front of the
        sequence that go through the layers are counted with its positions: these end where those end that are made of
        them."""
        if read is None or read.earlier:
            return None
        if self.led and len(read.axes) == 1:
            made = node.outputs[result].shape[read.axes[0][0]]
            read = shifted(read, in_front(made, self.time) - in_front(size, self.time))
        return own_axis(read)

    def wanted(self, node: OpNode, i: int, axis: int, forms: Sequence[Form]) -> str:
        """The form that an axis of an input is needed in."""
        found = set()
        merging = self.merging(node)
        if merging is not None and merging[0] == axis:
            return forms[0][merging[1]]
        tensor = node.tensor(i)
        if not reads_numbers(node, i):
            return self.natural(tensor)[axis]
        if any(map(self.front, node.outputs)) and not self.led:
            return ALL
        for r, form in enumerate(forms):
            reads: Sequence[Reads] = node.op.reads_of(node, r)
            read = reads[i][axis] if i < len(reads) and axis < len(reads[i]) else None
            if isinstance(read, At) and not read.axes and not read.also:
                raise blame(node, ALWAYS, CARRIED)
            if isinstance(read, At) and read.also:  # the place of the query as well as that of the key
                owns = [self.own(node, r, replace(one, also=()), tensor.shape[axis]) for one in (read, *read.also)]
                if None not in owns:
                    found.add(ALL if any(form[o] == ALL for o in owns if o is not None) else NEW)
                    continue
            own = self.own(node, r, read, tensor.shape[axis])
            if not self.led and own is not None and self.moves_front(node, r, own, tensor):
                own = None
            if (
                self.led
                and own is None
                and read is not None
                and any(self.moves_front(node, r, a, tensor) for a, _ in read.axes)
            ):
                raise blame(node, OTHERS, BEHIND)
            position = form[own] if own is not None else FIXED
            found.add(position or ALL)
            if isinstance(read, At) and not position and not self.states(node):
                if self.front(tensor) and not self.led:
                    raise behind(node)
                if all(form[a] == FIXED for a, _ in read.axes):
                    raise blame(node, ALWAYS, CARRIED)
                raise blame(node, "reads positions beside its own")
        return NEW if found == {NEW} else ALL

    def moves_front(self, node: OpNode, result: int, axis: int, tensor: Value) -> bool:
        """Whether other places stand in front of the sequence along an axis of a result than in a tensor."""
        return in_front(node.outputs[result].shape[axis], self.time) != self.front(tensor)

    def distance(self, node: OpNode, which: int) -> bool:
        """Whether an op reads other positions than the own along the first or the second axis of time of a tensor that
        has two, and not just all keys; or adds positions."""
        pairs = [v for v in node.outputs if len(self.axes(v)) == 2]
        sizes = [v.shape[self.axes(v)[which]] for v in pairs]
        if any(not is_time(d, self.time) and not ((which or self.led) and in_front(d, self.time)) for d in sizes):
            return True
        if node.op.cached_inputs(node):
            return False
        reads, front = node.op.reads_of(node, 0), max((in_front(d, self.time) for d in sizes), default=0)
        along: list[At | None] = []
        for i, v in self.timed(node.inputs):
            if len(self.axes(v)) == 2:
                axis = self.axes(v)[which]
                along.append(shifted(reads[i][axis], front - in_front(v.shape[axis], self.time)))
        return any((not which) if read is None else read.earlier or own_axis(read) is None for read in along)

    def demand_steps(self, node: OpNode) -> None:
        """Raise ArchError E0504 for an op that has to know of the whole sequence."""
        why = node.op.needs_full_sequence(node)
        if why and self.speaks(node.inputs, node.outputs):
            raise blame(node, why)
        if node.op.elementwise and any(isinstance(v, Num) and has(v, self.time) for v in node.inputs):
            what = "computes with the length of the sequence, which no step knows but the last"
            raise blame(node, what, "`indices(time) + 1` is the length up to each position")

    def has_rows(self, node: OpNode) -> bool:
        """Whether an op makes a tensor [batch, …] with one axis of time."""
        return all(v.rank and v.shape[0].value == self.batch and len(self.axes(v)) == 1 for v in node.outputs)

    # --- behind a fixed prefix ---

    def front(self, value: Value) -> int:
        """How many places stand in front of the sequence along the one axis of time of a tensor."""
        axes = self.axes(value)
        return in_front(value.shape[axes[0]], self.time) if len(axes) == 1 else 0

    def demand_behind(self, node: OpNode, result: int) -> None:
        """Raise ArchError E0504 for an op of a sequence behind a fixed prefix that reads it beside its own positions:
        it is computed in each step, and the rows of a cache may have padding in between."""
        value = node.outputs[result]
        front = self.front(value)
        if not front:
            return
        (axis,), reads = self.axes(value), node.op.reads_of(node, result)
        for i, tensor in self.timed(node.inputs):
            for a in self.axes(tensor) if reads_numbers(node, i) else ():
                read = shifted(reads[i][a], front - in_front(tensor.shape[a], self.time))
                if read is None or read.earlier or own_axis(read) != axis:
                    raise behind(node)

    # --- rows one after another ---

    def merging(self, node: OpNode) -> tuple[int, int] | None:
        """Of an op that makes one axis of the first two [batch, time], in their order, or these of that one: the axis
        of the positions in its input, and that in its result."""
        how = node.op.regroups(node)
        if how is None:
            return None
        (first, *inner), later = how.cuts[0], how.cuts[1:]
        if first.value != self.batch:
            return None
        if not inner and how.axes[0] == ((0, 0), (1, 0)) and len(later[0]) == 1 and is_time(later[0][0], self.time):
            return 1, 0
        if len(inner) == 1 and is_time(inner[0], self.time) and how.axes[:2] == (((0, 0),), ((0, 1),)):
            return 0, 1
        return None

    def of_all_rows(self, value: Value) -> int | None:
        """The axis of a tensor that has the positions of all rows one after another (`batch * time`)."""
        sizes = {a: value.shape[a] for a in self.axes(value)}
        return next((a for a, d in sizes.items() if _linear(d, self.time) and not is_time(d, self.time)), None)

    def demand_merged(self, node: OpNode, result: int) -> None:
        """Raise ArchError E0504 for positions of all rows that are not those of [batch, time], row by row."""
        value = node.outputs[result]
        axis = self.of_all_rows(value)
        if axis is None or self.merging(node) == (1, axis):
            return
        reads = node.op.reads_of(node, result)
        for i, tensor in self.timed(node.inputs):
            merged = self.of_all_rows(tensor)
            if merged is not None and own_axis(reads[i][merged]) == axis:
                return
        raise blame(node, f"makes an axis of {value.shape[axis]} positions otherwise than `flatten(0, 1)` does")

    # --- what is kept ---

    def grown(self, node: Any, value: Value, have: Form, wanted: Form) -> int | None:
        """The axis along which a tensor is there at its new positions and wanted at all, None if there is none. Raises
        ArchError E0504 where no cache can keep it."""
        if len(self.axes(value)) == 2 and NEW in wanted and [f for f in wanted if f] != [NEW, ALL]:
            raise blame(node, f"reads {shown(value)}, which has two axes of time, by its keys")
        grown = [a for a, (h, w) in enumerate(zip(have, wanted, strict=True)) if h == NEW and w == ALL]
        if not grown:
            return None
        if len(self.axes(value)) > 1 or not self.grows(value.shape[grown[0]]):
            raise blame(node, f"reads all positions of a tensor {shown(value)} that grows with every token")
        return grown[0]

    def grows(self, size: Num) -> bool:
        """Whether an axis grows by one with each token, and has its new positions at its end."""
        return is_time(size, self.time) or (self.led and in_front(size, self.time) > 0)


def has(size: Num, time: Symbol) -> bool:
    """Whether a size depends on the length of the sequence."""
    return time in size.symbols


def in_front(size: Num, time: Symbol) -> int:
    """How many places stand in front of the sequence along an axis of `n + time`; 0 along any other."""
    return excess(size.value, of_atom(time))


def is_time(size: Num, time: Symbol) -> bool:
    """Whether a size is the length of the sequence itself."""
    value = size.value
    return isinstance(value, Poly) and len(value.terms) == 1 and value.terms[0] == (((time, 1),), Fraction(1))


def refuse(message: str, span: Span | None = None, help: str = "") -> ArchError:
    """The error for what has no step."""
    return error("E0504", message, span, help=help)


def blame(node: Any, what: str, help: str = "") -> ArchError:
    """The error for a node of the graph that has no step."""
    whole = "compile the model without `--decode` and `--with generate`: it then takes the whole sequence each time"
    name = f"`{node.op.name}`" if isinstance(node, OpNode) else "the scan"
    return refuse(f"{name} cannot be taken step by step: it {what}", node.span, help or whole)


def behind(node: Any, what: str = OTHERS) -> BehindError:
    """The error for a node that reads what stands in front of the sequence otherwise than whole."""
    return BehindError(blame(node, what, BEHIND).diagnostics)


def reads_numbers(node: OpNode, i: int) -> bool:
    """Whether a node reads an input's numbers, and not only its type."""
    shape, reads = node.tensor(i).shape, node.op.reads(node)[i]
    fixed = all(isinstance(r, At) and not r.axes and not r.also for r in reads)
    return not (fixed and reads and any(d.value != 1 for d in shape))


def takes_any_positions(node: OpNode, timed: Mapping[int, Sequence[int]]) -> bool:
    """Whether an op makes something of positions whatever their shape, also where each row has its own. `timed` are its
    inputs that are made of positions, with their axes of time."""
    op, reads = node.op, node.op.reads(node)
    if any(reads[i][axis] != same(axis) for i, axes in timed.items() for axis in axes):
        return False
    if not timed:
        return op.at_positions(node)
    if op.elementwise:
        return all(node.tensor(i).rank == node.outputs[0].rank for i in timed)
    return op.by_rows and not op.mixes


def takes_rows(node: OpNode, i: int) -> bool:
    """Whether an op takes an input with one more axis of batch in front."""
    return node.op.elementwise or node.op.leading(node, i) is not None


def axes_between(node: OpNode, i: int) -> int:
    """How many axes the result of an op has between that of batch and those of an input without it."""
    return node.outputs[0].rank - 1 - (node.tensor(i).rank - (node.op.leading(node, i) or 0))


def shifted(read: At | None, places: int) -> At | None:
    """What is read, so many places later."""
    return None if read is None else replace(read, offset=read.offset + places)


def own_axis(read: At | None) -> int | None:
    """The axis of the output whose position is the only one read."""
    if isinstance(read, At) and len(read.axes) == 1 and not read.also and read.offset == 0 and read.axes[0][1] == 1:
        return read.axes[0][0]
    return None


def shown(value: Value) -> str:
    """A tensor as messages show it."""
    name = f"`{value.name}` " if value.name else ""
    return f"{name}[{', '.join(str(d) for d in value.shape)}]"


def _linear(size: Num, time: Symbol) -> bool:
    """Whether a size is the length, or that of rows and positions laid out one after another (`batch * time`)."""
    value = size.value
    if not isinstance(value, Poly) or len(value.terms) != 1:
        return False
    monomial, coefficient = value.terms[0]
    return coefficient == 1 and (time, 1) in monomial and all(isinstance(a, Symbol) and p == 1 for a, p in monomial)
