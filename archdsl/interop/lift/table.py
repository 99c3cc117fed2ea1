"""The table of weights: what each weight of the spec is called in the module, in its own and in other configurations,
and as a `.checkpoint` file."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from archdsl.diagnostics.source import Source, Span, printable
from archdsl.interop.checkpoint_file import CheckpointFile, TensorRule
from archdsl.interop.mapping import rotations
from archdsl.ir.paths import starred
from archdsl.weights.safetensors import saved

if TYPE_CHECKING:
    from archdsl.ir.graph import Model


class Row(NamedTuple):
    """A weight of the spec, that of the module which it is, and whether the module has its axes the other way round."""

    ours: str
    theirs: str
    transposed: bool = False


class Table:
    """The rows of one configuration, which tell those of any other: numbers of layers there are those here, times and
    plus a number (`blocks.i` is `layers.(2 i + 1)`)."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {row.ours: row for row in map(Row._make, rows)}
        self.like: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows.values():
            self.like[starred(row.ours)].append(row)

    def of(self, path: str) -> Row | None:
        """Return the row of a weight of the spec, which may be one of more layers; None where no row is like it."""
        if path in self.rows:
            return self.rows[path]
        alike = self.like.get(starred(path), [])
        if len({(starred(r.theirs), r.transposed) for r in alike}) != 1:
            return None
        own = _numbers(path)
        known = [(_numbers(r.ours), _numbers(r.theirs)) for r in alike]
        wanted = [_followed(own, known, at) for at in range(len(known[0][1]))]
        if None in wanted:
            return None
        rest = iter(wanted)
        theirs = ".".join(str(next(rest)) if step == "*" else step for step in starred(alike[0].theirs).split("."))
        return Row(path, theirs, alike[0].transposed)


def _numbers(path: str) -> list[int]:
    return [int(step) for step in path.split(".") if step.isdecimal()]


def _followed(own: Sequence[int], known: Sequence[tuple[list[int], list[int]]], at: int) -> int | None:
    """The number in a name of theirs at one place, which follows from one of ours by a line through all known, or is
    the same in all."""
    theirs = [b[at] for _, b in known]
    for i, number in enumerate(own):
        ours = [a[i] for a, _ in known]
        first, second = 0, next((k for k in range(len(ours)) if ours[k] != ours[0]), None)
        if second is None:
            if ours[0] == theirs[0] and len({*theirs}) == 1:
                return number
            continue
        step, rest = divmod(theirs[second] - theirs[first], ours[second] - ours[first])
        if step and not rest and all(b - theirs[0] == step * (a - ours[0]) for a, b in zip(ours, theirs, strict=True)):
            return theirs[0] + step * (number - ours[0])
    return theirs[0] if len({*theirs}) == 1 else None


# --- as a file --------------------------------------------------------------------------------------------------------

PATH = re.compile(r"[\w*][\w.*]*")
"""A name that a `.checkpoint` file can hold."""


@dataclass(frozen=True)
class Written:
    """A table as a `.checkpoint` file."""

    mapping: CheckpointFile
    text: str | None
    """None where a name cannot be written in such a file."""


_TURNED = {False: (("i", "o"), ("o", "i")), True: (("e", "i", "o"), ("e", "o", "i"))}
"""The axes of a weight that the module keeps transposed, theirs and ours; those of experts are stacked."""


