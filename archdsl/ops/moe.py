"""Experts and their routing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from archdsl.ir.cost import Amount, elements, times
from archdsl.ir.dims import binary, num, shape_text
from archdsl.ir.graph import Init, OpNode, Value, Weight
from archdsl.ir.op import EVERYWHERE, Application, OnnxScope, Primitive, Reads, Saved, TorchScope, Tree, same, shown
from archdsl.ir.signature import ORDER
from archdsl.ops._common import number, own_but, reshaped


class Experts(Primitive):
    """`count` experts, copies of one block, each token going to its `chosen` ones, their answers added by `weights`.

    An expert is any block that mixes no positions; each of its weights gets a leading axis of `count`.

    With a `capacity` an expert takes in training at most `capacity * time * top_k / count` choices, rounded up, of each
    sequence: of the positions along the last axis but one of x. They are taken token by token, and those that find no
    room are dropped: they add nothing (GShard, Lepikhin et al., 2020, section 2.2, a sequence being a group; Switch
    Transformer, Fedus et al., 2021, section 2.2). In evaluation none is.
    """

    worth_hoisting = True
    typed = "float"
    signature = (
        "experts(expert: block, count: size, capacity: positive = none)"
        "(x: float[..., width], weights: float[..., top_k], chosen: int[..., top_k]) -> [..., width]"
    )
    examples = shown(
        "experts(swiglu(hidden: 8), 5)(x, w, c)  # x: [2, 6, 8], w: [2, 6, 2], c: int[2, 6, 2]",
        "experts(mlp(hidden: 8), 5)(x, w, c)  # x: [6, 8], w: [6, 1], c: int[6, 1]",
        "experts(swiglu(hidden: 8), 5, capacity: 1.25)(x, w, c)  # x: [2, 6, 8], w: [2, 6, 2], c: int[2, 6, 2]",
    )

    def check(self, call: Application) -> None:
        if call.options["capacity"] is None:
            return
        if not call.size("capacity").static:
            text = f"`capacity` must be known before the model runs, and {call.size('capacity')} is not"
            raise call.error("E0204", text, option="capacity")
        if len(call.shape(0)) < 2:
            raise call.error(
                "E0302",
                f"a capacity is a share of many tokens, and x is one: {shape_text(call.shape(0))}",
                input=0,
                help="x: [..., time, width]; `unsqueeze(0)` adds an axis of size 1",
            )

    def build(self, call: Application) -> Sequence[Value]:
        count, top_k = call.size("count"), call.axes["top_k"]
        if not top_k.static or not count.static:
            raise call.error(
                "E0402",
                f"`experts` sends each token to {top_k} of {count}, which is known only when the model runs",
                help="weights and chosen: [..., top_k], their last axis fixed: see `topk`",
            )
        x, *rest = call.inputs
        if call.tensor(0).dtype != "float":  # the weights of experts are of the model's own type
            x = call.apply("cast", x, dtype="float")
        expert = call.expert(call.options["expert"], count, call.axes["width"])
        return call.node(inputs=(x, *rest), blocks={"": expert}, copies=count, active=call.axes["top_k"])

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rows = tuple(same(i) for i in range(node.outputs[0].rank - 1))
        return ((*rows, EVERYWHERE),) * 3

    def saves(self, node: OpNode) -> Saved:
        """The answers of the chosen experts, which are weighted, and which choices find room."""
        x, _, chosen = (v for v in node.inputs if isinstance(v, Value))
        assert node.active is not None
        answers = (Amount(times((node.active, *x.shape))), x.dtype)
        room = (Amount(elements(chosen.shape)), "bool")
        return Saved((1,), own=(answers,) if node.options["capacity"] is None else (answers, room))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, _, chosen = (v for v in node.inputs if isinstance(v, Value))
        width, k = node.outputs[0].shape[-1], chosen.shape[-1]
        assert node.copies is not None
        rows = g.Reshape(g.arg(0), [-1, x.shape[-1]])
        y = g.experts("", rows, g.Reshape(g.arg(1), [-1, k]), g.Reshape(g.arg(2), [-1, k]), node.copies)
        return g.Reshape(y, g.Shape(g.arg(0))) if width.value == x.shape[-1].value else y

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        assert node.copies is not None
        holes = {"experts": e.child(""), "count": node.copies}
        if node.options["capacity"] is None:
            return self._sorted(node, e, holes)
        within = "dispatch_within({capacity} if self.training else None, {experts}, {count}, {x}, {weights}, {2})"
        x, weights = self._entering(e, "x", e.input(0), holes)
        return self._leaving(e, e.py(within, capacity=number(node, "capacity"), x=x, weights=weights, **holes), holes)

    def _sorted(self, node: OpNode, e: TorchScope, holes: Mapping[str, Any]) -> Tree:
        """The pairs of a token and an expert in the order of experts, and their answers added up."""
        flat = node.tensor(0).rank == 2
        tokens, weights = self._entering(e, "tokens", e.input(0) if flat else e.py("{0}.flatten(0, -2)"), holes)
        pairs = e.py("{2}.flatten().sort(stable=True)")
        expert, order = e.unpack(("expert", "order"), pairs, "(token, choice) pairs, sorted by expert")
        numbers = e.py("torch.arange({count}, device={device})", count=holes["count"], device=e.device())
        found = "torch.searchsorted({expert}, {numbers}, right=True, out_int32=True)"
        ends = e.let("ends", e.py(found, expert=expert, numbers=numbers))
        token = e.let("token", e.py("{order} // {2}.size(-1)", order=order))
        answers = e.py("{experts}({x}[{token}], {ends})", **holes, x=tokens, token=token, ends=ends)
        weighted = "{y} * {weights}.flatten()[{order}, None].to({0}.dtype)"
        y = e.let("y", e.py(weighted, y=answers, weights=weights, order=order))
        total = e.py("torch.zeros_like({x}).index_add(0, {token}, {y})", x=tokens, token=token, y=y)
        total = self._leaving(e, total, holes)
        return total if flat else e.py("{total}.view_as({0})", total=total)

    def _entering(self, e: TorchScope, name: str, x: Tree, holes: Mapping[str, Any]) -> tuple[Tree, Tree]:
        """Tokens and weights as the experts read them, which may be sharded over ranks."""
        if e.divided:
            read = e.py("enter_shards({experts}, {x}, {1})", experts=holes["experts"], x=x)
            x, weights = e.unpack((name, "weights"), read)
            return x, weights
        return e.let(name, x) if name == "tokens" and e.input(0) != x else x, e.input(1)

    def _leaving(self, e: TorchScope, y: Tree, holes: Mapping[str, Any]) -> Tree:
        return e.py("leave_shards({experts}, {y})", experts=holes["experts"], y=y) if e.divided else y


class KeepGroups(Primitive):
    """Only the experts of the `top` best of equal `groups` keep their scores, the others get -inf (DeepSeek).

    A group is as good as its best two experts together (`score: top2`, DeepSeek-V3) or as its best one (`max`,
    DeepSeek-V2). The emitted file says it by one function; written out in a router it would be longer."""

    signature = (
        "keep_groups(groups: size, top: size, score: word = top2)(scores: float[..., experts]) -> [..., experts]"
    )
    mixes = False
    examples = shown(
        "x -> keep_groups(4, 2)",
        "x -> keep_groups(4, 1, score: max)",
        "x -> keep_groups(2, 2)  # x: [3, 8]",
    )

    def check(self, call: Application) -> None:
        experts, groups, top, score = call.axes["experts"], call.size("groups"), call.size("top"), call.options["score"]
        if score not in ("top2", "max"):
            raise call.error("E0204", f"a group is scored by its `top2` or its `max`, not by `{score}`", option="score")
        call.condition("%", experts, groups, "experts must be a multiple of groups")
        call.condition("<=", top, groups, "the number of groups kept must be at most the number of groups")
        if score == "top2":
            call.condition(
                "<=",
                num(2),
                binary("//", experts, groups),
                "`top2` needs two experts in every group; `score: max` needs one",
            )

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.tensor(0).rank
        return (own_but(rank, rank - 1),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, top = node.tensor(0), number(node, "top")
        groups, each = number(node, "groups"), binary("/", x.shape[-1], number(node, "groups"))
        scores = reshaped(g, g.arg(0), x.shape, (*x.shape[:-1], groups, each))
        if node.options["score"] == "top2":
            quality = g.ReduceSum(g.TopK(scores, [2], axis=-1, outputs=2)[0], [-1], keepdims=0)
        else:
            quality = g.ReduceMax(scores, [-1], keepdims=0)
        _, best = g.TopK(quality, [top], axis=-1, outputs=2)
        kept = g.cast(
            g.ReduceSum(g.OneHot(best, groups, g.constant([0.0, 1.0], "float32"), axis=-1), [-2], keepdims=0), "bool"
        )
        scores = g.Where(g.Unsqueeze(kept, [-1]), scores, -math.inf)
        return reshaped(g, scores, (*x.shape[:-1], groups, each), x.shape)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        function = "keep_groups" if node.options["score"] == "top2" else "keep_groups_by_max"
        return e.py(f"{function}({{0}}, {{groups}}, {{top}})", groups=number(node, "groups"), top=number(node, "top"))


class SelectionBiasOp(Primitive):
    """Scores plus a bias that only chooses experts: part of the state, not of the parameters (DeepSeek-V3, section
    2.1.2)."""

    router_bias = True
    expression = "{module}({0})"
    signature = "selection_bias()(scores: float[..., experts]) -> [..., experts]"
    mixes = False
    examples = shown("x -> selection_bias")

    def dtypes(self, call: Application) -> Sequence[str]:
        """The bias is of the model's own type."""
        return (max("float", call.tensor(0).dtype, key=ORDER.index),)

    def weights(self, call: Application) -> Sequence[Weight]:
        return (Weight("bias", (call.axes["experts"],), "raw", Init("zeros"), trained=False),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        return g.Add(g.arg(0, own), g.cast(g.weight("bias"), own))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("SelectionBias({experts})", experts=node.weights[0].shape[0])
