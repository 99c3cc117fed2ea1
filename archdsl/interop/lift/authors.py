"""What the author's source says of a value: the statement that made it, the names that it binds, the names that a
`forward` takes and returns; and his names as names of the language."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from archdsl.interop.lift.export import Frame
from archdsl.ir import masks
from archdsl.ir.paths import safe_name
from archdsl.ops import registry
from archdsl.syntax.parser_tables import tables

RESERVED = frozenset({
    *tables().keywords, *masks.INPUTS, "full", "causal", "batch", "time", "none", "true", "false", "inf", "self",
    "same", "zeros", "ones", "i",
})  # fmt: skip
"""Words of the language, the index of loops, and what stands bare as an option; no names of tensors or weights."""
APPLIED = frozenset({*registry.names(), *masks.RULES, *masks.TENSOR_RULES, "shared", "constant", "normal"})
"""What a lifted spec applies, beside its own blocks: a tensor may have such a name, and no block or instance."""


def word(text: str) -> str:
    """A text as a name of the language."""
    found = re.sub(r"\W", "_", text, flags=re.ASCII)[:60] or "x"
    if found[0].isdigit():
        found = f"_{found}"
    return f"{found}_" if found in RESERVED else found


def step(text: str) -> str:
    """A text as a step in the path of a weight."""
    return safe_name(word(text))


class Line(NamedTuple):
    """A simple statement of the author's: where it begins and ends, the names that it binds in their order (None for
    what is no name), those that it reads, and whether it returns."""

    file: str
    start: int
    end: int
    targets: tuple[str | None, ...] = ()
    reads: tuple[str, ...] = ()
    returns: bool = False


def line_of(module: type, frames: Sequence[Frame]) -> Line | None:
    """The statement of a module's class, or of a class that it inherits from, in which a value was made."""
    spans = [s for c in module.__mro__ if not c.__module__.startswith("torch.") and (s := _span(c))]
    best = None
    for frame in frames:
        if any(file == frame.file and low <= frame.line < high for file, low, high in spans):
            best = next((s for s in _statements(frame.file) if s.start <= frame.line <= s.end), best)
    return best


def parameters(module: type) -> tuple[str, ...]:
    """The names of the tensors that a `forward` may take, in order."""
    with suppress(TypeError, ValueError):
        found = inspect.signature(getattr(module, "forward", module)).parameters.values()
        return tuple(p.name for p in found if p.name != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return ()


def returned(module: type) -> tuple[str | None, ...]:
    """The names in the last `return` of a `forward`."""
    forward = inspect.unwrap(getattr(module, "forward", module))
    code = getattr(forward, "__code__", None)
    if code is None:
        return ()
    last = max((line for _, _, line in code.co_lines() if line), default=0)
    found = [s for s in _statements(code.co_filename) if s.returns and code.co_firstlineno <= s.start <= last]
    return found[-1].targets if found else ()


@cache
def _span(cls: type) -> tuple[str, int, int] | None:
    with suppress(OSError, TypeError):
        lines, start = inspect.getsourcelines(cls)
        return inspect.getsourcefile(cls) or "", start, start + len(lines)
    return None


@cache
def _statements(file: str) -> tuple[Line, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
    return tuple(_line(file, s) for s in ast.walk(tree) if isinstance(s, simple))


def _line(file: str, statement: ast.stmt) -> Line:
    bound: ast.AST | None = None
    match statement:
        case ast.Assign(targets=[target, *_]) | ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            bound = target
        case ast.Return(value=value):
            bound = value
    parts = bound.elts if isinstance(bound, ast.Tuple) else [] if bound is None else [bound]
    names = tuple(p.id if isinstance(p, ast.Name) else None for p in parts)
    reads = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    reads.sort(key=lambda n: (n.lineno, n.col_offset))
    read = dict.fromkeys(n.id for n in reads)
    if isinstance(statement, ast.AugAssign) and names[0]:
        read = {names[0]: None, **read}
    end = statement.end_lineno or statement.lineno
    return Line(file, statement.lineno, end, names, tuple(read), isinstance(statement, ast.Return))
