"""Decoders: published counts, and the numbers of an implementation that shares no code with the
emitted one: `transformers` where it has the architecture, else the paper's equations written here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from parity.cases import (
    DEEPSEEK_TABLE,
    LLAMA_EXPERTS,
    LLAMA_NORMS,
    MLA,
    table,
)
from parity.mapping import carried, load, their_tensors
from parity.reference import VOCAB, tiny, tokens
from parity.zoo_cases import SMALL_V3
from torch import Tensor, nn

import archdsl
from zoo import tiny as zoo
from zoo.equations import Weights, layer_norm, linear, sines
from zoo.sizes import SPECS
from zoo.tiny import close

pytestmark = pytest.mark.slow


# --- counts -----------------------------------------------------------------------------------------------------------


def llama_count(layers: int, width: int, hidden: int, vocab: int, kv: float = 1) -> int:
    """Queries and outputs, keys and values of `kv` of the width, three maps of the feed-forward, two norms; a last
    norm, embedding and head."""
    layer = 2 * width**2 + int(2 * kv * width**2) + 3 * width * hidden + 2 * width
    return layers * layer + width + 2 * vocab * width


def gated_count(experts: int, groups: int = 0) -> int:
    """Two LSTMs (section C.1), experts of about 1M weights, two maps of the gate to experts and groups; embedding, and
    a head with a bias."""
    lstm = 2 * 4 * 512**2 + 2 * 4 * 512
    return 2 * lstm + experts * 2 * 512 * 1024 + 2 * 512 * (experts + groups) + 2 * 793_471 * 512 + 793_471


PAIR = {width: 28 * width**2 + (3 * 4 + 2 * 5) * width + 5 * 2 * width for width in (512, 1024)}
"""A layer of an encoder and one of a decoder: 12 and 16 width² weights, biases of three attentions (4 each) and
two feed-forwards (5 each), five norms."""

# As `transformers` counts its class for the released configuration, unless said otherwise.
PUBLISHED = {
    "gpt1:gpt1": 116_534_784,
    "gpt2:gpt2": 124_439_808,
    "gpt2:gpt2_medium": 354_823_168,
    "gpt2:gpt2_large": 774_030_080,
    "gpt2:gpt2_xl": 1_557_611_200,
    # GPT2LMHeadModel. The paper's Table D.1 says 125M, 356M, 760M, 1320M, 2650M, 6660M, 12,850M and 174,600M.
    "gpt3:gpt3_small": 125_226_240,
    "gpt3:gpt3_medium": 355_871_744,
    "gpt3:gpt3_large": 760_300_032,
    "gpt3:gpt3_xl": 1_315_723_264,
    "gpt3:gpt3_2_7b": 2_651_553_280,
    "gpt3:gpt3_6_7b": 6_658_404_352,
    "gpt3:gpt3_13b": 12_853_386_240,
    "gpt3:gpt3_175b": 174_604_259_328,
    "gptj:gptj_6b": 6_050_882_784,
    "megatron:megatron_355m": 355_788_800,
    "megatron:megatron_2_5b": 2_490_408_960,
    "megatron:megatron_8_3b": 8_317_040_640,
    "turing_nlg:turing_nlg_17b": 17_180_859_136,
    "llama:llama_7b": 6_738_415_616,
    "llama:llama_13b": llama_count(40, 5120, 13_824, 32_000),
    "llama:llama_33b": llama_count(60, 6656, 17_920, 32_000),
    "llama:llama_65b": llama_count(80, 8192, 22_016, 32_000),
    "llama2:llama2_7b": 6_738_415_616,
    "llama2:llama2_13b": llama_count(40, 5120, 13_824, 32_000),
    "llama2:llama2_70b": 68_976_648_192,
    "llama3:llama3": 8_030_261_248,
    "llama3:llama3_8b": 8_030_261_248,
    "llama3:llama3_70b": 70_553_706_496,
    "llama3:llama3_405b": 405_853_388_800,
    "llama3:llama3_3_70b": 70_553_706_496,
    "deepseek_llm:deepseek_llm_7b": llama_count(30, 4096, 11_008, 102_400),
    "deepseek_llm:deepseek_llm_67b": llama_count(95, 8192, 22_016, 102_400, kv=1 / 8),
    "deepseek_v2:deepseek_v2": 235_741_434_880,
    "deepseek_v2:deepseek_v2_lite": 15_706_484_224,
    "deepseek_v3:deepseek_v3": 671_026_404_352,
    # A sparse layer more, three norms and a map of 2 width to width.
    "deepseek_v3:deepseek_v3_mtp": 671_026_404_352 + 11_507_286_016 + 3 * 7168 + 2 * 7168**2,
    "mistral:mistral_7b": 7_241_732_096,
    "mixtral:mixtral_8x7b": 46_702_792_704,
    "mixtral:mixtral_8x22b": 140_630_071_296,
    # CohereForCausalLM with one head of keys and values; the paper says 8.63B, 62.50B and 540.35B.
    "palm:palm_8b": 8_632_012_800,
    "palm:palm_62b": 62_495_662_080,
    "palm:palm_540b": 540_356_474_880,
    # Of 13 width² and 12 width a layer (biases, u and v, two norms), a last norm and the embedding.
    "gopher:gopher_44m": 43_700_736,
    "gopher:gopher_117m": 116_709_120,
    "gopher:gopher_417m": 417_443_328,
    "gopher:gopher_1_4b": 1_374_799_872,
    "gopher:gopher_7_1b": 7_112_101_888,
    "gopher:gopher_280b": 279_714_217_984,
    "chinchilla:chinchilla_70b": 70_063_890_432,
    # A layer of 4 width² + 3 * 32,768 width weights, 4 width + 2 * 32,768 + width biases and two norms.
    "glm_130b:glm_130b": 128_697_794_560,
    "glm_130b:glm_130b_prefix": 128_697_794_560,
    "glm_130b:glm_100_layers": 128_697_794_560 + 30 * (4 * 12_288**2 + 3 * 32_768 * 12_288 + 9 * 12_288 + 2 * 32_768),
    # The paper says 863M, 3.2B and 3.8B.
    "deepnet:deepnet_200": 100 * PAIR[512] + 250_000 * 512,
    "deepnet:deepnet_200_wide": 100 * PAIR[1024] + 250_000 * 1024,
    "deepnet:deepnet_1000": 500 * PAIR[512] + 250_000 * 512,
    "deepnet:deepnet_decoder": 1000 * (12 * 512**2 + 13 * 512) + 50_257 * 512,
    "deepnet:deepnet_decoder_100": 100 * (12 * 512**2 + 13 * 512) + 50_257 * 512,
    # 12 width² + 13 width a layer; a last norm and the embedding.
    "alibi:alibi_1_3b": 25 * (12 * 2048**2 + 13 * 2048) + 2 * 2048 + 50_257 * 2048,
    # BloomForCausalLM; the paper's Table 3 says 559M, 1065M, 1722M, 3003M, 7069M and 176,247M.
    "bloom:bloom_560m": 559_214_592,
    "bloom:bloom_1_1b": 1_065_314_304,
    "bloom:bloom_1_7b": 1_722_408_960,
    "bloom:bloom_3b": 3_002_557_440,
    "bloom:bloom_7_1b": 7_069_016_064,
    "bloom:bloom_176b": 176_247_271_424,
    # Without embedding and head the paper's Table 7 says 8.4M, 37.8M, 272.9M, 272.9M, 1079.0M and 4303.4M.
    "sparsely_gated_moe:moe_4": gated_count(4),
    "sparsely_gated_moe:moe_32": gated_count(32),
    "sparsely_gated_moe:moe_256": gated_count(256),
    "sparsely_gated_moe:moe_256_h": gated_count(256, 16),
    "sparsely_gated_moe:moe_1024_h": gated_count(1024, 16),
    "sparsely_gated_moe:moe_4096_h": gated_count(4096, 16),
    "mamba:mamba_130m": 129_135_360,
    "mamba:mamba_370m": 371_516_416,
    "mamba:mamba_790m": 793_204_224,
    "mamba:mamba_1_4b": 1_372_178_432,
    "mamba:mamba_2_8b": 2_768_345_600,
    # The paper's formula: 2 D V + 4 D + L D (12 D + 2 (ranks of decay, rate, value and gate) + 19) - (2 D rank of value
    # + D), which for the World checkpoints gives these.
    "rwkv7:rwkv7_0_1b": 191_034_624,
    "rwkv7:rwkv7_0_4b": 450_767_872,
    "rwkv7:rwkv7_1_5b": 1_527_404_544,
    "rwkv7:rwkv7_2_9b": 2_947_735_040,
    # A layer has message passing (2 width² + width), the mixer of Mamba (6 width² for its ends; 192 channels of 16
    # rates, a skip, 4 + 1 of the convolution, 6 + 32 selected, 6 + 1 of the step), a feed-forward (4 width² + 3 width)
    # and three norms.
    "graph_mamba:graph_mamba": 4 * (12 * 96**2 + 10 * 96 + 192 * (16 + 1 + 5 + 38 + 7)) + 10 * 96 + 97 * 10,
}
ACTIVE = {
    "deepseek_v2:deepseek_v2": 21_375_800_320,
    "deepseek_v2:deepseek_v2_lite": 2_661_150_208,
    "deepseek_v3:deepseek_v3": 37_552_282_624,
    "deepseek_v3:deepseek_v3_mtp": 37_552_282_624 + 11_507_286_016 - 248 * 3 * 7168 * 2048 + 3 * 7168 + 2 * 7168**2,
    "mixtral:mixtral_8x7b": 12_879_925_248,
    "mixtral:mixtral_8x22b": 39_161_468_928,
    "sparsely_gated_moe:moe_32": gated_count(32) - 28 * 2 * 512 * 1024,
    "sparsely_gated_moe:moe_256": gated_count(256) - 252 * 2 * 512 * 1024,
    "sparsely_gated_moe:moe_256_h": gated_count(256, 16) - 252 * 2 * 512 * 1024,
    "sparsely_gated_moe:moe_1024_h": gated_count(1024, 16) - 1020 * 2 * 512 * 1024,
    "sparsely_gated_moe:moe_4096_h": gated_count(4096, 16) - 4092 * 2 * 512 * 1024,
}
"""What one token meets, where experts are chosen."""
LINES = {"gpt2": 20, "llama3": 18, "mixtral": 20, "deepseek_v3": 30}
"""Lines of the first model and its blocks, blank lines and comments aside."""


@pytest.mark.parametrize("stem", LINES)
def test_a_spec_is_short(stem: str) -> None:
    text = (SPECS / f"{stem}.arch").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    ends = [i for i, line in enumerate(lines) if line == "}"]
    first = next(i for i, line in enumerate(lines) if line.startswith("model "))
    assert next(i for i in ends if i > first) + 1 <= LINES[stem]


# --- two tokens ahead -------------------------------------------------------------------------------------------------


def test_the_second_token_is_predicted_from_the_last_layer_and_the_next_token() -> None:
    """DeepSeek-V3, equations 21 to 23: the reference's fourth layer stands for the module's."""
    theirs: Any = tiny("DeepseekV3ForCausalLM", "DeepseekV3Config", dict(SMALL_V3, num_hidden_layers=4))
    settings = dict(SMALL_V3, first_k_dense_replace=0, num_hidden_layers=1)
    ahead: Any = tiny("DeepseekV3Model", "DeepseekV3Config", settings)
    ahead.layers[0].load_state_dict(theirs.model.layers[3].state_dict())
    del theirs.model.layers[3:]
    theirs.config.num_hidden_layers = 3
    module = zoo.module("deepseek_v3:deepseek_v3_mtp").eval()

    generator = torch.Generator().manual_seed(3)
    own = {
        "hidden_norm.weight": 1 + 0.2 * torch.randn(32, generator=generator),
        "embedding_norm.weight": 1 + 0.2 * torch.randn(32, generator=generator),
        "projection.weight": torch.randn(32, 64, generator=generator) / 8,
    }
    rules = table(
        (LLAMA_NORMS + MLA + LLAMA_EXPERTS).replace("model.layers.#", "layers.0").replace("blocks.#", "second_block")
        + "    norm.weight     second_norm.weight"
    )
    main = carried(their_tensors(theirs), DEEPSEEK_TABLE)
    load(module, main | carried(their_tensors(ahead), rules, ("embed_tokens",)) | own)

    last: list[Tensor] = []
    theirs.model.layers[2].register_forward_hook(lambda _module, _inputs, out: last.append(out))
    x = tokens(torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = theirs(input_ids=x).logits
        hidden = F.rms_norm(last[0][:, :-1], (32,), own["hidden_norm.weight"], 1e-6)
        coming = F.rms_norm(theirs.model.embed_tokens(x[:, 1:]), (32,), own["embedding_norm.weight"], 1e-6)
        joined = torch.cat((hidden, coming), dim=-1) @ own["projection.weight"].T
        second = theirs.lm_head(ahead(inputs_embeds=joined).last_hidden_state)
        found = module(x)
    close(found[0], wanted)
    close(found[1], second)


# --- against the papers' equations ------------------------------------------------------------------------------------


def weights_of(module: nn.Module, seed: int = 5) -> dict[str, Tensor]:
    """The module's weights, drawn so that every one of them matters: gains about 1, all others neither 0 nor large."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                p.copy_(1 + 0.2 * noise)
            elif "embedding" in name or p.dim() < 2:
                p.copy_(0.3 * noise)
            else:
                p.copy_(noise / math.sqrt(p.shape[-1]))
    return {name: p.detach() for name, p in module.named_parameters()}


