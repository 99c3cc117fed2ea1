"""Blocks into classes: which blocks are one class, what each name and number in it is, and what it is called."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from archdsl.backends.torch import init
from archdsl.backends.torch.features import Section
from archdsl.backends.torch.helpers import helper_names
from archdsl.backends.torch.imports import IMPORTED
from archdsl.backends.torch.lower import (
    ClassUse,
    Ending,
    Kind,
    Lowered,
    Lowering,
    Merged,
    Method,
    context_kind,
    lower,
    parameter_names,
)
from archdsl.backends.torch.names import preferred
from archdsl.backends.torch.numbers import Numbers, is_dynamic, values_of
from archdsl.backends.torch.program import Check, key
from archdsl.backends.torch.python import class_name, field_name, local_name, singular
from archdsl.backends.torch.tree import (
    Axis,
    HyperLeaf,
    Made,
    NumberLeaf,
    PyNode,
    constant,
    leaves,
    mapped,
    py,
    trees,
    word,
)
from archdsl.ir import dims
from archdsl.ir.conditions import choices
from archdsl.ir.dims import Expr, Poly
from archdsl.ir.graph import Block, CallNode, Model, OpNode
from archdsl.ir.op import Tree
from archdsl.ir.ranges import NUMBERS
from archdsl.ir.walk import calls_of, every_node
from archdsl.syntax import ast


def argument(name: str) -> str:
    """A name of a block, perhaps with a dot, as an argument or attribute."""
    return local_name(name.replace(".", "_"))


@dataclass(eq=False)
class ClassGroup:
    """Blocks that read alike: one class."""

    number: int
    block: Block
    first: Lowered
    """The first of the blocks, while it was not known which blocks are one class."""
    reads: frozenset[str] = frozenset()
    """Names of the block that it reads, also for what it makes."""
    absent: dict[str, Expr] = field(default_factory=dict)
    """What callers give for names that only some of the blocks have: 0 for the window of a mask, where it has none."""
    apart: dict[Block, Hashable] = field(default_factory=dict)
    """What each of the blocks gives for such names of its own callees, where these differ: a window of 3, or none."""
    members: list[Block] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    """Names that a caller must give."""
    name: str = ""
    sites: list[tuple[ClassGroup | None, ClassUse]] = field(default_factory=list)
    """Where it is instantiated, and by whom (None: by the model itself)."""
    resolution: dict[str, Tree] = field(default_factory=dict)
    """What each free name is in the class: `config.width`, a number, or an argument."""
    arguments: list[str] = field(default_factory=list)
    needs_config: bool = False
    lowered: list[Lowered] = field(default_factory=list)
    """Each of the blocks, once it is known which masks need no tensor."""
    class_: Class | None = None
    more: list[Method] = field(default_factory=list)
    """Methods beside those of the block."""
    taken_over: dict[tuple[Block, Method], Method | None] = field(default_factory=dict)
    """What blocks mean by such a method that was written for another of them."""

    @property
    def latest(self) -> Lowered:
        """The first of the blocks as far as it is known."""
        return self.lowered[0] if self.lowered else self.first

    @property
    def parameter_names(self) -> list[str]:
        return parameter_names(self.latest.method)

    def kind(self, i: int) -> Kind:
        """Of the i-th context, over all blocks of the class."""
        kinds = {context_kind(m.contexts[i]) for m in self.members}
        return kinds.pop() if len(kinds) == 1 else "either"


@dataclass(eq=False)
class Class:
    """What is written of a group, or of the model itself: numbers are spelled, names of classes are known later."""

    lowered: Lowered
    numbers: Numbers
    blocks: Sequence[Block]
    init: list[Any]
    methods: list[Method]
    arguments: dict[ClassUse, dict[str, Tree]]
    """Of every instance of another class what each of that one's free names is, in this one's names."""
    more: dict[str, list[dims.Value]] = field(default_factory=dict)
    """Arguments for numbers that no expression gives rightly for all blocks: their values in each."""
    demands: list[Check] = field(default_factory=list)
    """What its methods take for granted of the Config as they are written out."""


class Classes:
    """The classes of one model. `group` collects them while blocks are lowered; `settle` says what each name in them
    is."""

    lowering: Callable[..., Lowering]
    """What lowers a block."""
    config_class: str = "Config"
    given: ClassVar[tuple[str, ...]] = ()
    """Arguments of constructors, behind the Config, that are no numbers of the spec: attributes of the same names."""
    drawn_by: ClassVar[str] = "init_weights"
    """The method of the model's own class that draws weights."""
    imported: ClassVar[frozenset[str]] = frozenset(IMPORTED)
    """Global names that imports can give."""
    settings: ClassVar[tuple[str, ...]] = ()
    """What a library keeps in the Config beside its fields."""
    library_fields: Mapping[str, Any] = MappingProxyType({})
    """Fields of the Config that a library asks for."""
    root: Lowered
    root_class: str
    """What the model's own class is called."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.lowering = Lowering
        self.groups: list[ClassGroup] = []
        """Callees first."""
        self.by_block: dict[Block, ClassGroup] = {}
        self.by_key: dict[Any, ClassGroup] = {}
        self.kinds_known = False
        """Whether all blocks have been grouped: then it is known which masks need no tensor in any block of a class."""
        self.config = {f.name: f.value for f in model.config}
        self.choices = choices(model)
        self.checkpointed: frozenset[CallNode] = frozenset()
        """Calls of layers that the backward pass computes again."""
        self.divided: frozenset[OpNode] = frozenset()
        """Ops that apply blocks of which ranks compute a shard each."""
        self.hooks = False
        """Whether a section acts on what modules return: then each is called."""
        self.varlen = False
        """Whether FlashAttention for sequences of different lengths computes masks of windows and documents."""
        self.classes: dict[ClassGroup | None, Class] = {}
        self.more: list[Method] = []
        """Methods of the model's own class beside its `forward`."""
        self.helpers: dict[str, None] = {}
        """Globals that methods beside those of the blocks read."""
        self.closing: dict[tuple[str, str], list[str]] = {}
        """Lines at the end of methods, by class and name, that are of no block."""
        self.forward: Method | None = None
        """The model's `forward` where a section writes it in another way."""
        self.ending: Ending | None = None
        """What a section makes of the end of that."""
        self.merged: dict[ClassGroup | None, Merged] = {}
        """A `forward` that is a step of decoding, too."""
        self.exact: dict[Block, Mapping[str, Expr]] = {}
        """What every static name of a block is worth."""
        self.above: dict[Block, tuple[Block, Mapping[str, Expr]]] = {}
        """The block that calls a block, and what it binds that one's names to."""
        self.pinned: dict[str, None] = {}
        """Names of the model's own block of which numbers are made that are written out."""

    def layers(self, block: Block, source: bool = False) -> int:
        """How many layers of a library's cache a block and what it calls have; of that of the `source` of a target."""
        return 0

    # --- grouping ---

    def group(self, block: Block) -> ClassGroup:
        """The class of a block."""
        if block in self.by_block:
            return self.by_block[block]
        lowered = lower(self, block)
        text = self._key(lowered)
        group = self.by_key.get(text)
        if group is None:
            group = ClassGroup(len(self.groups), block, lowered, frozenset(names_of(lowered)))
            self.by_key[text] = group
            self.groups.append(group)
        group.members.append(block)
        self.by_block[block] = group
        return group

    def _key(self, w: Lowered) -> Any:
        """Equal for blocks that can be one class."""
        block = w.block
        weights = [(name, init.law_key(self.model, block, node)) for name, node in w.laws]
        names = sorted(n for n in names_of(w) if is_dynamic(block, n))
        local = [(k, dims.expr_text(v)) for k, v in block.local.items()]
        where = (block.name, id(block.span.source), str(block.span.start))
        return (where, *map(method_key, w.methods), _init_key(w), tuple(weights), tuple(names), tuple(local))

    # --- settling ---

    def settle(self, sections: Sequence[Section] = ()) -> None:
        """Lower every class for good; then, callers first, find what each of its names is. Sections add their methods
        between."""
        lower(self, self.model.block)
        self._read_by(sections)
        self.kinds_known = True
        for group in self.groups:
            kinds = [group.kind(i) for i in range(len(group.block.contexts))]
            group.lowered = [lower(self, member, kinds) for member in group.members]
        self.root = lower(self, self.model.block)
        for section in sections:
            section.settle()
            self.forward = section.forward() or self.forward
        for section in sections:
            section.merge()
        self._evaluate()
        for group in self.groups:
            self.classes[group] = group.class_ = self._spelled(group.lowered, group)
            group.free = self._free(group.class_)
        self.classes[None] = root = self._spelled([self.root], None)
        for name in self.pinned:
            self._demand(root, name)
        self._resolve()
        self._name_classes()

    def _read_by(self, sections: Sequence[Section]) -> None:
        """Add the names that sections read to those of the classes and, as they are given, of their callers."""
        for group in self.groups:  # callees first
            found = {name for s in sections for b in group.members for name in s.reads(b)}
            for call in (c for b in group.members for n in every_node(b.graph) for c in calls_of(n)):
                read = self.by_block[call.block].absent if call.block in self.by_block else {}
                found |= {n for name in read if name in call.bind for n in dims.free_names(call.bind[name])}
            group.absent = dict.fromkeys(found, dims.literal(0))
            group.reads |= found
            given = {b: tuple(self._given(b)) for b in group.members}
            group.apart = dict(given) if len({*given.values()}) > 1 else {}

    def _given(self, block: Block) -> Iterator[Hashable]:
        """The numbers that a block gives for names that only some blocks of its callees' classes have."""
        for call in (c for n in every_node(block.graph) for c in calls_of(n)):
            group = self.by_block.get(call.block)
            if group is not None:
                values = (call.bind.get(name, known) for name, known in group.absent.items())
                yield from (e for e in values if not dims.free_names(e))
                yield group.apart.get(call.block)

    def further(self, group: ClassGroup | None, method: Method, helpers: Mapping[str, bool]) -> None:
        """Add a method to a class (None: to the model's own)."""
        (self.more if group is None else group.more).append(method)
        for name in helpers:
            self.helpers.setdefault(name)

    def methods(self, group: ClassGroup | None, block: Block) -> list[Method]:
        """The methods of a class as they are for one of its blocks."""
        if group is None:
            own = [self.forward] if self.forward is not None else [*self.root.methods]
            return [*own, *self.more]
        found = [*group.lowered[group.members.index(block)].methods]
        return [*found, *(m for m in group.more if m.block is block)]

    def _free(self, c: Class) -> list[str]:
        """Names that the caller must give: those the block computes itself stand for what they are computed from."""
        block = c.lowered.block
        found: dict[str, None] = {}

        def add(name: str) -> None:
            if name in block.local:
                for inner in dims.free_names(block.local[name]):
                    add(inner)
            else:
                found.setdefault(name)

        for name in names_in(c):
            add(name)
        order = {n: i for i, n in enumerate([*block.hypers, *block.axes])}
        return sorted((n for n in found if not is_dynamic(block, n)), key=lambda n: order.get(n, len(order)))

    # --- numbers ---

    def known(self, block: Block) -> Mapping[str, Expr]:
        """What the names of a block are worth, as far as it knows them itself: the model's own has those of the
        Config."""
        if block is not self.model.block:
            return values_of(block)
        fields = {name: dims.literal(n.value) for name, n in self.config.items() if not isinstance(n.value, Poly)}
        return {**values_of(block), **fields}

    def _evaluate(self) -> None:
        """What every static name is worth, in each block: also those that only its callers know."""
        self.exact = {self.model.block: self.known(self.model.block)}
        lowered = {b: w for g in self.groups for b, w in zip(g.members, g.lowered, strict=True)}
        waiting = [self.root]
        while waiting:
            w = waiting.pop()
            mine = self.exact[w.block]
            for site in (*w.sites, *w.shared):
                if site.block not in self.exact:
                    worth = {n: dims.expr_value(dims.substitute(e, mine)) for n, e in site.bind.items()}
                    given = {n: dims.literal(v) for n, v in worth.items() if not isinstance(v, Poly)}
                    self.exact[site.block] = {**given, **values_of(site.block)}
                    self.above[site.block] = w.block, site.bind
                    waiting.append(lowered[site.block])

    def _spelled(self, members: Sequence[Lowered], group: ClassGroup | None) -> Class:
        """The first of some blocks of one class, with every number as Python writes it for all of them."""
        first = members[0]
        numbers = Numbers(first.block, [self.exact[m.block] for m in members])
        made = Class(first, numbers, [m.block for m in members], [], [], {})
        merged = self.merged.get(group)
        forward = merged.method if merged is not None else self.forward if group is None else None
        values = zip(*(all_numbers(m, forward is None) for m in members), strict=True)
        spelled = iter([self._number(made, row) for row in values])

        def leaf(in_init: bool) -> Any:
            def change(x: Any) -> Any:
                if isinstance(x, NumberLeaf):
                    return next(spelled)[in_init]
                if isinstance(x, Made):
                    made.arguments[x.site] = self._arguments(made, x.site, members)
                return x

            return change

        made.init += [mapped(step, leaf(True)) for step in first.init]
        more = self.more if group is None else group.more
        if forward is not None:
            more = [forward, *(m for m in more if merged is None or m is not merged.step)]
        for method in () if forward is not None else first.methods:
            steps, results = mapped(method.steps, leaf(False)), mapped(method.results, leaf(False))
            made.methods.append(replace(method, steps=steps, results=results))

        def by_expression(x: Any) -> Any:
            """A number of a method that is known of the first block alone."""
            if not isinstance(x, NumberLeaf):
                return x
            row = [replace(x, value=value) for value in made.numbers.values(x)]
            return self._number(made, row)[0]

        for method in more:
            steps, results = mapped(method.steps, by_expression), mapped(method.results, by_expression)
            made.methods.append(replace(method, steps=steps, results=results))
        return made

    def _number(self, made: Class, row: Sequence[NumberLeaf]) -> tuple[Tree, Tree]:
        """A number, given as it is in each of the blocks: what `forward` and what `__init__` read."""
        n, values = row[0], [x.value for x in row]
        found = tuple(made.numbers.spelled(n, values, init) for init in (False, True))
        if None in found:
            tree = self._more(made, n.expr, values)
            return tree, tree
        return found  # type: ignore[return-value]

    def _more(self, made: Class, expr: dims.Expr | None, values: list[dims.Value], hint: str = "number") -> Tree:
        """A number that no expression gives rightly for all blocks: itself where it is the same, else an argument. What
        it was computed from is then demanded: of the class, or of the model where it differs between blocks."""
        alike = len({*values}) == 1
        for name in made.numbers.exactly(expr) if expr is not None else ():
            if alike and len({row[name] for row in made.numbers.exact if name in row}) == 1:
                self._demand(made, name)
            else:
                for block in made.blocks:
                    self._pin(block, name)
        if alike:
            return literal(values[0])
        for name, known in made.more.items():
            if known == values:
                return HyperLeaf(name)
        name, n = hint, 1
        block = made.lowered.block
        while name in {*made.more, *block.hypers, *block.axes, *block.local}:
            n += 1
            name = f"{hint}_{n}"
        made.more[name] = values
        return HyperLeaf(name)

    def _demand(self, made: Class, name: str) -> None:
        """Let a class demand that a name of its block is worth what it is."""
        worth = next((dims.expr_value(row[name]) for row in made.numbers.exact if name in row), None)
        if worth is not None:
            test = py("{a} == {n}", a=NumberLeaf(dims.Var(name), worth), n=literal(worth))
            made.demands.append(Check(test, f"`{name}` is written out as a number: compile again with --set"))

    def _pin(self, block: Block, name: str) -> None:
        """Let the model demand what a name of a block is computed from."""
        caller, bind = self.above.get(block, (block, {}))
        if name in block.local:
            for inner in dims.free_names(block.local[name]):
                self._pin(block, inner)
        elif block is self.model.block:
            self.pinned.setdefault(name)
        elif name in bind:
            for inner in dims.free_names(bind[name]):
                self._pin(caller, inner)

    def _arguments(self, made: Class, site: ClassUse, members: Sequence[Lowered]) -> dict[str, Tree]:
        """What the free names of a class are where it is instantiated."""
        callee = self.classes[site.group]
        found: dict[str, Tree] = {}
        k = next(i for i, s in enumerate(made.lowered.sites) if s is site)
        same = [[*m.sites][k] for m in members]
        for name in site.group.free:
            if name in callee.more:
                row = [callee.more[name][site.group.members.index(s.block)] for s in same]
                found[name] = self._more(made, None, row)
            elif name in site.bind:
                binds = [s.bind[name] for s in same]
                expr = next((b for b in binds if dims.free_names(b)), binds[0])
                expr = dims.shortest(expr, made.lowered.block.local)
                real = any(h.name == name and h.kind in NUMBERS for h in site.group.block.header.hypers or ())
                rows = zip(binds, made.numbers.exact, strict=True)
                row = [dims.expr_value(dims.substitute(bind, exact)) for bind, exact in rows]
                tree = made.numbers.spelled(NumberLeaf(expr, row[0], real), row, True)
                found[name] = self._more(made, expr, row, name) if tree is None else tree
        return found

    # --- names ---

    def _resolve(self) -> None:
        for caller, c in self.classes.items():
            for site in c.arguments:
                site.group.sites.append((caller, site))
        for group in reversed(self.groups):
            self._resolve_group(group)
        for group in self.groups:
            used = any(_reads_config(t) for t in group.resolution.values())
            assert group.class_ is not None
            group.needs_config = used or any(s.group.needs_config for s in group.class_.arguments)

    def _resolve_group(self, group: ClassGroup) -> None:
        own = {*group.block.hypers, *group.block.axes}
        own -= {h.name for h in group.block.header.hypers or () if h.kind in NUMBERS and is_none(h)}
        for name in group.free:
            found = {self.resolved(self.classes[c].arguments[s].get(name), c) for c, s in group.sites}
            tree = found.pop() if len(found) == 1 else None
            number = is_number(tree) and name not in own
            if tree is not None and (number or _reads_config(tree)):
                group.resolution[name] = tree
            else:
                group.resolution[name] = word(argument(name))
                group.arguments.append(name)

    def resolved(self, tree: Any, group: ClassGroup | None, local: Mapping[str, Tree] | None = None) -> Any:
        """An expression of `__init__` with the block's names as the class knows them; those in `local` it computes
        itself."""

        def leaf(x: Any) -> Any:
            if not isinstance(x, HyperLeaf):
                return x
            if local and x.name in local:
                return local[x.name]
            if group is None:
                return self.root_name(x.name)
            return group.resolution.get(x.name, word(argument(x.name)))

        return mapped(tree, leaf)

    def root_name(self, name: str) -> Tree:
        """What a name of the model's own block is: a field of the Config, what it is computed from, or
        itself where only the running model knows it."""
        if name in self.config:
            return PyNode("Attribute", (word("config"), field_name(name)))
        if name not in self.model.block.local:
            return word(name)
        found: Tree = self.resolved(self.classes[None].numbers.computed(name), None)
        return found

    def constructor(self, site: ClassUse, caller: ClassGroup | None, local: Mapping[str, Tree]) -> Tree:
        """What instantiates a class: arguments that are the default are left out."""
        group = site.group
        known = self.classes[caller].arguments[site]
        keywords = {}
        for name in group.arguments:
            tree = self.resolved(known[name], caller, local)
            if tree != default(group, name):
                keywords[argument(name)] = tree
        return py(
            f"{group.name}({{*args}}, {{**keywords}})", args=[word("config")] * group.needs_config, keywords=keywords
        )

    def _name_classes(self) -> None:
        """Names of classes: the blocks' own. Several classes of one block are told apart by what the spec calls them
        there, else by number."""
        by_name: dict[str, list[ClassGroup]] = {}
        for group in self.groups:
            by_name.setdefault(class_name(group.block.name), []).append(group)
        read = {*self.helpers, *(name for c in self.classes.values() for name in c.lowered.helpers)}
        used = {"Config", *self.imported, *helper_names(), *read}
        for block in (self.model.block, *(group.block for group in self.groups)):
            used |= {argument(name) for name in (*block.hypers, *block.local)}  # `__init__` has them as its own
        self.root_class = class_name(self.model.name)
        while self.root_class in used:
            self.root_class += "Model"
        used.add(self.root_class)
        prefixes: dict[ClassGroup | None, str] = {}
        called: dict[ClassGroup, set[str]] = {group: set() for group in self.groups}
        for site in (s for c in self.classes.values() for s in c.lowered.sites):
            called[site.group].add(site.alias)
        for base, groups in reversed(by_name.items()):  # callers first
            aliases = {g: called[g] - {"", g.block.name} for g in groups}
            within = {g: {prefixes.get(caller, "") for caller, _ in g.sites} for g in groups}

            def own(group: ClassGroup, names: Mapping[ClassGroup, set[str]]) -> str:
                """The one name of a group that no other has."""
                others = {n for g, found in names.items() if g is not group for n in found}
                return next(iter(names[group])) if len(names[group]) == 1 and not names[group] & others else ""

            several = len(groups) > 1
            told = {g: class_name(singular(own(g, aliases))) for g in groups if own(g, aliases)}
            told |= {g: "Expert" for g in groups if several and g not in told and g.block.copies}
            alike = {g: within[g] for g in groups if g not in told}
            told |= {g: own(g, alike) for g in alike if len(alike) > 1}  # called as the layer that alone has it
            for group in groups:
                prefix = told.get(group, "") if several or base in used else ""
                name = _joined(prefix, base) if prefix else base
                if name in used and own(group, within):
                    name = _joined(own(group, within), base)
                prefixes[group] = prefix or re.split(r"(?<=[a-z])(?=[A-Z])", base)[0]
                group.name = _numbered(name, used)
                used.add(group.name)


