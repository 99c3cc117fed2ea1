"""Whether two models compute the same, op by op and weight by weight, whatever their weights are called, in whatever
order their nodes stand, and however axes are cut, moved and merged."""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from archdsl.ir.dims import Num
from archdsl.ir.graph import Input, OpNode, ParamNode, Value, Weight
from archdsl.ir.masks import Mask
from archdsl.ir.op import EVERYWHERE, same
from archdsl.passes.flatten import FlatGraph, FlatNode, FlatOp, FlatParam, FlatScan, FlatWeight


@dataclass(eq=False)
class Step:
    """One computation: of a node, or of one result of a node that only takes elements out."""

    what: tuple[str, tuple[tuple[str, Any], ...]]
    """Of an op its name and options; of what only moves elements, how."""
    inputs: tuple[Any, ...] = ()
    """`Made` values, and numbers by their value."""
    weights: tuple[tuple[str, tuple[str, ...], str], ...] = ()
    """The name, shape and path of each."""
    inner: Mapping[str, Form] = field(default_factory=dict)
    """Graphs that it runs itself."""
    rows: bool = False
    """Whether it reads each vector along the last axis by itself; `single`: each element."""
    single: bool = False
    commutes: bool = False
    """Whether its inputs may be exchanged."""
    text: str = field(init=False)
    """Equal for steps that compute the same."""

    def __post_init__(self) -> None:
        inputs = tuple((i.text if isinstance(i, Made) else i) for i in self.ordered)
        stored = tuple((name, shape) for name, shape, _ in self.weights)
        inner = tuple((name, form.outputs) for name, form in self.inner.items())
        self.text = hashlib.sha256(repr((self.what, inputs, stored, inner)).encode()).hexdigest()

    @property
    def ordered(self) -> tuple[Any, ...]:
        """The inputs, in an order that does not depend on how they were written where they may be exchanged."""
        if not self.commutes:
            return self.inputs
        return tuple(sorted(self.inputs, key=lambda i: i.text if isinstance(i, Made) else str(i)))


@dataclass(frozen=True, eq=False)
class Made:
    """A result of a step."""

    step: Step
    index: int = 0

    @property
    def text(self) -> str:
        return f"{self.step.text} {self.index}"


Unit = tuple[int, ...]
"""An axis, or a part of one: the axis, then which of its cuts, and which cut of that."""


@dataclass(frozen=True)
class Movement:
    """How the axes of a value are cut, moved and merged: the sizes that its axes are cut into, and the parts that each
    axis of the result is made of, the last of them running fastest."""

    sizes: Mapping[Unit, str]
    axes: tuple[tuple[Unit, ...], ...]

    @classmethod
    def none(cls, value: Value) -> Movement:
        return cls({(i,): str(d.value) for i, d in enumerate(value.shape)}, tuple(((i,),) for i in range(value.rank)))

    @property
    def key(self) -> tuple[tuple[str, Any], ...]:
        return ("cut", tuple(sorted(self.sizes.items()))), ("axes", self.axes)

    @property
    def keeps_last(self) -> bool:
        """Whether vectors along the last axis stay what they are."""
        last = max(unit[0] for unit in self.sizes)
        return self.axes[-1] == ((last,),)

    @property
    def keeps_all(self) -> bool:
        """Whether everything is in the end where it was."""
        own = {unit[0]: [u for u in sorted(self.sizes) if u[0] == unit[0]] for unit in self.sizes}
        return [*map(list, self.axes)] == [own[i] for i in sorted(own)]

    def then(self, node: OpNode) -> Movement | None:
        """The movement with that of a node behind it; None where the node moves elements otherwise."""
        how = node.op.regroups(node)
        if how is None:
            if not node.op.moves_axes:
                return None
            reads = node.op.reads(node)[0]
            order = [reads.index(same(i)) for i in range(node.outputs[0].rank)]
            return Movement(self.sizes, tuple(self.axes[i] for i in order))
        sizes = dict(self.sizes)
        pieces: dict[tuple[int, int], tuple[Unit, ...]] = {}
        for axis, cut in enumerate(how.cuts):
            units = self.axes[axis]
            lengths = [str(n.value) for n in cut]
            if len(cut) == 1:
                pieces[axis, 0] = units
            elif len(units) == len(cut) and [sizes[u] for u in units] == lengths:
                pieces.update({(axis, k): (u,) for k, u in enumerate(units)})
            elif len(units) == 1:
                del sizes[units[0]]
                for k, length in enumerate(lengths):
                    sizes[*units[0], k] = length
                    pieces[axis, k] = ((*units[0], k),)
            else:
                return None
        return Movement(sizes, tuple(tuple(u for at in group for u in pieces[at]) for group in how.axes))


