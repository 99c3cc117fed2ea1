"""Every primitive keeps its contract: the examples it gives are compiled, run, differentiated and perturbed."""

from __future__ import annotations

import ast as python
import contextlib
import copy
import inspect
import itertools
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import archdsl
from archdsl.api import to_torch
from archdsl.backends.torch import emit
from archdsl.diagnostics import ArchError
from archdsl.ir.dims import Num
from archdsl.ir.graph import CallNode, Graph, Model, OpNode, Value
from archdsl.ir.op import EVERYWHERE, At, Example, Primitive, Reads, same
from archdsl.ops import registry
from archdsl.run.load import load_source

NAMES = sorted(registry.names())
CASES = [pytest.param(name, e, id=f"{name}-{i}") for name in NAMES for i, e in enumerate(registry.get(name).examples)]
MADE = {"draw", "listed", "mask", "masked_bias", "rope_table", "turn"}
"""Put into a graph by other primitives and never written: what writes them has the examples."""
DTYPES = {"float": None, "float32": torch.float32, "bfloat16": torch.bfloat16, "int": torch.int64, "bool": torch.bool}


def text_of(example: Example) -> str:
    return f"model m({example.inputs}) {{ {example.statements} return {example.expression} }}"


def drawn(value: Value, example: Example, generator: torch.Generator) -> Tensor:
    shape = [int(d) for d in value.shape]
    if value.is_bool:
        return torch.rand(shape, generator=generator) < 0.5
    if value.is_int:
        return torch.randint(example.below, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def inputs_of(model: Model, example: Example) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: drawn(value, example, generator) for name, value in model.inputs}


def outputs_of(module: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    result = module(**inputs)
    return [result] if isinstance(result, Tensor) else list(result)


@cache
def compiled(example: Example) -> tuple[Model, Any]:
    torch.manual_seed(0)
    model = archdsl.load(text=text_of(example))
    return model, to_torch(model).eval()


# --- every primitive ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_primitive_is_documented_and_shown(name: str) -> None:
    op = registry.get(name)
    assert op.name == name
    assert op.header is not None
    assert op.summary
    assert op.examples or name in MADE


@pytest.mark.parametrize("name", NAMES)
def test_no_primitive_imports_a_back_end(name: str) -> None:
    tree = python.parse(inspect.getsource(inspect.getmodule(type(registry.get(name)))))
    modules = [a.name for n in python.walk(tree) if isinstance(n, python.Import) for a in n.names]
    modules += [n.module or "" for n in python.walk(tree) if isinstance(n, python.ImportFrom)]
    assert not {m.partition(".")[0] for m in modules} & {"torch", "onnx", "onnx_ir", "onnxruntime", "transformers"}


# --- every example --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "example"), CASES)
def test_shapes_types_and_weights_are_those_foreseen(name: str, example: Example) -> None:
    model, module = compiled(example)
    for (_, value), found in zip(model.outputs, outputs_of(module, inputs_of(model, example)), strict=True):
        assert list(found.shape) == [int(d) for d in value.shape]
        assert found.dtype == (DTYPES[family(value)] or torch.float32)
        assert not found.isnan().any()
    assert sum(p.numel() for p in module.parameters()) == foreseen(model.block.graph)


@pytest.mark.parametrize(("name", "example"), [c for c in CASES if cast("Example", c.values[1]).gradients])
def test_gradients_are_finite_and_reach_every_weight_and_input(name: str, example: Example) -> None:
    model, module = compiled(example)
    inputs = inputs_of(model, example)
    sources = [t.requires_grad_() for t in inputs.values() if t.is_floating_point()] + list(module.parameters())
    total = sum(y.float().square().sum() for y in outputs_of(module, inputs) if y.requires_grad)
    for gradient in torch.autograd.grad(total, sources, allow_unused=True):
        assert gradient is not None
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("name", "example"), CASES)
def test_it_runs_in_bfloat16(name: str, example: Example) -> None:
    model, module = compiled(example)
    module = copy.deepcopy(module).bfloat16()
    inputs = {k: t.bfloat16() if t.is_floating_point() else t for k, t in inputs_of(model, example).items()}
    for (_, value), found in zip(model.outputs, outputs_of(module, inputs), strict=True):
        assert found.dtype == (DTYPES[family(value)] or torch.bfloat16)


NUMBER = re.compile(r"(?<![\w.])\d+\.?\d*(?:e-?\d+)?(?![\w.])")
NUMBERED = [c for c in CASES if NUMBER.search(cast("Example", c.values[1]).expression)]
ACCEPTED = Path(__file__).parent / "accepted.txt"
"""Of each example with numbers those that a Config may hold instead, in their order."""


