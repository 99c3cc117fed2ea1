"""Blocks that stand for modules: one that the user wrote for a class (`--declare`), or one of the rows below.

A module whose `forward` no export can follow, a recurrence in Python, is recorded as one operator, and written as a
call of its block. That is done only where the block, compiled, gives the numbers of the module's own `forward`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from archdsl.diagnostics import ArchError, did_you_mean, error
from archdsl.diagnostics.source import Source
from archdsl.frontend.load import load
from archdsl.interop.lift.meanings import CLOSE, replaced
from archdsl.run.difference import IncomparableError, farthest
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE
from archdsl.syntax.format import format_tree
from archdsl.syntax.parse import parse, read_source


@dataclass(frozen=True)
class Declaration:
    """A block for modules of a class."""

    cls: str
    file: ast.File
    """Its block is the last one; the others are what it uses."""

    @property
    def block(self) -> ast.BlockDecl:
        return [d for d in self.file.declarations if isinstance(d, ast.BlockDecl)][-1]


def read(text: str) -> Declaration:
    """Read `CLASS=FILE.arch`. Raises ArchError E0546 where it is none, or what the file has wrong."""
    cls, sign, path = text.partition("=")
    if not sign or not cls.isidentifier() or not path:
        raise error("E0546", f"`{text}` declares nothing", help="write it as CLASS=FILE.arch")
    file = parse(read_source(Path(path), Path(path).name))
    blocks = [d for d in file.declarations if isinstance(d, ast.BlockDecl)]
    if not blocks or len(blocks) != len(file.declarations):
        raise error("E0546", f"`{path}` is to hold the block that stands for `{cls}`, and only blocks")
    return Declaration(cls, file)


@dataclass(frozen=True)
class Stand:
    """One module and the block that stands for it, with the values of its hyper-parameters."""

    declaration: Declaration
    hypers: Mapping[str, Any]
    weights: tuple[str, ...]
    """The names of the weights, in the spec and in the module."""

    def shapes(self, inputs: Sequence[Tensor]) -> list[list[Any]]:
        """The shapes of the results for these inputs."""
        header = self.declaration.block.header
        names: dict[str, Any] = dict(self.hypers)
        for tensor, param in zip(inputs, header.tensors or (), strict=False):
            dims = param.type.dims
            lead = next((i for i, d in enumerate(dims) if isinstance(d, ast.Ellipsis)), None)
            if lead is not None:
                over = len(tensor.shape) - len(dims) + 1
                names["..."] = [*tensor.shape[lead : lead + over]]
                sizes = [*tensor.shape[:lead], None, *tensor.shape[lead + over :]]
            else:
                sizes = [*tensor.shape]
            pairs = [(d.id, s) for d, s in zip(dims, sizes, strict=True) if isinstance(d, ast.Name)]
            names |= {id: s for id, s in pairs if id not in names}
        shapes = []
        for result in header.results or ():
            shape: list[Any] = []
            for d in result.type.dims:
                shape += names["..."] if isinstance(d, ast.Ellipsis) else [_size(d, names)]
            shapes.append(shape)
        return shapes


def _size(d: ast.Expr, names: Mapping[str, Any]) -> Any:
    match d:
        case ast.Number(text):
            return int(text)
        case ast.Name(id) if id in names:
            return names[id]
        case ast.Binary("+" | "-" | "*" | "/" | "//" as op, left, right):
            a, b = _size(left, names), _size(right, names)
            return {"+": a + b, "-": a - b, "*": a * b}[op] if op in "+-*" else a // b
    raise error("E0546", "a result of a block that stands for a module has sizes of its inputs and hyper-parameters")


STANDS: list[Stand] = []
"""What stands for modules so far; an operator in a graph names its place here."""


torch.library.define("archdsl_lift::declared", "(Tensor[] inputs, Tensor[] parameters, int which) -> Tensor[]")


def _shaped(inputs: list[Tensor], params: list[Tensor], which: int) -> list[Tensor]:
    """A module of which only the shapes are known here."""
    return [inputs[0].new_empty(shape) for shape in STANDS[which].shapes(inputs)]


torch.library.register_fake("archdsl_lift::declared", _shaped)


@contextmanager
def standing(module: nn.Module, example: Mapping[str, Tensor], declarations: Sequence[Declaration]) -> Iterator[None]:
    """Replace the `forward` of the modules that declared blocks stand for by one operator, until the end.

    Raises ArchError E0546 where a block of the user's is not what the module computes, or there is no such class."""
    wanted = {d.cls: d for d in declarations}
    found = [m for m in module.modules() if type(m).__name__ in wanted or _row(m) is not None]
    for cls in [c for c in wanted if c not in {type(m).__name__ for m in found}]:
        classes = {type(m).__name__ for m in module.modules()}
        raise error("E0546", f"the module has nothing of a class `{cls}`", help=did_you_mean(cls, classes))
    if not found:
        yield
        return
    calls = _watched(module, example, found)
    stands = {m: _stand(m, wanted.get(type(m).__name__), calls[m][0]) for m in found if m in calls}
    STANDS.extend(stand for stand in stands.values() if stand is not None and stand not in STANDS)
    known = {inner: stand for inner, stand in stands.items() if stand is not None}
    with replaced({inner: partial(_called, inner, stand, calls[inner][1]) for inner, stand in known.items()}):
        yield


