"""archdsl beside other counters of parameters and FLOPs, on the same models.

    python benchmarks/estimators.py [--markdown] [--runs N] [NAME …]

Every answer comes from a process of its own. The others count what they see of a model of `transformers`, built with
random weights on the CPU; its attention and its experts are those written as plain products, since few of them know
fused ones. What counts multiply-adds is doubled. Whichever of calflops, deepspeed, fvcore, ptflops, thop and torchinfo
can be imported takes part; they are no dependencies of this project:

    pip install --no-deps --target DIR calflops deepspeed fvcore iopath ptflops thop torchinfo …
    PYTHONPATH=DIR python benchmarks/estimators.py

Told of each are parameters and FLOPs of a forward, what these are of the exact ones and of every pair of a query and a
key (`dense`), the seconds of the process at best, and the most memory that it had. Seconds are those of the processor,
imports included, so that other work of the machine counts little; all run in one thread. The exit status is 1 where
archdsl is not ten times as fast as each of them, or where its parameters and its `dense` are not what PyTorch's own
counter says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

FASTER = 10


@dataclass(frozen=True)
class Case:
    """A model: how the spec is told, and the configuration of `transformers` that is the same."""

    about: str
    spec: str
    time: int
    kind: str
    config: dict[str, Any]
    settings: dict[str, int] = field(default_factory=dict)


SMALL = {"layers": 4, "width": 512, "heads": 8}
SMALL_CONFIG = {
    "vocab_size": 32_000,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "tie_word_embeddings": False,
}
CASES = {
    "gpt2": Case("GPT-2, a tied head", "gpt2", 1024, "GPT2", {}),
    "llama": Case(
        "LLaMA, small",
        "llama_7b",
        1024,
        "Llama",
        {**SMALL_CONFIG, "intermediate_size": 1408, "rms_norm_eps": 1e-6},
        {**SMALL, "hidden": 1408},
    ),
    "mixtral": Case(
        "Mixtral, small: two experts of eight",
        "mixtral_8x7b",
        512,
        "Mixtral",
        {**SMALL_CONFIG, "intermediate_size": 1792, "num_key_value_heads": 2},
        {**SMALL, "hidden": 1792, "kv_heads": 2},
    ),
    "mistral": Case(
        "Mistral, small: a window of 256 places",
        "mistral_7b",
        2048,
        "Mistral",
        {**SMALL_CONFIG, "intermediate_size": 1792, "num_key_value_heads": 2, "sliding_window": 256},
        {**SMALL, "hidden": 1792, "kv_heads": 2, "window": 256},
    ),
    "deepseek": Case(
        "DeepSeek-V3, tiny: latent attention, four experts of sixteen and a shared one",
        "deepseek_v3",
        512,
        "DeepseekV3",
        {
            "vocab_size": 129_280,
            "hidden_size": 256,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "q_lora_rank": 64,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "intermediate_size": 512,
            "moe_intermediate_size": 128,
            "n_routed_experts": 16,
            "n_shared_experts": 1,
            "num_experts_per_tok": 4,
            "n_group": 4,
            "topk_group": 2,
            "tie_word_embeddings": False,
        },
        {
            "dense_layers": 1,
            "sparse_layers": 2,
            "width": 256,
            "heads": 4,
            "q_rank": 64,
            "kv_rank": 32,
            "nope_dim": 32,
            "rope_dim": 16,
            "v_dim": 32,
            "hidden": 512,
            "experts": 16,
            "top_k": 4,
            "expert_hidden": 128,
            "groups": 4,
            "top_groups": 2,
        },
    ),
}

# --- what the others say ----------------------------------------------------------------------------------------------

Answer = tuple[int | None, float]
"""Parameters, where they are told, and FLOPs of a forward."""


def built(case: Case) -> tuple[Any, Any]:
    """The model, from tokens to logits, and tokens."""
    import torch
    import transformers

    config = getattr(transformers, f"{case.kind}Config")(**case.config, attn_implementation="eager")
    config._experts_implementation = "eager"
    kind = {"GPT2": "GPT2LMHeadModel"}.get(case.kind, f"{case.kind}ForCausalLM")
    inner = getattr(transformers, kind)(config).eval()

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, tokens: Any) -> Any:
            return self.inner(input_ids=tokens, use_cache=False).logits

    return Logits(), torch.zeros(1, case.time, dtype=torch.long)


def by_torch(model: Any, tokens: Any) -> Answer:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(tokens)
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


def by_calflops(model: Any, tokens: Any) -> Answer:
    from calflops import calculate_flops

    flops, _, params = calculate_flops(
        model, args=[tokens], output_as_string=False, print_results=False, print_detailed=False
    )
    return int(params), flops


def by_deepspeed(model: Any, tokens: Any) -> Answer:
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    profiler = FlopsProfiler(model)
    profiler.start_profile()
    model(tokens)
    found = int(profiler.get_total_params()), profiler.get_total_flops()
    profiler.end_profile()
    return found


def by_fvcore(model: Any, tokens: Any) -> Answer:
    from fvcore.nn import FlopCountAnalysis, parameter_count

    counted = FlopCountAnalysis(model, tokens)
    counted.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    return int(parameter_count(model)[""]), 2 * counted.total()


def by_ptflops(model: Any, tokens: Any) -> Answer:
    from ptflops import get_model_complexity_info

    macs, params = get_model_complexity_info(
        model,
        (1,),
        input_constructor=lambda _: {"tokens": tokens},
        as_strings=False,
        print_per_layer_stat=False,
        verbose=False,
    )
    return int(params), 2 * macs


def by_thop(model: Any, tokens: Any) -> Answer:
    from thop import profile

    macs, params = profile(model, inputs=(tokens,), verbose=False)
    return int(params), 2 * macs


def by_torchinfo(model: Any, tokens: Any) -> Answer:
    from torchinfo import summary

    found = summary(model, input_data=[tokens], verbose=0)
    return int(found.total_params), 2 * found.total_mult_adds


TOOLS: dict[str, tuple[str, Callable[[Any, Any], Answer]]] = {
    "FlopCounterMode": ("torch", by_torch),
    "calflops": ("calflops", by_calflops),
    "DeepSpeed": ("deepspeed", by_deepspeed),
    "fvcore": ("fvcore", by_fvcore),
    "ptflops": ("ptflops", by_ptflops),
    "thop": ("thop", by_thop),
    "torchinfo": ("torchinfo", by_torchinfo),
}
"""The package of each, and how it is asked."""


def by_archdsl(case: Case) -> None:
    from archdsl.api import load
    from archdsl.estimates.flops import estimate

    report = estimate(load(case.spec, set=case.settings), seq=case.time)
    exact, dense = (report.flops.conventions[name].forward for name in ("exact", "dense"))
    print(json.dumps({"params": report.params.total, "flops": exact, "dense": dense}))


def answer(tool: str, case: Case) -> None:
    """In a process of its own: one JSON object as the last line."""
    if tool == "archdsl":
        by_archdsl(case)
        return
    import torch

    torch.set_num_threads(1)
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        params, flops = TOOLS[tool][1](*built(case))
    print(json.dumps({"params": params, "flops": int(flops)}))


# --- one process each -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    params: int | None
    flops: int | None
    seconds: float
    megabytes: float
    problem: str = ""
    dense: int = 0


def process(arguments: list[str]) -> tuple[str, str, float, float]:
    """What a process prints, the last line of its errors if it fails, its seconds and megabytes."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        one = {**os.environ, "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen([sys.executable, *arguments], stdout=out, stderr=err, env=one)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        problem = ([line for line in err.read().splitlines() if line.strip()] or ["failed"])[-1]
        memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
        return out.read(), problem if child.returncode else "", used.ru_utime + used.ru_stime, memory


