"""`check` as people and programs meet it: files, encodings, imports, the four forms of output, color."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_tools import Done, Run

import archdsl
from archdsl.api import check
from archdsl.cli.busy import ERASE, PICTURES
from archdsl.diagnostics.render import render_text

LAYER = "block layer {\n  attention: mha(heads: 4)\n  mask:      causal\n}\n"
MODEL = "model tiny {\n  vocab:   256\n  context: 128\n  width:   64\n  blocks:  2 * layer\n  head:    lm\n}\n"
SPEC = LAYER + MODEL
WRONG = SPEC.replace("heads: 4", "heads: 7").replace("head:    lm", "head:    lmm")

TEXT = """\
error[E0401]: `head_dim` of `mha` is width / heads, and width = 64 is not a multiple of heads = 7
 --> wrong.arch:2:14
  |
2 |   attention: mha(heads: 7)
  |              ^^^^^^^^^^^^^
  |                         |
  |                         heads = 7 comes from here
...
8 |   width:   64
  |            -- width = 64 comes from here
  |
  = help: heads = 4 or heads = 8 would fit

error[E0206]: unknown name `lmm`
  --> wrong.arch:10:12
   |
10 |   head:    lmm
   |            ^^^
   |
   = help: did you mean `mlm`?
"""
CONCISE = """\
wrong.arch:2:14: error[E0401]: `head_dim` of `mha` is width / heads, and width = 64 is not a multiple of heads = 7
wrong.arch:10:12: error[E0206]: unknown name `lmm`
"""
GITHUB = """\
::error file=wrong.arch,line=2,endLine=2,col=14,endColumn=27,title=E0401::`head_dim` of `mha` is width / heads, and \
width = 64 is not a multiple of heads = 7%0Ahelp: heads = 4 or heads = 8 would fit
::error file=wrong.arch,line=10,endLine=10,col=12,endColumn=15,title=E0206::unknown name `lmm`%0Ahelp: did \
you mean `mlm`?
"""


def place(line: int, column: int, end_column: int) -> dict[str, object]:
    return {"file": "wrong.arch", "line": line, "column": column, "end_line": line, "end_column": end_column}


JSON = [
    {
        "code": "E0401",
        "severity": "error",
        "message": "`head_dim` of `mha` is width / heads, and width = 64 is not a multiple of heads = 7",
        **place(2, 14, 27),
        "label": "",
        "labels": [
            {**place(8, 12, 14), "text": "width = 64 comes from here"},
            {**place(2, 25, 26), "text": "heads = 7 comes from here"},
        ],
        "notes": [],
        "help": "heads = 4 or heads = 8 would fit",
    },
    {
        "code": "E0206",
        "severity": "error",
        "message": "unknown name `lmm`",
        **place(10, 12, 15),
        "label": "",
        "labels": [],
        "notes": [],
        "help": "did you mean `mlm`?",
    },
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wrong.arch").write_text(WRONG)
    (tmp_path / "fine.arch").write_text(SPEC)
    return tmp_path


Command = Callable[..., Done]


@pytest.fixture
def command(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`command(*arguments, **variables)`: a command line in the folder, with these variables of its environment."""
    monkeypatch.chdir(folder)

    def ran(*arguments: str, **variables: str) -> Done:
        with monkeypatch.context() as its:
            for name in ("NO_COLOR", "FORCE_COLOR", "ARCHDSL_FORMAT"):
                its.delenv(name, raising=False)
            for name, value in variables.items():
                its.setenv(name, value)
            return run(*arguments)

    return ran


# --- the four forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "said"), [("text", TEXT), ("concise", CONCISE), ("github", GITHUB)])
def test_what_check_prints(form: str, said: str, command: Command) -> None:
    assert command("check", "wrong.arch", "--format", form) == (1, said, "")
    assert command("check", "wrong.arch", ARCHDSL_FORMAT=form) == (1, said, "")


def test_what_check_prints_for_programs(command: Command) -> None:
    status, out, err = command("check", "wrong.arch", "--format", "json")
    assert (status, json.loads(out), err) == (1, JSON, "")


def test_the_option_wins_over_the_variable(command: Command) -> None:
    assert command("check", "wrong.arch", "--format", "concise", ARCHDSL_FORMAT="json")[1] == CONCISE


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["estimate", "wrong.arch"],
        ["show", "wrong.arch"],
        ["compile", "wrong.arch", "--to", "torch"],
        ["init", "wrong.arch", "-o", "weights.safetensors"],
    ],
    ids=lambda a: a[0],
)
def test_other_commands_say_the_same_on_standard_error(arguments: list[str], command: Command) -> None:
    assert command(*arguments) == (1, "", TEXT)
    assert command(*arguments, ARCHDSL_FORMAT="concise") == (1, "", CONCISE)
    assert command(*arguments, ARCHDSL_FORMAT="github") == (1, "", GITHUB)
    assert json.loads(command(*arguments, ARCHDSL_FORMAT="json")[2]) == JSON


def test_a_form_that_is_none(command: Command) -> None:
    status, _, err = command("check", "wrong.arch", "--format", "xml")
    assert (status, "xml" in err) == (2, True)
    assert command("estimate", "wrong.arch", ARCHDSL_FORMAT="xml") == (1, "", TEXT)


