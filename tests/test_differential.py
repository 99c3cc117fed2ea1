"""Random specs, each compiled and compared with what the compiler says of it: see random_specs/differ.py."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from random_specs.differ import MismatchError, differ, forget
from random_specs.strategies import specs

from archdsl.api import load
from archdsl.diagnostics import ArchError

KEPT = sorted((Path(__file__).parent / "random_specs" / "kept").glob("*.arch"))


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(specs())
def test_random_specs(text: str) -> None:
    """Many more: python -m tests.random_specs.differ --count 2000 --seed 1"""
    try:
        differ(text, everything=False)
    finally:
        forget()


@pytest.mark.parametrize("path", KEPT, ids=lambda p: p.stem)
def test_specs_that_once_failed(path: Path) -> None:
    differ(path.read_text(encoding="utf-8"))


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: a module with a bug does not pass."""
    from random_specs import differ as tools

    (spec,) = (p for p in KEPT if p.stem == "attention_without_heads")
    text = spec.read_text(encoding="utf-8")
    honest = tools.emit
    monkeypatch.setattr(tools, "emit", lambda model: honest(model).replace("F.linear(", "0.9 * F.linear(", 1))
    monkeypatch.setattr(tools, "source_of", tools.emit)
    with pytest.raises(MismatchError, match="onnx portable"):
        differ(text)


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
