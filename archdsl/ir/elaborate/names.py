"""What a name means: the body's, the file's, the library's, the language's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from archdsl.diagnostics import did_you_mean, error
from archdsl.ir import masks
from archdsl.ir.elaborate.base import Elaboration
from archdsl.ir.elaborate.headers import hypers_of
from archdsl.ir.elaborate.primitives import joined_names
from archdsl.ir.elaborate.scope import (
    MISSING,
    POISON,
    BodyState,
    Function,
    MaskRule,
    ReportedError,
    SchemeRule,
    Scope,
    Training,
    applicable,
)
from archdsl.ir.masks import Mask
from archdsl.ir.program import (
    CONSTANTS,
    FUNCTIONS,
    WORDS,
    Module,
    Named,
    every_name,
    find_in_library,
    find_primitive,
)
from archdsl.ir.scalings import SCALINGS
from archdsl.ir.schemes import SCHEMES
from archdsl.ir.site import unknown_option
from archdsl.ir.static import Declared, Instance, Template, Word, kind_of
from archdsl.source import Span
from archdsl.syntax import ast


class Names(Elaboration):
    """Looks names up."""

    def lookup(self, name: str, scope: Scope, span: Span, *, applied: bool = False, expect: str | None = None) -> Any:
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
        help_ = did_you_mean(name, every_name(scope.module) | scope.names())
        raise error("E0206", f"nothing is called `{name}` here", span, help=help_)

    def _global(self, name: str, scope: Scope, span: Span) -> Any:
        """A name outside the body, or MISSING."""
        found = scope.module.find(name)
        if found is not None:
            return self._declared(*found, name, span)
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name == "training":
            return Training()
        if name in FUNCTIONS:
            return Function(name)
        library = find_in_library(name)
        if library is not None:
            return self._declared(*library, name, span)
        if name in masks.TENSOR_RULES:
            # `padding` and `documents` alone read the model's input of that kind.
            return Mask(name) if name in ("padding", "documents") else MaskRule(name)
        if name in masks.RULES:
            return MaskRule(name) if masks.RULES[name] else Mask(name)
        op = find_primitive(name)
        if op is not None:
            return Template(op, {}, "", span)
        if name in SCHEMES or name in SCALINGS:
            return SchemeRule(name)
        if name in WORDS:
            return Word(name)
        return MISSING

    def _declared(self, module: Module, declaration: Named, name: str, span: Span) -> Any:
        if isinstance(declaration, ast.Let):
            return self._constant(module, declaration, name)
        if isinstance(declaration, ast.Variant):
            return self.ev(declaration.value, Scope(module, self.root, BodyState()))
        return Template(Declared(declaration, module), {}, "", span)

    def _constant(self, module: Module, declaration: ast.Let, name: str) -> Any:
        """A `let` of a file, evaluated once."""
        if name not in module.constants:
            module.constants[name] = POISON  # a let that needs itself
            value = self.ev(declaration.value, Scope(module, self.root, BodyState()))
            if isinstance(value, Instance):
                value.label = value.label or declaration.name
            module.constants[name] = value.labelled(declaration.name) if isinstance(value, Template) else value
        if module.constants[name] is POISON:
            raise error("E0212", f"`{name}` is defined by itself", declaration.span)
        return module.constants[name]

    def _field(self, name: str, scope: Scope, span: Span) -> Any:
        """`patches.image`: a hyper-parameter of a block value."""
        head, _, key = name.rpartition(".")
        value = self.lookup(head, scope, span)
        if isinstance(value, Instance):
            here = value.owner is scope.frame
            value = value.template if here else replace(value.template, args=joined_names(value, value.template.args))
        if not isinstance(value, Template):
            raise error("E0206", f"`{head}` is {kind_of(value)}: it has no hyper-parameters to read", span)
        hypers = hypers_of(value)
        if key not in hypers:
            raise unknown_option(key, value.name, hypers, span)
        if key not in value.args and hypers[key].default is None:
            raise error("E0205", f"`{head}` has not been given its `{key}`", span)
        return self.hyper_of(value, key, scope)

    def hyper_of(self, value: Template, key: str, scope: Scope) -> Any:
        if key in value.args:
            return value.args[key]
        hyper = hypers_of(value)[key]
        if hyper.default is None:
            return None
        module = value.target.module if isinstance(value.target, Declared) else scope.module
        inner = Scope(module, scope.frame, BodyState())
        inner.vars.update(value.args)
        return self.ev(hyper.default, inner, hyper.kind)
