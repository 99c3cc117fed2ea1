"""The functions of torch that emitted code calls: what each allocates, saves for the backward pass, and does there.

What is saved is what PyTorch's autograd saves (its table of derivatives; for a function that is made of others, what
those save). A gradient's rule is written with the same functions, so that its temporaries are counted too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from archdsl.eager.tensors import (
    DType,
    Enough,
    Gradients,
    Node,
    Shape,
    Storage,
    Tensor,
    Unknown,
    bfloat16,
    bool_,
    broadcast,
    contiguous_strides,
    float16,
    float32,
    int32,
    int64,
    last_strides,
    layout,
    now,
    result_type,
    viewed,
)

Number = float | int | bool
_HALF = (bfloat16, float16)
Backward = Callable[[list[Tensor], Tensor], Gradients]


def recorded(
    name: str, result: Tensor, inputs: Sequence[Tensor], saved: Sequence[Tensor], backward: Backward
) -> Tensor:
    """The result of a function of these inputs, recorded where a gradient of one of them is wanted."""
    return recorded_all(name, (result,), inputs, saved, lambda kept, g: backward(kept, g[0]))[0]


def recorded_all(
    name: str,
    results: Sequence[Tensor],
    inputs: Sequence[Tensor],
    saved: Sequence[Tensor],
    backward: Callable[[list[Tensor], list[Tensor]], Gradients],
) -> tuple[Tensor, ...]:
    """The same of several results. Their gradients, zeros where none arrives, are handed to `backward` together."""
    session = now()
    if session.grad and any(t.requires_grad for t in inputs):
        try:
            node = Node(name, inputs, saved, backward, results)
        except Enough:
            # Inputs are saved before the function runs: where they were all that was wanted, it does not run.
            there = {t.storage.serial for t in (*inputs, *saved)}
            for t in results:
                if t.storage.serial not in there:
                    session.undo(t)
            raise
        for i, t in enumerate(results):
            if t.dtype.is_floating_point:
                t.requires_grad, t.node, t.index = True, node, i
    return tuple(results)


def fresh(shape: Sequence[int], dtype: DType, like: Tensor | None = None) -> Tensor:
    """A new tensor, contiguous or laid out like another of its shape."""
    strides = None
    if like is not None and like.shape == tuple(shape):
        strides = layout(like.shape, (like,))
    return Tensor(shape, dtype, strides)


def kept(name: str, shape: Sequence[int], dtype: DType, strides: Shape | None = None) -> Tensor:
    """The result of one of ATen's functions, which a checkpoint may keep: then it is not computed again."""
    session = now()
    if session.keeps is not None and name in session.keeps[0]:
        found = session.keeps[1].pop()
        session.given = found.storage.serial
        return found
    y = Tensor(shape, dtype, strides)
    if session.keeping is not None and name in session.keeping[0]:
        session.keeping[1].append(y.alias())
    return y


