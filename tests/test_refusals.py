"""What the machine or an option cannot do ends in a diagnostic, and an option that would say nothing is refused."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_tools import TINY, run

from archdsl.diagnostics import ArchError
from archdsl.diagnostics.exhausted import exhaustion_told

LARGE = "123456789012345678901234567890"

OPTIONS = {
    f"estimate tiny.arch --batch {LARGE}": "--batch",
    f"estimate tiny.arch --seq {LARGE}": "--seq",
    f"init tiny.arch -o w.safetensors --seed {LARGE}": "--seed",
    "compile tiny.arch --to hf -o hf --names spec": "--to onnx",
    "estimate tiny.arch --mesh dp=2 --checkpoint-every 2": "--checkpoint",
    "estimate tiny.arch --mesh dp=2 --mesh=tp=2": "is given once",
    "compile tiny.arch -o tiny.py --with generate --with loss": "is given once",
    "fit tiny.arch --params 1M --vary layers --vary width": "is given once",
    "estimate tiny.arch --mesh dp=2 --float32-gradients": "has no effect",
    "estimate tiny.arch --master-weights": "has no effect",
    "fit tiny.arch --params 1M --vary layers --multiple width=64": "has no effect",
    "fit tiny.arch --params 1M --vary layers --multiple layers=2 --multiple layers=3": "is given twice",
    "sweep tiny.arch --set layers=1,2 --set layers=3": "is given twice",
    "compile tiny.arch -o tiny.py --with ,generate": "has no feature ``",
    "compile tiny.arch --to hf": "a folder cannot go to standard output",
    "compile tiny.arch --to hf -o -": "a folder cannot go to standard output",
    "compile tiny.arch --to hf -o hf --native --remote-code": "choose one",
    "compile tiny.arch --to hf -o hf --weights w.safetensors --seed 3": "choose one",
    "compile tiny.arch --to hf -o hf --eos-token-id 64": "`--eos-token-id 64` is no token of the model",
    "compile tiny.arch --to hf -o hf --eos-token-id 3 --pad-token-id 64": "`--pad-token-id 64` is no token",
    "diff tiny.arch tiny.arch --all -o x.svg": "one pair of models is drawn",
    "estimate tiny.arch --measure --mesh dp=2": "one device is measured",
    "estimate tiny.arch --mesh pp=2 --stages 1,x": "write it as 7,8,8,7, not '1,x'",
    "estimate tiny.arch --accelerator h100_sxm --tokens 1e9 --price inf": "`price` is a number of at least 0",
    f"weights tiny.arch --from hf x --init-missing --seed {LARGE} -o z": "--seed",
    "weights tiny.arch --to hf --weights w --rename a=b -o z": "it goes with --from",
    "weights tiny.arch --from hf x.safetensors --weights y.safetensors -o z": "--to",
}
MEANT = {
    "estimate tiny.arch --dtype bf16": "did you mean bfloat16?",
    "estimate tiny.arch --batch x": "it takes a whole number",
    "check tiny.arch --set layers=2 width=64": "each setting has an option of its own: `--set width=64`",
    "check Qwen/Qwen3-8B": "did you mean `qwen3_8b`? `archdsl import FOLDER -o model.arch` writes the spec of a",
    "estimate tiny.arch --set layers=2 width=64": "--set takes one setting and is repeated: --set width=64",
}
SAMPLING = {
    "--device meta": "there is no device `meta`",
    "--temperature 1e-40": "at least 0.001",
    "--temperature 1 --top-p 0": "top_p 0",
    "--top-k 3": "temperature 0",
    "--top-p 0.5": "temperature 0",
    "--stop 64": "there is no token 64",
    f"--prompt {LARGE}": "there is no token",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny.arch").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", OPTIONS)
def test_options_beyond_their_range_or_without_effect(command: str, folder: Path) -> None:
    status, said = run(*command.split())
    assert status == 2
    assert OPTIONS[command] in said
    assert [p.name for p in folder.iterdir()] == ["tiny.arch"]


@pytest.mark.slow
@pytest.mark.parametrize("options", SAMPLING)
def test_sampling_that_chooses_no_token(options: str, folder: Path) -> None:
    prompt = [] if "--prompt" in options else ["--prompt", "1"]
    status, said = run("generate", "tiny.arch", *prompt, *options.split())
    assert (status, SAMPLING[options] in said) == (2, True), said


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "run --backend onnx", "verify"])
def test_what_memory_cannot_hold_is_refused_before_inputs_are_drawn(command: str, folder: Path) -> None:
    status, said = run(*command.split(), "tiny.arch", "--batch", "1000000000")
    assert (status, "inputs and results alone take" in said) == (2, True), said


@pytest.mark.parametrize("command", MEANT)
def test_what_was_meant_is_said(command: str, folder: Path) -> None:
    status, said = run(*command.split())
    assert status == 2
    assert MEANT[command] in " ".join(said.replace("│", " ").split())


def test_a_sequence_beyond_the_context_names_it(folder: Path) -> None:
    for command in ("estimate", "run"):
        status, said = run(command, "tiny.arch", "--seq", "5000")
        assert status == 2, said
        assert "context = 16" in said
        assert "`--seq 16` is the longest; `--set context=5000` takes this one" in said


@pytest.mark.slow
@pytest.mark.parametrize("command", ["estimate", "run"])
def test_a_length_at_which_an_input_has_no_size_names_one_that_fits(command: str, folder: Path) -> None:
    text = "model m(x: [batch, time, 8], y: [batch, time / 2, 8]) -> [batch, time, 8] { return x -> linear(8) }"
    (folder / "half.arch").write_text(text)
    status, said = run(command, "half.arch", "--seq", "5")
    assert (status, said.splitlines()) == (
        2,
        ["error[E0503]: an input's size would be 2.5 at these lengths", "= help: `--seq 4` fits"],
    )
    assert run(command, "half.arch", "--seq", "4")[0] == 0


def too_deep() -> None:
    too_deep()


def of_numpy() -> None:
    import numpy as np

    np.zeros(2**58)


def of_torch() -> None:
    import torch

    torch.empty(2**58)


def beyond_sizes() -> None:
    import torch

    torch.empty(2**40, 2**40)


@pytest.mark.slow
@pytest.mark.parametrize("work", [too_deep, of_numpy, of_torch, beyond_sizes])
def test_what_runs_out_is_told(work: Callable[[], None]) -> None:
    """What Python, NumPy and PyTorch themselves raise."""
    with pytest.raises(ArchError) as told, exhaustion_told():
        work()
    (found,) = told.value.diagnostics
    assert found.code == ("E0107" if work is too_deep else "E0503")
    assert found.help


def test_another_error_is_none_of_the_machine() -> None:
    with pytest.raises(RuntimeError, match="shape mismatch"), exhaustion_told():
        raise RuntimeError("shape mismatch")


@pytest.mark.slow
def test_a_closed_standard_output_is_told(folder: Path) -> None:
    script = f'"{sys.executable}" -m archdsl estimate tiny.arch >&-'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 2
    assert done.stderr == "archdsl: error: not writable\n"
