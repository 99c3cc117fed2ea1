"""Element types mean the same everywhere: whatever a tensor holds, `check` refuses it in one diagnostic, or the emitted
code runs and returns the type that the IR says. Searched over every input of every primitive's examples, and over
whatever else is declared with a type."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import onnx
import pytest
import torch
from onnx_tools import distance, onnx_bytes, run
from ops.test_contract import DTYPES, MADE, NAMES, family, outputs_of
from ops.test_onnx import DTYPES as ONNX_DTYPES
from torch import Tensor, nn

import archdsl
from archdsl.backends.torch import emit
from archdsl.diagnostics import ArchError, Diagnostic
from archdsl.ir.graph import Model, OpNode, Value
from archdsl.ir.op import Example, Primitive
from archdsl.ops import registry
from archdsl.run.load import load_source
from archdsl.syntax import ast

KINDS = ("float", "float32", "bfloat16", "int", "bool")
WRITTEN = ("", *KINDS, "number", "token", "padding", "documents")
OWN = (torch.float32, torch.bfloat16)
"""What the model's own type may be."""
TENSOR = re.compile(r"(\w+): (\w*)(\[[^\]]*\])")


def loaded(text: str) -> Model | Diagnostic:
    """The model of a text, or the one diagnostic that refuses it."""
    try:
        return archdsl.load(text=text)
    except ArchError as problem:
        (found,) = problem.diagnostics
        assert found.code.startswith("E")
        assert found.span is not None
        return found


def drawn(value: Value, own: torch.dtype, below: int, generator: torch.Generator) -> Tensor:
    """Numbers for an input: positive ones, which have a root and a logarithm; whole ones below a number where they are
    places, else such that neighbours differ."""
    shape = [int(d) for d in value.shape]
    if value.is_bool:
        return torch.rand(shape, generator=generator) < 0.5
    if value.is_int and below:
        return torch.randint(below, shape, generator=generator)
    if value.is_int:
        return (torch.arange(torch.Size(shape).numel()) * 7 % 11 + 1).reshape(shape)
    return (torch.rand(shape, generator=generator) + 0.1).to(DTYPES[family(value)] or own)


def made(model: Model) -> nn.Module:
    """The emitted module, its file not laid out: thousands are made here, and nobody reads them."""
    module: nn.Module = load_source(emit(model))()
    return module


def wrong_types(model: Model, below: int = 0, training: bool = False) -> str:
    """What is wrong with the types that the emitted code returns, if anything is."""
    try:
        module = made(model).train(training)
        for own in OWN:
            generator = torch.Generator().manual_seed(0)
            inputs = {name: drawn(value, own, below, generator) for name, value in model.inputs}
            for (_, value), found in zip(model.outputs, outputs_of(module.to(own), inputs), strict=True):
                if found.dtype != (DTYPES[family(value)] or own):
                    return f"{found.dtype} instead of {value.dtype} in {own}"
                if list(found.shape) != [int(d) for d in value.shape]:
                    return f"{list(found.shape)} instead of {value.shape}"
    except Exception as problem:  # whatever it is, it is what is looked for
        return repr(problem)[:200]
    return ""


# --- primitives -----------------------------------------------------------------------------------------------------


def tensors_of(example: Example) -> list[list[str]]:
    """Name, type and shape of each input."""
    found = [list(m.groups()) for m in TENSOR.finditer(example.inputs)]
    assert ", ".join(written(t) for t in found) == example.inputs
    return found


def written(tensor: list[str]) -> str:
    name, kind, shape = tensor
    return f"{name}: {kind}{shape}"


def variants(example: Example) -> Iterator[tuple[str, int]]:
    """The example with one input, or all of them, of every other type: the text, and below what its whole numbers are
    where they are places."""
    tensors = tensors_of(example)
    own = [t[1] or "float" for t in tensors]
    changed = {(*own[:i], kind, *own[i + 1 :]) for i in range(len(own)) for kind in KINDS}
    changed |= {(kind,) * len(own) for kind in KINDS}
    for kinds in sorted(changed - {tuple(own)}):
        inputs = ", ".join(written([name, kind, shape]) for (name, _, shape), kind in zip(tensors, kinds, strict=True))
        places = any(before == after == "int" for before, after in zip(own, kinds, strict=True))
        text = f"model m({inputs}) {{ {example.statements} return {example.expression} }}"
        yield text, example.below if places else 0


