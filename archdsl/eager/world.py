"""What stands in the place of torch, and the running of an emitted file over it."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import CodeType, SimpleNamespace
from typing import Any

from archdsl.eager import functions as f
from archdsl.eager import modules as m
from archdsl.eager import recurrent as r
from archdsl.eager.engine import checkpointed
from archdsl.eager.tensors import DTYPES, Device, DType, Tensor, Unknown, bool_, float32, int64, now, result_type


class Names(SimpleNamespace):
    """A module of names; one that is missing is told by its full name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unknown(f"{self.__dict__['called']}.{name}")


# --- tensors made of nothing ------------------------------------------------------------------------------------------


def empty(*shape: Any, dtype: DType = float32, **_: Any) -> Tensor:
    return Tensor(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape, dtype)


def full(shape: Sequence[int], value: Any, dtype: DType | None = None, **_: Any) -> Tensor:
    return Tensor(shape, dtype or result_type(value))


def arange(*ends: Any, dtype: DType | None = None, **_: Any) -> Tensor:
    start, end, step = (0, *ends, 1)[:3] if len(ends) == 1 else (*ends, 1)[:3]
    count = max(0, math.ceil((end - start) / step))
    return Tensor((count,), dtype or result_type(*ends))


def tensor(data: Any, dtype: DType | None = None, **_: Any) -> Tensor:
    if isinstance(data, Tensor):
        return f.to(data, dtype)
    shape = []
    first = data
    while isinstance(first, list | tuple):
        shape.append(len(first))
        first = first[0] if first else 0.0
    return Tensor(shape, dtype or result_type(_flat(data)))


def _flat(data: Any) -> Any:
    """A number of the widest kind there is among them."""
    if not isinstance(data, list | tuple):
        return data
    found = [_flat(x) for x in data] or [0.0]
    return next((x for x in found if isinstance(x, float)), found[0])


def like(x: Tensor, *_: Any, dtype: DType | None = None, **__: Any) -> Tensor:
    return f.fresh(x.shape, dtype or x.dtype, x)


def new(x: Tensor, *shape: Any, dtype: DType | None = None, **_: Any) -> Tensor:
    return empty(*shape, dtype=dtype or x.dtype)


