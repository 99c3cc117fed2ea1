"""Reductions, softmax, running sums and orders along axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from archdsl.ir.cost import Amount, elements
from archdsl.ir.dims import Shape, mul, num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.masks import INPUTS, Mask, sees_itself
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    OnnxScope,
    Primitive,
    Reads,
    State,
    TorchScope,
    Tree,
    same,
    shown,
    up_to,
)
from archdsl.ir.signature import broadcast, promoted
from archdsl.ir.static import EnumValue, as_operand
from archdsl.ops._common import (
    AxisOp,
    axes_of,
    axis_index,
    axis_of,
    demand_at_most,
    from_right,
    number,
    own_but,
    replaced,
    written,
)
from archdsl.ops._onnx import END
from archdsl.ops.attention.mask import mask_beside
from archdsl.ops.shape import swapped

REAL = "float[...]) -> [...]"
"""Of real numbers."""
MADE_REAL = "[...]) -> float[...]"
"""Of any numbers, with real values."""
ANY = "[...]) -> [...]"
"""Of any numbers, with values of the same type."""


class Reduction(Primitive):
    """One number for all positions along some axes, as a row: its name and the types it takes and gives, torch's
    method, its ONNX operator or what it is composed of (given x in float32, the axes and whether they are kept)."""

    def __init__(
        self,
        name: str,
        types: str,
        method: str,
        onnx: str | Callable[[OnnxScope, Any, list[int], bool], Any],
        doc: str,
        *,
        additive: bool = False,
        counts: bool = False,
        absent: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.signature = f"{name}(axis: ints = -1, keep: bool = false)(x: {types}"
        self.method = method
        self.composed = None if isinstance(onnx, str) else onnx
        self.operator = onnx if isinstance(onnx, str) else ""
        self.__doc__ = doc
        self.additive = additive
        self.without = absent
        self.counts = counts
        """Whether truth values count as whole numbers."""
        self.extra = extra or {}
        """More arguments of the method, by name."""
        several = "axis: [1, -1]" if types == REAL else "[1, -1]"
        uses = (name, f"{name}(1)", f"{name}({several}, keep: true)", f"{name}(0, keep: true)")
        whole = () if types == REAL else (("ids", "int"), ("real", "bool"))
        self.examples = (
            *(Example(f"x -> {use}") for use in uses),
            *(Example(f"{name}({x})", f"{x}: {kind}[2, 5]", gradients=False) for x, kind in whole),
        )

    def check(self, call: Application) -> None:
        axes_of(self, call)

    def shapes(self, call: Application) -> Sequence[Shape]:
        axes = axes_of(self, call)
        if call.options["keep"]:
            return (tuple(num(1) if i in axes else d for i, d in enumerate(call.shape(0))),)
        return (tuple(d for i, d in enumerate(call.shape(0)) if i not in axes),)

    def dtypes(self, call: Application) -> Sequence[str]:
        found = super().dtypes(call)
        return ("int",) if self.counts and found == ["bool"] else found

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.tensor(0).rank
        axes = {int(n) % rank for n in node.options["axis"]}
        return (kept_reads(rank, axes, bool(node.options["keep"])),)

    def absent(self, node: OpNode) -> float | None:
        return self.without

    def pointwise(self, node: OpNode) -> tuple[Amount, ...]:
        """Operations on each number that comes in."""
        return (Amount(mul(self.passes, elements(node.tensor(0).shape))),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """In whole numbers where there are truth values."""
        rank, keep, own = node.tensor(0).rank, bool(node.options["keep"]), node.outputs[0].dtype
        axes = [int(n) % rank - rank for n in node.options["axis"]]
        if self.composed is not None:
            return self.composed(g, g.arg(0, "float32"), axes, keep)
        return getattr(g, self.operator)(g.arg(0, "int32" if own == "bool" else own), axes, keepdims=int(keep))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        real = node.outputs[0].is_float and not node.tensor(0).is_float
        axes = tuple(int(n) for n in node.options["axis"])
        more = {**self.extra, **({"keepdim": True} if node.options["keep"] else {})}
        where = axes[0] if len(axes) == 1 else axes
        return e.py(f"{{0}}{'.float()' if real else ''}.{self.method}({{where}}, {{**more}})", where=where, more=more)


def kept_reads(rank: int, gone: set[int], keep: bool) -> tuple[At | None, ...]:
    """Some axes are read whole; the others stand at their position, moved to the left unless all are kept."""
    return tuple(EVERYWHERE if i in gone else same(i if keep else i - sum(a < i for a in gone)) for i in range(rank))


def _variance(g: OnnxScope, x: Any, axes: list[int], keep: bool) -> Any:
    apart = g.Sub(x, g.ReduceMean(x, axes, keepdims=1))
    return g.ReduceMean(g.Mul(apart, apart), axes, keepdims=int(keep))


def _logsumexp(g: OnnxScope, x: Any, axes: list[int], keep: bool) -> Any:
    """Written out: the kernel of `ReduceLogSumExp` on CUDA gives NaN where all is minus infinity."""
    top = g.ReduceMax(x, axes, keepdims=1)
    top = g.Where(g.IsInf(top), 0.0, top)
    total = g.Log(g.ReduceSum(g.Exp(g.Sub(x, top)), axes, keepdims=int(keep)))
    return g.Add(total, top if keep else g.Squeeze(top, axes))


REDUCTIONS = (
    Reduction("sum", ANY, "sum", "ReduceSum",
              "The sum along one or several axes; `keep` leaves them, of size 1. True counts as 1.",
              additive=True, counts=True, absent=0.0),
    Reduction("mean", MADE_REAL, "mean", "ReduceMean",
              "The mean along one or several axes; `keep` leaves them, of size 1. Whole numbers and bools give "
              "float32.",
              additive=True),
    Reduction("max", ANY, "amax", "ReduceMax",
              "The largest along one or several axes; `keep` leaves them, of size 1.", absent=-math.inf),
    Reduction("min", ANY, "amin", "ReduceMin",
              "The smallest along one or several axes; `keep` leaves them, of size 1.", absent=math.inf),
    Reduction("var", REAL, "var", _variance,
              "The variance along one or several axes (divided by n, as norms do); `keep` leaves them, of size 1.",
              extra={"correction": 0}),
    Reduction("logsumexp", REAL, "logsumexp", _logsumexp,
              "`log(sum(exp(x)))` along one or several axes, without overflow; `keep` leaves them, of size 1.",
              absent=-math.inf),
)  # fmt: skip


class ArgMax(Primitive):
    """The position of the largest along an axis; `keep` leaves the axis, of size 1."""

    passes = 0
    indices = (0,)
    signature = "argmax(axis: int = -1, keep: bool = false)(x: number[...]) -> int[...]"
    examples = (Example("x -> argmax", gradients=False), Example("x -> argmax(axis: 1, keep: true)", gradients=False))

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis, shape = axis_of(self, call), call.shape(0)
        return (replaced(shape, axis, num(1)) if call.options["keep"] else (*shape[:axis], *shape[axis + 1 :]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (kept_reads(node.tensor(0).rank, {axis_index(node)}, bool(node.options["keep"])),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.ArgMax(g.arg(0), axis=from_right(node), keepdims=int(node.options["keep"]))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        keep = {"keepdim": True} if node.options["keep"] else {}
        return e.py("{0}.argmax({axis}, {**keep})", axis=written(node), keep=keep)


class Softmax(AxisOp):
    """`exp(x) / sum(exp(x))` along an axis, without overflow.

    `mask`, a mask for the last two axes or a bool tensor, says what of x is there; a sum over nothing gives 0."""

    passes = 5
    by_result = True
    expression = "{0}.softmax({axis})"
    relative = True
    takes_masks = (1,)
    further_inputs = -1
    signature = "softmax(axis: int = -1)(x: float[...], mask: bool[...] = none) -> [...]"
    examples = shown(
        "x -> softmax",
        "x -> softmax(axis: 1)",
        "softmax(x + 1)  # x: [5]",
        "softmax(x, mask: causal)  # x: [2, 4, 5, 5]",
        "softmax(x, mask: seen)  # x: [2, 4, 5, 7], seen: bool[5, 7]",
    )

    def build(self, call: Application) -> Sequence[Value]:
        """A mask hides scores before the softmax, and what it makes of none behind it."""
        x, (given,), mask = call.tensor(0), call.inputs[1:] or (None,), call.masks.get(1)
        if isinstance(given, Value) and given.dtype in INPUTS:
            mask = Mask(given.dtype, tensor=given)
        if given is None and (mask is None or mask.rule == "full"):
            return call.node(inputs=(x,))
        if mask is None:
            broadcast(call, self.name)
        seen = given if mask is None else mask_beside(call, mask, [x])
        shown = call.apply("where", seen, x, as_operand(EnumValue("-inf")))
        (weights,) = call.node(inputs=(shown,))
        of_pairs = axis_of(self, call) >= x.rank - 2
        if of_pairs and mask is not None and sees_itself(mask) and call.same(x.shape[-2], x.shape[-1]):
            return (weights,)  # nothing is empty
        return (call.apply("where", seen, weights, num(0)),)

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] == -math.inf else None

    def absent(self, node: OpNode) -> float | None:
        return -math.inf

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Softmax(g.arg(0, "float32"), axis=axis_index(node))


class LogSoftmax(AxisOp):
    """`log(softmax(x))` along an axis, without overflow."""

    passes = 5
    by_result = True
    expression = "{0}.log_softmax({axis})"
    relative = True
    signature = "log_softmax(axis: int = -1)(x: float[...]) -> [...]"
    examples = shown("x -> log_softmax", "x -> log_softmax(axis: 1)", "log_softmax(x + 1)  # x: [5]")

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return -math.inf if known[0] == -math.inf else None

    def absent(self, node: OpNode) -> float | None:
        return -math.inf

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.LogSoftmax(g.arg(0, "float32"), axis=from_right(node))


class Running(AxisOp):
    """Something of all positions up to the own, along an axis. Its name is that of torch's method."""

    both: ClassVar[str]
    """The template of what puts two together, `{a}` and `{b}`."""

    def dtypes(self, call: Application) -> Sequence[str]:
        found = promoted(call.inputs)
        return ("int" if found == "bool" else found,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(node.tensor(0).rank, axis_index(node), up_to(axis_index(node))),)

    def terms(self, node: OpNode, g: OnnxScope) -> Any:
        """The input, real numbers in float32."""
        return g.arg(0, "int" if node.outputs[0].dtype == "int" else "float32")

    def states(self, node: OpNode) -> Sequence[State]:
        output, axis = node.outputs[0], axis_index(node)
        shape = tuple(d for i, d in enumerate(output.shape) if i != axis)
        kind = "int" if output.dtype == "int" else "float32"
        return (State(self.name, shape, kind, axis),) if axis else ()

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        """What is of the new positions alone, put together with what was before them."""
        axis, output = axis_index(node), node.outputs[0]
        exact = output.dtype == "int" or node.tensor(0).dtype == "float32"
        terms = e.input(0) if exact else e.py("{0}.float()")
        before, new = e.py("{past}.unsqueeze({axis})", past=past[0], axis=axis), f"{{terms}}.{self.name}({{axis}})"
        name = output.name if exact and output.name else self.name
        y = e.let(name, e.py(self.both, a=before, b=e.py(new, terms=terms, axis=axis)))
        last = e.py(f"{{y}}[{':, ' * axis}-1]", y=y)
        return (y if exact else e.py("{y}.type_as({0})", y=y)), (last,)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py(f"{{0}}.{self.name}({{axis}})", axis=written(node))


