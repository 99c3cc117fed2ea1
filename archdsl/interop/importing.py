"""A spec from a config: the family's own file with the config's numbers, as a person would have written it."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import ArchError, error, shortened
from archdsl.diagnostics.source import Source
from archdsl.frontend.load import module_of
from archdsl.ir.dims import Num
from archdsl.syntax import ast
from archdsl.syntax.format import format_file
from archdsl.syntax.parse import parse, read_source

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

Values = Mapping[str, "str | int | float | bool | Layers | None"]

CONSTANTS = {"true": True, "false": False, "none": None}

MOST_LAYERS = 10_000
"""So many layers are told apart; no published model has as many."""


@dataclass(frozen=True)
class Layers:
    """The layers of a family that a config has, in order. Of several names for one kind of layer the first stands here;
    `like` maps each of them to it."""

    names: tuple[str, ...]
    like: Mapping[str, str]

    def both(self, other: Layers, field: str) -> Layers:
        """The layers that are also what another `field` says. Raises ArchError E0533 where the family has none."""
        kinds = {name: (self.like[name], other.like[name]) for name in self.like if name in other.like}
        first = {kind: name for name, kind in reversed(kinds.items())}
        both = [*zip(self.names, other.names, strict=True)]
        for i, (one, another) in enumerate(both):
            if (one, another) not in first:
                text = f"by `{field}` of config.json layer {i} is as `{another}`, by the fields before it as `{one}`"
                raise error("E0533", text, notes=[f"the family has {', '.join(kinds)}, none of which is both"])
        return Layers(tuple(first[kind] for kind in both), {name: first[kind] for name, kind in kinds.items()})

    def text(self, count: str, calls: Mapping[str, str]) -> str:
        """A sum of the family's layers that repeats: `layers // 6 * (5 * near + far) + layers % 6 * near`, with what
        the family has written of a layer beside its name: `near(heads: heads)`."""
        names, n = [calls.get(name, name) for name in self.names], len(self.names)
        period, rest = next(
            (p, rest)
            for p in range(1, n + 1)
            for rest in [names[n - n % p :]]
            if len({*rest}) <= 1 and names == [names[i % p] for i in range(n)]
        )
        runs = [(len([*run]), name) for name, run in groupby(names[:period])]
        text = " + ".join(name if k == 1 else f"{k} * {name}" for k, name in runs)
        if period == 1:
            return f"{count} * {text}"
        over = f" + {count} % {period} * {rest[0]}" if rest else ""
        return f"{count} {'//' if rest else '/'} {period} * ({text}){over}"


def written(
    source: Source, model: str, values: Values, name: str, comment: str, fields: Mapping[str, str] | None = None
) -> str:
    """The spec of one model of a family: its hyper-parameters, slots and `let`s have these values, conditions that they
    decide are gone, and so is what nothing reads then. `values` maps names to JSON values, and `fields` to the fields
    of the config that say them. Raises ArchError E0533 for a value that the family cannot have."""
    tree = parse(source)
    declared = next((d for d in tree.declarations if isinstance(d, ast.ModelDecl) and d.name == model), None)
    if declared is None:
        raise error("E0531", f"{source.name} declares no model `{model}`")
    edits: list[tuple[int, int, str]] = []
    used = set()

    def put(expr: ast.Expr, text: str) -> None:
        edits.append((expr.span.start, expr.span.end, text))

    known: dict[str, Any] = {}
    nodes = [*ast.walk(tree)]
    for d in tree.declarations:
        if isinstance(d, ast.Let):
            if d.name in values:
                used.add(d.name)
                _demand_kind(d.name, values[d.name], d.value, nodes, fields or {})
                known[d.name] = values[d.name]
                put(d.value, literal(values[d.name]))
            elif is_constant(d.value):
                known[d.name] = constant(d.value)
    lets = [d for d in tree.declarations if isinstance(d, ast.Let)]
    folded = {d.name: _folded(d.value, known) for d in lets}
    # What stood in columns with lines that go stands so no more.
    edits += [(d.span.start, d.value.span.start, f"let {d.name} = ") for d in lets]
    values = {n: whole(v) for n, v in values.items()}
    defaults = {h.name: h.default for h in declared.header.hypers or ()}
    for size in (*defaults, *(s.key for s in declared.body.slots)):
        value, default = values.get(size), defaults.get(size)
        own = constant(default) if default is not None and is_constant(default) else None
        if size in known or size not in values or isinstance(value, Layers):
            continue
        if isinstance(own, bool | str):
            fits, what = type(value) is type(own), f"{KINDS[type(own)]}: {literal(own)}"
        elif isinstance(own, float):
            fits, what = _is_number(value), f"a number: {literal(own)}"
        else:
            fits, what = type(value) is int and value > 0, "a whole number above 0"
        if not fits:
            raise _unlike(size, value, what, fields or {})
    sizes: dict[str, Any] = {}
    for hyper in declared.header.hypers or ():
        own = worth(hyper.default, sizes)
        sizes[hyper.name] = values.get(hyper.name, own)
        if hyper.name in values:
            used.add(hyper.name)
            if hyper.default is None:
                edits.append((hyper.span.end, hyper.span.end, f" = {literal(values[hyper.name])}"))
            elif own != values[hyper.name]:
                put(hyper.default, literal(values[hyper.name]))
    for slot in declared.body.slots:
        value = values.get(slot.key)
        if isinstance(value, Layers):
            used.add(slot.key)
            own = [value.like.get(n) for n in layers_of(slot.value, sizes) or ()]
            if own != [*value.names]:
                _demand_layers(slot, value, sizes)
                whole_calls = [n for n in ast.walk(slot.value) if isinstance(n, ast.Call)]
                calls = {n.function.id: n.span.text for n in whole_calls if isinstance(n.function, ast.Name)}
                put(slot.value, value.text(_count_of(slot, sizes), calls))
        elif slot.key in values and slot.key not in used and is_constant(slot.value):
            used.add(slot.key)
            put(slot.value, literal(value))
    if left := [n for n in values if n not in used]:
        raise error("E0531", f"`{model}` has no hyper-parameter, number or `let` that is called `{left[0]}`")
    for d in tree.declarations:
        if isinstance(d, ast.Let) and folded[d.name] is not d.value:
            put(d.value, _text(folded[d.name], known))
    edits.append((declared.name_span.start, declared.name_span.end, name))
    needed = _needed(tree, declared, folded, known)
    for d in tree.declarations:
        if d is not declared and (not isinstance(d, ast.Import) and d.name not in needed):
            edits = [e for e in edits if not d.span.start <= e[0] < d.span.end]
            end = d.span.end + source.text.startswith("\n", d.span.end)
            edits.append((d.span.start - len(_above(source.text, d.span.start)), end, ""))
    edits.append((0, len(_head(source.text)), f"{comment}\n"))
    text = source.text
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    made = Source(f"{name}.arch", _without_unread(text, name))
    return format_file(parse(made), made)


def counts_of(family: Path, model: str) -> dict[str, str]:
    """By the slot of a family's model, the hyper-parameter that says how many layers it has. Raises ArchError where the
    file cannot be read."""
    tree = parse(read_source(family, family.name))
    declared = next((d for d in tree.declarations if isinstance(d, ast.ModelDecl) and d.name == model), None)
    if declared is None:
        return {}
    hypers = {h.name for h in declared.header.hypers or ()}
    return {s.key: _count_of(s, hypers) for s in declared.body.slots}


def _count_of(slot: ast.Slot, sizes: Container[str]) -> str:
    """Return the hyper-parameter that counts the layers of a slot: `layers` if it reads that, else the first."""
    names = [n.id for n in ast.walk(slot.value) if isinstance(n, ast.Name) and n.id in sizes]
    return "layers" if "layers" in names else next(iter(names), "layers")


def _demand_layers(slot: ast.Slot, layers: Layers, sizes: Mapping[str, Any]) -> None:
    """Raise ArchError E0533 where a family cannot write its slot of layers anew."""
    names = [n.id for n in ast.walk(slot.value) if isinstance(n, ast.Name) and n.id not in sizes]
    if any(layers.like.get(n) != n for n in names):
        raise error("E0533", f"the order of the kinds of layers is not {slot.value.span.text}, as the family has it")


def _without_unread(text: str, model: str) -> str:
    """A spec without the `let`s of a model that nothing in it reads now."""
    tree = parse(Source(f"{model}.arch", text))
    body = next(d.body for d in tree.declarations if isinstance(d, ast.ModelDecl) and d.name == model)
    for item in reversed(body.items):
        read = {n.id for other in body.items if other is not item for n in ast.walk(other) if isinstance(n, ast.Name)}
        if isinstance(item, ast.Let) and item.name not in read:
            end = item.span.end + text.startswith("\n", item.span.end)
            return _without_unread(text[: item.span.start] + text[end:], model)
    return text


def layers_of(expr: ast.Expr, sizes: Mapping[str, Any]) -> list[str] | None:
    """The names of the layers of a sum as `layers / 2 * (near + far)`, in order; None where it is something else."""
    match expr:
        case ast.Name(name):
            return [name]
        case ast.Call(ast.Name(name)):
            return [name]
        case ast.Binary("+", a, b):
            left, right = layers_of(a, sizes), layers_of(b, sizes)
            return None if left is None or right is None or len(left + right) > MOST_LAYERS else left + right
        case ast.Binary("*", a, b):
            count, inner = worth(a, sizes), layers_of(b, sizes)
            fits = isinstance(count, int | float) and 0 <= count <= MOST_LAYERS
            if fits and inner is not None and len(inner) * count <= MOST_LAYERS:
                return inner * int(count)
    return None


def _demand_kind(
    name: str, value: Any, default: ast.Expr, nodes: Sequence[ast.Node], fields: Mapping[str, str]
) -> None:
    """Raise ArchError E0533 for a value of a `let` that is of another kind than its own or, where conditions alone read
    it, that none of them knows; `nodes` are all of the file's."""
    own = constant(default) if is_constant(default) else None
    if isinstance(own, bool | str):
        fits = type(value) is type(own)
    else:
        items = value if isinstance(value, list) and own is None else [value]
        fits = value is None or all(_is_number(n) for n in items)
    if not fits:
        raise _unlike(name, value, f"{KINDS.get(type(own), 'a number')}: {literal(own)}", fields)
    comparisons = [n for n in nodes if isinstance(n, ast.Binary) and is_constant(n.right)]
    known = [constant(n.right) for n in comparisons if isinstance(n.left, ast.Name) and n.left.id == name]
    reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name]
    if (isinstance(own, str) or (known and len(reads) == len(known))) and value not in (own, *known):
        listed = ", ".join(sorted({literal(k) for k in (own, *known)}))
        raise _unlike(name, value, f"one of {listed}", fields)


