"""Causality: which claims of a model hold, and which of its assumptions are needed.

`assert causal(y, ahead: n)`, and the head `lm`, demand that a position of `y` depends on no position of the model's
sequence that is later than `own position + n - 1`. It is proved from bounds (`archdsl.dependence.domain`) that are
found for every tensor of the model (`archdsl.dependence.solve`):

1. an axis read at `position + n` hands the form on; one read whole adds `scale * (length - 1)`, which has no bound for
   a length that only the running model knows;
2. axes that are cut and merged (`b (n p) d -> (b n) p d`) are followed in parts, so that moving positions about and
   back loses nothing;
3. a block is walked once for each set of facts that arrives; so is an iteration of a loop, whose facts soon stop
   changing;
4. in a scan the number of the step is one more position: a slice stands at it, a carried tensor is its start or came
   from a step before;
5. behind `assume causal(y, ahead: n)` what `y` may depend on is what is claimed, whatever is proved.

What is not known is taken for the worst, so what is proved holds, provided that what is assumed does."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from archdsl.dependence.domain import ONE, ZERO, Bound, Fact, Form, flat_layout
from archdsl.dependence.explain import Explainer
from archdsl.dependence.masked import masked
from archdsl.dependence.solve import DependenceWalk, InputAxis
from archdsl.diagnostics import Diagnostic
from archdsl.diagnostics.source import Span
from archdsl.ir.graph import CausalNode, Model, Value
from archdsl.ir.walk import nodes_below

DATA = ("token", "int", "float", "float32", "bfloat16")


def prove(model: Model) -> list[Diagnostic]:
    """What is wrong with the causality that the model claims: an error E0406 for each `assert causal` that cannot be
    proved, among them that of the head `lm`. Empty if every claim holds."""
    if not any(not claim.assumed for claim in claims(model)):
        return []
    walk = walked(model)
    found: dict[tuple[str, Span | None], Diagnostic] = {}
    for leak in walk.leaks:
        diagnostic = Explainer(walk).explain(leak)
        found.setdefault((diagnostic.message, diagnostic.span), diagnostic)
    return list(found.values())


def prove_output(model: Model, output: Value) -> list[Diagnostic]:
    """What is wrong with the claim that an output depends on no later position, whatever the model claims itself: that
    may be less, or be let pass unproved."""
    return prove(_claiming(model, output))


def proved(model: Model, output: Value) -> bool:
    """Whether `prove_output` finds nothing, without a search for what it would say."""
    return not walked(_claiming(model, output)).leaks


def _claiming(model: Model, output: Value) -> Model:
    """The model with one claim, that an output is causal."""
    graph = model.block.graph
    nodes = (n for n in graph.nodes if not isinstance(n, CausalNode) or n.assumed)
    claimed = replace(graph, nodes=(*nodes, CausalNode(output, 1)))
    return replace(model, block=replace(model.block, graph=claimed))


def assumptions(model: Model) -> dict[CausalNode, bool]:
    """Every `assume causal` of the model, and whether it says more than is proved: no later token is read, nor does it
    count how many of them there are."""
    found = [claim for claim in claims(model) if claim.assumed]
    needed = walked(model).needed | followed(model) if found else set()
    return {claim: claim in needed for claim in found}


def followed(model: Model) -> set[CausalNode]:
    """The claims without which what stands at a position might change as the sequence goes on."""
    axes = (InputAxis(n, v, a) for n, v in model.inputs for a in range(1, v.rank) if not v.shape[a].static)
    return {claim for axis in axes for claim in masked(model, axis).needed}


def assumed(model: Model) -> list[str]:
    """What the model takes for causal without a proof, each with its span: `y (spec.arch:12)`."""
    return [
        f"{claim.value.name or 'a tensor'} ({claim.span})" for claim, needed in assumptions(model).items() if needed
    ]


@lru_cache(maxsize=4)
def walked(model: Model) -> DependenceWalk:
    """The walk that finds what every tensor of the model depends on along the axes of its sequences."""
    sources = [
        InputAxis(name, value, axis)
        for name, value in model.inputs
        if value.dtype in DATA
        for axis in range(1, value.rank)
    ]
    walk = DependenceWalk(sources)
    inputs: list[Fact | None] = []
    for name, value in model.inputs:
        bounds: list[Bound] = []
        for source in sources:
            rows = tuple((ONE if source.axis == axis else ZERO,) for axis in range(value.rank))
            bounds.append((Form(rows, ZERO),) if source.name == name else ())
        inputs.append(Fact(flat_layout(value), tuple(bounds)) if any(bounds) else None)
    walk.run(model.block.graph, inputs)
    return walk


def claims(model: Model) -> list[CausalNode]:
    """Every `assert causal` and `assume causal` of the model, each once."""
    return [node for node in nodes_below(model.block.graph) if isinstance(node, CausalNode)]
