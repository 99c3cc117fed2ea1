"""Models are well-formed, and whatever breaks one is found: each kind of mutation below, in several models."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import archdsl.frontend.blocks
import archdsl.ir.static
from archdsl import api
from archdsl.diagnostics import ArchError, InternalError
from archdsl.ir import verify
from archdsl.ir.dims import Bin, Expr, Lit, Num, Poly, Var, free_names, num
from archdsl.ir.graph import (
    Block,
    CallNode,
    CheckNode,
    CondNode,
    ConfigField,
    Graph,
    LoopNode,
    LossNode,
    Model,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
    node_outputs,
    reads,
    subgraphs,
)
from archdsl.ir.static import ElementRef, JoinedPattern, RepeatedPattern
from archdsl.ir.verify.rules import same_type
from archdsl.passes import flatten
from archdsl.passes.flatten import FlatGraph, FlatOp, FlatScan, unroll, walk

MODELS = (
    "gpt2",
    "deepseek_v3",  # loops over several bodies, experts
    "cho_2014",  # a scan that splits a block in two
    "graph_mamba",  # an arm for training, first values that are computed
    "switch_base_8",  # losses
    "linformer",  # what is shared is handed from block to block
    "ntm_copy",  # loops that emit
    "bert_span_classifier",  # several results
)
EACH = 4
"""How often each kind of mutation is made in each model, where there are more ways."""


@dataclass(eq=False)
class Parts:
    """All that there is in a model."""

    model: Model
    blocks: list[Block] = field(default_factory=list)
    graphs: list[tuple[Graph, Block]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._block(self.model.block)

    def _block(self, block: Block) -> None:
        if block not in self.blocks:
            self.blocks.append(block)
            self._graph(block.graph, block)

    def _graph(self, graph: Graph, block: Block) -> None:
        self.graphs.append((graph, block))
        for node in graph.nodes:
            for inner in subgraphs(node):
                self._graph(inner, block)
            for call in node.blocks.values() if isinstance(node, OpNode) else (node,):
                if isinstance(call, CallNode):
                    self._block(call.block)

    def nodes(self, *kinds: type) -> Iterator[Any]:
        yield from (n for graph, _ in self.graphs for n in graph.nodes if isinstance(n, kinds))

    def values(self) -> Iterator[Value]:
        yield from (v for n in self.nodes(object) for v in node_outputs(n))


@cache
def parts_of(name: str) -> Parts:
    return Parts(api.load(name, allow_noncausal=True))


Change = tuple[Any, str, Any]
"""A field of a thing, and what it becomes."""
MUTATIONS: list[Callable[[Parts], Iterator[Change]]] = []


def mutation(function: Callable[[Parts], Iterator[Change]]) -> Callable[[Parts], Iterator[Change]]:
    MUTATIONS.append(function)
    return function


def put(items: Any, i: int, *new: Any) -> tuple[Any, ...]:
    """The items with others in place of the i-th."""
    return (*items[:i], *new, *items[i:][1:])


def larger(n: Num) -> Num:
    """Another number that says so itself."""
    return num(n.value + 1) if isinstance(n.value, int) else num(7)


# --- values -----------------------------------------------------------------------------------------------------------


@mutation
def a_node_stands_before_what_it_reads(parts: Parts) -> Iterator[Change]:
    for graph, _ in parts.graphs:
        for i, (a, b) in enumerate(itertools.pairwise(graph.nodes)):
            if {*node_outputs(a)} & {*reads(b)}:
                yield graph, "nodes", (*graph.nodes[:i], b, a, *graph.nodes[i + 2 :])


@mutation
def a_node_stands_twice(parts: Parts) -> Iterator[Change]:
    for graph, _ in parts.graphs:
        for i, node in enumerate(graph.nodes):
            if node_outputs(node):
                yield graph, "nodes", put(graph.nodes, i, node, node)


@mutation
def a_node_is_lost(parts: Parts) -> Iterator[Change]:
    for graph, _ in parts.graphs:
        read = {v for n in graph.nodes for v in reads(n)} | {*graph.outputs}
        for i, node in enumerate(graph.nodes):
            if read & {*node_outputs(node)}:
                yield graph, "nodes", put(graph.nodes, i)


@mutation
def a_result_comes_out_of_an_inner_graph(parts: Parts) -> Iterator[Change]:
    for graph, _ in parts.graphs:
        inner = [v for n in graph.nodes for g in subgraphs(n) for m in g.nodes for v in node_outputs(m)]
        for v in inner if graph.outputs else ():
            yield graph, "outputs", put(graph.outputs, 0, v)


@mutation
def an_input_comes_from_nowhere(parts: Parts) -> Iterator[Change]:
    for node in parts.nodes(OpNode, CallNode):
        for i, v in enumerate(node.inputs):
            if isinstance(v, Value):
                yield node, "inputs", put(node.inputs, i, replace(v))


@mutation
def a_tensor_is_of_another_type(parts: Parts) -> Iterator[Change]:
    for v in parts.values():
        yield v, "dtype", "bool" if v.dtype != "bool" else "float"


@mutation
def a_tensor_is_of_another_type_of_real_numbers(parts: Parts) -> Iterator[Change]:
    yield from ((v, "dtype", "bfloat16") for v in parts.values() if v.dtype == "float")


@mutation
def a_tensor_has_another_size(parts: Parts) -> Iterator[Change]:
    for v in parts.values():
        for i, d in enumerate(v.shape):
            yield v, "shape", put(v.shape, i, larger(d))


@mutation
def a_tensor_has_an_axis_more(parts: Parts) -> Iterator[Change]:
    yield from ((v, "shape", (num(1), *v.shape)) for v in parts.values())


@mutation
def an_input_of_the_model_has_a_size_of_its_own(parts: Parts) -> Iterator[Change]:
    v = parts.model.block.graph.inputs[0]
    yield from ((v, "shape", put(v.shape, i, num(7))) for i in range(v.rank))


# --- numbers ----------------------------------------------------------------------------------------------------------


@mutation
def a_size_is_not_what_its_expression_says(parts: Parts) -> Iterator[Change]:
    for v in parts.values():
        for i, d in enumerate(v.shape):
            yield v, "shape", put(v.shape, i, Num(d.value, Bin("+", d.expr, Lit("1"))))


@mutation
def a_size_is_made_of_an_unknown_name(parts: Parts) -> Iterator[Change]:
    for v in parts.values():
        for i, d in enumerate(v.shape):
            yield v, "shape", put(v.shape, i, Num(d.value, Var("nowhere")))


@mutation
def an_option_is_not_what_its_expression_says(parts: Parts) -> Iterator[Change]:
    for node in parts.nodes(OpNode):
        for name, n in node.options.items():
            if isinstance(n, Num) and not isinstance(n.value, Poly):
                yield node, "options", {**node.options, name: Num(n.value + 1, n.expr)}


@mutation
def an_axis_has_another_size(parts: Parts) -> Iterator[Change]:
    for node in parts.nodes(OpNode):
        for name, n in node.axes.items():
            yield node, "axes", {**node.axes, name: larger(n)}


@mutation
def a_hyper_parameter_is_another(parts: Parts) -> Iterator[Change]:
    for block in parts.blocks:
        for name, n in block.hypers.items():
            if isinstance(n, Num):
                yield block, "hypers", {**block.hypers, name: Num(larger(n).value, n.expr)}


@mutation
def an_axis_of_a_block_is_another(parts: Parts) -> Iterator[Change]:
    for block in parts.blocks:
        for name, n in block.axes.items():
            yield block, "axes", {**block.axes, name: Num(larger(n).value, n.expr)}


@mutation
def a_local_name_is_computed_from_nothing(parts: Parts) -> Iterator[Change]:
    for block in parts.blocks:
        for name in block.local:
            yield block, "local", {**block.local, name: Var("nowhere")}


@mutation
def a_local_name_is_another_number(parts: Parts) -> Iterator[Change]:
    for block in parts.blocks:
        for name, expr in block.local.items():
            if isinstance(block.hypers.get(name), Num):
                yield block, "local", {**block.local, name: Bin("+", expr, Lit("1"))}


@mutation
def an_assert_does_not_hold(parts: Parts) -> Iterator[Change]:
    for block in parts.blocks:
        for left, _, right, text in block.asserts:
            yield block, "asserts", ((left, "==", Bin("+", right, Lit("1")), text),)


@mutation
def a_check_is_known_before(parts: Parts) -> Iterator[Change]:
    for node in parts.nodes(CheckNode):
        yield node, "left", num(8)
        yield node, "op", "~"


# --- primitives and weights -------------------------------------------------------------------------------------------


@mutation
def a_primitive_lacks_an_input(parts: Parts) -> Iterator[Change]:
    yield from ((n, "inputs", n.inputs[:-1]) for n in parts.nodes(OpNode) if n.inputs and not n.op.variadic)


@mutation
def a_primitive_has_too_many_inputs(parts: Parts) -> Iterator[Change]:
    for node in parts.nodes(OpNode):
        if node.inputs and not node.op.variadic and not node.op.further_inputs:
            yield node, "inputs", (*node.inputs, node.inputs[0])


@mutation
def a_primitive_lacks_a_result(parts: Parts) -> Iterator[Change]:
    yield from ((n, "outputs", n.outputs[:-1]) for n in parts.nodes(OpNode))


@mutation
def a_primitive_lacks_a_weight(parts: Parts) -> Iterator[Change]:
    yield from ((n, "weights", n.weights[:-1]) for n in parts.nodes(OpNode) if n.weights)


def weights(parts: Parts) -> Iterator[Any]:
    yield from (w for n in parts.nodes(OpNode) for w in n.weights)
    yield from (n.weight for n in parts.nodes(ParamNode))


@mutation
def a_weight_has_another_size(parts: Parts) -> Iterator[Change]:
    for w in weights(parts):
        for i, d in enumerate(w.shape):
            yield from (
                (w, "shape", put(w.shape, i, n))
                for n in (num(0), larger(d), parts.model.block.graph.inputs[0].shape[1])
            )


@mutation
def a_weight_is_of_another_kind(parts: Parts) -> Iterator[Change]:
    for node in parts.nodes(OpNode):
        for w in node.weights:
            yield w, "trained", not w.trained
            yield w, "name", f"{w.name}_"


@mutation
def a_raw_weight_is_read_as_another(parts: Parts) -> Iterator[Change]:
    for node in parts.nodes(ParamNode):
        yield node.weight, "dtype", "bool" if node.weight.dtype != "bool" else "float"


@mutation
def a_first_value_does_not_fit(parts: Parts) -> Iterator[Change]:
    for graph in (w.init.graph for w in weights(parts) if w.init.graph is not None):
        yield graph, "outputs", ()
        yield graph, "nodes", graph.nodes[:-1]
        yield graph.outputs[0], "shape", (num(3), num(5), *graph.outputs[0].shape)


@mutation
def a_step_in_the_path_of_weights_is_taken(parts: Parts) -> Iterator[Change]:
    for graph, _ in parts.graphs:
        named = [n for n in graph.nodes if isinstance(n, OpNode | CallNode | ParamNode) and n.name]
        own = [n for n in named if isinstance(n, ParamNode) or n.instance is None]
        if graph in [b.graph for b in parts.blocks]:  # in a loop a name may come again
            yield from ((b, "name", a.name) for a, b in itertools.pairwise(own) if a.name != b.name)
        for node in own:
            yield from ((node, "name", name) for name in ("", "a b", "class", "forward", "1st"))


# --- calls ------------------------------------------------------------------------------------------------------------


@mutation
def a_call_lacks_an_argument(parts: Parts) -> Iterator[Change]:
    for call in parts.nodes(CallNode):
        yield call, "inputs", call.inputs[:-1]
        yield call, "outputs", call.outputs[:-1]
        if call.contexts:
            yield call, "contexts", call.contexts[:-1]


@mutation
def a_call_hands_on_another_tensor(parts: Parts) -> Iterator[Change]:
    for graph, _ in parts.graphs:
        known = list(graph.inputs)
        for node in graph.nodes:
            if isinstance(node, CallNode):
                for i, v in enumerate(node.inputs):
                    others = (o for o in known if v is not None and not same_type(o, v))
                    yield from ((node, "inputs", put(node.inputs, i, o)) for o in others)
            known += node_outputs(node)


@mutation
def a_call_binds_a_name_to_another_number(parts: Parts) -> Iterator[Change]:
    for call in parts.nodes(CallNode):
        for name in sizes_of(call.block) & call.bind.keys():
            expr: Expr = call.bind[name]
            yield call, "bind", {**call.bind, name: Bin("+", expr, Lit("1"))}
            yield call, "bind", {**call.bind, name: Var("nowhere")}
            yield call, "bind", {k: e for k, e in call.bind.items() if k != name}


def sizes_of(block: Block) -> set[str]:
    """Names in the sizes of a block's tensors."""
    return {name for v in block.graph.inputs for d in v.shape for name in free_names(d.expr)} - block.local.keys()


