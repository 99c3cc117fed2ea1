"""A model as a drawing: boxes, the groups they stand in, and arrows along the data.

What is drawn is what a figure of a paper would show. A block of the library is one box with the sizes it was given; a
block of the spec is a group, as deep as the drawing stays readable; a stack of layers is a group that says how often it
is repeated. Ops that only move, cast or drop numbers, masks and checks are not drawn: arrows go through them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from archdsl.diagnostics import error
from archdsl.estimates.kinds import ATTENTION
from archdsl.frozen import Frozen
from archdsl.ir.dims import Lit, Num, Poly, expr_text, free_names
from archdsl.ir.graph import (
    Block,
    CallNode,
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
from archdsl.ir.masks import Mask
from archdsl.ir.static import BlockValue, EnumValue, SharedModule
from archdsl.ir.walk import calls_of, every_node
from archdsl.ir.wording import one_of
from archdsl.syntax import ast

# --- the drawing ------------------------------------------------------------------------------------------------------

Role = Literal["input", "output", "attention", "experts", "norm", "weights", "sum", "op", "state"]


@dataclass
class Box:
    """One box. The first of its lines is its name; `sum` is a small circle with a sign in it."""

    id: str
    role: Role
    lines: list[str]


@dataclass
class BoxGroup:
    """Boxes within a frame that has a title."""

    id: str
    title: str
    parts: list[Box | BoxGroup] = field(default_factory=list)

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


@dataclass
class Diagram:
    """A drawing; `root` is the page itself and has no frame."""

    root: BoxGroup
    arrows: list[Arrow]
    closed: list[Block] = field(default_factory=list)
    """Blocks of the spec that are one box because their own boxes would be too many: one of each name."""


MOST = 44
"""Boxes on a drawing; with more, the deepest groups are closed."""
DEEPEST = 3
DISTINCT = 3
"""Layers of a stack that are drawn apart; with more that differ in sizes alone, the first stands for all."""

SIGNS = {"+": "+", "-": "−", "*": "×", "/": "÷", "//": "//", "%": "mod", "**": "^"}
UNTOLD = frozenset({"eps", "momentum", "dropout", "rate", "start", "axis", "keep", "padding"})
"""Options that a drawing does not say."""
LONG = 44
"""Characters of a block given as an option, beyond which only its name is told."""

_GROUPED = re.compile(r"(?<=\d)_(?=\d)")


def diagram(drawn: Model | Block) -> Diagram:
    """The drawing of a model or of one block, as deep as it may have without more than `MOST` boxes."""
    found = _draw(drawn, DEEPEST)
    for depth in range(DEEPEST - 1, 0, -1):
        if sum(1 for _ in found.root.boxes()) <= MOST:
            break
        found = _draw(drawn, depth)
    return found


def block_of(model: Model, name: str) -> Block:
    """The first block of that name in a model. Raises ArchError (E0210) where it has none."""
    blocks = {n.block.name: n.block for n in reversed(list(_nodes_below(model.block))) if isinstance(n, CallNode)}
    if name not in blocks:
        raise error("E0210", f"{model.name} applies no block `{name}`", help=one_of(name, blocks, "it has"))
    return blocks[name]


def _nodes_below(root: Block) -> Iterator[Node]:
    """The nodes of a block and of all that it applies, each distinct block once: what is called last comes first."""
    seen: set[Block] = set()
    todo = [root]
    while todo:
        block = todo.pop()
        if block not in seen:
            seen.add(block)
            nodes = list(every_node(block.graph))
            yield from nodes
            todo += [call.block for node in nodes for call in calls_of(node)]
            todo += [block.before] if block.before is not None else []


def _draw(drawn: Model | Block, depth: int) -> Diagram:
    pen = _Pen(depth)
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
    return _tidy(Diagram(root, pen.arrows, list(pen.closed.values())), pen.carried)


# --- texts ------------------------------------------------------------------------------------------------------------


def number_text(n: Num) -> str:
    """A number by its value, `50,257`; a size that only the running model knows by its name."""
    if isinstance(n.value, Poly):
        return str(n)
    if isinstance(n.value, int):
        return f"{n.value:,}"
    return f"{float(n.value):g}"


def _plain(n: Num) -> bool:
    """Whether a number is best told by its value: it was written as one, or its names are not the block's own."""
    return n.static and (
        isinstance(n.value, int) or any("." in name for name in free_names(n.expr)) or isinstance(n.expr, Lit)
    )


def shape_text(value: Value) -> str:
    return f"[{', '.join(number_text(d) for d in value.shape)}]"


