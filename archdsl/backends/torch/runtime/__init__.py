"""What emitted files build on, copied into them by source: see `backends/torch/helpers.py`."""
