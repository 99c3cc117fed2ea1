"""Element-wise functions: arithmetic, comparisons, logic, activations, casts.

An element-wise function is a row of `FUNCTIONS`, a comparison one of `COMPARISONS`; a class is for what has options, or
says more of itself than how it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from archdsl.ir.dims import Num, Shape, at_least_zero, binary, num
from archdsl.ir.graph import Init, Input, OpNode, Value, Weight
from archdsl.ir.op import (
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
    shown,
)
from archdsl.ir.signature import broadcast, promoted
from archdsl.ops._common import (
    CASTS,
    axis_index,
    axis_of,
    equals,
    is_whole,
    number,
    own_but,
    replaced,
    usual,
    written,
)
from archdsl.ops._onnx import with_kernel
from archdsl.ops.attention.mask import mask_beside

# --- rows -----------------------------------------------------------------------------------------------------------

Composed = Callable[..., Any]
"""ONNX nodes of the inputs, which have the type of the result: `lambda g, x: g.Mul(x, g.Sigmoid(x))`."""

VANISHES = -1000.0
"""`exp` of it, or of less, is 0 in every type."""


class Elementwise(Primitive):
    """An element-wise operation."""

    elementwise = True
    mixes = False

    def build(self, call: Application) -> Sequence[Value]:
        if not call.masks:
            return super().build(call)
        others = [v for v in call.inputs if isinstance(v, Value)]
        made = {i: mask_beside(call, mask, others) for i, mask in call.masks.items()}
        return call.node(inputs=[made.get(i, v) for i, v in enumerate(call.inputs)])


class Function(Elementwise):
    """An element-wise function, as a row: its name and the types it takes and gives, its PyTorch, its ONNX operator or
    what it is composed of, its line in the reference."""

    def __init__(
        self,
        name: str,
        types: str,
        expression: str,
        onnx: str | Composed,
        doc: str,
        *,
        examples: tuple[Example, ...] = (),
        numpy: str | None = None,
        of_numbers: bool = False,
        by_result: bool = False,
        zero_up_to: float | None = None,
    ) -> None:
        self.signature = name + types
        self.expression = expression
        self.composed = None if isinstance(onnx, str) else onnx
        self.operator = onnx if isinstance(onnx, str) else ""
        self.__doc__ = doc
        self.examples = examples or applied(name)
        self.numpy = numpy
        self.of_numbers = of_numbers
        self.by_result = by_result
        self.zero_up_to = zero_up_to

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        if self.zero_up_to is not None and known[0] is not None and known[0] <= self.zero_up_to:
            return 0.0
        return super().constant(node, known)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return super().onnx(node, g) if self.composed is None else self.composed(g, *g.args())


REAL = "()(x: float[...]) -> [...]"
"""Of real numbers."""
MADE_REAL = "()(x: [...]) -> float[...]"
"""Of any numbers, with real values."""
ANY = "()(x: number[...]) -> [...]"
"""Of any numbers, with values of the same type."""


def uses(*texts: str) -> tuple[Example, ...]:
    """Examples of x, real numbers, or of `ids`, whole ones."""
    return tuple(Example(t, "ids: int[2, 5]", gradients=False) if "ids" in t else Example(t) for t in texts)


def applied(name: str) -> tuple[Example, ...]:
    """What is shown of a function where its row shows nothing."""
    return Example(f"x -> {name}"), Example(f"{name}(x + 1)", "x: [5]")


def rounded(operator: str) -> Composed:
    """A way of rounding, which leaves whole numbers as they are."""
    return lambda g, x: x if g.dtype(x) == "int" else getattr(g, operator)(x)


def _relu_squared(g: OnnxScope, x: Any) -> Any:
    y = g.Relu(x)
    return g.Mul(y, y)


FUNCTIONS = (
    Function("abs", ANY, "{0}.abs()", "Abs", "The absolute value, element by element.",
             numpy="abs", of_numbers=True, examples=uses("x -> abs", "abs(ids)", "abs(2) * x")),
    Function("square", ANY, "{0}.square()", lambda g, x: g.Mul(x, x), "`x ** 2`, element by element.",
             numpy="square", examples=uses("x -> square", "square(ids)")),
    Function("sqrt", MADE_REAL, "torch.sqrt({0})", "Sqrt", "The square root, element by element.",
             numpy="sqrt", of_numbers=True, by_result=True,
             examples=uses("sqrt(1 + x * x)", "sqrt(ids)", "sqrt(2) * x")),
    Function("rsqrt", MADE_REAL, "torch.rsqrt({0})", lambda g, x: g.Div(1.0, g.Sqrt(x)),
             "`1 / sqrt(x)`, element by element.",
             by_result=True, examples=uses("rsqrt(1 + x * x)", "rsqrt(ids + 1)")),
    Function("reciprocal", MADE_REAL, "1 / {0}", "Reciprocal", "`1 / x`, element by element.",
             numpy="reciprocal", by_result=True, examples=uses("reciprocal(1 + x * x)", "reciprocal(ids + 1)")),
    Function("exp", MADE_REAL, "torch.exp({0})", "Exp", "`e ** x`, element by element.",
             numpy="exp", of_numbers=True, by_result=True, zero_up_to=VANISHES,
             examples=uses("x -> exp", "exp(ids)", "exp(2) * x")),
    Function("log", MADE_REAL, "torch.log({0})", "Log", "The natural logarithm, element by element.",
             numpy="log", of_numbers=True, examples=uses("log(1 + x * x)", "log(ids + 1)", "log(2) * x")),
    Function("sin", MADE_REAL, "torch.sin({0})", "Sin", "The sine, element by element.",
             numpy="sin", of_numbers=True, examples=uses("x -> sin", "sin(ids)", "sin(2) * x")),
    Function("cos", MADE_REAL, "torch.cos({0})", "Cos", "The cosine, element by element.",
             numpy="cos", of_numbers=True, examples=uses("x -> cos", "cos(ids)", "cos(2) * x")),
    Function("erf", MADE_REAL, "torch.erf({0})", "Erf", "The error function, element by element.",
             examples=uses("x -> erf", "erf(ids)")),
    Function("tanh", MADE_REAL, "torch.tanh({0})", "Tanh", "The hyperbolic tangent.",
             numpy="tanh", of_numbers=True, by_result=True, examples=(*applied("tanh"), *uses("tanh(ids)"))),
    Function("sigmoid", MADE_REAL, "torch.sigmoid({0})", "Sigmoid", "The logistic function: `1 / (1 + exp(-x))`.",
             by_result=True, zero_up_to=VANISHES, examples=(*applied("sigmoid"), *uses("sigmoid(ids)"))),
    Function("sign", ANY, "torch.sign({0})", "Sign", "-1, 0 or 1, element by element. Its gradient is zero.",
             numpy="sign", of_numbers=True, examples=uses("x -> sign", "sign(ids)")),
    Function("floor", ANY, "torch.floor({0})", rounded("Floor"),
             "Rounded down, element by element. Its gradient is zero.",
             numpy="floor", of_numbers=True, examples=uses("x -> floor", "floor(ids)")),
    Function("ceil", ANY, "torch.ceil({0})", rounded("Ceil"), "Rounded up, element by element. Its gradient is zero.",
             numpy="ceil", of_numbers=True, examples=uses("x -> ceil", "ceil(ids)")),
    Function("round", ANY, "torch.round({0})", rounded("Round"),
             "Rounded to the nearest whole number, a half to the even one, element by element. Its gradient is zero.",
             numpy="round", examples=uses("round(2 * x)", "round(ids)")),
    Function("relu", REAL, "F.relu({0})", "Relu", "Rectified linear unit: `maximum(x, 0)`.",
             by_result=True, zero_up_to=0),
    Function("relu_squared", REAL, "F.relu({0}).square()", _relu_squared, "`relu(x) ** 2` (So et al., 2021, Primer).",
             zero_up_to=0),
    Function("selu", REAL, "F.selu({0})", "Selu",
             "Scaled exponential linear unit (Klambauer et al., 2017): `1.0507 * elu(x, 1.6733)`; keeps mean and "
             "variance."),
    Function("gelu", REAL, "F.gelu({0})", "Gelu",
             "Gaussian error linear unit (Hendrycks and Gimpel, 2016): `x * (1 + erf(x / sqrt(2))) / 2`."),
    Function("gelu_tanh", REAL, 'F.gelu({0}, approximate="tanh")', lambda g, x: g.Gelu(x, approximate="tanh"),
             "The tanh approximation of GELU: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`; that of "
             "GPT-2."),
    Function("quick_gelu", REAL, "quick_gelu({0})", lambda g, x: g.Mul(x, g.Sigmoid(g.Mul(x, 1.702))),
             "The sigmoid approximation of GELU: `x * sigmoid(1.702 * x)`; that of CLIP."),
    Function("silu", REAL, "F.silu({0})", lambda g, x: g.Mul(x, g.Sigmoid(x)),
             "Sigmoid-weighted linear unit (Hendrycks and Gimpel, 2016): `x * sigmoid(x)`; also called swish.",
             examples=uses("x -> silu")),
    Function("mish", REAL, "F.mish({0})", "Mish", "`x * tanh(softplus(x))` (Misra, 2019)."),
    Function("softplus", REAL, "F.softplus({0})", "Softplus", "`log(1 + exp(x))`, without overflow."),
    Function("softsign", REAL, "F.softsign({0})", "Softsign", "`x / (1 + abs(x))`."),
    Function("hard_sigmoid", REAL, "F.hardsigmoid({0})", lambda g, x: g.HardSigmoid(x, alpha=1 / 6, beta=0.5),
             "`clamp(x / 6 + 1 / 2, 0, 1)`."),
    Function("hard_swish", REAL, "F.hardswish({0})", "HardSwish",
             "`x * clamp(x / 6 + 1 / 2, 0, 1)` (Howard et al., 2019)."),
    Function("log_sigmoid", REAL, "F.logsigmoid({0})", lambda g, x: g.Neg(g.Softplus(g.Neg(x))),
             "`log(sigmoid(x))`, without overflow."),
)  # fmt: skip

# --- comparisons and logic --------------------------------------------------------------------------------------------


class Comparison(Elementwise):
    """An element-wise comparison, as a row: its sign, its ONNX operator, and where it is true."""

    def __init__(self, name: str, sign: str, operator: str, true: str, *, inverted: bool = False) -> None:
        self.signature = f"{name}()(a: [...], b: [...]) -> bool[...]"
        self.relation = sign
        self.expression = f"{{0}} {sign} {{1}}"
        self.operator = operator
        self.inverted = inverted
        self.numpy = name
        self.__doc__ = f"`a {sign} b`, element by element: where {true}; axes from the right are equal or 1."
        self.examples = (
            Example(f"a {sign} b", "a: int[2, 5], b: int[5]", gradients=False),
            Example(f"x {sign} 0", gradients=False),
            Example(f"1 {sign} ids + 1", "ids: int[2, 5]", gradients=False),
        )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """The operator on inputs of one type; truth values have no order in ONNX."""
        dtype = arithmetic_type(node.inputs)
        found = getattr(g, self.operator)(*g.args("int32" if dtype == "bool" else dtype))
        return g.Not(found) if self.inverted else found


COMPARISONS = (
    Comparison("greater", ">", "Greater", "the first is the larger"),
    Comparison("greater_equal", ">=", "GreaterOrEqual", "the first is not the smaller"),
    Comparison("less", "<", "Less", "the first is the smaller"),
    Comparison("less_equal", "<=", "LessOrEqual", "the first is not the larger"),
    Comparison("equal", "==", "Equal", "the two are equal"),
    Comparison("not_equal", "!=", "Equal", "the two differ", inverted=True),
)


class Logical(Elementwise):
    """An element-wise operation on two truth values, as a row: its sign, the result that one input alone can give."""

    takes_masks = (0, 1)

    def __init__(self, name: str, sign: str, operator: str, true: str, *, settles: float) -> None:
        self.signature = f"{name}()(a: bool[...], b: bool[...]) -> bool[...]"
        self.symbol = sign
        self.expression = f"{{0}} {sign} {{1}}"
        self.operator = operator
        self.settles = settles
        self.numpy = name
        self.__doc__ = f"`a {sign} b`, element by element, of tensors of true and false: where {true}."
        self.examples = (
            Example(f"a {sign} b", "a: bool[2, 5], b: bool[5]", gradients=False),
            Example(f"(x > 0) {sign} (x < 1)", gradients=False),
        )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return self.settles if self.settles in known else super().constant(node, known)


LOGICAL = (
    Logical("logical_and", "&", "And", "both are true", settles=0.0),
    Logical("logical_or", "|", "Or", "at least one is true", settles=1.0),
)


class LogicalNot(Elementwise):
    """`~a`, element by element, of a tensor of true and false: where it is false."""

    expression = "~{0}"
    operator = "Not"
    symbol = "~"
    signature = "logical_not()(a: bool[...]) -> bool[...]"
    numpy = "logical_not"
    examples = (Example("~a", "a: bool[2, 5]", gradients=False), Example("~(x > 0)", gradients=False))


# --- arithmetic -----------------------------------------------------------------------------------------------------


def arithmetic_type(inputs: Sequence[Input], call: Application | None = None) -> str:
    """The type of a sum or product: a number adapts to tensors, but whole ones and a fraction give float32. While an
    application is checked, `call` records what that was decided from."""
    found = promoted([v for v in inputs if isinstance(v, Value)])
    numbers = [v for v in inputs if isinstance(v, Num)]
    if found in ("int", "bool") and numbers:
        whole = [is_whole(n) if call is None else call.is_whole(n) for n in numbers]
        return "int" if all(whole) else "float32"
    return found


def overruling(known: Sequence[float | None], *numbers: float) -> float | None:
    """Of those numbers, the one that stands among what is known, whatever the rest is; the rest is finite."""
    found = {n for n in known if n is not None and (n in numbers or math.isinf(n))}
    return found.pop() if len(found) == 1 and found <= {*numbers} else None


class Arithmetic(Elementwise):
    """An element-wise operation whose result has the type of its operands together."""

    def dtypes(self, call: Application) -> Sequence[str]:
        return (arithmetic_type(call.inputs, call),)


class Addition(Arithmetic):
    """A sum of two operands, one of which may be subtracted: truth values count as numbers."""

    keeps_branch = True
    additive = True
    direction: ClassVar[int]

    def dtypes(self, call: Application) -> Sequence[str]:
        found = arithmetic_type(call.inputs, call)
        return ("int" if found == "bool" else found,)

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> int | None:
        a, b = inputs
        numbers = [isinstance(v, Num) for v in node.inputs]
        fits = any(numbers) if self.direction > 0 else numbers[1]
        return a + self.direction * b if a is not None and b is not None and fits else None

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        a, b = known
        signed = (a, None if b is None else self.direction * b)
        return overruling(signed, math.inf, -math.inf) or super().constant(node, known)

    def combines(self, node: OpNode) -> Sequence[Fraction]:
        return Fraction(1), Fraction(self.direction)


class Plus(Addition):
    """`a + b`, element by element; axes from the right are equal or 1. True counts as 1, false as 0."""

    direction = 1
    sign = "+"
    operator = "Add"
    signature = "plus()(a: [...], b: [...]) -> [...]"
    numpy = "add"
    examples = shown(
        "x + y  # x: [2, 5, 8], y: [8]",
        "1 + x",
        "x + y  # x: [2, 1, 8], y: [5, 1]",
        "ids + 0.5  # ids: int[2, 5]",
        "(ids > 1) + (ids > 2)  # ids: int[2, 5]",
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        # PyTorch takes the sum of two truth values for their disjunction.
        logical = all(isinstance(v, Value) and v.is_bool for v in node.inputs)
        return e.py("{0}.long() + {1}.long()" if logical else "{0} + {1}")


class Minus(Addition):
    """`a - b`, element by element; axes from the right are equal or 1. True counts as 1, false as 0."""

    direction = -1
    sign = "-"
    operator = "Sub"
    signature = "minus()(a: [...], b: [...]) -> [...]"
    numpy = "subtract"
    examples = shown("x - y  # x: [2, 5, 8], y: [8]", "1 - x", "x - (x - 1)", "1 - real  # real: bool[2, 5]")

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        a, b = (
            e.py("{x}.long()", x=e.input(i)) if isinstance(v, Value) and v.is_bool else e.input(i)
            for i, v in enumerate(node.inputs)
        )
        return e.py("{a} - {b}", a=a, b=b)


class Negate(Arithmetic):
    """`-x`, element by element."""

    keeps_branch = True
    expression = "-{0}"
    operator = "Neg"
    additive = True
    symbol = "-"
    signature = "negate()(x: number[...]) -> [...]"
    numpy = "negative"
    examples = uses("-x", "-(x + 1)", "-ids")

    def combines(self, node: OpNode) -> Sequence[Fraction]:
        return (Fraction(-1),)


class Times(Arithmetic):
    """`a * b`, element by element; axes from the right are equal or 1."""

    keeps_branch = True
    keeps_projection = True
    sign = "*"
    expression = "{0} * {1}"
    signature = "times()(a: [...], b: [...]) -> [...]"
    numpy = "multiply"
    examples = shown("x * y  # x: [2, 5, 8], y: [5, 1]", "0.5 * x", "(x + 1) * (x - 1)", "ids * 2  # ids: int[2, 5]")

    def saves(self, node: OpNode) -> Saved:
        """Each factor is the other's gradient."""
        return Saved(factors=tuple(i for i, v in enumerate(node.inputs) if isinstance(v, Value)))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return (g.And if node.outputs[0].is_bool else g.Mul)(*g.args())

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if overruling(known, 0) == 0 else super().constant(node, known)

    def combines(self, node: OpNode) -> Sequence[Fraction] | None:
        a, b = (
            Fraction(n.value) if isinstance(n, Num) and isinstance(n.value, int | Fraction) else None
            for n in node.inputs
        )
        return (Fraction(0), a) if a is not None else (b, Fraction(0)) if b is not None else None


