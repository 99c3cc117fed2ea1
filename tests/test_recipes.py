"""The recipes of CONTRIBUTING.md: what each shows is added here, and works everywhere."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import torch
from decode_tools import differences, torch_differences
from onnx_tools import distance, onnx_bytes
from onnx_tools import run as run_onnx

import archdsl
from archdsl.api import to_torch
from archdsl.dependence.causality import prove
from archdsl.estimates import mask_density
from archdsl.ir.dims import num
from archdsl.ir.masks import RULES, Mask, PositionRule

ROOT = Path(__file__).resolve().parents[1]


def shown(recipe: str) -> list[str]:
    """The blocks of code in a section of CONTRIBUTING.md, without indentation."""
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition(f"\n## {recipe}\n")
    assert rest, f"CONTRIBUTING.md has no section {recipe!r}"
    blocks = re.findall(r"^ *```\w+\n(.*?)^ *```$", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in blocks]


MASKED = """model m(vocab = 30, width = 8)(tokens: token[batch, time]) {
  x = tokens -> embedding(vocab, width)
  x += x -> mha(heads: 2, mask: causal & band(1, 4))
  return x -> linear(vocab) as head
}"""


@pytest.mark.slow
def test_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = shown("Add a mask")
    for name, rule in eval(f"{{{row}}}", {"PositionRule": PositionRule}).items():
        monkeypatch.setitem(RULES, name, rule)
    time = 11
    seen = torch.tensor([[1 <= abs(q - k) < 4 for k in range(time)] for q in range(time)])
    one = archdsl.load(
        text=f"model m(x: [batch, time, 4], v: [batch, time, {time}]) {{ return sdpa(x, x, v, mask: band(1, 4)) }}"
    )
    module, inputs = to_torch(one), {"x": torch.zeros(1, time, 4), "v": torch.eye(time)[None]}
    assert torch.equal(module(**inputs)[0] > 0, seen)
    assert distance(run_onnx(onnx_bytes(one, module), inputs)[0], module(**inputs)) < 1e-6
    assert mask_density.count(Mask("band", (num(1), num(4))), time, time) == int(seen.sum())

    model = archdsl.load(text=MASKED)
    assert prove(model) == []
    assert [k.window for k in archdsl.memory(model, seq=16, dtype="float32").kept] == [4, 4]
    assert max((differences(model) | torch_differences(model)).values()) < 1e-5
