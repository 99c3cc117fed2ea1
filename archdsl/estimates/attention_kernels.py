"""Which kernel `scaled_dot_product_attention` takes on a CUDA device, by the conditions of torch's sources.

They are those of aten/src/ATen/native/transformers/{sdp_utils_cpp.h, cuda/sdp_utils.cpp}, as of torch 2.13. Where no
fused kernel takes a call, torch writes attention out (`math`): it stores all scores, in float32 whatever the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from archdsl.estimates.dtypes import Dtype
from archdsl.estimates.hardware import Device
from archdsl.ir.cost import whole_at
from archdsl.ir.graph import OpNode
from archdsl.passes.flatten import FlatOp

HALF = ("bfloat16", "float16")
SCORES = "float32"
"""The type of scores that are stored."""

Capability = tuple[int, int]
"""The compute capability of a device: (9, 0) of sm90."""


@dataclass(frozen=True)
class AttentionCall:
    """One call, as far as kernels ask: shapes, types and strides."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dtypes: tuple[str, ...]
    dense: bool
    """Whether numbers of the last axes of queries, keys and values lie beside each other."""
    mask: tuple[int, ...] | None
    mask_dtype: str | None
    mask_dense: bool
    causal: bool
    shared: bool
    """Whether heads of keys may be fewer than those of queries (`enable_gqa`)."""
    trains: bool = False
    """Whether gradients are wanted."""
    drops: bool = False


def refusals(call: AttentionCall, sm: Capability) -> dict[str, list[str]]:
    """Return why each fused kernel does not take a call, in the order in which they are asked; of one that would there
    is nothing. cuDNN is asked on sm90 and sm100."""
    cudnn = {"cudnn": _cudnn(call)} if sm[0] in (9, 10) else {}
    return {**cudnn, "flash": _flash(call, sm), "efficient": _efficient(call, sm)}


def taken(call: AttentionCall, sm: Capability) -> str:
    """Return the kernel that takes a call: `math` where no fused one does."""
    return next((kernel for kernel, why in refusals(call, sm).items() if not why), "math")


def fused(call: AttentionCall, sm: Capability) -> bool:
    """Whether a fused kernel takes a call: else torch writes attention out, and stores all scores."""
    return taken(call, sm) != "math"


def _all(call: AttentionCall, types: tuple[str, ...]) -> list[str]:
    why = []
    if not len(call.q) == len(call.k) == len(call.v) == 4:
        why.append("not four axes")
    elif not call.q[0] == call.k[0] == call.v[0]:
        why.append("batches differ")
    if len({*call.dtypes}) > 1:
        why.append("types differ")
    elif call.dtypes[0] not in types:
        why.append(call.dtypes[0])
    if not (call.dense and call.mask_dense):
        why.append("the last axis is not contiguous")
    return why


def _heads(call: AttentionCall, shared: bool) -> list[str]:
    if len(call.q) != 4 or call.q[1] == call.k[1] == call.v[1]:
        return []
    return [] if shared and call.shared and call.q[1] % call.k[1] == 0 else ["heads that share keys"]


def _flash(call: AttentionCall, sm: Capability) -> list[str]:
    why = _all(call, HALF) + _heads(call, shared=True)
    if sm < (8, 0):
        why.append(f"sm{sm[0]}{sm[1]}")
    if call.mask is not None:
        why.append("a mask")
    dim = call.q[-1]
    if not dim == call.k[-1] == call.v[-1] <= 256:
        why.append("sizes of heads")
    if call.trains and dim > 192 and ((8, 6) <= sm <= (8, 9) or sm[0] == 12) and (dim <= 224 or call.drops):
        why.append("gradients of large heads")
    if call.causal and call.q[-2] != call.k[-2]:
        why.append("causal, and lengths differ")
    return why


def _efficient(call: AttentionCall, sm: Capability) -> list[str]:
    types = ("float32", *HALF) if sm >= (8, 0) else ("float32", "float16")
    why = _all(call, types) + _heads(call, shared=False)
    # Numbers in a row of 16 bytes, in which matrix units read; before sm80 they have no float32.
    units = 8 if call.dtypes[0] in HALF else 4 if sm >= (8, 0) else 1
    if call.q[-1] != call.k[-1] or call.q[-1] % units or call.v[-1] % units:
        why.append("sizes of heads")
    return why


def _cudnn(call: AttentionCall) -> list[str]:
    why = _all(call, HALF) + _heads(call, shared=True)
    most = 192 if (call.q[-1], call.v[-1]) == (192, 128) else 128
    if max(call.q[-1], call.v[-1]) > most or call.q[-1] % 8 or call.v[-1] % 8:
        why.append("sizes of heads")
    if call.k[-2] == 1:
        why.append("one key")
    if call.mask is not None and len(call.q) == 4:
        axes = zip(reversed(call.mask), (call.k[-2], call.q[-2], call.q[1], call.q[0]), strict=False)
        if len(call.mask) not in (2, 4) or any(size not in (1, whole) for size, whole in axes):
            why.append("the shape of the mask")
    return why


class StoredScores:
    """Says of each attention of a model whether its scores are stored on a device, where something is known of it."""

    def __init__(self, device: Device | None, sizes: Mapping[str, int], dtype: Dtype, *, trains: bool) -> None:
        self.sm = None if device is None else device.capability
        self.sizes, self.dtype, self.trains = dict(sizes), dtype, trains
        self.why: dict[OpNode, str] = {}
        """By attention, why no fused kernel takes it; "" where one does."""
        self.paths: dict[str, str] = {}
        """The same by path, of those alone whose scores are stored."""

    def __call__(self, node: FlatOp) -> str | None:
        """Return the type of the scores that an op stores; None where it stores none."""
        if node.node not in self.why:
            self.why[node.node] = self.reason(node)
        if not self.why[node.node]:
            return None
        self.paths[node.path] = self.why[node.node]
        return SCORES

    def reason(self, node: FlatOp) -> str:
        """Return why no fused kernel takes an attention; "" where one does, or nothing is known of the device."""
        call = self.call(node) if self.sm is not None else None
        refused = refusals(call, self.sm) if call is not None and self.sm is not None else {}
        if not all(refused.values()):
            return ""
        return "; ".join(f"{kernel}: {', '.join(why)}" for kernel, why in refused.items())

    def call(self, node: FlatOp) -> AttentionCall | None:
        """How a whole sequence attends in emitted code; None of what is no attention, and where no kernel is asked."""
        asked = node.node.op.attends(node.node)
        if asked is None:
            return None
        inputs = [node.tensor(i) for i in (0, 1, 2, *([] if asked.mask is None else [asked.mask]))]
        q, k, v, *mask = (tuple(whole_at(d.value, self.sizes) for d in x.shape) for x in inputs)
        if mask and len(q) == 4:  # each head of queries has keys and values of its own
            k, v = ((shape[0], q[1], *shape[2:]) for shape in (k, v))
        return AttentionCall(
            q,
            k,
            v,
            dtypes=tuple(self.dtype if x.dtype == "float" else x.dtype for x in inputs[:3]),
            dense=True,
            mask=mask[0] if mask else None,
            mask_dtype="bool" if mask else None,
            mask_dense=True,
            causal=asked.causal,
            shared=True,
            trains=self.trains,
            drops=self.trains and asked.drops,
        )
