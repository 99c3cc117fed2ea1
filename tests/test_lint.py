"""Lints: what they find, where, and what they leave alone."""

import re
from pathlib import Path

import pytest
from cli_tools import run

from archdsl.api import check
from archdsl.diagnostics import Diagnostic
from archdsl.resources import error_codes, error_page

SPEC = """
{before}
block layer(heads = 4{hyper}) {{
  attention: mha(heads: heads)
  mask: causal
  ffn: mlp(hidden: 256)
  {slots}
}}
model m(layers = {layers}) {{
  vocab: {vocab}
  context: 64
  width: {width}
  blocks: layers * layer
  head: lm
}}
"""


MODEL = "model m { vocab: 1024 context: 64 width: 64 blocks: 2 * layer head: lm }"


def findings(**parts: object) -> list[Diagnostic]:
    defaults = {"before": "", "hyper": "", "slots": "", "layers": 2, "vocab": 1024, "width": 64}
    return list(check(text=SPEC.format(**{**defaults, **parts})))


def test_nothing_is_said_of_a_plain_spec() -> None:
    assert findings() == []


@pytest.mark.parametrize(
    ("parts", "code", "place"),
    [
        ({"hyper": ", spare = 3"}, "W0201", "spare"),
        ({"before": "let spare = 3"}, "W0201", "let spare = 3"),
        ({"slots": "let spare = 3"}, "W0201", "let spare = 3"),
        (
            {"before": "block glu_mlp(x: [..., width]) -> [..., width] { return x -> linear(width) }"},
            "W0202",
            "glu_mlp",
        ),
        (
            {"before": "block softmax(x: [..., width]) -> [..., width] { return x -> linear(width) }"},
            "W0202",
            "softmax",
        ),
        ({"vocab": 1000}, "W0401", "1000"),
        ({"width": 48}, "W0402", "mha(heads: heads)"),
        ({"width": 96}, "W0403", "96"),
        ({"slots": "placement: post", "layers": 25}, "W0404", "post"),
        ({"slots": "placement: post residual: add", "layers": 25}, "W0404", "post"),
        ({"before": "block spare(x: [..., width]) -> [..., width] { return x -> linear(width) }"}, "W0201", "spare"),
        ({"slots": "placement: none norm: rmsnorm"}, "W0405", "norm: rmsnorm"),
    ],
)
def test_findings(parts: dict[str, object], code: str, place: str) -> None:
    found = {d.code: d for d in findings(**parts)}
    assert code in found
    assert not found[code].is_error
    span = found[code].span
    assert span is not None
    assert span.text.startswith(place)


@pytest.mark.parametrize(
    "parts",
    [
        {"slots": "placement: post", "layers": 24},
        {"slots": "placement: post\n  residual: deepnorm(100)", "layers": 100},
        {
            "before": "let scale_of_all = 3\nlet twice = 2 * scale_of_all",
            "hyper": ", a = twice",
            "slots": "assert a > 0",
        },
        {"vocab": 50},
    ],
)
def test_what_is_fine(parts: dict[str, object]) -> None:
    assert findings(**parts) == []


EQUATIONS = """
block layer({tensors}) -> [batch, time, width] {{
  {body}
}}
model m(tokens: token[batch, time], padding_mask: padding[batch, time]) -> [batch, time, 1024] {{
  x = tokens -> embedding(1024, 64)
  y = x -> linear(64)
  return layer({given}) -> linear(1024)
}}
"""


def equations(body: str, tensors: str = "x: [batch, time, width]", given: str = "x + y") -> list[Diagnostic]:
    return list(check(text=EQUATIONS.format(body=body, tensors=tensors, given=given)))


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("h = x -> linear(width)\n x += x -> gelu", "h = x -> linear(width)"),
        ("a, b = concat(x, x) -> split(width, width)\n x += x -> gelu", "a, b = concat(x, x) -> split(width, width)"),
        ("param w: [width] = ones\n x += x -> gelu", "param w: [width] = ones"),
        ("buffer w: [width] = ones\n x += x -> gelu", "buffer w: [width] = ones"),
        ("for i in 3 { h = x -> linear(width) }\n return x", "h = x -> linear(width)"),
        ("if width > 3 { h = x -> linear(width) }\n return x", "h = x -> linear(width)"),
    ],
)
def test_tensors_that_nothing_reads(body: str, place: str) -> None:
    (dead,) = equations(body)
    assert (dead.code, dead.span and dead.span.text) == ("W0203", place)


