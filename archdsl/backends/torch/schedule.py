"""Which expressions stand within others, and which get a statement of their own.

Values are still values: what a loop carries becomes a `Variable` that is bound before the loop and at the end of each
iteration, by one statement for all that it carries.  Statements stand in the order of the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from itertools import compress
from typing import Any

from archdsl.backends.torch.loops import Folding
from archdsl.backends.torch.program import (
    UNBOUND,
    Bind,
    Check,
    Conditional,
    Do,
    LayerLoop,
    Leave,
    Put,
    ScanLoop,
    Step,
    Suite,
    Target,
    all_read,
    bodies,
    bound_by,
    bound_within,
    called_alike,
    effectful,
    is_cache,
)
from archdsl.backends.torch.python import WIDTH, singular
from archdsl.backends.torch.statements import (
    ForLoop,
    IfStatement,
    Rebind,
    ReturnStatement,
    Statement,
    bound,
)
from archdsl.backends.torch.tree import (
    Axis,
    HyperLeaf,
    Part,
    PyNode,
    Read,
    Variable,
    leaves,
    mapped,
    own_trees,
    py,
    substituted,
    trees,
    unparse,
    zipped,
)
from archdsl.frozen import Frozen
from archdsl.ir.op import Tree

LONG = 96
"""An expression is not nested into another if the line would become longer than this."""


def measure(tree: Tree, name: Callable[[Target], str]) -> int:
    """About how long an expression is as text."""

    def text(x: Any) -> str:
        if isinstance(x, Read):
            return name(x.value)
        if isinstance(x, HyperLeaf | Axis):
            return f"{x.name}.."
        assert isinstance(x, Part), x
        return f"self.{x.name}" if x.index is None else singular(x.name)

    return len(unparse(tree, text))


def reads(steps: Sequence[Step], results: Sequence[Tree]) -> Counter[Target]:
    """How many statements read each value; what is read within another's body must have a name, and counts twice."""
    found: Counter[Target] = Counter()
    for step in steps:
        found.update({x.value for x in leaves(own_trees(step)) if isinstance(x, Read)})
        inner = [reads(body.steps, body.outputs) for body in bodies(step)]
        if isinstance(step, Conditional):  # what both arms bind is read in one of them
            for target in {*bound_within(step.then.steps)} & {*bound_within(step.otherwise.steps)}:
                least = min(counts[target] for counts in inner)
                inner[0][target] -= least
        for body, counts in zip(bodies(step), inner, strict=True):
            found.update(counts)
            own = {*body.inputs, *bound_within(body.steps)}
            found.update(dict.fromkeys(all_read(body.steps, body.outputs) - own, 2))
    found.update(x.value for t in results for x in leaves(t) if isinstance(x, Read))
    return found


class Waiting(Frozen):
    """An expression that waits for what reads it, and the comment with its shape."""

    expr: Tree
    note: str


