"""Pictures: nothing on them is met by what it should not be met by, over the whole zoo and the specs of checkpoints."""

import random
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from cli_tools import Run

import archdsl
from archdsl.api import list_zoo
from archdsl.estimates import counts
from archdsl.report import svg as drawing
from archdsl.report.diagram import MOST, Box, BoxGroup, drawings
from archdsl.report.fonts import width_of
from archdsl.report.layout import BAR, LEAST, LINE, RADIUS, TEXT, Scene
from archdsl.report.shares import Work
from archdsl.resources import imported_files

Rect = tuple[float, float, float, float]
NAMES = [*(e.name for e in list_zoo() if e.kind == "model"), *imported_files()]


def meet(a: Rect, b: Rect, slack: float = 0.5) -> bool:
    return min(a[2], b[2]) - max(a[0], b[0]) > slack and min(a[3], b[3]) - max(a[1], b[1]) > slack


def inside(a: Rect, b: Rect, slack: float = 0.5) -> bool:
    return a[0] >= b[0] - slack and a[1] >= b[1] - slack and a[2] <= b[2] + slack and a[3] <= b[3] + slack


def hits(segment: Rect, area: Rect, slack: float = 1.0) -> bool:
    return (
        segment[0] < area[2] - slack
        and segment[2] > area[0] + slack
        and segment[1] < area[3] - slack
        and segment[3] > area[1] + slack
    )


def segments(scene: Scene) -> Iterator[tuple[str, Rect]]:
    """The straight parts of all lines, each with its net."""
    for line in scene.lines:
        for (ax, ay), (bx, by) in zip(line.points, line.points[1:], strict=False):
            yield line.net, (min(ax, bx), min(ay, by), max(ax, bx), max(ay, by))


def faults(scene: Scene, labels: int) -> dict[str, int]:
    """What meets what it should not, by kind, and how often."""
    found: Counter[str] = Counter()
    page = (0.0, 0.0, scene.width, scene.height)
    boxes = [(b.x, b.y, b.x + b.width, b.y + b.height) for b in scene.boxes]
    frames = [(f.x, f.y, f.x + f.width, f.y + f.height) for f in scene.frames]
    titles = [(f.title_x, f.y + 5, f.title_x + f.title_width, f.y + 19) for f in scene.frames]
    texts = [(label.x, label.y - 9, label.x + label.width, label.y + 2) for label in scene.labels]
    parts = [*segments(scene)]
    for placed, box in zip(scene.boxes, boxes, strict=True):
        found["box off the page"] += not inside(box, page)
        found["box on a title"] += sum(meet(box, t) for t in titles)
        found["box cut by a frame"] += sum(meet(box, f) and not inside(box, f) for f in frames)
        corner = RADIUS - RADIUS / 2**0.5
        core = (box[0] + corner, box[1] + corner, box[2] - corner, box[3] - corner)
        found["line through a box"] += sum(hits(s, core if placed.box.role == "sum" else box) for _, s in parts)
        if placed.box.role != "sum":
            room = placed.width - 8
            name = width_of(placed.box.title, "name") + (34 if placed.box.sees else 0)
            found["text wider than its box"] += name > room
            found["text wider than its box"] += sum(width_of(t, "detail") > room for t in placed.details)
            foot = TEXT + LINE * len(placed.details) + 4 + (BAR - 1 if placed.box.weight >= LEAST else 0)
            found["text higher than its box"] += foot > placed.height
    for n, frame in enumerate(frames):
        found["frame off the page"] += not inside(frame, page)
        found["title outside its frame"] += not inside(titles[n], frame)
        found["line through a title"] += sum(hits(s, titles[n], 0) for _, s in parts)
    for a, b in combinations(frames, 2):
        found["frame cut by a frame"] += meet(a, b) and not inside(a, b) and not inside(b, a)
    for n, text in enumerate(texts):
        found["label off the page"] += not inside(text, page)
        found["label on something"] += sum(meet(text, other) for other in (*boxes, *titles, *texts[n + 1 :]))
        found["line through a label"] += sum(hits(s, text) for _, s in parts)
    found["label left out"] = labels - len(texts)
    found["box on a box"] = sum(meet(a, b) for a, b in combinations(boxes, 2))
    found["title on a title"] = sum(meet(a, b) for a, b in combinations(titles, 2))
    found["slanted line"] = sum(s[2] - s[0] > 0.6 and s[3] - s[1] > 0.6 for _, s in parts)
    for (one, a), (other, b) in combinations(dict.fromkeys(parts), 2):
        for along in (0, 1):  # the axis along which both run
            across = 1 - along
            flat = a[across + 2] - a[across] < 0.1 and b[across + 2] - b[across] < 0.1
            near = abs(a[across] - b[across]) < 2.5
            if one != other and flat and near and min(a[along + 2], b[along + 2]) - max(a[along], b[along]) > 2:
                found["line on another's line"] += 1
    return {kind: count for kind, count in found.items() if count}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_met_and_bars_are_shares_of_all_parameters(name: str) -> None:
    model = archdsl.load(name)
    scene, caption = drawing.figure(model)
    drawn = {(a.source, a.target) for a in scene.drawn.arrows if a.label or a.size}
    assert not faults(scene, len(drawn))
    assert len(scene.boxes) <= MOST
    text = drawing.svg(scene, caption)
    assert len(text.encode()) <= 40_000
    ET.fromstring(text)
    for deeper in drawings(model):
        assert deeper.measured == pytest.approx(counts.total(model), rel=1e-9)
        assert sum(box.weight for box in deeper.root.boxes()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["llama3_8b", "deepseek_v3", "albert_base", "seq2seq", "ntm_copy", "switch_base_8"])
