"""The section `parallel`: one model over many devices, by torch's own means, as the placement of its weights says."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from archdsl.analyses.placement import sharding
from archdsl.analyses.sequence import Spread, spread
from archdsl.analyses.weights import weights
from archdsl.diagnostics import error
from archdsl.ir.graph import Model
from archdsl.lower.torch import places
from archdsl.lower.torch.extras import Section
from archdsl.lower.torch.generate import Generate
from archdsl.lower.torch.shards import SUM_GRADIENTS, USES_PARTLY
from archdsl.lower.torch.text import starred

if TYPE_CHECKING:
    from archdsl.lower.torch.file import FileWriter

SHARE_WEIGHTS = '''
def share_weights(module: nn.Module, mesh: DeviceMesh) -> None:
    """Share out the weights of experts over a mesh. They go on computing with plain tensors, those of this device."""

    def named() -> list[tuple[nn.Module, str, Tensor]]:
        return [(part, *item) for part in module.modules() for item in part.named_parameters(recurse=False)]

    def enter(*_: Any) -> None:
        for part, name, weight in named():
            if isinstance(weight, DTensor):
                local = weight.to_local()
                if local.requires_grad:  # all devices' batches came here, and a loss is the mean of theirs
                    local.register_hook(lambda gradient: gradient / mesh.size())
                vars(part)[name] = local

    def leave(*_: Any) -> None:
        for part, name, _weight in named():
            vars(part).pop(name, None)

    for part, name, weight in named():
        part.register_parameter(name, nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)])))
    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)
'''

EXCHANGE = '''
class Exchange:
    """Experts of which each device has some: rows go to the device that has theirs, and the answers come back."""

    def __init__(self, experts: nn.Module, count: int, mesh: DeviceMesh) -> None:
        self.experts, self.count = experts.forward, count
        self.group, self.devices = mesh.get_group(), mesh.size()

    def __call__(self, rows: Tensor, groups: Groups) -> Tensor:
        sent = torch.bincount(groups.expert, minlength=self.count)  # rows for each expert
        came = torch.empty_like(sent)  # rows for each expert here, from one device after the other
        dist.all_to_all_single(came, sent, group=self.group)
        there, here = sent.view(self.devices, -1).sum(1).tolist(), came.view(self.devices, -1).sum(1).tolist()
        x = AllToAll.apply(rows, there, here, self.group)
        local = torch.arange(self.count // self.devices, device=rows.device).repeat(self.devices)
        expert, order = local.repeat_interleave(came).sort(stable=True)
        ends = came.view(self.devices, -1).sum(0).cumsum(0).to(torch.int32)
        y = self.experts(x[order], Groups(ends, expert))
        y = torch.zeros_like(y).index_copy(0, order, y)
        return AllToAll.apply(y, here, there, self.group)
'''

ALL_TO_ALL = '''
class AllToAll(torch.autograd.Function):
    """Rows to other devices: `there` of them to each, `here` of them from each."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: list[int], here: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.there, ctx.here, ctx.group = there, here, group
        found = rows.new_empty(sum(here), *rows.shape[1:])
        dist.all_to_all_single(found, rows.contiguous(), here, there, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return AllToAll.apply(gradient, ctx.here, ctx.there, ctx.group), None, None, None
'''

PIPELINE = '''
class Pipeline:
    """A schedule of micro-batches (1F1B) through the stages of one model."""

    def __init__(
        self, stage: Stage, mesh: DeviceMesh, micro_batches: int, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        self.stage, self.mesh = stage, mesh["pp"]
        count, index = self.mesh.size(), self.mesh.get_local_rank()
        device = torch.device(mesh.device_type)
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        steps = PipelineStage(stage, index, count, device, group=self.mesh.get_group())
        self.schedule = Schedule1F1B(steps, micro_batches, loss)

    def step(self, @ARGUMENTS@, target: Tensor) -> Tensor:
        """Forwards and backwards through a batch; the mean loss, on every device of the pipeline."""
        losses: list[Tensor] = []
        first = (@FIRST@,) if self.stage.is_first else ()
        target = target if self.stage.is_last else None
        self.schedule.step(*first, target=target, losses=losses if self.stage.is_last else None, @KEYWORDS@)
@TIED@        mean = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=@FIRST@.device)
        dist.all_reduce(mean, group=self.mesh.get_group())
        return mean
'''

TIED = '''
    def sum_tied(self) -> None:
        """The first and the last stage have a weight in common: the gradient is the sum of both."""
        if self.mesh.size() == 1 or not (self.stage.is_first or self.stage.is_last):
            return
        ranks = dist.get_process_group_ranks(self.mesh.get_group())
        other = ranks[-1] if self.stage.is_first else ranks[0]
        for path in self.stage.tied:
            gradient = self.stage.get_parameter(path).grad
            gradient = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            received = torch.empty_like(gradient)
            group = self.mesh.get_group()
            send = dist.P2POp(dist.isend, gradient.clone(), other, group)
            receive = dist.P2POp(dist.irecv, received, other, group)
            for work in dist.batch_isend_irecv([send, receive]):
                work.wait()
            gradient += received
'''


NO_STEP = """
def no_step(*_: Any, **__: Any) -> Tensor:
    raise ValueError("a step is one place, which devices cannot share: parallelize without `sequence_parallel`")
"""


class Parallel(Section):
    """`parallelize(model, mesh)`, and where the model is one stack of layers, `pipeline(model, mesh, …)`."""

    def __init__(self, writer: FileWriter) -> None:
        self.writer = writer
        self.model: Model = writer.model
        writer.classes.sharding = self.sharding = sharding(writer.model)
        self.spread = spread(writer.model, self.sharding) if self.sharded else Spread()
        self.paths = {w.path: w.weight.kind for w in weights(writer.model) if w.weight.trained}
        self.stacks = list(dict.fromkeys(m[1] for p in self.paths if (m := re.match(r"([^\d]*?)\.\d+\.", p))))
        if not self.stacks and not self.sharded:
            raise error(
                "E0530",
                f"`{writer.model.name}` has neither a list of layers nor pairs of maps that devices could share",
                help="`fully_shard(model)` of `torch.distributed.fsdp` takes the emitted model as it is",
            )
        if "loss" in writer.extras.sections:
            raise error(
                "E0531",
                "the sections `parallel` and `loss` do not stand in one file",
                help="write two files: their models have the same weights under the same names",
            )

    # --- what it adds ---

    def functions(self) -> Iterable[str]:
        if self.sharding.partial or self.spread.shared:
            if not any("SumGradients" in w.helpers for w in self.writer.classes.written()):
                yield SUM_GRADIENTS
            yield USES_PARTLY
        if self.experts:
            yield SHARE_WEIGHTS
            yield ALL_TO_ALL
            yield EXCHANGE
        if self.sharded:
            yield self._tensor_parallel()
        stage = _Stage(self)
        if self.spread.maps and self.steps:
            yield NO_STEP
        if self.spread.maps:
            yield from places.texts(self.spread, self.writer.classes.by_block, stage.possible)
        if self.experts:
            yield self._expert_parallel()
        yield self._parallelize(stage.possible)
        if stage.possible:
            yield from stage.texts()

    @property
    def sharded(self) -> bool:
        """Whether anything is cut over devices of tensor parallelism."""
        return any(p.kind in ("column", "row", "vocab") for p in self.sharding.placements.values())

    @property
    def asked(self) -> str:
        """The parameter that asks for sequence parallelism, where there is something to be cut."""
        return ", sequence_parallel: bool = False" if self.spread.maps else ""

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the model's step, and of its blocks', where the file has the section `generate`."""
        found = (s.names for s in self.writer.sections if isinstance(s, Generate))
        return next(found, ())

    @property
    def experts(self) -> list[str]:
        """Paths of experts."""
        return list(dict.fromkeys(starred(p.group) for p in self.sharding.placements.values() if p.kind == "expert"))

    # --- tensor parallelism ---

    def _plan(self) -> dict[str, str]:
        """The style of each map, by its path, `*` for the number of a layer where all layers agree."""
        styles: dict[str, str] = {}
        for path, kind in self.paths.items():
            placement = self.sharding.placements.get(path)
            module = path.rpartition(".")[0]
            if placement is None or placement.kind in ("replicated", "expert"):
                styles.setdefault(module, "")
                continue
            style: str = placement.kind
            if style == "vocab":
                style = "words" if kind == "embedding" else "scores"
            if self.spread.maps and (module in self.spread.maps) == (style == "column"):
                style = "gathering" if style == "column" else f"whole_{style}"
            styles[module] = style
        alike: dict[str, set[str]] = {}
        for module, style in styles.items():
            alike.setdefault(starred(module), set()).add(style)
        plan: dict[str, str] = {}
        for module, style in styles.items():
            if style:
                plan[starred(module) if len(alike[starred(module)]) == 1 else module] = style
        return plan

    def _styles(self) -> dict[str, str]:
        """What each style is, as torch writes it."""
        made = {
            "column": "ColwiseParallel()",
            "row": "RowwiseParallel()",
            "words": "RowwiseParallel(input_layouts=Replicate())",
            "scores": "ColwiseParallel(output_layouts=Replicate())",
        }
        if not self.spread.maps:
            return made
        return {
            "column": made["column"],
            "gathering": "ColwiseParallel(input_layouts=places)",
            "row": "RowwiseParallel(output_layouts=places)",
            "whole_row": made["row"],
            "words": "RowwiseParallel(input_layouts=Replicate(), output_layouts=places)",
            "whole_words": made["words"],
            "scores": "ColwiseParallel(input_layouts=places, output_layouts=Replicate())",
            "whole_scores": made["scores"],
        }

    def _tensor_parallel(self) -> str:
        plan, made = self._plan(), self._styles()
        used = list(dict.fromkeys(plan.values()))
        entries = "\n".join(f'    "{path}": {style},' for path, style in plan.items())
        lookup = "plan.get(name)"
        if any(re.search(r"\.\d+", path) for path in plan):
            lookup = f"plan.get(path) or {lookup}"
        in_places = bool(self.spread.maps)
        doc = "Tensor parallelism (Shoeybi et al., 2019): columns of maps, work on the parts, rows of maps."
        lines = ["def cut_maps(model: nn.Module, mesh: DeviceMesh) -> None:", f'    """{doc}"""']
        if in_places:
            lines = [
                "def cut_maps(model: nn.Module, mesh: DeviceMesh, sequence_parallel: bool) -> None:",
                f'    """{doc} What is',
                '    between two such is whole on each device, or, with `sequence_parallel`, some of its places."""',
                "    places = Shard(1) if sequence_parallel else Replicate()",
            ]
        lines += [
            *(f"    {style} = {made[style]}" for style in made if style in used),
            "    plan = {",
            textwrap.indent(entries, "    "),
            "    }",
            "    found = {}",
            "    for path, module in model.named_modules():",
            '        name = re.sub(r"\\.\\d+", ".*", path)',
            f"        style = {lookup}",
            "        if style is not None:",
        ]
        rows = [style for style in ("row", "whole_row") if style in used]
        axis = f"1 if style {f'is {rows[0]}' if len(rows) == 1 else 'in (row, whole_row)'} else 0" if rows else "0"
        lines += [
            f"            size = module.weight.size({axis})",
            "            if size % mesh.size() == 0:",
            "                found[path] = style",
            *self._undivided(used),
        ]
        if self._has_shards():
            lines.append('        if hasattr(module, "shards"):')
            lines.append("            module.shards.cut(mesh, path)")
        if self.sharding.partial:
            partly = dict.fromkeys(starred(p.rpartition(".")[0]) for p in self.sharding.partial)
            lines += [f"        if {places.among('name', partly)}:", "            sum_gradients(module, mesh)"]
        lines.append("    parallelize_module(model, mesh, found)")
        return "\n".join(lines)

    def _undivided(self, used: Sequence[str]) -> Iterator[str]:
        """What is done about a map that the devices cannot share equally: words stay whole on each, the rest cannot."""
        words = [style for style in used if style.endswith(("words", "scores"))]
        if self.spread.maps:
            if "words" in used:
                layouts = "output_layouts=Replicate(), desired_output_layouts=places"
                yield "            elif style is words:"
                yield f"                found[path] = PrepareModuleOutput({layouts})"
            if "scores" in used:
                layouts = "input_layouts=places, desired_input_layouts=Replicate(), use_local_output=True"
                yield "            elif style is scores:"
                yield f"                found[path] = PrepareModuleInput({layouts})"
        if len(words) < len(used):
            left = [style for style in words if not self.spread.maps or style.startswith("whole_")]
            test = f"elif style not in ({', '.join(left)}{',' * (len(left) == 1)}):" if left else "else:"
            message = "{path}: {mesh.size()} devices cannot share {size} channels equally"
            yield f"            {test}"
            yield f'                raise ValueError(f"{message}")'

    def _has_shards(self) -> bool:
        return any("Shards" in w.helpers for w in self.writer.classes.written())

    # --- experts ---

    def _expert_parallel(self) -> str:
        tests = ", ".join(f'"{path}"' for path in self.experts)
        return f'''
def cut_experts(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """Expert parallelism: each device has some of the experts, and gets all devices' rows for them."""
    found = []
    for path, module in model.named_modules():
        if re.sub(r"\\.\\d+", ".*", path) in ({tests},):
            count = next(module.parameters()).size(0)
            if count % mesh.size():
                raise ValueError(f"{{path}}: {{mesh.size()}} devices cannot share {{count}} experts equally")
            share_weights(module, mesh)
            module.forward = Exchange(module, count, mesh)
            found.append(module)
    return found
'''

    # --- all together ---

    def _parallelize(self, stages: bool) -> str:
        cls = self.writer.classes.root_class
        kinds = ["pp"] * stages + ["dp"] + ["ep"] * bool(self.experts) + ["tp"] * self.sharded
        says = {
            "pp": "`pp`: stages of layers, see `pipeline`;",
            "dp": "`dp`: batches, over which weights, gradients and the optimizer's states are cut, too (FSDP);",
            "ep": "`ep`: batches, and experts;",
            "tp": "`tp`: heads, channels and words"
            + ", and with `sequence_parallel` what is between them along the sequence" * bool(self.spread.maps),
        }
        meaning = " ".join(says[k] for k in kinds).rstrip(";.") + "."
        doc = textwrap.fill(
            f"Spread a model over the devices of a mesh, in place. Its axes, of which `dp` is always there: {meaning}",
            112,
        )
        quoted = ", ".join(f'"{k}"' for k in kinds)
        others = ", ".join(k for k in kinds if k != "dp")
        of_mesh = f"dp and any of {others}" if others else "dp alone"
        lines = [
            f"def parallelize(model: {cls}, mesh: DeviceMesh{self.asked}) -> {cls}:",
            textwrap.indent(f'"""{doc}', "    "),
            "",
            "    Every process builds the model with the same seed, or loads a checkpoint afterwards. Raises",
            '    ValueError where devices cannot share something equally."""',
            "    axes = mesh.mesh_dim_names or ()",
            f'    if "dp" not in axes or not set(axes) <= {{{quoted}}}:',
            f'        raise ValueError(f"the axes of a mesh are {of_mesh}, not {{axes}}")',
        ]
        if stages:
            lines += [
                '    if "pp" in axes and mesh["pp"].size() > 1 and not isinstance(model, Stage):',
                '        raise ValueError("a mesh with an axis `pp` is one for `pipeline`")',
            ]
        if self.experts:
            lines += [
                '    data = mesh["dp"]',
                '    if "ep" in axes:',
                '        data = mesh["dp", "ep"]._flatten("data")',
                '        for experts in cut_experts(model, mesh["ep"]):',
                '            fully_shard(experts, mesh=mesh["dp"])',
            ]
        else:
            lines.append('    data = mesh["dp"]')
        if self.sharded:
            given = ", sequence_parallel" if self.spread.maps else ""
            lines += ['    if "tp" in axes and mesh["tp"].size() > 1:', f'        cut_maps(model, mesh["tp"]{given})']
        if self.spread.maps:
            lines += ["        if sequence_parallel:", '            cut_places(model, mesh["tp"])']
            if self.steps:
                lines.append(f"            model.{self.steps[0]} = no_step")
        stack = "|".join(re.escape(s) for s in self.stacks)
        stack = f"({stack})" if len(self.stacks) > 1 else stack
        if self.stacks:
            lines += [
                "    for path, module in list(model.named_modules()):",
                f'        if re.fullmatch(r"{stack}\\.\\d+", path):',
                "            fully_shard(module, mesh=data)",
            ]
        if not self.steps:
            return "\n".join([*lines, "    return fully_shard(model, mesh=data)"])
        lines += [
            "    fully_shard(model, mesh=data)",
            "    for module in model.modules():  # which put their weights together for a step, too",
            f"        for name in {self.steps!r}:".replace("'", '"'),
            "            if hasattr(module, name):",
            "                register_fsdp_forward_method(module, name)",
            "    return model",
        ]
        return "\n".join(lines)


class _Stage:
    """The model's `forward`, cut before and behind its one stack of layers: read off the text of the class."""

    def __init__(self, section: Parallel) -> None:
        self.section = section
        self.paths = section.paths
        self.possible = False
        text = textwrap.dedent("\n".join(section.writer.root_forward()))
        self.lines = text.splitlines()
        tree = ast.parse(text).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self.method = tree
        loops = [i for i, s in enumerate(tree.body) if isinstance(s, ast.For)]
        if len(loops) != 1:
            return
        at = loops[0]
        loop = tree.body[at]
        assert isinstance(loop, ast.For)
        over = ast.unparse(loop.iter)
        stack = re.fullmatch(r"(?:zip\()?self\.(\w+)(, .*\))?", over, re.DOTALL)
        period = re.fullmatch(r"zip\(self\.(\w+)\[::(\d+)\](, self\.\1\[\d+::\2\])*\)", over)
        stack = stack or period
        if stack is None or section.stacks != [stack[1]]:
            return
        self.stack, self.loop = stack[1], loop
        self.period = 1 if period is None else int(period[2])
        self.zipped = period is None and stack[2] is not None
        carried = written([loop]) - written([loop.target])
        if len(carried) != 1:
            return
        (self.carried,) = carried
        self.before, self.after = tree.body[:at], tree.body[at + 1 :]
        inputs = [a.arg for a in tree.args.args[1:]]
        self.optional = inputs[len(inputs) - len(tree.args.defaults) :]
        self.inputs = [name for name in inputs if name not in self.optional]
        # What the layers, or the end, need beside what is carried: each stage makes it of the model's inputs.
        needed = (read([loop]) | read(self.after)) - {self.carried}
        everywhere: list[ast.stmt] = []
        for statement in reversed(self.before):
            if isinstance(statement, ast.Assert) or written([statement]) & needed:
                everywhere.append(statement)
                needed |= read([statement])
        self.everywhere = everywhere[::-1]
        self.beginning = [s for s in self.before if s not in everywhere]
        if self.carried in written(self.everywhere) | read(self.everywhere):
            return
        # A weight of what every stage makes would have to be on every stage.
        if any(self._weighs(name) for name in attributes(self.everywhere)):
            return
        self.possible = True

    def _weighs(self, attribute: str) -> bool:
        return any(p == attribute or p.startswith(f"{attribute}.") for p in self.paths)

    def texts(self) -> Iterator[str]:
        yield self._class()
        tied = self._tied()
        arguments = ", ".join(f"{name}: Tensor" for name in self.inputs)
        text = PIPELINE.replace("@ARGUMENTS@", arguments).replace("@FIRST@", self.inputs[0])
        text = text.replace("@KEYWORDS@", ", ".join(f"{name}={name}" for name in self.inputs))
        text = text.replace("@TIED@", "        self.sum_tied()\n" if tied else "")
        if tied:
            text = text.rstrip() + "\n" + TIED
        yield text
        yield self._pipeline()

    def _tied(self) -> list[str]:
        both = attributes(self.beginning) & attributes(self.after)
        return [p for p in self.paths if p.partition(".")[0] in both]

    def _class(self) -> str:
        cls = self.section.writer.classes.root_class
        first, last, everywhere = attributes(self.beginning), attributes(self.after), attributes(self.everywhere)
        everywhere |= attributes([self.loop]) - {self.stack}
        made = self.section.writer.root_attributes()
        lines = [
            f"class Stage({cls}):",
            '    """Some of the layers, on one device of a pipeline. The first stage embeds; the last has the head."""',
            "",
            *([f"    tied = ({', '.join(map(repr_, self._tied()))},)", ""] if self._tied() else []),
            f"    def __init__(self, model: {cls}, index: int, count: int) -> None:",
            "        nn.Module.__init__(self)",
            "        self.is_first, self.is_last = index == 0, index == count - 1",
        ]
        groups: dict[str, list[str]] = {
            "": [],
            "self.is_first": [],
            "self.is_last": [],
            "self.is_first or self.is_last": [],
        }
        for name in made:
            if name == self.stack:
                continue
            if name in everywhere or name == "config":
                groups[""].append(name)
            elif name in first and name in last:
                groups["self.is_first or self.is_last"].append(name)
            elif name in last:
                groups["self.is_last"].append(name)
            else:
                groups["self.is_first"].append(name)
        own = [f"        self.{n} = model.{n}" for n in groups.pop("")]
        lines += own
        for condition, names in groups.items():
            if names:
                lines.append(f"        if {condition}:")
                lines += [f"            self.{n} = model.{n}" for n in names]
        lines += [
            f"        start, end = ({self._end()} for i in (index, index + 1))",
            *(["        self.start = start"] if self.zipped else []),
            f"        self.{self.stack} = nn.ModuleDict({{str(i): model.{self.stack}[i] for i in range(start, end)}})",
            "",
        ]
        parameters = [f"{n}: Tensor" for n in (self._given, *self.inputs)] + [f"{n}: Any = None" for n in self.optional]
        lines.append(f"    def forward(self, {', '.join(parameters)}) -> Tensor:")
        lines.append(
            f'        """`{self._given}` is from the stage before; the first reads the model\'s inputs instead."""'
        )
        body = [*self.everywhere]
        lines += self._statements(body, 2)
        lines.append("        if self.is_first:")
        lines += self._statements(self.beginning, 3)
        if self._given != self.carried:
            lines += ["        else:", f"            {self.carried} = {self._given}"]
        text = "\n".join(self._statements([self.loop], 2))
        if self.period > 1:
            lines.append(f"        {self.stack} = list(self.{self.stack}.values())")
            head, _, inner = text.partition(":\n")
            text = f"{head.replace(f'self.{self.stack}[', f'{self.stack}[')}:\n{inner}"
        if self.zipped:  # what differs from layer to layer is a list over all of them
            assert isinstance(self.loop.iter, ast.Call)
            lists = "".join(f", ({ast.unparse(a)})[self.start :]" for a in self.loop.iter.args[1:])
            inner = "\n".join(self._statements(self.loop.body, 3))
            text = f"        for {ast.unparse(self.loop.target)} in zip(self.{self.stack}.values(){lists}):\n{inner}"
        lines += text.replace(f"in self.{self.stack}:", f"in self.{self.stack}.values():", 1).splitlines()
        lines += ["        if not self.is_last:", f"            return {self.carried}"]
        lines += self._statements(self.after, 2)
        return "\n".join(lines)

    def _end(self) -> str:
        """Where stage i begins: groups of layers that take turns stay together."""
        if self.period == 1:
            return f"len(model.{self.stack}) * i // count"
        return f"{self.period} * (len(model.{self.stack}) // {self.period} * i // count)"

    def _statements(self, nodes: Sequence[ast.stmt], indent: int) -> list[str]:
        """Their lines as they stand in the model's own `forward`."""
        found = [line for node in nodes for line in self.lines[node.lineno - 1 : node.end_lineno]]
        return textwrap.indent(textwrap.dedent("\n".join(found)), "    " * indent).splitlines()

    @property
    def _given(self) -> str:
        return self.carried if self.carried not in self.inputs else f"{self.carried}_given"

    def _pipeline(self) -> str:
        cls = self.section.writer.classes.root_class
        given = ", sequence_parallel" if self.section.asked else ""
        return f'''
def pipeline(
    model: {cls}, mesh: DeviceMesh, micro_batches: int, loss: Callable[[Tensor, Tensor], Tensor]{self.section.asked}
) -> Pipeline:
    """Cut a model into stages along the axis `pp` of a mesh, and parallelize this device's over the other axes.

    `loss(output, target)` is a mean over a micro-batch; a batch is cut into `micro_batches`. Raises ValueError where
    there are fewer layers than stages, or fewer micro-batches."""
    stages, layers = mesh["pp"].size(), len(model.{self.stack}){f" // {self.period}" if self.period > 1 else ""}
    if layers < stages or micro_batches < stages:
        raise ValueError(f"{{stages}} stages need as many layers and micro-batches: {{layers}} and {{micro_batches}}")
    stage = parallelize(Stage(model, mesh["pp"].get_local_rank(), stages), mesh{given})
    return Pipeline(stage, mesh, micro_batches, loss)
'''


def repr_(text: str) -> str:
    return f'"{text}"'


def read(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that statements read."""
    return {
        n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    } - {"self"}


def written(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that statements bind."""
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def attributes(nodes: Sequence[ast.AST]) -> set[str]:
    """Attributes of `self` that statements read."""
    return {
        n.attr
        for node in nodes
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self"
    }
