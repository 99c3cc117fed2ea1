"""A directory of files that can be made anew at any time: parser tables, figures of the zoo.

A file holds JSON below its own hash, so that a damaged one is noticed and ignored. Where nothing can be written,
nothing is kept; the cache never fails and never matters but for speed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from archdsl.files import MAX_JSON, read_bytes


def directory() -> Path | None:
    """`$XDG_CACHE_HOME/archdsl`, or `~/.cache/archdsl`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification: a relative one is to be ignored
        return Path(base, "archdsl")
    home = os.path.expanduser("~")
    return Path(home, ".cache", "archdsl") if os.path.isabs(home) else None


def load(name: str) -> Any:
    """What was stored under this name, or None."""
    folder = directory()
    if folder is None:
        return None
    try:
        content = read_bytes(folder / name, MAX_JSON)
    except OSError:
        return None
    digest, _, payload = content.partition(b"\n")
    if hashlib.sha256(payload).hexdigest().encode() != digest:
        return None
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None


def store(name: str, data: Any) -> None:
    """Keep data under this name, if that is possible: written beside and renamed, so that no reader sees a half."""
    folder = directory()
    if folder is None:
        return
    payload = json.dumps(data, separators=(",", ":"), ensure_ascii=True).encode()
    temporary = folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
        os.replace(temporary, folder / name)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
