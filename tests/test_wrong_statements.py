"""What is wrong in a statement, a call or a declaration: the code and the words that are said of it; and what is right,
though it looks like that: its numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch_emit.emitted import module, spec

from archdsl.api import check
from archdsl.ir.conditions import conditions


def said(text: str) -> list[tuple[str, str, str]]:
    """Return code, message and help of everything that is said against a spec."""
    return [(d.code, d.message, d.help) for d in check(text=text)]


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
