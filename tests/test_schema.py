"""JSON Schemas of reports: kept in the repository, of every command that prints JSON, and true of what it prints."""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_tools import TINY
from typer.testing import CliRunner

from archdsl.cli import app
from archdsl.report.schemas import REPORTS, schema

GOLDENS = Path(__file__).parent / "goldens" / "schema"
SPEC = TINY.replace("causal", "causal & window(4)").replace(
    "mlp(hidden: 2 * width)", "moe(experts: 4, top_k: 2, expert: mlp(hidden: 2 * width))"
)
PRINTED = [
    ("check", "tiny.arch", "--format", "json"),
    ("check", "wrong.arch", "--format", "json"),
    ("compare", "tiny.arch", "bert_base", "--json"),
    ("diff", "tiny.arch", "gpt2", "--json"),
    ("diff", "--all", "tiny.arch", "tiny.arch", "--json"),
    ("estimate", "tiny.arch", "--json"),
    ("estimate", "tiny.arch", "--json", "--tokens-per-second", "1e4", "--peak", "1e12", "--optimizer", "adamw8bit"),
    ("estimate", "bert_base", "--json"),
    ("estimate", "tiny.arch", "--json", "--accelerator", "h100_sxm", "--batch", "8"),
    ("fit", "tiny.arch", "--json", "--params", "100M", "--vary", "layers,width"),
    ("hardware", "h100_sxm", "--json"),
    ("list", "--family", "gpt2", "--json"),
    ("run", "tiny.arch", "--json"),
    ("run", "tiny.arch", "--json", "--backend", "onnx"),
    ("scaling", "--flops", "1e21", "--json"),
    ("scaling", "--params", "7B", "--tokens", "2T", "--json"),
    ("show", "tiny.arch", "--json"),
    ("sweep", "tiny.arch", "--set", "heads=2,3", "--json"),
    ("verify", "tiny.arch", "--json"),
]


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, prog_name="archdsl")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.stdout


def outline(whole: dict[str, Any]) -> str:
    """All that a schema says but titles, a line for each field, `*` behind those that are required."""
    lines = []
    for name, kind in {"": whole, **whole.pop("$defs", {})}.items():
        fields, required = kind.pop("properties", {}), kind.pop("required", ())
        lines.append(f"{name} {said(kind)}".lstrip())
        lines += [f"  {field}{'*' * (field in required)} {said(what)}" for field, what in fields.items()]
    return "\n".join(lines) + "\n"


def said(kind: dict[str, Any]) -> str:
    """Whole numbers without a point: versions of pydantic differ in that."""
    text = json.dumps({k: v for k, v in kind.items() if k != "title"}, ensure_ascii=False)
    return re.sub(r"(?<=\d)\.0(?=[],}])", "", text)


@pytest.mark.parametrize("command", REPORTS)
def test_golden(command: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDENS / f"{command}.txt", outline(json.loads(run("schema", command))))


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDENS.iterdir()} == set(REPORTS)


def test_every_command_that_prints_json_has_a_schema() -> None:
    printing = {
        str(c.name)
        for c in app.registered_commands
        if c.callback is not None and "json" in inspect.signature(c.callback).parameters
    }
    assert printing <= set(REPORTS)
    assert set(REPORTS) - printing == {"check"}
    assert run("schema").split() == [*REPORTS]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", PRINTED, ids=" ".join)
def test_what_is_printed_is_as_described(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.arch").write_text(SPEC)
    Path("wrong.arch").write_text(SPEC.replace("mlp(hidden: 2 * width)", "mlp -> linear(3)"))
    printed = json.loads(run(*arguments))
    assert printed or arguments[1] == "tiny.arch"
    _agree(printed, schema(arguments[0]), schema(arguments[0]).get("$defs", {}))


TYPES: dict[str, type | tuple[type, ...]] = {
    "array": list, "boolean": bool, "integer": int, "null": type(None), "number": (int, float), "object": dict,
    "string": str,
}  # fmt: skip


def _agree(value: Any, described: dict[str, Any], defs: dict[str, Any]) -> None:
    """Fail unless a value is as the schema says, which names every field that there is."""
    if "$ref" in described:
        return _agree(value, defs[described["$ref"].removeprefix("#/$defs/")], defs)
    if "anyOf" in described:
        for choice in described["anyOf"]:
            try:
                return _agree(value, choice, defs)
            except AssertionError:
                continue
        raise AssertionError(f"{value!r} is none of {described['anyOf']}")
    if "type" in described:
        assert isinstance(value, TYPES[described["type"]]), (value, described)
    if "enum" in described:
        assert value in described["enum"]
    if "const" in described:
        assert value == described["const"]
    if isinstance(value, list):
        items = described.get("prefixItems") or [described["items"]] * len(value)
        for item, kind in zip(value, items, strict=True):
            _agree(item, kind, defs)
    elif isinstance(value, dict) and "properties" in described:
        assert set(described.get("required", ())) <= set(value) <= set(described["properties"])
        for name, content in value.items():
            _agree(content, described["properties"][name], defs)
    elif isinstance(value, dict):
        for content in value.values():
            _agree(content, described["additionalProperties"], defs)
    return None


def test_fields_are_told_about() -> None:
    told = schema("fit")["properties"]
    assert told["used"]["description"] == "What part of the binding budget is used."
    assert "H200" not in json.dumps(schema("hardware")), "of the class, not of one device"
    kept = schema("estimate")["$defs"]["KeptMemory"]["properties"]
    assert kept["path"]["description"].startswith("What reads it, or whose state it is")


def test_a_command_that_is_none() -> None:
    done = CliRunner().invoke(app, ["schema", "estimat"], prog_name="archdsl")
    assert done.exit_code == 2
    assert "did you mean `estimate`?" in done.output
