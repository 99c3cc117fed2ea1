"""The peak of a training step beside what PyTorch measures, and beside peaks that were published.

    python benchmarks/training_memory.py

The first table is of one device, everything computed again (`--checkpoint full`), by each kernel of the loss: the
emitted file on a CPU (`--measure`), which a model of any size takes seconds for. Specs are without dropout, whose
attention keeps its scores on a CPU. The second is of runs of torchtitan on H100s of 96 GB
(`benchmarks/llama3_h100_202412_torchtitan.md` there), whose memory is what the allocator reserved; and of Llama 3 405B
(Dubey et al., 2024, table 4), which ran in 80 GB.
"""

# ruff: noqa: E402

import sys
from pathlib import Path

# Else `import onnx` would find the script of that name here.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]

import re
from typing import Any, get_args

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.estimates.loss import Loss
from archdsl.estimates.mesh import parse_mesh
from archdsl.estimates.sharding import Step, StepPlan
from archdsl.frontend.load import find_spec

GIB = 1 << 30

MEASURED: list[tuple[str, int, int, dict[str, int]]] = [
    ("gpt2", 16, 1024, {}),
    ("llama3_8b", 1, 16_384, {"layers": 4}),
    ("gpt1", 16, 512, {}),
    ("gpt3_small", 4, 2048, {}),
    ("megatron_355m", 4, 1024, {"layers": 2}),
    ("bloom_560m", 2, 1024, {}),
    ("gptj_6b", 1, 2048, {"layers": 2}),
    ("glm_130b", 1, 2048, {"layers": 1}),
    ("palm_8b", 1, 2048, {"layers": 2}),
    ("llama2_7b", 1, 4096, {"layers": 2}),
    ("deepseek_llm_7b", 1, 4096, {"layers": 2}),
    ("mistral_7b", 1, 4096, {"layers": 2}),
    ("mixtral_8x7b", 1, 2048, {"layers": 1}),
]
"""Name, batch, sequence length, settings."""

FSDP = {"zero": 3, "dtype": "bfloat16", "master_weights": True, "gradient_dtype": "float32", "loss": "eager"}
# Between stages weights stay gathered, and gradients are summed whole: ZeRO 1.
STAGES = FSDP | {"zero": 1, "checkpoint": "full", "sequence_parallel": True, "micro_batches": 8}
ONE_BY_ONE = STAGES | {"stages": (15, 16, 16, 16, 16, 16, 16, 15)}
PUBLISHED: list[tuple[str, str, dict[str, Any], int, int, float, float]] = [
    ("llama3_8b", "dp=8", FSDP | {"checkpoint": "full"}, 8, 32_768, 83.9, 0.15),
    ("llama3_8b", "dp=4,cp=2", FSDP | {"checkpoint": "full"}, 4, 65_536, 84.2, 0.15),
    ("llama3_8b", "dp=2,cp=4", FSDP | {"checkpoint": "full"}, 2, 131_072, 84.0, 0.15),
    ("llama3_8b", "dp=8", FSDP | {"checkpoint": "selective"}, 16, 8192, 82.4, 0.15),
    ("llama3_8b", "dp=128", FSDP | {"checkpoint": "selective"}, 256, 8192, 67.0, 0.15),
    # With async TP, and without.
    ("llama3_70b", "dp=32,tp=8", FSDP | {"checkpoint": "full", "sequence_parallel": True}, 512, 8192, 67.6, 0.15),
    ("llama3_70b", "dp=32,tp=8", FSDP | {"checkpoint": "full", "sequence_parallel": True}, 512, 8192, 71.9, 0.18),
    ("llama3_405b", "dp=8,tp=8,pp=8", ONE_BY_ONE, 64, 32_768, 75.3, 0.18),
    ("llama3_405b", "dp=8,tp=8,pp=8", ONE_BY_ONE, 256, 8192, 82.5, 0.25),
    ("llama3_405b", "dp=8,tp=8,pp=8", STAGES | {"interleave": 2}, 256, 8192, 72.7, 0.15),
    (
        "llama3_405b",
        "dp=128,tp=8,pp=16",
        FSDP | {"zero": 2, "sequence_parallel": True, "micro_batches": 16},
        2048,
        8192,
        80.0,
        0.05,
    ),
]
"""Name, mesh, plan, sequences of a step, sequence length, GiB, and how far from them the estimate may be:
docs/estimates.md says why some are farther."""


def reserved(step: Step) -> float:
    """Return the bytes that PyTorch's allocator has reserved at the peak of a step.

    Where that is the backward pass of `eager`, the logits in their own type have been freed, and nothing is in their
    block: the gradients in float32, which are made next, are larger."""
    stage = step.sharding.memory
    logits = sum(map(step.saving.bytes, step.loss.outputs))
    return stage.total + (logits if stage.peak_at == "objective" and step.loss.kind == "eager" else 0)


def without_dropout(name: str) -> dict[str, str]:
    """Return a spec by its text, as `archdsl.memory` takes it."""
    text = find_spec(name).source.text
    return {"text": re.sub(r"dropout:\s*0\.1", "", text), "model": name}


def main() -> None:
    print(f"{'model':<16} {'batch':>5} {'seq':>6}  {'loss':<8} {'estimate':>8} {'measured':>8}")
    for name, batch, seq, settings in MEASURED:
        for loss in get_args(Loss):
            try:
                how: dict[str, Any] = {"dtype": "bfloat16", "optimizer": "sgd", "checkpoint": "full", "loss": loss}
                found = archdsl.memory(**without_dropout(name), batch=batch, seq=seq, set=settings, measure=True, **how)
            except ArchError as problem:
                print(f"{name:<16} {batch:>5} {seq:>6,}  {loss:<8} {problem.diagnostics[0].message}")
                continue
            assert found.peak is not None
            assert found.measured is not None
            ratio = f"{found.peak / found.measured.peak - 1:+7.1%}"
            sizes = f"{found.peak / GIB:>8.2f} {found.measured.peak / GIB:>8.2f}"
            print(f"{name:<16} {batch:>5} {seq:>6,}  {loss:<8} {sizes} {ratio}  {', '.join(found.measured.kernels)}")
    print(f"\n{'model':<12} {'mesh':<18} {'batch':>5} {'seq':>7}  {'estimate':>8} {'reserved':>8} {'published':>9}")
    for name, mesh, plan, batch, seq, published, _ in PUBLISHED:
        step = Step(archdsl.load(name), StepPlan(mesh=parse_mesh(mesh), **plan), batch, seq)
        stage, most = step.sharding.memory, reserved(step) / GIB
        print(
            f"{name:<12} {mesh:<18} {batch:>5} {seq:>7,}  {stage.total / GIB:>8.2f} {most:>8.2f} {published:>9.1f} "
            f"{most / published - 1:+7.1%}  at {stage.peak_at}"
        )


if __name__ == "__main__":
    main()
