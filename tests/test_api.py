"""What a program calls: functions take a spec, a text or a loaded model; modules are pickled; errors are short."""

import ast
import copy
import dataclasses
import inspect
import io
import pickle
import shlex
import subprocess
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, get_args, get_type_hints
from xml.etree import ElementTree

import pytest
import torch

import archdsl
from archdsl import ArchError
from archdsl.cli import app
from archdsl.diagnostics.render import render_text
from archdsl.ranges import RANGES

TINY = """\
model tiny(layers = 2) {
  vocab:   64
  context: 16
  width:   16
  blocks:  layers * decoder
  norm:    rmsnorm
  head:    lm
}

block decoder {
  attention: mha(heads: 2)
  mask:      causal
  ffn:       mlp(hidden: 32)
}
"""
SMALL = {"layers": 1, "width": 32, "heads": 2, "vocab": 50}
TOKENS = torch.arange(8).reshape(1, 8)


def of_spec(output: Path) -> dict[str, Callable[..., Any]]:
    """Each public function that takes a spec, with what it needs beside one; what it gives can be compared."""
    return {
        "check": archdsl.check,
        "draw": archdsl.draw,
        "estimate": archdsl.estimate,
        "expand": archdsl.expand,
        "export_checkpoint": lambda spec=None, **of: export(spec, output, **of),
        "fit": lambda spec=None, **of: archdsl.fit(spec, vary="layers", params=100_000, **of),
        "flops": archdsl.flops,
        "format_text": archdsl.format_text,
        "generate": lambda spec=None, **of: archdsl.generate(spec, "1 2", max_new_tokens=2, **of).tokens,
        "import_weights": lambda spec=None, **of: (
            archdsl.init_weights(spec, output / "w.safetensors", **of),
            archdsl.import_weights(spec, output / "w.safetensors", output / "again.safetensors", **of),
            (output / "again.safetensors").read_bytes(),
        ),
        "init_weights": lambda spec=None, **of: (
            archdsl.init_weights(spec, output / "w.safetensors", **of),
            (output / "w.safetensors").read_bytes(),
        ),
        "load": lambda spec=None, **of: [str(f.value) for f in archdsl.load(spec, **of).config],
        "memory": archdsl.memory,
        "show": archdsl.show,
        "sweep": lambda spec=None, **of: archdsl.sweep(spec, set={"layers": "1..3"}, **of),
        "to_huggingface": lambda spec=None, **of: [
            path.read_bytes() for path in archdsl.to_huggingface(spec, output / "hf", seed=0, **of)
        ],
        "to_onnx": lambda spec=None, **of: archdsl.to_onnx(spec, output, seed=0, **of).graphs,
        "to_torch": lambda spec=None, **of: str(archdsl.to_torch(spec, **of)),
        "torch_source": archdsl.torch_source,
        "verify": lambda spec=None, **of: archdsl.verify(spec, seq=8, decode=False, **of).outputs,
    }


def export(spec: Any, output: Path, **of: Any) -> bytes:
    """What a tiny model becomes as a checkpoint of GPT-2's, whose names it has."""
    mapping = output / "tiny.checkpoint"
    (output / "tiny.arch").write_text(TINY, encoding="utf-8")
    names = archdsl.estimate(spec, **of).params.by_weight
    rules = "".join(f"model.{w.path} = {w.path}\n" for w in names)
    mapping.write_text(f"type tiny = tiny\nconfig {{\n}}\n{rules}", encoding="utf-8")
    archdsl.init_weights(spec, output / "w.safetensors", **of)
    archdsl.export_checkpoint(spec, output / "folder", output / "w.safetensors", mapping=str(mapping), **of)
    return (output / "folder" / "model.safetensors").read_bytes()


def test_all_that_is_public_is_there() -> None:
    assert archdsl.__all__ == sorted(archdsl.__all__)
    assert {*archdsl.api.__all__} == {*archdsl.__all__} - {"ArchError", "Diagnostic", "__version__"}
    takes = {name for name in archdsl.api.__all__ if "spec" in inspect.signature(getattr(archdsl, name)).parameters}
    assert takes == of_spec(Path()).keys()


