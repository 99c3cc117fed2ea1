"""One client of `benchmarks/clients.py`, on one model: prints what it found as one line of JSON.

    python worker.py CLIENT FOLDER

It is started in an environment of its own, so that it imports nothing of archdsl. FOLDER has what `clients.py` wrote:
`graph/` for whole sequences, `steps/` where the model generates, and `case.json` with inputs and what PyTorch gives."""

from __future__ import annotations

import json
import logging
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
    session = InferenceSession(
        path if isinstance(path, bytes) else str(path), options, providers=["CPUExecutionProvider"]
    )
    inputs = {i.name: (TYPES[i.type[7:-1]], list(i.shape)) for i in session.get_inputs()}
    return Graph(inputs, [o.name for o in session.get_outputs()], lambda feed: list(session.run(None, feed)))


def openvino(path: Path) -> Graph:
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    _, outputs, inputs = _proto(path)

    def run(feed: Arrays) -> list[Any]:
        found = compiled({n: feed[n] for n in feed if any(n in i.get_names() for i in compiled.inputs)})
        return [found[name] for name in outputs]

    return Graph(inputs, outputs, run)


def evaluator(path: Path) -> Graph:
    from onnx.reference import ReferenceEvaluator

    _, outputs, inputs = _proto(path)
    evaluated = ReferenceEvaluator(str(path))
    return Graph(inputs, outputs, lambda feed: list(evaluated.run(None, dict(feed))))


def onnxsim(path: Path) -> Graph:
    from onnxsim import simplify

    proto, *_ = _proto(path)
    simplified, _ = simplify(proto)
    return onnxruntime(simplified.SerializeToString())


def onnxslim(path: Path) -> Graph:
    from onnxslim import slim

    return onnxruntime(slim(str(path)).SerializeToString())


def _proto(path: Path) -> tuple[Any, list[str], dict[str, tuple[Any, list[Any]]]]:
    import onnx

    proto = onnx.load(path)
    inputs = {
        i.name: (
            onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type),
            [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim],
        )
        for i in proto.graph.input
    }
    return proto, [o.name for o in proto.graph.output], inputs


def generate(load: Callable[[Path], Graph], folder: Path, case: Mapping[str, Any]) -> list[int]:
    """As many greedy tokens as PyTorch gave: the prompt at once, then one by one."""
    step = load(folder / "steps" / "model.onnx")
    ids, count = np.array([case["prompt"]]), len(case["tokens"])
    kept = [o.replace("present.", "past_key_values.", 1) for o in step.outputs[1:]]
    sizes = {"batch_size": 1, "batch": 1, "past_sequence_length": 0}
    state = {n: np.zeros([sizes.get(d, d) for d in step.inputs[n][1]]) for n in kept}
    once: dict[str, Any] = {}
    if case["source"]:
        once = load(folder / "steps" / case["encoder"])({n: np.array(v["data"]) for n, v in case["source"].items()})
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


def whole(load: Callable[[Path], Graph], folder: Path, case: Mapping[str, Any]) -> float:
    """The largest difference from what PyTorch gives."""
    graph = load(folder / "graph" / "model.onnx")
    found = graph({n: np.array(v["data"]) for n, v in case["inputs"].items()})
    return max(float(np.abs(np.asarray(found[name]) - np.array(data)).max()) for name, data in case["outputs"].items())


# --- clients that generate --------------------------------------------------------------------------------------------


def genai(folder: Path, case: Mapping[str, Any]) -> list[int]:
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(folder / "steps"))
    params = onnxruntime_genai.GeneratorParams(model)
    length = len(case["prompt"]) + len(case["tokens"])
    params.set_search_options(max_length=length)
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(np.array([case["prompt"]], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(t) for t in generator.get_sequence(0)[len(case["prompt"]) :]]


def main() -> None:
    client, folder = sys.argv[1], Path(sys.argv[2])
    case = json.loads((folder / "case.json").read_text())
    logging.disable(logging.WARNING)
    found: dict[str, Any] = {}
    runs = {f.__name__: f for f in (onnxruntime, openvino, evaluator, onnxsim, onnxslim)}
    if client in runs:
        found["difference"] = whole(runs[client], folder, case)
        print(json.dumps(found))
        if case["tokens"]:
            found["tokens"] = generate(runs[client], folder, case)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
