"""A model as a figure: an SVG that a page, a paper or a notebook shows as it is.

Colours are of Okabe and Ito's palette, which the colour-blind tell apart; `auto` follows the reader's light or dark
mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Literal

from archdsl.diagnostics import error
from archdsl.files import write_text, written_beside
from archdsl.ir.graph import Block, Model
from archdsl.packages import install
from archdsl.report.diagram import DEEPEST, Box, Mark, Role, Sees, drawings, mark
from archdsl.report.fonts import SIZES, width_of
from archdsl.report.layout import LEAST, LINE, RADIUS, TEXT, Line, PlacedBox, PlacedFrame, Point, Scene, beside, lay_out
from archdsl.report.page import page
from archdsl.report.shares import Work

Theme = Literal["auto", "light", "dark"]
Bars = Literal["params", "flops"]
FORMATS = (".svg", ".png", ".html")
WIDEST = 1000.0
"""Pixels; of a wider figure the deepest groups are closed."""
ZOOM = 2
"""Pixels of a PNG for one of the SVG."""

_COLORS: dict[Role, dict[str, tuple[str, str]]] = {
    "input": {"light": ("#f3f4f6", "#6b7280"), "dark": ("#262b33", "#9aa3b2")},
    "output": {"light": ("#f3f4f6", "#6b7280"), "dark": ("#262b33", "#9aa3b2")},
    "attention": {"light": ("#fdebc8", "#c77700"), "dark": ("#4a3410", "#f0a830")},
    "experts": {"light": ("#f6e0ec", "#b14a83"), "dark": ("#47213a", "#e08abd")},
    "norm": {"light": ("#ffffff", "#8b8f98"), "dark": ("#1a1d22", "#8d95a3")},
    "weights": {"light": ("#dceefa", "#0072b2"), "dark": ("#12354d", "#56b4e9")},
    "sum": {"light": ("#ffffff", "#374151"), "dark": ("#1a1d22", "#cbd5e1")},
    "op": {"light": ("#ddf1ea", "#00795a"), "dark": ("#0f3a2e", "#35c49a")},
    "state": {"light": ("#f7f3c4", "#8a7d00"), "dark": ("#3d3a10", "#d9cc52")},
}
"""Fill and stroke."""
_KEY: dict[Role, str] = {
    "attention": "attention",
    "experts": "experts",
    "weights": "weights",
    "norm": "norm",
    "op": "no weights",
    "state": "state",
}
_MARKS: dict[Mark, str] = {"+": "added", "-": "removed", "~": "changed"}
_STYLES: dict[Mark, str] = {"+": "new", "-": "gone", "~": "other"}
_MASKS: dict[Sees, str] = {"all": "sees all", "before": "causal", "near": "window", "near before": "causal window"}


def figure(model: Model, block: Block | None = None, depth: int = DEEPEST, bars: Bars = "params") -> tuple[Scene, str]:
    """The scene of a model, or of one of its blocks, as deep as it may have without being too large, and its caption.

    Raises ArchError E0503 for bars of FLOPs of a model that has no sizes at the default length."""
    measure = Work(model) if bars == "flops" else None
    for drawn in drawings(block or model, depth, measure):
        scene = lay_out(drawn)
        if scene.width <= WIDEST:
            break
    return scene, f"{_measured(scene, bars)}; bars are shares of them"


def _measured(scene: Scene, bars: Bars) -> str:
    """`llama3: 8.03B parameters`."""
    count, unit = scene.drawn.measured, ""
    for letter, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= 0.9995 * size:
            count, unit = count / size, letter
            break
    what = "FLOPs of a forward pass" if bars == "flops" else "parameters"
    return f"{scene.drawn.root.title}: {count:.3g}{unit} {what}"


def compared(before: Model, after: Model, depth: int = DEEPEST, bars: Bars = "params") -> tuple[Scene, str]:
    """The scene of two models side by side, with what differs marked, and its caption. Raises as `figure`."""
    from archdsl.report.diff import align

    aligned = align(before, after)
    marks: tuple[dict[int, Mark], dict[int, Mark]] = ({}, {})
    signs: dict[str, Mark] = {"added": "+", "removed": "-", "changed": "~", "renamed": "~"}
    todo = [aligned]
    while todo:
        one = todo.pop()
        todo += one.children
        for part, into in zip((one.before, one.after), marks, strict=True):
            if part is not None and one.status in signs and one is not aligned:
                into[id(part.node)] = signs[one.status]
    left, right = (figure(model, None, depth, bars)[0] for model in (before, after))
    mark(left.drawn, marks[0])
    mark(right.drawn, marks[1])
    titles = (_measured(left, bars), _measured(right, bars))
    return beside(left, right, titles), "bars are shares of each model's own"


def demand_format(path: Path) -> None:
    """Raises ArchError: E0506 for a file of another kind, E0502 where what draws a PNG is not installed."""
    from importlib.util import find_spec

    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise error(
            "E0506",
            f"a figure is not written as `{path.suffix or path.name}`",
            help=f"name a file {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
        )
    if kind == ".png" and find_spec("resvg_py") is None:
        raise error("E0502", "a PNG needs resvg, which is not installed", help=f"{install('png')}; a .svg needs none")


def write_figure(svg: str, path: Path, title: str) -> None:
    """Write a figure as SVG, PNG or a page of HTML, by the name of the file. Raises as `demand_format`, and OSError."""
    demand_format(path)
    kind = path.suffix.lower()
    if kind == ".png":
        import resvg_py

        with written_beside(path) as beside:
            beside.write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=ZOOM)))
        return
    write_text(path, svg if kind == ".svg" else page(svg, title))


# --- the text ---------------------------------------------------------------------------------------------------------


def svg(scene: Scene, caption: str, theme: Theme = "auto") -> str:
    """The text of a figure, ending with a line end."""
    roles: dict[Role, None] = dict.fromkeys(b.box.role for b in scene.boxes)
    sees: dict[Sees, None] = dict.fromkeys(b.box.sees for b in scene.boxes)
    entries: list[tuple[Role, Sees | Mark, str]] = [(r, "", text) for r, text in _KEY.items() if r in roles]
    entries += [("attention", s, text) for s, text in _MASKS.items() if s in sees]
    marks: dict[Mark, None] = dict.fromkeys([*(b.box.mark for b in scene.boxes), *(f.group.mark for f in scene.frames)])
    entries += [("sum", m, text) for m, text in _MARKS.items() if m in marks]
    width = max(scene.width, width_of(caption, "small") + 24)
    key, height = _key(entries, width, scene.height)
    shown = f'viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" height="{_n(height)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {shown} class="arch-{theme}" role="img">',
        f"<title>{escape(caption)}</title><style>{_css(roles, theme, len(marks) > 1)}</style>",
        f'<rect class="page" width="{_n(width)}" height="{_n(height)}" rx="6"/>',
        *(_rect("f", f.x, f.y, f.width, f.height, 8) for f in scene.frames),
        *_wires(scene.lines),
        *(_title(f) for f in scene.frames),
        *(_box(b) for b in scene.boxes),
        *(_text("s l" if label.kind == "small" else "t", label.x, label.y, label.text) for label in scene.labels),
        *(_mark(b.box.mark, b.x, b.y, b.width, b.height) for b in scene.boxes if b.box.mark),
        *(_mark(f.group.mark, f.x, f.y, f.width, f.height) for f in scene.frames if f.group.mark),
        *key,
        _text("s l", 12, height - 8, caption),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


_LOOK = {
    "text": "font-family:Inter,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif;text-anchor:middle",
    ".n": f"font-size:{SIZES['name']}px;font-weight:600",
    ".d": f"font-size:{SIZES['detail']}px",
    ".s": f"font-size:{SIZES['small']}px",
    ".t": f"font-size:{SIZES['title']}px;font-weight:600;text-anchor:start",
    ".l": "text-anchor:start",
    ".e": "text-anchor:end",
    ".w": "fill:none;stroke-width:1.3",
    ".b": "stroke-width:1.1",
    ".f": "fill-opacity:.07",
    ".k": "opacity:.22",
}
"""Styles by selector: of text the name, details, small text, title, its start and its end; of shapes a line, a box, a
frame, and what is pale."""
_INKS = {
    "light": ("#111827", "#4b5563", "#4b5563", "#64748b", "#ffffff"),
    "dark": ("#f3f4f6", "#b6bfcc", "#a3adbb", "#94a3b8", "#14171b"),
}
"""Colours of text, of what is said beside, of lines, frames and paper."""


_MARKED = {"light": ("#00795a", "#c2410c", "#6d28d9"), "dark": ("#35c49a", "#fb8c5a", "#b79cf7")}
"""Colours of what was added, removed, changed."""


def _css(roles: Iterable[Role], theme: Theme, marked: bool) -> str:
    """The styles of a figure. They begin with its class: in a page they are everybody's."""

    def colors(mode: Literal["light", "dark"]) -> str:
        ink, soft, line, frame, paper = _INKS[mode]
        found = {"text": f"fill:{ink}", ".d": f"fill:{soft}", ".s": f"fill:{soft}", ".w": f"stroke:{line}"}
        found |= {".a": f"fill:{line}", ".q": f"fill:{line}", ".f": f"stroke:{frame};fill:{frame}"}
        found |= {".u": f"fill:{paper}", ".page": f"fill:{paper}"}
        for style, color in zip(_STYLES.values() if marked else (), _MARKED[mode], strict=False):
            found |= {f".m.{style}": f"fill:none;stroke-width:2.5;stroke:{color}", f".q.{style}": f"fill:{color}"}
        for role in roles:
            fill, stroke = _COLORS[role][mode]
            found |= {f".{role} .b": f"fill:{fill};stroke:{stroke}", f".{role} .v": f"fill:{stroke}"}
        return rules(found)

    def rules(styles: Mapping[str, str]) -> str:
        return "".join(f".arch-{theme} {selector}{{{style}}}" for selector, style in styles.items())

    if theme != "auto":
        return rules(_LOOK) + colors(theme)
    return f"{rules(_LOOK)}{colors('light')}@media(prefers-color-scheme:dark){{{colors('dark')}}}"


