"""Folders for transformers: a model's configuration and its classes as remote code, with weights and a tokenizer."""
