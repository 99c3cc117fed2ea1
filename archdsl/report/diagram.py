"""A model as a drawing: boxes, the groups they stand in, and arrows along the data.

What is drawn is what a figure of a paper would show. A block of the library is one box with the sizes it was given; a
block of the spec is a group, as deep as the drawing stays readable; a stack of layers is a group that says how often it
is repeated. Ops that only move, cast or drop numbers, masks, tables of positions and checks are not drawn: arrows go
through them. Each box knows its share of the parameters, or of another measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import groupby
from typing import Any, Literal

from archdsl.diagnostics import error
from archdsl.estimates.kinds import ATTENTION
from archdsl.estimates.mask_density import looks_back
from archdsl.frozen import Frozen
from archdsl.ir.dims import Num
from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    CondNode,
    Graph,
    LoopNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
    subgraphs,
)
from archdsl.ir.masks import RULES, Mask
from archdsl.ir.walk import nodes_below
from archdsl.ir.wording import one_of
from archdsl.report.shares import Claim, Measure, Parameters, Shares, amounts
from archdsl.report.written import (
    constant_text,
    headed,
    number_text,
    options_text,
    shape_text,
    written,
)

# --- the drawing ------------------------------------------------------------------------------------------------------

Role = Literal["input", "output", "attention", "experts", "norm", "weights", "sum", "op", "state"]
Sees = Literal["", "all", "before", "near", "near before"]
"""Which keys the queries of attention see; '' of what is no attention."""
Mark = Literal["", "+", "-", "~"]
"""Of two models side by side: what was added, removed, changed."""


@dataclass
class Box:
    """One box; `sum` is a small circle with a sign in it for a name."""

    id: str
    role: Role
    name: str
    details: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    weight: float = 0.0
    """Its share of the whole, in parts of it: of parameters, unless something else was measured."""
    sees: Sees = ""
    nodes: set[int] = field(default_factory=set)
    """What it stands for, by identity: nodes and shared modules."""
    mark: Mark = ""

    @property
    def title(self) -> str:
        """Its name as it stands in the box; those of tensors are the spec's own."""
        return self.name if self.role in ("input", "output", "state") else headed(self.name)

    @property
    def lines(self) -> list[str]:
        """All that it says, its title first."""
        return [self.title, *self.details]


@dataclass
class BoxGroup:
    """Boxes within a frame that has a title, and says how often it is repeated."""

    id: str
    title: str
    times: int = 1
    parts: list[Box | BoxGroup] = field(default_factory=list)
    nodes: set[int] = field(default_factory=set)
    """The call or the graph that it shows."""
    mark: Mark = ""

    @property
    def label(self) -> str:
        """Title and repetition in one: `Layer × 12`."""
        return f"{self.title} × {self.times:,}".lstrip() if self.times > 1 else self.title

    def groups(self) -> Iterator[BoxGroup]:
        """Yield every group below it."""
        for part in self.parts:
            if isinstance(part, BoxGroup):
                yield part
                yield from part.groups()

    def boxes(self) -> Iterator[Box]:
        """Every box in the group and in those within it."""
        for part in self.parts:
            if isinstance(part, Box):
                yield part
            else:
                yield from part.boxes()


class Arrow(Frozen):
    """Where data goes, by ids of boxes."""

    source: str
    target: str
    label: str = ""
    size: str = ""
    """The last axis of what goes into a frame, where it goes in."""


@dataclass
class Diagram:
    """A drawing; `root` is the page itself and has no frame."""

    root: BoxGroup
    arrows: list[Arrow]
    measured: float = 0.0
    """What all boxes together stand for."""
    closed: list[Block] = field(default_factory=list)
    """Blocks of the spec that are one box because their own boxes would be too many: one of each name."""


MOST = 40
"""Boxes on a drawing; with more, the deepest groups are closed."""
DEEPEST = 3
"""Blocks of the spec within each other that are opened."""
DISTINCT = 3
"""Layers of a stack that are drawn apart; with more that differ in sizes alone, the first stands for all."""

SIGNS = {"+": "+", "-": "−", "*": "×", "/": "÷", "//": "//", "%": "mod", "**": "^"}


