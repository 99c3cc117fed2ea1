"""What blocks keep for the backward pass: no tensor larger than four times the block's input at 4,096 tokens, but for
those that stand in `LARGER` with their reason."""

from __future__ import annotations

import pytest

import archdsl
from archdsl.estimates.activations import Saving, calls, path_of
from archdsl.estimates.flops import sizes_at
from archdsl.ir.graph import Model, Value
from archdsl.passes.flatten import unroll
from archdsl.resources import library_index

TOKENS = 4096
MOST = 4.0


def largest_saved(model: Model) -> dict[str, float]:
    """Return the largest tensor that each block saves, as a multiple of its input: of the largest tensor that it is
    given, or for what stands in the model itself, of the model's input or, of token ids, of their embeddings."""
    graph, root = unroll(model)
    saving = Saving(graph, sizes_at(model, 1, TOKENS), "float32")
    embedded = [v for node in graph.nodes for v in node.outputs if v.rank == 3][:1]
    entering = {"": (model.name, max(saving.bytes(v) for v in (*graph.inputs, *embedded) if v.rank > 2))}
    for node, call in calls(root):
        if sizes := [saving.bytes(v) for v in node.inputs if isinstance(v, Value)]:
            entering[call.path] = call.block.name, max(sizes)
    found: dict[str, float] = {}
    for flat in graph.nodes:
        path = path_of(flat)
        while path not in entering:
            path = path.rpartition(".")[0]
        block, size = entering[path]
        found[block] = max([found.get(block, 0.0), *(kept / size for _, kept in saving.kept(flat))])
    return found


def on(call: str, width: int = 4096) -> str:
    return f"model m(x: [batch, time, {width}]) {{ return x -> {call} }}"


def residual(block: str) -> str:
    return f"model m(x: [batch, time, 4096], y: [batch, time, 4096]) {{ return {block}(x -> linear(4096) as a, y) }}"


LAYER = "block layer {{ attention: mha(heads: 32)  mask: causal  ffn: mlp(hidden: 16_384)  norm: layernorm {more} }}\n"
DECODER = LAYER + "model m {{ vocab: 32_000  context: 4096  width: 4096  blocks: 2 * layer  head: lm }}"
SEQ2SEQ = LAYER.format(more="cross_attention: mha(heads: 32)") + (
    "block reader { attention: mha(heads: 32)  ffn: mlp(hidden: 16_384)  norm: layernorm }\n"
    "model m { vocab: 32_000  context: 4096  width: 4096  encoder: 2 * reader  decoder: 2 * layer }"
)
ENCODER = (
    LAYER.format(more="").replace("mask: causal", "")
    + "model m { input: frames(features: 80)  width: 4096  blocks: 2 * layer  norm: layernorm }"
)
IMAGES = "model m(x: [batch, 3, 1024, 1024]) { return x -> patches(size: 16, image: 1024, width: 768CLASS) }"
ROUTER = (
    "model m(x: [batch, time, 7168]) { weights, chosen = x -> BLOCK(experts: 256, top_k: 8, groups: 8, top_groups: 4)"
    "  return weights }"
)

