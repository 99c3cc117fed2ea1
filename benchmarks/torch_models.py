"""Emitted PyTorch beside transformers, litgpt and x-transformers: a GPT-2, a Llama and a Mixtral of 124 million
parameters each.

    python benchmarks/torch_models.py [--models NAME …] [--what CELL …] [--dtype TYPE …] [--repeats N] …

For each: milliseconds of a training step (4 x 256 tokens, cross-entropy, forward and backward), of 512 tokens at once,
and tokens a second of 64 that follow 128 greedily, for one row and for four. What is compared runs in turns, so that a
busy machine slows all alike; told are medians, and the median of the turns' ratios of ours to the fastest other.
`--clock processor` counts the seconds of this process alone, which are worth something in one thread
(`--threads 1`).

The weights are ours, given to transformers and to litgpt under their names, and their logits are compared first.
x-transformers has the same sizes with details of its own (GELU exactly, no bias in attention), and weights of its own.
Without dropout, since a fused kernel on the CPU has none. litgpt has no learned positions and x-transformers no
experts: they take no part in GPT-2 and Mixtral. Whichever can be imported takes part; transformers is among the
project's development dependencies, the others are not dependencies of it:

    pip install --target DIR litgpt x-transformers
    PYTHONPATH=DIR python benchmarks/torch_models.py

`--no-cpu` takes files of ours as `--with generate` alone writes them: on processors of Intel they are the faster ones.
`--memory` tells of each cell how far the memory of a process of its own grows beyond what it has with the model loaded
(Linux). `--compiled` adds all of them compiled, decoding with a static cache; x-transformers has none, and decodes
eagerly. `--compiled only` leaves out those that are not.

The goal: in no cell slower than the fastest other by more than 2 %.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.status import Status
from rich.table import Table
from torch import Tensor, nn

import archdsl
from archdsl.run.load import load_source

GOAL = 1.02
OURS = "archdsl"
COMPILED = ", compiled"
KINDS = ("", ", prepacked", COMPILED)  # of ours
PREPACKED = OURS + KINDS[1]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-1}  # of logits, in the mean: rounding may send a token elsewhere
PROMPT = 128


@dataclass(frozen=True)
class Case:
    """A model of the zoo at a size of our own. `theta` is that of its rotary positions; without it they are learned."""

    spec: str
    sizes: Mapping[str, int]
    theta: float | None = None


CASES = {
    "gpt2": Case("gpt2", {}),
    "llama": Case("llama2_7b", {"layers": 12, "width": 768, "heads": 12, "kv_heads": 4, "hidden": 2048}, 1e4),
    "mixtral": Case("mixtral_8x7b", {"layers": 8, "width": 512, "heads": 8, "kv_heads": 4, "hidden": 864}, 1e6),
}


@dataclass(frozen=True)
class Cell:
    """What is measured: rows and tokens of each, and what the number is."""

    rows: int
    tokens: int
    unit: str


CELLS = {
    "train": Cell(4, 256, "ms"),
    "prefill": Cell(1, 512, "ms"),
    "decode": Cell(1, PROMPT, "tokens/s"),
    "decode4": Cell(4, PROMPT, "tokens/s"),
}


class Way:
    """One implementation of a model: its logits, and tokens that follow a prompt."""

    def __init__(self, module: nn.Module, compiled: bool = False) -> None:
        self.module: Any = module.eval()
        self.compiled = compiled
        self.run: Any = torch.compile(module) if compiled else module

    def logits(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.run(tokens)
        return found

    def generate(self, tokens: Tensor, new: int) -> Tensor:
        """New tokens [rows, new], the likeliest of each place."""
        found: Tensor = self.decoder(tokens.size(0)).generate(tokens, new, compiled=self.compiled)
        return found

    def decoder(self, rows: int) -> Any:
        """What generates for so many rows."""
        return self.module

    def train(self, tokens: Tensor) -> None:
        """Gradients of all weights, left in the module."""
        logits = self.logits(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()

    def __call__(self, cell: str, tokens: Tensor, new: int) -> Any:
        if cell == "train":
            return self.train(tokens)
        with torch.no_grad():
            return self.logits(tokens) if cell == "prefill" else self.generate(tokens, new)


class Prepacked(Way):
    """Ours with packed weights, which is for decoding on a CPU; they are packed once."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.packed: dict[int, Any] = {}

    def decoder(self, rows: int) -> Any:
        if rows not in self.packed:
            prepacked = sys.modules[type(self.module).__module__].prepacked  # type: ignore[attr-defined]
            self.packed = {rows: prepacked(self.module, rows)}
        return self.packed[rows]


