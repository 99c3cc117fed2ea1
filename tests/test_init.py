"""Weights are drawn as declared: by `archdsl init` and by the emitted module alike, also after the meta device, and the
same everywhere."""

import hashlib
import math
import os
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from init_tools import different
from numpy.typing import NDArray
from rows import with_the_rest
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from torch._subclasses import FakeTensorMode
from zoo import tiny
from zoo.sizes import sample

import archdsl
from archdsl.api import load, to_torch, torch_source
from archdsl.diagnostics import ArchError
from archdsl.ir.graph import CallNode, Graph, Model, OpNode, subgraphs
from archdsl.run.load import load_source
from archdsl.run.smoke import run
from archdsl.weights.branches import branch_ends, query_key_maps
from archdsl.weights.random_numbers import CHUNK, Stream, natural_logarithm, normal_quantile
from archdsl.weights.safetensors import Checkpoint, arrays, draw, saved

LAYERS = """
block layer(layers) {{
  attention: mha(heads: 4, bias: true)
  mask: causal
  ffn: {ffn}
  init: {init}
}}
model m(layers = 3) {{
  vocab: 300
  context: 64
  width: 64
  blocks: layers * layer(layers: layers)
  head: lm
}}
"""
EXPERTS = "moe(experts: 4, top_k: 2, expert: swiglu(hidden: 32))"


def model_of(init: str, ffn: str = "mlp(hidden: 128)") -> Model:
    return load(text=LAYERS.format(init=init, ffn=ffn))


