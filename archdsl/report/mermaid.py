"""A drawing as a Mermaid flowchart: plain text that Markdown renderers show as a picture."""

from __future__ import annotations

from archdsl.report.diagram import Box, BoxGroup, Diagram

# Room for a frame's title above the arrows that enter it, and no line broken but where it was meant to be.
_LAYOUT = '%%{init: {"flowchart": {"subGraphTitleMargin": {"top": 4, "bottom": 20}, "wrappingWidth": 400}}}%%'
_SHAPES = {
    "input": ('(["', '"])'),
    "output": ('(["', '"])'),
    "sum": ('(("', '"))'),
    "op": ('("', '")'),
    "state": ('[("', '")]'),
}
_PLAIN = ('["', '"]')
_COLORS = {
    "input": "fill:#eef1f5,stroke:#8a94a6",
    "output": "fill:#eef1f5,stroke:#8a94a6",
    "attention": "fill:#fde3c8,stroke:#d9822b",
    "experts": "fill:#f9d5e5,stroke:#c2568c",
    "norm": "fill:#fbf3c0,stroke:#b8a325",
    "weights": "fill:#d3e8fb,stroke:#4a90d9",
    "sum": "fill:#ffffff,stroke:#555555",
    "op": "fill:#e6f4e4,stroke:#6aa864",
    "state": "fill:#e4dff5,stroke:#7d6bb5",
}
# Half transparent: the page may be light or dark, and a frame may stand in another.
_FRAME = "fill:#80808018,stroke:#808080"


def mermaid(drawn: Diagram) -> str:
    """The text of a flowchart, from top to bottom, ending with a line end."""
    lines = [_LAYOUT, "flowchart TB"]
    for part in drawn.root.parts:
        lines += _part(part, "  ")
    for arrow in drawn.arrows:
        label = f"|{_escape(arrow.label)}|" if arrow.label else ""
        lines.append(f"  {arrow.source} -->{label} {arrow.target}")
    roles: dict[str, list[str]] = {}
    for box in drawn.root.boxes():
        roles.setdefault(box.role, []).append(box.id)
    for role, ids in roles.items():
        lines.append(f"  classDef {role} {_COLORS[role]},color:#222222")
        lines.append(f"  class {','.join(ids)} {role}")
    frames = [group.id for group in drawn.root.groups()]
    if frames:
        lines += [f"  classDef frame {_FRAME}", f"  class {','.join(frames)} frame"]
    return "\n".join(lines) + "\n"


def _part(part: Box | BoxGroup, indent: str) -> list[str]:
    if isinstance(part, Box):
        before, after = _SHAPES.get(part.role, _PLAIN)
        return [f"{indent}{part.id}{before}{'<br/>'.join(_escape(line) for line in part.lines)}{after}"]
    inner = [line for p in part.parts for line in _part(p, f"{indent}  ")]
    return [f'{indent}subgraph {part.id}["{_escape(part.label)}"]', *inner, f"{indent}end"]


def _escape(text: str) -> str:
    """Characters that Mermaid would take for its own."""
    for character, entity in (("&", "#amp;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("|", "#124;")):
        text = text.replace(character, entity)
    return text
