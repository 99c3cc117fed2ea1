"""Operators of ATen, each beside what it becomes: a module calls one, and the outputs of its spec must be the module's.

A row calls an operator in all the forms that differ to the lift, and every operator that the lift knows has one."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.interop.lift import lower
from archdsl.interop.lift.compare import reached
from archdsl.interop.lift.export import Exported, export
from archdsl.interop.lift.lower import Lowering
from archdsl.interop.lift.positions import Positions
from archdsl.interop.lift.spec import Lifted, written
from archdsl.syntax.format import format_tree

Call = Callable[[Tensor], Tensor]
aten = torch.ops.aten


class Calls(nn.Module):
    """Several functions of one tensor [batch, time, 8]."""

    def __init__(self, *calls: Call) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(call(x) for call in self.calls)


class Weighted(Calls):
    """Several functions of one tensor and of weights."""

    def __init__(self, *calls: Callable[[Weighted, Tensor], Tensor]) -> None:
        super().__init__(*(lambda x, call=call: call(self, x) for call in calls))
        generator = torch.Generator().manual_seed(0)
        for name, shape in {
            "square": (8, 8),
            "wide": (8, 12),
            "row": (8,),
            "one": (1,),
            "kernel": (4, 8, 3),
            "shift": (8,),
        }.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))
        self.long = nn.Parameter(torch.randn(40, 8, generator=generator))


def recorded(module: nn.Module) -> Exported:
    return export(module.eval(), {"x": torch.randn(3, 7, 8)}, {"x": ("batch", "time", None)}, types=False)


def lifted(exported: Exported) -> Lifted:
    lowering = Lowering(exported, Positions(exported))
    results = lowering.results()
    return written(results, exported, "lifted", blocks=[*lowering.declarations.values()])


def compared(exported: Exported, calls: Sequence[Call]) -> None:
    """Hold the spec of a recording against the calls that it is of, in float64 at other sizes than were recorded. What
    is made of constants that are float32 may differ by their rounding."""
    found = lifted(exported)
    text = format_tree(found.tree)
    ours = archdsl.to_torch(text=text).eval().double()
    weights = dict(exported.module.double().named_parameters())
    with torch.no_grad():
        own = dict(ours.named_parameters())
        for w in found.weights:
            own[w.ours].copy_(weights[w.theirs].mT if w.turned else weights[w.theirs])
        for seed, shape in enumerate([(2, 11, 8), (3, 36, 8)]):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            got = ours(x)
            for call, b in zip(calls, got if isinstance(got, tuple) else (got,), strict=True):
                a = call(x)
                assert a.is_floating_point() == b.is_floating_point()
                assert a.shape == b.shape
                torch.testing.assert_close(b.double(), a.double(), rtol=1e-6, atol=1e-6, msg=lambda m: f"{m}\n{text}")


class Recording:
    """One recording of all calls of a table, which takes less time than one of each."""

    def __init__(self, table: Mapping[str, tuple[Call, ...]]) -> None:
        self.places: dict[str, tuple[int, int]] = {}
        calls: list[Call] = []
        for name, own in table.items():
            self.places[name] = len(calls), len(calls) + len(own)
            calls += own
        self.whole = recorded(Calls(*calls))

    def of(self, name: str) -> Exported:
        """The part of a row."""
        return replace(self.whole, results=self.whole.results[slice(*self.places[name])])


# --- what has words ---------------------------------------------------------------------------------------------------


def range_by_range(x: Tensor) -> Tensor:
    y = x.new_empty(x.shape)
    y[..., :5] = x[..., 3:]
    y[..., 5:] = -x[..., :3]
    return y


def empty(make: Callable[[Tensor], Tensor]) -> Call:
    def call(x: Tensor) -> Tensor:
        y = make(x)
        y[:] = x
        return y * 2

    return call


def square(x: Tensor) -> Tensor:
    return x @ x.transpose(1, 2)


def joined(make: Callable[[Tensor], Tensor]) -> Call:
    """A call that puts numbers beside its tensor."""
    return lambda x: torch.cat([x, make(x)], -1)


def rotated(x: Tensor) -> Tensor:
    """Pairs of channels that are turned, as complex numbers."""
    angles = torch.outer(torch.arange(x.shape[1]).float(), 10_000.0 ** (-torch.arange(4) / 4))
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.float().reshape(*x.shape[:-1], 4, 2)) * turns).flatten(2)


MANY = torch.rand(5000, generator=torch.Generator().manual_seed(0))
SEVERAL = MANY[:8].clone()


def kept(values: list[bool] | list[int]) -> Tensor:
    return torch.tensor(values)


ROWS: dict[str, tuple[Call, ...]] = {
    "__and__": (lambda x: ((x > 0) & (x < 1)) * x,),
    "__or__": (lambda x: ((x > 0) | (x < -1)) * x,),
    "__xor__": (lambda x: ((x > 0) ^ (x < 1)) * x,),
    "_log_softmax": (lambda x: aten._log_softmax(x, -1, False),),
    "_softmax": (lambda x: aten._softmax(x, 1, False),),
    "_to_copy": (lambda x: aten._to_copy(x > 0, dtype=torch.int64),),
    "_unsafe_view": (lambda x: aten._unsafe_view(x, [x.shape[0], x.shape[1], 2, 4]),),
    "abs": (torch.abs,),
    "absolute": (torch.absolute,),
    "add": (
        lambda x: torch.add(x, 1, alpha=2),
        lambda x: torch.add(x, x.flip(-1), alpha=0.5),
        lambda x: torch.add(x, torch.tensor(2.0), alpha=3),
        lambda x: 1 + x,
        lambda x: torch.tensor(0.0) + x.sin(),
        lambda x: torch.tensor(1.0) * x.cos() + 1,
    ),
    "addmm": (
        lambda x: torch.addmm(x[:, 0], x[:, 0], x[:, 1].t() @ x[:, 1]),
        lambda x: torch.addmm(x[:, 0], x[:, 0], x[:, 1].t() @ x[:, 1], beta=2, alpha=0.5),
    ),
    "alias": (lambda x: aten.alias(x) * 2,),
    "amax": (lambda x: x.amax(1), lambda x: x.amax(), lambda x: x.amax((1, 2), keepdim=True)),
    "amin": (lambda x: x.amin(-1, keepdim=True), lambda x: x.amin()),
    "arange": (
        joined(lambda x: torch.arange(x.shape[1]).expand(x.shape[:2])[..., None]),
        lambda x: x * torch.arange(3, 3 + 2 * x.shape[1], 2)[:, None],
        lambda x: x * torch.arange(0.5, 8.5),
    ),
    "argmax": (
        lambda x: x.argmax(-1),
        lambda x: x.argmax(1, keepdim=True),
        torch.argmax,
        lambda x: x.argmax(keepdim=True),
        lambda x: x[0, 0].argmax(),
    ),
    "argmin": (lambda x: x.argmin(-1), lambda x: x.argmin(1, keepdim=True), torch.argmin),
    "argsort": (lambda x: x.argsort(), lambda x: x.argsort(1, descending=True)),
    "baddbmm": (
        lambda x: torch.baddbmm(x, x, x[:, :1].transpose(1, 2) @ x[:, :1]),
        lambda x: torch.baddbmm(x, x, x[:, :1].transpose(1, 2) @ x[:, :1], beta=0.5, alpha=2),
        lambda x: torch.baddbmm(x, x, x[:, :1].transpose(1, 2) @ x[:, :1], beta=0),
        lambda x: torch.baddbmm(x.new_ones(1), x, x[:, :1].transpose(1, 2) @ x[:, :1], beta=0.5),
    ),
    "bitwise_and": (lambda x: torch.bitwise_and(x > 0, x < 1) * x,),
    "bitwise_not": (lambda x: torch.bitwise_not(x > 0) * x,),
    "bitwise_or": (lambda x: torch.bitwise_or(x > 0, x < -1) * x,),
    "bitwise_xor": (lambda x: torch.bitwise_xor(x > 0, x < 1) * x,),
    "bmm": (lambda x: torch.bmm(x, x.transpose(1, 2)),),
    "broadcast_to": (lambda x: x[..., :1].broadcast_to(x.shape),),
    "cat": (
        lambda x: torch.cat([x, x * 2], 1),
        joined(lambda x: x.new_zeros(x.shape[0], x.shape[1], 0)),
        joined(lambda x: torch.arange(8.0).sin().chunk(2)[1].expand(*x.shape[:2], -1)),
    ),
    "ceil": (torch.ceil,),
    "chunk": (lambda x: x.chunk(2, -1)[1], lambda x: x.chunk(3, -1)[2], lambda x: x.chunk(3, -1)[0]),
    "clamp": (
        lambda x: x.clamp(0, 1),
        lambda x: x.clamp(max=x.mean()),
        lambda x: x.clamp(x.mean(-1, keepdim=True), x.amax(1, keepdim=True)),
    ),
    "clamp_max": (lambda x: x.clamp_max(0.1),),
    "clamp_min": (lambda x: x.clamp_min(-0.1), lambda x: x.clamp_min(x.mean(-1, keepdim=True))),
    "clip": (lambda x: x.clip(0, 0.5), lambda x: x.clip(max=0.5)),
    "clone": (lambda x: x.clone() + 1,),
    "concat": (lambda x: torch.concat([x, x], -1),),
    "concatenate": (lambda x: torch.concatenate([x, x], 1),),
    "constant_pad_nd": (lambda x: torch.constant_pad_nd(x, (1, 2), 0.5), lambda x: torch.constant_pad_nd(x, (0, 1))),
    "contiguous": (lambda x: x.transpose(1, 2).contiguous(),),
    "copy": (lambda x: torch.zeros_like(x).copy_(x[:, :1]).mul_(2),),
    "cos": (torch.cos,),
    "cumprod": (lambda x: x.cumprod(-1),),
    "cumsum": (lambda x: x.cumsum(1),),
    "detach": (lambda x: x.detach() * 2,),
    "div": (lambda x: torch.div(x, 0.5, rounding_mode="floor"), lambda x: x / 3, lambda x: 3 / (x.abs() + 1)),
    "divide": (lambda x: torch.divide(x, 2),),
    "dot": (lambda x: torch.dot(x[0, 0], x[0, 1]),),
    "dropout": (lambda x: F.dropout(x, 0.1, False) * 2, lambda x: F.dropout(x, 0.0, True) * 3),
    "einsum": (
        lambda x: torch.einsum("btc,bsc->bts", x, x),
        lambda x: torch.einsum("bts,bsc->btc", square(x), x),
        lambda x: torch.einsum("btc->bct", x),
        lambda x: torch.einsum("btc, btc -> bt", x, x),
        lambda x: torch.einsum("bt,c->btc", x[..., 0], x[0, 0]),
    ),
    "elu": (F.elu, lambda x: F.elu(x, 0.5)),
    "empty": (empty(lambda x: torch.empty(x.shape, dtype=x.dtype)),),
    "empty_like": (empty(torch.empty_like),),
    "eq": (lambda x: torch.where(x.floor() == 0, x, 1.0),),
    "erf": (torch.erf,),
    "exp": (torch.exp,),
    "expand": (lambda x: x[..., :1].expand(-1, -1, 8), lambda x: x.expand(2, -1, -1, -1)),
    "expand_as": (lambda x: x[:, :1].expand_as(x), lambda x: x.expand_as(x) * 2),
    "expm1": (torch.expm1,),
    "feature_dropout": (lambda x: F.dropout1d(x, 0.1, False) * 2,),
    "flatten": (lambda x: x.flatten(1), torch.flatten),
    "flip": (lambda x: x.flip(-1), lambda x: x.flip(1, 2)),
    "floor": (torch.floor,),
    "floor_divide": (lambda x: x // 0.7,),
    "full": (
        joined(lambda x: torch.full((x.shape[0], x.shape[1], 2), 2.5)),
        joined(lambda x: torch.full(fill_value=0.5, size=(x.shape[0], x.shape[1], 2))),
        joined(lambda x: torch.full((x.shape[0], x.shape[1], 1), x.shape[1])),
        lambda x: x * torch.full((8,), 2.0),
    ),
    "full_like": (
        joined(lambda x: torch.full_like(x, 2.5)),
        joined(lambda x: torch.full_like(x[..., :1], 1 / x.shape[1])),
        lambda x: torch.full_like(x, fill_value=2) * x,
    ),
    "gather": (lambda x: x.gather(-1, x.topk(2)[1]), lambda x: x.gather(1, x.argsort(1))),
    "ge": (lambda x: (x >= 0.3) * x,),
    "gelu": (F.gelu, lambda x: F.gelu(x, approximate="tanh")),
    "ger": (lambda x: torch.ger(x.mean((0, 1)), x.amax((0, 1))),),
    "greater": (lambda x: torch.greater(x, 0.3) * x,),
    "greater_equal": (lambda x: torch.greater_equal(x, x.flip(-1)) * x,),
    "gt": (lambda x: (x > x.flip(-1)) * x,),
    "hardsigmoid": (F.hardsigmoid,),
    "hardswish": (F.hardswish,),
    "index": (
        lambda x: x[0, 0][x.argmax(-1)],
        lambda x: x[..., [0, 1, 2]],
        lambda x: x[..., [-3, -2, -1]],
        lambda x: x[..., [1, 3, 5, 7]],
        lambda x: x[:, [0, 1]],
        lambda x: x[:, [-1]],
        lambda x: x[:, [-2, -1]],
        lambda x: x[:, [-5, -3]],
        lambda x: x[:, 0, [-3, -2]],
        lambda x: x[..., kept([True] * 4 + [False] * 4)],
        lambda x: x[..., kept([True, False] * 4)],
        lambda x: x[:, torch.arange(x.shape[1])] * 2,
        lambda x: x[..., torch.arange(8) % 2 == 1],
    ),
    "index_select": (lambda x: x.index_select(-1, kept([2, 4])), lambda x: x[0].index_select(0, x[0, 0].argsort())),
    "item": (lambda x: x.max(-1)[0] * x.min(-1)[0], lambda x: x.unflatten(-1, (4, 2)).unbind(-1)[1]),
    "le": (lambda x: torch.where(x <= 0.3, x, -x),),
    "leaky_relu": (F.leaky_relu, lambda x: F.leaky_relu(x, 0.2)),
    "less": (lambda x: torch.less(x, 0.3) * x,),
    "less_equal": (lambda x: torch.less_equal(x, 0.3) * x,),
    "lift_fresh_copy": (lambda x: x[..., [0, 1]],),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), lambda x: x.norm(), F.normalize),
    "log": (lambda x: (x.abs() + 1).log(),),
    "log1p": (lambda x: x.abs().log1p(),),
    "log_sigmoid": (F.logsigmoid,),
    "log_softmax": (lambda x: x.log_softmax(-1), lambda x: x.log_softmax(1)),
    "logical_and": (
        lambda x: torch.logical_and(x > 0, x < 1) * x,
        lambda x: torch.logical_and(x.floor(), x.ceil()) * x,
    ),
    "logical_not": (lambda x: torch.logical_not(x > 0) * x, lambda x: torch.logical_not(x.floor()) * x),
    "logical_or": (lambda x: torch.logical_or(x > 0, x < -1) * x, lambda x: torch.logical_or(x > 1, x.floor()) * x),
    "logical_xor": (lambda x: torch.logical_xor(x > 0, x < -1) * x, lambda x: torch.logical_xor(x > 1, x.floor()) * x),
    "logsumexp": (lambda x: x.logsumexp(-1), lambda x: x.logsumexp(1, keepdim=True)),
    "lt": (lambda x: torch.where(x < x.flip(-1), x, 0.0),),
    "mT": (lambda x: x.mT, lambda x: x.unflatten(-1, (2, 4)).mT),
    "masked_fill": (
        lambda x: x.masked_fill(x > 0, 2.0),
        lambda x: x.masked_fill(x > 0, torch.tensor(2.0)),
        lambda x: x[..., :1].masked_fill(x > 0, 1.0),
    ),
    "matmul": (lambda x: x @ x.transpose(1, 2), lambda x: x @ x[0, 0], lambda x: x[0, 0] @ x.mT, lambda x: x @ x[0].mT),
    "max": (
        torch.max,
        lambda x: x.max(1).values,
        lambda x: x.max(-1).indices,
        lambda x: x.max(-1, keepdim=True)[1] + x,
        lambda x: torch.max(x, x.flip(-1)),
    ),
    "maximum": (lambda x: torch.maximum(x, x.flip(-1)), lambda x: torch.maximum(x, torch.tensor(0.5))),
    "mean": (
        torch.mean,
        lambda x: x.sum().mean() + x.amax().sum(),
        lambda x: x.mean(1),
        lambda x: x.mean((1, 2), keepdim=True) * x,
    ),
    "min": (
        torch.min,
        lambda x: x.min(1, keepdim=True).values * x,
        lambda x: x.min(-1)[1],
        lambda x: x.min(1, keepdim=True).indices,
        lambda x: torch.min(x, -x),
    ),
    "minimum": (lambda x: torch.minimum(x, x.flip(-1)),),
    "mish": (F.mish,),
    "mm": (lambda x: torch.mm(x[:, 0], x[:, 0].t()),),
    "mul": (
        lambda x: x * x.flip(-1),
        lambda x: 2 * x,
        lambda x: x * SEVERAL,
    ),
    "multiply": (lambda x: torch.multiply(x, 2),),
    "mv": (lambda x: torch.mv(x[0], x[0, 0]),),
    "narrow": (lambda x: x.narrow(-1, 1, 3), lambda x: x.narrow(-1, -3, 2), lambda x: x.narrow(1, 0, 2)),
    "ne": (lambda x: torch.where(x.floor() != 0, x, 1.0),),
    "neg": (lambda x: -x,),
    "negative": (torch.negative,),
    "new_empty": (range_by_range,),
    "new_full": (joined(lambda x: x.new_full((x.shape[0], x.shape[1], 2), 2.5)),),
    "new_ones": (joined(lambda x: x.new_ones(x.shape)),),
    "new_zeros": (joined(lambda x: x.new_zeros(x.shape)),),
    "not_equal": (lambda x: torch.not_equal(x.floor(), 0) * x,),
    "numpy_T": (lambda x: x[:, 0].T, lambda x: x.T, lambda x: x[0, 0].T + x),
    "ones": (joined(lambda x: torch.ones(x.shape[0], x.shape[1], 1)),),
    "ones_like": (joined(torch.ones_like),),
    "outer": (lambda x: torch.outer(x.mean((0, 1)), x.amax((0, 1))),),
    "pad": (
        lambda x: F.pad(x, (1, 2)),
        lambda x: F.pad(x, (1, 2), value=3.0),
        lambda x: F.pad(x, (0, 0, 1, 0)),
        lambda x: F.pad(x, (-1, -2)),
        lambda x: F.pad(x, (0, 0, 1, -1)) + F.pad(x, (-2, 2)),
    ),
    "permute": (
        lambda x: x.permute(0, 2, 1),
        lambda x: x.permute(2, 0, 1),
        lambda x: x.permute(0, 1, 2) * 2,
        lambda x: x.unflatten(-1, (2, 4)).permute(0, 2, 1, -1),
        lambda x: x.unflatten(-1, (2, 4)).flatten(0, 1).permute(0, 2, 1),
        lambda x: x.unflatten(-1, (2, 4)).flatten(0, 1).permute(1, 0, 2),
    ),
    "positive": (lambda x: +x * 2,),
    "pow": (lambda x: x**2, lambda x: 2**x, lambda x: x.abs() ** 0.5, lambda x: x.abs() ** x),
    "ravel": (torch.ravel,),
    "reciprocal": (torch.reciprocal,),
    "relu": (torch.relu,),
    "remainder": (
        lambda x: x % 0.7,
        lambda x: torch.remainder(x, x.abs() + 1),
        lambda x: torch.remainder(2.0, x.abs() + 1),
    ),
    "repeat": (
        lambda x: x.repeat(1, 1, 2),
        lambda x: x.repeat(2, 1, 1, 1),
        lambda x: x[..., :1].repeat(1, 1, 8),
    ),
    "repeat_interleave": (
        lambda x: x.repeat_interleave(2, -1),
        lambda x: x.repeat_interleave(2, 0),
        lambda x: x[0, 0].repeat_interleave(2),
    ),
    "reshape": (
        lambda x: x.reshape(-1, 8),
        lambda x: x.reshape(x.shape[0], x.shape[1] * 2, 4),
        lambda x: x.reshape(x.shape[0], x.shape[1] * 4, 2).reshape(x.shape),
        lambda x: x[..., :1].reshape(x.shape[:2]) + x[..., 0].reshape(1, *x.shape[:2])[0],
        lambda x: x.reshape(x.shape[0], 1, x.shape[1], 2, 4).reshape(x.shape[0], x.shape[1], 1, 8),
    ),
    "reshape_as": (lambda x: x.unflatten(-1, (2, 4)).reshape_as(x),),
    "rms_norm": (lambda x: F.rms_norm(x, (8,), eps=1e-6),),
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), lambda x: F.layer_norm(x, (8,), x[0, 0], x[0, 1], eps=1e-3)),
    "roll": (lambda x: x.roll(1, -1), lambda x: x.roll((1, 2), (1, 2))),
    "rsqrt": (lambda x: x.abs().rsqrt(),),
    "rsub": (
        lambda x: 1 - x,
        lambda x: torch.rsub(x, 1, alpha=2),
        lambda x: torch.rsub(x, x.flip(-1), alpha=3),
    ),
    "scaled_dot_product_attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.3),
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=square(x)),
        lambda x: F.scaled_dot_product_attention(
            *(x[:, None].expand(-1, n, -1, -1) for n in (4, 2, 2)), enable_gqa=True
        ),
    ),
    "scatter": (
        lambda x: x.scatter(-1, x.topk(2)[1], 0.5),
        lambda x: x.scatter(1, x.argsort(1)[:, :2], x[:, :2] * 2),
    ),
    "select": (lambda x: x.flatten(0, 1)[3], lambda x: x[:, 0], lambda x: x[:, -1], lambda x: x[..., 3]),
    "selu": (F.selu,),
    "sigmoid": (torch.sigmoid,),
    "sign": (torch.sign,),
    "silu": (F.silu,),
    "sin": (torch.sin,),
    "slice": (
        lambda x: x[..., 2:5],
        lambda x: x[..., -3:],
        lambda x: x[:, -1:],
        lambda x: x[:, 1:-1],
        lambda x: x[..., 1::3],
        lambda x: x[..., :100] * 2,
        lambda x: x.flatten(0, 1)[2:5],
        lambda x: x[..., 0].flatten()[-3:],
        lambda x: x[:, : x.shape[1] // 2],
        lambda x: x[:, : -(-x.shape[1] // 2)],
        lambda x: x[:, : max(x.shape[1] - 3, 1)],
    ),
    "slice_scatter": (
        lambda x: torch.slice_scatter(x, x[..., :3] * 2, -1, 2, 5),
        lambda x: torch.slice_scatter(x, x[..., :3] * 2, -1, -3),
        lambda x: torch.slice_scatter(x, x[..., :2] * 2, -1, -3, -1),
        lambda x: torch.slice_scatter(x, x[..., :3] * 2, -1, 0, 3),
        lambda x: torch.slice_scatter(x, x * 2, -1),
    ),
    "softmax": (lambda x: x.softmax(-1), lambda x: x.softmax(1)),
    "softplus": (F.softplus, lambda x: F.softplus(x, 1.0, 20.0)),
    "sort": (
        lambda x: x.sort()[0],
        lambda x: x.sort(1, descending=True)[1],
        lambda x: x.sort(-1, True)[0] * x.sort(-1, True)[1],
    ),
    "split": (
        lambda x: x.split(4, -1)[0] + x.split(4, -1)[1],
        lambda x: x.split(3, -1)[2],
        lambda x: x.split(8, -1)[0] * 2,
        lambda x: torch.cat([x, x * 2], 1).split(x.shape[1], 1)[1],
        lambda x: torch.cat([x, x[:, 1:]], 1).split(x.shape[1], 1)[1],
    ),
    "split_with_sizes": (lambda x: torch.split_with_sizes(x, [3, 5], -1)[1], lambda x: x.split([4, 4], -1)[1]),
    "sqrt": (lambda x: x.abs().sqrt(),),
    "square": (torch.square,),
    "squeeze": (
        lambda x: x[:, :1].squeeze(1),
        lambda x: x[..., :1].squeeze(),
        lambda x: x[..., None, :1].squeeze((-1, -2)),
        lambda x: x.squeeze(-1) * 2,
    ),
    "stack": (lambda x: torch.stack([x, -x], 1), lambda x: torch.stack([x, -x], -1)),
    "sub": (lambda x: torch.sub(x, 2, alpha=3), lambda x: torch.sub(x, x.flip(-1), alpha=2), lambda x: x - 1),
    "subtract": (lambda x: torch.subtract(x, x.flip(-1), alpha=2), lambda x: torch.subtract(x, 2, alpha=2)),
    "sum": (
        torch.sum,
        lambda x: x.flatten(0, 1).sum(),
        lambda x: x.sum((-1,), keepdim=True) + x,
        lambda x: (x > 0).sum(-1),
    ),
    "swapaxes": (lambda x: x.swapaxes(1, 2),),
    "swapdims": (lambda x: x.swapdims(-1, 1),),
    "t": (lambda x: x[:, 0].t(), lambda x: x[0, 0].t() + x),
    "tanh": (torch.tanh,),
    "tile": (lambda x: x.tile(1, 1, 2), lambda x: x.tile(2), lambda x: x.tile(2, 1, 1, 1)),
    "to": (
        lambda x: x.to(torch.int64),
        lambda x: x.bool() * x,
        lambda x: (x > 0).float(),
        lambda x: x.double(),
        lambda x: x.argmax(-1).to(torch.int64, copy=True),
    ),
    "topk": (
        lambda x: x.topk(3)[0],
        lambda x: x.flatten(0, 1).topk(3)[0],
        lambda x: x.topk(3, 1).indices,
        lambda x: x.topk(3, -1)[0] * x.topk(3, -1)[1],
        lambda x: x.topk(3, sorted=False)[0].sum(-1),
    ),
    "transpose": (
        lambda x: x.transpose(1, 2),
        lambda x: x.transpose(0, 1),
        lambda x: x.flatten(0, 1).transpose(0, 1),
        lambda x: x.unflatten(-1, (2, 4)).flatten(0, 1).transpose(-1, 1),
    ),
    "true_divide": (lambda x: torch.true_divide(x, 2),),
    "type_as": (lambda x: (x > 0).type_as(x) * 2,),
    "unbind": (lambda x: x.unflatten(-1, (2, 4)).unbind(2)[1], lambda x: x.unflatten(-1, (4, 2)).unbind(-1)[0]),
    "unflatten": (lambda x: x.unflatten(-1, (2, 4)),),
    "unsqueeze": (
        lambda x: x.unsqueeze(1),
        lambda x: x.unsqueeze(-1),
        lambda x: x.flatten(0, 1).unsqueeze(0),
        lambda x: x.flatten(0, 1).unsqueeze(1),
    ),
    "var": (lambda x: x.var(-1, unbiased=False), lambda x: torch.var(x, 1, correction=0, keepdim=True)),
    "view": (
        lambda x: x.view(x.shape[0], x.shape[1], 2, 4),
        lambda x: x.flatten(0, 1).view(-1, 2, 4) * 2,
        lambda x: x.unflatten(-1, (2, 4)).view(-1, 8),
    ),
    "view_as": (lambda x: x.view_as(x) * 2,),
    "where": (lambda x: torch.where(x > 0, 1.0, 0.0) * x, lambda x: torch.where(x > 0, x, torch.tensor(0.5))),
    "zeros": (joined(lambda x: torch.zeros(x.shape[0], x.shape[1], 1)),),
    "zeros_like": (joined(torch.zeros_like),),
}
WEIGHTED: dict[str, tuple[Callable[[Weighted, Tensor], Tensor], ...]] = {
    "addmm": (lambda m, x: torch.addmm(m.row, x[:, 0], m.square),),
    "conv1d": (
        lambda m, x: F.conv1d(x.mT, m.kernel, padding=1),
        lambda m, x: F.conv1d(x.mT.flip(-1), m.kernel, padding=1),
        lambda m, x: F.conv1d(x.mT, m.kernel.unsqueeze(0).squeeze(0), padding=1),
    ),
    "einsum": (lambda m, x: torch.einsum("btc,cd->btd", x, m.wide),),
    "embedding": (
        lambda m, x: F.embedding(x.argmax(-1), m.square),
        lambda m, x: F.embedding(torch.arange(8) % 8, m.square) + x[:, :1],
        lambda m, x: F.embedding(x.argmax(-1), x[0]),
        lambda m, x: x + F.embedding(torch.arange(x.shape[1]), m.long),
        lambda m, x: x + F.embedding(torch.arange(x.shape[1])[None], m.long)[None],
        lambda m, x: x + F.embedding(torch.arange(2, x.shape[1] + 2)[None], m.long),
        lambda m, x: F.embedding(torch.arange(x.shape[1])[None], m.long).mul(m.row).unsqueeze(0) * x,
        lambda m, x: F.embedding(torch.arange(x.shape[1])[None], m.long).transpose(1, 2) * x.mT,
        lambda m, x: F.embedding(torch.arange(x.shape[1])[None], m.long) + 0 * x[:1],
    ),
    "layer_norm": (lambda m, x: F.layer_norm(x, (8,), m.row),),
    "linear": (
        lambda m, x: F.linear(x, m.square, m.row),
        lambda m, x: F.linear(x, x[0]),
    ),
    "matmul": (lambda m, x: x @ m.wide, lambda m, x: x @ m.square.t(), lambda m, x: x @ m.row),
    "prelu": (lambda m, x: F.prelu(x, m.one),),
    "rms_norm": (lambda m, x: F.rms_norm(x, (8,), m.row, 1e-6),),
    "computed weights": (
        lambda m, x: F.linear(x, m.square * 2, m.row),
        lambda m, x: F.layer_norm(x, (8,), m.row * 2, m.row),
        lambda m, x: F.rms_norm(x, (8,), m.row * 2, 1e-6),
    ),
    "view_as_real": (lambda m, x: rotated(x),),
}


REFUSED: dict[str, tuple[Call, str]] = {
    "a bit": (lambda x: torch.bitwise_and(x.long(), 3) * x, "`bitwise_and` of [[batch, time, 8]] has no words"),
    "all": (lambda x: (x > 0).all(-1), "`all` of [[batch, time, 8]] has no words"),
    "another type": (lambda x: x.view(torch.int32), "the bits of a tensor as another type"),
    "bits": (lambda x: torch.bitwise_not(x.long()), "an operator of bits"),
    "two numbers": (lambda x: x + torch.tensor(2.0) * x.shape[1], "an operator of two numbers"),
    "dropout1d": (lambda x: F.dropout1d(x, 0.1), "dropout that is on outside training"),
    "nothing, seen otherwise": (lambda x: x[..., :0].reshape(0, 3), "a view of [batch, time, 0] as [0, 3]"),
    "cubic norm": (lambda x: x.norm(p=3, dim=-1), "the norm of power 3"),
    "native_dropout": (
        lambda x: F.dropout(x, 0.1),
        "dropout that is on outside training: `training=self.training` turns it off",
    ),
    "dropout of attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1),
        "dropout that is on outside",
    ),
    "each of a tensor": (lambda x: x.repeat_interleave(kept([1, 2] * 4), -1), "each as often as a tensor says"),
    "flat repetition": (lambda x: x.repeat_interleave(2), "all axes, repeated as one"),
    "flat roll": (lambda x: x.roll(1), "all axes, rolled as one"),
    "implicit einsum": (lambda x: torch.einsum("btc,btc", x, x), "the pattern btc,btc"),
    "least": (lambda x: x.topk(3, largest=False)[0], "the least, not the largest"),
    "mask by values": (
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=square(x) > 0),
        "attention with a mask that depends on more than positions",
    ),
    "many numbers": (lambda x: x * MANY[:8], "holds 5,000 numbers that no formula gives"),
    "meshgrid": (lambda x: x * torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")[0][0], "`meshgrid` of"),
    "norm over two": (lambda x: F.layer_norm(x.unflatten(-1, (2, 4)), (2, 4)), "a norm over several axes"),
    "order of equals": (lambda x: x.sort(stable=True)[0], "with stable"),
    "part of an empty": (lambda x: part(x), "a tensor of which a part stays empty"),
    "reflection": (lambda x: F.pad(x, (1, 1), "reflect"), "padding by reflect"),
    "reduction": (lambda x: x.scatter(-1, x.topk(2)[1], x.topk(2)[0], reduce="add"), "with reduce"),
    "rms over two": (lambda x: F.rms_norm(x.unflatten(-1, (2, 4)), (2, 4)), "a norm over several axes"),
    "scrambled": (lambda x: x[..., [2, 0, 5]], "positions that are no range of the axis"),
    "several indices": (lambda x: x[:, [0, 1], [2, 3]], "indexing by several tensors"),
    "slopes": (lambda x: F.prelu(x, torch.tensor([0.1])), "a slope for each channel"),
    "softplus": (lambda x: F.softplus(x, 2.0), "with 2.0"),
    "step": (lambda x: torch.slice_scatter(x, x[..., :3] * 2, -1, 0, 6, 2), "a range with a step"),
    "to the end": (
        lambda x: x[:, torch.arange(x.shape[1] - 2, x.shape[1])],
        "positions that are no range of the axis",
    ),
    "towards nought": (lambda x: torch.div(x, 0.5, rounding_mode="trunc"), "rounding_mode=trunc"),
    "tril": (lambda x: square(x).tril(), "a triangle of what is not a mask"),
    "triu": (lambda x: square(x).triu(1), "a triangle of what is not a mask"),
    "unequal sizes": (
        lambda x: x[:, : x.shape[1] - x.shape[1] % 2].reshape(x.shape[0], x.shape[1] // 2, 2, 8),
        "a view of [batch, time - (Mod(time, 2)), 8] as",
    ),
    "values as positions": (lambda x: x[..., torch.stack([kept([0, 1]), kept([2, 3])])], "positions that are no range"),
    "variance": (lambda x: x.var(-1), "a variance over n - 1"),
    "view_as_complex": (lambda x: torch.view_as_complex(x.unflatten(-1, (4, 2))).abs(), "has no words"),
    "wide convolution": (lambda x: F.conv1d(x.mT, x[:3, :5].mT), "a convolution with a computed weight"),
    "wrapped": (lambda x: x[:, [-1, 0]], "positions that are no range of the axis"),
}


def part(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y[..., 2:5] = x[..., :3]
    return y


def operators(exported: Exported) -> set[str]:
    return {v.op if v.op.startswith("__") else v.op.rstrip("_") for v in reached(exported)}


WRITES = {
    "add", "copy", "empty", "empty_like", "index", "index_select", "lift_fresh_copy", "masked_fill", "maximum",
    "new_empty", "part of an empty", "where", "two numbers", "dropout1d",
}  # fmt: skip
"""Rows that write into tensors, or make one of a list. A recording that does is made another one, in which some
operators are others."""


@pytest.fixture(scope="module")
def rows() -> Recording:
    return Recording({name: calls for name, calls in ROWS.items() if name not in WRITES})


@pytest.mark.parametrize("name", ROWS)
def test_an_operator_gives_its_numbers(name: str, rows: Recording) -> None:
    exported = recorded(Calls(*ROWS[name])) if name in WRITES else rows.of(name)
    assert name in operators(exported)
    compared(exported, ROWS[name])


@pytest.mark.parametrize("name", WEIGHTED)
def test_an_operator_of_weights_gives_its_numbers(name: str) -> None:
    module = Weighted(*WEIGHTED[name])
    exported = recorded(module)
    assert name in {*operators(exported), "computed weights"}
    compared(exported, module.calls)


def test_many_operators_at_once() -> None:
    """Names of many values, and lines that hold several, in one model."""
    calls = [call for name in [*ROWS][::8] for call in ROWS[name]]
    compared(recorded(Calls(*calls)), calls)


@pytest.fixture(scope="module")
def refusals() -> Recording:
    return Recording({name: (call,) for name, (call, _) in REFUSED.items() if name not in WRITES})


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_words_is_refused(name: str, refusals: Recording) -> None:
    call, words = REFUSED[name]
    with pytest.raises(ArchError) as refused:
        lifted(recorded(Calls(call)) if name in WRITES else refusals.of(name))
    (found,) = refused.value.diagnostics
    assert found.code == "E0542"
    assert words in found.message
    assert any("test_lift_operators.py" in note for note in found.notes) or name == "many numbers"  # of no line


OWN = {"experts", "declared"}
"""Operators of the lift itself: tests/interop/test_lift_declared.py and test_lift_oracle.py have them."""


def test_every_operator_has_a_row() -> None:
    methods = {name.removeprefix("do_") for name in dir(Lowering) if name.startswith("do_")}
    known = methods.union(lower.SAME, lower.OTHER_NAMES, lower.OPERATORS, lower.TRUTHS, lower.UNCHANGED)
    assert known - OWN - {*ROWS, *WEIGHTED, *REFUSED} == set()
    assert {*ROWS} <= known


def test_one_weight_with_other_options_is_refused() -> None:
    module = Weighted(*(lambda m, x, eps=eps: F.layer_norm(x, (8,), m.row, None, eps) for eps in (1e-5, 1e-3)))
    with pytest.raises(ArchError, match="`row`, is read by `layernorm` with different options"):
        lifted(recorded(module))


def test_an_axis_of_one_that_no_word_has_is_refused() -> None:
    module = Weighted(lambda m, x: F.embedding(torch.arange(x.shape[1])[None], m.long).softmax(0) + x)
    with pytest.raises(ArchError, match="an operation along an axis that is two in one, or one of size 1"):
        lifted(recorded(module))


# --- types ------------------------------------------------------------------------------------------------------------

TYPED: dict[str, tuple[Call, str]] = {
    "sums in float32": (
        lambda x: x.float().cumsum(1).to(x.dtype) * x,
        "(x -> cast(float32) -> cumsum(axis: 1) -> cast(float)) * x",
    ),
    "the type of another": (lambda x: x.float().sin().type_as(x) + x, "(x -> cast(float32) -> sin -> cast(float)) + x"),
    "shares in float32": (
        lambda x: x.softmax(-1, dtype=torch.float32).cumsum(1).to(x.dtype),
        "x -> cast(float32) -> softmax -> cumsum(axis: 1) -> cast(float)",
    ),
    "logarithms in float32": (
        lambda x: x.log_softmax(1, dtype=torch.float32),
        "x -> cast(float32) -> log_softmax(axis: 1)\n",
    ),
    "float32 to the end": (lambda x: (x.float() + 1) * 2, "((x -> cast(float32)) + 1) * 2"),
    "there and back": (lambda x: x.float().to(x.dtype) * 2, "return x * 2"),
    "one type": (lambda x: x.to(x.dtype).contiguous().cumsum(1), "return x -> cumsum(axis: 1)"),
    "a norm in float32": (
        lambda x: F.layer_norm(x.float(), (8,)).to(x.dtype),
        "return x -> cast(float32) -> layernorm(weight: false, bias: false) -> cast(float)\n",
    ),
}


@pytest.mark.parametrize("name", TYPED)
def test_a_module_in_bfloat16_computes_in_the_types_that_it_names(name: str) -> None:
    call, words = TYPED[name]
    module = Calls(call)
    exported = export(module, {"x": torch.randn(3, 7, 8)}, {"x": ("batch", "time", None)})
    text = format_tree(lifted(exported).tree)
    assert words in text
    ours = archdsl.to_torch(text=text).eval()
    x = torch.randn(2, 60, 8, generator=torch.Generator().manual_seed(0))
    for kind in (torch.float32, torch.bfloat16):
        (a,), b = module(x.to(kind)), ours.to(kind)(x.to(kind))
        assert a.dtype == b.dtype
        torch.testing.assert_close(b, a, rtol=1e-6 if kind == torch.float32 else 1e-2, atol=1e-6)


# --- sizes ------------------------------------------------------------------------------------------------------------

SIZES: dict[str, Callable[[int], float]] = {
    "abs": lambda time: abs(time - 20),
    "ceil": lambda time: math.ceil(time / 3),
    "ceiling by negation": lambda time: -(-time // 4),
    "floor": lambda time: math.floor(time / 2),
    "fraction": lambda time: time * 0.5 + 0.25,
    "inverse root": lambda time: time**-0.5,
    "largest": lambda time: max(time, 20),
    "least": lambda time: min(time, 20),
    "power": lambda time: time**3,
    "remainder": lambda time: time % 3,
    "remainder of a fraction": lambda time: (time / 2) % 1.5,
    "root": lambda time: time**0.5,
    "root of PyTorch": lambda time: torch.sym_sqrt(time),
    "rounded quotient": lambda time: (time / 2) // 1.5,
    "shift": lambda time: (time << 2) - (time >> 1),
    "sum": lambda time: 3 - time,
    "truncated": lambda time: math.trunc(time / 2),
}


def times(name: str) -> tuple[Call]:
    return (lambda x: x * SIZES[name](x.shape[1]),)


@pytest.fixture(scope="module")
def sizes() -> Recording:
    return Recording({name: times(name) for name in SIZES})


@pytest.mark.parametrize("name", SIZES)
def test_a_number_that_is_made_of_sizes(name: str, sizes: Recording) -> None:
    compared(sizes.of(name), times(name))


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (
            lambda x: round(x.shape[1] / 2),
            "no function `RoundToInt`, as in `RoundToInt(IntTrueDiv(time, 2))`",
        ),
        (lambda x: x.shape[1] & 3, "sizes have no function `BitwiseFn_bitwise_and`"),
        (lambda x: torch.sym_ite(x.shape[1] > 3, 1, 2), "sizes have no function `Piecewise`"),
        (lambda x: x.sum().item(), "a number that is read out of a tensor"),
    ],
)
def test_a_number_without_words_is_refused(size: Callable[[Tensor], float], words: str) -> None:
    with pytest.raises(ArchError) as refused:
        lifted(recorded(Calls(lambda x: x * size(x))))
    (found,) = refused.value.diagnostics
    assert found.code == "E0542"
    assert words in found.message


# --- what PyTorch says of it ------------------------------------------------------------------------------------------


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.levels: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.levels.append(record.levelno)


@pytest.fixture
def records() -> Iterator[Records]:
    """What the loggers of PyTorch hand on."""
    names = [n for n in logging.root.manager.loggerDict if n.startswith("torch") and logging.getLogger(n).handlers]
    handler = Records()
    for name in names:
        logging.getLogger(name).addHandler(handler)
    yield handler
    for name in names:
        logging.getLogger(name).removeHandler(handler)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda x: x if x.sum() > 0 else -x, "E0540"),
        (lambda x: x[:, : int(x.sum().item())], "E0540"),
        (lambda x: x * math.log(x.shape[1]), "E0541"),
        (lambda x: x * int(x.shape[1] / 2), "E0541"),
        (lambda x: x.split(x.shape[1] // 2, 1)[0], "E0541"),
        (lambda x: 1 / 0, "E0540"),
    ],
)
def test_a_recording_that_fails_is_silent(
    call: Call, code: str, records: Records, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(ArchError, match=code):
        recorded(Calls(call))
    assert [level for level in records.levels if level >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    logging.getLogger("torch").warning("logs are there again")
    assert logging.WARNING in records.levels