def drawn(model: Model, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    return dict(arrays(model, seed))


RAW_SPEC = """
model m(x: [batch, time, 64]) -> [batch, time, 64] {{
  param w: [{shape}] = {init}
  return x * (w -> flatten(0) -> mean(0))
}}
"""


def raw(init: str, shape: str = "64, 128") -> Model:
    return load(text=RAW_SPEC.format(init=init, shape=shape))


# --- streams ----------------------------------------------------------------------------------------------------------


def test_the_quantile_is_that_of_the_normal_distribution() -> None:
    normal = statistics.NormalDist()
    p = np.concatenate([np.linspace(1e-6, 1 - 1e-6, 4001), 10.0 ** -np.arange(2, 17), 1 - 10.0 ** -np.arange(2, 15)])
    expected = np.array([normal.inv_cdf(x) for x in p])
    np.testing.assert_allclose(normal_quantile(p), expected, rtol=1e-13, atol=1e-15)


def test_the_logarithm_needs_no_library() -> None:
    x = np.concatenate([Stream(0, "x").uniform(10_000), 10.0 ** -np.arange(17)])
    np.testing.assert_allclose(natural_logarithm(x), np.log(x), rtol=1e-15, atol=1e-16)


def test_streams_are_what_they_always_were() -> None:
    """Bits, not numbers: nobody's seed may change its meaning."""
    found = hashlib.sha256(Stream(7, "blocks.0.q.weight").normal(1000).astype("<f4").tobytes()).hexdigest()
    assert found[:16] == "2ad0ffc225f3b1bb"
    assert Stream(7, "a").uniform(3).tolist() != Stream(8, "a").uniform(3).tolist()
    assert Stream(7, "a").uniform(3).tolist() != Stream(7, "b").uniform(3).tolist()


def test_a_stream_can_be_entered_anywhere() -> None:
    whole = Stream(1, "w").uniform(3 * CHUNK)
    assert (Stream(1, "w").at(CHUNK).uniform(CHUNK) == whole[CHUNK : 2 * CHUNK]).all()


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_file_loads_into_the_module(dtype: str, tmp_path: Path) -> None:
    model = model_of("depth_scaled(0.02, layers)", EXPERTS)
    told: list[tuple[str, int]] = []
    draw(model, 3, dtype, tmp_path / "w.safetensors", lambda path, size: told.append((path, size)))
    assert os.listdir(tmp_path) == ["w.safetensors"]
    state = load_torch(tmp_path / "w.safetensors")
    assert {t.dtype for t in state.values()} == {getattr(torch, dtype)}
    to_torch(model).load_state_dict({k: t.float() for k, t in state.items()}, strict=True)
    assert told == [(k, v.size) for k, v in drawn(model, 3).items()]
    for name, exact in drawn(model, 3).items():
        expected = torch.from_numpy(exact).float().to(getattr(torch, dtype))
        assert torch.equal(state[name], expected), name


def test_the_same_seed_draws_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from archdsl.api import load, init_weights;"
        "init_weights(load(text=sys.argv[1]), Path(sys.argv[2]), seed=5, dtype='float32')"
    )
    text = LAYERS.format(init="truncated_normal(0.02)", ffn="mlp(hidden: 128)")
    env = {**os.environ, "PYTHONHASHSEED": "5"}
    subprocess.run([sys.executable, "-c", script, text, str(tmp_path / "a")], check=True, env=env)
    draw(load(text=text), 5, "float32", tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    draw(load(text=text), 6, "float32", tmp_path / "c")
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_another_layer_changes_no_other_weight() -> None:
    text = LAYERS.format(init="normal(0.02)", ffn="mlp(hidden: 128)")
    three, four = drawn(load(text=text)), drawn(load(text=text, set={"layers": 4}))
    assert set(three) < set(four)
    assert all((three[k] == four[k]).all() for k in three)


def test_drawing_needs_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from archdsl.api import load, init_weights;"
        "init_weights(load(text=sys.argv[1]), Path(sys.argv[2]), dtype='bfloat16'); print('torch' in sys.modules)"
    )
    text = LAYERS.format(init="xavier", ffn="mlp(hidden: 128)")
    command = [sys.executable, "-c", script, text, str(tmp_path / "w")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "False"


def test_a_broken_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted(path: str, size: int) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        draw(model_of("zeros"), 0, "float32", tmp_path / "w.safetensors", interrupted)
    assert os.listdir(tmp_path) == []


def test_buffers_that_are_saved_are_in_the_file(tmp_path: Path) -> None:
    model = load(text="model m(x: [batch, time, 8]) { return x -> batchnorm }")
    draw(model, 0, "float16", tmp_path / "w")
    found = load_file(tmp_path / "w")
    assert found["batchnorm.running_var"].tolist() == [1.0] * 8
    assert found["batchnorm.running_mean"].tolist() == [0.0] * 8
    assert found["batchnorm.num_batches_tracked"].dtype == np.int64
    to_torch(model).load_state_dict(load_torch(tmp_path / "w"), strict=True)


# --- the module and the file draw by one law --------------------------------------------------------------------------

SCHEMES = with_the_rest(
    [
        "zeros",
        "constant(0.5)",
        "normal(0.05)",
        "normal(0.05, mean: 1)",
        "truncated_normal(0.02, limit: 1)",
        "uniform(0.3)",
        "xavier",
        "xavier_normal(gain: 2)",
        "kaiming",
        "kaiming_normal",
        "orthogonal(gain: 1.5)",
        "depth_scaled(0.02, layers)",
        "small",
        "deepnorm(layers)",
    ]
)


def assert_alike(a: NDArray[np.float64], b: NDArray[np.float64], name: str) -> None:
    """Two samples of one law: equal mean and deviation, to six standard errors."""
    assert a.shape == b.shape, name
    deviation = max(a.std(), b.std())
    assert abs(a.std() - b.std()) <= 6 * deviation / math.sqrt(a.size) + 1e-9, name
    assert abs(a.mean() - b.mean()) <= 6 * deviation * math.sqrt(2 / a.size) + 1e-7, name


@pytest.mark.parametrize("ffn", ["mlp(hidden: 128)", EXPERTS], ids=["mlp", "experts"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_module_and_file_agree(scheme: str, ffn: str) -> None:
    model = model_of(scheme, ffn)
    torch.manual_seed(0)
    state = {k: t.double().numpy() for k, t in to_torch(model).state_dict().items()}
    ours = drawn(model)
    assert list(state) == list(ours) or set(state) == set(ours)
    for name, values in ours.items():
        assert_alike(values, state[name], name)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "batchnorm", "groupnorm(2)"])
@pytest.mark.parametrize(
    ("scheme", "value"), [("zeros", 0.0), ("ones", 1.0), ("constant(2)", 2.0), ("constant(0.5)", 0.5)]
)
def test_a_gain_starts_where_it_is_told(norm: str, scheme: str, value: float) -> None:
    """In the module and in the file; a bias starts at 0 all the same."""
    option = norm.removesuffix(")") + (", " if "(" in norm else "(") + f"init: {scheme})"
    model = load(text=f"model m(x: [batch, time, 8]) {{ return x -> {option} as norm }}")
    state, ours = to_torch(model).state_dict(), drawn(model)
    assert state["norm.weight"].tolist() == ours["norm.weight"].tolist() == [value] * 8
    for name in ours.keys() & {"norm.bias"}:
        assert state[name].tolist() == ours[name].tolist() == [0.0] * 8


@pytest.mark.parametrize("spec", ["gpt2", "conformer_l", "seq2seq"])
def test_defaults_agree_with_torch(spec: str) -> None:
    numbers = {"gpt2": {"layers": 2, "width": 48}, "conformer_l": {"layers": 1, "width": 64}, "seq2seq": {"vocab": 500}}
    model = load(spec, set=numbers[spec])
    torch.manual_seed(0)
    state = {k: t.double().numpy() for k, t in to_torch(model).state_dict().items()}
    ours = drawn(model)
    assert set(state) == set(ours)
    for name, values in ours.items():
        assert_alike(values, state[name], name)


# --- the meta device --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sample())
def test_a_model_of_the_zoo_is_initialized_after_the_meta_device(name: str) -> None:
    """Every weight and buffer is what it is in a module built plainly, and drawn by the law of `archdsl init`."""
    made = tiny.compiled(name)
    plain = made()
    assert different(made, plain) == []
    ours = drawn(tiny.graph(name))
    assert plain.state_dict().keys() == ours.keys()
    for key, tensor in plain.state_dict().items():
        if tensor.numel() > 1:  # one number has no deviation
            assert_alike(ours[key], tensor.double().numpy(), key)


NORMED = """
block normed(x: [..., width]) -> [..., width] {
  x = x -> layernorm -> layernorm(bias: false) -> linear(width, bias: false) -> rmsnorm -> rmsnorm(offset: true)
  return x -> linear(width) -> prelu(0.5) -> linear(width, init: orthogonal)
}
"""
KINDS = {
    "buffers of all types": "buffer a: [8] = indices(8)  buffer b: int[8] = indices(8)  buffer c: int[8] = 3\n"
    "buffer d: bool[8] = indices(8) < 3  buffer e: [1] = 2\n x = where(d, x * a + b + c, x * e)",
    "lists of numbers": "buffer a: [8] = [1, 2.5, -3, 4e-3, 5, 6, n, 1 / n] buffer b: int[3, 2] = [[i, 1] for i in 3]  "
    "buffer c: bool[8] = [1, 0, 0, 1, 1, 1, 0, 0]  param d: [4, 2] = [1, n]  "
    "x = where(c, x * a + sum(b, axis: [0, 1]), x * sum(d, axis: [0, 1]))",
    "raw weights of a loop": "for i in n { param a: [8] = uniform(0.5)  param b: [8] = i + normal(1)  x = x * a + b }",
    "buffers of a loop": "for i in n { param a: [8] = ones  buffer b: [8] = normal(1)  x = x * a + b }",
    "modules in unequal turns": "for f in [linear(8, init: normal(0.3)), linear(8, init: zeros), lstm(8)] { x = f(x) }",
    "norms": "x = x -> batchnorm -> powernorm -> rmsnorm(offset: true) -> groupnorm(groups: 2)",
    "norms with a scheme": "x = x -> layernorm(init: constant(0.5)) -> batchnorm(init: constant(0.5))",
    "experts": "x = x -> moe(experts: 4, top_k: 2, expert: normed)",
    "recurrences": "x = x -> lstm(8) -> gru(8) -> rnn(8) -> rnn(8, act: relu)",
    "cells": "x = scan h: [batch, 8] = 0 for x_t in x { h = gru_cell(8)(x_t, h)  emit h }",
}


@pytest.mark.parametrize("name", KINDS)
def test_whatever_holds_numbers_is_initialized_after_the_meta_device(name: str) -> None:
    text = f"{NORMED}model m(n = 3)(x: [batch, time, 8]) -> [batch, time, 8] {{ {KINDS[name]}\n return x }}"
    made = load_source(torch_source(text=text))
    assert different(made, made()) == []


def test_counts_of_experts_begin_anew_after_the_meta_device() -> None:
    path, model = tiny.place("deepseek_v3:deepseek_v3")
    source = torch_source(path, model=model, set=tiny.tables()["deepseek_v3:deepseek_v3"], features=["loss"])
    made = load_source(source)
    plain = made()
    assert any("load" in name for name, _ in plain.named_buffers())
    assert different(made, plain) == []


# --- what each scheme means -------------------------------------------------------------------------------------------


def deviation(values: NDArray[np.float64]) -> float:
    return float(values.std())


def test_depth_scaled_shrinks_the_ends_of_branches_only() -> None:
    found = drawn(model_of("depth_scaled(0.02, layers)"))
    for name in ("attention.q", "attention.v", "ffn.up"):
        assert deviation(found[f"blocks.1.{name}.weight"]) == pytest.approx(0.02, rel=0.05)
    for name in ("attention.out", "ffn.down"):
        assert deviation(found[f"blocks.1.{name}.weight"]) == pytest.approx(0.02 / math.sqrt(6), rel=0.05)
    assert not found["blocks.1.attention.q.bias"].any()


def test_deepnorm_scales_all_but_queries_and_keys() -> None:
    found = drawn(model_of("deepnorm(layers)"))
    beta = (8 * 3) ** -0.25
    square, wide = math.sqrt(2 / 128), math.sqrt(2 / 192)
    assert deviation(found["blocks.0.attention.q.weight"]) == pytest.approx(square, rel=0.05)
    assert deviation(found["blocks.0.attention.k.weight"]) == pytest.approx(square, rel=0.05)
    assert deviation(found["blocks.0.attention.v.weight"]) == pytest.approx(beta * square, rel=0.05)
    assert deviation(found["blocks.0.attention.out.weight"]) == pytest.approx(beta * square, rel=0.05)
    assert deviation(found["blocks.0.ffn.up.weight"]) == pytest.approx(beta * wide, rel=0.05)


def test_small_looks_at_the_width_even_where_the_input_is_wider() -> None:
    found = drawn(model_of("small"))
    assert deviation(found["blocks.0.ffn.down.weight"]) == pytest.approx(math.sqrt(2 / (5 * 64)), rel=0.05)


def test_orthogonal_matrices_are_orthogonal() -> None:
    found = drawn(model_of("orthogonal", EXPERTS))
    up = found["blocks.0.ffn.experts.up.weight"]
    for matrix in [found["blocks.0.attention.q.weight"], *up]:
        product = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
        np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-12)
    assert not np.allclose(up[0], up[1])


