"""Causality is proved: what looks ahead is refused and shown, what does not is accepted. Random models are in
test_random_causality.py, edits of the zoo in test_leaks.py."""

from itertools import pairwise

import pytest
import torch
from rows import spelled

import archdsl
from archdsl.dependence.causality import prove
from archdsl.dependence.rows import mixing
from archdsl.diagnostics import Diagnostic
from archdsl.diagnostics.source import Source
from archdsl.frontend.modules import Loader
from archdsl.frontend.root import Elaborator
from archdsl.ir.graph import Model

LAYERS = """
block layer {{
  attention: {attention}
  {mask}
  ffn: mlp(hidden: 64)
}}
model m {{
  vocab: 64
  context: 64
  width: 32
  blocks: 3 * layer
  head: lm
}}
"""

EQUATIONS = """
model m(tokens: token[batch, time]) {{
  x = tokens -> embedding(64, 32)
{body}
  return x -> {head}
}}
"""


def model_of(text: str) -> Model:
    return Elaborator(Loader(None).load(Source("m.arch", text), None)).build(None, {})


def layers(mask: str, attention: str = "mha(heads: 4)") -> list[Diagnostic]:
    return prove(model_of(LAYERS.format(mask=f"mask: {mask}" if mask else "", attention=attention)))


def equations(body: str, head: str = "lm(64)") -> list[Diagnostic]:
    return prove(model_of(EQUATIONS.format(body=body, head=head)))


# --- masks ------------------------------------------------------------------------------------------------------------


SPELLED = spelled("tokens == 0", "tokens")
JOINED = ("causal & (window(4) | global(2))", "(causal & window(4)) | (causal & strided(3))")


def attending(mask: str) -> list[Diagnostic]:
    """What is found in a model with that mask, which may read `tokens`."""
    return equations(f"  x = x -> mha(heads: 4, mask: {mask})") if "tokens" in mask else layers(mask)


@pytest.mark.parametrize("mask", ["causal", *(f"causal & {mask}" for mask in SPELLED), *JOINED])
def test_masks_that_see_no_later_place(mask: str) -> None:
    assert attending(mask) == []


LATER = [mask for mask in SPELLED if mask != "causal"]


@pytest.mark.parametrize("mask", ["", *LATER, "~causal", "causal | prefix(3)", "causal | chunked(4)"])
def test_masks_that_see_later_places(mask: str) -> None:
    (found,) = attending(mask)
    assert found.code == "E0406"


# Parts side by side: each position is read from the one part that it lies in.
OF_PARTS = """
model m(x: [batch, time, 8]) {{
  c = x -> rearrange("b (n p) d -> b n p d", p: 4)
  y = concat({parts}, axis: 2) -> flatten(1, 2)
  assert causal(y)
  return y
}}"""
PLACES = ("0:1", "1:2", "2:3", "3:4", "0:2", "2:4", "0:3", "1:4")
LINES_UP = [(a, b) for a in PLACES for b in PLACES if sum(int(s[2]) - int(s[0]) for s in (a, b)) == 4]


@pytest.mark.parametrize(("first", "second"), LINES_UP)
def test_what_is_said_of_parts_is_so(first: str, second: str) -> None:
    text = OF_PARTS.format(parts=f"c[:, :, {first}], c[:, :, {second}]")
    order = [p for part in (first, second) for p in range(int(part[0]), int(part[2]))]
    leaks = any(read > own for own, read in enumerate(order))
    found = prove(model_of(text))
    assert bool(found) >= leaks  # what leaks is refused
    assert leaks or not any("can reach" in d.message for d in found)  # and what does not is not said to


def test_the_refusal_shows_the_path_and_the_mask() -> None:
    (found,) = layers("full")
    assert "blocks.0.attention" in found.message
    assert found.notes == ("the path: tokens -> … -> blocks.0.attention -> … -> head", "mask: full")
    assert found.span is not None
    assert found.span.text == "mask: full"
    assert "`mask: causal`" in found.help
    assert "--allow-noncausal" in found.help


