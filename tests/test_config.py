"""Another Config of an emitted file makes what the spec makes with these numbers, or is refused.

`conditions` says what a model was decided from; random_specs/configs.py compares graphs and modules for other
numbers."""

import random
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from random_specs import configs
from zoo import sizes

import archdsl
from archdsl.backends.torch import emit
from archdsl.diagnostics import ArchError
from archdsl.estimates.counts import total
from archdsl.ir.conditions import conditions
from archdsl.ir.dims import expr_text
from archdsl.ir.weights import weights
from archdsl.run.load import load_source


def of(text: str) -> list[str]:
    """The conditions of a spec."""
    model = archdsl.load(text=text, allow_noncausal=True)
    return [f"{expr_text(c.left)} {c.op} {expr_text(c.right)}" for c in conditions(model)]


def config(text: str) -> Any:
    """The Config of the emitted file."""
    made = load_source(emit(archdsl.load(text=text, allow_noncausal=True)))
    return sys.modules[made.__module__].Config


WINDOWED = "return x -> mha(heads: 1, head_dim: n, mask: causal & window(2))"
BODIES = {
    # What is decided: hyper-parameters and body of a model over x: [batch, time, 8]; what is recorded beside sizes.
    "wide enough for blocks": ("n = 16", WINDOWED, []),  # which CUDA's kernel asks for: others take narrower heads
    "too narrow for blocks": ("n = 8", WINDOWED, []),
    "folded if": ("n = 3", "if n > 2 { x = x -> linear(8) }\n return x", ["n >= 3"]),
    "a multiple": ("n = 5", "if 2 * n > 8 { x = x -> linear(8) }\n return x", ["n >= 5"]),
    "an odd multiple": ("n = 5", "if 3 * n > 10 { x = x -> linear(8) }\n return x", ["n >= 4"]),
    "a part": ("n = 5", "if n / 2 >= 2 { x = x -> linear(8) }\n return x", ["n >= 4"]),
    "a number of a multiple": ("n = 4", "if 2 * n == 8 { x = x -> linear(8) }\n return x", ["n == 4"]),
    "the other side": ("n = 1", "if n > 2 { x = x -> linear(8) }\n return x", ["n <= 2"]),
    "either of two": ("n = 3, k = 0", "return if n > 2 or k > 0 then -x else x", ["n >= 3"]),
    "both": ("n = 3, k = 1", "return if n > 2 and k > 0 then -x else x", ["n >= 3"]),
    "sizes added": ("n = 8, k = 8", "return (x -> linear(n)) + (x -> linear(k))", ["k == n"]),
    "sizes added to a number": ("n = 8", "return x + (x -> linear(n))", ["n == 8"]),
    "one against many": ("n = 1", "return x + (x -> linear(n))", ["n == 1"]),
    "one expression": ("n = 4", "return (x -> linear(2 * n)) + (x -> linear(n * 2))", []),
    "matmul": ("n = 5, k = 5", "return matmul(x -> linear(n), transpose(x -> linear(k), 1, 2))", ["k == n"]),
    "concat": ("n = 8", "return concat(x, x -> linear(n), axis: 1)", ["n == 8"]),
    "einsum": ("n = 8", 'return einsum("b q d, b k d -> b q k", x, x -> linear(n))', ["n == 8"]),
    "an annotation": ("n = 8", "y = x -> linear(n) : [batch, time, 8]\n return y", ["n == 8"]),
    "exact division": ("n = 8, k = 2", "return x -> linear(n / k)", ["k != 0", "n / k >= 1", "n % k == 0"]),
    "a fraction": ("n = 8", "return x -> linear(3 * n / 8)", ["3 * n % 8 == 0"]),
    "a rounded size": ("n = 8, k = 3", "return x -> linear(8 * ceil(n / k))", ["k != 0", "8 * ceil(n / k) >= 1"]),
    "a difference": ("n = 8, k = 3", "return x -> linear(n - k)", ["n - k >= 1"]),
    "heads": ("n = 2, k = 2", "return x -> gqa(heads: n, kv_heads: k)", ["n == k", "8 % n == 0", "n % k == 0"]),
    "grouped heads": ("n = 2, k = 1", "return x -> gqa(heads: n, kv_heads: k)", ["8 % n == 0", "n % k == 0"]),
    "rope": ("n = 2", "return sdpa(x, x, x, position: rope(dims: n))", ["n <= 8", "n % 2 == 0"]),
    "dropout left out": ("n = 0", "return x -> dropout(n)", ["n == 0"]),
    "dropout": ("n = 0.1", "return x -> dropout(n)", ["n >= 0", "n < 1"]),
    "attention without dropout": ("n = 0", "return sdpa(x, x, x, dropout: n)", ["n == 0"]),
    "nothing added": ("n = 0", "return x + n", ["n == 0"]),
    "something added": ("n = 2", "return x + n", []),
    "turns": ("n = 3", "for i in n { x = x -> linear(8) }\n return x", []),
    "turns that are asserted of": ("n = 3", "for i in n { assert i < 4 }\n return x", ["n == 3"]),
    "turns that count": ("n = 3", "for i in n { x = x * (i + 1) }\n return x", ["n == 3"]),
    "no turns": ("n = 0", "for i in n { x = x -> linear(8) }\n return x", ["n == 0"]),
    "turns kept": ("n = 3", "y = for i in n { x = x -> linear(8)\n emit x }\n return y[0] + x", ["n == 3"]),
    "turns of a list": ("n = 3", "for b in [linear(8) for i in n] { x = x -> b }\n return x", ["n == 3"]),
    "an element": ("n = 1", "let sizes = [4, 8, 16]\n return x -> linear(sizes[n])", ["n == 1"]),
    "an element of so many": ("n = 2", "let b = n * linear(8)\n return x -> b[1]", ["n == 2"]),
    "an axis": ("n = 1", "return x -> cumsum(axis: n)", ["n == 1"]),
    "a place": ("n = 3", "return x[..., n]", ["n >= 0", "n < 8"]),
    "topk": ("n = 3", "v, i = x -> topk(n)\n return v", ["n <= 8"]),
    "split": ("n = 3", "a, b = x -> split(n, 5)\n return a", ["n == 3"]),
    "a kernel that is even": ("n = 4", "return x -> conv1d(8, kernel: n)", ["(n - 1) % 2 != 0"]),
    "groups": ("n = 2", "return x -> conv1d(8, kernel: 3, groups: n)", ["8 % n == 0"]),
    "a default": ("n = 8", "return x -> fits(hidden: n)", ["n == 8"]),
    "two axes of one name": ("n = 8, k = 8", "return pair(x -> linear(n), x -> linear(k))", ["k == n"]),
    "a block's own default": ("n = 4", "return (x -> linear(n)) -> fixed", ["n == 4"]),
    "one table for two": ("n = 8, k = 8", "y = sdpa(x -> linear(n), x -> linear(n), x, position: rope)\n"
        "return y + sdpa(x -> linear(k), x -> linear(k), x, position: rope)", ["n == k", "n % 2 == 0", "k % 2 == 0"]),
    "a shared block": ("n = 8, k = 8", "let s = shared(linear(4))\n a = x -> linear(n) -> s\n b = x -> linear(k) -> s\n"
        "return a + b", ["n == k"]),
    "two masks that are one": ("n = 3, k = 3", "return sdpa(x, x, x, mask: window(n) & window(k))", ["n == k"]),
    "a comparison of blocks": ("n = 3", "let b = linear(n)\n return if b == linear(3) then x -> b else x", ["n == 3"]),
    "an assertion": ("n = 8, k = 2", 'assert n > 3 * k, "room"\n return x -> linear(n) -> linear(k)', ["n > 3 * k"]),
    "a quotient that is rounded down": ("n = 7", "return x -> linear(n) -> linear((n - 1) // 2 + 1)", []),
    "a crowd": ("n = 3", "for i in 6 { if i % n == 1 { x = x -> linear(8) } }\n return x", ["n == 3"]),
    "nested": ("n = 8, k = 2", "return x -> outer(n, k)", ["k != 0", "n / k > 3", "n / k >= 1", "n % k == 0"]),
}  # fmt: skip
BLOCKS = """
block fits(hidden: size = 8)(x: [batch, time, hidden]) -> [batch, time, hidden] { return x -> linear(hidden) }
block fixed(width: size = 4)(x: [batch, time, width]) -> [batch, time, width] { return -x }
block pair(x: [batch, time, wide], y: [batch, time, wide]) -> [batch, time, wide] { return x + y }
block outer(n, k)(x: [batch, time, width]) -> [batch, time, width] {
  let each = n / k
  if each > 3 { x = x -> linear(each) -> linear(width) }
  return x
}
"""


