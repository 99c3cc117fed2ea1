"""Modules that no export can follow, and what they mean.

A row recognizes a module by what it holds and what it is called with, and says what it computes. It is taken only where
that gives the numbers of the module's own `forward`; the export then records one operator in its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from archdsl.diagnostics.source import Source
from archdsl.syntax import ast
from archdsl.syntax.parse import parse

CLOSE = 1e-4
"""Relative to the largest output; the sums of a module, or a recurrence's, are in another order."""

TOKENS = 7


class Gate(NamedTuple):
    """What an expert does between its two maps: in PyTorch, and in the language, of `h` or of `gate` and `up`."""

    compute: Callable[..., Tensor]
    words: str
    gated: bool = True


def _limited(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


GATES = {
    "silu": Gate(lambda gate, up: F.silu(gate) * up, "(gate -> silu) * up"),
    "gelu": Gate(lambda gate, up: F.gelu(gate) * up, "(gate -> gelu) * up"),
    "gelu_tanh": Gate(lambda gate, up: F.gelu(gate, approximate="tanh") * up, "(gate -> gelu_tanh) * up"),
    "relu": Gate(lambda gate, up: F.relu(gate) * up, "(gate -> relu) * up"),
    "limited": Gate(_limited, "((up -> clamp(low: -7, high: 7)) + 1) * (gate -> clamp(high: 7) -> quick_gelu)"),
    "silu_alone": Gate(F.silu, "h -> silu", gated=False),
    "gelu_alone": Gate(F.gelu, "h -> gelu", gated=False),
    "relu_alone": Gate(F.relu, "h -> relu", gated=False),
    "relu_squared": Gate(lambda h: F.relu(h).square(), "h -> relu_squared", gated=False),
}


class Experts(NamedTuple):
    """Experts in stacked weights: names of the weights, whether they are [inputs, features], and whether gates and
    values alternate."""

    up: str
    down: str
    up_bias: str | None
    down_bias: str | None
    turned: bool
    paired: bool
    gate: str

    def hidden(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The hidden units of one expert."""
        h = F.linear(x, weight.T if self.turned else weight, bias)
        gate = GATES[self.gate]
        if not gate.gated:
            return gate.compute(h)
        halves = (h[..., ::2], h[..., 1::2]) if self.paired else h.chunk(2, -1)
        return gate.compute(*halves)

    def block(self, name: str) -> ast.BlockDecl:
        """One expert as a block of the language."""
        bias = "" if self.up_bias else ", bias: false"
        last = "" if self.down_bias else ", bias: false"
        if GATES[self.gate].gated:
            cut = "-> unflatten(-1, hidden, 2)\n gate = h[..., 0]\n up = h[..., 1]" if self.paired else "-> chunk(2)"
            names, wide = ("h", "2 * hidden") if self.paired else ("gate, up", "2 * hidden")
        else:
            cut, names, wide = "", "h", "hidden"
        text = f"""block {name}(hidden: size)(x: [..., width]) -> [..., width] {{
            {names} = x -> linear({wide}{bias}) as {self.up} {cut}
            h = {GATES[self.gate].words}
            return h -> linear(width{last}) as {self.down}
        }}"""
        found = parse(Source("expert", text)).declarations[0]
        assert isinstance(found, ast.BlockDecl)
        return found


def _experts(x: Tensor, chosen: Tensor, weights: Tensor, params: list[Tensor], how: Experts) -> Tensor:
    up, down, *biases = params
    up_bias = biases.pop(0) if how.up_bias else None
    down_bias = biases.pop(0) if how.down_bias else None
    y = torch.zeros_like(x)
    for e in range(up.shape[0]):
        h = how.hidden(x, up[e], None if up_bias is None else up_bias[e])
        h = F.linear(h, down[e].T if how.turned else down[e], None if down_bias is None else down_bias[e])
        y = y + h * (weights * (chosen == e)).sum(-1, keepdim=True).to(h.dtype)
    return y


MEANINGS: list[Experts] = []
"""What was recognized so far; an operator in a graph names its place here."""


torch.library.define(
    "archdsl_lift::experts", "(Tensor x, Tensor chosen, Tensor weights, Tensor[] parameters, int which) -> Tensor"
)


def _shaped(x: Tensor, chosen: Tensor, weights: Tensor, params: list[Tensor], which: int) -> Tensor:
    """Experts of stacked weights. x: [..., width]; chosen and weights: [..., top_k]."""
    return torch.empty_like(x)


torch.library.register_fake("archdsl_lift::experts", _shaped)


@contextmanager
def replaced(calls: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Give modules another `forward`, until the end."""
    try:
        for inner, call in calls.items():
            inner.forward = call
        yield
    finally:
        for inner in calls:
            inner.__dict__.pop("forward", None)


def declared(module: nn.Module) -> AbstractContextManager[None]:
    """Replace the `forward` of what is recognized by one operator, until the end."""
    found = {inner: how for inner in module.modules() if (how := recognized(inner)) is not None}
    MEANINGS.extend(how for how in dict.fromkeys(found.values()) if how not in MEANINGS)
    return replaced({inner: partial(_called, inner, how) for inner, how in found.items()})


def _called(inner: nn.Module, how: Experts, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    names = (how.up, how.down, how.up_bias, how.down_bias)
    params = [getattr(inner, n) for n in names if n is not None]
    return torch.ops.archdsl_lift.experts(x, chosen, weights, params, MEANINGS.index(how))  # type: ignore[no-any-return]


def recognized(inner: nn.Module) -> Experts | None:
    """The experts that a module is, called with tokens [n, width], the chosen experts and their weights [n, top_k]."""
    own = dict(inner.named_parameters(recurse=False))
    maps = {name: p for name, p in own.items() if p.dim() == 3}
    biases = {name: p for name, p in own.items() if p.dim() == 2}
    if len(maps) != 2 or len(own) != len(maps) + len(biases) or len(biases) not in (0, 2):
        return None
    if len(inspect.signature(inner.forward).parameters) != 3:
        return None
    for (up, down), turned in product((tuple(maps), tuple(maps)[::-1]), (False, True)):
        count, wide, width = maps[up].shape if not turned else maps[up].transpose(1, 2).shape
        back, hidden = maps[down].shape[1:] if not turned else maps[down].shape[:0:-1]
        if back != width or wide not in (hidden, 2 * hidden) or maps[down].shape[0] != count:
            continue
        up_bias = next((n for n, b in biases.items() if b.shape == (count, wide)), None)
        down_bias = next((n for n, b in biases.items() if b.shape == (count, width) and n != up_bias), None)
        if len(biases) == 2 and None in (up_bias, down_bias):
            continue
        for (name, gate), paired in product(GATES.items(), (False, True)):
            if gate.gated == (wide == 2 * hidden) and not (paired and not gate.gated):
                how = Experts(up, down, up_bias, down_bias, turned, paired, name)
                if _agrees(inner, how, width, count):
                    return how
    return None


def _agrees(inner: nn.Module, how: Experts, width: int, count: int) -> bool:
    """Whether a module computes what these experts do, on random numbers large enough to tell gates apart."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, width, generator=generator)
    weights, chosen = torch.rand(TOKENS, count, generator=generator).topk(min(2, count))
    state = {n: torch.randn(p.shape, generator=generator) for n, p in inner.named_parameters(recurse=False)}
    params = [state[n] for n in (how.up, how.down, how.up_bias, how.down_bias) if n is not None]
    try:
        with torch.no_grad():
            theirs = torch.func.functional_call(inner, state, (x, chosen, weights))
            ours = _experts(x, chosen, weights, params, how)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    return (
        isinstance(theirs, Tensor)
        and theirs.shape == ours.shape
        and bool((ours - theirs).abs().max() <= CLOSE * theirs.abs().max())
    )
