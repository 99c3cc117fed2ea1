"""Random models taken step by step, and what their numbers say of the plan.

A model goes from tokens to logits by one to three parts, statements of `mixing` and of this file. Its plan is judged by
what it means, not by what another part of the compiler makes of it: `Whole` computes every tensor of the unrolled graph
on a prefix, one op at a time; `Steps` takes the prefix in chunks and leaves to each op what the plan says that it has,
everything else being noise. Where both agree in every chunk, nothing was read that is not kept, computed anew or made
of positions. What is kept must be needed: noise in its place has to change what reads it. The emitted decoder must hold
those tensors, as many bytes as `archdsl estimate` says, and give what the whole forward gives.

Many more: python -m tests.random_specs.plans --rounds 100 --seed 1
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from random import Random
from typing import Any

import torch
from decode_tools import torch_differences
from torch import Tensor
from torch.func import functional_call

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.diagnostics import ArchError
from archdsl.estimates.memory import estimate
from archdsl.ir.dims import Num, evaluate, num
from archdsl.ir.graph import CallNode, Graph, Model, OpNode, Value, Weight
from archdsl.ir.masks import Mask
from archdsl.passes.flat_step import decode_step
from archdsl.passes.flatten import FlatGraph, FlatNode, FlatOp, FlatParam, FlatScan, unroll
from archdsl.passes.forms import NEW, Form
from archdsl.run.load import load_source
from archdsl.run.torch_decoder import TorchDecoder
from random_specs.mixing import DELAYED, WIDTH, Writer
from random_specs.reading import DecodePlan, plan

TOKENS = 97
LENGTH = 9
CHUNKS = (3, 1, 1, 4), (5, 1, 2, 1), (4, 3, 2), (3, 2, 1, 1, 1, 1)
ROWS = 2
TOLERANCE = 1e-6
Sizes = dict[str, int]


# --- the graph, one op at a time --------------------------------------------------------------------------------------


class Ops:
    """Computes the ops of an unrolled graph, each by a module of its own that was compiled for the whole sequence."""

    def __init__(self, model: Model, root: Any, weights: Mapping[str, Tensor]) -> None:
        self.model = model
        self.weights = weights
        self.blocks = {flat: unrolled.block for unrolled in below(root) for n in unrolled.nodes.values() for flat in n}
        self.modules: dict[tuple[int, ...], tuple[Any, tuple[Value, ...]]] = {}
        self.given: Mapping[Value, Tensor] = {}
        """The model's inputs, whose sizes are those of the sequence."""

    def apply(self, node: FlatNode, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of a node for these inputs, None where it reads a number. A mask of the algebra, which
        attention may never hold as a tensor, is what it is made of."""
        if isinstance(node, FlatParam):
            return [self.weights[node.weight.path]]
        if isinstance(node, FlatScan):
            return self.scan(node, {v: x for v, x in zip(node.inputs, inputs, strict=True) if x is not None})
        if node.node.op.name == "mask":
            return [(node, inputs)]
        masks = [(i, *x) for i, x in enumerate(inputs) if isinstance(x, tuple)]
        key = (id(node.node), *(id(mask.node) for _, mask, _ in masks))
        if key not in self.modules:
            made = [replace(mask.node, outputs=(node.node.tensor(i),)) for i, mask, _ in masks]
            self.modules[key] = self.compiled(node, made)
        module, read = self.modules[key]
        named = dict(zip(node.node.inputs, inputs, strict=True))
        for _, mask, given in masks:
            named |= dict(zip(mask.node.inputs, given, strict=True))
        tensors = [named[v] if v in named else self.given[v] for v in read]
        own = {k: self.weights[f"{node.path}.{k.partition('.')[2]}"] for k in module.state_dict()}
        result = functional_call(module, own, tuple(tensors))
        return [result] if isinstance(result, Tensor) else list(result)

    def compiled(self, node: FlatOp, masks: Sequence[OpNode]) -> tuple[Any, tuple[Value, ...]]:
        """The module of one op, and what it takes: the model's inputs, then those of the op and of its mask."""
        op = replace(node.node, instance=None, handle=None, weights=tuple(w.weight for w in node.weights.values()))
        ops = [*masks, op]
        made = {v for o in ops for v in o.outputs}
        inputs = [v for _, v in self.model.inputs] + [v for o in ops for v in o.inputs]
        read = tuple(dict.fromkeys(v for v in inputs if isinstance(v, Value) and v not in made))
        around = self.blocks[node]
        numbers = {k: n.expr for k, n in around.axes.items()} | {
            k: n.expr for k, n in around.hypers.items() if isinstance(n, Num)
        }
        known: dict[int, Any] = {}

        def plain(x: Any) -> Any:
            """What speaks of the block's names without them."""
            if isinstance(x, Num):
                return num(x.value) if x.static else x.outward(around.local).outward(numbers)
            if id(x) not in known:
                known[id(x)] = made_plain(x)
            return known[id(x)]

        def made_plain(x: Any) -> Any:
            if isinstance(x, tuple):
                return tuple(map(plain, x))
            if isinstance(x, Mapping):
                return {k: plain(v) for k, v in x.items()}
            if isinstance(x, CallNode):  # of an expert
                own = {**x.block.hypers, **x.block.axes, "expert_count": x.block.copies}
                return replace(x, bind={k: plain(own[k]).expr if k in own else e for k, e in x.bind.items()})
            if isinstance(x, Value | Mask | Weight | OpNode):
                return replace(x, **{f.name: plain(getattr(x, f.name)) for f in fields(x)})
            return x

        order = {v: i for i, v in enumerate((*read, *(v for o in ops for v in o.outputs)))}
        text = repr([described(o, order) for o in ops])
        if text in MODULES and not op.blocks:
            return MODULES[text], read
        inner = tuple(map(plain, ops))
        block = replace(
            around,
            graph=Graph(plain(read), inner, inner[-1].outputs),
            tensor_names=tuple(f"x{i}" for i, _ in enumerate(read)),
            result_names=tuple(f"y{i}" for i, _ in enumerate(op.outputs)),
            contexts=(),
            instances=(),
            local={},
            asserts=(),
            decisions=(),
            hypers={},
            axes={},
        )
        MODULES[text] = module = load_source(emit(replace(self.model, block=block)))().double().eval()
        return module, read

    def scan(self, node: FlatScan, given: Mapping[Value, Tensor]) -> list[Tensor]:
        """Take a recurrence step by step."""
        steps = [given[v] for v in node.sequences]
        start = node.body.inputs[: len(node.starts)]
        carried = []
        for own, value in zip(start, node.starts, strict=True):
            shape = [int(evaluate(d.value, self.sizes)) for d in own.shape]
            first = given[value] if isinstance(value, Value) else torch.tensor(float(value.value))
            carried.append(first.to(torch.float64).expand(shape) if own.is_float else first.expand(shape))
        stacked: list[list[Tensor]] = []
        for i in range(steps[0].size(1)):
            made = {**given, **dict(zip(node.body.inputs, [*carried, *(s[:, i] for s in steps)], strict=True))}
            self.graph(node.body, made)
            results = [made[v] for v in node.body.outputs]
            carried = results[: len(carried)]
            stacked.append(results[len(carried) :])
        return [torch.stack(rows, 1) for rows in zip(*stacked, strict=True)] + carried[: len(node.finals)]

    def graph(self, graph: FlatGraph, made: dict[Value, Tensor]) -> None:
        """Compute all nodes of a graph, beside what is made."""
        for node in graph.nodes:
            inputs = [made[v] if isinstance(v, Value) else None for v in node.inputs]
            made.update(zip(node.outputs, self.apply(node, inputs), strict=True))

    @property
    def sizes(self) -> Sizes:
        return {
            s.name: self.given[v].size(a)
            for v in self.given
            for a, d in enumerate(v.shape)
            for s in getattr(d.value, "symbols", ())
        }


MODULES: dict[str, Any] = {}
"""The modules of ops, by what these are."""


def described(op: OpNode, order: Mapping[Value, int]) -> Any:
    """What an op is, whoever applies it: two that are described alike are one module."""
    options = {k: str(v) for k, v in op.options.items()}
    inputs = [(order[v], v.dtype) if isinstance(v, Value) else str(v) for v in op.inputs]
    shapes = [[str(d) for d in v.shape] for v in (*(v for v in op.inputs if isinstance(v, Value)), *op.outputs)]
    weights = [(w.name, [str(d) for d in w.shape]) for w in op.weights]
    return op.name, op.op.name, options, inputs, shapes, weights, [v.dtype for v in op.outputs]


def below(root: Any) -> Iterator[Any]:
    """A call of a block and all calls in it."""
    yield root
    for calls in (*root.calls.values(), *root.applied.values()):
        for call in calls:
            yield from below(call)


# --- a plan, taken for what it says -----------------------------------------------------------------------------------


def whole(ops: Ops, flat: FlatGraph, given: Mapping[Value, Tensor]) -> dict[Value, Any]:
    """Every tensor of a graph, of the whole sequence that is given."""
    ops.given, made = given, dict(given)
    ops.graph(flat, made)
    return made


def rows(x: Tensor, form: Form, first: int, length: int) -> Tensor:
    """Which numbers of a tensor of `length` positions a step has that begins at `first`: of an axis of which it has the
    new positions, these alone, those of all rows one after another or not."""
    had = torch.ones(x.shape, dtype=torch.bool)
    for axis, part in enumerate(form):
        if part == NEW:
            at = torch.arange(x.size(axis)) % length >= first
            had &= at.view(*(-1 if i == axis else 1 for i in range(x.dim())))
    return had


def noise(x: Tensor) -> Tensor:
    """Other numbers of the same type, no larger than the largest by much."""
    if x.is_floating_point():
        finite = x[x.isfinite()]
        return torch.randn(x.shape, dtype=x.dtype) * (1 + (finite.abs().max() if finite.numel() else 0))
    if x.dtype == torch.bool:
        return torch.rand(x.shape) < 0.5
    return torch.randint(0, int(x.max()) + 1 if x.numel() else 1, x.shape)


def close(a: Tensor, b: Tensor) -> bool:
    if a.dtype in (torch.bool, torch.int64):
        return bool((a == b).all())
    return torch.allclose(
        a, b, TOLERANCE, TOLERANCE * max(1.0, float(b[b.isfinite()].abs().amax() if b.isfinite().any() else 0)), True
    )


class Steps:
    """Takes a sequence in chunks, with what the plan says that there is and noise in place of all else."""

    def __init__(self, ops: Ops, steps: DecodePlan, once: Mapping[Value, Tensor], spoilt: Value | None = None) -> None:
        self.ops = ops
        self.plan = steps
        self.once = once
        self.spoilt = spoilt
        """A cache in which noise is found where earlier positions are kept."""
        self.kept: dict[Value, Tensor] = {}
        """Of each cache all positions so far."""
        self.read: dict[tuple[FlatNode, int], tuple[Tensor, int]] = {}
        """All that a recurrence was given so far. Whether its states stand for it, emitted code shows."""

    def step(self, given: Mapping[Value, Tensor], first: int) -> dict[Value, Any]:
        """Return the tensors of a step, for all positions: where it has none they are noise."""
        self.ops.given, self.first = given, first
        self.length = next(
            given[v].size(a) for v, f in self.plan.forms.items() if v in given for a, p in enumerate(f) if p
        )
        self.made: dict[Value, Any] = {}
        for value in self.plan.step.inputs:
            self.have(value, given[value] if value in given else self.once[value])
        for node in self.plan.step.nodes:
            outputs = self.apply(node)
            for value, x in zip(node.outputs, outputs, strict=True):
                self.have(value, x)
        return self.made

    def have(self, value: Value, x: Any) -> None:
        """Note a tensor as a step has it."""
        form = self.plan.forms.get(value)
        if form is None or isinstance(x, tuple):
            self.made[value] = x
            return
        had = rows(x, form, self.first, self.length)
        x = torch.where(had, x, noise(x))
        cache = self.plan.caches.get(value)
        if cache is not None:
            before = self.kept.get(value)
            if before is not None:
                before = noise(before) if value is self.spoilt else before
                x = torch.cat((before, x.narrow(cache.axis, self.first, self.length - self.first)), cache.axis)
            self.kept[value] = x
        self.made[value] = x

    def apply(self, node: FlatNode) -> list[Any]:
        inputs = [self.input(node, i, v) for i, v in enumerate(node.inputs)]
        if node in self.plan.latents and isinstance(node, FlatOp):
            inputs = self.unfolded(node, inputs)
        return self.ops.apply(node, inputs)

    def input(self, node: FlatNode, i: int, value: Any) -> Any:
        """An input in the form in which the node is said to need it."""
        if not isinstance(value, Value):
            return None
        x, form = self.made[value], self.plan.needs.get((node, i))
        if form is None or isinstance(x, tuple):
            return x
        x = torch.where(rows(x, form, self.first, self.length), x, noise(x))
        carried = self.plan.carries.get(node)
        if carried is not None:
            for axis, part in enumerate(form):
                if part == NEW:
                    x = x.narrow(axis, self.first, self.length - self.first)
                    if (node, i) in self.read:
                        x = torch.cat((self.read[node, i][0], x), axis)
                    self.read[node, i] = x, axis
        return x

    def unfolded(self, node: FlatOp, inputs: Sequence[Any]) -> list[Any]:
        """The inputs with keys and values computed for all positions from what is kept in their place."""
        latent = self.plan.latents[node]
        made = {**self.made, **{v: self.kept[v] for v in latent.base}}
        self.ops.graph(FlatGraph((), latent.chain, ()), made)
        kept = node.node.op.cached_inputs(node.node)
        return [made[v] if i in kept else x for i, (v, x) in enumerate(zip(node.inputs, inputs, strict=True))]


# --- models -----------------------------------------------------------------------------------------------------------


class PlanWriter(Writer):
    """Writes parts of which most have a step; `m` [batch, frames, 4] depends on no token."""

    def statements(self) -> tuple[str, bool]:
        kinds = [
            (30, self.backwards),
            (3, self.anywhere),
            (6, self.join),
            (8, lambda: self.attention(self.causal())),
            (3, self.best),
            (8, self.sdpa),
            (30, self.kept),
            (14, self.positions),
        ]
        _, make = self.random.choices(kinds, [weight for weight, _ in kinds])[0]
        return make(), True

    def kept(self) -> str:
        """What a decoder keeps otherwise than as keys and values."""
        n, heads = self.n(), "-> linear(4) -> split_heads(2)"
        mask = self.one("causal", "causal & window(2)", "causal & window(3)", "causal & chunked(3)")
        qk = f"q = v {heads}\nk = u {heads}"
        own = (
            f"param own: [2, {n}, 2] = normal(1)\n{qk}\nk = concat(own -> unsqueeze(0) -> expand(0, batch), k, axis: 2)"
        )
        scores = 'p = where(J <= I, einsum("b q d, b k d -> b q k", v, u), -inf)'
        return self.one(
            f"y = u -> mla(heads: 4, kv_rank: 2, nope_dim: 4, rope_dim: 2, v_dim: 4, mask: {mask}, position: rope)",
            f"y = u -> gqa(heads: 8, kv_heads: {self.one('1', '2', '8')}, head_dim: 8, mask: {mask})",
            f"y = u -> mha(heads: 2, fused: true, mask: {mask}, position: {self.one('rope', 'alibi')})",
            f"{qk}\ny = merge_heads(sdpa(q, k, k, mask: {mask}) + sdpa(q, -k, k, mask: causal))",
            f"{qk}\ny = (sdpa(q, k, k, mask: {mask}) -> merge_heads) + cumsum(k -> merge_heads, axis: 1)",
            f"q = u {heads}\nk = m {heads}\ny = sdpa(q, k, k) -> merge_heads",
            f"d = cumsum(ids == 0, axis: 1)\ny = u -> mha(heads: 2, mask: {mask} & same(d))",
            "k = u -> linear(32) -> split_heads(4)\nq = v -> linear(32) -> split_heads(4)\n"
            f"y = (sdpa(q, k, k, mask: {mask}) - sdpa(-q, k, k, mask: causal)) -> merge_heads -> linear(4)",
            f"{own}\ny = sdpa(q, k, k, mask: {mask}) -> merge_heads",
            f"{own}\ny = sdpa(q, rmsnorm(k), k, mask: ({mask}) | prefix({n})) -> merge_heads",
            f"{own}\nJ1 = indices(L + {n})\n"
            f"y = merge_heads(matmul(softmax(where(J1 <= I + {n}, matmul(q, transpose(k, 2, 3)), -inf)), k))",
            "y = u * mean(m, 1, keep: true)",
            "h = mean(m, 1)\ny = scan h: [batch, 4] = h for a in u { h = tanh(h + a)  emit h }",
            "h = mean(m, 1)\ny = linear_recurrence(sigmoid(u), v, h)",
            "k = u -> linear(4)\ny = u\n"
            "for i in 2 { y = y + matmul(softmax(where(J <= I, matmul(y, transpose(k, 1, 2)), -inf)), k) }",
            f"{scores}\ny = softmax(p - (where(J < I, relu(where(J <= I, p, 0)), 0) -> shift({n}, axis: 1) -> "
            "cumsum(axis: 1))) -> matmul(u)",
            f"{scores}\ny = matmul(p -> argmax -> one_hot(L) -> cast(float), u -> linear(4))",
            f"{scores}\ny = matmul((u -> linear(1) -> expand(-1, L)) * softmax(p), v)",
            f"{scores}\ny = v * gather(p, argmax(p, keep: true))",
            "y = u -> flatten(0, 1) -> linear(8) -> gelu -> linear(4) -> unflatten(0, batch, L)",
            'y = (u -> flatten(0, 1) -> tanh) -> rearrange("(b t) d -> b t d", t: L) -> shift',
            "y = u -> moe(experts: 4, top_k: 2, expert: swiglu(hidden: 4))",
            "q = u -> split_heads(2)\ny = linear_attention(q, q, q, log_decay: log_sigmoid(q[..., 0])) -> merge_heads",
            "q = u -> split_heads(2)\ny = delta_rule(q, l2_normalize(q), q, tanh(q[..., 0])) -> merge_heads",
            f"y = u -> conv1d(4, kernel: {n + 1}, padding: causal) -> shift({n}) -> gru(4)",
            f"y = u * unsqueeze(cast(shift(ids > 2, {n}), float), 2)",
            "y = u -> shift(2, fill: 0.5) -> lstm(4) -> cumsum(axis: 1)",
        )

    def positions(self) -> str:
        """What is made of positions."""
        n = self.n()
        return self.one(
            f"y = u * cos(cast(I, float) * 0.{n})",
            "y = u + (one_hot(indices(L) % 4, 4) -> cast(float))",
            "y = u / cumsum(ones(batch, L, 1), axis: 1)",
            f"r = cast(I % {n + 1} == 0, float) -> unsqueeze(0) -> expand(0, batch)\ny = concat(u, r) -> linear(4)",
            "y = shift(cast(I, float) -> unsqueeze(0) -> expand(0, batch) -> expand(2, 4), axis: 1) + u",
            "y = scan h: [batch, 1] = 0 for one in ones(batch, L, 1) { h = h * 0.5 + one  emit h }\ny = y * u",
            f"p = (indices(L) % {n + 2}) -> unsqueeze(0) -> expand(0, batch) -> embedding(8, 4)\ny = u + p",
            "k = u -> linear(4)\np = cast(I, float) -> unsqueeze(0) -> expand(0, batch) -> expand(-1, 4)\n"
            "y = sdpa(k, cos(p), k, mask: causal)",
            f"y = u + matmul(where(J <= I, exp(-0.{n} * (I - J)), 0) -> cast(float), v)",
            f"b = where(J <= I, 0.{n} * cos(I + J), -inf) -> cast(float) -> unsqueeze(0) -> unsqueeze(0)\n"
            "q = v -> linear(4) -> split_heads(2)\nk = u -> linear(4) -> split_heads(2)\n"
            "y = sdpa(q, k, k, b) -> merge_heads",
            f"y = where(I < {n}, u, v)",
        )

    def block(self, name: str) -> str:
        """A part as a block."""
        names = {"L": "time", "I": "unsqueeze(indices(time), 1)", "J": "unsqueeze(indices(time), 0)"}
        lines = re.sub(r"\b[LIJ]\b", lambda found: names[found[0]], self.statements()[0]).split("\n")
        inputs = ", ".join(f"{x}: [batch, time, {WIDTH}]" for x in "uv")
        inputs += f", ids: int[batch, time], m: [batch, frames, {WIDTH}]"
        body = "\n  ".join([*lines, "return y -> cast(float)"])
        return f"block {name}({inputs}) -> [batch, time, {WIDTH}] {{\n  {body}\n}}"


def spec(random: Random, blocks: Sequence[str]) -> str:
    """A model from tokens to logits by these blocks, `a` and so on, each of which reads what others made."""
    lines = [f"x = tokens -> embedding({TOKENS}, {WIDTH})", "ids = cast(tokens, int) % 5"]
    for i, _ in enumerate(blocks):
        u, v = (random.choice(["x", *(f"y{j}" for j in range(i))][-3:]) for _ in range(2))
        name = "abc"[i]
        if random.randrange(100) < 20:
            lines.append(f"y{i} = {u}\n  for f in 2 * {name} {{ y{i} = f(y{i}, {v}, ids, memory) }}")
        else:
            lines.append(f"y{i} = {name}({u}, {v}, ids, memory)")
    last = " + ".join(f"y{i}" for i, _ in enumerate(blocks))
    inputs = f"tokens: token[batch, time], memory: [batch, frames, {WIDTH}]"
    body = "\n  ".join([*lines, f"return ({last}) -> linear({TOKENS})"])
    return "\n".join([DELAYED, *blocks, f"model m({inputs}) {{\n  {body}\n}}\n"])


def behind(text: str, n: int) -> str:
    """The same blocks, which are given n places of weights in front of those of the sequence."""
    made = f"tokens -> embedding({TOKENS}, {WIDTH})"
    assert f"x = {made}\n" in text
    joined = f"param own: [1, {n}, {WIDTH}] = normal(1)\n  x = concat(own -> expand(0, batch), {made}, axis: 1)\n"
    text = text.replace(f"x = {made}\n", joined)
    text = text.replace("cast(tokens, int) % 5", f"(cast(tokens, int) % 5) -> pad({n}, axis: 1)")
    return re.sub(r"return \((.*)\) -> linear", rf"return (\1)[:, {n}:] -> linear", text)


# --- judged -----------------------------------------------------------------------------------------------------------


class WrongPlanError(AssertionError):
    """A plan that does not hold."""


def inputs(model: Model) -> dict[str, Tensor]:
    """Tokens, no two of a row alike: where scores are equal, rounding chooses. As many frames as positions: so many has
    `archdsl estimate`, too."""
    tokens = torch.stack([torch.randperm(TOKENS)[:LENGTH] for _ in range(ROWS)])
    memory = torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64)
    return {name: tokens if value.dtype == "token" else memory for name, value in model.inputs}


