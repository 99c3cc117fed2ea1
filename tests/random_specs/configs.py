"""Another Config, against what the compiler says of the spec with these numbers.

Every number of a model is set to others. Where the conditions that the IR recorded hold, the graph has to be the one
that the spec has with these numbers, every size of it spelled by expressions that come to the same (`graphs`), and the
emitted module has to have its names and shapes, or to refuse the Config (`modules`).

`python -m tests.random_specs.configs --count 1000 --seed 1` does so for random specs in which numbers became
hyper-parameters, `--zoo` for the zoo's models as they are."""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from decode_tools import first_output, inputs_for, module_of, torch_differences
from near import distance

from archdsl.backends.torch import Extras, emit
from archdsl.diagnostics import ArchError
from archdsl.ir import dims
from archdsl.ir.conditions import conditions
from archdsl.ir.dims import Expr, Num, Poly
from archdsl.ir.graph import (
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    CondNode,
    Graph,
    Handle,
    LoopNode,
    LossNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    Weight,
    WeightNode,
)
from archdsl.ir.ranges import TESTS
from archdsl.ir.static import ElementRef, EnumValue, JoinedPattern, Pattern, RepeatedPattern, numbers_of
from archdsl.ir.weights import weights
from archdsl.passes.sequence import DecodedSequence
from archdsl.run.load import load_source

Number = int | float
Loader = Callable[[Mapping[str, Number]], Model]
"""A spec with settings. Raises ArchError."""
TOLERANCE = 1e-5
"""How far decoded numbers may be from the whole's, relative to the largest."""
COMPILERS = frozenset({"E0404"})
"""What is refused because it is too large for the compiler: the emitted code may do it."""


class DishonestError(AssertionError):
    """A Config that is taken and makes something else than the spec; `kind` says in which respect."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def others(value: Any) -> list[Number]:
    """Other values for a number of a Config."""
    if isinstance(value, Poly):
        return []
    if not isinstance(value, int):
        own = float(value)
        return list(dict.fromkeys(n for n in (own * 2, own / 2, 0.1, 0.0, 1.0) if n != own))
    divisors = [n for n in range(2, min(value, 600)) if value % n == 0]
    found = [2 * value, value // 2 if value % 2 == 0 else value - 1, value + 1, 1, 0]
    found += [*divisors[:1], *divisors[-2:-1], *divisors[len(divisors) // 2 : len(divisors) // 2 + 1]]
    return list(dict.fromkeys(n for n in found if n != value))


def changes(model: Model) -> Iterator[tuple[str, Number]]:
    """Each number of the Config with each of its other values."""
    for f in model.config:
        for value in others(f.value.value):
            yield f.name, value


@dataclass
class Tally:
    """What became of the Configs."""

    counts: Counter[str] = field(default_factory=Counter)
    needless: list[str] = field(default_factory=list)
    """Configs that were refused although the graph would have been right."""


# --- the graph --------------------------------------------------------------------------------------------------------


def graphs(load: Loader, tally: Tally, fields: int | None = None) -> None:
    """Compare the model's graph for other numbers with the graph of the spec with these numbers."""
    model = load({})
    found = conditions(model)
    own = {f.name: f.value.value for f in model.config}
    for condition in found:
        if not holds(condition, own):
            raise DishonestError("own", f"its own Config is refused: {told(condition)}")
    for name, value in changes(model):
        broken = [c for c in found if not holds(c, {**own, name: value})]
        other = loaded(load, {name: value})
        if isinstance(other, ArchError):
            if other.diagnostics[0].code in COMPILERS:
                tally.counts["too large"] += 1
            elif not broken:
                message = f"{name} = {value} is taken, and the spec refuses it: {other.diagnostics[0].message}"
                raise DishonestError("refused", message)
            else:
                tally.counts["both refuse"] += 1
            continue
        try:
            Pair({**own, name: value}).models(model, other)
        except DifferenceError as difference:
            if not broken:
                raise DishonestError("graph", f"{name} = {value} is taken: {difference}") from None
            tally.counts["another graph, refused"] += 1
            continue
        if broken:
            tally.counts["the same graph, refused"] += 1
            tally.needless.append(f"{name} = {value}: {told(broken[0])}")
        else:
            tally.counts["the same graph, taken"] += 1


