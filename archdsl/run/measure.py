"""The memory of a training step as PyTorch itself has it: the emitted file is run on fake tensors, which have shapes,
types and storages and no numbers, and the storages alive are added up.

What is run is `archdsl compile` op by op on a CPU, with `--checkpoint` where something is computed again. The loss is
that of `--with loss` (`chunked`), or the cross-entropy, in float32, of every output of several axes over its last, and
the mean square of others; `eager` by `F.cross_entropy`, or `fused` as one op.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from archdsl.backends.torch import Extras, emit
from archdsl.diagnostics import error
from archdsl.estimates.activations import Measured
from archdsl.estimates.loss import Loss
from archdsl.estimates.memory import Memory
from archdsl.ir.cost import whole_at
from archdsl.ir.graph import Model
from archdsl.passes.checkpoint import Checkpoint
from archdsl.run.load import load_source


def with_measured(memory: Memory, model: Model, checkpoint: Checkpoint) -> Memory:
    """Return the memory of a model with what a step takes under PyTorch, at the memory's sizes. Errors as of
    `measure`."""
    fixed = memory.weights + memory.buffers + memory.optimizer
    measured = measure(model, memory.sizes, dtype=memory.dtype, checkpoint=checkpoint, loss=memory.loss, fixed=fixed)
    return memory.model_copy(update={"measured": measured})


def measure(
    model: Model, sizes: Mapping[str, int], *, dtype: str, checkpoint: Checkpoint, loss: Loss, fixed: int
) -> Measured:
    """Measure the bytes that a step saves for its backward pass, and its peak. `fixed` are the bytes that are there
    throughout: weights, buffers, optimizer state.

    Raises ArchError E0512 where the file needs numbers, E0526 where the loss cannot be computed in chunks, and E0527
    where there are no layers to compute again."""
    chunked = loss == "chunked"
    made = load_source(emit(model, Extras(frozenset(["loss"] if chunked else []), checkpoint)))
    with torch.device("meta"):
        module = made().to(getattr(torch, dtype)).train()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            materialize(module)
            given = inputs_of(model, sizes, getattr(torch, dtype))
            if chunked:  # the targets of the loss come last
                ((_, logits),) = model.outputs
                shape = [whole_at(d.value, dict(sizes)) for d in logits.shape[:-1]]
                given.append(torch.empty(shape, dtype=torch.long))
            held = [*module.parameters(), *module.buffers(), *given]
            with Storages(held) as alive:
                behind = [t.grad_fn for t in outputs_of(module(*given))]
                saved = alive.bytes
            del behind
            with Storages(held) as alive:
                losses = [loss_of(outputs_of(module(*given)), loss)]
                forward, alive.peak = alive.peak, alive.bytes
                losses.pop().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as problem:
        reason = str(problem).partition("\n")[0].rstrip(".")
        raise error(
            "E0512",
            f"PyTorch cannot run the emitted file on tensors without numbers: {reason}",
            help="without `--measure` the memory of the step is estimated",
        ) from None
    inputs = sum(t.nbytes for t in given)
    # Without numbers PyTorch lays out the result of batch normalization otherwise, which may spare a copy.
    laid_out = not any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in module.modules())
    return Measured(
        exact=laid_out and not alive.bounded,
        saved=saved,
        forward=fixed + inputs + forward,
        backward=fixed + inputs + alive.peak,
        peak=fixed + inputs + max(forward, alive.peak),
        kernels=[*alive.kernels],
    )


def materialize(module: nn.Module) -> None:
    """Put fake tensors of a CPU in place of those of no device."""
    known: dict[int, Tensor] = {}
    for inner in module.modules():
        tables: tuple[dict[str, Any], ...] = (inner._parameters, inner._buffers)
        for table in tables:
            for name, t in table.items():
                if t is not None:
                    fake = known.get(id(t))
                    if fake is None:
                        fake = torch.empty_like(t, device="cpu")
                        fake = nn.Parameter(fake, t.requires_grad) if isinstance(t, nn.Parameter) else fake
                    table[name] = known[id(t)] = fake


def inputs_of(model: Model, sizes: Mapping[str, int], dtype: torch.dtype) -> list[Tensor]:
    """Empty inputs of a model."""
    found = []
    for _, value in model.inputs:
        shape = [whole_at(d.value, dict(sizes)) for d in value.shape]
        kind = torch.bool if value.is_bool else torch.int64 if value.is_int else dtype
        found.append(torch.empty(shape, dtype=torch.float32 if value.dtype == "float32" else kind))
    return found


def outputs_of(results: Any) -> list[Tensor]:
    """The outputs that have a gradient."""
    return [t for t in tree_leaves(results) if isinstance(t, Tensor) and t.requires_grad]


def loss_of(outputs: Sequence[Tensor], loss: Loss) -> Tensor:
    """The sum of the losses of all outputs; in chunks, the model's only output is its loss."""
    if loss == "chunked":
        return outputs[0]
    total: Tensor = torch.zeros((), requires_grad=True)
    for t in outputs:
        if loss == "fused":
            total = FusedLoss.apply(t) + total  # type: ignore[no-untyped-call]
        elif t.dim() > 1:
            targets = torch.zeros(t.numel() // t.size(-1), dtype=torch.long)
            total = F.cross_entropy(t.float().flatten(0, -2), targets) + total
        else:
            total = t.float().square().mean() + total
    return total


class FusedLoss(torch.autograd.Function):
    """The tensors of a loss in one kernel: it keeps its input, and a number in float32 for each position."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t, t.new_empty(t.shape[:-1], dtype=torch.float32))
        return t.new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.empty_like(ctx.saved_tensors[0])


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages alive, and the most there were; without those given."""

    def __init__(self, given: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak = 0
        self.kernels: dict[str, None] = {}
        """Those that hold more than an accelerator's."""
        self.bounded = False
        """Whether numbers decide how many rows there are somewhere; then the most are taken."""
        self.held = [t.untyped_storage() for t in given]
        self.known: dict[int, Any] = {s._cdata: None for s in self.held}
        ops = torch.ops.aten
        self.attention = ops._scaled_dot_product_flash_attention_for_cpu.default
        self.unfused = {
            ops._safe_softmax.default: "attention that keeps its scores",
            ops.rsqrt.default: "RMS norms in parts",
            self.attention: "attention with a dense mask",
        }
        self.instead: dict[Any, Callable[..., Any]] = {
            ops.mkldnn_rnn_layer.default: in_earnest,
            ops.nonzero.default: self.all_rows,
        }
        if hasattr(ops, "_grouped_mm"):
            self.instead[ops._grouped_mm.default] = grouped

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if function in self.unfused and (function != self.attention or named.get("attn_mask") is not None):
            self.kernels[self.unfused[function]] = None
        instead = self.instead.get(function)
        results = instead(function, *args, **named) if instead else function(*args, **named)
        for t in tree_leaves(results):
            if isinstance(t, Tensor):
                self.add(t.untyped_storage())
        return results

    def add(self, storage: torch.UntypedStorage) -> None:
        at, size = storage._cdata, storage.nbytes()
        if at in self.known:
            return

        def gone(_: object) -> None:
            self.bytes -= size
            del self.known[at]

        self.known[at] = weakref.ref(storage, gone)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

    def all_rows(self, _: Any, x: Tensor) -> Tensor:
        """Every element."""
        self.bounded = True
        return x.new_empty(x.numel(), x.dim(), dtype=torch.int64)


def grouped(function: Any, x: Tensor, weight: Tensor, offs: Tensor, *rest: Any, **named: Any) -> Tensor:
    """A grouped product. PyTorch's own for fake tensors knows bfloat16 alone."""
    if x.dtype == torch.bfloat16:
        found: Tensor = function(x, weight, offs, *rest, **named)
        return found
    if weight.dim() == 3:
        return x.new_empty(x.size(0), weight.size(-1))
    return x.new_empty(offs.numel(), x.size(0), weight.size(-1))


def in_earnest(function: Any, *args: Any) -> Any:
    """What a layer of oneDNN gives for zeros: only the kernel knows how large its workspace is."""
    with unset_fake_temporarily():
        real = tree_map_only(Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), args)
        results = function(*real)
    return tree_map_only(Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype), results)
