"""What all parts of the elaborator share: its state, its reports, and what they ask of parts that are made later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from archdsl.diagnostics import ArchError, Diagnostic
from archdsl.diagnostics.source import Span
from archdsl.frontend.block_builder import BlockBuilder, GivenUpError
from archdsl.frontend.modules import SpecModule, words
from archdsl.frontend.scopes import Scope
from archdsl.ir.dims import Num
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import CallNode, Input, Value
from archdsl.ir.op import Primitive
from archdsl.ir.static import BlockValue, Declared, SharedModule
from archdsl.resources import library_files, library_source
from archdsl.syntax import ast
from archdsl.syntax.limits import MAX_PROBLEMS, MAX_STEPS

HOPELESS = frozenset({"E0107", "E0207", "E0404"})
"""What never ends, or is too large: what follows would be so too."""


class Evaluate(Protocol):
    """`Expressions.ev`."""

    def __call__(self, e: Any, scope: Scope, expect: str | None = None) -> Any: ...


class Elaboration:
    """One model being built: what its parts share, and what they ask of those that are made after them."""

    ev: Evaluate
    statements: Callable[[Sequence[ast.Statement], Scope], None]
    """`Statements.run`."""
    body: Callable[[BlockValue, Scope, Mapping[str, Any]], tuple[Value, ...]]
    """`Bodies.run`."""
    primitive: Callable[
        [Scope, Primitive | str, Sequence[Input], Mapping[str, Any], Span, str, str, SharedModule | None],
        tuple[Value, ...],
    ]
    """`Primitives.apply`."""
    apply: Callable[[Any, Sequence[Num], Sequence[Value | None], Scope, Span, Mapping[str, Any]], Any]
    """`Calls.apply`."""
    expert: Callable[[Any, Num, Num, Scope, Sequence[str], Span], CallNode]
    """`Blocks.expert`."""
    find_model_input: Callable[[str, DimValue, Span], Value]
    """`Elaborator.find_model_input`."""
    root: BlockBuilder
    """The frame of the model."""

    def __init__(self, module: SpecModule) -> None:
        self.module = module
        self.problems: list[Diagnostic] = []
        self.reported = 0
        """How often something was reported, what is known already included."""
        self.steps = 0
        """Expressions that were evaluated, and iterations of loops."""
        self.turning: list[tuple[ast.For, Sequence[str]]] = []
        """Loops of which an iteration is being run, and the names of tensors that they bind."""
        self.depth = 0
        self.user_spans: list[Span] = []
        """Where the user's spec applied the blocks that are being elaborated, the innermost last."""
        self.hopeless = False
        """Whether something was found behind which nothing can be checked."""
        self.slot_spans: list[tuple[Declared, Mapping[str, Span]]] = []
        """The library's blocks that bodies of slots stand for, and where each slot was written."""

    @cached_property
    def words(self) -> frozenset[str]:
        """Every name that is said in the files of the spec and in the library."""
        sources = [*(m.source for m in self.module.files()), *map(library_source, library_files())]
        return words("\n".join(s.text for s in sources))

    # --- reporting ----------------------------------------------------------------------------------------------------

    def report(self, problem: ArchError) -> None:
        """Note what is wrong; what goes wrong within the library is shown where the user called it."""
        self.reported += len(problem.diagnostics)
        for d in problem.diagnostics if len(self.problems) < MAX_PROBLEMS else ():
            self.hopeless = self.hopeless or d.code in HOPELESS
            if self.user_spans:
                d = shown_at(d, self.user_spans[-1])
            if not any(d.code == p.code and d.span == p.span and d.message == p.message for p in self.problems):
                self.problems.append(d)

    def count_step(self, span: Span | None, steps: int = 1) -> None:
        """Raises GivenUpError where building the model takes too long."""
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise GivenUpError(f"more than {MAX_STEPS:,} expressions are evaluated", "steps", span)

    def bound_around(self, name: str, span: Span) -> bool:
        """Whether a loop around a place, of which an iteration is being built, binds a tensor of that name."""
        return any(
            name in names
            for s, names in self.turning
            if s.span.source is span.source and s.span.start <= span.start < s.span.end
        )


def shown_at(d: Diagnostic, span: Span) -> Diagnostic:
    """A diagnostic of the library, shown where the user wrote the block."""
    if d.span is None or not d.span.source.library:
        return d
    inner = d.span
    labels = tuple(x for x in d.labels if not x.span.source.library and x.span != span)
    if d.code == "E0205":  # what is missing was to be given there, whoever asks for it
        return replace(d, span=span, labels=labels)
    note = f"in {inner.source.name}"
    if inner.end > 0:
        note += f":{inner.line}: {inner.source.line(inner.line).strip()}"
    return replace(d, span=span, labels=labels, notes=(*d.notes, note))
