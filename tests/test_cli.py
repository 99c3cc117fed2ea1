"""The command line as its users meet it: what is printed where, and the exit status."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from cli_tools import Done, Run

import archdsl
from archdsl import cli, resources
from archdsl.backends.onnx.targets import TARGETS
from archdsl.cli import app
from archdsl.diagnostics import InternalError
from archdsl.estimates.loss import Loss
from archdsl.estimates.memory import Optimizer
from archdsl.ir.graph import CallNode
from archdsl.ir.paths import layer_of
from archdsl.ir.walk import modules
from archdsl.ir.weights import weights

TINY = """\
# A tiny model.

block layer(heads) {
  attention: mha(heads: heads)
  mask:      causal
  ffn:       mlp(hidden: 2 * width)
}

model tiny(layers = 2, heads = 2) {
  vocab:  64
  context: 16
  width:  16
  blocks: layers * layer(heads: heads)
  head:   lm
}

variant tinier = tiny(layers: 1)
"""
WRONG = "model m(x: [batch, 8]) {\n  return x + (x -> linear(9))\n}\n"
NONCAUSAL = TINY.replace("causal", "full")


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command line in this process, in an empty folder with `tiny.arch`, `wrong.arch` and `noncausal.arch`."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("tiny", TINY), ("wrong", WRONG), ("noncausal", NONCAUSAL)):
        (tmp_path / f"{name}.arch").write_text(text)
    return run


def process(*arguments: str, cwd: Path, **options: object) -> subprocess.Popen[str]:
    root = Path(archdsl.__file__).parent.parent
    env = {**os.environ, "PYTHONPATH": str(root), "NO_COLOR": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "archdsl", *arguments], cwd=cwd, env=env, text=True, stderr=subprocess.PIPE, **options
    )  # type: ignore[call-overload,no-any-return]


# --- check ------------------------------------------------------------------------------------------------------------


def test_check_says_that_all_is_well(run: Run) -> None:
    assert run("check", "tiny.arch", "llama3") == Done(0, "tiny.arch: no errors\nllama3: no errors\n", "")


def test_check_shows_what_is_wrong(run: Run) -> None:
    done = run("check", "tiny.arch", "wrong.arch")
    assert (done.status, done.err) == (1, "")
    assert "error[E0301]" in done.out
    assert "wrong.arch:2:" in done.out


def test_check_json_is_one_list(run: Run) -> None:
    assert json.loads(run("check", "tiny.arch", "--format", "json").out) == []
    found = json.loads(run("check", "wrong.arch", "tiny.arch", "--format", "json").out)
    assert [(d["code"], d["file"], d["line"]) for d in found] == [("E0301", "wrong.arch", 2)]


def test_check_looks_at_every_model_of_a_file(run: Run) -> None:
    Path("two.arch").write_text(TINY + "variant broken = tiny(heads: 3)\n")
    assert run("check", "two.arch").status == 1
    assert run("check", "two.arch:tiny").status == 0


def test_check_proves_causality(run: Run) -> None:
    done = run("check", "noncausal.arch", "--format", "concise")
    assert (done.status, "E0406" in done.out) == (1, True)
    assert run("check", "noncausal.arch", "--allow-noncausal").status == 0
    assert run("estimate", "noncausal.arch").status == 1
    assert run("estimate", "noncausal.arch", "--allow-noncausal").status == 0


def test_check_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(TINY))
    assert run("check", "-") == Done(0, "<stdin>: no errors\n", "")
    monkeypatch.setattr(sys, "stdin", io.StringIO(WRONG))
    done = run("check", "-", "--format", "concise")
    assert (done.status, done.out.startswith("<stdin>:2:")) == (1, True)


def test_format_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def piped(text: str, *options: str) -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return run("fmt", "-", *options)

    neat = piped(TINY).out
    assert piped(neat) == Done(0, neat, "")
    assert piped(neat.replace(":", ":  ")) == Done(0, neat, "")
    assert piped(neat, "--check") == Done(0, "", "")
    assert piped(neat.replace(":", ":  "), "--check") == Done(1, "would format <stdin>\n", "")
    wrong = piped("model (")
    assert (wrong.status, wrong.out) == (1, "")
    assert "--> <stdin>:1:7" in wrong.err
    Path("<stdin>").write_text(neat.replace(":", ":  "))  # a file of that name is a file
    assert run("fmt", "./<stdin>", "<stdin>") == Done(0, "formatted ./<stdin>\n", "")
    assert Path("<stdin>").read_text() == neat


def test_check_a_folder(run: Run) -> None:
    """Every spec below it, hidden folders left out; one that is wrong decides."""
    for name, text in (("a.arch", TINY), ("deep/b.arch", TINY), (".hidden/c.arch", WRONG), ("d.txt", WRONG)):
        (Path("specs") / name).parent.mkdir(parents=True, exist_ok=True)
        (Path("specs") / name).write_text(text)
    assert run("check", "specs") == Done(0, "specs/a.arch: no errors\nspecs/deep/b.arch: no errors\n", "")
    Path("specs/deep/b.arch").write_text(WRONG)
    done = run("check", "specs", "tiny.arch")
    assert done.status == 1
    assert "specs/a.arch: no errors\ntiny.arch: no errors\n" in done.out
    Path("empty").mkdir()
    assert run("check", "empty").status == 2


# --- estimate ---------------------------------------------------------------------------------------------------------


def test_estimate_json_is_one_object(run: Run) -> None:
    done = run("estimate", "gpt2", "--json")
    report = json.loads(done.out)
    assert (done.status, done.err) == (0, "")
    assert (report["model"], report["source"]) == ("gpt2", "gpt2.arch")
    assert {
        k: report["params"][k] for k in ("total", "non_embedding", "active", "rule_of_thumb", "ratio", "buffers")
    } == {
        "total": 124_439_808,
        "non_embedding": 85_056_000,
        "active": 124_439_808,
        "rule_of_thumb": 84_934_656,
        "ratio": 1.0014,
        "buffers": 0,
    }
    assert report["config"] == {"layers": 12, "width": 768, "heads": 12, "vocab": 50_257, "context": 1024}


def test_estimate_for_people(run: Run) -> None:
    done = run("estimate", "deepseek_v3")
    assert done.status == 0
    for text in ("671,026,404,352", "37,552,282,624", "17.7923", "layer (sparse)", "12 · 61 · 7,168²"):
        assert text in done.out
    assert not any(line.endswith(" ") for line in done.out.splitlines())


def test_estimate_tells_flops(run: Run) -> None:
    flops = json.loads(run("estimate", "tiny.arch", "--json", "--batch", "2", "--seq", "8").out)["flops"]
    weights, core = 2 * (4 * 16 * 16 + 2 * 16 * 32) + 16 * 64, 2 * 4 * 16
    assert (flops["convention"], flops["sizes"]) == ("exact", {"batch": 2, "time": 8})
    assert flops["forward"] == 2 * 16 * weights + 2 * core * 36
    assert flops["training"] == flops["forward"] + flops["backward"] == 3 * flops["forward"]
    assert flops["decode_step"] == 2 * 2 * weights + 2 * core * 8
    dense = json.loads(run("estimate", "tiny.arch", "--json", "--seq", "8", "--flops", "dense").out)["flops"]
    assert (dense["convention"], dense["forward"]) == ("dense", 2 * 8 * weights + core * 64)


def test_estimate_shows_flops_by_block(run: Run) -> None:
    done = run("estimate", "tiny.arch", "--seq", "8", "--flops", "all")
    assert done.status == 0
    for text in ("training step", "decode step", "megatron", "kaplan", "█"):
        assert text in done.out
    assert not any(line.endswith(" ") for line in done.out.splitlines())
    assert "training step" not in run("estimate", "tiny.arch").out


def test_estimate_tells_how_much_of_the_peak_is_used(run: Run) -> None:
    spec = ("estimate", "tiny.arch", "--seq", "8", "--checkpoint", "full")
    used = run(*spec, "--tokens-per-second", "1000", "--peak", "1e9", "--json")
    flops = json.loads(used.out)["flops"]
    mfu = 1000 * flops["training"] / 8 / 1e9
    assert flops["utilization"]["mfu"] == pytest.approx(mfu)
    again = flops["recomputation"]["full"] + flops["recomputation"]["head"]
    assert flops["utilization"]["hfu"] == pytest.approx(mfu * again / flops["training"])
    fused = json.loads(run(*spec, "--loss", "fused", "--tokens-per-second", "1000", "--peak", "1e9", "--json").out)
    again = flops["recomputation"]["full"] / flops["training"]
    assert fused["flops"]["utilization"]["hfu"] == pytest.approx(mfu * again)
    assert "HFU" in run(*spec, "--tokens-per-second", "1000", "--peak", "1e9").out
    assert run(*spec, "--peak", "1e9").status == 2


def test_estimate_of_a_length_that_the_model_refuses(run: Run) -> None:
    done = run("estimate", "tiny.arch", "--seq", "17")
    assert (done.status, done.out) == (2, "")
    assert "E0503" in done.err


def test_set_changes_a_number(run: Run) -> None:
    by_default, changed = (
        json.loads(run("estimate", "tiny.arch", "--json", *s).out) for s in ((), ("--set", "layers=4"))
    )
    assert changed["config"]["layers"] == 4
    assert changed["params"]["layers"] == 2 * by_default["params"]["layers"]


def test_a_model_is_chosen_by_name(run: Run) -> None:
    assert json.loads(run("estimate", "tiny.arch", "--json").out)["model"] == "tiny"
    assert json.loads(run("estimate", "tiny.arch:tinier", "--json").out)["model"] == "tinier"
    assert json.loads(run("estimate", "gpt2:gpt2_xl", "--json").out)["model"] == "gpt2_xl"
    assert json.loads(run("estimate", "llama3_70b", "--json").out)["model"] == "llama3_70b"


# --- compile ----------------------------------------------------------------------------------------------------------


def test_compile_prints_or_writes_the_same(run: Run) -> None:
    printed = run("compile", "tiny.arch", "--to", "torch")
    written = run("compile", "tiny.arch", "-o", "model.py")  # to torch, unless the name says otherwise
    assert (printed.status, written) == (0, Done(0, "", ""))
    assert Path("model.py").read_text() == printed.out
    compile(printed.out, "model.py", "exec")
    assert "goes with --to torch" in run("compile", "tiny.arch", "-o", "model.onnx", "--with", "loss").err
    assert not [p for p in Path.cwd().iterdir() if p.name.startswith(".")]


def test_compile_says_what_loops_over_time(run: Run) -> None:
    """Position by position; chunks are said nothing of."""
    assert "loops over time in Python" in run("compile", "ntm", "--to", "torch").err
    assert run("compile", "rwkv7", "--to", "torch").err == ""


def test_compile_keeps_the_old_file_where_the_spec_is_wrong(run: Run) -> None:
    Path("model.py").write_text("mine")
    assert run("compile", "wrong.arch", "--to", "torch", "-o", "model.py").status == 1
    assert Path("model.py").read_text() == "mine"


def test_compile_to_what_there_is_not(run: Run) -> None:
    done = run("compile", "gpt2", "--to", "tensorflow", "-o", "model.pb")
    assert (done.status, done.out, Path("model.pb").exists()) == (2, "", False)
    assert "error[E0501]" in done.err
    assert "--to torch" in done.err


@pytest.mark.parametrize("target", ["missing/model.py", "."])
def test_an_output_that_cannot_be_written(run: Run, target: str) -> None:
    done = run("compile", "gpt2", "--to", "torch", "-o", target)
    assert (done.status, done.out) == (2, "")
    assert re.fullmatch(r"archdsl: error: .+\n", done.err)
    assert target.split("/")[0] in done.err


def test_an_output_through_a_link_and_to_a_device(run: Run) -> None:
    Path("real.py").write_text("old")
    Path("link.py").symlink_to("real.py")
    assert run("compile", "tiny.arch", "--to", "torch", "-o", "link.py").status == 0
    assert Path("link.py").is_symlink()
    assert "class Tiny" in Path("real.py").read_text()
    assert run("compile", "tiny.arch", "--to", "torch", "-o", "/dev/null").status == 0
    assert not Path("/dev/null").is_file()


# --- init and run -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_init_writes_what_the_module_loads(run: Run) -> None:
    from safetensors.torch import load_file

    assert run("init", "tiny.arch", "--seed", "3", "-o", "w.safetensors") == Done(0, "", "")
    module = archdsl.to_torch("tiny.arch")
    module.load_state_dict(load_file("w.safetensors"))
    first = Path("w.safetensors").read_bytes()
    run("init", "tiny.arch", "--seed", "3", "-o", "w.safetensors")
    assert Path("w.safetensors").read_bytes() == first
    run("init", "tiny.arch", "--seed", "4", "-o", "w.safetensors", "--dtype", "bfloat16")
    assert {str(t.dtype) for t in load_file("w.safetensors").values()} == {"torch.bfloat16"}


@pytest.mark.slow
def test_run_reports_times_and_shapes(run: Run) -> None:
    run("init", "tiny.arch", "-o", "w.safetensors")
    done = run("run", "tiny.arch", "--weights", "w.safetensors", "--batch", "2", "--seq", "5", "--json")
    report = json.loads(done.out)
    assert report["inputs"] == {"tokens": {"dtype": "int64", "shape": [2, 5]}}
    assert report["outputs"] == {"output": {"dtype": "float32", "shape": [2, 5, 64]}}
    assert report["gradients"] == report["weights"]
    assert report["without_gradient"] == []
    assert {"emit", "build", "load", "forward", "backward"} == set(report["milliseconds"])
    assert "gradients" in run("run", "tiny.arch", "--dtype", "bfloat16").out
    Path("chosen.arch").write_text(
        "model chosen(width = 8) (x: float[batch, width]) -> [batch, width] {\n"
        "  param scale: [width] = ones\n  param choice: [width] = zeros\n"
        "  return where(choice > 0, x * scale, -x)\n}\n"
    )
    assert json.loads(run("run", "chosen.arch", "--json").out)["without_gradient"] == ["choice"]
    assert "none for  choice in chosen (chosen.arch:3)" in run("run", "chosen.arch").out


LOST = """
block layer(hidden)(x: [batch, time, width]) -> [batch, time, width] {
  y = x -> linear(hidden) as lost -> silu -> mlp(hidden) as lost_too
  x += x -> mlp(hidden) as ffn
}
"""


@pytest.mark.slow
def test_run_names_the_weights_without_a_gradient_and_their_block(run: Run) -> None:
    Path("lost.arch").write_text(LOST + "model m { width: 16 vocab: 32 context: 16 blocks: 3 * layer(hidden: 32) }")
    report = json.loads(run("run", "lost.arch", "--json").out)
    loaded = {w.path: w for w in weights(archdsl.load("lost.arch"))}
    assert report["without_gradient"]
    named = []
    for entry in report["untouched"]:
        for layer in entry["layers"]:
            named.append(entry["path"].replace("*", str(layer), 1))
            assert (loaded[named[-1]].block.name, str(loaded[named[-1]].span)) == (entry["block"], entry["source"])
    assert sorted(named) == sorted(report["without_gradient"])
    out = run("run", "lost.arch").out
    assert "blocks.0–2.lost.weight in layer (lost.arch:3)" in out
    assert "blocks.0–2.lost_too.up.weight in mlp (std/ffn.arch:" in out


@pytest.mark.slow
def test_run_is_deterministic(run: Run) -> None:
    found = {json.loads(run("run", "tiny.arch", "--seed", "1", "--json").out)["mean_square"] for _ in range(2)}
    assert len(found) == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_sequence_too_short_for_a_window_is_refused(run: Run, command: str) -> None:
    text = (
        "model m(sound: [batch, time, 4]) -> [...] { return sound -> conv1d(4, kernel: 8, stride: 4, padding: none) }"
    )
    Path("short.arch").write_text(text)
    assert run(command, "short.arch", "--seq", "8").status == 0
    done = run(command, "short.arch", "--seq", "7")
    assert (done.status, "error[E0503]: at these lengths the result of `conv1d` is empty" in done.err) == (1, True)


@pytest.mark.slow
def test_run_refuses_weights_of_another_model(run: Run) -> None:
    run("init", "tiny.arch", "-o", "w.safetensors")
    done = run("run", "tiny.arch", "--set", "layers=3", "--weights", "w.safetensors")
    assert done.status == 2
    assert "error[E0503]" in done.err
    assert "= note: missing: blocks.2." in done.err
    done = run("run", "tiny.arch", "--set", "layers=1", "--weights", "w.safetensors")
    assert (done.status, "= note: unexpected: blocks.1." in done.err) == (2, True)
    Path("w.safetensors").write_bytes(b"nonsense")
    assert run("run", "tiny.arch", "--weights", "w.safetensors").status == 2
    assert run("run", "tiny.arch", "--weights", "none.safetensors").status == 2


@pytest.mark.slow
def test_run_with_several_inputs_and_results(run: Run) -> None:
    small = ("--set", "layers=1", "--set", "width=24", "--set", "heads=2", "--seq", "6", "--json")
    report = json.loads(run("run", "bert", *small).out)
    assert set(report["inputs"]) == {"tokens", "segments", "padding"}
    assert len(report["outputs"]) == 2


# --- show -------------------------------------------------------------------------------------------------------------


def test_show_is_a_tree(run: Run) -> None:
    done = run("show", "tiny.arch")
    assert done.status == 0
    assert re.search(r"├── blocks\.0–1 × 2 layer -> \[batch, time, 16\] \d", done.out)
    assert "q linear -> [batch, time, 16] {weight [16, 16]}" in done.out


def test_show_json(run: Run) -> None:
    root = json.loads(run("show", "gpt3", "--json").out)
    assert (root["name"], root["params"]) == ("gpt3_175b", 174_604_259_328)
    assert [(b["name"], b["count"]) for b in root["children"] if b["name"].startswith("blocks")] == [
        ("blocks.0,2,…,94", 48),
        ("blocks.1,3,…,95", 48),
    ]


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ("[a, a, b, a, b, b]", ["blocks.0-1,3", "blocks.2,4-5"]),
        ("[a, b, b, b]", ["blocks.0", "blocks.1-3"]),
        ("4 * [a, b]", ["blocks.0,2,…,6", "blocks.1,3,…,7"]),
        ("2 * [a, b]", ["blocks.0,2", "blocks.1,3"]),
    ],
)
def test_show_keeps_the_order_of_layers(run: Run, layers: str, names: list[str]) -> None:
    spec = "block layer(n) { ffn: mlp(hidden: n) }  model m { width: 8 vocab: 9 context: 9 blocks: LAYERS }"
    spec = spec.replace("LAYERS", layers).replace("[", "(").replace("]", ")").replace(",", " +")
    spec = re.sub(r"\b[ab]\b", lambda m: f"layer({8 if m[0] == 'a' else 16})", spec)
    Path("hybrid.arch").write_text(spec, encoding="utf-8")
    root = json.loads(run("show", "hybrid.arch", "--json").out)
    assert [b["name"] for b in root["children"] if b["name"].startswith("blocks")] == names


def expanded(text: str) -> list[str]:
    """What `4 × (5 near, far), 2 near` says, layer by layer."""
    whole = re.sub(r"(\d+) × \(([^)]*)\)", lambda m: ", ".join(int(m[1]) * [m[2]]), text)
    words = [word.rpartition(" ") if word[0].isdecimal() else ("1", "", word) for word in whole.split(", ")]
    return [word for count, _, word in words for _ in range(int(count))]


@pytest.mark.parametrize(
    "spec", ["gemma3_1b", "jamba", "qwen3_next", "hf/nemotron_h", "llama4_maverick", "switch_base_8"]
)
def test_show_tells_a_hybrid_s_layers_in_their_order(run: Run, spec: str) -> None:
    model = archdsl.load(spec)
    steps: dict[str, list[str]] = {}
    for node, step in modules(model.block.graph):
        stack, number, _ = layer_of(step)
        if stack:
            steps.setdefault(stack, []).append(node.alias if isinstance(node, CallNode) else "")
            assert len(steps[stack]) == number + 1
    told = dict(re.findall(r"^[├└]── (\w+) × \d+: (.*)$", run("show", spec).out, re.MULTILINE))
    assert told.keys() == steps.keys()
    for stack, text in told.items():
        words = dict(zip(expanded(text), steps[stack], strict=True))
        assert [words[word] for word in expanded(text)] == steps[stack]
        assert len({*words.values()}) == len(words)


def test_show_tells_shared_blocks_and_layers_of_one_name(run: Run) -> None:
    Path("turns.arch").write_text(
        "block a(n)(x: [batch, width]) { return x -> linear(n) -> linear(width) }\n"
        "block b(x: [batch, width]) { return x -> softmax }\n"
        "model m(x: [batch, 16]) {\n  let s = shared(a(n: 4))\n"
        "  for layer in a(n: 8) + a(n: 16) + 2 * a(n: 8) + a(n: 16) { x = layer(x) }\n  return x -> s -> b -> s\n}\n"
    )
    out = run("show", "turns.arch").out
    assert "layer × 5: like 0, like 1, like 0, like 0, like 1\n" in out
    assert "├── s shared a -> [batch, 16] 148\n│   ├── linear linear" in out
    assert "softmax" not in out  # it has no weights
    root = json.loads(run("show", "turns.arch", "--json").out)
    assert root["params"] == archdsl.estimate("turns.arch").params.total
    assert root["params"] == sum(part["params"] * part["count"] for part in root["children"])


def test_show_ir(run: Run) -> None:
    done = run("show", "tiny.arch", "--ir")
    assert done.out.startswith("model tiny {  # tiny.arch:9\n")
    assert done.out.count("block layer {") == 1
    assert run("show", "tiny.arch", "--ir") == done


def test_show_a_step_of_decoding(run: Run) -> None:
    done = run("show", "tiny.arch", "--ir", "--decode")
    assert done.out.startswith("model tiny {  # tiny.arch:9\n")
    assert done.out.count(" = append ") == 2
    assert "it goes with --ir" in run("show", "tiny.arch", "--decode").err


def test_show_source(run: Run) -> None:
    """Of a file, a model, or a file of the zoo whose models need settings: the text itself."""
    for spec in ("mamba", "mamba_130m", "mamba:mamba_130m"):
        assert run("show", spec, "--source").out == resources.zoo_files()["mamba"].read_text(encoding="utf-8")
    assert run("show", "tiny.arch", "--source").out == Path("tiny.arch").read_text(encoding="utf-8")
    assert run("show", "nowhere.arch", "--source").status == 2


def test_show_options_that_exclude_each_other(run: Run) -> None:
    assert run("show", "gpt2", "--ir", "--expand").status == 2
    assert run("show", "gpt2", "--ir", "--source").status == 2
    assert run("show", "gpt2", "--block", "decoder").status == 2


# --- fmt --------------------------------------------------------------------------------------------------------------


def test_fmt(run: Run) -> None:
    assert run("fmt", "--check", "tiny.arch") == Done(1, "would format tiny.arch\n", "")
    assert Path("tiny.arch").read_text() == TINY
    assert run("fmt", "tiny.arch") == Done(0, "formatted tiny.arch\n", "")
    assert "  vocab:   64\n" in Path("tiny.arch").read_text()
    assert run("fmt", "--check", "tiny.arch") == Done(0, "", "")


def test_fmt_goes_on_after_a_file_that_cannot_be_parsed(run: Run) -> None:
    Path("bad.arch").write_text("model {")
    done = run("fmt", "bad.arch", "tiny.arch")
    assert (done.status, done.out) == (1, "formatted tiny.arch\n")
    assert "error[E01" in done.err
    assert Path("bad.arch").read_text() == "model {"


def test_fmt_takes_folders(run: Run) -> None:
    Path("specs").mkdir()
    Path("specs/a.arch").write_text(TINY)
    assert run("fmt", "specs").out == "formatted specs/a.arch\n"


# --- explain and list -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "text"), [("E0101", "# E0101"), ("e0101", "# E0101"), ("linear", "features: size"), ("mha", "Vaswani")]
)
def test_explain(run: Run, topic: str, text: str) -> None:
    done = run("explain", topic)
    assert (done.status, text in done.out) == (0, True)


def test_explain_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words, in color and without the marks of Markdown."""
    plain = run("explain", "E0101").out
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert run("explain", "E0101").status == 0
    shown = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    assert shown != terminal.getvalue()
    unmarked = re.sub(r"^(#+ |```\w*$)|[`*]", "", plain, flags=re.MULTILINE)
    assert shown.split() == unmarked.split()


