"""Rules that follow from a signature alone: broadcasting, result shapes by names of axes, what is read along each
axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from archdsl.diagnostics import Label
from archdsl.ir.dims import Num, Shape, shape_text
from archdsl.ir.graph import Input, OpNode, Value
from archdsl.ir.op import EVERYWHERE, Application, At, Parts, Primitive, Reads, same
from archdsl.syntax import ast

ORDER = ("bool", "int", "bfloat16", "float", "float32")


def promoted(inputs: Sequence[Input]) -> str:
    """The type that inputs have together: a number takes on the type of its partners. A tensor without axes does so,
    too, unless it is of another kind, as 0.5 among whole numbers is: PyTorch's rule."""
    found = "bool"
    tensors = [v for v in inputs if isinstance(v, Value)]
    if not tensors:
        return "float"
    for value in tensors:
        if value.rank == 0 and value.is_float and any(v.rank and v.is_float for v in tensors):
            continue
        dtype = "int" if value.is_int else "bool" if value.is_bool else value.dtype
        found = max(found, dtype, key=ORDER.index)
    if found in ("bool", "int") and any(isinstance(v, Num) and isinstance(v.value, Fraction | float) for v in inputs):
        return "float32"
    return "int" if found == "bool" and any(isinstance(v, Num) for v in inputs) else found


def real_type(inputs: Sequence[Input]) -> str:
    """The type of a function with real values: float32 where whole numbers come in."""
    found = promoted([v for v in inputs if isinstance(v, Value)])
    return "float32" if found in ("int", "bool") else found


def result_types(op: Primitive, call: Application) -> Sequence[str]:
    """Types as the signature writes them: `float` is that of a function with real values; without one, a result has
    the type that the inputs have together."""
    kinds = [result.type.kind for result in op.header.results or ()] or [None]
    made = {None: promoted, "float": real_type}
    return [made[kind](call.inputs) if kind in made else str(kind) for kind in kinds]


def broadcast(call: Application, name: str) -> Shape:
    """The shape of an element-wise result: axes from the right are equal or 1 (NumPy's rule). Raises E0301."""
    result: list[Num] = []
    owner: list[int] = []
    for i, value in enumerate(call.inputs):
        if not isinstance(value, Value):
            continue
        shape = value.shape
        while len(result) < len(shape):
            result.insert(0, shape[len(shape) - len(result) - 1])
            owner.insert(0, i)
        for back in range(1, len(shape) + 1):
            mine, other = shape[-back], result[-back]
            if call.fits(mine, other):
                continue
            if call.is_number(other, 1):
                result[-back], owner[-back] = mine, i
                continue
            raise shape_mismatch(call, name, owner[-back], i, back)
    return tuple(result)


AXIS_WORDS = {1: "the last axis", 2: "the last axis but one", 3: "the last axis but two"}


def shape_mismatch(call: Application, name: str, first: int, second: int, back: int) -> Any:
    a, b = call.tensor(first), call.tensor(second)
    symbols = {"plus": "+", "minus": "-", "times": "*", "divide": "/"}
    shown = symbols.get(name, name)
    where = AXIS_WORDS.get(back, f"axis -{back}")
    err = call.error(
        "E0301",
        f"`{shown}` needs equal shapes, but its two sides differ in {where}: "
        f"{shape_text(a.shape)} and {shape_text(b.shape)}",
        input=second,
        help="axes are compared from the right; an axis of size 1 fits any other",
    )
    diagnostic = err.diagnostics[0]
    labels = [
        Label(d.origin, f"{f'`{v.name}`' if v.name else 'a side'} gets this axis, {d}, here")
        for v, d in ((a, a.shape[-back]), (b, b.shape[-back]))
        if d.origin is not None and d.origin != diagnostic.span
    ]
    object.__setattr__(diagnostic, "labels", (*diagnostic.labels, *labels))
    return err


def result_shapes(op: Primitive, call: Application) -> Sequence[Shape]:
    """Shapes as the signature writes them: names are axes of the tensors or options; `...` is that of the first tensor
    that has one."""
    rest: Shape = ()
    for param, value in zip(op.header.tensors or (), call.inputs, strict=False):
        spot = next((i for i, d in enumerate(param.type.dims) if isinstance(d, ast.Ellipsis)), None)
        if spot is not None and isinstance(value, Value):
            after = len(param.type.dims) - spot - 1
            rest = value.shape[spot : len(value.shape) - after]
            break
    assert op.header.results is not None, op.name
    shapes = []
    for result in op.header.results:
        dims: list[Num] = []
        for dim in result.type.dims:
            if isinstance(dim, ast.Ellipsis):
                dims.extend(rest)
            else:
                assert isinstance(dim, ast.Name), f"{op.name}: a result's axis is a name or `...`; else write `shapes`"
                dims.append(call.axes[dim.id] if dim.id in call.axes else call.options[dim.id])
        shapes.append(tuple(dims))
    return shapes


