"""The module that is lifted: found by its name, built as it was asked for, and in other configurations.

This is the only place of the compiler that runs somebody's code, which is what was asked for: a file is executed, a
class of it or a function is called, and the module that it gives is called. What it prints goes to standard error."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import linecache
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from archdsl.diagnostics import ArchError, did_you_mean, error, shortened
from archdsl.diagnostics.source import printable
from archdsl.files import read_bytes
from archdsl.interop.huggingface import without_code
from archdsl.interop.importing import MOST_LAYERS
from archdsl.packages import install

MAX_SOURCE = 16 * 2**20
"""Most bytes of a file of Python."""
MOST_NUMBERS = 1 << 27
"""A module of more parameters is traced without their numbers, and compared in other configurations alone."""
TRANSFORMERS = "transformers"

Number = int | float


# --- what somebody's code does ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Keep what somebody's code prints out of standard output, and the state of random numbers as it was."""
    with contextlib.redirect_stdout(sys.stderr), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@contextlib.contextmanager
def asked(what: str, code: str = "E0544", help: str = "") -> Iterator[None]:
    """Run somebody's code: whatever it raises, `SystemExit` too, becomes an ArchError that begins with `what` and names
    the line."""
    try:
        yield
    except (ArchError, MemoryError, RecursionError):
        raise
    except (Exception, SystemExit) as problem:
        raise error(code, f"{what}: {said(problem)}", notes=where(problem), help=help) from None


def said(problem: BaseException) -> str:
    """Return the class of an exception and the first line of what it says."""
    try:
        text = next((line.strip() for line in str(problem).splitlines() if line.strip()), "")
    except Exception:  # a class of somebody's may have no text at all
        text = ""
    name = type(problem).__name__
    return printable(shortened(f"{name}: {text}" if text else name, 200))


def where(problem: BaseException) -> list[str]:
    """Return the innermost line of somebody's code that an exception went through, as `file:line: text`."""
    if isinstance(problem, SyntaxError) and problem.filename and problem.lineno:
        return [printable(shortened(f"{Path(problem.filename).name}:{problem.lineno}: {(problem.text or '').strip()}"))]
    libraries = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), str(Path(typing.__file__).parent))
    own = [f for f in traceback.extract_tb(problem.__traceback__) if not f.filename.startswith(libraries)]
    return [printable(shortened(f"{Path(f.filename).name}:{f.lineno}: {f.line or ''}")) for f in own[-1:]]


# --- modules that can be built again ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A module that is lifted, and how to build it with other numbers."""

    name: str
    """Of its class, or of the function that makes it."""
    build: Callable[[Mapping[str, Number]], nn.Module]
    """A new module in which fields of its configuration have other values. Raises ArchError E0544."""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    """The fields of its configuration that are numbers."""
    config: Any = None
    """Of a class of transformers, its configuration."""
    fixed: nn.Module | None = None
    """A module that was built before; `build` gives no other where there are no `numbers`."""
    origin: str = ""
    """Where it comes from, for the first line of the spec."""

    def made(self, changes: Mapping[str, Number] | None = None) -> nn.Module:
        """Return the module in evaluation mode, or a new one with other values. Parameters that are more than
        `MOST_NUMBERS` have sizes and no numbers. Raises ArchError E0544."""
        if self.fixed is not None and not changes:
            return self.fixed
        module = hollow(lambda: self.build(changes or {}))
        if module is None or sum(p.numel() for p in module.parameters()) <= MOST_NUMBERS:
            module = self.build(changes or {})
        return prepared(module)


def prepared(module: nn.Module) -> nn.Module:
    """Return a module in evaluation mode that keeps no cache of what it has read."""
    for config in caching(module):
        config.use_cache = False
    return module.eval()


def caching(module: nn.Module) -> list[Any]:
    """The configurations, of the module and of its parts, that ask for a cache."""
    configs = {id(c): c for part in module.modules() if (c := getattr(part, "config", None)) is not None}
    return [c for c in configs.values() if getattr(c, "use_cache", None) is True]


