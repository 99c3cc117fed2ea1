"""Which fields of a config change what transformers computes, and which of them an import passes over.

    PYTHONPATH=tests python -m interop.config_fields [--write] [--pairs] [TYPE ...]

Each field of each type's config.json, as `save_pretrained` writes it, as a file of few fields has it, and as the source
of its classes reads it, gets other legal values: at least two, where a field has two.  A value that an import accepts
without writing another spec must leave transformers' own outputs, same weights, bitwise as they were.  With `--write`
fields that an import may pass over go into `config_fields.json`, to which `test_config_fields.py` holds them, and those
of which it should not.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import importlib
import inspect
import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import transformers
from interop.cases import CASES, Tiny
from near import distance

from archdsl.diagnostics import ArchError
from archdsl.frontend.load import load
from archdsl.interop.checkpoint_file import CheckpointFile
from archdsl.interop.compare import NAMES, _inputs
from archdsl.interop.convert import named_mapping
from archdsl.interop.huggingface import _number, config_fields, demand_fixed, is_neutral, settings_of
from archdsl.interop.importing import written
from archdsl.interop.mapping import pattern
from archdsl.syntax.parse import read_source

DATA = Path(__file__).with_suffix(".json")

BOOKKEEPING = {"model_type", "architectures", "transformers_version", "dtype", "torch_dtype"}
"""Fields that say which class is meant, or the type of its numbers, which a checkpoint's tensors have themselves."""
LABELS = ("id2label", "label2id", "num_labels")
"""How many labels there are, the tensors of a head say."""

ROUNDING = 1e-5
"""The largest relative difference of outputs that rounding makes."""
ENOUGH = 3
"""So many values of a field that change nothing are kept."""
GENERAL = ("modeling_utils", "configuration_utils", "modeling_rope_utils", "masking_utils", "pytorch_utils")
"""Modules of transformers that read fields of the configs of all types."""

KINDS = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention", "mlp", "moe")


LEGAL: dict[str, list[Any]] = {
    "out_features": [["stage1"], ["stage2"]],
    "vocab_list": [["<cls>", "a"], ["<cls>", "a", "b"]],
    "cache_implementation": ["offloaded", "dynamic", "static"],
    "chunk_size_feed_forward": [1, 2, 4, 8],
    "mtp_hybrid_override_pattern": ["E", "*E"],
    "mrope_section": [[1, 2, 1], [2, 1, 1]],
}
"""Values of fields that no rule finds."""
ABSENT = "(absent)"
"""Stands for a field that is left out."""
NOTHING: list[Any] = [False, 0, []]
"""What says nothing: an import does not refuse it of a field that it does not know."""


@dataclass
class Tried:
    """What other values of one field change in what transformers computes."""

    default: Any
    """Its value in the first model; a bool has only one other."""
    others: int
    """How many other legal values were compared, of the class that has the fewest."""
    same: list[Any] = field(default_factory=list)
    """Values that change no bit, at most `ENOUGH`."""
    rounding: list[Any] = field(default_factory=list)
    """Values that change rounding alone: other kernels, sums in other pieces."""
    apart: float = 0.0
    """The largest difference that these make, relative to the largest output."""
    changed: list[Any] = field(default_factory=list)

    def add(self, value: Any, apart: float) -> None:
        """Keep a value that changes outputs by so much."""
        into = self.same if apart == 0 else self.rounding if apart < ROUNDING else self.changed
        if value not in into and (into is not self.same or len(into) < ENOUGH):
            into.append(value)
        if into is self.rounding:
            self.apart = max(self.apart, apart)


