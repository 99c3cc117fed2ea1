"""`archdsl list`: what it says of the zoo, how it is filtered, and that a wrong spec costs no more than a line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_tools import Done, Run

import archdsl
from archdsl import resources, zoo
from archdsl.cli.options import complete_spec
from archdsl.estimates.kinds import KINDS, kind_of_model
from archdsl.frontend.load import find_spec, list_imported, list_zoo, name_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# Families that set the work of many side by side.
COMPARISONS = {"norms"}

DECODER = """\
# Some decoder (One and Two, 1999): it is small.
# A second line
# of remarks.

block layer(heads, mask) {
  attention: mha(heads: heads)
  mask:      mask
  ffn:       mlp(hidden: 2 * width)
}

model small(layers = 2) {
  vocab:   64
  context: 16
  width:   16
  blocks:  layers * layer(heads: 2, mask: causal)
  head:    lm
}

variant smaller = small(layers: 1)
"""
RECURRENT = """\
# A tagger (Three et al., 2001): it reads from the left.
model tagger(tokens: token[batch, time]) -> [batch, time, 8] {
  return tokens -> embedding(32, 16) -> lstm(16) -> linear(8)
}
"""


@pytest.fixture
def run(run: Run) -> Run:
    """Run `archdsl list` in this process."""
    return lambda *arguments: run("list", *arguments)


@pytest.fixture
def small_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of two families, and a cache of its own."""
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "some.arch").write_text(DECODER)
    (folder / "tagger.arch").write_text(RECURRENT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(resources, "zoo_files", lambda: {p.stem: p for p in sorted(folder.glob("*.arch"))})
    monkeypatch.setattr(resources, "imported_files", dict)
    return folder


def names(done: Done) -> list[str]:
    """The models of a report in JSON, in order."""
    return [m["name"] for family in json.loads(done.out)["families"] for m in family["models"]]


# --- comments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("# GPT-2 (Radford et al., 2019): pre-norm.", ("GPT-2", "Radford et al.", 2019, "pre-norm.")),
        ("# Llama 3.1 (Dubey et al., 2024): a: b (c, 1999).", ("Llama 3.1", "Dubey et al.", 2024, "a: b (c, 1999).")),
        ("#Net (Two, Three, 2001) : x", ("Net", "Two, Three", 2001, "x")),
        ("# Net with a twist (One, 2015), as told.", ("Net with a twist", "One", 2015, "as told.")),
        ("# Net 6B: only a name.", ("Net 6B", "", None, "only a name.")),
        ("# Net: about (One, 2015).", ("Net", "", None, "about (One, 2015).")),
        ("# nothing at all", ("stem", "", None, "nothing at all")),
        ("model m {", ("stem", "", None, "")),
    ],
)
def test_first_line_of_a_comment(first: str, expected: tuple[object, ...]) -> None:
    said = zoo.read_comment(f"{first}\n# more,\n#  and more\n\n# not this\nmodel m {{", "stem")
    assert (said.name, said.authors, said.year, said.about) == expected
    assert said.notes == ("more,\nand more" if first.startswith("#") else "")


def test_every_family_says_who_when_and_what() -> None:
    for stem, path in resources.zoo_files().items():
        said = zoo.read_comment(path.read_text(encoding="utf-8"), stem)
        assert said.about, path.name
        if stem not in COMPARISONS:
            assert said.authors, f"{path.name}: # Name (Authors, year): what is special."
            assert said.year is not None, path.name


# --- names ------------------------------------------------------------------------------------------------------------


def test_every_name_that_is_listed_is_one_that_commands_take() -> None:
    every = [*list_zoo(), *list_imported()]
    listed = [name_of(entry) for entry in every]
    assert len({*listed}) == len(every)
    assert {*complete_spec("")} >= {*listed}
    files = resources.zoo_files() | resources.imported_files()
    for entry, name in zip(every, listed, strict=True):
        spec = find_spec(name)
        assert spec.path == files[entry.file.removesuffix(".arch")], name
        first = next(e.name for e in every if e.file == entry.file)
        assert (spec.model or first) == entry.name, name