def spec(hypers: str, body: str) -> str:
    return f"{BLOCKS}\nmodel m({hypers})(x: [batch, time, 8]) {{\n {body}\n}}\n"


@pytest.mark.parametrize("name", BODIES)
def test_what_was_decided_is_recorded(name: str) -> None:
    hypers, body, wanted = BODIES[name]
    of_fields = ("n >= 1", "k >= 1", "n % 1 == 0", "k % 1 == 0")
    plain = [c for c in of(spec(hypers, body)) if not c.startswith("minimum") and c not in of_fields]
    assert plain == wanted


@pytest.mark.parametrize("name", BODIES)
def test_the_graph_for_other_numbers(name: str) -> None:
    hypers, body, _ = BODIES[name]
    configs.graphs(configs.of_text(spec(hypers, body)), configs.Tally())


BY_CHANCE = [
    "r * n",
    "n / k",
    "(n + k) / 3",
    "(n / k) ** 2",
    "minimum(n / k, 3)",
    "ceil(n / k) * 1.5",
    "r * n // 4",
    "n / k // 1",
    "2 ** (n / k)",
    "(r * 2) ** 2",
    "sqrt(2 * n)",
    "sqrt(n * n) / k",
    "n / 0.5",
    "n / 4 * 2",
    "k * (n / 8 + 0.5) + 1",
    "n / k * 4 / n + 1",
    "n * 3 / 2 + n / 2",
    "maximum(n / 2, 3)",
]
"""Numbers that are whole for n = 8, k = 4 and r = 2.5."""
TAKEN = {
    # Where a number need not be whole, or is rounded: another Config is not refused, but for names, which are sizes.
    "itself": "y = x * ({e})",
    "a name": "let t = {e}\n let u = t / 2\n y = x * t + u",
    "a scale": "y = sdpa(x, x, x, scale: {e})",
    "an eps": "let t = {e}\n y = x -> rmsnorm(eps: t)",
    "a first value": "let t = {e}\n param w: [8] = constant(t / 4)\n y = x * w",
    "an expression of first values": "param w: [8] = constant(1) + ({e})\n y = x * w",
    "a list of first values": "param w: [2, 2] = [[{e}, 1], [2, {e}]]\n y = x * mean(w, axis: [0, 1])",
    "a list for each position": "buffer w: [time, 2] = [{e}, 1]\n y = x * unsqueeze(mean(w, axis: 1), axis: -1)",
    "rounded": "y = x -> linear(ceil(({e}) / 3)) as a -> linear(floor({e}) + 1) as b -> linear(8) as c",
    "a name that is rounded": "let t = {e}\n y = x -> linear(ceil(t / 3)) as a -> linear(t // 3 + 1) as b -> linear(8)",
    "given to a block that says what it is": "y = x -> real({e})",
}
GIVEN = {
    # Where the text may take it for a size: another Config is right, or refused.
    "given to a block": "y = x -> times({e})",
    "given on": "let t = {e}\n y = x -> outer(t)",
    "shared": "let b = shared(times({e}))\n y = (x -> b) + ((x * 2) -> b)",
    "in a list": "y = x\n for b in [times(({e}) * (i + 1)) for i in 2] {{ y = y -> b }}",
    "a size": "y = x -> linear({e}) as a -> linear(8) as b",
    "the size of a block": "y = x -> wide({e})",
    "sizes by a name": """let t = {e}
      let u = t * 2
      y = x -> linear(u) as a -> linear(t) as b -> linear(8) as c -> wide(t) -> conv1d(8, kernel: 1, dilation: t)
      for i in t {{ y = y + i }}""",
    "iterations": "y = x\n for i in {e} {{ y = y -> linear(8) }}",
    "positions": "y = x -> shift(minimum({e}, 4))",
}
FEWEST = {"a name": 34, "given on": 20, "sizes by a name": 12} | {
    name: 30 for name in GIVEN if name not in ("given on", "sizes by a name")
}
"""How many of the 60 other Configs are accepted at least; elsewhere 54."""


