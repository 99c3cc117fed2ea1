"""Visits of a model: what is run how often, what has weights, what is needed, and the interpreter of all analyses."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from archdsl import load
from archdsl.ir.graph import CallNode, LoopNode, OpNode, ScanNode
from archdsl.ir.interpreter import Interpreter, Run
from archdsl.ir.walk import above, modules, nodes_below, operations, runs
from archdsl.ir.weights import weights
from archdsl.passes.dce import live, live_nodes


class Made(NamedTuple):
    """A node of a graph of strings."""

    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()


def test_live_keeps_what_outputs_need_in_order() -> None:
    a, b, dead, c = Made(("a",)), Made(("b", "b2"), ("a",)), Made(("d",), ("b",)), Made(("c",), ("b2",))
    assert live([a, b, dead, c], ["c"]) == (a, b, c)
    assert live([a, b, dead, c], ["c"], keeps=lambda node: node is dead) == (a, b, dead, c)
    assert live([a, b, dead, c], []) == ()


def test_every_node_of_a_model_of_the_zoo_is_live() -> None:
    graph = load("gpt2").block.graph
    assert live_nodes(graph) == graph.nodes


def test_runs_count_iterations() -> None:
    graph = load("gpt2").block.graph
    times = {node.name: (times, loop is not None) for node, times, loop in runs(graph) if isinstance(node, CallNode)}
    assert times["blocks"] == (12, True)
    assert operations(graph) > 12 * len({*nodes_below(graph)}) // 2


def test_modules_are_the_first_steps_of_weights() -> None:
    model = load("deepseek_v3")
    steps = [step for _, step in modules(model.block.graph)]
    assert len(steps) == len({*steps})
    owned = {i.path for i in model.block.instances}
    assert {w.path for w in weights(model)} == {
        w.path for w in weights(model) if w.path.startswith((*(f"{s}." for s in steps), *(f"{s}." for s in owned)))
    }


def test_above_an_output_lie_the_inputs() -> None:
    graph = load("gpt2").block.graph
    (output,) = graph.outputs
    assert output is not None
    assert {*graph.inputs, output} <= above(graph, output)


class Depth(Interpreter[int]):
    """The most primitives in a row that lead to a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.visits: Counter[OpNode] = Counter()

    def op(self, node: OpNode, run: Run[int]) -> None:
        self.visits[node] += 1
        deepest = max((run.fact(v) or 0 for v in node.inputs), default=0)
        run.facts.update((v, deepest + 1 if deepest < 3 else 3) for v in node.outputs)

    def scan(self, node: ScanNode, run: Run[int]) -> None:
        inputs = [run.fact(v) for v in (*node.starts, *node.sequences)]
        run.inner[node] = [self.within(node.body, inputs, run, node)]
        run.facts.update(dict.fromkeys((*node.finals, *node.stacked), self.either(run.inner[node][0].ends)))

    def either(self, facts: Sequence[int | None]) -> int | None:
        return max((f or 0 for f in facts), default=None)


def test_a_block_is_visited_once_for_each_set_of_facts() -> None:
    graph = load("deepnet_1000").block.graph
    analysis = Depth()
    run = analysis.run(graph, [0] * len(graph.inputs))
    assert run.ends == [3]
    assert 0 < max(analysis.visits.values()) <= 4  # not a thousand times


def test_facts_of_a_loop_reach_its_results() -> None:
    graph = load("gpt2").block.graph
    run = Depth().run(graph, [0] * len(graph.inputs))
    (loop,) = (node for node in graph.nodes if isinstance(node, LoopNode))
    assert len(run.inner[loop]) == len(loop.iterations)
    assert len({*run.inner[loop]}) <= 4  # those with the same facts are one
    assert [run.fact(v) for v in loop.outputs] == [3]
