"""`--native`: a model as the type of transformers that computes the same, found and proved from the graph."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_tools import Run
from zoo import sizes
from zoo.tiny_decoders import TINY

import archdsl
from archdsl.backends.torch import emit
from archdsl.diagnostics import ArchError
from archdsl.estimates.kinds import kind_of_model
from archdsl.interop.checkpoint_file import shipped
from archdsl.interop.config_json import architecture
from archdsl.interop.convert import import_folder
from archdsl.interop.native import native_type
from archdsl.run.load import load_source
from archdsl.weights.safetensors import saved

SPECS = Path(__file__).resolve().parents[2] / "specs"
FOUND = {
    "gpt2:gpt2": "gpt2",
    "llama2:llama2_7b": "llama",
    "llama3:llama3_8b": "llama",
    "mistral:mistral_7b": "mistral",
    "mixtral:mixtral_8x7b": "mixtral",
    "bloom:bloom_560m": "bloom",
    "gptj:gptj_6b": "gptj",  # whose weights have other names in the family
    "deepseek_llm:deepseek_llm_7b": "llama",
    "deepseek_v3:deepseek_v3": "deepseek_v3",  # whose layers are of two kinds
}


def tiny(name: str) -> Any:
    return archdsl.load(f"{SPECS}/{name.replace(':', '.arch:')}", set=TINY[name])


@pytest.mark.parametrize("name", FOUND)
def test_transformers_own_class_computes_the_same(name: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = tiny(name)
    archdsl.init_weights(model, tmp_path / "own.safetensors", seed=1)
    files = archdsl.to_huggingface(model, tmp_path / "hf", weights=tmp_path / "own.safetensors", native=True)
    assert [f.name for f in files] == ["model.safetensors", "config.json"]
    assert sorted(f.name for f in (tmp_path / "hf").iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    kind = FOUND[name]
    assert (config["model_type"], config["architectures"]) == (kind, [architecture(shipped()[kind], kind)])
    plain = load_source(emit(model))().eval()
    plain.load_state_dict(load_file(tmp_path / "own.safetensors"))
    tokens = torch.randint(0, 97, (2, 13))
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()(tokens).logits
        assert float((found - plain(tokens)).abs().max()) < 1e-5


IMPORTED: tuple[str, ...] = ("exaone4", "bert", "t5")
"""A decoder of several kinds of layers, an encoder, two sequences."""
if sizes.every:
    IMPORTED += ("lfm2", "smollm3", "gemma2", "gpt_neo", "qwen3_next", "bert-states", "electra", "vit")


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPORTED)
def test_what_was_imported_is_the_type_that_it_was(name: str, tmp_path: Path) -> None:
    """Tensors to the byte, and the class: of decoders, encoders and their heads, and of two sequences."""
    from interop.cases import CASES
    from safetensors.torch import load_file

    CASES[name].made().save_pretrained(tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "m.arch")
    archdsl.to_huggingface(tmp_path / "m.arch", tmp_path / "back", weights=tmp_path / "m.safetensors", native=True)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == (CASES[name].kind, [CASES[name].model])
    theirs, back = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "back"))
    assert theirs.keys() == back.keys()
    assert all(torch.equal(tensor, back[n]) for n, tensor in theirs.items())


def test_an_encoder_of_sentences_comes_out_as_it_came_in(tmp_path: Path, run: Run) -> None:
    """By the command, without an option: the class, the tensors, and the files of sentence-transformers beside them."""
    from interop.cases import CASES
    from safetensors.torch import load_file

    source = tmp_path / "in"
    CASES["bert-states"].made().save_pretrained(source)
    (source / "1_Pooling").mkdir()
    beside = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
    for name in beside:
        (source / name).write_text(f'{{"name": "{name}"}}')
    import_folder(source, tmp_path / "m.arch")
    weights, out = tmp_path / "m.safetensors", tmp_path / "out"
    done = run("compile", str(tmp_path / "m.arch"), "--weights", str(weights), "--to", "hf", "-o", str(out))
    assert (done.status, done.err) == (0, "")
    assert all((out / name).read_text() == (source / name).read_text() for name in beside)
    assert json.loads((out / "config.json").read_text())["architectures"] == ["BertModel"]
    theirs, back = (load_file(folder / "model.safetensors") for folder in (source, out))
    assert theirs.keys() == back.keys()
    assert all(torch.equal(tensor, back[name]) for name, tensor in theirs.items())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gptj", "mixtral", "granite", "cohere", "starcoder2"])
def test_a_family_is_found_among_those_with_its_names(kind: str) -> None:
    """Many families have Llama's weights, and some compute what others do: the plainest is named."""
    text = (SPECS / "hf" / f"{kind}.arch").read_text().replace(f"model {kind}(", "model m(")
    assert native_type(archdsl.load(text=text, set={"layers": 2})).kind == kind


def test_a_model_that_is_like_a_type_and_computes_something_else_is_refused() -> None:
    text = (SPECS / "mistral.arch").read_text().replace("swiglu", "geglu")
    said = r"is not a known type of transformers; the nearest are(.|\n)*`mistral` computes `silu` where the model"
    with pytest.raises(ArchError, match=said) as raised:
        native_type(archdsl.load(text=text, set=TINY["mistral:mistral_7b"]))
    nearest = re.findall(r"`(\w+)`", raised.value.diagnostics[0].message.partition("nearest")[2])
    known = [shipped()[kind] for kind in nearest]
    assert {kind_of_model(archdsl.load(m.spec, model=m.types[k])) for m, k in zip(known, nearest, strict=True)} == {
        "decoder"
    }


