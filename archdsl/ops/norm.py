"""Normalization layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num
from archdsl.ir.graph import Init, OpNode, Value, Weight
from archdsl.ir.op import EVERYWHERE, Application, OnnxScope, Parts, Primitive, Reads, TorchScope, Tree, same, shown
from archdsl.ops._common import CASTS, AxisOp, axis_index, axis_of, equals, number, own_but, usual, written

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
    if node.tensor(0).rank == 3:
        return e.py(f"{norm}.transpose(1, 2)", x=e.py("{0}.transpose(1, 2)"))
    return e.py(f"{norm}.movedim(1, -1)", x=e.py("{0}.movedim(-1, 1)"))


def channel_axis(op: Primitive, call: Application) -> int:
    """The axis of the channels. Raises E0303 where it is neither 1 nor the last."""
    axis = axis_of(op, call)
    if axis not in (1, len(call.shape(0)) - 1):
        raise call.error(
            "E0303",
            f"the channels are axis 1 or the last one, not axis {axis}",
            option="axis",
            help="move them there: `transpose`",
        )
    return axis


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


class LastAxisNorm(Primitive, ABC):
    """A norm of each row, with a gain unless `weight` says no."""

    keeps_projection = True
    by_rows = True
    shares_weights = True
    mixes = False

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.tensor(0).rank
        return (own_but(rank, rank - 1),)

    def gain(self, node: OpNode, g: OnnxScope, dtype: str) -> Any:
        if node.options["weight"]:
            return g.cast(g.weight("weight"), dtype)
        return g.Expand(g.constant(1.0, dtype), [node.tensor(0).shape[-1]])

    def torch_grouped_module(self, node: OpNode, e: TorchScope) -> Tree:
        sizes, eps = node.weights[0].shape, number(node, "eps")
        return e.py(f"{self.grouped_class(node)}({{*sizes}}, eps={{eps}})", sizes=sizes, eps=eps)

    @abstractmethod
    def grouped_class(self, node: OpNode) -> str:
        """The class of the norm of each expert's rows."""

    def torch_grouped(self, node: OpNode, e: TorchScope, ends: Tree) -> Tree | None:
        return e.py("{module}({0}, {ends})", ends=ends) if node.weights else None


class LayerNorm(LastAxisNorm):
    """Layer normalization of the last axis (Ba et al., 2016): `(x - mean) / sqrt(variance + eps) * weight + bias`.

    It is computed in float32."""

    passes = 7
    statistics = 2
    signature = (
        "layernorm(eps: positive = 1e-5, weight: bool = true, bias: bool = true, init: scheme = none)"
        "(x: float[..., width]) -> [..., width]"
    )
    examples = shown(
        "x -> layernorm",
        "x -> layernorm(eps: 1e-12, bias: false)",
        "x -> layernorm(weight: false, bias: false)",
    )

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps")
        if call.options["bias"] and not call.options["weight"]:
            raise call.error(
                "E0204",
                "a layernorm without `weight` has no `bias` either",
                option="weight",
                help="write `bias: false` too",
            )

    def weights(self, call: Application) -> Sequence[Weight]:
        width = call.axes["width"]
        found = []
        if call.options["weight"]:
            found.append(Weight("weight", (width,), "gain"))
        if call.options["bias"]:
            found.append(Weight("bias", (width,), "bias"))
        return found

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0)
        gain = self.gain(node, g, g.dtype(x))
        bias = g.cast(g.weight("bias"), g.dtype(x)) if node.options["bias"] else None
        return g.LayerNormalization(x, gain, bias, axis=-1, epsilon=float(number(node, "eps")))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        width, eps = node.tensor(0).shape[-1], number(node, "eps")
        bias = {} if node.options["bias"] else {"bias": False}
        return e.py("nn.LayerNorm({width}, eps={eps}, {**bias})", width=width, eps=eps, bias=bias)

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        """None in another type than the model's: it reads its weights itself, and no style of a module acts on that."""
        return None if node.weights and CASTS[node.outputs[0].dtype] else super().parts(node, cut)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if cast := node.options["weight"] and CASTS[node.outputs[0].dtype]:
            shift = e.py(f"{{module}}.bias{cast}") if node.options["bias"] else None
            weights = f"{{module}}.weight{cast}, {{shift}}"
            return e.py(f"F.layer_norm({{0}}, {{module}}.normalized_shape, {weights}, {{module}}.eps)", shift=shift)
        if node.options["weight"]:
            return e.py("{module}({0})")
        width, eps = node.tensor(0).shape[-1], number(node, "eps")
        return e.py("F.layer_norm({0}, ({width},), eps={eps})", width=width, eps=eps)

    def grouped_class(self, node: OpNode) -> str:
        return "GroupedLayerNorm" if node.options["bias"] else "GroupedLayerNormWithoutBias"


