"""`archdsl lift`: a module is recorded in several configurations, written as a spec, compared with it, and kept."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from archdsl.diagnostics import ArchError, Diagnostic, error
from archdsl.diagnostics.source import printable
from archdsl.files import open_regular, together, write_text
from archdsl.frontend.load import load
from archdsl.frontend.modules import RESERVED
from archdsl.interop.huggingface import Folder, TensorSource, read_config, weights_from
from archdsl.interop.lift import compare, spec
from archdsl.interop.lift.authors import APPLIED
from archdsl.interop.lift.compare import Side, at
from archdsl.interop.lift.declared import Declaration
from archdsl.interop.lift.export import Exported, Lengths, export
from archdsl.interop.lift.fold import folded
from archdsl.interop.lift.inputs import (
    BATCH,
    TIME,
    Input,
    demand_known,
    forward_parameters,
    of_example,
    of_signature,
    opened,
    parsed,
    tried,
)
from archdsl.interop.lift.lower import Lowering
from archdsl.interop.lift.module import (
    FORM,
    MOST_NUMBERS,
    Number,
    Subject,
    asked,
    caching,
    found,
    is_hollow,
    of_callable,
    of_module,
    prepared,
    role,
    said,
    taken,
)
from archdsl.interop.lift.positions import Positions
from archdsl.interop.lift.report import LiftCheck, LiftReport
from archdsl.interop.lift.table import Row, Table, Written, written
from archdsl.interop.mapping import Mapper
from archdsl.syntax import ast
from archdsl.syntax.format import format_tree
from archdsl.syntax.limits import MAX_NAME
from archdsl.syntax.parser_tables import tables
from archdsl.weights.safetensors import Progress, saved

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archdsl.interop.lift.spec import Lifted, Results
    from archdsl.ir.graph import Model

Tell = Callable[[str], None]
"""Called with what is being done, as it begins."""


def asked_for(
    module: nn.Module | Callable[..., nn.Module] | str,
    example: Tensor | Sequence[Tensor] | Mapping[str, Tensor] | None,
    args: Mapping[str, Any],
    config: Path | None,
    inputs: Collection[str],
    axes: Mapping[str, Sequence[str | None]],
) -> tuple[Subject, list[Input] | None]:
    """Return what `archdsl.lift` is asked for: the module, and its inputs where anything says what they are. Raises
    ArchError E0543 to E0545."""
    fields = read_config(config, "E0543") if config is not None else None
    if isinstance(module, str):
        subject = found(module, args, fields)
    elif fields is not None:
        raise error("E0543", "`config` goes with the name of a class of transformers")
    elif isinstance(module, nn.Module):
        subject = of_module(module)
        if args:
            raise error("E0543", "`args` go with a class or a function: a module is there already")
    elif callable(module):
        subject = of_callable(module, args)
    else:
        raise error("E0543", f"what is given is of class `{type(module).__name__}`, and no module of torch", help=FORM)
    if example is not None and inputs:
        raise error("E0545", "`example` and `inputs` say the same", help="give one of them")
    if example is not None:
        tensors = example if isinstance(example, Mapping) else _in_order(subject, example)
        if not tensors or not all(isinstance(t, Tensor) for t in tensors.values()):
            raise error("E0545", "`example` is a tensor, or several by the names of inputs")
        return subject, of_example(tensors, axes)
    known = parsed([*inputs], subject.numbers) if inputs else None
    if not axes:
        return subject, known
    return subject, opened(known or of_signature(subject, subject.made()), axes)


def _in_order(subject: Subject, example: Tensor | Sequence[Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of the first parameters of `forward`."""
    given = [example] if isinstance(example, Tensor) else [*example]
    names = [*forward_parameters(subject.made())]
    if len(given) > len(names):
        raise error("E0545", f"`forward` of `{subject.name}` takes fewer inputs than the {len(given)} given")
    return dict(zip(names, given, strict=False))


@dataclass
class Lift:
    """A module that was lifted, before anything is written."""

    report: LiftReport
    model: Model
    module: nn.Module
    written: Written
    apart: bool
    """Whether another configuration has another structure."""


