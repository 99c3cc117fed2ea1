"""Tables of cosines and sines: the angles that rotary embeddings turn by, and the language's rope that has them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import sympy
import torch
from sympy import S
from sympy.core.function import AppliedUndef
from torch import Tensor

from archdsl.interop.lift.elements import Unread, axis, polar
from archdsl.interop.lift.export import TIME, Value
from archdsl.interop.lift.holes import call, name, number
from archdsl.interop.lift.positions import Positions, shortest
from archdsl.ops.position import frequencies, llama3, yarn
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE

Number = float | int | bool
Hints = Mapping[str, Any]
"""Numbers of a module's configuration, and lists of numbers, by their names."""
CLOSE = 1e-5
"""How far two frequencies that are the same may lie apart, of their size."""


@dataclass(frozen=True)
class Rotary:
    """Tables [..., time, columns] of `factor * cos(w * (position + offset))` and of the sine of that."""

    frequencies: Tensor
    """Radians a position for each pair of channels [dims / 2], float64."""
    pairing: Literal["halves", "interleaved"] | None
    """Which columns are of one pair: j and j + dims / 2, or 2j and 2j + 1; None where each column is
    a pair's."""
    factor: float
    offset: float
    axis: int
    """Along which positions run."""
    rounding: float = 0.0
    """How far frequencies that were found in a table of numbers may lie off."""

    @property
    def dims(self) -> int:
        """How many channels are turned."""
        return 2 * len(self.frequencies)