@pytest.mark.parametrize("name", of_spec(Path()))
def test_a_text_a_path_and_a_loaded_model_are_the_same(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.arch"
    path.write_text(TINY, encoding="utf-8")
    call = of_spec(tmp_path)[name]
    by_path = call(path)
    assert call(archdsl.load(path)) == by_path
    assert call(str(path)) == by_path
    of_text = call(archdsl.load(text=TINY))
    assert of_text == call(text=TINY)


def test_a_loaded_model_keeps_its_settings() -> None:
    model = archdsl.load("gpt2", set=SMALL)
    assert archdsl.estimate(model) == archdsl.estimate("gpt2", set=SMALL)
    assert archdsl.estimate(model, set={"layers": 3}) == archdsl.estimate("gpt2", set={**SMALL, "layers": 3})
    assert [row.parameters for row in archdsl.sweep(model, set={"layers": [1]}).rows] == [
        archdsl.estimate(model).params.total
    ]
    assert archdsl.fit(model, vary=["layers"], params=200_000).varied["layers"] > 1
    assert archdsl.load(model) is model


def test_a_loaded_model_is_the_one_that_was_named() -> None:
    assert archdsl.expand(archdsl.load("gpt2_xl")) == archdsl.expand("gpt2_xl")
    assert archdsl.sweep(archdsl.load("gpt2_xl"), set={"layers": 1}).model == "gpt2_xl"
    assert archdsl.check(archdsl.load(text=TINY)) == ()


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "spec": (lambda: archdsl.torch_source({"layers": 12}), "`spec` is a path, the name of a zoo model"),  # type: ignore[arg-type]
    "no spec": (lambda: archdsl.load(), "no spec is given"),
    "text": (lambda: archdsl.check(text=b"model"), "`text` is a string"),  # type: ignore[arg-type]
    "set": (lambda: archdsl.estimate("gpt2", set="layers=2"), "`set` is a mapping"),  # type: ignore[arg-type]
    "value": (lambda: archdsl.estimate("gpt2", set={"layers": [2]}), "`set\\['layers'\\]` is a number"),  # type: ignore[dict-item]
    "values": (lambda: archdsl.sweep("gpt2", set={"layers": {}}), "`set\\['layers'\\]` is a value"),  # type: ignore[dict-item]
    "model and text": (lambda: archdsl.load(archdsl.load(text=TINY), text=TINY), "given alone"),
    "batch": (lambda: archdsl.memory("gpt2", batch=0), "`batch` is a whole number from 1 to 1,000,000,000, not 0"),
    "seed": (lambda: archdsl.init_weights("gpt2", "w", seed=1.5), "`seed` is a whole number from 0 to .*, not 1.5"),  # type: ignore[arg-type]
    "huge": (lambda: archdsl.verify("gpt2", seed=10**5000), "`seed` is .*, not a value of type `int`"),
    "mfu": (lambda: archdsl.estimate("gpt2", mfu=2), "`mfu` is a number from 0.001 to 1, not 2"),
    "dtype": (lambda: archdsl.memory("gpt2", dtype="fp8"), "`dtype` is one of float32"),  # type: ignore[arg-type]
    "checkpoint": (lambda: archdsl.torch_source("gpt2", checkpoint="ful"), "`checkpoint` is one of"),  # type: ignore[arg-type]
    "features": (lambda: archdsl.to_torch("gpt2", features="loss"), "`features` is a collection of names"),
    "device": (lambda: archdsl.to_torch("gpt2", device=1.5), "`device` is a name"),  # type: ignore[arg-type]
    "vary": (lambda: archdsl.fit("gpt2", vary=3, params=10), "`vary` is names"),  # type: ignore[arg-type]
    "multiple": (lambda: archdsl.fit("gpt2", vary="layers", params=10, multiple=[1]), "`multiple` is a mapping"),  # type: ignore[arg-type]
    "aspect": (lambda: archdsl.fit("gpt2", vary="layers", params=10, aspect=(1,)), "`aspect` is two numbers"),  # type: ignore[arg-type]
    "output": (lambda: archdsl.to_onnx("gpt2", 3), "`output` is a path"),  # type: ignore[arg-type]
    "weights": (lambda: archdsl.init_weights("gpt2", 3), "`output` is a path"),  # type: ignore[arg-type]
    "prompt": (lambda: archdsl.generate("gpt2", [1.5]), "`prompt` is a text, token ids"),  # type: ignore[list-item]
    "form": (lambda: archdsl.show("gpt2", "picture"), "`form` is one of tree, ir, diagram, source"),  # type: ignore[arg-type]
    "block of a tree": (lambda: archdsl.show("gpt2", block="mha"), "`block` goes with the form `diagram`"),
    "target": (lambda: archdsl.verify("gpt2", target="ort"), "`target` is one of portable"),
    "store": (lambda: archdsl.to_onnx("gpt2", "x", store="file"), "`store` is one of safetensors"),  # type: ignore[arg-type]
    "tokens": (lambda: archdsl.to_onnx("gpt2", "x", eos_token_id=3), "`eos_token_id` is a sequence"),  # type: ignore[arg-type]
    "text of tokens": (lambda: archdsl.to_huggingface("gpt2", "x", eos_token_id="3"), "`eos_token_id` is a sequence"),  # type: ignore[arg-type]
    "keep of graphs": (lambda: archdsl.to_onnx("gpt2", "x", keep="head"), "`keep` is a sequence of patterns"),
    "keep": (lambda: archdsl.verify("gpt2", keep="head"), "`keep` is a sequence of patterns"),
    "native": (lambda: archdsl.to_huggingface("gpt2", "x", native="yes"), "`native` is True, False or None"),  # type: ignore[arg-type]
    "ignore": (lambda: archdsl.import_checkpoint("x", "y.arch", ignore="rope"), "`ignore` is a collection of fields"),
    "inputs": (lambda: archdsl.lift("m.py:N", inputs="x=token"), "`inputs` is a collection of texts"),
    "declare": (lambda: archdsl.lift("m.py:N", declare="N=n.arch"), "`declare` is a collection of texts"),
    "one model": (lambda: archdsl.compare("gpt2"), "`compare` takes 2 to 8 models, not 1"),
    "nine models": (lambda: archdsl.compare(*9 * ["gpt2"]), "`compare` takes 2 to 8 models, not 9"),
    "sources": (lambda: archdsl.to_huggingface("gpt2", "x", weights="w", seed=1), "two sources of weights"),
    "sources of lift": (
        lambda: archdsl.lift("m.py:N", output="x.arch", weights="w", own_weights=True),
        "two sources of weights",
    ),
    "weights of no spec": (lambda: archdsl.lift("m.py:N", weights="w"), "weights go with `output`"),
    "name of a spec": (lambda: archdsl.lift("m.py:N", output="x.txt"), "`output` ends in .arch, unlike `x.txt`"),
    "mapping of GGUF": (
        lambda: archdsl.export_checkpoint("gpt2", "x", "w", format="gguf", mapping="gpt2"),
        "`mapping` goes with the format `hf`",
    ),
    "block of two": (
        lambda: archdsl.draw("gpt2", against="gpt2_xl", block="decoder"),
        "`block` does not go with `against`",
    ),
    "a model of no spec": (
        lambda: archdsl.check(dataclasses.replace(archdsl.load(text=TINY), origin=None)),
        "the model `tiny` was not read from a spec",
    ),
    "block": (lambda: archdsl.expand("gpt2", block=3), "`block` is the name of a block"),  # type: ignore[arg-type]
    "scaling": (lambda: archdsl.scaling(flops="1e21"), "`flops` is a positive number"),  # type: ignore[arg-type]
    "too many": (lambda: archdsl.scaling(flops=1, params=1, tokens=1), "one or two of"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_one_short_error(case: str) -> None:
    call, said = WRONG[case]
    with pytest.raises(ArchError, match=said) as wrong:
        call()
    assert [d.code for d in wrong.value.diagnostics] == ["E0509"]
    assert len(str(wrong.value)) < 200


@pytest.mark.parametrize("value", [True, False])
def test_a_setting_is_true_or_false(value: bool) -> None:
    text = "model m(on: bool)(x: [batch, 8]) { return if on then x * 2 else x * 3 }"
    made = archdsl.to_torch(text=text, set={"on": value})
    x = torch.randn(2, 8)
    assert torch.equal(made(x), x * (2 if value else 3))


def test_what_is_no_text_is_refused_wherever_a_text_is_taken(tmp_path: Path) -> None:
    given: dict[str, Any] = {"spec": archdsl.load(text=TINY), "vary": "layers", "prompt": "1", "params": 10**5}
    paths = {"source": tmp_path, "output": tmp_path / "a.arch", "weights": tmp_path / "b.safetensors"}
    tried = set()
    for name in archdsl.__all__:
        function = getattr(archdsl, name)
        takes = inspect.signature(function).parameters if inspect.isfunction(function) else {}
        needs = {n: v for n, v in given.items() if n in takes}
        if name == "sweep":
            needs["set"] = {"layers": 1}
        needs |= {n: v for n, v in paths.items() if n in takes and takes[n].default is inspect.Parameter.empty}
        for argument, parameter in takes.items():
            if str(parameter.annotation).removeprefix("<class '").removesuffix("'>") in ("str", "str | None"):
                wrong = {**needs, argument: {"a": 3}}
                if argument in ("text", "model"):
                    wrong["spec"] = None
                with pytest.raises(ArchError, match=rf"E0509.*`{argument}`"):
                    function(**wrong)
                tried.add(argument)
    assert {"mesh", "accelerator", "mapping", "device", "quantize", "text"} <= tried


OF_KINDS: dict[str, tuple[Any, ...]] = {
    "int": ("x", 1.5, True, [1], -1, 10**400),
    "float": ("x", True, [1.5], -1, float("nan"), float("inf"), 10**400),
    "Sequence[int]": ("12", 3, [1.5], [-1], {"a": 1}),
    "Mapping[str, str]": ("a=b", 3, ["a"], {"a": 1}),
    "Mapping[str, int]": ("a=1", 3, ["a"], {"a": "1"}, {"a": 0}),
    "str | Path": (3, {"a": 3}),
    "Low": ("int3", 8, ["int8"]),
}
"""Of each kind of argument some that are none."""
ANY_SIZE = {"active", "bos_token_id", "memory", "pad_token_id", "params", "tokens", "top_k"}


def test_what_is_of_another_type_or_range_is_refused_wherever_it_is_taken() -> None:
    given: dict[str, Any] = {"spec": archdsl.load(text=TINY), "before": "gpt2", "after": "gpt2", "module": "none.py:N"}
    given |= {"vary": "layers", "prompt": "1", "source": "none", "output": "none.arch", "weights": "none"}
    more: dict[str, dict[str, Any]] = {"estimate": {"mesh": "dp=2", "accelerator": "h100_sxm"}, "fit": {"params": 9}}
    tried = set()
    for name in {*archdsl.__all__} - {"scaling"}:
        function = getattr(archdsl, name)
        takes = inspect.signature(function).parameters if inspect.isfunction(function) else {}
        needs = {n: v for n, v in given.items() if n in takes and (n == "spec" or takes[n].default is takes[n].empty)}
        needs |= more.get(name, {"set": {"layers": 1}} if name == "sweep" else {})
        for argument, parameter in takes.items():
            kind = str(parameter.annotation).removesuffix(" | None")
            for wrong in OF_KINDS.get(kind, ()):
                if wrong != 10**400 or argument not in ANY_SIZE:
                    with pytest.raises(ArchError, match=rf"E0509.*`.*{argument}"):
                        function(**{**needs, argument: wrong})
                    tried.add(kind)
    assert tried == OF_KINDS.keys()


def test_options_and_arguments_of_one_name_have_one_range() -> None:
    ranged = set()
    for command in app.registered_commands:
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            kinds = {*get_args(get_args(hint)[0])} | {get_args(hint)[0]} if get_args(hint) else set()
            if kinds & {int, float}:
                (option,) = (m for m in hint.__metadata__ if hasattr(m, "min"))
                low, high, whole = RANGES[name]
                assert (option.min, option.max, int in kinds) == (low, None if high == inf else high, whole), name
                ranged.add(name)
    assert ranged | {"tokens"} == RANGES.keys()


def test_a_feature_that_there_is_not() -> None:
    with pytest.raises(ArchError, match="E0508") as wrong:
        archdsl.to_torch("gpt2", features=["generat"])
    assert "generate" in wrong.value.diagnostics[0].help


# --- modules ----------------------------------------------------------------------------------------------------------


def test_features_type_and_device() -> None:
    module = archdsl.to_torch("gpt2", features=["generate", "loss"], dtype="bfloat16", device="meta", set=SMALL)
    assert {"targets", "cache"} <= inspect.signature(module.forward).parameters.keys()
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert {p.device.type for p in module.parameters()} == {"meta"}
    assert {p.dtype for p in archdsl.to_torch(text=TINY, dtype=torch.float64).parameters()} == {torch.float64}


@pytest.mark.parametrize("name", ["gpt2", "t5_small", "mixtral_8x7b", "mamba_130m"])
def test_modules_are_pickled_and_copied(name: str) -> None:
    module = archdsl.to_torch(name, device="meta", features=["generate"] if name in ("gpt2", "mamba_130m") else [])
    for twin in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert type(twin) is type(module)
        assert str(twin) == str(module)
        assert twin.config == module.config


def test_a_pickled_module_computes_the_same_in_another_process(tmp_path: Path) -> None:
    """A part of it is read alone, before the whole, and is of the same class."""
    module = archdsl.to_torch("gpt2", set=SMALL, features=["generate"]).eval()
    stored = io.BytesIO()
    torch.save(module, stored)
    (tmp_path / "whole.pt").write_bytes(stored.getvalue())
    (tmp_path / "part.pkl").write_bytes(pickle.dumps(module.blocks[0]))
    (tmp_path / "config.pkl").write_bytes(pickle.dumps(module.config))
    assert len(stored.getvalue()) < 2 * 4 * sum(p.numel() for p in module.parameters()) + 100_000
    script = (
        "import pickle, torch\n"
        "part = pickle.load(open('part.pkl', 'rb'))\n"
        "whole = torch.load('whole.pt', weights_only=False)\n"
        "assert type(part) is type(whole.blocks[0])\n"
        "assert pickle.load(open('config.pkl', 'rb')) == whole.config\n"
        "torch.save(whole(torch.arange(8).reshape(1, 8)), 'logits.pt')\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, env=_environment())
    assert torch.equal(torch.load(tmp_path / "logits.pt"), module(TOKENS))


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(Path(archdsl.__file__).parent.parent)}


# --- estimates --------------------------------------------------------------------------------------------------------

QUESTIONS: dict[str, dict[str, Any]] = {
    "--seq 8 --batch 2 --flops palm": {"seq": 8, "batch": 2, "convention": "palm"},
    "--dtype bfloat16 --optimizer muon --checkpoint full --loss eager": {
        "dtype": "bfloat16",
        "optimizer": "muon",
        "checkpoint": "full",
        "loss": "eager",
    },
    "--mesh dp=2,tp=2 --zero 1 --micro-batches 2 --dtype bfloat16 --float32-gradients": {
        "dtype": "bfloat16",
        "mesh": "dp=2,tp=2",
        "zero": 1,
        "micro_batches": 2,
        "float32_gradients": True,
    },
    "--accelerator h100_sxm --devices 2 --mfu 0.4 --tokens 1e9 --price 2": {
        "accelerator": "h100_sxm",
        "devices": 2,
        "mfu": 0.4,
        "tokens": 10**9,
        "price": 2.0,
    },
    "--step-time 0.1 --peak 1e12": {"step_time": 0.1, "peak": 1e12},
}


@pytest.mark.parametrize("options", QUESTIONS)
def test_an_estimate_is_what_the_command_prints(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["estimate", "gpt2", "--json", *options.split()])
    assert archdsl.estimate("gpt2", **QUESTIONS[options]).model_dump_json(indent=2) + "\n" == capsys.readouterr().out


def test_an_estimate_takes_every_option_of_the_command() -> None:
    command = next(c for c in app.registered_commands if c.name == "estimate")
    assert command.callback is not None
    options = {*inspect.signature(command.callback).parameters} - {"context", "plot", "json", "flops"}
    assert options | {"convention", "text", "model"} == {*inspect.signature(archdsl.estimate).parameters}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"zero": 1}, "`zero` goes with `mesh`"),
        ({"tokens": 5, "seq": 8}, "`tokens` goes with `accelerator`"),
        ({"accelerator": "h100_sxm", "price": 1.0}, "`price` goes with `tokens`"),
        ({"mesh": "dp=2", "checkpoint_every": 2}, "`checkpoint_every` goes with `checkpoint`"),
        ({"measure": True, "mesh": "dp=2"}, "one device is measured"),
        ({"step_time": 1.0, "tokens_per_second": 1.0, "peak": 1e12}, "the same measurement"),
        ({"step_time": 1.0}, "`step_time` goes with `peak` or `accelerator`"),
        ({"peak": 1e12}, "`peak` goes with"),
        ({"mesh": "dp=2", "zero": 4}, "`zero` is a whole number from 0 to 3, not 4"),
        ({"convention": "open"}, "`convention` is one of"),
    ],
)
def test_arguments_that_do_not_go_together(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ArchError, match=said) as wrong:
        archdsl.estimate("gpt2", **arguments)
    assert [d.code for d in wrong.value.diagnostics] == ["E0509"]


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_in_and_goes_out(tmp_path: Path) -> None:
    small = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 48, "vocab": 50}
    theirs = tmp_path / "theirs"
    archdsl.to_huggingface("mistral_nemo_12b", theirs, native=True, seed=0, set=small | {"head_dim": 16})
    report = archdsl.import_checkpoint(theirs, tmp_path / "ours.arch", check=True)
    assert (report.model_type, report.disagreement()) == ("mistral", None)
    ours = tmp_path / "ours.arch", tmp_path / "again", tmp_path / "ours.safetensors"
    assert archdsl.export_checkpoint(*ours, mapping="mistral") == report.tensors
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()
    grown = {"set": {"layers": 2}, "init_missing": True}
    said = archdsl.import_weights(ours[0], theirs, tmp_path / "grown.safetensors", **grown)
    assert "initialized: blocks.1" in "\n".join(said)