def test_the_refusal_points_at_the_user_not_at_the_library() -> None:
    (found,) = layers("")
    assert found.span is not None
    assert found.span.text == "mha(heads: 4)"


def test_a_mask_made_from_tokens_is_read_at_its_places() -> None:
    assert equations("  x = x -> mha(heads: 4, mask: causal & keys(tokens != 0))") == []
    ends = "  d = cumsum(tokens == 0, axis: 1)\n"
    assert equations(f"{ends}  x = x -> mha(heads: 4, mask: causal & same(d))") == []
    later = "  real = shift(tokens != 0, -1)\n"
    assert equations(f"{later}  x = x -> mha(heads: 4, mask: causal & keys(real))") != []


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        ("full", True),
        ("causal", True),
        ("causal & prefix(1)", False),  # the weight of one key is 1, whatever the query
        ("causal & prefix(2)", True),
        ("causal & window(1)", True),  # the last value
        ("prefix(1)", False),
    ],
)
def test_a_query_that_sees_one_key_reads_nothing_of_itself(mask: str, shown: bool) -> None:
    (found,) = equations(f"  u = x -> mha(heads: 4, mask: {mask})\n  x = x + (u -> flip(1))")
    assert found.message.startswith("a later token can reach" if shown else "cannot prove")


@pytest.mark.parametrize(("keys", "shown"), [("j < 1", False), ("j < 2", True), ("j <= i", True)])
def test_of_one_score_alone_nothing_is_read(keys: str, shown: bool) -> None:
    body = f"""{SCORES}
  w = where({keys}, scores, -inf) -> softmax
  x = x + (einsum("b q k, b k d -> b q d", w, x) -> flip(1))"""
    (found,) = equations(body)
    assert found.message.startswith("a later token can reach" if shown else "cannot prove")


def test_keys_before_the_sequence_are_earlier() -> None:
    body = """
  param prefix: [4, 5, 8] = normal(0.02)
  q = x -> linear(32) -> split_heads(4)
  k = x -> linear(32) -> split_heads(4)
  k = concat(prefix -> unsqueeze(0) -> expand(0, batch), k, axis: 2)
  x = sdpa(q, k, k, mask: causal) -> merge_heads"""
    assert equations(body) == []


# --- other ops --------------------------------------------------------------------------------------------------------


def handed_on(start: str, times: int) -> str:
    """What was there that many positions before, by as many tensors that are carried."""
    names = ["a", *(f"h{i}" for i in range(times))]
    carries = ", ".join(f"{name}: [batch, 32] = 0" for name in names[1:])
    moves = "".join(f"  {name} = {before}\n" for before, name in reversed([*pairwise(names)]))
    return f"  x = scan {carries} for a in {start} {{\n  emit {names[-1]}\n{moves}}}"


SCAN = "  x = scan h: [batch, 32] = 0 for x_t in x { h = 0.5 * h + x_t  emit h }"
PATCHES = """
  h = x -> rearrange("b (n p) d -> b n (p d)", p: 4){shift}
  h = h -> linear(64) -> mha(heads: 4, mask: causal) -> linear(128)
  x = x + (h -> rearrange("b n (p d) -> b (n p) d", p: 4))"""
STATES = """
  c = x -> rearrange("b (n p) d -> b n p d", p: 4)
  h = scan h: [batch, time / 4, 32] = 0 for t in transpose(c, 1, 2) { h = 0.5 * h + t }
"""
BYTES = """
  h = x -> rearrange("b (n p) d -> b n (p d)", p: 4) -> shift
  h = h -> linear(64) -> mha(heads: 4, mask: causal) -> linear(128)
  y = x -> rearrange("b (n p) d -> (b n) p d", p: 4)
  y = y + (h -> rearrange("b n (p d) -> (b n) p d", p: 4))
  y = y -> mha(heads: 4, mask: {mask})
  x = y -> rearrange("(b n) p d -> b (n p) d", b: batch)"""

