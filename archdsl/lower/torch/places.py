"""Sequence parallelism in the section `parallel`: between maps that are cut, each device works on a part of the
places."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from archdsl.analyses.sequence import Change, Spread
from archdsl.ir.graph import Block
from archdsl.lower.python import local_name
from archdsl.lower.torch.text import starred
from archdsl.lower.torch.written import Group

LAY_INPUTS = '''
def lay_inputs(
    module: nn.Module, mesh: DeviceMesh, numbers: tuple[int, ...], now: Placement, then: Placement, local: bool = True
) -> None:
    """Hand a module some of its inputs in another layout, as plain tensors if `local`."""

    def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        found = list(inputs)
        for i in numbers:
            x = DTensor.from_local(found[i], mesh, [now], run_check=False).redistribute(placements=[then])
            found[i] = x.to_local() if local else x
        return tuple(found)

    module.register_forward_pre_hook(enter)
'''

DROP_PLACES = '''
def drop_places(dropout: nn.Dropout, mesh: DeviceMesh) -> None:
    """Have a module drop of this device's places what one device alone would drop: all draw one mask for all places."""

    def forward(x: Tensor) -> Tensor:
        if not dropout.training:
            return x
        whole = torch.ones(x.size(0), x.size(1) * mesh.size(), *x.shape[2:], device=x.device)
        kept = F.dropout(whole, dropout.p).chunk(mesh.size(), 1)[mesh.get_local_rank()] != 0
        return x * kept / (1 - dropout.p)

    dropout.forward = forward
