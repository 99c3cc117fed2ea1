"""The canonical form of a file: `archdsl fmt`.

What the tree says is written anew; what it does not say is taken over from the source: comments, single blank lines,
bodies on one line, an argument list that begins on a new line, and columns that the author aligned (`align.py`).
A statement with a comment inside is left as it is. A tree that was built in memory has no source: `_Unwritten` answers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from archdsl.diagnostics.source import Source, printable
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
    printer = _Printer(_Written(source))
    opening, lines = printer.sequence(tree.declarations, 0, len(source.text), 0)
    text = "\n".join([*opening, *lines])
    return align(text + "\n", source.text) if text else ""


def format_tree(tree: ast.File) -> str:
    """A file that was built in memory, in its canonical form: a statement a line, a blank line between declarations,
    `doc` as comment lines. Formatting the text changes nothing, and parsing it gives the tree, if names, numbers and
    strings are as the grammar has them: a number has no sign, a string no `"` and no line end."""
    printer = _Printer(_Unwritten())
    text = ""
    for declaration, before in zip(tree.declarations, (None, *tree.declarations), strict=False):
        doc = declaration.doc if isinstance(declaration, ast.BlockDecl | ast.ModelDecl) else ""
        if before is None:  # comment lines at the top that stand right above a declaration are its doc as well
            text = f"{_comment_lines(tree.doc)}\n" if tree.doc and tree.doc != doc else ""
        elif doc or type(declaration) is not type(before) or isinstance(declaration, ast.BlockDecl | ast.ModelDecl):
            text += "\n"
        text += f"{_comment_lines(doc)}{printer.item(declaration, 0, 0)}\n"
    return text or _comment_lines(tree.doc)


def _comment_lines(doc: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in printable(doc, "\n\t").split("\n")) if doc else ""


class _Comment(Frozen):
    start: int
    end: int
    text: str


class _Unwritten:
    """What a tree does not say, for one without a source: no comments, each statement and body on lines of its own."""

    def comments(self, start: int, end: int) -> list[_Comment]:
        """The comments that begin in a range."""
        return []

    def verbatim(self, start: int, end: int) -> tuple[str, int]:
        """A range as it is written, and the column that it begins in."""
        raise TypeError("only what has a comment inside is taken as it is written")

    def line_ends(self, start: int, end: int) -> int:
        """The line ends in a range between two statements: a second one leaves a blank line."""
        return 1

    def is_line(self, start: int, end: int) -> bool:
        """Whether a range is written on one line."""
        return False

    def braces(self, start: int) -> tuple[int, int]:
        """The next pair of braces from here on."""
        return 0, 0

    def count_bodies(self, start: int, end: int) -> int:
        """How many opening braces stand in a range."""
        return 0

    def has_else(self, item: ast.If, closing: int) -> bool:
        """Whether something follows the closing brace of what is done if the condition holds."""
        return bool(item.otherwise)

    def is_else_if(self, closing: int, inner: ast.If) -> bool:
        """Whether no brace stands between `else` and the `if` behind it."""
        return True


class _Written(_Unwritten):
    """The same as its author wrote it."""

    def __init__(self, source: Source) -> None:
        self.text = source.text
        self._comments: list[_Comment] = []
        self._opens: list[int] = []
        self._partner: dict[int, int] = {}
        unclosed: list[int] = []
        for match in _WORDS.finditer(self.text):
            if match.lastgroup == "comment":
                self._comments.append(_Comment(match.start(), match.end(), match[0].rstrip()))
            elif match.lastgroup == "open":
                unclosed.append(match.start())
                self._opens.append(match.start())
            elif match.lastgroup == "close" and unclosed:
                self._partner[unclosed.pop()] = match.start()
        self._comment_starts = [c.start for c in self._comments]

    def comments(self, start: int, end: int) -> list[_Comment]:
        return self._comments[bisect_left(self._comment_starts, start) : bisect_left(self._comment_starts, end)]

    def verbatim(self, start: int, end: int) -> tuple[str, int]:
        return self.text[start:end], start - (self.text.rfind("\n", 0, start) + 1)

    def line_ends(self, start: int, end: int) -> int:
        return self.text.count("\n", start, end)

    def is_line(self, start: int, end: int) -> bool:
        return "\n" not in self.text[start:end]

    def braces(self, start: int) -> tuple[int, int]:
        opening = self._opens[bisect_left(self._opens, start)]
        return opening, self._partner[opening]

    def count_bodies(self, start: int, end: int) -> int:
        return bisect_left(self._opens, end) - bisect_left(self._opens, start)

    def has_else(self, item: ast.If, closing: int) -> bool:
        return closing < item.span.end - 1

    def is_else_if(self, closing: int, inner: ast.If) -> bool:
        return "{" not in _WORDS.sub(lambda m: m["open"] or "", self.text[closing + 1 : inner.span.start])


class _Printer:
    def __init__(self, written: _Unwritten) -> None:
        self.written = written

    # --- sequences ------------------------------------------------------------------------------------------------

    def sequence(self, items: Sequence[Item], start: int, end: int, indent: int) -> tuple[list[str], list[str]]:
        """Items and the comments between them: what belongs on the line that opens the range, and the lines below."""
        inside = {c.start for item in items for c in self.written.comments(item.span.start, item.span.end)}
        parts: list[Item | _Comment] = [c for c in self.written.comments(start, end) if c.start not in inside]
        parts = sorted([*parts, *items], key=_start) if parts else list(items)
        widths = self._slot_widths(parts)
        opening: list[str] = []
        lines: list[str] = []
        last = start
        for i, part in enumerate(parts):
            breaks = self.written.line_ends(last, _start(part))
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
            if self.written.line_ends(last, _start(part)) > 1:
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
        comments = self.written.comments(opening, closing)
        if not items and not comments:
            return "{}"
        # Of deeply nested bodies each would be tried twice by each around it: they are no line for a reader.
        is_shallow = self.written.count_bodies(opening, closing) <= DEEP
        if not comments and is_shallow and self.written.is_line(opening, closing):
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
        if not self.written.comments(item.span.start, item.span.end):
            return False
        nested = sum(len(self.written.comments(*pair)) for pair in self._bodies(item))
        if isinstance(item, (ast.BlockDecl, ast.ModelDecl)) and isinstance(item.body, ast.Body):
            return False  # a comment in the signature leaves only that as it is
        return nested < len(self.written.comments(item.span.start, item.span.end))

    def _bodies(self, item: Item | ast.Scan) -> list[tuple[int, int]]:
        """The braces of an item's own bodies."""
        match item:
            case ast.BlockDecl(body=ast.Body() as body) | ast.ModelDecl(body=body):
                return [(body.span.start, body.span.end - 1)]
            case ast.Assign(value=ast.For() | ast.Scan() as loop):
                return self._bodies(loop)
            case ast.For(iterable=iterable):
                return [self.written.braces(iterable.span.end)]
            case ast.Scan(sequences=sequences):
                return [self.written.braces(sequences[-1].span.end)]
            case ast.If(condition):
                then = self.written.braces(condition.span.end)
                if inner := self._else_if(item, then[1]):
                    return [then, *self._bodies(inner)]
                return [then, self.written.braces(then[1])] if self.written.has_else(item, then[1]) else [then]
        return []

    def _else_if(self, item: ast.If, closing: int) -> ast.If | None:
        """The `if` right behind the `else` of another one, whose first body ends with this brace."""
        match item.otherwise:
            case (ast.If() as inner,) if self.written.is_else_if(closing, inner):
                return inner
        return None

    def _verbatim(self, start: int, end: int, indent: int) -> str:
        """The source itself, moved to its new indentation."""
        text, column = self.written.verbatim(start, end)
        move = indent - column
        first, *lines = text.split("\n")
        moved = []
        for line in lines:
            bare = line.strip()
            old = len(line) - len(line.lstrip())
            moved.append(" " * max(old + move, 0) + bare if bare else "")
        return "\n".join([first.rstrip(), *moved])

    def _declaration(self, item: ast.BlockDecl | ast.ModelDecl, indent: int) -> str:
        start = "model " if isinstance(item, ast.ModelDecl) else "inline block " if item.inline else "block "
        body_start = item.body.span.start
        if (comments := self.written.comments(item.span.start, body_start)) and isinstance(item.body, ast.Body):
            header = self._verbatim(item.span.start, body_start, indent).rstrip()
            header += f"\n{' ' * indent}" if header.endswith(comments[-1].text) else " "
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
        on_one_line = self.written.is_line(item.span.start, item.span.end)
        on_one_line = on_one_line and item.span.end - item.span.start <= WIDTH
        for before in (beside,) if "\n" in then else (beside, below) if on_one_line else (below,):
            if inner := self._else_if(item, pairs[0][1]):
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
