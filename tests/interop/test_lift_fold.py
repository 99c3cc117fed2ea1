"""Blocks of a lifted spec that are the library's become slots; the others stay, and the model stays what it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import archdsl
from archdsl.diagnostics.source import Source
from archdsl.estimates.flops import estimate
from archdsl.interop.lift.fold import Folded, folded
from archdsl.ir.weights import weights
from archdsl.resources import imported_files, zoo_files
from archdsl.syntax import ast
from archdsl.syntax.format import format_tree
from archdsl.syntax.parse import parse

LIFTED = {p.stem: p.read_text(encoding="utf-8") for p in (Path(__file__).parent / "lifted").glob("*.arch")}
BY_HAND = {
    **{name: imported_files()[f"hf/{name}"] for name in ("llama", "qwen3", "gemma2", "mixtral")},
    **{name: zoo_files()["gpt2"] for name in ("gpt2", "nanogpt")},
}
"""Specs of the same models as a person writes them."""


def fold(text: str) -> Folded:
    tree = parse(Source("lifted", text))
    return folded(tree, next(d.name for d in tree.declarations if isinstance(d, ast.ModelDecl)))


def lines(text: str) -> int:
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())


def same(before: str, found: Folded) -> None:
    """Hold a folded spec against the one before: parameters, FLOPs as formulas, and results, bit by bit."""
    after = format_tree(found.tree)
    models = [archdsl.load(text=text) for text in (before, after)]
    counts = [estimate(m, batch=2, seq=11) for m in models]
    assert counts[0].params.total == counts[1].params.total
    assert counts[0].flops.formula == counts[1].flops.formula, after
    modules = [archdsl.to_torch(text=text).eval() for text in (before, after)]
    own, new = (dict(m.named_parameters()) for m in modules)
    assert {*found.renames} == {*own} == {w.path for w in weights(models[0])}
    assert {*found.renames.values()} == {*new}
    with torch.no_grad():
        for i, (path, p) in enumerate(own.items()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) * 0.3)
            new[found.renames[path]].copy_(p)
        tokens = torch.randint(0, 90, (2, 11), generator=torch.Generator().manual_seed(0))
        assert torch.equal(*(m(tokens) for m in modules)), after


@pytest.mark.parametrize("name", BY_HAND)
def test_a_lifted_model_is_as_short_as_one_by_hand(name: str) -> None:
    found = fold(LIFTED[name])
    text = format_tree(found.tree)
    assert lines(text) <= 1.3 * lines(BY_HAND[name].read_text()), text
    assert all(d.body.slots for d in found.tree.declarations if isinstance(d, ast.ModelDecl))
    same(LIFTED[name], found)


def test_a_layer_with_a_norm_of_its_own_kind_is_written_as_it_was() -> None:
    """A norm that the library has not, and a sum in another order."""
    found = fold(LIFTED["cohere"])
    text = format_tree(found.tree)
    for kept in ("block CohereLayerNorm(", "norm:    CohereLayerNorm\n", "return hidden_states + attn_output"):
        assert kept in text
    assert "-> swiglu(hidden: intermediate_size) as mlp" in text
    assert any("`CohereDecoderLayer` stays equations" in note for note in found.notes)
    same(LIFTED["cohere"], found)


MUTANTS = {
    "eps of one norm": ("qwen3", "rmsnorm(eps: 1e-06) as post", "rmsnorm(eps: 1e-05) as post", "as input_layernorm"),
    "eps of one head's norm": ("qwen3", "rmsnorm(eps: 1e-06) as q_norm", "rmsnorm(eps: 1e-05) as q_norm", "as q_proj"),
    "queries not rotated": ("qwen3", "query_states -> transpose(1, 2) -> rope(theta: 10000)",
                            "query_states -> transpose(1, 2)", "as q_proj"),
    "heads within channels": ("qwen3", "unflatten(-1, num_attention_heads, head_dim)",
                              "unflatten(-1, head_dim, num_attention_heads) -> transpose(2, 3)", "as q_proj"),
    "another rotation": ("llama", "query_states -> rope(theta: 10000)", "query_states -> rope(theta: 20000)",
                         "as q_proj"),
    "a bias of one": ("llama", "x -> linear(intermediate_size, bias: false) as up",
                      "x -> linear(intermediate_size) as up", "as gate_proj"),
    "drawn otherwise": ("llama", "x -> linear(intermediate_size, bias: false) as up",
                        "x -> linear(intermediate_size, bias: false, init: zeros) as up", "as gate_proj"),
    "two activations": ("llama", "as gate_proj -> silu", "as gate_proj -> silu -> silu", "as gate_proj"),
    "one branch scaled": ("llama", "hidden_states += attn_output", "hidden_states += 2 * attn_output",
                          "as input_layernorm"),
    "dropout of one branch": ("nanogpt", "dropout(rate: 0.1)\n}\n\nblock MLP",
                              "dropout(rate: 0.2)\n}\n\nblock MLP", "as ln_1"),
    "queries scaled": ("nanogpt", "q = q -> split_heads(n_head)", "q = (q * 0.5) -> split_heads(n_head)", "as c_attn"),
    "keys first": ("nanogpt", "q, k, v = x", "k, q, v = x", "as c_attn"),
    "other positions": ("nanogpt", "indices(time) -> embedding", "(indices(time) // 2) -> embedding", "pos_emb"),
    "two caps": ("gemma2", "logits = logits -> tanh", "logits = logits -> tanh -> tanh", "as layers"),
    "another scale of words": ("gemma2", "sqrt(hidden_size)", "sqrt(2 * hidden_size)", ""),
    "a window everywhere": ("gemma2", "value_states, mask: mask,", "value_states, mask: mask & window(5),", ""),
    "another scale of scores": ("gemma2", "scale: query_pre_attn_scalar", "scale: 2 * query_pre_attn_scalar", ""),
    "the other layers": ("gemma2", "i % 2 == 0", "i % 2 == 1", ""),
    "no whole number of pairs": ("gemma2", "num_hidden_layers = 2", "num_hidden_layers = 3", "i % 2 == 0"),
    "the first layers": ("gemma2", "i % 2 == 0", "i < 1", ""),
    "another type": ("mixtral", "router_logits -> cast(float32)", "router_logits", "MixtralTopKRouter"),
    "other weights of experts": ("mixtral", "(router_top_value -> sum(keep: true))",
                                 "((router_top_value -> sum(keep: true)) + 1)", "MixtralTopKRouter"),
}  # fmt: skip
"""Of a spec, a text and another in its place, and what is in equations that no block of the library computes."""


@pytest.mark.parametrize("what", MUTANTS)
def test_what_differs_in_one_thing_is_not_folded_into_what_it_is_not(what: str) -> None:
    name, old, new, kept = MUTANTS[what]
    assert LIFTED[name].count(old) == 1
    changed = LIFTED[name].replace(old, new)
    found = fold(changed)
    text = format_tree(found.tree)
    assert kept in text, text
    assert kept or text != format_tree(fold(LIFTED[name]).tree)
    same(changed, found)


LOOP = """  for i in n_layer {
    x = x -> Block(n_head: n_head) as h
  }
