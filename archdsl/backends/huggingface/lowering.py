"""Blocks as modules of transformers: attention by the kernel that the user chooses, its keys and values in the cache of
the library, positions and masks as it counts and makes them.

A block is lowered as it is for a step of decoding: its sequence is the new positions, and a cache may hold those before
them.  Blocks that lead to attention take the cache and hand on keyword arguments that are none of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from archdsl.backends.huggingface.decoder import Decoder
from archdsl.backends.huggingface.lists import INDEXED, Index, IndexedList, added, size
from archdsl.backends.torch.classes import Classes, ClassGroup
from archdsl.backends.torch.lower import (
    Kind,
    Lowered,
    Lowering,
    MadeModule,
    Make,
    Method,
    Modules,
    Parameter,
    context_kind,
    method_name,
)
from archdsl.backends.torch.program import Bind, Conditional, Do, Put, Suite
from archdsl.backends.torch.scope import TorchNodeScope
from archdsl.backends.torch.tree import Made, Part, PyNode, Read, Variable, call_tree, lift, py, word
from archdsl.ir.dims import Expr, Lit, Num, binary
from archdsl.ir.graph import Block, CallNode, CheckNode, Graph, LoopNode, LossNode, OpNode, Value, node_outputs
from archdsl.ir.graph import Node as IrNode
from archdsl.ir.op import Tree
from archdsl.passes.forms import has

MASKS = {
    "": "create_causal_mask",
    "window": "create_sliding_window_causal_mask",
    "chunked": "create_chunked_causal_mask",
}
"""What makes a mask that is causal, by the rule that limits it further."""
TABLE = "`{}` makes a table of all positions, in a way that has no decode step"
LAYER_TYPES = {"": "full_attention", "window": "sliding_attention", "chunked": "chunked_attention"}
"""What transformers calls layers by that rule."""


SERVED = {"OffsetRMSNorm": "ZeroCenteredRMSNorm"}
"""Helpers that servers would take for something else, and what stands for them."""


class LibraryScope(TorchNodeScope):
    """The TorchScope of a node in a module of transformers."""

    in_steps = True
    lowering: LibraryLowering

    def py(self, template: str, /, **holes: Any) -> Tree:
        for name, served in SERVED.items():
            template = re.sub(rf"\b{name}\b", served, template)
        return super().py(template, **holes)

    def positions(self, length: Num, offset: Num | None = None) -> Tree:
        lowering = self.lowering
        middle = lowering.decoder.tables.get(self.node)
        if middle is None or lowering.prelude is None:
            raise lowering.refuse(TABLE.format(self.node.op.name))
        found: Tree = Read(lowering.prelude.position_ids)
        if middle:
            found = py(f"{{x}}[:{', None' * middle}]", x=found)
        return lowering.positions(found if offset is None else self.py("{x} + {offset}", x=found, offset=offset))

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[Tree, Tree] | None:
        lowering, time = self.lowering, self.lowering.decoder.step.of.time
        if not has(queries, time) and not has(keys, time):
            return None
        if lowering.prelude is None or lowering.prelude.mask is None or queries.value != keys.value:
            raise lowering.refuse(f"`{self.node.op.name}` compares {queries} queries with {keys} keys")
        return lowering.prelude.pairs(lowering)

    def mask(self, i: int) -> tuple[str, Tree | None]:
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        return ("tensor", self.input(i)) if isinstance(value, Value) else ("", None)


class PairScope(LibraryScope):
    """The TorchScope of a node that makes something of one side of all pairs of positions."""

    def __init__(self, lowering: LibraryLowering, node: OpNode, side: Tree) -> None:
        super().__init__(lowering, node)
        self.side = side

    def positions(self, length: Num, offset: Num | None = None) -> Tree:
        return self.side if offset is None else self.py("{x} + {offset}", x=self.side, offset=offset)


class LibraryModules(Modules):
    """The modules of one block. Those that lead to attention know the index of their first layer in the cache."""

    lowering: LibraryLowering

    def __init__(self, lowering: LibraryLowering) -> None:
        super().__init__(lowering)
        first = Index() if lowering.is_base else Index(word("layer_idx"))
        self.following = {False: first, True: first}
        """The index of the layer that is made next; under True, of those that attend to the source alone."""

    def places(self, block: Block) -> tuple[bool, int]:
        """Whether a block attends to the source alone, and how many layers of that cache it has."""
        own = self.lowering.decoder.layers(block)
        return (False, own) if own else (True, self.lowering.decoder.layers(block, True))

    def add(self, name: str, constructor: Tree, *, raw: bool = False, buffer: bool = False) -> Part:
        lowering = self.lowering
        source, count = self.places(constructor.site.block) if isinstance(constructor, Made) else (False, 0)
        if self.recording is not None or not count or name in self.names:
            return super().add(name, constructor, raw=raw, buffer=buffer)
        index = self.following[source]
        self.following[source] = index.plus(Lit(str(count)))
        indexed = PyNode(INDEXED, (constructor, index.tree(lowering.numbers.expression)))
        return super().add(name, indexed, raw=raw, buffer=buffer)

    def _list(self, node: LoopNode, made: Sequence[Sequence[MadeModule]]) -> Tree:
        makers = [each[0].constructor for each in made if len(each) == 1]
        blocks = [m.site.block for m in makers if isinstance(m, Made)]
        places = [self.places(b) for b in blocks]
        layers, sources = [n for _, n in places], {source for source, n in places if n}
        if not sources:
            return super()._list(node, made)
        if len(makers) != len(made) or not all(layers) or len(sources) > 1 or self.lowering.loops > 1:
            raise self.lowering.refuse("layers with attention and layers without it stand in one loop")
        (source,) = sources
        writer = IndexedList(makers, layers, self.lowering.numbers.expression)
        start = self.following[source]
        total: Expr = Lit(str(sum(layers[i] for i in node.iterations)))
        if node.pattern is not None:
            total = size(node.pattern, layers)
        self.following[source] = Index(start.local, added(start.offset, total))
        return writer.written(node.pattern, node.iterations, start)


class LibraryLowering(Lowering):
    """Lowers one block as a module of transformers."""

    modules: LibraryModules

    def __init__(
        self,
        decoder: Decoder,
        classes: Classes,
        block: Block,
        kinds: Sequence[Kind] | None,
        inside: Modules | None = None,
    ) -> None:
        super().__init__(classes, block, ["tensor"] * len(block.contexts), inside)
        self.decoder = decoder
        self.is_base = block is decoder.outlined.base
        self.modules = LibraryModules(self)
        self.lowered.modules = self.modules
        self.states = Variable("past_key_values", state=True)
        self.rest = Variable("kwargs")
        self.prelude: Prelude | None = None
        self.attended: dict[Value, Tree] = {}
        """Results of attention as the kernel gives them, [batch, time, heads, value_dim]."""
        self.offset = 0
        """How many uses of attention there were in the block itself."""
        self.of_source = 0
        """How many of attention to the source."""
        self.postponed = {n for uses in decoder.crossing.values() for n in uses}
        """What makes keys and values of the source, where they are not in the cache yet."""
        self.loops = 0

    def refuse(self, why: str) -> Exception:
        return self.decoder.refuse(why)

    def any_tensor(self) -> Tree:
        known = self.prelude.x if self.prelude is not None else None
        return super().any_tensor() if known is None else Read(known)

    # --- parameters ---

    def parameters(self) -> None:
        if self.block is self.decoder.outlined.model.block or self.is_base:
            self.prelude = (Prelude if self.is_base else HeadPrelude)(self)
            self.lowered.method.parameters += self.prelude.parameters
            self.prelude.begin(self)
            return
        super().parameters()
        found = self.lowered.method.parameters
        sources = {c.value: c.source for c in self.block.contexts}
        for i, p in enumerate(found):
            source = sources.get(p.target) if isinstance(p.target, Value) else None
            if isinstance(source, OpNode) and (source.op.makes_mask or source.op.adds_mask):
                found[i] = p._replace(type="Any")
        if self.decoder.is_numbered(self.block):
            found.append(Parameter(self.states, "Cache | None"))
            found.append(Parameter(self.rest, "Any", rest=True))

    def first_part(self, block: Block) -> Lowering:
        if not self.is_base:
            return super().first_part(block)
        first = EncoderLowering(self.decoder, self.classes, block, self.modules)
        first.lowered.method.name = encode_name(self.block)
        return first

    def run(self) -> Lowered:
        lowered = super().run()
        if self.prelude is not None:
            self.prelude.end(self)
        return lowered

    # --- nodes ---

    def node(self, node: IrNode, graph: Graph) -> None:
        if isinstance(node, CheckNode) and (node.op != "<=" or not has(node.left, self.decoder.step.of.time)):
            raise self.refuse(f"it has a condition on the length of a sequence: {node.message}")
        if _is_left_out(node, self.decoder) or node in self.postponed or node in self.decoder.positions:
            return
        if isinstance(node, OpNode) and self.decoder.tables.get(node, 0) is None:
            raise self.refuse(TABLE.format(node.op.name))
        super().node(node, graph)

    def scope(self, node: OpNode) -> TorchNodeScope:
        return LibraryScope(self, node)

    def op(self, node: OpNode, graph: Graph) -> None:
        if self.prelude is not None and self.prelude.takes(self, node, graph):
            return
        if node.op.adds_mask:
            self.put(Bind((node.outputs[0],), self.scope(node).py("masked_bias({0}, {1})"), nested=False))
        elif node in self.decoder.kept:
            self.attention(node, graph)
        elif node in self.decoder.crossing:
            self.to_source(node, graph)
            super().op(node, graph)
        elif self.merges(node):
            x = next(v for v in self.block.graph.inputs if v.rank == node.outputs[0].rank)
            y = self.attended[next(v for v in node.inputs if isinstance(v, Value))]
            self.result(node.outputs[0], py("{y}.reshape(*{x}.shape[:-1], -1)", y=y, x=Read(x)), graph, node)
        else:
            super().op(node, graph)

    def merges(self, node: OpNode) -> bool:
        """Whether a node puts the heads of what attention gives side by side."""
        first = node.inputs[0] if node.inputs else None
        if not isinstance(first, Value) or first not in self.attended:
            return False
        found = node.op.regroups(node)
        side_by_side = (((0, 0),), ((2, 0),), ((1, 0), (3, 0)))
        return found is not None and found.axes == side_by_side and node.outputs[0].rank == 3

    def attention(self, node: OpNode, graph: Graph) -> None:
        """Put new keys and values into the cache, and attend to all by the kernel that is chosen."""
        scope = self.scope(node)
        self.note_hints(node)
        bias = isinstance(node.inputs[4], Value) if len(node.inputs) > 4 else False
        mask = scope.input(4) if bias else scope.mask(3)[1]
        kept = [node.inputs[i] for i in sorted(node.op.cached_inputs(node))]
        values = [v for v in kept if isinstance(v, Value)]
        if mask is None or self.is_base:
            raise self.refuse(f"`{node.op.name}` stands outside of a block, or has no mask")
        index = _place(self.offset)
        self.offset += 1
        hints = self.lowered.method.hints
        roles = [role for _, (_, role) in sorted(node.op.cached_inputs(node).items())]
        found = tuple(Variable(v.name or hints.get(v) or role) for v, role in zip(values, roles, strict=True))
        cache = Read(self.states)
        self.named(node.tensor(0))
        own = cache if self.decoder.encoder is None else py("{c}.self_attention_cache", c=cache)
        update = py("{c}.update({*xs}, {i})", c=own, xs=[self.read(v) for v in values], i=index)
        new = tuple(replace(v) for v in values)
        then = Suite((), (Bind(new, update),), tuple(map(Read, new)))
        otherwise = Suite((), (), tuple(self.read(v) for v in values))
        for value, variable in zip(new, found, strict=True):
            hints[value] = variable.hint
        self.put(Conditional(py("{c} is not None", c=cache), then, otherwise, found))
        here = replace(node, inputs=tuple(self.cached(v, values, found) for v in node.inputs))
        scope = LibraryScope(self, here)
        given: dict[Any, Tree] = {"scaling": py("self.scaling")}
        tree = here.op.torch_hosted(here, scope, mask, given)
        if tree is None:
            raise self.refuse(f"`{node.op.name}` is attention without an axis of heads")
        assert isinstance(tree, PyNode)
        tree = PyNode("Call", (*tree.fields[:2], (*tree.fields[2], PyNode("keyword", (None, Read(self.rest))))))
        y = Variable(node.outputs[0].name or "y")
        self.put(Bind((y, Variable("weights")), tree, nested=False))
        self.attended[node.outputs[0]] = Read(y)
        self.aliases[node.outputs[0]] = py("{y}.transpose(1, 2)", y=Read(y))
        heads, groups = (node.inputs[i].shape[1] for i in (0, 1))  # type: ignore[union-attr]
        settings = {"scaling": here.op.torch_scaling(here, scope)}
        if heads.expr != groups.expr:
            settings["num_key_value_groups"] = self.numbers.short(binary("/", heads, groups))
        made = [Make(name, tree) for name, tree in settings.items()]
        if self.offset == 1:
            self.lowered.init[:0] = made
        elif any(step not in self.lowered.init for step in made):
            raise self.refuse("a block of it attends in two ways, of different scale")

    def to_source(self, node: OpNode, graph: Graph) -> None:
        """Make the keys and values of the source, or take those that the cache has."""
        makers = self.decoder.crossing[node]
        index = _place(self.of_source)
        self.of_source += 1
        self.postponed.difference_update(makers)
        values = [node.tensor(i) for i in sorted(node.op.cached_inputs(node))]
        hints = self.lowered.method.hints
        for value, (_, (_, role)) in zip(values, sorted(node.op.cached_inputs(node).items()), strict=True):
            hints.setdefault(value, value.name or role)
        cache, new = Read(self.states), tuple(replace(v) for v in values)
        found, first = (tuple(Variable(hints[v]) for v in values) for _ in range(2))
        places = py("{c}.cross_attention_cache", c=cache)
        update = py("{places}.update({*xs}, {i})", places=places, xs=[Read(v) for v in values], i=index)
        note = Put(py("{c}.is_updated[{i}]", c=cache, i=index), lift(True))
        then = Suite((), (Bind(new, update), note), tuple(map(Read, new)))
        otherwise = Suite((), (), tuple(map(Read, values)))
        for value, variable in zip(new, found, strict=True):
            hints[value] = variable.hint
        keep = Conditional(py("{c} is not None", c=cache), then, otherwise, first)
        made = self.within(Graph((), tuple(makers), tuple(values)), (), values)
        make = Suite((), (*made.steps, keep), tuple(map(Read, first)))
        known = [py(f"{{places}}.layers[{{i}}].{name}", places=places, i=index) for name in ("keys", "values")]
        test = py("{c} is not None and {c}.is_updated.get({i})", c=cache, i=index)
        self.put(Conditional(test, Suite((), (), tuple(known)), make, found))
        self.aliases.update(zip(values, map(Read, found), strict=True))

    def cached(self, value: Any, values: Sequence[Value], found: Sequence[Variable]) -> Any:
        """An input of attention as it is with what was kept."""
        if not isinstance(value, Value) or value not in values:
            return value
        everything = replace(value)
        self.aliases[everything] = Read(found[values.index(value)])
        return everything

    # --- calls ---

    def loop(self, node: LoopNode) -> None:
        self.loops += 1
        super().loop(node)
        self.loops -= 1

    def call(self, node: CallNode, graph: Graph) -> None:
        if self.prelude is not None and self.prelude.calls(self, node):
            return
        if node.instance is not None and self.decoder.is_numbered(node.block):
            raise self.refuse(
                f"`{node.block.name}` is one layer that is used several times: it has one place in the cache"
            )
        super().call(node, graph)

    def arguments(self, node: CallNode, group: ClassGroup) -> tuple[list[Tree], dict[str, Tree]]:
        args, keywords = super().arguments(node, group)
        forms = self.decoder.pairs.get(node, [])
        given = [i for i, value in enumerate(node.inputs) if value is not None]
        for k, i in enumerate(given):
            if forms and (of_all := forms[i]) is not None:
                assert self.prelude is not None
                query, key = self.prelude.pairs(self)
                side = key if of_all else py("{query}[:, 0]", query=query)
                maker = next(n for n in self.block.graph.nodes if node.inputs[i] in node_outputs(n))
                assert isinstance(maker, OpNode)
                tree = maker.op.torch(maker, PairScope(self, maker, side))
                assert isinstance(tree, Tree)
                args[k] = tree
        return args, keywords

    def called(self, node: CallNode, module: Tree, args: list[Tree], keywords: dict[str, Tree]) -> Tree:
        if not self.decoder.is_numbered(node.block):
            return super().called(node, module, args, keywords)
        rest: dict[Any, Tree] = {None: Read(self.rest)}
        if self.is_base:  # by the name at which a layer finds the cache, and leaves it out where it is recomputed
            return call_tree(module, args, {**keywords, "past_key_values": Read(self.states), **rest})
        return call_tree(module, [*args, Read(self.states)], {**keywords, **rest})

    def kind_of(self, node: CallNode, group: ClassGroup, i: int) -> Kind:
        return "tensor"


class EncoderLowering(Lowering):
    """Lowers a block of an encoder, or that part of the model, as in a plain file."""

    def __init__(self, decoder: Decoder, classes: Classes, block: Block, inside: Modules | None = None) -> None:
        super().__init__(classes, block, [context_kind(c) for c in block.contexts], inside)
        self.decoder = decoder

    def parameters(self) -> None:
        if self.block is not self.decoder.encoder:
            super().parameters()
            return
        method, padding = self.lowered.method, self.decoder.padding
        source = next(v for v in self.block.graph.inputs if v is not padding)
        method.hints[source] = "input_ids"
        method.parameters.append(Parameter(source, "Tensor"))
        mask = Variable("attention_mask")
        method.parameters.append(Parameter(mask, "Tensor | None", "None"))
        if padding is None:
            self.note_helper("demand_no_padding")
            self.put(Do(py("demand_no_padding({mask})", mask=Read(mask))))
        elif padding in self.block.graph.inputs:
            all_real = py("torch.ones_like({x}, dtype=torch.bool)", x=Read(source))
            self.put(real_tokens(padding, mask, all_real))

    def node(self, node: IrNode, graph: Graph) -> None:
        if not _is_left_out(node, self.decoder):
            super().node(node, graph)

    def kind_of(self, node: CallNode, group: ClassGroup, i: int) -> Kind:
        return context_kind(node.block.contexts[i])


def _is_left_out(node: IrNode, decoder: Decoder) -> bool:
    """Whether transformers has no use for a node: it bounds lengths by the Config."""
    if isinstance(node, LossNode):
        raise decoder.refuse(f"it has a loss of its own, `{node.name}`")
    return isinstance(node, CheckNode) and node.op == "<="


def _place(before: int) -> Tree:
    """The place in the cache of a use of attention, of a block that has so many before it."""
    return py("self.layer_idx + {n}", n=before) if before else py("self.layer_idx")


def encode_name(block: Block) -> str:
    """Return the name of the method that computes the encoder's result."""
    return method_name(block, "encode", "encode_source")


