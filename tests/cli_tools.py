"""Command lines in this process: what the tests of commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from archdsl.cli import app

TINY = """\
block layer(heads) {
  attention: mha(heads: heads)
  mask:      causal
  ffn:       mlp(hidden: 2 * width)
}

model tiny(layers = 2, heads = 2, width = 16) {
  vocab:   64
  context: 16
  width:   width
  blocks:  layers * layer(heads: heads)
  head:    lm
}
"""


class Done(NamedTuple):
    """The exit status of a command, and what it says on either stream."""

    status: int
    out: str
    err: str


Run = Callable[..., Done]


def run(*arguments: str | Path) -> tuple[int, str]:
    """Run a command; the exit status, and what it says on both streams. The frame around commands is not part of it."""
    done = CliRunner().invoke(app, [*map(str, arguments)], prog_name="archdsl")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output