CONVOLUTION = "conv1d(32, kernel: 3, padding: causal)"
ROWS = "-> unflatten(0, batch, time)"
OVER_ROWS = f"""\
  y = scan s: [1, 32] = 0 for t in h {{ s = 0.5 * s + t  emit s }}
  x = y -> squeeze(0) {ROWS}"""

CAUSAL = {
    "shift": "  x = x -> shift",
    "shift and back": "  x = x -> shift(-1) -> shift(1)",
    "causal convolution": "  x = x -> conv1d(32, kernel: 3, padding: causal)",
    "gru": "  x = x -> gru(32)",
    "cumsum": "  x = x -> cumsum(axis: 1)",
    "flip of features": "  x = x -> flip(2)",
    "scan": SCAN,
    "scan of a shifted carry": "  x = scan h: [batch, 32] = 0 for x_t in x { emit h  h = x_t }",
    "carries handed on": handed_on("x -> shift(-7)", 7),
    "patches": PATCHES.format(shift=" -> shift"),
    "the states of the parts before": STATES
    + "  x = h -> shift -> unsqueeze(2) -> expand(2, 4) -> flatten(1, 2) -> shift(-1)",
    "a model of bytes": BYTES.format(mask="causal"),
    "split and joined": "  a, b = x -> split(2, time - 2, axis: 1)\n  x = concat(a, b, axis: 1)",
    "the first place": "  x = x + x[:, :1]",
    "heads": "  x = x -> split_heads(4) -> transpose(1, 2) -> flatten(2)",
    "chunks": '  h = x -> rearrange("b (c l) d -> (b c) l d", l: 4) -> cumsum(axis: 1)\n'
    '  x = h -> rearrange("(b c) l d -> b (c l) d", b: batch)',
    "sums of the chunks of rows": '  h = x -> rearrange("b (c l) d -> (b c) l d", l: 4) -> cumsum(axis: 1)\n'
    '  x = h -> rearrange("(b c) l d -> b (c l) d", b: batch) -> cumsum(axis: 1)',
    "regions of two layouts": """
  if training {
    y = where(indices(32) > 20, 0, x)
  } else {
    v = where((indices(4) -> unsqueeze(1)) > 2, 0, x -> unflatten(-1, 4, 8))
    y = v -> flatten(-2)
  }
  x = y -> gru(32)""",
    "the first key twice": """
  k = x -> linear(32) -> split_heads(4)
  k = concat(k[:, :, :1], k, axis: 2)
  x = sdpa(x -> linear(32) as q -> split_heads(4), k, k, mask: causal) -> merge_heads""",
    "axes merged and cut again": f"  x = x -> flatten(0, 1) -> linear(32) {ROWS} -> cumsum(axis: 1)",
}
SCORES = """
  i = unsqueeze(indices(time), 1)
  j = unsqueeze(indices(time), 0)
  scores = einsum("b q d, b k d -> b q k", x, x -> linear(32) as keys)
"""
BEST = 'x = einsum("b q k, b k d -> b q d", kept -> softmax, x)'
CAUSAL |= {
    "the least of the best": f"""{SCORES}
  best, at = where(j <= i, scores, -inf) -> topk(3)
  kept = where((j <= i) & (scores >= best[..., 2:]), scores, -inf)
  {BEST}""",
    "indices of the best": f"""{SCORES}
  best, at = where(j <= i, scores, -inf) -> topk(3)
  kept = where((j <= i) & (max(one_hot(time)(at), 2) > 0), scores, -inf)
  {BEST}""",
}
CAUSAL |= {
    "weights moved along and back": f"""{SCORES}
  w = where(j <= i, scores, -inf) -> softmax -> pad(1, 0, axis: 2)
  x = einsum("b q k, b k d -> b q d", w[:, :, 1:], x)""",
    "a running sum of weights": f"""{SCORES}
  w = where(j <= i, scores, 0) -> cumsum(axis: 2)
  x = x + w[..., -1:]""",
    "keys behind a few others": """
  q = x -> linear(32) -> split_heads(4)
  k = concat(q[:, :, :1], q[:, :, :1], q, axis: 2)
  x = sdpa(q, k, k, mask: causal) -> merge_heads""",
}
LOOKING_AHEAD = {
    "scores moved along their keys": f"""{SCORES}
  kept = where(j <= i, scores, -inf) -> shift(-1, axis: 2)
  {BEST}""",
    "masked in training alone": f"""{SCORES}
  param free: [64, 64] = zeros
  if training {{
    kept = where(j <= i, scores, -inf) -> cast(float)
  }} else {{
    kept = free[:time, :time] -> unsqueeze(0) -> expand(0, batch)
  }}
  x = einsum("b q k, b k d -> b q d", kept -> softmax, x)""",
    "positions of few bits": f"""{SCORES}
  kept = where(cast(j, float) <= cast(i, float), scores, -inf)
  {BEST}""",
    "half a position": f"""{SCORES}
  kept = where(0.5 * j <= i + 0.5, scores, -inf)
  {BEST}""",
    "a carry of later positions": """
  z = x -> shift(-2)
  x = scan h: [batch, 32] = 0 for a in z { emit h  h = a }""",
    "carries handed on, and a later position": handed_on("x -> shift(-8)", 7),
    "a carry of one position": "  x = scan h: [batch, 32] = x[:, 3] for a in x { emit h  h = h + a }",
    "parts of an odd length": """
  x = x -> rearrange("b (n p) d -> b n p d", p: 15) -> flip(2) -> flatten(1, 2)""",
    "twice as far": "  h = x -> every(2)\n  x = x + concat(h, h, axis: 1)[:, :time]",
    "the least of the best of all": f"""{SCORES}
  best, at = scores -> topk(3)
  kept = where((j <= i) & (scores >= best[..., 2:]), scores, -inf)
  {BEST}""",
    "the least of the best, masked the wrong way": f"""{SCORES}
  best, at = where(j >= i, scores, -inf) -> topk(3)
  kept = where((j <= i) & (scores >= best[..., 2:]), scores, -inf)
  {BEST}""",
    "the least of the best, one key too many": f"""{SCORES}
  best, at = where(j <= i + 1, scores, -inf) -> topk(3)
  kept = where((j <= i) & (scores >= best[..., 2:]), scores, -inf)
  {BEST}""",
    "the best queries of a key": f"""{SCORES}
  best, at = where(j <= i, scores, -inf) -> topk(3, axis: 1)
  kept = where((j <= i) & (scores >= best[:, 2:]), scores, -inf)
  {BEST}""",
    "what indices of the best point at": f"""{SCORES}
  best, at = where(j <= i, scores, -inf) -> topk(3)
  rows = gather(unsqueeze(x, 1) -> expand(1, time), unsqueeze(at, 3) -> expand(3, 32), axis: 2)
  x = einsum("b q k, b q k d -> b q d", exp(best) + 1, rows)""",
    "shift": "  x = x -> shift(-1)",
    "convolution": "  x = x -> conv1d(32, kernel: 3, padding: same)",
    "bidirectional": "  x = x -> bidirectional(gru(16))",
    "reverse": "  x = x -> gru(32, reverse: true)",
    "flip": "  x = x -> flip(1)",
    "mean": "  x = x + (x -> mean(1, keep: true))",
    "softmax over time": "  x = x -> softmax(axis: 1)",
    "batchnorm": "  x = x -> batchnorm",
    "the last place": "  x = x + x[:, -1:]",
    "last state": "  h = scan h: [batch, 32] = 0 for x_t in x { h = 0.5 * h + x_t }\n  x = x + unsqueeze(h, 1)",
    "patches": PATCHES.format(shift=""),
    "the state of a part": STATES
    + "  x = concat(c[:, :, :2], c[:, :, 2:] + unsqueeze(h, 2), axis: 2) -> flatten(1, 2)",
    "a model of bytes": BYTES.format(mask="full"),
    "chunks": '  h = x -> rearrange("b (c l) d -> (b c) l d", l: 4) -> flip(1)\n'
    '  x = h -> rearrange("(b c) l d -> b (c l) d", b: batch)',
    "one turn of a loop": "  for i in 3 { if i == 1 { x = x -> conv1d(32, kernel: 3, padding: same) } }",
    # The rows of a batch one after the other: what comes before in one row may be later in time.
    "sums over the rows": f"  x = x -> flatten(0, 1) -> cumsum(axis: 0) {ROWS}",
    "a convolution over the rows": f"  x = x -> flatten(0, 1) -> unsqueeze(0) -> {CONVOLUTION} -> squeeze(0) {ROWS}",
    "a recurrence over the rows": f"  x = x -> flatten(0, 1) -> unsqueeze(0) -> gru(32) -> squeeze(0) {ROWS}",
    "a recurrence over what rows emit": f"  h = x -> flatten(0, 1) -> unsqueeze(0)\n{OVER_ROWS}",
    "training only": "  if training { y = x -> flip(1) } else { y = x }\n  x = y",
}


