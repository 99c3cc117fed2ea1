"""A spec at many settings of its hyper-parameters: what each of them holds and costs, from the IR alone.

A setting is `name=values`: a list of `512`, `1e-4`, `true` or any other value that a hyper-parameter takes, and of
ranges of whole numbers, both ends included: `512..4096:512` in steps of 512, `512..4096*2` doubling, `6..12` one by
one. The points are the product of all settings, the last one named turning fastest. What belongs to a width follows it
as in a fit, unless it is set itself: `heads`, `kv_heads`, `hidden` (`estimates.follow`). A point at which the spec is
wrong (heads that do not divide the width) is a row that says so.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from archdsl.diagnostics import ArchError, error
from archdsl.estimates.follow import followed, followers
from archdsl.estimates.needs import MemoryAsked, Workload
from archdsl.frontend.load import Settings, Spec, load_found, request_of, wrong_argument
from archdsl.shown import Shown

if TYPE_CHECKING:
    from archdsl.estimates.loss import Loss
    from archdsl.ir.graph import Model

Values = str | int | float | bool | Sequence[str | int | float | bool]

MAX_POINTS = 100_000
"""A sweep of more points is refused."""

_RANGE = re.compile(r"(?P<first>-?[\d_]+)\.\.(?P<last>-?[\d_]+)(?:(?P<how>[:*])(?P<step>-?[\d_.]+))?")
_WHOLE = re.compile(r"-?\d(?:_?\d)*")


class SweepRow(BaseModel):
    """One point. All counts are None where the spec is wrong there, for which `problem` gives the reason; only FLOPs
    and memory, where the model refuses sequences of that length; memory, where it cannot be spread so."""

    settings: dict[str, int | float | bool | str]
    followed: dict[str, int] = {}
    """What was set because the width was."""
    parameters: int | None = None
    non_embedding: int | None = None
    active: int | None = None
    ratio: float | None = None
    """`non_embedding` over 12 · n_layer · d²; None too where the model has no stack of layers, or no width."""
    forward_per_token: float | None = None
    """FLOPs of inference, all positions of a sequence at once, for each of its positions."""
    training_per_token: float | None = None
    """FLOPs of a training step for each position: forwards and backwards."""
    memory: int | None = None
    """Bytes that a training step, or decoding, needs of the fullest device; None where it was not asked for."""
    code: str | None = None
    """Of the first error: `E0401`."""
    problem: str | None = None


class SweepReport(BaseModel, Shown):
    """What `archdsl sweep` prints."""

    model: str
    source: str
    batch: int
    seq: int | None
    """Positions of a sequence; where None, 2,048 or the context, if less."""
    names: list[str]
    """What is set, in the order of the command."""
    followed: list[str] = []
    """What follows the width."""
    memory: MemoryAsked | None = None
    """What memory was asked for; None where none was."""
    rows: list[SweepRow]


def sweep(
    spec: str | Path | Model | None = None,
    *,
    text: str | None = None,
    model: str | None = None,
    set: Mapping[str, Values],
    seq: int | None = None,
    run: Workload | None = None,
    allow_noncausal: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SweepReport:
    """Count a spec at every point of a product of settings.

    `set` gives each hyper-parameter its values: a sequence of them, or a text as on the command line
    (`"512..4096:512"`, `"6,12,24"`). FLOPs are told for one sequence of `seq` positions (2,048 or the context, if
    less), attention by the pairs that the mask lets through; memory of `run`, if one is given. `progress` is told how
    many points are done, and of how many. Raises ArchError: E0505 for values that cannot be read or are too many, what
    is wrong with the spec where no setting could cure it, and E0201 for a name that the model does not have."""
    found, own, allow_noncausal = request_of(spec, text=text, model=model, allow_noncausal=allow_noncausal)
    if not isinstance(set, Mapping):
        raise wrong_argument("set", set, "a mapping of names to their values")
    values = {name: _values(name, given) for name, given in set.items()}
    points = prod(len(v) for v in values.values())
    if points > MAX_POINTS:
        raise error(
            "E0505",
            f"{points:,} points are too many: at most {MAX_POINTS:,}",
            help="give longer steps, or fewer settings",
        )
    config = _config(found, own, allow_noncausal) if "width" in values else {}
    follow = followers(config, {*own, *values}) if isinstance(config.get("width"), int) else {}
    rows = []
    about: tuple[str, str] | None = None
    loss: Loss | None = None
    for i, chosen in enumerate(itertools.product(*values.values())):
        settings = dict(zip(values, chosen, strict=True))
        width = plain(settings["width"]) if follow else None
        more = followed(follow, width / config["width"], {}) if isinstance(width, int) and width > 0 else {}
        row, named, kernel = _row(found, {**own, **more}, settings, seq, run, allow_noncausal)
        row.followed.update(more)
        about, loss = about or named, loss or kernel
        rows.append(row)
        if progress is not None:
            progress(i + 1, points)
    name, source = about or (found.model or found.source.name, found.source.name)
    return SweepReport(
        model=name,
        source=source,
        batch=1,
        seq=seq,
        names=list(values),
        followed=list(follow),
        memory=run.asked(loss) if run is not None else None,
        rows=rows,
    )


def _config(found: Spec, own: Settings, allow_noncausal: bool) -> dict[str, int | float]:
    """Return the numbers of the spec as it stands, nothing where it is wrong."""
    from archdsl.estimates.params import estimate

    try:
        return estimate(load_found(found, own, allow_noncausal)).config
    except ArchError:
        return {}


def _row(
    found: Spec,
    own: Settings,
    settings: dict[str, str],
    seq: int | None,
    run: Workload | None,
    allow_noncausal: bool,
) -> tuple[SweepRow, tuple[str, str] | None, Loss | None]:
    """Count one point. Return its row, the model's name and source, and which kernel computes the cross-entropy."""
    from archdsl.estimates.flops import per_token
    from archdsl.estimates.needs import memory_need
    from archdsl.estimates.params import estimate

    shown = {name: plain(value) for name, value in settings.items()}
    try:
        model = load_found(found, {**own, **settings}, allow_noncausal)
    except ArchError as problem:
        if any(hopeless(d.code) for d in problem.diagnostics):
            raise
        return SweepRow(settings=shown).model_copy(update=_said(problem)), None, None
    report = estimate(model)
    p = report.params
    row = SweepRow(
        settings=shown,
        parameters=p.total,
        non_embedding=p.non_embedding,
        active=p.active,
        ratio=p.ratio,
    )
    told: dict[str, Any] = {}
    loss: Loss | None = None
    try:
        forward, training = per_token(model, report, seq=seq)
        told |= {"forward_per_token": forward, "training_per_token": training}
        if run is not None:
            need = memory_need(model, run)
            told["memory"], loss = need.bytes, need.loss
    except ArchError as problem:
        told |= _said(problem)
    return row.model_copy(update=told), (report.model, report.source), loss


