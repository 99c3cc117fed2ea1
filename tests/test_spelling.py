"""Every number of a model is spelled by an expression that comes to it, in the names of the block where it stands: for
the spec as it is written, and for every other setting of its hyper-parameters."""

import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from random_specs.strategies import specs
from spelling_tools import Spelling, alike, worth

import archdsl.ir.elaborate.blocks
import archdsl.ir.static
from archdsl import api
from archdsl.diagnostics import ArchError
from archdsl.ir.dims import Value, expr_text
from archdsl.ir.graph import Model
from archdsl.resources import zoo_files

HERE = Path(__file__).parent
SMALL = [*sorted((HERE / "truth").glob("*.arch")), *sorted((HERE / "random_specs" / "kept").glob("*.arch"))]
LARGE = [*zoo_files().values(), *sorted((HERE / "parity" / "specs").glob("*.arch"))]
EXAMPLES = int(os.environ.get("ARCHDSL_EXAMPLES", "25"))


def load(path: Path, **setting: str) -> Model | None:
    try:
        return api.load(path, set=setting, allow_noncausal=True)
    except ArchError:
        return None


@pytest.mark.parametrize("path", [*SMALL, *LARGE], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_numbers_are_as_they_are_spelled(path: Path) -> None:
    model = load(path)
    if model is None:
        assert path.read_text(encoding="utf-8").startswith(("# must: refuse", "# must: right")), "a spec of the zoo"
        return
    found = Spelling(model)
    assert found.wrong == []
    assert found.spelled


def others(value: Value) -> Iterator[str]:
    """Other settings of a hyper-parameter."""
    if isinstance(value, int):
        yield from map(str, (2 * value, value + 1, 3 * value // 2, max(value // 2, 1)))
    elif isinstance(value, Fraction | float):
        yield str(float(value) / 2)


def under_other_settings(model: Model, text: str) -> int:
    """How many numbers were compared: those of the model that is made with another setting, where it is of the same
    nodes, against the spellings of the first."""
    first, compared = Spelling(model), 0
    for field in model.config:
        for setting in others(field.value.value):
            try:
                second = Spelling(api.load(text=text, set={field.name: setting}, allow_noncausal=True))
            except ArchError:
                continue
            assert second.wrong == []
            if [where for where, *_ in first.spelled] != [where for where, *_ in second.spelled]:
                continue
            for (where, expr, _, _), (_, _, value, names) in zip(first.spelled, second.spelled, strict=True):
                found = worth(expr, names)
                assert alike(found, value), (
                    f"{where}, {field.name}={setting}: `{expr_text(expr)}`, {found}, not {value}"
                )
                compared += 1
    return compared


def test_spellings_hold_for_other_settings() -> None:
    compared = 0
    for path in SMALL:
        model = load(path)
        if model is not None:
            compared += under_other_settings(model, path.read_text(encoding="utf-8"))
    assert compared > 10_000


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(specs())
def test_random_specs(text: str) -> None:
    model = api.load(text=text, allow_noncausal=True)
    assert Spelling(model).wrong == []
    under_other_settings(model, text)


def test_a_wrong_name_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (archdsl.ir.static, archdsl.ir.elaborate.blocks):
        monkeypatch.setattr(module, "free_name", lambda name, *_: name)
    model = load(HERE / "truth" / "joined_block.arch")
    assert model is not None
    assert any("expert_hidden" in text for text in Spelling(model).wrong)
