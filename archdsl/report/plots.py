"""Pictures of reports: SVG, PNG, or a page of HTML that holds the picture and its numbers. They need matplotlib, which
is imported when one is drawn."""

from __future__ import annotations

import io
from importlib.util import find_spec as installed
from pathlib import Path
from typing import TYPE_CHECKING

from archdsl.diagnostics import error
from archdsl.files import written_beside
from archdsl.frozen import Frozen
from archdsl.ir.paths import layer_texts
from archdsl.packages import install
from archdsl.report.page import Table, page
from archdsl.report.written import rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from archdsl.estimates.memory import MemoryReport
    from archdsl.estimates.sweep import SweepReport

FORMATS = (".svg", ".png", ".html")
QUANTITIES = {
    "parameters": "parameters",
    "non_embedding": "parameters without embeddings",
    "active": "active parameters per token",
    "ratio": "parameters without embeddings / 12 · n_layer · d²",
    "forward_per_token": "FLOPs per token, inference",
    "training_per_token": "FLOPs per token, training",
    "memory": "bytes of memory",
}
"""What can be drawn of a sweep, and what its axis says."""

_LOGARITHMIC_FROM = 8
"""An axis whose largest value is so many times its smallest one is logarithmic."""
_MANY_LINES = 12
"""With more lines than that the key stands beside the picture."""

_MOST_BARS = 30
"""Of more blocks than that the largest are drawn."""

Line = list[tuple[float, float]]


def demand_plots(path: Path, otherwise: str = "--csv") -> None:
    """Raises ArchError: E0506 for a file of another kind, E0502 where matplotlib is not installed; `otherwise` is what
    gives the same numbers without it."""
    if path.suffix.lower() not in FORMATS:
        raise error(
            "E0506",
            f"a plot is not written as `{path.suffix or path.name}`",
            help=f"name a file {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
        )
    if installed("matplotlib") is None:
        raise error(
            "E0502",
            "a plot needs matplotlib, which is not installed",
            help=f"{install('plot')}; {otherwise} needs none",
        )


def plot_sweep(report: SweepReport, path: Path, quantity: str = "parameters") -> None:
    """Draw one quantity of a sweep over the first setting that has several numbers, a line for each combination of the
    others; points at which the spec is wrong are left out.

    Raises ArchError: E0506 where there is nothing to draw or no such file, E0502 where matplotlib is missing; OSError
    where it cannot be written."""
    demand_plots(path)
    axis, lines = _lines(report, quantity)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for label, line in lines.items():
        axes.plot(*zip(*sorted(line), strict=True), marker="o", markersize=4, label=label)
    points = [p for line in lines.values() for p in line]
    if _spread([x for x, _ in points]):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.10g}")
    if _spread([y for _, y in points]):
        axes.set_yscale("log")
    elif quantity != "ratio":
        axes.set_ylim(bottom=0)
    axes.set_xlabel(axis, parse_math=False)
    axes.set_ylabel(QUANTITIES[quantity])
    axes.set_title(f"{report.model}  {report.source}", parse_math=False)
    axes.grid(visible=True, which="both", alpha=0.25)
    if len(lines) > 1:
        figure.legend(
            loc="outside right upper" if len(lines) > _MANY_LINES else "outside lower center",
            ncols=1 + (2 < len(lines) <= _MANY_LINES),
        )
    _write(figure, path, f"{report.model} ({report.source})", [_swept(report)])


def plot_estimate(report: MemoryReport, path: Path, memory: bool = True) -> None:
    """Draw the parameters of every block, and the FLOPs of all its uses, forwards and backwards; with `memory`, what
    that is made of too. Blocks stand inside each other: what an inner one holds is in the outer one's bar
    too.

    Raises ArchError: E0506 where there is no such file, E0502 where matplotlib is missing; OSError where it cannot be
    written."""
    demand_plots(path, "--json")
    from matplotlib.figure import Figure

    panels = _panels(report, memory)
    heights = [panel.height for panel in panels]
    figure = Figure(figsize=(9, 0.28 * sum(heights) + 0.6), layout="constrained")
    sizes = ", ".join(f"{name} = {n:,}" for name, n in report.flops.sizes.items())
    about = f"{report.model}  {report.source}\n{sizes}; {report.flops.convention}"
    figure.suptitle(about, parse_math=False)
    rows = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, panel in zip(rows, panels, strict=True):
        panel.draw(axes)
    _write(figure, path, f"{report.model} ({report.source})", [panel.table for panel in panels])


