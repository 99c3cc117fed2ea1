"""Attention: its core, its masks, its biases, and attention in linear time."""