def test_a_tensor_that_is_taken_and_not_read() -> None:
    two = "x: [batch, time, width], y: [batch, time, width]"
    (dead,) = equations("x += x -> linear(width)", two, "x, y")
    assert (dead.code, dead.span and dead.span.text) == ("W0203", "y: [batch, time, width]")
    assert equations("x += y -> linear(width)", two, "x, y") == []


def test_tensors_of_a_body_of_slots_are_read() -> None:
    text = """
    block layer(x: [batch, time, width], y: [batch, frames, width]) -> [batch, time, width] {
      attention:       mha(heads: 2)
      mask:            causal
      cross_attention: mha(heads: 2)
    }
    model m(x: [batch, time, 64], y: [batch, frames, 64], real: padding[batch, frames]) -> [batch, time, 64] {
      for i in 2 { x = layer(x, y) }
      return x
    }"""
    assert list(check(text=text)) == []


def test_a_block_that_makes_its_result_of_sizes_alone() -> None:
    text = "inline block steps(size)(x: {}) {{ return indices(size) -> cast(float) }}\n"
    text += "model m(width = 8)(x: [batch, time, width]) -> [batch, time, width] {{ return x + (x -> steps(width)) }}"
    assert list(check(text=text.format("[...]"))) == []
    assert [d.code for d in check(text=text.format("[batch, time, 8]"))] == ["W0203"]


@pytest.mark.parametrize(
    "body",
    [
        "x += x -> gelu",
        "a, b = concat(x, x) -> split(width, width)\n x += a",
        "param w: [width] = ones\n x += w",
        "h = x\n for i in 3 { h = h -> linear(width) }\n return h",
        "skips = for i in 3 { x = x -> linear(width) emit x }\n return x + skips[0]",
        "x += x -> mha(heads: 4)",
    ],
)
def test_tensors_that_are_read(body: str) -> None:
    assert equations(body) == []


@pytest.mark.parametrize(
    ("tensors", "body", "given"),
    [
        ("x: [batch, time, width], y: [batch, length, width]", "x += x / length", "x, y"),
        ("x: [batch, time, width], real: padding[batch, time]", "x += x -> gelu", "x + y, padding_mask"),
    ],
)
def test_a_tensor_may_be_there_for_its_length_or_for_a_mask(tensors: str, body: str, given: str) -> None:
    assert equations(body, tensors, given) == []


@pytest.mark.parametrize(("blocks", "said"), [("0 * layer", 1), ("[]", 1), ("1 * layer", 0)])
def test_a_model_without_layers(blocks: str, said: int) -> None:
    found = check(text=f"block layer {{ ffn: mlp(hidden: 256) }}\n{MODEL.replace('2 * layer', blocks)}")
    assert sum(d.code == "W0405" for d in found) == said


def test_a_layer_that_does_nothing() -> None:
    (found,) = check(text="block layer { dropout: 0.1 }\n" + MODEL)
    assert (found.code, found.span and found.span.text) == ("W0405", "layer")


@pytest.mark.parametrize(("hidden", "said"), [(1366, True), (1368, False), (508, False), (510, False), (514, True)])
def test_matrices_with_odd_sides(hidden: int, said: bool) -> None:
    found = check(text=f"block layer {{ ffn: mlp(hidden: {hidden}) }}\n" + MODEL)
    assert [d.code for d in found] == ["W0406"] * said
    assert all(d.span is not None and d.span.text == str(hidden) for d in found)


def test_a_vocabulary_that_one_of_several_results_predicts() -> None:
    text = """model m(vocab = 130)(tokens: token[batch, time]) {
      x = tokens -> embedding(vocab, 64)
      return x -> linear(vocab), x
    }"""
    assert [d.code for d in check(text=text)] == ["W0401"]


def test_a_vocabulary_that_is_only_read_may_have_any_size() -> None:
    text = SPEC.replace("head: lm", "head: classifier(classes: 2)")
    values = {"before": "", "hyper": "", "slots": "", "layers": 2, "vocab": 1000, "width": 64}
    assert list(check(text=text.format(**values))) == []


