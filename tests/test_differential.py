"""Random specs, each compiled and compared with what the compiler says of it: see random_specs/differ.py."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from random_specs.differ import EVERYTHING, MismatchError, differ, forget
from random_specs.names import POOL, SLOTS, renamed
from random_specs.strategies import HOSTILE, Twins, twins

from archdsl.api import check, load
from archdsl.diagnostics import ArchError

KEPT = sorted((Path(__file__).parent / "random_specs" / "kept").glob("*.arch"))


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(twins(HOSTILE))
def test_random_specs(made: Twins) -> None:
    """Many more: python -m tests.random_specs.differ --count 3000 --seed 1"""
    try:
        differ(made.text, more=(), tame=made.tame)
    finally:
        forget()


@pytest.mark.parametrize("path", KEPT, ids=lambda p: p.stem)
def test_specs_that_once_failed(path: Path) -> None:
    """What takes long is compared where the first line asks for it."""
    text = path.read_text(encoding="utf-8")
    asked = re.match(r"# ([\w-]+(?:, [\w-]+)*): ", text)
    differ(text, more=EVERYTHING.intersection(asked[1].split(", ") if asked else ()))


DECODER = """
block layer { attention: mha(heads: 2)  mask: causal  position: rope  ffn: mlp(hidden: 2 * width) }
model m(width = 8, layers = 2) {
  vocab:   11
  context: 16
  width:   width
  blocks:  layers * layer
  head:    lm
}
"""


@pytest.mark.parametrize(
    ("was", "becomes", "found"),
    [
        ("super().__init__()", "super().__init__(); self.more = nn.Parameter(torch.zeros(1))", "parameters"),
        ("self.up = nn.Linear(config.width, hidden)", "self.up = nn.Linear(hidden, hidden)", "parameters"),
        ("token_embedding", "embedded", "parameters"),
        ("nn.Linear(config.width, config.vocab, bias=False)", "nn.Linear(8, 11, bias=False, device='cpu')", "meta"),
        ("return self.head(x)", "return self.head(x).detach()", "gradients"),
        ("return self.head(x)", "return self.head(x)[:, 1:]", "shapes"),
        ("x = block(x, rope)", "x = 0.9 * block(x, rope)", "onnx portable"),
        ("hidden=2 * config.width)", "hidden=16)", "config: with width"),
        ("range(config.layers)", "range(2)", "config: with layers"),
        ("device), self.config.width // 2,", "device), 4,", "config: with width"),
        ("(0 if self.first else self.start) + torch", "0 + torch", r"decoding in torch \(steps"),
        ("None if shortest == longest else lengths", "None", r"decoding in torch \(left, "),
        ("return checkpoint(", "return 0.9 * checkpoint(", "section --with generate --checkpoint selective"),
    ],
)
def test_a_difference_is_found(was: str, becomes: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: a module with a bug does not pass."""
    import decode_tools
    from random_specs import differ as tools

    honest, changed = tools.emit, []

    def emit(*given: Any) -> str:
        source = honest(*given)
        changed.append(was in source)
        return source.replace(was, becomes)

    monkeypatch.setattr(tools, "emit", emit)
    monkeypatch.setattr(tools, "source_of", emit)
    monkeypatch.setattr(decode_tools, "emit", emit)
    with pytest.raises(MismatchError, match=found):
        differ(DECODER, more={kind for kind in EVERYTHING if found.startswith(kind[:-1])})
    assert any(changed)


def test_another_name_that_means_another_thing_is_found() -> None:
    text = "model m(x: [batch, time, 8]) { h = x -> linear(8)  y = h -> tanh  return h + {} }"
    differ(text.replace("{}", "y"), tame=text.replace("{}", "y").replace("h", "t_1").replace("tant_1", "tanh"))
    with pytest.raises(MismatchError, match="twin"):
        differ(text.replace("{}", "y"), tame=text.replace("{}", "h"))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(twins(hostile=True))
def test_hostile_specs_are_accepted(made: Twins) -> None:
    for text in made:
        assert [d for d in check(text=text, allow_noncausal=True) if d.is_error] == []


def test_names_are_replaced_where_they_mean_the_same() -> None:
    declarations = [
        "block own_1(arg_2)(x_3: [batch, time, width]) {\n  t_4 = x_3 -> linear(width) -> gelu\n"
        "  return t_4 * arg_2\n}",
        'model model_5(width = 8)(x_6: [batch, time, width]) {\n  assert width > 0, "t_4 own_1"  # t_4\n'
        "  for i_7 in 2 { x_6 = x_6 -> own_1(arg_2: i_7) }\n  return x_6\n}",
    ]
    for wanted in (*POOL, "own_1"):
        texts = renamed(declarations, lambda options, wanted=wanted: wanted if wanted in options else options[0])
        text = "\n".join(texts)
        assert '"t_4 own_1"  # t_4' in text
        assert [d for d in check(text=text) if d.is_error] == []
        if wanted not in SLOTS and wanted not in ("linear", "gelu"):
            assert text.splitlines()[0] == f"block {wanted}(arg_2)(x_3: [batch, time, width]) {{"


def test_transformer_xl_of_an_odd_width_is_refused() -> None:
    text = "model m(q: [batch, 1, time, 3]) { return sdpa(q, q, q, position: transformer_xl) }"
    with pytest.raises(ArchError, match="E0204"):
        load(text=text)
    assert load(text=text.replace("transformer_xl", "transformer_xl(width: 4)"))


def test_rope_of_one_pair_is_not_stretched() -> None:
    """`ntk` divides by the number of channels less 2."""
    text = "model m(x: [batch, time, 8]) { return x -> rope(dims: 2, scaling: ntk(factor: 2)) }"
    with pytest.raises(ArchError, match="E0204"):
        load(text=text)
    assert load(text=text.replace("dims: 2", "dims: 4"))