def real_tokens(padding: Value, mask: Variable, all_real: Tree) -> Conditional:
    """The statement that makes a padding of a mask, which may not be given."""
    given = Suite((), (), (py("{mask}.bool()", mask=Read(mask)),))
    return Conditional(py("{mask} is None", mask=Read(mask)), Suite((), (), (all_real,)), given, (padding,))


class Prelude:
    """How the `forward` of the model without its head begins: embeddings, positions and masks, as the library hands or
    makes them."""

    def __init__(self, lowering: LibraryLowering) -> None:
        self.tokens = lowering.decoder.tokens
        self.encodes = lowering.decoder.encoder is not None
        of = "decoder_" * self.encodes
        self.attention_mask, self.given_positions = Variable(f"{of}attention_mask"), Variable(f"{of}position_ids")
        self.given_cache, self.embeds = Variable("past_key_values", state=True), Variable(f"{of}inputs_embeds")
        self.use_cache = Variable("use_cache")
        self.position_ids = Variable("position_ids")
        self.past = Variable("past")
        self.mask: Tree | None = None
        self.query: tuple[Tree, Tree] | None = None
        self.x: Value | None = None
        self.source, self.source_mask = Variable("input_ids"), Variable("attention_mask")
        self.encoded = Variable("encoder_outputs")
        lowering.lowered.method.hints[self.tokens] = f"{of}input_ids"
        optional = "Tensor | None", "None"
        self.parameters = [
            *[Parameter(v, *optional) for v in (self.source, self.source_mask) if self.encodes],
            Parameter(self.tokens, *optional),
            Parameter(self.attention_mask, *optional),
            Parameter(self.given_positions, *optional),
            *[Parameter(self.encoded, "Any", "None")] * self.encodes,
            Parameter(self.given_cache, "Cache | None", "None"),
            Parameter(self.embeds, *optional),
            *self.further(),
            Parameter(self.use_cache, "bool | None", "None"),
            *self.last(),
            Parameter(lowering.rest, "Any", rest=True),
        ]
        self.describe(lowering.lowered.method)

    def begin(self, lowering: LibraryLowering) -> None:
        """Take the result of the encoder, or compute it."""
        if not self.encodes:
            return
        memory, padding = lowering.block.graph.inputs[-1], lowering.decoder.padding
        encode = PyNode("Attribute", (word("self"), encode_name(lowering.block)))
        call = call_tree(encode, [Read(self.source), Read(self.source_mask)])
        given = Read(self.encoded)
        result = py("{call} if {given} is None else {given}[0]", call=call, given=given)
        lowering.put(Bind((memory,), result, nested=False))
        if padding in lowering.block.graph.inputs:
            all_real = py("{x}.new_ones({x}.shape[:2], dtype=torch.bool)", x=Read(memory))
            lowering.put(real_tokens(padding, self.source_mask, all_real))

    def further(self) -> list[Parameter]:
        return []

    def last(self) -> list[Parameter]:
        return []

    def describe(self, method: Method) -> None:
        method.gives = "Seq2SeqModelOutput" if self.encodes else "BaseModelOutputWithPast"
        method.decorators = ("merge_with_config_defaults", "capture_outputs")
        method.doc = "Compute hidden states [batch, time, width] for input_ids [batch, time] or inputs_embeds."
        if self.encodes:
            method.doc = "Compute hidden states [batch, time, width] for decoder_input_ids [batch, time] and a source."

    def takes(self, lowering: LibraryLowering, node: OpNode, graph: Graph) -> bool:
        """Whether a node is written by the prelude: the embedding of the tokens, a mask."""
        if self.tokens in node.inputs:
            self.embed(lowering, node)
            return True
        if node in lowering.decoder.masks:
            return True
        if self.x is None:
            raise lowering.refuse(f"`{node.op.name}` comes before the embedding of the tokens")
        return False

    def calls(self, lowering: LibraryLowering, node: CallNode) -> bool:
        if self.tokens in node.inputs or self.x is None:
            raise lowering.refuse("its tokens are not looked up by an embedding of its own")
        return False

    def embed(self, lowering: LibraryLowering, node: OpNode) -> None:
        rows = node.op.table(node) is not None and node.outputs[0].rank == 3
        if self.x is not None or not rows or node.outputs[0].shape[0].value != self.tokens.shape[0].value:
            raise lowering.refuse("its tokens are read by more than their embedding")
        (self.x,) = node.outputs
        made = node.op.torch(node, lowering.scope(node))
        given = Read(self.embeds)
        embedded = py("{made} if {given} is None else {given}", made=made, given=given)
        lowering.put(Bind((self.x,), embedded, nested=False, note="[batch, time, width]"))
        x, cache, after = Read(self.x), Read(self.given_cache), Variable("past_key_values", state=True)
        made = py("DynamicCache(config=self.config)")
        if self.encodes:
            made = py("EncoderDecoderCache({made}, {made})", made=made)
        new = Suite((), (), (made,))
        wanted = py("{use} and {c} is None", use=Read(self.use_cache), c=cache)
        lowering.put(Conditional(wanted, new, Suite((), (), (cache,)), (after,)))
        lowering.states = after
        own: Tree = Read(after)
        if self.encodes:
            one = Variable("cache")
            lowering.put(Bind((one,), py("None if {c} is None else {c}.self_attention_cache", c=own), nested=False))
            own = Read(one)
        self.positions(lowering, x, own)
        self.masks(lowering, x, own)

    def positions(self, lowering: LibraryLowering, x: Tree, cache: Tree) -> None:
        before = py("0 if {c} is None else {c}.get_seq_length()", c=cache)
        first = Bind((self.past,), before, nested=False)
        given = Read(self.given_positions)
        counted = py("torch.arange({x}.size(1), device={x}.device)[None] + {past}", x=x, past=Read(self.past))
        compares = lowering.decoder.biased
        if compares:
            lowering.put(first)
        then = Suite((), () if compares else (first,), (counted,))
        lowering.put(Conditional(py("{p} is None", p=given), then, Suite((), (), (given,)), (self.position_ids,)))

    def masks(self, lowering: LibraryLowering, x: Tree, cache: Tree) -> None:
        """Make the masks of all kinds of layers, which `generate` may have made already."""
        made: dict[str, Bind] = {}
        given = Read(self.attention_mask)
        more = {"allow_is_causal_skip": False} if lowering.decoder.biased else {}
        for node, (rule, _) in zip(lowering.decoder.masks, lowering.decoder.limits, strict=True):
            (value,) = node.outputs
            if rule in made:
                lowering.aliases[value] = Read(made[rule].targets[0])
                continue
            call = (
                f"{MASKS[rule]}(config=self.config, inputs_embeds={{x}}, attention_mask={{mask}}, "
                "past_key_values={c}, position_ids={p}, {**more})"
            )
            tree = py(call, x=x, c=cache, mask=given, p=Read(self.position_ids), more=more)
            made[rule] = Bind((value,), tree, nested=False)
        self.mask = Read(next(iter(made.values())).targets[0]) if made else None
        if len(made) < 2:
            lowering.steps += made.values()
            return
        inner = {rule: replace(value) for rule, bind in made.items() for value in bind.targets}
        ready = Suite((), (), tuple(py("{masks}[{kind}]", masks=given, kind=LAYER_TYPES[rule]) for rule in made))
        steps = tuple(Bind((inner[rule],), bind.expr, nested=False) for rule, bind in made.items())
        now = Suite((), steps, tuple(map(Read, inner.values())))
        outputs = tuple(bind.targets[0] for bind in made.values())
        test = py("isinstance({masks}, dict)", masks=given)
        lowering.put(Conditional(test, ready, now, outputs, "`generate` has made them"))

    def pairs(self, lowering: LibraryLowering) -> tuple[Tree, Tree]:
        """The positions of queries [time, 1] and of keys [past + time] in the cache."""
        if self.query is None:
            assert self.x is not None
            x = Read(self.x)
            counted = py("torch.arange({x}.size(1), device={x}.device)[:, None] + {past}", x=x, past=Read(self.past))
            key = py("torch.arange({mask}.size(-1), device={x}.device)", mask=self.mask, x=x)
            self.query = lowering.shared("query", counted), lowering.shared("key", key)
        return self.query

    def end(self, lowering: LibraryLowering) -> None:
        method = lowering.lowered.method
        known: dict[str | None, Tree] = {"last_hidden_state": method.results[0]}
        known["past_key_values"] = Read(lowering.states)
        memory = lowering.block.graph.inputs[-1:] if self.encodes else ()
        if memory:
            known["encoder_last_hidden_state"] = Read(memory[0])
        method.results = (call_tree(word(method.gives), [], known),)
        assert self.x is not None
        method.block = replace(lowering.block, graph=Graph((self.x, *memory), (), ()), before=None)