def is_hollow(module: nn.Module) -> bool:
    """Whether the parameters of a module have no numbers of their own."""
    return any(p.numel() > 1 and not any(p.stride()) for p in module.parameters())


def hollow(build: Callable[[], nn.Module]) -> nn.Module | None:
    """Build a module whose parameters take no memory: each is one number at every index. Its buffers are as they are.
    None where its constructor computes with parameters, or anything else stops it."""
    register = nn.Module.register_parameter

    def without_numbers(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:
            self._parameters[name] = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)

    nn.Module.register_parameter = without_numbers  # type: ignore[method-assign]
    try:
        module = build()
    except (ArchError, RuntimeError, ValueError):
        return None
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
    if any(b.is_meta for b in module.buffers()):
        return None
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                # Other numbers in each: what a part computes may be recognized by its numbers.
                number = torch.tensor(0.02 + 0.01 * (len(made) % 7), dtype=parameter.dtype).expand(parameter.shape)
                part._parameters[name] = made.setdefault(id(parameter), nn.Parameter(number, requires_grad=False))
    return module


# --- found by name ----------------------------------------------------------------------------------------------------

FORM = "write it as `file.py:Name`, a class or a function that returns a module, or as `transformers:Class`"


def found(text: str, args: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Subject:
    """Return the module of that name: `file.py:Name`, a class or a function, called with `args`, or
    `transformers:Class` with the fields of a `config`, of which `args` replace some.

    Raises ArchError E0543 where there is no such thing, E0544 where its code raises something."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise error("E0543", f"`{shortened(text)}` names no module", help=FORM)
    if place == TRANSFORMERS:
        return _of_transformers(name, {**(config or {}), **args})
    if config is not None:
        raise error("E0543", "`--config` is of a class of transformers", help="`--args` gives arguments")
    module = executed(Path(place))
    kinds = {k: v for k, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__}
    target = vars(module).get(name)
    modules = [k for k, v in kinds.items() if isinstance(v, type) and issubclass(v, nn.Module)]
    listed = f"modules of it are {', '.join(modules[:8])}" if modules else FORM
    if target is None:
        raise error("E0543", f"`{place}` has no `{shortened(name)}`", help=did_you_mean(name, kinds) or listed)
    if isinstance(target, nn.Module):
        return of_module(target, name)
    if not callable(target) or (isinstance(target, type) and not issubclass(target, nn.Module)):
        raise error("E0543", f"`{shortened(name)}` in `{place}` is no class of modules, and no function", help=listed)
    return of_callable(target, args, module, f"{Path(place).name}:{name}")


def executed(path: Path) -> ModuleType:
    """Execute a file of Python as a module that is imported by nobody else. Modules beside it can be imported by it.

    Raises ArchError E0543 where there is no such file, E0544 where it raises something."""
    try:
        source = read_bytes(path, MAX_SOURCE)
    except OSError as problem:
        raise error("E0543", f"`{path}` cannot be read: {problem.strerror}", help=FORM) from None
    module = ModuleType(f"archdsl_lifted_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}")
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module  # dataclasses look their module up while they are made
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    linecache.checkcache(module.__file__)
    with asked(f"`{path}` cannot be executed"):
        if b"\0" in source:  # of which each version of Python says something else
            raise SyntaxError("a zero byte")
        exec(compile(source, module.__file__, "exec", dont_inherit=True), module.__dict__)
    return module


def _of_transformers(name: str, fields: dict[str, Any]) -> Subject:
    try:
        import transformers
    except ImportError:
        raise error(
            "E0502", "`transformers:` needs the package transformers", help=f"{install('torch')} transformers"
        ) from None
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    cls = getattr(transformers, name, None) if name.isidentifier() and not name.startswith("_") else None
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        classes = [n for n in dir(transformers) if n.endswith(("ForCausalLM", "ForMaskedLM", "Model", "LMHeadModel"))]
        raise error("E0543", f"transformers has no model `{shortened(name)}`", help=did_you_mean(name, classes))
    kind: Any = cls.config_class
    own = getattr(kind, "model_type", "")
    if fields.get("model_type", own) != own:
        raise error("E0543", f"`{name}` is of `{own}`, and the config of `{shortened(str(fields['model_type']))}`")
    for field_name, path in _number_paths(fields).items():
        if role(field_name) in ("layers", "experts") and _at(fields, path) > MOST_LAYERS:
            raise error("E0543", f"the config has more than {MOST_LAYERS:,} in `{field_name}`")
    with asked(f"`{kind.__name__}` cannot be made of this config"):
        config = kind.from_dict(without_code(fields))
    return _of_config(cls, config)


def _of_config(cls: Any, config: Any, fixed: nn.Module | None = None) -> Subject:
    """A class of transformers with its configuration."""
    whole = _own_fields(config)
    paths = _number_paths(whole)

    def build(changes: Mapping[str, Number]) -> nn.Module:
        with asked(f"`{cls.__name__}` cannot be built{_with(changes)}"):
            wanted = _attending(type(config).from_dict(without_code(_changed(whole, changes, paths))))
            module: nn.Module = cls(wanted)
            return module.float()

    return Subject(
        cls.__name__,
        build,
        {name: _at(whole, path) for name, path in paths.items()},
        config,
        fixed,
        f"{TRANSFORMERS}:{cls.__name__}",
    )


def _attending(config: Any) -> Any:
    """The config with attention as operators where one call of it cannot cap the scores."""
    capped = any("softcap" in name and value for name, value in config.to_dict().items())
    config._attn_implementation = "eager" if capped or config.model_type in SINKS else "sdpa"
    return config


SINKS = ("gpt_oss",)
"""Types whose attention has sinks, which no call of PyTorch takes."""


def _own_fields(config: Any) -> dict[str, Any]:
    """The fields of a configuration of transformers without those that follow from others: sizes of a head that are the
    width by the heads, kinds of layers that the class makes by itself."""
    whole = dict(config.to_dict())
    defaults = {p.name: p.default for p in parameters_of(type(config))}
    for name in [n for n, v in whole.items() if defaults.get(n, 0) is None and v is not None]:
        without = {k: v for k, v in whole.items() if k != name}
        with contextlib.suppress(Exception):  # the class may need it
            if type(config).from_dict(without_code(without)).to_dict() == config.to_dict():
                whole = without
    return whole


def _changed(
    whole: Mapping[str, Any], changes: Mapping[str, Number], paths: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """A config with other numbers. Lists with an item for each layer are cut, or repeated from their start."""
    new = deepcopy(dict(whole))
    for name, value in changes.items():
        inner: Any = new
        for key in paths[name][:-1]:
            inner = inner[key]
        inner[paths[name][-1]] = value
    layers = next((n for n in changes if role(n) == "layers"), None)
    if layers is not None:
        before, after = _at(whole, paths[layers]), int(changes[layers])
        for name, value in whole.items():
            if isinstance(value, list) and len(value) == before > 0:
                new[name] = [value[i % before] for i in range(after)]
    return new


def _number_paths(whole: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Where the numbers of a tree of settings are, by their own names; of two of one name the outer, or the first."""
    found = {k: (*above, k) for k, v in whole.items() if type(v) in (int, float) and isinstance(k, str)}
    for key, value in whole.items():
        if isinstance(value, dict) and isinstance(key, str):
            found = {**_number_paths(value, (*above, key)), **found}
    return {k: path for k, path in found.items() if not NO_SIZE.fullmatch(k)}


NO_SIZE = re.compile(
    r"(.*_)?id(s|2label)?|LABEL_\d+|.*seed.*|_.*|.*dropout.*|.*pdrop|init.*|.*_range|.*loss.*|.*version.*|pretraining_tp|"
    r"chunk_size_feed_forward|.*jitter.*|num_labels|\d+|.*(max|min)_length|num_beam.*|.*penalty|temperature|top_p"
)
"""Numbers of a configuration that say nothing about sizes."""


def _at(tree: Any, path: Sequence[str]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def of_module(module: nn.Module, name: str = "") -> Subject:
    """A module that is there. It is built again from its `config`, where its class takes that and nothing else."""
    config = getattr(module, "config", None)
    name = name or type(module).__name__
    if callable(getattr(config, "to_dict", None)) and hasattr(type(config), "from_dict"):
        return _of_config(type(module), config, module)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        needed = [p for p in parameters_of(type(module)) if p.default is p.empty]
        if len(needed) == 1:
            numbers = _numbers_of(config)

            def build(changes: Mapping[str, Number]) -> nn.Module:
                with asked(f"`{name}` cannot be built{_with(changes)}"):
                    other: nn.Module = type(module)(dataclasses.replace(config, **changes))
                    return other

            return Subject(name, build, numbers, None, module, name)
    return Subject(name, lambda _: module, {}, None, module, name)


def of_callable(
    target: Callable[..., Any], args: Mapping[str, Any], scope: ModuleType | None = None, origin: str = ""
) -> Subject:
    """A class of modules, or a function that returns one, called with `args` by keyword. A dict for a parameter whose
    annotation is a dataclass, or a class of the same file, becomes one of it. Raises ArchError E0543 for arguments that
    it does not take."""
    name = getattr(target, "__name__", type(target).__name__)
    parameters = {p.name: p for p in parameters_of(target)}
    keywords = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for given in args:
        if given not in parameters and not keywords:
            raise error(
                "E0543", f"`{name}` has no parameter `{shortened(given)}`", help=did_you_mean(given, parameters)
            )
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in args
    ]
    if missing:
        example = f"--args '{{\"{missing[0]}\": …}}'"
        raise error("E0543", f"`{name}` needs {', '.join(f'`{m}`' for m in missing[:5])}", help=f"`{example}`")
    hints = _hints(target)

    def arguments() -> dict[str, Any]:
        made = {p.name: p.default for p in parameters.values() if p.default is not p.empty} | dict(args)
        return {k: _typed(deepcopy(v), hints.get(k), scope) for k, v in made.items()}

    with asked(f"the arguments of `{name}` cannot be made", "E0543"):
        whole = arguments()
    numbers: dict[str, Number] = {}
    owners: dict[str, str] = {}
    for key, value in whole.items():
        inside = {key: value} if type(value) in (int, float) else _numbers_of(value)
        for field_name, number in inside.items():
            if field_name not in numbers and not NO_SIZE.fullmatch(field_name):
                numbers[field_name], owners[field_name] = number, key

    def build(changes: Mapping[str, Number]) -> nn.Module:
        with asked(f"`{name}` cannot be built{_with(changes)}", help="`--args` gives its arguments"):
            given = arguments()
            for field_name, number in changes.items():
                key = owners[field_name]
                given[key] = number if key == field_name else _replaced(given[key], field_name, number)
            module = target(**given)
        if not isinstance(module, nn.Module):
            raise error("E0543", f"`{name}` returns {type(module).__name__}, and no module of torch")
        return module

    return Subject(name, build, numbers, None, None, origin or name)


def _with(changes: Mapping[str, Number]) -> str:
    return f" with {', '.join(f'{k}={v}' for k, v in [*changes.items()][:8])}" if changes else ""


def parameters_of(target: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function or class; none where Python does not know them, as for `torch.relu`."""
    try:
        return [*inspect.signature(target).parameters.values()]
    except (TypeError, ValueError):
        return []


def _hints(target: Any) -> dict[str, Any]:
    """The annotations of what is called, as types where they can be evaluated."""
    function = inspect.getattr_static(target, "__init__") if isinstance(target, type) else target
    try:
        return typing.get_type_hints(function)
    except Exception:  # a name that is imported for the type checker alone
        return dict(getattr(function, "__annotations__", {}))


def _typed(value: Any, hint: Any, scope: ModuleType | None) -> Any:
    """A dict as an object of the class that its parameter is annotated with, if it is a dataclass or of the same file;
    without an annotation, of the one dataclass of the file that has all its fields."""
    if not isinstance(value, dict):
        return value
    own = vars(scope) if scope is not None else {}
    if isinstance(hint, str):
        hint = own.get(hint)
    if hint is None:
        fitting = [
            c
            for c in own.values()
            if isinstance(c, type)
            and dataclasses.is_dataclass(c)
            and {*value} <= {f.name for f in dataclasses.fields(c)}
        ]
        return _made(fitting[0], value, scope) if len(fitting) == 1 else value
    for cls in (hint, *typing.get_args(hint)):
        in_file = scope is not None and getattr(cls, "__module__", None) == scope.__name__
        if isinstance(cls, type) and (dataclasses.is_dataclass(cls) or in_file):
            return _made(cls, value, scope)
    return value


def _made(cls: Any, fields: Mapping[str, Any], scope: ModuleType | None) -> Any:
    names = [p.name for p in parameters_of(cls)]
    for name in fields:
        if names and name not in names and not any(p.kind is p.VAR_KEYWORD for p in parameters_of(cls)):
            raise error("E0543", f"`{cls.__name__}` has no field `{shortened(name)}`", help=did_you_mean(name, names))
    hints = {**dict(getattr(cls, "__annotations__", {})), **_hints(cls)}
    return cls(**{k: _typed(v, hints.get(k), scope) if isinstance(v, dict) else v for k, v in fields.items()})


def _numbers_of(value: Any) -> dict[str, Number]:
    """The fields of a configuration that are numbers and no truth values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields: dict[str, Any] = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value) if f.init}
    elif isinstance(value, dict):
        fields = {k: v for k, v in value.items() if isinstance(k, str)}
    elif hasattr(value, "__dict__") and not isinstance(value, type | nn.Module | Tensor) and not callable(value):
        known = {p.name for p in parameters_of(type(value))}
        fields = {k: v for k, v in vars(value).items() if k in known}
    else:
        return {}
    return {k: v for k, v in fields.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _replaced(value: Any, name: str, number: Number) -> Any:
    """A configuration with another number: a new one, so that what follows from its fields follows again."""
    if isinstance(value, dict):
        return {**value, name: number}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{name: number})
    known = {p.name for p in parameters_of(type(value))}
    return type(value)(**{k: v for k, v in vars(value).items() if k in known} | {name: number})