def _said(problem: ArchError) -> dict[str, str]:
    first = next(d for d in problem.diagnostics if d.is_error)
    return {"code": first.code, "problem": first.message}


def hopeless(code: str) -> bool:
    """Whether an error is one that no value of a hyper-parameter cures: of syntax and imports, of names."""
    return code.startswith("E01") or code in ("E0201", "E0202", "E0206", "E0210")


def plain(value: str) -> int | float | bool | str:
    """A value as a reader of a table takes it: a number where it is one."""
    if value in ("true", "false"):
        return value == "true"
    if _WHOLE.fullmatch(value):
        return int(value)
    try:
        return float(value)
    except ValueError:
        return value


# --- values -----------------------------------------------------------------------------------------------------------


def _values(name: str, given: Values) -> list[str]:
    """All values of one hyper-parameter, as texts of the language."""
    if isinstance(given, str):
        found = [v for part in _parts(given) for v in _expanded(name, part)]
    else:
        items = [given] if isinstance(given, bool | int | float) else given
        if not _is_list(items):
            raise wrong_argument(f"set[{name!r}]", given, "a value, a sequence of values, or a text such as '6..24:6'")
        found = [str(v).lower() if isinstance(v, bool) else v if isinstance(v, str) else repr(v) for v in items]
    if not found:
        raise error("E0505", f"`{name}` has no values", help=f"write them as `{name}=1,2,3` or `{name}=1..3`")
    return list(dict.fromkeys(found))


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(v, str | int | float) for v in value)


def _parts(text: str) -> list[str]:
    """Cut at commas that stand in no bracket and no string."""
    parts, depth, quoted, begin = [], 0, False, 0
    for i, c in enumerate(text):
        if c == '"':
            quoted = not quoted
        elif not quoted and c in "([":
            depth += 1
        elif not quoted and c in ")]":
            depth -= 1
        elif c == "," and not quoted and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [p.strip() for p in (*parts, text[begin:]) if p.strip()]


def _expanded(name: str, part: str) -> list[str]:
    if ".." not in part or part.startswith(('"', "[")):
        return [part]
    match = _RANGE.fullmatch(part)
    try:
        if match is None:
            raise ValueError("it is none")
        first, last = int(match["first"]), int(match["last"])
        step = int(match["step"] or 1)
    except ValueError:
        raise error(
            "E0505",
            f"`{part}` is no range of whole numbers, given for `{name}`",
            help="`512..4096:512` goes in steps, `512..4096*2` doubles, `6..12` goes one by one",
        ) from None
    if first > last:
        raise error(
            "E0505",
            f"the range `{part}`, given for `{name}`, ends before it begins",
            help=f"turn it around: `{last}..{first}{part[match.end('last') :]}`",
        )
    if match["how"] == "*":
        if step < 2 or first < 1:
            raise error(
                "E0505",
                f"the range `{part}`, given for `{name}`, never ends",
                help="what is multiplied begins at 1 or above, and the factor is at least 2",
            )
        found = []
        while first <= last:
            found.append(str(first))
            first *= step
        return found
    if step < 1:
        raise error(
            "E0505", f"the range `{part}`, given for `{name}`, never ends", help="its step is a whole number from 1 on"
        )
    if (last - first) // step >= MAX_POINTS:
        raise error(
            "E0505",
            f"the range `{part}`, given for `{name}`, has more than {MAX_POINTS:,} values",
            help="give it a longer step: `512..4096:512`",
        )
    return [str(n) for n in range(first, last + 1, step)]
