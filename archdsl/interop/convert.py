"""Checkpoints in and out: a folder as a spec with its weights, weights of a spec as a folder."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from archdsl.diagnostics import ArchError, Diagnostic, did_you_mean, error, shortened
from archdsl.diagnostics.source import Source, printable
from archdsl.files import together, write_text
from archdsl.frontend.load import load
from archdsl.frontend.modules import RESERVED
from archdsl.interop import compare
from archdsl.interop.checkpoint_file import CheckpointFile, read, renamed, shipped
from archdsl.interop.config_json import json_text, whole_config
from archdsl.interop.doubts import doubts
from archdsl.interop.fitting import Fitted, Mapped, demand_one_rotation, write_fitted
from archdsl.interop.gguf import GgufFile
from archdsl.interop.huggingface import (
    Folder,
    Renamed,
    TensorSource,
    config_fields,
    demand_fixed,
    mapping_of,
    settings_of,
    weights_from,
    weights_to,
)
from archdsl.interop.importing import written
from archdsl.interop.lift.report import LiftReport
from archdsl.interop.mapping import Mapper
from archdsl.interop.native import says_all
from archdsl.passes.outline import HEAD, OWN_TYPE, outline
from archdsl.ranges import demand
from archdsl.resources import mapping_files
from archdsl.shown import Shown
from archdsl.syntax import ast
from archdsl.syntax.limits import MAX_NAME
from archdsl.syntax.parse import parse, read_source
from archdsl.syntax.parser_tables import tables
from archdsl.weights.carried import CONFIG, carried, carry, copy, dtype_of, fields_of, token_ids
from archdsl.weights.safetensors import Checkpoint, Progress, saved

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

TOLERANCE = 1e-4
"""Largest difference from transformers' outputs that passes `--check`, relative to the largest output, in float32."""


class ImportReport(BaseModel, Shown):
    """What `archdsl import` has written."""

    spec: str
    """The spec's file."""
    model_type: str
    family: str | None
    """The file of the family that it is a member of; None where it was lifted."""
    parameters: int
    weights: str | None
    """The file of weights, in the spec's names."""
    tensors: int
    """How many tensors of the checkpoint it holds."""
    files: list[str]
    """What was carried along."""
    doubts: list[str]
    """What the mapping has most likely wrong, though all sizes agree."""
    difference: float | None
    """The largest difference of logits to transformers', relative to the largest of these; None where not compared."""
    tolerance: float
    """The largest difference that passes."""
    lift: LiftReport | None = None
    """How the spec compares with the class of transformers that it was made from, where it was lifted."""

    @property
    def written(self) -> list[str]:
        """Every file that was written."""
        own = self.lift.files if self.lift is not None else [self.spec]
        return [*dict.fromkeys([*own, *([self.weights] if self.weights is not None else []), *self.files])]

    def disagreement(self) -> Diagnostic | None:
        """Return the finding E0548 where a spec that was lifted is not its class, and E0535 where outputs were compared
        and differ by more than the tolerance, or are NaN."""
        if self.lift is not None and (finding := self.lift.disagreement()) is not None:
            return finding
        if self.difference is None or self.difference <= self.tolerance:
            return None
        return Diagnostic(
            "E0535",
            f"`{self.spec}` computes something else than transformers' {self.model_type}: outputs differ by "
            f"{self.difference:.1e} of the largest, and {self.tolerance:g} passes",
            notes=(_kept(self.written),),
            help="do not use them as that model; --tolerance sets what passes",
        )


