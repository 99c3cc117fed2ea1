"""`mask`: a mask as a tensor, made once for all layers that ask for it."""

from __future__ import annotations

import ast
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from functools import partial, reduce
from typing import Any

from archdsl.ir.dims import Num, Poly, Shape, binary, num, shape_text, sub, whole_axis
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.masks import RULES, TENSOR_RULES, Mask, ahead, breadth, in_documents, reads_query, sees
from archdsl.ir.op import Application, At, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ops._common import number_inputs, tensor_inputs


class MaskTensor(Primitive):
    """A mask as a bool tensor [query, key], or with axes of batch (and heads) before them where it reads tensors.

    With `blocks` all that read it take a mask in blocks as well.
    """

    positional = True
    hoisted = True
    by_rows = True
    makes_mask = True
    passes = 0
    chosen = tuple(range(2, 10))
    typed = "bool"
    signature = (
        "mask(mask: mask, heads: int = 1, plain: bool = false, blocks: bool = none)"
        "(queries: [], keys: [], tensors: [...])"
    )
    variadic = True

    def shapes(self, call: Application) -> Sequence[Shape]:
        mask: Mask = call.options["mask"]
        queries, keys = number_inputs(call, 0, 1)
        rows = queries if mask.reads_queries else num(1)
        tensors = [v for v in call.inputs[2:] if isinstance(v, Value)]
        if not tensors:
            return ((rows, keys),)
        batch = [v.shape[0] for v in tensors if v.rank == 2]
        middle = [num(1)] * call.size("heads").value if batch else []  # type: ignore[operator]
        return ((*batch[:1], *middle, rows, keys),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        found: list[Reads] = []
        leaves = iter(tensor_leaves(node.options["mask"]))
        for value in node.inputs:
            if not isinstance(value, Value):
                found.append(())
                continue
            compared = TENSOR_RULES[next(leaves).rule].reads
            if compared == "query":
                position = same(rank - 2)
            elif compared == "key":
                position = same(rank - 1)
            else:  # the key's with the query's
                position = At(((rank - 1, Fraction(1)),), also=(same(rank - 2),))
            found.append((same(0), position) if value.rank == 2 else (position,))
        return found

    def constants(self, node: OpNode) -> Sequence[tuple[At, float]]:
        """False at keys later than a query may see; the last query stands at the last key."""
        queries, keys = number_inputs(node, 0, 1)
        before = sub(keys.value, queries.value)
        bound = ahead(node.options["mask"], before) if isinstance(before, int) else None
        if bound is None or not isinstance(before, int):
            return ()
        rank = node.outputs[0].rank
        later = At(((rank - 1, Fraction(1)), (rank - 2, Fraction(-1))), Fraction(-bound - before))
        return ((later, 0.0),)

    def element(self, node: OpNode, index: Sequence[int]) -> float | None:
        queries, keys = number_inputs(node, 0, 1)
        before = sub(keys.value, queries.value)
        if not isinstance(before, int):
            if node.options["mask"].reads_queries:
                return None
            before = 0
        seen = sees(node.options["mask"], index[-2] + before, index[-1])
        return None if seen is None else float(seen)

    def is_mask(self, options: Mapping[str, Any]) -> bool:
        return not options.get("plain")

    def needs_full_sequence(self, node: OpNode) -> str:
        drawn = node.options["mask"].drawn
        return "draws random keys from all positions of the sequence" if drawn else ""

    def needs_tensor(self, options: Mapping[str, Any], inputs: Sequence[Any]) -> bool:
        queries, keys = inputs[0], inputs[1]
        square = isinstance(queries, Num) and isinstance(keys, Num) and queries.value == keys.value
        return not (self.is_mask(options) and options["mask"].rule == "causal" and square)

    def window(self, node: OpNode) -> tuple[int, Num] | None:
        found = breadth(node.options["mask"])
        return None if found is None else (0, found)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        mask: Mask = node.options["mask"]
        queries, keys = number_inputs(node, 0, 1)
        if not self.needs_tensor(node.options, node.inputs) and not g.in_steps:
            return None
        tensors = {id(leaf): 2 + i for i, leaf in enumerate(tensor_leaves(mask))}
        query, key = g.pairs(queries, keys, int(node.options["heads"]))
        seen = OnnxMaskWriter(node, g, query, key, tensors).write(mask)
        if not mask.reads_queries or g.by_row:
            return seen
        if any(reads_query(leaf.rule) and not _of_queries(leaf) for leaf in mask.leaves()):
            return seen  # which compares every query with every key
        return g.And(seen, g.LessOrEqual(g.Mul(query, 0), key))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        mask: Mask = node.options["mask"]
        queries, keys = number_inputs(node, 0, 1)
        tensors = {id(leaf): 2 + i for i, leaf in enumerate(tensor_leaves(mask))}
        if node.options.get("blocks") and not e.in_steps:
            return self.by_rule(node, e, tensors)
        writer = TorchMaskWriter(node, e, tensors)
        pairs = e.pairs(queries, keys, int(node.options["heads"])) if e.in_steps else None
        if pairs is not None:
            writer.query, writer.key = pairs
        elif any(leaf.rule in RULES for leaf in mask.leaves()):
            device = e.device()
            if not mask.reads_queries:
                writer.key = e.let("key", e.py("torch.arange({1}, device={device})[None, :]", device=device))
            else:
                writer.key = e.let("key", e.py("torch.arange({1}, device={device})", device=device))
                if queries.value == keys.value:
                    query = e.py("{key}[:, None]", key=writer.key)
                else:
                    before = binary("-", keys, queries)
                    query = e.py("torch.arange({before}, {1}, device={device})[:, None]", before=before, device=device)
                writer.query = e.let("query", query)
        seen: Tree = writer.write(mask)
        return seen

    def result_type(self, options: Mapping[str, Any], varlen: bool) -> str:
        if not options.get("blocks"):
            return "Tensor"
        return "Tensor | BlockMask | Spans" if varlen and in_documents(options["mask"]) else "Tensor | BlockMask"

    def by_rule(self, node: OpNode, e: TorchScope, tensors: dict[int, int]) -> Tree:
        """A function of positions above the classes, and the mask that is made of it."""
        mask: Mask = node.options["mask"]
        writer = RuleWriter(node, e, tensors)
        seen = writer.write(mask)
        name = rule_name(mask)
        if depth(mask) > 2:  # names of masks within masks within masks may be the same
            name += f"_{hashlib.sha256(repr(seen).encode()).hexdigest()[:6]}"
        rule = e.define(name, {"b": "Tensor", "query": "Tensor", "key": "Tensor", **writer.types}, seen)
        given = writer.given.values()
        rows = [v.shape[0] for v in node.inputs[2:] if isinstance(v, Value) and v.rank == 2]
        batch = rows[0] if rows else 1
        parts = in_documents(mask) if e.varlen else None
        more: dict[str, Any] = {"causal": True} if parts and "causal" in parts else {}
        more |= {"window": parts["window"].numbers[0]} if parts and "window" in parts else {}
        made = e.py("spans_of") if parts else e.py("mask_of")
        template = "{made}({rule}, {batch}, {1}, {device}, {*given}, {**more})"
        return e.py(template, made=made, rule=rule, batch=batch, device=e.device(), given=given, more=more)


def random_keys(g: OnnxScope, query: Any, key: Any, count: int, seed: int) -> Any:
    """For each query the `count` keys whose hash with it is largest: what emitted code computes by the same name."""
    modulus = 2_147_483_647
    mixed = g.Add(g.Add(g.Mul(query, 40_503), g.Mul(key, 30_011)), seed * 7_919 + 1)
    mixed = g.Mod(mixed, modulus)
    mixed = g.Mod(g.Add(g.Mul(mixed, mixed), g.Add(g.Mul(query, 97), key)), modulus)
    mixed = g.Mod(g.Add(g.Mul(mixed, mixed), g.Mul(key, 89)), modulus)
    keys = g.Shape(mixed, start=-1)
    _, best = g.TopK(mixed, g.Min(keys, count), axis=-1, outputs=2, types=("int", "int"))
    marks = g.Expand(g.constant(True, "bool"), g.Shape(best))
    return g.ScatterElements(g.Expand(g.constant(False, "bool"), g.Shape(mixed)), best, marks, axis=-1)


def tensor_leaves(mask: Mask) -> list[Mask]:
    """Leaves that read a tensor, once for each tensor they read: `same` across two axes reads two."""
    return [leaf for leaf in mask.leaves() if leaf.rule in TENSOR_RULES]


def mask_tensor(
    call: Application,
    mask: Mask,
    batch: Shape,
    queries: Num,
    keys: Num,
    rank: int,
    *,
    plain: bool = True,
    blocks: bool = False,
) -> Value:
    """A mask as a bool tensor for scores of `rank` axes, the last two of which are `queries` and `keys`, behind one of
    `batch` if there is any. `plain` asks for a tensor even where a kernel needs none; a mask in `blocks` will do as
    well.

    A tensor may speak of the last positions alone. What stands in front, a fixed prefix, is real, and in a group of its
    own. Raises E0403 where the mask reads a tensor of other sizes."""
    first = binary("-", keys, queries)
    for leaf in mask.leaves():
        if leaf.rule == "prefix" and first.static and first.value != 0:
            own = binary("+", first, num(1))  # the first query's own position
            call.holds("<=", leaf.numbers[0], own, "a prefix ends before the keys that follow the first query")
    tensors: list[Value] = []
    for leaf in tensor_leaves(mask):
        reads = TENSOR_RULES[leaf.rule].reads
        wanted = queries if reads == "query" else keys
        if reads == "both" and queries.value != keys.value:
            raise call.error(
                "E0403",
                f"the mask `{leaf}` compares each query with each key, and there are {queries} queries and {keys} keys",
                option="mask",
                help="compare their tensors in equations, `unsqueeze(of_queries, 2) == unsqueeze(of_keys, 1)`",
            )
        given = call.bring(leaf.tensor) if leaf.tensor is not None else call.model_input(leaf.rule, inputs_of(wanted))
        before = binary("-", wanted, given.shape[-1])
        if before.static and float(before) > 0:
            filling = num(-1 if reads == "both" else 1)
            given = call.apply("pad", given, called=given.name, before=before, axis=num(-1), value=filling)
        tensors.append(given)
        *lead, axis = given.shape
        if lead and (len(lead) > 1 or any(lead[0].value != n.value for n in batch)):
            raise call.error(
                "E0403",
                f"the mask `{leaf}` reads a tensor {shape_text((*batch, wanted))}, "
                f"or one of positions alone, and this one is {shape_text(given.shape)}",
                option="mask",
            )
        if axis.value != wanted.value and whole_axis(axis)[0] != whole_axis(wanted)[0]:
            raise call.error(
                "E0403",
                f"the mask `{leaf}` speaks of {axis} positions, "
                f"but there are {wanted} {'queries' if reads == 'query' else 'keys'}",
                option="mask",
            )
    if not mask.reads_queries:
        queries = num(1)  # one mask of keys serves every query, whichever axis they stand on
    how = {name: True for name, asked in (("plain", plain), ("blocks", blocks)) if asked}
    heads = num(max(rank - 3, 0))
    return call.apply("mask", queries, keys, *tensors, called="mask", mask=mask, heads=heads, **how)


def inputs_of(length: Num) -> Num:
    """The part of a length that is an axis of the model's inputs: `time` of `time + 4`."""
    terms = length.value.terms if isinstance(length.value, Poly) else ()
    fixed = next((count for powers, count in terms if not powers), 0)
    return Num(sub(length.value, fixed), length.expr) if fixed > 0 else length


def mask_beside(call: Application, mask: Mask, others: Sequence[Value]) -> Value:
    """Make a mask a bool tensor for the last two axes, queries and keys, of the tensors that it meets. Raises E0302
    where they have no such axes, and E0403 as `mask_tensor` does."""
    rank = max((v.rank for v in others), default=0)
    if rank < 2:
        raise call.error(
            "E0302",
            f"the mask `{mask}` takes its queries and keys from the last two axes of the tensors beside it"
            + (", and these have fewer" if others else ", and there are none"),
            help="masks meet scores: `where(mask, scores, -inf)`; `keys(real)` is a mask made of a tensor",
        )

    def size(back: int) -> Num:
        sizes = [v.shape[-back] for v in others if v.rank >= back]
        return next((n for n in sizes if not call.is_number(n, 1)), sizes[0])

    keys = size(1)
    if keys.value == 1:
        raise call.error(
            "E0302",
            f"the mask `{mask}` takes its keys from the last axis of the tensors beside it, which has one place",
            help="give it scores [..., queries, keys]",
        )
    batch = (size(rank),) if rank > 2 else ()
    return mask_tensor(call, mask, batch, size(2), keys, rank)


def _of_queries(leaf: Mask) -> bool:
    """Whether a rule reads a tensor of the queries alone."""
    return leaf.rule in TENSOR_RULES and TENSOR_RULES[leaf.rule].reads == "query"


def rule_name(mask: Mask) -> str:
    """What the function of a mask is called: `causal_and_window_mask`."""

    def inner(mask: Mask, within: bool) -> str:
        if mask.rule == "~":
            return f"not_{inner(mask.parts[0], True)}"
        if not mask.parts:
            return mask.rule
        every = mask.rule == "&"
        first = ("both_" if every else "either_") if within else ""
        return first + ("_and_" if every else "_or_").join(inner(p, True) for p in mask.parts)

    return f"{inner(mask, False)}_mask"


def depth(mask: Mask) -> int:
    """How many operators stand within each other."""
    return 1 + max(map(depth, mask.parts)) if mask.parts else 0


class MaskWriter(ABC):
    """Masks by their rules: operators here, comparisons of positions by `leaf`."""

    def write(self, mask: Mask, causal: bool = False) -> Any:
        """`causal` says that keys after the query are ruled out anyway."""
        if mask.rule == "~":
            return self.inverted(self.write(mask.parts[0]))
        if mask.rule not in ("&", "|"):
            return self.leaf(mask, causal)
        causal = mask.rule == "&" and any(p.rule == "causal" for p in mask.parts)
        return reduce(partial(self.joined, mask.rule), [self.write(p, causal) for p in mask.parts])

    @abstractmethod
    def inverted(self, mask: Any) -> Any:
        """What the mask rules out."""

    @abstractmethod
    def joined(self, rule: str, a: Any, b: Any) -> Any:
        """Both (`&`), or either (`|`)."""

    @abstractmethod
    def leaf(self, mask: Mask, causal: bool) -> Any:
        """One rule, of positions or a tensor."""


OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.FloorDiv: "Div",
    ast.Mod: "Mod",
    ast.Lt: "Less",
    ast.LtE: "LessOrEqual",
    ast.Gt: "Greater",
    ast.GtE: "GreaterOrEqual",
    ast.Eq: "Equal",
    ast.BitAnd: "And",
    ast.BitOr: "Or",
}
"""Operators of ONNX for those of a condition; positions are never negative, so that `Div` rounds down."""