def written(
    table: Table,
    model: Model,
    output: Path,
    *,
    origin: str,
    stored: Iterable[str],
    ties: Mapping[str, str],
    kind: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Written:
    """Write a table as a mapping, for a spec at `output`.

    `stored` are the tensors that a checkpoint of the module holds, and `ties` those of them that are another one's
    copies. Of a class of transformers there are its `kind`, the `model_type`, and the fields of its `config`: what the
    spec has a hyper-parameter for is that, and all others are fixed."""
    rows = _starred([*table.rows.values()])
    stacked = {starred(info.path): len(info.shape) > 2 for info in saved(model)}
    axes = {path: _TURNED[wide] for path, wide in stacked.items()}
    rules = [*dict.fromkeys(_shortest(row, rows) for row in rows)]
    taken = {row.theirs for row in table.rows.values()}
    left = [name for name in stored if name not in taken]
    copies = {name: ties[name] for name in left if ties.get(name) in taken}
    drops = [*dict.fromkeys(starred(name) for name in left if name not in copies)]
    names = (*(n for r in rules for n in r[:2]), *drops, *copies, *copies.values())
    kind = kind or model.name
    turned = sorted({*rotations(model.block, "")})
    pairs = {k for _, k in turned}
    lines = [f"# What the weights of `{printable(output.name)}` are called in {printable(origin)}.", ""]
    lines.append(f"type {kind} = {model.name}")
    lines += [f"rope {next(iter(pairs))}"] if len(pairs) == 1 else []
    ropes = {} if len(pairs) < 2 else {starred(path): k for path, k in turned if path}
    lines += [f"rope {k} in {path}" for path, k in ropes.items()]
    lines += ["", *_config(config, model)] if config is not None else []
    lines.append("")
    for rule in rules:
        theirs_axes, ours_axes = (f" [{' '.join(a)}]" for a in axes[rule.ours]) if rule.transposed else ("", "")
        lines.append(f"{rule.theirs}{theirs_axes} = {rule.ours}{ours_axes}")
    lines += [f"tie {copy} = {of}" for copy, of in copies.items()]
    lines += [f"drop {name}" for name in drops]
    span = Span(Source(output.with_suffix(".checkpoint").name, ""), 0, 0)
    mapping = CheckpointFile(
        output.with_suffix(".checkpoint"),
        output,
        types={kind: model.name},
        rope=None,
        rules=[TensorRule(r.theirs, (r.ours,), axes[r.ours] if r.transposed else None, span) for r in rules],
        drops=drops,
        ties=[*copies.items()],
    )
    whole = all(PATH.fullmatch(name) for name in names)
    return Written(mapping, "\n".join(lines) + "\n" if whole else None)


def _starred(rows: Sequence[Row]) -> list[Row]:
    """Rows with `*` for the numbers of layers, where all that are like one have the same numbers on both sides; theirs
    may have others, which are the same in all (`blocks.*.mlp.0`)."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[starred(row.ours)].append(row)
    found: list[Row] = []
    for ours, group in groups.items():
        theirs = _pattern(group)
        found += group if theirs is None else [Row(ours, theirs, group[0].transposed)]
    return found


def _pattern(rows: Sequence[Row]) -> str | None:
    """What they call these rows, with `*` for each number of ours in its order."""
    if len({r.transposed for r in rows}) > 1 or len({r.theirs.count(".") for r in rows}) > 1:
        return None
    columns = [*zip(*(map(str, _numbers(r.ours)) for r in rows), strict=True)]
    steps = []
    for column in zip(*(r.theirs.split(".") for r in rows), strict=True):
        if columns and column == columns[0]:
            steps.append("*")
            columns.pop(0)
        elif len({*column}) == 1:
            steps.append(column[0])
        else:
            return None
    return None if columns else ".".join(steps)


def _shortest(row: Row, rows: Sequence[Row]) -> Row:
    """The shortest beginning of a row that carries every row below it as it is; one whose axes are turned, whole."""
    if row.transposed:
        return row
    ours, theirs = row.ours.split("."), row.theirs.split(".")
    alike = 0
    while alike < min(len(ours), len(theirs)) - 1 and ours[-1 - alike] == theirs[-1 - alike]:
        alike += 1
    for cut in range(alike, 0, -1):
        a, b = ".".join(ours[:-cut]), ".".join(theirs[:-cut])
        if all(_carries(a, b, r) for r in rows):
            return Row(a, b)
    return row


def _carries(ours: str, theirs: str, row: Row) -> bool:
    """Whether a rule says of a row what it says itself, or nothing."""
    mine, other = _below(ours, row.ours), _below(theirs, row.theirs)
    return mine == other and (mine is None or not row.transposed)


def _below(above: str, path: str) -> tuple[list[str], list[str]] | None:
    """What the `*` of a beginning stand for in a path, and the steps behind; None where the path begins otherwise."""
    first, steps = above.split("."), path.split(".")
    pairs = [*zip(first, steps, strict=False)]
    if len(steps) < len(first) or not all(a in (b, "*") and (a == b or b.isdecimal()) for a, b in pairs):
        return None
    return [b for a, b in pairs if a == "*"], steps[len(first) :]


LITERAL = r'"[^"\n{}#\\]*"|true|false|-?\d+(\.\d+)?(e[-+]?\d+)?'
"""A value of JSON that a field can be fixed to."""


def _config(config: Mapping[str, Any], model: Model) -> Iterator[str]:
    """Yield the fields of a config: hyper-parameters of the spec by their names, and what else says something."""
    from archdsl.interop.huggingface import config_fields, is_neutral

    own = {field.name for field in model.config}
    ignored = []
    yield "config {"
    for name, value in config_fields(config):
        last = name.rpartition(".")[2]
        if not re.fullmatch(r"[-+\w.]+", name) or is_neutral(name):
            continue
        if last in own and type(value) in (int, float):
            yield f"  {name} = {last}"
            continue
        literal = json.dumps(value)
        if re.fullmatch(LITERAL, literal):
            yield f"  {name} | {literal} = {literal}"
        elif isinstance(value, list) and re.fullmatch(r"\[[^][\n{}#]+\]", literal):
            yield f"  {name} = {literal}"
        elif value not in (None, [], {}):
            ignored.append(name)
    yield "}"
    if ignored:
        yield f"ignore {', '.join(ignored)}"
