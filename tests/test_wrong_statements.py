"""What is wrong in a statement, a call or a declaration: the code and the words that are said of it; and what is right,
though it looks like that: its numbers."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch_emit.emitted import module, names_of, spec

from archdsl.api import check, torch_source
from archdsl.diagnostics import Diagnostic
from archdsl.ir.conditions import conditions


def said(text: str) -> list[tuple[str, str, str]]:
    """Return code, message and help of everything that is said against a spec."""
    return [(d.code, d.message, d.help) for d in check(text=text)]


def the_error(text: str) -> Diagnostic:
    """Return the one error of a spec."""
    (found,) = [d for d in check(text=text) if d.code.startswith("E")]
    return found


# --- experts ----------------------------------------------------------------------------------------------------------

MOE = "{} model m(x: [batch, time, 8]) {{ return x -> moe(experts: 5, top_k: 2, expert: {}) }}"
EXPERTS = {
    "a primitive with weights": ("", "linear(8)", lambda x, w, b: functional.linear(x, w[0], b[0])),
    "a primitive without": ("", "gelu", lambda x, w, b: functional.gelu(x)),
    "an inline block": (
        "inline block ex(h: size)(x: [..., width]) { return x -> linear(h) -> relu -> linear(width) }",
        "ex(12)",
        lambda x, w, b: functional.linear(functional.linear(x, w[0], b[0]).relu(), w[1], b[1]),
    ),
    "a block": (
        "block ex(h: size)(x: [..., width]) { return x -> linear(h) -> relu -> linear(width) }",
        "ex(12)",
        lambda x, w, b: functional.linear(functional.linear(x, w[0], b[0]).relu(), w[1], b[1]),
    ),
}


@pytest.mark.parametrize("kind", EXPERTS)
def test_an_expert_is_any_block(kind: str) -> None:
    """Each token by its two best experts, weighted by their shares: computed here token by token."""
    declared, expert, answer = EXPERTS[kind]
    torch.manual_seed(0)
    made: Any = module(spec(MOE.format(declared, expert)))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    of_experts = [p for name, p in made.named_parameters() if ".experts." in name]
    matrices, biases = ([p for p in of_experts if p.dim() == n] for n in (3, 2))
    x = torch.randn(2, 3, 8)
    scores = functional.linear(x, made.moe.router.gate.weight).softmax(-1)
    wanted = torch.zeros_like(x)
    for token in [(i, j) for i in range(2) for j in range(3)]:
        best, chosen = scores[token].topk(2)
        for share, e in zip(best / best.sum(), chosen, strict=True):
            wanted[token] += share * answer(x[token], [w[e] for w in matrices], [b[e] for b in biases])
    torch.testing.assert_close(made(x), wanted)


@pytest.mark.parametrize(
    ("declared", "expert", "name"),
    [
        ("", "linear(4)", "linear"),
        ("inline block ex(x: [..., width]) { return x -> linear(4) }", "ex", "ex"),
        ("block ex(x: [..., width]) -> [..., 4] { return x -> linear(4) }", "ex", "ex"),
    ],
)
def test_an_expert_of_another_width_is_called_what_the_user_calls_it(declared: str, expert: str, name: str) -> None:
    ((code, message, _),) = said(MOE.format(declared, expert))
    assert code == "E0301"
    assert message == f"an expert gives back the shape it gets, [rows, 8], and `{name}` gives [rows, 4]"


# --- calls ------------------------------------------------------------------------------------------------------------


def body(statements: str, before: str = "", hypers: str = "") -> str:
    """A model of [batch, time, 8] whose body these statements are."""
    return f"{before}\nmodel m{hypers}(x: [batch, time, 8]) {{ {statements} }}"


def masked(mask: str) -> str:
    return body(f"return x -> mha(heads: 1, mask: {mask})")


def drawn(scheme: str) -> str:
    return body("return x -> f", f"block f(x: [..., 8]) {{ param w: [8] = {scheme} return x * w }}")


OPTIONAL = "block f(x: [..., 8], memory: [..., 8] = none) {{ return x -> {} }}"
TAKES_MEMORY = "block g(x: [..., 8], memory: [..., 8] = none) { return if memory == none then x else x + memory }"
CALLS = {
    "a mask's number in order and by name": (masked("window(3, width: 4)"), "E0205", "`width` is given twice"),
    "a mask's number twice by name": (masked("window(width: 3, width: 4)"), "E0205", "`width` is given twice"),
    "a mask's number by name and in order": (masked("window(width: 3, 4)"), "E0205", "`window` was given more numbers"),
    "more numbers than a mask takes": (masked("window(3, 4)"), "E0205", "`window` was given more numbers"),
    "a number for a mask without": (masked("causal(3)"), "E0205", "`causal` was given more numbers"),
    "an unknown number of a mask": (masked("window(wdith: 3)"), "E0201", "`window` has no option `wdith`"),
    "a scheme's number in order and by name": (drawn("normal(1, std: 2)"), "E0205", "`std` is given twice"),
    "more numbers than a scheme takes": (drawn("normal(1, 2, 3)"), "E0205", "`normal` was given more numbers"),
    "a number for a scheme without": (drawn("zeros(1)"), "E0205", "`zeros` was given more numbers"),
    "an unknown number of a scheme": (drawn("normal(sdt: 1)"), "E0201", "`normal` has no option `sdt`"),
    "an unknown tensor that is left out": (
        body("return x -> f", OPTIONAL.format("g(memry: memory)") + TAKES_MEMORY),
        "E0205",
        "`g` has no tensor `memry`",
    ),
    "an unknown tensor that is given": (
        body("return f(x, x)", OPTIONAL.format("g(memry: memory)") + TAKES_MEMORY),
        "E0205",
        "`g` has no tensor `memry`",
    ),
    "a tensor that is left out, of a primitive": (
        body("return x -> f", OPTIONAL.format("linear(8, memory: memory)")),
        "E0205",
        "`linear` has no tensor `memory`",
    ),
    "a tensor that is left out, of a function": (
        body("return x -> f", OPTIONAL.format("relu(memory: memory)")),
        "E0205",
        "`relu` has no tensor `memory`",
    ),
    "a block that is itself": (body("return x -> f", "block f = f"), "E0207", "`f` applies itself"),
    "a block that is itself with options": (
        body("return x -> f", "block f(a: int = 3) = f(a: 2)"),
        "E0207",
        "`f` applies itself",
    ),
    "two blocks that are each other": (
        body("return x -> f", "block f = g block g = f"),
        "E0207",
        "`f` applies itself by way of `g`",
    ),
    "three blocks in a circle": (
        body("return x -> f", "block f = g block g(a: int = 1) = h block h = f"),
        "E0207",
        "`f` applies itself by way of `g`, `h`",
    ),
    "a slot of a block that is itself": (
        "block f = f model m { vocab: 8 context: 4 width: 8 blocks: 2 * f head: lm }",
        "E0207",
        "`f` applies itself",
    ),
    "blocks that are each the next": (
        body("return x -> b0", " ".join(f"block b{i} = b{i + 1}" for i in range(500)) + " block b500 = relu"),
        "E0207",
        "blocks are nested more than 60 deep",
    ),
}


@pytest.mark.parametrize("title", CALLS)
def test_what_is_said_of_a_call(title: str) -> None:
    text, code, words = CALLS[title]
    found = [(d.code, d.message) for d in check(text=text) if d.code.startswith("E")]
    assert len(found) == 1
    assert found[0][0] == code
    assert found[0][1].startswith(words)


@pytest.mark.parametrize(
    "text",
    [
        body("return x -> f", OPTIONAL.format("g(memory: memory)") + TAKES_MEMORY),
        # A block that is given need not take what is left out.
        body("return x -> f(relu)", OPTIONAL.format("only(inner)").replace("f(x", "f(inner: block)(x")),
        body(
            "return x -> f(relu)",
            "block f(inner: block)(x: [..., 8], memory: [..., 8] = none) { return x -> inner(memory: memory) }",
        ),
        body(
            "return x -> f(2 * relu)",
            "block f(layers: list)(x: [..., 8], memory: [..., 8] = none) "
            "{ for layer in layers { x = x -> layer(memory: memory) } return x }",
        ),
        body(
            "return x -> f(relu)",
            "block f(inner: block)(x: [..., 8], memory: [..., 8] = none) "
            "{ return x -> offer(inner, width: 8)(memory: memory) }",
        ),
        body("return x -> f", "block f = mlp(hidden: 8)"),
        body("return x -> f", "block f = g block g(a: int = 8) = h(a) block h(b: int) = mlp(hidden: b)"),
    ],
)
def test_calls_that_are_right(text: str) -> None:
    assert not [d for d in check(text=text) if d.code.startswith("E")]


# --- numbers ----------------------------------------------------------------------------------------------------------

NUMBERS = {
    "0 ** -1": "division by zero: 0 cannot be raised to a negative power",
    "0 ** -0.5": "division by zero: 0 cannot be raised to a negative power",
    "(a - 3) ** -1": "division by zero: `a - 3` is 0, which cannot be raised to a negative power",
    "(time - time) ** -2": "division by zero: `time - time` is 0, which cannot be raised to a negative power",
    "a / 0": "division by zero",
    "a // (a - 3)": "division by zero: `a - 3` is 0",
    "a % (3 - a)": "division by zero: `3 - a` is 0",
    "(-8) ** 0.5": "`(-8) ** 0.5` is not a real number",
    "(-a) ** 0.5": "`(-a) ** 0.5` is not a real number: `-a` is -3",
}


@pytest.mark.parametrize("expression", NUMBERS)
def test_arithmetic_that_has_no_result(expression: str) -> None:
    ((code, message, _),) = said(body(f"return x * ({expression})", hypers="(a = 3)"))
    assert code == "E0401"
    assert message == NUMBERS[expression]
    with pytest.raises((ZeroDivisionError, ValueError, TypeError)):  # Python's own; a complex number has no float
        float(eval(expression, {"a": 3, "time": 5}))


@pytest.mark.parametrize(
    ("expression", "shown"),
    [("0.5", "0.5"), ("1 / 3", "0.333333"), ("a / 4", "0.75"), ("1.0000001", "1.0000001")],
)
@pytest.mark.parametrize(
    "statement",
    [
        "return x -> conv1d(8, kernel: 3, padding: {})",
        "return x -> transpose({}, -1)",
        "return x[{}]",
        "return x[{}:]",
        "return x -> split({}, 4)",
        "return x -> mha(heads: {})",
        "return x -> mha(heads: 2, mask: window({}))",
        "return x -> repeat(axis: {}, times: 2)",
    ],
)
def test_a_number_that_should_be_whole_is_shown_in_decimals(statement: str, expression: str, shown: str) -> None:
    ((_, message, _),) = said(body(statement.format(expression), hypers="(a = 3)"))
    assert shown in message
    assert not re.search(r"\d/\d", message)


# --- what a value is called -------------------------------------------------------------------------------------------

KINDS = {
    "shared": "the function `shared`",
    "offer": "the function `offer`",
    "window": "the mask `window` without its argument",
    "keys": "the mask `keys` without its argument",
    "causal": "a mask",
    "normal": "the scheme `normal`",
    "training": "the condition `training`",
    "split(x, 4, 4)": "a tuple of 2 results",
    "[x, x]": "a list of tensors",
    "[1, 2]": "a list",
    "relu": "the block `relu`",
    "shared(linear(8))": "a shared `linear`",
    "pre": "the word `pre`",
    "inf": "`inf`",
    "true": "true or false",
    "none": "none",
    '"s"': "a string",
    "3": "a number",
    "x": "a tensor",
}
PLACES = {
    "y = {} return x": ("binds a tensor, and this is", "E0203"),
    "return {}": ("gives tensors back, and this is", "E0203"),
    "return x -> ({})": ("{} cannot be applied", "E0206"),
    "let s = shared({}) return x -> s": ("takes a block, and this is", "E0203"),
    "for i in {} {{ x = x + 1 }} return x": ("runs over a list or up to a number, and this is", "E0203"),
    "if {} {{ x = x + 1 }} return x": ("a condition is true or false, and this is", "E0203"),
    "return x -> linear({})": ("is a whole number, and", "E0203"),
    "return x -> mha(heads: 1, mask: {})": ("is a mask, and", "E0203"),
    "y = not {} return x": ("takes true or false, and", "E0203"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", KINDS)
def test_a_value_is_called_what_it_is(value: str, place: str) -> None:
    """Where a value of a wrong kind is refused, the message says of which kind it is; nothing but a tensor is called
    one."""
    found = [(d.code, d.message) for d in check(text=body(place.format(value))) if d.code.startswith("E")]
    words, code = PLACES[place]
    for said_code, message in found:
        if said_code == code and words in message:
            assert KINDS[value] in message
        if value not in ("x", "[x, x]"):
            assert "and this is a tensor" not in message
            assert "a tensor was given" not in message


@pytest.mark.parametrize("place", PLACES)
def test_each_place_refuses_some_kind(place: str) -> None:
    words, code = PLACES[place]
    texts = {v: said(body(place.format(v))) for v in ("shared", "window", "keys", "normal", "training")}
    refused = [v for v, found in texts.items() if any(c == code and KINDS[v] in m for c, m, _ in found)]
    assert len(refused) >= 3, (words, texts)


# --- shapes -----------------------------------------------------------------------------------------------------------

SHAPES = {
    "a weight": (
        body("return x -> f", "block f(x: [..., 8]) { param w: [..., 8] = zeros return x * w }"),
        "`w` is made here, and so needs its whole shape",
    ),
    "a buffer": (
        body("return x -> f", "block f(x: [..., 8]) { buffer w: [...] = zeros return x * w }"),
        "`w` is made here, and so needs its whole shape",
    ),
    "an input": ("model m(x: [..., 8]) { return x }", "a model's input has a whole shape"),
    "the block of an input": (
        "model m { input: mlp(hidden: 8) width: 8 blocks: relu }",
        "the inputs of a model have whole shapes, and `mlp` takes [..., width]",
    ),
    "an input of a block's size": (
        "block e(k: block)(x: [batch, time, k]) -> [batch, time, 8] { return x -> linear(8) }"
        "model m { input: e(k: relu) width: 8 blocks: relu }",
        "a size is a number, and this is the block `relu`",
    ),
}


@pytest.mark.parametrize("title", SHAPES)
def test_shapes_that_are_not_whole(title: str) -> None:
    text, words = SHAPES[title]
    ((code, message, _),) = said(text)
    assert code == "E0203"
    assert message.startswith(words)


# --- tensors of masks -------------------------------------------------------------------------------------------------

OF_TENSORS = {"keys(t)": "bool", "queries(t)": "bool", "same(t)": "int", "t": "documents", "~keys(t)": "bool"}
READ = ("[batch, time]", "[time]")


def read_by(mask: str, shape: str) -> str:
    """A model whose attention reads a tensor of that shape in its mask."""
    kind = OF_TENSORS[mask]
    return (
        f"model m(x: float[batch, time, 8], t: {kind}{shape}) -> [batch, time, 8]"
        f"{{ return x -> mha(heads: 1, mask: causal & {mask}) }}"
    )


@pytest.mark.parametrize("mask", OF_TENSORS)
@pytest.mark.parametrize(
    "shape",
    ["[time, time]", "[1, time]", "[2, time]", "[batch, 1, time]", "[batch, time, time]", "[batch, heads, 2, time]"],
)
def test_a_mask_reads_one_row_of_positions_for_each_sequence(mask: str, shape: str) -> None:
    ((code, message, _),) = said(read_by(mask, shape))
    assert code == "E0403"
    assert message.endswith(f"reads a tensor [batch, time], or one of positions alone, and this one is {shape}")


@pytest.mark.parametrize("mask", OF_TENSORS)
@pytest.mark.parametrize("shape", READ)
def test_a_mask_of_positions_alone_is_that_of_every_sequence(mask: str, shape: str) -> None:
    """PyTorch's outputs beside those of its own attention with that mask."""
    torch.manual_seed(0)
    made: Any = module(spec(read_by(mask, shape)))
    x = torch.randn(2, 5, 8)
    row = (
        torch.tensor([True, False, True, True, False]) if OF_TENSORS[mask] == "bool" else torch.tensor([0, 0, 1, 1, 0])
    )
    given = row if shape == "[time]" else torch.stack([row, row.flip(0)])
    rows = [row, row] if shape == "[time]" else [row, row.flip(0)]
    attention = made.mha
    q, k, v = (layer(x)[:, None] for layer in (attention.q, attention.k, attention.v))
    allowed = {
        "keys(t)": lambda r: r[None, :].expand(5, 5),
        "queries(t)": lambda r: r[:, None].expand(5, 5),
        "same(t)": lambda r: r[None, :] == r[:, None],
        "t": lambda r: r[None, :] == r[:, None],
        "~keys(t)": lambda r: ~r[None, :].expand(5, 5),
    }[mask]
    seen = torch.stack([allowed(r) for r in rows])[:, None] & torch.ones(5, 5, dtype=torch.bool).tril()
    wanted = attention.out(functional.scaled_dot_product_attention(q, k, v, seen)[:, 0])
    some = seen.any(-1)[:, 0]  # a query that sees nothing is another matter
    torch.testing.assert_close(made(x, given)[some], wanted[some])


