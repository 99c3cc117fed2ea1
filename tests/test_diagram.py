"""Drawings: what of a model is drawn, how it is called, and that the text is Mermaid."""

import re
import sys
from pathlib import Path

import pytest

import archdsl
from archdsl.api import list_zoo
from archdsl.report import diagram as drawing
from archdsl.report.diagram import Box, Diagram, diagram
from archdsl.report.mermaid import mermaid

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

LAYER = """\
block layer(heads) {{
  attention: mha(heads: heads)
  mask:      causal
  ffn:       mlp(hidden: 4 * width)
  placement: {placement}
  dropout:   0.1
}}

model tiny(layers = 12) {{
  vocab:    5000
  context:  32
  width:    16
  position: learned
  blocks:   layers * layer(heads: 2)
  head:     lm(tied: true)
}}
"""


def draw(text: str) -> Diagram:
    return diagram(archdsl.load(text=text))


def equations(body: str, before: str = "", shape: str = "[batch, time, 16]") -> Diagram:
    """The drawing of a model of equations over x: [batch, time, 16]."""
    return draw(f"{before}\nmodel m(x: [batch, time, 16]) -> {shape} {{\n{body}\n}}\n")


def titles(drawn: Diagram) -> list[str]:
    return [g.label for g in drawn.root.groups()]


def boxes(drawn: Diagram) -> dict[str, Box]:
    return {b.id: b for b in drawn.root.boxes()}


def lines(drawn: Diagram) -> list[str]:
    return [" / ".join(b.lines) for b in drawn.root.boxes()]


def edges(drawn: Diagram) -> set[tuple[str, str]]:
    """Arrows by the first lines of the boxes they join; sums, and boxes of one name, are numbered as they come."""
    alike: dict[str, list[str]] = {}
    for box in drawn.root.boxes():
        alike.setdefault(box.title, []).append(box.id)
    names = {
        i: b.title + (str(alike[b.title].index(i)) if b.role == "sum" or len(alike[b.title]) > 1 else "")
        for i, b in boxes(drawn).items()
    }
    return {(names[a.source], names[a.target]) for a in drawn.arrows}


# --- layers of slots --------------------------------------------------------------------------------------------------


def test_pre_norm() -> None:
    drawn = draw(LAYER.format(placement="pre"))
    assert titles(drawn) == ["Layer × 12"]
    assert edges(drawn) == {
        ("tokens", "Token embedding"),
        ("Token embedding", "+0"),
        ("Position embedding", "+0"),
        ("+0", "LayerNorm0"),
        ("LayerNorm0", "Multi-head attention"),
        ("+0", "+1"),
        ("Multi-head attention", "+1"),
        ("+1", "LayerNorm1"),
        ("LayerNorm1", "MLP"),
        ("+1", "+2"),
        ("MLP", "+2"),
        ("+2", "Unembedding"),
        ("Unembedding", "output"),
    }


def test_post_norm() -> None:
    assert edges(draw(LAYER.format(placement="post"))) >= {
        ("+0", "Multi-head attention"),
        ("+0", "+1"),
        ("Multi-head attention", "+1"),
        ("+1", "LayerNorm0"),
        ("LayerNorm0", "MLP"),
        ("LayerNorm0", "+2"),
        ("+2", "LayerNorm1"),
        ("LayerNorm1", "Unembedding"),
    }


def test_sandwich() -> None:
    assert edges(draw(LAYER.format(placement="sandwich"))) >= {
        ("LayerNorm0", "Multi-head attention"),
        ("Multi-head attention", "LayerNorm1"),
        ("LayerNorm1", "+1"),
    }


def test_names_and_sizes_come_from_the_spec() -> None:
    drawn = draw(LAYER.format(placement="pre"))
    assert lines(drawn) == [
        "tokens / [batch, time]",
        "Token embedding / 5,000 × 16",
        "Position embedding / 32 × 16",
        "+",
        "LayerNorm",
        "Multi-head attention / 2 heads / causal",
        "+",
        "LayerNorm",
        "MLP / hidden 64",
        "+",
        "Unembedding / tied to token embedding",
        "output / [batch, time, 5,000]",
    ]
    assert [b.role for b in drawn.root.boxes() if b.title in ("LayerNorm", "Multi-head attention", "MLP")] == [
        "norm",
        "attention",
        "norm",
        "weights",
    ]


