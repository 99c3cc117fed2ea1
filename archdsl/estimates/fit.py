"""The largest model of a spec within a budget of parameters or of memory, or the largest batch of a model in memory.

Hyper-parameters are varied in multiples that run fast: `width`, `hidden` and whatever ends with `_hidden` by 128, all
others by 1, unless the caller says otherwise; layers of several kinds in turn by whole turns. Where the width is
varied, what belongs to it follows, unless it is set itself: `heads`, so that the size of a head stays what the spec
says; other numbers of heads (`kv_heads`), so that the size of a group does; `hidden` and `…_hidden`, unless they are
varied, in the spec's proportion, rounded to their multiple. Heads are such that the ranks of a mesh's `tp` can share
them or, where there are none, as many ranks (8, 4, 2) as the spec's own could, as long as that costs at most 2 % of the
model's size.

One search finds them all. First everything grows in the spec's proportions, as far as it fits. Around that point the
size of the finest steps becomes as large as fits, for several values of the others; sizes stay within a factor of two
of the spec's proportions. (Over such a range of width / layers the loss of a transformer of a given size moves by a few
percent at most: Kaplan et al., 2020, section 3.1 and figure 5.) Of those models that are within `slack` of the largest
one, the one nearest to the spec's proportions is taken. Every count is exact, and the same question has the same
answer.

Memory is that of a training step or, for decoding, that of weights and of what a decoder keeps. Instead of sizes of
the model, `batch` and `seq` can be varied then: sequences become as long as the context and the memory allow, in
multiples of 128, and then as many as fit.

It is assumed that a model grows with what is varied. Settings at which the spec is wrong are passed over.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from archdsl.diagnostics import ArchError, did_you_mean, error
from archdsl.estimates.follow import MULTIPLE, followed, followers, follows, step_of
from archdsl.estimates.mesh import Mesh
from archdsl.estimates.needs import MemoryAsked, Need, Workload, memory_need
from archdsl.estimates.params import Params, ParamsReport, estimate
from archdsl.estimates.sweep import hopeless
from archdsl.frontend.load import Settings, Spec, load_found, request_of
from archdsl.frozen import Frozen
from archdsl.ir.graph import LoopNode
from archdsl.shown import Shown

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

SLACK = 0.01
ASPECT = ("width", "layers")
RANKS = (8, 4, 2, 1)
ENOUGH = 0.98
"""What part of the largest model one may have whose heads more ranks can share."""
PARTS = 64
"""Where sizes grow together: by so small a part of the spec's own."""
TRIES = 64
"""So many settings on end may be impossible before a search gives a direction up."""
NEAR = 16
"""The same of the finest size beside given values of the others, and how many times as far a direction is followed that
has become impossible."""
AROUND = {1: 12, 2: 2, 3: 1}
"""So many steps around the spec's proportions are tried of each size but the finest one, by how many these are."""
SPREAD = 2.0
"""Sizes stay within such a factor of the spec's proportions."""
GROWN = 1.5
"""A model counts as larger where one size, doubled, multiplies the share of the budget in use by more than this."""
_FARTHEST = 2**62
_PLENTY = 4096
_BEYOND = 1.05
"""The search looks this much farther than a straight line says, so that it is likely to be past the budget."""

Values = dict[str, int]
RUN = ("batch", "seq")
"""What can be varied of a run, not of the model."""


class Neighbour(BaseModel):
    """The model one step further in one of the varied sizes."""

    name: str
    value: int
    parameters: int | None
    active: int | None
    memory: int | None
    """Bytes; None where no budget is of memory."""
    verdict: Literal["over parameters", "over active", "over memory", "impossible", "aspect", "fits"]
    """`aspect`: it would be too wide or too deep. `fits`: it is within the slack, and no nearer to the spec's
    aspect."""


class FitMemory(MemoryAsked):
    """What the model that was found needs of memory, and how that was asked for."""

    seq: int
    bytes: int
    """Of training, the most that is in memory at once."""
    peak_at: str | None
    """In which stretch of the step that is: `backward blocks.3`; None for decoding."""
    terms: dict[str, int]
    """What is kept: `weights`, `gradients`, `activations`, … Of training not all of it at once, and beside it there are
    temporaries."""
    term: str
    """The largest of them, which binds."""