def other_numbers(text: str) -> list[float]:
    """Numbers to try instead of one that stands in an example."""
    whole = text.isdecimal()
    n = int(text) if whole else float(text)
    found = (n + 1, n // 2, 2 * n, 0, n + 0.5) if whole else (n + 1, n / 2, 2 * n, 0)
    return [o for o in dict.fromkeys(found) if o != n]


@pytest.mark.parametrize(("name", "example"), NUMBERED)
def test_another_config_is_right_or_refused(
    name: str, example: Example, request: pytest.FixtureRequest, update_golden: bool
) -> None:
    """Each number of an example in turn is a field of the Config, and set to others: the emitted module does what one
    does that is compiled for them. Which are accepted is kept."""
    accepted = []
    for found in NUMBER.finditer(example.expression):
        numbered = f"{example.expression[: found.start()]}n{example.expression[found.end() :]}"
        text = text_of(replace(example, expression=numbered)).replace("model m(", f"model m(n = {found[0]})(", 1)
        try:
            model = archdsl.load(text=text)
        except ArchError:  # a number of the language itself, as in an einsum
            accepted.append(f"{found[0]} alone")
            continue
        made, inputs, others = load_source(emit(model)), inputs_of(model, example), []
        for n in other_numbers(found[0]):
            if name == "experts" and n < float(found[0]):
                continue  # what was chosen may be no expert then
            try:
                module = made(vars(sys.modules[made.__module__])["Config"](n=n)).eval()
            except (AssertionError, ValueError):
                continue
            others.append(f"{n:g}")
            results, expected = run(module, inputs), None
            with contextlib.suppress(ArchError):
                meant = load_source(emit(archdsl.load(text=text, set={"n": n})))().eval()
                meant.load_state_dict(module.state_dict())
                expected = run(meant, inputs)
            torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-5, equal_nan=True, msg=f"{text}, n = {n}")
        accepted.append(" or ".join([found[0], *others]))
    kept = dict(line.split(": ", 1) for line in ACCEPTED.read_text(encoding="utf-8").splitlines())
    case, said = request.node.callspec.id, ", ".join(accepted)
    if update_golden:
        kept[case] = said
        ACCEPTED.write_text("".join(f"{k}: {v}\n" for k, v in sorted(kept.items())), encoding="utf-8", newline="\n")
    assert kept.get(case) == said, "if this is meant: pytest --update-golden"


def test_accepted_numbers_are_kept_for_examples_that_there_are() -> None:
    kept = [line.partition(":")[0] for line in ACCEPTED.read_text(encoding="utf-8").splitlines()]
    assert kept == sorted(str(c.id) for c in NUMBERED)


def run(module: Any, inputs: dict[str, Tensor]) -> list[Tensor] | None:
    """The outputs of a module; None where it refuses the inputs."""
    torch.manual_seed(0)
    try:
        return outputs_of(module, inputs)
    except (AssertionError, IndexError, RuntimeError, ValueError):
        return None


@pytest.mark.parametrize(("name", "example"), CASES)
def test_nothing_is_read_that_it_does_not_claim_to_read(name: str, example: Example) -> None:
    model, module = compiled(example)
    nothing_else_is_read(model, module, inputs_of(model, example), example)


def test_axes_are_regrouped_as_said() -> None:
    """Cutting, moving and merging axes as `regroups` says gives the output."""
    regrouped = set()
    for case in CASES:
        name, example = cast("tuple[str, Example]", case.values)
        model, module = compiled(example)
        nodes = model.block.graph.nodes
        how = nodes[0].op.regroups(nodes[0]) if len(nodes) == 1 and isinstance(nodes[0], OpNode) else None
        if how is None:
            continue
        regrouped.add(name)
        ((key, value),) = model.inputs
        x = torch.arange(size(value.shape)).reshape([int(d) for d in value.shape]).float()
        parts = [(i, k) for i, cut in enumerate(how.cuts) for k in range(len(cut))]
        cut = x.reshape([int(how.cuts[i][k]) for i, k in parts])
        moved = cut.permute([parts.index(p) for axis in how.axes for p in axis])
        merged = moved.reshape([size([how.cuts[i][k] for i, k in axis]) for axis in how.axes])
        assert torch.equal(outputs_of(module, {key: x})[0], merged), (name, example)
    assert regrouped >= {"flatten", "merge_heads", "rearrange", "split_heads", "unflatten"}


# --- helpers --------------------------------------------------------------------------------------------------------


def family(value: Value) -> str:
    return "int" if value.is_int else "bool" if value.is_bool else value.dtype


def foreseen(graph: Graph) -> int:
    """How many numbers are trained, those of experts included."""
    total = 0
    for node in graph.nodes:
        if isinstance(node, OpNode):
            total += sum(size(w.shape) for w in node.weights if w.trained)
            total += sum(foreseen(call.block.graph) for call in node.blocks.values())
        elif isinstance(node, CallNode):
            total += foreseen(node.block.graph)
    return total


def size(shape: Sequence[Num]) -> int:
    total = 1
    for d in shape:
        total *= int(d)
    return total