def test_what_a_mask_asks_for_is_no_tensor_of_other_axes() -> None:
    """The model's own input by its type: one beside it has an axis more."""
    text = "model m(x: float[batch, time, 8], {}) {{ return x -> mha(heads: 1, mask: causal & documents) }}"
    pages = "pages: documents[batch, time, 2]"
    made = torch_source(text=text.format(f"{pages}, book: documents[batch, time]"))
    assert "book[:, None, :, None] == book[:, None, None, :]" in made
    ((code, message, _),) = said(text.format(pages))
    assert code == "E0403"
    assert message.endswith("over an axis of time, and the model has `pages` [batch, time, 2]")


# --- causality of an input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 0, -1, -2])
@pytest.mark.parametrize("statements", ["assert causal({}) return x", "y = x -> relu assert causal({}) return y"])
def test_a_position_reads_itself(statements: str, ahead: int) -> None:
    """What is computed position by position may predict the next token, and no token before that; names are shown."""
    name = "y" if "y =" in statements else "x"
    text = body(statements.format(f"{name}, {ahead}"))
    found = said(text)
    if ahead == 1:
        assert not found
        return
    ((code, message, _),) = found
    assert code == "E0406"
    assert "``" not in message
    (note,) = [n for d in check(text=text) for n in d.notes]
    assert note == ("the path: x" if name == "x" else "the path: x -> relu -> y")
    assert f"position of `{name}`" in message
    assert message.endswith("that are not earlier" + (f" by more than {-ahead}" if ahead else ""))


