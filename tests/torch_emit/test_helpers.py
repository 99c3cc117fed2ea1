"""Helpers of emitted files have no parameters that nothing in a file gives, and compute the same without them."""

from __future__ import annotations

import ast
import inspect
from itertools import combinations
from typing import Any

import pytest
import torch

import archdsl
from archdsl.backends.torch.helpers import fitted, helpers, trimmed
from archdsl.backends.torch.runtime import attention, delta_rule, rope

GIVEN: dict[str, tuple[Any, tuple[str, ...]]] = {
    "attention": (attention, ("mask", "scale", "softcap", "sink")),
    "attend": (attention, ("scale",)),
    "delta_rule": (delta_rule, ("state", "read")),
    "channel_delta_rule": (delta_rule, ("state", "read")),
    "yarn_scaling": (rope, ("truncate",)),
}
"""The module of a helper, and parameters that it may do without."""


def arguments(name: str) -> tuple[list[Any], dict[str, Any]]:
    """What a helper is given by position, and what it may be given by name."""
    torch.manual_seed(0)
    if name == "yarn_scaling":
        return [torch.ones(4), 100.0, 4.0, 64, 32.0, 1.0], {"truncate": False}
    if "delta_rule" in name:
        q, k, v = (torch.randn(2, 4, 70, 6) / 3 for _ in range(3))
        decay = -torch.rand(2, 4, 70, *[6] * ("channel" in name))
        return [q, k, v, torch.rand(2, 4, 70), decay], {"state": torch.randn(2, 4, 6, 6), "read": k / 2}
    heads = [torch.randn(2, n, 6, 8) for n in (4, 2, 2)]
    mask = torch.ones(6, 6).tril().bool()
    more = {"mask": mask, "scale": 0.3, "softcap": 2.0, "sink": torch.randn(4)}
    return [*heads, *[None] * (name == "attend")], more


@pytest.mark.parametrize(
    ("name", "wanted"),
    [(n, w) for n, (_, more) in GIVEN.items() for k in range(len(more) + 1) for w in combinations(more, k)],
)
def test_a_helper_computes_the_same_without_what_nothing_gives(name: str, wanted: tuple[str, ...]) -> None:
    module, (first, more) = GIVEN[name][0], arguments(name)
    source = trimmed(name, frozenset(wanted))
    made: dict[str, Any] = dict(vars(module))
    exec(source, made)  # a source of the package itself
    own = inspect.signature(getattr(module, name)).parameters
    left = [p for p in own if own[p].default is inspect.Parameter.empty or p in wanted]
    assert [*inspect.signature(made[name]).parameters] == left
    options = {p: more[p] for p in wanted}
    found, meant = made[name](*first, **options), getattr(module, name)(*first, **options)
    torch.testing.assert_close(found, meant, rtol=0, atol=0)


def test_comments_of_what_stays_stay() -> None:
    source = trimmed("attention", frozenset({"sink"}))
    assert "# a query without keys gives 0" in source
    assert "softcap *" not in source
    assert source.count("\n") < helpers()["attention"].source.count("\n")


@pytest.mark.parametrize(
    ("caller", "kept"),
    [
        ("attend(q, k, v, mask)", False),
        ("attend(q, k, v, mask, 0.5)", True),
        ("attend(q, k, v, mask, scale=0.5)", True),
        ("attend(*given)", True),
        ("attend(q, k, v, **options)", True),
        ("run(attend)", True),
        ("other(q)", True),
        ("attend(q, k, v, mask) + attend(q, k, v, mask, scale=2)", True),
    ],
)
def test_a_parameter_stays_where_something_may_give_it(caller: str, kept: bool) -> None:
    """Also where nothing in the file calls the helper: a user may."""
    found = fitted([helpers()["attend"]], [caller])["attend"]
    assert ("scale: float | None = None" in found) == kept


def test_what_helpers_give_each_other_counts() -> None:
    those = [helpers()[n] for n in ("through_chunks", "delta_rule", "in_steps", "delta_rule_on")]
    plain = fitted(those[:2], ["delta_rule(q, k, v, beta, log_decay)[0]"])
    steps = fitted(those, ["delta_rule_on(q, k, v, beta, log_decay, state)"])
    read = fitted(those, ["delta_rule_on(q, k, v, beta, log_decay, state, read=read)"])
    assert "state: Tensor | None" not in steps["delta_rule_on"] + plain["delta_rule"].partition('"""')[0]
    assert "state: Tensor | None = None" in steps["delta_rule"]
    assert "state: Tensor | None = None" in steps["through_chunks"]
    assert [("read:" in text["delta_rule"]) for text in (plain, steps, read)] == [False, False, True]


@pytest.mark.parametrize("name", ["gpt_oss", "gemma2_2b", "llama3", "hf/qwen3_next"])
def test_a_file_gives_each_parameter_with_a_default(name: str) -> None:
    """But for those whose value is read otherwise."""
    tree = ast.parse(archdsl.torch_source(name, features=["generate"]))
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name in helpers()}
    given = {name: set[str]() for name in functions}
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) in functions):
        names = [a.arg for a in functions[ast.unparse(call.func)].args.args]
        given[ast.unparse(call.func)] |= {*names[: len(call.args)], *(k.arg for k in call.keywords if k.arg)}
    for name, f in functions.items():
        assert {a.arg for a in f.args.args} <= given[name]


def test_helpers_of_several_definitions_are_as_they_are() -> None:
    linear = helpers()["linear"]
    assert fitted([linear], ["linear(x, weight)"]) == {"linear": linear.source}
