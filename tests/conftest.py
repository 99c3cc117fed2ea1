"""Goldens: texts that are kept in the repository and must come out again, byte by byte. Which cases are
run, and where the IR of every model is verified after each pass."""

import difflib
import gc
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from cli_tools import Done, Run
from mutants import left_out
from zoo import sizes

from archdsl.ir import verify

UPDATE = "--update-golden"
QUICK = "--quick"
EVERY = "--every"
TESTS = Path(__file__).parent
IMPORTED = re.compile(r"^ *(?:from|import) +([\w.]+)(?: +import +(\w+))?", re.MULTILINE)
BACK_ENDS = {"onnx", "onnx_ir", "onnxruntime", "torch", "transformers"}
SHOWN = 60
EACH = 100
"""Tests between two garbage collections after which what is left is looked through no more."""
FINISHED = itertools.count()
VERIFIED = {
    *("test_cli.py", "test_config.py", "test_contract.py", "test_cut.py", "test_decoding.py", "test_differential.py"),
    *("test_expand.py", "test_generate.py", "test_goldens.py", "test_init.py", "test_lift_structure.py"),
    *("test_loops.py", "test_mistakes.py", "test_models.py", "test_parity.py", "test_random_causality.py"),
    *("test_steps.py", "test_truth.py", "test_verify.py"),
}
"""Files that make every kind of IR. Others make the same for what they ask of it."""

# Tiny tensors gain nothing from threads, and what runs side by side loses by them: PyTorch here and in other processes.
os.environ["OMP_NUM_THREADS"] = "1"
# A suite that is started in the background inherits SIGINT ignored, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Hypothesis draws constants of whatever modules are loaded: what a seed gives would depend on the tests run before.
with suppress(ImportError):  # versions before it did
    from hypothesis.internal.conjecture import providers

    providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(UPDATE, action="store_true", help="write what comes out as the new goldens, instead of comparing")
    parser.addoption(EVERY, action="store_true", help="also what tests/left_out.toml names, and the whole zoo")
    parser.addoption(QUICK, action="store_true", help="only what imports no back end and is not slow")


def pytest_configure(config: pytest.Config) -> None:
    sizes.every = config.getoption(EVERY)


@cache
def needs_a_back_end(path: Path) -> bool:
    """Whether a file of tests imports one, itself or by others of these files."""
    for module, name in IMPORTED.findall(path.read_text(encoding="utf-8")):
        if module.split(".")[0] in BACK_ENDS:
            return True
        for other in (module, f"{module}.{name}"):
            for folder in (TESTS, TESTS.parent / "benchmarks"):
                file = folder.joinpath(*other.split(".")).with_suffix(".py")
                if file.exists() and file != path and needs_a_back_end(file):
                    return True
    return False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    quick = config.getoption(QUICK) and collection_path.name.startswith("test_")
    return needs_a_back_end(collection_path) or None if quick and collection_path.suffix == ".py" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(QUICK):
        sys.modules.update(dict.fromkeys(BACK_ENDS))  # importing one is an error
        items[:] = [item for item in items if item.get_closest_marker("slow") is None]
    if not sizes.every and not any("::" in argument for argument in config.args):  # what is named is run
        names = left_out()
        apart = {item for item in items if item.nodeid in names and "golden" not in item.fixturenames}
        config.hook.pytest_deselected(items=[*apart])
        items[:] = [item for item in items if item not in apart]


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What tests leave in caches is not looked through by each later garbage collection."""
    if nextitem is None or nextitem.path != item.path or next(FINISHED) % EACH == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _verified(request: pytest.FixtureRequest) -> Iterator[None]:
    verify.enabled = sizes.every or request.path.name in VERIFIED
    yield
    verify.enabled = False


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether goldens are to be written."""
    return bool(request.config.getoption(UPDATE))


@pytest.fixture
def golden(update_golden: bool) -> Callable[[Path, str], None]:
    """`golden(path, text)` fails unless the file at `path` holds `text`; one that is missing fails too."""

    def compare(path: Path, text: str) -> None:
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        if not path.exists():
            pytest.fail(f"{path} is missing; `pytest {UPDATE}` writes it", pytrace=False)
        kept = path.read_text(encoding="utf-8")
        if kept != text:
            lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm="", n=1)
            shown = "\n".join(list(lines)[:SHOWN])
            pytest.fail(f"{path} has changed; if this is meant, `pytest {UPDATE}` writes it:\n{shown}", pytrace=False)

    return compare


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """`run(*arguments)`: a whole command line, with the frame around commands."""
    from archdsl.cli import main

    monkeypatch.setenv("NO_COLOR", "1")
    handler = signal.getsignal(signal.SIGTERM)

    def command(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["archdsl", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    yield command
    signal.signal(signal.SIGTERM, handler)
