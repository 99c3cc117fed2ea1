"""Blocks whose equations are the library's become slots: a lifted spec in few lines, which computes the same.

What a block may be is read off it, and is a guess.  Each is tried in the whole model, whose graph must stay the same,
op by op, number by number, weight by weight, with the model's own numbers and with others.  A block that does not stays
as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from archdsl.diagnostics import ArchError
from archdsl.frontend.load import load
from archdsl.interop.lift.slots import Known, Slots, attended, fed_forward, layers, mixed, models
from archdsl.interop.lift.stages import parts_of, renamed
from archdsl.interop.sameness import Form, worth
from archdsl.ir.graph import Block, CausalNode, CheckNode, CondNode, LossNode, Model, Weight
from archdsl.ir.walk import calls_of, nodes_below
from archdsl.passes.flatten import FlatGraph, flat_init, flatten, weights_read
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE
from archdsl.syntax.format import format_expr, format_tree

FACTORS = (2, 3)
"""What hyper-parameters are multiplied by for other numbers, with which two specs are compared as well."""
MOST_STUCK = 8
"""Of so many hyper-parameters that cannot change alone, each pair is changed."""


@dataclass(frozen=True)
class Folded:
    """A spec whose blocks are the library's where they can be."""

    tree: ast.File
    renames: Mapping[str, str]
    """The path of each weight, by its path in the spec before."""
    notes: tuple[str, ...]
    """What has been folded and what has not, a sentence each."""


def folded(tree: ast.File, model: str) -> Folded:
    """Fold a lifted spec. What cannot be shown to compute the same is left as it is. Raises ArchError where the spec is
    wrong before."""
    states = [*_states(tree, model)]
    found = _Fold(tree, model, states[:1])
    if any(state.like(found.tree) is None for state in states):
        found = _Fold(tree, model, states)
    return Folded(found.tree, found.renames, tuple(found.notes))


# --- the proof --------------------------------------------------------------------------------------------------------


class _State:
    """What a model computes with some numbers."""

    def __init__(self, tree: ast.File, model: str, settings: Mapping[str, int | float]) -> None:
        """Raises ArchError where the spec is wrong with these numbers."""
        self.name, self.settings = model, settings
        self.model: Model = load(f"{model}.arch", text=format_tree(tree), model=model, set=settings)
        graph = flatten(self.model)
        self.form = Form(graph)
        self.weights = {path: _drawn(w.weight) for path, w in weights_read(graph).items()}
        self.inputs = [(v.dtype, *(str(d.value) for d in v.shape)) for _, v in self.model.inputs]
        nodes = [*nodes_below(self.model.block.graph)]
        self.limits = {(n.op, str(n.left), str(n.right)) for n in nodes if isinstance(n, CheckNode)}
        self.causal = any(isinstance(n, CausalNode) for n in nodes)
        self.trains = any(isinstance(n, CondNode | LossNode) for n in nodes)

    def like(self, tree: ast.File) -> dict[str, str] | None:
        """Return what the weights are called in another spec of the same model. None where it is not the same: where it
        computes something else, draws a weight otherwise, takes other inputs, or is wrong with these numbers."""
        try:
            other = _State(tree, self.name, self.settings)
        except ArchError:
            return None
        if self.inputs != other.inputs or self.limits != other.limits or self.causal > other.causal:
            return None
        if self.trains or other.trains:  # what is computed in training alone is not compared
            return None
        pairs = self.form.paired(other.form)
        alike = pairs is not None and all(self.weights[a] == other.weights[b] for a, b in pairs.items())
        return pairs if alike else None


def _drawn(weight: Weight) -> tuple[Any, ...]:
    """What a weight is beside its shape, and how it is drawn."""
    init = weight.init
    numbers = tuple((n, worth(v)) for n, v in sorted(init.numbers.items()))
    graph: FlatGraph | None = flat_init(init.graph) if init.graph is not None else None
    how = init.scheme, numbers, Form(graph).outputs if graph is not None else ()
    return weight.kind, weight.trained, weight.saved, weight.dtype, *how


def _states(tree: ast.File, model: str) -> Iterator[_State]:
    """Yield a model with its own numbers and with others: each multiplied alone, or two of those that cannot be."""
    yield _State(tree, model, {})
    hypers = _declared(tree, model).header.hypers or ()
    numbers = {h.name: h.default.text.replace("_", "") for h in hypers if isinstance(h.default, ast.Number)}
    stuck: list[str] = []
    for name, text in numbers.items():
        for factor in FACTORS:
            with suppress(ArchError):
                yield _State(tree, model, {name: _times(text, factor)})
                break
        else:
            stuck.append(name)
    for pair in combinations(stuck[:MOST_STUCK], 2):
        with suppress(ArchError):
            yield _State(tree, model, {name: _times(numbers[name], FACTORS[0]) for name in pair})


def _times(text: str, factor: int) -> int | float:
    return factor * (int(text) if text.isdecimal() else float(text))


