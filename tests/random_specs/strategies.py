"""Hypothesis strategies whose every draw is a spec that the compiler must accept.

A spec is text, as a user would write it: blocks of slots and of equations, then a model. Sizes are tiny. Three in five
are meant to see no later place, so that there is something to prove and to decode; nothing depends on that: the
compiler says what it can prove, and the module what is true."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

WIDTHS = (8, 12, 16)
VOCAB = (11, 16, 23)
CONTEXT = 16
FRAMES = 6
"""Features of a frame."""


class Chooser:
    """Choices from what hypothesis draws."""

    def __init__(self, draw: Callable[[Any], Any], causal: bool, fixed: bool = False) -> None:
        """`fixed`: the number of places is known, and may be odd."""
        self.draw = draw
        self.causal = causal
        self.fixed = fixed

    def one(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(list(options)))  # type: ignore[no-any-return]

    def whole(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))  # type: ignore[no-any-return]

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred draws; the simpler answer, no, is what shrinking tries."""
        return self.whole(0, 99) >= 100 - percent

    def some(self, **options: Sequence[Any]) -> str:
        """Named arguments, most of them left out: `, bias: true`."""
        found = ""
        for name, values in options.items():
            if self.chance(25):
                found += f", {name}: {self.one(values)}"
        return found


# --- what slots hold --------------------------------------------------------------------------------------------------

ACTS = (
    "gelu",
    "relu",
    "silu",
    "gelu_tanh",
    "quick_gelu",
    "relu_squared",
    "mish",
    "tanh",
    "sigmoid",
    "softplus",
    "selu",
    "elu",
    "hard_swish",
    "softsign",
    "leaky_relu(slope: 0.1)",
    "prelu",
    "identity",
    "log_sigmoid",
    "hard_sigmoid",
    "elu(alpha: 0.5)",
)
INITS = (
    "normal(0.02)",
    "xavier",
    "xavier_normal",
    "kaiming",
    "kaiming_normal",
    "orthogonal",
    "small",
    "uniform(0.1)",
    "truncated_normal(0.05)",
    "depth_scaled(std: 0.02, layers: 2)",
    "deepnorm(layers: 2)",
)


def activation(c: Chooser) -> str:
    return c.one(ACTS)


def mask(c: Chooser, depth: int = 2) -> str:
    """Any mask; a causal one is `causal` and something."""
    if c.causal:
        return f"causal & {_bracketed(any_mask(c, depth))}" if c.chance(50) else "causal"
    return any_mask(c, depth)


def any_mask(c: Chooser, depth: int) -> str:
    if depth and c.chance(35):
        kind = c.one(["&", "|", "~"])
        a = _bracketed(any_mask(c, depth - 1))
        return f"~{a}" if kind == "~" else f"{a} {kind} {_bracketed(any_mask(c, depth - 1))}"
    n = c.whole(1, 5)
    return c.one(
        [
            "causal",
            "full",
            f"window({n})",
            f"chunked({n})",
            f"prefix({n})",
            f"global({n})",
            f"strided({n})",
            f"dilated({n}, {c.whole(1, 3)})",
            f"random({n}, {c.whole(0, 3)})",
            *([] if c.fixed else ["padding", "documents"]),
        ]
    )


def _bracketed(text: str) -> str:
    return f"({text})" if " " in text.replace(", ", ",") else text


def scaling(c: Chooser, pairs: int) -> str:
    short = ", ".join(str(1 + i / 2) for i in range(pairs))
    long = ", ".join(str(1 + i) for i in range(pairs))
    return c.one(
        [
            "linear(factor: 2)",
            *(["ntk(factor: 2)"] if pairs > 1 else []),
            "yarn(factor: 4, original: 8)",
            "yarn(factor: 4, original: 8, mscale: 0)",
            "llama3(factor: 8, original: 8)",
            f"longrope(short: [{short}], long: [{long}], original: 8)",
            f"longrope(short: [{short}], long: [{long}], original: 3, factor: 4)",
        ]
    )


