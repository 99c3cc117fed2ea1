"""What `archdsl lift` makes of transformers' classes, held against the specs that were written for them by hand.

    python benchmarks/lift_oracle.py [--json] [--keep FOLDER] [NAME …]

Each tiny model of `tests/interop/cases.py` becomes a spec twice: its config is imported, and its class is lifted at
that one configuration. Nobody's hand is in both, so what is equal is right: parameters; FLOPs of a forward as functions
of the sizes; of a step of decoding, element-wise operations, and bytes of the decode state and of what a training step
saves, at two lengths; and the graph, as `Form` has it. `--keep` writes both specs of each. The exit status is 1 where
parameters or FLOPs of a model that lifts differ, or where lifting ends in another error than a finding."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import re
import signal
import sys
from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402
import transformers  # noqa: E402
from interop.cases import CASES, Tiny  # noqa: E402

import archdsl  # noqa: E402
from archdsl.diagnostics import ArchError, shortened  # noqa: E402
from archdsl.frontend.load import load  # noqa: E402
from archdsl.interop.compare import NAMES  # noqa: E402
from archdsl.interop.lift.export import export  # noqa: E402
from archdsl.interop.lift.inputs import BATCH, TIME, Axis, Input  # noqa: E402
from archdsl.interop.lift.lifting import NO_RESULT  # noqa: E402
from archdsl.interop.lift.lower import Lowering  # noqa: E402
from archdsl.interop.lift.module import prepared  # noqa: E402
from archdsl.interop.lift.positions import Positions  # noqa: E402
from archdsl.interop.lift.spec import written  # noqa: E402
from archdsl.interop.sameness import worth  # noqa: E402
from archdsl.ir.graph import CausalNode, Model, Value  # noqa: E402
from archdsl.ops.shape import Moving  # noqa: E402
from archdsl.passes.flatten import FlatGraph, FlatNode, FlatOp, FlatParam, FlatScan, FlatWeight, flatten  # noqa: E402
from archdsl.syntax.format import format_tree  # noqa: E402

LENGTHS = (24, 48)
"""Positions at which numbers are compared: more than the windows of the tiny models, and fewer than their contexts."""
LIMIT = 240
"""Seconds for one model."""
COUNTS = ("parameters", "flops", "decode", "elementwise", "state", "saved", "graph")


@dataclass
class Result:
    """One model: by what is compared, None where it is equal, else what both specs have."""

    name: str
    seconds: float = 0.0
    refused: str = ""
    """Why there is no lifted spec."""
    failed: bool = False
    """Whether that is a mistake of ours."""
    differ: dict[str, str | None] = dataclasses.field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        return self.failed or any(self.differ.get(what) for what in ("parameters", "flops"))


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in what takes longer."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def plain_case(case: Tiny) -> Tiny:
    """A tiny model without dropout, which no spec of a type has, that keeps no cache."""
    fields = getattr(transformers, case.model).config_class(**case.config).to_dict()
    rates = [n for n, v in fields.items() if re.fullmatch(r".*dropout.*|.*_pdrop", n) and isinstance(v, float)]
    caches = [n for n in ("use_cache",) if n in fields]
    return dataclasses.replace(case, more=case.more | dict.fromkeys(rates, 0.0) | dict.fromkeys(caches, False))


def imported(name: str, module: Any, folder: Path) -> Model:
    """The spec that ships, at the sizes of a tiny model."""
    config = module.config.to_dict() | {"architectures": [CASES[name].model]}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    archdsl.import_checkpoint(folder / "config.json", folder / "hand.arch", weights=False)
    return load(folder / "hand.arch")


def inputs_of(model: Model, module: Any) -> list[Input]:
    """The inputs of a spec under the names that the class has for them. It finds lengths without padding."""
    known = inspect.signature(module.forward).parameters
    names = {kind: [n for n in wanted if n in known] for kind, wanted in NAMES.items()}
    config = module.config.get_text_config() if hasattr(module.config, "get_text_config") else module.config
    found = []
    for _, value in model.inputs:
        if value.dtype == "padding":
            continue
        kind = value.dtype if value.dtype in names else "float"
        axes: list[Axis] = [int(d) if d.static else "time" if i else "batch" for i, d in enumerate(value.shape)]
        rows = getattr(config, "type_vocab_size", 2) if kind == "int" else getattr(config, "vocab_size", 2)
        found.append(Input(names[kind].pop(0), kind, tuple(axes), rows))
    return found


def lifted(name: str, module: Any, inputs: Sequence[Input], *, causal: bool) -> str:
    """The spec that the class becomes."""
    prepared(module)
    generator = torch.Generator().manual_seed(0)
    example = {i.name: i.made(BATCH, TIME, {}, generator) for i in inputs}
    recorded = export(module, example, {i.name: i.open for i in inputs}, types=False)
    results = tuple(r for r in recorded.results if not re.match(NO_RESULT, r[0]))
    recorded = dataclasses.replace(recorded, results=results[: 1 if causal else None])
    lowering = Lowering(recorded, Positions(recorded))
    terms, blocks = lowering.results(), [*lowering.declarations.values()]
    return format_tree(written(terms, recorded, "lifted", causal=causal, blocks=blocks).tree)


def compared(hand: Model, own: Model) -> dict[str, str | None]:
    """What differs between two models, by `COUNTS`."""
    one, two = ([_numbers(model, n) for n in LENGTHS] for model in (hand, own))
    found: dict[str, str | None] = {}
    for what in COUNTS[:-1]:
        a, b = ([numbers[what] for numbers in found_at] for found_at in (one, two))
        same = what in ("parameters", "flops")
        found[what] = None if a == b else f"{a[0]} / {b[0]}" if same else f"{a} / {b}"
    forms = [Form(flatten(model)) for model in (hand, own)]
    equal = forms[0].outputs == forms[1].outputs
    found["graph"] = None if equal else forms[0].difference(forms[1])
    return found


INPUT: tuple[Any, Sequence[Any]] = (("input", [], [], []), ())


def sizes_of(weight: FlatWeight) -> tuple[str, ...]:
    return tuple(str(n.value) for n in weight.weight.shape)


NUMBERS_STAY = ("dropout", "cast", "cast_like")


def moves(node: FlatNode) -> bool:
    """Whether a node gives in evaluation the numbers that it reads, in other places or of another type."""
    return isinstance(node, FlatOp) and (isinstance(node.node.op, Moving) or node.node.op.name in NUMBERS_STAY)


IN_OTHER_WORDS = ("init", "dropout", "rotated", "factor", "expert")
"""Options without which a graph computes the same in evaluation: whether it is attention that turns queries and keys,
what the scaling of their rope sharpens it by, and blocks, which are compared as graphs."""
COMMUTATIVE = ("plus", "times")
SIGNS = 6
"""Significant digits of numbers that are compared: float32, in which the class computes some of them, keeps no more."""


class Form:
    """What a graph computes in evaluation: values that are computed alike have equal texts, whatever weights are
    called, the shapes in which numbers lie and their types between, the order of terms and factors, layers that are one
    wider layer, and digits of a number after `SIGNS`. What these change, logits show."""

    def __init__(self, graph: FlatGraph, around: Form | None = None) -> None:
        self.graph = graph
        self.texts: ChainMap[Any, str] = around.texts.new_child() if around else ChainMap()
        self.makers: ChainMap[Any, tuple[Any, Sequence[Any]]] = around.makers.new_child() if around else ChainMap()
        self.inner: ChainMap[Any, list[Form]] = around.inner.new_child() if around else ChainMap()
        given = [v for v in graph.inputs if v.dtype != "padding"]
        self.texts |= {v: f"input {len(self.texts.maps)} {i}" for i, v in enumerate(given)}
        absent: set[Any] = set()  # masks, which attention names too
        for node in graph.nodes:
            does, operands = self.node(node)
            if does[0] == "mask":
                absent.update(node.outputs)
                continue
            operands = [v for v in operands if v is not None and v not in absent]
            for i, value in enumerate(node.outputs):
                what, reads, index = does, operands, i
                if moves(node):
                    self.texts[value] = self.texts[reads[0]]
                    self.makers[value] = self.makers.get(reads[0], INPUT)
                    continue
                if what[0] in ("chunk", "split", "index") and (part := self.part(value, reads[0])) is not None:
                    (what, reads), index = part, 0
                if what[0] == "divide" and not isinstance(reads[1], Value):
                    what, reads = ("times", *what[1:]), (reads[0], 1 / float(reads[1].value))
                reads = [*self.terms(reads)] if what[0] == "plus" else reads
                texts = [self.texts.get(v, "around") if isinstance(v, Value) else rounded(worth(v)) for v in reads]
                texts = sorted(texts) if what[0] in COMMUTATIVE else texts
                self.texts[value] = sha256(repr((what, texts, index)).encode()).hexdigest()
                self.makers[value] = what, reads

    def terms(self, reads: Sequence[Any]) -> Iterator[Any]:
        """What a sum is made of, whatever is added first."""
        for read in reads:
            what, inner = self.makers.get(read, INPUT) if isinstance(read, Value) else INPUT
            if what[0] == "plus":
                yield from inner
            else:
                yield read

    def part(self, value: Value, read: Value) -> tuple[Any, Sequence[Any]] | None:
        """The linear layer that makes one part of what a wider one makes."""
        what, reads = self.makers.get(read, INPUT)
        if what[0] != "linear":
            return None
        cut, whole = (prod(int(n) for n in v.shape if n.static) for v in (value, read))
        if cut == whole:
            return None
        options = [(n, rounded(float(v) * cut / whole) if n == "features" else v) for n, v in what[1]]
        width = next(v for n, v in options if n == "features")
        stored = [
            (n, (*shape[:-2], width, shape[-1]) if n == "weight" else (*shape[:-1], width)) for n, shape in what[2]
        ]
        return ("linear", options, stored, what[3]), reads

    def node(self, node: FlatNode) -> tuple[Any, Sequence[Any]]:
        """What a node does, and the values and numbers that it reads."""
        if isinstance(node, FlatParam):
            return ("weight", [], [("", sizes_of(node.weight))], []), ()
        if isinstance(node, FlatScan):
            forms = [Form(node.body, self)]
        else:
            forms = [Form(graph) for _, graph in sorted(node.blocks.items())]
        inner = [form.outputs for form in forms]
        self.inner |= dict.fromkeys(node.outputs, forms)
        if isinstance(node, FlatScan):
            return ("scan", [], [], inner), (*node.starts, *node.sequences)
        options = [
            (n, rounded(worth(v)))
            for n, v in sorted(node.node.options.items())
            if n not in IN_OTHER_WORDS and v is not None
        ]
        stored = [(n, sizes_of(w)) for n, w in sorted(node.weights.items())]
        return (node.node.op.name, options, stored, inner), node.inputs

    @property
    def outputs(self) -> list[str]:
        return [self.texts[v] for v in self.graph.outputs]

    def difference(self, other: Form) -> str:
        """What is computed otherwise in another graph, the first from the outputs on: ours / theirs."""
        todo = [*zip(self.graph.outputs, other.graph.outputs, strict=False)]
        seen = set()
        while todo:
            a, b = todo.pop(0)
            if (a, b) in seen or self.texts.get(a) == other.texts.get(b):
                continue
            seen.add((a, b))
            (one, here), (two, there) = self.makers.get(a, INPUT), other.makers.get(b, INPUT)
            if one != two and one[:3] == two[:3]:
                forms = zip(self.inner[a], other.inner[b], strict=True)
                return f"in {one[0]}: " + next(x.difference(y) for x, y in forms if x.outputs != y.outputs)
            if one != two:
                return shortened(f"{plain(one)} / {plain(two)}", 300)
            if one[0] in COMMUTATIVE:
                texts = [[form.texts.get(v) for v in reads] for form, reads in ((self, here), (other, there))]
                here, there = (
                    sorted((v for v, t in zip(reads, own, strict=True) if t is None or t not in others), key=form.said)
                    for form, reads, own, others in (
                        (self, here, texts[0], texts[1]),
                        (other, there, texts[1], texts[0]),
                    )
                )
            pairs = [*zip(here, there, strict=False)]
            for x, y in pairs:
                if not (isinstance(x, Value) and isinstance(y, Value)) and rounded(worth(x)) != rounded(worth(y)):
                    return f"{plain(one)} of {self.said(x)} / {other.said(y)}"
            todo += [(x, y) for x, y in pairs if isinstance(x, Value) and isinstance(y, Value)]
        return "other inputs, or another number of results"

    def said(self, read: Any) -> str:
        return plain(self.makers.get(read, INPUT)[0]) if isinstance(read, Value) else str(worth(read))


def plain(what: Any) -> str:
    """What a node does, as it is printed."""
    name, options, stored, _ = what
    return " ".join([name, *(f"{n}: {v}" for n, v in options), *(f"{n}{list(shape)}" for n, shape in stored)])


PADDING, FULL = ("padding", (), ()), ("full", (), ())


def rounded(value: Any) -> Any:
    """Numbers of an option with as many digits as are compared, and masks without what padding adds to them."""
    if isinstance(value, tuple):
        parts = tuple(rounded(part) for part in value if part != PADDING)
        alone = parts[2] if parts[:1] == ("&",) else ()
        return FULL if value == PADDING else alone[0] if len(alone) == 1 else parts
    try:
        return f"{float(value):.{SIGNS}g}"
    except (TypeError, ValueError):
        return value


def _numbers(model: Model, seq: int) -> dict[str, Any]:
    report = archdsl.estimate(model, batch=2, seq=seq, dtype="float32")
    flops, memory = report.flops, report.memory
    return {
        "parameters": report.params.total,
        "flops": " + ".join(sorted(flops.formula.replace(" & padding", "").split(" + "))),
        "decode": flops.decode_step,
        "elementwise": flops.elementwise,
        "state": memory.decode_state,
        "saved": memory.activations,
    }


def result(name: str, keep: Path | None = None) -> Result:
    """Compare both specs of one tiny model."""
    found = Result(name)
    start = process_time()
    try:
        with limited(LIMIT), TemporaryDirectory() as folder:
            module = plain_case(CASES[name]).made()
            hand = imported(name, module, Path(folder))
            causal = any(isinstance(node, CausalNode) for node in hand.block.graph.nodes)
            inputs = inputs_of(hand, module)
            # Lift has one length for all inputs: what is read of a second sequence would be of later positions.
            causal &= all(i.name != "decoder_input_ids" for i in inputs)
            text = lifted(name, module, inputs, causal=causal)
            if keep is not None:
                keep.mkdir(exist_ok=True)
                (keep / f"{name}.hand.arch").write_text((Path(folder) / "hand.arch").read_text())
                (keep / f"{name}.lifted.arch").write_text(text)
            found.differ = compared(hand, load("lifted.arch", text=text))
    except ArchError as problem:
        first = problem.diagnostics[0]
        found.refused = " | ".join([f"{first.code} {first.message}", *first.notes])
    except Exception as problem:  # a mistake of ours, to be seen with the others
        found.refused = f"{type(problem).__name__}: {problem}"
        found.failed = True
    found.seconds = process_time() - start
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models of tests/interop/cases.py; all by default")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write both specs of each model here")
    args = parser.parse_args()
    if unknown := {*args.names} - CASES.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}")
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    wrong = False
    if not args.json:
        print(f"{'model':26} {'CPU, s':>6} " + " ".join(f"{what:11}" for what in COUNTS))
    for name in args.names or CASES:
        found = result(name, args.keep)
        wrong |= found.wrong
        if args.json:
            print(json.dumps(dataclasses.asdict(found)), flush=True)
            continue
        cells = " ".join(f"{'differs' if found.differ[what] else 'equal':11}" for what in found.differ)
        print(f"{name:26} {found.seconds:6.1f} {cells or found.refused}".rstrip(), flush=True)
        for what, text in found.differ.items():
            if text:
                print(f"    {what}: {text}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
