"""The stages of one model on devices one behind the other."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor


class Stage(nn.Module):
    """What a `Pipeline` reads of the class of that name in a file."""

    is_first: bool
    is_last: bool
    tied: tuple[str, ...]


class Pipeline:
    """A schedule of micro-batches (1F1B) through the stages of one model."""

    def __init__(
        self, stage: Stage, mesh: DeviceMesh, micro_batches: int, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        self.stage, self.mesh = stage, mesh["pp"]
        count, index = self.mesh.size(), self.mesh.get_local_rank()
        device = torch.device(mesh.device_type)
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        steps = PipelineStage(stage, index, count, device, group=self.mesh.get_group())
        self.schedule = Schedule1F1B(steps, micro_batches, loss)

    def sum_tied(self) -> None:
        """The first and the last stage have a weight in common: the gradient is the sum of both."""
        if self.mesh.size() == 1 or not (self.stage.is_first or self.stage.is_last):
            return
        ranks = dist.get_process_group_ranks(self.mesh.get_group())
        other = ranks[-1] if self.stage.is_first else ranks[0]
        for path in self.stage.tied:
            gradient = self.stage.get_parameter(path).grad
            gradient = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            received = torch.empty_like(gradient)
            group = self.mesh.get_group()
            send = dist.P2POp(dist.isend, gradient.clone(), other, group)
            receive = dist.P2POp(dist.irecv, received, other, group)
            for work in dist.batch_isend_irecv([send, receive]):
                work.wait()
            gradient += received
