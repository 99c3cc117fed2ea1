"""What a primitive says of a node's results and weights, asked once more: of a node that is there, whatever made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import ArchError, error
from archdsl.diagnostics.source import Span
from archdsl.ir.dims import Num, Poly, Shape, is_size_like, mod
from archdsl.ir.graph import Input, OpNode, Value, Weight
from archdsl.ir.ranges import TESTS

if TYPE_CHECKING:
    from archdsl.ir.op import Primitive


def results(node: OpNode) -> list[Value]:
    """Return the shapes and types of the results that a primitive has for the inputs and options of a node. Raises
    ArchError where it takes none such."""
    use: Any = _Application(node)
    return [Value(tuple(s), t) for s, t in zip(node.op.shapes(use), node.op.dtypes(use), strict=True)]


def weights(node: OpNode) -> Sequence[Weight]:
    """Return the weights that a primitive has for them, as it draws them itself."""
    use: Any = _Application(node)
    return node.op.weights(use)


class Applied:
    """What a primitive is applied to."""

    op: Primitive
    inputs: tuple[Input, ...]
    options: Mapping[str, Any]

    def shape(self, i: int) -> Shape:
        value = self.inputs[i]
        return value.shape if isinstance(value, Value) else ()

    def tensor(self, i: int) -> Value:
        value = self.inputs[i]
        assert isinstance(value, Value), (self.op.name, i)
        return value

    def size(self, option: str) -> Num:
        value = self.options[option]
        assert isinstance(value, Num), (self.op.name, option)
        return value


class _Application(Applied):
    """What `shapes`, `dtypes` and `weights` ask of `archdsl.ir.op.Application`. Nothing is noted: what was decided by
    numbers was noted when the spec was read."""

    masks: Mapping[int, Any] = {}

    def __init__(self, node: OpNode) -> None:
        self.op, self.inputs, self.options, self.axes = node.op, node.inputs, node.options, node.axes
        self.span = node.span

    def error(self, code: str, message: str, **_: Any) -> ArchError:
        span: Span | None = self.span
        return error(code, message, span)

    def condition(self, op: str, left: Num, right: Num, message: str) -> None:
        if not (left.static and right.static):
            return
        if not (mod(left.value, right.value) == 0 if op == "%" else TESTS[op](left.value, right.value)):
            raise self.error("E0401", message)

    def holds(self, op: str, a: Num, b: Num | float, message: str = "") -> bool:
        return TESTS[op](a.value, b.value if isinstance(b, Num) else b)

    def keeps(self, a: Num, op: str, b: Num, message: str) -> None:
        pass

    def same(self, a: Num, b: Num, message: str = "") -> bool:
        return a.value == b.value

    def fits(self, a: Num, b: Num) -> bool:
        return a.value in (1, b.value)

    def is_number(self, n: Num, value: float) -> bool:
        return n.static and float(n) == value

    def is_whole(self, n: Num) -> bool:
        return is_size_like(n.value) if isinstance(n.value, Poly) else isinstance(n.value, int)

    def fixed(self, n: Num) -> int:
        return int(n)
