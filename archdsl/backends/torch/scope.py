"""What ops write themselves through: the TorchScope of one use, and that of a shared one's constructor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from archdsl.backends.torch.program import Bind
from archdsl.backends.torch.tree import Read, Variable, counted, is_real, py, word, words
from archdsl.ir.dims import Expr, Num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Tree

if TYPE_CHECKING:
    from archdsl.backends.torch.lower import Lowering


class TorchNodeScope:
    """The TorchScope of one node of a graph."""

    in_steps = False
    trains = True
    for_few_rows = False
    linear = "F.linear"

    def __init__(self, lowering: Lowering, node: OpNode) -> None:
        self.lowering = lowering
        self.node = node
        self.table = not node.weights and not any(isinstance(v, Value) for v in node.inputs)
        """Whether it is made of numbers alone, once by the model: what makes it comes before what reads it."""
        self.own: Tree | None = None

    @property
    def varlen(self) -> bool:
        return self.lowering.classes.varlen

    @property
    def divided(self) -> bool:
        return self.node in self.lowering.classes.divided

    # --- expressions ---

    def py(self, template: str, /, **holes: Any) -> Tree:
        tree = py(template, self._hole, **{k: self._lifted(v) for k, v in holes.items()})
        for name in words(tree):
            self.lowering.note_helper(name, self.table)
        return tree

    def _hole(self, name: str) -> Any:
        if name == "module":
            return self._module()
        if name == "inputs":
            return [self.input(i) for i in range(len(self.node.inputs)) if self.has(i)]
        if name == "axis":
            return int(self.node.options[name])
        if name in self.node.options:
            return self._lifted(self.node.options[name])
        return self.input(int(name))

    def _lifted(self, x: Any) -> Any:
        if isinstance(x, Num):
            return self._number(x)
        if isinstance(x, dict):
            return {k: self._lifted(v) for k, v in x.items()}
        return [self._lifted(v) for v in x] if isinstance(x, list | tuple) else x

    def _number(self, n: Num) -> Tree:
        return self.lowering.numbers.short(n, is_real(self.node, n))

    # --- inputs ---

    def input(self, i: int) -> Tree:
        value = self.node.inputs[i]
        if isinstance(value, Num):
            return self.lowering.numbers.short(value, is_real(self.node, value))
        assert value is not None, (self.node.op.name, i)
        return self.lowering.read(value)

    def has(self, i: int) -> bool:
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def mask(self, i: int) -> tuple[str, Tree | None]:
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        if not isinstance(value, Value):
            return "", None
        if value in self.lowering.elided:
            return "causal", None
        for context, kind in zip(self.lowering.block.contexts, self.lowering.kinds, strict=True):
            if context.value is value and kind == "either":
                return "either", self.input(i)
        return "tensor", self.input(i)

    def causal(self, mask: Tree) -> Tree | None:
        return None

    def like(self) -> Tree:
        for i, value in enumerate(self.node.inputs):
            if isinstance(value, Value):
                return self.input(i)
        return self.lowering.any_tensor()

    def device(self) -> Tree:
        return py("{x}.device", x=self.like())

    def dtype(self) -> Tree:
        for i, value in enumerate(self.node.inputs):
            if isinstance(value, Value) and value.dtype == "float":
                return py("{x}.dtype", x=self.input(i))
        return self.lowering.own_type()

    # --- modules, functions, locals ---

    def _module(self) -> Tree:
        """The node's own submodule, made under its step in the path of names."""
        node, modules = self.node, self.lowering.modules
        if node.handle is not None:
            return Read(modules.handles[node.handle.instance])
        if node.instance is not None:
            return modules.instance(node.instance)
        if self.own is None:
            grouped = self.lowering.grouped
            made = node.op.torch_grouped_module(node, self) if grouped else node.op.torch_module(node, self)
            self.own = modules.add(node.name, made)
        return self.own

    def stateless(self, name: str, constructor: Tree) -> Tree:
        return self.lowering.modules.stateless(name, constructor)

    def child(self, name: str) -> Tree:
        call = self.node.blocks[name]
        return self.lowering.modules.add(self.node.name, self.lowering.modules.made(call.block, call.bind, call.alias))

    def let(self, hint: str, tree: Tree) -> Tree:
        return self.lowering.shared(hint, tree)

    def unpack(self, hints: Sequence[str], tree: Tree, note: str = "") -> tuple[Tree, ...]:
        targets = tuple(map(Variable, hints))
        self.lowering.put(Bind(targets, tree, nested=False, note=note))
        return tuple(map(Read, targets))

    def define(self, name: str, parameters: Mapping[str, str], result: Tree) -> Tree:
        self.lowering.define(name, parameters, result, self.table)
        return word(name)

    # --- positions ---

    def positions(self, length: Num, offset: Num | None = None) -> Tree:
        found = self.lowering.positions(counted(self, length, offset))
        if offset is None:
            self.lowering.counted[found] = length
        return found

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[Tree, Tree] | None:
        return None

    def varies_by_row(self, i: int) -> bool:
        return False

    def newest(self, i: int) -> Tree:
        return self.input(i)


class OwnerScope(TorchNodeScope):
    """The TorchScope of a shared primitive where it is made: its numbers are in its owner's names."""

    def __init__(self, lowering: Lowering, node: OpNode, names: Mapping[str, Expr]) -> None:
        super().__init__(lowering, node)
        self.names = names

    def _number(self, n: Num) -> Tree:
        return self.lowering.numbers.short(n.outward(self.names), is_real(self.node, n))
