"""JSON Schemas of what commands print with `--json`: the fields of the reports, their types, and what the docstrings
say of them."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args

from pydantic import BaseModel, TypeAdapter

DIALECT = "https://json-schema.org/draft/2020-12/schema"

REPORTS: dict[str, tuple[str, ...]] = {
    "check": ("archdsl.report.schemas:Findings",),
    "compare": ("archdsl.report.compare:CompareReport",),
    "diff": ("archdsl.report.diff:DiffReport", "archdsl.report.diff:FilesDiffReport"),
    "estimate": ("archdsl.estimates.memory:MemoryReport", "archdsl.estimates.machines:MachinesReport"),
    "fit": ("archdsl.estimates.fit:FitReport",),
    "generate": ("archdsl.run.generate:GenerateReport",),
    "import": ("archdsl.interop.convert:ImportReport",),
    "hardware": ("archdsl.estimates.hardware:HardwareReport",),
    "lift": ("archdsl.interop.lift.report:LiftReport",),
    "list": ("archdsl.zoo:ZooReport",),
    "run": ("archdsl.run.smoke:RunReport", "archdsl.run.onnx:OnnxRunReport"),
    "scaling": ("archdsl.estimates.scaling:ScalingReport",),
    "show": ("archdsl.report.tree:TreeNode",),
    "sweep": ("archdsl.estimates.sweep:SweepReport",),
    "verify": ("archdsl.run.verify:VerifyReport",),
}
"""Where the class of each command's report is; of several, it prints one: `estimate` the second where it is asked about
devices, `run` that of its backend, `diff` the second with `--all`."""


class SourcePosition(BaseModel):
    """Where something stands in a spec, lines and columns from 1; all None for what has no place."""

    file: str | None
    line: int | None
    column: int | None
    end_line: int | None
    end_column: int | None


class Remark(SourcePosition):
    """Another place that has to do with a finding."""

    text: str


class Finding(SourcePosition):
    """One error or lint."""

    code: str
    severity: Literal["error", "warning"]
    message: str
    label: str
    labels: list[Remark]
    notes: list[str]
    help: str


Findings = list[Finding]
"""What `archdsl check --format json` prints."""


def _adapter(command: str) -> TypeAdapter[Any]:
    found = [_class(where) for where in REPORTS[command]]
    kind: Any = found[0] if len(found) == 1 else Union[tuple(found)]  # noqa: UP007 (of classes known only now)
    return TypeAdapter(kind)


def schema(command: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a command's report."""
    found = {"$schema": DIALECT, **_adapter(command).json_schema(mode="serialization")}
    known = {c.__name__: c for where in REPORTS[command] for c in _models(_class(where))}
    for name, described in [(str(found.get("title", "")), found), *found.get("$defs", {}).items()]:
        if name in known:
            said = dict(_said(known[name]))
            for field, content in described.get("properties", {}).items():
                if field in said:
                    content["description"] = said[field]
    return found


def _class(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """The classes of reports inside a type, itself included."""
    todo, seen = [kind], set()
    while todo:
        this = todo.pop()
        if isinstance(this, type) and issubclass(this, BaseModel):
            if this not in seen:
                seen.add(this)
                yield this
                todo += [f.annotation for f in this.model_fields.values()]
        else:
            todo += get_args(this)


def _said(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """What is written below each field of a class, and of those it is made from."""
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(declared, ast.ClassDef)
        for field, after in zip(declared.body, declared.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
                text = ast.literal_eval(after.value) if isinstance(after.value, ast.Constant) else None
                if isinstance(text, str):
                    yield field.target.id, " ".join(inspect.cleandoc(text).split())
