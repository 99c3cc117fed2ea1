"""The sequence along which a model is decoded, and what must be proved of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from archdsl.dependence.causality import prove_output, proved
from archdsl.dependence.lengths import stays
from archdsl.dependence.masked import read_too_far
from archdsl.dependence.rows import BATCH, mixing
from archdsl.dependence.solve import InputAxis
from archdsl.diagnostics import ArchError
from archdsl.frozen import Entity
from archdsl.ir.dims import Num, Symbol
from archdsl.ir.graph import Model, Node, OpNode, Value
from archdsl.ir.static import numbers_of
from archdsl.ir.walk import nodes_below
from archdsl.passes.forms import Forms, has, in_front, is_time, refuse, shown


class DecodedSequence(Entity):
    """The sequence that the first output of a model follows, position by position."""

    model: Model
    time: Symbol
    """Its length."""
    output: Value
    axis: InputAxis
    """The axis of the model's input that it is."""

    @classmethod
    def of(cls, model: Model) -> DecodedSequence:
        """Return the sequence of a model. Raises ArchError E0504 where there is none, or where the output is not proved
        to depend on no later position, or what is made of positions on not how many these are."""
        output = next(v for _, v in model.outputs)
        time = _time(model, output)
        axis = next(
            InputAxis(n, v, a) for n, v in model.inputs for a, d in enumerate(v.shape) if a and is_time(d, time)
        )
        found = cls(model, time, output, axis)
        found._demand_rows()
        found._demand_causal()
        return found

    def _demand_rows(self) -> None:
        """Raise ArchError E0504 where what seems to be rows is a sequence: an op counts what stands along it, or mixes
        it."""
        rows = self.axis.value.shape[0]
        if rows.static or rows.value == BATCH:
            return
        counting = next((n for n in nodes_below(self.model.block.graph) if counts(n, rows)), None)
        mixed = (None, counting) if counting is not None else mixing(self.model, rows.value)
        if mixed is None:
            return
        node = mixed[1]
        name, span = ("the model", None) if node is None else (f"`{node.op.name}`", node.span)
        does = "mixes" if counting is None else "counts"
        raise refuse(
            f"`{self.model.name}` cannot be decoded step by step: {name} {does} what stands along `{rows}`, the first "
            f"axis of `{self.axis.name}`, and steps follow the second",
            span,
            "write inputs as [batch, time, …]; where rows are mixed on purpose, call their number `batch`",
        )

    def _demand_causal(self) -> None:
        model = self.model
        for problem in prove_output(model, self.output):
            message = f"`{model.name}` cannot be decoded step by step: {problem.message}"
            help_ = "a model whose positions see later ones is compiled without `--decode` and `--with generate`"
            raise ArchError([replace(problem, code="E0504", message=message, help=help_)])
        fine, node = stays(model, self.output, self.axis)
        if fine:
            return
        self._demand_positions()
        name = "the model" if node is None else f"`{node.op.name}`"
        help_ = "hide later positions first: `where(key <= query, …, 0)` before a sum, `-inf` before a softmax"
        raise refuse(
            f"`{model.name}` cannot be decoded step by step: the result of {name} changes with each position that "
            "follows",
            None if node is None else node.span,
            help_,
        )

    def _demand_positions(self) -> None:
        """Raise ArchError E0504 for the first op that makes an axis of positions other than the sequence's."""
        forms = Forms(self.time, self.axis.value.shape[0].value, led=True)
        for node in nodes_below(self.model.block.graph):
            for value in node.outputs if isinstance(node, OpNode) else ():
                forms.result(node, value)

    def is_followed_by(self, output: Value) -> bool:
        """Whether another output [batch, …, time, …] can be given at its new positions, which later tokens do not
        change."""
        rows, axes = self.axis.value.shape[0].value, [a for a, d in enumerate(output.shape) if has(d, self.time)]
        alike = output.dtype != "padding" and len(axes) == 1 and output.shape[0].value == rows
        return (
            alike
            and axes[0] > 0
            and is_time(output.shape[axes[0]], self.time)
            and proved(self.model, output)
            and stays(self.model, output, self.axis)[0]
            and read_too_far(self.model, output, self.axis) is None
        )

    def demand_known(self) -> None:
        """Raise ArchError E0504 where an op reads hidden numbers of positions that no step has yet."""
        if (longer := read_too_far(self.model, self.output, self.axis)) is not None:
            raise ArchError([longer])


def counts(node: Node, rows: Num) -> TypeGuard[OpNode]:
    """Whether an op makes numbers of the positions along an axis of so many rows."""
    if not isinstance(node, OpNode) or node.op.moves or node.op.alike or not node.op.positional:
        return False
    given = (*(n for n in node.inputs if isinstance(n, Num)), *numbers_of(node.options))
    return any(not rows.symbols.isdisjoint(n.symbols) for n in given)


def _time(model: Model, output: Value) -> Symbol:
    """The symbol of the sequence that an output follows."""
    shape = output.shape
    symbols = [s for d in shape[1:] for s in d.symbols if is_time(d, s)]
    for symbol in symbols:
        if any(is_time(d, symbol) for _, v in model.inputs for d in v.shape[1:]):
            if sum(is_time(d, symbol) for d in shape) > 1:
                raise refuse(
                    f"`{model.name}` cannot be decoded step by step: {shown(output)}, its output, grows along two axes"
                )
            return symbol
    lengths = [d for _, v in model.inputs for d in v.shape[1:]]
    for axis, d in enumerate(shape):
        front = next((n for s in d.symbols if any(is_time(t, s) for t in lengths) and (n := in_front(d, s))), 0)
        if axis and front:
            raise refuse(
                f"`{model.name}` cannot be decoded step by step: {shown(output)}, its output, still has the {front} "
                "places in front of the sequence",
                output.span,
                help=f"cut them off before the head: `x[{':, ' * axis}{front}:]`",
            )
    raise refuse(
        f"`{model.name}` has no output that follows the positions of a sequence, so there is nothing to decode",
        help="decoding is for models whose output is [batch, time, …], such as those with the head `lm`",
    )
