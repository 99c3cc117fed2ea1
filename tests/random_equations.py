"""Random models of equations over [batch, time, width] and scores [batch, query, key], for what is proved of them.

`python -m tests.random_equations --count 2000 --seed 1` judges many: whatever is proved causal, later positions of the
input change nothing at earlier ones of the output. Where a leak is shown, something nearly always changes: not where
what is read cancels, as in the sum of what softmax gives. Steps of what is proved are those of the whole."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

import numpy as np
import torch
from decode_tools import differences, first_output, inputs_for, module_of

from archdsl.api import to_torch
from archdsl.dependence.causality import prove
from archdsl.diagnostics import ArchError
from archdsl.diagnostics.source import Source
from archdsl.frontend.modules import Loader
from archdsl.frontend.root import Elaborator
from archdsl.ir.graph import Model

TIME, WIDTH = 7, 4


class Equations:
    """The text of one model, drawn by number."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.sequences = ["x"]
        self.scores: list[str] = []
        self.masks: list[str] = []
        self.time = self.random.choice(("time", str(TIME)))
        self.ahead = self.random.choice((1, 1, 1, 2, 3))
        self.tame = self.random.random() < 0.7
        """Whether nearly all of it is meant to be causal: else little can be proved."""

    def text(self) -> str:
        self.bind(self.masks, self.mask())
        self.bind(self.scores, self.fresh_scores())
        for _ in range(self.random.randint(2, 9)):
            kind = self.random.random()
            if kind < 0.2:
                self.bind(self.masks, self.mask())
            elif kind < 0.7:
                self.bind(self.scores, self.changed_scores())
            else:
                self.bind(self.sequences, self.sequence())
        self.bind(self.sequences, self.attended())
        body = "\n  ".join(self.lines)
        y = self.sequences[-1]
        head = f"model m(x: [batch, {self.time}, {WIDTH}]) {{"
        return f"{head}\n  {body}\n  assert causal({y}, ahead: {self.ahead})\n  return {y}\n}}\n"

    def bind(self, names: list[str], expression: str) -> None:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        names.append(name)

    def one(self, *options: str) -> str:
        return self.random.choice(options)

    def late(self, names: list[str]) -> str:
        """One of them, often the last."""
        return names[-1] if self.random.random() < 0.7 else self.random.choice(names)

    # --- masks [query, key] ---

    def positions(self, axis: int) -> str:
        text = f"unsqueeze(indices({self.time}), axis: {axis})"
        if self.random.random() < 0.15:
            text = f"2 * {text}"
        shift = self.random.choice((0, 0, 0, 0, 1, -1, 2))
        return f"{text} + {shift}" if shift > 0 else f"{text} - {-shift}" if shift else text

    def mask(self) -> str:
        if self.masks and not self.tame and self.random.random() < 0.4:
            a, b = self.late(self.masks), self.random.choice(self.masks)
            return self.one(f"{a} & {b}", f"{a} & {b}", f"{a} | {b}", f"~{a}", f"{a} -> transpose(0, 1)")
        if self.tame and self.random.random() < 0.9:
            key, query = (f"unsqueeze(indices({self.time}), axis: {axis})" for axis in (0, 1))
            return self.one(f"{key} <= {query}", f"{key} < {query}", f"{query} - {key} >= 0", f"{key} <= {query} - 1")
        key, query = self.positions(0), self.positions(1)
        relation = self.random.choice(("<=", "<=", "<=", "<", "==", ">=", ">", "!="))
        return f"{query} >= {key}" if self.random.random() < 0.2 else f"{key} {relation} {query}"

    # --- scores [batch, query, key] ---

    def fresh_scores(self) -> str:
        a, b = self.random.choice(self.sequences), self.random.choice(self.sequences)
        return self.one(
            f'einsum("b q d, b k d -> b q k", {a}, {b})',
            f"matmul({a}, {b} -> transpose(1, 2))",
            f"unsqueeze(mean({a}, axis: -1), axis: 1) - unsqueeze(mean({b}, axis: -1), axis: 2)",
            f'einsum("b k d -> b k", {b}) -> unsqueeze(1) -> expand(1, {self.time})',
        )

    def changed_scores(self) -> str:
        if self.random.random() < 0.2:
            return self.fresh_scores()
        s, t, m = self.late(self.scores), self.random.choice(self.scores), self.late(self.masks)
        if self.tame and self.random.random() < 0.5:
            s = f"where({m}, {s}, 0)"
        fill = self.random.choice(("-inf", "-inf", "-inf", "0", "0", "-1e9", "1"))
        n, width = self.random.randint(0, 2), self.random.randint(1, 3)
        window = f"pad({n + width - 1}, axis: 2) -> pad({n}, {width - 1}, axis: 3)"
        axis = self.one("-1", "-1", "-1", "1")
        return self.one(
            f"where({m}, {s}, {fill})",
            f"where({m}, {s}, {fill})",
            f"where({m}, {s}, {fill}) -> softmax",
            f"where({m}, {s}, -inf) -> softmax",
            f"where({m}, {s}, -inf) -> softmax(axis: {axis})",
            f"{s} * cast(float)({m})",
            f"{s} + (where({m}, 0, -inf) -> cast(float))",
            f"{s} -> softmax(axis: {axis})",
            f"0.1 * {s}",
            f"{s} + {t}",
            f"{s} * {t}",
            f"minimum({s}, 3) -> exp",
            f"{s} -> relu",
            f"{s} -> sigmoid",
            f"maximum({s}, {t})",
            f"{s} / (1 + (abs({s}) -> sum(-1, keep: true)))",
            f"matmul({s}, {t})",
            f"{s} -> transpose(1, 2)",
            f"{s} -> cumsum(axis: {self.one('1', '2')})",
            f"unsqueeze({s}, axis: 1) -> {window} -> conv2d(1, kernel: [{n + width}, {n + width}]) -> squeeze(1)",
            f"unsqueeze({s}, axis: 1) -> {window} -> avg_pool2d({n + width}, stride: 1) -> squeeze(1)",
            f"{s} -> shift({self.one('1', '-1')}, axis: {self.one('1', '2')})",
            f"{s} -> dropout(0.1)",
        )

    # --- sequences [batch, time, width] ---

    def attended(self) -> str:
        s, x, y = self.late(self.scores), self.random.choice(self.sequences), self.random.choice(self.sequences)
        mask = self.one("causal", "causal", "full", "window(2)")
        if self.tame:
            s, mask = self.one(f"where({self.late(self.masks)}, {s}, {self.one('0', '-inf')})", s), "causal"
        return self.one(
            f'einsum("b q k, b k d -> b q d", {s}, {x})',
            f"matmul({s}, {x})",
            f'einsum("b k q, b k d -> b q d", {s}, {x})',
            f"{x} * unsqueeze(sum({s}, axis: -1), axis: -1)",
            f"{x} + unsqueeze(max({s}, axis: -1), axis: -1)",
            f"sdpa({x}, {y}, {y}, bias: {s}, mask: {mask})",
        )

    def sequence(self) -> str:
        if self.random.random() < 0.5:
            return self.attended()
        x = self.late(self.sequences)
        if self.tame:
            return self.one(f"{x} -> linear({WIDTH})", f"{x} -> shift", f"{x} -> cumsum(axis: 1)", f"{x} -> layernorm")
        return self.one(
            f"{x} -> linear({WIDTH})",
            f"{x} -> shift",
            f"{x} -> conv1d({WIDTH}, kernel: 2, padding: causal)",
            f"{x} -> conv1d({WIDTH}, kernel: 3, padding: same)",
            f"{x} -> layernorm",
            f"{x} + x",
            f"{x} -> cumsum(axis: 1)",
            f"{x} -> gru({WIDTH})",
            f"{x} -> flip(1)",
        )