class OnnxMaskWriter(MaskWriter):
    """Masks as nodes: the same comparisons of positions."""

    def __init__(self, node: OpNode, g: OnnxScope, query: Any, key: Any, tensors: dict[int, int]) -> None:
        self.node, self.g, self.query, self.key, self.tensors = node, g, query, key, tensors

    def inverted(self, mask: Any) -> Any:
        return self.g.Not(mask)

    def joined(self, rule: str, a: Any, b: Any) -> Any:
        return self.g.And(a, b) if rule == "&" else self.g.Or(a, b)

    def leaf(self, mask: Mask, causal: bool) -> Any:
        if mask.rule in TENSOR_RULES:
            return self.tensor(mask)
        rule = RULES[mask.rule]
        if rule.drawn:
            return random_keys(self.g, self.query, self.key, *map(int, mask.numbers))
        return self.condition(ast.parse(rule.condition, mode="eval").body, mask, causal)

    def condition(self, tree: ast.expr, mask: Mask, causal: bool) -> Any:
        """The condition of a rule, operation by operation."""
        g = self.g
        match tree:
            case ast.Constant(value=value):
                return value
            case ast.Name(id="query"):
                return self.query
            case ast.Name(id="key"):
                return self.key
            case ast.Name(id="distance"):
                back = g.Sub(self.query, self.key)
                return back if causal else g.Abs(back)
            case ast.Name(id=name):
                return g.number(mask.numbers[RULES[mask.rule].numbers.index(name)])
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                a = self.condition(left, mask, causal)
                return getattr(g, OPERATORS[type(op)])(a, self.condition(right, mask, causal))
        raise AssertionError(f"{mask.rule}: {ast.unparse(tree)}")

    def tensor(self, mask: Mask) -> Any:
        g, i = self.g, self.tensors[id(mask)]
        (value,), x = tensor_inputs(self.node, i), g.arg(i)
        rank = value.rank + g.varies_by_row(i)
        middle = [1 + j for j in range(int(self.node.options["heads"]))] if rank == 2 else []
        last = len(middle) + rank - 1
        reads = TENSOR_RULES[mask.rule].reads
        if reads == "query":
            return g.Unsqueeze(g.newest(i), [*middle, last + 1])
        by_key = g.Unsqueeze(x, [*middle, last])
        return by_key if reads == "key" else g.Equal(g.Unsqueeze(g.newest(i), [*middle, last + 1]), by_key)


