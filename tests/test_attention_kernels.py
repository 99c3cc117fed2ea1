"""Why fused kernels of CUDA do not take a call of attention, as PyTorch has it in `sdp_utils.cpp` and its kin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from archdsl.estimates.attention_kernels import AttentionCall, refusals, taken

SHAPE = (2, 8, 128, 64)
CALL = AttentionCall(
    q=SHAPE,
    k=SHAPE,
    v=SHAPE,
    dtypes=("bfloat16",) * 3,
    dense=True,
    mask=None,
    mask_dtype=None,
    mask_dense=True,
    causal=True,
    shared=False,
)
LARGE = (2, 8, 128, 256)
EVERY = ("cudnn", "flash", "efficient")


def test_a_plain_call_is_taken_by_every_kernel() -> None:
    assert refusals(CALL, (9, 0)) == {"cudnn": [], "flash": [], "efficient": []}
    assert [taken(CALL, sm) for sm in ((7, 5), (8, 0), (9, 0))] == ["math", "flash", "cudnn"]


@pytest.mark.parametrize(
    ("change", "sm", "why", "kernels"),
    [
        ({"q": SHAPE[1:], "k": SHAPE[1:], "v": SHAPE[1:]}, (9, 0), "not four axes", EVERY),
        ({"k": (1, *SHAPE[1:]), "v": (1, *SHAPE[1:])}, (9, 0), "batches differ", EVERY),
        ({"dtypes": ("bfloat16", "bfloat16", "float32")}, (9, 0), "types differ", EVERY),
        ({"dtypes": ("float64",) * 3}, (9, 0), "float64", EVERY),
        ({"dtypes": ("float32",) * 3}, (9, 0), "float32", ("cudnn", "flash")),
        ({"q": (2, 8, 1, 64)}, (9, 0), "causal, and lengths differ", ("flash",)),
        ({"k": (2, 8, 1, 64), "v": (2, 8, 1, 64), "causal": False}, (9, 0), "one key", ("cudnn",)),
        ({"k": (2, 4, 128, 64), "v": (2, 4, 128, 64)}, (9, 0), "heads that share keys", EVERY),
        ({"k": (2, 4, 128, 64), "v": (2, 4, 128, 64), "shared": True}, (9, 0), "heads that share keys", ("efficient",)),
        ({"q": LARGE, "k": LARGE, "v": LARGE}, (9, 0), "sizes of heads", ("cudnn",)),
        *(
            ({"q": LARGE, "k": LARGE, "v": LARGE, "trains": True, "drops": drops}, sm, "gradients of large heads", told)
            for drops, sm, told in (
                (True, (8, 6), ("flash",)),
                (True, (8, 0), ()),
                (True, (9, 0), ()),
                (False, (8, 9), ()),
                (True, (12, 0), ("flash",)),
            )
        ),
    ],
)
def test_why_kernels_do_not_take_a_call(
    change: dict[str, Any], sm: tuple[int, int], why: str, kernels: tuple[str, ...]
) -> None:
    call = replace(CALL, **change)
    found = refusals(call, sm)
    assert tuple(kernel for kernel, reasons in found.items() if why in reasons) == kernels
    assert taken(call, sm) == next((kernel for kernel, reasons in found.items() if not reasons), "math")
