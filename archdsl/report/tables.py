"""Reports for people: what the commands print when nobody asks for JSON."""

from __future__ import annotations

import contextlib
import io
import math
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics.source import printable
from archdsl.ir.paths import layer_texts, ranges, starred
from archdsl.report.written import rounded, written

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from archdsl.backends.onnx.store import OnnxFiles
    from archdsl.estimates.activations import BlockActivations
    from archdsl.estimates.fit import FitReport
    from archdsl.estimates.flops import BlockFlops, EstimateReport
    from archdsl.estimates.hardware import HardwareReport
    from archdsl.estimates.machines import MachinesReport
    from archdsl.estimates.memory import KeptMemory, Memory, MemoryReport
    from archdsl.estimates.needs import MemoryAsked
    from archdsl.estimates.params import BlockParams, ParamsReport
    from archdsl.estimates.roofline import Budget, OpTime, Roofline
    from archdsl.estimates.scaling import ScalingReport
    from archdsl.estimates.sharding import Sharding
    from archdsl.estimates.sweep import SweepReport
    from archdsl.interop.convert import ImportReport
    from archdsl.interop.lift.report import LiftReport
    from archdsl.ir.graph import Model
    from archdsl.report.compare import CompareReport, ModelColumn
    from archdsl.report.diff import DiffReport, FilesDiffReport, PartDiff, Quantity
    from archdsl.report.tree import TreeNode
    from archdsl.run.generate import GenerateReport
    from archdsl.run.onnx import OnnxRunReport
    from archdsl.run.smoke import RunReport, Untouched
    from archdsl.run.verify import VerifyReport
    from archdsl.zoo import ZooFamily

UNBROKEN = 10_000
"""How wide a report may be where its reader is no terminal: a line stays a line, the same bytes everywhere."""
WIDE = 140
"""Columns of a terminal from which on the zoo's table has room for names of files."""

Column = tuple[str, dict[str, Any]]
"""The head of a column, and how it is drawn."""
DIM = {"style": "dim"}


def print_report(*parts: RenderableType) -> None:
    """Print to standard output: as wide as its terminal, or plain text without trailing spaces."""
    from rich.console import Console

    if not sys.stdout.isatty():
        sys.stdout.write(plain_text(*parts))
        return
    print_on(Console(highlight=False), parts)


def plain_text(*parts: RenderableType) -> str:
    """Return a report as text without color or trailing spaces, the same on every machine."""
    from rich.console import Console

    plain = Console(highlight=False, width=UNBROKEN, color_system=None, file=io.StringIO(), force_terminal=False)
    with plain.capture() as captured:
        print_on(plain, parts)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def print_on(console: Console, parts: Sequence[RenderableType]) -> None:
    """Print a report; of names that come from outside nothing is left that a terminal would obey."""
    from rich.segment import Segment, Segments

    for part in parts:
        segments = [Segment(printable(s.text, keep="\n"), s.style) for s in console.render(part)]
        console.print(Segments(segments), end="")


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _numbers(*names: str, **more: Any) -> list[Column]:
    """Columns of numbers."""
    return [(name, {"justify": "right", **more}) for name in names]


def _table(*columns: str | Column, heads: bool = True) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=heads, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        name, how = (column, {}) if isinstance(column, str) else column
        table.add_column(name, **how)
    return table


def _totals() -> Table:
    """A table of names, numbers and remarks."""
    return _table("", *_numbers(""), ("", DIM), heads=False)


def _by_block(
    numbers: Sequence[str], rows: Sequence[tuple[BlockParams | BlockFlops, Sequence[int], float | None]]
) -> Iterator[RenderableType]:
    """A table of blocks: numbers, and the share of the whole, also as a bar if there is room; nothing without rows."""
    bars = _has_room()
    more: list[Column] = [("", {"style": "cyan", "no_wrap": True})] if bars else []
    layers = layer_texts([block.layers for block, _, _ in rows])
    placed: list[Column] = [("layers", DIM)] if any(layers) else []
    table = _table("block", *placed, ("declared at", DIM), *_numbers(*numbers, "share"), *more)
    for (block, counts, share), where in zip(rows, layers, strict=True):
        cells = [block.block, *([where] if placed else []), block.source, *(f"{n:,}" for n in counts)]
        shown = "" if share is None else f"{100 * share:.1f} %"
        table.add_row(*map(_escape, [*cells, shown]), *([_bar(share or 0.0)] if bars else []))
    if table.row_count:
        yield ""
        yield table


def params_view(report: ParamsReport, *, blocks: bool = True) -> Iterator[RenderableType]:
    """Yield totals and the rule of thumb; with `blocks` also what each block holds, and what else can be asked."""

    p = report.params
    settings = ", ".join(f"{k} = {v:,}" if isinstance(v, int) else f"{k} = {v:g}" for k, v in report.config.items())
    yield f"[bold]{_escape(report.model)}[/]  [dim]{_escape(report.source)}[/]" + (
        f"\n[dim]{_escape(settings)}[/]" if settings else ""
    )
    totals = _totals()
    totals.add_row("parameters", f"{p.total:,}", "")
    totals.add_row("  without embeddings", f"{p.non_embedding:,}", "")
    if p.active != p.total:
        totals.add_row("  active per token", f"{p.active:,}", f"{100 * p.active / p.total:.1f} %")
    if p.rule_of_thumb:
        totals.add_row("rule of thumb", f"{p.rule_of_thumb:,}", f"12 · n_layer · d² = 12 · {p.layers} · {p.width:,}²")
        totals.add_row("  exact / rule of thumb", f"{p.ratio:.4f}", "without embeddings")
    if p.buffers:
        totals.add_row("saved buffers", f"{p.buffers:,}", "not parameters")
    yield totals
    if blocks:
        rows = [(b, (b.count, b.each, b.total), b.total / p.total if p.total else None) for b in p.by_block[1:]]
        yield from _by_block(("count", "each", "total"), rows)
        yield f"\n[dim]{MORE}[/]"


MORE = "also: FLOPs by --batch 8, memory of training by --dtype bfloat16, fit and times by --accelerator h100_sxm"
"""What `archdsl estimate` without options says at its end."""


BAR = 20
"""Characters of a bar that is a whole."""
ROOM = 100
"""Columns of a terminal from which on there is room for bars beside a table by block."""


def _has_room() -> bool:
    """Whether bars squeeze no other column: in a wide terminal, or where there is none."""

    return not sys.stdout.isatty() or shutil.get_terminal_size().columns >= ROOM