class CumSum(Running):
    """The sum of all positions up to the own, along an axis; with `reverse` of the own and all behind it."""

    both = "{a} + {b}"
    signature = "cumsum(axis: int = -1, reverse: bool = false)(x: [...]) -> [...]"
    examples = shown(
        "x -> cumsum", "x -> cumsum(axis: 1)", "cumsum(real)  # real: bool[2, 5]", "x -> cumsum(axis: 1, reverse: true)"
    )

    def reads(self, node: OpNode) -> Sequence[Reads]:
        if node.options["reverse"]:
            return (own_but(node.tensor(0).rank, axis_index(node)),)
        return super().reads(node)

    def absent(self, node: OpNode) -> float | None:
        return 0.0 if node.options["reverse"] else None

    def states(self, node: OpNode) -> Sequence[State]:
        return () if node.options["reverse"] else super().states(node)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if node.options["reverse"]:
            return e.py("{0}.flip({axis}).cumsum({axis}).flip({axis})", axis=written(node))
        return super().torch(node, e)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        backwards = int(node.options["reverse"])
        return g.CumSum(self.terms(node, g), g.constant(axis_index(node), "int"), reverse=backwards)

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        axis, rank = axis_index(node), node.tensor(0).rank
        terms = g.gated(self.terms(node, g), 0, rank, axis)
        y = g.Add(g.CumSum(terms, g.constant(axis, "int")), g.Unsqueeze(past[0], [axis]))
        return y, [g.Gather(y, g.constant(-1, "int"), axis=axis)]