def test_truncated_and_uniform_stay_within_their_limits() -> None:
    truncated = drawn(raw("truncated_normal(0.02, limit: 1.5)", "400, 400"))["w"]
    assert 0.0299 < np.abs(truncated).max() <= 0.03
    uniform = drawn(raw("uniform(0.5)", "400, 400"))["w"]
    assert 0.499 < np.abs(uniform).max() < 0.5


def test_numbers_are_those_of_the_settings() -> None:
    source = torch_source(text=LAYERS.format(init="depth_scaled(0.02, layers)", ffn="mlp(hidden: 128)"))
    assert "std=0.02 / math.sqrt(2 * self.layers)" in source
    assert "for linear in (self.q, self.k, self.v):\n            nn.init.normal_(linear.weight, std=0.02)" in source


@pytest.mark.parametrize(
    ("attention", "kept"),
    [
        ("own(n: 5)", "self.layers = config.layers"),
        ("own(layers: 5)", "self.init_layers = config.layers"),
        ("own(n: 5, layers: 7)", "self.init_layers = config.layers"),
        ("named", "self.init_layers = config.layers"),
        ("plain", "self.layers = config.layers"),
    ],
)
def test_a_number_that_first_values_need_is_called_like_the_field(attention: str, kept: str) -> None:
    """But where the block calls something so."""
    numbers = re.findall(r"(\w+):", attention)
    factor = " + ".join(numbers) or "1"
    name = "layers" if attention == "named" else "proj"
    text = LAYERS.format(init="depth_scaled(0.02, layers)", ffn="mlp(hidden: 128)")
    text = text.replace("mha(heads: 4, bias: true)", attention).replace("  mask: causal\n", "")
    block = attention.partition("(")[0] + (f"({', '.join(numbers)})" if numbers else "")
    text += f"""
block {block}(x: [batch, time, width]) -> [batch, time, width] {{
  return (x -> linear(width) as {name}) * ({factor})
}}"""
    source = torch_source(text=text, set={"layers": 8})
    assert kept in source
    torch.manual_seed(0)
    made: Any = load_source(source)()
    stds = [getattr(block.attention, name).weight.std().item() for block in made.blocks]
    np.testing.assert_allclose(stds, 0.02 / 4, rtol=0.1)


def test_nothing_is_written_for_what_torch_does_anyway() -> None:
    source = torch_source(text="model m(x: [batch, time, 8]) { return x -> layernorm -> linear(8) }")
    assert "nn.init" not in source
    assert "reset_parameters(self)" not in source


def test_a_model_without_weights_has_no_init_weights() -> None:
    source = torch_source(text="model m(x: [batch, time, 8]) { return x -> gelu }")
    assert "init_weights" not in source


def test_an_option_wins_over_the_block_and_that_over_the_model() -> None:
    text = """
block layer(x: [batch, time, width]) -> [batch, time, width] {
  return x -> linear(width, init: normal(0.5)) as a -> linear(width) as b
}
block other {
  ffn: mlp(hidden: 256)
  init: normal(0.3)
}
model m { vocab: 256  context: 8  width: 256  blocks: layer + other  head: lm  init: normal(0.1) }
"""
    found = drawn(load(text=text))
    expected = {"blocks.0.a.weight": 0.5, "blocks.0.b.weight": 0.1, "blocks.1.ffn.up.weight": 0.3, "head.weight": 0.1}
    for name, std in expected.items():
        assert deviation(found[name]) == pytest.approx(std, rel=0.05), name


# --- first values by name ---------------------------------------------------------------------------------------------

NAMED = """
block enc(h: size, n: number) {{
  attention: mha(heads: 2, bias: true)
  ffn: moe(experts: 2, top_k: 1, expert: swiglu(hidden: h))
  {layer}
}}
block dec(h: size, common: block)(x: [batch, time, width], memory: [batch, source, m]) -> [batch, time, width] {{
  {equations}
  x += x -> layernorm as cross_norm -> mha(heads: 2)(memory: memory) as cross
  x += x -> layernorm as self_norm -> mha(heads: 2, mask: causal) as attention
  for turn in 2 {{ x += x -> linear(width) -> gelu }}
  narrow = x -> linear(h)
  ys = scan s: [batch, width] = 0 for t in narrow {{ s = gru_cell(width)(t, s)  emit s }}
  return ys -> mlp(hidden: h) -> common
}}
model m(h = 8, layer = 2, init_std = 3, init_up_std = 5, dim = 16) {{
  let common = shared(mlp(hidden: h))
  vocab: 32  context: 8  width: dim
  encoder: layer * enc(h: h, n: layer) + common
  decoder: 2 * dec(h: h, common: common)
  {model}
}}
"""
SAID = {"layer": "", "equations": "", "model": ""}


def named(**said: str) -> str:
    return NAMED.format(**{**SAID, **{k: f"init: {v}" for k, v in said.items()}})


def matched(pattern: str, path: str) -> bool:
    """Whether a pattern matches a path or some steps at its beginning; a number of a layer is matched by `*` alone."""
    steps = ["#" if step.isdecimal() else step for step in path.split(".")]
    rule = re.compile(re.escape(pattern).replace(r"\*", ".*"))
    return any(rule.fullmatch(".".join(steps[:n])) for n in range(1, len(steps) + 1))


