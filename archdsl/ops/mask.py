"""`mask`: a mask as a tensor, made once for all layers that ask for it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from archdsl.ir.dims import Num, Shape, num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.masks import KEY_RULES, RULES, Mask, breadth
from archdsl.ir.op import (
    BIT_AND,
    BIT_OR,
    COMPARE,
    PLUS,
    TIMES,
    UNARY,
    Application,
    At,
    Code,
    OnnxScope,
    Primitive,
    Reads,
    TorchScope,
    same,
)

RANDOM_KEYS = '''
def random_keys(query: Tensor, key: Tensor, count: int, seed: int) -> Tensor:
    """For each query the `count` keys whose hash with it is largest: random, and the same at every call."""
    mixed = (query * 40_503 + key * 30_011 + seed * 7_919 + 1) % 2_147_483_647
    mixed = (mixed * mixed + query * 97 + key) % 2_147_483_647
    mixed = (mixed * mixed + key * 89) % 2_147_483_647
    best = mixed.topk(min(count, mixed.size(-1)), dim=-1).indices
    return torch.zeros_like(mixed, dtype=torch.bool).scatter(-1, best, True)
'''

MASK_OF = '''
def mask_of(rule: Callable[..., Tensor], time: int, like: Tensor, *given: Any) -> Tensor | BlockMask:
    """The pairs of a query and a key that a rule lets through: on CUDA blocks of them for FlexAttention (Dong et al.,
    2024), elsewhere a bool tensor [query, key], or [batch, 1, query, key]. Those of lengths alone are made once."""
    traced = torch.compiler.is_compiling() or type(like) is not Tensor
    if traced or any(isinstance(x, Tensor) for x in given):
        return new_mask(rule, time, like.device, *given)
    return kept_mask(rule, time, like.device, *given)
'''

KEPT_MASK = '''
@lru_cache(maxsize=16)
def kept_mask(rule: Callable[..., Tensor], time: int, device: torch.device, *given: int) -> Tensor | BlockMask:
    """The mask of a rule, if it is one of the latest from before."""
    with torch.inference_mode(False):  # what inference makes serves training, too
        return new_mask(rule, time, device, *given)
'''

NEW_MASK = """
def new_mask(rule: Callable[..., Tensor], time: int, device: torch.device, *given: Any) -> Tensor | BlockMask:
    rows = [x.size(0) for x in given if isinstance(x, Tensor) and x.dim() == 2]
    batch = rows[0] if rows else 1
    if not in_blocks(device):
        key = torch.arange(time, device=device)
        return rule(torch.arange(batch, device=device)[:, None, None, None], key[:, None], key, *given)
    if not torch.compiler.is_compiling():  # numbers as tensors: what is compiled for one of them serves all
        given = tuple(x if isinstance(x, Tensor) else torch.tensor(x, device=device) for x in given)

    def seen(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return rule(b, query, key, *given)

    return fused(create_block_mask)(seen, batch, None, time, time, device)
"""

IN_BLOCKS = '''
def in_blocks(device: torch.device) -> bool:
    """Whether attention is computed block by block: CUDA has the kernels, and an exported graph is for all devices."""
    exported = torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
    return device.type == "cuda" and not exported
'''

FUSED = '''
def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, as FlexAttention needs it; in a model that is compiled as a whole it is so already."""
    return function if torch.compiler.is_compiling() else compiled(function)
'''

COMPILED = """
@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)
"""


class MaskTensor(Primitive):
    """A mask as a bool tensor [query, key], or with axes of batch (and heads) before them where it reads tensors.

    With `blocks` all that read it take a mask in blocks as well.
    """

    placed = True
    by_rows = True
    passes = 0
    signature = (
        "mask(mask: mask, heads: int = 1, plain: bool = false, blocks: bool = none)"
        "(queries: [], keys: [], tensors: [...])"
    )
    variadic = True

    def shapes(self, call: Application) -> Sequence[Shape]:
        mask: Mask = call.options["mask"]
        queries, keys = call.inputs[0], call.inputs[1]
        assert isinstance(queries, Num)
        assert isinstance(keys, Num)
        rows = queries if mask.reads_queries else num(1)
        tensors = [v for v in call.inputs[2:] if isinstance(v, Value)]
        if not tensors:
            return ((rows, keys),)
        batch = [v.shape[0] for v in tensors if v.rank == 2]
        middle = [num(1)] * call.size("heads").value if batch else []  # type: ignore[operator]
        return ((*batch[:1], *middle, rows, keys),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("bool",)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        found: list[Reads] = []
        leaves = iter(tensor_leaves(node.options["mask"]))
        for value in node.inputs:
            if not isinstance(value, Value):
                found.append(())
                continue
            rule = next(leaves).rule
            if rule == "queries":
                place = same(rank - 2)
            elif rule in ("keys", "padding"):
                place = same(rank - 1)
            else:  # `same` and `documents` compare the key's with the query's
                place = At(((rank - 1, Fraction(1)),), also=(same(rank - 2),))
            found.append((same(0), place) if value.rank == 2 else (place,))
        return found

    def is_mask(self, options: Mapping[str, Any]) -> bool:
        return not options.get("plain")

    def undivided(self, node: OpNode) -> str:
        drawn = any(leaf.rule == "random" for leaf in node.options["mask"].leaves())
        return "draws keys among all places of the sequence" if drawn else ""

    def needs_tensor(self, options: Mapping[str, Any], inputs: Sequence[Any]) -> bool:
        queries, keys = inputs[0], inputs[1]
        square = isinstance(queries, Num) and isinstance(keys, Num) and queries.value == keys.value
        return not (self.is_mask(options) and options["mask"].rule == "causal" and square)

    def window(self, node: OpNode) -> tuple[int, Num] | None:
        found = breadth(node.options["mask"])
        return None if found is None else (0, found)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        mask: Mask = node.options["mask"]
        queries, keys = node.inputs[0], node.inputs[1]
        assert isinstance(queries, Num)
        assert isinstance(keys, Num)
        if not self.needs_tensor(node.options, node.inputs) and not g.in_steps:
            return None
        tensors = {id(leaf): 2 + i for i, leaf in enumerate(tensor_leaves(mask))}
        query, key = g.pairs(queries, keys)
        seen = OnnxWriter(node, g, query, key, tensors).write(mask, causal=False)
        if not mask.reads_queries or g.by_row:
            return seen
        if any(leaf.rule not in ("queries", *KEY_RULES) for leaf in mask.leaves()):
            return seen  # which compares every query with every key
        return g.And(seen, g.LessOrEqual(g.Mul(query, 0), key))

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        mask: Mask = node.options["mask"]
        queries, keys = node.inputs[0], node.inputs[1]
        assert isinstance(queries, Num)
        assert isinstance(keys, Num)
        tensors = {id(leaf): 2 + i for i, leaf in enumerate(tensor_leaves(mask))}
        if node.options.get("blocks") and not e.in_steps:
            return self.by_rule(node, e, tensors)
        same_axis = queries.value == keys.value
        writer = Writer(node, e, same_axis, tensors)
        pairs = e.pairs(queries, keys, int(node.options["heads"])) if e.in_steps else None
        if pairs is not None:
            writer.query, writer.key = pairs
        elif any(leaf.rule not in ("keys", "queries", "same", "padding", "documents") for leaf in mask.leaves()):
            if not mask.reads_queries:
                writer.key = e.local("key", f"torch.arange({e.number(keys)}, device={e.device()})[None, :]")
            elif same_axis:
                key = e.local("key", f"torch.arange({e.number(keys)}, device={e.device()})")
                writer.key, writer.query = key, e.local("query", f"{key}[:, None]")
            else:
                writer.key = e.local("key", f"torch.arange({e.number(keys)}, device={e.device()})")
                first = Code(f"{e.number(keys, PLUS)} - {e.number(queries, PLUS + 1)}", PLUS)
                writer.query = e.local(
                    "query", f"torch.arange({first.text}, {e.number(keys)}, device={e.device()})[:, None]"
                )
        return writer.write(mask)

    def result_type(self, options: Mapping[str, Any]) -> str:
        return "Tensor | BlockMask" if options.get("blocks") else "Tensor"

    def by_rule(self, node: OpNode, e: TorchScope, tensors: dict[int, int]) -> Code:
        """A function of places above the classes, and the mask that is made of it."""
        keys = node.inputs[1]
        assert isinstance(keys, Num)
        for helper in (COMPILED, FUSED, IN_BLOCKS, NEW_MASK, KEPT_MASK, MASK_OF):
            e.helper(helper)
        writer = RuleWriter(node, e, tensors)
        rule = e.helper(writer.function(node.options["mask"]))
        like = e.device().removesuffix(".device")
        return Code(f"mask_of({', '.join([rule, e.number(keys), like, *writer.given.values()])})")


def random_keys(g: OnnxScope, query: Any, key: Any, count: int, seed: int) -> Any:
    """For each query the `count` keys whose hash with it is largest: what RANDOM_KEYS computes."""
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
    return [leaf for leaf in mask.leaves() if leaf.rule in ("keys", "queries", "same", "padding", "documents")]


NUMBER_NAMES = {"window": "window", "chunked": "chunk", "prefix": "prefix"}
"""What the number of a rule is called where that of another may stand beside it."""
TENSOR_NAMES = {"keys": "keys", "queries": "queries", "same": "group", "padding": "padding", "documents": "documents"}


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


class OnnxWriter:
    """Masks as nodes: the same comparisons of places."""

    def __init__(self, node: OpNode, g: OnnxScope, query: Any, key: Any, tensors: dict[int, int]) -> None:
        self.node, self.g, self.query, self.key, self.tensors = node, g, query, key, tensors

    def write(self, mask: Mask, causal: bool) -> Any:
        g = self.g
        if mask.rule in ("&", "|"):
            causal = mask.rule == "&" and any(p.rule == "causal" for p in mask.parts)
            parts = [self.write(p, causal) for p in mask.parts]
            found = parts[0]
            for part in parts[1:]:
                found = g.And(found, part) if mask.rule == "&" else g.Or(found, part)
            return found
        if mask.rule == "~":
            return g.Not(self.write(mask.parts[0], causal=False))
        return self.leaf(mask, causal)

    def leaf(self, mask: Mask, causal: bool) -> Any:
        g, query, key = self.g, self.query, self.key

        def n(i: int = 0) -> Any:
            return g.number(mask.numbers[i])

        def distance() -> Any:
            back = g.Sub(query, key)
            return back if causal else g.Abs(back)

        match mask.rule:
            case "full":
                return g.GreaterOrEqual(key, 0)
            case "causal":
                return g.LessOrEqual(key, query)
            case "window":
                return g.Less(distance(), n())
            case "chunked":
                return g.Equal(g.Div(query, n()), g.Div(key, n()))
            case "prefix":
                return g.Less(key, n())
            case "global":
                return g.Or(g.Less(query, n()), g.Less(key, n()))
            case "strided":
                return g.Equal(g.Mod(g.Sub(query, key), n()), 0)
            case "dilated":
                near = g.Less(distance(), g.Mul(n(0), n(1)))
                return g.And(near, g.Equal(g.Mod(g.Sub(query, key), n(1)), 0))
            case "random":
                return random_keys(g, query, key, int(mask.numbers[0]), int(mask.numbers[1]))
        return self.tensor(mask)

    def tensor(self, mask: Mask) -> Any:
        g, i = self.g, self.tensors[id(mask)]
        value, x = self.node.inputs[i], g.arg(i)
        assert isinstance(value, Value)
        rank = value.rank + g.varies_by_row(i)
        middle = [1 + j for j in range(1 if g.by_row else int(self.node.options["heads"]))] if rank == 2 else []
        last = len(middle) + rank - 1
        if mask.rule == "queries":
            return g.Unsqueeze(g.newest(i), [*middle, last + 1])
        by_key = g.Unsqueeze(x, [*middle, last])
        return (
            by_key
            if mask.rule in ("keys", "padding")
            else g.Equal(g.Unsqueeze(g.newest(i), [*middle, last + 1]), by_key)
        )


class Writer:
    """Masks as Python: each leaf is a comparison of places, as in the definition."""

    def __init__(self, node: OpNode, e: TorchScope, same_axis: bool, tensors: dict[int, int]) -> None:
        self.node, self.e, self.same_axis, self.tensors = node, e, same_axis, tensors
        self.query = self.key = ""
        self.middle = "None, " * int(node.options["heads"])

    def write(self, mask: Mask) -> Code:
        if mask.rule in ("&", "|"):
            strength = BIT_AND if mask.rule == "&" else BIT_OR
            causal = mask.rule == "&" and any(p.rule == "causal" for p in mask.parts)
            texts = [self.leaf(p, causal).within(strength + 1) for p in mask.parts]
            return Code(f" {mask.rule} ".join(texts), strength)
        if mask.rule == "~":
            return Code(f"~{self.write(mask.parts[0]).within(UNARY)}", UNARY)
        return self.leaf(mask, False)

    def leaf(self, mask: Mask, causal: bool) -> Code:
        if mask.parts:
            return self.write(mask)
        query, key = self.query, self.key

        def n(i: int = 0, strength: int = COMPARE + 1) -> str:
            return self.number(mask, i, strength)

        match mask.rule:
            case "full":
                return Code(f"{key} >= 0", COMPARE) if key else Code("True")
            case "causal":
                return Code(f"{key} <= {query}", COMPARE)
            case "window":
                return Code(f"{query} - {key} < {n()}" if causal else f"({query} - {key}).abs() < {n()}", COMPARE)
            case "chunked":
                return Code(f"{query} // {n(0, TIMES + 1)} == {key} // {n(0, TIMES + 1)}", COMPARE)
            case "prefix":
                return Code(f"{key} < {n()}", COMPARE)
            case "global":
                return Code(f"({query} < {n()}) | ({key} < {n()})", BIT_OR)
            case "strided":
                return Code(f"({query} - {key}) % {n(0, TIMES + 1)} == 0", COMPARE)
            case "dilated":
                reach = Code(f"{n(0, TIMES)} * {n(1, TIMES + 1)}", TIMES).text
                near = f"{query} - {key} < {reach}" if causal else f"({query} - {key}).abs() < {reach}"
                return Code(f"({near}) & (({query} - {key}) % {n(1, TIMES + 1)} == 0)", BIT_AND)
            case "random":
                return Code(f"{self.e.helper(RANDOM_KEYS)}({query}, {key}, {n(0, 0)}, {n(1, 0)})")
        return self.tensor(mask)

    def number(self, mask: Mask, i: int, strength: int) -> str:
        return self.e.number(mask.numbers[i], strength)

    def tensor(self, mask: Mask) -> Code:
        i = self.tensors[id(mask)]
        value, text = self.node.inputs[i], self.e.at(i)
        assert isinstance(value, Value)
        batch = ":, " if value.rank == 2 else ""
        middle = self.middle if value.rank == 2 else ""
        by_key, by_query = f"{text}[{batch}{middle}None, :]", f"{text}[{batch}{middle}:, None]"
        if self.e.in_steps:
            by_query = f"{self.e.newest(i)}[:, {self.middle}:, None]"
        if mask.rule in ("keys", "padding"):
            return Code(by_key)
        if mask.rule == "queries":
            return Code(by_query)
        return Code(f"{by_query} == {by_key}", COMPARE)


class RuleWriter(Writer):
    """A mask as a function of the places of a query and a key, and of what it is `given`: numbers and tensors."""

    def __init__(self, node: OpNode, e: TorchScope, tensors: dict[int, int]) -> None:
        super().__init__(node, e, True, tensors)
        self.query, self.key = "query", "key"
        self.given: dict[str, str] = {}
        """Its further parameters, and what is handed to them."""
        self.types: list[str] = []
        self.names: dict[Hashable, str] = {}
        """The parameter of each number and tensor."""

    def function(self, mask: Mask) -> str:
        """The source. It tells of the mask's structure alone, and so does its name."""
        text = self.write(mask).text
        parameters = [f"{name}: {kind}" for name, kind in zip(self.given, self.types, strict=True)]
        head = ", ".join(["b: Tensor", "query: Tensor", "key: Tensor", *parameters])
        name = rule_name(mask)
        if depth(mask) > 2:  # names of masks within masks within masks may be the same
            name += f"_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        return f"\ndef {name}({head}) -> Tensor:\n    return {text}\n"

    def parameter(self, name: str, kind: str, of: Hashable, text: str) -> str:
        if of not in self.names:
            taken = sum(re.fullmatch(rf"{name}(_\d+)?", other) is not None for other in self.given)
            self.names[of] = found = f"{name}_{taken + 1}" if taken else name
            self.given[found] = text
            self.types.append(kind)
        return self.names[of]

    def number(self, mask: Mask, i: int, strength: int) -> str:
        name = NUMBER_NAMES.get(mask.rule, RULES[mask.rule][i])
        return self.parameter(name, "int", (id(mask), i), self.e.number(mask.numbers[i]))

    def tensor(self, mask: Mask) -> Code:
        i = self.tensors[id(mask)]
        value = self.node.inputs[i]
        assert isinstance(value, Value)
        text = self.parameter(TENSOR_NAMES[mask.rule], "Tensor", id(mask), self.e.arg(i))
        batch = "b, " if value.rank == 2 else ""
        by_key, by_query = f"{text}[{batch}key]", f"{text}[{batch}query]"
        if mask.rule in ("keys", "padding"):
            return Code(by_key)
        if mask.rule == "queries":
            return Code(by_query)
        return Code(f"{by_query} == {by_key}", COMPARE)
