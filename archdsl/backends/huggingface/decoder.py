"""What transformers must hold of a decoder: the keys and values of its attention, its masks and kernels, its head.

All of it is read off the IR: the step of decoding says what is kept, the masks by which rule, and the message of a
refusal which op is to blame."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from archdsl.backends.torch.features.decode_schedule import Assigner, Roles, nodes_within
from archdsl.diagnostics import ArchError
from archdsl.ir.closure import instantiated_names
from archdsl.ir.dims import Expr, Num, substitute
from archdsl.ir.graph import Block, CallNode, LoopNode, Model, OpNode, Value
from archdsl.ir.masks import Mask, limited_causal, without_padding
from archdsl.ir.op import Primitive
from archdsl.passes.decode import DecodePlan, plan
from archdsl.passes.flatten import FlatOp
from archdsl.passes.outline import outline, refuse


class Decoder:
    """One decoder, its head apart. Raises ArchError E0534 where transformers cannot hold it: the message says why."""

    def __init__(self, model: Model) -> None:
        self.original = model
        self.outlined = outline(model)
        try:
            self.plan: DecodePlan = plan(self.outlined.model, latents=False)
            self._demand_cache()
            assigner = Assigner(self.plan)
            first = assigner.root()
        except ArchError as problem:
            found = problem.diagnostics[0]
            if found.code != "E0504":
                raise
            raise self.refuse(found.message, "`--to torch` computes it without transformers") from None
        if assigner.pairs.nodes:
            raise self.refuse("it makes biases, masks or tables of positions itself, in a way that has no step there")
        self.roles = {roles.block: roles for roles in _all_roles(first)}
        self._demand_attention()

    def refuse(self, why: str, help: str = "") -> ArchError:
        return refuse(self.original, why, help)

    # --- what it must be ---

    def _demand_cache(self) -> None:
        """What is kept of positions before must be keys and values of attention."""
        for flat in self.plan.carries:
            kind = f"`{flat.node.op.name}`" if isinstance(flat, FlatOp) else "a scan"
            raise self.refuse(
                f"{kind} hands a state from each position to the next, and transformers' cache of this kind of model "
                "holds keys and values"
            )
        inputs = [(n, v) for n, v in self.plan.model.inputs if v.dtype != "padding"]
        if len(inputs) != 1 or any(v.dtype != "token" or v.rank != 2 for _, v in inputs):
            named = ", ".join(f"`{n}`" for n, _ in inputs)
            raise self.refuse(f"it takes {named}, and a causal language model takes one sequence of tokens")

    def _demand_attention(self) -> None:
        for roles in self.roles.values():
            for value in roles.kept_values:
                raise self.refuse(
                    f"`{value.name or 'a tensor'}`, of which all positions are kept, is read by several ops"
                )
        if not self.layers(self.outlined.base):
            raise self.refuse("it has no attention whose keys and values a cache could hold")
        for roles in self.roles.values():
            for node in roles.kept:
                if type(node.op).torch_hosted is Primitive.torch_hosted:
                    raise self.refuse(f"`{node.op.name}` reads all positions, and no kernel of transformers is like it")
                if len(roles.kept[node]) != len(node.op.cached_inputs(node)):
                    raise self.refuse(f"`{node.op.name}` reads keys that are kept elsewhere")
        for flat in self.plan.step.nodes:
            bias = flat.inputs[4] if isinstance(flat, FlatOp) and flat.node.op.kernels(flat.node) else None
            if isinstance(bias, Value) and bias in self.plan.forms:
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
        maker = self.plan.makers.get(value)
        while isinstance(maker, FlatOp) and maker.node.op.adds_mask and isinstance(maker.inputs[0], Value):
            maker = self.plan.makers.get(maker.inputs[0])
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
        return [n for n in nodes_within(self.outlined.base.graph) if isinstance(n, OpNode) and n.op.makes_mask]

    @cached_property
    def limits(self) -> list[tuple[str, Num | None]]:
        return [self.limit_of(n.options["mask"]) for n in self.masks]

    @cached_property
    def biased(self) -> bool:
        """Whether a bias is added to the scores of attention."""
        return any(isinstance(n, OpNode) and n.op.adds_mask for n in nodes_within(self.outlined.base.graph))

    # --- what blocks are ---

    @property
    def tokens(self) -> list[Value]:
        return self.plan.taken

    def layers(self, block: Block) -> int:
        """How many layers of the cache a block and what it calls have."""
        found = self._layers.get(block)
        if found is None:
            roles = self.roles.get(block)
            found = len(roles.kept) if roles is not None else 0
            for node in block.graph.nodes:
                found += self.layers_of(node)
            self._layers[block] = found
        return found

    def layers_of(self, node: Any) -> int:
        """The same of a node."""
        if isinstance(node, CallNode):
            return self.layers(node.block)
        if isinstance(node, LoopNode):
            inside = [sum(map(self.layers_of, g.nodes)) for g in node.bodies]
            return sum(inside[i] for i in node.iterations)
        return 0

    @cached_property
    def _layers(self) -> dict[Block, int]:
        return {}

    @cached_property
    def mask_values(self) -> set[Value]:
        """Contexts of blocks that are masks."""
        found = set()
        for block in self.roles:
            for context in block.contexts:
                op = context.source.op if isinstance(context.source, OpNode) else None
                if op is not None and (op.makes_mask or op.adds_mask) and isinstance(context.value, Value):
                    found.add(context.value)
        return found

    @cached_property
    def attention(self) -> list[tuple[OpNode, dict[str, Expr]]]:
        """Every use of attention, with the names of its block in those of the Config."""
        return list(self._attention(self.outlined.base, {}))

    def _attention(self, block: Block, names: dict[str, Expr]) -> Iterator[tuple[OpNode, dict[str, Expr]]]:
        roles = self.roles[block]
        yield from ((n, names) for n in roles.kept)
        for node, inner in roles.callees.items():
            if self.layers(inner.block):
                bind = {k: substitute(e, names) if names else e for k, e in node.bind.items()}
                yield from self._attention(inner.block, instantiated_names(inner.block, bind))


def _all_roles(roles: Roles) -> Iterator[Roles]:
    """Roles of a block, then those of all that it calls; of a block that is called often, the first."""
    seen: set[Block] = set()
    todo = [roles]
    while todo:
        one = todo.pop(0)
        if one.block not in seen:
            seen.add(one.block)
            yield one
            todo += one.callees.values()
