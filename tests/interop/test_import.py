"""Checkpoints of `transformers` as specs with weights, and back: counts, logits, bytes, config and the spec itself."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cache
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cli_tools import Run
from interop.cases import CASES
from safetensors.torch import load_file, save_file

import archdsl
from archdsl.api import import_weights
from archdsl.diagnostics import ArchError
from archdsl.estimates.counts import total
from archdsl.frontend.load import load
from archdsl.interop import compare
from archdsl.interop.checkpoint_file import read
from archdsl.interop.convert import convert_from, convert_to, import_folder, named_mapping
from archdsl.interop.doubts import doubts
from archdsl.interop.gguf import GgufFile
from archdsl.interop.gguf_write import PREFIX, write_gguf
from archdsl.interop.huggingface import config_fields, config_of, settings_of
from archdsl.interop.importing import CONSTANTS
from archdsl.interop.mapping import Mapper, pattern
from archdsl.interop.native import native_type
from archdsl.interop.values import ValueMap
from archdsl.packages import install
from archdsl.resources import error_page, mapping_files
from archdsl.weights.carried import files_beside_tensors

transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
each_case = pytest.mark.parametrize("name", CASES)
BESIDE = {
    "chat_template.jinja": "{{ messages[0]['content'] }}",
    "additional_chat_templates/tool_use.jinja": "{{ tools }}",
    "tokenizer_config.json": '{"chat_template": "{{ messages }}",  "tokenizer_class": "PreTrainedTokenizerFast"}',
    "tokenizer.json": '{"model": "none that can be read"}',
    "vocab.txt": "[PAD]\nword",
    "LICENSE": "of one's own",
}
NOT_CARRIED = ("README.md", "modeling_own.py", "onnx/config.json")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a tiny model, saved once."""
    root = tmp_path_factory.mktemp("hf")

    @cache
    def saved(name: str) -> Path:
        CASES[name].made().save_pretrained(root / name)
        furnished(root / name)
        return root / name

    return saved


def furnished(folder: Path) -> None:
    """Put into a folder what published ones hold beside tensors: files, names of classes, rates of dropout."""
    for name, content in BESIDE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    labels = [f"kind {i}" for i in range(len(config.get("id2label", "ab")))]
    config |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    rates = [n for n, v in config.items() if re.fullmatch(r".*dropout.*|.*_pdrop", n) and type(v) in (int, float)]
    path.write_text(json.dumps(config | dict.fromkeys(rates, 0.125)))


@pytest.mark.slow
@each_case
def test_there_and_back(name: str, folders: Any, tmp_path: Path) -> None:
    """Logits equal transformers'; exported tensors are theirs to the byte; what is imported again is the same spec."""
    folder = folders(name)
    report = import_folder(folder, tmp_path / "m.arch", check=True)
    assert report.difference is not None
    assert report.difference < CASES[name].tolerance
    assert report.doubts == []
    model = load(tmp_path / "m.arch")
    assert model.name == "m"
    every = load_file(folder / "model.safetensors")
    count = convert_to(model, tmp_path / "m.safetensors", tmp_path / "back", CASES[name].kind)
    back = load_file(tmp_path / "back" / "model.safetensors")
    theirs = {n: t for n, t in every.items() if n in back or not is_dropped(name, n)}
    assert report.parameters in parameters(name, theirs)
    assert count == len(theirs)
    assert back.keys() == theirs.keys()
    assert all(torch.equal(back[n], t) for n, t in theirs.items())
    (tmp_path / "again").mkdir()
    import_folder(tmp_path / "back", tmp_path / "again" / "m.arch", weights=False)  # the tensors are those above
    assert body(tmp_path / "again" / "m.arch") == body(tmp_path / "m.arch")
    demand_same_beside_tensors(folder, tmp_path / "back")


def demand_same_beside_tensors(one: Path, two: Path) -> None:
    """Every file is there to the byte, and transformers reads the same config."""
    files = {n: path.read_bytes() for n, path in files_beside_tensors(one).items() if n != "config.json"}
    assert files.keys() >= BESIDE.keys()
    assert files == {n: (two / n).read_bytes() for n in files}
    configs = [transformers.AutoConfig.from_pretrained(folder) for folder in (one, two)]
    fields = [{n: v for n, v in config.to_dict().items() if n != "_name_or_path"} for config in configs]
    assert fields[0] == fields[1]


def is_dropped(name: str, tensor: str) -> bool:
    """Whether a mapping drops a tensor of theirs by name."""
    found = named_mapping(CASES[name].kind)
    return any(pattern(d).fullmatch(n) for d in found.drops for n in (tensor, found.base + tensor))


def parameters(name: str, tensors: dict[str, torch.Tensor]) -> tuple[int, int]:
    """How many numbers of a model are learned, and how many there are in its checkpoint: a bias that chooses experts is
    not learned on either side, one of logits on theirs alone."""
    case = CASES[name]
    cls = getattr(transformers, case.model)
    with torch.device("meta"):
        model = cls(cls.config_class(**case.config))
    return sum(p.numel() for p in model.parameters() if p.requires_grad), sum(t.numel() for t in tensors.values())


def body(path: Path) -> str:
    """A spec without the comment that says where it comes from."""
    return path.read_text().partition("\n")[2]


def test_every_mapping_can_be_read_and_has_its_spec() -> None:
    for path in mapping_files():
        found = read(path)
        if found.types:
            for model in found.types.values():
                load(found.spec, model=model)


@pytest.mark.parametrize("kind", sorted({case.kind for case in CASES.values()}))
def test_defaults_are_those_of_the_class(kind: str) -> None:
    """What a config leaves out is what its class has."""
    found = named_mapping(kind)
    case = next(case for case in CASES.values() if case.kind == kind)
    config = getattr(transformers, case.model).config_class().to_dict()
    leaves = dict(config_fields(json.loads(json.dumps(config, default=str))))
    ours: set[str] = set()
    compared = 0
    for f in found.fields:
        theirs = next((leaves[n] for n in f.names if leaves.get(n) is not None), None)
        own = json.loads(f.default or "null")
        named = f.ours if f.ours.isidentifier() and f.ours not in CONSTANTS else f.names[0]
        first = named not in ours
        ours.add(named)
        if own is not None and theirs is not None and first and f.names[0] not in CHOSEN:
            compared += 1
            assert theirs == own, f.names[0]
    assert compared


CHOSEN = ("architectures",)
"""A class for a type."""