@pytest.mark.parametrize("body", CAUSAL.values(), ids=CAUSAL.keys())
def test_what_reads_no_later_place_is_proved(body: str) -> None:
    assert equations(body) == []


@pytest.mark.parametrize("body", LOOKING_AHEAD.values(), ids=LOOKING_AHEAD.keys())
def test_what_reads_later_places_is_refused(body: str) -> None:
    (found,) = equations(body)
    assert found.code == "E0406"
    assert found.notes[0].startswith("the path: tokens -> ")


def test_rows_one_after_the_other_are_shown_where_they_mix() -> None:
    (found,) = equations(LOOKING_AHEAD["sums over the rows"])
    assert "`cumsum`" in found.message


def test_a_loop_is_shown_at_the_turn_that_leaks() -> None:
    (found,) = equations(LOOKING_AHEAD["one turn of a loop"])
    assert "`conv1d.0`" in found.message


UNDONE = {
    "flips": "  x = x -> flip(1) -> flip(1)",
    "a recurrence in reverse between flips": "  x = x -> flip(1) -> gru(32, reverse: true) -> flip(1)",
    "rolls": "  x = x -> roll(2) -> roll(-2)",
    "what is taken out of a stack": "  x = stack(x -> flip(1), x)[:, 1]",
    "a large number added to scores": f"""{SCORES}
  kept = scores + cast(where(j <= i, 0, -1e9), float)
  {BEST}""",
    "a number that may be large": """
  k = where(x > 0, fill(1000, batch, time, 32), x)
  x = k + shift(x, -1)""",
    "the index of the only one that is not masked": f"""{SCORES}
  best, at = where(j <= 0, scores + flip(scores, 2), -inf) -> topk(1)
  x = x * cast(at, float)""",
}
"""What is not proved, and reads no later position."""


