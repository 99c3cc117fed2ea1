"""Random models that mix positions, and what their numbers say of the proofs of causality.

A *part* is a few random statements that make `y` of `u` and `v: [batch, time, 4]` and `ids: int[batch, time]`, by all
that the proof reasons on: masks of the algebra and of indices, explicit scores, convolutions, recurrences, scans,
choices, axes that are cut and merged. Each part is compiled once. A graph calls parts at random, each with tensors that
others have made, and claims every tensor to be causal: a graph of n calls is n models. Where a tensor is proved, no
change of later inputs may change it; where a message says that a later position reaches it, some change has to.

Many more: python -m tests.random_specs.mixing --graphs 1000 --seed 1
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from rows import POSITIONS
from torch import Tensor

import archdsl
from archdsl.backends.torch import emit
from archdsl.dependence.causality import walked
from archdsl.dependence.explain import Explainer
from archdsl.ir.graph import CallNode, CausalNode, Model, Node, Value
from archdsl.run.load import load_source

WIDTH = 4
FIXED = 12
"""Positions where the length is known before the model runs: 2, 3, 4 and 6 divide it."""
LENGTHS = 7, 10
"""Positions where it is not."""
DELAYED = """\
block delayed(x: [batch, time, width]) -> [batch, time, width] {
  h = x -> shift -> linear(width)
  return x + tanh(h)
}"""


@dataclass
class Writer:
    """Writes the statements of one part."""

    random: Random
    fixed: bool
    """Whether the length of the sequence is known before the model runs."""

    def one(self, *options: str) -> str:
        return self.random.choice(options)

    def n(self, low: int = 1, high: int = 3) -> int:
        return self.random.randint(low, high)

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    # --- positions, and pairs of them -------------------------------------------------------------------------------

    def term(self) -> str:
        """A whole number of each pair of positions, query and key, [length, length] when joined."""
        plain = self.one("I", "J")
        return self.one(
            plain,
            plain,
            f"({plain} + {self.n()})",
            f"({plain} - {self.n()})",
            f"({self.n(2, 3)} * {plain})",
            f"(0 - {plain})",
            "(J - I)",
            f"(I - J + {self.n(0, 2)})",
            "(I // 2)",
            f"cast({plain}, float32)",
            f"({self.one('0.5', '1.5')} * {plain})",
            f"shift({plain}, {self.one('1', '-1')}, axis: 0)",
            "maximum(I, J)",
            f"unsqueeze(flip(indices(L), 0), {self.n(0, 1)})",
        )

    def seen(self, depth: int = 0) -> str:
        """Which keys a query sees, made of positions."""
        if depth < 2 and self.chance(30):
            a, b = self.seen(depth + 1), self.seen(depth + 1)
            return self.one(f"({a} & {b})", f"({a} & {b})", f"({a} | {b})", f"~{a}", f"where({a}, {b}, {a})")
        if self.chance(55):
            return self.one("(J <= I)", "(I >= J)", "(J < I + 1)", "(J - I <= 0)", "~(J > I)")
        return f"({self.term()} {self.one('<', '<=', '>', '>=', '==', '!=')} {self.term()})"

    def pairs(self, seen: str) -> list[str]:
        """Statements that make `w`, a weight of every pair [batch, length, length], from `v`."""
        score = self.one(
            'einsum("b q d, b k d -> b q k", v, v -> linear(4, bias: false))',
            "matmul(v -> linear(4), transpose(v, 1, 2))",
            "(v -> linear(1)) + transpose(u -> linear(1), 1, 2)",
            "transpose(v -> linear(1), 1, 2) -> expand(1, L)",
        )
        itself = self.one("", " | (I == J)", " | (I == J)", " | (I == J)")
        lines = [f"s = {score}", f"c = unsqueeze(fill(1, L, L) > 0, 0) & ({seen}{itself})"]
        hide = self.one("-inf", "-inf", "-inf", "-1e9", "0", "-5000")
        lines.append(
            self.one(
                f"s = where(c, s, {hide})",
                f"s = where(c, s, {hide})",
                f"s = where(~c, {hide}, s)",
                f"s = s + where(c, 0, {hide})",
                f"s = where(c, 0, {hide}) - s",
                "s = s * cast(c, float)",
                "s = minimum(s, where(c, inf, -inf))",
                "s = maximum(-s, where(c, -inf, inf))",
            )
        )
        if self.chance(15):
            lines.append(
                self.one(
                    "s = s / 2",
                    "s = 3 * s",
                    "s = cumsum(s, axis: 1)",
                    "s = shift(s, 1, axis: 1)",
                    "s = shift(s, -1, axis: 2)",
                    "s = flip(s, 2)",
                    "s = transpose(s, 1, 2)",
                    "s = s - max(s, 2, keep: true)",
                    "s = clamp(s, low: -100)",
                    "s = -s",
                    "s = 1 / s",
                )
            )
        lines.append(
            self.one(
                "w = softmax(s)",
                "w = softmax(s)",
                "w = softmax(s)",
                "w = exp(s)",
                "w = relu(s)",
                "w = sigmoid(s)",
                "w = tanh(s)",
                "w = softmax(s, axis: 1)",
                "w = exp(log_softmax(s))",
                "w = exp(s - logsumexp(s, keep: true))",
                "w = s * s",
                "w = s",
                "w = l2_normalize(relu(s))",
                "w = silu(s)",
                "w = exp(s) / (1 + exp(s))",
                "w = dropout(s, 0)",
            )
        )
        if self.chance(20):
            lines.append(
                self.one(
                    "w = w * cast(c, float)",
                    "w = w / (sum(w, keep: true) + 1)",
                    "w = w -> pad(1, 0, axis: 2)\nw = w[:, :, 1:]",
                    "w = softplus(w)",
                    "w = where(c, w, 0)",
                    "w = w + 0 * s",
                    "w = abs(w)",
                    "w = w ** 2",
                )
            )
        return lines

    def causal(self) -> str:
        """The same, no later key among them."""
        plain = self.one("(J <= I)", "~(J > I)", "(I >= J)", "(I - J > -1)", "(2 * J <= 2 * I)", "(J < I)")
        return self.one(plain, f"({plain} & {self.seen(1)})", f"({self.seen(1)} & {plain})")

    def attention(self, seen: str) -> str:
        last = self.one(
            'y = einsum("b q k, b k d -> b q d", w, u)',
            'y = einsum("b q k, b k d -> b q d", w, u)',
            "y = matmul(w, u -> linear(4))",
            "y = matmul(transpose(w, 1, 2), u)",
            'y = einsum("b q k, b k d, b k e -> b q d", w, u, v)',
            "y = (unsqueeze(w, 3) * unsqueeze(u, 1)) -> sum(2)",
            "y = u + sum(w * w, 2, keep: true)",
            "y = u * max(w, 2, keep: true)",
            "y = u + (w -> cumsum(axis: 2))[..., :1]",
            "y = matmul(w, matmul(w, u) -> cast(float))",
        )
        return "\n".join([*self.pairs(seen), "w = w -> cast(float)", last])

    def best(self) -> str:
        """What is chosen by scores."""
        k, first, second = self.n(1, 2), self.one(self.causal(), self.seen()), self.one(self.causal(), self.seen())
        least, at = f"(s >= b[..., {k - 1}:])", "(max(one_hot(L)(a), 2) > 0)"
        last = self.one(
            "y = u + tanh(b)[..., :1]",
            f"y = matmul(softmax(where({second} & {least}, s, -inf)) -> cast(float), u)",
            f"y = matmul(softmax(where({second} & {at}, s, -inf)) -> cast(float), u)",
            "y = u * cast(a[..., :1], float)",
            "y = u + tanh(max(s, 2, keep: true))",
            "y = gather(u, a[..., :1] -> expand(2, 4), axis: 1)",
        )
        return f"s = where({first}, matmul(v, transpose(v, 1, 2)), -inf)\nb, a = s -> topk({k})\n{last}"

    def mask(self, depth: int = 0) -> str:
        """A mask of the algebra."""
        if depth < 2 and self.chance(35):
            a, b = self.mask(depth + 1), self.mask(depth + 1)
            return self.one(f"({a} & {b})", f"({a} & {b})", f"({a} | {b})", f"~{a}")
        if self.chance(50):
            return "causal"
        rule = self.random.choice([*POSITIONS])
        numbers = ", ".join(str(self.n()) for _ in POSITIONS[rule].numbers)
        return self.one(
            f"{rule}({numbers})" if numbers else rule,
            f"{rule}({numbers})" if numbers else rule,
            f"keys({self.real()})",
            f"queries({self.real()})",
            "same(d)",
        )

    def real(self) -> str:
        return self.one("(ids != 0)", "(ids != 0)", "shift(ids != 0, -1)", "(cumsum(ids, axis: 1) > 2)")

    def sdpa(self) -> str:
        """Attention with a mask of the algebra."""
        documents = "d = cumsum(ids == 0, axis: 1)"
        if self.chance(40):
            return f"{documents}\ny = u -> mha(heads: {self.one('1', '2')}, mask: {self.mask()})"
        heads = "-> linear(4) -> split_heads(2)"
        lines = [documents, f"q = v {heads}", f"k = u {heads}"]
        more = ""
        if self.chance(20):
            more = self.one("", " & window(2)", " & strided(2)", " | prefix(2)")
            lines.append("k = concat(k[:, :, :1], k, axis: 2)")
            return "\n".join([*lines, f"y = sdpa(q, k, k, mask: causal{more}) -> merge_heads"])
        if self.chance(30):
            lines.append(f"c = unsqueeze(fill(1, L, L) > 0, 0) & {self.seen()}")
            lines.append(f"z = where(c, 0, {self.one('-inf', '-inf', '-1e9')}) -> cast(float) -> unsqueeze(1)")
            more = ", z"
        return "\n".join([*lines, f"y = sdpa(q, k, k{more}, mask: {self.mask()}) -> merge_heads"])

    # --- one sequence ------------------------------------------------------------------------------------------------

    def backwards(self) -> str:
        """One statement that looks back, or at its own position only."""
        n, m = self.n(), self.n(0, 2)
        return self.one(
            f"y = u -> shift({n})",
            f"y = u -> shift(-{n}) -> shift({n + m})",
            "y = u -> shift(1, fill: 2)",
            "y = u -> cumsum(axis: 1)",
            "y = tanh(u) -> cumprod(axis: 1)",
            f"y = u -> conv1d(4, kernel: {n}, padding: causal{self.one('', ', dilation: 2', ', groups: 2')})",
            "y = u -> gru(4)",
            "y = u -> lstm(4)",
            "y = u -> flip(1) -> rnn(4, reverse: true) -> flip(1)",
            "y = u -> flip(2)",
            "y = linear_recurrence(sigmoid(u), v)",
            f"y = u -> pad({n}, 0)\ny = y[:, :-{n}]",
            f"y = u -> pad({n}, {n})\ny = y[:, :-{2 * n}]",
            "y = u + v[:, :1]",
            f"a, b = u -> split({n}, L - {n}, axis: 1)\ny = concat(a, b, axis: 1)",
            f"a = u[:, :{n}]\nb = v[:, :-{n}]\ny = concat(a, b, axis: 1)",
            "y = u -> every(2) -> repeat(2)\ny = y[:, :L]",
            "y = u -> repeat(2)\ny = y[:, :L]",
            "y = u -> max_pool1d(3, stride: 1, padding: 1) -> shift(1)",
            "y = stack(u, v, axis: 1)[:, 1]",
            "y = u -> tile(2)\ny = y[:, :L]",
            "y = u -> rope",
            "y = u -> layernorm -> linear(4)",
            "y = scan h: [batch, 4] = 0 for a in u { h = (0.5 * h + a) -> cast(float)  emit h }",
            "y = scan h: [batch, 4] = 0 for a in u { emit h  h = (tanh(h) + a) -> cast(float) }",
            "y = scan h: [batch, 4] = 0, g: [batch, 4] = 1 for a, b in u, v "
            "{ emit g + a  g = h  h = (h + b) -> cast(float) }",
            "y = v[:, :1]\n"
            "y = scan h: [batch, 4] = squeeze(y, 1) for a in u { h = (0.5 * h + a) -> cast(float)  emit h }",
            f"y = u\nfor i in {n} {{ y = y -> shift({m + 1}) }}",
            "y = u -> delayed -> delayed",
            "y = embedding(5, 4)(ids) + shift(v)",
            "y = u + unsqueeze(cast(cumsum(ids, axis: 1), float), 2)",
            "y = gather(u, minimum(ids, indices(L)) -> unsqueeze(2) -> expand(2, 4), axis: 1)",
            "y = gather(u, indices(L) -> unsqueeze(0) -> unsqueeze(2) -> expand(0, batch) -> expand(2, 4), axis: 1)",
            "y = u -> transpose(0, 1) -> cumsum(axis: 0) -> transpose(0, 1)",
            "y = u -> split_heads(2) -> transpose(1, 2) -> flatten(2)",
            "q = u -> split_heads(2)\nk = relu(q) + 1\ny = linear_attention(k, k, q, normalize: true) -> merge_heads",
            "if training { y = u -> shift(1) } else { y = tanh(v) }",
            f"y = where(unsqueeze(indices(L), 1) < {n}, v, shift(u, {n}))",
        )

    def regrouped(self) -> str:
        """Positions cut and merged; of a fixed length."""
        p, cut = self.one("2", "3", "4"), "b (n p) d -> b n (p d)"
        rows, back = "b (n p) d -> (b n) p d", "(b n) p d -> b (n p) d"
        count = FIXED // int(p)
        size = f"n: {count}"
        inner = self.one("cumsum(axis: 1)", "shift", "flip(1)", "gru(4)", "cumsum(axis: 0)", "shift(-1)")
        among = self.one("shift(1, axis: 2)", "flip(2)", "shift(1, axis: 1)")
        moved = self.one("shift", "shift(-1)", "linear(4)")
        outer = self.one("shift", "cumsum(axis: 1)", "linear(W)", "flip(1)", "shift(-1)").replace("W", f"{4 * int(p)}")
        at = self.random.randrange(1, int(p))
        one = self.one(f"c[:, :, {at - 1}:{at}]", "mean(c, 2, keep: true)", "unsqueeze(h, 2)", "max(c, 2, keep: true)")
        return self.one(
            f'c = u -> rearrange("b (n p) d -> b n p d", p: {p})\n'
            f"h = scan h: [batch, {count}, 4] = 0 for a in transpose(c, 1, 2) {{ h = (0.5 * h + a) -> cast(float) }}\n"
            f"y = concat(c[:, :, :{at}], c[:, :, {at}:] + {one}, axis: 2) -> flatten(1, 2)",
            f'y = u -> rearrange("{cut}", p: {p}) -> {outer} -> rearrange("b n (p d) -> b (n p) d", p: {p})',
            f'y = u -> rearrange("{cut}", p: {p}) -> shift -> linear({4 * int(p)}) -> '
            f'rearrange("b n (p d) -> b (n p) d", p: {p})',
            f'y = u -> rearrange("{rows}", p: {p}) -> {inner} -> rearrange("{back}", {size})',
            f'y = u -> rearrange("b (n p) d -> b (p n) d", p: {p}) -> {inner} -> '
            f'rearrange("b (p n) d -> b (n p) d", p: {p})',
            f'y = u -> rearrange("b (n p) d -> b (p n) d", p: {p})',
            f"y = u -> unflatten(1, {count}, {p}) -> {among} -> flatten(1, 2)",
            f"y = u -> unflatten(1, {count}, {p}) -> max(2, keep: true) -> {moved} -> "
            f"repeat({p}, axis: 2) -> flatten(1, 2)",
            f"y = u -> conv1d(4, kernel: {p}, stride: {p}, padding: none) -> {moved} -> repeat({p})",
            f"y = u -> every({p}) -> {self.one('repeat', 'tile')}({p})",
            "y = u -> flatten(0, 1) -> cumsum(axis: 0) -> unflatten(0, batch, L)",
            "y = u -> flatten(0, 1) -> shift(1, axis: 0) -> unflatten(0, batch, L)",
            "y = u -> transpose(1, 2) -> linear(12) -> transpose(1, 2)",
            "y = u -> avg_pool1d(2) -> conv_transpose1d(4, kernel: 2, stride: 2, padding: none)",
        )

    def anywhere(self) -> str:
        """One statement that most often looks ahead."""
        n = self.n()
        return self.one(
            f"y = u -> shift(-{n})",
            f"y = u -> roll({self.n(-2, 2) or 1})",
            "y = u -> flip(1)",
            f"y = u -> conv1d(4, kernel: {n + 1}, padding: same{self.one('', ', dilation: 2')})",
            "y = u -> max_pool1d(3, stride: 1, padding: 1)",
            "y = u -> bidirectional(gru(2))",
            "y = u -> gru(4, reverse: true)",
            "y = u + mean(v, 1, keep: true)",
            "y = u + sum(v, [1, 2], keep: true)",
            "y = u + v[:, -1:]",
            f"y = u + v[:, {n}:{n + 1}]",
            f"y = concat(u[:, {n}:], u[:, :{n}], axis: 1)",
            f"y = pad(u, 0, {n})\ny = y[:, {n}:]",
            "y = u -> softmax(axis: 1)",
            "y = u -> l2_normalize(axis: 1)",
            "y = u -> batchnorm",
            "y = u -> groupnorm(2)",
            "y = u -> transpose(1, 2) -> cumsum(axis: 2) -> transpose(1, 2) -> flip(1)",
            "h = scan h: [batch, 4] = 0 for a in u { h = (0.5 * h + a) -> cast(float) }\ny = v + unsqueeze(h, 1)",
            "a = flip(u, 1)\ny = scan h: [batch, 4] = 0 for t in a { h = (h + t) -> cast(float)  emit h }",
            "q = u -> split_heads(2)\ny = linear_attention(relu(q) + 1, relu(q) + 1, q, causal: false) -> merge_heads",
            f"y = u -> delayed -> shift(-{n})",
            f"y = u\nfor i in 2 {{ if i == 1 {{ y = y -> shift(-{n}) }} else {{ y = y -> shift({n}) }} }}",
            "y = u -> tile(2)\ny = y[:, 1 : L + 1]",
            "if training { y = u -> flip(1) } else { y = tanh(v) }",
            "y = gather(u, flip(indices(L), 0) -> unsqueeze(0) -> unsqueeze(2) -> expand(0, batch) -> expand(2, 4), "
            "axis: 1)",
            "a, b = u -> sort(axis: 1)\ny = a",
            "y = u * cast(argmax(v, 1, keep: true), float)",
            "y = u + unsqueeze(shift(cast(ids, float), -1), 2)",
        )

    def join(self) -> str:
        return self.one(
            "y = u + v",
            "y = u * sigmoid(v)",
            "y = where(v > 0, u, v)",
            "y = maximum(u, v)",
            "y = concat(u, v) -> linear(4)",
        )

    # --- parts -------------------------------------------------------------------------------------------------------

    def statements(self) -> tuple[str, bool]:
        """Statements that make `y`, and whether most like them look back."""
        kinds: list[tuple[int, Callable[[], str], bool]] = [
            (30, self.backwards, True),
            (10, self.anywhere, False),
            (6, self.join, True),
            (18, lambda: self.attention(self.causal()), True),
            (10, lambda: self.attention(self.seen()), False),
            (8, self.best, False),
            (12, self.sdpa, True),
        ]
        if self.fixed:
            kinds.append((14, self.regrouped, False))
        _, make, early = self.random.choices(kinds, [weight for weight, _, _ in kinds])[0]
        return make(), early

    def text(self) -> tuple[str, bool]:
        """A part as a model, and whether it looks back."""
        text, early = self.statements()
        length = str(FIXED) if self.fixed else "time"
        names = {"L": length, "I": f"unsqueeze(indices({length}), 1)", "J": f"unsqueeze(indices({length}), 0)"}
        lines = re.sub(r"\b[LIJ]\b", lambda found: names[found[0]], text).split("\n")
        body = "\n  ".join([*lines, "return y -> cast(float)"])
        shape = f"[batch, {length}, {WIDTH}]"
        inputs = f"u: {shape}, v: {shape}, ids: int[batch, {length}]"
        return f"{DELAYED}\nmodel part({inputs}) -> {shape} {{\n  {body}\n}}\n", early


@dataclass
class Part:
    """A part, compiled."""

    text: str
    early: bool
    fixed: bool
    model: Model
    module: Any


def part(random: Random, fixed: bool) -> Part:
    text, early = Writer(random, fixed).text()
    model = archdsl.load(text=text)
    module = load_source(emit(model))().double()
    x, ids = inputs(FIXED)
    return Part(text, early and bool(module(x, x, ids).isfinite().all()), fixed, model, module)


# --- graphs -----------------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """One call of a part: of the tensors with these numbers, 0 being the graph's input."""

    part: Part
    u: int
    v: int
    ahead: int


