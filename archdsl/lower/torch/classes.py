"""Blocks into classes: which blocks are one class, what the class is called, and what each name in it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from archdsl.analyses.placement import Sharding
from archdsl.ir import dims
from archdsl.ir.dims import Num, Poly, Var
from archdsl.ir.graph import Block, CallNode, Model, OpNode
from archdsl.ir.op import ATOM
from archdsl.lower.init_torch import law_key
from archdsl.lower.python import class_name, field_name, singular
from archdsl.lower.torch.block import BlockWriter, write_block
from archdsl.lower.torch.reading import block_tensors
from archdsl.lower.torch.text import NUMBER, argument
from archdsl.lower.torch.written import Group, Resolver, Site, Written
from archdsl.syntax import ast


class FinalResolver(Resolver):
    """Names as a class finally knows them; `group` is None in the model's own class. `local` are those that the class
    computes itself."""

    def __init__(self, classes: Classes, group: Group | None, local: Mapping[str, str] | None = None) -> None:
        self.classes = classes
        self.group = group
        self.local = local if local is not None else {}

    def name(self, name: str) -> str:
        if self.group is None:
            return self.classes.root_name(name)
        return self.local[name] if name in self.local else self.group.resolution.get(name, name)

    def construct(self, site: Site) -> str:
        return self.classes.constructor(site, self)


class Classes:
    """The classes of one model. `group` collects them while blocks are written; `settle` gives each its final text,
    names and arguments."""

    root: BlockWriter
    """Who wrote the model's own class for good."""
    root_class: str
    """What that is called."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.groups: list[Group] = []
        """Callees first."""
        self.by_block: dict[Block, Group] = {}
        self.by_text: dict[str, Group] = {}
        self.sharding: Sharding | None = None
        """How tensors are cut over devices, where the file has the section `parallel`."""
        self.kinds_known = False
        """Whether all blocks have been grouped: then it is known which masks need no tensor in any block of a class."""
        self.config = {f.name: f.value for f in model.config}
        self.taken: set[str] = set()
        """Names of what else stands in the file."""
        self.checkpointed: frozenset[CallNode] = frozenset()
        """Calls of layers that the backward pass computes again."""

    # --- grouping ---

    def group(self, block: Block) -> Group:
        """The class of a block."""
        if block in self.by_block:
            return self.by_block[block]
        written = write_block(self, block, None).written
        text = self._comparable(block, written)
        group = self.by_text.get(text)
        if group is None:
            group = Group(len(self.groups), block, written)
            group.free = self._free(block, written)
            self.by_text[text] = group
            self.groups.append(group)
        group.members.append(block)
        self.by_block[block] = group
        return group

    def _comparable(self, block: Block, w: Written) -> str:
        """Equal for blocks that can be one class."""
        r = Resolver()
        init = [line(r) for line in w.init]
        forward = [f"{i}{t}" for part in w.parts for i, t in part.forward]
        weights = [f"{name}:{_schemes(node)}{law_key(self.model, block, node)}" for name, node in w.laws]
        dynamic = sorted(n for n in {*w.names, *w.settings()} if is_dynamic(block, n))
        local = [f"{k}={dims.expr_text(v)}" for k, v in block.local.items()]
        where = [block.name, str(id(block.span.source)), str(block.span.start)]
        return "\n".join([*where, *map(str, w.parameters), *init, *forward, *weights, *dynamic, *local])

    def _free(self, block: Block, w: Written) -> list[str]:
        """Names that the caller must give: those the block computes itself stand for what they are computed from."""
        found: dict[str, None] = {}

        def add(name: str) -> None:
            if name in block.local:
                for inner in dims.free_names(block.local[name]):
                    add(inner)
            else:
                found.setdefault(name)

        for name in [*w.names, *(n for part in w.parts for n in part.settings())]:
            add(name)
        order = {n: i for i, n in enumerate([*block.hypers, *block.axes])}
        return sorted((n for n in found if not is_dynamic(block, n)), key=lambda n: order.get(n, len(order)))

    # --- settling ---

    def settle(self, also: Callable[[], None] | None = None) -> None:
        """Write every class for good; then, callers first, find what each of its names is. `also` writes further
        methods before that, whose names are then known, too."""
        write_block(self, self.model.block, None)
        self.kinds_known = True
        for group in self.groups:
            group.writer = write_block(self, group.block, [group.kind(i) for i in range(len(group.block.contexts))])
        self.root = write_block(self, self.model.block, None)
        if also is not None:
            also()
        self._resolve()
        self._name_classes()

    def add_names(self, group: Group, w: Written) -> None:
        """Names of a further method of a class, which a caller must give as well."""
        group.free += [n for n in self._free(group.block, w) if n not in group.free]

    def writer(self, group: Group | None) -> BlockWriter:
        """Who wrote a class for good; the model's own for None."""
        if group is None:
            return self.root
        assert group.writer is not None
        return group.writer

    def written(self) -> list[Written]:
        """The text of every class, callees first, the model's own last."""
        return [*(g.final for g in self.groups), self.root.written]

    def _resolve(self) -> None:
        for caller in (None, *self.groups):
            for site in self.writer(caller).written.sites:
                site.caller = caller
                site.group.sites.append(site)
        for group in reversed(self.groups):
            self._resolve_group(group)
        for group in self.groups:
            used = any(v.startswith("config.") for v in group.resolution.values())
            group.needs_config = used or any(s.group.needs_config for s in group.final.sites)

    def _resolve_group(self, group: Group) -> None:
        own = {*group.block.hypers, *group.block.axes}
        for name in group.free:
            texts = {self._bound(site, name) for site in group.sites}
            text = texts.pop() if len(texts) == 1 else ""
            if re.fullmatch(r"config\.\w+", text) or (NUMBER.fullmatch(text) and name not in own):
                group.resolution[name] = text
            else:
                group.resolution[name] = argument(name)
                group.arguments.append(name)

    def _bound(self, site: Site, name: str) -> str:
        """What a name of a class is where it is instantiated, in the caller's names."""
        if name not in site.bind:
            return ""
        return self.writer(site.caller).numbers.init_expr(site.bind[name], FinalResolver(self, site.caller))

    # --- names ---

    def root_name(self, name: str) -> str:
        """What a name of the model's own block is: a field of the Config, what it is computed from, or a number."""
        block = self.model.block
        if name in self.config:
            return f"config.{field_name(name)}"
        if name in block.local:
            return self.root.numbers.text(block.local[name], ATOM, self.root_name, True)
        value = block.hypers.get(name)
        if isinstance(value, Num) and not isinstance(value.value, Poly):
            return dims.expr_text(dims.literal(value.value))
        return name

    def constructor(self, site: Site, resolver: FinalResolver) -> str:
        """The text that instantiates a class: arguments that are the default are left out."""
        group = site.group
        args = ["config"] if group.needs_config else []
        numbers = self.writer(resolver.group).numbers
        for name in group.arguments:
            text = numbers.init_expr(site.bind.get(name, Var(name)), resolver)
            if text != default(group, name):
                args.append(f"{argument(name)}={text}")
        return f"{group.name}({', '.join(args)})"

    def _name_classes(self) -> None:
        """Names of classes: the blocks' own. Several classes of one block are told apart by what the spec calls them
        there, else by number."""
        by_name: dict[str, list[Group]] = {}
        for group in self.groups:
            by_name.setdefault(class_name(group.block.name), []).append(group)
        used = {"Config", *self.taken, *(name for w in self.written() for name in w.helpers)}
        for block in (self.model.block, *(group.block for group in self.groups)):
            used |= {argument(name) for name in (*block.hypers, *block.local)}  # `__init__` has them as its own
        self.root_class = class_name(self.model.name)
        while self.root_class in used:
            self.root_class += "Model"
        used.add(self.root_class)
        for base, groups in by_name.items():
            aliases = {g: {s.alias for s in g.sites if s.alias} - {g.block.name} for g in groups}
            for group in groups:
                own = aliases[group]
                others = set().union(*(a for g, a in aliases.items() if g is not group))
                name = base
                if (len(groups) > 1 or name in used) and len(own) == 1 and not own & others:
                    prefix = class_name(singular(next(iter(own))))
                    name = prefix if prefix.endswith(base) else prefix + base
                group.name = _numbered(name, used)
                used.add(group.name)