# --- conditions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tests", [("k == n", "n == k"), ("k < n", "n > k"), ("k <= n", "n >= k"), ("k != n", "n != k")]
)
@pytest.mark.parametrize("numbers", [(4, 4), (3, 5), (5, 3)])
def test_a_condition_is_recorded_once(tests: tuple[str, str], numbers: tuple[int, int]) -> None:
    """A comparison and the same read backwards are one condition on the numbers of the Config."""
    lets = " ".join(f"let a{i} = if {test} then 2 else 3" for i, test in enumerate(tests))
    k, n = numbers
    hypers = f"(k = {k}, n = {n})"
    once = conditions(spec(body(f"let a0 = if {tests[0]} then 2 else 3 return x * a0", hypers=hypers)))
    twice = conditions(spec(body(f"{lets} return x * a0 * a1", hypers=hypers)))
    assert once
    assert twice == once


# --- statements -------------------------------------------------------------------------------------------------------

SLOT_MODEL = "model inner { vocab: 32 context: 16 width: 8 blocks: relu }"
STATEMENTS = {
    "offer()": (body("return x -> offer()"), "E0205", "`offer` takes a block"),
    "accepts of nothing": (
        body("let a = accepts(relu) return x"),
        "E0205",
        '`accepts(block, "name")` takes a block and the name of a hyper-parameter',
    ),
    "given without a name": (
        body("let a = given(relu, 3) return x"),
        "E0205",
        '`given(block, "name")` takes a block and the name of a hyper-parameter',
    ),
    "option without a value": (
        body('let a = option(relu, "b") return x'),
        "E0205",
        '`option(block, "name", otherwise)` reads a hyper-parameter of a block, if it has it',
    ),
    "offer a number": (body("return x -> offer(3)"), "E0203", "`offer` takes a block first, and this is a number"),
    "offer without names": (
        body("return x -> offer(relu, 3)"),
        "E0205",
        "what is offered is named: `offer(block, mask: m)`",
    ),
    "shared of two": (body("let s = shared(relu, relu) return x -> s"), "E0205", "`shared` takes one block"),
    "a mask of a word": (
        body("return x -> mha(heads: 1, mask: window(pre))"),
        "E0203",
        "`width` of the mask `window` is a number, and this is the word `pre`",
    ),
    "a mask without its number": (
        body("return x -> mha(heads: 1, mask: window())"),
        "E0205",
        "the mask `window` still needs its width: `window(4)`",
    ),
    "a tensor mask of a number": (body("return x -> mha(heads: 1, mask: keys(3))"), "E0205", "`keys` takes one tensor"),
    "a scheme without its number": (
        body("return x -> f", "block f(x: [..., 8]) { param w: [8] = uniform() return x * w }"),
        "E0205",
        "`uniform` still needs its `bound`",
    ),
    "a scheme of a word": (
        body("return x -> f", "block f(x: [..., 8]) { param w: [8] = uniform(pre) return x * w }"),
        "E0203",
        "`bound` of `uniform` is a number, and the word `pre` was given",
    ),
    "a scheme of a run-time number": (
        body("param w: [8] = uniform(time) return x * w"),
        "E0402",
        "`bound` of `uniform` is time, which is known only when the model runs",
    ),
    "yarn out of order": (
        body("return x -> rope(scaling: yarn(factor: 2, original: 8, beta_fast: 1, beta_slow: 2))"),
        "E0204",
        "`beta_slow` of `yarn` must be less than `beta_fast`, and they are 2 and 1",
    ),
    "longrope without a list": (
        body("return x -> mha(heads: 1, position: rope(scaling: longrope(short: 1, long: [1], original: 8)))"),
        "E0203",
        "`short` of `longrope` is a list of numbers, and a number was given",
    ),
    "longrope of one": (
        body("return x -> rope(scaling: longrope(short: [1, 1, 1, 1], long: [1, 1, 1, 1], original: 1, factor: 2))"),
        "E0204",
        "`longrope` with a `factor` compares contexts by their logarithms, and that of 1 is 0",
    ),
    "a model of slots applied": (
        body("return x -> n", "model n { vocab: 8 context: 4 width: 8 blocks: relu head: lm }"),
        "E0203",
        "`n` is a model of slots, and cannot be applied",
    ),
    "options of what is shared": (
        body("let s = shared(linear(8)) return x -> s(bias: false)"),
        "E0205",
        "the shared `linear` has its hyper-parameters already",
    ),
    "as without a tensor": (
        body("let s = linear(8) as name return x -> s"),
        "E0205",
        "`as name` names an application, and no tensor is given here",
    ),
    "a block for a function": (
        body("return relu(relu)"),
        "E0203",
        "`relu` takes tensors and numbers, and the block `relu` was given",
    ),
    "log of 0": (body("let a = log(0) return x * a"), "E0401", "log(0) is not a number"),
    "two results to one": (
        body("return relu(split(x, 4, 4))"),
        "E0203",
        "this has 2 results, and one tensor is wanted",
    ),
    "a pipeline of two": (
        body("return x -> split(4, 4) -> relu"),
        "E0203",
        "a pipeline carries one tensor, and this has 2 results",
    ),
    "static as a tensor": (
        body("return x -> mha(heads: 1, mask: x)"),
        "E0203",
        "`mask` of `mha` is static, and a tensor was given",
    ),
    "alias of shared": (
        body("return x -> f", "block f = shared(linear(8))"),
        "E0203",
        "a block is one call of another, and this is shared",
    ),
    "alias of a number": (
        body("return x -> f", "block f = 3"),
        "E0203",
        "a block is one call of another, and this is a number",
    ),
    "experts within experts": (
        body("return x -> moe(experts: 2, top_k: 1, expert: moe(experts: 2, top_k: 1, expert: mlp(hidden: 8)))"),
        "E0204",
        "experts cannot hold experts",
    ),
    "an expert that is shared": (
        body("return x -> moe(experts: 2, top_k: 1, expert: shared(mlp(hidden: 8)))"),
        "E0203",
        "an expert cannot be shared: every expert has its own weights",
    ),
    "an expert with a shared map": (
        body(
            "return x -> moe(experts: 2, top_k: 1, expert: f)",
            "block f(x: [..., 8]) { let s = shared(linear(8)) return x -> s -> s }",
        ),
        "E0204",
        "an expert has no shared block in it, and `linear` is one",
    ),
    "an expert given a shared block": (
        body("let s = shared(mlp(hidden: 8)) return x -> moe(experts: 2, top_k: 1, expert: only(s))"),
        "E0204",
        "an expert has no shared block in it, and `mlp` is one",
    ),
    "a result that was left out": (
        body("return x -> f", "block f(x: [..., 8], y: [..., 8] = none) { x = y }"),
        "E0203",
        "a block gives tensors back, and this is a tensor that was left out",
    ),
    "no results": (body("ys = for i in 0 { emit x } return ys"), "E0213", "`m` gives an empty list back"),
    "a function of a number alone": (body("return x * gelu(3)"), "E0203", "`gelu` needs a tensor"),
    "a shape of a block": (
        body("return x -> f(k: relu)", "block f(k)(x: [batch, time, 8]) { y = x : [batch, time, k] return y }"),
        "E0203",
        "a size is a number, and `k` is the block `relu`",
    ),
    "a shape divided by 0": (body("y = x : [batch, time, 8 / 0] return y"), "E0401", "division by zero"),
    "a mask and a number": (
        body("return x -> mha(heads: 1, mask: causal & 3)"),
        "E0203",
        "this must be a mask, and it is a number",
    ),
    "one of two results": (
        body("return (x -> topk(2)) + 1"),
        "E0203",
        "`+` takes one tensor, and this has 2 results",
    ),
    "an option that is none": (
        body("let f = linear(8) return x * f.zzz"),
        "E0201",
        "`linear` has no option `zzz`",
    ),
    "an option not given": (body("let f = mlp return x * f.hidden"), "E0205", "`f` has not been given its `hidden`"),
    "a block that is false": (
        body("return x -> mha(heads: 1, qk_norm: false)"),
        "E0203",
        "`qk_norm` of `mha` is a block, and true or false was given",
    ),
    "a matrix of two": (
        body("let s = shared(mlp(hidden: 3)) h = x -> s return h -> unembed(s)"),
        "E0203",
        "the shared `mlp` has no single weight matrix to tie to",
    ),
    "a matrix of none": (
        body("let s = shared(layernorm) h = x -> s return h -> unembed(s)"),
        "E0203",
        "the shared `layernorm` has no single weight matrix to tie to",
    ),
    "a matrix without sizes": (
        body("let s = shared(linear(8)) return x -> unembed(s)"),
        "E0211",
        "the shared `linear` has no sizes yet: apply it before its weight is read",
    ),
    "a model of slots as an input": (
        f"{SLOT_MODEL} model m {{ input: inner width: 8 blocks: relu }}",
        "E0203",
        "`inner` is a model of slots, and cannot be applied",
    ),
    "a model of slots by another name": (
        body("return x -> f", f"{SLOT_MODEL} block f = inner"),
        "E0203",
        "`inner` is a model of slots, and cannot be applied",
    ),
    "an op as an input": (
        "model m { input: linear(8) width: 8 blocks: relu }",
        "E0203",
        "`input` is `tokens`, or a block such as patches(…), and this is the block `linear`",
    ),
    "a number of a model in a block": (
        "block g(x: [..., 8]) { return x -> linear(vocab) -> linear(8) }"
        " model m { vocab: 32 context: 16 width: 8 blocks: g }",
        "E0206",
        "unknown name `vocab`",
    ),
    "a slot of a model in a block": (
        "block g(x: [..., 8]) { return x -> head } model m { vocab: 32 context: 16 width: 8 blocks: g head: lm }",
        "E0206",
        "unknown name `head`",
    ),
    "slots, none of which is known": (
        "model m { vocab: 3 context: 16 width: 8 zzz: 3 }",
        "E0201",
        "a model of slots has no slot `zzz`",
    ),
    "a needed hyper-parameter": ("model m(n, k)(x: [batch, time, 8]) { return x * n }", "E0205", "`m` needs `n`, `k`"),
    "a variant of a variant's call": (
        body("return x") + " variant b = m(n: 3)()",
        "E0203",
        "a variant is a model with other hyper-parameters: `variant big = base(layers: 24)`",
    ),
    "a variant of itself": ("variant a = a(n: 2)", "E0212", "the variant `a` is defined by itself"),
    "heads of an attention in slots": (
        "block layer { attention: gqa(heads: 4, kv_heads: 3) }"
        " model m { vocab: 32 context: 16 width: 8 blocks: layer }",
        "E0401",
        "heads must be a multiple of kv_heads: heads = 4 is not a multiple of kv_heads = 3",
    ),
    "a kind of primitives": (
        body("return x -> f(1)", "block f(t: ints)(x: [..., 8]) { return x -> mean(axis: t) }"),
        "E0203",
        "`ints` is no kind of hyper-parameters",
    ),
    "an expert of ids": (
        body(
            "return x -> moe(experts: 2, top_k: 1, expert: f)",
            "block f(x: [..., 8]) -> int[..., 8] { return x -> cast(int) }",
        ),
        "E0304",
        "an expert gives back real numbers of the model's own type, and `f` gives int",
    ),
    "real numbers of another type": (
        body("return f(x)", "block f(x: float32[batch, time, 8]) -> [batch, time, 8] { return x -> cast(float) }"),
        "E0304",
        "`f` takes real numbers of type float32, but `x` holds real numbers of the model's own type",
    ),
    "an expert with a loop": (
        body(
            "return x -> moe(experts: 2, top_k: 1, expert: f)",
            "block f(x: [..., 8]) { for i in 2 { x = x -> linear(8) } return x }",
        ),
        "E0204",
        "an expert is a plain block: no loops, raw weights or conditions",
    ),
    "an expert that mixes": (
        body("return x -> moe(experts: 2, top_k: 1, expert: f)", "block f(x: [..., 8]) { return x -> cumsum(0) }"),
        "E0204",
        "an expert mixes no positions, and `cumsum` does",
    ),
    "an expert of convolutions": (
        body("return x -> moe(experts: 2, top_k: 1, expert: conv1d(8, kernel: 3))"),
        "E0204",
        "`conv1d` cannot stand in an expert: its weights have no form for many experts at once",
    ),
    "not of a number": (body("let a = not 3 return x"), "E0203", "`not` takes true or false, and a number was given"),
    "minus of a block": (body("let a = -relu return x"), "E0203", "`-` cannot be applied to the block `relu`"),
    "complement of a number": (body("let a = ~3 return x"), "E0203", "`~` cannot be applied to a number"),
    "numbers joined": (body("let a = 3 & 4 return x"), "E0203", "`&` joins masks or bool tensors, not numbers"),
    "masks added": (
        body("return x -> mha(heads: 1, mask: causal + causal)"),
        "E0203",
        "`+` cannot join a mask and a mask",
    ),
    "a bool for a mask": (
        body("b = x[..., 0] > 0 return x -> mha(heads: 1, mask: causal & b)"),
        "E0203",
        "a bool tensor is no mask by itself",
    ),
    "a comparison when run": (
        body("let a = if time > 3 then 1 else 2 return x * a"),
        "E0402",
        "`time > 3` is known only when the model runs",
    ),
    "a size too large": (
        body("return x -> linear(2 ** 63)"),
        "E0404",
        "`features` of `linear` must be below 2 ** 63, and 2 ** 63 is not",
    ),
    "a number too large": (body("return x * 10 ** 10 ** 10"), "E0404", "this number would be too large"),
    "a tensor left out, added": (
        body("return x -> f", "block f(x: [..., 8], y: [..., 8] = none) { return x + y }"),
        "E0203",
        "the tensor here was left out, so `+` cannot use it",
    ),
    "a tensor left out, returned": (
        body("return x -> f", "block f(x: [..., 8], y: [..., 8] = none) { return y }"),
        "E0203",
        "the tensor returned here was left out",
    ),
    "an index by a word": (
        body("return x[pre]"),
        "E0203",
        "an index is a number, a slice or `...`, and this is the word `pre`",
    ),
    "no element": (body("let a = [1, 2] return x * a[2]"), "E0303", "the list has 2 elements, and 2 was asked for"),
    "an element by a word": (body("let a = [1, 2] return x * a[pre]"), "E0203", "a list is read by one whole number"),
    "two indices of a list": (body("let a = [1, 2] return x * a[0, 1]"), "E0203", "a list is read by one whole number"),
    "let twice": (body("let a = 1 let a = 2 return x * a"), "E0202", "`a` is bound already, and a `let` is bound once"),
    "let of a tensor": (
        body("let a = x return a"),
        "E0203",
        "`let` names static things: a number, a block, a mask, a list",
    ),
    "a tensor's name": (body("y = x let y = 3 return x"), "E0202", "`y` is a tensor here already"),
    "plus to a number": (body("let a = 1 a += 1 return x"), "E0203", "`a += …` needs a tensor `a`, and it is a number"),
    "plus a block": (body("x += relu return x"), "E0203", "`+=` adds a tensor, and this is the block `relu`"),
    "plus another shape": (
        body("x += x -> unsqueeze(0) return x"),
        "E0301",
        "`x += …` keeps the shape [batch, time, 8], and the sum is [1, batch, time, 8]",
    ),
    "a weight of ids": (
        body("param w: int[8] = zeros return x * w"),
        "E0203",
        "a weight holds real numbers, and `w` would hold int",
    ),
    "a weight of run-time size": (
        body("param w: [time, 8] = zeros return x * w"),
        "E0402",
        "the weight `w` would have a size, time, that is known only when the model runs",
    ),
    "a random buffer of run-time size": (
        body("buffer w: [time, 8] = normal return x * w"),
        "E0402",
        "`w` is drawn at random and so part of the state, but its size time is not fixed",
    ),
    "a weight that starts as a block": (
        body("param w: [8] = relu return x * w"),
        "E0203",
        "a weight's first value is a scheme, numbers or an expression of them, and this is the block `relu`",
    ),
    "a weight that starts in another shape": (
        body("param w: [8] = [1, 2] return x * w"),
        "E0301",
        "`w` is [8], and its first value is [2]",
    ),
    "whole numbers drawn": (
        body("buffer w: int[8] = normal return x * w"),
        "E0203",
        "`w` holds whole numbers, and its first value is drawn at random",
    ),
    "training joined": (
        body("if training and true { x = x + 1 } return x"),
        "E0203",
        "`training` stands alone: `if training { … }`",
    ),
    "training of two shapes": (
        body("y = x if training { y = x[0] } return y"),
        "E0301",
        "`y` is [time, 8] in training and [batch, time, 8] otherwise",
    ),
    "a return in training": (
        body("if training { return x } return x"),
        "E0214",
        "`return` cannot stand in `if training`",
    ),
    "assume a number": (body("assume time > 3 return x"), "E0203", "only causality is assumed: `assume causal(y)`"),
    "causal of words": (
        body("assert causal(x, pre) return x"),
        "E0203",
        "`causal(y, ahead: 1)` takes a tensor and how many tokens ahead it predicts",
    ),
    "causal of nothing": (body("assert causal() return x"), "E0205", "`causal(y)` needs the tensor"),
    "emit alone": (
        body("emit x return x"),
        "E0214",
        "`emit` stands in the body of a `scan`, or of a `for` whose list is bound",
    ),
    "emit a number": (
        body("y = for i in 2 { emit i } return x"),
        "E0203",
        "`emit` takes a tensor, and this is a number",
    ),
    "a loss of many": (body("loss a = x return x"), "E0302", "`loss a` is a scalar, and this is [batch, time, 8]"),
    "a loss of a block": (
        body("loss a = relu return x"),
        "E0302",
        "`loss a` is a scalar, and this is the block `relu`",
    ),
    "a false claim": (body("assert 3 > 4 return x"), "E0401", "`3 > 4` must hold: 3 > 4 does not hold"),
    "a false word": (body("assert pre == post return x"), "E0401", "`pre == post` must hold"),
    "names for results": (body("a, b = x return x"), "E0205", "2 names are bound here, and there is 1 result"),
    "a scan from a block": (
        body("y = scan h: [batch, 8] = gelu for a in x { h = h + a emit a } return y"),
        "E0203",
        "a carried tensor starts as a tensor or a number, and this is the block `gelu`",
    ),
    "a scan from a number": (
        body("y = scan h: [..., 8] = 0 for a in x { h = h + a emit h } return y"),
        "E0203",
        "a carried tensor that starts as a number needs its whole shape",
    ),
    "a scan of another shape": (
        body("y = scan h: [batch, 8] = 0 for a in x { h = a[:, :4] emit h } return y"),
        "E0301",
        "`h` is carried as [batch, 8], and a step makes it [batch, 4]",
    ),
    "a scan of a row": (
        body("y = scan h: [batch] = 0 for a in indices(time) { h = h + a emit h } return y"),
        "E0203",
        "`scan` runs along axis 1 of tensors",
    ),
    "a scan with a name too many": (
        body("y = scan h: [batch, 8] = 0 for a, b in x { h = h + a emit h } return y"),
        "E0205",
        "2 names run over 1 tensor",
    ),
    "a scan with a tensor too many": (
        body("y = scan h: [batch, 8] = 0 for a in x, x { h = h + a emit h } return y"),
        "E0205",
        "1 name runs over 2 tensors",
    ),
    "a scan of two lengths": (
        body("y = scan h: [batch, 8] = 0 for a, b in x, x[:, 1:] { h = h + a + b emit h } return y"),
        "E0301",
        "the tensors of a scan have one length: time and time - 1 differ",
    ),
    "an index of a block": (
        body("return gelu[0]"),
        "E0203",
        "only tensors and lists can be indexed, and this is the block `gelu`",
    ),
    "an index of a mask": (
        body("return causal[0]"),
        "E0203",
        "only tensors and lists can be indexed, and this is a mask",
    ),
    "behind return": (body("return x y = x"), "E0214", "nothing after `return` is ever used"),
    "a list for a tensor": (
        body("a = for i in 3 { emit x } return a -> gelu"),
        "E0205",
        "`x` of `gelu` is one tensor, and this is a list of them",
    ),
    "too many options": (
        body("return x -> softmax(1, 2, 3)"),
        "E0205",
        "`softmax` was given more static arguments than it has options",
    ),
    "as often as the model knows": (
        body("for f in time * gelu { x = x -> f } return x"),
        "E0402",
        "`time` is known only when the model runs, so nothing can be repeated that often",
    ),
    "a first value that cannot be drawn": (
        body("param w: [8] = fill(1, 8) return x * w"),
        "E0204",
        "`fill` cannot stand in a weight's first value",
    ),
    "a variant by place": (
        body("return x * n", hypers="(n = 3)") + " variant big = m(4)",
        "E0205",
        "a variant names the hyper-parameters it sets",
    ),
    "no input": ("model m { param w: [3] = zeros return w }", "E0205", "the model `m` has no input"),
    "a result too few": (
        body("a, b = x -> f return a", "block f(x: [..., 8]) -> (a: [..., 8], b: [..., 8]) { return x }"),
        "E0205",
        "`f` declares 2 results and gives 1 back",
    ),
    "a result of another shape": (
        body("return x -> f", "block f(x: [..., 8]) { return x[..., :4] }"),
        "E0301",
        "`f` says nothing of its result, so it should have the shape of its first tensor, [batch, time, 8]; it has "
        "[batch, time, 4]",
    ),
    "a default that is a fraction": (
        body("return x -> f", "block f(n: size = width * 0.3)(x: [..., width]) -> [..., width] { return x * n }"),
        "E0401",
        "`n` of `f` must be a whole number, but width * 0.3 = 2.4",
    ),
    "a hyper-parameter that no axis has": (
        body("return x -> f(n: time / 2)", "block f(n: number)(x: [..., 8]) { return x * n }"),
        "E0402",
        "`n` of `f` is time / 2, which is known only when the model runs and is no axis of its tensors",
    ),
    "a hyper-parameter twice": (
        body("return x -> f(1)", "block f(a, a)(x: [..., 8]) { return x * a }"),
        "E0202",
        "`f` declares `a` twice",
    ),
    "a name of many letters": (
        body(f"{'a' * 201} = x return {'a' * 201}"),
        "E0105",
        "this name is longer than 200 characters",
    ),
    "a list repeated too often": (
        body("let a = 10001 * [1, 2] return x"),
        "E0404",
        "a list has at most 20,000 elements, and this would have 20,002",
    ),
    "a block among sizes": (
        body("return x -> unflatten(2, [relu, 4])"),
        "E0203",
        "`unflatten` takes whole numbers as `sizes`, and the block `relu` was given",
    ),
    "a mask of other keys": (
        body("return x -> mha(heads: 1, mask: keys(x[:, :3, 0] > 0))"),
        "E0403",
        "the mask `keys(tensor)` speaks of 3 positions, but there are time keys",
    ),
    "a pattern of very many axes": (
        body(f'return einsum("{", ".join(f"a{i} b{i} c{i}" for i in range(18))} -> a0 b0 c0", {", ".join("x" * 18)})'),
        "E0204",
        "`einsum` takes at most 52 different axes",
    ),
    "a capacity of one token": (
        body("y = x[0, 0] -> moe(experts: 4, top_k: 2, capacity: 1.5, expert: mlp(hidden: 8)) return x + y"),
        "E0302",
        "a capacity is a share of many tokens, and x is one: [8]",
    ),
    "divisors of other pairs": (
        body(
            "return x -> mha(heads: 2, "
            "position: rope(scaling: longrope(short: [1, 2, 3], long: [1, 2], original: 64, factor: 2)))"
        ),
        "E0301",
        "longrope needs a divisor for each of 2 pairs of channels, and `short` has 3",
    ),
    "a law of whole weights in an expression": (
        body("param w: [8] = 1 + xavier return x * w"),
        "E0204",
        "`xavier` cannot stand in an expression: it needs to know the whole weight",
    ),
    "other inputs of a model of slots": (
        "model m(n = 8)(ids: token[batch, time]) { vocab: n context: 4 width: n blocks: relu head: lm }",
        "E0205",
        "by its slots `m` takes `tokens: token[batch, time]`",
    ),
    "inputs of another type of a model of slots": (
        "model m(n = 8)(tokens: float[batch, time]) { vocab: n context: 4 width: n blocks: relu head: lm }",
        "E0304",
        "the input `tokens` of `m` is declared as float[…], real numbers, but `tokens` holds whole numbers",
    ),
    "inputs of other axes of a model of slots": (
        "model m(n = 8)(tokens: token[batch, time, 2]) { vocab: n context: 4 width: n blocks: relu head: lm }",
        "E0302",
        "the input `tokens` of `m` is written with 3 axes, token[batch, time, 2], and has 2: [batch, time]",
    ),
    "another result of a model of slots": (
        "model m(n = 8) -> [batch, time, 5] { vocab: n context: 4 width: n blocks: relu head: lm }",
        "E0301",
        "the result of `m` is [batch, time, 8], and its axis `5` should be 5",
    ),
    "more results of a model of slots": (
        "model m(n = 8) -> (a: [batch, time, n], b: [batch]) { vocab: n context: 4 width: n blocks: relu head: lm }",
        "E0205",
        "`m` declares 2 results and gives 1 back",
    ),
    "names for three": (
        body("a, b = x -> split(2, 3, 3) return x"),
        "E0205",
        "2 names are bound here, and there are 3 results",
    ),
}


