"""The scripts of `examples/`: training goes on from a checkpoint as if it had never stopped, and the tour runs."""

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_tools import Run
from cli_tools import run as here
from safetensors.torch import load_file
from torch_emit import parallel_tools

import archdsl

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SMALL = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 32}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def module() -> Any:
    torch.manual_seed(0)
    return archdsl.to_torch(EXAMPLES / "tiny_llama.arch", set=SMALL)


@pytest.mark.usefixtures("scripts")
def test_training_resumes(tmp_path: Path) -> None:
    from train import Plan, read_bytes, train

    data = read_bytes([EXAMPLES / "gpt2.arch", EXAMPLES / "llama3.arch"])
    plan = Plan(steps=6, batch=2, seq=16, warmup=2, save_every=3)
    checkpoint = tmp_path / "run.safetensors"

    whole = module()
    losses = [loss for _, loss in train(whole, data, plan)]
    list(itertools.islice(train(module(), data, plan, checkpoint), 4))  # stopped after the checkpoint of step 3
    resumed = module()
    rest = list(train(resumed, data, plan, checkpoint))

    assert [step for step, _ in rest] == [3, 4, 5]
    assert [loss for _, loss in rest] == losses[3:]
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name]


@pytest.mark.usefixtures("scripts")
def test_the_section_loss_changes_no_loss() -> None:
    """Nor the terms that a spec adds, which are trained on and not told."""
    from train import Plan, loss_of, read_bytes

    text = (
        "model m { vocab: 256  context: 32  width: 16  blocks: 1 * layer  norm: rmsnorm  head: lm }\n"
        "block layer { attention: mha(heads: 2)  mask: causal"
        "  ffn: moe(experts: 4, top_k: 2, expert: swiglu(hidden: 16), router: softmax_router) }"
    )
    tokens = read_bytes([EXAMPLES / "gpt2.arch"])[: 4 * 33].view(4, 33)
    found = []
    for features in ((), ("loss",)):
        torch.manual_seed(Plan().seed)
        model = archdsl.to_torch(text=text, features=features).train()
        loss = loss_of(model, tokens[:, :-1], tokens[:, 1:])
        found.append((loss, {name: weight.grad for name, weight in model.named_parameters()}))
    (whole, gradients), (chunked, others) = found
    torch.testing.assert_close(whole, chunked)
    torch.testing.assert_close(gradients, others)


@pytest.mark.usefixtures("scripts")
def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    from train import Plan, read_bytes, train

    data = read_bytes([EXAMPLES / "gpt2.arch"])
    checkpoint = tmp_path / "run.safetensors"
    list(train(module(), data, Plan(steps=1, batch=1, seq=8), checkpoint))
    other = archdsl.to_torch(EXAMPLES / "tiny_llama.arch", set={**SMALL, "width": 64})
    with pytest.raises(SystemExit, match="not a checkpoint of this model"):
        list(train(other, data, Plan(steps=2, batch=1, seq=8), checkpoint))
    checkpoint.write_bytes(b"nothing")
    with pytest.raises(SystemExit, match="not a checkpoint of this model"):
        list(train(module(), data, Plan(steps=2, batch=1, seq=8), checkpoint))


@pytest.mark.slow
@pytest.mark.usefixtures("scripts")
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import train

    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(archdsl.torch_source(EXAMPLES / "tiny_llama.arch", set=SMALL), encoding="utf-8")
    text = str(EXAMPLES / "gpt2.arch")
    sized = ["--steps", "2", "--batch", "2", "--seq", "16", "--device", "cpu"]
    monkeypatch.setattr(
        sys, "argv", ["train.py", "small.py", text, *sized, "--bf16", "-o", "w.safetensors", "--sample", "model "]
    )
    train.main()
    said = capsys.readouterr().out
    assert "loss" in said
    assert "model " in said
    state = load_file("w.safetensors")
    archdsl.to_torch(EXAMPLES / "tiny_llama.arch", set=SMALL).load_state_dict(state)


