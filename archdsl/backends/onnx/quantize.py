"""Weights of four or eight bits: which matrices they are, how their numbers are rounded, the node that reads them.

Every matrix of a linear layer, and every embedding, is cut, row by row, into blocks of 32 numbers; a block has a scale
and a zero point of its own, so that its least and its greatest number are met. That is what the operators `MatMulNBits`
and `GatherBlockQuantized` of onnxruntime read. With zero points the error is smaller than without, for normal and for
uniform numbers alike. On the CPU kernels of products round the inputs, too: to int8, in blocks of as many.

What stays as it is: norms and biases; routers, whose choice is all or nothing; linear layers in a type of their own;
embeddings whose rows onnxruntime would read wrongly (`zeros_run_on`); and what is neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from archdsl.backends.onnx.builder import CONTRIB
from archdsl.diagnostics import error
from archdsl.frozen import Frozen
from archdsl.passes.flatten import FlatGraph, FlatNode, FlatOp, FlatScan, FlatWeight, walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archdsl.backends.onnx.write import GraphWriter

BITS = {"int8": 8, "int4": 4}
BLOCK = 32
ROUNDED = {"accuracy_level": 4}

SCALES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class Quantized(Frozen):
    """A matrix [..., out, in] in its three parts: codes [..., out, blocks, bytes], scales [..., out, blocks] and zero
    points [..., out, bytes], two of four bits to a byte."""

    bits: int
    shape: tuple[int, ...]
    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value

    @property
    def parts(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        return self.codes, self.scales, self.zeros


class Quantizer:
    """Writes products with matrices, and rows of embeddings, of few bits into a graph. `keep` are patterns of paths
    that stay as they are; `exact` products are of inputs that are not rounded, whatever the target does, and may take
    long."""

    def __init__(self, name: str, flat: FlatGraph, keep: Sequence[str] = (), exact: bool = False) -> None:
        self.bits = BITS[name]
        self.keep = keep
        self.exact = exact
        self.kept: set[str] = set()
        """Patterns that some matrix met."""
        self.routers = routers(flat)
        self.made: dict[str, Quantized] = {}

    def wants(self, writer: GraphWriter, weight: FlatWeight, x: ir.Value) -> bool:
        """Whether a matrix that a linear layer reads is to be stored in few bits."""
        w, builder = weight.weight, writer.builder
        if w.kind == "embedding":  # as its rows are
            return weight.path in self.made and builder.dtype(x) == builder.own
        if w.kind != "matrix" or w.dtype != "float" or builder.dtype(x) != builder.own or weight.path in self.routers:
            return False
        return not self.is_kept(weight)

    def wants_rows(self, writer: GraphWriter, weight: FlatWeight) -> bool:
        """Whether an embedding is to be stored in few bits."""
        w, target = weight.weight, writer.target
        if w.kind != "embedding" or w.dtype != "float" or len(w.shape) != 2:
            return False
        if self.bits == 4 and target.zeros_run_on and -(-int(w.shape[1]) // BLOCK) % 2:
            return False
        return target.offers("GatherBlockQuantized", writer.builder.own) and not self.is_kept(weight)

    def is_kept(self, weight: FlatWeight) -> bool:
        met = [p for p in self.keep if fnmatchcase(weight.path, p)]
        self.kept |= set(met)
        return bool(met)

    @property
    def reads_experts(self) -> bool:
        """Whether onnxruntime's operator for experts may read them: of eight bits, it rounds its inputs always."""
        return not (self.exact and self.bits == 8)

    def rounding(self, writer: GraphWriter) -> dict[str, int]:
        """What asks an operator to round its inputs to int8, where the target does."""
        return ROUNDED if writer.target.rounds_inputs and not self.exact else {}

    def product(self, writer: GraphWriter, x: ir.Value, weight: FlatWeight) -> ir.Value:
        """`x weightᵀ`; of a matrix for each expert, with that of the expert at hand."""
        builder = writer.builder
        quantized = self.quantized(writer, weight)
        parts = [writer.at_hand(part, weight) for part in quantized.parts]
        n, k = quantized.shape[-2:]
        if weight.weight.kind == "embedding":  # stored as rows are read
            with builder.before_all():
                builder.path = weight.path
                parts[0] = builder.add("Reshape", [parts[0], [n, -(-k // BLOCK), -1]])
        options = {"K": k, "N": n, "bits": self.bits, "block_size": BLOCK} | self.rounding(writer)
        y: ir.Value = builder.add("MatMulNBits", [x, *parts], options, domain=CONTRIB)
        return y

    def rows(self, writer: GraphWriter, ids: ir.Value, weight: FlatWeight) -> ir.Value:
        """Rows of an embedding, by number."""
        quantized = self.quantized(writer, weight)
        codes, scales, zeros = quantized.parts
        options = {"bits": self.bits, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
        inputs = [codes, ids, scales, zeros]
        found: ir.Value = writer.builder.add("GatherBlockQuantized", inputs, options, domain=CONTRIB, types=("float",))
        width = quantized.shape[1]
        return found if width % BLOCK == 0 else writer.builder.add("Slice", [found, [0], [width], [-1]])

    def quantized(self, writer: GraphWriter, weight: FlatWeight) -> Quantized:
        """The parts of a matrix as initializers, the same for every use."""
        if weight.path not in self.made:
            builder = writer.builder
            shape = tuple(int(d) for d in weight.weight.shape)
            codes, scales, zeros = shapes(shape, self.bits)
            if weight.weight.kind == "embedding":
                codes = (*codes[:-2], codes[-2] * codes[-1])

            def part(name: str, kind: ir.DataType, dims: Sequence[int]) -> ir.Value:
                full = builder.unique(f"{weight.path}.{name}")
                return builder.stored(full, kind, dims)

            self.made[weight.path] = Quantized(
                self.bits,
                shape,
                part("codes", ir.DataType.UINT8, codes),
                part("scales", builder.type_of("float"), scales),
                part("zeros", ir.DataType.UINT8, zeros),
            )
        return self.made[weight.path]


def settle(quantizers: Sequence[Quantizer]) -> None:
    """Of all graphs of a model: raises ArchError E0504 where nothing was quantized, or a pattern of `keep` met
    nothing."""
    met = {p for q in quantizers for p in q.kept}
    unmet = [p for q in quantizers for p in q.keep if p not in met]
    if unmet:
        raise error(
            "E0504",
            f"`--keep {unmet[0]}` names no matrix that would be quantized",
            help="a pattern is matched with whole paths: `--keep 'blocks.0.*'`; `archdsl show` prints them",
        )
    if quantizers and not any(q.made for q in quantizers):
        raise error(
            "E0504",
            "the model has no weight matrix that can be quantized",
            notes=["linear layers and embeddings are; norms, biases and routers are not"],
            help="leave `--quantize` out",
        )


def routers(flat: FlatGraph) -> frozenset[str]:
    """The matrices that decide which expert a token goes to: those that act on the outputs by nothing else than what a
    node with blocks of its own is given beside its first input, weights and choice."""
    found: set[str] = set()
    _routers(flat.nodes, {id(v) for v in flat.outputs}, found)
    return frozenset(found)


def _routers(nodes: Sequence[FlatNode], needed: set[int], found: set[str]) -> None:
    """`needed` are the values that act on the outputs otherwise."""
    for node in reversed(nodes):
        if not any(id(v) in needed for v in node.outputs):
            found.update(_matrices(node))
            continue
        inputs = node.inputs
        if isinstance(node, FlatOp) and node.blocks:
            inputs = inputs[:1]
            for block in node.blocks.values():
                needed.update(id(v) for v in block.outputs)
                _routers(block.nodes, needed, found)
        elif isinstance(node, FlatScan):
            needed.update(id(v) for v in node.body.outputs)
            _routers(node.body.nodes, needed, found)
            inputs = (*node.starts, *node.sequences)
        needed.update(id(v) for v in inputs)


def _matrices(node: FlatNode) -> Iterator[str]:
    """Yield the matrices of a node, and of nodes within it."""
    for inner in walk(FlatGraph((), (node,), ())):
        if isinstance(inner, FlatOp):
            yield from (w.path for w in inner.weights.values() if w.weight.kind == "matrix")


# --- numbers ----------------------------------------------------------------------------------------------------------


def shapes(shape: Sequence[int], bits: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shapes of codes, scales and zero points of a matrix [..., out, in]."""
    *rows, k = shape
    blocks = -(-k // BLOCK)
    return (*rows, blocks, BLOCK * bits // 8), (*rows, blocks), (*rows, -(-blocks * bits // 8))


def quantized(rows: NDArray[Any], bits: int, dtype: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Codes, scales and zero points of rows [n, in] of numbers. A number is `(code - zero) * scale`; the scale is
    rounded to `dtype` before the codes are found."""
    codes, scales, zeros = _codes(rows, bits, dtype)
    if bits == 4:
        codes = _paired(codes)
        zeros = _paired(np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2))))
    return codes, scales, zeros


def dequantized(rows: NDArray[Any], bits: int, dtype: str) -> NDArray[np.float32]:
    """What rows [n, in] are once they were quantized."""
    codes, scales, zeros = _codes(rows, bits, dtype)
    numbers: NDArray[np.float32] = (codes.astype(np.float32) - zeros[..., None]) * scales.astype(np.float32)[..., None]
    return numbers.reshape(len(rows), -1)[:, : rows.shape[1]]


def _codes(rows: NDArray[Any], bits: int, dtype: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    n, k = rows.shape
    top = np.float32(2**bits - 1)
    blocks = np.pad(rows.astype(np.float32), ((0, 0), (0, -k % BLOCK))).reshape(n, -1, BLOCK)
    low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    scales = ((high - low) / top).astype(SCALES[dtype])
    step = scales.astype(np.float32)
    scales = np.where(step > 0, scales, np.ones_like(scales))  # all zeros, or too small to be told from them
    step = scales.astype(np.float32)
    zeros = np.clip(np.rint(-low / step), 0, top)
    codes = np.clip(np.rint(blocks / step[..., None]) + zeros[..., None], 0, top)
    return codes.astype(np.uint8), scales, zeros.astype(np.uint8)


def _paired(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two codes of four bits in a byte, the first in its lower half."""
    paired: NDArray[np.uint8] = codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))
    return paired


def in_rows(pieces: Iterable[NDArray[Any]], width: int, at_once: int = 1 << 20) -> Iterator[NDArray[Any]]:
    """Numbers that come in pieces as whole rows [n, width], about `at_once` numbers at a time."""
    rest: list[NDArray[Any]] = []
    held = 0
    for piece in pieces:
        rest.append(piece.reshape(-1))
        held += rest[-1].size
        if held >= max(at_once, width):
            joined = np.concatenate(rest)
            whole = held - held % width
            yield joined[:whole].reshape(-1, width)
            rest, held = [joined[whole:]], held - whole
    if held:
        yield np.concatenate(rest).reshape(-1, width)