class TorchMaskWriter(MaskWriter):
    """Masks as Python: each leaf is a comparison of positions, as in the definition."""

    def __init__(self, node: OpNode, e: TorchScope, tensors: dict[int, int]) -> None:
        self.node, self.e, self.tensors = node, e, tensors
        self.query: Tree | None = None
        self.key: Tree | None = None
        self.middle = "None, " * int(node.options["heads"])

    def inverted(self, mask: Tree) -> Tree:
        return self.e.py("~{mask}", mask=mask)

    def joined(self, rule: str, a: Tree, b: Tree) -> Tree:
        return self.e.py(f"{{a}} {rule} {{b}}", a=a, b=b)

    def leaf(self, mask: Mask, causal: bool) -> Tree:
        if mask.rule in TENSOR_RULES:
            return self.tensor(mask)
        rule = RULES[mask.rule]
        distance = "query - key" if causal else "(query - key).abs()"
        condition = re.sub(r"\bdistance\b", distance, rule.condition)
        names = "|".join(("query", "key", *rule.numbers))
        numbers = {name: self.number(mask, i) for i, name in enumerate(rule.numbers)}
        return self.e.py(re.sub(rf"\b({names})\b", r"{\1}", condition), query=self.query, key=self.key, **numbers)

    def number(self, mask: Mask, i: int) -> Num | Tree:
        return mask.numbers[i]

    def tensor(self, mask: Mask) -> Tree:
        i = self.tensors[id(mask)]
        (value,), x = tensor_inputs(self.node, i), self.e.input(i)
        lead = f":, {self.middle}" if value.rank == 2 else ""
        by_key, by_query = self.e.py(f"{{x}}[{lead}None, :]", x=x), self.e.py(f"{{x}}[{lead}:, None]", x=x)
        if self.e.in_steps:
            by_query = self.e.py(f"{{x}}[:, {self.middle}:, None]", x=self.e.newest(i))
        return self.compared(mask, by_query, by_key)

    def compared(self, mask: Mask, by_query: Tree, by_key: Tree) -> Tree:
        """A rule by what a tensor says of query and key."""
        reads = TENSOR_RULES[mask.rule].reads
        if reads != "both":
            return by_key if reads == "key" else by_query
        return self.e.py("{by_query} == {by_key}", by_query=by_query, by_key=by_key)