def demand_divisor(op: Primitive, call: Application) -> None:
    """Refuse the number 0 as a divisor. Raises E0204."""
    divisor = call.inputs[1]
    if isinstance(divisor, Num) and divisor.static and not call.holds("!=", divisor, 0, f"`{op.name}` by 0"):
        raise call.error("E0204", f"`{op.name}` by the number 0")


def remainder(g: OnnxScope, a: Any, b: Any) -> tuple[Any, Any]:
    """What a quotient of real numbers that is rounded towards 0 leaves, and where one that is rounded down is less by
    one."""
    rest = g.Mod(a, b, fmod=1)
    return rest, g.And(g.Xor(g.Less(rest, 0.0), g.Less(b, 0.0)), g.Not(g.Equal(rest, 0.0)))


class Divide(Elementwise):
    """`a / b`, element by element; axes from the right are equal or 1. Whole numbers give float32."""

    keeps_branch = True
    sign = "/"
    expression = "{0} / {1}"
    operator = "Div"
    signature = "divide()(a: [...], b: [...]) -> float[...]"
    numpy = "divide"
    examples = shown("x / exp(y)  # x: [2, 5, 8], y: [8]", "x / 4", "1 / (1 + x * x)", "ids / 2  # ids: int[2, 5]")

    def check(self, call: Application) -> None:
        demand_divisor(self, call)

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] == 0 and known[1] is None else super().constant(node, known)


