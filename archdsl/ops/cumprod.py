"""`cumprod`"""

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import first_input, place
from archdsl.ops._onnx import END
from archdsl.ops._running import Running


class CumProd(Running):
    """The product of all positions up to the own, along an axis."""

    signature = "cumprod(axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("x -> cumprod"),
        Example("x -> cumprod(axis: 1)"),
        Example("cumprod(real)", "real: bool[2, 5]", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """The product of 2 positions, of 4, of 8, …; step by step where only the running model knows how many there
        are: no operator of the opset multiplies along an axis."""
        x, axis, length = self.terms(node, g), place(node), first_input(node).shape[place(node)]
        if not length.static:
            shape = g.Shape(g.Gather(x, g.constant(0, "int"), axis=axis))
            _, y = g.scan(self.step(g), [g.Expand(g.constant(1, g.dtype(x)), shape)], [x], axis=axis)
            return y
        reach = 1
        while reach < int(length):
            first, later = g.Slice(x, [0], [reach], [axis]), g.Slice(x, [reach], [END], [axis])
            x = g.Concat(first, g.Mul(later, g.Slice(x, [0], [-reach], [axis])), axis=axis)
            reach *= 2
        return x

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        axis, rank = place(node), first_input(node).rank
        terms = g.gated(self.terms(node, g), 1, rank, axis)
        last, y = g.scan(self.step(g), [g.Where(g.first, 1, past[0])], [terms], axis=axis)
        return y, [last]

    def step(self, g: OnnxScope) -> Any:
        def multiplied(before: Any, x: Any) -> tuple[Any, Any]:
            after = g.Mul(before, x)
            return after, after

        return multiplied

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        return self.torch_after(node, e, past[0], "*")

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        kind = {} if node.outputs[0].dtype == "int" else {"dtype": e.py("torch.float32")}
        return (e.py("{0}.new_ones({*sizes}, {**kind})", sizes=self.states(node)[0].shape, kind=kind),)
