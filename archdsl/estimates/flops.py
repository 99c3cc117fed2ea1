"""FLOPs of a model at a given batch and length, under the conventions by which they are told.

A multiply and an add are two FLOPs. What is told is the work of contractions (linear layers, scores and their sums,
convolutions); all other arithmetic is a field of its own, `elementwise`.

* **exact**: of attention, the pairs of a query and a key that the mask lets through.
* **dense**: every pair, as PyTorch's `FlopCounterMode` counts.
* **megatron**: every pair, half of them where no query sees a later key, whatever else the mask leaves out: how
  Megatron-LM reports a step.
* **palm**: `6 N + 12 L H Q T` for each token (Chowdhery et al., 2022, appendix B), the last term summed over all
  attentions.
* **kaplan**: `6 N` for each token (Kaplan et al., 2020), N without embeddings.

N is what one token meets: of routed experts the chosen ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel

from archdsl.diagnostics import ArchError, error
from archdsl.estimates.cost import OpWork, Total, Work, work_of
from archdsl.estimates.counts import Use, sorted_layers, titles, uses
from archdsl.estimates.head import head_of
from archdsl.estimates.hidden import NOWHERE, Known, Places, costing, known, unneeded
from archdsl.estimates.loss import Loss, default_loss
from archdsl.estimates.mask_density import count, looks_back, symbolic
from archdsl.estimates.params import ParamsReport
from archdsl.estimates.params import estimate as count_parameters
from archdsl.ir.cost import Amount, Pairs, whole_at
from archdsl.ir.dims import Lit, Num, Poly, add, evaluate, expr_text, mul, of_atom
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import Block, CheckNode, Model, OpNode
from archdsl.ir.masks import TENSOR_RULES
from archdsl.ir.ranges import TESTS
from archdsl.ir.walk import calls_of, nodes_below
from archdsl.passes.checkpoint import Checkpoint
from archdsl.passes.flat_step import FlatStep, unroll_step
from archdsl.passes.flatten import FlatGraph, FlatOp, FlatScan
from archdsl.passes.step import stepped

Convention = Literal["exact", "dense", "megatron", "palm", "kaplan"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
SAYS: dict[Convention, str] = {
    "exact": "the pairs that the mask lets through",
    "dense": "every pair of a query and a key",
    "megatron": "every pair, half of them under a causal mask",
    "palm": "6 N + 12 L H Q T per token",
    "kaplan": "6 N per token, N without embeddings",
}
DEFAULT_LENGTH = 2048
NEAR = 1024
"""How far from a length that a model refuses one is looked for that it takes."""
"""Positions of a sequence where nobody says and the context allows it."""

Sizes = Mapping[str, int]

# --- the report -------------------------------------------------------------------------------------------------------


class OpFlops(BaseModel):
    """All uses of one primitive at one place of the model; `*` in the path stands for every index of a loop."""

    path: str
    op: str
    uses: int
    """How often it is applied in one forward."""
    forward: int
    backward: int
    elementwise: int
    """Forwards, beside the contractions."""


class BlockFlops(BaseModel):
    """All uses of one distinct block, those of the blocks inside it included."""

    block: str
    source: str
    layers: dict[str, list[int]] = {}
    """By the list of layers, `blocks`, those that it stands in."""
    uses: int
    forward: int
    training: int


class ConventionFlops(BaseModel):
    """One way to count."""

    says: str
    forward: int
    training: int


class Recomputation(BaseModel):
    """FLOPs of a training step by what is computed again in the backward: nothing, the core of attention (scores,
    softmax and sums; Korthikanti et al., 2022), or every layer."""

    none: int
    selective: int
    full: int
    head: int
    """Of the LM head, once forwards: beside each of these what a loss in chunks computes again."""


class Utilization(BaseModel):
    """What part of the peak a training run uses: by the model's own FLOPs (MFU), by those computed again too (HFU)."""

    tokens_per_second: float
    peak: float
    """FLOP/s of all devices together."""
    convention: Convention
    """How the model's FLOPs are counted: published figures mostly count attention whole, as `dense` does."""
    checkpoint: Checkpoint
    loss: Loss
    """Which kernel computes the cross-entropy: `chunked` computes the LM head again."""
    mfu: float
    hfu: float


