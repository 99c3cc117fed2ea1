"""Weights without a back end: how each is initialized, and safetensors files."""
