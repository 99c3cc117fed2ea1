"""Pipeline parallelism in the section `parallel`: the model's `forward`, cut before and behind its one stack of layers.

The cut is one of statements over values: what each side reads and binds, and which modules it needs, is read off them;
only then do the statements of a stage get names of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from archdsl.backends.torch.classes import Classes
from archdsl.backends.torch.helpers import members
from archdsl.backends.torch.lower import Make
from archdsl.backends.torch.names import named
from archdsl.backends.torch.program import Check, Do, Let, Target
from archdsl.backends.torch.python import TAKEN
from archdsl.backends.torch.statements import (
    For,
    If,
    Rebind,
    Return,
    Statement,
    all_bound,
    all_expressions,
    all_reads,
    attributes,
    blocks_of,
)
from archdsl.backends.torch.text import Scheduled
from archdsl.backends.torch.tree import Node, Part, Read, Variable, mapped, py, unparse, word, words, zipped
from archdsl.ir.op import Tree

OWN = frozenset({"is_first", "is_last", "tied"})
"""Attributes that a stage has beside those of the model."""

GIVEN = frozenset({"target", "losses", "loss_kwargs", "return_outputs"})
"""Arguments of torch's schedules, which take those of `forward` by name, too."""


def stage(model: str, tied: str, own: str, layers: str, ends: str, parameters: str, given: str, body: str) -> str:
    """The class of stages."""
    return f'''
class Stage({model}):
    """Some of the layers, on one device of a pipeline. The first stage embeds; the last has the head."""

{tied}    def __init__(self, model: {model}, index: int, count: int) -> None:
        nn.Module.__init__(self)
        self.is_first, self.is_last = index == 0, index == count - 1
{own}        start, end = ({ends} for i in (index, index + 1))
{layers}
    def forward(self, {parameters}) -> Tensor:
        """`{given}` is from the stage before; the first reads the model's inputs instead."""
{body}
'''.strip()


def step(inputs: Sequence[str], first: str, mean: str, tied: str) -> str:
    """The method of a pipeline that takes a batch through the stages; `first` and `mean` are locals of it."""
    parameters = ", ".join(f"{name}: Tensor" for name in inputs)
    keywords = ", ".join(f"{name}={name}" for name in inputs)
    return f'''
    def step(self, {parameters}, target: Tensor) -> Tensor:
        """Forwards and backwards through a batch; the mean loss, on every device of the pipeline."""
        losses: list[Tensor] = []
        {first} = ({inputs[0]},) if self.stage.is_first else ()
        target = target if self.stage.is_last else None
        self.schedule.step(*{first}, target=target, losses=losses if self.stage.is_last else None, {keywords})
{tied}        {mean} = torch.stack(losses).mean().detach() if losses else torch.zeros((), device={inputs[0]}.device)
        dist.all_reduce({mean}, group=self.mesh.get_group())
        return {mean}
'''.strip("\n")


def pipeline(model: str, stack: str, groups: str, asked: str, given: str) -> str:
    """The function that makes a stage and its schedule of a model."""
    return f'''
def pipeline(
    model: {model}, mesh: DeviceMesh, micro_batches: int, loss: Callable[[Tensor, Tensor], Tensor]{asked}
) -> Pipeline:
    """Cut a model into stages along the axis `pp` of a mesh, and parallelize this device's over the other axes.

    `loss(output, target)` is a mean over a micro-batch; a batch is cut into `micro_batches`. Raises ValueError where
    there are fewer layers than stages, or fewer micro-batches."""
    stages, layers = mesh["pp"].size(), len(model.{stack}){groups}
    if layers < stages or micro_batches < stages:
        raise ValueError(f"{{stages}} stages need as many layers and micro-batches: {{layers}} and {{micro_batches}}")
    stage = parallelize(Stage(model, mesh["pp"].get_local_rank(), stages), mesh{given})
    return Pipeline(stage, mesh, micro_batches, loss)
'''.strip()


@dataclass(frozen=True)
class Cut:
    """A `forward` in parts: what every stage computes of the model's inputs, what the first does, the loop over the
    layers, and what the last stage does."""

    stack: str
    period: int
    """How many layers an iteration uses."""
    everywhere: tuple[Statement, ...]
    beginning: tuple[Statement, ...]
    loop: For
    end: tuple[Statement, ...]
    carried: Target
    """What goes from stage to stage."""