class Flops(BaseModel):
    """FLOPs for one batch of `batch` sequences of `seq` positions, under one convention.

    `forward` and `prefill` are of inference; `training` is a step with its losses, forwards and backwards, without what
    is computed again. `decode_step` takes one more token for each sequence where `seq` positions, itself included, are
    there; None where the model cannot be taken step by step, for which `no_decode_step` gives the reason."""

    convention: Convention
    batch: int
    seq: int
    sizes: dict[str, int]
    """Every size that only the running model knows."""
    forward: int
    backward: int
    training: int
    training_per_token: float
    """Of one more sequence, whatever is done once for a whole batch."""
    prefill: int
    decode_step: int | None
    no_decode_step: str | None
    elementwise: int
    """Arithmetic beside contractions, forwards."""
    formula: str
    """`forward` as a function of the sizes; `pairs(mask, queries, keys)` is what the mask lets through."""
    recomputation: Recomputation
    conventions: dict[Convention, ConventionFlops]
    by_block: list[BlockFlops]
    by_op: list[OpFlops]
    notes: list[str]
    utilization: Utilization | None = None


class EstimateReport(ParamsReport):
    """What `archdsl estimate` prints."""

    flops: Flops


def estimate(
    model: Model,
    *,
    batch: int = 1,
    seq: int | None = None,
    convention: Convention = "exact",
    tokens_per_second: float | None = None,
    step_seconds: float | None = None,
    peak: float | None = None,
    checkpoint: Checkpoint = "none",
    checkpoint_every: int = 1,
    loss: Loss | None = None,
) -> EstimateReport:
    """Count a model's parameters and FLOPs. `seq` is 2,048 where it is not given, or the context if that is less. Of a
    measured throughput, or step of training, with the `peak` of all devices in FLOP/s, it is said how much is used,
    with `checkpoint` of every `checkpoint_every`-th layer and the cross-entropy by `loss` (that of emitted code where
    it is None).

    Raises ArchError E0503 where the model has no sizes at these lengths."""
    report = count_parameters(model)
    counter = _Counter(model, report, batch, seq)
    flops = counter.report(convention)
    if step_seconds is not None:
        tokens_per_second = counter.tokens / step_seconds
    if tokens_per_second is not None and peak is not None:
        kernel = loss or default_loss(model)
        again = getattr(flops.recomputation, checkpoint) - flops.training
        head = flops.recomputation.head if kernel == "chunked" else 0
        more = (again / checkpoint_every + head) / flops.training if flops.training else 0.0
        mfu = tokens_per_second * flops.training_per_token / peak
        used = Utilization(
            tokens_per_second=tokens_per_second,
            peak=peak,
            convention=convention,
            checkpoint=checkpoint,
            loss=kernel,
            mfu=mfu,
            hfu=mfu * (1 + more),
        )
        flops = flops.model_copy(update={"utilization": used})
    return EstimateReport(**report.model_dump(), flops=flops)


def per_token(
    model: Model, report: ParamsReport, *, seq: int | None = None, convention: Convention = "exact"
) -> tuple[float, float]:
    """FLOPs that one more sequence of `seq` positions takes for each of them: of inference, and of a training step.
    `report` is what `params.estimate` counted.

    Raises ArchError E0503 where the model has no sizes at this length."""
    counter = _Counter(model, report, 1, seq)
    once, step = (work_of(model, training=training).total for training in (False, True))
    return counter.per_token(convention, once, step)


class Parts(NamedTuple):
    """FLOPs of parts of a model for each token, forwards."""

    blocks: dict[Block, float]
    """Of a distinct block, by each set of its weights, however often that is applied."""
    ops: dict[str, float]
    """Of a primitive with weights that stands in no loop, by its path."""


def per_token_of_parts(model: Model, report: ParamsReport, *, seq: int | None = None) -> Parts:
    """Return the forward FLOPs of parts for each token of one sequence of `seq` positions. `report` is what
    `params.estimate` counted.

    Raises ArchError E0503 where the model has no sizes at this length."""
    counter = _Counter(model, report, 1, seq)
    work = work_of(model, training=False)
    sets = {block: use.times for block, use in uses(model.block).items()}
    return Parts(
        {b: counter.value(w.work.forward, "exact") / counter.tokens / sets.get(b, 1) for b, w in work.blocks.items()},
        {
            path: counter.value(op.forward, "exact") / counter.tokens
            for (path, _), op in work.ops.items()
            if path and "*" not in path and not path.endswith(".")
        },
    )


