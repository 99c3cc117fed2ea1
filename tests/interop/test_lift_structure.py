"""What a lifted graph becomes: blocks, loops, shared weights and names. Each spec is compiled, given the module's
weights by the table of names, and has to compute what the module does."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.diagnostics.source import Source
from archdsl.interop.lift.authors import _statements, parameters, returned
from archdsl.interop.lift.export import Exported, Value, export
from archdsl.interop.lift.holes import chosen, filled, formula, opened
from archdsl.interop.lift.holes import written as value
from archdsl.interop.lift.module import executed
from archdsl.interop.lift.sizes import fitted
from archdsl.interop.lift.spec import Lifted, written
from archdsl.interop.lift.terms import Term
from archdsl.syntax.format import format_expr, format_tree
from archdsl.syntax.parse import parse_expression

OPERATORS = {"add": "+", "sub": "-", "mul": "*"}


def lowered(exported: Exported) -> list[tuple[str, Term]]:
    """The terms of a graph of the few operators that these modules have."""
    made: dict[Value, Term] = {}

    def term(v: Any) -> Any:
        if not isinstance(v, Value):
            return v
        if v not in made:
            made[v] = new(v)
        return made[v]

    def new(v: Value) -> Term:
        def of(op: str, *args: Any, weights: Mapping[str, Value] | None = None, **options: Any) -> Term:
            return Term(op, tuple(map(term, args)), options, weights or {}, v.shape, v)

        a = v.args
        match v.op:
            case "input":
                return of("input", name=v.name)
            case "weight":
                return of("param", weights={"": v})
            case "add" | "sub" | "mul":
                return of(OPERATORS[v.op], *a)
            case "linear":
                bias = {"bias": a[2]} if len(a) > 2 and a[2] is not None else {}
                options = {"features": a[1].shape[0], **({} if bias else {"bias": "false"})}
                return of("linear", a[0], weights={"weight": a[1], **bias}, **options)
            case "embedding":
                return of("embedding", a[1], weights={"weight": a[0]}, rows=a[0].shape[0], width=a[0].shape[1])
            case "layer_norm":
                return of("layernorm", a[0], weights={"weight": a[2], "bias": a[3]}, eps=a[4] if len(a) > 4 else 1e-5)
            case "leaky_relu":
                return of("leaky_relu", a[0], slope=a[1] if len(a) > 1 else 0.01)
            case "chunk" | "split":
                return of("chunk", a[0], parts=v.results)
            case "item":
                return of("item", a[0], i=a[1])
            case "select":
                return of("index", a[0], axis=a[1], at=a[2])
            case "arange":
                return of("indices", length=v.shape[0])
            case "cumsum":
                return of("cumsum", a[0], axis=a[1])
        return of(v.op, a[0])

    return [(name, term(v)) for name, v in exported.results]


def recorded(module: nn.Module, example: Mapping[str, Tensor] | None = None) -> Exported:
    example = example or {"tokens": torch.randint(0, 11, (3, 7))}
    return export(module.eval(), example, {n: ("batch", "time", None)[: x.dim()] for n, x in example.items()})


def lift(module: nn.Module, example: Mapping[str, Tensor] | None = None) -> tuple[str, Lifted]:
    """The text of a module as a spec, which computes what the module does."""
    example = example or {"tokens": torch.randint(0, 11, (3, 7))}
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) * 0.3)
    exported = recorded(module, example)
    found = written(lowered(exported), exported, "tested")
    text = format_tree(found.tree)
    same(text, found, module, example)
    return text, found


def same(text: str, found: Lifted, module: nn.Module, example: Mapping[str, Tensor]) -> None:
    """Hold a spec against the module: equal names of weights, equal results."""
    ours = archdsl.to_torch(text=text).eval()
    state = dict(module.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        own = dict(ours.named_parameters())
        assert {*own} == {w.ours for w in found.weights}, text
        for w in found.weights:
            own[w.ours].copy_(state[w.theirs].T if w.turned else state[w.theirs])
        expected, got = module(**example), ours(*(example[n] for n in found.inputs))
    for a, b in zip(*(list(leaves(x)) for x in (expected, got)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=text)


def leaves(result: Any) -> Sequence[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [*(result.values() if isinstance(result, dict) else result)]


class Layer(nn.Module):
    def __init__(self, width: int, slope: float = 0.1, wide: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.gate = nn.Linear(width, 3 * width) if wide else None
        self.down = nn.Linear(3 * width, width, bias=False)
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        h = nn.functional.leaky_relu(self.up(y), self.slope)
        if self.gate is not None:
            h = h * self.gate(y)
        return x + self.down(h)


class Stack(nn.Module):
    def __init__(self, layers: Sequence[nn.Module], width: int = 6, tied: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(11, width)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, 11, bias=bias)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_like_layers_are_one_block_and_a_loop() -> None:
    text, _ = lift(Stack([Layer(6) for _ in range(4)]))
    assert text == (
        """block Layer(x: [batch, time, 6]) -> [batch, time, 6] {
  h = x -> layernorm as norm -> linear(18) as up -> leaky_relu(slope: 0.1)
  return x + (h -> linear(6, bias: false) as down)
}

