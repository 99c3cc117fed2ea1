"""Every message that the package can show, in one listing: to be read from top to bottom, and checked for its spelling.

    python -m tests.messages            # file:line, who is given the text, the text; expressions in it as {…}
    python -m tests.messages --words    # the words that stand in it, as tests/words.txt lists them

Texts are taken from the source: what has two words in a row is prose, but for docstrings, for code that is emitted and
for the rules of the verifier. The docstrings of commands are their help; the pages of findings are
listed, too, and last what is said of the wrong example of each.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from archdsl.api import check
from archdsl.diagnostics.render import render_text

PACKAGE = Path(__file__).resolve().parents[1] / "archdsl"
PAGES = PACKAGE / "diagnostics" / "pages"
PROSE = re.compile(r"[a-z]{2,}\W* [a-z]{2,}")
QUOTED = re.compile(
    r"`[^`]*`|\{[^{}]*\}|'[^' ]*'|\"[^\" ]*\"|--[\w-]+|\S*[_/=<>()\[\]*#@]\S*|\S*\w\.\w\S*|\b[\w-]*\d[\w-]*"
)
"""Names, code, options, holes, files and numbers."""
WORD = re.compile(r"[^\W\d_]+(?:'[a-z]+)?")
NO_PROSE = {"shown", "py", "Example", "Idiom", "strip", "compile", "split", "frozenset"}
"""Functions whose texts are code, a pattern or a list of names."""
CODE = ("backends/torch/features/", "backends/torch/runtime/", "ir/verify/", "syntax/layout.py", "ir/text.py")
"""Files whose texts are mostly what is emitted or printed as code; only what they refuse is listed."""
REFUSALS = {"error", "refuse", "_refuse", "Diagnostic", "blame"}


class Message(NamedTuple):
    """A text and where it stands; `by` is the function that it is given to, or the kind of statement."""

    file: str
    line: int
    by: str
    text: str


@cache
def messages() -> tuple[Message, ...]:
    """Return every message of the package, file by file."""
    return tuple(_messages())


def _messages() -> Iterator[Message]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for message in _texts(tree, name):
            if message.by not in NO_PROSE and (not name.startswith(CODE) or message.by in REFUSALS):
                yield message
    for page in sorted(PAGES.glob("*.md")):
        head, _, rest = page.read_text(encoding="utf-8").partition("\n")
        yield Message(f"diagnostics/pages/{page.name}", 1, "page", head.partition(": ")[2])
        yield Message(f"diagnostics/pages/{page.name}", 3, "page", rest.partition("## Wrong")[0].strip())


def _texts(tree: ast.Module, file: str) -> Iterator[Message]:
    nodes = [*ast.walk(tree)]
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and any("command(" in ast.unparse(d) for d in node.decorator_list):
            yield Message(file, node.lineno, "command", ast.get_docstring(node) or "")
        above = parents.get(node)
        if isinstance(node, ast.JoinedStr) and not isinstance(above, ast.FormattedValue):
            parts = [v.value if isinstance(v, ast.Constant) else f"{{{ast.unparse(v.value)}}}" for v in node.values]
            text = "".join(str(p) for p in parts)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and not isinstance(above, ast.JoinedStr | ast.FormattedValue | ast.Expr)
        ):
            text = node.value
        else:
            continue
        if PROSE.search(QUOTED.sub("`", text)):
            while above is not None and not isinstance(above, ast.Call | ast.stmt):
                above = parents.get(above)
            by = ast.unparse(above.func).rpartition(".")[2] if isinstance(above, ast.Call) else type(above).__name__
            yield Message(file, getattr(node, "lineno", 0), by, text)


def words(message: Message) -> list[str]:
    """Return the words of a message, without what it quotes: names, code, options, holes, files."""
    return WORD.findall(QUOTED.sub(" ", QUOTED.sub(" ", message.text)))


def main() -> None:
    listing = messages()
    if "--words" in sys.argv[1:]:
        print("\n".join(sorted({w.lower() for m in listing for w in words(m)})))
        return
    for m in listing:
        print(f"archdsl/{m.file}:{m.line}: {m.by}: {' '.join(m.text.split())}")
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        _wrong_examples()


def _wrong_examples() -> None:
    for page in sorted(PAGES.glob("*.md")):
        wrong = re.search(r"## Wrong\n\n```arch\n(.+?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        if wrong is not None:
            Path("spec.arch").write_text(wrong[1], encoding="utf-8")
            print(f"\n{page.stem}, as its wrong example is told:\n{render_text(check('spec.arch'))}")


if __name__ == "__main__":
    main()
