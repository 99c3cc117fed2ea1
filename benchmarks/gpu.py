"""Check and measure everything that a GPU can show, in one go: correctness first, then speed, in order of worth.

    python benchmarks/gpu.py --minutes 25 --out DIR [--only CELL …] [--device cpu --tiny]

Each cell runs in a process of its own within its time limit and writes `DIR/CELL.json` as it ends: figures, and the
card's name, clocks and versions. A second call goes on where the first stopped; a cell that failed is tried again.
`DIR/summary.md` has all of them. `--tiny` runs every cell with sizes that a CPU computes in seconds: the figures mean
nothing then, the test of this script does.

Needed are torch, the project's own dependencies, and for the cells of ONNX onnx, onnx-ir, onnxscript and
onnxruntime-gpu; a cell whose package is missing says so, and the others run. transformers, mamba-ssm,
flash-linear-attention and newer FlashAttentions take part where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]  # for the folder of this script, whose onnx.py is not onnx

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from zoo import tiny

import archdsl
from archdsl.estimates.hardware import Device, devices
from archdsl.estimates.roofline import Cluster, Roofline
from archdsl.estimates.roofline import estimate as roofline
from archdsl.estimates.sharding import StepPlan
from archdsl.ir.graph import Model
from archdsl.run.load import load_source

Figures = dict[str, Any]

FAMILIES = [
    *("gpt2:gpt2", "llama3:llama3_8b", "mistral:mistral_7b", "mixtral:mixtral_8x7b", "deepseek_v3:deepseek_v3"),
    *(
        "t5:t5_base",
        "bert:bert_base",
        "mamba:mamba_130m",
        "bloom:bloom_560m",
        "vit:vit_b16",
        "transformer:transformer_base",
    ),
]
DECODERS = [*FAMILIES[:5], "mamba:mamba_130m", "bloom:bloom_176b"]
SINGLE = {"mamba:mamba_130m"}
"""Those whose code computes a part in float32 whatever the type, and so not in float64."""
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 2e-2}
CARDS = {
    "NVIDIA H200": "h200_sxm",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H100 PCIe": "h100_pcie",
    "NVIDIA B200": "b200_sxm",
    "NVIDIA A100-SXM4-80GB": "a100_sxm_80gb",
    "NVIDIA A100-SXM4-40GB": "a100_sxm_40gb",
    "NVIDIA A100 80GB PCIe": "a100_pcie_80gb",
    "NVIDIA A10": "a10",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx_4090",
    "NVIDIA GeForce RTX 3090": "rtx_3090",
    "Tesla V100-SXM2-32GB": "v100_sxm_32gb",
    "Tesla T4": "t4",
    "AMD Instinct MI300X": "mi300x",
}
"""What drivers call the cards whose peaks are known."""


@dataclass(frozen=True)
class Setting:
    """Where cells run, and whether with sizes that only show that they do."""

    device: str
    tiny: bool

    def sync(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    @property
    def card(self) -> Device | None:
        """What is known of the card; None for one that the table does not have."""
        if self.device != "cuda":
            return None
        return devices().get(CARDS.get(torch.cuda.get_device_name(), ""))

    @property
    def peak(self) -> float:
        """FLOP/s of a card that is known, in bfloat16."""
        assert self.card is not None
        return self.card.peak["bfloat16"]

    def estimate(self, model: Model, batch: int, seq: int, plan: StepPlan) -> Roofline | None:
        """What is estimated of a model on the card; None where nothing is known of it."""
        return None if self.card is None else roofline(model, Cluster(self.card), plan, batch=batch, seq=seq)

    def milliseconds(self, run: Callable[[], object], repeats: int = 10, warm: int = 3) -> float:
        """The median time of a call, after some that are not measured."""
        times = []
        for i in range(warm + (2 if self.tiny else repeats)):
            self.sync()
            start = time.perf_counter()
            run()
            self.sync()
            if i >= warm:
                times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)


def moved(inputs: dict[str, Tensor], device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [x.to(device, dtype) if x.is_floating_point() else x.to(device) for x in inputs.values()]


def first(outputs: Any) -> Tensor:
    found: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return found.detach().float().cpu()


def distance(a: Tensor, b: Tensor, share: float = 1.0) -> float:
    """The largest difference in that share of the numbers, relative to the largest number of b."""
    found = (a - b).abs().flatten().sort().values
    return float(found[int(share * (len(found) - 1))] / b.abs().max())


def told(problem: Exception) -> str:
    """What went wrong, in one line."""
    return f"{type(problem).__name__}: {str(problem)[:300]}"


def exact_type(name: str) -> torch.dtype:
    return torch.float32 if name in SINGLE else torch.float64


def judged(found: Figures, limit: float) -> Figures:
    """Figures of distances, and which of them are above a limit or none."""
    wrong = [n for n, d in found.items() if not isinstance(d, float) or not d < limit]
    return {"limit": limit, "worst": max((d for d in found.values() if isinstance(d, float)), default=None)} | {
        "failed": wrong,
        "distances": found,
    }


# --- correctness ------------------------------------------------------------------------------------------------------


def parity(setting: Setting, dtype: str = "float32", compiled: bool = False) -> Figures:
    """Emitted modules on the device beside float64 on the CPU: the same weights and inputs. In types of few bits some
    tokens go to other experts: of the numbers the nearest eight in ten count."""
    found: Figures = {}
    kind = getattr(torch, dtype)
    for name in FAMILIES[:1] if setting.tiny else FAMILIES[:5] if compiled else FAMILIES:
        try:
            module, given = tiny.module(name).eval(), tiny.inputs(tiny.graph(name))
            with torch.no_grad():
                here = module.to(setting.device, kind)
                run = torch.compile(here, backend="aot_eager" if setting.tiny else "inductor") if compiled else here
                there = first(run(*moved(given, setting.device, kind)))
                wide = exact_type(name)
                exact = first(tiny.module(name).eval().to(wide)(*moved(given, "cpu", wide)))
            found[name] = distance(there, exact, 1.0 if dtype == "float32" else 0.8)
        except Exception as problem:
            found[name] = told(problem)
    return judged(found, TOLERANCE[dtype])


def decoding(setting: Setting, compiled: bool = False) -> Figures:
    """Greedy tokens of emitted `generate` on the device beside those on the CPU, rows of two lengths; the share that
    differs."""
    found: Figures = {}
    for name in DECODERS[:2] if setting.tiny else DECODERS:
        try:
            torch.manual_seed(0)
            module = archdsl.to_torch(tiny.graph(name), features=["generate"]).eval().to(exact_type(name))
            tokens = next(iter(tiny.inputs(tiny.graph(name)).values()))[:, :6]
            mask = torch.ones_like(tokens, dtype=torch.bool)
            mask[-1, :2] = False
            wanted = module.generate(tokens, 6, attention_mask=mask)
            here = module.to(setting.device)
            given = tokens.to(setting.device)
            again = here.generate(given, 6, attention_mask=mask.to(setting.device), compiled=compiled)
            found[name] = float((again.cpu() != wanted).float().mean())
        except Exception as problem:
            found[name] = told(problem)
    return judged(found, 1e-9)


def onnx(setting: Setting, dtype: str = "float32", quantize: str | None = None) -> Figures:
    """Graphs in onnxruntime on the device beside the emitted module, whole and step by step."""
    from archdsl.backends.onnx.targets import GraphOptions
    from archdsl.run.verify import verify

    options = GraphOptions(dtype, "ort-cuda" if setting.device == "cuda" else "ort-cpu", quantize)
    found: Figures = {}
    for name in FAMILIES[:1] if setting.tiny else FAMILIES[:8]:
        model = tiny.graph(name)
        sizes: dict[str, Any] = {"batch": 2, "time": None, "weights": None, "seed": 0}
        try:
            report = verify(model, options, **sizes, device=setting.device)
            parts = (report.outputs, report.decode, report.torch_decode)
            found[name] = max(d.relative for part in parts for d in part.values())
        except Exception as problem:
            found[name] = told(problem)
    return judged(found, TOLERANCE[dtype])


def sharded(setting: Setting) -> Figures:
    """FSDP and tensor parallelism on one device: a step of training gives the loss of the plain module."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("nccl" if setting.device == "cuda" else "gloo", rank=0, world_size=1)
    found: Figures = {}
    try:
        for name in FAMILIES[1:2] if setting.tiny else FAMILIES[1:5]:
            model = tiny.graph(name)
            source = archdsl.torch_source(model, features=["loss", "parallel"])
            cls = load_source(source)
            parallelize = sys.modules[cls.__module__].parallelize  # type: ignore[attr-defined]
            tokens = tiny.inputs(model)["tokens"].to(setting.device)
            losses = []
            for cut in (False, True):
                torch.manual_seed(0)
                made = cls().to(setting.device)
                if cut:
                    made = parallelize(made, init_device_mesh(setting.device, (1, 1), mesh_dim_names=("dp", "tp")))
                loss = made(tokens, tokens)
                loss.backward()
                losses.append(loss.item())
            found[name] = abs(losses[1] - losses[0]) / abs(losses[0])
    finally:
        dist.destroy_process_group()
    return judged(found, 1e-4)