@pytest.mark.parametrize("places", [pytest.param({k: v}, id=k) for k, v in {**TAKEN, **GIVEN}.items()])
def test_a_number_that_is_whole_by_chance(places: dict[str, str]) -> None:
    """Another Config makes what the spec makes with its numbers, or is refused where the text takes it for a size."""
    ((name, body),) = places.items()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    compared = 0
    for e in BY_CHANCE:
        text = f"""
        block real(s: number)(x: [batch, time, width]) -> [batch, time, width] {{ return x * s }}
        block times(s)(x: [batch, time, width]) -> [batch, time, width] {{ return x * s }}
        block outer(s)(x: [batch, time, width]) -> [batch, time, width] {{ return (x -> times(s)) + x * (s / 2) }}
        block wide(s)(x: [batch, time, width]) -> [batch, time, width] {{
          return x -> linear(ceil(s / 3)) as a -> linear(s) as b -> linear(width) as c
        }}
        model m(n = 8, k = 4, r = 2.5)(x: [batch, time, 8]) -> [batch, time, 8] {{
          {body.format(e=e)}
          return y
        }}"""
        made = load_source(emit(archdsl.load(text=text, allow_noncausal=True)))
        of_numbers = vars(sys.modules[made.__module__])["Config"]
        for other in ({"n": 6}, {"n": 32}, {"k": 3, "n": 9}, {"r": 3.0}, {"n": 7, "r": 1.9}):
            try:
                module = made(of_numbers(**other)).eval()
            except (AssertionError, ValueError):
                assert name in GIVEN or "let t" in body
                continue
            meant = load_source(emit(archdsl.load(text=text, set=other, allow_noncausal=True)))().eval()
            weights = {k: v.shape for k, v in module.state_dict().items()}
            assert weights == {k: v.shape for k, v in meant.state_dict().items()}, (e, other)
            if "param" in body:
                assert torch.allclose(module.w, meant.w), (e, other)
            meant.load_state_dict(module.state_dict())
            assert torch.allclose(module(x), meant(x), atol=1e-5), (e, other)
            compared += 1
    assert compared >= FEWEST.get(name, 54)