# --- stacks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", ["Decoder × 12"]),
        ("deepseek_v3", ["Layer (dense) × 3", "Layer (sparse) × 58"]),
        ("gpt3_175b", ["× 48", "Layer (dense)", "Layer (banded)"]),
        ("albert_base", ["Encoder layer, shared × 12"]),
        ("transformer_base", ["Encoder layer × 6", "Decoder layer × 6"]),
    ],
)
def test_stacks(name: str, expected: list[str]) -> None:
    assert titles(diagram(archdsl.load(name))) == expected


STACK = """
block a(n = 8)(x: [batch, time, width]) -> [batch, time, width] {{ return x -> linear(n) -> linear(width) }}
block b(x: [batch, time, width]) -> [batch, time, width] {{ return x -> softmax }}
model m(x: [batch, time, 16]) -> [batch, time, 16] {{
  for layer in {0} {{ x = layer(x) }}
  return x
}}
"""


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ("[a(), b()]", ["a", "b"]),
        ("2 * a() + b() + 3 * a()", ["a × 2", "b"]),
        ("4 * (a() + b())", ["× 4", "a", "b"]),
        ("3 * (2 * a() + b())", ["× 3", "a × 2", "b"]),
        ("5 * (a() + b()) + a()", ["× 5", "a", "b"]),
        ("[a(n: 8 * (i + 1)) for i in 12]", ["a, sizes of the first × 12"]),
        ("[a(n: 8 * (i + 1)) for i in 2]", ["a", "a"]),
        ("1 * a()", ["a"]),
        ("a() + b() + 2 * a() + 3 * b() + a() + b() + 2 * a() + b()", ["in mixed order", "a × 6", "b × 6"]),
    ],
)
def test_how_layers_follow_each_other(stack: str, expected: list[str]) -> None:
    text = STACK.format(stack)
    assert titles(draw(text)) == expected
    checked = draw(text.replace("x = layer(x)", "assert time > 1  x = layer(x)  assert causal(x)"))
    assert titles(checked) == expected


def test_what_the_next_layer_reads_is_drawn_although_the_model_gives_it_not_back() -> None:
    drawn = equations(
        "  y = x\n  for layer in 3 * [two] { x, y = layer(x, y) }\n  return y",
        "block two(x: [batch, time, width], y: [batch, time, width])"
        " -> (a: [batch, time, width], b: [batch, time, width]) {\n"
        "  return x -> linear(width) as first, (y -> linear(width) as second) + x\n}",
    )
    assert any(line.startswith("First") for line in lines(drawn))


# --- equations --------------------------------------------------------------------------------------------------------


def test_blocks_of_the_spec_are_frames_and_those_of_the_library_boxes() -> None:
    drawn = equations(
        "  return x -> own as inner -> swiglu(hidden: 8)",
        "block own(x: [batch, time, width]) -> [batch, time, width] { return x -> linear(width) -> tanh }",
    )
    assert titles(drawn) == ["Own (inner)"]
    assert lines(drawn)[1:-1] == ["Linear / → 16 / tanh", "SwiGLU / hidden 8"]


def test_moving_and_casting_and_masks_are_not_drawn() -> None:
    drawn = equations(
        "  q = x -> dropout(0.1) -> split_heads(2) -> cast(float32) -> cast(float)\n"
        "  k = x[:, :, :] -> split_heads(2)\n"
        "  y = sdpa(q, k, k, mask: causal & window(4)) -> merge_heads\n  return y"
    )
    assert lines(drawn) == [
        "x / [batch, time, 16]",
        "Scaled dot-product attention / causal, window 4",
        "output / [batch, time, 16]",
    ]


def test_numbers_and_signs() -> None:
    drawn = equations(
        "  let deep = 3\n  a = x * 0.5\n  b = sqrt(deep) * x ** 2\n  c = 1 - x\n  return a * b - c / x",
    )
    assert lines(drawn)[1:-1] == ["× 0.5", "^ 2 / × √3", "1 −", "×", "÷", "−"]


