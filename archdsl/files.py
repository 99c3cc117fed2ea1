"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A fresh file beside `path` to write to; it takes that name when the block ends well, and vanishes when it does
    not.

    What is no plain file (a device, a pipe) is handed out as it is; a link keeps pointing where it did. Raises
    OSError."""
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, "Is a directory", str(path))
        yield target
        return
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(13, "Permission denied", str(path))
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    except OSError as problem:  # say it of the file that was asked for
        raise type(problem)(problem.errno, problem.strerror, str(path)) from None
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        os.chmod(beside, stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or nothing. Raises OSError."""
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
