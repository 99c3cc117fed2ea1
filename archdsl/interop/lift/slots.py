"""What the equations of a block or a model may be in the words of the library: a guess, to be tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from archdsl.diagnostics.source import Source
from archdsl.interop.lift.holes import binary, call, name, number
from archdsl.interop.lift.stages import (
    Constant,
    Input,
    Loop,
    Stage,
    Sum,
    Term,
    UnreadError,
    call_of,
    calls_in,
    is_linear,
    is_noisy,
    is_norm,
    parts_of,
    primitive_of,
    renamed,
    result_of,
    stages_between,
    unless,
    without_dropout,
    without_factor,
)
from archdsl.ir.dims import Bin, Num, expr_text, expr_value, shortest
from archdsl.ir.graph import Block, OpNode
from archdsl.ir.op import Primitive
from archdsl.ir.walk import ops_below
from archdsl.ops.position import Position
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE
from archdsl.syntax.parse import parse_expression

GATED = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}
"""The gated feed-forward blocks of the library by their activation."""
MOST_PERIOD = 16
"""Layers that take turns."""

Slots = dict[str, ast.Expr]


@dataclass(frozen=True)
class Known:
    """The blocks of a spec: as they are declared, and of each one that a model is made of."""

    blocks: Mapping[str, ast.BlockDecl]
    instances: Mapping[str, Block]


# --- blocks of the library --------------------------------------------------------------------------------------------


def fed_forward(block: ast.BlockDecl, _: Known) -> Iterator[list[ast.Expr]]:
    """Yield feed-forward blocks that a block may be, each with the dropout behind it."""
    with suppress(UnreadError):
        term, tail = without_dropout(result_of(block)[0])
        if not isinstance(term, Stage) or not is_linear(term.call):
            return
        hidden, noise = without_dropout(term.base)
        rate = parts_of(noise[0])[1].get("rate") if len(noise) == 1 else None
        match hidden:
            case Stage(Stage(Input(), up), act) if is_linear(up):
                yield [_mlp(up, act, rate), *tail]
            case Sum("*", left, right):
                for pair in ((left, right), (right, left)):
                    match pair:
                        case Stage(Stage(Input(), gate), act), Stage(Input(), up) if is_linear(gate):
                            yield [_gated(gate, act, rate), *tail]


def _mlp(up: ast.Expr, act: ast.Expr, rate: ast.Expr | None = None) -> ast.Expr:
    args = parts_of(up)[1]
    return call_of(
        "mlp", {"hidden": args["features"], "act": act, "bias": unless(args.get("bias"), "true"), "dropout": rate}
    )


def _gated(gate: ast.Expr, act: ast.Expr, rate: ast.Expr | None) -> ast.Expr:
    args = parts_of(gate)[1]
    block = GATED.get(parts_of(act)[0], "glu_mlp")
    given = {"hidden": args["features"], "act": act if block == "glu_mlp" else None}
    return call_of(block, {**given, "bias": unless(args.get("bias", name("true")), "false"), "dropout": rate})


def mixed(block: ast.BlockDecl, known: Known) -> Iterator[list[ast.Expr]]:
    """Yield mixtures of experts that a block may be: what it applies to the best of some scores, however these are
    computed."""
    stages = [*calls_in(block.body)]
    for stage in stages[:]:
        inner, args = parts_of(stage)
        if inner in known.blocks:
            stages += [renamed(s, args) for s in calls_in(known.blocks[inner].body)]
    applied = [a for s in stages if (p := primitive_of(s)) and _applies(p) and len(a := [*parts_of(s)[1].values()]) > 1]
    best = [a for s in stages if (p := primitive_of(s)) and p.indices and (a := [*parts_of(s)[1].values()])]
    if len(applied) != 1 or len(best) != 1:
        return
    given = {"experts": applied[0][1], "top_k": best[0][0], "expert": applied[0][0]}
    plain = call("softmax_router", ast.Arg("normalize", name("false"), span=NOWHERE))
    for router in (None, plain, name("sigmoid_router")):
        yield [call_of("moe", {**given, "router": router})]


def _applies(primitive: Primitive) -> bool:
    """Whether a primitive applies a block that it is given."""
    return any(h.kind == "block" for h in primitive.header.hypers or ())


def attended(block: ast.BlockDecl, known: Known) -> Iterator[list[ast.Expr]]:
    """Yield attention blocks that a block may be, each with the dropout behind it."""
    instance = known.instances.get(block.name)
    nodes = [n for n in instance.graph.nodes if isinstance(n, OpNode)] if instance is not None else []
    cores = [n for n in nodes if n.op.family == "attention"]
    linears = [n for n in nodes if n.op.family == "linear"]
    stages = [*calls_in(block.body)]
    norms = [*dict.fromkeys(s for s in stages if is_norm(s))]
    schemes = [*dict.fromkeys(s for s in stages if isinstance(primitive_of(s), Position))]
    attention = [s for s in stages if (p := primitive_of(s)) is not None and p.family == "attention"]
    alone = len(cores) == len(attention) == 1 and len(linears) in (2, 4) and len(norms) < 2 and len(schemes) < 2
    if not alone or instance is None or any(cores[0].tensor(i).rank != 4 for i in (0, 1)):
        return
    tail: list[ast.Expr] = []
    while stages and is_noisy(stages[-1]):
        tail.insert(0, stages.pop())
    q, k = (cores[0].tensor(i).shape for i in (0, 1))
    alike = expr_value(q[1].expr) == expr_value(k[1].expr)
    usual = expr_value(Bin("/", instance.graph.inputs[0].shape[-1].expr, q[1].expr))
    bias, out_bias = (bool(n.options["bias"]) for n in (linears[0], linears[-1]))
    for dim in {_written(shape[-1]): shape[-1] for shape in (k, q)}.values():
        args: dict[str, ast.Expr | None] = {
            "heads": _written(q[1]),
            "kv_heads": None if alike else _written(k[1]),
            "head_dim": None if expr_value(dim.expr) == usual else _written(dim),
            "bias": name("true") if bias else None,
            "out_bias": name("true" if out_bias else "false") if out_bias is not bias else None,
            "qk_norm": norms[0] if norms else None,
            "fused": name("true") if len(linears) == 2 else None,
            "position": schemes[0] if schemes else None,
        }
        if isinstance(attention[0], ast.Call):
            args |= {a.name: a.value for a in attention[0].args if a.name is not None}
        yield [call_of("mha" if alike else "gqa", args), *tail]


def attends(expr: ast.Expr, known: Known) -> bool:
    """Whether a block is one of attention."""
    function = parts_of(expr)[0]
    if function not in known.instances:
        return function in ("mha", "gqa")
    return any(op.family == "attention" for op in (n.op for n in ops_below(known.instances[function].graph)))


def _written(size: Num) -> ast.Expr:
    return parse_expression(Source("size", expr_text(shortest(size.expr, {}))))


# --- layers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Branch:
    """A branch of a residual: its calls, what its result is multiplied by, and the norms behind the sum."""

    calls: list[ast.Expr]
    factor: ast.Expr | None
    behind: list[ast.Expr]

    @property
    def rate(self) -> ast.Expr | None:
        """At which rate its result is dropped."""
        return next((parts_of(c)[1].get("rate") for c in self.calls if is_noisy(c)), None)

    @property
    def core(self) -> list[ast.Expr]:
        """Its calls without dropout, two linear layers and what stands between them as one."""
        calls = [c for c in self.calls if not is_noisy(c)]
        for i, (up, act, down) in enumerate(zip(calls, calls[1:], calls[2:], strict=False)):
            if is_linear(up) and is_linear(down):
                return [*calls[:i], _mlp(up, act), *calls[i + 3 :]]
        return calls


def _branches(term: Term) -> list[_Branch]:
    """The branches that are added to a block's input one after the other. Raises UnreadError."""
    behind: list[ast.Expr] = []
    while isinstance(term, Stage):
        behind.insert(0, term.call)
        term = term.base
    if isinstance(term, Input) and not behind:
        return []
    if isinstance(term, Sum) and term.op == "+":
        for skip, branch in ((term.left, term.right), (term.right, term.left)):
            own, factor = without_factor(branch)
            calls = stages_between(own, skip)
            if calls:
                return [*_branches(skip), _Branch(calls, factor, behind)]
    raise UnreadError


