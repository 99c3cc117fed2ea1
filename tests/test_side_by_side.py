"""Models side by side: `archdsl diff` over edits of a spec, over the zoo, and in git; `archdsl compare`."""

import csv
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from cli_tools import Run
from docs.pages import ROOT, blocks

import archdsl
from archdsl.estimates.flops import per_token
from archdsl.frontend.load import name_of
from archdsl.ir.graph import Model
from archdsl.report import tables
from archdsl.report.compare import LONG, CompareReport, ModelColumn
from archdsl.report.diff import TOLD, Aligned, DiffReport, align, diff
from archdsl.report.tables import compare_csv, compare_markdown, diff_view, plain_text
from archdsl.resources import zoo_files

GPT2 = (ROOT / "specs" / "gpt2.arch").read_text(encoding="utf-8")
FAMILIES = sorted(zoo_files())


@cache
def zoo_model(name: str) -> Model:
    return archdsl.load(name)


def first_of(family: str) -> Model:
    return zoo_model(next(name_of(entry) for entry in archdsl.list_zoo() if entry.file == f"{family}.arch"))


def edited(*edits: tuple[str, str], of: str = GPT2) -> str:
    for old, new in edits:
        assert old in of, old
        of = of.replace(old, new)
    return of


def compared(before: str, after: str) -> DiffReport:
    return diff(archdsl.load(text=before), archdsl.load(text=after))


def told(report: DiffReport) -> list[str]:
    """Every setting, and every part with what is said of it."""
    lines = [f"{s.name}: {s.before} → {s.after}" for s in report.settings]
    todo = [report.root]
    while todo:
        part = todo.pop(0)
        todo = part.parts + todo
        changes = [f"{c.name} {c.before} → {c.after}" for c in part.changes]
        if "layers" in (part.before, part.after) or (part.after == "model" and not changes):
            continue
        if part.status in ("added", "removed", "renamed") or part.before != part.after:
            changes.insert(0, part.status)
        if changes:
            names = dict.fromkeys(n for n in (part.before, part.after) if n)
            lines.append(f"{' → '.join(names)}: {', '.join(changes)}")
    return lines


# --- edits ------------------------------------------------------------------------------------------------------------

