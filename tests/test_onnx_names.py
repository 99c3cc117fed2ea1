"""What inputs and outputs of ONNX graphs are called, and the files that programs of others read beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx_tools import session
from runtime_tools import in_runtimes
from safetensors.torch import save_file
from zoo import tiny

import archdsl
from archdsl.backends.onnx.names import names_of
from archdsl.diagnostics import ArchError
from archdsl.passes.flat_step import unroll_step
from archdsl.passes.step import stepped

ENCODER = """
model encoder(width = 32, layers = 2)
             (a: token[batch, time], b: padding[batch, time], c: padding[batch, time]) -> [batch, time, width] {
  return a -> embedding(50, width) -> rmsnorm
}
"""


def graph_of(path: Path) -> onnxruntime.InferenceSession:
    return session(path)


def weights_of(name: str, folder: Path) -> tuple[torch.nn.Module, Path]:
    module = tiny.module(name).eval()
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: t.contiguous() for k, t in module.state_dict().items()}, folder / "model.safetensors")
    return module, folder / "model.safetensors"


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("llama3:llama3_8b", {"tokens": "input_ids"}, ["logits"]),
        (
            "bert:bert_sequence_classifier",
            {"tokens": "input_ids", "segments": "token_type_ids", "padding": "attention_mask"},
            ["logits"],
        ),
        (
            "t5:t5_small",
            {"source": "input_ids", "target": "decoder_input_ids", "padding": "attention_mask"},
            ["logits"],
        ),
        ("vit:vit_b16", {"pixels": "pixel_values"}, ["logits"]),
        ("conformer:conformer_s", {"real": "attention_mask"}, ["last_hidden_state"]),
        ("bert:bert_base", {"tokens": "input_ids", "segments": "token_type_ids", "padding": "attention_mask"}, None),
    ],
)
def test_inputs_are_called_as_hugging_face_calls_them(
    name: str, inputs: dict[str, str], outputs: list[str] | None
) -> None:
    names = names_of(tiny.graph(name), "hf")
    assert names.inputs == inputs
    assert list(names.outputs) == (outputs or ["logits", "output_1"])
    assert not names_of(tiny.graph(name), "spec").inputs


def test_names_that_two_inputs_would_have_stay() -> None:
    assert names_of(archdsl.load(text=ENCODER), "hf").inputs == {"a": "input_ids"}


@pytest.mark.parametrize("convention", ["hf", "spec"])
def test_masks_are_numbers_for_programs_and_booleans_for_specs(convention: Any, tmp_path: Path) -> None:
    name = "bert:bert_sequence_classifier"
    module, weights = weights_of(name, tmp_path)
    path = archdsl.to_onnx(tiny.graph(name), tmp_path / "m.onnx", weights=weights, names=convention).graphs[0]
    session, given = graph_of(path), tiny.inputs(tiny.graph(name))
    called = names_of(tiny.graph(name), convention)
    kinds = {i.name: i.type for i in session.get_inputs()}
    assert kinds[called.inputs.get("padding", "padding")] == ("tensor(int64)" if convention == "hf" else "tensor(bool)")
    feed = {
        called.inputs.get(n, n): x.long().numpy() if kinds.get("padding") is None else x.numpy()
        for n, x in given.items()
    }
    with torch.no_grad():
        np.testing.assert_allclose(session.run(None, feed)[0], module(**given).numpy(), atol=1e-5)
    dims = {d for i in session.get_inputs() for d in i.shape}
    assert dims == ({"batch_size", "sequence_length"} if convention == "hf" else {"batch", "time"})


# --- files beside the graph -------------------------------------------------------------------------------------------

OPTIMUM = """
import json, sys, torch
from optimum.onnxruntime import ORTModelForImageClassification, ORTModelForSequenceClassification
found = {}
for kind, folder in json.loads(sys.argv[1]).items():
    of = ORTModelForImageClassification if kind == "vit" else ORTModelForSequenceClassification
    model = of.from_pretrained(folder)
    given = {k: torch.tensor(x) for k, x in json.load(open(f"{folder}/inputs.json")).items()}
    found[kind] = [model(**given).logits.tolist(), model.config.num_labels]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_optimum_runs_encoders(tmp_path: Path) -> None:
    wanted, folders = {}, {}
    for kind, name in (("bert", "bert:bert_sequence_classifier"), ("vit", "vit:vit_b16")):
        module, weights = weights_of(name, tmp_path / f"{kind}.weights")
        archdsl.to_onnx(tiny.graph(name), tmp_path / kind, weights=weights)
        given = tiny.inputs(tiny.graph(name))
        called = names_of(tiny.graph(name), "hf").inputs
        numbers = {called[n]: (x.long() if x.dtype == torch.bool else x).tolist() for n, x in given.items()}
        (tmp_path / kind / "inputs.json").write_text(json.dumps(numbers))
        folders[kind] = str(tmp_path / kind)
        with torch.no_grad():
            wanted[kind] = module(**given).numpy()
    found = json.loads(in_runtimes(OPTIMUM, json.dumps(folders)).splitlines()[-1])
    for kind, (logits, labels) in found.items():
        np.testing.assert_allclose(logits, wanted[kind], atol=1e-5)
        assert labels == wanted[kind].shape[-1]


