"""The section `parallel`: one model over many devices, by torch's own means, as the placement of its weights says."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from archdsl.backends.torch.classes import Classes
from archdsl.backends.torch.features import Extras, Section, sequence_parallel
from archdsl.backends.torch.features.generate import Generate
from archdsl.backends.torch.features.sequence_parallel import among, starred
from archdsl.backends.torch.helpers import helpers
from archdsl.backends.torch.text import Scheduled
from archdsl.diagnostics import error
from archdsl.ir.weights import weights
from archdsl.passes.placement import sharding
from archdsl.passes.sequence_parallel import Spread, spread


def cut_maps(asked: str, doc: str, styles: str, plan: str, lookup: str, axis: str, whole: str, more: str) -> str:
    """The function for tensor parallelism."""
    return f'''
def cut_maps(model: nn.Module, mesh: DeviceMesh{asked}) -> None:
    """Tensor parallelism (Shoeybi et al., 2019): columns of maps, work on the parts, rows of maps.{doc}"""
{styles}    plan = {{
{plan}    }}
    found = {{}}
    for path, module in model.named_modules():
        name = re.sub(r"\\.\\d+", ".*", path)
        style = {lookup}
        if style is not None:
            size = module.weight.size({axis})
            if size % mesh.size() == 0:
                found[path] = style
{whole}{more}    parallelize_module(model, mesh, found)
'''.strip()


IN_PLACES = """ What is
    between two such is whole on each device, or, with `sequence_parallel`, some of its places."""

PLACES = "    places = Shard(1) if sequence_parallel else Replicate()\n"

WHOLE_WORDS = """            elif style is words:
                found[path] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=places)
"""

WHOLE_SCORES = """            elif style is scores:
                found[path] = PrepareModuleInput(
                    input_layouts=places, desired_input_layouts=Replicate(), use_local_output=True
                )
"""

SHARDS = """        if hasattr(module, "shards"):
            module.shards.cut(mesh, path)
"""


def refused(test: str) -> str:
    """What is done about a map that the devices cannot share equally."""
    return f"""            {test}:
                raise ValueError(f"{{path}}: {{mesh.size()}} devices cannot share {{size}} channels equally")
"""


def partly(test: str) -> str:
    """What is done about modules whose own weights are whole, and used for parts."""
    return f"""        if {test}:
            sum_gradients(module, mesh)
"""


def cut_experts(paths: str) -> str:
    """The function for expert parallelism."""
    return f'''
def cut_experts(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """Expert parallelism: each device has some of the experts, and gets all devices' rows for them."""
    found = []
    for path, module in model.named_modules():
        if re.sub(r"\\.\\d+", ".*", path) in ({paths},):
            count = next(module.parameters()).size(0)
            if count % mesh.size():
                raise ValueError(f"{{path}}: {{mesh.size()}} devices cannot share {{count}} experts equally")
            share_weights(module, mesh)
            module.forward = Exchange(module, count, mesh)
            found.append(module)
    return found
'''.strip()


def parallelize(model: str, asked: str, doc: str, kinds: str, axes: str, cuts: str, layers: str, end: str) -> str:
    """The function that brings it all together."""
    return f'''
