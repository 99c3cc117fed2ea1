"""Runs `tests/language/syntax.md`: each case a heading, an `arch` block, and what is said about it as `text`."""

import re
from pathlib import Path

import pytest

from archdsl.diagnostics import ArchError
from archdsl.diagnostics.render import render_concise
from archdsl.diagnostics.source import Source
from archdsl.syntax.parse import parse

PAGE = Path(__file__).resolve().parents[1] / "language" / "syntax.md"
CASE = re.compile(
    r"^## (?P<title>[^\n]+)\n\n```arch\n(?P<text>.*?)```\n\n```text\n(?P<said>.*?)```\n", re.MULTILINE | re.DOTALL
)
CASES = {match["title"]: match for match in CASE.finditer(PAGE.read_text(encoding="utf-8"))}


def said_about(text: str) -> str:
    try:
        parse(Source("spec.arch", text))
    except ArchError as problem:
        return render_concise(problem.diagnostics)
    return ""


def test_every_heading_is_a_case() -> None:
    assert len(CASES) == PAGE.read_text(encoding="utf-8").count("\n## ")


@pytest.mark.parametrize("title", CASES)
def test_case(title: str, update_golden: bool) -> None:
    case = CASES[title]
    said = said_about(case["text"])
    if update_golden and said != case["said"]:
        page = PAGE.read_text(encoding="utf-8")
        changed = case[0].replace(f"```text\n{case['said']}```", f"```text\n{said}```")
        PAGE.write_text(page.replace(case[0], changed), encoding="utf-8")
        return
    assert said == case["said"], "if this is meant: pytest --update-golden"
