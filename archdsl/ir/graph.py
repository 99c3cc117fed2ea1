"""The IR: a model is blocks, a block is a small dataflow graph of primitives and calls of blocks.

Each distinct block (its body and its sizes) exists once, whatever the depth: a `LoopNode` repeats calls of it, and
every analysis is memoized by block.  Names, spans and the spelling of sizes survive to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from archdsl.diagnostics.source import Span
from archdsl.frozen import Entity
from archdsl.ir.dims import Expr, Num, Shape, Symbol

if TYPE_CHECKING:
    from archdsl.ir.op import Primitive
    from archdsl.ir.static import Pattern, SharedModule
    from archdsl.syntax import ast

INTEGERS = ("int", "token", "documents")
BOOLEANS = ("bool", "padding")
FLOATS = ("float", "float32", "bfloat16")


class Value(Entity):
    """A tensor. `dtype` is `float` (the model's own), `float32`, `bfloat16`, `int`, `bool`, or the kind of a model's
    input: `token`, `padding`, `documents`. `name` is what the spec calls it, or ''."""

    shape: Shape
    dtype: str = "float"
    name: str = ""
    span: Span | None = None
    user_named: bool = False
    """Whether the user bound this name in a body (and not the library in an inline one)."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_int(self) -> bool:
        return self.dtype in INTEGERS

    @property
    def is_bool(self) -> bool:
        return self.dtype in BOOLEANS

    def __str__(self) -> str:
        return f"%{self.name or id(self)}"


class Init(Entity):
    """How a weight is drawn. `graph` is an expression over draws, `indices` and numbers whose one output has the
    weight's shape; or a named scheme with numbers, of which the shape of the weight decides the rest."""

    scheme: str = "default"
    numbers: Mapping[str, Num] = field(default_factory=dict)
    graph: Graph | None = None

    @property
    def key(self) -> Hashable:
        return (
            self.scheme,
            tuple((k, n.value) for k, n in self.numbers.items()),
            None if self.graph is None else id(self.graph),
        )


class Weight(Entity):
    """A weight of a primitive: `path step.name` is its key. `kind` tells initialization what it is: `matrix`,
    `embedding`, `bias`, `gain` (of a norm) or `raw`. A buffer (`trained=False`) that is `saved` belongs to the state,
    not to the count."""

    name: str
    shape: Shape
    kind: str = "matrix"
    init: Init = field(default_factory=Init)
    trained: bool = True
    saved: bool = True
    fan_in: Num | None = None
    fan_out: Num | None = None
    dtype: str = "float"
    """`float`: the model's own; or `int64`, `bool`."""
    told: bool = False
    """Whether the emitted module must be told how to draw it, because what torch's own module does is not what the spec
    says."""


Input = Value | Num | None


class Reading:
    """What has inputs."""

    inputs: tuple[Input, ...]

    def tensor(self, i: int) -> Value:
        """Input i, a tensor."""
        value = self.inputs[i]
        assert isinstance(value, Value), (self, i)
        return value


class OpNode(Reading, Entity):
    """One use of a primitive. `options` are static; `name` is its step in the path of names, if it has weights."""

    op: Primitive
    options: Mapping[str, Any]
    inputs: tuple[Input, ...]
    outputs: tuple[Value, ...]
    weights: tuple[Weight, ...] = ()
    blocks: Mapping[str, CallNode] = field(default_factory=dict)
    """Blocks that the primitive applies itself (the expert of `experts`): calls for one row of their own, which stand
    in no graph. Their weights lie under the node's own step in the path of names."""
    copies: Num | None = None
    """Of `blocks`: how many sets of weights there are; `active` of them are used for each token."""
    active: Num | None = None
    axes: Mapping[str, Num] = field(default_factory=dict)
    name: str = ""
    instance: SharedModule | None = None
    """The shared primitive that this is a use of: its weights live with the instance's owner."""
    handle: Handle | None = None
    """What the block was handed where the instance's owner is another block."""
    span: Span | None = None
    kept: str = ""
    """Of a recurrence in a step of decoding: the name under which its states are kept. It begins with what is kept, and
    what it ends with is kept."""


class CallNode(Entity):
    """One use of a block. `bind` says what the block's own names are in the caller's; `inputs` are its tensors, then
    what its contexts ask for. With an `instance` the weights live with the instance's owner."""

    block: Block
    inputs: tuple[Value | None, ...]
    contexts: tuple[Value | Handle | None, ...]
    outputs: tuple[Value, ...]
    bind: Mapping[str, Expr]
    name: str = ""
    instance: SharedModule | None = None
    handle: Handle | None = None
    alias: str = ""
    """The `let`, slot or hyper-parameter that the block was first called by: what tells two classes of one block
    apart."""
    step: Block | None = None
    """Of a call that only prepares: the block that takes the steps (its `before` is the block of this call)."""
    span: Span | None = None


class LoopNode(Entity):
    """`for name in list`: iteration t runs `bodies[iterations[t]]`. `pattern` is the list as the spec writes it (`3 *
    dense + 58 * sparse`) over indices of bodies. A body's inputs are the carried values (`starts` before the first
    iteration); its outputs are theirs after the iteration, then what is emitted. `outputs` are the carried values at
    the end, then each emission of each iteration."""

    variable: str
    bodies: tuple[Graph, ...]
    iterations: tuple[int, ...]
    pattern: Pattern | None
    starts: tuple[Value, ...]
    outputs: tuple[Value, ...]
    emitted: tuple[tuple[Value, ...], ...] = ()
    span: Span | None = None


class ScanNode(Entity):
    """A recurrence along axis 1 with one set of weights. The body's inputs are the carried values, then one slice of
    each sequence; its outputs are the next carried values, then what is emitted."""

    body: Graph
    starts: tuple[Value | Num, ...]
    sequences: tuple[Value, ...]
    stacked: tuple[Value, ...]
    finals: tuple[Value, ...]
    length: Num
    span: Span | None = None
    kept: str = ""
    """As that of `OpNode`."""


class CondNode(Entity):
    """`if training`: two graphs of one set of weights."""

    then: Graph
    otherwise: Graph
    outputs: tuple[Value, ...]
    span: Span | None = None


class ParamNode(Entity):
    """`param` or `buffer`: a raw weight."""

    weight: Weight
    output: Value
    name: str
    span: Span | None = None

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.output,)


