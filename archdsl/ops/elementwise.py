"""Element-wise functions: arithmetic, comparisons, logic, activations, casts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from archdsl.ir.dims import Num, Shape, at_least_zero, binary, num
from archdsl.ir.graph import Init, Input, OpNode, Value, Weight
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    OnnxScope,
    Parts,
    Primitive,
    Reads,
    Saved,
    TorchScope,
    Tree,
    same,
)
from archdsl.ir.signature import promoted
from archdsl.ops._common import (
    CASTS,
    VANISHES,
    Activation,
    Arithmetic,
    Comparison,
    Logical,
    Prefix,
    RealFunction,
    Rounding,
    arithmetic_type,
    axis_of,
    demand_divisor,
    equals,
    factor,
    first_input,
    number,
    numeric_operand,
    overruling,
    own_but,
    place,
    remainder,
    replaced,
    usual,
    written,
)
from archdsl.ops._onnx import with_kernel


class Plus(Arithmetic):
    """`a + b`, element by element; axes from the right are equal or 1. True counts as 1, false as 0."""

    operator = "Add"
    additive = True
    signature = "plus()(a: [...], b: [...]) -> [...]"
    numpy = "add"
    examples = (
        Example("x + y", "x: [2, 5, 8], y: [8]"),
        Example("1 + x"),
        Example("x + y", "x: [2, 1, 8], y: [5, 1]"),
        Example("ids + 0.5", "ids: int[2, 5]", gradients=False),
        Example("(ids > 1) + (ids > 2)", "ids: int[2, 5]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        found = arithmetic_type(call.inputs, call)
        return ("int" if found == "bool" else found,)

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> int | None:
        a, b = inputs
        return a + b if a is not None and b is not None and any(isinstance(v, Num) for v in node.inputs) else None

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return overruling(known, math.inf, -math.inf) or super().constant(node, known)

    def combines(self, node: OpNode) -> Sequence[Fraction]:
        return Fraction(1), Fraction(1)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if all(isinstance(v, Value) and v.is_bool for v in node.inputs):
            # PyTorch takes the sum of two truth values for their disjunction.
            return e.py("{a} + {b}", a=numeric_operand(node, e, 0), b=numeric_operand(node, e, 1))
        return e.py("{0} + {1}")


class Minus(Arithmetic):
    """`a - b`, element by element; axes from the right are equal or 1. True counts as 1, false as 0."""

    operator = "Sub"
    additive = True
    signature = "minus()(a: [...], b: [...]) -> [...]"
    numpy = "subtract"
    examples = (
        Example("x - y", "x: [2, 5, 8], y: [8]"),
        Example("1 - x"),
        Example("x - (x - 1)"),
        Example("1 - real", "real: bool[2, 5]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        found = arithmetic_type(call.inputs, call)
        return ("int" if found == "bool" else found,)

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> int | None:
        a, b = inputs
        return a - b if a is not None and b is not None and isinstance(node.inputs[1], Num) else None

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        a, b = known
        return overruling((a, None if b is None else -b), math.inf, -math.inf) or super().constant(node, known)

    def combines(self, node: OpNode) -> Sequence[Fraction]:
        return Fraction(1), Fraction(-1)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{a} - {b}", a=numeric_operand(node, e, 0), b=numeric_operand(node, e, 1))


class Times(Arithmetic):
    """`a * b`, element by element; axes from the right are equal or 1."""

    signature = "times()(a: [...], b: [...]) -> [...]"
    numpy = "multiply"
    examples = (
        Example("x * y", "x: [2, 5, 8], y: [5, 1]"),
        Example("0.5 * x"),
        Example("(x + 1) * (x - 1)"),
        Example("ids * 2", "ids: int[2, 5]", gradients=False),
    )

    def saves(self, node: OpNode) -> Saved:
        """Each factor is the other's gradient."""
        return Saved(factors=tuple(i for i, v in enumerate(node.inputs) if isinstance(v, Value)))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return (g.And if node.outputs[0].is_bool else g.Mul)(*g.args())

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if overruling(known, 0) == 0 else super().constant(node, known)

    def combines(self, node: OpNode) -> Sequence[Fraction] | None:
        a, b = map(factor, node.inputs)
        return (Fraction(0), a) if a is not None else (b, Fraction(0)) if b is not None else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0} * {1}")