def rms_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * w[f"{name}.weight"]


def heads_of(x: Tensor, heads: int = 4) -> Tensor:
    """[batch, time, width] as [batch, heads, time, head_dim]."""
    return x.view(*x.shape[:2], heads, -1).permute(0, 2, 1, 3)


def turned(x: Tensor) -> Tensor:
    """RoFormer, equation 34, channels i and i + d / 2 being a pair."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1)


def attend(w: Weights, name: str, x: Tensor, seen: Tensor, **how: Any) -> Tensor:
    """Multi-head attention from x to `memory`, itself unless given; `seen` is [queries, keys], or with batch and heads.

    `turn` changes queries and keys, `bias` is added to the scores, `scores` makes them from queries and keys."""
    memory = how.get("memory", x)
    q, k, v = (heads_of(linear(w, f"{name}.{part}", y)) for part, y in (("q", x), ("k", memory), ("v", memory)))
    if how.get("turn"):
        q, k = how["turn"](q), how["turn"](k)
    scores = how["scores"](q, k) if "scores" in how else q @ k.transpose(-1, -2)
    scores = scores / math.sqrt(q.shape[-1]) + how.get("bias", 0)
    y = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1) @ v
    return linear(w, f"{name}.out", y.permute(0, 2, 1, 3).reshape(x.shape))


def causal(time: int) -> Tensor:
    return torch.ones(time, time).tril().bool()


def mlp(w: Weights, name: str, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    return linear(w, f"{name}.down", act(linear(w, f"{name}.up", x)))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gpt3(w: Weights, x: Tensor) -> Tensor:
    """Every second layer sees the last five places alone."""
    time = x.shape[1]
    h = w["token_embedding.weight"][x] + w["position.weight"][:time]
    for i in range(4):
        seen = causal(time) & (torch.ones(time, time).triu(-4).bool() if i % 2 else True)
        b = f"blocks.{i}"
        h = h + attend(w, f"{b}.attention", layer_norm(w, f"{b}.attention_norm", h), seen)
        h = h + mlp(w, f"{b}.ffn", layer_norm(w, f"{b}.ffn_norm", h), gelu_tanh)
    return layer_norm(w, "norm", h) @ w["token_embedding.weight"].T


def gopher(w: Weights, x: Tensor) -> Tensor:
    """Scores of Transformer-XL (section 3.3): (q + u) k and (q + v) r, r a map of the sines of the distance."""
    h = w["token_embedding.weight"][x]
    time = x.shape[1]
    distance = torch.arange(time)[:, None] - torch.arange(time)
    angle = distance[..., None] * 10_000.0 ** (-torch.arange(0, 32, 2) / 32)
    table = torch.cat((angle.sin(), angle.cos()), dim=-1)
    for i in range(2):
        b = f"blocks.{i}"
        p = {part: w[f"{b}.attention.position.{part}"] for part in ("weight", "u", "v")}

        def scores(q: Tensor, k: Tensor, p: Weights = p) -> Tensor:
            r = (table @ p["weight"].T).view(time, time, 4, -1)
            content = torch.einsum("bhqd,bhkd->bhqk", q + p["u"][:, None], k)
            return content + torch.einsum("bhqd,qkhd->bhqk", q + p["v"][:, None], r)

        h = h + attend(w, f"{b}.attention", rms_norm(w, f"{b}.attention_norm", h), causal(time), scores=scores)
        h = h + mlp(w, f"{b}.ffn", rms_norm(w, f"{b}.ffn_norm", h), gelu_tanh)
    return rms_norm(w, "norm", h) @ w["token_embedding.weight"].T


def glm(w: Weights, x: Tensor, given: Tensor | None = None) -> Tensor:
    """LayerNorm(sqrt(2 N) x + f(x)) around rotary attention and GeGLU; the prompt is seen by all."""
    h = w["token_embedding.weight"][x]
    seen = causal(x.shape[1])[None, None]
    seen = seen if given is None else seen | given[:, None, None, :]
    for i in range(2):
        b, alpha = f"blocks.{i}", math.sqrt(2 * 2)
        h = layer_norm(w, f"{b}.attention_norm", alpha * h + attend(w, f"{b}.attention", h, seen, turn=turned))
        inner = gelu(linear(w, f"{b}.ffn.gate", h)) * linear(w, f"{b}.ffn.up", h)
        h = layer_norm(w, f"{b}.ffn_norm", alpha * h + linear(w, f"{b}.ffn.down", inner))
    return layer_norm(w, "norm", h) @ w["token_embedding.weight"].T


def deepnet(w: Weights, source: Tensor, target: Tensor, real: Tensor) -> Tensor:
    """DeepNet, figure 2, with as many layers (N) in the encoder as in the decoder (M)."""
    n = m = 2
    skip, decoder_skip = 0.81 * (n**4 * m) ** (1 / 16), (3 * m) ** (1 / 4)
    seen = real[:, None, None, :]
    words = w["token_embedding.weight"]
    y = math.sqrt(32) * words[source] + sines(source.shape[1], 32)
    for i in range(n):
        b = f"encoder.{i}"
        y = layer_norm(w, f"{b}.attention_norm", skip * y + attend(w, f"{b}.attention", y, seen))
        y = layer_norm(w, f"{b}.ffn_norm", skip * y + mlp(w, f"{b}.ffn", y, torch.relu))
    h = math.sqrt(32) * words[target] + sines(target.shape[1], 32)
    for i in range(m):
        b = f"decoder.{i}"
        h = layer_norm(w, f"{b}.attention_norm", decoder_skip * h + attend(w, f"{b}.attention", h, causal(h.shape[1])))
        crossed = attend(w, f"{b}.cross_attention", h, seen, memory=y)
        h = layer_norm(w, f"{b}.cross_attention_norm", decoder_skip * h + crossed)
        h = layer_norm(w, f"{b}.ffn_norm", decoder_skip * h + mlp(w, f"{b}.ffn", h, torch.relu))
    return h @ words.T


def deepnet_decoder(w: Weights, x: Tensor) -> Tensor:
    h = math.sqrt(32) * w["token_embedding.weight"][x] + sines(x.shape[1], 32)
    for i in range(2):
        b, alpha = f"blocks.{i}", (2 * 2) ** (1 / 4)
        h = layer_norm(w, f"{b}.attention_norm", alpha * h + attend(w, f"{b}.attention", h, causal(x.shape[1])))
        h = layer_norm(w, f"{b}.ffn_norm", alpha * h + mlp(w, f"{b}.ffn", h, torch.relu))
    return h @ w["token_embedding.weight"].T


def alibi(w: Weights, x: Tensor) -> Tensor:
    """Section 3: head i of n subtracts 2^(-8 i / n) for each place between query and key."""
    h = math.sqrt(32) * w["token_embedding.weight"][x]
    time = x.shape[1]
    back = torch.arange(time)[:, None] - torch.arange(time)
    bias = -torch.tensor([2.0 ** (-8 * i / 4) for i in range(1, 5)])[:, None, None] * back
    for i in range(2):
        b = f"blocks.{i}"
        h = h + attend(w, f"{b}.attention", layer_norm(w, f"{b}.attention_norm", h), causal(time), bias=bias)
        h = h + mlp(w, f"{b}.ffn", layer_norm(w, f"{b}.ffn_norm", h), torch.relu)
    return layer_norm(w, "norm", h) @ w["token_embedding.weight"].T


EQUATIONS: dict[str, Callable[..., Tensor]] = {
    "gpt3:gpt3_175b": gpt3,
    "gopher:gopher_280b": gopher,
    "chinchilla:chinchilla_70b": gopher,
    "glm_130b:glm_130b": glm,
    "glm_130b:glm_130b_prefix": glm,
    "deepnet:deepnet_1000": deepnet,
    "deepnet:deepnet_decoder": deepnet_decoder,
    "alibi:alibi_1_3b": alibi,
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_logits_are_those_of_the_paper(name: str) -> None:
    module = zoo.module(name).eval()
    weights, inputs = weights_of(module), zoo.inputs(zoo.graph(name))
    with torch.no_grad():
        close(module(**inputs), EQUATIONS[name](weights, *inputs.values()))


def test_the_prompt_is_read_in_both_directions() -> None:
    """A later token of the prompt reaches an earlier logit, one that is to be generated does not."""
    module = zoo.module("glm_130b:glm_130b_prefix").eval()
    x = tokens(torch.Generator().manual_seed(1), 8)
    given = torch.arange(8).expand(2, -1) < 5
    with torch.no_grad():
        before = module(x, given)[:, :4]
        for place, reaches in ((4, True), (6, False)):
            other = x.clone()
            other[:, place] = (x[:, place] + 1) % VOCAB
            assert bool((module(other, given)[:, :4] - before).abs().max() > 1e-4) is reaches


# --- the sparsely gated mixture of experts ----------------------------------------------------------------------------


def best_of(scores: Tensor, spread: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Equations 3 to 5 and 8 to 9 for one word: the weight of each expert, and how likely it is among the k best."""
    kept = torch.full_like(scores, -torch.inf)
    best = scores.argsort(descending=True)[:k]
    kept[best] = scores[best]
    others = [torch.cat((scores[:e], scores[e + 1 :])).sort(descending=True)[0] for e in range(len(scores))]
    if k == len(scores):
        return torch.softmax(kept, dim=0), torch.ones_like(scores)
    bound = torch.stack([o[k - 1] for o in others])
    return torch.softmax(kept, dim=0), torch.distributions.Normal(0.0, 1.0).cdf((scores - bound) / spread)