def test_a_table_of_constants_is_drawn_where_it_is_read() -> None:
    drawn = equations("  return x + ((sinusoid(time, 16) * 2) -> cast_like(x))")
    assert lines(drawn)[1:-1] == ["+", "Sinusoid / × 2"] or lines(drawn)[1:-1] == ["Sinusoid / × 2", "+"]
    assert edges(drawn) == {("x", "+0"), ("Sinusoid", "+0"), ("+0", "output")}


def test_a_table_that_a_block_is_given_is_drawn_in_it() -> None:
    drawn = equations("  t = indices(16)\n  return f(x, t)", "block f(x: [batch, time, 16], t: [16]) { return x * t }")
    assert titles(drawn) == ["f"]
    assert [box.lines[0] for box in drawn.root.boxes()] == ["x", "×", "Indices", "output"]


def test_a_mask_that_is_turned_round() -> None:
    assert "2 heads / not window 3" in "".join(lines(equations("  return x -> mha(heads: 2, mask: ~window(3))")))


def test_a_raw_weight_is_drawn_where_it_is_read() -> None:
    drawn = equations("  param gate: [16] = zeros\n  param unread: [16] = zeros\n  return x * gate")
    assert sorted(lines(drawn)[1:-1]) == ["Gate / [16]", "×"]


def test_memory_is_said_on_the_arrow() -> None:
    drawn = draw(
        "model m(x: [batch, time, 16], y: [batch, frames, 16]) -> [batch, time, 16] {\n"
        "  return x -> mha(heads: 2)(memory: y)\n}\n"
    )
    assert [(boxes(drawn)[a.source].lines[0], a.label) for a in drawn.arrows] == [
        ("x", ""),
        ("y", "memory"),
        ("Multi-head attention", ""),
    ]


def test_experts() -> None:
    drawn = equations("  return x -> moe(experts: 8, top_k: 2, expert: swiglu(hidden: 32))")
    (box,) = [b for b in drawn.root.boxes() if b.role == "experts"]
    assert box.lines == ["Mixture of experts", "8 experts", "top 2", "expert SwiGLU(hidden 32)"]


def test_a_recurrence_shows_its_state() -> None:
    drawn = equations(
        "  y = scan h: [batch, 16] = 0 for a in x {\n    h = gru_cell(16)(a, h)\n    emit h\n  }\n  return y"
    )
    assert titles(drawn) == ["For each of time steps"]
    assert edges(drawn) == {("h", "GRU cell"), ("x", "GRU cell"), ("GRU cell", "next h"), ("GRU cell", "output")}


def test_what_only_training_sees_is_not_drawn() -> None:
    drawn = equations("  y = x\n  if training { y = x -> sigmoid } else { y = x -> tanh }\n  return y")
    assert lines(drawn)[1:-1] == ["Tanh"]


def test_a_model_that_would_be_too_large_is_drawn_with_its_inner_blocks_closed() -> None:
    steps = "\n".join(f"  x = x + (x -> linear(width) as step_{i})" for i in range(drawing.MOST))
    drawn = equations(
        "  return x -> outer",
        f"block inner(x: [batch, time, width]) -> [batch, time, width] {{\n{steps}\n  return x\n}}\n"
        "block outer(x: [batch, time, width]) -> [batch, time, width] { return x + (x -> inner) }",
    )
    assert titles(drawn) == ["Outer"]
    assert lines(drawn)[1:-1] == ["Inner", "+"]
    (closed,) = drawn.closed
    assert closed.name == "inner"
    alone = diagram(closed)
    assert lines(alone)[0] == "x / [batch, time, 16]"
    steps = [line.rpartition(" / ")[2] for line in lines(alone)[1:-1]]
    assert len(steps) == drawing.MOST - 2
    assert sum(int(said.removesuffix(" steps")) if said.endswith(" steps") else 1 for said in steps) == 2 * drawing.MOST


def test_what_a_step_prepares_is_drawn_outside_the_steps() -> None:
    drawn = diagram(archdsl.load(EXAMPLES / "seq2seq_attention.arch"))
    (once,) = [t for t in titles(drawn) if t.endswith(", once for all steps")]
    (steps,) = [g for g in drawn.root.groups() if g.title.startswith("For each of")]
    assert once.removesuffix(", once for all steps") in [g.title for g in steps.groups()]
    assert once not in [g.title for g in steps.groups()]


