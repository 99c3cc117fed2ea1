"""README, tutorial and the pages on ONNX: every file, command, excerpt and program of theirs is what really comes out
(see pages.py)."""

import ast
import doctest
import re
import shlex
import shutil
from pathlib import Path

import pytest
from runtime_tools import in_runtimes
from typer.testing import CliRunner

from archdsl import torch_source
from archdsl.cli import app
from docs.pages import ROOT, Block, blocks, rewrite

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "tour.md",
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "estimates.md",
    ROOT / "docs" / "scaling.md",
    ROOT / "docs" / "diff.md",
    ROOT / "docs" / "onnx.md",
    ROOT / "docs" / "checkpoints.md",
    ROOT / "docs" / "generate.md",
    ROOT / "docs" / "lift.md",
    ROOT / "docs" / "train.md",
    ROOT / "docs" / "cookbook.md",
    ROOT / "docs" / "alternatives.md",
    ROOT / "docs" / "faq.md",
]


def output_of(command: str) -> str:
    """What an `archdsl` command prints, both streams together."""
    program, *arguments = shlex.split(command, comments=True)
    assert program == "archdsl", f"only archdsl is run here, not {program}"
    done = CliRunner().invoke(app, arguments, prog_name="archdsl")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def matches(promised: str, real: str) -> bool:
    """Whether a text is what was promised, `…` standing for anything."""
    pattern = "".join(
        r"(?:[^\n]*\n)*" if line.strip() == "…" else ".*".join(map(re.escape, line.split("…"))) + r"[ ]*\n"
        for line in promised.splitlines()
    )
    return re.fullmatch(pattern, real if real.endswith("\n") or not real else real + "\n") is not None


def console(block: Block) -> str:
    """A block of commands with what they really print; where that is what was promised, as it was."""
    parts = re.split(r"^(\$ [^\n]*\n)", block.text, flags=re.MULTILINE)
    assert not parts[0], f"{block}: it begins with a command"
    told = ""
    for command, promised in zip(parts[1::2], parts[2::2], strict=True):
        real = output_of(command.removeprefix("$ ").strip())
        told += command
        if matches(promised.rstrip("\n") + "\n" if promised.strip() else "", real):
            told += promised
        else:
            told += "\n".join(line.rstrip() for line in real.splitlines()) + "\n"
    return told


def excerpt(block: Block) -> str:
    """The named classes and functions of an emitted file."""
    spec, names = re.fullmatch(r"compile ([^:]+(?::\w+)?): ([\w ]+)", block.note).groups()
    source = torch_source(spec)
    found = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    lines = source.splitlines()
    cut = []
    for name in names.split():
        node = found[name]
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        cut.append("\n".join(lines[first - 1 : node.end_lineno]))
    return "\n\n\n".join(cut) + "\n"


def run(block: Block, names: dict[str, object]) -> None:
    """Run a program of a page in the names that those above it left."""
    if not block.text.startswith(">>>"):
        exec(compile(block.text, str(block), "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(block.text, names, str(block), str(block.page), block.line)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    failed = runner.run(test, out=said.append, clear_globs=False).failed
    names.update(test.globs)
    assert not failed, "".join(said)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update_golden: bool) -> None:
    if page.name == "train.md":
        pytest.importorskip("torch", minversion="2.12")  # Muon, float8 and varlen_attn
    for folder in ("docs", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.glob("*.md"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    names: dict[str, object] = {"__name__": "__page__"}
    changed = {}
    for block in blocks(page):
        real = block.text
        if block.note.startswith("compile "):
            real = excerpt(block)
        elif block.kind == "console":
            real = console(block)
        elif block.note == "runtimes":
            in_runtimes(block.text)
        elif block.kind == "python" and block.note.endswith(".py"):
            Path(block.note).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            run(block, names)
        elif block.kind == "arch" and block.note:
            kept = next((f for f in (ROOT / block.note, Path(block.note)) if f.exists()), None)
            if kept is not None:
                real = kept.read_text(encoding="utf-8")
            else:
                (tmp_path / block.note).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / block.note).write_text(block.text, encoding="utf-8")
        else:
            assert block.kind in ("sh", "text"), f"{block}: nobody would test this block"
        if update_golden:
            if real != block.text:
                changed[block.start] = real
        else:
            assert block.text == real, f"{block}; if this is meant: pytest --update-golden"
    rewrite(page, changed)


@pytest.mark.parametrize(
    ("promised", "real", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("t … ms\n", "t 3.5 ms\n", True),
        ("a\n…\nz\n", "a\nb\nc\nz\n", True),
        ("a\n…\nz\n", "a\nb\nc\n", False),
        ("", "", True),
        ("", "a\n", False),
    ],
)
def test_dots_stand_for_anything(promised: str, real: str, same: bool) -> None:
    assert matches(promised, real) is same
