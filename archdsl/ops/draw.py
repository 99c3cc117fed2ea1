"""`draw`: what a scheme means inside the expression of a weight's first value."""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Primitive, TorchScope, Tree
from archdsl.ir.static import Scheme
from archdsl.ops._common import equals, numbers_in

CONSTANTS = {"zeros": "torch.zeros", "ones": "torch.ones"}


class Draw(Primitive):
    """Random numbers of a shape by a scheme that says all by itself: normal, truncated_normal, uniform, constant,
    zeros, ones."""

    signature = "draw(scheme: scheme, dims: sizes) -> [...]"
    mixes = False
    numpy = "draw"

    def check(self, call: Application) -> None:
        scheme: Scheme = call.options["scheme"]
        if scheme.name not in ("normal", "truncated_normal", "uniform", "constant", *CONSTANTS):
            raise call.error(
                "E0204",
                f"`{scheme.name}` cannot stand in an expression: it needs to know the whole weight",
                help="use normal, truncated_normal or uniform there",
            )

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (numbers_in(call.options, "dims"),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float",)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        scheme: Scheme = node.options["scheme"]
        holes = {**scheme.numbers, "sizes": numbers_in(node.options, "dims")}
        if scheme.name in CONSTANTS:
            return e.py(f"{CONSTANTS[scheme.name]}({{*sizes}})", **holes)
        if scheme.name == "constant":
            return e.py("torch.full({sizes}, {value})", **holes)
        if scheme.name == "uniform":
            return e.py("torch.empty({*sizes}).uniform_(-{bound}, {bound})", **holes)
        if scheme.name == "truncated_normal":
            made = "nn.init.trunc_normal_(torch.empty({*sizes}), std={std}, a=-{limit} * {std}, b={limit} * {std})"
            return e.py(made, **holes)
        if equals(scheme.numbers["mean"], 0):
            return e.py("torch.randn({*sizes}) * {std}", **holes)
        return e.py("torch.empty({*sizes}).normal_({mean}, {std})", **holes)