def graph(random: Random, parts: Sequence[Part], calls: int) -> list[Step]:
    """Calls of parts; those that look back are read most."""
    early, steps = [0], list[Step]()
    for number in range(1, calls + 1):
        chosen = random.choice(parts)
        u, v = (0 if random.randrange(100) < 25 else random.choice(early[-5:]) for _ in range(2))
        steps.append(Step(chosen, u, v, random.choices((1, 2, 3), (8, 1, 1))[0]))
        if chosen.early or random.randrange(100) < 15:
            early.append(number)
    return steps


def model_of(steps: Sequence[Step]) -> tuple[Model, list[CausalNode]]:
    """The graph as a model, and its claims."""
    first = steps[0].part.model
    x, _, ids = first.block.graph.inputs
    made, nodes, claims = [x], list[Node](), list[CausalNode]()
    for step in steps:
        block = step.part.model.block
        (output,) = block.graph.outputs
        assert output is not None
        y = Value(output.shape, name=f"y{len(made)}")
        nodes.append(CallNode(block, (made[step.u], made[step.v], ids), (), (y,), {}))
        claims.append(CausalNode(y, step.ahead))
        made.append(y)
    inside = replace(first.block.graph, inputs=(x, ids), nodes=(*nodes, *claims), outputs=tuple(made[1:]))
    names = tuple(v.name for v in made[1:])
    block = replace(first.block, graph=inside, tensor_names=("x", "ids"), result_names=names)
    return replace(first, block=block), claims


