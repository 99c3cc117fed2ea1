"""Convolutions and poolings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from archdsl.frozen import Frozen
from archdsl.ir.cost import Amount, Cost, contracted, elements, times
from archdsl.ir.dims import Num, Shape, add, binary, floordiv, free_names, num, product, shape_text, sub
from archdsl.ir.graph import OpNode, Weight
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
)
from archdsl.ir.static import ListValue, format_value
from archdsl.ops._common import equals, number
from archdsl.ops._onnx import END, with_kernel

Options = Mapping[str, Any]

# --- sizes --------------------------------------------------------------------------------------------------------


def plus(a: Num, b: Num) -> Num:
    """The sum of a size and a static number, written `a - 1` rather than `a + -1`."""
    if free_names(b.expr):
        return binary("+", a, b)
    return binary("-", a, num(-int(b))) if int(b) < 0 else binary("+", a, num(int(b)))


def minus(a: Num, b: Num) -> Num:
    """The difference of two static numbers; a number where no name is involved."""
    return binary("-", a, b) if free_names(a.expr) or free_names(b.expr) else num(int(a) - int(b))


def halves(a: Num) -> tuple[Num, Num]:
    """A static number in two parts, the first no larger than the second."""
    smaller = binary("//", a, num(2)) if free_names(a.expr) else num(int(a) // 2)
    return smaller, smaller if int(a) % 2 == 0 else minus(a, smaller)


class Window(Frozen):
    """Windows of `kernel` positions, `dilation` apart, moved by `stride`, over `before` zeros, an axis and `after`."""

    kernel: Num
    stride: Num
    dilation: Num
    before: Num
    after: Num

    @property
    def reach(self) -> Num:
        """How far the last position of a window is from its first."""
        return binary("*", self.dilation, minus(self.kernel, num(1)))

    def count(self, length: Num) -> Num:
        """How many windows there are: `(length + before + after - span) // stride + 1`."""
        room = plus(self.before, self.after)
        if equals(room, 0) and equals(self.dilation, 1) and self.kernel.expr == self.stride.expr:
            return binary("//", length, self.stride)  # side by side
        span = self.kernel if equals(self.dilation, 1) else plus(self.reach, num(1))
        if free_names(room.expr) or free_names(span.expr):
            last = binary("-", length if equals(room, 0) else plus(length, room), span)
        else:
            last = plus(length, num(int(room) - int(span)))
        if equals(self.stride, 1) and equals(minus(room, self.reach), 0):
            return length
        if equals(self.stride, 1):
            return plus(last, num(1)) if free_names(span.expr) else plus(length, num(int(room) - int(span) + 1))
        slack = sub(add(self.before.value, self.after.value), self.reach.value)
        value = floordiv(sub(add(length.value, slack), sub(1, self.stride.value)), self.stride.value)
        return Num(value, plus(binary("//", last, self.stride), num(1)).expr, length.origin)

    def decided(self, call: Application, *, halves: bool) -> None:
        """Record what is left out where it changes nothing: zeros, steps of one position, and lengths that stay."""
        if halves:
            call.holds("==", binary("%", self.reach, num(2)), 0, HALVES)
        else:
            call.is_number(minus(plus(self.before, self.after), self.reach), 0)
        for n, usual in ((self.reach, 0), (self.before, 0), (self.after, 0), (self.stride, 1), (self.dilation, 1)):
            call.is_number(n, usual)

    def reads(self, axis: int) -> At:
        """The latest position that is read along the axis, given the position of the output along it."""
        last = Fraction(int(self.reach) - int(self.before))
        return At(((axis, Fraction(int(self.stride))),), last, earlier=int(self.reach) > 0)


# --- options ------------------------------------------------------------------------------------------------------

HALVES = "`padding: same` is written for a kernel that is odd, or even: compile again with --set"
PADDINGS = ("same", "causal", "none")


def values(given: Any) -> Sequence[Any]:
    return given.items if isinstance(given, ListValue) else given if isinstance(given, tuple) else (given,)


def per_axis(options: Options, option: str, count: int) -> tuple[Num, ...]:
    """An option that is one number for all axes or a list of one for each."""
    found = tuple(values(options[option]))
    return found * count if len(found) == 1 else found


def demand_per_axis(call: Application, option: str, count: int, least: int = 1) -> None:
    """Refuse what is not such an option. Raises E0203, E0204."""
    given = values(call.options[option])
    for n in given:
        if not isinstance(n, Num) or not n.static or not call.is_whole(n):
            raise call.error(
                "E0203",
                f"`{option}` is a whole number that is known before the model runs, and {format_value(n)} was given",
                option=option,
            )
        if not call.holds(">=", n, least, f"`{option}` is at least {least}"):
            raise call.error("E0204", f"`{option}` must be at least {least}, and {n} was given", option=option)
    if len(given) not in (1, count):
        needed = "one number" if count == 1 else f"one number for all {count} axes or a list of one for each"
        raise call.error("E0204", f"`{option}` is {needed}, and {len(given)} were given", option=option)


def padding_word(options: Options) -> str:
    """The option `padding` as a word, '' where it is numbers."""
    given = options["padding"]
    if isinstance(given, Num | tuple | ListValue):
        return ""
    return "none" if given is None else str(getattr(given, "rule", None) or getattr(given, "name", None) or given)


def demand_padding(call: Application, count: int) -> None:
    """Refuse a word that is no padding, or numbers that are none."""
    word = padding_word(call.options)
    if not word:
        demand_per_axis(call, "padding", count, least=0)
    elif word not in PADDINGS:
        raise call.error(
            "E0204",
            f"there is no padding `{word}`",
            option="padding",
            help="`same` keeps the length, `causal` pads only before the first position, `none` pads nowhere; "
            "or give the number of zeros on either side",
        )


# --- PyTorch ------------------------------------------------------------------------------------------------------


def joined(sizes: Sequence[Num]) -> Num | tuple[Num, ...]:
    """One number where all are written the same, else a tuple."""
    return sizes[0] if all(n.expr == sizes[0].expr for n in sizes) else tuple(sizes)


def setting(name: str, given: Sequence[Num], usual: int) -> dict[str, Any]:
    """`stride=2` as a keyword argument, or none where it is written as the usual number."""
    return {} if all(equals(n, usual) and not free_names(n.expr) for n in given) else {name: joined(given)}


def padded(x: Tree, found: Sequence[Window], e: TorchScope) -> Tree:
    """Zeros put around the last axes."""
    return e.py("F.pad({x}, {widths})", x=x, widths=[n for w in reversed(found) for n in (w.before, w.after)])


# --- families -----------------------------------------------------------------------------------------------------


class Sliding(Primitive):
    """Along time of [..., time, channels], or along height and width of [batch, channels, height, width]."""

    spatial: int

    def axes(self, rank: int) -> tuple[int, ...]:
        return (rank - 2,) if self.spatial == 1 else (2, 3)

    def channel_axis(self, rank: int) -> int:
        return rank - 1 if self.spatial == 1 else 1

    def channels(self, shape: Shape) -> Num:
        return shape[self.channel_axis(len(shape))]

    def lengths(self, shape: Shape) -> list[Num]:
        return [shape[axis] for axis in self.axes(len(shape))]

    def resized(self, call: Application, sizes: Sequence[Num], channels: Num) -> Sequence[Shape]:
        """The input's shape with other sizes along the axes, and other channels."""
        shape = list(call.shape(0))
        for axis, size in zip(self.axes(len(shape)), sizes, strict=True):
            shape[axis] = size
        shape[self.channel_axis(len(shape))] = channels
        return (tuple(shape),)

    def reads_along(self, node: OpNode, found: Sequence[At], channels: At | None) -> Sequence[Reads]:
        rank = node.tensor(0).rank
        reads: list[At | None] = [same(i) for i in range(rank)]
        for axis, at in zip(self.axes(rank), found, strict=True):
            reads[axis] = at
        reads[self.channel_axis(rank)] = channels
        return (tuple(reads),)

    def onnx_applied(self, node: OpNode, g: OnnxScope, function: Callable[[Any], Any], x: Any = None) -> Any:
        """`function` of the input (or of `x`) in the order of axes of ONNX, [batch, channels, time], and the way
        back."""
        x, rank = with_kernel(g, g.arg(0) if x is None else x), node.tensor(0).rank
        if self.spatial == 2:
            return function(x)
        lead = g.Shape(x, start=0, end=rank - 2) if rank > 3 else None
        if rank != 3:
            x = g.Reshape(x, [-1, g.dimension(x, -2), g.size(0, -1)])
        y = g.Transpose(function(g.Transpose(x, perm=[0, 2, 1])), perm=[0, 2, 1])
        if rank == 2:
            return g.Squeeze(y, [0])
        return y if lead is None else g.Reshape(y, [lead, -1, node.outputs[0].shape[-1]])

    def filters(self, call: Application, rows: Num, columns: Num) -> Sequence[Weight]:
        """A weight [rows, columns of a group, kernel] and, if there is one, the bias."""
        groups, kernel = call.size("groups"), per_axis(call.options, "kernel", self.spatial)
        inner = share(call, columns, groups)
        fan_in, fan_out = product((inner, *kernel)), product((share(call, rows, groups), *kernel))
        found = [Weight("weight", (rows, inner, *kernel), "matrix", fan_in=fan_in, fan_out=fan_out)]
        if call.options["bias"]:
            found.append(Weight("bias", (call.size("features"),), "bias", fan_in=fan_in, fan_out=fan_out))
        return found

    def onnx_weights(self, node: OpNode, g: OnnxScope) -> list[Any]:
        """The weight, and the bias if there is one."""
        kind = g.dtype(with_kernel(g, g.arg(0)))
        return [g.cast(g.weight(name), kind) for name in ("weight", *(("bias",) if node.options["bias"] else ()))]

    def applied(self, node: OpNode, e: TorchScope, function: Callable[[Tree], Tree], x: Tree | None = None) -> Tree:
        """`function` of the input (or of `x`) in torch's order of axes, [batch, channels, time], and the way back."""
        if self.spatial == 2:
            return function(e.input(0))
        x = e.input(0) if x is None else x
        shape = node.outputs[0].shape
        if len(shape) == 2:
            return e.py("{y}.transpose(0, 1)", y=function(e.py("{x}.transpose(0, 1)", x=x)))
        if len(shape) == 3:
            return e.py("{y}.transpose(1, 2)", y=function(e.py("{x}.transpose(1, 2)", x=x)))
        y = function(e.py("{x}.flatten(0, -3).transpose(1, 2)", x=x))
        return e.py("{y}.transpose(1, 2).unflatten(0, {leading})", y=y, leading=(-1, *shape[1:-2]))

    def constructor(
        self, node: OpNode, e: TorchScope, cls: str, kernel: Sequence[Num], settings: Mapping[str, Any]
    ) -> Tree:
        """torch's module of that class, with such settings as are not the usual ones."""
        more = {**settings, **setting("groups", [number(node, "groups")], 1)}
        if not node.options["bias"]:
            more["bias"] = False
        sizes = (self.channels(node.tensor(0).shape), number(node, "features"), joined(kernel))
        return e.py(f"nn.{cls}{self.spatial}d({{*sizes}}, {{**more}})", sizes=sizes, more=more)