def test_the_page_lists_every_type() -> None:
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|") and "`specs/" in line]
    listed = [kind for row in rows for kind in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(kind for path in mapping_files() for kind in read(path).types)


# --- what lies beside tensors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
def test_a_native_folder_is_the_one_that_came_in(kind: str, folders: Any, tmp_path: Path) -> None:
    import_folder(folders(kind), tmp_path / "m.arch")
    archdsl.to_huggingface(tmp_path / "m.arch", tmp_path / "hf", weights=tmp_path / "m.safetensors", native=True)
    demand_same_beside_tensors(folders(kind), tmp_path / "hf")


def test_remote_code_comes_with_all_but_dropout(folders: Any, tmp_path: Path, run: Run) -> None:
    """What the classes do not do is said."""
    import_folder(changed(folders("gpt2"), tmp_path / "in", eos_token_id=[2, 3], pad_token_id=5), tmp_path / "m.arch")
    weights = str(tmp_path / "m.safetensors")
    into = ("--to", "hf", "--remote-code", "-o", str(tmp_path / "hf"))
    done = run("compile", str(tmp_path / "m.arch"), "--weights", weights, *into)
    assert "dropout in training is the spec's, 0.1; the checkpoint's config has attn_pdrop 0.125" in done.err
    for name, content in BESIDE.items():
        assert (tmp_path / "hf" / name).read_text() == content
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    assert (config.eos_token_id, config.bos_token_id, config.pad_token_id) == ([2, 3], 1, 5)
    assert (config.id2label, config.dtype) == ({0: "kind 0", 1: "kind 1"}, torch.float32)
    convert_from(load(tmp_path / "m.arch"), tmp_path / "hf", tmp_path / "trained.safetensors")
    files = files_beside_tensors(tmp_path / "trained.hf")
    assert files.keys() >= BESIDE.keys() | {"generation_config.json"} - {"config.json"}
    (tmp_path / "hf" / "config.json").unlink()
    convert_to(load(tmp_path / "m.arch"), tmp_path / "trained.safetensors", tmp_path / "back")
    demand_same_beside_tensors(tmp_path / "in", tmp_path / "back")  # the config is that beside the spec


def test_a_spec_that_was_changed_keeps_what_is_said_of_texts(folders: Any, tmp_path: Path) -> None:
    import_folder(folders("bert-classes"), tmp_path / "m.arch")
    text = (tmp_path / "m.arch").read_text()
    for old, new, labels in (("eps = 1e-12", "eps = 1e-6", 5), ("classes: 5", "classes: 3", 3)):
        assert old in text
        (tmp_path / "m.arch").write_text(text.replace(old, new))
        archdsl.init_weights(tmp_path / "m.arch", tmp_path / "m.safetensors", dtype="bfloat16")
        convert_to(load(tmp_path / "m.arch"), tmp_path / "m.safetensors", tmp_path / "back", "bert")
        config = transformers.AutoConfig.from_pretrained(tmp_path / "back")
        assert (config.hidden_dropout_prob, config.num_labels, config.dtype) == (0.125, labels, torch.bfloat16)
        assert config.id2label[0] == ("kind 0" if labels == 5 else "LABEL_0")
        assert config.layer_norm_eps == (1e-6 if labels == 5 else 1e-12)


def test_a_folder_of_files_is_that_of_the_last_import(folders: Any, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(folders("llama"), source)
    for name in NOT_CARRIED:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("# nothing")
    (source / "onnx" / "model.onnx").write_bytes(b"")
    import_folder(source, tmp_path / "m.arch")
    assert {*files_beside_tensors(tmp_path / "m.hf")} == {*BESIDE, "config.json", "generation_config.json"}
    (source / "chat_template.jinja").unlink()
    import_folder(source, tmp_path / "m.arch")
    assert not (tmp_path / "m.hf" / "chat_template.jinja").exists()


# --- what is wrong ----------------------------------------------------------------------------------------------------


def changed(folder: Path, target: Path, tensors: Any = None, **config: Any) -> Path:
    """A copy of a folder with other tensors or another config."""
    shutil.copytree(folder, target)
    if tensors is not None:
        save_file(tensors(load_file(folder / "model.safetensors")), target / "model.safetensors")
    if config:
        fields = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(fields | config))
    return target


def refused(folder: Path, tmp_path: Path, **more: Any) -> str:
    """The message, and nothing is written."""
    before = {*tmp_path.rglob("*")}
    with pytest.raises(ArchError) as raised:
        import_folder(folder, tmp_path / "m.arch", **more)
    assert {*tmp_path.rglob("*")} == before
    return str(raised.value)


def without(*names: str) -> Any:
    return lambda tensors: {n: t for n, t in tensors.items() if n not in names}


UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (without(UP), {}, f"lacks 1 of 21 tensors: `{UP}`"),
        (lambda t: t | {"model.extra": t[UP].clone()}, {}, "match no weight of the spec: `model.extra`"),
        (lambda t: t | {UP: t[UP][:-1].clone()}, {}, f"`{UP}` is [79, 48], and the spec makes it [80, 48]"),
        (lambda t: t | {UP: t[UP].to(torch.int8)}, {}, "holds numbers of type I8"),
        (
            lambda t: t | {UP: t[UP].long()},
            {},
            "holds whole numbers for `blocks.0.ffn.up.weight`, which is of real numbers",
        ),
        (None, {"tie_word_embeddings": True}, "differ, and the spec has one tensor for both"),
        (None, {"num_key_value_heads": 4}, "`model.layers.0.self_attn.k_proj.weight` is [24, 48]"),
        (None, {"hidden_act": "relu"}, '`hidden_act` of config.json is "relu", and the spec has "silu"'),
        (None, {"hidden_act": ["silu"]}, '`hidden_act` of config.json is ["silu"], and the spec has "silu"'),
        (None, {"attention_multiplier": 0.5}, "has no place for `attention_multiplier: 0.5`"),
        (None, {"quantization_config": {"bits": 4}}, "the checkpoint is quantized"),
        (None, {"model_type": "llamma"}, "no mapping for `model_type` llamma"),
        (None, {"model_type": None}, "has no `model_type`"),
        (None, {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}}, "rope_type"),
        (None, {"hidden_size": "import os"}, "import os"),
        (
            None,
            {"intermediate_size": 0.5},
            "`intermediate_size` of config.json is 0.5, and `hidden` of",
        ),
        (None, {"max_position_embeddings": {}}, "`max_position_embeddings` of config.json is {}"),
        (None, {"num_hidden_layers": 10**12}, "E0"),
        (None, {"num_hidden_layers": 10**400}, "E0"),
        (None, {"rms_norm_eps": {"__float__": "Infinity"}}, "E0"),
        (None, {"rms_norm_eps": {"__float__": []}}, "is not JSON"),
        (None, {"is_decoder": True}, "has no place for `is_decoder: true`"),
        (None, {"layer_types": ["linear_attention"]}, "has no place for `layer_types"),
    ],
)
def test_what_does_not_fit_is_refused(tensors: Any, config: Any, message: str, folders: Any, tmp_path: Path) -> None:
    folder = changed(folders("llama"), tmp_path / "hf", tensors, **config)
    assert message in refused(folder, tmp_path)


def test_layers_told_by_letters(folders: Any, tmp_path: Path) -> None:
    """A list with a kind for each layer, and a word with a letter for each, say the same, and how many there are."""
    import_folder(folders("nemotron_h"), tmp_path / "m.arch")
    (tmp_path / "other").mkdir()
    letters = {"layers_block_type": None, "hybrid_override_pattern": "M-*EM-"}
    import_folder(changed(folders("nemotron_h"), tmp_path / "hf", **letters), tmp_path / "other" / "m.arch")
    assert body(tmp_path / "other" / "m.arch") == body(tmp_path / "m.arch")
    short = changed(folders("nemotron_h"), tmp_path / "short", **letters, num_hidden_layers=5)
    assert "config.json has 6 kinds of layers for 5 layers" in refused(short, tmp_path)


LLAMA4_LAYERS: list[tuple[dict[str, Any], str]] = [
    ({}, "layers / 4 * (3 * near + far)"),
    ({"interleave_moe_layer_step": 2}, "layers / 4 * (near_dense + near + near_dense + far)"),
    ({"moe_layers": [], "interleave_moe_layer_step": 1}, "layers / 4 * (3 * near_dense + far_dense)"),
    ({"moe_layers": [0], "no_rope_layers": [0, 1, 1, 0]}, "layers / 4 * (far + 2 * near_dense + far_dense)"),
    ({"moe_layers": [3, 1], "no_rope_layers": []}, "layers / 4 * (near_dense + near + near_dense + far)"),
    ({"no_rope_layer_interval": 2}, "layers / 2 * (near + far)"),
    ({"layer_types": 4 * ["full_attention"], "no_rope_layers": 4 * [0]}, "layers * far"),
    ({"layer_types": 4 * ["full_attention"]}, "layer 0 is as `near`, by the fields before it as `far`"),
    ({"layer_types": 3 * ["full_attention"]}, "`layer_types` of config.json has 3 kinds of layers for 4 layers"),
    ({"no_rope_layers": [1, 0]}, "`no_rope_layers` of config.json has 2 kinds of layers for 4 layers"),
    ({"no_rope_layers": [], "num_hidden_layers": 0.5}, "`num_hidden_layers` of config.json is 0.5"),
    ({"moe_layers": [4]}, "`moe_layers` of config.json has 4, and the family has 4 layers"),
    ({"interleave_moe_layer_step": 0}, "`interleave_moe_layer_step` of config.json has 0"),
]