def import_folder(
    source: Path,
    output: Path,
    *,
    mapping: str | None = None,
    weights: bool = True,
    check: bool = False,
    tolerance: float | None = None,
    ignore: Sequence[str] = (),
    lift: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    progress: Callable[[Model], AbstractContextManager[Progress | None]] = lambda _: nullcontext(),
) -> ImportReport:
    """Write a checkpoint of Hugging Face as a spec, and its weights beside it as safetensors in the spec's names.

    `source` is a folder, a `config.json` alone, or a GGUF file; `mapping` is the name or the path of a `.checkpoint`
    file, by default that of the config's `model_type`; `ignore` names fields that it has no place for. With `check`
    outputs are compared with transformers', and the report says whether they differ by more than the `tolerance`, a
    share of the largest. With `lift` there is no mapping: the spec is made of transformers' own class, of which `tell`
    is told what is being done. `progress` is asked for a context once the model is known, and told of each
    weight that is written. Raises ArchError E0509 for arguments that do not go together, E0531 to E0533 where mapping,
    checkpoint and spec disagree, E0540 to E0547 where a class cannot be lifted: nothing is written then."""
    from archdsl.estimates.counts import total

    if output.suffix != ".arch":
        raise error("E0509", f"`output` ends in .arch, unlike `{shortened(str(output))}`")
    if check and (not weights or source.suffix == ".json"):
        raise error("E0509", "`check` compares outputs: it needs the weights of a checkpoint")
    if tolerance is not None and not check:
        raise error("E0509", "`tolerance` goes with `check`", help="give `check` too, or leave it out")
    if check:
        compare.demand_packages("--check")
    if tolerance is not None:
        demand("tolerance", tolerance)
    passes = TOLERANCE if tolerance is None else tolerance
    if lift:
        for option, value in (("mapping", mapping), ("ignore", ignore)):
            if value:
                raise error("E0509", f"`{option}` goes with a mapping, and `lift` needs none", help="leave one out")
        if source.suffix == ".gguf":
            raise error("E0509", "`lift` reads the config.json of a class of transformers, and a GGUF file has none")
        return _lifted(source, output, weights, check, passes, tell, progress)
    folder, found = opened(source, mapping, weights and source.is_dir())
    if weights:
        _demand_tensors(source, folder)
    fields = [name for name, _ in config_fields(folder.config)]
    for name in ignore:
        if name not in folder.config and not any(field == name or field.startswith(f"{name}.") for field in fields):
            raise error("E0533", f"the config has no field `{name}` to ignore", help=did_you_mean(name, fields))
        if name in {n for f in found.fields for n in f.names}:
            raise error("E0533", f"`--ignore` is for fields that the mapping does not read, and it reads `{name}`")
    found = replace(found, ignored=[*found.ignored, *ignore])
    settings = settings_of(found, folder.config)
    kind = printable(shortened(str(folder.config.get("model_type")), 60))
    family = read_source(settings.spec, settings.spec.name)
    name = _model_name(output.stem, family)
    text = written(
        family,
        settings.model,
        settings.values,
        name,
        f"# {printable(output.stem)}: imported from {printable(source.resolve().name)}, a {kind}.",
        settings.fields,
    )
    model = _loaded(output.name, text, family)
    demand_fixed(settings, model)
    report = ImportReport(
        spec=str(output), model_type=kind, family=settings.spec.name, parameters=total(model), weights=None, tensors=0,
        files=[], doubts=[], difference=None, tolerance=passes,
    )  # fmt: skip
    beside = folder.beside() if weights else {}  # before anything is written: it may be broken
    if weights and folder.shapes:
        mapper = Mapper(found, model, folder.shapes)
        path = output.with_suffix(".safetensors")
        report.weights, report.tensors, report.doubts = str(path), len(mapper.taken), doubts(mapper)
    with together():
        if report.weights is not None:
            with progress(model) as told:
                weights_from(folder, mapper, path, told)
        if weights:
            report.files += map(str, carry(beside, output))
        write_text(output, text)
    if check:
        _compare(report, source, model, found)
    return report


def _demand_tensors(source: Path, folder: Folder | GgufFile) -> None:
    if not folder.shapes and source.suffix != ".json":
        raise error("E0533", f"`{source}` holds no tensors", help="`--no-weights` writes the spec alone")


def _compare(report: ImportReport, source: Path, model: Model, mapping: CheckpointFile) -> None:
    """Put into the report how far the outputs of what was written are from transformers'. Errors, which are those of
    `compare.difference`, say what was written."""
    unread = [*mapping.drops, *(d.removeprefix(mapping.base) for d in mapping.drops)]
    try:
        report.difference = compare.difference(source, model, Path(report.spec).with_suffix(".safetensors"), unread)
    except ArchError as problem:
        kept = _kept(report.written)
        raise ArchError(replace(d, notes=(*d.notes, kept)) for d in problem.diagnostics) from None