def rope(c: Chooser, head_dim: int) -> str:
    even = list(range(2, head_dim + 1, 2))
    args, dims = [], head_dim
    if c.chance(30):
        args.append(f"theta: {c.one(['100', '500_000', '10_000'])}")
    if len(even) > 1 and c.chance(30):
        dims = c.one(even)
        args.append(f"dims: {dims}")
    elif head_dim % 4 == 0 and c.chance(20):
        dims = head_dim // 2
        args.append("fraction: 0.5")
    if c.chance(30):
        args.append("interleaved: true")
    if c.chance(35):
        args.append(f"scaling: {scaling(c, dims // 2)}")
    return f"rope({', '.join(args)})" if args else "rope"


def position(c: Chooser, head_dim: int) -> str:
    """A position that acts inside attention, or ''."""
    kind = c.one(["", "rope", "rope", "alibi", "relative_bias", "transformer_xl"])
    if kind == "rope":
        return rope(c, head_dim) if head_dim % 2 == 0 else ""
    if kind == "relative_bias":
        return f"relative_bias(buckets: {c.one([4, 8, 32])}, max_distance: {c.one([17, 64])})" if c.chance(80) else kind
    return "" if kind == "transformer_xl" and head_dim % 2 else kind


NORMS = (
    "layernorm",
    "rmsnorm",
    "layernorm(eps: 1e-6)",
    "layernorm(bias: false)",
    "layernorm(weight: false, bias: false)",
    "rmsnorm(eps: 1e-5)",
    "rmsnorm(weight: false)",
    "rmsnorm(offset: true)",
)


def norm(c: Chooser) -> str:
    if not c.causal and c.chance(15):
        return c.one(["batchnorm", "powernorm", "groupnorm(groups: 2)", "batchnorm(momentum: 0.3)"])
    return c.one(NORMS)


@dataclass
class Attention:
    """A block for the slot `attention`, and what else it may be given."""

    text: str
    head_dim: int = 0
    """0: it takes neither mask nor position."""
    positions: str = "any"


def attention(c: Chooser, width: int, names: Names) -> Attention:
    heads = c.one([h for h in (1, 2, 4) if width % h == 0])
    head_dim = width // heads
    kind = c.one(["mha", "mha", "gqa", "gqa", "mqa", "mla", "recurrent", "conv", "own", "own"])
    if kind == "mla":
        rope_dim, rank = c.one([2, 4]), c.one([2, 6])
        more = c.some(q_rank=[4, 6], bias=["true"], norm=["layernorm", "rmsnorm"], scale=["0.3"])
        dims = f"nope_dim: {c.one([3, 4])}, rope_dim: {rope_dim}, v_dim: {c.one([2, 5])}"
        return Attention(f"mla(heads: {heads}, kv_rank: {rank}, {dims}{more})", rope_dim, "rope")
    if kind == "recurrent":
        cell = c.one(["gru", "lstm", "rnn", "rnn_relu"])
        more = c.some(bias=["false"])
        if not c.causal and c.chance(30):
            return Attention(f"bidirectional({cell.split('_')[0]}({width // 2}))")
        act = ", act: relu" if cell == "rnn_relu" else ""
        more += ", reverse: true" if not c.causal and c.chance(30) else ""
        return Attention(f"{cell.split('_')[0]}(hidden: {width}{act}{more})")
    if kind == "conv":
        groups = c.one([1, 1, 2, width])
        padding = "causal" if c.causal else c.one(["same", "causal"])
        more = c.some(dilation=[2, 3], bias=["false"]) + (f", groups: {groups}" if groups > 1 else "")
        return Attention(f"conv1d({width}, kernel: {c.whole(1, 4)}, padding: {padding}{more})")
    if kind == "own":
        return Attention(names.block(equations(c, width)))
    if c.chance(20):
        head_dim = c.one([2, 3, 4, 6])
        more = f", head_dim: {head_dim}"
    else:
        more = ""
    more += c.some(
        bias=["true"], out_bias=["true", "false"], qk_norm=["rmsnorm", "layernorm", "l2_normalize"], scale=["0.5"]
    )
    if c.chance(15):
        more += f", softcap: {c.one(['5', '20.0'])}"
    if kind == "mha":
        fused = c.chance(20)
        more += ", fused: true" if fused else c.some(value_dim=[2, 5])
        return Attention(f"mha(heads: {heads}{more})", head_dim)
    if kind == "gqa":
        return Attention(
            f"gqa(heads: {heads}, kv_heads: {c.one([h for h in (1, 2, 4) if heads % h == 0])}{more})", head_dim
        )
    return Attention(f"mqa(heads: {heads}{more})", head_dim)


