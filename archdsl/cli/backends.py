"""Commands that compile and run: compile, init, run, verify."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from archdsl.cli.frame import FINE, WRONG_SPEC, command, print_or_json, say
from archdsl.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    KeepOption,
    NoDecodeOption,
    NoncausalOption,
    QuantizeOption,
    Recompute,
    SeedOption,
    SetOption,
    SpecArgument,
    TargetOption,
    TimeOption,
    WeightsOption,
    demand_other,
    keep_needs_bits,
    load_model,
    only_with,
    settings_of,
)


@command("compile")
def compile_(
    context: typer.Context,
    spec: SpecArgument,
    to: Annotated[str, typer.Option("--to", metavar="torch|onnx", help="What to compile to.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write it (ONNX: a directory too); else standard output."
        ),
    ] = None,
    dtype: DtypeOption = "float32",
    target: TargetOption = "portable",
    quantize: QuantizeOption = None,
    keep: KeepOption = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE.safetensors", help="ONNX: the weights, strictly.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="ONNX: draw the weights, as `init` does.")] = None,
    store: Annotated[
        Literal["safetensors", "onnx_data", "inline"],
        typer.Option(
            "--store",
            help="ONNX: weights beside the graph as PyTorch reads them too, beside it as ONNX has it, or inside.",
        ),
    ] = "safetensors",
    decode: Annotated[
        bool,
        typer.Option("--decode", help="ONNX: a step of generating: new tokens, and what was kept of those before."),
    ] = False,
    logits: Annotated[
        Literal["all", "last"],
        typer.Option("--logits", help="With --decode: of all new tokens, or of each row's last alone."),
    ] = "all",
    bos_token_id: Annotated[
        int | None, typer.Option("--bos-token-id", metavar="N", min=0, help="With --decode: begins a text.")
    ] = None,
    eos_token_id: Annotated[
        list[int] | None,
        typer.Option("--eos-token-id", metavar="N", min=0, help="With --decode: ends a text (repeatable)."),
    ] = None,
    pad_token_id: Annotated[
        int | None,
        typer.Option(
            "--pad-token-id", metavar="N", min=0, help="With --decode: fills a batch; what ends a text, or 0."
        ),
    ] = None,
    with_: Annotated[
        str | None,
        typer.Option("--with", metavar="SECTION,…", help="PyTorch: more in the file: generate, loss, parallel, cpu."),
    ] = None,
    checkpoint: Annotated[
        Recompute,
        typer.Option("--checkpoint", help="PyTorch: what the backward computes again: attention's core, every layer."),
    ] = "none",
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Compile a spec to one readable PyTorch file that imports only torch, or to an ONNX graph."""
    of_steps = ("logits", "bos_token_id", "eos_token_id", "pad_token_id")
    if to != "onnx":
        from archdsl.api import source_for
        from archdsl.files import write_text

        only_with(context, "--to onnx", "dtype", "target", "quantize", "keep", "weights", "seed", "store", "decode")
        only_with(context, "--to onnx --decode", *of_steps)
        demand_other(output, spec)
        text = source_for(
            spec,
            to,
            set=settings_of(set),
            allow_noncausal=allow_noncausal,
            sections=[name.strip() for name in (with_ or "").split(",") if name.strip()],
            checkpoint=checkpoint,
        )
        if output is None or output == "-":
            sys.stdout.write(text)
        else:
            write_text(Path(output), text)
        return
    only_with(context, "--to torch", "with_", "checkpoint")
    from archdsl.api import onnx_from
    from archdsl.diagnostics import error
    from archdsl.report.tables import drawing, files_view

    if output is None or output == "-":
        raise error("E0504", "an ONNX file is no text", help="say where to write it: `-o FILE.onnx` or `-o DIRECTORY/`")
    keep_needs_bits(keep, quantize)
    if weights is not None and seed is not None:
        raise typer.BadParameter("choose one", param_hint="'--weights' / '--seed'")
    if not decode:
        only_with(context, "--decode", *of_steps)
    demand_other(output, spec, weights)
    model = load_model(spec, set, allow_noncausal)
    with drawing(model, "writing") as progress:
        files = onnx_from(
            model,
            output,
            dtype=dtype,
            target=target,
            quantize=quantize,
            keep=keep or (),
            weights=weights,
            seed=seed,
            store=store,
            decode=decode,
            logits=logits,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id or (),
            pad_token_id=pad_token_id,
            progress=progress,
        )
    told = [spec, *(f"--set={s}" for s in set or ()), *(["--allow-noncausal"] if allow_noncausal else [])]
    for line in files_view(files, told, dtype, quantize):
        say(line)


