"""`archdsl run`: the emitted module, run once forwards and once backwards on made-up inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from math import isfinite, prod
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from archdsl.diagnostics import Diagnostic, error
from archdsl.diagnostics.exhausted import SMALLER, exhaustion_told
from archdsl.ir.cost import elements, whole_at
from archdsl.ir.dims import Poly, evaluate
from archdsl.ir.graph import Model, Value
from archdsl.ir.paths import layers_of, starred
from archdsl.ir.walk import ops_below
from archdsl.ir.weights import weights_of
from archdsl.packages import install

if TYPE_CHECKING:
    import torch
    from torch import nn

DEFAULT_TIME = 128
"""How long the sequences are where nobody says and the context allows it."""


class TensorInfo(BaseModel):
    """A tensor that went in or came out."""

    dtype: str
    shape: list[int]


class Untouched(BaseModel):
    """Weights that have no gradient after a step, those of all layers together."""

    path: str
    """Their name in the emitted model's `state_dict`; `*` stands for the numbers of layers."""
    layers: list[int]
    """Those that the first `*` of `path` stands for."""
    block: str
    """The block of the spec that they stand in."""
    source: str
    """Where in it: `tiny.arch:3`."""


class RunReport(BaseModel):
    """What `archdsl run` prints."""

    model: str
    device: str
    dtype: str
    parameters: int
    weights: int
    """How many tensors of parameters there are."""
    gradients: int
    """How many of them have a gradient after the step."""
    without_gradient: list[str]
    """The names of the others."""
    untouched: list[Untouched]
    """Where in the spec these are."""
    gradient_norm: float | None
    """None where it is not finite."""
    mean_square: float | None
    """The mean of the squares of all results, from which the backward pass starts; None where it is not finite."""
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]
    nan: dict[str, int]
    """Outputs with NaN, and how many of their numbers are."""
    milliseconds: dict[str, float]

    def failure(self) -> Diagnostic | None:
        """Return the finding E0510 where a result is NaN, or a gradient not finite though all results are."""
        finding = not_numbers(self.model, self.outputs, self.nan)
        if finding is None and self.gradient_norm is None and self.mean_square is not None:
            finding = Diagnostic("E0510", f"the gradient of `{self.model}` is not finite", help=NOT_FINITE)
        return finding


NOT_FINITE = "look for a division by zero, a logarithm or root of less, a row of attention without any key"


def not_numbers(model: str, outputs: Mapping[str, TensorInfo], nan: Mapping[str, int]) -> Diagnostic | None:
    """Return the finding E0510 where results of a model are NaN."""
    if not nan:
        return None
    wrong = [f"{count:,} of {prod(outputs[name].shape):,} numbers of `{name}`" for name, count in nan.items()]
    return Diagnostic("E0510", f"results of `{model}` are NaN: {', '.join(wrong)}", help=NOT_FINITE)