def test_blocks_are_drawn_alone() -> None:
    model = archdsl.load("gpt2")
    assert edges(diagram(drawing.block_of(model, "mha"))) == {
        *(("x", part) for part in "qkv"),
        *((part, "Scaled dot-product attention") for part in "qkv"),
        ("Scaled dot-product attention", "Out"),
        ("Out", "output"),
    }
    with pytest.raises(archdsl.ArchError, match="gpt2 applies no block `mah`"):
        drawing.block_of(model, "mah")


# --- the text ---------------------------------------------------------------------------------------------------------

LINES = (
    r'%%\{init: \{"flowchart": .*\}\}%%',
    r"flowchart TB",
    r' +n\d+(\(\["[^"]+"\]\)|\(\("[^"]+"\)\)|\[\("[^"]+"\)\]|\("[^"]+"\)|\["[^"]+"\])',
    r' +subgraph g\d+\["[^"]+"\]',
    r" +end",
    r"  n\d+ -->(\|[^|\"<>]+\|)? n\d+",
    r"  classDef \w+ [\w:#,-]+",
    r"  class (n\d+|g\d+)(,[ng]\d+)* \w+",
)


@pytest.mark.parametrize("name", [e.name for e in list_zoo() if e.kind == "model"])
def test_every_model_of_the_zoo_is_drawn(name: str) -> None:
    drawn = diagram(archdsl.load(name))
    ids = boxes(drawn)
    assert len(ids) == len(list(drawn.root.boxes()))
    assert {i for a in drawn.arrows for i in (a.source, a.target)} == set(ids)
    assert [b.lines[0] for b in ids.values() if b.role == "input"]
    assert any(b.role == "output" for b in ids.values())
    assert all(g.parts for g in drawn.root.groups())
    for box in ids.values():
        arriving = [a for a in drawn.arrows if a.target == box.id]
        assert bool(arriving) or box.role != "output", box
        assert len(arriving) >= 2 or box.role != "sum", box
    for line in mermaid(drawn).splitlines():
        assert any(re.fullmatch(pattern, line) for pattern in LINES), line
        assert not re.search(r"[<>&]", re.sub(r"<br/>|-->", "", line)), line


def test_mermaid() -> None:
    drawn = equations('  return einsum("b t d -> b t d", x -> linear(16)) + x')
    assert mermaid(drawn).splitlines()[1:] == [
        "flowchart TB",
        '  n1(["x<br/>[batch, time, 16]"])',
        '  n2["Linear<br/>→ 16"]',
        '  n3("Einsum<br/>b t d -#gt; b t d")',
        '  n4(("+"))',
        '  n5(["output<br/>[batch, time, 16]"])',
        "  n1 --> n2",
        "  n2 --> n3",
        "  n3 --> n4",
        "  n1 --> n4",
        "  n4 --> n5",
        "  classDef input fill:#eef1f5,stroke:#8a94a6,color:#222222",
        "  class n1 input",
        "  classDef weights fill:#d3e8fb,stroke:#4a90d9,color:#222222",
        "  class n2 weights",
        "  classDef op fill:#e6f4e4,stroke:#6aa864,color:#222222",
        "  class n3 op",
        "  classDef sum fill:#ffffff,stroke:#555555,color:#222222",
        "  class n4 sum",
        "  classDef output fill:#eef1f5,stroke:#8a94a6,color:#222222",
        "  class n5 output",
    ]


def test_show_prints_the_diagram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from archdsl.cli import main

    spec = tmp_path / "tiny.arch"
    spec.write_text(LAYER.format(placement="pre"))
    for arguments, status in (
        (["--diagram"], 0),
        (["--diagram", "--set", "layers=3"], 0),
        (["--diagram", "--block", "mlp"], 0),
        (["--diagram", "--ir"], 2),
        (["--diagram", "--block", "mpl"], 2),
        (["--ir", "--block", "mlp"], 2),
    ):
        monkeypatch.setattr(sys, "argv", ["archdsl", "show", str(spec), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == status
        out = capsys.readouterr().out
        assert ("flowchart TB" in out) is (status == 0)
        assert ("Layer × 3" in out) is ("--set" in arguments)
        assert ("Up<br/>" in out) is (arguments == ["--diagram", "--block", "mlp"])
