"""Lints: what they find, where, and what they leave alone."""

from pathlib import Path

import pytest

from archdsl import resources
from archdsl.api import check
from archdsl.diagnostics import Diagnostic

SPEC = """
{before}
block layer(heads = 4{hyper}) {{
  attention: mha(heads: heads)
  mask: causal
  ffn: mlp(hidden: 256)
  {slots}
}}
model m(layers = {layers}) {{
  vocab: {vocab}
  context: 64
  width: {width}
  blocks: layers * layer
  head: lm
}}
"""


def findings(**parts: object) -> list[Diagnostic]:
    defaults = {"before": "", "hyper": "", "slots": "", "layers": 2, "vocab": 1024, "width": 64}
    return list(check(text=SPEC.format(**{**defaults, **parts})))


def test_nothing_is_said_of_a_plain_spec() -> None:
    assert findings() == []


@pytest.mark.parametrize(
    ("parts", "code", "place"),
    [
        ({"hyper": ", spare = 3"}, "W0201", "spare"),
        ({"before": "let spare = 3"}, "W0201", "let spare = 3"),
        ({"slots": "let spare = 3"}, "W0201", "let spare = 3"),
        (
            {"before": "block glu_mlp(x: [..., width]) -> [..., width] { return x -> linear(width) }"},
            "W0202",
            "glu_mlp",
        ),
        (
            {"before": "block softmax(x: [..., width]) -> [..., width] { return x -> linear(width) }"},
            "W0202",
            "softmax",
        ),
        ({"vocab": 1000}, "W0401", "1000"),
        ({"width": 48}, "W0402", "layer"),
        ({"width": 96}, "W0403", "96"),
        ({"slots": "placement: post", "layers": 25}, "W0404", "post"),
    ],
)
def test_findings(parts: dict[str, object], code: str, place: str) -> None:
    found = {d.code: d for d in findings(**parts)}
    assert code in found
    assert not found[code].is_error
    span = found[code].span
    assert span is not None
    assert span.text.startswith(place)


@pytest.mark.parametrize(
    "parts",
    [
        {"slots": "placement: post", "layers": 24},
        {"slots": "placement: post\n  residual: deepnorm(100)", "layers": 100},
        {
            "before": "let scale_of_all = 3\nlet twice = 2 * scale_of_all",
            "hyper": ", a = twice",
            "slots": "assert a > 0",
        },
        {"vocab": 50},
    ],
)
def test_what_is_fine(parts: dict[str, object]) -> None:
    assert findings(**parts) == []


def test_a_vocabulary_that_is_only_read_may_have_any_size() -> None:
    text = SPEC.replace("head: lm", "head: classifier(classes: 2)")
    values = {"before": "", "hyper": "", "slots": "", "layers": 2, "vocab": 1000, "width": 64}
    assert list(check(text=text.format(**values))) == []


@pytest.mark.parametrize("path", resources.zoo_files().values(), ids=lambda p: p.stem)
def test_the_zoo_has_odd_vocabularies_at_most(path: Path) -> None:
    """Published sizes are what they are: vocabularies, widths, heads."""
    assert {d.code for d in check(path)} <= {"W0401", "W0402", "W0403"}