UNTOLD = {
    "comments": [
        ("# GPT-2", "# Another"),
        ("  # normal(0.02)", "  # so:\n                                         # "),
    ],
    "name of the model": [("model gpt2(", "model other("), ("= gpt2(", "= other(")],
    "numbers by other expressions": [("4 * width", "width * 8 / 2")],
    "a list written out": [("layers * decoder", "(layers - 2) * decoder(heads: heads, layers: layers) + 2 * decoder")],
}
FFN = "mlp(hidden: 4 * width, act: gelu_tanh)"
EDITS: dict[str, tuple[list[tuple[str, str]], list[str]]] = {
    "layers": ([("layers = 12", "layers = 16")], ["layers: 12 → 16", "blocks: decoder: count 12 → 16"]),
    "width": ([("width = 768", "width = 1536")], ["width: 768 → 1536"]),
    "ffn": (
        [(FFN, "swiglu(hidden: 2048)")],
        ["ffn: mlp → ffn: swiglu: changed, bias true → false, hidden 3,072 → 2,048"],
    ),
    "experts": (
        [(FFN, "moe(experts: 8, top_k: 2, expert: swiglu(hidden: 2048))")],
        [
            "ffn: mlp → ffn: moe: changed, "
            "hidden 3,072 → none, experts none → 8, top_k none → 2, expert_hidden none → 2,048"
        ],
    ),
    "hidden": ([("4 * width", "3 * width")], ["ffn: mlp: hidden 3,072 → 2,304"]),
    "act": ([("gelu_tanh", "relu")], ["ffn: mlp: act gelu_tanh → relu"]),
    "attention": (
        [("mha(heads: heads,", "gqa(heads: heads, kv_heads: 4,")],
        ["attention: mha → attention: gqa: changed, kv_heads none → 4"],
    ),
    "mask": ([("causal", "causal & window(64)")], ["attention: mha: mask causal → causal & window(64)"]),
    "bias": ([("bias: true", "bias: false")], ["attention: mha: bias true → false, out_bias true → false"]),
    "norm": (
        [("layernorm(eps: 1e-5)", "rmsnorm(eps: 1e-5)")],
        [f"{n}norm: layernorm → {n}norm: rmsnorm: changed" for n in ("attention_", "ffn_", "")],
    ),
    "head": ([("lm(tied: true)", "lm")], ["tied weight: removed", "unembed: removed", "head: linear: added"]),
    "position": (
        [("  position: learned\n", ""), ("mask:      causal", "mask: causal\n  position: rope(theta: 10_000)")],
        [
            "indices: removed",
            "position: embedding: removed",
            "plus: removed",
            "attention: mha: position none → rope(theta: 10,000)",
        ],
    ),
    "init": (
        [(GPT2.splitlines()[9] + "\n", "")],
        [
            "attention: mha: init of q, k, v, out depth_scaled(std: 0.02, layers: 12) → default",
            "ffn: mlp: init of up, down depth_scaled(std: 0.02, layers: 12) → default",
        ],
    ),
    "rules of init": (
        [
            (
                GPT2.splitlines()[9],
                '  init: ["*": depth_scaled(0.02, layers), "*.out": zeros, "*.up.bias": ones, "*ion_norm": zeros]',
            )
        ],
        [
            "attention_norm: layernorm: init of weight default → zeros",
            "attention: mha: init of out depth_scaled(std: 0.02, layers: 12) → zeros",
            "ffn: mlp: init of up.bias zeros → ones",
        ],
    ),
    "a block's name": ([("decoder(", "layer(")], ["blocks: decoder → blocks: layer: renamed"]),
    "another layer": (
        [("layers * decoder", "decoder(heads: 6, layers: layers) + layers * decoder")],
        ["blocks: decoder: added"],
    ),
    "dropout": (
        [("dropout:   0.1", "dropout:   0.2")],
        ["attention: mha: dropout 0.1 → 0.2", "dropout: rate 0.1 → 0.2", "dropout: rate 0.1 → 0.2"],
    ),
    "post-norm": (
        [("placement: pre", "placement: post")],
        [
            "attention: mha: reads attention_norm → input",
            "attention_norm: layernorm: reads input → plus",
            "ffn: mlp: reads ffn_norm → attention_norm",
            "plus: reads dropout and plus → attention_norm and dropout",
        ],
    ),
    "a setting": (
        [("layers = 12,", "layers = 12, extra = 3,"), ("layers * dec", "(layers - 3 + extra) * dec")],
        ["extra: None → 3"],
    ),
}
ORDERED = """\
block both(width) (x: [batch, time, width]) -> [batch, time, width] {
%s
  return left + right
}

model m(width = 8) (x: [batch, time, width]) -> [batch, time, width] {
  y = x -> both(width: width)
  return y
}
"""
LEFT = "  left = x -> linear(16) as a -> linear(8) as b"
RIGHT = "  right = x -> linear(32) as c -> relu -> linear(8) as d"


@pytest.mark.parametrize("edit", UNTOLD)
def test_what_changes_nothing_is_no_difference(edit: str) -> None:
    assert compared(GPT2, edited(*UNTOLD[edit])).same


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_said_once(edit: str) -> None:
    edits, expected = EDITS[edit]
    report = compared(GPT2, edited(*edits))
    assert told(report) == expected
    assert not report.same


def test_independent_steps_have_no_order() -> None:
    one, other = (ORDERED % "\n".join(lines) for lines in ((LEFT, RIGHT), (RIGHT, LEFT)))
    assert compared(one, other).same
    assert told(compared(one, ORDERED % f"{RIGHT}\n{LEFT}".replace("relu", "silu"))) == ["relu → silu: changed"]