def _watched(module: nn.Module, example: Mapping[str, Tensor], found: Sequence[nn.Module]) -> dict[nn.Module, Any]:
    """The tensors that each module was called with and what it gave, in one call of the whole."""
    calls: dict[nn.Module, Any] = {}

    def watch(inner: nn.Module, args: Any, options: Any, result: Any) -> None:
        bound = inspect.signature(inner.forward).bind(*args, **options)
        calls.setdefault(inner, ([a for a in bound.arguments.values() if isinstance(a, Tensor)], result))

    hooks = [m.register_forward_hook(watch, with_kwargs=True) for m in found]
    try:
        with torch.no_grad():
            module(**example)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _called(inner: nn.Module, stand: Stand, like: Any, *args: Any, **options: Any) -> Any:
    """The operator in the place of a call, with results in the form of the module's own."""
    inputs = [a for a in (*args, *options.values()) if isinstance(a, Tensor)]
    count = len(stand.declaration.block.header.tensors or ())
    state = dict(inner.named_parameters())
    params = [state[n] for n in stand.weights]
    results = torch.ops.archdsl_lift.declared(inputs[:count], params, STANDS.index(stand))
    if isinstance(like, Tensor):
        return results[0]
    rest = iter(results)
    return tuple(next(rest, None) if isinstance(x, Tensor) else None for x in like)


def _stand(inner: nn.Module, declaration: Declaration | None, inputs: list[Tensor]) -> Stand | None:
    """The block with its numbers, tested against the module. Raises ArchError E0546 where the user's differs."""
    row = None if declaration is not None else _row(inner)
    name = type(inner).__name__
    if declaration is None:
        assert row is not None
        declaration = Declaration(name, row.file())
    hypers = row.sizes(dict(inner.named_parameters())) if row else _hypers(inner, declaration)
    try:
        weights, apart = _apart(inner, declaration, hypers, inputs)
    except ArchError as problem:
        if row is not None:
            return None
        why = problem.diagnostics[0].message
        raise error("E0546", f"the block that stands for `{name}` does not fit it: {why}") from None
    if apart > CLOSE:
        if row is not None:
            return None
        raise error("E0546", f"the block that stands for `{name}` gives other numbers: {apart:.1e} apart")
    return Stand(declaration, hypers, weights)


def _hypers(inner: nn.Module, declaration: Declaration) -> dict[str, Any]:
    """The hyper-parameters of a block that the module, or its config, has attributes for."""
    hypers = declaration.block.header.hypers or ()
    places = (inner, getattr(inner, "config", None))
    found = {h.name: getattr(p, h.name) for h in hypers for p in places[::-1] if hasattr(p, h.name)}
    if missing := [h.name for h in hypers if h.default is None and h.name not in found]:
        what = f"`{missing[0]}`, a hyper-parameter of the block without a default"
        text = f"`{type(inner).__name__}` has no attribute {what}"
        raise error("E0546", text)
    return {n: v for n, v in found.items() if isinstance(v, int | float | bool)}


def _apart(
    inner: nn.Module, declaration: Declaration, hypers: Mapping[str, Any], inputs: list[Tensor]
) -> tuple[tuple[str, ...], float]:
    """The weights of the block, and how far its results are from the module's, relative to the largest, with other
    weights than those it was made with."""
    from archdsl.backends.torch import emit
    from archdsl.run.load import load_source

    model = load("block.arch", text=format_tree(_probe(declaration, hypers, inputs)))
    ours = load_source(emit(model))().eval()
    own = dict(inner.named_parameters())
    shapes = {n.removeprefix("own."): list(p.shape) for n, p in ours.state_dict().items()}
    names = [*shapes]
    if odd := sorted({*names} ^ {*own}):
        side = "module" if odd[0] in own else "block"
        raise error("E0546", f"`{odd[0]}` is a weight of the {side} alone", help="weights have the same names in both")
    if other := next((n for n in names if shapes[n] != list(own[n].shape)), None):
        raise error("E0546", f"`{other}` is {shapes[other]} in the block, and {list(own[other].shape)} in the module")
    generator = torch.Generator().manual_seed(0)
    moved = {n: p.detach() + 0.1 * torch.randn(p.shape, generator=generator) for n, p in own.items()}
    ours.load_state_dict({f"own.{n}": moved[n] for n in names})
    inputs = inputs[: len(declaration.block.header.tensors or ())]
    with torch.no_grad():
        theirs = torch.func.functional_call(inner, moved, tuple(inputs))
        found = ours(*inputs)
    expected = [theirs] if isinstance(theirs, Tensor) else [x for x in theirs if isinstance(x, Tensor)]
    results = [found] if isinstance(found, Tensor) else [*found]
    try:
        return tuple(names), farthest(results, expected[: len(results)])
    except IncomparableError as problem:
        text = f"the block that stands for `{type(inner).__name__}` cannot be compared: {problem}"
        raise error("E0546", text) from None