class Scheduler:
    """Schedules one method."""

    def __init__(self, steps: Sequence[Step], results: Sequence[Tree], name: Callable[[Target], str]) -> None:
        """`name` is what a value would like to be called."""
        self.name = name
        self.steps, self.results = steps, results
        self.left = reads(steps, results)
        """How many statements will still read each value."""
        self.uses = Counter(self.left)
        self.aliases: dict[Target, Tree] = {}
        self.lists: dict[Any, Tree] = {}
        """What loops collect, by the tuples of all entries of it."""
        self.pending: dict[Target, Waiting] = {}
        self.out: list[Statement] = []
        self.depth = 0
        """How many loops over layers stand around."""
        self.written_out: list[LayerLoop] = []
        """Loops of which iterations are written out, which holds for these counts only."""
        calls = Counter(c for t in trees(steps) for c in called_alike(t))
        self.twice = {c for c, n in calls.items() if n > 1}
        """Calls of modules that stand twice: each keeps its position, since what they draw may differ."""

    def run(self) -> tuple[Statement, ...]:
        self.body(self.steps)
        self.out.append(ReturnStatement(tuple(self.take(t) for t in self.results)))
        return read_copies(self.joined(self.out), set())

    def body(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.step(step)

    def step(self, step: Step) -> None:
        for target in () if isinstance(step, Conditional) else bound_by(step):
            self.aliases.pop(target, None)  # another arm of a condition has bound it, too
        if isinstance(step, LayerLoop | ScanLoop | Conditional):
            self.in_order()
            self.make_way({self.name(t) for t in bound_within([step])})
        match step:
            case Bind():
                self.let(step)
            case Check():
                self.out.append(Check(self.take(step.test), step.message))
            case Put():
                self.emit(Put(self.take(step.target), self.take(step.expr)))
            case Do():
                self.emit(Do(self.take(step.expr)))
            case LayerLoop():
                self.repeat(step)
            case ScanLoop():
                self.scan(step)
            case Conditional():
                self.branch(step)
            case Leave():
                self.emit(IfStatement(self.take(step.test), (ReturnStatement((self.take(step.result),)),), ()))

    # --- values ---

    def let(self, let: Bind) -> None:
        expr = self.take(let.expr) if let.whole else self.filled(let.expr)
        used = [self.uses[t] > 0 for t in let.targets]
        if not any(used):
            if let.always:
                self.emit(Bind((None,), expr))
            return
        if len(let.targets) == 1:
            target = let.targets[0]
            short = self.uses[target] == 1 and let.nested and measure(expr, self.name) <= LONG
            if short and not any(c in self.twice for c in called_alike(let.expr)):
                if effectful(expr):
                    self.in_order()
                self.pending[target] = Waiting(expr, let.note)
                return
        for value in list(self.pending) if helper(expr) is not None else ():
            if value in self.pending and helper(self.pending[value].expr) == helper(expr):
                self.bind(value)
        self.emit(Bind(tuple(t if u else None for t, u in zip(let.targets, used, strict=True)), expr, note=let.note))

    def emit(self, s: Statement) -> None:
        """Write a statement. Expressions that wait and read a local whose name it is about to take come first."""
        taken = {self.name(t) for t in bound(s) if t is not None}
        for value, pending in list(self.pending.items()):
            read = (x.value for x in leaves(pending.expr) if isinstance(x, Read))
            if value in self.pending and any(self.name(v) in taken and self.left[v] <= 0 for v in read):
                self.bind(value)
        if effectful(own_trees(s)):
            self.in_order()
        self.out.append(s)

    def make_way(self, taken: set[str]) -> None:
        """Bind what waits and reads a local whose name statements within another are about to take."""
        for value, pending in list(self.pending.items()):
            read = (x.value for x in leaves(pending.expr) if isinstance(x, Read))
            if value in self.pending and any(self.name(v) in taken for v in read):
                self.bind_alike(value)

    def in_order(self) -> None:
        """Expressions that wait and change what steps keep come before what follows."""
        for value, pending in list(self.pending.items()):
            if value in self.pending and effectful(pending.expr):
                del self.pending[value]
                self.out.append(Bind((value,), pending.expr, note=pending.note))

    def bind(self, value: Target) -> None:
        """Give a value that waits a statement of its own."""
        pending = self.pending.pop(value)
        self.emit(Bind((value,), pending.expr, note=pending.note))

    def bind_alike(self, value: Target) -> None:
        """The same, with those that wait for the same helper."""
        for alike in self.alike(value, tuple(self.pending)):
            self.bind(alike)

    def settle(self, values: Sequence[Target]) -> None:
        """Values that a body reads have a name before it."""
        for value in values:
            if value in self.pending:
                self.bind_alike(value)

    def filled(self, tree: Tree) -> Tree:
        """The expression with what waits for it nested into it: what it reads once, as long as the line stays short."""
        counts = Counter(x.value for x in leaves(tree) if isinstance(x, Read))
        lengths = {
            v: measure(self.pending[v].expr, self.name) if v in self.pending else len(self.name(v)) for v in counts
        }
        total = measure(mapped(tree, lambda x: PyNode("Name", ("",)) if isinstance(x, Read) else x), self.name)
        total += sum(lengths.values())
        for value in sorted(counts, key=lambda v: -lengths[v]):
            if value in self.pending and (counts[value] > 1 or total > LONG):
                for v in self.alike(value, counts):
                    total -= lengths[v]
                    self.bind(v)
        made: Tree = self.take(tree)
        return made

    def alike(self, value: Target, among: Iterable[Target]) -> list[Target]:
        """Of values that wait, those that the helper of one gives too: they are treated alike."""
        called = helper(self.pending[value].expr)
        waiting = [v for v in among if v in self.pending]
        return [value] if called is None else [v for v in waiting if helper(self.pending[v].expr) == called]

    def take(self, tree: Any) -> Any:
        """The expression with what waits for it nested into it, however long it becomes."""
        counts = Counter(x.value for x in leaves(tree) if isinstance(x, Read))
        for value, count in counts.items():
            self.left[value] -= 1
            if value in self.pending and count > 1:
                self.bind(value)

        def leaf(x: Any) -> Any:
            if not isinstance(x, Read):
                return x
            if x.value in self.pending:
                return self.pending.pop(x.value).expr
            alias = self.aliases.get(x.value)
            return x if alias is None else mapped(alias, leaf)

        taken = mapped(tree, leaf)
        return there_and_back(substituted(taken, self.lists) if self.lists else taken)

    def joined(self, statements: Sequence[Statement]) -> tuple[Statement, ...]:
        """The statements with one `if cache is None` for several in a row, and one line for what one helper gives in
        several: `q, k = rotate(q, rope), rotate(k, rope)`."""
        found: list[Statement] = []
        for s in statements:
            last = found[-1] if found else None
            of_cache = isinstance(s, IfStatement) and all(map(is_cache, leaves(s.test)))
            if of_cache and isinstance(s, IfStatement) and isinstance(last, IfStatement) and goes_on(s, last):
                found[-1] = IfStatement(s.test, last.then + s.then, last.otherwise + s.otherwise, last.note)
            elif isinstance(s, Bind) and isinstance(last, Bind) and self.parallel(last, s):
                found[-1] = Rebind(last.targets + s.targets, (last.expr, s.expr))
            else:
                found.append(s)
        return tuple(found)

    def parallel(self, a: Bind, b: Bind) -> bool:
        """Whether two statements are short calls of one helper, of which the second does not need the first."""
        alike = helper(a.expr) is not None and helper(a.expr) == helper(b.expr)
        plain = len(a.targets) == len(b.targets) == 1 and not a.note and not b.note
        free = not any(isinstance(x, Read) and x.value in a.targets for x in leaves(b.expr))
        names = [self.name(t) for t in a.targets + b.targets if t is not None]
        line = sum(measure(s.expr, self.name) for s in (a, b)) + sum(len(name) + len(", ") for name in names)
        line += sum(len("self.config") for x in leaves((a.expr, b.expr)) if isinstance(x, HyperLeaf))
        return alike and plain and free and line < WIDTH - 2 * len("    ")

    # --- loops over layers ---

    def repeat(self, loop: LayerLoop) -> None:
        outside = [self.outside(body) for body in loop.bodies]
        self.settle([v for values in outside for v in values])
        carried = tuple(Variable(self.name(v) if v.name else "x") for v in loop.outputs)
        self.start(loop.starts, carried)
        collected = [Variable(v.name or "collected") for v in (loop.collected[0] if loop.collected else ())]
        for variable in collected:
            self.emit(Bind((variable,), py("[]")))
        scheduled = [self.iteration(body, carried, collected) for body in loop.bodies]
        self.out += Folding(self, loop, scheduled, [[self.variable(v) for v in vs] for vs in outside]).statements()
        for t, values in enumerate(loop.collected):
            for variable, value in zip(collected, values, strict=True):
                self.aliases[value] = py("{xs}[{t}]", xs=Read(variable), t=t)
        for variable, values in zip(collected, zip(*loop.collected, strict=True), strict=True):
            self.lists[py("({*xs},)", xs=[self.aliases[v] for v in values])] = Read(variable)
        for variable, value in zip(carried, loop.outputs, strict=True):
            self.aliases[value] = Read(variable)
            self.left[variable] = self.left[value]

    def variable(self, value: Target) -> Target:
        """Return the variable that holds a value from before: of an `if`, of a loop; else the value itself."""
        alias = self.aliases.get(value)
        return self.variable(alias.value) if isinstance(alias, Read) else value

    def outside(self, body: Suite) -> list[Target]:
        """What a body reads from around, in order."""
        own = {*body.inputs, *bound_within(body.steps)}
        found = (x.value for x in leaves(body) if isinstance(x, Read))
        return list(dict.fromkeys(v for v in found if v not in own))

    def start(self, starts: Sequence[Tree], carried: Sequence[Variable]) -> None:
        """Bind what a loop carries before it begins: what several begin with last as that which has its name."""
        begins = Counter(tree.value for tree in starts if isinstance(tree, Read))

        def last(pair: tuple[Tree, Variable]) -> bool:
            tree, variable = pair
            return isinstance(tree, Read) and begins[tree.value] > 1 and self.name(tree.value) == self.name(variable)

        for tree, variable in sorted(zip(starts, carried, strict=True), key=last):
            note = ""
            if isinstance(tree, Read) and tree.value in self.pending:
                note = self.pending[tree.value].note
            self.emit(Bind((variable,), self.take(tree), note=note))

    def iteration(
        self, body: Suite, carried: Sequence[Variable], collected: Sequence[Variable]
    ) -> tuple[Statement, ...]:
        """One body of a loop, its inputs being what the loop carries."""
        around, aliases = self.out, dict(self.aliases)
        self.out = []
        self.aliases |= dict(zip(body.inputs, map(Read, carried), strict=True))
        self.depth += 1
        self.body(body.steps)
        self.depth -= 1
        # Before the carried names change: what is collected may be a value from before the iteration.
        for variable, tree in zip(collected, body.outputs[len(carried) :], strict=True):
            self.out.append(Do(py("{xs}.append({x})", xs=Read(variable), x=self.take(tree))))
        if carried:
            self.emit(Rebind(tuple(carried), tuple(self.take(t) for t in body.outputs[: len(carried)])))
        found, self.out, self.aliases = tuple(self.out), around, aliases
        return found

    # --- recurrences and conditions ---

    def scan(self, scan: ScanLoop) -> None:
        self.settle(self.outside(scan.body))
        sequences = []
        for tree in scan.sequences:
            if isinstance(tree, Read) and tree.value in self.pending:
                self.bind(tree.value)
            sequences.append(self.take(tree))
        count = len(scan.starts)
        states, slices = scan.body.inputs[:count], scan.body.inputs[count:]
        carried = tuple(Variable(v.name or "h") for v in states)
        self.start(scan.starts, carried)
        for variable in scan.collected:
            self.emit(Bind((variable,), py("[]")))
        around, aliases = self.out, dict(self.aliases)
        self.out = []
        variables = tuple(Variable(v.name or "x_t") for v in slices)
        self.aliases |= dict(zip(states, map(Read, carried), strict=True))
        self.aliases |= dict(zip(slices, map(Read, variables), strict=True))
        self.body(scan.body.steps)
        self.scan_end(scan, carried)
        inner, self.out, self.aliases = tuple(self.out), around, aliases
        sources = [py("{x}.unbind(1)", x=s) for s in sequences]
        self.out.append(ForLoop(variables, zipped(sources), inner))
        for value, variable in zip(scan.finals, carried, strict=True):
            self.aliases[value] = Read(variable)
            self.left[variable] = self.left[value]

    def scan_end(self, scan: ScanLoop, carried: Sequence[Variable]) -> None:
        """The end of a step: the states take their new values, what is collected is appended. What is collected may
        read a state from before the step or from after it."""
        count = len(carried)
        emitted = [self.take(t) for t in scan.body.outputs[count:]]
        bare = [t.value if isinstance(t, Read) else None for t in scan.body.outputs[:count]]
        renamed = all(
            v is not None and v not in self.pending and v not in self.aliases and self.name(v) == self.name(c)
            for v, c in zip(bare, carried, strict=True)
        )
        before = any(isinstance(x, Read) and x.value in carried for t in emitted for x in leaves(t))
        rebind = Rebind(tuple(carried), tuple(self.take(t) for t in scan.body.outputs[:count]))
        first = renamed and not before
        if first:
            self.emit(rebind)
            now = dict(zip(bare, map(Read, carried), strict=True))
            emitted = [mapped(t, lambda x: now.get(x.value, x) if isinstance(x, Read) else x) for t in emitted]
        for variable, tree in zip(scan.collected, emitted, strict=True):
            self.out.append(Do(py("{xs}.append({x})", xs=Read(variable), x=tree)))
        if not first:
            self.emit(rebind)

    def branch(self, branch: Conditional) -> None:
        for body in (branch.then, branch.otherwise):
            self.settle(self.outside(body))
        joined = tuple(v if isinstance(v, Variable) else Variable(self.name(v)) for v in branch.outputs)
        arms = []
        for body in (branch.then, branch.otherwise):
            around, aliases = self.out, dict(self.aliases)
            self.out = []
            self.body(body.steps)
            ends = zip(joined, body.outputs, branch.outputs, strict=True)
            for variable, tree, _ in sorted(ends, key=lambda e: e[1] == Read(e[2])):  # copies of them come first
                if tree != UNBOUND:
                    self.emit(Bind((variable,), self.take(tree)))
            arms.append(tuple(self.out))
            self.out, self.aliases = around, aliases
        self.out.append(IfStatement(self.take(branch.test), arms[0], arms[1], branch.note))
        for variable, value in zip(joined, branch.outputs, strict=True):
            self.aliases.pop(value, None)
            if variable is not value:
                self.aliases[value] = Read(variable)
                self.left[variable] = self.left[value]


def helper(tree: Any) -> Any:
    """The function of the file that an expression calls; None of any other expression."""
    function = tree.fields[0] if isinstance(tree, PyNode) and tree.kind == "Call" else None
    return function if isinstance(function, PyNode) and function.kind == "Name" else None


def read_copies(statements: Sequence[Statement], after: Set[Target]) -> tuple[Statement, ...]:
    """The statements without names for other names that nobody reads, as where the first iteration of a loop takes no
    account of what the loop begins with. `after` are the names that are read behind them."""
    read, found = set(after), list[Statement]()
    for s in reversed(statements):
        if isinstance(s, Bind) and is_copy(s.expr) and not read & {*s.targets}:
            continue
        if isinstance(s, Rebind):
            kept = [t in read or not is_copy(e) for t, e in zip(s.targets, s.exprs, strict=True)]
            s = replace(s, targets=tuple(compress(s.targets, kept)), exprs=tuple(compress(s.exprs, kept)))
        if isinstance(s, ForLoop):
            read |= read_by((s,))
            s = replace(s, body=read_copies(s.body, read))
        elif isinstance(s, Bind | Rebind):
            read -= {*s.targets}
        if not isinstance(s, Rebind) or s.targets:
            found.append(s)
        read |= read_by((s,))
    return tuple(reversed(found))


def is_copy(tree: Tree) -> bool:
    """Whether an expression is a name alone."""
    return isinstance(tree, Read)


def goes_on(s: IfStatement, last: IfStatement) -> bool:
    """Whether what is done under a test goes on where the statement before ends, which asks the same. In `if cache is
    None or cache.first` nothing is read that the one before makes: it stands alone then."""
    made = {t for each in last.then + last.otherwise for t in bound(each)}
    either = isinstance(s.test, PyNode) and s.test.kind == "BoolOp"
    return last.test == s.test and not (either and made & read_by(s.then + s.otherwise))


def read_by(statements: Sequence[Statement]) -> set[Target]:
    """What statements and those within them read."""
    return {x.value for x in leaves(statements) if isinstance(x, Read)}


def there_and_back(tree: Any) -> Any:
    """The expression without `.transpose(1, 2).transpose(1, 2)`: heads moved forward to be looked at, and back."""
    if isinstance(tree, tuple):
        return tuple(map(there_and_back, tree))
    if not isinstance(tree, PyNode):
        return tree
    fields = tuple(map(there_and_back, tree.fields))
    made = tree if all(a is b for a, b in zip(fields, tree.fields, strict=True)) else PyNode(tree.kind, fields)
    inner = _transposed(made)
    within = _transposed(inner) if inner is not None else None
    return made if within is None else within


def _transposed(tree: Any) -> Any:
    """What `.transpose(1, 2)` is called of; None of any other expression."""
    if isinstance(tree, PyNode) and tree.kind == "Call" and tree.fields[1] == _AXES and not tree.fields[2]:
        function = tree.fields[0]
        if isinstance(function, PyNode) and function.kind == "Attribute" and function.fields[1] == "transpose":
            return function.fields[0]
    return None


_AXES = (PyNode("Constant", ("1",)), PyNode("Constant", ("2",)))
