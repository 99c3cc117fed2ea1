"""`einsum`"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from archdsl.diagnostics import did_you_mean
from archdsl.ir.cost import Amount, Cost, contracted, times
from archdsl.ir.dims import Num, Shape, shape_text
from archdsl.ir.graph import OpNode, Value
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
    TorchScope,
    Tree,
    same,
)
from archdsl.ir.wording import called
from archdsl.ops._onnx import with_kernel

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Einsum(Primitive):
    """Products summed over every axis that the result does not name: `einsum("b q d, b k d -> b q k", x, y)`.

    Axes are names with blanks between them (or, without any blanks, single letters); axes of one name have one size;
    `...` are any axes, equal from the right or 1."""

    signature = "einsum(pattern: string)(x: float[...]) -> [...]"
    one_type = ("x",)
    variadic = True
    examples = (
        Example('einsum("r t, b h t d -> b h r d", e, k)', "e: [4, 5], k: [2, 3, 5, 8]"),
        Example('einsum("bqd,bkd->bqk", x, y)', "x: [2, 5, 8], y: [2, 3, 8]"),
        Example('einsum("batch time width -> batch width", x)'),
        Example('einsum("... i, i -> ...", x, y)', "x: [2, 5, 8], y: [8]"),
        Example('einsum("b t d, d e, e -> t b", x, y, z)', "x: [2, 5, 8], y: [8, 3], z: [3]"),
        Example('einsum("b i i -> b i", x)', "x: [2, 5, 5]"),
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
                    f"but {called(value)} has {value.rank}: {shape_text(value.shape)}",
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
                        f"`einsum` needs one size for {shown}, but it is {known} in {called(call.tensor(where))} "
                        f"and {size} in {called(value)}",
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
            raise call.error("E0204", f"`einsum` tells at most {len(LETTERS)} axes apart", option="pattern")

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
        for term, value in zip(terms, node.inputs, strict=True):
            assert isinstance(value, Value)
            places: list[At | None] = [same(out.index(n)) if n in out else EVERYWHERE for n in spread(term, value.rank)]
            reads.append(tuple(places))
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
        """Along an axis that all who have it are cut along, and that is not summed over."""
        terms, result = parsed(node.options["pattern"])
        values = [v for v in node.inputs if isinstance(v, Value)]
        spelt = [spread(term, v.rank) for term, v in zip(terms, values, strict=True)]
        names = {term[axis] for term, axis in zip(spelt, cut, strict=True) if axis is not None}
        out = spread(result, node.outputs[0].rank)
        if len(names) != 1 or not names <= set(out):
            return None
        (name,) = names
        for term, value, axis in zip(spelt, values, cut, strict=True):
            if name in term and axis is None and value.shape[term.index(name)].value != 1:
                return None
        return Parts(out.index(name))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """With a letter for each axis under `...` too: onnxruntime sums over none of them."""
        terms, result = parsed(node.options["pattern"])
        ranks = [v.rank for v in node.inputs if isinstance(v, Value)]
        spelt = [spread(term, rank) for term, rank in zip(terms, ranks, strict=True)]
        equation = written(spelt, spread(result, node.outputs[0].rank))
        return g.Einsum(*(with_kernel(g, x) for x in g.args()), equation=equation)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        equation = written(*parsed(node.options["pattern"]))
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