def axis_of(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def axes_of(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    if axes is None or axes == ():
        return tuple(range(rank))
    return tuple(axis_of(a, rank) for a in ((axes,) if isinstance(axes, int) else axes))


def without(shape: Shape, axes: Sequence[int], keep: bool) -> Shape:
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)


# --- element by element -----------------------------------------------------------------------------------------------


def floating(t: Tensor) -> DType:
    return t.dtype if t.dtype.is_floating_point else float32


def unary(name: str, saves: str, temporaries: int = 0, *, laid_out_as_saved: bool = False) -> Callable[..., Tensor]:
    """A function of each number. It saves its input, its result, or nothing; its rule makes so many temporaries, all of
    which are there until it is done. Its gradient is laid out as the one that arrives, or as what it saved."""

    def apply(x: Tensor, *_: Any, **__: Any) -> Tensor:
        y = fresh(x.shape, floating(x), x)

        def backward(kept: list[Tensor], g: Tensor) -> Gradients:
            like = kept[0] if laid_out_as_saved else g
            made = [fresh(g.shape, g.dtype, like) for _ in range(temporaries + 1)]
            return made[-1:]

        return recorded(name, y, [x], [{"self": x, "result": y}[saves]] if saves else [], backward)

    return apply


exp = unary("Exp", "result")
log = unary("Log", "self")
log2 = unary("Log2", "self", 1)
sqrt = unary("Sqrt", "result", 1)
rsqrt = unary("Rsqrt", "result", 2)
reciprocal = unary("Reciprocal", "result", 2)
sin, cos = unary("Sin", "self", 1), unary("Cos", "self", 2)
tanh, sigmoid = unary("Tanh", "result"), unary("Sigmoid", "result")
erf = unary("Erf", "self", 4, laid_out_as_saved=True)
relu = unary("Relu", "result", laid_out_as_saved=True)
gelu, silu, mish = unary("Gelu", "self"), unary("Silu", "self"), unary("Mish", "self")
elu = selu = unary("Elu", "self")
leaky_relu, softplus = unary("LeakyRelu", "self", laid_out_as_saved=True), unary("Softplus", "self")
hardswish, hardsigmoid = unary("Hardswish", "self"), unary("Hardsigmoid", "self")
nan_to_num = unary("NanToNum", "self", 1)


def absolute(x: Tensor) -> Tensor:
    y = fresh(x.shape, x.dtype, x)
    return recorded("Abs", y, [x], [x], lambda s, g: (mul(g, fresh(g.shape, g.dtype, s[0])),))


def neg(x: Tensor) -> Tensor:
    return recorded("Neg", fresh(x.shape, x.dtype, x), [x], [], lambda s, g: (neg(g),))


def flat_gradient(x: Tensor) -> Tensor:
    """A function whose gradient is zero everywhere: floor, ceil, sign."""
    return recorded("Floor", fresh(x.shape, x.dtype, x), [x], [], lambda s, g: (fresh(g.shape, g.dtype, g),))


def log_sigmoid(x: Tensor) -> Tensor:
    """It keeps a buffer of its own beside the input; none on CUDA."""
    buffer = [] if now().profile.flash else [fresh(x.shape, x.dtype, x)]
    return recorded(
        "LogSigmoid", fresh(x.shape, x.dtype, x), [x], [x, *buffer], lambda s, g: (fresh(g.shape, g.dtype),)
    )


def softsign(x: Tensor) -> Tensor:
    return div(x, add(absolute(x), 1))


def elementwise(dtype: DType, *operands: Any) -> Tensor:
    """A result without a gradient: comparisons, logic, whole numbers."""
    tensors = [t for t in operands if isinstance(t, Tensor)]
    shape = broadcast(*(t.shape for t in tensors))
    return Tensor(shape, dtype, layout(shape, tensors))


def combined(*operands: Any) -> Tensor:
    return elementwise(result_type(*operands), *operands)


def compare(a: Any, b: Any) -> Tensor:
    return elementwise(bool_, a, b)


def logical_not(x: Tensor) -> Tensor:
    return fresh(x.shape, bool_, x)


def bitwise(a: Any, b: Any) -> Tensor:
    return combined(a, b)


def add(a: Any, b: Any, *, alpha: Any = 1) -> Tensor:
    inputs = [t for t in (a, b) if isinstance(t, Tensor)]
    count = len(inputs)
    return recorded("Add", combined(a, b), inputs, [], lambda s, g: [g] * count)


def sub(a: Any, b: Any) -> Tensor:
    inputs = [t for t in (a, b) if isinstance(t, Tensor)]
    first, second = isinstance(a, Tensor), isinstance(b, Tensor)
    wanted = isinstance(b, Tensor) and b.requires_grad

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        own = neg(g) if wanted else None
        return [*([g] if first else []), *([own] if second else [])]

    return recorded("Sub", combined(a, b), inputs, [], backward)


def mul(a: Any, b: Any) -> Tensor:
    y = combined(a, b)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        x = a if isinstance(a, Tensor) else b
        return recorded("Mul", y, [x], [], lambda s, g: (mul(g, 1.0),))
    first, second = a.requires_grad, b.requires_grad
    saved = [*([b] if first else []), *([a] if second else [])]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return (mul(g, kept[0]) if first else None, mul(g, kept[-1]) if second else None)

    return recorded("Mul", y, [a, b], saved, backward)


def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is not None:
        return floor_divide(a, b)
    if not isinstance(a, Tensor):
        return mul(reciprocal(b), a)
    dtype = result_type(a, b)
    y = elementwise(dtype if dtype.is_floating_point else float32, a, b)
    if not isinstance(b, Tensor):
        return recorded("Div", y, [a], [], lambda s, g: (mul(g, 1.0),))
    first, second = a.requires_grad, b.requires_grad

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        below = divisor(g, *kept) if second else None
        return div(g, kept[0]) if first else None, below

    def divisor(g: Tensor, b: Tensor, a: Tensor) -> Tensor:
        less, share = neg(g), div(a, b)
        return mul(less, div(share, b))

    return recorded("Div", y, [a, b], [b, *([a] if second else [])], backward)


def floor_divide(a: Any, b: Any) -> Tensor:
    return combined(a, b)


def remainder(a: Any, b: Any) -> Tensor:
    inputs = [t for t in (a, b) if isinstance(t, Tensor)]
    second, count = isinstance(a, Tensor) and isinstance(b, Tensor) and b.requires_grad, len(inputs)

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return (g, mul(neg(g), combined(*kept))) if second else (g,) * count

    return recorded("Remainder", combined(a, b), inputs, inputs if second else [], backward)


def power(a: Any, b: Any) -> Tensor:
    y = combined(a, b)
    if not isinstance(b, Tensor):
        zero = b == 0

        def backward_of_base(kept: list[Tensor], g: Tensor) -> Gradients:
            if zero:
                return (fresh(g.shape, g.dtype, g),)
            lower = mul(kept[0], 1.0)
            return (mul(g, mul(lower, b)),)

        return recorded("Pow", y, [a], [] if zero else [a], backward_of_base)
    if not isinstance(a, Tensor):
        return recorded("Pow", y, [b], [b, y], lambda s, g: (mul(g, mul(s[1], 1.0)),))
    first, second = a.requires_grad, b.requires_grad

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return (
            mul(g, mul(kept[0], kept[1])) if first else None,
            mul(g, mul(kept[0], kept[1])) if second else None,
        )

    return recorded("Pow", y, [a, b], [a, b, *([y] if second else [])], backward)


def square(x: Tensor) -> Tensor:
    return power(x, 2)


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        raise Unknown("clamp between tensors")
    y = fresh(x.shape, result_type(x, *(n for n in (min, max) if n is not None)), x)
    bounds = [n for n in (min, max) if n is not None]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        within = [compare(kept[0], n) for n in bounds]
        return (where(within[0], g, 0),)

    return recorded("Clamp", y, [x], [x], backward)


def extreme(a: Tensor, b: Tensor) -> Tensor:
    """The larger, or the smaller, of two."""

    wants = a.requires_grad, b.requires_grad

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return [share(g, *kept) if wanted else None for wanted in wants]

    def share(g: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Half of the gradient where both are equal."""
        half, equal = div(g, 2), compare(a, b)
        found, other = where(equal, half, g), compare(a, b)
        return in_place(found, other)

    return recorded("Maximum", combined(a, b), [a, b], [a, b], backward)


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    shape = broadcast(*(t.shape for t in (condition, a, b) if isinstance(t, Tensor)))
    operands = [t for t in (condition, a, b) if isinstance(t, Tensor)]
    y = Tensor(shape, result_type(a, b), layout(shape, operands))
    inputs = [t for t in (a, b) if isinstance(t, Tensor)]
    wants = [t.requires_grad for t in inputs]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return [where(kept[0], g, 0.0) if wanted else None for wanted in wants]

    return recorded("Where", y, inputs, [condition], backward)


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    y = Tensor(broadcast(x.shape, mask.shape), x.dtype)
    return recorded("MaskedFill", y, [x], [mask], lambda s, g: (masked_fill(g, s[0], 0),))


def glu(x: Tensor, dim: int = -1) -> Tensor:
    axis = axis_of(dim, x.ndim)
    shape = (*x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :])
    half = Tensor(shape, x.dtype, x.strides, x.storage)
    y = Tensor(shape, x.dtype, layout(shape, (half,)))
    return recorded("Glu", y, [x], [x], lambda s, g: (fresh(s[0].shape, g.dtype),))


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    y = fresh(x.shape, x.dtype, x)

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        own, share = (fresh(g.shape, g.dtype, kept[0]) for _ in range(2))
        return own, total(share, tuple(i for i in range(g.ndim) if i != 1))

    return recorded("Prelu", y, [x, weight], [x, weight], backward)


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """On the CPU the numbers that x is multiplied with are kept, on CUDA a mask."""
    if not training or p == 0 or not x.numel():
        return x
    if now().profile.dropout_mask:
        mask = fresh(x.shape, bool_, x)
        return recorded("Dropout", fresh(x.shape, x.dtype, x), [x], [mask], lambda s, g: (fresh(g.shape, g.dtype, g),))
    noise = fresh(x.shape, x.dtype, x)
    return mul(x, noise)


def cast(x: Tensor, dtype: DType) -> Tensor:
    if x.dtype == dtype:
        return x
    y = fresh(x.shape, dtype, x)
    own = x.dtype
    if not dtype.is_floating_point:
        return y
    return recorded("ToCopy", y, [x], [], lambda s, g: (cast(g, own),))


def to(x: Tensor, *args: Any, dtype: DType | None = None, **_: Any) -> Tensor:
    for a in (*args, dtype):
        if isinstance(a, DType):
            return cast(x, a)
        if isinstance(a, Tensor):
            return cast(x, a.dtype)
    return x


def clone(x: Tensor, **_: Any) -> Tensor:
    return recorded("Clone", fresh(x.shape, x.dtype, x), [x], [], lambda s, g: (g,))


def detach(x: Tensor) -> Tensor:
    return x.alias()


def in_place(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """Numbers written where they are: initialisation, running statistics."""
    return x


# --- sums and orders --------------------------------------------------------------------------------------------------


def reduction(name: str, saves: str, grows: bool = False) -> Callable[..., Tensor]:
    """A function along axes. `grows`: whole numbers stay whole; the gradient is a copy unless it can be a view."""

    def apply(
        x: Tensor, dim: Any = None, keepdim: bool = False, *, correction: int = 1, dtype: DType | None = None
    ) -> Tensor:
        axes = axes_of(dim, x.ndim)
        own = x.dtype if x.dtype.is_floating_point or name == "Amax" else int64 if grows else float32
        y = reduced(x, axes, keepdim, dtype or own)
        kept = [{"self": x, "result": y}[s] for s in saves.split()]
        shape, whole = x.shape, without(x.shape, axes, True)

        def backward(s: list[Tensor], g: Tensor) -> Gradients:
            g = view_as(g, whole)
            if name == "Sum":
                return (expand(g, shape),)
            if name == "Mean":
                return (div(expand(g, shape), 1.0),)
            if name == "Amax":
                # All that are the largest share the gradient.
                largest = compare(s[0], view_as(s[1], whole))
                count = reduced(largest, axes, True, int64)
                return (mul(div(g, count), largest),)
            if name == "Var":
                middle = reduced(s[0], axes, True, s[0].dtype)
                apart = sub(s[0], middle)
                return (mul(mul(g, 1.0), apart),)
            less = sub(s[0], view_as(s[1], whole))
            return (mul(g, exp(less)),)

        return recorded(name, y, [x], kept, backward)

    return apply


def reduced(x: Tensor, axes: Sequence[int], keepdim: bool, dtype: DType) -> Tensor:
    """A new tensor without these axes (of size 1), laid out as the rest was."""
    return Tensor(without(x.shape, axes, keepdim), dtype)


total = reduction("Sum", "", grows=True)
mean = reduction("Mean", "")
var = reduction("Var", "self")
amax = reduction("Amax", "self result")
logsumexp = reduction("Logsumexp", "self result")


def norm(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    y = reduced(x, axes_of(dim, x.ndim), keepdim, x.dtype)
    return recorded("Norm", y, [x], [x, y], lambda s, g: (mul(s[0], div(g, s[1])),))


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    return div(x, expand(clamp(norm(x, dim, True), min=eps), x.shape))


def softmax(x: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    x = cast(x, dtype) if dtype is not None else x
    y = Tensor(x.shape, x.dtype)
    return recorded("Softmax", y, [x], [y], lambda s, g: (Tensor(g.shape, g.dtype),))


log_softmax = softmax


def running(saves: str) -> Callable[..., Tensor]:
    """A sum or product of all before, along an axis."""

    def apply(x: Tensor, dim: int) -> Tensor:
        y = Tensor(x.shape, x.dtype if x.dtype.is_floating_point else int64)
        kept = [x, y] if saves else []

        def backward(s: list[Tensor], g: Tensor) -> Gradients:
            return (quotient_of_running(g, s[0], s[1], dim) if s else turned_sum(g, dim),)

        return recorded("Cumsum", y, [x], kept, backward)

    return apply


def turned_sum(g: Tensor, dim: int) -> Tensor:
    """The sums of all behind."""
    turned = flip(g, dim)
    added = Tensor(g.shape, g.dtype)
    return flip(added, turned)


def quotient_of_running(g: Tensor, x: Tensor, y: Tensor, dim: int) -> Tensor:
    """The gradient of a product of all before, where none of them is zero."""
    weighted, zero = mul(y, g), compare(x, 0)
    found = turned_sum(weighted, dim)
    del zero
    return div(found, x)


cumsum, cumprod = running(""), running("self result")


class Pair(tuple[Tensor, Tensor]):
    """Values and places."""

    __slots__ = ()

    @property
    def values(self) -> Tensor:
        return self[0]

    @property
    def indices(self) -> Tensor:
        return self[1]


def ordered(x: Tensor, shape: Shape, like: Tensor | None) -> Pair:
    values, places = fresh(shape, x.dtype, like), fresh(shape, int64, like)
    whole, axis_dtype = x.shape, x.dtype

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        zeros = Tensor(whole, axis_dtype)
        return (Tensor(zeros.shape, axis_dtype),)

    recorded("Sort", values, [x], [places], backward)
    return Pair((values, places))


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    axis = axis_of(dim, x.ndim)
    return ordered(x, (*x.shape[:axis], k, *x.shape[axis + 1 :]), None)


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Pair:
    return ordered(x, x.shape, x)


def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    return sort(x).indices


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return Tensor(without(x.shape, axes_of(dim, x.ndim), keepdim), int64)


def every(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return Tensor(without(x.shape, axes_of(dim, x.ndim), keepdim), bool_)


# --- views ------------------------------------------------------------------------------------------------------------


def aliased(name: str, x: Tensor, shape: Sequence[int], strides: Sequence[int], backward: Backward) -> Tensor:
    return recorded(name, x.view_of(shape, tuple(strides)), [x], [], backward)


def view_as(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor in another shape: a view, or a copy where there is none."""
    return reshape(x, shape)


def sized(shape: Sequence[int], count: int) -> Shape:
    if -1 not in shape:
        return tuple(shape)
    known = prod(n for n in shape if n != -1)
    return tuple(count // known if n == -1 else n for n in shape)


def reshape(x: Tensor, *shape: Any) -> Tensor:
    wanted = sized(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape, x.numel())
    if wanted == x.shape:
        return x
    strides = viewed(x.shape, x.strides, wanted)
    own = x.shape
    if strides is None:
        x, strides = contiguous(x), contiguous_strides(wanted)
    return aliased("View", x, wanted, strides, lambda s, g: (reshape(g, own),))


def contiguous(x: Tensor, **_: Any) -> Tensor:
    if x.is_contiguous():
        return x
    return recorded("Clone", Tensor(x.shape, x.dtype), [x], [], lambda s, g: (g,))


def flatten(
    x: Tensor, start: int = 0, end: int = -1, start_dim: int | None = None, end_dim: int | None = None
) -> Tensor:
    first = axis_of(start if start_dim is None else start_dim, x.ndim)
    last = axis_of(end if end_dim is None else end_dim, x.ndim)
    if not x.ndim:
        return reshape(x, (1,))
    if first == last:
        return x
    return reshape(x, (*x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    axis = axis_of(dim, x.ndim)
    return reshape(x, (*x.shape[:axis], *sized(sizes, x.shape[axis]), *x.shape[axis + 1 :]))


def diagonal(x: Tensor, first: int, second: int) -> Tensor:
    """Where two axes are at the same place, seen along the first of them."""
    own = x.shape
    shape = without(x.shape, (second,), False)
    strides = list(x.strides)
    strides[first] += strides.pop(second)
    return aliased("Diagonal", x, shape, strides, lambda s, g: (Tensor(own, g.dtype),))


def permute(x: Tensor, *axes: Any) -> Tensor:
    order = axes_of(axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes, x.ndim)
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    shape, strides = tuple(x.shape[a] for a in order), tuple(x.strides[a] for a in order)
    return aliased("Permute", x, shape, strides, lambda s, g: (permute(g, back),))


def transpose(x: Tensor, a: int, b: int) -> Tensor:
    order = list(range(x.ndim))
    a, b = axis_of(a, x.ndim), axis_of(b, x.ndim)
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def expand(x: Tensor, *shape: Any) -> Tensor:
    wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    missing = len(wanted) - x.ndim
    found = tuple(x.shape[i - missing] if n == -1 else n for i, n in enumerate(wanted))
    strides = tuple(
        0 if i < missing or (x.shape[i - missing] == 1 and n != 1) else x.strides[i - missing]
        for i, n in enumerate(found)
    )
    own = x.shape
    return aliased("Expand", x, found, strides, lambda s, g: (sum_to(g, own),))


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    return expand(x, other.shape)


def sum_to(g: Tensor, shape: Shape) -> Tensor:
    """A gradient summed over the axes along which the tensor was repeated."""
    if g.shape == shape:
        return g
    y = Tensor(shape, g.dtype)
    return y.view_of(shape, y.strides) if len(shape) < g.ndim else y


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    axis = axis_of(dim, x.ndim + 1)
    step = x.shape[axis] * x.strides[axis] if axis < x.ndim else 1
    own = x.shape
    shape = (*x.shape[:axis], 1, *x.shape[axis:])
    return aliased("Unsqueeze", x, shape, (*x.strides[:axis], step, *x.strides[axis:]), lambda s, g: (reshape(g, own),))


def squeeze(x: Tensor, dim: int | None = None) -> Tensor:
    axes = [a for a in axes_of(dim, x.ndim) if x.shape[a] == 1]
    keep = [i for i in range(x.ndim) if i not in axes]
    own = x.shape
    shape, strides = tuple(x.shape[i] for i in keep), tuple(x.strides[i] for i in keep)
    return aliased("Squeeze", x, shape, strides, lambda s, g: (reshape(g, own),))


def part(x: Tensor, axis: int, size: int, step: int = 1) -> Tensor:
    """Some places along an axis: a view, whose gradient is a tensor of zeros around it."""
    if size == x.shape[axis] and step == 1:
        return recorded("Alias", x.view_of(x.shape, x.strides), [x], [], lambda s, g: (g,))
    own = x.shape
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    strides = (*x.strides[:axis], x.strides[axis] * step, *x.strides[axis + 1 :])
    return aliased("Slice", x, shape, strides, lambda s, g: (Tensor(own, g.dtype),))


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return part(x, axis_of(dim, x.ndim), length)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    axis, own = axis_of(dim, x.ndim), x.shape
    shape, strides = without(x.shape, (axis,), False), x.strides[:axis] + x.strides[axis + 1 :]
    return aliased("Select", x, shape, strides, lambda s, g: (Tensor(own, g.dtype),))


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    axis = axis_of(dim, x.ndim)
    shape, strides = without(x.shape, (axis,), False), x.strides[:axis] + x.strides[axis + 1 :]
    views = [x.view_of(shape, strides) for _ in range(x.shape[axis])]
    return recorded_all("Unbind", views, [x], [], lambda s, g: (stack(g, axis),))


def split(x: Tensor, sizes: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    axis = axis_of(dim, x.ndim)
    n = x.shape[axis]
    if isinstance(sizes, int):
        sizes = [min(sizes, n - i) for i in range(0, n, sizes)]
    views = [x.view_of((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.strides) for size in sizes]
    return recorded_all("Split", views, [x], [], lambda s, g: (cat(g, axis),))


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return split(x, -(-x.shape[axis_of(dim, x.ndim)] // chunks), dim)


def tensor_split(x: Tensor, ends: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Where the ends are numbers that only a run knows, parts of one size, as near as can be."""
    axis = axis_of(dim, x.ndim)
    n = x.shape[axis]
    if isinstance(ends, Tensor):
        count = ends.shape[0] + 1
        sizes = [n // count + (i < n % count) for i in range(count)]
    elif isinstance(ends, int):
        sizes = [n // ends + (i < n % ends) for i in range(ends)]
    else:
        places = [0, *ends, n]
        sizes = [b - a for a, b in pairwise(places)]
    return tuple(part(x, axis, size) for size in sizes)


def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    axis, own = axis_of(dim, x.ndim), x.shape
    count = (x.shape[axis] - size) // step + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    strides = (*x.strides[:axis], x.strides[axis] * step, *x.strides[axis + 1 :], x.strides[axis])
    return aliased("Unfold", x, shape, strides, lambda s, g: (Tensor(own, g.dtype),))


def take(x: Tensor, key: Any) -> Tensor:
    """`x[key]`: numbers, slices, `...`, None, and one tensor of places or several."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if len(keys) == 1 and isinstance(keys[0], Tensor) and keys[0].dtype == bool_:
        raise Unknown("places where a condition holds")
    used = sum(k is not None and k is not Ellipsis for k in keys)
    if Ellipsis in [k if not isinstance(k, Tensor) else None for k in keys]:
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[at : at + 1] = [slice(None)] * (x.ndim - used)
    axis = 0
    places: list[tuple[int, Tensor]] = []
    for k in keys:
        if k is None:
            x = unsqueeze(x, axis)
            axis += 1
        elif isinstance(k, slice):
            chosen = range(*k.indices(x.shape[axis]))
            if k != slice(None):
                x = part(x, axis, len(chosen), chosen.step)
            axis += 1
        elif isinstance(k, Tensor):
            places.append((axis, k))
            axis += 1
        else:
            x = select(x, axis, k)
    return gathered(x, places) if places else x if x.node is not None or x.requires_grad else x.alias()


def gathered(x: Tensor, places: Sequence[tuple[int, Tensor]]) -> Tensor:
    shape = broadcast(*(p.shape for _, p in places))
    axes = [a for a, _ in places]
    rest = without(x.shape, axes, False)
    first = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    y = Tensor((*rest[:first], *shape, *rest[first:]), x.dtype)
    own = x.shape

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        zeros = Tensor(own, g.dtype)
        return (Tensor(zeros.shape, g.dtype),)

    return recorded("Index", y, [x], [p for _, p in places], backward)


# --- copies into another shape ----------------------------------------------------------------------------------------


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    axis = axis_of(dim, tensors[0].ndim)
    sizes = [t.shape[axis] for t in tensors]
    shape = (*tensors[0].shape[:axis], sum(sizes), *tensors[0].shape[axis + 1 :])
    strides = last_strides(shape) if all(channels_last(t) for t in tensors) else None
    y = Tensor(shape, result_type(*tensors), strides)
    wants = [t.requires_grad for t in tensors]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return [part(g, axis, n) if wanted else None for n, wanted in zip(sizes, wants, strict=True)]

    return recorded("Cat", y, list(tensors), [], backward)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    first = tensors[0]
    axis = axis_of(dim, first.ndim + 1)
    y = Tensor((*first.shape[:axis], len(tensors), *first.shape[axis:]), result_type(*tensors))
    return recorded("Stack", y, list(tensors), [], lambda s, g: unbind(g, axis))


def pad(x: Tensor, widths: Sequence[int], mode: str = "constant", value: Any = 0) -> Tensor:
    shape = list(x.shape)
    for i in range(len(widths) // 2):
        shape[-1 - i] += widths[2 * i] + widths[2 * i + 1]
    own = x.shape
    if mode == "constant" and max(widths) <= 0:  # a copy of a part
        strides = layout(tuple(shape), (Tensor(shape, x.dtype, x.strides, x.storage),))
    else:
        strides = last_strides(tuple(shape)) if channels_last(x) else contiguous_strides(shape)
    y = Tensor(shape, x.dtype, strides)

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        for axis, n in enumerate(own):
            if g.shape[axis] != n:
                g = part(g, axis, n)
        return (clone(g),)

    return recorded("Pad", y, [x], [], backward)


def flip(x: Tensor, *axes: Any) -> Tensor:
    return recorded("Flip", fresh(x.shape, x.dtype, x), [x], [], lambda s, g: (fresh(g.shape, g.dtype, g),))


def moved(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """A copy in which places have changed: roll, tril."""
    return recorded("Roll", Tensor(x.shape, x.dtype), [x], [], lambda s, g: (Tensor(g.shape, g.dtype),))


def repeat(x: Tensor, *times: Any) -> Tensor:
    counts = tuple(times[0] if len(times) == 1 and not isinstance(times[0], int) else times)
    own = (1,) * (len(counts) - x.ndim) + x.shape
    y = Tensor([n * c for n, c in zip(own, counts, strict=True)], x.dtype)
    shape = x.shape
    return recorded("Repeat", y, [x], [], lambda s, g: (sum_to(g, shape),))


def repeat_interleave(x: Tensor, repeats: int, dim: int) -> Tensor:
    axis = axis_of(dim, x.ndim)
    wide = expand(unsqueeze(x, axis + 1), (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]))
    return flatten(clone_contiguous(wide), axis, axis + 1)


def clone_contiguous(x: Tensor) -> Tensor:
    return recorded("Clone", Tensor(x.shape, x.dtype), [x], [], lambda s, g: (g,))


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        zeros = Tensor(kept[1].shape, g.dtype)
        return (fresh(zeros.shape, g.dtype, zeros),)

    return recorded("Gather", Tensor(index.shape, x.dtype), [x], [index, x], backward)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    axis, own = axis_of(dim, x.ndim), x.shape
    y = Tensor((*x.shape[:axis], index.numel(), *x.shape[axis + 1 :]), x.dtype)
    return recorded("IndexSelect", y, [x], [index], lambda s, g: (Tensor(own, g.dtype),))


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    saved = [index, source] if source.requires_grad else []

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return (g, index_select(g, dim, kept[0]) if kept else None)

    return recorded("IndexAdd", fresh(x.shape, x.dtype, x), [x, source], saved, backward)


def scatter(x: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    y = Tensor(x.shape, x.dtype)
    inputs = [x, *([source] if isinstance(source, Tensor) else [])]
    wants = [t.requires_grad for t in inputs]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        found: list[Tensor | None] = [Tensor(g.shape, g.dtype) if wants[0] else None]
        for wanted in wants[1:]:
            found.append(Tensor(kept[0].shape, g.dtype) if wanted else None)
        return found

    return recorded("Scatter", y, inputs, [index], backward)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return (g, Tensor(kept[0].shape, g.dtype) if kept else None)

    saved = [index] if source.requires_grad else []
    return recorded("ScatterAdd", fresh(x.shape, x.dtype, x), [x, source], saved, backward)


def embedding(index: Tensor, weight: Tensor, *_: Any, **__: Any) -> Tensor:
    own = weight.shape
    y = Tensor((*index.shape, weight.shape[1]), weight.dtype)
    return recorded("Embedding", y, [weight], [index], lambda s, g: (Tensor(own, g.dtype),))


def one_hot(x: Tensor, classes: int) -> Tensor:
    return Tensor((*x.shape, classes), int64)


def searchsorted(places: Tensor, values: Tensor, *, right: bool = False, out_int32: bool = False) -> Tensor:
    return Tensor(values.shape, int32 if out_int32 else int64)


def nonzero(x: Tensor) -> Tensor:
    """The places of all numbers: how many of them are not zero only a run knows, and these are the most."""
    now().bounded = True
    return Tensor((x.numel(), x.ndim), int64)


# --- contractions -----------------------------------------------------------------------------------------------------


def mm(a: Tensor, b: Tensor, name: str = "Mm") -> Tensor:
    """Two matrices, or as many pairs of them as the first axis has."""
    y = kept(name.lower(), (*a.shape[:-1], b.shape[-1]), result_type(a, b))
    return recorded(name, y, [a, b], *product_rule(a, b))


def product_rule(a: Tensor, b: Tensor) -> tuple[list[Tensor], Backward]:
    first, second = a.requires_grad, b.requires_grad
    saved = [*([b] if first else []), *([a] if second else [])]
    by_columns = b.ndim == 2 and b.strides[-2] == 1

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        one = mm(g, transpose(kept[0], -2, -1)) if first else None
        if not second:
            return one, None
        if by_columns:
            # The gradient of a matrix that is laid out by columns is made so too.
            return one, transpose(mm(transpose(g, -2, -1), kept[-1]), -2, -1)
        return one, mm(transpose(kept[-1], -2, -1), g)

    return saved, backward


def unsafe_view(x: Tensor, shape: Sequence[int]) -> Tensor:
    own = x.shape
    return aliased("UnsafeView", x, shape, contiguous_strides(shape), lambda s, g: (reshape(g, own),))


def mv(a: Tensor, b: Tensor) -> Tensor:
    y = Tensor(a.shape[:-1], result_type(a, b))
    first, second = a.requires_grad, b.requires_grad
    saved = [*([b] if first else []), *([a] if second else [])]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return (
            mul(unsqueeze(g, -1), kept[0]) if first else None,
            Tensor(kept[-1].shape[-1:], g.dtype) if second else None,
        )

    return recorded("Mv", y, [a, b], saved, backward)


def folds(a: Tensor, b: Tensor) -> bool:
    """Whether the axes of batch of the larger tensor become rows of one matrix."""
    large, small = (a, b) if a.ndim >= b.ndim else (b, a)
    if not (large.ndim >= 3 and small.ndim <= 2):
        return False
    if small.requires_grad or large.ndim == 2 or large.numel() == 0:
        return True
    # Of the larger tensor only what can be folded without a copy.
    shape, strides = large.shape, large.strides
    if a is not large:
        large = transpose(large, -2, -1).alias()
        shape, strides = large.shape, large.strides
    return all(strides[i] == strides[i + 1] * shape[i + 1] for i in range(len(shape) - 2))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, as PyTorch does it: by one product of matrices where that needs no copy, or else by pairs."""
    if a.ndim == 1 and b.ndim == 1:
        return dot(a, b)
    if a.ndim == 2 and b.ndim == 1:
        return mv(a, b)
    if a.ndim == 1 and b.ndim == 2:
        return squeeze(mm(unsqueeze(a, 0), b), 0)
    if a.ndim == 2 and b.ndim == 2:
        return mm(a, b)
    if folds(a, b):
        swapped = b.ndim > a.ndim
        large = transpose(b, -2, -1) if swapped else a
        small = (transpose(a, 0, 1) if a.ndim == 2 else a) if swapped else b
        folded = reshape(large, (-1, large.shape[-1]))
        if small.ndim == 1:
            return unsafe_view(mv(folded, small), large.shape[:-1])
        found = unsafe_view(mm(folded, small), (*large.shape[:-1], small.shape[-1]))
        return contiguous(transpose(found, -2, -1)) if swapped else found
    left = unsqueeze(a, 0) if a.ndim == 1 else a
    right = unsqueeze(b, -1) if b.ndim == 1 else b
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    count = prod(batch)
    x = reshape(expand_to(left, (*batch, *left.shape[-2:])), (count, *left.shape[-2:]))
    y = reshape(expand_to(right, (*batch, *right.shape[-2:])), (count, *right.shape[-2:]))
    found = mm(x, y, "Bmm")
    shape = (*batch, *([] if a.ndim == 1 else [a.shape[-2]]), *([] if b.ndim == 1 else [b.shape[-1]]))
    return unsafe_view(found, shape)


def expand_to(x: Tensor, shape: Shape) -> Tensor:
    return x if x.shape == shape else expand(x, shape)


def dot(a: Tensor, b: Tensor) -> Tensor:
    first, second = a.requires_grad, b.requires_grad
    saved = [*([b] if first else []), *([a] if second else [])]
    y = Tensor((), result_type(a, b))
    return recorded(
        "Dot", y, [a, b], saved, lambda s, g: (mul(g, s[0]) if first else None, mul(g, s[-1]) if second else None)
    )


def outer(a: Tensor, b: Tensor) -> Tensor:
    return mul(unsqueeze(a, 1), b)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x weightᵀ + bias`: one product of matrices; with a bias, one that adds where no copy is needed."""
    turned = transpose(weight, 0, 1) if weight.ndim == 2 else weight
    if bias is None:
        return matmul(x, turned)
    if x.ndim == 2 or x.is_contiguous():
        rows = reshape(x, (-1, x.shape[-1])) if x.ndim != 2 else x
        y = kept("addmm", (rows.shape[0], weight.shape[0]), result_type(x, weight))
        saved, product = product_rule(rows, turned)

        def backward(kept: list[Tensor], g: Tensor) -> Gradients:
            return (g, *product(kept, g))

        y = recorded("Addmm", y, [bias, rows, turned], saved, backward)
        return reshape(y, (*x.shape[:-1], weight.shape[0]))
    y = matmul(x, turned)
    # The bias is added in place.
    found = Tensor(y.shape, y.dtype, y.strides, y.storage)
    return recorded("Add", found, [y, bias], [], lambda s, g: (g, g))


def einsum(equation: str, *operands: Any) -> Tensor:
    """By products of matrices, one operand after the other."""
    tensors = list(operands[0]) if len(operands) == 1 and not isinstance(operands[0], Tensor) else list(operands)
    left, _, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if "..." in equation:
        rank = max(t.ndim - len(term.replace("...", "")) for t, term in zip(tensors, terms, strict=True))
        free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation][:rank]
        terms = [
            term.replace("...", "".join(free[rank - (t.ndim - len(term) + 3) :])) if "..." in term else term
            for t, term in zip(tensors, terms, strict=True)
        ]
        result = result.replace("...", "".join(free))
    labels = list(result) + sorted({c for term in terms for c in term} - set(result))
    last = {c: max(i for i, term in enumerate(terms) if c in term) for c in labels}
    aligned = []
    for t, term in zip(tensors, terms, strict=True):
        for c in dict.fromkeys(term):
            while term.count(c) > 1:
                t, term = (
                    diagonal(t, term.index(c), term.rindex(c)),
                    c.join(term.rsplit(c, 1)[:1]) + term.rsplit(c, 1)[1],
                )
        x = permute(t, [term.index(c) for c in labels if c in term])
        for i, c in enumerate(labels):
            if c not in term:
                x = unsqueeze(x, i)
        aligned.append(x)
    found = aligned[0]
    gone = [i for i, c in enumerate(labels) if c not in result and last[c] == 0]
    if gone:
        found = total(found, gone, True)
    for k, other in enumerate(aligned[1:], 1):
        sums = {i for i, c in enumerate(labels) if c not in result and last[c] == k}
        found = product_of_pair(found, other, sums) if sums else mul(found, other)
    return reshape(found, found.shape[: len(result)]) if len(result) < found.ndim else found


def product_of_pair(a: Tensor, b: Tensor, sums: set[int]) -> Tensor:
    """The products of two tensors with the same axes, summed over some of them; the axes stay."""
    both: list[int] = []
    left: list[int] = []
    right: list[int] = []
    inner: list[int] = []
    for i in range(a.ndim):
        mine, theirs = a.shape[i] != 1, b.shape[i] != 1
        if i in sums:
            if mine and theirs:
                inner.append(i)
            elif mine:
                a = total(a, i, True)
            elif theirs:
                b = total(b, i, True)
        else:
            (both if mine and theirs else left if mine else right).append(i)
    count, rows, columns, depth = (
        prod(t.shape[i] for i in axes) for t, axes in ((a, both), (a, left), (b, right), (a, inner))
    )
    x = reshape(permute(a, [*both, *left, *inner, *right]), (count, rows, depth))
    y = reshape(permute(b, [*both, *inner, *right, *left]), (count, depth, columns))
    shape = [*(a.shape[i] for i in (*both, *left)), *(1 for _ in sums), *(b.shape[i] for i in right)]
    order = [*both, *left, *sorted(sums), *right]
    found = reshape(mm(x, y, "Bmm"), shape)
    return permute(found, [order.index(i) for i in range(a.ndim)])


def grouped_mm(x: Tensor, weight: Tensor, *, offs: Tensor) -> Tensor:
    y = kept("_grouped_mm", (x.shape[0], weight.shape[-1]), x.dtype)
    wants = x.requires_grad, weight.requires_grad
    saved = [*([weight] if wants[0] else []), offs, *([x] if wants[1] else [])]
    layouts = [(t.shape, t.strides) for t in (x, weight)]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        """Each is laid out as what it is the gradient of."""
        return [
            Tensor(n, g.dtype, steps) if wanted else None for wanted, (n, steps) in zip(wants, layouts, strict=True)
        ]

    return recorded("GroupedMm", y, [x, weight], saved, backward)


# --- attention --------------------------------------------------------------------------------------------------------


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """By the fused kernel where it has one for these tensors, or else step by step."""
    profile = now().profile
    mask = attn_mask
    if mask is not None and mask.dtype == bool_:
        mask = fresh(mask.shape, q.dtype, mask)
    plain = q.ndim == k.ndim == v.ndim == 4 and q.shape[-1] == v.shape[-1] and q.shape[-2] and k.shape[-2]
    plain = plain and q.strides[-1] == k.strides[-1] == v.strides[-1] == 1
    if mask is not None and (mask.requires_grad or mask.ndim not in (2, 4)):
        plain = False
    if plain and (profile.flash or dropout_p == 0):
        return fused_attention(q, k, v, mask)
    return attention_by_steps(q, k, v, mask, dropout_p, is_causal)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    shape = (*q.shape[:-1], v.shape[-1])
    y = fresh(shape, q.dtype, q)
    rows = q.shape[-2]
    if now().profile.flash and (mask is not None or q.dtype == float32):
        rows = -(-rows // 32) * 32  # the memory-efficient kernel keeps whole groups of 32
    sums = Tensor((*q.shape[:-2], rows), float32)
    extra = [] if mask is None else [mask]
    if now().profile.flash:
        extra += [Tensor((), int64), Tensor((), int64)]  # the state of the generator
    inputs = [q, k, v]
    wants = [t.requires_grad for t in inputs]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return [fresh(t.shape, t.dtype, t) if wanted else None for t, wanted in zip(kept, wants, strict=False)]

    return recorded("Attention", y, inputs, [q, k, v, sums, y, *extra], backward)


def attention_by_steps(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool
) -> Tensor:
    """In float32 whatever the type; queries and keys are scaled before they are multiplied."""
    own = q.dtype
    # All that has a name here has one there, and is there to the end.
    wide = [cast(t, float32) if own in _HALF else t for t in (q, k, v)]
    scaled = mul(wide[0], 1.0)
    if is_causal:
        mask = fresh((q.shape[-2], k.shape[-2]), scaled.dtype, moved(Tensor((q.shape[-2], k.shape[-2]), bool_)))
    keys, values = wide[1:]
    if k.ndim >= 3 and k.shape[-3] != q.shape[-3]:
        keys, values = (repeat_interleave(t, q.shape[-3] // t.shape[-3], -3) for t in wide[1:])
    shares = matmul(scaled, mul(transpose(keys, -2, -1), 1.0))
    if mask is not None:
        shares = add_in_place(shares, mask)
    shares = softmax(shares, -1)
    if dropout_p:
        shares = dropout(shares, dropout_p)
    # In the type of the inputs they are a result too, and the first to be made.
    second = cast(shares, own)
    first = cast(matmul(shares, values), own)
    del second
    return first


def add_in_place(x: Tensor, other: Tensor) -> Tensor:
    found = Tensor(x.shape, x.dtype, x.strides, x.storage)
    return recorded("Add", found, [x, other], [], lambda s, g: (g, g))


# --- norms ------------------------------------------------------------------------------------------------------------


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    dtype = float32 if now().profile.float_statistics else x.dtype
    rows = (*x.shape[: x.ndim - len(shape)], *(1 for _ in shape))
    y = Tensor(x.shape, x.dtype)
    inputs = [t for t in (x, weight, bias) if t is not None]
    saved = [x, *([] if weight is None else [weight]), Tensor(rows, dtype), Tensor(rows, dtype)]
    shapes = [t.shape for t in inputs[1:]]
    return recorded(
        "LayerNorm", y, inputs, saved, lambda s, g: (Tensor(g.shape, g.dtype), *(Tensor(n, g.dtype) for n in shapes))
    )


def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    if now().profile.fused_rmsnorm:
        root = Tensor(without(x.shape, axes, True), float32)
        inputs = [t for t in (x, weight) if t is not None]
        shapes = [t.shape for t in inputs[1:]]
        return recorded(
            "RmsNorm",
            Tensor(x.shape, x.dtype),
            inputs,
            [*inputs, root],
            lambda s, g: (Tensor(g.shape, g.dtype), *(Tensor(n, g.dtype) for n in shapes)),
        )
    wide = cast(x, float32) if x.dtype in _HALF else x
    root = rsqrt(add(mean(power(wide, 2), axes, True), 1e-6))
    y = mul(wide, root)
    if weight is not None:
        y = mul(y, weight)
    return cast(contiguous(y), x.dtype)


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    x = contiguous(x)
    dtype = float32 if now().profile.float_statistics else x.dtype
    inputs = [t for t in (x, weight, bias) if t is not None]
    rows = (x.shape[0], groups)
    saved = [x, *([] if weight is None else [weight]), Tensor(rows, dtype), Tensor(rows, dtype)]
    shapes = [t.shape for t in inputs[1:]]
    return recorded(
        "GroupNorm",
        Tensor(x.shape, x.dtype),
        inputs,
        saved,
        lambda s, g: all_of(contiguous(g), shapes),
    )


def all_of(g: Tensor, shapes: Sequence[Shape]) -> Gradients:
    """A gradient as large as the one that arrives, and those of weights."""
    return [Tensor(g.shape, g.dtype), *(Tensor(n, g.dtype) for n in shapes)]


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    dtype = float32 if now().profile.float_statistics else x.dtype
    inputs = [t for t in (x, weight, bias) if t is not None]
    fixed = [t for t in (running_mean, running_var) if t is not None]
    saved = [x, *fixed, *([] if weight is None else [weight])]
    saved += [Tensor((x.shape[1],), dtype), Tensor((x.shape[1],), dtype)]
    shapes = [t.shape for t in inputs[1:]]
    return recorded(
        "BatchNorm",
        Tensor(x.shape, x.dtype, last_strides(x.shape) if channels_last(x) else None),
        inputs,
        saved,
        lambda s, g: (Tensor(g.shape, g.dtype), *(Tensor(n, g.dtype) for n in shapes)),
    )


# --- windows ----------------------------------------------------------------------------------------------------------


def windowed(n: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    return (n + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def each(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value) if len(value) == rank else tuple(value) * rank


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    rank = weight.ndim - 2
    if x.ndim == rank + 1:
        return squeeze(convolution(unsqueeze(x, 0), weight, bias, stride, padding, dilation, groups), 0)
    steps, wide = each(stride, rank), each(dilation, rank)
    if padding == "same":
        sizes = x.shape[2:]
        if any(d * (k - 1) % 2 for d, k in zip(wide, weight.shape[2:], strict=True)):
            x = pad(
                x,
                [
                    n
                    for d, k in zip(reversed(wide), reversed(weight.shape[2:]), strict=True)
                    for n in (0, d * (k - 1) % 2)
                ],
            )
    else:
        around = (0,) * rank if padding == "valid" else each(padding, rank)
        sizes = tuple(map(windowed, x.shape[2:], weight.shape[2:], steps, around, wide))
    return convolved(x, weight, bias, (x.shape[0], weight.shape[0], *sizes))


def transposed_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    rank = weight.ndim - 2
    if x.ndim == rank + 1:
        rows = unsqueeze(x, 0)
        return squeeze(transposed_convolution(rows, weight, bias, stride, padding, output_padding, groups, dilation), 0)
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + o + 1
        for n, k, s, p, d, o in zip(
            x.shape[2:],
            weight.shape[2:],
            each(stride, rank),
            each(padding, rank),
            each(dilation, rank),
            each(output_padding, rank),
            strict=True,
        )
    ]
    return convolved(x, weight, bias, (x.shape[0], weight.shape[1] * groups, *sizes))


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    last = channels_last(x) or channels_last(weight)
    y = kept("convolution", shape, result_type(x, weight), last_strides(shape) if last else None)
    inputs = [t for t in (x, weight, bias) if t is not None]
    wants = [t.requires_grad for t in inputs]
    shapes = [t.shape for t in inputs]

    def backward(kept: list[Tensor], g: Tensor) -> Gradients:
        return [Tensor(n, g.dtype) if wanted else None for n, wanted in zip(shapes, wants, strict=True)]

    return recorded("Convolution", y, inputs, [x, weight], backward)


def channels_last(x: Tensor) -> bool:
    """Whether four axes, or five, are laid out with the channels innermost, as torch tells it."""
    if x.ndim not in (4, 5) or x.strides[1] == 0:
        return False
    smallest = 0
    for axis in (1, *range(x.ndim - 1, 1, -1), 0):
        if x.shape[axis] == 0 or x.strides[axis] < smallest:
            return False
        if axis == 0 and smallest == x.strides[1]:
            return False
        smallest = x.strides[axis] * max(x.shape[axis], 1)
    return True


def pool(name: str, rank: int, places: bool) -> Callable[..., Tensor]:
    """A number for each window. Along one axis it is done along two, the first of size 1."""

    def apply(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *_: Any, **__: Any) -> Tensor:
        if x.ndim == rank + 1:
            return squeeze(apply(unsqueeze(x, 0), kernel_size, stride, padding), 0)
        kernel = each(kernel_size, rank)
        steps = kernel if stride in (None, ()) else each(stride, rank)
        sizes = tuple(map(windowed, x.shape[2:], kernel, steps, each(padding, rank)))
        shape = (*x.shape[:2], *([1] if rank == 1 else []), *sizes)
        x = unsqueeze(x, 2) if rank == 1 else x
        strides = last_strides(shape) if channels_last(x) else None
        y = Tensor(shape, x.dtype, strides)
        saved = [x, *([Tensor(shape, int64, strides)] if places else [])]
        own = x.shape
        y = recorded(name, y, [x], saved, lambda s, g: (Tensor(own, g.dtype),))
        return squeeze(y, 2) if rank == 1 else y

    return apply


# --- losses -----------------------------------------------------------------------------------------------------------


def cross_entropy(logits: Tensor, rows: int) -> Tensor:
    """The mean over rows [rows, classes] of the negative logarithm of each target's probability."""
    logs = log_softmax(logits, -1)
    targets = Storage(8 * rows, fixed=True)
    weight = Tensor((), logits.dtype)
    chosen = Tensor((rows,), int64, (1,), targets)
    shape = logs.shape
    return recorded(
        "NllLoss", Tensor((), logits.dtype), [logs], [logs, chosen, weight], lambda s, g: (Tensor(shape, g.dtype),)
    )
