"""What is known of a block once it is written: its text, the classes it makes, and which blocks share a class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from archdsl.ir import dims
from archdsl.ir.dims import Expr
from archdsl.ir.frame import Once
from archdsl.ir.graph import Block, Context, OpNode
from archdsl.lower.torch.text import NAME_TOKEN, Line
from archdsl.ops import registry

if TYPE_CHECKING:
    from archdsl.lower.torch.block import BlockWriter

Kind = Literal["causal", "tensor", "either"]
"""Of a context: `causal` (a mask that needs no tensor), `tensor`, or `either` where the uses of one class differ."""


class Resolver:
    """Names in `__init__`, and constructors of the classes of callees. This one leaves names as they are: for comparing
    texts."""

    def name(self, name: str) -> str:
        return name

    def construct(self, site: Site) -> str:
        shown = ", ".join(f"{n}={dims.expr_text(site.bind[n])}" for n in site.group.free if n in site.bind)
        return f"<{site.group.number}>({shown})"


InitText = Callable[[Resolver], str]
"""Text of `__init__`, which depends on what the block's names are called in the end."""


@dataclass(eq=False)
class Site:
    """A place where a class is instantiated: the caller's group (None: the model itself), and the callee's names in the
    caller's."""

    group: Group
    bind: Mapping[str, Expr]
    alias: str = ""
    caller: Group | None = None


class Parameter(NamedTuple):
    """A parameter of `forward`; `default` is '' where there is none."""

    name: str
    type: str
    default: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" + (f" = {self.default}" if self.default else "")


@dataclass(eq=False)
class Written:
    """One block's text, with tokens for names."""

    init: list[InitText] = field(default_factory=list)
    forward: list[Line] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    optional: dict[int, str] = field(default_factory=dict)
    """Contexts that may be left out, by their place among the block's: what their parameters are called."""
    returns: str = "Tensor"
    sites: list[Site] = field(default_factory=list)
    helpers: dict[str, str] = field(default_factory=dict)
    """Functions and classes that ops put above the classes, by name."""
    early: set[str] = field(default_factory=set)
    """Those of the helpers that make what all blocks are handed: they come before the others."""
    names: dict[str, None] = field(default_factory=dict)
    """Names of the block read in `__init__`, in order."""
    losses: bool = False
    """Whether `forward` collects auxiliary losses."""
    laws: list[tuple[str, OpNode]] = field(default_factory=list)
    """Primitives with weights, by attribute."""
    before: Written | None = None
    """The part of the block that a scan computes once, as a method `prepare`."""

    @property
    def parts(self) -> tuple[Written, ...]:
        return (self,) if self.before is None else (self.before, self)

    def settings(self) -> list[str]:
        """Names read in `forward`, in order."""
        return list(dict.fromkeys(m[1] for _, text in self.forward for m in NAME_TOKEN.finditer(text)))


@dataclass(eq=False)
class Group:
    """Blocks with the same text: one class."""

    number: int
    block: Block
    first: Written
    """As the first of the blocks was written, in its own names."""
    members: list[Block] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    """Names that a caller must give."""
    name: str = ""
    sites: list[Site] = field(default_factory=list)
    resolution: dict[str, str] = field(default_factory=dict)
    """What each free name is in the class: `config.width`, a number, or an argument."""
    arguments: list[str] = field(default_factory=list)
    needs_config: bool = False
    writer: BlockWriter | None = None
    """Who wrote the class for good."""

    @property
    def final(self) -> Written:
        """The text of the class, once it is known which masks need no tensor."""
        assert self.writer is not None
        return self.writer.written

    @property
    def latest(self) -> Written:
        """The text as far as it is known."""
        return self.first if self.writer is None else self.final

    def kind(self, i: int) -> Kind:
        """Of the i-th context, over all blocks of the class."""
        kinds = {context_kind(m.contexts[i]) for m in self.members}
        return kinds.pop() if len(kinds) == 1 else "either"


def context_kind(context: Context) -> Kind:
    """What a context is in this one block."""
    once = context.recipe
    if isinstance(once, Once) and not registry.get(once.op).needs_tensor(once.options, once.inputs):
        return "causal"
    return "tensor"


def is_mask(context: Context) -> bool:
    """Whether a context is a mask that may come without a tensor."""
    return isinstance(context.recipe, Once) and registry.get(context.recipe.op).is_mask(context.recipe.options)


def context_type(context: Context) -> str:
    """What a context is annotated with."""
    once = context.recipe
    return registry.get(once.op).result_type(once.options) if isinstance(once, Once) else "Tensor"