def gate_of(w: Weights, words: Tensor, k: int, groups: int) -> tuple[Tensor, Tensor]:
    """The weights of all experts for each word, and the load of each expert (equations 10 and 13)."""

    def scores(name: str, word: Tensor) -> tuple[Tensor, Tensor]:
        name = f"moe.router.{name}"
        return w[f"{name}.gate.weight"] @ word, F.softplus(w[f"{name}.spread.weight"] @ word)

    if not groups:
        pairs = [best_of(*scores("scores", word), k) for word in words]
        return torch.stack([gate for gate, _ in pairs]), torch.stack([chance for _, chance in pairs]).sum(0)
    outer = [best_of(*scores("outer", word), 2) for word in words]
    inner = []
    for word in words:
        clean, spread = scores("inner", word)
        inner.append([best_of(c, s, 2) for c, s in zip(clean.chunk(groups), spread.chunk(groups), strict=True)])
    gates = [torch.cat([o[g] * i[g][0] for g in range(groups)]) for (o, _), i in zip(outer, inner, strict=True)]
    loads = []
    for g in range(groups):
        asked = [i[g][1] for (o, _), i in zip(outer, inner, strict=True) if o[g] > 0]
        loads.append(sum(chance[g] for _, chance in outer) * torch.stack(asked).mean(0))
    return torch.stack(gates), torch.cat(loads)