class Windowed(Sliding):
    """Windows: a convolution or a pooling."""

    def windows(self, options: Options) -> list[Window]:
        """The windows along each axis. A pooling's stride is its kernel where it is not given."""
        count, word = self.spatial, padding_word(options)
        kernels = per_axis(options, "kernel", count)
        strides = kernels if options["stride"] is None else per_axis(options, "stride", count)
        dilations = per_axis(options, "dilation", count) if "dilation" in options else (num(1),) * count
        sides = (num(0),) * count if word else per_axis(options, "padding", count)
        found = []
        for kernel, stride, dilation, side in zip(kernels, strides, dilations, sides, strict=True):
            window = Window(kernel, stride, dilation, side, side)
            if word == "same":
                window = Window(kernel, stride, dilation, *halves(window.reach))
            elif word == "causal":
                window = Window(kernel, stride, dilation, window.reach, num(0))
            found.append(window)
        return found

    def check(self, call: Application) -> None:
        for option in ("kernel", "stride", "dilation"):
            if call.options.get(option) is not None:
                demand_per_axis(call, option, self.spatial)
        demand_padding(call, self.spatial)
        shape = call.shape(0)
        for window, axis in zip(self.windows(call.options), self.axes(len(shape)), strict=True):
            window.decided(call, halves=padding_word(call.options) == "same")
            room = int(window.before) + int(window.after)
            if not shape[axis].static:
                continue
            padded = binary("+", shape[axis], binary("+", window.before, window.after))
            if not call.holds(">", padded, window.reach, "the kernel must not be longer than its input"):
                raise call.error(
                    "E0401",
                    f"a window of `{self.name}` is {int(window.reach) + 1} positions long, "
                    f"but axis {axis} of {shape_text(shape)} has only {shape[axis]}"
                    f"{f' and {room} of padding' if room else ''}",
                    option="kernel",
                    input=0,
                )

    def sizes(self, call: Application) -> list[Num]:
        return [w.count(n) for w, n in zip(self.windows(call.options), self.lengths(call.shape(0)), strict=True)]

    def reads_of_windows(self, node: OpNode, channels: At | None) -> Sequence[Reads]:
        axes = self.axes(node.tensor(0).rank)
        return self.reads_along(
            node, [w.reads(a) for w, a in zip(self.windows(node.options), axes, strict=True)], channels
        )