def _reads_config(tree: Tree) -> bool:
    return isinstance(tree, PyNode) and tree.kind == "Attribute" and tree.fields[0] == word("config")


def _joined(prefix: str, base: str) -> str:
    """`DenseEncoder` and `EncoderLayer` are a `DenseEncoderLayer`."""
    shared = (n for n in range(len(base), 0, -1) if prefix.endswith(base[:n]) and (base[n : n + 1] or "A").isupper())
    return prefix + base[next(shared, 0) :]


def _numbered(name: str, used: Iterable[str]) -> str:
    found, n = name, 1
    while found in used:
        n += 1
        found = f"{name}{n}"
    return found


def default(group: ClassGroup, name: str) -> Tree | None:
    """The value an argument has in the declaration, where that is a plain number."""
    for hyper in group.block.header.hypers or ():
        if hyper.name == name and isinstance(hyper.default, ast.Number):
            return constant(str(hyper.default.text))
    return None


def is_none(hyper: ast.Hyper) -> bool:
    """Whether a number may be left out in the declaration: `= none`."""
    return isinstance(hyper.default, ast.Name) and hyper.default.id == "none"


def literal(value: dims.Value) -> Tree:
    """A static number by itself."""
    assert not isinstance(value, Poly)
    made = dims.literal(value)
    if isinstance(made, dims.Lit):
        return constant(made.text)
    return py("{a} / {b}", a=constant(dims.expr_text(made.left)), b=constant(dims.expr_text(made.right)))


