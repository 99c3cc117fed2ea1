"""A page of HTML that holds a picture and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Table = list[list[str]]
"""Rows of cells, the first one of heads."""


def page(svg: str, title: str, tables: Sequence[Table] = ()) -> str:
    """The picture above its numbers, one file without a script. `svg` is taken as it is, all else is escaped."""
    style = (
        "body{font-family:sans-serif;margin:2em}svg{max-width:100%;height:auto}"
        "table{border-collapse:collapse;margin-bottom:2em}"
        "td,th{padding:.2em .8em;text-align:right}tr:nth-child(even){background:#f3f3f3}"
    )
    shown = []
    for heads, *rows in tables:
        head = "".join(f"<th>{escape(h)}</th>" for h in heads)
        body = ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>" for cells in rows]
        shown.append(f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table>\n")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{style}</style></head>\n"
        f"<body>\n{svg}\n" + "".join(shown) + "</body></html>\n"
    )