def run(steps: Sequence[Step], x: Tensor, ids: Tensor) -> list[Tensor]:
    made = [x]
    for step in steps:
        made.append(step.part.module(made[step.u], made[step.v], ids))
    return made[1:]


def redrawn(steps: Sequence[Step]) -> None:
    """Draw every weight anew, none of them small, and for each part whether it is in training."""
    for module in {id(step.part.module): step.part.module for step in steps}.values():
        module.train(bool(torch.rand(()) < 0.5))
        for weight in module.parameters():
            torch.nn.init.normal_(weight, 0, 0.5)


def inputs(length: int) -> tuple[Tensor, Tensor]:
    return torch.randn(2, length, WIDTH, dtype=torch.float64), torch.randint(0, 5, (2, length))


def reaches(steps: Sequence[Step], length: int) -> list[int]:
    """How many positions ahead of its own each tensor was seen to read: all inputs from a position on are drawn anew,
    for several positions in turn."""
    x, ids = inputs(length)
    with torch.no_grad():
        before = run(steps, x, ids)
        found = [0] * len(steps)
        for first in (1 + torch.randperm(length - 1)[:CUTS]).tolist():
            y, other = inputs(length)
            changed = (torch.cat((a[:, :first], b[:, first:]), 1) for a, b in ((x, y), (ids, other)))
            after = run(steps, *changed)
            for i, (old, new) in enumerate(zip(before, after, strict=True)):
                for position in differ(old, new)[: max(0, first - found[i])].nonzero()[:1].flatten().tolist():
                    found[i] = first - position
    return found


