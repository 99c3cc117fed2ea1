"""Reductions, softmax, running sums and orders along axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archdsl.ir.dims import Shape, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, State, TorchScope, Tree, up_to
from archdsl.ir.signature import promoted
from archdsl.ops._common import (
    AxisOp,
    Reduction,
    axis_of,
    demand_at_most,
    first_input,
    from_right,
    in_order,
    kept_reads,
    number,
    own_but,
    place,
    replaced,
    written,
)
from archdsl.ops._onnx import END


class Sum(Reduction):
    """The sum along one or several axes; `keep` leaves them, of size 1. True counts as 1."""

    operator = "ReduceSum"
    additive = True
    signature = "sum(axis: ints = -1, keep: bool = false)(x: [...]) -> [...]"
    method = "sum"
    examples = (
        Example("x -> sum"),
        Example("x -> sum(1)"),
        Example("x -> sum([1, -1], keep: true)"),
        Example("x -> sum(0, keep: true)"),
        Example("sum(ids)", "ids: int[2, 5]", gradients=False),
        Example("sum(real)", "real: bool[2, 5]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        found = promoted(call.inputs)
        return ("int" if found == "bool" else found,)


class Mean(Reduction):
    """The mean along one or several axes; `keep` leaves them, of size 1. Whole numbers and bools give float32."""

    operator = "ReduceMean"
    additive = True
    signature = "mean(axis: ints = -1, keep: bool = false)(x: [...]) -> float[...]"
    method = "mean"
    examples = (
        Example("x -> mean"),
        Example("x -> mean(1)"),
        Example("x -> mean([1, -1], keep: true)"),
        Example("x -> mean(0, keep: true)"),
        Example("mean(ids)", "ids: int[2, 5]", gradients=False),
        Example("mean(real)", "real: bool[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        x = e.input(0) if first_input(node).is_float else e.py("{0}.float()")
        return self.reduced(node, e, x)


class Max(Reduction):
    """The largest along one or several axes; `keep` leaves them, of size 1."""

    operator = "ReduceMax"
    signature = "max(axis: ints = -1, keep: bool = false)(x: [...]) -> [...]"
    method = "amax"
    examples = (
        Example("x -> max"),
        Example("x -> max(1)"),
        Example("x -> max([1, -1], keep: true)"),
        Example("x -> max(0, keep: true)"),
        Example("max(ids)", "ids: int[2, 5]", gradients=False),
        Example("max(real)", "real: bool[2, 5]", gradients=False),
    )


class Min(Reduction):
    """The smallest along one or several axes; `keep` leaves them, of size 1."""

    operator = "ReduceMin"
    signature = "min(axis: ints = -1, keep: bool = false)(x: [...]) -> [...]"
    method = "amin"
    examples = (
        Example("x -> min"),
        Example("x -> min(1)"),
        Example("x -> min([1, -1], keep: true)"),
        Example("x -> min(0, keep: true)"),
        Example("min(ids)", "ids: int[2, 5]", gradients=False),
        Example("min(real)", "real: bool[2, 5]", gradients=False),
    )


class Var(Reduction):
    """The variance along one or several axes (divided by n, as norms do); `keep` leaves them, of size 1."""

    signature = "var(axis: ints = -1, keep: bool = false)(x: float[...]) -> [...]"
    method = "var"
    extra: ClassVar[Mapping[str, Any]] = {"correction": 0}
    examples = (
        Example("x -> var"),
        Example("x -> var(1)"),
        Example("x -> var(axis: [1, -1], keep: true)"),
        Example("x -> var(0, keep: true)"),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, axes = g.arg(0, "float32"), self.axes_from_right(node)
        apart = g.Sub(x, g.ReduceMean(x, axes, keepdims=1))
        return g.ReduceMean(g.Mul(apart, apart), axes, keepdims=int(node.options["keep"]))


class LogSumExp(Reduction):
    """`log(sum(exp(x)))` along one or several axes, without overflow; `keep` leaves them, of size 1."""

    signature = "logsumexp(axis: ints = -1, keep: bool = false)(x: float[...]) -> [...]"
    method = "logsumexp"
    examples = (
        Example("x -> logsumexp"),
        Example("x -> logsumexp(1)"),
        Example("x -> logsumexp(axis: [1, -1], keep: true)"),
        Example("x -> logsumexp(0, keep: true)"),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """Written out: the kernel of `ReduceLogSumExp` on CUDA gives NaN where all is minus infinity."""
        x, axes, keep = g.arg(0, "float32"), self.axes_from_right(node), bool(node.options["keep"])
        top = g.ReduceMax(x, axes, keepdims=1)
        top = g.Where(g.IsInf(top), 0.0, top)
        total = g.Log(g.ReduceSum(g.Exp(g.Sub(x, top)), axes, keepdims=int(keep)))
        return g.Add(total, top if keep else g.Squeeze(top, axes))


class ArgMax(Primitive):
    """The position of the largest along an axis; `keep` leaves the axis, of size 1."""

    passes = 0
    signature = "argmax(axis: int = -1, keep: bool = false)(x: number[...]) -> int[...]"
    examples = (
        Example("x -> argmax", gradients=False),
        Example("x -> argmax(axis: 1, keep: true)", gradients=False),
    )

    def check(self, call: Application) -> None:
        axis_of(self, call)

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis, shape = axis_of(self, call), call.shape(0)
        return (replaced(shape, axis, num(1)) if call.options["keep"] else (*shape[:axis], *shape[axis + 1 :]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (kept_reads(first_input(node).rank, {place(node)}, bool(node.options["keep"])),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.ArgMax(g.arg(0), axis=from_right(node), keepdims=int(node.options["keep"]))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        keep = {"keepdim": True} if node.options["keep"] else {}
        return e.py("{0}.argmax({axis}, {**keep})", axis=written(node), keep=keep)


class Softmax(AxisOp):
    """`exp(x) / sum(exp(x))` along an axis, without overflow."""

    passes = 5
    by_result = True
    signature = "softmax(axis: int = -1)(x: float[...]) -> [...]"
    examples = (Example("x -> softmax"), Example("x -> softmax(axis: 1)"), Example("softmax(x + 1)", "x: [5]"))

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] == -math.inf else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Softmax(g.arg(0, "float32"), axis=place(node))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.softmax({axis})", axis=written(node))


class LogSoftmax(AxisOp):
    """`log(softmax(x))` along an axis, without overflow."""

    passes = 5
    by_result = True
    signature = "log_softmax(axis: int = -1)(x: float[...]) -> [...]"
    examples = (
        Example("x -> log_softmax"),
        Example("x -> log_softmax(axis: 1)"),
        Example("log_softmax(x + 1)", "x: [5]"),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return -math.inf if known[0] == -math.inf else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.LogSoftmax(g.arg(0, "float32"), axis=from_right(node))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.log_softmax({axis})", axis=written(node))


class Running(AxisOp):
    """Something of all positions up to the own, along an axis. Its name is that of torch's method."""

    def dtypes(self, call: Application) -> Sequence[str]:
        found = promoted(call.inputs)
        return ("int" if found == "bool" else found,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(first_input(node).rank, place(node), up_to(place(node))),)

    def terms(self, node: OpNode, g: OnnxScope) -> Any:
        """The input, real numbers in float32."""
        return g.arg(0, "int" if node.outputs[0].dtype == "int" else "float32")

    def states(self, node: OpNode) -> Sequence[State]:
        output, axis = node.outputs[0], place(node)
        shape = tuple(d for i, d in enumerate(output.shape) if i != axis)
        kind = "int" if output.dtype == "int" else "float32"
        return (State(self.name, shape, kind, axis),) if axis else ()

    def torch_after(self, node: OpNode, e: TorchScope, past: Tree, symbol: str) -> tuple[Tree, Sequence[Tree]]:
        """What is of the new positions alone, put together with what was before them."""
        x, axis, whole = first_input(node), place(node), node.outputs[0].dtype == "int"
        terms = e.input(0) if whole else e.py("{0}.float()")
        both = f"{{past}}.unsqueeze({{axis}}) {symbol} {{terms}}.{self.name}({{axis}})"
        y = e.let(self.name, e.py(both, past=past, terms=terms, axis=axis))
        last = e.py("{y}.select({axis}, -1)", y=y, axis=axis)
        return (y if whole or x.dtype == "float32" else e.py("{y}.type_as({0})", y=y)), (last,)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py(f"{{0}}.{self.name}({{axis}})", axis=written(node))