class HeadPrelude(Prelude):
    """How the `forward` of the model with its head begins: the model without it makes the hidden states."""

    def further(self) -> list[Parameter]:
        self.labels = Variable("labels")
        return [Parameter(self.labels, "Tensor | None", "None")]

    def last(self) -> list[Parameter]:
        self.keep, self.out = Variable("logits_to_keep"), Variable("out")
        return [Parameter(self.keep, "int | Tensor", "0")]

    def describe(self, method: Method) -> None:
        method.gives = "Seq2SeqLMOutput" if self.encodes else "CausalLMOutputWithPast"
        method.decorators = ("can_return_tuple",)
        method.doc = "Compute logits [batch, time, vocab], and with labels [batch, time] their mean loss (-100: none)."

    def begin(self, lowering: LibraryLowering) -> None:
        self.ids: Any = self.tokens
        if not self.encodes:
            return
        self.ids = Variable("decoder_input_ids")
        given, labels = Read(self.tokens), Read(self.labels)
        shifted = py("self.prepare_decoder_input_ids_from_labels({y})", y=labels)
        test = py("{y} is not None and {x} is None", y=labels, x=given)
        then, otherwise = Suite((), (), (shifted,)), Suite((), (), (given,))
        lowering.put(Conditional(test, then, otherwise, (self.ids,)))

    def takes(self, lowering: LibraryLowering, node: OpNode, graph: Graph) -> bool:
        return False

    def calls(self, lowering: LibraryLowering, node: CallNode) -> bool:
        if node.step is not None:
            return True  # the model encodes, where it is not given what that gave
        if node.block is not lowering.decoder.outlined.base:
            return False
        made = lowering.modules.made(node.block, node.bind, node.alias)
        module = Modules.add(lowering.modules, node.name, made)
        source = (self.source, self.source_mask, self.encoded) if self.encodes else ()
        own = (self.attention_mask, self.given_positions, self.given_cache, self.embeds, self.use_cache)
        given: dict[str | None, Tree] = {v.hint: Read(v) for v in source[:2]}
        given |= {"decoder_input_ids" if self.encodes else "input_ids": Read(self.ids)}
        given |= {v.hint: Read(v) for v in (*own, *source[2:])}
        given[None] = Read(lowering.rest)
        lowering.put(Bind((self.out,), call_tree(module, [], given), nested=False))
        kept = Variable("keep")
        keep = Read(self.keep)
        lowering.put(Bind((kept,), py("slice(-{n}, None) if isinstance({n}, int) else {n}", n=keep), nested=False))
        hidden = py("{out}.last_hidden_state[:, {keep}]", out=Read(self.out), keep=Read(kept))
        lowering.put(Bind((node.outputs[0],), hidden))
        return True

    def end(self, lowering: LibraryLowering) -> None:
        method = lowering.lowered.method
        logits, loss = Variable("logits"), Variable("loss")
        vocab = lowering.numbers.short(lowering.decoder.outlined.head.outputs[0].shape[-1])
        named: dict[str | None, Tree] = {"vocab_size": vocab, None: Read(lowering.rest)}
        labels: list[Tree] = [Read(self.labels)]
        if self.encodes:  # which says the same of each position, and not of the next
            labels, named = [lift(None)], {"vocab_size": vocab, "shift_labels": Read(self.labels), None: named[None]}
        call = call_tree(py("self.loss_function"), [Read(logits), *labels], named)
        test = py("None if {y} is None else {call}", y=Read(self.labels), call=call)
        result = Bind((logits,), method.results[0], nested=False)
        method.steps = (*method.steps, result, Bind((loss,), test, nested=False))
        own: dict[str | None, Tree] = {"loss": Read(loss), "logits": Read(logits)}
        names = ("past_key_values", "encoder_last_hidden_state" if self.encodes else "hidden_states")
        handed = {name: py(f"{{out}}.{name}", out=Read(self.out)) for name in names}
        if self.encodes:
            handed["decoder_hidden_states"] = py('getattr({out}, "hidden_states", None)', out=Read(self.out))
        method.results = (call_tree(word(method.gives), [], {**own, **handed}),)
