"""Sessions of onnxruntime whose outputs stay on the device, so that what one run gives the next can be given."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from archdsl.diagnostics import error
from archdsl.diagnostics.exhausted import exhausted
from archdsl.run.smoke import one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(bfloat16)": np.uint16,
}
"""The types of onnxruntime's inputs; of bfloat16, which numpy does not have, the bits."""
BFLOAT16 = 16
"""Its number in ONNX (`TensorProto.BFLOAT16`)."""


class BoundSession:
    """A session that takes and gives tensors of onnxruntime (`OrtValue`), with the same calls on every device."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.inputs = {i.name: i for i in session.get_inputs()}
        self.outputs = [o.name for o in session.get_outputs()]
        self.device, self.index = "cpu", 0
        """The device on which outputs stay, and its number."""
        if session.get_providers()[0] == "CUDAExecutionProvider":
            options = session.get_provider_options()["CUDAExecutionProvider"]
            self.device, self.index = "cuda", int(options["device_id"])

    def tensor(self, name: str, array: NDArray[Any]) -> Any:
        """Return an array as a tensor on the CPU, in the type of the input `name`; for bfloat16 of its bits.

        It stays where it was made: onnxruntime copies an input to where the graph reads it, and shapes are computed
        from inputs on the CPU."""
        kind, value = self.inputs[name].type, importlib.import_module("onnxruntime").OrtValue
        array = np.ascontiguousarray(array.astype(NUMPY[kind], copy=False))
        if kind == "tensor(bfloat16)":
            return value.ortvalue_from_numpy_with_onnx_type(array, BFLOAT16)
        return value.ortvalue_from_numpy(array)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name, on the session's device, of inputs that may have further names. The device has
        computed them when this returns.

        Raises ArchError E0503 where onnxruntime cannot run the graph."""
        binding = self.session.io_binding()
        for name in self.inputs:
            binding.bind_ortvalue_input(name, inputs[name])
        for name in self.outputs:
            binding.bind_output(name, self.device, self.index)
        asking_runtime(lambda: self.session.run_with_iobinding(binding), "run the graph")
        return dict(zip(self.outputs, binding.get_outputs(), strict=True))


def asking_runtime(work: Callable[[], Any], what: str) -> Any:
    """Return what `work` returns, which calls onnxruntime and nothing else.

    Raises ArchError E0503 where onnxruntime could not do it, as `what` says."""
    try:
        return work()
    except Exception as problem:
        bound = type(problem) is RuntimeError  # of a run with bound tensors
        if not bound and not type(problem).__module__.startswith("onnxruntime"):
            raise
        if (told := exhausted(problem)) is not None:
            raise told from None
        raise error(
            "E0503",
            f"onnxruntime could not {what}: {one_line(problem).removeprefix('Error in execution: ')[:300]}",
            help="give another `--seq` or `--batch`, or another `--target` or `--dtype`",
        ) from None
