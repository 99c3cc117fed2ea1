"""Recurrent models, single layers of attention, and the models of images and sound: published counts, one step of
training, and the numbers of an implementation that shares no code with the emitted one: `transformers` for the Vision
Transformer, for all others the paper's equations written here."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archdsl
from archdsl.dependence.causality import prove
from zoo import tiny
from zoo.sizes import SPECS
from zoo.tiny import close

pytestmark = pytest.mark.slow

GRADIENT_TOLERANCE = 1e-3
"""Of gradients, relative to the largest of their weight."""


# --- counts -----------------------------------------------------------------------------------------------------------


def lstm(inputs: int, hidden: int, biases: int = 2) -> int:
    return 4 * hidden * (inputs + hidden + biases)


def gru(inputs: int, hidden: int) -> int:
    return 3 * hidden * (inputs + hidden + 2)


def graves(layers: int, hidden: int) -> int:
    """Bidirectional LSTMs, one bias and a peephole for three gates, over 123 features; 62 labels."""
    below = [123, *(2 * hidden for _ in range(layers - 1))]
    return sum(2 * (lstm(b, hidden, 1) + 3 * hidden) for b in below) + 62 * (2 * hidden + 1)


def search(reader: int, score: int) -> int:
    """RNNsearch: two embeddings, both readers, the first state, the decoder, maxout units, logits, and a score."""
    body = 2 * 30_000 * 620 + 2 * gru(620, reader) + 1000 * (reader + 1) + gru(620 + 2 * reader, 1000)
    return body + 1000 * (1000 + 2 * reader + 620 + 1) + 30_000 * 501 + score


def turing(inputs: int, outputs: int) -> int:
    """The memory's start and an LSTM of 100; two heads have a key of 20 and 6 numbers, one erases and adds 20 each."""
    return 128 * 20 + lstm(inputs + 20, 100) + 2 * (26 * 101) + 40 * 101 + outputs * 121


def pixel_rnn(layers: int, h: int, top: int, colours: int, levels: int) -> int:
    """First 7 x 7 of which 21 + 3 + 1 places are open; then input to state 2 places, state to state 3, and out."""
    first = 25 * colours * 2 * h + 2 * h
    layer = 2 * (2 * h * 4 * h) + 4 * h + 3 * h * 4 * h + h * 2 * h + 2 * h
    return first + layers * layer + (2 * h + 1) * top + (top + 1) * top + (top + 1) * colours * levels


VGG_19 = 20_024_384
"""The convolutions of VGG-19, as torchvision has them."""

