"""Positions that a spec declares: blocks that turn queries and keys or add to their scores, in the slot `position`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_tools
import pytest
import torch
from near import distance
from torch import Tensor
from torch_emit.emitted import close, spec

import archdsl
from archdsl.backends.torch import emit
from archdsl.diagnostics import ArchError
from archdsl.run.load import load_source

TURNED = """
# The halves of a head, turned in pairs.
inline block turned(x: [..., time, head_dim], angle: [...]) -> [..., time, head_dim] {
  a, b = x -> chunk(2)
  c = cos(angle) -> cast_like(x)
  s = sin(angle) -> cast_like(x)
  return concat(a * c - b * s, b * c + a * s)
}
"""

POSITIONS = {
    "strided": """
inline block strided(stride: number = 0.5, theta: positive = 10_000)
                    (x: [..., time, head_dim]) -> [..., time, head_dim] {
  waves = theta ** (-2 * indices(head_dim / 2) / head_dim)
  return turned(x, unsqueeze(indices(time) * stride, 1) * waves)
}""",
    "inverse": """
inline block inverse(theta: positive = 10_000)(x: [..., time, head_dim]) -> [..., time, head_dim] {
  waves = theta ** (-2 * indices(head_dim / 2) / head_dim)
  return turned(x, unsqueeze(indices(time), 1) * -waves)
}""",
    # The fastest pairs alone are turned (Barbero et al., 2024).
    "proportional": """
inline block proportional(part: share = 0.5)(x: [..., time, head_dim]) -> [..., time, head_dim] {
  pair = indices(head_dim / 2)
  waves = where(pair < part * head_dim / 2, 10_000 ** (-2 * pair / head_dim), 0)
  return turned(x, unsqueeze(indices(time), 1) * waves)
}""",
    # Each head by a theta of its own.
    "several": """
inline block several(x: [batch, heads, time, head_dim]) -> [batch, heads, time, head_dim] {
  theta = 10 ** ((indices(heads) + 1) -> unsqueeze(1) -> unsqueeze(1))
  waves = theta ** (-2 * indices(head_dim / 2) / head_dim)
  return turned(x, unsqueeze(indices(time), 1) * waves)
}""",
    # What is far decays (Sun et al., 2022).
    "xpos": """
inline block xpos(base: positive = 4)(q: [..., time, head_dim], k: [..., source, head_dim])
                 -> (q: [..., time, head_dim], k: [..., source, head_dim]) {
  pair = 2 * indices(head_dim / 2) / head_dim
  at = indices(time) -> unsqueeze(1)
  of = indices(source) -> unsqueeze(1)
  up = (((pair + 0.4) / 1.4) ** (at / base)) -> tile(2) -> cast_like(q)
  down = (((pair + 0.4) / 1.4) ** (-of / base)) -> tile(2) -> cast_like(k)
  return turned(q, at * 10_000 ** -pair) * up, turned(k, of * 10_000 ** -pair) * down
}""",
    # Content is the length of each pair, the position its angle (Gopalakrishnan et al., 2025).
    "pope": """
inline block pope(heads: size)(q: [batch, heads, time, head_dim], k: [batch, heads, source, head_dim])
                 -> (q: [batch, heads, time, 2 * head_dim], k: [batch, heads, source, 2 * head_dim]) {
  param shift: [heads, 1, head_dim] = normal(0.5)
  waves = 10_000 ** (-1 * indices(head_dim) / head_dim)
  a = (unsqueeze(indices(time), 1) * waves) -> cast_like(q)
  b = ((unsqueeze(indices(source), 1) * waves) -> cast_like(k)) + shift
  return concat(softplus(q) * cos(a), softplus(q) * sin(a)), concat(softplus(k) * cos(b), softplus(k) * sin(b))
}""",
    # Positions are counted by gates, back from the query (Golovneva et al., 2024).
    "cope": """
inline block cope(mask: mask, most: size = 5)(q: [batch, heads, time, head_dim], k: [batch, heads, source, head_dim])
                 -> [batch, heads, time, source] {
  param table: [head_dim, most] = normal(0.5)
  gates = where(mask, sigmoid(matmul(q, transpose(k, -1, -2)) / sqrt(head_dim)), 0)
  far = minimum(gates -> flip(-1) -> cumsum -> flip(-1), most - 1)
  below = gather(matmul(q, table), floor(far) -> cast(int))
  above = gather(matmul(q, table), ceil(far) -> cast(int))
  return below + (above - below) * (far - floor(far))
}""",
    # The distance as a part of the query's position, through a small network (Li et al., 2023).
    "fire": """
