"""Goldens: texts that are kept in the repository and must come out again, byte by byte. The IR of every model is
verified after each pass."""

import difflib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archdsl.ir import verify

UPDATE = "--update-golden"
SHOWN = 60

verify.enabled = True
# A suite that is started in the background inherits SIGINT ignored, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(UPDATE, action="store_true", help="write what comes out as the new goldens, instead of comparing")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny tensors gain nothing from threads, and tests that run side by side lose by them."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


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