class Extreme(Arithmetic):
    """The larger or smaller of two, as a row: what it is and the bound that `clamp` calls it, after ONNX and numpy."""

    def __init__(self, name: str, what: str, operator: str, bound: str, settles: float) -> None:
        self.signature = f"{name}()(a: number[...], b: number[...]) -> [...]"
        self.__doc__ = f"The {what} of two, element by element; axes from the right are equal or 1."
        self.operator = operator
        self.numpy = name
        self.of_numbers = True
        self.bound = bound
        self.settles = settles
        self.examples = (
            Example(f"{name}(x, y)", "x: [2, 5, 8], y: [8]"),
            Example(f"{name}(x, 0.5)"),
            Example(f"{name}(0, x)"),
            Example(f"{name}(ids, 2)", "ids: int[2, 5]", gradients=False),
        )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return self.settles if self.settles in known else super().constant(node, known)

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> int | None:
        a, b = inputs
        known = self.bound == "max" and any(isinstance(v, Num) for v in node.inputs)
        return min(a, b) if known and a is not None and b is not None else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        a, b = node.inputs
        if isinstance(b, Num):
            return e.py(f"{{0}}.clamp({self.bound}={{1}})")
        if isinstance(a, Num):
            return e.py(f"{{1}}.clamp({self.bound}={{0}})")
        return e.py(f"torch.{self.name}({{0}}, {{1}})")


