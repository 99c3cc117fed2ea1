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
    """Two texts stand for one network: the same weights, inputs and results, and the same numbers."""
    models = [archdsl.load(text=t, allow_noncausal=True) for t in (text, expanded)]
    before, after = (archdsl.to_torch(text=t, allow_noncausal=True).eval() for t in (text, expanded))
    generator = torch.Generator().manual_seed(0)
    state = {k: torch.rand(v.shape, generator=generator) - 0.5 for k, v in before.state_dict().items()}
    before.load_state_dict(state)
    after.load_state_dict(state)
    inputs = inputs_for(models[0], {})
    assert [n for n, _ in models[1].inputs] == list(inputs)
    assert [n for n, _ in models[1].outputs] == [n for n, _ in models[0].outputs]
    with torch.no_grad():
        wanted, found = before(*inputs.values()), after(*inputs.values())
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


TOLD = {"kimi_linear", "norms", "qwen2_5", "qwen3"}
"""Files with a block whose equations depend on its arguments: where norms stand, whether the head is tied."""


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
    assert "x += x -> layernorm as ffn_norm -> linear(width) as linear\n" in expanded
    assert expanded.count("assert time <= context") == 1
    _same_numbers(text, expanded)


def test_an_inline_block_of_slots_stays(tmp_path: Path) -> None:
    text = "inline " + _model("block layer { attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) }")
    expanded = _expanded(text, tmp_path)
    assert "# Kept as it is declared: an inline block is a part of those around it.\ninline block layer {" in expanded
    _same_numbers(text, expanded)


@pytest.mark.parametrize(
    ("declared", "kept"),
    [
        ("let segments = 2 block layer(n) { ffn: mlp(hidden: 4 * n) } model m { let n = segments", True),
        ("let segments = 2 block layer(n) { ffn: mlp(hidden: 4 * n) } model m { let n = 2", False),
        ("block layer(n) { ffn: mlp(hidden: 4 * n) } model m { let segments = 2 let n = segments", True),
        ("block layer(n) { ffn: mlp(hidden: 4 * n) } model m(segments = 2) { let n = 2", True),
    ],
)
def test_a_name_of_a_tensor_that_is_another_in_the_file_stays(declared: str, kept: bool, tmp_path: Path) -> None:
    """`segments` in the slots is a number, and in equations it would be the model's tensor."""
    text = (
        f"{declared} vocab: 32 context: 16 width: 8 blocks: 2 * layer(n: n) head: lm embedding: words(segments: 2) }}\n"
    )
    expanded = _expanded(text, tmp_path)
    assert ("# Kept as it is declared: `segments` is a tensor too.\nmodel m" in expanded) == kept
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
    ends = "model m { vocab: 32 context: 16 width: 8 blocks: 2 * layer(f: mlp(hidden: 4)) head: lm }"
    for own in ("(layernorm) { %s ffn: layernorm", "(f) { let layernorm = f %s ffn: layernorm"):
        text = f"block layer{own % 'attention: mha(heads: 2) mask: causal'} }}\n{ends}"
        text = text.replace("f:", "layernorm:") if own.startswith("(l") else text
        expanded = _expanded(text, tmp_path)
        assert "# Kept as it is declared: the file's own `layernorm` hides the library's." in expanded
        _same_numbers(text, expanded)
    number = _model("block layer { let dropout = 0.1 ffn: mlp(hidden: 8) dropout: dropout }")
    assert "Kept" not in _expanded(number, tmp_path), "a number hides no block"


def test_one_block_alone() -> None:
    text = api.expand("gpt2", block="decoder")
    assert text.startswith(
        "block decoder(heads, layers)(x: [..., width]) {\n  init: depth_scaled(0.02, layers)\n"
        "  x += x -> layernorm(eps: 1e-5) as attention_norm\n"
    )
    assert "model" not in text
    with pytest.raises(ArchError, match="E0210"):
        api.expand("gpt2", block="decodre")