def gated(w: Weights, x: Tensor, k: int, groups: int) -> tuple[Tensor, list[Tensor]]:
    """Shazeer et al. (2017), section C.1, without noise and dropout: logits and the two losses."""

    def lstm(name: str, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 16)
        found = []
        for t in range(x.shape[1]):
            gates = x[:, t] @ w[f"{name}.weight_ih_l0"].T + w[f"{name}.bias_ih_l0"]
            gates = gates + h @ w[f"{name}.weight_hh_l0"].T + w[f"{name}.bias_hh_l0"]
            i, f, g, o = gates.chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return torch.stack(found, dim=1)

    x = w["token_embedding.weight"][x]
    x = x + lstm("lower", x)
    words = x.flatten(0, 1)
    gates, load = gate_of(w, words, k, groups)
    up, down = w["moe.experts.up.weight"], w["moe.experts.down.weight"]
    answers = [down @ torch.relu(up @ word)[..., None] for word in words]  # of all experts: [experts, width, 1]
    mixed = torch.stack([gate @ answer[..., 0] for gate, answer in zip(gates, answers, strict=True)])
    x = x + torch.sigmoid(mixed.view(x.shape))
    x = x + lstm("upper", x)
    return linear(w, "head", x), [0.1 * y.var(unbiased=False) / y.mean() ** 2 for y in (gates.sum(0), load)]