@pytest.mark.parametrize("body", UNDONE.values(), ids=UNDONE.keys())
def test_what_is_not_proved_is_not_said_to_be_read(body: str) -> None:
    (found,) = equations(body)
    assert found.message.startswith("cannot prove that the result is causal")


@pytest.mark.parametrize("far", [1, 3, 7])
def test_what_is_certain_is_said_however_far_ahead_is_read(far: int) -> None:
    (found,) = equations(f"  x = x -> shift(-{far})")
    assert found.message.startswith("a later token can reach an earlier logit: `shift` reads ")


SEEN = {
    "one": "where(j <= i + 1, scores, -inf)",
    "others are chosen before": "where(j == i, scores, where(j <= i + 1, 2 * scores, -inf))",
    "one is not chosen": "where(j <= i, where(j == i, 1, scores), where(j <= i + 2, scores, -inf))",
}


@pytest.mark.parametrize("kept", SEEN.values(), ids=SEEN.keys())
def test_what_is_certain_is_said_of_scores_that_are_chosen(kept: str) -> None:
    (found,) = equations(f"{SCORES}\n  kept = {kept}\n  {BEST}")
    assert found.message.startswith("a later token can reach an earlier logit: `softmax` reads ")


AT_ONE = {
    "a result": "z = x -> shift(-1)",
    "a scan": """z = scan h: [batch, 8] = 0 for a in x -> shift(-1) {
    h = h * 0.5 + a
    emit h
  }""",
}


