"""Runs emitted modules on a fake CUDA device, without a GPU, and says what a GPU would wait for, copy or compute on the
CPU: `python tests/fake_cuda.py llama3:llama3_8b`. For every model of the zoo: `make fake-gpu`. With `--steps` only
decode steps, in every form, of specs as `decoding.txt` has them.

Tensors are fake: they have shapes and devices, and no numbers, so models run at the sizes that were published."""

from __future__ import annotations

import argparse
import inspect
import linecache
import logging
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import fake_cuda_hooks

if __name__ == "__main__":
    fake_cuda_hooks.load()  # before torch is imported
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from zoo import real

from archdsl.backends.torch import emit
from archdsl.backends.torch.features import Extras, Name
from archdsl.diagnostics import ArchError
from archdsl.ir.graph import Model, OpNode
from archdsl.ir.walk import nodes_below
from archdsl.passes.flat_step import unroll_step
from archdsl.passes.step import stepped
from archdsl.run.load import load_source
from archdsl.run.torch_decoder import TorchDecoder

LENGTH = 256
SHORT = 16
"""Positions of a sequence, and of one that a model takes position by position."""
POSITIONS = ("context", "length", "positions")
"""What models call the number of positions that they know."""
CELL = "each state is computed from the last by layers, for which CUDA has no kernel"
DELTA = "a state of matrices that each position changes by what it reads there"
LOOPS = {
    "deep_rnn": CELL,
    "ntm": CELL,
    "rnn_encoder_decoder:cho": CELL,
    "rwkv:": "its recurrence is one of a kind, written out for each position",
    "seq2seq_attention": CELL,
    "show_attend_tell": CELL,
}
"""How the names of models begin that take one position after another, and why."""
KERNELS = 70
SOFTCAP = "soft-capped scores, which no fused kernel has in a step"
MANY = {
    "deepseek_v2": (80, "latents, and routing"),
    "deepseek_v3": (80, "latents, and routing among groups of experts"),
    "gemma2": (80, SOFTCAP),
    "t5gemma": (110, f"{SOFTCAP}, in two attentions"),
    "gpt_oss": (90, "sinks, which no fused kernel has in a step, and experts with biases"),
    "comba": (80, DELTA),
    "delta_product": (80, DELTA),
    "qwen3_next": (100, DELTA),
    "performer": (80, "random directions in four blocks, for queries and for keys"),
    "rwkv": (105, "low-rank layers, shifts and a recurrence of its own, whose state is copied in static steps"),
}
"""The most kernels of a layer in a decode step; models with layers of more, and what they have them for."""
WAITS = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "histc"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
}
"""Operators that bring a number to the host, or whose result has a size that the device has to say."""
VIEWS = {
    *("view", "_unsafe_view", "_reshape_alias", "as_strided", "alias", "detach", "lift_fresh", "device", "empty"),
    *("transpose", "t", "permute", "movedim", "unsqueeze", "squeeze", "expand", "diagonal", "unfold"),
    *("slice", "select", "split", "split_with_sizes", "chunk", "unbind", "narrow", "view_as_real", "view_as_complex"),
}
"""Operators that launch no kernel."""


@dataclass
class Report:
    """What one run did. `found` are faults with the emitted lines that they are of."""

    kernels: int = 0
    layer: int = 0
    """The most kernels in an element of a list of layers."""
    found: dict[str, int] = field(default_factory=dict)


class Watch(TorchDispatchMode):
    """Sees every operator that reaches fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0
        self.found: Counter[str] = Counter()
        self.inside = 0
        """Depth of functions that are one kernel on CUDA."""

    def note(self, fault: str) -> None:
        self.found[f"{fault} in {emitted_line()}"] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if name in WAITS or by_mask(name, args) or (name == "repeat_interleave" and "output_size" not in kwargs):
            self.note(f"{name} waits for the device")
        if len({t.device.type for t in given if t.dim()}) > 1:  # a number goes to a kernel as it is
            self.note(f"{name} of tensors on the CPU and on CUDA")
        out = func(*args, **kwargs)
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        devices = {t.device.type for t in (*given, *made)}
        if name in ("_to_copy", "copy_") and len(devices) > 1:
            self.note(f"{name} between the CPU and CUDA")
        elif name not in VIEWS and any(t.device.type == "cpu" for t in made):
            self.note(f"{name} on the CPU")
        if any(t.dtype == torch.float64 for t in made):
            self.note(f"{name} in float64")
        self.kernels += name not in VIEWS
        return out


class Fused(TorchFunctionMode):
    """Counts functions that CUDA has fused kernels for, which a CPU computes by many operators, as one each."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in FUSED:
            return func(*args, **kwargs)
        self.watch.kernels += not self.watch.inside
        self.watch.inside += 1
        try:
            return FUSED[func](*args, **kwargs)
        finally:
            self.watch.inside -= 1