def loaded(load: Loader, settings: Mapping[str, Number]) -> Model | ArchError:
    try:
        return load(settings)
    except ArchError as problem:
        return problem
    except Exception as problem:
        raise DishonestError("crash", f"{settings}: {type(problem).__name__}: {problem}") from problem


def told(condition: Any) -> str:
    left, op, right, message = condition
    return f"{dims.expr_text(left)} {op} {dims.expr_text(right)} ({message})"


def literal(value: Any) -> Expr:
    return dims.literal(Fraction(str(value)) if isinstance(value, float) else value)


def holds(condition: Any, values: Mapping[str, Any]) -> bool:
    names = {name: literal(value) for name, value in values.items()}
    left, op, right, _ = condition
    try:
        return TESTS[op](*(dims.expr_value(dims.substitute(e, names)) for e in (left, right)))
    except ZeroDivisionError:
        return False


class DifferenceError(Exception):
    """Two graphs differ."""


SAMPLES = ({"batch": 2}, {"batch": 3})
DEFAULT = (48, 96)
"""Sizes that only the running model knows, twice."""


class Pair:
    """A graph whose sizes are computed from other numbers, beside a graph that was made for these."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.known: set[Any] = set()
        self.joined: dict[str, Any] = {}

    def models(self, a: Model, b: Model) -> None:
        env: dict[str, Any] = {name: dims.expr_value(literal(value)) for name, value in self.values.items()}
        same(a.block.tensor_names, b.block.tensor_names, "inputs")
        self.blocks(a.block, b.block, env)

    def blocks(self, a: Block, b: Block, env: Mapping[str, Any]) -> None:
        names = dict(env)
        for name, expr in a.local.items():
            if name not in names:
                names[name] = evaluated(expr, names)
        key = (id(a), id(b), tuple(sorted((k, repr(v)) for k, v in names.items())))
        if key in self.known:
            return
        self.known.add(key)
        same(len(a.instances), len(b.instances), "shared blocks")
        for instance in a.instances:  # its numbers have one name in all blocks below
            self.joined |= {k: evaluated(e, names) for k, e in instance.joined.items()}
        wires: dict[int, int] = {}
        same(len(contexts(a)), len(contexts(b)), "contexts")
        for x, y in zip(contexts(a), contexts(b), strict=True):
            self.value(x, y, names, wires)
        Side(self, names, wires).graph(a.graph, b.graph)

    def value(self, a: Value, b: Value, env: Mapping[str, Any], wires: dict[int, int]) -> None:
        """Two tensors of one type and shape; from now on they are one."""
        if a.dtype != b.dtype or a.rank != b.rank:
            raise DifferenceError(f"{a.name}: {a.dtype}[{a.rank}], and not {b.dtype}[{b.rank}]")
        for x, y in zip(a.shape, b.shape, strict=True):
            self.number(x, y, env, f"an axis of {a.name or 'a tensor'}")
        wires[id(a)] = id(b)

    def number(self, a: Num, b: Num, env: Mapping[str, Any], what: str) -> None:
        try:
            found = evaluated(a.expr, env)
        except KeyError as problem:
            # A name that stands for something of the running model in a block that was not given it.
            raise DifferenceError(f"{what}: the name {problem} means nothing") from None
        if any(number(found, i) != number(b.value, i) for i in (0, 1)):
            raise DifferenceError(f"{what}: {dims.expr_text(a.expr)} = {found}, and not {b}")


def contexts(block: Block) -> list[Value]:
    return [c.value for c in block.contexts if isinstance(c.value, Value)]


def same(a: Any, b: Any, what: str) -> None:
    if a != b:
        raise DifferenceError(f"{what}: {a}, and not {b}")


def evaluated(expr: Expr, env: Mapping[str, Any]) -> Any:
    """What an expression is worth."""
    if isinstance(expr, dims.Var):
        return env[expr.name] if expr.name in env else dims.symbol(expr.name)
    if isinstance(expr, dims.Lit):
        return dims.expr_value(expr)
    if isinstance(expr, dims.Fn):
        return dims.apply_function(expr.name, *(evaluated(a, env) for a in expr.args))
    try:
        return dims.OPERATORS[expr.op](evaluated(expr.left, env), evaluated(expr.right, env))
    except ZeroDivisionError:
        raise DifferenceError(f"{dims.expr_text(expr)} divides by 0") from None


def number(value: Any, sample: int) -> Any:
    """A size where those that only the running model knows have some size."""
    if not isinstance(value, Poly):
        return round(float(value), 9)
    sizes = {s.name: SAMPLES[sample].get(s.name, DEFAULT[sample]) for s in value.symbols}
    return round(float(dims.evaluate(value, sizes)), 6)


NEUTRAL = {"plus": 0, "minus": 0, "times": 1, "divide": 1}
IDLE: dict[str, dict[str, int]] = {
    "dropout": {"rate": 0},
    "expand": {"size": 1},
    "repeat": {"times": 1},
    "tile": {"times": 1},
    "shift": {"by": 0},
    "roll": {"by": 0},
    "pad": {"before": 0, "after": 0},
}
"""Options with which an op changes nothing."""


class Side:
    """One block beside another: its names, and which tensors of the two are one."""

    def __init__(self, pair: Pair, env: Mapping[str, Any], wires: dict[int, int]) -> None:
        self.pair = pair
        self.env = env
        self.wires = wires

    def value(self, a: Value, b: Value) -> None:
        self.pair.value(a, b, self.env, self.wires)

    def values(self, a: Sequence[Value], b: Sequence[Value], what: str) -> None:
        same(len(a), len(b), what)
        for x, y in zip(a, b, strict=True):
            self.value(x, y)

    def read(self, a: Any, b: Any, what: str) -> None:
        """Inputs of a node: the same tensors, or numbers that come to the same."""
        if isinstance(a, Num) and isinstance(b, Num):
            self.pair.number(a, b, self.env, what)
        elif isinstance(a, Value) and isinstance(b, Value):
            if self.wires.get(id(a)) != id(b):
                raise DifferenceError(f"{what}: another tensor is read, {a.name} and {b.name}")
        elif isinstance(a, Handle) or isinstance(b, Handle):
            same(type(a), type(b), what)
        else:
            same(a, b, what)

    def all_read(self, a: Sequence[Any], b: Sequence[Any], what: str) -> None:
        same(len(a), len(b), f"inputs of {what}")
        for x, y in zip(a, b, strict=True):
            self.read(x, y, what)

    def graph(self, a: Graph, b: Graph) -> None:
        self.values(a.inputs, b.inputs, "inputs")
        mine, theirs = self.nodes(a), self.nodes(b)
        for x in mine:
            if isinstance(x, OpNode) and (not theirs or kind(x) != kind(theirs[0])) and self.changes_nothing(x):
                (value,) = (v for v in x.inputs if isinstance(v, Value))
                self.wires[id(x.outputs[0])] = self.wires[id(value)]
                continue
            if not theirs or kind(x) != kind(theirs[0]):
                raise DifferenceError(f"nodes: {[kind(n) for n in mine]}, and not {[kind(n) for n in self.nodes(b)]}")
            self.node(x, theirs.pop(0))
        same([kind(n) for n in theirs], [], "nodes")
        self.all_read([o for o in a.outputs if o is not None], [o for o in b.outputs if o is not None], "results")

    def nodes(self, graph: Graph) -> list[Node]:
        """What does something: a loop without turns does not, and conditions on inputs are another matter."""
        return [
            n
            for n in graph.nodes
            if not isinstance(n, CheckNode) and not (isinstance(n, LoopNode) and not self.turns(n))
        ]

    def turns(self, node: LoopNode) -> list[int]:
        """Which body each turn has."""
        if node.pattern is None or node.bodies == ():
            return list(node.iterations)
        return expanded(node.pattern, self.env)

    def changes_nothing(self, node: OpNode) -> bool:
        """Whether an op gives back what it gets, for these numbers: the spec's own graph then has no node for it."""
        name = node.op.name
        if name in NEUTRAL:
            numbers = [n for n in node.inputs if isinstance(n, Num)]
            return len(numbers) == 1 and number(evaluated(numbers[0].expr, self.env), 0) == NEUTRAL[name]
        wanted = IDLE.get(name)
        return wanted is not None and all(
            number(evaluated(node.options[option].expr, self.env), 0) == value for option, value in wanted.items()
        )

    def node(self, a: Any, b: Any) -> None:
        if isinstance(a, OpNode):
            self.op(a, b)
        elif isinstance(a, CallNode):
            self.call(a, b)
        elif isinstance(a, LoopNode):
            self.loop(a, b)
        elif isinstance(a, ScanNode):
            self.all_read(a.starts, b.starts, "starts")
            self.all_read(a.sequences, b.sequences, "sequences")
            self.graph(a.body, b.body)
            self.values(a.stacked, b.stacked, "what a scan emits")
            self.values(a.finals, b.finals, "what a scan carries")
        elif isinstance(a, CondNode):
            self.graph(a.then, b.then)
            self.graph(a.otherwise, b.otherwise)
            self.values(a.outputs, b.outputs, "what a condition makes")
        elif isinstance(a, ParamNode):
            same(a.name, b.name, "param")
            self.weight(a.weight, b.weight)
            self.value(a.output, b.output)
        elif isinstance(a, WeightNode):
            self.value(a.output, b.output)
        elif isinstance(a, CausalNode):
            same(a.ahead, b.ahead, "ahead")
            self.read(a.value, b.value, "causal")
        elif isinstance(a, LossNode):
            self.read(a.value, b.value, "loss")

    def op(self, a: OpNode, b: OpNode) -> None:
        what = f"`{a.op.name}`"
        same((a.name, a.instance is None), (b.name, b.instance is None), what)
        self.all_read(a.inputs, b.inputs, what)
        same(a.options.keys(), b.options.keys(), f"options of {what}")
        for key, mine in a.options.items():
            theirs = b.options[key]
            if key == "blocks":
                continue  # the same mask, for another kernel on CUDA
            if mine is None or isinstance(mine, bool | str | EnumValue):
                same(mine, theirs, f"`{key}` of {what}")
            else:
                x, y = list(numbers_of(mine)), list(numbers_of(theirs))
                same(len(x), len(y), f"`{key}` of {what}")
                for m, n in zip(x, y, strict=True):
                    self.pair.number(m, n, self.env, f"`{key}` of {what}")
        same(len(a.weights), len(b.weights), f"weights of {what}")
        for v, w in zip(a.weights, b.weights, strict=True):
            self.weight(v, w)
        same(a.blocks.keys(), b.blocks.keys(), f"blocks of {what}")
        for key, call in a.blocks.items():
            self.inner(call, b.blocks[key])
        self.values(a.outputs, b.outputs, f"results of {what}")

    def weight(self, a: Weight, b: Weight) -> None:
        same((a.name, a.kind, a.trained, a.saved, a.dtype), (b.name, b.kind, b.trained, b.saved, b.dtype), "weight")
        same((len(a.shape), a.init.scheme), (len(b.shape), b.init.scheme), f"weight {a.name}")
        for x, y in zip(a.shape, b.shape, strict=True):
            self.pair.number(x, y, self.env, f"the shape of the weight {a.name}")
        same(a.init.numbers.keys(), b.init.numbers.keys(), f"weight {a.name}")
        for name, x in a.init.numbers.items():
            self.pair.number(x, b.init.numbers[name], self.env, f"`{name}` of the weight {a.name}")

    def call(self, a: CallNode, b: CallNode) -> None:
        what = f"`{a.block.name}`"
        same((a.name, a.instance is None), (b.name, b.instance is None), what)
        self.all_read(a.inputs, b.inputs, what)
        self.all_read(a.contexts, b.contexts, what)
        self.inner(a, b)
        self.values(a.outputs, b.outputs, f"results of {what}")

    def inner(self, a: CallNode, b: CallNode) -> None:
        same((a.block.name, a.block.span.start), (b.block.name, b.block.span.start), "block")
        env = {**self.pair.joined, **{name: evaluated(expr, self.env) for name, expr in a.bind.items()}}
        self.pair.blocks(a.block, b.block, env)

    def loop(self, a: LoopNode, b: LoopNode) -> None:
        self.all_read(a.starts, b.starts, "starts")
        mine = self.turns(a)
        same(len(mine), len(b.iterations), "turns")
        for x, y in dict.fromkeys(zip(mine, b.iterations, strict=True)):
            self.graph(a.bodies[x], b.bodies[y])
        self.values(a.outputs, b.outputs, "what a loop carries")
        if not any((*a.emitted, *b.emitted)):
            return
        same(len(a.emitted), len(b.emitted), "what a loop emits")
        for u, v in zip(a.emitted, b.emitted, strict=True):
            self.values(u, v, "what a loop emits")


