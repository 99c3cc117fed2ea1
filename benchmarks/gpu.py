"""Check and measure everything that a GPU can show, in one go: correctness first, then speed, in order of worth.

    python benchmarks/gpu.py --minutes 25 --out DIR [--only CELL …] [--device cpu --tiny]

Each cell runs in a process of its own within its time limit and writes `DIR/CELL.json` as it ends: figures, and the
card's name, clocks and versions. A second call goes on where the first stopped; a cell that failed is tried again.
`DIR/summary.md` has all of them. `--tiny` runs every cell with sizes that a CPU computes in seconds: the figures mean
nothing then, the test of this script does.

Needed are torch, the project's own dependencies, and for the cells of ONNX onnx, onnx-ir and onnxruntime-gpu; a cell
whose package is missing says so, and the others run. transformers takes part where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]  # for the folder of this script, whose onnx.py is not onnx

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import tiny

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.estimates.hardware import Device, devices
from archdsl.estimates.roofline import peak_of
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
        name = torch.cuda.get_device_name().lower().replace("-", " ")
        words = {word for word in name.replace("nvidia", "").split() if not word.endswith("gb")}
        fits = [
            (len(w), d)
            for key, d in devices().items()
            if (w := {*key.split("_")} & words) and key.split("_")[0] in words
        ]
        return max(fits, key=lambda pair: pair[0])[1] if fits else None

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


def distance(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest number of b."""
    return float((a - b).abs().max() / b.abs().max())


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
    """Emitted modules on the device beside float64 on the CPU: the same weights and inputs."""
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
            found[name] = distance(there, exact)
        except Exception as problem:
            found[name] = f"{type(problem).__name__}: {str(problem)[:300]}"
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
            found[name] = f"{type(problem).__name__}: {str(problem)[:300]}"
    return judged(found, 1e-9)


def onnx(setting: Setting, dtype: str = "float32", quantize: str | None = None) -> Figures:
    """Graphs in onnxruntime on the device beside the emitted module, whole and step by step."""
    from archdsl.run.verify import verify

    target = "ort-cuda" if setting.device == "cuda" else "ort-cpu"
    found: Figures = {}
    for name in FAMILIES[:1] if setting.tiny else FAMILIES[:8]:
        model = tiny.graph(name)
        sizes: dict[str, Any] = {"batch": 2, "time": None, "weights": None, "seed": 0}
        try:
            report = verify(model, **sizes, device=setting.device, dtype=dtype, target=target, quantize=quantize)
            parts = (report.outputs, report.decode, report.torch_decode)
            found[name] = max(d.relative for part in parts for d in part.values())
        except ArchError as problem:
            found[name] = f"{problem.diagnostics[0].code} {problem.diagnostics[0].message[:300]}"
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
    card = setting.card
    peak = peak_of(card, "bfloat16", "bfloat16") if card is not None else None
    if peak:
        found["mfu_dense"] = int(work.training) / (taken / 1e3) / peak
    if setting.device == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
        found["estimated_peak_bytes"] = archdsl.memory(model, batch=batch, seq=seq, optimizer="adamw").peak
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


def attention(setting: Setting) -> Figures:
    """A sliding window in blocks (FlexAttention), forward and backward, beside causal attention (FlashAttention): time
    for each pair of a query and a key."""
    heads, dim = (2, 16) if setting.tiny else (32, 128)
    time_, window = (64, 16) if setting.tiny else (16_384, 4096)
    source = archdsl.torch_source("mistral_7b", set={"layers": 1})
    module: Any = sys.modules[load_source(source).__module__]
    dtype = torch.bfloat16 if setting.device == "cuda" else torch.float32

    def drawn(length: int) -> list[Tensor]:
        shape = (1, heads, length, dim)
        return [torch.randn(shape, device=setting.device, dtype=dtype, requires_grad=True) for _ in range(3)]

    def timed(run: Callable[..., Tensor], given: list[Tensor]) -> float:
        def step() -> None:
            run(*given).sum().backward()

        return setting.milliseconds(step)

    predicate = next(f for n, f in vars(module).items() if n.endswith("_mask") and "window" in n)
    mask = module.mask_of(predicate, 1, time_, torch.device(setting.device), window)
    pairs = sum(min(i + 1, window) for i in range(time_))
    found: Figures = {"pairs": pairs}
    found["window_milliseconds"] = timed(lambda q, k, v: module.masked_attention(q, k, v, mask), drawn(time_))
    length = int((2 * pairs) ** 0.5)
    causal = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    found["causal_milliseconds"] = timed(causal, drawn(length))
    ratio = found["window_milliseconds"] / pairs / (found["causal_milliseconds"] / (length * (length + 1) / 2))
    return found | {"window / causal, a pair": ratio}


def big(setting: Setting) -> tuple[Model, nn.Module]:
    """Llama 3 8B in bfloat16, with steps of decoding."""
    model = model_of(setting, "llama3_8b", {}, SMALL)
    torch.manual_seed(0)
    return model, archdsl.to_torch(model, features=["generate"], device=setting.device, dtype="bfloat16").eval()