LAYER = "block layer(x: [batch, time, width]) { attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) }\n"
TAKES_ALL = """
block head(f, m: mask = full, n: size = 1, w: word = pre, other = pre, t: string = "a", l: list = [], s: scheme = none)
          (x: [batch, time, width]) {
  if t == "same" { x = x -> linear(width) as for_text }
  if w == post { x = x -> linear(width, bias: false, init: s) as for_word }
  if other == post { x = x -> linear(width, bias: false) as for_other }
  for b in l { x = x -> linear(b) -> linear(width) }
  return (x -> offer(f, mask: m)) * n
}
"""
HEADS_OF_A_LIST = {
    "blocks, masks, numbers, words, texts, lists": "head(mha(heads: 2), causal & ~window(2) | prefix(2), n: -3 + 5,"
    ' w: post, other: post, t: "same", l: [3, 4] + 2 * [16 / 2, 8], s: normal(0.1))',
    "nothing": 'head(mha(heads: 2), l: [], t: "post")',
    "options of primitives": 'unflatten(-1, 2, 4), rearrange("b t (c d) -> b t c d", c: 2), mean(axis: [1, 2]), '
    "conv1d(8, kernel: 3, padding: causal), cast(float32), linear(3, init: normal(0.1))",
}
"""Elements of a list of heads, which the library applies one by one."""
TENSORS = {
    "a mask of a tensor": ("causal & keys(seen)", "seen: bool[batch, time]"),
    "a mask of the first tensor": ("causal & keys(-x[..., 0] > 0)", "seen: bool[batch, time]"),
    "a mask of a block applied": ("keys((x -> linear(1) -> squeeze(-1)) > 0)", "seen: bool[batch, time]"),
    "a tensor that is a mask": ("seen", "seen: padding[batch, time]"),
    "a tensor that is one, and another": ("causal & seen", "seen: documents[batch, time]"),
}
"""Masks that read a tensor of the block's, and that tensor."""
CROSS = """
block layer(%s) { attention: mha(heads: 2) mask: causal cross_attention: mha(heads: 2, mask: real) ffn: mlp(hidden: 8) }
model m(width = 8)(a: [batch, time, width], b: [batch, source, 6], real: padding[batch, source]) {
  return layer(a, %s)
}
"""


