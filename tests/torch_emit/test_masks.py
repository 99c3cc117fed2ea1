"""Attention over a window."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_emit.emitted import close, gradients, module, same_gradients, source, spec


def seen(time: int, window: int) -> Tensor:
    place = torch.arange(time)
    return (place <= place[:, None]) & (place[:, None] - place < window)


@pytest.mark.parametrize(
    "name", ["mistral:mistral_7b", "gpt3:gpt3_small", "sparse_transformer:sparse_transformer_enwik8"]
)
def test_models_by_length(name: str) -> None:
    """A prefix gives the same logits whichever way its length is computed: up to the window, and over it."""
    made = module(name, context=64).eval()
    tokens = torch.randint(97, (2, 60), generator=torch.Generator().manual_seed(1))
    long = made(tokens)
    for length in (1, 4, 7, 13, 16, 21, 37):
        close(made(tokens[:, :length]), long[:, :length], 1e-4)


LAYERS = """
block layer(window, dropout = 0)(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> layernorm -> mha(heads: 2, mask: causal & window(window), dropout: dropout)
}

model windows(width = 16, dropout = 0) {
  vocab:   40
  context: 64
  width:   width
  blocks:  [layer(window: 2 * (i + 1), dropout: dropout) for i in 3]
  norm:    layernorm
  head:    lm
}
"""


def test_each_layer_has_its_own_window() -> None:
    """Layers of one class, every one with the mask and the window that belong together."""
    made = module(spec(LAYERS)).eval()
    assert len({type(layer) for layer in made.blocks}) == 1
    tokens = torch.randint(40, (1, 40), generator=torch.Generator().manual_seed(1))
    x = made.token_embedding(tokens)
    for i, layer in enumerate(made.blocks):
        attention = layer.mha
        q, k, v = (
            m(layer.layernorm(x)).unflatten(-1, (2, -1)).transpose(1, 2)
            for m in (attention.q, attention.k, attention.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen(40, 2 * (i + 1)))
        x = x + attention.out(y.transpose(1, 2).flatten(2))
    close(made(tokens), made.head(made.norm(x)))


@pytest.mark.parametrize("shape", ["", "[time]", "[batch, time]"])
def test_a_mask_in_blocks_has_as_many_rows_as_what_it_reads(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mask, given = ("causal & window(3) & keys(t)", f", t: bool{shape}") if shape else ("causal & window(3)", "")
    text = f"""model m(x: float[batch, time, 32]{given}) -> [batch, time, 32] {{
  for i in 2 {{ x = x + (x -> mha(heads: 2, mask: {mask})) }}
  return x
}}"""
    made = module(spec(text))
    names = made.forward.__globals__
    right, rows = names["mask_of"], []

    def mask_of(rule: Any, batch: int, *rest: Any) -> Any:
        rows.append(batch)
        return right(rule, batch, *rest)

    monkeypatch.setitem(names, "mask_of", mask_of)
    t = torch.arange(7) % 3 > 0
    made(torch.randn(2, 7, 32), *([t] if shape == "[time]" else [t.expand(2, -1)] if shape else []))
    assert rows == [2 if shape == "[batch, time]" else 1]


def test_dropout_in_training() -> None:
    made = module(spec(LAYERS, dropout=0.5)).train()
    tokens = torch.randint(40, (1, 40), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    first = made(tokens)
    assert not torch.equal(made(tokens), first)
    torch.manual_seed(0)
    assert torch.equal(made(tokens), first)
    assert torch.equal(made.eval()(tokens), made(tokens))


def test_exported_for_all_lengths() -> None:
    """One graph, whatever the length."""
    made = module("mistral:mistral_7b", layers=1).eval()
    tokens = torch.randint(97, (2, 40), generator=torch.Generator().manual_seed(1))
    program = torch.export.export(
        made, (tokens,), dynamic_shapes=({1: torch.export.Dim("time", min=2, max=64)},), strict=False
    )
    for length in (3, 11, 40):
        close(program.module()(tokens[:, :length]), made(tokens[:, :length]))


@pytest.mark.slow
def test_compiled_by_length() -> None:
    """Gradients in compiled code, up to the window and over it."""
    plain, made = (module("mistral:mistral_7b", layers=1) for _ in range(2))
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    for length in (4, 40):
        tokens = torch.randint(97, (2, length), generator=torch.Generator().manual_seed(length))
        for each in (plain, compiled):
            each.zero_grad()
            (each(tokens) ** 2).mean().backward()
        same_gradients(gradients(made), gradients(plain))


@pytest.mark.parametrize("front", [1, 3])
def test_queries_behind_a_prefix_are_counted_from_its_end(front: int) -> None:
    """The first query stands where the prefix ends, which is no difference of lengths."""
    text = f"""model m(x: float[batch, time, 8]) -> [batch, time, 8] {{
  param front: [1, {front}, 8] = normal(1)
  kept = concat(expand(front, 0, batch), x, axis: 1) -> split_heads(2)
  return sdpa(x -> split_heads(2), kept, kept, mask: causal & window(4)) -> merge_heads
}}"""
    made, x = module(spec(text)), torch.randn(2, 7, 8)
    kept = torch.cat((made.front.expand(2, -1, -1), x), 1).unflatten(2, (2, 4)).transpose(1, 2)
    q = x.unflatten(2, (2, 4)).transpose(1, 2)
    wanted = F.scaled_dot_product_attention(q, kept, kept, attn_mask=seen(7 + front, 4)[front:])
    close(made(x), wanted.transpose(1, 2).flatten(2))
    assert f"torch.arange({front}, {front} + time, device=x.device)" in source(spec(text), frozenset(), "none")
