"""Emitted source as a living class."""

from __future__ import annotations

import ast
import copyreg
import hashlib
import linecache
import sys
from functools import partial
from types import ModuleType
from typing import Any


def load_source(source: str, class_name: str = "") -> type[Any]:
    """The model's class from an emitted file (the last one, unless named), executed as a module of its own, once for
    each text.

    Tracebacks, debuggers and `inspect.getsource` show its lines. Its modules can be pickled: what is stored of them
    holds the source, from which another process with archdsl makes the classes again."""
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
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == name:
                copyreg.pickle(cls, partial(_reduce, source))
    class_name = class_name or [n.name for n in ast.parse(source).body if isinstance(n, ast.ClassDef)][-1]
    found: type[Any] = getattr(module, class_name)
    return found


def _reduce(source: str, value: Any) -> Any:
    """Return what pickle stores of an object of an emitted class: as by default, with the source in place of a class
    that no other process could import. Pickle stores an equal source once."""
    how, arguments, *state = value.__reduce_ex__(2)
    if how is not copyreg.__newobj__:  # type: ignore[attr-defined]  # typeshed leaves it out
        return how, arguments, *state
    cls, *rest = arguments
    return _new, (source, cls.__qualname__, *rest), *state


def _new(source: str, class_name: str, *arguments: Any) -> Any:
    """Return an object without its state, of a class of an emitted file."""
    cls = load_source(source, class_name)
    return cls.__new__(cls, *arguments)