def kind(node: Node) -> str:
    return node.op.name if isinstance(node, OpNode) else type(node).__name__


def expanded(pattern: Pattern, env: Mapping[str, Any]) -> list[int]:
    if isinstance(pattern, ElementRef):
        return [pattern.index]
    if isinstance(pattern, RepeatedPattern):
        return expanded(pattern.part, env) * int(evaluated(pattern.count, env))
    assert isinstance(pattern, JoinedPattern)
    return [i for part in pattern.parts for i in expanded(part, env)]


# --- the emitted module -----------------------------------------------------------------------------------------------


def modules(load: Loader, tally: Tally, only: Callable[[str, Number], bool] | None = None) -> list[DishonestError]:
    """Build the emitted module for other numbers and compare its names and shapes; what differs."""
    model = load({})
    made = load_source(emit(model))
    config = sys.modules[made.__module__].Config
    wrong: list[DishonestError] = []
    for name, value in changes(model):
        if only is not None and not only(name, value):
            continue
        other = loaded(load, {name: value})
        if isinstance(other, ArchError) and other.diagnostics[0].code in COMPILERS:
            continue
        attribute = next((f for f in (name, f"{name}_") if f in config.__dataclass_fields__), name)
        try:
            with torch.device("meta"):
                found = {k: tuple(v.shape) for k, v in made(config(**{attribute: value})).state_dict().items()}
        except (AssertionError, ValueError) as problem:
            tally.counts["module: refused" if str(problem) else "module: refused without a word"] += 1
            if not str(problem):
                wrong.append(DishonestError("silent", f"{name} = {value} is refused without a word"))
            continue
        except Exception as problem:
            tally.counts["module: fails"] += 1
            wrong.append(DishonestError("fails", f"{name} = {value}: {type(problem).__name__}: {problem}"))
            continue
        if isinstance(other, ArchError):
            message = f"{name} = {value} is taken, and the spec refuses it: {other.diagnostics[0].message}"
            wrong.append(DishonestError("refused", message))
            continue
        wanted = {w.path: w.shape for w in weights(other) if w.weight.saved}
        if found == wanted:
            tally.counts["module: the same"] += 1
            continue
        gone, new = wanted.keys() - found.keys(), found.keys() - wanted.keys()
        odd = {k: (found[k], wanted[k]) for k in found.keys() & wanted.keys() if found[k] != wanted[k]}
        shown = f"missing {sorted(gone)[:3]}, further {sorted(new)[:3]}, shapes {dict(list(odd.items())[:3])}"
        wrong.append(DishonestError("names" if gone or new else "shapes", f"{name} = {value}: {shown}"))
    return wrong