def _lifted(
    source: Path,
    output: Path,
    weights: bool,
    check: bool,
    tolerance: float,
    tell: Callable[[str], None],
    progress: Callable[[Model], AbstractContextManager[Progress | None]],
) -> ImportReport:
    """Write a checkpoint as a spec that is made of transformers' own class, with its table of weights, and the weights
    beside it. Errors as for `import_folder`."""
    compare.demand_packages("--lift")
    from archdsl.interop.lift.lifting import States, lift, write
    from archdsl.interop.lift.module import TRANSFORMERS, aside
    from archdsl.interop.lift.module import found as subject_of

    if not output.parent.is_dir():  # before minutes of work
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(output.parent))
    folder = Folder(source, weights and source.is_dir())
    if weights:
        _demand_tensors(source, folder)
    beside = folder.beside() if weights else {}
    with aside():
        subject = subject_of(f"{TRANSFORMERS}:{compare.class_name(folder.config)}", {}, folder.config)
        made = lift(subject, output=output, tell=tell)
        mapping = made.written.mapping
        tensors: TensorSource | None = None
        if weights and folder.shapes:
            tensors = folder
            try:
                Mapper(mapping, made.model, folder.shapes).demand(folder.shapes)
            except ArchError:
                tell(f"reading {source} with transformers")
                tensors = States(compare.converted(source))
    report = ImportReport(
        spec=str(output), model_type=printable(shortened(str(folder.config.get("model_type")), 60)), family=None,
        parameters=made.report.parameters, weights=None, tensors=0, files=[], doubts=[], difference=None,
        tolerance=tolerance, lift=made.report,
    )  # fmt: skip
    if tensors is not None:
        report.weights, report.tensors = str(output.with_suffix(".safetensors")), len(folder.shapes)
    with together(), progress(made.model) as told:
        write(made, output, tensors, told)
        if weights:
            report.files += map(str, carry(beside, output))
    if check:
        _compare(report, source, made.model, mapping)
    return report


def _loaded(name: str, text: str, family: Source) -> Model:
    """Return the model of a spec that was made from a config and is not written yet. Raises ArchError E0533 where its
    family has no model of these sizes: the lines of the spec are nowhere to be read."""
    try:
        return load(name, text=text)
    except ArchError as problem:
        raise ArchError(
            Diagnostic(
                "E0533",
                f"`{family.name}` has no model of the sizes in the config: {d.message}",
                help=f"write a spec of your own: `archdsl show {family.name.removesuffix('.arch')} --source` prints "
                "that of the family; give its mapping with --map FILE.checkpoint",
            )
            for d in problem.diagnostics
        ) from None


def _model_name(stem: str, family: Source) -> str:
    """Return the name of a model in a file of that stem, after a family's file: the stem, with `model_` before it where
    it is a word of the language or a name that the family's file reads or declares."""
    name = re.sub(r"\W", "_", stem, flags=re.ASCII).strip("_")[:MAX_NAME] or "model"
    tree = parse(family)
    taken = {*tables().keywords, *RESERVED, "inf", *(n.id for n in ast.walk(tree) if isinstance(n, ast.Name))}
    taken |= {d.name for d in tree.declarations if isinstance(d, ast.Let | ast.BlockDecl)}
    while name[0].isdigit() or name in taken:
        name = f"model_{name}"[:MAX_NAME]
    return name


def _kept(files: Sequence[str]) -> str:
    return f"written, and kept: {', '.join(files)}"


def opened(source: Path, mapping: str | None, weights: bool = True) -> tuple[Folder | GgufFile, CheckpointFile]:
    """A checkpoint, and the mapping of that name or, without one, of its `model_type`."""
    folder = GgufFile(source) if source.suffix == ".gguf" else Folder(source, weights)
    if mapping is None:
        return folder, mapping_of(folder.config)
    return folder, named_mapping(mapping).of(str(folder.config.get("model_type")))


def is_own(source: Path) -> bool:
    """Whether a folder is one that `compile --to hf` wrote, or was saved as such."""
    return source.is_dir() and str(Folder(source, weights=False).config.get("model_type")).startswith(OWN_TYPE)


def named_mapping(name: str) -> CheckpointFile:
    """A mapping by the path of its file, by a `model_type`, or by the name of one that ships. Raises ArchError E0531
    where there is none."""
    if name.endswith(".checkpoint"):
        return read(Path(name))
    known = shipped()
    files = {path.stem: path for path in mapping_files()}
    if name not in known and name not in files:
        raise error(
            "E0531",
            f"there is no mapping `{name}`",
            help=did_you_mean(name, known) or f"there are {', '.join(sorted(known))}; a file ends in `.checkpoint`",
        )
    return known[name] if name in known else read(files[name])