@mutation
def a_call_is_of_another_block(parts: Parts) -> Iterator[Change]:
    for call in parts.nodes(CallNode):
        others = [b for b in parts.blocks if len(b.graph.inputs) != len(call.inputs)]
        yield from ((call, "block", b) for b in others)


@mutation
def a_block_lacks_a_context(parts: Parts) -> Iterator[Change]:
    yield from ((b, "contexts", b.contexts[:-1]) for b in parts.blocks if b.contexts)


@mutation
def a_call_prepares_for_another_block(parts: Parts) -> Iterator[Change]:
    yield from ((n, "step", parts.model.block) for n in parts.nodes(CallNode) if n.step is not None)


@mutation
def a_name_of_a_tensor_or_result_is_missing(parts: Parts) -> Iterator[Change]:
    for block in parts.blocks:
        yield block, "result_names", (*block.result_names, None)
        if len(block.tensor_names) > 1:
            yield block, "tensor_names", (block.tensor_names[0],) * len(block.tensor_names)
        if None not in block.result_names and len(block.result_names) > 1:
            yield block, "result_names", (block.result_names[0],) * len(block.result_names)


# --- what is shared ---------------------------------------------------------------------------------------------------


@mutation
def what_is_shared_lives_nowhere(parts: Parts) -> Iterator[Change]:
    for block in parts.blocks:
        yield from ((block, "instances", put(block.instances, i)) for i in range(len(block.instances)))


