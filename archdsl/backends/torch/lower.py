"""One block: the modules that its class makes, and what its `forward` does, as trees over values of the IR."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from archdsl.backends.torch import init, lists
from archdsl.backends.torch.names import preferred
from archdsl.backends.torch.numbers import Numbers
from archdsl.backends.torch.program import Bind, Check, Conditional, Do, LayerLoop, Put, ScanLoop, Step, Suite
from archdsl.backends.torch.python import local_name
from archdsl.backends.torch.scope import OwnerScope, TorchNodeScope
from archdsl.backends.torch.tree import (
    Code,
    Made,
    NumberLeaf,
    Part,
    PyNode,
    Read,
    Variable,
    call_tree,
    leaves,
    lift,
    mapped,
    py,
    word,
    words,
)
from archdsl.frozen import Entity
from archdsl.ir import dims
from archdsl.ir.dims import Expr, Num, Var
from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    CondNode,
    Context,
    Graph,
    Handle,
    LoopNode,
    LossNode,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
    captured,
    operands,
)
from archdsl.ir.graph import Node as IrNode
from archdsl.ir.op import Tree
from archdsl.ir.signature import promoted
from archdsl.ir.static import SharedModule
from archdsl.ir.walk import module_names
from archdsl.ir.weights import weights_of
from archdsl.passes.dce import live_nodes

if TYPE_CHECKING:
    from archdsl.backends.torch.classes import Classes, ClassGroup

X = TypeVar("X")

Kind = Literal["causal", "tensor", "either"]
"""Of a context: `causal` (a mask that needs no tensor), `tensor`, or `either` where the uses of one class differ."""


LOSSES = "dict[str, Tensor] | None"
"""The type of what collects auxiliary losses."""


class Parameter(NamedTuple):
    """A parameter of `forward`: the value it is, its type, and its default ('' for none); with `rest` it is all further
    keyword arguments."""

    target: Any
    type: str
    default: str = ""
    rest: bool = False


@dataclass(eq=False)
class ClassUse:
    """A use of a class where it is instantiated: its group, the block that it is there, and the callee's names in the
    caller's. Those that read alike are equal."""

    group: ClassGroup
    block: Block
    bind: Mapping[str, Expr]
    alias: str = ""

    @cached_property
    def given(self) -> tuple[tuple[str, Expr], ...]:
        """What the names that the class reads are here."""
        return tuple((name, self.bind[name]) for name in sorted(self.group.reads) if name in self.bind)

    def _key(self) -> Hashable:
        return id(self.group), self.given, self.group.apart.get(self.block)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassUse) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


class Make(Code, eq=True):
    """`self.name = tree`."""

    name: str
    tree: Tree


InitStep = Make | Check | Do | init.InitCall | init.InitLoop


@dataclass(eq=False)
class Method:
    """A method of a class before anything has a name."""

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    steps: tuple[Step, ...] = ()
    results: tuple[Tree, ...] = ()
    hints: dict[Any, str] = field(default_factory=dict)
    """What to call values that the spec has no name for."""
    block: Block | None = None
    """The block that it is of."""
    doc: str = ""
    whole: frozenset[Value] = frozenset()
    """Parameters of which a step is given all positions: none of its sizes is read off them."""
    unread: frozenset[Value] = frozenset()
    """Parameters that no step is given."""
    gives: str = ""
    """The type of what it returns, where that is no tensor."""
    decorators: tuple[str, ...] = ()
    """Names of its decorators, outermost first."""

    @property
    def cache(self) -> Variable | None:
        """The parameter that is what steps of decoding keep."""
        return next((p.target for p in self.parameters if isinstance(p.target, Variable) and p.target.state), None)

    @property
    def losses(self) -> Variable | None:
        """The parameter that collects auxiliary losses."""
        return next((p.target for p in self.parameters if p.type == LOSSES), None)

    @property
    def returns(self) -> str:
        if self.gives:
            return self.gives
        kinds = ["None" if tree == lift(None) else "Tensor" for tree in self.results]
        return "Tensor" if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]"


PREPARE = ("prepare", "precompute")
"""What a block computes once before a scan takes its steps."""


def submodules(block: Block) -> set[str]:
    """Return the attributes that hold a block's own modules and weights."""
    parts = [block] if block.before is None else [block.before, block]
    return {name for b in parts for name in (*module_names(b.graph), *(i.path for i in b.instances))}


