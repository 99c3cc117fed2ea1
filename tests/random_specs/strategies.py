"""Hypothesis strategies whose every draw is a spec that the compiler must accept.

A spec is text, as a user would write it: blocks of slots and of equations, then a model. Sizes are tiny. Three in five
are meant to see no later place, so that there is something to prove and to decode; nothing depends on that: the
compiler says what it can prove, and the module what is true.

Half of the features are *hostile*: names of what is emitted, values without a name, blocks that are written into their
callers, numbers that differ by layer, sizes that are rounded, messages and comments of any text, loops in loops."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st

from random_specs.choices import Chooser, assertion
from random_specs.equations import Body, Names, Template
from random_specs.layers import layer
from random_specs.names import renamed
from random_specs.numbers import DEPTHS, rounded
from random_specs.slots import INITS, NORMS

HOSTILE = True
"""Whether the specs of `make test` are hostile."""

WIDTHS = (8, 12, 16)
VOCAB = (11, 16, 23)
CONTEXT = 16
FRAMES = 6
"""Features of a frame."""


@dataclass
class Fields:
    """What a model declares besides its slots: hyper-parameters with their values, and constants."""

    names: Names
    hypers: list[str] = field(default_factory=list)
    lets: list[str] = field(default_factory=list)

    def hyper(self, value: object) -> str:
        name = self.names.fresh("field")
        self.hypers.append(f"{name} = {value}")
        return name

    def let(self, value: str) -> str:
        name = self.names.fresh("let")
        self.lets.append(f"let {name} = {value}")
        return name

    def number(self, c: Chooser, values: Sequence[int]) -> str:
        """A hyper-parameter, a constant, or the number itself."""
        value = c.one(values)
        how = c.one(["itself", "hyper", "let"]) if c.hostile else "itself"
        return str(value) if how == "itself" else self.hyper(value) if how == "hyper" else self.let(str(value))

    def call(self, c: Chooser, block: Template, depth: str = "") -> str:
        """The block with its hyper-parameters."""
        if not block.args:
            return block.name
        depth = depth or str(c.whole(0, DEPTHS - 1))
        return block.given(depth, self.number(c, (2, 3, 4)), self.number(c, (2, 4, 8)))

    def header(self, *first: str) -> str:
        return f"({', '.join([*first, *self.hypers])})"


def stack(c: Chooser, width: int, names: Names, fields: Fields, cross: bool = False) -> str:
    """A list of layers."""
    a = layer(c, width, names, cross)
    kind = c.one(["one", "times", "sum", "shared", "list", "pattern"])
    if a.args and c.chance(70):
        return by_depth(c, a, names, fields)
    first = fields.call(c, a)
    if kind == "one":
        return f"1 * {first}"
    if kind == "times":
        return f"{fields.number(c, (2, 3))} * {first}"
    if kind == "shared":
        again = fields.let(f"shared({first})")
        return f"{fields.number(c, (2, 3))} * {again}"
    if kind == "list" and not cross:
        heads = c.one([1, 2, 4])
        i = names.fresh("i")
        more = f"causal & window({i} + 1)" if c.causal else f"window({i} + 1)"
        name = names.add(
            "turn",
            f"block NAME(mask: mask) {{\n  attention: mha(heads: {heads})\n  mask: mask\n  ffn: mlp(hidden: 8)\n}}",
        )
        return f"{first} + [{name}(mask: {more}) for {i} in {c.whole(1, 3)}]"
    b = fields.call(c, layer(c, width, names, cross))
    return f"2 * ({first} + {b}) + {first}" if kind == "pattern" else f"{first} + 2 * {b}"


def by_depth(c: Chooser, block: Template, names: Names, fields: Fields) -> str:
    """Layers that are told which of them they are."""
    i = names.fresh("i")
    one, count = fields.call(c, block, i), fields.number(c, (2, 3, DEPTHS))
    return c.one(
        [
            f"[{one} for {i} in {count}]",
            f"[{one} for {i} in 2] + [{one} for {i} in {count}]",
            f"2 * [{one} for {i} in 2]",
            f"[{fields.call(c, block)}, {fields.call(c, block)}] + [{one} for {i} in 1]",
        ]
    )


def head(c: Chooser, width: int) -> tuple[str, str]:
    """The slot and what it holds."""
    if c.causal:
        more = c.some(tied=["true"], bias=["true"], scale=["0.5"], softcap=["10"])[2:]
        if c.chance(15):
            return "heads", "[lm, lm(ahead: 2)]"
        return "head", f"lm({more})" if more else "lm"
    kind = c.one(["lm", "mlm", "classifier", "sequence", "token", "span", "next", "two", "own"])
    return {
        "lm": ("head", "lm(tied: true)"),
        "mlm": ("head", "mlm" if c.chance(50) else "mlm(tied: false, act: silu)"),
        "classifier": ("head", c.one(["classifier(classes: 3)", "classifier(classes: 3, pool: first, bias: false)"])),
        "sequence": ("head", "sequence_classifier(classes: 3)"),
        "token": ("head", "token_classifier(classes: 5, dropout: 0.1)"),
        "span": ("head", "span_classifier"),
        "next": ("head", "next_sentence"),
        "two": ("heads", "[mlm, next_sentence]"),
        "own": ("head", "linear(5)"),
    }[kind]


def model(c: Chooser) -> list[str]:
    """The declarations of a spec, under tame names; the model comes last."""
    width = c.one(WIDTHS)
    names = Names()
    fields = Fields(names)
    kind = c.one(["decoder"] * 5 + ["pair", "frames", "images", "equations", "equations"])
    slots: list[tuple[str, str]] = []
    vocab = c.one(VOCAB)
    if kind == "equations":
        return equation_model(c, width, vocab)
    if kind in ("decoder", "pair"):
        rows = str(vocab)
        if c.odd(40):
            rows = rounded(c.one, fields.hyper(vocab), fields.number(c, (2, 4, 8)))
        slots += [("vocab", rows), ("context", str(CONTEXT))]
        args = []
        if c.chance(25):
            args.append("scale: sqrt(width)")
        if c.chance(15):
            args.append("rank: 6")
        if kind == "decoder" and c.chance(15):
            args.append("segments: 2")
        if c.chance(15):
            args.append(f"norm: {c.one(NORMS)}")
        if args:
            slots.append(("embedding", f"words({', '.join(args)})"))
    if kind == "frames":
        slots.append(("input", f"frames(features: {FRAMES})"))
    if kind == "images":
        slots.append(("input", f"patches(size: 4, image: 8{c.some(channels=[1], class_token=['true'])})"))
        c = c.other(fixed=True)
    slots.append(("width", "width"))
    if c.chance(35):
        slots.append(("position", c.one(["learned", "sinusoidal", "sinusoidal(theta: 100, interleaved: true)"])))
        if kind in ("frames", "images"):
            slots[-1] = ("position", "sinusoidal")
    if c.chance(15):
        slots.append(("dropout", "0.1"))
    if kind == "pair":
        looking = c.other(causal=False)
        slots.append(("encoder", stack(looking, width, names, fields)))
        slots.append(("decoder", stack(c, width, names, fields, cross=True)))
    else:
        slots.append(("blocks", stack(c, width, names, fields)))
    if c.chance(70):
        slots.append(("norm", c.one(NORMS)))
    if kind in ("decoder", "pair"):
        where, what = head(c, width)
        if kind == "pair" and where == "heads":
            where, what = "head", "lm"
        if any(k == "embedding" and "rank" in v for k, v in slots) and "mlm" not in what:
            what = what.replace("tied: true, ", "").replace(", tied: true", "").replace("(tied: true)", "")
        slots.append((where, what))
    else:
        slots.append(("head", c.one(["classifier(classes: 3)", "token_classifier(classes: 2)", "linear(4)"])))
    if c.chance(15):
        slots.append(("init", c.one(INITS)))
    if c.odd(20):
        fields.lets.append(assertion(c, ("width > 0", "2 * width / 2 == width")))
    body = "\n  ".join([*fields.lets, *(f"{k}: {v}" for k, v in slots)])
    names.add("model", f"model NAME{fields.header(f'width = {width}')} {{\n  {body}\n}}")
    return names.texts


def equation_model(c: Chooser, width: int, vocab: int) -> list[str]:
    """A model of equations, over tokens or numbers, that says itself what is causal."""
    names = Names()
    fields = Fields(names)
    lines = []
    x, given = names.fresh("x"), names.fresh("in")
    if c.chance(60):
        inputs = f"{given}: token[batch, time]"
        lines.append(f"{x} = {given} -> embedding(vocab, width)")
    else:
        inputs = f"{given}: [batch, time, {FRAMES}]"
        lines.append(f"{x} = {given} -> linear(width)")
    for _ in range(c.whole(1, 2)):
        if c.chance(50):
            block = names.block(c, Body(c, width, names, args=names.arguments(c)))
            if block.args and c.chance(60):
                i, f = names.fresh("i"), names.fresh("f")
                one, count = fields.call(c, block, i), fields.number(c, (2, 3, DEPTHS))
                lines.append(
                    c.one(
                        [
                            f"for {f} in [{one} for {i} in {count}] {{ {x} = {x} -> {f} }}",
                            f"for {i} in {count} {{ {x} = {x} -> {one} }}",
                            f"for {i} in {count} {{ {x} = {x} + 0.5 * ({x} -> {one}) }}",
                        ]
                    )
                )
            else:
                lines.append(f"{x} = {x} -> {fields.call(c, block)}")
        else:
            # Written in place: its names are the model's.
            body = Body(c, width, names, x=x).lines_of()
            lines += body[:-1]
            lines.append(f"{x} = {body[-1].removeprefix('return ')}")
    lines.append(f"assert causal({x}{', ahead: 2' if c.chance(10) else ''})")
    pooled = names.fresh("as") if c.hostile else "pooled"
    lines.append(
        c.one(
            [
                f"return {x} -> linear(vocab)",
                f"return {x}, {x} -> mean(axis: 1) -> linear(3) as {pooled}",
                f"return {x} -> layernorm",
            ]
        )
    )
    body_text = "\n  ".join([*fields.lets, *lines])
    for kind in ("padding", "documents"):  # a model of equations names all of its inputs
        if any(re.search(rf"\b{kind}\b(?!:)", re.sub(r'"[^"\n]*"|#.*', "", t)) for t in [*names.texts, body_text]):
            inputs += f", {names.fresh('in') if c.hostile else kind}: {kind}[batch, time]"
    header = fields.header(f"width = {width}", f"vocab = {vocab}")
    names.add("model", f"model NAME{header}({inputs}) {{\n  {body_text}\n}}")
    return names.texts


class Twins(NamedTuple):
    """A spec, and the same one under other names."""

    text: str
    tame: str


@st.composite
def twins(draw: Callable[[Any], Any], hostile: bool = True) -> Twins:
    """A valid spec with one model, under hostile names and under tame ones; not `hostile`: a tame one twice."""
    causal = draw(st.integers(0, 4)) < 3
    c = Chooser(draw, causal, hostile=hostile)
    declarations = model(c)
    tame = _joined(declarations)
    return Twins(_joined(renamed(declarations, c.one)) if hostile else tame, tame)


def specs(hostile: bool = True) -> st.SearchStrategy[str]:
    """A valid spec with one model."""
    return twins(hostile).map(lambda made: made.text)


def _joined(declarations: Sequence[str]) -> str:
    return "\n\n".join(declarations) + "\n"
