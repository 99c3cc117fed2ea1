"""What transformers must hold of a decoder: the keys and values of its attention, its masks and kernels, its head.

All of it is read off the IR: the step of decoding says what is kept, the masks by which rule, and the message of a
refusal which op is to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from archdsl.backends.huggingface.encoder import blocks_below, divided
from archdsl.backends.huggingface.tables import Tables
from archdsl.diagnostics import ArchError
from archdsl.ir.closure import instantiated_names
from archdsl.ir.dims import Expr, Num, substitute
from archdsl.ir.graph import (
    Block,
    CallNode,
    CondNode,
    Graph,
    LoopNode,
    Model,
    Node,
    OpNode,
    Value,
    node_outputs,
    reads,
)
from archdsl.ir.masks import Mask, limited_causal, without_padding
from archdsl.ir.op import Primitive
from archdsl.ir.walk import every_node, nodes_below, ops_below
from archdsl.passes.flat_step import unroll_step
from archdsl.passes.flatten import FlatNode, FlatOp, Unrolled
from archdsl.passes.forms import has
from archdsl.passes.kinds import inference_nodes
from archdsl.passes.outline import BASE, outline, refuse
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
        if self.step.of.led:
            raise self.refuse(
                "places in front of the tokens go through its layers, of which a cache there knows nothing"
            )
        self._demand_cache()
        self.encoding: frozenset[Block] = frozenset()
        """The blocks of an encoder."""
        if len(self.inputs) > 1:
            self.outlined = divided(self.outlined, self.step.of.time, self.refuse)
            assert self.encoder is not None
            self.encoding = frozenset(blocks_below(self.encoder.graph))
        self.pairs: dict[CallNode, list[bool | None]] = {}
        """Calls that make a table of new positions and all: whether each input is of all, None where it is neither."""
        calls = [*self._pairs()] if self.encoder is not None else []
        tables = Tables(self.step, calls)
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
        self.crossing = self._crossing() if self.encoder is not None else {}
        """Attention to the source of which the cache holds keys and values, and the nodes that make them."""
        if not self._have_places():
            self.crossing = {}
            self._layers.clear()

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
        time, tokens = self.step.of.time, [v for _, v in self.inputs]
        known = all(v.dtype == "token" and v.rank == 2 for v in tokens)
        source = [v.shape[1].value for v in tokens if not has(v.shape[1], time)] if known else []
        paddings = [self.padding.shape[1].value] if self.padding is not None else []
        if not known or len(tokens) != 1 + len(source) or len(source) > 1 or paddings not in ([], source):
            named = ", ".join(f"`{n}`" for n, _ in self.outlined.model.inputs)
            raise self.refuse(
                f"it takes {named}, and a language model takes the tokens of one sequence, or of a source and a target"
            )

    def _kept(self) -> Iterator[OpNode]:
        """The attention of which the cache holds keys and values, each beside its maker and read by it alone."""
        nodes, homes = self.step.step.nodes, dict(self.step.root.homes())
        readers = Counter(v for n in nodes for v in {*n.inputs})
        for node in nodes:
            forms = {i: f for i, v in enumerate(node.inputs) if isinstance(v, Value) and (f := self.step.form_of(v))}
            for form in forms.values():
                name = f"`{form.value.name}`" if form.value.name else "a tensor"
                if form.value.shape[0].value != self.tokens.shape[0].value:
                    raise self.refuse(f"{name} is kept, and its first axis is not that of the batch")
                if readers[form.output] > 1 or homes[form] is not homes[node]:
                    raise self.refuse(f"{name}, of which all positions are kept, is read by several ops")
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
        return self.step.of.origin(node.node)

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
        nodes = (n for n in inference_nodes(self.outlined.base.graph) if isinstance(n, OpNode) and n.op.makes_mask)
        return [n for n in nodes if any(has(d, self.step.of.time) for d in n.outputs[0].shape)]

    @cached_property
    def limits(self) -> list[tuple[str, Num | None]]:
        return [self.limit_of(n.options["mask"]) for n in self.masks]

    @cached_property
    def biased(self) -> bool:
        """Whether a bias is added to the scores of attention."""
        nodes = inference_nodes(self.outlined.base.graph)
        return bool(self.pairs) or any(isinstance(n, OpNode) and n.op.adds_mask for n in nodes)

    # --- the source ---

    @property
    def encoder(self) -> Block | None:
        """What reads the source."""
        return self.outlined.base.before

    @cached_property
    def padding(self) -> Value | None:
        """The input that tells the padding of the source."""
        paddings = (v for _, v in self.outlined.model.inputs if v.dtype == "padding")
        return next((v for v in paddings if not has(v.shape[1], self.step.of.time)), None)

    def _pairs(self) -> Iterator[Unrolled]:
        """Note the `pairs`, and yield what became of each call."""
        of = self.step.of
        (model,) = (calls[0] for call, calls in self.step.root.calls.items() if call.name == BASE)
        makers = {v: n for n in model.block.graph.nodes for v in node_outputs(n)}
        for call, (inside, *others) in model.calls.items():
            timed = [v for v in call.inputs if v is not None and any(map(of.has, v.shape))]
            made = [n for v in timed if isinstance(n := makers.get(v), OpNode) and n.op.at_positions(n)]
            positional = all(model.values[v] in self.step.positional for v in call.outputs)
            table = positional and all(sum(map(of.has, v.shape)) == 2 for v in call.outputs)
            if table and timed and len(made) == len(timed) and not others:
                forms = [any(has(d, of.all) for d in v.shape) if v in timed else None for v in call.inputs]
                self.pairs[of.origin(call)] = forms
                yield inside

    @cached_property
    def positions(self) -> set[OpNode]:
        """What makes positions for `pairs` alone."""
        graph = self.outlined.base.graph
        read = {v for n in self.pairs for v in n.inputs}
        makers = (n for n in graph.nodes if isinstance(n, OpNode) and n.op.at_positions(n) and n.outputs[0] in read)
        others = {v for n in graph.nodes if n not in self.pairs for v in reads(n)}
        return {n for n in makers if others.isdisjoint(n.outputs)}

    def _crossing(self) -> dict[OpNode, list[Node]]:
        """Attention to the source, and the nodes of its block that make its keys and values."""
        once = {*self.step.before.outputs}
        flats = [
            n for n in self.step.step.nodes if isinstance(n, FlatOp) and _is_hosted(n.node) and n.tensor(0).rank == 4
        ]
        to_source = {self._whole(n) for n in flats if all(n.inputs[i] in once for i in n.node.op.cached_inputs(n.node))}
        found: dict[OpNode, list[Node]] = {}
        for block in blocks_below(self.outlined.base.graph):
            for node in block.graph.nodes:
                if isinstance(node, OpNode) and node in to_source and (makers := _makers(node, block.graph)):
                    found[node] = makers
        return found

    def _have_places(self) -> bool:
        """Whether the cache has places for keys and values of the source: it has one for each of the target's, and
        keeps the last positions alone where the target's are limited."""
        if any(rule for rule, _ in self.limits):
            return False
        base = self.outlined.base
        for block in {base, *blocks_below(base.graph)}:
            counts = [(self.layers_of(n), self.layers_of(n, True)) for n in every_node(block.graph)]
            alone = block is not base and not any(own for own, source in counts if source)
            if not alone and any(source > own for own, source in counts):
                return False
        return True

    # --- what blocks are ---

    @cached_property
    def inputs(self) -> list[tuple[str, Value]]:
        """The model's inputs of tokens, by name: the source's, if there is one, and those that it continues."""
        return [(n, v) for n, v in self.outlined.model.inputs if v.dtype != "padding"]

    @cached_property
    def tokens(self) -> Value:
        """The input of the tokens that the model continues."""
        return next(v for _, v in self.inputs if any(has(d, self.step.of.time) for d in v.shape))

    def layers(self, block: Block, source: bool = False) -> int:
        """How many layers of the cache a block and what it calls have; of that of the `source`."""
        key = block, source
        if key not in self._layers:
            self._layers[key] = sum(self.layers_of(n, source) for n in block.graph.nodes)
        return self._layers[key]

    def layers_of(self, node: Node, source: bool = False) -> int:
        """The same of a node."""
        if isinstance(node, CallNode):
            return self.layers(node.block, source)
        if isinstance(node, LoopNode):
            inside = [sum(self.layers_of(n, source) for n in g.nodes) for g in node.bodies]
            return sum(inside[i] for i in node.iterations)
        if isinstance(node, CondNode):
            return sum(self.layers_of(n, source) for n in node.otherwise.nodes)
        return int(node in (self.crossing if source else self.kept))

    def is_numbered(self, block: Block) -> bool:
        """Whether the class of a block is given the cache, and the index of its first layer there."""
        return bool(self.layers(block) or self.layers(block, True))

    @cached_property
    def _layers(self) -> dict[tuple[Block, bool], int]:
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


def _makers(node: OpNode, graph: Graph) -> list[Node]:
    """The nodes of a graph that make the keys and values of attention, and nothing else; none where these come from
    elsewhere."""
    kept = {node.tensor(i) for i in node.op.cached_inputs(node)}
    needed, found = {*kept}, list[Node]((node,))
    for n in reversed(graph.nodes):
        made = {*node_outputs(n)}
        others = (m for m in graph.nodes if m not in found and not made.isdisjoint(reads(m)))
        if made & needed and made.isdisjoint(graph.outputs) and next(others, None) is None:
            needed.update(reads(n))
            found.append(n)
    makers = [n for n in graph.nodes if n in found[1:]]
    return makers if kept <= {v for n in makers for v in node_outputs(n)} else []
