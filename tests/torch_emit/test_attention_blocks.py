"""Masks in the blocks of FlexAttention.

Blocks are for CUDA. Here the same lines run on a CPU, FlexAttention written out instead of compiled; it computes
gradients there, too, once nothing asks for the device.
"""

from __future__ import annotations

import ast
import copy
import inspect
import math
import pickle
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from rows import POSITIONS, spelled
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask
from zoo import sizes

from archdsl.ir import masks
from torch_emit.emitted import close, gradients, module, names_of, same_gradients, spec

LAYERS = """
block seeing(heads, kv_heads)(x: [batch, time, width]) -> [batch, time, width] {
  early = indices(time) % 3 == 0
  group = indices(time) // 7
  return x -> gqa(heads: heads, kv_heads: kv_heads, mask: MASK) as gqa
}

block layer(heads, kv_heads)(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> layernorm -> seeing(heads: heads, kv_heads: kv_heads)
}

model seeing_model(layers = 2, width = 64, kv_heads = 2, near = 6) {
  vocab:   40
  context: 512
  width:   width
  blocks:  layers * layer(heads: 4, kv_heads: kv_heads)
  norm:    layernorm
  head:    token_classifier(5)
}
"""


def _reads_pairs(mask: str) -> bool:
    """Whether a mask compares queries with keys, none of them chosen among all."""
    name = mask.partition("(")[0]
    return masks.reads_query(name) and name != "causal" and not (name in masks.RULES and masks.RULES[name].drawn)


SPELLED, DRAWN = spelled("early", "group"), str(POSITIONS["random"])
ARANGE = torch.arange
RULES = [
    *(mask if _reads_pairs(mask) else f"causal | {mask}" for mask in SPELLED if mask not in ("full", "causal", DRAWN)),
    "causal & dilated(3, 4)",
    "causal & (chunked(16) | keys(early))",
    "causal & window(8) & padding",
    "queries(early) & causal",
    "~causal",
    "~(causal & (window(3) | chunked(5))) & documents & padding",
    "(causal & window(3)) | (strided(4) & window(20))",
]
"""Each rule of a mask, and how they are put together."""


def model_of(mask: str, **more: Any) -> nn.Module:
    return module(spec(LAYERS.replace("MASK", mask), **more)).eval()


def inputs_of(made: nn.Module, time: int, device: str = "cpu") -> list[Tensor]:
    """Two rows; padding before one and after the other, three documents."""
    generator = torch.Generator().manual_seed(time)
    padding = torch.ones(2, time, dtype=torch.bool)
    padding[0, : time // 5], padding[1, time - time // 4 :] = False, False
    known = {
        "tokens": torch.randint(40, (2, time), generator=generator),
        "padding": padding,
        "documents": torch.arange(time).expand(2, time) * 3 // time,
    }
    return [known[name].to(device) for name in inspect.signature(made.forward).parameters]


@contextmanager
def blocks(made: nn.Module) -> Iterator[list[BlockMask]]:
    """What runs on CUDA runs here: written out, step by step. The masks that attention was given."""
    found: list[BlockMask] = []
    names, cpu, cuda = names_of(made), torch.device("cpu"), SimpleNamespace(type="cuda")
    mask_of, block_mask = names["mask_of"], names["block_mask"]

    def attention(*args: Any, block_mask: BlockMask, **options: Any) -> Tensor:
        found.append(block_mask)
        return flex.flex_attention(*args, block_mask=block_mask, **options)

    changed = {
        "mask_of": lambda rule, batch, time, device, *given: mask_of(rule, batch, time, cuda, *given),
        "block_mask": lambda rule, batch, time, device, *given: block_mask(rule, batch, time, cpu, *given),
        "block_counts": names["block_counts"].__wrapped__,
        "fused_attention": attention,
    }
    anywhere = mock.patch.object(flex, "_validate_device", return_value=None)
    with warnings.catch_warnings(), patched(made, **changed), anywhere:
        warnings.simplefilter("ignore")  # that it is slow
        yield found


def patched(made: nn.Module, **names: Any) -> Any:
    """The file of a module with other functions."""
    return mock.patch.multiple(sys.modules[type(made).__module__], **names)


def weighted(y: Tensor) -> Tensor:
    return (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)).sum()


@pytest.mark.parametrize("mask", RULES)
def test_blocks_equal_the_mask(mask: str) -> None:
    """Values and gradients, of one rule for lengths that are whole blocks and others, too; a query without keys gives 0
    either way."""
    made = model_of(mask, layers=1)
    for time in (128, 200, 300) if mask == RULES[-2] else (200,):
        given = inputs_of(made, time)
        made.zero_grad()
        wanted = made(*given)
        weighted(wanted).backward()
        kept = gradients(made)
        made.zero_grad()
        with blocks(made) as found:
            y = made(*given)
            weighted(y).backward()
        assert len(found) == 1
        close(y, wanted)
        same_gradients(gradients(made), kept)


