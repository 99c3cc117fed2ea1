"""`matmul`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.cost import Cost, contracted
from archdsl.ir.dims import Shape, shape_text
from archdsl.ir.graph import OpNode
from archdsl.ir.op import TIMES, Application, Code, Example, Primitive, TorchScope
from archdsl.ops._common import demand_floats, demand_one_type, first_input


class MatMul(Primitive):
    """The matrix product of the last two axes; those before them are equal from the right, or 1, or missing in one."""

    operator = "MatMul"
    signature = "matmul()(a: [..., rows, inner], b: [..., inner, columns]) -> [..., rows, columns]"
    examples = (
        Example("matmul(a, b)", "a: [2, 5, 8], b: [2, 8, 3]"),
        Example("matmul(a, b)", "a: [2, 1, 5, 8], b: [3, 8, 4]"),
        Example("matmul(a + 1, b)", "a: [5, 8], b: [2, 8, 5]"),
    )

    def check(self, call: Application) -> None:
        demand_one_type(self, call, (0, 1))
        demand_floats(self, call)

    def shapes(self, call: Application) -> Sequence[Shape]:
        a, b = call.shape(0), call.shape(1)
        return ((*together(self, call, a[:-2], b[:-2]), a[-2], b[-1]),)

    def flops(self, node: OpNode) -> Cost:
        return Cost((contracted((*node.outputs[0].shape, first_input(node).shape[-1]), (0,), (1,)),))

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{e.operand(0, TIMES)} @ {e.operand(1, TIMES + 1)}", TIMES)


def together(op: Primitive, call: Application, a: Shape, b: Shape) -> Shape:
    """The leading axes of both: from the right equal, or 1. Raises E0301."""
    long, short = (a, b) if len(a) >= len(b) else (b, a)
    result = list(long)
    for back in range(1, len(short) + 1):
        x, y = long[-back], short[-back]
        if x.value == 1:
            result[-back] = y
        elif y.value not in (1, x.value):
            raise call.error(
                "E0301",
                f"`{op.name}` needs equal leading axes, but they are {x} and {y}: "
                f"{shape_text(call.shape(0))} and {shape_text(call.shape(1))}",
                input=1,
                help="axes are compared from the right; an axis of size 1 fits any other",
            )
    return tuple(result)