# --- speed ------------------------------------------------------------------------------------------------------------


def model_of(setting: Setting, name: str, sizes: dict[str, int], small: dict[str, int]) -> Model:
    return archdsl.load(name, set=small if setting.tiny else sizes)


def training(setting: Setting, model: Model, batch: int, seq: int, float8: bool = False) -> Figures:
    """A compiled step of AdamW in bfloat16, products of layers in float8 if asked: tokens a second, MFU of bfloat16's
    peak in the dense convention, and peak memory and time beside the estimate."""
    torch.manual_seed(0)
    module = archdsl.to_torch(model, features=["loss", "float8"], device=setting.device).train()
    plan = StepPlan(dtype="bfloat16", master_weights=True, compute="float8" if float8 else None)
    if float8:
        sys.modules[type(module).__module__].use_float8(module.blocks)  # type: ignore[attr-defined]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=setting.device == "cuda")
    vocab = next(int(f.value) for f in model.config if f.name == "vocab")
    tokens = torch.randint(vocab, (batch, seq + 1), device=setting.device)
    run = module if setting.tiny else torch.compile(module)

    def step() -> None:
        with torch.autocast(setting.device, dtype=torch.bfloat16):
            loss = run(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if setting.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    taken = setting.milliseconds(step)
    work = archdsl.flops(model, batch=batch, seq=seq, convention="dense")
    found: Figures = {"milliseconds": taken, "tokens_per_second": 1e3 * batch * seq / taken}
    found["training_flops_dense"] = int(work.training)
    estimate = setting.estimate(model, batch, seq, plan)
    if estimate is not None:
        found["mfu_dense"] = int(work.training) / (taken / 1e3) / setting.peak
        found["bound_milliseconds"] = 1e3 * estimate.training.seconds
        found["expected_milliseconds"] = [1e3 * s for s in estimate.expected.seconds]
    if setting.device == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
        sizes: dict[str, Any] = {"batch": batch, "seq": seq, "dtype": "bfloat16", "master_weights": True}
        found["estimated_peak_bytes"] = archdsl.memory(model, **sizes).peak
    return found


LLAMA = {"layers": 24, "width": 2048, "heads": 16, "kv_heads": 16, "hidden": 5504}
SMALL = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 96, "vocab": 128}


