"""A sign of life on the terminal while a command works: what it is called, and for how long it has been at it.

It stands on a line of standard error that nobody else has written on for a while, and goes as soon as anybody writes:
reports, diagnostics and progress bars know nothing of it. Where standard error is no terminal there is none."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any, TextIO

AFTER = 1.0
"""Seconds without any output after which the line appears."""
EVERY = 0.1
"""Seconds between two of its pictures."""
PICTURES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ERASE = "\r\x1b[K"


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Show that `what` is still at work until the block ends."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    line = _Line(what, sys.stderr)
    out, err = sys.stdout, sys.stderr
    watched: Any = _Watched(out, line), _Watched(err, line)
    sys.stdout, sys.stderr = watched
    thread = threading.Thread(target=line.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        line.ended.set()
        thread.join()
        # Where nobody reads standard output any more it has been replaced.
        sys.stdout = out if sys.stdout is watched[0] else sys.stdout
        sys.stderr = err


class _Line:
    """The line, drawn by a thread of its own."""

    def __init__(self, what: str, terminal: TextIO) -> None:
        self.what, self.terminal = what, terminal
        self.begun = self.written = monotonic()
        self.free, self.shown = True, False
        self.ended, self.lock = threading.Event(), threading.RLock()

    def run(self) -> None:
        """Draw until the work has ended, and leave the line empty."""
        pictures = 0
        while not self.ended.wait(EVERY if AFTER else 0.001):
            with self.lock:
                if self.free and monotonic() - self.written >= AFTER:
                    self.shown = True
                    seconds = f"{monotonic() - self.begun:,.0f} s"
                    self.put(f"{ERASE}{PICTURES[pictures % len(PICTURES)]} {self.what}: {seconds}")
                    pictures += 1
        self.make_room("\n")

    def make_room(self, text: str) -> None:
        """Take the line away for a text that somebody writes."""
        with self.lock:
            if self.shown:
                self.put(ERASE)
            self.shown, self.written = False, monotonic()
            # Of a text that does not end its line the rest is still to come.
            self.free = text.endswith(("\n", "\r", "\x1b[2K")) if text else self.free

    def put(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError, UnicodeEncodeError):
            self.terminal.write(text)
            self.terminal.flush()


class _Watched:
    """A stream that has the line taken away before anything is written."""

    def __init__(self, stream: TextIO, line: _Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        with self._line.lock:
            self._line.make_room(text)
            return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