@pytest.mark.parametrize(
    ("name", "kind", "architecture"),
    [
        ("bert:bert_token_classifier", "bert", "BertForTokenClassification"),
        ("bert:bert_base", "bert", "BertForMaskedLM"),
        ("tagger:bilstm_tagger", "distilbert", "DistilBertForTokenClassification"),
        ("llama3:llama3_8b", None, None),
        ("t5:t5_small", None, None),
    ],
)
def test_a_config_says_which_class_runs_a_model(
    name: str, kind: str | None, architecture: str | None, tmp_path: Path
) -> None:
    files = archdsl.to_onnx(tiny.graph(name), tmp_path / "out", seed=0)
    assert [p.name for p in files.configs] == ([] if kind is None else ["config.json"])
    if kind is not None:
        config = json.loads(files.configs[0].read_text())
        assert (config["model_type"], config["architectures"]) == (kind, [architecture])


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("llama3:llama3_8b", {"target": "genai"}, "genai cannot run this graph"),
        ("rnn_lm:gru_lm", {"target": "optimum", "decode": True}, "optimum cannot run this graph"),
        ("t5:t5_small", {"target": "optimum"}, "optimum cannot run this graph"),
        ("bert:bert_base", {"target": "transformers.js"}, "does not read weights from safetensors"),
        ("bert:bert_base", {"target": "optimum", "output": "m.onnx"}, "looks for config.json beside the graph"),
        ("llama3:llama3_8b", {"target": "openvino", "dtype": "bfloat16"}, "does not run bfloat16"),
        ("llama3:llama3_8b", {"target": "openvino", "quantize": "int4"}, "has no operator for quantized weights"),
    ],
)
def test_what_a_named_program_cannot_run_is_an_error(
    name: str, options: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArchError, match=why) as refused:
        archdsl.to_onnx(tiny.graph(name), **{"output": "out/", "seed": 0, **options})
    assert [(d.code, bool(d.help)) for d in refused.value.diagnostics] == [("E0504", True)]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama3:llama3_8b", {"target": "genai", "decode": True}),
        ("bert:bert_base", {"target": "optimum"}),
        ("vit:vit_b16", {"target": "transformers.js", "store": "onnx_data"}),
        ("mamba:mamba_130m", {"target": "openvino", "dtype": "float16", "opset": 23}),
    ],
)
def test_what_a_named_program_can_run_is_written(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    files = archdsl.to_onnx(tiny.graph(name), tmp_path / "out", seed=0, **options)
    assert files.graphs[0].exists()
    if config := next((p for p in files.configs if p.name == "config.json"), None):
        told = json.loads(config.read_text())["transformers.js_config"]
        assert told == {"use_external_data_format": options.get("store") == "onnx_data"}


@pytest.mark.parametrize("beside", ["", "model.hf"])
def test_a_tokenizer_and_its_tokens_go_along(beside: str, tmp_path: Path) -> None:
    name = "llama3:llama3_8b"
    _, weights = weights_of(name, tmp_path / "from")
    folder = tmp_path / "from" / beside
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 900], "bos_token_id": 3}')
    files = archdsl.to_onnx(tiny.graph(name), tmp_path / "out", weights=weights, decode=True, bos_token_id=5)
    assert {p.name for p in files.configs} == {
        *("tokenizer.json", "tokenizer_config.json", "generation_config.json"),
        *("config.json", "genai_config.json"),
    }
    genai = json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]
    assert (genai["eos_token_id"], genai["bos_token_id"], genai["pad_token_id"]) == ([7], 5, 7)
    assert "ends" not in files.remark


@pytest.mark.parametrize("content", ["[]", "{", '{"eos_token_id": "x"}', '{"eos_token_id": null}'])
def test_a_file_that_names_no_tokens_is_none(content: str, tmp_path: Path) -> None:
    name = "llama3:llama3_8b"
    _, weights = weights_of(name, tmp_path / "from")
    (tmp_path / "from" / "generation_config.json").write_text(content)
    files = archdsl.to_onnx(tiny.graph(name), tmp_path / "out", weights=weights, decode=True)
    assert "no token is known to end a text" in files.remark
    assert "eos_token_id" not in json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]


def test_what_is_kept_is_numbered_layer_by_layer() -> None:
    recurrence = "x = scan h: [batch, 16] = 0 for a in x { h = h / 2 + a  emit h }"
    text = f"""model m(tokens: token[batch, time]) -> [batch, time, 20] {{
      x = tokens -> embedding(20, 16)
      for i in 2 {{
        {recurrence}
        x = x -> mha(heads: 2, mask: causal)
      }}
      {recurrence}
      return x -> linear(20)
    }}"""
    step = unroll_step(stepped(archdsl.load(text=text)))
    assert [k.layer for k in step.kept] == [0, 1, 1, 2, 3, 3, 4]
