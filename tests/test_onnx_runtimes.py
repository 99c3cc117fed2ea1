"""Graphs of decoding steps in the runtimes that generate: onnxruntime-genai and optimum, as released, and a loop of
one's own. All must give the tokens that the emitted PyTorch gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from decode_tools import inputs_for, module_of
from docs.pages import ROOT, blocks
from runtime_tools import in_runtimes
from safetensors.torch import save_file
from typer.testing import CliRunner
from zoo.tiny import graph

import archdsl
from archdsl.backends.onnx.step import RowsUnsupportedError, StepWriter
from archdsl.cli import app
from archdsl.diagnostics import ArchError
from archdsl.ir.graph import Model
from archdsl.passes.flatten import FlatOp

COUNT = 20
ROWS = [[3, 70, 55, 80, 13], [35, 89, 79]]  # the likeliest token is so by far, in half precision too

# Heads that do not make up the width, and values narrower than keys.
SPEC = """
block wide(x: [batch, time, width]) -> [batch, time, width] {
  h = x -> rmsnorm
  q = h -> linear(96) as q -> split_heads(4)
  k = h -> linear(48) as k -> split_heads(2)
  v = h -> linear(48) as v -> split_heads(2)
  return x + (sdpa(q, k, v, mask: causal, position: rope) -> merge_heads -> linear(width))
}

block uneven(x: [batch, time, width]) -> [batch, time, width] {
  h = x -> rmsnorm
  q = h -> linear(64) as q -> split_heads(4)
  k = h -> linear(64) as k -> split_heads(4)
  v = h -> linear(32) as v -> split_heads(4)
  return x + (sdpa(q, k, v, mask: causal, position: rope) -> merge_heads -> linear(width))
}

block layer {
  attention: gqa(heads: 4, kv_heads: 2)
  mask:      causal
  position:  rope
  ffn:       swiglu(hidden: 96)
  norm:      rmsnorm
}

model wide_heads {
  vocab: 128
  context: 64
  width: 64
  blocks: 2 * wide
  head: lm
}

model uneven_heads {
  vocab: 128
  context: 64
  width: 64
  blocks: 2 * uneven
  head: lm
}

model llama {
  vocab: 128
  context: 64
  width: 64
  blocks: 2 * layer
  head: lm(tied: true)
}

model varied {
  vocab: 128
  context: 64
  width: 64
  blocks: wide + layer
  head: lm
}
"""

GPT2 = {"layers": 2, "width": 48, "heads": 3, "vocab": 128, "context": 64}
OWN = {name: archdsl.load(text=SPEC, model=name) for name in ("llama", "wide_heads", "uneven_heads", "varied")}
MODELS = {
    "llama": (OWN["llama"], {}),
    "llama-ort": (OWN["llama"], {"target": "ort-cpu"}),
    "llama-half": (OWN["llama"], {"dtype": "float16"}),
    "llama-last": (OWN["llama"], {"logits": "last"}),
    "llama-ort-last": (OWN["llama"], {"target": "ort-cpu", "logits": "last"}),
    "gpt2": (archdsl.load("gpt2", set=GPT2), {}),
    "wide": (OWN["wide_heads"], {}),
    "uneven": (OWN["uneven_heads"], {}),
}
FOR_GENAI = [name for name in MODELS if name != "uneven"]

GENAI = """
import json, sys, numpy, onnxruntime_genai as og
count, found = int(sys.argv[2]), {}
for folder, rows in json.loads(sys.argv[1]).items():
    model = og.Model(folder)
    pad = json.load(open(f"{folder}/genai_config.json"))["model"]["pad_token_id"]
    found[folder] = []
    for batch in ([rows[0]], [rows[1]], rows):
        params = og.GeneratorParams(model)
        longest = max(map(len, batch))
        params.set_search_options(batch_size=len(batch), max_length=longest + count)
        generator = og.Generator(model, params)
        generator.append_tokens(numpy.array([r + [pad] * (longest - len(r)) for r in batch], numpy.int32))
        while not generator.is_done():
            generator.generate_next_token()
        found[folder] += [generator.get_sequence(i).tolist()[longest:] for i in range(len(batch))]
