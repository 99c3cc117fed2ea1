"""The page of each syntax error keeps its word: the wrong example raises exactly its code, the right one parses."""

import re
from pathlib import Path

import pytest

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.diagnostics.source import Source
from archdsl.syntax.parse import parse

PACKAGE = Path(archdsl.__file__).parent if archdsl.__file__ else Path(__file__).resolve().parents[2] / "archdsl"
# That of E0108, a file that cannot be read, shows commands: tests/test_cli.py runs them.
PAGES = sorted((PACKAGE / "diagnostics" / "pages").glob("E01*.md"))
PAGE = re.compile(
    r"# (?P<code>E01\d\d): [^\n]+\n\n.+?\n\n"
    r"## Wrong\n\n```arch\n(?P<wrong>.+?)```\n\n## Right\n\n```arch\n(?P<right>.+?)```\n",
    re.DOTALL,
)


def codes(text: str) -> set[str]:
    try:
        parse(Source("page.arch", text))
    except ArchError as problem:
        return {d.code for d in problem.diagnostics}
    return set()


@pytest.mark.parametrize("path", [p for p in PAGES if p.stem != "E0108"], ids=lambda p: p.stem)
def test_page(path: Path) -> None:
    page = PAGE.fullmatch(path.read_text(encoding="utf-8"))
    assert page, "a page is a heading, a text, and an example below `## Wrong` and `## Right`"
    assert page["code"] == path.stem
    assert codes(page["right"]) == set()
    assert codes(page["wrong"]) == {path.stem}


def test_every_code_has_a_page() -> None:
    used = set()
    for file in (PACKAGE / "syntax").glob("*.py"):
        used |= set(re.findall(r'"(E01\d\d)"', file.read_text(encoding="utf-8")))
    assert used == {path.stem for path in PAGES}
