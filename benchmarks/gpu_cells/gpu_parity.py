"""Cells of `benchmarks/gpu.py` that compare numbers."""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from gpu_setting import Figures, Items, Setting, distance, first, judged, moved
from sdpa_kernels import CARDS, Call, fused, refusals, wrong_mask
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from zoo import sizes, tiny

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.diagnostics import ArchError
from archdsl.estimates.params import estimate as count
from archdsl.ir.graph import Model
from archdsl.passes.step import Stepped, stepped
from archdsl.run.load import load_source
from archdsl.run.sequences import Sequences
from archdsl.run.torch_decoder import TorchDecoder

DECODERS = [
    *("llama3:llama3_8b", "bloom:bloom_560m", "t5:t5_base", "deepseek_v2:deepseek_v2_lite", "mixtral:mixtral_8x7b"),
    *("alibi:alibi_1_3b", "gpt2:gpt2", "mamba:mamba_130m", "transformer:transformer_base", "mistral:mistral_7b"),
]
ENCODERS = ["bert:bert_base", "vit:vit_b16"]
FAMILIES = [*DECODERS, *ENCODERS, "deepseek_v3:deepseek_v3"]
DRY = ["llama3:llama3_8b", "bloom:bloom_560m"]
"""Those of a dry run in bfloat16."""
SINGLE = {"mamba:mamba_130m"}
"""Those whose code computes a part in float32 whatever the type, and so not in float64."""
TOLERANCE = {"float32": 1e-4, "bfloat16": 2.5e-2, "float16": 2e-2}
NEAREST = 0.8
"""The share of positions that is compared in bfloat16 where there are experts: rounding sends some tokens to others."""
MOST = {"layers": 2, "vocab": 1000, "hidden": 2048, "window": 16, "expert_hidden": 256}
"""The largest sizes of models that are compared in bfloat16. Those of heads are as published: kernels ask for them."""


def exact_type(name: str) -> torch.dtype:
    return torch.float32 if name in SINGLE else torch.float64


# --- whole sequences and steps in bfloat16 ----------------------------------------------------------------------------


def bfloat16(setting: Setting) -> Items:
    """Whole sequences and the steps of decoding, each given the right token, beside float64 on the CPU; and what
    attention is called with. In a dry run by tiny models, else by two layers of published models."""
    # The last compiles its mask's kernel.
    for name in DRY if setting.tiny else [*DECODERS[:-1], *ENCODERS, DECODERS[-1]]:
        yield name, partial(teacher_forced, setting, name)


def compiled_steps(setting: Setting) -> Items:
    """The steps of `bfloat16`, compiled, with rows of two lengths."""
    for name in DECODERS[1:2] if setting.tiny else DECODERS[:6]:
        yield name, partial(teacher_forced, setting, name, compiled=True)


def teacher_forced(setting: Setting, name: str, compiled: bool = False) -> Figures:
    """How far a model in bfloat16 on the device is from the same weights in float64 on the CPU: `whole` sequences; a
    prompt and `steps` after it, each given the right token, with a cache that grows and with one of a fixed size
    (`static`); and steps behind prompts of two lengths (`ragged`). With `compiled` only the latter, by compiled steps.

    `kernels`: what torch chooses for each call of attention. Failed are also `masks` that CUDA's kernels would refuse
    or read as another type. `math`: calls that no fused kernel takes by the conditions of torch; `waits`: operations of
    static steps that waited for the device."""
    model = published(name) if not setting.tiny else tiny.graph(name)
    inputs = tiny.inputs(model, time=16 if setting.tiny else 160)
    step: Stepped | None = None
    with suppress(ArchError):
        step = stepped(model)
        along = Sequences(step).moving  # where steps follow, no position is padding
        inputs = {n: torch.ones_like(x) if n in along and x.dtype == torch.bool else x for n, x in inputs.items()}
    here, there = moved(inputs, setting.device, torch.bfloat16), moved(inputs, "cpu", exact_type(name))
    share = NEAREST if has_experts(model) else 1.0
    distances: dict[str, float] = {}
    more: Figures = {}

    def compare(what: str, found: Tensor, exact: Tensor) -> None:
        distances[what] = distance(first(found), first(exact), share)

    watched = nullcontext((set[Call](), Counter[str]())) if compiled else attending()
    with torch.no_grad(), watched as (calls, kernels):
        if not compiled:
            module, exact = modules(setting, name, emit(model))
            whole = first(exact(*there.values()))
            compare("whole", first(module(*here.values())), whole)
        if step is not None:
            weights = None if compiled else module.state_dict()
            module, exact = modules(setting, name, emit(model, Extras(frozenset({"generate"}))), weights)
            decoder, wanted = TorchDecoder(model, module), TorchDecoder(model, exact)
            ids = next(n for n in decoder.new if n in decoder.moving)
            time = inputs[ids].size(decoder.moving[ids])
            chunks = [time - 8, *[1] * 8]
            if not compiled:
                for what, static in (("steps", False), ("static", True)):
                    compare(what, decoder.run(here, chunks, static=static)[0], whole)
                more["waits"] = waits(setting, lambda: decoder.run(here, chunks, static=True))
            if decoder.streams:
                prompt, after = inputs[ids].split([time - 8, 8], 1)
                real = torch.ones_like(prompt, dtype=torch.bool)
                real[-1, :3] = False
                given = [x.to(setting.device) for x in (prompt, after, real)]
                found = decoder.stream(here, *given, compiled=compiled and not setting.tiny)
                compare("ragged", found, wanted.stream(there, prompt, after, real))
    result = judged(distances, TOLERANCE["bfloat16"])
    masks = sorted({wrong for call in calls if (wrong := wrong_mask(call))})
    card = CARDS[setting.cudnn_first]
    math = sorted(f"q {c.q}, k {c.k}, mask {c.mask}: {refusals(c, card)}" for c in calls if not fused(c, card))
    result["failed"] += masks
    return result | more | {"kernels": dict(kernels), "masks": masks, f"math on {card.name}": math}


