"""Which type of transformers a model is: that of a family whose graph is the same, number by number, weight by weight.

A family's spec is written anew with the numbers of the model, read off its Config and the options of its ops; what
comes out is compared with the model.  So a guess may be wrong, and what is found is not.  Weights may have other names:
they are paired as the graphs are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from archdsl.backends.huggingface.folder import copied, drawn
from archdsl.diagnostics import ArchError, error
from archdsl.estimates.kinds import Kind, kind_of_model
from archdsl.files import make_folder, together, write_text
from archdsl.frontend.load import load
from archdsl.interop.checkpoint_file import CheckpointFile, shipped
from archdsl.interop.config_json import json_text, whole_config
from archdsl.interop.huggingface import config_of, demand_fixed, numbers_read, settings_of, weights_to
from archdsl.interop.importing import constant, is_constant, numbers_of, written
from archdsl.interop.mapping import Mapper
from archdsl.interop.sameness import Form, described
from archdsl.ir.dims import Num
from archdsl.ir.graph import Graph, LoopNode, Model, OpNode, ParamNode, WeightNode
from archdsl.ir.paths import starred
from archdsl.ir.walk import calls_of, nodes_below, ops_below, runs
from archdsl.ir.weights import weights
from archdsl.passes.flatten import flatten
from archdsl.syntax import ast
from archdsl.syntax.parse import parse, read_source
from archdsl.weights.carried import CONFIG, carried, copy, dtype_of, fields_of, token_ids
from archdsl.weights.safetensors import Checkpoint, Progress, saved

NEAREST = 8
"""So many families are compared: first the one that the model's name begins with, then those whose weights have the
most names in common with the model's, of which many families have all."""
MOST_GUESSES = 32
"""So many combinations of values are tried of a family that runs the same ops."""


class NativeType(NamedTuple):
    """A type of transformers: its `model_type`, mapping and config, the family's spec with the model's numbers, and the
    name that each weight of the model has in that spec."""

    kind: str
    mapping: CheckpointFile
    model: Model
    config: dict[str, Any]
    names: dict[str, str]


def native_type(model: Model, prefix: str = "", likely: str = "") -> NativeType:
    """Find the type that a model is, among those of transformers or, with the prefix `gguf_`, of llama.cpp. The
    `likely` one is tried first. Raises ArchError E0534 where no type that is known is like it; its note, if any, says
    which type is nearest and what that computes otherwise."""
    names = {starred(w.path) for w in weights(model)}
    known = {kind: m for kind, m in shipped().items() if kind.startswith("gguf_") is bool(prefix)}
    like = sorted(known, key=lambda kind: (not model.name.startswith(kind), -_likeness(names, known[kind])))
    sort = kind_of_model(model)
    apart = {kind: _apart(names, sort, known[kind], kind) for kind in like[: 3 * NEAREST]}
    near = sorted(apart, key=lambda kind: (kind != likely, not model.name.startswith(kind), apart[kind]))
    order = dict.fromkeys([*([likely] if likely in known else []), *near])
    search = _Search(model)
    found = next(search.types({kind: known[kind] for kind in order}), None)
    if found is not None:
        return found
    listed, whose = ", ".join(f"`{kind}`" for kind in near[:NEAREST]), "llama.cpp" if prefix else "transformers"
    raise error(
        "E0534",
        f"`{model.name}` is not a known type of {whose}; the nearest are {listed}",
        notes=[search.difference()] if search.nearest is not None else [],
        help=""
        if prefix
        else "`--to hf` without `--native` writes a decoder's own classes, as remote code; "
        "`archdsl weights SPEC --weights FILE --to hf --map TYPE` writes its weights in the names of a type",
    )


def says_all(mapping: CheckpointFile, kind: str, config: Mapping[str, Any], model: Model) -> bool:
    """Return whether a config that was imported, of the type `kind`, still says all of a model. Fields that the mapping
    has no place for were ignored when it was imported."""
    if config.get("model_type") != kind:
        return False
    try:
        _demand_all_said(replace(mapping, ignored=[*mapping.ignored, *config]), numbers_read(config), model)
    except ArchError:
        return False
    return True


