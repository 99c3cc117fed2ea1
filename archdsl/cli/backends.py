"""Commands that compile and run: compile, init, run, verify."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from archdsl.cli.frame import FINE, WRONG_SPEC, command, print_or_json, say, show_diagnostics
from archdsl.cli.options import (
    CHECKPOINT,
    DECODE,
    FOLDER,
    ONNX,
    OUTPUT,
    RUN,
    SAMPLING,
    STORED,
    TOKENS,
    TORCH,
    WEIGHTS,
    Checkpoint,
    DeviceOption,
    Dtype,
    DtypeOption,
    JsonOption,
    KeepOption,
    NoDecodeOption,
    NoncausalOption,
    QuantizeOption,
    SeedOption,
    SeqOption,
    SetOption,
    SpecArgument,
    TargetOption,
    WeightsOption,
    by_name,
    demand_other,
    keep_needs_bits,
    load_model,
    only_with,
    settings_of,
)
from archdsl.diagnostics.source import printable
from archdsl.ranges import bounds

if TYPE_CHECKING:
    from archdsl.diagnostics import Diagnostic
    from archdsl.ir.graph import Model


@command("compile", "Compile and run")
def compile_(
    context: typer.Context,
    spec: SpecArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="torch|onnx|hf", help="What to compile to.", show_default="torch; onnx for -o FILE.onnx"
        ),
    ] = None,
    output: Annotated[
        str | None,
        OUTPUT(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it (ONNX: a directory too; hf: a directory); else standard output.",
        ),
    ] = None,
    with_: Annotated[
        str | None,
        TORCH(
            "--with", metavar="SECTION,…", help="Sections of the file: generate, loss, parallel, cpu, float8, varlen."
        ),
    ] = None,
    checkpoint: Annotated[Checkpoint, TORCH("--checkpoint", help=CHECKPOINT)] = "none",
    dtype: Annotated[Dtype, ONNX("--dtype", help="The type of weights and activations.")] = "float32",
    target: Annotated[
        Literal["portable", "ort-cpu", "ort-cuda", "genai", "optimum", "transformers.js", "openvino"],
        ONNX(
            "--target",
            help="Standard operators, or those of onnxruntime on CPU or CUDA too; or the program that is to run it.",
        ),
    ] = "portable",
    quantize: QuantizeOption = None,
    keep: KeepOption = None,
    weights: Annotated[
        Path | None, STORED("--weights", metavar="FILE.safetensors", help="The weights, strictly.")
    ] = None,
    seed: Annotated[
        int | None, STORED("--seed", **bounds("seed"), help="Initialize the weights randomly, as `init` does.")
    ] = None,
    store: Annotated[
        Literal["safetensors", "onnx_data", "inline"],
        ONNX(
            "--store", help="Weights beside the graph as PyTorch reads them too, beside it as ONNX has it, or inside."
        ),
    ] = "safetensors",
    opset: Annotated[int, ONNX("--opset", **bounds("opset"), help="Below 24 for runtimes that are older.")] = 24,
    names: Annotated[
        Literal["hf", "spec"],
        ONNX("--names", help="Inputs and outputs as Hugging Face calls them, or as the spec does."),
    ] = "hf",
    decode: Annotated[bool, DECODE("--decode", help="A decode step: new tokens, and the KV cache.")] = False,
    logits: Annotated[
        Literal["all", "last"], DECODE("--logits", help="Of all new tokens, or of each sequence's last alone.")
    ] = "all",
    bos_token_id: Annotated[
        int | None, TOKENS("--bos-token-id", metavar="N", **bounds("bos_token_id"), help="Begins a sequence.")
    ] = None,
    eos_token_id: Annotated[
        list[int] | None, TOKENS("--eos-token-id", metavar="N", min=0, help="Ends a sequence (repeatable).")
    ] = None,
    pad_token_id: Annotated[
        int | None,
        TOKENS(
            "--pad-token-id",
            metavar="N",
            **bounds("pad_token_id"),
            help="Pads a batch; the end-of-sequence token, or 0.",
        ),
    ] = None,
    native: Annotated[bool, FOLDER("--native", help="As a type that transformers has, or not at all.")] = False,
    remote_code: Annotated[
        bool, FOLDER("--remote-code", help="As classes of its own, where transformers has the type too.")
    ] = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Compile a spec to one readable PyTorch file that imports only torch, to an ONNX graph, or to a folder that
    transformers loads."""
    of_steps = ("logits", "bos_token_id", "eos_token_id", "pad_token_id")
    to = to or ("onnx" if output is not None and output.endswith(".onnx") else "torch")
    if to == "hf":
        of_graphs = ("dtype", "target", "quantize", "keep", "store", "opset", "names", "decode", "logits")
        only_with(context, "--to onnx", *of_graphs)
        only_with(context, "--to torch", "with_", "checkpoint")
        tokens = {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id or (), "pad_token_id": pad_token_id}
        if native and remote_code:
            raise typer.BadParameter("choose one", param_hint="'--native' / '--remote-code'")
        kind = {"native": True if native else False if remote_code else None}
        _to_folder(load_model(spec, set, allow_noncausal), output, weights, seed, {**tokens, **kind})
        return
    only_with(context, "--to hf", "native", "remote_code")
    if to != "onnx":
        from archdsl.api import torch_source
        from archdsl.diagnostics import did_you_mean, error
        from archdsl.files import write_text
        from archdsl.ir.graph import ScanNode
        from archdsl.ir.walk import nodes_below, ops_below

        if to != "torch":
            help_ = did_you_mean(to, ["torch", "onnx", "hf"])
            help_ = help_ or "`--to torch` writes one PyTorch file, `--to onnx` a graph, `--to hf` a folder"
            raise error("E0501", f"there is no back end `{to}`", help=help_)

        only_with(
            context,
            "--to onnx",
            "dtype",
            "target",
            "quantize",
            "keep",
            "weights",
            "seed",
            "store",
            "opset",
            "names",
            "decode",
        )
        only_with(context, "--to onnx --decode", *of_steps)
        demand_other(output, spec)
        model = load_model(spec, set, allow_noncausal)
        text = torch_source(
            model,
            features=[name.strip() for name in with_.split(",")] if with_ is not None else (),
            checkpoint=checkpoint,
        )
        if output is None or output == "-":
            sys.stdout.write(text)
        else:
            write_text(Path(output), text)
        if any(node.active is not None for node in ops_below(model.block.graph)):
            say("experts: on CUDA the CPU waits for the GPU in each layer, but in bfloat16 on sm90 and sm100")
        if any(isinstance(node, ScanNode) and not node.length.static for node in nodes_below(model.block.graph)):
            ops = "`linear_attention`, `delta_rule`, `linear_recurrence` and `selective_scan`"
            say(f"scan: forward loops over time in Python, position by position; {ops} do not")
        return
    only_with(context, "--to torch", "with_", "checkpoint")
    from archdsl.api import to_onnx
    from archdsl.diagnostics import error
    from archdsl.report.tables import drawing, files_view

    if output is None or output == "-":
        raise error("E0504", "an ONNX file is binary", help="say where to write it: `-o FILE.onnx` or `-o DIRECTORY/`")
    keep_needs_bits(keep, quantize)
    if weights is not None and seed is not None:
        raise typer.BadParameter("choose one", param_hint="'--weights' / '--seed'")
    if not decode:
        only_with(context, "--decode", *of_steps)
    demand_other(output, spec, weights)
    model = load_model(spec, set, allow_noncausal)
    with drawing(model, "writing") as progress:
        files = to_onnx(
            model,
            output,
            dtype=dtype,
            target=target,
            quantize=quantize,
            keep=keep or (),
            weights=weights,
            seed=seed,
            store=store,
            opset=opset,
            names=names,
            decode=decode,
            logits=logits,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id or (),
            pad_token_id=pad_token_id,
            progress=progress,
        )
    told = [spec, *(f"--set={s}" for s in set or ()), *(["--allow-noncausal"] if allow_noncausal else [])]
    for line in files_view(files, told, dtype, quantize, target):
        say(line)