# --- other configurations ---------------------------------------------------------------------------------------------

ROLES = {
    "layers": r"(n|num)_?((hidden|decoder|encoder)_)?(layers?|blocks)|(n_)?layers?|depth|(en|de)coder_layers",
    "kv": r".*(kv|key_value|query_group).*",
    "head_dim": r"(qk_|v_|attention_)?head_?(dim|size)|d_head|dim_head|d_kv|dim_per_head",
    "heads": r"(n|num)_?((attention|attn|query|q|hidden)_)?heads?|heads|(en|de)coder_attention_heads",
    "width": r"n_embd|n_embed|(embed|emb|embedding|model|hidden)_?(dim|size)|d_model|dim|width|d_embed|channels",
    "vocab": r"n_?vocab|vocab(ulary)?(_?size)?|num_tokens",
    "context": r"block_size|(max_)?(context|ctx|seq|sequence)(_?(len(gth)?|size))?|max_position.*|n_positions|n_ctx|"
    r"max_(seq_?)?len(gth)?|max_target_positions|max_source_positions",
    "window": r".*window(_size)?",
    "experts": r".*experts",
    "chosen": r".*(experts_per_tok(en)?|top_?k)",
}
"""What a field is, by its name: what people call it in published models."""


def role(name: str) -> str:
    """Return what a field of a configuration is by its name, or nothing."""
    return next((kind for kind, names in ROLES.items() if re.fullmatch(names, name.lower())), "")


