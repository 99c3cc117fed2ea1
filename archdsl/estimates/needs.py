"""What training, prefill and decoding need of a device's memory: the one answer to whether a model fits.

Training needs what is alive at once in its fullest stage (`archdsl.estimates.sharding`). Inference needs the weights
and the KV cache of the sequences of a replica; a prefill also what is alive at once of the tensors of its forward,
which computes logits of the last position alone. Of a mesh, tensor and expert parallelism share the work of each
sequence, stages follow each other, and the rest are replicas, each with its part of the batch.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from archdsl.estimates.activations import Saving, StepWalk
from archdsl.estimates.attention_kernels import StoredScores
from archdsl.estimates.dtypes import BYTES, LOW_BYTES, width
from archdsl.estimates.loss import Loss
from archdsl.estimates.memory import Tensor, decode_tensors
from archdsl.estimates.mesh import Mesh
from archdsl.estimates.sharding import Shares, Step, StepPlan, layer
from archdsl.ir.graph import Model, Value
from archdsl.ir.paths import layer_of
from archdsl.passes.flat_step import FlatStep, decode_step
from archdsl.passes.flatten import FlatGraph, FlatNode, FlatOp, FlatParam, FlatWeight, flatten
from archdsl.passes.forms import ALL, Forms
from archdsl.passes.step import stepped

Phase = Literal["training", "prefill", "decode"]


class Need(BaseModel):
    """Bytes that the fullest device needs."""

    phase: Phase
    seq: int
    """Sequence length; of decoding, positions that are kept."""
    bytes: int
    at: str | None
    """In which stretch of a training step that is: `backward blocks.3`."""
    loss: Loss | None = None
    """Which kernel computes the cross-entropy of a training step."""
    terms: dict[str, int]
    """What is kept: `weights`, `gradients`, … Of training not all of it at once; beside it there are temporaries."""
    fits: bool | None = None
    """Whether it is in a device's memory; None where no device is named."""

    @property
    def term(self) -> str:
        """The largest of them."""
        return max(self.terms, key=lambda name: self.terms[name])

    def is_whole(self, term: str) -> bool:
        """Return whether all of a term is in memory when a training step needs the most."""
        return term in ("weights", "optimizer", *(("activations", "objective") if self.at == "objective" else ()))


class MemoryAsked(BaseModel):
    """What memory was asked for: that of a training step, or of decoding."""

    dtype: str
    optimizer: str | None
    """None for decoding."""
    master_weights: bool
    checkpoint: str | None
    """What the backward pass computes again; None for decoding."""
    loss: str | None
    """Which kernel computes the cross-entropy; None for decoding."""
    decode: bool
    weights: str
    """Element type of the weight matrices: `dtype`, or one of fewer bits, such as int4."""
    kv_cache: str
    batch: int


class Workload(StepPlan):
    """What memory is needed for: a step of training that is run so, or of decoding `seq` positions that are kept."""

    batch: int = 1
    seq: int | None = None
    """2,048 or the context, if less, where it is None."""
    decode: bool = False

    def asked(self, loss: str | None) -> MemoryAsked:
        """Return these options as a report shows them; `loss` names the kernel of the cross-entropy."""
        return MemoryAsked(
            dtype=self.dtype,
            optimizer=None if self.decode else self.optimizer,
            master_weights=self.master_weights and not self.decode,
            checkpoint=None if self.decode else self.checkpoint,
            loss=loss,
            decode=self.decode,
            weights=self.weights or self.dtype,
            kv_cache=self.cache or self.dtype,
            batch=self.batch,
        )


def memory_need(model: Model, run: Workload) -> Need:
    """What a step of a model needs of memory.

    Raises ArchError: E0503 where the model has no sizes at this batch and length, E0504 where it is to be decoded and
    cannot be taken step by step, E0527 where there are no layers to compute again."""
    if run.decode:
        stepped(model)
    step = Step(model, run, run.batch, run.seq)
    return Inference(step).need("decode") if run.decode else training(step)


def needs(step: Step, usable: int | None = None) -> list[Need]:
    """Return what each phase needs of a device, of whose memory so many bytes are usable."""
    inference = Inference(step)
    found = [training(step), *map(inference.need, inference.phases)]
    return [n if usable is None else n.model_copy(update={"fits": n.bytes <= usable}) for n in found]


def training(step: Step) -> Need:
    """Return what a training step needs on the fullest device."""
    stage = step.sharding.memory
    names = ("weights", "gradients", "optimizer", "activations", "gathered", "objective", "inputs")
    terms = {name: getattr(stage, name) for name in names}
    kept = {k: n for k, n in terms.items() if n}
    return Need(phase="training", seq=step.seq, bytes=stage.total, at=stage.peak_at, loss=step.loss.kind, terms=kept)


class Serving(Shares):
    """What a rank has of a model in inference: matrices, and KV caches, may have fewer bits than all else."""

    def __init__(
        self, model: Model, graph: FlatGraph, mesh: Mesh, plan: StepPlan, step: FlatStep | None = None
    ) -> None:
        """`step` is the one whose graph it is."""
        super().__init__(model, graph, mesh)
        bits = BYTES[plan.dtype]
        self.of_matrices = LOW_BYTES[plan.weights] / bits if plan.weights is not None else 1.0
        self.of_caches = LOW_BYTES[plan.cache] / bits if plan.cache is not None else 1.0
        self.caches = {v for k in step.kept if k.kind == "cache" for v in k.node.outputs} if step is not None else set()

    def held(self, weight: FlatWeight) -> float:
        return self.ranks(weight) / (self.of_matrices if weight.weight.kind == "matrix" else 1.0)

    def share(self, value: Value) -> float:
        return super().share(value) / (self.of_caches if value in self.caches else 1.0)