def test_names_in_the_list_of_specs_for_checkpoints() -> None:
    said = {m.name for family in zoo.imported(names=["hf/t5", "hf/jamba", "hf/deepseek_v3"]) for m in family.models}
    assert said == {"hf/t5", "umt5", "longt5", "jamba", "hf/deepseek_v3"}
    assert [m.name for family in zoo.imported(["qwen3_5"]) for m in family.models] == ["qwen3_next", "qwen3_5"]


# --- kinds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt2", "decoder"),
        ("gptj_6b", "decoder"),
        ("deepseek_v3", "decoder"),
        ("bert_base", "encoder"),
        ("albert_base", "encoder"),
        ("conformer_l", "encoder"),
        ("transformer_base", "encoder-decoder"),
        (f"{EXAMPLES}/seq2seq_attention.arch", "encoder-decoder"),
        ("mixer_b16", "vision"),
    ],
)
def test_kinds_of_the_zoo(name: str, kind: str) -> None:
    assert kind_of_model(archdsl.load(name)) == kind


SEQUENCE = "model m(x: token[batch, time]) -> [batch, time, 16] {{\n  return x -> embedding(9, 16) -> {0}\n}}\n"
WRITTEN = (
    "block written(mask: mask)(x: [batch, time, width]) -> [batch, time, width] {\n"
    "  return matmul(softmax(matmul(x, transpose(x, 1, 2)), mask: mask), x)\n}\n"
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SEQUENCE.format("gru(16)"), "recurrent"),
        (SEQUENCE.format("gru(16) -> mha(heads: 2)"), "encoder"),
        (SEQUENCE.format("gru(16) -> mha(heads: 2, mask: causal)"), "decoder"),
        (SEQUENCE.format("conv1d(16, kernel: 3, padding: same)"), "convolutional"),
        (SEQUENCE.format("conv1d(16, kernel: 3, padding: same) -> mha(heads: 2)"), "encoder"),
        (WRITTEN + SEQUENCE.format("conv1d(16, kernel: 3, padding: same) -> written(mask: window(2))"), "encoder"),
        (WRITTEN + SEQUENCE.format("conv1d(16, kernel: 3, padding: causal) -> written(mask: causal)"), "decoder"),
        (SEQUENCE.format("linear(16)"), "decoder"),
        (
            "model m(x: [batch, time, 8]) -> [batch, time, 8] {\n"
            "  y = scan h: [batch, 8] = 0 for a in x {\n    h = tanh(h + a)\n    emit h\n  }\n  return y\n}\n",
            "recurrent",
        ),
        ("model m(x: [batch, time, 8]) -> [batch, time, 8] { return x -> mha(heads: 2) }\n", "layer"),
        ("model m(x: [batch, time, 8]) -> [batch, time, 8] { return x -> mha(heads: 2, mask: causal) }\n", "layer"),
        (
            "model m(x: [batch, 3, 8, 8]) -> [batch, 4, 8, 8] { return x -> conv2d(4, kernel: 3, padding: same) }\n",
            "vision",
        ),
        (
            "model m(x: token[batch, rows, columns]) -> [batch, rows, columns, 4] { return x -> embedding(9, 4) }\n",
            "vision",
        ),
        (
            "model m(x: [batch, frames, 8], y: token[batch, time]) -> [batch, time, 8] {\n"
            "  return y -> embedding(9, 8) -> mha(heads: 2)(memory: x)\n}\n",
            "encoder-decoder",
        ),
        (  # two towers, neither of which reads the other
            "model m(x: token[batch, frames], y: token[batch, time]) \n"
            "  -> (a: [batch, frames, 8], b: [batch, time, 8]) {\n"
            "  return x -> embedding(9, 8) -> mha(heads: 2), y -> embedding(9, 8) -> mha(heads: 2)\n}\n",
            "encoder",
        ),
    ],
)
def test_kinds(text: str, kind: str) -> None:
    assert kind in KINDS
    assert kind_of_model(archdsl.load(text=text)) == kind