def option_text(value: Any) -> str:
    """A hyper-parameter as a drawing says it; '' for what it leaves out."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, Num):
        return number_text(value)
    if isinstance(value, SharedModule):
        return f"{value.name}, shared"
    if isinstance(value, Mask):
        return "" if value.rule == "full" else str(value)
    if isinstance(value, BlockValue):
        inner = [f"{k} {option_text(v)}" for k, v in value.args.items() if k not in UNTOLD and option_text(v)]
        text = f"{value.name}({', '.join(inner)})" if inner else value.name
        return text if len(text) <= LONG else value.name
    if isinstance(value, tuple):
        texts = [option_text(v) for v in value]
        return ", ".join(texts) if all(texts) else ""
    return str(value) if isinstance(value, str | EnumValue) and str(value) else ""


def _options(header: ast.Header, options: Mapping[str, Any], computed: Iterable[str] = ()) -> list[str]:
    """What was given, one line each: options that differ from what the signature says of them."""
    found = []
    for hyper in header.hypers or ():
        value = options.get(hyper.name)
        if hyper.name in UNTOLD or hyper.name in computed:
            continue
        text = option_text(value)
        default = _GROUPED.sub("", hyper.default.span.text) if hyper.default is not None else ""
        if not text or text.replace(",", "") in (default, default.partition("(")[0]):
            continue
        found.append(_said(hyper.name, text, value))
    return found


def _said(name: str, text: str, value: Any) -> str:
    """`12 heads`, `position rope(theta 10,000)`, `mask causal`; a text as it is."""
    if isinstance(value, str):
        return text
    if isinstance(value, Num) and value.static and name.endswith("s") and text != "1":
        return f"{text} {name.replace('_', ' ')}"
    return f"{name.replace('_', ' ')} {text}"


def _titled(step: str, what: str) -> str:
    """`attention: gqa`; the block alone where its step is called like it."""
    return what if not step or step.rstrip("0123456789_") == what.rstrip("0123456789_") else f"{step}: {what}"


# --- boxes from nodes -------------------------------------------------------------------------------------------------

Source = tuple[str, ...]
"""The boxes that a value comes from."""


class _Pen:
    """Draws graph after graph. What has no input that is drawn, a table of positions or a raw weight, waits in
    `waiting` until something drawn reads it."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.arrows: list[Arrow] = []
        self.count = 0
        self.waiting: dict[int, tuple[Role, list[str]]] = {}
        self.tied: dict[int, str] = {}
        self.closed: dict[str, Block] = {}
        self.carried: set[str] = set()
        """Boxes that the next turn of a stack reads, whether or not anything does after the last."""

    def box(self, group: BoxGroup, role: Role, lines: Sequence[str]) -> Box:
        self.count += 1
        box = Box(f"n{self.count}", role, [line for line in lines if line])
        group.parts.append(box)
        return box

    def group(self, within: BoxGroup, title: str) -> BoxGroup:
        self.count += 1
        group = BoxGroup(f"g{self.count}", title)
        within.parts.append(group)
        return group

    def sources(self, env: dict[int, Source], value: Value, group: BoxGroup) -> Source:
        """The boxes of a value; what has waited for a reader is drawn now."""
        found = env.get(id(value), ())
        waits = self.waiting.get(id(value))
        if not found and waits is not None:
            found = env[id(value)] = (self.box(group, *waits).id,)
        return found

    def connect(self, env: dict[int, Source], box: Box, group: BoxGroup, values: Iterable[tuple[Value, str]]) -> None:
        for value, label in values:
            self.arrows += [Arrow(s, box.id, label) for s in self.sources(env, value, group)]

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
            self.waiting[id(node.output)] = ("weights", [node.name, shape_text(node.output)])
        elif isinstance(node, WeightNode):
            self.tied[id(node.output)] = f"tied to {node.instance.label or node.instance.name}"

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
        if node.weights:  # places that are looked up in a table of positions go without saying
            waits = [v for v in waits if self.waiting[id(v)][0] != "op"]
        if not live and not node.weights and not tied and len(waits) < 2:
            if waits:
                role, lines = self.waiting[id(waits[0])]
                made = (role, [*lines, *self.op_box(node, tied)[1]])
            else:
                made = ("op", [node.op.name])
            self.waiting.update(dict.fromkeys(map(id, node.outputs), made))
            return
        box = self.box(group, *self.op_box(node, tied))
        self.connect(env, box, group, ((v, "") for v in values if v in live or v in waits))
        for output in node.outputs:
            env[id(output)] = (box.id,)

    def op_box(self, node: OpNode, tied: list[str]) -> tuple[Role, list[str]]:
        sign = SIGNS.get(node.op.sign)
        if sign is not None and not node.weights:
            constant = next((v for v in node.inputs if isinstance(v, Num)), None)
            if constant is None:
                return "sum", [sign]
            text = number_text(constant) if _plain(constant) else expr_text(constant.expr)
            first = isinstance(node.inputs[0], Num) and node.op.sign in ("-", "/")
            return "op", [f"{text} {sign}" if first else f"{sign} {text}"]
        lines = [_titled(_step(node), node.op.name)]
        table = [w for w in node.weights if w.kind == "embedding"]
        if table:
            lines.append(" × ".join(number_text(d) for d in table[0].shape))
        elif not node.blocks:
            lines += _options(node.op.header, node.options)
        lines += tied
        for name, call in node.blocks.items():
            copies = f"{number_text(node.copies)} × " if node.copies is not None else ""
            lines.append(f"{copies}{_titled('' if name == 'expert' else name, call.block.name)}")
        return _role_of_op(node), lines

    # --- blocks ---

    def call(self, node: CallNode, env: dict[int, Source], group: BoxGroup, level: int) -> None:
        block = node.block
        if not self.opens(block, level):
            if node.step is not None:  # what the block prepares for a scan is drawn with its steps
                found = tuple(s for v in node.inputs if v is not None for s in self.sources(env, v, group))
                env.update({id(v): found for v in node.outputs})
                return
            if not block.library and block.before is None:
                self.closed.setdefault(block.name, block)
            box = self.box(group, _role_of_block(block), _block_lines(node))
            given = [(v, name) for v, name in zip(node.inputs, block.tensor_names, strict=False) if v is not None]
            said = block.before is None  # else some of them are what was prepared, under names of no concern
            self.connect(env, box, group, ((v, name if i and said else "") for i, (v, name) in enumerate(given)))
            env.update({id(v): (box.id,) for v in node.outputs})
            return
        once = ", once for all steps" if node.step is not None else ""
        inner = self.group(group, f"{_titled(_step(node), block.name)}{_shared(node)}{once}")
        self.inside(node, env, inner, level + 1)

    def opens(self, block: Block, level: int) -> bool:
        """Whether a block is a frame with its parts, and not one box."""
        return not block.library and level < self.depth

    def inside(self, node: CallNode, env: dict[int, Source], group: BoxGroup, level: int) -> None:
        """The body of a called block, in a group that is already there."""
        block = node.block
        local = dict(env)
        for own, value in zip(block.graph.inputs, node.inputs, strict=False):
            local[id(own)] = ()
            if value is not None:
                local[id(own)] = self.sources(env, value, group)
        for context, given in zip(block.contexts, node.contexts, strict=False):
            if isinstance(context.value, Value) and isinstance(given, Value):
                self.hand(local, given, context.value)
        self.graph(block.graph, local, group, level)
        for value, made in zip(node.outputs, (v for v in block.graph.outputs if v is not None), strict=False):
            self.sources(local, made, group)
            self.hand(local, made, value)
            env[id(value)] = local[id(value)]

    # --- stacks and recurrences ---

    def loop(self, node: LoopNode, env: dict[int, Source], group: BoxGroup, level: int) -> None:
        carried = [self.sources(env, v, group) for v in node.starts]
        emitted: dict[int, list[Source]] = {}
        for times, part in _repeats(node):
            frame = group
            if times > 1 and len(part) > 1:
                frame = self.group(group, f"× {times}")
                times = 1
            for bodies, count in part:
                carried, given = self.turn(node, bodies, carried, env, frame, level, count * times)
                emitted.update(dict.fromkeys(bodies, given))
        env.update({id(v): s for v, s in zip(node.outputs, carried, strict=False)})
        for turn, values in zip(node.iterations, node.emitted, strict=False):
            env.update({id(v): s for v, s in zip(values, emitted.get(turn, []), strict=False)})

    def turn(
        self,
        node: LoopNode,
        alike: Sequence[int],
        carried: list[Source],
        env: dict[int, Source],
        group: BoxGroup,
        level: int,
        times: int,
    ) -> tuple[list[Source], list[Source]]:
        """One group for `times` turns of a body (the first of those that are alike): what it carries on, and what it
        emits."""
        body = node.bodies[alike[0]]
        local = dict(env)
        local.update({id(v): s for v, s in zip(body.inputs, carried, strict=True)})
        said = f" × {times}" if times > 1 else ""
        differ = ", sizes of the first" if len(alike) > 1 else ""
        calls = [n for n in body.nodes if isinstance(n, CallNode)]
        alone = len(calls) == 1 and not any(isinstance(n, OpNode | LoopNode | ScanNode) for n in body.nodes)
        if alone and self.opens(calls[0].block, level):
            inner = self.group(group, f"{_layer(calls[0], node.variable)}{said}{differ}")
            for part in body.nodes:
                if part is calls[0]:
                    self.inside(calls[0], local, inner, level + 1)
                else:
                    self.node(part, local, inner, level)
        else:
            inner = self.group(group, f"{said.strip()}{differ}") if said else group
            self.graph(body, local, inner, level)
        made = [self.sources(local, v, inner) if v is not None else () for v in body.outputs]
        if len(node.iterations) > 1:
            self.carried.update(s for sources in made[: len(carried)] for s in sources)
        return made[: len(carried)], made[len(carried) :]

    def scan(self, node: ScanNode, env: dict[int, Source], group: BoxGroup, level: int) -> None:
        length = node.length
        inner = self.group(group, f"for each of {number_text(length)} steps")
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
        self.graph(node.body, local, inner, level)
        outputs = node.body.outputs
        ends = [self.sources(local, v, inner) if v is not None else () for v in outputs]
        for state, sources in zip(states, ends, strict=False):
            after = self.box(inner, "state", [f"next {state.lines[0]}"])
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
    said = "" if node.alias in ("", block, node.name, variable) else f" ({node.alias})"
    return f"{block}{said}{_shared(node)}"