@mutation
def what_is_shared_lives_twice(parts: Parts) -> Iterator[Change]:
    for block in parts.blocks:
        for other in parts.blocks:
            if other.hypers is not block.hypers:
                yield from ((other, "instances", (*other.instances, i)) for i in block.instances)


@mutation
def what_is_shared_has_another_path(parts: Parts) -> Iterator[Change]:
    for node in parts.nodes(CallNode, OpNode):
        if node.instance is not None and node.handle is None:
            yield node.instance, "path", f"{node.instance.path}_"


@mutation
def a_handle_is_lost(parts: Parts) -> Iterator[Change]:
    for node in parts.nodes(CallNode, OpNode):
        if node.handle is not None:
            yield node, "handle", None


@mutation
def a_weight_is_read_that_is_not_there(parts: Parts) -> Iterator[Change]:
    yield from ((n, "weight", "bias") for n in parts.nodes(WeightNode))


# --- loops, scans, conditions -----------------------------------------------------------------------------------------


@mutation
def a_turn_too_many(parts: Parts) -> Iterator[Change]:
    for loop in parts.nodes(LoopNode):
        if loop.pattern is not None or loop.emitted:
            yield loop, "iterations", (*loop.iterations, loop.iterations[-1])
            yield loop, "iterations", loop.iterations[:-1]
        yield loop, "iterations", (*loop.iterations[:-1], len(loop.bodies))


