"""Initialisation as PyTorch: the statements that make an emitted module draw its weights as the spec declares.

Nothing is written for what torch's own modules do anyway.  Modules that are drawn alike share a loop where that is
shorter:

    for linear in (self.q, self.k, self.v):
        nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(linear.bias)
    nn.init.normal_(self.out.weight, std=0.02 / math.sqrt(2 * config.layers))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from archdsl.analyses.init import (
    Constant,
    Expression,
    Law,
    Laws,
    Normal,
    Orthogonal,
    TruncatedNormal,
    Uniform,
    laws_of,
    resolve,
)
from archdsl.ir.dims import Expr, Num, binary, free_names, num, same_shape, whole_number
from archdsl.ir.graph import (
    Block,
    CallNode,
    CondNode,
    Graph,
    Init,
    LoopNode,
    Model,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    Weight,
)
from archdsl.ir.op import ATOM, TIMES, UNARY, Code
from archdsl.lower.weights import many_matrices


class Number(Protocol):
    """A static number as text that may stand beside operators of a strength."""

    def __call__(self, n: Num, strength: int = 0, /) -> str: ...


# --- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Module:
    """A submodule, or with a star a list of them, and what is done to its weights: lines with `{}` for the module."""

    text: str
    kind: str
    lines: tuple[str, ...]


def init_statements(model: Model, block: Block, number: Number) -> list[str]:
    """Lines for the end of a block's `__init__`, in its own names. Empty where torch draws as the spec says."""
    alike: dict[tuple[str, ...], list[Module]] = {}
    for module in _modules(block, laws_of(model), number):
        alike.setdefault(module.lines, []).append(module)
    found: list[str] = []
    for lines, modules in alike.items():
        listed = any(m.text.startswith("*") for m in modules)
        if not listed and len(modules) * len(lines) <= len(lines) + 1:
            found += [line.format(m.text) for m in modules for line in lines]
            continue
        kinds = {m.kind for m in modules}
        variable = kinds.pop() if len(kinds) == 1 else "module"
        texts = [m.text for m in modules]
        iterated = texts[0].lstrip("*") if len(texts) == 1 else f"({', '.join(texts)})"
        found.append(f"for {variable} in {iterated}:")
        found += [f"    {line.format(variable)}" for line in lines]
    return found


def _modules(block: Block, laws: Laws, number: Number) -> Iterator[Module]:
    for instance in block.instances:
        if isinstance(instance.node, OpNode):
            names = {**instance.joined, **instance.bind}
            weights = tuple(_outward(w, names) for w in instance.node.weights)
            lines = _lines(replace(instance.node, weights=weights), instance.node, block, laws, number)
            if lines:
                yield Module(f"self.{instance.path}", instance.node.op.name, lines)
    listed: dict[str, list[Module | None]] = {}
    for node, in_list in _nodes(block.graph, False):
        if isinstance(node, CallNode):  # which draws its weights itself, but has its place in the list
            if in_list:
                listed.setdefault(node.name, []).append(None)
            continue
        module = Module(f"self.{node.name}", node.op.name, _lines(node, node, block, laws, number))
        if in_list:
            listed.setdefault(node.name, []).append(module)
        elif module.lines:
            yield module
    for modules in listed.values():
        first = modules[0]
        if first is not None and len(set(modules)) == 1:
            if first.lines:
                yield replace(first, text=f"*{first.text}")
        else:
            yield from (replace(m, text=f"{m.text}[{i}]") for i, m in enumerate(modules) if m is not None and m.lines)


def _nodes(graph: Graph, in_list: bool) -> Iterator[tuple[OpNode | CallNode, bool]]:
    """The primitives and blocks with weights of their own, once for each turn of a loop; whether they stand in a list
    of modules."""
    for node in graph.nodes:
        if isinstance(node, CallNode):
            if node.instance is None:
                yield node, in_list
        elif isinstance(node, OpNode):
            if node.instance is None and node.weights:
                yield node, in_list
        elif isinstance(node, LoopNode):
            for turn in node.turns:
                yield from _nodes(node.bodies[turn], True)
        elif isinstance(node, ScanNode):
            yield from _nodes(node.body, in_list)
        elif isinstance(node, CondNode):
            yield from _nodes(node.then, in_list)
            yield from _nodes(node.otherwise, in_list)