def pieces(paths: list[str], dice: random.Random) -> str:
    """A pattern made of the steps of a path."""
    steps = ["*" if step.isdecimal() else step for step in dice.choice(paths).split(".")]
    first, last = sorted(dice.sample(range(len(steps) + 1), 2))
    steps = [s if dice.random() < 0.8 else f"{s[: len(s) // 2]}*" for s in steps[first:last]]
    before, after = "*." if first else "", dice.choice(["", "", ".*"]) if last < len(steps) else ""
    return before + ".".join(steps) + after


@pytest.mark.parametrize("seed", range(8))
def test_each_weight_gets_what_the_last_rule_says_that_matches_it(seed: int) -> None:
    """Beside regular expressions over the paths of `state_dict`, in the file and in the module."""
    dice = random.Random(seed)
    plain = drawn(load(text=named()))
    matrices = [path for path, values in plain.items() if values.ndim > 1]
    rules = [pieces(matrices, dice) for _ in range(4)]
    layers = ["*"] if seed % 3 == 0 else []

    def decider(path: str) -> int | None:
        nameless = re.sub(r"\w+\.weight$", "!.weight", path) if path.endswith("norm.weight") else ""
        if layers and re.match(r"encoder\.[01]\.", path) and not nameless:
            return 100
        fits = (i for i, rule in enumerate(rules) if matched(rule, path) and not (nameless and matched(rule, nameless)))
        return max(fits, default=None)

    decided = {path: decider(path) for path in plain}
    used = [i for i in range(len(rules)) if i in decided.values()]
    said = [f'"{rule}": constant({i + 7})' for i, rule in enumerate(rules)]
    elsewhere = {"layer": '["*": constant(107)]'} if layers else {}
    if len(used) < len(rules):
        with pytest.raises(ArchError) as caught:
            load(text=named(model=f"[{', '.join(said)}]", **elsewhere))
        assert {d.code for d in caught.value.diagnostics} == {"E0217"}
    text = named(model=f"[{', '.join(said[i] for i in used)}]", **elsewhere) if used else named(**elsewhere)
    found, state = drawn(load(text=text)), to_torch(load(text=text)).state_dict()
    assert found.keys() == plain.keys() == state.keys()
    for path, by in decided.items():
        if "bias" in path.rpartition(".")[2]:
            continue  # which may start at 0
        if by is None:
            assert (found[path] == plain[path]).all(), path
        else:
            assert (found[path] == by + 7).all(), path
            assert (state[path] == by + 7).all(), path


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        # A bias starts at 0, unless the rule is for it alone.
        ('"*.q": constant(2)', {"q.weight": 2, "q.bias": 0}),
        ('"*.q.bias": constant(2)', {"q.bias": 2}),
        ('"*.bias": constant(2)', {"q.bias": 2, "attention_norm.bias": 2, "down.bias": 2}),
        ('"*.q.*": constant(2)', {"q.weight": 2, "q.bias": 0}),
        ('"*.attention": ones, "*.q.bias": constant(2)', {"q.weight": 1, "out.weight": 1, "k.bias": 0, "q.bias": 2}),
        ('"*.q.bias": constant(2), "*.attention.k": ones', {"k.weight": 1, "k.bias": 0, "q.bias": 2}),
        # A gain only follows a rule that says its norm.
        ('"*.attention_norm": zeros', {"attention_norm.weight": 0, "attention_norm.bias": 0, "ffn_norm.weight": 1}),
        ('"*norm*": constant(3)', {"attention_norm.weight": 3, "ffn_norm.weight": 3, "ffn_norm.bias": 0}),
        ('"*.weight": zeros', {"q.weight": 0, "ffn_norm.weight": 1}),
        ('"blocks": zeros', {"q.weight": 0, "ffn_norm.weight": 1}),
        ('"*": zeros', {"q.weight": 0, "ffn_norm.weight": 1, "gain.weight": 9}),
    ],
)
def test_biases_and_gains(rules: str, expected: dict[str, float]) -> None:
    text = f"""
block layer {{ attention: mha(heads: 2, bias: true)  mask: causal  ffn: mlp(hidden: 8)  residual: own }}
block own(x: [..., width], y: [..., width]) -> [..., width] {{ return x + (y -> gain(start: 9) as gain) }}
model m {{ vocab: 16  context: 8  width: 8  blocks: 2 * layer  head: lm  init: [{rules}] }}
"""
    found, state = drawn(load(text=text)), to_torch(load(text=text)).state_dict()
    for end, value in expected.items():
        paths = [p for p in found if p.startswith("blocks.") and p.endswith(end)]
        assert paths
        for path in paths:
            assert set(found[path].ravel()) == set(state[path].flatten().tolist()) == {value}, path


def test_a_rule_follows_the_config() -> None:
    """Its numbers are fields, names that every block might use, and expressions of them; each where it is used."""
    text = named(
        model='["*": constant(init_std), "*.up": constant(init_up_std), "*.down": constant(h / dim), "*on.up": ones]',
        layer='["attention.out": constant(sqrt(n) / 2), "*.up": constant(h - 1)]',
        equations='["cross.out": constant(h + width), "attention.out": constant(h)]',
    )
    made = load_source(torch_source(text=text))
    for sizes in [{}, {"h": 4, "init_std": 11, "init_up_std": 6, "dim": 8}]:
        n = {"h": 8, "layer": 2, "init_std": 3, "init_up_std": 5, "dim": 16, **sizes}
        expected = {
            "encoder.0.attention.q.weight": n["init_std"],
            "encoder.1.attention.out.weight": math.sqrt(n["layer"]) / 2,
            "encoder.0.ffn.experts.up.weight": n["h"] - 1,
            "encoder.0.ffn.experts.down.weight": n["h"] / n["dim"],
            "decoder.1.cross.out.weight": n["h"] + n["dim"],
            "decoder.1.attention.out.weight": n["h"],
            "decoder.0.mlp.up.weight": n["init_up_std"],
            "common.up.weight": 1,
        }
        state = made(sys.modules[made.__module__].Config(**sizes)).state_dict()
        ours = drawn(load(text=text, set=sizes))
        assert state.keys() == ours.keys()
        for path, value in expected.items():
            assert state[path].flatten().tolist() == pytest.approx([value] * state[path].numel()), path
            assert ours[path].ravel().tolist() == pytest.approx([value] * ours[path].size), path


def test_blocks_that_are_drawn_alike_for_other_numbers() -> None:
    """One block by numbers that are equal here, and called otherwise or not at all."""
    text = """
block layer(n) { ffn: mlp(hidden: 4)  norm: none  placement: none  init: ["ffn": constant(n), "*.bias": normal(0.02)] }
block other(n) { ffn: mlp(hidden: 4)  norm: none  placement: none  init: ["*": constant(n), "*.bias": normal] }
block third(n) { ffn: mlp(hidden: 4)  norm: none  placement: none  init: constant(n) }
model m(a = 2, b = 2, c = 2) { vocab: 16  context: 8  width: 8  blocks: layer(n: a) + other(n: b) + third(n: c) }
"""
    made = load_source(torch_source(text=text))
    for sizes in ({}, {"a": 3}, {"a": 5, "b": 6, "c": 7}):
        state = made(sys.modules[made.__module__].Config(**sizes)).state_dict()
        for i, name in enumerate("abc"):
            assert set(state[f"blocks.{i}.ffn.up.weight"].flatten().tolist()) == {sizes.get(name, 2)}, (sizes, name)


