"""The file: header, Config, helpers, one class for each group of blocks, and the model."""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from archdsl.analyses.params import total
from archdsl.ir import dims
from archdsl.ir.dims import Lit, Num, Poly, Var
from archdsl.ir.frame import MODULE_ATTRIBUTES
from archdsl.ir.graph import Block, Model, Value
from archdsl.ir.op import ATOM
from archdsl.lower.python import WIDTH, field_name, formatted, local_name
from archdsl.lower.torch.block import BlockWriter
from archdsl.lower.torch.classes import Classes, FinalResolver, default, is_dynamic
from archdsl.lower.torch.extras import PLAIN, Extras, Section, sections
from archdsl.lower.torch.imports import imports
from archdsl.lower.torch.reading import block_tensors
from archdsl.lower.torch.text import NAME_TOKEN, NUMBER, Line, argument, first_sentence, in_forward, quoted
from archdsl.lower.torch.written import Group, Written
from archdsl.version import __version__


class FileWriter:
    """Writes one model's file."""

    def __init__(self, model: Model, extras: Extras = PLAIN) -> None:
        self.model = model
        self.extras = extras
        self.classes = Classes(model)
        self.sections: list[Section] = []

    def write(self, layout: bool = True) -> str:
        self.sections = sections(self, self.extras)
        self.classes.settle(self._further)
        helpers: dict[str, str] = {}
        early: set[str] = set()
        for written in self.classes.written():
            early |= written.early
            for name, source in written.helpers.items():
                helpers.setdefault(name, source.strip())
        for section in self.sections:
            helpers |= section.helpers()
        texts = [self._class(g) for g in self.classes.groups]
        below = [text.strip() for section in self.sections for text in section.functions()]
        parts = [self._config(), *in_order(helpers, early), *texts, self._root_class(), *below]
        parts = [self._header("\n".join(parts)), *parts]
        return "\n\n\n".join(formatted(part) if layout else part for part in parts) + "\n"

    def _further(self) -> None:
        """Methods of classes beside `forward`."""
        for section in self.sections:
            section.write()

    def _methods(self, group: Group | None, r: FinalResolver, made: Sequence[str]) -> tuple[list[str], list[str]]:
        """The lines of a class's methods beside `forward`, and those that `__init__` makes for them."""
        lines: list[str] = []
        settings: list[str] = []
        for section in self.sections:
            for name, writer in section.further(group):
                method = Forward(self.model, writer, r, made)
                lines += ["", *method.method(name)]
                settings += method.settings
        return lines, settings

    # --- top of the file ---

    def _header(self, body: str) -> str:
        model = self.model
        title = first_sentence(model.doc) or f"{model.name}."
        digest = hashlib.sha256(model.source_text.encode()).hexdigest()[:12]
        source = quoted(model.source_name)
        made = f"{total(model):,} parameters. Made by archdsl {__version__} from {source} ({digest}):"
        command = f"archdsl compile {source}:{model.name} --to torch{self.extras.options}"
        return "\n".join([f'"""{quoted(title)}', "", made, f"    {command}", '"""', "", *imports(body)])

    def _config(self) -> str:
        lines = ["@dataclass(frozen=True)", "class Config:"]
        for name, value in self.classes.config.items():
            kind = "int" if isinstance(value.value, int) else "float"
            lines.append(f"    {field_name(name)}: {kind} = {_as_written(value)}")
        if not self.classes.config:
            lines.append('    """The spec has no numbers to set."""')
        return "\n".join(lines)

    # --- classes ---

    def _class(self, group: Group) -> str:
        w, writer = group.final, self.classes.writer(group)
        computed = self._computed(group)
        r = FinalResolver(self.classes, group, {name: argument(name) for name in computed})
        init = Init.of(w, r)
        prepare: list[str] = []
        settings: dict[str, None] = {}
        if w.before is not None:
            assert writer.preparing is not None
            first = Forward(self.model, writer.preparing, r, init.modules)
            prepare = [*first.method("prepare"), ""]
            settings |= dict.fromkeys(first.settings)
        forward = Forward(self.model, writer, r, init.modules)
        settings |= dict.fromkeys(forward.settings)
        further, needed_by_them = self._methods(group, r, init.modules)
        settings |= dict.fromkeys(needed_by_them)
        used = "\n".join([*init.asserts, *init.modules, *settings])
        needed = [text for name, text in computed.items() if _mentions(used, argument(name))]
        body = init.lines(needed, settings, computed)
        lines = [f"class {group.name}(nn.Module):", _docstring(group.block), ""]
        if body:
            parameters = ", ".join(["self", *self._parameters(group)])
            lines += [f"    def __init__({parameters}) -> None:", "        super().__init__()"]
            lines += [*(f"        {text}" for text in body), ""]
        else:  # what it was to be given it can read off its tensors: callers, which come later, give it nothing
            group.needs_config, group.arguments = False, []
        return "\n".join([*lines, *prepare, *forward.method("forward"), *further])

    def _root_class(self) -> str:
        writer, block = self.classes.root, self.model.block
        r = FinalResolver(self.classes, None)
        init = Init.of(writer.written, r)
        method = [*self.root_forward(), *self._methods(None, r, init.modules)[0]]
        where = f"{block.name} ({quoted(str(block.span))})"
        lines = [f"class {self.classes.root_class}(nn.Module):", f'    """{where}"""', ""]
        lines += ["    def __init__(self, config: Config = Config()) -> None:", "        super().__init__()"]
        if any("self.config" in text for text in method):
            lines.append("        self.config = config")
        lines += [f"        {text}" for text in (*init.asserts, *init.modules)]
        lines += [f"        {text}" for section in self.sections for text in section.init()]
        added = [text for section in self.sections for text in section.methods()]
        return "\n".join([*lines, "", *method, *(f"\n{textwrap.indent(text.strip(), '    ')}" for text in added)])

    def root_forward(self) -> list[str]:
        """The lines of the model's own `forward`."""
        r = FinalResolver(self.classes, None)
        init = Init.of(self.classes.root.written, r)
        own = next((lines for s in self.sections if (lines := s.forward()) is not None), None)
        return [*own] if own is not None else Forward(self.model, self.classes.root, r, init.modules).method("forward")

    def root_attributes(self) -> list[str]:
        """What the model's own `__init__` sets, in order."""
        init = Init.of(self.classes.root.written, FinalResolver(self.classes, None))
        config = ["config"] * any("self.config" in text for text in self.root_forward())
        return [*config, *(m[1] for t in init.modules if (m := re.match(r"self\.(\w+) = ", t)))]

    def _parameters(self, group: Group) -> list[str]:
        """Of the constructor; those with a default come last."""
        needed = ["config: Config"] if group.needs_config else []
        optional = []
        for name in group.arguments:
            kind, value = "float" if self._is_float(group, name) else "int", default(group, name)
            if value is None:
                needed.append(f"{argument(name)}: {kind}")
            else:
                optional.append(f"{argument(name)}: {kind} = {value}")
        return [*needed, *optional]

    def _is_float(self, group: Group, name: str) -> bool:
        value = group.block.hypers.get(name)
        if isinstance(value, Num):
            number = any(h.name == name and h.kind == "number" for h in group.block.header.hypers or ())
            return number or not isinstance(value.value, int)
        texts = (dims.expr_text(s.bind.get(name, Var(name))) for s in group.sites)
        return any(re.fullmatch(r"[\d_]*\.[\d_]+|[\d_.]+e-?\d+", text) for text in texts)

    def _computed(self, group: Group) -> dict[str, str]:
        """Names that the class computes itself, and the statements: `head_dim = config.width // config.heads`."""
        found: dict[str, str] = {}
        block, numbers = group.block, self.classes.writer(group).numbers
        for name, expr in block.local.items():
            if not any(is_dynamic(block, n) for n in dims.free_names(expr)):
                r = FinalResolver(self.classes, group, {n: argument(n) for n in found})
                found[name] = f"{argument(name)} = {numbers.text(expr, 0, r.name, True)}"
        return found