@pytest.mark.parametrize("title", STATEMENTS)
def test_what_is_said_of_a_statement(title: str) -> None:
    """One error, at the text of the spec that is wrong."""
    text, code, message = STATEMENTS[title]
    found = the_error(text)
    assert (found.code, found.message) == (code, message)
    assert found.span is not None
    assert not found.span.source.library


def test_what_a_block_of_slots_is_told_points_to_no_slot_of_another() -> None:
    """Of two blocks the second is wrong, and is the library's by a call; the first one's slots are not meant."""
    text = """block good { attention: mha(heads: 2)  ffn: mlp(hidden: 8)  norm: layernorm  mask: causal }
model m { vocab: 8  context: 8  width: 8  norm: layernorm  head: lm
  blocks: good + transformer_block(attention: mha(heads: 2), ffn: mlp(hidden: 8), norm: none) }"""
    (found,) = check(text=text)
    assert found.code == "E0401"
    assert found.span is not None
    assert found.span.text.startswith("transformer_block(")


def test_a_tensor_that_was_left_out_is_guarded_by_its_own_name() -> None:
    """Where a block needs it, and where an operator does."""
    needs = "block g(x: [..., 8], own: [..., 8]) { return x + own } "
    for use, message in (
        ("g(x, memory)", "`g` needs `own`, which was left out here"),
        ("x + memory", "the tensor here was left out, so `+` cannot use it"),
    ):
        text = body("return x -> f", f"{needs} block f(x: [..., 8], memory: [..., 8] = none) {{ return {use} }}")
        found = [d for d in said(text) if d[0].startswith("E")]
        assert found == [("E0203", message, "guard it: `if memory != none { … }`")]