def router(c: Chooser, experts: int, top_k: int) -> str:
    """A router, or '' for the usual one."""
    kind = c.one(["", "softmax", "sigmoid"])
    if not kind:
        return ""
    groups = 2 if experts % 2 == 0 and experts >= 4 and c.chance(40) else 1
    args = [f"groups: 2, top_groups: {2 if top_k > experts // 2 else c.one([1, 2])}"] if groups == 2 else []
    if c.chance(40):
        args.append(f"normalize: {c.one(['true', 'false'])}")
    if c.chance(30):
        args.append(f"scale: {c.one(['2.5', '0.5'])}")
    if c.chance(40):
        args.append("bias: true")
    if kind == "softmax":
        if c.chance(40):
            args.append("balance: 0.01")
        if c.chance(40):
            args.append("z_loss: 0.001")
    return f", router: {kind}_router({', '.join(args)})" if args else f", router: {kind}_router"


def ffn(c: Chooser, width: int, names: Names, experts: bool = True) -> str:
    kind = c.one(["mlp", "mlp", "gated", "gated", "moe", "moe", "own"] if experts else ["mlp", "gated"])
    hidden = c.one(["16", "10", "width", "2 * width"] if experts else ["8", "12", "10"])
    if kind == "mlp":
        act = activation(c)
        return f"mlp(hidden: {hidden}, act: {act}{c.some(bias=['false'], dropout=['0.1'])})"
    if kind == "gated":
        name = c.one(["swiglu", "geglu", "reglu", "glu_mlp"])
        more = f", act: {activation(c)}" if name == "glu_mlp" and c.chance(50) else ""
        return f"{name}(hidden: {hidden}{more}{c.some(bias=['true'])})"
    if kind == "own":
        return names.block(equations(c, width, local=True))
    count = c.one([2, 3, 4, 6])
    top_k = c.whole(1, min(count, 3))
    if c.chance(15):
        expert = names.block(equations(c, width, local=True, expert=True), width)
    else:
        expert = ffn(c, width, names, experts=False)
    shared = f", shared: {ffn(c, width, names, experts=False)}" if c.chance(40) else ""
    return f"moe(experts: {count}, top_k: {top_k}, expert: {expert}{shared}{router(c, count, top_k)})"


def residual(c: Chooser, names: Names) -> str:
    kind = c.one(["add", "scale", "deepnorm", "layerscale", "gated", "own", "none"])
    if kind == "own":
        return names.add(
            "highway",
            "block NAME(x: [..., width], branch: [..., width]) -> [..., width] {\n"
            "  gate = x -> linear(width) -> sigmoid\n"
            "  return x + gate * (branch - x)\n}",
        )
    return {
        "scale": "scale(skip: 0.7, branch: 0.5)",
        "deepnorm": "deepnorm(layers: 3)",
        "layerscale": "layerscale(0.1)",
    }.get(kind, kind)


# --- blocks -----------------------------------------------------------------------------------------------------------


@dataclass
class Names:
    """Declarations so far."""

    texts: list[str] = field(default_factory=list)

    def add(self, name: str, text: str) -> str:
        full = f"{name}_{len(self.texts)}"
        self.texts.append(text.replace("NAME", full))
        return full

    def block(self, body: list[str], width: int | None = None) -> str:
        """A block of equations from `x` to one of its shape."""
        lines = "\n  ".join(body)
        head = "(x: [..., width]) -> [..., width]" if width else "(x: [batch, time, width]) -> [batch, time, width]"
        return self.add("own", f"block NAME{head} {{\n  {lines}\n}}")