def elementwise_reads(node: OpNode) -> Sequence[Reads]:
    """Each position reads its own; a broadcast axis of size 1 has only position 0."""
    rank = node.outputs[0].rank
    reads: list[Reads] = []
    for value in node.inputs:
        if not isinstance(value, Value):
            reads.append(())
            continue
        offset = rank - value.rank
        reads.append(
            tuple(
                At() if d.value == 1 != node.outputs[0].shape[offset + i].value else same(offset + i)
                for i, d in enumerate(value.shape)
            )
        )
    return reads


def computed(op: Primitive, known: Sequence[float | None]) -> float | None:
    """What numpy makes of numbers that are all known; None where one is not, the op says nothing of numpy, or a number
    may be rounded in a type of 16 bits."""
    numbers = [n for n in known if n is not None and never_rounded(n)]
    if not isinstance(op.numpy, str) or not op.elementwise or len(numbers) < len(known):
        return None
    import numpy as np

    with np.errstate(all="ignore"):
        found = float(getattr(np, op.numpy)(*numbers))
    return found if never_rounded(found) else None


def never_rounded(n: float) -> bool:
    """Whether a number is the same in every type: infinite, or whole and small."""
    return math.isinf(n) or (abs(n) <= 256 and n == math.floor(n))


def named_reads(op: Primitive, node: OpNode) -> Sequence[Reads]:
    """What follows from names: an axis that input and result share stands at the same position; all others are read
    whole."""
    if op.elementwise:
        return elementwise_reads(node)
    results = op.header.results
    first = (
        op.header.tensors[0].type.dims
        if results is None and op.header.tensors
        else results[0].type.dims
        if results
        else ()
    )
    out = spread(first, node.outputs[0].rank)
    reads: list[Reads] = []
    params = list(op.header.tensors or ())
    for i, value in enumerate(node.inputs):
        if not isinstance(value, Value):
            reads.append(())
            continue
        names = spread(params[min(i, len(params) - 1)].type.dims, value.rank)
        reads.append(tuple(same(out.index(n)) if n in out else EVERYWHERE for n in names))
    return reads


def default_parts(op: Primitive, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
    """How an op works on parts, as far as its contract says without a word of its own."""
    if op.elementwise:
        return elementwise_parts(node, cut)
    first, *others = node.inputs or (None,)
    if not isinstance(first, Value) or cut[0] is None or any(isinstance(v, Value) for v in others):
        return None
    if op.regroups(node) is not None:
        sized = any("size" in (h.kind or "") for h in op.header.hypers or ())
        return None if sized else regrouped_parts(op, node, cut)
    if not op.passes and len(cut) == 1:
        return moved_parts(op, node, cut[0])
    if op.mixes or len(node.outputs) != 1 or node.outputs[0].rank != first.rank:
        return None
    names = spread((op.header.tensors or ())[0].type.dims, first.rank)
    return Parts(cut[0]) if names[cut[0]].startswith("...") else None


def moved_parts(op: Primitive, node: OpNode, cut: int) -> Parts | None:
    """Of an op that only moves numbers: an axis that comes out as it went in, every position at its own."""
    (read,) = op.reads(node)
    at, size = read[cut], getattr(node.inputs[0], "shape", ())[cut]
    if at is None or at.also or at.earlier or at.offset or len(at.axes) != 1 or at.axes[0][1] != 1:
        return None
    axis = at.axes[0][0]
    return Parts(axis) if all(v.rank > axis and v.shape[axis].value == size.value for v in node.outputs) else None


def elementwise_parts(node: OpNode, cut: Sequence[int | None]) -> Parts | None:
    """Every input that has the axis that is cut is cut along it."""
    rank = node.outputs[0].rank
    ranks = [v.rank if isinstance(v, Value) else 0 for v in node.inputs]
    axes = {axis + rank - ranks[i] for i, axis in enumerate(cut) if axis is not None}
    if len(axes) != 1:
        return None
    axis = axes.pop()
    for i, value in enumerate(node.inputs):
        own = axis - rank + ranks[i]
        if isinstance(value, Value) and own >= 0 and value.shape[own].value != 1 and cut[i] is None:
            return None
    return Parts(axis)


def regrouped_parts(
    op: Primitive, node: OpNode, cut: Sequence[int | None], numbers: Sequence[Num] = ()
) -> Parts | None:
    """Of an op that cuts and merges axes: the part that runs slowest in the axis has to run slowest in the result's."""
    grouping = op.regroups(node)
    if grouping is None or cut[0] is None:
        return None
    for axis, made in enumerate(grouping.axes):
        if made and made[0] == (cut[0], 0):
            count = grouping.cuts[cut[0]][0]
            return None if count.value == 1 else Parts(axis, numbers=tuple(numbers), sizes=(count,))
    return None


def spread(dims: Sequence[ast.Expr], rank: int) -> list[str]:
    """Names of a tensor's axes, those under `...` numbered from the right."""
    names: list[str] = []
    for dim in dims:
        if isinstance(dim, ast.Ellipsis):
            count = rank - len(dims) + 1
            names.extend(f"...{count - j}" for j in range(count))
        else:
            assert isinstance(dim, ast.Name), dim
            names.append(dim.id)
    return names
