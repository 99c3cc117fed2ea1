"""The modules of `torch.nn` that emitted code makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from archdsl.eager import functions as f
from archdsl.eager.tensors import DType, Shape, Storage, Tensor, Unknown, float32, int64, now


class Parameter:
    """`nn.Parameter(tensor)`: the tensor itself, a weight from then on."""

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> Any:
        weight = data.alias()
        weight.requires_grad = requires_grad
        return weight


class Module:
    """A module: weights, buffers and modules within, by name. Its own names are those of torch, which emitted code
    leaves alone."""

    training: bool = True

    def __init__(self) -> None:
        self._parameters: dict[str, Tensor]
        self._buffers: dict[str, Tensor]
        self._modules: dict[str, Module]
        self.__dict__.update(_parameters={}, _buffers={}, _modules={})

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.requires_grad and value.node is None:
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._modules[name] = value
        object.__setattr__(self, name, value)

    def register_parameter(self, name: str, value: Tensor | None) -> None:
        setattr(self, name, value)

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        if value is not None:
            self._buffers[name] = value
        object.__setattr__(self, name, value)

    def parameters(self) -> Iterator[Tensor]:
        seen: set[int] = set()
        for _, module in self.named_modules():
            for weight in module._parameters.values():
                if id(weight) not in seen:
                    seen.add(id(weight))
                    yield weight

    def buffers(self) -> Iterator[Tensor]:
        for _, module in self.named_modules():
            yield from module._buffers.values()

    def children(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def modules(self) -> Iterator[Module]:
        return (module for _, module in self.named_modules())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def apply(self, function: Callable[[Module], Any]) -> Module:
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise Unknown(f"{type(self).__name__}.forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = now()
        path = self.__dict__.get("_path", session.where[-1])
        session.where.append(path)
        session.enter(path)
        try:
            return self.forward(*args, **kwargs)
        finally:
            session.where.pop()
            session.enter(session.where[-1])


def cast(module: Module, dtype: DType) -> None:
    """All floating weights and buffers of a module in another type."""
    for t in (*module.parameters(), *module.buffers()):
        if t.dtype.is_floating_point:
            t.dtype = dtype
            t.storage = Storage(t.numel() * dtype.itemsize)


class ModuleList(Module):
    """Modules in a row."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> ModuleList:
        self._modules[str(len(self._modules))] = module
        return self

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, key: Any) -> Any:
        found = list(self._modules.values())[key]
        return found if isinstance(found, Module) else ListSlice(found)


class ListSlice(list[Module]):
    """Some of the modules of a list."""


class Linear(Module):
    def __init__(self, inputs: int, outputs: int, bias: bool = True, **_: Any) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.weight = made(outputs, inputs)
        self.bias = made(outputs) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return f.linear(x, self.weight, self.bias)


class Embedding(Module):
    def __init__(self, rows: int, width: int, **_: Any) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = rows, width
        self.weight = made(rows, width)

    def forward(self, index: Tensor) -> Tensor:
        return f.embedding(index, self.weight)


class LayerNorm(Module):
    def __init__(
        self, shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True, **_: Any
    ) -> None:
        super().__init__()
        self.normalized_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight = made(*self.normalized_shape) if elementwise_affine else None
        self.bias = made(*self.normalized_shape) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        return f.layer_norm(x, self.normalized_shape, self.weight, self.bias)


class RMSNorm(Module):
    def __init__(self, shape: Any, eps: float | None = None, elementwise_affine: bool = True, **_: Any) -> None:
        super().__init__()
        self.normalized_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight = made(*self.normalized_shape) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        return f.rms_norm(x, self.normalized_shape, self.weight)


class GroupNorm(Module):
    def __init__(self, groups: int, channels: int, eps: float = 1e-5, affine: bool = True, **_: Any) -> None:
        super().__init__()
        self.num_groups, self.num_channels, self.eps = groups, channels, eps
        self.weight = made(channels) if affine else None
        self.bias = made(channels) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return f.group_norm(x, self.num_groups, self.weight, self.bias)


class BatchNorm(Module):
    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, **_: Any) -> None:
        super().__init__()
        self.weight, self.bias = made(channels), made(channels)
        self.register_buffer("running_mean", Tensor((channels,), float32))
        self.register_buffer("running_var", Tensor((channels,), float32))
        self.register_buffer("num_batches_tracked", Tensor((), int64))

    def forward(self, x: Tensor) -> Tensor:
        return f.batch_norm(
            x, self._buffers["running_mean"], self._buffers["running_var"], self.weight, self.bias, True
        )


class Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return f.dropout(x, self.p, self.training)


class PReLU(Module):
    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        self.weight = made(num_parameters)

    def forward(self, x: Tensor) -> Tensor:
        return f.prelu(x, self.weight)


class Identity(Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def convolution(rank: int, turned: bool = False) -> type[Module]:
    """`nn.Conv1d`, `nn.ConvTranspose2d`, …"""

    class Convolution(Module):
        def __init__(
            self,
            inputs: int,
            outputs: int,
            kernel_size: Any,
            stride: Any = 1,
            padding: Any = 0,
            output_padding: Any = 0,
            groups: int = 1,
            bias: bool = True,
            dilation: Any = 1,
            **_: Any,
        ) -> None:
            super().__init__()
            kernel = f.each(kernel_size, rank)
            first, second = (inputs, outputs) if turned else (outputs, inputs)
            self.weight = made(first, second // groups, *kernel)
            self.bias = made(outputs) if bias else None
            self.settings = (stride, padding, dilation, groups)
            self.output_padding = output_padding

        def forward(self, x: Tensor) -> Tensor:
            stride, padding, dilation, groups = self.settings
            if turned:
                return f.transposed_convolution(
                    x, self.weight, self.bias, stride, padding, self.output_padding, groups, dilation
                )
            return f.convolution(x, self.weight, self.bias, stride, padding, dilation, groups)

    return Convolution


def made(*shape: int) -> Tensor:
    """A weight of that shape."""
    weight: Tensor = Parameter(Tensor(shape, float32))
    return weight


class Recurrence(Module):
    """`nn.GRU`, `nn.LSTM`, `nn.RNN` and their cells: the weights. What they do is in `recurrent`."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, **settings: Any) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        shapes: list[tuple[str, Shape]] = [("weight_ih", (rows, input_size)), ("weight_hh", (rows, hidden_size))]
        if bias:
            shapes += [("bias_ih", (rows,)), ("bias_hh", (rows,))]
        for name, shape in shapes:
            setattr(self, name + self.suffix(), made(*shape))
        self.settings = settings

    def suffix(self) -> str:
        return "_l0"
