"""Recurrent layers, and recurrences in parallel over time."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GRU(nn.Module):
    """One layer of gated recurrent units: nn.GRU as a function, which torch.compile takes whole."""

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.bias = bias
        self.weight_ih_l0 = nn.Parameter(torch.empty(3 * hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(3 * hidden, hidden))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(3 * hidden))
            self.bias_hh_l0 = nn.Parameter(torch.empty(3 * hidden))

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.uniform_(weight, -(self.hidden**-0.5), self.hidden**-0.5)

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        if start is None:
            start = x.new_zeros(x.size(0), self.hidden)
        weights = list(self.parameters())
        return torch.gru(x, start[None], weights, self.bias, 1, 0.0, self.training, False, True)[0]


def linear_recurrence(a: Tensor, b: Tensor) -> Tensor:
    """h[t] = a[t] * h[t - 1] + b[t] along axis 1: chunks of 32 positions in parallel, then from chunk to chunk."""
    time, rest = b.size(1), (0, 0) * (b.dim() - 2)
    padding = (*rest, 32, 32 * (time // 32 + 1) - time)  # a chunk of zeros before the first
    # 32 steps, each [batch, chunk, ...]
    a_steps, b_steps = (F.pad(t.float(), padding).unfold(1, 32, 32).unbind(-1) for t in (a, b))
    states, products = [b_steps[0]], [a_steps[0]]
    for a_t, b_t in zip(a_steps[1:], b_steps[1:]):
        states.append(a_t * states[-1] + b_t)
        products.append(a_t * products[-1])

    # The state after a chunk, from 2, 4, 8, … chunks; always 16 iterations, so that time can be any when exported.
    carry, factor = states[-1], products[-1]
    chunk = torch.arange(carry.size(1), device=b.device)
    for distance in (2**i for i in range(16)):
        before = (chunk - distance).clamp(min=0)
        carry = carry + factor * carry.index_select(1, before)
        factor = factor * factor.index_select(1, before)
    start = carry.index_select(1, (chunk - 1).clamp(min=0)).unsqueeze(2)
    h = torch.stack(states, dim=2) + torch.stack(products, dim=2) * start
    return h.flatten(1, 2).index_select(1, torch.arange(32, 32 + time, device=b.device)).to(b.dtype)


def linear_recurrence_on(a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Continue a linear recurrence from the state h, in float32: the states of all positions, and the last."""
    if b.size(1) == 1:
        states = a.float() * h.unsqueeze(1) + b.float()
    else:
        padding = (*(0, 0) * (b.dim() - 2), 1, 0)  # one position more, which the state comes from
        states = linear_recurrence(F.pad(a, padding), torch.cat((h.unsqueeze(1), b.float()), dim=1))[:, 1:]
    return states.to(b.dtype), states[:, -1]


class LSTM(nn.Module):
    """One layer of long short-term memory: nn.LSTM as a function, which torch.compile takes whole."""

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.bias = bias
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * hidden, hidden))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(4 * hidden))
            self.bias_hh_l0 = nn.Parameter(torch.empty(4 * hidden))

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.uniform_(weight, -(self.hidden**-0.5), self.hidden**-0.5)

    def forward(self, x: Tensor, h: Tensor | None = None, c: Tensor | None = None) -> Tensor:
        zeros = x.new_zeros(x.size(0), self.hidden)
        start = [(zeros if s is None else s)[None] for s in (h, c)]
        weights = list(self.parameters())
        return torch.lstm(x, start, weights, self.bias, 1, 0.0, self.training, False, True)[0]


def lstm_on(layer: LSTM, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Continue an LSTM from (h, c): its states after every step, and both states after the last."""
    weights = list(layer.parameters())
    y, h, c = torch.lstm(x, [h[None], c[None]], weights, layer.bias, 1, 0.0, layer.training, False, True)
    return y, h[0], c[0]


class RNN(nn.Module):
    """One plain recurrent layer: nn.RNN as a function, which torch.compile takes whole."""

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.bias = bias
        self.weight_ih_l0 = nn.Parameter(torch.empty(hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(hidden, hidden))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(hidden))
            self.bias_hh_l0 = nn.Parameter(torch.empty(hidden))

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.uniform_(weight, -(self.hidden**-0.5), self.hidden**-0.5)

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        if start is None:
            start = x.new_zeros(x.size(0), self.hidden)
        weights = list(self.parameters())
        return torch.rnn_tanh(x, start[None], weights, self.bias, 1, 0.0, self.training, False, True)[0]


class ReluRNN(nn.Module):
    """One plain recurrent layer: nn.RNN as a function, which torch.compile takes whole."""

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.bias = bias
        self.weight_ih_l0 = nn.Parameter(torch.empty(hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(hidden, hidden))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(hidden))
            self.bias_hh_l0 = nn.Parameter(torch.empty(hidden))

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.uniform_(weight, -(self.hidden**-0.5), self.hidden**-0.5)

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        if start is None:
            start = x.new_zeros(x.size(0), self.hidden)
        weights = list(self.parameters())
        return torch.rnn_relu(x, start[None], weights, self.bias, 1, 0.0, self.training, False, True)[0]


def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Scan Mamba: h[t] = exp(delta[t] a) h[t - 1] + delta[t] b[t] x[t] in each channel, read by y[t] = c[t] · h[t]."""
    delta = delta.float()
    decay = (delta[..., None] * a.float()).exp()  # [batch, time, channels, state]
    h = linear_recurrence(decay, (delta * x)[..., None] * b[:, :, None])
    return (h @ c.float()[..., None]).squeeze(-1).to(x.dtype)


# fmt: off
def selective_scan_on(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Continue Mamba from the state h [batch, channels, state]: the result of each position, and the last state."""
    delta = delta.float()
    decay = (delta[..., None] * a.float()).exp()  # [batch, time, channels, state]
    states, h = linear_recurrence_on(decay, (delta * x)[..., None] * b[:, :, None], h)
    return (states @ c.float()[..., None]).squeeze(-1).to(x.dtype), h
# fmt: on