def _declared(tree: ast.File, model: str) -> ast.ModelDecl:
    return next(d for d in tree.declarations if isinstance(d, ast.ModelDecl) and d.name == model)


# --- the steps --------------------------------------------------------------------------------------------------------


class _Fold:
    """A spec that is folded, step by step."""

    def __init__(self, tree: ast.File, model: str, states: Sequence[_State]) -> None:
        """Fold as long as the spec is the same in all these states."""
        self.tree, self.model, self.states = tree, model, states
        self.renames: Mapping[str, str] = {path: path for path in states[0].weights}
        self.notes: list[str] = []
        self.instances: dict[str, Block] = {}
        for node in nodes_below(states[0].model.block.graph):
            for inner in calls_of(node):
                self.instances.setdefault(inner.block.name, inner.block)
        for guesses in (fed_forward, mixed, attended):
            for block in self.equations:
                self.replace_calls(block, guesses)
        for block in self.equations:
            self.replace_body(block)
        self.replace_model()
        self.notes += (f"`{b.name}` stays equations: no block of the library computes the same" for b in self.equations)

    @property
    def equations(self) -> list[ast.BlockDecl]:
        """The blocks that are written in equations."""
        blocks = (d for d in self.tree.declarations if isinstance(d, ast.BlockDecl))
        return [b for b in blocks if isinstance(b.body, ast.Body) and not b.body.is_of_slots]

    @property
    def known(self) -> Known:
        return Known({b.name: b for b in self.equations}, self.instances)

    def tried(self, declarations: Sequence[ast.Declaration]) -> bool:
        """Take other declarations if the model stays the same; return whether it does."""
        tree = replace(self.tree, declarations=_reached(declarations, self.model))
        found = None
        for state in reversed(self.states):
            if (found := state.like(tree)) is None:
                return False
        self.tree, self.renames = tree, found or {}
        return True

    def replace_calls(self, block: ast.BlockDecl, guesses: Callable[[ast.BlockDecl, Known], Any]) -> None:
        """Put a block of the library where a block is called."""
        for stages in guesses(block, self.known):
            if self.tried([_with_stages(d, block, stages) for d in self.tree.declarations]):
                self.notes.append(f"`{block.name}` is `{format_expr(stages[0])}`")
                return

    def replace_body(self, block: ast.BlockDecl) -> None:
        """Write a block as a layer of slots."""
        for slots in layers(block, self.known):
            if self.tried([_of_slots(d, slots) if d is block else d for d in self.tree.declarations]):
                self.notes.append(f"`{block.name}` is a layer of slots")
                return

    def replace_model(self) -> None:
        """Write the model in slots."""
        model = _declared(self.tree, self.model)
        for slots in models(model):
            if self.tried([_of_slots(d, slots) if d is model else d for d in self.tree.declarations]):
                self.notes.append(f"`{model.name}` is a model of slots; its input is called `tokens`")
                return
        self.notes.append(f"`{model.name}` stays equations: no slots compute the same")


def _of_slots(declaration: ast.BlockDecl | ast.ModelDecl, slots: Slots) -> ast.Declaration:
    """A block or a model with slots in the place of its equations."""
    items = tuple(ast.Slot(k, v, key_span=NOWHERE, span=NOWHERE) for k, v in slots.items())
    header = ast.Header(declaration.header.hypers, None, None, span=NOWHERE)
    return replace(declaration, header=header, body=ast.Body(items, span=NOWHERE))


def _reached(declarations: Sequence[ast.Declaration], model: str) -> tuple[ast.Declaration, ...]:
    """The declarations that the model needs."""
    known = {d.name: d for d in declarations if isinstance(d, ast.BlockDecl | ast.ModelDecl | ast.Let)}
    needed, todo = set[str](), [model]
    while todo:
        at = todo.pop()
        if at in known and at not in needed:
            needed.add(at)
            todo += ast.names_in(known[at])
    return tuple(d for d in declarations if getattr(d, "name", None) in needed or isinstance(d, ast.Import))


def _with_stages(tree: Any, block: ast.BlockDecl, stages: Sequence[ast.Expr]) -> Any:
    """A tree in which other stages stand where a block is called, in the names of the caller."""
    if isinstance(tree, ast.Pipeline):
        found: list[ast.Expr] = []
        for stage in tree.stages:
            called, label = (stage.value, stage) if isinstance(stage, ast.As) else (stage, None)
            function, args = parts_of(called)
            if function != block.name:
                found.append(_with_stages(stage, block, stages))
                continue
            given = {h.name: h.default for h in block.header.hypers or () if h.default is not None} | args
            first, *rest = (renamed(s, given) for s in stages)
            found += [replace(label, value=first) if label is not None else first, *rest]
        return replace(tree, head=_with_stages(tree.head, block, stages), stages=tuple(found))
    return ast.mapped(tree, lambda part: _with_stages(part, block, stages))