def method_name(block: Block, *names: str) -> str:
    """Return the first of some names for a method of a block's class that none of its submodules has: a checkpoint may
    have a layer called `step`."""
    taken = submodules(block)
    return next(name for name in names if name not in taken)


def parameter_names(method: Method) -> list[str]:
    """What the parameters of a method are called: as in the block's header, but for names of what it calls."""
    read = {*words((method.steps, method.results))}
    found: list[str] = []
    for p in method.parameters:
        base = local_name(method.hints[p.target]) if p.target in method.hints else preferred(p.target, method.hints)
        name, n = base, 1
        while name in found or name in read:
            n += 1
            name = f"{base}_{n}"
        found.append(name)
    return found


def name_of(method: Method, target: Any) -> str:
    """What a parameter of a method is called."""
    return parameter_names(method)[[p.target for p in method.parameters].index(target)]


def cache_name(method: Method) -> str:
    """What the cache is called that a method is given."""
    return name_of(method, method.cache)


class Merged(Entity):
    """A method that is two: `plain` without a cache, `step` with one."""

    method: Method
    plain: Method
    step: Method

    def given(self, part: Method) -> list[Any | None]:
        """Which parameter of one of the two each of its parameters is."""
        own = {p.target for p in part.parameters}
        first = [p.target for p in part.parameters] if part is not self.step else []
        found: list[Any | None] = [*first]
        return found + [p.target if p.target in own else None for p in self.method.parameters[len(first) :]]


class Ending(Entity):
    """What a section makes of the end of the model's `forward`, and of its beginning."""

    method: Method
    """The `forward` that it makes."""
    hidden: Value
    """What the end is made of."""
    nodes: frozenset[IrNode]
    """Those that the end is in place of."""
    losses: Variable
    """What collects auxiliary losses within."""
    before: tuple[Step, ...]
    after: Callable[[Tree], tuple[tuple[Step, ...], tuple[Tree, ...]]]
    """The end, and what it returns, given what it is made of."""


@dataclass(eq=False)
class Lowered:
    """A block as a class, in its own names."""

    block: Block
    method: Method
    init: list[InitStep] = field(default_factory=list)
    helpers: dict[str, bool] = field(default_factory=dict)
    """Names of globals that its trees read; whether what makes a table reads them, which comes first in the file."""
    functions: dict[str, tuple[Mapping[str, str], Tree]] = field(default_factory=dict)
    """Functions that ops define: parameters with their types, and what they return."""
    laws: list[tuple[str, OpNode]] = field(default_factory=list)
    """Primitives with weights, by attribute."""
    optional: dict[int, int] = field(default_factory=dict)
    """Of the contexts that may be left out: which parameter each is."""
    losses: bool = False
    """Whether `forward` collects auxiliary losses."""
    shared: list[ClassUse] = field(default_factory=list)
    """Further uses of instances that are made elsewhere."""
    before: Lowered | None = None
    """The part of the block that a scan computes once: a method `prepare` of the same class."""
    modules: Modules = field(repr=False, default=None)  # type: ignore[assignment]

    @property
    def methods(self) -> tuple[Method, ...]:
        return (self.method,) if self.before is None else (self.before.method, self.method)

    @property
    def sites(self) -> Iterator[ClassUse]:
        """The instances of other classes that it makes, in order."""
        for tree in (*(s.tree for s in self.init if isinstance(s, Make)), *self.modules.listed()):
            yield from (x.site for x in leaves(tree) if isinstance(x, Made))


def lower(classes: Classes, block: Block, kinds: Sequence[Kind] | None = None) -> Lowered:
    """The block as a class. `kinds` says which of its contexts are masks that need no tensor; None while it is not
    known yet which blocks are one class."""
    return classes.lowering(classes, block, kinds).run()


