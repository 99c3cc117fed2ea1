"""Counts and paths from the IR: equal to what the emitted modules hold, and to what was published."""

import random
from pathlib import Path

import pytest
import torch
from odd_specs import ODD
from zoo.sizes import place, sample

import archdsl
from archdsl import api
from archdsl.estimates.activations import calls
from archdsl.estimates.flops import estimate as flops
from archdsl.estimates.layers import layer_count
from archdsl.estimates.params import Params
from archdsl.estimates.params import estimate as count
from archdsl.ir.graph import Model
from archdsl.ir.paths import layer_of, ranges
from archdsl.ir.walk import ops_below
from archdsl.ir.weights import weights
from archdsl.passes.flatten import unroll

ROOT = Path(__file__).resolve().parent.parent

# Published counts (total, without embeddings, active for each token), as exact as they can be had: of the models that
# their authors or `transformers` release. BERT has both pre-training heads; GPT-J and ALBERT have their head.
PUBLISHED = {
    "gpt2": (124_439_808, 85_056_000, 124_439_808),
    "gpt2_medium": (354_823_168, 302_311_424, 354_823_168),
    "gpt2_large": (774_030_080, 708_390_400, 774_030_080),
    "gpt2_xl": (1_557_611_200, 1_475_561_600, 1_557_611_200),
    "gpt3_175b": (174_604_259_328, 173_961_535_488, 174_604_259_328),
    "gptj_6b": (6_050_882_784, 5_638_005_984, 6_050_882_784),
    "llama3_8b": (8_030_261_248, 6_979_588_096, 8_030_261_248),
    "llama3_70b": (70_553_706_496, 68_452_360_192, 70_553_706_496),
    "llama3_405b": (405_853_388_800, 401_650_696_192, 405_853_388_800),
    "deepseek_v3": (671_026_404_352, 669_173_046_272, 37_552_282_624),
    "transformer_base": (63_082_496, 44_138_496, 63_082_496),
    "transformer_big": (214_245_376, 176_357_376, 214_245_376),
    "bert_base": (110_106_428, 86_270_780, 110_106_428),
    "bert_large": (336_226_108, 304_445_244, 336_226_108),
    "albert_base": (11_221_680, 7_315_888, 11_221_680),
    "mixer_b16": (59_880_472, 59_880_472, 59_880_472),
}
RATIOS = {
    "gpt2": 1.0014,
    "gpt2_xl": 1.0007,
    "gpt3_175b": 1.0001,
    "llama3_8b": 1.0834,
    "llama3_405b": 0.9896,
    "deepseek_v3": 17.7923,
}


def _params(spec: str | Path | None = None, *, text: str | None = None, model: str | None = None) -> Params:
    return archdsl.estimate(spec, text=text, model=model, allow_noncausal=True).params


def _agree(model: Model) -> None:
    """Paths, shapes and counts of the IR are those of the emitted module."""
    with torch.device("meta"):
        module = api.to_torch(model)
    found = list(weights(model))
    kept = {w.path: w.shape for w in found if w.weight.trained or w.weight.saved}
    assert kept == {name: tuple(t.shape) for name, t in module.state_dict().items()}
    trained = sum(w.size for w in found if w.weight.trained)
    assert trained == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", sample())
def test_the_zoo_counts_what_it_emits(name: str) -> None:
    """At its full size, but for the layers of DeepNet, which are a thousand."""
    path, model_name = place(name)
    model = archdsl.load(path, model=model_name, set={"layers": 12} if path.stem == "deepnet" else None)
    _agree(model)
    params = count(model).params
    assert params.total == sum(w.size for w in weights(model) if w.weight.trained)
    assert params.total == sum(w.total for w in params.by_weight if w.trained) == params.by_block[0].total


@pytest.mark.parametrize("spec", ["hf/gemma3_text", "deepseek_v3", "hf/nemotron_h", "hf/t5gemma", "gpt3_175b"])
def test_no_two_rows_of_blocks_are_alike(spec: str) -> None:
    model = archdsl.load(spec)
    for report in (count(model).params, flops(model).flops):
        rows = [(row.block, row.source) for row in report.by_block]
        assert len(rows) == len({*rows})


