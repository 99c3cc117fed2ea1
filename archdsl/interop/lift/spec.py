"""A lifted model as a spec: a syntax tree, and the names of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from archdsl.interop.lift.authors import word
from archdsl.interop.lift.blocks import Body
from archdsl.interop.lift.export import TIME, Exported, Lengths
from archdsl.interop.lift.expressions import Block, Book
from archdsl.interop.lift.holes import Scheme, binary, call, hole, name, number, sites
from archdsl.interop.lift.sizes import Sizes, Table
from archdsl.interop.lift.terms import Term
from archdsl.interop.lift.tree import Op, tree
from archdsl.ops import registry
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE

Results = Sequence[tuple[str, Term]]


class WeightName(NamedTuple):
    """One weight under its name in the spec and its name in the module."""

    ours: str
    theirs: str
    turned: bool
    """Whether the module keeps it transposed."""


@dataclass(frozen=True)
class Lifted:
    """What a module has become."""

    tree: ast.File
    model: str
    weights: tuple[WeightName, ...]
    inputs: tuple[str, ...]
    """The names of the model's inputs, in their order."""
    results: tuple[str, ...]
    """The names of its results; empty for one alone."""
    notes: tuple[str, ...]
    apart: bool
    """Whether another configuration has another structure."""


def written(
    results: Results,
    exported: Exported,
    title: str,
    table: Table | None = None,
    others: Sequence[tuple[Results, Exported]] = (),
    *,
    causal: bool = False,
    blocks: Sequence[ast.BlockDecl] = (),
) -> Lifted:
    """Write lifted results as a spec with a model of that name.

    `others` are the same results at other configurations; `table` has the fields of the configuration by name, with
    their values in each, those of `results` first; `blocks` are those that terms name. With `causal` the model asserts
    that its first result is.
    Raises ArchError E0542 where there is no word for what the module does."""
    table = {n: v for n, v in (table or {}).items() if n == word(n)}
    book = Book(frozenset(table), [b.name for b in blocks])
    models = [_root(book, r, e, title, k, causal) for k, (r, e) in enumerate([(results, exported), *others])]
    base = models[0]
    notes = []
    apart = False
    configs = [0]
    for k, other in enumerate(models[1:], 1):
        if other.block.tree == base.block.tree:
            configs.append(k)
            base.block.instances += other.block.instances
        else:
            notes.append(f"configuration {k + 1} is of another structure: no number has been compared with it")
            apart = True
    sizes = Sizes(table, configs)
    own = [sizes.fill(b).tree for b in book.blocks.values() if any(c in configs for c, _ in b.instances)]
    root = sizes.fill_root(base.block)
    hypers = tuple(ast.Hyper(n, None, number(table[n][0]), span=NOWHERE) for n in root.needs)
    header = replace(root.tree.header, hypers=hypers or None)
    assert isinstance(root.tree.body, ast.Body)
    model = ast.ModelDecl(word(title), header, root.tree.body, name_span=NOWHERE, span=NOWHERE)
    experts = [how.block(n) for how, n in book.experts.items()]
    declarations = tuple(_plain(x) for x in (*blocks, *experts, *own, model))
    weights = tuple(WeightName(*w) for w in base.weights)
    notes += sizes.notes
    names = tuple(r.name for r in header.results or () if r.name)
    return Lifted(ast.File(declarations, span=NOWHERE), model.name, weights, base.inputs, names, tuple(notes), apart)


@dataclass(frozen=True)
class _Root:
    block: Block
    weights: list[tuple[str, str, bool]]
    inputs: tuple[str, ...]


def _root(book: Book, results: Results, exported: Exported, title: str, config: int, causal: bool) -> _Root:
    """The model itself at one configuration."""
    root, outs = tree([term for _, term in results], exported.module)
    body = Body(book, exported.module, root, outs, config)
    inputs = [op for op in root.items if isinstance(op, Op) and op.term.op == "input"]
    order = {id(v): i for i, v in enumerate(exported.inputs)}
    inputs.sort(key=lambda op: order.get(id(op.term.source), len(order)))
    for op in inputs:
        body.names[id(op)] = body.fresh(str(op.term.options["name"]))
    opening: list[ast.Statement] = []
    if any(TIME in op.shape for op in inputs):
        opening += _asserted(exported.lengths)
    declared = body.declared(word(title), inputs, opening, [n for n, _ in results])
    if causal:
        declared = _causal(declared, body)
    block = Block(declared.name, declared, frozenset(body.used), [(config, sites(declared))])
    return _Root(block, body.weights, tuple(body.names[id(op)] for op in inputs))


def _asserted(lengths: Lengths) -> Iterator[ast.Statement]:
    """What the module's own checks demand of a sequence."""
    if lengths.longest is not None:
        yield ast.Assert(binary("<=", name("time"), hole(lengths.longest, "context")), None, span=NOWHERE)
    if lengths.shortest > 1:
        yield ast.Assert(binary(">=", name("time"), hole(lengths.shortest, "")), None, span=NOWHERE)
    if lengths.step > 1:
        rest = binary("%", name("time"), hole(lengths.step, ""))
        yield ast.Assert(binary("==", rest, number(0)), None, span=NOWHERE)


def _causal(declared: ast.BlockDecl, body: Body) -> ast.BlockDecl:
    """A model that asserts that its first result is causal."""
    assert isinstance(declared.body, ast.Body)
    *items, last = declared.body.items
    assert isinstance(last, ast.Return)
    first = last.values[0]
    if not isinstance(first, ast.Name):
        first = name(body.fresh("y"))
        items.append(ast.Assign((first.id,), last.values[0], None, span=NOWHERE))
    items += [ast.Assert(call("causal", first), None, span=NOWHERE), replace(last, values=(first, *last.values[1:]))]
    return replace(declared, body=replace(declared.body, items=tuple(items)))


def _plain(node: Any) -> Any:
    """A tree without arguments that say what a primitive does anyway."""
    node = ast.mapped(node.value if isinstance(node, Scheme) else node, _plain)
    if isinstance(node, ast.Call) and isinstance(node.function, ast.Name):
        primitive = registry.find(node.function.id)
        defaults = {h.name: h.default for h in primitive.header.hypers or ()} if primitive else {}
        args = tuple(a for a in node.args if not (a.name and _equal(a.value, defaults.get(a.name))))
        return node.function if not args and node.args else replace(node, args=args)
    return node


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, ast.Number) and isinstance(b, ast.Number):
        return float(a.text) == float(b.text)
    return bool(a == b)
