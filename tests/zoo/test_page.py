"""`docs/zoo.md` and `docs/zoo/`: what their generator makes of a zoo."""

import re
from pathlib import Path

import pytest
from docs.zoo_page import short, zoo_pages

import archdsl
from archdsl import resources

SMALL = """\
# A net (One and Two, 1999): it | is small.
# A remark.

block layer(heads, ffn) {
  attention: mha(heads: heads)
  mask:      causal
  ffn:       ffn
}

model small(layers = 2) {
  vocab:   64
  context: 16
  width:   16
  blocks:  layers * layer(heads: 2, ffn: mlp(hidden: 32))
  head:    lm
}

variant smaller = small(layers: 1)

model sparse {
  vocab:   64
  context: 16
  width:   16
  blocks:  2 * layer(heads: 2, ffn: moe(experts: 4, top_k: 1, expert: mlp(hidden: 32)))
  head:    lm
}
"""
PART = """\
# A net: a part of one.

model part(x: [batch, time, 16]) -> [batch, time, 16] { return x -> linear(16) }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of two families that are called the same, and a cache of its own."""
    specs = tmp_path / "specs"
    specs.mkdir()
    (specs / "small.arch").write_text(SMALL)
    (specs / "part.arch").write_text(PART)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(resources, "zoo_files", lambda: {p.stem: p for p in sorted(specs.glob("*.arch"))})
    return specs


def test_a_row_a_figure_and_a_page_for_each_family(folder: Path) -> None:
    pages = zoo_pages()
    page = pages["zoo.md"]
    assert "| [A net (part)](zoo/part.md) |  | layer | 1 | 272 | a part of one. |" in page
    row = (
        r"\| \[A net \(small\)\]\(zoo/small\.md\) \| 1999 \| decoder \| 3 \| [\d.]+K – [\d.]+K \| it \\\| is small\. \|"
    )
    assert re.search(row, page)
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == ["1999", "Without a year"]
    assert '<img src="zoo/figures/small.svg" width="260" alt="A net (small)">' in page
    assert pages["zoo/small.md"].startswith(
        "# A net (small)\n\n"
        "One and Two, 1999: it | is small.\n[specs/small.arch](../../specs/small.arch)\n\nA remark.\n"
    )


def test_counts_stand_beside_the_rule_of_thumb(folder: Path) -> None:
    pages = zoo_pages()
    page = pages["zoo/small.md"]
    counts = {m: archdsl.estimate(folder / "small.arch", model=m).params for m in ("small", "smaller", "sparse")}
    assert "| model | parameters | active | without embeddings | 12 · layers · d² | exact / rule of thumb |" in page
    for name, p in counts.items():
        row = (f"`{name}`", f"{p.total:,}", f"{p.active:,}", f"{p.non_embedding:,}", f"{p.rule_of_thumb:,}")
        assert f"| {' | '.join(row)} | {p.ratio:.4f} |" in page
    assert (
        "| model | parameters | without embeddings |\n|---|---:|---:|\n| `part` | 272 | 272 |\n" in pages["zoo/part.md"]
    )


def test_models_are_drawn_and_variants_are_not(folder: Path) -> None:
    pages = zoo_pages()
    figures = {path.removeprefix("zoo/figures/"): svg for path, svg in pages.items() if path.endswith(".svg")}
    assert [*figures] == ["part.svg", "small.svg", "sparse.svg"]
    assert "× 2</text>" in figures["small.svg"]
    assert "![sparse](figures/sparse.svg)" in pages["zoo/small.md"]


def test_a_wrong_spec_makes_no_page(folder: Path) -> None:
    (folder / "small.arch").write_text(SMALL.replace("mha(heads: heads)", "mha(haeds: heads)"))
    with pytest.raises(archdsl.ArchError, match=r"small\.arch:5"):
        zoo_pages()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999"),
        (1000, "1.00K"),
        (131_072, "131K"),
        (999_499, "999K"),
        (999_600, "1.00M"),
        (11_221_680, "11.2M"),
        (99_960_000, "100M"),
        (9_996_000_000, "10.0B"),
        (124_439_808, "124M"),
        (671_026_404_352, "671B"),
        (1_571_308_972_448, "1.57T"),
    ],
)
def test_short_counts(count: int, text: str) -> None:
    assert short(count) == text
