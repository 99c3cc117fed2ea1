"""Where everything of a drawing stands on the page.

Each frame is laid out on its own, inner frames first, as layers from top to bottom. One chain of boxes, the residual
stream, is the spine at x = 0; every other chain is a lane beside it. Lines run down in lanes and sideways only between
layers, so that no line crosses a box. What enters and leaves a frame are ports on its top and bottom edge, and its
title stands on the top edge where no port is.

All lengths are in pixels. A net is the lines that leave one box; it is named after the box.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from archdsl.report.diagram import Box, BoxGroup, Diagram
from archdsl.report.fonts import Kind, width_of

Point = tuple[float, float]
Key = str | tuple[str, str] | tuple[str, int]
"""Of a box or a frame its id, of a port ("in" or "out", net), of a line that passes a layer (net, layer)."""

RADIUS = 11.0
"""Of the circle of a sum."""
TEXT, LINE, TITLE = 17.0, 14.0, 24.0
"""From a box's top to the foot of its name; from line to line; the height of a frame's strip with its title."""
BAR = 11.0
"""Room for a bar, below the texts of a box."""
LEAST = 0.005
"""Of smaller shares there is no bar."""
_LANE, _MARGIN, _GAP, _TRACK = 16.0, 12.0, 22.0, 8.0
"""Between lanes; within a frame's edge; between layers; between lines that go sideways in one gap."""
_PACKED = 162.0
"""Details of a box that are no wider together share a line."""


@dataclass(eq=False)
class Item:
    """What stands in a layer of a frame."""

    key: Key
    kind: Literal["box", "frame", "port", "line"]
    left: float = 3.0
    right: float = 3.0
    """How far it reaches to both sides of x."""
    height: float = 0.0
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    net: str = ""
    box: Box | None = None
    frame: Frame | None = None
    entries: dict[str, float] = field(default_factory=dict)
    """Where each net arrives at it."""

    @property
    def is_input(self) -> bool:
        return self.box is not None and self.box.role == "input"

    @property
    def is_sum(self) -> bool:
        return self.box is not None and self.box.role == "sum"

    def leaves(self, net: str) -> float:
        """Where a net leaves it."""
        return self.x + (self.frame.leave[net] if self.frame is not None else 0.0)


@dataclass(eq=False)
class Frame:
    """A group that is laid out; all places are relative to its spine and its top."""

    group: BoxGroup
    left: float = 0.0
    right: float = 0.0
    height: float = 0.0
    title: Point = (0.0, 0.0)
    """Where its title begins, and how wide it is."""
    enter: dict[str, float] = field(default_factory=dict)
    leave: dict[str, float] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    labels: list[tuple[str, float, float]] = field(default_factory=list)


@dataclass
class Line:
    """A part of a net."""

    net: str
    points: list[Point]
    arrow: bool


@dataclass
class PlacedBox:
    box: Box
    details: list[str]
    x: float
    y: float
    width: float
    height: float


@dataclass
class PlacedFrame:
    group: BoxGroup
    x: float
    y: float
    width: float
    height: float
    title_x: float
    title_width: float


@dataclass
class Label:
    """A text beside a line, from the foot of its first letter."""

    text: str
    x: float
    y: float
    width: float
    kind: Kind = "small"


@dataclass
class Scene:
    """Everything of a drawing with its place on the page."""

    drawn: Diagram
    boxes: list[PlacedBox] = field(default_factory=list)
    frames: list[PlacedFrame] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def mirror(self) -> None:
        """Change left and right."""
        for box in self.boxes:
            box.x = self.width - box.x - box.width
        for frame in self.frames:
            frame.x = self.width - frame.x - frame.width
            frame.title_x = self.width - frame.title_x - frame.title_width
        for line in self.lines:
            line.points = [(self.width - x, y) for x, y in line.points]
        for label in self.labels:
            label.x = self.width - label.x - label.width

    def move(self, right: float, foot: float, suffix: str) -> None:
        """Shift everything to the right and down; nets are told from others by a suffix."""
        parts: list[PlacedBox | PlacedFrame | Label] = [*self.boxes, *self.frames, *self.labels]
        for part in parts:
            part.x += right
            part.y += foot
        for frame in self.frames:
            frame.title_x += right
        for line in self.lines:
            line.points = [(x + right, y + foot) for x, y in line.points]
            line.net += suffix


