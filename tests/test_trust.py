"""`benchmarks/trust.py`, in small, and what the documentation quotes of its figures."""

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
FIGURES: dict[str, Any] = json.loads((ROOT / "benchmarks" / "trust.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def trust() -> ModuleType:
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("trust", ROOT / "benchmarks" / "trust.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.path[:]
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_the_readme_quotes_what_was_measured() -> None:
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    training, types, published = (FIGURES[part] for part in ("training", "types", "published"))
    worst = max(run["largest_difference"] for run in training["runs"])
    assert {run["steps"] for run in training["runs"]} == {200}
    assert f"differ by at most {worst:.1e} at any of 200 steps" in page
    assert f"parameter counts equal {types['counts_equal']}/{types['types']}" in page
    assert f"logits equal {types['logits_equal']}/{types['types']}" in page
    assert f"at most {types['largest_difference']:.1e} of the largest logit" in page
    assert f"parameter counts equal {published['counts_equal']}/{published['configs']}" in page
    for part in (training, types, published):
        assert f"{part['date']}, torch {part['versions']['torch']}" in page
        assert f"transformers {part['versions']['transformers']}" in page


def test_the_figures_are_good() -> None:
    assert all(run["largest_difference"] <= 1e-4 for run in FIGURES["training"]["runs"])
    assert FIGURES["types"]["types"] == FIGURES["types"]["counts_equal"] == FIGURES["types"]["logits_equal"]
    assert len(FIGURES["published"]["differ"]) == FIGURES["published"]["configs"] - FIGURES["published"]["counts_equal"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_two_steps_of_training(name: str, trust: ModuleType, tmp_path: Path) -> None:
    """Losses are equal, and are not where weights are others."""
    torch.manual_seed(0)
    theirs = trust.CLASSES[name](trust.SHAPES[name])
    ours = trust.imported(theirs, tmp_path)
    assert all(abs(a - b) <= trust.CLOSE for a, b in trust.losses(ours, theirs, name, 2))
    with torch.no_grad():
        for weight in ours.parameters():
            weight.mul_(1.1)
    assert all(abs(a - b) > trust.CLOSE for a, b in trust.losses(ours, theirs, name, 2))


@pytest.mark.slow
def test_counts_of_a_class(trust: ModuleType) -> None:
    same, apart = trust.of_a_class("gpt2")
    assert same
    assert 0 <= apart < 1e-5
    known = json.loads(trust.PUBLISHED.read_text(encoding="utf-8"))
    assert set(trust.class_counts(known["gpt2"]["config"])) == {124_439_808}


@pytest.mark.slow
def test_a_loss_that_is_nan_is_found_and_so_are_no_types(trust: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "imported", lambda *_: torch.nn.Linear(1, 1))
    monkeypatch.setitem(trust.CLASSES, "gpt2", lambda _: None)
    monkeypatch.setattr(trust, "losses", lambda *_: [(1.0, 1.0), (math.nan, 1.0), (1.0, 1.0)])
    row = trust.trained("gpt2", 3)
    assert (row["largest_difference"], row["at_step"]) == (math.inf, 2)
    monkeypatch.setattr(sys, "argv", ["trust.py", "--only", "types"])
    for types, equal in ((0, 0), (2, 1)):
        found = {"types": types, "counts_equal": types, "logits_equal": equal}
        monkeypatch.setattr(trust, "types", lambda _, found=found: found)
        assert trust.main() == 1
