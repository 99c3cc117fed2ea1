"""Positions and rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from archdsl.frozen import Frozen
from archdsl.ir.dims import Num, Shape, binary, function, num, shape_text, sub
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.masks import FULL, Mask, ahead
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    OnnxScope,
    Parts,
    Primitive,
    Reads,
    TorchScope,
    Tree,
    same,
    shown,
)
from archdsl.ir.ranges import whole_size
from archdsl.ir.static import BlockValue, Scheme, SharedModule, numbers_of
from archdsl.ir.wording import listed
from archdsl.ops._common import equals, number, number_inputs, tensor_inputs, usual
from archdsl.syntax import ast


class Position(Primitive):
    """A position scheme that `sdpa(…, position: …)` may be given."""

    def attend(
        self, call: Application, position: Any, q: Value, k: Value, mask: Mask, rotated: bool
    ) -> tuple[Value, Value, Value | None]:
        """Queries and keys as they enter the scores, and what is added to the scores."""
        raise TypeError(f"{type(self).__name__} does not say how it acts")


def attend(
    call: Application, position: Any, q: Value, k: Value, mask: Mask, rotated: bool
) -> tuple[Value, Value, Value | None]:
    """Queries and keys as a position lets them enter the scores, and what it adds to the scores.

    A block of one tensor turns queries and keys, each by itself (unless `rotated`). One of two, queries and keys, gives
    both back turned, or what is added to the scores, or all three; or it takes the positions of both, and gives what is
    added. Raises E0204 for other blocks, E0301 for results of other shapes."""
    target = _target(position)
    if isinstance(target, Position):
        return target.attend(call, position, q, k, mask, rotated)
    if turns(position, q):
        shared = isinstance(position, SharedModule) and not rotated
        if shared and not call.same(q.shape[-3], k.shape[-3], "a shared position turns as many heads of keys"):
            raise call.error(
                "E0305",
                f"the shared `{target.name}` would turn queries of {q.shape[-3]} heads and keys of {k.shape[-3]}",
                option="position",
                help=f"let it take both: `block {target.name}(q: […], k: […]) -> (q: […], k: […])` is applied once",
            )
        return (q, k, None) if rotated else (turned(call, position, q, mask), turned(call, position, k, mask), None)
    params = () if isinstance(target, Primitive) else target.node.header.tensors or ()
    if len(params) != 2:
        raise call.error(
            "E0204",
            f"`{target.name}` does not act inside attention",
            option="position",
            help="a position is a block of one tensor, which it turns, or of two, queries and keys; one that is added "
            "to the embedding belongs to the model's `position` slot",
        )
    given = q, k
    if all(p.type.kind == "int" for p in params):  # the last query stands at the last key
        queries, keys = (call.apply("indices", length=x.shape[-2]) for x in given)
        before = binary("-", k.shape[-2], q.shape[-2])
        given = queries if before.value == 0 else call.apply("plus", queries, before), keys
    names = ("q", "k", "bias") if len(target.node.header.results or ()) > 1 else ("bias",)
    found = call.apply_block(position, given, "position", names, _offered(call, position, q, mask))
    if len(found) == 1:
        return q, k, found[0]
    if rotated:
        raise call.error(
            "E0204",
            f"`{target.name}` turns queries and keys together, and here only a part of their channels is turned",
            option="position",
            help="give a block of one tensor, which turns queries and keys each by itself",
        )
    demand_turned(call, target.name, (q, k), found[:2])
    return found[0], found[1], found[2] if len(found) > 2 else None


def turns(position: Any, x: Value) -> bool:
    """Whether a position is a block of the spec that turns one tensor, of as many axes as x has."""
    target = _target(position)
    params: Sequence[ast.TensorParam] = (
        () if target is None or isinstance(target, Primitive) else target.node.header.tensors or ()
    )
    if len(params) != 1:
        return False
    dims = params[0].type.dims
    return len(dims) == x.rank or any(isinstance(d, ast.Ellipsis) for d in dims)


def turned(call: Application, position: Any, x: Value, mask: Mask = FULL) -> Value:
    """Queries or keys as a block of one tensor turns them. Raises E0301 for a result of another shape."""
    found = call.apply_block(position, (x,), "position", (x.name,), _offered(call, position, x, mask))
    demand_turned(call, position.name, (x,), found)
    return found[0]


def _target(position: Any) -> Any:
    """The primitive or the declared block that a position is; None for no position."""
    template = position.template if isinstance(position, SharedModule) else position
    return template.target if template is not None else None


def _offered(call: Application, position: Any, q: Value, mask: Mask) -> dict[str, Any]:
    """The sizes of a head, the mask, and whether it shows later keys, if a position has hyper-parameters of these names
    and was not given them."""
    offered: dict[str, Any] = {"mask": mask, "head_dim": q.shape[-1], **({"heads": q.shape[-3]} if q.rank > 3 else {})}
    free = {h.name for h in _target(position).node.header.hypers or ()} - arguments(position).keys()
    if "bidirectional" in free:
        offered["bidirectional"] = looks_ahead(call, mask)
    return {k: v for k, v in offered.items() if k in free}


def looks_ahead(call: Application, mask: Mask) -> bool:
    """Whether a mask shows later keys."""
    if not any(part.rule == "causal" for part in (mask, *(mask.parts if mask.rule == "&" else ()))):
        for n in numbers_of(mask):
            call.fixed(n)  # windows of one place, prefixes of one
    return ahead(mask) != 0


def demand_turned(call: Application, name: str, given: Sequence[Value], found: Sequence[Value]) -> None:
    """Refuse (E0301) a position that gives tensors back in which other than the last axes differ."""
    wanted = [x.shape[:-1] for x in given]
    if len(found) == len(given) and all(
        len(y.shape) == len(x) + 1 and all(map(call.same, y.shape[:-1], x)) for y, x in zip(found, wanted, strict=True)
    ):
        return
    shapes, got = (listed(shape_text(v.shape) for v in values) for values in (given, found))
    raise call.error(
        "E0301",
        f"the position `{name}` gives back {got}, and was given {shapes}",
        option="position",
        help="a position that turns leaves all axes but the last as they are",
    )


def arguments(position: Any) -> dict[str, Any]:
    """What a position was given."""
    template = position.template if isinstance(position, SharedModule) else position
    assert isinstance(template, BlockValue)
    return dict(template.args)


class Factor(Frozen):
    """What scores are multiplied with: the number, and how PyTorch writes it."""

    number: Num
    torch: Callable[[TorchScope], Tree]

    @property
    def value(self) -> float:
        return float(self.number)

    def __str__(self) -> str:
        return f"{self.value:g}"


def attention_scale(position: Any, call: Application) -> Factor | None:
    """The factor that the scaling of a rope puts on the scores: YaRN and LongRoPE sharpen attention over longer
    contexts. Where a part of the channels is turned, it is of these alone, and lies in their cosines and sines."""
    if position is None or _partial(arguments(position)):
        return None
    scaling = arguments(position).get("scaling")
    return _sharpening(scaling, call) if isinstance(scaling, Scheme) else None


def _partial(options: Mapping[str, Any]) -> bool:
    """Whether a rope says which part of the channels it turns."""
    fraction = options.get("fraction")
    return options.get("dims") is not None or (fraction is not None and fraction.value != 1)


def _sharpening(scaling: Scheme, call: Application) -> Factor | None:
    """What a scaling multiplies the scores with, or None."""
    numbers = scaling.numbers
    if scaling.name == "yarn" and call.holds("!=", numbers["mscale"], 0) and call.holds(">", numbers["factor"], 1):
        grown = binary("*", binary("*", num(Fraction(1, 10)), numbers["mscale"]), function("log", (numbers["factor"],)))
        return Factor(
            binary("**", binary("+", grown, num(1)), num(2)),
            lambda e: e.py("(0.1 * {mscale} * math.log({factor}) + 1) ** 2", **numbers),
        )
    if scaling.name == "longrope" and "factor" in numbers and call.holds(">", numbers["factor"], 1):
        call.holds(">", numbers["original"], 1, "`longrope` stretches a context of more than one position")
        ratio = binary("/", function("log", (numbers["factor"],)), function("log", (numbers["original"],)))
        return Factor(
            binary("+", num(1), ratio),
            lambda e: e.py("1 + math.log({factor}) / math.log({original})", **numbers),
        )
    return None


class Indices(Primitive):
    """The positions 0, 1, … length - 1, whole numbers; in decoding, too, counted from the start."""

    positional = True
    passes = 0
    signature = "indices(length: size) -> int[length]"
    hints = ("positions",)
    mixes = False
    numpy = "arange"
    examples = (Example("x * indices(8)"), Example("indices(5)", gradients=False))

    def at_positions(self, node: OpNode) -> bool:
        return True

    def positions(self, node: OpNode) -> At:
        return same(0)

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> DimValue:
        return sub(number(node, "length").value, 1)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.positions(number(node, "length"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.positions(number(node, "length"))


class Sinusoid(Primitive):
    """The table of sinusoidal positions (Vaswani et al., 2017): sin and cos of `position * theta ** (-2i / width)`.

    Positions count from `offset`. The sines stand before the cosines; with `interleaved` they take turns. It is
    float32. It is made of numbers alone, and a block of the language takes a tensor."""

    family = "position encoding"
    positional = True
    passes = 2
    signature = (
        "sinusoid(length: size, width: size, theta: positive = 10_000, interleaved: bool = false, offset: int = 0) "
        "-> float32[length, width]"
    )
    mixes = False
    examples = (
        Example("x + sinusoid(5, 8)"),
        Example("sinusoid(5, 8, theta: 100, interleaved: true, offset: 2)", gradients=False),
    )

    def at_positions(self, node: OpNode) -> bool:
        return True

    def check(self, call: Application) -> None:
        call.condition("%", call.size("width"), num(2), "the width must be even: half are sines, half cosines")
        usual(call, theta=10_000, offset=0)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        positions, offset = g.positions(number(node, "length")), number(node, "offset")
        if not equals(offset, 0):
            positions = g.Add(positions, offset)
        waves = self.waves(g, number(node, "width"), number(node, "theta"))
        angle = g.Mul(g.Unsqueeze(g.cast(positions, "float32"), [-1]), waves)
        if not node.options["interleaved"]:
            return g.Concat(g.Sin(angle), g.Cos(angle), axis=-1)
        pairs = g.Concat(*(g.Unsqueeze(t, [-1]) for t in (g.Sin(angle), g.Cos(angle))), axis=-1)
        return g.Reshape(pairs, [*([0] * (2 if g.by_row else 1)), -1])

    def waves(self, g: OnnxScope, width: Num, theta: Num) -> Any:
        """Radians a position."""
        if width.static and theta.static:
            return g.constant(frequencies(float(theta), int(width)), "float32")
        own = g.number(width, "float32")
        exponents = g.Div(g.Range(g.constant(0.0, "float32"), own, 2.0), own)
        return g.Pow(g.number(theta, "float32"), g.Neg(exponents))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        function = "interleaved_sinusoid" if node.options["interleaved"] else "sinusoid"
        length, offset, theta = number(node, "length"), number(node, "offset"), number(node, "theta")
        positions = e.positions(length, None if equals(offset, 0) else offset)
        wave = () if equals(theta, 10_000) else (theta,)
        width = number(node, "width")
        return e.py(f"{function}({{x}}, {{width}}, {{*wave}})", x=positions, width=width, wave=wave)


def frequencies(theta: float, dims: int) -> list[float]:
    """Radians a position, for each pair of channels."""
    return [theta ** -(i / dims) for i in range(0, dims, 2)]


def yarn(waves: Sequence[float], theta: float, n: Mapping[str, float]) -> list[float]:
    """What YARN says, in numbers."""
    dims = 2 * len(waves)

    def pair(turns: float) -> float:
        return dims * math.log(n["original"] / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(n["beta_fast"]), pair(n["beta_slow"])
    if n["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramps = [min(max((i - low) / max(high - low, 1e-3), 0), 1) for i in range(dims // 2)]
    return [w * (1 - ramp + ramp / n["factor"]) for w, ramp in zip(waves, ramps, strict=True)]


def llama3(waves: Sequence[float], n: Mapping[str, float]) -> list[float]:
    """What `llama3` says, in numbers."""
    found = []
    for wave in waves:
        periods = n["original"] * wave / (2 * math.pi)
        apart = n["high"] - n["low"]
        keep = min(max((periods - n["low"]) / apart, 0), 1) if apart else periods > n["low"]
        found.append(wave * (keep + (1 - keep) / n["factor"]))
    return found


class RopeTable(Primitive):
    """Cosines and sines [2, time, dims / 2] of the angles that rope turns by; made once by the model."""

    positional = True
    hoisted = True
    typed = "float32"
    signature = "rope_table(theta: positive, dims: size, scaling: scaling = none, sharpened: bool = false)(length: [])"

    def at_positions(self, node: OpNode) -> bool:
        scaling = node.options["scaling"]
        return scaling is None or scaling.name != "longrope"  # whose frequencies depend on the length

    def check(self, call: Application) -> None:
        scaling = call.options["scaling"]
        if isinstance(scaling, Scheme) and "truncate" in scaling.numbers:
            call.holds("!=", scaling.numbers["truncate"], 0)

    def shapes(self, call: Application) -> Sequence[Shape]:
        (length,) = number_inputs(call, 0)
        scaling = call.options["scaling"]
        if isinstance(scaling, Scheme) and scaling.name == "longrope":
            pairs = call.size("dims").value
            if call.size("dims").static:
                call.fixed(call.size("dims"))
            for field in ("short", "long"):
                count = len(scaling.lists[field])
                if isinstance(pairs, int) and count != pairs // 2:
                    raise call.error(
                        "E0301",
                        f"longrope needs a divisor for each of {pairs // 2} pairs of channels, "
                        f"and `{field}` has {count}",
                    )
        return ((num(2), length, binary("//", call.size("dims"), num(2))),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        (length,) = number_inputs(node, 0)
        position = g.cast(g.positions(length), "float32")
        angles = g.Mul(g.Unsqueeze(position, [-1]), self.waves(node, g, length))
        table = g.Concat(g.Unsqueeze(g.Cos(angles), [0]), g.Unsqueeze(g.Sin(angles), [0]), axis=0)
        return g.Mul(table, _root(node.options["scaling"])) if node.options.get("sharpened") else table

    def waves(self, node: OpNode, g: OnnxScope, length: Num) -> Any:
        """Radians a position for each pair of channels: numbers, unless they depend on the length."""
        theta, dims, scaling = float(node.options["theta"]), int(node.options["dims"]), node.options["scaling"]
        if scaling is None:
            return g.constant(frequencies(theta, dims), "float32")
        n = {k: float(v) for k, v in scaling.numbers.items()}
        if scaling.name == "ntk":
            return g.constant(frequencies(theta * n["factor"] ** (dims / (dims - 2)), dims), "float32")
        waves = frequencies(theta, dims)
        if scaling.name == "linear":
            return g.constant([w / n["factor"] for w in waves], "float32")
        if scaling.name == "yarn":
            return g.constant(yarn(waves, theta, n), "float32")
        if scaling.name == "llama3":
            return g.constant(llama3(waves, n), "float32")
        short, long = (map(float, scaling.lists[f]) for f in ("short", "long"))
        beyond = g.Greater(g.number(length), int(n["original"]))
        slow, fast = ([w / d for w, d in zip(waves, by, strict=True)] for by in (long, short))
        return g.Where(beyond, g.constant(slow, "float32"), g.constant(fast, "float32"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        theta, dims, scaling = node.options["theta"], node.options["dims"], node.options["scaling"]
        positions = e.positions(*number_inputs(node, 0))
        kind, n = ("", {}) if scaling is None else (scaling.name, scaling.numbers)
        if kind == "ntk":
            theta = e.py("{theta} * {factor} ** ({dims} / ({dims} - 2))", theta=theta, dims=dims, factor=n["factor"])
        if kind in ("", "ntk"):
            return e.py("rope_table({x}, {dims}, {theta})", x=positions, dims=dims, theta=theta)
        waves = e.py("rope_frequencies({dims}, {theta}, {device})", dims=dims, theta=theta, device=e.device())
        waves = e.let("frequencies", waves)
        if kind == "linear":
            waves = e.py("{waves} / {factor}", waves=waves, factor=n["factor"])
        elif kind == "yarn":
            more = {name: n[name] for name in ("factor", "original", "beta_fast", "beta_slow")}
            more |= {} if n["truncate"].value else {"truncate": False}
            waves = e.py("yarn_scaling({waves}, {theta}, {**more})", waves=waves, theta=theta, more=more)
        elif kind == "llama3":
            more = {name: n[name] for name in ("factor", "low", "high", "original")}
            waves = e.py("llama3_scaling({waves}, {**more})", waves=waves, more=more)
        elif kind == "longrope":
            call = "LongRope(short=[{*short}], long=[{*long}], original={original})"
            module = e.stateless("longrope", e.py(call, **scaling.lists, original=n["original"]))
            waves = e.py("{longrope}({waves}, {0})", longrope=module, waves=waves)
        table = e.py("scaled_rope_table({x}, {waves})", x=positions, waves=waves)
        if not node.options.get("sharpened"):
            return table
        written = {
            "yarn": "(0.1 * {mscale} * math.log({factor}) + 1) * {table}",
            "longrope": "math.sqrt(1 + math.log({factor}) / math.log({original})) * {table}",
        }
        return e.py(written[kind], table=table, **n)


def _root(scaling: Scheme) -> float:
    """What a sharpened table is multiplied with: the root of the scores' factor."""
    n = {k: float(v) for k, v in scaling.numbers.items()}
    if scaling.name == "yarn":
        return 0.1 * n["mscale"] * math.log(n["factor"]) + 1
    return math.sqrt(1 + math.log(n["factor"]) / math.log(n["original"]))