def flops_view(report: EstimateReport, *, side_by_side: bool = False, sizes: bool = True) -> Iterator[RenderableType]:
    """FLOPs in all, by convention if that is wanted, and by block with bars; with the `sizes` of the run, unless they
    are said above."""

    f = report.flops
    run = f"{_sizes(f.sizes)}; " if sizes and f.sizes else ""
    yield f"[bold]FLOPs[/]  [dim]{_escape(f'{run}{f.convention}: {f.conventions[f.convention].says}')}[/]"
    totals = _totals()
    totals.add_row("forward", f"{f.forward:,}", _short(f.forward))
    totals.add_row("backward", f"{f.backward:,}", _short(f.backward))
    totals.add_row("training step", f"{f.training:,}", _short(f.training))
    totals.add_row("  per token", f"{f.training_per_token:,.0f}", "")
    if f.recomputation.selective != f.training:
        totals.add_row("  selective checkpointing", f"{f.recomputation.selective:,}", "attention is recomputed")
    totals.add_row("  full checkpointing", f"{f.recomputation.full:,}", "every layer is recomputed")
    if f.recomputation.head:
        totals.add_row("  chunked loss", f"+ {f.recomputation.head:,}", "the LM head is recomputed")
    if f.decode_step is not None:
        totals.add_row("decode step", f"{f.decode_step:,}", f"one new token at sequence length {f.seq:,}")
    totals.add_row("element-wise ops", f"{f.elementwise:,}", "forward, not included above")
    if f.utilization is not None:
        used, again = f.utilization, f.utilization.checkpoint
        totals.add_row(
            "MFU",
            f"{100 * used.mfu:.1f} %",
            f"{used.convention}; {used.tokens_per_second:,.0f} tokens/s, {used.peak:.4g} FLOP/s",
        )
        totals.add_row("HFU", f"{100 * used.hfu:.1f} %", f"activation checkpointing: {again}; {used.loss} loss")
    yield totals
    if side_by_side:
        table = _table("convention", *_numbers("forward", "training", "of exact"), ("counts", DIM))
        exact = f.conventions["exact"].training
        for name, c in f.conventions.items():
            ratio = f"{c.training / exact:.4f}" if exact else ""
            table.add_row(name, f"{c.forward:,}", f"{c.training:,}", ratio, _escape(c.says))
        yield ""
        yield table
    whole = f.by_block[0].training
    rows = [(b, (b.uses, b.forward, b.training), b.training / whole if whole else 0.0) for b in f.by_block[1:]]
    yield from _by_block(("uses", "forward", "training"), rows)
    for note in f.notes:
        yield f"[dim]{_escape(note)}[/]"
    if f.no_decode_step is not None:
        yield f"[dim]{_escape(f'no decode step: {f.no_decode_step}')}[/]"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {n:,}" for name, n in sizes.items())


def memory_view(report: MemoryReport, *, sizes: bool = True) -> Iterator[RenderableType]:
    """The peak, weights, gradients and optimizer state; then the KV cache and other decode state, by kind of layer;
    with the `sizes` of the run, unless they are said above."""

    m = report.memory
    copied = m.master_weights and m.dtype != "float32"
    how = f"{m.dtype}, {m.algorithm}" + (", fp32 master weights" if copied else "") + f", {m.loss} loss"
    yield f"[bold]Memory[/]  [dim]{_escape(f'bytes; {how}' + (f'; {_sizes(m.sizes)}' if sizes else ''))}[/]"
    totals = _totals()
    if m.step is not None and m.peak is not None:
        totals.add_row("peak", f"{m.peak:,}", f"{_binary(m.peak)}, {_moment(m.step.peak_at)}; estimate")
    totals.add_row("weights", f"{m.weights:,}", _binary(m.weights))
    if m.buffers:
        totals.add_row("buffers", f"{m.buffers:,}", _binary(m.buffers))
    totals.add_row("gradients", f"{m.gradients:,}", _binary(m.gradients))
    names = ", ".join(dict.fromkeys(s.name for s in m.by_state))
    totals.add_row(
        "optimizer state", f"{m.optimizer:,}", f"{_binary(m.optimizer)}{': ' if names else ''}{_escape(names)}"
    )
    totals.add_row("total", f"{m.model_states:,}", f"{_binary(m.model_states)}, without activations")
    if m.step is not None and m.activations is not None:
        how = "" if m.step.checkpoint == "none" else f", {m.step.checkpoint} checkpointing"
        saved = f"{_binary(m.activations)}, saved for the backward pass{how}; estimate"
        totals.add_row("activations", f"{m.activations:,}", saved)
        about = f"{_binary(m.step.objective)}, on top of activations at most, logits included"
        totals.add_row("loss", f"{m.step.objective:,}", about)
    if m.measured is not None:
        how = "exact" if m.measured.exact else "at most"
        totals.add_row("measured", "", "the emitted file in PyTorch, op by op on a CPU")
        if m.measured.kernels:
            said = f"{', '.join(m.measured.kernels)}; the estimate is of an accelerator's fused kernels"
            totals.add_row("  kernels", "", said)
        totals.add_row("  activations", f"{m.measured.saved:,}", f"{_binary(m.measured.saved)}, {how}")
        totals.add_row("  peak", f"{m.measured.peak:,}", f"{_binary(m.measured.peak)}, forwards and backwards")
    if m.decode_state is not None and m.decode_state_per_token is not None:
        about = f"{_binary(m.decode_state)} at sequence length {m.seq:,}"
        totals.add_row(_decode_state(m), f"{m.decode_state:,}", about)
        totals.add_row("  per token", f"{m.decode_state_per_token:,}", "of one sequence")
    yield totals
    if m.no_activations is not None:
        yield f"[dim]{_escape(m.no_activations)}[/]"
    if m.step is not None and m.step.by_block:
        table = _table("saved by", ("at", DIM), *_numbers("count", "bytes", "share"))
        for b in m.step.by_block:
            share = f"{100 * b.bytes / m.step.saved:.1f} %" if m.step.saved else ""
            table.add_row(_escape(b.block), _escape(_at(b)), f"{b.count:,}", f"{b.bytes:,}", share)
        yield ""
        yield table
    if m.kept:
        windows = any(k.window is not None for k in m.kept)
        heads = ["count", "per token", "bytes", *(["window", "ring buffer"] if windows else [])]
        table = _table(_decode_state(m), ("at", DIM), ("kind", DIM), *_numbers(*heads))
        for k in m.kept:
            ring = ["", ""] if k.window is None else [f"{k.window:,}", f"{k.windowed_bytes:,}"]
            row = [k.name, _at(k), k.kind, f"{k.count:,}", f"{k.per_token:,}" if k.per_token else "", f"{k.bytes:,}"]
            table.add_row(*map(_escape, row), *(ring if windows else []))
        yield ""
        yield table
        if windows:
            yield "[dim]ring buffer: a KV cache of the window alone; ONNX decode steps keep all positions[/]"
    if m.no_decode_state is not None:
        yield f"[dim]{_escape(f'no KV cache: {m.no_decode_state}')}[/]"


def _at(row: BlockActivations | KeptMemory | OpTime | Untouched) -> str:
    """Return a path with the layers that it stands for: `blocks.0–11.attention`."""
    return row.path.replace("*", ranges(row.layers), 1)


def _moment(event: str) -> str:
    """Return when in a step the peak is: reports call the loss by its event."""
    return "loss" if event == "objective" else event


def _decode_state(m: Memory) -> str:
    """Return the field's word for what a decoder keeps: a KV cache, unless layers have another state."""
    return "KV cache" if all(k.kind == "cache" for k in m.kept) else "decode state"


