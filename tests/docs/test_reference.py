"""The generated pages are those of the present code, and no link of the documentation is broken."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import archdsl
from archdsl.cli import app
from archdsl.interop.checkpoint_file import shipped
from docs.gpu_page import with_table
from docs.lift_page import STAGES, types_table, with_types
from docs.pages import ROOT, blocks
from docs.reference_pages import api_page, library_page, primitives_page
from docs.zoo_page import zoo_pages

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_primitives_are_current(golden: Callable[[Path, str], None]) -> None:
    golden(ROOT / "docs" / "primitives.md", primitives_page())


def test_library_is_current(golden: Callable[[Path, str], None]) -> None:
    golden(ROOT / "docs" / "library.md", library_page())


def test_the_types_that_are_lifted_are_current(golden: Callable[[Path, str], None]) -> None:
    page = ROOT / "docs" / "checkpoints.md"
    golden(page, with_types(page.read_text(encoding="utf-8")))


def test_every_type_is_imported_in_some_way_or_not_for_some_reason() -> None:
    types = json.loads((ROOT / "benchmarks" / "lift.json").read_text(encoding="utf-8"))["types"]
    assert {row["stage"] for row in types.values()} <= {"equal", *STAGES}
    named = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (?:by lift|neither).*", types_table(), re.MULTILINE)))
    assert sorted(named) == sorted({*types} - {*shipped()})


def test_the_api_is_current(golden: Callable[[Path, str], None]) -> None:
    golden(ROOT / "docs" / "api.md", api_page())


@pytest.mark.slow
def test_the_zoo_is_current(golden: Callable[[Path, str], None]) -> None:
    pages = {ROOT / "docs" / path: text for path, text in zoo_pages().items()}
    for path, text in pages.items():
        golden(path, text)
    kept = {*(ROOT / "docs" / "zoo").glob("*.md"), *(ROOT / "docs" / "zoo" / "figures").iterdir()}
    assert kept <= {*pages}, "pages and figures of no family"


def test_figures_of_pages_are_current(golden: Callable[[Path, str], None]) -> None:
    spec = next(block.text for block in blocks(ROOT / "README.md") if block.note == "small.arch")
    golden(ROOT / "docs" / "figures" / "small.svg", archdsl.draw(text=spec))
    golden(ROOT / "docs" / "figures" / "deepseek_v2_v3.svg", archdsl.draw("deepseek_v2", against="deepseek_v3"))


@pytest.mark.slow
def test_the_kernels_of_a_gpu_are_current(golden: Callable[[Path, str], None]) -> None:
    page = ROOT / "docs" / "gpu.md"
    golden(page, with_table(page.read_text(encoding="utf-8")))


def _anchors(page: Path) -> set[str]:
    """What can stand behind `#`, as the usual renderers make it of a heading."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in _anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", ["README.md", "docs/commands.md"])
def test_a_page_lists_every_command(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    listed = re.findall(r"^\| `archdsl (\w+)", text, re.MULTILINE)
    assert sorted(set(listed)) == sorted(str(command.name) for command in app.registered_commands)
