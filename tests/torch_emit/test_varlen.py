"""`--with varlen`: windows and packed documents by FlashAttention for sequences of different lengths.

The kernel is for CUDA. Here the same lines run on a CPU with the kernel's definition in its place, called through its
own signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_versions import VERSION, since

import archdsl
from archdsl.diagnostics import ArchError
from torch_emit.emitted import close, gradients, module, names_of, same_gradients, spec
from torch_emit.test_attention_blocks import LAYERS, TURNS, inputs_of, patched, weighted

pytestmark = since(2, 12, "varlen_attn has windows and groups of heads")
if VERSION >= (2, 12):
    from torch.nn.attention.varlen import varlen_attn

LATENT = """
block layer(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> layernorm -> mla(heads: 2, kv_rank: 16, nope_dim: 12, rope_dim: 6, v_dim: 10, mask: causal & documents,
                             position: rope)
}
model latent(width = 32) {
  vocab:   40
  context: 512
  width:   width
  blocks:  2 * layer
  norm:    layernorm
  head:    lm
}
"""


def kernel(*args: Any, **options: Any) -> Tensor:
    """What `varlen_attn` computes, one sequence after the other; what it refuses is refused."""
    given = inspect.signature(varlen_attn).bind(*args, **options)
    given.apply_defaults()
    q, k, v, bounds, others, longest, _ = given.args
    before, after = given.kwargs["window_size"]
    assert q.size(-1) == k.size(-1) == v.size(-1)
    assert q.size(-1) % 8 == 0
    assert (bounds.dtype, int(bounds[0]), int(bounds[-1])) == (torch.int32, 0, q.size(0))
    assert torch.equal(bounds, others)
    assert given.kwargs["enable_gqa"] or q.size(1) == k.size(1)
    found = []
    for start, end in zip(bounds.tolist(), bounds.tolist()[1:], strict=False):
        assert 0 < end - start <= longest
        back = torch.arange(end - start)[:, None] - torch.arange(end - start)
        seen = ((back <= before) | (before < 0)) & ((-back <= after) | (after < 0))
        one = (t[start:end].transpose(0, 1)[None] for t in (q, k, v))
        y = F.scaled_dot_product_attention(*one, attn_mask=seen, scale=given.kwargs["scale"], enable_gqa=True)
        found.append(y[0].transpose(0, 1))
    return torch.cat(found)


@contextmanager
def on_cuda(made: nn.Module) -> Iterator[list[Any]]:
    """The lines for CUDA on a CPU; the masks that attention was given."""
    found: list[Any] = []
    names, cuda = names_of(made), SimpleNamespace(type="cuda")
    spans_of, attention = names["spans_of"], names["varlen_attention"]

    def attending(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **options: Any) -> Tensor:
        found.append(mask)
        return attention(q, k, v, mask, **options)

    def spans(rule: Any, batch: int, time: int, device: torch.device, *given: Any, **more: Any) -> Any:
        return spans_of(rule, batch, time, cuda, *given, **more)

    with patched(made, spans_of=spans, varlen_attention=attending, varlen_attn=mock.Mock(side_effect=kernel)):
        yield found


@pytest.mark.parametrize(
    "mask", ["causal & documents", "documents", "causal & window(6)", "window(6)", "window(3) & documents & causal"]
)
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_spans_equal_the_mask(mask: str, kv_heads: int) -> None:
    """Values and gradients."""
    text = LAYERS.replace("MASK", mask)
    made = module(spec(text, kv_heads=kv_heads), "varlen").eval()
    same_on_cuda(made, inputs_of(made, 50))


def test_heads_of_sizes_that_the_kernel_does_not_take() -> None:
    made = module(spec(LATENT), "varlen").eval()
    same_on_cuda(made, inputs_of(made, 30))


def same_on_cuda(made: nn.Module, given: list[Tensor]) -> None:
    wanted = made(*given)
    weighted(wanted).backward()
    kept = gradients(made)
    made.zero_grad()
    with on_cuda(made) as found:
        y = made(*given)
        weighted(y).backward()
        assert names_of(made)["varlen_attn"].call_count == 2
    assert {type(mask).__name__ for mask in found} == {"Spans"}
    close(y, wanted)
    same_gradients(gradients(made), kept)


def test_other_masks_of_the_model_stay_in_blocks() -> None:
    made = module(spec(TURNS), "varlen").eval()
    given = inputs_of(made, 40)
    wanted = made(*given)
    with on_cuda(made) as found:
        close(made(*given), wanted)
    assert [type(mask).__name__ for mask in found] == ["NoneType", "Tensor", "Spans"]  # the first layer is causal


def test_a_document_begins_where_its_number_changes() -> None:
    made = module(spec(LAYERS.replace("MASK", "causal & documents")), "varlen")
    documents = torch.tensor([[3, 3, 1, 1, 1], [1, 2, 2, 2, 2]])  # the second row begins with the first's last number
    found = names_of(made)["spans_of"](None, 2, 5, SimpleNamespace(type="cuda"), documents, causal=True)
    assert found.bounds.tolist() == [0, 2, 5, 6, 10]
    assert found[:2] == (-1, 0)


@pytest.mark.parametrize(
    "mask", ["causal", "causal & padding", "causal & chunked(8)", "causal & documents & chunked(8)"]
)
def test_refused_without_a_use(mask: str) -> None:
    with pytest.raises(ArchError, match="E0528"):
        archdsl.torch_source(spec(LAYERS.replace("MASK", mask)), features=["varlen"])


def test_with_every_section_and_compiled_without_a_break() -> None:
    """A window needs nothing of the data."""
    text = LAYERS.replace("MASK", "causal & window(6)").replace("token_classifier(5)", "lm")
    made = module(spec(text), "varlen", "loss", "generate", "parallel", checkpoint="selective").eval()
    tokens = torch.arange(48).view(2, 24) % 40
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    close(compiled(tokens), made(tokens))
    assert torch.equal(made.generate(tokens, 4), module(spec(text), "generate").eval().generate(tokens, 4))  # type: ignore[operator]


# --- on CUDA ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("mask", ["causal & documents", "documents", "causal & window(60)", "window(60) & documents"])
@pytest.mark.parametrize("whole", [False, True], ids=["eager", "compiled"])
def test_the_kernel(mask: str, whole: bool) -> None:
    """In bfloat16, forward and backward, against the whole mask in float32 on the CPU."""
    made = module(spec(LAYERS.replace("MASK", mask), width=256), "varlen")
    given = inputs_of(made, 300)
    wanted = made(*given)
    weighted(wanted).backward()
    kept = gradients(made)
    made.zero_grad()
    run: Any = torch.compile(made.cuda()) if whole else made.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        found = run(*(x.cuda() for x in given))
    weighted(found.float()).backward()
    close(found.float().cpu(), wanted, 0.05)
    same_gradients({n: g.cpu() for n, g in gradients(made).items()}, kept, 0.05)