@pytest.mark.slow
@pytest.mark.usefixtures("scripts")
def test_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    import demo

    monkeypatch.setattr(demo, "EMITTED", str(tmp_path / "tiny_llama.py"))
    monkeypatch.setattr(demo, "WEIGHTS", str(tmp_path / "tiny_llama.safetensors"))
    monkeypatch.setattr(demo, "PLAN", demo.Plan(steps=2, batch=2, seq=32))
    monkeypatch.setattr(demo, "archdsl", lambda *arguments: print(here(*arguments)[1]))
    monkeypatch.chdir(demo.ROOT)
    demo.main()
    said = capfd.readouterr().out
    for promised in ("no errors", "671,026,404,352", "class Decoder", "backward", "step    1", "norm"):
        assert promised in said


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small spec and the tokens of a text: its bytes."""
    monkeypatch.chdir(tmp_path)
    small = (EXAMPLES / "tiny_llama.arch").read_text(encoding="utf-8")
    for name, number in SMALL.items():
        small = re.sub(rf"\b{name} = \d+", f"{name} = {number}", small)
    Path("small.arch").write_text(small, encoding="utf-8")
    script("tokenize_text.py", "tokens.bin", str(EXAMPLES / "gpt2.arch"), "--end", "0")
    text = (EXAMPLES / "gpt2.arch").read_bytes()
    assert bytes(np.fromfile("tokens.bin", dtype=np.uint32).tolist()) == text + b"\0"
    return tmp_path


def script(name: str, *arguments: str) -> str:
    """Run a script of `examples/` here and return what it says."""
    return parallel_tools.script(name, *arguments, folder=Path.cwd())


@pytest.mark.slow
@pytest.mark.usefixtures("tokens")
def test_the_plain_loop() -> None:
    steps = ("--steps", "30", "--batch", "4", "--seq", "32", "--warmup", "5", "--rate", "1e-2", "--peak", "1e12")
    said = script("train_loop.py", "small.arch", "tokens.bin", *steps)
    loss, rate, mfu = re.findall(r"loss ([\d.]+)  ([\d,]+) tokens/s  MFU ([\d.]+)%", said)[-1]
    assert float(loss) < 4
    # MFU is the rate by the FLOPs of a token.
    flops = archdsl.flops("small.arch", batch=4, seq=32).training / (4 * 32)
    assert float(mfu) == pytest.approx(float(rate.replace(",", "")) * flops / 1e12 * 100, abs=0.06)
    archdsl.to_torch("small.arch").load_state_dict(load_file("weights.safetensors"))


@pytest.mark.slow
@pytest.mark.usefixtures("tokens")
def test_lightning() -> None:
    pytest.importorskip("lightning")
    script("train_lightning.py", "small.arch", "tokens.bin", "--steps", "3", "--batch", "2", "--seq", "16")
    (checkpoint,) = Path("lightning_logs").rglob("*.ckpt")
    state = torch.load(checkpoint, weights_only=False)["state_dict"]
    archdsl.to_torch("small.arch").load_state_dict({n.removeprefix("model."): t for n, t in state.items()})


@pytest.mark.slow
@pytest.mark.usefixtures("tokens")
def test_the_trainer_of_transformers(run: Run) -> None:
    assert run("compile", "small.arch", "--to", "hf", "--remote-code", "--seed", "0", "-o", "folder")[0] == 0
    sized = ("folder", "tokens.bin", "--batch", "4", "--seq", "32", "--rate", "1e-2")
    said = script("train_transformers.py", *sized, "--steps", "30", "--output", "whole")
    assert float(re.findall(r"'train_loss': '?([\d.]+)", said)[0]) < 4.5
    assert {"config.json", "model.safetensors", "modeling_tiny_llama.py"} <= {p.name for p in Path("whole").iterdir()}
    script("train_transformers.py", *sized, "--steps", "2", "--lora", "4", "--output", "adapters")
    assert {name.rpartition(".lora")[0] for name in load_file("adapters/adapter_model.safetensors")} == {
        f"base_model.model.model.blocks.0.{layer}"
        for layer in ("attention.q", "attention.k", "attention.v", "attention.out", "ffn.gate", "ffn.up", "ffn.down")
    }


# --- several processes ------------------------------------------------------------------------------------------------


def losses(folder: Path, script: str, processes: int, *arguments: str) -> list[str]:
    """The loss of each step, as a script prints it in several processes."""
    given = ("model.py", "tokens.bin", *arguments, "--seq", "16")
    said = parallel_tools.script(script, *given, folder=folder, world=processes, ACCELERATE_USE_CPU="1")
    return re.findall(r"loss ([\d.]+)", said)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder with an emitted model and tokens."""
    source = archdsl.torch_source(EXAMPLES / "tiny_llama.arch", set=SMALL, features=["loss", "parallel"])
    (tmp_path / "model.py").write_text(source)
    np.random.default_rng(0).integers(256, size=5000, dtype=np.uint32).tofile(tmp_path / "tokens.bin")
    return tmp_path


@pytest.mark.slow
def test_sharded_training_resumes_and_equals_that_of_one_process(prepared: Path) -> None:
    """Two processes go on from the checkpoint of one as it does itself, and from their own."""
    script = "train_fsdp.py"
    alone = losses(prepared, script, 1, "run", "--batch", "4", "--steps", "3", "--every", "1")
    (prepared / "run" / "last").write_text("1")
    both = losses(prepared, script, 2, "run", "--batch", "2", "--steps", "3", "--every", "1")
    assert [float(x) for x in both] == pytest.approx([float(x) for x in alone[1:]], abs=2e-5)
    (prepared / "run" / "last").write_text("2")
    assert losses(prepared, script, 2, "run", "--batch", "2", "--steps", "3") == both[1:]


@pytest.mark.slow
def test_training_with_accelerate(prepared: Path) -> None:
    """Two processes take the steps of one that has their batches together."""
    found = losses(prepared, "train_accelerate.py", 2, "--batch", "2", "--steps", "2")
    assert len(found) == 2
    assert {"weights.pt"} <= {path.name for path in prepared.iterdir()}