PUBLISHED = {
    # Three maps of the input; with several heads four of width by heads * head_dim.
    "self_attention:self_attention": 512 * (64 + 64 + 128),
    "self_attention:masked_self_attention": 512 * (64 + 64 + 128),
    "self_attention:multi_head_attention": 4 * 512**2,
    "self_attention:masked_multi_head_attention": 4 * 512**2,
    "self_attention:wide_multi_head_attention": 4 * 512 * 4096,
    # ViTForImageClassification, and timm.
    "vit:vit_b16": 86_567_656,
    "vit:vit_b32": 88_224_232,
    "vit:vit_l16": 304_326_632,
    "vit:vit_l32": 306_535_400,
    "vit:vit_h14": 632_045_800,
    # timm, with the classifier that the paper's table leaves out.
    "mixer:mixer_s32": 19_104_624,
    "mixer:mixer_s16": 18_528_264,
    "mixer:mixer_b32": 60_293_428,
    "mixer:mixer_b16": 59_880_472,
    "mixer:mixer_l32": 206_939_264,
    "mixer:mixer_l16": 208_196_168,
    "mixer:mixer_h14": 432_350_952,
    # The paper says 51.6M, 24.4M and 21.1M.
    "convmixer:convmixer_1536_20": 51_625_960,
    "convmixer:convmixer_1024_20": 24_383_464,
    "convmixer:convmixer_768_32": 21_110_248,
    # Encoders from the paper's table; the transducers under the assumptions of the spec.
    "conformer:conformer_l": 115_120_128,
    "conformer:conformer_m": 27_331_584,
    "conformer:conformer_s": 8_713_152,
    "conformer:conformer_transducer_l": 120_452_352,
    "conformer:conformer_transducer_m": 32_499_968,
    "conformer:conformer_transducer_s": 10_817_216,
    # Usually quoted as 5M, 20M and 66M.
    "rnn_lm:lstm_lm_small": 10_000 * 200 + 2 * lstm(200, 200) + 10_000 * 201,
    "rnn_lm:lstm_lm_medium": 10_000 * 650 + 2 * lstm(650, 650) + 10_000 * 651,
    "rnn_lm:lstm_lm_large": 10_000 * 1500 + 2 * lstm(1500, 1500) + 10_000 * 1501,
    "rnn_lm:gru_lm": 10_000 * 200 + 2 * gru(200, 200) + 10_000 * 201,
    "rnn_lm:rnn_lm": 10_000 * 200 + 2 * 200 * (200 + 200 + 2) + 10_000 * 201,
    # The paper's table says 0.8M, 3.8M, 2.3M, 3.8M, 6.8M, 3.8M and 3.7M.
    "deep_rnn:ctc_1l_250h": graves(1, 250),
    "deep_rnn:ctc_1l_622h": graves(1, 622),
    "deep_rnn:ctc_2l_250h": graves(2, 250),
    "deep_rnn:ctc_3l_250h": graves(3, 250),
    "deep_rnn:ctc_5l_250h": graves(5, 250),
    "deep_rnn:ctc_3l_421h_uni": lstm(123, 421, 1) + 2 * lstm(421, 421, 1) + 3 * 3 * 421 + 62 * 422,
    "deep_rnn:ctc_3l_500h_tanh": 2 * 500 * (123 + 502) + 2 * (2 * 500 * (1000 + 502)) + 62 * 1001,
    # Words on both sides of rank 100, 3 + 3 gates and maps, with the summary's three; and its two maps.
    "rnn_encoder_decoder:cho_2014": 2 * 15_000 * 100
    + 3 * (100 + 1000) * 1000
    + 3 * (100 + 2 * 1000) * 1000
    + 2 * 1000**2
    + 1000 * (1000 + 100 + 1000)
    + 500 * 100
    + 100 * 15_000,
    # The paper says 384M, of which 64M are recurrent.
    "rnn_encoder_decoder:sutskever_2014": 240_000 * 1000 + 8 * lstm(1000, 1000) + 80_000 * 1001,
    "seq2seq_attention:seq2seq": search(1000, 1000 * 1000 + 2000 * 1000 + 1000),
    "seq2seq_attention:seq2seq_location": search(1000, 1000 * 100),
    "seq2seq_attention:seq2seq_general": search(1000, 2000 * 1000),
    "seq2seq_attention:seq2seq_cosine": search(500, 0),
    "seq2seq_attention:seq2seq_dot": search(500, 0),
    "seq2seq_attention:seq2seq_scaled_dot": search(500, 0),
    "ntm:ntm_copy": turing(9, 8),
    "ntm:ntm_repeat_copy": turing(10, 9),
    "ntm:ntm_recall": turing(8, 6),
    "ntm:ntm_ngrams": turing(1, 1),
    # Embedding, first state and cell, attention, gate, LSTM, the deep output and the logits.
    "show_attend_tell:show_attend_tell": VGG_19
    + 10_000 * 512
    + 2 * 513 * 1800
    + (513 * 512 + 1800 * 512 + 513)
    + 1801
    + lstm(1024, 1800)
    + (1801 + 513) * 512
    + 513 * 10_000,
    # 30 layers of two convolutions of two places and two maps, of which the last has one.
    "wavenet:wavenet": 256 * 64
    + (2 * 64 + 1) * 64
    + 30 * (2 * (2 * 64 + 1) * 64 + 65 * 256)
    + 29 * 65 * 64
    + 257 * 256
    + 257 * 256,
    # 60 blocks of norms, two maps between 1600 and 800 channels, and a convolution of three places.
    "bytenet:bytenet": (296 + 323) * 1600
    + 60 * (2 * (1600 + 800 + 800) + 1601 * 800 + (3 * 800 + 1) * 800 + 801 * 1600)
    + 1601 * 800
    + 801 * 323,
    # 30 blocks, whose convolutions of one and of three places have four results each.
    "bytenet:bytenet_lm": 256 * 1024
    + 30 * (2 * (1024 + 3 * 512) + 1025 * 512 + 513 * 2048 + (3 * 512 + 1) * 2048 + 513 * 1024)
    + 1025 * 512
    + 513 * 256,
    "pixel_rnn:pixel_rnn_cifar": pixel_rnn(12, 128, 1024, 3, 256),
    "pixel_rnn:pixel_rnn_imagenet": pixel_rnn(12, 384, 1024, 3, 256),
    "pixel_rnn:pixel_rnn_mnist": pixel_rnn(7, 16, 32, 1, 1),
}

ROUNDED = {
    "deep_rnn:ctc_1l_250h": 0.8,
    "deep_rnn:ctc_1l_622h": 3.8,
    "deep_rnn:ctc_2l_250h": 2.3,
    "deep_rnn:ctc_3l_250h": 3.8,
    "deep_rnn:ctc_5l_250h": 6.8,
    "deep_rnn:ctc_3l_421h_uni": 3.8,
    "deep_rnn:ctc_3l_500h_tanh": 3.7,
    "convmixer:convmixer_1536_20": 51.6,
    "convmixer:convmixer_1024_20": 24.4,
    "convmixer:convmixer_768_32": 21.1,
}
"""Millions, as the papers print them."""


def test_counts_round_to_those_printed() -> None:
    assert {name: round(PUBLISHED[name] / 1e6, 1) for name in ROUNDED} == ROUNDED


# --- against the equations --------------------------------------------------------------------------------------------


