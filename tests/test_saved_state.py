"""Buffers that belong to the state and learn nothing: `given` and `saved(…)`, of every type, in both back ends, in
files, and in what is counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx_tools import session
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import archdsl
from archdsl.api import load, to_torch, torch_source
from archdsl.diagnostics import ArchError
from archdsl.ir.text import print_model
from archdsl.weights.safetensors import arrays, draw

SPEC = """
block hashed(h: size, layer: number)(x: [batch, time, width], ids: int[batch, time]) -> [batch, time, width] {
  buffer table: int[vocab_, 2] = given
  buffer real: bool[width]     = given
  buffer freq: [width]         = given
  buffer scalar: []            = saved(layer / 2)
  buffer wide: float32[width]  = saved(1 / (1 + indices(width)))
  buffer counts: int[h]        = saved([3, 1, 4, 1])
  buffer open: bool[width]     = saved(indices(width) < h)
  buffer gone: [width]         = ones
  param rows: [h, width]       = normal(1)
  y = rows[table[ids % vocab_]] -> sum(axis: -2)
  x = where(real, x, y) * scalar + freq + (wide -> cast_like(x)) * gone
  return where(open, x, -x) + x * counts[0]
}
model m(h = 4, width = 8, layers = 2)(tokens: token[batch, time]) -> [batch, time, 16] {
  x = tokens -> embedding(16, width)
  for layer in layers { x = x -> hashed(tokens, h: h, layer: layer + 1) }
  return x -> linear(16)
}
""".replace("vocab_", "5")
KEPT = {
    "table": ("I64", (5, 2)),
    "real": ("BOOL", (8,)),
    "freq": ("F32", (8,)),
    "scalar": ("F32", ()),
    "wide": ("F32", (8,)),
    "counts": ("I64", (4,)),
    "open": ("BOOL", (8,)),
}
TOKENS = np.arange(12, dtype=np.int64).reshape(2, 6)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A checkpoint of the model, with numbers of its own in what is given."""
    dice, state = np.random.default_rng(0), to_torch(text=SPEC).state_dict()
    for i in range(2):
        state[f"hashed.{i}.table"] = torch.from_numpy(dice.integers(0, 4, (5, 2)))
        state[f"hashed.{i}.real"] = torch.from_numpy(dice.random(8) < 0.5)
        state[f"hashed.{i}.freq"] = torch.from_numpy(dice.random(8, np.float32))
        state[f"hashed.{i}.counts"] += 1
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "own.safetensors")
    return tmp_path / "own.safetensors"


def expected(state: dict[str, torch.Tensor]) -> Any:
    """What the model computes, in numpy."""
    s = {k: v.numpy() for k, v in state.items()}
    x = s["embedding.weight"][TOKENS]
    for i in range(2):
        own = {k.removeprefix(f"hashed.{i}."): v for k, v in s.items()}
        y = own["rows"][own["table"][TOKENS % 5]].sum(-2)
        x = np.where(own["real"], x, y) * own["scalar"] + own["freq"] + own["wide"]
        x = np.where(own["open"], x, -x) + x * own["counts"][0]
    return x @ s["linear.weight"].T + s["linear.bias"]


def test_they_start_as_said_and_as_zeros_where_they_are_given(tmp_path: Path) -> None:
    draw(load(text=SPEC), 0, "float32", tmp_path / "w.safetensors")
    module, drawn = to_torch(text=SPEC), load_file(tmp_path / "w.safetensors")
    state, buffers = module.state_dict(), dict(module.named_buffers())
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        for name, (kind, shape) in KEPT.items():
            key = f"hashed.1.{name}"
            assert (file.get_slice(key).get_dtype(), tuple(file.get_slice(key).get_shape())) == (kind, shape)
            assert torch.equal(state[key], drawn[key])
            assert state[key].dtype == drawn[key].dtype
            assert key in buffers
    assert not any("gone" in key for key in state.keys() | drawn.keys())
    assert not any(state[f"hashed.0.{name}"].any() for name in ("table", "real", "freq"))
    assert [state[f"hashed.{i}.scalar"].item() for i in range(2)] == [0.5, 1]
    assert state["hashed.0.counts"].tolist() == [3, 1, 4, 1]
    assert state["hashed.0.open"].tolist() == [True] * 4 + [False] * 4
    module.load_state_dict(drawn, strict=True)
    assert {k: v.dtype for k, v in arrays(load(text=SPEC), 0) if "real" in k} == {
        f"hashed.{i}.real": np.dtype(bool) for i in range(2)
    }