def test_a_hyper_parameter_may_be_an_axis() -> None:
    """Of a block with a module of its own, and of one without; and a block may be a primitive by another name."""
    for kind in ("block", "inline block"):
        before = f"{kind} f(width: size)(x: [..., width]) -> [..., width] {{ return x * width }} block named = gelu"
        x = torch.randn(2, 3, 8)
        found = module(spec(body("return (x -> f) + (x -> named)", before)))(x)
        torch.testing.assert_close(found, x * 8 + functional.gelu(x))


def test_lists_of_tensors_and_of_layers_join_and_repeat() -> None:
    x = torch.randn(2, 3, 8)
    text = body("a = for i in 2 { emit x * i } for f in gelu * 2 { x = x -> f } return concat(a + [x])")
    made = functional.gelu(functional.gelu(x))
    torch.testing.assert_close(module(spec(text))(x), torch.cat([0 * x, x, made], -1))


LENGTHS = {
    "a quotient": "time / n; time / m",
    "rounded down": "time // n; time // m",
    "rounded up": "ceil(time / (n + 1)); ceil(time / (m + 1))",
    "rounded twice": "(time + n) // (m + 1); (time + m) // (n + 1)",
    "a sum": "time // n + m; time // m + n",
    "a product with a quotient": "(time // n) * m; (time // m) * n",
    "the smaller": "minimum(time, n); minimum(time, m)",
    "the smaller, in another order": "minimum(time, n); minimum(m, time)",
    "the larger": "maximum(time - n, 1); maximum(1, time - m)",
    "a power": "2 ** n * time; 2 ** m * time",
    "a square": "n ** 2 * time; m ** 2 * time",
    "a rounded root": "floor(time ** 0.5 / n) + 1; floor(time ** 0.5 / m) + 1",
    "below a length": "floor(n / time) + 1; floor(m / time) + 1",
    "below a product": "floor(n / (m * time)) + 1; floor(m / (n * time)) + 1",
    "one within another": "time // n // m; time // (n * m)",
    "a part of all": "time * n / 2; time * m / 2",
}
"""Two lengths that are equal where n and m are 2."""
SLICES = {
    "all by a product": "x[:, : time * n / 2]",
    "all by a quotient": "x[:, : time * n / m]",
    "all by a sum": "x[:, : time + n - 2]",
    "all from a start": "x[:, n - 2 : time + m - 2]",
    "some": "x[:, : time // n + m]",
    "all but some": "x[:, : time + n - 3]",
    "all but a difference": "x[:, : time - (n - m) - 1]",
    "from the end": "x[:, n - m - 1 :]",
}


