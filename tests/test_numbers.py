"""Numbers that a spec gives: whole ones where sizes are wanted, within the range of their option, one for one name."""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from archdsl import api
from archdsl.diagnostics import ArchError, Diagnostic
from archdsl.frontend.headers import hypers_of
from archdsl.frontend.modules import find_in_library, find_primitive
from archdsl.frontend.schemes import SCALINGS, SCHEMES
from archdsl.ir.dims import Num, Poly, is_size_like
from archdsl.ir.graph import CallNode, Graph, Model, OpNode, subgraphs
from archdsl.ir.ranges import RANGES
from archdsl.ir.static import BlockValue, Declared, ListValue
from archdsl.ops import registry
from archdsl.resources import library_index
from archdsl.syntax import ast

WIDE = "model m(width = 8, k = 2)(x: [batch, time, width]) {{ {} }}"


def refused(text: str, **set: str) -> Diagnostic:
    """The only thing that is said against a spec."""
    with pytest.raises(ArchError) as caught:
        api.load(text=text, set=set)
    (problem,) = caught.value.diagnostics
    assert problem.span is not None
    return problem


# --- ranges -----------------------------------------------------------------------------------------------------------

BAD = {
    "positive": ("0", "-1", "-1e-5", "k - 2"),
    "nonnegative": ("-1", "-0.5", "k - 3"),
    "nonzero": ("0", "0.0", "k - 2"),
    "rate": ("1", "-0.1", "k", "time"),
    "share": ("1.5", "-0.1", "k"),
}
FINE = {
    "positive": ("1e-5", "k", "time"),
    "nonnegative": ("0", "3", "time"),
    "nonzero": ("-1", "0.5", "time"),
    "rate": ("0", "0.99"),
    "share": ("0", "1", "0.1"),
}
MEANT = {
    "eps": "positive",
    "theta": "positive",
    "softcap": "positive",
    "capacity": "positive",
    "dropout": "rate",
    "rate": "rate",
    "momentum": "share",
    "fraction": "share",
    "scale": "nonzero",
    "balance": "nonnegative",
    "z_loss": "nonnegative",
}
"""What an option of a name is, wherever it stands."""


def options() -> Iterator[tuple[str, ast.Hyper]]:
    """Every option of every primitive and of every block of the library."""
    for name in sorted(registry.names()):
        op = find_primitive(name)  # None for what the compiler alone puts into graphs
        yield from ((name, h) for h in (op.header.hypers or () if op is not None else ()))
    for name in sorted(library_index()):
        found = find_in_library(name)
        if found is not None and isinstance(found[1], ast.BlockDecl):
            yield from ((name, h) for h in hypers_of(BlockValue(Declared(found[1], found[0]), {})).values())


RANGED = [pytest.param(n, h, id=f"{n}-{h.name}") for n, h in options() if h.kind in RANGES]


def test_options_of_one_name_are_of_one_kind() -> None:
    wrong = [(n, h.name, h.kind) for n, h in options() if h.name in MEANT and h.kind != MEANT[h.name]]
    assert wrong == []
    assert len(RANGED) > 40


@pytest.mark.parametrize(("name", "option"), RANGED)
def test_a_number_out_of_range(name: str, option: ast.Hyper) -> None:
    """Refused where it is written, whoever takes it."""

    def spec(value: str) -> str:
        if name == "sinusoid":  # of sizes alone, so it is applied where it is said
            return WIDE.format(f"return x + sinusoid(time, width, {option.name}: {value})")
        return WIDE.format(f"let f = {name}({option.name}: {value}) return x")

    assert option.kind is not None
    for value in BAD[option.kind]:
        problem = refused(spec(value))
        assert problem.code == "E0204"
        assert f"`{option.name}` of `{name}` must be {RANGES[option.kind].words}" in problem.message
        assert problem.span is not None
        assert problem.span.text == value
    for value in FINE[option.kind]:
        api.load(text=spec(value))


LAWS = [(rule, key) for rules in (SCHEMES, SCALINGS) for rule, fields in rules.items() for key in fields]