# --- counting ---------------------------------------------------------------------------------------------------------


def sizes_at(model: Model, batch: int, seq: int | None) -> dict[str, int]:
    """Every size that only the running model knows: `batch` rows, and `seq` positions of every other axis (2,048 or the
    context where it is not given)."""
    context = model.context.value if model.context is not None else None
    length = seq or (min(DEFAULT_LENGTH, context) if isinstance(context, int) else DEFAULT_LENGTH)
    return {s.name: batch if s.name == "batch" else length for s in model.symbols}


class _Counter:
    def __init__(self, model: Model, report: ParamsReport, batch: int, seq: int | None) -> None:
        self.model, self.params = model, report.params
        self.sizes = sizes_at(model, batch, seq)
        self.batch = batch
        self.seq = next((n for name, n in self.sizes.items() if name != "batch"), seq or 1)
        self.counted: dict[tuple[Any, int, int], int] = {}
        self.bounded: dict[str, None] = {}
        demand_sizes(model, self.sizes)

    def report(self, convention: Convention) -> Flops:
        inference = work_of(self.model, training=False)
        training = work_of(self.model, training=True)
        once, step = inference.total, training.total
        told = {name: self.told(name, once, step) for name in CONVENTIONS}
        decoded, reason = self.decoded(convention)
        again = Total()
        again.join(step.forward)
        own = "dense" if convention in ("palm", "kaplan") else convention
        core = sum(self.amount(p, flops, own) for p, flops in step.forward.amounts if p is not None)
        layers = self.value(training.layers, own)
        mine = told[convention]
        return Flops(
            convention=convention,
            batch=self.batch,
            seq=self.seq,
            sizes=self.sizes,
            forward=mine.forward,
            backward=mine.training - self.forward_of(convention, step),
            training=mine.training,
            training_per_token=self.per_token(convention, once, step)[1],
            prefill=mine.forward,
            decode_step=decoded,
            no_decode_step=reason,
            elementwise=self.value(once.elementwise, own),
            formula=formula(once.forward),
            recomputation=Recomputation(
                none=mine.training,
                selective=mine.training + core,
                full=mine.training + layers,
                head=self.value(head_work(self.model), own),
            ),
            conventions=told,
            by_block=self.by_block(inference, training, own),
            by_op=self.by_op(inference, training, own),
            notes=self.notes(convention),
        )

    @property
    def tokens(self) -> int:
        return self.batch * (self.seq if len(self.sizes) > 1 or "batch" not in self.sizes else 1)

    # --- conventions ---

    def per_token(self, convention: Convention, once: OpWork, step: OpWork) -> tuple[float, float]:
        """FLOPs of inference, and of a training step, that one more sequence takes for each of its tokens: what is done
        once for a whole batch is none of a token's."""
        told = self.told(convention, once, step)
        if "batch" not in self.sizes:
            return told.forward / self.tokens, told.training / self.tokens
        more = copy(self)
        more.batch, more.sizes = self.batch + 1, {**self.sizes, "batch": self.batch + 1}
        larger, tokens = more.told(convention, once, step), more.tokens - self.tokens
        return (larger.forward - told.forward) / tokens, (larger.training - told.training) / tokens

    def told(self, convention: Convention, once: OpWork, step: OpWork) -> ConventionFlops:
        forward = self.forward_of(convention, once)
        if convention in ("palm", "kaplan"):
            training = 3 * forward
        else:
            training = self.value(step.forward, convention) + self.value(step.backward, convention)
        return ConventionFlops(says=SAYS[convention], forward=forward, training=training)

    def forward_of(self, convention: Convention, work: OpWork) -> int:
        if convention == "kaplan":
            return 2 * (self.params.active - (self.params.total - self.params.non_embedding)) * self.tokens
        if convention == "palm":
            core = sum(self.amount(p, flops, "dense") for p, flops in work.forward.amounts if p is not None)
            return 2 * self.params.active * self.tokens + core
        return self.value(work.forward, convention)

    def value(self, total: Total, convention: Convention) -> int:
        return sum(self.amount(pairs, flops, convention) for pairs, flops in total.amounts)

    def amount(self, pairs: Pairs | None, flops: Size, convention: Convention) -> int:
        if pairs is None:
            return whole_at(flops, dict(self.sizes))
        seen = whole_at(pairs.all, dict(self.sizes))
        if convention == "exact":
            seen = self.pairs(pairs)
        elif convention == "megatron" and looks_back(pairs.mask):
            return whole_at(flops, dict(self.sizes)) * seen // 2
        return whole_at(flops, dict(self.sizes)) * seen

    def pairs(self, pairs: Pairs) -> int:
        """The pairs that a mask lets through, each mask counted once."""
        self.bounded.update(dict.fromkeys(leaf.rule for leaf in pairs.mask.leaves() if leaf.rule in TENSOR_RULES))
        queries, keys = (whole_at(n.value, dict(self.sizes)) for n in (pairs.queries, pairs.keys))
        key = (pairs.mask.key, queries, keys)
        if key not in self.counted:
            self.counted[key] = count(pairs.mask, queries, keys, self.sizes)
        return self.counted[key]

    # --- tables ---

    def by_op(self, inference: Work, training: Work, convention: Convention) -> list[OpFlops]:
        nothing = OpWork()
        rows = []
        for path, op in reversed({**training.ops, **inference.ops}):
            once, step = inference.ops.get((path, op), nothing), training.ops.get((path, op), nothing)
            row = OpFlops(
                path=path.rstrip("."),
                op=op,
                uses=whole_at(once.uses, dict(self.sizes)),
                forward=self.value(once.forward, convention),
                backward=self.value(step.backward, convention),
                elementwise=self.value(once.elementwise, convention),
            )
            if row.forward or row.backward or row.elementwise:
                rows.append(row)
        return rows

    def by_block(self, inference: Work, training: Work, convention: Convention) -> list[BlockFlops]:
        found = {**training.blocks, **inference.blocks}
        places = {b: use for b, use in uses(self.model.block).items() if b in found}
        places |= {b: Use(0, work.alias, "") for b, work in found.items() if b not in places}
        names = titles(places)
        nothing = OpWork()
        rows = []
        for block, place in places.items():
            once, step = (w.blocks[block].work if block in w.blocks else nothing for w in (inference, training))
            row = BlockFlops(
                block=names[block],
                source=str(block.span),
                layers=sorted_layers(place),
                uses=whole_at(once.uses, dict(self.sizes)),
                forward=self.value(once.forward, convention),
                training=self.value(step.forward, convention) + self.value(step.backward, convention),
            )
            if row.forward or row.training or block is self.model.block:
                rows.append(row)
        return rows

    def notes(self, convention: Convention) -> list[str]:
        found = []
        if self.bounded:
            rules = ", ".join(f"`{rule}`" for rule in self.bounded)
            found.append(f"a mask by {rules} is known only when the model runs: all it may let through is counted")
        if convention in ("palm", "kaplan"):
            found.append("FLOPs of blocks and ops are those of the convention `dense`")
        return found

    # --- a step of decoding ---

    def decoded(self, convention: Convention) -> tuple[int | None, str | None]:
        """The FLOPs of one more token for each sequence; None, and why, where there is no such step."""
        try:
            total = decode_work(self.model)
        except ArchError as problem:
            return None, problem.diagnostics[0].message
        rows = self.batch
        core = sum(self.amount(p, flops, "dense") for p, flops in total.amounts if p is not None)
        if convention == "kaplan":
            return 2 * (self.params.active - (self.params.total - self.params.non_embedding)) * rows, None
        if convention == "palm":
            return 2 * self.params.active * rows + core, None
        # The newest query sees all keys that a causal mask leaves it: none of them is half seen.
        return self.value(total, "dense" if convention == "megatron" else convention), None


