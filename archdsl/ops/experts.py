"""`experts`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Amount, times
from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import EVERYWHERE, Application, Example, OnnxScope, Primitive, Reads, Saved, TorchScope, same

DISPATCH = '''
def dispatch(experts: nn.Module, count: int, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Send each token to its chosen experts and add their answers, weighted."""
    tokens, chosen, weights = x.flatten(0, -2), chosen.flatten(0, -2), weights.flatten()
    expert, order = chosen.flatten().sort(stable=True)  # (token, choice) pairs, sorted by expert
    ends = torch.searchsorted(expert, torch.arange(1, count + 1, device=x.device)).to(torch.int32)
    token = order // chosen.size(-1)
    y = experts(tokens[token], Groups(ends, expert)) * weights[order, None].to(x.dtype)
    return torch.zeros_like(tokens).index_add(0, token, y).view_as(x)
'''


class Experts(Primitive):
    """`count` experts, copies of one block, each token going to its `chosen` ones, their answers added by `weights`.

    An expert is any block that mixes no positions; each of its weights gets a leading axis of `count`.
    """

    signature = (
        "experts(expert: block, count: size)"
        "(x: [..., width], weights: [..., top_k], chosen: int[..., top_k]) -> [..., width]"
    )
    examples = (
        Example("experts(swiglu(hidden: 8), 5)(x, w, c)", "x: [2, 6, 8], w: [2, 6, 2], c: int[2, 6, 2]"),
        Example("experts(mlp(hidden: 8), 5)(x, w, c)", "x: [6, 8], w: [6, 1], c: int[6, 1]"),
    )

    def build(self, call: Application) -> Sequence[Value]:
        count, top_k = call.size("count"), call.axes["top_k"]
        if not top_k.static or not count.static:
            raise call.error(
                "E0402",
                f"`experts` sends each token to {top_k} of {count}, which is known only when the model runs",
                help="weights and chosen: [..., top_k], their last axis fixed: see `topk`",
            )
        expert = call.expert(call.options["expert"], count, call.axes["width"])
        return call.node(blocks={"": expert}, copies=count, active=call.axes["top_k"])

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(0),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(0).dtype,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rows = tuple(same(i) for i in range(node.outputs[0].rank - 1))
        return ((*rows, EVERYWHERE),) * 3

    def saves(self, node: OpNode) -> Saved:
        """The answers of the chosen experts, which are weighted."""
        x = node.inputs[0]
        assert isinstance(x, Value)
        assert node.active is not None
        return Saved((1,), own=((Amount(times((node.active, *x.shape))), x.dtype),))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, _, chosen = (v for v in node.inputs if isinstance(v, Value))
        width, k = node.outputs[0].shape[-1], chosen.shape[-1]
        assert node.copies is not None
        rows = g.Reshape(g.arg(0), [-1, x.shape[-1]])
        y = g.experts("", rows, g.Reshape(g.arg(1), [-1, k]), g.Reshape(g.arg(2), [-1, k]), node.copies)
        return g.Reshape(y, g.Shape(g.arg(0))) if width.value == x.shape[-1].value else y

    def torch(self, node: OpNode, e: TorchScope) -> str:
        count = node.copies
        assert count is not None
        return f"{e.helper(DISPATCH)}({e.child('')}, {e.number(count)}, {e.arg(0)}, {e.arg(1)}, {e.arg(2)})"