@command("init")
def init(
    spec: SpecArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.safetensors", help="Where to write the weights.")
    ],
    seed: Annotated[int, typer.Option("--seed", help="The same seed draws the same weights, on every machine.")] = 0,
    dtype: DtypeOption = "float32",
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Draw every weight as the spec says and write a safetensors file: without torch, one tensor at a time."""
    from archdsl.api import draw_weights
    from archdsl.report.tables import drawing

    demand_other(output, spec)
    model = load_model(spec, set, allow_noncausal)
    with drawing(model) as progress:
        draw_weights(model, seed, dtype, output, progress)


@command("run")
def run(
    context: typer.Context,
    spec: SpecArgument,
    backend: Annotated[
        Literal["torch", "onnx"], typer.Option("--backend", help="PyTorch, or the ONNX graph in onnxruntime.")
    ] = "torch",
    weights: WeightsOption = None,
    seed: SeedOption = 0,
    batch: Annotated[int, typer.Option("--batch", min=1, help="How many sequences.")] = 1,
    time: TimeOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    target: TargetOption = "portable",
    quantize: QuantizeOption = None,
    keep: KeepOption = None,
    no_decode: NoDecodeOption = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Compile a spec and run it: once forwards and once backwards in PyTorch; in onnxruntime forwards and by steps."""
    if backend == "torch":
        only_with(context, "--backend onnx", "target", "quantize", "keep", "no_decode")
        from archdsl.report.tables import run_view
        from archdsl.run.smoke import run as trial

        model = load_model(spec, set, allow_noncausal)
        report = trial(model, weights=weights, seed=seed, batch=batch, time=time, device=device, dtype=dtype)
        print_or_json(report, run_view, json)
        return
    from archdsl.report.tables import onnx_run_view
    from archdsl.run.onnx import run as infer

    keep_needs_bits(keep, quantize)
    found = infer(
        load_model(spec, set, allow_noncausal),
        weights=weights,
        seed=seed,
        batch=batch,
        time=time,
        device=device,
        dtype=dtype,
        target=target,
        quantize=quantize,
        keep=keep or (),
        decode=not no_decode,
    )
    print_or_json(found, onnx_run_view, json)


@command("verify")
def verify(
    spec: SpecArgument,
    weights: WeightsOption = None,
    seed: SeedOption = 0,
    batch: Annotated[int, typer.Option("--batch", min=1, help="How many sequences.")] = 2,
    time: TimeOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    target: TargetOption = "portable",
    quantize: QuantizeOption = None,
    keep: KeepOption = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", min=0, help="The largest relative difference: 1e-4 by default, more in half precision."
        ),
    ] = None,
    no_decode: NoDecodeOption = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> int:
    """Run a model in PyTorch and in onnxruntime, on the same weights, and compare what comes out, step by step too."""
    from archdsl.report.tables import verify_view
    from archdsl.run.verify import verify as compare

    keep_needs_bits(keep, quantize)
    report = compare(
        load_model(spec, set, allow_noncausal),
        weights=weights,
        seed=seed,
        batch=batch,
        time=time,
        device=device,
        dtype=dtype,
        target=target,
        quantize=quantize,
        keep=keep or (),
        tolerance=tolerance,
        decode=not no_decode,
    )
    print_or_json(report, verify_view, json)
    return FINE if report.agrees else WRONG_SPEC


@command("generate")
def generate(
    spec: SpecArgument,
    prompt: Annotated[
        list[str],
        typer.Option("--prompt", metavar="TEXT|IDS", help="What to go on from: text, or numbers (repeatable: rows)."),
    ],
    weights: WeightsOption = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="FILE.json", help="Reads and writes text; else tokens are numbers."),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=TEXT|IDS", help="A further input of tokens: an encoder's (repeatable)."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="At most so many.")] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0 takes the likeliest token, 1 draws by probability.")
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option("--top-k", min=1, help="Draw from the likeliest so many.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", min=0.0, max=1.0, help="Draw from those of so much probability together.")
    ] = None,
    stop: Annotated[
        list[int] | None, typer.Option("--stop", metavar="ID", min=0, help="A token that ends a row (repeatable).")
    ] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the step with torch.compile.")] = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Go on from prompts with the emitted module, token by token; without weights, with drawn ones."""
    from archdsl.report.tables import generate_view
    from archdsl.run.generate import Sampling
    from archdsl.run.generate import generate as go_on

    inputs = {}
    for item in given or ():
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"write it as name=text, not {item!r}", param_hint="'--input'")
        inputs[name.strip()] = text

    def show(row: int, text: str) -> None:
        print(text, end="", flush=True)

    report = go_on(
        load_model(spec, set, allow_noncausal),
        prompt,
        given=inputs,
        weights=weights,
        tokenizer=tokenizer,
        max_new_tokens=max_new_tokens,
        sampling=Sampling(temperature, top_k, top_p, seed),
        stop=stop or (),
        device=device,
        dtype=dtype,
        compiled=compiled,
        told=show if len(prompt) == 1 and not json else None,
    )
    print_or_json(report, generate_view, json)