def _n(length: float) -> str:
    return f"{length:.1f}".rstrip("0").rstrip(".")


def _rect(style: str, x: float, y: float, width: float, height: float, round_: float) -> str:
    size = f'width="{_n(width)}" height="{_n(height)}"'
    return f'<rect class="{style}" x="{_n(x)}" y="{_n(y)}" {size} rx="{_n(round_)}"/>'


def _text(style: str, x: float, y: float, text: str) -> str:
    return f'<text class="{style}" x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'


def _wires(lines: Iterable[Line]) -> Iterator[str]:
    """One path for each net, so that no part of it is painted twice; then the arrow heads."""
    nets: dict[str, list[str]] = {}
    heads: dict[str, None] = {}
    for line in lines:
        nets.setdefault(line.net, []).append(_path(line.points))
        if line.arrow:
            heads[_head(*line.points[-2:])] = None
    for paths in nets.values():
        yield f'<path class="w" d="{"".join(dict.fromkeys(paths))}"/>'
    yield f'<path class="a" d="{"".join(heads)}"/>'


def _path(points: list[Point], round_: float = 6) -> str:
    """The way through some points, with round corners."""
    found = [f"M{_n(points[0][0])} {_n(points[0][1])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        way = min(round_, math.dist(before, corner) / 2, math.dist(corner, after) / 2)
        if way >= 0.2:
            (px, py), (qx, qy) = _toward(corner, before, way), _toward(corner, after, way)
            found.append(f"L{_n(px)} {_n(py)}Q{_n(corner[0])} {_n(corner[1])} {_n(qx)} {_n(qy)}")
    return "".join([*found, f"L{_n(points[-1][0])} {_n(points[-1][1])}"])


def _toward(start: Point, end: Point, way: float) -> Point:
    part = way / math.dist(start, end)
    return start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1])


