"""The language reference: its examples are compiled and run, or fail as they say."""

import ast
import re
from pathlib import Path

import pytest

import archdsl
from archdsl.frontend.load import find_spec, module_of
from archdsl.frontend.modules import models
from archdsl.ir import masks
from archdsl.run.smoke import run
from docs.pages import ROOT, Block, blocks

PAGE = ROOT / "docs" / "language.md"
EXAMPLES = [b for b in blocks(PAGE) if b.kind == "arch"]
MODEL = next(b.text for b in blocks(PAGE) if b.text.startswith("model page"))
CODE = re.compile(r"[EW]\d{4}")


def whole(block: Block) -> str:
    """An example as a whole file."""
    text = block.text
    if "statements" in block.words:
        text = f"block layer(x: [batch, time, width]) -> [batch, time, width] {{\n{text}}}\n"
    return text if re.search(r"^model ", text, re.MULTILINE) else text + MODEL


@pytest.mark.slow
@pytest.mark.parametrize("block", EXAMPLES, ids=str)
def test_example(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in EXAMPLES:
        if file.note:
            (tmp_path / file.note).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file.note).write_text(file.text, encoding="utf-8")
    if block.note:
        return
    monkeypatch.chdir(tmp_path)
    Path("page.arch").write_text(whole(block), encoding="utf-8")
    said = [d.code for d in archdsl.check("page.arch") if d.is_error]
    expected = [word for word in block.words if CODE.fullmatch(word)]
    assert said == expected, "\n".join(str(d) for d in archdsl.check("page.arch"))
    if expected:
        return
    for name in models(module_of(find_spec("page.arch"))):
        model = archdsl.load(f"page.arch:{name}")
        report = run(model, weights=None, seed=0, batch=2, time=8, device="cpu", dtype="float32")
        assert report.parameters == archdsl.estimate(f"page.arch:{name}").params.total
        assert report.gradients > 0
        ast.parse(archdsl.torch_source(f"page.arch:{name}"))


def test_words_of_the_examples() -> None:
    for block in EXAMPLES:
        assert all(word in ("arch", "statements") or CODE.fullmatch(word) for word in block.words), str(block)


def test_every_mask_has_a_line() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Masks\n")[2].partition("\n## ")[0]
    table = "".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    assert re.findall(r"`([a-z]+)", table) == [*masks.RULES, *masks.TENSOR_RULES], "a line for each row, in their order"


def test_reserved_words_are_those_of_the_grammar() -> None:
    grammar = (ROOT / "grammars" / "arch.lark").read_text(encoding="utf-8")
    rules = re.sub(r"//[^\n]*", "", grammar)
    reserved = set(re.findall(r'"([a-z_]+)"', rules))
    listed = next(b.text.split() for b in blocks(PAGE) if b.text.startswith("and as assert"))
    assert set(listed) == reserved
    assert listed == sorted(listed)
