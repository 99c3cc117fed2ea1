"""Progress on a terminal: every command gives a sign of life on standard error, and only there."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from cli_tools import TINY

from archdsl.cli import app

pty = pytest.importorskip("pty")

MAIN = "import sys; from archdsl.cli import busy, frame; busy.AFTER = {}; sys.argv[0] = 'archdsl'; frame.main()"
CALLS = {
    "check": ("tiny.arch",),
    "compare": ("tiny.arch", "gpt2"),
    "compile": ("tiny.arch", "--to", "onnx", "-o", "tiny.onnx"),
    "diff": ("tiny.arch", "gpt2"),
    "estimate": ("tiny.arch", "--accelerator", "h100_sxm"),
    "explain": ("E0301",),
    "fit": ("tiny.arch", "--vary", "width", "--params", "1M"),
    "fmt": ("--check", "tiny.arch"),
    "generate": ("tiny.arch", "--prompt", "1 2 3", "--max-new-tokens", "4"),
    "hardware": (),
    "import": ("config.json", "-o", "theirs.arch"),
    "init": ("tiny.arch", "-o", "tiny.safetensors"),
    "lift": ("none.py:Net", "-o", "out.arch"),
    "list": ("--family", "gpt2"),
    "run": ("tiny.arch",),
    "scaling": ("--params", "1B"),
    "schema": ("run",),
    "show": ("tiny.arch",),
    "sweep": ("tiny.arch", "--set", "layers=1,2,3"),
    "verify": ("tiny.arch",),
    "weights": ("tiny.arch", "--to", "hf", "--weights", "none.safetensors", "-o", "out"),
}
"""A call of each command; what goes wrong in it is said, as all else."""
PLAIN = {"check", "compile", "estimate", "show", "sweep"}
"""Commands that are called without a terminal, too."""


def on_terminal(folder: Path, after: float, *arguments: str) -> tuple[bytes, bytes]:
    """Run a command whose standard error is a terminal: what it writes there, and on standard output."""
    ours, theirs = pty.openpty()
    code = [sys.executable, "-c", MAIN.format(after), *arguments]
    env = {**os.environ, "TERM": "xterm"}
    child = subprocess.Popen(code, cwd=folder, stdout=subprocess.PIPE, stderr=theirs, env=env)
    os.close(theirs)
    assert child.stdout is not None
    found = {ours: b"", child.stdout.fileno(): b""}
    left = set(found)
    while left:
        for stream in select.select([*left], [], [], 60)[0]:
            try:
                text = os.read(stream, 1 << 16)
            except OSError:  # the other end of a terminal is closed
                text = b""
            found[stream] += text
            left -= set() if text else {stream}
    child.wait()
    os.close(ours)
    return found[ours], found[child.stdout.fileno()]


def screen(text: str) -> str:
    """What is left on the lines of a terminal."""
    lines = []
    for line in text.split("\n"):
        shown = line.rstrip("\r").rpartition("\x1b[K")[2]
        lines.append(shown.rpartition("\r")[2])
    return "\n".join(lines)


def test_each_command_is_called() -> None:
    assert {c.name for c in app.registered_commands} == CALLS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("command", CALLS)
def test_commands_show_that_they_work(command: str, tmp_path: Path) -> None:
    (tmp_path / "tiny.arch").write_text(TINY)
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
    err, out = on_terminal(tmp_path, 0, command, *CALLS[command])
    assert f"archdsl {command}: 0 s".encode() in err
    assert f"archdsl {command}:" not in screen(err.decode())  # errors stay, the line goes
    assert f"archdsl {command}: 0 s" not in screen(err.decode())
    assert b"\x1b" not in out
    if command not in PLAIN:
        return
    again = [sys.executable, "-c", MAIN.format(0), command, *CALLS[command]]
    plain = subprocess.run(again, cwd=tmp_path, capture_output=True, env={**os.environ, "NO_COLOR": "1"}, check=False)
    assert b"\x1b" not in plain.stderr + plain.stdout
    assert f"archdsl {command}: ".encode() not in plain.stderr
    assert plain.stdout == out


@pytest.mark.slow
def test_the_line_appears_after_a_while_and_before_two_seconds(tmp_path: Path) -> None:
    (tmp_path / "tiny.arch").write_text(TINY)
    quick, _ = on_terminal(tmp_path, 60, "show", "tiny.arch")
    assert quick == b""
    slow, _ = on_terminal(tmp_path, 1.0, "estimate", "deepseek_v3", "--accelerator", "h100_sxm")
    assert b"archdsl estimate: 1 s" in slow
