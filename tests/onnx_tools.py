"""What tests of the ONNX back end share: a model as PyTorch and as an ONNX session, of the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import near
import onnx
import onnxruntime
import torch
from torch import Tensor

from archdsl.backends.onnx.store import inline, serialized
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.onnx.write import write
from archdsl.ir.graph import Model


def onnx_bytes(model: Model, module: torch.nn.Module, **options: Any) -> bytes:
    """The model's graph with the weights of an emitted module, checked by onnx itself."""
    written = write(model, GraphOptions(**options))
    inline(written, {k: t.detach().float().numpy() if t.is_floating_point() else t.numpy() for k, t in state(module)})
    data = serialized(written)
    check(data)
    return data


def state(module: torch.nn.Module) -> list[tuple[str, Tensor]]:
    return list(module.state_dict(keep_vars=True).items())


def check(data: bytes) -> None:
    proto = onnx.load_from_string(data)
    if any(n.domain for n in proto.graph.node):
        return  # onnx knows nothing of onnxruntime's own operators
    onnx.checker.check_model(proto, full_check=True)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)


def session(data: bytes | Path) -> onnxruntime.InferenceSession:
    """A session for a graph, or for the file of one, with one thread: others would wait for work in a loop."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run(data: bytes, inputs: Mapping[str, Tensor]) -> Sequence[Any]:
    known = session(data)
    wanted = {i.name for i in known.get_inputs()}
    found: Sequence[Any] = known.run(None, {k: t.numpy() for k, t in inputs.items() if k in wanted})
    return found


def distance(ours: Any, theirs: Tensor) -> float:
    """The largest difference, relative to the largest number, or to 1 where that is more."""
    return near.distance(ours, theirs, least=1.0)
