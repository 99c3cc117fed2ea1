"""The sequence along which a model is decoded, and what must be proved of it."""

from __future__ import annotations

from dataclasses import replace

from archdsl.dependence.causality import prove_output, proved
from archdsl.dependence.lengths import stays
from archdsl.dependence.masked import read_too_far
from archdsl.dependence.solve import InputAxis
from archdsl.diagnostics import ArchError
from archdsl.frozen import Entity
from archdsl.ir.dims import Symbol
from archdsl.ir.graph import Model, Value
from archdsl.passes.forms import has, in_front, is_time, refuse, shown


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
        found._demand_causal()
        return found

    def _demand_causal(self) -> None:
        model = self.model
        for problem in prove_output(model, self.output):
            message = f"`{model.name}` cannot be decoded step by step: {problem.message}"
            help_ = "a model whose positions see later ones is compiled without `--decode` and `--with generate`"
            raise ArchError([replace(problem, code="E0504", message=message, help=help_)])
        fine, node = stays(model, self.output, self.axis)
        if fine:
            return
        name = "the model" if node is None else f"`{node.op.name}`"
        help_ = "hide later positions first: `where(key <= query, …, 0)` before a sum, `-inf` before a softmax"
        raise refuse(
            f"`{model.name}` cannot be decoded step by step: the result of {name} changes with each position that "
            "follows",
            None if node is None else node.span,
            help_,
        )

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
