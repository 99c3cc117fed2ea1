"""FLOPs from the IR: equal to what torch counts when the emitted module runs, and to what was published."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from decode_tools import behind_memory
from flops_tools import counted, predicted, sizes_of
from odd_specs import ODD
from rows import POSITIONS
from torch import Tensor
from torch_versions import measured
from zoo.sizes import sample
from zoo.tiny import graph

import archdsl
from archdsl import api
from archdsl.backends.torch.helpers import helpers
from archdsl.diagnostics import ArchError
from archdsl.estimates import mask_density
from archdsl.estimates.cost import work_of
from archdsl.estimates.flops import CONVENTIONS, estimate
from archdsl.estimates.mask_density import count
from archdsl.frontend.load import find_spec, module_of
from archdsl.frontend.modules import models
from archdsl.ir.graph import Model, OpNode
from archdsl.ir.masks import Mask
from archdsl.ir.op import Example
from archdsl.ops import registry

pytestmark = measured
PARITY = Path(__file__).resolve().parent / "parity" / "specs"


def _agree(model: Model, *, batch: int = 2, time: int = 16, device: str = "cpu") -> None:
    """Forward, and forward and backward: no difference to what torch counts."""
    sizes = sizes_of(model, batch, time)
    assert predicted(model, sizes) == counted(model, sizes, device)


def _load(text: str) -> Model:
    return archdsl.load(text=text, allow_noncausal=True)


# --- equal to what torch counts ---------------------------------------------------------------------------------------


def _parity() -> Iterator[tuple[Path, str]]:
    for path in sorted(PARITY.glob("*.arch")):
        yield from ((path, name) for name in models(module_of(find_spec(path))))


@pytest.mark.parametrize(("path", "name"), [pytest.param(p, n, id=n) for p, n in _parity()])
def test_parity_specs(path: Path, name: str) -> None:
    _agree(archdsl.load(path, model=name, allow_noncausal=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", sample())
def test_tiny_copies_of_the_zoo(name: str) -> None:
    """The first model of each family; `benchmarks/flops.py` compares all of them at their full size."""
    _agree(graph(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("gpt2", {"layers": 3}),
        ("llama3_8b", {"layers": 2}),
        ("mixtral_8x7b", {"layers": 2}),
        ("deepseek_v3", {"dense_layers": 1, "sparse_layers": 2}),
        ("t5_base", {"layers": 2}),
        ("bert_base", {"layers": 2}),
        ("mamba_130m", {"layers": 2}),
        ("vit_b16", {"layers": 2}),
        ("switch_base_8", {"pairs": 2}),
    ],
)
def test_full_widths(name: str, layers: dict[str, int]) -> None:
    """Without numbers, on the meta device."""
    _agree(archdsl.load(name, set=layers), time=64, device="meta")


EXAMPLES = [
    pytest.param(e, id=f"{name}-{i}")
    for name in sorted(registry.names())
    for i, e in enumerate(registry.get(name).examples)
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_primitive(example: Example) -> None:
    model = _load(f"model m({example.inputs}) {{ {example.statements} return {example.expression} }}")
    assert predicted(model, {}) == counted(model, {}, "cpu", example.below)


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_specs(text: str) -> None:
    _agree(_load(text))


def _made_up(seed: int) -> str:
    """A model put together at random."""
    draw = random.Random(seed)
    head_dim, kv_heads = draw.choice([8, 16]), draw.choice([1, 2])
    heads = kv_heads * draw.choice([1, 2, 3])
    width, hidden = heads * head_dim, 8 * draw.randint(1, 6)
    attention = draw.choice(
        [f"mha(heads: {heads})", f"gqa(heads: {heads}, kv_heads: {kv_heads})", f"mqa(heads: {heads})"]
    )
    dense = [f"mlp(hidden: {hidden})", f"swiglu(hidden: {hidden})"]
    sparse = [f"moe(experts: 4, top_k: {k}, expert: {e}, shared: {draw.choice(dense)})" for k in (1, 2) for e in dense]
    masks = [
        "causal",
        "causal & window(5)",
        "causal & (strided(3) | window(4))",
        "causal & ~chunked(4) | causal & window(2)",
    ]
    positions = ["rope", "alibi", "relative_bias(buckets: 8, max_distance: 16)", "none"]
    layers = []
    for name in ("a", "b"):
        layers.append(
            f"block {name} {{ attention: {attention} mask: {draw.choice(masks)} position: {draw.choice(positions)} "
            f"ffn: {draw.choice(dense + sparse)} norm: {draw.choice(['layernorm', 'rmsnorm'])} "
            f"placement: {draw.choice(['pre', 'post', 'sandwich'])} }}"
        )
    stack = f"{draw.randint(1, 2)} * a + {draw.randint(1, 3)} * ({draw.randint(1, 2)} * b + a)"
    tied = draw.choice(["true", "false"])
    model = f"vocab: 40 context: 32 width: {width} blocks: {stack} norm: layernorm head: lm(tied: {tied})"
    return "\n".join([*layers, f"model m {{ {model} }}"])


@pytest.mark.parametrize("seed", range(16))
def test_made_up_specs(seed: int) -> None:
    _agree(_load(_made_up(seed)), batch=1 + seed % 3, time=9 + seed)


# --- masks ------------------------------------------------------------------------------------------------------------

LEAVES = (*map(str, POSITIONS.values()), "window(9)", "chunked(5)", "strided(4)", "random(5, 7)")


def _masks() -> Iterator[str]:
    draw = random.Random(1)

    def some(depth: int) -> str:
        if depth == 0:
            return draw.choice(LEAVES)
        if draw.random() < 0.25:
            return f"~({some(depth - 1)})"
        return f"({some(depth - 1)} {draw.choice('&|')} {some(depth - 1)})"

    yield from LEAVES
    yield from (some(1 + i % 3) for i in range(40))


def _attending(mask: str) -> str:
    return (
        "model m(q: [batch, heads, time, 4], k: [batch, heads, source, 4]) -> [batch, heads, time, 4] "
        f"{{ return sdpa(q, k, k, mask: {mask}) }}"
    )


@pytest.mark.parametrize("text", [*_masks()])
def test_pairs_are_the_sum_of_the_mask(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _load(_attending(text))
    mask = _mask(model)
    module = api.to_torch(model)
    for queries, keys in ((7, 7), (16, 16), (1, 20), (5, 23), (33, 33)):
        seen: list[int] = []

        def spy(
            q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, **_: object
        ) -> Tensor:
            full = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool)
            used = attn_mask if attn_mask is not None else full.tril(k.size(-2) - q.size(-2)) if is_causal else full
            seen.append(int(used.expand_as(full).sum()))  # noqa: B023
            return v

        monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
        module(torch.zeros(1, 1, queries, 4), torch.zeros(1, 1, keys, 4))
        assert seen == [count(mask, queries, keys)]


def _mask(model: Model) -> Mask:
    (node,) = (n for n in model.block.graph.nodes if isinstance(n, OpNode) and n.op.name == "sdpa")
    found: Mask = node.options["mask"]
    return found


@pytest.mark.parametrize(
    ("first", "queries", "keys", "chosen", "seed"),
    [
        (0, 1100, 1100, 64, 3),
        (1200, 300, 1500, 1, 0),
        (0, 90, 90, 89, 5),
        (69_996, 4, 70_000, 200, 12),
        (399_997, 3, 400_000, 5, 10**15),
        (0, 4, 9, 9, 1),
        (0, 4, 9, 12, 1),  # more than there are
        (42_403, 1, 300, 1, 12),  # a row whose hashes are all smaller than the guess
        (0, 1, 64, 1, 223_446_570),  # the hash of key 1 is a multiple of the prime, that is 0
        (0, 1, 64, 63, 223_446_570),
    ],
)
def test_random_keys_are_those_that_a_module_draws(first: int, queries: int, keys: int, chosen: int, seed: int) -> None:
    """Sequences long enough for hashes above the prime, and for most keys to be left out by a guess."""
    row, key = mask_density._random(first, first + queries, keys, chosen, seed)
    ours = torch.zeros(queries, keys, dtype=torch.bool)
    ours[torch.from_numpy(row), torch.from_numpy(key)] = True
    scope: dict[str, Any] = {"torch": torch, "Tensor": Tensor}
    exec(helpers()["random_keys"].source, scope)
    places = torch.arange(first, first + queries).unsqueeze(1)
    assert torch.equal(ours, scope["random_keys"](places, torch.arange(keys), chosen, seed))


def test_of_equal_hashes_only_some_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = mask_density._largest

    def coarse(*asked: int) -> tuple[Any, Any]:
        place, value = drawn(*asked[:-1], -1)
        return place, value >> 28

    monkeypatch.setattr(mask_density, "_largest", coarse)
    row, key = mask_density._random(0, 200, 200, 40, 1)
    assert (np.bincount(row) == 40).all()
    _, hashes = (a.reshape(200, 200) for a in coarse(0, 200, 200, 1, -1))
    chosen = np.zeros((200, 200), dtype=bool)
    chosen[row, key] = True
    assert (np.where(chosen, hashes, 8).min(axis=1) >= np.where(chosen, -1, hashes).max(axis=1)).all()


def test_windows_of_long_sequences_have_a_closed_form() -> None:
    mask = _mask(_load(_attending("causal & window(4096)")))
    time, width = 10**9, 4096
    assert count(mask, time, time) == width * (width + 1) // 2 + (time - width) * width


def test_what_a_tensor_decides_counts_as_seen() -> None:
    text = """
        block layer { attention: mha(heads: 2) mask: causal & padding ffn: mlp(hidden: 8) }
        model m { vocab: 32 context: 16 width: 8 blocks: 2 * layer head: lm }"""
    plain, padded = (archdsl.flops(text=t) for t in (text.replace("& padding", ""), text))
    assert padded.forward == plain.forward
    assert plain.notes == []
    assert padded.notes == ["a mask by `padding` is known only when the model runs: all it may let through is counted"]


# --- conventions ------------------------------------------------------------------------------------------------------


def test_dense_is_the_formula_of_megatrons_papers() -> None:
    """Korthikanti et al., 2022, section 5: 72 B L s h² (1 + s / 6h + v / 12hL) for GPT-3 with its 4h."""
    flops = archdsl.flops("gpt3_175b", batch=4, seq=2048, convention="dense")
    layers, s, h, v = 96, 2048, 12_288, 50_257
    assert flops.training == 4 * (72 * layers * s * h**2 + 12 * layers * s**2 * h + 6 * s * h * v)
    assert flops.recomputation.selective - flops.training == 4 * 4 * layers * s**2 * h
    assert flops.recomputation.full - flops.training == 4 * (24 * layers * s * h**2 + 4 * layers * s**2 * h)


def test_the_published_utilization_of_palm() -> None:
    """Chowdhery et al., 2022, table 3: 46.2 % at 238.3 thousand tokens a second on 6,144 chips of 275 TFLOP/s."""
    model = archdsl.load("palm_540b")
    run: dict[str, Any] = {"tokens_per_second": 238.3e3, "peak": 6144 * 275e12, "checkpoint": "full", "loss": "fused"}
    whole, half = (
        estimate(model, batch=1, seq=2048, convention="palm", **run, checkpoint_every=n).flops.utilization
        for n in (1, 2)
    )
    assert whole is not None
    assert half is not None
    assert round(whole.mfu, 3) == round(half.mfu, 3) == 0.462
    assert half.hfu - half.mfu == pytest.approx((whole.hfu - whole.mfu) / 2)
    assert whole.hfu > 1.3 * whole.mfu


def test_conventions_differ_by_their_pairs() -> None:
    flops = archdsl.flops("gpt2", batch=3, seq=1000)
    exact, dense, megatron = (flops.conventions[c].forward for c in ("exact", "dense", "megatron"))
    core = 3 * 4 * 12 * 768
    assert dense - exact == core * (1000**2 - 1000 * 1001 // 2)
    assert dense - megatron == core * 1000**2 // 2
    assert flops.conventions["kaplan"].training == 6 * 85_056_000 * 3000
    assert flops.conventions["palm"].training == 6 * 124_439_808 * 3000 + 3 * core * 1000**2
    assert (flops.convention, flops.forward) == ("exact", exact)
    told = [archdsl.flops("gpt2", batch=3, seq=1000, convention=c).training for c in CONVENTIONS]
    assert told == [flops.conventions[c].training for c in CONVENTIONS]


def test_a_window_is_not_dense() -> None:
    text = """
        block layer(w) { attention: mha(heads: 2) mask: causal & window(w) ffn: mlp(hidden: 8) }
        model m { vocab: 32 context: 4096 width: 8 blocks: layer(w: 64) + layer(w: 4096) head: lm }"""
    flops = archdsl.flops(text=text, seq=4096)
    pairs = (64 * 65 // 2 + (4096 - 64) * 64) + 4096 * 4097 // 2
    (core,) = {sum(o.forward for o in flops.by_op if o.op == "sdpa")}
    assert core == 4 * 8 * pairs
    assert archdsl.flops(text=text, seq=4096, convention="dense").forward - flops.forward == 4 * 8 * (
        2 * 4096**2 - pairs
    )


def test_only_chosen_experts_work() -> None:
    text = """
        block layer(k) { ffn: moe(experts: 8, top_k: k, expert: swiglu(hidden: 8)) }
        model m(k = 1) { vocab: 32 context: 8 width: 8 blocks: 3 * layer(k: k) head: lm }"""
    one, three = (archdsl.flops(text=text, set={"k": k}, batch=2, seq=8).forward for k in (1, 3))
    assert three - one == 3 * (3 - 1) * 2 * (3 * 8 * 8) * 16


# --- decoding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama3_8b", "mistral_7b", "deepseek_v3", "mamba_130m", "mixtral_8x7b"])
def test_steps_of_decoding_add_up_to_the_forward(name: str) -> None:
    model = archdsl.load(name)
    steps = [estimate(model, batch=2, seq=t).flops for t in range(1, 7)]
    assert sum(s.decode_step or 0 for s in steps) == steps[-1].forward == steps[-1].prefill


def test_a_step_of_an_encoder_decoder_reads_what_was_computed_before() -> None:
    flops = archdsl.flops("t5_base", batch=1, seq=512)
    layers, width, hidden, vocab = 12, 768, 3072, 32_128
    weights = layers * (4 * width**2 + 2 * width**2 + 2 * width * hidden) + width * vocab
    assert flops.decode_step == 2 * weights + layers * 2 * (4 * width * 512)


@pytest.mark.parametrize(
    "layer",
    [
        "mha(heads: 2, mask: causal, position: rope)",
        "mha(heads: 2, mask: causal & window(4))",
        "mla(heads: 2, kv_rank: 4, nope_dim: 8, rope_dim: 4, v_dim: 8, mask: causal)",
        "gru(8)",
    ],
)
def test_steps_behind_places_in_front_add_up(layer: str) -> None:
    """The first step computes them, all later ones read what is kept of them."""
    model = behind_memory(layer)
    one, *steps = [estimate(model, batch=2, seq=t).flops for t in range(1, 9)]
    assert one.forward + sum(s.decode_step or 0 for s in steps) == steps[-1].forward


def test_what_looks_ahead_has_no_step() -> None:
    flops = archdsl.flops("bert_base")
    assert flops.decode_step is None
    assert flops.no_decode_step is not None
    assert "cannot be decoded step by step" in flops.no_decode_step


# --- the report -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "deepseek_v3", "t5_base", "sparse_transformer", "vit_b16"])
def test_tables_add_up(name: str) -> None:
    flops = archdsl.flops(name, batch=2, seq=64)
    assert sum(o.forward for o in flops.by_op) == flops.forward == flops.by_block[0].forward
    assert sum(o.forward + o.backward for o in flops.by_op) == flops.training == flops.by_block[0].training
    assert flops.forward + flops.backward == flops.training
    assert sum(o.elementwise for o in flops.by_op) == flops.elementwise


def test_the_formula_is_the_number() -> None:
    flops = archdsl.flops("gpt2", batch=3, seq=100)
    assert eval(flops.formula, {"batch": 3, "time": 100}) == flops.forward
    assert "pairs(causal & window(4096), time, time)" in archdsl.flops("mistral_7b").formula


def test_element_by_element() -> None:
    ops = {o.op: o for o in archdsl.flops("gpt2", batch=1, seq=10).by_op}
    assert ops["gelu_tanh"].elementwise == 12 * 10 * 3072
    assert ops["sdpa"].elementwise == 12 * 12 * 6 * (10 * 11 // 2)
    assert "split_heads" not in ops


def test_a_thousand_layers_cost_two_blocks() -> None:
    few, many = (archdsl.flops("gpt2", set={"layers": n}, seq=64) for n in (2, 1000))
    each = 2 * 64 * 7_077_888 + 4 * 768 * 64 * 65 // 2
    assert many.forward - few.forward == 998 * each
    assert len(many.by_op) == len(few.by_op)
    assert [o.uses for o in many.by_op if o.op == "sdpa"] == [1000]


@pytest.mark.parametrize(("spec", "seq", "fits"), [("gpt2", 2000, 1024), ("hf/moonshine", 100, 895)])
def test_sizes_that_the_model_refuses(spec: str, seq: int, fits: int) -> None:
    with pytest.raises(ArchError) as refused:
        archdsl.flops(spec, seq=seq)
    (said,) = refused.value.diagnostics
    assert said.code == "E0503"
    assert said.help.startswith(f"`--seq {fits}` ")
    assert f"time = {seq:,}" in said.message
    archdsl.flops(spec, seq=fits)


def test_the_length_is_the_context_where_that_is_short() -> None:
    assert (archdsl.flops("gpt2").seq, archdsl.flops("llama3_8b").seq) == (1024, 2048)


def test_the_report_is_json() -> None:
    report = estimate(archdsl.load("gpt2"), batch=2, seq=128)
    again = json.loads(report.model_dump_json())
    assert again["flops"]["forward"] == report.flops.forward
    assert list(again["flops"]["conventions"]) == list(CONVENTIONS)
    assert again["params"]["total"] == 124_439_808


def test_nothing_backwards_in_inference() -> None:
    work = work_of(archdsl.load("gpt2"), training=False).total
    assert list(work.backward.amounts) == []


def test_figures_of_a_token_do_not_depend_on_the_batch() -> None:
    """Chinchilla's relative positions are work once for a batch: 10 % more at one sequence, none of a token's."""
    model = archdsl.load("chinchilla_70b")
    one, many = (estimate(model, batch=n, seq=2048).flops for n in (1, 64))
    assert one.training_per_token == many.training_per_token
    assert one.training > 1.1 * one.training_per_token * 2048
    # 1.4T tokens are 5.76e23 FLOPs (Hoffmann et al., 2022, table A3).
    assert 1.4e12 * one.training_per_token == pytest.approx(5.76e23, rel=0.015)
