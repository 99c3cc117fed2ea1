"""What a model cannot do with the longest sequence that its `context` admits, though shorter ones would pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from archdsl.diagnostics import Diagnostic, Label
from archdsl.diagnostics.source import Span
from archdsl.ir.conditions import longest_sequence
from archdsl.ir.dims import Num, Poly, evaluate, expr_text
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import CheckNode, Graph, Node, OpNode, Value, subgraphs
from archdsl.ir.walk import calls_of


def beyond_context(graph: Graph, context: Num) -> list[Diagnostic]:
    """E0401 for each condition that fails for a sequence as long as the `context`; where all hold, for each table that
    has too few rows."""
    longest = dict.fromkeys(longest_sequence(graph, context), int(context))
    conditions: list[Diagnostic] = []
    tables: list[Diagnostic] = []
    for node, largest in _nodes(graph, longest, set()):
        if isinstance(node, CheckNode) and node.op in ("<", "<="):
            left, right = (_at(n.value, longest) for n in (node.left, node.right))
            if left is not None and right is not None and (left > right or (left == right and node.op == "<")):
                text = f"{expr_text(node.left.expr)} {node.op} {expr_text(node.right.expr)}"
                text = f"{node.message}: `{text}` would be {left} {node.op} {right}"
                conditions.append(_diagnostic(text, node, context))
        elif isinstance(node, OpNode) and (table := node.op.table(node)) is not None:
            which, rows = table
            last = largest.get(id(node.inputs[which]))
            if last is not None and isinstance(rows.value, int) and last >= rows.value:
                text = f"`{node.op.name}` looks up the row {last}, and its table has {rows} rows, 0 to {rows.value - 1}"
                tables.append(_diagnostic(text, node, context, rows))
    return conditions or tables


def _nodes(graph: Graph, longest: Mapping[str, int], done: set[int]) -> Iterator[tuple[Node, Mapping[int, int]]]:
    """Every node of a graph and of the blocks it calls, each once, and the largest numbers of values before it."""
    if id(graph) in done:
        return
    done.add(id(graph))
    largest: dict[int, int] = {}
    for node in graph.nodes:
        yield node, largest
        if isinstance(node, OpNode):
            given = [_largest(v, largest, longest) for v in node.inputs]
            found = node.op.largest(node, given)
            value = None if found is None else _at(found, longest)
            if value is not None:
                largest[id(node.outputs[0])] = value
        for inner in (*subgraphs(node), *(call.block.graph for call in calls_of(node))):
            yield from _nodes(inner, longest, done)


def _largest(value: object, largest: Mapping[int, int], longest: Mapping[str, int]) -> int | None:
    if isinstance(value, Num):
        return _at(value.value, longest)
    return largest.get(id(value)) if isinstance(value, Value) else None


def _at(value: DimValue, longest: Mapping[str, int]) -> int | None:
    """What a number is for the longest sequence, where nothing else is needed to know it and it is whole."""
    if not _names(value) <= longest.keys():
        return None
    found = evaluate(value, longest)
    return found if isinstance(found, int) else None


def _names(value: DimValue) -> set[str]:
    return {s.name for s in value.symbols} if isinstance(value, Poly) else set()


def _diagnostic(text: str, node: CheckNode | OpNode, context: Num, rows: Num | None = None) -> Diagnostic:
    """Shown where the user gave what is too small."""
    numbers = (node.right, node.left) if isinstance(node, CheckNode) else (rows,)
    spans = [n.origin for n in numbers if n is not None and n.origin != context.origin]
    spans += [node.span, context.origin]
    span: Span | None = next((p for p in spans if p is not None and not p.source.library), node.span)
    labels = [Label(context.origin, f"the longest sequence has {context} tokens")] if context.origin else []
    return Diagnostic("E0401", text, span, labels=tuple(x for x in labels if x.span != span))
