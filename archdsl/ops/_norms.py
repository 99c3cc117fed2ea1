"""What norms share."""

from __future__ import annotations

from typing import Any

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, OnnxScope, Primitive, TorchScope, Tree
from archdsl.ops._common import equals, first_input, number

DEFAULTS = {"eps": 1e-5, "momentum": 0.1}
"""What torch's norms take where nothing is said."""


def demand_norm(op: Primitive, call: Application, *options: str) -> None:
    """Real numbers to be normalized, and options that are known before the model runs."""
    for option in options:
        if not call.size(option).static:
            raise call.error(
                "E0204",
                f"`{option}` must be known before the model runs, and {call.size(option)} is not",
                option=option,
            )


def settings(node: OpNode, *options: str) -> dict[str, Num]:
    """Options as further arguments, those that are torch's own left out."""
    given = {option: number(node, option) for option in options}
    return {option: n for option, n in given.items() if not equals(n, DEFAULTS[option])}


def channels_second(node: OpNode, e: TorchScope, axis: int, norm: str = "{module}({x})") -> Tree:
    """A norm of torch's, as a template of what it normalizes (`{x}`), of an input whose channels are the axis 1 or the
    last."""
    if axis == 1:
        return e.py(norm, x=e.input(0))
    if first_input(node).rank == 3:
        return e.py(f"{norm}.transpose(1, 2)", x=e.py("{0}.transpose(1, 2)"))
    return e.py(f"{norm}.movedim(1, -1)", x=e.py("{0}.movedim(-1, 1)"))


def per_channel(g: OnnxScope, x: Any, after: int) -> Any:
    """Numbers of channels, as they stand before that many other axes."""
    return g.Reshape(x, [-1] + [1] * after) if after else x


def scaled(g: OnnxScope, x: Any, square: Any, eps: Any, mean: Any = None, after: int = 0) -> Any:
    """x in float32, each channel by a mean and a variance that are known: onnxruntime computes the factor and the term
    once, when it loads the graph."""
    gain, bias = (g.cast(g.weight(name), "float32") for name in ("weight", "bias"))
    factor = g.Div(gain, g.Sqrt(g.Add(g.cast(square, "float32"), eps)))
    term = bias if mean is None else g.Sub(bias, g.Mul(g.cast(mean, "float32"), factor))
    return g.Add(g.Mul(x, per_channel(g, factor, after)), per_channel(g, term, after))
