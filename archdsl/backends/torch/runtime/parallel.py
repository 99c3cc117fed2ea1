"""Ranks that share a model: experts of which each has some, and steps of decoding that end together."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor


def shard_experts(experts: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of a mesh some of the experts: rows go to the rank of their expert, and its outputs come back."""
    ranks, group, compute = mesh.size(), mesh.get_group(), experts.forward
    weights = [(part, name) for part in experts.modules() for name, _ in part.named_parameters(recurse=False)]
    for part, name in weights:
        weight = getattr(part, name)
        assert len(weight) % ranks == 0, f"the number of experts, {len(weight)}, must be a multiple of the axis ep"
        part.register_parameter(name, nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)])))

    def forward(rows: Tensor, ends: Tensor) -> Tensor:
        counts = ends.long().diff(prepend=ends.new_zeros(1)).view(ranks, -1)  # rows for each expert of each rank
        arrived = torch.empty_like(counts)  # rows for each expert of this rank, from one rank after the other
        dist.all_to_all_single(arrived, counts, group=group)
        sent, received = counts.sum(1).tolist(), arrived.sum(1).tolist()
        expert = torch.arange(arrived.size(1), device=rows.device).repeat(ranks).repeat_interleave(arrived.flatten())
        order = expert.argsort(stable=True)
        x = all_to_all_single_autograd(rows, received, sent, group)[order]
        try:  # the experts compute with plain tensors, those of this rank
            for part, name in weights:
                vars(part)[name] = local = getattr(part, name).to_local()
                if local.requires_grad:  # batches of all ranks came here, and the loss is the mean of theirs
                    local.register_hook(lambda gradient: gradient / ranks)
            y = compute(x, arrived.sum(0).cumsum(0, dtype=torch.int32))
        finally:
            for part, name in weights:
                vars(part).pop(name, None)
        return all_to_all_single_autograd(torch.zeros_like(y).index_copy(0, order, y), sent, received, group)

    experts.forward = forward


def all_ended(rows: Tensor) -> bool:
    """Return whether all rows have ended, those of all other ranks too: they go on or stop together."""
    ended = rows.all().int()
    if dist.is_initialized():
        dist.all_reduce(ended, op=dist.ReduceOp.MIN)
    return bool(ended)
