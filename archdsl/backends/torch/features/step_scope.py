"""What ops of a step write themselves through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archdsl.backends.torch.features.by_row import refuse
from archdsl.backends.torch.features.tables import with_axes
from archdsl.backends.torch.scope import TorchNodeScope
from archdsl.backends.torch.tree import Read, py
from archdsl.ir import dims
from archdsl.ir.dims import Lit, Num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Tree
from archdsl.passes.forms import ALL, NEW, has, in_front

if TYPE_CHECKING:
    from archdsl.backends.torch.features.steps import StepLowering


class StepScope(TorchNodeScope):
    """The TorchScope of a node in a step."""

    in_steps = True
    trains = False
    lowering: StepLowering

    @property
    def linear(self) -> str:  # type: ignore[override]
        return "linear" if self.lowering.section.on_cpu else "F.linear"

    def positions(self, length: Num, offset: Num | None = None) -> Tree:
        lowering, decoding = self.lowering, self.lowering.decoding
        every = has(length, decoding.step.all)
        front = 0 if decoding.front else in_front(length, decoding.step.all)
        middle = lowering.taking.at_positions.get(self.node)
        if front:
            found = self._keys_behind(length, front)
        elif lowering.flatly or every:
            if decoding.front and not decoding.counts(length):
                raise refuse("positions of the tokens alone are read as pairs", self.node.span)
            found = lowering.of_form(ALL if every else NEW)
        elif middle is None:
            return super().positions(length, offset)
        else:
            own = "positions" if decoding.counts(length) else "behind"
            found = with_axes(py(f"{{s}}.{own}", s=lowering.state), middle)
            return lowering.positions(found if offset is None else self.py("{x} + {offset}", x=found, offset=offset))
        return found if offset is None else self.py("{x} + {offset}", x=found, offset=offset)

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[Tree, Tree] | None:
        of, state = self.lowering.decoding.step, self.lowering.state
        if not of.has(queries) and not of.has(keys):
            return None
        counts = self.lowering.decoding.counts
        front = 0 if counts(keys) else in_front(keys, of.all)
        known = counts(keys) and has(keys, of.all)
        if known and counts(queries) and has(queries, of.all):
            every = self.let("key", py("{s}.keys", s=state))
            return self.let("query", py("{x}[:, None]", x=every)), every
        if not ((counts(queries) and has(queries, of.new)) or queries.value == 1) or not (front or known):
            raise refuse(f"a decode step has no pairs of {queries} queries and {keys} keys")
        if self.lowering.flatly:
            new, every = self.lowering.of_form(NEW), self.lowering.of_form(ALL)
            if front:
                every = self.let("key", self._keys_behind(keys, front))
                return self.let("query", py("{x}[:, None] + {front}", x=new, front=self._front(keys, front))), every
            return self.let("query", py("{x}[:, None]", x=new)), every
        axes = ", None" * middle
        key = py("{s}.keys", s=state)
        if self.origin in self.lowering.taking.window:
            last = py("{s}.last({n})", s=state, n=self.lowering.window(self.origin))
            key = py(f"{{x}}[:{axes}, None]", x=last)
        if front:
            key, before = self._keys_behind(keys, front), self._front(keys, front)
            query = py(f"{{s}}.positions[:{axes}, :, None] + {{before}}", s=state, before=before)
            return self.let("query", query), self.let("key", key)
        query = self.let("query", py(f"{{s}}.positions[:{axes}, :, None]", s=state))
        return query, self.lowering.shared("key", key, nested=True)

    @property
    def origin(self) -> OpNode:
        """The node of the block that this one stands for."""
        return self.lowering.origin(self.node)

    def _front(self, length: Num, front: int) -> Num:
        """How many places stand in front of the sequence, as they are spelled in a length of `n + time`."""
        expr, local = length.expr, self.lowering.block.local
        while names := {n: local[n] for n in dims.free_names(expr) if n in local}:
            expr = dims.substitute(expr, names)
        none = {n: Lit("0") for n in dims.free_names(expr) if self.lowering.is_length(n.removeprefix(f"{ALL} "))}
        return Num(front, dims.substitute(expr, none))

    def _keys_behind(self, length: Num, front: int) -> Tree:
        """The places of all positions so far behind a fixed prefix, and of those in it."""
        count = self._front(length, front)
        return py("torch.arange({n} + {s}.end, device={s}.positions.device)", n=count, s=self.lowering.state)

    def varies_by_row(self, i: int) -> bool:
        return (self.node, i) in self.lowering.taking.varying

    def newest(self, i: int) -> Tree:
        value, lowering = self.node.inputs[i], self.lowering
        if not isinstance(value, Value) or not lowering.decoding.flat.of_all(value):
            return super().input(i)
        if (self.node, i) in lowering.taking.at_keys:
            return py("{x}[{s}.positions]", x=self.input(i), s=lowering.state)
        return py("{s}.newest({x})", s=lowering.state, x=super().input(i))

    def input(self, i: int) -> Tree:
        value, taking = self.node.inputs[i], self.lowering.taking
        if (self.node, i) in taking.at_keys:
            assert isinstance(value, Value)
            return self.lowering.read_flat(value)
        return with_axes(super().input(i), taking.varying.get((self.node, i), 0))

    @property
    def for_few_rows(self) -> bool:  # type: ignore[override]
        return self.lowering.section.on_cpu

    @property
    def divided(self) -> bool:
        return self.origin in self.lowering.classes.divided

    def causal(self, mask: Tree) -> Tree | None:
        found = py("{s}.first", s=self.lowering.state)
        if mask == self.lowering.mask:
            return found
        contexts = zip(self.lowering.block.contexts, self.lowering.kinds, strict=True)
        either = any(kind == "either" and Read(c.value) == mask for c, kind in contexts)
        return py("{mask} is None and {causal}", mask=mask, causal=found) if either else None

    def mask(self, i: int) -> tuple[str, Tree | None]:
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        return ("tensor", self.input(i)) if isinstance(value, Value) else ("", None)