def _parallel(term: Term) -> list[_Branch]:
    """The two branches that a block adds to its input at once. Raises UnreadError."""
    todo, found, inputs = [term], list[_Branch](), 0
    while todo:
        match todo.pop(0):
            case Sum("+", left, right):
                todo = [left, right, *todo]
            case Input():
                inputs += 1
            case other:
                base: Term = other
                while isinstance(base, Stage):
                    base = base.base
                found.append(_Branch(stages_between(other, base), None, []))
    if inputs != 1 or len(found) != 2 or not all(b.calls for b in found):
        raise UnreadError
    return found


def layers(block: ast.BlockDecl, known: Known) -> Iterator[Slots]:
    """Yield slots that a layer's equations may be."""
    with suppress(UnreadError):
        term, _ = result_of(block)
        width = (*(block.header.tensors or ())[0].type.dims, None)[-2]
        renames = {width.id: name("width")} if isinstance(width, ast.Name) else {}
        for slots in (*_serial_slots(term), *_parallel_slots(term, known)):
            yield {k: renamed(v, renames) for k, v in slots.items()}


def _serial_slots(term: Term) -> Iterator[Slots]:
    with suppress(UnreadError):
        branches = _branches(term)
        first = branches[0] if branches else None
        same = first is not None and all(
            (b.rate, b.factor, b.behind) == (first.rate, first.factor, first.behind) for b in branches
        )
        if first is None or not same or len(branches) > 2:
            return
        cores = [b.core for b in branches]
        for at, around, placement in ((0, (), ""), (1, (0,), "pre"), (0, (1,), "branch"), (1, (0, 2), "sandwich")):
            if any(len(core) != len(around) + 1 for core in cores) or (around and first.behind):
                continue
            norms = [core[i] for core in cores for i in around] or first.behind
            if all(n == norms[0] for n in norms):
                factor = call_of("scale", {"branch": first.factor}) if first.factor is not None else None
                where = placement or ("post" if norms else "none")
                yield from _variants([c[at] for c in cores], norms[:1], where, first.rate, {"residual": factor})


