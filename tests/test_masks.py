"""Masks as bool tensors in equations, compared with what `sdpa` makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_tools
import pytest
import torch
from near import distance
from torch import Tensor
from torch_emit.emitted import close, names_of, spec

import archdsl
from archdsl.api import check
from archdsl.backends.torch import emit
from archdsl.dependence.causality import prove
from archdsl.estimates.cost import work_of
from archdsl.estimates.flops import Convention, NodeFlops, estimate
from archdsl.ir.cost import whole_at
from archdsl.ir.walk import ops_below
from archdsl.run.load import load_source

Oracle = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]
"""Of positions [query, 1] and [1, key] and the tensors by name: the pairs [batch, query, key], or without batch."""

SEEN: dict[str, Oracle] = {
    "causal": lambda q, k, t: k <= q,
    "causal & window(3)": lambda q, k, t: (k <= q) & (q - k < 3),
    "window(2)": lambda q, k, t: (q - k).abs() < 2,
    "causal | prefix(3)": lambda q, k, t: (k <= q) | (k < 3),
    "causal & ~strided(2)": lambda q, k, t: (k <= q) & ((q - k) % 2 != 0),
    "~(causal & window(2)) & chunked(4)": lambda q, k, t: ~((k <= q) & (q - k < 2)) & (q // 4 == k // 4),
    "global(2) | dilated(2, 3)": lambda q, k, t: (q < 2) | (k < 2) | (((q - k).abs() < 6) & ((q - k) % 3 == 0)),
    "padding": lambda q, k, t: t["real"][:, None, :] & (q >= 0),
    "causal & padding": lambda q, k, t: (k <= q) & t["real"][:, None, :],
    "causal & documents": lambda q, k, t: (k <= q) & (t["text"][:, :, None] == t["text"][:, None, :]),
    "causal & keys(mask)": lambda q, k, t: (k <= q) & t["mask"][:, None, :],
    "queries(mask) | same(layer)": lambda q, k, t: t["mask"][:, :, None] | (t["layer"][:, None] == t["layer"]),
    "full": lambda q, k, t: (k >= 0) & (q >= 0),
    "full & padding": lambda q, k, t: t["real"][:, None, :] & (q >= 0),
}
FORMS = {
    "sdpa": "sdpa(h, k, v, mask: {mask})",
    "softmax": "matmul(softmax(matmul(h, transpose(k, 2, 3)) / sqrt(5), mask: {mask}), v)",
    "where": "matmul(where({mask}, exp(matmul(h, transpose(k, 2, 3)) / sqrt(5)), 0), v)",
    "times": "matmul(exp(matmul(h, transpose(k, 2, 3)) / sqrt(5)) * ({mask}), v)",
}
INPUTS = """h: [batch, 2, time, 5], k: [batch, 2, time, 5], v: [batch, 2, time, 3], real: padding[batch, time],
            text: documents[batch, time], mask: bool[batch, time], layer: int[time]"""


def written(form: str, mask: str) -> str:
    """A model of tensors with hostile names and odd sizes."""
    return f"model m({INPUTS}) {{ return {FORMS[form].format(mask=mask)} }}"


def tensors(time: int = 7) -> dict[str, Tensor]:
    torch.manual_seed(3)
    found = {n: torch.randn(3, 2, time, d) for n, d in (("h", 5), ("k", 5), ("v", 3))}
    found["real"] = torch.arange(time) >= torch.tensor([[0], [2], [5]])
    found["text"] = torch.arange(time) // torch.tensor([[2], [3], [9]])
    found["mask"] = torch.rand(3, time) < 0.6
    found["layer"] = torch.randint(3, (time,))
    return found


def run(text: str, given: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """What the emitted module gives, and onnxruntime."""
    model = spec(text)
    made = load_source(emit(model))().eval()
    own = {name: given[name] for name, _ in model.inputs}
    with torch.no_grad():
        return made(*own.values()), onnx_tools.run(onnx_tools.onnx_bytes(model, made), own)[0]


@pytest.mark.parametrize("mask", SEEN)
def test_a_mask_hides_what_it_hides_in_sdpa(mask: str) -> None:
    """The softmax over a mask is that of `sdpa`, also where a query sees no key; and `where` chooses by its pairs."""
    given = tensors()
    place = torch.arange(7)
    seen = SEEN[mask](place[:, None], place[None, :], given)
    seen = seen[:, None] if seen.dim() == 3 else seen
    scores = given["h"] @ given["k"].mT / 5**0.5
    weights = torch.where(seen, scores, -torch.inf).softmax(-1).nan_to_num()
    hidden = torch.where(seen, scores.exp(), 0.0) @ given["v"]
    for form in FORMS:
        wanted = hidden if form in ("where", "times") else weights @ given["v"]
        made, by_onnx = run(written(form, mask), given)
        close(made, wanted)
        assert onnx_tools.distance(by_onnx, wanted) < 1e-5


@pytest.mark.parametrize("mask", SEEN)
def test_a_mask_is_proved_as_in_sdpa(mask: str) -> None:
    def errors(form: str) -> list[str]:
        text = f"""model m(x: [batch, time, 10], {INPUTS[INPUTS.index("real") :]}) {{
          h = x -> split_heads(2)
          k = x -> linear(10) -> split_heads(2)
          v = x -> split_heads(2)
          y = {FORMS[form].format(mask=mask)} -> merge_heads
          assert causal(y)
          return y
        }}"""
        return [d.code for d in check(text=text) if d.code.startswith("E")]

    known = {form: errors(form) for form in FORMS}
    assert all(found == known["sdpa"] for found in known.values()), known
    assert known["sdpa"] == ([] if mask.startswith("causal") and "|" not in mask else ["E0406"])


@pytest.mark.parametrize("mask", SEEN)
def test_what_a_mask_hides_costs_nothing_as_in_sdpa(mask: str) -> None:
    """Forwards, in training and in a step of decoding, at an odd length; one matrix of weights is before all."""

    def flops(form: str, convention: Convention) -> tuple[int, int, int | None, float]:
        expression = FORMS[form].format(mask=mask)
        text = f"""model m(x: [batch, time, 10], {INPUTS[INPUTS.index("real") :]}) {{
          x = x -> linear(20)
          h = x -> split_heads(2)
          k = x -> linear(20) -> split_heads(2)
          v = x -> split_heads(2)
          return {expression}
        }}"""
        model = archdsl.load(text=text)
        found = estimate(model, batch=3, seq=13, convention=convention).flops
        drawn = sum(map(NodeFlops(model, 13).op, ops_below(model.block.graph)))
        return found.forward, found.training, found.decode_step, drawn

    assert len({flops(form, "dense") for form in FORMS}) == 1
    assert len({flops(form, "exact") for form in FORMS}) == 1
    assert flops("sdpa", "megatron") == flops("softmax", "megatron")


COUNTED = {
    "matmul(softmax(s, mask: causal), v)": (20, 0),
    "matmul(softmax(15 * tanh(s / 15), mask: causal), v)": (20, 0),
    "matmul(softmax(where(causal, where(window(3), s, -inf), -inf)), v)": (20, 0),
    "matmul(softmax(where(~causal, -inf, s)), v)": (20, 0),
    "matmul(softmax(transpose(where(causal, s, -inf), 1, 2), axis: 1) -> transpose(1, 2), v)": (20, 0),
    "matmul(transpose(softmax(s, mask: causal), 1, 2), v)": (20, 0),
    "matmul(softmax(where(causal, s, 0)), v)": (8, 12),
    "matmul(softmax(where(causal, s, -9)), v)": (8, 12),
    "matmul(softmax(s, mask: causal) + 1, v)": (8, 12),
    "matmul(softmax(s + cumsum(s), mask: causal), v)": (12, 8),
    "(matmul(softmax(s, mask: causal), v), s)": (12, 8),
    "matmul(softmax(s, mask: causal), v) + matmul(s, v)": (12, 20),
    "matmul(softmax(s, mask: causal), transpose(s, 1, 2))": (2, 8),
    "matmul(softmax(where(causal, s, -inf), axis: 1), v)": (20, 0),
    "matmul(softmax(s), v)": (0, 20),
}


@pytest.mark.parametrize("result", COUNTED)
def test_what_is_read_elsewhere_is_counted(result: str) -> None:
    """Of the products of queries and keys, and of weights and values, the FLOPs for each pair that the mask shows, and
    those for every pair."""
    text = f"""model m(q: [batch, time, 4], k: [batch, time, 4], v: [batch, time, 6]) {{
      s = matmul(q, transpose(k, 1, 2))
      return {result}
    }}""".replace("return (", "return ").replace(", s)\n", ", s\n")
    work = work_of(archdsl.load(text=text), training=False).total
    one = {"batch": 1, "time": 1}
    shown, every = (sum(whole_at(f, one) for p, f in work.forward.amounts if (p is None) == no) for no in (False, True))
    assert (shown, every) == COUNTED[result]


def test_fewer_queries_than_keys_and_axes_in_front() -> None:
    """The last query stands at the last key, whatever axes are in front: batch, and two of heads."""
    for lead in ("batch, ", "batch, 2, 3, "):
        text = f"""model m(a: [{lead}time, 4], b: [{lead}source, 4], seen: bool[{lead}time, source]) {{
          scores = einsum("... q d, ... k d -> ... q k", a, b)
          past = softmax(scores, mask: seen & causal)
          return softmax(scores, mask: causal & window(3)), softmax(scores, mask: seen), past
        }}"""
        shape = [int(n) for n in lead.replace("batch", "2").split(", ") if n]
        torch.manual_seed(0)
        a, b = torch.randn(*shape, 3, 4), torch.randn(*shape, 8, 4)
        seen = torch.rand(*shape, 3, 8) < 0.4
        query, key = torch.arange(5, 8)[:, None], torch.arange(8)
        near, past = (key <= query) & (query - key < 3), key <= query
        made = load_source(emit(spec(text)))()(a, b, seen)
        for found, pairs in zip(made, (near, seen, seen & past), strict=True):
            close(found, torch.where(pairs, a @ b.mT, -torch.inf).softmax(-1).nan_to_num())


BLOCK = """block attention(mask: mask, heads: size)(x: [batch, time, width]) -> [batch, time, width] {
  q = x -> linear(width) -> split_heads(heads)
  k = x -> linear(width) -> split_heads(heads)
  v = x -> linear(width) -> split_heads(heads)
  weights = softmax(matmul(q, transpose(k, 2, 3)) / sqrt(width / heads), mask: mask)
  return matmul(weights, v) -> merge_heads
}
block layer(mask: mask) {
  attention: attention(heads: 3)
  mask: mask
}
model m(width = 12, near: size = 2) {
  vocab: 11
  context: 16
  width: width
  let near_ones = [layer(mask: causal & window(near + i)) for i in 2]
  blocks: near_ones + layer(mask: causal & padding) + layer(mask: full & causal)
  head: lm
}"""


def test_layers_hand_their_mask_to_equations() -> None:
    """One class for all masks that are tensors; another Config means another window; the model is causal, and decoded
    step by step."""
    model = spec(BLOCK)
    assert prove(model) == []
    module = load_source(emit(model))
    tokens, real = torch.arange(18).view(2, 9) % 11, torch.ones(2, 9, dtype=torch.bool)
    other = module(names_of(module())["Config"](near=5)).eval()
    meant = load_source(emit(spec(BLOCK, near=5)))().eval()
    meant.load_state_dict(other.state_dict())
    assert distance(other(tokens, real), meant(tokens, real)) < 1e-6
    again = module().eval()
    again.load_state_dict(other.state_dict())
    assert distance(other(tokens, real), again(tokens, real)) > 1e-3
    assert archdsl.verify(model, seq=16).agrees


@pytest.mark.parametrize("axis", [-1, -2, 0, 1])
@pytest.mark.parametrize("mask", ["causal", "causal & ~window(1)", "keys(t)"])
def test_softmax_along_any_axis(mask: str, axis: int) -> None:
    """What is hidden is 0, and so is all of what has nothing to see."""
    text = f"model m(x: [batch, 3, time, time], t: bool[time]) {{ return softmax(x, axis: {axis}, mask: {mask}) }}"
    x, t, place = torch.randn(2, 3, 4, 4), torch.tensor([True, False, True, False]), torch.arange(4)
    seen = t.expand(4, 4) if "t" in mask.split("(")[-1] else place <= place[:, None] - mask.count("~")
    model = spec(text)
    found = load_source(emit(model))()(*((x, t) if len([*model.inputs]) > 1 else (x,)))
    close(found, torch.where(seen, x, -torch.inf).softmax(axis).nan_to_num())


def test_a_query_without_keys_has_no_gradient() -> None:
    """Nor has anything a gradient that is no number."""
    text = """model m(x: [batch, time, 6], real: padding[batch, time]) {
      s = einsum("b q d, b k d -> b q k", x, x)
      return matmul(softmax(s, mask: causal & padding), x)
    }"""
    x = torch.randn(2, 5, 6, requires_grad=True)
    y = load_source(emit(spec(text)))()(x, torch.arange(5) >= torch.tensor([[2], [9]]))
    y.square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert [row.any().item() for row in x.grad[0]] == [False, False, True, True, True]
    assert not x.grad[1].any()


def test_no_tensor_is_made_where_all_is_seen() -> None:
    text = written("softmax", "full")
    plain = spec(text.replace(", mask: full", ""))
    assert emit(spec(text)).partition("import")[2] == emit(plain).partition("import")[2]
    text = written("where", "full")
    assert "where" not in emit(spec(text))


def test_a_tensor_of_pairs_is_no_output_of_steps() -> None:
    text = """model m(x: [batch, time, 4]) {
      return where(causal, einsum("b q d, b k d -> b q k", x, x), 0)
    }"""
    report = archdsl.verify(spec(text), seq=5)
    assert report.agrees
    assert (
        report.no_decode == "`m` cannot be decoded step by step: [batch, time, time], its output, grows along two axes"
    )


@pytest.mark.parametrize(
    "inner", ["where(causal, x, 0)", "x * unsqueeze(indices(rows) % 2, 1)", "softmax(x, mask: causal)"]
)
def test_the_rows_of_an_expert_stand_at_no_positions(inner: str) -> None:
    text = f"""block e(x: [rows, width]) {{ return {inner} }}
    model m(x: [batch, time, 4]) {{ return x -> moe(experts: 2, top_k: 1, expert: e) }}"""
    (found,) = [d for d in check(text=text) if d.code.startswith("E")]
    assert found.code == "E0204"
    assert found.message.startswith("an expert mixes no positions")


REFUSED = {
    "where(causal, 1, 0)": ("E0302", "there are none"),
    "where(causal, x[0, 0], 0)": ("E0302", "have fewer"),
    "where(causal, x -> sum(keep: true), 0)": ("E0302", "has one place"),
    "x + causal": ("E0203", "`+` cannot join a mask and a tensor"),
    "x & causal": ("E0203", "this must be a mask, and it is a tensor"),
    "causal == x": ("E0203", "`==` cannot join a mask and a tensor"),
    "tanh(causal)": ("E0203", "takes tensors and numbers"),
    "where(x > 0, causal, x)": ("E0203", "`a` of `where` is a tensor, and a mask was given"),
    "x -> cast(causal)": ("E0203", ""),
    "x -> f(seen: causal)": ("E0203", "`seen` of `f` is a tensor, and a mask was given"),
    "where(padding, x, 0)": ("E0403", ""),
    "softmax(x, mask: keys(x[..., 0] > 0))": ("E0403", "speaks of"),
    "softmax(x, mask: x)": ("E0304", "tensors of true and false"),
    "softmax(x, mask: x[..., 0] > 0)": ("E0301", "equal shapes"),
    "softmax(x, mask: causal & (x[..., 0] > 0))": ("E0203", "a bool tensor is no mask by itself"),
    "mha(x, heads: 2, mask: causal & (x > 0))": ("E0203", "is static, and a tensor was given"),
}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_said_of_a_mask_in_a_wrong_place(expression: str) -> None:
    code, message = REFUSED[expression]
    text = f"""block f(x: [batch, time, 8], seen: bool[batch, time, 8]) {{ return where(seen, x, 0) }}
    model m(x: [batch, time, 8]) {{ return {expression} }}"""
    (found,) = [d for d in check(text=text) if d.code.startswith("E")]
    assert found.code == code
    assert message in found.message


# --- fixed prefixes: keys and values in front of those of the sequence ------------------------------------------------

IN_FRONT: dict[str, Oracle] = {
    "causal": lambda q, k, t: k <= q,
    "(causal & window(2)) | prefix(n)": lambda q, k, t: (k <= q) & (q - k < 2) | (k < 3),
    "(causal & chunked(4)) | prefix(1)": lambda q, k, t: (k <= q) & (q // 4 == k // 4) | (k < 1),
    "causal & padding": lambda q, k, t: (k <= q) & front(t["real"])[:, None, :],
    "causal & keys(mask)": lambda q, k, t: (k <= q) & front(t["mask"])[:, None, :],
    "(causal & padding & window(3)) | prefix(n)": lambda q, k, t: (
        (k <= q) & (q - k < 3) & front(t["real"])[:, None, :] | (k < 3)
    ),
}
"""Of positions that count the three keys in front, too."""
AFTER = {
    "sdpa": "sdpa(h, k, v, mask: {mask})",
    "softmax": "matmul(softmax(matmul(h, transpose(k, 2, 3)) / sqrt(5), mask: {mask}), v)",
}


def front(real: Tensor) -> Tensor:
    """What stands in front is real."""
    return torch.cat((torch.ones_like(real[:, :3]), real), dim=1)


def prefixed(form: str, mask: str, end: str = "") -> str:
    return f"""model m(n = 3)({INPUTS}) {{
      param layer_k: [2, n, 5] = normal(1)
      param layer_v: [2, n, 3] = normal(1)
      k = concat(layer_k -> unsqueeze(0) -> expand(0, batch), k, axis: 2)
      v = concat(layer_v -> unsqueeze(0) -> expand(0, batch), v, axis: 2)
      y = {AFTER[form].format(mask=mask)}{end}
      return y
    }}"""


@pytest.mark.parametrize("mask", IN_FRONT)
@pytest.mark.parametrize("form", AFTER)
def test_keys_in_front_are_seen_by_all(form: str, mask: str) -> None:
    """The first query stands behind the prefix; of what speaks of the sequence alone the prefix is real."""
    given = tensors()
    model = spec(prefixed(form, mask))
    made = load_source(emit(model))()
    k, v = (torch.cat((p.expand(3, -1, -1, -1), given[n]), 2) for n, p in (("k", made.layer_k), ("v", made.layer_v)))
    seen = IN_FRONT[mask](torch.arange(3, 10)[:, None], torch.arange(10), given)
    seen = seen[:, None] if seen.dim() == 3 else seen
    wanted = torch.where(seen, given["h"] @ k.mT / 5**0.5, -torch.inf).softmax(-1).nan_to_num() @ v
    own = {name: given[name] for name, _ in model.inputs}
    close(made(*own.values()), wanted)
    assert onnx_tools.distance(onnx_tools.run(onnx_tools.onnx_bytes(model, made), own)[0], wanted.detach()) < 1e-5


@pytest.mark.parametrize("form", AFTER)
def test_a_prefix_is_proved_and_counted(form: str) -> None:
    """No query of the sequence sees ahead; and each pair that is seen costs its products, no other."""
    for mask, seen in IN_FRONT.items():
        text = prefixed(form, mask, "\n      assert causal(y, ahead: 1)")
        text = text.replace("assert causal(y, ahead: 1)", "assert causal(y -> merge_heads)").replace(
            INPUTS,
            INPUTS.replace(
                "h: [batch, 2, time, 5], k: [batch, 2, time, 5], v: [batch, 2, time, 3]", "x: [batch, time, 10]"
            ),
        )
        text = text.replace(
            "      k = concat",
            "      h = x -> split_heads(2)\n      k = x -> linear(10) -> split_heads(2)\n"
            "      v = x -> linear(6) -> split_heads(2)\n      k = concat",
            1,
        )
        assert [d.code for d in check(text=text) if d.code.startswith("E")] == [], mask
        if "padding" in mask or "keys" in mask:
            continue  # which hides pairs that are not known before
        flops = estimate(archdsl.load(text=text), batch=1, seq=13, convention="exact").flops.forward
        pairs = int(seen(torch.arange(3, 16)[:, None], torch.arange(16), {}).sum())
        assert flops == 2 * (13 * 10 * 16 + 2 * pairs * (5 + 3)), mask


def test_a_mask_behind_ones_is_that_of_the_keys_behind() -> None:
    """Joined by `concat`, or filled up: where it hides a key is known behind the prefix, and there alone."""
    masks = {
        "concat(ones(time, 3) > 0, j <= i, axis: 1)": True,
        "concat(ones(time, 1), ones(time, 2), where(j > i, 0, 1), axis: 1) > 0": True,
        "(where(j > i, 0, 1) -> pad(3, value: 1)) > 0": True,
        "(where(j > i, 0, 1) -> pad(3)) > 0": True,
        "concat(ones(time, 3) > 0, j <= i + 1, axis: 1)": False,
        "concat(j <= i, ones(time, 3) > 0, axis: 1)": False,
        "concat(indices(3) <= i, j >= i, axis: 1)": False,
    }
    for mask, causal in masks.items():
        text = f"""model m(x: [batch, time, 6]) {{
          i = indices(time) -> unsqueeze(1)
          j = indices(time) -> unsqueeze(0)
          k = x -> pad(3)
          y = matmul(softmax(where({mask}, matmul(x, transpose(k, 1, 2)), -inf)), k)
          assert causal(y)
          return y
        }}"""
        assert [d.code for d in check(text=text) if d.code.startswith("E")] == ["E0406"] * (not causal), mask


def test_a_longer_prefix_than_there_is_leaks() -> None:
    """`prefix(n)` of more keys than stand in front shows keys of the sequence to those before them: refused, and by the
    emitted file where a Config asks for it."""
    fits = prefixed("sdpa", "causal | prefix(n)").replace("(n = 3)", "(n = 3, m = 3)")
    leaks = [
        prefixed("sdpa", f"causal | prefix({n})", "\n      assert causal(y -> merge_heads)") for n in ("n + 1", "n + 2")
    ]
    found = [[d.code for d in check(text=t) if d.code.startswith("E")] for t in leaks]
    assert found == [[], ["E0406"]]
    made = load_source(emit(spec(fits.replace("prefix(n)", "prefix(m)"))))
    with pytest.raises(AssertionError):
        names_of(made())["Config"](m=5)
    names_of(made())["Config"](n=4, m=4)


PAIRS = {
    "another mask": "where({mask} & (d % 3 < 2), s, 0)",
    "distances": "softmax(s - abs(({mask}) * d), mask: causal)",
    "counts": "softmax(s + (where({mask}, 1 + 0 * d, 0) -> cumsum(axis: 1)), mask: causal)",
    "a sum by row": "softmax(s / (1 + abs(where({mask}, d, 0) -> sum(axis: 1, keep: true))), mask: causal)",
    "axes in front": "softmax(s + ((({mask}) * d) -> unsqueeze(0) -> unsqueeze(0))[0], mask: {mask})",
    "both": "softmax(where({mask}, s, -1), mask: {mask}) * (({mask}) * d)",
}


@pytest.mark.parametrize("mask", ["causal", "causal & window(3)", "causal & ~strided(2)"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("pairs", PAIRS)
def test_pairs_made_of_masks_are_decoded(pairs: str, heads: int, mask: str) -> None:
    """A mask that meets pairs of positions is one of them: steps make all of it for the new positions of each row."""
    split = f" -> split_heads({heads})" if heads > 1 else ""
    merged = " -> merge_heads" if heads > 1 else ""
    text = f"""
