"""Scalings of rotary embeddings, by name, with their numbers."""

from __future__ import annotations

from archdsl.frontend.schemes import Field

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
