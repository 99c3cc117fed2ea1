"""The local names of one `forward`, and the lines written so far.

An expression that is read once is kept back and nested into the one that reads it; a name is bound anew once its old
value is read no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from archdsl.ir.graph import Block, OpNode, Value
from archdsl.ir.op import Code
from archdsl.lower.python import WIDTH, local_name
from archdsl.lower.torch.reading import reads_within
from archdsl.lower.torch.text import NAME_TOKEN, Line

LONG = 96
"""An expression is not nested into another if the line would become longer than this."""


class Hold(Enum):
    """What a local holds that holds no value of the block."""

    KEPT = auto()
    """A variable of a loop, a list, what a loop carries: the name is never bound to something else."""
    SHARED = auto()
    """An expression that an op wanted a name for: other ops read it as long as it stands."""
    OWN = auto()
    """Something that the op being written has made: it may bind the name anew."""
    RELEASED = auto()
    """Nothing that is still read."""


@dataclass(frozen=True)
class Pending:
    """An expression not written yet, and the locals that it reads."""

    code: Code
    reads: frozenset[str]


class Locals:
    """Lines and locals of one block."""

    def __init__(self, block: Block, avoid: frozenset[str]) -> None:
        self.block = block
        self.avoid = avoid
        """Names that would hide a helper."""
        self.lines: list[Line] = []
        self.indent = 0
        self.bound: dict[Value, str] = {}
        """The text that a value is read by: a local, `self.table`, `states[2]`."""
        self.pending: dict[Value, Pending] = {}
        self.holder: dict[str, Value | Hold] = {}
        """What each local holds."""
        self.uses = reads_within(block.graph)
        """How often each value will still be read."""
        self.shared: dict[str, str] = {}
        """Locals of expressions that ops wanted a name for."""
        self.notes: dict[Value, str] = {}
        """Comments: shapes."""
        self.hints: dict[Value, str] = {}
        """What to call values that the spec has no name for."""
        self.used: set[str] = set()
        """Every name that was ever a local here."""

    # --- lines ---

    def line(self, text: str) -> None:
        self.lines.append((self.indent, text))

    def indented(self, lines: Iterable[Line]) -> None:
        """Lines of an inner block."""
        self.lines += [(self.indent + 1 + indent, text) for indent, text in lines]

    def assign(self, name: str, text: str, value: Value) -> None:
        """An assignment, with the shape behind it if that fits on the line."""
        comment = self.notes.get(value, "")
        fits = 8 + 4 * self.indent + len(NAME_TOKEN.sub(r"self.\1", f"{name} = {text}{comment}")) <= WIDTH
        self.line(f"{name} = {text}{comment if fits else ''}")

    def rebind(self, names: Iterable[str], texts: Iterable[str]) -> None:
        """Give names new values at once, so that none overwrites what another still reads."""
        changed = [(n, t) for n, t in zip(names, texts, strict=True) if n != t]
        if changed:
            self.line(f"{', '.join(n for n, _ in changed)} = {', '.join(t for _, t in changed)}")

    # --- names ---

    def reserve(self, base: str) -> str:
        """A name that nothing had before and that is kept."""
        name, n = base, 1
        while name in self.holder or name in self.avoid:
            n += 1
            name = f"{base}_{n}"
        self.holder[name] = Hold.KEPT
        self.used.add(name)
        return name

    def own(self, base: str) -> str:
        """A name for what an op makes and none of the block's values is; the op's own may be bound anew."""
        name = base if self.holder.get(base) is Hold.OWN else self.fresh(base)
        self.holder[name] = Hold.OWN
        self.used.add(name)
        return name

    def disown(self) -> None:
        """The op is written: its own names are free."""
        own = [name for name, held in self.holder.items() if held is Hold.OWN]
        for text, name in list(self.shared.items()):
            if any(re.search(rf"\b{n}\b", text) for n in own):
                del self.shared[text]
                own.append(name)
        self.holder |= dict.fromkeys(own, Hold.RELEASED)

    def hold(self, value: Value, name: str) -> None:
        """From here on the local is the value."""
        self.used.add(name)
        self.bound[value] = name
        self.holder[name] = value

    def keep(self, name: str) -> None:
        """From here on the local is not bound anew."""
        self.holder[name] = Hold.KEPT

    def fresh(self, base: str) -> str:
        """A local name whose old value, if any, is read no more."""
        name, n = base, 1
        while name in self.avoid or self._busy(name):
            n += 1
            name = f"{base}_{n}"
        self.flush(name)
        return name

    def _busy(self, name: str) -> bool:
        held = self.holder.get(name, Hold.RELEASED)
        return self.uses.get(held, 0) > 0 if isinstance(held, Value) else held in (Hold.KEPT, Hold.OWN)

    def flush(self, name: str) -> None:
        """Expressions not written yet that read a local about to change get a name first."""
        for value, pending in list(self.pending.items()):
            if name in pending.reads and value in self.pending:
                self.named(value)

    def spelled(self, value: Value) -> str:
        """A local name for the value: the spec's, or one that says roughly what it is."""
        return local_name(value.name or self.hints.get(value) or ("h" if value.is_float else "found"))

    def note_hints(self, node: OpNode) -> None:
        """What the op calls its outputs where the spec does not; `=` is the name of the first input."""
        for value, hint in zip(node.outputs, node.op.hints, strict=False):
            first = node.inputs[0]
            name = (first.name or self.hints.get(first, "")) if hint == "=" and isinstance(first, Value) else hint
            if name:
                self.hints[value] = name

    # --- values ---

    def bind(self, value: Value, code: Code) -> str:
        """Write an assignment; the local."""
        name = self.fresh(self.spelled(value))
        self.assign(name, code.text, value)
        self.hold(value, name)
        return name

    def unpack(self, values: Iterable[Value], text: str) -> None:
        """Bind the several results of one expression; `_` for those that nothing reads."""
        names = []
        for value in values:
            names.append("_")
            if self.uses.get(value, 0) != 0:
                names[-1] = self.fresh(self.spelled(value))
                self.hold(value, names[-1])
        self.line(f"{', '.join(names)} = {text}")

    def spend(self, value: Value, times: int = 1) -> None:
        """The value is read (or could have been)."""
        self.uses[value] = self.uses.get(value, times) - times

    def take(self, value: Value, strength: int) -> str:
        """The text of a value that is read here."""
        self.spend(value)
        if value in self.pending:
            return self.pending.pop(value).code.within(strength)
        return self.bound[value]

    def named(self, value: Value) -> str:
        """The local name of a value; binds it if it has none yet."""
        if value in self.pending:
            return self.bind(value, self.pending.pop(value).code)
        return self.bound[value]

    def reads_of(self, value: Value) -> frozenset[str]:
        """The locals that the text of a value reads."""
        if value in self.pending:
            return self.pending[value].reads
        return frozenset((self.bound[value],) if value in self.bound else ())

    def settle(self, value: Value) -> None:
        """A value that an inner graph reads has a name before it."""
        self.spend(value, 2)
        if value in self.pending:
            self.named(value)

    def protect(self, values: Iterable[Value], by: int = 1) -> None:
        """What a loop reads from around it is read again in the next turn: its local must not be bound anew within.
        With -1 the loop is over."""
        for value in values:
            self.uses[value] = self.uses.get(value, 0) + by

    def carry(self, start: Value, name: str) -> str:
        """The local that a loop carries: the start's own if nothing else reads it."""
        self.spend(start)
        if start in self.pending:
            code = self.pending.pop(start).code
            chosen = self.fresh(name)
            self.assign(chosen, code.text, start)
            self.bound[start] = chosen
        elif (own := self.bound[start]) == name and own.isidentifier() and self.uses.get(start, 0) <= 0:
            self.flush(own)
            chosen = own
        else:
            chosen = self.fresh(name)
            self.line(f"{chosen} = {own}")
        self.keep(chosen)
        return chosen

    # --- for ops ---

    def share(self, hint: str, text: str) -> str:
        """A local for an expression that ops want a name for, one for all of them; the name."""
        made = self.shared.get(text)
        if made is not None and self.holder.get(made) is Hold.SHARED:
            return made
        base = local_name(hint)
        name, n = base, 1
        while name in self.holder or name in self.avoid:
            n += 1
            name = f"{base}_{n}"
        self.line(f"{name} = {text}")
        self.holder[name] = Hold.SHARED
        self.used.add(name)
        self.shared[text] = name
        return name

    def own_type(self) -> str:
        """The type of the model's own numbers."""
        for value in self.block.graph.inputs:
            name = self.bound.get(value, "")
            if value.dtype == "float" and self.holder.get(name) is value:
                return f"{name}.dtype"
        return "next(self.parameters()).dtype"
