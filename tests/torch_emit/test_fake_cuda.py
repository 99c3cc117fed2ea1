"""On a fake CUDA device a model of each kind, at its own size, waits for nothing, has no tensor on the CPU, copies
nothing and computes nothing in float64: in forward, in its loss with gradients, and in steps. For twice the length it
launches as many kernels, and few in a step. No step of any spec of `decoding.txt` waits, in any form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fake_cuda_hooks
import pytest
from decoding import listed
from zoo import sizes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(fake_cuda_hooks.missing()), reason=fake_cuda_hooks.missing()),
]

SCRIPT = Path(fake_cuda_hooks.__file__).with_name("fake_cuda.py")
MODELS = ["gpt2:gpt2", "deepseek_v3:deepseek_v3", "t5:t5_small", "mamba:mamba_130m", "rwkv7:rwkv7_0_1b"]
"""One of a kind; `pytest --every` takes all of the zoo."""
STEPS = [
    *("hf/bart", "hf/gemma3_text", "hf/gpt_oss", "hf/mamba2", "hf/rwkv", "rnn_encoder_decoder:cho_2014"),
    "parity/packed_documents:docs",
]
"""Specs of `decoding.txt` whose steps differ; `pytest --every` takes all that have one."""
EACH, MANY = 9, 40
"""Models in one process, which begins by importing torch; and specs of which it runs the steps alone."""
SOUNDS = "hf/moonshine:"
"""A model of sounds that are longer than the texts here."""
LONGROPE = """
block layer {
  attention: mha(heads: 4)
  position:  rope(scaling: longrope(short: [1, 1, 1.5, 2], long: [1, 2, 3, 4], original: 64))
  mask:      causal
  ffn:       mlp(hidden: 64)
}
model longrope { vocab: 97  context: 1024  width: 32  blocks: 2 * layer  head: lm }
"""


def models() -> list[str]:
    if not sizes.every:
        return MODELS
    types = [f"hf/{path.stem}:" for path in sorted(sizes.SPECS.glob("hf/*.arch"))]
    return sizes.distinct() + [name for name in types if name != SOUNDS]


def stepped() -> list[str]:
    return [name for name, modes in listed().items() if "torch chunks" in modes] if sizes.every else STEPS


def run(*arguments: str) -> None:
    """Run the script; where it finds something, fail with what it prints."""
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)


@pytest.mark.parametrize("first", range(0, len(models()), EACH))
def test_nothing_waits_for_the_device(first: int) -> None:
    run(*models()[first : first + EACH])


@pytest.mark.parametrize("first", range(0, len(stepped()), MANY))
def test_no_step_waits_for_the_device(first: int) -> None:
    run("--steps", *stepped()[first : first + MANY])


def test_what_is_planted_is_named(tmp_path: Path) -> None:
    """Nor is anything found in a model whose table is a list of numbers."""
    (tmp_path / "longrope.arch").write_text(LONGROPE, encoding="utf-8")
    run("--control", f"{tmp_path / 'longrope'}:")