class Subject:
    """A tiny model of transformers with the config.json that says it, and what an import makes of others."""

    def __init__(self, case: Tiny, full: bool) -> None:
        self.cls = getattr(transformers, case.model)
        modules = dict.fromkeys([self.cls.__module__, self.cls.config_class.__module__])
        self.source = "\n".join(inspect.getsource(sys.modules[module]) for module in modules)
        self.mapping: CheckpointFile = named_mapping(case.kind)
        self.reference = case.made()
        saved = json.loads(self.reference.config.to_json_string(use_diff=False), object_hook=_number)
        few = {n: saved[n] for n in ("architectures", "model_type") if n in saved} | _plain(case.config)
        self.config: dict[str, Any] = saved if full else few
        self.config["architectures"] = [case.model]
        self.texts: dict[str, str] = {}
        self.default = self.written(self.config)
        self.model = load("m.arch", text=self.default)

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """What is learned: parameters, and buffers that differ from those of a new model, as the bias of a router."""
        fresh = dict(self._made(self.config).named_buffers())
        learned = {n: b for n, b in self.reference.named_buffers() if n in fresh and not torch.equal(b, fresh[n])}
        return learned | self.parameters

    @cached_property
    def parameters(self) -> dict[str, torch.Tensor]:
        return {n: p for n, p in self.reference.named_parameters() if p.requires_grad}

    @cached_property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Random inputs; the first row of tokens has all ids from 0 on, so that each that a field may name occurs."""
        inputs = _inputs(self.model, self.reference)
        for name in inputs.keys() & {*NAMES["token"]}:
            inputs[name][0] = torch.arange(inputs[name].shape[1])
        return {k: v.long() if v.dtype == torch.bool else v for k, v in inputs.items()}

    @cached_property
    def outputs(self) -> dict[str, torch.Tensor]:
        return self._outputs(self._filled(self._made(self.config)))

    def written(self, config: Mapping[str, Any]) -> str:
        settings = settings_of(self.mapping, config)
        key = repr((settings.model, settings.values))
        if key not in self.texts:
            source = read_source(settings.spec, settings.spec.name)
            self.texts[key] = written(source, settings.model, settings.values, "m", "#")
        return self.texts[key]

    def imported(self, config: Mapping[str, Any]) -> str:
        """The spec of a config. Raises ArchError E0533 where an import refuses it."""
        demand_fixed(settings_of(self.mapping, config), self.model)
        return self.written(config)

    def passed_over(self, config: Mapping[str, Any]) -> bool:
        """Whether an import takes a config for the default's: it is neither refused nor another spec."""
        try:
            return self.imported(config) == self.default
        except ArchError:
            return False

    def effect(self, config: Mapping[str, Any]) -> float | None:
        """How much a config changes what transformers computes with the same weights, relative to the largest output;
        infinity where it has other weights or outputs, None where it is not legal."""
        try:
            model = self._made(config)
            own = {n: p.shape for n, p in model.named_parameters() if p.requires_grad}
            assert all(shape.numel() for shape in own.values())
        except Exception:  # whatever a class says of a value that it does not take
            return None
        apart = own.items() ^ {n: p.shape for n, p in self.parameters.items()}.items()
        base, drops = self.mapping.base, [pattern(d) for d in self.mapping.drops]
        if any(not any(d.fullmatch(name) for d in drops for name in (n, base + n)) for n, _ in apart):
            return math.inf
        try:
            outputs = self._outputs(self._filled(model))
        except Exception:
            return None  # nor can transformers run it
        if any(n not in outputs or outputs[n].shape != t.shape for n, t in self.outputs.items()):
            return math.inf
        if all(torch.equal(outputs[n], t) for n, t in self.outputs.items()):
            return 0.0
        return max(distance(outputs[n], t) for n, t in self.outputs.items())

    def _made(self, config: Mapping[str, Any]) -> Any:
        torch.manual_seed(0)
        return self.cls(self.cls.config_class.from_dict(copy.deepcopy(dict(config)))).eval()

    def _filled(self, model: Any) -> Any:
        with torch.no_grad():
            for n, t in (*model.named_parameters(), *model.named_buffers()):
                if n in self.weights:
                    t.copy_(self.weights[n])
        return model

    def _outputs(self, model: Any) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            outputs = model(**self.inputs, return_dict=True)
        return {n: t for n, t in outputs.items() if isinstance(t, torch.Tensor)}

    def fields(self) -> dict[str, Any]:
        """Every field that may stand in a config.json of the type, by its dotted name, and its value."""
        own = self.reference.config
        names = [n for n in sorted(self.read) if not hasattr(type(own), n) or n in own.__dict__]
        leaves = dict.fromkeys(self.mapping.ignored) | {n: getattr(own, n, None) for n in names}
        leaves |= dict(config_fields(self.config))
        return {n: v for n, v in leaves.items() if n not in BOOKKEEPING and not n.startswith(("_", *LABELS))}

    @cached_property
    def read(self) -> set[str]:
        """The fields of a config that the source of the type, or that of all types, reads."""
        general = [inspect.getsource(importlib.import_module(f"transformers.{name}")) for name in GENERAL]
        return set().union(*map(_read, (self.source, *general)))

    @cached_property
    def words(self) -> dict[str, list[str]]:
        """By a field's name, the texts that the type's source compares it with."""
        out: dict[str, list[str]] = {}
        for node in ast.walk(ast.parse(self.source)):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                constants = [n.value for s in sides for n in ast.walk(s) if isinstance(n, ast.Constant)]
                for name in (getattr(s, "attr", getattr(s, "id", "")) for s in sides):
                    out.setdefault(name, []).extend(c for c in constants if isinstance(c, str))
        return out

    def others(self, name: str, value: Any) -> list[Any]:
        """Values that may be legal in place of one."""
        last = name.rpartition(".")[2]
        texts = [*dict.fromkeys([*self.words.get(last, ()), "relu", "other", "another"])]
        layers = getattr(self.reference.config.get_text_config(), "num_hidden_layers", 2)
        layers = layers if isinstance(layers, int) else 2
        lists: list[Any] = [[0], [1], [0, 1]]
        if last.endswith("_types"):
            lists = [layers * [kind] for kind in KINDS] + [layers * ["sparse"], layers * ["dense"]]
        if last in LEGAL:
            return LEGAL[last]
        if value is None:
            return [4, 3, True, 0.5, 0.25, *texts, *lists, *NOTHING]
        if isinstance(value, bool):
            return [not value, None]
        if last.endswith("_token_id"):
            return [4, 3, 7, 5, None]
        if isinstance(value, int):
            return [*dict.fromkeys([value + 1, 2 * value + 3, max(value - 1, 0), 4, 1, 2]), 0, 0.5, 0.25, None]
        if isinstance(value, float):
            return [value / 2 + 0.125, 2 * value + 0.25, value + 1, value / 2, 0.0, None]
        if isinstance(value, str):
            return [*texts, None]
        if isinstance(value, list):
            return [value[::-1], *lists, value[:-1], *NOTHING[2:], None]
        return []


