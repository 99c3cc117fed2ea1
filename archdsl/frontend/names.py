"""What a name means: the body's, the file's, the library's, the language's."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from archdsl.diagnostics import ArchError, Label, error, nearest
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.headers import hypers_of
from archdsl.frontend.kinds import unknown_option
from archdsl.frontend.modules import (
    CONSTANTS,
    FUNCTIONS,
    WORDS,
    Named,
    SpecModule,
    every_name,
    find_in_library,
    find_primitive,
)
from archdsl.frontend.primitives import joined_names
from archdsl.frontend.schemes import SCALINGS, SCHEMES
from archdsl.frontend.scopes import (
    MISSING,
    POISON,
    BodyState,
    FunctionValue,
    MaskRule,
    ReportedError,
    SchemeRule,
    Scope,
    TrainingCondition,
    applicable,
)
from archdsl.ir import masks
from archdsl.ir.dims import shape_text
from archdsl.ir.graph import Value
from archdsl.ir.masks import Mask
from archdsl.ir.static import BlockValue, Declared, EnumValue, SharedModule, kind_of
from archdsl.resources import zoo_files
from archdsl.syntax import ast
from archdsl.syntax.limits import MAX_BLOCK_DEPTH, raising

# Names of Python, and what stands for them.
ELSEWHERE = {
    "range": "a `for` counts by itself: `for i in 12`",
    "len": "the length of an axis is its name, in the shape of a tensor: `x: [batch, time, width]`",
    "self": "a body sees its own names only, and there is no `self`",
    "nn": "blocks are called without a prefix: `linear(width)`",
    "torch": "functions are called without a prefix: `softmax(x)`",
    "F": "functions are called without a prefix: `softmax(x)`",
    "np": "functions are called without a prefix: `sqrt(width)`",
    "math": "functions are called without a prefix: `sqrt(width)`",
    "int": "a whole number is made by `//`, `floor(…)` or `ceil(…)`",
    "clip": "values are kept between two by `clamp(x, low: -1, high: 1)`",
    "max": "the larger of two is `maximum(a, b)`",
    "min": "the smaller of two is `minimum(a, b)`",
    "print": "`archdsl show SPEC` prints a model with its shapes",
}


BIND_BEFORE = "an iteration of `for` sees what was bound before the loop and changed since: bind `{name}` there"


class Names:
    """Looks names up."""

    def __init__(self, state: Elaboration) -> None:
        self.state = state

    def lookup(self, name: str, scope: Scope, span: Span, *, applied: bool = False, expect: str | None = None) -> Any:
        """The meaning of a name; where it is applied, what cannot be applied is skipped. Raises E0206 for an unknown
        name, ReportedError for one whose statement was wrong."""
        for value in scope.chain(name):
            if value is POISON:
                raise ReportedError
            if not applied or applicable(value):
                return value
        if (expect == "scheme" and name in SCHEMES) or (expect == "scaling" and name in SCALINGS):
            return SchemeRule(name)
        value = self._global(name, scope, span)
        if value is not MISSING:
            return value
        if "." in name:
            return self._field(name, scope, span)
        found = scope.get(name)
        if found is not MISSING:
            raise error("E0206", f"`{name}` is {kind_of(found)}: it cannot be applied", span)
        raise self._unknown(name, scope, span)

    def _unknown(self, name: str, scope: Scope, span: Span) -> ArchError:
        """What is said of a name that means nothing, the surest guess first."""
        head = name.partition(".")[0]
        labels: list[Label] = []
        help_ = ELSEWHERE.get(head, "")
        line = span.source.line(span.line)[: span.column - 1]
        if re.search(r"(^|\s)(//|--|/\*)(\s|$)", line):
            help_ = "a comment starts with `#`"
        if self.state.bound_around(name, span):
            help_ = BIND_BEFORE.format(name=name)
        slot = None if help_ else _slot_beside(name, scope.module, span)
        if slot is not None:
            labels = [Label(slot.key_span, "the name of a slot cannot be read")]
            value = slot.value.span.text
            short = len(value) <= LONGEST and "\n" not in value
            help_ = f"write its value, `{value}`" if short else f"`let` gives the value of `{name}` a name"
        owner = None if help_ else _model_with(name, scope.module)
        if owner is not None:
            model, hyper = owner
            labels = [Label(hyper, f"`{name}` belongs to `{model}`")]
            help_ = f"a block sees nothing of the model: give it a hyper-parameter `{name}`, and hand it on"
        if not help_:
            own = scope.names() | set(scope.module.visible())
            near = nearest(name, every_name(scope.module), own)
            help_ = f"did you mean `{near}`?" if near else ""
        if name.lower() in zoo_files() and not labels:
            zoo = f"`{name}` is a model of the zoo: `archdsl show {name.lower()} --source` prints its blocks"
            help_ = f"{zoo}; {help_}" if help_ else zoo
        return error("E0206", f"unknown name `{name}`", span, labels=labels, help=help_)

    def _global(self, name: str, scope: Scope, span: Span) -> Any:
        """A name outside the body, or MISSING."""
        found = scope.module.find(name)
        if found is not None:
            return self._declared(*found, name, span)
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name == "training":
            return TrainingCondition()
        if name in FUNCTIONS:
            return FunctionValue(name)
        library = find_in_library(name)
        if library is not None:
            return self._declared(*library, name, span)
        if name in masks.TENSOR_RULES:
            return Mask(name) if name in masks.INPUTS else MaskRule(name)
        if name in masks.RULES:
            return MaskRule(name) if masks.RULES[name].numbers else Mask(name)
        op = find_primitive(name)
        if op is not None:
            return BlockValue(op, {}, "", span)
        if name in SCHEMES or name in SCALINGS:
            return SchemeRule(name)
        if name in WORDS:
            return EnumValue(name)
        return MISSING

    def _declared(self, module: SpecModule, declaration: Named, name: str, span: Span) -> Any:
        if isinstance(declaration, ast.Let):
            return self._constant(module, declaration, name)
        if isinstance(declaration, ast.Variant):
            return self.state.ev(declaration.value, Scope(module, self.state.root, BodyState()))
        return BlockValue(Declared(declaration, module), {}, "", span)

    def _constant(self, module: SpecModule, declaration: ast.Let, name: str) -> Any:
        """A `let` of a file, evaluated once."""
        if name not in module.constants:
            module.constants[name] = MISSING  # while it is evaluated: a let that needs itself
            self.state.depth += 1
            try:
                if self.state.depth > MAX_BLOCK_DEPTH:
                    text = f"`{name}` ends a chain of more than {MAX_BLOCK_DEPTH} definitions, each by the next"
                    raise error("E0107", text, declaration.span, help=raising("blocks"))
                value = self.state.ev(declaration.value, Scope(module, self.state.root, BodyState()))
            except (ArchError, ReportedError):
                module.constants[name] = POISON
                raise
            finally:
                self.state.depth -= 1
            if isinstance(value, SharedModule):
                value.label = value.label or declaration.name
            module.constants[name] = value.labelled(declaration.name) if isinstance(value, BlockValue) else value
        if module.constants[name] is POISON:
            raise ReportedError
        if module.constants[name] is MISSING:
            unfinished = [n for n, v in module.constants.items() if v is MISSING]
            chain = " by ".join(f"`{n}`" for n in [*unfinished[unfinished.index(name) :], name])
            text = f"`{name}` is defined by itself"
            raise error("E0212", text, declaration.span, help=f"{chain}: give one of them a value of its own")
        return module.constants[name]

    def _field(self, name: str, scope: Scope, span: Span) -> Any:
        """`patches.image`: a hyper-parameter of a block value."""
        head, _, key = name.rpartition(".")
        if any(prefix == head for prefix, _ in scope.module.imports):
            raise self._unknown(name, scope, span)
        value = self.lookup(head, scope, span)
        if isinstance(value, SharedModule):
            here = value.owner is scope.frame
            args = value.template.args
            value = replace(value.template, args=args if here else joined_names(value, args, self.state.words))
        if not isinstance(value, BlockValue):
            text = f"`{head}` is {kind_of(value)}: it has no hyper-parameters to read"
            raise error("E0206", text, span, help=_instead(head, value, key) if isinstance(value, Value) else "")
        hypers = hypers_of(value)
        if key not in hypers:
            raise unknown_option(key, value.name, hypers, span)
        if key not in value.args and hypers[key].default is None:
            raise error("E0205", f"`{head}` has not been given its `{key}`", span)
        return self.hyper_of(value, key, scope)

    def hyper_of(self, value: BlockValue, key: str, scope: Scope) -> Any:
        """A hyper-parameter of a block value, given or by default."""
        if key in value.args:
            return value.args[key]
        hyper = hypers_of(value)[key]
        if hyper.default is None:
            return None
        module = value.target.module if isinstance(value.target, Declared) else scope.module
        inner = Scope(module, scope.frame, BodyState())
        inner.vars.update(value.args)
        return self.state.ev(hyper.default, inner, hyper.kind)


def _model_with(name: str, module: SpecModule) -> tuple[str, Span] | None:
    """A model of the file that has a hyper-parameter or a number of this name, and where it says so."""
    for declaration in module.names.values():
        if not isinstance(declaration, ast.ModelDecl):
            continue
        for hyper in declaration.header.hypers or ():
            if hyper.name == name:
                return declaration.name, hyper.span
        for slot in declaration.body.slots:
            if slot.key == name and name in ("vocab", "context"):
                return declaration.name, slot.key_span
    return None


LONGEST = 40
"""Characters of a value that a help repeats."""


def _slot_beside(name: str, module: SpecModule, span: Span) -> ast.Slot | None:
    """The slot of this name in the model that a place stands in."""
    for declaration in module.names.values():
        if not isinstance(declaration, ast.ModelDecl):
            continue
        around = declaration.span
        if around.source is span.source and around.start <= span.start < around.end:
            return next((slot for slot in declaration.body.slots if slot.key == name), None)
    return None


def _instead(head: str, x: Value, key: str) -> str:
    """What is written for `x.key`, an attribute or a method of a tensor in Python."""
    if key in ("T", "mT"):
        return f"two axes are swapped by `{head} -> transpose(-1, -2)`"
    if key in ("shape", "size", "ndim"):
        return f"its sizes are the names in its shape, {shape_text(x.shape)}"
    return f"blocks are applied by an arrow: `{head} -> {key}(…)`"
