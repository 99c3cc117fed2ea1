"""`draw`: what a scheme means inside the expression of a weight's first value."""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.dims import Num, Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import TIMES, Application, Code, Primitive, TorchScope
from archdsl.ir.static import Scheme
from archdsl.ops._common import listed, numbers_in

# Law of a scheme that needs no shape -> (torch text over the sizes, how tightly it binds).
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

    def torch(self, node: OpNode, e: TorchScope) -> Code | str:
        scheme: Scheme = node.options["scheme"]
        sizes = [e.init(n) for n in numbers_in(node.options, "dims")]
        shape, number = ", ".join(sizes), {k: e.init(n) for k, n in scheme.numbers.items()}
        if scheme.name in CONSTANTS:
            return f"{CONSTANTS[scheme.name]}({shape})"
        if scheme.name == "constant":
            return f"torch.full({listed(sizes)}, {number['value']})"
        if scheme.name == "uniform":
            return f"torch.empty({shape}).uniform_(-{_operand(number['bound'])}, {number['bound']})"
        if scheme.name == "truncated_normal":
            limit = f"{_operand(number['limit'])} * {_operand(number['std'])}"
            return f"nn.init.trunc_normal_(torch.empty({shape}), std={number['std']}, a=-{limit}, b={limit})"
        if _is(scheme.numbers["mean"], 0):
            return Code(f"torch.randn({shape}) * {e.init(scheme.numbers['std'], TIMES + 1)}", TIMES)
        return f"torch.empty({shape}).normal_({number['mean']}, {number['std']})"


def _is(n: Num, value: float) -> bool:
    return n.static and float(n) == value


def _operand(text: str) -> str:
    return f"({text})" if " " in text else text
