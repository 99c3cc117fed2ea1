"""What a module is called with: the inputs of `forward`, which of their axes are open, and examples of them."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from archdsl.diagnostics import ArchError, did_you_mean, error, shortened
from archdsl.interop.lift.module import Number, Subject, asked, parameters_of

Axis = int | str
"""`batch`, `time`, a size, or the field of the configuration that is the size."""
OPEN = ("batch", "time")
KINDS = ("token", "int", "float", "bool")
BATCH, TIME = 3, 7
"""Sizes of the call that is recorded: no likely size of a model."""


@dataclass(frozen=True)
class Input:
    """One input of `forward`."""

    name: str
    kind: str
    """One of `KINDS`: tokens lie below the rows of the embedding that they are looked up in."""
    axes: tuple[Axis, ...]
    rows: int = 2
    """Of tokens and whole numbers, how many values there are."""

    def size(self, axis: Axis, batch: int, time: int, numbers: Mapping[str, Number]) -> int:
        if axis == "batch":
            return batch
        if axis == "time":
            return time
        return axis if isinstance(axis, int) else int(numbers[axis])

    def made(
        self, batch: int, time: int, numbers: Mapping[str, Number], generator: torch.Generator | None = None
    ) -> Tensor:
        """A tensor of random values."""
        shape = [self.size(axis, batch, time, numbers) for axis in self.axes]
        if self.kind == "float":
            return torch.randn(shape, generator=generator)
        if self.kind == "bool":
            return torch.rand(shape, generator=generator) < 0.5
        return torch.randint(0, max(self.rows, 1), shape, generator=generator)

    @property
    def open(self) -> tuple[str | None, ...]:
        """The name of each open axis, None of those that are fixed."""
        return tuple(str(axis) if axis in OPEN else None for axis in self.axes)


def parsed(texts: Sequence[str], numbers: Mapping[str, Number] | None = None) -> list[Input]:
    """Read inputs as they are written on the command line: `idx=token[batch,time]`. An axis is `batch`, `time`, a
    number, or the name of a number of the configuration. Raises ArchError E0545."""
    found: list[Input] = []
    for text in texts:
        form = re.fullmatch(r"\s*(\w+)\s*=\s*(\w+)\s*\[([^\[\]]*)\]\s*", text)
        if form is None:
            raise error("E0545", f"an input is not written `{shortened(text, 60)}`", help=INPUT_FORM)
        name, kind, inside = form.groups()
        if kind not in KINDS:
            text = f"an input is one of {', '.join(KINDS)}, not `{shortened(kind, 40)}`"
            raise error("E0545", text, help=did_you_mean(kind, KINDS) or INPUT_FORM)
        if name in [i.name for i in found]:
            raise error("E0545", f"the input `{name}` is given twice")
        axes: list[Axis] = []
        for word in [w.strip() for w in inside.split(",")] if inside.strip() else []:
            if word.isdecimal() and 0 < len(word) < 10 and int(word) > 0:
                axes.append(int(word))
            elif word in OPEN or (numbers is not None and type(numbers.get(word)) is int):
                axes.append(word)
            else:
                known = [*OPEN, *(n for n, v in (numbers or {}).items() if type(v) is int)]
                text = f"the input `{name}` has no axis `{shortened(word, 40)}`"
                raise error("E0545", text, help=did_you_mean(word, known) or INPUT_FORM)
        found.append(Input(name, kind, tuple(axes)))
    return found


INPUT_FORM = "write it as `--input name=token[batch,time]` or `name=float[batch,time,64]`"


def of_example(example: Mapping[str, Tensor], axes: Mapping[str, Sequence[str | None]] | None = None) -> list[Input]:
    """Inputs that are like some tensors. Whole numbers of two axes are [batch, time]; of all others the first axis is
    the batch, and the rest are of fixed sizes, unless `axes` names them: `batch`, `time`, None or `_`.

    Raises ArchError E0545 for axes that a tensor does not have."""
    for name in axes or {}:
        if name not in example:
            raise error("E0545", f"there is no input `{shortened(str(name))}`", help=did_you_mean(str(name), example))
    found = []
    for name, tensor in example.items():
        whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
        kind = "bool" if tensor.dtype == torch.bool else "token" if whole else "float"
        names: Sequence[str | None] = OPEN if whole and tensor.dim() == 2 else ("batch", *[None] * (tensor.dim() - 1))
        if axes is not None and name in axes:
            names = [None if a in (None, "_") else a for a in axes[name]]
            _demand_axes(name, names, tensor.dim())
        sizes = tuple(a if a is not None else int(n) for a, n in zip(names, tensor.shape, strict=False))
        top = int(tensor.max()) + 1 if whole and tensor.numel() else 2
        found.append(Input(name, kind, sizes, max(top, 2)))
    return found


def of_signature(subject: Subject, module: nn.Module) -> list[Input]:
    """Inputs as the signature of `forward` has them: a class of transformers says what its main one is; of others the
    one that must be given is tokens. Raises ArchError E0545 where there are several."""
    if subject.config is not None and (known := _of_config(subject, module)):
        return known
    parameters = [*forward_parameters(module).values()]
    needed = [p.name for p in parameters if p.default is p.empty] or [p.name for p in parameters[:1]]
    if len(needed) != 1:
        names = " ".join(f"--input {n}=token[batch,time]" for n in needed) or "--input x=token[batch,time]"
        text = f"`forward` of `{subject.name}` takes {len(needed)} inputs, and nothing says what they are"
        raise error("E0545", text, help=f"`{names}`")
    return [Input(needed[0], "token", OPEN)]


def opened(inputs: Sequence[Input], axes: Mapping[str, Sequence[str | None]]) -> list[Input]:
    """Inputs of which some have other open axes: `batch`, `time`, or `_` for one that is fixed. Raises ArchError E0545
    for other names, and where an input has more axes or fewer."""
    known = {i.name: i for i in inputs}
    for name, names in axes.items():
        if name not in known:
            raise error("E0545", f"there is no input `{shortened(name)}`", help=did_you_mean(name, known))
        given = known[name]
        words = [None if a in (None, "_") else str(a).strip() for a in names]
        _demand_axes(name, words, len(given.axes))
        fixed = [TIME if axis in OPEN else axis for axis in given.axes]
        known[name] = replace(given, axes=tuple(w if w else a for w, a in zip(words, fixed, strict=True)))
    return [*known.values()]


def _demand_axes(name: str, names: Sequence[str | None], count: int) -> None:
    open_ = [a for a in names if a is not None]
    if len(names) != count or any(a not in OPEN for a in open_) or len({*open_}) < len(open_):
        text = f"`{shortened(name)}` has {count} axes, each `batch`, `time` or `_`, and none of the first two twice"
        raise error("E0545", text)


def forward_parameters(module: nn.Module) -> dict[str, inspect.Parameter]:
    """The parameters of `forward` that have a name."""
    parameters = parameters_of(module.forward)
    return {p.name: p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


def _of_config(subject: Subject, module: nn.Module) -> list[Input]:
    """The inputs of a class of transformers, with names of its configuration for sizes."""
    name = str(getattr(module, "main_input_name", "input_ids"))
    config: Any = module.config
    if name == "pixel_values":
        size = getattr(config, "image_size", None)
        sides: tuple[Axis, ...] = ("image_size", "image_size")
        if isinstance(size, list | tuple):
            sides = (int(size[0]), int(size[1]))
        return [Input(name, "float", ("batch", "num_channels", *sides))]
    if name == "input_features" and hasattr(config, "max_source_positions"):
        return [Input(name, "float", ("batch", "num_mel_bins", 2 * int(config.max_source_positions)))]
    if name == "input_ids":
        return [Input(name, "token", OPEN)]
    return []


def demand_known(inputs: Sequence[Input], module: nn.Module, name: str) -> None:
    """Raise ArchError E0545 for inputs that `forward` does not take."""
    known = forward_parameters(module)
    variable = any(p.kind is p.VAR_KEYWORD for p in parameters_of(module.forward))
    for given in inputs:
        if given.name not in known and not variable:
            text = f"`forward` of `{name}` has no input `{given.name}`"
            raise error("E0545", text, help=did_you_mean(given.name, known))


def tried(
    subject: Subject, module: nn.Module, inputs: Sequence[Input], numbers: Mapping[str, Number]
) -> tuple[list[Input], int, Any]:
    """Call a module once; return its inputs with how many rows the embeddings of tokens have, the length of the call,
    and what it returned. Sequences have another length where it does not take the first.

    Raises ArchError E0544 with what it raises."""
    rows: dict[str, int] = {}
    last: ArchError | None = None
    for time in (TIME, *OTHERS):
        example = {i.name: i.made(BATCH, time, numbers) for i in inputs}
        with contextlib.ExitStack() as stack:
            for part in module.modules():
                if isinstance(part, nn.Embedding):
                    hook = part.register_forward_pre_hook(_watching(example, rows))
                    stack.callback(hook.remove)
            try:
                with asked(f"`{subject.name}` cannot be called with {_shapes(example)}", help=HOW), torch.no_grad():
                    result = module(**example)
            except ArchError as problem:
                last = last or problem
                continue
        given = [replace(i, rows=max(i.rows, rows.get(i.name, 2))) if i.kind == "token" else i for i in inputs]
        return given, time, result
    assert last is not None
    raise last


OTHERS = (48, 320, 4, 2)
"""Lengths that are tried where the first is refused: two with many divisors, then two short ones."""
HOW = "`--input name=token[batch,time]`, or `float[batch,time,64]`, says what an input is"


def _watching(example: Mapping[str, Tensor], rows: dict[str, int]) -> Any:
    """A hook that notes how many rows an embedding has that an input is looked up in."""

    def watch(module: nn.Embedding, args: tuple[Any, ...]) -> None:
        for name, tensor in example.items():
            if args and isinstance(args[0], Tensor) and args[0].data_ptr() == tensor.data_ptr():
                rows[name] = min(rows.get(name, module.num_embeddings), module.num_embeddings)

    return watch


def _shapes(example: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name}: {str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for name, t in example.items())