def layer(c: Chooser, width: int, names: Names, cross: bool = False) -> str:
    """A block for the list of layers; its name."""
    if not cross and c.chance(25):
        return names.block(equations(c, width))
    slots: list[tuple[str, str]] = []
    mixer: Attention | None = attention(c, width, names) if c.chance(90) else None
    if mixer is not None:
        slots.append(("attention", mixer.text))
        if mixer.head_dim:
            chosen = mask(c)
            if c.causal or c.chance(70):
                slots.append(("mask", chosen))
            where = position(c, mixer.head_dim) if mixer.positions == "any" else c.one(["", rope(c, mixer.head_dim)])
            if where:
                slots.append(("position", where))
    if cross:
        heads = c.one([h for h in (1, 2, 4) if width % h == 0])
        slots.insert(1, ("cross_attention", c.one([f"mha(heads: {heads})", f"gqa(heads: {heads}, kv_heads: 1)"])))
    with_ffn = mixer is None or c.chance(85)
    if with_ffn:
        slots.append(("ffn", ffn(c, width, names)))
    if c.chance(60):
        slots.append(("norm", norm(c)))
    parallel = mixer is not None and with_ffn and not cross and c.chance(20)
    placement = c.one(["pre", "pre", "post", "branch", "sandwich", "none"])
    norms = 1
    if parallel:
        norms = c.one([1, 2]) if placement in ("pre", "post", "none") else 1
        slots.append(("topology", f"parallel(norms: {norms})" if c.chance(50) or norms == 2 else "parallel"))
    if placement != "pre" or c.chance(20):
        slots.append(("placement", placement))
    if c.chance(35):
        slots.append(("residual", residual(c, names)))
    if c.chance(15):
        slots.append(("dropout", "0.1"))
    if c.chance(10):
        slots.append(("init", c.one(INITS)))
    body = "\n  ".join(f"{k}: {v}" for k, v in slots)
    return names.add("layer", f"block NAME {{\n  {body}\n}}")


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
    "linear_attention((elu({v} -> linear({d})) + 1) -> split_heads(2), "
    "(elu({v} -> linear({d})) + 1) -> split_heads(2), {v} -> split_heads(2), normalize: true) -> merge_heads",
    "linear_attention({v} -> split_heads(2), tanh({v}) -> split_heads(2), {v} -> split_heads(2), "
    "{v} -> linear(2) -> log_sigmoid -> transpose(1, 2)) -> merge_heads -> rmsnorm",
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


def equations(c: Chooser, width: int, local: bool = False, expert: bool = False) -> list[str]:
    """Statements from `x` to a result of its shape. A `local` body mixes no places; an `expert` is applied to rows."""
    return Body(c, width, local, expert).lines_of()