def test_conditions_are_said_once_and_hold() -> None:
    """Literals, one expression twice, and what follows from others are not said."""
    text = """
    block mixer(heads) { attention: mha(heads: heads)
      ffn: mlp(hidden: 4 * width) }
    model m(layers = 3, width = 8, heads = 2) {
      vocab: 11
      context: 16
      width: width
      blocks: layers * mixer(heads: heads) + mixer(heads: 4)
      head: lm
    }"""
    assert of(text) == ["minimum(layers, width, heads, vocab, context) >= 1", "width % heads == 0", "width % 4 == 0"]


@pytest.mark.parametrize(
    ("hypers", "said", "recorded"),
    [
        ("n = 8", ["n % 4 == 0", "n % 8 == 0"], ["n % 8 == 0"]),
        ("n = 8", ["n % 8 == 0", "n % 4 == 0"], ["n % 8 == 0"]),
        ("n = 24", ["n % 8 == 0", "n % 12 == 0"], None),
        ("n = 8, k = 8", ["n % 4 == 0", "k % 8 == 0"], None),
        ("n = 9, k = 8", ["n % 8 == 1", "n % 3 == 0"], None),
        ("n = 4", ["n % 8 >= 4", "n % 4 == 0"], None),
        ("n = 4", ["n // 8 == 0", "n % 4 == 0"], None),
        ("n = 8, k = 3", ["k * n % 24 == 0", "n % 4 == 0"], None),
        ("n = 8, k = 3", ["n % 4 == 0", "n * k % 4 == 0"], ["n % 4 == 0"]),
        ("n = 4", ["n == 4", "n % 4 == 0"], ["n == 4"]),
        ("n = 4", ["n == 4", "n < 5"], ["n == 4"]),
    ],
)
def test_what_follows_from_others_is_not_recorded(hypers: str, said: list[str], recorded: list[str] | None) -> None:
    lines = "\n ".join(f"assert {condition}" for condition in said)
    assert of(spec(hypers, f"{lines}\n return x")) == (said if recorded is None else recorded)


@pytest.mark.parametrize(("inner", "said"), [("n * k", False), ("n * k + 4", True)])
def test_what_holds_of_a_named_product_is_not_asserted(inner: str, said: bool) -> None:
    body = f"let inner = {inner}  return x -> linear(inner) -> split_heads(n) -> merge_heads"
    block = f"block cut(n, k)(x: [batch, time, width]) -> [...] {{ {body} }}"
    model = archdsl.load(text=f"{block}\n{spec('n = 2, k = 4', 'return x -> cut(n, k)')}")
    assert ("must be a multiple of" in emit(model)) == said