class RMSNorm(LastAxisNorm):
    """RMS normalization of the last axis (Zhang and Sennrich, 2019): `x / sqrt(mean(x * x) + eps) * weight`.

    It is computed in float32. With `offset` the gain is `1 + weight`, and the weight starts at 0 (Gemma)."""

    passes = 4
    statistics = 1
    signature = (
        "rmsnorm(eps: positive = 1e-6, weight: bool = true, offset: bool = false, init: scheme = none)"
        "(x: float[..., width]) -> [..., width]"
    )
    examples = shown(
        "x -> rmsnorm",
        "x -> rmsnorm(eps: 1e-5, offset: true)",
        "x -> rmsnorm(weight: false)  # x: [2, 3, 5, 8]",
    )

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps")
        if call.options["offset"] and not call.options["weight"]:
            raise call.error(
                "E0204",
                "`offset` is about the weight, and there is none",
                option="offset",
                help="leave `weight: false` out",
            )

    def weights(self, call: Application) -> Sequence[Weight]:
        init = Init("zeros" if call.options["offset"] else "default")
        return (Weight("weight", (call.axes["width"],), "gain", init),) if call.options["weight"] else ()

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0)
        gain = self.gain(node, g, g.dtype(x))
        if node.options["offset"]:
            gain = g.Add(gain, 1)
        return g.RMSNormalization(x, gain, axis=-1, epsilon=float(number(node, "eps")))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        cls = "OffsetRMSNorm" if node.options["offset"] else "nn.RMSNorm"
        return e.py(f"{cls}({{width}}, eps={{eps}})", width=node.tensor(0).shape[-1], eps=number(node, "eps"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if node.options["weight"]:
            return e.py("{module}({0})")
        return e.py("F.rms_norm({0}, ({width},), eps={eps})", width=node.tensor(0).shape[-1], eps=number(node, "eps"))

    def grouped_class(self, node: OpNode) -> str:
        return "GroupedOffsetRMSNorm" if node.options["offset"] else "GroupedRMSNorm"


class L2Normalize(AxisOp):
    """Divided by its Euclidean length along an axis, or by eps where that is larger: `F.normalize` of PyTorch."""

    keeps_projection = True
    passes = 4
    signature = "l2_normalize(axis: int = -1, eps: positive = 1e-12)(x: float[...]) -> [...]"
    examples = shown("x -> l2_normalize", "x -> l2_normalize(axis: 1, eps: 1e-6)")

    def check(self, call: Application) -> None:
        super().check(call)
        usual(call, eps=1e-12)

    def absent(self, node: OpNode) -> float | None:
        return 0.0

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0, "float32")
        length = g.ReduceL2(x, [axis_index(node)], keepdims=1)
        return g.Div(x, g.Max(length, number(node, "eps")))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        eps = number(node, "eps")
        floor = {} if equals(eps, 1e-12) else {"eps": eps}
        return e.py("F.normalize({0}, dim={axis}, {**floor})", axis=written(node), floor=floor)


class BatchNorm(Primitive):
    """Batch normalization (Ioffe and Szegedy, 2015): each channel by its mean and variance over all other axes.

    `axis` is the channels'. Training takes the mean and variance of the batch, the later positions of a sequence
    included, and keeps running ones for evaluation."""

    passes = 7
    batch_statistics = True
    signature = (
        "batchnorm(eps: positive = 1e-5, momentum: share = 0.1, axis: int = -1, init: scheme = none)"
        "(x: float[batch, ..., channels]) -> [batch, ..., channels]"
    )
    examples = shown(
        "x -> batchnorm",
        "x -> batchnorm(eps: 1e-3, momentum: 0.01)  # x: [5, 8]",
        "x -> batchnorm(axis: 1)  # x: [2, 3, 4, 5]",
        "x -> batchnorm  # x: [2, 3, 4, 5]",
    )

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps", "momentum")
        usual(call, **DEFAULTS)
        rank = len(call.shape(0))
        channel_axis(self, call)
        if rank > 5:
            raise call.error(
                "E0302",
                f"`batchnorm` takes two to five axes, and there are {rank}",
                input=0,
                help="flatten some: `flatten`",
            )

    def weights(self, call: Application) -> Sequence[Weight]:
        channels = (call.shape(0)[axis_of(self, call)],)
        return (
            Weight("weight", channels, "gain"),
            Weight("bias", channels, "bias"),
            Weight("running_mean", channels, "buffer", Init("zeros"), trained=False),
            Weight("running_var", channels, "buffer", Init("ones"), trained=False),
            Weight("num_batches_tracked", (), "buffer", Init("zeros"), trained=False, dtype="int64"),
        )

    def build(self, call: Application) -> Sequence[Value]:
        """torch's module takes numbers of the type of its running means alone."""
        x = call.tensor(0)
        if x.dtype == "float":
            return call.node()
        (y,) = call.node(inputs=(call.apply("cast", x, dtype="float"),))
        return (call.apply("cast", y, dtype=x.dtype),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis = axis_index(node)
        return (tuple(same(i) if i == axis else EVERYWHERE for i in range(node.tensor(0).rank)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        after = node.tensor(0).rank - 1 - axis_index(node)
        mean, variance = g.weight("running_mean"), g.weight("running_var")
        return scaled(g, g.arg(0, "float32"), variance, number(node, "eps"), mean, after)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        x, axis = node.tensor(0), axis_index(node)
        return e.py(
            f"nn.BatchNorm{max(x.rank - 2, 1)}d({{channels}}, {{**more}})",
            channels=x.shape[axis],
            more=settings(node, "eps", "momentum"),
        )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return channels_second(node, e, axis_index(node))


class GroupNorm(Primitive):
    """Group normalization (Wu and He, 2018): channels in groups, by mean and variance of all but the batch axis.

    `axis` is the channels'. The mean and variance take in the whole of a sequence; for groups within each position
    apart, bring the channels in an axis of groups and use `layernorm`."""

    passes = 7
    signature = (
        "groupnorm(groups: size, eps: positive = 1e-5, axis: int = -1, init: scheme = none)"
        "(x: float[batch, ..., channels]) -> [batch, ..., channels]"
    )
    examples = shown(
        "x -> groupnorm(2)",
        "x -> groupnorm(4, eps: 1e-3)  # x: [5, 8]",
        "x -> groupnorm(3, axis: 1)  # x: [2, 6, 4, 5]",
    )

    def check(self, call: Application) -> None:
        demand_norm(self, call, "groups", "eps")
        usual(call, eps=DEFAULTS["eps"])
        axis = channel_axis(self, call)
        call.condition(
            "%", call.shape(0)[axis], call.size("groups"), "the groups of `groupnorm` share the channels equally"
        )

    def weights(self, call: Application) -> Sequence[Weight]:
        channels = (call.shape(0)[axis_of(self, call)],)
        return Weight("weight", channels, "gain"), Weight("bias", channels, "bias")

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return ((same(0), *(EVERYWHERE for _ in range(node.tensor(0).rank - 1))),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """Each group as a channel of its own, which `InstanceNormalization` takes by its mean and variance."""
        x, rank, axis = g.arg(0, "float32"), node.tensor(0).rank, axis_index(node)
        groups, last = int(number(node, "groups")), axis == rank - 1 > 1
        gain, bias = (per_channel(g, g.cast(g.weight(n), "float32"), rank - 1 - axis) for n in ("weight", "bias"))
        # [batch, positions, groups, share] to [batch, groups, positions, share]; channels that come second need no
        # moving.
        y = g.Reshape(x, [0, -1, groups, g.size(0, axis) // groups] if last else [0, groups, -1])
        y = g.Transpose(y, perm=[0, 2, 1, 3]) if last else y
        ones, zeros = g.constant([1.0] * groups, "float32"), g.constant([0.0] * groups, "float32")
        y = g.InstanceNormalization(y, ones, zeros, epsilon=float(number(node, "eps")))
        y = g.Transpose(y, perm=[0, 2, 1, 3]) if last else y
        return g.Add(g.Mul(g.Reshape(y, g.Shape(x)), gain), bias)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        sizes = (number(node, "groups"), node.tensor(0).shape[axis_index(node)])
        return e.py("nn.GroupNorm({*sizes}, {**more})", sizes=sizes, more=settings(node, "eps"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        cast = CASTS[node.outputs[0].dtype]
        if not cast:
            return channels_second(node, e, axis_index(node))
        weights = f"{{module}}.weight{cast}, {{module}}.bias{cast}"
        norm = f"F.group_norm({{x}}, {{module}}.num_groups, {weights}, {{module}}.eps)"
        return channels_second(node, e, axis_index(node), norm)


class PowerNormOp(Primitive):
    """Power normalization (Shen et al., 2020, PN-V): each channel by its root mean square over all other axes.

    The channels are the last axis. Training takes the mean square of the batch, the later positions of a sequence
    included, and keeps a running one for evaluation: state that training changes, which no equation can."""

    passes = 4
    batch_statistics = True
    expression = "{module}({0})"
    signature = (
        "powernorm(eps: positive = 1e-5, momentum: share = 0.1, init: scheme = none)(x: float[batch, ..., channels]) "
        "-> [batch, ..., channels]"
    )
    examples = shown("x -> powernorm", "x -> powernorm(eps: 1e-3, momentum: 0.2)  # x: [5, 8]")

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps", "momentum")
        usual(call, **DEFAULTS)

    def weights(self, call: Application) -> Sequence[Weight]:
        channels = (call.axes["channels"],)
        return (
            Weight("weight", channels, "gain"),
            Weight("bias", channels, "bias"),
            Weight("running_square", channels, "buffer", Init("ones"), trained=False),
        )

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.tensor(0).rank
        return ((*(EVERYWHERE for _ in range(rank - 1)), same(rank - 1)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return scaled(g, g.arg(0, "float32"), g.weight("running_square"), number(node, "eps"))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        width, more = node.tensor(0).shape[-1], settings(node, "eps", "momentum")
        return e.py("PowerNorm({width}, {**more})", width=width, more=more)