@pytest.mark.parametrize(("fields", "layers"), LLAMA4_LAYERS, ids=str)
def test_a_layer_is_what_all_fields_say(fields: dict[str, Any], layers: str, tmp_path: Path) -> None:
    """Of a config with few fields, whose others are the class's defaults; transformers makes the same modules."""
    config = {"model_type": "llama4_text", **CASES["llama4_text"].config, **fields}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if not layers.startswith("layers "):
        assert layers in refused(tmp_path / "config.json", tmp_path)
        return
    import_folder(tmp_path / "config.json", tmp_path / "m.arch")
    text = (tmp_path / "m.arch").read_text()
    assert f"blocks:  {layers}\n" in text
    with torch.device("meta"):
        theirs = transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**config))
    assert total(load(text=text)) == sum(p.numel() for p in theirs.parameters())
    exported = config_of(named_mapping("llama4_text"), "llama4_text", load(text=text))
    again = transformers.Llama4TextConfig(**exported)
    names = ("layer_types", "no_rope_layers", "moe_layers")
    assert [sorted(getattr(again, n)) if n == "moe_layers" else getattr(again, n) for n in names] == [
        sorted(getattr(theirs.config, n)) if n == "moe_layers" else getattr(theirs.config, n) for n in names
    ]


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "hunyuan_v1_dense", "deepseek_v3", "gemma3_text", "olmo3"])
def test_two_ropes_in_one_config_are_refused(kind: str) -> None:
    """What is called `rope_scaling` replaces all of `rope_parameters` in transformers."""
    config = json.loads(CASES[kind].made().config.to_json_string(use_diff=False))
    for older in ({"rope_type": "linear", "factor": 2.0}, {"beta_fast": 4}):
        with pytest.raises(ArchError, match="has `rope_parameters` and `rope_scaling`"):
            settings_of(named_mapping(kind), config | {"rope_scaling": older})
    settings_of(named_mapping(kind), config | {"rope_scaling": None})


NAMES = ("decoder", "eps", "rope", "causal", "gqa", "if", "true", "inf", "llama", "width", "3b", "gpt-2.5", "_")


def test_any_name_of_a_file_is_a_model(folders: Any, tmp_path: Path) -> None:
    """Words of the language, names of the library and those that a family's own file declares."""
    for name in NAMES:
        report = import_folder(folders("llama") / "config.json", tmp_path / f"{name}.arch", weights=False)
        assert load(report.spec).name in (name, f"model_{name}", "gpt_2_5", "model_model")


def test_null_is_no_default(folders: Any, tmp_path: Path) -> None:
    """A field that is null is not the default of a class that has another: no window is none of 4096 places."""
    import_folder(changed(folders("mistral"), tmp_path / "hf", sliding_window=None), tmp_path / "m.arch")
    assert "window" not in body(tmp_path / "m.arch")
    null = changed(folders("cohere2"), tmp_path / "null", sliding_window=None)
    assert "`sliding_window` of config.json is null, and `window` of the family is a whole" in refused(null, tmp_path)


def test_files_that_are_none(folders: Any, tmp_path: Path) -> None:
    folder = changed(folders("llama"), tmp_path / "hf")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "E0503" in refused(folder, tmp_path)
    file.rename(folder / "pytorch_model.bin")
    assert "holds 0 safetensors files" in refused(folder, tmp_path)
    for index in ("{", "[]", '{"weight_map": 3}', "{}"):
        (folder / "model.safetensors.index.json").write_text(index)
        assert "has no `weight_map` of tensors to files" in refused(folder, tmp_path)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    assert "outside of its folder" in refused(folder, tmp_path)
    (folder / "config.json").write_text("{")
    assert "is not JSON" in refused(folder, tmp_path)
    (folder / "config.json").unlink()
    assert "cannot be read" in refused(folder, tmp_path)


def test_one_file_of_tensors_may_have_any_name(folders: Any, tmp_path: Path) -> None:
    folder = changed(folders("llama"), tmp_path / "hf")
    (folder / "model.safetensors").rename(folder / "own.safetensors")
    for source, name in ((folders("llama"), "one"), (folder, "other")):
        import_folder(source, tmp_path / f"{name}.arch")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "other.safetensors").read_bytes()


def test_old_files_without_a_prefix_and_with_masks(folders: Any, tmp_path: Path) -> None:
    """What the Hub has of GPT-2: `h.0…` for `transformer.h.0…`, and masks that no model reads."""

    def old(tensors: Any) -> Any:
        bare = {n.removeprefix("transformer."): t for n, t in tensors.items()}
        return bare | {"h.0.attn.bias": torch.ones(1, 1, 8, 8), "lm_head.weight": bare["wte.weight"].clone()}

    folder = changed(folders("gpt2"), tmp_path / "hf", old)
    found = import_folder(folder, tmp_path / "m.arch")
    wanted = import_folder(folders("gpt2"), tmp_path / "other.arch")
    assert found.tensors == wanted.tensors
    ours, others = load_file(tmp_path / "m.safetensors"), load_file(tmp_path / "other.safetensors")
    assert all(torch.equal(ours[n], t) for n, t in others.items())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_one_file_and_other_prefixes(kind: str, folders: Any, tmp_path: Path, run: Run) -> None:
    """What a training loop saved: our names under a wrapper's, or theirs, in a file without a config."""
    import_folder(folders(kind), tmp_path / "m.arch")
    wanted = load_file(tmp_path / "m.safetensors")
    save_file({f"_orig_mod.{name}": t for name, t in wanted.items()}, tmp_path / "compiled.safetensors")
    theirs = load_file(folders(kind) / "model.safetensors")
    save_file({f"backbone.{name}": t for name, t in theirs.items()}, tmp_path / "theirs.safetensors")
    spec, out = str(tmp_path / "m.arch"), tmp_path / "out.safetensors"
    compiled = ("weights", spec, "--from", "hf", str(tmp_path / "compiled.safetensors"), "-o", str(out))
    other = ("weights", spec, "--from", "hf", str(tmp_path / "theirs.safetensors"), "-o", str(out), "--map", kind)
    twice = ("--rename", "_orig_mod.=", "--rename", "_orig_mod.=x.")  # the first that fits is taken
    for command in ((*compiled, "--rename", "_orig_mod.="), (*compiled, *twice), (*other, "--rename", "backbone.=")):
        assert run(*command)[0] == 0
        found = load_file(out)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[n], t) for n, t in wanted.items())
        out.unlink()
    for renames, message in (
        ((), f"lacks {len(wanted)} of {len(wanted)} tensors"),
        (("--rename", "_orig_mod."), "OLD=NEW"),
        (("--rename", "_orig_mod.=", "--rename", "module.="), "no tensor of the checkpoint starts with `module.`"),
        (("--rename", "_orig_mod.blocks.0.=x.", "--rename", "_orig_mod.blocks.1.=x."), "would both be"),
    ):
        code, _, said = run(*compiled, *renames)
        assert code != 0
        assert message in said
    assert not out.exists()
    assert run("weights", spec, "--to", "hf", "--weights", str(tmp_path / "m.safetensors"), "--rename", "a=b")[0] == 2