class WeightNode(Entity):
    """A weight of a shared instance, read as a tensor: what `unembed(words)` multiplies with."""

    instance: SharedModule
    weight: str
    output: Value
    span: Span | None = None

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.output,)


class CheckNode(Entity):
    """A condition on run-time sizes: `left op right`, or `left % right == 0` for what must divide."""

    op: str
    left: Num
    right: Num
    message: str
    span: Span | None = None
    outputs: tuple[Value, ...] = ()


class CausalNode(Entity):
    """`assert causal(value, ahead: n)`: proved by the causality analysis; `assume causal(…)`: taken for proved."""

    value: Value
    ahead: int
    span: Span | None = None
    assumed: bool = False
    outputs: tuple[Value, ...] = ()


class LossNode(Entity):
    """`loss name = value`: a scalar for the objective; exists in the training graph."""

    value: Value
    name: str
    span: Span | None = None
    outputs: tuple[Value, ...] = ()


# --- a step of decoding ----------------------------------------------------------------------------------------------
#
# Along the axis of time a tensor has the positions that are new in this step, or all so far: two symbols. Where one is
# made and the other read, one of these nodes stands between.


class FormNode(Entity):
    """A tensor in another form: `output` is `value` with another size along an axis."""

    value: Value
    output: Value
    axis: int
    span: Span | None = field(default=None, kw_only=True)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.output,)


class AppendNode(FormNode):
    """The new positions of `value` appended to those that are kept; `output` has all of them."""

    name: str
    role: str = ""
    """What its readers call it: `key` or `value` of attention."""
    window: int | None = None
    """How many of the last positions any reader looks at, the new one included; None where one looks at all."""


class NewestNode(FormNode):
    """The new positions of a tensor that is there for all."""


class FirstNode(FormNode):
    """The places of a tensor that stand in front of the sequence: along an axis all of them in the first step, none in
    later ones."""


class OnceNode(Entity):
    """What depends on other inputs than the sequence alone: the first step computes it and all steps read it. Its names
    are those of the graph around, whose values it may read."""

    body: Graph
    outputs: tuple[Value, ...]
    name: str = "once"
    span: Span | None = None


Node = (
    OpNode
    | CallNode
    | LoopNode
    | ScanNode
    | CondNode
    | ParamNode
    | WeightNode
    | CheckNode
    | CausalNode
    | LossNode
    | FormNode
    | OnceNode
)