def _head(before: Point, tip: Point) -> str:
    (px, py), (x, y) = before, tip
    dx, dy = (math.copysign(1, x - px), 0) if abs(x - px) > abs(y - py) else (0, 1)
    a, b = (x - 7 * dx - 3.5 * dy, y - 7 * dy - 3.5 * dx), (x - 7 * dx + 3.5 * dy, y - 7 * dy + 3.5 * dx)
    return f"M{_n(x)} {_n(y)}L{_n(a[0])} {_n(a[1])}L{_n(b[0])} {_n(b[1])}Z"


def _title(frame: PlacedFrame) -> str:
    """How often a frame is repeated, in a pill, and its name."""
    x, found = frame.title_x + 2, ""
    if frame.group.times > 1:
        pill = f"× {frame.group.times:,}"
        width = width_of(pill, "title") + 10
        found = _rect("q", x, frame.y + 5, width, 15, 7.5) + _text("t u", x + 5, frame.y + 16, pill)
        x += width + 5
    return found + _text("t", x, frame.y + 16, frame.group.title) if frame.group.title else found


def _box(placed: PlacedBox) -> str:
    box, x, y, width, height = placed.box, placed.x, placed.y, placed.width, placed.height
    middle = x + width / 2
    if box.role == "sum":
        circle = f'<circle class="b" cx="{_n(middle)}" cy="{_n(y + RADIUS)}" r="{_n(RADIUS)}"/>'
        return f'<g class="sum">{circle}{_text("n", middle, y + RADIUS + 4.2, box.title)}</g>'
    round_ = min(height / 2, 18) if box.role in ("input", "output") else 5
    parts = [_rect("b", x, y, width, height, round_)]
    # Beside the square of a mask the name stands in what is left.
    parts.append(_text("n", middle - (8 if box.sees else 0), y + TEXT, box.title))
    parts += [_text("d", middle, y + 31 + LINE * n, text) for n, text in enumerate(placed.details)]
    parts += [_mask(box.sees, x + width - 25, y + 7)] if box.sees else []
    parts += [_bar(box, x, y + height - 9, width)] if box.weight >= LEAST else []
    return f'<g class="{box.role}">{"".join(parts)}</g>'


