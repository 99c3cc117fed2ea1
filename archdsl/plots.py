"""Pictures of reports: SVG, PNG, or a page of HTML that holds the picture and its numbers. They need matplotlib, which
is imported when one is drawn."""

from __future__ import annotations

import io
from html import escape
from importlib.util import find_spec as installed
from pathlib import Path
from typing import TYPE_CHECKING

from archdsl.diagnostics import error
from archdsl.files import written_beside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from archdsl.sweep import SweepReport

FORMATS = (".svg", ".png", ".html")
QUANTITIES = {
    "parameters": "parameters",
    "non_embedding": "parameters without embeddings",
    "active": "parameters active for each token",
    "ratio": "parameters without embeddings / 12 · n_layer · d²",
    "forward_per_token": "FLOPs for each token, inference",
    "training_per_token": "FLOPs for each token, training",
}
"""What can be drawn of a sweep, and what its axis says."""

_LOGARITHMIC_FROM = 8
"""An axis whose largest value is so many times its smallest one is logarithmic."""
_MANY_LINES = 12
"""With more lines than that the key stands beside the picture."""

Line = list[tuple[float, float]]


def demand_plots(path: Path) -> None:
    """Raises ArchError: E0506 for a file of another kind, E0502 where matplotlib is not installed."""
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
            help="pip install 'archdsl[plot]'; --csv needs none",
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
    axes.set_xlabel(axis)
    axes.set_ylabel(QUANTITIES[quantity])
    axes.set_title(f"{report.model}  {report.source}")
    axes.grid(visible=True, which="both", alpha=0.25)
    if len(lines) > 1:
        figure.legend(
            loc="outside right upper" if len(lines) > _MANY_LINES else "outside lower center",
            ncols=1 + (2 < len(lines) <= _MANY_LINES),
        )
    _write(figure, path, report)


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


def _write(figure: Figure, path: Path, report: SweepReport) -> None:
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
        text = svg if kind == ".svg" else _page(svg[svg.index("<svg") :], report)
        beside.write_text(text, encoding="utf-8", newline="\n")


def _page(svg: str, report: SweepReport) -> str:
    """The picture above its numbers, one file without a script."""
    quantities = [q for q in QUANTITIES if any(getattr(row, q) is not None for row in report.rows)]
    head = "".join(f"<th>{escape(h)}</th>" for h in (*report.names, *(QUANTITIES[q] for q in quantities), ""))
    body = []
    for row in report.rows:
        cells = [_shown(row.settings[n]) for n in report.names]
        for q in quantities:
            value = getattr(row, q)
            cells.append("" if value is None else f"{value:.4f}" if q == "ratio" else f"{value:,.0f}")
        cells.append(row.problem or "")
        body.append("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
    title = escape(f"{report.model} ({report.source})")
    style = (
        "body{font-family:sans-serif;margin:2em}svg{max-width:100%;height:auto}"
        "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right}tr:nth-child(even){background:#f3f3f3}"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{style}</style></head>\n"
        f"<body>\n{svg}\n<table><thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(body)
        + "\n</tbody></table>\n</body></html>\n"
    )