model tested(tokens: token[batch, time]) -> [batch, time, 11] {
  x = tokens -> embedding(11, 6) as words
  for i in 4 {
    x = x -> Layer as layers
  }
  return x -> linear(11, bias: false) as head
}
"""
    )


@pytest.mark.parametrize(
    ("slopes", "said"),
    [
        ((0.5, 0.5, 0.1, 0.5, 0.5, 0.1), "if i % 3 == 2 then 0.1 else 0.5"),
        ((0.5, 0.1, 0.1, 0.1), "if i == 0 then 0.5 else 0.1"),
        ((0.5, 0.5, 0.1, 0.1, 0.1), "if i < 2 then 0.5 else 0.1"),
        ((0.1, 0.3, 0.2, 0.7), "([0.1, 0.3, 0.2, 0.7])[i]"),
    ],
)
def test_what_differs_from_layer_to_layer_is_a_hyper_parameter(slopes: Sequence[float], said: str) -> None:
    text, _ = lift(Stack([Layer(6, slope) for slope in slopes]))
    assert f"Layer(slope: {said}) as layers" in text


def test_two_structures_by_turns_are_an_if() -> None:
    text, found = lift(Stack([Layer(6, wide=i % 2 == 1) for i in range(6)]))
    assert "if i % 2 == 1 {" in text or "if i % 2 == 0 {" in text
    assert "layers.5.gate.weight" in {w.ours for w in found.weights}


def test_first_layers_of_another_structure_stand_apart() -> None:
    text, _ = lift(Stack([Layer(6, wide=i < 1) for i in range(4)]))
    assert "for i in 3 {" in text
    assert "block Layer_2" in text


class Values(nn.Module):
    """Layers of which each mixes in what the first has made, and two streams that are carried."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = nn.Linear(6, 6)
            self.share = nn.Parameter(torch.rand(1))

        def forward(self, x: Tensor, side: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
            v = self.v(x)
            if first is None:
                first = v
            else:
                v = v + self.share * first
            x, side = side + v, x
            return x, side, first

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(self.Mixed() for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        side, first = x, None
        for layer in self.layers:
            x, side, first = layer(x, side, first)
        return x + side


def test_streams_are_carried_and_an_odd_first_layer_stands_apart() -> None:
    module = Values()
    with torch.no_grad():
        for p in module.parameters():
            p.normal_()
    text, _ = lift(module)
    assert "for i in 3 {" in text
    assert "param share: [1]" in text


class Loose(nn.Module):
    """Layers whose residuals and norms stand in the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(3))
        self.maps = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(6)) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for norm, linear, gain in zip(self.norms, self.maps, self.gains, strict=True):
            y = linear(norm(x))
            x = x + y * gain
        return x


def test_statements_that_repeat_are_a_loop() -> None:
    text, found = lift(Loose())
    assert "for i in 3 {" in text
    assert {"gains.2", "norms.1.weight", "maps.0.bias"} <= {w.ours for w in found.weights}


def test_tied_words() -> None:
    text, found = lift(Stack([Layer(6), Layer(6)], tied=True))
    assert "let words = shared(embedding(11, 6))" in text
    assert "unembed(words)" in text
    assert [w.theirs for w in found.weights].count("words.weight") + [w.theirs for w in found.weights].count(
        "head.weight"
    ) == 1


def test_tied_words_with_a_bias() -> None:
    text, _ = lift(Stack([Layer(6)], tied=True, bias=True))
    assert "-> unembed(words)) + bias" in text


def test_structures_without_a_rule_are_told_by_their_numbers() -> None:
    text, _ = lift(Stack([Layer(6, wide=i in (1, 4, 5)) for i in range(9)]))
    assert "if i == 1 or i == 4 or i == 5 {" in text


class Sides(nn.Module):
    """Two results, of which the author names one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        left = self.a(given).relu()
        right = self.b(given).tanh() + left
        return left, right


class ALayerWithANameThatIsLongerThanALineShouldBeToHoldSeveral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(6, 6)
        self.act = [nn.GELU()]

    def forward(self, y: Tensor) -> Tensor:
        z = self.act[0](self.map(y)).tanh()
        return z


class Odd(nn.Module):
    """What has no names of its own, or ones that something else has."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.sides = Sides()
        self.layers = nn.ModuleList(Layer(6) for _ in range(3))
        self.far = nn.ModuleList(ALayerWithANameThatIsLongerThanALineShouldBeToHoldSeveral() for _ in range(2))
        self.gain, self.other = nn.ParameterDict({"w": torch.ones(6)}), nn.ParameterDict({"w": torch.ones(6)})

    def forward(self, tokens: Tensor) -> Tensor:
        x = Layer = self.words(tokens)
        pair = self.sides(x)
        for layer in self.layers:
            x = layer(x)
        Layer = Layer * self.gain["w"] + x * self.other["w"] + pair[0] * pair[1]
        return self.far[1](self.far[0](Layer.relu() + pair[1])) + Layer


def test_what_has_no_name_gets_one() -> None:
    text, _ = lift(Odd())
    assert "left, right = " in text
    assert "for i in 3 {" in text


class Reads(nn.Module):
    """Layers of two classes that share a weight."""

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.map(self.norm(x)).relu()

    class Other(One):
        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.map(x).tanh())

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.one, self.other = self.One(), self.Other()
        self.other.map = self.one.map

    def forward(self, tokens: Tensor) -> Tensor:
        return self.other(self.one(self.words(tokens)))


def test_a_weight_that_different_layers_share() -> None:
    text, found = lift(Reads())
    assert "shared(linear(6))" in text
    assert len(found.weights) == len({w.theirs for w in found.weights})


class Flagged(nn.Module):
    """A module that is called in two ways."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor, flag: bool) -> Tensor:
            y = self.up(x).relu() if flag else self.up(x).tanh()
            return self.down(y) + x

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.part = self.Part()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.part(self.part(self.words(tokens), True), False)


def test_a_module_that_is_called_in_two_ways_is_refused() -> None:
    with pytest.raises(ArchError) as refused:
        lift(Flagged())
    (found,) = refused.value.diagnostics
    assert (found.code, found.message) == ("E0542", "`part` is called again, and does something else then")


class Again(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.again = Layer(6)
        self.last = nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for _ in range(3):
            x = self.again(x)
        y = self.last(x)
        return self.last(y.relu()) + x


def test_a_module_called_again_is_shared() -> None:
    text, found = lift(Again())
    assert "let again = shared(Layer)" in text
    assert "let last = shared(linear(6))" in text
    assert len(found.weights) == len({w.theirs for w in found.weights})


class Named(nn.Module):
    """A stem, and parts of some names that `forward` calls."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor] | None = None, **parts: nn.Module) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.calls: Any = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.calls(self, self.words(tokens))


class Inner(nn.Module):
    def __init__(self, width: int = 6, biased: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width, biased), nn.Linear(width, width, biased)

    def forward(self, given: Tensor) -> Tensor:
        return self.b(self.a(given).relu()).tanh()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other, self.c = Inner(), Inner(), nn.Linear(6, 6)

    def forward(self, source: Tensor) -> Tensor:
        got = self.inner(source)
        more = self.other(got)
        return self.c(more)


class Scaled(nn.Module):
    """A `forward` that is another method with an argument filled in."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def run(self, given: Tensor, scale: int) -> Tensor:
        return self.b(self.a(given).relu() * scale).tanh()

    forward = functools.partialmethod(run, scale=2)  # type: ignore[assignment]


class Sine(nn.Module):
    """Functions that are no methods; of the first Python cannot tell the parameters."""

    class Relu(nn.Module):
        forward = staticmethod(torch.relu)  # type: ignore[assignment]

    class Many(nn.Module):
        forward = staticmethod(lambda x: (x.sin() * x).cos() + x.tanh() * x)  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.map, self.many = self.Relu(), nn.Linear(6, 6), self.Many()

    def forward(self, given: Tensor) -> Tensor:
        return self.many(self.relu(self.map(given)))


class Mix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, near: Tensor, far: Tensor) -> Tensor:
        return self.a(near).relu() + self.b(far)


def parts(make: Callable[[], nn.Module], count: int) -> nn.ModuleList:
    return nn.ModuleList(make() for _ in range(count))


def linear_6() -> nn.Linear:
    return nn.Linear(6, 6)


class TwoBack(Named):
    def forward(self, tokens: Tensor) -> Tensor:
        near = self.words(tokens)
        far = self.side(near)
        for layer in self.layers:
            near, far = layer(near) + far, near
        return near


class ThreeBack(Named):
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        y = self.side(x)
        z = y.tanh()
        for layer in self.layers:
            x, y, z = layer(x, z), x, y
        return x + y * z


class Late(Named):
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.words(tokens))
        y = x.sin() * x
        return y * self.gains["norm"]


class Apart(Named):
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        with torch.no_grad():
            y = self.a(x).sin()
        with torch.autocast("cpu", enabled=False):
            z = x * 2
        return x + y + z


def in_turn(self: Named, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = layer(x)
    return x


def diagonal(self: Named, x: Tensor) -> Tensor:
    for i in range(3):
        x = self.grid[i][i](x)
    return x


def made_anew(_: Named, x: Tensor) -> Tensor:
    return nn.Sequential(nn.GELU(), nn.Tanh())(x)


def again(self: Named, x: Tensor) -> Tensor:
    return self.layernorm(self.layernorm(self.linear(self.linear(x).relu())))


FORMS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "blocks in blocks": (
        lambda: Named(lambda self, x: self.outer(x), outer=Outer()),
        (
            "block Outer(source: [batch, time, 6])",
            "  got = source -> Inner as inner\n  return got -> Inner as other -> linear(6) as c\n",
        ),
    ),
    "another width": (
        lambda: Named(lambda self, x: self.b(self.up(self.a(x))), a=Inner(), up=nn.Linear(6, 8), b=Inner(8)),
        ("block Inner(given: [batch, time, width])", "-> linear(width) as a ->", "-> Inner as a -> linear(8) as up"),
    ),
    "filled in": (
        lambda: Named(in_turn, layers=parts(Scaled, 3)),
        ("block Scaled(given: ", "(given -> linear(6) as a -> relu) * 2)", "x = x -> Scaled as layers"),
    ),
    "no methods": (lambda: Named(lambda self, x: self.sine(x), sine=Sine()), ("as map -> relu -> Many as many",)),
    "two back": (
        lambda: TwoBack(layers=parts(linear_6, 5), side=linear_6()),
        ("  for i in 5 {\n    near_3 = (near -> linear(6) as layers) + near_2\n    near_2 = near\n",),
    ),
    "three back": (
        lambda: ThreeBack(layers=parts(Mix, 5), side=linear_6()),
        ("  far = y -> tanh\n  for i in 5 {\n    x_2 = x -> Mix(far) as layers\n    far = y\n    y = x\n",),
    ),
    "along the diagonal": (
        lambda: Named(diagonal, grid=nn.ModuleList(parts(linear_6, 3) for _ in range(3))),
        ("as grid_0_0 -> linear(6) as grid_1_1 -> linear(6) as grid_2_2",),
    ),
    "called like primitives": (
        lambda: Named(again, linear=linear_6(), layernorm=Inner()),
        ("let linear_ = shared(linear(6))", "let layernorm_ = shared(Inner)"),
    ),
    "a weight called like a module": (
        lambda: Late(norm=nn.LayerNorm(6), gains=nn.ParameterDict({"norm": torch.ones(6)})),
        ("layernorm as norm\n", "param norm_: [6]"),
    ),
    "biased by turns": (
        lambda: Named(in_turn, layers=nn.ModuleList(Inner(6, i in (0, 3)) for i in range(4))),
        ("if i == 0 or i == 3 {", "linear(6, bias: false) as b"),
    ),
    "without gradients": (lambda: Apart(a=linear_6()), ("return x + (x -> linear(6) as a -> sin) + z",)),
    "made where it is called": (lambda: Named(made_anew), ("as words -> gelu -> tanh",)),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_modules(form: str) -> None:
    made, said = FORMS[form]
    text, _ = lift(made())
    for part in said:
        assert part in text, text


@pytest.mark.parametrize("kind", [Sine.Relu, Sine.Many])
def test_a_function_that_is_no_method_names_nothing(kind: type[nn.Module]) -> None:
    assert returned(kind) in ((), (None,))
    assert parameters(kind) in ((), ("x",))


class Wired(nn.Module):
    """Layers of which each maps one value and adds another; the results are those at some places."""

    def __init__(self, reads: Sequence[tuple[int, int]], ends: Sequence[int]) -> None:
        super().__init__()
        self.reads, self.ends = reads, ends
        self.words, self.maps = nn.Embedding(11, 6), parts(linear_6, len(reads))

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        x = self.words(tokens)
        values = [x, x.sin()]
        for layer, (a, b) in zip(self.maps, self.reads, strict=True):
            values.append(layer(values[a]) + values[b])
        return tuple(values[i] for i in self.ends)


@pytest.mark.parametrize(
    ("reads", "ends", "looped"),
    [
        ([(1, 1), (2, 2), (3, 3), (4, 4)], [5], True),
        ([(1, 1), (2, 2), (3, 3), (4, 4)], [5, 3], True),  # a turn in the middle is read behind them
        ([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [6, 4], True),
        ([(1, 1), (2, 2), (2, 3), (4, 1)], [5], True),
        ([(1, 0), (2, 1), (1, 1), (4, 3)], [5, 5], False),
        ([(0, 0), (2, 0), (3, 1), (4, 2), (5, 3)], [6, 2], True),
        ([(1, 0), (0, 1), (0, 0), (2, 4), (5, 2)], [6], False),
        ([(0, 1), (2, 3 - 1), (1, 0)], [2, 3, 4], False),
    ],
)
def test_layers_are_a_loop_where_each_reads_what_the_one_before_does(
    reads: Sequence[tuple[int, int]], ends: Sequence[int], looped: bool
) -> None:
    text, _ = lift(Wired(reads, ends))
    assert ("for i in" in text) == looped, text


def test_one_weight_under_two_paths() -> None:
    """The second module has no number where the first has one; or one in another place."""
    for name in ("out", "out_1"):
        module = Named(lambda self, x, name=name: getattr(self, name)(self.maps[0](x)), maps=parts(linear_6, 1))
        other = linear_6()
        other.weight, other.bias = module.maps[0].weight, module.maps[0].bias
        module.add_module(name, other)
        text, found = lift(module)
        assert "let maps_0 = shared(linear(6))" in text
        assert len(found.weights) == 3


def test_one_weight_twice_in_one_operator() -> None:
    module = Named(lambda self, x: nn.functional.layer_norm(x, (6,), self.gain, self.gain))
    module.gain = nn.Parameter(torch.ones(6))
    with pytest.raises(ArchError) as refused:
        lift(module)
    (found,) = refused.value.diagnostics
    expected = "one weight, `gain`, is read twice by a `layernorm`: there is no word for that yet"
    assert (found.code, found.message) == ("E0542", expected)


def test_a_file_that_has_changed_since_gives_no_names(tmp_path: Path) -> None:
    """What stands in it now may be no Python."""
    path = tmp_path / "model.py"
    path.write_text(LATER, encoding="utf-8")
    module = executed(path).Model()
    assert "sine = tokens ->" in lift(module)[0]
    for later in ("def (", "", "x = 1\n" * 3):
        path.write_text(later, encoding="utf-8")
        linecache.checkcache()
        _statements.cache_clear()
        assert "sine" not in lift(module)[0]


LATER = """\
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)

    def forward(self, tokens):
        sine = self.words(tokens).sin()
        return sine * sine.cos() + sine
"""


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.unused = nn.Linear(6, 6)
        self.cut = nn.Linear(6, 12)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        a, b = self.cut(self.words(tokens)).chunk(2, -1)
        self.unused(a)
        return {"mean": a, "for": b * a}


def test_several_results_keep_their_names_and_what_no_result_reads_is_gone() -> None:
    text, found = lift(Several())
    assert found.results == ("mean", "for_")
    assert "a, b = tokens -> embedding(11, 6) as words -> linear(12) as cut -> chunk(2)" in text
    assert "unused" not in text


class linear(nn.Module):  # noqa: N801
    """A class and attributes with names that the language has for other things."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names
        for name in names:
            self.add_module(name, nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names:
            x = x + getattr(self, name)(x).relu()
        return x


HOSTILE = (
    "for",
    "model",
    "scan",
    "größe",
    "gr__e",
    "名",
    "0",
    "batch",
    "causal",
    "i",
    "inf",
    "linear",
    "x" * 300,
    "shared",
)


class window(linear):  # noqa: N801
    pass


def test_blocks_hide_nothing_that_is_applied() -> None:
    layer = linear(("shared", "normal"))
    text, _ = lift(Stack([layer, window(("q",)), layer]))
    assert "block linear_(" in text
    assert "block window_(" in text
    assert "let layers_0 = shared(linear_)" in text


def test_names_of_the_language_and_other_alphabets() -> None:
    text, found = lift(Stack([linear(HOSTILE), linear(HOSTILE)]))
    assert {w.theirs.split(".")[2] for w in found.weights if w.theirs.startswith("layers.")} == {*HOSTILE}
    assert "for i in 2" in text


class Shuffled(nn.Module):
    """Values that exchange their names, and old values that are read late."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.maps = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        a = self.words(tokens)
        b = self.maps[0](a)
        a, b = b, a
        start = a
        a = self.maps[1](a.relu())
        b = self.maps[2](b + a)
        a = a * b
        return a + b + start


def test_values_that_exchange_names() -> None:
    lift(Shuffled())


class Sized(nn.Module):
    def __init__(self, n_layer: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.stack = Stack([Layer(width, 1 / heads) for _ in range(n_layer)], width)
        self.stack.words = nn.Embedding(vocabulary, width)
        self.stack.head = nn.Linear(width, width // heads)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.stack(tokens)


def test_numbers_have_the_names_of_the_configuration() -> None:
    configs = [(4, 12, 2, 40), (3, 20, 4, 50), (2, 30, 5, 60)]
    modules = [Sized(*c) for c in configs]
    found = [recorded(m) for m in modules]
    table = {n: [c[i] for c in configs] for i, n in enumerate(("n_layer", "width", "heads", "vocabulary"))}
    lifted = written(lowered(found[0]), found[0], "sized", table, [(lowered(e), e) for e in found[1:]])
    text = format_tree(lifted.tree)
    assert not lifted.notes
    assert "block Layer(heads)(x: [batch, time, width]) -> [batch, time, width]" in text
    assert "linear(3 * width) as up -> leaky_relu(slope: 1 / heads)" in text
    assert "model sized(n_layer = 4, width = 12, heads = 2, vocabulary = 40)" in text
    assert "for i in n_layer {" in text
    assert "linear(width / heads) as head" in text
    for config in configs[1:]:
        sizes = dict(zip(table, config, strict=True))
        ours = archdsl.to_torch(text=text, set=sizes)
        assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in Sized(*config).parameters())


def test_a_configuration_of_another_structure_is_told() -> None:
    a, b = recorded(Sized(4, 12, 2, 40)), recorded(Stack([Layer(6, wide=True)]))
    lifted = written(lowered(a), a, "sized", {"width": [12, 6]}, [(lowered(b), b)])
    assert len(lifted.notes) == 1
    assert "linear(36)" in format_tree(lifted.tree)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([48, 60, 80], "width"),
        ([144, 180, 240], "3 * width"),
        ([12, 10, 8], "width / heads"),
        ([192, 360, 800], "heads * width"),
        ([24, 20, 16], "width * groups / heads"),
        ([48**-0.5, 60**-0.5, 80**-0.5], "width ** -0.5"),
        ([48**0.5, 60**0.5, 80**0.5], "sqrt(width)"),
        ([12**-0.5, 10**-0.5, 8**-0.5], "(width / heads) ** -0.5"),
        ([7, 7, 7], None),
        ([5, 9, 2], None),
        ([0.25, 0.5, 0.75], None),
    ],
)
def test_formulas(column: Sequence[float], said: str | None) -> None:
    table = {"heads": [4, 6, 10], "groups": [2, 2, 2], "width": [48, 60, 80]}
    found = fitted(column, table)
    assert (None if found is None else format_expr(found)) == said


def test_no_formula_divides_by_nothing() -> None:
    """A field that is 0 in one configuration, as a window that is off, is no divisor; the size of another is none."""
    table = {"width": [48, 60], "window": [0, 4]}
    assert fitted([7, 15], table) is None
    assert fitted([0.5, 7.5], table) is None
    assert format_expr(fitted([0, 8], table)) == "2 * window"


@pytest.mark.parametrize(
    ("masks", "said"),
    [
        (("causal & window(8)", "causal") * 3, "if i % 2 == 0 then causal & window(8) else causal"),
        (("causal", "causal", "causal"), "causal"),
        (("full", "causal", "full"), "if i == 1 then causal else full"),
        (("full", "causal", "causal"), "if i == 0 then full else causal"),
        (("causal", "causal", "full", "full", "full"), "if i < 2 then causal else full"),
        (("full", "full", "full", "causal", "causal"), "if i >= 3 then causal else full"),
        (
            ("full", "causal", "prefix(3)", "strided(2)", "global(3)"),
            "([full, causal, prefix(3), strided(2), global(3)])[i]",
        ),
    ],
)
def test_masks_by_turns(masks: Sequence[str], said: str) -> None:
    assert shown(chosen(tuple(opened(parse_expression(Source("mask", m))) for m in masks))) == said


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0, 1, 2, 3), "i"),
        ((3, 5, 7), "2 * i + 3"),
        ((0, 4, 8), "4 * i"),
        ((5, 3, 1), "-2 * i + 5"),
        ((1, 2), "if i == 0 then 1 else 2"),
        ((None, 2, 2), "2"),
    ],
)
def test_numbers_by_turns(numbers: Sequence[int | None], said: str) -> None:
    assert shown(chosen(tuple(numbers))) == said


