"""What emitted modules give `scaled_dot_product_attention` in bfloat16 is what fused kernels of CUDA take: in forward,
in prefill and in steps, at the sizes that were published, with few layers. Tensors are fake: nothing is computed."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import pytest
import torch
from sdpa_kernels import CARDS, Call, Calls, fused, refusals, wrong_mask
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from zoo import real, tiny

import archdsl
from archdsl.backends.torch import emit
from archdsl.backends.torch.features import Extras
from archdsl.diagnostics import ArchError
from archdsl.estimates.attention_kernels import StoredScores
from archdsl.estimates.hardware import device
from archdsl.passes.flatten import FlatOp, flatten, walk
from archdsl.run.load import load_source
from archdsl.run.torch_decoder import TorchDecoder

pytestmark = pytest.mark.slow

MODELS = [
    *("gpt2:gpt2", "llama3:llama3_8b", "mistral:mistral_7b", "palm:palm_8b", "bloom:bloom_560m"),
    *("alibi:alibi_1_3b", "t5:t5_base", "switch:switch_base_8", "bert:bert_base", "glm_130b:glm_130b"),
    *("deepseek_v2:deepseek_v2_lite", "deepseek_v3:deepseek_v3", "mixtral:mixtral_8x7b", "xlnet:xlnet_base"),
]
TIME = 128
IN_BLOCKS = {"mistral:mistral_7b"}
"""Models whose masks of whole sequences come in blocks on CUDA, for FlexAttention."""


def made(cls: type[nn.Module]) -> nn.Module:
    """A module whose weights are bfloat16 from the beginning."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        return cls().eval()
    finally:
        torch.set_default_dtype(torch.float32)


@cache
def whole(name: str) -> frozenset[Call]:
    """What attention is called with for whole sequences."""
    model = real.graph(name)
    with FakeTensorMode(), torch.no_grad(), Calls() as seen:
        if name not in IN_BLOCKS:
            made(load_source(emit(model)))(**real.inputs(model, TIME))
    return frozenset(seen.found)


@cache
def calls(name: str) -> frozenset[Call]:
    """What attention is called with: whole sequences, the first step of a prompt, and one position more, where
    addresses are kept and where not."""
    model = real.graph(name)
    try:
        cls = load_source(emit(model, Extras(frozenset({"generate"}))))
    except ArchError:
        return whole(name)
    with FakeTensorMode(), torch.no_grad(), Calls() as seen:
        given = real.inputs(model, TIME)
        module = made(cls)
        decoder = TorchDecoder(model, module)
        for static in (False, True):
            cache = sys.modules[cls.__module__].Cache(TIME + 8, None, static)
            decoder.step(**decoder.arguments({n: given[n] for n in decoder.new}, given), cache=cache)
            for _ in range(2):
                decoder.step(**decoder.arguments({n: given[n][:, :1] for n in decoder.new}), cache=cache)
    return whole(name) | seen.found


@pytest.mark.parametrize("name", MODELS)
def test_masks_are_of_the_type_of_queries(name: str) -> None:
    assert {wrong for call in calls(name) if (wrong := wrong_mask(call))} == set()


@pytest.mark.parametrize("name", MODELS)
def test_a_fused_kernel_takes_every_call(name: str) -> None:
    assert calls(name)
    found = [(card.name, call, refusals(call, card)) for call in calls(name) for card in CARDS if not fused(call, card)]
    assert found == []


@pytest.mark.parametrize("name", [name for name in MODELS if name not in IN_BLOCKS])
def test_estimates_know_what_kernels_take(name: str) -> None:
    model = real.graph(name)
    sizes = {s.name: {"batch": tiny.BATCH, "time": TIME}.get(s.name, tiny.OTHER) for s in model.symbols}
    known = StoredScores(device("a100_sxm_80gb"), sizes, "bfloat16", trains=False)
    asked = [call for node in walk(flatten(model)) if isinstance(node, FlatOp) and (call := known.call(node))]
    assert asked
    for card in CARDS:
        said = {str((call.q, call.k, call.v, call.causal, refusals(call, card))) for call in asked}
        assert said == {str((call.q, call.k, call.v, call.causal, refusals(call, card))) for call in whole(name)}


def test_a_mask_of_heads_that_share_keys_is_fused() -> None:
    """Each head of queries has a copy of its keys, as kernels have a mask or share heads."""
    model = archdsl.load(text=SHARED, allow_noncausal=True)
    with FakeTensorMode(), torch.no_grad(), Calls() as seen:
        made(load_source(emit(model)))(**real.inputs(model, TIME))
    assert {(call.q[1], call.k[1]) for call in seen.found} == {(4, 4)}
    assert all(fused(call, card) for call in seen.found for card in CARDS)


SHARED = """
block layer() {
  attention: gqa(heads: 4, kv_heads: 2)
  mask:      full & padding
  ffn:       swiglu(hidden: 64)
  norm:      rmsnorm
}
model encoder {
  vocab:   50
  context: 128
  width:   64
  blocks:  2 * layer()
  norm:    rmsnorm
  head:    lm
}
"""

PLANTED: dict[str, tuple[dict[str, Any], bool, tuple[str, ...]]] = {
    "a bias in float32": ({"attn_mask": torch.zeros(4, 8, 8)}, True, ("H100", "A100")),
    "a bias whose last axis is not contiguous": (
        {"attn_mask": torch.zeros(8, 8, 4).bfloat16().movedim(-1, 0)},
        False,
        (),
    ),
    "a mask beside heads that share keys": (
        {"attn_mask": torch.ones(8, 8).bool(), "enable_gqa": True},
        False,
        ("H100",),
    ),
    "causal": ({"is_causal": True, "enable_gqa": True}, False, ("H100", "A100")),
}
"""Arguments, whether their mask is wrong, and the devices that have a fused kernel for them."""


@pytest.mark.parametrize("name", PLANTED)
def test_the_judge_sees_what_is_planted(name: str) -> None:
    more, wrong, taken = PLANTED[name]
    q, shared = torch.zeros(2, 4, 8, 64).bfloat16(), torch.zeros(2, 2, 8, 64).bfloat16()
    keys = shared if more.get("enable_gqa") else q
    call = Call.of(q, keys, keys, **more)
    assert bool(wrong_mask(call)) == wrong
    assert {card.name for card in CARDS if fused(call, card)} == {*taken}