# --- runs and texts ---------------------------------------------------------------------------------------------------


def test_prompts_are_texts_of_ids_or_ids() -> None:
    """Two rows of different lengths give what each gives alone."""
    model = archdsl.load(text=TINY)
    alone = [archdsl.generate(model, ids, max_new_tokens=3).tokens[0] for ids in ([1, 2, 3], [4])]
    assert archdsl.generate(model, [[1, 2, 3], [4]], max_new_tokens=3).tokens == alone
    assert archdsl.generate(model, ["1 2 3", "4"], max_new_tokens=3).tokens == alone


def test_what_is_shown_is_what_the_command_prints(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "tiny.arch"
    path.write_text(TINY, encoding="utf-8")
    for form, options in (("tree", []), ("ir", ["--ir"]), ("diagram", ["--diagram"]), ("source", ["--source"])):
        with pytest.raises(SystemExit) as ended:
            app(["show", str(path), *options])
        assert ended.value.code == 0
        assert archdsl.show(path, form) == capsys.readouterr().out  # type: ignore[arg-type]


# --- how models and errors are shown ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama3_8b", "deepseek_v3", "t5_small", "mamba_130m", "bert_base"])
def test_a_model_is_shown_in_ten_lines(name: str) -> None:
    model = archdsl.load(name)
    lines = repr(model).splitlines()
    assert 5 <= len(lines) <= 10
    assert max(map(len, lines)) <= 120
    total = f"{archdsl.estimate(model).params.total:,}"
    assert name in lines[0]
    assert total in repr(model)
    table = ElementTree.fromstring(model._repr_html_() or "").find("table")
    assert table is not None
    assert total in "".join(table.itertext())


def test_what_a_spec_says_is_escaped_in_html(tmp_path: Path) -> None:
    path = tmp_path / "<script>&.arch"
    path.write_text(TINY, encoding="utf-8")
    page = ElementTree.fromstring(archdsl.load(path)._repr_html_() or "")
    shapes = {"svg", "title", "style", "rect", "path", "g", "text", "circle"}
    tags = {element.tag.removeprefix("{http://www.w3.org/2000/svg}") for element in page.iter()}
    assert tags <= {"div", "table", "caption", "b", "tr", "th", "td", *shapes}
    assert "<script>&.arch" in "".join(page.itertext())


def test_an_error_reads_as_the_command_line_prints_it() -> None:
    with pytest.raises(ArchError) as wrong:
        archdsl.load(text=TINY.replace("heads: 2", "num_heads: 2"))
    said = str(wrong.value)
    assert said == render_text(wrong.value.diagnostics).rstrip()
    assert "^^^^^^^^^" in said
    assert "help: did you mean `heads`?" in said
    assert str(pickle.loads(pickle.dumps(wrong.value))) == said


@pytest.mark.parametrize(
    "settings",
    [{}, {"layers": 2}, {"layers": "1 + 1", "width": 64, "heads": 4, "kv_heads": 2, "context": 64}],
)
def test_the_head_of_a_file_says_the_command_that_makes_it(settings: dict[str, Any], tmp_path: Path) -> None:
    model = archdsl.load("llama3_8b", set=settings)
    files = {"torch": archdsl.torch_source(model, features=["loss", "generate"], checkpoint="full")}
    archdsl.to_huggingface(model, tmp_path / "hf", native=False, eos_token_id=[7, 8], pad_token_id=9)
    files["hf"] = (tmp_path / "hf" / "modeling_llama3_8b.py").read_text()
    tokens = ["--eos-token-id=7", "--eos-token-id=8", "--pad-token-id=9"]
    for to, text in files.items():
        head = ast.get_docstring(ast.parse(text)) or ""
        program, command, spec, *options = shlex.split(head[head.index("archdsl compile") :].replace("\\\n", ""))
        assert (program, command, spec) == ("archdsl", "compile", "llama3.arch:llama3_8b")
        sets = [f"--set={k}={v}" for k, v in settings.items()]
        assert [o for o in options if "=" in o] == (sets if to == "torch" else [*tokens, *sets])
        more = ["--with", "generate,loss", "--checkpoint", "full"] if to == "torch" else ["--remote-code"]
        assert [o for o in options if "=" not in o] == ["--to", to, *more]
        assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("more", [{}, {"set": {"width": 2 * 16}}])
@pytest.mark.parametrize("said", ["short", "so-long " * 60, "a \"word\", a \\ and 'one' " * 9, '""" \\""" ' * 30])
def test_the_head_of_a_file_is_what_the_spec_says(said: str, more: dict[str, Any]) -> None:
    """In lines as long as others are, and as it is written."""
    text = f"# Model: {said.strip()}.\n" + TINY.replace("layers = 2", "layers = 2, width = 16").replace(
        "width:   16", "width:   width"
    )
    source = archdsl.torch_source(text=text, **more)
    assert max(map(len, source.splitlines())) <= 120
    head = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]
    assert " ".join(head.split()) == f"Model: {said.strip()}."