LISTS = [f"{full}{axis}_{what}" for full in ("", "full_") for axis in ("kv", "q") for what in ("num_blocks", "indices")]


@pytest.mark.parametrize("mask", RULES)
def test_blocks_are_those_of_pytorch(mask: str) -> None:
    """Blocks that a mask touches and those that it allows whole, by rows and by columns, are listed as by
    `create_block_mask`, which stores a number for each pair of positions."""
    made = model_of(mask, layers=1)
    for time in (128, 129, 384, 500) if sizes.every else (129, 384):
        with blocks(made) as found, mock.patch.object(flex, "flex_attention", lambda q, *_, **__: q):
            made(*inputs_of(made, time))
        batch, rule = found[0].kv_num_blocks.size(0), found[0].mask_mod
        wanted = flex.create_block_mask(rule, batch, None, time, time, "cpu")
        assert (found[0].shape, found[0].BLOCK_SIZE) == (wanted.shape, wanted.BLOCK_SIZE)
        for name in LISTS:
            ours, theirs = getattr(found[0], name), getattr(wanted, name)
            assert ours.dtype == theirs.dtype, name
            assert ours.is_contiguous(), name
            assert torch.equal(ours, theirs), f"{name} of {time} positions"


@pytest.mark.slow
def test_pairs_are_counted_without_being_stored() -> None:
    """Compiled, a mask takes memory for its blocks, not for its pairs, and calls a kernel to put the blocks in order:
    one that Inductor writes takes minutes to compile on CUDA."""
    names = names_of(model_of("causal & window(6)", layers=1))
    made: Any = torch.compile(names["block_mask"], fullgraph=True)
    mask, code = run_and_get_code(made, names["causal_and_window_mask"], 1, 20_000, torch.device("cpu"), 4096)
    sizes = [ast.literal_eval(size) for text in code for size in re.findall(r"= empty_strided_cpu\((\(.*?\)),", text)]
    assert sizes
    assert max(map(math.prod, sizes)) == mask.kv_indices.numel()
    assert any("aten.topk" in text for text in code)
    assert not any("sort" in text for text in code)


def test_what_is_shorter_than_a_block_takes_a_tensor() -> None:
    """FlexAttention's kernel for few queries fails where heads that share keys make more rows of them than a block
    has (PyTorch 2.11 to 2.13)."""
    made = model_of("causal & window(6)", layers=1)
    names = names_of(made)
    with mock.patch.object(torch, "arange", lambda *args, device, **more: ARANGE(*args, **more)):
        for time in (1, 50, 127):
            mask = names["mask_of"](names["causal_and_window_mask"], 1, time, SimpleNamespace(type="cuda"), 6)
            assert torch.equal(mask, torch.ones(time, time).tril().triu(-5).bool())


def test_blocks_are_left_out() -> None:
    """Of four by four blocks of a window those that it touches."""
    made = model_of("causal & window(100)", kv_heads=4)
    with blocks(made) as found:
        tokens = torch.zeros(1, 512, dtype=torch.long)
        made(tokens)
    assert found[0] is found[1]
    assert found[0].sparsity() > 50
    assert int(found[0].kv_num_blocks.sum()) == 4 + 3


def test_small_heads_take_the_whole_mask() -> None:
    """Heads for which there is no kernel."""
    assert not {"mask_of", "BlockMask"} & names_of(model_of("causal & window(6)", width=32)).keys()


@pytest.mark.parametrize("mask", [m for m in SPELLED if not _reads_pairs(m)])
def test_others_stay_as_they_are(mask: str) -> None:
    """What a kernel takes without blocks, and what compares all keys."""
    assert not {"mask_of", "BlockMask"} & names_of(model_of(mask)).keys()


DROPPING = LAYERS.replace("mask: MASK)", "mask: causal & window(near), dropout: 0.5)")


def test_dropout_takes_the_whole_mask() -> None:
    """FlexAttention drops no weights."""
    text = DROPPING.replace("gqa(heads: heads, kv_heads: kv_heads,", "mha(heads: heads,").replace("near)", "6)")
    made = module(spec(text.replace("as gqa", "as mha")))
    assert not {"mask_of", "BlockMask"} & names_of(made).keys()


TURNS = """
block layer(mask)(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> layernorm -> mha(heads: 2, mask: mask)
}
model turns(width = 32) {
  vocab:   40
  context: 512
  width:   width
  blocks:  layer(causal) + layer(causal & chunked(16)) + layer(causal & documents)
  norm:    layernorm
  head:    lm
}
"""


def test_layers_of_one_class() -> None:
    """A class whose mask is left out in one layer and not in the next."""
    made = module(spec(TURNS)).eval()
    assert len({type(layer) for layer in made.blocks}) == 1
    given = inputs_of(made, 140)
    wanted = made(*given)
    with blocks(made) as found:
        close(made(*given), wanted)
    assert len(found) == 2
    documents = torch.tensor([[0] * 70 + [1] * 70] * 2)
    tokens = given[0].clone()
    tokens[:, :48] = 0
    assert not torch.equal(made(tokens, documents)[:, 60], made(*given)[:, 60])  # by the first layer