def cut(body: Sequence[Statement], stack: str, modules: Collection[str], weights: Collection[str]) -> Cut | None:
    """The parts of a `forward` whose layers are in the list `stack`; None where it is not one loop over them that
    carries one tensor, or where several stages would need a module of `modules`, which may draw numbers, or one of
    `weights`."""
    loops = [i for i, s in enumerate(body) if isinstance(s, For)]
    if len(loops) != 1:
        return None
    (at,) = loops
    before, loop, end = body[:at], body[at], body[at + 1 :]
    assert isinstance(loop, For)
    periods = [_period(source, stack) for source in _sources(loop)]
    # One list of the layers beside others, or the layers alone, several an iteration.
    period = max(periods)
    alone = sum(p > 0 for p in periods) == 1 if period == 1 else {*periods} == {period}
    carried = [*(all_bound(loop.body) & all_bound(before))]
    # What the layers put into lists would be on several devices.
    if period == 0 or not alone or len(carried) != 1 or any(isinstance(s, Do) for s in _within(loop.body)):
        return None
    # What the layers, or the end, need beside what is carried: each stage makes it of the model's inputs.
    needed = all_reads([loop, *end]) - {*carried}
    everywhere: list[Statement] = []
    for s in reversed(before):
        if isinstance(s, Check) or all_bound([s]) & needed:
            everywhere.insert(0, s)
            needed |= all_reads([s])
    if carried[0] in all_bound(everywhere) | all_reads(everywhere):
        return None
    if attributes(everywhere) & {*modules, "training"} or (attributes([loop]) - {stack}) & {*weights}:
        return None
    beginning = tuple(s for s in before if s not in everywhere)
    return Cut(stack, period, tuple(everywhere), beginning, loop, tuple(end), carried[0])


def _sources(loop: For) -> tuple[Tree, ...]:
    """What a loop runs over, side by side."""
    if len(loop.targets) == 1:
        return (loop.source,)
    assert isinstance(loop.source, Node)
    return tuple(loop.source.get("args"))


def _period(source: Tree, stack: str) -> int:
    """How many items of a list are between one and the next that a loop takes of it: 1 for the list as it is; 0 for
    other lists, or some of the items."""
    if source == Part(stack):
        return 1
    if isinstance(source, Node) and source.kind == "Subscript" and source.fields[0] == Part(stack):
        match source.fields[1]:
            case Node("Slice", (_, None, Node("Constant", (step,)))):
                return int(step)
    return 0


def _within(statements: Sequence[Statement]) -> Iterator[Statement]:
    """Some statements and those within them."""
    for s in statements:
        yield s
        for body in blocks_of(s):
            yield from _within(body)


def stages(classes: Classes, forward: Scheduled, stacks: Sequence[str], paths: Collection[str]) -> Stages | None:
    """The stages of a model, where there can be some: of its lists of layers and its trained weights the paths."""
    made = classes.classes[None].init
    modules = {s.name for s in made if isinstance(s, Make)} - {"shards"}
    inputs = {forward.names[p.target] for p in forward.method.parameters if not p.default}
    if len(stacks) != 1 or OWN & {name for name, _ in _made(made)} or GIVEN & inputs:
        return None
    parts = cut(forward.body, stacks[0], modules, {path.partition(".")[0] for path in paths})
    return None if parts is None else Stages(classes, forward, parts, paths)