@pytest.mark.parametrize("topic", ["E9999", "linaer", "causal", "normal"])
def test_explain_nothing(run: Run, topic: str) -> None:
    done = run("explain", topic)
    assert (done.status, done.out) == (2, "")
    assert "help: " in done.err


def test_every_block_and_primitive_can_be_explained() -> None:
    from archdsl.ops import registry
    from archdsl.report.reference import explain

    for topic in (*resources.library_index(), *registry.names()):
        assert explain(topic).startswith(f"# `{topic}`")


def test_every_model_of_the_zoo_is_described() -> None:
    assert all(e.description for e in archdsl.list_zoo())


# --- the command line itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["estimate"],
        ["estimate", "gpt2", "--bogus"],
        ["estimate", "gpt2", "--set", "layers"],
        ["estimate", "gpt2", "--set", "layer=3"],
        ["estimate", "gpt2", "--set", "layers=(("],
        ["estimate", "gpt2_tiny"],
        ["estimate", "none.arch"],
        ["estimate", "tiny.arch:huge"],
        ["estimate", "."],
        ["estimate", "a\0b"],
        ["estimate", "a" * 5000],
        ["fmt", "a" * 5000],
        ["check", "gpt2", "--format", "xml"],
        ["compile", "gpt2", "-o"],
        ["compile", "gpt2", "--to", "torhc"],
        ["init", "gpt2"],
        ["run", "tiny.arch", "--device", "abacus"],
        ["run", "tiny.arch", "--batch", "0"],
        ["run", "deepseek_v3"],
        ["run", "tiny.arch", "--seq", "17"],
    ],
    ids=lambda a: " ".join(a)[:40].replace("\0", "␀"),
)
def test_wrong_command_lines_end_with_2(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.strip()
    assert "Traceback" not in done.err


@pytest.mark.parametrize("arguments", [["estimate", "wrong.arch"], ["estimate", "tiny.arch", "--set", "heads=3"]])
def test_wrong_specs_end_with_1(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error[E0")


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("run tiny.arch --time 8", "--seq"),
        ("verify tiny.arch --time=8", "--seq"),
        ("estimate tiny.arch --recompute full", "--checkpoint"),
        ("fit tiny.arch --vary layers --memory 1GB --recompute full", "--checkpoint"),
        ("estimate tiny.arch --device h100_sxm", "--accelerator"),
        ("compile tiny.arch --backend onnx", "--to"),
        ("run tiny.arch --to onnx", "--backend"),
    ],
)
def test_an_option_of_another_name(run: Run, line: str, instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    done = run(*line.split())
    assert (done.status, done.out) == (2, "")
    assert f"did you mean {instead}?" in done.err


COMMANDS = [c.name or "" for c in cli.app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_options_stand_in_panels(run: Run, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags have no type, and no panel is too long to be read."""
    monkeypatch.setenv("COLUMNS", "120")
    done = run(command, "--help")
    assert (done.status, "<bool>" in done.out, "BOOLEAN" in done.out) == (0, False, False)
    panels = re.split(r"╭─ (.+?) ─+╮\n", done.out)[1:]
    for title, panel in zip(panels[::2], panels[1::2], strict=True):
        assert len(re.findall(r"^│ [* ] *--|^│ --", panel, re.MULTILINE)) <= 11, title
    unnamed = dict(zip(panels[::2], panels[1::2], strict=True)).get("Options", "")
    assert len(re.findall(r"^│ [* ] *--|^│ --", unnamed, re.MULTILINE)) <= 5


def test_commands_stand_in_panels(run: Run) -> None:
    out = run("--help").out
    assert [out.index(f"─ {title} ─") for title in ("Specs", "Estimates", "Compile and run")] == sorted(
        out.index(f"─ {title} ─") for title in ("Specs", "Estimates", "Compile and run")
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("estimate gpt2_", ["gpt2_large", "gpt2_medium", "gpt2_xl"]),
        ("estimate gpt2 --accelerator h100", ["h100_pcie", "h100_sxm"]),
        ("hardware h100_s", ["h100_sxm"]),
        ("explain swigl", ["swiglu"]),
        ("explain E030", ["E0301", "E0302", "E0303", "E0304", "E0305"]),
        ("estimate tiny.arch --set ", ["context=", "heads=", "layers=", "vocab=", "width="]),
        ("sweep gpt2 --set la", ["layers="]),
        ("estimate wrong.arch --set ", []),
        ("estimate --set ", []),
    ],
)
def test_a_shell_completes(run: Run, line: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ARCHDSL_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"archdsl {line}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert sorted(run().out.split()) == found


def test_version_and_help(run: Run) -> None:
    project = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text()
    assert f'version = "{archdsl.__version__}"' in project
    assert run("--version") == Done(0, f"archdsl {archdsl.__version__}\n", "")
    done = run("--help")
    assert done.status == 0
    for command in ("check", "estimate", "compile", "init", "show", "fmt", "explain", "list", "run", "verify"):
        assert command in done.out


def test_an_error_of_ours_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("of\nours")

    monkeypatch.setattr("archdsl.api.load", broken)
    done = run("estimate", "gpt2")
    assert (done.status, done.out) == (70, "")
    assert done.err.splitlines()[0] == "archdsl: internal error: ZeroDivisionError: of ours"
    monkeypatch.setenv("ARCHDSL_DEBUG", "1")
    from archdsl.cli import main

    with pytest.raises(ZeroDivisionError):
        main()


@pytest.mark.parametrize(
    ("problem", "status", "said"),
    [
        (MemoryError(), 2, "error[E0503]: memory ran out"),
        (RecursionError(), 1, "error[E0107]: "),
        (RuntimeError("of\nours"), 70, "archdsl: internal error: RuntimeError: of ours\n"),
        (PermissionError(13, "Permission denied", "it"), 2, "archdsl: error: it: Permission denied\n"),
    ],
)
def test_what_a_machine_lacks_is_told_apart_from_errors_of_ours(
    problem: Exception, status: int, said: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise problem

    monkeypatch.setattr("archdsl.api.load", broken)
    done = run("estimate", "gpt2")
    assert (done.status, done.out) == (status, "")
    assert done.err.startswith(said)
    monkeypatch.setenv("ARCHDSL_DEBUG", "1")
    from archdsl.cli import main

    with pytest.raises(SystemExit if isinstance(problem, OSError) else type(problem)):
        main()


def test_debug_verifies_what_passes_make(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from archdsl.cli import main
    from archdsl.ir import verify

    monkeypatch.setattr(verify, "violations", lambda model: [f"`{model.name}` is wrong"])
    monkeypatch.setattr(verify, "enabled", False)
    monkeypatch.setenv("ARCHDSL_DEBUG", "")
    assert run("estimate", "tiny.arch").status == 0
    monkeypatch.setattr(sys, "argv", ["archdsl", "--debug", "estimate", "tiny.arch"])
    with pytest.raises(InternalError, match=r"^after elaboration: `tiny` is wrong\nplease report it with the spec$"):
        main()
    monkeypatch.setenv("ARCHDSL_DEBUG", "")
    done = run("estimate", "tiny.arch")
    assert done.status == 70
    assert done.err.startswith("archdsl: internal error: after elaboration: `tiny` is wrong\narchdsl: please report it")


def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("archdsl.api.load", interrupted)
    assert run("estimate", "gpt2") == Done(130, "", "archdsl: interrupted\n")


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    child = process("compile", "deepseek_v3", "--to", "torch", cwd=tmp_path, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.close()
    _, err = child.communicate(timeout=60)
    assert err == ""
    assert child.returncode == 141


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("command", ["estimate gpt2 --json", "--help", "estimate --help"])
def test_a_full_disk(command: str, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        child = process(*command.split(), cwd=tmp_path, stdout=full)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (2, "archdsl: error: No space left on device\n")


# --- pages that show commands ----------------------------------------------------------------------------------------

PAGE = re.compile(r"# (E0108|E05\d\d): .+?## Wrong\n\n```sh\n(.+?)\n```\n\n## Right\n\n```sh\n(.+?)\n```\n", re.DOTALL)


def _pages() -> Iterator[tuple[str, str]]:
    for code in resources.error_codes():
        elsewhere = ("E0510", "E0531", "E0532", "E0533", "E0535")  # of numbers and checkpoints
        from_python = ("E0509", "E0512")
        of_modules = tuple(f"E054{n}" for n in range(9))  # tests/interop/test_lift_command.py
        if code.startswith(("E0108", "E05")) and code not in (*from_python, *elsewhere, *of_modules):
            yield code, resources.error_page(code) or ""


@pytest.mark.slow
@pytest.mark.parametrize(("code", "page"), [*_pages()])
def test_pages_that_show_commands(run: Run, code: str, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = PAGE.fullmatch(page)
    assert found is not None
    assert found[1] == code

    def ran(line: str) -> Done:
        words = shlex.split(line)
        while words[0] != "archdsl":  # NAME=VALUE before a command is of its environment
            name, _, value = words.pop(0).partition("=")
            monkeypatch.setenv(name, value)
        return run(*words[1:])

    wrong, right = (ran(line) for line in found.groups()[1:])
    assert f"error[{code}]" in wrong.err
    assert wrong.status == 2
    assert (right.status, right.err) == (0, "")


ROWS = {"target": (*TARGETS,), "optimizer": get_args(Optimizer), "loss": get_args(Loss)}


@pytest.mark.parametrize(
    ("command", "option"),
    [("compile", "target"), *((c, o) for c in ("estimate", "fit") for o in ("optimizer", "loss"))],
)
def test_what_an_option_takes_is_what_there_is(command: str, option: str) -> None:
    callback = next(c.callback for c in app.registered_commands if c.name == command)
    assert callback is not None
    hint = get_type_hints(callback)[option]
    choices = [get_args(kind) for kind in (hint, *get_args(hint))]  # of a Literal, or of one that may be None
    assert ROWS[option] in choices, "a new row is named in the option's type, too"
