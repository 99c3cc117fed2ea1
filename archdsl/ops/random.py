"""Numbers that a spec gives: drawn at random, or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Amount, elements
from archdsl.ir.dims import Num, Shape, free_names, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, OnnxScope, Primitive, Saved, TorchScope, Tree, shown
from archdsl.ir.static import ListValue, Scheme, floats, kind_of, numbers_of
from archdsl.ops._common import equals, number


class Dropout(Primitive):
    """In training each number is 0 with probability `rate`, else divided by 1 - rate (Srivastava et al., 2014)."""

    keeps_branch = True
    noisy = True
    by_rows = True
    passes = 0
    neutral = ("rate", 0)
    signature = "dropout(rate: rate)(x: float[...]) -> [...]"
    mixes = False
    examples = shown("x -> dropout(0.1)", "(x -> dropout(0)) + 1")

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] == 0 else None

    def saves(self, node: OpNode) -> Saved:
        """Which numbers were kept."""
        return Saved(own=((Amount(elements(node.outputs[0].shape)), "bool"),))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)  # of inference

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        module = e.stateless("dropout", e.py("nn.Dropout({rate})", rate=number(node, "rate")))
        return e.py("{module}({0})", module=module)


class NormalNoise(Primitive):
    """In training a normal draw for each number, whose standard deviation that number is; 0 else.

    `logits + (spread -> noise)` is a noisy gate (Shazeer et al., 2017, equation 4). Gradients reach the spread."""

    noisy = True
    signature = "noise()(x: float[...]) -> [...]"
    mixes = False
    examples = shown("x -> noise", "x + (softplus(x) -> noise)")

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Mul(g.arg(0), 0)  # of inference

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{module}({0})", module=e.stateless("noise", e.py("Noise()")))


class Draw(Primitive):
    """Random numbers of a shape by a scheme that says all by itself: normal, truncated_normal, uniform, constant."""

    typed = "float"
    signature = "draw(scheme: scheme, dims: sizes) -> [...]"
    mixes = False
    numpy = "draw"

    def check(self, call: Application) -> None:
        scheme: Scheme = call.options["scheme"]
        if scheme.name not in ("normal", "truncated_normal", "uniform", "constant"):
            raise call.error(
                "E0204",
                f"`{scheme.name}` cannot stand in an expression: it needs to know the whole weight",
                help="use normal, truncated_normal or uniform there",
            )

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.options["dims"],)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        scheme: Scheme = node.options["scheme"]
        holes = {**scheme.numbers, "sizes": node.options["dims"]}
        if scheme.name == "constant":  # the one whose sizes only the running model may know
            made = "torch.full({sizes}, {value}, dtype=torch.float32, device={device})"
            return e.py(made, **holes, device=e.device())
        if scheme.name == "uniform":
            return e.py("torch.empty({*sizes}).uniform_(-{bound}, {bound})", **holes)
        if scheme.name == "truncated_normal":
            made = "nn.init.trunc_normal_(torch.empty({*sizes}), std={std}, a=-{limit} * {std}, b={limit} * {std})"
            return e.py(made, **holes)
        if equals(scheme.numbers["mean"], 0):
            return e.py("torch.randn({*sizes}) * {std}", **holes)
        return e.py("torch.empty({*sizes}).normal_({mean}, {std})", **holes)


class Listed(Primitive):
    """The numbers of a list, which may hold lists of one length, as a tensor."""

    signature = "listed(values: list) -> [...]"
    mixes = False
    passes = 0
    numpy = "asarray"

    def check(self, call: Application) -> None:
        self._shape(call, call.options["values"])

    def _shape(self, call: Application, values: Any) -> Shape:
        """The sizes of a list of numbers or of lists. Raises E0203 or E0301."""
        items = values.items if isinstance(values, ListValue) else ()
        if not items:
            raise call.error("E0203", "a list of numbers holds at least one")
        if all(isinstance(item, Num) for item in items):
            if any(isinstance(item.value, int) and abs(item.value) >= 2**63 for item in items):
                raise call.error("E0404", "a whole number in a list has at most 64 bits", help="write it as `1e20`")
            return (num(len(items)),)
        other = next((item for item in items if not isinstance(item, ListValue)), None)
        if other is not None:
            raise call.error(
                "E0203", f"a list of numbers holds numbers, or lists of them, and this is {kind_of(other)}"
            )
        shapes = [self._shape(call, item) for item in items]
        if len({tuple(map(int, shape)) for shape in shapes}) > 1:
            raise call.error("E0301", "the lists within a list of numbers are of one length")
        return (num(len(items)), *shapes[0])

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (self._shape(call, call.options["values"]),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("int" if all(map(_is_literal, numbers_of(call.options["values"]))) else "float",)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.constant(floats(node.options["values"]), node.outputs[0].dtype)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        computed = any(free_names(n.expr) for n in numbers_of(node.options["values"]))
        typed = ", dtype=torch.float32" if computed else ""  # which may be whole numbers for this Config
        return e.py(f"torch.tensor({{values}}{typed}, device={{device}})", device=e.device())


def _is_literal(n: Num) -> bool:
    """Whether it is the same whole number for every Config."""
    return isinstance(n.value, int) and not free_names(n.expr)
