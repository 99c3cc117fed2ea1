"""The file: header, Config, helpers, one class for each group of blocks, and the model."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from archdsl.backends.torch import init
from archdsl.backends.torch.classes import Class, Classes, ClassGroup, argument, default, is_number
from archdsl.backends.torch.features import PLAIN, Extras, Section, sections
from archdsl.backends.torch.helpers import fitted, helpers, in_order, names_in_source
from archdsl.backends.torch.imports import imports
from archdsl.backends.torch.lists import in_one
from archdsl.backends.torch.lower import Make, Method
from archdsl.backends.torch.names import Names, named, preferred
from archdsl.backends.torch.numbers import Numbers
from archdsl.backends.torch.program import Bind, Check, Do
from archdsl.backends.torch.python import TAKEN, WIDTH, field_name, laid_out, lines_laid_out, local_name
from archdsl.backends.torch.schedule import Scheduler
from archdsl.backends.torch.statements import ForLoop, Statement, attributes
from archdsl.backends.torch.text import Scheduled, asserted, first_sentence, lines, part_text, quoted
from archdsl.backends.torch.tree import (
    Axis,
    HyperLeaf,
    Made,
    NumberLeaf,
    PyNode,
    Read,
    Variable,
    leaves,
    mapped,
    nodes,
    py,
    substituted,
    unparse,
    word,
    words,
)
from archdsl.backends.torch.validate import validate
from archdsl.diagnostics.source import printable
from archdsl.estimates.counts import total
from archdsl.ir import dims
from archdsl.ir.command import compile_command, portable, shell_lines
from archdsl.ir.conditions import BACKWARDS, ONE, SIZES, conditions, named_message
from archdsl.ir.dims import Bin, Expr, Fn, Lit, Num, Poly, Var, axis_of
from archdsl.ir.graph import Block, Condition, Model
from archdsl.ir.op import Tree
from archdsl.ir.paths import RESERVED, is_reserved
from archdsl.ir.ranges import NUMBERS
from archdsl.ir.walk import block_tensors
from archdsl.ir.weights import weights
from archdsl.ir.wording import FIXED_NUMBER, WRITTEN_OUT
from archdsl.version import __version__

SELF, CONFIG = word("self"), word("config")
OF_SELF = {CONFIG: PyNode("Attribute", (SELF, "config"))}
"""What methods read of a Config."""


def emit(model: Model, extras: Extras = PLAIN) -> str:
    """The model as one Python file that imports the standard library and torch only.

    Class of the model: `class_name(model.name)`; its `Config` holds the spec's own numbers.  `extras` adds sections
    beside the plain model."""
    file = FileWriter(model, extras)
    text = file.write()
    validate(text, file.classes)
    return text


class FileWriter:
    """Writes one model's file."""

    def __init__(self, model: Model, extras: Extras = PLAIN, classes: Classes | None = None) -> None:
        self.model = self.original = model
        self.extras = extras
        self.classes = classes or Classes(model)
        self.sections: list[Section] = sections(self.classes, extras)
        self.names: set[str] = {"dataclass"}
        """Global names that the file reads."""

    def write(self) -> str:
        self.classes.settle(self.sections)
        texts = [ClassWriter(self, g).text() for g in self.classes.groups]
        root = ClassWriter(self, None)
        texts.append(root.text())
        below = [self.known(text) for section in self.sections for text in section.functions(root.forward)]
        sources = {name: text for section in self.sections for name, text in section.sources().items()}
        wanted = [*sources, *(n for s in self.sections for n in s.helpers()), *self.classes.helpers]
        above = list(self._above(wanted, sources, [*texts, *below]))
        parts = [lines_laid_out(self._config()), *above, *texts, *below]
        head = self.header(f"torch{self.extras.options}".split())
        return "\n\n\n".join([lines_laid_out("\n".join([head, "", *imports(self.names)])), *parts]) + "\n"

    def known(self, source: str) -> str:
        """A source that a section has written, what it reads being noted."""
        self.names |= names_in_source(source)
        return laid_out(source).strip()

    def _above(self, others: Sequence[str], sources: Mapping[str, str], below: Sequence[str]) -> Iterator[str]:
        """Helpers, those of classes and `others`, those first that others build on; and functions that ops and sections
        have defined. What stands `below` says which of their parameters are given."""
        early: dict[str, None] = {}
        late: dict[str, None] = {}
        functions: dict[str, tuple[Mapping[str, str], Tree]] = {}
        for c in self.classes.classes.values():
            functions.update(c.lowered.functions)
            for name, first in c.lowered.helpers.items():
                (early if first else late).setdefault(name)
        wanted = [*early, *late, *others]
        known = helpers()
        built_on = {h.name: h for name in wanted if name in known for h in in_order([name])}
        texts = fitted([*built_on.values()], [*below, *sources.values()])
        constants = [h for h in built_on.values() if h.is_constant]
        written = {h.name for h in constants}
        self.names |= {name for h in constants for name in h.names}
        if constants:
            yield "\n".join(h.source for h in constants)
        for name in wanted:
            if name in sources and name not in written:
                written.add(name)
                yield self.known(sources[name])
                continue
            for helper in in_order([name]) if name in known else ():
                if helper.name not in written:
                    written.add(helper.name)
                    text = texts[helper.name]
                    self.names |= helper.names if text == helper.source else names_in_source(text)
                    yield text
            if name in functions and name not in written:
                written.add(name)
                parameters, result = functions[name]
                self.names |= {*words(result), "Tensor"} - {*parameters}
                head = ", ".join(f"{p}: {kind}" for p, kind in parameters.items())
                yield lines_laid_out(f"def {name}({head}) -> Tensor:\n    return {unparse(result, str)}")

    # --- top of the file ---

    def header(self, to: Sequence[str]) -> str:
        """Return the docstring of an emitted file, with the command that makes it; `to` is what follows `--to`."""
        model = self.original
        title = first_sentence(model.doc) or f"{model.name}."
        digest = hashlib.sha256(model.source_text.encode()).hexdigest()[:12]
        source = quoted(portable(model.source_name))
        made = f"{total(model):,} parameters. Made by archdsl {__version__} from {source} ({digest}):"
        command = shell_lines(compile_command(model, ["--to", *to]), WIDTH - 4)
        start = '"""'
        if len(command) > 1:  # its lines end with a backslash
            start, command = f"r{start}", [printable(line).replace(start, "") for line in command]
        else:
            command = [quoted(line) for line in command]
        title = textwrap.fill(start + title, WIDTH, break_long_words=False, break_on_hyphens=False)
        return "\n".join([title, "", made, *(f"    {line}" for line in command), '"""'])

    def _config(self) -> str:
        found = ["@dataclass", "class Config:"]
        for name, value in self.classes.config.items():
            kind = "int" if isinstance(value.value, int) else "float"
            found.append(f"    {field_name(name)}: {kind} = {_as_written(value)}")
        found += choice_fields(self.classes.choices)
        if len(found) == 2:
            found.append('    """The spec has no numbers to set."""')
        return "\n".join([*found, *self._demands()])

    @cached_property
    def demands(self) -> list[tuple[Condition, Any, Any]]:
        """What the numbers of a Config have to be for this file to hold, both sides read off `config`."""
        numbers = Numbers(self.model.block)

        def tree(expr: Expr) -> Any:
            return numbers.spelled_by(expr, "real", lambda name: PyNode("Attribute", (CONFIG, field_name(name))))

        return [(c, tree(c.left), tree(c.right)) for c in conditions(self.model)]

    @cached_property
    def asserted(self) -> frozenset[Tree]:
        """What holds for every Config, as classes would ask it of theirs."""
        return frozenset(py(f"{{a}} {c.op} {{b}}", a=a, b=b) for c, a, b in self.demands)

    all_are_fields = True
    """Whether the Config has the spec's own numbers and nothing else."""

    def message(self, text: str) -> str:
        """What is said where a demand is not met."""
        return f'f"{quoted(text).replace("{", "{{").replace("}", "}}")}: {{self}}"'

    def _demands(self) -> list[str]:
        """The lines of the Config that assert its demands."""

        def text(tree: Any) -> str:
            self.names |= {*words(tree)} - {"config"}
            return unparse(substituted(tree, {CONFIG: SELF}), part_text)

        bounds: dict[tuple[str, str], list[tuple[str, str]]] = {}
        lines: list[str] = []
        for c, a, b in self.demands:
            if c.message == SIZES:
                lines += self._sizes([field_name(name) for name in dims.free_names(c.left)])
                continue
            if _is_whole(c):
                (name,) = map(field_name, dims.free_names(c.left))
                lines.append(_assertion(f"isinstance(self.{name}, int)", self.message(c.message)))
                continue
            left, right = text(a), text(b)
            bounds.setdefault((left, named_message(c)), []).append((c.op, right))
        for (left, message), found in bounds.items():
            if [op[0] for op, _ in found] == [">", "<"]:
                (low, least), (high, most) = found
                lines.append(f"        assert {least} {BACKWARDS[low]} {left} {high} {most}, {self.message(message)}")
                continue
            for op, right in found:
                lines.append(_assertion(f"{left} {op} {right}", self.message(message), f'"{quoted(message)}"'))
        for name, value in self.classes.choices.items():
            test = f"self.{field_name(name)} {'==' if isinstance(value, str) else 'is'} {literal(value)}"
            message = FIXED_NUMBER.replace("this number", f"{name} == {value}")
            lines.append(_assertion(test, self.message(message), f'"{quoted(message)}"'))
        return ["", "    def __post_init__(self) -> None:", *lines] if lines else []

    def _sizes(self, names: Sequence[str]) -> list[str]:
        """The lines that assert that the Config's sizes are whole numbers of at least 1, and make them ints."""
        others = [f'"{name}"' for name in map(field_name, self.fields) if name not in names]
        lines = [
            'assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"',
            "setattr(self, name, int(size))  # 24.0 is 24",
        ]
        if self.all_are_fields and len(others) < len(names):
            if others:
                test = f"name != {others[0]}" if len(others) == 1 else f"name not in ({', '.join(others)})"
                lines = [f"if {test}:", *(f"    {line}" for line in lines)]
            lines = ["for name, size in vars(self).items():", *(f"    {line}" for line in lines)]
        else:
            shown = ", ".join(f'"{name}"' for name in names)
            loop = f"for name in ({shown}{',' * (len(names) == 1)}):"
            lines = [loop, "    size = getattr(self, name)", *(f"    {line}" for line in lines)]
        return [f"        {line}" for line in lines]

    @property
    def fields(self) -> Iterable[str]:
        """Names of the spec that are fields of the Config."""
        return [*self.classes.config, *self.classes.choices]


