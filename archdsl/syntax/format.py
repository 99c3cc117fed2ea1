"""The canonical form of a file: `archdsl fmt`.

What the tree says is written anew; what it does not say is taken over from the source: comments, single blank lines,
bodies on one line, an argument list that begins on a new line, and columns that the author aligned (`align.py`).
A statement with a comment inside is left as it is.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from archdsl.diagnostics.source import Source
from archdsl.frozen import Frozen
from archdsl.syntax import ast
from archdsl.syntax.align import align
from archdsl.syntax.layout import LOOSE, WIDTH, Layout, end_column, flat, signature, tensor_type

_WORDS = re.compile(r'"[^"\n]*"|(?P<comment>#[^\n]*)|(?P<open>\{)|(?P<close>\})')

DEEP = 6
"""Bodies within a body that is written on one line."""

Item = ast.Declaration | ast.Slot | ast.Statement


def format_expr(expr: ast.Expr) -> str:
    """An expression on one line, with the parentheses it needs and no others."""
    return flat(expr)


def format_file(tree: ast.File, source: Source) -> str:
    """The file in its canonical form. Parsing that gives the same tree, and formatting it again the same text."""
    printer = _Printer(source)
    opening, lines = printer.sequence(tree.declarations, 0, len(source.text), 0)
    text = "\n".join([*opening, *lines])
    return align(text + "\n", source.text) if text else ""


class _Comment(Frozen):
    start: int
    end: int
    text: str


class _Printer:
    def __init__(self, source: Source) -> None:
        self.text = source.text
        self.comments: list[_Comment] = []
        self.opens: list[int] = []
        self.partner: dict[int, int] = {}
        unclosed: list[int] = []
        for match in _WORDS.finditer(self.text):
            if match.lastgroup == "comment":
                self.comments.append(_Comment(match.start(), match.end(), match[0].rstrip()))
            elif match.lastgroup == "open":
                unclosed.append(match.start())
                self.opens.append(match.start())
            elif match.lastgroup == "close" and unclosed:
                self.partner[unclosed.pop()] = match.start()
        self.comment_starts = [c.start for c in self.comments]

    def within(self, start: int, end: int) -> list[_Comment]:
        """The comments that begin in a range."""
        return self.comments[bisect_left(self.comment_starts, start) : bisect_left(self.comment_starts, end)]

    def braces(self, start: int) -> tuple[int, int]:
        """The next pair of braces from here on."""
        opening = self.opens[bisect_left(self.opens, start)]
        return opening, self.partner[opening]

    # --- sequences ------------------------------------------------------------------------------------------------

    def sequence(self, items: Sequence[Item], start: int, end: int, indent: int) -> tuple[list[str], list[str]]:
        """Items and the comments between them: what belongs on the line that opens the range, and the lines below."""
        inside = {c.start for item in items for c in self.within(item.span.start, item.span.end)}
        parts: list[Item | _Comment] = [c for c in self.within(start, end) if c.start not in inside]
        parts += items
        parts.sort(key=_start)
        widths = self._slot_widths(parts)
        opening: list[str] = []
        lines: list[str] = []
        last = start
        for i, part in enumerate(parts):
            breaks = self.text.count("\n", last, _start(part))
            if breaks > 1 and lines:
                lines.append("")
            if isinstance(part, _Comment):
                if breaks or (start == 0 and not last):
                    lines.append(" " * indent + part.text)
                elif lines:
                    lines[-1] += f"  {part.text}"
                else:
                    opening.append(part.text)
                last = part.end
            else:
                lines += self.item(part, indent, widths.get(i, 0)).split("\n")
                last = part.span.end
        return opening, lines

    def _slot_widths(self, parts: Sequence[Item | _Comment]) -> dict[int, int]:
        """For each slot how wide the keys around it are, as far as no blank line or statement parts them."""
        widths: dict[int, int] = {}
        group: list[int] = []
        last = 0

        def close() -> None:
            widest = max((len(s.key) for i in group if isinstance(s := parts[i], ast.Slot)), default=0)
            widths.update(dict.fromkeys(group, widest))
            group.clear()

        for i, part in enumerate(parts):
            if self.text.count("\n", last, _start(part)) > 1:
                close()
            if isinstance(part, ast.Slot):
                group.append(i)
            elif not isinstance(part, _Comment):
                close()
            last = part.end if isinstance(part, _Comment) else part.span.end
        close()
        return widths

    def body(self, items: Sequence[Item], opening: int, closing: int, indent: int, column: int) -> str:
        """A body in its braces, from the opening one in this column."""
        comments = self.within(opening, closing)
        if not items and not comments:
            return "{}"
        # Of deeply nested bodies each would be tried twice by each around it: they are no line for a reader.
        nested = bisect_left(self.opens, closing) - bisect_left(self.opens, opening) - 1
        if not comments and nested < DEEP and "\n" not in self.text[opening:closing]:
            texts = [self.item(item, indent + 2, 0) for item in items]
            line = f"{{ {'  '.join(t.strip() for t in texts)} }}"
            if "\n" not in line and column + len(line) <= WIDTH:
                return line
        first, lines = self.sequence(items, opening + 1, closing, indent + 2)
        return "\n".join(["".join(["{", *(f"  {c}" for c in first)]), *lines, " " * indent + "}"])

    # --- items ----------------------------------------------------------------------------------------------------

    def item(self, item: Item, indent: int, width: int) -> str:
        """One declaration, slot or statement, indented."""
        start = " " * indent
        if self._has_comment_inside(item):
            return start + self._verbatim(item.span.start, item.span.end, indent)
        layout = Layout(indent)

        def lay(before: str, expr: ast.Expr, after: str = "") -> str:
            return before + layout.lay(expr, LOOSE, end_column(0, before), len(after)) + after

        match item:
            case ast.Import(path, name):
                return f'{start}import "{path}"' + (f" as {name}" if name else "")
            case ast.Let(name, value) | ast.Variant(name, value):
                return lay(f"{start}{type(item).__name__.lower()} {name} = ", value)
            case ast.BlockDecl() | ast.ModelDecl():
                return self._declaration(item, indent)
            case ast.Slot(key, value):
                return lay(f"{start}{key + ':':<{width + 1}} ", value)
            case ast.Assign(names, value, type_):
                before = f"{start}{', '.join(names)} = "
                if isinstance(value, (ast.For, ast.Scan)):
                    return self._loop(before, value, indent) + _typed(type_)
                return lay(before, value, _typed(type_))
            case ast.Update(name, value, type_):
                return lay(f"{start}{name} += ", value, _typed(type_))
            case ast.Param(kind, name, of, value):
                return lay(f"{start}{kind} {name}: {tensor_type(of)} = ", value)
            case ast.For():
                return self._loop(start, item, indent)
            case ast.If():
                return self._if(start, item, indent)
            case ast.Assert(condition, message):
                return self._assert(f"{start}assert ", condition, message, layout)
            case ast.Assume(condition):
                return lay(f"{start}assume ", condition)
            case ast.Return(values):
                return f"{start}return {layout.items(values, indent + 7, 0)}"
            case ast.Emit(value):
                return lay(f"{start}emit ", value)
            case ast.Loss(name, value):
                return lay(f"{start}loss {name} = ", value)

    def _assert(self, start: str, condition: ast.Expr, message: str | None, layout: Layout) -> str:
        if message is None:
            return start + layout.lay(condition, LOOSE, len(start), 0)
        after = f', "{message}"'
        if len(start) + len(flat(condition)) + len(after) > WIDTH:
            after = f',\n{" " * len(start)}"{message}"'
        return start + layout.lay(condition, LOOSE, len(start), 1) + after

    def _has_comment_inside(self, item: Item) -> bool:
        """Whether a comment stands where no nested body will find it."""
        if not self.within(item.span.start, item.span.end):
            return False
        nested = sum(len(self.within(*pair)) for pair in self._bodies(item))
        if isinstance(item, (ast.BlockDecl, ast.ModelDecl)) and isinstance(item.body, ast.Body):
            return False  # a comment in the signature leaves only that as it is
        return nested < len(self.within(item.span.start, item.span.end))

    def _bodies(self, item: Item | ast.Scan) -> list[tuple[int, int]]:
        """The braces of an item's own bodies."""
        match item:
            case ast.BlockDecl(body=ast.Body() as body) | ast.ModelDecl(body=body):
                return [(body.span.start, body.span.end - 1)]
            case ast.Assign(value=ast.For() | ast.Scan() as loop):
                return self._bodies(loop)
            case ast.For(iterable=iterable):
                return [self.braces(iterable.span.end)]
            case ast.Scan(sequences=sequences):
                return [self.braces(sequences[-1].span.end)]
            case ast.If(condition, _, otherwise):
                then = self.braces(condition.span.end)
                if len(otherwise) == 1 and isinstance(otherwise[0], ast.If) and self._is_else_if(then[1], otherwise[0]):
                    return [then, *self._bodies(otherwise[0])]
                return [then, self.braces(then[1])] if then[1] < item.span.end - 1 else [then]
        return []

    def _is_else_if(self, closing: int, inner: ast.If) -> bool:
        return "{" not in _WORDS.sub(lambda m: m["open"] or "", self.text[closing + 1 : inner.span.start])

    def _verbatim(self, start: int, end: int, indent: int) -> str:
        """The source itself, moved to its new indentation."""
        move = indent - (start - (self.text.rfind("\n", 0, start) + 1))
        first, *lines = self.text[start:end].split("\n")
        moved = []
        for line in lines:
            bare = line.strip()
            old = len(line) - len(line.lstrip())
            moved.append(" " * max(old + move, 0) + bare if bare else "")
        return "\n".join([first.rstrip(), *moved])

    def _declaration(self, item: ast.BlockDecl | ast.ModelDecl, indent: int) -> str:
        start = "model " if isinstance(item, ast.ModelDecl) else "inline block " if item.inline else "block "
        body_start = item.body.span.start
        if self.within(item.span.start, body_start) and isinstance(item.body, ast.Body):
            header = self._verbatim(item.span.start, body_start, indent).rstrip()
            commented = self.within(item.span.start, body_start)[-1].end >= len(self.text[:body_start].rstrip())
            header += f"\n{' ' * indent}" if commented else " "
            return header + self.body(item.body.items, body_start, item.body.span.end - 1, indent, WIDTH)
        header = signature(start + item.name, item.header, len(" {"))
        if isinstance(item.body, ast.Body):
            column = end_column(0, header) + 1
            return f"{header} {self.body(item.body.items, body_start, item.body.span.end - 1, indent, column)}"
        line = f"{header} = {flat(item.body)}"
        if "\n" not in header and len(line) <= WIDTH:
            return line
        return f"{header}\n  = {Layout(2).lay(item.body, LOOSE, 4, 0)}"

    def _loop(self, start: str, loop: ast.For | ast.Scan, indent: int) -> str:
        layout = Layout(indent)
        if isinstance(loop, ast.For):
            text = f"{start}for {loop.name} in "
            text += layout.lay(loop.iterable, LOOSE, end_column(0, text), 2)
        else:
            carries = [f"{c.name}: {tensor_type(c.type)} = {flat(c.start)}" for c in loop.carries]
            text = f"{start}scan "
            column, end = end_column(0, text), f" for {', '.join(loop.names)} in "
            text += carries[0]
            for carry in carries[1:]:
                fits = end_column(0, text) + 2 + len(carry) + len(end) <= WIDTH
                text += f", {carry}" if fits else f",\n{' ' * column}{carry}"
            if end_column(0, text) + len(end) + sum(len(flat(s)) + 2 for s in loop.sequences) > WIDTH:
                text += f"\n{' ' * (column - 1)}"
            text += end
            text += layout.items(loop.sequences, end_column(0, text), 2)
        opening, closing = self._bodies(loop)[0]
        return f"{text} {self.body(loop.body, opening, closing, indent, end_column(0, text) + 1)}"

    def _if(self, start: str, item: ast.If, indent: int) -> str:
        pairs = self._bodies(item)
        head = f"{start}if "
        head += Layout(indent).lay(item.condition, LOOSE, end_column(0, head), 2)
        then = self.body(item.then, *pairs[0], indent, end_column(0, head) + 1)
        text = f"{head} {then}"
        if len(pairs) == 1:
            return text
        beside = f"{text} else "
        below = f"{text}\n{' ' * indent}else "
        on_one_line = "\n" not in self.text[item.span.start : item.span.end]
        on_one_line = on_one_line and item.span.end - item.span.start <= WIDTH
        for before in (beside,) if "\n" in then else (beside, below) if on_one_line else (below,):
            inner = item.otherwise[0] if item.otherwise else None
            if isinstance(inner, ast.If) and self._is_else_if(pairs[0][1], inner):
                whole = self._if(before, inner, indent)
            else:
                whole = before + self.body(item.otherwise, *pairs[1], indent, end_column(0, before))
            if before == beside and ("\n" in then or ("\n" not in whole and len(whole) <= WIDTH)):
                break
        return whole


def _start(part: Item | _Comment) -> int:
    return part.start if isinstance(part, _Comment) else part.span.start


def _typed(type_: ast.TensorType | None) -> str:
    return f" : {tensor_type(type_)}" if type_ else ""
