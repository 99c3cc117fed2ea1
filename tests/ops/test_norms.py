"""Norms against torch's modules, in training and evaluation, and in experts."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archdsl
from archdsl.backends.torch.helpers import helpers
from archdsl.diagnostics import ArchError


def compiled(text: str) -> nn.Module:
    torch.manual_seed(0)
    return archdsl.to_torch(text=f"model m{text}")


@pytest.mark.parametrize(
    ("shape", "options", "torchs"),
    [
        ((6, 8), "", lambda: nn.BatchNorm1d(8)),
        ((6, 5, 8), "eps: 1e-3, momentum: 0.3", lambda: nn.BatchNorm1d(8, eps=1e-3, momentum=0.3)),
        ((6, 8, 5), "axis: 1", lambda: nn.BatchNorm1d(8)),
        ((6, 8, 5, 4), "axis: 1", lambda: nn.BatchNorm2d(8)),
        ((6, 5, 4, 8), "", lambda: nn.BatchNorm2d(8)),
        ((6, 3, 5, 4, 8), "", lambda: nn.BatchNorm3d(8)),
    ],
)
def test_batchnorm_is_torchs_with_the_same_state(shape: tuple[int, ...], options: str, torchs: Any) -> None:
    module, reference = compiled(f"(x: {list(shape)}) {{ return x -> batchnorm({options}) }}"), torchs()
    first = "axis" in options or len(shape) == 2
    assert list(module.state_dict()) == [f"batchnorm.{key}" for key in reference.state_dict()]
    for _ in range(2):
        x = 3 * torch.randn(shape) + 1
        torch.testing.assert_close(module(x), reference(x) if first else reference(x.movedim(-1, 1)).movedim(1, -1))
    module.eval(), reference.eval()
    torch.testing.assert_close(module(x), reference(x) if first else reference(x.movedim(-1, 1)).movedim(1, -1))
    for mine, theirs in zip(module.state_dict().values(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_groupnorm_is_torchs() -> None:
    module = compiled("(x: [2, 5, 8]) { return x -> groupnorm(4) }")
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(module(x), F.group_norm(x.transpose(1, 2), 4).transpose(1, 2))
    with pytest.raises(ArchError) as problem:
        archdsl.load(text="model m(x: [2, 5, 8]) { return x -> groupnorm(3) }")
    assert [d.code for d in problem.value.diagnostics] == ["E0401"]


def by_root_mean_square(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def test_rmsnorm_with_and_without_offset() -> None:
    x = torch.randn(2, 5, 8)
    plain, offset = (
        compiled("(x: [2, 5, 8]) { return x -> rmsnorm }"),
        compiled("(x: [2, 5, 8]) { return x -> rmsnorm(offset: true) }"),
    )
    torch.testing.assert_close(plain(x), offset(x))
    weight = torch.randn(8)
    plain.load_state_dict({"rmsnorm.weight": weight})
    offset.load_state_dict({"rmsnorm.weight": weight})
    torch.testing.assert_close(plain(x), by_root_mean_square(x, weight))
    torch.testing.assert_close(offset(x), by_root_mean_square(x, 1 + weight))
    bare = compiled("(x: [2, 5, 8]) { return x -> rmsnorm(weight: false, eps: 0.1) }")
    assert not bare.state_dict()
    torch.testing.assert_close(bare(x), by_root_mean_square(x, torch.ones(8), 0.1))


def test_powernorm_divides_by_the_batch_in_training_and_by_what_ran_else() -> None:
    module = compiled("(x: [2, 5, 8]) { return x -> powernorm(momentum: 0.25) }")
    x = 3 * torch.randn(2, 5, 8)
    square = x.square().mean((0, 1))
    torch.testing.assert_close(module(x), x / (square + 1e-5).sqrt())
    running = 0.75 + 0.25 * square
    torch.testing.assert_close(module.state_dict()["powernorm.running_square"], running)
    torch.testing.assert_close(module.eval()(x), x / (running + 1e-5).sqrt())


GROUPED = [
    (helpers()["GroupedLayerNorm"].source, "GroupedLayerNorm", lambda x, w, b: F.layer_norm(x, (8,), w, b)),
    (
        helpers()["GroupedLayerNormWithoutBias"].source,
        "GroupedLayerNormWithoutBias",
        lambda x, w, b: F.layer_norm(x, (8,), w),
    ),
    (helpers()["GroupedRMSNorm"].source, "GroupedRMSNorm", lambda x, w, b: by_root_mean_square(x, w, 1e-5)),
    (
        helpers()["GroupedOffsetRMSNorm"].source,
        "GroupedOffsetRMSNorm",
        lambda x, w, b: by_root_mean_square(x, 1 + w, 1e-5),
    ),
]


@pytest.mark.parametrize(("source", "name", "one"), GROUPED)
def test_every_expert_has_a_norm_of_its_own(source: str, name: str, one: Any) -> None:
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "Tensor": Tensor}
    exec(helpers()["expert_of_rows"].source, scope)
    exec(source, scope)
    norm = scope[name](3, 8, eps=1e-5)
    for weight in norm.parameters():
        nn.init.normal_(weight)
    expert, ends = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([2, 3, 6], dtype=torch.int32)
    x = torch.randn(6, 8)
    y = norm(x, ends)
    bias = getattr(norm, "bias", torch.zeros(3, 8))
    for row in range(6):
        e = expert[row]
        torch.testing.assert_close(y[row], one(x[row : row + 1], norm.weight[e], bias[e])[0])
    assert norm.bfloat16()(x.bfloat16(), ends).dtype == torch.bfloat16
