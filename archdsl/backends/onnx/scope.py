"""What a primitive is handed to write itself as ONNX nodes: see `archdsl.ir.op.OnnxScope`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from archdsl.backends.onnx.builder import CONTRIB, Builder, Subgraph, all_nodes
from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode, Value
from archdsl.passes.flatten import FlatOp

if TYPE_CHECKING:
    from archdsl.backends.onnx.write import GraphWriter


class OnnxNodeScope:
    """One node, seen by its primitive."""

    def __init__(self, writer: GraphWriter, flat: FlatOp) -> None:
        self.writer = writer
        self.builder = writer.builder
        self.flat = flat
        self.node: OpNode = flat.node
        self.own = self.builder.own
        self.by_row = writer.by_row
        self.in_steps = writer.in_steps

    # --- operators ---

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        if not operator[:1].isupper():
            raise AttributeError(operator)

        def add(
            *inputs: Any,
            outputs: int = 1,
            domain: str = "",
            types: Sequence[str] | None = None,
            **attributes: Any,
        ) -> Any:
            return self.builder.add(operator, inputs, attributes, outputs=outputs, domain=domain, types=types)

        return add

    def contrib(self, operator: str, *inputs: Any, **attributes: Any) -> Any:
        return getattr(self, operator)(*inputs, domain=CONTRIB, **attributes)

    def offers(self, operator: str, dtype: str = "float") -> bool:
        return self.writer.target.offers(operator, self.own if dtype == "float" else dtype)

    # --- inputs ---

    def has(self, i: int) -> bool:
        given = self.flat.inputs[i] if i < len(self.flat.inputs) else None
        return given is not None and given not in self.writer.elided

    def arg(self, i: int, dtype: str | None = None) -> Any:
        given = self.flat.inputs[i]
        if isinstance(given, Num):
            return self.number(given, dtype or self.node.outputs[0].dtype)
        assert isinstance(given, Value), (self.node.op.name, i)
        x = self.writer.operand(self.flat, i)
        return x if dtype is None else self.cast(x, dtype)

    def args(self, dtype: str | None = None) -> list[Any]:
        kind = dtype or self.node.outputs[0].dtype
        return [self.arg(i, kind) for i in range(len(self.flat.inputs)) if self.has(i)]

    def weight(self, name: str) -> Any:
        return self.writer.weight(self.flat.weights[name])

    # --- numbers and sizes ---

    def number(self, n: Num, dtype: str = "int") -> Any:
        return self.writer.number(n, dtype)

    def size(self, i: int, axis: int) -> Any:
        given = self.flat.tensor(i)
        n, axis = given.shape[axis], axis % given.rank - given.rank
        return int(n) if n.static else self.dimension(self.arg(i), axis)

    def dimension(self, x: Any, axis: int) -> Any:
        """The size of an axis, counted from the right, as a vector of one int64."""
        return self.Shape(x, start=axis, end=axis + 1) if axis != -1 else self.Shape(x, start=-1)

    def constant(self, value: Any, dtype: str = "float") -> Any:
        return self.builder.constant(value, dtype)

    # --- types ---

    def cast(self, x: Any, dtype: str) -> Any:
        return self.builder.cast(x, dtype)

    def dtype(self, x: Any) -> str:
        return self.builder.dtype(x)

    def memo(self, x: Any, name: str, make: Callable[[], Any]) -> Any:
        frame, key = self.builder.frames[-1], (name, x)
        if key not in frame.sizes:
            frame.sizes[key] = make()
        return frame.sizes[key]

    # --- products with weights ---

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.writer.linear(x, weight, bias)

    def lookup(self, weight: Any, ids: Any) -> Any:
        return self.writer.lookup(weight, ids)

    # --- positions ---

    def positions(self, length: Num) -> Any:
        return self.writer.positions(length)

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[Any, Any]:
        return self.writer.pairs(queries, keys, middle)

    def of_positions(self, made: Any, i: int, make: Callable[[Any], Any]) -> None:
        if not self.writer.target.packs:
            return
        with self.builder.within(self.builder.main):
            table = self.writer.every_position(self.flat, i)
            if table is not None:
                self.builder.of_positions[made] = make(table)

    def varies_by_row(self, i: int) -> bool:
        return self.writer.varies_by_row(self.flat, i)

    def newest(self, i: int) -> Any:
        return self.writer.newest(self.flat, i)

    @property
    def appends(self) -> bool:
        return self.writer.appends(self.flat)

    def new(self, i: int) -> Any:
        return self.writer.new_positions(self.flat, i)

    def cached(self, *inputs: int) -> tuple[Any, ...]:
        return (*(self.writer.past(self.flat, i) for i in inputs), *self.writer.filled(self.flat))

    def keep(self, kept: Mapping[int, Any]) -> None:
        for i, x in kept.items():
            self.writer.keep_as(self.flat, i, x)

    @property
    def valid(self) -> Any:
        return self.writer.valid(self.flat)

    @property
    def first(self) -> Any:
        return self.writer.at_start()

    def gated(self, x: Any, fill: Any, rank: int, axis: int) -> Any:
        valid = self.valid
        if valid is None:
            return x
        others = [i for i in range(1, rank) if i != axis]
        return self.Where(self.Unsqueeze(valid, others) if others else valid, x, fill)

    def tail(self, x: Any, count: int, rank: int, axis: int) -> Any:
        valid = self.valid
        if valid is None:
            return self.Slice(x, [-count], [2**62], [axis])
        # Row by row: as many positions as were kept, up to the last real one.
        order = [0, axis, *(i for i in range(1, rank) if i != axis)]
        back = [order.index(i) for i in range(rank)]
        index = self.memo(valid, f"tail of {count}", lambda: self._last_real(valid, count))
        x = self.Transpose(x, perm=order) if axis != 1 else x
        x = self.GatherND(x, index, batch_dims=1)
        return self.Transpose(x, perm=back) if axis != 1 else x

    def _last_real(self, valid: Any, count: int) -> Any:
        position = self.Range(self.constant(1, "int"), self.Add(self.Squeeze(self.Shape(valid, start=1)), 1), 1)
        last = self.ReduceMax(self.Mul(self.cast(valid, "int"), position), [1], keepdims=1)
        return self.Unsqueeze(self.Add(last, self.constant(list(range(count)), "int")), [-1])

    def turned(self, x: Any, back: bool = False) -> Any:
        if self.valid is None or self.writer.is_turned(self.flat):
            return x
        index = self.Unsqueeze(self.writer.turned(-1 if back else 1), [-1])
        return self.GatherND(x, index, batch_dims=1)

    # --- inner graphs ---

    def scan(
        self, body: Callable[..., Sequence[Any]], states: Sequence[Any], sequences: Sequence[Any]
    ) -> tuple[Any, ...]:
        return scan(self.builder, body, states, sequences)

    def experts(self, name: str, rows: Any, weights: Any, chosen: Any, count: Num) -> Any:
        return self.writer.experts(self.flat, name, rows, weights, chosen, count)


def scan(
    builder: Builder, body: Callable[..., Sequence[Any]], states: Sequence[Any], sequences: Sequence[Any]
) -> tuple[Any, ...]:
    """A Scan along axis 0: the last states, then the stacked emissions. What the body reads of the graph around it, but
    for weights and constants, is one of its states, which stays as it is: OpenVINO knows no other way."""
    inner = Subgraph()

    def input_like(x: ir.Value, kind: str) -> ir.Value:
        return ir.Value(name=builder.unique(f"{builder.path}/{kind}"), type=x.type)

    inputs = [input_like(x, kind) for kind, group in (("state", states), ("step", sequences)) for x in group]
    with builder.within(inner):
        results = [
            builder.cast(x, builder.dtype(state)) if state is not None else x
            for x, state in _matched(body(*inputs), states)
        ]
        # An output of a graph is made by one of its nodes, and each only once.
        made = {id(o) for n in inner.nodes for o in n.outputs}
        outputs: list[ir.Value] = []
        for x in results:
            fresh = id(x) not in made or any(x is o for o in outputs)
            outputs.append(builder.add("Identity", [x]) if fresh else x)
        outside = builder.read_from_outside(inner.nodes, inputs)
        fixed = {x: input_like(x, "fixed") for x in outside}
        for node in all_nodes(inner.nodes):
            for i, x in enumerate(node.inputs):
                if x in fixed:
                    node.replace_input_with(i, fixed[x])
        outputs[len(states) : len(states)] = [builder.add("Identity", [x]) for x in fixed.values()]
    inputs[len(states) : len(states)] = fixed.values()
    found = builder.add(
        "Scan",
        [*states, *fixed, *sequences],
        {
            "body": ir.Graph(inputs, outputs, nodes=inner.nodes, name=builder.unique(f"{builder.path}/body")),
            "num_scan_inputs": len(sequences),
        },
        outputs=len(outputs),
        types=[builder.dtype(o) for o in outputs],
    )
    every: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
    return every[: len(states)] + every[len(states) + len(fixed) :]


def _matched(results: Sequence[Any], states: Sequence[Any]) -> list[tuple[Any, Any]]:
    padding = [None] * (len(results) - len(states))
    return list(zip(results, [*states, *padding], strict=True))