class NodeFlops:
    """FLOPs of single uses of nodes in inference: of one sequence, as long as `estimate` takes it."""

    def __init__(self, model: Model, seq: int | None = None) -> None:
        """Raises ArchError E0503 where the model has no sizes at this length."""
        self.counter = _Counter(model, count_parameters(model), 1, seq)
        work = work_of(model, training=False)
        self.blocks, self.nodes = work.blocks, work.nodes

    def op(self, node: OpNode) -> float:
        """Of a primitive, with the blocks that it applies, on the mean of its uses."""
        work = self.nodes.get(node, OpWork(1))
        own = self.counter.value(work.forward, "exact") / (self.size(work.uses) or 1)
        return own + sum(self.block(call.block) for call in node.blocks.values())

    def block(self, block: Block) -> float:
        """Of a block, on the mean of its uses."""
        work = self.blocks[block].work if block in self.blocks else OpWork(1)
        return self.counter.value(work.forward, "exact") / (self.size(work.uses) or 1)

    def size(self, size: Size) -> int:
        """A size at these lengths."""
        return whole_at(size, dict(self.counter.sizes))


def formula(total: Total) -> str:
    """A sum as a function of sizes."""
    plain: Size = 0
    terms = []
    for pairs, flops in total.amounts:
        seen = None if pairs is None else symbolic(pairs)
        if pairs is None or seen is not None:
            plain = add(plain, flops if seen is None else mul(flops, seen))
        else:
            terms.append(
                f"({flops}) * {pairs}" if isinstance(flops, Poly) and len(flops.terms) > 1 else f"{flops} * {pairs}"
            )
    return " + ".join([*([str(plain)] if plain != 0 or not terms else []), *terms])


