"""What tests judge by has been seen to fail: comparisons of results, of gradients, of steps, of initial weights."""

import copy
import math
from collections.abc import Callable
from typing import Any

import decode_tools
import init_tools
import numpy as np
import onnx_tools
import pytest
import torch
from near import distance
from parity import checks
from test_onnx_files import SPEC
from torch import Tensor, nn
from torch_emit import emitted
from zoo import tiny

from archdsl.api import load
from archdsl.run.onnx_decoder import Decoder
from archdsl.run.torch_decoder import TorchDecoder

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("found", "wanted", "least", "apart"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0, 0.0),
        ([1.0, -3.0], [1.0, -4.0], 0.0, 0.25),
        ([1.0, -3.0], [1.0, -4.0], 10.0, 0.1),
        ([1.0, NAN], [1.0, -4.0], 0.0, INF),
        ([1.0, -4.0], [1.0, NAN], 0.0, INF),
        ([NAN], [NAN], 0.0, INF),
        ([1.0, INF], [1.0, INF], 0.0, 0.0),
        ([1.0, -INF], [1.0, INF], 0.0, INF),
        ([1.0, 1.0], [1.0, INF], 0.0, INF),
        ([0.0], [0.0], 0.0, 0.0),
        ([1e-9], [0.0], 0.0, INF),
        ([1, 2], [1, 4], 0.0, 0.5),
    ],
)
def test_how_far_two_tensors_are_apart(found: list[Any], wanted: list[Any], least: float, apart: float) -> None:
    for make in (np.array, torch.tensor):
        assert distance(make(found), np.array(wanted), least) == pytest.approx(apart)
        assert distance(make(found), torch.tensor(wanted), least) == pytest.approx(apart)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (torch.ones(1, 3), torch.ones(2, 3)),
        (torch.ones(3), torch.ones(3).long()),
        (torch.ones(3).bool(), torch.ones(3)),
        (torch.ones(3).bool(), torch.ones(3).long()),
    ],
)
def test_other_shapes_and_kinds_of_numbers_are_no_small_difference(found: Tensor, wanted: Tensor) -> None:
    with pytest.raises(AssertionError):
        distance(found, wanted)
    with pytest.raises(AssertionError):
        onnx_tools.distance(found.numpy(), wanted)


CLOSE: dict[str, Callable[[Tensor, Tensor], None]] = {
    "zoo": tiny.close,
    "emitted": emitted.close,
    "gradients": lambda a, b: emitted.same_gradients({"w": a}, {"w": b}),
}


@pytest.mark.parametrize("judge", CLOSE)
def test_results_that_differ_are_not_close(judge: str) -> None:
    right, close = torch.tensor([[1.0, -4.0, 2.0]]), CLOSE[judge]
    close(right + 1e-6, right)
    wrong = {
        "another number": right + torch.tensor([0.0, 0.0, 1e-3]),
        "NaN": torch.tensor([[NAN, -4.0, 2.0]]),
        "infinite": right * INF,
        "zeros": torch.zeros(1, 3),
    }
    zeros = torch.zeros(1, 3)
    for found, wanted in [(zeros, zeros), *((x, right) for x in wrong.values()), *((right, x) for x in wrong.values())]:
        with pytest.raises(AssertionError):
            close(found, wanted)


def test_gradients_are_of_the_same_weights() -> None:
    one = torch.ones(3)
    for found in ({}, {"v": one}, {"w": one, "v": one}):
        with pytest.raises(AssertionError):
            emitted.same_gradients(found, {"w": one})


# --- steps ------------------------------------------------------------------------------------------------------------


TWO_HEADS = """
model m(tokens: token[batch, time]) {
  x = tokens -> embedding(11, 8) -> mha(heads: 2, mask: causal)
  return x -> linear(11) as a, x -> linear(3) as b
}
"""


def nan_in_the_second_row(x: Any) -> Any:
    x = x.clone() if isinstance(x, Tensor) else x.copy()
    x[1, -1] = NAN
    return x


@pytest.mark.parametrize(
    ("decoder", "tool", "names"),
    [
        (Decoder, decode_tools.differences, {"steps", "left", "right"}),
        (TorchDecoder, decode_tools.torch_differences, {"steps", "static"}),
    ],
)
def test_a_step_that_gives_nan_or_the_last_of_another_row_is_seen(
    decoder: Any, tool: Any, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whichever of its outputs."""
    model, right = load(text=TWO_HEADS), decoder.run
    fine = tool(model)
    assert max(fine.values()) < 1e-4
    for i in range(2):
        for fault in (nan_in_the_second_row, lambda x: x[[1, 0]]):

            def run(*given: Any, i: int = i, fault: Any = fault, **more: Any) -> Any:
                results = right(*given, **more)
                return [*results[:i], fault(results[i]), *results[i + 1 :]]

            monkeypatch.setattr(decoder, "run", run)
            assert {name for name, apart in tool(model).items() if not apart < 1e-2} >= names


def test_a_stream_that_sees_padding_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TorchDecoder.stream

    def stream(self: Any, inputs: Any, prompt: Any, after: Any, mask: Any = None, **options: Any) -> Any:
        return right(self, inputs, prompt, after, torch.ones_like(mask), **options)

    monkeypatch.setattr(TorchDecoder, "stream", stream)
    found = decode_tools.torch_differences(load(text=SPEC))
    assert {name for name, apart in found.items() if not apart < 1e-2} == {
        *("left", "right", "left, static", "right, static")
    }


# --- modules ----------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A linear layer whose result is `factor` times as large in bfloat16."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(8, 8), factor

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y * self.factor if y.dtype == torch.bfloat16 else y


@pytest.mark.parametrize("factor", [1.2, 0.0, NAN, INF])
def test_a_module_that_is_wrong_in_bfloat16_is_seen(factor: float) -> None:
    torch.manual_seed(0)
    given = (torch.randn(3, 8),)
    checks.close_in_bfloat16(Scaled(), given)
    with pytest.raises(AssertionError):
        checks.close_in_bfloat16(Scaled(factor), given)


def test_a_weight_that_is_drawn_otherwise_is_seen() -> None:
    plain = emitted.module(load(text=SPEC))
    made = type(plain)
    assert init_tools.different(made, plain) == []

    class Other(made):  # type: ignore[misc,valid-type]
        def init_weights(self) -> None:
            super().init_weights()
            with torch.no_grad():
                next(p for n, p in self.named_parameters() if n == name).mul_(factor)

    for name, factor in (("token_embedding.weight", 1 + 1e-6), ("norm.weight", NAN)):  # noqa: B007
        assert init_tools.different(Other, copy.deepcopy(plain)) == [name]