def _binary(size: int) -> str:
    """`16.1 GiB`."""
    for power, unit in ((50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{rounded(size / (1 << power), 4)} {unit}"
    return f"{size} B"


def _short(flops: int) -> str:
    """`3.06e15` in the unit that people say: `3.06 PFLOP`."""
    for size, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if flops >= size:
            return f"{rounded(flops / size)} {unit}FLOP"
    return f"{flops} FLOP"


def _bar(share: float) -> str:
    """A part of a whole, to an eighth of a character."""
    eighths = round(8 * BAR * share)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def tree_view(root: TreeNode) -> RenderableType:
    """The model as a tree: step, block, what it gives back, parameters."""
    from rich.tree import Tree

    from archdsl.report.tree import in_turn

    def label(b: TreeNode, name: str) -> str:
        times = f" × {b.count}" if b.count > 1 else ""
        shapes = ", ".join(f"{k} {list(s)}" for k, s in b.weights.items() if k)
        gives = f" -> {', '.join(b.output)}" if b.output else ""
        holds = f" {{{shapes}}}" if shapes else ""
        each = f" {b.params:,}" if b.params else ""
        total = f" [dim]({b.params * b.count:,})[/]" if b.count > 1 and b.params else ""
        about = f"[cyan]{_escape(b.kind)}[/][dim]{_escape(gives + holds)}[/]{each}{total}"
        return f"[bold]{_escape(name)}[/]{times} {about}"

    def grow(view: Tree, b: TreeNode) -> Tree:
        for name, layers in groupby(b.children, key=lambda child: child.stack):
            kinds = [*layers]
            order = in_turn(kinds) if name else ""
            count = sum(kind.count for kind in kinds)
            inner = view.add(f"[bold]{_escape(name)}[/] × {count}[dim]: {_escape(order)}[/]") if order else view
            for child in kinds:
                grow(inner.add(label(child, ranges(child.layers) if order else child.place)), child)
        return view

    return grow(Tree(label(root, root.name)), root)


def zoo_view(families: Sequence[ZooFamily]) -> Iterator[RenderableType]:
    """The zoo, one line a model; what is special about a family stands beside its first. Then one line for each thing
    that is wrong."""

    wide = not sys.stdout.isatty() or shutil.get_terminal_size().columns >= WIDE
    experts = any(m.active != m.parameters for f in families for m in f.models)
    table = _table(
        ("model", {"no_wrap": True, "style": "bold"}),
        *([("file", {"no_wrap": True, **DIM})] if wide else []),
        ("year", {"no_wrap": True}),
        ("kind", {"no_wrap": True, "style": "cyan"}),
        *_numbers("parameters", no_wrap=True),
        *(_numbers("active", no_wrap=True, **DIM) if experts else []),
        ("what is special", {"ratio": 1, "overflow": "fold"}),
    )
    for family in families:
        about = f"[bold]{_escape(family.name)}[/]" + (f" [dim]({_escape(family.authors)})[/]" if family.authors else "")
        about += f": {_escape(family.about)}" if family.about else ""
        for i, m in enumerate(family.models):
            row = [_escape(m.name), *([family.file] if wide else [])]
            row += [str(family.year or ""), m.kind, f"{m.parameters:,}"]
            if experts:
                row.append(f"{m.active:,}" if m.active != m.parameters else "")
            table.add_row(*row, about if i == 0 else "")
    if table.row_count:
        yield table
    for family in families:
        for problem in family.problems:
            named = f" ({', '.join(problem.models)})" if problem.models else ""
            said = f"{problem.place}{named}: {problem.code} {problem.message}"
            yield f"[red]{_escape(' '.join(said.split()))}[/]"


@contextlib.contextmanager
def drawing(model: Model, what: str = "initializing") -> Iterator[Callable[[str, int], None] | None]:
    """A progress bar over the parameters of a model while they are initialized, or written; None where standard error
    is no terminal."""

    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from archdsl.estimates.params import estimate

    counts = estimate(model).params
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=counts.total + counts.buffers)
        yield lambda path, numbers: bar.update(task, advance=numbers, description=path)


def files_view(files: OnnxFiles, spec: Sequence[str], dtype: str, quantize: str | None, target: str) -> Iterator[str]:
    """What there is to say of the files of a graph: weights that it lacks, which are quantized, which runtimes do not
    know it, and what waits on CUDA. `spec` is how a command is told the model."""
    if not files.has_weights:
        put = shlex.join(["archdsl", "init", *spec, "--dtype", dtype, "-o", str(files.weights)])
        yield f"{files.graphs[0]} has no weights yet: `{put}` puts them where it looks"
    if quantize is not None:
        few, rest = sum(files.quantized.values()), sum(files.plain.values())
        share = f"{len(files.quantized):,} weight matrices, {few:,} of {few + rest:,} parameters"
        yield f"{quantize}: {share}; in {dtype}: {', '.join(dict.fromkeys(map(starred, files.plain))) or 'nothing'}"
    if files.remark:
        yield files.remark
    if files.by_expert and target != "ort-cpu":
        where = ", ".join(dict.fromkeys(map(starred, files.by_expert)))
        other = "" if target == "ort-cuda" else "; `--target ort-cuda` has one operator for experts of two layers"
        yield f"{where}: expert by expert, so on CUDA the CPU reads in each layer which of them have rows{other}"


def import_view(report: ImportReport) -> Iterator[RenderableType]:
    """What was written, and how far it is from transformers."""
    from pathlib import Path

    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    origin = f"after {report.family}" if report.lift is None else f"lifted from {report.lift.module}"
    about = f"{report.model_type}, {origin}: {report.parameters:,} parameters"
    table.add_row(_escape(report.spec), _escape(about))
    if report.weights is not None:
        table.add_row(_escape(report.weights), f"from {report.tensors:,} tensors")
    if report.files:
        folder = Path(report.spec).with_suffix(".hf")
        names = ", ".join(str(Path(file).relative_to(folder)) for file in report.files)
        table.add_row(_escape(f"{folder}/"), _escape(f"carried along: {names}"))
    for text in report.doubts:
        table.add_row("in doubt", _escape(text))
    if report.difference is not None:
        table.add_row("difference", f"{report.difference:.1e} of the largest logit of transformers'")
    yield table
    if report.lift is not None:
        # Its weights are those of the checkpoint, however the class draws its own.
        yield _lift_checks(report.lift, initial=False)


def lift_view(report: LiftReport) -> Iterator[RenderableType]:
    """What was written, what was compared with the module, and what the spec does not say of it."""
    table = _table(heads=False)
    for file in report.files:
        table.add_row(_escape(file))
    yield f"[bold]{_escape(report.model)}[/]  [dim]{_escape(report.module)}: {report.parameters:,} parameters[/]"
    yield table
    yield _lift_checks(report, initial=True)


def _lift_checks(report: LiftReport, *, initial: bool) -> Table:
    """What was compared with a module, and what the spec does not say of it: of its `initial` values, too."""
    checks = _table(heads=False)
    for check in report.checks:
        checks.add_row("[green]equal[/]" if check.passed else "[red]differs[/]", _escape(check.message))
    for value in report.initial_values if initial else ():
        scheme = f"; `init: {value.scheme}` would say so" if value.scheme is not None else ""
        checks.add_row(
            "initialized otherwise", _escape(f"{value.weight}: {value.module}, and the spec {value.spec}{scheme}")
        )
    for remark in report.remarks:
        checks.add_row("note", _escape(remark))
    return checks


def _tensors(report: RunReport | OnnxRunReport) -> Table:
    """A table of what went in and what came out."""
    table = _table(heads=False)
    for what, tensors in (("input", report.inputs), ("output", report.outputs)):
        for name, tensor in tensors.items():
            table.add_row(what, _escape(name), _escape(f"{tensor.dtype}{tensor.shape}"))
    return table


UNTOUCHED = 8
"""Weights without a gradient that `run` names."""


def run_view(report: RunReport) -> Iterator[RenderableType]:
    """What went in, what came out, and how long it took."""

    where = _escape(f"{report.parameters:,} parameters, {report.dtype} on {report.device}")
    yield f"[bold]{_escape(report.model)}[/]  [dim]{where}[/]"
    table = _tensors(report)
    for name, ms in report.milliseconds.items():
        table.add_row("time", name, f"{ms:,.1f} ms")
    table.add_row("outputs", "", f"mean square {_finite(report.mean_square)}")
    norm = f"norm {_finite(report.gradient_norm)}"
    table.add_row("gradients", "", f"{report.gradients} of {report.weights} weights, {norm}")
    for w in report.untouched[:UNTOUCHED]:
        table.add_row("", "none for", _escape(f"{_at(w)} in {w.block} ({w.source})"))
    if (more := len(report.untouched) - UNTOUCHED) > 0:
        table.add_row("", "", f"and of {more:,} more; --json names all")
    yield table


def _finite(number: float | None) -> str:
    return "[red]not finite[/]" if number is None else f"{number:.6g}"


def generate_view(report: GenerateReport) -> Iterator[RenderableType]:
    """The rows, unless one was shown as it grew, and how fast they came."""

    if len(report.tokens) == 1:
        yield ""
    else:
        table = _table(heads=False)
        texts = report.texts or [" ".join(map(str, t)) for t in report.tokens]
        for i, text in enumerate(texts, 1):
            table.add_row(str(i), _escape(text))
        yield table
    speed = f"{report.first_token_ms:,.1f} ms to the first token, then {report.tokens_per_second:,.1f} tokens/s"
    yield f"[dim]{_escape(report.model)}: {speed} in {report.dtype} on {report.device}[/]"


def onnx_run_view(report: OnnxRunReport) -> Iterator[RenderableType]:
    """What went into the graph, what came out, and how long it took."""

    yield _heading(report)
    table = _tensors(report)
    for name, ms in report.milliseconds.items():
        said = f", {report.prompt:,} token{'s' * (report.prompt != 1)}" if name == "prefill" and report.prompt else ""
        table.add_row("time", name, f"{ms:,.1f} ms{said}")
    yield table
    yield from _no_decode(report.no_decode)


def verify_view(report: VerifyReport) -> Iterator[RenderableType]:
    """How far onnxruntime is from PyTorch, output by output, and step by step."""

    yield _heading(report)
    rounding = ["rounding"] if report.rounding else []
    table = _table("output", ("shape", DIM), *_numbers("absolute", "relative", *rounding))
    for name, d in report.outputs.items():
        moved = [f"{report.rounding[name].relative:.1e}"] if report.rounding else []
        row = (_escape(name), _escape(f"{d.dtype}{d.shape}"), f"{d.absolute:.1e}", f"{d.relative:.1e}", *moved)
        table.add_row(*row)
    for of, steps in (("", report.decode), ("torch ", report.torch_decode)):
        for name, d in steps.items():
            shown = of + (f"padded {name}" if name.split()[0] in ("left", "right") else name)
            table.add_row(_escape(shown), _escape(f"{d.dtype}{d.shape}"), f"{d.absolute:.1e}", f"{d.relative:.1e}")
    yield table
    yield from _no_decode(report.no_decode)
    yield from assumed_view(report.assumed)
    if report.no_torch_decode != report.no_decode:
        yield from _no_decode(report.no_torch_decode, "not decoded by PyTorch")
    if report.ties:
        chosen = ", ".join(f"`{name}`" for name in report.ties)
        yield f"[dim]equal values in {chosen}: compared with that of the lower index, where PyTorch may take another[/]"
    for name, d in (*report.outputs.items(), *report.decode.items(), *report.torch_decode.items()):
        if d.nan:
            said = f"{_escape(name)}: {d.nan:,} of {math.prod(d.shape):,} numbers are NaN on both sides"
            yield f"[red]{said}, and are not compared[/]"
        elif not d.largest:
            yield f"[red]{_escape(name)}: all numbers are zero, and so nothing is compared[/]"
    word = "[green]agree[/]" if report.agrees else "[red]disagree[/]"
    yield f"PyTorch and onnxruntime {word}: tolerance {report.tolerance:g}"


def assumed_view(assumed: Sequence[str]) -> Iterator[RenderableType]:
    """What is taken for causal without a proof."""

    if assumed:
        yield f"[dim]assumed to be causal, not proved: {_escape(', '.join(assumed))}[/]"


def _no_decode(why: str | None, what: str = "not decoded") -> Iterator[RenderableType]:
    """Why nothing was decoded, if somebody wanted it."""

    from archdsl.run.onnx import NOT_ASKED

    if why not in (None, NOT_ASKED):
        yield f"[dim]{what}: {_escape(why)}[/]"


def _heading(report: OnnxRunReport | VerifyReport) -> str:

    how = f"{report.dtype}, {report.quantize}" if report.quantize else report.dtype
    where = f"{report.parameters:,} parameters, {how} on {report.device}, target {report.target}"
    return f"[bold]{_escape(report.model)}[/]  [dim]{_escape(where)}[/]"


def sweep_view(report: SweepReport) -> Iterator[RenderableType]:
    """One line a point: what is set, what it holds and costs, or why there is no such model."""

    yield f"[bold]{_escape(report.model)}[/]  [dim]{_escape(report.source)}[/]"
    experts = any(row.active != row.parameters for row in report.rows)
    problems = any(row.problem for row in report.rows)
    heads = ["parameters", "non-embedding", *(["active"] if experts else []), "/ 12·L·d²", "FLOPs/token", "training"]
    if report.memory is not None:
        heads.append("memory")
    told: list[Column] = [("", {"style": "red", "overflow": "fold"})] if problems else []
    table = _table(*_numbers(*map(_escape, (*report.names, *report.followed)), *heads, no_wrap=True), *told)
    for row in report.rows:
        counts = (row.parameters, row.non_embedding, *([row.active] if experts else []))
        cells = [_setting_shown(row.settings[name]) for name in report.names]
        cells += [f"{row.followed[name]:,}" if name in row.followed else "" for name in report.followed]
        cells += ["" if n is None else f"{n:,}" for n in counts]
        cells.append("" if row.ratio is None else f"{row.ratio:.4f}")
        cells += ["" if n is None else f"{n:.4g}" for n in (row.forward_per_token, row.training_per_token)]
        if report.memory is not None:
            cells.append("" if row.memory is None else _binary(row.memory))
        if problems:
            cells.append(f"{row.code}: {row.problem}" if row.problem else "")
        table.add_row(*map(_escape, cells))
    yield table
    if report.memory is not None:
        yield f"[dim]memory: {_escape(_asked(report.memory, report.seq))}[/]"


def sweep_csv(report: SweepReport) -> str:
    """The rows of a sweep, exact, below one line of names."""
    import csv

    from archdsl.estimates.sweep import SweepRow

    columns = [name for name in SweepRow.model_fields if name not in ("settings", "followed")]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*report.names, *report.followed, *columns])
    for row in report.rows:
        found = [getattr(row, name) for name in columns]
        settings = [_setting_shown(row.settings[name]).replace(",", "") for name in report.names]
        settings += [str(row.followed.get(name, "")) for name in report.followed]
        writer.writerow([*settings, *("" if v is None else v for v in found)])
    return text.getvalue()