SIZES: tuple[dict[str, int], ...] = (
    {"layers": 3, "heads": 6, "kv": 3, "width": 96, "head_dim": 24, "vocab": 112, "context": 72, "window": 10},
    {"layers": 5, "heads": 8, "kv": 2, "width": 64, "head_dim": 12, "vocab": 144, "context": 80, "window": 13},
)
"""Two configurations apart from each other and from any other: no size is another times a number in both."""


def chosen(numbers: Mapping[str, Number], which: int, repeating: bool) -> Iterator[dict[str, Number]]:
    """Yield changes of a configuration to try one after the other, of whole numbers alone: first those of known roles,
    which belong together, then each other field in a few values. Each is to be tried with those that were taken. Where
    layers are `repeating`, there are at least two periods of them."""
    own = next((int(v) for k, v in numbers.items() if role(k) == "layers"), 0)
    sizes = SIZES[which] | ({"layers": own * (2 + which) if own <= 4 else 12 + 2 * which} if repeating else {})
    whole = {k: v for k, v in numbers.items() if type(v) is int and v > 0}
    known = {k: role(k) for k in whole}
    heads = next((v for k, v in whole.items() if known[k] == "heads"), 0)
    together: dict[str, Number] = {}
    for name, kind in known.items():
        if kind == "kv" and "head" in name:
            alike = whole[name] == heads
            together[name] = sizes["heads"] if alike else 1 if whole[name] == 1 else sizes["kv"]
        elif kind == "experts" and whole[name] > 2:
            together[name] = whole[name] + 1 + 2 * which if whole[name] < 8 else 7 + 2 * which
        elif kind in sizes and kind != "kv":
            together[name] = sizes[kind]
    yield together
    large = 0
    for name, value in whole.items():
        if name in together or value == 1:
            continue
        if value >= 32:
            large += 1
            # Hidden sizes and ranks: multiples of eight that no other size is.
            yield {name: (136 if which else 120) + (56 if which else 40) * large}
        yield {name: value + 1 + which}
        yield {name: value * (2 + which)}