def _bar(box: Box, x: float, y: float, width: float) -> str:
    full = width - 50
    share = f"{100 * box.weight:.0f}%" if box.weight >= 0.0995 else f"{100 * box.weight:.1f}%"
    empty, filled = (_rect(s, x + 10, y, w, 3.5, 1.7) for s, w in (("v k", full), ("v", max(1.5, full * box.weight))))
    return empty + filled + _text("s e", x + width - 10, y + 5, share)


def _mask(sees: Sees, x: float, y: float) -> str:
    """A small square: which keys (across) each query (down) sees."""
    ahead, behind = (0 if "before" in sees else 1 if sees == "near" else 5), (1 if "near" in sees else 5)
    cells = [(i, j) for i in range(5) for j in range(5) if i - behind <= j <= i + ahead]
    seen = "".join(f"M{_n(x + 3 * j)} {_n(y + 3 * i)}h2.6v2.6h-2.6z" for i, j in cells)
    return f'<path class="v k" d="M{_n(x)} {_n(y)}h15v15h-15z"/><path class="v" d="{seen}"/>'


def _mark(mark: Mark, x: float, y: float, width: float, height: float) -> str:
    """A strong edge, and a sign at its corner."""
    return _rect(f"m {_STYLES[mark]}", x - 3, y - 3, width + 6, height + 6, 9) + _badge(mark, x - 3, y - 3)


def _badge(mark: Mark, x: float, y: float) -> str:
    circle = f'<circle class="q {_STYLES[mark]}" cx="{_n(x)}" cy="{_n(y)}" r="7.5"/>'
    return circle + _text("n u", x, y + 4.2, mark.replace("-", "−"))


def _key(entries: list[tuple[Role, Sees | Mark, str]], width: float, top: float) -> tuple[list[str], float]:
    """What colours and squares mean, in rows from `top` on; and how high the page is with its caption."""
    x, y, found = 12.0, top, []
    for role, sign, text in entries:
        wide = 20 + width_of(text, "small") + 14
        if x + wide > width and x > 12:
            x, y = 12.0, y + 20
        if sign in _MARKS:
            mark = _badge(sign, x + 8, y + 7.5)
        else:
            mark = _mask(sign, x, y) if sign in _MASKS else _rect("b", x, y + 2, 15, 11, 3)
        found.append(f'<g class="{role}">{mark}</g>{_text("s l", x + 20, y + 11, text)}')
        x += wide
    return found, y + (40 if entries else 20)
