"""Masks, tables and numbers of positions are read as formulas, and what they are read as is what they compute."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
sympy = pytest.importorskip("sympy")

from torch import Tensor, nn  # noqa: E402

from archdsl.interop.lift import elements  # noqa: E402
from archdsl.interop.lift.elements import axis  # noqa: E402
from archdsl.interop.lift.export import TIME, Value, export  # noqa: E402
from archdsl.interop.lift.positions import Positions, algebra, holds, shortest  # noqa: E402
from archdsl.interop.lift.rotary import Rotary, options, rotary  # noqa: E402
from archdsl.syntax.format import format_expr  # noqa: E402


class Masked(nn.Module):
    """Attention whose mask a function makes of the positions of queries and keys."""

    def __init__(self, mask: Callable[[Tensor, Tensor], Tensor], size: int | None = None) -> None:
        super().__init__()
        self.mask = mask
        if size is not None:
            place = torch.arange(size)
            self.register_buffer("kept", mask(place[:, None], place[None])[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        time = x.shape[1]
        place = torch.arange(time)
        mask = self.kept[:, :, :time, :time] if hasattr(self, "kept") else self.mask(place[:, None], place[None])
        return nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=mask)


def exported(module: nn.Module, time: int = 7) -> tuple[Positions, Value]:
    """Its positions, and the value that it returns."""
    found = export(module.eval(), {"x": torch.randn(3, time, 4)}, {"x": ("batch", "time", None)})
    return Positions(found), found.results[0][1]


def mask_of(module: nn.Module) -> str | None:
    positions, value = exported(module)
    while value.op != "scaled_dot_product_attention":
        value = next(value.operands())
    mask = positions.mask(value.options.get("attn_mask", (*value.args, None, None)[3]))
    return None if mask is None else format_expr(mask)


LOW = torch.finfo(torch.float32).min
MASKS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str | None]] = {
    "causal": (lambda q, k: k <= q, "causal"),
    "the other way round": (lambda q, k: q >= k, "causal"),
    "strictly before": (lambda q, k: k < q, "causal & ~window(1)"),
    "future": (lambda q, k: k > q, "~causal"),
    "one ahead": (lambda q, k: k <= q + 1, "causal | window(2)"),
    "window": (lambda q, k: (k <= q) & (q - k < 50), "causal & window(50)"),
    "window, as transformers": (lambda q, k: (k > q - 300) & (k <= q), "causal & window(300)"),
    "long window": (lambda q, k: (k > q - 5000) & (k <= q), "causal & window(5000)"),
    "both ways": (lambda q, k: (q - k).abs() <= 20, "window(21)"),
    "uneven": (lambda q, k: (k <= q + 2) & (q - k < 9), "(causal | window(3)) & window(9)"),
    "chunks": (lambda q, k: (k // 40 == q // 40) & (k <= q), "causal & chunked(40)"),
    "chunks that see back": (lambda q, k: k // 5 <= q // 5, "causal | chunked(5)"),
    "chunks before": (lambda q, k: k // 5 < q // 5, "causal & ~chunked(5)"),
    "prefix": (lambda q, k: (k < 30) | (k <= q), "causal | prefix(30)"),
    "prefix by an arithmetic mean": (lambda q, k: (2 * k + 1 < 60) | (k <= q), "causal | prefix(30)"),
    "global": (lambda q, k: (q < 3) | (k < 3) | ((q - k).abs() < 4), "window(4) | global(3)"),
    "not global": (lambda q, k: (q >= 3) & (k >= 3) & (k <= q), "causal & ~global(3)"),
    "strided": (lambda q, k: ((q - k) % 3 == 0) & (k <= q), "causal & strided(3)"),
    "dilated": (lambda q, k: ((q - k) % 2 == 0) & ((q - k).abs() < 8), "dilated(4, 2)"),
    "complement": (lambda q, k: ~((k > q) | (q - k >= 50)), "causal & window(50)"),
    "triangle": (lambda q, k: torch.ones(k.shape[-1], k.shape[-1], dtype=torch.bool).tril(), "causal"),
    "triangles": (
        lambda q, k: torch.ones(k.shape[-1], k.shape[-1]).tril().triu(-9).bool(),
        "causal & window(10)",
    ),
    "additive": (lambda q, k: torch.full((k.shape[-1], k.shape[-1]), LOW).triu(1), "causal"),
    "infinite": (lambda q, k: torch.zeros(k.shape[-1], k.shape[-1]).masked_fill(k > q, float("-inf")), "causal"),
    "product": (lambda q, k: (1.0 - (k <= q).float()) * LOW, "causal"),
    "sum": (
        lambda q, k: torch.where(k <= q, 0.0, LOW) + torch.where(q - k < 50, 0.0, LOW),
        "causal & window(50)",
    ),
    "all": (lambda q, k: (q >= 0) & (k >= 0), "full"),
    "everything of nothing": (lambda q, k: torch.zeros(k.shape[-1], k.shape[-1]), "full"),
    "one key off": (lambda q, k: (k <= q) & ~((q == 40) & (k == 3)), None),
    "off from 40 on": (lambda q, k: (k <= q) & ((q < 40) | (k != 3)), None),
    "bias": (lambda q, k: torch.where(k <= q, -0.5 * (q - k), LOW), None),
    "counted from the end": (lambda q, k: k >= k.shape[-1] - 2, None),
    "half": (lambda q, k: 2 * k <= q, None),
    "rounded positions": (lambda q, k: (k <= q) & (q.bfloat16() - k.bfloat16() < 300), None),
    "rounded positions, none that shows": (
        lambda q, k: (k <= q) & (q.bfloat16() - k.bfloat16() < 50),
        "causal & window(50)",
    ),
    "rounded noughts": (lambda q, k: torch.where(k <= q, 1.0, LOW) + 1e-9 - 1 - 1e-9, None),
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_is_read_from_its_comparisons(kind: str) -> None:
    mask, expected = MASKS[kind]
    assert mask_of(Masked(mask)) == expected


@pytest.mark.parametrize("queries", [lambda time: 3, lambda time: time + 2])
def test_a_mask_of_fewer_or_more_queries_than_keys_is_none(queries: Callable[[int], int]) -> None:
    """The algebra has one axis of positions for both."""
    positions, value = made(lambda time: torch.arange(time) <= torch.arange(queries(time))[:, None])
    assert positions.mask(value) is None
    positions, value = made(lambda time: torch.arange(time) <= torch.arange(time)[:, None])
    assert positions.mask(value) is not None


def test_a_mask_that_the_module_keeps() -> None:
    assert mask_of(Masked(lambda q, k: k <= q, size=64)) == "causal"
    assert mask_of(Masked(lambda q, k: (k <= q) & (q - k < 50), size=64)) == "causal & window(50)"
    assert mask_of(Masked(lambda q, k: torch.where(k <= q, 0.0, LOW), size=64)) == "causal"
    assert mask_of(Masked(lambda q, k: (k <= q) & ~((q == 40) & (k == 3)), size=64)) is None
    assert mask_of(Masked(lambda q, k: (k <= q) & ((q - k) % 2 == 0), size=64)) is None


Q, K = axis(0), axis(1)
CONDITIONS: dict[str, tuple[object, str | None]] = {
    "another": (sympy.Ne(Q, K), "~window(1)"),
    "its own": (sympy.Eq(Q, K), "window(1)"),
    "three before": (sympy.Eq(Q - K, 3), "causal & ~window(3) & ~(causal & ~window(4))"),
    "but three before": (
        sympy.And(K <= Q, sympy.Ne(Q - K, 3)),
        "causal & ~(causal & ~window(3) & ~(causal & ~window(4)))",
    ),
    "none": (sympy.And(Q - K <= 5, Q - K >= 8), None),
    "dilated": (sympy.And(sympy.Eq(sympy.Mod(Q - K, 3), 0), sympy.Abs(Q - K) <= 7), "dilated(3, 3)"),
    "dilated behind": (
        sympy.And(sympy.Eq(sympy.Mod(Q - K, 3), 0), sympy.Abs(Q - K) <= 7, K <= Q),
        "causal & window(8) & strided(3)",
    ),
    "not far behind": (Q - K <= 4, "~(causal & ~window(5))"),
    "far behind": (Q - K >= 3, "causal & ~window(3)"),
    "not far ahead": (K - Q <= 4, "causal | window(5)"),
    "between": (sympy.And(Q - K >= 2, Q - K <= 5), "causal & ~window(2) & ~(causal & ~window(6))"),
    "between ahead": (sympy.And(K - Q >= 2, K - Q <= 5), "(causal | window(6)) & ~(causal | window(2))"),
    "more behind": (sympy.And(Q - K >= -2, Q - K <= 7), "(causal | window(3)) & window(8)"),
    "more ahead": (sympy.And(Q - K >= -7, Q - K <= 2), "~(causal & ~window(3)) & window(8)"),
    "around one before": (sympy.Abs(Q - K - 1) <= 3, "(causal | window(3)) & window(5)"),
    "scaled": (3 * Q - 3 * K <= 10, "~(causal & ~window(4))"),
    "half": (Q / 2 <= K, None),
    "half, behind": (sympy.And(K <= Q, Q / 2 <= K), None),
    "around a sum": (sympy.Abs(Q + K) <= 3, None),
    "at a distance": (sympy.Eq(sympy.Abs(Q - K), 3), None),
    "from the end": (sympy.And(K <= Q, K >= TIME - 2), None),
    "one key": (sympy.And(K <= Q, sympy.Eq(K, 3)), None),
    "even sums": (sympy.And(K <= Q, sympy.Eq(sympy.Mod(Q + K, 2), 0)), None),
    "either": (sympy.Xor(K <= Q, K < 3), None),
    "neither": (sympy.Not(sympy.Xor(K <= Q, K < 3)), None),
    **{
        name: (relation(sympy.floor(Q / 5) - sympy.floor(K / 5), n, evaluate=False), said)
        for name, relation, n, said in (
            ("chunks ahead", sympy.Le, 0, "~(causal & ~chunked(5))"),
            ("later chunks", sympy.Lt, 0, "~(causal | chunked(5))"),
            ("a chunk behind too", sympy.Le, 1, None),
        )
    },
}


@pytest.mark.parametrize("kind", CONDITIONS)
def test_a_condition_on_positions_is_a_mask(kind: str) -> None:
    """Which is true where sympy says that the condition is, of whole numbers."""
    condition, said = CONDITIONS[kind]
    found = algebra(condition, Q, K)
    assert (None if found is None else format_expr(found)) == said
    for query, key in itertools.product(range(24), repeat=2) if found is not None else ():
        at = condition.xreplace({Q: sympy.Integer(query), K: sympy.Integer(key)})
        assert bool(at) == bool(holds(found, query, key)), (query, key)


class Packed(nn.Module):
    """transformers' mask of packed sequences: documents begin where a position does not follow the one before."""

    def forward(self, x: Tensor) -> Tensor:
        batch, time = x.shape[:2]
        ids = torch.arange(time)[None].expand(batch, -1)
        document = (torch.diff(ids, prepend=ids[:, :1] - 1, dim=1) != 1).cumsum(-1)
        rows = torch.arange(batch)[:, None, None, None]
        query, key = torch.arange(time)[None, None, :, None], torch.arange(time)[None, None, None, :]
        same = document[rows, query] == document[rows, key]
        mask = (same & (ids[rows, key] <= ids[rows, query])).expand(-1, -1, time, time)
        return nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=mask)


