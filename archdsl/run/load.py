"""Emitted source as a living class."""

from __future__ import annotations

import ast
import hashlib
import linecache
import sys
from types import ModuleType
from typing import Any


def load_source(source: str, class_name: str = "") -> type[Any]:
    """The model's class from an emitted file (the last one, unless named), executed as a module of its own, once for
    each text.

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
            # Annotations are evaluated, as where the file is imported.
            exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
    name = class_name or [n.name for n in ast.parse(source).body if isinstance(n, ast.ClassDef)][-1]
    found: type[Any] = getattr(module, name)
    return found