def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    """Compute something of the shape and the gradients of attention."""
    groups = q.size(-3) // k.size(-3) if options.get("enable_gqa") else 1
    k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
    scores = q @ k.transpose(-1, -2)
    if attn_mask is not None:
        scores = scores.where(attn_mask, 0) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1) @ v


def flex_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute something of the shape and the gradients of FlexAttention."""
    groups = q.size(1) // v.size(1)
    return q[..., :1] * v.repeat_interleave(groups, 1).mean(2, keepdim=True)


def recurrent(x: Tensor, state: Any, weights: Sequence[Tensor], bias: bool, layers: int, *options: Any) -> Any:
    """Compute something of the shapes and the gradients of recurrent layers of cuDNN."""
    states = (state,) if isinstance(state, Tensor) else state
    _, _, bidirectional, _ = options
    read = torch.stack([t.sum() for t in (*states, *weights)]).sum()
    y = (x.sum(-1, keepdim=True) + read).expand(*x.shape[:-1], states[0].size(-1) * (1 + bidirectional))
    return y, *(s + read for s in states)


def gru_cell(x: Tensor, state: Tensor, *weights: Tensor) -> Tensor:
    """Compute something of the shape and the gradients of a cell."""
    return state + torch.stack([t.sum() for t in (x, *weights)]).sum()


FUSED: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: attention,
    **{f: f for f in (F.rms_norm, torch.rms_norm)},
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), recurrent),
    torch.gru_cell: gru_cell,
}
"""Such functions, and what runs in their place."""


def by_mask(name: str, args: Any) -> bool:
    """Whether an operator finds its indices in a mask; to fill with one number it need not."""
    if name not in ("index", "index_put", "index_put_"):
        return False
    filled = name != "index" and args[2].numel() == 1
    return not filled and any(t is not None and t.dtype == torch.bool for t in args[1])


def emitted_line() -> str:
    """Return the line of an emitted file that runs, and the function that it is in."""
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith("<archdsl_emitted"):
        frame = frame.f_back
    if frame is None:
        return "the backward pass"
    return f"{frame.f_code.co_qualname}: {linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()}"


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the elements of the outermost lists of modules."""
    for child in module.children():
        yield from child.children() if isinstance(child, nn.ModuleList) else layers(child)


@contextmanager
def counted(module: nn.Module, watch: Watch, report: Report) -> Iterator[None]:
    """Note the most kernels that a layer of `module` launches."""
    methods = [(layer, name) for layer in layers(module) for name in ("forward", "step") if hasattr(layer, name)]

    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            before = watch.kernels
            out = method(*args, **kwargs)
            report.layer = max(report.layer, watch.kernels - before)
            return out

        return run

    for layer, name in methods:
        setattr(layer, name, wrapped(getattr(layer, name)))
    yield
    for layer, name in methods:
        delattr(layer, name)


def watched(run: Callable[[], Any], module: nn.Module | None = None) -> Report:
    """Run a function of fake tensors and return what it did; an error is a fault, too."""
    report, watch = Report(), Watch()
    try:
        with Fused(watch), watch, counted(module or nn.Module(), watch, report):
            run()
    except Exception as problem:
        at = [f for f in traceback.extract_tb(problem.__traceback__) if f.filename.startswith("<archdsl")]
        where = f"{at[-1].name}: {at[-1].line}" if at else traceback.format_exc()[-400:]
        watch.found[f"{type(problem).__name__}: {str(problem).partition(chr(10))[0][:200]} in {where}"] += 1
    report.kernels, report.found = watch.kernels, dict(watch.found)
    return report


