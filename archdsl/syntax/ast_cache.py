"""Syntax trees of the standard library, kept in the cache by the hash of their text.

A node is written as `[class, start, end, fields…]`, a tuple as `[-1, items…]`, any other span as `[-2, start, end]`.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from archdsl.diagnostics.source import Source, Span
from archdsl.resources import grammar_text
from archdsl.syntax import ast, cache
from archdsl.syntax.parse import parse

_CLASSES: tuple[type[ast.Node], ...] = tuple(
    sorted(
        (c for c in vars(ast).values() if isinstance(c, type) and issubclass(c, ast.Node) and c is not ast.Node),
        key=lambda c: c.__name__,
    )
)
_FIELDS = tuple(tuple(name for name in c.__dataclass_fields__ if name != "span") for c in _CLASSES)
_NUMBER = {c: i for i, c in enumerate(_CLASSES)}
_TUPLE, _SPAN = -1, -2
_FORMAT = 1
"""To be raised where the parser makes another tree of the same text, or this file writes it in another way."""


def parse_cached(source: Source) -> ast.File:
    """The tree of a library file, from the cache or parsed and kept. Any other file is simply parsed."""
    if not source.library:
        return parse(source)
    name = "tree-" + hashlib.sha256(f"{_stamp()}\n{source.text}".encode()).hexdigest()[:32]
    data = cache.load(name)
    if data is not None:
        try:
            tree = _decode(data, source)
        except (IndexError, KeyError, TypeError, ValueError, RecursionError):
            tree = None  # a file of another format under our name: made anew and overwritten
        if isinstance(tree, ast.File):
            return tree
    parsed = parse(source)
    cache.store(name, _encode(parsed))
    return parsed


@functools.cache
def _stamp() -> str:
    """What the meaning of a kept tree depends on, beside its text: the grammar and the classes of the nodes."""
    classes = [(c.__name__, names) for c, names in zip(_CLASSES, _FIELDS, strict=True)]
    return hashlib.sha256(f"{_FORMAT} {classes} {grammar_text()}".encode()).hexdigest()


def _encode(value: Any) -> Any:
    if isinstance(value, ast.Node):
        number = _NUMBER[type(value)]
        fields = [_encode(getattr(value, name)) for name in _FIELDS[number]]
        return [number, value.span.start, value.span.end, *fields]
    if isinstance(value, tuple):
        return [_TUPLE, *map(_encode, value)]
    if isinstance(value, Span):
        return [_SPAN, value.start, value.end]
    return value


def _decode(data: Any, source: Source) -> Any:
    number = data[0]
    if number >= 0:
        node = object.__new__(_CLASSES[number])
        content = node.__dict__  # frozen classes set each field through object.__setattr__, which takes thrice as long
        content["span"] = Span(source, data[1], data[2])
        i = 3
        for name in _FIELDS[number]:
            value = data[i]
            i += 1
            content[name] = _decode(value, source) if type(value) is list else value
        return node
    if number == _TUPLE:
        return tuple([_decode(v, source) if type(v) is list else v for v in data[1:]])
    return Span(source, data[1], data[2])
