"""Random numbers that are the same everywhere: for a seed and a name, on every machine, with every version of numpy.

A stream is Philox (Salmon et al., 2011), a generator that encrypts a counter, under a key made of the seed and the
name; numpy guarantees its raw output, 64 bits a number.  Normal numbers come from the inverse of their distribution
function (algorithm AS 241, Wichura, 1988), written here with additions, multiplications, divisions and square roots
only: these IEEE 754 rounds in one way, while logarithms and sines differ in their last bits from one library to the
next."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from archdsl.ir.dims import Num
from archdsl.ir.graph import Graph, Input, OpNode, Value
from archdsl.ir.static import ListValue, Scheme, floats
from archdsl.weights.initialization import (
    Constant,
    Expression,
    Law,
    Normal,
    Orthogonal,
    TruncatedNormal,
    Uniform,
    law_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

CHUNK = 1 << 16
"""Numbers made at a time: what fits a core's cache."""

AT_ONCE = 64
"""Pieces that are in memory at a time."""


class Stream:
    """Numbers for one name."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
        self._key = int.from_bytes(digest, "little")
        self._philox = np.random.Philox(key=self._key)

    def at(self, start: int) -> Stream:
        """The same numbers from the one numbered `start` on, a multiple of 4: each step of the counter makes four."""
        later = copy(self)
        later._philox = np.random.Philox(key=self._key, counter=start // 4)
        return later

    def uniform(self, count: int) -> Array:
        """Numbers between 0 and 1, both excluded: the middles of 2**53 equal parts."""
        raw = np.asarray(self._philox.random_raw(count), dtype=np.uint64)
        return ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def normal(self, count: int) -> Array:
        """Numbers of mean 0 and standard deviation 1."""
        return normal_quantile(self.uniform(count))


# --- the normal distribution ------------------------------------------------------------------------------------------

# Coefficients of AS 241 (PPND16), the highest power first: numerator and denominator, for the middle, the tails and the
# far tails.
MIDDLE = (
    (
        2.50908_09287_30122_6727e3, 3.34305_75583_58812_8105e4, 6.72657_70927_00870_0853e4, 4.59219_53931_54987_1457e4,
        1.37316_93765_50946_1125e4, 1.97159_09503_06551_4427e3, 1.33141_66789_17843_7745e2, 3.38713_28727_96366_6080e0,
    ),
    (
        5.22649_52788_52854_5610e3, 2.87290_85735_72194_2674e4, 3.93078_95800_09271_0610e4, 2.12137_94301_58659_5867e4,
        5.39419_60214_24751_1077e3, 6.87187_00749_20579_0830e2, 4.23133_30701_60091_1252e1, 1.0,
    ),
)  # fmt: skip
TAIL = (
    (
        7.74545_01427_83414_07640e-4, 2.27238_44989_26918_45833e-2, 2.41780_72517_74506_11770e-1,
        1.27045_82524_52368_38258e0, 3.64784_83247_63204_60504e0, 5.76949_72214_60691_40550e0,
        4.63033_78461_56545_29590e0, 1.42343_71107_49683_57734e0,
    ),
    (
        1.05075_00716_44416_84324e-9, 5.47593_80849_95344_94600e-4, 1.51986_66563_61645_71966e-2,
        1.48103_97642_74800_74590e-1, 6.89767_33498_51000_04550e-1, 1.67638_48301_83803_84940e0,
        2.05319_16266_37758_82187e0, 1.0,
    ),
)  # fmt: skip
FAR_TAIL = (
    (
        2.01033_43992_92288_13265e-7, 2.71155_55687_43487_57815e-5, 1.24266_09473_88078_43860e-3,
        2.65321_89526_57612_30930e-2, 2.96560_57182_85048_91230e-1, 1.78482_65399_17291_33580e0,
        5.46378_49111_64114_36990e0, 6.65790_46435_01103_77720e0,
    ),
    (
        2.04426_31033_89939_78564e-15, 1.42151_17583_16445_88870e-7, 1.84631_83175_10054_68180e-5,
        7.86869_13114_56132_59100e-4, 1.48753_61290_85061_48525e-2, 1.36929_88092_27358_05310e-1,
        5.99832_20655_58879_37690e-1, 1.0,
    ),
)  # fmt: skip

Ratio = tuple[tuple[float, ...], tuple[float, ...]]


def _ratio(of: Ratio, x: Array) -> Array:
    above, below = (_polynomial(p, x) for p in of)
    above /= below
    return above


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total *= x
        total += c
    return total


def natural_logarithm(x: Array) -> Array:
    """log of positive numbers, to about 1e-16 relative, by arithmetic alone."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa = np.where(low, 2 * mantissa, mantissa)
    s = (mantissa - 1) / (mantissa + 1)
    series = _polynomial([1 / k for k in range(23, 0, -2)], s * s)
    result: Array = (exponent - low) * math.log(2) + 2 * s * series
    return result