@mutation
def a_body_has_no_turn(parts: Parts) -> Iterator[Change]:
    yield from ((n, "bodies", (*n.bodies, n.bodies[0])) for n in parts.nodes(LoopNode))


@mutation
def a_list_is_longer_than_its_loop(parts: Parts) -> Iterator[Change]:
    for loop in parts.nodes(LoopNode):
        if loop.pattern is not None:
            yield loop, "pattern", JoinedPattern((loop.pattern, ElementRef(0)))
            if isinstance(loop.pattern, RepeatedPattern):
                yield loop, "pattern", replace(loop.pattern, count=Var("nowhere"))


@mutation
def a_loop_carries_too_little(parts: Parts) -> Iterator[Change]:
    for loop in parts.nodes(LoopNode):
        yield from ((loop, name, getattr(loop, name)[:-1]) for name in ("starts", "outputs") if loop.starts)
        if any(loop.emitted):
            yield loop, "emitted", loop.emitted[:-1]
            yield loop, "emitted", (*loop.emitted[:-1], ())
        for body in loop.bodies:
            yield body, "outputs", body.outputs[:-1]


@mutation
def a_scan_carries_too_little(parts: Parts) -> Iterator[Change]:
    for scan in parts.nodes(ScanNode):
        for name in ("starts", "sequences", "stacked", "finals"):
            if getattr(scan, name):
                yield scan, name, getattr(scan, name)[:-1]
        yield scan, "length", num(7)
        yield scan.body, "outputs", scan.body.outputs[:-1]
        yield scan.body, "inputs", scan.body.inputs[:-1]