def test_what_is_in_doubt_is_said(folders: Any, tmp_path: Path, run: Run) -> None:
    """A mapping of one's own whose sizes agree, gate and up exchanged."""
    own = own_mapping(tmp_path, ("mlp.{gate,up,down}_proj", "mlp.{up,gate,down}_proj"))
    import_folder(folders("llama"), tmp_path / "m.arch")
    spec, out = str(tmp_path / "m.arch"), str(tmp_path / "out.safetensors")
    code, _, said = run("weights", spec, "--from", "hf", str(folders("llama")), "-o", out, "--map", own)
    assert code == 0
    assert "in doubt: `model.layers.*.mlp.up_proj.weight` is given to `blocks.*.ffn.gate.weight`" in " ".join(
        said.split()
    )
    told: list[tuple[str, bool]] = []
    after = tmp_path / "after.safetensors"
    lines = import_weights(
        spec, folders("llama"), after, mapping=own, remark=lambda x: told.append((x, after.exists()))
    )
    assert [(line[:8], written) for line, written in told] == [("in doubt", False)]
    assert len(lines) == 1


def test_a_difference_above_the_tolerance_is_an_error(folders: Any, tmp_path: Path, run: Run) -> None:
    """The exit status says it, and the finding what was written; a tolerance of one's own may take it."""
    own = own_mapping(tmp_path, ("mlp.{gate,up,down}_proj", "mlp.{up,gate,down}_proj"))
    command = ("import", str(folders("llama")), "-o", str(tmp_path / "m.arch"), "--map", own, "--check")
    code, printed, said = run(*command, "--json")
    report = json.loads(printed)
    assert code == 1
    assert report["difference"] > report["tolerance"] == 1e-4
    assert "E0535" in said
    assert str(tmp_path / "m.safetensors") in "".join(said.split())
    assert {path.name for path in tmp_path.iterdir()} >= {"m.arch", "m.safetensors"}
    assert run(*command, "--tolerance", "10")[0] == 0
    assert run(*command[:-1], "--tolerance", "10")[0] == 2


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("LlamaModel", "LlamaModel returns nothing of shape [2, 32, 96]"),
        ("LlamaForSequenceClassification", "has `score.weight`, which the checkpoint lacks"),
        ("MistralForCausalLM", "`MistralForCausalLM` of its config is of `mistral`, and the config of `llama`"),
    ],
)
def test_a_check_with_another_class_than_the_spec_is_of(
    architecture: str, message: str, folders: Any, tmp_path: Path
) -> None:
    folder = changed(folders("llama"), tmp_path / "hf", architectures=[architecture])
    with pytest.raises(ArchError) as raised:
        import_folder(folder, tmp_path / "m.arch", check=True)
    [found] = raised.value.diagnostics
    assert (found.code, message in found.message) == ("E0533", True), found.message
    assert found.notes[-1].startswith("written, and kept: ")


