"""Every judge has been seen to fail: what compares numbers finds NaN, exchanged weights, a wrong mask in a decode step,
and does not call equal what it has not compared."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_tools import Run
from test_onnx_files import SPEC
from torch import Tensor, nn

import archdsl
from archdsl.api import load
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.diagnostics import ArchError
from archdsl.report.tables import plain_text, verify_view
from archdsl.run import verify as verification
from archdsl.run.difference import IncomparableError, difference, farthest
from archdsl.run.onnx_decoder import Decoder
from archdsl.run.verify import VerifyReport, verify

# --- two tensors ------------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf
ONES = [1.0, -4.0, 2.0]


@pytest.mark.parametrize(
    ("found", "expected", "apart"),
    [
        ([ONES], [ONES], 0.0),
        ([ONES], [[1.0, -4.0, 1.0]], 0.25),
        ([ONES, [NAN]], [ONES, [1.0]], INF),  # of a second tensor, whose difference no `max` may lose
        ([[NAN, -4.0, 2.0]], [ONES], INF),
        ([ONES], [[1.0, -4.0, NAN]], INF),
        ([[NAN, 1.0]], [[NAN, 1.0]], INF),
        ([[INF, 1.0]], [[INF, 1.0]], 0.0),
        ([[-INF, 1.0]], [[INF, 1.0]], INF),
        ([[0.0, 1e-9], ONES], [[0.0, 0.0], ONES], 1e-9),  # zeros beside what was compared
        ([[1, 2, 3]], [[1, 2, 4]], 1 / 3),
    ],
)
def test_how_far_tensors_are_apart(found: list[Any], expected: list[Any], apart: float) -> None:
    assert farthest([*map(torch.tensor, found)], [*map(torch.tensor, expected)]) == pytest.approx(apart)


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        ([], [], "nothing is compared"),
        ([torch.zeros(2, 0)], [torch.zeros(2, 0)], "nothing is compared"),
        ([torch.zeros(3)], [torch.zeros(3)], "nothing is compared"),
        ([torch.ones(3)], [torch.zeros(3)], "nothing is compared"),
        ([torch.ones(1, 3)], [torch.ones(2, 3)], "shapes differ"),
        ([torch.ones(3).long()], [torch.ones(3)], "types differ"),
        ([torch.ones(3).bool()], [torch.ones(3).long()], "types differ"),
        ([torch.ones(3)], [torch.ones(3), torch.ones(3)], "instead of 2"),
    ],
)
def test_what_cannot_be_compared_is_not_equal(found: list[Tensor], expected: list[Tensor], said: str) -> None:
    with pytest.raises(IncomparableError, match=said):
        farthest(found, expected)


def test_whole_numbers_beyond_those_of_float64_differ() -> None:
    a, b = np.array([2**62 + 1]), np.array([2**62])
    assert difference(a, b).relative == 1


@pytest.mark.parametrize("tolerance", [NAN, INF, -1.0])
def test_a_tolerance_that_all_or_nothing_would_meet_is_refused(tolerance: float) -> None:
    with pytest.raises(ArchError, match="`tolerance` is a number of at least 0"):
        archdsl.verify(text=SPEC, tolerance=tolerance)


# --- verify -----------------------------------------------------------------------------------------------------------


def verified(text: str = SPEC, decode: bool = True) -> VerifyReport:
    return verify(load(text=text), GraphOptions(), weights=None, seed=0, batch=2, time=9, device="cpu", decode=decode)


def wrong(report: VerifyReport) -> set[str]:
    """The comparisons that differ by more than the tolerance."""
    parts = {"": report.outputs, "onnx ": report.decode, "torch ": report.torch_decode}
    return {f"{of}{n}" for of, part in parts.items() for n, d in part.items() if not d.relative <= report.tolerance}


Patch = pytest.MonkeyPatch


def one_number_is_nan(patch: Patch) -> None:
    right = verification.run_session

    def run(*given: Any) -> dict[str, Any]:
        found = {name: x.copy() for name, x in right(*given).items()}
        next(iter(found.values())).flat[-1] = np.nan
        return found

    patch.setattr(verification, "run_session", run)


def two_weights_are_exchanged(patch: Patch) -> None:
    right = verification.load_weights

    def loaded(module: nn.Module, *given: Any) -> None:
        right(module, *given)
        state = {name: x.clone() for name, x in module.state_dict().items()}
        one, other = (next(n for n in state if n.endswith(end)) for end in ("gate.weight", "up.weight"))
        module.load_state_dict(state | {one: state[other], other: state[one]})

    patch.setattr(verification, "load_weights", loaded)


def a_step_of_onnx_sees_too_little(patch: Patch) -> None:
    right = Decoder.run

    def run(self: Decoder, inputs: Any, chunks: Sequence[int], mask: Any = None) -> Any:
        mask = np.ones((2, sum(chunks)), np.int64) if mask is None else mask
        mask[:, 1] = 0
        return right(self, inputs, chunks, mask)

    patch.setattr(Decoder, "run", run)


def a_step_of_pytorch_sees_too_much(patch: Patch) -> None:
    right = verification._source_of_steps

    def source(model: Any) -> tuple[str | None, str | None]:
        text, why = right(model)
        assert text is not None
        mask = "torch.arange(self.end, device=x.device) <= self.positions[:, None, :, None]"
        assert mask in text
        return text.replace(mask, "None"), why

    patch.setattr(verification, "_source_of_steps", source)


def a_step_of_pytorch_raises(patch: Patch) -> None:
    right = verification._source_of_steps
    patch.setattr(
        verification, "_source_of_steps", lambda model: ((right(model)[0] or "").replace("self.mask =", "mask ="), None)
    )


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (one_number_is_nan, {"output"}),
        (two_weights_are_exchanged, {"output", "onnx prefill", "onnx steps", "onnx left", "onnx right"}),
        (a_step_of_onnx_sees_too_little, {"onnx prefill", "onnx steps", "onnx left", "onnx right"}),
        (a_step_of_pytorch_sees_too_much, {"torch static", "torch left", "torch right"}),
        (a_step_of_pytorch_raises, set()),
    ],
)
def test_verify_finds_a_planted_fault(plant: Callable[[Patch], None], found: set[str], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    report = verified()
    assert not report.agrees
    assert wrong(report) == found
    assert (report.no_torch_decode is None) == bool(found)


@pytest.mark.parametrize("result", ["y - y", "log(-1 - y * y)"], ids=["zeros", "NaN"])
def test_verify_does_not_call_equal_what_it_has_not_compared(result: str) -> None:
    text = f"model m(width = 4)(x: [batch, width]) {{ y = x -> linear(width)  return {result} }}"
    report = verified(text, decode=False)
    assert not report.agrees
    assert "disagree" in plain_text(*verify_view(report))


@pytest.mark.parametrize(("shape", "padded"), [("batch, time", True), ("time", False), ("1, time", False)])
def test_what_all_rows_share_has_no_rows_of_several_lengths(shape: str, padded: bool) -> None:
    """Steps are compared all the same."""
    text = f"""model m(width = 8)(x: float[batch, time, width], scale: float[{shape}]) -> [batch, time, width] {{
  return (x * (scale -> unsqueeze(-1))) -> mha(heads: 1, mask: causal)
}}"""
    report = verified(text)
    assert report.agrees
    assert {*report.decode} == {"prefill", "steps"} | ({"left", "right"} if padded else set())
    assert {"prefill", "steps"} <= report.torch_decode.keys()


@pytest.mark.parametrize("result", ["x + x[:1]", "x - mean(x, axis: 0, keep: true)"])
def test_rows_that_depend_on_others_are_not_compared_alone(result: str) -> None:
    report = verified(f"model m(x: float[batch, time, 8]) -> [batch, time, 8] {{ return {result} }}")
    assert report.agrees
    assert {*report.decode} == {"prefill", "steps"}


@pytest.mark.parametrize("result", ["x", "x[:, :time]", "x, x", "x -> transpose(1, 2) -> transpose(1, 2)"])
def test_an_output_that_is_the_input_stays_what_it_is(result: str) -> None:
    report = verified(f"model m(x: float[batch, time, 8]) {{ return {result} }}")
    assert report.agrees
    assert {d.absolute for part in (report.outputs, report.decode, report.torch_decode) for d in part.values()} == {0}


def test_zeros_beside_other_outputs_are_said() -> None:
    text = "model m(width = 4)(x: [batch, width]) { y = x -> linear(width)  return y, (0 * y) -> mean(-1) }"
    report = verified(text, decode=False)
    assert report.agrees
    assert "output_1: all numbers are zero, and so nothing is compared" in plain_text(*verify_view(report))


# --- run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "onnx"])
@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("y", ""),
        ("log(-1 - y * y)", "results of `m` are NaN: 4 of 4 numbers of `output`"),
        ("sqrt(y - y)", "the gradient of `m` is not finite"),
        ("where(y > 0, -inf, -inf)", ""),
    ],
    ids=["fine", "NaN", "no gradient", "infinite"],
)
def test_run_says_what_is_not_finite(result: str, said: str, backend: str, tmp_path: Path, run: Run) -> None:
    text = f"model m(width = 4)(x: [batch, width]) {{ y = x -> linear(width)  return {result} }}"
    (tmp_path / "m.arch").write_text(text)
    status, out, err = run("run", str(tmp_path / "m.arch"), "--backend", backend, "--json")
    said = "" if backend == "onnx" and "gradient" in said else said
    assert status == bool(said)
    assert ("E0510" in err) == bool(said)
    assert said in err
    assert json.loads(out)["nan"] == ({"output": 4} if "NaN" in said else {})


# --- lift -------------------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """Two results of a token each."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 40)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens)
        return self.head(x), x.tanh()


