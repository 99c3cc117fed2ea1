"""The IR as an ONNX graph: built node by node, never traced, without torch."""