# --- color ------------------------------------------------------------------------------------------------------------


def on_a_terminal(folder: Path, *arguments: str, **variables: str) -> str:
    """What a command leaves on a terminal of its own, without the line that says that it is at work."""
    ours, its = pty.openpty()
    root = Path(archdsl.__file__).parent.parent
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "ARCHDSL_FORMAT")}
    process = subprocess.Popen(
        [sys.executable, "-m", "archdsl", *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(root), "TERM": "xterm", **variables},
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # Linux says so when the other end is closed
        pass
    finally:
        os.close(ours)
    process.wait(timeout=60)
    at_work = f"{re.escape(ERASE)}([{PICTURES}][^\r]*)?"
    return re.sub(at_work, "", said.decode().replace("\r\n", "\n"))


@pytest.mark.slow
def test_color_on_a_terminal_only(folder: Path, command: Command) -> None:
    for name in ("check", "estimate"):
        shown = on_a_terminal(folder, name, "wrong.arch")
        assert "\x1b[1;31merror[E0401]\x1b[0m" in shown
        assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == TEXT
        assert "\x1b" not in "".join(command(name, "wrong.arch")[1:])
    assert on_a_terminal(folder, "check", "wrong.arch", NO_COLOR="1") == TEXT
    assert on_a_terminal(folder, "estimate", "wrong.arch", TERM="dumb") == TEXT


@pytest.mark.slow
def test_what_programs_read_has_no_color(folder: Path) -> None:
    assert on_a_terminal(folder, "check", "wrong.arch", "--format", "concise") == CONCISE


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        SPEC.encode(),
        SPEC.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + SPEC.encode(),
        b"\xef\xbb\xbf" + SPEC.replace("\n", "\r\n").encode(),
        SPEC.replace("  ", "\t").encode(),
        SPEC.rstrip("\n").encode(),
        SPEC.replace("block layer", "# Größe, 注意\nblock layer").encode(),
    ],
    ids=["plain", "crlf", "bom", "bom and crlf", "tabs", "no last line end", "comments in any script"],
)
def test_bytes_that_are_fine(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "spec.arch").write_bytes(content)
    assert check(tmp_path / "spec.arch") == ()


@pytest.mark.parametrize("change", [("\n", "\r\n"), ("  ", "\t"), ("block", "\ufeffblock", 1)], ids=str)
def test_places_do_not_depend_on_line_ends_tabs_and_marks(change: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "wrong.arch").write_bytes(WRONG.replace(*change).encode())
    found = check(tmp_path / "wrong.arch")
    assert [(d.code, d.span and d.span.line, d.span and d.span.text) for d in found] == [
        ("E0401", 2, "mha(heads: 7)"),
        ("E0206", 10, "lmm"),
    ]
    shown = render_text(found)
    assert "\r" not in shown
    assert "\t" not in shown
    (marked,) = re.findall(r"^ *\| ( *\^+)$", shown, re.MULTILINE)[1:]
    (line,) = re.findall(r"^10 \| (.*)$", shown, re.MULTILINE)
    assert line[marked.index("^") :] == "lmm"


@pytest.mark.parametrize(
    ("content", "message", "help_"),
    [
        ("# Größe\n".encode("latin-1"), "line 1 holds the byte 0xf6", "save the file as UTF-8"),
        (SPEC.encode() + b"# \xff\n", "line 12 holds the byte 0xff", "save the file as UTF-8"),
        (SPEC.encode("utf-16"), "line 1 holds the byte 0xff", "it looks like UTF-16: save it as UTF-8"),
    ],
    ids=["Latin-1", "a byte that is none", "UTF-16"],
)
def test_bytes_that_are_no_text(content: bytes, message: str, help_: str, tmp_path: Path) -> None:
    (tmp_path / "spec.arch").write_bytes(content)
    (found,) = check(tmp_path / "spec.arch")
    assert (found.code, found.help) == ("E0108", help_)
    assert message in found.message


def test_a_file_that_is_not_there(folder: Path, command: Command) -> None:
    (found,) = check(folder / "wrogn.arch")
    assert (found.code, found.help) == ("E0108", "did you mean `wrong.arch`?")
    assert command("check", "wrogn.arch")[0] == 2
    (found,) = check(folder / "else" / "fine.arch")
    assert (found.code, found.help) == ("E0108", "")
    (found,) = check("wrong\0.arch")
    assert (found.code, found.message) == ("E0108", "`wrong\0.arch` cannot be read: embedded null byte")