def degenerate(steps: Sequence[Step], length: int) -> list[bool]:
    """Which tensors are no finite numbers, or are the same at most positions whatever the inputs are, or are made of
    such: masks that leave nothing to be seen make them."""
    found = [False]
    with torch.no_grad():
        for step, old, new in zip(steps, run(steps, *inputs(length)), run(steps, *inputs(length)), strict=True):
            alone = not old.isfinite().all() or differ(old, new).sum() < length / 2
            found.append(bool(alone) or found[step.u] or found[step.v])
    return found[1:]


def differ(old: Tensor, new: Tensor) -> Tensor:
    """At which positions two tensors differ, rounding aside. What is no finite number says nothing: 0 times it is none
    either, where the proof takes 0."""
    return (~torch.isclose(old, new, 1e-9, 1e-9) & old.isfinite() & new.isfinite()).any(-1).any(0)


MESSAGE = "a later token can reach"
CALLS = 25
"""Calls of a graph, each a model that is judged."""
PARTS, GRAPHS = 45, 40
CUTS = 6
"""Positions from which inputs are drawn anew, of all."""
DRAWS = 12
"""Weights and inputs that are tried until a change is seen."""
EXPLAINED = 2
"""Refusals of one graph of which the messages are looked at: where no way is certain, the search is long."""


