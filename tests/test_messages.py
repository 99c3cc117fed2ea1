"""The words of all messages are spelled right: each is in `tests/words.txt`, or in the glossary."""

import re
from pathlib import Path

from messages import WORD, Message, messages, words

TESTS = Path(__file__).resolve().parent
GLOSSARY = TESTS.parent / "docs" / "glossary.md"


def known_words() -> set[str]:
    return {w.lower() for path in (TESTS / "words.txt", GLOSSARY) for w in WORD.findall(path.read_text("utf-8"))}


def test_every_word_of_a_message_is_known() -> None:
    known, listing = known_words(), messages()
    unknown = [f"archdsl/{m.file}:{m.line}: {w}" for m in listing for w in words(m) if w.lower() not in known]
    assert not unknown, "spell it right, or add it to tests/words.txt; a term of the field goes into docs/glossary.md"


def test_the_listing_has_every_kind_of_message() -> None:
    listing = messages()
    kinds = {"error", "Diagnostic", "BadParameter", "say", "add_row", "SPEC", "command", "page", "Assign"}
    assert kinds <= {m.by for m in listing}
    assert any(m.by == "error" and "{" in m.text for m in listing)
    assert len({m.file for m in listing}) > 150


def test_a_slip_is_seen_and_quotes_are_not() -> None:
    message = Message("x.py", 1, "error", "the modle `llamma` of {nmae} has --optoin and a.arhc, 3x")
    assert [w for w in words(message) if w not in known_words()] == ["modle"]


def test_the_list_of_words_is_sorted_and_lists_each_once() -> None:
    lines = (TESTS / "words.txt").read_text("utf-8").splitlines()
    assert lines == sorted(set(lines))
    assert all(re.fullmatch(WORD, line) and line == line.lower() for line in lines)
