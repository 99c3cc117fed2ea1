"""Wrong options, types and shapes end in a diagnostic that names the cure."""

from __future__ import annotations

import pytest

import archdsl
from archdsl.diagnostics import ArchError

X = "x: [2, 5, 8]"
XY = "x: [2, 5, 8], y: [2, 5, 3]"
T = "x: [batch, time, 8]"
IDS = "ids: int[2, 5]"

WRONG = [
    # inputs, expression, code, words of the message
    (X, "x / 0", "E0204", "number 0"),
    (X, "x % 0", "E0204", "number 0"),
    ("x: bool[2, 5]", "x % 2", "E0304", "true and false"),
    ("x: bool[2, 5]", "-x", "E0304", "true and false"),
    (IDS, "relu(ids)", "E0304", "real numbers"),
    (IDS, "softmax(ids)", "E0304", "real numbers"),
    (IDS, "ids -> dropout(0.1)", "E0304", "real numbers"),
    (IDS, "ids -> noise", "E0304", "real numbers"),
    (X, "~x", "E0304", "true and false"),
    (X, "x & x", "E0304", "true and false"),
    (X, "where(x, x, 0)", "E0304", "true and false"),
    (XY, "x + y", "E0301", "last axis"),
    (X, "x -> clamp", "E0204", "bounds"),
    (X, "x -> clamp(1, 0)", "E0204", "above"),
    (X, "x -> sum(3)", "E0303", "no axis 3"),
    (X, "x -> sum([1, -2])", "E0204", "twice"),
    (X, "x -> softmax(-4)", "E0303", "no axis -4"),
    (X, "x -> argmax(5)", "E0303", "no axis 5"),
    (X, "x -> topk(9)", "E0401", "9"),
    (X, "x -> glu(axis: 1)", "E0401", "halves"),
    (X, "x -> transpose(1, 3)", "E0303", "no axis 3"),
    (X, "x -> permute(0, 1)", "E0302", "every axis once"),
    (X, "x -> permute(0, 1, 1)", "E0204", "twice"),
    (XY, "concat(x, y, axis: 1)", "E0301", "axis 2"),
    (X, "concat(x, x[0])", "E0302", "as many axes"),
    (XY, "stack(x, y)", "E0301", "equal axes"),
    (X, "x -> stack(axis: 4)", "E0303", "no axis 4"),
    (X, "x -> split(3)", "E0301", "add up"),
    (X, "x -> split", "E0204", "sizes"),
    (X, "x -> split(-1, 9)", "E0204", "-1"),
    (X, "x -> split([3, 3])", "E0301", "3 + 3 = 6"),
    (X, "x -> chunk(3)", "E0401", "equal parts"),
    (T, "x -> chunk(1_000_000, axis: 1)", "E0204", "known number"),
    (X, "x -> pad(-1)", "E0204", "only adds"),
    (IDS, "ids -> pad(1, value: 0.5)", "E0204", "whole"),
    (X, "x -> shift(6)", "E0401", "shift"),
    (IDS, "ids -> shift(fill: 0.5)", "E0204", "whole"),
    (X, "x -> expand(1, 4)", "E0301", "size 1"),
    (X, "x -> squeeze(1)", "E0301", "size 1"),
    (X, "x -> unsqueeze(5)", "E0303", "no axis 5"),
    (X, "x -> flatten(2, 1)", "E0204", "before"),
    (X, "x -> unflatten(-1, 3, 2)", "E0301", "3 * 2 = 6"),
    (X, "x -> unflatten(-1, 8)", "E0204", "at least two"),
    (X, "x[:, 5]", "E0303", "no position 5"),
    (X, "x[:, -6]", "E0303", "no position -6"),
    (X, "x[:, :9]", "E0303", "position 9"),
    (X, "x[:, 3:3]", "E0303", "nothing"),
    (X, "x[0, 0, 0, 0]", "E0302", "4 axes"),
    (X, "x[..., 0, ...]", "E0204", "once"),
    (X, "x[0.5]", "E0204", "whole number"),
    (X, "x -> index([0, 1])", "E0204", "brackets"),
    ("x: [2, 5, 8], p: int[2, 4, 3]", "gather(x, p)", "E0301", "axis 1"),
    ("x: [2, 5, 8], p: int[2, 3]", "gather(x, p)", "E0302", "as many axes"),
    ("x: [2, 8], p: int[2, 3], v: [2, 4]", "scatter(x, p, v)", "E0301", "equal axes"),
    ("x: [2, 8], p: int[2, 3], v: int[2, 3]", "scatter(x, p, v)", "E0304", "one type"),
    (X, "x + zeros(5, 0)", "E0204", "at least 1"),
    ("a: [5, 8], b: [7, 3]", "matmul(a, b)", "E0301", "inner"),
    ("a: [2, 5, 8], b: [3, 8, 3]", "matmul(a, b)", "E0301", "leading axes"),
    (X, "x -> dropout(1)", "E0204", "less than 1"),
    (X, "x -> dropout(-0.1)", "E0204", "at least 0"),
    (X, 'einsum("b t d", x)', "E0204", "->"),
    (X, 'einsum("b t -> b", x)', "E0302", "3"),
    (X, 'einsum("b t d -> b e", x)', "E0204", "`e`"),
    (X, 'einsum("b t d -> b b", x)', "E0204", "twice"),
    (X, 'einsum("b t d, b d -> b", x)', "E0204", "2 tensors"),
    (X, 'einsum("b t t -> b t", x)', "E0301", "`t`"),
    (X, 'x -> rearrange("b t d -> b t")', "E0204", "`d` is missing"),
    (X, 'x -> rearrange("b t d -> t b d", sizes: 4)', "E0201", "`sizes` is no axis of the pattern"),
    (X, "x -> permute(axes: mha)", "E0204", "but `axes` is the block `mha`"),
    (X, 'x -> rearrange("b t d -> b t d e")', "E0204", "`e` is missing"),
    (X, 'x -> rearrange("b t (h d -> b t h d")', "E0204", "cannot be read"),
    (X, 'x -> rearrange("b t d")', "E0204", "cannot be read"),
    (X, 'x -> rearrange("b t (h d) -> b t h d")', "E0204", "`h` and `d`"),
    (X, 'x -> rearrange("b t (h d) -> b t h d", h: 3)', "E0401", "equal parts"),
    (X, 'x -> rearrange("b t (h d) -> b t h d", h: 3, d: 3)', "E0301", "9"),
    (X, 'x -> rearrange("b t d -> d b t", p: 3)', "E0201", "`p`"),
    (X, 'x -> rearrange("b d -> d b")', "E0302", "3"),
    (X, 'x -> rearrange("1 t d -> t d")', "E0301", "1"),
    (X, 'x -> rearrange("b b d -> b d")', "E0204", "twice"),
    (T, 'x -> rearrange("b (n p) d -> b n (p d)", p: 0)', "E0204", "at least 1"),
    (X, 'einsum("b t 2d -> b", x)', "E0204", "`2d` is not the name"),
    (X, 'einsum("... ... -> ...", x)', "E0204", "once for each tensor"),
    (X, 'x -> rearrange("b (t 2d) c -> b c")', "E0204", "cannot be read"),
    (X, "x -> permute(axes: [])", "E0204", "at least one axis"),
    (X, "x -> mean(axis: [])", "E0204", "at least one axis"),
    (X, "x -> prelu(slope: mean(x))", "E0203", "`slope`"),
    (T, "x -> prelu(time)", "E0204", "known before the model runs"),
    (T, "x -> layernorm(eps: 1 / time)", "E0204", "`eps` must be known before the model runs"),
    (T, "x -> batchnorm(momentum: 1 / time)", "E0204", "`momentum` must be known"),
    (X, "x -> layernorm(weight: false)", "E0204", "has no `bias` either"),
    (X, "x -> rmsnorm(weight: false, offset: true)", "E0204", "`offset` is about the weight"),
    ("x: [2, 5, 4, 8]", "x -> batchnorm(axis: 2)", "E0303", "not axis 2"),
    ("x: [1, 2, 3, 4, 5, 6]", "x -> batchnorm", "E0302", "two to five axes, and there are 6"),
    (T, "x -> every(time)", "E0402", "known before the model runs"),
    (T, "x -> shift(time)", "E0204", "not by time"),
    (X, "x -> keep_groups(2, 1, score: mean)", "E0204", "not by `mean`"),
    (X, "x -> rnn(4, act: gelu)", "E0204", "`tanh` or `relu`, not `gelu`"),
    ("x: [2, 8], h: [1, 2, 4]", "gru_cell(x, h, hidden: 4)", "E0302", "2 axes and `h` has 3"),
    ("x: [2, 5, 8], y: [2, 5]", "linear_recurrence(x, y)", "E0302", "factors with the axes of terms"),
    ("x: [2, 5, 3], y: [2, 5, 8]", "linear_recurrence(x, y)", "E0301", "that of the terms or 1"),
    ("x: [2, 5, 8], h: [2, 5]", "linear_recurrence(x, x, h)", "E0301", "starts from [2, 8]"),
    (X, "sdpa(x, x, x[0])", "E0302", "same number of axes"),
    ("q: [2, 4, 5, 8], k: [2, 2, 5, 8], v: [2, 4, 5, 8]", "sdpa(q, k, v)", "E0301", "2 of k and 4 of v"),
    (X, "sdpa(x, x, x, position: alibi)", "E0302", "no axis of heads"),
    (X, "sdpa(x, x, x, position: transformer_xl)", "E0302", "[batch, heads, time, head_dim]"),
    ("q: [2, 4, 5, 3]", "sdpa(q, q, q, position: transformer_xl(width: 7))", "E0204", "a width of 7 is odd"),
    (
        "q: [2, 4, 5, 8]",
        "sdpa(q, q, q, position: relative_bias(buckets: 64, max_distance: 16))",
        "E0204",
        "16 is the last",
    ),
    ("q: [2, 4, 5, 8], d: [4, 1]", "linear_attention(q, q, q, d, causal: false)", "E0204", "`causal: true`"),
    ("q: [2, 4, 5, 8], d: [3, 1]", "linear_attention(q, q, q, d)", "E0301", "`log_decay` has the axes"),
    ("x: [8], w: [2], c: int[2]", "experts(linear(8), 4, capacity: 2)(x, w, c)", "E0302", "and x is one: [8]"),
    (T, "x -> moe(experts: 4, top_k: 2, expert: linear(8), capacity: 1 / time)", "E0402", "time"),
]


@pytest.mark.parametrize(("inputs", "expression", "code", "words"), WRONG, ids=[w[1] for w in WRONG])
def test_a_wrong_use_is_explained(inputs: str, expression: str, code: str, words: str) -> None:
    with pytest.raises(ArchError) as caught:
        archdsl.load(text=f"model m({inputs}) {{ return {expression} }}")
    found = caught.value.diagnostics
    assert [d.code for d in found] == [code]
    assert words in found[0].message
    assert found[0].span is not None