def choice_fields(choices: Mapping[str, bool | str | None]) -> list[str]:
    """The lines of a Config that give its fields that are no numbers."""
    return [
        f"    {field_name(n)}: {type(v).__name__ if v is not None else 'None'} = {literal(v)}"
        for n, v in choices.items()
    ]


def literal(value: bool | str | None) -> str:
    """A value that is no number as Python writes it."""
    return f'"{quoted(value)}"' if isinstance(value, str) else str(value)


def _is_whole(c: Condition) -> bool:
    """Whether a condition says that a field is a whole number, which for Python is one of another type."""
    return c.op == "==" and isinstance(c.left, Bin) and isinstance(c.left.left, Var) and c.left.right == ONE


class ClassWriter:
    """Writes one class: of a group, or of the model itself (None)."""

    def __init__(self, file: FileWriter, group: ClassGroup | None) -> None:
        self.file, self.group = file, group
        self.classes = file.classes
        self.made: Class = self.classes.classes[group]
        self.block: Block = self.made.lowered.block
        made = {s.name for s in self.made.init if isinstance(s, Make)}
        self.attributes = made | {m.name for m in self.made.methods} | RESERVED
        self.settings: dict[str, Tree] = {}
        """What `__init__` keeps for the methods, by attribute."""
        self.kept: dict[Tree, Tree] = {}
        """The attribute that a name computed in `__init__` is, where methods read it."""
        self.twins: dict[str, str] = {}
        """Names that are another: `value_dim = head_dim`."""
        self.local = self._local()

    # --- names ---

    def _local(self) -> dict[str, Tree]:
        """Names that the class computes itself: `head_dim = config.width // config.heads`."""
        found: dict[str, Tree] = {}
        numbers = self.made.numbers
        for name, expr in self.block.local.items():
            if self.group is None and not self._is_worth_a_name(name, expr):
                continue
            if not any(numbers.is_dynamic(n) for n in dims.free_names(expr)):
                local = self._words(found)
                found[name] = self.classes.resolved(numbers.computed(name), self.group, local)
                given = {**(self.group.resolution if self.group is not None else {}), **local}
                twin = next((n for n, known in given.items() if known == found[name]), None)
                if twin is not None:
                    self.twins[name] = twin
        return found

    def _is_worth_a_name(self, name: str, expr: Expr) -> bool:
        """Whether the model's `__init__` computes a number of the spec by its name: a `let` that it reads, a default
        that is longer than a product of two numbers or read twice."""
        if name in self.classes.config or not isinstance(expr, Bin | Fn):
            return False
        parts = (expr.left, expr.right) if isinstance(expr, Bin) else expr.args
        arguments = [t for site in self.made.arguments.values() for t in site.values()]
        read = sum(isinstance(x, HyperLeaf) and x.name == name for t in (self.made.init, arguments) for x in leaves(t))
        least = 1 if name in self.block.hypers else 0
        return read > least or not all(isinstance(part, Lit | Var) for part in parts)

    def _words(self, names: Iterable[str]) -> dict[str, Tree]:
        """What names that the class computes itself are called, or what they are another name of."""
        given = self.group.resolution if self.group is not None else {}
        twins = {n: self.twins.get(n, n) for n in names}
        return {n: given.get(twin, word(argument(twin))) for n, twin in twins.items()}

    def resolved(self, tree: Any) -> Any:
        """An expression of `__init__` with all names as the class knows them."""
        local = self._words(self.local)

        def leaf(x: Any) -> Any:
            return self.classes.constructor(x.site, self.group, local) if isinstance(x, Made) else x

        return mapped(self.classes.resolved(tree, self.group, local), leaf)

    def static(self, name: str) -> Tree:
        """A name of the block in a method: a number, a field of the model's Config, or an attribute."""
        name = self.twins.get(name, name)
        leaf = HyperLeaf(name)
        tree: Tree = self.resolved(leaf) if self.group is not None else self.classes.resolved(leaf, None)
        if is_number(tree):
            return tree
        if self.holds_config():
            found: Tree = substituted(tree, OF_SELF)  # methods read `self.config`
            return found
        attribute = self._field(name, tree) or argument(name)
        while attribute in self.attributes or is_reserved(attribute) or self.settings.get(attribute, tree) != tree:
            attribute = f"num_{attribute.lstrip('_')}"
        self.settings[attribute] = tree
        return PyNode("Attribute", (SELF, attribute))

    def _field(self, name: str, tree: Tree) -> str | None:
        """Return the field of the Config that a name of the compiler's own stands for, `layers` for `init_layers`; None
        of a name of the spec's, and where the class has another thing that is called like the field."""
        if not (isinstance(tree, PyNode) and tree.kind == "Attribute" and tree.fields[0] == CONFIG):
            return None
        said = {*self.block.axes, *self.block.local, *(h.name for h in self.block.header.hypers or ())}
        field: str = tree.fields[1]
        return None if name in said or field in said or field in self.attributes else field

    def holds_config(self) -> bool:
        """Whether methods read numbers off `self.config`."""
        return self.group is None

    # --- text ---

    def text(self) -> str:
        self.methods = [self.scheduled(m) for m in self.made.methods]
        methods = [self.method(m) for m in self.methods]
        self.drawn = [self.in_method(_statement(s)) for s in self.made.init if isinstance(s, init.Statement)]
        draws = self.draws()
        name = self.group.name if self.group is not None else self.classes.root_class
        self.file.names |= {"nn", "Tensor"}
        head = [f"class {name}({self.parent()}):", self.docstring(), "", *self.of_class()]
        head += self.constructor(self.init(), bool(draws))
        methods = [draws] * bool(draws) + methods
        own = "\n".join([*head, *(line for i, m in enumerate(methods) for line in ([""] * (i > 0) + m))])
        more = (textwrap.indent(text, "    ") for s in self.file.sections for text in s.methods())
        known = (self.file.known(f"class {name}:\n{text}") for text in (more if self.group is None else ()))
        return "\n\n".join([lines_laid_out(own), *(text.partition("\n")[2] for text in known)])

    def parent(self) -> str:
        """What the class inherits from."""
        return "nn.Module"

    def of_class(self) -> list[str]:
        """Lines that give the class attributes, and an empty one."""
        return []

    def docstring(self) -> str:
        return _docstring(self.block) if self.group is not None else _where(self.block)

    def constructor(self, body: Sequence[str], draws: bool) -> list[str]:
        """The lines of `__init__`, given those that make what the class has; none where it has nothing."""
        if self.group is None:
            start = ["    def __init__(self, config: Config = Config()) -> None:", "        super().__init__()"]
            config = any("config" in attributes(body) for body in (self.drawn, *(m.body for m in self.methods)))
            config = config or any(section.reads_config for section in self.file.sections)
            closing = [line for s in self.file.sections for line in s.init()] + ["self.init_weights()"] * draws
            self.classes.closing[self.classes.root_class, "__init__"] = closing
            body = ["self.config = config"] * config + [*body, *closing]
            return [*start, *(f"        {text}" for text in body), ""]
        if body:
            parameters = ", ".join(["self", *self._parameters(self.group)])
            head = [f"    def __init__({parameters}) -> None:", "        super().__init__()"]
            return [*head, *(f"        {text}" for text in body), ""]
        # What it was to be given it can read off its tensors: callers, which come later, give it nothing.
        self.group.needs_config, self.group.arguments = False, []
        return []

    def draws(self) -> list[str]:
        """The lines of the method that draws weights: `init_weights` of the model, `reset_parameters` of a class that
        draws some."""

        def leaf(x: Any) -> str:
            return local_name(x.value.hint) if isinstance(x, Read) else part_text(x)

        self.file.names |= {*words(self.drawn)}
        body = list(lines(self.drawn, lambda variable: local_name(variable.hint), leaf))
        name = "reset_parameters"
        if self.draws_model():
            name = "init_weights"
            closing = [line for s in self.file.sections for line in s.draws()]
            self.classes.closing[self.classes.root_class, name] = closing
            parts = textwrap.indent(init.DRAW_PARTS, "        ").splitlines()
            body = [*parts, *body, *(f"        {line}" for line in closing)]
        copied = any(n.kind == "Attribute" and n.get("attr") == "copy_" for n in nodes(self.drawn))
        head = ["    @torch.no_grad()"] * copied + [f"    def {name}(self) -> None:"]
        return [*head, *body] if body else []

    def draws_model(self) -> bool:
        """Whether the class draws all weights of the model."""
        return self.group is None and any(True for _ in weights(self.file.model))

    def init(self) -> list[str]:
        """The lines of `__init__`: what it checks and computes, what methods read, then the modules."""
        steps = [s for s in self.made.init if isinstance(s, Make | Do)]
        checks: dict[Tree, str] = {}
        said = {c.message for c, _, _ in self.file.demands}  # by the Config, for all instances of the blocks that ask
        own = [s for s in self.made.init if isinstance(s, Check) and s.message not in said]
        for check in own + self.made.demands:
            checks.setdefault(self.resolved(mapped(check.test, self._spelled)), check.message)
        known = {t for t in checks if t in self.file.asserted or _is_trivial(t) or not [*_words(t)]}
        checks = {t: m for t, m in checks.items() if t not in known}
        computed = {word(argument(n)): t for n, t in self.local.items() if n not in self.twins}
        self.kept = {t: PyNode("Attribute", (SELF, n)) for n, t in self.settings.items() if t in computed}
        made = [(s, in_one(self.resolved(s.tree if isinstance(s, Make) else s.expr))) for s in steps]
        body = [self.line(t) if isinstance(s, Do) else f"self.{s.name} = {self.line(t)}" for s, t in made]
        local = {w.fields[0] for w in computed}
        late = {t: m for t, m in checks.items() if {*_words(t)} & local}
        used = {n for t in late for n in _words(t)} | {n for t in self.settings.values() for n in _words(t)}
        used |= {n for _, t in made for n in _words(t)}
        found: list[str] = []
        for target, tree in reversed(computed.items()):
            if target.fields[0] in used:
                used |= {*_words(tree)}
                found.insert(0, f"{self.line(target)} = {self.line(tree)}")
        kept = [f"self.{name} = {self.line(t)}" for name, t in self.settings.items() if t not in self.kept]
        self.file.names |= {*words([*checks])}
        return [
            *(asserted(t, m, str) for t, m in checks.items() if t not in late),
            *found,
            *(asserted(substituted(t, self.kept), m, str) for t, m in late.items()),
            *kept,
            *body,
        ]

    def _spelled(self, x: Any) -> Any:
        return self.made.numbers.tree(x, True) if isinstance(x, NumberLeaf) else x

    def line(self, tree: Any) -> str:
        """An expression of `__init__` as text."""
        tree = substituted(tree, self.kept)
        self.file.names |= {*words(tree)}
        return unparse(tree, self.init_leaf)

    def init_leaf(self, x: Any) -> str:
        """A leaf of an expression of `__init__`; variables of its loops get out of the way of its arguments."""
        if not isinstance(x, Read):
            return part_text(x)
        name = local_name(x.value.hint)
        arguments = self.group.arguments if self.group is not None else ()
        taken = {"config", *(argument(n) for n in (*arguments, *self.local))}
        while name in taken:
            name += "_"
        return name

    def _parameters(self, group: ClassGroup) -> list[str]:
        """Of the constructor; those with a default come last."""
        needed = [f"config: {self.classes.config_class}"] if group.needs_config else []
        optional = []
        for name in group.arguments:
            kind, value = "float" if self._is_float(group, name) else "int", default(group, name)
            if value is None:
                needed.append(f"{argument(name)}: {kind}")
            else:
                optional.append(f"{argument(name)}: {kind} = {self.line(value)}")
        return [*needed, *optional]

    def _is_float(self, group: ClassGroup, name: str) -> bool:
        value = group.block.hypers.get(name)
        if isinstance(value, Num):
            number = any(h.name == name and h.kind in NUMBERS for h in group.block.header.hypers or ())
            return number or not isinstance(value.value, int)
        if name in self.made.more:
            return not all(isinstance(v, int) for v in self.made.more[name])
        if init.draws_real(group.block, name):
            return True
        texts = (dims.expr_text(s.bind.get(name, Var(name))) for _, s in group.sites)
        return any(re.fullmatch(r"[\d_]*\.[\d_]+|[\d_.]+e-?\d+", text) for text in texts)

    # --- methods ---

    @property
    def forward(self) -> Scheduled:
        """The class's `forward`, once its text is known."""
        return next(m for m in self.methods if m.method.name == "forward")

    def in_method(self, s: Statement) -> Statement:
        """A statement with the block's names as methods read them."""
        made: Statement = mapped(s, lambda x: self.static(x.name) if isinstance(x, HyperLeaf) else x)
        return made

    def method(self, done: Scheduled) -> list[str]:
        """The lines of a method."""
        method, shown = done.method, ["self"]
        for p in method.parameters:
            self.file.names |= {*re.findall(r"\w+", p.type)}
            named = f"{'**' * p.rest}{done.names[p.target]}: {p.type}"
            shown.append(named + (f" = {p.default}" if p.default else ""))
        head = f"    def {method.name}({', '.join(shown)}) -> {method.returns}:"
        above = [f"    @{name}" for name in method.decorators]
        self.file.names |= {*re.findall(r"\w+", f"{method.gives} {' '.join(method.decorators)}")}
        doc = [f'        """{method.doc}"""'] if method.doc else []
        return [*above, head, *doc, *done.lines(done.body)]

    def scheduled(self, method: Method) -> Scheduled:
        """The statements of a method, and their names."""

        def name(value: Any) -> str:
            return preferred(value, method.hints)

        scheduler = Scheduler(method.steps, method.results, name)
        body: Sequence[Statement] = scheduler.run()
        for loop in scheduler.written_out:
            self._demand_counts(loop)
        body = [self.in_method(s) for s in body]
        read = {*words(body)}
        avoid = {*TAKEN, *read}
        self.file.names |= read
        parameters = [p.target for p in method.parameters]
        body, names = self.sized(method, body, lambda body: named(parameters, body, method.hints, avoid))
        return Scheduled(method, tuple(body), names)

    def _demand_counts(self, loop: Any) -> None:
        """What is written out iteration by iteration holds for these lengths only: other numbers of the user's are
        refused."""
        from archdsl.backends.torch.lists import counts

        for n in map(self.made.numbers.expression, counts(loop.pattern)):
            if dims.free_names(n.expr):
                assert isinstance(n.value, int)
                self.made.demands.append(Check(py("{a} == {n}", a=n, n=n.value), WRITTEN_OUT))

    # --- sizes that only the running model knows ---

    def sized(
        self, method: Method, body: Sequence[Statement], named: Callable[[Sequence[Statement]], Names]
    ) -> tuple[Sequence[Statement], Names]:
        """The statements with run-time sizes read off tensors, and names for all. A size that is read often is bound
        once, at the top; so is one of a tensor whose name another wants before."""
        counts = Counter(x.name for x in leaves(body) if isinstance(x, Axis))
        sizes = {n: self._run_time(n, method) for n in counts}
        tensors = {n: next(x.value for x in leaves(t) if isinstance(x, Read)) for n, t in sizes.items()}
        given = _given(method)  # of others no size is read at the top
        bound = {n for n, count in counts.items() if count > 1 and axis_of(n) is None and tensors[n] in given}
        while True:
            variables = {n: Variable(argument(n)) for n in sizes if n in bound}
            known = {n: Read(variables[n]) if n in bound else t for n, t in sizes.items()}
            opening = [Bind((v,), sizes[n], nested=False) for n, v in variables.items()]
            found = [*opening, *(mapped(s, partial(_sized, known)) for s in body)]
            names = named(found)
            bases = {preferred(v, method.hints) for v, n in names.items() if n != preferred(v, method.hints)}
            late = {n for n, v in tensors.items() if n not in bound and v in given and names[v] in bases}
            if not late:
                return found, names
            bound |= late

    def _run_time(self, name: str, method: Method) -> Tree:
        """How the running model knows a size: `tokens.size(1)`, of a tensor that is always given if there is one."""
        block, given = method.block or self.block, _given(method)
        axis = axis_of(name)
        if axis is not None:
            for part in (block, block.before):
                for v in block_tensors(part) if part is not None else ():
                    if any(isinstance(d.expr, Var) and d.expr.name == name for d in v.shape):
                        return py("{x}.size({i})", x=Read(v), i=axis)
            raise AssertionError(f"no tensor knows {name}")
        value = block.axes.get(name) or block.hypers.get(name)
        sizes = [(v, i, d) for v in block_tensors(block) for i, d in enumerate(v.shape)]
        found = [(v, i) for v, i, d in sizes if d.expr == Var(name) and not d.static]
        if isinstance(value, Num):
            found += [(v, i) for v in block.graph.inputs for i, d in enumerate(v.shape) if d.value == value.value]
        found = [f for f in found if f[0] not in method.unread] or found
        found = [f for f in found if f[0] not in method.whole] or found
        assert found, f"no tensor knows {name}"
        x, i = next((f for f in found if f[0] in given), found[0])
        return py("{x}.size({i})", x=Read(x), i=i)


