"""Running what was emitted, with PyTorch and onnxruntime: smoke runs, verification, generation, measuring."""
