"""Schemes: ways to draw a weight, by name. Each is a name, its numbers, and a default value for each (None: must be
given)."""

from __future__ import annotations

SCHEMES: dict[str, dict[str, float | None]] = {
    "zeros": {},
    "ones": {},
    "constant": {"value": None},
    "normal": {"std": 0.02, "mean": 0},
    "truncated_normal": {"std": 0.02, "limit": 2},
    "uniform": {"bound": None},
    "xavier": {"gain": 1},
    "xavier_normal": {"gain": 1},
    "kaiming": {},
    "kaiming_normal": {},
    "orthogonal": {"gain": 1},
    # GPT-2: normal(std), the last linear of each residual branch by 1 / sqrt(2 * layers).
    "depth_scaled": {"std": 0.02, "layers": None},
    # SmallInit (Nguyen and Salazar, 2019): normal(sqrt(2 / (5 * width))).
    "small": {},
    # DeepNet (Wang et al., 2022): xavier, by beta = (8 * layers) ** -1/4 for values, outputs and feed-forwards.
    "deepnorm": {"layers": None},
}
"""What `default` is, which needs no name: linear maps and convolutions uniform within 1 / sqrt(fan in), embeddings
normal(0.02), biases of linear maps uniform within 1 / sqrt(fan in), gains one, biases of norms zero."""

FIXED = ("zeros", "ones", "constant")
"""Those that draw nothing."""
