"""Which operators a graph may be made of, by target: one table, asked by the lowerings and by nobody else.

`portable` is standard ONNX. `ort-cpu` and `ort-cuda` name an execution provider of onnxruntime and use its own
operators where they are what is fast there; the others name a program that reads standard ONNX, and what it looks for
beside a graph. An operator is offered in the types for which that provider has a kernel: one without would run on the
CPU, with copies to and fro.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from archdsl.backends.onnx.names import Convention
from archdsl.diagnostics import error
from archdsl.frozen import Frozen

HALVES = ("float16", "bfloat16")
ALL = ("float32", *HALVES)


class Target(Frozen):
    """`operators` of com.microsoft by the types that they are offered in."""

    name: str
    about: str
    operators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ALL
    """Types of weights and activations that it runs."""
    rounds_inputs: bool = False
    """Whether products with matrices of few bits round their inputs, too."""
    reads: str = ""
    """The file by which the program knows a graph: without it, it cannot run the model."""
    stores: tuple[str, ...] = ("safetensors", "onnx_data", "inline")
    """Where it finds weights."""
    pair_stores: tuple[str, ...] = ()
    """Where it finds the weights of an encoder and a decoder, if it runs them as two graphs between which it hands what
    the encoder gives."""
    zeros_run_on: bool = False
    """Whether its lookup of rows in four bits overlooks that the zero points of a row end with a whole byte: then it
    is right only where a row has an even number of blocks."""
    packs: bool = False
    """Whether fused attention takes queries, keys and values best in one tensor, and turns them by their positions."""

    def offers(self, operator: str, dtype: str) -> bool:
        return dtype in self.operators.get(operator, ())


TARGETS = {
    t.name: t
    for t in (
        Target("portable", "standard operators of opset 24: every runtime that implements them"),
        Target(
            "ort-cpu",
            "onnxruntime on the CPU: fused attention that never stores the scores",
            {
                # Neither the norms that add first nor the mixture of experts in float32: on the CPU they are slower
                # than what they stand for.
                "GroupQueryAttention": ("float32",),
                "FusedMatMul": ("float32",),
                "MatMulNBits": ("float32", "float16"),
                "GatherBlockQuantized": ("float32", "float16"),
                "QMoE": ("float32", "float16"),
            },
            ("float32", "float16"),
            # To int8, block by block: else a matrix of eight bits is unpacked for every product, and one of four bits
            # takes up to twice the time.
            rounds_inputs=True,
        ),
        Target(
            "ort-cuda",
            "onnxruntime on CUDA: flash attention in half precision",
            {
                "GroupQueryAttention": HALVES,  # it has no kernel for float32 there
                "SkipLayerNormalization": ALL,
                "SkipSimplifiedLayerNormalization": ALL,
                "FusedMatMul": ALL,
                "MoE": ALL,
                "MatMulNBits": ALL,
                "GatherBlockQuantized": ALL,
            },
            zeros_run_on=True,  # `get_val` of gather_block_quantized.cu, onnxruntime 1.31
            packs=True,
        ),
        Target("genai", "onnxruntime-genai: standard operators", reads="genai_config.json"),
        Target(
            "optimum",
            "optimum: standard operators",
            reads="config.json",
            pair_stores=("safetensors", "onnx_data", "inline"),
        ),
        Target(
            "transformers.js",
            "transformers.js: standard operators",
            dtypes=("float32", "float16"),
            reads="config.json",
            stores=("onnx_data", "inline"),
            pair_stores=("inline",),
        ),
        Target("openvino", "OpenVINO: standard operators", dtypes=("float32", "float16")),
    )
}


class GraphOptions(Frozen):
    """How the graphs of a model are written."""

    dtype: str = "float32"
    target: str = "portable"
    quantize: str | None = None
    """`int8` or `int4`: matrices of linear layers, and embeddings, in so few bits."""
    keep: Sequence[str] = ()
    """Patterns of paths: matrices that are not quantized."""
    exact: bool = False
    """Whether products with matrices of few bits never round their inputs, whatever the target does."""
    names: Convention = "spec"
    """What inputs and outputs of whole sequences are called."""
    last: bool = False
    """Whether a decode step gives its output at each row's last new position alone."""


def target_for(options: GraphOptions) -> Target:
    """A target that runs what is asked of it. Raises ArchError E0504 where it does not."""
    target, dtype = TARGETS[options.target], options.dtype
    if dtype not in target.dtypes:
        raise error(
            "E0504",
            f"the target `{target.name}` does not run {dtype}",
            help=f"`--dtype {' or '.join(target.dtypes)}`, or another `--target`",
        )
    if options.quantize is not None and not target.offers("MatMulNBits", dtype):
        able = [t.name for t in TARGETS.values() if t.offers("MatMulNBits", dtype)]
        raise error(
            "E0504",
            f"the target `{target.name}` has no operator for quantized weights in {dtype}",
            help=f"`--quantize {options.quantize}` goes with `--target {' or '.join(able)}`",
        )
    return target
