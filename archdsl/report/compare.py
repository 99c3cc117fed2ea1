"""Several models in one table: sizes, attention, positions, experts, and what a token and a training step cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from pydantic import BaseModel

from archdsl.estimates.flops import per_token, refusal, sizes_at
from archdsl.estimates.kinds import ATTENTION, CONVOLUTIONS, Kind, kind_of_model
from archdsl.estimates.memory import Memory
from archdsl.estimates.memory import estimate as memory_of
from archdsl.estimates.params import estimate as parameters_of
from archdsl.estimates.params import vocabulary
from archdsl.ir.graph import Block, Model, OpNode, ScanNode, Value
from archdsl.ir.walk import above, calls_of, every_node, nodes_below
from archdsl.shown import Shown

FEWEST, MOST = 2, 8
"""Models in a table."""
LONG = 131_072
"""The sequence length at which KV caches are compared."""


class ModelColumn(BaseModel):
    """One model. Lists have each value once, in order of appearance."""

    model: str
    source: str
    kind: Kind
    layers: int
    width: int | None
    heads: list[int]
    """Of queries, in each attention."""
    kv_heads: list[int]
    vocabulary: int | None
    context: int | None
    attention: list[str]
    """How positions come together: MHA, GQA, MQA, MLA, linear attention, recurrence, convolution; empty where a spec
    writes it as equations of its own."""
    windows: list[int]
    """Positions that attention of a window reads, its own included, as far as decoding tells."""
    positions: list[str]
    """Schemes by name: learned, sinusoid, rope, …; those that a spec writes as equations of its own are not found."""
    experts: list[int]
    """Routed experts of a layer."""
    active_experts: list[int]
    """Those of them that a token reaches."""
    parameters: int
    active: int
    """Parameters that a token meets."""
    forward_per_token: float
    training_per_token: float
    """FLOPs."""
    cache_per_token: int | None
    """Bytes by which the KV cache grows; None where the model does not decode step by step."""
    cache_long: int | None
    """Bytes of KV cache and other decode state at 131,072 positions, a window's as a ring buffer; None where the model
    does not decode, or its context is shorter."""
    no_cache: str | None
    """Why there is none: `no decoding`, or `shorter context`."""
    weights: int
    """Bytes."""
    training: int
    """Bytes of weights, gradients and optimizer state."""


class CompareReport(BaseModel, Shown):
    """What `archdsl compare` prints. Bytes are those of bfloat16, training with AdamW and fp32 master weights, without
    activations."""

    seq: int
    """The sequence length of FLOPs: the same of all."""
    models: list[ModelColumn]


def compare(
    models: Sequence[Model], *, seq: int | None = None, progress: Callable[[int, int], None] | None = None
) -> CompareReport:
    """Describe models side by side. FLOPs are those of a sequence of `seq` positions: 2,048, or the smallest context,
    where it is not given.

    Raises ArchError E0503 where a model refuses that length."""
    lengths = [n for m in models for name, n in sizes_at(m, 1, None).items() if name != "batch"]
    seq = seq or min(lengths, default=1)
    columns = []
    for done, model in enumerate(models):
        if progress is not None:
            progress(done, len(models))
        columns.append(_column(model, seq))
    return CompareReport(seq=seq, models=columns)


def _column(model: Model, seq: int) -> ModelColumn:
    report = parameters_of(model)
    p = report.params
    context = model.context.value if model.context is not None else None
    reaches = (not isinstance(context, int) or context >= LONG) and not refusal(model, sizes_at(model, 1, LONG))
    memory = memory_of(model, seq=LONG if reaches else None, dtype="bfloat16", master_weights=True, step=False)
    forward, training = per_token(model, report, seq=seq)
    decodes = memory.decode_state is not None
    ops = list(_ops(model.block, set()))
    pairs = [_heads(op) for _, op in ops if op.op.family in ATTENTION]
    return ModelColumn(
        model=model.name,
        source=model.source_name,
        kind=kind_of_model(model),
        layers=p.layers,
        width=p.width,
        heads=_each(q for q, _ in pairs),
        kv_heads=_each(k for _, k in pairs),
        vocabulary=vocabulary(model),
        context=context if isinstance(context, int) else None,
        attention=_each(_attention(model, memory, [op for _, op in ops])),
        windows=_each(k.window for k in memory.kept),
        positions=_each(scheme for block, op in ops for scheme in _positions(block, op)),
        experts=_each(int(op.copies) for _, op in ops if op.copies is not None),
        active_experts=_each(int(op.active) for _, op in ops if op.active is not None),
        parameters=p.total,
        active=p.active,
        forward_per_token=forward,
        training_per_token=training,
        cache_per_token=memory.decode_state_per_token,
        cache_long=memory.decode_state_windowed if reaches else None,
        no_cache="no decoding" if not decodes else None if reaches else "shorter context",
        weights=memory.weights,
        training=memory.model_states,
    )


T = TypeVar("T", int, str)


def _each(found: Iterable[T | None]) -> list[T]:
    return list(dict.fromkeys(v for v in found if v is not None))


def _ops(block: Block, seen: set[Block]) -> Iterator[tuple[Block, OpNode]]:
    """Every primitive of a block and of those in it, each distinct block once, with the block that it stands in."""
    seen.add(block)
    for instance in block.instances:
        if instance.node is not None:
            yield block, instance.node
    inner = [i.block for i in block.instances if i.block is not None]
    for node in every_node(block.graph):
        if isinstance(node, OpNode):
            yield block, node
        inner += [call.block for call in calls_of(node)]
    for other in inner:
        if other not in seen:
            yield from _ops(other, seen)


def _heads(op: OpNode) -> tuple[int | None, int | None]:
    """The heads of queries, and of keys, where they have an axis."""
    sizes = [v.shape[-3] if v.rank >= 4 and v.shape[-3].static else None for v in op.inputs[:2] if isinstance(v, Value)]
    q, k = ([int(n) if n is not None else None for n in sizes] + [None, None])[:2]
    return q, k


def _attention(model: Model, memory: Memory, ops: Sequence[OpNode]) -> Iterator[str]:
    latent = any(k.name == "latent" for k in memory.kept)
    if any(isinstance(n, ScanNode) for n in nodes_below(model.block.graph)):
        yield "recurrence"
    for op in ops:
        family = op.op.family
        if family == "attention":
            q, k = _heads(op)
            yield "MLA" if latent else "one head" if q is None or k is None else _shared(q, k)
        elif family in ("linear attention", "recurrence") or family in CONVOLUTIONS:
            yield family


def _shared(heads: int, kv_heads: int) -> str:
    return "MHA" if heads == kv_heads else "MQA" if kv_heads == 1 else "GQA"


def _positions(block: Block, op: OpNode) -> Iterator[str]:
    """The scheme by which a primitive tells positions: `learned`, `sinusoid`, `rope`, a block of a spec's own."""
    for options in (op.options, block.hypers):
        if op.op.family in ATTENTION and (scheme := options.get("position")) is not None:
            yield scheme.name
    if op.op.family == "position encoding":
        yield op.op.name
    if op.op.family == "embedding":
        read = {v for source in op.inputs if isinstance(source, Value) for v in above(block.graph, source)}
        makers = (n for n in block.graph.nodes if isinstance(n, OpNode) and not read.isdisjoint(n.outputs))
        if any(n.op.positional for n in makers):
            yield "learned"