def judge(steps: Sequence[Step], lengths: Sequence[int], explained: int = EXPLAINED) -> dict[str, int]:
    """Hold every claim of a graph against its numbers. Raises AssertionError with the least model that fails."""
    model, claims = model_of(steps)
    walk = walked(model)
    leaks = {id(leak.node): leak for leak in walk.leaks}
    redrawn(steps)
    seen = [max(own) for own in zip(*(reaches(steps, length) for length in lengths), strict=True)]
    no_number = degenerate(steps, lengths[-1])
    counts = dict.fromkeys(("proved", "refused", "degenerate", "shown", "open"), 0)
    for i, (step, claim) in enumerate(zip(steps, claims, strict=True)):
        leak = leaks.get(id(claim))
        if leak is None:
            counts["proved"] += 1
            assert seen[i] < step.ahead, f"proved, but position t reads t + {seen[i]}:\n{spelled(steps, i)}"
            continue
        counts["refused"] += 1
        counts["open"] += seen[i] < step.ahead
        counts["degenerate"] += no_number[i]
        if (
            not no_number[i]
            and counts["refused"] <= explained
            and Explainer(walk).explain(leak).message.startswith(MESSAGE)
        ):
            counts["shown"] += 1
            assert seen[i] >= step.ahead or any(again(steps, i, n) for n in (*lengths, 8) * DRAWS), (
                f"nothing changes where a later position is said to be read:\n{spelled(steps, i)}"
            )
    return counts