EXTREMES = (
    Extreme("maximum", "larger", "Max", "min", math.inf),
    Extreme("minimum", "smaller", "Min", "max", -math.inf),
)


class Power(Arithmetic):
    """`a ** b`, element by element. Whole numbers give float32, unless the exponent is a number that is whole and not
    negative."""

    sign = "**"
    signature = "power()(a: number[...], b: number[...]) -> [...]"
    numpy = "float_power"
    examples = shown(
        "x ** 2",
        "exp(x) ** -0.5",
        "2 ** x",
        "-(x + 1) ** 2",
        "10_000 ** -(ids / 8)  # ids: int[8]",
        "ids ** 2  # ids: int[8]",
        "(ids + 1) ** -2  # ids: int[8]",
        "2 ** (-2 * ids)  # ids: int[8]",
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

    sign = "%"
    expression = "{0} % {1}"
    signature = "modulo()(a: number[...], b: number[...]) -> [...]"
    numpy = "remainder"
    examples = shown("ids % 2  # ids: int[2, 5]", "x % 1.5", "7 % (ids + 1)  # ids: int[2, 5]")

    def check(self, call: Application) -> None:
        demand_divisor(self, call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        if node.outputs[0].is_int:
            return g.Mod(*g.args())
        a, b = (g.cast(x, "float32") for x in g.args())
        rest, less = remainder(g, a, b)
        return g.Where(less, g.Add(rest, b), rest)


class FloorDivide(Arithmetic):
    """`a // b`, element by element: the quotient rounded down. No gradient flows."""

    sign = "//"
    signature = "floor_divide()(a: number[...], b: number[...]) -> [...]"
    numpy = "floor_divide"
    examples = (
        Example("ids // 2", "ids: int[2, 5]", gradients=False),
        Example("ids // (ids + 1)", "ids: int[2, 5]", gradients=False),
        Example("x // 0.5", gradients=False),
    )

    def check(self, call: Application) -> None:
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


class Clamp(Arithmetic):
    """Element by element not below `low` and not above `high`; either may be left out."""

    signature = "clamp(low: number = none, high: number = none)(x: number[...]) -> [...]"
    examples = shown(
        "x -> clamp(-1, 1)",
        "x -> clamp(low: 0)",
        "x -> clamp(high: 0.5)",
        "ids -> clamp(1, 3)  # ids: int[2, 5]",
    )

    def check(self, call: Application) -> None:
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


# --- choices and types ------------------------------------------------------------------------------------------------


class Where(Elementwise):
    """`a` where the condition is true, else `b`, element by element; axes from the right are equal or 1.

    Two numbers make whole numbers, or, where one is a fraction or infinite, real ones of the model's own type. The
    condition may be a mask, which stands for the last two axes of `a` and `b`, queries and keys."""

    passes = 0
    signature = "where()(c: bool[...], a: [...], b: [...]) -> [...]"
    chosen = (1, 2)
    takes_masks = (0,)
    numpy = "where"
    examples = shown(
        "where(c, x, y)  # c: bool[2, 5, 1], x: [2, 5, 8], y: [8]",
        "where(c, x, 0)  # c: bool[5, 8], x: [2, 5, 8]",
        "where(x > 0, 1.5, x)",
        "where(c, 1, 0)  # c: bool[2, 5]",
        "where(c, 0.5, 0)  # c: bool[2, 5]",
        "where(causal & window(2), x, -inf)  # x: [2, 4, 5, 5]",
    )

    def build(self, call: Application) -> Sequence[Value]:
        """Of a mask by which all is seen, what it chooses."""
        mask, a = call.masks.get(0), call.inputs[1]
        if mask is not None and mask.rule == "full" and isinstance(a, Value) and a.dtype == self.dtypes(call)[0]:
            shape = broadcast(call, self.name)
            if a.rank == len(shape) and all(call.same(m, n) for m, n in zip(a.shape, shape, strict=True)):
                return (a,)
        return super().build(call)

    def dtypes(self, call: Application) -> Sequence[str]:
        choices = call.inputs[1:]
        if all(isinstance(v, Num) for v in choices):
            whole = [call.is_whole(v) for v in choices if isinstance(v, Num)]
            return ("int" if all(whole) else "float",)
        return (arithmetic_type(choices, call),)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        made = "torch.where({0}, {1}, {2})"
        if node.outputs[0].dtype == "float" and all(isinstance(v, Num) for v in node.inputs[1:]):
            return e.py(f"{made}.to({{dtype}})", dtype=e.dtype())
        return e.py(made)

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


class Identity(Elementwise):
    """The tensor itself: an activation that is none. Nothing is emitted for it."""

    passes = 0
    signature = "identity()(x: [...]) -> [...]"
    examples = shown("2 * identity(x)", "(x -> identity) + 1")

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),)