@exhaustion_told()
def run(
    model: Model, *, weights: Path | None, seed: int, batch: int, time: int | None, device: str, dtype: str
) -> RunReport:
    """Compile a model, load its weights or draw them, and run one step.

    Raises ArchError: E0502 where torch or the device is missing, E0503 where the model does not fit, the weights are
    not its own, or the inputs break one of its conditions."""
    torch = demand_torch()
    from archdsl.backends.torch import emit
    from archdsl.run.load import load_source

    where = device_called(torch, device)
    fits(torch, model, where, dtype)
    shapes = input_shapes(model, batch, time, memory_of(torch, where))
    milliseconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = perf_counter()
        result = work()
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        milliseconds[name] = 1e3 * (perf_counter() - start)
        return result

    source = timed("emit", lambda: emit(model))
    torch.manual_seed(seed)

    def build() -> nn.Module:
        with torch.device(where):
            made: nn.Module = load_source(source)()
        return made

    module = timed("build", build)
    if weights is not None:
        timed("load", lambda: load_weights(module, weights, where))
    module = module.to(getattr(torch, dtype)).train()
    inputs = _inputs(torch, model, where, dtype, shapes)
    try:
        results = timed("forward", lambda: module(*inputs.values()))
        tensors = named(model, results)
        floats = [t for t in tensors.values() if t.is_floating_point()]
        squares = [t.float().square().mean() for t in floats]
        mean_square = torch.stack(squares).mean() if squares else torch.zeros(())
        if mean_square.requires_grad:
            timed("backward", mean_square.backward)
    except (AssertionError, ValueError) as problem:
        raise error(
            "E0503", f"the model refused its inputs: {one_line(problem)}", help="give another `--seq` or `--batch`"
        ) from None
    named_parameters = dict(module.named_parameters())
    parameters = [*named_parameters.values()]
    gradients = [p.grad for p in parameters if p.grad is not None]
    without = [name for name, p in named_parameters.items() if p.grad is None]
    norm = float(torch.stack([g.float().norm() for g in gradients]).norm()) if gradients else 0.0
    return RunReport(
        model=model.name,
        device=str(where),
        dtype=dtype,
        parameters=sum(p.numel() for p in parameters),
        weights=len(parameters),
        gradients=len(gradients),
        without_gradient=without,
        untouched=list(_untouched(model, without)),
        gradient_norm=norm if isfinite(norm) else None,
        mean_square=mean if isfinite(mean := float(mean_square.detach())) else None,
        inputs={k: _info(v) for k, v in inputs.items()},
        outputs={k: _info(v) for k, v in tensors.items()},
        nan={k: n for k, v in tensors.items() if (n := int(v.isnan().sum()))},
        milliseconds=milliseconds,
    )


def _untouched(model: Model, names: list[str]) -> Iterator[Untouched]:
    """Yield where weights of a model stand in its spec, given their paths."""
    found: dict[tuple[str, str, str], list[str]] = {}
    kept = {*names}
    for weight in weights_of(model.block):
        if weight.path in kept:
            found.setdefault((starred(weight.path), weight.block.name, str(weight.span)), []).append(weight.path)
    for (path, block, source), paths in found.items():
        yield Untouched(path=path, layers=layers_of(paths), block=block, source=source)


def one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__


def _info(tensor: Any) -> TensorInfo:
    return TensorInfo(dtype=str(tensor.dtype).removeprefix("torch."), shape=list(tensor.shape))


def demand_torch() -> Any:
    """The module torch. Raises ArchError E0502 where it is not installed."""
    try:
        import torch
    except ImportError:
        raise error("E0502", "running a model needs PyTorch, which is not installed", help=install("torch")) from None
    return torch


def device_called(torch: Any, name: str, runs: bool = True) -> Any:
    """Return the device of that name; raises ArchError E0502 where there is none, and for the meta device if the model
    `runs` there: its tensors have no numbers."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        if device.type == "meta" and runs:
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as problem:
        raise error(
            "E0502",
            f"there is no device `{name}` here: {one_line(problem).split('. ')[0]}",
            help="`--device cpu` is always there",
        ) from None
    return device


def fits(torch: Any, model: Model, device: torch.device, dtype: str, gradients: bool = True) -> None:
    """Refuse (E0503) what would bring the machine down: the weights, and their gradients if there are to be some, alone
    need more than there is."""
    from archdsl.estimates.counts import total

    numbers = total(model)
    # drawn in float32, then weights and gradients
    need = numbers * max(4, (2 if gradients else 1) * getattr(torch, dtype).itemsize)
    free = memory_of(torch, device)
    if free is not None and need > free:
        with_them = "with gradients " if gradients else ""
        there = f"and {device} has {free / 2**30:,.1f} GiB"
        raise error(
            "E0503",
            f"`{model.name}` has {numbers:,} parameters: {with_them}{need / 2**30:,.1f} GiB in {dtype}, {there}",
            help="make it smaller for a trial: `--set layers=2 --set width=256`",
        )


def memory_of(torch: Any, device: torch.device) -> int | None:
    """Return the free bytes of a GPU, or all bytes of this machine's memory for the CPU; None where these are not
    known."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return machine_memory() if device.type == "cpu" else None


