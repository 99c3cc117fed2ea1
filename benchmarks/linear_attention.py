"""The delta rule as it is emitted, in training and in prefill, beside what transformers computes it with where no
kernel is installed, beside RetNet's linear attention as it is emitted, and beside a loop over tokens.

    python benchmarks/linear_attention.py [--time 2048] [--heads 8] [--dim 128] [--runs 5] [--threads 1]

One CPU, float32, forms in turn within one run. Prints the median of milliseconds and the ratios to transformers' form
and to RetNet's, and how many operators of PyTorch are executed at `time` and at twice as many tokens. The goals: not
slower than transformers, at most 3 times RetNet's in training. The exit status is 1 where one is missed."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

import archdsl

SHAPES = "q: [batch, heads, time, DIM], k: [batch, heads, time, DIM], v: [batch, heads, time, DIM]"
FORMS = {
    "gated delta rule": f"({SHAPES}, b: [batch, heads, time], g: [batch, heads, time])"
    " { return delta_rule(q, k, v, b, g) }",
    "KDA": f"({SHAPES}, b: [batch, heads, time], g: [batch, heads, time, DIM]) {{ return delta_rule(q, k, v, b, g) }}",
    "RetNet": f"({SHAPES}, b: [batch, heads, time], g: [batch, heads, time])"
    " { return linear_attention(q, k, v, log_decay: g) + 0 * unsqueeze(b, -1) }",
    "GLA": f"({SHAPES}, b: [batch, heads, time], g: [batch, heads, time, DIM])"
    " { return linear_attention(q, k, v, log_decay: g) + 0 * unsqueeze(b, -1) }",
}


class Count(TorchDispatchMode):
    """Counts the operators that are executed."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        return func(*args, **(kwargs or {}))


def of_transformers(name: str) -> Callable[..., Tensor]:
    """Return transformers' form in plain PyTorch, given what ours is given."""
    from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    form: Any = chunk_kimi_delta_attention if name == "KDA" else torch_chunk_gated_delta_rule

    def run(q: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor) -> Tensor:
        q = q * q.shape[-1] ** 0.5  # it scales by the inverse
        q, k, v, b, g = (t.transpose(1, 2) for t in (q, k, v, b, g))
        y: Tensor = form(q, k, v, g, b)[0]
        return y.transpose(1, 2)

    return run


def token_loop(q: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor) -> Tensor:
    """Compute the definition, token by token."""
    g = (g if g.ndim == 4 else g[..., None]).exp().unsqueeze(-1)
    state, found = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for t in range(q.shape[2]):
        state = g[:, :, t] * state
        known = (state * k[:, :, t, :, None]).sum(-2)
        state = state + k[:, :, t, :, None] * (b[:, :, t, None] * (v[:, :, t] - known)).unsqueeze(-2)
        found.append((state * q[:, :, t, :, None]).sum(-2))
    return torch.stack(found, 2)


def inputs_of(name: str, heads: int, length: int, dim: int) -> list[Tensor]:
    q, k, v = torch.randn(3, 1, heads, length, dim)
    shape = (1, heads, length, dim) if name in ("KDA", "GLA") else (1, heads, length)
    return [normalize(q, dim=-1), normalize(k, dim=-1), v, torch.rand(1, heads, length), -0.1 * torch.rand(shape)]


def prefill(form: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    with torch.no_grad():
        form(*inputs)


def training(form: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    inputs = [t.detach().requires_grad_() for t in inputs]
    form(*inputs).sum().backward()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, value in (("time", 2048), ("heads", 8), ("dim", 128), ("runs", 5), ("threads", 1)):
        parser.add_argument(f"--{option}", type=int, default=value)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    forms: dict[tuple[str, str], Callable[..., Tensor]] = {}
    for name, text in FORMS.items():
        forms[name, "archdsl"] = archdsl.to_torch(text=f"model m{text.replace('DIM', str(asked.dim))}")
    for name in ("gated delta rule", "KDA"):
        forms[name, "transformers"] = of_transformers(name)
        forms[name, "token loop"] = token_loop
    given = {name: inputs_of(name, asked.heads, asked.time, asked.dim) for name in FORMS}
    for (name, by), form in forms.items():
        ours = forms[name, "archdsl"](*given[name])
        assert torch.allclose(form(*given[name]), ours, rtol=1e-3, atol=1e-4), (name, by)

    found: dict[tuple[str, str, str], list[float]] = {}
    for _ in track(range(asked.runs), "measuring", transient=True):
        for kind, run in (("prefill", prefill), ("training", training)):
            for (name, by), form in forms.items():
                begin = time.perf_counter()
                run(form, given[name])
                found.setdefault((kind, name, by), []).append(1000 * (time.perf_counter() - begin))
    median = {key: statistics.median(times) for key, times in found.items()}
    missed = False
    print(f"{asked.heads} heads of {asked.dim}, {asked.time} tokens, {asked.threads} thread(s); ms, ratios")
    for (kind, name, by), ms in median.items():
        line = f"{kind:9} {name:17} {by:13} {ms:9.1f}"
        if by == "archdsl":
            beside = ms / median[kind, "RetNet", by]
            line += f"  {beside:5.2f} of RetNet"
            missed |= kind == "training" and beside > 3 and name != "RetNet"
            if (kind, name, "transformers") in median:
                theirs = ms / median[kind, name, "transformers"]
                line += f"  {theirs:5.3f} of transformers"
                missed |= theirs > 1
        print(line)
    for name in FORMS:
        counts = []
        for length in (asked.time, 2 * asked.time):
            with Count() as count:
                prefill(forms[name, "archdsl"], inputs_of(name, asked.heads, length, asked.dim))
            counts.append(count.operators)
        print(f"operators {name:17} {counts[0]} for {asked.time} tokens, {counts[1]} for {2 * asked.time}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