@pytest.mark.parametrize(("rule", "key"), LAWS, ids=[f"{r}-{k}" for r, k in LAWS])
def test_a_law_with_an_impossible_number(rule: str, key: str) -> None:
    fields = (SCHEMES | SCALINGS)[rule]
    kind, many = fields[key].kind, fields[key].many
    needed = {k: "[1, 2]" if f.many else "8" for k, f in fields.items() if f.default is None and f.needed}

    def spec(value: str) -> str:
        given = {**needed, key: f"[1, {value}]" if many else value}
        law = f"{rule}({', '.join(f'{k}: {v}' for k, v in given.items())})"
        use = f"linear(width, init: {law})" if rule in SCHEMES else f"rope(scaling: {law})"
        return WIDE.format(f"let f = {use} return x")

    for value in BAD.get(kind, ()) if kind != "size" else ("0", "-1", "2.5"):
        assert refused(spec(value)).code in (("E0203", "E0401") if kind == "size" else ("E0204", "E0402"))
    assert refused(spec("causal")).code == "E0203"
    api.load(text=spec("2"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("rope(scaling: llama3(factor: 8, original: 16, low: 5))", "E0204"),
        ("rope(scaling: yarn(factor: 8, original: 16, beta_fast: 1))", "E0204"),
        ("rope(scaling: longrope(short: [1, 1], long: [1, 1], original: 1, factor: 2))", "E0204"),
        ("rope(scaling: longrope(short: 1, long: [1, 1], original: 4))", "E0203"),
        ("linear(3, init: normal([1, 2]))", "E0203"),
        ("linear(3, init: normal(1, std: 2))", "E0205"),
        ("linear(3, init: uniform(time))", "E0402"),
    ],
)
def test_numbers_of_a_law_that_do_not_fit(text: str, code: str) -> None:
    assert refused(WIDE.format(f"let f = {text} return x")).code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("return x -> mha(heads: 2, position: rope(theta: 1, scaling: yarn(factor: 8, original: 4)))", "E0204"),
        ("return x -> mlp(hidden: 4, dropout: 1.5)", "E0204"),
        ("param w: [width] = 2 * normal(-1) return x * w", "E0204"),
        ("buffer w: [width] = uniform(-1) return x * w", "E0204"),
    ],
)
def test_uses_out_of_range(text: str, code: str) -> None:
    assert refused(WIDE.format(text)).code == code


SLOTS = """block layer {{ attention: mha(heads: 2)  mask: causal  ffn: mlp(hidden: 16)  {layer} }}
model m({hypers}) {{
  {first}vocab: 64  context: {context}  width: {width}  {slot}
  blocks: 2 * layer
  head: {head}
}}"""


def model(**parts: str) -> str:
    usual = {"layer": "", "hypers": "", "first": "", "context": "16", "width": "16", "slot": "", "head": "lm"}
    return SLOTS.format(**usual | parts)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"layer": "dropout: 1"}, "E0204"),
        ({"layer": "norm: rmsnorm(eps: 0)"}, "E0204"),
        ({"slot": "dropout: -0.1"}, "E0204"),
        ({"slot": "init: normal(-1)"}, "E0204"),
        ({"slot": "embedding: words(scale: 0)"}, "E0204"),
        ({"head": "lm(softcap: 0)"}, "E0204"),
        ({"head": "lm(scale: 0)"}, "E0204"),
        ({"hypers": "p = 1.5", "slot": "dropout: p"}, "E0204"),
        ({"slot": "position: sinusoidal(theta: -1)"}, "E0204"),
        ({"slot": "position: learned(length: 15)"}, "E0401"),
        ({"context": "0"}, "E0203"),
        ({"context": "16.5"}, "E0401"),
        ({"width": "3.25e1"}, "E0401"),
        ({"width": "15.999999"}, "E0401"),
    ],
)
def test_slots_out_of_range(parts: dict[str, str], code: str) -> None:
    assert refused(model(**parts)).code == code


def test_a_kind_that_there_is_not() -> None:
    problem = refused("block f(eps: positiv)(x: [batch, 8]) { return x }\nmodel m(x: [batch, 8]) { return f(1)(x) }")
    assert problem.code == "E0203"
    assert problem.help == "did you mean `positive`?"


# --- the longest sequence ---------------------------------------------------------------------------------------------

POSITION = """block place({hypers})(x: [batch, time, width]) -> [batch, time, width] {{ {body} }}
block layer {{ attention: mha(heads: 2)  mask: causal }}
model m {{ vocab: 64  context: 16  width: 16  blocks: [place, layer]  head: lm }}"""


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        ("return x + (indices(time) -> embedding(rows, width))", 16),
        ("return x + ((indices(time) + 3) -> embedding(rows, width))", 19),
        ("return x + ((indices(time) // 3) -> embedding(rows, width))", 6),
        ("return x + (((2 + indices(time) // 3) - 1) -> embedding(rows, width))", 7),
        ("return x + (minimum(indices(time), 9) -> embedding(rows, width))", 10),
        ("param table: [rows, width] = normal(0.02) return x + table[indices(time)]", 16),
        ('assert time <= rows, "no longer" return x', 16),
        ('assert 2 * time < rows, "no longer" return x', 33),
        ("for i in 2 { x = x + (indices(time) -> embedding(rows, width)) } return x", 16),
    ],
)
def test_a_position_table_is_as_long_as_the_context(body: str, rows: int) -> None:
    api.load(text=POSITION.format(hypers=f"rows: size = {rows}", body=body))
    problem = refused(POSITION.format(hypers=f"rows: size = {rows - 1}", body=body))
    assert problem.code == "E0401"
    assert [label.span.text for label in problem.labels] == ["16"]


