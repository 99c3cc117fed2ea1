"""What `__init__` makes: submodules, raw weights, and the modules of shared blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from archdsl.ir import dims
from archdsl.ir.dims import Expr
from archdsl.ir.graph import Block, Handle, ParamNode
from archdsl.ir.static import Instance
from archdsl.lower.init_torch import first_value
from archdsl.lower.torch.grouped import BLOCKWISE_MATMUL, GROUPED_MATMUL, GROUPS, OPAQUE_MATMUL
from archdsl.lower.torch.numbers import Numbers
from archdsl.lower.torch.reading import module_names
from archdsl.lower.torch.scope import ConstructorScope
from archdsl.lower.torch.text import END, FREE_TOKEN, PART, defined
from archdsl.lower.torch.written import InitText, Site, Written

if TYPE_CHECKING:
    from archdsl.lower.torch.classes import Classes


TENSORS = """
class Tensors(nn.Module):
    \"\"\"A list of buffers, and of parameters among them: `nn.ParameterList` makes parameters of all.\"\"\"

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.length = 0
        for tensor in tensors:
            setattr(self, str(self.length), tensor)
            self.length += 1

    def __getitem__(self, i: int | slice) -> Tensor | list[Tensor]:
        return [getattr(self, str(k)) for k in range(self.length)][i]
"""
"""Of a loop's turns that make buffers; it iterates by its items."""


class Made(NamedTuple):
    """A module that the turn of a loop makes: its step in the path of names, its constructor, whether it is a raw
    weight (which has no text of its own, and may be read in several places), and whether that is a buffer."""

    name: str
    constructor: InitText
    raw: bool
    buffer: bool


class Modules:
    """The modules of one block, and the lines of `__init__` that make them."""

    def __init__(self, classes: Classes, block: Block, numbers: Numbers, written: Written) -> None:
        self.classes = classes
        self.block = block
        self.numbers = numbers
        self.written = written
        self.made: set[str] = set()
        """Attributes that have a line."""
        self.shared_made: set[Instance] = set()
        self.stateless_made: dict[str, str] = {}
        """Attributes of modules without weights, by constructor."""
        self.handles: dict[Instance, str] = {}
        """Parameters of `forward` for modules that the caller owns."""
        self.recording: list[Made] | None = None
        """Within a loop: what its turn makes, for the loop to put into lists."""
        self.variables: dict[str, str] = {}
        """Within a loop: its variables for the modules."""

    def line(self, text: InitText) -> None:
        self.written.init.append(text)

    def template(self, text: str) -> InitText:
        """Text of `__init__` with tokens for names."""
        return lambda r: FREE_TOKEN.sub(lambda m: r.name(m[1]), text)

    # --- submodules ---

    def add(self, name: str, constructor: InitText, *, raw: bool = False, buffer: bool = False) -> str:
        """A submodule under a step of the path of names; what `forward` calls it (in a loop, the loop's variable)."""
        if self.recording is not None:
            self.recording.append(Made(name, constructor, raw, buffer))
            return self.variables[name]
        if name not in self.made:
            self.made.add(name)
            self.line(lambda r: f"self.{name} = {constructor(r)}")
        return f"self.{name}"

    def stateless(self, name: str, constructor: str) -> str:
        """A module without weights, one for all its uses in the block."""
        if constructor not in self.stateless_made:
            attribute, n = name, 1
            taken = {*self.stateless_made.values(), *module_names(self.block.graph)}
            while attribute in taken:
                n += 1
                attribute = f"{name}_{n}"
            self.stateless_made[constructor] = attribute
            text = self.template(constructor)
            self.line(lambda r: f"self.{attribute} = {text(r)}")
        return f"self.{self.stateless_made[constructor]}"

    def source(self, name: str) -> str:
        """The list of a loop's modules: the block's own, or, in a loop within a loop, the part that belongs to the
        outer turn."""
        return f"self.{name}" if self.recording is None else f"{PART}{name}{END}"

    def site(self, block: Block, bind: Mapping[str, Expr], alias: str) -> Site:
        """Note that the class of a block is instantiated here."""
        group = self.classes.group(block)
        site = Site(group, bind, alias)
        for name in group.free:
            if name in bind:
                for inner in dims.free_names(dims.shortest(bind[name], self.block.local)):
                    self.numbers.note(inner)
        self.written.sites.append(site)
        return site

    # --- shared blocks ---

    def instance(self, instance: Instance) -> str:
        """The module of a shared block that lives here."""
        attribute = f"self.{instance.path}"
        if instance in self.shared_made:
            return attribute
        self.shared_made.add(instance)
        if instance.block is not None:
            site = self.site(instance.block, dict(instance.bind), instance.template.alias or instance.label)
            self.line(lambda r: f"{attribute} = {r.construct(site)}")
            return attribute
        node = instance.node
        scope = ConstructorScope(self, {**instance.joined, **instance.bind})
        node.op.torch(node, scope)
        self.written.laws.append((instance.path, node))
        text = self.template(scope.constructor)
        self.line(lambda r: f"{attribute} = {text(r)}")
        return attribute

    def handed(self, handle: Handle) -> str:
        """What `forward` calls a shared block: a parameter where another block owns it."""
        return self.handles.get(handle.instance) or self.instance(handle.instance)

    # --- raw weights ---

    def raw(self, node: ParamNode) -> str:
        """A raw weight; what `forward` calls it."""
        weight, name = node.weight, node.name
        text = self.template(first_value(weight, self.numbers.init, self.written.helpers))
        if weight.trained:
            return self.add(name, lambda r: f"nn.Parameter({text(r)})", raw=True)
        aside = "" if weight.saved else ", persistent=False"
        if self.recording is not None:
            return self.add(name, lambda r: f"nn.Buffer({text(r)}{aside})", raw=True, buffer=True)
        self.line(lambda r: f'self.register_buffer("{name}", {text(r)}{aside})')
        return f"self.{name}"

    # --- helpers ---

    def helper(self, source: str, *, early: bool = False) -> str:
        """Put a helper above the classes, `early` before the others; its name."""
        name = defined(source)
        self.written.helpers.setdefault(name, source)
        if early:
            self.written.early.add(name)
        if "Groups" in source and source not in (GROUPS, GROUPED_MATMUL):
            self.need_groups()
        return name

    def need_groups(self) -> None:
        """What every class of experts builds on."""
        self.helper(GROUPS, early=True)
        self.helper(BLOCKWISE_MATMUL, early=True)
        self.helper(OPAQUE_MATMUL, early=True)
        self.helper(GROUPED_MATMUL, early=True)