@functools.cache
def _read(source: str) -> set[str]:
    """The names of fields that a source reads of what it calls a config."""

    def config(of: ast.expr) -> bool:
        return str(getattr(of, "attr", getattr(of, "id", ""))).endswith("config")

    names = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=of, attr=name) if config(of):
                names.add(name)
            case ast.Call(ast.Name("getattr"), [of, ast.Constant(str(name)), *_]) if config(of):
                names.add(name)
    return names


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def changed(config: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A config whose field of a dotted name has another value, or is `ABSENT`."""
    first, _, rest = name.partition(".")
    inner = config.get(first)
    value = changed(inner if isinstance(inner, dict) else {}, rest, value) if rest else value
    return {n: v for n, v in {**config, first: value}.items() if v is not ABSENT}


def compared(subject: Subject) -> Iterator[tuple[str, Any, Any, float]]:
    """Yield each field, its value, other legal values that an import passes over, and what they change: `ENOUGH` that
    change nothing, and all that are false. That it is left out is yielded where it changes something."""
    there = dict(config_fields(subject.config))
    for name, value in subject.fields().items():
        count = 0
        for other in [*subject.others(name, value), *[ABSENT] * (name in there)]:
            if (other == value and type(other) is type(value)) or (
                other not in (None, ABSENT, *NOTHING) and count == ENOUGH
            ):
                continue
            config = changed(subject.config, name, other)
            if subject.passed_over(config) and (apart := subject.effect(config)) is not None:
                if other is not ABSENT or apart > 0:
                    yield name, value, other, apart
                count += apart == 0


def every_class() -> Iterator[Tiny]:
    """The cases, and of each type the other classes that its spec tells apart."""
    yield from CASES.values()
    known = {(case.kind, case.model) for case in CASES.values()}
    for kind, case in {case.kind: case for case in reversed(CASES.values())}.items():
        mapping = named_mapping(kind)
        of_class = next((f for f in mapping.fields if f.names[0] == "architectures"), None)
        if of_class is None:
            continue
        names = re.findall(r'\bclass == "(\w+)"', mapping.spec.read_text())
        for name in dict.fromkeys([json.loads(of_class.default or '""'), *names]):
            model = mapping.prefixes.get(kind, "") + name
            if (kind, model) not in known and hasattr(transformers, model):
                yield replace(case, model=model)


def pairs(subject: Subject, tried: Mapping[str, Tried]) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield two fields with values of which each changes nothing and both together do."""
    known = set(re.findall(r"\w+", subject.source))
    names = [n for n in tried if n.rpartition(".")[2] in known]
    for a, b in combinations(names, 2):
        for x in tried[a].same[:2]:
            for y in tried[b].same[:2]:
                config = changed(changed(subject.config, a, x), b, y)
                if subject.passed_over(config) and (subject.effect(config) or 0.0) >= ROUNDING:
                    yield a, x, b, y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--pairs", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    cases = [*every_class()]
    kinds = options.types or sorted({case.kind for case in cases})
    data: dict[str, Any] = json.loads(DATA.read_text())["fields"] if DATA.is_file() else {}
    for kind in kinds:
        started = time.time()
        rows: dict[str, Tried] = {}
        for case in [case for case in cases if case.kind == kind]:
            counts: dict[str, int] = {}
            for full in (True, False):
                where = f"{kind} {case.model} {'full' if full else 'few'}"
                try:
                    subject = Subject(case, full)
                except ArchError as problem:
                    print(where, problem)
                    continue
                tried = [*compared(subject)]
                for name, own, value, apart in tried:
                    rows.setdefault(name, Tried(own, 1000)).add(value, apart)
                    if apart > 0:
                        print(f"{where}: {name} = {json.dumps(value)} changes outputs by {apart:.1e}", flush=True)
                for name, count in Counter(name for name, *_ in tried).items():
                    counts[name] = max(count, counts.get(name, 0))
                if options.pairs and full:
                    for a, x, b, y in pairs(subject, rows):
                        said = f"{a} = {json.dumps(x)}, {b} = {json.dumps(y)}"
                        print(f"{where}: {said} change the outputs", flush=True)
            for name, count in counts.items():
                rows[name].others = min(rows[name].others, count)
        passed = {n for n in rows if n in named_mapping(kind).ignored or is_neutral(n)}
        data[kind] = {n: row.__dict__ for n, row in sorted(rows.items()) if n in passed or row.changed}
        for name, row in rows.items():
            if name in passed and row.others < (1 if isinstance(row.default, bool) else 2):
                print(f"{kind}: {name} has {row.others} other value: {json.dumps(row.__dict__)}")
        print(f"{kind} {len(rows)} fields, {time.time() - started:.1f} s", flush=True)
        if options.write:
            lines = ",\n".join(f"{json.dumps(kind)}: {json.dumps(data[kind])}" for kind in sorted(data))
            DATA.write_text(f'{{"bound": {ROUNDING}, "fields": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