def parallelize(model: {model}, mesh: DeviceMesh{asked}) -> {model}:
    """{doc}

    Every process builds the model with the same seed, or loads a checkpoint afterwards. Raises
    ValueError where devices cannot share something equally."""
    axes = mesh.mesh_dim_names or ()
    if "dp" not in axes or not set(axes) <= {{{kinds}}}:
        raise ValueError(f"the axes of a mesh are {axes}, not {{axes}}")
{cuts}{layers}{end}
'''.strip()


DATA = """    data = mesh["dp"]
"""

CUT_EXPERTS = """    if "ep" in axes:
        data = mesh["dp", "ep"]._flatten("data")
        for experts in cut_experts(model, mesh["ep"]):
            fully_shard(experts, mesh=mesh["dp"])
"""

CUT_PLACES = """        if sequence_parallel:
            cut_places(model, mesh["tp"])
"""


def cut_tensors(given: str) -> str:
    """The call for tensor parallelism."""
    return f"""    if "tp" in axes and mesh["tp"].size() > 1:
        cut_maps(model, mesh["tp"]{given})
"""


def wrapped(stack: str) -> str:
    """Weights of layers are cut over batches, layer by layer."""
    return f"""    for path, module in list(model.named_modules()):
        if re.fullmatch(r"{stack}\\.\\d+", path):
            fully_shard(module, mesh=data)
"""


def registered(steps: str) -> str:
    """Weights are put together for methods beside `forward`."""
    return f"""    fully_shard(model, mesh=data)
    for module in model.modules():  # which put their weights together for a step, too
        for name in ({steps},):
            if hasattr(module, name):
                register_fsdp_forward_method(module, name)
    return model"""


class Parallel(Section):
    """`parallelize(model, mesh)`.

    Raises ArchError E0530 where there is nothing that devices could share, E0531 beside the section `loss`."""

    def __init__(self, classes: Classes, extras: Extras, generate: Generate | None) -> None:
        self.classes, self.generate = classes, generate
        model = classes.model
        classes.sharding = self.sharding = sharding(model)
        self.spread = spread(model, self.sharding) if self.sharded else Spread()
        self.paths = {w.path: w.weight.kind for w in weights(model) if w.weight.trained}
        self.stacks = list(dict.fromkeys(stack for path in self.paths if (stack := stack_of(path))))
        if not self.stacks and not self.sharded:
            raise error(
                "E0530",
                f"`{model.name}` has neither a list of layers nor pairs of maps that devices could share",
                help="`fully_shard(model)` of `torch.distributed.fsdp` takes the emitted model as it is",
            )
        if "loss" in extras.sections:
            raise error(
                "E0531",
                "the features `parallel` and `loss` cannot be combined",
                help="write two files: their models have the same weights under the same names",
            )

    def settle(self) -> None:
        classes = {"AllToAll", "Exchange"} if self.experts else set()
        self.classes.taken |= classes | ({"SumGradients"} if self._uses_partly else set())

    # --- what it adds ---

    def functions(self, forward: Scheduled) -> Iterable[str]:
        known = helpers()
        if self._uses_partly:
            if not self._has_shards:
                yield known["SumGradients"].source
            yield known["sum_gradients"].source
        if self.experts:
            yield from (known[name].source for name in ("share_weights", "AllToAll", "Exchange"))
        if self.sharded:
            yield self._cut_maps()
        if self.spread.maps:
            if self.steps:
                yield known["no_step"].source
            yield from sequence_parallel.functions(self.spread, self.classes.by_block)
        if self.experts:
            yield cut_experts(_listed(self.experts))
        yield self._parallelize()

    @property
    def sharded(self) -> bool:
        """Whether anything is cut over devices of tensor parallelism."""
        return any(p.kind in ("column", "row", "vocab") for p in self.sharding.placements.values())

    @property
    def _uses_partly(self) -> bool:
        """Whether modules use their own weights, whole, for parts of the work."""
        return bool(self.sharding.partial or self.spread.shared)

    @property
    def _asked(self) -> str:
        """The parameter that asks for sequence parallelism, where there is something to be cut."""
        return ", sequence_parallel: bool = False" if self.spread.maps else ""

    @property
    def _given(self) -> str:
        """The argument for it."""
        return ", sequence_parallel" if self.spread.maps else ""

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the model's step, and of its blocks', where the file has the section `generate`."""
        return () if self.generate is None else self.generate.names

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

    def _cut_maps(self) -> str:
        plan, made = self._plan(), self._styles()
        used = list(dict.fromkeys(plan.values()))
        numbered = any(step.isdigit() for path in plan for step in path.split("."))
        rows = [style for style in ("row", "whole_row") if style in used]
        axis = f"1 if style {f'is {rows[0]}' if len(rows) == 1 else 'in (row, whole_row)'} else 0" if rows else "0"
        in_places = bool(self.spread.maps)
        more = SHARDS if self._has_shards else ""
        if self.sharding.partial:
            paths = dict.fromkeys(starred(p.rpartition(".")[0]) for p in self.sharding.partial)
            more += partly(among("name", paths))
        return cut_maps(
            asked=", sequence_parallel: bool" if in_places else "",
            doc=IN_PLACES if in_places else "",
            styles=PLACES * in_places + "".join(f"    {style} = {made[style]}\n" for style in made if style in used),
            plan="".join(f'        "{path}": {style},\n' for path, style in plan.items()),
            lookup="plan.get(path) or plan.get(name)" if numbered else "plan.get(name)",
            axis=axis,
            whole=self._undivided(used),
            more=more,
        )

    def _undivided(self, used: Sequence[str]) -> str:
        """What is done about a map that the devices cannot share equally: words stay whole on each, the rest cannot."""
        words = [style for style in used if style.endswith(("words", "scores"))]
        found = ""
        if self.spread.maps:
            found = WHOLE_WORDS * ("words" in used) + WHOLE_SCORES * ("scores" in used)
        if len(words) < len(used):
            left = [style for style in words if not self.spread.maps or style.startswith("whole_")]
            found += refused(f"elif style not in ({', '.join(left)}{',' * (len(left) == 1)})" if left else "else")
        return found

    @property
    def _has_shards(self) -> bool:
        return any("Shards" in c.lowered.helpers for c in self.classes.classes.values())

    # --- all together ---

    def _parallelize(self) -> str:
        kinds = ["dp"] + ["ep"] * bool(self.experts) + ["tp"] * self.sharded
        in_places = ", and with `sequence_parallel` what is between them along the sequence"
        says = {
            "dp": "`dp`: batches, over which weights, gradients and the optimizer's states are cut, too (FSDP);",
            "ep": "`ep`: batches, and experts;",
            "tp": "`tp`: heads, channels and words" + in_places * bool(self.spread.maps),
        }
        meaning = " ".join(says[k] for k in kinds).rstrip(";.") + "."
        text = (
            f"Spread a model over the devices of a mesh, in place. Its axes, of which `dp` is always there: {meaning}"
        )
        others = ", ".join(k for k in kinds if k != "dp")
        cuts = DATA + CUT_EXPERTS * bool(self.experts)
        if self.sharded:
            cuts += cut_tensors(self._given)
        if self.spread.maps:
            cuts += CUT_PLACES
            if self.steps:
                cuts += f"            model.{self.steps[0]} = no_step\n"
        stack = "|".join(map(re.escape, self.stacks))
        return parallelize(
            self.classes.root_class,
            self._asked,
            "\n    ".join(textwrap.wrap(text, 112)),
            _listed(kinds),
            f"dp and any of {others}" if others else "dp alone",
            cuts,
            wrapped(f"({stack})" if len(self.stacks) > 1 else stack) if self.stacks else "",
            registered(_listed(self.steps)) if self.steps else "    return fully_shard(model, mesh=data)",
        )


def stack_of(path: str) -> str:
    """The list of layers that a weight is of, by its path; '' where it is of none."""
    steps = path.split(".")
    numbers = [i for i, step in enumerate(steps[:-1]) if step.isdigit()]
    return ".".join(steps[: numbers[0]]) if numbers else ""


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(f'"{text}"' for text in texts)