class Body:
    """A random dataflow graph: each step reads tensors that are there and adds one; in the end each that nothing read
    is added to the result, so that every weight matters."""

    def __init__(self, c: Chooser, width: int, local: bool, expert: bool) -> None:
        self.c, self.width, self.local, self.expert = c, width, local, expert
        self.lines: list[str] = []
        self.tensors: dict[str, int] = {"x": width}
        self.unread: list[str] = []
        self.count = 0

    def lines_of(self) -> list[str]:
        c = self.c
        for _ in range(c.whole(1, 5)):
            self.step()
        parts = []
        for name in self.unread:
            parts.append(name if self.tensors[name] == self.width else f"({name} -> linear(width))")
        how = c.one(["x + NORM", "NORM", "x + NORM", "gate"])
        total = " + ".join(parts)
        if how == "gate":
            self.lines.append(f"return x + sigmoid(x) * ({total})")
        elif how == "NORM" and c.chance(50):
            self.lines.append(f"return x + (({total}) -> layernorm -> linear(width))")
        else:
            self.lines.append(f"return x + {total}")
        return self.lines

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def pick(self) -> str:
        name = self.c.one(list(self.tensors))
        if name in self.unread:
            self.unread.remove(name)
        return name

    def bind(self, name: str, text: str, width: int) -> None:
        self.lines.append(f"{name} = {text}")
        self.tensors[name] = width
        self.unread.append(name)

    def step(self) -> None:
        c = self.c
        kinds: list[Callable[[], None]]
        if self.expert:
            kinds = [self.map_, self.pointwise, self.binary]
        else:
            kinds = [self.map_, self.pointwise, self.binary, self.feature, self.statement]
            if not self.local:
                kinds += [self.along_time] * 3 + [self.recurrence]
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
        v = self.pick()
        d = self.width if self.expert else self.c.one([8, 12, self.width])
        text = self.fill(self.c.one(LOCAL), v=v, d=d)
        self.bind(self.name(), text, d if "{d}" in text or "linear" in text else self.tensors[v])

    def pointwise(self) -> None:
        v = self.pick()
        options = [t for t in UNARY if not (self.expert and ("2" in t or "..." in t))]
        self.bind(self.name(), self.fill(self.c.one(options), v=v), self.tensors[v])

    def binary(self) -> None:
        v = self.pick()
        alike = [n for n, d in self.tensors.items() if d == self.tensors[v]]
        w = self.c.one(alike)
        if w in self.unread:
            self.unread.remove(w)
        options = [t for t in BINARY if not (self.expert and "stack" in t)]
        self.bind(self.name(), self.fill(self.c.one(options), v=v, w=w), self.tensors[v])

    def feature(self) -> None:
        v = self.pick()
        d, name = self.tensors[v], self.name()
        text = self.c.one(FEATURES)
        for letter, shape, schemes in (
            ("p", f"[{d}, {d}]", ["normal(0.2)", "xavier"]),
            ("g", f"[{d}]", ["ones", "normal(0.1)", f"-log(1 + indices({d}))"]),
            ("h", f"[{d}]", ["zeros", "uniform(0.1)"]),
            ("s", "[2]", ["zeros", "normal(0.1)"]),
        ):
            if f"{{{letter}}}" in text:
                self.lines.append(f"param {name}_{letter}: {shape} = {self.c.one(schemes)}")
                text = text.replace(f"{{{letter}}}", f"{name}_{letter}")
        if "second_of" in text:
            self.lines.append(f"{name}_v, {name}_i = {v} -> topk(2)")
            text = f"({name}_v + gather({v}, {name}_i)) -> linear({d})"
        self.bind(name, self.fill(text, v=v, d=d), d)

    def along_time(self) -> None:
        v = self.pick()
        options = CAUSAL if self.c.causal else CAUSAL + LOOKING * 2
        if self.c.fixed:
            options = tuple(t for t in options if "(n p)" not in t and "stride: 2" not in t)
        d = self.tensors[v]
        self.bind(self.name(), self.fill(self.c.one(options), v=v, d=d), d)

    def recurrence(self) -> None:
        """A scan of one's own."""
        c, v, name = self.c, self.pick(), self.name()
        d = self.tensors[v]
        step, states = c.one(
            [
                ("h = tanh(x_t + 0.5 * h)", 1),
                ("h = x_t -> gru_cell({d})(h)", 1),
                ("h = rnn_cell({d})(x_t, h)", 1),
                ("h, c = lstm_cell({d})(x_t, h, c)", 2),
                ("h = 0.5 * h + (x_t -> linear({d}))", 1),
                ("h = h + sigmoid(x_t -> linear({d})) * (x_t - h)", 1),
                ("h = where(x_t > h, x_t, h)", 1),
            ]
        )
        carried = ", ".join(f"{n}: [batch, {d}] = {c.one(['0', '0.5'])}" for n in "hc"[:states])
        emit = c.one(["h", "h * sigmoid(h)", "h + x_t"])
        first = f"emit {emit}\n    {step}" if c.chance(25) and emit == "h" else f"{step}\n    emit {emit}"
        first = first.replace("{d}", str(d))
        self.bind(name, f"scan {carried} for x_t in {v} {{\n    {first}\n  }}", d)
        if not c.causal and c.chance(30):
            self.unread.remove(name)
            self.bind(f"{name}_last", f"{name} + unsqueeze(h, axis: 1)", d)

    def statement(self) -> None:
        c, v, name = self.c, self.pick(), self.name()
        d = self.tensors[v]
        kind = c.one(["for", "emit", "if", "shared", "loss", "buffer", "static", "split", "list", "plus"])
        if kind == "for":
            self.lines.append(f"{name} = {v}")
            inner = c.one(
                [
                    f"{name} + ({name} -> linear({d}))",
                    f"{name} -> layernorm -> mlp(hidden: 6)",
                    f"tanh({name}) / (i + 1)",
                ]
            )
            self.lines.append(f"for i in {c.whole(1, 3)} {{ {name} = {inner} }}")
            self.tensors[name] = d
            self.unread.append(name)
        elif kind == "emit":
            n = c.whole(2, 3)
            self.lines.append(f"{name}_y = {v}")
            self.lines.append(
                f"{name}_all = for i in {n} {{\n    {name}_y = {name}_y -> linear({d}) -> gelu\n    emit {name}_y\n  }}"
            )
            self.bind(name, f"{name}_all[0] + {name}_all[{n - 1}] + {name}_y", d)
        elif kind == "if":
            self.lines.append(f"if training {{ {name} = {v} -> dropout(0.2) }} else {{ {name} = {v} }}")
            self.tensors[name] = d
            self.unread.append(name)
        elif kind == "shared":
            self.lines.append(f"let {name}_m = shared(linear({d}))")
            self.bind(name, f"{name}_m(tanh({v} -> {name}_m))", d)
        elif kind == "loss":
            self.lines.append(f"loss {name} = 0.01 * (square({v}) -> mean(axis: [0, 1, 2]))")
            self.bind(f"{name}_t", f"{v} -> linear({d})", d)
        elif kind == "buffer":
            scheme = c.one([f"indices({d}) / {d}", "ones", "normal(0.5)"])
            self.lines.append(f"buffer {name}_b: [{d}] = {scheme}")
            self.bind(name, f"{v} + {name}_b", d)
        elif kind == "static":
            self.lines.append(f"let {name}_n = {c.whole(1, 9)}")
            self.bind(name, f"if {name}_n > 4 then {v} -> linear({d}) else {v} * {name}_n", d)
        elif kind == "split":
            self.lines.append(f"{name}_a, {name}_b = {v} -> split({d // 2}, {d - d // 2})")
            self.bind(name, f"concat({name}_b, {name}_a)", d)
        elif kind == "list":
            self.lines.append(f"{name} = {v}")
            self.lines.append(f"for inner in [linear({d}), mlp(hidden: 6)] {{ {name} = {name} + inner({name}) }}")
            self.tensors[name] = d
            self.unread.append(name)
        else:
            self.lines.append(f"{name} = {v}")
            self.lines.append(f"{name} += {v} -> linear({d}) : [batch, time, {d}]")
            self.tensors[name] = d
            self.unread.append(name)