def _of_everything() -> Iterator[Any]:
    model = "model m { vocab: 32 context: 16 width: 8 blocks: 2 * layer %s }\n"
    for name, heads in HEADS_OF_A_LIST.items():
        yield pytest.param(LAYER + TAKES_ALL + model % f"heads: [lm, {heads}]", id=f"heads: {name}")
    near = "let near = window(2) heads: [lm, head(mha(heads: 2), causal & near)]"
    yield pytest.param(LAYER + TAKES_ALL + model % near, id="heads: a mask with a name in another")
    for name, (mask, tensor) in TENSORS.items():
        yield pytest.param(
            LAYER.replace(", width])", f", width], {tensor})").replace("causal", mask)
            + f"model m(width = 8)(x: [batch, time, width], {tensor})"
            + "{ for i in 2 { x = layer(x, seen) } return x }",
            id=name,
        )
    x, memory, real = "h: [batch, time, width]", "[batch, source, m]", "real: padding[batch, source]"
    yield pytest.param(CROSS % (f"{x}, k: {memory}, {real}", "b, real"), id="memory, and a tensor for the slots")
    yield pytest.param(CROSS % (f"{x}, {real}, memory: {memory}", "real, b"), id="a tensor for the slots, and memory")
    first = LAYER.replace("(x: [batch, time, width])", "(seen: bool[batch, time], x: [batch, time, width])")
    first = first.replace("causal", "causal & keys(seen)")
    given = "model m(width = 8)(x: [batch, time, width], seen: bool[batch, time])"
    yield pytest.param(f"{first}{given} {{ x = layer(seen, x)  return x }}", id="another tensor before x")
    images = "model m { input: patches(size: 2, image: 4, class_token: true) width: 8 blocks: 2 * layer }"
    yield pytest.param(LAYER + images, id="a weight that the library makes")
    own = "inline block own(frames: [batch, time, 8]) { return frames }\nmodel m { input: own width: 8 blocks: %s }"
    yield pytest.param(LAYER + own % "[layer, dropout(0), own]", id="layers that do nothing")
    yield pytest.param(LAYER + own % "[]", id="no layers")
    yield pytest.param(LAYER + own % "layer", id="one layer, no list")
    yield pytest.param(LAYER.replace("ffn", "norm: shared(layernorm) ffn") + model % "", id="a shared norm")
    counted = "let n = 2 let l = n * [8] heads: [lm, head(mha(heads: 2), l: l + n * [16 / 2])]"
    yield pytest.param(LAYER + TAKES_ALL + model % counted, id="heads: a list with a count")
    same = LAYER.replace("ffn: mlp(hidden: 8)", "ffn: dropout(0) placement: none residual: gated")
    yield pytest.param(same + model % "head: lm", id="one tensor twice")
    two = LAYER.replace("ffn: mlp(hidden: 8)", "ffn: both[1]")
    yield pytest.param(
        "let both = [swiglu(hidden: 4), mlp(hidden: 4)]\n" + two + model % "head: lm", id="an element of a list"
    )
    bias = "shared(relative_bias(buckets: 4, max_distance: 8))"
    yield pytest.param(LAYER.replace("ffn", f"position: {bias} ffn") + model % "", id="a shared position")
    columns = """inline block columns(x: [batch, time, width]) -> [batch, time, width] {
      param table: [width, 9] = normal(1)
      return x + (table[:, minimum(indices(time), 8)] -> transpose(0, 1))
    }"""
    yield pytest.param(columns + LAYER.replace("mlp(hidden: 8)", "columns") + model % "head: lm", id="columns")
    named = LAYER.replace("]) {", "]) -> (y: [batch, time, width]) {")
    results = (model % "head: lm").replace("m {", "m(n = 2) -> (logits: [batch, time, vocab]) {")
    yield pytest.param(named + results, id="named results")
    yield pytest.param(LAYER.replace("ffn", "residual: scale(-1, 0.5) ffn") + model % "head: lm", id="a number below 0")
    lets = "model m { let n = 2 let most = 8 * n vocab: 16 * n context: most width: 4 * n blocks: n * layer head: lm }"
    yield pytest.param(LAYER + lets, id="sizes of a model by its `let`s")
    applied = "model inner(tokens: token[batch, time]) { vocab: 32 context: 16 width: 8 blocks: layer }\n"
    whole = "model m(n = 2)(tokens: token[batch, time]) { return tokens -> inner }\n"
    yield pytest.param(LAYER + whole + applied, id="a model of slots within another")


@pytest.mark.parametrize("text", [*_of_everything()])
def test_whatever_stands_in_a_slot_expands_to_the_same_numbers(text: str, tmp_path: Path) -> None:
    expanded = _expanded(text, tmp_path)
    assert expanded != text
    assert "Kept" not in expanded
    assert _expanded(expanded, tmp_path) == expanded
    _same_numbers(text, expanded)


ATTENTION = "attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8)"
KEPT = {
    f"{ATTENTION} norm: only(shared(rmsnorm))": "`shared(rmsnorm)` would be written twice, and make two",
    "attention: learned(16) residual: none placement: none": "a size without a name: x.1",
    "attention: embedded(8, position: sinusoidal) residual: none placement: none": "a size without a name: x.1",
}
"""Slots of a layer that cannot be written out, and the reason that is given."""


@pytest.mark.parametrize("slots", KEPT)
def test_what_equations_cannot_say_is_kept(slots: str, tmp_path: Path) -> None:
    text = _model(f"block layer {{ {slots} }}")
    expanded = _expanded(text, tmp_path)
    assert f"# Kept as it is declared: {KEPT[slots]}.\nblock layer {{" in expanded
    _same_numbers(text, expanded)


