"""Tiny settings of the taggers."""

from __future__ import annotations

NAMES = ("bilstm_tagger", "lstm_tagger", "bigru_tagger", "birnn_tagger", "deep_bilstm_tagger")
TINY: dict[str, dict[str, int]] = {f"tagger:{name}": {"vocab": 97, "width": 12, "hidden": 10} for name in NAMES}