def diagram(drawn: Model | Block, depth: int = DEEPEST, measure: Measure | None = None) -> Diagram:
    """The drawing of a model or of one block, as deep as it may have without more than `MOST` boxes."""
    return next(drawings(drawn, depth, measure))


def drawings(drawn: Model | Block, depth: int = DEEPEST, measure: Measure | None = None) -> Iterator[Diagram]:
    """Yield the drawings of no more than `MOST` boxes, the deepest first."""
    measure = measure or Parameters()
    for level in range(depth, -1, -1):
        found = _draw(drawn, level, measure)
        if level and sum(1 for _ in found.root.boxes()) > MOST:
            continue
        _contract(found, MOST)
        yield found


def block_of(model: Model, name: str) -> Block:
    """The first block of that name in a model. Raises ArchError (E0210) where it has none."""
    blocks = {n.block.name: n.block for n in reversed([*nodes_below(model.block.graph)]) if isinstance(n, CallNode)}
    if name not in blocks:
        raise error("E0210", f"{model.name} applies no block `{name}`", help=one_of(name, blocks, "it has"))
    return blocks[name]


def _draw(drawn: Model | Block, depth: int, measure: Measure) -> Diagram:
    pen = _Pen(depth, measure)
    root = BoxGroup("page", drawn.name)
    block = drawn if isinstance(drawn, Block) else drawn.block
    env: dict[int, Source] = {}
    for name, value in zip(block.tensor_names, block.graph.inputs, strict=False):
        box = pen.box(root, "input", [name, shape_text(value)])
        env[id(value)] = (box.id,)
    pen.graph(block.graph, env, root, 0)
    outputs = [(n, v) for n, v in zip(block.result_names, block.graph.outputs, strict=False) if v is not None]
    for i, (told, value) in enumerate(outputs):
        title = told or ("output" if len(outputs) == 1 else f"output {i + 1}")
        box = pen.box(root, "output", [title, shape_text(value)])
        pen.arrows += [Arrow(s, box.id) for s in pen.sources(env, value, root)]
    found = _tidy(Diagram(root, pen.arrows, closed=list(pen.closed.values())), pen.carried)
    _keep_sizes(found)
    for box, amount in zip(root.boxes(), amounts([box.claims for box in root.boxes()]), strict=True):
        box.weight = amount
        found.measured += amount
    for box in root.boxes():
        box.weight /= found.measured or 1.0
    return found


def mark(drawn: Diagram, marks: Mapping[int, Mark]) -> None:
    """Mark boxes and groups by what they stand for: nodes and shared modules by identity."""
    parts: list[Box | BoxGroup] = [*drawn.root.boxes(), *drawn.root.groups()]
    for part in parts:
        signs = {marks[node] for node in part.nodes if node in marks}
        part.mark = signs.pop() if len(signs) == 1 else "~" if signs else ""


# --- names of boxes ---------------------------------------------------------------------------------------------------


PLAIN = frozenset({"attention", "ffn", "mlp", "moe", "mixer", "blocks", "layers"})
"""Steps that say no more than the block that takes them."""


def _titled(step: str, what: str) -> str:
    """`SwiGLU (shared)`; the block alone where its step says no more."""
    bare = step.rstrip("0123456789_")
    if not step or step in PLAIN or bare == what.rstrip("0123456789_") or bare == "self_attention":
        return written(what)
    return f"{written(what)} ({written(step.removesuffix('_attention'))})"


NAMED_BY_STEP = frozenset({"linear", "embedding", "convolution", "transposed convolution"})
"""Kinds of layers that are told by what they are for, `Token embedding` or `Gate`: their colour says the rest."""


def _named(node: OpNode) -> str:
    """What a primitive is called."""
    step, what = _step(node), node.op.title or node.op.name
    if not node.weights or not step:
        return written(what)
    if node.op.family == "embedding" and "embedding" not in step:
        step = f"{step}_embedding"
    if node.op.family in NAMED_BY_STEP:
        return written(step)
    if _role_of_op(node) != "norm":
        return _titled(step, what)
    # Where it stands is seen, but not which of several tensors it is for.
    of = step.removesuffix("norm").strip("_")
    return f"{written(what)} ({of})" if 0 < len(of) <= 2 else written(what)


# --- boxes from nodes -------------------------------------------------------------------------------------------------

Source = tuple[str, ...]
"""The boxes that a value comes from."""