@pytest.mark.parametrize(
    "spec", ["hf/gemma3_text", "deepseek_v3", "jamba", "switch_base_8", "bytenet_lm", "conformer_s"]
)
def test_rows_of_blocks_name_the_layers_that_they_stand_in(spec: str) -> None:
    """Compared with every call of the model, written out."""
    model = archdsl.load(spec)
    _, root = unroll(model)
    places: dict[str, set[tuple[str, int]]] = {}
    for _, call in calls(root):
        stack, number, _ = layer_of(call.path)
        if stack:
            places.setdefault(call.block.name, set()).add((stack, number))
    for report in (count(model).params, flops(model).flops):
        found: dict[str, set[tuple[str, int]]] = {}
        for row in report.by_block:
            layers = {(stack, n) for stack, numbers in row.layers.items() for n in numbers}
            found.setdefault(row.block.partition(" ")[0], set()).update(layers)
        applied = {call.block.name for node in ops_below(model.block.graph) for call in node.blocks.values()}
        assert applied or {name for name, where in found.items() if where} <= places.keys()
        for name, where in places.items():
            assert where == found.get(name, where) or (name in applied and where < found[name])


@pytest.mark.parametrize("seed", range(50))
def test_ranges_say_every_number(seed: int) -> None:
    draw = random.Random(seed)
    period, kept = draw.randrange(1, 7), draw.random()
    pattern = [draw.random() < kept for _ in range(period)]
    numbers = [n for n in range(draw.randrange(1, 40)) if pattern[n % period] or draw.random() < 0.02]
    parts = [[*map(int, part.split("–"))] for part in ranges(numbers).split(",") if part not in ("…", "")]
    if "…" in ranges(numbers):
        (first, *_), (second, *_) = parts[:2]
        length = parts[0][-1] - first
        between = range(second + second - first, parts[-1][0], second - first)
        parts[2:-1] = [[start, start + length] for start in between]
    assert [n for part in parts for n in range(part[0], part[-1] + 1)] == numbers


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_paths_are_those_of_the_emitted_module(text: str) -> None:
    model = archdsl.load(text=text, allow_noncausal=True)
    _agree(model)
    params = _params(text=text)
    assert params.total == sum(w.size for w in weights(model) if w.weight.trained)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str) -> None:
    params = _params(name)
    assert (params.total, params.non_embedding, params.active) == PUBLISHED[name]


@pytest.mark.parametrize(("body", "outside"), [
    ("x + table[minimum(indices(time), 4)]", 0),
    ("x + mean((table -> transpose(0, 1))[:, minimum(indices(8), 4)], axis: 1)", 0),
    ("x + mean(table, axis: 0)", 40),
    ("x + table[:1]", 40),
])  # fmt: skip
def test_a_weight_that_rows_are_looked_up_of_is_an_embedding(body: str, outside: int) -> None:
    params = _params(text=f"model m(x: [batch, time, 8]) {{ param table: [5, 8] = normal(1)  return {body} }}")
    assert (params.total, params.non_embedding) == (40, outside)


@pytest.mark.parametrize("name", RATIOS)
def test_the_rule_of_thumb(name: str) -> None:
    params = _params(name)
    assert params.width is not None
    assert params.rule_of_thumb == 12 * params.layers * params.width**2
    assert params.ratio == RATIOS[name]


def test_paths_count_the_turns_of_a_loop() -> None:
    model = archdsl.load(text=ODD["alternating bodies"], allow_noncausal=True)
    names = dict.fromkeys(".".join(w.path.split(".")[:2]) for w in weights(model))
    assert list(names) == ["layer.0", "layer.1", "layer.2", "layer.3", "layer.4"]


def test_nested_loops_run_one_index_a_name() -> None:
    text = """
        block a(x: [..., width]) { x += x -> linear(width, bias: false) }
        model m(width = 8)(x: [batch, time, width]) {
          for i in 2 {
            for j in 3 { x = x -> a }
            x = x -> layernorm(bias: false)
          }
        }"""
    model = archdsl.load(text=text, allow_noncausal=True)
    turns = [[*(f"a.{3 * i + j}.linear.weight" for j in range(3)), f"layernorm.{i}.weight"] for i in range(2)]
    assert [w.path for w in weights(model)] == turns[0] + turns[1]
    params = _params(text=text)
    assert {w.path: w.count for w in params.by_weight} == {"a.*.linear.weight": 6, "layernorm.*.weight": 2}
    assert (params.layers, params.total) == (6, 6 * 64 + 2 * 8)


LAYER = """
    block near(x: [..., width]) { x += x -> linear(width) }
    block scores(x: [..., width]) {
      for i in 5 { x = x -> linear(width) -> tanh }
      return x
    }
    block layer(x: [..., width]) { x += x -> rmsnorm -> scores }
    block stage(x: [..., width]) {
      for i in 3 { x = x -> layer }
      return x -> near
    }
    block halved(x: [batch, time, width]) -> [batch, time / 2, width] {
      return x -> rearrange("b (t r) d -> b t (r d)", r: 2) -> linear(width)
    }
"""


