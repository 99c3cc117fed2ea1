"""Diagnostics as text: for people, for editors (`concise`), for programs (`json`) and for GitHub's checks."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from archdsl.diagnostics.findings import Diagnostic
from archdsl.diagnostics.source import Source, Span
from archdsl.frozen import Frozen

TAB = 4
LONG_LINE = 400
"""Characters of a line beyond which only a part is shown."""
BOLD, RED, YELLOW, BLUE, RESET = "\x1b[1m", "\x1b[1;31m", "\x1b[1;33m", "\x1b[1;34m", "\x1b[0m"


Format = Literal["text", "concise", "json", "github"]


def render(diagnostics: Iterable[Diagnostic], format: Format = "text", color: bool = False) -> str:
    """Findings in one of the four forms; only the text for people is ever colored."""
    if format == "text":
        return render_text(diagnostics, color)
    return {"concise": render_concise, "json": render_json, "github": render_github}[format](diagnostics)


def render_text(diagnostics: Iterable[Diagnostic], color: bool = False) -> str:
    """Each finding with the lines it is about, separated by blank lines."""
    return "\n".join(_Text(diagnostic, color).render() for diagnostic in diagnostics)


def render_concise(diagnostics: Iterable[Diagnostic]) -> str:
    """One line a finding: `tiny.arch:12:12: error[E0301]: message`."""
    return "".join(f"{_place(d)}{_severity(d)}[{d.code}]: {shown(d.message)}\n" for d in diagnostics)


def render_json(diagnostics: Iterable[Diagnostic]) -> str:
    """A list of objects, with everything that is known."""
    return json.dumps([_object(d) for d in diagnostics], indent=2, ensure_ascii=False) + "\n"


def render_github(diagnostics: Iterable[Diagnostic]) -> str:
    """Workflow commands that GitHub shows beside the lines: `::error file=…,line=…::message`."""
    lines = []
    for d in diagnostics:
        properties: dict[str, Any] = {}
        if d.span is not None:
            end_line, end_column = d.span.source.position(d.span.end)
            properties = {"file": d.span.source.name, "line": d.span.line, "endLine": end_line, "col": d.span.column}
            if end_line == d.span.line:  # GitHub takes columns only within one line
                properties["endColumn"] = end_column
        properties["title"] = d.code
        said = [d.message, *d.notes, *([f"help: {d.help}"] if d.help else [])]
        message = "\n".join(shown(line) for text in said for line in text.split("\n"))
        written = ",".join(f"{key}={_escape(str(value), property=True)}" for key, value in properties.items())
        lines.append(f"::{_severity(d)} {written}::{_escape(message)}\n")
    return "".join(lines)


def _escape(text: str, property: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property else text


def _severity(diagnostic: Diagnostic) -> str:
    return "error" if diagnostic.is_error else "warning"


def _place(diagnostic: Diagnostic) -> str:
    span = diagnostic.span
    return f"{span.source.name}:{span.line}:{span.column}: " if span else ""


def _object(d: Diagnostic) -> dict[str, Any]:
    return {
        "code": d.code,
        "severity": _severity(d),
        "message": d.message,
        **_where(d.span),
        "label": d.label,
        "labels": [{**_where(label.span), "text": label.text} for label in d.labels],
        "notes": list(d.notes),
        "help": d.help,
    }


def _where(span: Span | None) -> dict[str, Any]:
    if span is None:
        return dict.fromkeys(("file", "line", "column", "end_line", "end_column"))
    end_line, end_column = span.source.position(span.end)
    return {
        "file": span.source.name,
        "line": span.line,
        "column": span.column,
        "end_line": end_line,
        "end_column": end_column,
    }


# --- for people -------------------------------------------------------------------------------------------------------


class _Mark(Frozen):
    """An underlined part of one line: columns as shown, half open."""

    start: int
    end: int
    primary: bool
    text: str


class _Excerpt(Frozen):
    """The part of a line that is shown: all, or of a very long one what stands around its first mark."""

    start: int
    end: int
    length: int

    @staticmethod
    def around(place: int, length: int) -> _Excerpt:
        if length <= LONG_LINE:
            return _Excerpt(0, length, length)
        start = min(max(0, place - LONG_LINE // 4), length - LONG_LINE)
        return _Excerpt(start, start + LONG_LINE, length)

    def of(self, line: str) -> str:
        before, after = "…" if self.start else "", "…" if self.end < self.length else ""
        return before + line[self.start : self.end] + after

    def place(self, at: int) -> int:
        """Where a character of the line stands in the part."""
        return min(max(at, self.start), self.end) - self.start + bool(self.start)


class _Text:
    """One finding as rustc would show it."""

    def __init__(self, diagnostic: Diagnostic, color: bool) -> None:
        self.diagnostic = diagnostic
        self.color = color
        self.strong = RED if diagnostic.is_error else YELLOW
        self.snippets: dict[Source, dict[int, list[_Mark]]] = {}
        self.cuts: dict[tuple[Source, int], _Excerpt] = {}
        """The part of each line that is shown."""
        if diagnostic.span is not None:
            self._add(diagnostic.span, diagnostic.label, True)
        for label in diagnostic.labels:
            self._add(label.span, label.text, False)
        last = max((line for lines in self.snippets.values() for line in lines), default=0)
        self.margin = len(str(last)) if last else 0

    def _paint(self, color: str, text: str) -> str:
        return f"{color}{text}{RESET}" if self.color and text else text

    def _add(self, span: Span, text: str, primary: bool) -> None:
        """Mark a span; of one over several lines the first is shown."""
        line = span.line
        content = span.source.line(line)
        start = span.column - 1
        cut = self.cuts.setdefault((span.source, line), _Excerpt.around(start, len(content)))
        end = cut.place(min(start + span.end - span.start, len(content)))
        start = cut.place(start)
        content = cut.of(content)
        left = shown_width(content[:start])
        right = max(shown_width(content[:end]), left + 1)
        self.snippets.setdefault(span.source, {}).setdefault(line, []).append(_Mark(left, right, primary, text))

    def render(self) -> str:
        d = self.diagnostic
        head = self._paint(self.strong, f"{_severity(d)}[{d.code}]") + self._paint(BOLD, f": {shown(d.message)}")
        lines = [head]
        for i, (source, marked) in enumerate(self.snippets.items()):
            place = d.span if i == 0 and d.span else next(x.span for x in d.labels if x.span.source is source)
            arrow = self._paint(BLUE, "-->" if i == 0 else ":::")
            lines.append(f"{' ' * self.margin}{arrow} {source.name}:{place.line}:{place.column}")
            lines.append(self._gutter())
            lines += self._snippet(source, marked)
            if i + 1 < len(self.snippets) or d.notes or d.help:
                lines.append(self._gutter())
        indent = " " * self.margin
        for kind, text in (*(("note", note) for note in d.notes), *((("help", d.help),) if d.help else ())):
            first, *more = text.split("\n")
            lead = f"{indent} = " if self.margin else "= "
            lines.append(f"{self._paint(BLUE, lead)}{self._paint(BOLD, kind)}: {shown(first)}")
            lines += [f"{' ' * (len(lead) + len(kind) + 2)}{shown(line)}" for line in more]
        return "\n".join(lines) + "\n"

    def _gutter(self, number: str = "") -> str:
        return self._paint(BLUE, f"{number:>{self.margin}} |")

    def _snippet(self, source: Source, marked: dict[int, list[_Mark]]) -> list[str]:
        lines = []
        before = None
        for number in sorted(marked):
            if before is not None and number > before + 2:
                lines.append(self._paint(BLUE, "..."))
            content = self.cuts[source, number].of(source.line(number))
            lines.append(f"{self._gutter(str(number))} {shown(content)}".rstrip())
            lines += [f"{self._gutter()} {row}" for row in self._rows(marked[number])]
            before = number
        return lines

    def _rows(self, marks: Sequence[_Mark]) -> list[str]:
        """The underlines below a line; the rightmost text beside its own, the others hang below on bars."""
        ordered = sorted(marks, key=lambda m: (m.start, m.end, not m.primary))
        width = max(m.end for m in ordered)
        cells = [(" ", "")] * width
        for mark in sorted(ordered, key=lambda m: m.primary):  # the primary one lies above
            sign, color = ("^", self.strong) if mark.primary else ("-", BLUE)
            cells[mark.start : mark.end] = [(sign, color)] * (mark.end - mark.start)
        told = [m for m in ordered if m.text]
        beside = told[-1] if told and all(m.end <= told[-1].start or m is told[-1] for m in ordered) else None
        hanging = [m for m in told if m is not beside]
        rows = [self._cells(cells) + (f" {self._said(beside, beside.text)}" if beside else "")]
        if hanging:
            rows.append(self._bars(hanging))
        while hanging:
            mark = hanging.pop()
            bars = self._bars([m for m in hanging if m.start < mark.start], mark.start)
            rows.append(bars + self._said(mark, mark.text))
        return rows

    def _said(self, mark: _Mark, text: str) -> str:
        return self._paint(self.strong if mark.primary else BLUE, shown(text))

    def _bars(self, marks: Sequence[_Mark], width: int | None = None) -> str:
        cells = [(" ", "")] * (max((m.start for m in marks), default=-1) + 1 if width is None else width)
        for mark in marks:
            cells[mark.start] = ("|", self.strong if mark.primary else BLUE)
        return self._cells(cells)

    def _cells(self, cells: Sequence[tuple[str, str]]) -> str:
        text, last = "", ""
        for sign, color in cells:
            if self.color and color != last:
                text += (RESET if last else "") + color
                last = color
            text += sign
        return text + (RESET if last else "")


def shown(line: str) -> str:
    """A line as it is printed: tabs as spaces, no control characters."""
    out: list[str] = []
    column = 0
    for char in line:
        if char == "\t":
            step = TAB - column % TAB
            out.append(" " * step)
            column += step
            continue
        out.append(char if char.isprintable() else "\ufffd")
        column += _width(char) if char.isprintable() else 1
    return "".join(out)


def shown_width(text: str) -> int:
    """How many columns a terminal needs for the start of a line."""
    column = 0
    for char in text:
        column += TAB - column % TAB if char == "\t" else _width(char) if char.isprintable() else 1
    return column


def _width(char: str) -> int:
    if char.isascii():
        return 1
    if unicodedata.category(char) in ("Mn", "Me"):  # accents, and what says how the character before is drawn
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