@pytest.mark.parametrize("kind", [*LENGTHS, *SLICES])
def test_other_numbers_are_refused_or_give_what_they_would(kind: str) -> None:
    """The class that is emitted for n = m = 2 refuses other numbers, or does what the one emitted for them does."""
    pair = LENGTHS.get(kind)
    result = SLICES[kind] if pair is None else " + ".join(f"indices({length})" for length in pair.split("; "))
    text = body(f"return {result}", hypers="(n = 2, m = 2)")
    made = module(spec(text))
    names = names_of(made)
    x = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(0))
    accepted, refused = 0, 0
    for n, m in itertools.product((1, 2, 3, 4), repeat=2):
        try:
            found = names["M"](names["Config"](n=n, m=m))(x)
        except AssertionError:
            refused += 1
            continue
        accepted += 1
        torch.testing.assert_close(found, module(spec(text, n=n, m=m))(x))
    assert accepted
    assert refused or kind in ("one within another", "some")


# --- two ways to say one thing ----------------------------------------------------------------------------------------

CHOICE = "block f(w: word = mean)(x: [..., 8]) { return x * (if w == %s then 2 else 3) }"
SCORES = (
    "block mine(q: [batch, heads, time, d], k: [batch, heads, source, d]) -> [batch, heads, time, source]"
    ' { return einsum("b h q d, b h k d -> b h q k", q, k) }'
)
EVERY = "block layer%s(x: [batch, time, 8]) -> [batch, time / %s, 8] { return x -> every(%s, axis: 1) -> %s }"
PADDED = " model m(x: [batch, time, 8], real: padding[batch, time]) -> [batch, time / 3, 8] {{ return x -> {} }}"
WHOLE = "block g(j: size)(x: [batch, time, 8]) -> [batch, time / j, 8] { return x[:, : time / j] }"
EQUAL = {
    **{
        f"the word {word}, which is {other} too": (
            body(f"return x -> f(w: {word})", CHOICE % word),
            body("return x * 2"),
        )
        for word, other in {"mean": "a block", "causal": "a mask", "pre": "nothing", "none": "nothing"}.items()
    },
    "a word, and another": (body("return x -> f(w: causal)", CHOICE % "mean"), body("return x * 3")),
    "a word left out": (body("return x -> f", CHOICE % "mean"), body("return x * 2")),
    "a word, and a mask": (
        body("return x -> f(w: pre)", "block f(w)(x: [..., 8]) { return x * (if w == full then 2 else 3) }"),
        body("return x * 3"),
    ),
    "a random mask's seed": (masked("random(2)"), masked("random(2, seed: 0)")),
    "a batch of its own": (
        body("ys = scan h: [rows, 8] = 0 for t in x { h = h + t emit h } return ys"),
        body("ys = scan h: [batch, 8] = 0 for t in x { h = h + t emit h } return ys"),
    ),
    "a block of scores": (
        body("return x -> mha(heads: 2, position: mine)", SCORES),
        body("return x -> mha(heads: 2, position: shared(mine))", SCORES),
    ),
    "an option that was not given": (body('return x * option(mlp, "hidden", 3)'), body("return x * 3")),
    "a variant applied": (
        body("return x -> two", "", "(n = 3)").replace("model m(n = 3)", "model m")
        + " model times(n)(x: [batch, time, 8]) { return x * n } variant two = times(n: 2)",
        body("return x * 2"),
    ),
    "a size of an inline block": (
        body("return x -> f(k: 2)", f"inline {WHOLE} {WHOLE.replace('block g(j', 'block f(k').replace('j', 'k')}"),
        body("return x[:, : time / 2]"),
    ),
    "a part of a length": (body("return x[:, : time / 1.5]"), body("return x[:, : 2 * time / 3]")),
    "a shared block without arguments": (
        body("let s = shared(linear(8)) let t = s() return x -> t -> s"),
        body("let s = shared(linear(8)) return x -> s -> s"),
    ),
    "a type": (
        body(
            "return x -> f(t: float32)",
            "block f(t: type = bfloat16)(x: [..., 8]) { return x -> cast(t) -> cast(float) }",
        ),
        body("return x"),
    ),
    "padding over every n-th position": (
        EVERY % ("(k: size)", "k", "k", "mha(heads: 2, mask: padding)") + PADDED.format("layer(k: 3)"),
        EVERY % ("", "3", "3", "mha(heads: 2, mask: padding)") + PADDED.format("layer"),
    ),
}


