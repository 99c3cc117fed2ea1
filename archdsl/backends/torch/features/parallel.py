"""The section `parallel`: `parallelize(model, mesh)` by torch's own means, with the plan that the placement of the
weights gives."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from archdsl.backends.torch.classes import Classes
from archdsl.backends.torch.features import Extras, Section
from archdsl.backends.torch.features.generate import Generate
from archdsl.backends.torch.helpers import helpers
from archdsl.backends.torch.numbers import Numbers
from archdsl.backends.torch.python import WIDTH, any_of, field_name
from archdsl.backends.torch.text import Scheduled
from archdsl.backends.torch.tree import Part, PyNode, leaves, nodes, py, unparse, word
from archdsl.diagnostics import error
from archdsl.ir.dims import Num, expr_text, free_names
from archdsl.ir.graph import OpNode
from archdsl.ir.paths import layer_of, starred
from archdsl.ir.weights import weights
from archdsl.passes.flatten import FlatOp, Unrolled, flatten, unroll, walk, weights_read
from archdsl.passes.partition import partition, sharded

AXES = {
    "dp": "`dp` splits batches, and with them weights, gradients and optimizer states (FSDP)",
    "tp": "`tp`, if it is there, splits heads and channels (Shoeybi et al., 2019)",
    "ep": "`ep`, if it is there, splits batches and experts (Lepikhin et al., 2020)",
}
"""What each axis of a mesh is for."""

ENTRY = "entry"
"""The local that holds the style of norms that several sharded linear layers read."""


class Parallel(Section):
    """`parallelize(model, mesh)`.

    Raises ArchError E0530 where there is nothing to shard."""

    reads_config = True

    def __init__(self, classes: Classes, generate: Generate | None) -> None:
        super().__init__(classes)
        self.model, self.generate = classes.model, generate
        self.weights = {w.path: w.weight.kind for w in weights(self.model)}
        self.plan = partition(self.model)
        classes.divided = self.plan.divided
        self.sharded = sharded(flatten(self.model), self.plan.placements)
        self.stacks = list(dict.fromkeys(stack for path in self.modules if (stack := layer_of(path)[0])))
        self.styles = self._styles()
        classes.hooks = bool(self.styles)
        if not self.stacks and not self.styles and not self.plan.divided:
            raise error(
                "E0530",
                f"`{self.model.name}` has neither a list of layers nor pairs of linear layers that devices could share",
                help="`fully_shard(model)` of `torch.distributed.fsdp` takes the emitted model as it is",
            )

    @classmethod
    def of(cls, classes: Classes, extras: Extras, before: Sequence[Section]) -> Parallel:
        return cls(classes, next((s for s in before if isinstance(s, Generate)), None))

    def functions(self, forward: Scheduled) -> Iterable[str]:
        experts = self._experts()
        if experts:
            yield helpers()["exchange_rows"].source
            yield helpers()["shard_experts"].source
        axes = ["dp", *["ep"] * bool(experts), *["tp"] * bool(self.styles or self.plan.divided)]
        known = ", ".join(f'"{axis}"' for axis in axes)
        refused = f"the axes of the mesh must be among {', '.join(axes)}"
        body = [f'assert {{{known}}}.issuperset(mesh.mesh_dim_names or ()), "{refused}"']
        data = "data" if experts else 'mesh["dp"]'
        body += [*self._tensor_parallel(), *self._expert_parallel(experts)]
        if stacks := self._gathered():
            listed = [f"model.{stack}" for stack in stacks]
            over = listed[0] if len(listed) == 1 else f"({', '.join(f'*{blocks}' for blocks in listed)})"
            body += [f"for block in {over}:", f"    fully_shard(block, mesh={data})"]
        body.append(f"fully_shard(model, mesh={data})")
        for name in self.generate.names if self.generate is not None else ():  # steps gather sharded weights, too
            body += ["for module in model.modules():", f'    if hasattr(module, "{name}"):']
            body.append(f'        register_fsdp_forward_method(module, "{name}")')
        said = f"Shard a model in place over the axes of a mesh: {'; '.join(AXES[a] for a in axes)}."
        doc = textwrap.fill(f'"""{said}"""', WIDTH - 4)
        name = self.classes.root_class
        head = f"def parallelize(model: {name}, mesh: DeviceMesh) -> {name}:"
        yield "\n".join([head, *(f"    {line}" for line in [doc, *body, "return model"])])

    def _gathered(self) -> list[str]:
        """The lists of which each layer gathers its weights, which it does when it is called. Where a method reads the
        weights of primitives itself, the model gathers them."""
        ops = {i.path.rpartition(".")[0] for i in weights(self.model) if isinstance(i.node, OpNode)}
        read: set[str] = set()
        for method in (m for made in self.classes.classes.values() for m in made.methods):
            code = (method.steps, method.results)
            called = Counter(n.fields[0] for n in nodes(code) if n.kind == "Call" and isinstance(n.fields[0], Part))
            named = Counter(x for x in leaves(code) if isinstance(x, Part))
            read |= {part.name for part in named - called}
        bare = {stack for stack, _, rest in map(layer_of, ops) if not rest and stack.rpartition(".")[2] in read}
        return [stack for stack in self.stacks if stack not in bare]

    # --- experts ---

    def _experts(self) -> dict[str, dict[str, int]]:
        """The classes of experts, each with the axes of weights that are sharded over `tp`, by their paths in it."""
        found: dict[str, dict[str, int]] = {}
        for op in (n for n in walk(unroll(self.model)[0]) if isinstance(n, FlatOp)):
            for name, call in op.node.blocks.items():
                placed = {path: self.plan.placements[path].hidden for path in weights_read(op.blocks[name])}
                hidden = {p.removeprefix(f"{op.path}."): axis for p, axis in placed.items() if axis is not None}
                found.setdefault(self.classes.by_block[call.block].name, hidden)
        return found

    def _expert_parallel(self, experts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
        if not experts:
            return
        yield 'data = mesh["dp"]'
        yield 'if "ep" in (mesh.mesh_dim_names or ()):'
        yield '    data = mesh["dp", "ep"]._flatten("data")'
        alike: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for name, hidden in experts.items():
            alike.setdefault(tuple(hidden.items()), []).append(name)
        for axes, names in alike.items():
            over = '"ep", "tp"' if axes else '"ep",'
            yield f"if shared := tuple(axis for axis in ({over}) if axis in (mesh.mesh_dim_names or ())):"
            yield "    for module in model.modules():"
            yield f"        if isinstance(module, {any_of(names)}):"
            yield f"            shard_experts(module, mesh[shared], {dict_of({p: str(n) for p, n in axes})})"
            yield '            if "ep" in shared:'
            yield '                fully_shard(module, mesh=mesh["dp"])'

    # --- heads and channels ---

    def _tensor_parallel(self) -> Iterator[str]:
        if not self.styles and not self.plan.divided:
            return
        plan, of_classes = self._plan()
        yield 'if "tp" in (mesh.mesh_dim_names or ()):'
        yield '    tp = mesh["tp"]'
        yield from (f"    {line}" for line in self._asserts())
        if ENTRY in self.styles.values():
            yield f"    {ENTRY} = PrepareModuleOutput("
            yield "        output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False"
            yield "    )  # its readers' gradients are summed, then all-reduced once"
        if plan:
            yield f"    plan = {dict_of(plan)}"
            yield "    parallelize_module(model, tp, plan)"
        if of_classes:
            yield "    for module in model.modules():"
        for keyword, (name, own) in zip(("if", *["elif"] * len(of_classes)), of_classes.items(), strict=False):
            yield f"        {keyword} isinstance(module, {name}):"
            yield f"            parallelize_module(module, tp, {dict_of(own)})"

    def _asserts(self) -> Iterator[str]:
        """What the number of ranks has to divide: fields of the Config where it is made of them."""
        numbers, fields = Numbers(self.model.block), self.classes.config

        def field(name: str) -> PyNode:
            return PyNode("Attribute", (PyNode("Attribute", (word("model"), "config")), field_name(name)))

        def line(group: str, size: Num) -> str:
            names = free_names(size.expr)
            if names and {*names} <= fields.keys():
                tree, said = numbers.spelled_by(size.expr, "whole", field), expr_text(size.expr)
            else:
                tree, said = py("{n}", n=int(size)), f"{starred(group)}: {int(size)}"
            test = unparse(py("{n} % tp.size() == 0", n=tree), str)
            return f'assert {test}, "{said} must be a multiple of the axis tp"'

        return iter(dict.fromkeys(line(group, size) for group, size in self.plan.sizes))

    @property
    def modules(self) -> dict[str, None]:
        """The paths of modules that have weights of their own."""
        return dict.fromkeys(path.rpartition(".")[0] for path in self.weights)

    def _styles(self) -> dict[str, str]:
        """The style of each module that is sharded, by its path."""
        found = {}
        for path, kind in self.weights.items():
            placement, module = self.plan.placements[path], path.rpartition(".")[0]
            if placement.kind == "column":
                found[module] = "ColwiseParallel()"
            elif placement.kind == "row":
                found[module] = "RowwiseParallel()"
            elif placement.kind == "vocab" and kind == "embedding":
                found[module] = "RowwiseParallel(input_layouts=Replicate())"
            elif placement.kind == "vocab":
                found[module] = "ColwiseParallel(output_layouts=Replicate())"
            elif path in self.sharded.partial:
                axis = self.sharded.partial[path][1]
                found[module] = f"SequenceParallel(sequence_dim={axis}, use_local_output=True)"
            elif module in self.sharded.entries:
                found[module] = ENTRY
        return found

    def _plan(self) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        """Return the styles by path, with `*` for the number of a layer where all layers agree; and those of parts of
        modules by the class of the module, where all of a class agree."""
        classes = dict(self._modules(unroll(self.model)[1]))
        alike: dict[str, list[str]] = {}
        layers: dict[str, set[int]] = {}
        for path in self.modules:
            alike.setdefault(starred(path), []).append(path)
            layers.setdefault(layer_of(path)[0], set()).add(layer_of(path)[1])
        plan: dict[str, str] = {}
        of_classes: dict[str, dict[str, str]] = {}
        apart: list[str] = []
        for path, paths in alike.items():
            styles = {self.styles.get(p, "") for p in paths}
            if len(styles) == 1 and {layer_of(p)[1] for p in paths} == layers[layer_of(paths[0])[0]]:
                plan |= dict.fromkeys([path], styles.pop()) if styles != {""} else {}
            else:
                apart += [p for p in paths if p in self.styles]
        for path in apart:
            around, _, part = path.rpartition(".")
            parts = {f"{other}.{part}" for other, name in classes.items() if name == classes.get(around)}
            also = {starred(p) for p in parts} & plan.keys()  # of the class, too: it is said once
            if {self.styles.get(p) for p in parts} == {self.styles[path]} and parts >= {
                p for a in also for p in alike[a]
            }:
                of_classes.setdefault(classes[around], {})[part] = self.styles[path]
                plan = {p: style for p, style in plan.items() if p not in also}
            else:
                plan[path] = self.styles[path]
        return plan, of_classes

    def _modules(self, unrolled: Unrolled) -> Iterator[tuple[str, str]]:
        """Yield the path and the class of each block."""
        for calls in unrolled.calls.values():
            for call in calls:
                if call.block in self.classes.by_block:  # of a scan, a part may be of no class
                    yield call.path, self.classes.by_block[call.block].name
                yield from self._modules(call)


def dict_of(plan: Mapping[str, str]) -> str:
    """Format a plan."""
    return "{" + ", ".join(f'"{path}": {style}' for path, style in plan.items()) + "}"