def judge(text: str, random: Random, counts: Counter[str], emitted: bool) -> None:
    """Hold the plan of a model against its numbers. Raises WrongPlanError."""
    model = archdsl.load(text=text)
    step, reason = decode_step(model)
    steps = None if step is None else plan(model)
    if steps is None:
        assert reason is not None
        counts["refused"] += 1
        counts["not proved causal"] += reason.startswith("`m` cannot be decoded step by step")
        if reason.endswith(BESIDE):
            counts["read beside"] += 1
            demand_reader(model, reason.split("`")[1])
        return
    counts["planned"] += 1
    tensors = inputs(model)
    module: Any = None
    if emitted:
        try:
            module = load_source(emit(model, Extras(frozenset({"generate"}))))().double().eval()
        except ArchError as problem:
            if problem.diagnostics[0].code != "E0504":
                raise
            counts["not emitted"] += 1
    if module is None:
        module = load_source(emit(model))().double().eval()
    for weight in module.parameters():
        torch.nn.init.normal_(weight, 0, 0.5)
    with torch.no_grad():
        output = module(*tensors.values())
        if not output.isfinite().all():
            counts["no number"] += 1
            return
        flat, root = unroll(model)
        chunks = random.choice(CHUNKS)
        wanted = replayed(Ops(model, root, module.state_dict()), steps, flat, tensors, chunks, counts)
        if not close(wanted[flat.outputs[0]], output):
            raise WrongPlanError("the unrolled graph does not compute what the module does")
        if emitted and not hasattr(module, "generate"):
            return
        if emitted:
            counts["emitted"] += 1
            decoded(steps, module, tensors, chunks, wanted, counts)


