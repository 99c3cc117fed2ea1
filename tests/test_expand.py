"""Declared bodies written out: the same weights under the same names, the same numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from decode_tools import inputs_for
from random_specs.configs import drawn
from zoo.sizes import place, sample

import archdsl
from archdsl import api
from archdsl.diagnostics import ArchError
from archdsl.ir.weights import weights

ROOT = Path(__file__).resolve().parent.parent
FILES = [pytest.param(path, id=path.stem) for path in dict.fromkeys(place(name)[0] for name in sample())]

# Every slot and placement, and what makes expanding hard: names that collide, masks and blocks of every origin.
BLOCKS = {
    "what gives back its input": "attention: dropout(0) ffn: mlp(hidden: 8) placement: none",
    "post": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) placement: post dropout: 0.1",
    "branch": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) placement: branch",
    "sandwich": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) placement: sandwich norm: rmsnorm",
    "no norm": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) placement: none",
    "parallel": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) topology: parallel",
    "parallel with two norms": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) topology: parallel(norms: 2)",
    "no residual": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) residual: none",
    "scaled residual": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) residual: scale(0.5, 2)",
    "deepnorm": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) residual: deepnorm(4) placement: post",
    "layerscale": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) residual: layerscale(0.5)",
    "gated": "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) residual: gated",
    "attention alone": "attention: gqa(heads: 4, kv_heads: 2) mask: causal & (window(3) | global(1)) position: rope",
    "feed-forward alone": "ffn: swiglu(hidden: 8) norm: layernorm(bias: false)",
    "own position and mask": "attention: mha(heads: 2, mask: causal, position: rope(theta: 100)) ffn: mlp(hidden: 8)",
    "experts": "attention: mha(heads: 2) mask: causal ffn: moe(experts: 4, top_k: 2, expert: swiglu(hidden: 8))",
}
STACKS = (
    "[s, layer, s]",
    "[layer, s, layer]",
    "[s, layer(h: 4), s, layer]",
    "2 * s + 2 * layer",
    "2 * (s + 2 * layer(h: 4)) + s",
    "[shared(layer), layer, s]",
    "2 * shared(layer) + [layer]",
    "[ffn, layer, ffn]",
)
"""Layers of which some share their weights."""
HEADS = ("first", "lm(softcap: 30)", "classifier(3, pool: first)")
SHAPES = {
    "block": "block layer(h = 2, x_2 = 8) { %s }",
    "let": "block layer { let h = 8 %s }",
}


def _model(block: str) -> str:
    return f"{block}\nmodel m {{ vocab: 32 context: 16 width: 8 blocks: 3 * layer norm: layernorm head: lm }}\n"


def _texts() -> Iterator[Any]:
    for name, slots in BLOCKS.items():
        for shape, template in SHAPES.items():
            yield pytest.param(_model(template % slots), id=f"{name}, {shape}")
    block = "block layer(h = 12) { attention: mha(heads: 2) mask: causal ffn: mlp(hidden: h) }"
    for stack in STACKS:
        lets = "let s = shared(layer) let ffn = shared(mlp(hidden: 4))"
        yield pytest.param(_model(block).replace("blocks: 3 * layer", f"{lets} blocks: {stack}"), id=stack)
    for head in HEADS:
        yield pytest.param(_model("block layer { ffn: mlp(hidden: 8) }").replace("head: lm", f"head: {head}"), id=head)


def _expanded(text: str, tmp_path: Path) -> str:
    return api.expand(_written(text, tmp_path))


def _written(text: str, tmp_path: Path) -> Path:
    """The text as a file beside those of the zoo, which it may import."""
    if "import" in text:
        for path in (ROOT / "specs").glob("*.arch"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "m.arch"
    path.write_text(text)
    return path


def _same_numbers(text: str, expanded: str) -> None:
    before, after = (archdsl.to_torch(text=t, allow_noncausal=True).eval() for t in (text, expanded))
    generator = torch.Generator().manual_seed(0)
    state = {k: torch.rand(v.shape, generator=generator) - 0.5 for k, v in before.state_dict().items()}
    before.load_state_dict(state)
    after.load_state_dict(state)
    tokens = torch.randint(32, (2, 7), generator=generator)
    with torch.no_grad():
        assert torch.equal(before(tokens), after(tokens))


TOLD = {"llama4", "norms", "qwen2_5", "qwen3", "smollm"}
"""Files with a block whose equations depend on its arguments: where norms stand, whether it has a RoPE."""


@pytest.mark.parametrize("path", FILES)
def test_the_zoo_expands_to_the_same_weights(path: Path, tmp_path: Path) -> None:
    text = api.expand(path)
    assert ("Kept as it is declared" in text) == (path.stem in TOLD)
    assert _expanded(text, tmp_path) == text, "expanding twice changes something"
    written = _written(text, tmp_path)
    for name in (n.partition(":")[2] for n in sample() if place(n)[0] == path):
        declared, expanded = archdsl.load(path, model=name), archdsl.load(written, model=name)
        assert [(w.path, w.shape) for w in weights(declared)] == [(w.path, w.shape) for w in weights(expanded)]
        assert {f.name: f.value.value for f in declared.config} == {f.name: f.value.value for f in expanded.config}
        assert [n for n, _ in declared.inputs] == [n for n, _ in expanded.inputs]


@pytest.mark.parametrize("text", [*_texts()])
def test_every_slot_expands_to_the_same_numbers(text: str, tmp_path: Path) -> None:
    expanded = _expanded(text, tmp_path)
    assert "Kept" not in expanded
    assert "placement" not in expanded
    _same_numbers(text, expanded)


@pytest.mark.slow
def test_random_specs_expand_to_the_same_numbers(tmp_path: Path) -> None:
    """Masks, positions, norms and feed-forward layers of every kind, in slots and in lists."""
    changed = 0
    for text in drawn(10, 5):
        expanded = _expanded(text, tmp_path)
        before, after = (archdsl.to_torch(text=t, allow_noncausal=True).eval() for t in (text, expanded))
        after.load_state_dict(before.state_dict())
        inputs = inputs_for(archdsl.load(text=text, allow_noncausal=True), {})
        with torch.no_grad():
            wanted, found = before(*inputs.values()), after(*inputs.values())
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        changed += expanded != text
    assert changed > 6


def test_cross_attention_and_two_inputs(tmp_path: Path) -> None:
    text = """