TAKEN = {
    None: frozenset(KINDS),
    "float": frozenset({"float", "float32", "bfloat16"}),
    "number": frozenset({"float", "float32", "bfloat16", "int"}),
    "int": frozenset({"int"}),
    "bool": frozenset({"bool"}),
}
"""The types that a tensor of a signature may have."""
FRACTION = re.compile(r"(value|fill): -?0\.5")
"""A number that only tensors of real numbers are filled with."""


def taken(example: Example, op: Primitive) -> Callable[[str], bool] | None:
    """What says of a variant whether the signature takes it; None of an example that is more than the op."""
    model = archdsl.load(text=f"model m({example.inputs}) {{ {example.statements} return {example.expression} }}")
    nodes, params = model.block.graph.nodes, op.header.tensors or ()
    if len(nodes) != 1 or not isinstance(nodes[0], OpNode) or nodes[0].op.name != op.name:
        return None
    positions = {id(value): i for i, (_, value) in enumerate(model.inputs)}
    given = [
        (positions[id(v)], params[min(i, len(params) - 1)])
        for i, v in enumerate(nodes[0].inputs)
        if isinstance(v, Value)
    ]

    def takes(text: str) -> bool:
        kinds = [m.group(2) or "float" for m in TENSOR.finditer(text.partition("{")[0])]
        if FRACTION.search(text) and not set(kinds) <= TAKEN["float"]:
            return False
        alike = {kinds[i] for i, p in given if p.name in op.one_type}
        return len(alike) < 2 and all(kinds[i] in TAKEN[p.type.kind] for i, p in given)

    return takes


@pytest.mark.parametrize("name", [n for n in NAMES if registry.get(n).examples])
def test_another_type_is_refused_or_right(name: str) -> None:
    """Refused is what the signature does not take, and nothing else."""
    op = registry.get(name)
    wrong, accepted = {}, set()
    for example in op.examples:
        takes = taken(example, op)
        for text, below in variants(example):
            model = loaded(text)
            assert takes is None or isinstance(model, Model) == takes(text), text
            if isinstance(model, Model) and text not in accepted:
                accepted.add(text)
                if problem := wrong_types(model, below):
                    wrong[text] = problem
    assert wrong == {}
    assert accepted or name == "embedding"  # of one type alone


@pytest.mark.parametrize("name", [n for n in NAMES if registry.get(n).elementwise and n != "masked_bias"])
def test_numbers_beside_tensors(name: str) -> None:
    """Whole and broken numbers in place of each operand."""
    count = len(registry.get(name).header.tensors or ())
    wrong = {}
    for operands in itertools.product(("x", "2", "0.5"), repeat=count):
        for kind in KINDS if "x" in operands and set(operands) != {"x"} else ():
            text = f"model m(x: {kind}[2, 5]) {{ return {name}({', '.join(operands)}) }}"
            model = loaded(text)
            if isinstance(model, Model) and (problem := wrong_types(model)):
                wrong[text] = problem
    assert wrong == {}


def types_of(data: bytes) -> list[torch.dtype]:
    """The types of a graph's results."""
    return [ONNX_DTYPES[o.type.tensor_type.elem_type] for o in onnx.load_from_string(data).graph.output]


def wrong_graphs(example: Example, avoid: str) -> dict[str, str]:
    """What is wrong with the ONNX graphs of an example's variants, but for those that speak of `avoid`. Those of
    bfloat16, for which onnxruntime has few kernels on a CPU, are checked by onnx itself, and not run."""
    wrong = {}
    for text, below in variants(example):
        model = loaded(text)
        if isinstance(model, Diagnostic) or avoid in text:
            continue
        torch.manual_seed(0)
        module, generator = made(model).eval(), torch.Generator().manual_seed(0)
        inputs = {name: drawn(value, torch.float32, below, generator) for name, value in model.inputs}
        expected = outputs_of(module, inputs)
        data = onnx_bytes(model, module)
        types = types_of(data)
        if types != [t.dtype for t in expected]:
            wrong[text] = f"{types}"
        elif "bfloat16" not in text and torch.bfloat16 not in types:
            apart = max(distance(a, b) for a, b in zip(run(data, inputs), expected, strict=True))
            if apart > 2e-5:
                wrong[text] = f"{apart}"
    return wrong


