"""What is proved of random models holds for their numbers, and what is said to be read is read: see
random_specs/mixing.py."""

import pytest
from random_specs.mixing import CALLS, GRAPHS, PARTS, judged
from zoo import sizes


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [True, False])
def test_random_claims_hold(fixed: bool) -> None:
    """2,090 models, ten times as many with --every; more: python -m tests.random_specs.mixing"""
    for seed in range(10 if sizes.every else 1):
        counts = judged(PARTS, GRAPHS, seed, fixed)
        total = PARTS + GRAPHS * CALLS
        assert counts["proved"] + counts["refused"] == total
        assert counts["proved"] > total / 4
        assert counts["degenerate"] < total / 3
        assert counts["shown"] > 10
