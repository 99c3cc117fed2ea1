"""An encoder and a decoder as optimum runs them, compared with the emitted module; transformers.js runs the same files
in `benchmarks/clients.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from decode_tools import module_of
from onnx_tools import session
from runtime_tools import in_runtimes
from safetensors.torch import save_file
from zoo.tiny import graph

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.ir.graph import Model

BART = {"layers": 2, "decoder_layers": 3, "width": 32, "heads": 2, "decoder_heads": 4, "hidden": 48}
T5 = {"layers": 2, "width": 32, "heads": 2, "head_dim": 16, "hidden": 48, "vocab": 96}
COUNT = 8
ROWS = [[5, 17, 60, 41, 9, 3], [33, 2, 88, 0, 0, 0]]
MASK = [[1] * 6, [1, 1, 1, 0, 0, 0]]

OPTIMUM = """
import json, sys, torch
from optimum.onnxruntime import ORTModelForSeq2SeqLM
count, found = int(sys.argv[2]), {}
for folder, (rows, mask) in json.loads(sys.argv[1]).items():
    model = ORTModelForSeq2SeqLM.from_pretrained(folder)
    made = model.generate(torch.tensor(rows), attention_mask=torch.tensor(mask), max_new_tokens=count, num_beams=1)
    found[folder] = made.tolist()
print(json.dumps(found))
"""


def models() -> dict[str, Model]:
    bart = archdsl.load("hf/bart", set=BART | {"decoder_hidden": 40, "vocab": 97, "context": 64})
    t5, short = archdsl.load("t5_small", set=T5), archdsl.load("t5_small", set=T5 | {"layers": 1})
    return {"t5": t5, "one layer": short, "transformer": graph("transformer:transformer_base"), "bart": bart}


def written(model: Model, folder: Path, target: str = "optimum") -> torch.nn.Module:
    """Write the folder with the weights of an emitted module; return that."""
    module = module_of(model)
    save_file({k: t.contiguous() for k, t in module.state_dict().items()}, folder.with_suffix(".safetensors"))
    weights = folder.with_suffix(".safetensors")
    archdsl.to_onnx(
        model, folder, decode=True, weights=weights, target=target, store="inline", bos_token_id=1, pad_token_id=0
    )
    return module


def greedy(model: Model, module: torch.nn.Module, count: int) -> list[list[int]]:
    """The likeliest tokens behind token 1, the whole sequence anew each time."""
    names = {v.dtype: n for n, v in model.inputs}
    source = next(n for n, v in model.inputs if v.dtype == "token")
    given = {source: torch.tensor(ROWS), names["padding"]: torch.tensor(MASK).bool()}
    ids = torch.ones(len(ROWS), 1, dtype=torch.long)
    for _ in range(count):
        with torch.no_grad():
            ids = torch.cat([ids, module(**given, **{names["token"]: ids})[:, -1:].argmax(-1)], 1)
    return ids.tolist()


def test_optimum_says_what_pytorch_says(tmp_path: Path) -> None:
    wanted = {}
    for name, model in models().items():
        wanted[str(tmp_path / name)] = greedy(model, written(model, tmp_path / name), COUNT)
    given = json.dumps({folder: [ROWS, MASK] for folder in wanted})
    assert json.loads(in_runtimes(OPTIMUM, given, str(COUNT)).splitlines()[-1]) == wanted


@pytest.mark.parametrize("name", [*models()])
def test_a_step_computes_what_it_is_not_given(name: str, tmp_path: Path) -> None:
    """Keys and values of the encoder come from what it gives the first time, and are handed on after that: then what
    the encoder gives is not looked at."""
    model = models()[name]
    module = written(model, tmp_path / name, "transformers.js")

    def opened(file: str) -> onnxruntime.InferenceSession:
        return session(tmp_path / name / f"{file}.onnx")

    encoder, step = opened("encoder_model"), opened("decoder_model_merged")
    mask = np.array(MASK)
    (hidden,) = encoder.run(["last_hidden_state"], {"input_ids": np.array(ROWS), "attention_mask": mask})
    pasts = {i.name: i.shape for i in step.get_inputs() if "past" in i.name}
    layers = len(pasts) // 4
    ends = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
    assert [*pasts] == [f"past_key_values.{i}.{end}" for i in range(layers) for end in ends]
    ids = np.ones((len(ROWS), 1), np.int64)
    state = {n: np.zeros((len(ROWS), s[1], 0, s[3]), np.float32) for n, s in pasts.items()}
    for _ in range(3):
        feed = {"input_ids": ids[:, -1:], "encoder_attention_mask": mask, "encoder_hidden_states": hidden}
        logits, *presents = step.run(None, feed | state)
        names = [o.name.replace("present", "past_key_values") for o in step.get_outputs()[1:]]
        state, hidden = dict(zip(names, presents, strict=True)), np.full_like(hidden, np.nan)
        ids = np.concatenate([ids, logits[:, -1:].argmax(-1)], 1)
    assert ids.tolist() == greedy(model, module, 3)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("seq2seq_attention:seq2seq", "not every layer keeps keys and values"),
        ("hf/whisper", "its encoder reads more than tokens"),
    ],
)
def test_what_the_programs_cannot_run_is_said(spec: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ArchError) as refused:
        archdsl.to_onnx(spec, tmp_path / "x", decode=True, seed=0, target="optimum")
    assert refused.value.diagnostics[0].message == "optimum cannot run this graph"
    assert why in refused.value.diagnostics[0].notes[0]
    assert not (tmp_path / "x").exists()


OWN = """
block encoder(x: [batch, source, 16]) -> [...] {{ return x + (x -> mha(heads: 2)) }}
block decoder(x: [batch, time, 16], m: [batch, source, 16], n: [batch, source, 16]) -> [batch, time, 16] {{
  x += x -> mha(heads: 2, mask: causal)
  k = m -> linear(16) -> split_heads(2)
  return x + (sdpa(x -> linear(16) -> split_heads(2), k, n -> linear(16) -> split_heads(2)) -> merge_heads)
}}
model m(text: token[batch, source], {inputs}) {{
  y = text -> embedding(40, 16)
  x = {start}
  {body}
  return x -> linear(40)
}}
"""
TARGET, START = "target: token[batch, time]", "target -> embedding(40, 16)"


@pytest.mark.parametrize(
    ("inputs", "start", "body", "why"),
    [
        (
            f"{TARGET}, e: [batch, time, 16]",
            f"({START}) + e",
            "x = decoder(x, y, y)",
            "its decoder reads more than tokens",
        ),
        (
            TARGET,
            START,
            "n = (text -> embedding(40, 16)) -> encoder\n x = decoder(x, y, n)",
            "reads several tensors of its encoder",
        ),
    ],
)
def test_decoders_that_the_programs_cannot_run(inputs: str, start: str, body: str, why: str, tmp_path: Path) -> None:
    spec = OWN.format(inputs=inputs, start=start, body=body)
    with pytest.raises(ArchError) as refused:
        archdsl.to_onnx(text=spec, output=tmp_path / "x", decode=True, seed=0, target="optimum")
    assert why in refused.value.diagnostics[0].notes[0]


def test_transformers_js_wants_weights_inside(tmp_path: Path) -> None:
    model = models()["transformer"]
    options: dict[str, Any] = {"decode": True, "seed": 0, "target": "transformers.js", "store": "onnx_data"}
    with pytest.raises(ArchError, match="beside it") as refused:
        archdsl.to_onnx(model, tmp_path / "x", **options)
    assert refused.value.diagnostics[0].help == "`--store inline`"
    assert not (tmp_path / "x").exists()