class Rope(Position):
    """Rotary position embedding (Su et al., 2021): turns pairs of channels by angles that grow with the position along
    the last axis but one.

    `dims` (or `fraction` of the head) channels are turned, all by default; pairs are (i, i + dims / 2), or (2i, 2i +
    1) if `interleaved`.
    `scaling` is linear(factor), ntk(factor), yarn(factor, original, …), llama3(factor, low, high, original) or
    longrope(short, long, original). The last turns a sequence that outgrows `original` by other angles from its first
    position on, so keys that were kept from before no longer fit: such a text is begun anew, with all of it as the
    prompt. YaRN, and LongRoPE with a `factor`, sharpen attention: as a position of attention by the scores as a whole,
    or where a part of the channels is turned, by that part; applied to a tensor, by the channels that it turns."""

    signature = (
        "rope(theta: positive = 10_000, dims: size = none, fraction: share = none, interleaved: bool = false, "
        "scaling: scaling = none)"
        "(x: float[..., time, width]) -> [..., time, width]"
    )
    examples = shown(
        "x -> rope  # x: [2, 4, 5, 8]",
        "x -> rope(theta: 500, interleaved: true)  # x: [2, 4, 5, 8]",
        "x -> rope(dims: 4)  # x: [2, 4, 5, 8]",
        "x -> rope(fraction: 0.5, interleaved: true, scaling: linear(factor: 2))",
        "x -> rope(scaling: yarn(factor: 4, original: 8))  # x: [2, 4, 5, 8]",
        "x -> rope(fraction: 0.5, scaling: yarn(factor: 4, original: 8))  # x: [2, 4, 5, 8]",
        "x -> rope(scaling: llama3(factor: 8, original: 16))  # x: [2, 4, 5, 8]",
        "x -> rope(scaling: ntk(factor: 2))  # x: [2, 4, 5, 8]",
        "x -> rope(scaling: longrope(short: [1, 1, 1.5, 2], long: [1, 2, 3, 4], original: 3))  # x: [2, 4, 5, 8]",
        "x -> rope(dims: 4, scaling: longrope(short: [1, 2], long: [2, 3], original: 4, factor: 8))  # x: [2, 4, 5, 8]",
    )

    def build(self, call: Application) -> Sequence[Value]:
        return (turn(call, call.tensor(0), call.options, alone=True),)

    def attend(
        self, call: Application, position: Any, q: Value, k: Value, mask: Mask, rotated: bool
    ) -> tuple[Value, Value, Value | None]:
        if rotated:
            return q, k, None
        options = {"theta": None, **arguments(position)}
        return turn(call, q, options), turn(call, k, options), None


