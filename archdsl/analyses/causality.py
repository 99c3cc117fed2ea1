"""Causality, proved from what each op reads along time.

For every tensor and every input of the model that carries tokens or other data along an axis, the analysis keeps an
upper bound of the latest place of that axis that a place of the tensor may depend on: the largest of a few affine forms
`sum(scale * place) + offset` over the places in the tensor, or nothing where it does not depend on that input at all.
An op says what it reads (`Primitive.reads`), so the bound of its result follows from those of its inputs by
substitution:

1. an axis read at `place + n` hands the form on; one read whole adds `scale * (length - 1)`, which has no bound for
   a length that only the running model knows;
2. axes that are cut and merged (`b (n p) d -> (b n) p d`) are followed in parts, so that moving places about and
   back loses nothing;
3. a block is walked once for each set of bounds that arrives; so is a turn of a loop, whose bounds soon stop changing;
4. in a scan the number of the step is one more place: a slice stands at it, a carried tensor is its start or came
   from a step before.

What is not known is taken for the worst, so a claim always holds; `assert causal(y, ahead: n)` then asks for
`latest place <= own place + n - 1`.
"""

from __future__ import annotations

from archdsl.analyses.bounds import ONE, ZERO, Bound, Fact, Form, flat_layout
from archdsl.analyses.leaks import Explainer
from archdsl.analyses.reach import Source, Walk
from archdsl.diagnostics import Diagnostic
from archdsl.ir.graph import CallNode, CausalNode, Graph, Model, subgraphs
from archdsl.source import Span

DATA = ("token", "int", "float", "float32", "bfloat16")


def prove(model: Model) -> list[Diagnostic]:
    """What is wrong with the causality that the model claims: an error E0406 for each `assert causal` that cannot be
    proved, among them that of the head `lm`. Empty if every claim holds."""
    if not _claims(model.block.graph, set()):
        return []
    sources = [
        Source(name, value, axis)
        for name, value in model.inputs
        if value.dtype in DATA
        for axis in range(1, value.rank)
    ]
    walk = Walk(sources)
    inputs: list[Fact | None] = []
    for name, value in model.inputs:
        bounds: list[Bound] = []
        for source in sources:
            rows = tuple((ONE if source.axis == axis else ZERO,) for axis in range(value.rank))
            bounds.append((Form(rows, ZERO),) if source.name == name else ())
        inputs.append(Fact(flat_layout(value), tuple(bounds)) if any(bounds) else None)
    walk.run(model.block.graph, inputs, None, model.block)
    found: dict[tuple[str, Span | None], Diagnostic] = {}
    for leak in walk.leaks:
        diagnostic = Explainer(walk).explain(leak)
        found.setdefault((diagnostic.message, diagnostic.span), diagnostic)
    return list(found.values())


def _claims(graph: Graph, seen: set[int]) -> bool:
    """Whether anything is claimed at all."""
    for node in graph.nodes:
        if isinstance(node, CausalNode):
            return True
        if isinstance(node, CallNode) and id(node.block) not in seen:
            seen.add(id(node.block))
            if _claims(node.block.graph, seen):
                return True
        if any(_claims(inner, seen) for inner in subgraphs(node)):
            return True
    return False