def ours(name: str) -> Found:
    out, problem, seconds, megabytes = process([__file__, "--answer", "archdsl", name])
    if problem:
        raise SystemExit(problem)
    found = json.loads(out)
    return Found(found["params"], found["flops"], seconds, megabytes, dense=found["dense"])


def theirs(tool: str, name: str) -> Found:
    out, problem, seconds, megabytes = process([__file__, "--answer", tool, name])
    if problem:
        return Found(None, None, seconds, megabytes, problem)
    found = json.loads(out.splitlines()[-1])
    return Found(found["params"], found["flops"], seconds, megabytes)


def best(ask: Callable[[], Found], runs: int) -> Found:
    return min((ask() for _ in range(runs)), key=lambda found: found.seconds)


# --- the table --------------------------------------------------------------------------------------------------------

HEADS = ("", "parameters", "of exact", "forward FLOPs", "of exact", "of dense", "seconds", "MB")


def cells(name: str, found: Found, own: Found) -> list[str]:
    def part(n: int | None, whole: int | None) -> str:
        return f"{n / whole:.4f}" if n is not None and whole else ""

    def shown(n: int | None) -> str:
        return "" if n is None else f"{n:,}"

    return [
        name,
        shown(found.params),
        part(found.params, own.params),
        shown(found.flops) if not found.problem else found.problem[:48],
        part(found.flops, own.flops),
        part(found.flops, own.dense),
        f"{found.seconds:.2f}",
        f"{found.megabytes:,.0f}",
    ]


def table(title: str, rows: list[list[str]], markdown: bool) -> str:
    if markdown:
        lines = [f"**{title}**\n", "| " + " | ".join(HEADS) + " |", "|---|" + "--:|" * (len(HEADS) - 1)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"
    widths = [max(len(row[i]) for row in [list(HEADS), *rows]) for i in range(len(HEADS))]
    lines = [title]
    for row in [list(HEADS), *rows]:
        first, *others = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines) + "\n"


def main(names: list[str], runs: int, markdown: bool) -> int:
    tools = [tool for tool, (package, _) in TOOLS.items() if find_spec(package) is not None]
    wrong = []
    for name in names:
        case = CASES[name]
        own = best(lambda name=name: ours(name), runs)
        rows = [cells("archdsl", own, own)]
        for tool in tools:
            found = best(lambda tool=tool, name=name: theirs(tool, name), runs)
            rows.append(cells(tool, found, own))
            if tool == "FlopCounterMode" and (found.params, found.flops) != (own.params, own.dense):
                wrong.append(f"{name}: {own.params:,} parameters, {own.dense:,} FLOPs, but PyTorch says otherwise")
            if found.seconds < FASTER * own.seconds:
                wrong.append(f"{name}: {tool} takes {found.seconds:.2f} s, archdsl {own.seconds:.2f} s")
        print(table(f"{case.about}; {case.time:,} places", rows, markdown), flush=True)
    for line in wrong:
        print(line)
    return int(bool(wrong))


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == ["--answer"]:
        answer(given[1], CASES[given[2]])
        sys.exit(0)
    markdown = "--markdown" in given
    runs = int(given[given.index("--runs") + 1]) if "--runs" in given else 1
    named = [word for i, word in enumerate(given) if not word.startswith("--") and given[i - 1] != "--runs"]
    sys.exit(main(named or list(CASES), runs, markdown))
