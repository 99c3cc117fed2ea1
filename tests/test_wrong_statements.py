"""What is wrong in a statement, a call or a declaration: the code and the words that are said of it; and what is right,
though it looks like that: its numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch_emit.emitted import module, spec

from archdsl.api import check


def said(text: str) -> list[tuple[str, str, str]]:
    """Return code, message and help of everything that is said against a spec."""
    return [(d.code, d.message, d.help) for d in check(text=text)]


# --- experts ----------------------------------------------------------------------------------------------------------

MOE = "{} model m(x: [batch, time, 8]) {{ return x -> moe(experts: 5, top_k: 2, expert: {}) }}"
EXPERTS = {
    "a primitive with weights": ("", "linear(8)", lambda x, w, b: functional.linear(x, w[0], b[0])),
    "a primitive without": ("", "gelu", lambda x, w, b: functional.gelu(x)),
    "an inline block": (
        "inline block ex(h: size)(x: [..., width]) { return x -> linear(h) -> relu -> linear(width) }",
        "ex(12)",
        lambda x, w, b: functional.linear(functional.linear(x, w[0], b[0]).relu(), w[1], b[1]),
    ),
    "a block": (
        "block ex(h: size)(x: [..., width]) { return x -> linear(h) -> relu -> linear(width) }",
        "ex(12)",
        lambda x, w, b: functional.linear(functional.linear(x, w[0], b[0]).relu(), w[1], b[1]),
    ),
}


@pytest.mark.parametrize("kind", EXPERTS)
def test_an_expert_is_any_block(kind: str) -> None:
    """Each token by its two best experts, weighted by their shares: computed here token by token."""
    declared, expert, answer = EXPERTS[kind]
    torch.manual_seed(0)
    made: Any = module(spec(MOE.format(declared, expert)))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    of_experts = [p for name, p in made.named_parameters() if ".experts." in name]
    matrices, biases = ([p for p in of_experts if p.dim() == n] for n in (3, 2))
    x = torch.randn(2, 3, 8)
    scores = functional.linear(x, made.moe.router.gate.weight).softmax(-1)
    wanted = torch.zeros_like(x)
    for token in [(i, j) for i in range(2) for j in range(3)]:
        best, chosen = scores[token].topk(2)
        for share, e in zip(best / best.sum(), chosen, strict=True):
            wanted[token] += share * answer(x[token], [w[e] for w in matrices], [b[e] for b in biases])
    torch.testing.assert_close(made(x), wanted)


@pytest.mark.parametrize(
    ("declared", "expert", "name"),
    [
        ("", "linear(4)", "linear"),
        ("inline block ex(x: [..., width]) { return x -> linear(4) }", "ex", "ex"),
        ("block ex(x: [..., width]) -> [..., 4] { return x -> linear(4) }", "ex", "ex"),
    ],
)
def test_an_expert_of_another_width_is_called_what_the_user_calls_it(declared: str, expert: str, name: str) -> None:
    ((code, message, _),) = said(MOE.format(declared, expert))
    assert code == "E0301"
    assert message == f"an expert gives back the shape it gets, [rows, 8], and `{name}` gives [rows, 4]"
