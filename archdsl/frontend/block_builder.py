"""The frame of one block while it is being elaborated: its graph, the names of its weights, and what it needs of the
model around."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import error
from archdsl.diagnostics.source import Span
from archdsl.frontend.decisions import Decisions
from archdsl.frozen import Entity
from archdsl.ir import dims
from archdsl.ir.dims import Expr, Fn, Lit, Num, Var, substitute
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import (
    CallNode,
    CheckNode,
    Context,
    Graph,
    Handle,
    Input,
    Node,
    OpNode,
    ParamNode,
    Value,
    WeightNode,
    node_outputs,
)
from archdsl.ir.paths import safe_name
from archdsl.ir.ranges import TESTS
from archdsl.ir.static import Scheme, SharedModule, instantiate, numbers_of, static_key
from archdsl.ir.wording import MERGED, format_number, origins

if TYPE_CHECKING:
    from archdsl.frontend.base import Elaboration

BROKEN = {
    "%": "is not a multiple of",
    "==": "is not",
    "!=": "is",
    "<": "is not less than",
    "<=": "is more than",
    ">": "is not more than",
    ">=": "is less than",
}
"""What is said of a condition that does not hold."""

# --- demands on the model around --------------------------------------------------------------------------------------


class Hoisted(Entity):
    """The output of a primitive that depends on nothing but sizes, options and other demands."""

    op: str
    hint: str
    inputs: tuple[Any, ...]
    options: Mapping[str, Any]
    span: Span | None
    instance: SharedModule | None = None
    """The shared primitive that is applied (a table of relative positions for all layers)."""

    @property
    def key(self) -> Hashable:
        inputs = tuple(i.value if isinstance(i, Num) else None if i is None else i.key for i in self.inputs)
        options = () if self.instance is not None else static_key(self.options)
        return ("once", self.op, inputs, options, id(self.instance) if self.instance is not None else None)

    @property
    def numbers(self) -> Iterator[Num]:
        """Those that it is made of, in one order for all demands of a key."""
        for i in self.inputs:
            if isinstance(i, Num):
                yield i
            elif isinstance(i, Hoisted):
                yield from i.numbers
        if self.instance is None:
            yield from numbers_of(self.options)


class ModelInput(Entity):
    """The model's input of a kind (`padding`, `documents`) over the axis that one of its inputs has."""

    kind: str
    axis: DimValue
    span: Span | None

    @property
    def key(self) -> Hashable:
        return ("input", self.kind, self.axis)


class OuterValue(Entity):
    """A value of a block around."""

    value: Value

    @property
    def key(self) -> Hashable:
        return ("value", id(self.value))


class SharedUse(Entity):
    """A shared instance: the module, or one of its weights."""

    instance: SharedModule
    weight: str
    bind: Mapping[str, Expr]

    @property
    def key(self) -> Hashable:
        return ("instance", id(self.instance), self.weight)


Capture = Hoisted | ModelInput | OuterValue | SharedUse


def under_name(value: Value, name: str) -> Value:
    """A value of another block, its sizes called by a name of this one's: `table.0`."""
    shape = tuple(d.named(f"{name}.{i}") for i, d in enumerate(value.shape))
    return Value(shape, value.dtype, value.name or "tensor", value.span)


# --- the frame --------------------------------------------------------------------------------------------------------


@dataclass
class UnnamedNode:
    """A node with weights whose step in the path of names is settled when its statement ends."""

    level: list[Node]
    position: int
    base: str
    explicit: bool
    plain_linear: bool


@dataclass(eq=False)
class Iteration:
    """Names given within one iteration of a loop: the same application of another iteration has the same name."""

    names: dict[tuple[str, int], str]
    seen: dict[str, int] = field(default_factory=dict)


