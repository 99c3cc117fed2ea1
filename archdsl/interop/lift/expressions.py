"""Expressions of a block: what its values, weights and sizes are called, and its units applied to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
from torch import Tensor, nn

from archdsl.interop.lift import authors
from archdsl.interop.lift.authors import APPLIED, Line, step, word
from archdsl.interop.lift.export import Size
from archdsl.interop.lift.folding import Called, Carry, Unit, path_of
from archdsl.interop.lift.holes import (
    Hole,
    Invoke,
    Scheme,
    Turns,
    binary,
    call,
    formula,
    hole,
    name,
    number,
    opened,
    piped,
)
from archdsl.interop.lift.meanings import Experts
from archdsl.interop.lift.tree import Group, Op, Shared
from archdsl.ops import registry
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE

UNARY = {"negate": "-", "not": "not", "~": "~"}
BINARY = {"+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "and", "or", "&", "|"}


@dataclass(eq=False)
class Block:
    """A block or the model: its tree, and of each instance its configuration and what stands in its holes."""

    name: str
    tree: ast.BlockDecl
    taken: frozenset[str]
    """The names of its tensors and of what its body applies."""
    instances: list[tuple[int, list[Hole | Invoke]]] = field(default_factory=list)


class Book:
    """The blocks of a model at all its configurations, callees first."""

    def __init__(self, reserved: frozenset[str], blocks: Sequence[str] = ()) -> None:
        self.reserved = reserved
        """Names of the configuration."""
        self.others = blocks
        """Names of blocks that are there already."""
        self.blocks: dict[str, Block] = {}
        self.experts: dict[Experts, str] = {}
        """The name of the block of an expert, one for each way in which experts compute."""
        self._known: dict[tuple[str, ast.BlockDecl], Block] = {}

    def expert(self, how: Experts) -> str:
        """The name of the block that is one expert."""
        if how not in self.experts:
            self.experts[how] = self._title(f"{how.gate}_expert")
        return self.experts[how]

    def _title(self, text: str) -> str:
        """A name for a block that nothing has."""
        title = word(text)
        while title in self.reserved or title in APPLIED:
            title += "_"
        taken = {*self.blocks, *self.experts.values(), *self.others}
        return next(n for n in (title, *(f"{title}_{k}" for k in range(2, len(taken) + 3))) if n not in taken)

    def enter(
        self, cls: str, tree: ast.BlockDecl, taken: frozenset[str], config: int, found: list[Any]
    ) -> tuple[str, int]:
        """Note an instance; the name of its block, which may be known, and which instance of it this is."""
        block = self._known.get((cls, tree))
        if block is None:
            title = self._title(cls)
            block = self._known[cls, tree] = self.blocks[title] = Block(title, tree, taken)
        block.instances.append((config, found))
        return block.name, len(block.instances) - 1


class Expressions:
    """The expressions of one group, and what they name."""

    def __init__(self, book: Book, module: nn.Module, group: Group, config: int) -> None:
        self.book, self.module, self.group, self.config = book, module, group, config
        self.weights: list[tuple[str, str, bool]] = []
        self.names: dict[int, str] = {}
        """What each value is called while it is."""
        self.labels: set[str] = set()
        self.used: set[str] = set()
        self.local: set[str] = set()
        """Names that only a loop has had."""
        self.shared: dict[Shared, str] = {}
        self.sizes: dict[sympy.Expr, str] = {}
        """Sizes that the header gives a name."""

    def fresh(self, hint: str) -> str:
        """A name that nothing has had."""
        base = word(hint)
        names = (base, *(f"{base}_{k}" for k in range(2, len(self.used) + 3)))
        found = next(n for n in names if n not in self.used and n not in self.book.reserved)
        self.used.add(found)
        return found

    # --- the author's lines ---------------------------------------------------------------------------------------

    def class_of(self, path: str) -> type:
        return type(self.module.get_submodule(path))

    def line(self, unit: Unit) -> Line | None:
        """The author's statement in which a unit is computed."""
        item = unit.first
        if isinstance(item, Called):
            ops = [op for op in item.group.ops() if op.term.source]
            scope, source = item.group.scope, ops[-1].term.source if ops else None
        else:
            scope, source = item.scope, item.term.source
        frames = source.frames if source else ()
        return authors.line_of(self.class_of(self.group.module if scope is None else scope), frames)

    def size(self, size: Size, hint: str = "") -> Any:
        """A size as an expression: a number is a hole."""
        if isinstance(size, int) or size.is_Integer:
            return hole(int(size), hint)
        return formula(size.subs(self.sizes))

    # --- names of weights -----------------------------------------------------------------------------------------

    def label(self, unit: Unit) -> str:
        """What a unit's weights are called here: its path, without the numbers that differ from turn to turn."""
        paths = [path_of(p).split(".") for p in unit.peers]
        depth = len(self.group.module.split(".")) if self.group.module else 0
        inner = all(p[:depth] == self.group.module.split(".") for p in paths) if depth else True
        parts = [p[0] for p in zip(*(p[depth if inner else 0 :] for p in paths), strict=True) if len(set(p)) == 1]
        parts = parts or ["layers" if isinstance(unit.first, Called) else unit.first.term.op]
        for take in range(1, len(parts) + 1):
            found = step("_".join(parts[-take:]))
            if not parts[-take].isdigit() and found not in self.labels:
                break
        while found in self.labels:
            found += "_"
        self.labels.add(found)
        return found

    def weigh(self, unit: Unit, label: str) -> None:
        """Note whose weights are called so."""
        for k, peer in enumerate(unit.peers):
            own = f"{label}.{k}" if len(unit.peers) > 1 else label
            if isinstance(peer, Called):
                self.weights += [(f"{own}.{ours}", theirs, turned) for ours, theirs, turned in peer.weights]
            else:
                for key, w in peer.term.weights.items():
                    self.weights.append((f"{own}.{key}" if key else own, w.name, key in peer.term.turned))

    # --- expressions ----------------------------------------------------------------------------------------------

    def value(self, values: Sequence[Any], hint: str = "") -> Any:
        """A hole for what an option is in each turn."""
        prepared = [self._prepared(v) for v in values]
        return hole(prepared[0] if len(prepared) == 1 else Turns(tuple(prepared)), hint)

    def _prepared(self, value: Any) -> Any:
        if isinstance(value, bool | int | float):
            return value
        if isinstance(value, sympy.Expr):
            return int(value) if value.is_Integer else self.size(value)
        if isinstance(value, ast.Node):
            return opened(value)
        if isinstance(value, list | tuple):
            return ast.List(tuple(hole(self._prepared(v)) for v in value), span=NOWHERE)
        return name("none" if value is None else str(value))

    def _arguments(self, unit: Unit) -> list[ast.Arg]:
        """The hyper-parameters of a primitive: those that must be given in order, the others by name."""
        op = unit.first
        assert isinstance(op, Op)
        primitive = registry.find(op.term.op)
        known = {h.name: h for h in (primitive.header.hypers or ())} if primitive else {}
        args: list[ast.Arg] = []
        for key, given in op.term.options.items():
            options = [p.term.options[key] for p in unit.peers if isinstance(p, Op)]
            hyper = known.get(key)
            kind = hyper.kind if hyper else None
            if isinstance(given, Experts):
                hidden = self.value([p.term.options["hidden"] for p in unit.peers if isinstance(p, Op)], "hidden")
                args.append(ast.Arg(None, call(self.book.expert(given), hidden), span=NOWHERE))
            elif key == "hidden" and "expert" in op.term.options:
                continue
            elif kind == "string":
                args.append(ast.Arg(None, ast.String(given, span=NOWHERE), span=NOWHERE))
            elif kind == "sizes" and isinstance(given, list | tuple):
                args += [ast.Arg(None, self.value(column, key), span=NOWHERE) for column in zip(*options, strict=True)]
            else:
                by_name = primitive is None or (hyper is not None and hyper.default is not None)
                args.append(ast.Arg(key if by_name else None, self.value(options, key), span=NOWHERE))
        return args

    def _applied(self, unit: Unit, tensors: Sequence[Any] = ()) -> Any:
        """The primitive of a unit with its hyper-parameters, and with tensors that are not piped into it."""
        op = unit.first
        assert isinstance(op, Op)
        count = len(tensors) - len(op.term.named)
        args = [ast.Arg(None, t, span=NOWHERE) for t in tensors[:count]]
        args += [ast.Arg(n, t, span=NOWHERE) for n, t in zip(op.term.named, tensors[count:], strict=False)]
        args += self._arguments(unit)
        args.sort(key=lambda a: a.name is not None)
        return call(op.term.op, *args) if args else name(op.term.op)

    def expression(self, unit: Unit, args: Sequence[Any]) -> Any:
        """The application of a unit to expressions of its tensors."""
        item = unit.first
        if isinstance(item, Called):
            return self.invoked(unit, args)
        term = item.term
        numbers = [i for i, a in enumerate(unit.args) if not isinstance(a, Op | Carry)]
        args = list(args)
        for i in numbers:
            args[i] = self.value([p.args[i] for p in unit.peers if isinstance(p, Op)])
        if term.op in UNARY:
            return ast.Unary(UNARY[term.op], args[0], span=NOWHERE)
        if term.op in BINARY:
            return binary(term.op, args[0], args[1])
        if term.op == "index":
            return ast.Index(args[0], self._items(unit), span=NOWHERE)
        if term.op == "formula":
            return self.value([p.term.options["value"] for p in unit.peers if isinstance(p, Op)])
        if item.shared is not None:
            bound = name(self.shared[item.shared])
            if not item.shared.table or term.op == "embedding":
                return piped(args[0], bound)
            head = piped(args[0], call("unembed", bound))
            return binary("+", head, name("bias")) if "bias" in term.weights else head
        alone = len(args) == 1 and not numbers
        found = self._applied(unit, () if alone else args)
        if term.weights:
            label = self.label(unit)
            self.weigh(unit, label)
            found = ast.As(found, label, name_span=NOWHERE, span=NOWHERE)
        return piped(args[0], found) if alone else found

    def _items(self, unit: Unit) -> tuple[Any, ...]:
        """What stands in the brackets of an index: all of the axes before its own, then a position or a slice."""
        op = unit.first
        assert isinstance(op, Op)
        given = {k: [p.term.options.get(k) for p in unit.peers if isinstance(p, Op)] for k in ("at", "low", "high")}
        axis, source = int(op.term.options["axis"]), next(op.operands())
        last = axis in (-1, len(source.shape) - 1) and len(source.shape) > 1
        whole = ast.Slice(None, None, span=NOWHERE)
        before: tuple[Any, ...] = (ast.Ellipsis(span=NOWHERE),) if last else (whole,) * (axis % len(source.shape))
        if given["at"][0] is not None:
            return (*before, self.value(given["at"]))
        low, high = (None if given[k][0] is None else self.value(given[k]) for k in ("low", "high"))
        return (*before, ast.Slice(low, high, span=NOWHERE))

    def invoked(self, unit: Unit, args: Sequence[Any], block: str | None = None) -> Any:
        calls = [p for p in unit.peers if isinstance(p, Called)]
        first = calls[0]
        if first.group.shared is not None:
            stage: Any = name(self.shared[first.group.shared])
            stage = call(stage.id, *args[1:]) if len(args) > 1 else stage
            return piped(args[0], stage)
        if block is None:
            label = self.label(unit)
            self.weigh(unit, label)
            self.last_label = label
        title = block or first.block
        turns = tuple(c.instance if c.block == title else None for c in calls)
        invoked: Any = Invoke(title, tuple(args[1:]), turns, span=NOWHERE)
        return piped(args[0], ast.As(invoked, self.last_label, name_span=NOWHERE, span=NOWHERE))

    def param(self, unit: Unit, key: str, bound: str) -> ast.Param:
        """Declare a raw weight, a `param` or, where the module keeps it as one, a `buffer`, with a scheme that fits its
        numbers."""
        ops = [p for p in unit.peers if isinstance(p, Op)]
        values = [op.term.weights[key] for op in ops]
        for k, w in enumerate(values):
            self.weights.append((f"{bound}.{k}" if len(values) > 1 else bound, w.name, False))
        dims = tuple(self.value(sizes) for sizes in zip(*(w.shape for w in values), strict=True))
        try:
            tensor = self.module.get_parameter(values[0].name)
        except AttributeError:
            kind, drawn = "buffer", call("saved", _scheme(self.module.get_buffer(values[0].name)))
        else:
            kind, drawn = "param", _scheme(tensor)
        scheme: Any = Scheme(drawn, span=NOWHERE)
        return ast.Param(kind, bound, ast.TensorType(None, dims, span=NOWHERE), scheme, span=NOWHERE)

    def table(self, unit: Unit, bound: str) -> ast.Param:
        """Numbers that no formula gives, as a buffer."""
        ops = [p for p in unit.peers if isinstance(p, Op)]
        dims = tuple(map(self.size, ops[0].shape))
        values = self.value([op.term.options["values"] for op in ops])
        kind = ops[0].term.options.get("kind")
        return ast.Param("buffer", bound, ast.TensorType(kind, dims, span=NOWHERE), values, span=NOWHERE)


def _scheme(weight: Tensor) -> Any:
    """The scheme that a weight looks like: a constant, or normal."""
    tensor = weight.detach().float()
    low, high = (float(tensor.min()), float(tensor.max())) if tensor.numel() else (0.0, 0.0)
    if low == high:
        known = {0.0: "zeros", 1.0: "ones"}.get(low)
        return name(known) if known else call("constant", number(float(f"{low:.6g}")))
    std = float(f"{float(tensor.std()):.1g}") if tensor.numel() > 1 else 0.02
    return call("normal", number(std))
