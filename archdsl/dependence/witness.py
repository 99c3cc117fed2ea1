"""A way by which a later position certainly reaches an earlier one: element by element, in a sequence of a few tokens.

A bound that is too large proves nothing: it may be the analysis that is too coarse. So the way back from an element of
what is claimed is searched for one of the input that it must not depend on. A step is taken only where the op reads
that element whatever its weights are: not behind a mask that may hide it, not where numbers decide what is read, and
not where it is taken from another that may have read it too (`s - s`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice, product

from archdsl.dependence.domain import ANYWHERE, Fact, Form
from archdsl.dependence.paths import Paths, Spot
from archdsl.dependence.solve import DependenceWalk, Leak, ratio_of
from archdsl.ir.dims import Num, Poly, evaluate, same_shape
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import OpNode, ScanNode, Value
from archdsl.ir.interpreter import Level
from archdsl.ir.op import At, Joint, Reads, Regrouping

Index = tuple[int | None, ...]
"""The position of an element: None along an axis where any will do."""
Element = tuple[Spot, Index]

LENGTHS = (8, 12, 16, 24, 60, 64, 128, 240, 256, 1024)
"""How long the sequence may be that is searched: the first that all sizes allow, and the last."""
FIRST = 8
"""Positions that are tried for one length, from the first one on, beside that in the middle."""
MOST = 2_000
"""Steps back that are taken for one length."""
DEEPEST = 64
"""How far back it is asked whether a factor is a mask."""


class UnfitError(Exception):
    """A size is no whole number for this length."""


class Witness(Paths):
    """Searches the elements that one element of what is claimed is computed from."""

    def __init__(self, walk: DependenceWalk, leak: Leak) -> None:
        super().__init__()
        self.walk, self.leak = walk, leak
        self.source = walk.sources[leak.source]
        self.sizes: dict[str, int] = {}
        self.steps = 0
        self.depth = 0
        self.free: dict[object, bool] = {}
        self.large: dict[object, bool] = {}
        self.allowed = Fraction(0)
        """The latest position of the source that the element may depend on."""

    def search(self) -> list[Element] | None:
        """Elements from that of the input to that of what is claimed, each read by the next; None where no way is
        certain."""
        value, axis = self.leak.node.value, self.leak.axis
        sizes = [d.value for v in (value, *(s.value for s in self.walk.sources)) for d in v.shape[1:]]
        symbols = {s.name for d in sizes if isinstance(d, Poly) for s in d.symbols}
        ratio = ratio_of(self.source, value.shape[axis].value)
        tried = 0
        for length in LENGTHS if symbols else (0,):
            if tried and length != LENGTHS[-1]:
                continue
            self.sizes, self.steps, self.free = dict.fromkeys(symbols, length), 0, {}
            try:
                last = self.length(value.shape[axis].value) - 1
                for position in dict.fromkeys((*range(min(last, FIRST) + 1), last // 2)):
                    self.allowed = ratio * position + max(ratio - 1, Fraction(0)) + self.leak.node.ahead - 1
                    index = tuple(position if a == axis else None for a in range(value.rank))
                    found = self.search_from((Spot(self.leak.levels, self.leak.run, value), index))
                    if found is not None:
                        return found
            except UnfitError:
                continue
            tried += 1
        return None

    def search_from(self, start: Element) -> list[Element] | None:
        reader: dict[object, Element | None] = {}
        stack: list[tuple[Element, Element | None]] = [(start, None)]
        while stack and self.steps < MOST:
            element, by = stack.pop()
            spot, index = element
            key = (spot.key, index)
            if key in reader or not self.may_leak(spot, index):
                continue
            reader[key] = by
            if spot.value is self.source.value and not spot.frames:  # too late, or it might not leak
                path = [element]
                while by is not None:
                    path.append(by)
                    by = reader[by[0].key, by[1]]
                return path
            stack += [(read, element) for read in reversed(list(self.read_by(spot, index)))]
        return None

    def may_leak(self, spot: Spot, index: Index) -> bool:
        """Whether an element may depend on a position that is too late, as far as is proved."""
        fact = spot.run.fact(spot.value)
        if fact is None:
            return False
        bound = fact.bounds[self.leak.source]
        steps = [f.iteration for f in spot.frames if isinstance(f.node, ScanNode)]
        return bound is ANYWHERE or any(self.most(form, fact, index, steps) > self.allowed for form in bound)

    def most(self, form: Form, fact: Fact, index: Index, steps: Sequence[int]) -> Fraction:
        """The largest value of a form among the elements of an index."""
        total = form.offset + sum((a * b for a, b in zip(form.steps, steps, strict=False)), Fraction(0))
        for scales, parts, position in zip(form.scales, fact.layout, index, strict=True):
            rest = position
            for scale, part in zip(reversed(scales), reversed(parts), strict=True):
                if not scale and rest is None:
                    continue
                size = self.length(part)
                total += scale * (max(size - 1, 0) if rest is None else rest % size)
                rest = None if rest is None else rest // size
        return total

    def length(self, size: Size) -> int:
        """A size for the lengths that are searched. Raises UnfitError where it is none."""
        value = (
            evaluate(size, {s.name: self.sizes.get(s.name, 2) for s in size.symbols})
            if isinstance(size, Poly)
            else size
        )
        if not isinstance(value, int) or value < 1:
            raise UnfitError
        return value

    # --- one step back ---

    def read_by(self, spot: Spot, index: Index) -> Iterator[Element]:
        """The elements that one is certainly computed from."""
        self.steps += 1
        home = self.home(spot)
        found = self.producers(home.run.graph).get(id(home.value))
        if found is None:
            yield from self.around(home, index)
            return
        node, k = found
        if isinstance(node, OpNode):
            for one in self.concrete(home, node, index):
                self.steps += 1
                if self.steps > MOST:
                    return
                yield from self.op(home, node, k, one)
        elif isinstance(node, ScanNode):
            stacked = k < len(node.stacked)
            last = self.length(node.length.value) - 1
            step = last if not stacked or index[1] is None else index[1]
            inner = (index[0], *index[2:]) if stacked else index
            yield from self.end(home, node, step, k + len(node.starts) if stacked else k - len(node.stacked), inner)
        else:
            yield from ((read, index) for read in self.inputs(home))

    def end(self, spot: Spot, node: ScanNode, step: int, k: int, index: Index) -> Iterator[Element]:
        """What the body of a scan gives at a step."""
        inner = spot.run.inner[node][0]
        value = inner.graph.outputs[k]
        if value is not None:
            yield Spot((*spot.frames, Level(spot.run, node, step)), inner, value), index

    def around(self, spot: Spot, index: Index) -> Iterator[Element]:
        """What the graphs around put in."""
        frame = spot.frames[-1] if spot.frames else None
        node = frame.node if frame is not None else None
        if frame is None or not isinstance(node, ScanNode):
            yield from ((read, index) for read in self.from_outside(spot))
            return
        outside = Spot(spot.frames[:-1], frame.run, spot.value)
        k = next(i for i, v in enumerate(spot.run.graph.inputs) if v is spot.value)
        if k >= len(node.starts):
            sequence = node.sequences[k - len(node.starts)]
            yield Spot(outside.frames, outside.run, sequence), (index[0], frame.iteration, *index[1:])
        elif frame.iteration > 0:
            yield from self.end(outside, node, frame.iteration - 1, k, index)
        elif isinstance(start := node.starts[k], Value):
            yield Spot(outside.frames, outside.run, start), index

    def concrete(self, spot: Spot, node: OpNode, index: Index) -> Iterator[Index]:
        """The index with numbers along the axes on which it depends what is known, the latest first."""
        fact = spot.run.fact(spot.value)
        masked = [v for v in node.inputs if isinstance(v, Value) and v.is_bool]
        open_axes = set()
        for axis, position in enumerate(index):
            known = fact is not None and any(any(form.scales[axis]) for form, _ in fact.known)
            if position is None and (
                known
                or any(spot.value.rank - axis <= v.rank and v.shape[axis - spot.value.rank].value != 1 for v in masked)
            ):
                open_axes.add(axis)
        choices = (
            reversed(range(self.length(spot.value.shape[a].value))) if a in open_axes else (position,)
            for a, position in enumerate(index)
        )
        yield from product(*choices)

    def op(self, spot: Spot, node: OpNode, k: int, index: Index) -> Iterator[Element]:
        op, how = node.op, node.op.regroups(node)
        if how is not None:
            yield self.input(spot, node, 0), self.recut(how, index)
            return
        if k in op.indices and any(self.is_known_somewhere(spot, v) for v in node.inputs):
            return  # of what is not masked there may be one alone
        joint = op.joint(node) if k == 0 else None
        if joint is not None:
            for i, value in enumerate(node.inputs):
                if isinstance(value, Value):
                    yield from self.jointly(spot, node, joint, i, index)
            return
        reads: Sequence[Reads] = op.reads_of(node, k)
        positions = [self.position(node, k, i, reads[i], spot.value, index) for i in range(len(node.inputs))]
        if op.relative and self.is_alone(spot, node, reads[0], positions[0]):
            return
        known = [self.given(spot, node, i, positions[i]) for i in range(len(positions))] if op.elementwise else []
        if known and op.constant(node, known) is not None:
            return
        if op.additive and any(self.may_drown(spot, node, i, number) for i, number in enumerate(known)):
            return  # what reads the sum may be the same whatever the other term is
        if op.additive and self.may_cancel(spot, node, positions):
            return
        picked = op.picks(node, known) if known else None
        taken = op.taken_from(node, index, self.length)
        for i, position in enumerate(positions):
            if position is None or (known and known[i] is not None) or taken not in (None, i):
                continue
            if i in op.chosen and i != picked:
                continue
            others = [
                j for j in range(len(positions)) if j != i and positions[j] is not None and known and known[j] is None
            ]
            hidden = op.elementwise and not op.additive and not op.chosen
            if hidden and not all(self.is_free(self.input(spot, node, j), positions[j] or ()) for j in others):
                continue
            yield self.input(spot, node, i), position

    def is_alone(self, spot: Spot, node: OpNode, reads: Reads, position: Index | None) -> bool:
        """Whether of all numbers along the axis that an op reads whole one alone counts."""
        assert position is not None
        (axis,) = (a for a, read in enumerate(reads) if read is None)
        before, behind = position[:axis], position[axis + 1 :]
        numbers = (
            self.number(self.input(spot, node, 0), (*before, place, *behind))
            for place in range(self.length(node.tensor(0).shape[axis].value))
        )
        return len([*islice((n for n in numbers if n != node.op.absent(node)), 2)]) < 2

    def may_cancel(self, spot: Spot, node: OpNode, positions: Sequence[Index | None]) -> bool:
        """Whether a difference is one of two inputs that may both depend on a position that is too late."""
        factors = node.op.combines(node) or ()
        late = {
            factor > 0
            for i, (factor, position) in enumerate(zip(factors, positions, strict=False))
            if isinstance(node.inputs[i], Value)
            and position is not None
            and self.may_leak(self.input(spot, node, i), position)
        }
        return len(late) > 1

    @staticmethod
    def is_known_somewhere(spot: Spot, value: object) -> bool:
        fact = spot.run.fact(value)
        return fact is not None and bool(fact.known)

    def may_drown(self, spot: Spot, node: OpNode, i: int, number: float | None) -> bool:
        """Whether an input, where it is not known to be `number`, may hold a large number that the model is written
        with, as a mask does that is added to scores."""
        given = node.inputs[i]
        if number is not None or not isinstance(given, Value):
            return number is not None and abs(number) > LARGE
        term = self.input(spot, node, i)
        if term.key not in self.large:
            self.large[term.key] = False  # for what is too far away
            made = self.maker(term) if self.depth < DEEPEST else None
            if made is not None:
                self.depth += 1
                self.large[term.key] = self.holds_large(made[0], made[1])
                self.depth -= 1
        return self.large[term.key]

    def holds_large(self, spot: Spot, node: OpNode) -> bool:
        if any(abs(number) > LARGE for _, number in node.op.constants(node)):
            return True
        if not (node.op.elementwise or node.op.moves or node.op.regroups(node) is not None):
            return False
        numbers = [float(n) if isinstance(n, Num) and n.static else None for n in node.inputs]
        return any(self.may_drown(spot, node, i, number) for i, number in enumerate(numbers))

    def input(self, spot: Spot, node: OpNode, i: int) -> Spot:
        return Spot(spot.frames, spot.run, node.tensor(i))

    def position(self, node: OpNode, k: int, i: int, reads: Reads, output: Value, index: Index) -> Index | None:
        """The element of input i that an op reads for one of its output, the latest; None where there is none."""
        given = node.inputs[i]
        if not isinstance(given, Value):
            return None
        found: list[int | None] = []
        for axis, (size, read) in enumerate(zip(given.shape, reads, strict=True)):
            position = self.along(read, output, index)
            own = index[axis] if axis < len(index) else None
            if own is not None and (certain := node.op.certain(node, k, i, axis, own, self.length)) is not None:
                position = certain
            if position is not None and not 0 <= position < self.length(size.value):
                return None
            found.append(position)
        return tuple(found)

    def along(self, read: At | None, output: Value, index: Index) -> int | None:
        if read is None:
            return None
        if len(read.axes) == 1 and read.offset == 0 and read.axes[0][1] == 1 and index[read.axes[0][0]] is None:
            return None
        total = read.offset
        for axis, scale in read.axes:
            position = index[axis]
            total += scale * (self.length(output.shape[axis].value) - 1 if position is None else position)
        return total.numerator // total.denominator

    def recut(self, how: Regrouping, index: Index) -> Index:
        """The element of an input whose axes are cut and merged."""
        parts: dict[tuple[int, int], int | None] = {}
        for position, group in zip(index, how.axes, strict=True):
            rest = position
            for axis, cut in reversed(group):
                size = self.length(how.cuts[axis][cut].value)
                parts[axis, cut] = None if rest is None else rest % size
                rest = None if rest is None else rest // size
        found: list[int | None] = []
        for axis, cuts in enumerate(how.cuts):
            own = [parts.get((axis, cut), 0) for cut in range(len(cuts))]
            if all(p is None for p in own):
                found.append(None)
                continue
            total = 0
            for part, cut_size in zip(own, cuts, strict=True):
                length = self.length(cut_size.value)
                total = total * length + (length - 1 if part is None else part)
            found.append(total)
        return tuple(found)

    def jointly(self, spot: Spot, node: OpNode, joint: Joint, i: int, index: Index) -> Iterator[Element]:
        """The elements of one input that take part in a sum of products: the latest that no factor hides."""
        values = [v if isinstance(v, Value) else None for v in node.inputs]
        fixed: dict[str, int | None] = dict(zip(joint.result, index, strict=True))
        sizes: dict[str, int] = {}
        for value, term in zip(values, joint.terms, strict=True):
            for d, name in zip(value.shape if value is not None else (), term, strict=True):
                sizes[name] = max(self.length(d.value), sizes.get(name, 1))
        hiding = [j for j, v in enumerate(values) if v is not None and joint.nothing[j] is not None]
        names = [n for n in dict.fromkeys(n for j in (*hiding, i) for n in joint.terms[j]) if fixed.get(n) is None]
        masked = [n for n in names if self.is_masked(spot, node, hiding, joint, n)]
        weighs = i in joint.weighing and (joint.over in masked or sizes[joint.over] == 1)
        first: dict[tuple[int | None, ...], Element] = {}
        for choice in product(*(reversed(range(sizes[n])) for n in masked)):
            self.steps += 1
            if self.steps > MOST:
                return
            at = {**dict.fromkeys(names), **fixed, **dict(zip(masked, choice, strict=True))}

            def element(j: int, at: dict[str, int | None] = at) -> Element:
                value = values[j]
                assert value is not None
                position = (0 if d.value == 1 else at[n] for n, d in zip(joint.terms[j], value.shape, strict=True))
                return self.input(spot, node, j), tuple(position)

            own = element(i)
            others = ((*element(j), joint.nothing[j]) for j in hiding if j != i)
            if self.number(*own) is None and all(self.counts(*other) for other in others):
                where = tuple(at[n] for n in names if n in joint.result)
                if not weighs or where in first:
                    yield first.get(where, own)
                    return
                first[where] = own  # which counts if it is not alone

    def is_masked(self, spot: Spot, node: OpNode, hiding: Sequence[int], joint: Joint, name: str) -> bool:
        """Whether it depends on the position along an axis if a factor hides the others."""
        for j in hiding:
            value = node.inputs[j]
            if isinstance(value, Value) and name in joint.terms[j]:
                fact = spot.run.fact(value)
                axis = joint.terms[j].index(name)
                decides = value.is_bool and value.shape[axis].value != 1
                if decides or (fact is not None and any(any(f.scales[axis]) for f, _ in fact.known)):
                    return True
        return False

    def counts(self, spot: Spot, index: Index, nothing: float | None) -> bool:
        """Whether a factor certainly lets others through."""
        number = self.number(spot, index)
        return number != nothing if number is not None else self.is_free(spot, index)

    # --- what is known of one element ---

    def given(self, spot: Spot, node: OpNode, i: int, index: Index | None) -> float | None:
        """The number that an op is given, where that is known."""
        value = node.inputs[i]
        if isinstance(value, Value):
            return None if index is None else self.number(self.input(spot, node, i), index)
        return None if value is None or isinstance(value.value, Poly) else float(value.value)

    def number(self, spot: Spot, index: Index) -> float | None:
        fact = spot.run.fact(spot.value)
        for form, value in fact.known if fact is not None else ():
            open_axes = (any(scales) for scales, position in zip(form.scales, index, strict=True) if position is None)
            if fact is not None and not any(open_axes) and self.most(form, fact, index, ()) > 0:
                return value
        made = self.maker(spot)
        if made is None or None in index[-2:]:
            return None
        return made[1].op.element(made[1], [0 if position is None else position for position in index])

    def maker(self, spot: Spot) -> tuple[Spot, OpNode, int] | None:
        """The op that makes a value, wherever it is handed on from; None for what comes from elsewhere."""
        while True:
            home = self.home(spot)
            found = self.producers(home.run.graph).get(id(home.value))
            if found is not None and isinstance(found[0], OpNode):
                return home, found[0], found[1]
            reads = [] if found is not None and isinstance(found[0], ScanNode) else self.inputs(home)
            if len(reads) != 1 or reads[0].value.rank != spot.value.rank:  # or a scan takes a slice
                return None
            spot = reads[0]

    def is_free(self, spot: Spot, index: Index) -> bool:
        """Whether an element is any number, as far as masks go: not one that a comparison decides on."""
        key = (spot.key, index)
        if key not in self.free:
            self.steps += 1
            self.free[key] = False  # for what is too far away
            if self.depth < DEEPEST and self.steps < MOST:
                self.depth += 1
                self.free[key] = self.found_free(spot, index)
                self.depth -= 1
        return self.free[key]

    def found_free(self, spot: Spot, index: Index) -> bool:
        made = self.maker(spot)
        if made is None:
            return not (spot.value.is_bool or spot.value.is_int)
        home, node, k = made
        op = node.op
        if home.value.is_bool or home.value.is_int or (op.chosen and not op.elementwise):
            return False
        if _along_an_axis(node):
            return self.is_free(self.input(home, node, 0), index)
        if node.weights or (op.passes and not op.elementwise and op.regroups(node) is None):
            return True
        if op.regroups(node) is not None or not op.elementwise:
            reads = list(self.op(home, node, k, index))  # none where a position is filled
            return bool(reads) and all(self.is_free(*read) for read in reads)
        positions = [self.position(node, k, i, r, home.value, index) for i, r in enumerate(op.reads_of(node, k))]
        known = [self.given(home, node, i, position) for i, position in enumerate(positions)]
        picked = op.picks(node, known)
        for i, position in enumerate(positions):
            if picked is not None and i != picked:
                continue
            number = known[i]
            if number is not None:
                if abs(number) > LARGE or (number == 0 and not op.additive):
                    return False
            elif position is not None and not self.is_free(self.input(home, node, i), position):
                return False
        return True


LARGE = 256
"""A number beyond it may be meant to hide others."""


def _along_an_axis(node: OpNode) -> bool:
    """Whether an op without weights makes each element of that at its position and of those beside it (softmax)."""
    first = node.inputs[0] if len(node.inputs) == 1 else None
    plain = not (node.weights or node.op.elementwise or node.op.moves or node.op.regroups(node) is not None)
    return plain and isinstance(first, Value) and same_shape(first.shape, node.outputs[0].shape)
