"""The graph of a module: what `torch.export` records of one call, each value with the module that made it and the lines
of source that did."""

from __future__ import annotations

import io
import logging
import operator
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import sympy
import torch
from sympy import S
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv

from archdsl.diagnostics import ArchError, error, shortened
from archdsl.interop.lift.declared import Declaration, standing
from archdsl.interop.lift.meanings import declared

PACKAGE = str(Path(__file__).parent)

Size: TypeAlias = "int | sympy.Expr"
"""An axis: a number, or a formula of `BATCH` and `TIME`."""
BATCH, TIME = (sympy.Symbol(name, integer=True, positive=True) for name in ("batch", "time"))


class Place(NamedTuple):
    """A module that was being called: its path from the root, of which a second call is told apart by `@1`, and the
    name of its class."""

    path: str
    cls: str

    @property
    def module(self) -> str:
        """The path of the module, whichever call this is."""
        return self.path.partition("@")[0]


class Frame(NamedTuple):
    """A line of the author's source."""

    file: str
    line: int


@dataclass(eq=False, repr=False)
class Value:
    """One value of the graph.

    `op` is `input`, `weight`, `constant` (a buffer, or a tensor made in `forward`), or the name of an ATen operator
    without its overload; `item` takes one result of an operator with several. `args` and `options` hold values,
    numbers, sizes, and lists of these.
    """

    op: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[Size, ...] = ()
    dtype: torch.dtype | None = None
    name: str = ""
    """Of an input, its name; of a weight or a buffer, the path of the parameter."""
    places: tuple[Place, ...] = ()
    """The modules that were being called, the outermost first, without the root."""
    frames: tuple[Frame, ...] = ()
    """The lines that made it, the innermost last."""
    tensor: Tensor | None = None
    """What a constant holds."""
    call: Callable[..., Any] | None = None
    """The operator itself."""
    index: int = 0
    """The place in the order of the calls."""
    results: int = 1
    """How many tensors the operator gives."""
    low: torch.dtype | None = None
    """Its type where the module's weights are bfloat16; None where that is not known."""

    def operands(self) -> Iterator[Value]:
        """Yield the values that it reads."""
        yield from _values((self.args, tuple(self.options.values())))


def _values(tree: Any) -> Iterator[Value]:
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from _values(part)


