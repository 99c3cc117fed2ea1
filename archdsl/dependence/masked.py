"""Whether what is masked counts for nothing: if not, a result depends on how many positions follow its own, and a step
of decoding, which knows of none, gives other numbers than the whole sequence, though no later token reaches it.

What a tensor has at a position along time it has because that position is there. So an op that makes one number of many
depends on every position that it reads, but where it reads what counts as if it were not there (`Primitive.absent`,
`Joint.nothing`): 0 in a sum, minus infinity in softmax. What is made of positions alone is another walk's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from archdsl.dependence.domain import ANYWHERE, ONE, ZERO, Fact, Form, covers, flat_layout, join, tightened
from archdsl.dependence.solve import DependenceWalk, InputAxis
from archdsl.diagnostics import Diagnostic
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.dims import excess
from archdsl.ir.graph import CausalNode, Graph, Model, OpNode, Value, reads
from archdsl.ir.interpreter import Run


class MaskedWalk(DependenceWalk):
    """Finds up to which position of time all must be there for a tensor to be what it is."""

    def __init__(self, source: InputAxis) -> None:
        super().__init__([source])
        self.ahead: tuple[OpNode, int] | None = None
        """The first op that reads further than the own positions of what it gives, and the number of that output."""

    def op(self, node: OpNode, run: Run[Fact]) -> None:
        super().op(node, run)
        for k, value in enumerate(node.outputs if self.ahead is None else ()):
            fact, own = run.fact(value), self.there(value, None)
            if fact is not None and fact.layout == flat_layout(value) and is_read(run.graph, value):
                reach, near = fact.bounds[0], () if own is None else own.bounds[0] or ()
                if reach is ANYWHERE or any(not any(covers(n, form) for n in near) for form in reach):
                    self.ahead = node, k

    def read(self, node: OpNode, k: int, facts: Sequence[Fact | None]) -> Sequence[Fact | None]:
        if node.op.elementwise:
            return facts
        joint, absent = node.op.joint(node), node.op.absent(node)
        absent = None if k in node.op.indices else absent  # of what is absent any may be the one that is pointed at
        nothing = joint.nothing if joint is not None else (absent,) * len(facts)
        left = self.axes(node.outputs[0])
        return [
            self.there(v, fact, n)
            if isinstance(v, Value) and (joint is not None or absent is not None or self.axes(v) > left)
            else fact
            for v, fact, n in zip(node.inputs, facts, nothing, strict=True)
        ]

    def axes(self, value: Value) -> int:
        """How many axes run along the sequence."""
        return sum(self.before(d.value) is not None for d in value.shape)

    def before(self, size: DimValue) -> int | None:
        """How many places stand before those of the sequence along an axis of that size, which runs along it; None
        of any other."""
        (source,) = self.sources
        time = source.value.shape[source.axis].value
        return 0 if size == time else excess(size, time) or None

    def there(self, value: Value, fact: Fact | None, absent: float | None = None) -> Fact | None:
        """The fact of a tensor that depends on its own positions, too, where it is not known to be `absent`."""
        found = fact or Fact(flat_layout(value), ((),))
        parts = [(a, i, self.before(n)) for a, sizes in enumerate(found.layout) for i, n in enumerate(sizes)]
        zeros = [[ZERO] * len(sizes) for sizes in found.layout]
        own = []
        for axis, part, before in parts:
            if before is not None:
                row = tuple(ONE if i == part else ZERO for i in range(len(zeros[axis])))
                own.append(Form((*map(tuple, zeros[:axis]), row, *map(tuple, zeros[axis + 1 :])), Fraction(-before)))
        if not own:
            return fact
        known = tuple((form, number) for form, number in found.known if number == absent)
        return tightened(Fact(found.layout, (join(found.bounds[0], tuple(own)),), known, found.positions))


def is_read(graph: Graph, value: Value) -> bool:
    """Whether a graph computes anything with a tensor, or gives it."""
    return value in graph.outputs or any(value in reads(node) for node in graph.nodes)


def masked(model: Model, sequence: InputAxis) -> MaskedWalk:
    """The walk that finds up to which position of a sequence all must be there for every tensor."""
    walk = MaskedWalk(sequence)
    walk.run(model.block.graph, [walk.there(v, None) for _, v in model.inputs])
    return walk


def read_too_far(model: Model, output: Value, sequence: InputAxis) -> Diagnostic | None:
    """What is wrong, an error E0504, if an output depends on how many positions of a sequence follow its own, by what
    is masked; None if it does not. What the model assumes to be causal is taken not to."""
    walk, graph = MaskedWalk(sequence), model.block.graph
    kept = (n for n in graph.nodes if not isinstance(n, CausalNode) or n.assumed)
    walk.run(replace(graph, nodes=(*kept, CausalNode(output, 1))), [walk.there(v, None) for _, v in model.inputs])
    if not any(leak.node.value is output for leak in walk.leaks):
        return None
    what, span, name, indices = "its result", None, "y", False
    if walk.ahead is not None:
        node, k = walk.ahead
        what, span, name = f"what `{node.op.name}` gives", node.span, node.outputs[k].name or name
        indices = k in node.op.indices
    message = f"`{model.name}` cannot be decoded step by step: {what} depends on how many positions follow"
    if indices:
        help_ = f"of masked positions `{name}` points at any: mask them again behind it, and `assume causal({name})`"
    else:
        nothing = "0 counts for nothing in a sum, and `-inf` in softmax, `max` and `topk`"
        help_ = f"{nothing}; `assume causal({name})` says that all does"
    return Diagnostic("E0504", message, span, help=help_)