def test_a_step_that_is_renamed_is_neither_removed_nor_added() -> None:
    one = ORDERED % f"{LEFT}\n{RIGHT}"
    assert told(compared(one, one.replace("as d", "as down"))) == ["d: linear → down: linear: renamed"]


def test_the_order_of_layers_is_told() -> None:
    one = edited(("layers * decoder", "decoder(heads: 6, layers: layers) + (layers - 1) * decoder"))
    other = edited(
        ("layers: layers)\n", "layers: layers) + decoder(heads: 6, layers: layers)\n"),
        ("layers * dec", "(layers - 1) * dec"),
    )
    assert told(compared(one, other)) == ["blocks: decoder: layers 1–11 → 0–10", "blocks: decoder: layers 0 → 11"]


DENSE = """\
block b(heads) (x: [batch, time, width]) -> [batch, time, width] {
  let n = 3 * heads
  return x -> linear(n) as up -> relu -> linear(width) as down
}

model m(width = 8, heads = 2) (x: [batch, time, width]) -> [batch, time, width] {
  return x -> b(heads: heads)
}
"""
OWN = [
    ("3 * heads", "5 * heads", ["b: n 6 → 10"]),
    ("relu", "gelu", ["relu → gelu: changed"]),
    ("relu -> ", "", ["relu: removed"]),
    ("return x -> linear(n)", "return (x * 0.5) -> linear(n)", ["times: added"]),
    ("linear(n)", "linear(n, bias: false)", ["up: linear: bias true → false"]),
    ("  return x", "  z = x * 2\n  return x", []),
    ("as down", "as lower", ["down: linear → lower: linear: renamed"]),
    ("b(heads", "mine(heads", ["b → mine: renamed"]),
    ("heads = 2", "heads = 4", ["heads: 2 → 4"]),
    ("x: [batch", "y: [batch", ["model: inputs x: float[batch, time, 8] → y: float[batch, time, 8]"]),
]


@pytest.mark.parametrize(("old", "new", "expected"), OWN)
def test_an_edit_of_equations_is_said_once(old: str, new: str, expected: list[str]) -> None:
    other = DENSE.replace(old, new).replace("return x", "return y" if new.startswith("y") else "return x")
    assert told(compared(DENSE, other)) == expected


TWINS = "model m(x: [batch, 8]) {{ {} return {} }}"
A, B = "a = x -> linear(8) as a ", "b = x -> linear(8) as b "


