"""How a later place gets to an earlier one: the way back from a claim of causality that does not hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from archdsl.analyses.bounds import ONE, apart, whole
from archdsl.analyses.reach import Frame, Leak, Run, Walk, meets, ratio_of, related
from archdsl.diagnostics import Diagnostic, Label
from archdsl.ir.graph import (
    CallNode,
    CondNode,
    Graph,
    LoopNode,
    Node,
    OpNode,
    ScanNode,
    Value,
    node_outputs,
    subgraphs,
)
from archdsl.ir.masks import Mask
from archdsl.source import Span


@dataclass(frozen=True, eq=False)
class Spot:
    """A value where the walk back has come to."""

    frames: tuple[Frame, ...]
    run: Run
    value: Value

    @property
    def key(self) -> tuple[object, ...]:
        return id(self.run), id(self.value), tuple(f.turn for f in self.frames)


class Explainer:
    """Walks back from a claim to the op that lets a later place in, and on to the input."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.made: dict[int, dict[int, tuple[Node, int]]] = {}

    def explain(self, leak: Leak) -> Diagnostic:
        source = self.walk.sources[leak.source]
        behind, spot = self.behind(leak)
        node, leaking = self.producer(spot), behind[0]
        nearer = next((s for s in self.inputs(spot) if self.depends(s, leak.source)), None)
        before = self.before(nearer, leak) if nearer is not None else []
        notes = [f"the path: {_joined(source.name, before, leaking, behind[1:])}"]
        mask = node.options.get("mask") if isinstance(node, OpNode) else None
        if mask is not None:
            notes.append(f"mask: {mask}")
        elif isinstance(node, OpNode):
            notes.append(f"`{node.op.name}` reads places after its own")
        elif isinstance(node, ScanNode):
            notes.append("what a scan carries at its end has read every place")
        places = _user_spans(node, spot.frames)
        said = [s for s in map(_mask_slot, places) if s is not None] if mask is not None else []
        span = next(iter([*said, *places]), leak.node.span)
        labels = []
        for place in (leak.node.span, *(f.node.span for f in reversed(leak.frames) if isinstance(f.node, CallNode))):
            if place is not None and not place.source.library and place != span:
                labels.append(Label(place, "causality is demanded here"))
                break
        allowed = "" if leak.node.ahead == 1 else f" by more than {leak.node.ahead - 1}"
        what = f"`{leaking}` reads places of `{source.name}` that come later{allowed}"
        return Diagnostic(
            "E0406",
            f"a later token can reach an earlier logit: {what}",
            span,
            labels=tuple(labels),
            notes=tuple(notes),
            help=f"{_cure(mask)}; `--allow-noncausal` for a model that is meant to look ahead",
        )

    def behind(self, leak: Leak) -> tuple[list[str], Spot]:
        """From the claim back to the value that leaks first; what lies on the way, in the order of the data."""
        spot = Spot(leak.frames, leak.run, leak.node.value)
        path = ["head"]
        seen: set[tuple[object, ...]] = set()
        while True:
            seen.add(spot.key)
            path.insert(0, self.label(spot, self.producer(spot)))
            worse = [s for s in self.inputs(spot) if s.key not in seen and self.leaks(s, leak)]
            if not worse:
                return path, spot
            spot = worse[0]

    def before(self, spot: Spot, leak: Leak) -> list[str]:
        """From the input to a value, in the order of the data."""
        path: list[str] = []
        seen: set[tuple[object, ...]] = set()
        while True:
            seen.add(spot.key)
            path.insert(0, self.label(spot, self.producer(spot)))
            nearer = [s for s in self.inputs(spot) if s.key not in seen and self.depends(s, leak.source)]
            if not nearer:
                return path
            spot = nearer[0]

    def depends(self, spot: Spot, source: int) -> bool:
        fact = spot.run.fact(spot.value)
        return fact is not None and fact.bounds[source] != ()

    def leaks(self, spot: Spot, leak: Leak) -> bool:
        """Whether the value reads more than a value at its place should."""
        fact = spot.run.fact(spot.value)
        if fact is None:
            return False
        source = self.walk.sources[leak.source]
        own = source.value.shape[source.axis].value
        axes = (a for a in range(1, spot.value.rank) if related(own, spot.value.shape[a].value))
        axis = next(axes, None)
        if axis is None and any(own in parts for parts in fact.layout):
            fact = apart(fact)  # an axis merged with others, such as the rows of a batch one after the other
            axis = fact.layout.index((own,))
        scans = tuple(range(sum(isinstance(f.node, ScanNode) for f in spot.frames)))
        ratio = ONE if axis is None else ratio_of(source, whole(fact.layout[axis]))
        return not meets(fact.bounds[leak.source], fact.layout, axis, ratio, leak.node.ahead, scans)

    # --- one step back ---

    def producers(self, graph: Graph) -> dict[int, tuple[Node, int]]:
        found = self.made.get(id(graph))
        if found is None:
            found = self.made[id(graph)] = {id(v): (n, k) for n in graph.nodes for k, v in enumerate(node_outputs(n))}
        return found

    def home(self, spot: Spot) -> Spot:
        """The same value in the graph that makes it, if that is one around."""
        while spot.run.parent is not None and id(spot.value) not in self.producers(spot.run.graph):
            if any(v is spot.value for v in spot.run.graph.inputs):
                break
            spot = Spot(spot.frames[:-1], spot.run.parent, spot.value)
        return spot

    def producer(self, spot: Spot) -> Node | None:
        home = self.home(spot)
        found = self.producers(home.run.graph).get(id(home.value))
        return found[0] if found else None

    def inputs(self, spot: Spot) -> list[Spot]:
        spot = self.home(spot)
        frames, run = spot.frames, spot.run
        found = self.producers(run.graph).get(id(spot.value))
        if found is None:
            return self.from_outside(spot)
        node, k = found
        if isinstance(node, OpNode):
            return [Spot(frames, run, v) for v in node.inputs if isinstance(v, Value)]
        inner = run.inner.get(id(node), [])
        if isinstance(node, CallNode):
            ends = [v for v in node.block.graph.outputs if v is not None]
            return [Spot((*frames, Frame(run, node)), inner[0], ends[k])]
        if isinstance(node, LoopNode):
            turn, index = len(node.turns) - 1, k
            if k >= len(node.outputs):
                index = k - len(node.outputs)
                turn = 0
                while index >= len(node.emitted[turn]):
                    index -= len(node.emitted[turn])
                    turn += 1
                index += len(node.starts)
            return self.end_of(frames, run, node, turn, index)
        if isinstance(node, ScanNode):
            index = len(node.starts) + k if k < len(node.stacked) else k - len(node.stacked)
            return self.end_of(frames, run, node, 0, index)
        if isinstance(node, CondNode):
            return [s for turn in range(2) for s in self.end_of(frames, run, node, turn, k)]
        return []

    def end_of(self, frames: tuple[Frame, ...], run: Run, node: Node, turn: int, index: int) -> list[Spot]:
        inner = run.inner[id(node)][turn]
        end = inner.graph.outputs[index]
        return [Spot((*frames, Frame(run, node, turn)), inner, end)] if end is not None else []

    def from_outside(self, spot: Spot) -> list[Spot]:
        """What the graphs around put in."""
        if not spot.frames:
            return []
        *outer, frame = spot.frames
        frames, node = tuple(outer), frame.node
        index = next((i for i, v in enumerate(spot.run.graph.inputs) if v is spot.value), None)
        given: Sequence[object] = ()
        if isinstance(node, CallNode):
            if index is None:
                at = next((i for i, c in enumerate(node.block.contexts) if c.value is spot.value), None)
                given = () if at is None else (node.contexts[at],)
            else:
                given = (node.inputs[index],)
        elif isinstance(node, LoopNode) and index is not None:
            if frame.turn > 0:
                return self.end_of(frames, frame.run, node, frame.turn - 1, index)
            given = (node.starts[index],)
        elif isinstance(node, ScanNode) and index is not None:
            if index < len(node.starts):
                starts = [Spot(frames, frame.run, v) for v in (node.starts[index],) if isinstance(v, Value)]
                return self.end_of(frames, frame.run, node, 0, index) + starts
            given = (node.sequences[index - len(node.starts)],)
        return [Spot(frames, frame.run, v) for v in given if isinstance(v, Value)]

    # --- names ---

    def label(self, spot: Spot, node: Node | None) -> str:
        """The path of names that leads to a value: `blocks.0.attention`."""
        home = self.home(spot)
        steps: list[str] = []
        loops: list[Frame] = []
        for frame in home.frames:
            if isinstance(frame.node, LoopNode):
                loops.append(frame)
            elif isinstance(frame.node, CallNode):
                steps.append(_step(frame.node, loops))
                loops = []
        if isinstance(node, CallNode) or (isinstance(node, OpNode) and (node.name or not steps)):
            steps.append(_step(node, loops))
        elif isinstance(node, ScanNode):
            steps.append("scan")
        return ".".join(steps)