'''

CHECK = """
    def check(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        for i, name, axis in (@INPUTS@,):
            size = (named[name] if name in named else inputs[i]).size(axis)
            if size % mesh.size():
                raise ValueError(f"{name}: {mesh.size()} devices cannot share {size} places equally")

    model.register_forward_pre_hook(check, with_kwargs=True)
"""


def texts(spread: Spread, classes: Mapping[Block, Group], stages: bool) -> Iterator[str]:
    """The functions that a file has for it; `stages`: of which a model may have only some layers."""
    if spread.inputs:
        yield LAY_INPUTS
    if spread.dropouts:
        yield DROP_PLACES
    yield _CutPlaces(spread, classes, stages).text()


class _CutPlaces:
    """Writes the function that hangs on each module what is to be done about its tensors and weights."""

    def __init__(self, spread: Spread, classes: Mapping[Block, Group], stages: bool) -> None:
        self.spread, self.classes, self.stages = spread, classes, stages
        self.alike = by_star(spread.modules)
        self.ends: dict[str, None] = {}
        """Stacks of whose last layer something is wanted."""

    def text(self) -> str:
        spread = self.spread
        body = [*self._inputs(), *self._results()]
        body += self._where(spread.shared, ["sum_gradients(module, mesh)"])
        drop = ["for dropout in module.children():", "    if isinstance(dropout, nn.Dropout):"]
        body += self._where(spread.dropouts, [*drop, "        drop_places(dropout, mesh)"])
        lines = [
            "def cut_places(model: nn.Module, mesh: DeviceMesh) -> None:",
            '    """Sequence parallelism (Korthikanti et al., 2022, section 4.2.2): between maps that are cut, each',
            '    device works on its part of the places."""',
            *self._ends(),
            *(["    found = {}"] if spread.results else []),
            "    for path, module in list(model.named_modules()):",
            '        name = re.sub(r"\\.\\d+", ".*", path)',
            *(f"        {line}" for line in body),
            *(["    parallelize_module(model, mesh, found)"] if spread.results else []),
        ]
        inputs = ", ".join(f'({number}, "{local_name(name)}", {axis})' for name, number, axis in spread.lengths)
        return "\n".join([*lines, CHECK.replace("@INPUTS@", inputs)])

    def _inputs(self) -> Iterator[str]:
        wanted: dict[tuple[Change, tuple[int, ...]], list[str]] = {}
        for path, of in self.spread.inputs.items():
            for change in dict.fromkeys(of.values()):
                numbers = tuple(sorted(i for i, c in of.items() if c == change))
                wanted.setdefault((change, numbers), []).append(path)
        for (change, numbers), paths in wanted.items():
            layouts = "Replicate(), Shard(1)" if change == "divide" else "Shard(1), Replicate()"
            plain = ", local=False" if change == "hand" else ""
            yield from self._where(paths, [f"lay_inputs(module, mesh, {numbers}, {layouts}{plain})"])

    def _results(self) -> Iterator[str]:
        wanted: dict[str, list[str]] = {}
        for path, of in self.spread.results.items():
            wanted.setdefault(_style(of, self.spread.counts[path]), []).append(path)
        for style, paths in wanted.items():
            yield from self._where(paths, [f"found[path] = {style}"])

    def _ends(self) -> Iterator[str]:
        if self.ends:
            made = ", ".join(f'f"{stack}.{{[*dict(model.{stack}.named_children())][-1]}}"' for stack in self.ends)
            also = ' if getattr(model, "is_last", True) else []' if self.stages else ""
            yield f"    last = [{made}]{also}"

    # --- which modules ---

    def _where(self, paths: Collection[str], lines: Sequence[str]) -> Iterator[str]:
        """Lines for some modules."""
        if paths:
            yield f"if {self._test(paths)}:"
            yield from (f"    {line}" for line in lines)

    def _test(self, paths: Collection[str]) -> str:
        """The text of a test whether a module, of which `path` and `name` are known, is one of some: as far as can be,
        whatever number of layers there are."""
        names: dict[str, None] = {}
        of_class: dict[str, None] = {}
        single: dict[str, None] = {}
        last = False
        for star, chosen in by_star(paths).items():
            alike = self.alike.get(star, chosen)
            if len(chosen) == len(alike):
                names[star] = None
                continue
            kinds = {path: self._class(path) for path in alike}
            for cls in dict.fromkeys(kinds[path] for path in chosen):
                mine = [path for path in chosen if kinds[path] == cls]
                if cls and sum(kind == cls for kind in kinds.values()) == len(mine):
                    of_class[f'name == "{star}" and isinstance(module, {cls})'] = None
                    continue
                for path in mine:
                    stack, _, number = path.rpartition(".")
                    if stack.isidentifier() and number != "0" and path == alike[-1]:
                        self.ends[stack], last = None, True
                    else:
                        single[path] = None
        tests = [among("name", names)] if names else []
        tests += [among("path", single)] if single else []
        tests += ["path in last"] if last else []
        tests += [f"({test})" for test in of_class] if tests or len(of_class) > 1 else of_class
        return " or ".join(tests)

    def _class(self, path: str) -> str:
        block = self.spread.modules.get(path)
        return self.classes[block].name if block is not None and block in self.classes else ""


def _style(of: Mapping[int, tuple[Change, int]], count: int) -> str:
    """What is done about a module's results, as torch says it."""

    def layouts(parts: bool) -> str:
        found = []
        for i in range(count):
            change, axis = of.get(i, (None, 0))
            found.append(
                "None" if change is None else f"Shard({axis})" if parts == (change == "divide") else "Replicate()"
            )
        return found[0] if count == 1 else f"({', '.join(found)})"

    plain = ", use_local_output=False" if count == 1 and of[0][0] == "hand" else ""
    return f"PrepareModuleOutput(output_layouts={layouts(False)}, desired_output_layouts={layouts(True)}{plain})"


def by_star(paths: Iterable[str]) -> dict[str, list[str]]:
    """Paths by what they are with `*` for numbers of layers."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(starred(path), []).append(path)
    return found


def among(what: str, paths: Collection[str]) -> str:
    """The text of a test whether something is one of some paths."""
    listed = ", ".join(f'"{path}"' for path in paths)
    return f"{what} in ({listed})" if len(paths) > 1 else f"{what} == {listed}"
