"""Reports as HTML, for notebooks: what the commands print, with its columns kept."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from archdsl.report import tables

if TYPE_CHECKING:
    from rich.console import RenderableType

    from archdsl.estimates.memory import MemoryReport

WIDTH = 140
"""Characters of a line."""
_PAGE = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'


def _memory_view(report: MemoryReport) -> Iterator[RenderableType]:
    yield from tables.answer_view(report)
    yield from tables.params_view(report)
    yield ""
    yield from tables.flops_view(report)
    yield ""
    yield from tables.memory_view(report, sizes=False)
    yield from tables.machines_view(report)


VIEWS: dict[str, Callable[[Any], Iterable[RenderableType]]] = {
    "CompareReport": tables.compare_view,
    "DiffReport": tables.diff_view,
    "FitReport": tables.fit_view,
    "ImportReport": tables.import_view,
    "LiftReport": tables.lift_view,
    "MemoryReport": _memory_view,
    "ParamsReport": tables.params_view,
    "ScalingReport": tables.scaling_view,
    "SweepReport": tables.sweep_view,
    "VerifyReport": tables.verify_view,
}
"""By the name of a report's class, or of the first of its bases that stands here."""


def html(report: object) -> str:
    """Return a report as HTML."""
    from rich.console import Console

    view = next(VIEWS[kind.__name__] for kind in type(report).__mro__ if kind.__name__ in VIEWS)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True)
    tables.print_on(console, [*view(report)])
    return console.export_html(inline_styles=True, code_format=_PAGE)
