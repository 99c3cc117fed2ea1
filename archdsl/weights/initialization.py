"""How every weight is drawn: the one place that says what a scheme means for a weight of a kind.

Both the weights that `archdsl init` writes and the emitted module follow it.  A scheme and a weight give a law:

| scheme | matrix | embedding | bias | gain |
|---|---|---|---|---|
| default | uniform ± 1 / sqrt(fan_in) | normal 0.02 | uniform ± 1 / sqrt(fan_in); of norms 0 | 1 |
| zeros ones constant(value) | that number | that number | 0 | that number |
| normal(std, mean) | normal | normal | 0 | normal |
| truncated_normal(std, limit) | normal, cut off at limit · std | the same | 0 | the same |
| uniform(bound) | uniform ± bound | uniform ± bound | 0 | uniform ± bound |
| xavier(gain) | uniform ± gain · sqrt(6 / (fan_in + fan_out)) | the same | 0 | |
| xavier_normal(gain) | normal gain · sqrt(2 / (fan_in + fan_out)) | the same | 0 | |
| kaiming | uniform ± sqrt(6 / fan_in) | the same | 0 | |
| kaiming_normal | normal sqrt(2 / fan_in) | the same | 0 | |
| orthogonal(gain) | gain times a matrix with orthonormal rows or columns | the same | 0 | |
| depth_scaled(std, layers) | normal std; std / sqrt(2 · layers) at the end of a residual branch | normal std | 0 | |
| small | normal sqrt(2 / (5 · width)) | the same | 0 | |
| deepnorm(layers) | xavier_normal, gain 1 for queries and keys, else (8 · layers) ** -1/4 | normal 0.02 | 0 | |

A scheme of a block or model reaches its matrices, embeddings and biases; one that is an option of a primitive reaches
all its weights, gains too.  A rule for a bias by its name draws it by the scheme as if it were a matrix.  A raw weight
(`param`) is drawn as its statement says; fans, where a scheme asks for them, are those of torch: the second axis and
the first, each times the axes behind them.  `width` is the block's axis of that name, else the fan-in.  The matrices of
experts are drawn one by one, each with its own fans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from archdsl.frozen import Frozen
from archdsl.ir.dims import Num, binary, function, num, product
from archdsl.ir.graph import Block, Graph, Model, OpNode, ParamNode, Weight
from archdsl.ir.static import Scheme
from archdsl.weights.branches import branch_ends, query_key_maps

# --- laws -------------------------------------------------------------------------------------------------------------


class Constant(Frozen):
    """One number everywhere."""

    value: Num


class Normal(Frozen):
    """A normal distribution. `torch` is the function of `nn.init` that does the same, where there is one, with
    `gain`."""

    mean: Num
    std: Num
    torch: str = ""
    gain: Num | None = None


class TruncatedNormal(Frozen):
    """A normal distribution of mean 0 within ± `limit` of its standard deviations `std`."""

    std: Num
    limit: Num


class Uniform(Frozen):
    """Uniform within ± `bound`. `torch` and `gain` as for `Normal`."""

    bound: Num
    torch: str = ""
    gain: Num | None = None


class Orthogonal(Frozen):
    """`gain` times a matrix with orthonormal rows or columns, whichever are fewer; further axes belong to the
    columns."""

    gain: Num


class Expression(Frozen):
    """An expression over draws, `indices` and numbers."""

    graph: Graph


Law = Constant | Normal | TruncatedNormal | Uniform | Orthogonal | Expression


# --- places -----------------------------------------------------------------------------------------------------------


class WeightRole(Frozen):
    """What a weight's surroundings say: whether it ends a residual branch, whether it makes queries or keys, the
    block's width."""

    ends_branch: bool = False
    query_key: bool = False
    width: Num | None = None


NOWHERE = WeightRole()


@dataclass(eq=False)
class Laws:
    """The law of every weight of a model."""

    model: Model
    _ends: frozenset[int] | None = None
    _query_key: dict[int, frozenset[int]] = field(default_factory=dict)

    def of(self, block: Block, node: OpNode | ParamNode, weight: Weight) -> Law:
        """The law of a weight of a node in a block, its numbers in the block's names."""
        return resolve(weight, self.place(block, node, weight))

    def place(self, block: Block, node: OpNode | ParamNode, weight: Weight) -> WeightRole:
        if isinstance(node, ParamNode):
            return NOWHERE
        ends = query_key = False
        if weight.init.scheme == "depth_scaled":
            if self._ends is None:
                self._ends = branch_ends(self.model.block)
            ends = id(node) in self._ends
        elif weight.init.scheme == "deepnorm":
            if id(block) not in self._query_key:
                self._query_key[id(block)] = query_key_maps(block)
            query_key = id(node) in self._query_key[id(block)]
        width = block.axes.get("width", block.hypers.get("width"))
        return WeightRole(ends, query_key, width if isinstance(width, Num) and width.static else None)