class Weights:
    """A module's weights and statistics by name, and the few functions that all papers share. `w / name` goes a step
    down the path of names."""

    def __init__(self, module: nn.Module, prefix: str = "") -> None:
        self.module, self.prefix = module, prefix
        self.all = module.state_dict(keep_vars=True)

    def __truediv__(self, step: str | int) -> Weights:
        return Weights(self.module, f"{self.prefix}{step}.")

    def __getitem__(self, name: str) -> Tensor:
        return self.all[self.prefix + name]

    def has(self, name: str) -> bool:
        return self.prefix + name in self.all

    def map(self, name: str, x: Tensor) -> Tensor:
        """W x + b, with a bias if there is one."""
        y = torch.einsum("oi,...i->...o", self[f"{name}.weight"], x)
        return y + self[f"{name}.bias"] if self.has(f"{name}.bias") else y

    def norm(self, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / (var + eps).sqrt() * self[f"{name}.weight"] + self[f"{name}.bias"]

    def batch_norm(self, name: str, x: Tensor, axis: int = -1) -> Tensor:
        x = x.transpose(axis, -1)
        mean, var = self[f"{name}.running_mean"], self[f"{name}.running_var"]
        x = (x - mean) / (var + 1e-5).sqrt() * self[f"{name}.weight"] + self[f"{name}.bias"]
        return x.transpose(axis, -1)

    def taps(self, name: str, x: Tensor, dilation: int = 1, before: int | None = None) -> Tensor:
        """A convolution along axis 1, tap by tap; `before` taps look back, all but one unless said."""
        weight = self[f"{name}.weight"]
        taps = weight.shape[-1]
        before = taps - 1 if before is None else before
        padded = F.pad(x, (0, 0, before * dilation, (taps - 1 - before) * dilation))
        y: Tensor = sum(
            (
                torch.einsum("oi,bti->bto", weight[..., k], padded[:, k * dilation : k * dilation + x.shape[1]])
                for k in range(taps)
            ),
            start=torch.zeros(()),
        )
        return y + self[f"{name}.bias"] if self.has(f"{name}.bias") else y

    def gates(self, x: Tensor, h: Tensor, suffix: str = "_l0") -> tuple[Tensor, Tensor]:
        """What a recurrent cell makes of its input and of its state, before any gate."""
        a = x @ self[f"weight_ih{suffix}"].t() + self[f"bias_ih{suffix}"]
        return a, h @ self[f"weight_hh{suffix}"].t() + self[f"bias_hh{suffix}"]

    def lstm(self, x: Tensor, h: Tensor, c: Tensor, suffix: str = "_l0") -> tuple[Tensor, Tensor]:
        a, b = self.gates(x, h, suffix)
        i, f, g, o = (a + b).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def gru(self, x: Tensor, h: Tensor, suffix: str = "_l0") -> Tensor:
        (a_r, a_z, a_n), (b_r, b_z, b_n) = (t.chunk(3, -1) for t in self.gates(x, h, suffix))
        r, z = (a_r + b_r).sigmoid(), (a_z + b_z).sigmoid()
        return (1 - z) * (a_n + r * b_n).tanh() + z * h

    def rnn(self, x: Tensor, h: Tensor) -> Tensor:
        a, b = self.gates(x, h)
        return (a + b).tanh()


def over_time(step: Callable[[Tensor, Tensor], Tensor], x: Tensor, hidden: int) -> Tensor:
    h, found = x.new_zeros(x.shape[0], hidden), []
    for t in range(x.shape[1]):
        h = step(x[:, t], h)
        found.append(h)
    return torch.stack(found, 1)


def lstm_over_time(w: Weights, x: Tensor, h: Tensor, c: Tensor, suffix: str = "_l0") -> tuple[Tensor, Tensor, Tensor]:
    found = []
    for t in range(x.shape[1]):
        h, c = w.lstm(x[:, t], h, c, suffix)
        found.append(h)
    return torch.stack(found, 1), h, c


def backwards(read: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return read(x.flip(1)).flip(1)


def attention(w: Weights, x: Tensor, heads: int, causal: bool = False) -> Tensor:
    """Section 3.2 of Vaswani et al., head by head."""
    outputs = []
    for q, k, v in zip(*(w.map(n, x).chunk(heads, -1) for n in "qkv"), strict=True):
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        outputs.append(scores.softmax(-1) @ v)
    return w.map("out", torch.cat(outputs, -1))


def one_head(w: Weights, x: Tensor, causal: bool = False) -> Tensor:
    w = w / "attention_head"
    q, k, v = (w.map(n, x) for n in "qkv")
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    if not causal:
        return scores.softmax(-1) @ v
    rows = [scores[:, t, : t + 1].softmax(-1)[:, None] @ v[:, : t + 1] for t in range(x.shape[1])]
    return torch.cat(rows, 1)


def mixer(w: Weights, image: Tensor) -> Tensor:
    """Equation 1: along patches, then along channels."""
    x = patches(w, image).flatten(2).transpose(1, 2)
    for i in range(2):
        b = w / "blocks" / i
        y = b.norm("layernorm", x, 1e-6).transpose(1, 2)
        x = x + b.map("mlp.down", F.gelu(b.map("mlp.up", y))).transpose(1, 2)
        x = x + b.map("mlp_2.down", F.gelu(b.map("mlp_2.up", b.norm("layernorm_2", x, 1e-6))))
    return w.map("head.output", w.norm("norm", x, 1e-6).mean(1))


def patches(w: Weights, image: Tensor) -> Tensor:
    """[batch, channels, rows, columns] of squares that do not overlap."""
    size = w["patches.weight"].shape[-1]
    squares = image.unfold(2, size, size).unfold(3, size, size)
    return torch.einsum("bcrsij,ocij->bors", squares, w["patches.weight"]) + w["patches.bias"][:, None, None]


def convmixer(w: Weights, image: Tensor, act: Callable[[Tensor], Tensor] = F.gelu) -> Tensor:
    """Equations 1 to 3 of the paper's section 2."""
    x = w.batch_norm("batchnorm", act(patches(w, image)), 1)
    for i in range(2):
        b = w / "blocks" / i
        weight = b["depthwise.weight"][:, 0]
        reach = weight.shape[-1] // 2
        windows = F.pad(x, (reach,) * 4).unfold(2, 2 * reach + 1, 1).unfold(3, 2 * reach + 1, 1)
        deep = torch.einsum("bcrsij,cij->bcrs", windows, weight) + b["depthwise.bias"][:, None, None]
        x = x + b.batch_norm("batchnorm", act(deep), 1)
        point = torch.einsum("bcrs,oc->bors", x, b["pointwise.weight"][..., 0, 0]) + b["pointwise.bias"][:, None, None]
        x = b.batch_norm("batchnorm_2", act(point), 1)
    return w.map("head", x.mean((2, 3)))


def conformer(w: Weights, frames: Tensor, real: Tensor) -> Tensor:
    """Figure 1 and section 2, with the relative positions of Transformer-XL, distance by distance."""
    x = frames[:, None]
    for name in ("first", "second"):
        c = w / "conv_subsampling" / name
        x = F.relu(F.conv2d(x, c["weight"], c["bias"], stride=2, padding=1))
    x = w.map("linear", x.transpose(1, 2).flatten(2))
    time, width = x.shape[1], x.shape[2]
    for i in range(2):
        b = w / "layer" / i
        x = x + b.map("ffn_1.down", F.silu(b.map("ffn_1.up", b.norm("ffn_1_norm", x)))) / 2
        x = x + relative_attention(b / "attention", b.norm("attention_norm", x), real[:, ::4][:, :time])
        c = b / "convolution"
        value, gate = c.map("widen", c.norm("layernorm", x)).chunk(2, -1)
        h, kernel = value * gate.sigmoid(), c["depthwise.weight"][:, 0]
        before = (kernel.shape[1] - 1) // 2
        padded = F.pad(h, (0, 0, before, kernel.shape[1] - 1 - before))
        h = torch.einsum("btck,ck->btc", padded.unfold(1, kernel.shape[1], 1), kernel) + c["depthwise.bias"]
        x = x + c.map("narrow", F.silu(c.batch_norm("batchnorm", h)))
        x = x + b.map("ffn_2.down", F.silu(b.map("ffn_2.up", b.norm("ffn_2_norm", x)))) / 2
        x = b.norm("norm", x)
    assert x.shape[-1] == width
    return x


def relative_attention(w: Weights, x: Tensor, real: Tensor) -> Tensor:
    """Section 3.3 of Dai et al. (2019): four terms, a projection of the sinusoid of each distance."""
    heads, size = w["position.u"].shape
    width, time = heads * size, x.shape[1]
    rates = 10_000 ** -(torch.arange(0, width, 2) / width)
    q, k, v = (w.map(n, x).unflatten(-1, (heads, size)) for n in "qkv")
    scores = x.new_zeros(x.shape[0], heads, time, time)
    for i in range(time):
        for j in range(time):
            wave = torch.cat((((i - j) * rates).sin(), ((i - j) * rates).cos()))
            r = (w["position.weight"] @ wave).unflatten(0, (heads, size))
            by_content = ((q[:, i] + w["position.u"]) * k[:, j]).sum(-1)
            scores[:, :, i, j] = (by_content + ((q[:, i] + w["position.v"]) * r).sum(-1)) / math.sqrt(size)
    scores = scores.masked_fill(~real[:, None, None], -math.inf)
    return w.map("out", torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2))


def transducer(w: Weights, frames: Tensor, real: Tensor, labels: Tensor) -> Tensor:
    x = w["embedding.weight"][labels]
    zeros = x.new_zeros(x.shape[0], x.shape[-1])
    said = lstm_over_time(w / "predictor", x, zeros, zeros)[0]
    a, b = w.map("of_heard", conformer(w / "encoder", frames, real)), w.map("of_said", said)
    return w.map("output", (a[:, :, None] + b[:, None]).tanh())


def language_model(w: Weights, tokens: Tensor, cell: str) -> Tensor:
    x = w["embedding.weight"][tokens]
    for i in range(2):
        layer = w / "layers" / i
        if cell == "lstm":
            zeros = x.new_zeros(x.shape[0], x.shape[-1])
            x = lstm_over_time(layer, x, zeros, zeros)[0]
        else:
            x = over_time(layer.gru if cell == "gru" else layer.rnn, x, x.shape[-1])
    return w.map("head", x)


def peephole(w: Weights, x: Tensor) -> Tensor:
    """Equations 2 to 6 of Graves et al."""
    hidden = w["see_i"].shape[0]
    h, c, found = x.new_zeros(x.shape[0], hidden), x.new_zeros(x.shape[0], hidden), []
    for t in range(x.shape[1]):
        i, f, g, o = (w.map("input", x[:, t]) + w.map("state", h)).chunk(4, -1)
        i, f = (i + w["see_i"] * c).sigmoid(), (f + w["see_f"] * c).sigmoid()
        c = f * c + i * g.tanh()
        h = (o + w["see_o"] * c).sigmoid() * c.tanh()
        found.append(h)
    return torch.stack(found, 1)


def deep_rnn(w: Weights, x: Tensor, layers: int, kind: str = "both") -> Tensor:
    for i in range(layers):
        layer = w / "layers" / i
        if kind == "one way":
            x = peephole(layer, x)
            continue
        reads: list[Callable[[Tensor], Tensor]] = []
        for way in ("forwards", "backwards"):
            own = layer / way
            reads.append(
                (lambda y, own=own: over_time(own.rnn, y, 12))
                if kind == "tanh"
                else (lambda y, own=own: peephole(own, y))
            )
        x = torch.cat((reads[0](x), backwards(reads[1], x)), -1)
    return w.map("output", x)


def cho(w: Weights, source: Tensor, target: Tensor) -> Tensor:
    """The appendix of Cho et al."""
    e, d = w / "encoder_unit", w / "decoder_unit"
    x, y = w["source_embedding.weight"][source], w["target_embedding.weight"][target]
    h = x.new_zeros(x.shape[0], 24)
    for t in range(x.shape[1]):
        z = (e.map("w_z", x[:, t]) + e.map("u_z", h)).sigmoid()
        r = (e.map("w_r", x[:, t]) + e.map("u_r", h)).sigmoid()
        h = z * h + (1 - z) * (e.map("w", x[:, t]) + e.map("u", r * h)).tanh()
    c = w.map("summarize", h).tanh()
    s, logits = w.map("start", c).tanh(), []
    for t in range(y.shape[1]):
        z = (d.map("w_z", y[:, t]) + d.map("u_z", s) + d.map("c_z", c)).sigmoid()
        r = (d.map("w_r", y[:, t]) + d.map("u_r", s) + d.map("c_r", c)).sigmoid()
        s = z * s + (1 - z) * (d.map("w", y[:, t]) + r * (d.map("u", s) + d.map("c", c))).tanh()
        pieces = w.map("o_h", s) + w.map("o_y", y[:, t]) + w.map("o_c", c)
        best = torch.maximum(pieces[:, 0::2], pieces[:, 1::2])
        logits.append(w.map("head", w.map("narrow", best)))
    return torch.stack(logits, 1)


def sutskever(w: Weights, source: Tensor, target: Tensor) -> Tensor:
    x, y = w["source_embedding.weight"][source.flip(1)], w["target_embedding.weight"][target]
    zeros = x.new_zeros(x.shape[0], x.shape[-1])
    for i in range(2):
        x, h, c = lstm_over_time(w / "encoder" / i / "lstm_cell", x, zeros, zeros, "")
        y = lstm_over_time(w / "decoder" / i, y, h, c)[0]
    return w.map("head", y)


def scored(w: Weights, q: Tensor, k: Tensor, kind: str) -> Tensor:
    """One score of the table for a query [width] and the keys [source, width] of one sentence."""
    if kind == "additive":
        hidden = (w["score.a.weight"] @ q + k @ w["score.b.weight"].t()).tanh()
        return hidden @ w["score.linear.weight"][0]
    if kind == "location":
        return (w["score.scores.weight"] @ q)[: len(k)]
    if kind == "general":
        return torch.stack([q @ (w["score.linear.weight"] @ one) for one in k])
    if kind == "cosine":
        return F.cosine_similarity(q[None], k, dim=-1)
    return k @ q / (math.sqrt(len(q)) if kind == "scaled_dot" else 1)


def rnn_search(w: Weights, source: Tensor, target: Tensor, kind: str) -> Tensor:
    """Section 3 of Bahdanau et al., one sentence after the other."""
    found = []
    for one_source, one_target in zip(source, target, strict=True):
        x, y = w["source_embedding.weight"][one_source][None], w["target_embedding.weight"][one_target][None]
        reader = (w / "forwards")["weight_hh_l0"].shape[1]
        ahead = over_time((w / "forwards").gru, x, reader)
        back = backwards(lambda z, reader=reader: over_time((w / "backwards").gru, z, reader), x)
        memory = torch.cat((ahead, back), -1)[0]
        s, logits = w.map("start", back[:, 0]).tanh(), []
        for t in range(y.shape[1]):
            c = scored(w, s[0], memory, kind).softmax(0) @ memory
            pieces = w.map("pieces", torch.cat((s[0], c, y[0, t])))
            s = (w / "gru_cell").gru(torch.cat((y[:, t], c[None]), -1), s, "")
            logits.append(w.map("head", pieces.unflatten(0, (-1, 2)).amax(-1)))
        found.append(torch.stack(logits))
    return torch.stack(found)


def turing_address(w: Weights, h: Tensor, memory: Tensor, before: Tensor) -> Tensor:
    """Equations 5 to 9 for one row of the batch."""
    k, beta, g = w.map("key", h).tanh(), F.softplus(w.map("strength", h)), w.map("gate", h).sigmoid()
    s, gamma = w.map("turn", h).softmax(0), 1 + F.softplus(w.map("sharp", h))
    content = (beta * F.cosine_similarity(k[None], memory, dim=-1, eps=1e-12)).softmax(0)
    gated = g * content + (1 - g) * before
    rows = len(memory)
    turned = [sum(gated[j] * s[(i - j + 1) % rows] for j in range(rows) if (i - j + 1) % rows < 3) for i in range(rows)]
    sharp = torch.stack([torch.as_tensor(t) for t in turned]) ** gamma
    return sharp / sharp.sum()


def turing_machine(w: Weights, x: Tensor) -> Tensor:
    hidden, rows, cells, heads = 20, 8, 6, 2
    assert w["start"].shape == (rows, cells)
    found = []
    for sequence in x:
        h, c, memory = x.new_zeros(1, hidden), x.new_zeros(1, hidden), w["start"]
        writes, reads = ([x.new_zeros(rows)] * heads for _ in range(2))
        answers = x.new_zeros(heads * cells)
        outputs = []
        for x_t in sequence:
            h, c = (w / "lstm_cell").lstm(torch.cat((x_t, answers))[None], h, c, "")
            writes = list(writes)
            for i in range(heads):
                writes[i] = turing_address(w / "write_to" / i, h[0], memory, writes[i])
                erase, add = (w / "write" / i).map("erase", h[0]).sigmoid(), (w / "write" / i).map("add", h[0]).tanh()
                memory = memory * (1 - writes[i].outer(erase)) + writes[i].outer(add)
            reads = [turing_address(w / "read_from" / i, h[0], memory, reads[i]) for i in range(heads)]
            answers = torch.cat([r @ memory for r in reads])
            outputs.append(w.map("output", torch.cat((h[0], answers))))
        found.append(torch.stack(outputs))
    return torch.stack(found)


def caption(w: Weights, image: Tensor, words: Tensor) -> Tensor:
    """VGG-19 up to its last convolution; then section 3.1.2 with the soft attention of 4.2."""
    x = image
    for stage, depth in enumerate((2, 2, 4, 4, 4), 1):
        x = F.max_pool2d(x, 2) if stage > 1 else x
        for i in range(depth):
            conv = w / "vgg" / f"stage_{stage}" / "convs" / i
            x = F.relu(F.conv2d(x, conv["weight"], conv["bias"], padding=1))
    places, y = x.flatten(2).transpose(1, 2), w["embedding.weight"][words]
    h, c = (w.map(n, places.mean(1)).tanh() for n in ("start_h", "start_c"))
    logits, a = [], w / "soft_attention"
    for t in range(y.shape[1]):
        scores = a.map("score", (a.map("of_place", places) + a.map("asked", h)[:, None]).tanh())
        z = w.map("gate", h).sigmoid() * (scores.softmax(1) * places).sum(1)
        h, c = (w / "lstm_cell").lstm(torch.cat((y[:, t], z), -1), h, c, "")
        logits.append(w.map("output", (y[:, t] + w.map("of_state", h) + w.map("of_image", z)).tanh()))
    return torch.stack(logits, 1)


def wavenet(w: Weights, samples: Tensor) -> Tensor:
    x = w.taps("conv1d", w["embedding.weight"][samples])
    skips = []
    for i in range(6):
        layer = w / "layers" / i
        h = layer.taps("filter", x, 2 ** (i % 3)).tanh() * layer.taps("gate", x, 2 ** (i % 3)).sigmoid()
        skips.append(layer.map("skip", h))
        if i < 5:
            x = x + layer.map("residual", h)
    return w.map("head", F.relu(w.map("post", F.relu(torch.stack(skips).sum(0)))))


def bytenet(w: Weights, source: Tensor, target: Tensor) -> Tensor:
    x = w["source_embedding.weight"][source]
    for side in ("encoder", "decoder"):
        if side == "decoder":
            x = x + w["target_embedding.weight"][target]
        for i in range(4):
            b = w / side / i
            h = b.map("narrow", F.relu(b.norm("layernorm", x)))
            h = b.taps("conv1d", F.relu(b.norm("layernorm_2", h)), 2 ** (i % 2), 1 if side == "encoder" else 2)
            x = x + b.map("widen", F.relu(b.norm("layernorm_3", h)))
    return w.map("head", F.relu(w.map("post", F.relu(x))))


def bytenet_lm(w: Weights, tokens: Tensor) -> Tensor:
    x = w["embedding.weight"][tokens]
    for i in range(4):
        b = w / "blocks" / i
        h = b.map("narrow", F.relu(b.norm("layernorm", x)))
        for norm, unit, dilation in (
            ("layernorm_2", "multiplicative_unit", 1),
            ("layernorm_3", "multiplicative_unit_2", 2 ** (i % 2)),
        ):
            h = b.norm(norm, h)
            g1, g2, g3, u = (b / unit).taps("conv1d", h, dilation).chunk(4, -1)
            h = g1.sigmoid() * (g2.sigmoid() * h + g3.sigmoid() * u.tanh()).tanh()
        x = x + b.map("widen", F.relu(b.norm("layernorm_4", h)))
    return w.map("head", F.relu(w.map("post", F.relu(x))))


def own_pixel(w: Weights, x: Tensor, gates: int = 1, strictly: bool = False) -> Tensor:
    """A map of one pixel: entry by entry, whether the mask lets it be."""
    weight = w["weight"].clone()
    features = weight.shape[0] // gates
    for o in range(weight.shape[0]):
        for i in range(weight.shape[1]):
            to, of = 3 * (o % features) // features, 3 * i // weight.shape[1]
            if of > to or (strictly and of == to):
                weight[o, i] = 0
    return torch.einsum("oi,...i->...o", weight, x) + w["bias"]


def pixel_rnn(w: Weights, image: Tensor) -> Tensor:
    """Section 3.1 and Table 1: pixel by pixel."""
    first = w / "first_layer"
    rows, columns = image.shape[1:3]
    padded = F.pad(image, (0, 0, 3, 3, 3, 0))
    x = own_pixel(first / "own", image, strictly=True)
    for up in (1, 2, 3):
        weight = first["above.weight"][:, 3 * (up - 1) : 3 * up]
        for k in range(7):
            x = x + torch.einsum("oi,brci->brco", weight[..., k], padded[:, 3 - up : 3 - up + rows, k : k + columns])
    for k in range(3):
        x = x + torch.einsum("oi,brci->brco", first["left.weight"][..., k], padded[:, 3:, k : k + columns])
    for n in range(2):
        layer = w / "layers" / n
        left = F.pad(x, (0, 0, 1, 0))[:, :, :columns]
        seen = torch.einsum("oi,brci->brco", layer["left.weight"], left) + own_pixel(layer / "own", x, 4)
        h, c, states = (image.new_zeros(image.shape[0], columns, 12) for _ in range(3))
        kept = []
        for r in range(rows):
            o, f, i, g = (seen[:, r] + layer.taps("above", h, before=1)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            kept.append(h)
        states = torch.stack(kept, 1)
        x = x + own_pixel(layer / "out", states)
    for name in ("readout_1", "readout_2", "output"):
        x = own_pixel(w / name, F.relu(x))
    return x.unflatten(-1, (3, -1))


EQUATIONS: dict[str, Callable[..., Tensor]] = {
    "self_attention:self_attention": one_head,
    "self_attention:masked_self_attention": lambda w, x: one_head(w, x, causal=True),
    "self_attention:multi_head_attention": lambda w, x: attention(w / "attention", x, 4),
    "self_attention:masked_multi_head_attention": lambda w, x: attention(w / "attention", x, 4, causal=True),
    "self_attention:wide_multi_head_attention": lambda w, x: attention(w / "attention", x, 4),
    "mixer:mixer_b16": mixer,
    "convmixer:convmixer_1536_20": convmixer,
    "convmixer:convmixer_768_32": lambda w, x: convmixer(w, x, F.relu),
    "conformer:conformer_l": conformer,
    "conformer:conformer_transducer_l": transducer,
    "rnn_lm:lstm_lm_small": lambda w, x: language_model(w, x, "lstm"),
    "rnn_lm:gru_lm": lambda w, x: language_model(w, x, "gru"),
    "rnn_lm:rnn_lm": lambda w, x: language_model(w, x, "rnn"),
    "deep_rnn:ctc_3l_250h": lambda w, x: deep_rnn(w, x, 3),
    "deep_rnn:ctc_3l_421h_uni": lambda w, x: deep_rnn(w, x, 3, "one way"),
    "deep_rnn:ctc_3l_500h_tanh": lambda w, x: deep_rnn(w, x, 3, "tanh"),
    "rnn_encoder_decoder:cho_2014": cho,
    "rnn_encoder_decoder:sutskever_2014": sutskever,
    "seq2seq_attention:seq2seq": lambda w, x, y: rnn_search(w, x, y, "additive"),
    **{
        f"seq2seq_attention:seq2seq_{kind}": lambda w, x, y, kind=kind: rnn_search(w, x, y, kind)
        for kind in ("location", "general", "cosine", "dot", "scaled_dot")
    },
    "ntm:ntm_copy": turing_machine,
    "show_attend_tell:show_attend_tell": caption,
    "wavenet:wavenet": wavenet,
    "bytenet:bytenet": bytenet,
    "bytenet:bytenet_lm": bytenet_lm,
    "pixel_rnn:pixel_rnn_cifar": pixel_rnn,
}


def drawn(name: str) -> nn.Module:
    """A tiny model in evaluation, drawn so wide that every weight matters."""
    module = tiny.module(name).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for n, p in module.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in n and n.endswith("weight"):
                p.copy_(1 + 0.2 * noise)
            else:
                # Wider where a rectifier follows, and where heads would look at all rows alike.
                gain = 1.5 if p.dim() == 4 else 3.0 if name.startswith("ntm") and n[0] in "rw" else 1.0
                p.copy_(noise * (0.3 if p.dim() < 2 else min(0.7, gain / math.sqrt(p[0].numel()))))
        for n, b in module.named_buffers():
            if n.endswith(("running_mean", "running_var")):
                b.copy_(0.5 + torch.rand(b.shape, generator=generator))
    return module


@pytest.mark.parametrize("name", EQUATIONS)
def test_numbers_are_those_of_the_equations(name: str) -> None:
    module, given = drawn(name), tiny.inputs(tiny.graph(name))
    found, wanted = module(**given), EQUATIONS[name](Weights(module), *given.values())
    close(found, wanted)
    ours, theirs = (
        torch.autograd.grad(y.tanh().sum(), list(module.parameters()), allow_unused=True) for y in (found, wanted)
    )
    largest = max(float(g.abs().max()) for g in theirs if g is not None)
    for (path, p), a, b in zip(module.named_parameters(), ours, theirs, strict=True):
        a, b = (torch.zeros_like(p) if g is None else g for g in (a, b))
        assert float((a - b).abs().max()) < GRADIENT_TOLERANCE * (float(b.abs().max()) + 1e-3 * largest), path


# --- what may be seen -------------------------------------------------------------------------------------------------

CAUSAL = (
    "self_attention:masked_self_attention",
    "self_attention:masked_multi_head_attention",
    "rnn_lm:lstm_lm_small",
    "deep_rnn:ctc_3l_421h_uni",
    "ntm:ntm_copy",
    "wavenet:wavenet",
    "bytenet:bytenet_lm",
)


@pytest.mark.parametrize("name", CAUSAL)
def test_no_later_place_is_seen(name: str) -> None:
    module, (x,) = drawn(name), tiny.inputs(tiny.graph(name)).values()
    changed = x.clone()
    changed[:, 9:] = torch.randn_like(x[:, 9:]) if x.is_floating_point() else (x[:, 9:] + 1) % 60
    before, after = module(x), module(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize(
    "name",
    [
        "rnn_encoder_decoder:cho_2014",
        "seq2seq_attention:seq2seq",
        "bytenet:bytenet",
        "rnn_encoder_decoder:sutskever_2014",
    ],
)
def test_a_translator_sees_all_of_its_source_and_no_later_target(name: str) -> None:
    module, (source, target) = drawn(name), tiny.inputs(tiny.graph(name)).values()
    later = target.clone()
    later[:, 9:] = (later[:, 9:] + 1) % 97
    torch.testing.assert_close(module(source, later)[:, :9], module(source, target)[:, :9])
    last = source.clone()
    last[:, -1] = (last[:, -1] + 1) % 97
    # The encoder of ByteNet looks 1 + 2 + 1 + 2 places ahead.
    seen = (module(last, target) - module(source, target)).abs().amax((0, 2)) > 0
    assert bool(seen[-7:].all() if name.startswith("bytenet") else seen.all())


def test_a_pixel_sees_what_was_written_before_it() -> None:
    """Rows above, pixels to the left, and earlier colours of its own."""
    module, (image,) = drawn("pixel_rnn:pixel_rnn_cifar"), tiny.inputs(tiny.graph("pixel_rnn:pixel_rnn_cifar")).values()
    image = image[:1].requires_grad_()
    order = torch.arange(12 * 12 * 3).reshape(12, 12, 3)
    logits = module(image)
    for row, column, colour in ((0, 0, 0), (4, 5, 0), (4, 5, 1), (4, 5, 2), (11, 11, 2)):
        (gradient,) = torch.autograd.grad(logits[0, row, column, colour].sum(), image, retain_graph=True)
        seen = gradient[0] != 0
        assert not bool(seen[order >= order[row, column, colour]].any())
        if row:
            assert bool(seen[row - 1, column - 1 : column + 2].all())
            assert bool(seen[row, column, :colour].all() and seen[row, column - 1].all())


def test_rows_of_pixels_are_proved() -> None:
    """The convolution between the rows reaches further to the right with each row; of rows that proves nothing."""
    assert prove(tiny.graph("pixel_rnn:pixel_rnn_cifar")) == []
    wrong = (SPECS / "pixel_rnn.arch").read_text(encoding="utf-8").replace("x -> shift(1), x", "x -> shift(-1), x")
    found = archdsl.check(text=wrong, model="pixel_rnn_cifar")
    assert "E0406" in {d.code for d in found}