KINDS = {bool: "true or false", str: "a word"}
"""What a message calls the value of a `let`, by the type of its constant; else it is a number."""


def _unlike(name: str, value: Any, what: str, fields: Mapping[str, str]) -> ArchError:
    """Return the error of a value that is not `what` the family has under a name."""
    said = f"`{fields[name]}` of config.json" if name in fields else f"`{name}`"
    return error("E0533", f"{said} is {shortened(json.dumps(value), 60)}, and `{name}` of the family is {what}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whole(value: Any) -> Any:
    """Return a number as an int where it is whole, and anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def literal(value: Any) -> str:
    """A JSON value as a spec writes it: `10_000`, `1e-5`, `true`, `none`, `"llama3"`."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    if isinstance(value, int):
        return f"{value:_}" if abs(value) > 9_999 else str(value)
    if isinstance(value, float):
        text = repr(value)
        mantissa, e, exponent = text.partition("e")
        return f"{mantissa}e{int(exponent)}" if e else text
    return json.dumps(value)


def is_constant(expr: ast.Expr) -> bool:
    if isinstance(expr, ast.List):
        return all(isinstance(item, ast.Number) for item in expr.items)
    return isinstance(expr, ast.Number | ast.String) or (isinstance(expr, ast.Name) and expr.id in CONSTANTS)


def constant(expr: ast.Expr) -> Any:
    """The value of a constant."""
    match expr:
        case ast.Number(text):
            number = text.replace("_", "")
            return int(number) if number.isdigit() else float(number)
        case ast.String(value):
            return value
        case ast.Name(word):
            return CONSTANTS[word]
    assert isinstance(expr, ast.List), expr  # as `is_constant` says
    return [constant(item) for item in expr.items]


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


def numbers_of(model: Model, family: Path | None = None) -> dict[str, Any]:
    """What the names of a spec are worth: those of its `let`s, of the model's hyper-parameters, and of its slots. With
    the file of the `family` that it was written after, also those that its conditions had read."""
    tree = module_of(model.origin.spec).tree
    lets = {d.name: d.value for d in tree.declarations if isinstance(d, ast.Let)}
    found = {name: constant(value) for name, value in lets.items() if is_constant(value)}
    if family is not None and family.is_file():
        declared = parse(read_source(family, family.name)).declarations
        theirs = {d.name: d.value for d in declared if isinstance(d, ast.Let)}
        defaults = {name: constant(value) for name, value in theirs.items() if is_constant(value)}
        for name in theirs.keys() & lets.keys():
            if isinstance(theirs[name], ast.IfElse):
                found |= _unfolded(theirs[name], lets[name], defaults) or {}
    slots: list[ast.Slot] = []
    for d in tree.declarations:
        if isinstance(d, ast.ModelDecl):
            found |= {s.key: constant(s.value) for s in d.body.slots if is_constant(s.value)}
            slots += d.body.slots
    for name, value in model.block.hypers.items():
        if isinstance(value, Num) and value.static:
            found[name] = int(value) if isinstance(value.value, int) else float(value)
        elif isinstance(value, bool | str):
            found[name] = value
    found |= {f.name: int(f.value) for f in model.config if isinstance(f.value.value, int)}
    return found | {s.key: names for s in slots if s.key not in found and (names := layers_of(s.value, found))}


def _unfolded(template: Any, expr: Any, defaults: Mapping[str, Any]) -> dict[str, Any] | None:
    """The names under which a condition of a family becomes this expression; None where it cannot."""
    if isinstance(template, ast.IfElse) and not isinstance(expr, ast.IfElse):
        met, name, then, otherwise = _unfolded(template.then, expr, defaults), "", None, None
        match template.condition:
            case ast.Binary("==", ast.Name(name), other) if is_constant(other):
                then = constant(other)
                otherwise = defaults.get(name, then)  # any other value: that of the family, if it is another
            case ast.Name(name):
                then, otherwise = True, False
        if met is not None:
            return {name: then, **met}
        met = _unfolded(template.otherwise, expr, defaults)
        return None if met is None else met if then == otherwise else {name: otherwise, **met}
    if isinstance(template, ast.Name) and template.id in defaults and is_constant(expr):
        return {template.id: constant(expr)}
    if type(template) is not type(expr):
        return None
    found: dict[str, Any] = {}
    if isinstance(template, tuple):
        if len(template) != len(expr):
            return None
        pairs = list(zip(template, expr, strict=True))
    elif isinstance(template, ast.Node):
        names = (f.name for f in fields(template) if f.compare)
        pairs = [(getattr(template, name), getattr(expr, name)) for name in names]
    else:
        return {} if template == expr else None
    for a, b in pairs:
        inner = _unfolded(a, b, defaults)
        if inner is None:
            return None
        found |= inner
    return found


def worth(expr: ast.Expr | None, known: Mapping[str, Any]) -> Any:
    """What an expression of numbers and names comes to; None where that is not known."""
    if expr is None:
        return None
    if is_constant(expr):
        return constant(expr)
    if isinstance(expr, ast.Name):
        return known.get(expr.id)
    if isinstance(expr, ast.Unary) and expr.op == "-":
        operand = _number(expr.operand, known)
        return None if operand is None else -operand
    if isinstance(expr, ast.Call) and expr.span.text.startswith("log(") and len(expr.args) == 1:
        inner = _number(expr.args[0].value, known)
        return math.log(inner) if inner is not None and inner > 0 else None
    if isinstance(expr, ast.Binary) and expr.op in OPERATORS:
        left, right = _number(expr.left, known), _number(expr.right, known)
        if left is None or right is None or (not right and expr.op in ("/", "//", "%")):
            return None
        try:
            return OPERATORS[expr.op](left, right)
        except OverflowError:
            return None
    if isinstance(expr, ast.Binary) and expr.op in ("==", "!="):
        values = worth(expr.left, known), worth(expr.right, known)
        return None if None in values else (values[0] == values[1]) is (expr.op == "==")
    if isinstance(expr, ast.IfElse):
        taken = worth(expr.condition, known)
        return None if taken is None else worth(expr.then if taken else expr.otherwise, known)
    return None


def _number(expr: ast.Expr, known: Mapping[str, Any]) -> Any:
    """What an operand comes to; None for what is no number."""
    value = worth(expr, known)
    return value if isinstance(value, int | float) else None


def _folded(expr: ast.Expr, known: Mapping[str, Any]) -> ast.Expr:
    """The branch of a condition that these constants decide."""
    while isinstance(expr, ast.IfElse):
        match expr.condition:
            case ast.Binary("==" | "!=" as op, ast.Name(name), other) if name in known and is_constant(other):
                expr = expr.then if (known[name] == constant(other)) is (op == "==") else expr.otherwise
            case ast.Name(name) if isinstance(known.get(name), bool):
                expr = expr.then if known[name] else expr.otherwise
            case _:
                return expr
    return expr


def _text(expr: ast.Expr, known: Mapping[str, Any]) -> str:
    """The source of an expression, with constants for their names."""
    text, start = expr.span.text, expr.span.start
    names = [n for n in ast.walk(expr) if isinstance(n, ast.Name) and n.id in known]
    for n in sorted(names, key=lambda n: -n.span.start):
        text = text[: n.span.start - start] + literal(known[n.id]) + text[n.span.end - start :]
    return text


def _needed(tree: ast.File, model: ast.ModelDecl, folded: Mapping[str, ast.Expr], known: Mapping[str, Any]) -> set[str]:
    """Names of declarations that the model reads, directly or not."""
    declared = {d.name: d for d in tree.declarations if not isinstance(d, ast.Import)}
    found: set[str] = set()
    waiting: list[Any] = [model]
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.Name) and node.id in declared and node.id not in found:
                found.add(node.id)
                d = declared[node.id]
                if not isinstance(d, ast.Let):
                    waiting.append(d)
                elif folded[d.name] is d.value:  # else the constants in it are written out
                    waiting.append(d.value)
                else:
                    inner = [n for n in ast.walk(folded[d.name]) if not (isinstance(n, ast.Name) and n.id in known)]
                    waiting += [n for n in inner if isinstance(n, ast.Name)]
    return found


def _head(text: str) -> str:
    """The comment at the top of a file."""
    end = 0
    while text.startswith("#", end):
        end = text.find("\n", end) + 1 or len(text)
    return text[:end]


def _above(text: str, start: int) -> str:
    """The comment lines right above a declaration, which are about it."""
    begin = start
    while begin:
        line = text.rfind("\n", 0, begin - 1) + 1
        if not text.startswith("#", line):
            break
        begin = line
    return text[begin:start]