def test_one_that_reads_a_tensor_is_made_each_time() -> None:
    made = model_of("causal & documents")
    tokens, documents = inputs_of(made, 40)
    first = made(tokens, documents)
    assert not torch.equal(made(tokens, documents * 0), first)
    assert torch.equal(made(tokens, documents), first)


def test_numbers_are_of_the_model() -> None:
    """Two models of one file, each with its own mask."""
    made = module(spec(LAYERS.replace("MASK", "causal & chunked(width / 4)"))).eval()
    other = type(made)(names_of(made)["Config"](width=128)).eval()
    for each, chunk in ((made, 16), (other, 32)):
        tokens = torch.zeros(1, 40, dtype=torch.long)
        changed = tokens.clone()
        changed[:, 0] = 1
        differs = (each(tokens) != each(changed)).any(-1)[0]
        assert differs.nonzero().max() == chunk - 1


def test_made_without_gradients_and_used_with_them() -> None:
    made = model_of("causal & chunked(16)")
    given = inputs_of(made, 40)
    with torch.inference_mode():
        made(*given)
    weighted(made(*given)).backward()
    assert all(p.grad is not None for p in made.parameters())


def test_modules_hold_no_masks() -> None:
    made = model_of("causal & window(6)")
    names = list(made.state_dict())
    with blocks(made):
        made(*inputs_of(made, 140))
        assert list(made.state_dict()) == names
        assert not list(made.buffers())
        again = copy.deepcopy(made)
        pickled = pickle.loads(pickle.dumps(made))
        for each in (again, pickled):
            close(each(*inputs_of(made, 140)), made(*inputs_of(made, 140)))


def test_exported_without_blocks() -> None:
    """A graph is for all devices and all lengths, whichever device it was made on."""
    made = model_of("causal & chunked(16) & padding")
    tokens, padding = inputs_of(made, 40)
    time = torch.export.Dim("time", min=2, max=64)
    program = torch.export.export(made, (tokens, padding), dynamic_shapes=({1: time}, {1: time}), strict=False)
    assert not any("flex" in str(node.target) for node in program.graph.nodes)
    for length in (3, 17, 40):
        given = inputs_of(made, length)
        close(program.module()(*given), made(*given))


@pytest.mark.parametrize("mask", ["causal & chunked(16)", "causal & documents"])
def test_compiled_as_a_whole(mask: str) -> None:
    """One graph, with the mask in it."""
    made = model_of(mask)
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")
        for time in (40, 40, 50):
            close(compiled(*inputs_of(made, time)), made(*inputs_of(made, time)))


# --- on CUDA ----------------------------------------------------------------------------------------------------------

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def as_tensors(made: nn.Module) -> Any:
    """The file of a module without blocks."""
    mask_of = names_of(made)["mask_of"]

    def whole(rule: Any, batch: int, time: int, device: torch.device, *given: Any) -> Tensor:
        on_cpu = [x.cpu() if isinstance(x, Tensor) else x for x in given]
        return mask_of(rule, batch, time, torch.device("cpu"), *on_cpu).to(device)

    return patched(made, mask_of=whole)


@on_cuda
@pytest.mark.parametrize("mask", RULES)
@pytest.mark.parametrize("whole", [False, True], ids=["attention", "model"])
def test_blocks_on_cuda(mask: str, whole: bool) -> None:
    """In bfloat16, forward and backward, by the kernels: against the whole mask in float32."""
    made = model_of(mask, width=256).cuda()
    run: Any = torch.compile(made, fullgraph=True) if whole else made
    for time in (128, 300):
        given = inputs_of(made, time, "cuda")
        with as_tensors(made):
            wanted = made(*given)
            weighted(wanted).backward()
        kept = gradients(made)
        made.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            found = run(*given)
        weighted(found.float()).backward()
        close(found.float(), wanted, 0.05)
        same_gradients(gradients(made), kept, 0.05)
        made.zero_grad()


@on_cuda
def test_kernels_serve_every_window() -> None:
    """Layers with windows of their own: no more kernels than rules."""
    text = """
    block layer(window)(x: [batch, time, width]) -> [batch, time, width] {
      x += x -> layernorm -> mha(heads: 2, mask: causal & window(window))
    }
    model windows(width = 64) {
      vocab:   40
      context: 1024
      width:   width
      blocks:  [layer(window: 10 * (i + 1)) for i in 12]
      norm:    layernorm
      head:    lm
    }
    """
    made = module(spec(text)).cuda().eval()
    tokens = torch.randint(40, (1, 600), device="cuda")
    with torch.no_grad():
        found = made(tokens)
        with as_tensors(made):
            close(found, made(tokens), 1e-2)
