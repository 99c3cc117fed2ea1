"""Loops of every shape: the emitted module has the weights that the IR says, and each turn uses its own."""

import pytest

from archdsl import api
from archdsl.analyses.weights import weights

HEAD = "block a(x: [batch, time, width]) -> [batch, time, width] { return x + (x -> linear(width)) }\n"
INPUT = "(x: [batch, time, width]) -> [batch, time, width]"
LOOPS = {
    "raw weights in unequal turns": "for f in [a, gelu, a] { param w: [width] = ones  x = (x -> f) * w + w }",
    "raw weights in a period": "for f in 3 * [a, gelu] { param w: [width] = ones  x = (x -> f) * w + w }",
    "loops within loops": "for i in n { for j in 2 { x += x -> linear(width) as p } x = x -> linear(width) as q }",
    "three deep": "for i in 2 { for j in 2 { for k in 2 { x += x -> linear(width) as deep } } }",
    "a list within a list": "for f in a + n * (2 * [a] + [gru(8), a]) + [gelu] { x = x -> f }",
    "the turn's number": "for i in n { x = x -> mlp(hidden: i + 1) as f }",
    "two of a kind a turn": "for i in n { x = x -> linear(width) as f -> linear(width) as f }",
    "skips": "skips = for f in n * a { x = f(x)  emit x }\n"
    "for i in n { x = concat(x, skips[n - 1 - i]) -> linear(width) as m }",
    "an instance among others": "let s = shared(a)\n for f in 2 * [s, a] { x = x -> f }",
    "equal sizes by two spellings": "for h in [4, width // 2, 4] { x = x -> mlp(hidden: h) as f }",
}


@pytest.mark.parametrize("name", LOOPS)
def test_every_turn_has_its_weights(name: str) -> None:
    import torch

    text = f"{HEAD}model m(width = 8, n = 3){INPUT} {{ {LOOPS[name]}\n return x }}"
    model = api.load(text=text)
    module = api.to_torch(text=text)
    assert {w.path: w.shape for w in weights(model)} == {k: tuple(v.shape) for k, v in module.state_dict().items()}
    module(torch.randn(2, 5, 8)).square().mean().backward()
    unused = [k for k, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not unused


def test_the_emitted_module_follows_its_config() -> None:
    """Sizes that are equal by chance keep their own spelling."""
    from archdsl.lower.load import load_source

    text = f"model m(width = 8){INPUT} {{ for h in [4, width // 2] {{ x = x -> mlp(hidden: h) as f }} return x }}"
    cls = load_source(api.torch_source(text=text))
    config = __import__(cls.__module__).Config(width=16)
    assert cls(config).f[0].up.weight.shape == (4, 16)
    assert cls(config).f[1].up.weight.shape == (8, 16)
