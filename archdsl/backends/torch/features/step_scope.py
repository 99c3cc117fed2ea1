"""What ops of a step write themselves through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archdsl.backends.torch.features.reading import refuse
from archdsl.backends.torch.scope import TorchNodeScope
from archdsl.backends.torch.tree import Read, py
from archdsl.ir import dims
from archdsl.ir.dims import Lit, Num
from archdsl.ir.graph import Value
from archdsl.ir.op import Tree
from archdsl.passes.forms import ALL, has, in_front

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
        reading, form = self.lowering.reading, self.lowering.form.get(self.node)
        front = 0 if reading.front else in_front(length, reading.time)
        if front or form is not None:
            found = self._keys_behind(length, front) if front else self.lowering.of_form(form or ALL)
            return found if offset is None else self.py("{x} + {offset}", x=found, offset=offset)
        middle = self.lowering.roles.at_positions.get(self.node)
        if middle is None:
            return super().positions(length, offset)
        own = "positions" if reading.counts(length) else "behind"
        found = py(f"{{s}}.{own}", s=self.lowering.state)
        if middle:
            found = py(f"{{x}}[:{', None' * middle}]", x=found)
        return self.lowering.positions(found if offset is None else self.py("{x} + {offset}", x=found, offset=offset))

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[Tree, Tree] | None:
        time, state = self.lowering.reading.time, self.lowering.state
        if not has(queries, time) and not has(keys, time):
            return None
        counts = self.lowering.reading.counts
        front = 0 if counts(keys) else in_front(keys, time)
        if not (counts(queries) or queries.value == 1) or not (front or counts(keys)):
            raise refuse(f"a decode step has no pairs of {queries} queries and {keys} keys")
        form = self.lowering.form.get(self.node)
        if form is not None:
            new, every = self.lowering.of_form(form), self.lowering.of_form(ALL)
            if front:
                every = self.let("key", self._keys_behind(keys, front))
                return self.let("query", py("{x}[:, None] + {front}", x=new, front=self._front(keys, front))), every
            return self.let("query", py("{x}[:, None]", x=new)), every
        axes = ", None" * middle
        key = py("{s}.keys", s=state)
        if self.node in self.lowering.roles.window:
            last = py("{s}.last({n})", s=state, n=self.lowering.window(self.node))
            key = py(f"{{x}}[:{axes}, None]", x=last)
        if front:
            key, before = self._keys_behind(keys, front), self._front(keys, front)
            query = py(f"{{s}}.positions[:{axes}, :, None] + {{before}}", s=state, before=before)
            return self.let("query", query), self.let("key", key)
        return self.let("query", py(f"{{s}}.positions[:{axes}, :, None]", s=state)), self.let("key", key)

    def _front(self, length: Num, front: int) -> Num:
        """How many places stand in front of the sequence, as they are spelled in a length of `n + time`."""
        expr, local = length.expr, self.lowering.block.local
        while names := {n: local[n] for n in dims.free_names(expr) if n in local}:
            expr = dims.substitute(expr, names)
        none = {n: Lit("0") for n in dims.free_names(expr) if self.lowering.is_length(n)}
        return Num(front, dims.substitute(expr, none))

    def _keys_behind(self, length: Num, front: int) -> Tree:
        """The places of all positions so far behind a fixed prefix, and of those in it."""
        count = self._front(length, front)
        return py("torch.arange({n} + {s}.end, device={s}.positions.device)", n=count, s=self.lowering.state)

    def varies_by_row(self, i: int) -> bool:
        return (self.lowering.declared.get(self.node, self.node), i) in self.lowering.roles.varying

    def newest(self, i: int) -> Tree:
        state, value = self.lowering.state, self.node.inputs[i]
        if isinstance(value, Value) and not self.lowering.of_time(value):  # of an encoder's sequence
            return super().input(i)
        if not self._at_all_positions(i):
            return super().input(i)
        if (self.lowering.declared.get(self.node, self.node), i) in self.lowering.roles.at_keys:
            return py("{x}[{s}.positions]", x=self.input(i), s=state)
        return py("{s}.newest({x})", s=state, x=super().input(i))

    def input(self, i: int) -> Tree:
        roles = self.lowering.roles
        key = self.lowering.declared.get(self.node, self.node), i
        if key in roles.at_keys:
            return self.lowering.read(self.lowering.in_form(self.node.inputs[i], ALL))
        more = roles.varying.get(key, 0)
        if more:
            return py(f"{{x}}[:{', None' * more}]", x=super().input(i))
        return self.newest(i) if self._is_own_padding(i) else super().input(i)

    def _at_all_positions(self, i: int) -> bool:
        """Return whether input `i` holds the positions of earlier steps beside the new ones."""
        value, roles = self.node.inputs[i], self.lowering.roles
        key = self.lowering.declared.get(self.node, self.node), i
        padding = isinstance(value, Value) and value.dtype == "padding"
        kept = value in roles.kept_values and value not in roles.both
        return padding or kept or key in roles.everywhere or key in roles.at_keys

    def _is_own_padding(self, i: int) -> bool:
        """Whether an input is the padding of all positions so far, of which the node reads the new ones alone."""
        value = self.node.inputs[i]
        real = isinstance(value, Value) and value.dtype == "padding"
        return real and self.lowering.declared.get(self.node, self.node) not in self.lowering.roles.readers

    @property
    def for_few_rows(self) -> bool:  # type: ignore[override]
        return self.lowering.section.on_cpu

    @property
    def divided(self) -> bool:
        return self.lowering.declared.get(self.node, self.node) in self.lowering.classes.divided

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