def beside(left: Scene, right: Scene, titles: tuple[str, str]) -> Scene:
    """Two scenes on one page, each below its title. Both are changed."""
    for scene, title in zip((left, right), titles, strict=True):
        scene.width = max(scene.width, width_of(title, "title") + 24)
    left.move(0, TITLE, "")
    right.move(left.width, TITLE, "'")
    heads = [Label(t, x + 12, 16, width_of(t, "title"), "title") for t, x in zip(titles, (0, left.width), strict=True)]
    return Scene(
        right.drawn,
        left.boxes + right.boxes,
        left.frames + right.frames,
        left.lines + right.lines,
        left.labels + right.labels + heads,
        left.width + right.width,
        max(left.height, right.height) + TITLE,
    )


def lay_out(drawn: Diagram) -> Scene:
    """The scene of a drawing. A frame that a line leaves and comes back to is opened: `drawn` is changed."""
    page = _Page(drawn).frame(drawn.root)
    scene = Scene(drawn, width=page.left + page.right + 16, height=page.height + 20)
    labels: list[tuple[str, float, float]] = []

    def walk(frame: Frame, x: float, y: float) -> None:
        if frame is not page:
            width = frame.left + frame.right
            at, wide = frame.title
            scene.frames.append(PlacedFrame(frame.group, x - frame.left, y, width, frame.height, x + at, wide))
        for i in frame.items:
            if i.box is not None:
                place = (x + i.x - i.left, y + i.y, i.left + i.right, i.height)
                scene.boxes.append(PlacedBox(i.box, details(i.box), *place))
            elif i.frame is not None:
                walk(i.frame, x + i.x, y + i.y)
        scene.lines += [Line(p.net, [(x + px, y + py) for px, py in p.points], p.arrow) for p in frame.lines]
        labels.extend((text, x + lx, y + ly) for text, lx, ly in frame.labels)

    walk(page, page.left + 8, 10)
    _place_labels(scene, labels)
    inputs = [b.x + b.width / 2 for b in sorted(scene.boxes, key=lambda b: int(b.box.id[1:])) if b.box.role == "input"]
    if len(inputs) == 2 and inputs[0] > inputs[1] and any(b.box.role == "attention" for b in scene.boxes):
        scene.mirror()  # an encoder stands at the left of its decoder
    return scene


def details(box: Box) -> list[str]:
    """The details of a box, short ones in one line."""
    packed: list[str] = []
    for text in box.details:
        if packed and width_of(joined := f"{packed[-1]} · {text}", "detail") <= _PACKED:
            packed[-1] = joined
        else:
            packed.append(text)
    return packed


def _place_labels(scene: Scene, labels: Iterable[tuple[str, float, float]]) -> None:
    """Put each label beside the end of its line, where nothing else is."""
    solid = [
        (min(ax, bx), min(ay, by), max(ax, bx), max(ay, by))
        for line in scene.lines
        for (ax, ay), (bx, by) in zip(line.points, line.points[1:], strict=False)
    ]
    solid += [(b.x, b.y, b.x + b.width, b.y + b.height) for b in scene.boxes]
    solid += [(f.title_x, f.y, f.title_x + f.title_width, f.y + 20) for f in scene.frames]
    for text, end, foot in labels:
        width = width_of(text, "small")
        spots = [(x, foot - up) for up in (8, 14, 20, 3, 28, 36) for x in (end + 5, end - 5 - width)]
        for x, y in spots:
            room = (x - 1, y - 8, x + width + 1, y + 2)
            if not any(room[0] < c and a < room[2] and room[1] < d and b < room[3] for a, b, c, d in solid):
                scene.labels.append(Label(text, x, y, width))
                solid.append((x, y - 8, x + width, y + 2))
                break