def machine_memory() -> int | None:
    """Return the bytes of memory that this machine has; None where the system does not say so."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def load_weights(module: nn.Module, path: Path, device: torch.device) -> None:
    from safetensors.torch import load_file

    from archdsl.weights.safetensors import Checkpoint, demand_same

    own = {name: tuple(t.shape) for name, t in module.state_dict().items()}
    demand_same(path, own, {name: entry.shape for name, entry in Checkpoint(path).entries.items()})
    module.load_state_dict(load_file(path, device=str(device)))


# --- inputs and results -----------------------------------------------------------------------------------------------


def _inputs(
    torch: Any, model: Model, device: torch.device, dtype: str, shapes: dict[str, list[int]]
) -> dict[str, torch.Tensor]:
    """Random tokens and numbers; every position real, all of one document, all of the first kind."""
    from archdsl.estimates.params import vocabulary

    rows = vocabulary(model) or 2
    return {name: _drawn(torch, value, shapes[name], rows, device, dtype) for name, value in model.inputs}


def input_shapes(model: Model, batch: int, time: int | None, memory: int | None) -> dict[str, list[int]]:
    """The shape of every input for so many sequences of that length; 128 or the context by default. Raises ArchError
    E0503 where a size would not be a whole number, nothing would be left of a tensor, or inputs and results alone take
    more than so many bytes of memory."""
    from archdsl.estimates.dtypes import width
    from archdsl.estimates.flops import demand_sizes

    context = model.context.value if model.context is not None else None
    length = time or (min(DEFAULT_TIME, context) if isinstance(context, int) else DEFAULT_TIME)
    sizes = {s.name: batch if s.name == "batch" else length for s in model.symbols}
    for node in ops_below(model.block.graph):
        for d in (d.value for value in node.outputs for d in value.shape if isinstance(d.value, Poly)):
            if {s.name for s in d.symbols} <= sizes.keys() and evaluate(d, sizes) < 1:
                message = f"at these lengths the result of `{node.op.name}` is empty"
                raise error("E0503", message, node.span, help="give a larger `--seq`")
    demand_sizes(model, sizes)
    tensors = [value for _, value in (*model.inputs, *model.outputs)]
    need = sum(whole_at(elements(v.shape), sizes) * width(v.dtype, "float16") for v in tensors)
    if memory is not None and need > memory:
        text = f"inputs and results alone take {need / 2**30:,.1f} GiB at batch size {batch:,} and length {length:,}"
        raise error("E0503", f"{text}, and there are {memory / 2**30:,.1f} GiB", help=SMALLER)
    return {name: [int(evaluate(d.value, sizes)) for d in value.shape] for name, value in model.inputs}


def _drawn(torch: Any, value: Value, shape: list[int], rows: int, device: torch.device, dtype: str) -> Any:
    if value.dtype == "token":
        return torch.randint(rows, shape, device=device)
    if value.is_int:
        return torch.zeros(shape, dtype=torch.long, device=device)
    if value.is_bool:
        return torch.ones(shape, dtype=torch.bool, device=device)
    return torch.randn(shape, device=device, dtype=getattr(torch, dtype if value.dtype == "float" else value.dtype))


def named(model: Model, results: Any) -> dict[str, torch.Tensor]:
    """The results under their names; numbered where they have none."""
    flat = list(_flat(results))
    names = [n for n, _ in model.outputs] if len(flat) == sum(1 for _ in model.outputs) else [None] * len(flat)
    plain = ["output"] if len(flat) == 1 else [f"output_{i}" for i in range(len(flat))]
    return {name or other: tensor for name, other, tensor in zip(names, plain, flat, strict=True)}


def _flat(results: Any) -> Iterator[Any]:
    if isinstance(results, tuple | list):
        for item in results:
            yield from _flat(item)
    else:
        yield results