class Same(Primitive):
    """The same numbers, of the same type or another."""

    keeps_branch = True
    by_rows = True
    passes = 0
    moves = True
    mixes = False

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)  # which is brought to the type of the result


class StopGradient(Same):
    """The tensor itself, through which no gradient flows back."""

    expression = "{0}.detach()"
    signature = "stop_gradient()(x: [...]) -> [...]"
    examples = shown("x * stop_gradient(x)", "(x -> stop_gradient) + x")

    def differentiates(self, node: OpNode, i: int) -> bool:
        return False


METHODS = {"float32": "float", "bfloat16": "bfloat16", "int": "long", "bool": "bool"}


class Cast(Same):
    """The same numbers as another type: float (the model's own), float32, bfloat16, int or bool."""

    keeps_projection = True
    signature = "cast(dtype: type)(x: [...]) -> [...]"
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

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        dtype = node.options["dtype"]
        if dtype == "float":
            return e.py("{0}.to({dtype})", dtype=e.dtype())
        return e.py(f"{{0}}.{METHODS[dtype]}()")


class CastLike(Same):
    """x in the type of another tensor."""

    keeps_projection = True
    typed = 1
    for_type = (1,)
    expression = "{0}.type_as({1})"
    signature = "cast_like()(x: [...], like: [...]) -> [...]"
    examples = (Example("(x -> cast(float32)) -> cast_like(y)", "x: [2, 5, 8], y: [3]", gradients=False),)

    def build(self, call: Application) -> Sequence[Value]:
        x, like = call.tensor(0), call.tensor(1)
        return (x,) if x.dtype == like.dtype else call.node()

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return tuple(same(i) for i in range(node.tensor(0).rank)), (At(),) * node.tensor(1).rank

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return None if cut[0] is None else Parts(cut[0])

    def differentiates(self, node: OpNode, i: int) -> bool:
        return i == 0

    def leading(self, node: OpNode, i: int) -> int | None:
        return 0 if i == 0 else None