def test_a_rule_is_used_where_the_block_was_made_for_another() -> None:
    """Two layers say the same of one block, which is elaborated once: both rules decide."""
    layers = 'block {} {{ ffn: mlp(hidden: 4)  norm: none  placement: none  init: ["ffn.up": zeros] }}'
    text = f"""{layers.format("one")}
{layers.format("two")}
model m {{ vocab: 16  context: 8  width: 8  blocks: one + two  init: ["*.down": ones] }}
"""
    found = drawn(load(text=text))
    assert [found[f"blocks.{i}.ffn.{name}.weight"].mean() for i in range(2) for name in ("up", "down")] == [0, 1, 0, 1]


def test_what_a_rule_does_not_change_keeps_its_class_and_its_numbers() -> None:
    """One class where no rule tells two uses of a block apart; two where one does."""
    text = """
block layer {{ attention: mha(heads: 2)  cross_attention: mha(heads: 2)  mask: causal  ffn: mlp(hidden: 8) }}
model m {{ vocab: 16  context: 8  width: 8  encoder: 2 * only(linear(8))  decoder: 2 * layer  {} }}
"""
    alike, apart = (
        torch_source(text=text.format(f"init: [{rules}]"))
        for rules in ('"*.cross_attention_norm": zeros', '"*.cross_attention.out": zeros')
    )
    assert alike.count("class Attention") == alike.count("class CrossAttention") == 1
    plain = torch_source(text=text.format(""))
    assert plain.count("class ") == alike.count("class ") == apart.count("class ")
    assert "nn.init.zeros_(self.out.weight)" in apart
    assert plain.count("nn.init") == apart.count("nn.init") - 1 == alike.count("nn.init") - 1


@pytest.mark.parametrize(
    ("text", "code", "help_"),
    [
        ('init: ["*.aut": zeros]', "E0217", 'did you mean `"*.out"`?'),
        ('init: ["out": zeros]', "E0217", 'did you mean `"*.out"`?'),
        ('init: ["ffn.down": zeros]', "E0217", 'did you mean `"*.ffn.down"`?'),
        ('init: ["blocks.ffn.dwon": zeros]', "E0217", 'did you mean `"blocks.*.ffn.down"`?'),
        ('init: ["blocks.0.ffn": zeros]', "E0217", "give a layer an `init` of its own"),
        ('init: ["zzzzzzzz": zeros]', "E0217", "its weights are called `token_embedding.weight`,"),
        ('init: ["*.out": zeros, "*": normal(1)]', "E0217", "write those for many weights first"),
        ('init: ["*.out": zeros, "*.out": ones]', "E0217", "the last one decides"),
        ('init: ["*.own": zeros]', "E0217", "are changed where they are written"),
        ('init: ["*.fixed": zeros]', "E0217", "are changed where they are written"),
        ('init: ["*.fixed.bias": zeros]', "E0217", "are changed where they are written"),
        ('init: ["*.near": zeros]', "E0217", "the last one decides"),
        ('init: ["*.behind.*.weight": zeros]', "E0217", "a norm's gain starts at 1"),
        ('init: ["": zeros]', "E0204", "blocks.*.ffn.down"),
        ('init: ["*.[qk]": zeros]', "E0204", "blocks.*.ffn.down"),
        ('init: ["*.out ": zeros]', "E0204", "blocks.*.ffn.down"),
        ('init: ["*.out": 0]', "E0203", ""),
        ('init: ["*.out": none]', "E0203", ""),
        ('init: ["*.out": ["*.out": zeros]]', "E0203", ""),
        ('init: ["*.out": yarn(factor: 2, original: 8)]', "E0203", ""),
        ('init: ["*.behind.layernorm": orthogonal]', "E0204", ""),
        ('init: ["*.up.bias": orthogonal]', "E0204", ""),
        ("init: yarn(factor: 2, original: 8)", "E0203", ""),
        ('init: ["*.out": normal(time)]', "E0206", ""),
        ('init: ["*.out": zeros, 3]', "E0101", ""),
        ("init: []", "E0203", ""),
        ('init: "zeros"', "E0203", ""),
        ("init: zeros  init: ones", "E0202", ""),
        ("head: lm(init: zeros)", "E0201", ""),
    ],
)
def test_rules_that_are_refused(text: str, code: str, help_: str) -> None:
    spec = f"""
block normed(x: [..., width]) -> [..., width] {{ return x -> layernorm }}
block layer(x: [batch, time, width]) -> [batch, time, width] {{
  param own: [width] = zeros
  x += x -> mha(heads: 2, mask: causal) as attention
  x += x -> linear(width, init: normal(1)) as fixed -> silenced as near -> normed as behind
  x += x -> mlp(hidden: 8) as ffn
  return x * own
}}
block silenced(x: [batch, time, width]) -> [batch, time, width] {{
  init: zeros
  return x -> linear(width)
}}
model m {{ vocab: 16  context: 8  width: 8  blocks: 2 * layer  {"" if "head" in text else "head: lm"}  {text} }}
"""
    with pytest.raises(ArchError) as caught:
        load(text=spec)
    assert [d.code for d in caught.value.diagnostics] == [code]
    assert help_ in caught.value.diagnostics[0].help


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("h = x -> linear(8)  init: zeros  return h", "E0215"),
        ("init: zeros  init: ones  return x -> linear(8)", "E0202"),
        ("init: 3  return x -> linear(8)", "E0203"),
        ("init: zeros  norm: rmsnorm  return x -> linear(8)", "E0215"),
        ('return x -> linear(8, init: ["*": zeros])', "E0203"),
        ('param w: [8] = ["*": zeros]  return x * w', "E0203"),
        ('init: ["linear": zeros]  return x', "E0217"),
        ("return x -> layernorm(init: orthogonal)", "E0204"),
        ("param w: [8] = orthogonal  return x * w", "E0204"),
    ],
)
def test_an_init_of_equations_that_is_refused(body: str, code: str) -> None:
    with pytest.raises(ArchError) as caught:
        load(text=f"model m(x: [batch, time, 8]) -> [batch, time, 8] {{ {body} }}")
    assert [d.code for d in caught.value.diagnostics] == [code]