def _step(node: CallNode | OpNode, loops: Sequence[Frame]) -> str:
    if not node.name:
        shared = node.instance.path or node.instance.label if node.instance is not None else ""
        return shared or (node.block.name if isinstance(node, CallNode) else node.op.name)
    if not loops or node.instance is not None:
        return node.name
    before = 0
    for frame in loops:
        assert isinstance(frame.node, LoopNode)
        before += sum(_count(frame.node.bodies[i], node.name) for i in frame.node.turns[: frame.turn])
    return f"{node.name}.{before}"


def _count(graph: Graph, name: str) -> int:
    """How often a graph applies what is called so: a step in a loop is numbered by that."""
    total = 0
    for node in graph.nodes:
        if isinstance(node, LoopNode):
            total += sum(_count(node.bodies[i], name) for i in node.turns)
        elif isinstance(node, CallNode | OpNode):
            total += node.name == name
        else:
            total += sum(_count(inner, name) for inner in subgraphs(node))
    return total


def _joined(source: str, before: Sequence[str], leaking: str, behind: Sequence[str]) -> str:
    """`tokens -> embedding -> blocks.0.attention -> … -> head`"""
    steps = [source, *_short(before, source, leaking, 1), leaking]
    steps += [*_short(behind[:-1], leaking, behind[-1], 2), behind[-1]]
    return " -> ".join(steps)


