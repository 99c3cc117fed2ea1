"""What to say of a claim of causality that is not proved: the way by which a later position reaches an earlier one, or,
where none is certain, what the proof founders on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from archdsl.dependence.domain import ANYWHERE, ONE, Fact, Form, apart, whole
from archdsl.dependence.paths import Paths, Spot
from archdsl.dependence.solve import DependenceWalk, Leak, meets, ratio_of, same_axis
from archdsl.dependence.witness import Element, Witness
from archdsl.diagnostics import Diagnostic, Label
from archdsl.diagnostics.source import Span
from archdsl.ir.graph import (
    CallNode,
    Node,
    OpNode,
    ScanNode,
)
from archdsl.ir.interpreter import Level
from archdsl.ir.masks import Mask


class Explainer(Paths):
    """Walks back from a claim to the op that lets a later position in, and on to the input."""

    def __init__(self, walk: DependenceWalk) -> None:
        super().__init__()
        self.walk = walk

    def explain(self, leak: Leak) -> Diagnostic:
        source = self.walk.sources[leak.source]
        witness = Witness(self.walk, leak).search()
        if witness is not None:
            spot, before, behind = self.along(witness, leak)
        else:
            behind, spot = self.behind(leak)
            nearer = next((s for s in self.inputs(spot) if self.depends(s, leak.source)), None)
            before = self.before(nearer, leak) if nearer is not None else []
        node, leaking, ahead = self.producer(spot), behind[0], leak.node.ahead
        notes = [f"the path: {_joined(source.name, before, leaking, behind[1:])}"]
        mask = node.options.get("mask") if isinstance(node, OpNode) else None
        if mask is not None:
            notes.append(f"mask: {mask}")
        elif isinstance(node, OpNode) and ahead > 0:
            notes.append(f"`{node.op.name}` {'reads' if witness else 'may read'} positions after its own")
        elif isinstance(node, ScanNode):
            notes.append("what a scan carries at its end has read every position")
        spans = _user_spans(node, spot.frames)
        said = [s for s in map(_mask_slot, spans) if s is not None] if mask is not None else []
        span = next(iter([*said, *spans]), leak.node.span)
        labels = []
        for where in (leak.node.span, *(f.node.span for f in reversed(leak.levels) if isinstance(f.node, CallNode))):
            if where is not None and not where.source.library and where != span:
                labels.append(Label(where, "causality is demanded here"))
                break
        which = "come later" if ahead > 0 else "are not earlier"
        if ahead not in (0, 1):
            which += f" by more than {ahead - 1 if ahead > 0 else -ahead}"
        what = f"positions of `{source.name}` that {which}"
        named = leak.node.value.name if not self.of_head(leak) else ""
        claimed = f"`{named}`" if named else "the result"
        if witness is not None:
            earlier = "logit" if self.of_head(leak) else f"position of {claimed}"
            reaches = "a later token can reach an earlier" if ahead > 0 else "a token that is not earlier can reach a"
            message = f"{reaches} {earlier}: `{leaking}` reads {what}"
            help_ = f"{_cure(mask)}; `--allow-noncausal` for a model that is meant to look ahead"
        else:
            message = f"cannot prove that {claimed} is causal: `{leaking}` may read {what}"
            finite = next(iter(self.walk.finite.values()), None)  # a large number in place of minus infinity
            if finite is not None:
                notes.append(
                    f"scores are masked by {finite:g}: with `-inf` softmax gives what is masked no weight at all"
                )
            help_ = (
                f"`assume causal({named or 'y'})` takes it for proved; "
                "`--allow-noncausal` for a model that is meant to look ahead"
            )
        return Diagnostic("E0406", message, span, labels=tuple(labels), notes=tuple(notes), help=help_)

    @staticmethod
    def of_head(leak: Leak) -> bool:
        """Whether the library demands it, of the output of a language model."""
        return leak.node.span is None or leak.node.span.source.library

    def end(self, leak: Leak) -> str:
        """What a path of names ends with."""
        return "head" if self.of_head(leak) else leak.node.value.name or "the result"

    def along(self, witness: Sequence[Element], leak: Leak) -> tuple[Spot, list[str], list[str]]:
        """The first value on a way that reads more than it should, and the names before it and from it on."""
        spots = [spot for spot, _ in witness]
        first = next((i for i, spot in enumerate(spots) if self.leaks(spot, leak)), len(spots) - 1)
        names = [self.label(spot, self.producer(spot)) for spot in spots]
        return spots[first], names[:first], [*names[first:], self.end(leak)]

    def behind(self, leak: Leak) -> tuple[list[str], Spot]:
        """From the claim back to the value that leaks first; what lies on the way, in the order of the data."""
        spot = Spot(leak.levels, leak.run, leak.node.value)
        path = [self.end(leak)]
        seen: set[tuple[object, ...]] = set()
        while True:
            seen.add(spot.key)
            path.insert(0, self.label(spot, self.producer(spot)))
            worse = [s for s in self.inputs(spot) if s.key not in seen and self.leaks(s, leak)]
            if not worse:
                return path, spot
            spot = worse[0]

    def before(self, spot: Spot, leak: Leak) -> list[str]:
        """Names on a way from the input to a value, the nearest first."""
        path: list[str] = []
        seen: set[tuple[object, ...]] = set()
        while True:
            seen.add(spot.key)
            path.append(self.label(spot, self.producer(spot)))
            nearer = [s for s in self.inputs(spot) if s.key not in seen and self.depends(s, leak.source)]
            if not nearer:
                return path
            spot = nearer[0]

    def depends(self, spot: Spot, source: int) -> bool:
        fact = spot.run.fact(spot.value)
        return fact is not None and fact.bounds[source] != ()

    def leaks(self, spot: Spot, leak: Leak) -> bool:
        """Whether the value reads more than a value at its position should."""
        fact = spot.run.fact(spot.value)
        if fact is None:
            return False
        source = self.walk.sources[leak.source]
        own = source.value.shape[source.axis].value
        axes: list[int | None] = [a for a in range(1, spot.value.rank) if same_axis(own, spot.value.shape[a].value)]
        if not axes and any(own in parts for parts in fact.layout):
            fact = apart(fact)  # an axis merged with others, such as the rows of a batch one after the other
            axes = [fact.layout.index((own,))]
        scans = tuple(range(sum(isinstance(f.node, ScanNode) for f in spot.frames)))
        bound = fact.bounds[leak.source]

        def is_met(form: Form, axis: int | None) -> bool:
            ratio = ONE if axis is None else ratio_of(source, whole(fact.layout[axis]))
            return meets((form,), fact.layout, axis, ratio, leak.node.ahead, scans)

        # Scores have two axes of positions, and may depend on those of either.
        return bound is ANYWHERE or not all(any(is_met(form, axis) for axis in axes or [None]) for form in bound)


def _joined(source: str, before: Sequence[str], leaking: str, behind: Sequence[str]) -> str:
    """`tokens -> embedding -> blocks.0.attention -> … -> head`; an input that is claimed itself stands there once."""
    steps = [source, *_short(before, source, leaking, 1), leaking]
    steps += [*_short(behind[:-1], leaking, behind[-1], 2), behind[-1]]
    return " -> ".join(name for name, _ in groupby(steps))


def _short(names: Sequence[str], first: str, last: str, count: int) -> list[str]:
    """Names between two others, each once and no more than so many."""
    kept = [n for n in dict.fromkeys(names) if n and n not in (first, last)]
    return kept if len(kept) <= count else ["…"]


def _cure(mask: Mask | None) -> str:
    """What to write instead."""
    if mask is None:
        return "read only earlier positions"
    joined = f"({mask})" if mask.rule == "|" else f"{mask}"
    return "use `mask: causal`" if mask.rule == "full" else f"use `mask: causal & {joined}`"


def _mask_slot(span: Span) -> Span | None:
    """Where a call, or the body of slots that begins there, says its mask."""
    text = span.source.text
    start, end = span.start, span.end
    if "mask:" not in span.text:
        start = text.find("{", span.end)
        end = text.find("}", start)
        if start < 0 or end < 0 or re.search(r"->|=", text[span.end : end]):
            return None
    found = list(re.finditer(r"\bmask:", text[start:end]))
    if len(found) != 1:
        return None
    start += found[0].start()
    depth, stop = 0, start
    for stop in range(start, end + 1):
        depth += (text[stop : stop + 1] == "(") - (text[stop : stop + 1] == ")")
        next_slot = stop > start and re.match(r"\s\w+:", text[stop:end]) is not None
        if (
            text[stop : stop + 1] in ("\n", "#", "}", "")
            or depth < 0
            or (depth == 0 and (text[stop] == "," or next_slot))
        ):
            break
    return Span(span.source, start, start + len(text[start:stop].rstrip()))


def _user_spans(node: Node | None, frames: Sequence[Level[Fact]]) -> list[Span]:
    """The spans outside the library, the nearest first: the op itself, then the blocks that hold it."""
    spans: list[Span | None] = [node.span if node is not None else None]
    for frame in reversed(frames):
        spans.append(frame.node.span)
        if isinstance(frame.node, CallNode):
            spans.append(frame.node.block.span)
    return [s for s in spans if s is not None and not s.source.library]
