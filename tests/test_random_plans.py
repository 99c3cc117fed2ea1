"""The plan of decoding of random models says what their numbers do: see random_specs/plans.py."""

import pytest
from random_specs.plans import judged
from zoo import sizes

MODELS = 100


@pytest.mark.slow
def test_plans_of_random_models_hold() -> None:
    """Ten times as many with --every; more: python -m tests.random_specs.plans"""
    for seed in range(10 if sizes.every else 1):
        counts = judged(MODELS, seed)
        assert counts["planned"] + counts["refused"] == MODELS
        assert counts["planned"] > MODELS / 3
        assert counts["refused"] - counts["not proved causal"] < MODELS / 5
        assert counts["no number"] < MODELS / 10
        assert counts["emitted"] > MODELS / 20
        assert counts["of two lengths"] > counts["emitted"] / 2
        assert counts["caches"] > MODELS / 4
        assert counts["caches that change nothing"] < counts["caches"] / 5
