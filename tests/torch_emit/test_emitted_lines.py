"""What `make emitted` prints is no worse than it was, and it has been seen to say what is."""

from dataclasses import replace
from pathlib import Path

import emitted_lines
import pytest
from emitted_lines import DECODER, MOST, SEQ2SEQ, Row, faults, files, row, steps, unrolled
from zoo import sizes

FAMILIES = {"hf/gpt_neo", "hf/jamba", "hf/rwkv", "hf/smollm3", "hf/whisper"}
SAMPLE = {name.partition(":")[0] for name in sizes.SAMPLE} | FAMILIES
"""Specs that are asked one by one; `--every` asks all."""


def spec(path: Path) -> str:
    return path.relative_to(sizes.SPECS).with_suffix("").as_posix()


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in files() if sizes.every or spec(p) in SAMPLE], ids=spec)
def test_a_file_that_generates_is_no_longer_than_it_was(path: Path) -> None:
    assert faults([row(path)]) == []


@pytest.mark.slow
@pytest.mark.skipif("not sizes.every", reason="emits all specs: --every")
def test_all_of_them_are_no_longer_than_they_were() -> None:
    assert faults([*map(row, files())]) == []


LAYERS = """
class M:
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
WRITTEN_OUT = LAYERS.replace("for block in self.blocks:\n            x = block(x)", "x = self.blocks[0](x)")
IN_PART = LAYERS.replace("return", "x = self.blocks[0](x)\n        return")
APART = WRITTEN_OUT + LAYERS.partition("class M:\n")[2].replace("forward", "step")


@pytest.mark.parametrize(
    ("made", "stepping", "written_out"),
    [
        (LAYERS, [], []),
        (WRITTEN_OUT, [], ["M"]),
        (IN_PART, [], ["M"]),
        (APART, ["M"], ["M"]),
        (LAYERS.replace("class M", "class N"), [], ["M"]),
        (LAYERS.replace("forward", "step"), [], []),
        (LAYERS + LAYERS.partition("class M:\n")[2].replace("forward", "step"), ["M"], []),
    ],
)
def test_a_class_that_is_written_twice_or_out_is_found(made: str, stepping: list[str], written_out: list[str]) -> None:
    assert [*steps(made)] == stepping
    assert [*unrolled(LAYERS, made)] == written_out


@pytest.mark.parametrize("kind", [DECODER, SEQ2SEQ])
def test_what_is_worse_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    least, median, most = MOST[kind]
    fine = [Row(str(n), kind, 100, 100 + n) for n in (least, median, most)]
    monkeypatch.setattr(emitted_lines, "files", lambda: fine)
    assert faults(fine) == []
    assert len(faults([replace(fine[0], generate=100 + most + 1)])) == 1
    assert faults([replace(fine[0], refused="E0504", generate=0)]) == []
    assert len(faults([replace(fine[0], unrolled=("M",))])) == 1
    assert len(faults([replace(fine[0], steps=("M",))])) == 1
    for i, other in ((0, least + 1), (1, median + 1)):
        worse = [replace(r, generate=100 + other) if j == i else r for j, r in enumerate(fine)]
        assert len(faults(worse)) == 1, worse
        assert faults(worse[:2]) == []


def test_the_table_is_printed_and_the_exit_status_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"a": Row("a", DECODER, 100, 180), "b": Row("b", DECODER, 90, refused="E0504")}
    monkeypatch.setattr(emitted_lines, "files", lambda: [*rows])
    monkeypatch.setattr(emitted_lines, "row", rows.__getitem__)
    for least, status in ((80, 0), (79, 1)):
        monkeypatch.setitem(MOST, DECODER, (least, 126, 224))
        for arguments in ([], ["--json"]):
            assert emitted_lines.main(arguments) == status
            shown = capsys.readouterr().out
            assert "E0504" in shown
            assert ("at most 79 may be" in shown) == bool(status)
    assert '"generate": 180' in shown