def test_an_assumption_that_decoding_needs_is_not_called_proved() -> None:
    """No later token reaches the indices of a top-k of masked scores, but how many there are to choose of does."""
    text = """model m(tokens: token[batch, time]) {{
      x = tokens -> embedding(32, 8)
      later = unsqueeze(indices(time), 0) > unsqueeze(indices(time), 1)
      scores = where(later, -inf, einsum("b i d, b j d -> b i j", x, x))
      best, at = topk(scores, 4)
      assume causal({0})
      y = where(max(one_hot(time)(at), 2) == 0, -inf, where(scores < best[..., 3:], -inf, scores))
      return matmul(softmax(y), x) -> linear(32)
    }}"""
    for name, said in (("at", "taken for causal without a proof"), ("best", "assumed to be causal, which is proved")):
        found = check(text=text.format(name))
        assert [d.message for d in found if d.code == "W0407"] == [f"`{name}` is {said}"]


LINTS = [code for code in error_codes() if code.startswith("W")]


@pytest.mark.parametrize("code", LINTS)
def test_a_lint_says_where_and_what_to_do_and_is_no_error(code: str, tmp_path: Path) -> None:
    """Of each page the wrong example."""
    wrong = re.search(r"## Wrong\n\n```arch\n(.+?)```", error_page(code) or "", re.DOTALL)
    assert wrong, f"an example in diagnostics/pages/{code}.md"
    (tmp_path / "spec.arch").write_text(wrong[1], encoding="utf-8")
    lint = next(d for d in check(tmp_path / "spec.arch") if d.code == code)
    assert not lint.is_error
    assert lint.span is not None
    assert lint.span.source.name.endswith("spec.arch")
    assert lint.help
    status, said = run("check", tmp_path / "spec.arch")
    assert (status, f"warning[{code}]" in said) == (0, True)


@pytest.mark.parametrize(
    ("equation", "told"),
    [
        ("cast(later, float) * -inf", True),
        ("later * -inf", True),
        ("-inf * x[:, 0]", True),
        ("where(later, -inf, s) * cast(later, float)", True),
        ("unsqueeze(where(later, 0.0, 1.0), 0) * unsqueeze(where(later, s, -inf), 0)", True),
        ("where(later, -inf, s)", False),
        ("0.5 * where(later, -inf, s)", False),
        ("where(later, -inf, s) * exp(s)", False),
        ("where(later, -inf, s) + where(later, 0.0, 1.0)", False),
        ("where(later, -1e9, s) * cast(later, float)", False),
        ("maximum(s, -inf) * cast(later, float)", False),
    ],
)
def test_infinity_times_what_may_be_zero(equation: str, told: bool) -> None:
    text = f"""model m(x: [batch, time, 8]) {{
      later = indices(time) > unsqueeze(indices(time), 1)
      s = einsum("b i d, b j d -> b i j", x, x)
      y = {equation}
      return y
    }}"""
    found = check(text=text)
    assert not [d.message for d in found if d.is_error]
    assert [d.code for d in found if d.code == "W0410"] == ["W0410"] * told


@pytest.mark.parametrize(
    ("scores", "place"),
    [
        ("where(later, -1e9, s)", "-1e9"),
        ("where(later, -10_000, s)", "-10_000"),
        ("where(~later, s, -1e30)", "-1e30"),
        ("where(later, -huge, s) -> cast(float32)", "-huge"),
        ("s + where(later, -1e9, 0)", "-1e9"),
        ("s / 4 + unsqueeze(where(later, 0, -1e5), 0)", "-1e5"),
        ("s + cast(later, float) * -1e9", "-1e9"),
        ("s - 1e9 * cast(later, float)", ""),
        ("s + (cast(x[:, :, 0] > 0, float) -> unsqueeze(1)) * -1e9", "-1e9"),
        ("where(later, -inf, s)", ""),
        ("s + where(later, -inf, 0)", ""),
        ("where(later, -100, s)", ""),
        ("where(later, -9_999, s)", ""),
        ("s * -1e9", ""),
        ("where(s > 0, -1e9, s)", ""),
        ("2 * (s + where(later, -1e9, 0))", "-1e9"),
    ],
)
def test_a_finite_number_for_minus_infinity(scores: str, place: str) -> None:
    """Where it is known to cost a step, or is added; other numbers, and those that data choose, are scores."""
    text = f"""let huge = 1e12
    model m(x: [batch, time, 8]) {{
      later = indices(time) > unsqueeze(indices(time), 1)
      s = einsum("b i d, b j d -> b i j", x, x) * huge / huge
      y = {scores}
      return matmul(softmax(y) -> cast(float), x)
    }}"""
    found = check(text=text)
    assert not [d.message for d in found if d.is_error]
    assert [d.span.text for d in found if d.code == "W0411" and d.span] == ([place] if place else [])