def lift(
    subject: Subject,
    *,
    inputs: Sequence[Input] | None = None,
    vary: Mapping[str, Sequence[Number]] | None = None,
    declarations: Sequence[Declaration] = (),
    output: Path | None = None,
    fold: bool = False,
    whole: bool = True,
    tell: Tell = lambda _: None,
) -> Lift:
    """Make a spec of a module, and compare the two. Nothing is written; `output` is where the spec will be, whose stem
    is the model's name. Blocks of `declarations` stand for modules of their classes. With `fold`
    blocks that compute what the library's do become slots. Unless it is `whole`, neither the
    types in bfloat16 nor a training step are recorded, which takes a third of the time.

    Raises ArchError: E0540 where the module cannot be traced, E0541 where the call fixes an axis, E0542 where the
    language has no words for an operator, E0543 to E0545 for what was asked for, E0547 where the spec is wrong."""
    with _kept(subject) as own:
        how: dict[str, Any] = {"output": output, "fold": fold, "whole": whole, "tell": tell}
        made = _lifted(own, inputs, vary, declarations, repeating=False, **how)
        if made.apart and not vary and any(role(name) == "layers" for name in own.numbers):
            tell(f"layers of {subject.name} repeat in a pattern: once more, with other configurations")
            made = _lifted(own, inputs, vary, declarations, repeating=True, **how)
        return made


def _lifted(
    own: Subject,
    inputs: Sequence[Input] | None,
    vary: Mapping[str, Sequence[Number]] | None,
    declarations: Sequence[Declaration],
    *,
    repeating: bool,
    output: Path | None,
    fold: bool,
    whole: bool,
    tell: Tell,
) -> Lift:
    """`lift` with one choice of other configurations."""
    tell(f"building {own.name}")
    sides = _sides(own, inputs, vary, tell, repeating=repeating)
    recordings = []
    for side, time in sides:
        tell(f"recording {own.name}{at(side.changes)}")
        recordings.append(_recorded(side, time, declarations, types=whole))
    sides_only = [
        compare.side_of(own, side.changes, side.module, side.inputs, indices, recorded.lengths)
        for (side, _), (recorded, indices) in zip(sides, recordings, strict=True)
    ]
    exports = [recorded for recorded, _ in recordings]
    tell(f"writing the spec of {own.name}")
    output = output or Path(f"{_model_name(own.name)}.arch")
    time = min(time for _, time in sides)
    return _compared(own, sides_only, exports, output, time, declarations, tell, fold=fold, whole=whole)


@contextlib.contextmanager
def _kept(subject: Subject) -> Iterator[Subject]:
    """The subject with a module in float32 on the CPU; that of somebody else is left as it was."""
    module = subject.fixed
    if module is None:
        yield subject
        return
    floats = [p for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()]
    if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in floats):
        with asked(f"`{subject.name}` cannot be copied"):
            module = deepcopy(module).cpu().float()
    training = {part: part.training for part in module.modules()}
    cached = caching(module)
    try:
        yield replace(subject, fixed=prepared(module))
    finally:
        for part, flag in training.items():
            part.training = flag
        for config in cached:
            config.use_cache = True


def _sides(
    subject: Subject,
    inputs: Sequence[Input] | None,
    vary: Mapping[str, Sequence[Number]] | None,
    tell: Tell,
    *,
    repeating: bool,
) -> list[tuple[Side, int]]:
    """The module as it is and in other configurations, each with the length of the call to record."""
    module = subject.made()
    given = [*inputs] if inputs is not None else of_signature(subject, module)
    demand_known(given, module, subject.name)
    built: dict[tuple[tuple[str, Number], ...], tuple[Side, int]] = {}

    def works(changes: Mapping[str, Number]) -> bool:
        with contextlib.suppress(ArchError):
            other = subject.made(changes)
            return not is_hollow(other) and tried_at(changes, other) is not None
        return False

    def tried_at(changes: Mapping[str, Number], other: nn.Module) -> tuple[Side, int]:
        numbers = {**subject.numbers, **changes}
        known, time, _ = tried(subject, other, given, numbers)
        side = Side(other, dict(changes), numbers, known, (), Lengths())
        built[tuple(sorted(changes.items()))] = side, time
        return side, time

    own = None if is_hollow(module) else tried_at({}, module)
    if subject.numbers:
        tell(f"looking for other configurations of {subject.name}")
    others = []
    for changes in taken(subject, works, vary, repeating) if subject.numbers else []:
        key = tuple(sorted(changes.items()))
        others.append(built[key] if key in built else tried_at(changes, subject.made(changes)))
    if own is None:
        # Its tokens are drawn from two: what lies above is known of those that can be called.
        own = Side(module, {}, subject.numbers, given, (), Lengths()), TIME
        if not others:
            text = f"`{subject.name}` has more than {MOST_NUMBERS:,} parameters, and no smaller configuration was found"
            raise error("E0543", text, help="`--vary n_layer=2,3` names fields and smaller values")
    return [own, *others]