def test_equations_say_init_as_slots_do() -> None:
    """Below a `let` that it reads, in blocks, models, and inline blocks, whose init ends with them."""
    text = """
let quiet = ["a": zeros, "b": constant(2)]
inline block two(x: [..., width]) -> [..., width] { init: quiet  return x -> linear(width) as a -> linear(width) as b }
inline block layer { ffn: linear(width)  norm: none  placement: none  init: constant(5) }
block inner(scheme: scheme)(x: [..., width]) -> [..., width] {
  init: scheme
  return x -> linear(width) as a -> linear(width) as b
}
model m(width = 4)(x: [batch, time, width]) -> [batch, time, width] {
  let c = 2 * width - 1
  assert width > 2
  init: constant(c)
  x = x -> linear(width) as first -> two -> linear(width) as a
  x = x -> layer -> linear(width) as last
  return x -> inner(scheme: ["b": constant(width + 9)]) -> inner(scheme: ones) as other
}
"""
    found = {k: v for k, v in drawn(load(text=text)).items() if k.endswith("weight")}
    expected = {"first": 7, "a": 0, "b": 2, "a_2": 7, "ffn": 5, "last": 7, "inner.a": 7, "inner.b": 13}
    expected |= {"other.a": 1, "other.b": 1}
    assert {k.removesuffix(".weight"): set(v.ravel()) for k, v in found.items()} == {
        k: {v} for k, v in expected.items()
    }
    state = to_torch(load(text=text)).state_dict()
    assert all(torch.equal(state[k].double(), torch.from_numpy(v)) for k, v in found.items())


def test_a_shared_block_is_drawn_as_it_is_said_where_it_lives() -> None:
    """Whichever block applies it first, and whatever that says of its own weights."""
    text = """
block layer(inner: block, line: block)(x: [batch, time, width]) -> [batch, time, width] {
  init: constant(9)
  return x -> inner -> line -> linear(width)
}
model m(h = 3, width = 4) {
  let turn = shared(mlp(hidden: h))
  let line = shared(linear(width))
  vocab:   16
  context: 8
  width:   width
  blocks:  2 * layer(inner: turn, line: line)
  head:    lm(tied: true)
  init:    ["token_embedding": constant(2), "turn": constant(h), "turn.down": constant(h * width),
            "line": constant(width)]
}
"""
    for sizes in ({}, {"h": 5, "width": 8}):
        found = drawn(load(text=text, set=sizes))
        made = load_source(torch_source(text=text))
        state = made(sys.modules[made.__module__].Config(**sizes)).state_dict()
        h, width = sizes.get("h", 3), sizes.get("width", 4)
        expected = {"token_embedding": 2, "turn.up": h, "turn.down": h * width, "line": width, "blocks.1.linear": 9}
        for path, value in expected.items():
            assert set(found[f"{path}.weight"].ravel()) == {value}, path
            assert set(state[f"{path}.weight"].flatten().tolist()) == {value}, path


@pytest.mark.parametrize(
    "said", [{"layer": '["*.out": zeros, "*.up": constant(h)]'}, {"model": '["*.q": constant(h)]'}]
)
def test_equations_of_slots_say_the_same_init(said: dict[str, str]) -> None:
    text = named(**said)
    expanded = archdsl.expand(text=text)
    assert f"init: {next(iter(said.values()))}" in expanded
    ours, theirs = drawn(load(text=text)), drawn(load(text=expanded))
    assert {k: v.tobytes() for k, v in ours.items()} == {k: v.tobytes() for k, v in theirs.items()}


# --- raw weights ------------------------------------------------------------------------------------------------------

RAW = [
    ("zeros", "nn.init.zeros_(self.w)"),
    ("constant(2)", "nn.init.constant_(self.w, 2)"),
    ("normal(0.02)", "nn.init.normal_(self.w, std=0.02)"),
    ("normal(1)", "nn.init.normal_(self.w)"),
    ("uniform(0.5)", "nn.init.uniform_(self.w, -0.5, 0.5)"),
    ("xavier", "nn.init.xavier_uniform_(self.w)"),
    ("truncated_normal(0.02)", "nn.init.trunc_normal_(self.w, std=0.02, a=-0.04, b=0.04)"),
    ("log(1 + indices(128))", "self.w.copy_(torch.log(1 + torch.arange(128)))"),
    ("indices(128)", "self.w.copy_(torch.arange(128))"),
    ("indices(128) - ones(64, 128) / 2 + zeros(128)", None),
    ("1 + normal(0.1)", "self.w.copy_(1 + torch.randn(64, 128) * 0.1)"),
    ("exp(uniform(0.5)) - 1", None),
    ("[[i / 3 for i in 128]]", None),
    ("[[i - 7] for i in 64]", None),
]


@pytest.mark.parametrize(("init", "text"), RAW, ids=[r[0] for r in RAW])
def test_raw_weights(init: str, text: str | None) -> None:
    model = raw(init)
    source = torch_source(text=RAW_SPEC.format(init=init, shape="64, 128"))
    if text is not None:
        assert "self.w = nn.Parameter(torch.empty(64, 128))\n" in source
        assert f"        {text}\n" in source
    torch.manual_seed(0)
    theirs = to_torch(model).state_dict()["w"].double().numpy()
    ours = drawn(model)["w"]
    if "(1 +" in init or init.startswith(("indices", "zeros", "constant", "[")):
        np.testing.assert_allclose(theirs, ours, rtol=1e-6)
    else:
        assert_alike(ours, theirs, init)


@pytest.mark.parametrize(
    ("weight", "code"),
    [
        ("param w: [2] = []", "E0203"),
        ("param w: [2] = [[], []]", "E0203"),
        ("param w: [2] = [1, 2, 3]", "E0301"),
        ("param w: [2] = [[1, 2]]", "E0301"),
        ("param w: [2, 2] = [[1, 2], [3]]", "E0301"),
        ("param w: [2, 2] = [[1, 2], 3]", "E0203"),
        ("param w: [2] = [1, normal(0.02)]", "E0203"),
        ("param w: [2] = [1, true]", "E0203"),
        ("param w: [2] = [1, inf]", "E0203"),
        ("param w: [2] = [x, x]", "E0203"),
        ("param w: [2] = [1, batch]", "E0402"),
        ("param w: [2] = batch / 2", "E0402"),
        ("buffer w: int[2] = [1, 0.5]", "E0203"),
        ("buffer w: bool[2] = [1, n / 2]", "E0203"),
        ("buffer w: int[2] = [1, 9_223_372_036_854_775_808]", "E0404"),
    ],
)
def test_what_is_no_first_value(weight: str, code: str) -> None:
    with pytest.raises(ArchError) as problem:
        load(text=f"model m(n = 3)(x: [batch, time, 2]) -> [batch, time, 2] {{ {weight}  return x * w }}")
    assert [d.code for d in problem.value.diagnostics] == [code]