def shown(tree: Any) -> str:
    def whole(tree: Any) -> Any:
        return filled(tree, lambda h: whole(value(h.value)))

    return format_expr(whole(value(tree)))


# --- in several configurations ----------------------------------------------------------------------------------------


@dataclass
class Config:
    layers: int = 4
    width: int = 12
    heads: int = 2


class Configured(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(11, config.width)
        self.make(config)

    def make(self, config: Config) -> None:
        raise NotImplementedError


class Narrowed(Configured):
    """A block at three widths, and values that are called like fields."""

    def make(self, config: Config) -> None:
        head = config.width // config.heads
        self.a, self.down, self.b = Inner(config.width), nn.Linear(config.width, head), Inner(head)
        self.up, self.c = nn.Linear(head, 3 * config.width), Inner(3 * config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        width = self.a(self.words(tokens))
        heads = width.sin() * width
        heads = heads + heads.cos() * width
        return self.c(self.up(self.b(self.down(heads))))


class Small(Configured):
    """A block at one width, which is a formula of fields."""

    def make(self, config: Config) -> None:
        head = config.width // config.heads
        self.down, self.b = nn.Linear(config.width, head), Inner(head)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.b(self.down(self.words(tokens)))


class Tabled(Configured):
    """A number that no formula gives."""

    def make(self, config: Config) -> None:
        self.slope = {4: 0.125, 3: 0.77, 5: 0.41}[config.layers]

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.leaky_relu(self.words(tokens), self.slope)


class Windows(Configured):
    """Masks by turns that no one expression says for all depths, each read twice."""

    class Layer(nn.Module):
        def __init__(self, window: int | None) -> None:
            super().__init__()
            self.window = window

        def forward(self, x: Tensor) -> Tensor:
            place = torch.arange(x.shape[1])
            far = place[:, None] - place[None]
            mask = far >= 0 if self.window is None else (far >= 0) & (far < self.window)
            x = x[:, None]
            y = nn.functional.scaled_dot_product_attention(x, x, x.sin(), attn_mask=mask)
            return (x + nn.functional.scaled_dot_product_attention(y, y, x, attn_mask=mask))[:, 0]

    def make(self, config: Config) -> None:
        self.layers = nn.ModuleList(self.Layer(3 if i % 3 == 1 else None) for i in range(config.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("kind", "said", "remark"),
    [
        (Narrowed, ("linear(width / heads) as down -> Inner as b -> linear(3 * width) as up", "heads_2 = "), ""),
        (Small, ("linear(width / heads) as down -> Inner",), ""),
        (Tabled, ("leaky_relu(slope: 0.125)",), "in `tabled` `0.125` is something else in other configurations"),
        (Windows, ("window(3)",), " is something else in other configurations; no formula gives it"),
    ],
)
def test_what_differs_between_configurations(kind: type[Configured], said: Sequence[str], remark: str) -> None:
    """It is a formula of their fields; what no formula gives is told, and differs in what is compared."""
    found = archdsl.lift(kind, {"tokens": torch.randint(0, 11, (3, 7))}, args={"config": {}})
    for part in said:
        assert part in found.text, found.text
    assert found.verified == (not remark)
    assert remark in "; ".join(found.remarks), found.remarks
    assert found.checks[1].passed  # its own outputs


@pytest.mark.parametrize(
    ("number", "text"),
    [(True, "true"), (-2, "-2"), (0.5, "0.5"), (sympy.Rational(1, 3), "1 / 3"), (sympy.Integer(3), "3"), (7, "7")],
)
def test_numbers_as_the_language_writes_them(number: Any, text: str) -> None:
    assert format_expr(formula(number)) == text