@pytest.mark.parametrize("title", EQUAL)
def test_two_ways_to_say_one_thing(title: str) -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (module(spec(text)) for text in EQUAL[title])
    state = {k: torch.randn(v.shape, generator=generator) for k, v in one.state_dict().items() if v.is_floating_point()}
    one.load_state_dict(state, strict=False)
    other.load_state_dict(one.state_dict())
    x = torch.randn(2, 6, 8, generator=generator)
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    given = (x, real) if "real:" in EQUAL[title][0] else (x,)
    torch.testing.assert_close(one(*given), other(*given))


@pytest.mark.parametrize("size", ["time / k", "time * k", "(time + 2) * k", "time / j", "time / (k * 2)"])
@pytest.mark.parametrize("use", ["return x[:, : {}]", "return indices({})"])
def test_a_length_by_a_part_is_rounded_or_refused(size: str, use: str) -> None:
    text = body("let j = k * 2 " + use.format(size), hypers="(k = 1.5)")
    ((code, message, help_),) = [e for e in said(text) if e[0].startswith("E")]
    assert (code, message) == ("E0401", f"`{size}` must be a whole number, and `k` in it is 1.5")
    assert "`//`" in help_
    made = module(spec(text.replace(size, f"minimum(floor({size}), time)")))
    wanted = min(int(eval(size, {"time": 6, "k": 1.5, "j": 3})), 6)
    found = made(torch.randn(2, 6, 8))
    assert found.shape[1 if "x[" in use else 0] == wanted