class _Waiting(Frozen):
    """A box that is drawn once something drawn reads it."""

    role: Role
    lines: list[str]
    claims: list[Claim]
    nodes: frozenset[int]
    weight: int
    """The raw weight that it is made of, by a number."""


class _Pen:
    """Draws graph after graph. What has no input that is drawn, a table of positions or a raw weight, waits in
    `waiting` until something drawn reads it."""

    def __init__(self, depth: int, measure: Measure) -> None:
        self.depth = depth
        self.shares = Shares(measure)
        self.prepared: dict[int, list[Claim]] = {}
        """What is prepared for the steps of a scan, by its block: the box of the steps stands for it too."""
        self.arrows: list[Arrow] = []
        self.count = 0
        self.waiting: dict[int, _Waiting] = {}
        self.tied: dict[int, WeightNode] = {}
        """Weights of other modules, by the value that they are read as."""
        self.closed: dict[str, Block] = {}
        self.carried: set[str] = set()
        """Boxes that the next turn of a stack reads, whether or not anything does after the last."""
        self.drawn: set[tuple[int, Turns]] = set()
        """Turns of loops whose frames are drawn: where they come again they are one box."""

    def box(self, group: BoxGroup, role: Role, lines: Sequence[str], claims: Sequence[Claim] = ()) -> Box:
        self.count += 1
        name, *details = [line for line in lines if line]
        box = Box(f"n{self.count}", role, name, details, [*claims])
        group.parts.append(box)
        return box

    def group(self, within: BoxGroup, title: str, times: int = 1) -> BoxGroup:
        self.count += 1
        group = BoxGroup(f"g{self.count}", title, times)
        within.parts.append(group)
        return group

    def sources(self, env: dict[int, Source], value: Value, group: BoxGroup) -> Source:
        """The boxes of a value; what has waited for a reader is drawn now."""
        found = env.get(id(value), ())
        waits = self.waiting.get(id(value))
        if not found and waits is not None:
            box = self.box(group, waits.role, waits.lines, waits.claims)
            box.nodes |= waits.nodes
            found = env[id(value)] = (box.id,)
        return found

    def connect(self, env: dict[int, Source], box: Box, group: BoxGroup, values: Iterable[tuple[Value, str]]) -> None:
        for value, label in values:
            size = number_text(value.shape[-1]) if value.rank and value.is_float else ""
            self.arrows += [Arrow(s, box.id, label, size) for s in self.sources(env, value, group)]

    def graph(self, graph: Graph, env: dict[int, Source], group: BoxGroup, level: int) -> None:
        for node in graph.nodes:
            self.node(node, env, group, level)

    def node(self, node: Node, env: dict[int, Source], group: BoxGroup, level: int) -> None:
        if isinstance(node, OpNode):
            self.op(node, env, group)
        elif isinstance(node, CallNode):
            self.call(node, env, group, level)
        elif isinstance(node, LoopNode):
            self.loop(node, env, group, level)
        elif isinstance(node, ScanNode):
            self.scan(node, env, group, level)
        elif isinstance(node, CondNode):
            # What only training sees is no part of the architecture.
            self.graph(node.otherwise, env, group, level)
            for value, inner in zip(node.outputs, node.otherwise.outputs, strict=False):
                self.hand(env, inner, value)
        elif isinstance(node, ParamNode):
            lines = [written(node.name), shape_text(node.output)]
            weight, claims = self.shares.weight(node)
            self.waiting[id(node.output)] = _Waiting("weights", lines, claims, frozenset({id(node)}), weight)
        elif isinstance(node, WeightNode):
            self.tied[id(node.output)] = node

    def hand(self, env: dict[int, Source], inner: Value | None, outer: Value) -> None:
        """One value under another's id."""
        if inner is None:
            return
        env[id(outer)] = env.get(id(inner), ())
        if id(inner) in self.waiting:
            self.waiting[id(outer)] = self.waiting[id(inner)]
        if id(inner) in self.tied:
            self.tied[id(outer)] = self.tied[id(inner)]

    # --- primitives ---

    def op(self, node: OpNode, env: dict[int, Source], group: BoxGroup) -> None:
        values = [v for v in node.inputs if isinstance(v, Value)]
        if node.op.is_mask(node.options) or (node.outputs and node.outputs[0].is_bool):
            return
        if values and _is_quiet(node, values[0]):
            for output in node.outputs:
                self.hand(env, values[0], output)
            return
        tied = [self.tied[id(v)] for v in values if id(v) in self.tied]
        live = [v for v in values if env.get(id(v))]
        waits = [v for v in values if not env.get(id(v)) and id(v) in self.waiting]
        if not node.op.sign:  # places and angles that an op looks up in a table go without saying
            waits = [v for v in waits if self.waiting[id(v)].role != "op"]
        if not live and not node.weights and not tied and len(waits) < 2:
            role: Role = "op"
            lines, weight, claims, nodes = [written(node.op.name)], 0, list[Claim](), frozenset({id(node)})
            first = next((self.waiting[id(v)] for v in values if id(v) in self.waiting), None)
            if first is not None:
                role, lines = first.role, [*first.lines, *self.op_lines(node, tied)]
                weight, claims = first.weight, self.shares.read(first.weight, first.claims)
                nodes |= first.nodes
            self.waiting.update(dict.fromkeys(map(id, node.outputs), _Waiting(role, lines, claims, nodes, weight)))
            return
        claims = self.shares.claims(node, *tied)
        box = self.box(group, _role_of_op(node), self.op_lines(node, tied), claims)
        box.nodes |= _identity(node)
        if box.role == "attention":
            box.sees = _sees(node.options)
        self.connect(env, box, group, ((v, "") for v in values if v in live or v in waits))
        for output in node.outputs:
            env[id(output)] = (box.id,)

    def op_lines(self, node: OpNode, tied: list[WeightNode]) -> list[str]:
        sign = SIGNS.get(node.op.sign)
        if sign is not None and not node.weights:
            constant = next((v for v in node.inputs if isinstance(v, Num)), None)
            if constant is None:
                return [sign]
            text = constant_text(constant)
            first = isinstance(node.inputs[0], Num) and node.op.sign in ("-", "/")
            return [f"{text} {sign}" if first else f"{sign} {text}"]
        lines = [_named(node)]
        table = [w for w in node.weights if w.kind == "embedding"]
        if table:
            lines.append(" × ".join(number_text(d) for d in table[0].shape))
        elif not node.blocks:
            lines += options_text(node.op.header, node.options)
        lines += [f"tied to {written(w.instance.label or w.instance.name)}" for w in tied]
        for name, call in node.blocks.items():
            copies = f"{number_text(node.copies)} × " if node.copies is not None else ""
            lines.append(f"{copies}{_titled('' if name == 'expert' else name, call.block.name)}")
        return lines

    # --- blocks ---

    def call(self, node: CallNode, env: dict[int, Source], group: BoxGroup, level: int) -> None:
        block = node.block
        if not self.opens(block, level):
            if node.step is not None:  # what the block prepares for a scan is drawn with its steps
                found = tuple(s for v in node.inputs if v is not None for s in self.sources(env, v, group))
                env.update({id(v): found for v in node.outputs})
                self.prepared[id(block)] = self.shares.claims(node)
                return
            if not block.library and block.before is None:
                self.closed.setdefault(block.name, block)
            box = self.box(group, _role_of_block(block), _block_lines(node), self.shares.claims(node))
            box.claims += self.prepared.pop(id(block.before), [])
            box.nodes |= _identity(node)
            if box.role == "attention":
                box.sees = _sees(block.hypers)
            given = [(v, name) for v, name in zip(node.inputs, block.tensor_names, strict=False) if v is not None]
            said = block.before is None  # else some of them are what was prepared, under names of no concern
            told = ((v, written(name) if i and said else "") for i, (v, name) in enumerate(given) if not self.table(v))
            self.connect(env, box, group, told)
            around = ((v, "") for v in node.contexts if isinstance(v, Value) and not self.table(v))
            self.connect(env, box, group, around)
            env.update({id(v): (box.id,) for v in node.outputs})
            return
        once = ", once for all steps" if node.step is not None else ""
        inner = self.group(group, f"{headed(_titled(_step(node), block.name))}{_shared(node)}{once}")
        inner.nodes |= _identity(node)
        self.inside(node, env, inner, level + 1)

    def table(self, value: Value) -> bool:
        """Whether a value is made of positions alone, and no weights."""
        return id(value) in self.waiting and self.waiting[id(value)].role == "op"

    def opens(self, block: Block, level: int) -> bool:
        """Whether a block is a frame with its parts, and not one box."""
        return not block.library and level < self.depth

    def inside(self, node: CallNode, env: dict[int, Source], group: BoxGroup, level: int) -> None:
        """The body of a called block, in a group that is already there."""
        block = node.block
        local = dict(env)
        for own, value in zip(block.graph.inputs, node.inputs, strict=False):
            local[id(own)] = ()
            if value is not None and self.table(value):
                self.hand(local, value, own)
            elif value is not None:
                local[id(own)] = self.sources(env, value, group)
        for context, given in zip(block.contexts, node.contexts, strict=False):
            if isinstance(context.value, Value) and isinstance(given, Value):
                self.hand(local, given, context.value)
        with self.shares.inside(node):
            self.graph(block.graph, local, group, level)
        for value, made in zip(node.outputs, (v for v in block.graph.outputs if v is not None), strict=False):
            self.sources(local, made, group)
            self.hand(local, made, value)
            env[id(value)] = local[id(value)]

    # --- stacks and recurrences ---

    def loop(self, node: LoopNode, env: dict[int, Source], group: BoxGroup, level: int) -> None:
        carried = [self.sources(env, v, group) for v in node.starts]
        emitted: dict[int, list[Source]] = {}
        turns = Counter(node.iterations)
        for title, times, part in _repeats(node):
            frame = self.group(group, title, times) if title or (times > 1 and len(part) > 1) else group
            for bodies, count in part:
                often = count if frame is not group else count * times
                # Of bodies that are drawn as one, the first stands for their mean.
                of = [self.shares.of_turn(node.bodies[i]) for i in bodies] if len(bodies) > 1 else [1.0]
                whole = sum(turns[i] * n for i, n in zip(bodies, of, strict=True)) / sum(turns[i] for i in bodies)
                with self.shares.times(times * count * (whole / of[0] if of[0] else 1.0)):
                    carried, given = self.turn(node, bodies, carried, env, frame, level, often)
                emitted.update(dict.fromkeys(bodies, given))
        env.update({id(v): s for v, s in zip(node.outputs, carried, strict=False)})
        for turn, values in zip(node.iterations, node.emitted, strict=False):
            env.update({id(v): s for v, s in zip(values, emitted.get(turn, []), strict=False)})

    def turn(
        self,
        node: LoopNode,
        alike: Turns,
        carried: list[Source],
        env: dict[int, Source],
        group: BoxGroup,
        level: int,
        times: int,
    ) -> tuple[list[Source], list[Source]]:
        """One group for `times` turns of a body (the first of those that are alike): what it carries on, and what it
        emits."""
        body = node.bodies[alike[0]]
        calls = [n for n in body.nodes if isinstance(n, CallNode)]
        alone = len(calls) == 1 and not any(isinstance(n, OpNode | LoopNode | ScanNode) for n in body.nodes)
        title = _layer(calls[0], node.variable) if alone else ""
        if alone and (id(node), alike) in self.drawn:
            return self.again(body, f"{title}, as above", carried, group, times)
        local = dict(env)
        local.update({id(v): s for v, s in zip(body.inputs, carried, strict=True)})
        differ = "sizes of the first" if len(alike) > 1 else ""
        if alone and self.opens(calls[0].block, level):
            self.drawn.add((id(node), alike))
            inner = self.group(group, ", ".join(t for t in (title, differ) if t), times)
            inner.nodes |= {id(body)} | _identity(calls[0])
            for part in body.nodes:
                if part is calls[0]:
                    self.inside(calls[0], local, inner, level + 1)
                else:
                    self.node(part, local, inner, level)
        else:
            inner = self.group(group, "", times) if times > 1 else group
            inner.nodes |= {id(body)} if inner is not group else set()
            before = len(inner.parts)
            self.graph(body, local, inner, level)
            for last in inner.parts[before:][-1:] if differ else ():
                if isinstance(last, Box):
                    last.details.append(differ)
        made = [self.sources(local, v, inner) if v is not None else () for v in body.outputs]
        if len(node.iterations) > 1:
            self.carried.update(s for sources in made[: len(carried)] for s in sources)
        return made[: len(carried)], made[len(carried) :]

    def again(
        self, body: Graph, title: str, carried: list[Source], group: BoxGroup, times: int
    ) -> tuple[list[Source], list[Source]]:
        """One box for turns that are like some which are drawn."""
        lines = [title, f"× {times:,}" if times > 1 else ""]
        claims = [(self.shares.within, self.shares.of_turn(body) * self.shares.often)]
        box = self.box(group, "weights", lines, claims)
        self.arrows += [Arrow(s, box.id) for sources in carried for s in sources]
        self.carried.add(box.id)
        return [(box.id,)] * len(carried), [(box.id,)] * (len(body.outputs) - len(carried))

    def scan(self, node: ScanNode, env: dict[int, Source], group: BoxGroup, level: int) -> None:
        length = node.length
        inner = self.group(group, f"For each of {number_text(length)} steps")
        local = dict(env)
        states: list[Box] = []
        carried = len(node.starts)
        for own, start in zip(node.body.inputs, node.starts, strict=False):
            state = self.box(inner, "state", [own.name or "state", shape_text(own)])
            states.append(state)
            local[id(own)] = (state.id,)
            if isinstance(start, Value):
                self.arrows += [Arrow(s, state.id, "starts as") for s in self.sources(env, start, group)]
        for own, sequence in zip(node.body.inputs[carried:], node.sequences, strict=True):
            local[id(own)] = self.sources(env, sequence, group)
        with self.shares.times(self.shares.measure.steps(node)):
            self.graph(node.body, local, inner, level)
        outputs = node.body.outputs
        ends = [self.sources(local, v, inner) if v is not None else () for v in outputs]
        for state, sources in zip(states, ends, strict=False):
            after = self.box(inner, "state", [f"next {state.name}"])
            self.arrows += [Arrow(s, after.id) for s in sources]
        env.update({id(v): s for v, s in zip(node.finals, ends, strict=False)})
        env.update({id(v): s for v, s in zip(node.stacked, ends[carried:], strict=False)})