@pytest.mark.parametrize("given", ["below", "beside", "absolute"])
def test_no_written_file_says_where_on_this_machine_a_spec_lies(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, folder = tmp_path / "here", tmp_path / "here" / "deep" if given == "below" else tmp_path / "there"
    here.mkdir()
    folder.mkdir()
    (folder / "tiny.arch").write_text(TINY)
    monkeypatch.chdir(here)
    shown = {"below": "deep/tiny.arch", "beside": "../there/tiny.arch", "absolute": "tiny.arch"}[given]
    spec = folder / "tiny.arch" if given == "absolute" else Path(shown)
    archdsl.init_weights(spec, tmp_path / "own.safetensors")
    archdsl.to_huggingface(spec, tmp_path / "hf", weights=tmp_path / "own.safetensors", native=False)
    archdsl.to_onnx(spec, tmp_path / "onnx", weights=tmp_path / "own.safetensors", decode=True)
    (tmp_path / "tiny.py").write_text(archdsl.torch_source(spec))
    written = [f for f in (tmp_path / "tiny.py", *tmp_path.glob("hf/*"), *tmp_path.glob("onnx/*")) if f.is_file()]
    assert {f.suffix for f in written} >= {".py", ".onnx", ".json", ".safetensors"}
    for file in written:
        data = file.read_bytes()
        assert str(tmp_path).encode() not in data, file
        assert file.suffix not in (".py", ".onnx") or f" {shown}:tiny ".encode() in data, file