INLINE = {
    "h = x  for i in 2 { h = h -> linear(width) }  return h": "an inline block has a `for`",
    "h = scan s: [batch, width] = 0 for v in x { s = s + v  emit s }  return h": (
        "an inline block has a `scan`, or a part for training alone"
    ),
    "param w: [width] = 0.5 * indices(width)  return x * w": "the first value of `w` is computed",
    "s = matmul(x, x -> transpose(1, 2))  return matmul(softmax(s, mask: causal), x)": "`mask` cannot be written",
    "return three(x, x * 2, x)": "",
    "y = x -> linear(width) as rmsnorm  return y -> rmsnorm(eps: 0.1)": "",
    "param w: [width] = normal(0.1)  buffer c: [width] = saved(zeros)  return x * w + c": "",
    "let n = width / 2  h = (-x[..., 0:n]) -> linear(width)  return where((x > 0) & ~(x > 1), h, 1 - h)": "",
    'assert time <= 16, "short"  ids = indices(4)  assume causal(x)  t = ids[ids]  return x + mean(t)': "",
    "return clamp(x, high: 1) -> layerscaled(0.5)": "",
}
"""Bodies of inline blocks of the file, which become part of the layer; and what in them keeps it as it is declared."""


@pytest.mark.parametrize("body", INLINE)
def test_inline_blocks_of_the_file_are_written_out(body: str, tmp_path: Path) -> None:
    text = f"""
block three(x: [batch, time, width], y: [batch, time, width], z: [batch, time, width]) {{ return x * y + z }}
block layerscaled(start)(x: [batch, time, width]) {{ return layerscale(x, x, start: start) }}
inline block own(x: [batch, time, width]) {{ {body} }}
"""
    text += _model("block layer(x: [batch, time, width]) { ffn: own placement: none residual: none }")
    expanded = _expanded(text, tmp_path)
    if INLINE[body]:
        assert f"# Kept as it is declared: {INLINE[body]}.\nblock layer(" in expanded
    else:
        assert "Kept" not in expanded
        assert "own" not in expanded.partition("block layer(")[2]
    _same_numbers(text, expanded)


def test_a_shared_head_of_a_list(tmp_path: Path) -> None:
    text = _model("block layer { ffn: mlp(hidden: 8) }").replace("head: lm", "heads: [shared(mlp(hidden: 4)), lm]")
    expanded = _expanded(text, tmp_path)
    assert "x -> shared(mlp(hidden: 4))\n" in expanded
    _same_numbers(text, expanded)
    twice = text.replace("[shared", "[shared(mlp(hidden: 4)), shared")
    assert "# Kept as it is declared: `shared(mlp(hidden: 4))` would be written twice" in _expanded(twice, tmp_path)
    named = text.replace("[shared(mlp(hidden: 4))", "[s").replace("heads", "let s = shared(mlp(hidden: 4)) heads")
    expanded = _expanded(named, tmp_path)
    assert "Kept" not in expanded
    _same_numbers(named, expanded)


@pytest.mark.parametrize("prefix", ["", "parts."])
def test_heads_of_an_imported_list_are_called_as_the_file_sees_them(prefix: str, tmp_path: Path) -> None:
    head = "block %s(x: [batch, time, width]) -> [batch, time, 5] { return x -> linear(5) as out }\n"
    (tmp_path / "inner.arch").write_text(head % "far")
    lists = "let near = [own, lm]\nlet further = [inner.far, lm]\n"
    (tmp_path / "parts.arch").write_text('import "inner.arch" as inner\n' + head % "own" + lists)
    start = 'import "parts.arch"' + (" as parts" if prefix else "")
    text = start + "\n" + _model(LAYER).replace("head: lm", f"heads: {prefix}near")
    path = tmp_path / "spec.arch"
    path.write_text(text)
    before = archdsl.load(path)
    path.write_text(expanded := api.expand(path))
    assert f"x -> {prefix}own" in expanded
    assert [w.path for w in weights(archdsl.load(path))] == [w.path for w in weights(before)]
    path.write_text(text.replace("near", "further"))
    assert "# Kept as it is declared: `far` has no name in this file." in api.expand(path)


@pytest.mark.parametrize("slot", ["blocks: 2 * layr", "blocks: [layer, 3]", "blocks: 3"])
def test_a_wrong_list_of_layers_is_reported_as_ever(slot: str, tmp_path: Path) -> None:
    text = _model("block layer { ffn: mlp(hidden: 8) }").replace("blocks: 3 * layer", slot)
    with pytest.raises(ArchError) as wanted:
        archdsl.load(text=text)
    with pytest.raises(ArchError) as found:
        _expanded(text, tmp_path)
    first, second = ([(d.code, d.message) for d in e.value.diagnostics] for e in (wanted, found))
    assert first == second