class RuleWriter(TorchMaskWriter):
    """A mask as a function of the positions of a query and a key, and of what it is `given`: numbers and tensors."""

    def __init__(self, node: OpNode, e: TorchScope, tensors: dict[int, int]) -> None:
        super().__init__(node, e, tensors)
        self.query, self.key = e.py("query"), e.py("key")
        self.types: dict[str, str] = {}
        """The types of its further parameters."""
        self.given: dict[str, Num | Tree] = {}
        """What is handed to them."""
        self.names: dict[Hashable, str] = {}
        """The parameter of each number and tensor."""

    def parameter(self, name: str, kind: str, of: Hashable, given: Num | Tree) -> Tree:
        if of not in self.names:
            taken = sum(re.fullmatch(rf"{name}(_\d+)?", other) is not None for other in self.given)
            self.names[of] = found = f"{name}_{taken + 1}" if taken else name
            self.types[found], self.given[found] = kind, given
        return self.e.py(self.names[of])

    def number(self, mask: Mask, i: int) -> Num | Tree:
        name = RULES[mask.rule].parameter or RULES[mask.rule].numbers[i]
        return self.parameter(name, "int", (id(mask), i), mask.numbers[i])

    def tensor(self, mask: Mask) -> Tree:
        i = self.tensors[id(mask)]
        (value,) = tensor_inputs(self.node, i)
        x = self.parameter(TENSOR_RULES[mask.rule].parameter, "Tensor", id(mask), self.e.input(i))
        lead = "b, " if value.rank == 2 else ""
        by_key, by_query = self.e.py(f"{{x}}[{lead}key]", x=x), self.e.py(f"{{x}}[{lead}query]", x=x)
        return self.compared(mask, by_query, by_key)
