"""`archdsl import --lift`: a checkpoint of a type without a mapping comes in by transformers' own class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cli_tools import Run
from safetensors.torch import load_file, save_file

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.interop.checkpoint_file import shipped
from archdsl.interop.compare import class_name, converted, own_class
from archdsl.interop.convert import ImportReport, import_folder
from archdsl.interop.huggingface import RUNS_CODE, without_code

transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
SIZES: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "num_key_value_heads", "eos_token_id"), 2),
    "bos_token_id": 1,
    "vocab_size": 96,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny checkpoint in several files, of a type without a mapping, with code that nobody may run."""
    assert "jais2" not in shipped()
    torch.manual_seed(0)
    config = transformers.Jais2Config(**SIZES, head_dim=12, intermediate_size=80)
    module: Any = transformers.Jais2ForCausalLM(config)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):  # which the class sets to zero
            torch.nn.init.normal_(parameter)
    module.save_pretrained(tmp_path / "hf", max_shard_size="40KB")
    fields = json.loads((tmp_path / "hf" / "config.json").read_text())
    fields["auto_map"] = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "own.Own")
    (tmp_path / "hf" / "config.json").write_text(json.dumps(fields))
    (tmp_path / "hf" / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    return tmp_path / "hf"


@pytest.mark.slow
def test_a_type_without_a_mapping_is_lifted(folder: Path, tmp_path: Path, run: Run) -> None:
    assert len([*folder.glob("*.safetensors")]) > 1
    done = run("import", folder, "--lift", "--check", "-o", tmp_path / "m.arch", "--json")
    report = json.loads(done.out)
    assert done.status == 0, done.err
    assert report["model_type"] == "jais2"
    assert report["family"] is None
    assert report["lift"]["module"] == "transformers:Jais2ForCausalLM"
    assert all(check["passed"] for check in report["lift"]["checks"])
    assert report["difference"] < 1e-5
    assert (tmp_path / "m.hf" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert (tmp_path / "m.checkpoint").exists()
    assert not (tmp_path / "ran").exists()
    assert "reading" not in done.err  # with transformers: the tensors have the names and shapes of the class

    report["lift"]["checks"][1] |= {"passed": False, "message": "it differs"}
    found = ImportReport.model_validate(report).disagreement()
    assert found is not None
    assert (found.code, found.message) == ("E0548", "`m` is unverified: it differs")

    ours: Any = archdsl.to_torch(tmp_path / "m.arch").eval()
    ours.load_state_dict(load_file(tmp_path / "m.safetensors"))
    theirs: Any = transformers.Jais2ForCausalLM.from_pretrained(folder)
    tokens = torch.randint(0, 96, (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


def refused(source: Path, output: Path, **options: Any) -> str:
    """The message of an import, which writes nothing."""
    before = {*output.parent.rglob("*")}
    with pytest.raises(ArchError) as raised:
        import_folder(source, output, lift=True, **options)
    assert {*output.parent.rglob("*")} == before
    return str(raised.value)


def test_the_diagnostic_of_an_unknown_type_offers_it(folder: Path, tmp_path: Path, run: Run) -> None:
    done = run("import", folder, "-o", tmp_path / "m.arch")
    assert done.status == 2
    assert "no mapping for `model_type` jais2" in done.err
    assert "`--lift` makes a spec of transformers' own class" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mapping": "llama"}, "`mapping` goes with a mapping, and `lift` needs none"),
        ({"ignore": ["mlp_bias"]}, "`ignore` goes with a mapping, and `lift` needs none"),
        ({"tolerance": 1e-3}, "`tolerance` goes with `check`"),
        ({"check": True, "weights": False}, "`check` compares outputs"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together(options: dict[str, Any], message: str, folder: Path, tmp_path: Path) -> None:
    assert message in refused(folder, tmp_path / "m.arch", **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["OwnForCausalLM"], "model_type": "own"}, "has no decoder of `model_type` own"),
        ({"architectures": 3, "model_type": ["jais2"]}, "has no decoder of `model_type` ['jais2']"),
        ({"architectures": ["LlamaForCausalLM"]}, "`LlamaForCausalLM` is of `llama`, and the config of `jais2`"),
        ({"num_hidden_layers": 10**12}, "the config has more than 10,000 in `num_hidden_layers`"),
        ({"hidden_size": "import os"}, "cannot be made of this config"),
        ({"quantization_config": {"bits": 4}}, "the checkpoint is quantized"),
    ],
    ids=str,
)
def test_a_config_that_no_class_takes(fields: dict[str, Any], message: str, folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    assert message in refused(folder, tmp_path / "m.arch")


def test_no_gguf_file_and_no_missing_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert "a GGUF file has none" in refused(tmp_path / "m.gguf", tmp_path / "m.arch")
    with pytest.raises(FileNotFoundError):
        import_folder(folder, tmp_path / "none" / "m.arch", lift=True)


def test_the_class_of_a_config() -> None:
    assert class_name({"architectures": ["Jais2Model"], "model_type": "jais2"}) == "Jais2Model"
    assert class_name({"architectures": ["Unknown"], "model_type": "jais2"}) == "Jais2ForCausalLM"
    assert class_name({"model_type": "jais2"}) == "Jais2ForCausalLM"
    for name in ("AutoConfig", "Jais2Config", "__name__", "models.jais2", "pipeline", ""):
        assert own_class([name]) is None, name


def test_fields_that_name_code_are_left_out_at_any_depth() -> None:
    code = dict.fromkeys(RUNS_CODE, "somebody/kernels")
    assert without_code({**code, "a": 1, "text_config": {**code, "b": [2]}}) == {"a": 1, "text_config": {"b": [2]}}


def test_tensors_that_a_class_holds_as_one(tmp_path: Path) -> None:
    """Experts lie apart in a folder, and in one tensor of the class, whose names the table of a lift has."""
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SIZES, intermediate_size=40, num_local_experts=3, dtype="bfloat16")
    module: Any = transformers.MixtralForCausalLM(config).bfloat16()
    module.save_pretrained(tmp_path)
    stored, state = load_file(tmp_path / "model.safetensors"), module.state_dict()
    assert {*stored} != {*state}
    found = converted(tmp_path)
    assert {*found} == {*state}
    assert all(found[name].dtype == torch.bfloat16 and torch.equal(found[name], state[name]) for name in state)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ArchError, match=r"E0533.*MixtralForCausalLM has `model.norm.weight`, which the checkpoint lacks"
    ):
        converted(tmp_path)
