"""The table of `docs/checkpoints.md`: which types of transformers are imported by hand, by lift, or not, and why."""

from __future__ import annotations

import json
import re

from archdsl.interop.checkpoint_file import shipped
from docs.pages import ROOT

MARKS = re.compile(r"(<!-- benchmarks/lift.json -->\n).*?(<!-- end -->\n)", re.DOTALL)
STAGES = {
    "not built": "no tiny model of it was built",
    "not exported": "PyTorch does not trace it",
    "not lifted": "the language has no words for it",
    "wrong spec": "the spec that is made is wrong",
    "differs": "the spec that is made is another model",
    "too slow": "it takes too long",
    "failed": "the lift fails",
    "not tried": "not tried yet",
}
"""Why a type is not lifted."""


def with_types(page: str) -> str:
    """The page with the table of what `benchmarks/lift.py` found."""
    assert MARKS.search(page)
    return MARKS.sub(lambda m: f"{m[1]}{types_table()}\n{m[2]}", page)


def types_table() -> str:
    """Types with a decoder in transformers, by how they are imported; those that are not with the reason."""
    found = json.loads((ROOT / "benchmarks" / "lift.json").read_text(encoding="utf-8"))
    types, by_hand = found["types"], shipped()
    others = {kind: row for kind, row in types.items() if kind not in by_hand}
    hand = {kind: row["stage"] for kind, row in types.items() if kind in by_hand and row["stage"] != "not tried"}
    lifted = [kind for kind, row in others.items() if row["stage"] == "equal"]
    about = (
        f"transformers {found['transformers']} has a decoder for {len(types)} types. By hand, in the table above: "
        f"{len(types) - len(others)}. By lift, a tiny model of each being equal to its class: {len(lifted)}. "
        f"Neither: {len(others) - len(lifted)}. `benchmarks/lift.py` tried {len(hand)} of those by hand, too, of which "
        f"{[*hand.values()].count('equal')} are equal when they are lifted."
    )
    lines = [about, "", "| how | `model_type` |", "|---|---|", f"| by lift | {_names(lifted)} |"]
    for stage, why in STAGES.items():
        if kinds := [kind for kind, row in others.items() if row["stage"] == stage]:
            lines.append(f"| neither: {why} | {_names(kinds)} |")
    reasons = [(kind, row["why"]) for kind, row in others.items() if row["why"] and row["stage"] != "equal"]
    if reasons:
        lines += ["", "| `model_type` | why it is not lifted |", "|---|---|"]
        lines += [f"| `{kind}` | {_cell(why)} |" for kind, why in reasons]
    return "\n".join(lines)


def _names(kinds: list[str]) -> str:
    return ", ".join(f"`{kind}`" for kind in kinds)


def _cell(text: str) -> str:
    """A message as the cell of a table: at most 160 characters of its first line."""
    line = " ".join(text.split())
    line = line if len(line) <= 160 else f"{line[:159].rstrip()}…"
    line += "`" * (line.count("`") % 2)
    return line.replace("|", "\\|").replace("<", "&lt;")