def modules(
    setting: Setting, name: str, source: str, weights: Mapping[str, Tensor] | None = None
) -> tuple[nn.Module, nn.Module]:
    """The module of an emitted file in bfloat16 on the device, and in float64 on the CPU, with those weights or as they
    are initialized: the same for both, but in tables that bfloat16 does not round on the CPU."""
    torch.manual_seed(0)
    with torch.device(setting.device):
        here = load_source(source)().eval()
    if weights is not None:
        here.load_state_dict(weights)
    exact = copy.deepcopy(here).to("cpu", exact_type(name))
    here = here.to(torch.bfloat16)
    exact.load_state_dict(here.state_dict())
    return here, exact


def has_experts(model: Model) -> bool:
    counts = count(model).params
    return counts.active < counts.total


def published(name: str) -> Model:
    """A model of the zoo with few layers of published heads."""
    path, model = sizes.place(name)
    whole = archdsl.load(path, model=model)
    return archdsl.load(path, model=model, set={
        f.name: MOST[f.name] for f in whole.config if f.name in MOST and int(f.value) > MOST[f.name]
    })  # fmt: skip


@contextmanager
def attending() -> Iterator[tuple[set[Call], Counter[str]]]:
    """Collect the calls of attention in bfloat16 that are made within, and which kernel torch chooses for each."""
    right, calls, kernels = F.scaled_dot_product_attention, set(), Counter()

    def attend(*args: Any, **kwargs: Any) -> Tensor:
        if args[0].dtype == torch.bfloat16:
            calls.add(Call.of(*args, **kwargs))
            kernels[SDPBackend(torch._fused_sdp_choice(*args, **kwargs)).name] += 1
        return right(*args, **kwargs)

    with patch.object(F, "scaled_dot_product_attention", attend):
        yield calls, kernels


def waits(setting: Setting, run: Callable[[], object]) -> int | None:
    """How many operations of a run wait for the device; None without one."""
    if setting.device != "cuda":
        return None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(w.message) for w in seen)


# --- float32, and tokens in float64 -----------------------------------------------------------------------------------


def float32(setting: Setting, compiled: bool = False) -> Items:
    """Tiny models on the device beside float64 on the CPU: the same weights and inputs."""

    def parity(name: str) -> Figures:
        module, given = tiny.module(name).eval(), tiny.inputs(tiny.graph(name))
        here = module.to(setting.device)
        run = torch.compile(here, backend="aot_eager" if setting.tiny else "inductor") if compiled else here
        wide = exact_type(name)
        with torch.no_grad():
            found = first(run(*moved(given, setting.device).values()))
            exact = first(tiny.module(name).eval().to(wide)(*moved(given, "cpu", wide).values()))
        return judged({"whole": distance(found, exact)}, TOLERANCE["float32"])

    for name in FAMILIES[:1] if setting.tiny else FAMILIES[:6] if compiled else FAMILIES:
        yield name, partial(parity, name)


