"""Linear layers, embeddings and products of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from archdsl.diagnostics import did_you_mean
from archdsl.ir.cost import Amount, Cost, contracted, times
from archdsl.ir.dims import Num, Shape, shape_text
from archdsl.ir.graph import OpNode, Value, Weight
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    Joint,
    OnnxScope,
    Parts,
    Primitive,
    Reads,
    Saved,
    TorchScope,
    Tree,
    same,
    shown,
    up_to,
)
from archdsl.ir.wording import format_name
from archdsl.ops._common import number, tensor_inputs
from archdsl.ops._onnx import with_kernel


class Linear(Primitive):
    """An affine map of the last axis: `x @ weight.T + bias`."""

    family = "linear"
    worth_hoisting = True
    by_rows = True
    typed = 0
    signature = (
        "linear(features: size, bias: bool = true, init: scheme = none)(x: float[..., inputs]) -> [..., features]"
    )
    mixes = False
    examples = shown("x -> linear(5)", "x -> linear(5, bias: false)", "x -> linear(5)  # x: [3, 8]")

    def weights(self, call: Application) -> Sequence[Weight]:
        inputs, features = call.axes["inputs"], call.size("features")
        found = [Weight("weight", (features, inputs), "matrix", fan_in=inputs, fan_out=features)]
        if call.options["bias"]:
            found.append(Weight("bias", (features,), "bias", fan_in=inputs, fan_out=features))
        return found

    def flops(self, node: OpNode) -> Cost:
        x, y = node.tensor(0), node.outputs[0]
        found = contracted((*x.shape, y.shape[-1]), (0,), ("weight",))
        return Cost((found,), self.pointwise(node) if node.options["bias"] else ())

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        """Rows of the map (Shoeybi et al., 2019, section 3) where the axis that it sums over is cut."""
        axis = cut[0]
        if axis is None or node.outputs[0].dtype != "float":
            return None
        return Parts(None, {"weight": 1}) if axis == node.tensor(0).rank - 1 else Parts(axis)

    def opens(self, node: OpNode) -> Parts | None:
        """Columns of the map: each device computes some of the features."""
        features = node.weights[0].shape[-2]  # behind the axis of experts
        if node.outputs[0].dtype != "float" or features.value == 1:
            return None
        return Parts(node.outputs[0].rank - 1, {w.name: 0 for w in node.weights}, sizes=(features,))

    def is_projection(self, node: OpNode) -> bool:
        return not node.options["bias"]

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        bias = g.cast(g.weight("bias"), own) if node.options["bias"] else None
        return g.linear(g.arg(0, own), g.cast(g.weight("weight"), own), bias)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        features, inputs = node.weights[0].shape
        bias = {} if node.options["bias"] else {"bias": False}
        return e.py("nn.Linear({inputs}, {features}, {**bias})", inputs=inputs, features=features, bias=bias)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        own = node.outputs[0].dtype
        if own == "float":
            return e.py("{module}({0})")
        # In float32 (or bfloat16), whatever the type of the model.
        cast = {"float32": "float", "bfloat16": "bfloat16"}[own]
        weights = [e.py(f"{{module}}.{w.name}.{cast}()") for w in node.weights]
        return e.py(f"{e.linear}({{0}}, {{*weights}})", weights=weights)

    def torch_grouped_module(self, node: OpNode, e: TorchScope) -> Tree:
        copies, features, inputs = node.weights[0].shape
        layer = "GroupedAffine" if node.options["bias"] else "GroupedLinear"
        return e.py(f"{layer}({{*sizes}})", sizes=(copies, inputs, features))

    def torch_grouped(self, node: OpNode, e: TorchScope, ends: Tree) -> Tree:
        return e.py("{module}({0}, {ends})", ends=ends)


class Embedding(Primitive):
    """A learned vector for each of `rows` ids: `weight[ids]`."""

    family = "embedding"
    worth_hoisting = True
    by_rows = True
    passes = 0
    expression = "{module}({0})"
    typed = "float"
    signature = "embedding(rows: size, width: size, init: scheme = none)(ids: int[...]) -> [..., width]"
    mixes = False
    examples = (Example("ids -> embedding(5, 8)", "ids: int[2, 5]"), Example("ids -> embedding(7, 4)", "ids: int[3]"))

    def weights(self, call: Application) -> Sequence[Weight]:
        rows, width = call.size("rows"), call.size("width")
        return (Weight("weight", (rows, width), "embedding", fan_in=rows, fan_out=width, told=True),)

    def table(self, node: OpNode) -> tuple[int, Num]:
        return 0, number(node, "rows")

    def opens(self, node: OpNode) -> Parts:
        """Rows of the table: a device that does not hold a row adds zeros."""
        return Parts(None, {"weight": 0}, sizes=(number(node, "rows"),))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.lookup(g.weight("weight"), g.arg(0))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("nn.Embedding({rows}, {width})", rows=number(node, "rows"), width=number(node, "width"))


class Unembed(Primitive):
    """A score for each row of a table, `x @ table.T`: a head tied to `let words = shared(embedding(vocab, width))`.

    The table is a weight of another block: this reads it and has none."""

    typed = 0
    signature = "unembed()(x: float[..., width], table: float[rows, table_width]) -> [..., rows]"
    mixes = False
    examples = (
        Example("x -> unembed(table)", "x: [2, 5, 8], table: [6, 8]"),
        Example("(ids -> words) -> unembed(words)", "ids: int[2, 5]", statements="let words = shared(embedding(5, 8))"),
    )

    def check(self, call: Application) -> None:
        width, expected = call.axes["width"], call.axes["table_width"]
        if not call.same(width, expected):
            raise call.error(
                "E0301",
                f"the head is tied to an embedding of width {expected}, but x has width {width}",
                input=0,
                help=f"project x first: `x -> linear({expected}) -> unembed(…)`",
            )

    def build(self, call: Application) -> Sequence[Value]:
        x, table = call.tensor(0), call.tensor(1)
        if table.dtype in ("float", x.dtype):
            return call.node()
        return call.node(inputs=(x, call.apply("cast", table, dtype=x.dtype)))

    def flops(self, node: OpNode) -> Cost:
        return Cost((contracted((*node.tensor(0).shape, node.outputs[0].shape[-1]), (0,), (1,)),))

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        """Some of the scores where rows of the table are cut."""
        if tuple(cut) != (None, 0) or node.outputs[0].dtype != "float":
            return None
        return Parts(node.outputs[0].rank - 1, sizes=(node.outputs[0].shape[-1],))

    def untied(self, node: OpNode) -> OpNode:
        x, table = tensor_inputs(node, 0, 1)
        rows, width = table.shape
        weight = Weight("weight", (rows, width), "matrix", fan_in=width, fan_out=rows)
        options = {"features": rows, "bias": False, "init": None}
        return replace(node, op=Linear(), options=options, inputs=(x,), weights=(weight,), axes={"inputs": width})

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        return g.linear(g.arg(0, own), g.arg(1, own))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        cast = {"float32": ".float()", "bfloat16": ".bfloat16()"}.get(node.outputs[0].dtype, "")
        return e.py(f"{e.linear}({{0}}, {{1}}{cast})")


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Einsum(Primitive):
    """Products summed over every axis that the result does not name: `einsum("b q d, b k d -> b q k", x, y)`.

    Axes are names with blanks between them (or, without any blanks, single letters); axes of one name have one size;
    `...` are any axes, equal from the right or 1."""

    worth_hoisting = True
    signature = "einsum(pattern: string)(x: float[...]) -> [...]"
    one_type = ("x",)
    variadic = True
    examples = shown(
        'einsum("r t, b h t d -> b h r d", e, k)  # e: [4, 5], k: [2, 3, 5, 8]',
        'einsum("bqd,bkd->bqk", x, y)  # x: [2, 5, 8], y: [2, 3, 8]',
        'einsum("batch time width -> batch width", x)',
        'einsum("... i, i -> ...", x, y)  # x: [2, 5, 8], y: [8]',
        'einsum("b t d, d e, e -> t b", x, y, z)  # x: [2, 5, 8], y: [8, 3], z: [3]',
        'einsum("b i i -> b i", x)  # x: [2, 5, 5]',
    )

    def check(self, call: Application) -> None:
        terms, result = self.parse(call)
        sizes: dict[str, tuple[Num, int]] = {}
        for i, term in enumerate(terms):
            value = call.tensor(i)
            named = [n for n in term if n != "..."]
            if value.rank < len(named) or (value.rank > len(named) and "..." not in term):
                raise call.error(
                    "E0302",
                    f"`{' '.join(term)}` names {len(named)} axes, "
                    f"but {format_name(value)} has {value.rank}: {shape_text(value.shape)}",
                    input=i,
                )
            for name, size in zip(spread(term, value.rank), value.shape, strict=True):
                known, where = sizes.setdefault(name, (size, i))
                if call.same(known, size):
                    continue
                if name.startswith("...") and call.is_number(known, 1):
                    sizes[name] = (size, where)
                elif not (name.startswith("...") and call.is_number(size, 1)):
                    shown = "a leading axis" if name.startswith("...") else f"`{name}`"
                    raise call.error(
                        "E0301",
                        f"`einsum` needs one size for {shown}, but it is {known} in {format_name(call.tensor(where))} "
                        f"and {size} in {format_name(value)}",
                        input=i,
                    )
        given = {n for term in terms for n in term}
        for name in result:
            if name not in given:
                raise call.error(
                    "E0204",
                    f"the result has an axis `{name}` that no tensor has",
                    option="pattern",
                    help=did_you_mean(name, given) or "every axis of the result stands on the left of `->` too",
                )
            if result.count(name) > 1:
                raise call.error("E0204", f"the result has the axis `{name}` twice", option="pattern")
        if len(given) > len(LETTERS):
            raise call.error("E0204", f"`einsum` takes at most {len(LETTERS)} different axes", option="pattern")

    def parse(self, call: Application) -> tuple[list[list[str]], list[str]]:
        pattern = call.options["pattern"]
        terms, result = parsed(pattern)
        if pattern.count("->") != 1:
            raise call.error(
                "E0204",
                f'"{pattern}" has to say what comes out: axes of the tensors, `->`, axes of the result',
                option="pattern",
                help='for example "b q d, b k d -> b q k"',
            )
        for name in [n for term in (*terms, result) for n in term]:
            if name != "..." and not (name.isidentifier() and name.isascii()):
                raise call.error("E0204", f"`{name}` is not the name of an axis", option="pattern")
        for term in (*terms, result):
            if term.count("...") > 1:
                raise call.error("E0204", "`...` can be written once for each tensor", option="pattern")
        if len(terms) != len(call.inputs):
            raise call.error(
                "E0204",
                f'"{pattern}" takes {len(terms)} tensor{"s" * (len(terms) != 1)}, but {len(call.inputs)} were given',
                option="pattern",
            )
        return terms, result

    def shapes(self, call: Application) -> Sequence[Shape]:
        terms, result = parsed(call.options["pattern"])
        sizes: dict[str, Num] = {}
        for i, term in enumerate(terms):
            for name, size in zip(spread(term, len(call.shape(i))), call.shape(i), strict=True):
                if name not in sizes or sizes[name].value == 1:
                    sizes[name] = size
        return (
            tuple(
                sizes[n]
                for n in spread(result, result_rank(terms, result, [len(call.shape(i)) for i in range(len(terms))]))
            ),
        )

    def reads(self, node: OpNode) -> Sequence[Reads]:
        terms, result = parsed(node.options["pattern"])
        out = spread(result, node.outputs[0].rank)
        reads: list[Reads] = []
        for term, value in zip(terms, tensor_inputs(node, *range(len(terms))), strict=True):
            positions: list[At | None] = [
                same(out.index(n)) if n in out else EVERYWHERE for n in spread(term, value.rank)
            ]
            reads.append(tuple(positions))
        return reads

    def joint(self, node: OpNode) -> Joint:
        terms, result = parsed(node.options["pattern"])
        names = (spread(term, v.rank) for term, v in zip(terms, node.inputs, strict=True) if isinstance(v, Value))
        nothing = (0.0,) * len(terms)
        return Joint(tuple(map(tuple, names)), tuple(spread(result, node.outputs[0].rank)), nothing)

    def flops(self, node: OpNode) -> Cost:
        """Two tensors at a time from the left, as `torch.einsum` does without an optimizer of paths: an axis is summed
        over as soon as no later tensor and not the result has it. Where nothing is summed it is a plain product."""
        terms, result = parsed(node.options["pattern"])
        values = [v for v in node.inputs if isinstance(v, Value)]
        spelt = [spread(term, v.rank) for term, v in zip(terms, values, strict=True)]
        sizes: dict[str, Num] = {}
        for term, value in zip(spelt, values, strict=True):
            for name, size in zip(term, value.shape, strict=True):
                if name not in sizes or sizes[name].value == 1:
                    sizes[name] = size
        kept = set(spread(result, node.outputs[0].rank))
        contractions, elementwise = [], []
        done, left = self._wide(spelt[0], values[0], sizes), spelt[0]
        for i, (term, value) in enumerate(zip(spelt[1:], values[1:], strict=True), start=1):
            needed = kept.union(*spelt[i + 1 :])
            wide = self._wide(term, value, sizes)
            # An axis that only one of them has, and nothing needs, is summed over before they are multiplied.
            alone = {n for n in done ^ wide if n not in needed}
            axes = [n for n in dict.fromkeys((*left, *term)) if n not in alone]
            summed = [n for n in axes if n not in needed and n in done and n in wide and sizes[n].value != 1]
            if summed:
                contractions.append(contracted((sizes[n] for n in axes), tuple(range(i)), (i,)))
            else:
                elementwise.append(Amount(times(sizes[n] for n in axes)))
            left = [n for n in axes if n in needed]
            done = {n for n in left if n in done | wide}
        return Cost(tuple(contractions), tuple(elementwise))

    def _wide(self, term: Sequence[str], value: Value, sizes: Mapping[str, Num]) -> set[str]:
        """Axes along which a tensor has more than one position, or all that the others have."""
        return {n for n, d in zip(term, value.shape, strict=True) if d.value != 1 or sizes[n].value == 1}

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return parts_of(self.joint(node), node, cut)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """With a letter for each axis under `...` too: onnxruntime sums over none of them."""
        terms, result = parsed(node.options["pattern"])
        ranks = [v.rank for v in node.inputs if isinstance(v, Value)]
        spelt = [spread(term, rank) for term, rank in zip(terms, ranks, strict=True)]
        equation = written(spelt, spread(result, node.outputs[0].rank))
        return g.Einsum(*(with_kernel(g, x) for x in g.args()), equation=equation)

    def leading(self, node: OpNode, i: int) -> int | None:
        """It gets the axis of batch that is the first of another tensor and of the result."""
        terms, result = parsed(node.options["pattern"])
        alone = "..." not in (*terms[i], *result) and result and result[0] not in terms[i]
        fits = alone and any(term[:1] == result[:1] for term in terms)
        return node.tensor(i).rank - len(result) + 1 if fits else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        terms, result = parsed(node.options["pattern"])
        terms = [[*result[: e.varies_by_row(i)], *term] for i, term in enumerate(terms)]
        equation = written(terms, result)
        return e.py("torch.einsum({equation}, {*inputs})", equation=equation)


def parsed(pattern: str) -> tuple[list[list[str]], list[str]]:
    """The names of the tensors' axes, and of the result's."""
    left, _, right = pattern.partition("->")
    terms = [t.strip() for t in (*left.split(","), right)]
    blanks = any(" " in t for t in terms)
    names = [t.split() if blanks or t == "..." else single(t) for t in terms]
    return names[:-1], names[-1]


def single(term: str) -> list[str]:
    """`...bd` as its letters."""
    before, dots, after = term.partition("...")
    return [*before, *([dots] if dots else []), *after]


def spread(term: Sequence[str], rank: int) -> list[str]:
    """A name for each axis; those under `...` are numbered from the right."""
    count = rank - len(term) + 1
    return [n for name in term for n in ([f"...{count - i}" for i in range(count)] if name == "..." else [name])]


def result_rank(terms: Sequence[Sequence[str]], result: Sequence[str], ranks: Sequence[int]) -> int:
    rest = max((rank - len(term) + 1 for term, rank in zip(terms, ranks, strict=True) if "..." in term), default=0)
    return len(result) - 1 + rest if "..." in result else len(result)


def written(terms: Sequence[Sequence[str]], result: Sequence[str]) -> str:
    """The pattern in single letters."""
    letters = lettered([n for term in terms for n in term])
    left = ",".join("".join(letters[n] for n in term) for term in terms)
    return f"{left}->{''.join(letters[n] for n in result)}"


def lettered(names: Sequence[str]) -> dict[str, str]:
    """One letter for each name: its first where that is free."""
    found = {"...": "..."}
    for name in dict.fromkeys(names):
        if name not in found:
            wanted = [name[0].lower(), name[0].upper(), *name.lower(), *LETTERS]
            found[name] = next(c for c in wanted if c in LETTERS and c not in found.values())
    # Single letters stay what they are.
    if all(len(n) == 1 for n in names if n != "..."):
        return {n: n for n in names}
    return found


SIDES = (("rows", "inner"), ("inner", "columns"))


def parts_of(joint: Joint, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
    """A sum of products along an axis that all who have it are cut along, and that is not summed over."""
    names = {term[axis] for term, axis in zip(joint.terms, cut, strict=True) if axis is not None}
    if len(names) != 1 or not names <= {*joint.result}:
        return None
    (name,) = names
    for term, value, axis in zip(joint.terms, node.inputs, cut, strict=True):
        if isinstance(value, Value) and name in term and axis is None and value.shape[term.index(name)].value != 1:
            return None
    return Parts(joint.result.index(name))


class MatMul(Primitive):
    """The matrix product of the last two axes; those before them are equal from the right, or 1, or missing in one."""

    worth_hoisting = True
    operator = "MatMul"
    expression = "{0} @ {1}"
    signature = "matmul()(a: float[..., rows, inner], b: float[..., inner, columns]) -> [..., rows, columns]"
    one_type = ("a", "b")
    examples = shown(
        "matmul(a, b)  # a: [2, 5, 8], b: [2, 8, 3]",
        "matmul(a, b)  # a: [2, 1, 5, 8], b: [3, 8, 4]",
        "matmul(a + 1, b)  # a: [5, 8], b: [2, 8, 5]",
    )

    def shapes(self, call: Application) -> Sequence[Shape]:
        a, b = call.shape(0), call.shape(1)
        return ((*together(self, call, a[:-2], b[:-2]), a[-2], b[-1]),)

    def joint(self, node: OpNode) -> Joint:
        a, b = (
            spread(("...", *names), v.rank) for names, v in zip(SIDES, node.inputs, strict=True) if isinstance(v, Value)
        )
        result = spread(("...", "rows", "columns"), node.outputs[0].rank)
        return Joint((tuple(a), tuple(b)), tuple(result), (0.0, 0.0))

    def leading(self, node: OpNode, i: int) -> int | None:
        return 0 if i == 0 else None

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return parts_of(self.joint(node), node, cut)

    def flops(self, node: OpNode) -> Cost:
        return Cost((contracted((*node.outputs[0].shape, node.tensor(0).shape[-1]), (0,), (1,)),))


class Solve(Primitive):
    """Solve `l x = b` for x in float32, where l is lower triangular with ones on its diagonal.

    What stands on the diagonal of l or above it is not read.

    `x[t] = b[t] - sum(l[t, s] x[s])` over s < t: a query's row of l is one of numbers for keys before it. As a sum of
    powers of l, however they are multiplied, it loses all digits within some hundred positions."""

    signature = "solve()(l: float[..., rows, inner], b: float[..., rows, columns]) -> [..., rows, columns]"
    one_type = ("l", "b")
    examples = shown(
        "solve(l, b)  # l: [2, 5, 5], b: [2, 5, 3]",
        "solve(0.1 * l, b)  # l: [2, 1, 40, 40], b: [3, 40, 4]",
    )

    def check(self, call: Application) -> None:
        rows, inner = call.axes["rows"], call.axes["inner"]
        if not call.same(rows, inner, "`solve` takes a square matrix"):
            raise call.error("E0301", f"`solve` takes a square matrix, and it has {rows} rows of {inner}", input=0)

    def shapes(self, call: Application) -> Sequence[Shape]:
        a, b = call.shape(0), call.shape(1)
        return ((*together(self, call, a[:-2], b[:-2]), *b[-2:]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        """Rows up to the own, of each those numbers that stand before its diagonal."""
        given = tensor_inputs(node, 0, 1)
        rank = node.outputs[0].rank
        own = [
            tuple(
                At() if d.value == 1 != node.outputs[0].shape[axis].value else same(axis)
                for d, axis in zip(v.shape[:-2], range(rank - v.rank, rank - 2), strict=True)
            )
            for v in given
        ]
        row = rank - 2
        return (*own[0], up_to(row), up_to(row, -1)), (*own[1], up_to(row), same(rank - 1))

    def flops(self, node: OpNode) -> Cost:
        """As the product with the whole matrix."""
        return Cost((contracted((*node.outputs[0].shape, node.tensor(0).shape[-1]), (0,), (1,)),))

    def saves(self, node: OpNode) -> Saved:
        return Saved(inputs=(0,), outputs=(0,), sides=False)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        form = "torch.linalg.solve_triangular({0}.float(), {1}.float(), upper=False, unitriangular=True)"
        return e.py(form + (".type_as({1})" if node.outputs[0].dtype != "float32" else ""))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """Row by row: those that are not known yet are 0."""
        triangle, b = g.arg(0, "float32"), g.arg(1, "float32")
        count = g.Squeeze(g.Shape(b, start=-2, end=-1), [0])
        rows = g.Unsqueeze(g.Range(g.constant(0, "int"), count, g.constant(1, "int")), [1])
        sequences = []
        for x, rank in ((triangle, node.tensor(0).rank), (b, node.tensor(1).rank)):
            sequences.append(g.Unsqueeze(g.Transpose(x, perm=[rank - 2, *range(rank - 2), rank - 1]), [-2]))
        unknown = g.Expand(g.constant(0.0, "float32"), [*node.outputs[0].shape])

        def step(x: Any, row: Any, triangle_t: Any, b_t: Any) -> tuple[Any, ...]:
            return (g.Where(g.Equal(rows, row), g.Sub(b_t, g.MatMul(triangle_t, x)), x),)

        return g.scan(step, [unknown], [rows, *sequences])[0]


def together(op: Primitive, call: Application, a: Shape, b: Shape) -> Shape:
    """The leading axes of both: from the right equal, or 1. Raises E0301."""
    long, short = (a, b) if len(a) >= len(b) else (b, a)
    result = list(long)
    for back in range(1, len(short) + 1):
        x, y = long[-back], short[-back]
        if call.is_number(x, 1):
            result[-back] = y
        elif not call.fits(y, x):
            raise call.error(
                "E0301",
                f"`{op.name}` needs equal leading axes, but they are {x} and {y}: "
                f"{shape_text(call.shape(0))} and {shape_text(call.shape(1))}",
                input=1,
                help="axes are compared from the right; an axis of size 1 fits any other",
            )
    return tuple(result)