def taken(
    subject: Subject,
    works: Callable[[Mapping[str, Number]], bool],
    vary: Mapping[str, Sequence[Number]] | None = None,
    repeating: bool = False,
) -> list[dict[str, Number]]:
    """Return other configurations of a module, as what is different in each: two of its own choice that `works`
    accepts, with enough layers to show a pattern that is `repeating`, or those that `vary` says, of each field a value
    for each. None where nothing can be another.

    Raises ArchError E0543 for fields that it does not have, and lists of several lengths; E0544 where what was asked
    for cannot be built."""
    if vary:
        lengths = {len(values) for values in vary.values()}
        if len(lengths) > 1:
            raise error("E0543", "`--vary` gives each field as many values as every other")
        for name in vary:
            if name not in subject.numbers:
                help_ = did_you_mean(name, subject.numbers)
                raise error("E0543", f"`{subject.name}` has no number `{shortened(name)}` to vary", help=help_)
        return [{name: values[i] for name, values in vary.items()} for i in range(lengths.pop())]
    found = []
    for which in range(len(SIZES)):
        changes: dict[str, Number] = {}
        tried = 0
        for more in chosen(subject.numbers, which, repeating):
            if any(name in changes for name in more) or tried == MOST_TRIED:
                continue
            tried += 1
            if works({**changes, **more}):
                changes |= more
            elif len(more) > 1:  # together they do not fit: the roles one by one
                changes |= _one_by_one(more, works)
        if changes and changes not in found:
            found.append(changes)
    return found


MOST_TRIED = 60
"""So many modules are built to find another configuration."""


def _one_by_one(more: Mapping[str, Number], works: Callable[[Mapping[str, Number]], bool]) -> dict[str, Number]:
    changes: dict[str, Number] = {}
    for name, value in more.items():
        if works({**changes, name: value}):
            changes[name] = value
    return changes