@pytest.mark.parametrize("body", AT_ONE.values(), ids=AT_ONE.keys())
@pytest.mark.parametrize("at", [1, 2, 5])
def test_what_is_certain_is_said_where_one_position_reads_later_ones(body: str, at: int) -> None:
    text = f"""model m(x: [batch, time, 8]) -> [batch, time, 8] {{
      {body}
      y = concat(x[:, :{at}], z[:, {at}:{at + 1}], x[:, {at + 1}:], axis: 1)
      assert causal(y)
      return y
    }}"""
    (found,) = archdsl.check(text=text)
    assert found.message.startswith("a later token can reach an earlier position of `y`: `shift` reads ")


@pytest.mark.parametrize("turn", [0, 1])
def test_the_path_goes_through_what_a_loop_emits(turn: int) -> None:
    body = f"z = for i in 2 {{ x = x -> linear(8)  emit x -> roll(2) -> roll(-2) }}  y = 2 * z[{turn}]"
    text = f"model m(x: [batch, time, 8]) -> [batch, time, 8] {{ {body}  assert causal(y)  return y }}"
    (found,) = archdsl.check(text=text)
    assert found.message.startswith("cannot prove that `y` is causal: `roll` may read positions of `x`")
    linear = "x.0" if turn == 0 else "…"
    assert found.notes[0] == f"the path: x -> {linear} -> roll -> times -> y"


def test_a_scan_is_a_step_of_the_path() -> None:
    text = f"model m(x: [batch, time, 8]) -> [batch, time, 8] {{ {AT_ONE['a scan']}  assert causal(z)  return z }}"
    (found,) = archdsl.check(text=text)
    assert found.notes[0] == "the path: x -> shift -> plus -> scan -> z"


def test_a_large_number_in_place_of_minus_infinity_is_named() -> None:
    text = f"{SCORES}\n  kept = where(j <= i, scores, -1e9)\n  {BEST}"
    (found,) = equations(text)
    assert any("scores are masked by -1e+09: with `-inf`" in note for note in found.notes)


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ("s = mean(x, axis: 1, keep: true)  y = x + (s - s)", False),
        ("s = mean(x, axis: 1, keep: true)  y = (x + s) - s", False),
        ("s = x -> flip(1)  y = x + (2 * s - s - s)", False),
        (
            "c = cumsum(x, axis: 1)  y = sum(x, axis: 1, keep: true) - (flip(1)(cumsum(flip(1)(x), axis: 1)) - x) - c",
            False,
        ),
        ("s = mean(x, axis: 1, keep: true)  y = x - s", True),
        ("s = mean(x, axis: 1, keep: true)  y = s - x", True),
        ("s = mean(x, axis: 1, keep: true)  y = x + s + s", True),
        ("a = x -> shift(1)  s = mean(x, axis: 1, keep: true)  y = (a - x) + s", True),
        ("a = x -> linear(8) -> flip(1)  b = x -> linear(8)  y = a - b", True),
    ],
)
def test_what_may_cancel_is_not_said_to_be_read(body: str, reads: bool) -> None:
    """Certain is what changes an earlier position in the emitted module, too."""
    text = f"model m(x: [batch, time, 8]) -> [batch, time, 8] {{ {body}  assert causal(y)  return y }}"
    (found,) = archdsl.check(text=text)
    begins = "a later token can reach an earlier position of `y`: " if reads else "cannot prove that `y` is causal: "
    assert found.message.startswith(begins)
    assert ("`assume causal(y)` takes it for proved" in found.help) is not reads
    module = archdsl.to_torch(text=text, allow_noncausal=True).double()
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    with torch.no_grad():
        before, x[:, 4:] = module(x.clone()), 1.0
        assert torch.allclose(before[:, :4], module(x)[:, :4]) is not reads