@pytest.mark.parametrize("size", ["n", "time"])
@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("int", "indices({}) * 0.5", "holds real numbers"),
        ("int", "0.5", "is 0.5"),
        ("int", "n / 2", "is 1.5"),
        ("int", "constant(0.5)", "is 0.5"),
        ("int", "normal(1)", "drawn at random"),
        ("int", "uniform(3)", "drawn at random"),
        ("bool", "normal(1)", "drawn at random"),
        ("bool", "indices({}) * 0.5", "holds real numbers"),
        ("bool", "0.5", "is 0.5"),
        *((kind, value, "") for kind in ("int", "bool") for value in ("zeros", "ones", "1", "n", "constant(n)")),
        *((kind, value, "") for kind in ("int", "bool") for value in ("indices({}) // 2", "indices({}) > 1")),
    ],
)
def test_a_buffer_of_whole_numbers_holds_what_its_first_value_says(kind: str, value: str, said: str, size: str) -> None:
    text = f"model m(n = 3)(x: [batch, time, n]) {{ buffer w: {kind}[{size}] = {value.format(size)}  return w }}"
    if said:
        with pytest.raises(ArchError, match=said) as problem:
            load(text=text)
        (found,) = problem.value.diagnostics
        assert found.code == "E0203"
        if said == "holds real numbers":
            assert found.help.startswith({"bool": "compare it", "int": "divide by `//`"}[kind])
        return
    numbers = {"zeros": [0] * 3, "indices({}) // 2": [0, 0, 1], "indices({}) > 1": [0, 0, 1]}
    wanted = torch.tensor(numbers.get(value, [3 if value in ("n", "constant(n)") else 1] * 3))
    wanted = wanted.bool() if kind == "bool" else wanted
    found = load_source(torch_source(text=text))()(torch.zeros(2, 3, 3))
    assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist())


@pytest.mark.parametrize("kind", ["int", "bool"])
def test_a_first_value_that_is_whole_by_chance_is_demanded_of_a_config(kind: str) -> None:
    text = f"model m(n = 3)(x: [batch, time, 2]) {{ buffer w: {kind}[4] = n / 3  return w }}"
    made = load_source(torch_source(text=text))
    config = sys.modules[made.__module__].Config
    assert made(config(n=6))(torch.zeros(1, 1, 2)).tolist() == [2 if kind == "int" else True] * 4
    with pytest.raises(AssertionError, match="n % 3 == 0"):
        config(n=4)


SIZED = """
block layer(x: [batch, time, width]) -> [batch, time, width] {
  buffer a: [time] = 2
  buffer b: [time] = 0.5
  buffer c: [time, width] = indices(width) * 0.1
  buffer d: [time] = indices(time)
  buffer e: int[time] = indices(time) // 2
  buffer f: bool[time] = indices(time) % 3 < 2
  buffer g: int[time] = 3
  buffer h: [width, batch] = ones
  scaled = where(unsqueeze(f, -1), x * unsqueeze(a, -1) + c, x * unsqueeze(b, -1))
  y = scaled -> linear(width)
  z = y * unsqueeze(d * 0.1, -1) + unsqueeze((e + g) -> cast(float), -1) * 0.1
  w = (z + unsqueeze(transpose(h, 0, 1), 1)) -> linear(width)
  return x + w
}
model m {
  vocab:   50
  context: 16
  width:   8
  blocks:  2 * layer
  norm:    layernorm
  head:    lm
}
"""
"""Buffers of every kind, of sizes that only the running model knows, before layers that take one type alone."""


def test_buffers_of_run_time_sizes_are_of_the_models_type() -> None:
    """Run, compiled, generated from, step by step, and beside onnxruntime."""
    model = load(text=SIZED)
    for dtype in ("float16", "bfloat16"):
        report = run(model, weights=None, seed=0, batch=2, time=9, device="cpu", dtype=dtype)
        assert {x.dtype for x in report.outputs.values()} == {dtype}
        assert report.without_gradient == []
    assert len(archdsl.generate(model, [1, 2, 3], max_new_tokens=3, dtype="bfloat16").tokens[0]) == 3
    verified = archdsl.verify(model, seq=9)
    assert verified.agrees, verified
    assert (verified.no_decode, verified.no_torch_decode) == (None, None)
    assert archdsl.verify(model, seq=9, dtype="float16", decode=False).agrees
    module, given = load_source(torch_source(model))().bfloat16(), torch.arange(18).view(2, 9)
    torch.testing.assert_close(torch.compile(module, backend="eager", fullgraph=True)(given), module(given))


def test_a_list_is_as_long_as_its_weight_for_every_config() -> None:
    text = "model m(n = 3)(x: [batch, time, n]) -> [batch, time, n] { buffer w: [n] = [0.5, 2, 1]  return x * w }"
    made = load_source(torch_source(text=text))
    with pytest.raises(AssertionError, match="n == 3: the first value of `w` has its shape"):
        made(vars(sys.modules[made.__module__])["Config"](n=4))


def test_two_draws_of_one_expression_differ() -> None:
    found = drawn(raw("normal(1) - normal(1)"))["w"]
    assert deviation(found) == pytest.approx(math.sqrt(2), rel=0.05)


# --- structure --------------------------------------------------------------------------------------------------------


def linears(graph: Graph, prefix: str = "") -> dict[int, str]:
    found: dict[int, str] = {}
    for node in graph.nodes:
        if isinstance(node, OpNode) and node.op.name in ("linear", "conv1d"):
            found[id(node)] = prefix + node.name
        if isinstance(node, OpNode):
            for call in node.blocks.values():
                found |= linears(call.block.graph, f"{prefix}{node.name}.")
        if isinstance(node, CallNode):
            found |= linears(node.block.graph, f"{prefix}{node.name}.")
        for inner in subgraphs(node):
            found |= linears(inner, prefix)
    return found


def ends(text: str) -> set[str]:
    model = load(text=text)
    names = linears(model.block.graph)
    return {names[i] for i in branch_ends(model.block)}


MODEL = "model m(x: [batch, time, 32]) {{\n{body}\n}}\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("  x += x -> mlp(hidden: 64)\n  return x -> linear(8) as head", {"mlp.down"}),
        ("  x = layernorm(x + (x -> linear(32) as a))\n  return x -> linear(8) as head", {"a"}),
        (
            "  h = x -> layernorm\n  x += (h -> mha(heads: 4)) + (h -> mlp(hidden: 64))\n  return x",
            {"mha.out", "mlp.down"},
        ),
        ("  x += 0.5 * (x -> linear(32) as a -> dropout(0.1))\n  return x", {"a"}),
        ("  h = tanh((x -> linear(32) as a) + (x -> linear(32) as b))\n  return h", set()),
        ("  x += x -> conv1d(32, kernel: 3, padding: same) as a\n  return x", {"a"}),
        (f"  x += x -> {EXPERTS}\n  return x", {"moe.experts.down"}),
        ("  x += x -> layernorm -> linear(32) as a -> layernorm\n  return x", set()),
        ("  for i in 2 { x += x -> linear(64) as a -> gelu -> linear(32) as b }\n  return x", {"b"}),
    ],
)
def test_ends_of_branches(body: str, expected: set[str]) -> None:
    assert ends(MODEL.format(body=body)) == expected


