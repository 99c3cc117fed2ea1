"""Files: regular ones of bounded size are read, and nobody ever sees half of one that is written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

from archdsl.signals import held, stop_if_asked

MAX_CONFIG = 16 * 2**20
"""Most bytes of a `config.json` or another file of settings."""
MAX_JSON = 256 * 2**20
"""Most bytes of other JSON files: tokenizers, indexes of tensors. The largest published ones have some 35 MB."""
MAX_DEPTH = 100
"""Most levels of lists and objects in a JSON file."""
MAX_DIGITS = 160
"""Most digits of a whole number in a JSON file."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading. Every file that a user names or a checkpoint holds is opened here.

    Raises OSError where it is no regular file: a pipe, a terminal or a device may never end."""
    _demand_regular(os.stat(path), path)  # before it is opened: that of a device may have effects
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _demand_regular(os.fstat(file.fileno()), path)
    except BaseException:
        file.close()
        raise
    return file


def _demand_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file: pipes and devices are not read", os.fspath(path))


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a file; raises OSError where it has more than `most` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", os.fspath(path))
    return content


def read_json(
    path: str | os.PathLike[str], most: int = MAX_JSON, hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Return the value of a JSON file; `hook` replaces each object. Raises OSError, and ValueError where it is no JSON,
    nested more than `MAX_DEPTH` deep, or holds a whole number of more than `MAX_DIGITS` digits."""
    try:
        value = json.loads(read_bytes(path, most).decode("utf-8"), object_hook=hook, parse_int=_whole)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    _demand_flat(value)
    return value


TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _demand_flat(value: Any) -> None:
    """Raise ValueError for a value nested more than `MAX_DEPTH` deep: later functions recurse over it."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list))
        level = [v for values in inner for v in values if isinstance(v, dict | list)]
        if not level:
            return
    raise ValueError(TOO_DEEP)


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
        if (work := _together.get()) is None:
            os.replace(beside, target)
        else:
            work.complete.append((beside, target))
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


class _Together:
    """What takes effect at once: complete files and their names, files to be taken away; and folders made for them."""

    def __init__(self) -> None:
        self.complete: list[tuple[Path, Path]] = []
        self.removed: list[Path] = []
        self.made: list[Path] = []


_together: ContextVar[_Together | None] = ContextVar("together", default=None)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Give all files that are written within their names when the block ends well, and none of them when it does not;
    `make_folder` and `remove` within follow. None of the files can be read by its name before. Raises OSError."""
    if _together.get() is not None:
        yield
        return
    work = _Together()
    before = _together.set(work)
    try:
        yield
        with held():
            for beside, target in work.complete:
                os.replace(beside, target)
            for path in work.removed:
                path.unlink(missing_ok=True)
            work.complete, work.made = [], []
    except BaseException:
        with contextlib.suppress(OSError):
            for beside, _ in work.complete:
                beside.unlink(missing_ok=True)
            for folder in reversed(work.made):
                folder.rmdir()  # which fails where somebody else has put something there
        raise
    finally:
        _together.reset(before)


def make_folder(folder: Path, *, parents: bool = True) -> None:
    """Make a folder, with `parents` also those that it lies in, where there is none. Raises OSError."""
    if (work := _together.get()) is not None:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        work.made += reversed(missing)
    folder.mkdir(parents=parents, exist_ok=True)


def remove(path: Path) -> None:
    """Take a file away. Raises OSError."""
    if (work := _together.get()) is None:
        path.unlink()
    else:
        work.removed.append(path)


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