CASES = {
    "mha": on("mha(heads: 32, mask: causal, position: rope)"),
    "gqa": on("gqa(heads: 32, kv_heads: 8, mask: causal, position: rope)"),
    "mqa": on("mqa(heads: 32, mask: causal, position: rope)"),
    "mla": on(
        "mla(heads: 128, kv_rank: 512, nope_dim: 128, rope_dim: 64, v_dim: 128, q_rank: 1536, mask: causal)", 7168
    ),
    "attend": on("mha(heads: 32, mask: causal, position: rope, scores: tanh, weights: identity)"),
    "mlp": on("mlp(hidden: 16_384)"),
    "glu_mlp": on("glu_mlp(hidden: 14_336)"),
    "swiglu": on("swiglu(hidden: 14_336)"),
    "geglu": on("geglu(hidden: 14_336)"),
    "reglu": on("reglu(hidden: 14_336)"),
    "moe": on("moe(experts: 8, top_k: 2, expert: swiglu(hidden: 14_336))"),
    "route": "model m(x: [batch, time, 64]) { weights, chosen = x -> route(top_k: 8)  return weights }",
    "softmax_router": ROUTER.replace("BLOCK", "softmax_router"),
    "sigmoid_router": ROUTER.replace("BLOCK", "sigmoid_router"),
    "language_model": DECODER.format(more=""),
    "encoder_decoder": SEQ2SEQ,
    "input_model": ENCODER,
    "patches": IMAGES.replace("CLASS", ""),
    "with_class_token": IMAGES.replace("CLASS", ", class_token: true"),
    "conv_subsampling": on("conv_subsampling(channels: 512)", 80),
    "mlm": on("mlm(vocab: 32_000, tied: false)"),
    "with_bias": on("with_bias"),
    "next_sentence": on("next_sentence"),
    "classifier": on("classifier(classes: 1000)"),
    "first": on("classifier(classes: 1000, pool: first)"),
    "sequence_classifier": on("sequence_classifier(classes: 3, dropout: 0.1)"),
    "token_classifier": on("token_classifier(classes: 9, dropout: 0.1)"),
    "span_classifier": "model m(x: [batch, time, 4096]) { a, b = x -> span_classifier  return a }",
    "mamba2_mixer": on("mamba2_mixer(heads: 128, head_dim: 64, groups: 8, state: 128, step_min: 0.001)"),
    "parallel": DECODER.format(more="topology: parallel"),
    "add": residual("add"),
    "scale": DECODER.format(more="residual: scale(branch: 0.5)"),
    "deepnorm": residual("deepnorm(layers: 8)"),
    "layerscale": residual("layerscale"),
    "gain": on("linear(4096) -> gain"),
    "gated": residual("gated"),
    "learned": on("learned(length: 4096)"),
    "sinusoidal": on("sinusoidal"),
    "only": on("only(mlp(hidden: 16_384))"),
    "bidirectional": on("bidirectional(gru(4096))"),
    "talking_heads": on("mha(heads: 32, mask: causal, scores: talking_heads)"),
    "top_keys": on("mha(heads: 32, mask: causal, normalize: top_keys(k: 8))"),
    "learned_sink": on("mha(heads: 32, mask: causal, normalize: learned_sink)"),
    "forgetting": on("mha(heads: 32, mask: causal, scores: forgetting)"),
    "gated_values": on("mha(heads: 32, mask: causal, gate: gated_values)"),
    "gated_heads": on("mha(heads: 32, mask: causal, gate: gated_heads)"),
    "per_head_norm": on("mha(heads: 32, mask: causal, qk_norm: per_head_norm)"),
    "relative_bias": on("mha(heads: 32, position: relative_bias(buckets: 32, max_distance: 128))"),
    "residual_attention": "model m(x: [batch, time, 4096]) { y, s = residual_attention(32, mask: causal)(x) return y }",
    "value_residual": "model m(x: [batch, time, 4096]) { y, v = value_residual(32, mask: causal)(x)  return y }",
    "gru_gate": residual("gru_gate"),
    "hyper_connection": "model m(x: [batch, time, 4, 4096]) { return x -> hyper_connection(mlp(hidden: 16_384)) }",
    "adaptive": "model m(x: [batch, time, 4096], c: [batch, 64]) { return adaptive(mlp(hidden: 16_384))(x, c) }",
    "scale_norm": on("scale_norm"),
    "dynamic_tanh": on("dynamic_tanh"),
    "token_shift": on("token_shift"),
    "mixture_of_softmaxes": on("mixture_of_softmaxes(vocab: 32_000)"),
}
"""A spec for each block of the library, with the sizes of a published model where one has it."""
IN_OTHERS = {"mixed_values", "word_table", "words", "lm", "embedded", "transformer_block", "serial", "frames"}
"""Blocks that the models of slots above are made of."""
POSITIONS = {
    "alibi": on("mha(heads: 32, mask: causal, position: alibi)"),
    "softcap": on("mha(heads: 32, mask: causal, softcap: 50)"),
    "dropout": on("mha(heads: 32, mask: causal, dropout: 0.1)"),
}
"""Attention with a bias for each pair of positions, or with scores that are bent or dropped."""
RECURRENCES = {
    "hf/mamba2": {"layers": 1},
    "hf/nemotron_h": {"layers": 4},
    "hf/granitemoehybrid": {"layers": 8, "context": TOKENS},
    "hf/recurrent_gemma": {"layers": 3},
    "hf/qwen3_next": {"layers": 4},
    "hf/jamba": {"layers": 8},
    "hf/rwkv": {"layers": 1},
    "hf/lfm2": {"layers": 4},
    "mamba_130m": {"layers": 1},
    "rwkv7_0_1b": {"layers": 2},
    "performer": {"layers": 1},
}
LARGER = {
    ("mla", "mla"): (4.58, "128 heads of keys and values, 256 numbers each, from a latent of 512"),
    ("moe", "moe"): (7, "each token goes to two experts with 14,336 hidden channels"),
    ("mamba2_mixer", "mamba2_mixer"): (8, "`linear_recurrence` fills the states between chunks up to a multiple of 32"),
    ("conv_subsampling", "conv_subsampling"): (128, "80 numbers a frame become 512 channels of 40 numbers"),
    ("alibi", "mha"): (32, "PyTorch's fused kernels keep the bias that they add to the scores of 32 heads"),
    ("relative_bias", "mha"): (32, "the same, and its gradient goes to the table"),
    ("attend", "mha"): (32, "a block between the steps of attention is given the scores of 32 heads"),
    **{(hook, "mha"): (32, "the same") for hook in ("talking_heads", "top_keys", "learned_sink", "forgetting")},
    ("residual_attention", "residual_attention"): (32, "the scores of 32 heads are handed on"),
    ("mixture_of_softmaxes", "mixture_of_softmaxes"): (31.25, "four distributions over 32,000 words"),
    ("softcap", "mha"): (32, "no fused kernel bends scores: those of 32 heads are kept"),
    ("hf/mamba2", "mamba2_mixer"): (8, "the same"),
    ("hf/nemotron_h", "mamba2_mixer"): (8, "the same"),
    ("hf/nemotron_h", "mlp"): (5.25, "21,504 hidden channels for a width of 4,096"),
    ("hf/granitemoehybrid", "mamba2_mixer"): (16, "the same, of states twice as large"),
    ("hf/granitemoehybrid", "moe"): (5.38, "each token goes to two experts with 11,008 hidden channels"),
    ("hf/recurrent_gemma", "recurrent_gemma"): (100, "`softcap` bends the logits of 256,000 words"),
    ("performer", "favor_attention"): (4.19, "256 random features of each head of 64 channels"),
    ("hf/qwen3_next", "moe"): (10, "each token goes to ten experts"),
    ("hf/jamba", "moe"): (7, "each token goes to two experts with 14,336 hidden channels"),
}
"""By case and block: how much larger than its input the largest tensor is that the block saves, and why."""


@pytest.mark.parametrize("case", [*CASES, *POSITIONS, *RECURRENCES])
def test_no_saved_tensor_is_much_larger_than_the_block_s_input(case: str) -> None:
    text = (CASES | POSITIONS).get(case)
    model = archdsl.load(text=text) if text else archdsl.load(case, set=RECURRENCES[case])
    larger = {block: factor for block, factor in largest_saved(model).items() if factor > MOST}
    assert larger == {block: pytest.approx(n, abs=0.01) for (of, block), (n, _) in LARGER.items() if of == case}


def test_every_block_of_the_library_has_a_case() -> None:
    assert {*library_index()} == {*CASES, *IN_OTHERS}
    assert {of for of, _ in LARGER} <= {*CASES, *POSITIONS, *RECURRENCES}
