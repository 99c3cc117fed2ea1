"""What slots hold, but for blocks."""

from __future__ import annotations

from rows import ACTIVATIONS, with_the_rest

from archdsl.frontend.schemes import FIXED, SCALINGS
from archdsl.ir.dims import num
from archdsl.ir.masks import INPUTS, RULES, Mask
from archdsl.ops import registry
from archdsl.ops.position import Position
from random_specs.choices import Chooser

ACTS = (
    *ACTIVATIONS,
    "tanh",
    "sigmoid",
    "elu",
    "leaky_relu(slope: 0.1)",
    "prelu",
    "identity",
    "elu(alpha: 0.5)",
)
INITS = with_the_rest(
    [
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
    ],
    but=FIXED,
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
    found = INPUTS if not c.fixed else ()
    for name, rule in RULES.items():
        numbers = [n, *(c.whole(int(number != "seed"), 3) for number in rule.numbers[1:])][: len(rule.numbers)]
        found = (*found, str(Mask(name, tuple(map(num, numbers)))))
    return c.one(found)


def _bracketed(text: str) -> str:
    return f"({text})" if " " in text.replace(", ", ",") else text


def scaling(c: Chooser, pairs: int) -> str:
    short = ", ".join(str(1 + i / 2) for i in range(pairs))
    long = ", ".join(str(1 + i) for i in range(pairs))
    found = [
        "linear(factor: 2)",
        *(["ntk(factor: 2)"] if pairs > 1 else []),
        "yarn(factor: 4, original: 8)",
        "yarn(factor: 4, original: 8, mscale: 0)",
        "llama3(factor: 8, original: 8)",
        f"longrope(short: [{short}], long: [{long}], original: 8)",
        f"longrope(short: [{short}], long: [{long}], original: 3, factor: 4)",
    ]
    covered = {"ntk", *(text.partition("(")[0] for text in found)}
    assert covered == {*SCALINGS}, f"a spelling of {covered ^ {*SCALINGS}}"
    return c.one(found)


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
    kinds = ["", "rope", *sorted(name for name, op in registry.primitives().items() if isinstance(op, Position))]
    kind = c.one(kinds)
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