def _probe(declaration: Declaration, hypers: Mapping[str, Any], inputs: Sequence[Tensor]) -> ast.File:
    """A model that is nothing but a call of the block, at the sizes of the inputs."""
    header = declaration.block.header
    tensors = [p.name for p in header.tensors or ()]
    types = {
        name: ast.TensorType(None, tuple(ast.Number(str(s), span=NOWHERE) for s in x.shape), span=NOWHERE)
        for name, x in zip(tensors, inputs, strict=False)
    }
    given = [ast.Arg(n, _literal(v), span=NOWHERE) for n, v in hypers.items()]
    made = ast.Call(ast.Name(declaration.block.name, span=NOWHERE), tuple(given), span=NOWHERE)
    args = tuple(ast.Arg(None, ast.Name(n, span=NOWHERE), span=NOWHERE) for n in tensors)
    call = ast.As(ast.Call(made, args, span=NOWHERE), "own", name_span=NOWHERE, span=NOWHERE)
    results = header.results or ()
    names = tuple(f"y{i}" for i in range(len(results)))
    returned = ast.Return(tuple(ast.Name(n, span=NOWHERE) for n in names), span=NOWHERE)
    body = ast.Body((ast.Assign(names, call, None, span=NOWHERE), returned), span=NOWHERE)
    stand = Stand(declaration, hypers, ())
    shapes = [
        ast.TensorType(None, tuple(ast.Number(str(s), span=NOWHERE) for s in shape), span=NOWHERE)
        for shape in stand.shapes(inputs)
    ]
    called = names if len(names) > 1 else [None]
    gives = tuple(ast.Result(n, t, span=NOWHERE) for n, t in zip(called, shapes, strict=True))
    takes = tuple(ast.TensorParam(n, t, None, span=NOWHERE) for n, t in types.items())
    whole = ast.Header(None, takes, gives, span=NOWHERE)
    model = ast.ModelDecl("probe", whole, body, name_span=NOWHERE, span=NOWHERE)
    return replace(declaration.file, declarations=(*declaration.file.declarations, model))


def _literal(value: Any) -> ast.Expr:
    if isinstance(value, bool):
        return ast.Name("true" if value else "false", span=NOWHERE)
    return ast.Number(repr(value), span=NOWHERE)


# --- the rows ---------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A block for whatever module has weights of these names."""

    weights: frozenset[str]
    text: str
    sizes: Callable[[Mapping[str, Tensor]], dict[str, Any]]

    def file(self) -> ast.File:
        return parse(Source("meaning", self.text))


MAMBA = """
block mamba_mixer(hidden, state, rank, kernel, input_bias: bool, conv_bias: bool, output_bias: bool)
                 (x: [batch, time, width]) -> [batch, time, width] {
  param A_log: [hidden, state] = log(1 + indices(state))
  param D: [hidden] = ones
  h, gate = x -> linear(2 * hidden, bias: input_bias) as in_proj -> split(hidden, hidden)
  h = h -> conv1d(hidden, kernel: kernel, groups: hidden, padding: causal, bias: conv_bias) as conv1d -> silu
  step, b, c = h -> linear(rank + 2 * state, bias: false) as x_proj -> split(rank, state, state)
  step = step -> linear(hidden) as dt_proj -> softplus
  y = selective_scan(h, step, -exp(A_log), b, c, skip: D)
  return (y * silu(gate)) -> linear(width, bias: output_bias) as out_proj
}
"""

ROWS = (
    Row(
        frozenset(
            {"A_log", "D", "in_proj.weight", "conv1d.weight", "x_proj.weight", "dt_proj.weight", "out_proj.weight"}
        ),
        MAMBA,
        lambda p: {
            "hidden": p["A_log"].shape[0],
            "state": p["A_log"].shape[1],
            "rank": p["dt_proj.weight"].shape[1],
            "kernel": p["conv1d.weight"].shape[2],
            "input_bias": "in_proj.bias" in p,
            "conv_bias": "conv1d.bias" in p,
            "output_bias": "out_proj.bias" in p,
        },
    ),
)


def _row(inner: nn.Module) -> Row | None:
    own = {name for name, _ in inner.named_parameters()}
    return next((r for r in ROWS if r.weights <= own and all(n in r.weights or n.endswith(".bias") for n in own)), None)