def test_bars_of_flops_are_shares_of_a_forward_pass(name: str) -> None:
    model = archdsl.load(name)
    for drawn in drawings(model, measure=Work(model)):
        assert drawn.measured == pytest.approx(archdsl.flops(model).forward, rel=1e-9)


def test_a_spec_of_equations_alone_has_no_more_boxes_than_are_readable() -> None:
    steps = "".join(f"  x = (x -> linear(16) as a{i}) * (x -> sigmoid) + x\n" for i in range(30))
    model = archdsl.load(text=f"model m(x: [batch, time, 16]) -> [batch, time, 16] {{\n{steps}  return x\n}}")
    scene, _ = drawing.figure(model)
    assert len(scene.boxes) == MOST
    assert not faults(scene, 0)
    assert sum(b.box.weight for b in scene.boxes) == pytest.approx(1)


def test_pictures_of_random_models() -> None:
    """Equations in which everything may read everything."""
    for seed in range(40):
        draw = random.Random(seed)
        lines, known = [], ["x"]
        for i in range(draw.randrange(3, 25)):
            a, b = draw.choice(known), draw.choice(known)
            forms = (f"{a} + {b}", f"{a} * {b}", f"{a} -> linear(16)", f"{a} -> rmsnorm", f"{a} -> mha(heads: 2)")
            lines.append(f"  v{i} = {draw.choice(forms)}")
            known.append(f"v{i}")
        body = "\n".join([*lines, f"  return {' + '.join(known)}"])
        model = archdsl.load(text=f"model m(x: [batch, time, 16]) -> [batch, time, 16] {{\n{body}\n}}")
        scene, _ = drawing.figure(model)
        assert not faults(scene, 0), (seed, body)


# --- two models -------------------------------------------------------------------------------------------------------

PAIRS = [
    ("deepseek_v2", "deepseek_v3"),
    ("llama2", "llama3"),
    ("gpt2", "gptj_6b"),
    ("t5_base", "t5_v1_1_base"),
    ("bert_base", "albert_base"),
    ("hf/jamba", "mamba_130m"),
]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_two_models_side_by_side(before: str, after: str) -> None:
    one, other = archdsl.load(before), archdsl.load(after)
    scene, caption = drawing.compared(one, other)
    signs = Counter(part.mark for part in marked(scene))
    back = Counter(part.mark for part in marked(drawing.compared(other, one)[0]))
    assert signs.total() > signs[""]
    assert signs == Counter({{"+": "-", "-": "+"}.get(sign, sign): count for sign, count in back.items()})
    assert not faults(scene, len(scene.labels))
    ET.fromstring(drawing.svg(scene, caption))


def marked(scene: Scene) -> list[Box | BoxGroup]:
    return [*(b.box for b in scene.boxes), *(f.group for f in scene.frames)]