def demand_sizes(model: Model, sizes: Sizes) -> None:
    """Raises ArchError E0503 where an input has no whole size, or a condition of the model does not hold."""
    said = refusal(model, sizes)
    if said:
        raise error("E0503", said, help=_fitting(model, sizes))


def refusal(model: Model, sizes: Sizes) -> str:
    """Return why a model refuses sizes: an input has no whole size, or a condition does not hold. '' where it takes
    them."""
    found = [_at(d, sizes) for _, value in model.inputs for d in value.shape]
    broken = next((n for n in found if n != int(n)), None)
    if broken is not None:
        return f"an input's size would be {float(broken):g} at these lengths"
    check = next((c for c in _checks(model, sizes) if not _holds(c, sizes)), None)
    if check is None:
        return ""
    numbers = [f"{name} = {n:,}" for name, n in sizes.items()]
    fixed = [n for n in (check.left, check.right) if n.static and not isinstance(n.expr, Lit)]
    limits = "".join(f", and {expr_text(n.expr)} = {_at(n, sizes):,}" for n in fixed)
    return f"the model refuses these sizes ({', '.join(numbers)}): {check.message}{limits}"


def _checks(model: Model, sizes: Sizes) -> list[CheckNode]:
    """Return the conditions of a model on sizes that are known: of the rows of an expert nothing is."""
    return [n for n in _conditions(model) if _symbols(n) <= sizes.keys()]


@lru_cache(maxsize=4)
def _conditions(model: Model) -> tuple[CheckNode, ...]:
    return tuple(n for n in nodes_below(model.block.graph) if isinstance(n, CheckNode))


def _fitting(model: Model, sizes: Sizes) -> str:
    """Return the nearest sequence length that a model takes, and the setting with which it takes this one."""

    def fits(length: int) -> bool:
        return length > 0 and not refusal(model, {k: v if k == "batch" else length for k, v in sizes.items()})

    length = max((n for name, n in sizes.items() if name != "batch"), default=1)
    longest = (c for c in _checks(model, sizes) if c.op == "<=" and c.right.static and not _holds(c, sizes))
    broken = next(longest, None)
    if broken is not None and fits(limit := int(_at(broken.right, sizes))):
        name = expr_text(broken.right.expr)
        settable = any(f.name == name and f.value.value == limit for f in model.config)
        longer = f"; `--set {name}={_at(broken.left, sizes)}` takes this one" if settable else ""
        return f"`--seq {limit}` is the longest{longer}"
    near = next((n for d in range(1, NEAR + 1) for n in (length - d, length + d) if fits(n)), None)
    return f"`--seq {near}` fits" if near else "give another `--seq`"


def _holds(check: CheckNode, sizes: Sizes) -> bool:
    left, right = _at(check.left, sizes), _at(check.right, sizes)
    return Fraction(left) % Fraction(right) == 0 if check.op == "%" else TESTS[check.op](left, right)


def _at(n: Num, sizes: Sizes) -> Any:
    return evaluate(n.value, sizes) if isinstance(n.value, Poly) else n.value


def _symbols(check: CheckNode) -> set[str]:
    return {s.name for n in (check.left, check.right) for s in n.symbols}


# --- decoding ---------------------------------------------------------------------------------------------------------


