"""Convolutions and poolings against torch, their lengths for every time, and what their paddings promise."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.ir.dims import evaluate
from archdsl.ir.graph import Model


def compiled(expression: str, shape: str) -> tuple[Model, torch.nn.Module]:
    torch.manual_seed(0)
    text = f"model m(x: {shape}) {{ return {expression} }}"
    return archdsl.load(text=text), archdsl.to_torch(text=text).eval()


def weights(module: torch.nn.Module) -> tuple[Tensor, ...]:
    return tuple(module.state_dict().values())


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("padding", ["same", "causal", "none"])
def test_conv1d_agrees_with_torch_and_foresees_its_length(
    kernel: int, dilation: int, stride: int, padding: str
) -> None:
    options = f"kernel: {kernel}, dilation: {dilation}, stride: {stride}, padding: {padding}"
    model, module = compiled(f"x -> conv1d(6, {options})", "[batch, time, 4]")
    weight, bias = weights(module)
    reach = dilation * (kernel - 1)
    before, after = {"same": (reach // 2, reach - reach // 2), "causal": (reach, 0), "none": (0, 0)}[padding]
    ((_, output),) = model.outputs
    for time in range(reach + 1, reach + 9):
        x = torch.randn(2, time, 4)
        padded = F.pad(x.transpose(1, 2), (before, after))
        expected = F.conv1d(padded, weight, bias, stride=stride, dilation=dilation).transpose(1, 2)
        torch.testing.assert_close(module(x), expected)
        assert evaluate(output.shape[1].value, {"batch": 2, "time": time}) == expected.size(1)
        if padding != "none":
            assert expected.size(1) == math.ceil(time / stride)


def test_same_is_what_torch_calls_same() -> None:
    _, module = compiled("x -> conv1d(6, kernel: 4, groups: 2)", "[batch, time, 4]")
    x = torch.randn(2, 9, 4)
    expected = F.conv1d(x.transpose(1, 2), *weights(module), padding="same", groups=2).transpose(1, 2)
    torch.testing.assert_close(module(x), expected)


def test_conv1d_takes_any_leading_axes() -> None:
    _, module = compiled("x -> conv1d(6, kernel: 3, stride: 2)", "[a, b, c, time, 4]")
    x = torch.randn(2, 3, 5, 7, 4)
    one = compiled("x -> conv1d(6, kernel: 3, stride: 2)", "[time, 4]")[1]
    one.load_state_dict(module.state_dict())
    torch.testing.assert_close(module(x)[1, 2, 3], one(x[1, 2, 3]))


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("kernel: 3, padding: 1", {"padding": 1}),
        ("kernel: 3, stride: 2, padding: 1", {"padding": 1, "stride": 2}),
        ("kernel: [3, 2], stride: [1, 2], dilation: [2, 1]", {"stride": (1, 2), "dilation": (2, 1)}),
        ("kernel: [4, 3], padding: same", {"padding": "same"}),
        ("kernel: 3, padding: none, groups: 2, bias: false", {"groups": 2}),
    ],
)
def test_conv2d_agrees_with_torch(options: str, settings: dict[str, object]) -> None:
    model, module = compiled(f"x -> conv2d(6, {options})", "[batch, 4, time, features]")
    ((_, output),) = model.outputs
    for time in (5, 8):
        x = torch.randn(2, 4, time, 9)
        expected = F.conv2d(x, *weights(module), **settings)  # type: ignore[arg-type]
        torch.testing.assert_close(module(x), expected)
        sizes = {"batch": 2, "time": time, "features": 9}
        assert [evaluate(d.value, sizes) for d in output.shape] == list(expected.shape)


@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "causal", "none", "1"])
def test_conv_transpose1d_is_a_part_of_torchs(kernel: int, stride: int, padding: str) -> None:
    model, module = compiled(
        f"x -> conv_transpose1d(6, kernel: {kernel}, stride: {stride}, padding: {padding})", "[batch, time, 4]"
    )
    ((_, output),) = model.outputs
    for time in (3, 6):
        x = torch.randn(2, time, 4)
        full = F.conv_transpose1d(x.transpose(1, 2), *weights(module), stride=stride)
        spare = kernel - stride
        if padding == "none":
            before, length = 0, full.size(2)
        elif padding == "1":
            before, length = 1, full.size(2) - 2
        else:
            before, length = max(0, math.ceil(spare / 2)) if padding == "same" else 0, time * stride
        bias = module.state_dict()["conv_transpose1d.bias"]
        filler = bias[None, :, None].expand(2, -1, max(0, -spare))  # where no window reaches
        expected = torch.cat((full, filler), dim=2)[:, :, before : before + length].transpose(1, 2)
        torch.testing.assert_close(module(x), expected)
        assert evaluate(output.shape[1].value, {"batch": 2, "time": time}) == length


def test_conv_transpose2d_agrees_with_torch() -> None:
    _, module = compiled("x -> conv_transpose2d(6, kernel: 4, stride: 2, padding: 1, groups: 2)", "[batch, 4, h, w]")
    x = torch.randn(2, 4, 3, 5)
    expected = F.conv_transpose2d(x, *weights(module), stride=2, padding=1, groups=2)
    torch.testing.assert_close(module(x), expected)
    _, module = compiled("x -> conv_transpose2d(6, kernel: [4, 3], stride: [1, 2], padding: same)", "[batch, 4, h, w]")
    assert module(x).shape == (2, 6, 3, 10)


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(
    ("options", "settings"), [("2", (2,)), ("3, stride: 2, padding: 1", (3, 2, 1)), ("2, stride: 1", (2, 1))]
)
def test_pools_agree_with_torch(kind: str, options: str, settings: tuple[int, ...]) -> None:
    model, module = compiled(f"x -> {kind}_pool1d({options})", "[batch, time, 4]")
    ((_, output),) = model.outputs
    for time in (6, 7):
        x = torch.randn(2, time, 4)
        expected = getattr(F, f"{kind}_pool1d")(x.transpose(1, 2), *settings).transpose(1, 2)
        torch.testing.assert_close(module(x), expected)
        assert evaluate(output.shape[1].value, {"batch": 2, "time": time}) == expected.size(1)
    for leading in ((), (2, 3), (2, 3, 2)):
        axes = "".join(f"{name}, " for name in "abc"[: len(leading)])
        _, module = compiled(f"x -> {kind}_pool1d({options})", f"[{axes}time, 4]")
        x = torch.randn(*leading, 7, 4)
        expected = getattr(F, f"{kind}_pool1d")(x.view(-1, 7, 4).transpose(1, 2), *settings).transpose(1, 2)
        torch.testing.assert_close(module(x), expected.reshape(*leading, -1, 4))
    _, module = compiled(f"x -> {kind}_pool2d({options})", "[batch, channels, time, 6]")
    x = torch.randn(2, 3, 7, 6)
    torch.testing.assert_close(module(x), getattr(F, f"{kind}_pool2d")(x, *settings))


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("x -> conv1d(6, kernel: 3, groups: 3)", "E0401"),
        ("x -> conv1d(6, kernel: 3, padding: mean)", "E0204"),
        ("x -> conv1d(6, kernel: 9, padding: none)", "E0401"),
        ("x -> conv_transpose1d(6, kernel: 20, stride: 1, padding: 12)", "E0401"),
        ("x -> max_pool1d(3, padding: 2)", "E0204"),
        ("x -> unsqueeze(1) -> conv2d(6, kernel: [3, 3, 3])", "E0204"),
        ("x -> unsqueeze(1) -> conv2d(6, kernel: 3, padding: -1)", "E0204"),
        ("x -> conv2d(6, kernel: 3)", "E0302"),
    ],
)
def test_what_does_not_fit_is_said(expression: str, code: str) -> None:
    with pytest.raises(ArchError) as problem:
        archdsl.load(text=f"model m(x: [2, 5, 4]) {{ return {expression} }}")
    assert [d.code for d in problem.value.diagnostics] == [code]


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        "conv1d(8, kernel: 4, stride: 2)",
        "conv1d(8, kernel: 3, dilation: 2, padding: causal)",
        "conv_transpose1d(8, kernel: 4, stride: 2, padding: causal)",
        "max_pool1d(2)",
        "avg_pool1d(3, stride: 2, padding: 1)",
        "unsqueeze(1) -> conv2d(4, kernel: 3, stride: 2, padding: 1) -> max_pool2d(2, stride: 1)",
        "unsqueeze(1) -> conv_transpose2d(2, kernel: 3, stride: 2, padding: same)",
    ],
)
def test_any_time_compiles_and_exports(use: str) -> None:
    _, module = compiled(f"x -> {use}", "[batch, time, 8]")
    x = torch.randn(3, 12, 8)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="aot_eager")(x), module(x))
    sizes = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("time", min=8, max=4096)}
    exported = torch.export.export(module, (x,), dynamic_shapes=(sizes,)).module()
    longer = torch.randn(5, 21, 8)
    torch.testing.assert_close(exported(longer), module(longer))