@pytest.mark.parametrize(
    ("one", "other", "last"),
    [
        ((A + B, "a - b"), (B + A, "a - b"), "no difference"),
        ((A + B, "a - b"), (A + B, "b - a"), "the same parts, put together otherwise"),
        ((A, "a - x"), (A, "x - a"), "the same parts, put together otherwise"),
        ((A + B, "(a - b) * (a - b)"), (A + B, "(a - a) * (b - b)"), "~ minus  reads a and b → b"),
    ],
)
def test_modules_that_do_the_same_are_not_one(one: tuple[str, str], other: tuple[str, str], last: str) -> None:
    """Weights of the same shape are others: what reads which of them is part of a model."""
    report = compared(TWINS.format(*one), TWINS.format(*other))
    assert report.same == (last == "no difference")
    assert plain_text(*diff_view(report)).partition("\n\nSizes")[0].splitlines()[-1] == last


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("a - b", "(a -> relu -> relu -> exp) - b", ["+ relu × 2, exp"]),
        ("(a -> relu -> relu -> exp) - b", "a - b", ["- relu × 2, exp"]),
        ("a -> dropout(0.1) -> dropout(0.1)", "a -> dropout(0.2) -> dropout(0.2)", ["~ dropout  rate 0.1 → 0.2 (× 2)"]),
        (
            "a -> linear(9) as c -> linear(9) as d -> exp",
            "a -> linear(8) as c -> linear(8) as d -> exp",
            [
                "~ outputs  float[batch, 9] → float[batch, 8]",
                "~ c: linear  features 9 → 8",
                "and 1 more: --json says all",
            ],
        ),
    ],
)
def test_what_is_told_of_parts(before: str, after: str, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Alike ones at once, and of many the first."""
    monkeypatch.setattr(tables, "LINES", 2)
    text = plain_text(*diff_view(compared(*(TWINS.format(A + B, result) for result in (before, after)))))
    assert text.partition("Structure\n")[2].partition("\n\n")[0].rstrip().splitlines() == lines


def test_flops_of_a_model_without_a_batch_are_those_of_all_it_takes() -> None:
    one, other = (f"model m(x: [4, 8]) {{ return x -> linear({n}) }}" for n in (8, 9))
    flops = next(q for q in compared(one, other).totals if q.name == "FLOPs per token, forward")
    assert (flops.before, flops.after) == (2 * 4 * 8 * 8, 2 * 4 * 8 * 9)
    assert "FLOPs  exact: " in plain_text(*tables.flops_view(archdsl.estimate(text=one, convention="exact", seq=1)))


def test_where_a_scan_starts_is_told() -> None:
    text = "model m(x: [batch, time, 8]) {{ y = scan h: [batch, 8] = {} for t in x {{ h = h + t emit h }} return y }}"
    assert told(compared(text.format("-inf"), text.format("0.5"))) == ["scan: start 1 -inf → 0.5"]
    assert compared(text.format(0), text.format(0)).same


def test_a_number_of_a_long_list_is_told() -> None:
    text = "model m(x: [batch, time, 12]) -> [batch, time, 12] {{ buffer t: [12] = [{}, 2, 3]  return x * t }}"
    one, other = (text.format(", ".join([*map(str, range(9)), last])) for last in ("4", "5"))
    assert told(compared(one, other)) == [
        "t: buffer: init of the weight expression of listed, [0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 2, 3] → "
        "expression of listed, [0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 2, 3]"
    ]


NUMBER = re.compile(r"(?<![\w.])\d[\d_]*(\.\d+)?(e-?\d+)?(?![\w.])")


@pytest.mark.parametrize("family", ["convmixer", "deepseek_v2", "gemma3", "gpt_oss", "mamba", "t5"])
def test_no_number_of_a_spec_is_passed_over(family: str, tmp_path: Path) -> None:
    text = re.sub(r"#[^\n]*", "", zoo_files()[family].read_text(encoding="utf-8"))
    numbers, tried = list(NUMBER.finditer(text)), 0
    random.Random(family).shuffle(numbers)
    while numbers and tried < 5:
        number = numbers.pop()
        value = number[0].replace("_", "")
        twice = str(2 * float(value) if number[1] or number[2] else 2 * int(value) or 1)
        path = tmp_path / "other.arch"
        path.write_text(text[: number.start()] + twice + text[number.end() :], encoding="utf-8")
        try:
            other = archdsl.load(path)
        except archdsl.ArchError:
            continue
        tried += 1
        report = diff(first_of(family), other)
        assert report.same or told(report), (text[max(0, number.start() - 60) : number.end()], twice)
    assert tried == 5


def test_deepseek() -> None:
    report = diff(zoo_model("deepseek_v2"), zoo_model("deepseek_v3"))
    settings = len(report.settings)
    assert settings == 11
    assert told(report)[settings:] == [
        "blocks: layer (dense): count 1 → 3",
        "attention: mla: position_scaling_mscale 0.707 → 1",
        "blocks: layer (sparse): count 59 → 58",
        "attention: mla: position_scaling_mscale 0.707 → 1",
        "router: softmax_router → router: sigmoid_router: "
        "changed, normalize false → true, bias false → true, scale 16 → 2.5",
        "shared: swiglu: hidden 3,072 → 2,048",
    ]
    figures = {q.name: (q.before, q.after) for q in report.totals}
    for column, model in enumerate((zoo_model("deepseek_v2"), zoo_model("deepseek_v3"))):
        counted, cost = archdsl.estimate(model).params, archdsl.flops(model)
        held = archdsl.memory(model, dtype="bfloat16", master_weights=True)
        assert [row[column] for row in figures.values()] == [
            *(counted.total, counted.active, cost.forward / cost.seq, cost.training_per_token),
            *(held.decode_state_per_token, held.decode_state, held.weights, held.model_states),
        ]
    dense, sparse = next(p.parts for p in report.root.parts if p.after == "layers")
    assert dense.flops_after is not None
    assert sparse.flops_after is not None
    (head,) = (p.flops_after for p in report.root.parts if p.after == "head: linear")
    assert head is not None
    assert dense.flops_after + sparse.flops_after + head == pytest.approx(figures["FLOPs per token, forward"][1])


# --- the zoo ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_the_same_as_itself(family: str, tmp_path: Path) -> None:
    for name, path in zoo_files().items():  # some import others
        if name != family:
            shutil.copy(path, tmp_path)
    bare = re.sub(r"#[^\n]*", "", zoo_files()[family].read_text(encoding="utf-8"))
    (tmp_path / f"{family}.arch").write_text(bare, encoding="utf-8")
    found = align(first_of(family), archdsl.load(tmp_path / f"{family}.arch"))
    assert (found.status, found.changes, found.children) == ("same", [], [])


def sums(found: Aligned) -> Iterator[str]:
    """Parts whose parameters are not those of their parts, blocks of the library left out."""
    for side in (0, 1):
        part = (found.before, found.after)[side]
        inner = [p for c in found.children if (p := (c.before, c.after)[side]) is not None]
        library = part is not None and part.block is not None and part.block.library
        if part is not None and inner and not library and part.params != sum(p.params * p.count for p in inner):
            yield part.title
    for child in found.children:
        yield from sums(child)


def mirrored(found: Aligned, turned: bool) -> object:
    status = {"added": "removed", "removed": "added"}.get(found.status, found.status) if turned else found.status
    sides = [p and p.title for p in (found.before, found.after)]
    changes = sorted((c.name, *((c.after, c.before) if turned else (c.before, c.after))) for c in found.changes)
    inner = sorted(repr(mirrored(c, turned)) for c in found.children)
    return status, sides[::-1] if turned else sides, changes, inner


@pytest.mark.parametrize("seed", range(2))
def test_pairs_of_the_zoo(seed: int) -> None:
    names = FAMILIES[:]
    random.Random(seed).shuffle(names)
    for before, after in pairwise(names):
        models = [first_of(family) for family in (before, after)]
        found, back = align(*models), align(*models[::-1])
        where = f"{before}, {after}"
        assert not list(sums(found)), where
        assert mirrored(found, False) == mirrored(back, True), where
        assert found.status in TOLD, where
        for part, model in zip((found.before, found.after), models, strict=True):
            assert part is not None
            assert part.params == archdsl.estimate(model).params.total


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_exit_status(run: Run) -> None:
    assert run("diff", "gpt2", "gpt2_medium").status == 0
    assert run("diff", "gpt2", "gpt2_medium", "--exit-code").status == 1
    assert run("diff", "gpt2", "gpt2_medium", "--exit-code", "--json").status == 1
    done = run("diff", "gpt2", "gpt2", "--exit-code")
    assert (done.status, done.out.splitlines()[1:]) == (0, ["no difference"])
    assert run("diff", "gpt2", "gpt2", "--set-after", "layers=13", "--exit-code").status == 1
    assert json.loads(run("diff", "gpt2", "gpt2", "--json").out)["same"] is True


def test_all_models_of_two_files_are_compared_by_their_names(tmp_path: Path, run: Run) -> None:
    """Those of one file alone are named, those that differ shown as each pair is, and the others counted."""
    old, new = tmp_path / "old.arch", tmp_path / "new.arch"
    model = "model {}(x: [batch, 8]) {{ return x -> linear({}) }}\n"
    old.write_text("".join(model.format(name, 8) for name in ("gone", "a", "b", "c")))
    new.write_text("".join(model.format(name, width) for name, width in (("a", 8), ("b", 16), ("c", 8), ("come", 8))))
    done = run("diff", "--all", old, new, "--exit-code")
    assert done.status == 1
    told = run("diff", f"{old}:b", f"{new}:b").out
    assert done.out == f"- model gone\n+ model come\n{told}\n2 models without a difference\n"
    assert run("diff", "--all", old, new).status == 0
    assert run("diff", "--all", old, old, "--exit-code") == (0, "4 models without a difference\n", "")
    assert run("diff", "--all", os.devnull, new, "--exit-code").status == 1
    added = "".join(f"+ model {name}\n" for name in ("a", "b", "c", "come"))
    assert run("diff", "--all", os.devnull, new) == (0, added, "")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["gpt2", "gpt7"], 2, "gpt7"),
        (["gpt2", "gpt2", "--set-before", "depth=3"], 2, "depth"),
        (["gpt2", "gpt2_medium", "--seq", "4096"], 2, "at most `context` tokens"),
        (["--all", "gpt2", "gpt2"], 2, "it takes files"),
    ],
)
def test_what_is_wrong_is_said_once(arguments: list[str], status: int, said: str, run: Run) -> None:
    done = run("diff", *arguments)
    assert (done.status, done.out) == (status, "")
    assert said in done.err
    assert done.err.count("error") + done.err.count("Error") == 1


def test_hostile_names_are_escaped(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "[bold red]\x1b[31m.arch"
    path.write_text(edited(("layers = 12", "layers = 2")), encoding="utf-8")
    done = run("diff", "gpt2", path)
    assert "[bold red]" in done.out
    assert "\x1b" not in done.out


def test_networkx_waits_for_a_difference() -> None:
    program = "import sys, archdsl.cli, archdsl.report.diff; sys.exit('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_recipe_for_git(tmp_path: Path) -> None:
    (recipe,) = (b.text for b in blocks(ROOT / "docs" / "diff.md") if b.kind == "sh")
    program = tmp_path / "bin" / "archdsl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m archdsl "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    folder = tmp_path / "repository"
    folder.mkdir()
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_PAGER": "cat"}

    def shell(command: str) -> str:
        done = subprocess.run(["sh", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (folder / "mine.arch").write_text(GPT2, encoding="utf-8")
    shell(f"git init -q . && {recipe} git add . && git -c user.name=a -c user.email=a@b.c commit -qm first")
    (folder / "mine.arch").write_text(edited(("layers: 24", "layers: 20"), (FFN, "swiglu(hidden: 2048)")), "utf-8")
    (folder / "new.arch").write_text(GPT2, encoding="utf-8")
    shell("git add --intent-to-add new.arch")
    said = shell("git diff")
    assert said.count("ffn: mlp → swiglu  bias true → false, hidden") == 4
    assert "~ layers  24 → 20" in said
    assert "+ model gpt2_xl" in said
    (folder / "mine.arch").write_text("model {", encoding="utf-8")
    assert "~ layers" not in shell("git diff -- mine.arch 2>&1")
    assert "@@" in shell("git diff --no-ext-diff -- mine.arch")


# --- a table of several -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, len(FAMILIES) - 1, 8))
def test_the_table_has_the_figures_of_estimates(first: int) -> None:
    models = [first_of(family) for family in FAMILIES[first : first + 8]]
    report = archdsl.compare(*models)
    for model, column in zip(models, report.models, strict=True):
        counted = archdsl.estimate(model).params
        assert (column.model, column.layers, column.width) == (model.name, counted.layers, counted.width)
        assert (column.parameters, column.active) == (counted.total, counted.active)
        assert column.training_per_token == per_token(model, archdsl.estimate(model), seq=report.seq)[1]
        assert len(column.heads) >= len(column.experts) == len(column.active_experts) or not column.heads
        assert (column.cache_long is None) is (column.no_cache is not None)
        assert (column.cache_per_token is None) is (column.no_cache == "no decoding")


def test_what_the_table_says_of_published_models() -> None:
    names = ("gpt2", "bert_base", "llama2_7b", "llama3_8b", "gemma3_1b", "mixtral_8x7b", "deepseek_v3", "mamba_130m")
    columns = archdsl.compare(*map(zoo_model, names)).models
    said = {c.model: (c.attention, c.positions, c.heads, c.kv_heads, c.experts, c.active_experts) for c in columns}
    assert said == {
        "gpt2": (["MHA"], ["learned"], [12], [12], [], []),
        "bert_base": (["MHA"], ["learned"], [12], [12], [], []),
        "llama2_7b": (["MHA"], ["rope"], [32], [32], [], []),
        "llama3_8b": (["GQA"], ["rope"], [32], [8], [], []),
        "gemma3_1b": (["MQA"], ["rope"], [4], [1], [], []),
        "mixtral_8x7b": (["GQA"], ["rope"], [32], [8], [8], [2]),
        "deepseek_v3": (["MLA"], ["rope"], [128], [128], [256], [8]),
        "mamba_130m": (["convolution", "recurrence"], [], [], [], [], []),
    }
    caches = {c.model: (c.no_cache, c.cache_long) for c in columns}
    assert caches["gpt2"] == ("shorter context", None)
    assert caches["bert_base"] == ("no decoding", None)
    held = archdsl.memory(zoo_model("llama3_8b"), seq=LONG, dtype="bfloat16", master_weights=True)
    assert caches["llama3_8b"] == (None, held.decode_state)
    llama = next(c for c in columns if c.model == "llama3_8b")
    assert (llama.weights, llama.training) == (held.weights, held.model_states)


def hostile(name: str) -> CompareReport:
    column = archdsl.compare(zoo_model("gpt2"), zoo_model("gpt2")).models[0]
    return CompareReport(seq=1, models=[ModelColumn(**{**column.model_dump(), "model": name, "source": name})])


@pytest.mark.parametrize(
    "name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", 'a,"b', "a\nb", "\x1b[31m", "|", "`a`"]
)
def test_tables_hold_no_formulas_and_no_markup(name: str) -> None:
    header, row = csv.reader(compare_csv(hostile(name)).splitlines())
    cell = dict(zip(header, row, strict=True))["source"]
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert "\x1b" not in cell
    lines = compare_markdown(hostile(name)).splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")} == {3}
    assert not re.search(r"(?<!\\)[`<\[]|\x1b", "".join(lines))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt2"], "it takes 2 to 8 models"),
        (["gpt2"] * 9, "it takes 2 to 8 models"),
        (["gpt2", "gpt7"], "gpt7"),
        (["gpt2", "gpt2", "--csv", "--json"], "choose one"),
        (["gpt2", "gpt2", "--seq", "5000"], "at most `context` tokens"),
    ],
)
def test_what_cannot_be_compared_is_said_once(arguments: list[str], said: str, run: Run) -> None:
    done = run("compare", *arguments)
    assert (done.status, done.out) == (2, "")
    assert said in done.err


def test_compare_prints_each_format(run: Run) -> None:
    assert json.loads(run("compare", "gpt2", "gpt2_medium", "--json").out)["models"][1]["layers"] == 24
    assert run("compare", "gpt2", "gpt2_medium", "--markdown").out.startswith(
        "|  | gpt2 | gpt2\\_medium |\n| --- | ---: |"
    )
    assert (
        run("compare", "gpt2", "gpt2_medium", "--csv")
        .out.splitlines()[2]
        .startswith("gpt2_medium,gpt2.arch,decoder,24")
    )
    assert re.search(r"^layers +12 +24$", run("compare", "gpt2", "gpt2_medium").out, re.MULTILINE)