def test_a_length_of_another_axis_than_time_needs_no_longest() -> None:
    """A table that every `time` fits is not judged by the batch, of which nobody knows how large it is."""
    block = "block g(x: [batch, time, width]) { return x + unsqueeze(embedding(5, width)(indices(%s)), 1) }"
    model = "model m { vocab: 32 context: 16 width: 8 blocks: g }"
    assert not [e for e in said(block % "batch" + model) if e[0].startswith("E")]


# --- limits -----------------------------------------------------------------------------------------------------------


def _sum(part: str, count: int = 50) -> str:
    return " + ".join([part] * count)


def _chain(first: str, each: str, count: int) -> str:
    """`let`s of which each is made of the one before, `{}`."""
    return f"let a0 = {first} " + " ".join(f"let a{i} = {each.format(f'a{i - 1}', i)}" for i in range(1, count + 1))


NESTED_BLOCKS = f"""
block f2(k: size)(x: [..., 8]) -> [..., k] {{ return x -> linear(k) }}
block f1(k: size)(x: [..., 8]) -> [..., {_sum("k")}] {{ return x -> f2(k: {_sum("k")}) }}
"""
SMALLER = "".join(
    f"inline block g{i}(k)(x: [..., 8]) {{ return x -> g{i - 1}(k: minimum(k + 1, k)) }}" for i in range(1, 13)
)
LIMITS = {
    "a long number": (body("return x * " + "1" * 161), "E0404", "a number has at most 160 digits, zeros included"),
    "a large exponent": (body("return x * 1e400"), "E0404", "a number has at most 160 digits, zeros included"),
    "a joined list": (
        body("for f in 20_000 * relu + relu { x = x -> f } return x"),
        "E0404",
        "a list has at most 20,000 elements",
    ),
    "a comprehension": (
        body("let l = [10_000 * relu for i in 3] return x"),
        "E0404",
        "a list has at most 20,000 elements",
    ),
    "a mask": (
        body(
            _chain("causal", "({0} | window(2 * {1})) & ({0} | window(2 * {1} + 1))", 12)
            + " return x -> mha(heads: 1, mask: a12)"
        ),
        "E0404",
        "a mask has at most 1,000 rules",
    ),
    "a signature": (
        body("return x", "block f(" + ", ".join(f"h{i}" for i in range(1000)) + ")(x: [..., 8]) { return x }"),
        "E0404",
        "`f` takes 1,001 hyper-parameters and tensors",
    ),
    "the axes of an input": (
        "model m(x: [" + ", ".join(f"a{i}" for i in range(65)) + "]) { return x }",
        "E0404",
        "a tensor has at most 64 axes",
    ),
    "the axes of a result": (
        body(f"return x -> unflatten(-1, {', '.join('1' * 62)}, 8)"),
        "E0404",
        "a tensor has at most 64 axes",
    ),
    "models": (
        "\n".join(f"model m{i}(x: [batch, 8]) {{ return x }}" for i in range(201)),
        "E0404",
        "<text> declares more than 200 models and variants",
    ),
    "constants by constants": (
        "\n".join(["let a0 = 1", *(f"let a{i} = a{i - 1}" for i in range(1, 62)), body("return x * a61")]),
        "E0107",
        "`a1` ends a chain of more than 60 definitions, each by the next",
    ),
    "operations": (
        body("for i in 10_001 { x = x + i } return x"),
        "E0404",
        "the model has more than 10,000 operations in its distinct blocks",
    ),
    "a list within lists": (
        body(_chain("relu", "1 * {}", 1500) + " for f in a1500 { x = x -> f } return x"),
        "E0107",
        "what `m` is made of is nested too deep",
    ),
    "a size of blocks within blocks": (
        body(f"h = x -> f1(k: {_sum('n')}) return x + mean(h)", NESTED_BLOCKS, "(n = 1)"),
        "E0404",
        "a size of `m` is too long",
    ),
    "a size of functions": (
        body("return x -> g12(k: n)", "inline block g0(k)(x: [..., 8]) { return x * k }" + SMALLER, "(n = 1)"),
        "E0404",
        "this number would be too large",
    ),
    "a float": (body("return x * (10.5 ** 200 * 10.5 ** 200)"), "E0404", "this number would be too large"),
    "a function's float": (body("return x * exp(800)"), "E0404", "this number would be too large"),
    "a product of sizes": (
        f"model m({', '.join(f'x{i}: [a{i}, b{i}]' for i in range(12))}) {{"
        f" assert {' * '.join(f'(a{i} + b{i} + 1)' for i in range(12))} > 3 return x0 }}",
        "E0404",
        "this number would be too large",
    ),
}
"""What costs more than the compiler takes."""


@pytest.mark.parametrize("title", LIMITS)
def test_what_is_said_beyond_a_limit(title: str) -> None:
    """One error with the limit's name, which takes no time to find."""
    text, code, message = LIMITS[title]
    found = the_error(text)
    assert (found.code, found.message) == (code, message)
    named = "the limit `" in found.help or "write a repetition as" in found.help or "largest float" in found.help
    assert named or "axes" in message
    assert found.span is not None
    assert not found.span.source.library