def _dim(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose axis may be named `axis` or `dim`."""

    def apply(x: Any, *args: Any, **kwargs: Any) -> Any:
        for old, name in (("axis", "dim"), ("dims", "dim"), ("keepdims", "keepdim")):
            if old in kwargs:
                kwargs[name] = kwargs.pop(old)
        return function(x, *args, **kwargs)

    return apply


def _cast_to(dtype: DType) -> Callable[[Tensor], Tensor]:
    return lambda x: f.cast(x, dtype)


UNARY: dict[str, Callable[..., Any]] = {
    "exp": f.exp, "log": f.log, "log2": f.log2, "sqrt": f.sqrt, "rsqrt": f.rsqrt, "reciprocal": f.reciprocal,
    "sin": f.sin, "cos": f.cos, "tanh": f.tanh, "sigmoid": f.sigmoid, "erf": f.erf, "relu": f.relu, "abs": f.absolute,
    "neg": f.neg, "floor": f.flat_gradient, "ceil": f.flat_gradient, "sign": f.flat_gradient,
    "round": f.flat_gradient, "nan_to_num": f.nan_to_num, "square": f.square, "logical_not": f.logical_not,
}  # fmt: skip
BOTH: dict[str, Callable[..., Any]] = {
    **UNARY,
    **dict.fromkeys(("isneginf", "isposinf", "isinf", "isnan", "isfinite"), f.logical_not),
    "add": f.add, "sub": f.sub, "mul": f.mul, "div": f.div, "pow": f.power, "remainder": f.remainder,
    "floor_divide": f.floor_divide, "clamp": f.clamp, "maximum": f.extreme, "minimum": f.extreme,
    "logical_and": f.compare, "logical_or": f.compare, "logical_xor": f.compare,
    "eq": f.compare, "ne": f.compare, "lt": f.compare, "le": f.compare, "gt": f.compare, "ge": f.compare,
    "masked_fill": f.masked_fill, "sum": _dim(f.total), "mean": _dim(f.mean), "var": _dim(f.var),
    "amax": _dim(f.amax), "amin": _dim(f.amax), "logsumexp": _dim(f.logsumexp), "softmax": _dim(f.softmax),
    "log_softmax": _dim(f.log_softmax), "cumsum": f.cumsum, "cumprod": f.cumprod, "topk": f.topk, "sort": f.sort,
    "argsort": f.argsort, "argmax": f.argmax, "argmin": f.argmax, "any": f.every, "all": f.every,
    "reshape": f.reshape, "flatten": f.flatten, "unflatten": f.unflatten, "permute": f.permute,
    "transpose": f.transpose, "unsqueeze": f.unsqueeze, "squeeze": f.squeeze, "narrow": f.narrow, "select": f.select,
    "unbind": f.unbind, "split": f.split, "chunk": f.chunk, "tensor_split": f.tensor_split, "flip": f.flip,
    "roll": _dim(f.moved), "tril": f.moved, "triu": f.moved, "repeat_interleave": f.repeat_interleave,
    "gather": f.gather, "index_select": f.index_select, "index_add": f.index_add, "scatter": f.scatter,
    "scatter_add": f.scatter_add, "matmul": f.matmul, "clone": f.clone, "detach": f.detach, "tile": f.repeat,
    "movedim": f.transpose, "nonzero": f.nonzero,
}  # fmt: skip
METHODS: dict[str, Callable[..., Any]] = {
    **BOTH,
    "view": f.reshape, "view_as": lambda x, y: f.reshape(x, y.shape), "expand": f.expand, "expand_as": f.expand_as,
    "contiguous": f.contiguous, "unfold": f.unfold, "repeat": f.repeat, "to": f.to,
    "type_as": lambda x, y: f.cast(x, y.dtype), "float": _cast_to(float32), "long": _cast_to(int64),
    "int": _cast_to(DTYPES["int32"]), "bool": _cast_to(bool_), "double": _cast_to(DTYPES["float64"]),
    "bfloat16": _cast_to(DTYPES["bfloat16"]), "half": _cast_to(DTYPES["float16"]),
    "cpu": lambda x: x, "new_zeros": new, "new_ones": new, "new_empty": new, "new_full": lambda x, s, *_: new(x, s),
    "item": lambda x: bool(x), "t": lambda x: f.transpose(x, 0, 1),
    **dict.fromkeys(("copy_", "fill_", "zero_", "lerp_", "mul_", "add_", "sub_", "div_"), f.in_place),
    **dict.fromkeys(("normal_", "uniform_"), f.in_place),
}  # fmt: skip
Tensor.methods.update(METHODS)

OPERATORS: dict[str, Callable[..., Any]] = {
    "add": f.add, "sub": f.sub, "mul": f.mul, "truediv": f.div, "floordiv": f.floor_divide, "mod": f.remainder,
    "pow": f.power, "matmul": f.matmul, "and": f.bitwise, "or": f.bitwise, "xor": f.bitwise,
}  # fmt: skip
for _name, _function in OPERATORS.items():
    setattr(Tensor, f"__{_name}__", _function)
    setattr(Tensor, f"__r{_name}__", lambda a, b, function=_function: function(b, a))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Tensor, f"__{_name}__", f.compare)
setattr(Tensor, "__neg__", f.neg)  # noqa: B010
setattr(Tensor, "__invert__", f.logical_not)  # noqa: B010
setattr(Tensor, "__getitem__", f.take)  # noqa: B010
setattr(Tensor, "__hash__", object.__hash__)  # noqa: B010

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "gelu": f.gelu, "silu": f.silu, "mish": f.mish, "elu": f.elu, "selu": f.selu, "leaky_relu": f.leaky_relu,
    "softplus": f.softplus, "hardswish": f.hardswish, "hardsigmoid": f.hardsigmoid, "logsigmoid": f.log_sigmoid,
    "softsign": f.softsign, "relu": f.relu, "tanh": f.tanh, "sigmoid": f.sigmoid, "glu": f.glu,
}  # fmt: skip

functional = Names(
    called="F", **ACTIVATIONS, softmax=_dim(f.softmax), log_softmax=_dim(f.log_softmax), dropout=f.dropout,
    linear=f.linear, embedding=f.embedding, pad=f.pad, one_hot=f.one_hot, normalize=f.normalize,
    layer_norm=f.layer_norm, rms_norm=f.rms_norm, group_norm=f.group_norm, batch_norm=f.batch_norm,
    conv1d=f.convolution, conv2d=f.convolution, conv_transpose1d=f.transposed_convolution,
    conv_transpose2d=f.transposed_convolution, max_pool1d=f.pool("MaxPool", 1, True),
    max_pool2d=f.pool("MaxPool", 2, True), avg_pool1d=f.pool("AvgPool", 1, False),
    avg_pool2d=f.pool("AvgPool", 2, False), prelu=f.prelu,
    scaled_dot_product_attention=f.scaled_dot_product_attention, grouped_mm=f.grouped_mm,
)  # fmt: skip


class _Init:
    """`nn.init`: numbers drawn in place, of which there are none."""

    def __getattr__(self, name: str) -> Any:
        return f.in_place


nn = Names(
    called="nn", Module=m.Module, ModuleList=m.ModuleList, Parameter=m.Parameter, Linear=m.Linear,
    Embedding=m.Embedding, LayerNorm=m.LayerNorm, RMSNorm=m.RMSNorm, GroupNorm=m.GroupNorm, BatchNorm1d=m.BatchNorm,
    BatchNorm2d=m.BatchNorm, Dropout=m.Dropout, PReLU=m.PReLU, Identity=m.Identity, Conv1d=m.convolution(1),
    Conv2d=m.convolution(2), ConvTranspose1d=m.convolution(1, True), ConvTranspose2d=m.convolution(2, True),
    GRUCell=r.GRUCell, LSTMCell=r.LSTMCell, RNNCell=r.RNNCell, init=_Init(), functional=functional,
)  # fmt: skip


class no_grad:  # noqa: N801
    """`torch.no_grad()`, as a context or around a function."""

    def __enter__(self) -> None:
        self.before, now().grad = now().grad, False

    def __exit__(self, *_: object) -> None:
        now().grad = self.before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return function(*args, **kwargs)

        return inside


torch = Names(
    called="torch", Tensor=Tensor, nn=nn, device=Device, dtype=DType, inf=math.inf, pi=math.pi, no_grad=no_grad,
    **DTYPES, long=int64, int=DTYPES["int32"], float=float32, **BOTH,
    empty=empty, zeros=empty, ones=empty, randn=empty, rand=empty, full=full, arange=arange, tensor=tensor,
    as_tensor=tensor, empty_like=like, zeros_like=like, ones_like=like, randn_like=like, rand_like=like,
    full_like=like, cat=f.cat, stack=f.stack, where=f.where, outer=f.outer, einsum=f.einsum, bmm=f.matmul,
    searchsorted=f.searchsorted, bitwise_and=f.bitwise, bitwise_or=f.bitwise, gru=r.gru, lstm=r.lstm,
    rnn_tanh=r.rnn, rnn_relu=r.rnn,
    compiler=Names(
        called="torch.compiler", is_compiling=lambda: False, is_dynamo_compiling=lambda: False,
        is_exporting=lambda: False,
    ),
    autocast=lambda *_, **__: nullcontext(), is_tensor=lambda x: isinstance(x, Tensor),
)  # fmt: skip


class _Known:
    """`torch.ops.archdsl`: what compiled code calls, which this is not. There is nothing to be registered."""

    def __getattr__(self, name: str) -> None: ...


class _Aten:
    """`torch.ops.aten.mm.default`: the function's name."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(default=name)


class Products:
    """What a checkpoint is computed in that keeps the results of some functions."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)
        self.results: list[Tensor] = []

    def __enter__(self) -> None:
        self.before, now().keeping = now().keeping, (self.names, self.results)

    def __exit__(self, *_: object) -> None:
        now().keeping = self.before

    @contextmanager
    def again(self) -> Iterator[None]:
        """In this it is computed again."""
        self.results.reverse()
        before, now().keeps = now().keeps, (self.names, self.results)
        try:
            yield
        finally:
            now().keeps = before


def selective(names: Sequence[str]) -> tuple[Products, Any]:
    """`create_selective_checkpoint_contexts`."""
    products = Products(names)
    return products, products.again()


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = False, context_fn: Any = None, **kwargs: Any
) -> Any:
    """`torch.utils.checkpoint.checkpoint`."""
    first, again = (nullcontext(), nullcontext()) if context_fn is None else context_fn()
    return checkpointed(function, args, kwargs, first.results if isinstance(first, Products) else [], first, again)


torch.ops = SimpleNamespace(aten=_Aten(), archdsl=_Known())
checkpointing = Names(
    called="torch.utils.checkpoint",
    checkpoint=checkpoint,
    create_selective_checkpoint_contexts=selective,
)
torch.is_grad_enabled = lambda: now().grad
torch.is_autocast_enabled = lambda *_: False
torch.SymInt = type("SymInt", (), {})
torch.inference_mode = lambda mode=True: no_grad() if mode else nullcontext()
# Attention in blocks is for CUDA alone: what it is made of is there to be imported.
blocks_of_attention = Names(
    called="torch.nn.attention.flex_attention", BlockMask=type("BlockMask", (), {}), create_block_mask=None,
    create_mask=None, flex_attention=None,
)  # fmt: skip

_MODULES = {
    "torch": torch,
    "torch.nn": nn,
    "torch.nn.functional": functional,
    "torch.nn.attention.flex_attention": blocks_of_attention,
    "torch.utils.checkpoint": checkpointing,
}


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    if name.partition(".")[0] != "torch":
        return builtins.__import__(name, globals, locals, fromlist, level)
    if name not in _MODULES:
        raise Unknown(name)
    return _MODULES[name] if fromlist else torch


def model_of(source: str | CodeType) -> m.Module:
    """The model of an emitted file (its last class), made over this torch, its submodules told their paths."""
    names: dict[str, Any] = {
        "__name__": __name__,  # dataclasses look the module up while they are made
        "__builtins__": {**vars(builtins), "__import__": _import},
    }
    exec(source, names)
    classes = [c for c in names.values() if isinstance(c, type) and issubclass(c, m.Module)]
    made: m.Module = classes[-1]()
    for path, module in made.named_modules():
        module.__dict__["_path"] = path
    return made