class CumSum(Running):
    """The sum of all positions up to the own, along an axis."""

    signature = "cumsum(axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("x -> cumsum"),
        Example("x -> cumsum(axis: 1)"),
        Example("cumsum(real)", "real: bool[2, 5]", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.CumSum(self.terms(node, g), g.constant(place(node), "int"))

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        axis, rank = place(node), first_input(node).rank
        terms = g.gated(self.terms(node, g), 0, rank, axis)
        y = g.Add(g.CumSum(terms, g.constant(axis, "int")), g.Unsqueeze(past[0], [axis]))
        return y, [g.Gather(y, g.constant(-1, "int"), axis=axis)]

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        return self.torch_after(node, e, past[0], "+")


class CumProd(Running):
    """The product of all positions up to the own, along an axis."""

    signature = "cumprod(axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("x -> cumprod"),
        Example("x -> cumprod(axis: 1)"),
        Example("cumprod(real)", "real: bool[2, 5]", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """The product of 2 positions, of 4, of 8, …; step by step where only the running model knows how many there
        are: no operator of the opset multiplies along an axis."""
        x, axis, length = self.terms(node, g), place(node), first_input(node).shape[place(node)]
        if not length.static:
            shape = g.Shape(g.Gather(x, g.constant(0, "int"), axis=axis))
            _, y = g.scan(self.step(g), [g.Expand(g.constant(1, g.dtype(x)), shape)], [x], axis=axis)
            return y
        reach = 1
        while reach < int(length):
            first, later = g.Slice(x, [0], [reach], [axis]), g.Slice(x, [reach], [END], [axis])
            x = g.Concat(first, g.Mul(later, g.Slice(x, [0], [-reach], [axis])), axis=axis)
            reach *= 2
        return x

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        axis, rank = place(node), first_input(node).rank
        terms = g.gated(self.terms(node, g), 1, rank, axis)
        last, y = g.scan(self.step(g), [g.Where(g.first, 1, past[0])], [terms], axis=axis)
        return y, [last]

    def step(self, g: OnnxScope) -> Any:
        def multiplied(before: Any, x: Any) -> tuple[Any, Any]:
            after = g.Mul(before, x)
            return after, after

        return multiplied

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        return self.torch_after(node, e, past[0], "*")

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        kind = {} if node.outputs[0].dtype == "int" else {"dtype": e.py("torch.float32")}
        return (e.py("{0}.new_ones({*sizes}, {**kind})", sizes=self.states(node)[0].shape, kind=kind),)


class Sort(Primitive):
    """Sorted along an axis, the smallest first (`descending`: the largest), and the position each had: two results."""

    passes = 0
    signature = "sort(axis: int = -1, descending: bool = false)(x: [...]) -> (values: [...], places: int[...])"
    examples = (
        Example("values, places", statements="values, places = x -> sort"),
        Example("values", statements="values, places = x -> sort(axis: 1, descending: true)"),
    )

    def check(self, call: Application) -> None:
        axis_of(self, call)

    def shapes(self, call: Application) -> Sequence[Shape]:
        return call.shape(0), call.shape(0)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(first_input(node).rank, place(node)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return in_order(node, g)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        more = {"descending": True} if node.options["descending"] else {}
        return e.py("{0}.sort(dim={axis}, {**more})", axis=written(node), more=more)


class ArgSort(AxisOp):
    """The positions along an axis in the order of what stands there, the smallest first (or the largest:
    `descending`)."""

    passes = 0
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
    signature = "topk(k: size, axis: int = -1)(x: number[...]) -> (values: [...], places: int[...])"
    hints = ("best", "chosen")
    examples = (
        Example("values", statements="values, places = x -> topk(3)"),
        Example("values, places", statements="values, places = x -> topk(2, axis: 1)"),
        Example("places", statements="values, places = topk(2)(x)", gradients=False),
    )

    def check(self, call: Application) -> None:
        size = call.shape(0)[axis_of(self, call)]
        demand_at_most(call, call.size("k"), size, "k of `topk` must be at most the length of the axis")

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape = replaced(call.shape(0), axis_of(self, call), call.size("k"))
        return shape, shape

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(first_input(node).rank, place(node)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        k = number(node, "k")
        count = [k] if k.static else g.Unsqueeze(g.number(k), [0])
        return g.TopK(g.arg(0), count, axis=from_right(node), outputs=2)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        axis = written(node)
        more = {} if axis == -1 else {"dim": axis}
        return e.py("{0}.topk({k}, {**more})", k=number(node, "k"), more=more)
