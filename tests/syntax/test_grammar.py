"""The grammar is LALR(1) without conflicts, and the tables made of it say the same as lark."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lark import Lark, UnexpectedInput, logger

from archdsl.diagnostics import ArchError
from archdsl.diagnostics.source import Source
from archdsl.resources import grammar_text
from archdsl.syntax import cache
from archdsl.syntax import parser_tables as tables_module
from archdsl.syntax.build import BUILDERS
from archdsl.syntax.parse import parse
from archdsl.syntax.parser_tables import STARTS, Tables, tables

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.arch"))
RESERVED = (
    "import let block model variant inline param buffer loss for in scan emit if then else assert assume return as and "
    "or not"
)


def by_lark() -> Lark:
    """The grammar, read by lark, which logs what conflicts."""
    return Lark(grammar_text(), parser="lalr", lexer="basic", start=list(STARTS), debug=True)


@contextmanager
def conflicts() -> Iterator[list[str]]:
    """What lark says of a grammar: it only logs its conflicts."""
    said: list[str] = []
    handler, level = logging.Handler(), logger.level
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_there_is_no_conflict() -> None:
    with conflicts() as said:
        by_lark()
    assert said == []


def test_a_conflict_would_be_seen() -> None:
    with conflicts() as said:
        Lark('start: start start | "a"', parser="lalr", debug=True)
    assert said


def test_lark_itself_reads_and_refuses_the_same() -> None:
    lark = by_lark()
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        lark.parse(text, start="file")
        parse(Source(path.name, text))
    for text in ("let a = 0.5 * x -> f", "let block = 3", "block a {", "let a = 1 < b < c", "let a = 3x"):
        with pytest.raises(UnexpectedInput):
            lark.parse(text, start="file")
        with pytest.raises(ArchError):
            parse(Source("t.arch", text))


def test_the_reserved_words() -> None:
    assert tables().keywords == set(RESERVED.split())


def test_every_rule_has_a_builder_and_no_other() -> None:
    built = {r.name for r in tables().rules if not r.many and not r.transparent}
    assert built == set(BUILDERS)


def test_operators_are_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [m[0] for m in tables().scanner.finditer("a//b**c<=d") if m.lastgroup] == [
        "a",
        "//",
        "b",
        "**",
        "c",
        "<=",
        "d",
    ]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tables_module.tables.cache_clear()
    return tmp_path / "archdsl"


def fresh() -> Tables:
    tables_module.tables.cache_clear()
    return tables()


def test_tables_are_kept(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fresh()
    assert [p.name[:8] for p in own_cache.iterdir()] == ["grammar-"]
    monkeypatch.setattr(tables_module, "_generate", None)  # would fail if called
    assert fresh() == made


def test_a_damaged_cache_is_ignored(own_cache: Path) -> None:
    made = fresh()
    (file,) = own_cache.iterdir()
    good = file.read_bytes()
    for damage in (b"", b"{}", b"\xff\x00", b"[[[["):
        file.write_bytes(damage)
        assert fresh().rules == made.rules
        assert file.read_bytes() == good
    file.write_bytes(good[:200] + b"?" + good[201:])
    assert fresh().rules == made.rules
    cache.store(file.name, {"another": "format"})
    assert fresh().rules == made.rules


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert fresh().keywords == set(RESERVED.split())
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "nowhere")
    assert cache.directory() is None
    assert fresh().keywords == set(RESERVED.split())
