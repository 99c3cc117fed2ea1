"""Taggers: counts, and the outputs of torch's own recurrent layers with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zoo.tiny import graph, inputs, module
from zoo.tiny_taggers import TINY

EMBEDDING = 130_000 * 50


def cell(gates: int, inputs: int, hidden: int = 300) -> int:
    """Two matrices and two biases for each gate, as PyTorch has them."""
    return gates * hidden * (inputs + hidden + 2)


PUBLISHED = {
    "tagger:bilstm_tagger": EMBEDDING + 2 * cell(4, 50) + 9 * 601,
    "tagger:lstm_tagger": EMBEDDING + cell(4, 50) + 9 * 301,
    "tagger:bigru_tagger": EMBEDDING + 2 * cell(3, 50) + 9 * 601,
    "tagger:birnn_tagger": EMBEDDING + 2 * cell(1, 50) + 9 * 601,
    "tagger:deep_bilstm_tagger": EMBEDDING + 2 * cell(4, 50) + 2 * cell(4, 600) + 9 * 601,
}
LAYERS = {"bigru_tagger": nn.GRU, "birnn_tagger": nn.RNN}


@pytest.mark.parametrize("name", TINY)
def test_results_are_those_of_torch(name: str) -> None:
    ours = module(name).eval()
    weights = ours.state_dict()
    both_ways, layers = name.partition(":")[2] != "lstm_tagger", 2 if "deep" in name else 1
    theirs = LAYERS.get(name.partition(":")[2], nn.LSTM)(12, 10, layers, batch_first=True, bidirectional=both_ways)
    with torch.no_grad():
        for i in range(layers):
            for ways, suffix in (("forwards.", ""), ("backwards.", "_reverse")) if both_ways else (("", ""),):
                for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    getattr(theirs, f"{kind}_l{i}{suffix}").copy_(weights[f"layers.{i}.{ways}{kind}_l0"])
        tokens = inputs(graph(name))["tokens"]
        y = theirs(weights["embedding.weight"][tokens])[0]
        expected = y @ weights["label.weight"].T + weights["label.bias"]
        assert torch.allclose(ours(tokens), expected, atol=1e-6)
