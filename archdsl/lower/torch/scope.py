"""What ops write themselves through: the TorchScope of a node, and the one that is after a constructor only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from archdsl.ir.dims import Expr, Num, Poly, is_size_like
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import ATOM, Code
from archdsl.lower.python import local_name
from archdsl.lower.torch.locals import LONG
from archdsl.lower.torch.text import END, IN, INPUT_TOKEN

if TYPE_CHECKING:
    from archdsl.lower.torch.block import BlockWriter
    from archdsl.lower.torch.modules import Modules


class NodeScope:
    """The TorchScope of one node: texts with tokens for inputs, filled in once it is known how often each is read."""

    def __init__(self, writer: BlockWriter, node: OpNode) -> None:
        self.writer = writer
        self.locals = writer.locals
        self.modules = writer.modules
        self.node = node

    # --- inputs ---

    def arg(self, i: int) -> str:
        return self.operand(i, 0)

    def at(self, i: int) -> str:
        return self.operand(i, ATOM)

    def operand(self, i: int, strength: int) -> str:
        value = self.node.inputs[i]
        if isinstance(value, Num):
            whole = is_size_like(value.value) if isinstance(value.value, Poly) else True
            return self.writer.numbers.forward(value, strength, real=not whole)
        assert value is not None, (self.node.op.name, i)
        return self._cut(i, f"{IN}{i}:{0 if self._is_cut(i) else strength}{END}")

    def _is_cut(self, i: int) -> bool:
        """Whether something is to be done about an input because several devices share the heads."""
        sharding, use = self.writer.classes.sharding, (self.declared, i)
        return sharding is not None and (use in sharding.own or use in sharding.shared)

    def _cut(self, i: int, text: str) -> str:
        sharding = self.writer.classes.sharding
        if sharding is None or not self._is_cut(i):
            return text
        self.writer.note_shards()
        axis = self.axis_from(i, sharding.own.get((self.declared, i)))
        return f"self.shards.shared({text})" if axis is None else f"self.shards.own({text}, {axis})"

    @property
    def declared(self) -> OpNode:
        """The node of the model that this one is."""
        return self.node

    def axis_from(self, i: int, axis: int | None) -> int | None:
        """An axis of an input, as it is counted here."""
        return axis

    def has(self, i: int) -> bool:
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def mask(self, i: int) -> tuple[str, str]:
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        if not isinstance(value, Value):
            return "", ""
        if value in self.writer.elided:
            self.locals.spend(value)
            return "causal", ""
        for context, kind in zip(self.writer.block.contexts, self.writer.kinds, strict=True):
            if context.value is value and kind == "either":
                return "either", self.arg(i)
        return "tensor", self.arg(i)

    def size(self, i: int, axis: int) -> str:
        return f"{self.at(i)}.size({axis})"

    def device(self) -> str:
        for i, value in enumerate(self.node.inputs):
            if isinstance(value, Value):
                return f"{self.at(i)}.device"
        return f"{self.writer.any_tensor}.device"

    def dtype(self) -> str:
        for i, value in enumerate(self.node.inputs):
            if isinstance(value, Value) and value.dtype == "float":
                return f"{self.at(i)}.dtype"
        return self.locals.own_type()

    # --- numbers ---

    def number(self, n: Num, strength: int = 0) -> str:
        sharding = self.writer.classes.sharding
        if sharding is not None and any(n is found for found in sharding.numbers.get(self.declared, ())):
            self.writer.note_shards(n)
            return f"self.shards.of({self.writer.numbers.forward(n, 0)})"
        return self.writer.numbers.forward(n, strength, real=self.is_real(n))

    def is_real(self, n: Num) -> bool:
        """Whether a number meets tensors and may be a fraction: an operand, or an option that is no size."""
        if not isinstance(n.value, Poly) or is_size_like(n.value):
            return False
        op, options = self.node.op, self.node.options
        operands = self.node.inputs if op.elementwise else ()
        numbers = (options.get(h.name) for h in op.header.hypers or () if h.kind == "number")
        return any(n is found for found in (*operands, *numbers))

    def init(self, n: Num, strength: int = 0) -> str:
        return self.writer.numbers.init(n, strength)

    # --- modules, helpers, locals ---

    def module(self, constructor: str) -> str:
        node = self.node
        if node.handle is not None:
            return self.modules.handles[node.handle.instance]
        if node.instance is not None:
            return self.modules.instance(node.instance)
        return self.modules.add(node.name, self.modules.template(constructor))

    def stateless(self, name: str, constructor: str) -> str:
        return self.modules.stateless(name, constructor)

    def child(self, name: str) -> str:
        call = self.node.blocks[name]
        site = self.modules.site(call.block, call.bind, call.alias)
        self.modules.need_groups()
        return self.modules.add(self.node.name, lambda r: r.construct(site))

    def helper(self, source: str) -> str:
        # A table is made of numbers alone, once by the model: what makes it comes before what reads it.
        table = not self.node.weights and not any(isinstance(v, Value) for v in self.node.inputs)
        return self.modules.helper(source, early=table)

    def local(self, hint: str, code: Code | str) -> str:
        text = code if isinstance(code, str) else code.text
        return self.locals.share(hint, self.named_inputs(text))

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple((v.name or "y") if self.locals.uses.get(v, 0) else "" for v in self.node.outputs)

    def unpacked(self, hints: Sequence[str], code: Code | str) -> tuple[str, ...]:
        text = self.named_inputs(code if isinstance(code, str) else code.text)
        names = tuple(self.locals.own(local_name(hint)) for hint in hints)
        self.locals.line(f"{', '.join(names)} = {text}")
        return names

    # --- steps of decoding ---

    @property
    def in_steps(self) -> bool:
        return False

    @property
    def linear(self) -> str:
        return "F.linear"

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[str, str] | None:
        return None

    def newest(self, i: int) -> str:
        return self.at(i)

    # --- filling in ---

    def named_inputs(self, text: str) -> str:
        """The text with its inputs by name. They are not spent: the op itself is yet to come."""
        filled, _ = self._fill(Code(text), keep=True)
        return filled.text

    def fill(self, code: Code) -> tuple[Code, frozenset[str]]:
        """The text with its inputs in place: nested if each is read once and the line stays short, else by name; and
        the locals that it reads."""
        return self._fill(code, keep=False)

    def _fill(self, code: Code, keep: bool) -> tuple[Code, frozenset[str]]:
        known = self.locals
        counts = Counter(int(m[1]) for m in INPUT_TOKEN.finditer(code.text))
        inputs = {i: self._input(i) for i in counts}
        total = len(INPUT_TOKEN.sub("", code.text)) + sum(self._length(v) for v in inputs.values())
        texts: dict[int, Code] = {}
        for i, value in sorted(inputs.items(), key=lambda item: -self._length(item[1])):
            if value in known.pending and (counts[i] > 1 or keep or total > LONG):
                total -= self._length(value)
                texts[i] = Code(known.named(value))
        reads = frozenset[str]().union(*(known.reads_of(v) for v in inputs.values()))
        for i, value in inputs.items():
            if not keep:
                known.spend(value)
            if i not in texts:
                texts[i] = known.pending[value].code if value in known.pending else Code(known.bound[value])
        for value in inputs.values():
            known.pending.pop(value, None)
        text = INPUT_TOKEN.sub(lambda m: texts[int(m[1])].within(int(m[2])), code.text)
        # Heads that were moved forward to be looked at and are moved back: nothing happened.
        return Code(text.replace(".transpose(1, 2).transpose(1, 2)", ""), code.strength), reads

    def _input(self, i: int) -> Value:
        value = self.node.inputs[i]
        assert isinstance(value, Value)
        return value

    def _length(self, value: Value) -> int:
        if value in self.locals.pending:
            return len(self.locals.pending[value].code.text)
        return len(self.locals.bound.get(value, ""))


class ConstructorScope:
    """Only the constructor of a shared primitive is wanted, in its owner's names: `forward` is written where it is
    used."""

    output_names = ("y",)

    def __init__(self, modules: Modules, names: Mapping[str, Expr]) -> None:
        self.modules = modules
        self.names = names
        self.constructor = ""

    def arg(self, i: int) -> str:
        return "x"

    def at(self, i: int) -> str:
        return "x"

    def operand(self, i: int, strength: int) -> str:
        return "x"

    def has(self, i: int) -> bool:
        return False

    def mask(self, i: int) -> tuple[str, str]:
        return "", ""

    def number(self, n: Num, strength: int = 0) -> str:
        return "0"

    def init(self, n: Num, strength: int = 0) -> str:
        return self.modules.numbers.init(n.outward(self.names), strength)

    def size(self, i: int, axis: int) -> str:
        return "0"

    def module(self, constructor: str) -> str:
        self.constructor = constructor
        return "module"

    def stateless(self, name: str, constructor: str) -> str:
        return name

    def helper(self, source: str) -> str:
        return self.modules.helper(source)

    def local(self, hint: str, code: Code | str) -> str:
        return hint

    def unpacked(self, hints: Sequence[str], code: Code | str) -> tuple[str, ...]:
        return tuple(hints)

    in_steps = False
    linear = "F.linear"

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[str, str] | None:
        return None

    def newest(self, i: int) -> str:
        return "x"

    def device(self) -> str:
        return "device"

    def dtype(self) -> str:
        return "dtype"

    def child(self, name: str) -> str:
        return name