@pytest.mark.parametrize("store", ["safetensors", "onnx_data", "inline"])
def test_torch_and_onnx_read_them_from_a_checkpoint(store: Any, weights: Path, tmp_path: Path) -> None:
    state = load_file(weights)
    module = to_torch(text=SPEC)
    module.load_state_dict(state, strict=True)
    want = expected(state)
    with torch.no_grad():
        np.testing.assert_allclose(module(torch.from_numpy(TOKENS)).numpy(), want, rtol=1e-5, atol=1e-5)
    archdsl.to_onnx(text=SPEC, output=tmp_path / "out" / "m.onnx", weights=weights, store=store, names="spec")
    found = session(tmp_path / "out" / "m.onnx").run(None, {"tokens": TOKENS})[0]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


def test_verify_tries_what_is_given() -> None:
    """With zeros all outputs would be zero, and nothing compared; whole numbers may be indices."""
    text = """
model m(tokens: token[batch, time]) -> [batch, time, 4] {
  buffer table: int[9] = given
  buffer rates: [4] = given
  buffer real: bool[4] = given
  param rows: [2, 4] = normal(1)
  return rows[table[tokens % 9]] * rates + where(real, 1, 0)
}
"""
    report = archdsl.verify(text=text)
    assert report.agrees
    assert report.outputs
    plain = torch_source(text=text)
    assert plain == torch_source(text=text)  # what is tried is nowhere in what is emitted
    assert not to_torch(text=text)(torch.zeros(1, 3, dtype=torch.long)).any()


def test_another_config_has_others(weights: Path) -> None:
    module = to_torch(text=SPEC, set={"width": 16, "layers": 3, "h": 4})
    assert module.state_dict()["hashed.2.freq"].shape == (16,)
    assert module.state_dict()["hashed.2.scalar"].item() == 1.5


def test_files_in_and_out(weights: Path, tmp_path: Path) -> None:
    """Under other names, and in an edited spec: bit by bit, in their types."""
    own = load_file(weights)
    save_file({f"old.{k}": v for k, v in own.items()}, tmp_path / "old.safetensors")
    archdsl.import_weights(
        None, tmp_path / "old.safetensors", tmp_path / "new.safetensors", text=SPEC, renames={"old.": ""}
    )
    new = load_file(tmp_path / "new.safetensors")
    assert all(torch.equal(new[k], v) and new[k].dtype == v.dtype for k, v in own.items())
    edited = SPEC.replace("linear(16)", "linear(16) -> linear(16) as more")
    lines = archdsl.import_weights(None, weights, tmp_path / "more.safetensors", text=edited, init_missing=True)
    more = load_file(tmp_path / "more.safetensors")
    assert any("initialized: more" in line for line in lines)
    assert all(torch.equal(more[k], v) and more[k].dtype == v.dtype for k, v in own.items())


def test_a_folder_of_transformers_has_them(tmp_path: Path) -> None:
    text = """
block kept(x: [..., width], branch: [..., width]) -> [..., width] {
  buffer real: bool[width] = given
  buffer scale: [1] = given
  buffer order: int[width] = saved(indices(width))
  return x + where(real, branch * scale, branch) * order
}
block layer { attention: mha(heads: 2)  mask: causal  ffn: mlp(hidden: 8)  residual: kept }
model m { vocab: 32  context: 16  width: 8  blocks: 2 * layer  head: lm }
"""
    module = to_torch(text=text).eval()
    state = module.state_dict()
    assert {k: str(v.dtype) for k, v in state.items() if "ffn_residual" in k and ".0." in k} == {
        "blocks.0.ffn_residual.real": "torch.bool",
        "blocks.0.ffn_residual.scale": "torch.float32",
        "blocks.0.ffn_residual.order": "torch.int64",
    }
    for i in range(2):
        state[f"blocks.{i}.ffn_residual.real"][::2] = True
        state[f"blocks.{i}.ffn_residual.scale"] += 0.5 + i
        state[f"blocks.{i}.ffn_residual.order"] += 2
    save_file({k: v.clone() for k, v in state.items()}, tmp_path / "own.safetensors")
    archdsl.to_huggingface(text=text, output=tmp_path / "hf", weights=tmp_path / "own.safetensors")
    archdsl.import_weights(None, tmp_path / "hf", tmp_path / "back.safetensors", text=text)
    back = load_file(tmp_path / "back.safetensors")
    assert all(torch.equal(back[k], v) and back[k].dtype == v.dtype for k, v in state.items())
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=True).eval()
    module.load_state_dict(state)
    tokens = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, module(tokens))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("table", torch.float32),
        ("table", torch.bool),
        ("table", torch.int32),
        ("real", torch.int64),
        ("real", torch.uint8),
        ("freq", torch.int64),
        ("freq", torch.bool),
    ],
)
def test_numbers_of_another_kind_are_refused(name: str, other: torch.dtype, weights: Path, tmp_path: Path) -> None:
    state = load_file(weights)
    state[f"hashed.1.{name}"] = state[f"hashed.1.{name}"].to(other)
    save_file(state, tmp_path / "wrong.safetensors")
    with pytest.raises(ArchError) as caught:
        archdsl.to_onnx(text=SPEC, output=tmp_path / "out" / "m.onnx", weights=tmp_path / "wrong.safetensors")
    assert [d.code for d in caught.value.diagnostics] == ["E0503"]
    with pytest.raises(ArchError) as caught:
        archdsl.import_weights(None, tmp_path / "wrong.safetensors", tmp_path / "x.safetensors", text=SPEC)
    assert [d.code for d in caught.value.diagnostics] == ["E0532"]