def test_one_document_is_no_documents() -> None:
    assert mask_of(Packed()) == "causal"


class Added(nn.Module):
    """x, and what a function makes of its length."""

    def __init__(self, make: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, self.make(x.shape[1])


def made(make: Callable[[int], Tensor]) -> tuple[Positions, Value]:
    program = export(Added(make), {"x": torch.randn(3, 7, 4)}, {"x": ("batch", "time", None)})
    return Positions(program), program.results[1][1]


def test_numbers_and_positions() -> None:
    positions, value = made(lambda time: torch.tensor(2.0).sqrt() * torch.ones(4))
    assert positions.scalar(value) == pytest.approx(2**0.5, rel=1e-6)
    positions, value = made(lambda time: (torch.ones(2, time).cumsum(1)[:1] + 1).long())
    assert positions.arange(value) == 2
    assert positions.scalar(value) is None
    positions, value = made(lambda time: torch.arange(time) // 2)
    assert positions.arange(value) is None


SHORT = torch.ones(16)


def test_tables_that_hold_fewer_positions_than_are_tried() -> None:
    """They are read by index, which no length that is known bounds."""
    positions, value = made(lambda time: SHORT[torch.arange(time)])
    assert positions.scalar(value) == 1
    positions, value = made(lambda time: (SHORT.cumsum(0).long() + 1)[torch.arange(time)])
    assert positions.arange(value) == 2
    assert mask_of(Masked(lambda q, k: KEPT[q, k])) == "causal"


KEPT = torch.ones(16, 16, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda time: 10000.0 ** (-torch.arange(4) / 4), "10000 ** (-2 * indices(4) / 8)"),
        (lambda time: torch.tensor(0.25) ** torch.arange(1, 5), "2 ** (-8 * (indices(4) + 1) / 4)"),
        (lambda time: 3 * 0.7 ** torch.arange(4), "3 * 0.7 ** indices(4)"),
        (lambda time: 1 - 0.25 * torch.arange(4), "1 + -0.25 * indices(4)"),
        (lambda time: torch.tensor([1.0, 0.5, 0.25, 0.126]), None),
        (lambda time: torch.tensor([1.0, 0.5]), None),
        (lambda time: torch.tensor([1.0, 0.5, float("inf")]), None),
    ],
)
def test_a_series_has_a_formula(make: Callable[[int], Tensor], expected: str | None) -> None:
    positions, value = made(make)
    found = positions.vector(value)
    assert (None if found is None else format_expr(found)) == expected