def _numbered(name: str, used: Iterable[str]) -> str:
    found, n = name, 1
    while found in used:
        n += 1
        found = f"{name}{n}"
    return found


def is_dynamic(block: Block, name: str) -> bool:
    """Whether only the running model knows what a name of the block is."""
    value = block.axes.get(name) or block.hypers.get(name)
    if isinstance(value, Num):
        return not value.static
    if "." not in name:
        return False
    # The size of a tensor that the block, or the part of it that prepares, was handed: `table.0`.
    parts = [block] if block.before is None else [block, block.before]
    sizes = (d for part in parts for v in block_tensors(part) for d in v.shape)
    return not next((d.static for d in sizes if isinstance(d.expr, Var) and d.expr.name == name), False)


def default(group: Group, name: str) -> str | None:
    """The value an argument has in the declaration, where that is a plain number."""
    for hyper in group.block.header.hypers or ():
        if hyper.name == name and isinstance(hyper.default, ast.Number):
            return str(hyper.default.text)
    return None


def _schemes(node: OpNode) -> str:
    """How the weights of a node are drawn."""
    parts = []
    for w in node.weights:
        numbers = ",".join(f"{k}={dims.expr_text(n.expr)}" for k, n in w.init.numbers.items())
        parts.append(f"{w.name}:{w.init.scheme}({numbers})")
    return ";".join(parts)
