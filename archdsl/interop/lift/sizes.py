"""Numbers get names.

1. What differs between the instances of a block becomes a hyper-parameter of it, or a size that its tensors bind.
2. What differs between the configurations becomes a formula of their fields, which callers hand down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from typing import Any

from archdsl.interop.lift.expressions import Block
from archdsl.interop.lift.holes import (
    Hole,
    Invoke,
    Turns,
    binary,
    call,
    chosen,
    filled,
    name,
    number,
    same,
    sites,
    written,
)
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE
from archdsl.syntax.format import format_expr

Table = Mapping[str, Sequence[float]]
"""The fields of a configuration, with what they are in each."""


@dataclass
class Sized:
    """A block whose holes are filled."""

    block: Block
    tree: ast.BlockDecl
    hypers: dict[str, list[Any]] = field(default_factory=dict)
    """What differs between the instances, by name: the value in each."""
    needs: list[str] = field(default_factory=list)
    """Fields of the configuration that it must be handed."""


class Sizes:
    """Fills the holes of all blocks, callees first. `configs` are those that are compared; the first is written."""

    def __init__(self, table: Table, configs: Sequence[int]) -> None:
        self.table = {n: [v[c] for c in configs] for n, v in table.items()}
        self.configs = list(configs)
        self.done: dict[str, Sized] = {}
        self.notes: list[str] = []

    def fill(self, block: Block) -> Sized:
        """Fill the holes of a block, of which all callees are filled."""
        return _Filling(self, block).sized()

    def fill_root(self, block: Block) -> Sized:
        """Fill the holes of the model: its hyper-parameters are the fields that it needs."""
        return _Filling(self, block).sized(root=True)


class _Filling:
    def __init__(self, sizes: Sizes, block: Block) -> None:
        self.sizes, self.block = sizes, block
        self.instances = [(c, found) for c, found in block.instances if c in sizes.configs]
        self.where = [i for i, (c, _) in enumerate(block.instances) if c in sizes.configs]
        self.columns = {n: [v[sizes.configs.index(c)] for c, _ in self.instances] for n, v in sizes.table.items()}
        """By name, the values in each instance: fields of the configuration, sizes that the tensors bind."""
        self.bound: set[str] = set()
        self.hypers: dict[str, list[Any]] = {}
        self.needs: set[str] = set()

    def sized(self, root: bool = False) -> Sized:
        """The block; of the root no axis binds a name."""
        tree = self.block.tree
        dims = 0 if root else len(sites(tree.header.tensors))
        columns: list[list[Any]] = [[found[k] for _, found in self.instances] for k in range(len(self.instances[0][1]))]
        first: list[Any] = [None] * len(columns)
        for k in range(dims):  # the bare names first: others may be formulas of them
            first[k] = self._bare([s.value for s in columns[k]])
        for k in range(dims):
            if first[k] is None:
                first[k] = self._dim([s.value for s in columns[k]])
        rest = iter([*first, *(None for _ in columns[dims:])])
        at = iter(range(len(columns)))

        def fill(site: Hole | Invoke) -> Any:
            k, ready = next(at), next(rest)
            if ready is not None:
                return ready
            if isinstance(site, Invoke):
                return self._call(site, columns[k])
            return self.resolved([s.value for s in columns[k]], site.hint)

        body = filled(tree, fill)
        assert next(at, None) is None
        order = [n for n in self.sizes.table if n in self.needs and n not in self.bound]
        whole = {n: [None] * len(self.block.instances) for n in self.hypers}
        for n, values in self.hypers.items():
            for i, v in zip(self.where, values, strict=True):
                whole[n][i] = v
        listed = tuple(ast.Hyper(n, None, None, span=NOWHERE) for n in (*self.hypers, *order))
        header = replace(body.header, hypers=listed or None)
        found = Sized(self.block, replace(body, header=header, name=self.block.name), whole, order)
        self.sizes.done[self.block.name] = found
        return found

    # --- sizes that tensors bind ----------------------------------------------------------------------------------

    def _bare(self, column: list[Any]) -> Any:
        """A field of the configuration that is the size of an axis, which binds it."""
        if all(v == column[0] for v in column):
            return None
        title = next((n for n in (*self.bound, *self.sizes.table) if self.columns[n] == column), None)
        if title is not None:
            self.bound.add(title)
            return name(title)
        return None

    def _dim(self, column: list[Any]) -> Any:
        """The size of an axis that is a formula, or that differs from instance to instance and so has a name."""
        if all(v == column[0] for v in column):
            return number(column[0])
        found = self._bare(column) or self._formula(column, "")
        if found is not None:
            return found
        title = self._fresh("width")
        self.columns[title] = column
        self.bound.add(title)
        return name(title)

    def _fresh(self, hint: str) -> str:
        taken = {*self.block.taken, *self.columns, *self.hypers}
        return next(n for n in (hint, *(f"{hint}_{k}" for k in range(2, len(taken) + 3))) if n not in taken)

    # --- other holes ----------------------------------------------------------------------------------------------

    def resolved(self, column: list[Any], hint: str) -> Any:
        """The expression that gives each instance what its hole holds."""
        column = [chosen(v.values) if isinstance(v, Turns) else v for v in column]
        first = column[0]
        if all(isinstance(v, ast.Node) for v in column) and all(v == first for v in column):
            inner: list[list[Any]] = [sites(v) for v in column]
            at = iter(range(len(inner[0])))

            def fill(_: Any) -> Any:
                k = next(at)
                return self.resolved([s[k].value for s in inner], inner[0][k].hint)

            return filled(first, fill)
        if all(same(v, first) for v in column):
            return number(first)
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in column):
            found = self._formula(column, hint)
            if found is not None:
                return found
        for c in self.sizes.configs:
            values = [v for v, (config, _) in zip(column, self.instances, strict=True) if config == c]
            if not all(same(v, values[0]) for v in values):
                return self._hyper(column, hint)
        text = f"in `{self.block.name}` {_said(first)} is something else in other configurations; no formula gives it"
        self.sizes.notes.append(text)
        return self.resolved([first] * len(column), hint)

    def _hyper(self, column: list[Any], hint: str) -> Any:
        for title, values in self.hypers.items():
            if title.startswith(hint) and all(same(a, b) for a, b in zip(values, column, strict=True)):
                return name(title)
        title = self._fresh(hint or "size")
        self.hypers[title] = column
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in column):
            self.columns[title] = column
            self.bound.add(title)
        return name(title)

    def _formula(self, column: list[Any], hint: str) -> Any:
        """A formula of names that gives a column, with the names that are at hand before those that must be handed
        down."""
        order = sorted(self.columns, key=lambda n: (n not in self.bound, n != hint))
        found = fitted(column, {n: self.columns[n] for n in order})
        if found is not None:
            self.needs.update(x.id for x in ast.walk(found) if isinstance(x, ast.Name) and x.id in self.sizes.table)
        return found

    # --- calls ----------------------------------------------------------------------------------------------------

    def _call(self, site: Invoke, column: list[Invoke]) -> Any:
        callee = self.sizes.done[site.block]
        given: list[tuple[str, Any]] = []
        for title, values in callee.hypers.items():
            turns = [Turns(tuple(None if i is None else values[i] for i in one.instances)) for one in column]
            given.append((title, self.resolved(list(turns), title)))
        for title in callee.needs:
            self.needs.add(title)
            given.append((title, name(title)))
        ordered = all(isinstance(e, ast.Name) and e.id == n for n, e in given)
        args = [ast.Arg(None, e, span=NOWHERE) for e in site.args]
        args += [ast.Arg(None if ordered else n, e, span=NOWHERE) for n, e in given]
        return call(site.block, *args) if args else name(site.block)


def _said(value: Any) -> str:
    """Write a value in the language; what fills its holes is written the same way."""

    def whole(value: Any) -> Any:
        return filled(written(value), lambda site: whole(site.value))

    return f"`{format_expr(whole(value))}`"


# --- formulas -----------------------------------------------------------------------------------------------------

FACTORS = (2, 3, 4, 5, 6, 8, 16)
FLOAT32 = 1e-6
"""So close are numbers that a module keeps in float32."""


def fitted(column: Sequence[float], table: Table) -> Any:
    """The simplest formula of names that is equal to a column in all its rows, or None."""
    if all(v == column[0] for v in column):
        return None
    whole = all(isinstance(v, int) for v in column)
    for tree in _formulas(table, whole):
        if all(_close(_value(tree, table, k), v, whole) for k, v in enumerate(column)):
            return tree
    return None


def _close(a: float | None, b: float, whole: bool) -> bool:
    return a is not None and (a == b or (not whole and abs(a - b) <= FLOAT32 * abs(b)))


def _formulas(table: Table, whole: bool) -> Iterator[Any]:
    """Formulas of the names, from the simplest on."""
    numbers = {n: v for n, v in table.items() if not any(isinstance(x, bool) for x in v)}
    moving = [name(n) for n, v in numbers.items() if any(x != v[0] for x in v)]
    names = moving + [name(n) for n, v in numbers.items() if all(x == v[0] for x in v)]
    two, half = number(2), number(-0.5)
    yield from moving
    for c in map(number, FACTORS):
        for n in moving:
            yield binary("*", c, n)
            yield binary("/", n, c)
    for n in moving:
        yield ast.Unary("-", n, span=NOWHERE)
        for c in (number(1), two):
            yield binary("+", n, c)
            yield binary("-", n, c)
    for n, m in permutations(names, 2):
        yield binary("/", n, m)
    for n, m in combinations(names, 2):
        yield binary("*", n, m)
        yield binary("+", n, m)
    for n in () if whole else moving:
        yield binary("**", n, half)
        yield call("sqrt", n)
        yield binary("/", number(1), n)
    for n, m in permutations(names, 2):
        for c in (two, number(3), number(4)):
            yield binary("/", binary("/", n, m), c)
        if not whole:
            yield binary("**", binary("/", n, m), half)
    for n, m in combinations(names, 2):
        for r in names:
            yield binary("/", binary("*", n, m), r)
            yield binary("*", r, binary("+", n, m))
    for n, m, r in permutations(names, 3):
        yield binary("*", n, binary("+", m, binary("*", two, r)))
        yield binary("*", binary("/", n, m), binary("+", m, binary("*", two, r)))


def _value(tree: Any, table: Table, k: int) -> Any:
    """What a formula is in a row; None where a size would not be whole, or there is no such number."""
    match tree:
        case ast.Name(id=title):
            return table[title][k]
        case ast.Number(text=text):
            return float(text) if "." in text else int(text)
        case ast.Unary(operand=operand):
            return -_value(operand, table, k)
        case ast.Call(args=(argument,)):
            x = _value(argument.value, table, k)
            return x**0.5 if x is not None and x > 0 else None
    a, b = _value(tree.left, table, k), _value(tree.right, table, k)
    if a is None or b is None:
        return None
    match tree.op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "**":
            return a**b if a > 0 else None
    if not b:
        return None
    return a // b if isinstance(a, int) and isinstance(b, int) and a % b == 0 else a / b