model m(x: [batch, time, 4]) -> [batch, time, 4] {{
  d = unsqueeze(indices(time), 1) - indices(time)
  h = x -> linear(4){split}
  s = matmul(x -> linear(4){split}, transpose(h, -1, -2))
  w = {PAIRS[pairs].format(mask=mask)}
  return matmul(w -> cast_like(h), x -> linear(4){split}){merged}
}}"""
    found = archdsl.verify(text=text, batch=3, seq=6)
    assert found.agrees, found
    assert found.torch_decode


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mask", ["documents", "same(layer)"])
def test_padding_that_sees_no_key_gives_no_numbers_to_others(mask: str, seed: int) -> None:
    """Tensors that a mask reads say anything of padding, so that it may see no real key; the next layer reads it."""
    text = f"""
block own(mask: mask)(x: [batch, time, width]) -> [batch, time, width] {{
  return matmul(softmax(matmul(x, transpose(x, 1, 2)), mask: mask), x)
}}
model m(h: token[batch, time], text: documents[batch, time], layer: int[batch, time]) -> [batch, time, 9] {{
  x = h -> embedding(9, 8)
  for i in 2 {{ x = x + own(x, mask: causal & {mask} & window(2)) }}
  return x -> linear(9)
}}"""
    found = archdsl.verify(text=text, seq=9, seed=seed)
    assert found.agrees, found
    assert found.decode
    assert "right" in found.decode