class _Search:
    """The search for the type that one model is. Graphs are compared where all weights have the shapes of the model's;
    how near others are is counted by block."""

    def __init__(self, model: Model) -> None:
        self.model, self.form = model, Form(flatten(model))
        self.shapes, self.ops = _shapes(model), _ops(model.block.graph)
        self.nearest: tuple[int, str, Model] | None = None

    def types(self, near: Mapping[str, CheckpointFile]) -> Iterator[NativeType]:
        """Yield types that compute the same: first those of what the spec says in the names of each family, as that of
        an imported checkpoint does, then those of guesses for the nearest."""
        for kind, mapping in near.items():
            with suppress(ArchError):
                settings = settings_of(mapping, config_of(mapping, kind, self.model))
                yield from self._compared(kind, mapping, settings.model, settings.values)[1]
        for kind, mapping in list(near.items())[:NEAREST]:
            yield from self._guessed(kind, mapping)

    def difference(self) -> str:
        """Say which of the families that were compared is nearest, and what it computes otherwise."""
        assert self.nearest is not None
        _, kind, family = self.nearest
        return f"`{kind}` {self.form.difference(Form(flatten(family)))}"

    def _guessed(self, kind: str, mapping: CheckpointFile) -> Iterator[NativeType]:
        """Yield the type of a family if guesses make it the model: each `let` in turn takes the value that brings the
        family nearest, and all of them are tried together where the ops are the same and stand otherwise."""
        name = mapping.types[kind]
        fixed, choices = _guesses(self.model, mapping, name)
        best: int | None = None
        values = {let: options[0] for let, options in choices.items()}
        changes = [{}, *({let: value} for let, options in choices.items() for value in options[1:])]
        for change in changes:
            with suppress(ArchError):
                distance, types = self._compared(kind, mapping, name, fixed | values | change)
                yield from types
                if best is None or distance < best:
                    best, values = distance, values | change
        if best == 0:
            for combined in islice(product(*choices.values()), MOST_GUESSES):
                with suppress(ArchError):
                    trial = fixed | dict(zip(choices, combined, strict=True))
                    yield from self._compared(kind, mapping, name, trial)[1]

    def _compared(
        self, kind: str, mapping: CheckpointFile, name: str, values: Mapping[str, Any]
    ) -> tuple[int, list[NativeType]]:
        """Return how far a family with these values is from the model, and the type if it is the same. Raises ArchError
        where the family cannot have them."""
        source = read_source(mapping.spec, mapping.spec.name)
        text = written(source, name, values, self.model.name, "# The same.")
        family = load(f"{self.model.name}.arch", text=text)
        theirs = _ops(family.block.graph)
        distance = ((self.ops - theirs) + (theirs - self.ops)).total()
        names = self.form.paired(Form(flatten(family))) if _shapes(family) == self.shapes else None
        if names is not None:
            with suppress(ArchError):
                config = config_of(mapping, kind, family)
                _demand_all_said(mapping, config, family)
                return distance, [NativeType(kind, mapping, family, config, names)]
        elif self.nearest is None or distance < self.nearest[0]:
            self.nearest = distance, kind, family
        return distance, []


def _shapes(model: Model) -> Counter[tuple[int, ...]]:
    """Return how many weights of a model have each shape."""
    return Counter(w.shape for w in weights(model))


def _ops(graph: Graph, known: dict[Graph, Counter[Any]] | None = None) -> Counter[Any]:
    """Return how often a graph runs each op, with its options and the shapes of its weights."""
    known = {} if known is None else known
    if graph not in known:
        known[graph] = Counter()
        for node, times, _ in runs(graph):
            if isinstance(node, OpNode | ParamNode):
                known[graph][described(node)] += times
            for call in calls_of(node):
                for op, count in _ops(call.block.graph, known).items():
                    known[graph][op] += times * count
    return known[graph]


def _demand_all_said(mapping: CheckpointFile, config: Mapping[str, Any], model: Model) -> None:
    """Raise ArchError E0533 where a config, read again, is of another model: it has no field for something."""
    settings = settings_of(mapping, config)
    source = read_source(mapping.spec, mapping.spec.name)
    again = load("again.arch", text=written(source, settings.model, settings.values, model.name, "# Read again."))
    demand_fixed(settings, again)
    if Form(flatten(again)).outputs != Form(flatten(model)).outputs:
        raise error("E0533", f"a config of {settings.model} does not say all of `{model.name}`")


def native_of(model: Model, weights: Path | None = None) -> NativeType:
    """Return the type of transformers that a model is, tried first as that of the config which is `carried` beside the
    weights or the spec. Raises ArchError as `native_type`."""
    return native_type(model, likely=str(fields_of(carried(model, weights), CONFIG).get("model_type")))


