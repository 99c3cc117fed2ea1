"""Schemes: ways to draw a weight, by name, each with its numbers."""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """A number of a scheme or scaling: its kind, and what it is where nobody gives it."""

    kind: str
    default: float | None = None
    needed: bool = True
    """Whether one without a default must be given."""
    many: bool = False
    """Whether it is a list of such numbers."""


SCHEMES: dict[str, dict[str, Field]] = {
    "zeros": {},
    "ones": {},
    "constant": {"value": Field("number")},
    "normal": {"std": Field("nonnegative", 0.02), "mean": Field("number", 0)},
    # Within `limit` times the standard deviation.
    "truncated_normal": {"std": Field("positive", 0.02), "limit": Field("positive", 2)},
    "uniform": {"bound": Field("nonnegative")},
    "xavier": {"gain": Field("nonnegative", 1)},
    "xavier_normal": {"gain": Field("nonnegative", 1)},
    "kaiming": {},
    "kaiming_normal": {},
    "orthogonal": {"gain": Field("number", 1)},
    # GPT-2: normal(std), the last linear of each residual branch by 1 / sqrt(2 * layers).
    "depth_scaled": {"std": Field("nonnegative", 0.02), "layers": Field("positive")},
    # SmallInit (Nguyen and Salazar, 2019): normal(sqrt(2 / (5 * width))).
    "small": {},
    # DeepNet (Wang et al., 2022): xavier, by beta = (8 * layers) ** -1/4 for values, outputs and feed-forwards.
    "deepnorm": {"layers": Field("positive")},
}
"""What `default` is, which needs no name: linear layers and convolutions uniform within 1 / sqrt(fan in), embeddings
normal(0.02), biases of linear layers uniform within 1 / sqrt(fan in), gains one, biases of norms zero."""

GIVEN, SAVED = "given", "saved"
"""What stands for the first value of a buffer that belongs to the state: `given`, which comes with the weights, and
`saved(value)`."""

FIXED = ("zeros", "ones", "constant")
"""Those that draw nothing."""