# --- the emitted decoder ----------------------------------------------------------------------------------------------


def decoders(load: Loader, tally: Tally, draw: random.Random, most: int) -> list[DishonestError]:
    """Decode by the emitted module for some other numbers, `most` at most; where it gives something else than the
    module of the spec with these numbers, and where its steps give something else than the whole."""
    model = load({})
    try:
        made = load_source(emit(model, Extras(frozenset({"generate"}))))
    except ArchError:
        tally.counts["decoder: none"] += 1
        return []
    config = sys.modules[made.__module__].Config
    wrong: list[DishonestError] = []
    found = [*changes(model)]
    for name, value in draw.sample(found, len(found)):
        other = loaded(load, {name: value})
        if isinstance(other, ArchError):
            continue
        attribute = next((f for f in (name, f"{name}_") if f in config.__dataclass_fields__), name)
        try:
            module = made(config(**{attribute: value})).eval()
        except (AssertionError, ValueError):
            tally.counts["decoder: refused"] += 1
            continue
        twin = module_of(other)
        module.load_state_dict(twin.state_dict())
        inputs = inputs_for(other, {"batch": 2, "time": 8, "frames": 8, DecodedSequence.of(other).time.name: 8})
        try:
            whole = first_output(twin, inputs)
        except AssertionError:
            continue  # eight positions are too many for it
        apart = {"whole": distance(first_output(module, inputs), whole)}
        apart |= torch_differences(other, stepping=module, inputs=inputs)
        tally.counts["decoder: compared"] += 1
        if max(apart.values()) > TOLERANCE:
            wrong.append(DishonestError("decoder", f"{name} = {value}: {apart}"))
        most -= 1
        if not most:
            break
    return wrong


