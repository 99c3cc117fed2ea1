"""One client of `benchmarks/clients.py`, on one model: what it found as a line of JSON, the last one counts.

    python worker.py CLIENT FOLDER OPSET

It is started in an environment of its own, so that it imports nothing of archdsl. FOLDER has what `clients.py` wrote:
`graph-OPSET/` for whole sequences, `steps-OPSET/` where the model generates, and `case.json` with inputs and what
PyTorch gives for them."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
TYPES = {"float": np.float32, "float16": np.float16, "int64": np.int64, "int32": np.int32, "bool": np.bool_}


class Graph:
    """A loaded graph: `inputs` by name, their types and sizes (numbers or names); `outputs`; and how it is run."""

    def __init__(
        self, inputs: dict[str, tuple[Any, list[Any]]], outputs: list[str], run: Callable[[Arrays], list[Any]]
    ) -> None:
        self.inputs, self.outputs, self._run = inputs, outputs, run

    def __call__(self, values: Arrays) -> dict[str, Any]:
        feed = {n: np.ascontiguousarray(values[n], dtype=kind) for n, (kind, _) in self.inputs.items()}
        return dict(zip(self.outputs, self._run(feed), strict=True))


# --- clients that run a graph -----------------------------------------------------------------------------------------


def onnxruntime(path: Path | bytes) -> Graph:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    source = path if isinstance(path, bytes) else str(path)
    session = InferenceSession(source, options, providers=["CPUExecutionProvider"])
    inputs = {i.name: (TYPES[i.type[7:-1]], list(i.shape)) for i in session.get_inputs()}
    return Graph(inputs, [o.name for o in session.get_outputs()], lambda feed: list(session.run(None, feed)))


def openvino(path: Path) -> Graph:
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    known = {name for i in compiled.inputs for name in i.get_names()}
    outputs, inputs = _signature(path)

    def run(feed: Arrays) -> list[Any]:
        found = compiled({n: x for n, x in feed.items() if n in known})  # what nothing reads is no input there
        return [found[name] for name in outputs]

    return Graph(inputs, outputs, run)


def evaluator(path: Path) -> Graph:
    from onnx.reference import ReferenceEvaluator

    outputs, inputs = _signature(path)
    evaluated = ReferenceEvaluator(str(path))
    return Graph(inputs, outputs, lambda feed: list(evaluated.run(None, dict(feed))))


def onnxsim(path: Path) -> Graph:
    import onnx
    from onnxsim import simplify

    simplified, _ = simplify(onnx.load(path))
    return onnxruntime(simplified.SerializeToString())


def onnxslim(path: Path) -> Graph:
    from onnxslim import slim

    return onnxruntime(slim(str(path)).SerializeToString())


def _signature(path: Path) -> tuple[list[str], dict[str, tuple[Any, list[Any]]]]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    inputs = {}
    for i in graph.input:
        kind = i.type.tensor_type
        sizes = [d.dim_param or d.dim_value for d in kind.shape.dim]
        inputs[i.name] = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type), sizes
    return [o.name for o in graph.output], inputs


def arrays(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.array(x["data"]).reshape(x["dims"]) for name, x in given.items()}


def largest(found: Mapping[str, Any], case: Mapping[str, Any]) -> float:
    """The largest difference from what PyTorch gives; infinity where a number is NaN, whose difference `max` may lose.
    Raises ValueError where a shape is another."""
    worst = 0.0
    for name, x in arrays(case["outputs"]).items():
        own = np.asarray(found[name], np.float32)
        if own.shape != x.shape:
            raise ValueError(f"{name} has {own.shape}, not {x.shape}")
        apart = float(np.abs(own - x).max())
        worst = max(worst, math.inf if math.isnan(apart) else apart)
    return worst


def generate(load: Callable[[Path], Graph], folder: Path, case: Mapping[str, Any]) -> list[int]:
    """As many greedy tokens as PyTorch gave: the prompt at once, then one by one."""
    step = load(folder / "model.onnx")
    ids, count = np.array([case["prompt"]]), len(case["tokens"])
    kept = [o.replace("present.", "past_key_values.", 1) for o in step.outputs[1:]]
    sizes = {"batch_size": 1, "batch": 1, "past_sequence_length": 0}
    state = {n: np.zeros([sizes.get(d, d) for d in step.inputs[n][1]]) for n in kept}
    once = load(folder / "encoder.onnx")(arrays(case["source"])) if case["source"] else {}
    new, past = ids, 0
    for _ in range(count):
        positions = np.arange(past, ids.shape[1])[None]
        feed = {"input_ids": new, "attention_mask": np.ones_like(ids), "position_ids": positions, **once, **state}
        feed["past_length"] = np.array([past])
        found = step(feed)
        state = {n: found[n.replace("past_key_values.", "present.", 1)] for n in kept}
        past = ids.shape[1]
        new = np.asarray(found[step.outputs[0]])[:, -1].argmax(-1)[:, None]
        ids = np.concatenate([ids, new], 1)
    tokens: list[int] = ids[0, -count:].tolist()
    return tokens


# --- clients that read files beside a graph ---------------------------------------------------------------------------


def genai(folder: Path, case: Mapping[str, Any]) -> list[int]:
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(folder))
    params = onnxruntime_genai.GeneratorParams(model)
    start = len(case["prompt"])
    params.set_search_options(max_length=start + len(case["tokens"]))
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(np.array([case["prompt"]], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[start:]]


def optimum_generates(folder: Path, case: Mapping[str, Any]) -> list[int]:
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM

    model = ORTModelForCausalLM.from_pretrained(folder)
    made = model.generate(torch.tensor([case["prompt"]]), max_new_tokens=len(case["tokens"]), do_sample=False)
    return [int(token) for token in made[0, len(case["prompt"]) :]]


def optimum_translates(folder: Path, case: Mapping[str, Any]) -> list[int]:
    import torch
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    model = ORTModelForSeq2SeqLM.from_pretrained(folder)
    source = {n: torch.from_numpy(x) for n, x in arrays(case["source"]).items()}
    prompt, count = torch.tensor([case["prompt"]]), len(case["tokens"])
    made = model.generate(**source, decoder_input_ids=prompt, max_new_tokens=count, do_sample=False)
    return [int(token) for token in made[0, len(case["prompt"]) :]]


def optimum_runs(folder: Path, case: Mapping[str, Any]) -> float:
    import torch
    from optimum import onnxruntime as classes

    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    task = "For".join(architecture.split("For")[1:]) or "FeatureExtraction"
    model = getattr(classes, f"ORTModelFor{task}").from_pretrained(folder)
    found = model(**{n: torch.from_numpy(x) for n, x in arrays(case["inputs"]).items()})
    names = [name for name in case["outputs"] if name in found]
    if not names:
        raise ValueError(f"no output is called {' or '.join(case['outputs'])}")
    return largest({n: found[n] for n in names}, {"outputs": {n: case["outputs"][n] for n in names}})


# --- quantizers -------------------------------------------------------------------------------------------------------


def quantize_dynamic(path: Path, other: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Its default takes the standard's `Attention` for onnxruntime's.
    quantize_dynamic(path, other, weight_type=QuantType.QUInt8, op_types_to_quantize=["MatMul", "Gather"])


def matmul_nbits(path: Path, other: Path) -> None:
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(onnx.load(path), block_size=32, is_symmetric=False)
    made.process()
    made.model.save_model_to_file(str(other))


def linears(graph: Any) -> int:
    """How many products with a matrix of the model a graph has, those of bodies left out."""
    held = {x.name: len(x.dims) for x in graph.initializer}
    return sum(n.op_type == "MatMul" and held.get(n.input[1]) == 2 for n in graph.node)


def quantized(quantizer: Callable[[Path, Path], None], folder: Path, case: Mapping[str, Any]) -> dict[str, Any]:
    import onnx

    path, other = folder / "model.onnx", folder / f"{quantizer.__name__}.onnx"
    quantizer(path, other)
    before, after = (linears(onnx.load(p).graph) for p in (path, other))
    run = onnxruntime(other)
    run({n: x for n, x in arrays(case["inputs"]).items() if n in run.inputs})
    return {"matrices": before, "left": after}


def main() -> None:
    client, folder, opset = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    case = json.loads((folder / "case.json").read_text())
    graph, steps, pair = folder / f"graph-{opset}", folder / f"steps-{opset}", folder / "pair"
    logging.disable(logging.WARNING)
    found: dict[str, Any] = {}
    runs = {f.__name__: f for f in (onnxruntime, openvino, evaluator, onnxsim, onnxslim)}
    with contextlib.redirect_stdout(sys.stderr):
        if client in runs:
            load: Any = runs[client]
            found["difference"] = largest(load(graph / "model.onnx")(arrays(case["inputs"])), case)
            print(json.dumps(found), file=sys.__stdout__, flush=True)
            if case["tokens"]:
                found["tokens"] = generate(load, steps, case)
        elif client == "genai":
            found["tokens"] = genai(steps, case)
        elif client == "optimum" and (steps / "config.json").exists():
            found["tokens"] = optimum_generates(steps, case)
        elif client == "optimum" and pair.exists():
            found["tokens"] = optimum_translates(pair, case)
        elif client == "optimum":
            found["difference"] = optimum_runs(graph, case)
        else:
            found |= quantized(quantize_dynamic if client == "quantize_dynamic" else matmul_nbits, graph, case)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
