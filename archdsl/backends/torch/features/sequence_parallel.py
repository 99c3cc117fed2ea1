"""Sequence parallelism in the section `parallel`: between maps that are cut, each device works on a part of the
places."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from archdsl.backends.torch.classes import Group
from archdsl.backends.torch.helpers import helpers
from archdsl.backends.torch.python import local_name
from archdsl.ir.graph import Block
from archdsl.passes.sequence_parallel import Change, Spread


def cut_places(before: str, hung: str, after: str, inputs: str) -> str:
    """The function that hangs on each module what is to be done about its tensors and weights."""
    return f'''
def cut_places(model: nn.Module, mesh: DeviceMesh) -> None:
    """Sequence parallelism (Korthikanti et al., 2022, section 4.2.2): between maps that are cut, each
    device works on its part of the places."""
{before}    for path, module in list(model.named_modules()):
        name = re.sub(r"\\.\\d+", ".*", path)
{hung}{after}
    def check(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        for i, name, axis in ({inputs},):
            size = (named[name] if name in named else inputs[i]).size(axis)
            if size % mesh.size():
                raise ValueError(f"{{name}}: {{mesh.size()}} devices cannot share {{size}} places equally")

    model.register_forward_pre_hook(check, with_kwargs=True)
'''.strip()


def functions(spread: Spread, classes: Mapping[Block, Group]) -> Iterator[str]:
    """The functions that a file has for it."""
    if spread.inputs:
        yield helpers()["lay_inputs"].source
    if spread.dropouts:
        yield helpers()["drop_places"].source
    yield _CutPlaces(spread, classes).text()


class _CutPlaces:
    """Writes the function that hangs on each module what is to be done about its tensors and weights."""

    def __init__(self, spread: Spread, classes: Mapping[Block, Group]) -> None:
        self.spread, self.classes = spread, classes
        self.alike = by_star(spread.modules)
        self.ends: dict[str, None] = {}
        """Stacks of whose last layer something is wanted."""

    def text(self) -> str:
        spread = self.spread
        hung = [*self._inputs(), *self._results()]
        hung += self._where(spread.shared, ["sum_gradients(module, mesh)"])
        drop = ["for dropout in module.children():", "    if isinstance(dropout, nn.Dropout):"]
        hung += self._where(spread.dropouts, [*drop, "        drop_places(dropout, mesh)"])
        before, after = [*self._ends()], []
        if spread.results:
            before.append("    found = {}")
            after.append("    parallelize_module(model, mesh, found)")
        inputs = ", ".join(f'({number}, "{local_name(name)}", {axis})' for name, number, axis in spread.lengths)
        return cut_places(_lines(before), _lines(f"        {line}" for line in hung), _lines(after), inputs)

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
            yield f"    last = [{made}]"

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


def starred(path: str) -> str:
    """A path with `*` for numbers of layers."""
    return ".".join("*" if step.isdigit() else step for step in path.split("."))


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


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