def _outward(weight: Weight, names: Mapping[str, Expr]) -> Weight:
    """A weight of a shared primitive in the names of its owner."""
    return replace(
        weight,
        shape=tuple(d.outward(names) for d in weight.shape),
        init=Init(weight.init.scheme, {k: n.outward(names) for k, n in weight.init.numbers.items()}, weight.init.graph),
        fan_in=weight.fan_in.outward(names) if weight.fan_in is not None else None,
        fan_out=weight.fan_out.outward(names) if weight.fan_out is not None else None,
    )


def _lines(node: OpNode, key: OpNode, block: Block, laws: Laws, number: Number) -> tuple[str, ...]:
    found: list[str] = []
    for weight in node.weights:
        if not weight.told:
            continue
        law = resolve(weight, laws.place(block, key, weight))
        if isinstance(law, Constant) and _is(law.value, 1 if weight.kind == "gain" else 0) and _so_anyway(weight):
            continue
        found += statement(law, f"{{}}.{weight.name}", number, many_matrices(weight)).split("\n")
    return tuple(found)


def _so_anyway(weight: Weight) -> bool:
    """Whether torch's norms start there by themselves."""
    return weight.kind == "gain" or (weight.kind == "bias" and weight.fan_in is None)


def law_key(model: Model, block: Block, node: OpNode | ParamNode) -> str:
    """Equal for two nodes whose weights are drawn alike: blocks that differ in it cannot be one class."""
    if isinstance(node, ParamNode) or not any(w.init.scheme in ("depth_scaled", "deepnorm") for w in node.weights):
        return ""
    laws = laws_of(model)
    places = [laws.place(block, node, w) for w in node.weights]
    return " ".join(f"{p.ends_branch:d}{p.query_key:d}" for p in places)


def statement(law: Law, text: str, number: Number, matrices: bool = False) -> str:
    """The statement that draws a weight by a law, in place; `matrices`: each along the first axis by itself."""
    if isinstance(law, Constant):
        if _is(law.value, 0) or _is(law.value, 1):
            return f"nn.init.{'zeros' if _is(law.value, 0) else 'ones'}_({text})"
        return f"nn.init.constant_({text}, {number(law.value)})"
    if isinstance(law, Normal | Uniform) and law.torch:
        gain = "" if law.gain is None or _is(law.gain, 1) else f", gain={number(law.gain)}"
        return f"nn.init.{law.torch}({text}{gain})"
    if isinstance(law, Normal):
        if _is(law.mean, 0):
            return f"nn.init.normal_({text}, std={number(law.std)})"
        return f"nn.init.normal_({text}, {number(law.mean)}, {number(law.std)})"
    if isinstance(law, Uniform):
        return f"nn.init.uniform_({text}, -{number(law.bound, UNARY)}, {number(law.bound)})"
    if isinstance(law, TruncatedNormal):
        limit = _product(law.limit, law.std)
        ends = f"a=-{number(limit, UNARY)}, b={number(limit)}"
        return f"nn.init.trunc_normal_({text}, std={number(law.std)}, {ends})"
    assert isinstance(law, Orthogonal)
    gain = "" if _is(law.gain, 1) else f", gain={number(law.gain)}"
    if matrices:
        return f"for matrix in {text}.data:\n    nn.init.orthogonal_(matrix{gain})"
    return f"nn.init.orthogonal_({text}{gain})"


def _is(n: Num, value: float) -> bool:
    return n.static and float(n) == value and not free_names(n.expr)


def _product(a: Num, b: Num) -> Num:
    made = binary("*", a, b)
    if free_names(made.expr):
        return made
    assert isinstance(made.value, int) or made.static
    return num(whole_number(made.value))  # type: ignore[arg-type]  # static


# --- raw weights ------------------------------------------------------------------------------------------------------