def test_they_are_counted_and_are_no_parameters() -> None:
    model, module = load(text=SPEC), to_torch(text=SPEC)
    report = archdsl.estimate(model)
    saved = {k: v for k, v in module.state_dict().items() if k in dict(module.named_buffers())}
    assert report.params.buffers == sum(v.numel() for v in saved.values()) == 2 * (10 + 8 + 8 + 1 + 8 + 4 + 8)
    assert report.params.total == sum(p.numel() for p in module.parameters())
    held = archdsl.memory(model, dtype="float32")
    assert held.buffers == sum(b.numel() * b.element_size() for b in module.buffers())
    half = archdsl.memory(model, dtype="bfloat16")
    floats = sum(b.numel() for b in module.buffers() if b.is_floating_point())
    assert half.buffers == held.buffers - 2 * floats
    shown = print_model(model)
    assert "%table: int[5, 2] = buffer table given" in shown
    assert "buffer counts saved(expression)" in shown
    assert "buffer gone ones" in shown


@pytest.mark.parametrize(
    ("statements", "code"),
    [
        ("param w: [8] = given  return x * w", "E0203"),
        ("param w: [8] = saved(ones)  return x * w", "E0203"),
        ("buffer w: [8] = saved  return x * w", "E0205"),
        ("buffer w: [8] = saved()  return x * w", "E0205"),
        ("buffer w: [8] = saved(ones, 2)  return x * w", "E0205"),
        ("buffer w: [8] = saved(value: 2)  return x * w", "E0205"),
        ("buffer w: [8] = saved(saved(2))  return x * w", "E0206"),
        ("buffer w: [8] = saved(given)  return x * w", "E0203"),
        ("buffer w: [8] = given(ones)  return x * w", "E0205"),
        ("buffer w: [8] = 2 * given  return x * w", "E0203"),
        ("buffer w: [time] = given  return x * unsqueeze(w, -1)", "E0402"),
        ("buffer w: [time] = saved(ones)  return x * unsqueeze(w, -1)", "E0402"),
        ("buffer w: int[8] = saved(0.5)  return x * w", "E0203"),
        ("buffer w: bool[8] = saved(normal(1))  return where(w, x, 0)", "E0203"),
        ("buffer w: [...] = given  return x * w", "E0203"),
    ],
)
def test_what_is_refused(statements: str, code: str) -> None:
    with pytest.raises(ArchError) as caught:
        load(text=f"model m(x: [batch, time, 8]) -> [batch, time, 8] {{ {statements} }}")
    assert [d.code for d in caught.value.diagnostics] == [code]


def test_the_words_can_still_be_names() -> None:
    text = """
let given = 3
block scaled(saved: number)(x: [..., width]) -> [..., width] {
  buffer a: [width] = given
  buffer b: [width] = saved
  return x * a + b
}
model m(x: [batch, time, 8]) { return x -> scaled(saved: 2) }
"""
    module = to_torch(text=text)
    assert not module.state_dict()
    assert torch.equal(module(torch.ones(1, 2, 8)), torch.full((1, 2, 8), 5.0))
