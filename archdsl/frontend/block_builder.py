"""The frame of one block while it is being elaborated: its graph, the names of its weights, and what it needs of the
model around."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from archdsl.diagnostics import Label, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.first_values import TURN, Rule, drawn, renamed
from archdsl.ir import dims
from archdsl.ir.decisions import Decisions
from archdsl.ir.dims import Expr, Fn, Lit, Num, Var, axis_name, axis_of, substitute
from archdsl.ir.graph import (
    Block,
    CallNode,
    CheckNode,
    Context,
    Graph,
    Handle,
    Node,
    OpNode,
    ParamNode,
    Value,
    WeightNode,
    node_outputs,
)
from archdsl.ir.paths import safe_name
from archdsl.ir.ranges import TESTS
from archdsl.ir.static import SharedModule
from archdsl.ir.walk import every_node, typed_at
from archdsl.ir.wording import format_number, origins
from archdsl.syntax.limits import MAX_NODES, raising

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


def handle_key(handle: Handle) -> Hashable:
    """What a shared block, or a weight of it, is known by."""
    return id(handle.instance), handle.weight


def weight_value(handle: Handle, bind: Mapping[str, Expr]) -> Value:
    """A weight of a shared block whose own names are bound, as a tensor."""
    instance = handle.instance
    weight = next(w for w in instance.node.weights if w.name == handle.weight)
    names = {**instance.joined, **bind}
    shape = tuple(d.outward(names).outward(instance.joined) for d in weight.shape)
    return Value(shape, "float", instance.label or instance.name)


class GivenUpError(Exception):
    """A model that costs more than the compiler takes. No statement after it is looked at: it would be refused too."""

    def __init__(self, message: str, limit: str, span: Span | None) -> None:
        super().__init__(message)
        self.problem = error("E0404", message, span, help=raising(limit))


class Ledger:
    """What all frames of one model enter."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        """Tensors are known by identity: while the model is built, none may be freed."""
        self.nodes = 0

    def count_node(self, node: Node) -> None:
        """Raises GivenUpError where the model becomes too large."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            text = f"the model has more than {MAX_NODES:,} operations in its distinct blocks"
            raise GivenUpError(text, "nodes", node.span)


# --- the frame --------------------------------------------------------------------------------------------------------


@dataclass
class UnnamedNode:
    """A node with weights whose step in the path of names is settled when its statement ends."""

    level: list[Node]
    position: int
    base: str
    explicit: bool
    plain_linear: bool
    name: str = ""
    """The step, where it was settled before."""


@dataclass(eq=False)
class Iteration:
    """Names given within one iteration of a loop: the same application of another iteration has the same name."""

    names: dict[tuple[str, int], str]
    seen: dict[str, int] = field(default_factory=dict)