class Transformers(Way):
    def __init__(self, module: nn.Module, compiled: bool = False) -> None:
        super().__init__(module, compiled)
        self.forward = torch.compile(module.forward)

    def logits(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.run(tokens, use_cache=False).logits
        return found

    def generate(self, tokens: Tensor, new: int) -> Tensor:
        options: dict[str, Any] = {"max_new_tokens": new, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        options |= {"attention_mask": torch.ones_like(tokens)}
        if not self.compiled:
            return self.module.generate(tokens, **options)[:, tokens.size(1) :]
        eager = self.module.forward
        self.module.forward = self.forward  # what `generate` calls
        try:
            return self.module.generate(tokens, cache_implementation="static", **options)[:, tokens.size(1) :]
        finally:
            self.module.forward = eager


class LitGPT(Way):
    """Decodes as `litgpt.generate.base` does, which has one row only."""

    def generate(self, tokens: Tensor, new: int) -> Tensor:
        batch, time = tokens.shape
        model = self.module
        model.set_kv_cache(batch, time + new, device=tokens.device, dtype=model.lm_head.weight.dtype)
        places, found = torch.arange(time, device=tokens.device), []
        token, end = tokens, time
        for _ in range(new):
            # Told the length, it looks at no more of the cache; compiled, it looks at all.
            known = {} if self.compiled else {"input_pos_maxp1": end}
            run = self.run if token.size(1) == 1 else model
            token = run(token, places, **known)[:, -1:].argmax(-1)
            found.append(token)
            places, end = places[-1:] + 1, end + 1
        model.clear_kv_cache()
        return torch.cat(found, dim=1)


class XTransformers(Way):
    def generate(self, tokens: Tensor, new: int) -> Tensor:
        from x_transformers import AutoregressiveWrapper

        found: Tensor = AutoregressiveWrapper(self.module).generate(tokens, new, temperature=0.0)
        return found


def ours(case: Case, dtype: torch.dtype, cpu: bool) -> nn.Module:
    source = archdsl.torch_source(case.spec, set=case.sizes, features=["generate", "cpu"] if cpu else ["generate"])
    torch.manual_seed(0)
    module: nn.Module = load_source(source)()
    return module.to(dtype)


def transformers_of(name: str, case: Case, model: Any, dtype: torch.dtype) -> nn.Module | None:
    """The same model of transformers, with the weights of ours."""
    import transformers

    config = model.config
    sizes: dict[str, Any] = {
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "max_position_embeddings": config.context,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if name != "gpt2":
        sizes |= {
            "num_key_value_heads": config.kv_heads,
            "intermediate_size": config.hidden,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": case.theta},
            "tie_word_embeddings": False,
        }
    if name == "mixtral":
        sizes |= {"num_local_experts": config.experts, "num_experts_per_tok": 2}
    kind = {"gpt2": "GPT2", "llama": "Llama", "mixtral": "Mixtral"}[name]
    made: nn.Module = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, f"{kind}Config")(**sizes), dtype=dtype, attn_implementation="sdpa"
    )
    own = model.state_dict()
    given = {"lm_head.weight": own.get("head.weight", own["token_embedding.weight"])}
    if name == "gpt2":
        given |= {"transformer.wte.weight": own["token_embedding.weight"]}
        given |= {"transformer.wpe.weight": own["position.weight"]}
        given |= {f"transformer.ln_f.{t}": own[f"norm.{t}"] for t in ("weight", "bias")}
        places = {"attention_norm": "ln_1", "ffn_norm": "ln_2"}
        linear = {"attention.out": "attn.c_proj", "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}
        for i in range(config.layers):
            far, near = f"transformer.h.{i}", f"blocks.{i}"
            for t in ("weight", "bias"):
                given |= {f"{far}.{b}.{t}": own[f"{near}.{a}.{t}"] for a, b in places.items()}
                given |= {f"{far}.{b}.{t}": own[f"{near}.{a}.{t}"].t() for a, b in linear.items()}
                three = [own[f"{near}.attention.{m}.{t}"] for m in "qkv"]
                given[f"{far}.attn.c_attn.{t}"] = torch.cat(three).t()
    else:
        given |= {"model.embed_tokens.weight": own["token_embedding.weight"], "model.norm.weight": own["norm.weight"]}
        places = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
        places |= {f"attention.{m}": f"self_attn.{m}_proj" for m in "qkv"} | {"attention.out": "self_attn.o_proj"}
        if name == "llama":
            places |= {f"ffn.{m}": f"mlp.{m}_proj" for m in ("gate", "up", "down")}
        else:
            places |= {"ffn.router.gate": "mlp.gate"}
        for i in range(config.layers):
            far, near = f"model.layers.{i}", f"blocks.{i}"
            given |= {f"{far}.{b}.weight": own[f"{near}.{a}.weight"] for a, b in places.items()}
            if name == "mixtral":
                gate, up, down = (expert_weights(own, near, m) for m in ("gate", "up", "down"))
                given[f"{far}.mlp.experts.gate_up_proj"] = torch.cat((gate, up), dim=1)
                given[f"{far}.mlp.experts.down_proj"] = down
    made.load_state_dict(given)
    return made


def expert_weights(own: Mapping[str, Tensor], near: str, which: str) -> Tensor:
    """The matrices of all experts [experts, out, in]."""
    return own[f"{near}.ffn.experts.{which}.weight"]


def litgpt_of(name: str, case: Case, model: Any, dtype: torch.dtype) -> nn.Module | None:
    """The same model of litgpt, with the weights of ours."""
    if case.theta is None:
        return None
    from litgpt.config import Config
    from litgpt.model import GPT

    config = model.config
    experts = {"n_expert": config.experts, "n_expert_per_token": 2} if name == "mixtral" else {}
    made = GPT(
        Config(
            block_size=config.context,
            vocab_size=config.vocab,
            padded_vocab_size=config.vocab,
            n_layer=config.layers,
            n_head=config.heads,
            n_embd=config.width,
            n_query_groups=config.kv_heads,
            rotary_percentage=1.0,
            rope_base=int(case.theta),
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            norm_eps=1e-5,
            mlp_class_name="LLaMAMoE" if experts else "LLaMAMLP",
            intermediate_size=config.hidden,
            **experts,
        )
    ).to(dtype)
    own = model.state_dict()
    given = {"lm_head.weight": own["head.weight"], "transformer.wte.weight": own["token_embedding.weight"]}
    given["transformer.ln_f.weight"] = own["norm.weight"]
    far_names = {"gate": "fc_1", "up": "fc_2", "down": "proj"}
    for i in range(config.layers):
        far, near = f"transformer.h.{i}", f"blocks.{i}"
        given[f"{far}.norm_1.weight"] = own[f"{near}.attention_norm.weight"]
        given[f"{far}.norm_2.weight"] = own[f"{near}.ffn_norm.weight"]
        given[f"{far}.attn.qkv.weight"] = torch.cat([own[f"{near}.attention.{m}.weight"] for m in "qkv"])
        given[f"{far}.attn.proj.weight"] = own[f"{near}.attention.out.weight"]
        if experts:
            given[f"{far}.mlp.gate.weight"] = own[f"{near}.ffn.router.gate.weight"]
            for a, b in far_names.items():
                all_of = expert_weights(own, near, a)
                given |= {f"{far}.mlp.experts.{e}.{b}.weight": w for e, w in enumerate(all_of)}
        else:
            given |= {f"{far}.mlp.{b}.weight": own[f"{near}.ffn.{a}.weight"] for a, b in far_names.items()}
    made.load_state_dict(given)
    return made


def x_transformers_of(name: str, case: Case, model: Any, dtype: torch.dtype) -> nn.Module | None:
    """A model of x-transformers of the same sizes."""
    if name == "mixtral":
        return None
    from x_transformers import Decoder, TransformerWrapper

    config = model.config
    sizes: dict[str, Any] = {
        "dim": config.width,
        "depth": config.layers,
        "heads": config.heads,
        "attn_dim_head": config.width // config.heads,
        "attn_flash": True,
    }
    if name == "llama":
        sizes |= {"attn_kv_heads": config.kv_heads, "rotary_pos_emb": True, "use_rmsnorm": True}
        sizes |= {"rotary_emb_dim": config.width // config.heads, "ff_glu": True, "ff_swish": True}
        sizes |= {"ff_no_bias": True, "ff_mult": config.hidden / config.width}
    made: nn.Module = TransformerWrapper(
        num_tokens=config.vocab,
        max_seq_len=config.context,
        use_abs_pos_emb=name == "gpt2",
        tie_embedding=name == "gpt2",
        attn_layers=Decoder(**sizes),
    )
    counts = [sum(p.numel() for p in m.parameters()) for m in (model, made)]
    if abs(counts[0] - counts[1]) > 0.002 * counts[0]:
        raise SystemExit(f"{name}: x-transformers has {counts[1]:,} parameters, ours {counts[0]:,}")
    return made.to(dtype)


Maker = Callable[[str, Case, Any, torch.dtype], nn.Module | None]
OTHERS: dict[str, tuple[str, Maker, type[Way]]] = {
    "transformers": ("transformers", transformers_of, Transformers),
    "litgpt": ("litgpt", litgpt_of, LitGPT),
    "x-transformers": ("x_transformers", x_transformers_of, XTransformers),
}


def made(name: str, dtype: str, options: argparse.Namespace, only: str | None = None) -> dict[str, Way]:
    """All ways of a model that there are, each checked against ours."""
    case, kind = CASES[name], DTYPES[dtype]
    first = ours(case, kind, not options.no_cpu).to(options.device)
    ways: dict[str, Way] = {OURS: Way(first)}
    modules: dict[str, tuple[nn.Module, type[Way]]] = {OURS: (first, Way)}
    tokens = torch.randint(first.config.vocab, (2, 48), device=options.device)  # type: ignore[union-attr,arg-type]
    with torch.no_grad():
        expected = ways[OURS].logits(tokens).float()
    for other, (package, maker, way) in OTHERS.items():
        if only not in (None, other) or find_spec(package) is None:
            continue
        module = maker(name, case, first, kind)
        if module is None:
            continue
        modules[other] = module.to(options.device), way
        ways[other] = way(modules[other][0])
        if other == "x-transformers":
            continue
        with torch.no_grad():
            distance = float((ways[other].logits(tokens).float() - expected).abs().mean() / expected.abs().mean())
        if not distance < TOLERANCE[dtype]:
            raise SystemExit(f"{name}, {dtype}: {other} differs from ours by {distance:.1e} of the logits")
    if options.device == "cpu" and not options.no_cpu:
        ways[PREPACKED] = Prepacked(first)
    if options.compiled:
        ways = {} if options.compiled == "only" else ways
        ways |= {f"{other}{COMPILED}": way(module, compiled=True) for other, (module, way) in modules.items()}
    return ways if only is None else {n: w for n, w in ways.items() if n == only}


@dataclass
class Found:
    """What was measured of a cell: seconds of every turn, by way; why one has none."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def fastest(self, compiled: bool) -> str | None:
        """The fastest that is not ours."""
        others = {n: statistics.median(s) for n, s in self.seconds.items() if not n.startswith(OURS)}
        others = {n: s for n, s in others.items() if n.endswith(COMPILED) == compiled}
        return min(others, key=lambda n: others[n]) if others else None

    def ratio(self, kind: str) -> float | None:
        """The time of ours over that of the fastest other, in the median of all turns. Kinds are those of `KINDS`."""
        own, other = self.seconds.get(OURS + kind), self.fastest(kind == COMPILED)
        if own is None or other is None:
            return None
        return statistics.median(a / b for a, b in zip(own, self.seconds[other], strict=True))


def measure(ways: Mapping[str, Way], cell: str, options: argparse.Namespace, now: Status) -> Found:
    """All ways in turns, each turn beginning with another."""
    found, tokens = Found(), prompt(ways, cell)
    usable = {n: w for n, w in ways.items() if n != PREPACKED or CELLS[cell].unit == "tokens/s"}
    clock = time.process_time if options.clock == "processor" else time.perf_counter
    for name, way in list(usable.items()):
        now.update(f"{cell}, {name}: the first")
        try:
            way(cell, tokens, options.new if way.compiled else 3)  # what is compiled is for one length
        except Exception as problem:  # whatever the others raise: the rest is measured all the same
            if name.startswith(OURS):
                raise
            found.errors[name] = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
            del usable[name]
        way.module.zero_grad(set_to_none=True)
    found.seconds = {name: [] for name in usable}
    for turn in range(options.repeats):
        now.update(f"{cell}, turn {turn + 1} of {options.repeats}")
        order = list(usable.items())
        at = turn % len(order)
        for name, way in order[at:] + order[:at]:
            time.sleep(0.01)  # the threads of the one before stop spinning
            start = clock()
            way(cell, tokens, options.new)
            if tokens.is_cuda:
                torch.cuda.synchronize()
            found.seconds[name].append(clock() - start)
            way.module.zero_grad(set_to_none=True)
    return found


def prompt(ways: Mapping[str, Way], cell: str) -> Tensor:
    """Tokens for a cell, the same for all."""
    weight = next(p for way in ways.values() for p in way.module.parameters())
    shape = (CELLS[cell].rows, CELLS[cell].tokens + (cell == "train"))
    generator = torch.Generator().manual_seed(0)
    return torch.randint(32_000, shape, generator=generator).to(weight.device)


def number(cell: str, seconds: float, new: int) -> float:
    """In the unit of the cell."""
    return CELLS[cell].rows * new / seconds if CELLS[cell].unit == "tokens/s" else 1e3 * seconds


def growth(way: str, name: str, cell: str, dtype: str, options: argparse.Namespace) -> float | None:
    """Bytes that the memory of a process of its own grows by, beyond what it has with the model loaded."""
    args = [
        "--new",
        str(options.new),
        "--answer",
        way,
        "--models",
        name,
        "--what",
        cell,
        "--dtype",
        dtype,
        "--threads",
        str(options.threads),
    ]
    run = subprocess.run([sys.executable, __file__, *args], capture_output=True, text=True, check=False)
    return float(run.stdout.split()[-1]) if run.returncode == 0 else None


def answer(options: argparse.Namespace) -> None:
    """The growth of this process, for `growth`."""
    name, cell, dtype = options.models[0], options.what[0], options.dtype[0]
    way = made(name, dtype, options, only=options.answer)[options.answer]
    tokens = prompt({"": way}, cell)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = status("VmRSS")
    way(cell, tokens, options.new)
    print(status("VmHWM") - before)


def status(name: str) -> int:
    """A size of this process in bytes, as Linux tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def table(name: str, dtype: str, results: Mapping[str, Found], ways: list[str], options: argparse.Namespace) -> Table:
    shown = Table(title=f"{name}, {dtype}", title_justify="left")
    shown.add_column("")
    for cell in results:
        shown.add_column(f"{cell} {CELLS[cell].unit}", justify="right")
    for way in ways:
        cells = []
        for cell, found in results.items():
            seconds = found.seconds.get(way)
            cells.append(f"{number(cell, statistics.median(seconds), options.new):,.1f}" if seconds else "–")
        shown.add_row(way, *cells)
    for kind in KINDS:
        ratios = [found.ratio(kind) for found in results.values()]
        if any(r is not None for r in ratios):
            told = ["–" if r is None else f"{r:.3f} {'✓' if r <= GOAL else '✗'}" for r in ratios]
            shown.add_row(f"ours{kind} / the fastest other", *told)
    return shown


def facts(options: argparse.Namespace) -> dict[str, str]:
    """What the numbers depend on."""
    told = {
        "machine": f"{platform.system()} {platform.machine()}",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(options.threads),
        "device": options.device,
        "clock": options.clock,
        "repeats": str(options.repeats),
        "new": str(options.new),
    }
    return told | {n: version(n) if find_spec(p) is not None else "not installed" for n, (p, _, _) in OTHERS.items()}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--what", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--repeats", type=int, default=5, help="turns, 5 by default")
    parser.add_argument("--new", type=int, default=64, help="tokens to generate, 64 by default")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    compiled = "also compiled, which takes minutes; with `only`, nothing else"
    parser.add_argument("--compiled", nargs="?", choices=("also", "only"), const="also", help=compiled)
    parser.add_argument("--memory", action="store_true", help="also how the memory grows, in processes of their own")
    parser.add_argument("--no-cpu", action="store_true", help="ours without the section `cpu`, which is for AMD's")
    parser.add_argument("--json", action="store_true", help="the numbers as JSON")
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.repeats, options.threads, options.new) < 1:
        parser.error("--repeats, --threads and --new are at least 1")
    if options.memory and not Path("/proc/self/clear_refs").exists():
        parser.error("--memory needs Linux")
    return options


def main() -> None:
    options = parsed()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    if options.answer:
        answer(options)
        return
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 120)
    console.print("  ".join(f"{k} {v}" for k, v in facts(options).items()), highlight=False)
    told: list[dict[str, Any]] = []
    for name in options.models:
        for dtype in options.dtype:
            ways = made(name, dtype, options)
            with console.status(f"{name}, {dtype}") as now:
                results = {cell: measure(ways, cell, options, now) for cell in options.what}
            names = list(ways)
            console.print(table(name, dtype, results, names, options))
            del ways
            gc.collect()
            torch.compiler.reset()
            for cell, found in results.items():
                for way, problem in found.errors.items():
                    console.print(f"{cell}, {way}: {problem}", markup=False, highlight=False)
                memory: dict[str, float | None] = {}
                if options.memory:
                    memory = {
                        w: growth(w, name, cell, dtype, options) for w in found.seconds if not w.endswith(COMPILED)
                    }
                    sizes = ", ".join(f"{w} {b / 2**20:,.0f} MiB" for w, b in memory.items() if b is not None)
                    console.print(f"{cell}, memory beyond the model: {sizes}", highlight=False)
                numbers = {w: number(cell, statistics.median(s), options.new) for w, s in found.seconds.items()}
                row: dict[str, Any] = {"model": name, "dtype": dtype, "cell": cell, "unit": CELLS[cell].unit}
                row |= {
                    "numbers": numbers,
                    "seconds": found.seconds,
                    "ratios": {OURS + k: found.ratio(k) for k in KINDS},
                }
                row |= {"memory": memory, "errors": found.errors}
                told.append(row)
    if options.json:
        print(json.dumps({"facts": facts(options), "goal": GOAL, "cells": told}, indent=2))


if __name__ == "__main__":
    main()