def test_a_check_gives_every_input() -> None:
    model = load("m.arch", text="model m(own: [batch, time, 4]) -> [...] {\n  return own -> silu\n}\n", model="m")
    with pytest.raises(ArchError, match=r"E0533\]: LlamaForCausalLM has no input for `own`"):
        compare._inputs(model, CASES["llama"].made())


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_check_needs_packages(package: str, folders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = refused(folders("llama"), tmp_path, check=True)
    assert f"error[E0502]: `--check` needs {package}, which is not installed" in message


@pytest.mark.parametrize(("number", "code", "said"), [(0.0, "E0533", "all numbers are zero"), (nan, "E0535", "by inf")])
def test_a_check_does_not_call_equal_what_it_has_not_compared(
    number: float, code: str, said: str, folders: Any, tmp_path: Path, run: Run
) -> None:
    """Both sides give zeros, or NaN, whatever the other weights are."""
    folder = tmp_path / "of_one_number"
    shutil.copytree(folders("llama"), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"].fill_(number)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    status, _, told = run("import", str(folder), "-o", str(tmp_path / "m.arch"), "--check")
    assert status == (2 if code == "E0533" else 1)
    assert code in told
    assert said in " ".join(told.split())
    assert (tmp_path / "m.safetensors").exists()


def own_mapping(folder: Path, *changes: tuple[str, str]) -> str:
    """The path of Llama's mapping with some texts in place of others."""
    files = {path.stem: path.read_text() for path in mapping_files()}
    text = files["llama"]
    while found := re.search(r'include "(\w+)\.checkpoint"', text):
        text = text.replace(found[0], files[found[1]])
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    family = next(path for path in mapping_files() if path.stem == "llama").with_suffix(".arch")
    (folder / "own.checkpoint").write_text(f'spec "{family}"\n{text}')
    return str(folder / "own.checkpoint")


NORM = "input_layernorm = attention_norm"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    ("function", "wanted"),
    [("add(1)", lambda x: x + 1), ("times(-0.5)", lambda x: -0.5 * x), ("neg_exp", lambda x: -x.exp())],
)
def test_numbers_that_are_others_in_the_spec(
    function: str, wanted: Any, dtype: torch.dtype, folders: Any, tmp_path: Path
) -> None:
    def typed(tensors: Any) -> Any:
        return {n: t.to(dtype) for n, t in tensors.items()}

    folder, out = changed(folders("llama"), tmp_path / "hf", typed), tmp_path / "out.safetensors"
    import_folder(folders("llama"), tmp_path / "m.arch")
    model = load(tmp_path / "m.arch")
    own = own_mapping(tmp_path, (NORM, f"input_layernorm.weight -> {function} = attention_norm.weight"))
    convert_from(model, folder, out, own)
    theirs, ours = load_file(folder / "model.safetensors"), load_file(out)
    assert any("attention_norm" in name for name in ours)
    for name, tensor in ours.items():
        path = name.replace("blocks", "model.layers").replace("attention_norm", "input_layernorm")
        if "attention_norm" in name:
            torch.testing.assert_close(tensor, wanted(theirs[path].double()).to(dtype))
        else:
            assert any(tensor.equal(t) for t in theirs.values())
    convert_to(model, out, tmp_path / "back", own)
    back = load_file(tmp_path / "back" / "model.safetensors")
    for name, tensor in theirs.items():
        near = {"rtol": 0.02, "atol": 0.01} if dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(back[name], tensor, **near)
        assert "input_layernorm" in name or back[name].equal(tensor)


@pytest.mark.parametrize(
    ("function", "message"),
    [("half", "there is no function `half`"), ("add", "has other arguments"), ("times(0)", "has other arguments")],
)
def test_functions_that_are_none(function: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArchError, match=message):
        read(Path(own_mapping(tmp_path, (NORM, f"input_layernorm -> {function} = attention_norm"))))


def test_functions_are_for_real_numbers() -> None:
    whole = torch.arange(3).numpy()
    for made in (ValueMap("add", 1.0).to_ours, ValueMap("add", 1.0).to_theirs):
        with pytest.raises(ArchError, match=r"E0532\]: `places` holds whole numbers, and `add` is for real ones"):
            made(whole, "I64", "places")


def test_pieces_of_one_tensor_are_of_one_type(folders: Any, tmp_path: Path) -> None:
    import_folder(folders("gpt2"), tmp_path / "m.arch")
    tensors = load_file(tmp_path / "m.safetensors")
    tensors["blocks.1.attention.k.weight"] = tensors["blocks.1.attention.k.weight"].half()
    save_file(tensors, tmp_path / "mixed.safetensors")
    spec, mixed = tmp_path / "m.arch", tmp_path / "mixed.safetensors"
    message = r"E0532\]: `blocks.1.attention.q.weight` and `blocks.1.attention.k.weight` are one tensor there"
    with pytest.raises(ArchError, match=message):
        convert_to(load(spec), mixed, tmp_path / "there", "gpt2")
    with pytest.raises(ArchError, match=message):
        archdsl.to_huggingface(spec, tmp_path / "native", weights=mixed, native=True)
    assert not [*tmp_path.glob("*/*.safetensors")]


def test_numbers_that_a_function_does_not_come_to(folders: Any, tmp_path: Path) -> None:
    import_folder(folders("llama"), tmp_path / "m.arch")  # gains about 1, which no -exp(x) is
    own = own_mapping(tmp_path, (NORM, "input_layernorm -> neg_exp = attention_norm"))
    with pytest.raises(ArchError, match="does not come to"):
        convert_to(load(tmp_path / "m.arch"), tmp_path / "m.safetensors", tmp_path / "back", own)
    assert not [*(tmp_path / "back").glob("*.safetensors")]


def test_several_files_and_types(folders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards with an index are read and written; a bfloat16 checkpoint stays one."""
    folder = folders("mixtral")
    half = changed(folder, tmp_path / "half", lambda t: {n: x.bfloat16() for n, x in t.items()})
    import_folder(half, tmp_path / "m.arch")
    monkeypatch.setattr("archdsl.interop.huggingface.SHARD", 20_000)
    model = load(tmp_path / "m.arch")
    convert_to(model, tmp_path / "m.safetensors", tmp_path / "back", "mixtral")
    assert len([*(tmp_path / "back").glob("*.safetensors")]) > 2
    import_folder(tmp_path / "back", tmp_path / "again.arch")
    first, again = load_file(tmp_path / "m.safetensors"), load_file(tmp_path / "again.safetensors")
    assert {t.dtype for t in first.values()} == {torch.bfloat16}
    assert all(torch.equal(again[n], t) for n, t in first.items())


def test_kinds_of_layers(folders: Any, tmp_path: Path) -> None:
    """Each list of kinds is the sum that repeats; those of other lengths and other kinds are refused."""
    wanted = {
        "fff": "layers * far",
        "ssf": "layers / 3 * (2 * near + far)",
        "sfsfs": "layers // 2 * (near + far) + layers % 2 * near",
        "fsss": "layers / 4 * (far + 3 * near)",
        "sf" * 3: "layers / 2 * (near + far)",
    }
    kinds = {"s": "sliding_attention", "f": "full_attention"}
    (tmp_path / "hf").mkdir()
    config = json.loads((folders("gemma2") / "config.json").read_text())
    for letters, text in wanted.items():
        fields = config | {"num_hidden_layers": len(letters), "layer_types": [kinds[k] for k in letters]}
        (tmp_path / "hf" / "config.json").write_text(json.dumps(fields))
        import_folder(tmp_path / "hf" / "config.json", tmp_path / "m.arch")
        spec = (tmp_path / "m.arch").read_text()
        assert text in re.sub(r"\((layers \S+ \d)\)", r"\1", spec)
        assert ("let near" in spec) == ("s" in letters)
        exported = config_of(named_mapping("gemma2"), "gemma2", load(tmp_path / "m.arch"))
        assert exported["layer_types"] == fields["layer_types"]
    (tmp_path / "m.arch").unlink()
    for fields, message in (
        ({"layer_types": ["full_attention"]}, "1 kinds of layers for 2 layers"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, '`layer_types` of config.json has "chunked_'),
        ({"layer_types": "full_attention"}, "`layer_types` of config.json has"),
        ({"layer_types": [["full_attention"], {}]}, "`layer_types` of config.json has"),
        (
            {"layer_types": 20_000 * ["full_attention"], "num_hidden_layers": 20_000},
            "`num_hidden_layers` of config.json",
        ),
    ):
        (tmp_path / "hf" / "config.json").write_text(json.dumps(config | fields))
        assert message in refused(tmp_path / "hf" / "config.json", tmp_path)


FAMILY = """
let eps = 1e-6
let dims = [16, 24]

block near(heads) {
  attention: mha(heads: heads)
  mask:      causal
  ffn:       mlp(hidden: 2 * width)
}

block far(heads) {
  attention: mha(heads: heads)
  mask:      causal
  ffn:       swiglu(hidden: width)
}

model fam(layers, width = 48, heads = 4, tied = true, scale = 0.5) {
  vocab:   96
  context: 64
  width:   width
  blocks:  layers / 2 * (near(heads: heads) + far(heads: heads))
  norm:    rmsnorm(eps: eps)
  head:    lm(tied: tied, scale: scale)
}
"""
OWN = """
spec "fam.arch"
type llama = fam
config {
  num_hidden_layers = layers
  hidden_size = width
  layer_types = blocks { a: near, b: far }
  vocab_size = 96
  tie_word_embeddings = tied
}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("= 96", "= vocab", ""),
        ("= 96", "= layers * 40 - 24", ""),
        ("= 96", "= -layers + 99", ""),
        (
            "= 96\n  tie_word_embeddings = tied",
            "= tied\n  tie_word_embeddings = false",
            "`tied` of the family is true or",
        ),
        (
            "= tied",
            "= scale",
            "`tie_word_embeddings` of config.json is false, and `scale` of the family is a number: 0.5",
        ),
        ("= tied", "= heads", "`tie_word_embeddings` of config.json is false, and `heads` of the family is a whole"),
        ("= tied", "= true", "E0533]: `tie_word_embeddings` of config.json is false, and the spec has true"),
        ("= fam", "= other", "E0531]: fam.arch declares no model `other`"),
        ("= 96", "= words", "E0531]: `fam` has no hyper-parameter, number or `let` that is called `words`"),
        ("b: far", "b: near", "E0533]: the order of the kinds of layers is not layers / 2 * (near(heads: heads)"),
        ("= 96", f"= 1{'0' * 400} / 3", "is no number of the spec"),
        ("= 96", "= dims / 2", "E0531]: `dims / 2` is no number of the spec"),
        ("= 96", "= 97", "E0533]: `vocab_size` of config.json is 96, and the spec has 97"),
    ],
)
def test_a_family_of_ones_own(old: str, new: str, said: str, tmp_path: Path) -> None:
    """Whose hyper-parameters may have no default, and whose layers are calls; the spec is one that a person writes."""
    (tmp_path / "fam.arch").write_text(FAMILY)
    (tmp_path / "m.checkpoint").write_text(OWN.replace(old, new, 1))
    config: dict[str, Any] = {"model_type": "llama", "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3}
    config["tie_word_embeddings"] = False
    (tmp_path / "config.json").write_text(json.dumps(config | {"layer_types": ["a", "b", "b"]}))
    source, own = tmp_path / "config.json", str(tmp_path / "m.checkpoint")
    if said:
        assert said in refused(source, tmp_path, mapping=own, weights=False)
        return
    import_folder(source, tmp_path / "m.arch", mapping=own, weights=False)
    near, far = ("(heads: heads)".join(name) for name in (("near", ""), ("far", "")))
    written = FAMILY.replace("let dims = [16, 24]\n", "").replace("layers,", "layers = 3,").replace("fam(", "m(")
    written = written.replace("tied = true", "tied = false")
    written = written.replace("layers / 2 * (near(heads: heads) + far(heads: heads))", "X")
    assert body(tmp_path / "m.arch").strip() == written.strip().replace("X", f"layers / 3 * ({near} + 2 * {far})")
    assert total(load(tmp_path / "m.arch")) == total(load("w.arch", text=written.replace("X", f"{near} + 2 * {far}")))


@pytest.mark.parametrize("named", [[3], [None], [], [["LlamaForCausalLM"]], 3, "LlamaForCausalLM"])
def test_classes_that_are_no_names_say_nothing(named: Any, tmp_path: Path) -> None:
    (tmp_path / "fam.arch").write_text(FAMILY)
    (tmp_path / "m.checkpoint").write_text(OWN)
    config: dict[str, Any] = {"model_type": "llama", "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3}
    config |= {"layer_types": ["a", "b", "b"], "tie_word_embeddings": False}
    written = []
    for more in ({}, {"architectures": named}):
        (tmp_path / "config.json").write_text(json.dumps(config | more))
        import_folder(
            tmp_path / "config.json", tmp_path / "m.arch", mapping=str(tmp_path / "m.checkpoint"), weights=False
        )
        written.append((tmp_path / "m.arch").read_text())
    assert written[0] == written[1]


def test_fields_that_contradict(folders: Any, tmp_path: Path) -> None:
    folder = changed(folders("deepseek_v3"), tmp_path / "hf", num_key_value_heads=2)
    assert "`num_key_value_heads` of config.json is 2, `num_attention_heads` is 4, and the" in refused(folder, tmp_path)


def test_experts_in_one_tensor(folders: Any, tmp_path: Path) -> None:
    """What a model in memory holds: all experts of a layer in one tensor, gate above up."""

    def stacked(tensors: Any) -> Any:
        found = {n: t for n, t in tensors.items() if ".experts." not in n}
        for i in range(2):
            theirs = f"model.layers.{i}.block_sparse_moe.experts"
            w1, w2, w3 = (
                torch.stack([tensors[f"{theirs}.{e}.{w}.weight"] for e in range(4)]) for w in ["w1", "w2", "w3"]
            )
            found[f"model.layers.{i}.mlp.experts.gate_up_proj"] = torch.cat((w1, w3), 1)
            found[f"model.layers.{i}.mlp.experts.down_proj"] = w2
            found[f"model.layers.{i}.mlp.gate.weight"] = found.pop(f"model.layers.{i}.block_sparse_moe.gate.weight")
        return found

    import_folder(changed(folders("mixtral"), tmp_path / "hf", stacked), tmp_path / "m.arch")
    import_folder(folders("mixtral"), tmp_path / "other.arch")
    ours, others = load_file(tmp_path / "m.safetensors"), load_file(tmp_path / "other.safetensors")
    assert ours.keys() == others.keys()
    assert all(torch.equal(ours[n], t) for n, t in others.items())


def test_old_names_of_norms(folders: Any, tmp_path: Path) -> None:
    """What the Hub has of BERT: gamma and beta, and a pooler that its class does not read."""

    def old(tensors: Any) -> Any:
        words = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        found = {re.sub("LayerNorm.(weight|bias)", lambda m: words[m[0]], n): t for n, t in tensors.items()}
        return found | {"bert.pooler.dense.weight": torch.ones(48, 48)}

    import_folder(changed(folders("bert"), tmp_path / "hf", old), tmp_path / "m.arch")
    import_folder(folders("bert"), tmp_path / "other.arch")
    ours, others = load_file(tmp_path / "m.safetensors"), load_file(tmp_path / "other.safetensors")
    assert all(torch.equal(ours[n], t) for n, t in others.items())


def test_rope_of_another_order_is_refused(folders: Any, tmp_path: Path) -> None:
    import_folder(folders("llama"), tmp_path / "m.arch")
    text = (tmp_path / "m.arch").read_text().replace("rope(theta:", "rope(interleaved: true, theta:")
    with pytest.raises(ArchError, match="the spec's rope turns `pairs` of channels together"):
        Mapper(named_mapping("llama"), load(text=text))


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["E0531", "E0532", "E0533"])
def test_pages_of_errors(code: str, folders: Any, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong command of a page raises its code, the right one runs: of a Llama, and of a GPT-2 beside it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders("llama"), tmp_path / "folder")
    shutil.copytree(folders("gpt2"), tmp_path / "other")
    import_folder(tmp_path / "folder", tmp_path / "model.arch", weights=False)
    wrong, right = re.findall(r"```sh\narchdsl (.+)\n```", error_page(code) or "")
    done = run(*wrong.split())
    assert done.status == 2
    assert f"error[{code}]" in done.err
    assert run(*right.split()).status == 0


def test_what_is_not_said_well(folders: Any, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(folders("llama"))
    for words, message in (
        (("import", folder, "-o", "m.py"), "ends in .arch"),
        (("import", folder, "-o", "m.arch", "--check", "--no-weights"), "needs the weights"),
        (("import", folder, "-o", "m.arch", "--tolerance", "1"), "`tolerance` goes with `check`"),
        (("weights", "gpt2", "-o", "w"), "choose one"),
        (("weights", "gpt2", "--from", "gguf", folder, "-o", "w"), "the format is hf"),
        (("weights", "gpt2", "--to", "hf", "-o", "w"), "needs --weights"),
        (("weights", "mistral_7b", "--to", "hf", "--weights", "none", "-o", "w"), "no mapping lies beside"),
    ):
        done = run(*words)
        assert (done.status, message in " ".join(done.err.split())) == (2, True), done.err
    assert [*tmp_path.iterdir()] == []
    assert json.loads(run("import", folder, "-o", "m.arch", "--json").out)["model_type"] == "llama"


# --- GGUF -------------------------------------------------------------------------------------------------------------


def rows_in_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (head, half, channel) as llama.cpp has them: (head, channel, half)."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def written_as_gguf(folder: Path, path: Path, kind: str) -> None:
    """Write a tiny Llama as llama.cpp would, its matrices of some type."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10_000.0)
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    names |= {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    ends = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, tensor in load_file(folder / "model.safetensors").items():
        parts = name.split(".")
        target = ends.get(name.removesuffix(".weight")) or f"blk.{parts[2]}.{names[parts[-2]]}"
        if parts[-2] in ("q_proj", "k_proj"):
            tensor = rows_in_pairs(tensor, heads if parts[-2] == "q_proj" else kv_heads)
        dtype = GGMLQuantizationType[kind if tensor.dim() == 2 else "F32"]
        writer.add_tensor(f"{target}.weight", quantize(tensor.numpy(), dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(("kind", "near"), [("F32", 0.0), ("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 1e-2), ("Q4_1", 0.1)])
def test_gguf(kind: str, near: float, folders: Any, tmp_path: Path) -> None:
    folder = folders("llama-wide")
    written_as_gguf(folder, tmp_path / "m.gguf", kind)
    import_folder(tmp_path / "m.gguf", tmp_path / "m.arch")
    import_folder(folder, tmp_path / "other.arch")
    assert body(tmp_path / "m.arch").replace("model m(", "model other(") == body(tmp_path / "other.arch")
    found, wanted = load_file(tmp_path / "m.safetensors"), load_file(tmp_path / "other.safetensors")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name].float() - tensor).abs().max() <= near * tensor.abs().max(), name
    (tmp_path / "m.gguf").write_bytes((tmp_path / "m.gguf").read_bytes()[:2000])
    assert "E0533" in refused(tmp_path / "m.gguf", tmp_path)


CHAT = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_chat_goes_through_gguf(place: str, folders: Any, tmp_path: Path) -> None:
    """Ids that end a text or pad it, the tokenizer and its templates, as transformers reads them off each format."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    source = tmp_path / "in"
    shutil.copytree(folders("llama"), source)
    special = {"<|pad|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<|end|>": 5}
    words = Tokenizer(BPE({"a": 3, "b": 4, "ab": 6, "Ġ": 7} | special, [("a", "b")]))
    words.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    words.pre_tokenizer, words.decoder = ByteLevel(add_prefix_space=False), Decoder(add_prefix_space=False)
    words.save(str(source / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    said |= {"bos_token": "<|im_start|>"} | ({"chat_template": CHAT} if place.endswith(".json") else {})
    (source / "tokenizer_config.json").write_text(json.dumps(said))
    shutil.rmtree(source / "additional_chat_templates")
    (source / "chat_template.jinja").unlink()
    if place.endswith(".jinja"):
        (source / place).write_text(CHAT)
    ids = {"bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": 0}
    (source / "generation_config.json").write_text(json.dumps(ids | {"top_k": 7}))

    import_folder(source, tmp_path / "m.arch")
    model = load(tmp_path / "m.arch")
    remarks: list[str] = []
    write_gguf(model, tmp_path / "m.safetensors", tmp_path / "m.gguf", remark=remarks.append)
    assert remarks == []
    import_folder(tmp_path / "m.gguf", tmp_path / "again.arch")
    beside = tmp_path / "again.hf"
    assert json.loads((beside / "generation_config.json").read_text()) == ids
    archdsl.to_huggingface(
        tmp_path / "again.arch", tmp_path / "hf", weights=tmp_path / "again.safetensors", native=True
    )
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    assert {name: getattr(config, name) for name in ids} == ids
    settings = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").generation_config
    assert {name: getattr(settings, name) for name in ids} == ids
    talk = [{"role": "user", "content": "ab a"}]
    read = transformers.AutoTokenizer.from_pretrained
    tokenizers = [read(source), read(beside), read(tmp_path / "hf"), read(tmp_path, gguf_file="m.gguf")]
    want = tokenizers[0].apply_chat_template(talk, return_dict=False)
    assert want == [1, 6, 7, 3, 2]
    for tokenizer in tokenizers[1:3]:
        assert tokenizer.apply_chat_template(talk, return_dict=False) == want
        assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|pad|>")
    theirs = tokenizers[3]
    assert theirs.apply_chat_template(talk, return_dict=False, chat_template=CHAT) == want
    assert (theirs.bos_token, theirs.eos_token, theirs.pad_token) == ("<|im_start|>", "<|im_end|>", "<|pad|>")


@pytest.mark.parametrize(
    ("vocab", "added", "said"),
    [
        ({"a": 0, "b": 1, "ab": 5, "c": 3}, {}, ""),  # holes at 2 and 4
        ({"a": 0, "b": 1, "ab": 2, "<s>": 5}, {"<s>": 5}, ""),
        ({"a": 0, "b": 1, "ab": 2}, {"<s>": 3, "<e>": 4}, ""),
        ({"a": 0, "b": 1, "ab": 2}, {"<s>": 3, "<e>": 7}, "says that `<e>` is token 7, and tokenizers reads it as 4"),
        ({"a": 0, "b": 1, "ab": 4}, {"<s>": 2}, "says that `<s>` is token 2, and tokenizers reads it as 3"),
        ({"a": 0, "b": 1, "ab": 2, "<s>": 3}, {"<s>": 6}, "says that `<s>` is token 6, and tokenizers reads it as 3"),
    ],
)
def test_ids_of_a_gguf_file_are_those_that_tokenizers_gives(
    vocab: dict[str, int], added: dict[str, int], said: str, folders: Any, tmp_path: Path
) -> None:
    """A hole in them is a token that is never used; where the package reads others than a file says, no tokenizer is
    written."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    made = Tokenizer(BPE(vocab, [("a", "b")]))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    text = json.loads(made.to_str())
    text["added_tokens"] = [{"id": i, "content": token, "special": True, **flags} for token, i in added.items()]
    import_folder(folders("llama"), tmp_path / "m.arch")
    file = tmp_path / "m.hf" / "tokenizer.json"
    file.write_text(json.dumps(text))
    remarks: list[str] = []
    write_gguf(load(tmp_path / "m.arch"), tmp_path / "m.safetensors", tmp_path / "m.gguf", remark=remarks.append)
    fields = GgufFile(tmp_path / "m.gguf").fields
    if said:
        assert said in remarks[0]
        assert "tokenizer.ggml.tokens" not in fields
        return
    read, tokens = Tokenizer.from_file(str(file)), fields["tokenizer.ggml.tokens"]
    assert remarks == []
    ids = read.get_vocab().values()
    assert {i: tokens[i] for i in ids} == {i: read.id_to_token(i) for i in ids}
    kinds = fields["tokenizer.ggml.token_type"]
    assert [i for i, kind in enumerate(kinds) if kind != 5] == sorted(ids)  # 5 is unused


def test_a_tokenizer_that_gguf_has_no_name_for_is_said(folders: Any, tmp_path: Path, run: Run) -> None:
    import_folder(folders("llama"), tmp_path / "m.arch")
    (tmp_path / "m.hf" / "tokenizer.json").write_text('{"model": {"type": "WordLevel"}}')
    spec, weights = str(tmp_path / "m.arch"), str(tmp_path / "m.safetensors")
    done = run("weights", spec, "--to", "gguf", "--weights", weights, "-o", str(tmp_path / "m.gguf"))
    assert done.status == 0
    assert "no tokenizer is in the file" in " ".join(done.err.split())
    fields = GgufFile(tmp_path / "m.gguf").fields
    assert fields["tokenizer.chat_template"] == BESIDE["chat_template.jinja"]
    assert fields["tokenizer.chat_template.tool_use"] == BESIDE["additional_chat_templates/tool_use.jinja"]
    assert (fields["tokenizer.ggml.bos_token_id"], fields["tokenizer.ggml.eos_token_id"]) == (1, 2)
    assert "tokenizer.ggml.model" not in fields
    import_folder(tmp_path / "m.gguf", tmp_path / "again.arch")
    for name in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        assert (tmp_path / "again.hf" / name).read_text() == BESIDE[name]


@pytest.fixture(scope="module")
def known(folders: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny Llama, and what it is in llama.cpp, found once."""
    spec = tmp_path_factory.mktemp("known") / "m.arch"
    import_folder(folders("llama"), spec)
    return spec, native_type(load(spec), PREFIX)


@pytest.fixture
def exported(known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write it as GGUF with files beside its weights; return the remarks, and the fields of the file."""
    spec, found = known
    monkeypatch.setattr("archdsl.interop.gguf_write.native_type", lambda *_: found)

    def write(files: dict[str, str | bytes]) -> tuple[list[str], dict[str, Any]]:
        shutil.rmtree(tmp_path, ignore_errors=True)
        (tmp_path / "m.hf").mkdir(parents=True)
        shutil.copy(spec.with_suffix(".safetensors"), tmp_path)
        for name, text in files.items():
            (tmp_path / "m.hf" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        remarks: list[str] = []
        try:
            write_gguf(load(spec), tmp_path / "m.safetensors", tmp_path / "m.gguf", remark=remarks.append)
        except ArchError:
            assert not (tmp_path / "m.gguf").exists()
            raise
        return remarks, GgufFile(tmp_path / "m.gguf").fields

    return write


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": 3}, "AttributeError"),
        ({"vocab": None}, "AttributeError"),
        ({"vocab": {"a": "0"}}, "an entry is no text with a whole number"),
        ({"vocab": {"a": 0, "b": 1.5}}, "an entry is no text with a whole number"),
        ({"vocab": {"a": 0, "b": -1}}, "an entry is no text with a whole number"),
        ({"added_tokens": [{"id": 2, "content": 3}]}, "an entry is no text with a whole number"),
        ({"added_tokens": [{"id": 2}]}, "KeyError 'content'"),
        ({"vocab": {"a": 0, "b": 0}}, "two texts are one token"),
        ({"merges": [["a", 3]]}, "TypeError"),
        ({"vocab": {"a": 0, "b": 96}}, ""),
    ],
    ids=str,
)
def test_a_tokenizer_that_no_gguf_file_can_have(fields: dict[str, Any], said: str, exported: Any) -> None:
    """One error, and no file; what is a tokenizer, of another vocabulary, is left out and said."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []} | fields
    tokenizer = json.dumps({"pre_tokenizer": BYTES, "model": model} | fields)
    if said:
        with pytest.raises(ArchError, match=rf"E0503\]: `.*tokenizer.json` is no tokenizer: .*{said}"):
            exported({"tokenizer.json": tokenizer})
    else:
        remarks, fields = exported({"tokenizer.json": tokenizer})
        assert ["has a token 96, and the model's vocabulary is 96" in r for r in remarks] == [True]
        assert "tokenizer.ggml.tokens" not in fields


def test_settings_of_texts_that_a_gguf_file_has(exported: Any) -> None:
    """What is no Boolean and no template is left out; a template is UTF-8."""
    templates = [{"name": "default", "template": "x"}, {"name": "a b", "template": "y"}, {"name": "c"}, 3]
    said = {"add_bos_token": True, "add_eos_token": 3, "chat_template": templates}
    remarks, fields = exported({"tokenizer_config.json": json.dumps(said)})
    assert remarks == []
    assert fields["tokenizer.ggml.add_bos_token"] is True
    assert "tokenizer.ggml.add_eos_token" not in fields
    assert {n: v for n, v in fields.items() if "chat_template" in n} == {"tokenizer.chat_template": "x"}
    with pytest.raises(ArchError, match=r"E0503\]: `.*chat_template.jinja` is no chat template: 'utf-8'"):
        exported({"chat_template.jinja": b"\xff"})


def test_a_gguf_file_is_compared_with_transformers(exported: Any, tmp_path: Path) -> None:
    exported({})
    report = import_folder(tmp_path / "m.gguf", tmp_path / "again.arch", check=True)
    assert report.difference is not None
    assert report.difference < 1e-5
    assert report.disagreement() is None


@pytest.mark.parametrize("option", ["from", "to"])
def test_gguf_files_need_a_package(option: str, exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported({})
    for name in ("gguf", "gguf.constants"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ArchError, match=r"E0502\]: GGUF files need the package gguf") as raised:
        GgufFile(tmp_path / "m.gguf") if option == "from" else exported({})
    assert raised.value.diagnostics[0].help == install("gguf")


# --- what is told of a command that takes long ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["import", "from", "missing", "hf", "gguf", "native", "remote", "init"])
def test_progress_tells_of_every_number(kind: str, folders: Any, tmp_path: Path) -> None:
    spec, weights = tmp_path / "m.arch", tmp_path / "m.safetensors"
    import_folder(folders("llama"), spec)
    (tmp_path / "m.hf" / "tokenizer.json").unlink()
    told: list[tuple[str, int]] = []

    def progress(name: str, count: int) -> None:
        told.append((name, count))

    out: dict[str, Any] = {"output": tmp_path / "out.safetensors", "progress": progress}
    match kind:
        case "import":
            archdsl.import_checkpoint(folders("llama"), tmp_path / "other.arch", progress=progress)
        case "from" | "missing":
            archdsl.import_weights(spec, folders("llama"), **out, mapping="llama", init_missing=kind == "missing")
        case "hf" | "gguf":
            archdsl.export_checkpoint(
                spec, weights=weights, **out, format=kind, mapping="llama" if kind == "hf" else None
            )
        case "native" | "remote":
            archdsl.to_huggingface(spec, weights=weights, **out, native=kind == "native")
        case _:
            archdsl.init_weights(spec, **out)
    assert sum(count for _, count in told) == total(load(spec))
    assert len({name for name, _ in told}) == len(told) == len(load_file(weights))


# --- mutations --------------------------------------------------------------------------------------------------------


def mutants(
    mapping: Any, theirs: Collection[str], ours: Collection[str], generator: random.Random, count: int
) -> Iterator[tuple[str, Any]]:
    """Mappings with one thing wrong: rules exchanged, an equation turned about or left out, pieces in another order."""
    rules = mapping.rules

    def names(template: str, of: Collection[str]) -> bool:
        return any(pattern(template).fullmatch(n) for n in of)

    used = [  # others are for files of another form, or other heads
        i for i, r in enumerate(rules) if not r.otherwise and names(r.theirs, theirs) and names(r.ours[0], ours)
    ]
    pieces = [i for i in used if len(rules[i].ours) > 1]
    equations = [i for i in used if rules[i].axes is not None]
    kinds = ["exchange", "exchange"] + ["turn", "leave out"] * bool(equations) + ["pieces"] * bool(pieces)
    while count:
        kind, changed = generator.choice(kinds), [*rules]
        if kind == "exchange":
            i, j = sorted(generator.sample(used, 2))
            if rules[i].theirs.count("*") != rules[j].theirs.count("*"):
                continue
            if rules[i].theirs == rules[j].theirs:
                continue
            changed[i] = replace(rules[i], theirs=rules[j].theirs)
            changed[j] = replace(rules[j], theirs=rules[i].theirs)
        elif kind == "pieces":
            i = generator.choice(pieces)
            changed[i] = replace(rules[i], ours=(*rules[i].ours[1:], rules[i].ours[0]))
        else:
            i = generator.choice(equations)
            left, right = rules[i].axes
            if kind == "leave out" and len(rules[i].ours) > 1:
                continue
            changed[i] = replace(rules[i], axes=None if kind == "leave out" else (tuple(reversed(left)), right))
            if changed[i] == rules[i]:
                continue
        count -= 1
        yield kind, replace(mapping, rules=changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "mixtral", "bert", "qwen3_moe"])
def test_a_wrong_mapping_is_caught(name: str, folders: Any, tmp_path: Path) -> None:
    """By names, shapes and order before a byte is read, nearly always; and, where sizes agree, always by the outputs,
    which `--check` compares."""
    import_folder(folders(name), tmp_path / "m.arch")
    theirs = load_file(folders(name) / "model.safetensors")
    shapes = {n: tuple(t.shape) for n, t in theirs.items()}
    model = load(tmp_path / "m.arch")
    module = archdsl.to_torch(model).eval()
    inputs = [
        torch.ones(2, 16, dtype=torch.bool) if v.is_bool else torch.arange(32).reshape(2, 16) % (90 if i == 0 else 2)
        for i, (_, v) in enumerate(model.inputs)
    ]

    def outputs(mapping: Any) -> tuple[torch.Tensor, bool]:
        mapper = Mapper(mapping, model, shapes)
        named = mapper.demand(shapes)
        for t in mapper.transfers:
            arrays = t.to_ours([theirs[named[n]].numpy() for n in t.theirs])
            made = {n: torch.from_numpy(a.copy()) for n, a in zip(t.ours, arrays, strict=True)}
            module.load_state_dict(made, strict=False)
        with torch.no_grad():
            found = module(*inputs)
        found = found if isinstance(found, torch.Tensor) else torch.cat([x.flatten() for x in found])
        return found, bool(doubts(mapper))

    mapping = named_mapping(name)
    wanted, doubted = outputs(mapping)
    assert not doubted
    early, missed = 0, []
    for kind, mutant in mutants(mapping, shapes, module.state_dict(), random.Random(name), 100):
        try:
            found, doubted = outputs(mutant)
        except ArchError:
            early += 1
            continue
        early += doubted
        if (found - wanted).abs().max() < 1e-5 * wanted.abs().max():
            missed.append((kind, [r for r in mutant.rules if r not in mapping.rules]))
    print(f"{name}: {early} of 100 before a byte is read")
    assert missed == []
    assert early >= 95