# --- claims -----------------------------------------------------------------------------------------------------------


def test_a_head_may_look_further_ahead_if_it_says_so() -> None:
    assert equations("  x = x -> shift(-1)", "lm(64, ahead: 2)") == []
    assert equations("  x = x -> shift(-2)", "lm(64, ahead: 2)") != []


def test_any_tensor_can_be_claimed() -> None:
    text = "model m(x: [batch, time, 8]) {{ y = x -> {op}  assert causal(y)  return y -> linear(2) }}"
    assert prove(model_of(text.format(op="shift"))) == []
    assert prove(model_of(text.format(op="flip(1)"))) != []


def test_claims_in_blocks_are_proved_where_they_are_used() -> None:
    text = """
block part(x: [batch, time, width]) {{
  y = x -> linear(width)
  assert causal(y)
  return y
}}
model m(x: [batch, time, 8]) {{ return x -> {op} -> part }}
"""
    assert prove(model_of(text.format(op="shift"))) == []
    assert prove(model_of(text.format(op="flip(1)"))) != []


@pytest.mark.parametrize("part", ["n", "p"])
@pytest.mark.parametrize(("op", "holds"), [("cumsum(axis: 1)", True), ("shift", True), ("shift(-1)", False)])
def test_what_is_assumed_of_parts_that_are_moved_holds_behind_it(part: str, op: str, holds: bool) -> None:
    text = f"""model m(x: [batch, time, 8]) {{
      y = x -> rearrange("b (n p) d -> b (p n) d", {part}: 4)
      assume causal(y)
      z = y -> {op}
      assert causal(z)
      return z
    }}"""
    found = prove(model_of(text))
    assert [d.code for d in found] == ([] if holds else ["E0406"])


@pytest.mark.parametrize(("places", "causal"), [(":1", True), ("1:2", False)])
def test_one_place_that_is_cut_in_sizes_by_name(places: str, causal: bool) -> None:
    text = f"""model m(x: [batch, time, 8], k: [a, b]) {{
      y = x + (x[:, {places}] -> unflatten(1, a, b))[:, 0, :1]
      assert causal(y)
      return y, k
    }}"""
    assert (prove(model_of(text)) == []) == causal


BEHIND = {
    "y = x[:, frames:]": True,
    "z, y = split(x, frames, time, axis: 1)": True,
    "y = (x -> pad(before: frames) -> flip(1) -> flip(1))[:, 2 * frames:]": True,
    "y = (x -> flip(1) -> flip(1))[:, frames:]": True,
    "y = x[:, :time]": False,
    "y, z = split(x, time, frames, axis: 1)": False,
    "y = (x -> flip(1))[:, frames:]": False,
}


@pytest.mark.parametrize("taken", BEHIND)
def test_of_a_part_behind_another_sequence_only_what_it_reads_is_said(taken: str) -> None:
    order, says = ("source, target", "cannot prove") if BEHIND[taken] else ("target, source", "a later token can reach")
    text = f"""
model m(source: token[batch, frames], target: token[batch, time]) {{
  x = concat({order}, axis: 1) -> embedding(9, 8)
  x = x + (x -> mha(heads: 2, mask: {"causal" if BEHIND[taken] else "full"}))
  {taken}
  assert causal(y)
  return y -> linear(9)
}}"""
    (found,) = prove(model_of(text))
    assert says in found.message


def test_a_model_without_a_claim_may_look_anywhere() -> None:
    assert equations("  x = x -> flip(1)", "linear(64)") == []