class Turned(nn.Module):
    """A head turned by angles, its tables made on the way or kept."""

    def __init__(self, waves: Tensor, pairing: str, factor: float = 1.0, first: int = 0, kept: int = 0) -> None:
        super().__init__()
        self.register_buffer("waves", waves)
        self.pairing, self.factor, self.first, self.kept = pairing, factor, first, kept
        if kept:
            cos, sin = self.tables(kept)
            self.register_buffer("cos", cos)
            self.register_buffer("sin", sin)

    def tables(self, time: int) -> tuple[Tensor, Tensor]:
        angles = torch.outer(torch.arange(time).float() + self.first, self.waves)
        if self.pairing == "halves":
            angles = torch.cat([angles, angles], -1)
        elif self.pairing == "interleaved":
            angles = angles.repeat_interleave(2, -1)
        return angles.cos() * self.factor, angles.sin() * self.factor

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = (self.cos, self.sin) if self.kept else self.tables(x.shape[1])
        return x * cos[: x.shape[1]] + x * sin[: x.shape[1]]


def turned(module: nn.Module) -> Rotary | None:
    width = (2 if module.pairing else 1) * len(module.waves)
    program = export(module.eval(), {"x": torch.randn(3, 7, width)}, {"x": ("batch", "time", None)})
    positions, value = Positions(program), program.results[0][1]
    cos, sin = (next(v for v in product.operands() if positions.constant(v)) for product in value.operands())
    found = rotary(positions, cos, sin)
    assert rotary(positions, sin, cos) is None
    return found