# --- activations with options --------------------------------------------------------------------------------------


class ELU(Elementwise):
    """Exponential linear unit (Clevert et al., 2015): x, or `alpha * (exp(x) - 1)` below 0."""

    signature = "elu(alpha: number = 1)(x: float[...]) -> [...]"
    examples = shown("x -> elu", "x -> elu(0.2)")

    def check(self, call: Application) -> None:
        usual(call, alpha=1)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, alpha = g.arg(0), number(node, "alpha")
        if alpha.static:
            return g.Elu(x, alpha=float(alpha))
        return g.Add(g.Relu(x), g.Mul(g.Min(g.Elu(x), 0.0), alpha))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.elu({0})" if equals(number(node, "alpha"), 1) else "F.elu({0}, {alpha})")


class LeakyReLU(Elementwise):
    """x, or `slope * x` below 0."""

    signature = "leaky_relu(slope: number = 0.01)(x: float[...]) -> [...]"
    examples = shown("x -> leaky_relu", "x -> leaky_relu(0.2)")

    def check(self, call: Application) -> None:
        usual(call, slope=0.01)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, slope = g.arg(0), number(node, "slope")
        return g.LeakyRelu(x, alpha=float(slope)) if slope.static else g.PRelu(x, slope)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.leaky_relu({0})" if equals(number(node, "slope"), 0.01) else "F.leaky_relu({0}, {slope})")