@pytest.mark.parametrize("name", ["llama3", "t5_base", "hf/qwen3_next", "seq2seq"])
def test_nothing_is_marked_where_nothing_differs(name: str) -> None:
    scene, _ = drawing.compared(archdsl.load(name), archdsl.load(name))
    assert not any(part.mark for part in marked(scene))


def test_a_swapped_ffn_is_marked_and_nothing_else(tmp_path: Path, run: Run) -> None:
    text = archdsl.show("gpt2", "source")
    after = tmp_path / "after.arch"
    after.write_text(text.replace("mlp(hidden: 4 * width, act: gelu_tanh)", "swiglu(hidden: 2048)"))
    scene, _ = drawing.compared(archdsl.load("gpt2"), archdsl.load(after))
    names = [part.title for part in marked(scene) if part.mark]
    assert sorted(names) == ["Decoder", "Decoder", "MLP", "SwiGLU"]
    assert run("diff", "gpt2", after, "-o", tmp_path / "diff.svg").status == 0
    assert ">changed</text>" in (tmp_path / "diff.svg").read_text()
    assert run("diff", "gpt2", after, "-o", after).status == 2


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["svg", "html", "png"])
def test_a_figure_is_written(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"gpt2.{kind}"
    text = archdsl.draw("gpt2", file, theme="dark", bars="flops")
    found = file.read_bytes()
    if kind == "png":
        assert found.startswith(b"\x89PNG")
    elif kind == "svg":
        assert found.decode() == text
    else:
        assert text in found.decode()
        assert found.startswith(b"<!DOCTYPE html>")
    assert [*tmp_path.iterdir()] == [file]


def test_what_a_spec_says_is_escaped(tmp_path: Path) -> None:
    spec = tmp_path / "<b>&\"'.arch"
    spec.write_text('model m(x: [batch, 4]) -> [batch, 4] {\n  return einsum("b d -> b d", x)\n}\n')
    page = tmp_path / "page.html"
    text = archdsl.draw(spec, page)
    assert "b d -&gt; b d" in text
    assert "<b>" not in page.read_text()


def test_every_theme_has_every_color() -> None:
    model = archdsl.load("jamba" if "jamba" in NAMES else "hf/jamba")
    scene, caption = drawing.figure(model)
    themes: dict[str, str] = {t: drawing.svg(scene, caption, t) for t in ("auto", "light", "dark")}  # type: ignore[arg-type]
    for theme, text in themes.items():
        used = {c for e in ET.fromstring(text).iter() for c in e.get("class", "").split()} - {f"arch-{theme}"}
        style = re.search(r"<style>(.*)</style>", text)
        assert style is not None
        assert used - {"v", "b"} <= set(re.findall(r"\.([a-z]+)", style[1])), theme
    assert "prefers-color-scheme" in themes["auto"]
    assert len({*themes.values()}) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "gpt2.gif"), "a figure is not written as `.gif`"),
        (("-o", "gpt2"), "a figure is not written as `gpt2`"),
        (("-o", "gpt2.svg", "--block", "mah"), "applies no block `mah`"),
        (("-o", "gpt2.svg", "--light", "--dark"), "choose one"),
        (("-o", "gpt2.svg", "--json"), "choose one"),
        (("--depth", "2"), "it goes with -o"),
        (("--dark",), "it goes with -o"),
    ],
)
def test_bad_requests_write_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("show", "gpt2", *arguments)
    assert done.status == 2
    assert said in " ".join(done.err.split())
    assert not [*tmp_path.iterdir()]


def test_without_resvg_a_png_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    done = run("show", "gpt2", "-o", tmp_path / "gpt2.png")
    assert done.status == 2
    assert "pip install resvg-py" in done.err
    assert not [*tmp_path.iterdir()]


def test_a_block_is_drawn_alone_and_as_deep_as_asked(run: Run, tmp_path: Path) -> None:
    assert run("show", "gpt2", "--block", "mha", "-o", tmp_path / "mha.svg").status == 0
    assert "dot-product attention" in (tmp_path / "mha.svg").read_text()
    assert run("show", "hf/qwen3_next", "--depth", "0", "-o", tmp_path / "flat.svg").status == 0
    assert "Delta net" not in (tmp_path / "flat.svg").read_text()


def test_notebooks_show_the_figure() -> None:
    model = archdsl.load("gpt2")
    figure = model._repr_svg_()
    assert figure is not None
    assert figure.startswith("<svg")
    assert figure in (model._repr_html_() or "")