@pytest.mark.parametrize("pairing", ["halves", "interleaved", None])
@pytest.mark.parametrize("kept", [0, 64])
def test_rotary_tables_are_read(pairing: str | None, kept: int) -> None:
    waves = 500_000.0 ** (-torch.arange(8) / 8)
    found = turned(Turned(waves, pairing or "", factor=1.25, kept=kept))
    assert found is not None
    assert (found.pairing, found.dims, found.factor, found.offset) == (pairing, 16, 1.25, 0)
    assert torch.allclose(found.frequencies, waves.double(), rtol=1e-6, atol=found.rounding)


def test_a_table_that_turns_by_other_angles_is_none() -> None:
    module = Turned(0.1 ** torch.arange(4), "halves", kept=64)
    assert turned(module) is not None
    module.cos[50, 2] += 0.1
    assert turned(module) is None


SCALINGS = {
    "default": ({}, {}),
    "linear": ({"factor": 4.0}, {"scaling": "linear(factor: 4)"}),
    "llama3": (
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        {"scaling": "llama3(factor: 8, low: 1, high: 4, original: 8192)"},
    ),
    "yarn": (
        {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096},
        {"scaling": "yarn(factor: 32, original: 4096)"},
    ),
    "sharp yarn": (
        {"factor": 32.0, "attention_factor": 1.0, "truncate": False, "original_max_position_embeddings": 4096},
        {"scaling": "yarn(factor: 32, original: 4096, mscale: 0, truncate: 0)"},
    ),
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_scaling_is_found_again(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    numbers, expected = SCALINGS[kind]
    name = kind.split()[-1]
    parameters = {"rope_type": name, "rope_theta": 150000.0, **numbers}
    config = transformers.LlamaConfig(
        hidden_size=512, num_attention_heads=8, max_position_embeddings=131_072, rope_parameters=parameters
    )
    if name == "default":
        waves, factor = 150_000.0 ** (-torch.arange(32) / 32), 1.0
    else:
        waves, factor = functions[name](config, "cpu")
    found = turned(Turned(waves, "halves", factor=factor))
    assert found is not None
    for hints in ({}, parameters):
        told = options(found, hints)
        assert told is not None
        assert {k: format_expr(v) for k, v in told.items()} == {"theta": "150000", **expected}


def test_frequencies_without_a_formula_have_no_options() -> None:
    """Whatever the configuration says; with a theta of 1 it says nothing."""
    found = turned(Turned(torch.tensor([1.0, 0.5, 0.3, 0.01]), "halves"))
    assert found is not None
    assert options(found) is None
    assert options(found, {"rope_theta": 1.0, "factor": 4.0}) is None


def test_tables_of_rounded_angles_are_no_rope() -> None:
    class Rounded(Turned):
        def tables(self, time: int) -> tuple[Tensor, Tensor]:
            angles = torch.outer(torch.arange(time).float(), self.waves).repeat(1, 2).bfloat16()
            return angles.float().cos(), angles.float().sin()

    assert turned(Rounded(0.3 ** torch.arange(4), "halves")) is None


@pytest.mark.parametrize(
    ("number", "within", "expected"),
    [
        (1 / 3, 1e-2, 0.33),
        (2.0000001, 1e-6, 2),
        (-499_999.9, 1e-6, -500_000),
        (0.1 + 0.2, 0.0, 0.30000000000000004),
        (float("inf"), 1e-6, float("inf")),
    ],
)
def test_the_shortest_number_near_one(number: float, within: float, expected: float) -> None:
    assert shortest(number, within) == expected


CHAINS: dict[str, Callable[[int], Tensor]] = {
    "cut and merged": lambda time: torch.arange(24).view(4, 6).reshape(2, 12).t().reshape(3, 8)[:, 1::3],
    "merged with positions": lambda time: (torch.arange(time)[:, None] * 4 + torch.arange(4)).flatten(),
    "repeated": lambda time: torch.arange(time)[:, None].repeat(1, 3) + torch.arange(3).repeat(1) * 10,
    "stacked": lambda time: torch.stack([torch.arange(time), -torch.arange(time)], -1).flatten(),
    "joined": lambda time: torch.cat([torch.arange(5) * 2, torch.arange(time), torch.full((2,), 9)]),
    "chosen": lambda time: torch.where(torch.arange(time) % 3 == 1, torch.arange(time) ** 2, -1).clamp(max=20),
    "buckets": lambda time: (torch.arange(time)[:, None] - torch.arange(time)).abs().clamp(max=4) // 2,
    "gathered": lambda time: torch.arange(100).mul(7).remainder(11)[torch.arange(time) - 3],
    "product": lambda time: torch.einsum("i,j->ji", torch.arange(time).float(), torch.tensor([1.0, 0.3, 0.1])),
    "column and row": lambda time: torch.tensor([[1.0], [0.3]]) @ torch.arange(time).float()[None],
    "turned around": lambda time: torch.arange(time).flip(0) + torch.arange(3)[:, None].roll(1, 0),
    "parts": lambda time: torch.arange(10)[:, None].expand(10, time).split(4)[1] + torch.arange(time),
    "logarithms": lambda time: torch.log2(torch.arange(1, time + 1).float()).floor() - torch.arange(time).sqrt(),
    "relative": lambda time: torch.arange(1 - time, 1)[None] * torch.ones(2, 1),
    "largest": lambda time: torch.arange(time) - torch.arange(time).max(),
    "kept axes": lambda time: grid(time).amax(-1, keepdim=True) - grid(time).amin(0, keepdim=True),
    "rounded to nought": lambda time: ((torch.arange(time) - 3) / 2).to(torch.int64),
}


def line(time: int) -> Tensor:
    """0.5 and 1 more at each position."""
    return torch.arange(time) + 0.5


def grid(time: int) -> Tensor:
    """A table [time, 4] of whole numbers."""
    return torch.arange(time)[:, None] * 10 + torch.arange(4)


def even(time: int) -> Tensor:
    return torch.arange(time) % 2 == 0


def far(time: int) -> Tensor:
    return torch.arange(time) > 3


def turns(time: int) -> Tensor:
    return torch.polar(torch.full((time,), 2.0), line(time))


PAIR = torch.tensor([1.0, 0.3])
POLES = torch.polar(PAIR, PAIR)
aten = torch.ops.aten
FORMULAS: dict[str, Callable[[int], Tensor]] = {
    "__and__": lambda time: even(time) & far(time),
    "__or__": lambda time: even(time) | far(time),
    "__xor__": lambda time: even(time) ^ far(time),
    "_to_copy": lambda time: aten._to_copy(line(time), dtype=torch.int64),
    "_unsafe_view": lambda time: aten._unsafe_view(grid(time), [time, 2, 2]),
    "abs": lambda time: (line(time) - 3).abs(),
    "add": lambda time: torch.add(line(time), torch.arange(time), alpha=3) + 2,
    "alias": lambda time: aten.alias(line(time)),
    "all": lambda time: far(time)[:, None].expand(-1, 3).all(-1),
    "amax": lambda time: line(time).amax(0) - grid(time).amax(-1),
    "amin": lambda time: (2 - line(time)).amin(),
    "any": lambda time: far(time)[:, None].expand(-1, 3).any(-1),
    "arange": lambda time: torch.arange(3, 3 + 2 * time, 2),
    "bitwise_and": lambda time: torch.bitwise_and(even(time), far(time)),
    "bitwise_not": lambda time: torch.bitwise_not(even(time)),
    "bitwise_or": lambda time: torch.bitwise_or(even(time), far(time)),
    "bitwise_xor": lambda time: torch.bitwise_xor(even(time), far(time)),
    "bmm": lambda time: torch.bmm(line(time)[None, :, None], PAIR[None, None]),
    "broadcast_to": lambda time: line(time).broadcast_to(2, time),
    "cat": lambda time: torch.cat([line(time), -line(time)]) + torch.cat([line(time)] * 2),
    "ceil": lambda time: line(time).ceil(),
    "chunk": lambda time: grid(time).chunk(2, -1)[1],
    "clamp": lambda time: line(time).clamp(2, 5) + line(time).clamp(max=torch.arange(time)),
    "clamp_max": lambda time: line(time).clamp_max(3),
    "clamp_min": lambda time: line(time).clamp_min(3),
    "clip": lambda time: line(time).clip(min=2),
    "clone": lambda time: line(time).clone(),
    "concat": lambda time: torch.concat([line(time), line(time) * 2, line(time) * 3]),
    "concatenate": lambda time: torch.concatenate([grid(time), grid(time) * 2], 1),
    "contiguous": lambda time: grid(time).t().contiguous(),
    "cos": lambda time: line(time).cos(),
    "cumsum": lambda time: torch.ones(time).cumsum(0) + line(time)[:, None].expand(time, time).cumsum(1)[:, 0],
    "detach": lambda time: line(time).detach(),
    "diff": lambda time: (
        torch.diff(torch.arange(time) ** 2) + torch.diff(torch.arange(time), prepend=torch.zeros(1))[1:]
    ),
    "div": lambda time: (
        line(time) / 3 + torch.div(line(time), 2, rounding_mode="trunc") + line(time).div(-3, rounding_mode="floor")
    ),
    "einsum": lambda time: torch.einsum("i,j->ji", line(time), PAIR),
    "embedding": lambda time: torch.nn.functional.embedding(torch.arange(time) % 4, torch.arange(12.0).view(4, 3)),
    "eq": lambda time: torch.arange(time) == 3,
    "exp": lambda time: (-line(time)).exp(),
    "exp2": lambda time: (-line(time)).exp2(),
    "expand": lambda time: line(time).expand(3, -1),
    "expand_as": lambda time: line(time)[:, None].expand_as(grid(time)),
    "eye": lambda time: torch.eye(4),
    "flatten": lambda time: grid(time).flatten(),
    "flip": lambda time: grid(time).flip(0, 1),
    "floor": lambda time: (line(time) / 2).floor(),
    "floor_divide": lambda time: torch.arange(time) // 3,
    "full": lambda time: torch.full((time,), 2.5) + torch.full(fill_value=2, size=(time,)),
    "full_like": lambda time: torch.full_like(line(time), 2.5),
    "gather": lambda time: grid(time).gather(1, torch.arange(time)[:, None] % 4),
    "ge": lambda time: torch.arange(time) >= 3,
    "ger": lambda time: torch.ger(line(time), PAIR),
    "gt": lambda time: torch.arange(time) > 3,
    "imag": lambda time: turns(time).imag,
    "index": lambda time: (torch.arange(100) * 7)[torch.arange(time) - 3],
    "index_select": lambda time: grid(time).index_select(1, torch.arange(2, 4)),
    "item": lambda time: torch.arange(10).split([4, 6])[1] + torch.arange(12).chunk(2)[1],
    "le": lambda time: torch.arange(time) <= 3,
    "lift_fresh_copy": lambda time: grid(time)[:, [0, 2]],
    "linspace": lambda time: torch.linspace(0, 3, 8),
    "log": lambda time: line(time).log(),
    "log10": lambda time: line(time).log10(),
    "log1p": lambda time: line(time).log1p(),
    "log2": lambda time: line(time).log2(),
    "logical_and": lambda time: torch.logical_and(torch.arange(time), even(time)),
    "logical_not": lambda time: torch.logical_not(torch.arange(time)),
    "logical_or": lambda time: torch.logical_or(even(time), torch.arange(time) // 3),
    "logical_xor": lambda time: torch.logical_xor(even(time), far(time)),
    "lt": lambda time: torch.arange(time) < 3,
    "mT": lambda time: grid(time).mT,
    "masked_fill": lambda time: line(time).masked_fill(even(time), -1),
    "matmul": lambda time: line(time)[:, None] @ PAIR[None],
    "max": lambda time: line(time).max() + torch.max(line(time), 5 - line(time)),
    "maximum": lambda time: torch.maximum(line(time), 5 - line(time)),
    "mean": lambda time: line(time)[:, None].expand(-1, 3).mean(-1),
    "min": lambda time: line(time).min() + torch.min(line(time), 5 - line(time)),
    "minimum": lambda time: torch.minimum(line(time), 5 - line(time)),
    "mm": lambda time: torch.mm(line(time)[:, None], PAIR[None]),
    "mul": lambda time: line(time) * torch.arange(time) * 2,
    "narrow": lambda time: grid(time).narrow(1, 1, 2),
    "ne": lambda time: torch.arange(time) != 3,
    "neg": lambda time: -line(time),
    "new_full": lambda time: line(time).new_full((time,), 2.5),
    "new_ones": lambda time: line(time).new_ones(time),
    "new_zeros": lambda time: line(time).new_zeros(time),
    "numpy_T": lambda time: grid(time).T,
    "ones": lambda time: torch.ones(time),
    "ones_like": lambda time: torch.ones_like(line(time)),
    "outer": lambda time: torch.outer(line(time), PAIR),
    "permute": lambda time: grid(time)[None].permute(2, 0, -2),
    "polar": lambda time: torch.view_as_real(turns(time))[:, 0],
    "positive": lambda time: +line(time),
    "pow": lambda time: 0.5 ** torch.arange(time) + line(time) ** 2,
    "ravel": lambda time: grid(time).ravel(),
    "real": lambda time: turns(time).real,
    "reciprocal": lambda time: line(time).reciprocal(),
    "remainder": lambda time: (torch.arange(time) - 3) % 4,
    "repeat": lambda time: grid(time).repeat(2, 1) - line(time).repeat(8).view(-1, 4),
    "repeat_interleave": lambda time: grid(time).repeat_interleave(2, 1),
    "reshape": lambda time: grid(time).reshape(2 * time, 2),
    "reshape_as": lambda time: grid(time).reshape_as(grid(time).view(time, 2, 2)),
    "roll": lambda time: grid(time).roll((1, 2), (0, 1)),
    "rsqrt": lambda time: line(time).rsqrt(),
    "rsub": lambda time: torch.rsub(line(time), 1, alpha=2),
    "scalar_tensor": lambda time: line(time) * torch.scalar_tensor(2.0),
    "select": lambda time: grid(time)[:, -1] + grid(time)[:, 1],
    "sign": lambda time: (line(time) - 3).sign(),
    "sin": lambda time: line(time).sin(),
    "slice": lambda time: grid(time)[:, -3:][:, ::2],
    "split": lambda time: grid(time).split(3, 1)[1],
    "split_with_sizes": lambda time: torch.split_with_sizes(grid(time), [1, 3], 1)[1],
    "sqrt": lambda time: line(time).sqrt(),
    "square": lambda time: line(time).square(),
    "squeeze": lambda time: line(time)[:, None].squeeze(-1),
    "stack": lambda time: torch.stack([line(time), -line(time), line(time) * 2], 1),
    "sub": lambda time: torch.sub(line(time), torch.arange(time), alpha=2),
    "sum": lambda time: torch.ones(time, 3).sum(-1) * line(time),
    "swapaxes": lambda time: grid(time).swapaxes(0, 1),
    "swapdims": lambda time: grid(time).swapdims(0, -1),
    "t": lambda time: grid(time).t(),
    "tile": lambda time: grid(time).tile(2, 1) + grid(time).tile(2).view(-1, 4),
    "to": lambda time: line(time).to(torch.int64),
    "transpose": lambda time: grid(time).transpose(0, -1),
    "tril": lambda time: torch.ones(time, time).tril(-1),
    "triu": lambda time: torch.ones(time, time, dtype=torch.bool).triu(1),
    "true_divide": lambda time: torch.true_divide(torch.arange(time), 4),
    "trunc": lambda time: (line(time) - 3).trunc(),
    "type_as": lambda time: torch.arange(time).type_as(line(time)),
    "unflatten": lambda time: grid(time).unflatten(1, (2, 2)),
    "unsqueeze": lambda time: line(time).unsqueeze(0),
    "view": lambda time: grid(time).view(time, 2, 2),
    "view_as": lambda time: line(time).view_as(line(time)),
    "view_as_real": lambda time: torch.view_as_real(turns(time)),
    "where": lambda time: torch.where(even(time), line(time), -1.0),
    "zeros": lambda time: torch.zeros(time),
    "zeros_like": lambda time: torch.zeros_like(line(time)),
}


ALONE = {"lift_fresh_copy"}
"""Rows that are recorded alone: a tensor that is made of a list changes the recording."""


class Made(nn.Module):
    """x, and everything that is made of its length."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x + 1, *(make(x.shape[1]) for name, make in FORMULAS.items() if name not in ALONE)


@pytest.fixture(scope="module")
def formulas() -> tuple[Positions, dict[str, Value]]:
    program = export(Made(), {"x": torch.randn(3, 7, 4)}, {"x": ("batch", "time", None)}, types=False)
    names = [name for name in FORMULAS if name not in ALONE]
    return Positions(program), dict(zip(names, (value for _, value in program.results[1:]), strict=True))


def confirmed(positions: Positions, value: Value, make: Callable[[int], Tensor]) -> None:
    """Hold the formula of a value against its numbers at every index, at lengths that were not exported."""
    formula = positions.formula(value)
    assert formula is not None
    for time in (4, 5, 12):
        computed = positions.at(value, time)
        assert computed.equal(make(time))
        for index in itertools.product(*map(range, computed.shape)):
            at = formula.xreplace(
                {TIME: sympy.Integer(time), **{axis(n): sympy.Integer(k) for n, k in enumerate(index)}}
            )
            at = at.xreplace({r: positions.elements.element(r) for r in at.atoms(sympy.core.function.AppliedUndef)})
            assert float(bool(at) if elements.logical(at) else at) == pytest.approx(
                float(computed[index]), rel=1e-5, abs=1e-5
            ), (formula, index)


@pytest.mark.parametrize("name", FORMULAS)
def test_an_operator_on_positions_is_read(name: str, formulas: tuple[Positions, dict[str, Value]]) -> None:
    positions, value = made(FORMULAS[name]) if name in ALONE else (formulas[0], formulas[1][name])
    read, todo = set[str](), [value]
    for operand in todo:
        read.add(operand.op)
        todo += operand.operands()
    assert name in read
    confirmed(positions, value, FORMULAS[name])


def test_every_operator_on_positions_has_a_row() -> None:
    known = {*elements.NUMBERS, *elements.TRUTHS, *elements.SAME, *elements.RESHAPES, *elements.OPERATORS}
    assert known == {*FORMULAS}


UNREAD: dict[str, Callable[[int], Tensor]] = {
    "no number": lambda time: torch.full((time,), float("nan")),
    "bits": lambda time: torch.arange(time) & 3,
    "rolled as one": lambda time: grid(time).roll(1),
    "each as often as a tensor says": lambda time: torch.arange(4).repeat_interleave(torch.arange(4), output_size=6),
    "axes apart": lambda time: torch.arange(24).view(2, 3, 4)[torch.arange(2), :, torch.arange(2)],
    "true ones": lambda time: torch.arange(8)[torch.arange(8) % 2 == 0],
    "second differences": lambda time: torch.diff(line(time) ** 2, 2),
    "squares summed": lambda time: (line(time) ** 2).cumsum(0),
    "largest of waves": lambda time: line(time).sin().amax(),
    "any of some": lambda time: even(time).any(),
    "sum over time": lambda time: (line(time)[:, None] * PAIR).sum(0),
    "product over time": lambda time: grid(time).float().t() @ line(time)[:, None],
    "of vectors": lambda time: PAIR @ PAIR,
    "two sums": lambda time: torch.einsum("ij,ij->", grid(4).float(), grid(4).float()),
    "sorted": lambda time: line(time).sort(descending=True)[0],
    "a matrix of two numbers": lambda time: torch.ones(5, 5).tril().triu(-1) + torch.ones(5, 5).triu(3),
    "complex numbers": lambda time: torch.complex(line(time), line(time)).real,
    "sums of complex numbers": lambda time: (turns(time) + torch.polar(torch.ones(time), -line(time))).real,
    "complex numbers times i": lambda time: (turns(time) * 1j).real,
    "kept complex numbers": lambda time: POLES.real * torch.arange(time)[:, None],
    "none": lambda time: torch.cat([torch.zeros(0), line(time)]),
    "largest with its place": lambda time: grid(time).max(-1).values,
    "cut to whole threes": lambda time: torch.arange(time)[: time - time % 3].view(-1, 3),
    "many choices": lambda time: sum(
        (torch.where(torch.arange(time) % n == 0, n, 0) for n in range(2, 11)), torch.zeros(time)
    ),
}
"""What has no formula, or one that is nothing but a table."""


class Unread(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x + 1, *(make(x.shape[1]) for make in UNREAD.values())


def test_what_has_no_formula_is_left_as_it_is_computed() -> None:
    program = export(Unread(), {"x": torch.randn(3, 7, 4)}, {"x": ("batch", "time", None)}, types=False)
    positions = Positions(program)
    for (name, make), (_, value) in zip(UNREAD.items(), program.results[1:], strict=True):
        for time in (4, 12):
            assert torch.equal(positions.at(value, time), make(time)) or name == "no number", name
        if positions.formula(value) is not None:
            confirmed(positions, value, make)


@pytest.mark.parametrize("kind", CHAINS)
def test_a_formula_says_what_is_computed(kind: str) -> None:
    confirmed(*made(CHAINS[kind]), CHAINS[kind])
