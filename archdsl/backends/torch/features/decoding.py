"""A step of a model as PyTorch takes it: attention that keeps its last positions alone, places in front of the
sequence, and what the first step computes."""

from __future__ import annotations

from archdsl.backends.torch.features.by_row import ByRow, name_of, refuse, span_of
from archdsl.ir.dims import Num
from archdsl.ir.graph import Model, Value
from archdsl.ir.walk import block_tensors
from archdsl.passes.flat_step import FlatStep, Kept, unroll_step
from archdsl.passes.flatten import FlatForm, FlatNode, FlatOp, FlatScan
from archdsl.passes.forms import is_time, reads_numbers
from archdsl.passes.step import stepped


class Decoding:
    """A step of a model, for the lowering of its blocks."""

    def __init__(self, model: Model) -> None:
        """Raises ArchError E0504 where the model's output depends on later positions, or an op has no step."""
        self.model = model
        self.step = stepped(model, apart=False)
        self.flat: FlatStep = unroll_step(self.step)
        self.by_row = ByRow(self.flat)
        self.flat_nodes = {*self.flat.step.nodes}
        late = {v for n in self.flat_nodes for v in n.outputs}
        self.early = {v for n in self.flat.before.nodes for v in n.outputs} - late
        """What the first step alone computes."""
        self.homes = dict(self.flat.root.homes())
        self.windows = self.of_windows()
        """Attention that sees the last positions alone, and its masks: how many these are."""
        self.front = self.of_front()
        """How many places in front of the sequence, which go through the layers, a cache counts with the tokens."""
        self.leading = {n for n in self.flat.step.nodes if self.leads(n)}
        """What puts them there, or cuts them off."""
        again = {v for n in self.flat.step.nodes if n not in self.leading for v in n.inputs}
        self.crossing = {v for v in self.flat.before.outputs if v in again}
        """What the first step computes and later ones read."""
        self.taken = [self.step.origin(v) for v in self.flat.taken]
        """The model's inputs that every step takes."""

    def of_front(self) -> int:
        """Return how many places in front of the sequence go through the layers; a cache counts them with its tokens.
        Raises ArchError E0504 where these are not as many everywhere, or tensors of tokens are read beside them."""
        flat, step = self.flat, self.step
        if not self.step.led:
            return 0
        caches = [k for k in flat.kept if k.kind == "cache"]
        counts = {step.front(k.shape[k.axis]): k for k in reversed(caches)}
        if len(counts) > 1:
            (few, one), (many, other) = sorted(counts.items())[:2]
            raise refuse(
                f"{few} places stand in front of the sequence where {maker_of(one)} keeps positions, and {many} where "
                f"{maker_of(other)} does",
                other.node.node.span,
                "put as many in front of every layer that keeps positions",
            )
        made = [(n, v) for n in flat.step.nodes for v in n.outputs if len(flat.of_all(v)) < 2]  # or anew in each step
        timed = [(n, v, [step.front(d) for d in v.shape if step.has(d)]) for n, v in made]
        pairs = [f for _, v, fronts in timed for f in fronts if len(fronts) > 1 or v in flat.positional]
        front = next(iter(counts), max(pairs, default=0))
        for node, value, fronts in timed:
            read = [v for v in node.inputs if isinstance(v, Value)]
            whole = not isinstance(node, FlatForm) and (len(fronts) > 1 or any(map(flat.of_all, read)))
            counted = {front} if whole else {front, 0} if value in flat.positional else {*fronts}
            if not counted.issuperset(fronts):
                name, span = ("the model", None) if isinstance(node, FlatForm) else (name_of(node), span_of(node))
                raise refuse(
                    f"{name} reads positions behind {sorted({front, *fronts})} places in front of the sequence, and a "
                    "cache counts as many everywhere",
                    span,
                )
        if any(v.dtype == "padding" and any(map(step.has, v.shape)) for v in flat.step.inputs):
            raise refuse(
                "places in front of the sequence go through the layers, and an input says which tokens are padding"
            )
        return front

    def leads(self, node: FlatNode) -> bool:
        """Whether an op puts places in front of the sequence, or cuts them off. Raises ArchError E0504 where it does
        anything else."""
        if not self.step.led or not isinstance(node, FlatOp):
            return False
        tensors = [(i, v) for i, v in enumerate(node.inputs) if isinstance(v, Value) and self.fronts(v)]
        read = [v for i, v in tensors if reads_numbers(node.node, i)]
        made = {front for v in node.outputs for front in self.fronts(v)}
        if all(self.fronts(v) == made for v in read) or any(self.flat.of_all(v) for _, v in tensors):
            return False
        output, value = node.outputs[0], read[0]
        apart = [a for a, (d, e) in enumerate(zip(value.shape, output.shape, strict=False)) if d.value != e.value]
        same = len(read) == len(node.outputs) == len(apart) == 1 and value.rank == output.rank
        if not same or output in self.flat.positional:
            raise refuse("an op that cuts off places in front of the sequence does something else, too", span_of(node))
        return True

    def fronts(self, value: Value) -> set[int]:
        """How many places stand in front of the sequence along the axes of time of a tensor."""
        return {self.step.front(d) for d in value.shape if self.step.has(d)}

    def counts(self, size: Num) -> bool:
        """Whether a size is that of the new positions, or of all, that a cache counts."""
        if self.front:
            return self.step.front(size) == self.front
        return is_time(size, self.step.new) or is_time(size, self.step.all)

    @property
    def carries(self) -> bool:
        """Whether a step hands on the state of a recurrence."""
        return any(isinstance(n, FlatOp | FlatScan) and n.node.kept for n in self.flat.step.nodes)

    def of_windows(self) -> dict[FlatNode, Num]:
        """Attention of which every reader of its mask sees the last positions alone, and of its keys it is the only
        reader; and the makers of these masks."""
        found: dict[FlatNode, Num] = {}
        masks: dict[Value, list[FlatOp]] = {}
        readers, latents = self.by_row.readers, self.flat.latents
        for node in self.flat.step.nodes:
            if isinstance(node, FlatOp) and (seen := self.seen(node)) is not None:
                kept = [v for i in node.node.op.cached_inputs(node.node) if isinstance(v := node.inputs[i], Value)]
                alone = all(self.is_kept_at(v, node) and {n for n, _ in readers[v]} == {node} for v in kept)
                mask = node.inputs[seen[0]]
                if alone and isinstance(mask, Value) and node not in latents:
                    masks.setdefault(mask, []).append(node)
        for mask, nodes in masks.items():
            maker = self.flat.makers.get(mask)
            if len(nodes) == len(readers[mask]) and isinstance(maker, FlatOp) and maker.node.op.positional:
                for flat in (*nodes, maker):
                    seen = self.seen(flat)
                    assert seen is not None
                    found[flat] = seen[1]
        return found

    def is_kept_at(self, value: Value, node: FlatOp) -> bool:
        """Whether what an op reads is appended in the same call of a block, or that is given its new positions, too."""
        form, home = self.flat.form_of(value), self.homes[node]
        given = [home.values.get(v) for v in block_tensors(home.block)]
        return form is not None and (self.homes[form] is home or (form.value in given and form.output in given))

    def seen(self, node: FlatOp) -> tuple[int, Num] | None:
        """Of attention and of a mask the input that is the mask, and how many positions are seen."""
        origin = self.step.origin(node.node)
        return origin.op.window(origin)


def maker_of(kept: Kept) -> str:
    """What keeps a tensor, as messages name it: the path of its block."""
    return f"`{kept.path}`" if kept.path else "the model"