def tokens(setting: Setting) -> Items:
    """Greedy tokens of emitted `generate` in float64 on the device beside those on the CPU, rows of two lengths: the
    share that differs."""

    def generated(name: str) -> Figures:
        torch.manual_seed(0)
        module = archdsl.to_torch(tiny.graph(name), features=["generate"]).eval().to(exact_type(name))
        inputs = tiny.inputs(tiny.graph(name))
        prompt = next(iter(inputs.values()))[:, :6]
        real = torch.ones_like(prompt, dtype=torch.bool)
        real[-1, :2] = False
        wanted = module.generate(prompt, 6, attention_mask=real)
        here = module.to(setting.device)
        found = here.generate(prompt.to(setting.device), 6, attention_mask=real.to(setting.device))
        return judged({"tokens": float((found.cpu() != wanted).double().mean())}, 1e-9)

    alone = [name for name in DECODERS if len([*tiny.graph(name).inputs]) == 1]
    for name in alone[:2] if setting.tiny else alone:
        yield name, partial(generated, name)


# --- ONNX -------------------------------------------------------------------------------------------------------------

GRAPHS = (("float16", None), ("bfloat16", None), ("float16", "int4"), ("float32", None), ("float32", "int8"))


def onnx(setting: Setting) -> Items:
    """Graphs in onnxruntime on the device beside the emitted module, whole and step by step."""
    from archdsl.backends.onnx.targets import GraphOptions
    from archdsl.run.verify import TOLERANCES, verify

    def agrees(name: str, dtype: str, quantize: str | None) -> Figures:
        target = "ort-cuda" if setting.device == "cuda" else "ort-cpu"
        given: dict[str, Any] = {"weights": None, "seed": 0, "batch": 2, "time": None}
        report = verify(tiny.graph(name), GraphOptions(dtype, target, quantize), **given, device=setting.device)
        parts = {"whole": report.outputs, "steps": report.decode, "torch": report.torch_decode}
        distances = {f"{part} {n}": d.relative for part, found in parts.items() for n, d in found.items()}
        result = judged(distances, TOLERANCES[dtype])
        if not (report.agrees or result["failed"]):
            result["failed"] = [report.no_torch_decode]
        return result

    for dtype, quantize in GRAPHS[:3] if setting.tiny else GRAPHS:
        if setting.device == "cpu" and dtype == "bfloat16":
            continue  # onnxruntime has no such kernels there
        for name in ("gpt2:gpt2",) if setting.tiny else FAMILIES[:6]:
            if has_experts(tiny.graph(name)) and (dtype == "bfloat16" or quantize == "int4"):
                continue  # rounding sends tokens to other experts
            yield f"{name} {dtype} {quantize or ''}".strip(), partial(agrees, name, dtype, quantize)


# --- parts of emitted files -------------------------------------------------------------------------------------------


SHARDED = ["llama3:llama3_8b", "mistral:mistral_7b", "mixtral:mixtral_8x7b"]


def sharded(setting: Setting) -> Items:
    """FSDP and tensor parallelism on one device: a step of training gives the loss of the plain module."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("nccl" if setting.device == "cuda" else "gloo", rank=0, world_size=1)

    def losses(name: str) -> Figures:
        model = tiny.graph(name)
        cls = load_source(archdsl.torch_source(model, features=["loss", "parallel"]))
        parallelize = sys.modules[cls.__module__].parallelize  # type: ignore[attr-defined]
        tokens, found = tiny.inputs(model)["tokens"].to(setting.device), []
        for cut in (False, True):
            torch.manual_seed(0)
            made = cls().to(setting.device)
            if cut:
                made = parallelize(made, init_device_mesh(setting.device, (1, 1), mesh_dim_names=("dp", "tp")))
            loss = made(tokens, tokens)
            loss.backward()
            found.append(loss.item())
        return judged({"loss": abs(found[1] - found[0]) / abs(found[0])}, 1e-4)

    try:
        for name in SHARDED[:1] if setting.tiny else SHARDED:
            yield name, partial(losses, name)
    finally:
        dist.destroy_process_group()


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


def varlen(setting: Setting) -> Items:
    """Windows and packed documents by FlashAttention for sequences of different lengths, forward and backward, in
    bfloat16, beside whole masks in float32 on the CPU: logits, and the gradient of each weight."""

    def parity() -> Figures:
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

    yield "gradients", parity
