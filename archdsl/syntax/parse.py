"""Text -> syntax tree: the parser runs lark's tables over the tokens and builds each node as its rule is finished.

The tables and not lark's own parser: nodes get exact spans, nothing recurses, and an error is seen with the whole
stack at hand (`archdsl/syntax/hints.py` explains it).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from archdsl.diagnostics import ArchError, Diagnostic, did_you_mean, error
from archdsl.diagnostics.source import Source, Span
from archdsl.files import open_regular
from archdsl.syntax import ast
from archdsl.syntax.build import BUILDERS, Token
from archdsl.syntax.limits import (
    MAX_FILE_BYTES,
    MAX_NAME,
    MAX_NESTING,
    MAX_OPEN,
    MAX_SYNTAX_ERRORS,
    VARIABLE,
    raising,
    wrong,
)
from archdsl.syntax.parser_tables import END, Tables, tables

NAMES = frozenset({"NAME", "DOTTED"})
DECLARATIONS = frozenset({"IMPORT", "LET", "INLINE", "BLOCK", "MODEL", "VARIANT"})


def read_source(path: str | os.PathLike[str], shown_name: str) -> Source:
    """The text of a file. Raises ArchError where there is none or it is no text."""
    demand_limits()
    try:
        with open_regular(path) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise error("E0108", f"there is no file `{shown_name}`", help=_near(path)) from None
    except IsADirectoryError:
        raise error("E0108", f"`{shown_name}` is a directory, not a file") from None
    except (OSError, ValueError) as problem:  # a name may hold a zero byte, which is a ValueError
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise error("E0108", f"`{shown_name}` cannot be read: {reason}") from None
    if len(content) > MAX_FILE_BYTES:
        raise _too_large(shown_name)
    try:
        return Source(shown_name, content.decode("utf-8-sig"))
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        message = f"`{shown_name}` is not UTF-8: line {line} holds the byte 0x{content[problem.start]:02x}"
        wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        help_ = "it looks like UTF-16: save it as UTF-8" if wide else "save the file as UTF-8"
        raise error("E0108", message, help=help_) from None


def _near(path: str | os.PathLike[str]) -> str:
    """A help line with the spec beside a missing one that was probably meant."""
    folder, name = os.path.split(os.fspath(path))
    try:
        there = [f for f in os.listdir(folder or ".") if f.endswith(".arch")]
    except OSError:
        return ""
    return did_you_mean(name.removesuffix(".arch"), [f.removesuffix(".arch") for f in there]).replace("`?", ".arch`?")


def demand_limits() -> None:
    """Raises ArchError E0520 where the environment sets an unknown limit, or one to what is no number."""
    if problem := wrong():
        help_ = f"write it as {VARIABLE}=list=50_000,nodes=100_000"
        raise error("E0520", f"{VARIABLE} is wrong: {problem}", help=help_)


def given_text(name: str, text: str) -> Source:
    """A text that is no file as a source. Raises ArchError where it is larger than a file may be, or no Unicode."""
    demand_limits()
    if len(text) > MAX_FILE_BYTES:
        raise _too_large(name)
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        line = text.count("\n", 0, problem.start) + 1
        half = f"half a character, U+{ord(text[problem.start]):04X}"
        raise error("E0108", f"`{name}` is no Unicode text: line {line} holds {half}") from None
    return Source(name, text)


def _too_large(name: str) -> ArchError:
    return error("E0108", f"`{name}` is larger than {MAX_FILE_BYTES // 1024:,} KiB", help=raising("source"))


def parse(source: Source) -> ast.File:
    """A whole `.arch` file. Raises ArchError with every independent syntax error."""
    tree: ast.File = _Parser(source, "file").run()
    return tree


def parse_header(source: Source) -> tuple[str, ast.Header]:
    """A bare signature, `name(hyper: kind = default)(x: [..., width]) -> [..., width]`: its name and the rest."""
    name, header = _Parser(source, "header").run()
    return name.text, header


def parse_expression(source: Source) -> ast.Expr:
    """A single expression."""
    tree: ast.Expr = _Parser(source, "expression").run()
    return tree


def tokens(table: Tables, text: str, start: int = 0) -> Iterator[Token]:
    """The words of a text and then its end; what is no word comes as `ERROR`. A byte order mark is skipped."""
    fixed = table.fixed
    if not start and text.startswith("\ufeff"):
        start = 1
    for match in table.scanner.finditer(text, start):
        kind = match.lastgroup
        if kind is None:
            break
        begin, end = match.span(kind)
        word = match[kind]
        yield Token(fixed.get(word, kind), word, begin, end)
    yield Token(END, "", len(text), len(text))


class Many(list[Any]):
    """Children that are gathered for the rule they stand in."""


class _Parser:
    """One run over one text. Five stacks stand side by side; `states` has one entry more, the first."""

    def __init__(self, source: Source, start: str) -> None:
        self.source = source
        self.start = start
        self.table = tables()
        self.stop = False
        self._reset()

    def _reset(self) -> None:
        self.states = [self.table.starts[self.start]]
        self.values: list[Any] = []
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.depths: list[int] = []

    def run(self) -> Any:
        found: list[Diagnostic] = []
        lost = False  # after an error, until the next declaration that starts its line
        text = self.source.text
        for token in tokens(self.table, text):
            if lost:
                starts_line = token.start == 0 or text[token.start - 1] in "\n\ufeff"
                if not (starts_line and token.type in DECLARATIONS):
                    continue
                lost = False
            try:
                self._advance(token)
            except ArchError as problem:
                found.extend(d for d in problem.diagnostics if d not in found)
                if self.stop or self.start != "file" or len(found) >= MAX_SYNTAX_ERRORS:
                    break
                self._reset()
                # the offending word may itself begin the next declaration
                lost = not (token.type in DECLARATIONS and (token.start == 0 or text[token.start - 1] == "\n"))
                if not lost:
                    self._advance(token)
        if found:
            raise ArchError(found)
        return self.values[0]

    def _advance(self, token: Token) -> None:
        """Finish every rule that this token ends, then take the token."""
        table = self.table
        shifts, reduces, rules, climbed = table.shifts, table.reduces, table.rules, table.climbed
        states, values, begins, ends, depths = self.states, self.values, self.begins, self.ends, self.depths
        terminal = token.type
        while True:
            state = states[-1]
            target = shifts[state].get(terminal)
            if target is not None:
                if terminal in NAMES and (token.end - token.start > MAX_NAME or "__" in token.text):
                    self._demand_name(token)
                break
            number = reduces[state].get(terminal)
            if number is None:
                if terminal == END and len(values) == 1 and shifts[states[0]].get(self.start) == state:
                    return
                raise self._mistake(token)
            rule = rules[number]
            length = rule.length
            if rule.transparent:
                if length == 1:
                    key = (states[-2], state, terminal)
                    states[-1] = climbed[key] if key in climbed else table.climb(key)
                    continue
                # "(" expression ")": the span is that of all three, for whatever stands around
                kept = rule.kept[0] - length
                values[-length:] = [values[kept]]
                depths[-length:] = [depths[kept]]
                ends[-length:] = ends[-1:]
                del begins[1 - length :], states[1 - length :]
                states[-1] = shifts[states[-2]][rule.name]
                continue
            if length:
                begin, end = begins[-length], ends[-1]
                depth = max(depths[-length:])
                kids: list[Any] = []
                for i in rule.kept:
                    kid = values[i - length]
                    if type(kid) is not Many:
                        kids.append(kid)
                    elif kids:
                        kids += kid
                    else:  # grown in place: if it were copied for each element, a list would cost its length squared
                        kids = kid
                del values[-length:], begins[-length:], ends[-length:], depths[-length:], states[-length:]
            else:
                begin = end = depth = 0
                kids = []
            if rule.many:
                values.append(kids if type(kids) is Many else Many(kids))
            else:
                depth += 1
                if depth > MAX_NESTING:
                    raise self._too_deep(begin, end)
                values.append(BUILDERS[rule.name](kids, Span(self.source, begin, end)))
            begins.append(begin)
            ends.append(end)
            depths.append(depth)
            states.append(shifts[states[-1]][rule.name])
        states.append(target)
        values.append(token)
        begins.append(token.start)
        ends.append(token.end)
        depths.append(0)
        if len(states) > MAX_OPEN:
            raise self._too_deep(token.start, token.end)

    def _too_deep(self, begin: int, end: int) -> ArchError:
        self.stop = True
        return error(
            "E0107",
            f"this is nested more than {MAX_NESTING} deep",
            Span(self.source, begin, min(end, begin + 1)),
            notes=[raising("nesting")],
            help="give the parts names with `let`, or write a repetition as a list: `24 * layer`",
        )

    def _demand_name(self, token: Token) -> None:
        """Raises ArchError for a name that is too long, or that Python would take for one of its own."""
        span = Span(self.source, token.start, token.end)
        if token.end - token.start > MAX_NAME:
            raise error("E0105", f"this name is longer than {MAX_NAME} characters", span, help=raising("name"))
        if any(part.startswith("__") for part in token.text.split(".")):
            text = f"`{token.text}` begins with two underscores, as Python's own names do"
            raise error("E0104", text, span, help="one underscore, or another name")

    def _mistake(self, token: Token) -> ArchError:
        from archdsl.syntax.hints import Mistake

        return ArchError([Mistake(self.table, self.source, self.states, self.values, self.begins, token).explain()])