inline block fire(heads: size, hidden: size = 8)(i: int[time], j: int[source]) -> [heads, time, source] {
  param c: [1, 1] = constant(0.7)
  far = log(c * maximum(unsqueeze(i, 1) - j, 0) + 1) / log(c * maximum(unsqueeze(i, 1), 4) + 1)
  return far -> unsqueeze(-1) -> linear(hidden) as up -> relu -> linear(heads) as down -> permute(2, 0, 1)
}""",
    "dynamic": """
inline block dynamic(heads: size, hidden: size = 8)(i: int[time], j: int[source]) -> [heads, time, source] {
  far = (unsqueeze(i, 1) - j) -> cast(float)
  return unsqueeze(sign(far) * log(abs(far) + 1), -1) -> linear(hidden) as up -> silu -> linear(heads) as down
         -> permute(2, 0, 1)
}""",
}

Weights = dict[str, Tensor]
Turn = Callable[[Tensor, Tensor, Weights], tuple[Tensor, Tensor, Tensor | None]]
PLACE = torch.arange(7)
FAR = (PLACE[:, None] - PLACE[None, :]).float()


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Pairs of channels as complex numbers, turned."""
    pairs = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones(()), angle.float())
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def waves(theta: float = 10_000.0, dims: int = 6) -> Tensor:
    return theta ** -(torch.arange(0, dims, 2) / dims)


def by_rope(angle: Tensor) -> Turn:
    return lambda q, k, w: (rotated(q, angle), rotated(k, angle), None)


def xpos(q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor, None]:
    grown = (torch.arange(0, 6, 2) / 6 + 0.4) / 1.4
    up = grown ** (PLACE[:, None] / 4)
    q, k = (rotated(x, PLACE[:, None] * waves()) for x in (q, k))
    return q * torch.cat((up, up), -1), k / torch.cat((up, up), -1), None


def pope(q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor, None]:
    angle = PLACE[:, None] * 10_000 ** -(torch.arange(6) / 6)
    m, n = torch.nn.functional.softplus(q), torch.nn.functional.softplus(k)
    turned = [torch.polar(m, angle.expand_as(m)), torch.polar(n, angle + w["shift"])]
    a, b = (torch.cat((x.real, x.imag), -1) for x in turned)
    return a, b, None