class Runs:
    """The runs of one model. It is made, and runs, under `FakeTensorMode`."""

    def __init__(self, model: Model, length: int) -> None:
        self.model = model
        self.length = length
        self.predicted = torch.Size([])
        """The shape of the tokens that `forward` predicts."""

    def made(self, *sections: Name) -> tuple[Any, ModuleType]:
        """A module in bfloat16 with sections, and its file."""
        cls = load_source(emit(self.model, Extras(frozenset(sections))))
        file = sys.modules[cls.__module__]
        if hasattr(file, "block_counts"):  # compiled on a GPU
            file.block_counts = file.block_counts.__wrapped__
        if hasattr(file, "fused_attention"):
            file.fused_attention = flex_attention
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("cuda"):
                return cls().eval(), file
        finally:
            torch.set_default_dtype(torch.float32)

    def inputs(self, length: int) -> dict[str, Tensor]:
        return {name: x.cuda() for name, x in real.inputs(self.model, length).items()}

    def forward(self) -> Iterator[tuple[str, Report]]:
        """Whole sequences, and such of twice the length."""
        module, _ = self.made()
        for name, length in (("of twice the length", 2 * self.length), ("forward", self.length)):
            given, out = self.inputs(length), []
            with torch.no_grad():
                yield name, watched(lambda given=given, out=out: out.append(module(**given)), module)
            if out:
                self.predicted = tree_leaves(out)[0].shape[:-1]

    def training(self) -> Iterator[tuple[str, Report]]:
        """The loss and its gradients."""
        try:
            module, _ = self.made("loss")
        except ArchError:
            return
        given = self.inputs(self.length)
        targets = next(name for name in inspect.signature(module.train().forward).parameters if name not in given)
        given[targets] = torch.zeros(self.predicted, dtype=torch.long, device="cuda")
        yield "loss", watched(lambda: module(**given).backward(), module)

    def steps(self) -> Iterator[tuple[str, Report]]:
        """A prompt and one position more, with caches that grow and with those of prompts of several lengths, which
        keep their addresses; sampling."""
        try:
            module, file = self.made("generate")
        except ArchError:
            return
        decoder, given = TorchDecoder(self.model, module), self.inputs(self.length)
        first = decoder.arguments({n: given[n] for n in decoder.new}, given)
        later, more = decoder.arguments({n: given[n][:, :1] for n in decoder.new}), {}
        (prompt, *_) = (given[n] for n in decoder.new)
        with torch.no_grad():
            lengths = torch.full(prompt.shape[:1], self.length - 4, device="cuda")
            for kind, cache in (
                ("", file.Cache(self.length + 8)),
                (", static", file.Cache(self.length + 8, lengths, static=True)),
            ):
                if "at" in decoder.parameters:
                    more["at"] = lengths - 1
                yield f"prompt{kind}", watched(lambda c=cache: decoder.step(**first, cache=c, **more), module)
                yield f"step{kind}", watched(lambda c=cache: decoder.step(**later, cache=c), module)
            if hasattr(file, "sample"):
                logits = torch.empty(2, 1000, dtype=torch.bfloat16, device="cuda")
                yield "sample", watched(lambda: file.sample(logits, 0.7, 50, 0.9, None))

    def all(self) -> dict[str, Report]:
        with FakeTensorMode():
            return {name: r for part in (self.forward, self.training, self.steps) for name, r in part()}


class Steps(Runs):
    """The decode steps of a spec of `decoding.txt`, at its size there, in every form that they have."""

    def inputs(self, length: int) -> dict[str, Tensor]:
        from decoding import drawn  # torch has to be imported before it

        found = {name: x.cuda() for name, x in drawn(self.model).items()}
        return {name: x.bfloat16() if x.is_floating_point() else x for name, x in found.items()}

    def steps(self) -> Iterator[tuple[str, Report]]:
        """Chunks of several positions and of one, with caches that grow and with those that keep their size; the same
        where each row has a length of its own, and where a recurrence waits for the longer ones."""
        from decoding import CHUNKS

        module, _ = self.made("generate")
        decoder, given = TorchDecoder(self.model, module), self.inputs(self.length)
        for static in (False, True):
            kind = ", static" * static
            yield f"chunks{kind}", watched(lambda s=static: decoder.run(given, CHUNKS, static=s), module)
            if decoder.streams:
                yield f"rows{kind}", watched(lambda s=static: self.rows(decoder, given, s), module)

    def rows(self, decoder: TorchDecoder, given: Mapping[str, Tensor], static: bool) -> None:
        """A prompt and two positions more of rows with lengths of their own, as `stream` takes them."""
        (name,) = decoder.new
        tokens, step = given[name], decoder.step

        def new(count: int, first: bool = True) -> dict[str, Tensor | None]:
            return decoder.arguments({name: tokens[:, :count]}, given if first else None)

        lengths = torch.full(tokens.shape[:1], 4, device="cuda")
        with torch.no_grad():
            if any(k.kind == "state" for k in unroll_step(stepped(self.model)).kept):
                cache = decoder.cache(16, static=static)
                step(**new(4), **{decoder.given: cache})
                cache.start, cache.active = lengths[:, None].clamp(max=5), lengths > 5
            else:
                cache = decoder.cache(16, lengths, static)
                at = {"at": lengths - 1} if "at" in decoder.parameters else {}
                step(**new(6), **{decoder.given: cache}, **at)
            for _ in range(2):
                step(**new(1, first=False), **{decoder.given: cache})
                cache.active = None

    def all(self) -> dict[str, Report]:
        with FakeTensorMode():
            return dict(self.steps())


def loops(name: str) -> bool:
    """Whether a model takes one position after another."""
    return f"{name.removeprefix('hf/')}:".startswith((*LOOPS,))


def takes_chunks(model: Model) -> bool:
    """Whether a model takes one chunk of positions after another, as the delta rule does."""
    return any(isinstance(n, OpNode) and n.op.name == "delta_rule" for n in nodes_below(model.block.graph))