@dataclass(frozen=True)
class Init:
    """Lines of an `__init__`: what it checks, and what it makes."""

    asserts: list[str]
    modules: list[str]

    @staticmethod
    def of(w: Written, r: FinalResolver) -> Init:
        lines = [text for text in (line(r) for line in w.init) if text]
        asserts = [text for text in lines if text.startswith("assert ")]
        # Each condition once, with the first of its messages.
        once = {text.partition(', "')[0]: text for text in reversed(asserts)}
        return Init(list(once.values())[::-1], [text for text in lines if not text.startswith("assert ")])

    def lines(self, computed: Sequence[str], settings: Iterable[str], names: Iterable[str]) -> list[str]:
        """All of them, with what the class computes itself: conditions stand as early as its names allow."""
        late = [text for text in self.asserts if any(_mentions(text, argument(n)) for n in names)]
        early = [text for text in self.asserts if text not in late]
        return [*early, *computed, *late, *settings, *self.modules]


class Forward:
    """A `forward` (or `prepare`) with every name in place: `settings` are the lines that `__init__` makes for it."""

    def __init__(self, model: Model, writer: BlockWriter, r: FinalResolver, made: Sequence[str]) -> None:
        self.model = model
        self.writer = writer
        self.block = writer.block
        self.resolver = r
        self.attributes = {m[1] for t in made if (m := re.match(r"self\.(\w+) = ", t))} | MODULE_ATTRIBUTES
        self.counts = Counter(m[1] for _, t in writer.written.forward for m in NAME_TOKEN.finditer(t))
        self.sizes: dict[str, str] = {}
        """Names that only the running model knows, and their texts."""
        self.opening: list[str] = []
        self.set: dict[str, str] = {}
        self.taken: set[str] = set()
        """Locals bound so far."""
        self.lines: list[Line] = []
        for indent, text in writer.written.forward:
            self.lines.append((indent, self._filled(text)))
            self.taken.update(re.findall(r"\w+", m[1]) if (m := re.match(r"([\w, ]+) = ", text)) else ())

    @property
    def settings(self) -> list[str]:
        return [f"self.{name} = {text}" for name, text in self.set.items()]

    def method(self, name: str) -> list[str]:
        w = self.writer.written
        head = f"    def {name}({', '.join(['self', *map(str, w.parameters)])}) -> {w.returns}:"
        body = [*((0, text) for text in self.opening), *self.lines]
        return [head, *(f"        {'    ' * i}{text}" for i, text in body)]

    def _filled(self, text: str) -> str:
        return NAME_TOKEN.sub(lambda m: self._placed(m[1]), text)

    def _placed(self, name: str) -> str:
        if name not in self.sizes:
            size = self._run_time(name)
            if size is None:
                return self._static(name)
            size = self._filled(size)
            local = argument(name)
            often = self.counts[name] > 1 and "." not in name
            late = size.partition(".")[0] in self.writer.late
            changes = self._changes(size, self.counts[name] == 1)
            if (often or changes) and not late and local not in self.writer.locals.holder:
                self.opening.append(f"{local} = {size}")
                size = local
            self.sizes[name] = size
        return self.sizes[name]

    def _changes(self, size: str, once: bool) -> bool:
        """Whether `x.size(1)` is another number where a later value has taken the name x; a size that is read `once` is
        read in the line being filled."""
        found = re.fullmatch(r"(\w+)\.size\((\d+)\)", size)
        if found is None:
            return False
        name, axis = found[1], int(found[2])
        if once and name not in self.taken:
            return False
        held = [v for v, text in self.writer.locals.bound.items() if text == name]
        return any(v.rank <= axis or v.shape[axis].value != held[0].shape[axis].value for v in held[1:])

    def _static(self, name: str) -> str:
        """A number, a field of the model's Config, or an attribute that `__init__` sets."""
        text = self.resolver.name(name)
        if NUMBER.fullmatch(text):
            return text
        if self.resolver.group is None:
            return re.sub(r"\bconfig\.", "self.config.", text)
        attribute = argument(name)
        if attribute in self.attributes:
            attribute = f"num_{attribute}"
        self.set[attribute] = text
        return f"self.{attribute}"

    def _run_time(self, name: str) -> str | None:
        """How the running model knows a size: `tokens.size(1)`; None for a static one."""
        block, bound = self.block, self.writer.locals.bound
        if "." in name:
            tensor, _, axis = name.rpartition(".")
            for v in block_tensors(block):
                if any(isinstance(d.expr, Var) and d.expr.name == name for d in v.shape):
                    return f"{bound.get(v, local_name(tensor))}.size({axis})"
            return None
        value = block.axes.get(name)
        if value is None:
            value = block.hypers.get(name)
        if isinstance(value, Num) and value.static:
            return None
        if self.resolver.group is None and (name in self.resolver.classes.config or name in block.local):
            return None
        contexts = [c.value for c in block.contexts if isinstance(c.value, Value)]
        texts = dict(zip(block.graph.inputs, map(local_name, block.tensor_names), strict=True))
        texts |= {v: bound[v] for v in contexts if v in bound}
        for v, text in texts.items():
            for i, d in enumerate(v.shape):
                if d.expr == Var(name) and not d.static:
                    return f"{text}.size({i})"
        if isinstance(value, Num):
            for v in block.graph.inputs:
                for i, d in enumerate(v.shape):
                    if d.value == value.value:
                        return f"{texts[v]}.size({i})"
        inner = block.local.get(name)
        if inner is not None and any(self._run_time(n) is not None for n in dims.free_names(inner)):
            return self.writer.numbers.text(inner, ATOM, in_forward, False)
        return None


