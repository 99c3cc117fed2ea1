"""Names of a body, and what a name can stand for besides the static values and tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from archdsl.diagnostics.source import Span
from archdsl.frontend.block_builder import BlockBuilder
from archdsl.frontend.headers import tensor_params
from archdsl.frontend.modules import SpecModule
from archdsl.frozen import Entity, Frozen
from archdsl.ir.dims import Shape
from archdsl.ir.graph import Value
from archdsl.ir.static import KINDS, BlockValue, Declared, SharedModule

Given = tuple[Any, Span]
"""A value that is given, and where."""
Argument = tuple[str | None, Any, Span]
"""An argument of a call: its name, if it has one, its value, and where it is written."""


class Absent:
    """An optional tensor that was left out."""


ABSENT = Absent()


class Poison:
    """The value of a name whose statement was wrong: what depends on it says nothing more."""


POISON = Poison()


class ReportedError(Exception):
    """Raised where a poisoned name is read: the error has been reported."""


class MaskRule(Entity):
    """`window`, `keys` …: a mask that still needs its argument."""

    name: str


class FunctionValue(Frozen):
    """`shared`, `accepts`, `offer`."""

    name: str


class SchemeRule(Entity):
    """A scheme that still takes numbers."""

    name: str


class TrainingCondition(Frozen):
    """The condition `training`."""


KINDS.update(
    {
        Absent: "a tensor that was left out",
        MaskRule: "the mask `{0.name}` without its argument",
        FunctionValue: "the function `{0.name}`",
        SchemeRule: "the scheme `{0.name}`",
        TrainingCondition: "the condition `training`",
    }
)


@dataclass(eq=False)
class BodyState:
    """What a body being run has come to: its results, and what its loops emit."""

    result: tuple[Any, ...] | None = None
    emits: list[list[Value]] = field(default_factory=list)
    inline: bool = False
    weight_shape: Shape | None = None
    """Where the body is the first value of a weight: the weight's shape."""


MISSING = object()


class Scope:
    """Names of one body. A loop's iteration and a comprehension have a scope inside it."""

    __slots__ = ("body", "frame", "in_loop", "lets", "module", "parent", "vars")

    def __init__(self, module: SpecModule, frame: BlockBuilder, body: BodyState, parent: Scope | None = None) -> None:
        self.module = module
        self.frame = frame
        self.body = body
        self.parent = parent
        self.vars: dict[str, Any] = {}
        self.lets: dict[str, Span] = {}
        """Where each `let` is bound."""
        self.in_loop = False

    def inner(self) -> Scope:
        return Scope(self.module, self.frame, self.body, self)

    def get(self, name: str) -> Any:
        """The innermost meaning of a name in the body, or MISSING."""
        return next(self.chain(name), MISSING)

    def chain(self, name: str) -> Iterator[Any]:
        """Every meaning of a name in the body, the innermost first."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.vars:
                yield scope.vars[name]
            scope = scope.parent

    def names(self) -> set[str]:
        found: set[str] = set(self.vars)
        if self.parent is not None:
            found |= self.parent.names()
        return found


class BlockCall(Entity):
    """One application of a block to tensors: those in order, and those by name."""

    template: BlockValue
    tensors: Sequence[Given]
    named: Mapping[str, Given]
    scope: Scope
    """The names where it is applied."""
    span: Span
    as_name: str = ""
    instance: SharedModule | None = None
    """The shared module that is applied."""

    @property
    def declared(self) -> Declared:
        """The declaration of the block, which is no primitive."""
        assert isinstance(self.template.target, Declared)
        return self.template.target

    def input(self, name: str) -> Value | None:
        """Return what is given for a tensor of the block."""
        if name in self.named:
            value = self.named[name][0]
        else:
            free = [p.name for p in tensor_params(self.template.target) if p.name not in self.named]
            at = free.index(name) if name in free else len(free)
            value = self.tensors[at][0] if at < len(self.tensors) else None
        return value if isinstance(value, Value) else None


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, one that was left out, or a list of tensors."""
    return isinstance(value, Value | Absent) or (isinstance(value, list) and all(isinstance(v, Value) for v in value))


def applicable(value: Any) -> bool:
    return isinstance(value, BlockValue | SharedModule | MaskRule | FunctionValue | SchemeRule)
