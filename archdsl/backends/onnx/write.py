"""The unrolled IR, node by node, as an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx_ir as ir

from archdsl.backends.onnx.builder import CONTRIB, IR_VERSION, OPSET, Builder, Subgraph, all_nodes, subgraphs
from archdsl.backends.onnx.fuse import fuse
from archdsl.backends.onnx.heads import side_by_side
from archdsl.backends.onnx.metadata import Scopes
from archdsl.backends.onnx.moe import at_once
from archdsl.backends.onnx.names import names_of
from archdsl.backends.onnx.packed import packed
from archdsl.backends.onnx.quantize import Quantized, Quantizer, settle
from archdsl.backends.onnx.scope import OnnxNodeScope, scan
from archdsl.backends.onnx.targets import GraphOptions, target_for
from archdsl.frozen import Frozen
from archdsl.ir.command import portable
from archdsl.ir.dims import Num, Poly, Shape, Symbol, symbol, with_symbol
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import Model, Value
from archdsl.passes.dce import live
from archdsl.passes.flatten import FlatGraph, FlatNode, FlatOp, FlatParam, FlatScan, FlatWeight, flatten
from archdsl.version import __version__
from archdsl.weights.initialization import Laws, laws_of


class Written(Frozen):
    """A graph without its weights. `weights` are its initializers by path, to be given their numbers by
    `archdsl.backends.onnx.store`."""

    model: ir.Model
    weights: Mapping[str, ir.Value]
    dtype: str
    quantized: Mapping[str, Quantized] = field(default_factory=dict)
    """Matrices of few bits, by the path of the weight that each stands for."""
    by_expert: tuple[str, ...] = ()
    """Paths of experts that no operator computes at once."""


def write(model: Model, options: GraphOptions) -> Written:
    """The model as an ONNX graph for inference, batch and lengths open. Initializers are named as the weights are,
    inputs and outputs by a convention.

    Raises ArchError: E0504 where the target does not run the type or has no operator for few bits."""
    return written_by({"model": GraphWriter(model, options)})["model"]


def written_by(writers: Mapping[str, GraphWriter]) -> dict[str, Written]:
    """The graphs of a model, each by its writer. Raises ArchError E0504 where nothing in them could be quantized that
    was to be."""
    found = {name: writer.whole() for name, writer in writers.items()}
    settle([w.quantizer for w in writers.values() if w.quantizer is not None])
    return found


UNROLLED = 16
"""Up to so many experts stand in the graph one by one. More would make it large: a loop goes over them, and copies the
weights of each."""


class GraphWriter:
    """Writes one graph."""

    def __init__(self, model: Model, options: GraphOptions) -> None:
        self.model = model
        self.target = target_for(options)
        self.names = names_of(model, options.names)
        self.builder = Builder(options.dtype)
        self.values: dict[Value, ir.Value] = {}
        self.weights: dict[str, ir.Value] = {}
        self.declared: dict[ir.Value, FlatWeight] = {}
        """The weight that an initializer, or one expert's part of it, stands for."""
        self.quantizer = (
            Quantizer(options.quantize, flatten(model), options.keep, options.exact) if options.quantize else None
        )
        self.expert: list[ir.Value | int | None] = []
        """The index of the expert whose weights are read: a tensor in the body of the loop over experts, a number where
        they stand one by one; None where they are read together."""
        self.parts: dict[ir.Value, list[ir.Value]] = {}
        """Weights of few experts, each by itself."""
        self.by_expert: list[str] = []
        """Paths of experts that are written one by one or in a loop."""
        self.elided: set[Value] = set()
        """Masks that need no tensor."""
        self.in_steps = False
        """Whether the queries may be the newest of the keys."""
        self.by_row = False
        """Whether the rows of a batch stand at positions of their own."""
        self.laws: Laws | None = None

    # --- the whole graph ---

    def whole(self) -> Written:
        flat = flatten(self.model)
        inputs = [self.own_input(name, value) for name, value in self.model.inputs]
        self.graph(flat)
        outputs = self.outputs(flat.outputs)
        return self.finish(inputs, outputs)

    def finish(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> Written:
        builder = self.builder
        main = side_by_side(builder.main.nodes)
        if self.target.packs:
            main = packed(main, builder)
        nodes = [*builder.prologue.nodes, *main]
        nodes = [*_live(fuse(nodes, self.target, builder.own), outputs)]
        quantized: dict[str, Quantized] = self.quantizer.made if self.quantizer is not None else {}
        read = {id(x) for n in all_nodes(nodes) for x in n.inputs if x is not None}
        weights = {path: x for path, x in self.weights.items() if id(x) in read}
        quantized = {path: q for path, q in quantized.items() if id(q.codes) in read}
        constants = [x for x in builder.constants.values() if id(x) in read]
        initializers = [*weights.values(), *(x for q in quantized.values() for x in q.parts), *constants]
        scopes = Scopes(self.model)
        for node in all_nodes(nodes):
            scopes.annotate(node)
        imports = {"": OPSET}
        if any(n.domain == CONTRIB for n in all_nodes(nodes)):
            imports[CONTRIB] = 1
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            opset_imports=imports,
            name=self.model.name,
            doc_string=self.model.doc or None,
        )
        made = ir.Model(
            graph,
            ir_version=IR_VERSION,
            producer_name="archdsl",
            producer_version=__version__,
            metadata_props={"source": portable(self.model.source_name), "target": self.target.name},
        )
        return Written(made, weights, builder.own, quantized, tuple(self.by_expert))

    def own_input(self, name: str, value: Value) -> ir.Value:
        """An input of the model, by the name that it has in the graph."""
        dtype = "int" if self.names.is_mask(name, value) else value.dtype
        return self.input(self.names.inputs.get(name, name), value, dtype)

    def input(self, name: str, value: Value, dtype: str) -> ir.Value:
        builder = self.builder
        x = ir.Value(
            name=builder.unique(name), type=ir.TensorType(builder.type_of(dtype)), shape=self.shape(value.shape)
        )
        builder.path = name
        self.values[value] = builder.cast(x, value.dtype)
        self.note_sizes(x, value.shape)
        return x

    def note_sizes(self, x: ir.Value, shape: Shape) -> None:
        """Sizes that are read off an input."""
        for axis, d in enumerate(shape):
            if name := symbol_name(d.value):
                self.note_size(name, x, axis)

    def note_size(self, name: str, x: ir.Value, axis: int) -> None:
        builder = self.builder
        if name not in builder.main.symbols:
            with builder.before_all():
                builder.main.symbols[name] = builder.add("Shape", [x], {"start": axis, "end": axis + 1})

    def outputs(self, values: Sequence[Value]) -> list[ir.Value]:
        builder = self.builder
        builder.path = ""
        found: list[ir.Value] = []
        for value, name in zip(values, self.names.outputs, strict=True):
            x = builder.add("Identity", [self.value(value)])
            x.name = builder.unique(name)
            x.shape = self.shape(value.shape)
            found.append(x)
        return found

    def shape(self, shape: Shape) -> ir.Shape:
        """Return a shape of the graph: static sizes as numbers, others by name."""
        return ir.Shape([int(d) if d.static else str(self.renamed(d.value)) for d in shape])

    def renamed(self, size: Size) -> Size:
        """An open size in the names of the graph."""
        for old, new in self.names.sizes.items():
            size = with_symbol(size, old, symbol(new))
        return size

    # --- nodes ---

    def graph(self, flat: FlatGraph) -> None:
        for node in flat.nodes:
            self.node(node)

    def node(self, node: FlatNode) -> None:
        match node:
            case FlatOp():
                self.op(node)
            case FlatParam():
                self.values[node.output] = self.param(node)
            case FlatScan():
                self.scan(node)

    def op(self, flat: FlatOp) -> None:
        builder = self.builder
        builder.path = flat.path or flat.outputs[0].name
        node = flat.node
        for value, x in zip(
            flat.outputs, self.results(flat, node.op.onnx(node, OnnxNodeScope(self, flat))), strict=True
        ):
            if x is None:
                self.elided.add(value)
                continue
            if x.shape is None and len(builder.frames) == 1 and x.producer() is not None:
                x.shape = self.shape(value.shape)
            self.values[value] = x

    def results(self, flat: FlatOp, made: Any) -> list[Any]:
        """What a primitive made, as a list of tensors of the types foreseen; None for a mask that needs no tensor."""
        found = list(made) if isinstance(made, tuple | list) else [made]
        assert len(found) == len(flat.outputs), (flat.node.op.name, len(found))
        return [
            None if x is None else self.builder.cast(x, value.dtype)
            for value, x in zip(flat.outputs, found, strict=True)
        ]

    def value(self, value: Value) -> ir.Value:
        return self.values[value]

    def operand(self, flat: FlatOp, i: int) -> ir.Value:
        """An input of a node, a tensor."""
        return self.value(flat.tensor(i))

    def newest(self, flat: FlatOp, i: int) -> ir.Value:
        """An input along the axis of queries rather than that of keys: the same but in a step of decoding."""
        return self.operand(flat, i)

    def varies_by_row(self, flat: FlatOp, i: int) -> bool:
        """Whether an input is made of positions by row."""
        return False

    def every_position(self, flat: FlatOp, i: int) -> ir.Value | None:
        """An input that has no axis of batch and is made of positions, for all of them from 0 on; None where it is made
        of something else."""
        return self.operand(flat, i)

    def appends(self, flat: FlatOp) -> bool:
        """Whether a node may append to its caches itself."""
        return True

    def new_positions(self, flat: FlatOp, i: int) -> ir.Value:
        """An input of which all positions are kept: its new ones."""
        return self.operand(flat, i)

    def past(self, flat: FlatOp, i: int) -> ir.Value | None:
        """What was kept of an input."""
        return None

    def keep_as(self, flat: FlatOp, i: int, x: ir.Value) -> None:
        """Keep a tensor for the next step."""

    def filled(self, flat: FlatOp) -> tuple[ir.Value, ir.Value]:
        """How many keys of each row are real, less 1; and how many there are."""
        builder = self.builder
        keys = flat.tensor(1)
        length = keys.shape[-2]
        total = builder.number(length, "int32")
        batch = builder.vector([keys.shape[0]])
        return builder.add("Expand", [builder.add("Sub", [total, 1]), batch]), total

    def at_start(self) -> ir.Value:
        """Whether nothing came before the positions of the sequence: there are no steps."""
        return self.builder.constant([True], "bool")

    def is_turned(self, flat: FlatOp) -> bool:
        """Whether an op is given the real positions of padded rows first."""
        return False

    def turned(self, sign: int) -> ir.Value:
        """Where each place of a padded row comes from."""
        raise TypeError("no row is padded")

    def valid(self, flat: FlatNode) -> ir.Value | None:
        """Which positions of the sequence are real [batch, time]: None where all are."""
        return None

    # --- weights ---

    def weight(self, weight: FlatWeight) -> ir.Value:
        """A weight as a tensor; in the loop over experts, that of the expert at hand."""
        return self.at_hand(self.initializer(weight), weight)

    def at_hand(self, x: ir.Value, weight: FlatWeight) -> ir.Value:
        """Of a tensor that holds something for each expert, what is for the expert at hand."""
        if not self.expert or weight.block.copies is None:
            return x
        expert, frame = self.expert[-1], self.builder.frames[-1]
        if expert is None:
            return x
        if isinstance(expert, int):
            return self.cut(x, weight)[expert]
        key = ("expert", x)
        if key not in frame.sizes:
            frame.sizes[key] = self.builder.add("Gather", [x, expert], {"axis": 0})
            self.declared[frame.sizes[key]] = weight
        return frame.sizes[key]

    def cut(self, x: ir.Value, weight: FlatWeight) -> Sequence[ir.Value]:
        """The weight of each of few experts: onnxruntime cuts it once, when it loads the graph."""
        if x not in self.parts:
            builder, count = self.builder, int(weight.weight.shape[0])
            with builder.before_all():
                builder.path = weight.path
                cut = builder.add("Split", [x], {"axis": 0, "num_outputs": count}, outputs=count)
                self.parts[x] = [builder.add("Squeeze", [part, [0]]) for part in (cut if count > 1 else (cut,))]
            self.declared.update((part, weight) for part in self.parts[x])
        return self.parts[x]

    def initializer(self, weight: FlatWeight) -> ir.Value:
        if weight.path not in self.weights:
            w = weight.weight
            if not (w.trained or w.saved):
                return self.builder.constant(self.drawn(weight), w.dtype.replace("int64", "int"))
            kind = self.builder.type_of(w.dtype.replace("int64", "int"))
            self.builder.names[weight.path] = 1
            self.weights[weight.path] = self.builder.stored(weight.path, kind, [int(d) for d in w.shape])
            self.declared[self.weights[weight.path]] = weight
        return self.weights[weight.path]

    def drawn(self, weight: FlatWeight) -> Any:
        """The numbers of a buffer that no file holds: the spec says what they are."""
        from archdsl.weights.random_numbers import drawn

        if self.laws is None:
            self.laws = laws_of(self.model)
        law = self.laws.of(weight.block, weight.node, weight.weight)
        shape = tuple(int(d) for d in weight.weight.shape)
        return np.concatenate(list(drawn(law, shape, 0, weight.path))).reshape(shape)

    def param(self, node: FlatParam) -> ir.Value:
        self.builder.path = node.weight.path
        if all(d.static for d in node.weight.weight.shape):
            return self.weight(node.weight)
        return self.made(node.weight)

    def made(self, weight: FlatWeight) -> ir.Value:
        """A constant whose size only the running model knows."""
        from archdsl.backends.onnx.constants import constant

        return constant(self, weight)

    # --- products with weights ---

    def linear(self, x: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
        """`x weightᵀ + bias`, weight [out, in] as torch has it."""
        builder = self.builder
        declared = self.declared.get(weight)
        if self.quantizer is not None and declared is not None and self.quantizer.wants(self, declared, x):
            y = self.quantizer.product(self, x, declared)
        elif self.target.offers("FusedMatMul", builder.own) and builder.dtype(x) == builder.own:
            y = builder.add("FusedMatMul", [x, weight], {"transB": 1}, domain=CONTRIB)
        elif weight.producer() is not None and x.shape is not None and len(x.shape) != 2:  # cast to another type
            y = builder.add("MatMul", [x, builder.add("Transpose", [weight], {"perm": [1, 0]})])
        elif weight.producer() is not None:  # an expert's, gathered: a Gemm reads it as it lies
            return builder.add("Gemm", [x, weight, bias], {"transB": 1})  # type: ignore[no-any-return]
        else:
            y = builder.add("MatMul", [x, self.transpose(weight)])
        return builder.add("Add", [y, bias]) if bias is not None else y

    def lookup(self, weight: ir.Value, ids: ir.Value) -> ir.Value:
        """Rows of a weight, by number."""
        declared = self.declared.get(weight)
        if self.quantizer is not None and declared is not None and self.quantizer.wants_rows(self, declared):
            return self.quantizer.rows(self, ids, declared)
        found: ir.Value = self.builder.add("Gather", [weight, ids], {"axis": 0})
        return found

    def transpose(self, weight: ir.Value) -> ir.Value:
        """A weight with its two axes changed about, beside the product that reads it first: onnxruntime does it once,
        when it loads the graph. A body has its own, which would else be handed from step to step."""
        builder = self.builder
        frame, key = builder.frames[-1], ("transposed", weight)
        if key not in frame.sizes:
            path, builder.path = builder.path, f"{weight.name}"
            frame.sizes[key] = builder.add("Transpose", [weight], {"perm": [1, 0]})
            builder.path = path
        return frame.sizes[key]

    # --- numbers and positions ---

    def number(self, n: Num, dtype: str) -> ir.Value:
        """A number that a node is given, as a scalar."""
        return self.builder.number(n, dtype)

    def positions(self, length: Num) -> ir.Value:
        """0, 1, … length - 1."""
        builder = self.builder
        if length.static:
            return builder.constant(np.arange(int(length)), "int")
        assert isinstance(length.value, Poly)
        frame, key = builder.home(length.value), ("positions", length.value)
        if key not in frame.sizes:
            with builder.at(length.value):
                end = builder.number(length)
                frame.sizes[key] = builder.add("Range", [builder.constant(0, "int"), end, builder.constant(1, "int")])
        return frame.sizes[key]

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[ir.Value, ir.Value]:
        builder = self.builder
        key = self.positions(keys)
        query = key
        if queries.value != keys.value:
            first = builder.add("Sub", [builder.number(keys), builder.number(queries)])
            query = builder.add("Add", [self.positions(queries), first])
        return builder.add("Unsqueeze", [query, [-1]]), builder.add("Unsqueeze", [key, [0]])

    # --- recurrences ---

    def scan(self, flat: FlatScan) -> None:
        builder = self.builder
        builder.path = flat.path
        states = []
        for start, state in zip(flat.starts, flat.body.inputs, strict=False):
            if isinstance(start, Num):
                shape = builder.vector(list(state.shape))
                x = builder.add("Expand", [builder.number(start, state.dtype), shape])
            else:
                x = builder.cast(self.value(start), state.dtype)
            states.append(x)
        sequences = [builder.swapped(self.value(v), v.rank, 1) for v in flat.sequences]

        def body(*inputs: ir.Value) -> list[ir.Value]:
            self.values.update(zip(flat.body.inputs, inputs, strict=True))
            self.graph(flat.body)
            return [self.value(v) for v in flat.body.outputs]

        results = scan(builder, body, states, sequences)
        self.scanned(flat, results)

    def scanned(self, flat: FlatScan, results: Sequence[ir.Value]) -> None:
        """Note the last states and the stacked emissions [time, batch, …] of a Scan."""
        stacked = results[len(flat.finals) :]
        self.values.update(zip(flat.finals, results, strict=False))
        self.values.update((v, self.builder.swapped(x, v.rank, 1)) for v, x in zip(flat.stacked, stacked, strict=True))

    # --- experts ---

    def experts(
        self, flat: FlatOp, name: str, rows: ir.Value, weights: ir.Value, chosen: ir.Value, count: Num
    ) -> ir.Value:
        """The answers of the chosen experts to each row, added by weight."""
        block, add = flat.blocks[name], self.builder.add
        k = int(flat.node.active) if flat.node.active is not None else 1
        y = at_once(self, block, rows, chosen, count, k)
        if y is None:
            self.by_expert.append(flat.path)
            y = self._by_expert(flat, block, rows, chosen, count, k)
        y = add("Reshape", [y, [-1, k, int(block.outputs[0].shape[-1])]])
        y = add("Mul", [y, add("Unsqueeze", [self.builder.cast(weights, self.builder.dtype(y)), [-1]])])
        return add("ReduceSum", [y, [1]], {"keepdims": 0})  # type: ignore[no-any-return]

    def _by_expert(
        self, flat: FlatOp, block: FlatGraph, rows: ir.Value, chosen: ir.Value, count: Num, k: int
    ) -> ir.Value:
        """Rows sorted by expert; the answers of the experts that have any, one by one or in a loop."""
        builder = self.builder
        add = builder.add
        experts = add("Reshape", [chosen, [-1]])
        pairs = add("Shape", [experts])
        _, order = add("TopK", [experts, pairs], {"largest": 0}, outputs=2, types=("int", "int"))
        ones = add("Expand", [builder.constant(1, "int"), pairs])
        zeros = builder.constant(np.zeros(int(count), np.int64), "int")
        counts = add("ScatterElements", [zeros, experts, ones], {"axis": 0, "reduction": "add"})
        ends = add("CumSum", [counts, builder.constant(0, "int")])
        starts = add("Sub", [ends, counts])
        x = add("Gather", [rows, add("Div", [order, k])], {"axis": 0})
        if int(count) <= UNROLLED:
            y = self._one_by_one(flat, block, x, counts, (starts, ends), int(count))
        else:
            y = self._looped(flat, block, x, counts, starts, ends)
        # Back into the order of the pairs.
        positions = add("Range", [builder.constant(0, "int"), add("Squeeze", [pairs]), builder.constant(1, "int")])
        back = add("ScatterElements", [positions, order, positions], {"axis": 0})
        return add("Gather", [y, back], {"axis": 0})  # type: ignore[no-any-return]

    def _one_by_one(
        self, flat: FlatOp, block: FlatGraph, rows: ir.Value, counts: ir.Value, bounds: Sequence[ir.Value], count: int
    ) -> ir.Value:
        """The answers of a few experts, each behind an `If`: their weights are read where they lie."""
        builder = self.builder
        dtype = block.outputs[0].dtype
        none = [0, int(block.outputs[0].shape[-1])]
        some = builder.add("Greater", [counts, 0])
        answers = []
        for i in range(count):
            busy, idle = Subgraph(), Subgraph()
            with builder.within(busy):
                answer = self._answer(flat, block, rows, [builder.add("Gather", [x, [i]]) for x in bounds], i)
                if all(answer is not o for n in busy.nodes for o in n.outputs):
                    answer = builder.add("Identity", [answer])
            with builder.within(idle):
                nothing = builder.add("Expand", [builder.constant(0, dtype), none])
            branches = {
                name: ir.Graph([], [x], nodes=frame.nodes, name=builder.unique(f"{flat.path}/expert"))
                for name, frame, x in (("then_branch", busy, answer), ("else_branch", idle, nothing))
            }
            answers.append(builder.add("If", [builder.add("Gather", [some, i])], branches, types=(dtype,)))
        found: ir.Value = builder.add("Concat", answers, {"axis": 0})
        return found

    def _looped(
        self, flat: FlatOp, block: FlatGraph, rows: ir.Value, counts: ir.Value, starts: ir.Value, ends: ir.Value
    ) -> ir.Value:
        """The answers of many experts: a loop over those that have rows, each with a copy of its weights. They are in
        the order of the rows, so that each goes behind those before."""
        builder, add, path = self.builder, self.builder.add, flat.path
        active = add("Reshape", [add("NonZero", [counts]), [-1]])
        answered = block.outputs[0]
        iteration, going, before = (
            ir.Value(name=builder.unique(f"{path}/{name}"), type=ir.TensorType(builder.type_of(dtype)), shape=shape)
            for name, dtype, shape in (
                ("turn", "int", ir.Shape([])),
                ("going", "bool", ir.Shape([])),
                ("before", answered.dtype, None),
            )
        )
        frame = Subgraph()
        with builder.within(frame):
            expert = add("Gather", [active, iteration], {"axis": 0})
            bounds = [add("Unsqueeze", [add("Gather", [x, expert], {"axis": 0}), [0]]) for x in (starts, ends)]
            answer = self._answer(flat, block, rows, bounds, expert)
            outputs = [add("Identity", [going]), add("Concat", [before, answer], {"axis": 0})]
        body = ir.Graph([iteration, going, before], outputs, nodes=frame.nodes, name=builder.unique(f"{path}/expert"))
        none = add("Expand", [builder.constant(0, answered.dtype), [0, int(answered.shape[-1])]])
        iterations = add("Squeeze", [add("Shape", [active])])
        found: ir.Value = add(
            "Loop", [iterations, builder.constant(True, "bool"), none], {"body": body}, types=(answered.dtype,)
        )
        return found

    def _answer(
        self, flat: FlatOp, block: FlatGraph, rows: ir.Value, bounds: Sequence[ir.Value], expert: ir.Value | int
    ) -> ir.Value:
        """What an expert says to its rows, those between two positions."""
        self.builder.path = flat.path
        answer = self.answer(block, self.builder.add("Slice", [rows, *bounds, [0]]), expert)
        self.builder.path = flat.path
        return self.builder.cast(answer, block.outputs[0].dtype)

    def answer(self, block: FlatGraph, rows: ir.Value, expert: ir.Value | int | None) -> ir.Value:
        """What an expert says to rows [rows, width]."""
        self.values[block.inputs[0]] = rows
        name = symbol_name(block.inputs[0].shape[0].value)
        if name:
            self.builder.frames[-1].symbols[name] = self.builder.add("Shape", [rows], {"start": 0, "end": 1})
        self.expert.append(expert)
        self.graph(block)
        self.expert.pop()
        return self.value(block.outputs[0])


def symbol_name(value: Any) -> str:
    """The name of a size that is a symbol itself."""
    if isinstance(value, Poly) and len(value.terms) == 1:
        monomial, coefficient = value.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], Symbol):
            return monomial[0][0].name
    return ""


def _live(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> tuple[ir.Node, ...]:
    """The nodes that the outputs depend on; those of their bodies that nothing depends on are removed."""
    for body in (g for n in nodes for g in subgraphs(n)):
        kept = {*_live(list(body), body.outputs)}
        body.remove([n for n in body if n not in kept], safe=True)
    return live(nodes, outputs, inputs_of=lambda node: [x for n in all_nodes([node]) for x in n.inputs])