print(json.dumps(found))
"""

OPTIMUM = """
import json, sys, torch
from optimum.onnxruntime import ORTModelForCausalLM
count, found = int(sys.argv[2]), {}
for folder, rows in json.loads(sys.argv[1]).items():
    model = ORTModelForCausalLM.from_pretrained(folder)
    pad = model.config.pad_token_id
    found[folder] = []
    for batch in ([rows[0]], [rows[1]], rows):
        longest = max(map(len, batch))
        tokens = torch.tensor([[pad] * (longest - len(r)) + r for r in batch])
        mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in batch])
        made = model.generate(tokens, attention_mask=mask, max_new_tokens=count, do_sample=False)
        found[folder] += made[:, longest:].tolist()
print(json.dumps(found))
"""


def export(model: Model, module: torch.nn.Module, folder: Path, **options: Any) -> Path:
    """The graphs of a model with the weights of its emitted module, and all that lies beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder.parent / f"{folder.name}.safetensors"
    save_file({k: t.contiguous() for k, t in module.state_dict().items()}, weights)
    files = archdsl.to_onnx(model, folder, decode=True, weights=weights, **options)
    assert all(path.is_file() for path in files.graphs + files.configs)
    return folder


def greedy(module: torch.nn.Module, rows: Sequence[Sequence[int]], count: int, **others: Any) -> list[list[int]]:
    """What the emitted module goes on with, the whole sequence anew each time."""
    ids = torch.tensor(rows)
    name = "tokens" if "source" not in others else "target"
    for _ in range(count):
        with torch.no_grad():
            result = module(**{name: ids}, **others)
        logits = result if isinstance(result, torch.Tensor) else result[0]
        ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids[:, len(rows[0]) :].tolist()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("runtimes")
    return {n: export(m, module_of(m), place / n, pad_token_id=127, **o) for n, (m, o) in MODELS.items()}


@pytest.fixture(scope="module")
def expected() -> dict[str, list[list[int]]]:
    """Of each row alone, and again of both."""
    found = {}
    for name, (model, options) in MODELS.items():
        module = module_of(model)
        if options.get("dtype") == "float16":
            module = module.half()
        found[name] = 2 * [greedy(module, [row], COUNT)[0] for row in ROWS]
        assert len({*found[name][0], *found[name][1]}) > 4, "the weights let the model say one thing only"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("script", [GENAI, OPTIMUM], ids=["onnxruntime-genai", "optimum"])