def test_another_input_is_not_restricted() -> None:
    text = """
model m(source: token[batch, length], target: token[batch, time]) {
  memory = source -> embedding(64, 32) -> mha(heads: 4)
  x = target -> embedding(64, 32) -> mha(heads: 4, mask: causal)
  x = mha(heads: 4)(x, memory)
  return x -> lm(64)
}
"""
    assert prove(model_of(text)) == []


def test_an_axis_of_fixed_size() -> None:
    text = "model m(tokens: token[batch, 16]) {{ x = tokens -> embedding(64, 16) -> {op}  return x -> lm(64) }}"
    assert prove(model_of(text.format(op="shift"))) == []
    assert prove(model_of(text.format(op="flip(1)"))) != []


def test_depth_costs_nothing() -> None:
    """A thousand layers are walked as few times as their bounds change."""
    text = LAYERS.format(mask="mask: causal", attention="mha(heads: 4)").replace("3 * layer", "1000 * layer")
    assert prove(model_of(text)) == []


def test_width_costs_nothing() -> None:
    """A way back is found however many channels it leads through, of which any will do."""
    body = "y = x -> linear(10_000) -> relu -> linear(8) -> shift(-1)  assert causal(y)  return y"
    (problem,) = prove(model_of(f"model m(x: [batch, time, 8]) {{ {body} }}"))
    assert "a later token can reach an earlier position of `y`" in problem.message


# --- rows of a batch --------------------------------------------------------------------------------------------------

ROWS = {
    "x -> linear(8)": None,
    "x - mean(x, axis: 0, keep: true)": "mean",
    "x -> shift(1, axis: 0)": "shift",
    "x -> cumsum(axis: 0)": "cumsum",
    "x -> transpose(0, 1) -> mha(heads: 2) -> transpose(0, 1)": "sdpa",
    "x -> transpose(0, 1) -> gru(8) -> transpose(0, 1)": "gru",
    "x -> flatten(0, 1) -> linear(8) -> unflatten(0, batch, time)": None,
    "x -> flatten(0, 1) -> cumsum(axis: 0) -> unflatten(0, batch, time)": "cumsum",
    "x -> batchnorm": None,  # in training alone
    "x -> mha(heads: 2, mask: causal)": None,
    "x -> moe(experts: 4, top_k: 2, capacity: 0.5, expert: mlp(hidden: 8))": None,
    'x -> rearrange("(g r) t d -> g r t d", r: 2) -> linear(8) -> rearrange("g r t d -> (g r) t d")': None,
    "x * (sqrt(1 + indices(8)) -> cast_like(x))": None,  # of `x` the type alone is read
    # Beside the own row:
    "x + x[:1]": "index",
    "x + x[0]": "index",
    "x + (x[:2] -> mean(axis: 0, keep: true))": "mean",
    "x + (x -> shift(1, axis: 0))": "shift",
    "x + (x -> shift(-1, axis: 0))": "shift",
    "x + flip(x, 0)": "flip",
    "x * softmax(x, 0)": "softmax",
    'x -> rearrange("(g r) t d -> (r g) t d", r: 2)': "rearrange",
    'x + (x -> rearrange("(g r) t d -> r g t d", r: 2))[0, :1]': "rearrange",
}


@pytest.mark.parametrize("body", ROWS)
def test_rows_of_a_batch(body: str) -> None:
    """What is said of them, and what changes in a row when another one does."""
    model = archdsl.load(text=f"model m(x: [batch, time, 8]) -> [batch, time, 8] {{ return {body} }}")
    found = mixing(model)
    assert (found and found[1] and found[1].op.name) == ROWS[body]
    torch.manual_seed(0)
    module = archdsl.to_torch(model).double().eval()
    x = torch.randn(4, 4, 8, dtype=torch.float64)
    changed = set()
    for row in range(4):
        other = x.clone()
        other[row] += torch.randn(4, 8)
        apart = (module(x) != module(other)).flatten(1).any(1)
        changed |= {*apart.nonzero().flatten().tolist()} - {row}
    assert bool(changed) == (found is not None)
