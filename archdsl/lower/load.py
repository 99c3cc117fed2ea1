"""Emitted source as a living class."""

from __future__ import annotations

import hashlib
import linecache
import sys
from types import ModuleType
from typing import Any


def load_source(source: str, class_name: str) -> type[Any]:
    """The class of that name from an emitted file, executed as a module of its own. The same text is executed once.

    Tracebacks, debuggers and `inspect.getsource` show its lines."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    name = f"archdsl_emitted_{digest}"
    module = sys.modules.get(name)
    if module is None:
        file = f"<{name}>"
        module = ModuleType(name)
        module.__file__ = file
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        sys.modules[name] = module  # dataclasses look their module up while they are made
        try:
            exec(compile(source, file, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
    found: type[Any] = getattr(module, class_name)
    return found