def test_the_context_that_is_set_counts() -> None:
    text = model(hypers="", slot="position: learned(length: 32)")
    api.load(text=text, set={"context": 32})
    assert refused(text, context="33").code == "E0401"


# --- whole numbers ----------------------------------------------------------------------------------------------------


def sizes(built: Model) -> Iterator[Num]:
    """Every number that a back end takes for a whole one."""
    for field in built.config:
        if field.name in ("vocab", "context", "width"):
            yield field.value
    yield from _sizes(built.block.graph)


def _sizes(graph: Graph) -> Iterator[Num]:
    for node in graph.nodes:
        for inner in subgraphs(node):
            yield from _sizes(inner)
        if isinstance(node, CallNode):
            yield from _sizes(node.block.graph)
        for v in node.outputs:
            yield from v.shape
        if isinstance(node, OpNode):
            for w in node.weights:
                yield from w.shape
            for h in node.op.header.hypers or ():
                if h.kind in ("size", "int", "sizes", "ints"):
                    yield from _numbers(node.options[h.name])


def _numbers(value: Any) -> Iterator[Num]:
    if isinstance(value, Num):
        yield value
    elif isinstance(value, tuple | ListValue):
        for item in value if isinstance(value, tuple) else value.items:
            yield from _numbers(item)


WHOLE = [
    "return x -> linear({})",
    "let n = {} return x -> linear(n)",
    "return x -> mlp(hidden: {})",
    "return x -> linear(1 + {}) -> linear(width)",
    "for i in {} {{ x = x -> linear(width) }} return x",
    "let l = {} * linear(width) for f in l {{ x = f(x) }} return x",
    "return x -> pad({}) -> every({})",
    "return x -> softmax(axis: {} - 5) -> sum(axis: [0, {} - 5])",
    "return x -> conv1d({}, kernel: {})",
    "param w: [{}, width] = zeros return x * sum(w, axis: 0)",
    "y = ones({}, 1) return x * sum(y, axis: [0, 1])",
    "return x -> tile({})",
    "return x -> shift(by: {})",
    "return x[..., : {}]",
    "return x[..., {}]",
    "let l = [1, 2, 3, 4, 5] return x * l[{}]",
    "return x -> mha(heads: {} - 2, mask: window({}))",
    'return x -> rearrange("b t (c d) -> b t d c", c: {} - 2)',
    "return x -> unflatten(-1, {}, {} - 2)",
    "return x -> split({}, 8 - {})",
]


@pytest.mark.parametrize("use", WHOLE)
@pytest.mark.parametrize("four", ["4.0", "0.4e1", "40e-1", "0.5 * width", "width / 2.0", "sqrt(2.0 * width)", "f"])
def test_whole_floats_are_sizes(use: str, four: str) -> None:
    text = f"model m(width = 8.0, f = 4.0)(x: [batch, time, width]) {{ {use.format(*[four] * 2)} }}"
    for built in (api.load(text=text), api.load(text=text, set={"f": 4.0, "width": "0.8e1"})):
        for n in sizes(built):
            assert is_size_like(n.value), f"{n.value!r}, spelled {n.expr}"


@pytest.mark.parametrize("use", WHOLE)
@pytest.mark.parametrize(
    "value", ["4.5", "0.3 * width", "sqrt(width)", "f / 3", "4 * exp(0 * width)", "f ** log(exp(1))"]
)
def test_fractions_are_refused(use: str, value: str) -> None:
    text = f"model m(width = 8, f = 4)(x: [batch, time, width]) {{ {use.format(*[value] * 2)} }}"
    assert refused(text).code in ("E0401", "E0203", "E0204")


@pytest.mark.parametrize(
    "use", [u for u in WHOLE if not re.search(r"linear|for|let|param|mlp|softmax|conv|shift|mha", u)]
)
@pytest.mark.parametrize("value", ["sqrt(time)", "time ** 0.5", "minimum(time, 1.5)", "exp(time)", "1.5 / time"])
def test_sizes_that_need_not_be_whole_when_the_model_runs(use: str, value: str) -> None:
    problem = refused(WIDE.format(use.format(*[value] * 2)))
    assert problem.code == "E0401"
    assert "must be a whole number" in problem.message