# --- models -----------------------------------------------------------------------------------------------------------


def stack(c: Chooser, width: int, names: Names, lets: list[str], cross: bool = False) -> str:
    """A list of layers."""
    a = layer(c, width, names, cross)
    kind = c.one(["one", "times", "sum", "shared", "list", "pattern"])
    if kind == "one":
        return f"1 * {a}"
    if kind == "times":
        return f"{c.whole(2, 3)} * {a}"
    if kind == "shared":
        lets.append(f"let again_{len(lets)} = shared({a})")
        return f"{c.whole(2, 3)} * again_{len(lets) - 1}"
    if kind == "list" and not cross:
        heads = c.one([1, 2, 4])
        more = "causal & window(i + 1)" if c.causal else "window(i + 1)"
        name = names.add(
            "turn",
            f"block NAME(mask: mask) {{\n  attention: mha(heads: {heads})\n  mask: mask\n  ffn: mlp(hidden: 8)\n}}",
        )
        return f"{a} + [{name}(mask: {more}) for i in {c.whole(1, 3)}]"
    b = layer(c, width, names, cross)
    return f"2 * ({a} + {b}) + {a}" if kind == "pattern" else f"{a} + 2 * {b}"


def head(c: Chooser, width: int) -> tuple[str, str]:
    """The slot and what it holds."""
    if c.causal:
        more = c.some(tied=["true"], bias=["true"], scale=["0.5"], softcap=["10"])[2:]
        if c.chance(15):
            return "heads", "[lm, lm(ahead: 2)]"
        return "head", f"lm({more})" if more else "lm"
    kind = c.one(["lm", "mlm", "classifier", "sequence", "token", "span", "next", "two", "own"])
    return {
        "lm": ("head", "lm(tied: true)"),
        "mlm": ("head", "mlm" if c.chance(50) else "mlm(tied: false, act: silu)"),
        "classifier": ("head", c.one(["classifier(classes: 3)", "classifier(classes: 3, pool: first, bias: false)"])),
        "sequence": ("head", "sequence_classifier(classes: 3)"),
        "token": ("head", "token_classifier(classes: 5, dropout: 0.1)"),
        "span": ("head", "span_classifier"),
        "next": ("head", "next_sentence"),
        "two": ("heads", "[mlm, next_sentence]"),
        "own": ("head", "linear(5)"),
    }[kind]


