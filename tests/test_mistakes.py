"""Runs `tests/language/mistakes.md`: what people get wrong, what they are told, and the cure."""

import re
from collections import Counter
from pathlib import Path

import pytest

from archdsl.api import check
from archdsl.diagnostics.render import render_text

PAGE = Path(__file__).resolve().parent / "language" / "mistakes.md"
CASE = re.compile(
    r"^## (?P<codes>[EW]\d{4}(?:, [EW]\d{4})*): (?P<title>[^\n]+)\n\n```arch\n(?P<wrong>.*?)```\n\n"
    r"```text\n(?P<said>.*?)```\n\n```arch\n(?P<right>.*?)```\n",
    re.MULTILINE | re.DOTALL,
)
CASES = {match["title"]: match for match in CASE.finditer(PAGE.read_text(encoding="utf-8"))}
MODEL = """
model page {
  vocab:   256
  context: 128
  width:   64
  blocks:  2 * layer
  norm:    layernorm
  head:    lm
}
"""
DECLARED = re.compile(r"^(block layer\b|model )", re.MULTILINE)


def completed(text: str) -> str:
    """A page's text as a whole spec: one that declares a layer and no model gets a model of it."""
    return text if "model " in text or not DECLARED.search(text) else text + MODEL


def test_every_heading_is_a_case() -> None:
    assert len(CASES) == PAGE.read_text(encoding="utf-8").count("\n## ")


@pytest.mark.parametrize("title", CASES)
def test_what_is_said(title: str, update_golden: bool) -> None:
    case = CASES[title]
    found = check("spec.arch", text=completed(case["wrong"]))
    said = render_text(found)
    if update_golden and said != case["said"]:
        page = PAGE.read_text(encoding="utf-8")
        changed = case[0].replace(f"```text\n{case['said']}```", f"```text\n{said}```")
        PAGE.write_text(page.replace(case[0], changed), encoding="utf-8")
    else:
        assert said == case["said"], "if this is meant: pytest --update-golden"
    assert [d.code for d in found] == case["codes"].split(", ")
    assert all(n == 1 for n in Counter((d.code, d.message, d.span) for d in found).values())
    assert all(d.span is not None and d.span.text and not d.span.source.library for d in found)


@pytest.mark.parametrize("title", CASES)
def test_the_cure(title: str) -> None:
    assert render_text(check("spec.arch", text=completed(CASES[title]["right"]))) == ""