class Lowering:
    """Lowers one block, or the part of one that a scan computes once."""

    def __init__(
        self, classes: Classes, block: Block, kinds: Sequence[Kind] | None, inside: Modules | None = None
    ) -> None:
        self.classes = classes
        self.block = block
        self.kinds = kinds if kinds is not None else ["either" if is_mask(c) else "tensor" for c in block.contexts]
        self.lowered = Lowered(block, Method("forward", block=block))
        self.numbers = Numbers(block, [classes.known(block)])
        self.modules = inside or Modules(self)
        self.lowered.modules = self.modules
        self.aliases: dict[Value, Tree] = {}
        """Values that are read as something else than a local: a raw weight, an item of a list."""
        self.elided: set[Value] = set()
        """Masks that need no tensor."""
        self.steps: list[Step] = []
        self.trains = True
        """Whether there is a backward pass behind what is lowered."""
        self.counted: dict[Tree, Num] = {}
        """The locals that are 0, 1, …, and their length."""
        self.locals: dict[Tree, Tree] = {}
        """What ops have bound to locals of their own, by expression."""
        self.losses = Variable("losses")
        self.ends = Variable("ends")
        self.grouped = block.copies is not None
        """Whether every weight has a leading axis of experts."""

    # --- the whole block ---

    def run(self) -> Lowered:
        lowered, block = self.lowered, self.block
        if block.before is not None:
            self._before(block.before)
        self.parameters()
        self.asserts()
        self.graph(block.graph)
        lowered.method.steps = tuple(self.steps)
        lowered.method.results = tuple(self.read(o) for o in block.graph.outputs if o is not None)
        for instance in block.instances:
            self.modules.instance(instance)
        lowered.init += map(self.spelled_here, init.init_statements(self.classes.model, block))
        if lowered.losses:
            lowered.method.parameters.append(Parameter(self.losses, LOSSES, "None"))
        return lowered

    def _before(self, block: Block) -> None:
        """The part of the block that is computed once: its modules come first, it is a method of its own."""
        before = self.first_part(block).run()
        mine = self.lowered
        mine.before = before
        mine.init += before.init
        mine.laws += before.laws
        mine.shared += before.shared
        for name, early in before.helpers.items():
            self.note_helper(name, early)
        mine.functions.update(before.functions)

    def first_part(self, block: Block) -> Lowering:
        """What lowers the part of the block that a scan computes once."""
        first = self.classes.lowering(self.classes, block, [context_kind(c) for c in block.contexts])
        first.modules.names = self.modules.names
        first.modules.without_weights = self.modules.without_weights
        first.lowered.method.name = method_name(self.block, *PREPARE)
        return first

    def parameters(self) -> None:
        """Tensors, then what the block needs of the model around; masks that may be left out come last."""
        block, found = self.block, self.lowered.method.parameters
        optional: list[tuple[int, Parameter]] = []
        for name, value in zip(block.tensor_names, block.graph.inputs, strict=True):
            self.lowered.method.hints[value] = name
            found.append(Parameter(value, "Tensor"))
        for i, (context, kind) in enumerate(zip(block.contexts, self.kinds, strict=True)):
            if isinstance(context.value, Handle):
                handle = Variable(context.name)
                self.modules.handles[context.value.instance] = handle
                found.append(Parameter(handle, "nn.Module"))
            elif kind == "causal":
                self.elided.add(context.value)
            else:
                self.lowered.method.hints[context.value] = context.name
                shown = context_type(context, self.classes.varlen)
                if kind == "either":
                    optional.append((i, Parameter(context.value, f"{shown} | None", "None")))
                else:
                    found.append(Parameter(context.value, shown))
        if self.grouped:
            found.append(Parameter(self.ends, "Tensor"))
        for i, parameter in optional:
            self.lowered.optional[i] = len(found)
            found.append(parameter)

    def asserts(self) -> None:
        for left, op, right, message in self.block.asserts:
            named = dims.free_names(left) or dims.free_names(right)
            if (
                named and dims.is_sayable(left) and dims.is_sayable(right)
            ):  # one on numbers alone holds, or there would be no code
                a, b = self.numbers.expression(left, real=True), self.numbers.expression(right, real=True)
                self.lowered.init.append(Check(compared(a, op, b), message))

    def any_tensor(self) -> Tree:
        """A parameter that is a tensor: it knows the device."""
        return Read(self.block.graph.inputs[0])

    def always_given(self) -> Sequence[Value]:
        """Inputs that are never None."""
        return self.block.graph.inputs

    def own_type(self) -> Tree:
        """The type of the model's own numbers: that of an input, else of a weight, else of an empty buffer."""
        for value in self.always_given():
            if value.dtype == "float":
                return py("{x}.dtype", x=Read(value))
        if any(found.weight.trained for found in weights_of(self.block)):
            return py("next(self.parameters()).dtype")
        own = self.modules.stateless("own", py("nn.Buffer(torch.empty(0), persistent=False)"))
        return py("{own}.dtype", own=own)

    # --- helpers ---

    def note_helper(self, name: str, early: bool = False) -> None:
        """An expression reads a global name."""
        known = self.lowered.helpers
        known[name] = known.get(name, False) or early

    def define(self, name: str, parameters: Mapping[str, str], result: Tree, early: bool) -> None:
        self.lowered.functions[name] = (parameters, result)
        self.note_helper(name, early)

    # --- statements ---

    def put(self, step: Step) -> None:
        self.steps.append(step)

    def read(self, value: Value) -> Tree:
        return self.aliases.get(value) or Read(value)

    def named(self, value: Value) -> Tree:
        """Read a value that has a local of its own, also where it was made last."""
        for i, step in enumerate(self.steps):
            if isinstance(step, Bind) and step.targets == (value,):
                self.steps[i] = replace(step, nested=False)
        return self.read(value)

    def shared(self, hint: str, tree: Tree, nested: bool = False) -> Tree:
        """A local for an expression that ops want a name for, one for all of them."""
        if tree not in self.locals:
            target = Variable(hint)
            self.locals[tree] = Read(target)
            self.put(Bind((target,), tree, nested))
        return self.locals[tree]

    def positions(self, tree: Tree) -> Tree:
        """A local for the positions of a sequence."""
        return self.shared("positions", tree, nested=True)

    def within(self, graph: Graph, inputs: Sequence[Any], outputs: Sequence[Value]) -> Suite:
        """The statements of a graph inside others; what its ops bind is not known after it."""
        around, known = self.steps, dict(self.locals)
        self.steps = []
        self.graph(graph)
        body = Suite(tuple(inputs), tuple(self.steps), tuple(self.read(v) for v in outputs))
        self.steps, self.locals = around, known
        return body

    def graph(self, graph: Graph) -> None:
        """The statements of a graph: the block's own, or one within a loop, scan or condition."""
        nodes: Sequence[IrNode] = live_nodes(graph)
        if graph is self.block.graph:
            # Conditions speak of the inputs' sizes alone: they stand first.
            nodes = sorted(nodes, key=lambda n: not isinstance(n, CheckNode))
        for node in nodes:
            self.node(node, graph)

    def node(self, node: IrNode, graph: Graph) -> None:
        match node:
            case OpNode():
                self.op(node, graph)
            case CallNode():
                self.call(node, graph)
            case LoopNode():
                self.loop(node)
            case ScanNode():
                self.scan(node, graph)
            case CondNode():
                self.condition(node)
            case ParamNode():
                self.param(node)
            case WeightNode():
                owner = self.modules.instance(node.instance)
                self.aliases[node.output] = PyNode("Attribute", (owner, node.weight))
            case CheckNode():
                self.check(node)
            case LossNode():
                self.loss(node)
            case CausalNode():
                pass  # proved by the analysis

    # --- ops ---

    def scope(self, node: OpNode) -> TorchNodeScope:
        """What an op writes itself through."""
        return TorchNodeScope(self, node)

    def op(self, node: OpNode, graph: Graph) -> None:
        if not node.op.needs_tensor(node.options, node.inputs):
            self.elided.add(node.outputs[0])
            return
        self.note_hints(node)
        scope = self.scope(node)
        made: Tree | Sequence[Tree] | None = None
        if self.grouped and (node.weights or node.blocks):
            made = node.op.torch_grouped(node, scope, Read(self.ends))
        if made is None:
            made = self.all_rows(node, scope, graph) or node.op.torch(node, scope)
        if node.instance is None and node.weights:
            self.lowered.laws.append((node.name, node))
        self.results(node, graph, [made] if isinstance(made, Tree) else list(made))

    def all_rows(self, node: OpNode, scope: TorchNodeScope, graph: Graph) -> Tree | None:
        """Return the weight of a table that is looked up at 0, 1, … for all of its rows; None for any other node, where
        calls of modules matter, and for a result, which a caller may write to."""
        table = node.op.table(node)
        if table is None or not node.weights or self.classes.hooks or node.outputs[0] in graph.outputs:
            return None
        length = self.counted.get(scope.input(table[0]))
        if length is None or self.numbers.short(length) != self.numbers.short(table[1]):
            return None
        return scope.py(f"{{module}}.{node.weights[0].name}")

    def results(self, node: OpNode, graph: Graph, made: Sequence[Tree]) -> None:
        """The outputs of an op get what it made: a tuple of all, or one expression each."""
        weights = bool(node.weights or node.blocks)
        if len(made) == 1 and len(node.outputs) > 1:
            self.put(Bind(node.outputs, made[0], nested=False, always=weights))
            return
        for value, tree in zip(node.outputs, made, strict=True):
            self.result(value, tree, graph, node, weights and value is node.outputs[0])

    def result(
        self, value: Value, tree: Tree, graph: Graph, node: IrNode, always: bool = False, whole: bool = False
    ) -> None:
        if isinstance(tree, Read) and tree in self.locals.values():
            self.aliases[value] = tree  # it has a name already
            return
        is_output = any(o is value for o in graph.outputs) and graph is self.block.graph
        nested = is_output or not value.user_named or value.name in ("", "h")  # `h` says no more than no name
        self.put(Bind((value,), tree, nested, always, whole, self.note(value, node)))

    def note_hints(self, node: OpNode) -> None:
        """What the op calls its outputs where the spec does not; `=` is the name of the first input. What a recurrence
        reads is called so, too."""
        hints = self.lowered.method.hints
        if node.op.states(node):
            for value, tensor in zip(node.inputs, node.op.header.tensors or (), strict=False):
                if isinstance(value, Value) and value.is_float and tensor.name != "x":
                    hints.setdefault(value, tensor.name)
        for value, hint in zip(node.outputs, node.op.hints, strict=False):
            first = node.inputs[0] if node.inputs else None
            name = (first.name or hints.get(first, "")) if hint == "=" and isinstance(first, Value) else hint
            if name:
                hints[value] = name

    def note(self, value: Value, node: IrNode) -> str:
        """The shape is worth a comment where the number or order of axes changes."""
        first = next(operands(node), None)
        if not value.name or first is None:
            return ""
        if first.rank == value.rank and not (isinstance(node, OpNode) and node.op.moves_axes):
            return ""
        own = {*self.block.hypers, *self.block.local}
        twins = {name: e for name, e in self.block.local.items() if isinstance(e, Var) and e.name in own}
        sizes = [dims.substitute(d.expr, twins) for d in value.shape]
        if not all(map(dims.is_sayable, sizes)):
            return ""
        shown = (dims.expr_text(e if isinstance(e, Var) else dims.shortest(e, self.block.local)) for e in sizes)
        return f"[{', '.join(shown)}]"

    # --- calls ---

    def call(self, node: CallNode, graph: Graph) -> None:
        module: Tree
        if node.handle is not None:
            module, group = Read(self.modules.handles[node.handle.instance]), self.classes.group(node.block)
            self.lowered.shared.append(ClassUse(group, node.block, node.bind))
        elif node.instance is not None:
            module, group = self.modules.instance(node.instance), self.classes.group(node.block)
            self.lowered.shared.append(ClassUse(group, node.block, node.bind))
        else:
            called = "" if re.fullmatch(rf"{node.block.name}(_\d+)?", node.name) else node.name
            made = self.modules.made(node.step or node.block, node.bind, node.alias or called)
            module, group = self.modules.add(node.name, made), made.site.group
        args, keywords = self.arguments(node, group)
        tree = self.called(node, module, args, keywords)
        if len(node.outputs) == 1:
            self.result(node.outputs[0], tree, graph, node, always=True, whole=True)
        else:
            self.put(Bind(node.outputs, tree, nested=False, always=True, whole=True))

    def called(self, node: CallNode, module: Tree, args: list[Tree], keywords: dict[str, Tree]) -> Tree:
        """The call of a block."""
        if self.trains and node in self.classes.checkpointed:
            name = "checkpointed"
            if Read(self.losses) in (*args, *keywords.values()):
                args = [a for a in args if a != Read(self.losses)]
                keywords, name = {**keywords, "losses": Read(self.losses)}, "checkpointed_with_losses"
            self.note_helper(name)
            return call_tree(word(name), [module, *args], keywords)
        if node.step is not None:
            module = PyNode("Attribute", (module, method_name(node.step, *PREPARE)))
        return call_tree(module, args, keywords)

    def arguments(self, node: CallNode, group: ClassGroup) -> tuple[list[Tree], dict[str, Tree]]:
        """What a block is called with, in the order of its parameters: arguments, then those by name."""
        args = [self.read(tensor) for tensor in node.inputs if tensor is not None]
        optional: list[tuple[int, Tree | None]] = []
        for i, value in enumerate(node.contexts):
            if isinstance(value, Handle):
                args.append(self.modules.handed(value))
                continue
            kind = self.kind_of(node, group, i)
            if kind == "causal":
                continue
            assert value is not None
            if kind == "either":
                optional.append((i, None if value in self.elided else self.read(value)))
            else:
                args.append(self.read(value))
        if self.grouped:
            args.append(Read(self.ends))
        keywords: dict[str, Tree] = {}
        skipped = False
        for i, tree in optional:
            if tree is None:
                skipped = True
            elif skipped:
                keywords[group.parameter_names[group.latest.optional[i]]] = tree
            else:
                args.append(tree)
        if group.first.losses:
            self.lowered.losses = True
            if skipped:
                keywords[group.parameter_names[-1]] = Read(self.losses)
            else:
                args.append(Read(self.losses))
        return args, keywords

    def kind_of(self, node: CallNode, group: ClassGroup, i: int) -> Kind:
        """Of a context of the block that is called."""
        context = node.block.contexts[i]
        if node.step is not None:
            return context_kind(context)
        if self.classes.kinds_known:
            return group.kind(i)
        return "either" if is_mask(context) else "tensor"

    # --- loops, recurrences, conditions ---

    def loop(self, node: LoopNode) -> None:
        """A loop over layers: each of its bodies once, and the lists of modules that its iterations use."""
        modules = self.modules
        outer = modules.recording
        offset = Counter(m.name for m in outer or ())
        made: list[list[MadeModule]] = []
        bodies: list[Suite] = []
        around = [list(dict.fromkeys(captured(g))) for g in node.bodies]
        absent = self.absent(around)
        for graph, read in zip(node.bodies, around, strict=True):
            modules.recording = []
            self.elided -= absent & {*read}
            outputs = [o for o in graph.outputs if o is not None]
            bodies.append(self.within(graph, graph.inputs, outputs))
            self.elided |= absent & {*read}
            made.append(modules.recording)
        modules.recording = outer
        if outer is None:
            modules.lists(node, made)
        else:
            outer += [m for t in node.iterations for m in made[t]]
        pattern = node.pattern
        length: Tree = lift(len(node.iterations)) if pattern is None else self.numbers.expression(lists.length(pattern))
        self.put(
            LayerLoop(
                node.variable,
                tuple(self.read(v) for v in node.starts),
                length,
                tuple(map(self.numbers.expression, lists.counts(pattern))),
                tuple(bodies),
                node.iterations,
                pattern,
                node.outputs,
                node.emitted,
                tuple(Counter(m.name for m in each) for each in made),
                offset,
                absent,
            )
        )

    def absent(self, around: Sequence[Sequence[Value]]) -> frozenset[Value]:
        """Masks that need no tensor, where other bodies of a loop read one in their stead: what each body reads from
        around, in order, tells."""
        if len({len(values) for values in around}) > 1:
            return frozenset()
        found = (values for values in zip(*around, strict=True) if len({*values}) > 1)
        return frozenset(v for values in found for v in values if v in self.elided)

    def scan(self, node: ScanNode, graph: Graph) -> None:
        sequences = tuple(self.read(v) for v in node.sequences)
        states = node.body.inputs[: len(node.starts)]
        starts = tuple(
            self.filled(node, start, state) if isinstance(start, Num) else self.read(start)
            for start, state in zip(node.starts, states, strict=True)
        )
        outputs = [o for o in node.body.outputs if o is not None]
        body = self.within(node.body, node.body.inputs, outputs)
        collected = tuple(Variable(list_name(v)) for v in node.stacked)
        self.put(ScanLoop(starts, sequences, body, collected, node.finals))
        for value, variable in zip(node.stacked, collected, strict=True):
            self.result(value, py("torch.stack({xs}, dim=1)", xs=Read(variable)), graph, node)

    def filled(self, node: ScanNode, start: Num, state: Value) -> Tree:
        """A state that starts as a number: a tensor where the sequence is, of the model's own type or the state's."""
        sizes = tuple(self.numbers.short(d) for d in state.shape)
        like, options = self.read(node.sequences[0]), {}
        kind = promoted([state])
        if kind != promoted(node.sequences[:1]):
            known = "int64" if kind == "int" else kind
            options["dtype"] = self.own_type() if kind == "float" else py(f"torch.{known}")
        if start.value in (0, 1):
            name = "new_ones" if start.value == 1 else "new_zeros"
            return py(f"{{x}}.{name}({{*sizes}}, {{**options}})", x=like, sizes=sizes or ((),), options=options)
        value = self.numbers.short(start, real=True)
        return py("{x}.new_full({sizes}, {value}, {**options})", x=like, sizes=sizes, value=value, options=options)

    def condition(self, node: CondNode) -> None:
        """`if training`. Where all that a branch does is to add to the losses, whether they are wanted is the
        condition."""
        arms = []
        for graph in (node.then, node.otherwise):
            outputs = [o for o in graph.outputs if o is not None]
            arms.append(self.within(graph, (), outputs))
        only_loss = not node.outputs and any(isinstance(n, LossNode) for n in node.then.nodes)
        test = py("{x} is not None", x=Read(self.losses)) if only_loss else py("self.training")
        self.put(Conditional(test, arms[0], arms[1], node.outputs))

    # --- the others ---

    def param(self, node: ParamNode) -> None:
        if all(d.static for d in node.weight.shape):
            self.aliases[node.output] = self.modules.raw(node)
            return
        # A constant whose size only the running model knows is made where it is used.
        own = node.weight.dtype
        dtype = self.own_type() if own == "float" else py(f"torch.{own}")
        tree = init.computed(node.weight, dtype, py("{x}.device", x=self.any_tensor()))
        self.put(Bind((node.output,), self.spelled_here(tree), nested=False))

    def spelled_here(self, x: X) -> X:
        """An expression or statement with numbers in the block's names, each as short as it goes."""
        for name in words(x):
            self.note_helper(name)

        def shortened(leaf: Any) -> Any:
            return self.numbers.short(Num(leaf.value, leaf.expr), leaf.real) if isinstance(leaf, NumberLeaf) else leaf

        found: X = mapped(x, shortened)
        return found

    def check(self, node: CheckNode) -> None:
        left, right = (self.numbers.short(n) for n in (node.left, node.right))
        test = py("{a} % {b} == 0", a=left, b=right) if node.op == "%" else compared(left, node.op, right)
        self.put(Check(test, node.message))

    def loss(self, node: LossNode) -> None:
        self.lowered.losses = True
        losses = Read(self.losses)
        total = py("{d}.get({name}, 0) + {x}", d=losses, name=node.name, x=self.read(node.value))
        self.put(Put(py("{d}[{name}]", d=losses, name=node.name), total))


