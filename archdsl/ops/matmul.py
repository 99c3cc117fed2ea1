"""`matmul`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.cost import Cost, contracted
from archdsl.ir.dims import Shape, shape_text
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, Joint, Primitive, TorchScope, Tree
from archdsl.ops._common import first_input
from archdsl.ops.einsum import spread

SIDES = (("rows", "inner"), ("inner", "columns"))


class MatMul(Primitive):
    """The matrix product of the last two axes; those before them are equal from the right, or 1, or missing in one."""

    operator = "MatMul"
    signature = "matmul()(a: float[..., rows, inner], b: float[..., inner, columns]) -> [..., rows, columns]"
    one_type = ("a", "b")
    examples = (
        Example("matmul(a, b)", "a: [2, 5, 8], b: [2, 8, 3]"),
        Example("matmul(a, b)", "a: [2, 1, 5, 8], b: [3, 8, 4]"),
        Example("matmul(a + 1, b)", "a: [5, 8], b: [2, 8, 5]"),
    )

    def shapes(self, call: Application) -> Sequence[Shape]:
        a, b = call.shape(0), call.shape(1)
        return ((*together(self, call, a[:-2], b[:-2]), a[-2], b[-1]),)

    def joint(self, node: OpNode) -> Joint:
        a, b = (
            spread(("...", *names), v.rank) for names, v in zip(SIDES, node.inputs, strict=True) if isinstance(v, Value)
        )
        result = spread(("...", "rows", "columns"), node.outputs[0].rank)
        return Joint((tuple(a), tuple(b)), tuple(result), (0.0, 0.0))

    def flops(self, node: OpNode) -> Cost:
        return Cost((contracted((*node.outputs[0].shape, first_input(node).shape[-1]), (0,), (1,)),))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0} @ {1}")


def together(op: Primitive, call: Application, a: Shape, b: Shape) -> Shape:
    """The leading axes of both: from the right equal, or 1. Raises E0301."""
    long, short = (a, b) if len(a) >= len(b) else (b, a)
    result = list(long)
    for back in range(1, len(short) + 1):
        x, y = long[-back], short[-back]
        if call.is_number(x, 1):
            result[-back] = y
        elif not call.fits(y, x):
            raise call.error(
                "E0301",
                f"`{op.name}` needs equal leading axes, but they are {x} and {y}: "
                f"{shape_text(call.shape(0))} and {shape_text(call.shape(1))}",
                input=1,
                help="axes are compared from the right; an axis of size 1 fits any other",
            )
    return tuple(result)
