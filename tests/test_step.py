"""A step of decoding as a Model: with its nodes erased it is the model."""

from collections import Counter
from math import isfinite
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from decode_tools import differences, torch_differences
from erasure import difference
from random_specs.configs import drawn
from random_specs.plans import PlanWriter, behind, spec
from zoo import sizes

import archdsl
from archdsl.backends.onnx.step import write_steps
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.torch import Extras, emit
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


def test_steps_of_random_models_behind_places_in_front() -> None:
    """500 with --every. Steps in chunks, of rows of several lengths, give what the whole model gives."""
    random, counts = Random(24), Counter[str]()
    for _ in range(500 if sizes.every else 4):
        text = behind(spec(random, [PlanWriter(random, fixed=False).block("a")]), random.choice((1, 2, 3)))
        try:
            model = archdsl.load(text=text)
        except ArchError:
            continue  # of `batch * (n + time)` rows `time` makes no whole number
        try:
            judge(model, counts)
            found: dict[str, float] = {}
            for run in (differences, torch_differences) if decode_step(model)[0] is not None else ():
                try:
                    found |= {f"{run.__name__} {how}": d for how, d in run(model, (4, 1, 2, 1)).items()}
                except ArchError as problem:
                    counts[problem.diagnostics[0].code] += 1
            if any(map(isfinite, found.values())):  # else the model itself gives no number
                assert max(found.values()) < 1e-4, found
                counts["compared"] += len(found)
        except Exception as problem:
            problem.add_note(text)
            raise
    assert counts["stepped"] > counts["refused"]
    assert counts["compared"] > 4 * counts["stepped"]
    assert counts["E0504"] == sum(counts[code] for code in counts if code.startswith("E")) < counts["stepped"]


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


class Several(NamedTuple):
    """A model of several outputs: what it returns, and those of them that a step gives."""

    result: str
    given: tuple[int, ...]
    lines: str = ""
    inputs: str = ""


SEVERAL = {
    "two heads": Several("x -> linear(11) as a, x -> linear(3) as b", (0, 1)),
    "a hidden state": Several("x -> linear(11), x", (0, 1)),
    "the same twice": Several("logits, logits", (0, 1), "logits = x -> linear(11)"),
    "whole numbers": Several("x -> linear(11) as a, argmax(x -> linear(4) as b, axis: -1)", (0, 1)),
    "the tokens": Several("x -> linear(11), tokens", (0, 1)),
    "of weights": Several("x -> linear(11), w * 2, w", (0, 1, 2), "param w: [3, 8] = normal(1)"),
    "two streams": Several(
        "(x + z) -> linear(11) as a, z -> linear(5) as b",
        (0, 1),
        "z = cumsum(others -> linear(8) as o, axis: 1)",
        "others: [batch, time, 4]",
    ),
    "time along another axis": Several("x -> linear(11), x -> split_heads(2)", (0, 1)),
    "attention behind the logits": Several(
        "x -> linear(11) as a, y", (0, 1), "y = x -> mha(heads: 2, mask: causal) as other -> linear(2) as b"
    ),
    "a recurrence": Several("x -> linear(11) as a, y", (0, 1), "y = x -> lstm(6)"),
    "what has no step between": Several("x -> linear(11), mean(x, axis: 1), x[:, 1:], x", (0, 3)),
    "later positions": Several("x -> linear(11) as a, x -> mha(heads: 2) as other, x", (0, 2)),
    "the last state": Several(
        "x -> linear(11) as a, h, y", (0, 2), "y = scan h: [batch, 8] = 0 for t in x { h = tanh(h + t) emit h }"
    ),
    "scores": Several("x -> linear(11), matmul(x, transpose(x, 1, 2)), x", (0, 2)),
    "positions": Several("x -> linear(11), indices(time), x", (0, 2)),
    "an encoder's": Several(
        "(x + unsqueeze(m, 1)) -> linear(11) as a, m, x",
        (0, 2),
        "m = mean(memory -> linear(8) as e, axis: 1)",
        "memory: [batch, frames, 4]",
    ),
}


def several(case: Several) -> Model:
    return archdsl.load(
        text=f"""
        model net(tokens: token[batch, time], {case.inputs}) {{
          x = tokens -> embedding(11, 8) -> mha(heads: 2, mask: causal)
          {case.lines}
          return {case.result}
        }}
        """
    )


@pytest.mark.parametrize("case", SEVERAL)
def test_a_step_gives_every_output_that_has_one(case: str) -> None:
    model, names = several(SEVERAL[case]), [f"output_{i}" for i in SEVERAL[case].given[1:]]
    assert stepped(model).results == SEVERAL[case].given
    assert difference(stepped(model)) == ""
    step = write_steps(model, GraphOptions())["model"].model.graph
    assert [x.name for x in step.outputs][: len(names) + 1] == ["logits", *names]
    assert max((differences(model, last=True) | torch_differences(model)).values()) < 1e-5
    assert max(differences(model, (4, 1, 1, 1), last=True, target="ort-cpu").values()) < 1e-5


@pytest.mark.parametrize("result", ["mean(x, axis: 1)", "x[:, 1:]", "x -> mha(heads: 2)", "indices(time)", "w"])
def test_a_first_output_without_a_step_refuses_the_model(result: str) -> None:
    """Whatever follows it."""
    model = several(Several(f"{result}, x -> linear(11)", (), "param w: [3, 8] = normal(1)"))
    with pytest.raises(ArchError, match="E0504"):
        stepped(model)


def test_a_file_says_which_outputs_a_step_gives() -> None:
    """`forward` and the step are one where all are there."""
    features = Extras(frozenset({"generate"}))
    every, some = (emit(several(SEVERAL[case]), features) for case in ("two heads", "what has no step between"))
    assert "def forward(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Tensor]:" in every
    assert "def step" not in every.partition("class Net")[2]
    step = some.partition("def step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:\n")[2]
    assert step.split('"""')[1] == "Give, of what `forward` gives, all that has a step: 1, 4 of 4."


def test_every_output_of_a_step_is_verified() -> None:
    report = archdsl.verify(several(SEVERAL["of weights"]), seq=9)
    assert report.agrees
    every = [f"{how}{name}" for how in ("steps", "left", "right") for name in ("", " output_1", " output_2")]
    assert [*report.decode] == ["prefill", *every]
    assert [*report.torch_decode] == ["prefill", *(n.replace("left", "static") for n in every[:6]), "left", "right"]
