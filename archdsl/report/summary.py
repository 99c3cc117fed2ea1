"""A model in ten lines of text, or as a table of HTML: what Python and notebooks print of one."""

from __future__ import annotations

from html import escape

from archdsl.estimates.params import ParamsReport, estimate
from archdsl.ir.dims import shape_text
from archdsl.ir.graph import Model
from archdsl.ir.paths import layer_texts
from archdsl.report.svg import figure, svg
from archdsl.report.tree import tree

LINES = 10
"""Lines of text at most."""
COLUMNS = 120
"""Characters of a line at most."""


def text(model: Model) -> str:
    """Return name, settings, inputs, outputs, parameters and the first modules of a model, in at most `LINES` lines."""
    report = estimate(model)
    lines = [f"{model.name}  {model.source_name}"]
    if report.config:
        lines.append(f"settings    {_settings(report)}")
    lines += [f"{name:<10}  {value}" for name, value in _tensors(model).items()]
    lines.append(f"parameters  {_parameters(report)}")
    modules = tree(model).children
    room = LINES - len(lines)
    shown = modules if len(modules) <= room else modules[: room - 1]
    names = [module.place + (f" × {module.count}" if module.count > 1 else "") for module in shown]
    width = max(map(len, names), default=0)
    for name, module in zip(names, shown, strict=True):
        lines.append(f"  {name:<{width}}  {module.kind:<22}  {module.params * module.count:>20,}")
    if more := len(modules) - len(shown):
        lines.append(f"  and {more} more: archdsl.show prints all")
    return "\n".join(line if len(line) <= COLUMNS else f"{line[: COLUMNS - 2]} …" for line in lines)


def html(model: Model) -> str:
    """Return a model's figure, then the same and every block with its parameters as a table of HTML."""
    report = estimate(model)
    head = {"settings": _settings(report), **_tensors(model), "parameters": _parameters(report)}
    facts = "".join(
        f"<tr><th style='text-align: left'>{escape(name)}</th><td colspan='5' style='text-align: left'>{escape(value)}"
        "</td></tr>"
        for name, value in head.items()
        if value
    )
    columns = "".join(f"<th>{name}</th>" for name in ("block", "layers", "count", "each", "total", "share"))
    total, blocks = report.params.total or 1, report.params.by_block[1:]
    rows = "".join(
        f"<tr><td style='text-align: left'>{escape(b.block)}</td><td>{escape(layers)}</td><td>{b.count:,}</td>"
        f"<td>{b.each:,}</td><td>{b.total:,}</td><td>{100 * b.total / total:.1f} %</td></tr>"
        for b, layers in zip(blocks, layer_texts([b.layers for b in blocks]), strict=True)
    )
    caption = f"<caption><b>{escape(model.name)}</b> {escape(model.source_name)}</caption>"
    return f"<div>{svg(*figure(model))}<table>{caption}{facts}<tr>{columns}</tr>{rows}</table></div>"


def _settings(report: ParamsReport) -> str:
    return ", ".join(f"{k} = {v:,}" if isinstance(v, int) else f"{k} = {v:g}" for k, v in report.config.items())


def _tensors(model: Model) -> dict[str, str]:
    """Return the model's inputs and outputs, each with its shape."""
    inputs = ", ".join(f"{name} {shape_text(value.shape)}" for name, value in model.inputs)
    outputs = ", ".join(f"{name or ''} {shape_text(value.shape)}".strip() for name, value in model.outputs)
    return {"inputs": inputs, "outputs": outputs}


def _parameters(report: ParamsReport) -> str:
    p = report.params
    active = f"; {p.active:,} active per token" if p.active != p.total else ""
    return f"{p.total:,}; {p.non_embedding:,} without embeddings{active}"
