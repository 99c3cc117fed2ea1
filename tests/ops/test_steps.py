"""What primitives say of decoding: nothing earlier is read that is not kept, and steps give what the whole gives."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from decode_tools import differences, torch_differences
from erasure import difference
from ops.test_contract import CASES, changed, compiled, inputs_of, outputs_of, perturbed, sampled
from rows import POSITIONS as MASKS
from rows import spelled

import archdsl
from archdsl.backends.onnx.step import write_steps
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.torch import Extras, emit
from archdsl.diagnostics import ArchError
from archdsl.ir.graph import AppendNode, Model, OpNode, Value
from archdsl.ir.masks import INPUTS
from archdsl.ir.op import Example, Primitive
from archdsl.ops import registry
from archdsl.passes.flat_step import unroll_step
from archdsl.passes.flatten import FlatForm
from archdsl.passes.forms import own_axis
from archdsl.passes.step import stepped
from archdsl.run.load import load_source
from archdsl.run.onnx import chunks_of
from archdsl.run.sequences import Sequences


def test_what_is_read_at_the_own_place_alone_is_not_read_elsewhere() -> None:
    """Or the op says that it keeps it, or hands on a state. Of the examples that are one op."""
    compared = Counter[str]()
    for case in CASES:
        name, example = cast("tuple[str, Example]", case.values)
        model, module = compiled(example)
        nodes = model.block.graph.nodes
        if len(nodes) == 1 and isinstance(nodes[0], OpNode):
            compared[name] += own_places(name, example, model, module, nodes[0])
    assert compared.total() > 15_000
    assert len(compared) > 100, compared


def own_places(name: str, example: Example, model: Model, module: Any, node: OpNode) -> int:
    """Change the inputs of an op place by place; return how often what was read was compared with what is claimed."""
    compared = 0
    inputs = inputs_of(model, example)
    running = {s.axis for s in node.op.states(node)}
    kept = node.op.cached_inputs(node)
    with torch.no_grad():
        before = outputs_of(module, inputs)
        for key, value in model.inputs:
            claims = [
                (axis, None if read is not None and read.earlier else own_axis(read))
                for i, v in enumerate(node.inputs)
                if v is value
                for axis, read in enumerate(node.op.reads(node)[i])
                if kept.get(i, (None, ""))[0] != axis
            ]
            for place in sampled(list(inputs[key].shape)):
                after = outputs_of(module, {**inputs, key: perturbed(inputs[key], place, example)})
                for axis, own in claims:
                    if own is None or own in running or before[0].shape[own] != inputs[key].shape[axis]:
                        continue
                    if any(a == axis and o is None for a, o in claims):
                        continue  # given twice, and read elsewhere as the other
                    compared += 1
                    there = changed(before[0], after[0]).any(dim=[i for i in range(before[0].dim()) if i != own])
                    there = there if before[0].dim() > 1 else changed(before[0], after[0])
                    assert set(there.nonzero().flatten().tolist()) <= {place[axis]}, (
                        f"`{name}` reads {key} at {place} for places {there.nonzero().flatten().tolist()} of axis {own}"
                    )
    return compared


STEPPED = {
    "linear_recurrence": "x + linear_recurrence(sigmoid(x), x)",
    "linear_recurrence from a start": "x + linear_recurrence(sigmoid(x), x, h)",
    "shift": "x + (x -> shift(2, fill: 0.5))",
    "shift, filled with much": "x + exp(x -> shift(3, fill: -1e30))",
    "shift, filled with the most": "x + 1 / (x -> shift(fill: 3.4e38))",
    "shift, filled with minus infinity": "x + exp(x -> shift(2, fill: -inf))",
    "shift of truths": "where(unsqueeze((tokens > 9) -> shift(2), 2), x, -x)",
    "shift of truths, filled": "where(unsqueeze((tokens > 9) -> shift(3, fill: 1), 2), x, -x)",
    "shift of tokens": "tokens -> shift(2, fill: 29) -> embedding(vocab, 8) as previous",
    "cumsum": "x + (x -> cumsum(axis: 1))",
    "cumprod": "x + (sigmoid(x) -> cumprod(axis: 1))",
    "logcumsumexp": "x + logcumsumexp(4 * x, axis: 1)",
    "selective_scan": "selective_scan(x, softplus(x), -exp(d), x[..., :4], x[..., 4:], skip: d[:, 0])",
    "linear_attention": "linear_attention(q, elu(q) + 1, q) -> merge_heads",
    "linear_attention, normalized": "linear_attention(elu(q) + 1, elu(q) + 1, q, normalize: true) -> merge_heads",
    "linear_attention, decayed": "linear_attention(q, q, q, log_decay: log_sigmoid(q[..., 0])) -> merge_heads",
    "linear_attention, heads in a group": """linear_attention(x -> split_heads(1), elu(x -> split_heads(1)), q,
        log_decay: log_sigmoid(q[..., 0])) -> merge_heads""",
    "linear_attention, channels decayed": "linear_attention(q, q, q, log_decay: log_sigmoid(q)) -> merge_heads",
    "delta_rule": "delta_rule(q, l2_normalize(q), q, sigmoid(q[..., 0])) -> merge_heads",
    "delta_rule, decayed": """delta_rule(x -> split_heads(1), l2_normalize(x -> split_heads(1)), q, sigmoid(q[..., 0]),
        log_sigmoid(q[..., 1])) -> merge_heads""",
    "delta_rule, channels decayed": """delta_rule(q, l2_normalize(q), q, sigmoid(q[..., 0]), log_sigmoid(q),
        read: 0.5 * l2_normalize(q)) -> merge_heads""",
    "delta_rule, several steps": """delta_rule(q, l2_normalize(k), k, sigmoid(k[..., 0]), log_sigmoid(q[..., 1]))
        -> merge_heads""",
    "delta_rule, several steps, channels decayed": """delta_rule(q, l2_normalize(k), k, sigmoid(k[..., 0]),
        log_sigmoid(q), read: l2_normalize(tanh(k))) -> merge_heads""",
    "delta_rule from a state": """delta_rule(q, l2_normalize(q), q, sigmoid(q[..., 0]), log_sigmoid(q[..., 1]),
        state: unflatten(h, -1, 2, 4, 1) * ones(batch, 2, 4, 4)) -> merge_heads""",
    "conv1d": "x -> conv1d(8, kernel: 3, dilation: 2, padding: causal)",
    "conv1d of each head": "q -> conv1d(4, kernel: 3, padding: causal) -> merge_heads",
    "lstm": "x -> lstm(8)",
    "lstm from a start": "lstm(8)(x, h, h)",
    "gru": "x -> gru(8)",
    "rnn": "rnn(8)(x, h)",
    "sdpa": "sdpa(q, q, q, mask: causal) -> merge_heads",
    "sdpa without heads": "sdpa(x, x, x, mask: causal & window(3))",
    "two that read the same": "merge_heads(sdpa(q, q, q, mask: causal) * q + sdpa(q, q, q, mask: causal & window(3)))",
    "sdpa, capped": "sdpa(q, q, q, mask: causal, softcap: 5) -> merge_heads",
    "transformer_xl": "sdpa(q, q, q, mask: causal, position: transformer_xl) -> merge_heads",
    "relative_bias": "sdpa(q, q, q, mask: causal, position: relative_bias(buckets: 8, max_distance: 6)) -> merge_heads",
    "chunked mask": "sdpa(q, q, q, mask: causal & chunked(3)) -> merge_heads",
    "dilated mask": "sdpa(q, q, q, mask: causal & dilated(3, 2)) -> merge_heads",
    "strided or near": "sdpa(q, q, q, mask: causal & (window(2) | strided(3))) -> merge_heads",
    "the prefix and near": "sdpa(q, q, q, mask: causal & (window(2) | prefix(1))) -> merge_heads",
    "scan": "s",
    "rows merged": "x -> flatten(0, 1) -> linear(16) as up -> gelu -> linear(8) -> unflatten(0, batch, time)",
    "rows merged twice": """(x -> flatten(0, 1) -> linear(8) -> unflatten(0, batch, time) -> flatten(0, 1)
        -> unsqueeze(0) -> layernorm -> squeeze(0)) -> rearrange("(b t) d -> b t d", t: time)""",
    "rows merged beside attention": """sdpa(q, q, q, mask: causal) -> merge_heads
        -> rearrange("b t d -> (b t) d") -> linear(8) -> unflatten(0, batch, time)""",
    "rows merged into experts": """x -> flatten(0, 1) -> unsqueeze(0)
        -> moe(experts: 4, top_k: 2, expert: swiglu(hidden: 8)) -> squeeze(0) -> unflatten(0, batch, time)""",
    "rows of heads merged": "q -> transpose(1, 2) -> flatten(0, 1) -> tanh -> unflatten(0, batch, time) -> flatten(2)",
    "rows of numbers merged": "x -> mean(axis: -1) -> flatten(0, 1) -> unflatten(0, batch, time) -> unsqueeze(-1)",
    "scores of the best": "matmul(softmax(where((p < best[..., 2:]) | (j > i), -inf, p)), x) + best[..., :1]",
    "more of the best keys than there are": "x -> mha(heads: 2, mask: causal, normalize: top_keys(6))",
    "scores with a table of keys": "softmax(where(j <= i, p + w[:time], -inf)) -> matmul(x)",
    "scores of earlier queries": """softmax(where(j <= i, p, -inf) - (where((j <= i) & (j < i), relu(p), 0)
        -> shift(1, axis: 1) -> cumsum(axis: 1))) -> matmul(x)""",
    "scores of earlier queries in two heads": """softmax(where(j <= i,
        h2 + (where(j <= i, h2, 0) -> shift(1, axis: 2)), -inf)) -> matmul(q) -> merge_heads""",
    "scores that are convolved over queries and keys": """softmax(where(j <= i, where(j <= i, h2, 0) -> pad(2, axis: 2)
        -> pad(1, 1, axis: 3) -> conv2d(2, kernel: 3, groups: 2, bias: false), -inf)) -> matmul(q) -> merge_heads""",
}


@pytest.mark.parametrize("what", STEPPED)
def test_steps_give_what_the_whole_gives(what: str) -> None:
    expression = STEPPED[what]
    lines = {
        "q": "q = x -> linear(8) as q -> split_heads(2)",
        "d": "param d: [8, 4] = normal(1)",
        "w": "param w: [64] = normal(1)",
        "h": "param start: [8] = normal(1)\n  h = start -> unsqueeze(0) -> expand(0, batch)",
        "k": "k = x -> linear(16) as k -> split_heads(2) -> unflatten(-1, 2, 4)",
        "i": "i = indices(time) -> unsqueeze(1)",
        "j": "j = indices(time) -> unsqueeze(0)",
        "p": 'p = einsum("b q d, b k d -> b q k", x, x)',
        "h2": "h2 = matmul(q, transpose(q, 2, 3))",
        "best": "best, at = topk(where(j <= i, p, -inf), 3)",
        "s": "s = scan h: [batch, 8] = 0.5 for x_t in x { h = tanh((h -> linear(8) as hh) + x_t)  emit h }",
    }
    needed = [text for name, text in lines.items() if _mentions(expression, name)]
    model = archdsl.load(
        text="model m(vocab = 30)(tokens: token[batch, time]) {\n  x = tokens -> embedding(vocab, 8)\n  "
        + "\n  ".join([*needed, f"y = {expression}", "return (x + y) -> linear(vocab) as head"])
        + "\n}"
    )
    found = differences(model, last=True)
    assert max(found.values()) < 1e-5, found
    found = torch_differences(model)
    assert max(found.values()) < 1e-5, found


IN_CHUNKS = {
    "by heads": "delta_rule(q, l2_normalize(q), q, sigmoid(q[..., 0]), log_sigmoid(q[..., 1]))",
    "by channels": "delta_rule(q, l2_normalize(q), q, sigmoid(q[..., 0]), log_sigmoid(q), read: l2_normalize(q + 1))",
    "several steps": "delta_rule(q, l2_normalize(k), k, sigmoid(k[..., 0]), log_sigmoid(q))",
    "linear attention": "linear_attention(q, l2_normalize(q), q, log_decay: log_sigmoid(q))",
}


@pytest.mark.parametrize("prompt", [3, 63, 64, 65, 130])
@pytest.mark.parametrize("what", IN_CHUNKS)
def test_prompts_around_the_length_of_chunks(what: str, prompt: int) -> None:
    """Then steps of one position and of three; rows padded on either side."""
    model = archdsl.load(
        text=f"""model m(vocab = 30)(tokens: token[batch, time]) {{
          x = (tokens -> embedding(vocab, 8)) * 50
          q = x -> linear(8) as q -> split_heads(2)
          k = x -> linear(16) as k -> split_heads(2) -> unflatten(-1, 2, 4)
          y = {IN_CHUNKS[what]} -> merge_heads
          return y -> linear(vocab) as head
        }}"""
    )
    found = differences(model, (prompt, 1, 1, 3)) | torch_differences(model, (prompt, 1, 1, 3))
    assert max(found.values()) < 1e-5, found


MERGED = {
    "position by position": """x -> rearrange("b t d -> (t b) d") -> linear(8)
        -> rearrange("(t b) d -> b t d", b: batch)""",
    "with numbers": "((x -> flatten(0, 1)) * unsqueeze(indices(batch * time), 1)) -> unflatten(0, batch, time)",
    "with positions": """((x -> flatten(0, 1)) * ((ones(batch, time, 8) * unsqueeze(indices(time), 1))
        -> flatten(0, 1))) -> unflatten(0, batch, time)""",
    "with ones": "((x -> flatten(0, 1)) * ones(batch * time, 8)) -> unflatten(0, batch, time)",
    "with a third": "x -> unflatten(-1, 2, 4) -> flatten(0, 2) -> tanh -> unflatten(0, batch, time, 2) -> flatten(2)",
    "with the first": "((x -> flatten(0, 1)) + (x -> flatten(0, 1))[:1]) -> unflatten(0, batch, time)",
}
"""Positions of all rows in an order or with numbers that no step has."""


@pytest.mark.parametrize("what", MERGED)
def test_rows_that_are_merged_otherwise_have_no_step(what: str) -> None:
    text = f"x = tokens -> embedding(30, 8)  y = {MERGED[what]}  return y -> linear(30) as head"
    model = archdsl.load(text=f"model m(tokens: token[batch, time]) {{ {text} }}", allow_noncausal=True)
    with pytest.raises(ArchError) as no:
        stepped(model)
    assert [d.code for d in no.value.diagnostics] == ["E0504"]


MASKED = """model m(vocab = 30, width = 8)(tokens: token[batch, time]) {
  x = tokens -> embedding(vocab, width)
  real = tokens != 0
  group = tokens // 8
  LINES
  return x -> linear(vocab) as head
}"""


def masked(*masks: str) -> Model:
    """A decoder with a layer for each mask."""
    lines = "\n  ".join(f"x += x -> mha(heads: 2, mask: causal & {mask})" for mask in masks)
    return archdsl.load(text=MASKED.replace("LINES", lines))


def test_every_mask_in_steps() -> None:
    """But for inputs of a whole text, and keys that are chosen among all, which have no step."""
    masks = [mask for mask in spelled("real", "group") if mask not in INPUTS]
    drawn = [str(mask) for mask in MASKS.values() if mask.drawn]
    model = masked(*(mask for mask in masks if mask not in drawn))
    found = differences(model, last=True) | torch_differences(model)
    assert max(found.values()) < 1e-5, found
    for mask in drawn:
        with pytest.raises(ArchError, match="E0504"):
            stepped(masked(mask))


@pytest.mark.parametrize(
    ("what", "reader"),
    [
        ("unsqueeze(indices(time), 1) -> flip(0) -> cast(float)", "flip"),
        ("w[:time] -> mean(axis: 0)", "mean"),
        ("w[:time] -> softmax(axis: 0)", "softmax"),
        ("w[:time] -> shift(-1, axis: 0)", "shift"),
        ("unsqueeze(w[:time], 0) -> conv1d(8, kernel: 3)", "conv1d"),
        ('einsum("k d, b q d -> b q d", w[:time], x)', "einsum"),
        ("max(where(j <= i, p, 0), keep: true)", "max"),
        ("sum(where(j <= i, p, 1), keep: true)", "sum"),
        ("matmul(where(j <= i, softmax(where(j <= i, p, 1)), 0), x)", "softmax"),
        ("best, at = topk(where(j <= i, p, 0), 2)  y = x * best[..., :1]", "topk"),
        ("best, at = topk(where(j <= i, p, -1e30), 2)  y = x * best[..., :1]", "topk"),
        ("best, at = topk(where(j <= i, p, -inf), 2)  y = x * cast(at[..., :1], float)", "topk"),
    ],
)
def test_numbers_that_depend_on_what_follows_are_refused(what: str, reader: str) -> None:
    """No later token reaches them, and yet the whole sequence gives others than its beginning."""
    text = f"""model m(vocab = 30)(tokens: token[batch, time]) {{
      x = tokens -> embedding(vocab, 8)
      param w: [64, 8] = normal(1)
      i = indices(time) -> unsqueeze(1)
      j = indices(time) -> unsqueeze(0)
      p = einsum("b q d, b k d -> b q k", x, x)
      {what if "y =" in what else f"y = x * ({what})"}
      GIVEN
      return y -> linear(vocab) as head
    }}"""
    with pytest.raises(ArchError, match=f"`{reader}` (gives depends|changes)") as refused:
        stepped(archdsl.load(text=text.replace("GIVEN", "")))
    (problem,) = refused.value.diagnostics
    assert (problem.code, problem.span and problem.span.line) == ("E0504", 7)
    if "where" in what:
        assert stepped(archdsl.load(text=text.replace("GIVEN", "assume causal(y)")))


TOP_K = """model m(tokens: token[batch, time]) {{
  x = tokens -> embedding(30, 8)
  p = einsum("b q d, b k d -> b q k", x, x -> linear(8) as keys)
  best, at = where(indices(time) <= unsqueeze(indices(time), 1), p, -inf) -> topk({k})
  return x * best[..., :1]
}}"""


def test_an_axis_that_follows_the_sequence_otherwise_has_no_step() -> None:
    with pytest.raises(
        ArchError, match=r"`topk` cannot be taken step by step: it makes an axis of min\(4, time\)"
    ) as no:
        stepped(archdsl.load(text=TOP_K.format(k="minimum(4, time)")))
    assert "with a fixed number it has a step" in no.value.diagnostics[0].help


OF_PAIRS = """model m(tokens: token[batch, time]) {{
  x = tokens -> embedding(9, 8)
  later = unsqueeze(indices(time), 0) > unsqueeze(indices(time), 1)
  w = softmax(where(later, -inf, einsum("b i d, b j d -> b i j", x, x -> linear(8))))
  y = {}
  assume causal(y)
  return y -> linear(9)
}}"""


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ("x * unsqueeze(x[:, 0], 1)", "`index` cannot be taken step by step: it reads a position that is always the"),
        ("x * unsqueeze(w[..., 0], 2)", "`index` cannot be taken step by step: it reads a position that is always the"),
        ("x * w[..., 0:1]", "`index` cannot be taken step by step: it reads a position that is always the same one"),
        ("x * w[..., 2:3]", "`index` cannot be taken step by step: it reads a position that is always the same one"),
        ("matmul(w -> transpose(1, 2), x)", "`w` [batch, time, time], which has two axes of time, by its keys"),
        ("sum(sum(unsqueeze(w, 3) * unsqueeze(w, 1), 3), 2, keep: true)", "makes a tensor with three axes of time"),
        (
            "((x -> flatten(0, 1)) + one_hot(8)(indices(batch * time))) -> unflatten(0, batch, time)",
            "[batch * time, 8], made of positions, which has those of all rows",
        ),
    ],
)  # fmt: skip
def test_what_no_step_reads(y: str, said: str) -> None:
    with pytest.raises(ArchError, match=f"E0504.*{re.escape(said)}"):
        stepped(archdsl.load(text=OF_PAIRS.format(y)))


CURED = [
    ("y = x + x[:, :1]", "y = x + cumsum(where(unsqueeze(indices(time), 1) == 0, x, 0), axis: 1)"),
    ("y = x + unsqueeze(x[:, 0], 1)", "y = x + cumsum(where(unsqueeze(indices(time), 1) == 0, x, 0), axis: 1)"),
    ("y = concat(zeros(batch, 1, 8), x[:, :-1], axis: 1)", "y = x -> shift(1)"),
    ("y = pad(x, 3) -> conv1d(8, kernel: 4, padding: none)", "y = x -> conv1d(8, kernel: 4, padding: causal)"),
    ("y = x * log(time)", "y = x * (log(indices(time) + 1) -> unsqueeze(1))"),
]
"""What has no step, and what its refusal proposes."""


@pytest.mark.parametrize(("refused", "proposed"), CURED)
def test_what_a_refusal_proposes_has_a_step(refused: str, proposed: str) -> None:
    text = "model m(tokens: token[batch, time]) {{ x = tokens -> embedding(9, 8)  {}  return y -> linear(9) }}"
    with pytest.raises(ArchError, match="E0504") as caught:
        stepped(archdsl.load(text=text.format(refused)))
    (problem,) = caught.value.diagnostics
    calls = re.findall(r"cumsum\(where|shift\((?=1\)`)|padding: causal|indices\(time\) \+ 1", problem.help)
    assert any(call in proposed for call in calls), problem.help
    model = archdsl.load(text=text.format(proposed))
    found = differences(model) | torch_differences(model)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("op", ["every(2, axis: 1)", 'rearrange("b (n p) d -> b n (p d)", p: 2)', "avg_pool1d(2)"])
def test_an_op_that_makes_other_positions_is_named_before_what_reads_them(op: str) -> None:
    text = """model m(tokens: token[batch, time]) {{
      x = tokens -> embedding(9, 8)
      k = x -> {}
      s = einsum("b q d, b k d -> b q k", x, k -> linear(8)) -> softmax
      y = einsum("b q k, b k d -> b q d", s, k)
      assume causal(y)
      return y -> linear(9)
    }}"""
    with pytest.raises(ArchError, match=rf"E0504.*`{op.partition('(')[0]}`.* makes an axis of .*time.* positions"):
        stepped(archdsl.load(text=text.format(op)))


@pytest.mark.parametrize(
    "mixes", ["cumsum(axis: 0)", "transpose(0, 1) -> mha(heads: 2, mask: causal) -> transpose(0, 1)"]
)
def test_a_sequence_on_the_first_axis_is_no_batch(mixes: str) -> None:
    text = (
        "model m(tokens: token[time, batch]) {{ x = tokens -> embedding(9, 8)  x += x -> {}  return x -> linear(9) }}"
    )
    said = "(mixes|counts) what stands along `time`, the first axis of `tokens`"
    with pytest.raises(ArchError, match=f"E0504.*{said}"):
        stepped(archdsl.load(text=text.format(mixes)))
    assert stepped(archdsl.load(text=text.format("gelu")))
    counted = text.format("gelu").replace("x += ", "x += (indices(time) -> embedding(9, 8)) -> unsqueeze(1)  x += ")
    with pytest.raises(ArchError, match=r"E0504.*`indices` counts what stands along `time`"):
        stepped(archdsl.load(text=counted))


@pytest.mark.parametrize("y", ["matmul(w, x)", "matmul(w -> cumsum(axis: 1), x)", "x * sum(w, 2, keep: true)"])
def test_what_a_step_reads_of_scores(y: str) -> None:
    report = archdsl.verify(text=OF_PAIRS.format(y), seq=8)
    assert (report.agrees, {"prefill", "steps"} <= report.decode.keys()) == (True, True)


@pytest.mark.parametrize(("time", "chunks"), [(4, [4]), (5, [4, 1]), (20, [10, *[1] * 10])])
def test_no_prompt_is_shorter_than_a_model_takes(time: int, chunks: list[int]) -> None:
    model = archdsl.load(text=TOP_K.format(k=4))
    sequences = Sequences(stepped(model))
    assert chunks_of(sequences, {"tokens": np.zeros((2, time), np.int64)}) == chunks


def test_a_sum_along_positions_on_the_first_axis_has_no_step() -> None:
    """It has no state there, and no step has the positions before."""
    with pytest.raises(ArchError, match=r"`cumsum` cannot be taken step by step: it reads positions beside its own"):
        stepped(positions_model("", "x -> transpose(0, 1) -> cumsum(axis: 0) -> transpose(0, 1)"))


@pytest.mark.parametrize(
    "recurrence",
    ["emit h  h = tanh(h) + a", "emit h + g  g = h  h = 0.5 * h + a", "emit g  g = h -> flip(1)  h = 0.5 * g + a"],
)
def test_states_that_are_read_once_they_are_overwritten(recurrence: str) -> None:
    """In static steps they are written in place: what is emitted, and the other state, are what was before."""
    model = positions_model(
        f"y = scan h: [batch, 8] = 0, g: [batch, 8] = 1 for a in x {{ {recurrence} }}", "y -> cast_like(x)", layers=2
    )
    found = torch_differences(model)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize(
    "text",
    [
        "(x -> mha(heads: 2, mask: causal)) + (x -> cumsum(axis: 1))",
        "linear_recurrence(sigmoid(x), x -> mha(heads: 2, mask: causal))",
    ],
)
def test_no_block_is_called_between_a_state_and_what_is_made_of_it(text: str) -> None:
    """Where a step is a method of its own, and expressions may stand within others."""
    model = archdsl.load(
        text=f"""model m(tokens: token[batch, time], memory: [batch, frames, 8]) {{
          x = tokens -> embedding(16, 8)
          x += mha(heads: 2, mask: full)(x, memory: memory) as cross
          y = {text}
          return y -> linear(16)
        }}"""
    )
    found = torch_differences(model)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("features", [["generate"], ["generate", "cpu"]], ids="-".join)
@pytest.mark.parametrize(
    "attention",
    [
        "gqa(heads: 6, kv_heads: 2, mask: causal)(x)",
        "gqa(heads: 6, kv_heads: 2, mask: causal, position: alibi)(x)",
        "gqa(heads: 6, kv_heads: 2, mask: causal & window(3), scale: 0.3)(x)",
        "gqa(heads: 6, kv_heads: 1, mask: causal & window(3), position: alibi)(x)",
        "gqa(heads: 6, kv_heads: 2, mask: full)(x, memory: memory)",
        "gqa(heads: 6, kv_heads: 2, mask: full & keys(kept))(x, memory: memory)",
    ],
)
def test_heads_that_share_keys(attention: str, features: list[str]) -> None:
    """With a mask for each head or for all of them, or with none, for one new position and for several."""
    memory = "memory: [batch, frames, 12], kept: padding[batch, frames], " * ("memory" in attention)
    model = archdsl.load(
        text=f"""model m({memory}tokens: token[batch, time]) {{
          x = tokens -> embedding(16, 12)
          x += mha(heads: 2, mask: causal)(x) as own
          x += {attention} as shared
          return x -> linear(16)
        }}"""
    )
    stepping = load_source(emit(model, Extras(frozenset(features))))().eval()
    found = torch_differences(model, stepping=stepping)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("inputs", ["u, m", "m, u"])
def test_what_the_first_step_alone_is_given_tells_no_later_one_its_type(inputs: str) -> None:
    """A bias is of the type of an input that every step has."""
    shapes = {"u": "u: [batch, time, 4]", "m": "m: [batch, frames, 4]"}
    declared = ", ".join(shapes[name] for name in inputs.split(", "))
    model = archdsl.load(
        text=f"""block layer({declared}) -> [batch, time, 4] {{
          k = m -> linear(4) -> split_heads(2)
          y = sdpa(u -> linear(4) -> split_heads(2), k, k) -> merge_heads
          return y + (u -> mha(heads: 2, mask: causal, position: alibi))
        }}
        model m(tokens: token[batch, time], memory: [batch, frames, 4]) {{
          x = tokens -> embedding(16, 4)
          return layer({inputs.replace("u", "x").replace("m", "memory")}) -> linear(16)
        }}"""
    )
    found = torch_differences(model)
    assert max(found.values()) < 1e-5, found


POSITIONS = {
    "itself": "t",
    "one op": "t * 0.1",
    "two ops": "t * 0.1 + 0.5",
    "a power": "t ** 2 * 0.01",
    "a quotient": "t // 2 * 0.5",
    "clipped": "minimum(t, 3) * 0.5",
    "cast": "cast(t, float) * 0.1",
    "cast last": "exp(t * 0.01) -> cast(float)",
    "cast between": "cos(cast(t, float) * 0.3)",
    "of the type of x": "exp(t * 0.01) -> cast_like(x)",
    "before the axis": "(exp(indices(time) * 0.01) -> unsqueeze(1))",
    "parity": "cast(t % 2 == 0, float)",
    "a choice": "where(t % 2 == 0, 0.5, 2)",
    "compared": "cast((t > 2) & (t % 2 == 0), float)",
    "length": "1 / sqrt(t + 1)",
    "logarithm": "log(t + 1)",
    "angles": "cos(t * exp(indices(8) * -0.1))",
    "angles moved": "cos((t + 1) * exp(indices(8) * -0.1) + 1)",
    "two chains": "cos(t * 0.3) * exp(t * -0.1)",
    "with a weight": "exp(-abs(w) * t) + w",
    "one-hot": "cast(one_hot(indices(time) % 8, 8), float)",
}
"""Numbers made of positions t [time, 1]."""


@pytest.mark.parametrize("what", POSITIONS)
def test_numbers_made_of_positions_are_those_of_each_step(what: str) -> None:
    """However an equation spells them. (Those of ONNX steps are compared all at once.)"""
    found = torch_differences(positions_model("", f"x + ({POSITIONS[what]})"), (4, 1))
    assert max(found.values()) < 1e-5, found


def test_numbers_made_of_positions_stand_beside_one_another() -> None:
    """In blocks that are called twice, at queries and keys."""
    each = " + ".join(f"({text})" for text in POSITIONS.values())
    lines = f"""q = x -> linear(8, bias: false) as q
      k = (q * cast_like(0.1 * ({each}), x)) -> split_heads(2)"""
    model = positions_model(lines, "x + merge_heads(sdpa(q -> split_heads(2), k, k, mask: causal))", layers=2)
    found = differences(model) | torch_differences(model)
    assert max(found.values()) < 1e-5, found


ROWS = "cast(t % 2 == 0, float) -> unsqueeze(0) -> expand(0, batch)"


@pytest.mark.parametrize(
    "lines",
    [
        f"y = {ROWS}",
        f"y = concat(x, {ROWS}) -> linear(8) as q",
        "y = (indices(time) % 8) -> unsqueeze(0) -> expand(0, batch) -> embedding(8, 8) as place",
        "y = ((x -> unflatten(-1, 2, 4)) * cast(cos(t) -> unsqueeze(0) -> unsqueeze(2), float)) -> flatten(2)",
        "y = x / cumsum(ones(batch, time, 1), axis: 1)",
        f"y = shift({ROWS}, axis: 1)",
        f"k = x -> linear(8) as k\n y = sdpa(k, {ROWS} -> expand(-1, 8), k, mask: causal)",
        f"y = scan h: [batch, 8] = 0 for x_t, p_t in x, {ROWS} {{ h = h * p_t + x_t  emit h }}",
        "y = scan h: [batch, 1] = 0 for one in ones(batch, time, 1) { h = h * 0.5 + one  emit h }",
        "y = ((x -> split_heads(2)) * cast_like(t * 0.1, x)) -> merge_heads  y = y + t * 0.1",
        "y = cumsum(x, axis: 1) / (t + 1)",
        """p = cast(t * 0.1, float) -> unsqueeze(0) -> expand(-1, 8)
          a, b = p -> topk(8)
          y = (p -> gru(8)) + (p -> lstm(8)) + (p -> moe(experts: 4, top_k: 2, expert: swiglu(hidden: 8))) + a""",
        """q, k = x -> linear(16) -> chunk(2)
          k = k -> split_heads(2)
          bias = cast((t - indices(time)) * 0.1, float)
          y = merge_heads(sdpa(q -> split_heads(2), k, k, mask: causal, bias: bias))""",
    ],
)
def test_positions_with_an_axis_of_the_batch_are_those_of_each_step(lines: str) -> None:
    """Or with axes of size 1 in front of their own."""
    model = positions_model(lines, "x + y")
    found = differences(model) | torch_differences(model)
    assert max(found.values()) < 1e-5, found


SCANNED = """p = cast(t, float) -> unsqueeze(0) -> expand(-1, 8)
          y = scan h: [batch, 8] = 0 for x_t, p_t in x, p { h = h + x_t * p_t  emit h }"""
KEPT = """z = scan h: [batch, 8] = 0 for x_t in x { h = h * 0.5 + x_t  emit h }
          y = sdpa(x -> linear(8), z, z, mask: causal)"""
ATTENDED = """p = cast(t * 0.1, float) -> unsqueeze(0) -> expand(-1, 8)
          y = p -> mha(heads: 2, mask: causal)"""
COUNTED_UP = """ys = scan h: [1] = 0 for p in cast(t * 0.1, float) -> transpose(0, 1) { h = h + p  emit h }
          y = unsqueeze(ys, -1)"""
SPREAD = """param table: [64, 1] = normal(1)
          p = table[:time]
          y = ((((x -> split_heads(2)) + p) -> merge_heads) -> mha(heads: 2, mask: causal)) + p"""


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (SCANNED, "the scan cannot be taken step by step: it reads a table of positions"),
        (ATTENDED, "reads a tensor made of positions, which are others in each row, in a way that has no decode step"),
    ],
)
def test_tables_and_scans_that_a_step_of_pytorch_does_not_have_are_refused(lines: str, why: str) -> None:
    with pytest.raises(ArchError, match=f"E0504.*{re.escape(why)}"):
        torch_differences(positions_model(lines, "x + y"))


TWICE_AS_MANY = "y = x * cast_like((indices(2 * time))[:time] -> unsqueeze(1), x)"


@pytest.mark.parametrize("lines", [SPREAD, SPREAD.replace("table[:time]", "(table * 2)[:time]")])
def test_a_table_is_read_by_tensors_of_different_numbers_of_axes(lines: str) -> None:
    model = positions_model(lines, "x + y")
    found = differences(model) | torch_differences(model)
    assert max(found.values()) < 1e-5, found


def test_no_size_of_a_step_is_read_off_what_it_is_given_at_all_positions() -> None:
    model = archdsl.load(
        text="""block weighted(u: [batch, time, 4], v: [batch, time, 4]) -> [batch, time, 4] {
          s = transpose(v -> linear(1), 1, 2) -> expand(1, time)
          w = where(unsqueeze(indices(time), 0) <= unsqueeze(indices(time), 1), s, 0)
          return matmul(w, u)
        }
        model m(tokens: token[batch, time]) {
          x = tokens -> embedding(16, 4)
          return weighted(x, x) -> linear(16)
        }"""
    )
    found = differences(model) | torch_differences(model)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize(
    "result",
    [
        "own(x, x) -> linear(16)",
        "(own(x, x) + matmul(w, x)) -> linear(16)",
        "(own(own(x, x), x) + own(x, x)) -> linear(16)",
    ],
    ids=["once", "beside another reader", "several times"],
)
def test_what_a_block_reads_at_its_new_positions_and_at_all_is_kept_once(result: str) -> None:
    """Also where its caller, or another block, reads all of it: that is appended there."""
    model = archdsl.load(
        text=f"""block own(u: [batch, time, 4], v: [batch, time, 4]) -> [batch, time, 4] {{
          s = einsum("b q d, b k d -> b q k", v, u)
          w = where(unsqueeze(indices(time), 0) <= unsqueeze(indices(time), 1), s, 0)
          return (u -> linear(4)) + matmul(w, v)
        }}
        model m(tokens: token[batch, time]) {{
          x = tokens -> embedding(16, 4)
          w = where(unsqueeze(indices(time), 0) <= unsqueeze(indices(time), 1), 0.1, 0) -> cast(float)
          return {result}
        }}"""
    )
    found = differences(model) | torch_differences(model)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize(("cut", "said"), [("x", r"has the 3 places.*`x\[:, 3:\]`"), ("x[:, 1:]", r"has the 2 places")])
def test_places_in_front_that_nothing_cuts_off_are_told(cut: str, said: str) -> None:
    model = archdsl.load(
        text=f"""model m(tokens: token[batch, time]) {{
          param own: [1, 3, 8] = normal(1)
          x = concat(own -> expand(0, batch), tokens -> embedding(16, 8), axis: 1) -> mha(heads: 2, mask: causal)
          return {cut} -> linear(16)
        }}"""
    )
    with pytest.raises(ArchError, match=f"(?s)E0504.*{said}"):
        differences(model)


def test_what_a_scan_makes_is_kept_for_several_readers() -> None:
    model = positions_model(f"{KEPT} + sdpa(x, z, z, mask: causal)", "x + y")
    found = differences(model) | torch_differences(model)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("lines", [KEPT, ATTENDED, COUNTED_UP, TWICE_AS_MANY])
def test_onnx_has_steps_of_tables_and_scans(lines: str) -> None:
    found = differences(positions_model(lines, "x + y"))
    assert max(found.values()) < 1e-5, found


def test_a_scan_that_reads_a_table_is_refused_by_onnx() -> None:
    with pytest.raises(ArchError, match=r"E0504.*the scan cannot be taken step by step: it reads a table"):
        differences(positions_model(SCANNED, "x + y"))


def test_attention_appends_itself_where_rows_have_one_length() -> None:
    """Then no row is turned."""
    model = positions_model(COUNTED_UP, "(x + y) -> mha(heads: 1, mask: causal)")
    step = write_steps(model, GraphOptions(target="ort-cpu"))["model"].model.graph
    assert [n.op_type for n in step if n.domain].count("GroupQueryAttention") == 1
    found = differences(model, (4, 1, 1, 1), target="ort-cpu")
    assert found.keys() == {"steps"}
    assert found["steps"] < 1e-5


def test_no_query_of_a_step_stands_beside_keys_of_another_sequence() -> None:
    model = archdsl.load(
        text="""model m(source: token[batch, frames], tokens: token[batch, time]) {
          x = tokens -> embedding(16, 8)
          return x -> mha(heads: 2, mask: window(4))(source -> embedding(16, 8))
        }"""
    )
    with pytest.raises(ArchError, match=r"E0504.*a decode step has no pairs of new time queries and frames keys"):
        differences(model)


DRAWN = {
    "a mask of documents": "x + (x -> mha(heads: 2, mask: causal & documents(indices(time) // 4)))",
    "numbers of positions": "buffer p: [time, 8] = indices(8)  x * p",
    "ones": "buffer p: [time, 8] = ones  x * p",
}


@pytest.mark.parametrize("what", DRAWN)
def test_what_the_spec_says_of_every_position_is_taken_at_that_of_each_row(what: str) -> None:
    *lines, result = DRAWN[what].rsplit("  ", 1)
    found = differences(positions_model("\n".join(lines), result))
    assert found.keys() == {"steps", "left", "right"}
    assert max(found.values()) < 1e-5


AMONG_KEYS = """model m(tokens: token[batch, time]{more}) {{
  x = tokens -> embedding(16, 8)
  p = indices(time) -> embedding(64, 8)
  seen = (indices(time) -> unsqueeze(1)) >= (indices(time) -> unsqueeze(0))
  w = where(seen, einsum("b q d, k d -> b q k", x, p), -inf) -> softmax
  y = einsum("b q k, k d -> b q d", w, p)
  return {result}
}}"""


@pytest.mark.parametrize(
    ("result", "more", "inputs"),
    [
        ("y", "", ["past_length"]),
        ("y -> gru(8)", "", ["past_key_values.0.h", "past_length"]),
        ("y -> mha(heads: 2, mask: causal)", "", ["past_key_values.0.key", "past_key_values.0.value"]),
        ("where(real -> unsqueeze(-1), y, 0)", ", real: padding[batch, time]", ["past_length"]),
    ],
)
def test_scores_of_keys_that_positions_alone_make_take_rows_of_one_length(
    result: str, more: str, inputs: list[str]
) -> None:
    """Padding stands among the keys: a step is told how many positions were before, by a cache or by a number."""
    model = archdsl.load(text=AMONG_KEYS.format(result=result, more=more))
    names = [x.name for x in write_steps(model, GraphOptions())["model"].model.graph.inputs]
    assert names == ["input_ids", *inputs]
    found = differences(model)
    assert found.keys() == {"steps"}
    assert found["steps"] < 1e-5


OVER_HEADS = """z = scan s: [batch, time, 4] = {start} for a in x -> unflatten(-1, 2, 4) -> permute(0, 2, 1, 3) {{
            {inner}
            s = 0.5 * s + {made}
            emit s
          }}
          y = z -> permute(0, 2, 1, 3) -> flatten(2)"""
OVER_TIME = "y = scan h: [batch, 8] = 0 for x_t in x {{ {inner} h = 0.5 * h + {made}  emit h }}"
INNER = "c = scan q: [batch, {size}] = 0 for b in {read} {{ q = 0.5 * q + b  emit q }}"
COUNTED = """block counted(a: [batch, time, n]) -> [batch, time, n] {
  return a * cast_like(unsqueeze(indices(time), 1), a)
}
"""


def over_heads(made: str, start: str = "0", inner: str = "") -> str:
    return OVER_HEADS.format(start=start, made=made, inner=inner)


def over_time(made: str, inner: str = "") -> str:
    return OVER_TIME.format(made=made, inner=inner)


@pytest.mark.parametrize("how", [differences, torch_differences], ids=["onnx", "torch"])
@pytest.mark.parametrize(
    "lines",
    [
        over_heads("(a -> linear(4) -> softmax)"),
        over_heads("a * (a[:, :, :1] -> expand(2, 4))", start="x -> linear(4)"),
        over_heads("a * fill(0.5, batch, time, 4)"),
        over_heads("(c -> transpose(1, 2))", inner=INNER.format(size="time", read="a -> transpose(1, 2)")),
        over_time("(c -> flatten(1))", inner=INNER.format(size=4, read="x_t -> unflatten(-1, 2, 4)")),
        KEPT,
    ],
)
def test_scans_of_single_positions_have_steps(lines: str, how: Callable[[Model], dict[str, float]]) -> None:
    found = how(positions_model(lines, "x + y"))
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("how", [differences, torch_differences], ids=["onnx", "torch"])
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (over_heads("(a -> gru(4))"), "`gru` .* it reads other positions than its own within"),
        (over_heads("(a -> cumsum(axis: 1))"), "`cumsum` .* it reads other positions than"),
        (over_heads("shift(a)"), "`shift` .* it reads other positions than its own within a"),
        (over_heads("(a -> mha(heads: 2, mask: causal))"), "the scan .* a table of positions"),
        (over_heads("a * cast(t, float)"), "the scan .* reads a table of positions"),
        (
            over_heads("c", inner=INNER.format(size=4, read="a")),
            "the scan .* runs along time within another",
        ),
        (over_heads("a * time"), "`times` .* it computes with the length of the sequence"),
        (over_heads("(a -> counted)"), "`indices` .* it asks which positions there are within a scan"),
        (over_time("x_t * time"), "`times` .* it computes with the length of the sequence"),
    ],
)
def test_scans_of_several_positions_have_none(lines: str, why: str, how: Callable[[Model], object]) -> None:
    model = positions_model(lines, "x + y", blocks=COUNTED)
    with pytest.raises(ArchError, match=f"E0504.*{why}"):
        how(model)


BEHIND = {
    "a convolution": "y = cast(t, float) -> unsqueeze(0) -> expand(-1, 8) -> conv1d(8, kernel: 3, padding: causal)",
    "a lookup": "y = w * ((indices(time) // 2) -> embedding(8, 8) as place)",
    "a sum of pairs": "y = sum(cast(indices(time) <= t, float), -1, keep: true)",
}
"""What is made of positions alone, behind the last attention."""


@pytest.mark.parametrize("what", BEHIND)
def test_where_the_logits_of_one_position_are_wanted_it_is_that_of_each_row(what: str) -> None:
    model = positions_model(f"x += x -> mha(heads: 2, mask: causal)\n {BEHIND[what]}", "x + y")
    assert archdsl.verify(model, batch=2, seq=8).agrees


SCORES = """keys = x -> linear(8) as keys
          p = where(indices(time) <= t, einsum("b i d, b j d -> b i j", x, keys), -inf)"""


@pytest.mark.parametrize(
    "weights",
    [
        "p -> argmax -> one_hot(time) -> cast(float)",
        "(x -> linear(1) as gate -> expand(-1, time)) * softmax(p)",
        "softmax(p[..., :time])[:, :time]",
        "scatter(0 * softmax(p), argmax(p) -> unsqueeze(-1), max(softmax(p), keep: true))",
    ],
)
def test_an_axis_of_keys_is_as_long_as_all_positions(weights: str) -> None:
    model = positions_model(
        f"""{SCORES}
          y = matmul({weights}, x -> linear(8) as values)
          assume causal(y)""",
        "x + y",
    )
    found = differences(model) | torch_differences(model)
    assert max(found.values()) < 1e-5, found


def test_lengths_of_queries_and_of_keys_are_told_apart() -> None:
    model = positions_model(SCORES, "x + matmul(softmax(p) * ones(batch, time, time), x -> linear(8) as values)")
    found = differences(model) | torch_differences(model)
    assert max(found.values()) < 1e-5, found


WEIGHTS = [
    *("s", "-s", "1 - s", "exp(s)", "s ** 2 % 3", "where(s > 0, s, 2 * s)", "cast(s > 0.5, float)", "clamp(s, 0, 1)"),
    *("cast_like(exp(s), x)", "stop_gradient(s)", "dropout(exp(s), rate: 0.1)", "sigmoid(s) * exp(sum(w))"),
    *("unsqueeze(s, 0)", "unsqueeze(s, 0) -> expand(0, 8)", "stack(s, exp(s), axis: 0)[1]", "exp(ones())"),
    *("w[0]", "exp(w[0]) * w[1]", "sum(w)", "cumsum(w) * softmax(w)", 'einsum("i, i ->", w, w)'),
    *("cast(argmax(w), float)", "log(mean(square(w), axis: 0)) + s", "s * exp(t * 0.1)"),
    *("1 / mean(abs(m), axis: [0, 1])", "max(m, axis: [0, 1])", "max(abs(m), axis: [0, 1], keep: true)"),
    "sum(floor(m * (1 / mean(abs(m), axis: [0, 1]))), axis: 0)",
]
"""Numbers made of weights alone: s [], w [8] and m [8, 8]."""


def test_numbers_made_of_weights_alone_are_those_of_each_step() -> None:
    """Temperatures, gates without axes, scales of quantizers."""
    each = " + ".join(f"({text})" for text in WEIGHTS)
    model = positions_model(
        f"""param s: [] = normal(1)
          param m: [8, 8] = normal(1)
          y = x * 0.1 * ({each})""",
        "y + s * (y -> mha(heads: 2, mask: causal))",
    )
    found = differences(model) | torch_differences(model)
    assert max(found.values()) < 1e-5, found


def positions_model(lines: str, result: str, layers: int = 1, blocks: str = "") -> Model:
    return archdsl.load(
        text=f"""{blocks}block layer(x: [batch, time, 8]) -> [batch, time, 8] {{
          param w: [8] = normal(1)
          t = indices(time) -> unsqueeze(1)
          {lines}
          return {result}
        }}
        model m(tokens: token[batch, time]) {{
          x = tokens -> embedding(16, 8)
          for f in {layers} * layer {{ x = x -> f }}
          return x
        }}"""
    )


def _mentions(expression: str, name: str) -> bool:
    import re

    return re.search(rf"\b{name}\b", expression) is not None


def test_every_primitive_with_states_is_stepped() -> None:
    """Each of them stands in the list above."""
    for name in registry.names():
        op = registry.get(name)
        if type(op).onnx_step is not Primitive.onnx_step and not name.endswith("2d"):
            assert any(name in text for text in STEPPED.values()), name


def test_keys_and_values_are_kept_in_their_narrowest_form() -> None:
    model = archdsl.load(
        text="""
        model m(vocab = 30)(tokens: token[batch, time]) {
          x = tokens -> embedding(vocab, 32)
          x += mla(heads: 8, kv_rank: 6, nope_dim: 4, rope_dim: 2, v_dim: 4, mask: causal, position: rope)(x)
          return x -> linear(vocab) as head
        }"""
    )
    step = unroll_step(stepped(model))
    (node,) = step.latents
    assert [int(kept.shape[-1]) for kept in step.kept] == [6, 2]
    assert isinstance(node.outputs[0], Value)
    assert max(differences(model).values()) < 1e-5


@pytest.mark.parametrize(
    ("attention", "narrow"),
    [
        ("gqa(heads: 8, kv_heads: 8, head_dim: 16, mask: causal, position: alibi)", True),
        ("gqa(heads: 8, kv_heads: 1, head_dim: 16, mask: causal)", True),
        ("gqa(heads: 8, kv_heads: 2, head_dim: 16, mask: causal)", False),
        ("mha(heads: 8, head_dim: 16, mask: causal, fused: true)", False),
    ],
)
def test_wide_keys_and_values_are_read_in_the_form_of_what_they_are_made_of(attention: str, narrow: bool) -> None:
    """Unless heads share them in groups, or queries are made together with them."""
    text = f"""
    model m(vocab = 30)(tokens: token[batch, time]) {{
      x = tokens -> embedding(vocab, 8)
      x += {attention}(x)
      return x -> linear(vocab) as head
    }}"""
    model = archdsl.load(text=text)
    assert bool(unroll_step(stepped(model)).latents) == narrow


@pytest.mark.parametrize("mask", ["causal", "causal & window(3)"])
def test_keys_without_an_axis_of_heads_are_kept_however_narrow_what_they_are_made_of(mask: str) -> None:
    model = archdsl.load(
        text=f"""model m(tokens: token[batch, time]) {{
  x = tokens -> embedding(30, 16)
  c = x -> linear(2) -> rmsnorm
  return sdpa(x, c -> linear(16, bias: false), c -> linear(16, bias: false), mask: {mask}) -> linear(30)
}}"""
    )
    step = unroll_step(stepped(model))
    assert (len(step.kept), len(step.latents)) == (2, 0)
    found = differences(model) | {f"torch {how}": d for how, d in torch_differences(model).items()}
    assert max(found.values()) < 1e-5, found


OF_KEYS = """
model m(tokens: token[batch, time]) -> [batch, time, 32] {
  param table: [64, 8] = normal(1)
  x = tokens -> embedding(32, 8)
  q = x -> linear(8)
  k = x -> linear(8)
  scores = where(indices(time) > unsqueeze(indices(time), 1), -inf, einsum("b i d, b j d -> b i j", q, k))
  EQUATIONS
  assume causal(y)
  return y -> linear(32)
}
"""
WEIGHED = 'y = einsum("b i j, b j d -> b i d", w, k)'
INDICES = {  # Whether rows may still be padded.
    f"w = scores -> argmax -> one_hot(time) -> cast(float)  {WEIGHED}": True,
    "y = q * gather(scores, argmax(scores, keep: true))": True,
    f"best, at = topk(scores, 2)  w = softmax(scatter(where(scores > 3, scores, -inf), at, best))  {WEIGHED}": True,
    f"w = minimum(argmax(scores), 1) -> one_hot(time) -> cast(float)  {WEIGHED}": False,
    "y = 0.1 * q * cast_like(argmax(scores, keep: true), x)": False,
    f"w = softmax(where(indices(time) <= argmax(scores, keep: true), scores, -inf))  {WEIGHED}": False,
    "best, at = topk(scores, 2)  y = q + table[at[..., 0]]": False,
    """y = scan h: [batch, 8] = 0 for x_t, at in q, argmax(scores, keep: true) -> cast(float) {
      h = h * 0.5 + x_t * at  emit h
    }""": False,
    f"w = softmax(scores + 0.1 * cast(argmax(scores) -> unsqueeze(1), float))  {WEIGHED}": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("equations", INDICES)
def test_indices_of_keys_are_others_where_padding_stands_before(equations: str) -> None:
    """What only finds keys by them may have padding; what computes with them is decoded without."""
    found = differences(archdsl.load(text=OF_KEYS.replace("EQUATIONS", equations)))
    assert found.keys() == ({"steps", "left", "right"} if INDICES[equations] else {"steps"})
    assert max(found.values()) < 1e-5


# --- a fixed prefix in front of keys and values -----------------------------------------------------------------------

IN_FRONT = """
block layer(heads: size = 4, kv: size = 2, m: size)(x: [batch, time, width]) -> [batch, time, width] {{
  param own_k: [kv, m, width / heads] = normal(1)
  param own_v: [kv, m, width / heads] = normal(1)
  q = x -> linear(width) as q -> split_heads(heads)
  k = x -> linear(width / heads * kv) as k -> split_heads(kv)
  v = x -> linear(width / heads * kv) as v -> split_heads(kv)
  {joined}
  {y}
  return x + (y -> merge_heads -> linear(width) as out)
}}
model toy(tokens: token[batch, time]) {{
  return tokens -> embedding(30, 16) -> layer(m: {m}) -> layer(m: {m}) -> linear(30)
}}"""
JOINED = """k = concat(own_k -> unsqueeze(0) -> expand(0, batch), k, axis: 2)
  v = concat(own_v -> unsqueeze(0) -> expand(0, batch), v, axis: 2)"""
WRITTEN = """s = matmul(q, k -> repeat(2, axis: 1) -> transpose(2, 3)) / 2
  {lines}
  y = matmul(softmax({weights}), v -> repeat(2, axis: 1))"""
SEEN = WRITTEN.format(lines="seen = {}", weights="where(seen, s, -inf)")
PREFIXED = {
    "causal": "y = sdpa(q, k, v, mask: causal)",
    "a window of its own": "y = sdpa(q, k, v, mask: (causal & window(2)) | prefix(m))",
    "a window that leaves it": "y = sdpa(q, k, v, mask: causal & window(3))",
    "chunks": "y = sdpa(q, k, v, mask: (causal & chunked(4)) | prefix(1))",
    "hidden": "y = sdpa(q, k, v, mask: causal & ~prefix(m))",
    "a tensor of keys": "t = x -> linear(1) -> squeeze(-1)\n  y = sdpa(q, k, v, mask: causal & keys(t > 0))",
    "capped": "y = sdpa(q, k, v, mask: causal, softcap: 5)",
    "alibi": "y = sdpa(q, k, v, mask: causal, position: alibi)",
    "rope": "y = sdpa(q, k, v, mask: causal, position: rope)",
    "rope of keys by the length": "k = k -> rope(scaling: longrope(short: [1, 2], long: [3, 4], original: 64))\n"
    "  y = sdpa(q, k, v, mask: causal)",
    "a norm behind it": "y = sdpa(q, k -> rmsnorm, 2 * v, mask: causal)",
    "a linear layer behind it": "k = k -> merge_heads -> linear(8) -> split_heads(2)\n"
    "  y = sdpa(q, k, v, mask: causal)",
    "a table of keys": "k = k * cast_like(cos(indices(time + m) * 0.3) -> unsqueeze(1), x)\n"
    "  y = sdpa(q, k, v, mask: causal)",
    "a bias": "b = cast_like(unsqueeze(indices(time + m), 0) * 0.1 - unsqueeze(indices(time), 1) * 0.1, x)\n"
    "  y = sdpa(q, k, v, b -> unsqueeze(0), mask: causal)",
    "twice": f"{JOINED}\n  y = sdpa(q, k, v, mask: causal)",
    "shorter again": "y = sdpa(q, (k -> pad(2, axis: 2))[:, :, 1:], v -> pad(1, axis: 2), mask: causal)",
    "written out": WRITTEN.format(lines="", weights="s, mask: causal"),
    "a choice": WRITTEN.format(lines="", weights="where(causal, s, -inf)"),
    "compared": SEEN.format("unsqueeze(indices(time + m), 0) <= unsqueeze(indices(time) + m, 1)"),
    "compared the other way": SEEN.format("unsqueeze(indices(time), 1) >= unsqueeze(indices(m + time) - m, 0)"),
    "ones and what is compared": SEEN.format(
        "concat(ones(time, m) > 0, unsqueeze(indices(time), 0) <= unsqueeze(indices(time), 1), axis: 1)"
    ),
    "ones and causal": SEEN.format("concat(ones(time, m), where(causal, ones(time, time), 0), axis: 1) > 0"),
    "filled up": SEEN.format("(where(causal, ones(time, time), 0) -> pad(m, value: 1)) > 0"),
    "the best keys": WRITTEN.format(
        lines="s = where(causal, s, -inf)\n  best, at = topk(s, 2)", weights="where(s < best[..., 1:], -inf, s)"
    ),
}
WITHOUT_PADDING = ("ones and what is compared", "ones and causal", "filled up")
"""Steps in ONNX take rows of one length."""


def prefixed(y: str, m: int = 5, joined: str = JOINED) -> Model:
    return archdsl.load(text=IN_FRONT.format(y=y, m=m, joined=joined))


@pytest.mark.parametrize(
    ("what", "m"),
    [*((w, 5) for w in PREFIXED), *((w, 1) for w in ("causal", "a window of its own", "compared", "rope"))],
)
def test_a_fixed_prefix_stands_in_front_of_what_is_kept(what: str, m: int) -> None:
    """Every step puts it there again: what is kept are the keys of the sequence."""
    model = prefixed(PREFIXED[what], m)
    kept = unroll_step(stepped(model)).kept
    assert len(kept) == (6 if what == "a tensor of keys" else 4)
    assert {str(k.shape[k.axis]) for k in kept} == {"all time"}
    if what == "causal":
        assert [k.name for k in kept] == ["0.key", "0.value", "1.key", "1.value"]
    found = differences(model)
    assert ("left" in found) == (what not in WITHOUT_PADDING)
    found |= {f"torch {how}": d for how, d in torch_differences(model).items()}
    assert max(found.values()) < 1e-5, found
    assert "torch left" in found


FRONT = """{block}model m(n = 3)(tokens: token[batch, time]{more}) {{
  param own: [n, 8] = normal(1)
  x = tokens -> embedding(30, 8)
  own = own -> unsqueeze(0) -> expand(0, batch)
  {lines}
  return y -> linear(30) as head
}}"""
OTHERWISE = {
    "one head": "k = concat(own, x, axis: 1)\n  y = sdpa(x, k, k, mask: causal) + x",
    "beside no prefix": "k = concat(own, x, axis: 1)\n  y = sdpa(x, k, k, mask: causal) + sdpa(x, x, x, mask: causal)",
    "read by each turn": """k = concat(own, x -> linear(8), axis: 1)
  y = x
  for i in 2 { y = y + sdpa(y -> linear(8), k, k, mask: causal) }""",
    "given": "k = concat(2 * given, x, axis: 1)\n  y = sdpa(x, k, k, mask: causal)",
    "made of what is given": "k = concat(given -> linear(8) as g, x, axis: 1)\n  y = sdpa(x, k, k, mask: causal)",
    "a type": """z = cast(x, float32)
  k = cast_like(concat(cast(own, float32), z, axis: 1), tanh(x))
  y = sdpa(x, k, k, mask: causal) + cast_like(z, k)""",
    "names": """k = concat(own, x, axis: 1)
  y = cache(cache(x, k), k)""",
    "positions of queries": """k = concat(own, x, axis: 1)
  t = cast_like(cos(indices(time + n) * 0.2) -> unsqueeze(1), x)
  y = sdpa(x + t[n:], k + t, k, mask: causal)""",
    "a sum": """k = concat(own, x, axis: 1)
  seen = unsqueeze(indices(time + n), 0) <= unsqueeze(indices(time) + n, 1)
  y = matmul(where(seen, matmul(x, transpose(k, 1, 2)), 0), k)""",
    "scores of its own": """o = matmul(x, transpose(own, 1, 2))
  s = where(causal, matmul(x, transpose(x, 1, 2)), -inf)
  y = matmul(softmax(concat(o, s)), concat(own, x, axis: 1))""",
    "a latent": """c = x -> linear(2) -> rmsnorm
  k = concat(own, c -> linear(8, bias: false) as k, axis: 1)
  v = concat(own, c -> linear(8, bias: false) as v, axis: 1)
  y = sdpa(x, k, v, mask: causal)""",
}
KEPT_OF = {"scores of its own": 2, "a latent": 2}
NAMES = """block cache(new: [batch, all, width], past: [batch, positions, width]) -> [batch, all, width] {
  key = past * cast_like(cos(indices(positions) * 0.3) -> unsqueeze(1), past)
  return sdpa(new, key, past, mask: causal)
}
"""


@pytest.mark.parametrize("what", OTHERWISE)
def test_a_fixed_prefix_of_other_kinds(what: str) -> None:
    """Of weights or of what is computed once; read by several; under any names."""
    lines, more = OTHERWISE[what], ", given: [batch, 3, 8]" * ("given" in OTHERWISE[what])
    model = archdsl.load(text=FRONT.format(block=NAMES * (what == "names"), lines=lines, more=more))
    kept = unroll_step(stepped(model)).kept
    assert len(kept) == KEPT_OF.get(what, 1)
    if what == "read by each turn":
        assert isinstance(kept[0].node, FlatForm)
        assert cast("AppendNode", kept[0].node.node).name == "key"
    found = differences(model)
    assert "left" in found
    assert max(found.values()) < 1e-5, found
    found = torch_differences(model)
    assert max(found.values()) < 1e-5, found


# --- places in front of the sequence that go through the layers -------------------------------------------------------

H = "h = concat(own, x, axis: 1)"
LED = {
    "memory tokens": f"{H}\n  y = (h -> mha(heads: 2, mask: causal))[:, n:]",
    "of several tensors": "h = concat(own, 2 * own, x, axis: 1)\n  y = (h -> mha(heads: 2, mask: causal))[:, 2 * n:]",
    "of what is given": "y = (concat(given, x, axis: 1) -> mha(heads: 2, mask: causal))[:, n:]",
    "of what is computed once": "h = concat(given -> linear(8) as g, x, axis: 1)\n"
    "  y = (h -> mha(heads: 2, mask: causal))[:, n:]",
    "nothing": "y = (x -> pad(n, axis: 1) -> mha(heads: 2, mask: causal))[:, n:]",
    "rotated": f"{H}\n  y = (h -> mha(heads: 2, mask: causal, position: rope))[:, n:]",
    "positions of tokens": "x = x + (indices(time) -> embedding(64, 8))\n"
    f"  {H}\n  y = (h -> mha(heads: 2, mask: causal))[:, n:]",
    "positions of all": f"{H}\n  h = h + (indices(n + time) -> embedding(64, 8))\n"
    "  y = (h -> mha(heads: 2, mask: causal))[:, n:]",
    "a table cut off": f"{H}\n  h = h -> mha(heads: 2, mask: causal)\n"
    "  t = cast_like(cos(indices(time + n) * 0.2) -> unsqueeze(1), x)\n  y = h[:, n:] + t[n:]",
    "a window": f"{H}\n  y = (h -> mha(heads: 2, mask: causal & window(3)))[:, n:]",
    "alibi": f"{H} -> split_heads(2)\n  y = merge_heads(sdpa(h, h, h, mask: causal, position: alibi))[:, n:]",
    "equations": f"{H}\n  y = matmul(softmax(matmul(h, transpose(h, 1, 2)), mask: causal), h)[:, n:]",
    "a mask by hand": f"let all = n + time\n  {H}\n  i = indices(all)\n"
    "  seen = unsqueeze(i, 0) <= unsqueeze(i, 1)\n"
    "  y = matmul(softmax(where(seen, matmul(h, transpose(h, 1, 2)), -inf)), h)[:, n:]",
    "layers": f"{H}\n  for i in 3 {{ h = h + (h -> rmsnorm -> mha(heads: 2, mask: causal)) }}\n  y = h[:, n:]",
    "in each layer": "y = x\n  for i in 3 {\n    t = concat(own, y, axis: 1)\n"
    "    y = y + (t -> rmsnorm -> mha(heads: 2, mask: causal))[:, n:]\n  }",
    "blocks": "y = wrapped(x, own)",
    "some layers": f"x = x -> mha(heads: 2, mask: causal)\n  {H}\n  y = (h -> mha(heads: 2, mask: causal))[:, n:]",
    "taken off one by one": f"{H}\n  h = (h -> mha(heads: 2, mask: causal))[:, 1:]\n"
    "  y = (h -> mha(heads: 2, mask: causal))[:, n - 1:]",
    "keys in front, too": f"{H}\n  k = concat(own, h, axis: 1)\n  y = sdpa(h, k, k, mask: causal)[:, n:]",
    "queries of tokens alone": f"{H} -> mha(heads: 2, mask: causal)\n  y = sdpa(x, h, h, mask: causal)",
    "cut from the end": f"{H}\n  y = (h -> mha(heads: 2, mask: causal))[:, -time:]",
    "cut off again": f"{H}\n  y = h[:, n:]",
    "a recurrence": f"{H}\n  y = (h -> gru(8))[:, n:]",
    "a scan": f"{H}\n  ys = scan s: [batch, 8] = 0 for a in h {{ s = s * 0.5 + a  emit s }}\n"
    "  y = sdpa(h, h, ys, mask: causal)[:, n:]",
    "a convolution": f"{H} -> conv1d(8, kernel: 3, padding: causal)\n  y = (h -> mha(heads: 2, mask: causal))[:, n:]",
    "sums": f"{H}\n  y = (h -> cumsum(axis: 1))[:, n:]",
    "linear attention": f"{H} -> split_heads(2)\n  y = (linear_attention(h, h, h) -> merge_heads)[:, n:]",
}
LED |= {
    "new positions and all": f"{H}\n  y = mixed(h, h)[:, n:]",
    "a bias": f"{H}\n  i = indices(n + time)\n"
    "  b = cast_like(unsqueeze(i, 0) * 0.1 - unsqueeze(i, 1) * 0.2, x) -> unsqueeze(0)\n"
    "  q = h -> split_heads(2)\n  y = merge_heads(sdpa(q, q, q, b, mask: causal))[:, n:]",
    "a tensor of keys": f"{H}\n  t = h -> linear(1) -> squeeze(-1)\n"
    "  y = (h -> mha(heads: 2, mask: causal & keys(t > 0)))[:, n:]",
    "a condition": f"assert 2 <= time\n  {H}\n  assert n + time <= 64\n"
    "  h = h + (indices(n + time) -> embedding(64, 8))\n  y = (h -> mha(heads: 2, mask: causal))[:, n:]",
    "ones": f"{H}\n  h = h * ones(batch, n + time, 1)\n  y = (h -> mha(heads: 2, mask: causal))[:, n:]",
    "cut along two axes": f"{H}\n  h = h -> mha(heads: 2, mask: causal)\n  y = h[:, n:, :4]",
    "under unnamed axes": f"{H}\n  h = pair(h, (cast(tokens, int) % 5) -> pad(n, axis: 1))\n"
    "  y = (h -> mha(heads: 2, mask: causal))[:, n:]",
    "given to each layer, too": "g = given -> linear(8)\n  h = concat(g, x, axis: 1)\n"
    "  h = (h -> mha(heads: 2, mask: causal))[:, n:]\n  y = h + sdpa(h, g, g)",
    "a latent": f"{H}\n  y = (h -> mla(heads: 2, kv_rank: 4, nope_dim: 8, rope_dim: 4, v_dim: 8, mask: causal))[:, n:]",
    "nothing kept": f"{H} -> linear(8)\n  y = tanh(h)[:, n:]",
    "before and behind": f"x = x -> conv1d(8, kernel: 3, padding: causal)\n  {H}\n"
    "  y = (h -> mha(heads: 2, mask: causal))[:, n:] -> gru(8)",
}
ONNX_ALONE = {
    "ones": "`ones` is given the length `n . time`",
    "cut along two axes": "does something else, too",
    "a table cut off": "does something else, too",
    "some layers": "0 places stand in front of the sequence where `mha`",
    "taken off one by one": "places stand in front of the sequence where `mha",
    "keys in front, too": "reads positions behind .* places in front of the sequence",
    "queries of tokens alone": "reads positions behind .* places in front of the sequence",
}
KEEPS = {"of several tensors": [6, 6], "in each layer": [3] * 6, "layers": [3] * 6, "some layers": [0, 0, 3, 3]}
KEEPS |= {"taken off one by one": [3, 3, 2, 2], "blocks": [6, 6], "keys in front, too": [6]}
KEEPS |= {"rotated": [3, 3], "queries of tokens alone": [3, 3, 3]}
BLOCKS = """block mixed(u: [batch, time, width], v: [batch, time, width]) -> [batch, time, width] {
  i = indices(time)
  seen = unsqueeze(i, 0) <= unsqueeze(i, 1)
  return u + matmul(cast_like(where(seen, 0.1 * unsqueeze(i, 0), 0), v), v)
}
block pair(x: [batch, time, width], ids: int[batch, time]) -> [batch, time, width] {
  return x * cast_like(unsqueeze(ids, -1), x)
}
block wrapped(x: [batch, some, width], memory: [batch, n, width]) -> [batch, some, width] {
  let all = n + some
  h = concat(memory, x, axis: 1)
  h = h + inner(h, memory)
  return h[:, all - some:]
}
block inner(h: [batch, places, width], memory: [batch, m, width]) -> [batch, places, width] {
  return (concat(memory, h, axis: 1) -> mha(heads: 2, mask: causal))[:, m:]
}
"""


def led(what: str, n: int = 3) -> Model:
    lines, more = LED[what], f", given: [batch, {n}, 8]" * ("given" in LED[what])
    text = FRONT.format(block=BLOCKS, lines=lines, more=more)
    return archdsl.load(text=text.replace("n = 3", f"n = {n}"))


@pytest.mark.parametrize(("what", "n"), [*((w, 3) for w in LED), *((w, 1) for w in LED if "given" not in LED[w])])
def test_places_in_front_of_the_sequence_go_through_the_layers(what: str, n: int) -> None:
    """The first step computes them with the tokens, and all later ones read what is kept of them: in chunks, and in
    rows of several lengths, whose padding stands between them and the tokens."""
    model = led(what, n)
    step = stepped(model)
    assert difference(step) == ""
    kept = [k.shape[k.axis] for k in unroll_step(step).kept if k.kind == "cache"]
    if n == 3 and what in KEEPS:
        assert [step.front(size) for size in kept] == KEEPS[what]
    found = differences(model, last=True)
    assert what == "new positions and all" or {"steps", "left", "right", "left, last"} <= found.keys()
    found |= differences(model, (3, 1, 2, 2), target="ort-cpu")
    if what in ONNX_ALONE:
        with pytest.raises(ArchError, match=f"(?s)E0504.*{ONNX_ALONE[what]}.*--to onnx --decode"):
            torch_differences(model)
    else:
        found |= {f"torch {how}": d for how, d in torch_differences(model, (3, 1, 2, 2)).items()}
        assert "torch left, static" in found
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("what", ["positions of tokens", "rotated", "blocks", "in each layer", "a recurrence"])
def test_as_many_places_in_front_of_the_sequence_as_a_config_says(what: str) -> None:
    model = led(what)
    made = load_source(emit(model, Extras(frozenset({"generate"}))))
    names: Any = sys.modules[made.__module__]
    for n in (1, 2, 5):
        module, tokens, cache = made(names.Config(n=n)).eval(), torch.randint(30, (2, 8)), names.Cache(8)
        with torch.no_grad():
            steps = [module(part, cache=cache) for part in tokens.split([4, 1, 3], 1)]
            torch.testing.assert_close(torch.cat(steps, 1), module(tokens))
        prompts, real = tokens[:, :5], torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
        together = module.generate(prompts, 4, attention_mask=real)
        torch.testing.assert_close(together[1:], module.generate(prompts[1:, 2:], 4))


def test_where_an_input_says_which_tokens_are_padding_onnx_alone_has_places_in_front() -> None:
    lines = f"{H}\n  y = (h -> mha(heads: 2, mask: causal & padding))[:, n:]"
    model = archdsl.load(text=FRONT.format(block="", lines=lines, more=", padding: padding[batch, time]"))
    assert max(differences(model).values()) < 1e-5
    with pytest.raises(ArchError, match=r"E0504.*an input says which tokens are padding"):
        torch_differences(model)


NOT_LED = {
    "a shift": (f"{H}\n  y = (h -> mha(heads: 2, mask: causal))[:, :time]", "`index`.* in front of the sequence"),
    "behind": ("y = (concat(x, own, axis: 1) -> mha(heads: 2, mask: causal))[:, :time]", "`concat`"),
    "all rows": (
        f"{H} -> flatten(0, 1) -> unflatten(0, batch, time + n)\n  y = sdpa(h, h, h, mask: causal)[:, n:]",
        "`flatten`",
    ),
    "a softmax over queries": (
        f"{H}\n  s = h -> linear(1) -> transpose(1, 2) -> expand(1, n + time)\n"
        "  i = indices(n + time)\n  every = fill(1, n + time, n + time) > 0\n"
        "  seen = unsqueeze(every & (unsqueeze(i, 0) <= unsqueeze(i, 1)), 0)\n"
        "  y = matmul(where(seen, softmax(where(~seen, -inf, s), axis: 1), 0), h)[:, n:]",
        "depends on how many positions follow",
    ),
    "a length that is no sum": (
        f"let all = 2 * (n + time) // 2\n  {H}\n"
        "  y = ((h * ones(batch, all, 8)) -> mha(heads: 2, mask: causal))[:, n:]",
        "is no sum",
    ),
}


@pytest.mark.parametrize("what", NOT_LED)
def test_places_in_front_of_the_sequence_that_have_no_step(what: str) -> None:
    lines, message = NOT_LED[what]
    with pytest.raises(ArchError, match=f"E0504.*{message}"):
        stepped(archdsl.load(text=FRONT.format(block="", lines=lines, more="")))


@pytest.mark.parametrize(
    "y",
    [
        "sdpa(x, k, k, mask: causal | prefix(n + 2))",
        "sdpa(x, k, k)",
        "sdpa(x, concat(x, own, axis: 1), k, mask: causal)",
        "matmul(softmax(where(unsqueeze(indices(time + n), 0) <= unsqueeze(indices(time) + n + 1, 1), s, -inf)), k)",
        "matmul(softmax(where(concat(ones(time, n), u, axis: 1) > 0, s, -inf)), k)",
        "matmul(softmax(where(concat(u, ones(time, n), axis: 1) > 0, s, -inf)), k)",
        "matmul(softmax(where(concat(ones(time, n + 1), u[:, 1:], axis: 1) > 0, s, -inf)), k)",
        "matmul(softmax(concat(matmul(x, transpose(x[:, :3], 1, 2)), where(j < i, -inf, where(causal, r, -inf)))), k)",
        "matmul(softmax(concat(matmul(x, transpose(x[:, :3], 1, 2)), where(j > i - 4, -inf, r))), k)",
    ],
)
def test_behind_a_fixed_prefix_no_later_position_is_seen(y: str) -> None:
    lines = f"""k = concat(own, x, axis: 1)
  r = matmul(x, transpose(x, 1, 2))
  s = matmul(x, transpose(k, 1, 2))
  i = indices(time) -> unsqueeze(1)
  j = indices(time) -> unsqueeze(0)
  u = where(j <= i + 1, ones(time, time), 0)
  y = {y}"""
    with pytest.raises(ArchError, match=r"E0504.*(a later token can reach|cannot prove that)"):
        stepped(archdsl.load(text=FRONT.format(block="", lines=lines, more="")))


def test_a_fixed_prefix_is_as_long_as_a_config_says() -> None:
    lines = """let all = n + time
  k = concat(own, x, axis: 1)
  s = matmul(x, transpose(k, 1, 2))
  seen = unsqueeze(indices(all), 0) <= unsqueeze(indices(time) + n, 1)
  y = matmul(softmax(where(seen, s, -inf)), k) + sdpa(x, k, k, mask: (causal & window(2)) | prefix(n))"""
    model = archdsl.load(text=FRONT.format(block="", lines=lines, more=""))
    made = load_source(emit(model, Extras(frozenset({"generate"}))))
    names: Any = sys.modules[made.__module__]
    for n in (1, 2, 5):
        module, tokens, cache = made(names.Config(n=n)).eval(), torch.randint(30, (2, 8)), names.Cache(8)
        with torch.no_grad():
            step = getattr(module, "step", module)
            steps = [step(part, cache=cache) for part in tokens.split([4, 1, 3], 1)]
            torch.testing.assert_close(torch.cat(steps, 1), module(tokens))
