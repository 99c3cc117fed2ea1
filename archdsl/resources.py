"""Where the data is: the grammar, the standard library, the zoo and the error pages.

A wheel carries `grammars/` and `specs/` inside the package, as `archdsl/_data`; in a checkout they lie at its top.
Nothing else in the compiler knows either place.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from archdsl.diagnostics.source import Source

_PACKAGE = Path(__file__).resolve().parent
_DECLARATION = re.compile(r"^(?:(?:inline\s+)?block|let|variant|model)\s+([^\W\d]\w*)", re.MULTILINE)


def _data() -> Path:
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent


@cache
def _by_stem(folder: Path, suffix: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob(f"*{suffix}"))}


def grammar_text(name: str = "arch") -> str:
    """The grammar of the language (`arch`) or of mappings (`checkpoint`), as lark reads it."""
    return (_data() / "grammars" / f"{name}.lark").read_text(encoding="utf-8")


def mapping_files() -> list[Path]:
    """The mappings of checkpoints that ship with the compiler."""
    return sorted((_data() / "specs").rglob("*.checkpoint"))


def zoo_files() -> dict[str, Path]:
    """The specs that ship with the compiler, by stem: `gpt2` → …/specs/gpt2.arch."""
    return _by_stem(_data() / "specs", ".arch")


def imported_files() -> dict[str, Path]:
    """The specs that checkpoints are imported after, by name: `hf/llama` → …/specs/hf/llama.arch."""
    return {f"hf/{stem}": path for stem, path in _by_stem(_data() / "specs" / "hf", ".arch").items()}


def library_files() -> dict[str, Path]:
    """The files of the standard library, by stem: `attention` → …/specs/std/attention.arch."""
    return _by_stem(_data() / "specs" / "std", ".arch")


@cache
def library_source(stem: str) -> Source:
    """A file of the standard library, under the name it is shown by: `std/attention.arch`."""
    return Source(f"std/{stem}.arch", library_files()[stem].read_text(encoding="utf-8"), library=True)


def declared_names(text: str) -> list[str]:
    """The names a text declares at its top level, in order and without parsing: a declaration starts its line."""
    return _DECLARATION.findall(text)


@cache
def library_index() -> dict[str, str]:
    """Each name the standard library declares, and the stem of its file, so that only files in use are parsed."""
    return {name: stem for stem in library_files() for name in declared_names(library_source(stem).text)}


def error_codes() -> list[str]:
    """The codes that have a page, in order."""
    return list(_by_stem(_PACKAGE / "diagnostics" / "pages", ".md"))


def error_page(code: str) -> str | None:
    """The page of a code, in Markdown, or None where there is no such code."""
    page = _by_stem(_PACKAGE / "diagnostics" / "pages", ".md").get(code)
    return page.read_text(encoding="utf-8") if page else None