def nothing_else_is_read(model: Model, module: Any, inputs: dict[str, Tensor], example: Example) -> None:
    """Change the inputs place by place, and see that outputs that claim not to read the place stay as they are."""
    with torch.no_grad():
        before = outputs_of(module, inputs)
        for key, value in model.inputs:
            bounds = [bounds_of(claimed(model, v, value), y) for (_, v), y in zip(model.outputs, before, strict=True)]
            for place in sampled(list(inputs[key].shape)):
                after = outputs_of(module, {**inputs, key: perturbed(inputs[key], place, example)})
                for allowed, old, new in zip(bounds, before, after, strict=True):
                    surprising = changed(old, new)
                    for axes in allowed:
                        inside = torch.ones_like(surprising)
                        for bound, p in zip(axes, place, strict=True):
                            inside &= bound >= p
                        surprising &= ~inside
                    assert not surprising.any(), (
                        f"{key}{list(place)} changes what claims not to read it: {surprising.nonzero().tolist()}"
                    )


def bounds_of(claims: list[Reads], output: Tensor) -> list[list[Tensor]]:
    """For each claim and each axis of an input the latest place read, at every place of an output."""
    spots = torch.meshgrid(*map(torch.arange, output.shape), indexing="ij")

    def bound(read: At | None) -> Tensor:
        found = torch.full(output.shape, math.inf if read is EVERYWHERE else -math.inf)
        for at in () if read is EVERYWHERE else (read, *read.also):
            place = torch.full(output.shape, float(at.offset))
            for axis, scale in at.axes:
                place += float(scale) * spots[axis]
            found = torch.maximum(found, place + 1e-4)
        return found

    return [[bound(read) for read in claim] for claim in claims]


def changed(old: Tensor, new: Tensor) -> Tensor:
    """Places that differ, rounding aside: rows that are sorted by expert may be added up in another order."""
    return ~torch.isclose(old, new, 1e-5, 1e-6, equal_nan=True) if old.is_floating_point() else old != new


def sampled(shape: list[int]) -> list[tuple[int, ...]]:
    """All places, or of a larger tensor every so many of them."""
    places = list(itertools.product(*map(range, shape)))
    return places[:: max(1, len(places) // 24)]


def perturbed(x: Tensor, place: tuple[int, ...], example: Example) -> Tensor:
    y = x.clone()
    if x.dtype == torch.bool:
        y[place] = ~y[place]
    elif x.is_floating_point():
        y[place] = -3 * y[place] + 1
    else:
        y[place] = (y[place] + 1) % example.below
    return y


def claimed(model: Model, output: Value, source: Value) -> list[Reads]:
    """What an output says that it reads of an input, along every path between them."""
    start: Reads = tuple(same(i) for i in range(output.rank))
    found: dict[int, list[Reads]] = {id(output): [start]}
    for node in reversed(model.block.graph.nodes):
        if not isinstance(node, OpNode):
            continue
        for k, result in enumerate(node.outputs):
            # A result with other axes than the first: `reads` speaks of the first only.
            alike = result.rank == node.outputs[0].rank
            for claim in found.get(id(result), []):
                for value, reads in zip(node.inputs, node.op.reads_of(node, k), strict=True):
                    if isinstance(value, Value):
                        assert len(reads) == value.rank, (node.op.name, reads)
                        path = tuple(through(read, claim) if alike else EVERYWHERE for read in reads)
                        found.setdefault(id(value), []).append(path)
    return found.get(id(source), [])


def through(read: At | None, claim: Reads) -> At | None:
    """A place read, as a function of the places of what reads the reader."""
    if read is EVERYWHERE:
        return EVERYWHERE
    forms: list[At] = []
    for form in (read, *read.also):
        assert all(scale >= 0 for _, scale in form.axes), "a bound has to grow with the place"
        outer = [claim[axis] for axis, _ in form.axes]
        if any(at is EVERYWHERE for at in outer):
            return EVERYWHERE
        for choice in itertools.product(*((at, *at.also) for at in outer if at is not None)):
            axes: dict[int, Fraction] = {}
            offset = form.offset
            for (_, scale), at in zip(form.axes, choice, strict=True):
                offset += scale * at.offset
                for a, s in at.axes:
                    axes[a] = axes.get(a, Fraction(0)) + scale * s
            forms.append(At(tuple(axes.items()), offset))
    return At(forms[0].axes, forms[0].offset, tuple(forms[1:]))


SILENT = {
    "torch": 2,
    "torch_module": 2,
    "torch_grouped_module": 2,
    "torch_step": 3,
    "onnx": 2,
    "onnx_step": 3,
    "torch_absorbed": 5,
    "torch_scaling": 2,
    "onnx_absorbed": 5,
}
"""What only some primitives say, and how much each is given."""


@pytest.mark.parametrize("method", SILENT)
def test_what_a_primitive_does_not_say_is_an_error_with_its_name(method: str) -> None:
    """A primitive that says neither is refused where a back end asks for it, and not written wrongly."""

    class Silent(Primitive):
        signature = "silent()(x: [...]) -> [...]"

    with pytest.raises(TypeError, match=r"^Silent "):
        getattr(Silent(), method)(*[None] * SILENT[method])