class RunningByPairs(Running):
    """The same where no operator of ONNX runs along an axis."""

    nothing: ClassVar[float]
    """What changes nothing."""

    def pair(self, g: OnnxScope, a: Any, b: Any) -> Any:
        """Two put together."""
        raise TypeError(f"{type(self).__name__} does not say how two are put together")

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """Of 2 positions, of 4, of 8, …; step by step where only the running model knows how many there are."""
        x, axis, length = self.terms(node, g), axis_index(node), node.tensor(0).shape[axis_index(node)]
        if not length.static:
            front = swapped(0, axis, node.tensor(0).rank)
            shape = g.Shape(g.Gather(x, g.constant(0, "int"), axis=axis))
            start = g.Expand(g.constant(self.nothing, g.dtype(x)), shape)
            _, y = g.scan(self.step(g), [start], [g.Transpose(x, perm=front)])
            return g.Transpose(y, perm=front)
        reach = 1
        while reach < int(length):
            first, later = g.Slice(x, [0], [reach], [axis]), g.Slice(x, [reach], [END], [axis])
            x = g.Concat(first, self.pair(g, later, g.Slice(x, [0], [-reach], [axis])), axis=axis)
            reach *= 2
        return x

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        axis, rank = axis_index(node), node.tensor(0).rank
        terms, front = g.gated(self.terms(node, g), self.nothing, rank, axis), swapped(0, axis, rank)
        last, y = g.scan(self.step(g), [g.Where(g.first, self.nothing, past[0])], [g.Transpose(terms, perm=front)])
        return g.Transpose(y, perm=front), [last]

    def step(self, g: OnnxScope) -> Any:
        def joined(before: Any, x: Any) -> tuple[Any, Any]:
            after = self.pair(g, before, x)
            return after, after

        return joined