def head_work(model: Model) -> Total:
    """Return what the LM head takes forwards; nothing where a loss in chunks cannot compute it by itself."""
    found = Total()
    try:
        head = head_of(model)
    except ArchError:
        return found
    inner = (n for node in head.nodes for call in calls_of(node) for n in nodes_below(call.block.graph, set()))
    for node in (*head.nodes, *inner):
        if isinstance(node, OpNode):
            for part in node.op.flops(node).contractions:
                found.add(part.amount)
    return found


@lru_cache(maxsize=4)
def decode_work(model: Model) -> Total:
    """The contractions of one step of decoding, one new position for each sequence, as a function of the sizes; the
    length counts the new position too.

    Keys and values are taken from a cache, as they are; what depends on other inputs than the sequence (an encoder,
    keys and values of its result) is computed before the first step.

    Raises ArchError E0504 where there is no such step."""
    step = stepped(model)
    total = _Steps(unroll_step(step)).total
    total = total.where(step.new.name, 1).where(step.all.name, of_atom(step.time))
    return total if step.first is None else total.where(step.first.name, 0)


class _Steps:
    def __init__(self, found: FlatStep) -> None:
        self.found = found
        self.total = Total()
        self.memo: dict[Any, Total] = {}
        self.graph(found.step, self.total, 1)

    def graph(self, graph: FlatGraph, into: Total, times: Size) -> None:
        given, hidden = self.masked(graph)
        for node in graph.nodes:
            if isinstance(node, FlatOp):
                into.join(self.op(node, given.get(node, ()), hidden.get(node, NOWHERE)), times)
            elif isinstance(node, FlatScan):
                self.graph(node.body, into, times if node.node.kept else mul(times, node.node.length.value))

    def masked(self, graph: FlatGraph) -> tuple[dict[FlatOp, tuple[Known, ...]], dict[FlatOp, Places]]:
        """What masks make of the inputs of ops, and what is needed none of their results, where there is any."""
        facts: dict[object, Known] = {}
        given: dict[FlatOp, tuple[Known, ...]] = {}
        for node in graph.nodes:
            own = tuple(facts.get(v, ()) for v in node.inputs)
            if isinstance(node, FlatOp) and (any(own) or node.node.op.makes_mask):
                given[node] = own
                facts.update((v, known(node.node, own)) for v in node.outputs)
        if not given:
            return {}, {}
        needed: dict[object, Places] = dict.fromkeys(graph.outputs, NOWHERE)
        hidden: dict[FlatOp, Places] = {}
        for node in reversed(graph.nodes):
            unread: Iterable[Places] = (NOWHERE for _ in node.inputs)
            if isinstance(node, FlatOp):
                places = needed.get(node.outputs[0], NOWHERE) if len(node.outputs) == 1 else NOWHERE
                if places or node in given:
                    hidden[node] = places
                    own = given.get(node, ((),) * len(node.inputs))
                    unread = unneeded(node.node, own, places)
            for value, part in zip(node.inputs, unread, strict=True):
                needed[value] = needed.get(value, part) & part
        return given, hidden

    def op(self, node: FlatOp, given: tuple[Known, ...] = (), hidden: Places = NOWHERE) -> Total:
        """One op; those of layers that are alike are looked at once. Keys and values that are projections of what is
        kept are not computed again for all positions: queries are projected instead."""
        key = (id(node.node), given, hidden)
        if key not in self.memo:
            total = Total()
            for part in node.node.op.step_flops(node.node).contractions:
                total.add(costing(node.node, part.amount, given or ((),) * len(node.inputs), hidden))
            for inner in node.blocks.values():
                self.experts(node, inner, node.node.inputs[0], total)
            chained = node in self.found.chain
            self.memo[key] = total.where(self.found.of.all.name, self.found.one_projected) if chained else total
        return self.memo[key]

    def experts(self, node: FlatOp, inner: FlatGraph, x: Any, into: Total) -> None:
        assert node.node.active is not None
        rows: Size = node.node.active.value
        for d in x.shape[:-1]:
            rows = mul(rows, d.value)
        found = Total()
        for part in inner.nodes:
            if isinstance(part, FlatOp):
                for contraction in part.node.op.flops(part.node).contractions:
                    found.add(Amount(contraction.amount.flops))
        into.join(found.with_rows(rows))
