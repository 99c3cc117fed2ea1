"""Every model of the zoo, scaled down, in onnxruntime: the whole sequence at once, and step by step if it decodes."""

from __future__ import annotations

import re

import pytest
import torch
from decode_tools import differences, module_of
from onnx_tools import distance, onnx_bytes, run

from archdsl.diagnostics import ArchError
from zoo.sizes import sample
from zoo.tiny import graph, inputs

TOLERANCE = 1e-4

SEES_LATER = "cannot be decoded step by step"
FOLLOWS_NOTHING = "has no output that follows the positions of a sequence"
NOT_STEPPED = {
    r"bert:bert_sequence_classifier|graph_mamba:|vit:|mixer:|convmixer:": FOLLOWS_NOTHING,
    r"conformer:conformer_(l|m|s)$": FOLLOWS_NOTHING,
    r"bert:|roberta:|albert:|xlnet:|linformer:|bigbird:|norms:|self_attention:": SEES_LATER,
    r"deep_rnn:|tagger:(bi|deep)": SEES_LATER,
    r"reformer:": "makes an axis of time / ",  # sorted and cut by what is in the whole sequence
    r"performer:performer_bidirectional|bytenet:bytenet$|glm_130b:glm_130b_prefix": SEES_LATER,
}
"""Models that do not decode, and why; all others do."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sample())
def test_onnxruntime_gives_what_pytorch_gives(name: str) -> None:
    """The whole sequence at once; and in chunks, where rows may be padded on either side."""
    model = graph(name)
    made, given = module_of(model), inputs(model)
    with torch.no_grad():
        results = made(**given)
    expected = [results] if isinstance(results, torch.Tensor) else list(results)
    found = run(onnx_bytes(model, made), given)
    assert max(distance(a, b) for a, b in zip(found, expected, strict=True)) < TOLERANCE
    reason = next((r for pattern, r in NOT_STEPPED.items() if re.match(pattern, name)), None)
    if reason is not None:
        with pytest.raises(ArchError, match=reason):
            differences(model, module=made)
        return
    apart = differences(model, module=made)
    assert max(apart.values()) < TOLERANCE, apart