def first_value(weight: Weight, number: Number, helpers: dict[str, str], device: str = "") -> str:
    """The tensor that a raw weight (`param`, `buffer`) starts as: `torch.zeros(width)`, `torch.randn(rank, length) *
    0.02`.

    Helpers of ops go to `helpers`; with `device` the tensor is made there."""
    law = resolve(weight)
    sizes = [number(d) for d in weight.shape]
    there = f", device={device}" if device else ""
    shape = ", ".join(sizes) if sizes else "()"
    if isinstance(law, Expression):
        return _expression(law.graph, weight, number, helpers, device)
    if isinstance(law, Constant):
        typed = f", dtype=torch.{weight.dtype}" if weight.dtype != "float" else ""
        if _is(law.value, 0) or _is(law.value, 1):
            return f"torch.{'zeros' if _is(law.value, 0) else 'ones'}({shape}{typed}{there})"
        value = number(law.value)
        if not typed and isinstance(law.value.value, int):
            # torch.full makes integers of an integer
            value = f"float({value})" if free_names(law.value.expr) else f"{law.value.value}.0"
        return f"torch.full({_tuple(sizes)}, {value}{typed}{there})"
    if isinstance(law, Normal) and not law.torch and _is(law.mean, 0):
        text = f"torch.randn({shape}{there})"
        return text if _is(law.std, 1) else f"{text} * {number(law.std, TIMES + 1)}"
    empty = f"torch.empty({shape}{there})"
    if isinstance(law, Uniform) and not law.torch:
        return f"{empty}.uniform_(-{number(law.bound, UNARY)}, {number(law.bound)})"
    return statement(law, empty, number)


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


UNSAID = "\0"
"""A device or type that `__init__` need not name."""


class _Scope:
    """The TorchScope of one op of an expression: its inputs are the texts of what was computed before."""

    output_names = ("y",)

    def __init__(
        self, node: OpNode, texts: Mapping[int, Code], number: Number, helpers: dict[str, str], device: str
    ) -> None:
        self.node, self.texts, self.write, self.helpers, self.place = node, texts, number, helpers, device

    def arg(self, i: int) -> str:
        return self.operand(i, 0)

    def at(self, i: int) -> str:
        return self.operand(i, ATOM)

    def operand(self, i: int, strength: int) -> str:
        value = self.node.inputs[i]
        if isinstance(value, Num):
            return self.write(value, strength)
        return self.texts[id(value)].within(strength)

    def has(self, i: int) -> bool:
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def number(self, n: Num, strength: int = 0) -> str:
        return self.write(n, strength)

    def init(self, n: Num, strength: int = 0) -> str:
        return self.write(n, strength)

    def size(self, i: int, axis: int) -> str:
        value = self.node.inputs[i]
        assert isinstance(value, Value)
        return self.write(value.shape[axis])

    def helper(self, source: str) -> str:
        found = re.search(r"^(?:def|class) (\w+)", source.strip(), re.MULTILINE)
        assert found is not None
        self.helpers.setdefault(found[1], source)
        return found[1]

    def device(self) -> str:
        return self.place or UNSAID

    def dtype(self) -> str:
        return UNSAID


def _expression(graph: Graph, weight: Weight, number: Number, helpers: dict[str, str], device: str) -> str:
    texts: dict[int, Code] = {}
    for node in graph.nodes:
        assert isinstance(node, OpNode)
        scope: Any = _Scope(node, texts, number, helpers, device)
        made = node.op.torch(node, scope)
        assert isinstance(made, str | Code)
        texts[id(node.outputs[0])] = made if isinstance(made, Code) else Code(made)
    result = graph.outputs[0]
    assert result is not None
    code = texts[id(result)]
    if weight.dtype == "float" and not result.is_float:
        code = Code(f"{code.within(ATOM)}.float()")
    if not same_shape(result.shape, weight.shape):
        code = Code(f"{code.within(ATOM)}.expand({', '.join(number(d) for d in weight.shape)}).clone()")
    return re.sub(rf", (?:dtype|device)={UNSAID}", "", code.text)
