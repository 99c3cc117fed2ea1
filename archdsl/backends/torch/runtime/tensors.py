"""Lists of raw weights and buffers."""

from collections.abc import Iterable

from torch import Tensor, nn


class Tensors(nn.Module):
    """A list of buffers, and of parameters among them: `nn.ParameterList` makes parameters of all."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.length = 0
        for tensor in tensors:
            setattr(self, str(self.length), tensor)
            self.length += 1

    def __getitem__(self, i: int | slice) -> Tensor | list[Tensor]:
        return [getattr(self, str(k)) for k in range(self.length)][i]