class FitReport(BaseModel, Shown):
    """What `archdsl fit` prints. `aspect` and the spec's own are None where no two sizes of the model are varied."""

    model: str
    source: str
    budget: dict[str, int]
    """By `parameters`, `active` and `memory` (bytes), what may be used."""
    varied: dict[str, int]
    followed: dict[str, int]
    """What was set because the width was."""
    set: list[str]
    """The arguments that make this model: `--set`, `layers=24`, …; and the run: `--batch`, `8`."""
    parameters: int
    non_embedding: int
    active: int
    used: float
    """What part of the binding budget is used."""
    binding: str
    """The budget that is nearest to its end: `parameters`, `active` or `memory`."""
    term: str
    """What holds most of the parameters: `layers`, `embeddings` or `output projection`."""
    term_share: float
    memory: FitMemory | None
    aspect_of: str | None
    """`width / layers`."""
    aspect: float | None
    spec_aspect: float | None
    aspect_range: tuple[float, float] | None
    next: list[Neighbour]
    counted: int
    """How many models were counted."""


def fit(
    spec: str | Path | Model | None = None,
    *,
    text: str | None = None,
    model: str | None = None,
    vary: Sequence[str],
    params: int | None = None,
    active: int | None = None,
    memory: int | None = None,
    run: Workload | None = None,
    multiple: Mapping[str, int] | None = None,
    aspect: tuple[float, float] | None = None,
    slack: float = SLACK,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> FitReport:
    """The largest model within `params` parameters, of which a token meets `active` at most, and within `memory` bytes
    in a run like `run`; at least one of the three is given.

    `vary` names hyper-parameters, or `batch`, `seq` or both; `set` gives others a value (and keeps them from
    following the width), `multiple` says what a size must be a multiple of, and `aspect` within what the ratio of
    width and layers must lie. Of models that are smaller than the largest by at most the part `slack`, the one with the
    spec's aspect ratio is taken. Raises ArchError: E0505 for what cannot be varied and where nothing fits, E0504 where
    a model is to be decoded that cannot be, and whatever is wrong with the spec as it stands."""
    found, settings, allow_noncausal = request_of(
        spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal
    )
    given = dict(settings)
    model_ = load_found(found, given, allow_noncausal)
    report = estimate(model_)
    told = (("parameters", params), ("active", active), ("memory", memory))
    budget = {k: v for k, v in told if v is not None}
    named = _demand(report, vary, budget, set or {}, multiple or {}, aspect)
    sizes = {name: n for name, n in named.items() if "width" not in named or not follows(name, named)}
    asked = run or Workload()
    if memory is not None:
        _demand_run(model_, asked)
    ratio = _Ratio.of(sizes, aspect) if sizes.keys() >= {*ASPECT} else None
    trouble: ArchError | None = None
    reports: list[FitReport] = []
    for ranks in (asked.mesh.tp,) if asked.mesh.tp > 1 else RANKS:
        multiples = dict(multiple or {})
        search = _Search(found, given, allow_noncausal, report, sizes, budget, multiples, asked, model_, ranks)
        try:
            if search.of_run:
                chosen = _batches(search)
            else:
                chosen = _one(search) if len(sizes) == 1 else _several(search, ratio, slack, progress)
            reports.append(_report(search, chosen, named, ratio, report))
        except ArchError as problem:
            trouble = problem
            if problem.diagnostics[0].code != "E0505":
                raise
        done = bool(reports) and reports[-1].used >= ENOUGH and (ratio is None or ratio.holds(reports[-1].varied))
        if not search.followed_heads or done:
            break
    if not reports:
        assert trouble is not None
        raise trouble
    if ratio is not None:
        within = [r for r in reports if ratio.holds(r.varied)]
        if aspect is not None and not within:
            raise error(
                "E0505",
                f"nothing that fits has {ratio.over} / {ratio.under} from {ratio.low:g} to {ratio.high:g}; "
                f"the nearest to the spec's proportions has {reports[0].aspect:.1f}",
                help="a wider range, another budget, or smaller multiples",
            )
        reports = within or reports
    return next(r for r in reports if r.used >= ENOUGH * max(other.used for other in reports))


def _demand_run(model: Model, run: Workload) -> None:
    """Raise ArchError for a run that no sizes help: E0504 where the model cannot be decoded, E0516 for a mesh, or
    options, without effect. What the sizes of the spec itself do not divide, others may."""
    try:
        memory_need(model, run)
    except ArchError as problem:
        if {d.code for d in problem.diagnostics} & {"E0504", "E0516"}:
            raise


def _demand(
    report: ParamsReport,
    vary: Sequence[str],
    budget: Mapping[str, int],
    given: Settings,
    multiple: Mapping[str, int],
    aspect: tuple[float, float] | None,
) -> Values:
    """What is varied, with the spec's own values. Raises E0505 for a question that has no answer."""
    if not budget or min(budget.values()) < 1:
        raise error("E0505", "a fit needs a budget", help="give parameters, those active per token, or memory")
    if not vary or len({*vary}) < len(vary):
        raise error(
            "E0505",
            "a fit varies hyper-parameters, each named once",
            help="`heads` and `hidden` follow `width` by themselves; give others a value by `--set`",
        )
    whole = {k: v for k, v in report.config.items() if isinstance(v, int) and v > 0}
    running = [name for name in vary if name in RUN and name not in whole]
    if running and "memory" not in budget:
        raise error("E0505", f"only memory depends on `{running[0]}`", help="give a budget of it: --memory 80GiB")
    if running and len(running) < len(vary):
        other = next(name for name in vary if name not in running)
        raise error(
            "E0505",
            f"`{running[0]}` is of a run and `{other}` of the model: a fit varies either",
            help=f"give the run a value, `--{running[0]} 8`, and vary `{other}` alone",
        )
    if running and aspect is not None:
        raise error("E0505", "an aspect ratio is one of width and layers", help="--vary layers,width")
    if running:
        whole = {**dict.fromkeys(RUN, 1), **whole}
    for name in (*vary, *multiple):
        if name not in whole:
            help_ = did_you_mean(name, whole) or f"`{report.model}` has {', '.join(f'`{n}`' for n in whole)}"
            raise error("E0505", f"`{report.model}` has no whole-number hyper-parameter `{name}`", help=help_)
        if name in vary and name in given:
            raise error("E0505", f"`{name}` is both varied and set", help="leave one of them out")
    moving = {*vary, *(followers(report.config, {*vary, *given}) if "width" in vary else ())}
    if any(n < 1 for n in multiple.values()):
        raise error("E0505", "a size is a multiple of 1 or more", help="for instance `--multiple width=128`")
    if idle := [name for name in multiple if name not in moving]:
        raise error("E0505", f"`{idle[0]}` is not varied: its multiple has no effect", help=f"vary `{idle[0]}` too")
    if aspect is not None:
        if not {*vary} >= {*ASPECT}:
            raise error("E0505", "an aspect ratio is one of width and layers", help="--vary layers,width")
        if not 0 < aspect[0] <= aspect[1]:
            raise error("E0505", f"no aspect ratio lies in {aspect[0]:g}..{aspect[1]:g}", help="for instance 64..128")
    return {name: whole[name] for name in vary}


# --- what is varied, and what follows ---------------------------------------------------------------------------------


def period(model: Model) -> int:
    """Return how many layers make a turn where a stack has several kinds of them in turn (five local, one global);
    1 where it has not."""
    for node in model.block.graph.nodes:
        if isinstance(node, LoopNode):
            kinds = node.iterations
            for n in range(2, len(kinds) // 2 + 1):
                if len(set(kinds)) > 1 and len(kinds) % n == 0 and [*kinds[n:]] == [*kinds[:-n]]:
                    return n
    return 1


class _Ratio(Frozen):
    """The aspect ratio: the one size over the other, in which range, and what the spec has."""

    over: str
    under: str
    low: float
    high: float
    own: float

    @classmethod
    def of(cls, sizes: Values, aspect: tuple[float, float] | None) -> _Ratio:
        over, under = ASPECT
        own = sizes[over] / sizes[under]
        low, high = aspect or (own / 2, own * 2)
        return cls(over, under, low, high, own)

    def holds(self, values: Values) -> bool:
        return self.low <= values[self.over] / values[self.under] <= self.high


class _Counted(Frozen):
    """One model: what it holds and, where memory is asked for, what that is made of."""

    params: Params
    memory: Need | None

    @property
    def counts(self) -> dict[str, int]:
        """By budget, what is used of it."""
        p = self.params
        return {
            "parameters": p.total,
            "active": p.active,
            **({} if self.memory is None else {"memory": self.memory.bytes}),
        }


@dataclass
class _Search:
    """Counts of a spec's models, each once."""

    found: Spec
    given: dict[str, str | int | float | bool]
    allow_noncausal: bool
    report: ParamsReport
    sizes: Values
    budget: dict[str, int]
    multiple: dict[str, int]
    run: Workload
    model: Model
    """As the spec has it, with what was set."""
    ranks: int = 1
    """How many ranks of tensor parallelism are to share the heads, as far as the spec's own can be."""
    memo: dict[tuple[int, ...], _Counted | None] = field(default_factory=dict)
    trouble: ArchError | None = None
    """What was wrong with the first impossible model."""
    beyond: dict[tuple[int, ...], ArchError] = field(default_factory=dict)
    """Models that are too large for a limit of the compiler, with what it says."""

    def step(self, name: str) -> int:
        """What `name` is a multiple of. A width also leaves each head its size."""
        if name == "seq" and self.of_run:
            return self.multiple.get(name, min(MULTIPLE, self.context or MULTIPLE))
        step = step_of(name, self.multiple)
        if name == "layers":
            return math.lcm(step, period(self.model))
        if name == "width" and "heads" in self.followed_heads:
            heads = self.followed_heads["heads"]
            unit = 1
            for follower, own in self.followed_heads.items():
                # Of so many heads of queries each such head is one group; a single one is shared by all.
                ranks = self.ranks if self.run.mesh.tp > 1 else math.gcd(own, self.ranks)
                least = self.multiple.get(follower, ranks if own > 1 else 1)
                unit = math.lcm(unit, least * (heads // own if own > 1 else 1))
            step = math.lcm(step, self.sizes["width"] // math.gcd(self.sizes["width"], heads) * unit)
        return step

    @property
    def followed_heads(self) -> Values:
        """Numbers of heads that follow the width, as the spec has them."""
        return {k: n for k, n in self.followers.items() if k == "heads" or k.endswith("_heads")}

    @property
    def of_run(self) -> bool:
        """Whether batch or length are varied, and the model is not."""
        return all(name in RUN and name not in self.report.config for name in self.sizes)

    @property
    def context(self) -> int | None:
        value = self.model.context.value if self.model.context is not None else None
        return value if isinstance(value, int) else None

    def run_at(self, values: Values) -> Workload:
        if not self.of_run:
            return self.run
        return replace(self.run, batch=values.get("batch", self.run.batch), seq=values.get("seq", self.run.seq))

    @property
    def followers(self) -> Values:
        kept = {*self.sizes, *self.given}
        return followers(self.report.config, kept) if "width" in self.sizes else {}

    def follow(self, values: Values) -> Values:
        """What the sizes of a width bring with them."""
        own = self.followers
        return followed(own, values["width"] / self.sizes["width"], self.multiple) if own else {}

    def built(self, values: Values) -> Model:
        """The model of these sizes. Raises ArchError where the spec is wrong, and notes a limit of the compiler."""
        if self.of_run:
            return self.model
        try:
            return load_found(self.found, {**self.given, **values, **self.follow(values)}, self.allow_noncausal)
        except ArchError as problem:
            if any(d.code == "E0404" for d in problem.diagnostics):
                self.beyond[tuple(values[name] for name in self.sizes)] = problem
            raise

    def count(self, values: Values) -> _Counted | None:
        """What a model holds and needs; None where the spec is wrong at these sizes."""
        key = tuple(values[name] for name in self.sizes)
        if key not in self.memo:
            try:
                model = self.built(values)
                params = self.report.params if self.of_run else estimate(model).params
                run = self.run_at(values)
                over = any(n > self.budget.get(name, n) for name, n in _Counted(params, None).counts.items())
                needed = "memory" in self.budget or (run.mesh != Mesh() and not over)
                need = memory_need(model, run) if needed else None
                self.memo[key] = _Counted(params, need)
            except ArchError as problem:
                if any(hopeless(d.code) or d.code in ("E0504", "E0527") for d in problem.diagnostics):
                    raise
                self.trouble = self.trouble or problem
                self.memo[key] = None
        return self.memo[key]

    def used(self, values: Values) -> float | None:
        """What part of the nearest budget a model uses: more than 1 where it does not fit, infinity where it is beyond
        a limit of the compiler, None where the spec is wrong."""
        p = self.count(values)
        if p is None:
            return math.inf if self.limit(values) is not None else None
        return max(n / self.budget[name] for name, n in p.counts.items() if name in self.budget)

    def limit(self, values: Values) -> ArchError | None:
        """Return what says that a model is too large for a limit of the compiler."""
        return self.beyond.get(tuple(values[name] for name in self.sizes))

    # --- along one size ---

    def below(self, at: Callable[[int], Values], last: int, first: int) -> tuple[int | None, bool]:
        """The largest step from `first` to `last` that is possible or beyond a limit, and whether all were tried."""
        for i in range(last, max(first, last - TRIES + 1) - 1, -1):
            if self.used(at(i)) is not None:
                return i, True
        return None, last - TRIES + 1 <= first

    def largest(
        self, at: Callable[[int], Values], first: int, last: int | None, too_far: int | None = None, tries: int = TRIES
    ) -> tuple[int | None, int | None]:
        """The largest step that fits, and the smallest one that is possible; None where there is none. `too_far` is a
        step that is known not to fit."""
        ends = range(first, first + tries if last is None else min(last, first + tries - 1) + 1)
        smallest = next((i for i in ends if self.count(at(i)) is not None), None)
        if smallest is None or (self.used(at(smallest)) or 0.0) > 1:
            return None, smallest
        best = smallest
        if too_far is None:
            too_far = self._too_far(at, best) if last is None else last + 1
        if self.limit(at(too_far)) is not None:  # what is compiled ends before the budget may
            too_far = self._first_beyond(at, best, too_far)
            if (self.used(at(too_far - 1)) or math.inf) <= 1:
                return too_far - 1, smallest
        floor = best
        iteration = 0
        while too_far - floor > 1:
            middle = self._guess(at, best, floor, too_far, iteration)
            iteration += 1
            i, tried = self.below(at, middle, floor + 1)
            if i is None:
                floor, too_far = (middle, too_far) if tried else (floor, middle)
            elif (self.used(at(i)) or 0.0) <= 1:
                best, floor = i, middle
            else:
                too_far = i
        return best, smallest

    def _first_beyond(self, at: Callable[[int], Values], best: int, beyond: int) -> int:
        """The first step that is too large for a limit of the compiler; no memory is counted on the way."""
        while beyond - best > 1:
            middle = (best + beyond) // 2
            with suppress(ArchError):
                self.built(at(middle))
            if self.limit(at(middle)) is not None:
                beyond = middle
            else:
                best = middle
        return beyond

    def _too_far(self, at: Callable[[int], Values], best: int) -> int:
        """A step that does not fit, or from which on none is possible."""
        step, none_since, last = 1, None, best
        while best + step < _FARTHEST:
            i, _ = self.below(at, best + step, best + 1)
            if i is not None and (self.used(at(i)) or 0.0) > 1:
                return i
            none_since = None if i is not None else none_since or best + step
            if none_since is not None and best + step > none_since * NEAR:
                return none_since
            if i is not None and step > _PLENTY and self.used(at(i)) == self.used(at(best)):
                raise _unbounded(self)
            step = self._leap(at, best, i, step)
            last = i if i is not None else last
        raise error(
            "E0505",
            f"no size below 2 ** 62 uses the budget: {_holding(self, 'largest', at(last))}",
            help="a smaller budget",
        )

    def _leap(self, at: Callable[[int], Values], best: int, i: int | None, step: int) -> int:
        """How many steps beyond `best` to look next, where `i` fits: a little farther than a straight line through both
        meets the budget, and eight times `step` at most. Twice `step` where `i` is None."""
        if i is None:
            return 2 * step
        line = _to_budget(self.used(at(best)) or 0.0, self.used(at(i)) or 0.0, i - best)
        return int(min(max(_BEYOND * line, step + 1), 8 * step))

    def _guess(self, at: Callable[[int], Values], best: int, floor: int, too_far: int, iteration: int) -> int:
        """Where to look next: where a straight line meets the budget, and every third time in the middle."""
        low = self.used(at(best))
        known = tuple(at(too_far)[name] for name in self.sizes) in self.memo
        high = self.used(at(too_far)) if known else None
        middle = (floor + too_far) // 2
        line = math.inf if low is None or high is None else _to_budget(low, high, too_far - best)
        if iteration % 3 != 2 and line < math.inf:
            middle = best + int(line)
        return min(max(middle, floor + 1), too_far - 1)


def _to_budget(low: float, high: float, steps: int) -> float:
    """How many steps it takes from a use of `low` to the whole budget, where `steps` lead to `high` on a straight line;
    infinity where they lead nowhere."""
    return (1 - low) / (high - low) * steps if low < high < math.inf else math.inf


# --- the searches -----------------------------------------------------------------------------------------------------


def _one(search: _Search) -> Values:
    """The largest value of one size."""
    (name,) = search.sizes
    step = search.step(name)

    def at(i: int) -> Values:
        return {name: i * step}

    return at(_most(search, at, None))


def _most(search: _Search, at: Callable[[int], Values], last: int | None) -> int:
    """The largest step, up to `last`, at which sizes fit. Raises ArchError E0505 where none fits, and where the budget
    does not depend on them or is so large that a limit of the compiler comes first."""
    best, smallest = search.largest(at, 1, last)
    if best is None:
        raise _nothing(search, None if smallest is None else at(smallest))
    farther = range(best + 1, best + TRIES + 1 if last is None else min(last, best + TRIES) + 1)
    next_ = next((i for i in farther if search.used(at(i)) is not None), None)
    if next_ is not None and (limit := search.limit(at(next_))) is not None:
        raise _limited(search, at(best), limit)
    grown = at(best) != at(smallest or 1)
    if last is None and grown and search.used(at(best)) == search.used(at(smallest or 1)):
        raise _unbounded(search)
    return best


def _several(
    search: _Search, ratio: _Ratio | None, slack: float, progress: Callable[[int, int], None] | None
) -> Values:
    """Several sizes, near the spec's proportions."""
    own, steps = search.sizes, {name: search.step(name) for name in search.sizes}

    def scaled(i: int) -> Values:
        return {name: max(1, round(n * i / PARTS / steps[name])) * steps[name] for name, n in own.items()}

    best, smallest = search.largest(scaled, 1, None)
    # Where even the smallest one in these proportions is too large, there may be others around it.
    centre = scaled(smallest if best is None and smallest is not None else _most(search, scaled, None))
    finest = min(own, key=lambda name: steps[name] / own[name])
    others = [name for name in own if name != finest]
    around = AROUND.get(len(others), 0)
    ranges = [[n for k in range(-around, around + 1) if (n := centre[x] + k * steps[x]) > 0] for x in others]
    # From the spec's proportions outwards: beyond what is too large, or wholly fits, there is nothing to be found.
    points = sorted(
        itertools.product(*ranges),
        key=lambda p: sum(abs(math.log(n / centre[x])) for n, x in zip(p, others, strict=True)),
    )
    found: list[Values] = []
    large: list[tuple[int, ...]] = []
    small: list[tuple[int, ...]] = []
    for tried, point in enumerate(points):
        if progress is not None:
            progress(tried + 1, len(points))
        if any(_at_most(p, point) for p in large) or any(_at_most(point, p) for p in small):
            continue
        fixed = dict(zip(others, point, strict=True))

        def at(j: int, fixed: Values = fixed) -> Values:
            return {name: fixed.get(name, j * steps[finest]) for name in own}

        low, high = _between(fixed, finest, own, ratio)
        first, last = max(1, math.ceil(low / steps[finest] - 1e-9)), math.floor(high / steps[finest] + 1e-9)
        if first > last:
            continue
        if (search.used(at(first)) or 0.0) > 1:
            large.append(point)
        elif (search.used(at(last)) or 2.0) <= 1:
            small.append(point)
            found.append(at(last))
        else:
            j, _ = search.largest(at, first, last, last if search.used(at(last)) is not None else None, NEAR)
            found += [at(j)] if j is not None else []
    if best is None and not found:
        counted = [dict(zip(own, key, strict=True)) for key, p in search.memo.items() if p is not None]

        def share(values: Values) -> float:
            return search.used(values) or 0.0

        raise _nothing(search, min(counted, key=share), "smallest that was tried")
    found = found or [centre]
    size = next((name for name in search.budget if name != "memory"), "parameters")

    def count(values: Values) -> int:
        p = search.count(values)
        assert p is not None
        return p.counts[size]

    enough = (1 - slack) * max(count(v) for v in found)
    chosen = min((v for v in found if count(v) >= enough), key=lambda v: (_spread(v, own), -count(v), *v.values()))
    used = search.used(chosen) or 1.0
    for name in own if ratio is None and used < 1 / SPREAD else ():
        if GROWN * used < (search.used({**chosen, name: 2 * chosen[name]}) or 2.0) <= 1:
            raise _out_of_proportion(search, chosen, name)
    return chosen


def _spread(values: Values, own: Values) -> float:
    """Return how far sizes are from the spec's proportions: 1 if they have them, 2 if one is twice too large."""
    scales = [n / own[name] for name, n in values.items()]
    return max(scales) / min(scales)


def _at_most(a: Iterable[int], b: Iterable[int]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


def _between(fixed: Values, name: str, own: Values, ratio: _Ratio | None) -> tuple[float, float]:
    """Return between what a size is near the spec's proportions, beside others that are given; nothing lies there where
    these are not. Of width and layers the aspect ratio says how near."""
    scales = {n: value / own[n] for n, value in fixed.items() if ratio is None or n != ratio.under}
    if (scales and max(scales.values()) > SPREAD * min(scales.values())) or not (
        ratio is None or name in (ratio.over, ratio.under) or ratio.holds(fixed)
    ):
        return 1, 0
    if ratio is not None and name == ratio.under:
        return fixed[ratio.over] / ratio.high, fixed[ratio.over] / ratio.low
    low, high = (max(scales.values()) / SPREAD, min(scales.values()) * SPREAD) if scales else (0.0, math.inf)
    if ratio is not None and name == ratio.over:
        return max(low * own[name], fixed[ratio.under] * ratio.low), min(
            high * own[name], fixed[ratio.under] * ratio.high
        )
    return low * own[name], high * own[name]


def _batches(search: _Search) -> Values:
    """The longest sequences that fit, then as many of them as fit."""
    least = {name: search.step(name) for name in search.sizes}
    found = dict(least)
    for name in ("seq", "batch"):
        if name in search.sizes:
            step = least[name]
            last = search.context // step if name == "seq" and search.context is not None else None

            def at(i: int, name: str = name, step: int = step) -> Values:
                return {**found, name: i * step}

            found[name] = _most(search, at, last) * step
    return found


def _unbounded(search: _Search) -> ArchError:
    names = " and ".join(f"`{n}`" for n in search.sizes)
    what = "memory" if search.of_run else "count"
    said = f"the {what} of `{search.report.model}` does not grow with {names}"
    return error("E0505", said, help="vary something else")


def _limited(search: _Search, largest: Values, limit: ArchError) -> ArchError:
    """A limit of the compiler is nearer than the budget."""
    first = limit.diagnostics[0]
    return error(
        "E0505",
        f"the budget is beyond what can be compiled: {_holding(search, 'largest', largest)}; {first.message}",
        help=first.help or "a smaller budget",
    )


def _out_of_proportion(search: _Search, chosen: Values, name: str) -> ArchError:
    """Sizes that grow together end where one of them does, and another one could still grow."""
    others = " ".join(f"--set {n}={value}" for n, value in chosen.items() if n != name)
    return error(
        "E0505",
        f"most of the budget is left, and of these sizes `{name}` alone can still grow: "
        f"{_holding(search, 'largest in the proportions of the spec', chosen)}",
        help=f"--vary {name} {others}",
    )


def _nothing(search: _Search, smallest: Values | None, which: str = "smallest") -> ArchError:
    """Nothing fits, or nothing is possible at all."""
    steps = ", ".join(f"`--multiple {n}={search.step(n)}`" for n in search.sizes if search.step(n) > 1)
    if smallest is None:
        trouble = search.trouble
        first = trouble.diagnostics[0].message if trouble is not None else "none is within the aspect ratio"
        return error(
            "E0505",
            f"no size of {' and '.join(f'`{n}`' for n in search.sizes)} makes a model: {first}",
            help=f"give other multiples, now {steps}" if steps else "`--set` gives what depends on it a value",
        )
    return error(
        "E0505",
        f"nothing fits: {_holding(search, which, smallest)}",
        help=f"a larger budget, or smaller multiples than {steps}" if steps else "a larger budget",
    )


def _holding(search: _Search, which: str, values: Values) -> str:
    """Return a sentence on what of the budgets a model uses, the smallest or the largest one or as `which` says."""
    p = search.count(values)
    assert p is not None
    sizes = ", ".join(f"{k} = {v:,}" for k, v in values.items())
    counts = {name: n for name, n in p.counts.items() if name in search.budget}
    units = {"parameters": "parameters", "active": "parameters active", "memory": "bytes of memory"}
    holds = " and ".join(f"{n:,} {units[name]}" for name, n in counts.items())
    if p.memory is not None and p.memory.bytes > search.budget["memory"]:
        holds += f", {p.memory.terms[p.memory.term]:,} of them for {p.memory.term}"
    if which in ("smallest", "largest"):
        which += " run" if search.of_run else " model"
    return f"the {which}, {sizes}, has {holds}"


def _report(
    search: _Search, chosen: Values, named: Collection[str], ratio: _Ratio | None, report: ParamsReport
) -> FitReport:
    counted = search.count(chosen)
    assert counted is not None
    p = counted.params
    brought = search.follow(chosen)
    shares = {name: counted.counts[name] / most for name, most in search.budget.items()}
    binding = max(shares, key=lambda name: shares[name])
    terms = {"layers": p.non_embedding, "embeddings": p.embedding, "output projection": p.output_projection}
    term = max(terms, key=lambda name: terms[name])
    sizes = {} if search.of_run else {**chosen, **brought}
    told = {**{k: _text(v) for k, v in search.given.items()}, **sizes}
    arguments = [part for name, value in told.items() for part in ("--set", f"{name}={value}")]
    if search.of_run:
        arguments += [part for name, value in chosen.items() for part in (f"--{name}", str(value))]
    return FitReport(
        model=report.model,
        source=report.source,
        budget=search.budget,
        varied={name: sizes.get(name, chosen.get(name, 0)) for name in named},
        followed={name: n for name, n in brought.items() if name not in named},
        set=arguments,
        parameters=p.total,
        non_embedding=p.non_embedding,
        active=p.active,
        used=shares[binding],
        binding=binding,
        term=term,
        term_share=terms[term] / p.total if p.total else 0.0,
        memory=_memory(search.run_at(chosen), counted.memory),
        aspect_of=f"{ratio.over} / {ratio.under}" if ratio is not None else None,
        aspect=chosen[ratio.over] / chosen[ratio.under] if ratio is not None else None,
        spec_aspect=ratio.own if ratio is not None else None,
        aspect_range=(ratio.low, ratio.high) if ratio is not None else None,
        next=[_neighbour(search, chosen, name, ratio) for name in chosen],
        counted=len(search.memo),
    )


def _memory(run: Workload, need: Need | None) -> FitMemory | None:
    if need is None:
        return None
    return FitMemory(
        **run.asked(need.loss).model_dump(),
        seq=need.seq,
        bytes=need.bytes,
        peak_at=need.at,
        terms=need.terms,
        term=need.term,
    )


def _text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _neighbour(search: _Search, chosen: Values, name: str, ratio: _Ratio | None) -> Neighbour:
    values = {**chosen, name: chosen[name] + search.step(name)}
    p = search.count(values)
    verdict: Literal["over parameters", "over active", "over memory", "impossible", "aspect", "fits"] = "fits"
    counts = {} if p is None else p.counts
    over = {k: counts.get(k, 0) > most for k, most in search.budget.items()}
    if p is None:
        verdict = "impossible"
    elif over.get("parameters"):
        verdict = "over parameters"
    elif over.get("active"):
        verdict = "over active"
    elif over.get("memory"):
        verdict = "over memory"
    elif ratio is not None and not ratio.holds(values):
        verdict = "aspect"
    return Neighbour(
        name=name,
        value=values[name],
        parameters=counts.get("parameters"),
        active=counts.get("active"),
        memory=counts.get("memory"),
        verdict=verdict,
    )