def _setting_shown(value: int | float | bool | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextlib.contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar for work that tells how many of its parts are done; None where standard error is no terminal."""

    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _asked(m: MemoryAsked, seq: int | None = None) -> str:
    """Return how memory was asked for: `batch size 4, sequence length 8,192; bfloat16, decoding`."""
    copied = ", fp32 master weights" if m.master_weights and m.dtype != "float32" else ""
    types = ((m.weights, "weights"), (m.kv_cache, "KV cache"))
    decoding = "".join(["decoding", *(f", {dtype} {name}" for dtype, name in types if dtype != m.dtype)])
    loss = f"; {m.loss} loss" if m.loss is not None else ""
    training = f"{m.optimizer}{copied}; activation checkpointing: {m.checkpoint}{loss}"
    length = f", sequence length {seq:,}" if seq is not None else ""
    return f"batch size {m.batch:,}{length}; {m.dtype}, {decoding if m.decode else training}"


def fit_view(report: FitReport) -> Iterator[RenderableType]:
    """The model that was found, as arguments, and what keeps it from growing."""

    yield f"[bold]{_escape(report.model)}[/]  [dim]{_escape(report.source)}[/]"
    yield _escape(shlex.join(report.set))
    m = report.memory
    if m is not None:
        yield f"[dim]{_escape(_asked(m, m.seq))}[/]"
    budget = report.budget[report.binding]
    table = _totals()
    shown = _binary(budget) if report.binding == "memory" else f"{budget:,}"
    binds = f"{100 * report.used:.2f} % of {shown}" + (", which binds" if len(report.budget) > 1 else "")
    table.add_row("parameters", f"{report.parameters:,}", binds if report.binding == "parameters" else "")
    table.add_row("  without embeddings", f"{report.non_embedding:,}", "")
    if report.active != report.parameters or "active" in report.budget:
        table.add_row("  active per token", f"{report.active:,}", binds if report.binding == "active" else "")
    table.add_row("most are in", report.term, f"{100 * report.term_share:.1f} %")
    if m is not None:
        at = f" at {_moment(m.peak_at)}" if m.peak_at is not None else ""
        table.add_row(
            "memory" if m.decode else "peak of memory",
            _binary(m.bytes),
            _escape(f"{binds if report.binding == 'memory' else ''}{at}".strip()),
        )
        for term, size in m.terms.items():
            table.add_row(f"  {term}", _binary(size), "the most" if term == m.term else "")
    if report.aspect is not None and report.spec_aspect is not None and report.aspect_range is not None:
        low, high = report.aspect_range
        said = f"the spec's: {report.spec_aspect:.1f}; from {low:.1f} to {high:.1f} is allowed"
        if not low <= report.aspect <= high:
            said = f"the spec's: {report.spec_aspect:.1f}; nothing from {low:.1f} to {high:.1f} fits"
        table.add_row(str(report.aspect_of), f"{report.aspect:.1f}", said)
    for n in report.next:
        holds = "" if n.parameters is None else f"{n.parameters:,}"
        verdicts = {
            "over memory": "too much memory" + (f": {_binary(n.memory)}" if n.memory is not None else ""),
            "over parameters": "too many parameters",
            "over active": "too many active" + (f": {n.active:,}" if n.active is not None else ""),
            "impossible": "the model takes no such run" if n.name in ("batch", "seq") else "the spec is wrong there",
            "aspect": "it fits, beyond the aspect ratio",
            "fits": "it fits, farther from the spec's proportions",
        }
        table.add_row(f"{_escape(n.name)} = {n.value:,}", holds, verdicts[n.verdict])
    yield table


def scaling_view(report: ScalingReport) -> Iterator[RenderableType]:
    """One line a law: the run, and the loss it predicts."""

    given = ", ".join(f"{name} = {n:.4g}" for name, n in report.given.items())
    yield f"[bold]{'optimum' if report.optimal else 'run'}[/]  [dim]{given}; C = 6 · parameters · tokens[/]"
    heads = ["FLOPs", "parameters", "tokens", "tokens / parameter", "loss"]
    heads += [] if report.optimal else ["best at these FLOPs"]
    table = _table(("law", {"no_wrap": True}), *_numbers(*heads, no_wrap=True), ("source", DIM))
    for run in report.runs:
        ratio = rounded(run.tokens_per_parameter)
        row = [run.law, f"{run.flops:.3g}", _budget(run.parameters), _budget(run.tokens), ratio, f"{run.loss:.4f}"]
        row += [] if report.optimal else ["" if run.best_loss is None else f"{run.best_loss:.4f}"]
        table.add_row(*row, run.source)
    yield table
    yield "[dim]parameters of kaplan are without embeddings; losses of different laws are of different corpora[/]"


def _budget(n: float) -> str:
    """A number as such budgets are told: 1.3B, 350M, 15T."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= size:
            return f"{rounded(n / size)}{unit}" if n < 1000 * size else f"{n / size:,.0f}{unit}"
    return f"{n:.3g}"


def hardware_view(report: HardwareReport) -> Iterator[RenderableType]:
    """One line a device: memory, how fast it is read, peaks of dense products."""
    from typing import get_args

    from archdsl.estimates.hardware import Type

    types = [t for t in get_args(Type) if any(t in d.peak for d in report.devices.values())]
    heads = _numbers("year", "GiB", "usable", "TB/s", *types, "link GB/s", "net GB/s", "W", no_wrap=True)
    table = _table(("device", {"no_wrap": True, "style": "bold"}), ("", {"no_wrap": True}), *heads)
    for name, d in report.devices.items():
        peaks = [_tera(d.peak[t]) if t in d.peak else "" for t in types]
        link = f"{d.interconnect.bandwidth / 1e9:,.0f}" if d.interconnect is not None else ""
        network = f"{d.network.bandwidth / 1e9:g}" if d.network is not None else ""
        row = [_escape(name), _escape(d.name), str(d.year or ""), f"{d.memory_gib:g}"]
        row += [f"{d.usable / (1 << 30):.2f}", f"{d.bandwidth / 1e12:.3g}"]
        table.add_row(*row, *peaks, link, network, str(d.tdp_watts or ""))
    yield table
    yield "[dim]peaks in TFLOP/s, dense, as the vendors give them; --json has the sources[/]"


def _tera(n: float) -> str:
    return f"{n / 1e12:,.0f}" if n >= 1e14 else f"{n / 1e12:.3g}"


# --- many devices, and time -------------------------------------------------------------------------------------------


def answer_view(report: MemoryReport) -> Iterator[RenderableType]:
    """How devices are used, whether a training step fits and what would make it fit, and how long it takes."""

    from archdsl.estimates.machines import MachinesReport

    if not isinstance(report, MachinesReport):
        return
    r = report.roofline
    yield f"[bold]{_escape(report.model)}[/] on [bold]{_escape(_assumed(report))}[/]"
    yield _training_needs(report)
    rows: dict[str, list[str]] = {n.phase: [n.phase, _binary(n.bytes)] for n in report.needs}
    if r is not None:
        times = {"training": r.training, "prefill": r.prefill, "decode": r.decode}
        for n in report.needs:
            time = times[n.phase]
            rows[n.phase] += ["fits" if n.fits else "[bold red]does not fit[/]", _seconds(time.seconds) if time else ""]
        rows["training"].append(_range(r.expected.seconds, _seconds))
    timed: list[str | Column] = [] if r is None else [f"of {_binary(r.usable)}", *_numbers("at least", "expected")]
    table = _table("", *_numbers("memory"), *timed)
    for row in rows.values():
        table.add_row(*row)
    yield ""
    yield table
    if r is not None:
        e = r.expected
        reached = f"{_range(round(100 * part) for part in reversed(e.mfu))} % MFU, attention counted whole ({e.says})"
        yield _escape(f"expected: {_range(reversed(e.tokens_per_second))} tokens/s at {reached}")
        used = report.flops.utilization
        if used is not None:
            ratio = r.training.tokens_per_second / used.tokens_per_second
            yield (
                f"measured: {used.tokens_per_second:,.0f} tokens/s, {100 * used.mfu:.1f} % MFU ({used.convention}), "
                + (f"{100 * used.hfu:.1f} % HFU; {ratio:.2f} times the lower bound")
            )
        if r.budget is not None:
            yield from _budget_lines(r.budget)
    yield ""


def _assumed(report: MachinesReport) -> str:
    """Return all that a report assumes of a run: `8 × NVIDIA H100 SXM5 (dp = 8): bfloat16, adamw, ZeRO 3, …`."""
    s, r = report.sharding, report.roofline
    where = f"{s.devices:,} × " * (s.devices > 1 and r is not None) + (r.accelerator if r is not None else "")
    where = where or _several(s.devices, "device")
    how: list[str] = [s.dtype]
    if r is not None:
        kinds = {"matrices": r.weights, "KV cache": r.cache, "products": r.compute}
        how += [f"{what} in {kind}" for what, kind in kinds.items() if kind is not None]
    how += [s.algorithm, *(["fp32 master weights"] if s.master_weights and s.dtype != "float32" else [])]
    how += [f"{s.gradient_dtype} gradients"] if s.gradient_dtype != s.dtype else []
    how += [f"ZeRO {s.zero}"] if s.zero else []
    how += ["sequence parallel"] if s.sequence_parallel else []
    how += [f"{s.checkpoint} checkpointing"] if s.checkpoint != "none" else []
    how += [f"{s.loss} loss", *(["eager attention"] if s.attention == "eager" else [])]
    parts = f" ({s.micro_batches:,} micro-batches of {s.micro_batch:,})" if s.micro_batches > 1 else ""
    mesh = f" ({s.mesh})" if s.devices > 1 else ""
    return f"{where}{mesh}: {', '.join(how)}; batch size {s.batch:,}{parts}, sequence length {s.seq:,}"


TERMS = {"optimizer": "the optimizer state is", "objective": "the loss is", "gathered": "gathered weights are"}
"""Terms of what a training step needs, as a sentence begins with them; else `weights are`."""


def _training_needs(report: MachinesReport) -> str:
    """Return the sentence that says what training needs of a device's memory, what most of it is, and what would make
    it fit."""
    need, r, other = report.needs[0], report.roofline, report.advice
    terms = f"{TERMS.get(need.term, f'{need.term} are')} {'' if need.is_whole(need.term) else 'up to '}"
    terms += f"{_gib(need.terms[need.term])} of it"
    if r is None:
        where = "each device" if report.sharding.devices > 1 else "one device"
        return f"Training needs {_gib(need.bytes)} GiB on {where}: {terms}"
    where = "each GPU" if r.devices > 1 else "one GPU"
    usable, needed, least = _gib_beside(r.usable, need.bytes, need.bytes if other is None else other.bytes)
    said = f"Training needs {needed} GiB on {where} and"
    if need.fits:
        return f"{said} fits in {usable}"
    said = f"{said} [bold red]does not fit[/] in {usable}: {terms}"
    if other is None:
        return said
    options = f"`{shlex.join(other.options)}`"
    return f"{said}; {options} brings it to {least}" if other.fits else f"{said}; even {options} needs {least}"


def _gib(size: int, digits: int = 3) -> str:
    """Return bytes in GiB, without the unit: `12.3`, `6,130`."""
    return rounded(size / (1 << 30), digits)


def _gib_beside(usable: int, *sizes: int) -> list[str]:
    """Return what is usable and sizes in GiB, with more digits where one would read as fitting in what is usable and
    does not, or the reverse."""

    def fits(size: int, digits: int) -> bool:
        shown, room = (float(f"{n / (1 << 30):.{d}g}") for n, d in ((size, digits), (usable, max(digits, 4))))
        return shown <= room

    digits = next(d for d in range(3, 18) if all(fits(n, d) == (n <= usable) for n in sizes))
    return [_gib(usable, max(digits, 4)), *(_gib(n, digits) for n in sizes)]


def _budget_lines(b: Budget) -> Iterator[str]:
    least, most = b.expected
    parts = [_range((least.seconds, most.seconds), _long)]
    parts += [f"{_range((least.device_hours, most.device_hours))} device-hours"]
    if least.energy_kwh is not None and most.energy_kwh is not None:
        parts += [f"{_range((least.energy_kwh, most.energy_kwh))} kWh at the devices' full power"]
    if least.price is not None and most.price is not None:
        parts += [f"a price of {_range((least.price, most.price))} at {b.price_per_hour:g} an hour"]
    yield f"{b.tokens:,} tokens: {', '.join(parts)}"
    yield f"  at least {_long(b.seconds)}, {rounded(b.device_hours)} device-hours"


def machines_view(report: MemoryReport) -> Iterator[RenderableType]:
    """What a device of a mesh holds and sends, and times on named hardware, where they were asked for."""
    from archdsl.estimates.machines import MachinesReport

    if isinstance(report, MachinesReport):
        if report.sharding.devices > 1 or report.roofline is None:
            yield ""
            yield from sharding_view(report.sharding)
        if report.roofline is not None:
            yield ""
            yield from roofline_view(report.roofline)


def sharding_view(s: Sharding) -> Iterator[RenderableType]:
    """Memory of the fullest rank, then what the busiest one sends."""

    yield "[bold]Mesh[/]  [dim]bytes of the fullest device[/]"
    m = s.memory
    where = f" of stage {m.stage}, the fullest" if len(s.stages) > 1 else ""
    kept = f", of {_several(m.in_flight, 'micro-batch', 'es')} in flight" if len(s.stages) > 1 else ""
    rows = (
        ("peak", m.total, f"{_binary(m.total)}, {_moment(m.peak_at)}", True),
        ("parameters", m.parameters, f"on a device{where}", True),
        ("weights", m.weights, _binary(m.weights), True),
        ("gradients", m.gradients, _binary(m.gradients), True),
        ("optimizer state", m.optimizer, _binary(m.optimizer), True),
        ("activations", m.activations, f"{_binary(m.activations)}{kept}", True),
        (
            "loss",
            m.objective,
            f"{_binary(m.objective)}, on top of activations at most, logits included",
            bool(m.objective),
        ),
        ("recomputed", m.working, f"{_binary(m.working)}, the largest layer's", bool(m.working)),
        (
            "gathered",
            m.gathered,
            f"{_binary(m.gathered)}, weights outside of layers, two layers, and the gradients of one",
            bool(m.gathered),
        ),
    )
    totals = _totals()
    for name, size, said, told in rows:
        if told:
            totals.add_row(name, f"{size:,}", said)
    totals.add_row("sent in a step", f"{sum(s.sent.values()):,}", _binary(sum(s.sent.values())))
    if s.bubble:
        totals.add_row("pipeline bubble", f"{100 * s.bubble:.1f} %", "of a step")
    yield totals
    if s.communication:
        table = _table("collective", ("along", DIM), ("for", DIM), ("when", DIM), *_numbers("devices", "calls", "sent"))
        for c in s.communication:
            row = (c.collective, c.axis, c.purpose, c.phase, f"{c.devices:,}", f"{c.calls:,}", _binary(c.sent))
            table.add_row(*map(_escape, row))
        yield ""
        yield table
    if len(s.stages) > 1:
        table = _table(
            *_numbers("stage", "layers", "weights", "gradients", "optimizer", "activations", "total", "sent")
        )
        for stage in [*s.stages[:2], *s.stages[2:][-2:]]:
            sizes = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.total, stage.sent)
            table.add_row(f"{stage.stage}", f"{stage.layers:,}", *map(_binary, sizes))
        yield ""
        yield table
    for note in s.notes:
        yield f"[dim]{_escape(note)}[/]"