def _parallel_slots(term: Term, known: Known) -> Iterator[Slots]:
    with suppress(UnreadError):
        one, two = sorted(_parallel(term), key=lambda b: not any(attends(c, known) for c in b.core))
        if len(one.core) == len(two.core) == 2 and one.core[0] == two.core[0] and one.rate == two.rate:
            for topology in (name("parallel"), call("parallel", ast.Arg("norms", number(2), span=NOWHERE))):
                yield from _variants([one.core[1], two.core[1]], one.core[:1], "pre", one.rate, {"topology": topology})


def _variants(
    cores: Sequence[ast.Expr],
    norm: Sequence[ast.Expr],
    placement: str,
    rate: ast.Expr | None,
    more: Mapping[str, ast.Expr | None],
) -> Iterator[Slots]:
    """The slots of a layer; where it drops numbers, its attention does so too, or does not."""
    function, args = parts_of(cores[0])
    mask, position = args.pop("mask", None), args.pop("position", None)
    for own in (args, args | {"dropout": number(0)}) if rate is not None else (args,):
        slots = {
            "attention": call_of(function, own),
            "mask": mask,
            "position": position,
            "ffn": cores[1] if len(cores) > 1 else None,
            "norm": norm[0] if norm else None,
            "placement": name(placement) if placement != "pre" else None,
            **more,
            "dropout": rate,
        }
        yield {k: v for k, v in slots.items() if v is not None}


# --- models -----------------------------------------------------------------------------------------------------------


def models(model: ast.ModelDecl) -> Iterator[Slots]:
    """Yield slots that a model's equations may be."""
    with suppress(UnreadError):
        term, lets = result_of(model)
        limits = [a.condition for a in model.body.items if isinstance(a, ast.Assert)]
        context = [c.right for c in limits if isinstance(c, ast.Binary) and c.op == "<="]
        head, term = _head(term)
        norm = None
        if isinstance(term, Stage):
            norm, term = term.call, term.base
        loops: list[Loop] = []
        while isinstance(term, Loop):
            loops.insert(0, term)
            term = term.base
        if not loops or len(context) != 1:
            return
        slots = _embedded(term, lets)
        slots = {"vocab": slots.pop("vocab"), "context": context[0]} | slots
        for periodic in (True, False):
            layers = _joined("+", [_turns(loop, periodic) for loop in loops])
            found = slots | {"blocks": layers, "norm": norm, "head": head}
            yield {k: v for k, v in found.items() if v is not None}