def test_a_folder_is_a_type_where_there_is_one_and_remote_code_where_not(tmp_path: Path, run: Run) -> None:
    """Unless an option says which of the two. The head of remote code says the command that writes it again."""
    same, other = tmp_path / "same.arch", tmp_path / "other.arch"
    text = (SPECS / "mistral.arch").read_text()
    same.write_text(text)
    other.write_text(text.replace("swiglu", "geglu"))
    sizes = [f"--set={name}={value}" for name, value in TINY["mistral:mistral_7b"].items()]

    def compiled(spec: Path, name: str, *options: str) -> tuple[int, set[str], str]:
        folder = tmp_path / name
        done = run("compile", f"{spec}:mistral_7b", *sizes, "--to", "hf", *options, "-o", str(folder))
        return done.status, {path.name for path in folder.iterdir()} if folder.exists() else set(), done.err

    code = {"config.json", "configuration_mistral_7b.py", "modeling_mistral_7b.py"}
    assert compiled(same, "type") == (0, {"config.json"}, "")
    assert compiled(same, "demanded", "--native") == (0, {"config.json"}, "")
    assert compiled(same, "code", "--remote-code") == (0, code, "")
    status, files, said = compiled(other, "without", "--seed", "3", "--eos-token-id", "5")
    assert (status, files) == (0, {*code, "model.safetensors", "generation_config.json"})
    assert said.count("\n") == 1
    assert "(the nearest: `mistral` computes `silu` where the model computes `gelu`): written as remote code" in said
    head = (tmp_path / "without" / "modeling_mistral_7b.py").read_text().partition("import")[0]
    assert "--to hf --remote-code --seed=3 --eos-token-id=5" in head.replace(" \\\n   ", "")
    status, files, said = compiled(other, "refused", "--native")
    assert (status, files, "error[E0534]" in said) == (2, set(), True)
    status, files, said = compiled(same, "both", "--native", "--remote-code")
    assert (status, files, "choose one" in said) == (2, set(), True)


def test_a_model_that_is_neither_says_both(tmp_path: Path) -> None:
    with pytest.raises(ArchError) as raised:
        archdsl.to_huggingface(f"{SPECS}/bert.arch", tmp_path / "hf", set={"layers": 2})
    (problem,) = raised.value.diagnostics
    assert "more than one output" in problem.message
    assert any("is not a known type of transformers; the nearest are `bert`" in note for note in problem.notes)
    assert not (tmp_path / "hf").exists()


ENCODERS = ("bart", "electra", "rembert", "roberta", "roformer")
"""Under a causal head they are no models of ours."""


def test_classes_have_the_names_that_transformers_gives_them() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    named = {kind for kind, m in shipped().items() if any(f.names[0] == "architectures" for f in m.fields)}
    decoders = {kind: m for kind, m in shipped().items() if kind in NAMES and kind not in named}
    assert {k: architecture(m, k) for k, m in decoders.items()} == {k: NAMES[k] for k in decoders}


QWEN = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 96, "vocab": 97, "context": 64}
SIZES = TINY | {"hf/qwen2:qwen2": QWEN, "hf/qwen3:qwen3": QWEN | {"head_dim": 128}}  # which transformers takes it to be


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, "float32") for n in ("llama2:llama2_7b", "hf/qwen2:qwen2", "hf/qwen3:qwen3")]
    + [("llama2:llama2_7b", n) for n in ("float16", "bfloat16")],
)
def test_a_gguf_file_is_one_that_transformers_reads(name: str, dtype: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from archdsl.interop.gguf_write import write_gguf

    model = archdsl.load(f"{SPECS}/{name.replace(':', '.arch:')}", set=SIZES[name])
    archdsl.init_weights(model, tmp_path / "own.safetensors", seed=1, dtype=dtype)
    assert write_gguf(model, tmp_path / "own.safetensors", tmp_path / "own.gguf") == len(saved(model))
    own = load_file(tmp_path / "own.safetensors")
    plain = load_source(emit(model))().eval()
    plain.load_state_dict(own)
    tokens = torch.randint(0, 97, (2, 13))
    with torch.no_grad():
        read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="own.gguf", dtype=torch.float32)
        found = read.eval()(tokens).logits
        assert float((found - plain(tokens)).abs().max()) < 1e-5
    import_folder(tmp_path / "own.gguf", tmp_path / "again.arch")
    again = load_file(tmp_path / "again.safetensors")
    assert all(again[name].float().equal(tensor.float()) for name, tensor in own.items())


def test_a_scaled_rope_has_no_place_in_a_gguf_file(tmp_path: Path) -> None:
    from archdsl.interop.gguf_write import write_gguf

    archdsl.init_weights(tiny("llama3:llama3_8b"), tmp_path / "own.safetensors")
    with pytest.raises(ArchError, match=r"is not a known type of llama\.cpp"):
        write_gguf(tiny("llama3:llama3_8b"), tmp_path / "own.safetensors", tmp_path / "own.gguf")
    assert not (tmp_path / "own.gguf").exists()
