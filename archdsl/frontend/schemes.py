"""Schemes, which are ways to draw a weight, and scalings of rotary embeddings: by name, each with its numbers."""

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

SCALINGS: dict[str, dict[str, Field]] = {
    # Position interpolation (Chen et al., 2023): every angle divided by the factor.
    "linear": {"factor": Field("positive")},
    # NTK-aware: theta * factor ** (dims / (dims - 2)).
    "ntk": {"factor": Field("positive")},
    # YaRN (Peng et al., 2023), section 3.2 to 3.4. Scores are scaled by (0.1 * mscale * ln(factor) + 1) ** 2.
    "yarn": {
        "factor": Field("positive"),
        "original": Field("size"),
        "beta_fast": Field("positive", 32),
        "beta_slow": Field("positive", 1),
        "mscale": Field("number", 1),
        "truncate": Field("number", 1),
    },
    # Llama 3.1.
    "llama3": {
        "factor": Field("positive"),
        "low": Field("positive", 1),
        "high": Field("positive", 4),
        "original": Field("size"),
    },
    # LongRoPE (Ding et al., 2024), Phi-3: a divisor for each pair, `long` beyond the original context and `short`
    # within.
    "longrope": {
        "short": Field("positive", many=True),
        "long": Field("positive", many=True),
        "original": Field("size"),
        "factor": Field("positive", needed=False),
    },
}
ASCENDING = {"yarn": ("beta_slow", "less than", "beta_fast"), "llama3": ("low", "at most", "high")}
"""Two numbers, and what the first must be of the second."""