class _Page:
    """What the layouts of all frames share."""

    def __init__(self, drawn: Diagram) -> None:
        self.drawn = drawn
        self.within = {g.id: {b.id for b in g.boxes()} for g in (drawn.root, *drawn.root.groups())}
        self.label = {(a.source, a.target): a.label or a.size for a in drawn.arrows if a.label or a.size}

    def frame(self, group: BoxGroup) -> Frame:
        while True:
            layout = _Layout(self, group)
            if layout.order:
                return layout.run()
            group.parts = [q for p in group.parts for q in (p.parts if isinstance(p, BoxGroup) else [p])]

    @staticmethod
    def size(box: Box) -> tuple[float, float]:
        """Width and height of a box."""
        if box.role == "sum":
            return 2 * RADIUS, 2 * RADIUS
        lines = details(box)
        name = width_of(box.title, "name") + (40 if box.sees else 0)
        width = max(name, 72.0, *(width_of(text, "detail") for text in lines)) + 24
        return width, 26 + LINE * len(lines) + (BAR if box.weight >= LEAST else 0)


class _Layout:
    """The layout of one frame."""

    def __init__(self, page: _Page, group: BoxGroup) -> None:
        self.page, self.group = page, group
        self.origin: dict[str, Key] = {}
        """Where a net comes from."""
        self.sinks: dict[str, list[Key]] = {}
        self.into: dict[Key, list[str]] = {}
        """The nets that something reads."""
        self.items: dict[Key, Item] = {}
        self.taken: set[Key] = set()
        """What has a lane."""
        self.side: dict[tuple[Key, str], float] = {}
        """Where nets stand that arrive at a sum from the side."""
        self._find_nets()
        self.order = self._topological()
        """What stands in the frame, each behind what it reads; empty where there is no such order."""

    def run(self) -> Frame:
        for part in self.group.parts:
            if isinstance(part, Box):
                width, height = self.page.size(part)
                self.items[part.id] = Item(part.id, "box", width / 2, width / 2, height, box=part)
            else:
                frame = self.page.frame(part)
                self.items[part.id] = Item(part.id, "frame", frame.left, frame.right, frame.height, frame=frame)
        for net, origin in self.origin.items():
            for key in (origin, *self.sinks[net]):
                if isinstance(key, tuple):
                    self.items[key] = Item(key, "port", net=net)
        self._set_layers()
        spine = self._spine()
        self._add_lines()
        self._place(self._chains(spine))
        return self._route()

    def _find_nets(self) -> None:
        mine = self.page.within[self.group.id]
        home: dict[str, str] = {}
        for part in self.group.parts:
            home |= dict.fromkeys([part.id] if isinstance(part, Box) else self.page.within[part.id], part.id)
        for arrow in self.page.drawn.arrows:
            net, starts, ends = arrow.source, arrow.source in mine, arrow.target in mine
            if not (starts or ends) or (starts and ends and home[net] == home[arrow.target]):
                continue
            self.origin.setdefault(net, home[net] if starts else ("in", net))
            sink: Key = home[arrow.target] if ends else ("out", net)
            if sink not in self.sinks.setdefault(net, []):
                self.sinks[net].append(sink)
                self.into.setdefault(sink, []).append(net)

    def _topological(self) -> list[Key]:
        keys: list[Key] = [key for key in self.origin.values() if isinstance(key, tuple)]
        keys += [part.id for part in self.group.parts]
        keys += [("out", net) for net, sinks in self.sinks.items() if ("out", net) in sinks]
        done: dict[Key, None] = {}
        while len(done) < len(keys):
            ready = [k for k in keys if k not in done and all(self.origin[n] in done for n in self.into.get(k, ()))]
            if not ready:
                return []
            done.update(dict.fromkeys(ready))
        return [*done]

    def _set_layers(self) -> None:
        """Each item below all that it reads; what reads nothing right above the first that reads it."""
        items = self.items.values()
        for key in self.order:
            self.items[key].layer = 1 + max((self._source(net).layer for net in self.into.get(key, ())), default=-1)
        ports = {way: [i for i in items if isinstance(i.key, tuple) and i.key[0] == way] for way in ("in", "out")}
        for i in ports["in"]:
            i.layer = 0
        if ports["out"]:
            last = 1 + max((i.layer for i in items if i not in ports["out"]), default=0)
            for i in ports["out"]:
                i.layer = last
        for key in reversed(self.order):
            item = self.items[key]
            readers = [self.items[sink].layer for net in self._made(key) for sink in self.sinks[net]]
            role = item.box.role if item.box is not None else ""
            starts = item.kind != "port" and role not in ("input", "output") and not self.into.get(key)
            if readers and (starts or (role == "input" and key != self.order[0])):
                item.layer = min(readers) - 1
        low = min(i.layer for i in items)
        for i in items:
            i.layer -= low

    def _source(self, net: str) -> Item:
        return self.items[self.origin[net]]

    def _made(self, key: Key) -> list[str]:
        return [net for net, origin in self.origin.items() if origin == key]

    def _comes_from(self, net: str, item: Item) -> float:
        """Where a net stands in the layer above an item that it leads to."""
        line = self.items.get((net, item.layer - 1))
        return line.x if line is not None else self._source(net).leaves(net)

    # --- chains: the spine and the lanes ---

    def _spine(self) -> list[Key]:
        """The residual stream, from the last result back to where it begins: of what meets in a sum, the part that the
        other was computed from."""
        above: dict[Key, set[Key]] = {}
        for key in self.order:
            above[key] = {k for net in self.into.get(key, ()) for k in (self.origin[net], *above[self.origin[net]])}
        ends: list[Key] = [k for k in self.items if isinstance(k, tuple) and k[0] == "out"]
        outputs: list[Key] = [p.id for p in self.group.parts if isinstance(p, Box) and p.role == "output"]
        chain = [max(ends or outputs or [self.group.parts[-1].id], key=lambda k: len(above[k]))]
        while feeds := self.into.get(chain[-1]):
            item, pick = self.items[chain[-1]], feeds[0]
            if item.is_sum:
                of = {net: above[self.origin[net]] for net in feeds}
                pick = next((n for n in feeds if any(self.origin[n] in of[m] for m in feeds if m != n)), pick)
            elif item.frame is not None:
                enter = item.frame.enter
                pick = min(feeds, key=lambda net: abs(enter.get(net, math.inf)))
            elif item.box is not None and item.box.role != "attention":
                pick = max(feeds, key=lambda net: len(above[self.origin[net]]))
            chain.append(self.origin[pick])
        return chain[::-1]

    def _add_lines(self) -> None:
        """An item for each layer that a net passes."""
        for net, sinks in self.sinks.items():
            for layer in range(self._source(net).layer + 1, max(self.items[t].layer for t in sinks)):
                self.items[net, layer] = Item((net, layer), "line", 1, 1, layer=layer, net=net)

    def _passing(self, net: str, start: int, end: int) -> list[Item]:
        """What is free of a net's lines through some layers."""
        keys = [(net, layer) for layer in range(start, end)]
        return [self.items[key] for key in keys if key in self.items and key not in self.taken]

    def _take(self, chain: list[Item], *items: Item) -> None:
        chain += items
        self.taken.update(i.key for i in items)

    def _chains(self, spine: list[Key]) -> list[list[Item]]:
        """What stands in a lane each: the spine, then chains of items, then lines alone, then what reads nothing."""
        first: list[Item] = []
        for key, after in zip(spine, [*spine[1:], None], strict=True):
            self._take(first, self.items[key])
            if after is not None:
                net = next(n for n in self.into[after] if self.origin[n] == key)
                self._take(first, *self._passing(net, self.items[key].layer + 1, self.items[after].layer))
        others = [self._chain(self.items[key]) for key in self.order if key not in self.taken]
        for line in [i for i in self.items.values() if i.kind == "line"]:
            if line.key not in self.taken:
                chain: list[Item] = []
                self._take(chain, *self._passing(line.net, line.layer, line.layer + self._free(line)))
                others.append(chain)
        self._even_widths([first, *others])
        leaf = [c for c in others if c[0].kind == "box" and not self.into.get(c[0].key) and not c[0].is_input]
        thin = [c for c in others if all(i.kind in ("line", "port") for i in c)]
        rest = [c for c in others if c not in leaf and c not in thin]
        return [first, *rest, *sorted(thin, key=len), *leaf]

    def _free(self, line: Item) -> int:
        """Through how many layers a net's line is free from here on."""
        layer = line.layer
        while (line.net, layer) in self.items and (line.net, layer) not in self.taken:
            layer += 1
        return layer - line.layer

    def _chain(self, item: Item) -> list[Item]:
        """An item and what follows it, with the lines that lead to it and on."""
        chain: list[Item] = []
        if feeds := self.into.get(item.key):
            net = max(feeds, key=lambda n: self._source(n).layer)
            self._take(chain, *self._passing(net, self._source(net).layer + 1, item.layer))
        while True:
            self._take(chain, item)
            made = self._made(item.key)
            sinks = [(self.items[t], net) for net in made for t in self.sinks[net] if t not in self.taken]
            if item.kind == "port":  # it leads on where nothing else does
                sinks = [(sink, net) for sink, net in sinks if len(self.into[sink.key]) == 1]
            if not sinks:
                if len(made) == 1 and len(self.sinks[made[0]]) == 1:  # down to what reads it
                    reader = self.items[self.sinks[made[0]][0]]
                    self._take(chain, *self._passing(made[0], item.layer + 1, reader.layer))
                return chain
            after, net = min(sinks, key=lambda sink: sink[0].layer)
            self._take(chain, *self._passing(net, item.layer + 1, after.layer))
            item = after

    @staticmethod
    def _even_widths(chains: list[list[Item]]) -> None:
        """Boxes of one lane are equally wide, and those of lanes that stand one below another."""
        lanes = [[i for i in c if i.box is not None and i.box.role not in ("sum", "input", "output")] for c in chains]
        rows = [{i.layer for i in c if i.kind in ("box", "frame")} for c in chains]
        alone = [
            n
            for n in range(1, len(chains))
            if lanes[n] and not any(rows[n] & row for m, row in enumerate(rows) if m != n)
        ]
        together = [i for n in alone for i in lanes[n]]
        for n, boxes in enumerate(lanes):
            width = max((i.right for i in (together if n in alone else boxes)), default=0.0)
            for i in boxes:
                i.left = i.right = width

    # --- places ---

    def _place(self, chains: list[list[Item]]) -> None:
        """Give each chain the free lane that is nearest to all that it is joined to, rather at the right."""
        near: dict[Key, set[tuple[Key, float]]] = {}
        for net, origin in self.origin.items():
            ends = [(origin, self.items[origin].leaves(net))]
            for sink in self.sinks[net]:
                frame = self.items[sink].frame
                ends.append((sink, frame.enter[net] if frame is not None else 0.0))
            ends += [(i.key, 0.0) for i in self.items.values() if i.kind == "line" and i.net == net]
            for key, _ in ends:
                near.setdefault(key, set()).update(ends)
        busy: dict[int, list[Point]] = {}
        placed: set[Key] = set()
        inputs = [key for key, i in self.items.items() if i.is_input]
        for chain in chains:
            x = 0.0
            if placed:
                joined = [self.items[k].x + at for i in chain for k, at in near.get(i.key, ()) if k in placed]
                want = sum(joined) / len(joined) if joined else 0.0
                thin = all(i.kind in ("line", "port") for i in chain)
                keys = [chain[0].key, chains[0][0].key]
                early = all(key in inputs for key in keys) and inputs.index(keys[0]) < inputs.index(keys[1])
                detour = 400 if early else 2 if thin else 70
                x = min(
                    _free_lanes(chain, busy, want),
                    key=lambda p: (abs(p - want) + (0 if (p > 0) != (thin or early) else detour), p),
                )
            for i in chain:
                i.x = x
                placed.add(i.key)
                busy.setdefault(i.layer, []).append((x - i.left, x + i.right))

    # --- lines ---

    def _route(self) -> Frame:
        frame = Frame(self.group, items=list(self.items.values()))
        rows: list[list[Item]] = [[] for _ in range(1 + max(i.layer for i in frame.items))]
        for i in frame.items:
            rows[i.layer].append(i)
        self._set_entries(rows)
        heights = [max(i.height for i in row) for row in rows]
        root = self.group is self.page.drawn.root
        y = 0.0 if root else TITLE
        for n, row in enumerate(rows):
            for i in row:
                i.y = y + (heights[n] - i.height) / 2
                if i.kind == "line":
                    frame.lines.append(Line(i.net, [(i.x, y), (i.x, y + heights[n])], False))
            y += heights[n]
            if n + 1 < len(rows):
                y = self._join(frame, row, rows[n + 1], y, heights[n + 1], first=n == 0 and not root)
        self._close(frame, y, root)
        return frame

    def _set_entries(self, rows: list[list[Item]]) -> None:
        """Where each net arrives at what reads it: at a sum from the side, where nothing is between."""
        level: dict[int, list[tuple[str, float, float]]] = {}
        """What runs sideways through a layer."""
        for i in (i for row in rows for i in row if i.kind != "line"):
            starts = {net: self._comes_from(net, i) for net in self.into.get(i.key, ())}
            if i.frame is not None:
                i.entries = {net: i.x + i.frame.enter[net] for net in starts}
            elif i.is_sum:
                used: set[bool] = set()
                for net in sorted(starts, key=lambda net: abs(starts[net] - i.x)):
                    x = starts[net]
                    a, b = sorted((x, i.x))
                    clear = all(o.net == net or _apart(o, x, a, b) for o in rows[i.layer] if o is not i)
                    clear = clear and all(n == net or d < a or b < c for n, c, d in level.get(i.layer, ()))
                    if abs(x - i.x) > 20 and clear and (x > i.x) not in used:
                        used.add(x > i.x)
                        level.setdefault(i.layer, []).append((net, a, b))
                        self.side[i.key, net] = x
                above = {net: x for net, x in starts.items() if (i.key, net) not in self.side}
                i.entries = _spread(above, i.x, 6) if len(above) > 1 else dict.fromkeys(starts, i.x)
            elif i.box is not None:
                labels = (self.page.label.get((net, i.box.id), "") for net in starts)
                i.entries = _spread(starts, i.x, i.left - 9, max(width_of(text, "small") for text in ("", *labels)))
            else:
                i.entries = dict.fromkeys(starts, i.x)

    def _join(self, frame: Frame, row: list[Item], below: list[Item], top: float, height: float, first: bool) -> float:
        """Draw the lines between two layers; where the lower one begins."""
        layer = row[0].layer
        nets: list[tuple[str, Item, float, list[tuple[Item, float]]]] = []
        for net, origin in self.origin.items():
            start = next((i for i in row if i.key == origin or i.key == (net, layer)), None)
            ends = [
                (i, i.x if i.kind == "line" else i.entries[net])
                for i in below
                if (i.key in self.sinks[net] or i.key == (net, layer + 1)) and (i.key, net) not in self.side
            ]
            if start is not None and (ends or any((i.key, net) in self.side for i in below)):
                nets.append((net, start, start.x if start.kind == "line" else start.leaves(net), ends))
        bent = {
            net: (x, [end for _, end in ends]) for net, _, x, ends in nets if any(abs(end - x) > 0.5 for _, end in ends)
        }
        tracks = _tracks(bent)
        count = max(tracks.values(), default=-1) + 1
        labelled = any((net, i.key) in self.page.label for net, _, _, ends in nets for i, _ in ends)
        gap = _GAP + max(0, count - 1) * _TRACK + (8 if labelled else 0)
        if first and all(i.kind in ("port", "line") for i in row):
            gap = max(12.0, count * _TRACK + 12)
        for net, start, x, ends in nets:
            foot = start.y + start.height
            turn = top + 7 + tracks.get(net, 0) * _TRACK
            for i, end in ends:
                y = top + gap + ((height - i.height) / 2 if i.kind in ("box", "frame") else 0)
                if i.is_sum:
                    y += RADIUS - math.sqrt(RADIUS**2 - (end - i.x) ** 2)
                straight = abs(end - x) <= 0.5
                path = [(x, foot), (end, y)] if straight else [(x, foot), (x, turn), (end, turn), (end, y)]
                frame.lines.append(Line(net, path, i.kind == "box"))
                if label := self.page.label.get((net, str(i.key))):
                    frame.labels.append((label, end, y))
            for i in below:
                if (i.key, net) in self.side:
                    y = top + gap + height / 2
                    edge = i.x + math.copysign(RADIUS, x - i.x)
                    frame.lines.append(Line(net, [(x, foot), (x, y), (edge, y)], True))
        return top + gap

    def _close(self, frame: Frame, y: float, root: bool) -> None:
        """Draw the frame around its items, with a place for its title."""
        reach = [p for i in frame.items for p in (i.x - i.left, i.x + i.right)]
        reach += [x for line in frame.lines for x, _ in line.points]
        reach += [
            p for text, x, _ in frame.labels for p in (x - 6 - width_of(text, "small"), x + 6 + width_of(text, "small"))
        ]
        frame.left, frame.right, frame.height = _MARGIN - min(reach), _MARGIN + max(reach), y
        if root:
            return
        for i in frame.items:
            if isinstance(i.key, tuple) and i.kind == "port":
                (frame.enter if i.key[0] == "in" else frame.leave)[i.net] = i.x
                if i.key[0] == "in":
                    frame.lines.append(Line(i.net, [(i.x, 0), (i.x, i.y)], False))
        frame.height += 0 if frame.leave else _MARGIN
        width = title_width(frame.group) + 8
        ports = sorted(frame.enter.values())
        for at in (10 - frame.left, *(port + 9 for port in ports), frame.right - 10 - width):
            inside = at >= 8 - frame.left and at + width <= frame.right - 8
            if inside and all(not at - 6 < port < at + width + 6 for port in ports):
                frame.title = (at, width)
                return
        frame.left = max(frame.left, width + 18 - min(ports) if ports else width + 20 - frame.right)
        frame.title = (10 - frame.left, width)


