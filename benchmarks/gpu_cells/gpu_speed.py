"""Cells of `benchmarks/gpu.py` that measure time and memory."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from gpu_parity import ATTENDING
from gpu_setting import SMALL, Figures, Items, Setting, distance, first
from torch import Tensor, nn
from torch._dynamo.utils import counters

import archdsl
from archdsl.estimates.sharding import StepPlan
from archdsl.ir.graph import Model
from archdsl.run.load import load_source

Tick = Callable[[], None]

# --- generation and prefill -------------------------------------------------------------------------------------------

BILLION = {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "hidden": 8192}
"""Sizes of Llama 3.2 1B, with two matrices for the vocabulary."""


class Ours:
    """A Llama as emitted, in bfloat16."""

    tables = "embedding"

    def __init__(self, setting: Setting, model: Model) -> None:
        torch.manual_seed(0)
        self.module: Any = archdsl.to_torch(
            model, features=["generate"], device=setting.device, dtype="bfloat16"
        ).eval()

    def prefill(self, tokens: Tensor) -> object:
        return self.module(tokens)

    def generate(self, tokens: Tensor, new: int, compiled: bool, tick: Tick) -> None:
        for _ in self.module.stream(tokens, new, compiled=compiled):
            tick()


class Peer:
    """The same by transformers, weights drawn at random; its compiled step has a static cache."""

    tables = "embed_tokens"

    def __init__(self, setting: Setting, model: Model) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {f.name: int(f.value) for f in model.config}
        config = LlamaConfig(
            hidden_size=sizes["width"], num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
            num_key_value_heads=sizes["kv_heads"], intermediate_size=sizes["hidden"], vocab_size=sizes["vocab"],
            max_position_embeddings=sizes["context"],
        )  # fmt: skip
        torch.set_default_dtype(torch.bfloat16)  # 8B in float32 would not fit many a card
        try:
            with torch.device(setting.device):
                self.module: Any = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(torch.float32)

    def prefill(self, tokens: Tensor) -> object:
        return self.module(tokens, use_cache=False)

    def generate(self, tokens: Tensor, new: int, compiled: bool, tick: Tick) -> None:
        from transformers import StoppingCriteriaList

        def after(ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
            tick()
            return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

        self.module.generate(
            tokens, max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0,
            cache_implementation="static" if compiled else "dynamic", stopping_criteria=StoppingCriteriaList([after]),
        )  # fmt: skip


class Llama:
    """Measures of a Llama on both sides, alike: time and MFU of a prompt of `seq`, and tokens a second behind 128."""

    def __init__(self, setting: Setting, sizes: dict[str, int], seq: int) -> None:
        self.setting, self.model = setting, setting.model("llama3_8b", sizes, SMALL)
        self.seq, self.prompt, self.new = (8, 4, 8) if setting.tiny else (seq, 128, 128)

    def tokens(self, length: int) -> Tensor:
        return torch.randint(100, (1, length), device=self.setting.device)

    def prefill(self, side: Ours | Peer, compiled: bool = False) -> Figures:
        """Logits of all positions of a prompt."""
        tokens, run = self.tokens(self.seq), torch.compile(side.prefill) if compiled else side.prefill
        with torch.no_grad():
            taken = self.setting.milliseconds(lambda: run(tokens))
        work = int(archdsl.flops(self.model, batch=1, seq=self.seq, convention="dense").forward)
        found: Figures = {"milliseconds": taken, "tokens_per_second": 1e3 * self.seq / taken, "flops_dense": work}
        if self.setting.card is not None:
            found["mfu_dense"] = work / (taken / 1e3) / self.setting.peak
        return found

    def decode(self, side: Ours | Peer, compiled: bool) -> Figures:
        """Tokens a second, one row; the share of the card's bandwidth that reading the weights takes."""
        tokens, skipped = self.tokens(self.prompt), counters["inductor"]["cudagraph_skips"]
        found = self.setting.rate(partial(side.generate, tokens, self.new, compiled), self.new)
        if compiled:
            found["without_a_cuda_graph"] = counters["inductor"]["cudagraph_skips"] - skipped
        if self.setting.card is not None:
            weights = side.module.named_parameters()
            read = sum(p.numel() * p.element_size() for n, p in weights if side.tables not in n)
            found["share_of_bandwidth"] = found["tokens_per_second"] * read / self.setting.card.bandwidth
        bound = self.setting.estimate(self.model, 1, self.prompt + self.new, StepPlan(dtype="bfloat16"))
        if bound is not None and bound.decode is not None:
            found["bound"] = bound.decode.tokens_per_second
        return found


def billion(setting: Setting) -> Items:
    """The first figures of speed: prefill and generation by a Llama of 1.5 billion weights, beside transformers."""
    llama = Llama(setting, BILLION, 4096)
    sides: dict[str, Ours | Peer] = {"archdsl": Ours(setting, llama.model)}
    if installed("transformers"):
        sides["transformers"] = Peer(setting, llama.model)
    for name, side in sides.items():
        yield f"prefill, {name}", partial(llama.prefill, side)
    for compiled in (False,) if setting.tiny else (False, True):
        for name, side in sides.items():
            yield f"decode {'compiled' if compiled else 'eager'}, {name}", partial(llama.decode, side, compiled)


