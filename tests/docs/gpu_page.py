"""The table of `docs/gpu.md`: which kernel of attention each family of the zoo takes on which card."""

from __future__ import annotations

import re
from collections import defaultdict

from zoo.sizes import place, tables

import archdsl
from archdsl.estimates.attention_kernels import StoredScores, taken
from archdsl.estimates.dtypes import Dtype
from archdsl.estimates.hardware import device
from archdsl.passes.flatten import FlatGraph, FlatOp, flatten, walk

CARDS: dict[str, tuple[str, Dtype]] = {
    "A100, L4, RTX 4090": ("a100_sxm_80gb", "bfloat16"),
    "H100, B200": ("h100_sxm", "bfloat16"),
    "T4, V100 (float16)": ("t4", "float16"),
}
TABLE = re.compile(r"^\| families \|.*?\n\n", re.MULTILINE | re.DOTALL)


def with_table(page: str) -> str:
    """The page with the table of the present code."""
    return TABLE.sub(kernel_table() + "\n\n", page, count=1)


def kernel_table() -> str:
    """Families that take the same kernels for whole sequences in training, at the sizes of their first model."""
    first = {name.partition(":")[0]: name for name in reversed(tables())}
    rows: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for family, name in sorted(first.items()):
        path, model = place(name)
        loaded = archdsl.load(path, model=model)
        graph, sizes = flatten(loaded), {s.name: 1 if s.name == "batch" else 2048 for s in loaded.symbols}
        cells = tuple(_kernels(graph, sizes, *card) for card in CARDS.values())
        if any(cells):
            rows[cells].append(family)
    lines = [f"| families | {' | '.join(CARDS)} |", f"|---|{'---|' * len(CARDS)}"]
    ordered = sorted(rows.items(), key=lambda row: -len(row[1]))
    return "\n".join([*lines, *(f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in ordered)])


def _kernels(graph: FlatGraph, sizes: dict[str, int], card: str, dtype: Dtype) -> str:
    known = StoredScores(device(card), sizes, dtype, trains=True)
    assert known.sm is not None
    found = set()
    for node in walk(graph):
        if isinstance(node, FlatOp) and node.node.op.kernels(node.node):
            call = known.call(node)
            if call is not None:
                found.add(taken(call, known.sm))
            else:
                found.add("flex" if node.node.op.saves(node.node).scores else "written out")
    return ", ".join(sorted(found))
