"""Being asked to end, by Ctrl-C or SIGTERM.

What a signal's handler raises arrives wherever the process happens to be. Where that is a finalizer or a callback,
Python drops it, and the work would go on; so the handler also notes it, and what takes long asks now and then."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

_asked: type[BaseException] | None = None
_holding = 0


class StoppedError(KeyboardInterrupt):
    """Ctrl-C. Of a KeyboardInterrupt itself, Python remembers that it passed through `exec`, as in the import of a
    dataclass, and ends the process by the signal, whoever caught it."""


class TerminatedError(BaseException):
    """The process is asked to end: what it was writing is taken away on the way out."""


def watch() -> None:
    """Raise StoppedError and TerminatedError in this process when it is asked to end, unless SIGINT is ignored or
    somebody else's."""
    with contextlib.suppress(ValueError):  # not the main thread, where signals arrive
        signal.signal(signal.SIGTERM, _stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _stop)


def _stop(number: int, frame: object) -> None:
    global _asked
    _asked = StoppedError if number == signal.SIGINT else TerminatedError
    if not _holding:
        raise _asked


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let what is done within come to its end before the process ends: it takes no time."""
    global _holding
    _holding += 1
    try:
        yield
    finally:
        _holding -= 1
    stop_if_asked()


def stop_if_asked() -> None:
    """Raise again what a handler has raised and something has dropped."""
    if _asked is not None:
        raise _asked


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Where what is done within fails after it was asked to end, raise that it was: C code may turn what a handler has
    raised into an error of its own, as in an import of NumPy."""
    try:
        yield
    except Exception:
        stop_if_asked()
        raise