# --- families ---------------------------------------------------------------------------------------------------------


def test_a_family_is_described(small_zoo: Path) -> None:
    family = zoo.describe(small_zoo / "some.arch")
    assert (family.family, family.file, family.name) == ("some", "some.arch", "Some decoder")
    assert (family.authors, family.year, family.about) == ("One and Two", 1999, "it is small.")
    assert family.notes == "A second line\nof remarks."
    assert family.problems == []
    assert [(m.name, m.declared, m.kind) for m in family.models] == [
        ("small", "model", "decoder"),
        ("smaller", "variant", "decoder"),
    ]
    for model in family.models:
        counts = archdsl.estimate(small_zoo / "some.arch", model=model.name).params
        assert (model.parameters, model.active, model.non_embedding) == (
            counts.total,
            counts.active,
            counts.non_embedding,
        )
        assert (model.layers, model.rule_of_thumb, model.ratio) == (counts.layers, counts.rule_of_thumb, counts.ratio)


@pytest.mark.parametrize("end", range(0, len(DECODER), 23))
def test_a_half_written_spec_is_told_in_its_family(small_zoo: Path, end: int) -> None:
    path = small_zoo / "some.arch"
    path.write_text(DECODER[:end])
    family = zoo.describe(path)
    whole = {e for e in ("small", "smaller") if f"{e}(" in DECODER[:end]}
    assert {m.name for m in family.models} <= whole
    if end < DECODER.index("model"):
        assert family.models == []
    for problem in family.problems:
        assert problem.code.startswith("E")
        assert problem.message
        assert problem.place.startswith("some.arch")


def test_one_wrong_block_is_one_problem_of_all_its_models(small_zoo: Path) -> None:
    path = small_zoo / "some.arch"
    path.write_text(DECODER.replace("mha(heads: heads)", "mha(haeds: heads)") + RECURRENT)
    family = zoo.describe(path)
    assert [m.name for m in family.models] == ["tagger"]
    (problem,) = family.problems
    assert problem.models == ["small", "smaller"]


def test_a_decoder_that_looks_ahead_is_a_problem(small_zoo: Path) -> None:
    path = small_zoo / "some.arch"
    path.write_text(DECODER.replace("mask: causal", "mask: full"))
    family = zoo.describe(path)
    assert [p.code for p in family.problems] == ["E0406"]
    assert family.models == []


# --- the cache --------------------------------------------------------------------------------------------------------


