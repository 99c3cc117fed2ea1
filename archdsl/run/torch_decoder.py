"""Running the decode steps of an emitted module (`--with generate`): the prompt at once or in chunks, then token by
token, and rows of several lengths by its own `stream`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from archdsl.ir.graph import Model
from archdsl.passes.flat_step import unroll_step
from archdsl.passes.step import stepped
from archdsl.run.sequences import Sequences

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]


class TorchDecoder(Sequences):
    """The steps and the `stream` of a module that was emitted with the section `generate`."""

    def __init__(self, model: Model, module: Any) -> None:
        steps = unroll_step(stepped(model))
        super().__init__(steps.of)
        self.of_rows = steps.without_rows is None
        self.module = module
        of_steps = {steps.names[v] for v in steps.taken}
        self.new = [n for n, _ in model.inputs if n in of_steps]
        """Inputs that each step takes, in its order: of those that follow the sequence the new positions."""
        once = [n for n, v in model.inputs if n not in of_steps and not (v.dtype == "padding" and n in self.moving)]
        self.cache: Any = inspect.unwrap(type(module).forward).__globals__["Cache"]
        self.step, self.given = step_of(module, self.cache)
        """What takes a step, and what it calls its cache."""
        self.whole = self.step is module
        """Whether `forward` takes the steps, which is given None for inputs that the first one alone takes."""
        self.parameters = [*inspect.signature(module.forward if self.whole else self.step).parameters]
        called = [name for name in self.parameters if name != self.given]
        order = [n for n, _ in model.inputs] if self.whole else [*self.new, *once]
        self.names = dict(zip(order, called, strict=False))
        """What the file calls the inputs of a step."""
        self.once = once
        """Inputs that the first step alone takes."""
        self.streams = hasattr(module, "stream")
        """Whether the model goes from tokens to logits of tokens, so that rows may be of several lengths."""

    @cached_property
    def by_row(self) -> bool:
        return super().by_row and self.of_rows

    def run(self, inputs: Tensors, chunks: Sequence[int], *, static: bool = False) -> list[torch.Tensor]:
        """Return what a step gives (`results`) at all positions, the sequence given in chunks: `(5, 1, 1)` is a prompt
        of five tokens and two steps. `inputs` are the model's, for the whole sequence. With `static` tensors keep their
        sizes from step to step, as in a compiled one."""
        import torch

        cache, at, found = self.cache(sum(chunks), static=static), 0, []
        for count in chunks:
            new = {n: inputs[n].narrow(self.moving[n], at, count) if n in self.moving else inputs[n] for n in self.new}
            with torch.no_grad():
                given = self.step(**self.arguments(new, None if at else inputs), **{self.given: cache})
            found.append([given] if isinstance(given, torch.Tensor) else [*given])
            at += count
        return self.joined(found, lambda given, axis: torch.cat([*given], axis))

    def arguments(self, new: Tensors, inputs: Tensors | None = None) -> dict[str, torch.Tensor | None]:
        """Return what a step is called with, beside the cache: `new` positions, and in the first step what that alone
        takes of the model's `inputs`."""
        nothing = dict.fromkeys(self.names.values()) if self.whole else {}
        once = {self.names[n]: inputs[n] for n in self.once} if inputs is not None else {}
        return {**nothing, **once, **{self.names[n]: x for n, x in new.items()}}

    def stream(
        self,
        inputs: Tensors,
        prompt: torch.Tensor,
        after: torch.Tensor,
        mask: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Return the logits [batch, new, vocab] by which the module's `stream` would choose the tokens behind `prompt`
        [batch, time], if those before them were `after` [batch, new]. `mask` [batch, time] is True where a token of the
        prompt is real; `options` are those of `stream`."""
        import torch

        forced, logits = after.unbind(1), []
        named = [p.name for p in inspect.signature(self.module.stream).parameters.values() if p.default is p.empty]
        once = dict(zip(named[2:], (inputs[n] for n in self.once), strict=True))
        file = inspect.unwrap(type(self.module).stream).__globals__
        sample = file["sample"]

        def choose(row: torch.Tensor, *_: Any) -> torch.Tensor:
            logits.append(row.clone())  # a CUDA graph writes the next over it
            return forced[len(logits) - 1]

        file["sample"] = choose
        try:
            for _ in self.module.stream(prompt, len(forced), **once, attention_mask=mask, **options):
                pass
        finally:
            file["sample"] = sample
        return torch.stack(logits, 1)


def step_of(module: Any, cache: Any) -> tuple[Callable[..., Any], str]:
    """Find the method of an emitted model that takes a cache, `forward` or a step of its own, and its parameter."""
    for name, method in vars(type(module)).items():
        if inspect.isfunction(method):
            for p in inspect.signature(method).parameters.values():
                if cache in (p.annotation, *get_args(p.annotation)):
                    return (module if name == "forward" else getattr(module, name)), p.name
    raise AssertionError("no method takes a cache")