@mutation
def an_arm_gives_too_little(parts: Parts) -> Iterator[Change]:
    for cond in parts.nodes(CondNode):
        if cond.outputs:
            yield cond.then, "outputs", ()
            yield cond.otherwise, "outputs", ()
        else:
            yield cond.otherwise, "inputs", (Value(()),)


@mutation
def a_loss_is_no_number(parts: Parts) -> Iterator[Change]:
    yield from ((n.value, "shape", (num(2),)) for n in parts.nodes(LossNode))
    yield from ((n.value, "dtype", "int") for n in parts.nodes(LossNode))


# --- the model --------------------------------------------------------------------------------------------------------


@mutation
def the_config_says_another_number(parts: Parts) -> Iterator[Change]:
    config = parts.model.config
    for i, f in enumerate(config):
        used = any(
            f.name in free_names(d.expr) for n in parts.model.block.graph.nodes for v in reads(n) for d in v.shape
        )
        if used:
            yield parts.model, "config", put(config, i, ConfigField(f.name, larger(f.value)))
            yield parts.model, "config", put(config, i)
        yield parts.model, "config", (*config, f)


@mutation
def the_context_is_another(parts: Parts) -> Iterator[Change]:
    yield parts.model, "context", num(3)


@mutation
def a_symbol_is_lost(parts: Parts) -> Iterator[Change]:
    yield parts.model, "symbols", parts.model.symbols[:-1]


@mutation
def the_model_takes_something_from_around_it(parts: Parts) -> Iterator[Change]:
    around = next((c for b in parts.blocks for c in b.contexts), None)
    if around is not None:
        yield parts.model.block, "contexts", (around,)


# --- unrolled graphs --------------------------------------------------------------------------------------------------


def unrolled(name: str) -> FlatGraph:
    return unroll(parts_of(name).model)[0]


def flat_mutations(graph: FlatGraph) -> Iterator[Change]:
    held = [w for n in walk(graph) if isinstance(n, FlatOp) for w in n.weights.values()]
    for i, node in enumerate(graph.nodes):
        yield graph, "nodes", put(graph.nodes, i)
        yield graph, "nodes", put(graph.nodes, i, node, node)
        yield graph, "nodes", (node, *put(graph.nodes, i)) if i and node.inputs else ()
    for node in walk(graph):
        if isinstance(node, FlatOp):
            tensors = [(i, v) for i, v in enumerate(node.inputs) if isinstance(v, Value)]
            yield from ((node, "inputs", put(node.inputs, i, replace(v))) for i, v in tensors)
            yield node, "outputs", node.outputs[:-1]
            for name, w in node.weights.items():
                yield node, "weights", {**node.weights, name: replace(w, weight=replace(w.weight, shape=(num(3),)))}
                shape = [d.value for d in w.weight.shape]
                other = next((o.path for o in held if [d.value for d in o.weight.shape] != shape), None)
                if other is not None:
                    yield node, "weights", {**node.weights, name: replace(w, path=other)}
        if isinstance(node, FlatScan):
            yield node, "starts", node.starts[:-1]
            yield node.body, "outputs", node.body.outputs[:-1]
            yield node.body, "nodes", node.body.nodes[:-1]
        for v in node.outputs:
            yield v, "shape", (num(7), *v.shape)
            yield v, "dtype", "bool" if v.dtype != "bool" else "float"