@pytest.mark.parametrize(("of_keys", "asserted"), [("n", False), ("k", True)])
def test_what_holds_for_all_numbers_is_not_asserted(of_keys: str, asserted: bool) -> None:
    """`n % n == 0`, where a block is given one number twice."""
    source = emit(
        archdsl.load(
            text=f"""
block layer(a, b) {{ attention: gqa(heads: a, kv_heads: b)  mask: full  ffn: mlp(hidden: 16) }}
model m(n = 4, k = 2)(x: [batch, time, 16]) {{ for l in 2 * layer(a: n, b: {of_keys}) {{ x = x -> l }}  return x }}"""
        )
    )
    assert ("must be a multiple of kv_heads" in source) == asserted


def test_a_refused_config_says_what_holds() -> None:
    """In a sentence; a field that changes nothing any more is refused as well."""
    text = spec("n = 0, k = 4", "return x -> dropout(n) -> split_heads(k) -> merge_heads")
    made = config(text)
    assert made() == made(n=0, k=4) != made(k=8)
    with pytest.raises(AssertionError, match="`dropout` was compiled for n == 0"):
        made(n=0.1)
    with pytest.raises(AssertionError, match="the width must be a multiple of heads"):
        made(k=3)
    with pytest.raises(AssertionError, match="k must be a whole number >= 1"):
        made(k=0)


def test_long_conditions_are_asserted() -> None:
    """What is longer than a line refuses the same."""
    names = [f"a_rather_long_name_{i}" for i in range(6)]
    lines = [f"x = x -> linear({name})" for name in names]
    made = config(spec(", ".join(f"{name} = 8" for name in names), "\n ".join([*lines, "return x"])))
    with pytest.raises(AssertionError, match="whole number >= 1"):
        made(**{names[3]: 0})


def test_sizes_are_whole_numbers() -> None:
    """24.0 is 24; what is no whole number is refused by its name. Other numbers may be any, as with `--set`."""
    body = "x = x -> linear(n) -> linear(8)\n assert k >= 1\n return x * k * j"
    made = config(spec("n = 24, k = 2, j = 2", body))
    assert made(k=2.5, j=-0.5).k == 2.5
    assert type(made(n=24.0).n) is int
    assert made(n=24.0).n == 24
    for wrong in (24.5, "24", None, 0, -3, float("inf"), float("nan")):
        with pytest.raises(AssertionError, match="n must be a whole number >= 1"):
            made(n=wrong)
    with pytest.raises(AssertionError, match="k must be at least 1"):
        made(k=0.5)


def test_true_false_words_and_none_are_fields() -> None:
    """The graph is built for them: another value is refused by its name, and `--set` takes it."""
    choices = "tied: bool = false, how: word = pre, most: int = none"
    text = spec(f"n = 3, {choices}", "return if tied then x -> linear(n) -> linear(8) else x")
    made = config(text)
    assert (made().tied, made().how, made().most) == (False, "pre", None)
    for wrong, said in (
        ({"tied": True}, "tied == False"),
        ({"how": "post"}, "how == pre"),
        ({"most": 3}, "most == None"),
    ):
        with pytest.raises(AssertionError, match=f"the graph depends on {said}"):
            made(**wrong)
    assert total(archdsl.load(text=text, set={"tied": "true"})) > total(archdsl.load(text=text)) == 0


EXPRESSIONS = """
n; n * k; n * k / 2; n * 3 / 2; n / k; -n; -n // k + 9; n - k; ceil(n / k); ceil(n * 0.75); n // k * k; n % k + 1;
ratio * n; gain * n; gain * k * n; ceil(gain * n); floor(gain * n); gain * n // k; n ** 2 / k; maximum(n, k);
minimum(n, 3 * k) / k; abs(n - 2 * k) + 1; n + k / 2; 2 * n // 3 * k; if tied then n else k; n / 0.5; n / 4 * 2;
2 * sqrt(n * n); k * (n / 8 + 0.5) + 1; n / k * 4 / n; n * 3 / 2 + n / 2; n / 4 / 0.5; 2 ** (n / k); n - n / 2 / k
"""
SPOTS = {
    "a size": "return x -> linear({e}) as a -> linear(8) as b",
    "a count": "for i in {e} {{ x = x -> linear(8) }}\n return x",
    "a loop of blocks": "for i in k {{ x = x -> scaled({e} * (i + 1) / k) }}\n return x",
    "a loop of sizes": "for i in 2 {{ let t = {e} * (i + 1)\n x = x -> wide(t) }}\n return x",
    "a factor": "return (x -> linear(8)) * ({e})",
}
CHANGES = (
    {"n": 12},
    {"n": 5},
    {"n": -4},
    {"n": 8.5},
    {"k": 2},
    {"k": 8.0},
    {"gain": 1.5},
    {"ratio": 2.5},
    {"tied": True},
)


