"""Some inputs of `strangers.py`, and each file as it should be."""

import contextlib
from pathlib import Path

import pytest

from fuzz import broken
from fuzz.strangers import case, files, judge, whole

pytestmark = pytest.mark.slow
WHOLE = ["config.json", "model.safetensors.index.json", "m.gguf", "m.checkpoint", "tokenizer.json"]


def test_broken_checkpoints_are_refused_or_right() -> None:
    told: list[str] = []
    summary = broken.run(7, 60, 1, told.append, case, judge)
    assert summary.findings == {}, told
    assert summary.count == 60
    assert summary.outcomes["refused"] > 30
    assert len({kind.split(" ")[0] for kind in summary.kinds}) == len(files())


@pytest.mark.parametrize("name", WHOLE)
def test_whole_checkpoints_are_fine(name: str, tmp_path: Path) -> None:
    assert judge(whole(name), tmp_path).outcome == "fine"


def test_the_judge_reads_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line too many in the spec, an escape sequence in it, a file that is left after an error."""
    from archdsl.diagnostics import error
    from archdsl.interop import convert

    written = convert.written
    monkeypatch.setattr(convert, "written", lambda *a: written(*a) + "\nlet smuggled = 1\n")
    assert judge(whole("config.json"), tmp_path).outcome == "declares smuggled"
    monkeypatch.setattr(convert, "written", lambda *a: written(*a).replace("# m:", "# \x1b[31m:"))
    assert judge(whole("config.json"), tmp_path).outcome == "control characters in the spec"
    monkeypatch.undo()

    def failed(*_: object) -> None:
        raise error("E0533", "too late")

    monkeypatch.setattr(convert, "together", contextlib.nullcontext)
    monkeypatch.setattr(convert, "write_text", failed)
    assert judge(whole("config.json"), tmp_path).outcome == "half written"
