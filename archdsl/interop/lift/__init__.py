"""A module of PyTorch becomes a spec."""