def eight(setting: Setting, peer: bool = False) -> Items:
    """The same with Llama 3 8B, one side at a time."""
    llama = Llama(setting, {}, 8192)
    side = (Peer if peer else Ours)(setting, llama.model)
    yield "decode eager", partial(llama.decode, side, False)
    yield "prefill", partial(llama.prefill, side)
    if not setting.tiny:
        yield "decode compiled", partial(llama.decode, side, True)
        yield "prefill compiled", partial(llama.prefill, side, True)


def onnx_decode(setting: Setting) -> Items:
    """GPT-2 in onnxruntime on the device: a whole sequence, a prompt, and a step behind it."""
    from archdsl.backends.onnx.targets import GraphOptions
    from archdsl.run.onnx import run

    small = {"layers": 2, "width": 32, "heads": 2, "vocab": 128, "context": 64}
    options = GraphOptions("float16", "ort-cuda") if setting.device == "cuda" else GraphOptions("float32", "ort-cpu")

    def steps() -> Figures:
        model = setting.model("gpt2", {}, small)
        time = 16 if setting.tiny else 256
        report = run(model, options, weights=None, seed=0, batch=1, time=time, device=setting.device)
        return {"providers": report.providers, "milliseconds": report.milliseconds}

    yield "gpt2", steps


# --- training ---------------------------------------------------------------------------------------------------------

LLAMA = {"layers": 24, "width": 2048, "heads": 16, "kv_heads": 16, "hidden": 5504}
MIXTRAL = {"layers": 16, "width": 1536, "heads": 12, "kv_heads": 4, "hidden": 4096, "experts": 8}