@pytest.mark.parametrize(("name", "k", "groups"), [("moe_32", 2, 0), ("moe_256_h", 4, 4), ("moe_4", 4, 0)])
def test_gates_and_their_losses_are_those_of_the_paper(name: str, k: int, groups: int) -> None:
    module = zoo.module(f"sparsely_gated_moe:{name}").eval()
    x = tokens(torch.Generator().manual_seed(1), 9)
    losses: dict[str, Tensor] = {}
    with torch.no_grad():
        wanted, terms = gated(weights_of(module), x, k, groups)
        close(module(x, losses), wanted)
    torch.testing.assert_close(torch.stack(list(losses.values())), torch.stack(terms), rtol=1e-5, atol=1e-7)


def test_noise_chooses_other_experts_in_training_alone() -> None:
    text = "model m(x: [batch, 4]) -> [batch, 4] { return x -> noise }"
    module = archdsl.to_torch(text=text)
    torch.manual_seed(0)
    spread = torch.tensor([0.5, 1.0, 2.0, 4.0]).expand(20_000, -1)
    drawn = module.train()(spread)
    assert torch.allclose(drawn.std(0), spread[0], rtol=0.03)
    assert float((drawn.mean(0) / spread[0]).abs().max()) < 0.03
    assert not module.eval()(spread).any()

    gate = zoo.module("sparsely_gated_moe:moe_256")
    weights_of(gate)
    x = tokens(torch.Generator().manual_seed(1), 9)
    assert torch.equal(gate.eval()(x), gate(x))
    for part in gate.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    assert not torch.equal(gate.train()(x), gate(x))