def roofline_view(r: Roofline) -> Iterator[RenderableType]:
    """Times of a training step, of a prefill and of a decode step; then of ops, the slowest first."""

    fused = "element-wise ops fused" if r.fused else "op by op"
    yield f"[bold]Time[/]  [dim]{_escape(f'{r.says}; {fused}')}[/]"
    table = _table(
        "", *_numbers("seconds", "tokens/s", "MFU (exact)", "bound by FLOPs", "by memory", "by links", "bubble")
    )
    rows = [("training step", r.training), ("prefill", r.prefill)]
    rows += [("decode step", r.decode)] if r.decode is not None else []
    for name, t in rows:
        waiting = r.training.bubble if t is r.training else 0.0
        shares = (t.compute_bound, t.memory_bound, t.links, waiting)
        parts = [f"{100 * part / t.seconds:.1f} %" if part else "" for part in shares]
        table.add_row(
            name, _seconds(t.seconds), rounded(t.tokens_per_second, 4), f"{100 * t.utilization:.1f} %", *parts
        )
    yield table
    ops = _table("op", ("at", DIM), *_numbers("uses", "forward", "backward", "decode step"), ("bound by", DIM))
    for op in r.by_op[:SLOWEST]:
        ops.add_row(
            _escape(op.op),
            _escape(_at(op)),
            f"{op.uses:,}",
            _seconds(op.forward),
            _seconds(op.backward),
            _seconds(op.decode) if op.decode else "",
            "FLOPs" if op.bound == "compute" else "memory",
        )
    yield ""
    yield ops
    for note in r.notes:
        yield f"[dim]{_escape(note)}[/]"