def cope(q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
    gates = torch.sigmoid(q @ k.mT / 6**0.5) * (FAR >= 0)
    bias = torch.zeros_like(gates)
    for j in range(7):
        far = gates[..., j:].sum(-1).clamp(max=4)
        for i, row in enumerate(far.unbind(-1)):
            at, low = q[:, :, i] @ w["table"], row.floor().long()
            low_e, high_e = (at.gather(-1, n[..., None])[..., 0] for n in (low, (low + 1).clamp(max=4)))
            bias[:, :, i, j] = low_e + (high_e - low_e) * (row - low)
    return q, k, bias


def small(x: Tensor, w: Weights, act: Callable[[Tensor], Tensor]) -> Tensor:
    up = act(x[..., None] @ w["up.weight"].T + w["up.bias"])
    return (up @ w["down.weight"].T + w["down.bias"]).permute(2, 0, 1)


def fire(q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
    ends = PLACE[:, None].clamp(min=4)
    far = torch.log(w["c"] * FAR.clamp(min=0) + 1) / torch.log(w["c"] * ends + 1)
    return q, k, small(far, w, torch.relu)


def dynamic(q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
    return q, k, small(FAR.sign() * FAR.abs().log1p(), w, torch.nn.functional.silu)


BY_HAND: dict[str, Turn] = {
    "strided": by_rope(PLACE[:, None] * 0.5 * waves()),
    "inverse": by_rope(-PLACE[:, None] * waves()),
    "proportional": by_rope(PLACE[:, None] * waves() * torch.tensor([1, 1, 0])),
    "several": by_rope(PLACE[:, None] * torch.stack([waves(10.0**n) for n in range(1, 5)])[:, None]),
    "xpos": xpos,
    "pope": pope,
    "cope": cope,
    "fire": fire,
    "dynamic": dynamic,
}


def alone(name: str) -> str:
    """Attention by a position of the table, of tensors with names that positions use themselves."""
    return f"""{TURNED}{POSITIONS[name]}
model m(d = 6)(angle: [batch, 4, time, d], waves: [batch, 4, time, d], pair: [batch, 4, time, d]) {{
  return sdpa(angle, waves, pair, mask: causal, position: {name}) as attention
}}"""


@pytest.mark.parametrize("name", POSITIONS)
def test_a_position_is_what_its_paper_says(name: str) -> None:
    """Both back ends give attention as it is computed by hand; a declaration has at most ten lines."""
    assert len(POSITIONS[name].strip().splitlines()) <= 10
    model = spec(alone(name))
    torch.manual_seed(5)
    made = load_source(emit(model))().eval()
    for weight in made.parameters():
        torch.nn.init.uniform_(weight, 0.1, 1.0)
    q, k, v = (torch.randn(3, 4, 7, 6) for _ in range(3))
    weights = {n.removeprefix("attention.").removeprefix("position."): p.detach() for n, p in made.named_parameters()}
    a, b, bias = BY_HAND[name](q, k, weights)
    scores = a @ b.mT / 6**0.5 + (0 if bias is None else bias)
    wanted = scores.masked_fill(FAR < 0, -torch.inf).softmax(-1) @ v
    with torch.no_grad():
        close(made(q, k, v), wanted)
    given = dict(zip(("angle", "waves", "pair"), (q, k, v), strict=True))
    close(torch.tensor(onnx_tools.run(onnx_tools.onnx_bytes(model, made), given)[0]), wanted)


def layered(name: str, attention: str = "mha(heads: 4)", **more: Any) -> str:
    extra = "".join(f"  {k}: {v}\n" for k, v in more.items())
    return f"""{TURNED}{POSITIONS[name]}
block layer {{
  attention: {attention}
  mask: causal
  position: {name}
  ffn: mlp(hidden: 24)
{extra}}}
model m {{ vocab: 40
  context: 16
  width: 24
  blocks: 2 * layer
  head: lm }}"""


@pytest.mark.parametrize("name", POSITIONS)
def test_a_position_goes_into_the_slot_and_into_steps(name: str) -> None:
    """Layers hand it on, the model is proved causal, and decode steps give what the whole sequence gives."""
    report = archdsl.verify(text=layered(name), seq=12)
    assert report.agrees
    assert (report.no_decode, report.no_torch_decode) == (None, None)


@pytest.mark.parametrize(
    "attention", ["gqa(heads: 4, kv_heads: 2)", "mla(heads: 4, kv_rank: 8, nope_dim: 4, rope_dim: 4, v_dim: 6)"]
)
def test_other_attention_takes_it(attention: str) -> None:
    assert archdsl.verify(text=layered("strided", attention), seq=12).agrees


def test_tables_are_made_once() -> None:
    """What a position makes of places alone is an argument of the layers, as with those of the library."""
    text = archdsl.torch_source(text=layered("xpos"))
    classes = text.split("class ")
    assert [c.split("(")[0] for c in classes if "torch.arange" in c] == ["M"]


REFUSED = {
    "block p(a: [..., time, d], b: [..., time, d], c: [..., d]) { return a + b + c }": "does not act inside attention",
    "block p(x: [..., time, d]) -> [..., d, time] { return x -> transpose(-1, -2) }": "the position `p` gives back",
    "block p(q: [..., time, d], k: [..., source, d]) -> (q: [..., d], k: [..., source, d]) { return q -> mean(-2), k }":
        "the position `p` gives back",
}  # fmt: skip


@pytest.mark.parametrize("block", REFUSED)
def test_what_is_no_position_is_refused(block: str) -> None:
    text = f"{block}\nmodel m(d = 6)(x: [batch, 4, time, d]) {{ return sdpa(x, x, x, position: p) }}"
    with pytest.raises(ArchError, match=REFUSED[block]):
        archdsl.load(text=text)


def test_a_position_of_both_turns_no_part_of_a_head() -> None:
    with pytest.raises(ArchError, match="turns queries and keys together"):
        archdsl.load(text=layered("xpos", "mla(heads: 4, kv_rank: 8, nope_dim: 4, rope_dim: 4, v_dim: 6)"))


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", ["fire", "dynamic"])
def test_a_shared_position_is_applied_once(name: str, inline: bool) -> None:
    """One table for all layers is read once, by the model that owns it; it gives what a table of its own gives each."""
    own = layered(name).replace("inline block " + name, "block " + name)
    shared = (
        (layered(name) if inline else own)
        .replace(f"position: {name}", "position: p")
        .replace("model m", f"let p = shared({name}(heads: 4))\nmodel m")
    )
    assert archdsl.torch_source(text=shared).count("self.p(") == 1
    assert archdsl.verify(text=shared, seq=12).agrees
    one, many = (load_source(archdsl.torch_source(text=text))() for text in (shared, own))
    weights = one.state_dict()
    at = "blocks.{}.attention.position."
    many.load_state_dict(
        {k: weights["p." + k.partition("position.")[2] if "position." in k else k] for k in many.state_dict()}
    )
    tokens = torch.randint(40, (2, 12))
    close(one(tokens), many(tokens), 1e-6)
    one(tokens).square().sum().backward()
    many(tokens).square().sum().backward()
    for key, weight in one.p.named_parameters():
        both = [many.get_parameter(at.format(i) + key).grad for i in range(2)]
        assert distance(weight.grad, both[0] + both[1], least=0.1) < 1e-4, key


# --- T5's bias --------------------------------------------------------------------------------------------------------


def bucket(distance: Tensor, buckets: int, most: int, both: bool) -> Tensor:
    """As T5's own code has it."""
    found, far = torch.zeros_like(distance), -distance
    if both:
        buckets //= 2
        found = (far > 0).long() * buckets
        far = far.abs()
    else:
        far = -far.clamp(max=0)
    exact = buckets // 2
    large = exact + (torch.log(far.float() / exact) / math.log(most / exact) * (buckets - exact)).long()
    return found + torch.where(far < exact, far, large.clamp(max=buckets - 1))


@pytest.mark.parametrize(("mask", "said", "both"), [
    ("full", "", True),
    ("causal", "", False),
    ("causal", ", bidirectional: true", True),
    ("full", ", bidirectional: false", False),
    ("prefix(3) | causal", "", True),
])  # fmt: skip
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (9, 5), (4, 3), (7, 40)])
def test_the_bias_of_t5(buckets: int, most: int, mask: str, said: str, both: bool) -> None:
    text = f"""model m(q: [batch, 3, time, 4]) {{
      let p = shared(relative_bias(buckets: {buckets}, max_distance: {most}{said}))
      return sdpa(q, q, q, position: p, mask: {mask}) -> sdpa(q, q, position: p, mask: {mask})
    }}"""
    made = load_source(archdsl.torch_source(text=text, allow_noncausal=True))()
    (table,) = made.parameters()
    assert table.shape == (buckets, 3)
    place = torch.arange(60)
    got = made.p(place, place)
    torch.testing.assert_close(got, table[bucket(place[:, None] - place, buckets, most, both)].permute(2, 0, 1))
    assert got.is_contiguous()  # as fused kernels take it


def test_a_shared_position_is_told_the_heads_by_its_first_use() -> None:
    body = "{{ let p = shared(relative_bias)  return q -> mha(heads: 2, position: p) -> {} }}"
    text = f"model m(q: [batch, time, 8]) {body}"
    made = archdsl.to_torch(text=text.format("gqa(heads: 2, kv_heads: 1, position: p)"), allow_noncausal=True)
    assert made.p.weight.shape == (32, 2)
    with pytest.raises(ArchError, match="for `heads: 2`; here it is given `heads: 4`") as caught:
        archdsl.load(text=text.format("mha(heads: 4, position: p)"))
    assert caught.value.diagnostics[0].code == "E0305"
    with pytest.raises(ArchError, match="for `sides: 2`; here it is given `sides: 1`"):
        archdsl.load(text=text.format("mha(heads: 2, mask: causal, position: p)"))


SHARED = """
block turn(TENSORS) -> (TENSORS) {
  c = cos(unsqueeze(indices(time), 1) * 0.01)CAST
  return VALUES
}
block layer(p) { attention: gqa(heads: 4, kv_heads: 2)  mask: causal  position: p  ffn: mlp(hidden: 8)  norm: rmsnorm }
model m { vocab: 64  context: 64  width: 32  blocks: 2 * layer(p: shared(turn))  head: lm }
"""


@pytest.mark.parametrize(
    ("tensors", "values", "cast", "message", "help_"),
    [
        ("q", "q * c", "", "would turn queries of 4 heads and keys of 2", "`block turn(q: […], k: […])"),
        ("q k", "q * c, k * c", "", "its types at its first use, for float[", "`x -> cast_like(y)`"),
        ("q k", "q * c, k * c", "  c = c -> cast_like(q)", "", ""),
    ],
)
def test_shared_positions_where_keys_have_fewer_heads(
    tensors: str, values: str, cast: str, message: str, help_: str
) -> None:
    """Each refusal says what helps, and what it says helps."""
    shapes = ", ".join(f"{t}: [batch, {t}_heads, time, head_dim]" for t in tensors.split())
    text = SHARED.replace("TENSORS", shapes).replace("VALUES", values).replace("CAST", cast)
    if not message:
        assert archdsl.verify(text=text).agrees
        return
    with pytest.raises(ArchError) as caught:
        archdsl.load(text=text)
    first = caught.value.diagnostics[0]
    assert first.code == "E0305"
    assert message in first.message
    assert help_ in first.help


OF_PLACES = {
    "t5": ("relative_bias", ""),
    "rows": ("near", """block near(heads: size)(i: int[time], j: int[source]) -> [heads, time, source] {
      param table: [60, heads] = normal(1)
      return table[unsqueeze(i, 1) - j + 30] -> permute(2, 0, 1)
    }"""),
    "columns": ("near", """block near(heads: size)(i: int[time], j: int[source]) -> [heads, time, source] {
      param table: [heads, 60] = normal(1)
      return table[:, unsqueeze(i, 1) - j + 30]
    }"""),
    "places": ("near", """block near(heads: size)(i: int[time], j: int[source]) -> [heads, time, source] {
      param slope: [heads, 1, 1] = normal(1)
      return slope * log(1 + j)[minimum(j, unsqueeze(i, 1))]
    }"""),
}  # fmt: skip


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", OF_PLACES)
def test_a_table_of_distances_in_steps(name: str, shared: bool) -> None:
    """It is read for the new positions alone, by the block's one method, also where prompts are padded."""
    position, block = OF_PLACES[name]
    given = f"let p = shared({position})" if shared else f"let p = {position}"
    text = f"""{block}
    block layer {{ attention: mha(heads: 2) mask: causal position: p ffn: mlp(hidden: 8) }}
    {given}
    model m {{ vocab: 19 context: 24 width: 8 blocks: 2 * layer head: lm }}"""
    report = archdsl.verify(text=text, seq=16)
    assert report.agrees
    assert (report.no_decode, report.no_torch_decode) == (None, None)
    if name in ("t5", "columns"):  # of the others each step of ONNX makes all pairs
        assert {"left", "right"} <= report.decode.keys()
    if shared:
        source = archdsl.torch_source(text=text, features=["generate"])
        assert "self.p(positions, keys" in source


@pytest.mark.parametrize(
    ("looked_up", "whole"),
    [
        ("x + (indices(n) -> embedding(n, 4) as table)", True),
        ("x + (indices(2 * n - n) -> embedding(n, 4) as table)", True),
        ("x + (indices(n) -> embedding(n + 1, 4) as table)", False),
        ("x + ((indices(n) + 1) -> embedding(n + 1, 4) as table)", False),
        ("x + (indices(n) -> flip(0) -> embedding(n, 4) as table)", False),
        ("x + (indices(time) -> embedding(n, 4) as table)", False),
        ("x + ((indices(n) * 1 + 0 * indices(n)) -> embedding(n, 4) as table)", False),
        ("x * 2 + (indices(n) -> embedding(n, 4) as table) * (indices(n) -> unsqueeze(1))", True),
    ],
)
def test_all_rows_of_a_table_in_their_order_are_its_weight(looked_up: str, whole: bool) -> None:
    time = "time" if "time" in looked_up else "n"
    text = f"model m(n = 6)(x: [batch, {time}, 4]) {{ assert {time} <= n  return {looked_up} }}"
    model = archdsl.load(text=text)
    source = emit(model)
    assert ("self.table.weight" in source.partition("def forward")[2]) == whole
    made: Any = load_source(source)()
    x = torch.randn(2, 6, 4)
    rows = made.table.weight.detach()
    order = torch.arange(6) + ("+ 1" in looked_up.partition("->")[0])
    expected = rows[order.flip(0) if "flip" in looked_up else order]
    close(made(x), 2 * x + expected * torch.arange(6.0)[:, None] if "x * 2" in looked_up else x + expected)


def test_a_table_that_is_the_result_is_no_weight() -> None:
    """Who writes to a result writes to no weight; and a plan of tensor parallelism acts on what modules return."""
    made: Any = archdsl.to_torch(text="model m(n = 6)(x: [n, 4]) { return x, indices(n) -> embedding(n, 4) as table }")
    before = made.table.weight.detach().clone()
    with torch.no_grad():
        made(torch.zeros(6, 4))[1].add_(1)
    close(made.table.weight.detach(), before)
    text = """model m(n = 6)(x: [batch, n, 4]) -> [batch, n, 4] {
      return x + (indices(n) -> embedding(n, 4) as table -> f)
    }
    block f(x: [..., c]) { return x -> linear(8, bias: false) as up -> relu -> linear(c, bias: false) as down }"""
    for sections, called in (([], False), (["parallel"], True)):
        assert ("self.table(" in archdsl.torch_source(text=text, features=sections)) == called
