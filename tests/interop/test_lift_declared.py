"""Blocks that stand for modules which no export can follow, and layers that repeat in a pattern."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.interop.lift.module import chosen

pytestmark = pytest.mark.slow

BLOCK = """
block average(x: [batch, time, width]) -> [batch, time, width] {
  param decay: [width] = zeros
  a = sigmoid(decay)
  ys = scan h: [batch, width] = 0 for x_t in x {
    h = a * h + (1 - a) * x_t
    emit h
  }
  return ys
}
"""


class Average(nn.Module):
    """A recurrence, written as a loop over positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        a, h, found = torch.sigmoid(self.decay), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a * h + (1 - a) * x[:, t]
            found.append(h)
        return torch.stack(found, 1)


class Net(nn.Module):
    """A module that refuses some of the numbers that are tried."""

    def __init__(self, vocab: int = 40, width: int = 16) -> None:
        super().__init__()
        assert width < 90
        self.words = nn.Embedding(vocab, width)
        self.average = Average(width)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.words(tokens)
        logits: Tensor = self.head(x + self.average(x))
        return logits


def test_a_block_stands_for_a_loop_over_positions(tmp_path: Path) -> None:
    file = tmp_path / "average.arch"
    file.write_text(BLOCK, encoding="utf-8")
    with pytest.raises(ArchError, match="fixes `time`"):
        archdsl.lift(Net)
    report = archdsl.lift(Net, declare=[f"Average={file}"])
    assert (report.verified, report.causal) == (True, True)
    assert report.configurations == [{"vocab": 112}, {"vocab": 144, "width": 64}]
    assert {check.what for check in report.checks} >= {"parameters", "outputs", "decode steps"}
    assert "-> average as average" in report.text


@pytest.mark.parametrize(
    ("declared", "text", "said"),
    [
        ("Average", BLOCK.replace("(1 - a)", "(2 - a)"), "gives other numbers"),
        ("Average", BLOCK.replace("decay", "rate"), "is a weight of the"),
        ("Average", BLOCK.replace("return ys", "return log(ys - 9)"), "gives other numbers: inf apart"),
        ("Averag", BLOCK, "has nothing of a class `Averag`"),
        ("Average", "model m(x: [batch, 4]) -> [batch, 4] { return x }", "only blocks"),
    ],
)
def test_a_block_that_does_not_stand_for_the_class_is_refused(
    tmp_path: Path, declared: str, text: str, said: str
) -> None:
    file = tmp_path / "average.arch"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ArchError) as problem:
        archdsl.lift(Net(), torch.zeros(2, 5, dtype=torch.int64), declare=[f"{declared}={file}"])
    assert problem.value.diagnostics[0].code == "E0546"
    assert said in problem.value.diagnostics[0].message


class Silent(Average):
    """A recurrence that gives nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0


def test_a_block_is_not_compared_with_zeros(tmp_path: Path) -> None:
    file = tmp_path / "average.arch"
    file.write_text(BLOCK.replace("return ys", "return ys * 0"), encoding="utf-8")
    net = Net()
    net.average = Silent(16)
    with pytest.raises(ArchError, match="block that stands for `Silent` cannot be compared: all numbers are zero"):
        archdsl.lift(net, torch.zeros(2, 5, dtype=torch.int64), declare=[f"Silent={file}"])


class Waiting(nn.Module):
    """Buffers of one number that training fills, and that checkpoints hold; and one of booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 40)
        self.register_buffer("shift", torch.zeros(16))
        self.register_buffer("rates", torch.full((16,), 0.5))
        self.register_buffer("open", torch.tensor([True, False, False, True, True, False, True, False] * 2))
        self.unused = nn.Linear(3, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        logits: Tensor = self.head(torch.where(self.open, x, x * self.rates) + self.shift)
        return logits


def test_a_buffer_that_a_checkpoint_fills_is_no_constant() -> None:
    module = Waiting().double()
    report = archdsl.lift(module, torch.zeros(2, 5, dtype=torch.int64))
    assert "buffer shift: [16] = saved(zeros)" in report.text
    assert "buffer rates: [16] = saved(constant(0.5))" in report.text
    assert ": bool[16] = [1, 0, 0, 1, 1, 0, 1, 0, 1" in report.text
    assert report.verified
    assert "no output depends on unused.bias, unused.weight: the spec is without them" in report.remarks
    assert module.head.weight.dtype == torch.float64


def test_other_configurations_hold_whole_periods_of_a_pattern() -> None:
    numbers = {"layers": 4, "width": 32}
    assert [next(iter(chosen(numbers, which, True)))["layers"] for which in (0, 1)] == [8, 12]
    assert [next(iter(chosen({"layers": 26}, which, True)))["layers"] for which in (0, 1)] == [12, 14]
    assert [next(iter(chosen(numbers, which, False)))["layers"] for which in (0, 1)] == [3, 5]
