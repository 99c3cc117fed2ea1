"""A group becomes a block: statements named by the author's lines, in a tree whose numbers are holes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import nn

from archdsl.diagnostics import error
from archdsl.interop.lift import authors
from archdsl.interop.lift.authors import APPLIED, step, word
from archdsl.interop.lift.export import BATCH, TIME
from archdsl.interop.lift.expressions import Book, Expressions
from archdsl.interop.lift.folding import Called, Carry, Loop, Unit, folded
from archdsl.interop.lift.holes import (
    Invoke,
    call,
    sites,
)
from archdsl.interop.lift.statements import Region
from archdsl.interop.lift.tree import Group, Op
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE


class Body(Expressions):
    """The statements of one group, and what its callers must know."""

    def __init__(self, book: Book, module: nn.Module, group: Group, outs: Sequence[Op], config: int) -> None:
        super().__init__(book, module, group, config)
        self.outs = outs
        self.units = folded(self._units(), outs, self._statement)

    # --- what there is to write -----------------------------------------------------------------------------------

    def _units(self) -> list[Unit]:
        items = self.group.items
        parts: dict[int, dict[int, Op]] = {}
        for x in items:
            if isinstance(x, Op) and x.term.op == "item":
                parts.setdefault(id(x.args[0]), {})[int(x.term.options["i"])] = x
        used = {id(o) for o in self.outs}
        reads = [
            (x, {id(a) for op in (x.ops() if isinstance(x, Group) else (x,)) for a in op.operands()}) for x in items
        ]
        units = []
        for x in items:
            if isinstance(x, Group):
                outer = used.union(*(r for y, r in reads if y is not x))
                units.append(self._called(x, [op for op in x.ops() if id(op) in outer]))
            elif x.term.op not in ("item", "input"):
                of = parts.get(id(x), {})
                outs = tuple(of.get(i) for i in range(_count(x, of))) if of else (x,)
                units.append(Unit([x], x.args, outs))
        return units

    def _called(self, group: Group, outs: list[Op]) -> Unit:
        found = Body(self.book, self.module, group, outs, self.config).block()
        return Unit([found], found.inputs, found.outs)

    def block(self) -> Called:
        """The group as a block."""
        inputs = self._inputs()
        self._name_inputs(inputs)
        tree = self.declared("", inputs)
        found = sites(tree)
        title, instance = self.book.enter(self.group.cls, tree, frozenset(self.used), self.config, found)
        return Called(self.group, title, instance, tuple(inputs), tuple(self.outs), tuple(self.weights))

    def declared(
        self, title: str, inputs: Sequence[Op], opening: Sequence[ast.Statement] = (), results: Sequence[str] = ()
    ) -> ast.BlockDecl:
        """The declaration with these tensors, which have names; `opening` are statements before the others."""
        tensors = tuple(ast.TensorParam(self.names[id(x)], self._type(x), None, span=NOWHERE) for x in inputs)
        lets = tuple(self._lets())
        region = Region(self, self.units, self.outs, None)
        body = (*opening, *lets, *region.statements(), ast.Return(region.results, span=NOWHERE))
        named = [r.id if isinstance(r, ast.Name) else "y" for r in region.results]
        named = [word(given) if given else own for given, own in zip(results or [""] * len(named), named, strict=True)]
        for i, n in enumerate(named):
            named[i] = next(x for x in (n, *(f"{n}_{k}" for k in range(2, len(named) + 2))) if x not in named[:i])
        alone = len(self.outs) == 1
        found = tuple(
            ast.Result(None if alone else n, self._type(o), span=NOWHERE) for n, o in zip(named, self.outs, strict=True)
        )
        header = ast.Header(None, tensors, found, span=NOWHERE)
        return ast.BlockDecl(title, False, header, ast.Body(body, span=NOWHERE), name_span=NOWHERE, span=NOWHERE)

    def _inputs(self) -> list[Op]:
        """The tensors that come from outside, in the order of the author's parameters."""
        inside = {id(o) for u in self._flat() for o in u.outs} | {id(p) for u in self._flat() for p in u.peers}
        inside |= {id(op) for op in self.group.ops()}
        read = [a for op in self.group.ops() for a in op.operands() if id(a) not in inside]
        return list(dict.fromkeys(read))

    def _flat(self) -> list[Unit]:
        return [u for x in self.units for u in (x.body if isinstance(x, Loop) else (x,))]

    def _name_inputs(self, inputs: list[Op]) -> None:
        """Call the inputs as the author's `forward` does, and bring them into its order."""
        formal = authors.parameters(self.class_of(self.group.module))
        found: dict[int, str] = {}
        for x in inputs:
            readers = [u for u in self._flat() if any((a.start if isinstance(a, Carry) else a) is x for a in u.args)]
            lines = [line for u in readers if (line := self.line(u))]
            seen = [n for n in (lines[0].reads if lines else ()) if n in formal and n not in found.values()]
            for caller in (u.first for u in readers[:1]):
                if isinstance(caller, Called):  # what the callee calls it
                    inner = self.book.blocks[caller.block].tree.header.tensors or ()
                    own = inner[caller.inputs.index(x)].name if x in caller.inputs else ""
                    seen = [own] if own in seen else seen
            if not seen and len(inputs) == 1:
                seen = list(formal[:1])
            found[id(x)] = seen[0] if seen else ""
        inputs.sort(key=lambda x: formal.index(found[id(x)]) if found[id(x)] else len(formal))
        for x in inputs:
            self.names[id(x)] = self.fresh(found[id(x)] or "x")

    def _statement(self, unit: Unit) -> Any:
        line = self.line(unit)
        return line and (line.file, line.start)

    # --- sizes and types ------------------------------------------------------------------------------------------

    def _type(self, op: Op) -> ast.TensorType:
        source = op.term.source
        dtype = source.dtype if source else None
        entering = self.group.path == "" and op.term.op == "input"
        kind = "bool" if dtype == torch.bool else ("token" if entering else "int") if dtype in INTEGERS else None
        plain = {s for s in op.shape if isinstance(s, sympy.Symbol)}
        for s in op.shape:
            if entering or isinstance(s, int | sympy.Integer | sympy.Symbol) or s in self.sizes:
                continue
            if not s.free_symbols <= plain | set(self.sizes):
                both = {BATCH, TIME} <= s.free_symbols
                self.sizes[s] = sympy.Symbol(self.fresh("rows" if both else "length"), integer=True, positive=True)
        return ast.TensorType(kind, tuple(map(self.size, op.shape)), span=NOWHERE)

    # --- expressions ----------------------------------------------------------------------------------------------

    def _lets(self) -> list[ast.Statement]:
        """What is shared, bound before it is used."""
        found: list[ast.Statement] = []
        for unit in self._flat():
            item = unit.first
            shared = item.group.shared if isinstance(item, Called) else item.shared
            if shared is None or shared in self.shared:
                continue
            users = [
                p for u in self._flat() for p in u.peers if (p.group if isinstance(p, Called) else p).shared is shared
            ]
            words = shared.path.split(".")
            first_word = max((i for i, w in enumerate(words) if not w.isdigit()), default=0)
            title = step("_".join(words[first_word:]))
            while title in APPLIED or title in self.labels:
                title += "_"
            bound = self.shared[shared] = self.fresh(title)
            self.labels.add(bound)
            if isinstance(item, Called):
                if len({p.block for p in users if isinstance(p, Called)}) > 1:
                    raise error("E0542", f"`{shared.path}` is called again, and does something else then")
                inner: Any = Invoke(
                    item.block, (), tuple(p.instance for p in users if isinstance(p, Called)), span=NOWHERE
                )
            else:
                first = shared.users[0]
                assert isinstance(first, Op)
                item = first
                inner = self._applied(Unit([first], first.args, (first,)))
            found.append(ast.Let(bound, call("shared", inner), span=NOWHERE))
            self.weigh(Unit([item], (), ()), bound)
            for user in users if shared.table else ():
                if isinstance(user, Op) and "bias" in user.term.weights:
                    found += [self.param(Unit([user], (), ()), "bias", self.fresh("bias"))]
        return found


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _count(op: Op, parts: Mapping[int, Op]) -> int:
    """How many results an op gives."""
    source = op.term.source
    return max(source.results if source else 0, 1 + max(parts))