def model(c: Chooser) -> str:
    width = c.one(WIDTHS)
    names, lets = Names(), []
    kind = c.one(["decoder"] * 5 + ["pair", "frames", "images", "equations", "equations"])
    slots: list[tuple[str, str]] = []
    vocab = c.one(VOCAB)
    if kind == "equations":
        return equation_model(c, width, vocab)
    if kind in ("decoder", "pair"):
        slots += [("vocab", str(vocab)), ("context", str(CONTEXT))]
        args = []
        if c.chance(25):
            args.append("scale: sqrt(width)")
        if c.chance(15):
            args.append("rank: 6")
        if kind == "decoder" and c.chance(15):
            args.append("segments: 2")
        if c.chance(15):
            args.append(f"norm: {c.one(NORMS)}")
        if args:
            slots.append(("embedding", f"words({', '.join(args)})"))
    if kind == "frames":
        slots.append(("input", f"frames(features: {FRAMES})"))
    if kind == "images":
        slots.append(("input", f"patches(size: 4, image: 8{c.some(channels=[1], class_token=['true'])})"))
        c = Chooser(c.draw, c.causal, fixed=True)
    slots.append(("width", "width"))
    if c.chance(35):
        slots.append(("position", c.one(["learned", "sinusoidal", "sinusoidal(theta: 100, interleaved: true)"])))
        if kind in ("frames", "images"):
            slots[-1] = ("position", "sinusoidal")
    if c.chance(15):
        slots.append(("dropout", "0.1"))
    if kind == "pair":
        looking = Chooser(c.draw, causal=False)
        slots.append(("encoder", stack(looking, width, names, lets)))
        slots.append(("decoder", stack(c, width, names, lets, cross=True)))
    else:
        slots.append(("blocks", stack(c, width, names, lets)))
    if c.chance(70):
        slots.append(("norm", c.one(NORMS)))
    if kind in ("decoder", "pair"):
        where, what = head(c, width)
        if kind == "pair" and where == "heads":
            where, what = "head", "lm"
        if any(k == "embedding" and "rank" in v for k, v in slots) and "mlm" not in what:
            what = what.replace("tied: true, ", "").replace(", tied: true", "").replace("(tied: true)", "")
        slots.append((where, what))
    else:
        slots.append(("head", c.one(["classifier(classes: 3)", "token_classifier(classes: 2)", "linear(4)"])))
    if c.chance(15):
        slots.append(("init", c.one(INITS)))
    body = "\n  ".join([*lets, *(f"{k}: {v}" for k, v in slots)])
    blocks = "\n\n".join(names.texts)
    return f"{blocks}\n\nmodel m(width = {width}) {{\n  {body}\n}}\n"


def equation_model(c: Chooser, width: int, vocab: int) -> str:
    """A model of equations, over tokens or numbers, that says itself what is causal."""
    names = Names()
    lines = []
    if c.chance(60):
        inputs = "tokens: token[batch, time]"
        lines.append("x = tokens -> embedding(vocab, width)")
    else:
        inputs = f"frames: [batch, time, {FRAMES}]"
        lines.append("x = frames -> linear(width)")
    for _ in range(c.whole(1, 2)):
        body = equations(c, width)
        if c.chance(50):
            lines.append(f"x = x -> {names.block(body)}")
        else:
            # Written in place: its names are the model's.
            prefix = f"{'ab'[len(lines) % 2]}{len(lines)}_"
            last = body.pop().removeprefix("return ")
            lines += [_renamed(line, prefix) for line in body]
            lines.append(f"x = {_renamed(last, prefix)}")
    lines.append(f"assert causal(x{', ahead: 2' if c.chance(10) else ''})")
    lines.append(
        c.one(
            [
                "return x -> linear(vocab)",
                "return x, x -> mean(axis: 1) -> linear(3) as pooled",
                "return x -> layernorm",
            ]
        )
    )
    blocks = "\n\n".join(names.texts)
    body = "\n  ".join(lines)
    for kind in ("padding", "documents"):  # a model of equations names all of its inputs
        if re.search(rf"\b{kind}\b(?!:)", blocks + body):
            inputs += f", {kind}: {kind}[batch, time]"
    return f"{blocks}\n\nmodel m(width = {width}, vocab = {vocab})({inputs}) {{\n  {body}\n}}\n"


def _renamed(line: str, prefix: str) -> str:
    return re.sub(r"\bt(\d)", rf"{prefix}t\1", line)


@st.composite
def specs(draw: Callable[[Any], Any]) -> str:
    """A valid spec with one model, `m`."""
    causal = draw(st.integers(0, 4)) < 3
    return model(Chooser(draw, causal))
