"""What a primitive claims of its numbers, and the proof of causality trusts: each claim against what PyTorch computes.

`reads` and `regroups` have their tests in test_contract.py, `parts` in test_parts.py, `states` in test_steps.py."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from rows import POSITIONS
from test_contract import CASES, compiled, inputs_of, outputs_of
from torch import Tensor

import archdsl
from archdsl.api import to_torch
from archdsl.ir.dims import Num
from archdsl.ir.graph import Model, OpNode, Value
from archdsl.ir.op import At, Example
from archdsl.ops import registry

INF = math.inf
KNOWN = (0.0, 1.0, -1.0, 2.0, -1000.0, -1e9, INF, -INF)
"""Numbers that an element may be known to be."""
FINITE = (-2.5, -1.0, -0.2, 0.0, 0.3, 1.0, 1.7)
"""Numbers that an element is where it is not known."""
ELEMENTWISE = [name for name in sorted(registry.names()) if registry.get(name).elementwise and name != "masked_bias"]
SILENT = ("divide", "floor_divide", "modulo")
"""Of which less is said than could be: what is left of infinite divisors, for one."""
OPTIONS = {"clamp": "(low: -0.5, high: 0.5)"}


def only(model: Model) -> OpNode:
    """The one node of a model."""
    (node,) = (n for n in model.block.graph.nodes if isinstance(n, OpNode))
    return node


@cache
def applied(name: str) -> tuple[OpNode | None, Any]:
    """An element-wise primitive of tensors of one axis; None where it is nothing but its input."""
    params = registry.get(name).header.tensors or ()
    inputs = ", ".join(f"{p.name}: {'bool' if p.type.kind == 'bool' else ''}[count]" for p in params)
    call = f"{name}{OPTIONS.get(name, '')}({', '.join(p.name for p in params)})"
    model = archdsl.load(text=f"model m({inputs}) {{ return {call} }}")
    nodes = model.block.graph.nodes
    return (nodes[0] if nodes and isinstance(nodes[0], OpNode) else None), to_torch(model).double().eval()


def cases(node: OpNode) -> Iterator[tuple[tuple[float | None, ...], list[Tensor]]]:
    """What may be known of one element of each input, and all such elements."""
    kinds = [v.is_bool for v in node.inputs if isinstance(v, Value)]
    for known in itertools.product(*((None, 0.0, 1.0) if b else (None, *KNOWN) for b in kinds)):
        choices = [([n] if n is not None else [0.0, 1.0] if b else FINITE) for n, b in zip(known, kinds, strict=True)]
        columns = zip(*itertools.product(*choices), strict=True)
        yield (
            known,
            [torch.tensor(c, dtype=torch.bool if b else torch.float64) for c, b in zip(columns, kinds, strict=True)],
        )


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_element_is_constant_where_it_is_said_to_be(name: str) -> None:
    """Whatever the numbers are that are not known: 0 times them is 0. What overrules all others is claimed."""
    node, module = applied(name)
    assert (node is None) == (name == "identity")
    if node is None:
        return
    for known, columns in cases(node):
        found = module(*columns).double()
        found = found[~found.isnan()]  # where a number is not finite after all: 0 / 0
        claim = node.op.constant(node, known)
        if claim is not None:
            assert len(found), (name, known, "is never a number")
            assert (found == claim).all(), (name, known, claim)
        elif None in known and len(found) and not node.op.relation and name not in SILENT:
            assert found.unique().tolist() not in ([0.0], [INF], [-INF]), (
                name,
                known,
                "is the same and not said to be",
            )


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_what_is_masked_has_no_weight(name: str) -> None:
    node = only(archdsl.load(text=f"model m(x: [8]) {{ return {name}(x) }}"))
    for number in (None, *KNOWN):
        x = torch.randn(200, 8, dtype=torch.float64)
        x[:, 3] = torch.randn(200) if number is None else number
        found = getattr(torch, name)(x, -1)[:, 3]
        claim = node.op.constant(node, (number,))
        assert claim is not None or number != -INF
        assert claim is None or (found == claim).all()


def test_a_bias_is_minus_infinity_where_it_is_masked() -> None:
    text = "model m(q: [batch, 2, time, 8], b: [time, time]) { return sdpa(q, q, q, b, mask: causal & keys(KEEP)) }"
    text = text.replace("KEEP", "q[:, 0, :, 0] > 0")
    nodes = archdsl.load(text=text).block.graph.nodes
    node = next(n for n in nodes if isinstance(n, OpNode) and n.op.adds_mask)
    for bias, mask in itertools.product((None, *KNOWN), (None, 0.0, 1.0)):
        expected = -INF if mask == 0 or bias == -INF else bias if mask == 1 else None
        assert node.op.constant(node, (bias, mask)) == expected
        assert node.op.picks(node, (bias, mask)) == (0 if mask == 1 else None)


def test_dropout_leaves_0_alone() -> None:
    node = only(archdsl.load(text="model m(x: [8]) { return dropout(0.5)(x) }"))
    assert [node.op.constant(node, (n,)) for n in (None, 0.0, 1.0, -INF)] == [None, 0.0, None, None]


def test_a_choice_picks_what_it_is_said_to_pick() -> None:
    node, module = applied("where")
    assert node is not None
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    for condition in (True, False):
        picked = node.op.picks(node, (float(condition), None, None))
        assert picked is not None
        assert module(torch.tensor([condition]), a, b).item() == picked
    assert node.op.picks(node, (None, None, None)) is None


# --- whole numbers that follow from positions -------------------------------------------------------------------------


NUMBERS = ("a + b", "a - b", "-a", "2 * a", "a * 3", "a + 1", "3 - a", "a * b", "a * 1.5", "a // 2", "a % 2", "abs(a)")
LINEAR = 7
"""So many of them are sums: the others multiply, divide or choose."""


@pytest.mark.parametrize("text", NUMBERS)
def test_sums_are_what_they_are_said_to_be(text: str) -> None:
    model = archdsl.load(text=f"model m(a: int[8], b: int[8]) {{ return ({text}) + 0 * (a + b) }}")
    given = {name: torch.randint(-9, 9, (8,)) for name, _ in model.inputs}
    known: dict[int, Tensor] = {id(v): given[name].double() for name, v in model.inputs}
    for node in model.block.graph.nodes:
        assert isinstance(node, OpNode)
        factors = node.op.combines(node)
        if factors is None:
            assert text in NUMBERS[LINEAR:]
            return
        terms = (known[id(v)] if isinstance(v, Value) else float(v) for v in node.inputs if isinstance(v, Value | Num))
        known[id(node.outputs[0])] = sum((float(f) * x for f, x in zip(factors, terms, strict=True)), torch.zeros(8))
    (result,) = model.block.graph.outputs
    assert torch.equal(known[id(result)], to_torch(model)(**given).double())


def test_sums_of_positions_are_followed() -> None:
    for text in NUMBERS[:LINEAR]:
        nodes = archdsl.load(text=f"model m(a: int[8], b: int[8]) {{ return {text} }}").block.graph.nodes
        assert all(isinstance(n, OpNode) and n.op.combines(n) is not None for n in nodes), text


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "==", "!="])
def test_a_comparison_is_the_relation_that_it_is_said_to_be(sign: str) -> None:
    model = archdsl.load(text=f"model m(a: int[8], b: int[8]) {{ return a {sign} b }}")
    node, a, b = only(model), torch.arange(8), torch.tensor([0, 2, 1, 3, 9, -1, 6, 0])
    assert node.op.relation == sign
    expected = torch.tensor([eval(f"{x} {sign} {y}") for x, y in zip(a.tolist(), b.tolist(), strict=True)])
    assert torch.equal(to_torch(model)(a, b), expected)


def test_indices_are_positions() -> None:
    model = archdsl.load(text="model m(x: [7]) { return indices(7) }")
    node = only(model)
    at = node.op.positions(node)
    assert at is not None
    assert to_torch(model)(torch.zeros(7)).tolist() == [value_at(at, (i,)) for i in range(7)]
    assert node.op.largest(node, ()) == 6


def value_at(at: At, index: Sequence[int]) -> float:
    return float(at.offset + sum(scale * index[axis] for axis, scale in at.axes))


# --- what is moved, filled, constant ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "example"), CASES)
def test_an_element_is_moved_from_where_it_is_said_to_be(name: str, example: Example) -> None:
    """Of an op that `moves` each element is that of the first input at exactly the position that `reads` gives; one
    that `fills` has `absent` where there is none."""
    op = registry.get(name)
    if not (op.moves or op.fills):
        return
    model, module = compiled(example)
    nodes = [n for n in model.block.graph.nodes if isinstance(n, OpNode) and n.op is op]
    first = next(v for _, v in model.inputs)
    if len(model.block.graph.nodes) > 1 or not nodes or nodes[0].inputs[0] is not first:
        return
    (node,) = nodes
    given = inputs_of(model, example)
    x = next(iter(given.values()))
    if not first.is_bool:
        given[next(iter(given))] = x = torch.arange(2, x.numel() + 2).reshape(x.shape).to(x.dtype)
    for (_, value), found in zip(model.outputs, outputs_of(module, given), strict=True):
        reads = op.reads_of(node, node.outputs.index(value))[0]
        assert all(at is not None and not at.also and not at.earlier for at in reads)
        for index in itertools.product(*map(range, found.shape)):
            source = [int(value_at(at, index)) for at in reads if at is not None]
            inside = all(0 <= i < n for i, n in zip(source, x.shape, strict=True))
            assert inside or op.fills
            expected = x[tuple(source)].to(found.dtype) if inside else op.absent(node)
            assert float(found[index]) == expected, (index, source)


@pytest.mark.parametrize(("name", "example"), CASES)
def test_what_is_constant_whatever_the_inputs_are(name: str, example: Example) -> None:
    op = registry.get(name)
    model, module = compiled(example)
    values = [v for v in model.block.graph.outputs if v is not None]
    for node in (n for n in model.block.graph.nodes if isinstance(n, OpNode) and n.op is op):
        claims = op.constants(node)
        assert bool(claims) or not op.alike, "one number everywhere is a constant"
        if claims and node.outputs[0] in values:
            found = outputs_of(module, inputs_of(model, example))[values.index(node.outputs[0])]
            for index in itertools.product(*map(range, found.shape)):
                assert all(float(found[index]) == pytest.approx(n) for at, n in claims if value_at(at, index) > 0)


MASKS = [
    *(str(mask) for name, mask in POSITIONS.items() if name != "full"),
    "causal & window(2)",
    "~causal",
    "causal | prefix(3)",
    "window(3) & ~global(1)",
]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("keys", [9, 12])
def test_a_mask_hides_what_it_is_said_to_hide(mask: str, keys: int) -> None:
    """The last query stands at the last key; `element` is exact, `constants` says where no key is seen."""
    text = f"model m(q: [1, 1, 9, 4], k: [1, 1, {keys}, 4]) {{ return sdpa(q, k, k, mask: {mask}) }}"
    model = archdsl.load(text=text)
    node = next(n for n in model.block.graph.nodes if isinstance(n, OpNode) and n.op.makes_mask)
    module, q, k = to_torch(model), torch.randn(1, 1, 9, 4), torch.randn(1, 1, keys, 4)
    with torch.no_grad():
        before = module(q, k)
        for key in range(keys):
            changed = k.clone()
            changed[0, 0, key] += 5
            seen = (module(q, changed) - before).abs().amax(-1)[0, 0] > 1e-7
            if before.isnan().any():
                return
            for query in range(9):
                index = (0, query, key)[-node.outputs[0].rank :]
                known = node.op.element(node, index)
                assert known == float(seen[query]) or (known is None and node.options["mask"].drawn)
                for at, value in node.op.constants(node):
                    assert value == 0
                    assert value_at(at, index) <= 0 or not seen[query]


# --- what counts for nothing ------------------------------------------------------------------------------------------


REDUCED = ("sum", "max", "min", "logsumexp", "mean", "var", "softmax", "log_softmax", "l2_normalize", "topk(3)")


@pytest.mark.parametrize("use", REDUCED)
def test_what_is_absent_counts_for_nothing(use: str) -> None:
    """A number at one more position changes nothing exactly if it is `absent`."""
    more = ", _" if "topk" in use else ""
    long, short = (archdsl.load(text=f"model m(x: [12, {n}]) {{ y{more} = x -> {use}  return y }}") for n in (9, 8))
    absent = only(long).op.absent(only(long))
    x = torch.randn(12, 8) + torch.arange(-6, 6).unsqueeze(1)
    expected = to_torch(short)(x)
    for number in (0.0, INF, -INF, 1.0):
        found = to_torch(long)(torch.cat((x, torch.full((12, 1), number)), 1))
        found = found[:, :8] if found.shape[-1] == 9 else found
        same = bool(torch.allclose(found, expected, rtol=1e-5, atol=1e-6))
        assert same == (number == absent), (use, number)


JOINTS = (
    ('einsum("b q k, b k d -> b q d", a, b)', "a: [2, 3, 4], b: [2, 4, 5]"),
    ('einsum("b q k, b k d, b k -> b q d", a, b, c)', "a: [2, 3, 4], b: [2, 4, 5], c: [2, 4]"),
    ('einsum("... i j, j -> ... i", a, b)', "a: [2, 3, 4], b: [4]"),
    ("matmul(a, b)", "a: [2, 3, 4], b: [2, 4, 5]"),
    ("matmul(a, b)", "a: [2, 1, 3, 4], b: [2, 4, 5]"),
    ("sdpa(a, b, c)", "a: [2, 4, 3, 4], b: [2, 2, 5, 4], c: [2, 2, 5, 6]"),
    ("sdpa(a, b, c, d)", "a: [2, 2, 3, 4], b: [2, 2, 5, 4], c: [2, 2, 5, 6], d: [2, 3, 5]"),
)


@pytest.mark.parametrize(("call", "inputs"), JOINTS)
def test_factors_meet_where_they_are_said_to_meet(call: str, inputs: str) -> None:
    """An element of an input changes those of the result alone that have its place along the axes of one name, and all
    of them; where one factor is `nothing`, the others that it meets there change nothing."""
    model = archdsl.load(text=f"model m({inputs}) {{ return {call} }}")
    node = next(n for n in model.block.graph.nodes if isinstance(n, OpNode) and n.op.joint(n) is not None)
    joint = node.op.joint(node)
    assert joint is not None
    module = to_torch(model).double()
    given = [torch.randn([int(d) for d in v.shape], dtype=torch.float64) for _, v in model.inputs]
    before = module(*given)
    places = [node.inputs.index(v) for _, v in model.inputs]
    terms, nothing = [joint.terms[i] for i in places], [joint.nothing[i] for i in places]
    for i, (x, term) in enumerate(zip(given, terms, strict=True)):
        for index in itertools.islice(itertools.product(*map(range, x.shape)), 0, None, 3):
            changed = x.clone()
            changed[index] += 1
            found = (module(*given[:i], changed, *given[i + 1 :]) - before).abs() > 1e-9
            allowed = torch.ones_like(found)
            for name, place, size in zip(term, index, x.shape, strict=True):
                if name in joint.result and size > 1:
                    axis = joint.result.index(name)
                    own = torch.arange(found.shape[axis]) == place
                    allowed &= own.reshape([-1 if a == axis else 1 for a in range(found.dim())])
            assert not (found & ~allowed).any(), (i, index)
        if nothing[i] is None:
            continue
        for name in set(term) - {*joint.result}:
            hidden = [y.clone() for y in given]
            hidden[i].select(term.index(name), 1).fill_(nothing[i] or 0.0)
            others = [y.clone() for y in hidden]
            for j, other in enumerate(terms):
                if j != i and name in other:
                    others[j].select(other.index(name), 1).add_(3.0)
            torch.testing.assert_close(module(*others), module(*hidden))