block encoder_layer { attention: mha(heads: 2) mask: full & padding ffn: mlp(hidden: 8) }
block decoder_layer { attention: mha(heads: 2) cross_attention: mha(heads: 2) mask: causal & padding ffn: mlp(hidden: 8)
} model m { vocab: 32 context: 16 width: 8 position: sinusoidal encoder: 2 * encoder_layer decoder: 2 * decoder_layer }
"""
    expanded = _expanded(text, tmp_path)
    declared = archdsl.load(text=text)
    again = archdsl.load(text=expanded)
    assert [n for n, _ in declared.inputs] == [n for n, _ in again.inputs]
    assert [w.path for w in weights(declared)] == [w.path for w in weights(again)]


def test_what_a_block_is_given_keeps_its_name(tmp_path: Path) -> None:
    text = """
let narrow = mlp(hidden: 8)
block layer(ffn, mask) { attention: mha(heads: 2) mask: causal & mask ffn: ffn }
model m {
  let wide = layer(ffn: swiglu(hidden: 16), mask: full)
  vocab: 32 context: 16 width: 8 position: learned
  blocks: 2 * (wide + layer(ffn: narrow, mask: window(3)))
  head: lm(tied: true)
}
"""
    expanded = _expanded(text, tmp_path)
    assert "-> ffn\n" in expanded
    assert "mask: causal & mask" in expanded
    assert "for layer in 2 * (wide + layer(ffn: narrow, mask: window(3)))" in expanded
    _same_numbers(text, expanded)


def test_what_depends_on_its_arguments_stays(tmp_path: Path) -> None:
    text = """
block layer(place) { attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) placement: place }
model m { vocab: 32 context: 16 width: 8 blocks: layer(place: pre) + layer(place: post) head: lm }
"""
    expanded = _expanded(text, tmp_path)
    assert "# Kept as it is declared: its equations depend on what it is given.\nblock layer(place) {" in expanded
    _same_numbers(text, expanded)


def test_inline_blocks_and_shared_ones_keep_their_paths(tmp_path: Path) -> None:
    """What is inline has no path of its own, and what is shared keeps that of its `let`."""
    text = """
inline block turned(x: [..., width]) -> [..., width] { return x -> linear(width) }
block own(x: [..., width]) -> [..., width] { return x -> linear(width) }
block first { attention: mha(heads: 2) mask: causal ffn: turned }
block other(ffn) { attention: mha(heads: 2) mask: causal ffn: ffn }
model m {
  let once = shared(own)
  vocab: 32 context: 16 width: 8 blocks: first + other(ffn: once) + other(ffn: once) head: lm
}
"""
    expanded = _expanded(text, tmp_path)
    assert "-> turned\n" in expanded
    assert expanded.count("assert time <= context") == 1
    _same_numbers(text, expanded)


def test_a_hidden_name_stays(tmp_path: Path) -> None:
    text = """
block layernorm(x: [..., width]) { x = x -> rmsnorm }
block layer { attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) }
model m { vocab: 32 context: 16 width: 8 blocks: 2 * layer head: lm }
"""
    expanded = _expanded(text, tmp_path)
    assert "# Kept as it is declared: the file's own `layernorm` hides the library's." in expanded
    _same_numbers(text, expanded)


def test_one_block_alone() -> None:
    text = api.expand("gpt2", block="decoder")
    assert text.startswith("# Declared with `init: depth_scaled(0.02, layers)`")
    assert (
        "block decoder(heads, layers)(x: [..., width]) {\n  x += x -> layernorm(eps: 1e-5) as attention_norm\n" in text
    )
    assert "model" not in text
    with pytest.raises(ArchError, match="E0210"):
        api.expand("gpt2", block="decodre")