def _head(term: Term) -> tuple[ast.Expr | None, Term]:
    """The head of a model, and what it reads."""
    behind: list[tuple[str, ast.Expr]] = []
    at = term
    while True:
        match at:
            case Sum("*" | "/" as op, inner, Constant(factor)) | Sum("*" as op, Constant(factor), inner):
                behind.insert(0, (op, factor))
            case Stage(inner, act) if (p := primitive_of(act)) is not None and p.elementwise:
                behind.insert(0, ("", act))
            case _:
                break
        at = inner
    if not isinstance(at, Stage):
        return None, term
    function, args = parts_of(at.call)
    acts = [i for i, (op, _) in enumerate(behind) if not op]
    scales = behind[: acts[0] - 1] if acts else behind
    given: dict[str, ast.Expr | None] = {"scale": scales[0][1] if scales else None}
    given["softcap"] = behind[-1][1] if acts else None
    if is_linear(at.call):
        given["bias"] = unless(args.get("bias", name("true")), "false")
    elif isinstance(at.call, ast.Call) and function == "unembed":
        given = {"tied": name("true"), **given}
    else:
        return None, term
    return call_of("lm", given), at.base


def _embedded(term: Term, lets: Mapping[str, ast.Expr]) -> dict[str, Any]:
    """The slots of a model for what stands before its layers. Raises UnreadError."""
    words: dict[str, ast.Expr] = {}
    slots: dict[str, Any] = {"vocab": None, "width": None, "embedding": None, "position": None, "dropout": None}
    while not (isinstance(term, Stage) and isinstance(term.base, Input)):
        match term:
            case Stage(inner, act) if is_norm(act):
                words["norm"] = act
            case Stage(inner, act) if is_noisy(act):
                slots["dropout"] = parts_of(act)[1].get("rate")
            case Sum("+", inner, Constant(added)) | Sum("+", Constant(added), inner):
                first = added.head if isinstance(added, ast.Pipeline) else added
                offset = first.right if isinstance(first, ast.Binary) else None
                slots["position"] = call_of("learned", {"offset": offset})
            case Sum("*", inner, Constant(factor)) | Sum("*", Constant(factor), inner):
                words["scale"] = factor
            case _:
                raise UnreadError
        term = inner
    table = lets.get(term.call.id, term.call) if isinstance(term.call, ast.Name) else term.call
    if isinstance(table, ast.Call) and table.args and primitive_of(table) is None:  # shared(embedding(…))
        table = table.args[0].value
    _, args = parts_of(table)
    if (p := primitive_of(table)) is None or p.family != "embedding" or len(args) < 2:
        raise UnreadError
    slots["vocab"], slots["width"], *_ = args.values()
    slots["embedding"] = call_of("words", words) if words else None
    return slots


def _joined(op: str, parts: Sequence[ast.Expr]) -> ast.Expr:
    found, *rest = parts
    for part in rest:
        found = binary(op, found, part)
    return found


def _turns(loop: Loop, periodic: bool) -> ast.Expr:
    """A loop as a list of layers, which takes whole periods or any number of them. Raises UnreadError."""
    calls = [[*loop.calls]]
    periods = [
        int(n.right.text)
        for n in ast.walk(loop.calls)
        if isinstance(n, ast.Binary)
        and (n.op, n.left) == ("%", name(loop.index))
        and isinstance(n.right, ast.Number)
        and n.right.text.isdecimal()
    ]
    period = math.lcm(*periods) if periodic else 1
    if periodic and period <= MOST_PERIOD:
        calls = [[_at(c, loop.index, turn) for c in loop.calls] for turn in range(period)]
    if loop.index in ast.names_in(tuple(c for turn in calls for c in turn)):
        if len(loop.calls) > 1:
            raise UnreadError
        return ast.Comprehension(loop.calls[0], loop.index, loop.turns, span=NOWHERE)
    runs = [(len([*run]), one) for one, run in groupby(c for turn in calls for c in turn)]
    layers = _joined("+", [binary("*", number(n), c) if n > 1 else c for n, c in runs])
    count = binary("/", loop.turns, number(period)) if period > 1 else loop.turns
    return binary("*", count, layers)


def _at(tree: Any, index: str, turn: int) -> Any:
    """An expression of a loop's index in one of the turns that alternate: conditions on `i % p` are decided."""
    match tree:
        case ast.IfElse(
            condition=ast.Binary(
                op="==",
                left=ast.Binary(op="%", left=ast.Name(id=variable), right=ast.Number(text=period)),
                right=ast.Number(text=rest),
            )
        ) if variable == index and period.isdecimal() and rest.isdecimal():
            return _at(tree.then if turn % int(period) == int(rest) else tree.otherwise, index, turn)
    return ast.mapped(tree, lambda part: _at(part, index, turn))
