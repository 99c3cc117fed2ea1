"""Blocks of equations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from random_specs.choices import AT_RUN, STATIC, Chooser, assertion, wording
from random_specs.numbers import DEPTHS, number, rounded
from random_specs.slots import activation, mask

# --- declarations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Template:
    """A block that may have hyper-parameters."""

    name: str
    args: tuple[tuple[str, str], ...] = ()
    """What each is called, and what it is: `depth` is which layer this is, `layers` how many there are, `multiple` what
    sizes are rounded to."""

    def given(self, depth: str, layers: str, multiple: str) -> str:
        """The block with these hyper-parameters."""
        values = {"depth": depth, "layers": layers, "multiple": multiple}
        text = ", ".join(f"{name}: {values[what]}" for name, what in self.args)
        return f"{self.name}({text})" if text else self.name


ARGUMENTS: dict[str, tuple[float, ...]] = {
    "depth": tuple(range(DEPTHS)),
    "layers": tuple(range(1, DEPTHS + 1)),
    "multiple": (2, 4, 8),
}
"""What hyper-parameters of blocks are, with the values that they take."""


@dataclass
class Names:
    """Declarations so far, and numbers for names."""

    texts: list[str] = field(default_factory=list)
    count: int = 0
    inlines: list[str] = field(default_factory=list)
    """Blocks that are written into their callers."""

    def fresh(self, kind: str) -> str:
        """A tame name that nothing else of the spec has."""
        self.count += 1
        return f"{kind}_{self.count}"

    def add(self, kind: str, text: str) -> str:
        full = self.fresh(kind)
        self.texts.append(text.replace("NAME", full))
        return full

    def arguments(self, c: Chooser) -> tuple[tuple[str, str], ...]:
        """Hyper-parameters for a block, if any."""
        if not c.odd(50):
            return ()
        return tuple((self.fresh("arg"), what) for what in ARGUMENTS if what == "depth" or c.chance(40))

    def block(self, c: Chooser, body: Body, width: int | None = None) -> Template:
        """A block of equations from one tensor to another of its shape."""
        x, args = body.x, body.args
        hypers = f"({', '.join(n if c.chance(80) else f'{n}: number' for n, _ in args)})" if args else ""
        shape = "[..., width]" if width else "[batch, time, width]"
        lines = body.lines_of()
        if lines[-1].startswith("return ") and c.odd(25):
            # without a `return` the result is the last value of the first tensor
            lines[-1] = f"{x} = {lines[-1].removeprefix('return ')}"
        head = f"{hypers}({x}: {shape}) -> {shape}"
        text = f"block NAME{head} {{\n  " + "\n  ".join(lines) + "\n}"
        if c.odd(30):
            text = axes_renamed(c, text, self)
        if c.odd(30):
            text = f"# {wording(c)}\n{text}"
        return Template(self.add("own", text), args)

    def inline(self, c: Chooser) -> str:
        """A block that is written into its callers: it keeps the shape of its tensor."""
        if self.inlines and c.chance(40):
            return c.one(self.inlines)
        y, a, inner = self.fresh("x"), self.fresh("t"), c.one(self.inlines) if self.inlines else "tanh"
        lines = c.one(
            [
                [f"return {y} * sigmoid({y})"],
                [f"return {y} * rsqrt(mean({y} * {y}, axis: -1, keep: true) + 1e-6)"],
                [f"{a} = {y} -> linear(width)", f"return {a} * tanh({a}) + {y}"],
                [f"{y} = {y} + 1", f"{y} = {y} * {y}", f"return {y} / (1 + abs({y}))"],
                [f"{a} = {y} -> {inner}", f"{y} = {a} - {y}", f"return {y} * {a}"],
                [f"return ({y} -> {inner}) + ({y} -> linear(width) -> {inner})"],
                [f"if training {{ {y} = {y} -> dropout(0.1) }}", f"return {y} * tanh({y})"],
                [f"for {self.fresh('i')} in 2 {{ {y} = {y} + tanh({y}) }}", f"return {y} - 0.5"],
            ]
        )
        text = f"inline block NAME({y}: [..., width]) -> [..., width] {{\n  " + "\n  ".join(lines) + "\n}"
        name = self.add("inline", text)
        self.inlines.append(name)
        return name


def axes_renamed(c: Chooser, text: str, names: Names) -> str:
    """A block under other names for its axes."""
    for axis in ("batch", "time", "width"):
        if c.chance(50):
            words, other = re.split(rf'("[^"\n]*")|\b{axis}\b', text), names.fresh("axis")
            text = "".join(other if w is None else w for w in words)
    return text


def fraction(c: Chooser, args: Sequence[tuple[str, str]], **more: Sequence[float]) -> str:
    """A static number made of hyper-parameters and other names, in brackets where it is no single word."""
    values = {name: ARGUMENTS[what] for name, what in args} | more
    if not values:
        return c.one(["0.3", "2", "0.5", "1.5"])
    text = number(c.one, values).text
    return f"({text})" if " " in text or text.startswith("-") else text


# --- equations --------------------------------------------------------------------------------------------------------

UNARY = (
    "{v} -> ACT",
    "log(square({v}) + 1)",
    "sqrt(square({v}) + 0.5)",
    "rsqrt(square({v}) + 0.5)",
    "exp(-abs({v}))",
    "{v} / (1 + abs({v}))",
    "reciprocal(1 + square({v}))",
    "(abs({v}) + 0.5) ** 1.5",
    "sin({v}) + 2 * cos({v})",
    "clamp({v}, low: -1, high: 1.5)",
    "clamp({v}, high: 2)",
    "erf({v})",
    "-{v}",
    "{v} -> softmax",
    "{v} -> log_softmax",
    "{v} -> rmsnorm",
    "{v} -> layernorm(bias: false)",
    "{v} -> l2_normalize",
    "{v} -> cast(float32) -> tanh -> cast_like({v})",
    "{v} -> dropout(0.1)",
    "{v} -> cumsum(axis: -1) -> tanh",
    "{v} + ({v} -> stop_gradient)",
    "{v} + sign({v})",
    "{v} + 0.5 * floor({v})",
    "{v} -> identity",
    "{v} - mean({v}, axis: -1, keep: true)",
    "{v} / sqrt(var({v}, axis: -1, keep: true) + 1)",
    "{v} - (max({v}, axis: -1, keep: true) + min({v}, axis: -1, keep: true)) / 2",
    "{v} - logsumexp({v}, axis: -1, keep: true)",
    "where({v} > 0, {v}, 0.3 * {v})",
    "where(({v} > 0.5) | ({v} < -0.5), tanh({v}), {v})",
    "where(({v} >= 0) & ~({v} > 1), {v} * {v}, {v})",
    "where({v} <= 0, exp(minimum({v}, 0)), {v} + 1)",
    "{v} + noise(softplus({v}))",
    "{v} * ({v} -> linear(1) -> sigmoid)",
    "{v} -> flip(2)",
    "{v} -> roll(1, axis: 2)",
    "concat({v}[..., 1:], {v}[..., :1])",
    "{v} -> shift(1, axis: 2, fill: 0.5)",
    "minimum({v}, 1) * maximum({v}, -1)",
    "if {k} > 2 then {v} * 2 else {v} + 1",
    "abs({v}) // 1 * 0.1 + {v}",
    "{v} % 2 + {v}",
    "{v} + ({v} -> ceil)",
)
"""Each place and each feature to one; {v} is a tensor of three axes."""

BINARY = (
    "{v} + {w}",
    "{v} - 0.5 * {w}",
    "{v} * tanh({w})",
    "{v} / (1 + abs({w}))",
    "maximum({v}, {w})",
    "minimum({v}, {w})",
    "where({v} > {w}, {v}, {w})",
    "{v} * softmax({w})",
    "(concat({v}, {w}) -> glu)",
    "mean(stack({v}, {w}, axis: 2), axis: 2)",
    "sum(stack({v}, {w}, axis: 3) * softmax(stack({v}, {w}, axis: 3), axis: 3), axis: 3)",
    "max(stack({v}, {w}, axis: 1), axis: 1)",
)

CAUSAL = (
    "{v} -> shift",
    "{v} -> shift({k})",
    "{v} -> cumsum(axis: 1) -> rmsnorm",
    "{v} -> conv1d({d}, kernel: 3, padding: causal)",
    "{v} -> conv1d({d}, kernel: 2, padding: causal, dilation: 2, groups: 2)",
    "{v} -> gru({d})",
    "{v} -> lstm({d}, bias: false)",
    "{v} -> rnn({d}, act: relu) -> tanh",
    "{v} -> mha(heads: 2, mask: MASK)",
    "{v} -> mqa(heads: 2, mask: causal, position: alibi)",
    "{v} -> mha(heads: 2, mask: causal & keys(mean({v}) > -0.5))",
    "{v} -> mha(heads: 2, mask: MASK, normalize: sigmoid)",
    "{v} -> gqa(heads: 2, kv_heads: 1, mask: MASK, position: rope, scores: tanh)",
    "{v} -> mha(heads: 2, mask: causal & queries(mean({v}) > -0.5), weights: dropout(0.1))",
    'matmul(softmax(einsum("b q d, b k d -> b q k", {v}, {v} -> linear({d})) / 4, mask: MASK), {v})',
    'matmul(where(MASK, einsum("b q d, b k d -> b q k", {v} -> linear({d}), {v}) / time, 0), {v})',
    "linear_attention((elu({v} -> linear({d})) + 1) -> split_heads(2), "
    "(elu({v} -> linear({d})) + 1) -> split_heads(2), {v} -> split_heads(2), normalize: true) -> merge_heads",
    "linear_attention({v} -> split_heads(2), tanh({v}) -> split_heads(2), {v} -> split_heads(2), "
    "{v} -> linear(2) -> log_sigmoid -> transpose(1, 2)) -> merge_heads -> rmsnorm",
    "linear_attention({v} -> split_heads(2), tanh({v}) -> split_heads(2), {v} -> split_heads(2), "
    "({v} -> linear({d}) -> log_sigmoid) -> split_heads(2)) -> merge_heads -> rmsnorm",
    "delta_rule({v} -> split_heads(2), {v} -> linear({d}) -> split_heads(2) -> l2_normalize, {v} -> split_heads(2), "
    "{v} -> linear(2) -> sigmoid -> transpose(1, 2), {v} -> linear(2) -> log_sigmoid -> transpose(1, 2)) "
    "-> merge_heads",
    "delta_rule({v} -> split_heads(2), stack({v}, -{v}, axis: 2) -> split_heads(2) -> transpose(1, 2) -> l2_normalize, "
    "stack({v}, {v}, axis: 2) -> split_heads(2) -> transpose(1, 2), "
    "{v} -> linear(4) -> sigmoid -> unflatten(-1, 2, 2) -> transpose(1, 2), "
    "log_sigmoid({v}) -> split_heads(2)) -> merge_heads",
    "logcumsumexp({v}, axis: 1)",
    "linear_recurrence(sigmoid({v} -> linear({d})), {v})",
    "{v} - {v}[:, :1]",
    "{v} -> pad(before: {k}, axis: 1) -> conv1d({d}, kernel: {k} + 1, padding: none)",
    "concat({v}[:, :2], {v}[:, 2:], axis: 1)",
    "cumprod(1 + 0.1 * tanh({v}), axis: 1)",
    "{v} -> shift(-1) -> shift(1)",
    "{v} + (indices(time) -> cast(float) -> unsqueeze(-1)) / time",
    "{v} + ((indices(time) % 3) -> embedding(3, {d}))",
    "{v} -> sinusoidal(offset: 2)",
    "{v} -> learned(length: 16)",
    "{v} -> rope",
)
LOOKING = (
    "{v} -> shift(-{k})",
    "{v} -> flip(1)",
    "{v} -> roll({k})",
    "{v} -> conv1d({d}, kernel: 3)",
    "{v} -> gru({d}, reverse: true)",
    "{v} -> bidirectional(gru({d} / 2))",
    "{v} + mean({v}, axis: 1, keep: true)",
    "{v} * softmax({v}, axis: 1)",
    "{v} - max({v}, axis: 1, keep: true)",
    "{v} / sqrt(var({v}, axis: [1, 2], keep: true) + 1)",
    "{v} -> mha(heads: 2, mask: MASK)",
    "{v} -> mha(heads: 2, mask: MASK, position: alibi, weights: identity)",
    'matmul(softmax(einsum("b q d, b k d -> b q k", {v}, {v} -> linear({d})) / 4, mask: MASK), {v})',
    "{v} -> max_pool1d(3, stride: 1, padding: 1)",
    "{v} -> avg_pool1d(3, stride: 1, padding: 1)",
    "{v} + mean({v} -> conv1d({d}, kernel: 4, stride: 2) -> conv_transpose1d({d}, kernel: 4, stride: 2), axis: 1, "
    "keep: true)",
    "{v} * mean({v} -> conv1d({d}, kernel: 3, stride: 2, padding: causal) -> max_pool1d(2), axis: 1, keep: true)",
    '{v} -> rearrange("b (n p) d -> b n p d", p: 2) -> mean(2) -> repeat(2)',
    "{v} -> transpose(1, 2) -> flip(1) -> transpose(1, 2) -> flip(1)",
    '(einsum("b q d, b k d -> b q k", {v}, {v} -> linear({d})) / 4) -> softmax -> matmul({v})',
    '{v} -> rearrange("b (n p) d -> b n (p d)", p: 4) -> linear(4 * {d}) -> rearrange("b n (p d) -> b (n p) d", p: 4)',
    '{v} -> rearrange("b (n p) d -> (b n) p d", p: 2) -> flip(1) '
    '-> rearrange("(b n) p d -> b (n p) d", p: 2, b: batch)',
    "linear_attention({v} -> split_heads(2), tanh({v}) -> split_heads(2), {v} -> split_heads(2), causal: false) "
    "-> merge_heads -> rmsnorm",
    "{v} + cumsum({v}, axis: 1, reverse: true) / time",
    "{v} + {v}[:, -1:]",
    "{v} -> batchnorm",
    "{v} -> powernorm",
    "{v} -> groupnorm(groups: 2)",
    "sum({v}, axis: 1, keep: true) -> expand(1, time)",
)

LOCAL = (
    "{v} -> linear({d})",
    "{v} -> linear({d}, bias: false)",
    "{v} -> linear({d}, init: normal(0.1))",
    "{v} -> mlp(hidden: 6, act: ACT)",
    "{v} -> swiglu(hidden: 5)",
    "{v} -> only(inner: mlp(hidden: {d}))",
)
"""Maps of the last axis alone, whatever stands before it."""

FEATURES = (
    "{v} -> linear(2 * {d}) -> glu",
    'einsum("b t d, d e -> b t e", {v}, {p})',
    "{v} * {g} + {h}",
    "{v} * exp(-softplus({g}))",
    '{v} -> rearrange("b t (h d) -> b t h d", h: 2) -> rmsnorm -> rearrange("b t h d -> b t (h d)")',
    '{v} -> rearrange("b t (h d) -> b t (d h)", h: 2)',
    "{v} -> unflatten(2, 2, {d} / 2) -> transpose(2, 3) -> flatten(2)",
    "{v} -> unflatten(2, 2, {d} / 2) -> softmax(axis: 2) -> flatten(2)",
    "{v} -> split_heads(2) -> rope -> merge_heads",
    "{v} -> split_heads(2) -> permute(0, 2, 1, 3) -> flatten(2, 3)",
    "{v} -> repeat(2, axis: 2) -> linear({d})",
    "{v} -> tile(2, axis: 2) -> linear({d}, bias: false)",
    "{v} -> every(2, axis: 2) -> linear({d})",
    "{v} -> pad(before: 1, after: 1, axis: 2, value: 0.5) -> linear({d})",
    "gather({v}, {v} -> topk(2) -> second_of) -> linear({d})",
    "(argmax({v}) -> embedding({d}, {d})) + {v}",
    "(argmax({v}) -> one_hot({d}) -> cast(float)) + {v}",
    "scatter_add({v}, argsort({v}), {v})",
    "{v} -> moe(experts: 3, top_k: 2, expert: mlp(hidden: 8))",
    "sdpa({v}, {v} -> linear({d}), {v}, mask: MASK)",
    "sdpa({v} -> split_heads(2), {v} -> split_heads(2), {v} -> split_heads(2), mask: MASK, sink: {s}) -> merge_heads",
    "sdpa({v} -> split_heads(2), {v} -> split_heads(2), {v} -> split_heads(2), mask: MASK, scale: 0.2, "
    "position: POSITION) -> merge_heads",
    "unembed({v}, {p})",
    "{v} -> unsqueeze(1) -> squeeze(1)",
)


def equations(c: Chooser, width: int, names: Names, local: bool = False, expert: bool = False) -> Body:
    """Statements from a tensor to a result of its shape. A `local` body mixes no places; an `expert` is applied to
    rows."""
    return Body(c, width, names, local, expert)


LOOPS = (
    "number",
    "nested",
    "values",
    "swap",
    "period",
    "shared",
    "mixed",
    "branch",
    "training",
    "emit",
    "assert",
    "named",
    "parts",
    "scan",
    "own",
    "depth",
)


class Body:
    """A random dataflow graph: each step reads tensors that are there and adds one; in the end each that nothing read
    is added to the result, so that every weight matters."""

    def __init__(
        self,
        c: Chooser,
        width: int,
        names: Names,
        local: bool = False,
        expert: bool = False,
        args: tuple[tuple[str, str], ...] = (),
        x: str = "",
    ) -> None:
        self.c, self.width, self.names, self.local, self.expert, self.args = c, width, names, local, expert, args
        self.x = x or names.fresh("x")
        self.lines: list[str] = []
        self.tensors: dict[str, int] = {self.x: width}
        """What can be read, a name or an expression in brackets, and its features."""
        self.unread: list[str] = []
        self.last = ""
        """What the step that is being drawn reads, if that has a name."""

    def lines_of(self) -> list[str]:
        c, x = self.c, self.x
        if self.args:
            self.scaled()
        for _ in range(c.whole(1, 5)):
            self.step()
        parts = []
        for name in self.unread:
            parts.append(name if self.tensors[name] == self.width else f"({name} -> linear(width))")
        how = c.one(["sum", "norm", "sum", "gate"])
        total = " + ".join(parts) or "0.5"
        if how == "gate":
            self.lines.append(f"return {x} + sigmoid({x}) * ({total})")
        elif how == "norm" and c.chance(50) and parts:
            self.lines.append(f"return {x} + (({total}) -> layernorm -> linear(width))")
        else:
            self.lines.append(f"return {x} + {total}")
        return self.lines

    def name(self) -> str:
        return self.names.fresh("t")

    def read(self, name: str) -> None:
        if name in self.unread:
            self.unread.remove(name)
        if name.startswith("("):
            del self.tensors[name]  # an expression is read once: there is no other way to mention it

    def bind(self, name: str, text: str, width: int) -> None:
        c = self.c
        unnamed = " " in text and not text.startswith("scan") and len(text) < 80 and f"({text})" not in self.tensors
        if unnamed and c.odd(30):
            self.add(f"({text})", width)
            return
        if (
            self.last in self.tensors
            and self.last not in self.unread
            and self.tensors[self.last] == width
            and c.odd(30)
        ):
            self.settle(self.last)
            name = self.last  # a new value under the same name
        self.lines.append(f"{name} = {text}")
        self.add(name, width)

    def add(self, name: str, width: int) -> None:
        self.tensors[name] = width
        self.unread.append(name)

    def settle(self, name: str) -> None:
        """Give a name to expressions that mention one that is about to mean something else."""
        for text in [t for t in self.tensors if t.startswith("(") and re.search(rf"\b{name}\b", t)]:
            width = self.tensors.pop(text)
            self.unread.remove(text)
            other = self.name()
            self.lines.append(f"{other} = {text[1:-1]}")
            self.add(other, width)

    def step(self) -> None:
        c = self.c
        kinds: list[Callable[[], None]]
        if self.expert:
            kinds = [self.map_, self.pointwise, self.binary]
        else:
            kinds = [self.map_, self.pointwise, self.binary, self.feature, self.statement]
            if not self.local:
                kinds += [self.along_time] * 3 + [self.recurrence]
        if c.hostile:
            kinds += [self.scaled, self.sized]
            if not self.expert:  # a plain block: without loops and conditions, its own or of a block that it inlines
                kinds += [self.inlined, self.loop, self.loop, self.asserted]
        c.one(kinds)()

    def fill(self, text: str, **more: Any) -> str:
        c = self.c
        text = text.replace("ACT", activation(c) if "ACT" in text else "")
        if "MASK" in text:
            text = text.replace("MASK", "causal & same(indices(time))" if self.local else mask(c, 1))
        if "POSITION" in text:
            text = text.replace("POSITION", c.one(["alibi", "rope", "relative_bias(buckets: 8, max_distance: 20)"]))
        return text.format(k=c.whole(1, 3), **more) if "{" in text else text

    def map_(self) -> None:
        v = self.pick_sized()
        d = self.width if self.expert else self.c.one([8, 12, self.width])
        text = self.fill(self.c.one(LOCAL), v=v[0], d=d)
        self.bind(self.name(), text, d if "linear" in text else v[1])

    def pick_sized(self) -> tuple[str, int]:
        """A tensor, and how many features it has."""
        name = self.c.one(list(self.tensors))
        width = self.tensors[name]
        self.read(name)
        self.last = name
        return name, width

    def pointwise(self) -> None:
        v, d = self.pick_sized()
        options = [t for t in UNARY if not (self.expert and ("2" in t or "..." in t))]
        self.bind(self.name(), self.fill(self.c.one(options), v=v), d)

    def binary(self) -> None:
        v, d = self.pick_sized()
        alike = [n for n, width in self.tensors.items() if width == d] or [v]
        w = self.c.one(alike)
        self.read(w) if w != v else None
        options = [t for t in BINARY if not (self.expert and "stack" in t)]
        self.bind(self.name(), self.fill(self.c.one(options), v=v, w=w), d)

    def inlined(self) -> None:
        """A block that is written here, and may read its tensor twice."""
        c, names = self.c, self.names
        v, d = self.pick_sized()
        f = names.inline(c)
        text = c.one(["{v} -> {f}", "({v} + 1) -> {f}", "{f}({v}) + ({v} -> {f})", "{f}(tanh({v}) - {v})"])
        self.bind(self.name(), text.format(v=v, f=f), d)

    def scaled(self) -> None:
        """Arithmetic with static numbers, of hyper-parameters if there are some."""
        c = self.c
        v, d = self.pick_sized()
        n, m = fraction(c, self.args), fraction(c, self.args)
        options = [
            f"{v} * {n}",
            f"{n} * {v} + {m}",
            f"({v} + {n}) * {m} + {v}",
            f"{v} / (1 + {n} ** 2)",
            f"where({v} > {n}, {v}, {m} * {v})",
            f"clamp({v}, low: -1 - abs({n}), high: 2 + abs({m}))",
            f"{v} * exp(-abs({n})) + {m}",
            f"{v} -> leaky_relu(slope: 0.1 + abs({n}))",
            f"({v} -> linear(width)) * {n} + ({v} -> linear(width)) * {m}",
        ]
        depth = next((name for name, what in self.args if what == "depth"), "")
        if depth and not self.expert:
            options += [
                f"({v} -> linear(4 * ({depth} + 1)) -> gelu -> linear(width)) + (if {depth} > 1 then 0.5 else {n})",
                f"if {depth} % 2 == 0 then {v} -> linear(width) else {v} * {n}",
                f"{v} -> rmsnorm(eps: 1e-5 * ({depth} + 1))",
                f"{v} -> linear(width, init: normal(0.1 / ({depth} + 1)))",
                f"{v} -> shift({depth}, axis: 1)",
                f"{v} -> dropout(0.1 * {depth})",
            ]
        text = c.one(options)
        self.bind(self.name(), text, self.width if "linear" in text else d)

    def sized(self) -> None:
        """A size that is rounded."""
        c = self.c
        v, _ = self.pick_sized()
        multiple = next((name for name, what in self.args if what == "multiple"), str(c.one([2, 4, 8])))
        size = rounded(c.one, "width", multiple)
        if c.chance(40):
            let = self.names.fresh("let")
            self.lines.append(f"let {let} = {size}")
            size = let
        self.bind(
            self.name(),
            c.one(
                [
                    f"{v} -> linear({size}) -> gelu -> linear(width)",
                    f"{v} -> swiglu(hidden: {size}) -> linear(width)",
                    f"concat({v}, {v} -> linear({size})) -> linear(width)",
                ]
            ),
            self.width,
        )

    def asserted(self) -> None:
        self.lines.append(assertion(self.c, (*AT_RUN, *STATIC)))
        self.pointwise()

    def feature(self) -> None:
        v, d = self.pick_sized()
        name = self.name()
        text = self.c.one(FEATURES)
        for letter, shape, schemes in (
            ("p", f"[{d}, {d}]", ["normal(0.2)", "xavier"]),
            ("g", f"[{d}]", ["ones", "normal(0.1)", f"-log(1 + indices({d}))"]),
            ("h", f"[{d}]", ["zeros", "uniform(0.1)"]),
            ("s", "[2]", ["zeros", "normal(0.1)"]),
        ):
            if f"{{{letter}}}" in text:
                weight = self.names.fresh(letter)
                self.lines.append(f"param {weight}: {shape} = {self.c.one(schemes)}")
                text = text.replace(f"{{{letter}}}", weight)
        if "second_of" in text:
            values, chosen = self.name(), self.name()
            self.lines.append(f"{values}, {chosen} = {v} -> topk(2)")
            text = f"({values} + gather({v}, {chosen})) -> linear({d})"
        self.bind(name, self.fill(text, v=v, d=d), d)

    def along_time(self) -> None:
        v, d = self.pick_sized()
        options = CAUSAL if self.c.causal else CAUSAL + LOOKING * 2
        if self.c.fixed:
            options = tuple(t for t in options if "(n p)" not in t and "stride: 2" not in t)
        self.bind(self.name(), self.fill(self.c.one(options), v=v, d=d), d)

    def recurrence(self) -> None:
        """A scan of one's own."""
        c, name = self.c, self.name()
        v, d = self.pick_sized()
        h, cell, x = (self.names.fresh(kind) for kind in ("h", "c", "x"))
        step, states = c.one(
            [
                ("{h} = tanh({x} + 0.5 * {h})", 1),
                ("{h} = {x} -> gru_cell({d})({h})", 1),
                ("{h} = rnn_cell({d})({x}, {h})", 1),
                ("{h}, {c} = lstm_cell({d})({x}, {h}, {c})", 2),
                ("{h} = 0.5 * {h} + ({x} -> linear({d}))", 1),
                ("{h} = {h} + sigmoid({x} -> linear({d})) * ({x} - {h})", 1),
                ("{h} = where({x} > {h}, {x}, {h})", 1),
            ]
        )
        carried = ", ".join(f"{n}: [batch, {d}] = {c.one(['0', '0.5'])}" for n in (h, cell)[:states])
        emit = c.one(["{h}", "{h} * sigmoid({h})", "{h} + {x}"])
        first = f"emit {emit}\n    {step}" if c.chance(25) and emit == "{h}" else f"{step}\n    emit {emit}"
        first = first.format(h=h, c=cell, x=x, d=d)
        self.last = ""
        self.bind(name, f"scan {carried} for {x} in {v} {{\n    {first}\n  }}", d)
        if not c.causal and c.chance(30):
            self.read(name)
            self.bind(self.name(), f"{name} + unsqueeze({h}, axis: 1)", d)

    def statement(self) -> None:
        c, name = self.c, self.name()
        v, d = self.pick_sized()
        kind = c.one(["for", "emit", "if", "shared", "loss", "buffer", "static", "split", "list", "plus"])
        self.last = ""
        if kind == "for":
            self.lines.append(f"{name} = {v}")
            i = self.names.fresh("i")
            inner = c.one(
                [
                    f"{name} + ({name} -> linear({d}))",
                    f"{name} -> layernorm -> mlp(hidden: 6)",
                    f"tanh({name}) / ({i} + 1)",
                ]
            )
            self.lines.append(f"for {i} in {c.whole(1, 3)} {{ {name} = {inner} }}")
            self.add(name, d)
        elif kind == "emit":
            n, y, all_ = c.whole(2, 3), self.name(), self.name()
            self.lines.append(f"{y} = {v}")
            i = self.names.fresh("i")
            self.lines.append(f"{all_} = for {i} in {n} {{\n    {y} = {y} -> linear({d}) -> gelu\n    emit {y}\n  }}")
            self.bind(name, f"{all_}[0] + {all_}[{n - 1}] + {y}", d)
        elif kind == "if":
            self.lines.append(f"if training {{ {name} = {v} -> dropout(0.2) }} else {{ {name} = {v} }}")
            self.add(name, d)
        elif kind == "shared":
            m = self.names.fresh("let")
            self.lines.append(f"let {m} = shared(linear({d}))")
            self.bind(name, f"{m}(tanh({v} -> {m}))", d)
        elif kind == "loss":
            self.lines.append(f"loss {self.names.fresh('loss')} = 0.01 * (square({v}) -> mean(axis: [0, 1, 2]))")
            self.bind(name, f"{v} -> linear({d})", d)
        elif kind == "buffer":
            scheme, b = c.one([f"indices({d}) / {d}", "ones", "normal(0.5)"]), self.names.fresh("b")
            self.lines.append(f"buffer {b}: [{d}] = {scheme}")
            self.bind(name, f"{v} + {b}", d)
        elif kind == "static":
            n = self.names.fresh("let")
            self.lines.append(f"let {n} = {c.whole(1, 9)}")
            self.bind(name, f"if {n} > 4 then {v} -> linear({d}) else {v} * {n}", d)
        elif kind == "split":
            a, b = self.name(), self.name()
            self.lines.append(f"{a}, {b} = {v} -> split({d // 2}, {d - d // 2})")
            self.bind(name, f"concat({b}, {a})", d)
        elif kind == "list":
            self.lines.append(f"{name} = {v}")
            inner = self.names.fresh("f")
            self.lines.append(f"for {inner} in [linear({d}), mlp(hidden: 6)] {{ {name} = {name} + {inner}({name}) }}")
            self.add(name, d)
        else:
            self.lines.append(f"{name} = {v}")
            self.lines.append(f"{name} += {v} -> linear({d}) : [batch, time, {d}]")
            self.add(name, d)

    def loop(self) -> None:
        """Loops in loops, over lists with a period, with shared modules, with several tensors carried on."""
        c, names = self.c, self.names
        v, d = self.pick_sized()
        a, b, t = self.name(), self.name(), self.name()
        i, j, f, m = (names.fresh(kind) for kind in ("i", "i", "f", "let"))
        count = c.whole(2, 3)
        n = fraction(c, self.args, **{i: range(count)})
        lines = [f"{a} = {v}"]
        kind = c.one(LOOPS)
        step = f"{a} = {a} + ({a} -> linear({d}))"
        if kind == "number":
            lines += [f"for {i} in {count} {{", f"  {a} = {a} + {n} * ({a} -> linear({d}))", "}"]
        elif kind == "nested":
            more = fraction(c, self.args, **{i: range(count), j: range(2)})
            lines += [
                f"for {i} in {count} {{",
                f"  for {j} in 2 {{ {a} = {a} + {more} * ({a} -> linear({d})) }}",
                *([f"  {a} = {a} -> rmsnorm"] if c.chance(50) else []),
                "}",
            ]
        elif kind == "values":
            lines += [
                f"for {i} in {count} {{",
                f"  {t} = {a} -> linear({d}) -> gelu",
                f"  {b} = {t} * tanh({a}) + {n}",
                f"  {a} = {a} + {t} * {b}",
                "}",
            ]
        elif kind == "swap":
            lines += [f"{b} = {v} -> linear({d})", f"for {i} in {count} {{"]
            lines += c.one(
                [
                    [f"  {t} = {a}", f"  {a} = {b} -> linear({d})", f"  {b} = {t} * {n} + {b}"],
                    [f"  {t} = {a} + {b}", f"  {b} = {a}", f"  {a} = tanh({t}) + ({b} -> linear({d}))"],
                ]
            )
            lines += ["}", f"{a} = {a} + {b}"]
        elif kind == "period":
            each = [f"linear({d})", "mlp(hidden: 6)", f"linear({d}, bias: false)"][: c.whole(1, 3)]
            what = c.one([f"{count} * [{', '.join(each)}]", f"[{', '.join([*each, *reversed(each), each[-1]])}]"])
            lines += [f"for {f} in {what} {{"]
            if c.chance(50):
                lines += [f"  {assertion(c, AT_RUN)}"]
            lines += [f"  {a} = {a} + {f}({a})", "}"]
        elif kind == "shared":
            lines += [
                f"let {m} = shared(linear({d}))",
                f"for {i} in {count} {{ {a} = {a} + {n} * ({a} -> {m}) + {m}({a}) }}",
            ]
        elif kind == "mixed":
            lines += [f"let {m} = shared(linear({d}))", f"for {f} in [{m}, linear({d}), {m}, mlp(hidden: 6), {m}] {{"]
            lines += [f"  {a} = {a} + ({a} -> {f})", "}"]
        elif kind == "branch":
            lines += [
                f"for {i} in {count} {{",
                f"  if {i} == {c.whole(0, 2)} {{ {a} = {a} -> linear({d}) }} else {{ {step} }}",
            ]
            lines += [f"  {a} = {a} * {n} + {a}", "}"]
        elif kind == "training":
            lines += [f"for {i} in {count} {{", f"  if training {{ {a} = {a} -> dropout(0.1) }}", f"  {step}", "}"]
        elif kind == "emit":
            lines += [
                f"{b} = for {i} in {count} {{",
                f"  {t} = for {j} in 2 {{",
                f"    {step}",
                f"    emit {a} + {n}",
                "  }",
            ]
            lines += [f"  emit {t}[0] * {t}[1]", "}", f"{a} = {b}[0] + {b}[{count - 1}] + {a}"]
        elif kind == "assert":
            lines += [f"for {i} in {count} {{", f"  {assertion(c, AT_RUN)}"]
            lines += [f"  for {f} in [linear({d}), mlp(hidden: 6), mlp(hidden: 6)] {{", f"    {assertion(c, AT_RUN)}"]
            lines += [f"    {a} = {a} + ({f}({a}) -> relu)", "  }", "}"]
        elif kind == "named":
            lines += [f"for {i} in {count} {{", f"  {t} = {a} -> linear({d}) as {names.fresh('as')}"]
            lines += [f"  {a} = {a} + ({i} + 1) * (concat({a}, {t}) -> linear({d}) as {names.fresh('as')})", "}"]
        elif kind == "parts":
            lines += [f"for {i} in {count} {{", f"  {t}, {b} = {a} -> linear(2 * {d}) -> chunk(2)"]
            lines += [f"  {a} = {a} + {t} * sigmoid({b})", "}"]
        elif kind == "scan":
            h, x = names.fresh("h"), names.fresh("x")
            lines += [f"for {i} in {count} {{", f"  {t} = scan {h}: [batch, {d}] = 0 for {x} in {a} {{"]
            lines += [
                f"    {h} = tanh({h} + ({x} -> linear({d})))",
                f"    emit {h} + {n}",
                "  }",
                f"  {a} = {a} + {t}",
                "}",
            ]
        else:
            args = ((names.fresh("arg"), "depth"),) if kind == "depth" else ()
            own = names.block(c, Body(c.other(), d, names, self.local, args=args))
            one = own.given(i, "", "")
            if kind == "depth":
                what = c.one([f"[{one} for {i} in {count}]", f"[{one} for {i} in 2] + [{one} for {i} in 2]"])
                lines += [f"for {f} in {what} {{ {a} = {a} -> {f} }}"]
            else:
                lines += [f"for {i} in {count} {{", f"  {a} = (({a} * {n}) -> {own.name}) + {a}", "}"]
        self.lines += lines
        self.last = ""
        self.add(a, d)