def save(
    model: Model,
    found: NativeType,
    output: Path,
    *,
    weights: Path | None = None,
    seed: int | None = None,
    tokens: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write a model as a folder of the type of transformers that was found for it; the files that there are. Other
    arguments and errors as of `archdsl.backends.huggingface.folder.save`."""
    beside = carried(model, weights)
    said = fields_of(beside, CONFIG)
    mapper = Mapper(found.mapping, found.model)
    types: list[str] = []
    if weights is not None:
        checkpoint = Checkpoint(weights)
        checkpoint.demand(saved(model))
        types = [e.dtype for e in checkpoint.entries.values()]
    same = says_all(found.mapping, found.kind, said, found.model)
    config = whole_config(found.mapping, found.kind, found.model, token_ids(beside) | said, same)
    config |= {**(tokens or {}), "dtype": dtype_of(said, types)}
    with ExitStack() as stack:
        stored = None
        if weights is not None or seed is not None:
            near = next(path for path in output.absolute().parents if path.is_dir())
            folder = stack.enter_context(TemporaryDirectory(dir=near, prefix=f".{output.name[:50]}."))
            stored = Path(folder) / "model.safetensors"
            if weights is not None:
                copied(Checkpoint(weights), stored, found.names)
            elif seed is not None:
                drawn(model, stored, found.names, seed)
        stack.enter_context(together())
        make_folder(output)
        if stored is not None:
            weights_to(found.model, mapper, stored, output, "".join(config.get("architectures", ())), progress)
        files = copy(beside, output, tokens)
        write_text(output / CONFIG, json_text(config))
    return [*sorted(output.glob("model*.safetensors*")), *files, output / CONFIG]


def _likeness(names: set[str], mapping: CheckpointFile) -> float:
    """The share of the weights that a family has a rule for, plus that of its rules that there is a weight for."""
    rules = {ours for rule in mapping.rules for ours in rule.ours}

    def met(name: str, rule: str) -> bool:
        return name == rule or name.startswith(f"{rule}.")

    covered = sum(any(met(name, rule) for rule in rules) for name in names)
    used = sum(any(met(name, rule) for name in names) for rule in rules)
    return covered / max(len(names), 1) + used / max(len(rules), 1)


def _apart(names: set[str], sort: Kind, mapping: CheckpointFile, kind: str) -> tuple[bool, int, int]:
    """Whether a family is another sort of model, a decoder or an encoder, and how many names of weights the two do not
    share; of several that share all, plain renames first."""
    family = load(mapping.spec, model=mapping.types[kind])
    other = len(names ^ {starred(w.path) for w in weights(family)})
    return kind_of_model(family) != sort, other, sum(rule.axes is not None for rule in mapping.rules)


# --- guesses ----------------------------------------------------------------------------------------------------------


def _guesses(model: Model, mapping: CheckpointFile, name: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return values of a family's hyper-parameters that may make it the model, and for each of its `let`s several, the
    likeliest first."""
    tree = parse(read_source(mapping.spec, mapping.spec.name))
    declared = next(d for d in tree.declarations if isinstance(d, ast.ModelDecl) and d.name == name)
    read = _read_off(model)
    own = {n: [v] for n, v in numbers_of(model, mapping.spec).items() if isinstance(v, int | float | str | bool)}
    lets = {d.name: constant(d.value) for d in tree.declarations if isinstance(d, ast.Let) and is_constant(d.value)}
    choices: dict[str, list[Any]] = {}
    for let, default in lets.items():
        if let in own:
            choices[let] = own[let]
        elif isinstance(default, bool):
            choices[let] = [default, not default]
        elif default is None and let not in read:
            choices[let] = [None, *read["of masks"]]
        else:
            choices[let] = read.get(let) or [*dict.fromkeys([default, *read.get("dims", ())])]
    hypers = [h.name for h in declared.header.hypers or ()]
    slots = [s.key for s in declared.body.slots if is_constant(s.value)]
    fixed = {n: own[n][0] for n in (*hypers, *slots) if n in own and n not in choices and type(own[n][0]) is int}
    fixed |= {n: read[n][0] for n in hypers if n not in fixed and n not in choices and n in read}
    return fixed, choices


def _read_off(model: Model) -> dict[str, list[Any]]:
    """The numbers of a model by the names of the options that they are of: `theta`, `eps`, and those of a scaled rope,
    whose name is the `rope_type`."""
    found: dict[str, dict[Any, None]] = {}
    kinds: dict[Any, None] = {}

    def note(name: str, value: Any) -> None:
        if isinstance(value, Num) and value.static:
            number: Any = value.value if isinstance(value.value, int) else float(value)
            found.setdefault(name, {})[number] = None

    for op in ops_below(model.block.graph):
        for name, value in op.options.items():
            note(name, value)
            if name == "scaling":
                kinds[getattr(value, "name", "default")] = None
                for inner, number in getattr(value, "numbers", {}).items():
                    note(inner, number)
    found["rope_type"] = kinds or {"default": None}
    masks = [op.options["mask"] for op in ops_below(model.block.graph) if op.op.makes_mask]
    numbers = {int(n): None for mask in masks for leaf in mask.leaves() for n in leaf.numbers if n.static}
    tied = any(isinstance(n, WeightNode) for n in nodes_below(model.block.graph))
    layers = sum(len(n.iterations) for n in model.block.graph.nodes if isinstance(n, LoopNode))
    more: dict[str, list[Any]] = {"tied": [tied], "of masks": [*numbers], "layers": [layers]}
    return {name: [*values] for name, values in found.items()} | more