def in_order(helpers: Mapping[str, str], early: Set[str]) -> list[str]:
    """Sources of helpers: those that come early, then the others, as they were first used; but each after those that it
    builds on."""
    wanted = sorted(helpers, key=lambda name: name not in early)
    found: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in found:
            names = {n.id for n in ast.walk(ast.parse(helpers[name])) if isinstance(n, ast.Name)}
            for other in wanted:
                if other in names and other != name:
                    add(other)
            found[name] = helpers[name]

    for name in wanted:
        add(name)
    return list(found.values())


def _as_written(value: Num) -> str:
    """A number as the spec spells it (`10_000`, `1e-5`)."""
    if value.origin is not None and re.fullmatch(r"[\d_]+(\.\d+)?(e-?\d+)?", value.origin.text):
        return value.origin.text
    if isinstance(value.expr, Lit):
        return dims.expr_text(value.expr)
    assert not isinstance(value.value, Poly)  # a field of the Config is static
    return dims.expr_text(dims.literal(value.value))


def _mentions(text: str, name: str) -> bool:
    """Whether a text reads a name: neither an attribute nor the keyword of an argument is one."""
    return re.search(rf"(?<![.\w]){name}\b(?!=[^=])", text) is not None


def _docstring(block: Block) -> str:
    text = "\n    ".join(textwrap.wrap(first_sentence(block.doc), WIDTH - 10))
    where = f"{block.name} ({quoted(str(block.span))})"
    return f'    """{text}\n\n    {where}\n    """' if text else f'    """{where}"""'
