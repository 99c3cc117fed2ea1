"""What was there is never lost: a command that fails, or is stopped, leaves the old file whole, nothing beside it."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_tools import Done, Run

import archdsl
from archdsl import signals
from archdsl.backends.onnx import store
from archdsl.backends.onnx.quantize import quantized
from archdsl.files import BESIDE, write_text, written_beside

TINY = """\
block layer { attention: mha(heads: 2)
  mask: causal
  ffn: mlp(hidden: 32)
}
model tiny(layers = 2) {
  vocab: 64
  context: 16
  width: 16
  blocks: layers * layer
  head: lm
}
"""
COMMANDS = {
    "torch": ["compile", "tiny.arch", "--to", "torch", "-o", "{out}"],
    "onnx": ["compile", "tiny.arch", "--to", "onnx", "--seed", "1", "-o", "{out}.onnx"],
    "decode": ["compile", "tiny.arch", "--to", "onnx", "--seed", "1", "--decode", "-o", "{out}.onnx"],
    "init": ["init", "tiny.arch", "-o", "{out}"],
    "svg": ["sweep", "tiny.arch", "--set", "layers=1,2", "--plot", "{out}.svg"],
    "html": ["sweep", "tiny.arch", "--set", "layers=1,2", "--plot", "{out}.html"],
}


def start(*arguments: str, cwd: Path, prepare: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "archdsl", *arguments]
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.Popen(
        command, cwd=cwd, env=environment, preexec_fn=prepare, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.fixture
def ran(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], Done]:
    """Run a command line in this process, in the folder."""
    monkeypatch.chdir(folder)
    return lambda arguments: run(*arguments)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder and what is in it; of what is no file, None."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() and not p.is_symlink() else None
        for p in sorted(folder.rglob("*"))
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.arch").write_text(TINY)
    return tmp_path


# --- the file itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt(), SystemExit(1)])
def test_a_block_that_ends_badly_changes_nothing(problem: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def broken() -> None:
        with written_beside(path) as beside:
            beside.write_text("half")
            raise problem

    with pytest.raises(type(problem)):
        broken()
    assert contents(tmp_path) == {"a.txt": b"old"}


def test_what_a_killed_process_left_goes_with_the_next_run(tmp_path: Path) -> None:
    """And nothing else does: neither that of a process that runs, nor that of another file."""
    path = tmp_path / "a.txt"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, init = os.getpid(), 1
    kept = [
        f".a.txt.{ours}.x{BESIDE}",
        f".a.txt.{init}.x{BESIDE}",
        f".b.txt.{gone.pid}.x{BESIDE}",
        ".a.txt.1",
        "a.txt.part",
    ]
    for name in (*kept, f".a.txt.{gone.pid}.x{BESIDE}"):
        (tmp_path / name).write_text("left")
    write_text(path, "new")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "a.txt"])
    assert path.read_text() == "new"


def test_what_a_process_of_somebody_else_left_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, though no signal may be sent to it."""

    def kill(process: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    theirs = tmp_path / f".a.txt.7.x{BESIDE}"
    theirs.write_text("half")
    monkeypatch.setattr(os, "kill", kill)
    write_text(tmp_path / "a.txt", "new")
    assert theirs.read_text() == "half"


def test_a_file_that_may_not_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its folder would let another take its place."""
    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=r"a\.txt"):
        write_text(path, "new")
    assert contents(tmp_path) == {"a.txt": b"old"}


def test_the_mode_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o640)
    write_text(path, "new")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_long_name(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    write_text(path, "new")
    assert contents(tmp_path) == {path.name: b"new"}


# --- outputs that cannot be written -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", ["torch", "decode", "init", "svg"])
def test_a_disk_that_is_full(command: str, folder: Path) -> None:
    """The system refuses every byte beyond the first hundred, of every file."""
    out = folder / "out"
    for name in ("out", "out.onnx", "out.safetensors", "out.svg", "out.html"):
        (folder / name).write_bytes(b"old " * 10)
    before = contents(folder)

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    child = start(*(word.format(out=out) for word in COMMANDS[command]), cwd=folder, prepare=small)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 2, err
    assert "File too large" in err
    assert contents(folder) == before


def test_fmt_on_a_full_disk(folder: Path) -> None:
    before = contents(folder)

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    child = start("fmt", "tiny.arch", cwd=folder, prepare=small)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 2
    assert "File too large" in err
    assert contents(folder) == before


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "html"])
@pytest.mark.parametrize("where", ["directory", "missing", "file", "dangling"])
def test_outputs_that_cannot_be(command: str, where: str, folder: Path, ran: Callable[[list[str]], Done]) -> None:
    """Not even by root: a directory, a file in a folder that is not there, a file below a file, a link to nowhere."""
    suffix = {"onnx": ".onnx", "decode": ".onnx", "svg": ".svg"}.get(command, "")
    targets = {"directory": "is", "missing": "missing/deep/out", "file": "tiny.arch/out", "dangling": "link"}
    (folder / f"is{suffix}" / "held").mkdir(parents=True)
    (folder / f"link{suffix}").symlink_to("missing/deep/target")
    if where == "directory" and suffix == ".onnx":
        (folder / "is.onnx" / "model.onnx").mkdir()  # a directory is where its graph goes
    before = contents(folder)
    done = ran([word.format(out=targets[where]) for word in COMMANDS[command]])
    assert done.status == 2, done.err
    assert "error" in done.err
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["torch", "init", "svg"])
def test_a_link_is_followed_and_stays(command: str, folder: Path, ran: Callable[[list[str]], Done]) -> None:
    suffix = ".svg" if command == "svg" else ""
    (folder / "there").mkdir()
    (folder / "there" / "real").write_bytes(b"old")
    (folder / f"link{suffix}").symlink_to("there/real")
    done = ran([word.format(out="link") for word in COMMANDS[command]])
    assert done.status == 0, done.err
    assert (folder / f"link{suffix}").is_symlink()
    assert (folder / "there" / "real").read_bytes() != b"old"
    assert sorted(os.listdir(folder / "there")) == ["real"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "tiny.arch", "--to", "torch", "-o", "tiny.arch"],
        ["compile", "tiny.arch", "--to", "torch", "-o", "./sub/../tiny.arch"],
        ["compile", "tiny.arch", "--to", "torch", "-o", "link.py"],
        ["init", "tiny.arch", "-o", "tiny.arch"],
        ["sweep", "./tiny.svg", "--set", "layers=1,2", "--plot", "tiny.svg"],
        ["compile", "tiny.arch", "--to", "onnx", "--weights", "w.onnx", "-o", "w.onnx"],
    ],
)
def test_an_output_that_is_an_input(arguments: list[str], folder: Path, ran: Callable[[list[str]], Done]) -> None:
    (folder / "sub").mkdir()
    (folder / "tiny.svg").write_text(TINY)
    (folder / "link.py").symlink_to("tiny.arch")
    assert ran(["init", "tiny.arch", "-o", "w.onnx"]).status == 0
    before = contents(folder)
    done = ran(arguments)
    assert done.status == 2
    assert "error[E0521]" in done.err
    assert contents(folder) == before


# --- stopped ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "signal_", "status"),
    [("onnx", signal.SIGINT, 130), ("init", signal.SIGTERM, 143), ("onnx", signal.SIGKILL, -signal.SIGKILL)],
)
def test_stopped_while_it_writes(command: str, signal_: int, status: int, tmp_path: Path) -> None:
    """The old files are whole. After a kill, which nobody can see coming, the next run takes away what was left."""
    if shutil.disk_usage(tmp_path).free < 2e10:
        assert shutil.disk_usage(tmp_path).free > 2e9, "this test needs room for a part of 6 GB"
    out = "w.safetensors" if command == "init" else "w.onnx"
    writing = ["init"] if command == "init" else ["compile", "--to", "onnx", "--seed", "1"]
    large = [*writing, "gpt2_xl", "--set", "layers=2", "--set", "vocab=1000000", "-o", out]
    for name in ("w.safetensors", "w.onnx"):
        (tmp_path / name).write_bytes(b"old")
    before = contents(tmp_path)
    child = start(*large, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while len(os.listdir(tmp_path)) == 2 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal_)
    _, err = child.communicate(timeout=120)
    assert child.returncode == status
    assert signal_ != signal.SIGINT or err == "archdsl: interrupted\n"
    left = set(contents(tmp_path)) - set(before)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert len(left) == (1 if signal_ == signal.SIGKILL else 0)
    (tmp_path / "tiny.arch").write_text(TINY)
    small = start(*(word.format(out="w") if word != "{out}" else out for word in COMMANDS[command]), cwd=tmp_path)
    _, err = small.communicate(timeout=120)
    assert small.returncode == 0, err
    assert sorted(os.listdir(tmp_path)) == ["tiny.arch", "w.onnx", "w.safetensors"]


DROPPED = """
import signal, sys
from pathlib import Path
from archdsl import signals
from archdsl.files import written_beside

class Last:
    def __del__(self):
        signal.raise_signal(signal.{signal_})  # whatever is raised here, Python drops

signals.watch()
try:
    with written_beside(Path("w")) as beside:
        beside.write_text("new")
        Last()
        print("went on")
except (KeyboardInterrupt, signals.TerminatedError) as problem:
    print(type(problem).__name__)
"""


@pytest.mark.parametrize(("signal_", "raised"), [("SIGINT", "StoppedError"), ("SIGTERM", "TerminatedError")])
def test_stopped_where_python_drops_it(signal_: str, raised: str, tmp_path: Path) -> None:
    (tmp_path / "w").write_text("old")
    code = DROPPED.format(signal_=signal_)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == ["went on", raised]
    assert (tmp_path / "w").read_text() == "old"
    assert os.listdir(tmp_path) == ["w"]


def test_a_stop_that_was_dropped_is_heeded_before_more_is_quantized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TINY.replace("hidden: 32", "hidden: 140_000")  # matrices in two pieces
    large = []

    def stopped(rows: Any, *given: Any) -> Any:
        if rows.size >= 1 << 20:
            large.append(rows.shape)
            signals._asked = signals.StoppedError
        return quantized(rows, *given)

    monkeypatch.setattr(signals, "_asked", None)
    monkeypatch.setattr(store, "quantized", stopped)
    with pytest.raises(signals.StoppedError):
        archdsl.to_onnx(text=text, output=tmp_path / "m.onnx", seed=0, quantize="int8", target="ort-cpu")
    assert len(large) == 1
    assert os.listdir(tmp_path) == []


def test_stopped_in_an_import(tmp_path: Path) -> None:
    """Dataclasses are made by `exec`: a KeyboardInterrupt that passes through it ends the process by its signal."""
    (tmp_path / "stopped.py").write_text(
        "import signal\n"
        "from archdsl.cli import frame\n"
        "frame._with_called = lambda _: lambda **_: exec('signal.raise_signal(signal.SIGINT)')\n"
        "frame.main()\n"
    )
    done = subprocess.run([sys.executable, "-m", "stopped"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "archdsl: interrupted\n")


REPLACED = """
import signal
from archdsl.cli import frame

@frame.command("stopped", "Compile and run")
def stopped() -> None:
    try:
        signal.raise_signal(signal.{signal_})
    except BaseException:
        raise ImportError("numpy failed to import")

frame.main()
"""


@pytest.mark.parametrize(("signal_", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_stopped_where_an_error_takes_its_place(signal_: str, status: int, tmp_path: Path) -> None:
    """C code may turn what the handler has raised into an error of its own, as in an import."""
    (tmp_path / "stopped.py").write_text(REPLACED.format(signal_=signal_))
    done = subprocess.run([sys.executable, "-m", "stopped", "stopped"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, "archdsl: interrupted\n" if status == 130 else "")


AT_EACH_MOMENT = """
import os, shutil, signal, sys
from pathlib import Path
from archdsl import files, signals
from archdsl.cli import frame

def contents(folder):
    paths = sorted(Path(folder).rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in paths}

def at(number):
    \"\"\"A Ctrl-C around the call of that number that makes, renames or removes a file, or flushes its bytes.\"\"\"
    calls = iter(range(10**6))
    def watched(work):
        def called(*args, **kwargs):
            if next(calls) == number:
                signal.raise_signal(signal.SIGINT)
            found = work(*args, **kwargs)
            if next(calls) == number:
                signal.raise_signal(signal.SIGINT)
            return found
        return called
    for name in ("replace", "open", "chmod"):
        setattr(os, name, watched(ORIGINAL[name]))

ORIGINAL = {name: getattr(os, name) for name in ("replace", "open", "chmod")}
shutil.copytree("work", "before")
new = None
for number in range(-1, 400):
    shutil.rmtree("work")
    shutil.copytree("before", "work")
    before = contents("work")
    os.chdir("work")
    signals._asked = None
    at(number)
    sys.argv = ["archdsl", *sys.argv[1:]]
    try:
        frame.main()
    except SystemExit as ended:
        status = ended.code
    finally:
        for name, work in ORIGINAL.items():
            setattr(os, name, work)
        os.chdir("..")
    after = contents("work")
    if number < 0:
        new = after
        assert status == 0 and new != before, status
    elif status == 0:
        assert after == new
        print(number)
        break
    else:
        assert status == 130, status
        assert after in (before, new), (number, sorted(set(after) ^ set(before)), sorted(set(after) ^ set(new)))
"""
FOLDERS = {
    "torch": ["compile", "tiny.arch", "-o", "out.py"],
    "onnx": ["compile", "tiny.arch", "--to", "onnx", "--seed", "1", "--store", "onnx_data", "-o", "out.onnx"],
    "classes": [
        "compile",
        "tiny.arch",
        "--to",
        "hf",
        "--remote-code",
        "--seed",
        "1",
        "--eos-token-id",
        "1",
        "-o",
        "old",
    ],
    "init": ["init", "tiny.arch", "-o", "old.safetensors"],
    "fmt": ["fmt", "untidy.arch"],
    "svg": ["sweep", "tiny.arch", "--set", "layers=1,2", "--plot", "out.svg"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", FOLDERS)
def test_stopped_at_each_moment(command: str, tmp_path: Path) -> None:
    """Around each call that makes, renames or completes a file: all of the new files are there, or all of the old."""
    work = tmp_path / "work"
    (work / "old").mkdir(parents=True)
    (work / "tiny.arch").write_text(TINY)
    (work / "untidy.arch").write_text(TINY.replace("  ", "      "))
    for name in ("old/config.json", "old/model.safetensors", "out.onnx", "old.safetensors", "out.svg", "out.py"):
        (work / name).write_text("old")
    code = [sys.executable, "-c", AT_EACH_MOMENT, *FOLDERS[command]]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(code, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    moments = int(done.stdout.split()[-1])
    assert moments >= 6
    said = [line for line in done.stderr.splitlines() if line.startswith("archdsl: interrupted")]
    assert len(said) == moments
    assert "Traceback" not in done.stderr
