"""A step of decoding as a Model: with its nodes erased it is the model, and it keeps what the plan keeps."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from erasure import difference
from random_specs.configs import drawn
from random_specs.plans import PlanWriter, spec
from zoo import sizes

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.ir.dims import Poly, of_atom, with_symbol
from archdsl.ir.graph import AppendNode, Model, OpNode, ScanNode
from archdsl.passes.decode import CacheSpec, DecodePlan, decoding
from archdsl.passes.flat_step import unroll_step
from archdsl.passes.flatten import FlatOp
from archdsl.passes.step import Stepped, stepped

ROOT = Path(__file__).parent.parent
FOLDERS = ("specs", "specs/hf", "examples", "tests/parity/specs")
SPECS = [str(p.relative_to(ROOT)) for folder in FOLDERS for p in sorted((ROOT / folder).glob("*.arch"))]


def kept(step: Stepped) -> Counter[Any]:
    """What a step keeps: kind, layer, shape and type of each tensor."""
    time, flat = of_atom(step.time), unroll_step(step)
    found: Counter[Any] = Counter()
    for k in flat.kept:
        found[k.kind, k.layer, tuple(str(with_symbol(d.value, step.all.name, time)) for d in k.shape), k.dtype] += 1
    found.update(("once", 0, tuple(str(d.value) for d in v.shape), v.dtype) for v in flat.before.outputs)
    return found


def planned(plan: DecodePlan) -> Counter[Any]:
    """What a plan keeps."""
    found: Counter[Any] = Counter()
    for e in plan.entries():
        if isinstance(e, CacheSpec):
            found["cache", e.layer, tuple(str(d.value) for d in e.value.shape), e.value.dtype] += 1
        else:
            found.update(("state", e.layer, tuple(str(d.value) for d in s.shape), s.dtype) for s in e.states)
    found.update(("once", 0, tuple(str(d.value) for d in v.shape), v.dtype) for v in plan.before.outputs)
    return found


def judge(model: Model, counts: Counter[str], exact: bool = True) -> None:
    """Hold a step of a model against the model and its plan. A loop whose turns keep the same tensor keeps it once more
    for each: not `exact` allows that."""
    plan, why = decoding(model)
    if plan is None:
        with pytest.raises(ArchError) as refused:
            stepped(model)
        assert refused.value.diagnostics[0].message == why
        counts["refused"] += 1
        return
    step = stepped(model)
    assert difference(step) == ""
    found, due = kept(step), planned(plan)
    assert found == due if exact else sum(c for c in found.values()) >= sum(due.values())
    counts["stepped"] += 1
    counts["kept"] += sum(found.values())


@pytest.mark.parametrize("spec", SPECS)
def test_a_step_without_its_nodes_is_the_model(spec: str) -> None:
    counts: Counter[str] = Counter()
    judge(archdsl.load(ROOT / spec), counts)
    assert counts["stepped"] + counts["refused"] == 1


def test_steps_of_random_models() -> None:
    """2,000 with --every."""
    random, counts = Random(20), Counter[str]()
    texts = []
    for _ in range(1500 if sizes.every else 60):
        writer = PlanWriter(random, fixed=False)
        texts.append(spec(random, [writer.block(name) for name in "abc"[: random.choice((1, 1, 2, 3))]]))
    for text in (*texts, *drawn(500 if sizes.every else 20, 3)):
        try:
            model = archdsl.load(text=text)
        except ArchError:
            continue  # not proved causal
        try:
            judge(model, counts, exact=False)
        except Exception as problem:
            problem.add_note(text)
            raise
    assert counts["stepped"] > len(texts) / 3
    assert counts["kept"] > counts["stepped"]


LATER = """
model m(tokens: token[batch, time]) {
  x = tokens -> embedding(11, 8)
  return x -> mha(heads: 2, mask: causal) -> linear(11)
}
"""


def test_erasure_sees_what_is_read_instead() -> None:
    """Values in place of keys: another model."""
    step = stepped(archdsl.load(text=LATER))
    block = next(
        n.block
        for n in step.model.block.graph.nodes
        if getattr(n, "name", "") == "attention" or (n.outputs and hasattr(n, "block"))
    )
    appended = [n for n in block.graph.nodes if isinstance(n, AppendNode)]
    assert [n.name for n in appended] == ["k", "v"]
    object.__setattr__(appended[0], "value", appended[1].value)
    assert difference(step) != ""
    stepped.cache_clear()


def test_sizes_of_a_step_are_two() -> None:
    """What is new, and all so far: an op of both is judged by its own shape rule."""
    step = stepped(archdsl.load(text=LATER))
    (attention,) = (n for n in unroll_step(step).step.nodes if isinstance(n, FlatOp) and n.node.op.attends(n.node))
    queries, keys = attention.tensor(0).shape[2].value, attention.tensor(1).shape[2].value
    assert isinstance(queries, Poly)
    assert isinstance(keys, Poly)
    assert [*queries.symbols] == [step.new]
    assert [*keys.symbols] == [step.all]


def test_recurrences_are_kept_under_names() -> None:
    step = stepped(archdsl.load("mamba"))
    names = [n.node.kept for n in unroll_step(step).step.nodes if isinstance(n, FlatOp) and n.node.kept]
    assert {*names} == {"conv_state", "selective_scan_state"}
    assert all(not isinstance(n, OpNode | ScanNode) or not n.kept for n in step.whole.block.graph.nodes)
