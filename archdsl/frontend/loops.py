"""`for`, unrolled as far as its iterations differ, and `scan`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from archdsl.diagnostics import Label, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.base import Elaboration
from archdsl.frontend.block_builder import BlockBuilder, Iteration
from archdsl.frontend.expressions import Expressions, elements
from archdsl.frontend.headers import stored_kind
from archdsl.frontend.lists import repetitions, value_key
from archdsl.frontend.scopes import MISSING, POISON, ReportedError, Scope
from archdsl.frontend.signatures import Signatures, demand_written
from archdsl.ir import dims
from archdsl.ir.dims import Num, Shape, same_shape, shape_text
from archdsl.ir.graph import BOOLEANS, INTEGERS, Graph, LoopNode, ScanNode, Value
from archdsl.ir.ranges import whole_size
from archdsl.ir.signature import promoted
from archdsl.ir.static import (
    BlockValue,
    ElementRef,
    ListValue,
    Pattern,
    RepeatedPattern,
    SharedModule,
    as_operand,
    counts_of,
    kind_of,
)
from archdsl.ir.wording import WRITTEN_OUT
from archdsl.syntax import ast

TURNS = "every iteration of a loop leaves what it carries in one shape"
STEPS = "every step of a scan leaves what it carries in one shape"


class Loops:
    """Runs loops."""

    def __init__(self, state: Elaboration, signatures: Signatures, expressions: Expressions) -> None:
        self.state = state
        self.signatures = signatures
        self.expressions = expressions
        self.names_of: dict[int, tuple[list[str], set[str]]] = {}
        """Of each loop's body, by its identity, the names that it assigns and those that it reads."""

    # --- for ----------------------------------------------------------------------------------------------------------

    def for_loop(self, s: ast.For, scope: Scope, *, collect: bool) -> Any:
        """A loop; with `collect`, the list of what it emits."""
        not_a_tensor(s.name, scope, s.span)
        source, items, pattern = self._items(s, scope)
        carried = [n for n in self._names(s)[0] if isinstance(scope.get(n), Value)]
        state: list[Value] = [scope.get(n) for n in carried]
        starts = tuple(state)
        bodies: list[tuple[Graph, list[Value]]] = []
        memo: dict[tuple[Hashable, Hashable], int] = {}
        firsts: list[list[Value]] = []
        """What each body was made for."""
        iterations: list[int] = []
        emitted: list[tuple[Value, ...]] = []
        names: dict[tuple[str, int], str] = {}
        elements = {id(item): item for item in items}  # mostly one, many times
        keys = {n: value_key(element) for n, element in elements.items()}
        after: dict[tuple[int, int], int] = {}
        """By element and the body before it, which body follows: the state is the one that that body left."""
        for item in items:
            step = id(item), iterations[-1] if iterations else -1
            if step in after and not bodies[after[step]][1]:
                iterations.append(after[step])
                emitted.append(())
                continue
            if iterations:
                state = self._left(carried, bodies[iterations[-1]][0])
                scope.frame.taken.update(zip(state, bodies[iterations[-1]][0].outputs, strict=False))
            shapes = tuple((tuple(d.value for d in v.shape), v.dtype) for v in state)
            key = (keys[id(item)], shapes)
            if key not in memo:
                memo[key] = len(bodies)
                known, reported = len(self.state.problems), self.state.reported
                self.state.turning.append((s, self._names(s)[0]))
                try:
                    bodies.append(self._iteration(s, scope, item, carried, state, names, collect))
                finally:
                    self.state.turning.pop()
                firsts.append(state)
                if isinstance(item, Num) and self.state.reported > reported and len(self.state.problems) == known:
                    raise ReportedError  # one iteration after the other has the same mistakes
            for first, value in zip(firsts[memo[key]], state, strict=True):
                scope.frame.same_shape(first.shape, value.shape, TURNS)
            after[step] = memo[key]
            iterations.append(memo[key])
            emits = bodies[memo[key]][1]
            emitted.append(tuple(Value(v.shape, v.dtype, "", v.span) for v in emits))
            if item is None and not emits and len(iterations) > 1 and iterations[-1] == iterations[-2]:
                rest = len(items) - len(iterations)  # all of them as this one: nothing told them apart but their shapes
                self.state.count_step(s.span, rest)  # later passes take each of them
                iterations += [iterations[-1]] * rest
                emitted += [()] * rest
                break
        if iterations:
            state = self._left(carried, bodies[iterations[-1]][0])
        if not any(g.nodes or g.outputs != g.inputs for g, _ in bodies):
            if not items:
                self._fixed_iterations(scope, source)
            return []  # no iterations, or none that changes anything: nothing to run
        if len(bodies) != len({element for element, _ in memo}):
            pattern = None  # iterations over one element differ by their shapes
        if pattern is None or any(emitted) or not self._keep_shapes(scope, pattern, bodies, firsts):
            self._fixed_iterations(scope, source)
        graphs = tuple(g for g, _ in bodies)
        scope.frame.put(
            LoopNode(s.name, graphs, tuple(iterations), pattern, starts, tuple(state), tuple(emitted), s.span)
        )
        scope.vars.update(zip(carried, state, strict=True))
        return [v for iteration in emitted for v in iteration] if collect else None

    @staticmethod
    def _left(carried: Sequence[str], body: Graph) -> list[Value]:
        """Return the tensors that an iteration leaves to the next one."""
        return [
            Value(v.shape, v.dtype, n, v.span, True)
            for n, v in zip(carried, body.outputs, strict=False)
            if v is not None
        ]

    def _names(self, s: ast.For) -> tuple[list[str], set[str]]:
        """What the body assigns, and what it reads; a loop in a loop is asked for it in each iteration."""
        if id(s) not in self.names_of:
            updated = {x.name for x in ast.walk(s.body) if isinstance(x, ast.Update)}
            self.names_of[id(s)] = list(dict.fromkeys(assigned(s.body))), ast.names_in(s.body) | updated
        return self.names_of[id(s)]

    def _items(self, s: ast.For, scope: Scope) -> tuple[Any, list[Any], Pattern | None]:
        """What a loop runs over, its elements, and how the spec wrote it. Where only the count matters, the elements
        are None."""
        source, span = self.expressions.ev(s.iterable, scope), s.iterable.span
        if isinstance(source, Num) and s.name not in self._names(s)[1]:
            count = repetitions(source, span)
            scope.frame.demand_count(source)
            return source, [None] * count, RepeatedPattern(source.expr, ElementRef(0), count)
        items = elements(source, span)
        scope.frame.remember_count(source, len(items))
        if isinstance(source, ListValue):
            return source, items, source.pattern
        return source, items, ElementRef(0) if isinstance(source, BlockValue | SharedModule) else None

    def _fixed_iterations(self, scope: Scope, source: Any) -> None:
        """Record how many iterations there are, where another number of them would be another graph."""
        scope.frame.fixed_counts(source)
        if isinstance(source, Num):
            scope.frame.fixed(source, WRITTEN_OUT)

    def _keep_shapes(
        self,
        scope: Scope,
        pattern: Pattern,
        bodies: Sequence[tuple[Graph, list[Value]]],
        firsts: Sequence[Sequence[Value]],
    ) -> bool:
        """Whether every iteration leaves what it carries as it was, so that there may be any number of each."""
        if not any(dims.free_names(repeated.count) for repeated in counts_of(pattern)):
            return True
        pairs = [
            (start.shape, end.shape)
            for (graph, _), starts in zip(bodies, firsts, strict=True)
            for start, end in zip(starts, graph.outputs, strict=False)
            if end is not None
        ]
        return all(same_shape(a, b) for a, b in pairs) and all(scope.frame.same_shape(a, b, TURNS) for a, b in pairs)

    def _iteration(
        self,
        s: ast.For,
        scope: Scope,
        item: Any,
        carried: list[str],
        state: list[Value],
        names: dict[tuple[str, int], str],
        collect: bool,
    ) -> tuple[Graph, list[Value]]:
        """One iteration of a loop as a graph of what it carries, and what it emits."""
        self.state.count_step(s.span, 20)  # it takes as long as twenty expressions
        frame = scope.frame
        inner = scope.inner()
        inner.in_loop = True
        emits: list[Value] = []
        with frame.level() as nodes:
            inputs = [frame.own(Value(v.shape, v.dtype, n, v.span, True)) for n, v in zip(carried, state, strict=True)]
            frame.taken.update(zip(inputs, state, strict=True))
            inner.vars.update(zip(carried, inputs, strict=True))
            if item is not None:
                inner.vars[s.name] = item.labelled(s.name) if isinstance(item, BlockValue) else item
            frame.iterations.append(Iteration(names))
            varying, frame.varying = frame.varying, frame.varying | ({s.name} if isinstance(item, Num) else set())
            if collect:
                scope.body.emits.append(emits)
            try:
                self.state.statements(s.body, inner)
                frame.settle(None)
            finally:
                frame.iterations.pop()
                frame.varying = varying
                if collect:
                    scope.body.emits.pop()
            ends = [inner.vars[n] for n in carried]
            if any(e is POISON for e in ends):
                raise ReportedError
            graph = Graph(tuple(inputs), tuple(nodes), (*ends, *emits))
        return graph, emits

    # --- scan ---------------------------------------------------------------------------------------------------------

    def scan(self, s: ast.Scan, scope: Scope) -> Any:
        """A recurrence along axis 1: what it emits, stacked, or the last of what it carries."""
        frame = scope.frame
        sequences = self._sequences(s, scope)
        starts: list[Value | Num] = []
        inner = scope.inner()
        inner.in_loop = True
        emits: list[Value] = []
        types: list[tuple[Shape, str]] = []
        for c in s.carries:
            start = as_operand(self.expressions.ev(c.start, scope))
            kind = self._carry_kind(c, start, frame)
            shape = self._carry_shape(c, start, scope, sequences[0])
            starts.append(start)
            types.append((shape, kind))
        frame.settle(None)
        with frame.level() as nodes:
            carries = [
                frame.own(Value(shape, t, c.name, c.span, True)) for c, (shape, t) in zip(s.carries, types, strict=True)
            ]
            slices = [
                frame.own(Value((v.shape[0], *v.shape[2:]), v.dtype, n, s.span, True))
                for n, v in zip(s.names, sequences, strict=True)
            ]
            frame.taken.update(zip(slices, sequences, strict=True))
            inner.vars.update({c.name: v for c, v in zip(s.carries, carries, strict=True)})
            inner.vars.update(dict(zip(s.names, slices, strict=True)))
            scope.body.emits.append(emits)
            try:
                self.state.statements(s.body, inner)
                frame.settle(None)
            finally:
                scope.body.emits.pop()
            ends = [self._last(c, inner, *type_) for c, type_ in zip(s.carries, types, strict=True)]
            graph = Graph((*carries, *slices), tuple(nodes), (*ends, *emits))
        batch, length = sequences[0].shape[:2]
        stacked = tuple(Value((batch, length, *v.shape[1:]), v.dtype, "", s.span) for v in emits)
        finals = tuple(Value(shape, t, c.name, c.span, True) for c, (shape, t) in zip(s.carries, types, strict=True))
        frame.put(ScanNode(graph, tuple(starts), tuple(sequences), stacked, finals, length, s.span))
        scope.vars.update({c.name: v for c, v in zip(s.carries, finals, strict=True)})
        results = stacked or finals
        return results if len(results) > 1 else results[0]

    def _sequences(self, s: ast.Scan, scope: Scope) -> list[Value]:
        """The tensors that a scan runs along."""
        sequences: list[Value] = []
        for e in s.sequences:
            value = self.expressions.ev(e, scope)
            if not isinstance(value, Value) or value.rank < 2:
                raise error("E0203", "`scan` runs along axis 1 of tensors", e.span)
            sequences.append(value)
        if len(s.names) != len(sequences):
            names = f"{len(s.names)} name{'s run' if len(s.names) > 1 else ' runs'}"
            text = f"{names} over {len(sequences)} tensor{'s' * (len(sequences) > 1)}"
            raise error("E0205", text, s.span)
        length = sequences[0].shape[1]
        for value, e in zip(sequences, s.sequences, strict=True):
            if not scope.frame.same(value.shape[1], length, "the tensors of a scan have one length"):
                text = f"the tensors of a scan have one length: {length} and {value.shape[1]} differ"
                raise error("E0301", text, e.span)
        return sequences

    def _carry_kind(self, c: ast.Carry, start: Any, frame: BlockBuilder) -> str:
        """The type of a carried tensor: the one it is declared with, else that of its start, else the model's own."""
        kind = stored_kind(c.type)
        if isinstance(start, Value):
            demand_written(f"`{c.name}`", c.type, start, c.start.span, frame)
            return kind if kind in (*INTEGERS, *BOOLEANS) else start.dtype
        if isinstance(start, Num) and kind in BOOLEANS and start.value not in (0, 1):
            raise error("E0203", f"`{c.name}` holds true and false, and starts as {start}", c.start.span)
        if isinstance(start, Num) and kind in INTEGERS:
            whole_size(start, "int", f"the start of `{c.name}`", c.start.span)
        return kind or "float"

    def _carry_shape(self, c: ast.Carry, start: Any, scope: Scope, first: Value) -> Shape:
        """The shape of a carried tensor; a batch that has no name yet is that of the first sequence."""
        if isinstance(start, Value):
            return self.signatures.same_dims(c.type, start, scope, f"the start of `{c.name}`", c.start.span, bind=True)
        if not isinstance(start, Num):
            text = f"a carried tensor starts as a tensor or a number, and this is {kind_of(start)}"
            raise error("E0203", text, c.start.span)
        shape = []
        for i, dim in enumerate(c.type.dims):
            if isinstance(dim, ast.Ellipsis):
                raise error("E0203", "a carried tensor that starts as a number needs its whole shape", dim.span)
            if i == 0 and isinstance(dim, ast.Name) and scope.get(dim.id) is MISSING:
                shape.append(first.shape[0])
            else:
                shape.append(self.expressions.size(dim, scope))
        return tuple(shape)

    def _last(self, carry: ast.Carry, scope: Scope, shape: Shape, kind: str) -> Value:
        """What a step makes of a carried tensor."""
        end = scope.vars[carry.name]
        if end is POISON:
            raise ReportedError
        assert isinstance(end, Value), carry.name
        if not scope.frame.same_shape(end.shape, shape, STEPS):
            text = f"`{carry.name}` is carried as {shape_text(shape)}, and a step makes it {shape_text(end.shape)}"
            raise error("E0301", text, carry.span)
        own = promoted([Value((), kind)])
        if promoted([end]) != own:
            text = f"`{carry.name}` is carried as {kind}, and a step makes it {end.dtype}"
            help_ = f"bring it back, `cast({own})`, or declare `{carry.name}: {promoted([end])}[…]`"
            raise error("E0304", text, carry.span, labels=scope.frame.typed(end, carry.span), help=help_)
        return end


def not_a_tensor(name: str, scope: Scope, span: Span) -> None:
    """Raises E0202 where a static thing would take the name of a tensor, which loops carry from iteration to
    iteration."""
    known = scope.get(name)
    if isinstance(known, Value):
        labels = [Label(known.span, "bound here")] if known.span is not None else []
        raise error("E0202", f"`{name}` is a tensor here already", span, labels=labels, help="choose another name")


def assigned(items: Sequence[ast.Statement]) -> list[str]:
    """Names of tensors that statements bind, in order."""
    found: list[str] = []
    for item in items:
        found.extend(bound_names(item))
    return found


def bound_names(item: ast.Statement) -> list[str]:
    """Names of tensors that a statement binds, in order."""
    if isinstance(item, ast.Assign):
        names = list(item.names)
        if isinstance(item.value, ast.Scan):
            names += [c.name for c in item.value.carries]
        elif isinstance(item.value, ast.For):
            names += assigned(item.value.body)
        return names
    if isinstance(item, ast.Update | ast.Let | ast.Param):
        return [item.name]
    if isinstance(item, ast.If):
        return assigned(item.then) + assigned(item.otherwise)
    if isinstance(item, ast.For):
        return assigned(item.body)
    return []