def turn(call: Application, x: Value, options: Any, *, alone: bool = False) -> Value:
    """x with its channels turned, by a table that the model makes once for every length, theta and scaling. `alone`
    says that no attention multiplies its scores by what the scaling sharpens."""
    theta = options.get("theta") or num(10_000)
    head = x.shape[-1]
    dims = options.get("dims")
    if dims is None and options.get("fraction") is not None:
        dims = whole_size(binary("*", head, options["fraction"]), "size", "the rotated part of a head", call.span)
        if dims.static:
            call.is_whole(dims)
            call.holds(">=", dims, 1)
    dims = head if dims is None else dims
    if dims.static and head.static and not call.holds("<=", dims, head, "rope turns no more channels than a head has"):
        raise call.error("E0204", f"rope rotates {dims} channels, and a head has {head}", option="position")
    if dims.static and not call.holds("==", binary("%", dims, num(2)), 0, "rope needs an even number of channels"):
        raise call.error(
            "E0204",
            f"rope needs an even number of channels, and {dims} is odd",
            option="position",
            help="make head_dim even, or set `dims`",
        )
    call.same(dims, head, "rope is written for all channels of a head: compile again with --set")
    scaling = options.get("scaling")
    if getattr(scaling, "name", "") == "ntk" and dims.static and not call.holds("!=", dims, 2):
        raise call.error(
            "E0204",
            "`ntk` stretches all pairs of channels but the first, and rope rotates one pair",
            option="position",
            help="rotate at least 4 channels, or use `linear(factor)`",
        )
    if getattr(scaling, "name", "") == "yarn" and theta.static and float(theta) <= 1:
        raise call.error(
            "E0204", f"`yarn` needs waves that grow longer: `theta` above 1, not {theta}", option="position"
        )
    in_table = isinstance(scaling, Scheme) and (alone or _partial(options))
    sharpened = in_table and _sharpening(scaling, call) is not None
    table = call.apply(
        "rope_table",
        x.shape[-2],
        called="rope",
        theta=theta,
        dims=dims,
        **({"scaling": scaling} if scaling is not None else {}),
        **({"sharpened": True} if sharpened else {}),
    )
    return call.apply("turn", x, table, interleaved=bool(options.get("interleaved")))