@dataclass(frozen=True)
class Lengths:
    """Multiples of `step` from `shortest` to `longest`, where there is such a bound."""

    shortest: int = 1
    longest: int | None = None
    step: int = 1

    def near(self, time: int) -> int:
        """Return the longest accepted length up to `time`, or the shortest of all where that is longer."""
        least = -(-self.shortest // self.step) * self.step
        time = time if self.longest is None else min(time, self.longest)
        return max(time // self.step * self.step, least)

    def divided(self, size: sympy.Expr) -> sympy.Expr:
        """Return a size with `/` in place of `//` wherever every accepted length divides evenly."""

        def exact(base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
            quotient = base / divisor
            return quotient if (quotient.subs(TIME, self.step * TIME)).is_integer else FloorDiv(base, divisor)

        return size.replace(FloorDiv, exact) if self.step > 1 else size

    def among(self, times: Iterable[int]) -> list[int]:
        """`times` that are accepted, or lengths near them, without repetition and in order."""
        return sorted({self.near(time) for time in times})


@dataclass(frozen=True)
class Exported:
    """A module's graph: its inputs in order and its results with their names."""

    module: nn.Module
    inputs: tuple[Value, ...]
    results: tuple[tuple[str, Value], ...]
    axes: frozenset[str]
    """Which axes of the inputs are open: `batch`, `time`."""
    lengths: Lengths
    """The lengths that the module's own checks accept."""
    typed: bool
    """Whether `Value.low` is known."""
    decomposed: bool = False
    """Whether operators are split into smaller ones, as `torch.export` does to a module that writes into tensors."""


def export(
    module: nn.Module,
    example: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[str | None]],
    declarations: Sequence[Declaration] = (),
    *,
    types: bool = True,
    decomposed: bool = False,
) -> Exported:
    """Record a call of a module as it is, in evaluation or training, with its inputs by name; `axes` names the open
    axes of each, `batch` and `time`; blocks of `declarations` stand for modules of their classes. A second recording,
    of the module in bfloat16, says which values have the type of the weights and which have their own, unless `types`
    are of no interest. Operators stay whole unless the module writes into tensors, or they are to be `decomposed`.

    Raises ArchError E0540 where it cannot be traced, with what `torch.export` says, and E0541 where the call fixes an
    axis that should be open."""
    program, decomposed = _recorded(module, example, axes, declarations, decomposed)
    names, lengths = _open_axes(program, example, axes)
    inputs, results, calls = _flattened(program, names, lengths)
    typed = False
    with suppress(ArchError):
        if types:
            low = {name: x.bfloat16() if x.is_floating_point() else x for name, x in example.items()}
            with _in_bfloat16(module):
                second, _ = _recorded(module, low, axes, declarations, decomposed)
            given, ends, others = _flattened(second, *_open_axes(second, low, axes))
            typed = [v.op for v in calls] == [v.op for v in others]
        if typed:
            for value, other in zip((*inputs, *calls), (*given, *others), strict=True):
                value.low = other.dtype
            casts: dict[tuple[Value, torch.dtype | None], Value] = {}
            for value, other in zip(calls, others, strict=True):
                value.args, value.options = _read_as((value.args, value.options), other.operands(), casts)
            results = _read_as(results, (v for _, v in ends), casts)
    return Exported(
        module, tuple(inputs), tuple(results), frozenset(map(str, names.values())), lengths, typed, decomposed
    )


def _read_as(tree: Any, others: Iterable[Value], casts: dict[tuple[Value, torch.dtype | None], Value]) -> Any:
    """What an operator reads, each number in the type that it is read in where the weights are bfloat16, which `others`
    have. Copies among real numbers are between two values wherever one is read in another type, and nowhere else: a
    recording in float32 takes a value and its copy in float32 for one."""
    types = iter(others)

    def read(part: Any) -> Any:
        if isinstance(part, dict):
            return {k: read(v) for k, v in part.items()}
        if isinstance(part, list | tuple):
            return type(part)(map(read, part))
        if not isinstance(part, Value):
            return part
        kind, root = next(types, part).dtype, part
        while root.op in COPIES and _real(root) and root.dtype == root.args[0].dtype:
            root = root.args[0]
        if not _real(root) or root.low in (None, kind):
            return root
        cast = Value("to", (root, torch.float32), shape=part.shape, dtype=part.dtype, places=part.places)
        cast.frames, cast.index, cast.low, cast.call = part.frames, part.index, kind, torch.ops.aten.to.dtype
        return casts.setdefault((root, kind), cast)

    return read(tree)


def _real(value: Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point


@contextmanager
def _in_bfloat16(module: nn.Module) -> Iterator[None]:
    """A module whose weights and buffers of real numbers are bfloat16 within. Weights that repeat one number at every
    index still do."""
    before: list[tuple[nn.Module, str, Any]] = []
    made: dict[int, Any] = {}

    def low(tensor: Tensor) -> Any:
        if not any(tensor.stride()) and tensor.dim():
            number = tensor.detach().as_strided((), ()).bfloat16().expand(tensor.shape)
        else:
            number = tensor.detach().bfloat16()
        return nn.Parameter(number, requires_grad=False) if isinstance(tensor, nn.Parameter) else number

    try:
        for part in [*module.modules()]:
            for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
                if tensor is not None and tensor.is_floating_point():
                    before.append((part, name, tensor))
                    setattr(part, name, made.setdefault(id(tensor), low(tensor)))
        yield
    finally:
        for part, name, tensor in before:
            setattr(part, name, tensor)


def _recorded(
    module: nn.Module,
    example: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[str | None]],
    declarations: Sequence[Declaration],
    decomposed: bool,
) -> tuple[Any, bool]:
    """Record the program of a call. Return it, free of writes in place, and whether its operators are decomposed: they
    are where there were such writes, or where that is asked for. Otherwise `linear` and attention stay whole."""
    sizes = {
        name: {i: torch.export.Dim.AUTO if axis else torch.export.Dim.STATIC for i, axis in enumerate(axes[name])}
        for name in example
    }
    try:
        with torch.no_grad(), _silent(), standing(module, example, declarations), declared(module):
            program = torch.export.export(module, (), kwargs=dict(example), dynamic_shapes=sizes, strict=False)
            decomposed = decomposed or any(_writes(node) for node in program.graph.nodes)
            program = program.run_decompositions({}) if decomposed else program
    except (ArchError, MemoryError, RecursionError):
        raise
    except Exception as problem:  # whatever the module's own code and the tracer raise
        raise _untraced(module, problem) from None
    return program, decomposed


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what PyTorch says of a recording from being shown: warnings, logs, and the graph so far that it prints where
    it gives up. What an ArchError says of it is enough. Logs below warnings are there only where somebody has asked for
    them, and stay."""
    names = [name for name in logging.root.manager.loggerDict if name == "torch" or name.startswith("torch.")]
    handlers = {h for name in names for h in logging.getLogger(name).handlers}

    def asked_for(record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING

    for handler in handlers:
        handler.addFilter(asked_for)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(asked_for)


def _writes(node: fx.Node) -> bool:
    """Whether a call changes one of its operands."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def _untraced(module: nn.Module, problem: Exception) -> ArchError:
    """What stopped the trace: the first line that is said of it, and the line of the module's source."""
    folder = str(Path(torch.__file__).parent)
    own = [f for f in traceback.extract_tb(problem.__traceback__) if not f.filename.startswith((folder, PACKAGE))]
    said = next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
    where = [f"{Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}"] if own else []
    return error("E0540", f"`{type(module).__name__}` cannot be traced: {shortened(said, 200)}", notes=where)


def _open_axes(
    program: Any, example: Mapping[str, Tensor], axes: Mapping[str, Sequence[str | None]]
) -> tuple[dict[sympy.Expr, sympy.Expr], Lengths]:
    """What the tracer calls the open axes -> BATCH or TIME; and the lengths that its guards accept."""
    known: dict[str, sympy.Expr] = {"batch": BATCH, "time": TIME}
    names: dict[sympy.Expr, sympy.Expr] = {}
    lengths = Lengths()
    places = (n for n in program.graph.nodes if n.op == "placeholder")
    for node, spec in zip(places, program.graph_signature.input_specs, strict=True):
        own = axes.get(node.name, ()) if spec.kind.name == "USER_INPUT" else ()
        for axis, size in zip(own, node.meta["val"].shape, strict=False):
            if axis is None:
                continue
            if not isinstance(size, torch.SymInt) or size.node.expr.is_number:
                raise _fixed(axis, node.name, f"{size}, the size of the example")
            symbol = size.node.expr
            names[symbol] = known[axis]
            if axis == "time":
                accepted = _accepted(size.node.shape_env, symbol)
                step = gcd(*accepted) or 1
                if accepted and (
                    accepted != [*range(accepted[0], accepted[-1] + 1, step)]
                    or accepted[-1] < 2 * example[node.name].shape[own.index(axis)]
                ):
                    raise _fixed(axis, node.name, " or ".join(map(str, accepted[:4])))
                bounds = program.range_constraints[symbol]
                lengths = Lengths(
                    int(bounds.lower) if bounds.lower > max(LEAST, step) else 1,
                    int(bounds.upper) if bounds.upper.is_number and bounds.upper < MOST else None,
                    step,
                )
    return names, lengths


def _fixed(axis: str, name: str, size: str) -> ArchError:
    text = f"the module fixes `{axis}` of `{name}` to {size}"
    note = "a Python loop over it, a number that is made of it by `int`, or a size kept from an earlier call, does that"
    help_ = "a block can stand for its class: --declare CLASS=FILE.arch"
    return error("E0541", text, notes=[note], help=help_)


LEAST = 2
"""The tracer takes every open axis for at least this."""
MOST = 1 << 31
"""A bound from here on is none."""
MOST_STEP = 512
"""Lengths of which is asked whether the guards accept them."""


def _accepted(environment: Any, time: sympy.Symbol) -> list[int]:
    """Return the lengths below MOST_STEP for which the equations among the tracer's guards hold; none where there is no
    such equation, and all are."""
    equations = [g.expr for g in environment.guards if isinstance(g.expr, sympy.Eq) and time in g.expr.free_symbols]
    others = {s: 2 for e in equations for s in e.free_symbols if s != time}

    def holds(length: int) -> bool:
        try:
            return all(e.subs({time: length, **others}) != S.false for e in equations)
        except ZeroDivisionError:  # a size by which another is divided
            return False

    return [n for n in range(1, MOST_STEP) if holds(n)] if equations else []


def _flattened(
    program: Any, axes: Mapping[sympy.Expr, sympy.Expr], lengths: Lengths
) -> tuple[list[Value], list[tuple[str, Value]], list[Value]]:
    """The inputs, the named results, and every call in order but those that only copy, without graphs in the graph."""
    state = {**program.state_dict, **program.constants}
    weights: dict[Any, Value] = {}
    calls: list[Value] = []
    known: dict[fx.Node, Any] = {}

    def size(number: Any) -> Any:
        if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
            number = lengths.divided(number.node.expr.subs(axes))
            return int(number) if number.is_Integer else float(number) if number.is_Float else number
        return number

    def made(op: str, node: fx.Node, **what: Any) -> Value:
        found = node.meta.get("val")
        tensor = found[0] if isinstance(found, tuple | list) and found else found
        stack = (node.meta.get("nn_module_stack") or {}).items()
        places = tuple(
            Place(p + "".join(k.partition("@")[1:]), getattr(c, "__name__", str(c).rpartition(".")[2]))
            for k, (p, c) in stack
            if p
        )
        frames = tuple(Frame(f, int(line)) for f, line in FRAME.findall(node.meta.get("stack_trace") or ""))
        return Value(
            op,
            shape=tuple(map(size, getattr(tensor, "shape", ()))),
            dtype=getattr(tensor, "dtype", None),
            places=tuple(p for p in places if not p.path.startswith("_empty")),
            frames=frames,
            index=len(calls),
            results=len(found) if isinstance(found, tuple | list) else 1,
            **what,
        )

    def placeholder(node: fx.Node, spec: Any) -> Value:
        if spec.kind.name == "USER_INPUT":
            return made("input", node, name=node.name)
        target = spec.target
        tensor = state[target]
        if spec.kind.name == "PARAMETER" or (spec.persistent and waits(tensor)):
            key = (tensor.data_ptr(), tensor.shape)
            return weights.setdefault(key, made("weight", node, name=target))
        return made("constant", node, name=target, tensor=tensor)

    def run(graph: fx.GraphModule) -> Any:
        *nodes, output = graph.graph.nodes
        for node in nodes:
            if node.op == "placeholder":
                continue
            args, options = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            found = node.meta.get("val")
            if node.op == "get_attr":
                held = operator.attrgetter(node.target)(graph)
                known[node] = held if isinstance(held, fx.GraphModule) else made("constant", node, tensor=held)
            elif isinstance(found, torch.SymInt | torch.SymFloat | torch.SymBool):
                known[node] = size(found)
            elif "wrap_with" in str(node.target):  # a graph that runs without gradients, or under autocast
                at = next(i for i, a in enumerate(args) if isinstance(a, fx.GraphModule))
                inner = [n for n in args[at].graph.nodes if n.op == "placeholder"]
                known.update(zip(inner, args[at + 1 :], strict=True))
                known[node] = run(args[at])
            elif node.target is operator.getitem and not isinstance(args[0], Value):
                known[node] = args[0][args[1]]
            elif found is None and "assert" in str(node.target):
                known[node] = None
            else:
                name = "item" if node.target is operator.getitem else node.target.__name__.partition(".")[0]
                value = made(name, node, call=node.target)
                value.args, value.options = tuple(args), options
                known[node] = value
                calls.append(value)
        return fx.node.map_arg(output.args[0], known.__getitem__)

    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    specs = program.graph_signature.input_specs
    inputs = []
    for node, spec in zip(nodes, specs, strict=True):
        known[node] = placeholder(node, spec)
        if spec.kind.name == "USER_INPUT":
            inputs.append(known[node])
    results = run(program.graph_module)
    return inputs, _named(program, results), [v for v in calls if v.op not in COPIES]


COPIES = {"to", "_to_copy", "clone", "contiguous", "detach", "alias", "lift_fresh_copy", "type_as"}
"""Operators that a module in another type may have more of, or fewer."""


def waits(buffer: Tensor) -> bool:
    """Whether a buffer that checkpoints hold has one number everywhere: another will be learned, as a router's bias is,
    and the spec must have a weight for it."""
    return buffer.is_floating_point() and buffer.numel() > 1 and bool((buffer == buffer.flatten()[0]).all())


def _named(program: Any, results: Any) -> list[tuple[str, Value]]:
    """Return the tensors that the module returned, each with the name of its field; of a bare tensor or tuple with "".
    New values of buffers, which the program returns too, are left out."""
    spec = program.call_spec.out_spec
    kinds = [output.kind.name for output in program.graph_signature.output_specs]
    results = [v for v, kind in zip(results, kinds, strict=True) if kind == "USER_OUTPUT"]
    names = [".".join(k for e in path if (k := _key(e))) for path, _ in _paths(spec)]
    return [(name, v) for name, v in zip(names, results, strict=True) if isinstance(v, Value)]


def _paths(spec: Any) -> list[tuple[Any, Any]]:
    filled = pytree.tree_unflatten(range(spec.num_leaves), spec)
    return pytree.tree_flatten_with_path(filled)[0]


def _key(entry: Any) -> str:
    return str(key) if isinstance(key := getattr(entry, "key", getattr(entry, "name", None)), str) else ""
