"""What a block's `forward` does, before anything has a name: statements over values of the IR.

`lower` makes it of a graph, `schedule` decides what is nested and iterations loops over layers into Python's; only then
`names` and `text` follow.  The validator runs it as it is: it is what is meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from archdsl.backends.torch.tree import Code, NumberLeaf, PyNode, Read, Variable, leaves, mapped, own_trees
from archdsl.ir.op import Tree
from archdsl.ir.static import ElementRef, Pattern, RepeatedPattern

Target = Any
"""A value of the IR, or a `tree.Variable`."""


class Bind(Code):
    """Values get what an expression gives: one, or several from its tuple."""

    targets: tuple[Target, ...]
    expr: Tree
    nested: bool = True
    """Whether the expression may stand where its value is read."""
    always: bool = False
    """Whether it is computed though nothing may read it: what it calls has weights."""
    whole: bool = False
    """Whether expressions are nested into it however long the line becomes, as into a call of a block."""
    note: str = ""
    """The shape, where it is worth a comment."""


class Check(Code):
    """`assert test, message`."""

    test: Tree
    message: str


class Put(Code):
    """`target = expr` for what is no local: an entry of `losses`."""

    target: Tree
    expr: Tree


class Do(Code):
    """An expression that is evaluated for its effect."""

    expr: Tree


class Suite(Code):
    """Statements within others: `inputs` are bound where it begins, `outputs` are read at its end."""

    inputs: tuple[Target, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Tree, ...]


UNBOUND = PyNode("Pass", ())
"""The output of an arm of a condition behind which nothing reads it."""


class LayerLoop(Code):
    """Iterations over layers: iteration t runs `bodies[iterations[t]]`, whose modules (`Part(name, k)`, k counted
    within the body) follow those of the iterations before it. Outputs of a body are the carried values, then what is
    collected."""

    variable: str
    starts: tuple[Tree, ...]
    length: Tree
    """How many iterations there are, and the counts in the pattern."""
    repeats: tuple[Tree, ...]
    bodies: tuple[Suite, ...]
    iterations: tuple[int, ...]
    pattern: Pattern | None
    outputs: tuple[Target, ...]
    collected: tuple[tuple[Target, ...], ...]
    """Of each iteration the values that it collects."""
    counts: tuple[Counter[str], ...]
    """How many modules of each list a body makes."""
    offset: Counter[str]
    """How many of each list the loop around it has made in its iteration before."""
    absent: frozenset[Target] = frozenset()
    """Masks read by bodies where those of other iterations read one: they need no tensor."""


class ScanLoop(Code):
    """A recurrence along axis 1 of `sequences`: the inputs of the body are the states, then a slice of each sequence;
    its outputs the next states, then what is collected in lists."""

    starts: tuple[Tree, ...]
    sequences: tuple[Tree, ...]
    body: Suite
    collected: tuple[Target, ...]
    finals: tuple[Target, ...]


class Conditional(Code):
    """`if test`: both arms bind the same values."""

    test: Tree
    then: Suite
    otherwise: Suite
    outputs: tuple[Target, ...]
    note: str = ""


class Leave(Code):
    """`if test: return result`."""

    test: Tree
    result: Tree


class Fork(Code):
    """What `forward` does without a cache, and with one. With `free` the first does nothing unless it is given what may
    be left out, and is not asked for the cache."""

    plain: tuple[Step, ...]
    step: tuple[Step, ...]
    free: bool = False


Step = Bind | Check | Put | Do | LayerLoop | ScanLoop | Conditional | Leave | Fork


def bodies(step: Step) -> tuple[Suite, ...]:
    """The bodies within a statement."""
    if isinstance(step, LayerLoop):
        return step.bodies
    if isinstance(step, ScanLoop):
        return (step.body,)
    return (step.then, step.otherwise) if isinstance(step, Conditional) else ()


def with_bodies(step: Step, change: Callable[[Suite], Suite]) -> Step:
    """Return a statement with each of the bodies within it changed."""
    match step:
        case LayerLoop():
            return replace(step, bodies=tuple(map(change, step.bodies)))
        case ScanLoop():
            return replace(step, body=change(step.body))
        case Conditional():
            return replace(step, then=change(step.then), otherwise=change(step.otherwise))
    return step


def within(step: Step) -> Iterator[Step]:
    """The statements within one, and those within them."""
    for body in bodies(step):
        yield from every(body.steps)


def every(steps: Sequence[Step]) -> Iterator[Step]:
    """Some statements, and those within them."""
    for step in steps:
        yield step
        yield from within(step)


def absent(steps: Sequence[Step]) -> frozenset[Target]:
    """Masks that need no tensor, where other iterations of a loop read one in their stead."""
    return frozenset(v for s in every(steps) if isinstance(s, LayerLoop) for v in s.absent)


def is_counted(loop: LayerLoop) -> bool:
    """Whether a loop reads alike however many layers there are: `for block in self.blocks`, where a name says how many
    the list has."""
    once = isinstance(loop.pattern, RepeatedPattern) and isinstance(loop.pattern.part, ElementRef)
    single = all(n == 1 for counts in loop.counts for n in counts.values())
    return once and single and not any(loop.collected) and not any(isinstance(s, LayerLoop) for s in within(loop))


def bound_by(step: Step) -> tuple[Target, ...]:
    """The values that a statement binds for those after it."""
    match step:
        case Bind():
            return step.targets
        case LayerLoop():
            return (*step.outputs, *(v for each in step.collected for v in each))
        case ScanLoop():
            return (*step.collected, *step.finals)
        case Conditional():
            return step.outputs
    return ()


def bound_within(steps: Sequence[Step]) -> list[Target]:
    """Every value that some statements bind, those within others too."""
    found: list[Target] = []
    for step in steps:
        found += bound_by(step)
        for body in bodies(step):
            found += [*body.inputs, *bound_within(body.steps)]
    return found


def all_read(steps: Sequence[Step], results: Sequence[Tree] = ()) -> set[Target]:
    """Every value that some statements read, those within others too."""
    return {x.value for x in leaves((*steps, *results)) if isinstance(x, Read)}


def key(
    inputs: Sequence[Target], steps: Sequence[Step], result: Sequence[Tree], spelled: Callable[[Target], str]
) -> Any:
    """Equal for statements that read alike: values by the order in which they are bound, with the names they would
    like to have."""
    known: dict[Target, tuple[int, str]] = {}

    def bound(targets: Sequence[Target]) -> tuple[Any, ...]:
        return tuple(known.setdefault(t, (len(known), spelled(t))) for t in targets)

    def leaf(x: Any) -> Any:
        return Read(known.get(x.value, x.value)) if isinstance(x, Read) else x

    def of(x: Any) -> Any:
        return mapped(x, leaf)

    def suite(body: Suite, nested: bool) -> Any:
        return bound(body.inputs), walk(body.steps, nested), of(body.outputs)

    def walk(steps: Sequence[Step], nested: bool) -> Any:
        return tuple(visit(s, nested) for s in steps)

    def visit(step: Step, nested: bool) -> Any:
        own = of(own_trees(step))
        inner = tuple(suite(body, nested or isinstance(step, LayerLoop)) for body in bodies(step))
        match step:
            case Bind():
                return own, bound(step.targets), step.nested, step.always, step.whole, step.note
            case Check():
                return own, step.message
            case LayerLoop():
                outputs = bound(step.outputs)
                if not nested and is_counted(step):
                    return own, inner, outputs
                collected = tuple(map(bound, step.collected))
                return own, inner, step.iterations, str(step.pattern), outputs, collected
            case ScanLoop():
                return own, inner, bound(step.collected), bound(step.finals)
            case Conditional():
                return own, inner, bound(step.outputs)
        return type(step).__name__, own

    return bound(inputs), walk(steps, nested=False), of(tuple(result))


PURE = ("newest", "last", "by_row")
"""Methods of what steps of decoding keep that change nothing."""


def effectful(tree: Any) -> bool:
    """Whether an expression changes what steps of decoding keep."""
    if isinstance(tree, tuple):
        return any(map(effectful, tree))
    if not isinstance(tree, PyNode):
        return False
    if tree.kind == "Call":
        function, args, keywords = tree.fields
        if any(is_cache(a) for a in (*args, *(k.fields[1] for k in keywords))):
            return True
        if isinstance(function, PyNode) and function.kind == "Attribute" and is_cache(function.fields[0]):
            return function.fields[1] not in PURE
    return any(map(effectful, tree.fields))


def is_cache(x: Any) -> bool:
    """Whether an expression is what steps of decoding keep."""
    return isinstance(x, Read) and isinstance(x.value, Variable) and x.value.state


def called_alike(tree: Tree) -> Iterator[PyNode]:
    """Calls of submodules within an expression: two of them may give different results, where something is drawn."""
    if isinstance(tree, PyNode):
        if tree.kind == "Call" and any(not isinstance(x, Read | NumberLeaf) for x in leaves(tree.fields[0])):
            yield tree
        for inner in tree.fields:
            yield from called_alike(inner)
    elif isinstance(tree, tuple):
        for inner in tree:
            yield from called_alike(inner)
