"""What transformers must hold of a decoder: the keys and values of its attention, its masks and kernels, its head.

All of it is read off the IR: the step of decoding says what is kept, the masks by which rule, and the message of a
refusal which op is to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from archdsl.backends.huggingface.tables import Tables
from archdsl.diagnostics import ArchError
from archdsl.ir.closure import instantiated_names
from archdsl.ir.dims import Expr, Num, substitute
from archdsl.ir.graph import Block, CallNode, CondNode, LoopNode, Model, Node, OpNode, Value
from archdsl.ir.masks import Mask, limited_causal, without_padding
from archdsl.ir.op import Primitive
from archdsl.ir.walk import nodes_below, ops_below
from archdsl.passes.flat_step import unroll_step
from archdsl.passes.flatten import FlatNode, FlatOp
from archdsl.passes.kinds import inference_nodes
from archdsl.passes.outline import outline, refuse
from archdsl.passes.step import stepped


class Decoder:
    """One decoder, its head apart. Raises ArchError E0534 where transformers cannot hold it: the message says why."""

    def __init__(self, model: Model) -> None:
        self.original = model
        self.outlined = outline(model)
        try:
            self.step = unroll_step(stepped(self.outlined.model, latents=False))
        except ArchError as problem:
            found = problem.diagnostics[0]
            if found.code != "E0504":
                raise
            raise self.refuse(found.message, "`--to torch` computes it without transformers") from None
        self._demand_cache()
        tables = Tables(self.step)
        if tables.are_others():
            raise self.refuse("it makes biases, masks or tables of positions itself, in a way that has no step there")
        self.tables: dict[OpNode, int | None] = {}
        """Ops that make tables of positions: their `axes`."""
        for flat, axes in tables.axes.items():
            node = self._whole(flat)
            self.tables[node] = axes if self.tables.get(node, axes) == axes else None
        self.kept = {*self._kept()}
        """Attention whose keys and values the cache holds."""
        self._demand_attention()

    def refuse(self, why: str, help: str = "") -> ArchError:
        return refuse(self.original, why, help)

    # --- what it must be ---

    def _demand_cache(self) -> None:
        """What is kept of positions before must be keys and values of attention."""
        for kept in self.step.kept:
            if kept.kind == "state":
                raise self.refuse(
                    f"{_called(kept.node)} hands a state from each position to the next, and transformers' cache of "
                    "this kind of model holds keys and values"
                )
        inputs = [(n, v) for n, v in self.outlined.model.inputs if v.dtype != "padding"]
        if len(inputs) != 1 or any(v.dtype != "token" or v.rank != 2 for _, v in inputs):
            named = ", ".join(f"`{n}`" for n, _ in inputs)
            raise self.refuse(f"it takes {named}, and a causal language model takes one sequence of tokens")

    def _kept(self) -> Iterator[OpNode]:
        """The attention of which the cache holds keys and values, each beside its maker and read by it alone."""
        nodes, homes = self.step.step.nodes, dict(self.step.root.homes())
        readers = Counter(v for n in nodes for v in {*n.inputs})
        for node in nodes:
            forms = {i: f for i, v in enumerate(node.inputs) if isinstance(v, Value) and (f := self.step.form_of(v))}
            for form in forms.values():
                name = form.value.name or "a tensor"
                if form.value.shape[0].value != self.tokens.shape[0].value:
                    raise self.refuse(f"`{name}` is kept, and its first axis is not that of the batch")
                if readers[form.output] > 1 or homes[form] is not homes[node]:
                    raise self.refuse(f"`{name}`, of which all positions are kept, is read by several ops")
            if not forms:
                continue
            if not isinstance(node, FlatOp) or not _is_hosted(node.node):
                raise self.refuse(f"{_called(node)} reads all positions, and no kernel of transformers is like it")
            if forms.keys() != node.node.op.cached_inputs(node.node).keys():
                raise self.refuse(f"{_called(node)} reads keys that are kept elsewhere")
            if len(homes[node].nodes[node.node]) > 1:
                raise self.refuse(f"{_called(node)} stands in a loop, and not in a block that the loop calls")
            yield self._whole(node)

    def _whole(self, node: FlatNode) -> OpNode:
        """What an op of a step is in the model."""
        assert isinstance(node, FlatOp)
        found = self.step.of.origins.get(node.node, node.node)
        assert isinstance(found, OpNode)
        return found

    def _demand_attention(self) -> None:
        if not self.kept:
            raise self.refuse("it has no attention whose keys and values a cache could hold")
        for node in nodes_below(self.outlined.base.graph):
            for op in ops_below(node.then) if isinstance(node, CondNode) else ():
                if _is_hosted(op):
                    raise self.refuse(
                        f"`{op.op.name}` attends where `if training` holds, and has no place in the cache there"
                    )
        for flat in self.step.step.nodes:
            bias = flat.inputs[4] if isinstance(flat, FlatOp) and flat.node.op.kernels(flat.node) else None
            if isinstance(bias, Value) and bias in self.step.moving:
                raise self.refuse(f"{self._source(bias)} adds to its attention what depends on the text")
            padding = any(isinstance(v, Value) and v.dtype == "padding" for v in flat.inputs)
            if padding and not (isinstance(flat, FlatOp) and flat.node.op.makes_mask):
                raise self.refuse("it reads its padding beside its masks")
        numbers: dict[str, Any] = {}
        for rule, number in self.limits:
            if number is not None and numbers.setdefault(rule, number.value) != number.value:
                raise self.refuse("its layers have windows of several sizes, and a Config has one")
            if self.biased and rule:
                raise self.refuse("its attention has both a window and a bias of scores")

    def _source(self, value: Value) -> str:
        """The op that makes a bias, that which only joins it with a mask left out."""
        maker = self.step.makers.get(value)
        while isinstance(maker, FlatOp) and maker.node.op.adds_mask and isinstance(maker.inputs[0], Value):
            maker = self.step.makers.get(maker.inputs[0])
        return f"`{maker.node.op.name}`" if isinstance(maker, FlatOp) else "a bias"

    def limit_of(self, mask: Mask) -> tuple[str, Num | None]:
        """The rule that limits a causal mask further, and its number."""
        found = limited_causal(without_padding(mask))
        if found is None:
            raise self.refuse(
                f"it has the mask `{mask}`, and transformers' cache goes with causal masks, alone or with a window"
            )
        return found

    @cached_property
    def masks(self) -> list[OpNode]:
        """The masks that the model makes, in order."""
        return [n for n in inference_nodes(self.outlined.base.graph) if isinstance(n, OpNode) and n.op.makes_mask]

    @cached_property
    def limits(self) -> list[tuple[str, Num | None]]:
        return [self.limit_of(n.options["mask"]) for n in self.masks]

    @cached_property
    def biased(self) -> bool:
        """Whether a bias is added to the scores of attention."""
        return any(isinstance(n, OpNode) and n.op.adds_mask for n in inference_nodes(self.outlined.base.graph))

    # --- what blocks are ---

    @cached_property
    def tokens(self) -> Value:
        return next(v for _, v in self.outlined.model.inputs if v.dtype != "padding")

    def layers(self, block: Block) -> int:
        """How many layers of the cache a block and what it calls have."""
        if block not in self._layers:
            self._layers[block] = sum(map(self.layers_of, block.graph.nodes))
        return self._layers[block]

    def layers_of(self, node: Node) -> int:
        """The same of a node."""
        if isinstance(node, CallNode):
            return self.layers(node.block)
        if isinstance(node, LoopNode):
            inside = [sum(map(self.layers_of, g.nodes)) for g in node.bodies]
            return sum(inside[i] for i in node.iterations)
        if isinstance(node, CondNode):
            return sum(map(self.layers_of, node.otherwise.nodes))
        return int(node in self.kept)

    @cached_property
    def _layers(self) -> dict[Block, int]:
        return {}

    @cached_property
    def attention(self) -> list[tuple[OpNode, dict[str, Expr]]]:
        """Every use of attention, with the names of its block in those of the Config."""
        return list(self._attention(self.outlined.base, {}))

    def _attention(self, block: Block, names: dict[str, Expr]) -> Iterator[tuple[OpNode, dict[str, Expr]]]:
        for node in inference_nodes(block.graph):
            if node in self.kept:
                assert isinstance(node, OpNode)
                yield node, names
            if isinstance(node, CallNode) and self.layers(node.block):
                bind = {k: substitute(e, names) if names else e for k, e in node.bind.items()}
                yield from self._attention(node.block, instantiated_names(node.block, bind))


def _is_hosted(node: OpNode) -> bool:
    """Whether kernels of transformers are like an op."""
    return type(node.op).torch_hosted is not Primitive.torch_hosted


def _called(node: FlatNode) -> str:
    """What a message calls a node."""
    return f"`{node.node.op.name}`" if isinstance(node, FlatOp) else "a scan"
