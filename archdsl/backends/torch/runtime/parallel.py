"""What devices do together that share a model."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor


class SumGradients(torch.autograd.Function):
    """The tensor itself, which every device has; backwards, the sum of what each device makes of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


def sum_gradients(module: nn.Module, mesh: DeviceMesh) -> None:
    """Add up the gradients of a module's own weights: each device uses them, whole, for its part of the work."""
    names = [name for name, _ in module.named_parameters(recurse=False)]

    def enter(*_: Any) -> None:
        for name in names:
            vars(module)[name] = SumGradients.apply(getattr(module, name), mesh.get_group())

    def leave(*_: Any) -> None:
        for name in names:
            vars(module).pop(name, None)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


class Shards:
    """What a block asks where several devices share its heads: `sizes` are those that are cut."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.mesh: DeviceMesh | None = None

    def cut(self, mesh: DeviceMesh, name: str) -> None:
        for size in self.sizes:
            if size % mesh.size():
                raise ValueError(f"{name}: {mesh.size()} devices cannot share {size} heads equally")
        self.mesh = mesh

    def of(self, size: int) -> int:
        """How many of them this device has."""
        return size if self.mesh is None else size // self.mesh.size()

    def shared(self, x: Tensor) -> Tensor:
        """A tensor that every device has whole and uses for its own heads."""
        return x if self.mesh is None else SumGradients.apply(x, self.mesh.get_group())

    def own(self, x: Tensor, axis: int) -> Tensor:
        """This device's part of a tensor that every device has whole."""
        if self.mesh is None:
            return x
        return self.shared(x).chunk(self.mesh.size(), axis)[self.mesh.get_local_rank()]


def word_scores(x: Tensor, table: Tensor) -> Tensor:
    """x @ table.T. Where the words lie on several devices, each scores its own, and all get all scores."""
    if not isinstance(table, DTensor):
        return F.linear(x.to_local() if isinstance(x, DTensor) else x, table)
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, table.device_mesh, [Replicate()], run_check=False)
    return F.linear(x, table).redistribute(placements=[Replicate()]).to_local()


def lay_inputs(
    module: nn.Module, mesh: DeviceMesh, numbers: tuple[int, ...], now: Placement, then: Placement, local: bool = True
) -> None:
    """Hand a module some of its inputs in another layout, as plain tensors if `local`."""

    def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        found = list(inputs)
        for i in numbers:
            x = DTensor.from_local(found[i], mesh, [now], run_check=False).redistribute(placements=[then])
            found[i] = x.to_local() if local else x
        return tuple(found)

    module.register_forward_pre_hook(enter)


def drop_places(dropout: nn.Dropout, mesh: DeviceMesh) -> None:
    """Have a module drop of this device's places what one device alone would drop: all draw one mask for all places."""

    def forward(x: Tensor) -> Tensor:
        if not dropout.training:
            return x
        whole = torch.ones(x.size(0), x.size(1) * mesh.size(), *x.shape[2:], device=x.device)
        kept = F.dropout(whole, dropout.p).chunk(mesh.size(), 1)[mesh.get_local_rank()] != 0
        return x * kept / (1 - dropout.p)

    dropout.forward = forward


def all_ended(rows: Tensor) -> bool:
    """Whether all rows have come to their end, those of every other device, too: they go on or stop together."""
    ended = rows.all().int()
    if dist.is_initialized():
        dist.all_reduce(ended, op=dist.ReduceOp.MIN)
    return bool(ended)


def share_weights(module: nn.Module, mesh: DeviceMesh) -> None:
    """Share out the weights of experts over a mesh. They go on computing with plain tensors, those of this device."""

    def named() -> list[tuple[nn.Module, str, Tensor]]:
        return [(part, *item) for part in module.modules() for item in part.named_parameters(recurse=False)]

    def enter(*_: Any) -> None:
        for part, name, weight in named():
            if isinstance(weight, DTensor):
                local = weight.to_local()
                if local.requires_grad:  # all devices' batches came here, and a loss is the mean of theirs
                    local.register_hook(lambda gradient: gradient / mesh.size())
                vars(part)[name] = local

    def leave(*_: Any) -> None:
        for part, name, _weight in named():
            vars(part).pop(name, None)

    for part, name, weight in named():
        part.register_parameter(name, nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)])))
    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


class AllToAll(torch.autograd.Function):
    """Rows to other devices: `there` of them to each, `here` of them from each."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: list[int], here: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.there, ctx.here, ctx.group = there, here, group
        found = rows.new_empty(sum(here), *rows.shape[1:])
        dist.all_to_all_single(found, rows.contiguous(), here, there, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return AllToAll.apply(gradient, ctx.here, ctx.there, ctx.group), None, None, None


class Exchange:
    """Experts of which each device has some: rows go to the device that has theirs, and the answers come back."""

    def __init__(self, experts: nn.Module, count: int, mesh: DeviceMesh) -> None:
        self.experts, self.count = experts.forward, count
        self.group, self.devices = mesh.get_group(), mesh.size()

    def __call__(self, rows: Tensor, given: Tensor) -> Tensor:
        sent = given.long().diff(prepend=given.new_zeros(1))  # rows for each expert
        came = torch.empty_like(sent)  # rows for each expert here, from one device after the other
        dist.all_to_all_single(came, sent, group=self.group)
        there, here = sent.view(self.devices, -1).sum(1).tolist(), came.view(self.devices, -1).sum(1).tolist()
        x = AllToAll.apply(rows, there, here, self.group)
        local = torch.arange(self.count // self.devices, device=rows.device).repeat(self.devices)
        order = local.repeat_interleave(came).argsort(stable=True)
        ends = came.view(self.devices, -1).sum(0).cumsum(0).to(torch.int32)
        y = self.experts(x[order], ends)
        y = torch.zeros_like(y).index_copy(0, order, y)
        return AllToAll.apply(y, here, there, self.group)


def no_step(*_: Any, **__: Any) -> Tensor:
    raise ValueError("a step is one place, which devices cannot share: parallelize without `sequence_parallel`")