# --- imports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "code", "message", "help_"),
    [
        ("partz.arch", "E0208", "there is no file `partz.arch`", "did you mean `parts.arch`?"),
        ("sub", "E0208", "`sub` is a directory, not a file", ""),
        ("../parts.arch", "E0208", "leads out of the project", "in the folder of the spec or below it"),
        ("/parts.arch", "E0208", "leads out of the project", "by a relative path"),
        ("sub\\parts.arch", "E0208", "leads out of the project", "by a relative path"),
        ("latin.arch", "E0208", "`latin.arch` is not UTF-8", "save the file as UTF-8"),
        ("spec.arch", "E0209", "this file imports itself", "leave the import out"),
        ("round.arch", "E0209", "spec.arch -> round.arch -> spec.arch", "into a third file"),
        ("wrong.arch", "E0101", "a `:` or `=` is missing behind `attention`", "attention: mha"),
    ],
)
def test_an_import_that_cannot_be_followed(path: str, code: str, message: str, help_: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "parts.arch").write_text(LAYER)
    (tmp_path / "latin.arch").write_bytes(b"# \xff")
    (tmp_path / "round.arch").write_text('import "spec.arch"\n')
    (tmp_path / "wrong.arch").write_text("block other {\n  attention mha(heads: 4)\n}\n")
    spec = tmp_path / "spec.arch"
    spec.write_text(f'import "parts.arch"\nimport "{path}"\n' + MODEL)
    (found,) = check(spec)
    assert found.code == code
    assert message in found.message
    assert help_ in found.help
    assert found.span is not None
    spec.write_text('import "parts.arch"\n' + MODEL)
    assert check(spec) == ()


def test_a_file_that_two_others_import_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "twice.arch").write_text("let shared_table = shared(embedding(8, 8))\nlet n = 3\n")
    (tmp_path / "part.arch").write_text('import "twice.arch" as t\nlet m = t.n * 2\n')
    spec = tmp_path / "spec.arch"
    spec.write_text(
        'import "part.arch" as p\nimport "twice.arch" as t\nmodel m(x: [batch, 2]) { return x * p.m * t.n }\n'
    )
    assert not [d for d in check(spec) if d.is_error]


def test_imports_are_no_larger_than_one_file(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"part{i}.arch").write_text(f"# {'x' * 300_000}\nlet a{i} = 1\n")
    spec = tmp_path / "spec.arch"
    spec.write_text('import "part0.arch"\nimport "part1.arch"\nmodel m(x: [batch, 2]) { return x * a0 * a1 }\n')
    (found,) = check(spec)
    assert (found.code, found.message) == ("E0208", "a spec and its imports are larger than 512 KiB")
    assert "the limit `source`" in found.help


def test_so_many_files_may_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archdsl.frontend.modules.MAX_IMPORTS", 2)
    for i in range(3):
        (tmp_path / f"part{i}.arch").write_text(LAYER.replace("block ", "block own_", 1) if i else LAYER)
    spec = tmp_path / "spec.arch"
    imports = [f'import "part{i}.arch" as part{i}\n' for i in range(1, 3)]
    one = 'import "part0.arch"\n'
    spec.write_text(one + imports[0] + MODEL)
    assert not [d for d in check(spec) if d.is_error]
    spec.write_text(one + "".join(imports) + MODEL)
    assert [(d.code, d.message) for d in check(spec) if d.is_error] == [("E0208", "more than 2 imported files")]


@pytest.mark.parametrize(
    ("value", "kind"),
    [("3", "a number"), ("[4, 5]", "a list"), ("true", "true or false"), ("left", "a tensor that was left out")],
)
def test_what_no_pipeline_carries(value: str, kind: str) -> None:
    text = f"block part(x: [batch, 4], left: [batch, 4] = none) -> [batch, 4] {{ return {value} -> relu }}\n"
    text += "model m(x: [batch, 4]) { return part(x) }"
    (found,) = check(text=text)
    assert (found.code, found.message) == ("E0203", f"a pipeline carries a tensor, and this is {kind}")


def test_a_name_of_an_import(tmp_path: Path) -> None:
    (tmp_path / "parts.arch").write_text(LAYER)
    spec = tmp_path / "spec.arch"
    spec.write_text('import "parts.arch" as parts\n' + MODEL)
    (found,) = check(spec)
    assert (found.code, found.help) == ("E0206", "did you mean `parts.layer`?")
    spec.write_text('import "parts.arch" as parts\n' + MODEL.replace("layer", "parts.layr"))
    (found,) = check(spec)
    assert (found.code, found.help) == ("E0206", "did you mean `parts.layer`?")
    spec.write_text('import "parts.arch" as parts\n' + MODEL.replace("layer", "parts.layer"))
    assert check(spec) == ()


@pytest.mark.parametrize(
    "block",
    [
        "block layer(x) { attention: mha(heads: x)  mask: causal }",
        "block layer(memory = 2) { attention: mha(heads: memory)  cross_attention: mha(heads: 2) }",
        "block layer(x) = mha(heads: x, mask: causal)",
        "block layer(memory) = mha(heads: memory, mask: causal)",
    ],
)
def test_a_hyper_parameter_is_not_called_like_a_tensor_that_has_no_header(block: str) -> None:
    name = "memory" if "memory" in block else "x"
    call = "layer" if "=" in block.split(")")[0] else f"layer({name}: 2)"
    (found,) = check(text=f"{block}\nmodel m {{ vocab: 8  context: 8  width: 8  blocks: 2 * {call}  head: lm }}")
    assert (found.code, found.span.text if found.span else "") == (
        "E0202",
        block[block.index("(") + 1 : block.index(")")],
    )