BESIDE = ("it reads positions beside its own", "it reads a position that is always the same one")


def demand_reader(model: Model, name: str) -> None:
    """Raise WrongPlanError unless some op of that name reads earlier positions of its inputs."""
    module = load_source(emit(model))().double().eval()
    flat, root = unroll(model)
    ops = Ops(model, root, module.state_dict())
    with torch.no_grad():
        made = whole(ops, flat, {v: x for (_, v), x in zip(model.inputs, inputs(model).values(), strict=True)})
        for node in flat.nodes:
            if isinstance(node, FlatOp) and node.node.op.name == name:
                given = [
                    torch.where(rows(made[v], new(v), LENGTH // 2, LENGTH), made[v], noise(made[v]))
                    if isinstance(v, Value)
                    else None
                    for v in node.inputs
                ]
                for value, x in zip(node.outputs, ops.apply(node, given), strict=True):
                    if not same_rows(x, made[value], new(value), LENGTH // 2, LENGTH):
                        return
    raise WrongPlanError(f"`{name}` is refused, but reads no earlier position")


def new(value: Value) -> Form:
    """The form of a tensor of new positions alone."""
    return tuple(NEW if "time" in str(d) else "" for d in value.shape)


def replayed(
    ops: Ops,
    steps: DecodePlan,
    flat: FlatGraph,
    tensors: Mapping[str, Tensor],
    chunks: Sequence[int],
    counts: Counter[str],
) -> dict[Value, Any]:
    """Take the sequence as the plan says; after each chunk every tensor must be what it is of the whole so far. Return
    those of the whole sequence."""
    given = {v: tensors[n] for n, v in steps.model.inputs}
    ops.given, once = given, {v: given[v] for v in steps.before.inputs}
    ops.graph(steps.before, once)
    taken, at, wanted = Steps(ops, steps, once), 0, dict[Value, Any]()
    for count in chunks:
        first, at = at, at + count
        given = {v: tensors[n][:, :at] if v.dtype == "token" else tensors[n] for n, v in steps.model.inputs}
        wanted = whole(ops, flat, given)
        before = {**taken.kept}
        made = taken.step(given, first)
        for node in steps.step.nodes:
            for value in node.outputs:
                form = steps.forms.get(value)
                if form is not None and value in steps.positional:
                    raise WrongPlanError(f"{named(node)} is made of positions alone, and is not")
                if isinstance(made[value], Tensor) and not same_rows(made[value], wanted[value], form, first, at):
                    raise WrongPlanError(f"positions {first} to {at}: {named(node)}, of form {form}")
        for value, x in taken.kept.items():
            if not close(x, wanted[value]):
                raise WrongPlanError(f"positions {first} to {at}: {value} is not what is kept")
    for value in taken.kept:  # of the last chunk
        spoilt = Steps(ops, steps, once, value)
        spoilt.kept, spoilt.read = {**before}, {k: (x.narrow(a, 0, first), a) for k, (x, a) in taken.read.items()}
        noisy = spoilt.step(given, first)
        differ = any(
            isinstance(noisy[v], Tensor) and not same_rows(noisy[v], wanted[v], steps.forms.get(v), first, at)
            for n in steps.step.nodes
            for v in n.outputs
            if v is not value
        )
        counts["caches"] += 1
        counts["caches that change nothing"] += not differ
    return wanted


def same_rows(x: Tensor, y: Tensor, form: Form | None, first: int, length: int) -> bool:
    """Whether two tensors are equal where a step has them."""
    had = rows(x, form or (), first, length)
    return close(x.where(had, 0), y.where(had, 0))


def named(node: FlatNode) -> str:
    return f"{node.node.op.name} at {node.node.span}" if isinstance(node, FlatOp) else type(node).__name__


def decoded(
    steps: DecodePlan,
    module: Any,
    tensors: dict[str, Tensor],
    chunks: Sequence[int],
    wanted: Mapping[Value, Any],
    counts: Counter[str],
) -> None:
    """The emitted decoder gives what the whole gives, in chunks and for rows of two lengths; it holds the tensors that
    the plan names, the same whatever the chunks, and as many bytes as are estimated."""
    model = steps.model
    apart = torch_differences(model, chunks, module, tensors)
    counts["of two lengths"] += "left" in apart
    wrong = {how: d for how, d in apart.items() if not d < TOLERANCE}
    if wrong:
        raise WrongPlanError(f"emitted steps are not the whole: {wrong}")
    said = estimate(model, batch=ROWS, seq=LENGTH, step=False)
    rings = {min(k.window, LENGTH) + 1 for k in said.kept if k.window is not None} - {LENGTH}
    held = [entries(steps, module, tensors, c, rings) for c in (chunks, (4, 1, 1, 3), (LENGTH,))]
    for found in held[1:]:
        if len(found) != len(held[0]) or not all(map(close, found, held[0])):
            raise WrongPlanError("what is kept depends on the chunks")
    # Tables of positions and products of weights are kept, too, but are the same whatever the tokens are.
    others = entries(steps, module, inputs(model), chunks, rings)
    planned = {tuple(wanted[v].shape) for v in (*steps.caches, *steps.before.outputs) if isinstance(wanted[v], Tensor)}
    sizes = {"batch": ROWS, "time": LENGTH, "frames": LENGTH}
    planned |= {tuple(int(evaluate(d.value, sizes)) for d in s.shape) for c in steps.carries.values() for s in c.states}
    made = [x for x, y in zip(held[0], others, strict=True) if not torch.equal(x, y) or tuple(x.shape) in planned]
    size = sum(x.numel() * (4 if x.is_floating_point() else x.element_size()) for x in made)
    if size not in (said.decode_state, said.decode_state_windowed):
        raise WrongPlanError(f"{size} bytes are kept, not {said.decode_state} or {said.decode_state_windowed}")
    counts["with a ring"] += size != said.decode_state


def entries(
    steps: DecodePlan, module: Any, tensors: dict[str, Tensor], chunks: Sequence[int], rings: Collection[int]
) -> list[Tensor]:
    """What the emitted decoder holds at the end of the sequence; of a ring of the last positions without the slot that
    takes what is not kept."""
    decoder, caches = TorchDecoder(steps.model, module), list[Any]()
    make = decoder.cache
    decoder.cache = lambda *given, **options: caches.append(make(*given, **options)) or caches[-1]
    decoder.run(tensors, chunks)
    found = [x for group in caches[0].entries for x in group]
    return [x[..., :-1, :] if x.dim() > 2 and x.size(-2) in rings else x for x in found]


EMITTED = 3
"""Of so many models one is emitted with its steps."""


def judged(models: int, seed: int) -> Counter[str]:
    """Judge so many models; how many were planned, refused, and so on."""
    random, counts = Random(seed), Counter[str]()
    torch.manual_seed(seed)
    for i in range(models):
        writer = PlanWriter(random, fixed=False)
        text = spec(random, [writer.block(name) for name in "abc"[: random.choice((1, 1, 2, 3))]])
        try:
            judge(text, random, counts, emitted=i % EMITTED == 0)
        except Exception as problem:
            problem.add_note(text)
            raise
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold the plans of decoding of random models against their numbers.")
    parser.add_argument("--rounds", type=int, default=20, help="of 100 models each")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # tensors are tiny
    for seed in range(asked.seed, asked.seed + asked.rounds):
        print(seed, dict(judged(100, seed)), flush=True)


if __name__ == "__main__":
    main()