# --- RWKV-7 -----------------------------------------------------------------------------------------------------------


def rwkv7(w: Weights, tokens: Tensor) -> Tensor:
    """Position by position and head by head, the state being times a matrix as in equation 17."""

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    def low_rank(name: str, x: Tensor, act: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
        return linear(w, f"{name}.up", act(linear(w, f"{name}.down", x)))

    def mixing(b: str, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        before = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)
        xr, xw, xk, xv, xa, xg = (torch.lerp(x, before, mix) for mix in w[f"{b}.mix"])
        r, k, v = linear(w, f"{b}.r", xr), linear(w, f"{b}.k", xk), linear(w, f"{b}.v", xv)
        decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(low_rank(f"{b}.decay", xw, torch.tanh)))
        rate, gate = torch.sigmoid(low_rank(f"{b}.rate", xa)), low_rank(f"{b}.gate", xg, torch.sigmoid)
        if first is not None:
            v = torch.lerp(v, first, torch.sigmoid(low_rank(f"{b}.value", xv)))
        removed = k * w[f"{b}.removal"]
        k = k * torch.lerp(torch.ones_like(rate), rate, w[f"{b}.replacement"])
        found = torch.zeros_like(x)
        for row in range(len(x)):
            for head in range(2):
                own, state = slice(8 * head, 8 * head + 8), torch.zeros(8, 8)
                for t in range(x.shape[1]):
                    unit = F.normalize(removed[row, t, own], dim=0)
                    state = state @ (decay[row, t, own].diag() - torch.outer(unit, rate[row, t, own] * unit))
                    state = state + torch.outer(v[row, t, own], k[row, t, own])
                    read = F.layer_norm(state @ r[row, t, own], (8,), eps=64e-5)
                    read = read * w[f"{b}.norm.weight"][own] + w[f"{b}.norm.bias"][own]
                    bonus = (r[row, t, own] * w[f"{b}.bonus"][head] * k[row, t, own]).sum()
                    found[row, t, own] = read + bonus * v[row, t, own]
        return linear(w, f"{b}.out", gate * found), v if first is None else first

    x, first = norm("embedding_norm", w["token_embedding.weight"][tokens]), None
    for i in range(3):
        b = f"blocks.{i}"
        y, first = mixing(f"{b}.attention", norm(f"{b}.attention_norm", x), first)
        x = x + y
        h = norm(f"{b}.ffn_norm", x)
        before = torch.cat((torch.zeros_like(h[:, :1]), h[:, :-1]), dim=1)
        h = linear(w, f"{b}.ffn.up", torch.lerp(h, before, w[f"{b}.ffn.mix"]))
        x = x + linear(w, f"{b}.ffn.down", torch.relu(h) ** 2)
    return linear(w, "head", norm("norm", x))