class Graph(Entity):
    """A dataflow graph, in the order in which it was written (which is a topological order). Graphs inside a loop, scan
    or condition may also read the values of the graphs around them."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value | None, ...]


def node_outputs(node: Node) -> tuple[Value, ...]:
    if isinstance(node, ScanNode):
        return node.stacked + node.finals
    if isinstance(node, LoopNode):
        return node.outputs + tuple(v for iteration in node.emitted for v in iteration)
    return node.outputs


def subgraphs(node: Node) -> tuple[Graph, ...]:
    """Graphs that a node runs in the names of the same block."""
    if isinstance(node, LoopNode):
        return node.bodies
    if isinstance(node, ScanNode):
        return (node.body,)
    if isinstance(node, CondNode):
        return (node.then, node.otherwise)
    if isinstance(node, OnceNode):
        return (node.body,)
    return ()


def reads(node: Node) -> Iterable[Value]:
    """Every value a node depends on, those read by its inner graphs included (each once)."""
    return dict.fromkeys((*operands(node), *(v for graph in subgraphs(node) for v in captured(graph))))


def operands(node: Node) -> Iterator[Value]:
    """Yield the values that a node reads itself, those read in its inner graphs left out."""
    if isinstance(node, OpNode):
        yield from (v for v in node.inputs if isinstance(v, Value))
    elif isinstance(node, CallNode):
        yield from (v for v in (*node.inputs, *node.contexts) if isinstance(v, Value))
    elif isinstance(node, LoopNode):
        yield from node.starts
    elif isinstance(node, ScanNode):
        yield from (v for v in (*node.starts, *node.sequences) if isinstance(v, Value))
    elif isinstance(node, CausalNode | LossNode | FormNode):
        yield node.value


def captured(graph: Graph) -> Iterator[Value]:
    """Values of the graphs around that a graph reads."""
    own = {*graph.inputs}
    for node in graph.nodes:
        yield from (v for v in reads(node) if v not in own)
        own |= {*node_outputs(node)}
    yield from (v for v in graph.outputs if v is not None and v not in own)


class Handle(Entity):
    """A module or weight that a block is handed by its owner: `instance` (a shared block), or one of its weights."""

    instance: SharedModule
    weight: str = ""


class Context(Entity):
    """What a block is handed by the blocks around it beside its tensors (a rope table, a mask, the padding, a shared
    block's weights): an implicit input."""

    name: str
    value: Value | Handle
    source: Value | Handle | OpNode | CallNode = field(repr=False)
    """What `value` stands for: a tensor of a block around; a shared block, or a weight of it; or what an op or a shared
    block gives that callers compute, here in the names of the block."""
    bind: Mapping[str, Expr] = field(default_factory=dict)
    """Of a shared block: its own names in those of the block."""


class Condition(NamedTuple):
    """`left op right` of static sizes, where `op` is one of `==` `!=` `<` `<=` `>` `>=`. `message` is a sentence
    without numbers: what holds, and what to change where it does not."""

    left: Expr
    op: str
    right: Expr
    message: str


class Block(Entity):
    """One elaborated block: a declaration with all its hyper-parameters and the shapes of its tensors."""

    name: str
    """As declared: `mha`."""
    key: Hashable
    doc: str
    span: Span
    graph: Graph
    header: ast.Header
    tensor_names: tuple[str, ...]
    result_names: tuple[str | None, ...]
    contexts: tuple[Context, ...]
    hypers: Mapping[str, Any]
    """Every hyper-parameter's value, in the block's own names."""
    local: Mapping[str, Expr]
    """Names that the body computes from others: `head_dim = width / heads`."""
    axes: Mapping[str, Num]
    """Names of axes, bound from the tensors that arrived."""
    asserts: tuple[Condition, ...] = ()
    """Conditions on static sizes that hold and that the emitted class checks again, in the block's own names."""
    decisions: tuple[Condition, ...] = ()
    """What else was decided from static sizes while the block was elaborated, in its own names: whichever numbers these
    names stand for, the block is the same as long as all of `asserts` and `decisions` hold. `ir.conditions` says them
    in the names of the Config."""
    instances: tuple[SharedModule, ...] = ()
    """Shared blocks that live here, in order of first use."""
    library: bool = False
    copies: Num | None = None
    """Of an expert: the leading axis that all its weights have."""
    slots: Mapping[str, Any] = field(default_factory=dict)
    """Of a body of slots: what each came to, in the block's own names."""
    before: Block | None = None
    """Where a scan applies a block: the part of it that no step changes, computed once. Both parts are one class."""


class ConfigField(Entity):
    """A number of the model that the emitted code's user may set."""

    name: str
    value: Num


class Model(Entity):
    """What is compiled: the root block and its inputs by name."""

    name: str
    block: Block
    config: tuple[ConfigField, ...]
    symbols: tuple[Symbol, ...]
    context: Num | None
    doc: str
    source_name: str
    source_text: str
    diagnostics: tuple[Any, ...] = ()
    origin: Any = None
    """What it was read from, for whoever reads it again with other settings; None where it was made otherwise."""
    summaries: ClassVar[Mapping[str, Callable[[Model], str]]] = {}
    """How a model is shown as `text`, `html` and `svg`. A layer above the IR registers them (`archdsl.load`)."""

    def __repr__(self) -> str:
        if summary := self.summaries.get("text"):
            return summary(self)
        return f"<Model {self.name} of {self.source_name}>"

    def _repr_html_(self) -> str | None:
        summary = self.summaries.get("html")
        return summary(self) if summary else None

    def _repr_svg_(self) -> str | None:
        figure = self.summaries.get("svg")
        return figure(self) if figure else None

    @property
    def inputs(self) -> Iterator[tuple[str, Value]]:
        return zip(self.block.tensor_names, self.block.graph.inputs, strict=True)

    @property
    def outputs(self) -> Iterator[tuple[str | None, Value]]:
        return ((n, v) for n, v in zip(self.block.result_names, self.block.graph.outputs, strict=True) if v is not None)
