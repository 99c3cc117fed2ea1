"""Show, Attend and Tell (Xu et al., 2015): an LSTM tells a caption, and looks at a part of the image for each word.

54,839,722 parameters. Made by archdsl 0.1.0 from show_attend_tell.arch (dcf01b87fbac):
    archdsl compile show_attend_tell.arch:show_attend_tell --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    vocab: int = 10_000
    width: int = 512
    hidden: int = 1800
    image: int = 224
    channels: int = 64

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.image == 224, f"the graph depends on image == 224: compile again with --set: {self}"


class Stage(nn.Module):
    """A stage of VGG: convolutions of 3 x 3, each behind the other."""

    def __init__(self, features: int, channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(channels, features, 3, padding=1), nn.Conv2d(features, features, 3, padding=1)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(x))
        return x


class Stage2(nn.Module):
    """A stage of VGG: convolutions of 3 x 3, each behind the other."""

    def __init__(self, features: int, channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(channels, features, 3, padding=1),
                *(nn.Conv2d(features, features, 3, padding=1) for _ in range(3)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(x))
        return x


class Stage3(nn.Module):
    """A stage of VGG: convolutions of 3 x 3, each behind the other."""

    def __init__(self, features: int, depth: int, channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(channels, features, 3, padding=1) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(x))
        return x


class Vgg(nn.Module):
    """VGG-19 (Simonyan and Zisserman, 2015) up to its last convolution."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.stage_1 = Stage(features=config.channels, channels=3)
        self.stage_2 = Stage(features=2 * config.channels, channels=config.channels)
        self.stage_3 = Stage2(features=4 * config.channels, channels=2 * config.channels)
        self.stage_4 = Stage2(features=8 * config.channels, channels=4 * config.channels)
        self.stage_5 = Stage3(features=8 * config.channels, depth=4, channels=8 * config.channels)

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.max_pool2d(self.stage_1(pixels), 2)
        x = F.max_pool2d(self.stage_2(x), 2)
        x = F.max_pool2d(self.stage_3(x), 2)
        x = F.max_pool2d(self.stage_4(x), 2)
        return self.stage_5(x)


class SoftAttention(nn.Module):
    """How much each of the places is looked at: softmax(v · tanh(W a + U h))."""

    def __init__(self, config: Config, features: int) -> None:
        super().__init__()
        self.of_place = nn.Linear(features, features)
        self.asked = nn.Linear(config.hidden, features, bias=False)
        self.score = nn.Linear(features, 1)

    def prepare(self, places: Tensor) -> Tensor:
        return self.of_place(places)

    def forward(self, places: Tensor, h: Tensor, prepared_1: Tensor) -> Tensor:
        asked = self.asked(h).unsqueeze(1)  # [batch, 1, features]
        hidden = torch.tanh(prepared_1 + asked)
        weights = self.score(hidden).squeeze(-1).softmax(-1)
        return torch.einsum("bp,bpf->bf", weights, places)


class ShowAttendTell(nn.Module):
    """show_attend_tell (show_attend_tell.arch:28)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.vgg = Vgg(config)
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.start_h = nn.Linear(8 * config.channels, config.hidden)
        self.start_c = nn.Linear(8 * config.channels, config.hidden)
        self.soft_attention = SoftAttention(config, features=8 * config.channels)
        self.gate = nn.Linear(config.hidden, 1)
        self.lstm_cell = nn.LSTMCell(config.width + 8 * config.channels, config.hidden)
        self.of_state = nn.Linear(config.hidden, config.width)
        self.of_image = nn.Linear(8 * config.channels, config.width)
        self.output = nn.Linear(config.width, config.vocab)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, pixels: Tensor, words: Tensor) -> Tensor:
        places = self.vgg(pixels).flatten(2).transpose(1, 2)
        y = self.embedding(words)  # [batch, time, width]
        image_mean = places.mean(1)  # [batch, 8 * channels]
        h = self.soft_attention.prepare(places)
        h_2 = torch.tanh(self.start_h(image_mean))
        c = torch.tanh(self.start_c(image_mean))
        tolds = []
        for y_t in y.unbind(1):
            beta = torch.sigmoid(self.gate(h_2))
            z = beta * self.soft_attention(places, h_2, h)
            h_2, c = self.lstm_cell(torch.cat((y_t, z), dim=-1), (h_2, c))
            tolds.append(torch.tanh(y_t + self.of_state(h_2) + self.of_image(z)))
        told = torch.stack(tolds, dim=1)  # [batch, time, width]
        return self.output(told)