JOINED = {
    # How a branch meets what it was computed from: whether that is a residual connection.
    "x + ({b})": True,
    "({b}) + x": True,
    "x - ({b})": True,
    "0.5 * x + ({b})": True,
    "x + gate * ({b})": True,
    "(1 - gate) * x + gate * ({b})": True,
    "x + joined({b})": True,
    "summed(x, {b})": True,
    "x * ({b})": False,
    "x / ({b})": False,
    "maximum(x, {b})": False,
    "where(x > 0, x, {b})": False,
    "multiplied(x, {b})": False,
    "chosen(x, {b})": False,
    "other + ({b})": False,
    "({b}) + 1": False,
}
BRANCHES = {
    # A branch that ends with the layers `a`, `b`, or with none.
    "x -> linear(32) as a": "a",
    "x -> linear(64) as other -> gelu -> linear(32) as a": "a",
    "x -> conv1d(32, kernel: 3, padding: same) as a -> dropout(0.1)": "a",
    "-(x -> layernorm -> linear(32) as a)": "a",
    "scale * (x -> linear(32) as a) / 2": "a",
    "cast(x -> linear(32) as a, float32) -> cast_like(x)": "a",
    "(x -> linear(32) as a -> split_heads(4)) -> merge_heads": "a",
    "(x -> linear(32) as a) + (x -> linear(32) as b)": "ab",
    "(x -> linear(32) as a) - 2 * (x -> linear(64) as other -> relu -> linear(32) as b)": "ab",
    "x -> linear(32) as other -> gelu": "",
    "x -> linear(32) as other -> layernorm": "",
    "softmax(x)": "",
}


def test_a_branch_ends_where_its_sum_says() -> None:
    """Sums and differences join a branch, through what only scales or moves numbers; products, quotients and choices
    do not."""
    for form, residual in JOINED.items():
        for branch, named in BRANCHES.items():
            text = f"""
block joined(x: [..., width]) -> [..., width] {{ return 0.5 * x }}
block summed(x: [..., width], y: [..., width]) -> [..., width] {{ return y + 2 * x }}
block multiplied(x: [..., width], y: [..., width]) -> [..., width] {{ return y * x }}
block chosen(x: [..., width], y: [..., width]) -> [..., width] {{ return minimum(y, x) }}
model m(x: [batch, time, 32], other: [batch, time, 32]) {{
  param scale: [32] = constant(0.1)
  gate = x -> linear(32) as gate -> sigmoid
  return {form.format(b=branch)}
}}"""
            assert ends(text) == (set(named) if residual else set()), (form, branch)


def test_a_residual_of_another_block_is_one_too() -> None:
    text = """
block scaled(x: [..., width], y: [..., width]) -> [..., width] {
  param gain: [width] = constant(0.1)
  return x + gain * y
}
block layer {
  attention: mha(heads: 4)
  ffn: mlp(hidden: 64)
  residual: scaled
}
model m(x: [batch, time, 32]) { return x -> layer -> linear(8) as head }
"""
    assert ends(text) == {"layer.attention.out", "layer.ffn.down"}


def test_queries_and_keys_are_found_through_rotations_and_norms() -> None:
    text = MODEL.format(body="  return x -> gqa(heads: 4, kv_heads: 2, qk_norm: rmsnorm, position: rope)")
    model = load(text=text)
    (call,) = (n for n in model.block.graph.nodes if isinstance(n, CallNode))
    names = linears(call.block.graph)
    assert {names[i] for i in query_key_maps(call.block)} == {"q", "k"}


def test_weights_of_one_block_are_drawn_as_each_use_says() -> None:
    text = """
    block one(init)(x: [batch, time, 8]) -> [batch, time, 8] { return x -> linear(8, init: init) as w }
    model m(x: [batch, time, 8]) -> [batch, time, 8] {
      return x -> one(normal(0.5)) as a -> one(zeros) as b -> one(uniform(3)) as c
    }"""
    made: Any = archdsl.to_torch(text=text)
    a, b, c = (m.w.weight.abs().max() for m in (made.a, made.b, made.c))
    assert b == 0 < a < 2.2 < c <= 3


LAWS = {
    # What is drawn in an expression: its mean, its standard deviation, and how far it goes from the mean.
    "uniform(0.5)": (0, 0.5 / math.sqrt(3), 0.5),
    "normal(0.5)": (0, 0.5, 4),
    "normal(0.5, mean: 2)": (2, 0.5, 4),
    "truncated_normal(0.5)": (0, 0.5 * 0.8796, 1),
    "truncated_normal(0.5, limit: 1)": (0, 0.5 * 0.5396, 0.5),
    "constant(3)": (3, 0, 0),
}


@pytest.mark.parametrize("law", LAWS)
def test_what_is_drawn_in_an_expression_has_its_law(law: str, tmp_path: Path) -> None:
    """In the emitted module and in what is drawn without torch."""
    mean, deviation, far = LAWS[law]
    text = f"""model m(x: [batch, 100]) -> [batch, 100] {{
      param w: [200, 100] = 2 * {law} + 1
      return x * mean(w, axis: 0)
    }}"""
    draw(load(text=text), 3, "float32", tmp_path / "w.safetensors")
    torch.manual_seed(0)
    made: Any = archdsl.to_torch(text=text)
    for w in (made.w.detach(), load_torch(tmp_path / "w.safetensors")["w"]):
        assert w.mean().item() == pytest.approx(2 * mean + 1, abs=0.03)
        assert w.std().item() == pytest.approx(2 * deviation, abs=0.02)
        assert (w - (2 * mean + 1)).abs().max() <= 2 * far


@pytest.mark.parametrize(
    "value", ["constant(3) + 1", "constant(3) ** -1", "2 * indices(8)", "where(indices(8) < 2, 0, 1)"]
)
def test_constants_lie_where_the_inputs_do(value: str) -> None:
    text = f"model m(x: [batch, time, 8]) -> [batch, time, 8] {{ buffer w: [time, 8] = {value}  return x + w }}"
    made: Any = archdsl.to_torch(text=text)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert made(torch.empty(2, 5, 8, device="cuda")).device.type == "cuda"


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    model = archdsl.load(text="model m(x: [batch, 8]) -> [batch, 8] { return x -> linear(8) }")
    archdsl.init_weights(model, path)
    with Checkpoint(path) as found:
        info = next(w for w in saved(model) if w.path == "linear.weight")
        os.truncate(path, path.stat().st_size - 100)
        for read in (lambda: [*found.pieces(info)], lambda: found.bits(info.path)):
            with pytest.raises(archdsl.ArchError, match=r"E0503.*w.safetensors` ends within `linear.weight`"):
                read()