class PReLU(Primitive):
    """Parametric rectified linear unit (He et al., 2015): x, or `weight * x` below 0; the weight begins as `slope`."""

    signature = "prelu(slope: number = 0.25, init: scheme = none)(x: float[...]) -> [...]"
    mixes = False
    examples = shown("x -> prelu", "x -> prelu(0.1)")

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


class GLU(Primitive):
    """Gated linear unit (Dauphin et al., 2016): the first half of an axis times the sigmoid of the second.

    It is `F.glu` of PyTorch."""

    passes = 2
    signature = "glu(axis: int = -1)(x: float[...]) -> [...]"
    examples = shown("x -> glu", "x -> glu(axis: 1)  # x: [2, 6, 4]")

    def check(self, call: Application) -> None:
        size = call.shape(0)[axis_of(self, call)]
        call.condition("%", size, num(2), "`glu` halves the axis")

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        return (replaced(call.shape(0), axis, binary("/", call.shape(0)[axis], num(2))),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(node.tensor(0).rank, axis_index(node)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        a, b = g.Split(g.arg(0), axis=axis_index(node), num_outputs=2, outputs=2)
        return g.Mul(a, g.Sigmoid(b))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        axis = written(node)
        return e.py("F.glu({0})") if axis == -1 else e.py("F.glu({0}, dim={axis})", axis=axis)
