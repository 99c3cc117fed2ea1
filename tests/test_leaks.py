"""Models of the zoo that look ahead by one edit: each is refused, and what is not edited is accepted."""

from functools import cache

import pytest
from zoo.sizes import SPECS, tables

from archdsl.api import load
from archdsl.diagnostics import ArchError

ATTENTION = "y = sdpa(q, k, v, mask: mask, position: position)"
EDITS = (
    # masks that are open, or gone
    ("gpt2:gpt2", "mask:      causal", "mask:      full"),
    ("gpt2:gpt2", "mask:      causal", "mask:      none"),
    ("gpt2:gpt2", "mask:      causal", "mask:      full & padding"),
    ("llama3:llama3", "mask:      causal", "mask:      window(4096)"),
    ("llama3:llama3", "mask:      causal", "mask:      causal | prefix(2)"),
    ("llama3:llama3", "mask:      causal", "mask:      ~causal"),
    ("llama3:llama3", "mask:      causal", "mask:      chunked(64)"),
    ("mixtral:mixtral_8x7b", "mask:      causal", "mask:      full"),
    ("palm:palm_8b", "causal", "full"),
    ("alibi:alibi_1_3b", "mask:      causal", "mask:      full"),
    ("gemma2:gemma2_2b", "causal & window(window)", "window(window)"),
    ("gemma2:gemma2_2b", "mask: causal)", "mask: full)"),
    ("gemma2:gemma2_2b", "causal & window(window)", "causal | window(2)"),
    ("sparse_transformer:sparse_transformer_cifar10", "causal & strided(stride)", "strided(stride)"),
    (
        "sparse_transformer:sparse_transformer_enwik8",
        "causal & (chunked(stride) | keys(sums_up))",
        "causal & chunked(stride) | keys(sums_up)",
    ),
    ("transformer:transformer_base", "mask:            causal", "mask:            full"),
    ("switch:switch_base_8", "mask:            causal", "mask:            full"),
    ("performer:performer", "features: features, mask: causal)", "features: features, mask: full)"),
    ("performer:performer", "causal: mask == causal", "causal: mask != causal"),
    ("hf/qwen3_next", "mask:      causal", "mask:      none"),
    ("hf/jamba", "mask: causal", "mask: none"),
    ("hf/deepseek_v3", "mask:      causal", "mask:      full"),
    ("hf/gpt_oss", "causal & window(window)", "window(window)"),
    ("hf/llama4_text", "causal & chunked(chunk)", "chunked(chunk)"),
    ("hf/recurrent_gemma", "causal & window(window)", "window(window)"),
    # convolutions and shifts
    ("wavenet:wavenet", "padding: causal) as gate", "padding: same) as gate"),
    ("wavenet:wavenet", "kernel: kernel, padding: causal)\n", "kernel: 3, padding: same)\n"),
    ("mamba:mamba_130m", "padding: causal", "padding: same"),
    (
        "bytenet:bytenet_lm",
        "kernel: kernel, dilation: dilation, padding: causal)",
        "kernel: kernel, dilation: dilation, padding: same)",
    ),
    ("hf/lfm2", "padding: causal", "padding: same"),
    ("hf/qwen3_next", "padding: causal", "padding: same"),
    ("hf/rwkv", "before = x -> shift(1, axis: 1)", "before = x -> shift(-1, axis: 1)"),
    ("rwkv7:rwkv7_0_1b", "change = shift(x) - x", "change = shift(x, -1) - x"),
    ("rwkv7:rwkv7_0_1b", "h = (x + (shift(x) - x) * mix)", "h = (x + (roll(x, -1) - x) * mix)"),
    ("mamba:mamba_130m", "as conv -> silu", "as conv -> max_pool1d(3, stride: 1, padding: 1) -> silu"),
    # recurrences in reverse, or their last state
    (
        "rnn_lm:lstm_lm_small",
        "x = x -> cell(width) as layers",
        "x = x -> bidirectional(cell: cell(width / 2)) as layers",
    ),
    ("rnn_lm:lstm_lm_small", "cell: block = lstm)", "cell: block = lstm(reverse: true))"),
    ("sparsely_gated_moe:moe_32", "x += x -> lstm(width) as upper", "x += x -> lstm(width, reverse: true) as upper"),
    (
        "mamba:mamba_130m",
        "y = selective_scan(h, step, -exp(log_rates), b, c, skip: skip)",
        "y = selective_scan(h -> flip(1), step, -exp(log_rates), b, c, skip: skip) -> flip(1)",
    ),
    ("hf/recurrent_gemma", "return linear_recurrence(exp(log_a), ", "return linear_recurrence(exp(log_a) -> flip(1), "),
    ("hf/qwen3_next", "delta_rule(q, k, v, strength", "delta_rule(q, k, v -> flip(2), strength"),
    ("hf/qwen3_next", "delta_rule(q, k, v, strength", "delta_rule(q, k, v, strength -> flip(2)"),
    ("hf/qwen3_next", "strength, decay)", "strength, decay -> shift(-1, axis: 2))"),
    ("rwkv7:rwkv7_0_1b", "assert causal(x)", "x = x + x[:, -1:]\n  assert causal(x)"),
    ("ntm:ntm_copy", "y = seen -> linear(outputs) as output", "y = (seen + seen[:, -1:]) -> linear(outputs) as output"),
    # norms, means and softmax over time
    ("gpt2:gpt2", "norm:      layernorm(eps: 1e-5)\n  placement", "norm:      batchnorm\n  placement"),
    ("llama3:llama3", "norm:      rmsnorm(eps: 1e-5)", "norm:      powernorm"),
    ("rwkv7:rwkv7_0_1b", "x = x -> layernorm as norm\n", "x = x -> groupnorm(8) as norm\n"),
    ("rwkv7:rwkv7_0_1b", "as value -> sigmoid)", "as value -> softmax(axis: 1))"),
    (
        "rwkv7:rwkv7_0_1b",
        "removed = (k * removal) -> split_heads(heads) -> l2_normalize",
        "removed = (k * removal) -> split_heads(heads) -> l2_normalize(axis: 2)",
    ),
    ("hf/rwkv", "rate = -exp(decay)", "rate = -exp(decay) + 0 * mean(k, [0, 1])"),
    ("wavenet:wavenet", "return h -> lm", "h = h - (h -> mean(1, keep: true))\n  return h -> lm"),
    (
        "bytenet:bytenet_lm",
        "return x -> relu -> linear(inner) as post -> relu -> lm",
        "x = x / (x -> max(1, keep: true))\n  return x -> relu -> linear(inner) as post -> relu -> lm",
    ),
    (
        "mamba:mamba_130m",
        "return (y * silu(gate))",
        "gate = gate -> cumsum(axis: 1)\n  gate = gate[:, -1:]\n  return (y * silu(gate))",
    ),
    # tokens that mix otherwise: choices of experts, pooled tokens, axes that are swapped
    (
        "hf/llama4_text",
        "best, chosen = x -> linear(experts, bias: false) as router -> topk(1)",
        "scores = x -> linear(experts, bias: false) as router -> softmax(axis: -2)\n  best, chosen = scores -> topk(1)",
    ),
    ("hf/llama4_text", "return y + (x -> shared)", "return y + (x -> mean(-2, keep: true) -> shared)"),
    (
        "hf/qwen3_next",
        "return sigmoid(x -> linear(1, bias: false) as gate)",
        "return softmax(x -> linear(1, bias: false) as gate, axis: -2)",
    ),
    (
        "sparsely_gated_moe:moe_32",
        "best, chosen = noisy -> topk(k)",
        "best, chosen = (noisy - (noisy -> max(-2, keep: true))) -> topk(k)",
    ),
    (
        "hf/lfm2",
        "b = x -> linear(width, bias: conv_bias) as before",
        "b = x -> flip(1) -> linear(width, bias: conv_bias) as before",
    ),
    ("hf/deepseek_v3", "blocks:  dense_layers", "embedding: words(norm: batchnorm)\n  blocks:  dense_layers"),
    ("llama3:llama3", "norm:    rmsnorm(eps: 1e-5)\n  head:    lm", "norm:    batchnorm\n  head:    lm"),
)


@cache
def refusals(name: str, was: str = "", becomes: str = "") -> list[str]:
    """The codes of what is wrong with a model of the zoo, `file:model`, after an edit of its file."""
    stem, _, model = name.partition(":")
    text = (SPECS / f"{stem}.arch").read_text(encoding="utf-8")
    assert was in text
    try:
        load(text=text.replace(was, becomes) if was else text, model=model or None, set=tables().get(name))
    except ArchError as refused:
        return [d.code for d in refused.diagnostics]
    return []


@pytest.mark.parametrize(("name", "was", "becomes"), EDITS)
def test_a_leak_is_refused(name: str, was: str, becomes: str) -> None:
    assert refusals(name) == []
    assert refusals(name, was, becomes) == ["E0406"]