def _is_quiet(node: OpNode, value: Value) -> bool:
    """Whether an op only moves, casts, drops or cuts off numbers of its first input."""
    if node.weights:
        return False
    cuts = node.op.family == "slice" and node.outputs[0].rank == value.rank
    return cuts or (node.op.keeps_branch and not node.op.elementwise) or node.op.regroups(node) is not None


def _layer(node: CallNode, variable: str) -> str:
    """`layer (dense)`; the block alone where it is called like it, like its step or like the loop's variable."""
    block = node.block.name
    said = "" if node.alias in ("", block, node.name, variable) else f" ({written(node.alias)})"
    return f"{headed(written(block))}{said}{_shared(node)}"


def _step(node: CallNode | OpNode) -> str:
    return node.instance.label if node.instance is not None else node.name


def _identity(node: CallNode | OpNode) -> set[int]:
    return {id(node)} if node.instance is None else {id(node), id(node.instance)}


def _shared(node: CallNode) -> str:
    return ", shared" if node.instance is not None else ""


def _block_lines(node: CallNode) -> list[str]:
    block = node.block
    return [
        f"{_titled(_step(node), block.name)}{_shared(node)}",
        *options_text(block.header, block.hypers, block.local),
    ]


def _role_of_block(block: Block) -> Role:
    role: Role = "op"
    for node in (n for part in (block.before, block) if part is not None for n in nodes_below(part.graph)):
        if isinstance(node, OpNode):
            if node.copies is not None:
                return "experts"
            if node.op.family in ATTENTION:
                role = "attention"
            elif role == "op" and node.weights:
                role = "weights"
        elif isinstance(node, ParamNode) and role == "op":
            role = "weights"
    return role


