"""`inf` is a number among tensors and fills new places, in both back ends; it is no size and no other option."""

from pathlib import Path

import pytest

import archdsl
from archdsl import api
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.run.verify import verify

MODEL = "model m(x: [batch, time, 8]) {{\n  {}\n}}\n"


@pytest.mark.parametrize(
    "body",
    [
        "return x * (inf + 1)",
        "return x[:, :inf]",
        "return x -> linear(inf)",
        "return x -> linear(8, init: normal(inf))",
        "for i in inf { x = x + 1 } return x",
        "return x -> pad(-inf)",
        "return x -> softmax(axis: -inf)",
        "return x -> dropout(inf)",
        'return x -> rearrange("b t (n d) -> b t n d", n: inf)',
        "assert inf > 3 return x",
        "return x -> mha(heads: 2, mask: window(inf))",
        "let a = if inf then 1 else 2 return x + a",
        "return inf",
        "let a = maximum(inf, 3) return x + a",
        "param w: [8] = -inf return x + w",
        "return x + 2 * inf",
        "return fill(-inf, 2)",
        "let p = inf return x -> layernorm(eps: p)",
    ],
)
def test_no_size_and_no_other_option_is_infinite(body: str) -> None:
    (found,) = [d for d in archdsl.check(text=MODEL.format(body)) if d.is_error]
    assert found.code == "E0203"
    assert "inf`" in found.message


def test_no_name_is_called_so() -> None:
    (found,) = archdsl.check(text=MODEL.format("inf = x return inf"))
    assert found.code.startswith("E01")


EVERYWHERE = """
let low = -inf

block clipped(fill = -inf)(x: [batch, time, width]) -> [batch, time, width] {
  let high = inf
  buffer bias: [width] = where(indices(width) < 2, 0, -inf)
  y = scan h: [batch, width] = -inf for t in x {
    h = maximum(h, t)
    emit h
  }
  z = where(x > 0, x, low) -> minimum(high) -> exp
  w = where(x > 0, x, fill) -> exp -> minimum(1)
  best = x -> pad(2, axis: -1, value: low) -> max(keep: true)
  before = exp(x -> shift(2, fill: fill)) -> minimum(1)
  return y + z + w + (best + before) * 0.1 + exp(bias) + where(x > -inf, x, - -inf) + exp(x - inf)
}

model m {
  vocab: 64
  context: 32
  width: 16
  blocks: 2 * clipped + clipped(fill: inf)
  norm: layernorm
  head: lm
}
"""


@pytest.mark.slow
def test_both_back_ends_take_it_as_the_formatter_writes_it() -> None:
    text = api.format_text(text=EVERYWHERE)
    assert api.format_text(text=text) == text
    model = archdsl.load(text=text)
    report = verify(model, GraphOptions(), weights=None, seed=0, batch=2, time=12, device="cpu")
    assert report.agrees
    assert report.no_decode is None


def test_equations_are_written_out_with_it(tmp_path: Path) -> None:
    path = tmp_path / "m.arch"
    path.write_text(EVERYWHERE, encoding="utf-8")
    assert "clipped(fill: inf)" in api.expand(path)