class BlockBuilder(Decisions):
    """One block being elaborated. `levels` are the graphs being written: the block's own, then those of loops, scans
    and conditions."""

    def __init__(self, ledger: Ledger, name: str, span: Span) -> None:
        super().__init__()
        self.ledger = ledger
        self.name = name
        self.span = span
        self.levels: list[list[Node]] = [[]]
        self.names: set[str] = set()
        self.iterations: list[Iteration] = []
        self.pending: list[UnnamedNode] = []
        self.values: set[int] = set()
        """The identities of the tensors of this block."""
        self.contexts: dict[Hashable, Context] = {}
        """What it reads of the blocks around."""
        self.checked: set[Hashable] = set()
        """Conditions that the running model checks."""
        self.weights: dict[Hashable, Value] = {}
        """Weights of shared blocks that are read as tensors."""
        self.axes: dict[str, Num] = {}
        self.tensors: set[str] = set()
        """The names of tensors that sizes are called by: `table.0`."""
        self.varying: set[str] = set()
        """What has another meaning in each iteration of the loops that are being run."""
        self.own_names: set[str] = set()
        """Hyper-parameters and axes, which nothing else is called by."""
        self.known: dict[str, Num] = {}
        """Hyper-parameters that are numbers."""
        self.instances: list[SharedModule] = []
        self.taken: dict[Value, Value | None] = {}
        """What the inputs of loops are taken from."""
        self.init: tuple[Rule, ...] = ()
        """Who says how weights are drawn, the blocks around first: the last one that reaches a weight decides."""
        self.block: Block | None = None
        """The block that it became."""
        self.copies: Num | None = None
        """Of an expert: the leading axis of all its weights."""
        self.slots: Mapping[str, Any] = {}
        """What the slots of its body came to."""

    # --- graph ---

    @property
    def nodes(self) -> list[Node]:
        return self.levels[-1]

    def own(self, value: Value) -> Value:
        """Note that a tensor is one of this block."""
        self.values.add(id(value))
        self.ledger.values.append(value)
        return value

    def put(self, node: Node, level: int | None = None) -> Node:
        """Append a node to the graph (of an outer level, if said)."""
        self.ledger.count_node(node)
        self.levels[-1 if level is None else level].append(node)
        for value in node_outputs(node):
            self.own(value)
        return node

    def typed(self, value: Value, at: Span) -> list[Label]:
        """Where a tensor of real numbers came to its type, if that is not the place of the error itself."""
        nodes = every_node(Graph((), tuple(n for level in self.levels for n in level), ()))
        span = typed_at(nodes, value, self.taken) if value.is_float else None
        return [Label(span, f"{value.dtype} from here on")] if span is not None and span != at else []

    @contextmanager
    def level(self) -> Iterator[list[Node]]:
        """A graph inside the present one."""
        nodes: list[Node] = []
        self.levels.append(nodes)
        try:
            yield nodes
        finally:
            self.settle(None)
            self.levels.pop()

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
        return ("%", dims.mul(value, d), d) in self.checked

    def check_when_run(
        self, op: str, left: Num, right: Num, message: str, span: Span, level: int | None = None
    ) -> None:
        """A condition that only the running model can decide, checked there once (in the graph of that level, if
        said)."""
        if op in ("==", "<=", ">=") and self.same(left, right, message):
            return
        known = (op, left.value, right.value)
        if known in self.checked:
            return
        self.checked.add(known)
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
            name = safe_name(f"{base}_{n}")
        self.names.add(name)
        return name

    def step(self, base: str) -> str:
        """The step of a block that is about to be elaborated. What the statement applies before it is named first."""
        for p in self.pending:
            p.name = p.name or self.allocate(p.base)
        return self.allocate(base)

    def steps(self, name: str) -> tuple[str, ...]:
        """A step as it stands in paths: within a loop a number is behind it."""
        return (name, TURN) if self.iterations else (name,)

    def name_later(self, base: str, explicit: bool, plain_linear: bool, name: str = "") -> None:
        """The last node of the present level gets its name when the statement ends, if it has none yet."""
        self.pending.append(UnnamedNode(self.nodes, len(self.nodes) - 1, base, explicit, plain_linear, name))

    def settle(self, target: str | None) -> None:
        """End of a statement: a `linear` that is alone with weights in `q = …` is called `q`."""
        pending, self.pending = self.pending, []
        if target and len(pending) == 1 and pending[0].plain_linear and not pending[0].explicit:
            pending[0].base = target
        for p in pending:
            node = p.level[p.position]
            assert isinstance(node, OpNode | CallNode)
            # The nodes are frozen for every reader; the name, and what is said of it, is only known now.
            object.__setattr__(node, "name", p.name or self.allocate(p.base))
            if isinstance(node, OpNode) and node.weights:
                object.__setattr__(node, "weights", drawn(self.init, self.steps(node.name), node.weights))

    # --- the blocks around ---

    def bring(self, value: Value, called: str = "") -> Value:
        """A tensor of a block around as this block has it, its sizes under names that only this block knows."""
        if id(value) in self.values:
            return value
        return self._around(("value", id(value)), value, value, called)

    def handle(self, instance: SharedModule, bind: Mapping[str, Expr]) -> Handle:
        """A shared block as it is applied here. `bind` are its own names in those of this block."""
        if instance.owner is self:
            self._place(instance, bind)
            return Handle(instance)
        handle = Handle(instance)
        context = Context(instance.label or instance.name, handle, handle, bind)
        found = self.contexts.setdefault(handle_key(handle), context).value
        assert isinstance(found, Handle)
        return found

    def weight(self, handle: Handle, bind: Mapping[str, Expr]) -> Value:
        """A weight of a shared block, as a tensor."""
        key, instance = handle_key(handle), handle.instance
        if instance.owner is self:
            self._place(instance, bind)
            if key not in self.weights:
                self.weights[key] = weight_value(handle, bind)
                self.put(WeightNode(instance, handle.weight, self.weights[key]), 0)
            return self.weights[key]
        return self._around(key, weight_value(handle, bind), handle, bind=bind)

    def _around(
        self,
        key: Hashable,
        like: Value,
        source: Value | Handle,
        called: str = "",
        bind: Mapping[str, Expr] = MappingProxyType({}),
    ) -> Value:
        """Return the tensor that stands here for one of another block. Its sizes are named after it; no other has
        its name."""
        if key not in self.contexts:
            called = called or like.name or "tensor"
            name = called
            while name in self.tensors:
                name += "_"
            self.tensors.add(name)
            shape = tuple(d.named(axis_name(name, i)) for i, d in enumerate(like.shape))
            own = self.own(Value(shape, like.dtype, called, like.span))
            self.contexts[key] = Context(called, own, source, bind)
        found = self.contexts[key].value
        assert isinstance(found, Value)
        return found

    def contexts_at(self, contexts: Sequence[Context], names: dict[str, Expr]) -> tuple[Value | Handle, ...]:
        """What a callee reads of the blocks around, as it is here; sizes that the callee knows by such a tensor alone
        get their names too."""
        found: list[Value | Handle] = []
        for context in contexts:
            bind = {k: substitute(e, names) for k, e in context.bind.items()}
            if isinstance(context.value, Handle):
                found.append(self.handle(context.value.instance, bind))
                continue
            source = context.source
            assert isinstance(source, Value | Handle)  # nothing has moved yet
            value = self.bring(source, context.name) if isinstance(source, Value) else self.weight(source, bind)
            for mine, theirs in zip(value.shape, context.value.shape, strict=True):
                if isinstance(theirs.expr, Var) and axis_of(theirs.expr.name) is not None:
                    names[theirs.expr.name] = mine.expr
            found.append(value)
        return tuple(found)

    def path_of(self, instance: SharedModule) -> str:
        """The step of a shared block that lives here: no name of a loop's iterations, since it is one however often it
        is applied."""
        instance.path = instance.path or self._unique(safe_name(instance.label or instance.name))
        return instance.path

    def rules_of(self, instance: SharedModule, taken: Collection[str]) -> tuple[str, tuple[Rule, ...]]:
        """The step of a shared block where it lives, and the rules there as they are said here: their numbers under
        names that stand for the same in every block that the shared one is handed to."""
        owner = instance.owner
        assert isinstance(owner, BlockBuilder)
        if owner is self:
            return self.path_of(instance), self.init
        joined: dict[str, Expr] = {}
        rules = renamed(owner.init, f"{instance.label or instance.name}_", joined, taken)
        instance.joined.update(joined)
        return owner.path_of(instance), rules

    def _place(self, instance: SharedModule, bind: Mapping[str, Expr]) -> None:
        """Give a shared block that lives here its step in the path of names, at its first use."""
        if instance not in self.instances:
            self.path_of(instance)
            instance.bind = {k: substitute(e, instance.joined) for k, e in bind.items()}
            self.instances.append(instance)

    # --- results ---

    def graph(self, inputs: Sequence[Value], outputs: Sequence[Value | None]) -> Graph:
        return Graph(tuple(inputs), tuple(self.nodes), tuple(outputs))

    def param(self, node: ParamNode) -> Value:
        self.put(node)
        return node.output