def _sees(options: Mapping[str, Any]) -> Sees:
    """Which keys the option `mask` of attention lets a query see."""
    masks = [value for value in options.values() if isinstance(value, Mask)]
    if not masks:
        return ""
    near = any(leaf.rule in RULES and RULES[leaf.rule].behind is not None for leaf in masks[0].leaves())
    before = looks_back(masks[0])
    return "near before" if near and before else "near" if near else "before" if before else "all"


def _role_of_op(node: OpNode) -> Role:
    if node.op.sign in SIGNS and not node.weights and not any(isinstance(v, Num) for v in node.inputs):
        return "sum"
    if node.copies is not None:
        return "experts"
    if node.op.family in ATTENTION:
        return "attention"
    if node.weights and all(w.kind in ("gain", "bias", "buffer") for w in node.weights):
        return "norm"
    return "weights" if node.weights else "op"


# --- how layers follow each other -------------------------------------------------------------------------------------

Turns = tuple[int, ...]
"""Bodies that are drawn as one, the first of them."""
Part = tuple[tuple[Turns, int], ...]
"""What follows each other, with how often in a row."""


def _repeats(node: LoopNode) -> Iterator[tuple[str, int, Part]]:
    """The turns of a loop as (title, times, what is repeated), in their order: `3 * dense + 58 * sparse` is one part of
    two, `48 * (dense + banded)` is 48 times a part of two, and a pattern may begin late and break off. Where there is
    none, the kinds stand once each, and the title says so."""
    turns = list(node.iterations)
    if len(set(turns)) > DISTINCT:
        turns = _merged(node, turns)
    alike: dict[int, list[int]] = {}
    for merged, turn in zip(turns, node.iterations, strict=True):
        if turn not in alike.setdefault(merged, []):
            alike[merged].append(turn)
    whole = _runs(turns, alike)
    for start in range(DISTINCT + 1) if len(whole) > DISTINCT else (0,):
        rest = turns[start:]
        for period in range(1, len(rest) // 2 + 1):
            times, left = divmod(len(rest), period)
            if rest != (rest[:period] * (times + 1))[: len(rest)] or (left and len(whole) <= DISTINCT):
                continue
            yield from [("", 1, _runs(turns[:start], alike))] if start else []
            yield "", times, _runs(rest[:period], alike)
            yield from [("", 1, _runs(rest[period * times :], alike))] if left else []
            return
    if len(whole) <= 2 * DISTINCT:
        yield "", 1, whole
        return
    counts = Counter(turns)
    yield "in mixed order", 1, tuple((tuple(alike[t]), n) for t, n in counts.items())


def _runs(turns: Sequence[int], alike: Mapping[int, list[int]]) -> Part:
    return tuple((same, len([*run])) for same, run in groupby(tuple(alike[turn]) for turn in turns))


def _merged(node: LoopNode, turns: list[int]) -> list[int]:
    """Bodies that differ in sizes alone are taken for the first of them."""
    first: dict[tuple[Any, ...], int] = {}
    names = {i: first.setdefault(_outline(node.bodies[i]), i) for i in turns}
    return [names[i] for i in turns]


def _outline(graph: Graph) -> tuple[Any, ...]:
    """Return the ops and blocks of a graph that are drawn, nested as they are, without their sizes."""
    found: list[Any] = []
    for node in graph.nodes:
        if isinstance(node, CheckNode | CausalNode):
            continue
        if isinstance(node, OpNode):
            found.append(node.op.name)
            found += [_outline(c.block.graph) for c in node.blocks.values()]
        elif isinstance(node, CallNode):
            found += [node.block.name, _outline(node.block.graph)]
        else:
            found += [type(node).__name__, *(_outline(g) for g in subgraphs(node))]
    return tuple(found)


# --- what is left -----------------------------------------------------------------------------------------------------


def _tidy(drawn: Diagram, carried: set[str]) -> Diagram:
    """Without arrows told twice, without what leads to no output and to no next turn (it makes masks), without empty
    groups; ops in a row are one box."""
    arrows = list(dict.fromkeys(drawn.arrows))
    sources: dict[str, list[str]] = {}
    for arrow in arrows:
        sources.setdefault(arrow.target, []).append(arrow.source)
    used: set[str] = set()
    todo = [b.id for b in drawn.root.boxes() if b.id in carried or (b.role in ("output", "state") and b.id in sources)]
    while todo:
        box = todo.pop()
        if box not in used:
            used.add(box)
            todo += sources.get(box, [])
    _keep(drawn.root, used)
    drawn.arrows = [a for a in arrows if a.target in used]
    _fold(drawn)
    return drawn


def _keep_sizes(drawn: Diagram) -> None:
    """Leave the size of what goes into a frame at the first box there that takes it, and no other."""
    inside = {group.id: {box.id for box in group.boxes()} for group in drawn.root.groups()}
    home = {part.id: group.id for group in drawn.root.groups() for part in group.parts}
    sums = {box.id for box in drawn.root.boxes() if box.role == "sum"}
    told: set[tuple[str, str]] = set()

    def enters(a: Arrow) -> bool:
        frame = home.get(a.target, "")
        if not frame or a.source in inside[frame] or a.target in sums or a.label or (a.source, frame) in told:
            return False
        told.add((a.source, frame))
        return True

    drawn.arrows = [a if enters(a) else Arrow(a.source, a.target, a.label) for a in drawn.arrows]


def _keep(group: BoxGroup, used: set[str]) -> None:
    kept: list[Box | BoxGroup] = []
    for part in group.parts:
        if isinstance(part, BoxGroup):
            _keep(part, used)
            if part.parts:
                kept.append(part)
        elif part.id in used:
            kept.append(part)
    group.parts = kept


def _fold(drawn: Diagram) -> None:
    """An op that only its neighbour in the group feeds, and feeds nothing else, stands below it in one box."""
    group_of: dict[str, BoxGroup] = {}

    def place(group: BoxGroup) -> None:
        for part in group.parts:
            if isinstance(part, Box):
                group_of[part.id] = group
            else:
                place(part)

    place(drawn.root)
    boxes = {b.id: b for b in drawn.root.boxes()}
    into = Counter(a.target for a in drawn.arrows)
    out = Counter(a.source for a in drawn.arrows)
    renamed: dict[str, str] = {}
    for arrow in drawn.arrows:
        source, target = boxes[renamed.get(arrow.source, arrow.source)], boxes[arrow.target]
        if (
            target.role == "op"
            and source.role in ("op", "weights", "norm")
            and not target.details
            and into[target.id] == 1
            and out[arrow.source] == 1
            and not arrow.label
            and group_of[source.id] is group_of[target.id]
        ):
            source.details += [target.name, *target.details]
            source.claims += target.claims
            source.nodes |= target.nodes
            group_of[target.id].parts.remove(target)
            renamed[target.id] = source.id
    drawn.arrows = [
        Arrow(renamed.get(a.source, a.source), renamed.get(a.target, a.target), a.label, a.size)
        for a in drawn.arrows
        if a.target not in renamed
    ]


def _contract(drawn: Diagram, most: int) -> None:
    """Ops and sums that follow each other in a group become one box, the smallest first, until the drawing has no more
    than `most` boxes: of a spec that is all equations, and has no blocks to close."""
    sources: dict[str, list[str]] = {box.id: [] for box in drawn.root.boxes()}
    for a in drawn.arrows:
        sources[a.target].append(a.source)
    if len(sources) <= most:
        return
    order = {box: n for n, box in enumerate(TopologicalSorter(sources).static_order())}
    boxes = {box.id: box for box in drawn.root.boxes()}
    home = {box.id: group for group in (drawn.root, *drawn.root.groups()) for box in group.parts}
    held = dict.fromkeys(order, 1)
    names = {i: [box.name] if box.role not in ("op", "sum") else [] for i, box in boxes.items()}
    while len(held) > most:
        after: dict[str, str] = {}
        for a in drawn.arrows:  # no other way leads from a box to the first of those that read it
            after[a.source] = min(after.get(a.source, a.target), a.target, key=order.__getitem__)
        pairs = [
            (held[s] + held[t], order[s], s, t)
            for s, t in after.items()
            if home[s] is home[t] and not {boxes[s].role, boxes[t].role} & {"input", "output", "state"}
        ]
        if not pairs:
            return
        _, _, s, t = min(pairs)
        source, target = boxes[s], boxes[t]
        held[t] += held.pop(s)
        names[t] += names.pop(s)
        target.role = next((box.role for box in (source, target) if box.role not in ("op", "sum")), "op")
        target.name, target.details = names[t][0] if len(names[t]) == 1 else "…", [f"{held[t]} steps"]
        target.weight += source.weight
        target.nodes |= source.nodes
        home[s].parts.remove(source)
        drawn.arrows = list(
            dict.fromkeys(
                Arrow(t if a.source == s else a.source, t if a.target == s else a.target, a.label, a.size)
                for a in drawn.arrows
                if (a.source, a.target) != (s, t)
            )
        )