class Divide(RealFunction):
    """`a / b`, element by element; axes from the right are equal or 1. Whole numbers give float32."""

    operator = "Div"
    signature = "divide()(a: [...], b: [...]) -> float[...]"
    numpy = "divide"
    examples = (
        Example("x / exp(y)", "x: [2, 5, 8], y: [8]"),
        Example("x / 4"),
        Example("1 / (1 + x * x)"),
        Example("ids / 2", "ids: int[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        demand_divisor(self, call)

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] == 0 and known[1] is None else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0} / {1}")


class Power(Arithmetic):
    """`a ** b`, element by element. Whole numbers give float32, unless the exponent is a number that is whole and not
    negative."""

    signature = "power()(a: number[...], b: number[...]) -> [...]"
    numpy = "float_power"
    examples = (
        Example("x ** 2"),
        Example("exp(x) ** -0.5"),
        Example("2 ** x"),
        Example("-(x + 1) ** 2"),
        Example("10_000 ** -(ids / 8)", "ids: int[8]", gradients=False),
        Example("ids ** 2", "ids: int[8]", gradients=False),
        Example("(ids + 1) ** -2", "ids: int[8]", gradients=False),
        Example("2 ** (-2 * ids)", "ids: int[8]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        found = arithmetic_type(call.inputs, call)
        return ("float32" if found == "int" and not _keeps_whole(call, call.inputs[1]) else found,)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        a, b = g.args()
        exponent = node.inputs[1]
        found = known_power(g, a, float(exponent)) if isinstance(exponent, Num) and exponent.static else None
        return g.Pow(a, b) if found is None else found

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if node.outputs[0].is_float and arithmetic_type(node.inputs) == "int":
            return e.py("{0}.float() ** {1}" if isinstance(node.inputs[0], Value) else "{0} ** {1}.float()")
        return e.py("{0} ** {1}")


def _keeps_whole(call: Application, exponent: Input) -> bool:
    """Whether whole numbers have whole powers with that exponent."""
    if not isinstance(exponent, Num) or not call.is_whole(exponent):
        return False
    return call.holds(">=", exponent, 0) if exponent.static else at_least_zero(exponent.value)


def known_power(g: OnnxScope, x: Any, exponent: float) -> Any:
    """A power as products and roots, as PyTorch computes it too and, of whole numbers, exactly; None for one that has
    to be computed by logarithms."""
    if exponent in (0.5, -0.5):
        root = g.Sqrt(x)
        return root if exponent > 0 else g.Div(1.0, root)
    whole = abs(int(exponent))
    if exponent != int(exponent) or not 1 <= whole <= (3 if g.dtype(x) != "int" else 63):
        return None
    found, square = None, x
    while whole:
        if whole % 2:
            found = square if found is None else g.Mul(found, square)
        whole //= 2
        if whole:
            square = g.Mul(square, square)
    return found if exponent > 0 else g.Div(1.0, found)


class Modulo(Arithmetic):
    """`a % b`, element by element: what `a // b` leaves, with the sign of b."""

    signature = "modulo()(a: number[...], b: number[...]) -> [...]"
    numpy = "remainder"
    examples = (
        Example("ids % 2", "ids: int[2, 5]", gradients=False),
        Example("x % 1.5"),
        Example("7 % (ids + 1)", "ids: int[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        demand_divisor(self, call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        if node.outputs[0].is_int:
            return g.Mod(*g.args())
        a, b = (g.cast(x, "float32") for x in g.args())
        rest, less = remainder(g, a, b)
        return g.Where(less, g.Add(rest, b), rest)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0} % {1}")


class FloorDivide(Arithmetic):
    """`a // b`, element by element: the quotient rounded down. No gradient flows."""

    signature = "floor_divide()(a: number[...], b: number[...]) -> [...]"
    numpy = "floor_divide"
    examples = (
        Example("ids // 2", "ids: int[2, 5]", gradients=False),
        Example("ids // (ids + 1)", "ids: int[2, 5]", gradients=False),
        Example("x // 0.5", gradients=False),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        demand_divisor(self, call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        if node.outputs[0].is_int:  # ONNX rounds towards 0, but has the remainder of a quotient that is rounded down
            a, b = g.args()
            return g.Div(g.Sub(a, g.Mod(a, b)), b)
        a, b = (g.cast(x, "float32") for x in g.args())
        rest, less = remainder(g, a, b)
        quotient = g.Round(g.Sub(g.Div(g.Sub(a, rest), b), g.cast(less, "float32")))
        if isinstance(node.inputs[1], Num):  # which is not 0
            return quotient
        return g.Where(g.Equal(b, 0.0), g.Div(a, b), quotient)

    def differentiates(self, node: OpNode, i: int) -> bool:
        return False

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> int | None:
        a, b = inputs
        return a // b if a is not None and b is not None and isinstance(node.inputs[1], Num) and b > 0 else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        a, b = (
            e.py("{x}.detach()", x=e.input(i)) if isinstance(x, Value) and x.is_float else e.input(i)
            for i, x in enumerate(node.inputs)
        )  # torch knows no gradient of `//`, not even that it is 0
        return e.py("{a} // {b}", a=a, b=b)


class Maximum(Arithmetic):
    """The larger of two, element by element; axes from the right are equal or 1."""

    operator = "Max"
    signature = "maximum()(a: number[...], b: number[...]) -> [...]"
    numpy = "maximum"
    examples = (
        Example("maximum(x, y)", "x: [2, 5, 8], y: [8]"),
        Example("maximum(x, 0.5)"),
        Example("maximum(0, x)"),
        Example("maximum(ids, 2)", "ids: int[2, 5]", gradients=False),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return math.inf if math.inf in known else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        a, b = node.inputs
        if isinstance(b, Num):
            return e.py("{0}.clamp(min={1})")
        if isinstance(a, Num):
            return e.py("{1}.clamp(min={0})")
        return e.py("torch.maximum({0}, {1})")


class Minimum(Arithmetic):
    """The smaller of two, element by element; axes from the right are equal or 1."""

    operator = "Min"
    signature = "minimum()(a: number[...], b: number[...]) -> [...]"
    numpy = "minimum"
    examples = (
        Example("minimum(x, y)", "x: [2, 5, 8], y: [8]"),
        Example("minimum(x, 0.5)"),
        Example("minimum(0, x)"),
        Example("minimum(ids, 2)", "ids: int[2, 5]", gradients=False),
    )

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> int | None:
        a, b = inputs
        return min(a, b) if a is not None and b is not None and any(isinstance(v, Num) for v in node.inputs) else None

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return -math.inf if -math.inf in known else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        a, b = node.inputs
        if isinstance(b, Num):
            return e.py("{0}.clamp(max={1})")
        if isinstance(a, Num):
            return e.py("{1}.clamp(max={0})")
        return e.py("torch.minimum({0}, {1})")


class Negate(Prefix, Arithmetic):
    """`-x`, element by element."""

    operator = "Neg"
    additive = True
    signature = "negate()(x: number[...]) -> [...]"
    symbol = "-"
    numpy = "negative"
    examples = (Example("-x"), Example("-(x + 1)"), Example("-ids", "ids: int[2, 5]", gradients=False))

    def combines(self, node: OpNode) -> Sequence[Fraction]:
        return (Fraction(-1),)


class Abs(Arithmetic):
    """The absolute value, element by element."""

    operator = "Abs"
    signature = "abs()(x: number[...]) -> [...]"
    numpy = "abs"
    examples = (
        Example("x -> abs"),
        Example("abs(ids)", "ids: int[2, 5]", gradients=False),
        Example("abs(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.abs()")


class Square(Arithmetic):
    """`x ** 2`, element by element."""

    signature = "square()(x: number[...]) -> [...]"
    numpy = "square"
    examples = (
        Example("x -> square"),
        Example("square(ids)", "ids: int[2, 5]", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0)
        return g.Mul(x, x)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.square()")


class Sqrt(RealFunction):
    """The square root, element by element."""

    operator = "Sqrt"
    by_result = True
    signature = "sqrt()(x: [...]) -> float[...]"
    numpy = "sqrt"
    examples = (
        Example("sqrt(1 + x * x)"),
        Example("sqrt(ids)", "ids: int[2, 5]", gradients=False),
        Example("sqrt(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.sqrt({0})")


class Rsqrt(RealFunction):
    """`1 / sqrt(x)`, element by element."""

    by_result = True
    signature = "rsqrt()(x: [...]) -> float[...]"
    examples = (
        Example("rsqrt(1 + x * x)"),
        Example("rsqrt(ids + 1)", "ids: int[2, 5]", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Div(1.0, g.Sqrt(g.arg(0, node.outputs[0].dtype)))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.rsqrt({0})")


class Reciprocal(RealFunction):
    """`1 / x`, element by element."""

    operator = "Reciprocal"
    by_result = True
    signature = "reciprocal()(x: [...]) -> float[...]"
    numpy = "reciprocal"
    examples = (
        Example("reciprocal(1 + x * x)"),
        Example("reciprocal(ids + 1)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("1 / {0}")


class Exp(RealFunction):
    """`e ** x`, element by element."""

    operator = "Exp"
    by_result = True
    signature = "exp()(x: [...]) -> float[...]"
    numpy = "exp"
    examples = (
        Example("x -> exp"),
        Example("exp(ids)", "ids: int[2, 5]", gradients=False),
        Example("exp(2) * x"),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] is not None and known[0] <= VANISHES else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.exp({0})")


class Log(RealFunction):
    """The natural logarithm, element by element."""

    operator = "Log"
    signature = "log()(x: [...]) -> float[...]"
    numpy = "log"
    examples = (
        Example("log(1 + x * x)"),
        Example("log(ids + 1)", "ids: int[2, 5]", gradients=False),
        Example("log(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.log({0})")


class Sin(RealFunction):
    """The sine, element by element."""

    operator = "Sin"
    signature = "sin()(x: [...]) -> float[...]"
    numpy = "sin"
    examples = (
        Example("x -> sin"),
        Example("sin(ids)", "ids: int[2, 5]", gradients=False),
        Example("sin(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.sin({0})")


class Cos(RealFunction):
    """The cosine, element by element."""

    operator = "Cos"
    signature = "cos()(x: [...]) -> float[...]"
    numpy = "cos"
    examples = (
        Example("x -> cos"),
        Example("cos(ids)", "ids: int[2, 5]", gradients=False),
        Example("cos(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.cos({0})")


class Erf(RealFunction):
    """The error function, element by element."""

    operator = "Erf"
    signature = "erf()(x: [...]) -> float[...]"
    examples = (
        Example("x -> erf"),
        Example("erf(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.erf({0})")


class Tanh(RealFunction):
    """The hyperbolic tangent."""

    operator = "Tanh"
    by_result = True
    signature = "tanh()(x: [...]) -> float[...]"
    numpy = "tanh"
    examples = (
        Example("x -> tanh"),
        Example("tanh(x + 1)", "x: [5]"),
        Example("tanh(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.tanh({0})")


class Sigmoid(RealFunction):
    """The logistic function: `1 / (1 + exp(-x))`."""

    operator = "Sigmoid"
    by_result = True
    signature = "sigmoid()(x: [...]) -> float[...]"
    examples = (
        Example("x -> sigmoid"),
        Example("sigmoid(x + 1)", "x: [5]"),
        Example("sigmoid(ids)", "ids: int[2, 5]", gradients=False),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] is not None and known[0] <= VANISHES else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.sigmoid({0})")


class Sign(Arithmetic):
    """-1, 0 or 1, element by element. Its gradient is zero."""

    operator = "Sign"
    signature = "sign()(x: number[...]) -> [...]"
    numpy = "sign"
    examples = (
        Example("x -> sign"),
        Example("sign(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.sign({0})")


class Floor(Rounding):
    """Rounded down, element by element. Its gradient is zero."""

    operator = "Floor"
    signature = "floor()(x: number[...]) -> [...]"
    numpy = "floor"
    examples = (
        Example("x -> floor"),
        Example("floor(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.floor({0})")


class Ceil(Rounding):
    """Rounded up, element by element. Its gradient is zero."""

    operator = "Ceil"
    signature = "ceil()(x: number[...]) -> [...]"
    numpy = "ceil"
    examples = (
        Example("x -> ceil"),
        Example("ceil(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.ceil({0})")


class Clamp(Arithmetic):
    """Element by element not below `low` and not above `high`; either may be left out."""

    signature = "clamp(low: number = none, high: number = none)(x: number[...]) -> [...]"
    examples = (
        Example("x -> clamp(-1, 1)"),
        Example("x -> clamp(low: 0)"),
        Example("x -> clamp(high: 0.5)"),
        Example("ids -> clamp(1, 3)", "ids: int[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        low, high = call.options["low"], call.options["high"]
        if low is None and high is None:
            raise call.error("E0204", "`clamp` without bounds changes nothing", help="give `low`, `high` or both")
        static = low is not None and high is not None and low.static and high.static
        if static and not call.holds("<=", low, high, "the lower bound of `clamp` is at most the upper one"):
            raise call.error(
                "E0204", f"`clamp` from {low} up to {high}: the lower bound is above the upper one", option="low"
            )

    def dtypes(self, call: Application) -> Sequence[str]:
        bounds = [b for b in (call.options["low"], call.options["high"]) if b is not None]
        return (arithmetic_type([*call.inputs, *bounds], call),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Clip(g.arg(0, node.outputs[0].dtype), node.options["low"], node.options["high"])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        low, high = node.options["low"], node.options["high"]
        if low is None:
            return e.py("{0}.clamp(max={high})", high=high)
        if high is None:
            return e.py("{0}.clamp(min={low})", low=low)
        return e.py("{0}.clamp({low}, {high})", low=low, high=high)


class Greater(Comparison):
    """`a > b`, element by element: where the first is the larger; axes from the right are equal or 1."""

    operator = "Greater"
    signature = "greater()(a: [...], b: [...]) -> bool[...]"
    symbol = ">"
    numpy = "greater"
    examples = (
        Example("a > b", "a: int[2, 5], b: int[5]", gradients=False),
        Example("x > 0", gradients=False),
        Example("1 > ids + 1", "ids: int[2, 5]", gradients=False),
    )


class GreaterEqual(Comparison):
    """`a >= b`, element by element: where the first is not the smaller; axes from the right are equal or 1."""

    operator = "GreaterOrEqual"
    signature = "greater_equal()(a: [...], b: [...]) -> bool[...]"
    symbol = ">="
    numpy = "greater_equal"
    examples = (
        Example("a >= b", "a: int[2, 5], b: int[5]", gradients=False),
        Example("x >= 0", gradients=False),
        Example("1 >= ids + 1", "ids: int[2, 5]", gradients=False),
    )


class Less(Comparison):
    """`a < b`, element by element: where the first is the smaller; axes from the right are equal or 1."""

    operator = "Less"
    signature = "less()(a: [...], b: [...]) -> bool[...]"
    symbol = "<"
    numpy = "less"
    examples = (
        Example("a < b", "a: int[2, 5], b: int[5]", gradients=False),
        Example("x < 0", gradients=False),
        Example("1 < ids + 1", "ids: int[2, 5]", gradients=False),
    )


class LessEqual(Comparison):
    """`a <= b`, element by element: where the first is not the larger; axes from the right are equal or 1."""

    operator = "LessOrEqual"
    signature = "less_equal()(a: [...], b: [...]) -> bool[...]"
    symbol = "<="
    numpy = "less_equal"
    examples = (
        Example("a <= b", "a: int[2, 5], b: int[5]", gradients=False),
        Example("x <= 0", gradients=False),
        Example("1 <= ids + 1", "ids: int[2, 5]", gradients=False),
    )


class Equal(Comparison):
    """`a == b`, element by element: where the two are equal; axes from the right are equal or 1."""

    operator = "Equal"
    signature = "equal()(a: [...], b: [...]) -> bool[...]"
    symbol = "=="
    numpy = "equal"
    examples = (
        Example("a == b", "a: int[2, 5], b: int[5]", gradients=False),
        Example("x == 0", gradients=False),
        Example("1 == ids + 1", "ids: int[2, 5]", gradients=False),
    )


class NotEqual(Comparison):
    """`a != b`, element by element: where the two differ; axes from the right are equal or 1."""

    operator = "Equal"
    signature = "not_equal()(a: [...], b: [...]) -> bool[...]"
    symbol = "!="
    numpy = "not_equal"
    examples = (
        Example("a != b", "a: int[2, 5], b: int[5]", gradients=False),
        Example("x != 0", gradients=False),
        Example("1 != ids + 1", "ids: int[2, 5]", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Not(super().onnx(node, g))


class LogicalAnd(Logical):
    """`a & b`, element by element, of tensors of true and false: where both are true."""

    operator = "And"
    signature = "logical_and()(a: bool[...], b: bool[...]) -> bool[...]"
    numpy = "logical_and"
    examples = (
        Example("a & b", "a: bool[2, 5], b: bool[5]", gradients=False),
        Example("(x > 0) & (x < 1)", gradients=False),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if 0 in known else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0} & {1}")


class LogicalOr(Logical):
    """`a | b`, element by element, of tensors of true and false: where at least one is true."""

    operator = "Or"
    signature = "logical_or()(a: bool[...], b: bool[...]) -> bool[...]"
    numpy = "logical_or"
    examples = (
        Example("a | b", "a: bool[2, 5], b: bool[5]", gradients=False),
        Example("(x > 0) | (x < 1)", gradients=False),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 1.0 if 1 in known else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0} | {1}")


class LogicalNot(Prefix, Logical):
    """`~a`, element by element, of a tensor of true and false: where it is false."""

    operator = "Not"
    signature = "logical_not()(a: bool[...]) -> bool[...]"
    symbol = "~"
    numpy = "logical_not"
    examples = (Example("~a", "a: bool[2, 5]", gradients=False), Example("~(x > 0)", gradients=False))


class Where(Primitive):
    """`a` where the condition is true, else `b`, element by element; axes from the right are equal or 1."""

    passes = 0
    signature = "where()(c: bool[...], a: [...], b: [...]) -> [...]"
    elementwise = True
    mixes = False
    chosen = (1, 2)
    numpy = "where"
    examples = (
        Example("where(c, x, y)", "c: bool[2, 5, 1], x: [2, 5, 8], y: [8]"),
        Example("where(c, x, 0)", "c: bool[5, 8], x: [2, 5, 8]"),
        Example("where(x > 0, 1.5, x)"),
        Example("where(c, 1, 0)", "c: bool[2, 5]", gradients=False),
        Example("where(c, 0.5, 0)", "c: bool[2, 5]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        choices = call.inputs[1:]
        if all(isinstance(v, Num) for v in choices):
            whole = [call.is_whole(v) for v in choices if isinstance(v, Num)]
            return ("int" if all(whole) else "float32",)
        return (arithmetic_type(choices, call),)

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        condition, a, b = known
        if condition is None:
            return a if a == b else None
        return a if condition else b

    def picks(self, node: OpNode, known: Sequence[float | None]) -> int | None:
        return None if known[0] is None else 1 if known[0] else 2

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        c, a, b = g.arg(0), g.arg(1, own), g.arg(2, own)
        if own == "bool":  # a choice of truth values has no kernel
            return g.Or(g.And(c, a), g.And(g.Not(c), b))
        return g.Where(c, a, b)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.where({0}, {1}, {2})")


class Identity(Primitive):
    """The tensor itself: an activation that is none. Nothing is emitted for it."""

    passes = 0
    signature = "identity()(x: [...]) -> [...]"
    elementwise = True
    mixes = False
    examples = (Example("2 * identity(x)"), Example("(x -> identity) + 1"))

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.input(0)


class StopGradient(Primitive):
    """The tensor itself, through which no gradient flows back."""

    by_rows = True
    passes = 0
    moves = True
    signature = "stop_gradient()(x: [...]) -> [...]"
    mixes = False
    examples = (Example("x * stop_gradient(x)"), Example("(x -> stop_gradient) + x"))

    def differentiates(self, node: OpNode, i: int) -> bool:
        return False

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.detach()")


METHODS = {"float32": "float", "bfloat16": "bfloat16", "int": "long", "bool": "bool"}


class Cast(Primitive):
    """The same numbers as another type: float (the model's own), float32, bfloat16, int or bool."""

    by_rows = True
    passes = 0
    moves = True
    signature = "cast(dtype: type)(x: [...]) -> [...]"
    mixes = False
    examples = (
        Example("x -> cast(float32)"),
        Example("x -> cast(bfloat16)"),
        Example("x -> cast(int)", gradients=False),
        Example("x -> cast(bool)", gradients=False),
        Example("x * cast(float)(ids)", "x: [2, 5], ids: int[2, 5]"),
    )

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if promoted(call.inputs) == call.options["dtype"] else call.node()

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.options["dtype"],)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)  # which is brought to the type of the result

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        dtype = node.options["dtype"]
        if dtype == "float":
            return e.py("{0}.to({dtype})", dtype=e.dtype())
        return e.py(f"{{0}}.{METHODS[dtype]}()")


class CastLike(Primitive):
    """x in the type of another tensor."""

    by_rows = True
    passes = 0
    moves = True
    signature = "cast_like()(x: [...], like: [...]) -> [...]"
    mixes = False
    examples = (Example("(x -> cast(float32)) -> cast_like(y)", "x: [2, 5, 8], y: [3]", gradients=False),)

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(0),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(1).dtype,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        like = node.inputs[1]
        rank = getattr(like, "rank", 0)
        # Only the type of the other tensor is read.
        return (tuple(same(i) for i in range(node.outputs[0].rank)), (At(),) * rank if rank else (EVERYWHERE,) * 0)

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return None if cut[0] is None else Parts(cut[0])

    def differentiates(self, node: OpNode, i: int) -> bool:
        return i == 0

    def leading(self, node: OpNode, i: int) -> int | None:
        return 0 if i == 0 else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)  # which is brought to the type of the result

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.type_as({1})")


class ReLU(Activation):
    """Rectified linear unit: `maximum(x, 0)`."""

    operator = "Relu"
    by_result = True
    signature = "relu()(x: float[...]) -> [...]"
    examples = (Example("x -> relu"), Example("relu(x + 1)", "x: [5]"))

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] is not None and known[0] <= 0 else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.relu({0})")


class ReLUSquared(Activation):
    """`relu(x) ** 2` (So et al., 2021, Primer)."""

    signature = "relu_squared()(x: float[...]) -> [...]"
    examples = (Example("x -> relu_squared"), Example("relu_squared(x + 1)", "x: [5]"))

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] is not None and known[0] <= 0 else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.Relu(g.arg(0))
        return g.Mul(x, x)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.relu({0}).square()")


class ELU(Activation):
    """Exponential linear unit (Clevert et al., 2015): x, or `alpha * (exp(x) - 1)` below 0."""

    signature = "elu(alpha: number = 1)(x: float[...]) -> [...]"
    examples = (Example("x -> elu"), Example("x -> elu(0.2)"))

    def check(self, call: Application) -> None:
        super().check(call)
        usual(call, alpha=1)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, alpha = g.arg(0), number(node, "alpha")
        if alpha.static:
            return g.Elu(x, alpha=float(alpha))
        return g.Add(g.Relu(x), g.Mul(g.Min(g.Elu(x), 0.0), alpha))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        alpha = number(node, "alpha")
        return e.py("F.elu({0})") if equals(alpha, 1) else e.py("F.elu({0}, {alpha})", alpha=alpha)


class SELU(Activation):
    """Scaled exponential linear unit (Klambauer et al., 2017): `1.0507 * elu(x, 1.6733)`; keeps mean and variance."""

    operator = "Selu"
    signature = "selu()(x: float[...]) -> [...]"
    examples = (Example("x -> selu"), Example("selu(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.selu({0})")


class LeakyReLU(Activation):
    """x, or `slope * x` below 0."""

    signature = "leaky_relu(slope: number = 0.01)(x: float[...]) -> [...]"
    examples = (Example("x -> leaky_relu"), Example("x -> leaky_relu(0.2)"))

    def check(self, call: Application) -> None:
        super().check(call)
        usual(call, slope=0.01)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, slope = g.arg(0), number(node, "slope")
        return g.LeakyRelu(x, alpha=float(slope)) if slope.static else g.PRelu(x, slope)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        slope = number(node, "slope")
        return e.py("F.leaky_relu({0})") if equals(slope, 0.01) else e.py("F.leaky_relu({0}, {slope})", slope=slope)


class PReLU(Primitive):
    """Parametric rectified linear unit (He et al., 2015): x, or `weight * x` below 0; the weight begins as `slope`."""

    signature = "prelu(slope: number = 0.25, init: scheme = none)(x: float[...]) -> [...]"
    mixes = False
    examples = (Example("x -> prelu"), Example("x -> prelu(0.1)"))

    def check(self, call: Application) -> None:
        if not call.size("slope").static:
            raise call.error("E0204", "the first slope must be known before the model runs", option="slope")
        usual(call, slope=0.25)

    def weights(self, call: Application) -> Sequence[Weight]:
        return (Weight("weight", (num(1),), "raw", Init("constant", {"value": call.size("slope")})),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = with_kernel(g, g.arg(0))
        return g.PRelu(x, g.cast(g.weight("weight"), g.dtype(x)))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        slope = number(node, "slope")
        return e.py("nn.PReLU({**start})", start={} if equals(slope, 0.25) else {"init": slope})

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        cast = CASTS[node.outputs[0].dtype]
        return e.py(f"F.prelu({{0}}, {{module}}.weight{cast})" if cast else "{module}({0})")

    def torch_grouped_module(self, node: OpNode, e: TorchScope) -> Tree:
        slope, experts = number(node, "slope"), node.weights[0].shape[0]
        start = {} if equals(slope, 0.25) else {"slope": slope}
        return e.py("GroupedPReLU({experts}, {**start})", experts=experts, start=start)

    def torch_grouped(self, node: OpNode, e: TorchScope, ends: Tree) -> Tree:
        return e.py("{module}({0}, {ends})", ends=ends)


class GELU(Activation):
    """Gaussian error linear unit (Hendrycks and Gimpel, 2016): `x * (1 + erf(x / sqrt(2))) / 2`."""

    operator = "Gelu"
    signature = "gelu()(x: float[...]) -> [...]"
    examples = (Example("x -> gelu"), Example("gelu(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.gelu({0})")


class GELUTanh(Activation):
    """The tanh approximation of GELU: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`; that of GPT-2."""

    signature = "gelu_tanh()(x: float[...]) -> [...]"
    examples = (Example("x -> gelu_tanh"), Example("gelu_tanh(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Gelu(g.arg(0), approximate="tanh")

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py('F.gelu({0}, approximate="tanh")')


class QuickGELU(Activation):
    """The sigmoid approximation of GELU: `x * sigmoid(1.702 * x)`; that of CLIP."""

    signature = "quick_gelu()(x: float[...]) -> [...]"
    examples = (Example("x -> quick_gelu"), Example("quick_gelu(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0)
        return g.Mul(x, g.Sigmoid(g.Mul(x, 1.702)))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("quick_gelu({0})")


class SiLU(Primitive):
    """Sigmoid-weighted linear unit (Hendrycks and Gimpel, 2016): `x * sigmoid(x)`; also called swish."""

    signature = "silu()(x: float[...]) -> [...]"
    elementwise = True
    mixes = False
    examples = (Example("x -> silu"),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0)
        return g.Mul(x, g.Sigmoid(x))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.silu({0})")


class Mish(Activation):
    """`x * tanh(softplus(x))` (Misra, 2019)."""

    operator = "Mish"
    signature = "mish()(x: float[...]) -> [...]"
    examples = (Example("x -> mish"), Example("mish(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.mish({0})")


class Softplus(Activation):
    """`log(1 + exp(x))`, without overflow."""

    operator = "Softplus"
    signature = "softplus()(x: float[...]) -> [...]"
    examples = (Example("x -> softplus"), Example("softplus(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.softplus({0})")


class Softsign(Activation):
    """`x / (1 + abs(x))`."""

    operator = "Softsign"
    signature = "softsign()(x: float[...]) -> [...]"
    examples = (Example("x -> softsign"), Example("softsign(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.softsign({0})")


class HardSigmoid(Activation):
    """`clamp(x / 6 + 1 / 2, 0, 1)`."""

    signature = "hard_sigmoid()(x: float[...]) -> [...]"
    examples = (Example("x -> hard_sigmoid"), Example("hard_sigmoid(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.HardSigmoid(g.arg(0), alpha=1 / 6, beta=0.5)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.hardsigmoid({0})")


class HardSwish(Activation):
    """`x * clamp(x / 6 + 1 / 2, 0, 1)` (Howard et al., 2019)."""

    operator = "HardSwish"
    signature = "hard_swish()(x: float[...]) -> [...]"
    examples = (Example("x -> hard_swish"), Example("hard_swish(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.hardswish({0})")


class LogSigmoid(Activation):
    """`log(sigmoid(x))`, without overflow."""

    signature = "log_sigmoid()(x: float[...]) -> [...]"
    examples = (Example("x -> log_sigmoid"), Example("log_sigmoid(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Neg(g.Softplus(g.Neg(g.arg(0))))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.logsigmoid({0})")


class GLU(Primitive):
    """Gated linear unit (Dauphin et al., 2016): the first half of an axis times the sigmoid of the second."""

    passes = 2
    signature = "glu(axis: int = -1)(x: float[...]) -> [...]"
    examples = (Example("x -> glu"), Example("x -> glu(axis: 1)", "x: [2, 6, 4]"))

    def check(self, call: Application) -> None:
        size = call.shape(0)[axis_of(self, call)]
        call.condition("%", size, num(2), "`glu` halves the axis")

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        return (replaced(call.shape(0), axis, binary("/", call.shape(0)[axis], num(2))),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(first_input(node).rank, place(node)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        a, b = g.Split(g.arg(0), axis=place(node), num_outputs=2, outputs=2)
        return g.Mul(a, g.Sigmoid(b))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        axis = written(node)
        return e.py("F.glu({0})") if axis == -1 else e.py("F.glu({0}, dim={axis})", axis=axis)