def nan_at_first(calls: int, results: list[Tensor]) -> list[Tensor]:
    return [t * NAN for t in results] if calls == 1 else results


def nan_in_the_second(calls: int, results: list[Tensor]) -> list[Tensor]:
    return [*results[:1], *(t * NAN for t in results[1:])]


def zeros(calls: int, results: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(t) for t in results]


def one_row(calls: int, results: list[Tensor]) -> list[Tensor]:
    return [t[:1] for t in results]


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (nan_at_first, "differ by inf"),
        (nan_in_the_second, "differ by inf"),
        (zeros, "cannot be compared: all numbers are zero"),
        (one_row, "and the module's [["),
    ],
)
def test_lift_finds_a_planted_fault(
    plant: Callable[[int, list[Tensor]], list[Tensor]], said: str, monkeypatch: Patch
) -> None:
    from archdsl.interop.lift import compare

    call, calls = compare.Side.call, 0

    def called(*given: Any) -> list[Tensor]:
        nonlocal calls
        calls += 1
        return plant(calls, call(*given))

    monkeypatch.setattr(compare.Side, "call", called)
    report = archdsl.lift(Plain(), torch.zeros(2, 5, dtype=torch.int64))
    assert not report.verified
    failed = [check for check in report.checks if not check.passed]
    assert failed[0].what == "outputs"
    assert {check.difference for check in failed} == {None}
    assert said in failed[0].message