def title_width(group: BoxGroup) -> float:
    """Return the width of a frame's title in pixels: a pill with its repetitions, then its name."""
    pill = width_of(f"× {group.times:,}", "title") + 15 if group.times > 1 else 0.0
    return pill + width_of(group.title, "title")


def _apart(item: Item, x: float, start: float, end: float) -> bool:
    """Whether a line may come down at x beside an item and run sideways from `start` to `end` there."""
    if item.kind in ("line", "port"):
        return abs(item.x - x) > 4
    return item.x + item.right + 6 < start or item.x - item.left - 6 > end


def _free_lanes(chain: list[Item], busy: dict[int, list[Point]], want: float) -> list[float]:
    """Where a chain has room: at its best place, at the spine, and beside all that is there."""
    there = [(i, a, b) for i in chain for a, b in busy.get(i.layer, ())]
    spots = {want, 0.0}
    for i, a, b in there:
        spots |= {b + _LANE + i.left, a - _LANE - i.right}
    return [
        x for x in spots if all(x + i.right + _LANE <= a + 1e-6 or x - i.left - _LANE >= b - 1e-6 for i, a, b in there)
    ]


def _spread(starts: dict[str, float], x: float, reach: float, label: float = 0.0) -> dict[str, float]:
    """Places on the top edge of a box in the order in which its nets arrive, 14 apart where there is room, with room
    for labels between them; one that comes from straight above goes straight."""
    if len(starts) == 1:
        return dict.fromkeys(starts, x)
    nets = sorted(starts, key=lambda net: starts[net])
    step = min(max(14.0, label + 8 if label else 0), 2 * reach / (len(nets) - 1))
    straight = next((n for n, net in enumerate(nets) if abs(starts[net] - x) < 0.5), (len(nets) - 1) / 2)
    first = min(max(x - step * straight, x - reach), x + reach - step * (len(nets) - 1))
    return {net: first + n * step for n, net in enumerate(nets)}


def _tracks(bent: dict[str, tuple[float, list[float]]]) -> dict[str, int]:
    """A track for each net that goes sideways, given where it starts and ends, so that none lies on another: one that
    starts above another's end has the upper track."""
    spans = {net: (min(x, *ends), max(x, *ends)) for net, (x, ends) in bent.items()}
    upper = {
        net: {other for other, (x, _) in bent.items() if other != net and any(abs(x - end) < 6 for end in ends)}
        for net, (_, ends) in bent.items()
    }
    found: dict[str, int] = {}
    todo = sorted(spans, key=lambda net: spans[net][1] - spans[net][0])
    while todo:
        net = next((n for n in todo if not upper[n] & {*todo} - {n}), todo[0])
        todo.remove(net)
        track = max((found[other] + 1 for other in upper[net] if other in found), default=0)
        low, high = spans[net]
        while any(found[o] == track and spans[o][0] < high + 6 and low < spans[o][1] + 6 for o in found):
            track += 1
        found[net] = track
    return found