class _Bars(Frozen):
    """A panel: a bar for each name, made of parts, and the table that it is drawn from."""

    title: str
    units: str
    """What a thousand, a million, … are called."""
    base: int
    parts: tuple[str, ...]
    bars: list[tuple[str, tuple[int, ...]]]
    table: Table

    @property
    def height(self) -> int:
        """In bars."""
        return min(len(self.bars), _MOST_BARS) + 3

    def draw(self, axes: Axes) -> None:
        _draw(axes, self)


class _Course(Frozen):
    """A panel: what is in memory in the course of a step, stretch by stretch, and the most within each."""

    title: str
    kept: int
    """What is there all along."""
    events: list[tuple[str, int, int]]
    table: Table
    height: int = 14

    def draw(self, axes: Axes) -> None:
        places = range(len(self.events))
        names = [name for name, _, _ in self.events]
        axes.fill_between(places, [float(n) for _, n, _ in self.events], step="mid", alpha=0.4, label="at the end")
        axes.step(places, [float(peak) for _, _, peak in self.events], where="mid", label="most within")
        axes.axhline(self.kept, linestyle="--", color="gray", label="weights and optimizer state")
        every = -(-len(names) // _MOST_BARS)
        axes.set_xticks(places[::every], names[::every], rotation=90, fontsize="x-small", parse_math=False)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda n, _: _rounded(n, "KMGTP", 1024))
        axes.set_title(self.title, parse_math=False)
        axes.grid(visible=True, axis="y", alpha=0.25)
        axes.legend(loc="lower right")


def _panels(report: MemoryReport, memory: bool) -> list[_Bars | _Course]:
    held: Table = [["block", "layers", "declared at", "count", "each", "parameters"]]
    for block, where in zip(
        report.params.by_block, layer_texts([b.layers for b in report.params.by_block]), strict=True
    ):
        held.append([block.block, where, block.source, *(f"{n:,}" for n in (block.count, block.each, block.total))])
    done: Table = [["block", "layers", "declared at", "uses", "forward", "training"]]
    for row, where in zip(report.flops.by_block, layer_texts([b.layers for b in report.flops.by_block]), strict=True):
        done.append([row.block, where, row.source, *(f"{n:,}" for n in (row.uses, row.forward, row.training))])
    blocks = report.params.by_block[1:] or report.params.by_block
    uses = report.flops.by_block[1:] or report.flops.by_block
    found: list[_Bars | _Course] = [
        _Bars("parameters", "KMBTQ", 1000, ("parameters",), [(b.block, (b.total,)) for b in blocks], held),
        _Bars(
            "FLOPs of a training step",
            "kMGTPE",
            1000,
            ("forward", "backward"),
            [(u.block, (u.forward, u.training - u.forward)) for u in uses],
            done,
        ),
    ]
    if memory:
        m = report.memory
        kinds = [("weights", m.weights), ("buffers", m.buffers), ("gradients", m.gradients)]
        kinds += [(f"optimizer: {s.name} ({s.dtype})", s.bytes) for s in m.by_state]
        kinds += [("activations", m.activations)] if m.activations is not None else []
        kinds += [("decode state", m.decode_state)] if m.decode_state is not None else []
        title = f"memory, {m.dtype}, {m.algorithm}"
        table = [["memory", "bytes"], *([name, f"{n:,}"] for name, n in kinds)]
        found.append(_Bars(title, "KMGTP", 1024, ("bytes",), [(name, (n,)) for name, n in kinds if n], table))
        if m.timeline:
            events = [(e.event, e.bytes, e.peak) for e in m.timeline]
            course = [["step of training", "bytes at its end", "most within"]]
            course += [[name, f"{n:,}", f"{most:,}"] for name, n, most in events]
            title = f"memory over a training step, {m.dtype}, {m.algorithm}"
            found.append(_Course(title, m.weights + m.buffers + m.optimizer, events, course))
    return found