class Form:
    """What a graph computes: values that are computed alike have equal texts."""

    def __init__(self, graph: FlatGraph, around: Form | None = None) -> None:
        """`around` is the form of the graph in which a scan stands whose body this is: the body may read its values."""
        self.graph = graph
        self.made: ChainMap[Value, Made] = around.made.new_child() if around is not None else ChainMap()
        self.moved: ChainMap[Made, tuple[Made, Movement]] = (
            around.moved.new_child() if around is not None else ChainMap()
        )
        depth = len(self.made.maps)
        for i, value in enumerate(graph.inputs):
            self.made[value] = Made(Step((f"input {depth} {i} {value.dtype}", ())))
        for node in graph.nodes:
            self.made.update(zip(node.outputs, self._made(node), strict=True))

    @property
    def results(self) -> tuple[Made, ...]:
        return tuple(self.made[v] for v in self.graph.outputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(made.text for made in self.results)

    def _made(self, node: FlatNode) -> Sequence[Made]:
        if isinstance(node, FlatParam):
            return [Made(Step(("a weight", ()), (), (("shape", _shape(node.weight), node.weight.path),)))]
        if isinstance(node, FlatScan):
            starts, sequences = map(self._given, node.starts), map(self._given, node.sequences)
            step = Step(("scan", ()), (*starts, len(node.starts), *sequences), (), {"body": Form(node.body, self)})
            return [Made(step, i) for i in range(len(node.outputs))]
        assert isinstance(node, FlatOp), "a model has no nodes of decoding"
        op, inputs = node.node.op, tuple(map(self._given, node.inputs))
        if inputs and isinstance(inputs[0], Made) and not node.weights:
            if Movement.none(node.node.tensor(0)).then(node.node) is not None:
                return [self._moved(inputs[0], node.node)]
            if op.moves and len(node.outputs) > 1:
                taken = [(op.reads_of(node.node, i), v) for i, v in enumerate(node.outputs)]
                parts = [(("reads", repr(r)), ("shape", tuple(str(d.value) for d in v.shape))) for r, v in taken]
                return [Made(Step(("part", part), inputs)) for part in parts]
        weights = tuple((name, _shape(w), w.path) for name, w in sorted(node.weights.items()))
        inner = {name: Form(graph) for name, graph in sorted(node.blocks.items())}
        rows = single = False
        if len(inputs) == len(node.outputs) == 1 and isinstance(inputs[0], Made) and not inner:
            x, y = ([d.value for d in v.shape] for v in (node.node.tensor(0), node.outputs[0]))
            reads, own = op.reads(node.node)[0], tuple(same(i) for i in range(len(x)))
            quiet = not op.noisy and (not weights or op.statistics > 0)
            rows = quiet and x == y and reads[:-1] == own[:-1] and reads[-1] is EVERYWHERE
            single = quiet and op.elementwise
        step = Step((op.name, _options(node.node)), inputs, weights, inner, rows, single, op.sign in ("+", "*"))
        return [Made(step, i) for i in range(len(node.outputs))]

    def _moved(self, value: Made, node: OpNode) -> Made:
        """A value with its axes moved as a node does: before what treats each element, or each row that stays what it
        is, by itself."""
        alone = Movement.none(node.tensor(0)).then(node)
        assert alone is not None
        over: list[Step] = []
        while value.step.single or (value.step.rows and alone.keeps_last):
            over.insert(0, value.step)
            value = value.step.inputs[0]
        base, before = self.moved.get(value, (value, Movement.none(node.tensor(0))))
        joined = before.then(node)
        base, how = (value, alone) if joined is None else (base, joined)
        found = base
        if not how.keeps_all:
            found = Made(Step(("moved", how.key), (base,)))
            self.moved[found] = base, how
        for step in over:
            found = Made(Step(step.what, (found,), step.weights, {}, step.rows, step.single))
        return found

    def _given(self, value: Input) -> Any:
        return self.made.get(value, "around") if isinstance(value, Value) else worth(value)

    def difference(self, other: Form) -> str:
        """Say which op, the first from the outputs on, another graph computes otherwise."""
        todo = [*zip(self.results, other.results, strict=False)]
        seen: set[Step] = set()
        while todo:
            a, b = todo.pop(0)
            one, two = a.step, b.step
            if a.text == b.text or one in seen:
                continue
            seen.add(one)
            here, there = _said(one), _said(two)
            own, theirs = (OTHERS.get(kind.split()[0], f"`{kind}`") for kind in (here[0], there[0]))
            if own != theirs:
                return f"computes {theirs} where the model computes {own}"
            if here != there and own in OTHERS.values():
                return f"computes {own}, another than the model"
            if here != there:
                options = [n for n, v in {*here[1]} ^ {*there[1]} if v is not None]
                return f"computes `{here[0]}` with another {' and another '.join(sorted({*options}))}"
            pairs = zip(one.inputs, two.inputs, strict=False)
            todo += [(x, y) for x, y in pairs if isinstance(x, Made) and isinstance(y, Made)]
        return "computes the same of other inputs"

    def paired(self, other: Form) -> dict[str, str] | None:
        """What each weight is called in another graph that computes the same; None where it does not."""
        if self.outputs != other.outputs:
            return None
        found: dict[str, str] = {}
        back: dict[str, str] = {}
        seen: set[tuple[Step, Step]] = set()
        todo = [*zip(self.results, other.results, strict=True)]
        while todo:
            a, b = todo.pop()
            one, two = a.step, b.step
            if (one, two) in seen:
                continue
            seen.add((one, two))
            for (_, _, path), (_, _, theirs) in zip(one.weights, two.weights, strict=True):
                if found.setdefault(path, theirs) != theirs or back.setdefault(theirs, path) != path:
                    return None  # what is one weight here are two there
            pairs = zip(one.ordered, two.ordered, strict=True)
            todo += [(x, y) for x, y in pairs if isinstance(x, Made) and isinstance(y, Made)]
            for name, form in one.inner.items():
                todo += zip(form.results, two.inner[name].results, strict=True)
        return found


OTHERS = {"input": "an input", "a": "a weight", "moved": "a tensor with its axes moved", "part": "a part of a tensor"}
"""What a message calls a step that is no op, by the first word of the step's name."""


def _said(step: Step) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """What a step is, with the shapes of its weights."""
    return step.what[0], step.what[1] + tuple((name, shape) for name, shape, _ in step.weights)


def described(node: OpNode | ParamNode) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """The op of a node, its options and the shapes of its weights."""
    if isinstance(node, ParamNode):
        return "a weight", (("shape", _shape(node.weight)),)
    return node.op.name, _options(node) + tuple((w.name, _shape(w)) for w in node.weights)


def _options(node: OpNode) -> tuple[tuple[str, Any], ...]:
    return tuple((n, worth(v)) for n, v in sorted(node.options.items()) if n != "init" and v is not None)


def _shape(weight: FlatWeight | Weight) -> tuple[str, ...]:
    declared = weight.weight if isinstance(weight, FlatWeight) else weight
    return tuple(str(d.value) for d in declared.shape)


def worth(value: Any) -> Any:
    """An option or a number by its value."""
    if isinstance(value, Num):
        return f"{float(value):.12g}" if value.static else str(value.value)
    if isinstance(value, Mask):
        return (value.rule, tuple(map(worth, value.numbers)), tuple(map(worth, value.parts)))
    if isinstance(value, str | bool | int | float) or value is None:
        return value
    if isinstance(value, tuple | list):
        return tuple(map(worth, value))
    name = getattr(value, "name", type(value).__name__)
    held = getattr(value, "numbers", getattr(value, "args", None))
    return (name, tuple((n, worth(v)) for n, v in sorted(held.items()))) if isinstance(held, Mapping) else name
