"""What the statements of a lifted block compute: calls one after the other, sums and loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from archdsl.interop.lift.holes import call, name
from archdsl.ir.op import Primitive
from archdsl.ops import registry
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE


@dataclass(frozen=True)
class Input:
    name: str


@dataclass(frozen=True)
class Constant:
    """An expression of no tensor."""

    expr: ast.Expr


@dataclass(frozen=True)
class Stage:
    base: Term
    call: ast.Expr


@dataclass(frozen=True)
class Sum:
    """Two terms and the operator between them."""

    op: str
    left: Term
    right: Term


@dataclass(frozen=True)
class Loop:
    base: Term
    index: str
    turns: ast.Expr
    calls: tuple[ast.Expr, ...]


Term = Input | Constant | Stage | Sum | Loop


class UnreadError(Exception):
    """Statements of another form."""


def result_of(decl: ast.BlockDecl | ast.ModelDecl) -> tuple[Term, dict[str, ast.Expr]]:
    """The one result of a body, and what its `let`s are. Raises UnreadError."""
    if not isinstance(decl.body, ast.Body) or len(decl.header.tensors or ()) != 1:
        raise UnreadError
    tensor = (decl.header.tensors or ())[0].name
    lets: dict[str, ast.Expr] = {}
    env: dict[str, Term] = {tensor: Input(tensor)}
    *items, last = decl.body.items
    for item in items:
        match item:
            case ast.Assign(names=(target,), value=value) if not isinstance(value, ast.For | ast.Scan):
                env[target] = _term(value, env)
            case ast.Update():
                env[item.name] = Sum("+", env[item.name], _term(item.value, env))
            case ast.Let():
                lets[item.name] = item.value
            case ast.For():
                _loop(item, env)
            case ast.Assert():
                pass
            case _:
                raise UnreadError
    if not isinstance(last, ast.Return) or len(last.values) != 1:
        raise UnreadError
    return _term(last.values[0], env), lets


def _loop(loop: ast.For, env: dict[str, Term]) -> None:
    """A loop that hands one tensor on through calls."""
    steps = [s for s in loop.body if isinstance(s, ast.Assign)]
    targets = {s.names[0] for s in steps}
    if len(targets) != 1 or len(steps) != len(loop.body):
        raise UnreadError
    (carried,) = targets
    start = env[carried]
    term: Term = Input("")
    for s in steps:
        term = _term(s.value, {carried: term})
    calls = stages_between(term, Input(""))
    if not calls:
        raise UnreadError
    env[carried] = Loop(start, loop.name, loop.iterable, tuple(calls))


def _term(expr: Any, env: Mapping[str, Term]) -> Term:
    if not any(isinstance(n, ast.Name) and n.id in env for n in ast.walk(expr)):
        return Constant(expr)
    match expr:
        case ast.Name():
            return env[expr.id]
        case ast.As():
            return _term(expr.value, env)
        case ast.Pipeline():
            term = _term(expr.head, env)
            for stage in expr.stages:
                term = Stage(term, stage.value if isinstance(stage, ast.As) else stage)
            return term
        case ast.Binary():
            return Sum(expr.op, _term(expr.left, env), _term(expr.right, env))
        case ast.Call(function=function, args=(ast.Arg(name=None, value=value),)):
            return Stage(_term(value, env), function)
    raise UnreadError


def stages_between(term: Term, base: Term) -> list[ast.Expr]:
    """The calls that lead from one term to another; none where they do not."""
    found: list[ast.Expr] = []
    while isinstance(term, Stage):
        found.insert(0, term.call)
        term = term.base
        if term == base:
            return found
    return []


def without_dropout(term: Term) -> tuple[Term, list[ast.Expr]]:
    """A term without the dropout at its end, and that."""
    tail: list[ast.Expr] = []
    while isinstance(term, Stage) and is_noisy(term.call):
        tail.insert(0, term.call)
        term = term.base
    return term, tail


def without_factor(term: Term) -> tuple[Term, ast.Expr | None]:
    """A term without the number that it is multiplied by, and that."""
    if isinstance(term, Sum) and term.op == "*":
        for one, other in ((term.left, term.right), (term.right, term.left)):
            if isinstance(other, Constant):
                return one, other.expr
    return term, None


# --- calls ------------------------------------------------------------------------------------------------------------


def primitive_of(expr: ast.Expr) -> Primitive | None:
    function = expr.function if isinstance(expr, ast.Call) else expr
    return registry.find(function.id) if isinstance(function, ast.Name) else None


def parts_of(expr: ast.Expr) -> tuple[str, dict[str, ast.Expr]]:
    """The function of a call and its arguments by name."""
    if isinstance(expr, ast.Name):
        return expr.id, {}
    if not isinstance(expr, ast.Call) or not isinstance(expr.function, ast.Name):
        return "", {}
    primitive = registry.find(expr.function.id)
    names = [h.name for h in primitive.header.hypers or ()] if primitive is not None else []
    in_order = zip(names, (a.value for a in expr.args if a.name is None), strict=False)
    return expr.function.id, dict(in_order) | {a.name: a.value for a in expr.args if a.name is not None}


def call_of(function: str, args: Mapping[str, Any]) -> ast.Expr:
    given = [ast.Arg(n, v, span=NOWHERE) for n, v in args.items() if v is not None]
    return call(function, *given) if given else name(function)


def is_linear(expr: ast.Expr) -> bool:
    return (p := primitive_of(expr)) is not None and p.family == "linear"


def is_noisy(expr: ast.Expr) -> bool:
    return (p := primitive_of(expr)) is not None and p.noisy


def is_norm(expr: ast.Expr) -> bool:
    return (p := primitive_of(expr)) is not None and p.statistics > 0


def unless(value: ast.Expr | None, default: str) -> ast.Expr | None:
    return None if value is None or value == name(default) else value


def calls_in(tree: Any) -> Iterator[ast.Expr]:
    """The calls of functions in some syntax, stages without arguments included, in their order."""
    for part in ast.parts(tree):
        yield from calls_in(part)
    if isinstance(tree, ast.Call):
        yield tree
    elif isinstance(tree, ast.Pipeline):
        yield from (s for t in tree.stages if isinstance(s := t.value if isinstance(t, ast.As) else t, ast.Name))


def renamed(tree: Any, names: Mapping[str, Any]) -> Any:
    """An expression with others in the place of names."""
    if isinstance(tree, ast.Name):
        return names.get(tree.id, tree)
    if isinstance(tree, ast.Call) and isinstance(tree.function, ast.Name):
        return replace(tree, args=renamed(tree.args, names))
    return ast.mapped(tree, lambda part: renamed(part, names))