def convert_from(
    model: Model,
    source: Path,
    output: Path,
    mapping: str | None = None,
    renames: Sequence[tuple[str, str]] = (),
    progress: Progress | None = None,
    doubted: Callable[[str], None] = lambda _: None,
) -> int:
    """Write the weights of a checkpoint in the names of a spec; how many tensors of theirs there are.

    `source` may be a safetensors file, too, whose tensors have the spec's own names unless a `mapping` is given, or a
    folder that `compile --to hf` wrote of the spec. Before the mapping, prefixes of names are replaced: `renames` are
    pairs of an old and a new one. `doubted` is told what the mapping has most likely wrong, before anything is written.
    Errors as for `import_folder`, and E0532 for prefixes that fit nothing."""
    if mapping is None and source.suffix == ".safetensors":
        folder: Folder | GgufFile = Folder(source)
        found = renamed({info.path: info.path for info in saved(model)})
    elif mapping is None and is_own(source):
        folder, outlined = Folder(source), outline(model)
        found = renamed(outlined.paths)
        found.ties += [(f"{HEAD}.weight", outlined.tie)] * bool(outlined.tie)
    else:
        folder, found = opened(source, mapping)
    tensors = Renamed(folder, renames)
    mapper = Mapper(found, model, tensors.shapes)
    mapper.demand(tensors.shapes)
    for text in doubts(mapper):
        doubted(text)
    weights_from(tensors, mapper, output, progress)
    _carry_along(source, folder, output)
    return len(mapper.taken)


def _carry_along(source: Path, folder: Folder | GgufFile, output: Path) -> None:
    """Put what a checkpoint holds beside its tensors into the folder of `output`."""
    if source.is_dir() or isinstance(folder, GgufFile):
        own = [CONFIG] if is_own(source) else []  # in the names of the spec's classes
        carry({name: content for name, content in folder.beside().items() if name not in own}, output)


def fit_from(
    model: Model,
    source: Path,
    output: Path,
    mapping: str | None = None,
    renames: Sequence[tuple[str, str]] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Fitted:
    """Write the weights of a checkpoint that fit a spec, in its names, and initialize the others with a seed; what
    became of each. `source` is what `convert_from` takes: a folder whose mapping is known is read as the spec that its
    own config says, so its names are those of an import. Errors as there, and E0532 where nothing fits."""
    tensors: Renamed | Mapped
    if source.suffix == ".safetensors" and mapping is None:
        folder: Folder | GgufFile = Folder(source)
        tensors = Renamed(folder, renames)
    elif source.is_file() and source.suffix != ".gguf":
        raise error(
            "E0531",
            "a mapping needs the config.json that lies beside the tensors",
            help="`--from hf FOLDER`, or a file with the spec's own names without `--map`",
        )
    elif mapping is None and is_own(source):
        folder = Folder(source)
        tensors = Renamed(folder, renames, {theirs: ours for ours, theirs in outline(model).paths.items()})
    else:
        folder, found = opened(source, mapping)
        origin = _origin(folder, found)
        demand_one_rotation(origin, model)
        renamed_tensors = Renamed(folder, renames)
        tensors = Mapped(renamed_tensors, Mapper(found, origin, renamed_tensors.shapes))
    fitted = write_fitted(model, tensors, output, seed, progress)
    _carry_along(source, folder, output)
    return fitted


def _origin(folder: Folder | GgufFile, mapping: CheckpointFile) -> Model:
    """The model that a checkpoint's own config says."""
    settings = settings_of(mapping, folder.config)
    family = read_source(settings.spec, settings.spec.name)
    name = _model_name("checkpoint", family)
    text = written(family, settings.model, settings.values, name, "# As it came.", settings.fields)
    model = _loaded("checkpoint.arch", text, family)
    demand_fixed(settings, model)
    return model


@together()
def convert_to(
    model: Model, weights: Path, output: Path, mapping: str | None = None, progress: Progress | None = None
) -> int:
    """Write weights of a spec as a folder with `config.json`, in the names of a mapping: by default that which lies
    beside the spec, else that of the `model_type` from which it was imported. How many tensors there are."""
    path = model.origin.spec.path
    beside = carried(model, weights)
    said = fields_of(beside, CONFIG)
    own = path is not None and path.with_suffix(".checkpoint").is_file()
    if mapping is None and not own and str(said.get("model_type")) in shipped():
        mapping = str(said["model_type"])
    if mapping is None and not own:
        raise error("E0531", f"no mapping lies beside the spec of `{model.name}`", help="name one: `--map llama`")
    found = named_mapping(mapping) if mapping is not None else read(path.with_suffix(".checkpoint"))
    mapper = Mapper(found, model)
    kind = mapping if mapping in found.types else next(iter(found.types), "")
    same = says_all(found, str(kind), said, model)
    config = whole_config(found, str(kind), model, token_ids(beside) | said, same)
    config["dtype"] = dtype_of(said, [e.dtype for e in Checkpoint(weights).entries.values()])
    weights_to(model, mapper, weights, output, "".join(config["architectures"]), progress)
    copy(beside, output)
    write_text(output / CONFIG, json_text(config))
    return len(mapper.taken)
