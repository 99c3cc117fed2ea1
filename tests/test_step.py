"""A step of decoding as a Model: with its nodes erased it is the model."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from erasure import difference
from random_specs.configs import drawn
from random_specs.plans import PlanWriter, spec
from zoo import sizes

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.ir.dims import Poly
from archdsl.ir.graph import AppendNode, Model, OpNode, ScanNode
from archdsl.passes.flat_step import decode_step, unroll_step
from archdsl.passes.flatten import FlatOp
from archdsl.passes.forms import has
from archdsl.passes.step import stepped

ROOT = Path(__file__).parent.parent
FOLDERS = ("specs", "specs/hf", "examples", "tests/parity/specs", "tests/parity/unusual")
SPECS = [str(p.relative_to(ROOT)) for folder in FOLDERS for p in sorted((ROOT / folder).glob("*.arch"))]


def judge(model: Model, counts: Counter[str]) -> None:
    """Hold a step of a model against the model."""
    step, _ = decode_step(model)
    counts["refused" if step is None else "stepped"] += 1
    if step is not None:
        assert difference(step.of) == ""
        made = (v for n in (*step.before.nodes, *step.step.nodes) for v in n.outputs)
        assert not any(has(d, step.of.time) for v in made for d in v.shape)
        names = [k.name for k in step.kept]
        assert len({*names}) == len(names)
        counts["kept"] += len(names)


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
            judge(model, counts)
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


def test_a_number_may_be_called_as_the_length_is() -> None:
    """Then the axis is `time_`, and so are its two sizes."""
    spec = ROOT / "tests/truth/run_time_name.arch"
    counts: Counter[str] = Counter()
    judge(archdsl.load(spec), counts)
    assert counts["kept"] == 6
    assert "%tokens: token[batch, new time_]" in archdsl.show(spec, "ir", decode=True)


UNUSUAL = {
    "a weight in the type of the sequence": """param w: float32[8] = ones
      y = x + cast_like(w * 2, x) + unsqueeze(mean(m, axis: 1), 1)""",
    "turns that nobody reads": "ys = for i in 3 { emit x * (i + 1) }\n y = ys[0] + ys[2]",
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_steps_of_unusual_blocks(case: str) -> None:
    text = f"""
    block layer(x: [batch, time, 8], m: [batch, frames, 8]) -> [batch, time, 8] {{
      {UNUSUAL[case]}
      return y
    }}
    model net(tokens: token[batch, time], memory: [batch, frames, 8]) {{
      x = tokens -> embedding(11, 8)
      for n in 2 {{ x = layer(x, memory) as blocks }}
      return x -> mha(heads: 2, mask: causal) -> linear(11)
    }}
    """
    counts: Counter[str] = Counter()
    judge(archdsl.load(text=text), counts)
    assert counts["stepped"] == 1