@pytest.mark.slow
@pytest.mark.parametrize("spot", SPOTS)
def test_a_config_builds_what_set_counts_or_names_the_field(spot: str) -> None:
    built = 0
    for e in EXPRESSIONS.split(";"):
        text = f"""
        block scaled(s: number)(x: [batch, time, width]) -> [batch, time, width] {{ return (x -> linear(width)) * s }}
        block wide(s)(x: [batch, time, width]) -> [batch, time, width] {{
          return x -> linear(s) as a -> linear(width) as b
        }}
        model m(n = 8, k = 4, gain = 2.5, ratio = 2, tied: bool = false)(x: [batch, time, 8]) {{
          {SPOTS[spot].format(e=f"({e.strip()})")}
        }}"""
        try:
            made: Any = load_source(emit(archdsl.load(text=text, allow_noncausal=True)))
        except ArchError:
            assert e.strip() == "-n"  # which is no size
            continue
        for change in CHANGES:
            ((field, value),) = change.items()
            if field not in re.findall(r"\w+", e):
                continue
            try:
                with torch.device("meta"):
                    module = made(sys.modules[made.__module__].Config(**change))
            except AssertionError as problem:
                refusal = str(problem).partition(": Config(")[0]
            else:
                meant = archdsl.load(text=text, set={field: str(value).lower()}, allow_noncausal=True)
                shapes = {name: tuple(w.shape) for name, w in module.state_dict().items()}
                assert shapes == {w.path: w.shape for w in weights(meant)}, (e, change)
                built += 1
                continue
            assert field in re.findall(r"\w+", refusal), (e, change, refusal)
    assert built >= 72


def test_sizes_and_real_numbers_of_a_class_are_divided_as_what_they_are() -> None:
    """`n / 2` of one argument is whole, that of another is not, whichever of them stands first."""
    text = """
block f(n: size, s: number)(x: [batch, time, width]) -> [batch, time, width] {
  return x + (x -> linear(n) -> linear(width)) * s
}
block g(n)(x: [batch, time, 8]) -> [...] { return x -> f(n / 2, s: n / 3) }
model m(n = 4, k = 8)(x: [batch, time, 8]) { return x -> g(n) -> g(k) -> f(k / 2, s: n / k) }"""
    model = archdsl.load(text=text)
    assert "F_(n=n // 2, s=n / 3, width=8)" in emit(model)
    made: Any = load_source(emit(model))
    module = made(sys.modules[made.__module__].Config(n=10, k=4))
    meant = archdsl.to_torch(text=text, set={"n": 10, "k": 4})
    module.load_state_dict(meant.state_dict())
    x = torch.randn(2, 5, 8)
    assert torch.equal(module(x), meant(x))


@pytest.mark.parametrize(
    ("size", "shown"),
    [("n * 0.25", "n // 4"), ("0.5 * n", "n // 2"), ("1.5 * n", "3 * n // 2"), ("n / k * 0.5", "n // k // 2")],
)
def test_a_part_of_a_size_is_a_quotient_of_integers(size: str, shown: str) -> None:
    """It is never rounded: a Config that makes a fraction of it is refused."""
    text = f"model m(n = 8, k = 2)(x: [batch, time, 8]) {{ return x -> linear({size}) -> linear(8) }}"
    source = emit(archdsl.load(text=text))
    assert f"nn.Linear(8, {shown})" in source.replace("config.", "")
    made: Any = load_source(source)
    own = sys.modules[made.__module__].Config
    x = torch.randn(2, 5, 8)
    module, meant = made(own(n=12)), archdsl.to_torch(text=text, set={"n": 12})
    module.load_state_dict(meant.state_dict())
    assert torch.equal(module(x), meant(x))
    with pytest.raises(AssertionError, match="n must be a multiple of"):
        own(n=7)


