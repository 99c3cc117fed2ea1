"""The way back from a value to what it is computed from, through calls, loops, scans and branches, and its names."""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.dependence.domain import Fact
from archdsl.frozen import Entity
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
)
from archdsl.ir.interpreter import Level, Run
from archdsl.ir.walk import runs


class Spot(Entity):
    """A value where the walk back has come to."""

    frames: tuple[Level[Fact], ...]
    run: Run[Fact]
    value: Value

    @property
    def key(self) -> tuple[object, ...]:
        return id(self.run), id(self.value), tuple(f.iteration for f in self.frames)


class Paths:
    """Finds what a value in a run is computed from, one step at a time."""

    def __init__(self) -> None:
        self.made: dict[int, dict[int, tuple[Node, int]]] = {}

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
        inner = run.inner.get(node, [])
        if isinstance(node, CallNode):
            ends = [v for v in node.block.graph.outputs if v is not None]
            return [Spot((*frames, Level(run, node)), inner[0], ends[k])]
        if isinstance(node, LoopNode):
            iteration, index = len(node.iterations) - 1, k
            if k >= len(node.outputs):
                index = k - len(node.outputs)
                iteration = 0
                while index >= len(node.emitted[iteration]):
                    index -= len(node.emitted[iteration])
                    iteration += 1
                index += len(node.starts)
            return self.end_of(frames, run, node, iteration, index)
        if isinstance(node, ScanNode):
            index = len(node.starts) + k if k < len(node.stacked) else k - len(node.stacked)
            return self.end_of(frames, run, node, 0, index)
        if isinstance(node, CondNode):
            return [s for iteration in range(2) for s in self.end_of(frames, run, node, iteration, k)]
        return []

    def end_of(
        self, frames: tuple[Level[Fact], ...], run: Run[Fact], node: Node, iteration: int, index: int
    ) -> list[Spot]:
        inner = run.inner[node][iteration]
        end = inner.graph.outputs[index]
        return [Spot((*frames, Level(run, node, iteration)), inner, end)] if end is not None else []

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
            if frame.iteration > 0:
                return self.end_of(frames, frame.run, node, frame.iteration - 1, index)
            given = (node.starts[index],)
        elif isinstance(node, ScanNode) and index is not None:
            if index < len(node.starts):
                starts = [Spot(frames, frame.run, v) for v in (node.starts[index],) if isinstance(v, Value)]
                return self.end_of(frames, frame.run, node, 0, index) + starts
            given = (node.sequences[index - len(node.starts)],)
        return [Spot(frames, frame.run, v) for v in given if isinstance(v, Value)]

    # --- names ---

    def label(self, spot: Spot, node: Node | None) -> str:
        """The path of names that leads to a value: `blocks.0.attention`; of an input of the model, its name."""
        home = self.home(spot)
        if node is None and not home.frames:
            return home.value.name
        steps: list[str] = []
        loops: list[Level[Fact]] = []
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


def _step(node: CallNode | OpNode, loops: Sequence[Level[Fact]]) -> str:
    if not node.name:
        shared = node.instance.path or node.instance.label if node.instance is not None else ""
        return shared or (node.block.name if isinstance(node, CallNode) else node.op.name)
    if not loops or node.instance is not None:
        return node.name
    before = 0
    for frame in loops:
        assert isinstance(frame.node, LoopNode)
        before += sum(_count(frame.node.bodies[i], node.name) for i in frame.node.iterations[: frame.iteration])
    return f"{node.name}.{before}"


def _count(graph: Graph, name: str) -> int:
    """How often a graph applies what is called so: a step in a loop is numbered by that."""
    return sum(times for node, times, _ in runs(graph) if isinstance(node, CallNode | OpNode) and node.name == name)