class CumProd(RunningByPairs):
    """The product of all positions up to the own, along an axis."""

    both = "{a} * {b}"
    nothing = 1
    signature = "cumprod(axis: int = -1)(x: [...]) -> [...]"
    examples = shown("x -> cumprod", "x -> cumprod(axis: 1)", "cumprod(real)  # real: bool[2, 5]")

    def pair(self, g: OnnxScope, a: Any, b: Any) -> Any:
        return g.Mul(a, b)

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        kind = {} if node.outputs[0].dtype == "int" else {"dtype": e.py("torch.float32")}
        return (e.py("{0}.new_ones({*sizes}, {**kind})", sizes=self.states(node)[0].shape, kind=kind),)


class LogCumSumExp(RunningByPairs):
    """`log(cumsum(exp(x)))`, without overflow: of all positions up to the own, along an axis."""

    both = "torch.logaddexp({a}, {b})"
    nothing = -math.inf
    signature = "logcumsumexp(axis: int = -1)(x: float[...]) -> [...]"
    examples = shown("x -> logcumsumexp", "logcumsumexp(20 * x, axis: 1)")

    def pair(self, g: OnnxScope, a: Any, b: Any) -> Any:
        top = g.Max(a, b)
        top = g.Where(g.IsInf(top), 0.0, top)
        return g.Add(g.Log(g.Add(g.Exp(g.Sub(a, top)), g.Exp(g.Sub(b, top)))), top)

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        sizes = self.states(node)[0].shape
        return (e.py("{0}.new_full({sizes}, -torch.inf, dtype=torch.float32)", sizes=sizes),)