@pytest.mark.parametrize(("size", "shown"), [("2 * (4 / 2)", "4"), ("8 * 0.5", "4")])
def test_a_quotient_of_numbers_is_worked_out(size: str, shown: str) -> None:
    source = emit(archdsl.load(text=f"model m(x: [batch, time, 4]) {{ return x * ones(batch, 1, {size}) }}"))
    assert f"torch.ones(x.size(0), 1, {shown}, " in source


def test_what_is_made_of_a_number_that_a_class_has_is_worked_out() -> None:
    text = """model m(x: [batch, time, 16]) { return x -> mha(heads: 2, mask: causal, normalize: best(4)) }
inline block best(k: size)(s: [batch, heads, time, source]) -> [batch, heads, time, source] {
  return softmax(s) * (s[..., k - 1:k] + s[..., k // 2:k // 2 + 1])
}"""
    source = emit(archdsl.load(text=text))
    assert "[..., 3:4]" in source
    assert "[..., 2:3]" in source


@pytest.mark.parametrize("demanded", [True, False])
@pytest.mark.parametrize("size", ["n / k * (n / k) + 1", "(2 * (n / k) - 1) ** 2", "n / k * k", "abs(n / k - 9)"])
def test_a_quotient_that_is_demanded_to_be_whole_is_one_of_integers(size: str, demanded: bool) -> None:
    """Whatever is made of it: nothing is rounded then. What demands it is computed as it was."""
    demand = "assert n % k == 0" if demanded else "assert n % 2 == 0"
    text = f"""model m(n = 8, k = 2)(x: [batch, time, 8]) {{
  {demand}
  return (x -> linear({size}) -> linear(8)) * sqrt(n / k) }}"""
    source = emit(archdsl.load(text=text))
    assert "n // self.config.k" in source or not demanded
    assert "round(" not in source or not demanded
    made: Any = load_source(source)
    own = sys.modules[made.__module__].Config
    for n, k in ((12, 2), (6, 2), (12, 3)):
        module, meant = made(own(n=n, k=k)), archdsl.to_torch(text=text, set={"n": n, "k": k})
        module.load_state_dict(meant.state_dict())
        x = torch.randn(2, 5, 8)
        torch.testing.assert_close(module(x), meant(x))
    if demanded:
        with pytest.raises(AssertionError, match=r"multiple|n % k == 0"):
            made(own(n=9, k=2))


@pytest.mark.parametrize("said", [5, 75, 90, 104, 119])
@pytest.mark.parametrize("terms", [1, 2, 4])
@pytest.mark.parametrize("test", ["{} != 3", "({}) % 50 != 49"])
def test_long_asserts_are_laid_out_as_ruff_does(test: str, terms: int, said: int) -> None:
    """Those of the Config and those of a class."""
    total = " + ".join(["a_number_that_is_long * half"] * terms)
    text = f"""block f(a_number_that_is_long: int)(x: [batch, time, width]) -> [batch, time, width] {{
  let half = floor(a_number_that_is_long / 2) + 1
  assert {test.format(total)}, "{"so " * (said // 3)}"
  return x -> linear(half) -> linear(width)
}}
model m(k = 3)(x: [batch, time, 8]) -> [batch, time, 8] {{ y = x -> f(k)  return y -> f(2 * k) }}"""
    source = emit(archdsl.load(text=text))
    assert "assert " in source
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--no-cache", "--config", "line-length = 120", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    assert done.stdout == source


def test_narrow_heads_behind_a_window() -> None:
    """FlexAttention wants 16 channels, on CUDA alone."""
    model = archdsl.load(text=spec("n = 16", WINDOWED))
    module: Any = load_source(emit(model))
    made = module(sys.modules[module.__module__].Config(n=4))
    assert made(torch.randn(2, 5, 8)).shape == (2, 5, 8)


def test_floats_are_compared_as_python_computes_them() -> None:
    """3 * 0.1 is 0.30000000000000004 there, and 0.3 here."""
    text = spec("n = 0.1", "let rate = 3 * n\n return if rate == 0.3 then x else -x")
    made = config(text)
    made()
    with pytest.raises(AssertionError, match="`rate"):
        made(n=0.2)
    block = "block times(s)(x: [batch, time, width]) -> [batch, time, width] { return x * s }\n"
    made = config(block + spec("n = 8", "return x -> times(log(n) / log(2))"))  # whose remainder is not 0
    assert made().n == made(n=8).n == 8