@pytest.mark.parametrize(
    ("size", "condition"),
    [
        ("time / 2", ("time", 2)),
        ("time / k", ("time", 2)),
        ("time / k / 3", ("time", 6)),
        ("0.5 * time", ("time", 2)),
        ("2 * time / 3", ("2 * time", 3)),
        ("time * 0.3", ("3 * time", 10)),
    ],
)
def test_a_quotient_of_a_run_time_size_is_a_condition(size: str, condition: tuple[str, int]) -> None:
    built = api.load(text=WIDE.format(f"return x * sum(ones({size}, 1), axis: [0, 1])"))
    found = [n for n in built.block.graph.nodes if type(n).__name__ == "CheckNode"]
    assert [(n.op, str(n.left.value), n.right.value) for n in found] == [("%", *condition)]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("topk(minimum(k, time), axis: 1)(x)", []),
        ("(x[:, :minimum(k, time)])[:, -1:]", []),
        ('shift(rearrange(x, "b (t n) d -> b t (n d)", n: 3))', ["time % 3"]),
        ('rearrange(rearrange(x, "b (t n) d -> (b t) n d", n: 3), "(b t) n d -> b (t n) d", b: batch)', ["time % 3"]),
        ('topk(minimum(k, time / 3), axis: 1)(rearrange(x, "b (t n) d -> b t (n d)", n: 3))', ["time % 3"]),
        ("topk(minimum(k + 1, time), axis: 1)(x)", []),
        ("topk(k, axis: 1)(x)", ["2 <= time"]),
        ("x[:, :minimum(k, 2 * time)]", ["min(2, 2 * time) <= time"]),
    ],
)
def test_what_surely_holds_is_no_condition(body: str, left: list[str]) -> None:
    """Sizes are 1 at least, and those of axes are whole once it is said that they are."""
    many = "topk" in body
    built = api.load(text=WIDE.format(f"y{', at' * many} = {body} return {'y + at' if many else 'y'}"))
    found = [n for n in built.block.graph.nodes if type(n).__name__ == "CheckNode"]
    assert [f"{n.left.value} {n.op} {n.right.value}" for n in found] == left


@pytest.mark.parametrize("value", [64.0, "64.0", "6.4e1", 64, "64"])
def test_settings_are_whole(value: Any) -> None:
    built = api.load(text=model(), set={"width": value, "vocab": value})
    assert {f.name: f.value.value for f in built.config} == {"vocab": 64, "context": 16, "width": 64}
    assert all(type(f.value.value) is int for f in built.config)


def test_a_fraction_stays_exact() -> None:
    built = api.load(text="model m(width = 12)(x: [batch, time, width]) { return x * (3 * width / 8) }")
    (times,) = (n for n in built.block.graph.nodes if isinstance(n, OpNode))
    number = times.inputs[1]
    assert isinstance(number, Num)
    assert number.value == Fraction(9, 2)
    assert not isinstance(number.value, Poly)


# --- one name, one number ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", ["vocab", "context", "width"])
@pytest.mark.parametrize("first", ["", "let {slot} = 2 * n\n", "let {slot} = 16\n"])
def test_a_slot_beside_a_hyper_parameter_of_its_name(slot: str, first: str) -> None:
    """One value, or an error that shows both."""
    slots = {"vocab": "64", "context": "16", "width": "16"}

    def spec(value: str) -> str:
        body = "".join(f"{k}: {value if k == slot else v}\n" for k, v in slots.items())
        hypers = "n = 8" if first else f"n = 8, {slot} = 16"
        return (
            "block layer { attention: mha(heads: 2)  mask: causal }\n"
            f"model m({hypers}) {{ {first.format(slot=slot)}{body}blocks: layer  head: lm }}"
        )

    assert {f.name: f.value.value for f in api.load(text=spec(slot)).config}.get(slot, 16) == 16
    for value in ("8", "2 * n + 1", "n"):
        problem = refused(spec(value))
        assert problem.code == "E0202"
        assert problem.span is not None
        assert problem.span.text == value
        assert len(problem.labels) == 1
    if not first:  # set together, they stay one
        built = api.load(text=spec(slot), set={slot: 32})
        assert {f.name: f.value.value for f in built.config}[slot] == 32


def test_a_slot_that_a_let_computes_is_not_set() -> None:
    text = model(hypers="n = 8", first="let width = 2 * n\n", width="width")
    problem = refused(text, width="32")
    assert problem.code == "E0202"
    assert problem.span is not None
    assert problem.span.source.name == "--set"


@pytest.mark.parametrize("written", ["3", "1_5"])
def test_a_number_is_shown_as_it_is_written(written: str) -> None:
    found = refused(f"model m(x: [batch, time, 8]) {{ return x -> split_heads({written}) -> merge_heads }}")
    assert found.message.endswith(f": 8 is not a multiple of {written}")
    given = refused(f"model m(n = {written})(x: [batch, time, 8]) {{ return x -> split_heads(n) -> merge_heads }}")
    assert given.message.endswith(f": 8 is not a multiple of n = {int(written)}")
