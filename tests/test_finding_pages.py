"""The page of each finding after the syntax keeps its word: the wrong example raises its code, the right one none."""

import re
from pathlib import Path

import pytest

import archdsl
from archdsl.api import check

PACKAGE = Path(archdsl.__file__).parent if archdsl.__file__ else Path(__file__).resolve().parents[1] / "archdsl"
PAGES = sorted(p for p in (PACKAGE / "diagnostics" / "pages").glob("*.md") if not p.stem.startswith("E01"))
PAGE = re.compile(
    r"# (?P<code>[EW]\d{4}): [^\n]+\n\n.+?\n\n"
    r"## Wrong\n\n```arch\n(?P<wrong>.+?)```\n\n## Right\n\n```arch\n(?P<right>.+?)```\n",
    re.DOTALL,
)
# Of back ends and the machine, not of specs: their pages show commands.
COMMANDS = re.compile(r"E05\d\d")


def findings(text: str, folder: Path) -> list[str]:
    spec = folder / "spec.arch"
    spec.write_text(text, encoding="utf-8")
    return [d.code for d in check(spec)]


@pytest.mark.parametrize("path", [p for p in PAGES if not COMMANDS.fullmatch(p.stem)], ids=lambda p: p.stem)
def test_page(path: Path, tmp_path: Path) -> None:
    page = PAGE.fullmatch(path.read_text(encoding="utf-8"))
    assert page, "a page is a heading, a text, and an example below `## Wrong` and `## Right`"
    assert page["code"] == path.stem
    assert findings(page["right"], tmp_path) == []
    assert findings(page["wrong"], tmp_path)[:1] == [path.stem]


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    used = set()
    for file in PACKAGE.rglob("*.py"):
        used |= set(re.findall(r'"([EW]0[2-9]\d\d)"', file.read_text(encoding="utf-8")))
    assert used == {path.stem for path in PAGES}