def train_llama(setting: Setting, float8: bool = False) -> Figures:
    model = model_of(setting, "llama2_7b", LLAMA, SMALL)
    return training(setting, model, *((2, 16) if setting.tiny else (8, 2048)), float8)


def train_moe(setting: Setting) -> Figures:
    sizes = {"layers": 16, "width": 1536, "heads": 12, "kv_heads": 4, "hidden": 4096, "experts": 8}
    model = model_of(setting, "mixtral_8x7b", sizes, SMALL | {"experts": 4})
    return training(setting, model, *((2, 16) if setting.tiny else (8, 2048)))


ATTENDING = """
block layer(mask: mask) {
  attention: mha(heads: 2)
  mask:      mask
  ffn:       mlp(hidden: 64)
  norm:      layernorm
}
model attending(window = 8) {
  vocab:   97
  context: 512
  width:   64
  blocks:  layer(causal & window(window)) + layer(causal & documents) + layer(causal & window(window) & documents)
  norm:    layernorm
  head:    lm
}
"""


def parity_varlen(setting: Setting) -> Figures:
    """Windows and packed documents by FlashAttention for sequences of different lengths, forward and backward, in
    bfloat16, beside whole masks in float32 on the CPU: logits, and the gradient of each weight."""
    torch.manual_seed(0)
    module = archdsl.to_torch(text=ATTENDING, features=["varlen"])
    tokens, time_ = torch.randint(97, (2, 300)), torch.arange(300)
    documents = torch.stack((time_ // 70, time_ // 128))

    def outcome(device: str, low: bool) -> dict[str, Tensor]:
        module.to(device).zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=low):
            y = module(tokens.to(device), documents.to(device))
        (y.float() ** 2).mean().backward()
        return {"logits": first(y)} | {n: first(p.grad) for n, p in module.named_parameters() if p.grad is not None}

    wanted = outcome("cpu", False)
    found = outcome(setting.device, setting.device == "cuda")
    largest = max(g.abs().max() for n, g in wanted.items() if n != "logits")  # some are zero but for rounding
    distances = {n: float((found[n] - g).abs().max() / largest) for n, g in wanted.items() if n != "logits"}
    return judged(distances | {"logits": distance(found["logits"], wanted["logits"])}, TOLERANCE["bfloat16"])


def attention(setting: Setting, packed: bool = False) -> Figures:
    """A sliding window, or packed documents, by FlexAttention and by FlashAttention for sequences of different lengths,
    forward and backward, beside causal attention: time for each pair of a query and a key, relative to the last. Where
    newer FlashAttentions are installed, the same by these."""
    from torch.nn.attention.flex_attention import flex_attention

    heads, dim = (2, 16) if setting.tiny else (32, 128)
    time_, window = (64, 16) if setting.tiny else (16_384, 4096)
    module: Any = sys.modules[load_source(archdsl.torch_source(text=ATTENDING, features=["varlen"])).__module__]
    device, dtype = torch.device(setting.device), torch.bfloat16 if setting.device == "cuda" else torch.float32
    lengths = [time_ // 2, time_ // 4, time_ // 8, time_ // 8] if packed else [time_]
    pairs = sum(min(i + 1, time_ if packed else window) for n in lengths for i in range(n))
    length = int((2 * pairs) ** 0.5)
    found: Figures = {"pairs": pairs}

    def timed(run: Callable[..., Tensor], length: int) -> float:
        shape = (1, heads, length, dim)
        given = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
        grad = torch.randn(shape, device=device, dtype=dtype)
        return setting.milliseconds(lambda: run(*given).backward(grad))

    if packed:
        numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None].to(device)
        rule, more, options = module.causal_and_documents_mask, [numbers], {}
    else:
        rule, more, options = module.causal_and_window_mask, [window], {"window": window}
    blocks = module.mask_of(rule, 1, time_, device, *more)
    spans = module.spans_of(rule, 1, time_, device, *more, causal=True, **options)
    runs: dict[str, tuple[Callable[..., Tensor], int]] = {
        "causal": (partial(F.scaled_dot_product_attention, is_causal=True), length),
        "flex": (partial(module.masked_attention, mask=blocks), time_),
        "varlen": (partial(module.varlen_attention, mask=spans), time_),
    }

    def measured(name: str, suffix: str = "") -> None:
        run, at = runs[name]
        try:
            found[f"{name}{suffix}_milliseconds"] = timed(run, at)
        except Exception as problem:
            found[f"{name}{suffix}"] = told(problem)

    for name in runs:
        measured(name)
    if setting.device == "cuda":
        from torch.nn import attention as kernels

        for impl, package in (("FA3", "flash_attn_interface"), ("FA4", "flash_attn.cute")):
            if installed(package) and hasattr(kernels, "activate_flash_attention_impl"):
                kernels.activate_flash_attention_impl(impl)
                measured("causal", f"_{impl}")
                measured("varlen", f"_{impl}")
        if installed("flash_attn.cute"):
            flash = partial(flex_attention, kernel_options={"BACKEND": "FLASH"})
            module.fused_attention = torch.compile(flash, dynamic=False)
            measured("flex", "_FLASH")
    wrong = [n for n, figure in found.items() if isinstance(figure, str)]
    taken = {n.removesuffix("_milliseconds"): ms for n, ms in found.items() if n.endswith("_milliseconds")}
    best = min(ms for n, ms in taken.items() if n.startswith("causal")) / (length * (length + 1) / 2)
    ratios = {n: ms / pairs / best for n, ms in taken.items() if not n.startswith("causal")}
    return found | {f"{n} / causal, a pair": ratio for n, ratio in ratios.items()} | {"failed": wrong}


def installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # what it is a part of is not there
        return False


def scans(setting: Setting) -> Figures:
    """Recurrences of the emitted file beside kernels of other packages that do the same, put in its place: how far they
    are apart, and the time of each, forward and backward."""
    found: Figures = {}
    batch, time_, width, state = (1, 70, 8, 4) if setting.tiny else (4, 4096, 2048, 16)
    torch.manual_seed(0)

    def compared(name: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor], given: list[Tensor]) -> None:
        given = [t.to(setting.device).requires_grad_() for t in given]
        found[name] = {"distance": distance(first(theirs(*given)), first(ours(*given)))}
        for key, run in (("ours", ours), ("theirs", theirs)):
            found[name][f"{key}_milliseconds"] = setting.milliseconds(lambda run=run: run(*given).sum().backward())

    if installed("mamba_ssm"):
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

        def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            y: Tensor = selective_scan_fn(x.mT, delta.type_as(x).mT, a.float(), b.type_as(x).mT, c.type_as(x).mT)
            return y.mT

        module: Any = sys.modules[load_source(archdsl.torch_source("mamba:mamba_130m")).__module__]
        x, delta = torch.randn(2, batch, time_, width)
        b, c = torch.randn(2, batch, time_, state)
        given = [x, F.softplus(delta - 2), -torch.rand(width, state) - 0.1, b, c]
        compared("mamba-ssm", module.selective_scan, selective_scan, given)
    if installed("fla"):
        from fla.ops.simple_gla import chunk_simple_gla

        def decayed_linear_attention(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
            q, k = (t.repeat_interleave(v.size(1) // t.size(1), 1) for t in (q, k))  # a head of them serves a group
            q, k, v, log_decay = (t.transpose(1, 2) for t in (q, k, v, log_decay.expand(v.shape[:3])))
            y: Tensor = chunk_simple_gla(q, k, v, g=log_decay.float(), scale=1.0)[0]
            return y.transpose(1, 2)

        module = importlib.import_module("archdsl.backends.torch.runtime.linear_attention")
        heads, dim = (2, 16) if setting.tiny else (16, 128)
        q, k, v = dim**-0.5 * torch.randn(3, batch, heads, time_, dim)
        given = [q, k, v, -torch.rand(batch, heads, time_) / 8]
        compared("fla", module.decayed_linear_attention, decayed_linear_attention, given)
    wrong = [name for name, figures in found.items() if not figures["distance"] < 2e-2]
    return found | {"failed": wrong} if found else {"compared": "neither mamba-ssm nor flash-linear-attention is here"}


def big(setting: Setting) -> tuple[Model, nn.Module]:
    """Llama 3 8B in bfloat16, with steps of decoding."""
    model = model_of(setting, "llama3_8b", {}, SMALL)
    torch.manual_seed(0)
    return model, archdsl.to_torch(model, features=["generate"], device=setting.device, dtype="bfloat16").eval()


def rate(setting: Setting, tokens: Callable[[], Iterator[object]], new: int) -> float:
    """Tokens a second behind the first quarter of so many new ones, the best of three times; compilers run before."""
    found = []
    for i in range(4):
        for j, _ in enumerate(tokens()):
            if j + 1 == new // 4:
                setting.sync()
                start = time.perf_counter()
        setting.sync()
        if i > 0:
            found.append((j + 1 - new // 4) / (time.perf_counter() - start))
    return max(found)


def decode(setting: Setting) -> Figures:
    """Tokens a second that follow a prompt of 128, one row, eager and with a compiled step; the share of the card's
    bandwidth that reading the weights takes, and what is estimated."""
    model, module = big(setting)
    prompt, new = (4, 4) if setting.tiny else (128, 128)
    tokens = torch.randint(100, (1, prompt), device=setting.device)
    stream: Any = module.stream
    found: Figures = {}
    for compiled in (False,) if setting.tiny else (False, True):
        figures = {"tokens_per_second": rate(setting, lambda c=compiled: stream(tokens, new, compiled=c), new)}
        if setting.card is not None:
            read = sum(p.numel() * p.element_size() for n, p in module.named_parameters() if "embedding" not in n)
            figures["share_of_bandwidth"] = figures["tokens_per_second"] * read / setting.card.bandwidth
        found["compiled" if compiled else "eager"] = figures
    found["compiled without a CUDA graph"] = counters["inductor"]["cudagraph_skips"]
    estimate = setting.estimate(model, 1, prompt + new, StepPlan(dtype="bfloat16"))
    return found | ({} if estimate is None or estimate.decode is None else {"bound": estimate.decode.tokens_per_second})


def decode_peer(setting: Setting) -> Figures:
    """The same by transformers' `generate`, weights drawn at random."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.generation.streamers import BaseStreamer

    sizes = {f.name: int(f.value) for f in model_of(setting, "llama3_8b", {}, SMALL).config}
    config = LlamaConfig(
        hidden_size=sizes["width"], num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"], intermediate_size=sizes["hidden"], vocab_size=sizes["vocab"],
        dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device(setting.device):
        peer: Any = LlamaForCausalLM(config).to(dtype=torch.bfloat16).eval()  # type: ignore[arg-type]
    prompt, new = (4, 4) if setting.tiny else (128, 128)
    tokens = torch.randint(100, (1, prompt), device=setting.device)
    asked = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    found: Figures = {}
    for cache in ("dynamic",) if setting.tiny else ("dynamic", "static"):  # the second compiles its step
        at: list[float] = []

        class Clock(BaseStreamer):
            def put(self, value: Tensor, at: list[float] = at) -> None:
                setting.sync()
                at.append(time.perf_counter())

            def end(self) -> None:
                pass

        for _ in range(2):  # what the first compiles the second runs
            at.clear()
            peer.generate(tokens, max_new_tokens=new, streamer=Clock(), cache_implementation=cache, **asked)
        first_, last = at[1 + new // 4], at[-1]  # the prompt is put, too
        found[cache] = {"tokens_per_second": (len(at) - 2 - new // 4) / (last - first_)}
    return found


def prefill(setting: Setting) -> Figures:
    """Logits of a long prompt, eager and compiled."""
    model, module = big(setting)
    seq = 8 if setting.tiny else 8192
    tokens = torch.randint(100, (1, seq), device=setting.device)
    work = archdsl.flops(model, batch=1, seq=seq, convention="dense")
    found: Figures = {"forward_flops_dense": int(work.forward)}
    runs: dict[str, Any] = {"eager": module} | ({} if setting.tiny else {"compiled": torch.compile(module)})
    for name, run in runs.items():
        with torch.no_grad():
            found[f"{name}_milliseconds"] = taken = setting.milliseconds(lambda run=run: run(tokens))
        if setting.card is not None:
            found[f"{name}_mfu_dense"] = int(work.forward) / (taken / 1e3) / setting.peak
    return found


def onnx_decode(setting: Setting) -> Figures:
    """A step of decoding of GPT-2 in onnxruntime on the device."""
    from archdsl.backends.onnx.targets import GraphOptions
    from archdsl.run.onnx import run

    model = model_of(setting, "gpt2", {}, {"layers": 2, "width": 32, "heads": 2, "vocab": 128, "context": 64})
    cuda = setting.device == "cuda"
    options = GraphOptions("float16", "ort-cuda") if cuda else GraphOptions("float32", "ort-cpu")
    time_ = 16 if setting.tiny else 256
    report = run(model, options, weights=None, seed=0, batch=1, time=time_, device=setting.device)
    return {"providers": report.providers, "milliseconds": report.milliseconds}


# --- cells ------------------------------------------------------------------------------------------------------------

CELLS: dict[str, tuple[int, Callable[[Setting], Figures]]] = {
    "parity-float32": (90, parity),
    "parity-bfloat16": (60, lambda s: parity(s, "bfloat16")),
    "parity-compiled": (240, lambda s: parity(s, compiled=True)),
    "decode-eager": (90, decoding),
    "decode-compiled": (240, lambda s: decoding(s, compiled=not s.tiny)),
    "parity-varlen": (90, parity_varlen),
    "onnx-float32": (120, onnx),
    "onnx-float16": (120, lambda s: onnx(s, "float32" if s.device == "cpu" else "float16")),
    "onnx-bfloat16": (120, lambda s: onnx(s, "float32" if s.device == "cpu" else "bfloat16")),
    "onnx-int8": (120, lambda s: onnx(s, quantize="int8")),
    "onnx-int4": (120, lambda s: onnx(s, quantize="int4")),
    "sharded": (90, sharded),
    "train-llama-1.3b": (180, train_llama),
    "train-llama-1.3b-float8": (180, lambda s: train_llama(s, float8=True)),
    "generate-8b": (300, decode),
    "prefill-8b": (180, prefill),
    "train-moe": (240, train_moe),
    "attention-window": (150, attention),
    "attention-documents": (150, lambda s: attention(s, packed=True)),
    "onnx-decode": (120, onnx_decode),
    "generate-8b-transformers": (240, decode_peer),
    "scans": (90, scans),
}
"""Each with its time limit in seconds, in order of worth."""


def machine(device: str) -> Figures:
    """What the figures were measured on."""
    found: Figures = {"python": platform.python_version(), "torch": torch.__version__, "device": device}
    found["cuda"] = torch.version.cuda
    peers = ("transformers", "mamba-ssm", "flash-linear-attention")
    for name in ("triton", "onnxruntime-gpu", "onnxruntime", "onnx", *peers):
        try:
            found[name] = version(name)
        except ImportError:
            found[name] = None
    if device == "cuda":
        found["card"] = torch.cuda.get_device_name()
    if device == "cuda" and shutil.which("nvidia-smi"):
        asked = "clocks.sm,clocks.max.sm,clocks.mem,power.limit,driver_version"
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found["clocks"] = dict(zip(asked.split(","), done.stdout.strip().split(", "), strict=False))
    return found


def run_cell(name: str, setting: Setting, out: Path) -> None:
    """Run one cell here, and write its figures or what went wrong."""
    start = time.perf_counter()
    report: Figures = {"cell": name, "tiny": setting.tiny, "machine": machine(setting.device)}
    try:
        figures = CELLS[name][1](setting)
        report |= {"status": "failed" if figures.get("failed") else "ok", "figures": figures}
    except Exception as problem:
        report |= {"status": "failed", "error": f"{type(problem).__name__}: {problem}"[:2000]}
        report["traceback"] = traceback.format_exc()[-4000:]
    report["seconds"] = round(time.perf_counter() - start, 1)
    write(out / f"{name}.json", report)


def write(path: Path, report: Figures) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(report, indent=2))
    beside.replace(path)


def done(path: Path) -> bool:
    return path.is_file() and json.loads(path.read_text())["status"] == "ok"


def summary(out: Path) -> Iterator[str]:
    """A table of all cells that have run."""
    yield "| cell | status | seconds | figures |"
    yield "|---|---|--:|---|"
    for name in CELLS:
        if (path := out / f"{name}.json").is_file():
            report = json.loads(path.read_text())
            figures = {k: v for k, v in report.get("figures", {}).items() if k != "distances"}
            told = json.dumps(figures) if figures else report.get("error", "")
            yield f"| {name} | {report['status']} | {report['seconds']} | {told.replace('|', '/')} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=CELLS, default=[*CELLS])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="sizes for a dry run")
    parser.add_argument("--here", action="store_true", help="run the cells in this process")
    given = parser.parse_args()
    setting = Setting(given.device, given.tiny)
    given.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # parity is of the code
    end = time.monotonic() + 60 * given.minutes
    for name in given.only:
        limit, path = CELLS[name][0], given.out / f"{name}.json"
        left = end - time.monotonic()
        if done(path) and not given.here:
            continue
        if left < 20:
            print(f"{name}: no time is left", flush=True)
            continue
        print(f"{name} …", flush=True)
        if given.here:
            run_cell(name, setting, given.out)
        else:
            command = [sys.executable, __file__, "--here", "--out", str(given.out), "--only", name]
            command += ["--device", given.device, *["--tiny"] * given.tiny]
            try:
                path.unlink(missing_ok=True)
                ended = subprocess.run(command, timeout=min(limit, left), check=False)
                if ended.returncode and not path.is_file():
                    write(path, {"cell": name, "status": "failed", "error": f"exit {ended.returncode}", "seconds": 0})
            except subprocess.TimeoutExpired:
                write(path, {"cell": name, "status": "failed", "error": "out of time", "seconds": limit})
        if path.is_file():
            report = json.loads(path.read_text())
            print(f"{name}: {report['status']}, {report['seconds']} s {report.get('error', '')}", flush=True)
        (given.out / "summary.md").write_text("\n".join(summary(given.out)) + "\n")
    return 0 if all(done(given.out / f"{name}.json") for name in given.only) else 1


if __name__ == "__main__":
    raise SystemExit(main())