def again(steps: Sequence[Step], i: int, length: int) -> bool:
    """Whether other weights show what a tensor reads."""
    if steps[i].part.fixed and length != FIXED:
        return False
    redrawn(steps)
    return reaches(steps[: i + 1], length)[i] >= steps[i].ahead


def spelled(steps: Sequence[Step], i: int) -> str:
    """The parts that a tensor is made of, without what all have."""
    needed, lines = {i + 1}, list[str]()
    for number in range(i + 1, 0, -1):
        if number in needed:
            step = steps[number - 1]
            needed |= {step.u, step.v}
            lines.insert(0, f"# y{number} is made of u: y{step.u}, v: y{step.v}\n{inside(step.part)}")
    return "\n".join([*lines, f"assert causal(y{i + 1}, ahead: {steps[i].ahead})  # y0 is the input"])


def inside(part: Part) -> str:
    """The statements of a part, `I` and `J` being the positions of queries and keys."""
    body = part.text.rpartition("{\n")[2].rpartition("  return")[0]
    for word, axis in ("I", 1), ("J", 0):
        body = re.sub(rf"unsqueeze\(indices\(\w+\), {axis}\)", word, body)
    return body


def judged(parts: int, graphs: int, seed: int, fixed: bool) -> Counter[str]:
    """Judge each of so many parts alone, then graphs of them; how many claims were proved, and so on."""
    random, lengths = Random(seed), (FIXED,) if fixed else LENGTHS
    torch.manual_seed(seed)
    made = [part(random, fixed) for _ in range(parts)]
    counts = Counter[str]()
    for one in made:
        counts.update(judge([Step(one, 0, 0, 1)], lengths))
    for _ in range(graphs):
        counts.update(judge(graph(random, made, CALLS), lengths))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold the proofs of random models against their numbers.")
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # tensors are tiny
    for seed in range(asked.seed, asked.seed + asked.graphs, GRAPHS):
        for fixed in (True, False):
            print(seed, {"fixed": fixed} | judged(PARTS, GRAPHS, seed, fixed), flush=True)


if __name__ == "__main__":
    main()
