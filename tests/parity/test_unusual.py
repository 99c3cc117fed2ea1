"""Architectures without a reference: they compile, run, train, and mean what their masks say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rows import POSITIONS
from torch import Tensor

import archdsl
from archdsl.ir.masks import RULES, TENSOR_RULES

pytestmark = pytest.mark.slow

SPECS = sorted((Path(__file__).parent / "unusual").glob("*.arch"))


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 97, shape)


def real(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


INPUTS: dict[str, Callable[[], tuple[Tensor, ...]]] = {
    "axial": lambda: (torch.randn(2, 3, 16, 16),),
    "dit": lambda: (torch.randn(2, 4, 16, 16), 1000 * torch.rand(2), torch.randint(0, 10, (2,))),
    "funnel": lambda: (tokens(2, 12), real(12, 9)),
    "hierarchical": lambda: (tokens(2, 3, 5),),
    "packed_documents": lambda: (tokens(2, 12), torch.tensor([[0] * 5 + [1] * 7, [0] * 9 + [1] * 3])),
    "perceiver": lambda: (tokens(2, 12), real(12, 9)),
    "unet": lambda: (torch.randn(2, 3, 32, 32),),
    "vae": lambda: (torch.randn(3, 20),),
}


@pytest.mark.parametrize("path", SPECS, ids=[p.stem for p in SPECS])
def test_runs_trains_and_compiles(path: Path) -> None:
    torch.manual_seed(0)
    module = archdsl.to_torch(path)
    arguments = INPUTS.get(path.stem, lambda: (tokens(2, 12),))()
    outputs = module(*arguments)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.stack([(o * torch.randn_like(o)).sum() for o in outputs]).sum().backward()
    assert [n for n, p in module.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []

    module.eval()
    torch._dynamo.reset()
    with torch.no_grad():
        expected, found = module(*arguments), torch.compile(module, fullgraph=True, backend="eager")(*arguments)
        torch.testing.assert_close(found, expected)
        module.to(torch.bfloat16)
        rounded = module(*(a.to(torch.bfloat16) if a.is_floating_point() else a for a in arguments))
    for output in rounded if isinstance(rounded, tuple) else (rounded,):
        assert output.dtype == torch.bfloat16


# --- masks against their definitions ----------------------------------------------------------------------------------

TIME = 13
FLAG = real(TIME, 8)
GROUP = torch.tensor([[0] * 5 + [1] * 8, [2] * 9 + [0] * 4])

MEANT: dict[str, Callable[..., bool]] = {
    "full": lambda b, q, k: True,
    "causal": lambda b, q, k: k <= q,
    "window": lambda b, q, k, width: q - width < k < q + width,
    "chunked": lambda b, q, k, size: k in range(q - q % size, q - q % size + size),
    "prefix": lambda b, q, k, length: k in range(length),
    "global": lambda b, q, k, count: min(q, k) < count,
    "strided": lambda b, q, k, stride: k in range(q % stride, TIME, stride),
    "dilated": lambda b, q, k, width, dilation: abs(q - k) in range(0, width * dilation, dilation),
    "keys": lambda b, q, k: bool(FLAG[b, k]),
    "queries": lambda b, q, k: bool(FLAG[b, q]),
    "same": lambda b, q, k: bool(GROUP[b, q] == GROUP[b, k]),
    "padding": lambda b, q, k: bool(FLAG[b, k]),
    "documents": lambda b, q, k: bool(GROUP[b, q] == GROUP[b, k]),
}
"""What each rule means, of a row of the batch, a query, a key, and the rule's numbers."""
JOINED: dict[str, Callable[[int, int, int], bool]] = {
    "~causal": lambda b, q, k: k > q,
    "causal & ~window(2)": lambda b, q, k: k <= q and abs(q - k) >= 2,
    "causal & (window(3) | global(2))": lambda b, q, k: k <= q and (abs(q - k) < 3 or q < 2 or k < 2),
    "causal & strided(3) | window(2)": lambda b, q, k: (k <= q and (q - k) % 3 == 0) or abs(q - k) < 2,
    "causal & flag": lambda b, q, k: k <= q and bool(FLAG[b, k]),
    "prefix(9) & flag": lambda b, q, k: k < 9 and bool(FLAG[b, k]),
    "same(group) & window(4)": lambda b, q, k: bool(GROUP[b, q] == GROUP[b, k]) and abs(q - k) < 4,
}


def masks() -> dict[str, Callable[[int, int, int], bool]]:
    """Each rule with the numbers of its example or with the tensors `flag` and `group`, and rules that are joined."""
    meant = dict(JOINED)
    for name, rule in RULES.items():
        if not rule.drawn:
            assert name in MEANT, f"say in MEANT what the mask `{name}` means, apart from its row"
            meant[str(POSITIONS[name])] = lambda *pair, name=name, numbers=rule.example: MEANT[name](*pair, *numbers)
    for name, reading in TENSOR_RULES.items():
        assert name in MEANT, f"say in MEANT what the mask `{name}` means"
        meant[f"{name}({'flag' if reading.kind == 'bool' else 'group'})"] = MEANT[name]
    return meant


MASKS = masks()


@pytest.mark.parametrize("mask", MASKS)
def test_a_query_sees_the_keys_of_its_mask_and_no_others(mask: str) -> None:
    """The keys' tensor apart from the queries', so that no gradient but the attention's own reaches it."""
    extra = ", flag: padding[batch, time]" if "flag" in mask else ", group: int[batch, time]" if "group" in mask else ""
    module = archdsl.to_torch(
        text=f"""model one(width = 8)(x: [batch, time, width], memory: [batch, time, width]{extra})
          -> [batch, time, width] {{
          return mha(heads: 2, mask: {mask})(x, memory) as attention
        }}""",
        allow_noncausal=True,
    )
    torch.manual_seed(0)
    x, memory = torch.randn(2, TIME, 8), torch.randn(2, TIME, 8, requires_grad=True)
    y = module(x, memory, *([FLAG] if "flag" in mask else [GROUP] if "group" in mask else []))
    wanted = torch.tensor([[[MASKS[mask](b, q, k) for k in range(TIME)] for q in range(TIME)] for b in range(2)])
    for q in range(TIME):
        (gradient,) = torch.autograd.grad(y[:, q].sum(), memory, retain_graph=True)
        assert torch.equal(gradient.abs().amax(-1) > 1e-7, wanted[:, q]), q
    assert y[~wanted.any(-1)].eq(0).all(), "a query without keys gives 0"