@pytest.mark.parametrize("name", NAMES)
def test_onnx_says_the_same_of_another_type(name: str) -> None:
    for example in registry.get(name).examples[:1]:
        assert wrong_graphs(example, "bfloat16") == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_onnx_says_the_same_of_every_other_type(name: str) -> None:
    for example in registry.get(name).examples:
        assert wrong_graphs(example, "nothing") == {}


@pytest.mark.parametrize("own", ["bfloat16", "float32", "int"])
def test_a_tensor_without_axes_takes_on_the_type_of_its_partner(own: str) -> None:
    wrong = {}
    for result in ("x * exp(ones())", "where(x > 0, x, zeros())", "x / fill(0.5)", "x + cast(ones(), float32)"):
        text = f"model m(x: {own}[2, 5]) {{ return {result} }}"
        model = archdsl.load(text=text)
        problem = wrong_types(model)
        if own != "int":
            assert [v.dtype for _, v in model.outputs] == [own]
        foreseen = [DTYPES[family(v)] or torch.float32 for _, v in model.outputs]
        if problem or types_of(onnx_bytes(model, made(model))) != foreseen:
            wrong[text] = problem or "another in ONNX"
    assert wrong == {}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "text",
    [
        "x * where(x > 0, 0.5, 0)",
        "softmax(x + where(x > 1.9, -inf, 0))",
        "where(x > 0, 1, 0.5)",
        "where(x > 0, 0.1, 1 / 3) + where(x > 0.5, 2, 3)",
        "scan_ * 2",
    ],
)
def test_a_choice_of_two_numbers_is_of_the_models_own_type(text: str, dtype: str) -> None:
    """In both back ends, so that what follows is; a fraction makes no float32 of it."""
    steps = "scan_ = scan h: [2, 2] = 0 for t in x { h = h + where(t > 0, 0.5, -0.5)  emit h }\n"
    spec = f"model m(x: [2, 5, 2]) {{ {steps if 'scan_' in text else ''} return {text} }}"
    model = archdsl.load(text=spec)
    assert [v.dtype for _, v in model.outputs] == ["float"]
    kind = getattr(torch, dtype)
    module = made(model).to(kind)
    x = torch.linspace(-2, 2, 20).reshape(2, 5, 2)
    found = module(x.to(kind))
    assert found.dtype == kind
    torch.testing.assert_close(found.float(), made(model)(x), rtol=2e-2, atol=2e-2)
    assert types_of(onnx_bytes(model, made(model), dtype=dtype)) == [kind]


# --- declared blocks ------------------------------------------------------------------------------------------------


def plain(name: str) -> bool:
    """Whether a primitive needs nothing but its tensors."""
    header = registry.get(name).header
    needs = [h for h in header.hypers or () if h.default is None]
    numbers = any(not p.type.dims for p in header.tensors or ())  # sizes, which only other primitives give
    return bool(header.tensors) and not needs and not numbers


def shape_for(type_: ast.TensorType) -> str:
    """A shape that fits a written one: every name is of size 2."""
    return f"[{', '.join('2' for _ in type_.dims)}]"


@pytest.mark.parametrize("name", [n for n in NAMES if plain(n) and n not in MADE])
def test_a_block_with_the_signature_of_a_primitive_refuses_what_it_refuses(name: str) -> None:
    op = registry.get(name)
    params = op.header.tensors or ()
    declared = op.signature[op.signature.index(")(") + 1 :].partition(") ->")[0] + ")"
    first = params[0].name
    alike = [(kind,) * len(params) for kind in KINDS]
    for kinds in itertools.product(KINDS, repeat=len(params)) if len(params) < 3 else alike:
        inputs = ", ".join(f"{p.name}: {kind}{shape_for(p.type)}" for p, kind in zip(params, kinds, strict=True))
        given = ", ".join(p.name for p in params)
        by_op = loaded(f"model m({inputs}) {{ return {name}()({given}) }}")
        by_block = loaded(f"block mine{declared} {{ return {first} }}\nmodel m({inputs}) {{ return mine({given}) }}")
        if isinstance(by_block, Diagnostic):
            assert isinstance(by_op, Diagnostic)
            assert by_block.code == by_op.code == "E0304"
            assert by_block.message == by_op.message.replace(f"`{name}`", "`mine`")
            assert by_block.help == by_op.help
        elif isinstance(by_op, Diagnostic) and by_op.code == "E0304":
            assert "of one type" in by_op.message, "a block takes what the primitive refuses"


