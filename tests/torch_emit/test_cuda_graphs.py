"""What a CUDA graph asks of a compiled step: that what it reads and writes lies where it lay in the step before.

Graphs are for CUDA. Here a compiler takes their place, which notes the addresses of what each step is handed, and which
of it torch knows to stay there: it makes no graph of a step that writes to anything else.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from zoo import sizes, tiny

from archdsl.diagnostics import ArchError
from archdsl.run.torch_decoder import TorchDecoder
from torch_emit.emitted import module

MODELS = [
    "llama3:llama3_8b",
    "mistral:mistral_7b",
    "deepseek_v3:deepseek_v3",
    "mamba:mamba_130m",
    "t5:t5_base",
    "bloom:bloom_176b",
    "rnn_lm:lstm_lm_small",
    "transformer:transformer_base",
]
"""KV caches, rings of a window, latents, states, what an encoder has made, biases of positions; `pytest --every` takes
every family that generates."""


NEW = 6
"""Tokens that are generated."""


class Compiler:
    """A back end of `torch.compile` that notes what is handed to graphs."""

    def __init__(self) -> None:
        self.graphs = 0
        self.static: list[dict[int, int]] = []
        """For each run, the addresses of what stays, by the number of the input."""
        self.free: list[int] = []
        """Of each run, how many other tensors were handed in."""
        self.written: set[bool] = set()
        """Whether what was written to stays."""

    def __call__(self, graph: GraphModule, _: list[Any], **__: Any) -> Any:
        self.graphs += 1
        inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
        stays = ["_dynamo_static_input_type" in n.meta.get("tensor_dict", {}) for n in inputs]

        def run(*given: Any) -> Any:
            tensors = [(i, x) for i, x in enumerate(given) if isinstance(x, Tensor)]
            versions = [x._version for _, x in tensors]
            y = graph(*given)
            self.static.append({i: x.data_ptr() for i, x in tensors if stays[i]})
            self.free.append(sum(not stays[i] for i, _ in tensors))
            self.written |= {stays[i] for (i, x), v in zip(tensors, versions, strict=True) if x._version > v}
            return y

        return run


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["of one length", "of two lengths"])
@pytest.mark.parametrize("name", sorted({*MODELS, *sizes.sample()}) if sizes.every else MODELS)
def test_steps_write_where_they_wrote_before(name: str, rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        made: Any = module(name, "generate").eval()
    except ArchError:
        made = None
    if not hasattr(made, "generate"):
        assert name not in MODELS
        pytest.skip("it does not generate")
    if name.startswith("deepseek"):
        made.bfloat16()  # experts break a graph in other types
    drawn = tiny.inputs(tiny.graph(name))
    (tokens,) = (drawn[n] for n in TorchDecoder(tiny.graph(name), made).new)
    inputs = {n: x for n, x in drawn.items() if n in inspect.signature(made.stream).parameters and x is not tokens}
    mask = torch.ones_like(tokens[:, :6], dtype=torch.bool)
    mask[-1, :2] = rows == "of one length"
    wanted = made.generate(tokens[:, :6], NEW, attention_mask=mask, **inputs)
    modes, compiler, compile = [], Compiler(), torch.compile

    def compiled(step: Any, mode: str | None = None) -> Any:
        modes.append(mode)
        return compile(step, backend=compiler, fullgraph=True)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", compiled)
    assert torch.equal(made.generate(tokens[:, :6], NEW, attention_mask=mask, compiled=True, **inputs), wanted)
    assert modes == ["reduce-overhead"]
    assert compiler.written == {True}
    assert compiler.graphs == 1
    assert compiler.static == compiler.static[:1] * (NEW - 1)  # the first token is of the prompt
    assert compiler.free == [1] * (NEW - 1)  # the new token
