"""The notebook of `examples/` runs, and shows what is kept in it."""

import ast
import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import archdsl

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "tour.ipynb"


def shown(value: object) -> dict[str, list[str]]:
    """What a front end is handed of a value: its figure alone, where it has one."""
    for kind, method in (("image/svg+xml", "_repr_svg_"), ("text/html", "_repr_html_")):
        if text := getattr(value, method, lambda: None)():
            return {kind: text.splitlines(keepends=True)}
    return {"text/plain": repr(value).splitlines(keepends=True)}


def run_cell(text: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell: what it prints, and its last expression."""
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    said = printed.getvalue().splitlines(keepends=True)
    outputs: list[dict[str, Any]] = [{"name": "stdout", "output_type": "stream", "text": said}] if said else []
    if value is not None:
        outputs.append({"data": shown(value), "execution_count": 1, "metadata": {}, "output_type": "execute_result"})
    return outputs


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_is_kept(golden: Callable[[Path, str], None]) -> None:
    pytest.importorskip("torch")
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"] = 1
            cell["outputs"] = run_cell("".join(cell["source"]), names)
    golden(NOTEBOOK, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize(
    "report",
    [
        lambda: archdsl.estimate("gpt2"),
        lambda: archdsl.estimate("gpt2", batch=2),
        lambda: archdsl.estimate("llama3_8b", mesh="dp=8", accelerator="h100_sxm"),
        lambda: archdsl.sweep("gpt2", set={"layers": "1..3"}),
        lambda: archdsl.fit("gpt2", vary="layers", params=10**8),
        lambda: archdsl.scaling(flops=1e20),
        lambda: archdsl.diff("llama2_7b", "llama3_8b"),
        lambda: archdsl.compare("gpt2", "llama3_8b"),
    ],
)
def test_reports_are_html(report: Callable[[], Any], tmp_path: Path) -> None:
    html = report()._repr_html_()
    assert html.startswith("<pre")
    assert html.endswith("</pre>")
    assert "\x1b" not in html


def test_what_a_spec_is_called_is_escaped(tmp_path: Path) -> None:
    spec = tmp_path / "<script>.arch"
    spec.write_text("model m(x: [batch, 4]) -> [batch, 4] {\n  return x -> linear(4)\n}\n")
    html = archdsl.estimate(spec)._repr_html_()
    assert html is not None
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