def _made(init: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """The attributes that the model's `__init__` makes, and the lines that take them from it."""
    for s in init:
        if isinstance(s, Make):
            yield s.name, f"self.{s.name} = model.{s.name}"
        elif isinstance(s, Do):  # a buffer
            assert isinstance(s.expr, Node)
            function, (name, _), saved = s.expr.fields
            attribute = ast.literal_eval(name.fields[0])
            taken = Node("Call", (function, (name, Node("Attribute", (word("model"), attribute))), saved))
            yield attribute, unparse(taken, str)


class Stages:
    """The class of stages, and what runs them."""

    def __init__(self, classes: Classes, forward: Scheduled, parts: Cut, paths: Collection[str]) -> None:
        """`paths` are those of all trained weights."""
        self.model, self.made = classes.root_class, dict(_made(classes.classes[None].init))
        self.forward, self.parts = forward, parts
        names = {p: forward.names[p.target] for p in forward.method.parameters}
        self.inputs = [name for p, name in names.items() if not p.default]
        self.optional = [name for p, name in names.items() if p.default]
        both = attributes(parts.beginning) & attributes(parts.end)
        self.tied = [path for path in paths if path.partition(".")[0] in both]
        """Weights that the first and the last stage have in common."""
        self.start = _free("start", self.made)
        """The attribute that is the number of a stage's first layer."""

    def functions(self, asked: str, given: str) -> Iterator[str]:
        """Their sources: `asked` is a parameter for `parallelize`, `given` how it is handed on."""
        yield self._stage()
        yield self._schedule()
        period = self.parts.period
        groups = f" // {period}" if period > 1 else ""
        yield pipeline(self.model, self.parts.stack, groups, asked, given)

    def _schedule(self) -> str:
        first, mean = (_free(name, self.inputs) for name in ("first", "mean"))
        tied = "        self.sum_tied()\n" if self.tied else ""
        head = members("Pipeline", {"__init__", *("sum_tied",) * bool(self.tied)})
        return f"{head}\n\n{step(self.inputs, first, mean, tied)}"

    def _stage(self) -> str:
        parts = self.parts
        tied = f"    tied = ({', '.join(_text(path) for path in self.tied)},)\n\n" if self.tied else ""
        layers = f"self.{parts.stack} = nn.ModuleDict({{str(i): model.{parts.stack}[i] for i in range(start, end)}})"
        made = [f"self.{self.start} = start"] * self._zipped + [layers]
        ends = f"len(model.{parts.stack}) * i // count"
        if parts.period > 1:  # those of an iteration stay together
            ends = f"{parts.period} * (len(model.{parts.stack}) // {parts.period} * i // count)"
        names = {*self.inputs, *self.optional}
        carried = self.forward.names[parts.carried]
        given = Variable(_free(f"{carried}_given", names) if carried in names else carried)
        done = self._forward(given)
        parameters = [f"{name}: Tensor" for name in (done.names[given], *self.inputs)]
        parameters += [f"{name}: Any = None" for name in self.optional]
        return stage(
            self.model,
            tied,
            _indented(self._own()),
            _indented(made),
            ends,
            ", ".join(parameters),
            done.names[given],
            "\n".join(done.lines(done.body)),
        )

    @property
    def _zipped(self) -> bool:
        """Whether what differs from layer to layer stands in lists beside them."""
        return self.parts.period == 1 and len(self.parts.loop.targets) > 1

    # --- what a stage has ---

    def _own(self) -> Iterator[str]:
        """Lines that take what a stage needs from the whole model."""
        parts = self.parts
        everywhere = attributes([*parts.everywhere, parts.loop])
        first, last = attributes(parts.beginning), attributes(parts.end)
        groups: dict[str, list[str]] = {
            "": ["self.config = model.config"] * ("config" in attributes(self.forward.body)),
            "self.is_first": [],
            "self.is_last": [],
            "self.is_first or self.is_last": [],
        }
        for name, line in self.made.items():
            if name == parts.stack:
                continue
            where = "self.is_last" if name in last else "self.is_first"
            if name in everywhere:
                where = ""
            elif name in first and name in last:
                where = "self.is_first or self.is_last"
            groups[where].append(line)
        yield from groups.pop("")
        for where, lines in groups.items():
            if lines:
                yield f"if {where}:"
                yield from (f"    {line}" for line in lines)

    # --- what it computes ---

    def _forward(self, given: Variable) -> Scheduled:
        """Its `forward`: `given` is what comes from the stage before."""
        parts, loop = self.parts, self.parts.loop
        handed = Rebind((parts.carried,), (Read(given),))
        body: list[Statement] = [*parts.everywhere, If(py("self.is_first"), parts.beginning, (handed,))]
        layers = py("{xs}.values()", xs=Part(parts.stack))
        if parts.period > 1:
            listed = Variable(parts.stack)
            body.append(Let((listed,), py("list({xs})", xs=layers)))
            layers = Read(listed)
        sources = [self._source(s, layers) for s in _sources(loop)]
        body.append(For(loop.targets, zipped(sources), loop.body))
        body.append(If(py("not self.is_last"), (Return((Read(parts.carried),)),), ()))
        body += parts.end
        method = self.forward.method
        avoid = {*TAKEN, *(n for e in all_expressions(body) for n in words(e))}
        names = named([given, *(p.target for p in method.parameters)], body, method.hints, avoid)
        return Scheduled(method, tuple(body), names)

    def _source(self, source: Tree, layers: Tree) -> Tree:
        """What the loop runs over, of a stage's layers; lists beside them are those of all layers."""
        stack = Part(self.parts.stack)
        if self._zipped and source != stack:
            start = Node("Attribute", (word("self"), self.start))
            return Node("Subscript", (source, Node("Slice", (start, None, None))))
        found: Tree = mapped(source, lambda x: layers if x == stack else x)
        return found


def _free(name: str, taken: Collection[str]) -> str:
    """The name, or with a number another that is not taken."""
    return next(n for i in count(1) if (n := name if i == 1 else f"{name}_{i}") not in taken)


def _indented(lines: Iterator[str] | Sequence[str]) -> str:
    return "".join(f"        {line}\n" for line in lines)


def _text(path: str) -> str:
    return f'"{path}"'