@pytest.mark.parametrize(
    ("body", "layers"),
    [
        # Convolutions, and blocks that give another shape, before a stack are none of its layers.
        ("for i in 3 { x = x -> conv1d(width, kernel: 3, padding: 1) }  for i in 12 { x = x -> layer }", 12),
        ("for i in 3 { x = x -> halved }  for i in 12 { x = x -> layer }", 12),
        # Three of one kind and one of another, in turn; in a block of their own, too.
        ("for i in 2 { for j in 3 { x = x -> layer }  x = x -> near }", 8),
        ("for i in 2 { x = x -> stage }", 8),
        # A loop within a layer, around which the residual stream goes.
        ("for i in 4 { x += x -> scores  x = x -> layer }", 4),
        ("for i in 4 { x = x -> near  x = x -> near }", 4),
        ("for i in 2 { for j in 3 { x = x -> layer }  x = x -> rmsnorm }", 6),
    ],
)
def test_layers(body: str, layers: int) -> None:
    text = f"{LAYER} model m(width = 8)(x: [batch, 64, width]) {{ {body} }}"
    assert _params(text=text).layers == layers


@pytest.mark.parametrize("name", ["hf/swin", "hf/convnext", "hf/clip", "hf/speech_to_text"])
def test_layers_of_several_stacks(name: str) -> None:
    report = archdsl.estimate(name)
    depths = [n for field, n in report.config.items() if field.startswith("depth_") or field.endswith("layers")]
    assert report.params.layers == sum(depths)


def test_shared_layers_are_layers_but_counted_once() -> None:
    params = _params("albert")
    assert (params.layers, params.by_weight[5].path.split(".")[0]) == (12, "blocks")
    assert all(w.count == 1 for w in params.by_weight)


def test_a_classifier_is_no_output_projection() -> None:
    text = """
        model m(vocab = 2, width = 8)(x: [batch, time, width]) -> [batch, 3] { return x -> classifier(classes: 3) as
        head }"""
    assert _params(text=text).output_projection == 0


def test_an_output_projection_is_known_by_the_vocabulary() -> None:
    text = """
        block tail(words)(x: [..., width]) -> [..., words] { return (x -> linear(words)) * 0.5 }
        model m(width = 8)(tokens: token[batch, time]) {
          x = tokens -> embedding(32, width) -> mlp(hidden: 32)
          return x -> tail(words: 32)
        }"""
    params = _params(text=text)
    assert (params.output_projection, params.embedding) == (8 * 32, 32 * 8)


def test_a_class_token_is_no_layer() -> None:
    text = """
        block layer { attention: mha(heads: 2) ffn: mlp(hidden: 8) }
        model m {
          input: patches(size: 4, image: 8, class_token: true)
          width: 8
          position: learned(length: 5)
          blocks: 2 * layer
          head: classifier(classes: 3)
        }"""
    assert _params(text=text).embedding == 8 + 5 * 8


def test_active_experts_of_several_kinds() -> None:
    text = """
        block layer(k) { ffn: moe(experts: 8, top_k: k, expert: swiglu(hidden: 4)) }
        model m { vocab: 32 context: 8 width: 4 blocks: 3 * layer(k: 1) + 2 * layer(k: 3) head: lm(tied: true) }"""
    params = _params(text=text)
    expert = 3 * 4 * 4
    assert params.total - params.active == 3 * (8 - 1) * expert + 2 * (8 - 3) * expert


def test_no_stack_no_rule() -> None:
    params = _params(text="model m(x: [batch, 8]) { x = x -> linear(8) }")
    assert (params.layers, params.rule_of_thumb, params.ratio) == (0, None, None)
    assert layer_count(archdsl.load(text="model m(x: [batch, 8]) { x = x -> linear(8) }").block) == 0


def test_a_thousand_layers_cost_two_blocks() -> None:
    few, many = (archdsl.estimate("gpt2", set={"layers": n}).params for n in (2, 1000))
    assert (many.total - few.total) == 998 * 7_087_872
    assert len(many.by_weight) == len(few.by_weight)


@pytest.mark.parametrize("made", ["block", "inline block"])
def test_what_is_shared_is_counted_once(made: str) -> None:
    """However often it is applied, and in whatever blocks; also if it would be written into its caller."""
    text = f"""
{made} twice(x: [batch, time, width]) {{ return x + (x -> linear(width)) }}
block layer(turn: block)(x: [batch, time, width]) {{ return x -> turn -> turn }}
model m(width = 8)(x: [batch, time, width]) -> [batch, time, width] {{
  let t = shared(twice)
  x = x -> t
  for i in 2 {{ x = x -> layer(turn: t) }}
}}"""
    module = archdsl.to_torch(text=text)
    assert [*module.state_dict()] == ["t.linear.weight", "t.linear.bias"]
    assert archdsl.estimate(text=text).params.total == 8 * 8 + 8
    assert archdsl.verify(text=text, seq=5).agrees
