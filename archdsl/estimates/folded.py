"""What memory a step of a model needs, of a thousand layers about as soon as of twenty.

Every layer is an iteration of a loop, and what a step needs is found by walking through all of them. Where iterations
repeat themselves (by ones, or five local layers and a global one by sixes), three models with fewer of them are asked
instead. Whatever is in memory, at any event of the step, then grows by the same number of bytes for each further
repetition: within the repetitions what is alive grows, or falls, by the same number from each to the next, so the most
is at one of their ends, and all events near these are in the short models, too. It is not taken for granted: the third
model has to be what the first two say, and where it is not, all layers are walked through.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from archdsl.estimates.needs import Inference, Need, Workload, training
from archdsl.estimates.sharding import Step
from archdsl.frozen import Frozen
from archdsl.ir.graph import LoopNode, Model
from archdsl.passes.decode import planned

KEPT = 2
"""How many repetitions stand at each end of the shortest model."""
ENOUGH = 32
"""From so many repetitions on, three short models are asked instead."""
LONGEST = 16
"""How many layers one repetition has at most."""

Events = Sequence[tuple[str, int]]
"""The events of a step, each with the most that is in memory within it."""


class Repeated(Frozen):
    """A stretch of a loop that repeats itself."""

    loop: LoopNode
    start: int
    period: int
    times: int

    def shortened(self, model: Model, times: int) -> Model:
        """Return the model with so many repetitions."""
        end = self.start + self.times * self.period
        kept = self.loop.iterations[: self.start + times * self.period] + self.loop.iterations[end:]
        loop = replace(self.loop, iterations=kept, pattern=None)
        nodes = tuple(loop if n is self.loop else n for n in model.block.graph.nodes)
        return replace(model, block=replace(model.block, graph=replace(model.block.graph, nodes=nodes)))


def repeated(model: Model, every: int) -> Repeated | None:
    """Return the longest stretch of the model's loops that repeats itself, by a multiple of `every` layers; None where
    that is not worth it."""
    found = []
    for loop in model.block.graph.nodes:
        if isinstance(loop, LoopNode) and not any(loop.emitted):
            kinds = loop.iterations
            for period in range(every, LONGEST + 1, every):
                start = 0
                for i in range(period, len(kinds) + 1):
                    if i == len(kinds) or kinds[i] != kinds[i - period]:
                        if (times := (i - start) // period) >= ENOUGH:
                            found.append(Repeated(loop, start, period, times))
                        start = i - period + 1
    return max(found, key=lambda r: ((r.times - 2 * KEPT) * r.period, -r.period), default=None)


def memory_need(model: Model, run: Workload) -> Need:
    """What a step of a model needs of memory.

    Raises ArchError: E0503 where the model has no sizes at this batch and length, E0504 where it is to be decoded and
    cannot be taken step by step, E0527 where there are no layers to compute again."""
    if run.decode:
        planned(model)
    return _need(model, run)[0]


def _need(model: Model, run: Workload) -> tuple[Need, Events]:
    # Of a pipeline each stage has layers of its own, and of a mesh the parts that do not divide are rounded.
    part = repeated(model, run.checkpoint_every) if run.mesh.pp == 1 and run.interleave == 1 else None
    if part is not None:
        three = [_need(part.shortened(model, 2 * KEPT + i), run) for i in range(3)]
        if (folded := _extrapolated(three, part.times - 2 * KEPT)) is not None:
            return folded
    step = Step(model, run, run.batch, run.seq)
    if run.decode:
        return Inference(step).need("decode"), []
    return training(step), [*step.peaks[0]]


def _extrapolated(three: Sequence[tuple[Need, Events]], times: int) -> tuple[Need, Events] | None:
    """Return what a model needs with so many more repetitions than the first of three that have 0, 1 and 2 more."""
    needs = [need for need, _ in three]
    if len({(*n.terms,) for n in needs}) > 1:
        return None
    terms = {name: _line([n.terms[name] for n in needs], times) for name in needs[0].terms}
    known = {name: n for name, n in terms.items() if n is not None}
    if len(known) < len(terms):
        return None
    if not three[0][1]:
        return needs[0].model_copy(update={"bytes": sum(known.values()), "terms": known}), []
    kinds = [_by_name(events) for _, events in three]
    events: list[tuple[str, int]] = []
    for name in kinds[0]:
        found = _events([kind.get(name, []) for kind in kinds], times)
        if found is None:
            return None
        events += found
    at, most = max(events, key=lambda e: e[1])
    return needs[0].model_copy(update={"bytes": most, "at": at, "terms": known}), events


def _by_name(events: Events) -> dict[str, list[tuple[str, int]]]:
    """Return the events by their names without numbers: those of all layers together."""
    found: dict[str, list[tuple[str, int]]] = {}
    for event in events:
        found.setdefault(re.sub(r"\d+", "*", event[0]), []).append(event)
    return found


def _events(three: Sequence[Events], times: int) -> Events | None:
    """Return the events of one name, as many from the first one on, and up to the last one, as three models have in
    common; None where one of them is neither."""
    first = three[0]
    if any(len(first) > len(events) for events in three):
        return None
    fore, aft = ([_event([e[i] for e in three], times) for i in r] for r in (range(len(first)), range(-len(first), 0)))
    if any(a is None and b is None for a, b in zip(fore, aft, strict=True)):
        return None
    return [e for e in (*fore, *aft) if e is not None]


def _event(three: Sequence[tuple[str, int]], times: int) -> tuple[str, int] | None:
    """Return what becomes of one event; None where those of three models are not the same."""
    names = [re.split(r"(\d+)", name) for name, _ in three]
    most = _line([n for _, n in three], times)
    if most is None or len({(*name[::2],) for name in names}) > 1:
        return None
    numbers = [_line([int(n) for n in column], times) for column in zip(*(name[1::2] for name in names), strict=True)]
    if None in numbers:
        return None
    text = [*names[0]]
    text[1::2] = map(str, numbers)
    return "".join(text), most


def _line(three: Sequence[int], times: int) -> int | None:
    """Return where a line through three numbers leads; None where they are on none."""
    a, b, c = three
    return a + (b - a) * times if c - b == b - a else None