def normal_quantile(p: Array) -> Array:
    """The number that a normal variable is below with probability p, to about 1e-15 relative."""
    q = p - 0.5
    result = _ratio(MIDDLE, 0.180625 - q * q) * q
    outer = np.nonzero(np.abs(q) > 0.425)[0]
    if outer.size:
        side = q[outer]
        r = np.sqrt(-natural_logarithm(np.where(side < 0, p[outer], 1 - p[outer])))
        tail = _ratio(TAIL, r - 1.6)
        far = np.nonzero(r > 5)[0]
        if far.size:
            tail[far] = _ratio(FAR_TAIL, r[far] - 5)
        result[outer] = np.where(side < 0, -tail, tail)
    return result


# --- laws -------------------------------------------------------------------------------------------------------------


def drawn(
    law: Law, shape: tuple[int, ...], seed: int, name: str, matrices: bool = False, pool: Executor | None = None
) -> Iterator[Array]:
    """The numbers of a weight in pieces, row by row. `matrices`: the first axis counts matrices that are drawn one by
    one. The threads of `pool` draw several pieces at once, which changes none of them."""
    count = math.prod(shape)
    if isinstance(law, Expression):
        yield np.broadcast_to(evaluated(law.graph, seed, name), shape).astype(np.float64).reshape(-1)
        return
    stream = Stream(seed, name)
    if isinstance(law, Orthogonal):
        gain = float(law.gain)
        for one in [shape[1:]] * shape[0] if matrices else [shape]:
            yield gain * orthogonal(one, stream)
        return

    def piece(start: int) -> Array:
        return _piece(law, min(CHUNK, count - start), stream.at(start))

    starts = range(0, count, CHUNK)
    if pool is None or len(starts) == 1:
        yield from map(piece, starts)
        return
    for first in range(0, len(starts), AT_ONCE):
        yield from pool.map(piece, starts[first : first + AT_ONCE])


def _piece(law: Law, count: int, stream: Stream) -> Array:
    if isinstance(law, Constant):
        return np.full(count, float(law.value))
    if isinstance(law, Normal):
        return float(law.mean) + float(law.std) * stream.normal(count)
    if isinstance(law, Uniform):
        return float(law.bound) * (2 * stream.uniform(count) - 1)
    assert isinstance(law, TruncatedNormal)
    below = round(0.5 * math.erfc(float(law.limit) / math.sqrt(2)), 14)  # of a normal variable below -limit
    inside = np.maximum(below + (1 - 2 * below) * stream.uniform(count), 2.0**-54)
    limit = float(law.limit)
    return float(law.std) * np.clip(normal_quantile(inside), -limit, limit)


def orthogonal(shape: tuple[int, ...], stream: Stream) -> Array:
    """A random matrix with orthonormal rows or columns: the Q of a normal matrix, its signs those that make it
    uniform."""
    rows, columns = shape[0], math.prod(shape[1:])
    normal = stream.normal(rows * columns).reshape(max(rows, columns), min(rows, columns))
    q, r = np.linalg.qr(normal)
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return np.ascontiguousarray(q if rows >= columns else q.T).reshape(-1)


def evaluated(graph: Graph, seed: int, name: str) -> Array:
    """What the expression of a weight's first value comes to; its n-th draw has the stream `name#n`."""
    values: dict[int, Array] = {}
    draws = 0

    def given(value: Input) -> Array:
        return np.asarray(float(value)) if isinstance(value, Num) else values[id(value)]

    for node in graph.nodes:
        assert isinstance(node, OpNode)
        how = node.op.numpy
        if how == "draw":
            scheme = node.options["scheme"]
            assert isinstance(scheme, Scheme)
            shape = tuple(int(n) for n in node.options["dims"])
            pieces = list(drawn(law_of(scheme), shape, seed, f"{name}#{draws}"))
            found = np.concatenate(pieces).reshape(shape) if pieces else np.zeros(shape)
            draws += 1
        else:
            assert how is not None
            function = getattr(np, how) if isinstance(how, str) else how
            options = [_plain(v) for v in node.options.values()] if not node.inputs else []
            found = np.asarray(function(*(given(v) for v in node.inputs), *options))
        values[id(node.outputs[0])] = found
    result = graph.outputs[0]
    assert isinstance(result, Value)
    return values[id(result)]


def _plain(option: object) -> object:
    if isinstance(option, Num):
        return int(option)
    if isinstance(option, ListValue):
        return floats(option)
    return tuple(int(n) for n in option) if isinstance(option, tuple) else option
