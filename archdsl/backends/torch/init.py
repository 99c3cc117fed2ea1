"""Initialization as PyTorch: the statements that make an emitted module draw its weights as the spec declares.

They stand in `reset_parameters` of a class and `init_weights` of the model.  Nothing is written for what torch's own
modules do anyway.  Weights that are drawn alike share a loop where that is shorter:

    for linear in (self.q, self.k, self.v):
        nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(linear.bias)
    nn.init.normal_(self.out.weight, std=0.02 / math.sqrt(2 * self.layers))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from archdsl.backends.torch.tree import (
    OMITTED,
    Code,
    NumberLeaf,
    Part,
    PyNode,
    Read,
    Variable,
    counted,
    is_real,
    lift,
    mapped,
    py,
)
from archdsl.frozen import Frozen
from archdsl.ir.dims import Expr, Num, Var, binary, free_names, num, same_shape, whole_number
from archdsl.ir.graph import (
    Block,
    CallNode,
    Graph,
    Init,
    Model,
    OpNode,
    ParamNode,
    Value,
    Weight,
)
from archdsl.ir.op import Tree
from archdsl.ir.static import ListValue
from archdsl.ir.walk import calls_of, every_node, modules
from archdsl.ir.weights import weights_of
from archdsl.weights.initialization import (
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
from archdsl.weights.safetensors import many_matrices

DRAW_PARTS = '''
"""Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
for module in reversed([*self.modules()]):
    if reset := getattr(module, "reset_parameters", None):
        reset()
