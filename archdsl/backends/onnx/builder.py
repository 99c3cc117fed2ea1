"""Nodes, constants and sizes of an ONNX graph under construction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from archdsl.ir.dims import Num, Opaque, Poly, Symbol, at_least_zero, is_size_like, mul
from archdsl.ir.dims import Value as Size

OPSET = 24
IR_VERSION = 11
CONTRIB = "com.microsoft"

TYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "double": ir.DataType.DOUBLE,
    "int": ir.DataType.INT64,
    "int32": ir.DataType.INT32,
    "uint8": ir.DataType.UINT8,
    "bool": ir.DataType.BOOL,
}
NAMES = {v: k for k, v in TYPES.items()}

INDEXING = frozenset({"Gather", "GatherElements", "GatherND", "TopK", "CumSum"})
"""Operators whose numbers are positions."""
BOOLEAN = frozenset(
    {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not", "Xor", "IsNaN", "IsInf"}
)
NO_BFLOAT16 = frozenset(
    {
        *("ArgMax", "ArgMin", "BatchNormalization", "Ceil", "Clip", "ConvTranspose", "Cos", "CumSum", "Einsum", "Elu"),
        *("Equal", "Floor", "GRU", "Greater", "GreaterOrEqual", "LSTM", "LeakyRelu", "Less", "LessOrEqual", "Log"),
        *("LogSoftmax", "MaxPool", "Mish", "OneHot", "PRelu", "Pad", "RNN", "Reciprocal", "ReduceL1", "ReduceL2"),
        *("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "Round", "Selu", "Sin", "Softplus"),
        *("Softsign", "TopK"),
    }
)
"""Operators for which onnxruntime has no kernel in bfloat16, on CUDA either: they are computed in float32."""
WHOLE = frozenset({"Shape", "Size", "ArgMax", "ArgMin", "NonZero"})


@dataclass(eq=False)
class Subgraph:
    """A graph under construction: the main one, or the body of a loop."""

    nodes: list[ir.Node] = field(default_factory=list)
    symbols: dict[str, ir.Value] = field(default_factory=dict)
    """Run-time sizes that are known here, each as a vector of one int64."""
    sizes: dict[Any, ir.Value] = field(default_factory=dict)
    made: dict[Any, Any] = field(default_factory=dict)
    """What its nodes made, by what they are: a node like another is that other."""


class Builder:
    """Adds nodes to a graph. `own` is the type of the model's own floats."""

    def __init__(self, own: str) -> None:
        self.own = own
        self.main = Subgraph()
        self.prologue = Subgraph()
        """What sizes are computed from: it stands before all other nodes."""
        self.frames = [self.main]
        self.constants: dict[Any, ir.Value] = {}
        self.initializers: set[ir.Value] = set()
        """Those whose numbers come later."""
        self.names: dict[str, int] = {}
        self.path = ""
        """Where the nodes that are added stand in the model."""
        self.of_positions: dict[ir.Value, ir.Value] = {}
        """What a tensor that is made of positions would be for all of them from 0 on, the same for every row."""

    # --- names and types ---

    def unique(self, name: str) -> str:
        """The name, numbered where it is taken."""
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        if not count:
            return name
        return self.unique(f"{name}_{count}")

    def type_of(self, dtype: str) -> ir.DataType:
        if dtype in ("token", "documents"):
            dtype = "int"
        elif dtype == "padding":
            dtype = "bool"
        return TYPES[self.own if dtype == "float" else dtype]

    def dtype(self, x: ir.Value) -> str:
        assert x.dtype is not None, x
        return NAMES[x.dtype]

    # --- nodes ---

    def add(
        self,
        operator: str,
        inputs: Sequence[Any],
        attributes: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        domain: str = "",
        types: Sequence[str] | None = None,
    ) -> Any:
        """A node; its output, or a tuple of them. `types` are those of the outputs where the operator's name does not
        tell."""
        given = self.inputs(operator, inputs)
        attributes = dict(attributes or {})
        if operator in NO_BFLOAT16 and any(x is not None and x.dtype == TYPES["bfloat16"] for x in given):
            return self.in_float32(operator, given, attributes, outputs)
        key = _key(operator, domain, given, attributes, outputs)
        for frame in self.visible():
            if key in frame.made:
                return frame.made[key]
        if types is None:
            types = self.infer(operator, given, attributes, outputs)
        made = []
        for i, dtype in enumerate(types):
            suffix = "" if len(types) == 1 else f".{i}"
            name = self.unique(f"{self.path}/{operator}{suffix}" if self.path else f"{operator}{suffix}")
            made.append(ir.Value(name=name, type=ir.TensorType(self.type_of(dtype))))
        # Values and nodes have names of their own: a node is called as its one output is.
        plain = f"{self.path}/{operator}" if self.path else operator
        named = made[0].name if len(made) == 1 else self.unique(plain)
        told = {name: _told(name, value) for name, value in attributes.items()}
        node = ir.node(operator, given, told, domain=domain, outputs=made, name=named)
        self.frames[-1].nodes.append(node)
        result = made[0] if outputs == 1 else tuple(made)
        if key is not None:
            self.frames[-1].made[key] = result
        return result

    def visible(self) -> Iterator[Subgraph]:
        """The graphs whose values the nodes that are added may read: a body reads those around it."""
        current = self.frames[-1]
        yield self.prologue
        if current is not self.prologue:
            yield from self.frames[: self.frames.index(current) + 1]

    def in_float32(
        self, operator: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any], outputs: int
    ) -> Any:
        """A node between casts."""
        narrow, wide = TYPES["bfloat16"], TYPES["float32"]
        given = [self.cast(x, "float32") if x is not None and x.dtype == narrow else x for x in inputs]
        made = self.add(operator, given, attributes, outputs=outputs)
        found = [self.cast(x, "bfloat16") if x.dtype == wide else x for x in (made if outputs > 1 else (made,))]
        return tuple(found) if outputs > 1 else found[0]

    def inputs(self, operator: str, inputs: Sequence[Any]) -> list[ir.Value | None]:
        """Inputs as tensors: numbers take the type of the first tensor, lists become vectors of int64."""
        alike = inputs[1:] if operator == "Where" else inputs
        first = next((x for x in alike if isinstance(x, ir.Value)), None)
        if operator in INDEXING:
            return [self.constant(x, "int") if isinstance(x, int) else x for x in self._lists(inputs)]
        dtype = self.dtype(first) if first is not None and not isinstance(first.type, ir.SequenceType) else self.own
        found: list[ir.Value | None] = []
        for x in inputs:
            if x is None or isinstance(x, ir.Value):
                found.append(x)
            elif isinstance(x, list | tuple):
                found.append(self.vector(x))
            elif isinstance(x, Num):
                found.append(self.number(x, dtype))
            else:
                found.append(self.constant(x, dtype))
        while found[-1] is None:  # onnxruntime 1.31 crashes on a last input that is named by nothing
            found.pop()
        return found

    def _lists(self, inputs: Sequence[Any]) -> list[Any]:
        return [self.vector(x) if isinstance(x, list | tuple) else x for x in inputs]

    def infer(
        self, operator: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any], outputs: int
    ) -> Sequence[str]:
        """Types of the outputs, for operators whose name and inputs tell."""
        if operator in BOOLEAN:
            return ("bool",) * outputs
        if operator in WHOLE:
            return ("int",) * outputs
        if operator == "Cast":
            return (NAMES[ir.DataType(attributes["to"])],)
        if operator == "OneHot":
            return (self.dtype(_given(inputs[2])),)
        if operator in ("Where", "CastLike"):
            return (self.dtype(_given(inputs[1])),)
        first = self.dtype(_given(inputs[0]))
        if operator == "TopK":
            return (first, "int")
        return (first,) * outputs

    def cast(self, x: ir.Value, dtype: str) -> ir.Value:
        kind = self.type_of(dtype)
        if x.dtype == kind:
            return x
        found: ir.Value = self.add("Cast", [x], {"to": kind.value})
        return found

    def swapped(self, x: ir.Value, rank: int, axis: int) -> ir.Value:
        """A tensor of `rank` axes, the first and another changed about."""
        order = [*range(rank)]
        order[0], order[axis] = axis, 0
        found: ir.Value = self.add("Transpose", [x], {"perm": order}) if axis else x
        if order == [1, 0, 2] and self.dtype(x) == "float16":
            # onnxruntime 1.31 dies on a CPU of such a transpose whose only reader multiplies it by a weight.
            found = self.add("Reshape", [found, self.constant([0, 0, -1], "int")])
        return found

    def stored(self, name: str, kind: ir.DataType, shape: Sequence[int]) -> ir.Value:
        """An initializer whose numbers come later."""
        x = ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(shape))
        self.initializers.add(x)
        return x

    def read_from_outside(self, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """What nodes of a body read that is neither an input of the body, nor made by one of them, nor an
        initializer."""
        every = all_nodes(nodes)
        own = {*inputs, *(x for n in every for x in n.outputs), *self.initializers, *self.constants.values()}
        own |= {x for n in every for g in subgraphs(n) for x in g.inputs}
        return [*dict.fromkeys(x for n in every for x in n.inputs if x is not None and x not in own)]

    @contextmanager
    def within(self, frame: Subgraph) -> Iterator[Subgraph]:
        """Nodes go into the frame."""
        self.frames.append(frame)
        try:
            yield frame
        finally:
            self.frames.pop()

    @contextmanager
    def before_all(self) -> Iterator[None]:
        """Nodes go before all others of the main graph."""
        path, self.path = self.path, "sizes"
        with self.within(self.prologue):
            yield
        self.path = path

    # --- constants ---

    def constant(self, value: Any, dtype: str = "float") -> ir.Value:
        """Numbers as an initializer of the main graph; equal ones are one."""
        kind = self.type_of(dtype)
        array = np.asarray(value)
        key = (kind, array.shape, array.astype(np.float64).tobytes() if array.dtype.kind == "f" else array.tobytes())
        if key not in self.constants:
            tensor = ir.tensor(array.astype(kind.numpy()), dtype=kind)
            shown = str(value) if array.ndim == 0 else "x".join(map(str, array.shape))
            if array.ndim == 1 and array.size <= 6:
                shown = ",".join(map(str, array.tolist()))
            name = self.unique(f"{NAMES[kind]}[{shown}]" if array.ndim else f"{NAMES[kind]}({shown})")
            tensor.name = name
            self.constants[key] = ir.Value(
                name=name, type=ir.TensorType(kind), shape=ir.Shape(array.shape), const_value=tensor
            )
        return self.constants[key]

    def vector(self, items: Sequence[Any]) -> ir.Value:
        """A vector of int64 of numbers, sizes and vectors."""
        parts: list[Any] = []
        for item in items:
            if isinstance(item, Num):
                item = int(item) if item.static else self.size(item.value)
            if isinstance(item, int | np.integer):
                if parts and isinstance(parts[-1], list):
                    parts[-1].append(int(item))
                else:
                    parts.append([int(item)])
            else:
                parts.append(item)
        found = [self.constant(np.array(p, np.int64), "int") if isinstance(p, list) else p for p in parts]
        if not found:
            return self.constant(np.zeros(0, np.int64), "int")
        if len(found) == 1:
            one: ir.Value = found[0]
            return one
        joined: ir.Value = self.add("Concat", found, {"axis": 0})
        return joined

    # --- sizes ---

    def number(self, n: Num, dtype: str = "int") -> ir.Value:
        """A number as a scalar."""
        if n.static:
            value: Any = n.value
            return self.constant(float(value) if isinstance(value, Fraction) else value, dtype)
        value = n.value
        assert isinstance(value, Poly)
        # As a real number `time / 3` is no size that comes out even.
        real = self.type_of(dtype).is_floating_point() and value.denominator != 1
        return self.cast(self.scalar(value, real=real), dtype)

    def scalar(self, value: Poly, *, real: bool = False) -> ir.Value:
        """A size as a scalar of int64, or another number that depends on sizes as one of double."""
        vector = self.size(value) if self.is_whole(value) and not real else self.real(value)
        frame, key = self.home(value), ("scalar", id(vector))
        if key not in frame.sizes:
            with self.at(value):
                frame.sizes[key] = self.add("Squeeze", [vector])
        return frame.sizes[key]

    def is_whole(self, value: Size) -> bool:
        """Whether it is a size: sums and products of sizes, divisions that come out even or are rounded."""
        return is_size_like(mul(value, value.denominator) if isinstance(value, Poly) else value)

    def home(self, value: Poly) -> Subgraph:
        """The innermost frame that one of its symbols belongs to: where it can be computed."""
        names = {s.name for s in value.symbols}
        return next(frame for frame in reversed(self.frames) if names & frame.symbols.keys())

    def at(self, value: Poly) -> Any:
        """Nodes go where the value is computed."""
        frame = self.home(value)
        return self.before_all() if frame is self.main else self.within(frame)

    def symbol(self, name: str) -> ir.Value:
        return next(frame.symbols[name] for frame in reversed(self.frames) if name in frame.symbols)

    def size(self, value: Size) -> ir.Value:
        """A whole number as a vector of one int64."""
        if not isinstance(value, Poly):
            return self.constant(np.array([int(value)], np.int64), "int")
        frame = self.home(value)
        if value not in frame.sizes:
            with self.at(value):
                frame.sizes[value] = self._size(value)
        return frame.sizes[value]

    def _size(self, value: Poly) -> ir.Value:
        denominator = value.denominator
        total: Any = None
        for monomial, coefficient in value.terms:
            term: Any = int(coefficient * denominator)
            for atom, power in monomial:
                base = self.symbol(atom.name) if isinstance(atom, Symbol) else self._rounded(atom)
                for _ in range(power):
                    sides = [base, term] if isinstance(term, int) else [term, base]
                    term = base if isinstance(term, int) and term == 1 else self.add("Mul", sides)
            if isinstance(term, int):
                term = self.constant(np.array([term], np.int64), "int")
            total = term if total is None else self.add("Add", [total, term])
        found: ir.Value = total if denominator == 1 else self.add("Div", [total, denominator])
        return found

    def _rounded(self, atom: Opaque) -> ir.Value:
        """`floor(a / b)` and the like of whole numbers. Division of what is not below 0 rounds down."""
        if not all(map(self.is_whole, atom.args)) or atom.function not in ("floor", "max", "min", "abs", "sign"):
            return self.cast(self._function(atom), "int")
        args = [self.size(a) for a in atom.args]
        if atom.function != "floor":
            found: ir.Value = self.add(atom.function.capitalize(), args)
            return found
        if not all(map(at_least_zero, atom.args)):
            args[0] = self.add("Sub", [args[0], self.add("Mod", args)])
        found = self.add("Div", args)
        return found

    def real(self, value: Size) -> ir.Value:
        """A real number as a vector of one double."""
        if not isinstance(value, Poly):
            return self.constant(np.array([float(value)]), "double")
        frame, key = self.home(value), ("real", value)
        if key not in frame.sizes:
            with self.at(value):
                frame.sizes[key] = self._real(value)
        return frame.sizes[key]

    def _real(self, value: Poly) -> ir.Value:
        total: Any = None
        for monomial, coefficient in value.terms:
            term: Any = self.constant(np.array([float(coefficient)]), "double")
            for atom, power in monomial:
                base = self.cast(self.symbol(atom.name), "double") if isinstance(atom, Symbol) else self._function(atom)
                for _ in range(abs(power)):
                    term = self.add("Mul" if power > 0 else "Div", [term, base])
            total = term if total is None else self.add("Add", [total, term])
        found: ir.Value = total
        return found

    def _function(self, atom: Opaque) -> ir.Value:
        args = [self.real(a) for a in atom.args]
        if atom.function == "sum":
            return args[0]
        if atom.function == "floor" and len(args) == 2:
            args = [self.add("Div", args)]
        name = {"pow": "Pow", "max": "Max", "min": "Min"}.get(atom.function, atom.function.capitalize())
        found: ir.Value = self.add(name, args)
        return found


def _key(
    operator: str, domain: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any], outputs: int
) -> Any:
    """What two nodes that compute the same have in common; None for one with a body or a tensor of its own, and for
    `Identity`, which is there to be another value."""
    plain = {n: tuple(v) if isinstance(v, list) else v for n, v in attributes.items()}
    if operator == "Identity" or not all(isinstance(v, int | float | str | tuple) for v in plain.values()):
        return None
    return operator, domain, tuple(inputs), tuple(sorted(plain.items())), outputs


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The bodies and branches of a node."""
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def all_nodes(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """The nodes, and those of their bodies."""
    return [inner for node in nodes for inner in (node, *(n for g in subgraphs(node) for n in all_nodes(g)))]


def _told(name: str, value: Any) -> Any:
    """An attribute; a list of whole numbers with its type. By itself onnx_ir would ask first whether the list is a
    graph or a tensor, which is a third of the time that adding a node takes."""
    if isinstance(value, list | tuple) and value and all(isinstance(x, int) for x in value):
        return ir.AttrInt64s(name, value)
    return value


def _given(x: ir.Value | None) -> ir.Value:
    assert x is not None
    return x