def _given(method: Method) -> set[Any]:
    """The parameters that are never None."""
    return {p.target for p in method.parameters if "None" not in (p.default, p.type[-4:])}


def _assertion(test: str, *messages: str) -> str:
    """The line of an assertion of `__post_init__`, with the first of some messages that fits into it."""
    start = f"        assert {test}, "
    fitting = next((message for message in messages if len(start + message) <= WIDTH), None)
    return start + (fitting or messages[0 if len(start) < WIDTH else -1])


def _is_trivial(test: Any) -> bool:
    """Whether a test holds whatever its names are: `n == n`, `n % n == 0`."""
    if not isinstance(test, PyNode) or test.kind != "Compare" or test.fields[1] != (PyNode("Eq", ()),):
        return False
    left, (right,) = test.fields[0], test.fields[2]
    if right == py("0") and isinstance(left, PyNode) and left.kind == "BinOp" and left.fields[1] == PyNode("Mod", ()):
        left, right = left.fields[0], left.fields[2]
    return bool(left == right)


def _sized(known: Mapping[str, Tree], x: Any) -> Any:
    return known[x.name] if isinstance(x, Axis) else x


def _words(tree: Any) -> Iterator[str]:
    return words(tree)


def _statement(s: init.Statement) -> Statement:
    """A statement that draws weights, as one of a method."""
    if isinstance(s, init.InitCall):
        return Do(s.tree)
    return ForLoop((s.variable,), s.iterated, tuple(map(_statement, s.body)))


def _as_written(value: Num) -> str:
    """A number as the spec spells it (`10_000`, `1e-5`)."""
    whole = isinstance(value.value, int)  # which `64.0` is, too
    if value.origin is not None and re.fullmatch(r"[\d_]+" if whole else r"[\d_]+(\.\d+)?(e-?\d+)?", value.origin.text):
        return value.origin.text
    if isinstance(value.expr, Lit):
        return dims.expr_text(value.expr)
    assert not isinstance(value.value, Poly)  # a field of the Config is static
    return dims.expr_text(dims.literal(value.value))


def _docstring(block: Block) -> str:
    text = "\n    ".join(textwrap.wrap(first_sentence(block.doc), WIDTH - 10))
    return f'    """{text}"""' if text else _where(block)


def _where(block: Block) -> str:
    return f'    """{block.name} ({quoted(portable(str(block.span)))})"""'


__all__ = ["PLAIN", "Extras", "FileWriter", "emit"]