class BlockBuilder(Decisions):
    """One block being elaborated. `levels` are the graphs being written: the block's own, then those of loops, scans
    and conditions."""

    def __init__(self, elaborator: Elaboration, name: str, span: Span, *, root: bool = False) -> None:
        super().__init__()
        self.elaborator = elaborator
        self.name = name
        self.span = span
        self.root = root
        self.levels: list[list[Node]] = [[]]
        self.names: set[str] = set()
        self.iterations: list[Iteration] = []
        self.pending: list[UnnamedNode] = []
        self.level_of: dict[int, int] = {}
        """Which level a value was made on: it can be read there and further in."""
        self.contexts: dict[Hashable, Context] = {}
        self.demand_of: dict[int, Capture] = {}
        """How another frame may ask for the same value; none for a value of this block alone."""
        self.made: dict[Hashable, Value] = {}
        self.first_of: dict[Hashable, list[Num]] = {}
        """The numbers of what is made once, as they were spelled first."""
        self.axes: dict[str, Num] = {}
        self.tensors: set[str] = set()
        """The names of tensors that sizes are called by: `table.0`."""
        self.known: dict[str, Num] = {}
        """Hyper-parameters that are numbers."""
        self.instances: list[SharedModule] = []
        self.init: Scheme | None = None
        self.copies: Num | None = None
        """Of an expert: the leading axis of all its weights."""

    # --- graph ---

    @property
    def nodes(self) -> list[Node]:
        return self.levels[-1]

    def own(self, value: Value, level: int | None = None) -> Value:
        self.level_of[id(value)] = len(self.levels) - 1 if level is None else level
        self.elaborator.keep.append(value)
        return value

    def put(self, node: Node, level: int | None = None) -> Node:
        """Append a node to the graph (of an outer level, if said)."""
        self.elaborator.count_node(node)
        index = len(self.levels) - 1 if level is None else level
        self.levels[index].append(node)
        for value in node_outputs(node):
            self.own(value, index)
        return node

    @contextmanager
    def level(self) -> Iterator[list[Node]]:
        """A graph inside the present one."""
        nodes: list[Node] = []
        self.levels.append(nodes)
        made = dict(self.made)
        try:
            yield nodes
        finally:
            self.settle(None)
            self.levels.pop()
            self.made = {
                k: v for k, v in self.made.items() if k in made or self.level_of.get(id(v), 0) < len(self.levels)
            }

    # --- conditions ---

    def condition(self, op: str, left: Num, right: Num, message: str, span: Span) -> None:
        """Demand a relation of sizes; `%` means that right divides left. Raises E0401 where it does not hold."""
        divides = op == "%" and dims.mod(left.value, right.value) == 0
        if left.static and right.static:
            if not (divides if op == "%" else TESTS[op](left.value, right.value)):
                text = f"{message}: {format_number(left)} {BROKEN[op]} {format_number(right)}"
                raise error("E0401", text, span, labels=origins((left, right), span))
            if divides:
                self.remember(dims.Bin("%", left.expr, right.expr), "==", Lit("0"), message)
            else:
                self.decide(left.expr, op, right.expr, message)
        elif not divides and not self.is_sure(op, left, right):
            self.check_when_run(op, left, right, message, span, 0)

    def is_sure(self, op: str, left: Num, right: Num) -> bool:
        """Whether a relation of sizes holds for every input that meets the conditions so far: sizes are 1 at least."""
        if op == "%":
            return self.surely_whole(dims.div(left.value, right.value))
        if op != "<=":
            return False
        if left.value == 1 and self.surely_whole(right.value) and dims.is_above_zero(right.value):
            return True
        return isinstance(left.expr, Fn) and left.expr.name == "minimum" and right.expr in left.expr.args

    def surely_whole(self, value: dims.Value) -> bool:
        """Whether a size is whole for every input that meets the conditions so far."""
        if not isinstance(value, dims.Poly) or dims.is_size_like(value):
            return dims.is_size_like(value)
        atom = value.terms[0][0][0][0]
        if dims.of_atom(atom) == value and isinstance(atom, dims.Opaque) and atom.function in ("min", "max"):
            return all(map(self.surely_whole, atom.args))
        d = value.denominator
        return ("checked", "%", dims.mul(value, d), d) in self.made

    def check_when_run(
        self, op: str, left: Num, right: Num, message: str, span: Span, level: int | None = None
    ) -> None:
        """A condition that only the running model can decide, checked there once (in the graph of that level, if
        said)."""
        if op in ("==", "<=", ">=") and self.same(left, right, message):
            return
        known = ("checked", op, left.value, right.value)
        if known in self.made:
            return
        self.made[known] = Value((), "bool")
        self.put(CheckNode(op, left, right, message, span), level)

    # --- names of weights ---

    def allocate(self, base: str) -> str:
        """A step in the path of names that no other application of the block has."""
        return self._in_iteration(len(self.iterations) - 1, safe_name(base))

    def _in_iteration(self, depth: int, base: str) -> str:
        """The n-th application of a name in an iteration has one name in every iteration, of this loop and of the loops
        around it."""
        if depth < 0:
            return self._unique(base)
        iteration = self.iterations[depth]
        iteration.seen[base] = iteration.seen.get(base, 0) + 1
        slot = (base, iteration.seen[base])
        if slot not in iteration.names:
            iteration.names[slot] = self._in_iteration(depth - 1, base)
        return iteration.names[slot]

    def _unique(self, base: str) -> str:
        name, n = base, 1
        while name in self.names:
            n += 1
            name = f"{base}_{n}"
        self.names.add(name)
        return name

    def name_later(self, base: str, explicit: bool, plain_linear: bool) -> None:
        """The last node of the present level gets its name when the statement ends."""
        self.pending.append(UnnamedNode(self.nodes, len(self.nodes) - 1, base, explicit, plain_linear))

    def settle(self, target: str | None) -> None:
        """End of a statement: a `linear` that is alone with weights in `q = …` is called `q`."""
        pending, self.pending = self.pending, []
        if target and len(pending) == 1 and pending[0].plain_linear and not pending[0].explicit:
            pending[0].base = target
        for p in pending:
            node = p.level[p.position]
            assert isinstance(node, OpNode | CallNode)
            # The nodes are frozen for every reader; the name is only known now.
            object.__setattr__(node, "name", self.allocate(p.base))

    # --- demands ---

    def satisfy(self, demand: Capture, names: Mapping[str, Expr] | None = None) -> Value | Handle:
        """The value of a demand here: made by the frame that can, else an implicit input of this block. `names`
        rewrites a callee's demand into this frame's names."""
        if names is not None:
            demand = self._translate(demand, names)
        if isinstance(demand, OuterValue) and id(demand.value) in self.level_of:
            return demand.value
        if isinstance(demand, SharedUse) and demand.instance.owner is self:
            return self._own_instance(demand)
        if demand.key in self.made:
            return self._known(demand, self.made[demand.key])
        if demand.key in self.contexts:
            return self._known(demand, self.contexts[demand.key].value)
        if isinstance(demand, Hoisted):
            self.first_of[demand.key] = list(demand.numbers)
        if self.root or self._level(demand) is not None:
            value = self._make(demand)
            self.made[demand.key] = value
            return value
        return self._implicit(demand)

    def _known(self, demand: Capture, found: Value | Handle) -> Value | Handle:
        """What was made before, for numbers that may have been spelled otherwise."""
        if isinstance(demand, Hoisted):
            self.same_static(self.first_of[demand.key], list(demand.numbers), MERGED)
        return found

    def _translate(self, demand: Capture, names: Mapping[str, Expr]) -> Capture:
        if isinstance(demand, Hoisted):
            inputs = tuple(
                i.outward(names) if isinstance(i, Num) else None if i is None else self._translate(i, names)
                for i in demand.inputs
            )
            return replace(demand, inputs=inputs, options=instantiate(demand.options, names))
        if isinstance(demand, SharedUse):
            return replace(demand, bind={k: substitute(e, names) for k, e in demand.bind.items()})
        return demand

    def _implicit(self, demand: Capture) -> Value | Handle:
        if isinstance(demand, SharedUse) and not demand.weight:
            handle = Handle(demand.instance)
            name = demand.instance.label or demand.instance.name
            self.contexts[demand.key] = Context(demand.key, name, handle, demand)
            return handle
        if isinstance(demand, SharedUse):
            value = self.own(self._under_own_names(self._weight_value(demand)), 0)
        elif isinstance(demand, OuterValue):
            value = self.own(self._under_own_names(demand.value), 0)
        elif isinstance(demand, ModelInput):
            value = self.own(self.elaborator.model_input_value(demand), 0)
        else:
            shape, dtype = self.elaborator.once_type(self, demand)
            value = self.own(Value(shape, dtype, demand.hint, demand.span), 0)
        self.contexts[demand.key] = Context(demand.key, value.name, value, demand)
        self.demand_of[id(value)] = demand
        return value

    def _under_own_names(self, value: Value) -> Value:
        """A value of another block, its sizes under names that only this block knows from now on."""
        name = self.free_tensor(value)
        self.tensors.add(name)
        return under_name(value, name)

    def free_tensor(self, value: Value) -> str:
        """A name for a value of another block that no other tensor's sizes are called by."""
        name = value.name or "tensor"
        while name in self.tensors:
            name += "_"
        return name

    def contexts_at(self, contexts: Sequence[Context], names: dict[str, Expr]) -> tuple[Value | Handle, ...]:
        """What a callee's contexts are here; sizes that the callee knows by its context alone get their names too."""
        found = []
        for context in contexts:
            value = self.satisfy(context.recipe, names)
            if isinstance(value, Value) and isinstance(context.value, Value):
                for mine, theirs in zip(value.shape, context.value.shape, strict=True):
                    if isinstance(theirs.expr, Var) and "." in theirs.expr.name:
                        names[theirs.expr.name] = mine.expr
            found.append(value)
        return tuple(found)

    def _make(self, demand: Capture) -> Value:
        if isinstance(demand, ModelInput):
            return self.elaborator.find_model_input(demand)
        assert isinstance(demand, Hoisted), demand  # tensors and shared blocks are found by the frame that has them
        inputs: list[Input] = []
        for i in demand.inputs:
            found = i if i is None or isinstance(i, Num) else self.satisfy(i)
            assert not isinstance(found, Handle), demand.op
            inputs.append(found)
        value = self.elaborator.put_once(self, demand, inputs, self._level(demand) or 0)
        self.demand_of[id(value)] = demand
        return value

    def _level(self, demand: object) -> int | None:
        """The innermost level of this block's own tensors and shared blocks that a demand is made from; None where it
        is made from none of them, as a number is."""
        if isinstance(demand, OuterValue):
            return self.level_of.get(id(demand.value))
        if not isinstance(demand, Hoisted):
            return None
        levels = [self._level(i) for i in demand.inputs]
        if demand.instance is not None and demand.instance.owner is self:
            levels.append(0)
        return max((n for n in levels if n is not None), default=None)

    # --- shared instances ---

    def _weight_value(self, use: SharedUse) -> Value:
        node: OpNode = use.instance.node
        weight = next(w for w in node.weights if w.name == use.weight)
        names = {**use.instance.joined, **use.bind}
        shape = tuple(d.outward(names).outward(use.instance.joined) for d in weight.shape)
        return Value(shape, "float", use.instance.label or use.instance.name)

    def _own_instance(self, use: SharedUse) -> Value | Handle:
        instance = use.instance
        if not instance.path:
            # Not a name of a loop's iterations: the instance is one, however often it is applied.
            instance.path = self._unique(safe_name(instance.label or instance.name))
            instance.bind = {k: substitute(e, instance.joined) for k, e in use.bind.items()}
            self.instances.append(instance)
        if not use.weight:
            return Handle(instance)
        key = ("weight", id(instance), use.weight)
        if key not in self.made:
            value = self._weight_value(use)
            self.put(WeightNode(instance, use.weight, value), 0)
            self.made[key] = value
        return self.made[key]

    # --- results ---

    def graph(self, inputs: Sequence[Value], outputs: Sequence[Value | None]) -> Graph:
        return Graph(tuple(inputs), tuple(self.nodes), tuple(outputs))

    def param(self, node: ParamNode) -> Value:
        self.put(node)
        return node.output