def list_name(value: Value) -> str:
    """A list of what is called `state` is `states`."""
    if not value.name:
        return "steps"
    return value.name if value.name.endswith("s") else f"{value.name}s"


def compared(a: Tree, op: str, b: Tree) -> Tree:
    """`a op b`."""
    return py(f"{{a}} {op} {{b}}", a=a, b=b)


# --- what `__init__` makes --------------------------------------------------------------------------------------------


class MadeModule(NamedTuple):
    """A module that an iteration of a loop makes: its step in the path of names, its constructor, whether it is a raw
    weight, and whether that is a buffer."""

    name: str
    constructor: Tree
    raw: bool
    buffer: bool


class Modules:
    """The modules of one block, and the statements of `__init__` that make them."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.names: set[str] = set()
        """Attributes that have a statement."""
        self.lists_meant: dict[str, list[Tree]] = {}
        """What makes each item of the lists."""
        self.instances: set[SharedModule] = set()
        self.without_weights: dict[Tree, str] = {}
        """Attributes of modules without weights, by constructor."""
        self.handles: dict[SharedModule, Variable] = {}
        """Parameters of `forward` for modules that the caller owns."""
        self.recording: list[MadeModule] | None = None
        """Within a loop: what its iteration makes, for the loop to put into lists."""

    def listed(self) -> Iterator[Tree]:
        """What makes the items of all lists."""
        for constructors in self.lists_meant.values():
            yield from constructors

    def make(self, name: str, tree: Tree) -> None:
        self.lowering.lowered.init.append(Make(name, tree))

    # --- submodules ---

    def add(self, name: str, constructor: Tree, *, raw: bool = False, buffer: bool = False) -> Part:
        """A submodule under a step of the path of names; what `forward` calls it."""
        if self.recording is not None:
            k = sum(m.name == name for m in self.recording)
            self.recording.append(MadeModule(name, constructor, raw, buffer))
            return Part(name, k)
        if name not in self.names:
            self.names.add(name)
            self.make(name, constructor)
        return Part(name)

    def stateless(self, name: str, constructor: Tree) -> Part:
        """A module without weights, one for all its uses in the block."""
        if constructor not in self.without_weights:
            attribute, n = name, 1
            taken = {*self.without_weights.values(), *submodules(self.lowering.block)}
            while attribute in taken:
                n += 1
                attribute = f"{name}_{n}"
            self.without_weights[constructor] = attribute
            self.make(attribute, constructor)
        return Part(self.without_weights[constructor])

    def made(self, block: Block, bind: Mapping[str, Expr], alias: str) -> Made:
        """The class of a block, instantiated here."""
        group = self.lowering.classes.group(block)
        return Made(ClassUse(group, block, {**group.absent, **bind}, alias))

    def lists(self, node: LoopNode, made: Sequence[Sequence[MadeModule]]) -> None:
        """The lists of all modules of one name, in the order of iterations."""
        for name in dict.fromkeys(m.name for each in made for m in each):
            if name not in self.names:
                self.names.add(name)
                mine = [[m for m in each if m.name == name] for each in made]
                self.lists_meant[name] = [m.constructor for t in node.iterations for m in mine[t]]
                self.make(name, self._list(node, mine))

    def _list(self, node: LoopNode, made: Sequence[Sequence[MadeModule]]) -> Tree:
        kind = "nn.ModuleList"
        if any(m.raw for each in made for m in each):
            kind = "nn.ParameterList"
        if any(m.buffer for each in made for m in each):
            kind = "Tensors"
            self.lowering.note_helper(kind)
        if node.pattern is not None:
            makers = [[m.constructor for m in each] for each in made]
            return lists.modules_tree(kind, node.pattern, makers, self.lowering.numbers.expression)
        return lists.listed(kind, [m.constructor for t in node.iterations for m in made[t]])

    # --- shared blocks ---

    def instance(self, instance: SharedModule) -> Part:
        """The module of a shared block that lives here."""
        part = Part(instance.path)
        if instance in self.instances:
            return part
        self.instances.add(instance)
        if instance.block is not None:
            alias = instance.template.alias or instance.label
            self.make(instance.path, self.made(instance.block, dict(instance.bind), alias))
            return part
        node = instance.node
        scope = OwnerScope(self.lowering, node, {**instance.joined, **instance.bind})
        self.lowering.lowered.laws.append((instance.path, node))
        self.make(instance.path, node.op.torch_module(node, scope))
        return part

    def handed(self, handle: Handle) -> Tree:
        """What `forward` calls a shared block: a parameter where another block owns it."""
        if handle.instance in self.handles:
            return Read(self.handles[handle.instance])
        return self.instance(handle.instance)

    # --- raw weights ---

    def raw(self, node: ParamNode) -> Part:
        """A raw weight; what `forward` calls it."""
        weight, name = node.weight, node.name
        tree = self.lowering.spelled_here(init.empty(weight))
        if weight.trained:
            return self.add(name, py("nn.Parameter({x})", x=tree), raw=True)
        aside = {} if weight.saved else {"persistent": False}
        if self.recording is not None:
            return self.add(name, py("nn.Buffer({x}, {**aside})", x=tree, aside=aside), raw=True, buffer=True)
        made = py("self.register_buffer({name}, {x}, {**aside})", name=name, x=tree, aside=aside)
        self.lowering.lowered.init.append(Do(made))
        return Part(name)


# --- contexts ---------------------------------------------------------------------------------------------------------


def context_kind(context: Context) -> Kind:
    """What a context is in this one block."""
    source = context.source
    if isinstance(source, OpNode) and not source.op.needs_tensor(source.options, source.inputs):
        return "causal"
    return "tensor"


def is_mask(context: Context) -> bool:
    """Whether a context is a mask that may come without a tensor."""
    return isinstance(context.source, OpNode) and context.source.op.is_mask(context.source.options)


def context_type(context: Context, varlen: bool) -> str:
    """What a context is annotated with."""
    source = context.source
    return source.op.result_type(source.options, varlen) if isinstance(source, OpNode) else "Tensor"


__all__ = ["ClassUse", "Lowered", "Lowering", "Parameter", "lower"]
