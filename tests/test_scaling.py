"""Scaling laws, against what their papers say of them."""

import json

import pytest
from cli_tools import run

import archdsl
from archdsl.estimates.scaling import LAWS, PF_DAY, LawName, run_of, scaling

GOPHER = 5.76e23
"""FLOPs of Gopher's training, which Chinchilla had too."""


def test_chinchilla_as_published() -> None:
    # Hoffmann et al., section 3.3: 40 billion parameters for Gopher's compute.
    assert run_of("chinchilla", flops=GOPHER).parameters == pytest.approx(40e9, rel=0.01)
    # Table 2: the exponents 0.46 and 0.54.
    one, hundred = (run_of("chinchilla", flops=c) for c in (1e21, 1e23))
    assert hundred.parameters / one.parameters == pytest.approx(100**0.46, rel=0.03)
    assert hundred.tokens / one.tokens == pytest.approx(100**0.54, rel=0.03)


def test_replication_as_published() -> None:
    # Chinchilla itself, 70 billion parameters and 20 tokens for each, is what the new fit advises.
    found = run_of("replication", flops=GOPHER)
    assert found.parameters == pytest.approx(70e9, rel=0.05)
    assert found.tokens == pytest.approx(1.4e12, rel=0.06)
    assert found.tokens_per_parameter == pytest.approx(20, rel=0.1)
    # The data's share of the exponents: a = 0.51.
    ten = run_of("replication", flops=10 * GOPHER)
    assert ten.parameters / found.parameters == pytest.approx(10**0.512, rel=0.002)


def test_kaplan_as_published() -> None:
    # Ten times the compute: 5.4 times the parameters; at one PF-day 1.3e9 of them.
    found, ten = (run_of("kaplan", flops=c * PF_DAY) for c in (1, 10))
    assert found.parameters == pytest.approx(1.3e9)
    assert ten.parameters / found.parameters == pytest.approx(5.37, rel=0.001)
    assert found.loss == pytest.approx(2.66, abs=0.01)
    # Equation 1.5 becomes 1.1, (8.8e13 / N)^0.076, where tokens abound.
    endless = run_of("kaplan", params=1e9, tokens=1e30)
    assert endless.loss == pytest.approx((6.4e13 / 1e9) ** 0.076, rel=1e-6)
    assert endless.loss == pytest.approx((8.8e13 / 1e9) ** 0.076, rel=0.03)
    assert endless.best_loss is None


@pytest.mark.parametrize("law", ["chinchilla", "replication"])
def test_an_optimum_is_one(law: LawName) -> None:
    best = run_of(law, flops=GOPHER)
    for factor in (0.8, 0.99, 1.01, 1.25):
        other = run_of(law, flops=GOPHER, params=factor * best.parameters)
        assert other.loss > best.loss
        assert other.best_loss == pytest.approx(best.loss, rel=1e-12)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("flops", [1e18, 1e21, GOPHER, 1e27])
def test_every_question_finds_the_same_optimum(law: LawName, flops: float) -> None:
    best = run_of(law, flops=flops)
    assert 6 * best.parameters * best.tokens == pytest.approx(flops)
    for found in (run_of(law, params=best.parameters), run_of(law, tokens=best.tokens)):
        for name in ("flops", "parameters", "tokens", "loss", "best_loss", "tokens_per_parameter"):
            assert getattr(found, name) == pytest.approx(getattr(best, name), rel=1e-9)


@pytest.mark.parametrize("law", LAWS)
def test_of_two_the_third_follows(law: LawName) -> None:
    found = run_of(law, params=70e9, tokens=1.4e12)
    assert found.flops == pytest.approx(5.88e23)
    for other in (run_of(law, flops=5.88e23, params=70e9), run_of(law, flops=5.88e23, tokens=1.4e12)):
        assert other.loss == pytest.approx(found.loss)
        assert (other.parameters, other.tokens) == (pytest.approx(70e9), pytest.approx(1.4e12))


@pytest.mark.parametrize(
    "given", [{}, {"flops": 1e21, "params": 1e9, "tokens": 1e10}, {"flops": 0.0}, {"params": -1.0}]
)
def test_questions_that_are_none(given: dict[str, float]) -> None:
    with pytest.raises(archdsl.ArchError, match="E0509"):
        scaling(**given)


def test_command() -> None:
    status, out = run("scaling", "--flops", "5.76e23")
    assert status == 0
    assert all(law in out for law in LAWS)
    assert "40.3B" in out
    found = json.loads(run("scaling", "--params", "70B", "--tokens", "1.4T", "--json")[1])
    assert (found["optimal"], found["given"]) == (False, {"params": 70e9, "tokens": 1.4e12})
    assert [r["law"] for r in found["runs"]] == list(LAWS)
    assert run("scaling", "--params", "70B", "--tokens", "1.4T")[1].count("best at these FLOPs") == 1


@pytest.mark.parametrize(
    "options", [(), ("--flops", "x"), ("--flops", "1e99"), ("--flops", "1", "--params", "1", "--tokens", "1")]
)
def test_command_refuses(options: tuple[str, ...]) -> None:
    assert run("scaling", *options)[0] == 2