# --- specs with more numbers to set -----------------------------------------------------------------------------------

_NUMBER = re.compile(r"(?<![\w.\"])(\d+(?:\.\d+)?(?:e-?\d+)?)(?![\w.\"])")
COMPUTED: tuple[Callable[[int], tuple[str, str]], ...] = (
    lambda v: (str(2 * v), "({} / 2)"),
    lambda v: (str(2 * v + 1), "({} // 2)"),
    lambda v: (str(v + 1), "({} - 1)"),
    lambda v: (str(max(v - 1, 0)), "({} + 1)" if v else "{}"),
    lambda v: (str(v // 2), "(2 * {})") if v % 2 == 0 else (str(v), "{}"),
    lambda v: (str(v * v), "sqrt({})"),
    lambda v: (str(3 * v), "ceil({} / 3)"),
)
"""Ways to compute a number from another one."""


def lifted(text: str, draw: random.Random, share: float = 0.4) -> str:
    """The spec with some of its numbers as hyper-parameters of the model, handed on to the blocks that use them. Equal
    numbers may become one or several."""
    parts = re.split(r"\n\n(?=block |model )", text.strip())
    names: dict[str, str] = {}
    needed: dict[str, list[str]] = {}
    lines: list[str] = []
    for part in parts:
        head, brace, body = part.partition("{")
        used: list[str] = []

        def lift(found: re.Match[str], used: list[str] = used) -> str:
            if draw.random() > share:
                return found[0]
            value, text = found[0], "{}"
            if value.isdecimal() and draw.random() < 0.3:
                value, text = draw.choice(COMPUTED)(int(value))
            alike = [n for n, other in names.items() if other == value]
            name = draw.choice(alike) if alike and draw.random() < 0.5 else f"n{len(names)}"
            names[name] = value
            if name not in used:
                used.append(name)
            return text.format(name)

        body = "".join(t if i % 2 else _NUMBER.sub(lift, t) for i, t in enumerate(re.split(r"(\"[^\"]*\")", body)))
        for block, more in needed.items():
            if re.search(rf"\b{block}\b", body) and more:
                given = ", ".join(f"{n}: {n}" for n in more)
                body = re.sub(rf"\b{block}\((?=[^)])", f"{block}({given}, ", body)
                body = re.sub(rf"\b{block}\b(?!\()", f"{block}({given})", body)
                used += [n for n in more if n not in used]
        own = re.match(r"block (\w+)", head)
        if own is not None:
            needed[own[1]] = used
            head = _with_hypers(head, used) if used else head
        elif names:
            head = re.sub(r"\bm\(", f"m({', '.join(f'{n} = {v}' for n, v in names.items())}, ", head, count=1)
        lines.append(head + brace + body)
    return "\n\n".join(lines) + "\n"


def _with_hypers(head: str, names: Sequence[str]) -> str:
    """The head of a block with further hyper-parameters: `block a(x: …)` has none of its own."""
    given = ", ".join(names)
    name, rest = re.match(r"(block \w+)(.*)", head, re.DOTALL).groups()  # type: ignore[union-attr]
    if rest.startswith("(mask: mask)"):
        return f"{name}({given}, {rest[1:]}"
    return f"{name}({given}){rest}"


# --- many of them -----------------------------------------------------------------------------------------------------


def drawn(count: int, seed: int) -> Iterator[str]:
    """Random specs with numbers to set; the compiler accepts each."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    from archdsl import api
    from random_specs.strategies import specs

    texts: list[str] = []
    draw = random.Random(seed)
    while count > 0:
        texts.clear()

        @seeded(seed)
        @settings(
            max_examples=min(50, 2 * count),
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(specs())
        def collect(text: str) -> None:
            texts.append(text)

        collect()
        seed += 1
        for text in texts:
            found = lifted(text, draw, draw.choice([0.1, 0.3, 0.6]))
            try:
                api.load(text=found, allow_noncausal=True)
            except Exception:
                continue  # a number that has to be one: `expand(1, time)`, `h: 2` of a pattern
            yield found
            count -= 1
            if not count:
                return


def of_text(text: str) -> Loader:
    from archdsl import api

    return lambda settings: api.load(text=text, set=settings, allow_noncausal=True)


def of_zoo(name: str) -> Loader:
    from zoo import tiny

    from archdsl import api

    path, model = tiny.place(name)
    return lambda more: api.load(path, model=model, set={**tiny.tables()[name], **more}, allow_noncausal=True)


def forget() -> None:
    from random_specs.differ import forget

    forget()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--zoo", action="store_true")
    parser.add_argument("--only", choices=["graphs", "modules"])
    parser.add_argument("--keep", type=Path, help="a folder for what failed")
    parser.add_argument("--needless", action="store_true", help="print what is refused although it would be right")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    tally, wrong, begun = Tally(), Counter[str](), time.monotonic()
    kept: dict[str, str] = {}
    loaders: Iterator[tuple[str, Loader]]
    if given.zoo:
        from zoo import tiny

        loaders = ((name, of_zoo(name)) for name in tiny.tables())
    else:
        loaders = ((text, of_text(text)) for text in drawn(given.count, given.seed))
    for i, (text, load) in enumerate(loaders):
        found: list[DishonestError] = []
        before = len(tally.needless)
        if given.only != "modules":
            try:
                graphs(load, tally)
            except DishonestError as problem:
                found.append(problem)
        if given.only != "graphs":
            try:
                found += modules(load, tally)
            except DishonestError as problem:
                found.append(problem)
            except Exception as problem:  # the file does not load at all: others search for that
                tally.counts[f"module: {type(problem).__name__}"] += 1
            forget()
        if i % 20 == 19:
            print(f"{i + 1} specs, {time.monotonic() - begun:.0f} s, {sum(wrong.values())} wrong", flush=True)
        if given.needless:
            for line in tally.needless[before:]:
                print("needless:", line, flush=True)
        for problem in found:
            wrong[problem.kind] += 1
            first = str(problem).partition(": ")[0] + re.sub(r"\d+", "0", str(problem))[:60]
            if first not in kept or len(text) < len(kept[first]):
                if first not in kept:
                    print(f"{i}: {problem}\n{text}", flush=True)
                kept[first] = text
                if given.keep is not None:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    name = re.sub(r"\W+", "_", first)[:70]
                    (given.keep / f"{name}.arch").write_text(f"# {problem}\n{text}", encoding="utf-8")
    print(f"{time.monotonic() - begun:.0f} s; wrong: {dict(wrong)}")
    for what, times in sorted(tally.counts.items()):
        print(f"{times:6,}  {what}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