@lru_cache(maxsize=4)
def laws_of(model: Model) -> Laws:
    """The laws of a model; asked for by block after block, they are found once."""
    return Laws(model)


def resolve(weight: Weight, place: WeightRole = NOWHERE) -> Law:
    """The law by which a weight is drawn."""
    init = weight.init
    if init.scheme == "expression":
        assert init.graph is not None
        return Expression(init.graph)
    if init.scheme == "default":
        return _default(weight)
    return RULES[init.scheme](Drawn(weight, dict(init.numbers), place))


def _default(weight: Weight) -> Law:
    if weight.kind == "gain":
        return Constant(num(1))
    if weight.kind == "embedding":
        return Normal(num(0), num(Fraction(1, 50)))
    if weight.kind in ("matrix", "bias") and weight.fan_in is not None:
        return Uniform(binary("/", num(1), _sqrt(weight.fan_in)))
    return Constant(num(0))


class Drawn(Frozen):
    """A weight that a scheme is applied to."""

    weight: Weight
    numbers: dict[str, Num]
    place: WeightRole

    @property
    def fan_in(self) -> Num:
        w = self.weight
        if w.fan_in is not None and w.kind != "embedding":
            return w.fan_in
        return product(w.shape[1:]) if len(w.shape) > 1 else product(w.shape)

    @property
    def fan_out(self) -> Num:
        w = self.weight
        if w.fan_out is not None and w.kind != "embedding":
            return w.fan_out
        return product((w.shape[0], *w.shape[2:])) if w.shape else num(1)

    @property
    def as_torch(self) -> bool:
        """Whether torch finds the same fans from the shape."""
        shape = self.weight.shape
        return (
            len(shape) > 1
            and product(shape[1:]).value == self.fan_in.value
            and product((shape[0], *shape[2:])).value == self.fan_out.value
        )

    def named(self, name: str) -> str:
        return name if self.as_torch else ""


def _sqrt(n: Num) -> Num:
    return function("sqrt", (n,))


def _times(a: Num, b: Num) -> Num:
    return binary("*", a, b)


def _fans(d: Drawn) -> Num:
    return binary("+", d.fan_in, d.fan_out)


def _xavier(d: Drawn) -> Law:
    gain = d.numbers["gain"]
    return Uniform(_times(gain, _sqrt(binary("/", num(6), _fans(d)))), d.named("xavier_uniform_"), gain)


def _xavier_normal(d: Drawn, gain: Num) -> Law:
    return Normal(num(0), _times(gain, _sqrt(binary("/", num(2), _fans(d)))), d.named("xavier_normal_"), gain)


def _kaiming(d: Drawn) -> Law:
    return Uniform(_sqrt(binary("/", num(6), d.fan_in)), d.named("kaiming_uniform_"))


def _kaiming_normal(d: Drawn) -> Law:
    return Normal(num(0), _sqrt(binary("/", num(2), d.fan_in)), d.named("kaiming_normal_"))


def _depth_scaled(d: Drawn) -> Law:
    std = d.numbers["std"]
    if d.place.ends_branch:
        std = binary("/", std, _sqrt(_times(num(2), d.numbers["layers"])))
    return Normal(num(0), std)


def _small(d: Drawn) -> Law:
    return Normal(num(0), _sqrt(binary("/", num(2), _times(num(5), d.place.width or d.fan_in))))


def _deepnorm(d: Drawn) -> Law:
    if d.weight.kind == "embedding":
        return Normal(num(0), num(Fraction(1, 50)))
    beta = binary("**", _times(num(8), d.numbers["layers"]), num(Fraction(-1, 4)))
    return _xavier_normal(d, num(1) if d.place.query_key else beta)


RULES: dict[str, Callable[[Drawn], Law]] = {
    "zeros": lambda d: Constant(num(0)),
    "given": lambda d: Constant(num(0)),  # until the weights are there
    "ones": lambda d: Constant(num(1)),
    "constant": lambda d: Constant(d.numbers["value"]),
    "normal": lambda d: Normal(d.numbers["mean"], d.numbers["std"]),
    "truncated_normal": lambda d: TruncatedNormal(d.numbers["std"], d.numbers["limit"]),
    "uniform": lambda d: Uniform(d.numbers["bound"]),
    "xavier": _xavier,
    "xavier_normal": lambda d: _xavier_normal(d, d.numbers["gain"]),
    "kaiming": _kaiming,
    "kaiming_normal": _kaiming_normal,
    "orthogonal": lambda d: Orthogonal(d.numbers["gain"]),
    "depth_scaled": _depth_scaled,
    "small": _small,
    "deepnorm": _deepnorm,
}


def law_of(scheme: Scheme) -> Law:
    """The law of a scheme that stands in an expression, where it knows no weight."""
    return RULES[scheme.name](Drawn(Weight("", (), "raw"), dict(scheme.numbers), NOWHERE))
