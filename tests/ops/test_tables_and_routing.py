"""Embeddings and the tied head, sinusoids, and groups of experts."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.ops import registry
from archdsl.ops.registry import primitives


def compiled(text: str) -> nn.Module:
    torch.manual_seed(0)
    return archdsl.to_torch(text=f"model m{text}").eval()


def test_the_tied_head_reads_the_embedding() -> None:
    module = compiled(
        "(ids: token[batch, time]) { let words = shared(embedding(11, 8)) return (ids -> words) -> unembed(words) }"
    )
    assert list(module.state_dict()) == ["words.weight"]
    ids = torch.randint(11, (2, 5))
    table = module.state_dict()["words.weight"]
    torch.testing.assert_close(module(ids), F.linear(F.embedding(ids, table), table))


def test_a_head_of_another_width_is_told_which() -> None:
    with pytest.raises(ArchError, match="the head is tied to an embedding of width 8, but x has width 6") as problem:
        archdsl.load(
            text="model m(x: [batch, time, 6]) { let words = shared(embedding(11, 8)) return x -> unembed(words) }"
        )
    assert [d.code for d in problem.value.diagnostics] == ["E0301"]


def test_sinusoids_are_those_of_the_transformer() -> None:
    module = compiled("(x: [batch, time, 6]) { return x + sinusoid(time, 6) }")
    turns = compiled("(x: [batch, time, 6]) { return x + sinusoid(time, 6, theta: 100, interleaved: true, offset: 3) }")
    for time in (1, 9):
        x = torch.zeros(1, time, 6)
        for t in range(time):
            for i in range(3):
                angle = t * 10_000 ** (-2 * i / 6)
                assert module(x)[0, t, i].item() == pytest.approx(math.sin(angle), abs=1e-5)
                assert module(x)[0, t, i + 3].item() == pytest.approx(math.cos(angle), abs=1e-5)
                angle = (t + 3) * 100 ** (-2 * i / 6)
                assert turns(x)[0, t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
                assert turns(x)[0, t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("score", ["top2", "max"])
def test_only_experts_of_the_best_groups_stay(score: str) -> None:
    module = compiled(f"(x: [batch, 12]) {{ return x -> keep_groups(4, 2, score: {score}) }}")
    x = torch.randn(5, 12)
    for row, kept in zip(x, module(x), strict=True):
        groups = row.view(4, 3)
        worth = groups.topk(2).values.sum(-1) if score == "top2" else groups.amax(-1)
        best = set(worth.topk(2).indices.tolist())
        expected = [v.item() if i // 3 in best else -math.inf for i, v in enumerate(row)]
        assert kept.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("use", ["keep_groups(5, 2)", "keep_groups(4, 5)", "keep_groups(12, 2)"])
def test_groups_that_do_not_work_out(use: str) -> None:
    with pytest.raises(ArchError) as problem:
        archdsl.load(text=f"model m(x: [2, 12]) {{ return x -> {use} }}")
    assert [d.code for d in problem.value.diagnostics] == ["E0401"]


ARGUMENTS = {
    "transpose": "(1, 2)",
    "permute": "(0, 2, 1)",
    "flatten": "(1, 2)",
    "rearrange": '("b t w -> t b w")',
    "cast": "(float32)",
    "pad": "(1)",
    "rotate": "(rope)",
    "linear": "(8)",
    "dropout": "(0.1)",
}


def takes_one_tensor(name: str) -> bool:
    """Whether a primitive can be applied to numbers with the options that stand above."""
    header = registry.get(name).header
    demanded = [p for p in header.tensors or () if p.default is None]
    given = name in ARGUMENTS or all(h.default is not None for h in header.hypers or ())
    return len(demanded) == 1 and demanded[0].type.kind in (None, "float", "number") and given


@pytest.mark.parametrize("name", [n for n, op in primitives().items() if op.examples])
def test_a_shared_primitive_is_one_or_refused(name: str) -> None:
    """Refused is what is also refused where it is not shared: it wants other tensors, or options."""
    text = f"""
    model m(x: [batch, time, 8]) {{
      let s = shared({name}{ARGUMENTS.get(name, "")})
      return x -> s
    }}
    """
    if takes_one_tensor(name) and name != "clamp":  # which wants one of two options
        assert "def forward(self, x: Tensor)" in archdsl.torch_source(text=text)
    else:
        with pytest.raises(ArchError, match=r"E020[45]|E0304"):
            archdsl.load(text=text)


TABLE = "relative_bias(buckets: 8, max_distance: 9)"


@pytest.mark.parametrize(
    "shared",
    {
        "in a body of slots": f"attention: mha(heads: 2) mask: causal position: shared({TABLE})",
        "by a `let` of it": f"let table = shared({TABLE}) attention: mha(heads: 2) mask: causal position: table",
        "in an option": f"attention: mha(heads: 2, position: shared({TABLE})) mask: causal",
    }.items(),
    ids=lambda kind: kind[0],
)
def test_a_block_shares_a_position_of_its_own(shared: tuple[str, str]) -> None:
    """Applied once, it is what it would be without `shared`: each layer has its own table, under another name."""
    model = "layer {{ {} }} model m {{ vocab: 16 context: 16 width: 8 blocks: 2 * layer head: lm }}"
    slots = [f"attention: mha(heads: 2) mask: causal position: {TABLE}", shared[1]]
    alone, once = (archdsl.to_torch(text="block " + model.format(s)).eval() for s in slots)
    torch.manual_seed(0)
    state = {k: torch.randn_like(v) for k, v in alone.state_dict().items()}
    alone.load_state_dict(state)
    tables = [k for k in state if once.state_dict().keys().isdisjoint({k})]
    mine = [k for k in once.state_dict() if k not in state]
    assert len(tables) == len(mine) == 2
    once.load_state_dict({dict(zip(tables, mine, strict=True)).get(k, k): v for k, v in state.items()})
    ids = torch.randint(16, (2, 12))
    with torch.no_grad():
        torch.testing.assert_close(once(ids), alone(ids))


@pytest.mark.parametrize(
    "use", ["sdpa(position: relative_bias(buckets: 8, max_distance: 9))", "experts(expert: mlp(hidden: 4), count: 3)"]
)
def test_what_only_its_blocks_have_is_not_shared(use: str) -> None:
    text = f"model m(x: [batch, time, 8]) {{ let s = shared({use})  return s(x, x, x) }}"
    with pytest.raises(ArchError, match="no weights of its own"):
        archdsl.load(text=text)