def _step(node: CallNode | OpNode) -> str:
    return node.instance.label if node.instance is not None else node.name


def _shared(node: CallNode) -> str:
    return ", shared" if node.instance is not None else ""


def _block_lines(node: CallNode) -> list[str]:
    block = node.block
    return [f"{_titled(_step(node), block.name)}{_shared(node)}", *_options(block.header, block.hypers, block.local)]


def _role_of_block(block: Block) -> Role:
    role: Role = "op"
    for node in _nodes_below(block):
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


def _role_of_op(node: OpNode) -> Role:
    if node.copies is not None:
        return "experts"
    if node.op.family in ATTENTION:
        return "attention"
    if node.weights and all(w.kind in ("gain", "bias", "buffer") for w in node.weights):
        return "norm"
    return "weights" if node.weights else "op"


# --- how layers follow each other -------------------------------------------------------------------------------------

Part = tuple[tuple[tuple[int, ...], int], ...]
"""Runs: bodies that are drawn as one (the first of them), and how often in a row."""


def _repeats(node: LoopNode) -> Iterator[tuple[int, Part]]:
    """The turns of a loop as (times, runs): `3 * dense + 58 * sparse` is one part of two runs, `48 * (dense + banded)`
    is 48 times one of two."""
    turns = list(node.iterations)
    if len(set(turns)) > DISTINCT:
        turns = _merged(node, turns)
    alike: dict[int, list[int]] = {}
    for merged, turn in zip(turns, node.iterations, strict=True):
        if turn not in alike.setdefault(merged, []):
            alike[merged].append(turn)
    for period in range(1, len(turns) // 2 + 1):
        if len(turns) % period == 0 and turns == turns[:period] * (len(turns) // period):
            yield len(turns) // period, _runs(turns[:period], alike)
            return
    runs = _runs(turns, alike)
    if len(runs) <= 2 * DISTINCT:
        yield 1, runs
        return
    counts = Counter(turns)
    yield 1, tuple((tuple(alike[t]), n) for t, n in counts.items())


def _runs(turns: Sequence[int], alike: Mapping[int, list[int]]) -> Part:
    return tuple((same, len([*run])) for same, run in groupby(tuple(alike[turn]) for turn in turns))


def _merged(node: LoopNode, turns: list[int]) -> list[int]:
    """Bodies that differ in sizes alone are taken for the first of them."""
    first: dict[tuple[Any, ...], int] = {}
    names = {i: first.setdefault(_outline(node.bodies[i]), i) for i in turns}
    return [names[i] for i in turns]


def _outline(graph: Graph) -> tuple[Any, ...]:
    """What stands in a graph, without any size."""
    found: list[Any] = []
    for node in graph.nodes:
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
            and len(target.lines) == 1
            and into[target.id] == 1
            and out[arrow.source] == 1
            and not arrow.label
            and group_of[source.id] is group_of[target.id]
        ):
            source.lines += target.lines
            group_of[target.id].parts.remove(target)
            renamed[target.id] = source.id
    drawn.arrows = [
        Arrow(renamed.get(a.source, a.source), renamed.get(a.target, a.target), a.label)
        for a in drawn.arrows
        if a.target not in renamed
    ]