def test_rwkv7_corrects_its_state_position_by_position() -> None:
    module = zoo.module("rwkv7:rwkv7_0_1b").eval()
    weights = weights_of(module)
    x = tokens(torch.Generator().manual_seed(1), 9)
    with torch.no_grad():
        close(module(x), rwkv7(weights, x))


# --- Graph-Mamba ------------------------------------------------------------------------------------------------------


def graph_mamba(w: Weights, x: Tensor, adjacency: Tensor) -> Tensor:
    """Node by node: neighbours averaged, then a state for each channel carried from the least to the most connected."""

    def norm(name: str, x: Tensor) -> Tensor:
        scaled = (x - w[f"{name}.running_mean"]) / torch.sqrt(w[f"{name}.running_var"] + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def scan(b: str, x: Tensor) -> Tensor:
        """Mamba, algorithm 2, for one sequence [nodes, width]."""
        h, gate = linear(w, f"{b}.input", x).split(32, dim=-1)
        before = torch.cat((torch.zeros(3, 32), h))
        kernel = w[f"{b}.conv.weight"][:, 0]
        h = F.silu(sum((kernel[:, i] * before[i : i + len(x)] for i in range(4)), w[f"{b}.conv.bias"]))
        step, write, read = linear(w, f"{b}.select", h).split((1, 4, 4), dim=-1)
        step = F.softplus(linear(w, f"{b}.step", step) + w[f"{b}.step_bias"])
        state, found = torch.zeros(32, 4), []
        for t in range(len(x)):
            decay = torch.exp(-step[t][:, None] * torch.exp(w[f"{b}.log_rates"]))
            state = decay * state + (step[t] * h[t])[:, None] * write[t]
            found.append(state @ read[t] + w[f"{b}.skip"] * h[t])
        return linear(w, f"{b}.output", torch.stack(found) * F.silu(gate))

    x = linear(w, "node_embedding", x)
    nodes = x.shape[1]
    for i in range(2):
        b = f"blocks.{i}"
        around, ordered = torch.zeros_like(x), torch.zeros_like(x)
        for g, edges in enumerate(adjacency):
            for node in range(nodes):
                near = [x[g, other] for other in range(nodes) if edges[node, other]]
                around[g, node] = torch.stack(near).mean(0) if near else 0
            order = sorted(range(nodes), key=lambda node: (int(edges[node].sum()), node))
            for place, y in zip(order, scan(f"{b}.node_scan.mixer", x[g, order]), strict=True):
                ordered[g, place] = y
        passed = linear(w, f"{b}.message_passing.own", x) + linear(w, f"{b}.message_passing.neighbours", around)
        local = norm(f"{b}.local_norm", x + torch.relu(passed))
        h = local + norm(f"{b}.scan_norm", x + ordered)
        x = norm(f"{b}.ffn_norm", h + mlp(w, f"{b}.ffn", h, torch.relu))
    return linear(w, "head", x.mean(1))


def graphs(generator: torch.Generator, nodes: int = 11) -> Tensor:
    """Two undirected graphs, in which several nodes have as many neighbours as another, and one has none."""
    edges = torch.rand(2, nodes, nodes, generator=generator) < 0.25
    edges = edges.triu(1)
    edges[:, 3], edges[:, :, 3] = False, False
    return (edges | edges.transpose(1, 2)).float()


def graph_module() -> tuple[nn.Module, dict[str, Tensor]]:
    module = zoo.module("graph_mamba:graph_mamba").eval()
    weights_of(module)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point():
                noise = torch.rand(buffer.shape, generator=generator)
                buffer.copy_(1 + noise if name.endswith("var") else 0.3 * (noise - 0.5))
    return module, dict(module.state_dict())


def test_graphs_are_read_node_by_node() -> None:
    module, weights = graph_module()
    generator = torch.Generator().manual_seed(1)
    atoms, adjacency = torch.randn(2, 11, 5, generator=generator), graphs(generator)
    with torch.no_grad():
        close(module(atoms, adjacency), graph_mamba(weights, atoms, adjacency))


def test_the_order_of_nodes_matters_among_equals_alone() -> None:
    """In a star with rays of different lengths no two nodes that are moved have one degree: then nothing changes."""
    module, _ = graph_module()
    adjacency = torch.zeros(1, 6, 6)
    for node in range(6):
        adjacency[0, node, : node + 1] = 1  # node + 1 neighbours, itself included: all degrees differ
    atoms = torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(1))
    moved = torch.tensor([3, 0, 5, 1, 4, 2])
    with torch.no_grad():
        close(module(atoms[:, moved], adjacency[:, moved][:, :, moved]), module(atoms, adjacency))