'''.strip()
"""How `init_weights` begins: parts are drawn before what they are parts of."""

# --- statements -------------------------------------------------------------------------------------------------------


class InitCall(Code, eq=True):
    """A call that draws a weight in place: `nn.init.zeros_(self.q.bias)`."""

    tree: Tree


class InitLoop(Code, eq=True):
    """`for variable in iterated:`, and what is done with each."""

    variable: Variable
    iterated: Tree
    body: tuple[Statement, ...]


Statement = InitCall | InitLoop


@cache
def _variable(hint: str) -> Variable:
    """The variable of loops that would like this name: one, so that equal loops are equal."""
    return Variable(hint)


MODULE = Read(Variable("module"))
"""Where a module is meant of which it is not settled yet what reads it."""


class InitModule(Frozen):
    """A submodule or raw weight, or a list of them if `listed`, and what is done to MODULE in its place."""

    tree: Part
    kind: str
    statements: tuple[Statement, ...]
    listed: bool = False


def init_statements(model: Model, block: Block) -> list[Statement]:
    """Statements that draw a block's weights, in its own names. None where torch draws as the spec says."""
    alike: dict[tuple[Statement, ...], list[InitModule]] = {}
    for module in _modules(block, laws_of(model)):
        alike.setdefault(module.statements, []).append(module)
    found: list[Statement] = []
    for statements, members in alike.items():
        lines = sum(map(_lines, statements))
        if not any(m.listed for m in members) and len(members) * lines <= lines + 1:
            found += [_of(m.tree, s) for m in members for s in statements]
            continue
        kinds = {m.kind for m in members}
        variable = _variable(kinds.pop() if len(kinds) == 1 else "module")
        several = tuple(PyNode("Starred", (m.tree,)) if m.listed else m.tree for m in members)
        iterated = members[0].tree if len(members) == 1 else PyNode("Tuple", (several,))
        found.append(InitLoop(variable, iterated, tuple(_of(Read(variable), s) for s in statements)))
    return found


def _lines(statement: Statement) -> int:
    """How many lines a statement takes."""
    return 1 if isinstance(statement, InitCall) else 1 + sum(map(_lines, statement.body))


def _of(module: Part | Read, statement: Statement) -> Statement:
    """A statement with a module in the place of MODULE."""
    made: Statement = mapped(statement, lambda leaf: module if leaf == MODULE else leaf)
    return made


def _modules(block: Block, laws: Laws) -> Iterator[InitModule]:
    for instance in block.instances:
        if isinstance(instance.node, OpNode):
            names = {**instance.joined, **instance.bind}
            weights = tuple(_outward(w, names) for w in instance.node.weights)
            statements = _statements(replace(instance.node, weights=weights), instance.node, block, laws)
            if statements:
                yield InitModule(Part(instance.path), instance.node.op.name, statements)
    listed: dict[str, list[InitModule | None]] = {}
    for node, step in modules(block.graph):
        in_list = step != node.name
        if isinstance(node, CallNode):  # which draws its weights itself, but has its place in the list
            if in_list:
                listed.setdefault(node.name, []).append(None)
            continue
        if isinstance(node, OpNode) and node.weights:
            module = InitModule(Part(node.name), node.op.name, _statements(node, node, block, laws))
        elif isinstance(node, ParamNode) and all(d.static for d in node.weight.shape):
            module = InitModule(Part(node.name), "weight", (_raw(node.weight),))
        else:
            continue
        if in_list:
            listed.setdefault(node.name, []).append(module)
        elif module.statements:
            yield module
    for alike in listed.values():
        first = alike[0]
        if first is not None and len(set(alike)) == 1:
            if first.statements:
                yield replace(first, listed=True)
        else:
            yield from (replace(m, tree=replace(m.tree, index=i)) for i, m in enumerate(alike) if m and m.statements)


def _outward(weight: Weight, names: Mapping[str, Expr]) -> Weight:
    """A weight of a shared primitive in the names of its owner."""
    return replace(
        weight,
        shape=tuple(d.outward(names) for d in weight.shape),
        init=Init(weight.init.scheme, {k: n.outward(names) for k, n in weight.init.numbers.items()}, weight.init.graph),
        fan_in=weight.fan_in.outward(names) if weight.fan_in is not None else None,
        fan_out=weight.fan_out.outward(names) if weight.fan_out is not None else None,
    )


def _statements(node: OpNode, key: OpNode, block: Block, laws: Laws) -> tuple[Statement, ...]:
    found: list[Statement] = []
    for weight in node.weights:
        if not weight.told:
            continue
        law = resolve(weight, laws.place(block, key, weight))
        if isinstance(law, Constant) and _is(law.value, 1 if weight.kind == "gain" else 0) and _so_anyway(weight):
            continue
        target = py(f"{{module}}.{weight.name}", module=MODULE)
        if isinstance(law, Orthogonal) and many_matrices(weight):  # each along the first axis by itself
            matrix = _variable("matrix")
            found.append(InitLoop(matrix, py("{target}.data", target=target), (InitCall(drawn(law, Read(matrix))),)))
        else:
            found.append(InitCall(drawn(law, target)))
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


def draws_real(block: Block, name: str) -> bool:
    """Whether a block or one within it draws weights by a number of this name that is not whole."""
    own = (n for info in weights_of(block) if info.block is block for n in info.weight.init.numbers.values())
    if any(n.expr == Var(name) and not isinstance(n.value, int) for n in own):
        return True
    calls = (call for node in every_node(block.graph) for call in calls_of(node))
    return any(draws_real(c.block, inner) for c in calls for inner, e in c.bind.items() if e == Var(name))


def drawn(law: Law, target: Tree) -> Tree:
    """The call that draws a weight by a law, in place."""

    def by(function: str, *args: Num | Tree, **named: Num | Tree) -> Tree:
        call = f"nn.init.{function}({{target}}, {{*args}}, {{**named}})"
        return py(call, target=target, args=[*map(_real, args)], named={k: _real(x) for k, x in named.items()})

    def gain(n: Num | None) -> dict[str, Num | Tree]:
        return {} if n is None or _is(n, 1) else {"gain": n}

    if isinstance(law, Constant):
        if _is(law.value, 0) or _is(law.value, 1):
            return by("zeros_" if _is(law.value, 0) else "ones_")
        return by("constant_", law.value)
    if isinstance(law, Normal | Uniform) and law.torch:
        return by(law.torch, **gain(law.gain))
    if isinstance(law, Normal):
        if _is(law.mean, 0):
            return by("normal_", **{} if _is(law.std, 1) else {"std": law.std})
        return by("normal_", law.mean, law.std)
    if isinstance(law, Uniform):
        return by("uniform_", _negative(law.bound), law.bound)
    if isinstance(law, TruncatedNormal):
        limit = _product(law.limit, law.std)
        return by("trunc_normal_", std=law.std, a=_negative(limit), b=limit)
    assert isinstance(law, Orthogonal)
    return by("orthogonal_", **gain(law.gain))


def _real(x: Num | Tree) -> Tree:
    """A number of a law, which is no size: of one that is not whole nothing is rounded."""
    return NumberLeaf(x.expr, x.value, real=True) if isinstance(x, Num) else x


def _negative(n: Num) -> Tree:
    return py("-{n}", n=_real(n))


def _is(n: Num, value: float) -> bool:
    return n.static and float(n) == value and not free_names(n.expr)


def _product(a: Num, b: Num) -> Num:
    made = binary("*", a, b)
    if free_names(made.expr):
        return made
    assert isinstance(made.value, int) or made.static
    return num(whole_number(made.value))  # type: ignore[arg-type]  # static


# --- raw weights ------------------------------------------------------------------------------------------------------


def empty(weight: Weight) -> Tree:
    """The tensor that a raw weight (`param`, `buffer`) is before it is drawn: `torch.empty(rank, length)`."""
    typed = {} if weight.dtype == "float" else {"dtype": py(f"torch.{weight.dtype}")}
    return py("torch.empty({*sizes}, {**typed})", sizes=_sizes(weight), typed=typed)


def _raw(weight: Weight) -> InitCall:
    """The call that draws a raw weight in place."""
    law = resolve(weight)
    if isinstance(law, Expression):
        return InitCall(py("{weight}.copy_({value})", weight=MODULE, value=_expression(law.graph, None)))
    return InitCall(drawn(law, MODULE))


def computed(weight: Weight, dtype: Tree, device: Tree) -> Tree:
    """A constant whose size only the running model knows: `torch.zeros(x.size(1), dtype=x.dtype, device=x.device)`."""
    law = resolve(weight)
    more = {"dtype": dtype, "device": device}
    if isinstance(law, Expression):
        tree, result = _expression(law.graph, device), law.graph.outputs[0]
        assert result is not None
        if weight.dtype != ("bool" if result.is_bool else "float32" if result.is_float else "int64"):  # as they come
            tree = py("{tree}.to({dtype})", tree=tree, dtype=dtype)
        if not same_shape(result.shape, weight.shape):
            tree = py("{tree}.expand({*sizes}).clone()", tree=tree, sizes=weight.shape)
        return tree
    assert isinstance(law, Constant)  # what is drawn has a size that is known
    if _is(law.value, 0) or _is(law.value, 1):
        function = "zeros" if _is(law.value, 0) else "ones"
        return py(f"torch.{function}({{*sizes}}, {{**more}})", sizes=_sizes(weight), more=more)
    return py("torch.full({shape}, {value}, {**more})", shape=weight.shape, value=law.value, more=more)


def _sizes(weight: Weight) -> Sequence[Any]:
    """The arguments of `torch.empty` and its like."""
    return weight.shape or ((),)


class _Scope:
    """The TorchScope of one op of an expression: its inputs are what was computed before."""

    def __init__(self, node: OpNode, made: Mapping[Value, Tree], device: Tree | None) -> None:
        self.node, self.made, self.place = node, made, device

    def py(self, template: str, /, **holes: Any) -> Tree:
        if holes.get("dtype") is OMITTED:  # it is copied into what has the type
            template = template.removesuffix(".to({dtype})")
        return py(template, self._hole, **holes)

    def _hole(self, name: str) -> Any:
        if name in self.node.options:
            return self._lifted(self.node.options[name])
        return self.input(int(name))

    def input(self, i: int) -> Any:
        value = self.node.inputs[i]
        return self.made[value] if isinstance(value, Value) else self._lifted(value)

    def _lifted(self, x: Any) -> Any:
        if isinstance(x, ListValue):
            return lift([*map(self._lifted, x.items)])
        return _real(x) if isinstance(x, Num) and is_real(self.node, x) else lift(x)

    def device(self) -> Any:
        return OMITTED if self.place is None else self.place

    def dtype(self) -> Any:
        return OMITTED

    def positions(self, length: Num, offset: Num | None = None) -> Tree:
        return counted(self, length, offset)


def _expression(graph: Graph, device: Tree | None) -> Tree:
    """What an expression gives, whose shape may only be one that expands to the weight's."""
    made: dict[Value, Tree] = {}
    for node in graph.nodes:
        assert isinstance(node, OpNode)
        scope: Any = _Scope(node, made, device)
        tree = node.op.torch(node, scope)
        assert isinstance(tree, Tree)
        made[node.outputs[0]] = tree
    result = graph.outputs[0]
    assert result is not None
    return made[result]
