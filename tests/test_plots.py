"""Pictures of estimates: the same bytes each time, with every block, and harmless whatever a path is called."""

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cli_tools import TINY, run

import archdsl
from archdsl.report import plots

pytestmark = pytest.mark.slow  # drawing takes matplotlib seconds to begin


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.arch").write_text(TINY)


def said(path: str) -> list[str]:
    """The texts of an SVG, in order."""
    root = ET.fromstring(Path(path).read_text())
    return ["".join(t.itertext()).strip() for t in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("kind", plots.FORMATS)
def test_every_kind_and_the_same_bytes(kind: str) -> None:
    plain = run("estimate", "tiny.arch")
    assert run("estimate", "tiny.arch", "--plot", f"a{kind}") == plain
    first = Path(f"a{kind}").read_bytes()
    assert run("estimate", "tiny.arch", "--json", "--plot", f"a{kind}")[0] == 0
    assert Path(f"a{kind}").read_bytes() == first
    assert first.startswith(b"\x89PNG") == (kind == ".png")


def test_parameters_and_flops_by_block() -> None:
    run("estimate", "tiny.arch", "--batch", "2", "--plot", "a.svg")
    texts = said("a.svg")
    assert [texts.count(name) for name in ("layer", "mha", "mlp", "parameters", "forward", "backward")] == [
        2, 2, 2, 1, 1, 1,
    ]  # fmt: skip
    assert "batch = 2, time = 16; exact" in texts
    report = archdsl.estimate("tiny.arch")
    assert {f"{row.total / 1000:.3g} K" for row in report.params.by_block[1:]} <= set(texts)
    assert "gradients" not in texts


def test_memory_where_it_is_asked_for() -> None:
    run("estimate", "tiny.arch", "--dtype", "bfloat16", "--master-weights", "--plot", "a.html")
    page = Path("a.html").read_text()
    memory = archdsl.memory("tiny.arch", dtype="bfloat16", master_weights=True)
    states = {f"optimizer: {s.name} (float32)": s.bytes for s in memory.by_state}
    for name, count in {**states, "weights": memory.weights, "gradients": memory.gradients}.items():
        assert f"<td>{name}</td><td>{count:,}</td>" in page
    assert len(states) == 4


def test_a_page_has_every_number() -> None:
    run("estimate", "tiny.arch", "--plot", "a.html")
    page = Path("a.html").read_text()
    flops = archdsl.flops("tiny.arch")
    for row in flops.by_block:
        assert f"<td>{row.forward:,}</td><td>{row.training:,}</td>" in page
    for block in archdsl.estimate("tiny.arch").params.by_block:
        assert f"<td>{block.count:,}</td><td>{block.each:,}</td><td>{block.total:,}</td>" in page
    assert "<script" not in page


@pytest.mark.parametrize("kind", [".svg", ".html"])
def test_names_are_text(kind: str) -> None:
    name = "<script>alert(1)<&$x^2$>.arch".replace("/", "")
    Path(name).write_text(TINY)
    for arguments in (("estimate", name), ("sweep", name, "--set", "layers=1,2")):
        assert run(*arguments, "--plot", f"a{kind}")[0] == 0
        text = Path(f"a{kind}").read_text()
        assert "<script" not in text
        assert "&lt;script&gt;alert(1)&lt;&amp;$x^2$&gt;.arch" in re.sub(r"&#36;", "$", text)


def test_of_many_blocks_the_largest() -> None:
    layers = ", ".join(f"l{i}" for i in range(40))
    blocks = "\n".join(
        f"block l{i} {{ mask: causal attention: mha(heads: 2) ffn: mlp(hidden: {8 + i}) }}" for i in range(40)
    )
    Path("many.arch").write_text(
        f"{blocks}\nmodel many {{ vocab: 64 context: 16 width: 16 blocks: [{layers}] head: lm }}"
    )
    assert run("estimate", "many.arch", "--plot", "a.svg")[0] == 0
    texts = said("a.svg")
    count = len(archdsl.estimate("many.arch").params.by_block) - 1
    assert f"parameters (the 30 largest of {count})" in texts
    assert "l39" in texts
    assert "l0" not in texts
    run("estimate", "many.arch", "--plot", "a.html")
    assert "<td>l0</td>" in Path("a.html").read_text()


def test_a_model_of_one_block() -> None:
    Path("one.arch").write_text("model one(x: [batch, 8]) -> [batch, 8] { return x -> linear(8) }")
    assert run("estimate", "one.arch", "--plot", "a.svg")[0] == 0
    assert said("a.svg").count("one") == 2
    Path("bare.arch").write_text("model bare(x: [batch, 8]) -> [batch, 8] { return x -> relu }")
    assert run("estimate", "bare.arch", "--plot", "a.svg")[0] == 0


@pytest.mark.parametrize("name", ["a.bmp", "svg", "a.svg.gz"])
def test_other_files_are_refused(name: str) -> None:
    status, out = run("estimate", "tiny.arch", "--plot", name)
    assert (status, "E0506" in out) == (2, True)
    assert not Path(name).exists()


def test_they_need_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "installed", lambda name: None)
    status, out = run("estimate", "tiny.arch", "--plot", "a.svg")
    assert (status, "E0502" in out, "pip install matplotlib; --json needs none" in out) == (2, True, True)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("estimate", "tiny.arch")[0] == 0


def test_bars_in_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    report = archdsl.estimate("tiny.arch").params
    _, out = run("estimate", "tiny.arch")
    for row in report.by_block[1:]:
        (line,) = (line for line in out.splitlines() if line.startswith(f"{row.block} "))
        bar = line[line.index("%") + 1 :].strip()
        assert abs(len(bar) - 20 * row.total / report.total) < 1.01
    monkeypatch.setattr("archdsl.report.tables._has_room", lambda: False)
    _, narrow = run("estimate", "tiny.arch", "--flops", "exact")
    assert "█" in out
    assert "█" not in narrow + run("estimate", "tiny.arch")[1]