def _recorded(
    side: Side, time: int, declarations: Sequence[Declaration], *, types: bool = True
) -> tuple[Exported, list[int]]:
    """Record a call; the results that are kept, and which of its tensors they are: the logits, where there are any, and
    no caches, losses, or states between layers."""
    generator = torch.Generator().manual_seed(0)
    example = {i.name: i.made(BATCH, time, side.numbers, generator) for i in side.inputs}
    recorded = export(side.module, example, {i.name: i.open for i in side.inputs}, declarations, types=types)
    names = [name for name, _ in recorded.results]
    indices = [i for i, name in enumerate(names) if name == "logits"]
    indices = indices or [i for i, name in enumerate(names) if not re.match(NO_RESULT, name)] or [*range(len(names))]
    if not indices:
        raise error("E0544", f"`{type(side.module).__name__}` returns no tensor")
    return replace(recorded, results=tuple(recorded.results[i] for i in indices)), indices


NO_RESULT = r"(past_key_values|hidden_states|attentions|cross_attentions|loss|.*loss$|.*cache.*|router_logits)"


def _model_name(stem: str) -> str:
    """A name of the language from that of a class or a file."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\W+", "_", stem, flags=re.ASCII).lower().strip("_")[:MAX_NAME] or "lifted"
    while name[0].isdigit() or name in {*tables().keywords, *RESERVED, *APPLIED, "inf"}:
        name = f"model_{name}"[:MAX_NAME]
    return name


# --- the spec ---------------------------------------------------------------------------------------------------------


def _loaded(text: str, output: Path, changes: Mapping[str, Number] | None = None) -> Model:
    """The model of a spec that is not written yet, with other values for what it has hyper-parameters for."""
    model = load(output.name, text=text)
    own = {field.name for field in model.config}
    settings = {name: value for name, value in (changes or {}).items() if name in own}
    return load(output.name, text=text, set=settings) if settings else model


def _lowered(recorded: Exported) -> tuple[Results, list[ast.BlockDecl]]:
    """What a recording computes, in the words of the language, and the blocks that these name. Raises ArchError
    E0542."""
    lowering = Lowering(recorded, Positions(recorded))
    results = lowering.results()
    return results, [*lowering.declarations.values()]


def _written(
    lowered: Sequence[tuple[Results, list[ast.BlockDecl]]],
    exports: Sequence[Exported],
    sides: Sequence[Side],
    name: str,
    *,
    causal: bool,
) -> Lifted:
    """The spec of all configurations, the module's own first. Raises ArchError E0542."""
    fields = {name: [side.numbers[name] for side in sides] for name in sides[0].numbers}
    others = [(results, recorded) for (results, _), recorded in zip(lowered, exports, strict=True)][1:]
    blocks = {block.name: block for _, named in lowered for block in named}
    return spec.written(lowered[0][0], exports[0], name, fields, others, causal=causal, blocks=[*blocks.values()])


def _given(recorded: Exported) -> list[str]:
    """The inputs that the results depend on, in the module's order, which is the spec's."""
    used = {value for value in compare.reached(recorded) if value.op == "input"}
    return [value.name for value in recorded.inputs if value in used]