def test_runtimes_say_what_pytorch_says(
    script: str, folders: dict[str, Path], expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each model, of a text that ends with its token, and of a graph without positions by row, which takes rows of
    one length."""
    names = FOR_GENAI if script == GENAI else [*MODELS]
    model, _ = MODELS["llama"]
    module = module_of(model)
    alone = expected["llama"][0]
    last = next(t for i, t in enumerate(alone) if i > 1 and t not in alone[:i])
    ends = export(model, module, tmp_path / "ends", eos_token_id=[last, 126], bos_token_id=1)

    def unable(writer: StepWriter, flat: FlatOp) -> None:
        if writer.by_row:
            raise RowsUnsupportedError(flat.node.op.name)

    monkeypatch.setattr(StepWriter, "ready", unable)
    plain = export(model, module, tmp_path / "plain", pad_token_id=127)
    inputs = read(plain, "genai_config.json")["model"]["decoder"]["inputs"]
    assert [k for k in inputs if not k.startswith("past")] == ["input_ids"]

    rows = {str(f): ROWS for f in (*(folders[n] for n in names), ends)} | {str(plain): [row[:3] for row in ROWS]}
    found = json.loads(in_runtimes(script, json.dumps(rows), str(COUNT)).splitlines()[-1])
    assert {n: found[str(folders[n])] for n in names} == {n: expected[n] for n in names}
    said = alone[: alone.index(last) + 1]
    assert found[str(ends)][0] == said or (script == GENAI and found[str(ends)][0] == said[:-1])
    assert found[str(plain)] == 2 * greedy(module, rows[str(plain)], COUNT)


# --- the files --------------------------------------------------------------------------------------------------------


def read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def test_config_json_holds_the_sizes_of_keys_and_values(folders: dict[str, Path]) -> None:
    sizes = ("model_type", "hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "head_dim")
    found = {n: tuple(read(f, "config.json")[k] for k in sizes) for n, f in folders.items()}
    assert found["llama"] == found["llama-ort"] == found["llama-half"] == ("llama", 64, 4, 2, 2, 16)
    assert found["gpt2"] == ("llama", 48, 3, 3, 2, 16)
    assert found["wide"] == ("gemma", 64, 4, 2, 2, 24)
    assert found["uneven"] == ("deepseek_v3", 64, 4, 4, 2, 16)
    config = read(folders["uneven"], "config.json")
    assert (config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]) == (16, 0, 8)
    assert read(folders["llama"], "config.json") | {
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": 127,
    } == (read(folders["llama"], "config.json"))


def test_genai_config_names_what_the_graph_has(folders: dict[str, Path]) -> None:
    config = read(folders["llama"], "genai_config.json")
    decoder = config["model"]["decoder"]
    assert (config["model"]["type"], config["model"]["context_length"], config["model"]["vocab_size"]) == (
        "decoder",
        64,
        128,
    )
    assert [decoder[k] for k in ("filename", "head_size", "num_key_value_heads", "num_hidden_layers")] == [
        "model.onnx",
        16,
        2,
        2,
    ]
    assert "eos_token_id" not in config["model"]  # nobody said what ends a text
    proto = onnx.load(folders["llama"] / "model.onnx", load_external_data=False).graph
    patterns = [*decoder["inputs"].values(), *decoder["outputs"].values()]
    names = {p % i if "%d" in p else p for p in patterns for i in range(2)}
    assert names == {x.name for x in [*proto.input, *proto.output]}


def test_buffers_are_shared_where_attention_appends_itself(folders: dict[str, Path]) -> None:
    shared = {n: read(folders[n], "genai_config.json")["search"]["past_present_share_buffer"] for n in FOR_GENAI}
    assert shared == {n: n.startswith("llama-ort") for n in FOR_GENAI}


TINY_T5 = {"layers": 2, "width": 32, "heads": 2, "head_dim": 16, "hidden": 48, "vocab": 96}


@pytest.mark.parametrize(
    ("model", "remark"),
    [
        (
            archdsl.load("lstm_lm_small", set={"width": 16, "vocab": 96}),
            "`past_key_values.0.h` holds neither keys nor values",
        ),
        (archdsl.load("t5_small", set=TINY_T5), "the model has an encoder"),
        (OWN["varied"], "differ in size from layer to layer"),
    ],
    ids=["recurrent", "encoder", "layers that differ"],
)
def test_models_that_the_runtimes_cannot_feed_get_no_files(model: Model, remark: str, tmp_path: Path) -> None:
    files = archdsl.to_onnx(model, tmp_path / "out", decode=True, seed=0)
    assert (remark in files.remark, files.configs) == (True, ())
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".onnx", ".safetensors"}


ODD = """
block layer(x: [batch, time, 16]) -> [batch, time, 16] { return x + (x -> mha(heads: 2, mask: causal, position: rope)) }
block reader(x: [batch, time, 16], k: [batch, heads, time, dim]) -> [batch, time, 16] {
  return x + (sdpa(x -> linear(16) -> split_heads(heads), k, k, mask: causal) -> merge_heads)
}
"""
FROM_TOKENS = "(tokens: token[batch, time]) {{ x = tokens -> embedding(40, 16)\n {} }}"


@pytest.mark.parametrize(
    ("model", "remark", "configs"),
    [
        ("(x: [batch, time, 16]) { return x -> layer -> linear(40) }", "since the model reads no token ids", []),
        (
            "(ids: token[batch, time], e: [batch, time, 16]) { return (e + (ids -> embedding(40, 16))) -> layer }",
            "since nothing feeds `e`",
            [],
        ),
        (FROM_TOKENS.format("return x -> linear(40)"), "since the model keeps nothing of the tokens before", []),
        (
            FROM_TOKENS.format("k = x -> linear(16) -> split_heads(2)\n return reader(reader(x, k), k) -> linear(40)"),
            "since not every layer keeps keys and values of its own",
            [],
        ),
        (
            FROM_TOKENS.format("return (x -> pad(2, axis: 1) -> layer)[:, 2:] -> linear(40)"),
            "since the cache holds places in front of the tokens",
            [],
        ),
        (
            FROM_TOKENS.format("return x -> layer -> linear(40) -> unflatten(-1, 2, 20)"),
            "since `logits` is not a number for each token of a vocabulary",
            [],
        ),
        (
            FROM_TOKENS.format("return x -> layer -> linear(40)"),
            "no genai_config.json, since onnxruntime-genai needs a context and the model has none",
            ["config.json"],
        ),
        (
            FROM_TOKENS.replace(" {{", " -> (scores: [...]) {{").format("return x -> layer -> linear(40)"),
            "no config.json, since optimum expects an output called logits, not scores; no genai_config.json",
            [],
        ),
    ],
)
def test_models_without_a_file_of_some_runtime(model: str, remark: str, configs: list[str], tmp_path: Path) -> None:
    files = archdsl.to_onnx(text=f"{ODD}model m{model}", output=tmp_path / "out", decode=True, seed=0)
    assert remark in files.remark
    assert [p.name for p in files.configs] == configs


def test_keys_and_values_of_two_sizes_are_for_optimum_alone(folders: dict[str, Path], tmp_path: Path) -> None:
    files = archdsl.to_onnx(OWN["uneven_heads"], tmp_path / "out", decode=True, seed=0)
    assert [p.name for p in files.configs] == ["config.json"]
    assert "no genai_config.json" in files.remark
    assert not (folders["uneven"] / "genai_config.json").exists()


def test_where_one_place_is_enough(folders: dict[str, Path]) -> None:
    """From the last attention on: its result and what is added to it are read, and one place of each row taken."""
    nodes = {n: onnx.load(folders[n] / "model.onnx", load_external_data=False).graph for n in ("llama", "llama-last")}
    assert [d.dim_value for d in nodes["llama-last"].output[0].type.tensor_type.shape.dim] == [0, 1, 128]
    taken = [n for n in nodes["llama-last"].node if n.name.startswith("last/") and n.op_type == "GatherND"]
    assert [n.input[0] for n in taken] == ["blocks.1.attention/Reshape_3", "blocks.0/Add_1"]


def test_no_last_place_without_steps(tmp_path: Path) -> None:
    given: list[Any] = [{"logits": "last"}, {"logits": "first", "decode": True}]
    for options in given:
        with pytest.raises(ArchError, match="E0504"):
            archdsl.to_onnx(text=SPEC, model="llama", output=tmp_path / "out", seed=0, **options)
    text = """
    model by_head(vocab = 16)(tokens: token[batch, time]) -> [batch, 2, time, 4] {
      x = tokens -> embedding(vocab, 8) -> split_heads(2)
      return sdpa(x, x, x, mask: causal)
    }"""
    with pytest.raises(ArchError, match=r"the positions of .* are not along its second axis"):
        archdsl.to_onnx(text=text, output=tmp_path / "out", seed=0, decode=True, logits="last")
    assert list(tmp_path.iterdir()) == []


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.arch").write_text(SPEC)
    return lambda *a: CliRunner().invoke(app, ["compile", "spec.arch:llama", *a], prog_name="archdsl")


def test_a_file_gets_the_graph_alone(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run("--to", "onnx", "--decode", "--seed", "0", "-o", "step.onnx")
    assert (done.exit_code, done.output) == (0, "")
    assert {p.name for p in tmp_path.iterdir()} == {"spec.arch", "step.onnx", "step.safetensors"}


def test_a_directory_gets_what_the_runtimes_read(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run(
        "--to", "onnx", "--decode", "--eos-token-id", "5", "--eos-token-id", "7", "--bos-token-id", "1", "-o", "d/"
    )
    assert done.exit_code == 0
    assert "has no weights yet" in done.output
    config = read(tmp_path / "d", "config.json")
    assert [config[f"{k}_token_id"] for k in ("bos", "eos", "pad")] == [1, [5, 7], 5]
    ids = read(tmp_path / "d", "genai_config.json")["model"]
    assert [ids[f"{k}_token_id"] for k in ("bos", "eos", "pad")] == [1, [5, 7], 5]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "torch", "--decode"], "it goes with --to onnx"),
        (["--to", "torch", "--eos-token-id", "1"], "it goes with --to onnx --decode"),
        (["--to", "torch", "--logits", "last"], "it goes with --to onnx --decode"),
        (["--to", "onnx", "-o", "x.onnx", "--pad-token-id", "1"], "it goes with --decode"),
        (["--to", "onnx", "-o", "x.onnx", "--logits", "last"], "it goes with --decode"),
        (["--to", "onnx", "-o", "x.onnx", "--decode", "--pad-token-id", "1"], "only a directory gets"),
        (["--to", "onnx", "-o", "x/", "--decode", "--eos-token-id", "128"], "`--eos-token-id 128` is no token"),
        (["--to", "onnx", "-o", "x/", "--decode", "--eos-token-id", "-1"], "Invalid value for"),
        (
            ["--to", "onnx", "-o", "x/", "--decode", "--target", "ort-cpu", "--dtype", "bfloat16"],
            "does not run bfloat16",
        ),
        (["--to", "onnx", "-o", "x/", "--decode", "--quantize", "int8", "--seed", "0"], "quantized weights in float32"),
    ],
)
def test_what_says_nothing_is_refused(run: Callable[..., Any], tmp_path: Path, options: list[str], said: str) -> None:
    done = run(*options)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())
    assert [p.name for p in tmp_path.iterdir()] == ["spec.arch"]


# --- few bits ---------------------------------------------------------------------------------------------------------


def test_steps_of_few_bits_keep_what_they_are_told_to(run: Callable[..., Any], tmp_path: Path) -> None:
    few = ["--to", "onnx", "--decode", "--seed", "0", "--target", "ort-cpu", "--quantize", "int8"]
    assert run(*few, "--keep", "*.ffn.*", "-o", "d/").exit_code == 0
    proto = onnx.load(tmp_path / "d" / "model.onnx", load_external_data=False).graph
    few_bits = {n.input[1] for n in proto.node if n.op_type == "MatMulNBits"}
    assert len(few_bits) == 9  # of attention, and the head
    assert not any(".ffn." in name for name in few_bits)
    assert run(*few, "--keep", "nothing.*", "-o", "d/").exit_code == 2


def test_patterns_may_name_what_only_the_encoder_has(tmp_path: Path) -> None:
    model = archdsl.load("t5_small", set=TINY_T5)
    options: dict[str, Any] = {"decode": True, "seed": 0, "target": "ort-cpu", "quantize": "int8"}
    every = archdsl.to_onnx(model, tmp_path / "every", **options).quantized
    some = archdsl.to_onnx(model, tmp_path / "some", keep=["encoder.*"], **options).quantized
    assert {*every} - {*some} == {path for path in every if path.startswith("encoder.")} != set()


# --- a loop of one's own ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generate() -> Callable[..., Any]:
    """The loop of docs/generate.md."""
    names: dict[str, Any] = {}
    (block,) = [b for b in blocks(ROOT / "docs" / "generate.md") if "def generate" in b.text]
    exec(compile(block.text, str(block), "exec"), names)
    found: Callable[..., Any] = names["generate"]
    return found


PLAIN = {
    "llama": OWN["llama"],
    "gpt2": archdsl.load("gpt2", set=GPT2),
    "varied": OWN["varied"],
    "mla": graph("deepseek_v3:deepseek_v3"),
    "lstm": archdsl.load("lstm_lm_small", set={"width": 16, "vocab": 96}),
    "gru": archdsl.load("gru_lm", set={"width": 16, "vocab": 96}),
    "mamba": archdsl.load("mamba_130m", set={"layers": 2, "width": 32, "state": 8, "vocab": 96, "context": 64}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_the_loop_of_the_page_takes_every_kind_of_state(
    name: str, generate: Callable[..., Any], tmp_path: Path
) -> None:
    model = PLAIN[name]
    module = module_of(model)
    folder = export(model, module, tmp_path / name)
    rows = [row[:3] for row in ROWS]
    assert generate(folder, np.array(rows), COUNT)[:, 3:].tolist() == greedy(module, rows, COUNT)


def test_the_loop_of_the_page_takes_an_encoder(generate: Callable[..., Any], tmp_path: Path) -> None:
    model = archdsl.load("t5_small", set=TINY_T5)
    module = module_of(model)
    folder = export(model, module, tmp_path / "t5")
    assert {p.name for p in folder.iterdir()} == {"model.onnx", "encoder.onnx", "model.safetensors"}
    others = {k: t for k, t in inputs_for(model, {"batch": 2}).items() if k in ("source", "padding")}
    called = {"input_ids": others["source"].numpy(), "attention_mask": others["padding"].long().numpy()}
    made = generate(folder, np.array([[0], [1]]), COUNT, **called)
    assert made[:, 1:].tolist() == greedy(module, [[0], [1]], COUNT, **others)