def in_order(node: OpNode, g: OnnxScope) -> Any:
    """What stands along the axis of a node in order, and the positions it had; the lower first of equals."""
    x = node.tensor(0)
    values = g.arg(0, "int32") if x.is_bool else g.arg(0)
    size = g.size(0, axis_index(node))
    return g.TopK(values, [size], axis=from_right(node), largest=int(node.options["descending"]), outputs=2)


class Sort(AxisOp):
    """Sorted along an axis, the smallest first (`descending`: the largest), and the position each had: two results."""

    passes = 0
    indices = (1,)
    signature = "sort(axis: int = -1, descending: bool = false)(x: [...]) -> (values: [...], positions: int[...])"
    examples = (
        Example("values, positions", statements="values, positions = x -> sort"),
        Example("values", statements="values, positions = x -> sort(axis: 1, descending: true)"),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return in_order(node, g)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        more = {"descending": True} if node.options["descending"] else {}
        return e.py("{0}.sort(dim={axis}, {**more})", axis=written(node), more=more)


class ArgSort(AxisOp):
    """The positions along an axis in the order of what stands there, the smallest first (or the largest:
    `descending`)."""

    passes = 0
    indices = (0,)
    signature = "argsort(axis: int = -1, descending: bool = false)(x: [...]) -> int[...]"
    examples = (
        Example("x -> argsort", gradients=False),
        Example("x -> argsort(axis: 1, descending: true)", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return in_order(node, g)[1]

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        order = {"descending": True} if node.options["descending"] else {}
        return e.py("{0}.argsort(dim={axis}, {**order})", axis=written(node), order=order)


class TopK(Primitive):
    """The k largest along an axis, the largest first, and their positions: two results."""

    passes = 0
    indices = (1,)
    signature = "topk(k: size, axis: int = -1)(x: number[...]) -> (values: [...], positions: int[...])"
    hints = ("best", "chosen")
    examples = (
        Example("values", statements="values, positions = x -> topk(3)"),
        Example("values, positions", statements="values, positions = x -> topk(2, axis: 1)"),
        Example("positions", statements="values, positions = topk(2)(x)", gradients=False),
    )

    def check(self, call: Application) -> None:
        k, size = call.size("k"), call.shape(0)[axis_of(self, call)]
        instead = "" if size.static else f", as `minimum({k}, {size})` is"
        demand_at_most(call, k, size, f"k of `topk` must be at most the length of the axis{instead}")

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape = replaced(call.shape(0), axis_of(self, call), call.size("k"))
        return shape, shape

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(node.tensor(0).rank, axis_index(node)),)

    def absent(self, node: OpNode) -> float | None:
        """Of a k that follows the length, as `minimum(8, time)`, the last of the best is another with each position."""
        return -math.inf if number(node, "k").static else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        k = number(node, "k")
        count = [k] if k.static else g.Unsqueeze(g.number(k), [0])
        return g.TopK(g.arg(0), count, axis=from_right(node), outputs=2)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        axis = written(node)
        more = {} if axis == -1 else {"dim": axis}
        return e.py("{0}.topk({k}, {**more})", k=number(node, "k"), more=more)