def _compared(
    subject: Subject,
    sides: Sequence[Side],
    exports: Sequence[Exported],
    output: Path,
    time: int,
    declarations: Sequence[Declaration],
    tell: Tell,
    *,
    fold: bool,
    whole: bool,
) -> Lift:
    """The spec of some recordings, with all that was compared."""
    name = _model_name(output.stem)
    results = [_lowered(recorded) for recorded in exports]
    remarks: list[str] = []
    causal = "time" in exports[0].axes
    lifted = _written(results, exports, sides, name, causal=causal)
    text = format_tree(lifted.tree)
    try:
        model = _loaded(text, output)
    except ArchError as problem:
        leaking = [d for d in problem.diagnostics if d.code == "E0406"]
        if not causal or not leaking:
            raise _wrong(subject, problem) from None
        causal = False
        remarks.append(f"not proved causal: {leaking[0].message}")
        lifted = _written(results, exports, sides, name, causal=False)
        text = format_tree(lifted.tree)
        try:
            model = _loaded(text, output)
        except ArchError as second:
            raise _wrong(subject, second) from None
    remarks += lifted.notes
    if fold:
        tell(f"folding the spec of {subject.name}")
        shorter = folded(lifted.tree, lifted.model)
        remarks += shorter.notes
        rows = tuple(row._replace(ours=shorter.renames.get(row.ours, row.ours)) for row in lifted.weights)
        lifted = replace(lifted, tree=shorter.tree, weights=rows)
        text = format_tree(lifted.tree)
        model = _loaded(text, output)
    table = Table(Row(*row) for row in lifted.weights)
    own = sides[0]
    if len(sides) == 1:
        remarks.append("no other configuration was built: every size of the spec is a number")
    unread = [compare.unread(recorded) for recorded in exports]
    if unread[0]:
        left = sorted(unread[0])
        more = f" and {len(left) - 3} more" if left[3:] else ""
        remarks.append(f"no output depends on {', '.join(left[:3])}{more}: the spec is without them")
    checks, models = _checks(
        subject, sides, text, output, _given(exports[0]), table, model, causal, unread, remarks, tell
    )
    if whole:
        tell(f"recording a training step of {subject.name}")
        smallest, recorded = min(zip(sides, exports, strict=True), key=lambda pair: compare.size(pair[0].module))
        remarks += compare.in_training(smallest, recorded, smallest.example(BATCH, time), declarations)
    initial = []
    small = [(changes, there) for changes, there in models if changes or not is_hollow(own.module)]
    if small and (subject.fixed is None or subject.numbers):
        tell(f"measuring how {subject.name} is initialized")
        initial = compare.initial_values(subject, small[1:] or small, table)
    made = _table_file(subject, own.module, table, model, output)
    checks.append(_mapped(made, model, own.module))
    failed = compare.messages(checks)
    head = f"unverified: {failed}" if failed else f"Lifted from {subject.origin}."
    report = LiftReport(
        model=model.name,
        module=printable(subject.origin),
        text=format_tree(replace(lifted.tree, doc=head)),
        checkpoint=made.text,
        files=[],
        parameters=compare.size(own.module),
        tensors=len({row.theirs for row in table.rows.values()}),
        configurations=[dict(side.changes) for side in sides[1:]],
        causal=causal,
        checks=checks,
        initial_values=initial,
        remarks=remarks,
    )
    return Lift(report, model, own.module, made, lifted.apart)


def _wrong(subject: Subject, problem: ArchError) -> ArchError:
    """What is wrong with a spec that was made, after the finding E0547 that it is."""
    first = problem.diagnostics[0]
    text = f"the spec that was made of `{subject.name}` is wrong: {first.message}"
    return ArchError([Diagnostic("E0547", text), *problem.diagnostics])


def _checks(
    subject: Subject,
    sides: Sequence[Side],
    text: str,
    output: Path,
    names: Sequence[str],
    table: Table,
    model: Model,
    causal: bool,
    unread: Sequence[Collection[str]],
    remarks: list[str],
    tell: Tell,
) -> tuple[list[LiftCheck], list[tuple[Mapping[str, Number], Model]]]:
    """Compare the spec with the module in every configuration; return what was compared, and the models."""
    checks: list[LiftCheck] = []
    models: list[tuple[Mapping[str, Number], Model]] = []
    stepped = False
    for side, idle in zip(sides, unread, strict=True):
        tell(f"comparing with {subject.name}{at(side.changes)}")
        try:
            there = model if not side.changes else _loaded(text, output, side.changes)
        except ArchError as problem:
            message = f"there is no such model{at(side.changes)}: {problem.diagnostics[0].message}"
            checks.append(_failed("parameters", side, message))
            continue
        models.append((side.changes, there))
        checks.append(compare.parameters(side, there, table, idle))
        if not compare.runs(side) or not checks[-1].passed:
            continue
        checks.append(compare.outputs(side, there, table, names))
        if causal and not stepped:
            stepped = True
            steps = compare.decode_steps(side, there, table, names)
            if isinstance(steps, str):
                remarks.append(steps)
            elif steps is not None:
                checks.append(steps)
    if not any(check.what == "outputs" for check in checks) and all(check.passed for check in checks):
        checks.append(_failed("outputs", sides[0], "no outputs were compared"))
    return checks, models or [({}, model)]


def _failed(what: Any, side: Side, message: str) -> LiftCheck:
    return LiftCheck(what=what, configuration=dict(side.changes), passed=False, difference=None, message=message)