def demand_groups(call: Application, channels: Num) -> None:
    groups = call.size("groups")
    call.is_number(groups, 1)
    call.condition("%", channels, groups, "the groups of a convolution share its input channels equally")
    call.condition("%", call.size("features"), groups, "the groups of a convolution share its features equally")


def share(call: Application, size: Num, groups: Num) -> Num:
    """The part of a size that one group has."""
    return num(1) if call.same(size, groups) else binary("/", size, groups)


class Convolution(Windowed):
    """Weighted sums over windows: `nn.Conv1d`, `nn.Conv2d`."""

    family = "convolution"
    worth_hoisting = True
    own_type = True

    def check(self, call: Application) -> None:
        super().check(call)
        demand_groups(call, self.channels(call.shape(0)))

    def shapes(self, call: Application) -> Sequence[Shape]:
        return self.resized(call, self.sizes(call), call.size("features"))

    def weights(self, call: Application) -> Sequence[Weight]:
        return self.filters(call, call.size("features"), self.channels(call.shape(0)))

    def flops(self, node: OpNode) -> Cost:
        """A whole window for each position of the result, zeros around the input included."""
        y, weight = node.outputs[0], node.weights[0]
        found = contracted((*y.shape, *weight.shape[1:]), (0,), ("weight",))
        return Cost((found,), self.pointwise(node) if node.options["bias"] else ())

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return self.reads_of_windows(node, EVERYWHERE)

    def absent(self, node: OpNode) -> float | None:
        return 0.0

    def states(self, node: OpNode) -> Sequence[State]:
        """Of windows that end at the own position: the positions before it."""
        x, window = node.tensor(0), self.windows(node.options)[0]
        axis, reach = x.rank - 2, int(window.reach)
        causal = equals(window.stride, 1) and equals(window.after, 0) and int(window.before) == reach
        if self.spatial != 1 or not causal or not reach or axis == 0:
            return ()
        return (State("conv", (*x.shape[:axis], window.reach, x.shape[-1]), x.dtype, axis),)

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        rank, axis, reach = node.tensor(0).rank, node.tensor(0).rank - 2, int(self.windows(node.options)[0].reach)
        both = g.Concat(past[0], g.gated(g.arg(0), 0, rank, axis), axis=axis)
        return self.over(node, g, both, [(0, 0)]), [g.tail(both, reach, rank, axis)]

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        axis, reach = node.tensor(0).rank - 2, self.windows(node.options)[0].reach
        both = e.let("padded", e.py("torch.cat(({past}, {0}), dim={axis})", past=past[0], axis=axis))
        y = self.applied(node, e, lambda x: e.py("{module}({x})", x=x), both)
        # Of a Config whose kernels see no position before their own nothing is kept: `[:, -0:]` is everything.
        start = "{both}.size({axis}) - {reach}" if free_names(reach.expr) else "-{reach}"
        return y, (e.py(f"{{both}}[{':, ' * axis}{start}:]", both=both, axis=axis, reach=reach),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return self.over(node, g, g.arg(0), [(int(w.before), int(w.after)) for w in self.windows(node.options)])

    def over(self, node: OpNode, g: OnnxScope, x: Any, sides: Sequence[tuple[int, int]]) -> Any:
        """The windows over x, with so many zeros before and after each axis."""
        found = self.windows(node.options)
        attributes = {
            "kernel_shape": [int(w.kernel) for w in found],
            "strides": [int(w.stride) for w in found],
            "dilations": [int(w.dilation) for w in found],
            "pads": [before for before, _ in sides] + [after for _, after in sides],
            "group": int(number(node, "groups")),
        }
        return self.onnx_applied(node, g, lambda x: g.Conv(x, *self.onnx_weights(node, g), **attributes), x)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        found = self.windows(node.options)

        def function(x: Tree) -> Tree:
            return e.py("{module}({x})", x=padded(x, found, e) if self.uneven(node) else x)

        return self.applied(node, e, function)

    def uneven(self, node: OpNode) -> bool:
        """Whether torch's module does not put the zeros around the input itself."""
        found = self.windows(node.options)
        same = padding_word(node.options) == "same" and all(equals(w.stride, 1) for w in found)
        return not same and any(int(w.before) != int(w.after) for w in found)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        found, padding = self.windows(node.options), dict[str, Any]()
        if padding_word(node.options) == "same" and all(equals(w.stride, 1) for w in found):
            padding = {} if all(equals(w.reach, 0) for w in found) else {"padding": "same"}
        elif not self.uneven(node):
            padding = setting("padding", [w.before for w in found], 0)
        more = {
            **setting("stride", [w.stride for w in found], 1),
            **padding,
            **setting("dilation", [w.dilation for w in found], 1),
        }
        return self.constructor(node, e, "Conv", [w.kernel for w in found], more)


POOLED = {
    1: "(kernel: size, stride: size = none, padding: int = 0)(x: float[..., time, channels]) -> [..., time, channels]",
    2: "(kernel: ints, stride: ints = none, padding: ints = 0)(x: float[batch, channels, height, width]) "
    "-> [batch, channels, rows, columns]",
}
"""What poolings take and give, by the number of their axes."""
POOLINGS_SHOWN = {
    1: (("2", "[2, 6, 8]"), ("3, stride: 2, padding: 1", "[2, 5, 8]"), ("2, stride: 1", "[2, 3, 5, 8]")),
    2: (
        ("2", "[2, 3, 6, 4]"),
        ("[3, 2], stride: [2, 1], padding: [1, 0]", "[2, 3, 6, 4]"),
        ("3, stride: 2, padding: 1", "[2, 3, 6, 5]"),
    ),
}


class Pooling(Windowed):
    """One number for each window of each channel, as a row: `max` or `avg`, along how many axes."""

    def __init__(self, function: str, spatial: int, doc: str) -> None:
        name = f"{function}_pool{spatial}d"
        self.function = function
        self.spatial = spatial
        self.signature = name + POOLED[spatial]
        self.__doc__ = doc
        self.examples = tuple(Example(f"x -> {name}({options})", f"x: {x}") for options, x in POOLINGS_SHOWN[spatial])

    def check(self, call: Application) -> None:
        super().check(call)
        for window in self.windows(call.options):
            call.same(window.stride, window.kernel)
            if not call.holds(
                "<=", binary("*", num(2), window.before), window.kernel, "`padding` is at most half a window"
            ):
                raise call.error(
                    "E0204",
                    f"`padding` is at most half a window, and {window.before} is more than half of {window.kernel}",
                    option="padding",
                )

    def shapes(self, call: Application) -> Sequence[Shape]:
        return self.resized(call, self.sizes(call), self.channels(call.shape(0)))

    def pointwise(self, node: OpNode) -> tuple[Amount, ...]:
        return (Amount(times((elements(node.outputs[0].shape), *(w.kernel for w in self.windows(node.options))))),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return self.reads_of_windows(node, same(self.channel_axis(node.tensor(0).rank)))

    def absent(self, node: OpNode) -> float | None:
        return -math.inf if self.function == "max" else 0.0

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """Time and channels are the last two axes as height and width are, and of channels a window holds one."""
        found, x, rank = self.windows(node.options), with_kernel(g, g.arg(0)), node.tensor(0).rank
        aside = [1] * (2 - len(found))
        before, after = ([int(n) for n in sides] for sides in zip(*((w.before, w.after) for w in found), strict=True))
        none = [0] * len(aside)
        attributes: dict[str, Any] = {
            "kernel_shape": [int(w.kernel) for w in found] + aside,
            "strides": [int(w.stride) for w in found] + aside,
            "pads": before + none + after + none,
        }
        if self.function == "avg":
            attributes["count_include_pad"] = 1
        lead = g.Shape(x, start=0, end=rank - 2) if rank > 4 else None
        if rank < 4:
            x = g.Unsqueeze(x, list(range(4 - rank)))
        elif rank > 4:
            x = g.Reshape(x, [0, -1, g.size(0, -2), g.size(0, -1)])
        y = (g.AveragePool if self.function == "avg" else g.MaxPool)(x, **attributes)
        if rank < 4:
            return g.Squeeze(y, list(range(4 - rank)))
        return y if lead is None else g.Reshape(y, [lead, -1, g.size(0, -1)])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        found = self.windows(node.options)
        kernel, more = self.pooled([w.kernel for w in found], 1), dict[str, Any]()
        if any(w.stride.value != w.kernel.value for w in found):
            more["stride"] = self.pooled([w.stride for w in found], 1)
        if not all(equals(w.before, 0) for w in found):
            more["padding"] = self.pooled([w.before for w in found], 0)

        def function(x: Tree) -> Tree:
            return e.py(f"F.{self.function}_pool2d({{x}}, {{kernel}}, {{**more}})", x=x, kernel=kernel, more=more)

        shape = node.tensor(0).shape
        if len(shape) == 2:
            return e.py("{y}.squeeze(0)", y=function(e.py("{0}.unsqueeze(0)")))
        if len(shape) > 4:
            y = function(e.py("{0}.flatten(0, -3)"))
            return e.py("{y}.unflatten(0, {leading})", y=y, leading=(-1, *shape[1:-2]))
        return function(e.input(0))

    def pooled(self, sizes: Sequence[Num], aside: int) -> Any:
        """Sizes for torch's pooling of the last two axes: time and channels, which stand aside, or height and width."""
        return (*sizes, aside) if self.spatial == 1 else joined(sizes)


SIDE_BY_SIDE = "`stride` apart, or else side by side."
ZEROS_COUNT = "\n\nZeros that `padding` puts on either side count like others."
OF_TIME = f"of each window of `kernel` positions of time, channels last; {SIDE_BY_SIDE}"
OF_PICTURES = f"of each window over height and width; windows are {SIDE_BY_SIDE}"
POOLINGS = (
    Pooling("max", 1, f"The largest {OF_TIME}"),
    Pooling("max", 2, f"The largest {OF_PICTURES}"),
    Pooling("avg", 1, f"The mean {OF_TIME}{ZEROS_COUNT}"),
    Pooling("avg", 2, f"The mean {OF_PICTURES}{ZEROS_COUNT}"),
)


class Transposed(Sliding):
    """The transpose of a convolution, each position spread over a window: `nn.ConvTranspose1d` and `2d`."""

    family = "transposed convolution"
    own_type = True

    def cuts(self, options: Options) -> list[tuple[Num, Num]]:
        """How many of the full `(size - 1) * stride + kernel` positions are cut off at both ends, or added."""
        kernels, strides = per_axis(options, "kernel", self.spatial), per_axis(options, "stride", self.spatial)
        word, zero = padding_word(options), num(0)
        if word in ("", "none"):
            sides = per_axis(options, "padding", self.spatial) if not word else (zero,) * self.spatial
            return [(n, n) for n in sides]
        spare = [minus(kernel, stride) for kernel, stride in zip(kernels, strides, strict=True)]
        if word == "causal":
            return [(zero, n) for n in spare]
        return [(zero, n) if int(n) < 0 else halves(n)[::-1] for n in spare]

    def decided(self, call: Application) -> None:
        """Record what is left out where it changes nothing, and which end is cut."""
        options = call.options
        kernels, strides = per_axis(options, "kernel", self.spatial), per_axis(options, "stride", self.spatial)
        for kernel, stride, (before, after) in zip(kernels, strides, self.cuts(options), strict=True):
            spare = minus(kernel, stride)
            if padding_word(options) == "same" and call.holds(">=", spare, 0):
                call.holds("==", binary("%", spare, num(2)), 0, HALVES)
            for n in (before, after, minus(before, after), minus(spare, plus(before, after))):
                call.holds("==", n, 0)
            if call.holds(">=", minus(before, after), 0):
                call.holds("<", minus(before, after), stride)

    def check(self, call: Application) -> None:
        for option in ("kernel", "stride"):
            demand_per_axis(call, option, self.spatial)
        demand_padding(call, self.spatial)
        demand_groups(call, self.channels(call.shape(0)))
        self.decided(call)
        for size in self.sizes(call):
            if size.static and not call.holds(">=", size, 1, "the padding leaves something over"):
                raise call.error(
                    "E0401",
                    f"the padding of `{self.name}` cuts everything off: a size of its result is {size}",
                    option="padding",
                )

    def sizes(self, call: Application) -> list[Num]:
        kernels, strides = (
            per_axis(call.options, "kernel", self.spatial),
            per_axis(call.options, "stride", self.spatial),
        )
        found = []
        for length, kernel, stride, (before, after) in zip(
            self.lengths(call.shape(0)), kernels, strides, self.cuts(call.options), strict=True
        ):
            rest = minus(minus(kernel, stride), plus(before, after))
            found.append(plus(binary("*", stride, length), num(0) if equals(rest, 0) else rest))
        return found

    def shapes(self, call: Application) -> Sequence[Shape]:
        return self.resized(call, self.sizes(call), call.size("features"))

    def weights(self, call: Application) -> Sequence[Weight]:
        # As torch has it: the weight's second axis, the features of a group, is what its first values depend on.
        return self.filters(call, self.channels(call.shape(0)), call.size("features"))

    def flops(self, node: OpNode) -> Cost:
        """A whole window for each position of the input, what is cut off included."""
        found = contracted((*node.tensor(0).shape, *node.weights[0].shape[1:]), (0,), ("weight",))
        return Cost((found,), self.pointwise(node) if node.options["bias"] else ())

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axes = self.axes(node.tensor(0).rank)
        strides, cuts = per_axis(node.options, "stride", self.spatial), self.cuts(node.options)
        found = []
        for axis, stride, (before, _) in zip(axes, strides, cuts, strict=True):
            step = Fraction(1, int(stride))
            found.append(At(((axis, step),), step * int(before), earlier=True))
        return self.reads_along(node, found, EVERYWHERE)

    def split_cuts(self, options: Options) -> list[tuple[Num, Num, Num, Num]]:
        """For each axis what kernels cut off at both ends, what they put back at the end, and what is sliced off at
        the start and the end. Kernels cut both ends alike and put back less than a stride."""
        found, zero = [], num(0)
        strides = per_axis(options, "stride", self.spatial)
        for stride, (before, after) in zip(strides, self.cuts(options), strict=True):
            short = minus(before, after)
            alike = 0 <= int(short) < int(stride)
            found.append((before, short, zero, zero) if alike else (zero, zero, before, after))
        return found

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        cuts = [[int(n) for n in cut] for cut in self.split_cuts(node.options)]
        attributes = {
            "kernel_shape": [int(n) for n in per_axis(node.options, "kernel", self.spatial)],
            "strides": [int(n) for n in per_axis(node.options, "stride", self.spatial)],
            "pads": [cut for cut, *_ in cuts] * 2,
            "output_padding": [extra for _, extra, *_ in cuts],
            "group": int(number(node, "groups")),
        }
        sliced = [(axis, first, last) for axis, (_, _, first, last) in enumerate(cuts, start=2) if first or last]

        def function(x: Any) -> Any:
            y = g.ConvTranspose(x, *self.onnx_weights(node, g), **attributes)
            if not sliced:
                return y
            axes, firsts, lasts = zip(*sliced, strict=True)
            return g.Slice(y, firsts, [-n if n else END for n in lasts], axes)

        return self.onnx_applied(node, g, function)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        strides, cuts = per_axis(node.options, "stride", self.spatial), self.split_cuts(node.options)
        more = {
            **setting("stride", strides, 1),
            **setting("padding", [cut for cut, *_ in cuts], 0),
            **setting("output_padding", [short for _, short, *_ in cuts], 0),
        }
        return self.constructor(node, e, "ConvTranspose", per_axis(node.options, "kernel", self.spatial), more)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        cuts = self.split_cuts(node.options)
        slices, ends = [], dict[str, Num]()
        for i, (_, _, before, after) in enumerate(cuts):
            first = "" if equals(before, 0) else f"{{first_{i}}}"
            last = "" if equals(after, 0) else f"-{{last_{i}}}"
            slices.append(f"{first}:{last}")
            ends |= {f"first_{i}": before, f"last_{i}": after}
        rest = "" if set(slices) == {":"} else f"[..., {', '.join(slices)}]"
        return self.applied(node, e, lambda x: e.py(f"{{module}}({{x}}){rest}", x=x, **ends))


class Conv1d(Convolution):
    """A convolution along time, channels last: weighted sums of `kernel` positions, `dilation` apart, each `stride`.

    `padding` is `same` (position t of stride 1 reads around t; ceil(time / stride) positions), `causal` (zeros only
    before the first position, so that nothing later is read), `none`, or a number of zeros on either side."""

    signature = (
        "conv1d(features: size, kernel: size, stride: size = 1, dilation: size = 1, groups: size = 1, "
        "padding: word = same, bias: bool = true, init: scheme = none)(x: float[..., time, channels]) "
        "-> [..., time, features]"
    )
    spatial = 1
    examples = shown(
        "x -> conv1d(6, kernel: 3)",
        "x -> conv1d(8, kernel: 4, groups: 8, padding: causal, bias: false)",
        "x -> conv1d(6, kernel: 3, stride: 2)  # x: [2, 9, 8]",
        "x -> conv1d(6, kernel: 4, stride: 2)  # x: [2, 8, 4]",
        "x -> conv1d(6, kernel: 2, dilation: 2, padding: causal)  # x: [2, 3, 5, 8]",
        "x -> conv1d(6, kernel: 3, stride: 2, padding: none)  # x: [9, 8]",
        "x -> conv1d(6, kernel: 3, padding: 2)",
    )


class Conv2d(Convolution):
    """A convolution over height and width; its sizes are one number, or a list of one for each of these two axes.

    `padding` is `none`, `same`, `causal` (zeros only before the first position of each axis), or the number of zeros on
    either side."""

    signature = (
        "conv2d(features: size, kernel: ints, stride: ints = 1, dilation: ints = 1, groups: size = 1, "
        "padding = none, bias: bool = true, init: scheme = none)(x: float[batch, channels, height, width]) "
        "-> [batch, features, rows, columns]"
    )
    spatial = 2
    examples = shown(
        "x -> conv2d(6, kernel: 2, stride: 2)  # x: [2, 3, 8, 6]",
        "x -> conv2d(6, kernel: 3, stride: 2, padding: 1, bias: false)  # x: [2, 3, 7, 8]",
        "x -> conv2d(4, kernel: [3, 1], padding: [1, 0], groups: 2)  # x: [2, 2, 5, 4]",
        "x -> conv2d(4, kernel: [2, 3], padding: same, dilation: [2, 1])  # x: [2, 2, 5, 4]",
        "x -> conv2d(4, kernel: [3, 2], stride: [1, 2], padding: same)  # x: [2, 2, 5, 4]",
    )


class ConvTranspose1d(Transposed):
    """A transposed convolution along time, channels last: each position is spread over `kernel`, the next `stride`
    later.

    `padding` is `same` and `causal` (time * stride positions; `causal` cuts at the end only), `none` ((time - 1) *
    stride + kernel positions), or how many of those are cut off on either side."""

    signature = (
        "conv_transpose1d(features: size, kernel: size, stride: size = 1, groups: size = 1, padding: word = same, "
        "bias: bool = true, init: scheme = none)(x: float[..., time, channels]) -> [..., time, features]"
    )
    spatial = 1
    examples = shown(
        "x -> conv_transpose1d(6, kernel: 4, stride: 2)",
        "x -> conv_transpose1d(6, kernel: 3, stride: 2, bias: false)",
        "x -> conv_transpose1d(6, kernel: 4)",
        "x -> conv_transpose1d(6, kernel: 2, stride: 3, groups: 2)",
        "x -> conv_transpose1d(6, kernel: 4, stride: 2, padding: causal)",
        "x -> conv_transpose1d(6, kernel: 3, stride: 2, padding: none)  # x: [2, 3, 5, 8]",
        "x -> conv_transpose1d(6, kernel: 4, stride: 2, padding: 1)  # x: [5, 8]",
    )


class ConvTranspose2d(Transposed):
    """A transposed convolution over height and width: each position is spread over a window of `kernel`, `stride`
    apart.

    `padding` is `none` ((size - 1) * stride + kernel positions along each axis), `same` (size * stride), `causal` (the
    same, cut at the ends only), or how many positions are cut off on either side."""

    signature = (
        "conv_transpose2d(features: size, kernel: ints, stride: ints = 1, groups: size = 1, padding = none, "
        "bias: bool = true, init: scheme = none)(x: float[batch, channels, height, width]) "
        "-> [batch, features, rows, columns]"
    )
    spatial = 2
    examples = shown(
        "x -> conv_transpose2d(6, kernel: 2, stride: 2)  # x: [2, 3, 4, 3]",
        "x -> conv_transpose2d(6, kernel: 4, stride: 2, padding: 1, bias: false)  # x: [2, 3, 4, 3]",
        "x -> conv_transpose2d(6, kernel: [3, 2], stride: [2, 1], padding: same, groups: 3)  # x: [2, 3, 4, 3]",
    )