def _short(names: Sequence[str], first: str, last: str, count: int) -> list[str]:
    """Names between two others, each once and no more than so many."""
    kept = [n for n in dict.fromkeys(names) if n and n not in (first, last)]
    return kept if len(kept) <= count else ["…"]


def _cure(mask: Mask | None) -> str:
    """What to write instead."""
    if mask is None:
        return "read only earlier places"
    joined = f"({mask})" if mask.rule == "|" else f"{mask}"
    return "use `mask: causal`" if mask.rule == "full" else f"use `mask: causal & {joined}`"


def _mask_slot(span: Span) -> Span | None:
    """Where a call, or the body of slots that begins there, says its mask."""
    text = span.source.text
    start, end = span.start, span.end
    if "mask:" not in span.text:
        start = text.find("{", span.end)
        end = text.find("}", start)
        if start < 0 or end < 0 or re.search(r"->|=", text[span.end : end]):
            return None
    found = list(re.finditer(r"\bmask:", text[start:end]))
    if len(found) != 1:
        return None
    start += found[0].start()
    depth, stop = 0, start
    for stop in range(start, end + 1):
        depth += (text[stop : stop + 1] == "(") - (text[stop : stop + 1] == ")")
        next_slot = stop > start and re.match(r"\s\w+:", text[stop:end]) is not None
        if (
            text[stop : stop + 1] in ("\n", "#", "}", "")
            or depth < 0
            or (depth == 0 and (text[stop] == "," or next_slot))
        ):
            break
    return Span(span.source, start, start + len(text[start:stop].rstrip()))


def _user_spans(node: Node | None, frames: Sequence[Frame]) -> list[Span]:
    """The places outside the library, the nearest first: the op itself, then the blocks that hold it."""
    spans: list[Span | None] = [node.span if node is not None else None]
    for frame in reversed(frames):
        spans.append(frame.node.span)
        if isinstance(frame.node, CallNode):
            spans.append(frame.node.block.span)
    return [s for s in spans if s is not None and not s.source.library]