def model_of(text: str) -> Model:
    return Elaborator(Loader(None).load(Source("m.arch", text), None)).build(None, {})


def leaks(model: Model, ahead: int, seed: int) -> bool | None:
    """Whether changing a position of the input changes the output more than `ahead - 1` positions before; None where
    the output is not finite."""
    torch.manual_seed(seed)
    module = to_torch(model).double().eval()
    x = torch.randn(2, TIME, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        before = module(x)
        for position in range(ahead, TIME):
            changed = x.clone()
            changed[:, position] += torch.randn(WIDTH, dtype=torch.float64)
            same = torch.isclose(module(changed), before, 1e-9, 1e-9, equal_nan=True)
            if not same.all(-1).all(0)[: position - ahead + 1].all():
                return True
    return False if before.isfinite().all() else None


def steps(model: Model) -> bool:
    """Whether the model has steps. Raises AssertionError if steps in onnxruntime give other numbers than the whole,
    where these are finite."""
    module = module_of(model)
    whole = first_output(module, inputs_for(model, {"batch": 2, "time": 8}))
    try:
        found = differences(model, module=module)
    except ArchError:  # not every way of pairing queries with keys has a step
        return False
    assert not np.isfinite(whole).all() or max(found.values()) < 1e-4, found
    return True


def judge(seed: int) -> str:
    """The verdict on one model: what the compiler says, and whether it leaks. Raises AssertionError where it is proved
    and leaks, or its steps differ."""
    equations = Equations(seed)
    text = equations.text()
    model = model_of(text)
    found = prove(model)
    said = "proved" if not found else "shown" if "can reach" in found[0].message else "not proved"
    seen = [leaks(model, equations.ahead, draw) for draw in range(1 if said == "proved" else 4)]
    assert not (said == "proved" and True in seen), f"proved, and it leaks:\n{text}"
    if said == "proved" and equations.ahead == 1 and equations.time == "time":
        said += ", with steps" if steps(model) else ", without steps"
    return f"{said}, {'leaks' if True in seen else 'not finite' if None in seen else 'no leak seen'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    verdicts: Counter[str] = Counter()
    wrong = 0
    for seed in range(given.seed, given.seed + given.count):
        try:
            verdicts[judge(seed)] += 1
        except Exception as problem:
            wrong += 1
            print(f"--- {seed}: {type(problem).__name__}: {problem}", flush=True)
    print(dict(verdicts), f"{wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
