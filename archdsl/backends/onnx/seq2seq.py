"""An encoder and a decoder as optimum and transformers.js run them.

`encoder_model` gives `last_hidden_state`. `decoder_model_merged` is a step that is handed it each time, and computes
keys and values of cross-attention from it when it is given none, which is the first time. These programs feed neither
positions nor a mask of the tokens that are decoded: rows start together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from archdsl.backends.onnx.builder import Subgraph
from archdsl.backends.onnx.step import EncoderWriter, StepWriter, handed_names
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.onnx.write import GraphWriter, Written, written_by
from archdsl.ir.graph import Value
from archdsl.passes.dce import live
from archdsl.passes.flat_step import FlatStep
from archdsl.passes.flatten import FlatGraph, FlatNode

ENCODER, DECODER = "encoder_model", "decoder_model_merged"

_CROSS = re.compile(r"past_key_values\.(\d+)\.encoder\.(key|value)")


def unlike(steps: FlatStep) -> str:
    """Why the programs cannot run a model that has an encoder; "" where they can."""
    before = steps.before
    read = [v.dtype for v in before.inputs]
    if read.count("token") != 1 or read.count("padding") > 1 or {*read} - {"token", "padding"}:
        return "since its encoder reads more than tokens and their mask"
    if [v.dtype for v in steps.taken] != ["token"]:
        return "since its decoder reads more than tokens"
    kept = [(k.layer, k.role) if k.kind == "cache" else None for k in steps.kept]
    cross = [m.groups() for name in handed_names(steps).values() if (m := _CROSS.fullmatch(name))]
    both = sorted((str(layer), role) for layer, role in cross)
    if None in kept or not kept or sorted((str(k[0]), k[1]) for k in kept if k) != both:
        return "since not every layer keeps keys and values of the tokens before, and of the encoder"
    if steps.of.led:
        return "since places stand in front of the tokens of its decoder"
    if encoder_output(steps) is None:
        return "since its decoder reads several tensors of its encoder"
    return ""


def encoder_output(steps: FlatStep) -> Value | None:
    """The last tensor [batch, frames, width] through which all that steps are handed depends on what is encoded."""
    before = steps.before
    for node in reversed(before.nodes):
        (value, *more) = node.outputs
        if value.rank != 3 or more:
            continue
        behind = _behind(before, value)
        read = {v for n in behind for v in n.inputs if isinstance(v, Value)} | {*before.outputs}
        if value in read and all(v.dtype == "padding" for v in read & {*before.inputs}):
            return value
    return None


def _behind(graph: FlatGraph, *values: Value) -> tuple[FlatNode, ...]:
    """The nodes that compute a graph's outputs from these tensors."""
    return live([n for n in graph.nodes if not {*values} & {*n.outputs}], graph.outputs)


def write_pair(steps: FlatStep, options: GraphOptions) -> dict[str, Written]:
    """The two graphs of a model that is not `unlike` what they run, in the names of Hugging Face. Errors as of
    `write_steps`."""
    hidden = encoder_output(steps)
    assert hidden is not None
    before = FlatGraph(steps.before.inputs, live(steps.before.nodes, [hidden]), (hidden,))
    encoder = EncoderWriter(steps, replace(options, names="hf"), before, {hidden: "last_hidden_state"})
    return written_by({ENCODER: encoder, DECODER: DecoderWriter(steps, options, hidden)})


class DecoderWriter(StepWriter):
    """Writes a step that computes keys and values of cross-attention where it is given none."""

    def __init__(self, steps: FlatStep, options: GraphOptions, hidden: Value) -> None:
        super().__init__(steps, options, by_row=False)
        self.hidden = hidden

    def finish(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> Written:
        for x in (*inputs, *outputs):
            x.name = re.sub(r"\.(\d+)\.(key|value)$", r".\1.decoder.\2", str(x.name))
        return super().finish(sorted(inputs, key=_place), sorted(outputs, key=_place))

    def add_inputs(self) -> None:
        builder, before, names = self.builder, self.steps.before, self.handed_names
        self.inputs += map(self.sequence, self.steps.taken)
        hidden = self.input("encoder_hidden_states", self.hidden, self.hidden.dtype)
        self.inputs.append(hidden)
        for value in before.inputs:
            if value.dtype == "padding":
                self.inputs.append(self.input("encoder_attention_mask", value, "int"))
        cross = [v for v in before.outputs if _CROSS.fullmatch(names[v])]
        others = live(_behind(before, self.hidden), [v for v in before.outputs if v not in cross])
        for node in others:
            GraphWriter.node(self, node)
        pasts = []
        for value in cross:
            x = self.outer(names[value], value.shape, value.dtype)
            assert x.shape is not None
            x.shape = ir.Shape([d if isinstance(d, int) or i != 2 else f"past_{d}" for i, d in enumerate(x.shape)])
            pasts.append(x)
        self.inputs += pasts
        builder.path = "cross_attention"
        length = builder.add("Shape", [pasts[0]], {"start": 2, "end": 3})
        first, then = Subgraph(), Subgraph()
        with builder.within(first):
            for node in live(_behind(before, self.hidden), cross):
                if node not in others:
                    GraphWriter.node(self, node)
            computed = [builder.add("Identity", [self.value(v)]) for v in cross]
        with builder.within(then):
            given = [builder.add("Identity", [x]) for x in pasts]
        made = builder.add(
            "If",
            [builder.add("Equal", [length, [0]])],
            {
                "then_branch": ir.Graph([], computed, nodes=first.nodes, name=builder.unique("computed")),
                "else_branch": ir.Graph([], given, nodes=then.nodes, name=builder.unique("given")),
            },
            outputs=len(cross),
            types=[v.dtype for v in cross],
        )
        for value, x in zip(cross, made, strict=True):
            x.shape = self.shape(value.shape)
            self.values[value] = x
            self.crossed.append((names[value].removeprefix("past_key_values."), x))


def _place(x: ir.Value) -> tuple[int, bool]:
    """Where an input or output stands: programs tell keys and values by their order, layer by layer, those of the
    tokens first."""
    found = re.search(r"\.(\d+)\.(\w+)\.(?:key|value)$", str(x.name))
    return (int(found[1]), found[2] == "encoder") if found else (-1, False)