class Rotate(Primitive):
    """x turned by a position that is a rope or a block of one tensor; any other, or none, leaves it as it is."""

    signature = "rotate(position: position)(x: float[..., time, width]) -> [..., time, width]"
    examples = (
        Example("rotate(x, rope(theta: 100))", "x: [2, 4, 5, 8]"),
        Example("x -> rotate(none)", "x: [2, 4, 5, 8]", gradients=False),
    )

    def build(self, call: Application) -> Sequence[Value]:
        position = call.options["position"]
        if isinstance(_target(position), Rope):
            return (turn(call, call.tensor(0), arguments(position)),)
        return (turned(call, position, call.tensor(0)) if turns(position, call.tensor(0)) else call.tensor(0),)


class Turn(Primitive):
    """Pairs of channels turned by a table of cosines and sines [2, time, dims / 2]; channels beyond `dims` stay.
    Written `rope` or `rotate`."""

    title = "rope"
    keeps_projection = True
    by_rows = True
    passes = 3
    additive = True
    typed = 0
    signature = (
        "turn(interleaved: bool = false)"
        "(x: float[..., time, width], table: float[two, time, half]) -> [..., time, width]"
    )
    hints = ("=",)

    def rotated_pairs(self, node: OpNode) -> str:
        return "pairs" if node.options["interleaved"] else "halves"

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        return ((*(same(i) for i in range(rank - 1)), EVERYWHERE), (EVERYWHERE, same(rank - 2), EVERYWHERE))

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        axis = cut[0]
        return None if axis is None or axis >= node.outputs[0].rank - 2 else Parts(axis)

    def leading(self, node: OpNode, i: int) -> int | None:
        return 1 if i == 1 else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """`RotaryEmbedding`, which takes [batch, heads, time, width] and a table for each row."""
        x, table = tensor_inputs(node, 0, 1)
        turned, width = 2 * int(table.shape[2]), int(x.shape[-1])
        y = g.arg(0)
        kind = g.dtype(y)
        if x.rank == 2:
            y = g.Unsqueeze(y, [0, 1])
        elif x.rank == 3:
            y = g.Unsqueeze(y, [1])
        elif x.rank > 4:
            y = g.Reshape(y, [-1, x.shape[-3], g.dimension(y, -2), width])
        rows = x.shape[0] if x.rank in (3, 4) else g.Shape(y, start=0, end=1)

        def halves() -> tuple[Any, Any]:
            """Cosines and sines: [batch, time, half]."""
            found = []
            for i in (0, 1):
                angles = g.Gather(g.arg(1), i, axis=0)
                angles = angles if g.by_row else g.Expand(g.Unsqueeze(angles, [0]), [rows, 1, 1])
                found.append(g.cast(angles, kind))
                g.of_positions(found[i], 1, partial(half, i))
            return found[0], found[1]

        def half(i: int, table: Any) -> Any:
            return g.cast(g.Gather(table, i, axis=0), kind)

        cos, sin = g.memo(g.arg(1), f"{kind} {'rows' if x.rank > 4 or x.rank == 2 else 'batch'}", halves)
        part = {"rotary_embedding_dim": turned} if turned < width else {}
        y = g.RotaryEmbedding(y, cos, sin, interleaved=int(bool(node.options["interleaved"])), **part)
        return y if x.rank == 4 else g.Reshape(y, g.Shape(g.arg(0)))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        x, table = tensor_inputs(node, 0, 1)
        whole = isinstance(table.shape[2].value, int) and table.shape[2].value * 2 == x.shape[-1].value
        part, pairs = "" if whole else "_part", "_pairs" if node.options["interleaved"] else ""
        return e.py(f"rotate{part}{pairs}({{0}}, {{1}})")