def is_number(tree: Any) -> bool:
    """Whether an expression is a plain number."""
    if isinstance(tree, PyNode) and tree.kind == "UnaryOp":
        return is_number(tree.fields[1])
    return isinstance(tree, PyNode) and tree.kind == "Constant" and tree.fields[0][:1].isdigit()


# --- what a class reads -----------------------------------------------------------------------------------------------


def all_numbers(w: Lowered, methods: bool = True) -> list[NumberLeaf]:
    """Every number of a block: those of `__init__`, then those of its methods."""
    found = [w.init, *((m.steps, m.results) for m in (w.methods if methods else ()))]
    return [x for x in leaves(found) if isinstance(x, NumberLeaf)]


def names_of(w: Lowered) -> set[str]:
    """Every name of the block that its numbers are made of, and those that it gives to other classes."""
    exprs = [n.expr for n in all_numbers(w)] + [e for site in w.sites for _, e in site.given]
    found: set[str] = set()
    while exprs:
        for name in dims.free_names(exprs.pop()):
            if name not in found:
                found.add(name)
                if name in w.block.local:
                    exprs.append(w.block.local[name])
    return found


def names_in(c: Class) -> Iterator[str]:
    """Every name of the block that a class reads: in `__init__` and for what it makes, then in its methods."""
    for x in leaves(c.init):
        if isinstance(x, HyperLeaf):
            yield x.name
        elif isinstance(x, Made):
            for bound in c.arguments[x.site].values():
                yield from (y.name for y in leaves(bound) if isinstance(y, HyperLeaf))
    for check in c.demands:
        yield from (name for x in leaves(check.test) if isinstance(x, NumberLeaf) for name in dims.free_names(x.expr))
    for method in c.methods:
        yield from (x.name for x in leaves((method.steps, method.results)) if isinstance(x, HyperLeaf | Axis))


def method_key(method: Method) -> Any:
    def spelled(value: Any) -> str:
        return preferred(value, method.hints)

    targets = [p.target for p in method.parameters]
    shown = tuple((p.type, p.default) for p in method.parameters)
    return shown, key(targets, method.steps, method.results, spelled), tuple(map(str, parameter_names(method)))


def _init_key(w: Lowered) -> Any:
    def leaf(x: Any) -> Any:
        if isinstance(x, Made):
            site = x.site
            return ("class", site.group.number, tuple((n, dims.expr_text(e)) for n, e in site.given))
        return x

    return tuple(
        (type(s).__name__, getattr(s, "name", ""), getattr(s, "message", ""), mapped(tuple(trees(s)), leaf))
        for s in w.init
    )