def _table_file(subject: Subject, module: nn.Module, table: Table, model: Model, output: Path) -> Written:
    taken_names = {row.theirs for row in table.rows.values()}
    shared = compare.shared(module)
    stored = [*module.state_dict()]
    ties = {}
    for name in stored:
        others = [n for n in shared.get(name, ()) if n in taken_names and n != name]
        if name not in taken_names and others:
            ties[name] = others[0]
    config = subject.config
    return written(
        table,
        model,
        output,
        origin=subject.origin,
        stored=stored,
        ties=ties,
        kind=getattr(config, "model_type", None) if config is not None else None,
        config=json.loads(config.to_json_string(use_diff=False)) if config is not None else None,
    )


def _mapped(made: Written, model: Model, module: nn.Module) -> LiftCheck:
    """Read a checkpoint of the module, by its names and shapes alone, as the table says."""
    state = module.state_dict()
    message = f"the table gives {len(saved(model)):,} weights from {len(state):,} tensors"
    try:
        Mapper(made.mapping, model, state).demand({name: tuple(t.shape) for name, t in state.items()})
        passed = True
    except ArchError as problem:
        passed, message = False, problem.diagnostics[0].message
    return LiftCheck(what="checkpoint", configuration={}, passed=passed, difference=None, message=message)


# --- files ------------------------------------------------------------------------------------------------------------


def write(
    lifted: Lift, output: Path, source: TensorSource | None = None, progress: Progress | None = None
) -> LiftReport:
    """Write the spec, the table beside it, and of the tensors of a `source` a safetensors file in the spec's names: all
    of them, or none. Raises ArchError E0532 for tensors that are not the module's, OSError where a file cannot be
    written."""
    report = lifted.report
    report.files = [str(output)]
    with together():
        if report.checkpoint is not None:
            report.files.append(str(output.with_suffix(".checkpoint")))
            write_text(output.with_suffix(".checkpoint"), report.checkpoint)
        if source is not None:
            path = output.with_suffix(".safetensors")
            report.files.append(str(path))
            weights_from(source, Mapper(lifted.written.mapping, lifted.model, source.shapes), path, progress)
        write_text(output, report.text)
    return report


TYPES = {
    torch.float32: ("F32", torch.int32),
    torch.float64: ("F64", torch.int64),
    torch.float16: ("F16", torch.int16),
    torch.bfloat16: ("BF16", torch.int16),
    torch.int64: ("I64", torch.int64),
}
"""What safetensors calls a type, and whole numbers of its width."""


class States:
    """The tensors of a state dict."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state = state

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.state.items()}

    def type_of(self, name: str) -> str:
        """The type of a tensor as safetensors calls it. Raises ArchError E0532 for one that no weight has."""
        kind = self.state[name].dtype
        if kind not in TYPES:
            raise error("E0532", f"`{name}` holds numbers of type {str(kind).removeprefix('torch.')}")
        return TYPES[kind][0]

    def tensor(self, name: str) -> NDArray[Any]:
        tensor = self.state[name].detach().cpu().contiguous()
        bits = tensor.view(TYPES[tensor.dtype][1]).numpy()
        return bits.view(f"<u{bits.dtype.itemsize}")

    def __enter__(self) -> States:
        return self

    def __exit__(self, *problem: object) -> None:
        pass


def tensors(path: Path) -> TensorSource:
    """The tensors of a safetensors file, or of a file of `torch.save`. Raises ArchError E0503 and E0533."""
    return Folder(path) if path.suffix == ".safetensors" else States(stored(path))


def stored(path: Path) -> dict[str, Tensor]:
    """The state dict in a file of `torch.save`, itself or under the name that trainers give it. Nothing but tensors is
    unpickled. Raises ArchError E0503 where there is none."""
    try:
        open_regular(path).close()
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (MemoryError, RecursionError):
        raise
    except Exception as problem:  # whatever is no such file
        text = f"`{path}` holds no state dict that can be read without running code: {said(problem)}"
        raise error("E0503", text, help="save `module.state_dict()`, or a safetensors file") from None
    for key in (None, *HELD_AS):
        state = content if key is None else content.get(key) if isinstance(content, dict) else None
        if (
            isinstance(state, dict)
            and state
            and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items())
        ):
            return _bare(state)
    raise error("E0503", f"`{path}` holds no state dict", help="save `module.state_dict()`")


HELD_AS = ("model", "state_dict", "model_state_dict")
"""Under what trainers keep the state dict of a model."""
WRAPPED = ("_orig_mod.", "module.")
"""What `torch.compile` and data parallelism put before every name."""


def _bare(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    for prefix in WRAPPED:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return dict(state)