def faults(name: str, reports: Mapping[str, Report], grows: bool) -> Iterator[str]:
    """Yield what a GPU would stumble over in the runs of a model, which `grows` by the kernels of more positions."""
    counts = (count for start, (count, _) in MANY.items() if name.removeprefix("hf/").startswith(start))
    most = next(counts, KERNELS)
    for run, report in reports.items():
        yield from (f"{run}: {fault}" for fault in report.found)
        if run.startswith("step") and report.layer > most:
            yield f"{run}: {report.layer} kernels in a layer"
    short, long = reports["forward"].kernels, reports["of twice the length"].kernels
    if (short != long) != grows:
        yield f"forward: {short} kernels, {long} of twice the length"


class ReadBackwards(torch.autograd.Function):
    """The identity, whose gradient is read on the host."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * gradient.sum().item()


class Loop(nn.Module):
    """A layer with one kernel for each position."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [t + 1 for t in x.unbind()]


PLANTED: dict[str, Callable[[Tensor], Any]] = {
    "_local_scalar_dense waits": lambda x: x.sum().item(),
    "_local_scalar_dense waits for the device in the backward": lambda x: ReadBackwards.apply(x).sum().backward(),
    "nonzero waits": lambda x: (x > 0).nonzero(),
    "index waits": lambda x: x[x > 0],
    "repeat_interleave waits": lambda x: x.repeat_interleave(torch.ones_like(x[0]).long(), 0),
    "arange on the CPU": lambda x: torch.arange(4),
    "index of tensors on the CPU": lambda x: x[torch.zeros(2, dtype=torch.long)],
    "add of tensors on the CPU": lambda x: x + torch.zeros(4),
    "_to_copy between": lambda x: x.cpu(),
    "_to_copy between the CPU and CUDA in": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "_to_copy in float64": lambda x: x.double(),
    "RuntimeError": lambda x: x @ x[:3],
}
"""How a fault's name begins, and one."""


def control() -> Iterator[str]:
    """Yield what is planted and not named, and what is named where nothing is planted."""
    with FakeTensorMode():
        x = torch.zeros(4, 4, device="cuda", requires_grad=True)
        for name, plant in PLANTED.items():
            found = watched(lambda plant=plant: plant(x)).found
            if not any(fault.startswith(name) for fault in found):
                yield f"{name} is not found, but {found}"
        clean = watched(lambda: (x @ x).softmax(-1)[x.sum(0).long()].sum().backward())
        yield from clean.found
        module = nn.Sequential(nn.ModuleList((Loop(), Loop())))
        long, short = (torch.zeros(n, device="cuda") for n in (80, 40))
        once, twice = (watched(lambda x=x: [layer(x) for layer in module[0]], module) for x in (short, long))
    found = [*faults("control", {"forward": once, "of twice the length": twice, "step": twice}, False)]
    if found != ["step: 80 kernels in a layer", "forward: 80 kernels, 160 of twice the length"]:
        yield f"too many kernels are found as {found}"


def judged(name: str) -> bool:
    """Run a model, `file:model` of the zoo, print what was found, and return whether nothing was."""
    start = time.perf_counter()
    model = real.graph(name)
    length = min((int(f.value) // 2 - 4 for f in model.config if f.name in POSITIONS), default=LENGTH)
    reports = Runs(model, SHORT if loops(name) else min(LENGTH, length)).all()
    most = max((r.layer for run, r in reports.items() if run.startswith("step")), default=0)
    steps = f", {most} in a layer of a step" if most else ""
    print(f"{name}: {reports['forward'].kernels} kernels{steps} ({time.perf_counter() - start:.1f} s)")
    found = [*faults(name, reports, loops(name) or takes_chunks(model))]
    for fault in found:
        print(f"  {fault}", flush=True)
    return not found


def judged_steps(name: str) -> bool:
    """The same of the steps alone of a spec of `decoding.txt`."""
    from decoding import CHUNKS, cases

    found = [
        f"{run}: {fault}" for run, report in Steps(cases()[name](), sum(CHUNKS)).all().items() for fault in report.found
    ]
    for fault in found:
        print(f"{name}: {fault}", flush=True)
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="file:model of the zoo, or file: for its first")
    parser.add_argument("--control", action="store_true", help="whether faults that are planted are found")
    parser.add_argument("--steps", action="store_true", help="the steps alone, of specs of decoding.txt")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # what it cannot run is reported
    judge = judged_steps if given.steps else judged
    unnamed = [*control()] if given.control else []
    for fault in unnamed:
        print(fault)
    return len(unnamed) + sum([not judge(name) for name in given.models])


if __name__ == "__main__":
    sys.exit(main() > 0)