@pytest.mark.parametrize(
    ("statements", "origin"),
    [
        ("y = x -> cast(float32) -> own", "cast(float32)"),
        ("h = cast(float32)(x)\n g = h * 2\n y = exp(x + g) -> own", "cast(float32)(x)"),
        ("w = indices(2) -> cast(float32)\n y = (x * w) -> own", "cast(float32)"),
        ("w = indices(2) / 2\n for i in 3 { x = x * w }\n y = x -> own", "indices(2) / 2"),
        ("h = cast(float32)(x)\n y = x\n for i in 3 { y = (h + i) -> own }", "cast(float32)(x)"),
        ("h = cast(float32)(x)\n y = scan s: bfloat16[2, 2] = 0 for t in h { s = s + t\n emit s }", "cast(float32)(x)"),
        ("h = x -> cast(float32)\n y = h * x : bfloat16[2, 5, 2]", "cast(float32)"),
        ("h = x -> cast(float32)\n y = scan s: bfloat16[2, 2] = h[:, 0] for t in x { emit s }", "cast(float32)"),
        ("h = concat(x, x -> cast(float32))\n y = h -> own", "cast(float32)"),
        ("buffer w: float32[2] = 1\n y = (x * w) -> own", "buffer w: float32[2] = 1"),
        ("y = (x -> wide) -> own", "wide"),
        ("y = x -> cast(bfloat16) -> wide_in", ""),
    ],
)
def test_an_error_of_types_says_where_the_type_came_from(statements: str, origin: str) -> None:
    spec = f"""
block own(x: bfloat16[..., width]) -> [..., width] {{ return x }}
block wide(x: [..., width]) -> [..., width] {{ return x -> cast(float32) }}
block wide_in(x: float32[..., width]) -> [..., width] {{ return x }}
model m(x: bfloat16[2, 5, 2]) {{
  {statements}
  return y
}}
"""
    with pytest.raises(ArchError) as caught:
        archdsl.load(text=spec)
    found = caught.value.diagnostics[0]
    assert found.code == "E0304"
    labels = [label.span.text for label in found.labels if "from here on" in label.text]
    assert labels == ([origin] if origin else [])


# --- whatever else is declared with a type ----------------------------------------------------------------------------

SIGNATURES = (
    "block b(x: {written}[2, 5]) -> [2, 5] {{ return x * 2 + 1 }}\nmodel m(x: {held}[2, 5]) {{ return b(x) }}",
    "inline block b(x: {written}[2, 5]) -> [2, 5] {{ return x * 2 }}\nmodel m(x: {held}[2, 5]) {{ return b(x) }}",
    "block b(x: [2, 5]) -> {written}[2, 5] {{ return x }}\nmodel m(x: {held}[2, 5]) {{ return b(x) }}",
    "model m(x: {held}[2, 5]) -> {written}[2, 5] {{ return x }}",
    "model m(x: {held}[2, 5]) {{ y = stop_gradient(x) : {written}[2, 5]\n return y }}",
    "model m(x: {held}[2, 5], s: {held}[2]) "
    "{{ ys = scan h: {written}[2] = s for x_t in x {{ emit h\n h = x_t }}\n return ys, h }}",
    "model m(x: {held}[2, 5]) {{ ys = scan h: {written}[2] = 0 for x_t in x {{ h = h + x_t\n emit h }}\n return ys }}",
    "model m(x: {held}[2, 5]) {{ ys = scan h: {written}[2] = 0.5 for x_t in x {{ emit h\n h = x_t }}\n return h }}",
)
"""Texts in which a tensor of one type meets a declaration of another."""