def decode(setting: Setting) -> Figures:
    """Tokens a second that follow a prompt of 128, one row, with a compiled step; the share of the card's bandwidth
    that reading the weights takes; transformers' `generate` beside it."""
    model, module = big(setting)
    prompt, new = (4, 4) if setting.tiny else (128, 128)
    tokens = torch.randint(100, (1, prompt), device=setting.device)
    generate: Any = module.generate
    found: Figures = {}
    for compiled in (False,) if setting.tiny else (False, True):
        short = setting.milliseconds(lambda c=compiled: generate(tokens, 2, compiled=c), repeats=3, warm=2)
        whole = setting.milliseconds(lambda c=compiled: generate(tokens, new + 2, compiled=c), repeats=3, warm=2)
        rate = 1e3 * new / (whole - short)
        found["compiled" if compiled else "eager"] = {"tokens_per_second": rate}
        card = setting.card
        if card is not None:
            read = sum(p.numel() * p.element_size() for n, p in module.named_parameters() if "embedding" not in n)
            found["compiled" if compiled else "eager"]["share_of_bandwidth"] = rate * read / card.bandwidth
    if importlib.util.find_spec("transformers") is not None and not setting.tiny:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {f.name: int(f.value) for f in model.config}
        config = LlamaConfig(
            hidden_size=sizes["width"], num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
            num_key_value_heads=sizes["kv_heads"], intermediate_size=sizes["hidden"], vocab_size=sizes["vocab"],
        )  # fmt: skip
        del module, generate
        with torch.device(setting.device):
            peer: Any = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        asked = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        short = setting.milliseconds(lambda: peer.generate(tokens, max_new_tokens=2, **asked), repeats=3, warm=1)
        whole = setting.milliseconds(lambda: peer.generate(tokens, max_new_tokens=new + 2, **asked), repeats=3, warm=1)
        found["transformers"] = {"tokens_per_second": 1e3 * new / (whole - short)}
    return found


def prefill(setting: Setting) -> Figures:
    """Logits of a long prompt."""
    model, module = big(setting)
    seq = 8 if setting.tiny else 8192
    tokens = torch.randint(100, (1, seq), device=setting.device)
    with torch.no_grad():
        taken = setting.milliseconds(lambda: module(tokens))
    work = archdsl.flops(model, batch=1, seq=seq, convention="dense")
    found: Figures = {"milliseconds": taken, "forward_flops_dense": int(work.forward)}
    card = setting.card
    peak = peak_of(card, "bfloat16", "bfloat16") if card is not None else None
    return found | ({"mfu_dense": int(work.forward) / (taken / 1e3) / peak} if peak else {})


def onnx_decode(setting: Setting) -> Figures:
    """A step of decoding of GPT-2 in onnxruntime on the device."""
    from archdsl.run.onnx import run

    model = model_of(setting, "gpt2", {}, {"layers": 2, "width": 32, "heads": 2, "vocab": 128, "context": 64})
    cuda = setting.device == "cuda"
    report = run(
        model, weights=None, seed=0, batch=1, time=16 if setting.tiny else 256, device=setting.device,
        dtype="float16" if cuda else "float32", target="ort-cuda" if cuda else "ort-cpu",
    )  # fmt: skip
    return {"providers": report.providers, "milliseconds": report.milliseconds}


# --- cells ------------------------------------------------------------------------------------------------------------

CELLS: dict[str, tuple[int, Callable[[Setting], Figures]]] = {
    "parity-float32": (90, parity),
    "parity-bfloat16": (60, lambda s: parity(s, "bfloat16")),
    "parity-compiled": (240, lambda s: parity(s, compiled=True)),
    "decode-eager": (90, decoding),
    "decode-compiled": (240, lambda s: decoding(s, compiled=not s.tiny)),
    "onnx-float32": (120, onnx),
    "onnx-float16": (120, lambda s: onnx(s, "float32" if s.device == "cpu" else "float16")),
    "onnx-bfloat16": (120, lambda s: onnx(s, "float32" if s.device == "cpu" else "bfloat16")),
    "onnx-int8": (120, lambda s: onnx(s, quantize="int8")),
    "onnx-int4": (120, lambda s: onnx(s, quantize="int4")),
    "sharded": (90, sharded),
    "train-llama-1.3b": (180, train_llama),
    "train-llama-1.3b-float8": (180, lambda s: train_llama(s, float8=True)),
    "generate-8b": (300, decode),
    "prefill-8b": (120, prefill),
    "train-moe": (240, train_moe),
    "attention-window": (120, attention),
    "onnx-decode": (120, onnx_decode),
}
"""Each with its time limit in seconds, in order of worth."""


def machine(device: str) -> Figures:
    """What the figures were measured on."""
    found: Figures = {"python": platform.python_version(), "torch": torch.__version__, "device": device}
    for name in ("onnxruntime-gpu", "onnxruntime", "transformers", "onnx"):
        try:
            found[name] = version(name)
        except ImportError:
            found[name] = None
    if device == "cuda":
        found["card"] = torch.cuda.get_device_name()
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