"""
JOIN = """block Join(x: [batch, time, width], y: [batch, time, width]) -> [batch, time, width] {
  return x + y
}

block Block("""
WORDS = """block Words(width)(i: int[batch, time]) -> [batch, time, width] {
  return (i -> embedding(96, width) as t) * 2
}

block Block("""
FORMS: dict[str, tuple[str, tuple[tuple[str, str], ...], str]] = {
    "feed-forward within": (
        "nanogpt",
        (
            (
                "-> MLP as mlp)",
                "-> linear(4 * n_embd) as c_fc -> gelu -> linear(n_embd) as c_proj -> dropout(rate: 0.1))",
            ),
        ),
        "mlp(",
    ),
    "a norm of the words": ("llama", (("as embed_tokens\n", "as embed_tokens -> rmsnorm as first\n"),), "words(norm"),
    "a function of the words": (
        "llama",
        (("as embed_tokens\n", "as embed_tokens -> gelu\n"),),
        "as embed_tokens -> gelu",
    ),
    "words of a block": (
        "nanogpt",
        (
            (
                "block Block(",
                WORDS,
            ),
            ("  let wte = shared(embedding(vocab_size, n_embd))\n", ""),
            ("idx -> wte", "idx -> Words(n_embd) as words"),
            ("x -> unembed(wte)", "x -> linear(vocab_size) as head"),
        ),
        "-> Words(n_embd) as words",
    ),
    "no head": (
        "nanogpt",
        (
            ("y = x -> unembed(wte)", "y = x -> relu"),
            (
                "(idx: token[batch, time]) -> [batch, time, vocab_size]",
                "(idx: token[batch, time]) -> [batch, time, n_embd]",
            ),
        ),
        "for i in n_layer",
    ),
    "nothing behind the layers": (
        "nanogpt",
        (
            ("  y = x -> unembed(wte)\n  assert causal(y)\n  return y", "  y = x * 2\n  assert causal(y)\n  return y"),
            ("  x = x -> layernorm(eps: 1e-05) as ln_f\n", ""),
            (
                "(idx: token[batch, time]) -> [batch, time, vocab_size]",
                "(idx: token[batch, time]) -> [batch, time, n_embd]",
            ),
        ),
        "for i in n_layer",
    ),
    "slopes by turns behind each layer": (
        "nanogpt",
        ((" as h\n", " as h -> leaky_relu(slope: 0.1 * (i + 1))\n"),),
        "leaky_relu(slope: 0.1 * (i + 1))",
    ),
    "two streams": (
        "nanogpt",
        ((LOOP, LOOP.replace("    x =", "    z = x * 2\n    x = z -> relu\n    x =")),),
        "for i in n_layer",
    ),
    "sums between layers": (
        "nanogpt",
        ((LOOP, LOOP.replace("x = x -> B", "x = x + (x -> B").replace("as h", "as h)")),),
        "for i in n_layer",
    ),
    "a block of two tensors": (
        "nanogpt",
        (
            ("block Block(", JOIN),
            (
                "return x + (x -> layernorm(eps: 1e-05) as ln_2 -> MLP as mlp)",
                "return x -> Join(x -> layernorm(eps: 1e-05) as ln_2 -> MLP as mlp) as join",
            ),
        ),
        "-> Join(",
    ),
    "a function called": ("nanogpt", (("  x = x -> gelu\n", "  x = gelu(x)\n"),), "mlp("),
    "a condition of numbers": (
        "nanogpt",
        (("  x = x -> gelu\n", "  x = x -> (if n_embd > 8 then gelu else relu)\n"),),
        "if ",
    ),
    "a loss": (
        "nanogpt",
        (("  x = x -> gelu\n", "  x = x -> gelu\n  loss small = 0.01 * (x -> square -> mean -> mean -> mean)\n"),),
        "loss small",
    ),
    "a shortest length": (
        "nanogpt",
        (("assert time <= block_size\n", "assert time <= block_size\n  assert time >= 2\n"),),
        "assert time >= 2",
    ),
    "as many heads of keys": ("llama", (("value_heads = 2", "value_heads = 4"),), "num_key_value_heads"),
    "a function called by name": (
        "nanogpt",
        (("x = x -> linear(4 * n_embd) as", "x = linear(4 * n_embd)(x) as"),),
        "mlp(",
    ),
    "numbers that are sizes by chance": (
        "nanogpt",
        (
            ("linear(4 * n_embd)", "linear(128)"),
            ("linear(3 * n_embd)", "linear(96)"),
            ("split_heads(n_head)\n  v =", "split_heads(4)\n  v ="),
        ),
        "n_head",
    ),
}
"""Of a spec, texts and others in their places, and what stays or is written then."""


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_of_layers_and_models_stay_what_they_compute(form: str) -> None:
    name, changes, kept = FORMS[form]
    text = LIFTED[name]
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    found = fold(text)
    assert kept in format_tree(found.tree)
    same(text, found)


def test_a_number_that_is_equal_by_chance_keeps_its_name() -> None:
    """Where `head_dim` is a number of its own, it is not the quotient that it comes to."""
    text = LIFTED["qwen3"].replace("head_dim = 16", "head_dim = 12")
    found = format_tree(fold(text).tree)
    assert "head_dim: head_dim" in found
    archdsl.load(text=found, set={"head_dim": 16})