def _to_folder(model: Model, output: str | None, weights: Path | None, seed: int | None, more: dict[str, Any]) -> None:
    """Write a folder for transformers."""
    from archdsl.api import to_huggingface
    from archdsl.diagnostics import error
    from archdsl.report.tables import drawing

    if output is None or output == "-":
        raise error("E0534", "a folder cannot go to standard output", help="say where to write it: `-o DIRECTORY`")
    if weights is not None and seed is not None:
        raise typer.BadParameter("choose one", param_hint="'--weights' / '--seed'")
    with drawing(model, "writing") as progress:
        to_huggingface(model, output, weights=weights, seed=seed, **more, progress=progress, remark=say)


@command("init", "Compile and run")
def init(
    spec: SpecArgument,
    output: Annotated[Path, OUTPUT("--output", "-o", metavar="FILE.safetensors", help="Where to write the weights.")],
    seed: Annotated[
        int, WEIGHTS("--seed", **bounds("seed"), help="The same seed gives the same weights, on every machine.")
    ] = 0,
    dtype: DtypeOption = "float32",
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Initialize every weight randomly, as the spec says, and write a safetensors file: without torch, one tensor at a
    time."""
    from archdsl.api import init_weights
    from archdsl.report.tables import drawing

    demand_other(output, spec)
    model = load_model(spec, set, allow_noncausal)
    with drawing(model) as progress:
        init_weights(model, output, seed=seed, dtype=dtype, progress=progress)


@command("run", "Compile and run")
def run(
    context: typer.Context,
    spec: SpecArgument,
    backend: Annotated[
        Literal["torch", "onnx"], RUN("--backend", help="PyTorch, or the ONNX graph in onnxruntime.")
    ] = "torch",
    weights: WeightsOption = None,
    seed: SeedOption = 0,
    batch: Annotated[int, RUN("--batch", **bounds("batch"), help="Batch size.")] = 1,
    seq: SeqOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    target: TargetOption = "portable",
    quantize: QuantizeOption = None,
    keep: KeepOption = None,
    no_decode: NoDecodeOption = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> int:
    """Compile a spec and run it: forward and backward in PyTorch; in onnxruntime forward, prefill and decode steps."""
    if backend == "torch":
        only_with(context, "--backend onnx", "target", "quantize", "keep", "no_decode")
        from archdsl.report.tables import run_view
        from archdsl.run.smoke import run as trial

        model = load_model(spec, set, allow_noncausal)
        report = trial(model, weights=weights, seed=seed, batch=batch, time=seq, device=device, dtype=dtype)
        print_or_json(report, run_view, json)
        return _status(report.failure())
    from archdsl.backends.onnx.targets import GraphOptions
    from archdsl.report.tables import onnx_run_view
    from archdsl.run.onnx import run as infer

    keep_needs_bits(keep, quantize)
    found = infer(
        load_model(spec, set, allow_noncausal),
        GraphOptions(dtype, target, quantize, keep or ()),
        weights=weights,
        seed=seed,
        batch=batch,
        time=seq,
        device=device,
        decode=not no_decode,
    )
    print_or_json(found, onnx_run_view, json)
    return _status(found.failure())


def _status(finding: Diagnostic | None) -> int:
    """Print a finding about what was run; the exit status."""
    if finding is None:
        return FINE
    show_diagnostics([finding])
    return WRONG_SPEC


@command("verify", "Compile and run")
def verify(
    spec: SpecArgument,
    weights: WeightsOption = None,
    seed: SeedOption = 0,
    batch: Annotated[int, RUN("--batch", **bounds("batch"), help="Batch size.")] = 2,
    seq: SeqOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    target: TargetOption = "portable",
    quantize: QuantizeOption = None,
    keep: KeepOption = None,
    tolerance: Annotated[
        float | None,
        RUN(
            "--tolerance",
            **bounds("tolerance"),
            help="The largest relative difference: 1e-4 by default, more in half precision.",
        ),
    ] = None,
    no_decode: NoDecodeOption = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> int:
    """Run a model in PyTorch and in onnxruntime, on the same weights, and compare the outputs, of prefill and decode
    steps too."""
    from archdsl.api import verify as compare
    from archdsl.report.tables import verify_view

    keep_needs_bits(keep, quantize)
    report = compare(
        spec,
        weights=weights,
        seed=seed,
        batch=batch,
        seq=seq,
        device=device,
        dtype=dtype,
        target=target,
        quantize=quantize,
        keep=keep or (),
        tolerance=tolerance,
        decode=not no_decode,
        set=settings_of(set),
        allow_noncausal=allow_noncausal,
    )
    print_or_json(report, verify_view, json)
    return FINE if report.agrees else WRONG_SPEC


@command("generate", "Compile and run")
def generate(
    spec: SpecArgument,
    prompt: Annotated[
        list[str],
        typer.Option("--prompt", metavar="TEXT|IDS", help="A prompt: text, or token ids (repeatable: a batch)."),
    ],
    weights: WeightsOption = None,
    tokenizer: Annotated[
        Path | None, RUN("--tokenizer", metavar="FILE.json", help="Reads and writes text; else token ids.")
    ] = None,
    given: Annotated[
        list[str] | None,
        RUN("--input", metavar="NAME=TEXT|IDS", help="A further input of tokens: an encoder's (repeatable)."),
    ] = None,
    max_new_tokens: Annotated[
        int, SAMPLING("--max-new-tokens", **bounds("max_new_tokens"), help="At most so many tokens.")
    ] = 64,
    temperature: Annotated[
        float, SAMPLING("--temperature", **bounds("temperature"), help="0 is greedy, 1 samples by probability.")
    ] = 0.0,
    top_k: Annotated[int | None, SAMPLING("--top-k", **bounds("top_k"), help="Top-k sampling.")] = None,
    top_p: Annotated[float | None, SAMPLING("--top-p", **bounds("top_p"), help="Top-p (nucleus) sampling.")] = None,
    stop: Annotated[
        list[int] | None, SAMPLING("--stop", metavar="ID", min=0, help="A token that ends a sequence (repeatable).")
    ] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    compiled: Annotated[bool, RUN("--compile", help="Compile the decode step with torch.compile.")] = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Generate from prompts with the emitted module, token by token; without --weights, with random ones."""
    from archdsl.api import generate as go_on
    from archdsl.report.tables import generate_view

    def show(row: int, text: str) -> None:
        print(printable(text, keep="\n\t"), end="", flush=True)

    report = go_on(
        spec,
        prompt,
        inputs=by_name(given, "--input", "name=text"),
        weights=weights,
        tokenizer=tokenizer,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stop or (),
        seed=seed,
        device=device,
        dtype=dtype,
        compiled=compiled,
        set=settings_of(set),
        allow_noncausal=allow_noncausal,
        progress=show if len(prompt) == 1 and not json else None,
    )
    print_or_json(report, generate_view, json)