# --- tests ------------------------------------------------------------------------------------------------------------


def found_all(name: str, changes: list[Change], violations: Callable[[], list[str]], most: int) -> int:
    """Make some of the changes, each for itself; how many. Fails where one is not found."""
    chosen = random.Random(name).sample(changes, min(most, len(changes)))
    for thing, attribute, new in chosen:
        before = getattr(thing, attribute)
        object.__setattr__(thing, attribute, new)
        try:
            found = violations()
        finally:
            object.__setattr__(thing, attribute, before)
        assert found, f"{attribute} of {type(thing).__name__} {getattr(thing, 'name', '')} in {name}"
    return len(chosen)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda m: m.__name__)
def test_a_mutation_is_found(mutate: Callable[[Parts], Iterator[Change]]) -> None:
    made = 0
    for name in MODELS:
        parts = parts_of(name)
        made += found_all(name, list(mutate(parts)), lambda m=parts.model: verify.violations(m), EACH)  # type: ignore[misc]
    assert made, "no model has what is to be broken"


@pytest.mark.parametrize("name", [name for name in MODELS if name != "deepseek_v3"])
def test_a_mutation_of_an_unrolled_graph_is_found(name: str) -> None:
    graph = unrolled(name)
    assert found_all(name, list(flat_mutations(graph)), lambda: list(flatten.violations(graph)), 5 * EACH)


def test_a_path_of_two_weights_is_found() -> None:
    graph = unrolled("gpt2")
    first, second = [n for n in walk(graph) if isinstance(n, FlatOp) and n.weights][1:3]
    (_, w), (name, x) = next(iter(first.weights.items())), next(iter(second.weights.items()))
    broken = replace(second, weights={name: replace(x, path=w.path, weight=replace(x.weight, shape=(num(3),)))})
    nodes = tuple(broken if n is second else n for n in graph.nodes)
    assert f"`{w.path}` is the path of two weights" in [*flatten.violations(replace(graph, nodes=nodes))]


def test_what_was_mutated_is_as_it_was() -> None:
    for name in MODELS:
        assert verify.violations(parts_of(name).model) == []


TEMPLATES = (
    # the rows of an expert have no name that another could take
    """
model m(NAME = 8)(x: [b, t, NAME]) -> [b, t, NAME] {
  w, c = x -> linear(4) -> topk(2)
  return experts(swiglu(hidden: 8), 4)(x, w, c)
}""",
    # a mask that a block is handed is made of a tensor of the model, which has other names for its axes
    """
block l(x: [b, t, width]) { mask_it = x -> mha(heads: 2)
  return mask_it }
block k(m: mask, NAME: size = 3)(x: [b, t, width]) -> [b, t, width] {
  return x -> mha(heads: 2, mask: m) -> linear(NAME) -> linear(width)
}
model m(size = 8)(x: [n, t, size], real: bool[n, t]) -> [n, t, size] {
  return x -> l -> k(causal & keys(real)) -> k(causal | keys(real), NAME: 5)
}""",
)
NAMES = ("harmless", "rows", "expert", "b", "n", "batch", "time", "features", "real", "mask", "heads")


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", NAMES)
def test_names_of_two_blocks_stay_apart(template: str, name: str) -> None:
    try:
        model = api.load(text=template.replace("NAME", name), allow_noncausal=True)
    except ArchError:  # an axis of that template is called so
        assert name in ("b", "n")
    else:
        assert verify.violations(model) == []


def test_what_is_broken_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parts_of("gpt2").model
    broken = replace(model, symbols=())
    with pytest.raises(
        InternalError, match=r"^after a pass: Model in `gpt2` \(gpt2\.arch:13\): A model has no contexts"
    ):
        verify.checked(broken, verify.violations, "a pass")
    monkeypatch.setattr(verify, "enabled", False)
    assert verify.checked(broken, verify.violations, "a pass") is broken


def test_numbers_of_a_block_that_is_handed_on_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (archdsl.ir.static, archdsl.frontend.blocks):
        monkeypatch.setattr(module, "free_name", lambda name, *_: name)
    with pytest.raises(InternalError, match="expert_hidden"):
        api.load(Path(__file__).parent / "truth" / "joined_block.arch")
