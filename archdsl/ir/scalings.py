"""Scalings of rotary embeddings, by name, with their numbers and defaults (None: must be given; NaN: may be left
out)."""

from __future__ import annotations

import math

SCALINGS: dict[str, dict[str, float | None]] = {
    # Position interpolation (Chen et al., 2023): every angle divided by the factor.
    "linear": {"factor": None},
    # NTK-aware: theta * factor ** (dims / (dims - 2)).
    "ntk": {"factor": None},
    # YaRN (Peng et al., 2023), section 3.2 to 3.4. Scores are scaled by (0.1 * mscale * ln(factor) + 1) ** 2.
    "yarn": {"factor": None, "original": None, "beta_fast": 32, "beta_slow": 1, "mscale": 1, "truncate": 1},
    # Llama 3.1.
    "llama3": {"factor": None, "low": 1, "high": 4, "original": None},
    # LongRoPE (Ding et al., 2024), Phi-3: a divisor for each pair, `long` beyond the original context and `short`
    # within.
    "longrope": {"short": None, "long": None, "original": None, "factor": math.nan},
}
