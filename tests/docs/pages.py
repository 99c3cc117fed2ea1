"""What the pages of the documentation promise, read out of their code blocks.

A comment above a block says what it is; a reader of the rendered page does not see it:

* `<!-- examples/gpt2.arch -->` above `arch`: a file of the repository, to the byte. A name that the repository does not
  have makes a file of the reader's own, which later blocks of the page may use, or shows what a command above it wrote.
* `<!-- gpt.py -->` above `python`: a file of the reader's own, too.
* `console`: every `$ archdsl …` is run where those files lie, and must print what stands below it. `…` stands for any
  text in a line; a line of it, for any lines.
* `<!-- compile tiny.arch: Attention Decoder -->` above `python`: these classes of what the command gives.
* `<!-- runtimes -->` above `python`: run in a process of its own, with onnxruntime-genai and optimum (`make runtimes`).
* any other `python`: run, one after the other; with `>>>`, as a doctest.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    note: str
    words: tuple[str, ...]
    """What stands behind the opening fence."""
    text: str
    start: int
    """Where in the page the text begins."""

    @property
    def kind(self) -> str:
        return self.words[0] if self.words else ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("info")) + 1
        words = tuple(match["info"].split())
        found.append(Block(page, line, match["note"] or "", words, match["text"], match.start("text")))
    return found


def rewrite(page: Path, changed: dict[int, str]) -> None:
    """Give blocks, named by where their text begins, other texts."""
    text = page.read_text(encoding="utf-8")
    for block in reversed(blocks(page)):
        if block.start in changed:
            text = text[: block.start] + changed[block.start] + text[block.start + len(block.text) :]
    page.write_text(text, encoding="utf-8", newline="\n")