def training(setting: Setting, name: str, sizes: dict[str, int], more: dict[str, int], float8: bool = False) -> Items:
    """A compiled step of AdamW in bfloat16, products of layers in float8 if asked: tokens a second, MFU of bfloat16's
    peak in the dense convention, and peak memory and time beside the estimate."""

    def step() -> Figures:
        torch.manual_seed(0)
        model = setting.model(name, sizes, SMALL | more)
        batch, seq = (2, 16) if setting.tiny else (8, 2048)
        features = ["loss", *["float8"] * float8]
        module: nn.Module = archdsl.to_torch(model, features=features, device=setting.device).train()
        if float8:
            sys.modules[type(module).__module__].use_float8(module.blocks)  # type: ignore[attr-defined]
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=setting.device == "cuda")
        vocab = next(int(f.value) for f in model.config if f.name == "vocab")
        tokens = torch.randint(vocab, (batch, seq + 1), device=setting.device)
        run = module if setting.tiny else torch.compile(module)

        def once() -> None:
            with torch.autocast(setting.device, dtype=torch.bfloat16):
                loss = run(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        taken = setting.milliseconds(once)
        work = archdsl.flops(model, batch=batch, seq=seq, convention="dense")
        found: Figures = {"milliseconds": taken, "tokens_per_second": 1e3 * batch * seq / taken}
        found["training_flops_dense"] = int(work.training)
        plan = StepPlan(dtype="bfloat16", master_weights=True, compute="float8" if float8 else None)
        estimate = setting.estimate(model, batch, seq, plan)
        if estimate is not None:
            found["mfu_dense"] = int(work.training) / (taken / 1e3) / setting.peak
            found["bound_milliseconds"] = 1e3 * estimate.training.seconds
            found["expected_milliseconds"] = [1e3 * s for s in estimate.expected.seconds]
        if setting.device == "cuda":
            found["peak_bytes"] = torch.cuda.max_memory_allocated()
            given: dict[str, Any] = {"batch": batch, "seq": seq, "dtype": "bfloat16", "master_weights": True}
            found["estimated_peak_bytes"] = archdsl.memory(model, **given).peak
        return found

    yield name, step


def train_llama(setting: Setting, float8: bool = False) -> Items:
    return training(setting, "llama2_7b", LLAMA, {}, float8)


def train_experts(setting: Setting) -> Items:
    return training(setting, "mixtral_8x7b", MIXTRAL, {"experts": 4})


# --- parts ------------------------------------------------------------------------------------------------------------


def attention(setting: Setting, packed: bool = False) -> Items:
    """A sliding window, or packed documents, by FlexAttention and by FlashAttention for sequences of different lengths,
    forward and backward, beside causal attention: time for each pair of a query and a key, relative to the best of the
    latter. Where newer FlashAttentions are installed, the same by these."""
    from torch.nn.attention.flex_attention import flex_attention

    heads, dim = (2, 16) if setting.tiny else (32, 128)
    time_, window = (64, 16) if setting.tiny else (16_384, 4096)
    module: Any = sys.modules[load_source(archdsl.torch_source(text=ATTENDING, features=["varlen"])).__module__]
    device, dtype = torch.device(setting.device), torch.bfloat16 if setting.device == "cuda" else torch.float32
    lengths = [time_ // 2, time_ // 4, time_ // 8, time_ // 8] if packed else [time_]
    pairs = sum(min(i + 1, time_ if packed else window) for n in lengths for i in range(n))
    length = int((2 * pairs) ** 0.5)
    if packed:
        numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None].to(device)
        rule, more, options = module.causal_and_documents_mask, [numbers], {}
    else:
        rule, more, options = module.causal_and_window_mask, [window], {"window": window}
    blocks = module.mask_of(rule, 1, time_, device, *more)
    spans = module.spans_of(rule, 1, time_, device, *more, causal=True, **options)
    best = float("inf")  # milliseconds of causal attention for a pair

    def measured(run: Callable[..., Tensor], length: int, causal: bool) -> Figures:
        nonlocal best
        shape = (1, heads, length, dim)
        given = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
        grad = torch.randn(shape, device=device, dtype=dtype)
        taken = setting.milliseconds(lambda: run(*given).backward(grad))
        if causal:
            best = min(best, taken / (length * (length + 1) / 2))
            return {"milliseconds": taken}
        return {"milliseconds": taken, "pairs": pairs, "a pair, of causal attention's": taken / pairs / best}

    causal = partial(measured, partial(F.scaled_dot_product_attention, is_causal=True), length, True)
    varlen = partial(measured, partial(module.varlen_attention, mask=spans), time_, False)
    yield "causal", causal
    yield "flex", lambda: measured(partial(module.masked_attention, mask=blocks), time_, False)
    yield "varlen", varlen
    if setting.device != "cuda":
        return
    from torch.nn import attention as kernels

    for impl, package in (("FA3", "flash_attn_interface"), ("FA4", "flash_attn.cute")):
        if installed(package) and hasattr(kernels, "activate_flash_attention_impl"):
            kernels.activate_flash_attention_impl(impl)
            yield f"causal, {impl}", causal
            yield f"varlen, {impl}", varlen
    if installed("flash_attn.cute"):
        module.fused_attention = torch.compile(
            partial(flex_attention, kernel_options={"BACKEND": "FLASH"}), dynamic=False
        )
        yield "flex, FLASH", lambda: measured(partial(module.masked_attention, mask=blocks), time_, False)


def installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # what it is a part of is not there
        return False


def scans(setting: Setting) -> Items:
    """Recurrences of the emitted file beside kernels of other packages that do the same, put in its place: how far they
    are apart, and the time of each, forward and backward."""
    batch, time_, width, state = (1, 70, 8, 4) if setting.tiny else (4, 4096, 2048, 16)
    torch.manual_seed(0)

    def compared(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], given: list[Tensor]) -> Figures:
        given = [t.to(setting.device).requires_grad_() for t in given]
        apart = distance(first(theirs(*given)), first(ours(*given)))
        found: Figures = {"failed": [] if apart < 2e-2 else ["distance"], "distance": apart}
        for key, run in (("ours", ours), ("theirs", theirs)):
            found[f"{key}_milliseconds"] = setting.milliseconds(lambda run=run: run(*given).sum().backward())
        return found

    if installed("mamba_ssm"):
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

        def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            y: Tensor = selective_scan_fn(x.mT, delta.type_as(x).mT, a.float(), b.type_as(x).mT, c.type_as(x).mT)
            return y.mT

        module: Any = sys.modules[load_source(archdsl.torch_source("mamba:mamba_130m")).__module__]
        x, delta = torch.randn(2, batch, time_, width)
        b, c = torch.randn(2, batch, time_, state)
        given = [x, F.softplus(delta - 2), -torch.rand(width, state) - 0.1, b, c]
        yield "mamba-ssm", partial(compared, module.selective_scan, selective_scan, given)
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
        yield "fla", partial(compared, module.decayed_linear_attention, decayed_linear_attention, given)

        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
        from fla.ops.kda import chunk_kda

        def rule(ours: Any, *given: Tensor) -> Tensor:
            y: Tensor = ours(*given)[0]
            return y

        def kernel(theirs: Any, *given: Tensor) -> Tensor:
            q, k, v, beta, log_decay = (t.transpose(1, 2) for t in given)
            y: Tensor = theirs(q, k, v, g=log_decay.float(), beta=beta, scale=1.0)[0]
            return y.transpose(1, 2)

        rules = importlib.import_module("archdsl.backends.torch.runtime.delta_rule")
        k, beta = F.normalize(k.detach(), dim=-1), torch.rand(batch, heads, time_)
        for ours, theirs, axes in (
            (rules.delta_rule, chunk_gated_delta_rule, ()),
            (rules.channel_delta_rule, chunk_kda, (dim,)),
        ):
            given = [q, k, v, beta, -torch.rand(batch, heads, time_, *axes) / 8]
            yield f"fla, {ours.__name__}", partial(compared, partial(rule, ours), partial(kernel, theirs), given)