@pytest.mark.parametrize("condition", ["3 * a == b", "b == 3 * a", "a == b / 3", "b / a == 3"])
def test_an_equality_of_fractions_holds_within_the_last_bits(condition: str) -> None:
    """Whichever side is a name alone: Python's 3 * 0.1 is not 0.3."""
    made = config(spec("a = 0.1, b = 0.3", f"assert {condition}\n return x"))
    assert made(a=0.2, b=0.6).b == 0.6
    with pytest.raises(AssertionError, match=r"\ba\b"):
        made(a=0.2)
    for exact in ("a == b", "a == 0.5"):
        assert of(spec("a = 0.5, b = 0.5", f"assert {exact}\n return x")) == [exact]


@pytest.mark.parametrize(
    ("number", "wrong"),
    [("log(h)", 0), ("sqrt(h)", -1), ("h ** 0.5", -1), ("h ** -0.5", 0), ("h ** -1", 0), ("1 / h", 0)],
)
def test_numbers_that_a_function_does_not_take_are_refused(number: str, wrong: int) -> None:
    made = config(spec("h = 2", f"return x * ({number})"))
    assert made(h=1).h == 1
    with pytest.raises(AssertionError, match=r"\bh\b"):
        made(h=wrong)


ZOO = ("gpt2:gpt2", "mixtral:mixtral_8x7b", "mamba:mamba_130m", "tagger:bilstm_tagger")


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_other_numbers_for_the_zoo(name: str) -> None:
    """All of it: python -m tests.random_specs.configs --zoo"""
    load, tally = configs.of_zoo(name), configs.Tally()
    configs.graphs(load, tally)
    assert tally.needless == []
    assert tally.counts["the same graph, taken"] >= 20
    assert configs.modules(load, tally) == []
    assert tally.counts["module: the same"] >= 20


DECODERS = ("t5:t5_small", "mamba:mamba_130m", "gemma2:gemma2_2b", "llama4:llama4_scout", "deepseek_v3:deepseek_v3")


@pytest.mark.slow
@pytest.mark.parametrize("name", sizes.sample() if sizes.every else DECODERS)
def test_another_config_of_a_decoder(name: str) -> None:
    """One emitted file takes steps with other numbers as the spec does with these."""
    tally = configs.Tally()
    wrong = configs.decoders(configs.of_zoo(name), tally, random.Random(name), 3)
    assert wrong == []
    assert tally.counts["decoder: compared"] == 3 or "decoder: none" in tally.counts


@pytest.mark.slow
def test_other_numbers_for_random_specs() -> None:
    """Many more: python -m tests.random_specs.configs --count 1000 --seed 1"""
    tally = configs.Tally()
    for text in configs.drawn(16, 7):
        configs.graphs(configs.of_text(text), tally)
    assert tally.counts["the same graph, taken"] > 150
    assert len(tally.needless) < 10


def test_a_deviation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: without the conditions graphs differ."""
    load = configs.of_text(spec("n = 8", "if n == 8 { x = x -> linear(8) }\n return x"))
    configs.graphs(load, configs.Tally())
    monkeypatch.setattr(configs, "conditions", lambda model: ())
    with pytest.raises(configs.DishonestError, match="graph"):
        configs.graphs(load, configs.Tally())


def test_lifted_specs_are_the_same_models() -> None:
    """Numbers that became hyper-parameters are worth what they were."""
    draw = random.Random(1)
    body = "vocab: 11\n  context: 16\n  width: width\n  blocks: 2 * b\n  head: lm"
    plain = f"block b {{ ffn: mlp(hidden: 16) }}\n\nmodel m(width = 8) {{\n  {body}\n}}"
    lifted = configs.lifted(plain, draw, 1)
    assert "b(n0)" in lifted
    assert "b(n0: n0)" in lifted
    counts = [total(archdsl.load(text=t)) for t in (plain, lifted)]
    assert counts[0] == counts[1]


def test_what_is_refused_when_compiled_is_refused_then() -> None:
    with pytest.raises(ArchError, match="E0401"):
        archdsl.load(text=spec("n = 3", "return x -> split_heads(n)"))
