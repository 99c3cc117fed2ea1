"""Columns that the author aligned stay aligned.

Formatting leaves one space between words. A word that stood below a like word of the line above, with more space
before one of them than needed, is moved to stand below it again. Comments need not follow line on line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archdsl.syntax.layout import WIDTH
from archdsl.syntax.parse import tokens
from archdsl.syntax.parser_tables import END, tables


@dataclass(eq=False)
class _Word:
    text: str
    kind: str
    line: int
    column: int
    gap: int
    """The white space before it on its line; -1 for the first word."""


def align(formatted: str, original: str) -> str:
    """The formatted text, with the columns of the original."""
    words = list(_words(formatted))
    before = _matching(words, list(_words(original)))
    groups = _groups(words, before)
    lines = formatted.split("\n")
    moved: dict[int, int] = {}
    for group in groups:
        columns = [w.column + moved.get(w.line, 0) for w in group]
        target = max(columns)
        if group[0].kind == "#":
            target = max(target, before[group[0]].column)
        elif any(len(lines[w.line]) + target - c > WIDTH for w, c in zip(group, columns, strict=True)):
            continue
        for word, column in zip(group, columns, strict=True):
            line = lines[word.line]
            lines[word.line] = line[:column] + " " * (target - column) + line[column:]
            moved[word.line] = moved.get(word.line, 0) + target - column
    return "\n".join(lines)


def _words(text: str) -> Iterator[_Word]:
    """The words of a text and its trailing comments, in order."""
    line, line_start, last = 0, 0, 0
    kinds = tables().fixed
    for token in tokens(tables(), text):
        between = text[last : token.start]
        while "#" in between or "\n" in between:
            comment, newline = between.find("#"), between.find("\n")
            if comment >= 0 and (comment < newline or newline < 0):
                start = last + comment
                end = len(text) if newline < 0 else last + newline
                yield _Word(text[start:end].rstrip(), "#", line, start - line_start, _gap(text, start, line_start))
                between, last = text[end : token.start], end
            else:
                line, line_start = line + 1, last + newline + 1
                between, last = text[line_start : token.start], line_start
        if token.type == END:
            return
        kind = token.text if token.text in kinds else token.type
        yield _Word(token.text, kind, line, token.start - line_start, _gap(text, token.start, line_start))
        last = token.end


def _gap(text: str, start: int, line_start: int) -> int:
    stripped = len(text[line_start:start].rstrip(" \t\ufeff"))
    return start - line_start - stripped if stripped else -1


def _matching(words: list[_Word], original: list[_Word]) -> dict[_Word, _Word]:
    """For each word where it comes from: the texts differ only in parentheses and commas that nobody needs."""
    found: dict[_Word, _Word] = {}
    i = j = 0
    while i < len(words) and j < len(original):
        if words[i].text == original[j].text:
            found[words[i]] = original[j]
            i, j = i + 1, j + 1
        elif original[j].text in ("(", ")", ","):
            j += 1
        elif words[i].text in ("(", ")", ","):
            i += 1
        else:
            return {}
    return found


def _groups(words: list[_Word], before: dict[_Word, _Word]) -> list[list[_Word]]:
    """The words that shall stand below each other, from left to right."""
    groups: list[list[_Word]] = []
    above: dict[tuple[str, int], list[_Word]] = {}  # by kind and original column: the group whose last word stood there
    for word in words:
        old = before.get(word)
        if old is None or old.gap < 0 or word.gap < 0:
            continue
        key = (word.kind, old.column)
        group = above.get(key)
        if group is not None and _follows(group[-1], word, before, words):
            group.append(word)
        else:
            above[key] = [word]
            groups.append(above[key])
    wanted = [g for g in groups if len(g) > 1 and any(before[w].gap > w.gap for w in g)]
    return sorted(wanted, key=lambda g: before[g[0]].column)


def _follows(above: _Word, word: _Word, before: dict[_Word, _Word], words: list[_Word]) -> bool:
    old_above, old = before[above], before[word]
    if word.kind != "#":
        return word.line == above.line + 1 and old.line == old_above.line + 1
    occupied = {w.line for w in words if above.line <= w.line <= word.line}
    return len(occupied) == word.line - above.line + 1 and old.line > old_above.line