def _draw(axes: Axes, panel: _Bars) -> None:
    """The bars from the top, each with its sum."""
    bars = panel.bars
    left_out = len(bars) - _MOST_BARS
    if left_out > 0:
        largest = sorted(range(len(bars)), key=lambda i: -sum(bars[i][1]))[:_MOST_BARS]
        bars = [bars[i] for i in sorted(largest)]
    places = range(len(bars))
    start = [0.0] * len(bars)
    for i, part in enumerate(panel.parts):
        axes.barh(places, [float(values[i]) for _, values in bars], left=start, label=part)
        start = [s + values[i] for s, (_, values) in zip(start, bars, strict=True)]
    most = max(start, default=0.0) or 1.0
    for place, whole in zip(places, start, strict=True):
        axes.text(whole, place, f"  {_rounded(whole, panel.units, panel.base)}", va="center", fontsize="small")
    axes.set_xlim(0, 1.15 * most)
    axes.set_yticks(places, [name for name, _ in bars], parse_math=False)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda x, _: _rounded(x, panel.units, panel.base))
    said = f" (the {_MOST_BARS} largest of {len(panel.bars)})" if left_out > 0 else ""
    axes.set_title(panel.title + said, parse_math=False)
    axes.grid(visible=True, axis="x", alpha=0.25)
    if len(panel.parts) > 1:
        axes.legend(loc="lower right")


def _rounded(n: float, units: str, base: int) -> str:
    """`13.4 G`, or `13.4 GiB` where a thousand is 1,024."""
    for i in range(len(units), 0, -1):
        if n >= base**i:
            shown = rounded(n / base**i, 3 if n < 1000 * base**i else 4)
            return f"{shown} {units[i - 1]}{'iB' * (base == 1024)}"
    return rounded(n)


def _spread(values: list[float]) -> bool:
    return min(values) > 0 and max(values) >= _LOGARITHMIC_FROM * min(values)


def _lines(report: SweepReport, quantity: str) -> tuple[str, dict[str, Line]]:
    """The setting that the picture runs over, and its lines by what else is set."""

    def numbers(name: str) -> set[float]:
        found = [row.settings[name] for row in report.rows]
        return {float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool)}

    drawn = [(row, y) for row in report.rows if (y := getattr(row, quantity)) is not None]
    if not drawn:
        raise error(
            "E0506", f"no point of the sweep has {QUANTITIES[quantity]}", help="`--csv` says what is wrong with each"
        )
    axis = next((n for n in report.names if len(numbers(n)) > 1), None)
    if axis is None:
        raise error(
            "E0506", "no setting of the sweep has several numbers to draw over", help="give one a range: 6..24:6"
        )
    lines: dict[str, Line] = {}
    for row, y in drawn:
        x = row.settings[axis]
        if isinstance(x, int | float) and not isinstance(x, bool):
            label = ", ".join(f"{n} = {_shown(v)}" for n, v in row.settings.items() if n != axis)
            lines.setdefault(label, []).append((float(x), float(y)))
    if not lines:
        raise error("E0506", f"no point of the sweep with a number for `{axis}` can be drawn", help="see `--csv`")
    return axis, lines


def _shown(value: int | float | bool | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _write(figure: Figure, path: Path, title: str, tables: list[Table]) -> None:
    """A picture as a file; on a page of HTML the tables are below it."""
    import matplotlib

    kind = path.suffix.lower()
    # The same report gives the same bytes: no date, and names of paths that are not drawn at random.
    with matplotlib.rc_context({"svg.hashsalt": "archdsl", "svg.fonttype": "none"}), written_beside(path) as beside:
        if kind == ".png":
            figure.savefig(beside, format="png", dpi=150)
            return
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        svg = drawn.getvalue()
        text = svg if kind == ".svg" else page(svg[svg.index("<svg") :], title, tables)
        beside.write_text(text, encoding="utf-8", newline="\n")


def _swept(report: SweepReport) -> Table:
    """The points of a sweep, with all that was counted."""
    quantities = [q for q in QUANTITIES if any(getattr(row, q) is not None for row in report.rows)]
    rows: Table = [[*report.names, *(QUANTITIES[q] for q in quantities), ""]]
    for row in report.rows:
        cells = [_shown(row.settings[n]) for n in report.names]
        for q in quantities:
            value = getattr(row, q)
            cells.append("" if value is None else f"{value:.4f}" if q == "ratio" else f"{value:,.0f}")
        rows.append([*cells, row.problem or ""])
    return rows
