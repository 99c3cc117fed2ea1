"""What several operators of ATen say together: attention, rotary embeddings, causal convolutions and experts become
the words of the language, and the outputs of the spec are the module's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers
from interop.test_lift_operators import Call, Recording, Weighted, compared, lifted, recorded
from torch import Tensor, nn
from torch.nn import functional as F

from archdsl.diagnostics import ArchError
from archdsl.interop.lift.meanings import GATES, Experts, recognized
from archdsl.syntax.format import format_tree

Of = Callable[[Tensor], Tensor]


def heads(x: Tensor, count: int = 2) -> Tensor:
    return x.unflatten(-1, (count, 8 // count)).transpose(1, 2)


def attended(change: Of, count: int = 2) -> Call:
    """Attention as operators; `change` is made to the scores."""

    def call(x: Tensor) -> Tensor:
        q = heads(x, count)
        return (change(q @ q.mT).softmax(-1) @ q).transpose(1, 2).flatten(2)

    return call


def places(s: Tensor) -> tuple[Tensor, Tensor]:
    place = torch.arange(s.shape[-1])
    return place[:, None], place[None]


def hidden(where: Callable[[Tensor, Tensor], Tensor], far: float = float("-inf")) -> Of:
    """Scores with `far` at what is to be hidden."""
    return lambda s: s.masked_fill(where(*places(s)), far)


def added(bias: Callable[[Tensor, Tensor], Tensor]) -> Of:
    return lambda s: s + bias(*places(s))


def future(q: Tensor, k: Tensor) -> Tensor:
    return k > q


def slope(n: int) -> Tensor:
    """What ALiBi multiplies distances by, of so many heads."""
    return (2.0 ** (-8 / n)) ** torch.arange(1, n + 1)[:, None, None]


def angles(count: int, dims: int) -> Tensor:
    """Of so many positions, what pairs of channels are turned by."""
    return torch.outer(torch.arange(count).float(), 10_000.0 ** (-torch.arange(dims // 2) / (dims // 2)))


def turned(x: Tensor) -> Tensor:
    """Halves of the channels of [..., time, width]."""
    at = torch.cat([angles(x.shape[-2], x.shape[-1])] * 2, -1)
    a, b = x.chunk(2, -1)
    return x * at.cos() + torch.cat([-b, a], -1) * at.sin()


def turned_within(x: Tensor) -> Tensor:
    """Halves of the channels of [batch, time, heads, width]."""
    at = torch.cat([angles(x.shape[1], x.shape[-1])] * 2, -1)[:, None]
    a, b = x.chunk(2, -1)
    return x * at.cos() + torch.cat([-b, a], -1) * at.sin()


def turned_in_two(x: Tensor) -> Tensor:
    at = angles(x.shape[1], 8)
    cos, sin = at.cos(), at.sin()
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def complex_within(x: Tensor) -> Tensor:
    """Pairs of the channels of [batch, time, heads, width], as complex numbers."""
    x = x.unflatten(-1, (2, 4))
    at = angles(x.shape[1], 4)
    turns = torch.polar(torch.ones_like(at), at)[:, None]
    return torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (2, 2))) * turns).flatten(-2)


def pairs_turned(x: Tensor) -> Tensor:
    """Pairs of the channels of [batch, time, 8]."""
    at = angles(x.shape[1], 8).repeat_interleave(2, -1)
    return x * at.cos() + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * at.sin()


def by(make: Callable[[int], tuple[Tensor, Tensor]]) -> Call:
    """Halves of the channels turned by cosines and sines of their own."""

    def call(x: Tensor) -> Tensor:
        cos, sin = make(x.shape[1])
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    return call


TENTHS = torch.tensor([1.0, 0.1, 0.01, 0.001])
SLOW = 0.2 * 50.0 ** (-torch.arange(4) / 4)
IN_PART = torch.tensor([1.0, 0.1, 0.0, 0.0])


def waves(place: Tensor, speeds: Tensor = TENTHS) -> tuple[Tensor, Tensor]:
    at = torch.cat([place.float()[:, None] * speeds] * 2, -1)
    return at.cos(), at.sin()


STILL = torch.arange(8).float().cos(), torch.arange(8).float().sin()
GAINS = torch.arange(1, 9).float()


def half_turned(x: Tensor) -> Tensor:
    first, rest = x.chunk(2, -1)
    return torch.cat([turned(first), rest], -1)


def part_turned(x: Tensor) -> Tensor:
    x = torch.cat([x, -x], -1).unflatten(-1, (2, 8))
    return torch.cat([turned_within(x[..., :6]), x[..., 6:]], -1)


def other_heads(x: Tensor) -> Tensor:
    """The first channels of some heads turned, beside the rest of others."""
    x = torch.cat([x, -x], -1).unflatten(-1, (2, 8))
    return torch.cat([turned_within(x[..., :6]), x.sin()[..., 6:]], -1)


def grouped_turned(x: Tensor) -> Tensor:
    """Halves of the channels of [batch, time, groups, heads, width]."""
    x = x.unflatten(-1, (1, 2, 4))
    at = torch.cat([angles(x.shape[1], 4)] * 2, -1)[:, None, None]
    a, b = x.chunk(2, -1)
    return x * at.cos() + torch.cat([-b, a], -1) * at.sin()


def complex_pairs(x: Tensor, turns: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turns).flatten(-2)


KEPT = torch.cat([angles(40, 8)] * 2, -1)
COS, SIN = KEPT.cos(), KEPT.sin()
LONG = [f(torch.cat([angles(80, 8)] * 2, -1)) for f in (torch.cos, torch.sin)]


def looked_up(x: Tensor) -> Tensor:
    """Halves turned by tables that hold 40 positions."""
    place = torch.arange(x.shape[1])
    a, b = x.chunk(2, -1)
    return x * COS[place] + torch.cat([-b, a], -1) * SIN[place]


ROWS: dict[str, tuple[Call, str]] = {
    "scale": (attended(lambda s: s * 0.3), "scale: 0.3)"),
    "softcap": (attended(lambda s: torch.tanh(s / 3) * 3), "softcap: 3"),
    "cap of what is hidden": (attended(lambda s: torch.tanh(hidden(future, -50.0)(s)) * 3), "-> tanh"),
    "scale of values": (attended(lambda s: s * s.abs()), "-> softmax"),
    "scale below 0": (attended(lambda s: s * -0.3), "-> softmax"),
    "scale behind a cap": (attended(lambda s: torch.tanh(s / 3) * 3 * 0.5), "-> softmax"),
    "scale of what is hidden": (attended(lambda s: hidden(future, -1e4)(s) * 0.5), "mask: causal"),
    "hidden and seen again": (attended(lambda s: hidden(future, -1e4)(s) * 1e-4), "-> softmax"),
    "cap of values": (attended(lambda s: torch.tanh(s) * s), "-> tanh"),
    "cap behind a mask": (attended(lambda s: torch.tanh(hidden(future)(s)) * 3), "-> tanh"),
    "hidden": (attended(hidden(future)), "mask: causal"),
    "hidden a little": (attended(hidden(future, -5.0)), "-> softmax"),
    "hidden by values": (attended(lambda s: s.masked_fill(s > 0.5, -1e9)), "-> softmax"),
    "seen": (attended(lambda s: torch.where(~future(*places(s)), s, -1e9)), "mask: causal"),
    "several masks": (
        attended(lambda s: hidden(lambda q, k: q - k > 9)(hidden(lambda q, k: (k > q) | (q - k > 20))(s))),
        "mask: causal & window(21) & ~(causal & ~window(10))",
    ),
    "alibi": (attended(lambda s: hidden(future)(added(lambda q, k: slope(2) * (k - q))(s))), "position: alibi"),
    "alibi of keys": (attended(lambda s: hidden(future)(added(lambda q, k: slope(2) * k)(s))), "position: alibi"),
    "alibi both ways": (attended(added(lambda q, k: -slope(2) * (k - q).abs())), "position: alibi"),
    "a slope that rises": (attended(added(lambda q, k: slope(2) * (k - q))), "cast(float)"),
    "other slopes": (attended(lambda s: hidden(future)(added(lambda q, k: slope(4)[::2] * k)(s))), "cast(float)"),
    "one bias of all heads": (attended(added(lambda q, k: 0.1 * (k - q))), "cast(float)"),
    "a bias of values": (attended(lambda s: s + s.flip(-1)), "flip(axis: -1)"),
    "a sink of values": (
        attended(lambda s: torch.cat([s, s[..., :1]], -1).softmax(-1)[..., :-1].log()),
        "-> softmax",
    ),
    "rope": (turned, "-> rope\n"),
    "rope of three axes": (lambda x: turned(heads(x)), "-> rope\n"),
    "rope in two": (turned_in_two, "-> rope\n"),
    "rope of half": (half_turned, "rope(dims: 4)"),
    "rope within": (lambda x: turned_within(x.unflatten(-1, (2, 4))), "split_heads(2) -> rope -> transpose(1, 2)"),
    "rope of a part": (part_turned, "split_heads(2) -> rope(dims: 6)"),
    "complex within": (complex_within, "rope(interleaved: true)"),
    "pairs": (pairs_turned, "rope(interleaved: true)"),
    "slower": (by(lambda time: waves(torch.arange(time), SLOW)), "rope"),
    "from 1 on": (by(lambda time: waves(torch.arange(1, time + 1))), "-> sin"),
    "from the end": (by(lambda time: waves(torch.arange(time).flip(0))), "-> sin"),
    "backwards": (by(lambda time: waves(torch.arange(time), -TENTHS)), "-> sin"),
    "in part": (by(lambda time: waves(torch.arange(time), IN_PART)), "concat("),
    "everywhere the same": (by(lambda time: STILL), "concat("),
    "with a gain of each": (
        by(lambda time: (waves(torch.arange(time))[0] * GAINS, waves(torch.arange(time))[1] * GAINS)),
        "concat(",
    ),
    "sines of other angles": (
        by(lambda time: (waves(torch.arange(time))[0], waves(torch.arange(time), SLOW)[1])),
        "concat(",
    ),
    "tables of other positions": (
        by(lambda time: (COS[:40][torch.arange(time)], SIN[1:][torch.arange(time)])),
        "concat(",
    ),
    "rope of a table": (looked_up, "-> rope\n"),
    "tables times a number": (by(lambda time: (COS[torch.arange(time)] * 2, SIN[torch.arange(time)] * 2)), "concat("),
    "every other row of tables": (
        by(lambda time: (LONG[0][2 * torch.arange(time)], LONG[1][2 * torch.arange(time)])),
        "concat(",
    ),
    "turned by values": (lambda x: x * x.cos() + torch.cat([-x[..., 4:], x[..., :4]], -1) * x.sin(), "-> sin"),
    "turned by numbers": (
        lambda x: torch.cat([x[..., :4] * 2 - x[..., 4:] * 3, x[..., 4:] * 2 + x[..., :4] * 3], -1),
        "concat(",
    ),
    "rope within groups": (grouped_turned, "concat("),
    "other halves than were turned": (
        lambda x: torch.cat([turned(x[..., :4]), x[..., 2:6]], -1),
        "rope",
    ),
    "other heads than were turned": (other_heads, "rope"),
    "parts of five axes": (
        lambda x: x.unflatten(-1, (2, 1, 4))[..., 1:].transpose(1, 2).transpose(2, 3).flatten(3),
        "[..., 1:] -> transpose(1, 2)",
    ),
}


@pytest.fixture(scope="module")
def rows() -> Recording:
    return Recording({name: (call,) for name, (call, _) in ROWS.items()})


@pytest.mark.parametrize("name", ROWS)
def test_operators_together_have_words(name: str, rows: Recording) -> None:
    assert ROWS[name][1] in format_tree(lifted(rows.of(name)).tree)


def test_operators_together_give_their_numbers(rows: Recording) -> None:
    compared(rows.whole, [call for call, _ in ROWS.values()])


@pytest.mark.parametrize(
    "turns",
    [
        lambda x: torch.view_as_complex(x.sin().unflatten(-1, (4, 2))),
        lambda x: torch.polar(torch.ones(4), angles(x.shape[1], 8)) + torch.polar(TENTHS, TENTHS),
        lambda _: torch.polar(TENTHS, TENTHS),
        lambda x: torch.polar(torch.ones(4), angles(x.shape[1], 8).flip(0)),
        lambda x: torch.complex(angles(x.shape[1], 8), TENTHS.expand(x.shape[1], -1)),
        lambda x: torch.polar(torch.ones(4), angles(x.shape[1], 8)).real * torch.polar(TENTHS, TENTHS),
    ],
    ids=["of values", "sums", "everywhere the same", "backwards", "with a gain", "with a gain and a turn"],
)
def test_complex_numbers_that_are_no_rope_are_refused(turns: Of) -> None:
    module = Weighted(lambda _, x: complex_pairs(x, turns(x)))
    with pytest.raises(ArchError, match=r"E0542.*`view_as_real` of .* has no words"):
        lifted(recorded(module))


def with_sink(m: Weighted, x: Tensor) -> Tensor:
    """A score for each query that no value has, as transformers adds it."""
    q = heads(x, 8)
    scores = (q @ q.mT).masked_fill(future(*places(q @ q.mT)), float("-inf"))
    scores = torch.cat([scores, m.row.reshape(1, -1, 1, 1).expand(x.shape[0], -1, x.shape[1], -1)], -1)
    scores = scores - scores.max(-1, keepdim=True).values
    return (scores.softmax(-1)[..., :-1] @ q).transpose(1, 2).flatten(2)


def own_norm(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


WEIGHTED: dict[str, tuple[Callable[[Weighted, Tensor], Tensor], str]] = {
    "sink": (with_sink, "sink: row"),
    "norm": (lambda m, x: own_norm(x) * m.row + m.shift, "layernorm as"),
    "gain of a norm": (lambda m, x: own_norm(x) * m.row, "layernorm(bias: false)"),
    "padded before": (lambda m, x: F.conv1d(F.pad(x.mT, (2, 0)), m.kernel).mT, "padding: causal"),
    "padded and cut": (lambda m, x: F.conv1d(x.mT, m.kernel, padding=2)[..., : x.shape[1]].mT, "padding: causal"),
    "padded too far": (lambda m, x: F.conv1d(F.pad(x.mT, (3, 0)), m.kernel).mT, "pad(axis: -2, before: 3)"),
    "cut too soon": (lambda m, x: F.conv1d(x.mT, m.kernel, padding=2)[..., :5].mT, "pad(before: 2, after: 2"),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_operators_with_weights_have_words_and_give_their_numbers(name: str) -> None:
    module = Weighted(WEIGHTED[name][0])
    exported = recorded(module)
    assert WEIGHTED[name][1] in format_tree(lifted(exported).tree)
    compared(exported, module.calls)


# --- experts ----------------------------------------------------------------------------------------------------------


class Stacked(nn.Module):
    """Experts whose weights are stacked, each called with its own tokens: what no export can follow."""

    def __init__(self, gate: Callable[..., Tensor], gated: bool, turned: bool, paired: bool, bias: bool) -> None:
        super().__init__()
        self.gate, self.gated, self.turned, self.paired = gate, gated, turned, paired
        wide = 10 if gated else 5
        shapes = {"inner": (wide, 8), "outer": (8, 5)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(3, *(shape[::-1] if turned else shape))))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(3, shape[0])) if bias else None)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for e in range(3):
            at = (chosen == e).nonzero(as_tuple=True)
            h = self.linear("inner", e, x[at[:-1]])
            if self.gated:
                h = self.gate(*((h[..., ::2], h[..., 1::2]) if self.paired else h.chunk(2, -1)))
            else:
                h = self.gate(h)
            y.index_put_(at[:-1], self.linear("outer", e, h) * weights[at][:, None], accumulate=True)
        return y

    def linear(self, name: str, e: int, x: Tensor) -> Tensor:
        weight, bias = getattr(self, name)[e], getattr(self, f"{name}_bias")
        return F.linear(x, weight.T if self.turned else weight, None if bias is None else bias[e])


def limited(gate: Tensor, up: Tensor) -> Tensor:
    """What gpt-oss does between the two linear layers of an expert."""
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


GATED: dict[str, Callable[..., Tensor]] = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu": lambda gate, up: F.gelu(gate) * up,
    "gelu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "relu": lambda gate, up: F.relu(gate) * up,
    "limited": limited,
}
ALONE: dict[str, Callable[..., Tensor]] = {
    "silu_alone": F.silu,
    "gelu_alone": F.gelu,
    "relu_alone": F.relu,
    "relu_squared": lambda h: F.relu(h) ** 2,
}


class Mixture(nn.Module):
    """Every kind of experts, one after the other, of [batch, time, 8]."""

    def __init__(self) -> None:
        super().__init__()
        forms = [(False, False, False), (True, True, True), (True, False, False), (False, True, False)]
        gated = [(gate, True, *forms[i % 4]) for i, gate in enumerate(GATED.values())]
        alone = [(gate, False, i % 2 == 1, False, i == 3) for i, gate in enumerate(ALONE.values())]
        torch.manual_seed(0)
        self.router = nn.Linear(8, 3, bias=False)
        self.layers = nn.ModuleList(Stacked(*how) for how in (*gated, *alone))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        for layer in self.layers:
            x = x + 0.01 * layer(x, chosen, weights)
        return x


def test_experts_of_every_kind_are_recognized_and_give_their_numbers() -> None:
    assert {*GATED, *ALONE} == {*GATES}
    module = Mixture()
    exported = recorded(module)
    text = format_tree(lifted(exported).tree)
    assert [name for name in GATES if f"block {name}_expert" not in text] == []
    compared(exported, [module])


def test_experts_of_transformers_are_recognized() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    config = transformers.GptOssConfig(hidden_size=8, intermediate_size=5, num_local_experts=3)
    config._experts_implementation = "eager"
    assert recognized(GptOssExperts(config)) == Experts(
        "gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias", turned=True, paired=True, gate="limited"
    )


class Other(Stacked):
    """Experts that are called with something else, or compute what no row has."""

    def __init__(self, *fields: str, gate: Callable[..., Tensor] = torch.tanh, gated: bool = False) -> None:
        super().__init__(gate, gated, False, False, True)
        for name in fields:
            self.register_parameter(name, None)


class Alone(Stacked):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return x @ self.inner[0].T


class Biased(Other):
    """Experts of which one bias has another size."""

    def __init__(self) -> None:
        super().__init__(gate=F.relu)
        self.inner_bias = nn.Parameter(torch.randn(3, 1))


@pytest.mark.parametrize(
    "module",
    [
        Other(),
        Other("inner_bias"),
        Other(gate=lambda a, b: a * b, gated=True),
        Alone(F.relu, False, False, False, False),
        Biased(),
    ],
)
def test_other_experts_are_not_recognized(module: nn.Module) -> None:
    assert recognized(module) is None


class Patterns(nn.Module):
    """Linear layers in a loop, and after each a product of another pattern."""

    def __init__(self) -> None:
        super().__init__()
        self.patterns = ("btc,bsc->btc", "btc,btc->btc", "btc,bsc->btc")
        self.maps = nn.ModuleList(nn.Linear(8, 8) for _ in self.patterns)

    def forward(self, x: Tensor) -> Tensor:
        for linear, pattern in zip(self.maps, self.patterns, strict=True):
            x = torch.einsum(pattern, linear(x), x) / 8
        return x


def test_a_text_that_differs_from_turn_to_turn_is_no_loop() -> None:
    module = Patterns()
    compared(recorded(module), [module])