def rotary(positions: Positions, cos: Value, sin: Value | None = None) -> Rotary | None:
    """The angles of two tables, or of one of complex numbers: read from their formulas, and equal to their values.
    None where they are not such tables."""
    size = cos.shape[-1] if cos.shape else 0
    rows = [n for n, s in enumerate(cos.shape[:-1]) if s == TIME] or [
        n for n, s in enumerate(cos.shape[:-1]) if isinstance(s, int) and s > 1
    ]
    formulas = [None if v is None else positions.formula(v) for v in (cos, sin)]
    if (
        len(rows) != 1
        or not isinstance(size, int)
        or formulas[0] is None
        or (sin is not None and sin.shape != cos.shape)
    ):
        return None
    try:
        if sin is None:
            length, angle = polar(formulas[0])
            formulas = [length * sympy.cos(angle), length * sympy.sin(angle)]
        found = _read(positions, formulas, axis(rows[0]), axis(len(cos.shape) - 1), size)
    except Unread:
        return None
    if found is None:
        return None
    own, factor, offset, rounding = found
    pairing = _pairing(own)
    one = {"halves": own[: size // 2], "interleaved": own[::2], None: own}[pairing]
    result = Rotary(torch.tensor(one, dtype=torch.float64), pairing, factor, offset, rows[0], rounding)
    return result if _confirmed(positions, cos, sin, result, own) else None


def _pairing(columns: Sequence[float]) -> Literal["halves", "interleaved"] | None:
    half = len(columns) // 2
    if len(columns) % 2 == 0 and columns[:half] == columns[half:]:
        return "halves"
    return "interleaved" if len(columns) % 2 == 0 and columns[::2] == columns[1::2] else None


def _read(
    positions: Positions, formulas: Sequence[Any], position: Any, column: Any, size: int
) -> tuple[list[float], float, float, float] | None:
    """Frequency of each column, factor, offset and rounding."""
    if any(f is None or not f.free_symbols <= {position, column} for f in formulas):
        return None
    waves, angles, factors = [], [], set()
    for j in range(size):
        place = {column: sympy.Integer(j)}
        cos, sin = (_known(positions, f.xreplace(place)) for f in formulas)
        if cos.atoms(AppliedUndef) or sin.atoms(AppliedUndef):
            return _of_tables(positions, formulas, position, column, size)
        wave = _wave(cos, sin, position)
        if wave is None:
            return None
        waves.append(wave[0])
        angles.append(wave[1])
        factors.add(wave[2])
    offsets = {sympy.nsimplify(a / w) for w, a in zip(waves, angles, strict=True) if w}
    if len(factors) != 1 or len(offsets) > 1:
        return None
    return [float(w) for w in waves], float(factors.pop()), float(next(iter(offsets), 0)), 0.0


def _known(positions: Positions, formula: Any) -> Any:
    """A formula with the elements of constant tensors filled in."""
    reads = [r for r in formula.atoms(AppliedUndef) if all(a.is_Integer for a in r.args)]
    return formula.xreplace({r: positions.elements.element(r) for r in reads})


def _wave(cos: Any, sin: Any, position: Any) -> tuple[Any, Any, Any] | None:
    """w, b and f of f * cos(w * position + b) and f * sin(w * position + b)."""
    (f, c), (g, s) = (x.as_independent(position, as_Add=False) for x in (cos, sin))
    if c == 1 and sin == 0:
        return S.Zero, S.Zero, f
    if not isinstance(c, sympy.cos) or not isinstance(s, sympy.sin) or abs(f) != abs(g):
        return None
    angle, other = (sympy.expand(x.args[0] * way) for x, way in ((c, 1), (s, g / f)))
    if angle not in (other, -other):
        return None
    w = other.coeff(position)
    b = sympy.expand(other - w * position)
    return (w, b, f) if w.is_number and b.is_number else None


def _of_tables(
    positions: Positions, formulas: Sequence[Any], position: Any, column: Any, size: int
) -> tuple[list[float], float, float, float] | None:
    """The same, where cosines and sines are numbers that the module keeps."""
    found = [positions.elements.table(f, position, column, size) for f in formulas]
    if None in found or found[0][1] != found[1][1]:  # type: ignore[index]
        return None
    (cos, first), (sin, _) = found  # type: ignore[misc]
    factors = (cos**2 + sin**2).sqrt()
    angles = torch.atan2(sin, cos)
    steps = torch.remainder(angles.diff(dim=0) + math.pi, 2 * math.pi) - math.pi
    count = len(steps)
    if count < 2 or not torch.allclose(factors, factors[0, 0].expand_as(factors), rtol=1e-4):
        return None
    waves = steps.sum(0) / count
    where = torch.arange(len(angles), dtype=torch.float64)[:, None] + first
    factor = float(f"{float(factors.mean()):.5g}")
    if not _same(cos, factor * (where * waves).cos()) or not _same(sin, factor * (where * waves).sin()):
        return None
    return waves.tolist(), factor, float(first), 1e-6 / count


def _same(x: Tensor, y: Tensor) -> bool:
    return torch.allclose(x.double(), y, rtol=0, atol=1e-3 if x.dtype in (torch.float32, torch.float64) else 2e-2)


def _confirmed(positions: Positions, cos: Value, sin: Value | None, found: Rotary, waves: Sequence[float]) -> bool:
    """Whether the tables hold the angles, at several lengths."""
    shape = [1] * len(cos.shape)
    confirmed = False
    for time, x in positions.computed(cos, positions.few):
        tables = (x.real, x.imag) if sin is None else (x, positions.at(sin, time))
        place = torch.arange(x.shape[found.axis], dtype=torch.float64) + found.offset
        angles = place[:, None] * torch.tensor(waves, dtype=torch.float64)
        shape[found.axis], shape[-1] = angles.shape
        cosines, sines = (found.factor * f(angles).view(shape) for f in (torch.cos, torch.sin))
        if not _same(tables[0], cosines.expand_as(tables[0])) or not _same(tables[1], sines.expand_as(tables[1])):
            return False
        confirmed = True
    return confirmed


# --- the rope of the language -------------------------------------------------------------------------------------

NAMES = {
    "theta": ("rope_theta", "theta", "base", "rotary_emb_base", "rotary_base", "rotary_embedding_base"),
    "factor": ("factor",),
    "original": ("original_max_position_embeddings", "max_position_embeddings"),
    "low": ("low_freq_factor",),
    "high": ("high_freq_factor",),
    "beta_fast": ("beta_fast",),
    "beta_slow": ("beta_slow",),
    "truncate": ("truncate",),
}
"""What configurations call the numbers of a rope."""
DEFAULTS: Mapping[str, Sequence[Number]] = {
    "original": [2**n for n in range(8, 21)],
    "low": [1],
    "high": [4],
    "beta_fast": [32],
    "beta_slow": [1],
    "truncate": [1, 0],
}


def options(found: Rotary, hints: Hints | None = None) -> dict[str, ast.Expr] | None:
    """`theta`, `interleaved` and `scaling` of the rope that turns by these angles; numbers of `hints` are tried before
    those that the angles are solved for. None where none has these angles, positions or factor."""
    if found.offset or not len(found.frequencies):
        return None
    scaled = _scaled(found, _gathered(hints or {}))
    if scaled is None:
        return None
    theta, scaling = scaled
    said: dict[str, ast.Expr] = {"theta": number(theta)}
    if found.pairing == "interleaved":
        said["interleaved"] = name("true")
    if scaling is not None:
        word, numbers = scaling
        said["scaling"] = call(word, *(ast.Arg(key, _written(n), span=NOWHERE) for key, n in numbers.items()))
    return said


def _written(n: Any) -> ast.Expr:
    return ast.List(tuple(map(number, n)), span=NOWHERE) if isinstance(n, list) else number(n)


def _gathered(hints: Hints) -> dict[str, list[Number]]:
    """The numbers that each of a rope's may be, the likeliest first."""
    flat = {key.rpartition(".")[2]: n for key, n in hints.items() if isinstance(n, int | float)}
    return {key: [flat[w] for w in words if w in flat] for key, words in NAMES.items()}


def _scaled(found: Rotary, hints: dict[str, list[Number]]) -> tuple[float, tuple[str, dict[str, Any]] | None] | None:
    """Theta, and the name and the numbers of a scaling."""
    waves, dims = found.frequencies.tolist(), found.dims

    def fits(own: Iterable[float]) -> bool:
        return all(math.isclose(a, b, rel_tol=CLOSE, abs_tol=found.rounding) for a, b in zip(own, waves, strict=True))

    if any(w <= 0 for w in waves):
        return None
    plain = [*hints["theta"], *_theta(waves, dims)]
    factors = hints["factor"]
    if math.isclose(found.factor, 1, rel_tol=CLOSE):
        for theta in plain:
            if fits(frequencies(theta, dims)):
                return theta, None
        factor = shortest(1 / waves[0], CLOSE)
        for theta in [*hints["theta"], *_theta([w / waves[0] for w in waves], dims)]:
            if fits(w / factor for w in frequencies(theta, dims)):
                return theta, ("linear", {"factor": factor})
    starts = [*hints["theta"], *_theta(waves[:2], dims)]
    for theta in starts:
        own = frequencies(theta, dims)
        last = shortest(own[-1] / waves[-1], CLOSE)
        for factor in [*factors, last]:
            if factor > 1 and (scaling := _by_bands(found, hints, theta, factor, own, fits)) is not None:
                return theta, scaling
    return None


def _by_bands(
    found: Rotary, hints: dict[str, list[Number]], theta: float, factor: float, own: list[float], fits: Any
) -> tuple[str, dict[str, Any]] | None:
    """YaRN or Llama 3's scaling with these numbers."""
    if math.isclose(found.factor, 1, rel_tol=CLOSE):
        for low, high, original in _choices(hints, "low", "high", "original"):
            numbers = {"factor": factor, "low": low, "high": high, "original": original}
            if low < high and fits(llama3(own, numbers)):
                return "llama3", numbers
    if theta <= 1:
        return None
    mscale = shortest((found.factor - 1) / (0.1 * math.log(factor)), 1e-4)
    for fast, slow, truncate, original in _choices(hints, "beta_fast", "beta_slow", "truncate", "original"):
        numbers = {"factor": factor, "original": original, "beta_fast": fast, "beta_slow": slow}
        if slow < fast and fits(yarn(own, theta, numbers | {"truncate": truncate})):
            told = {k: n for k, n in numbers.items() if k in ("factor", "original") or n != DEFAULTS[k][0]}
            told |= {} if mscale == 1 else {"mscale": mscale}
            return "yarn", told | ({} if truncate else {"truncate": 0})
    return None


def _choices(hints: dict[str, list[Number]], *names: str) -> Iterable[tuple[Number, ...]]:
    """Every choice of these numbers, of the configuration's before the usual ones."""
    return product(*([*hints[n], *(d for d in DEFAULTS[n] if d not in hints[n])] for n in names))


def _theta(waves: Sequence[float], dims: int) -> list[float]:
    """The theta of waves that fall evenly from 1."""
    n = len(waves) - 1
    return [shortest(waves[n] ** (-dims / (2 * n)), CLOSE)] if n and 0 < waves[n] < 1 else []