def test_a_family_is_described_once(small_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = zoo.families()
    described: list[str] = []
    once = zoo.describe

    def again(path: Path) -> zoo.ZooFamily:
        described.append(path.name)
        return once(path)

    monkeypatch.setattr(zoo, "describe", again)
    assert zoo.families() == first
    assert described == []
    (small_zoo / "some.arch").write_text(DECODER.replace("layers = 2", "layers = 3"))
    changed = zoo.families()
    assert described == ["some.arch"]
    assert changed[0].models[0].parameters > first[0].models[0].parameters
    assert changed[1] == first[1]
    assert zoo.families() == changed
    assert described == ["some.arch"]


def test_a_family_is_described_again_when_an_import_changes(small_zoo: Path) -> None:
    (small_zoo / "parts").mkdir()
    part = small_zoo / "parts" / "layer.arch"
    block, model = DECODER.split("model small", 1)
    part.write_text(block)
    (small_zoo / "some.arch").write_text(f'import "parts/layer.arch"\n\nmodel small{model}')
    first = zoo.families()[0].models[0].parameters
    part.write_text(block.replace("2 * width", "3 * width"))
    assert zoo.families()[0].models[0].parameters > first


def test_a_family_is_described_again_when_what_an_import_imports_changes(small_zoo: Path) -> None:
    """Beside the file that imports it, which may lie in another folder than the spec."""
    (small_zoo / "parts").mkdir()
    part, used = small_zoo / "parts" / "layer.arch", small_zoo / "parts" / "used.arch"
    block, model = DECODER.split("model small", 1)
    part.write_text('import "used.arch"\n')
    (small_zoo / "some.arch").write_text(f'import "parts/layer.arch"\n\nmodel small{model}')
    missing = zoo.families()[0]
    assert (missing.models, [p.code for p in missing.problems]) == ([], ["E0208"])
    part.write_text(f'import "used.arch"\n\n{block.replace("2 * width", "factor * width")}')
    for factor in (2, 3):
        used.write_text(f"let factor = {factor}\n")
        family = zoo.families()[0]
        assert family.problems == []
        assert family.models[0].parameters == archdsl.estimate(small_zoo / "some.arch").params.total


def test_it_is_told_how_many_are_found(small_zoo: Path) -> None:
    told: list[tuple[int, int]] = []
    zoo.families(told=lambda *numbers: told.append(numbers))
    assert told == [(0, 2), (1, 2)]


def test_a_damaged_cache_is_ignored(small_zoo: Path) -> None:
    from archdsl.syntax import cache

    first = zoo.families()
    kept = cache.load("zoo")
    entry = kept[str(small_zoo / "some.arch")]
    for damage in ([], {"key": entry["key"]}, {"key": entry["key"], "family": {"name": 3}}):
        cache.store("zoo", {**kept, str(small_zoo / "some.arch"): damage})
        assert zoo.families() == first
    cache.store("zoo", ["what is this"])
    assert zoo.families() == first


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_line_for_each_model(run: Run, small_zoo: Path) -> None:
    done = run()
    assert done.status == 0
    heads, *rows = done.out.splitlines()
    assert heads.split() == ["model", "file", "year", "kind", "parameters", "what", "is", "special"]
    assert [row.split()[:4] for row in rows] == [
        ["small", "some.arch", "1999", "decoder"],
        ["smaller", "some.arch", "1999", "decoder"],
        ["tagger", "tagger.arch", "2001", "recurrent"],
    ]
    assert rows[0].endswith("Some decoder (One and Two): it is small.")
    small = archdsl.estimate(small_zoo / "some.arch").params.total
    assert f"{small:,}" in rows[0]


@pytest.mark.slow
def test_experts_have_a_column_of_active_parameters(run: Run) -> None:
    out = run("--family", "deepseek_v3").out
    row = next(line for line in out.splitlines() if line.startswith("deepseek_v3 "))
    assert "671,026,404,352  37,552,282,624" in row
    assert "active" not in run("--family", "gpt2").out


@pytest.mark.slow
def test_families_of_checkpoints_are_found_by_a_word(run: Run) -> None:
    done = run("qwen3_moe", "--json")
    assert [f["family"] for f in json.loads(done.out)["families"]] == ["hf/qwen3_moe"]
    assert "hf/" not in run("--kind", "vision").out
    assert archdsl.estimate("hf/qwen3_moe").params.total == names_of_parameters(done)["qwen3_moe"]


def names_of_parameters(done: Done) -> dict[str, int]:
    return {m["name"]: m["parameters"] for family in json.loads(done.out)["families"] for m in family["models"]}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["small", "smaller", "tagger"]),
        (["--kind", "decoder"], ["small", "smaller"]),
        (["--kind", "decoder", "--kind", "recurrent"], ["small", "smaller", "tagger"]),
        (["--kind", "vision"], []),
        (["--family", "tagger"], ["tagger"]),
        (["--family", "tagger.arch"], ["tagger"]),
        (["--year", "1999"], ["small", "smaller"]),
        (["--year", "1990..2000"], ["small", "smaller"]),
        (["--year", "2000.."], ["tagger"]),
        (["--year", "..2001"], ["small", "smaller", "tagger"]),
        (["--year", "2002.."], []),
        (["smaller"], ["smaller"]),
        (["SECOND", "one"], ["small", "smaller"]),
        (["reads", "small"], []),
        (["recurrent"], ["tagger"]),
        (["--kind", "decoder", "--year", "2001"], []),
        (["smallr"], []),
        (["small", "--year", "2001"], []),
    ],
)
def test_filters(run: Run, small_zoo: Path, arguments: list[str], expected: list[str]) -> None:
    done = run("--json", *arguments)
    assert (done.status, names(done)) == (0 if expected else 1, expected)
    plain = run(*arguments)
    assert plain.status == done.status
    assert [line.split()[0] for line in plain.out.splitlines()[1:]] == expected
    asked = " ".join(repr(a) for a in arguments if not a.startswith("--"))
    assert plain.err.partition("\n")[0] == ("" if expected else f"archdsl: no zoo model matches {asked}".rstrip())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kind", "decodr"], "decoder"),
        (["--family", "gtp2"], "gpt2"),
        (["--year", "lately"], "2017..2020"),
        (["--year", ".."], "2017..2020"),
        (["--year", "2017..x"], "2017..2020"),
        (["--year", "2017...2020"], "2017..2020"),
    ],
)
def test_wrong_filters_end_with_2(run: Run, arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert (done.status, done.out) == (2, "")
    assert said in done.err


def test_a_wrong_spec_is_one_line(run: Run, small_zoo: Path) -> None:
    (small_zoo / "broken.arch").write_text("# Broken (No one, 2000): it\n# ends here.\nmodel half {\n  vocab: 64\n  bl")
    (small_zoo / "wrong.arch").write_text(DECODER.replace("mha(heads: heads)", "mha(haeds: heads)"))
    done = run()
    assert (done.status, done.err) == (1, "")
    told = [line for line in done.out.splitlines() if "E0" in line]
    assert [line.split(":")[0] for line in told] == ["broken.arch", "wrong.arch"]
    assert "(small, smaller)" in told[1]
    assert sum(line.startswith(("small", "tagger")) for line in done.out.splitlines()) == 3
    report = json.loads(run("--json").out)
    assert [f["family"] for f in report["families"] if f["problems"]] == ["broken", "wrong"]
    assert run("--family", "some").status == 0
    assert run("--kind", "decoder").status == 0


@pytest.mark.slow
def test_json_has_a_schema(run: Run) -> None:
    report = zoo.ZooReport.model_validate_json(run("--json").out)
    assert {f.file for f in report.families} == {p.name for p in resources.zoo_files().values()}
    xl = next(m for f in report.families for m in f.models if m.name == "gpt2_xl")
    assert (xl.declared, xl.kind, xl.parameters, xl.config["layers"]) == ("variant", "decoder", 1_557_611_200, 48)
    assert xl.rule_of_thumb == 12 * 48 * 1600**2


def test_a_wide_terminal_shows_files(small_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from archdsl.report.tables import zoo_view

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for columns, shown in ((100, False), (200, True)):
        monkeypatch.setenv("COLUMNS", str(columns))
        (table,) = zoo_view(zoo.families())
        assert ("file" in [c.header for c in table.columns]) is shown


@pytest.mark.slow
def test_listing_loads_no_back_end() -> None:
    script = (
        "import sys; from archdsl.cli import main; sys.argv = ['archdsl', 'list', '--family', 'gpt2']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*sorted(sys.modules.keys() & {'torch', 'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'transformers'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *rows, loaded = done.stdout.splitlines()
    assert any(row.startswith("gpt2_xl") for row in rows)
    assert loaded == ""


def test_help_names_every_kind(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    said = " ".join(run("--help").out.split())
    assert [kind for kind in KINDS if not re.search(rf"\b{kind}\b", said)] == []


@pytest.mark.parametrize(
    "words", ["gpt2", "Radford", "2019 decoder", "mamba_130m", "encoder-decoder", "sparse expert", "x2y"]
)
def test_files_that_may_have_what_is_asked_for_are_enough(words: str) -> None:
    every = zoo.families()
    some = zoo.families(zoo.worded(words.split()))
    assert zoo.chosen(some, text=words) == zoo.chosen(every, text=words)
    assert zoo.families(zoo.worded(names=["gpt2"])) == [f for f in every if f.family == "gpt2"]