class Prefill(Serving):
    """What a rank has of a forward over whole sequences that gives logits of the last position alone: of what reads no
    other position than its own, up to the end, only that one is computed."""

    def __init__(self, model: Model, graph: FlatGraph, mesh: Mesh, plan: StepPlan, positions: int) -> None:
        super().__init__(model, graph, mesh, plan)
        self.positions = positions
        step, _ = decode_step(model)
        self.last = {v for n in own_tail(graph, step) for v in n.outputs} if step is not None else set()

    def share(self, value: Value) -> float:
        return super().share(value) * (self.positions if value in self.last else 1)

    def work(self, node: FlatNode) -> int:
        return super().work(node) * (self.positions if node.outputs[0] in self.last else 1)


def own_tail(graph: FlatGraph, step: FlatStep) -> list[FlatOp]:
    """The last nodes of a model's graph that look at no position of the decoded sequence but their own."""
    forms = Forms(step.of.time, graph.inputs[0].shape[0].value, step.of.led)
    moving = {v for v in graph.inputs if forms.axes(v)}
    for node in graph.nodes:
        if not moving.isdisjoint(node.inputs):
            moving.update(node.outputs)
    found: list[FlatOp] = []
    for node in reversed(graph.nodes):
        if isinstance(node, FlatParam) or (isinstance(node, FlatOp) and not any(map(forms.axes, node.outputs))):
            continue
        if not isinstance(node, FlatOp) or any(v not in moving for _, v in forms.timed(node.inputs)):
            break
        if any(forms.front(v) for v in (*(v for _, v in forms.timed(node.inputs)), *node.outputs)):
            break
        taken = forms.take(node.node)
        if taken.states or any(ALL in form for form in (*taken.forms, *(form for _, form, _ in taken.wanted))):
            break
        found.append(node)
    return found


class Inference:
    """A model's mesh, sizes and caches where it generates."""

    def __init__(self, step: Step) -> None:
        self.step, (self.decoding, _) = step, decode_step(step.model)
        self.mesh = step.mesh.model_copy(update={"cp": 1})
        self.rows = -(-step.batch // step.mesh.replicas)
        """Sequences of a replica."""
        self.sizes = {**step.sizes, **({"batch": self.rows} if "batch" in step.sizes else {})}
        self.graph = flatten(step.model)
        self.prefill = Prefill(step.model, self.graph, self.mesh, step.plan, step.seq)
        self.stored = StoredScores(step.plan.device, self.sizes, step.plan.dtype, trains=False)

    def caches(self) -> list[int]:
        """Return the bytes of each stage's KV cache and other decode state, rings where there are windows."""
        step, found = self.step, [0] * self.mesh.pp
        decoding = self.decoding
        if decoding is None:
            return found
        shares = Serving(step.model, decoding.step, self.mesh, step.plan, decoding)
        stages = {layer(nodes[0]): i % self.mesh.pp for i, c in enumerate(step.chunks) for nodes in c.layers}
        for tensor in decode_tensors(decoding, self.sizes, shares):
            stage = stages.get(layer_of(tensor.path)[:2], 0)
            found[stage] += tensor.held * width(tensor.dtype, step.plan.dtype)
        return found

    def temporaries(self, stage: int) -> int:
        """Return the most that is alive at once of a stage's tensors in a prefill."""
        step = self.step
        plan, shares = step.plan, step.shares
        saving = Saving(self.graph, self.sizes, plan.dtype, wants=shares.wants, cut=self.prefill, scores=self.stored)
        most = 0.0
        for i in range(stage, len(step.chunks), self.mesh.pp):
            walk = StepWalk(step.chunks[i].nodes, step.passed(i), saving, "none", lambda _: "")
            walk.forward()
            most = max([most, *(s.most for s in walk.stretches)])
        return round(most)

    def bytes(self, tensor: Tensor) -> int:
        """Return the bytes of a weight in inference."""
        weight, plan = tensor.weight, self.step.plan
        if plan.weights is not None and weight.kind == "matrix":
            return round(tensor.numbers * LOW_BYTES[plan.weights])
        return tensor.numbers * width("float" if weight.trained else weight.dtype, plan.dtype)

    @property
    def phases(self) -> list[Phase]:
        """Return those that there are: decoding of a model that is taken step by step."""
        return ["prefill"] if self.decoding is None else ["prefill", "decode"]

    def need(self, phase: Phase) -> Need:
        """Return what a prefill, or decoding, needs."""
        step, terms = self.step, []
        for stage, cache in enumerate(self.caches()):
            weights = sum(self.bytes(t) for t, _ in step.tensors(step.weights_of(stage).values()))
            temporaries = self.temporaries(stage) if phase == "prefill" else 0
            terms.append({"weights": weights, "decode state": cache, "temporaries": temporaries})
        fullest = max(terms, key=lambda t: sum(t.values()))
        kept = {k: n for k, n in fullest.items() if n}
        return Need(phase=phase, seq=step.seq, bytes=sum(fullest.values()), at=None, terms=kept)