MEETINGS = (
    "model m(x: {one}[2, 5], y: {other}[2, 5]) {{ if training {{ z = x }} else {{ z = y }}\n return z + 1 }}",
    "model m(x: {one}[2, 5], y: {other}[2, 5]) {{ for i in 3 {{ x = x + y }}\n return x }}",
    "model m(x: {one}[2, 5], y: {other}[2, 5]) {{ x += y\n return concat(x, y), stack(x, y) }}",
    "model m(x: {one}[2, 5]) {{ buffer p: {other}[2, 5] = 1\n return x * p, p }}",
    "model m(x: {one}[2, 5]) {{ param p: {other}[2, 5] = 1\n return x * p, p }}",
    "model m(x: {one}[2, 4, 8], y: {other}[2, 4, 8]) {{ return mha(heads: 2)(x, y) }}",
    "block e(x: [..., width]) -> [..., width] {{ return x -> cast({one}) -> linear(8) -> gelu -> cast({other}) }}\n"
    "model m(x: [2, 6, 8], w: [2, 6, 2], c: int[2, 6, 2]) {{ return experts(e, 3)(x, w, c) }}",
    "model m(x: {one}[2, 5], y: {other}[2, 5]) {{ let s = shared(linear(5))\n return s(x), s(y) }}",
)
"""Texts in which tensors of two types meet."""


@pytest.mark.parametrize("text", SIGNATURES)
def test_what_is_declared_is_what_arrives(text: str) -> None:
    wrong: dict[str, str] = {}
    accepted = set()
    for kind, held in itertools.product(WRITTEN, KINDS):
        spec = text.format(written=kind, held=held)
        model = loaded(spec)
        if isinstance(model, Model):
            accepted.add((kind, held))
            for training in (False, True):
                if problem := wrong_types(model, training=training):
                    wrong[spec] = problem
        elif "scan" not in text:
            assert model.code == "E0304"
    assert wrong == {}
    assert accepted & {(kind, kind) for kind in KINDS}
    if "scan" not in text:
        assert not accepted & {("float32", "float"), ("bfloat16", "float32"), ("int", "float"), ("number", "bool")}


@pytest.mark.parametrize("text", MEETINGS)
def test_types_that_meet(text: str) -> None:
    wrong, accepted = {}, 0
    for one, other in itertools.product(KINDS, KINDS):
        spec = text.format(one=one, other=other)
        model = loaded(spec)
        if isinstance(model, Model):
            accepted += 1
            below = 3 if "experts" in spec else 0
            for training in (False, True):
                if problem := wrong_types(model, below, training):
                    wrong[spec] = problem
    assert wrong == {}
    assert accepted


REFUSED = [
    ("model m(table: [5, 8], ids: [2, 3]) { return table[ids] }", "`lookup` takes whole numbers as `ids`"),
    ("model m(x: [2, 3]) { return x -> one_hot(6) }", "`one_hot` takes whole numbers"),
    (
        "model m(x: [2, 5], places: [2, 3], values: [2, 3]) { return scatter_add(x, places, values) }",
        "`scatter_add` takes whole numbers as `positions`",
    ),
    (
        "model m(q: int[2, 4, 5, 8], k: int[2, 4, 5, 8], v: int[2, 4, 5, 8]) { return sdpa(q, k, v) }",
        "`sdpa` takes real numbers as `q`",
    ),
    ("model m(ids: int[2, 5]) { return ids -> silu }", "`silu` takes real numbers"),
    (
        "block pick(table: [rows, width], ids: int[batch, time]) { return table[ids] }\n"
        "model m(table: [5, 8], ids: [2, 3]) { return pick(table, ids) }",
        "`pick` takes whole numbers as `ids`",
    ),
    ("model m(x: number[2, 5]) { return x }", "`number` is what a signature takes"),
    ("model m(x: [2, 5]) { param p: number[2, 5] = 1\n return x + p }", "`number` is what a signature takes"),
    ("model m(x: whole[2, 5]) { return x }", "`whole` is no type of tensors"),
    ("model m(x: [2, 5]) { return masked_bias(x, x > 0) }", "unknown name `masked_bias`"),
    ("model m(q: [2, 5, 8]) { return sdpa(q, q, q, bias: 3) }", "`bias`"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_must_be_refused(text: str, words: str) -> None:
    found = loaded(text)
    assert isinstance(found, Diagnostic)
    assert words in found.message


def test_an_unknown_type_is_told_which_there_are() -> None:
    for kind, help_ in {"flaot": "did you mean `float`?", "zzz": "types are token, int, bool, padding, "}.items():
        found = loaded(f"model m(x: {kind}[2, 5]) {{ return x }}")
        assert isinstance(found, Diagnostic)
        assert found.help.startswith(help_)
