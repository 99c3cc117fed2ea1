"""Ranks that share a model: experts of which each has some or a shard, and steps of decoding that end together."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


def shard_experts(experts: nn.Module, mesh: DeviceMesh, hidden: dict[str, int]) -> None:
    """Give each rank of `ep` some of the experts, and each rank of `tp` a shard of the hidden channels of each, which
    are the axes `hidden` of weights."""
    compute, axes = experts.forward, mesh.mesh_dim_names or ()
    ep, tp = (mesh[axis].size() if axis in axes else 1 for axis in ("ep", "tp"))
    weights = []
    for path, weight in [*experts.named_parameters()]:
        assert len(weight) % ep == 0, f"the number of experts, {len(weight)}, must be a multiple of the axis ep"
        placed = {"ep": Shard(0), "tp": Shard(hidden[path]) if path in hidden else Replicate()}
        part, name = experts.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        sharded = distribute_tensor(weight, mesh, [placed[axis] for axis in axes])
        part.register_parameter(name, nn.Parameter(sharded))
        weights.append((part, name, 1 if path in hidden else tp))

    def forward(rows: Tensor, ends: Tensor) -> Tensor:
        try:  # the experts compute with plain tensors, those of this rank
            for part, name, ranks in weights:  # so many ranks add a bias
                local = getattr(part, name).to_local()
                vars(part)[name] = local / ranks if ranks > 1 else local
                if local.requires_grad:  # batches of all ranks of ep came here, and the loss is the mean of theirs
                    local.register_hook(lambda gradient, ranks=ranks: gradient * ranks / ep)
            return compute(rows, ends)
        finally:
            for part, name, _ in weights:
                vars(part).pop(name, None)

    vars(experts)["tp"] = mesh["tp"] if tp > 1 else None
    experts.forward = exchange_rows(forward, mesh["ep"]) if ep > 1 else forward


def exchange_rows(compute: Callable[[Tensor, Tensor], Tensor], mesh: DeviceMesh) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what sends rows, sorted by expert, to the rank that has their expert, and gets its outputs back."""
    ranks, group = mesh.size(), mesh.get_group()

    def forward(rows: Tensor, ends: Tensor) -> Tensor:
        counts = ends.long().diff(prepend=ends.new_zeros(1)).view(ranks, -1)  # rows for each expert of each rank
        arrived = torch.empty_like(counts)  # rows for each expert of this rank, from one rank after the other
        dist.all_to_all_single(arrived, counts, group=group)
        sent, received = counts.sum(1).tolist(), arrived.sum(1).tolist()
        expert = torch.arange(arrived.size(1), device=rows.device).repeat(ranks).repeat_interleave(arrived.flatten())
        order = expert.argsort(stable=True)
        x = all_to_all_single_autograd(rows, received, sent, group)[order]
        y = compute(x, arrived.sum(0).cumsum(0, dtype=torch.int32))
        return all_to_all_single_autograd(torch.zeros_like(y).index_copy(0, order, y), sent, received, group)

    return forward


def enter_shards(experts: nn.Module, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors that experts read. Where ranks of `tp` have shards of the experts, gradients are all-reduced."""
    tp = getattr(experts, "tp", None)
    if tp is None:
        return tensors
    return tuple(DTensor.from_local(x, tp, [Replicate()]).to_local(grad_placements=[Partial()]) for x in tensors)


def leave_shards(experts: nn.Module, y: Tensor) -> Tensor:
    """Return what experts give together. Where ranks of `tp` have shards of the experts, it is all-reduced."""
    tp = getattr(experts, "tp", None)
    return y if tp is None else DTensor.from_local(y, tp, [Partial()]).full_tensor()


def all_ended(rows: Tensor) -> bool:
    """Return whether all rows have ended, those of all other ranks too: they go on or stop together."""
    ended = rows.all().int()
    if dist.is_initialized():
        dist.all_reduce(ended, op=dist.ReduceOp.MIN)
    return bool(ended)
