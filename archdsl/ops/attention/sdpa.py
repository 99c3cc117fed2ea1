"""`sdpa`"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from archdsl.ir.cost import Amount, Cost, Pairs, contracted, times
from archdsl.ir.dims import Num, Shape, binary, function, num, shape_text, sub
from archdsl.ir.graph import Input, OpNode, Value
from archdsl.ir.masks import Mask, ahead, behind, breadth, normal
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Attends,
    Joint,
    OnnxScope,
    Parts,
    Primitive,
    Reads,
    Saved,
    TorchScope,
    Tree,
    same,
    shown,
    up_to,
)
from archdsl.ir.ranges import whole_size
from archdsl.ops._common import equals, tensor_inputs
from archdsl.ops.attention.mask import mask_tensor, tensor_leaves
from archdsl.ops.position import attend, attention_scale


def in_blocks(mask: Mask, q: Value, k: Value, dropout: Num) -> bool:
    """Return whether a mask comes in the blocks of FlexAttention on CUDA, which drops no weights and takes heads of 16
    channels or more. A mask of keys alone is small as it is; one with random keys compares all of them. A Config may
    set fewer channels: elsewhere they are as right, and on CUDA PyTorch refuses them."""
    square = q.rank == k.rank == 4 and q.shape[-2].value == k.shape[-2].value
    if not square or not mask.reads_queries or mask.drawn or not equals(dropout, 0):
        return False
    return all(float(v.shape[-1]) >= 16 for v in (q, k) if v.shape[-1].static)


def positioned(call: Application, q: Value, k: Value, bias: Input, mask: Mask) -> tuple[Value, Value, Input]:
    """Queries, keys and the bias of the scores as the option `position` makes them. The scale stays that of the heads
    that were given."""
    position, head_dim = call.options["position"], q.shape[-1]
    if position is None:
        return q, k, bias
    q, k, extra = attend(call, position, q, k, mask, call.options["rotated"])
    if call.options["scale"] is None and q.shape[-1].value != head_dim.value:
        call.options["scale"] = binary("/", num(1), function("sqrt", (head_dim,)))  # type: ignore[index]
    if extra is not None:
        bias = extra if bias is None else call.apply("plus", bias, extra)
    return q, k, bias


class AttentionScores(Primitive):
    """The scores of attention that is written out: `q k^T * scale`, capped, and what a position and a bias add.

    Its arguments are those of `sdpa`, whose mask hides none of them yet; `attend` makes attention of them."""

    signature = (
        "attention_scores(mask: mask = full, position: position = none, scale: nonzero = none, "
        "softcap: positive = none, rotated: bool = false)"
        "(q: float[..., time, head_dim], k: float[..., source, head_dim], bias: float[...] = none) "
        "-> [..., time, source]"
    )
    one_type = ("q", "k")
    examples = shown(
        "attention_scores(q, k)  # q: [2, 4, 5, 8], k: [2, 4, 7, 8]",
        "attention_scores(q, k, s, scale: 0.5, softcap: 20)  # q: [2, 4, 5, 8], k: [2, 2, 7, 8], s: [5, 7]",
        "attention_scores(q, k, position: rope)  # q: [2, 4, 5, 8], k: [2, 4, 5, 8]",
        "attention_scores(q, k, mask: causal, position: alibi)  # q: [2, 4, 5, 8], k: [2, 4, 5, 8]",
    )

    def build(self, call: Application) -> Sequence[Value]:
        mask, softcap = normal(call.options["mask"]), call.options["softcap"]
        q, k, bias = positioned(call, call.tensor(0), call.tensor(1), call.inputs[2], mask)
        scale = call.options["scale"]
        if q.rank >= 4:
            call.condition("%", q.shape[-3], k.shape[-3], "the heads of keys divide those of queries")
            times = whole_size(binary("/", q.shape[-3], k.shape[-3]), "size", "the share of a head of keys", call.span)
            k = call.apply("repeat", k, times=times, axis=num(q.rank - 3))
        factor = attention_scale(call.options["position"], call)
        q = (
            call.apply("divide", q, function("sqrt", (call.shape(0)[-1],)))
            if scale is None
            else call.apply("times", q, scale)
        )
        q = q if factor is None else call.apply("times", q, factor.number)
        scores = call.apply("matmul", q, call.apply("transpose", k, a=num(k.rank - 2), b=num(k.rank - 1)))
        if softcap is not None:
            scores = call.apply("times", call.apply("tanh", call.apply("divide", scores, softcap)), softcap)
        if isinstance(bias, Value):
            scores = call.apply("plus", scores, call.apply("cast", bias, dtype=q.dtype))
        return (scores,)


class SDPA(Primitive):
    """Scaled dot-product attention (Vaswani et al., 2017, equation 1): `softmax(q k^T * scale + bias) v` over the
    keys that `mask` lets see.

    q: [batch, heads, time, head_dim], k and v: [batch, kv_heads, source, …], kv_heads dividing heads; or all without
    the axis of heads.
    `scale` is 1 / sqrt(head_dim) unless given. `position` acts inside: rope turns q and k (unless `rotated`), others
    add a bias to the scores.
    `bias` is added to the scores; `sink: [heads]` is one more score for each query, of a key that holds nothing. A
    query without keys gives 0.
    """

    family = "attention"
    elsewhere = dict.fromkeys(
        ("scores", "normalize", "weights"),
        "`attend` is `sdpa` with blocks between its steps: `attend(q, k, v, scores: f)`",
    )
    worth_hoisting = True
    by_rows = True
    further_inputs = 1
    typed = 0
    signature = (
        "sdpa(mask: mask = full, position: position = none, scale: nonzero = none, dropout: rate = 0, "
        "softcap: positive = none, rotated: bool = false)"
        "(q: float[..., time, head_dim], k: float[..., source, head_dim], v: float[..., source, value_dim], "
        "bias: float[...] = none, sink: float[...] = none) -> [..., time, value_dim]"
    )
    hints = ("y",)
    one_type = ("q", "k", "v")
    examples = shown(
        "sdpa(q, k, v)  # q: [2, 4, 5, 8], k: [2, 4, 7, 8], v: [2, 4, 7, 6]",
        "sdpa(q, k, v, mask: causal)  # q: [2, 4, 5, 8], k: [2, 2, 5, 8], v: [2, 2, 5, 8]",
        "sdpa(q, k, v, mask: causal & window(2), scale: 0.5)  # q: [2, 4, 5, 8], k: [2, 4, 5, 8], v: [2, 4, 5, 8]",
        "sdpa(q, k, v, mask: causal, softcap: 20)  # q: [2, 4, 5, 8], k: [2, 2, 5, 8], v: [2, 2, 5, 8]",
        "sdpa(q, k, v, s_bias, sink: s)"
        "  # q: [2, 4, 5, 8], k: [2, 4, 5, 8], v: [2, 4, 5, 8], s_bias: [4, 5, 5], s: [4]",
        "sdpa(q, k, v, mask: causal, position: alibi)  # q: [2, 4, 5, 8], k: [2, 4, 5, 8], v: [2, 4, 5, 8]",
    )

    def check(self, call: Application) -> None:
        q, k, v = (call.shape(i) for i in range(3))
        if not len(q) == len(k) == len(v) or len(q) < 2:
            raise call.error(
                "E0302",
                f"`sdpa` takes q, k and v with the same number of axes: "
                f"{shape_text(q)}, {shape_text(k)} and {shape_text(v)} were given",
                help="cut the last axis into heads with `split_heads(heads)`",
            )
        if len(q) >= 4:
            heads, kv_heads = q[-3], k[-3]
            if not call.same(kv_heads, v[-3]):
                raise call.error(
                    "E0301",
                    f"`sdpa` needs as many heads of values as of keys: there are {kv_heads} of k and {v[-3]} of v",
                    input=2,
                )
            if not call.same(heads, kv_heads, "attention is written for kv_heads == heads: compile again with --set"):
                call.condition("%", heads, kv_heads, "the heads of keys divide those of queries")
        call.is_number(call.options["dropout"], 0)  # then nothing is dropped, and the mask may come in blocks
        call.same(q[-2], k[-2], "queries and keys stand at the same positions: compile anew where not")

    def build(self, call: Application) -> Sequence[Value]:
        q, k, v = (call.tensor(i) for i in range(3))
        bias, sink = call.inputs[3], call.inputs[4]
        options: dict[str, Any] = dict(call.options)
        mask = normal(options["mask"])
        q, k, bias = positioned(call, q, k, bias, mask)
        written_out = sink is not None or options["softcap"] is not None  # with scores in float32
        if isinstance(bias, Value) and bias.dtype not in (q.dtype, *(("float32",) if written_out else ())):
            # Kernels of CUDA take a bias as the queries alone.
            bias = call.apply("cast", bias, called="bias", dtype=q.dtype)
        if bias is not None or sink is not None or options["softcap"] is not None or len(q.shape) < 3:
            tensor = self._mask(call, mask, q, k, plain=True)
        else:
            blocks = in_blocks(mask, q, k, options["dropout"])
            tensor = self._mask(call, mask, q, k, plain=False, blocks=blocks)
        if bias is not None and tensor is not None:
            assert isinstance(bias, Value)
            bias, tensor = call.apply("masked_bias", bias, tensor, called="bias"), None
        call.options.update(mask=mask, position=None, factor=attention_scale(options["position"], call))  # type: ignore[attr-defined]
        return call.node(inputs=(q, k, v, tensor, bias, sink))

    def _mask(
        self, call: Application, mask: Mask, q: Value, k: Value, plain: bool, blocks: bool = False
    ) -> Value | None:
        """The mask as a tensor; None if every query sees every key. `plain` asks for a tensor even where a kernel
        needs none; a mask in `blocks` will do as well."""
        if mask.rule == "full":
            return None
        return mask_tensor(call, mask, (q.shape[0],), q.shape[-2], k.shape[-2], q.rank, plain=plain, blocks=blocks)

    def shapes(self, call: Application) -> Sequence[Shape]:
        return ((*call.shape(0)[:-1], call.shape(2)[-1]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        q, k = tensor_inputs(node, 0, 1)
        rank, time = q.rank, q.rank - 2
        lead = tuple(same(i) if rank < 4 or i != rank - 3 else EVERYWHERE for i in range(rank - 2))
        later = sub(k.shape[-2].value, q.shape[-2].value)  # the last query stands at the last key
        bound = ahead(node.options["mask"], later) if isinstance(later, int) else None
        bound = None if bound is None or not isinstance(later, int) else bound + max(later, 0)
        keys = EVERYWHERE if bound is None else up_to(time, bound)
        found: list[Reads] = [(*lead, same(time), EVERYWHERE), (*lead, keys, EVERYWHERE), (*lead, keys, EVERYWHERE)]
        for value in node.inputs[3:]:
            if not isinstance(value, Value):
                found.append(())
            elif value.rank == 1:
                found.append((EVERYWHERE,))
            else:
                axes: list[At | None] = []
                for i, d in enumerate(value.shape[:-2]):
                    axes.append(At() if d.value == 1 else same(i + rank - value.rank))
                row = At() if value.shape[-2].value == 1 != q.shape[-2].value else same(time)
                found.append((*axes, row, keys))
        return found

    def joint(self, node: OpNode) -> Joint:
        """A key that a query does not see, by the mask or by a bias of minus infinity, counts for nothing. Heads of
        keys, which several heads of queries may share, are all read."""
        q, k = tensor_inputs(node, 0, 1)
        lead = [f"lead{i}" for i in range(q.rank - 2)]
        kv_lead = [*lead]
        if q.rank >= 4 and q.shape[-3].value != k.shape[-3].value:
            kv_lead[-1] = "kv_head"
        scores = [*lead, "query", "key"]
        terms = [(*lead, "query", "of q"), (*kv_lead, "key", "of k"), (*kv_lead, "key", "value")]
        for given in node.inputs[3:]:
            rank = given.rank if isinstance(given, Value) else 0
            terms.append(tuple(scores[-rank:]) if rank >= 2 else tuple(f"sink{i}" for i in range(rank)))
        nothing = (None, None, None, 0.0, -math.inf, None)[: len(terms)]
        weighing = () if node.inputs[5:] and node.inputs[5] is not None else (0, 1, 4)  # a sink counts, too
        return Joint(tuple(terms), (*lead, "query", "value"), nothing, weighing, "key")

    def leading(self, node: OpNode, i: int) -> int | None:
        return 0 if i == 4 else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        q = node.tensor(0)
        if e.in_steps and q.rank == 3:  # the causal mask of steps is [batch, 1, new, keys]
            return e.py("{y}.squeeze(1)", y=self._attention(node, e, one_head=True))
        return self._attention(node, e)

    def _attention(self, node: OpNode, e: TorchScope, one_head: bool = False) -> Tree:
        """With `one_head` tensors without heads are given one."""

        def headed(i: int) -> Tree:
            value = node.inputs[i]
            lacks = one_head and isinstance(value, Value) and (value.rank == 3 or e.varies_by_row(i))
            return e.py("{x}[:, None]", x=e.input(i)) if lacks else e.input(i)

        q, k = tensor_inputs(node, 0, 1)
        rank = q.rank + one_head
        kind, mask = ("tensor", headed(4)) if e.has(4) else e.mask(3)
        if one_head and mask is not None and not e.has(4) and e.causal(mask) is None:  # of rows, without heads
            mask = e.py("{mask}[:, None]", mask=mask)
        softcap, dropout = node.options["softcap"], node.options["dropout"]
        given = [headed(i) for i in range(3)]
        masked = given if mask is None else [*given, mask]
        scale = self._scale(node, e, q)
        scaled: dict[str, Any] = {} if scale is None else {"scale": scale}
        shared = q.rank >= 4 and q.shape[-3].value != k.shape[-3].value
        few = e.for_few_rows or (e.in_steps and shared)
        if few and rank == 4 and softcap is None and not e.has(5):
            if mask is not None:
                return e.py("attend({*masked}, {**more})", masked=masked, more=scaled)
            if shared:  # as `attend` does
                sizes = {"heads": q.shape[-3], "kv_heads": k.shape[-3]}
                given[0] = e.py("{q}.unflatten(1, ({kv_heads}, -1)).flatten(2, 3)", q=given[0], **sizes)
                y = e.py("F.scaled_dot_product_attention({*given}, {**more})", given=given, more=scaled)
                return e.py("{y}.unflatten(2, ({heads} // {kv_heads}, -1)).flatten(1, 2)", y=y, **sizes)
        alike = mask is not None and e.causal(mask) is None  # then a step attends as `forward` does
        drops = dropout.value != 0 and (e.trains or alike)
        rate = e.py("{dropout} if self.training else 0", dropout=dropout) if drops else None
        if softcap is not None or e.has(5):
            more = scaled | ({} if softcap is None else {"softcap": softcap})
            more |= {"sink": e.input(5)} if e.has(5) else {}
            more |= {} if rate is None else {"dropout": rate}
            return e.py("attention({*masked}, {**more})", masked=masked, more=more)
        more = ({} if rate is None else {"dropout_p": rate}) | scaled
        bare = not (e.has(4) or e.in_steps)  # only a mask, of which there may be blocks
        blocks = bare and kind in ("tensor", "either") and in_blocks(node.options["mask"], q, k, dropout)
        if shared and kind == "tensor" and not blocks:  # fused kernels have a mask, or heads that share keys
            sizes = {"heads": q.shape[-3], "kv_heads": k.shape[-3]}
            again = [e.py("{x}.repeat_interleave({heads} // {kv_heads}, dim=-3)", x=x, **sizes) for x in given[1:]]
            given = [given[0], *again]
        elif shared:
            more |= {"enable_gqa": True}
        if blocks:
            function = "varlen_attention" if e.varlen else "masked_attention"
            return e.py(f"{function}({{*masked}}, {{**more}})", masked=masked, more=more)
        seen: dict[str, Any] = {}
        if kind == "causal":
            seen = {"is_causal": True}
        elif kind == "either":
            seen = {"attn_mask": mask, "is_causal": e.py("{mask} is None", mask=mask)}
        elif kind == "tensor" and mask is not None:
            causal = e.causal(mask)
            seen = {"attn_mask": mask} | ({} if causal is None else {"is_causal": causal})
        return e.py("F.scaled_dot_product_attention({*given}, {**more})", given=given, more=seen | more)

    def torch_absorbed(self, node: OpNode, e: TorchScope, rows: Tree, keys: Tree, values: Tree) -> Tree:
        q = node.tensor(0)
        mask = e.input(4) if e.has(4) else e.mask(3)[1]
        scale = self._scale(node, e, q)
        scale = e.py("{head_dim} ** -0.5", head_dim=q.shape[-1]) if scale is None else scale
        given = (rows, keys, values, mask, scale)
        return e.py("attend_latent({0}, {*given})", given=given)

    def torch_hosted(self, node: OpNode, e: TorchScope, mask: Tree, rest: Mapping[Any, Tree]) -> Tree | None:
        q, k = tensor_inputs(node, 0, 1)
        if q.rank != 4 or k.rank != 4:
            return None
        capped = node.options["softcap"] is not None
        own = "eager_sink_attention" if e.has(5) else "eager_capped_attention" if capped else "eager_attention"
        interface = "ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, {own})"
        attend = e.let("attend", e.py(interface, own=e.py(own)))
        softcap, dropout = node.options["softcap"], node.options["dropout"]
        rate = 0.0 if dropout.value == 0 else e.py("{dropout} if self.training else 0.0", dropout=dropout)
        more: dict[Any, Any] = {"dropout": rate}
        more |= {} if softcap is None else {"softcap": softcap}
        more |= {"s_aux": e.input(5)} if e.has(5) else {}
        return e.py("{attend}(self, {0}, {1}, {2}, {mask}, {**more})", attend=attend, mask=mask, more={**rest, **more})

    def torch_scaling(self, node: OpNode, e: TorchScope) -> Tree:
        q = node.tensor(0)
        scale = self._scale(node, e, q)
        return e.py("{scale}", scale=e.py("{head_dim} ** -0.5", head_dim=q.shape[-1]) if scale is None else scale)

    def kernels(self, node: OpNode) -> frozenset[str]:
        k, v = tensor_inputs(node, 1, 2)
        if node.inputs[4] is not None:  # a bias for each head
            return frozenset({"sdpa"})
        if node.options["softcap"] is not None or node.inputs[5] is not None:
            return frozenset({"flex"})
        return frozenset({"sdpa", "flex", "flash"} if k.shape[-1].value == v.shape[-1].value else {"sdpa", "flex"})

    def attends(self, node: OpNode) -> Attends | None:
        """None of what is written out, and of masks in blocks, which FlexAttention takes."""
        q, k = tensor_inputs(node, 0, 1)
        mask, dropout = node.options["mask"], node.options["dropout"]
        biased = node.inputs[4] is not None
        if node.options["softcap"] is not None or node.inputs[5] is not None:
            return None
        causal = mask.rule == "causal" and not biased
        given = 4 if biased else 3 if node.inputs[3] is not None and not causal else None
        if given == 3 and in_blocks(mask, q, k, dropout):
            return None
        return Attends(given, causal, drops=not equals(dropout, 0))

    def flops(self, node: OpNode) -> Cost:
        """Scores and their sums of values, for each pair; of heads of keys that several of queries share, each of these
        has its own scores. Element by element: scaled, the five of a softmax, and what is added or bent."""
        q, k, v = tensor_inputs(node, 0, 1, 2)
        pairs = Pairs(node.options["mask"], q.shape[-2], k.shape[-2])
        lead = q.shape[:-2]
        given = tuple(i for i in (0, 1, 4, 5) if isinstance(node.inputs[i], Value))
        scores = contracted((*lead, q.shape[-1]), (0,), (1,), pairs)
        sums = contracted((*lead, v.shape[-1]), given, (2,), pairs)
        extra = (node.inputs[4] is not None) + 3 * (node.options["softcap"] is not None)
        return Cost((scores, sums), (Amount(times((6 + extra, *lead)), pairs),))

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        """Some of the heads. One head of keys and values that all of queries share is whole; of what is added to the
        scores of each head every device takes that of its own."""
        q, k, v = tensor_inputs(node, 0, 1, 2)
        heads = q.rank - 3
        if q.rank < 4 or cut[0] != heads or any(axis is not None for axis in cut[3:]):
            return None
        for i, value in ((1, k), (2, v)):
            if cut[i] != heads and (cut[i] is not None or value.shape[heads].value != 1):
                return None
        own = {}
        for i, given in enumerate(node.inputs[3:], start=3):
            if isinstance(given, Value):
                axis = 0 if given.rank == 1 else given.rank - 3
                if axis >= 0 and given.shape[axis].value != 1:
                    own[i] = axis
        return Parts(heads, own=own, sizes=(q.shape[heads],))

    def saves(self, node: OpNode) -> Saved:
        """The result and the logarithm of each query's sum of exponentials (Dao et al., 2022); written out, the softmax
        of all scores and, where some of it is dropped, what is left and which it is."""
        q, k, v = tensor_inputs(node, 0, 1, 2)
        scores = Amount(times((*q.shape[:-1], k.shape[-2])))
        dropped = not equals(node.options["dropout"], 0)
        written = ((scores, v.dtype), *(((scores, v.dtype), (scores, "bool")) if dropped else ()))
        if node.options["softcap"] is not None or node.inputs[5] is not None:
            return Saved(outputs=(0,), own=written)  # no fused kernel has them
        return Saved(outputs=(0,), own=((Amount(times(q.shape[:-1])), "float32"),), scores=written)

    def reads_latent(self, node: OpNode) -> bool:
        tensors = tensor_inputs(node, 0, 1, 2)
        if any(x.rank != 4 for x in tensors):
            return False
        q, k, v = (x.shape[1].value for x in tensors)
        return {k, v} <= {1, q}  # heads that share none with others

    def cached_inputs(self, node: OpNode) -> Mapping[int, tuple[int, str]]:
        rank = node.outputs[0].rank
        return {1: (rank - 2, "key"), 2: (rank - 2, "value")}

    def needs_full_sequence(self, node: OpNode) -> str:
        return "has several axes of heads, which a step takes as one" if node.outputs[0].rank > 4 else ""

    def window(self, node: OpNode) -> tuple[int, Num] | None:
        (q, k), mask = tensor_inputs(node, 0, 1), node.options["mask"]
        found = breadth(mask)
        plain = node.inputs[3] is not None and node.inputs[4] is None and not tensor_leaves(mask)
        return (3, found) if found is not None and plain and q.shape[-2].value == k.shape[-2].value else None

    def lookback(self, node: OpNode, i: int) -> int | None:
        return behind(node.options["mask"])

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """`Attention`, or written out where there is a sink or fewer axes than it takes."""
        q, k, v = tensor_inputs(node, 0, 1, 2)
        scale = self.scale(node, q)
        causal = node.options["mask"].rule == "causal" and not g.has(3) and not g.has(4)
        softcap = node.options["softcap"]
        window = self.grouped_window(node, g)
        if window is not None:
            return self.grouped(node, g, [g.arg(0), *(g.new(i) for i in (1, 2))], scale, window)
        tensors = [g.arg(0), g.arg(1), g.arg(2)]
        own = g.dtype(tensors[0])
        if g.has(5) or q.rank < 4 or any(d.value == 0 for d in q.shape):
            return self.written_out(node, g, tensors, scale)
        lead = q.shape[:-3]
        if q.rank > 4:  # several axes of batch are one
            tensors = [
                g.Reshape(t, [-1, x.shape[-3], g.size(i, -2), x.shape[-1]])
                for i, (t, x) in enumerate(zip(tensors, (q, k, v), strict=True))
            ]
        mask = self.pairs_seen(node, g, own) if g.has(3) or g.has(4) else None
        y = g.Attention(
            *tensors,
            mask,
            scale=scale,
            is_causal=int(causal),
            **({"softcap": float(softcap)} if softcap is not None else {}),
        )
        if q.rank > 4:
            shape = g.Shape(g.arg(0))
            y = g.Reshape(y, [g.Slice(shape, [0], [len(lead) + 2]), v.shape[-1]])
        return y

    def caches_itself(self, node: OpNode, g: OnnxScope) -> bool:
        return self.grouped_window(node, g) is not None

    def grouped_window(self, node: OpNode, g: OnnxScope) -> int | None:
        """The window of the keys that a query sees, -1 where it sees all before it, if onnxruntime's own causal
        attention can do it; else None."""
        q, k, v = tensor_inputs(node, 0, 1, 2)
        mask: Mask = node.options["mask"]
        alike = g.in_steps or q.shape[-2].value == k.shape[-2].value  # in a step its keys are those before, too
        fits = q.rank == 4 and alike and k.shape[-1].value == v.shape[-1].value
        if not fits or g.has(4) or not g.offers("GroupQueryAttention") or not g.appends:
            return None
        if not q.shape[-1].static or int(q.shape[-1]) % 8:  # onnxruntime refuses heads of another size
            return None
        if mask.rule == "causal":
            return -1
        rules = sorted(p.rule for p in mask.parts)
        if mask.rule == "&" and rules == ["causal", "window"]:
            width = next(p for p in mask.parts if p.rule == "window").numbers[0]
            return int(width) if width.static else None
        return None

    def grouped(self, node: OpNode, g: OnnxScope, tensors: Sequence[Any], scale: float, window: int) -> Any:
        """Causal attention that stores no scores."""
        q, k = tensor_inputs(node, 0, 1)
        merged = [g.Reshape(g.Transpose(t, perm=[0, 2, 1, 3]), [0, 0, -1]) for t in tensors]
        softcap = node.options["softcap"]
        past_key, past_value, last, total = g.cached(1, 2)
        y, key, value = g.contrib(
            "GroupQueryAttention",
            *merged,
            past_key,
            past_value,
            last,
            total,
            *(() if not g.has(5) else (None, None, None, None, g.arg(5))),
            outputs=3,
            num_heads=int(q.shape[1]),
            kv_num_heads=int(k.shape[1]),
            scale=scale,
            local_window_size=window,
            softcap=float(softcap) if softcap is not None else 0.0,
        )
        g.keep({1: key, 2: value})
        return g.Transpose(g.Reshape(y, [0, 0, q.shape[1], q.shape[3]]), perm=[0, 2, 1, 3])

    def onnx_absorbed(self, node: OpNode, g: OnnxScope, rows: Any, keys: Any, values: Any) -> Any:
        """Queries turned into the space of the rows, which are keys and values of all heads (DeepSeek-V2, section
        2.1.2); the result turned back."""
        q = node.tensor(0)
        queries = g.MatMul(g.arg(0), g.Transpose(keys, perm=[0, 1, 3, 2]))
        mask = self.pairs_seen(node, g, g.dtype(queries)) if g.has(3) or g.has(4) else None
        softcap = node.options["softcap"]
        capped = {"softcap": float(softcap)} if softcap is not None else {}
        y = g.Attention(queries, rows, rows, mask, scale=self.scale(node, q), **capped)
        return g.MatMul(y, values)

    def pairs_seen(self, node: OpNode, g: OnnxScope, dtype: str) -> Any:
        """The mask, or the bias with the mask in it, as `Attention` takes it: with all its queries."""
        q, given = tensor_inputs(node, 0, 3 if g.has(3) else 4)
        mask = g.arg(3) if g.has(3) else g.arg(4, dtype)
        if given.rank >= 2 and given.shape[-2].value == 1 != q.shape[-2].value:
            mask = g.Expand(mask, [q.shape[-2], 1])
        if q.rank > 4 and given.rank > 3 and len(given.shape) == q.rank:
            mask = g.Expand(mask, [*(g.size(0, i) for i in range(q.rank - 3)), 1, 1, 1])
            mask = g.Reshape(mask, [-1, given.shape[-3], g.size(0, -2), g.size(1, -2)])
        return mask

    def written_out(self, node: OpNode, g: OnnxScope, tensors: Sequence[Any], scale: float) -> Any:
        """The equation itself, scores in float32."""
        q, k, v = tensors
        queries, keys = tensor_inputs(node, 0, 1)
        rank, own = queries.rank, g.dtype(v)
        if rank > 3 and queries.shape[-3].value != keys.shape[-3].value:
            k, v = (self.repeated(node, g, t, i) for i, t in ((1, k), (2, v)))
        order = [*range(rank - 2), rank - 1, rank - 2]
        scores = g.Mul(g.cast(g.MatMul(q, g.Transpose(k, perm=order)), "float32"), scale)
        if node.options["softcap"] is not None:
            cap = float(node.options["softcap"])
            scores = g.Mul(g.Tanh(g.Div(scores, cap)), cap)
        if g.has(4):
            scores = g.Add(scores, g.arg(4, "float32"))
        elif g.has(3):
            scores = g.Where(g.arg(3), scores, -math.inf)
        elif node.options["mask"].rule == "causal":  # of as many queries as keys: no tensor was made
            query, key = g.pairs(queries.shape[-2], keys.shape[-2])
            scores = g.Where(g.LessOrEqual(key, query), scores, -math.inf)
        if g.has(5):
            sink = g.Reshape(g.arg(5, "float32"), [-1, 1, 1])
            shape = g.Concat(g.Shape(scores, start=0, end=rank - 1), [1], axis=0)
            scores = g.Concat(scores, g.Expand(sink, shape), axis=-1)
        weights = g.Softmax(scores, axis=-1)
        weights = g.Where(g.IsNaN(weights), 0.0, weights)  # a query without keys gives 0
        if g.has(5):
            weights = g.Slice(weights, [0], [-1], [rank - 1])
        return g.MatMul(g.cast(weights, own), v)

    def repeated(self, node: OpNode, g: OnnxScope, x: Any, i: int) -> Any:
        """A head of keys or values for every head of queries."""
        q, t = tensor_inputs(node, 0, i)
        times = int(q.shape[-3]) // int(t.shape[-3])
        rank = t.rank
        x = g.Expand(g.Unsqueeze(x, [rank - 2]), [1] * (rank - 2) + [times, 1, 1])
        return g.Reshape(x, [*([0] * (rank - 3)), q.shape[-3], g.size(i, -2), t.shape[-1]])

    @staticmethod
    def scale(node: OpNode, q: Value) -> float:
        """What the scores are multiplied with."""
        scale, factor = node.options["scale"], node.options.get("factor")
        own = float(scale) if scale is not None else float(q.shape[-1]) ** -0.5
        return own if factor is None else own * float(factor.value)

    def _scale(self, node: OpNode, e: TorchScope, q: Value) -> Num | Tree | None:
        """The same in PyTorch; None for 1 / sqrt(head_dim)."""
        scale: Num | None = node.options["scale"]
        factor = node.options.get("factor")
        if factor is None:
            return scale
        own = e.py("{head_dim} ** -0.5", head_dim=q.shape[-1]) if scale is None else scale
        return e.py("{own} * {factor}", own=own, factor=factor.torch(e))
