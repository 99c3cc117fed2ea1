"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from archdsl.signals import stop_if_asked


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A fresh file beside `path` to write to; it takes that name when the block ends well, and vanishes when it does
    not. What a process left there that was killed is taken away first.

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
    prefix = f".{target.name[:50]}."
    _sweep(target.parent, prefix)
    beside = target.parent / f"{prefix}{os.getpid()}.{secrets.token_hex(4)}{BESIDE}"
    try:  # from before there is the file: a signal may come as soon as it is there
        try:
            os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as problem:  # say it of the file that was asked for
            raise type(problem)(problem.errno, problem.strerror, str(path)) from None
        yield beside
        stop_if_asked()
        os.chmod(beside, stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


BESIDE = ".part"
"""How the name of a file ends that is not complete yet: `.name.PROCESS.….part`."""


def _sweep(folder: Path, prefix: str) -> None:
    """Take away files that were never completed, of processes that are no more."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith(prefix) and name.endswith(BESIDE) and entry.is_file(follow_symlinks=False):
                process = name.removeprefix(prefix).partition(".")[0]
                if process.isdecimal() and not _runs(int(process)):
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)


def _runs(process: int) -> bool:
    """Whether there is a process of that number, whoever's it is."""
    if os.name != "posix":  # elsewhere a signal cannot ask
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or nothing. Raises OSError."""
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