SLOWEST = 10
"""Ops that are shown."""


def _several(n: int, what: str, plural: str = "s") -> str:
    return f"{n:,} {what}{plural if n != 1 else ''}"


def _range(ends: Iterable[float], show: Callable[[float], str] | None = None) -> str:
    """`1 to 2`, or one of them where both read alike; three digits where nobody says how they are shown."""
    return " to ".join(dict.fromkeys((show or rounded)(n) for n in ends))


def _seconds(seconds: float) -> str:
    """`1.42 ms`."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{rounded(seconds / size)} {unit}"
    return f"{rounded(seconds * 1e9)} ns"


def _long(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= size:
            return f"{rounded(seconds / size)} {unit}"
    return f"{rounded(seconds)} seconds" if seconds >= 1 else _seconds(seconds)


# --- two models side by side ------------------------------------------------------------------------------------------

MARKS = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "changed": ("~", "yellow"),
    "renamed": (">", "cyan"),
    "resized": ("~", "dim"),
    "same": (" ", "dim"),
}
"""How a part is marked that only one model has, or both, and in which color."""
LINES = 200
"""Parts that differ that are shown."""
SMALL = 1e-3
"""Parts whose difference is less of the whole have no line among sizes."""


def diff_view(report: DiffReport) -> Iterator[RenderableType]:
    """What two models hold and cost; then settings that differ, parts that differ, and how their sizes do."""
    names = f"{report.before} → {report.after}"
    yield f"[bold]{_escape(names)}[/]  [dim]{_escape(' → '.join(dict.fromkeys(report.sources)))}[/]"
    if report.same:
        yield "no difference"
        return
    table = _table("", *_numbers("before", "after", "difference"), ("", DIM))
    for q in report.totals:
        if q.before is not None or q.after is not None:
            table.add_row(q.name, *_quantities(q), "" if q.difference != 0 else "the same")
    yield table
    yield f"[dim]sequence length {report.seq:,}; bfloat16, training with AdamW and fp32 master weights[/]"
    if report.settings:
        yield "\n[bold]Settings[/]"
        table = _table("", "", heads=False)
        for s in report.settings:
            status = "added" if s.before is None else "removed" if s.after is None else "changed"
            values = " → ".join(_setting_shown(v) for v in (s.before, s.after) if v is not None)
            table.add_row(_marked(status, s.name), values)
        yield table
    if lines := list(_parts_told(report.root, -1)):
        yield "\n[bold]Structure[/]"
        yield from lines[:LINES]
        if len(lines) > LINES:
            yield f"[dim]and {len(lines) - LINES:,} more: --json says all[/]"
    elif not report.settings:
        yield "\nthe same parts, put together otherwise"
    sizes = _table("", *_numbers("parameters", "after", "difference", "FLOPs/token", "after"))
    for depth, part in _sized(report.root, SMALL * _most(report.root)):
        flops = ["" if f is None else _short(round(f)) for f in (part.flops_before, part.flops_after)]
        counts = [f"{n:,}" if n else "" for n in (part.params_before, part.params_after)]
        told = _marked(part.status, "  " * depth + _part_title(part), plain=part.status in ("resized", "changed"))
        sizes.add_row(told, *counts, f"{part.params_after - part.params_before:+,}", *flops)
    if sizes.row_count:
        yield "\n[bold]Sizes[/]  [dim]in each part, those of the parts below it included[/]"
        yield sizes


def files_diff_view(report: FilesDiffReport) -> Iterator[RenderableType]:
    """The models of two files: those that only one has, then how each of both differs."""
    for status, names in (("removed", report.removed), ("added", report.added)):
        for name in names:
            yield _marked(status, f"model {name}")
    for one in report.models:
        if not one.same:
            yield from diff_view(one)
            yield ""
    if same := sum(m.same for m in report.models):
        yield f"[dim]{_several(same, 'model')} without a difference[/]"


def _quantities(q: Quantity) -> Iterator[str]:
    """Both values and their difference, as people say such numbers."""
    shown: Callable[[Any], str] = {"parameters": "{:,}".format, "bytes": _binary}.get(
        q.unit, lambda n: _short(round(n))
    )
    yield from ("none" if n is None else shown(n) for n in (q.before, q.after))
    if q.difference is None or q.difference == 0 or not q.before:
        yield ""
        return
    yield f"{'+' if q.difference > 0 else '-'}{shown(abs(q.difference))}  {100 * q.difference / q.before:+.1f} %"


def _marked(status: str, text: str, *, plain: bool = False) -> str:
    sign, color = MARKS[status]
    indent = " " * (len(text) - len(text.lstrip()))
    said = f"{sign} {_escape(text.lstrip())}"
    return indent + (said[2:] if plain else f"[{color}]{said}[/]")


def _part_title(part: PartDiff) -> str:
    """`blocks: layer (dense) × 1 → 3`, `ffn: mlp → swiglu`."""
    before, after = part.before, part.after
    count = next((f" × {c.before} → {c.after}" for c in part.changes if c.name == "count"), "")
    if before is None or after is None:
        return f"{after or before}"
    step, _, kind = after.rpartition(": ")
    if before.rpartition(": ")[0] == step and before != after:
        after = kind
    return f"{before if before == after else f'{before} → {after}'}{count}"


def _parts_told(part: PartDiff, depth: int) -> Iterator[str]:
    """A line for each part that is not the same, those in it below; a loop has none, its layers stand for it."""
    told = ", ".join(f"{c.name} {c.before} → {c.after}" for c in part.changes if c.name != "count")
    wraps = _is_stack(part) or depth < 0
    if depth < 0:  # the model itself
        yield from (f"[yellow]~ {c.name}[/]  {_escape(f'{c.before} → {c.after}')}" for c in part.changes)
    elif not wraps:
        size = f"  {part.params_before or part.params_after:,} parameters"
        about = (
            size if part.status in ("added", "removed") and (part.params_before or part.params_after) else f"  {told}"
        )
        yield f"{_marked(part.status, '  ' * depth + _part_title(part))}[dim]{_escape(about.rstrip())}[/]"
    indent = "  " * (max(depth, 0) + (not wraps))
    found: list[tuple[str, ...]] = []
    quiet: dict[str, list[str]] = {}
    for inner in part.parts:
        if inner.status in ("added", "removed") and not (inner.params_before or inner.params_after):
            quiet.setdefault(inner.status, []).append(_part_title(inner))
        elif inner.status not in ("same", "resized"):
            found.append(tuple(_parts_told(inner, max(depth, 0) + (not wraps))))
    for (first, *others), times in Counter(found).items():  # dropouts, which have no names, may say the same
        yield first + (f" (× {times})" if times > 1 else "")
        yield from others
    for status, titles in quiet.items():
        each = [f"{title} × {n}" if n > 1 else title for title, n in Counter(titles).items()]
        yield _marked(status, indent + ", ".join(each))


def _is_stack(part: PartDiff) -> bool:
    """Whether it is the layers, which stand for it."""
    return "layers" in (part.before, part.after)


def _most(part: PartDiff) -> int:
    return max(abs(part.params_after - part.params_before), *(_most(p) for p in part.parts), 0, 0)


def _sized(part: PartDiff, least: float, depth: int = 0) -> Iterator[tuple[int, PartDiff]]:
    """The parts whose sizes differ by no less, callers first; primitives of a block of the library are left out, and
    what is all that there is in a primitive."""
    for inner in part.parts:
        sizes, around = ((p.params_before, p.params_after) for p in (inner, part))
        alone = sizes == around and not _is_stack(part)
        shown = not _is_stack(inner) and inner.status != "same" and not alone and (inner.parts or not part.library)
        shown = shown and abs(sizes[1] - sizes[0]) >= max(least, 1)
        if shown:
            yield depth, inner
        yield from _sized(inner, least, depth + bool(shown))


def compare_view(report: CompareReport) -> Iterator[RenderableType]:
    """A column for each model."""
    table = _table("", *_numbers(*(_escape(m.model) for m in report.models)))
    for name, cells in _compared(report):
        table.add_row(name, *map(_escape, cells))
    yield table
    yield f"[dim]{_compared_how(report)}[/]"


def _compared_how(report: CompareReport) -> str:
    return (
        f"FLOPs at sequence length {report.seq:,}; bfloat16, training with AdamW and fp32 master weights, without "
        "activations; the KV cache of a window is a ring buffer"
    )


def _compared(report: CompareReport) -> Iterator[tuple[str, list[str]]]:
    """The rows of the table, those left out that no model has anything for."""
    from archdsl.report.compare import LONG

    def numbers(found: Sequence[int]) -> str:
        return ", ".join(f"{n:,}" for n in found)

    def number(n: int | None) -> str:
        return "" if n is None else f"{n:,}"

    def size(n: int | None, otherwise: str) -> str:
        return otherwise if n is None else _binary(n)

    rows: dict[str, Callable[[ModelColumn], str]] = {
        "spec": lambda m: m.source,
        "kind": lambda m: m.kind,
        "layers": lambda m: number(m.layers or None),
        "width": lambda m: number(m.width),
        "heads": lambda m: numbers(m.heads),
        "KV heads": lambda m: numbers(m.kv_heads),
        "vocabulary": lambda m: number(m.vocabulary),
        "context": lambda m: number(m.context),
        "attention": lambda m: ", ".join(m.attention) or "other",
        "window": lambda m: numbers(m.windows),
        "positions": lambda m: ", ".join(map(written, m.positions)) or "none found",
        "experts": lambda m: numbers(m.experts),
        "experts per token": lambda m: numbers(m.active_experts),
        "parameters": lambda m: number(m.parameters),
        "  active per token": lambda m: number(m.active),
        "FLOPs per token, forward": lambda m: _short(round(m.forward_per_token)),
        "FLOPs per token, training": lambda m: _short(round(m.training_per_token)),
        "KV cache per token": lambda m: size(m.cache_per_token, "no decoding"),
        f"KV cache or state at {LONG:,}": lambda m: size(m.cache_long, m.no_cache or ""),
        "weights": lambda m: _binary(m.weights),
        "training memory": lambda m: _binary(m.training),
    }
    for name, cell in rows.items():
        cells = [cell(m) for m in report.models]
        if any(cells):
            yield name, cells


_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>|~&]")


def compare_markdown(report: CompareReport) -> str:
    """The table as Markdown; of what names hold nothing is markup."""

    def escaped(text: str) -> str:
        return _MARKDOWN.sub(r"\\\g<0>", printable(" ".join(text.split())))

    names = [escaped(m.model) for m in report.models]
    lines = [["", *names], ["---", *["---:" for _ in names]]]
    lines += [[name.strip(), *map(escaped, cells)] for name, cells in _compared(report)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{_compared_how(report)}\n"


FORMULA = ("=", "+", "-", "@")
"""What a cell begins with that a spreadsheet computes."""


def compare_csv(report: CompareReport) -> str:
    """A row of exact numbers for each model, below one line of names."""
    import csv

    def cell(value: object) -> object:
        text = " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
        text = printable(text)
        return f"'{text}" if text.startswith(FORMULA) else text

    text = io.StringIO()
    rows = [m.model_dump() for m in report.models]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()
