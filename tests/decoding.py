"""What decodes, and how: `python tests/decoding.py` runs every spec step by step at a small size, in every back end and
mode, and writes `decoding.txt`, one line for each spec. Given names of that list, it runs these alone.

A mode is listed where it was run and gave what the model gives of the whole sequence at once:

    torch   chunks     steps of `--with generate`, the sequence in chunks of several positions and of one
            static     the same with tensors that keep their sizes, as a compiled step has them
            left       what `stream` chooses tokens by, rows of two lengths, padded on the left
            right      the same padded on the right
            compiled   both, in the form that is compiled
            parallel   steps of two devices that share heads and channels
    onnx    chunks     steps in onnxruntime, in chunks
            left       the same, rows of two lengths, padded on the left
            right      the same padded on the right
            pair       an encoder and a decoder as optimum and transformers.js run them
    folder  chunks     the model of a folder for transformers, with its cache
            left       the same, rows of two lengths, padded on the left, and their sources too
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from decode_tools import (
    all_outputs,
    differences,
    first_output,
    furthest,
    inputs_for,
    module_of,
    torch_differences,
    widen,
)
from near import distance
from onnx_tools import session
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch_emit import parallel_tools
from zoo import sizes, tiny

import archdsl
from archdsl.backends.huggingface.module import LibraryWriter
from archdsl.backends.onnx.seq2seq import DECODER, ENCODER, unlike, write_pair
from archdsl.backends.onnx.step import RowsUnsupportedError, StepWriter, write_steps
from archdsl.backends.onnx.store import inline, serialized
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.torch import Extras, emit
from archdsl.backends.torch.features import Name
from archdsl.backends.torch.features.parallel import Parallel
from archdsl.backends.torch.module import FileWriter
from archdsl.diagnostics import ArchError
from archdsl.frontend import load
from archdsl.frontend.modules import models
from archdsl.ir.graph import Model
from archdsl.passes.flat_step import FlatStep, unroll_step
from archdsl.passes.sequence import DecodedSequence
from archdsl.passes.step import stepped
from archdsl.run.load import load_source
from archdsl.run.sequences import Sequences
from archdsl.run.torch_decoder import TorchDecoder

LIST = Path(__file__).with_suffix(".txt")
HEAD = """\
# What decodes, and how: written by `python tests/decoding.py`, which says what each mode is. `!` stands before what is
# emitted and fails. Nothing may leave this list.
"""
WHY = "# Why not: what is refused, the first words of the refusal, and the specs."
ROOT = Path(__file__).resolve().parents[1]
MODES = {
    "torch": ("chunks", "static", "left", "right", "compiled", "parallel"),
    "onnx": ("chunks", "left", "right", "pair"),
    "folder": ("chunks", "left"),
}
PARALLEL = "torch parallel"
TOLERANCE = 1e-4
CHUNKS = (4, 1, 1, 2)
SECTIONS: frozenset[Name] = frozenset({"generate", "parallel"})

_SMALL = {
    name: size
    for size, names in {
        1: "dense_layers shared",
        2: "layers decoder_layers vision_layers kv_heads key_heads mamba_groups top_k registers",
        4: "heads decoder_heads value_heads vision_heads rope_dim kernel growth",
        5: "window",
        6: "experts chunk",
        8: "head_dim nope_dim v_dim linear_dim mamba_dim mamba_heads state features frames buckets patch",
        12: "kv_rank",
        16: "embedding_width expert_hidden channels image joint page",
        32: "width vision_width",
        40: "decoder_hidden dense_hidden",
        48: "hidden shared_hidden vision_hidden",
        64: "context longest capacity",
        66: "positions",
        97: "vocab",
    }.items()
    for name in names.split()
}
_PERIODS = {
    4: ("cohere2", "exaone4", "llama4_text", "nemotron_h", "olmo3", "qwen3_next", "smollm3"),
    7: ("gemma3_text",),
    8: ("granitemoehybrid", "jamba"),
}
"""Layers of models of `specs/hf` whose layers differ in groups."""
_OWN: dict[str, dict[str, int]] = {
    **{f"hf/{name}": {"layers": layers} for layers, names in _PERIODS.items() for name in names},
    **{name: {"width": 256} for name in ("hf/codegen", "hf/gptj")},
    "hf/deepseek_v3": {"experts": 8, "groups": 4, "top_groups": 2},
    "hf/mamba2": {"heads": 8, "groups": 2},
    "hf/moonshine": {"width": 128},
    "t5": {"head_dim": 8},
    **{name: {"decay_rank": 4, "mix_rank": 4, "gate_rank": 6} for name in ("rwkv6", "rwkv7")},
}
"""Sizes of models of `specs/hf`: those of all, and those of one file; and such as two devices can share."""
_AS_THEY_ARE = ("convnext", "swin")
"""Files of models of images, whose sizes hang together."""


# --- specs ------------------------------------------------------------------------------------------------------------


@cache
def cases() -> dict[str, Callable[[], Model]]:
    """What loads each spec at a small size: one of each file of the zoo that has others of its size, all of
    `specs/hf`, and those of the tests of parity."""
    found: dict[str, Callable[[], Model]] = {name: partial(_of_the_zoo, name) for name in sorted(sizes.distinct())}
    for folder, path in _files():
        for name in models(load.module_of(load.find_spec(path))):
            found[f"{folder}/{path.stem}" + f":{name}" * (name != path.stem)] = partial(_loaded, path, name)
    return found


def _files() -> Iterator[tuple[str, Path]]:
    yield from (("hf", path) for path in sorted((ROOT / "specs" / "hf").glob("*.arch")))
    for folder in ("specs", "unusual"):
        yield from (("parity", path) for path in sorted((ROOT / "tests" / "parity" / folder).glob("*.arch")))


def _of_the_zoo(name: str) -> Model:
    own = _OWN.get(name.partition(":")[0], {})
    return tiny.graph(name, **{n: size for n, size in own.items() if n in sizes.tables()[name]})


def _loaded(path: Path, name: str) -> Model:
    model = archdsl.load(path, model=name)
    if path.parent.name != "hf" or path.stem in _AS_THEY_ARE:
        return model
    own = _OWN.get(f"hf/{path.stem}", {})
    small = {f.name: min(_SMALL[f.name], int(f.value)) for f in model.config if f.name in _SMALL}
    return archdsl.load(path, model=name, set=small | {f.name: own[f.name] for f in model.config if f.name in own})


# --- what is accepted -------------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """The modes of a spec, and why it has no others, by back end or by mode."""

    modes: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)


def accepted(model: Model) -> Verdict:
    """The modes in which the back ends take a model, by what they emit; nothing is run."""
    found = Verdict()
    for part in (_of_torch, _of_onnx, _of_folders):
        part(model, found)
    return found


def _said(model: Model, problem: ArchError) -> str:
    """What a refusal says, without the name of the model."""
    first = problem.diagnostics[0].message
    return re.sub(rf"^(`{model.name}` |cannot be (decoded step by step|a folder for transformers): )*", "", first)


def _of_torch(model: Model, found: Verdict) -> None:
    try:
        file = _settled(model, SECTIONS)
    except ArchError as problem:
        if problem.diagnostics[0].code == "E0530":
            found.refused[PARALLEL] = _said(model, problem)
            try:
                file = _settled(model, SECTIONS - {"parallel"})
            except ArchError as other:
                problem = other
        if problem.diagnostics[0].code != "E0530":
            found.refused["torch"] = _said(model, problem)
            return
    found.modes |= {"torch chunks", "torch static"}
    if unroll_step(stepped(model)).without_rows is not None:
        found.refused["torch left, right, compiled"] = "has a state without an axis of rows"
    elif any("def stream" in text for section in file.sections for text in section.methods()):
        found.modes |= {"torch left", "torch right", "torch compiled"}
    else:
        found.refused["torch left, right, compiled"] = "does not go from tokens alone to logits of tokens"
    for section in file.sections:
        if isinstance(section, Parallel):
            if section.styles or section.plan.divided:
                found.modes.add(PARALLEL)
            else:
                found.refused[PARALLEL] = "has no pairs of linear layers that devices could share"


def _settled(model: Model, sections: frozenset[Name]) -> FileWriter:
    """What a file is made of, before it has a text."""
    file = FileWriter(model, Extras(sections))
    file.classes.settle(file.sections)
    return file


def _of_onnx(model: Model, found: Verdict) -> None:
    try:
        steps = unroll_step(stepped(model))
        step = write_steps(model, GraphOptions(), steps)["model"].model.graph
    except ArchError as problem:
        found.refused["onnx"] = _said(model, problem)
        return
    found.modes.add("onnx chunks")
    own = [n for n, v in model.inputs if v.dtype == "padding" and n in Sequences(steps.of).moving]
    if own:
        found.refused["onnx left, right"] = f"takes `{own[0]}` of its own"
    elif "attention_mask" in {x.name for x in step.inputs}:
        found.modes |= {"onnx left", "onnx right"}
    else:
        found.refused["onnx left, right"] = _whole_rows(steps)
    if steps.before.outputs:
        if why := unlike(steps):
            found.refused["onnx pair"] = why
        else:
            found.modes.add("onnx pair")


def _whole_rows(steps: FlatStep) -> str:
    """Why the rows of a step have the same length."""
    try:
        StepWriter(steps, GraphOptions(), by_row=True).whole()
    except RowsUnsupportedError as problem:
        return f"`{problem}` takes no positions that differ by row"
    return "no op looks at positions"


def _of_folders(model: Model, found: Verdict) -> None:
    try:
        LibraryWriter(model, model.name).classes.settle()
    except ArchError as problem:
        found.refused["folder"] = _said(model, problem)
        return
    found.modes |= {"folder chunks", "folder left"}


# --- what is run ------------------------------------------------------------------------------------------------------


def run(model: Model, modes: Iterable[str]) -> dict[str, float]:
    """How far each of these modes is from the model of whole sequences, relative to its largest number; of
    `torch parallel` nothing, which `run_parallel` says. Infinity where it fails, which is printed."""
    found: dict[str, float] = {}
    for back_end, measure in (("torch", _run_torch), ("onnx", _run_onnx), ("folder", _run_folder)):
        asked = {m for m in modes if m.startswith(back_end)} - {PARALLEL}
        for name, part in (("", measure), ("pair", _run_pair)):
            wanted = {m for m in asked if m.endswith("pair") == bool(name)}
            if not wanted:
                continue
            try:
                apart = part(model)
            except Exception as problem:  # whatever it is, the mode does not work
                print(f"{model.name}: {back_end} {name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
                apart = {}
            found |= {m: apart.get(m.partition(" ")[2], float("inf")) for m in wanted}
    return found


def _run_torch(model: Model) -> dict[str, float]:
    apart = torch_differences(model, CHUNKS, inputs=drawn(model))
    compiled = [d for how, d in apart.items() if how.endswith(", static")]
    return {"chunks" if how == "steps" else how: d for how, d in apart.items()} | (
        {"compiled": max(compiled)} if compiled else {}
    )


def _run_onnx(model: Model) -> dict[str, float]:
    return {
        "chunks" if how == "steps" else how: d for how, d in differences(model, CHUNKS, inputs=drawn(model)).items()
    }


def drawn(model: Model) -> dict[str, Tensor]:
    """Inputs of a batch of two, eight positions of the sequence that is decoded."""
    rows = {str(v.shape[0].value): 2 for _, v in model.inputs}
    return inputs_for(
        model, {"time": 8, "frames": 8, "samples": 1000, DecodedSequence.of(model).time.name: sum(CHUNKS)} | rows
    )


def _run_pair(model: Model) -> dict[str, float]:
    """Steps that compute keys and values of the encoder the first time, and hand them on."""
    module, inputs = module_of(model), drawn(model)
    every, steps = all_outputs(module, inputs), unroll_step(stepped(model))
    several, graphs = len(steps.of.results), {}
    arrays = {k: t.detach().numpy() for k, t in module.state_dict().items()}
    for name, written in write_pair(steps, GraphOptions()).items():
        inline(written, arrays)
        graphs[name] = session(serialized(written))
    names = steps.names
    read = {v.dtype: inputs[names[v]].numpy() for v in steps.before.inputs}
    mask = read.get("padding", np.ones_like(read["token"])).astype(np.int64)
    own = {i.name for i in graphs[ENCODER].get_inputs()}
    fed = {n: x for n, x in {"input_ids": read["token"], "attention_mask": mask}.items() if n in own}
    (hidden,) = graphs[ENCODER].run(["last_hidden_state"], fed)
    ids = inputs[names[steps.taken[0]]].numpy()
    decoder = graphs[DECODER]
    pasts = {i.name: i.shape for i in decoder.get_inputs() if i.name.startswith("past")}
    state = {n: np.zeros((len(ids), s[1], 0, s[3]), np.float32) for n, s in pasts.items()}
    found, at, taken = [], 0, {i.name for i in decoder.get_inputs()}
    for count in CHUNKS:
        given = {"input_ids": ids[:, at : at + count], "encoder_attention_mask": mask, "encoder_hidden_states": hidden}
        outputs = decoder.run(None, {n: x for n, x in given.items() if n in taken} | state)
        kept = [o.name.replace("present", "past_key_values") for o in decoder.get_outputs()[several:]]
        state, hidden = dict(zip(kept, outputs[several:], strict=True)), np.full_like(hidden, np.nan)
        found.append(outputs[:several])
        at += count
    results = Sequences(steps.of).joined(found, np.concatenate)
    return {"pair": furthest(results, [every[i] for i in steps.of.results])}


def _run_folder(model: Model) -> dict[str, float]:
    """A source is encoded once, before the first chunk; `left` pads it too, where the model takes a mask of it."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    module, inputs, name = module_of(model), drawn(model), DecodedSequence.of(model).axis.name
    tokens, whole = inputs[name], torch.from_numpy(first_output(module, inputs))
    of_source = {v.dtype: n for n, v in model.inputs if n != name}
    loader, prefix = (AutoModelForSeq2SeqLM, "decoder_") if of_source else (AutoModelForCausalLM, "")
    with tempfile.TemporaryDirectory() as folder:
        weights, path = Path(folder, "own.safetensors"), Path(folder, "hf")
        save_file({k: v.contiguous() for k, v in module.state_dict().items()}, weights)
        archdsl.to_huggingface(model, path, weights=weights, native=False)
        theirs = loader.from_pretrained(path, trust_remote_code=True, attn_implementation="eager").eval()

    def stepped(inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        past, found, at = None, [], 0
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        read: dict[str, Any] = {}
        if "padding" in of_source:
            read["attention_mask"] = inputs[of_source["padding"]].long()
        if of_source:
            read["encoder_outputs"] = theirs.get_encoder()(inputs[of_source["token"]], **read)
        for count in CHUNKS:
            new, at = slice(at, at + count), at + count
            given = {
                "input_ids": inputs[name][:, new],
                "attention_mask": mask[:, :at],
                "position_ids": positions[:, new],
            }
            out = theirs(**{prefix + n: x for n, x in given.items()}, **read, past_key_values=past, use_cache=True)
            past = out.past_key_values
            found.append(out.logits)
        return torch.cat(found, 1)

    mask = torch.ones_like(tokens)
    with torch.no_grad():
        apart = {"chunks": distance(stepped(inputs, mask), whole, 1.0)}
        moved = torch.cat((tokens[:1], torch.cat((torch.zeros_like(tokens[1:, :2]), tokens[1:, :-2]), 1)))
        mask[1, :2] = 0
        padded = inputs | {name: moved}
        if "padding" in of_source:  # for both runs; their tokens differ where it hides them
            source, real = (inputs[of_source[kind]] for kind in ("token", "padding"))
            real[1, :2] = False
            padded[of_source["token"]] = source * real
        alone = {n: x[1:, :-2] if n == name else x[1:] for n, x in inputs.items()}
        short = torch.from_numpy(first_output(module, alone))
        found = stepped(padded, mask)
        apart["left"] = max(distance(found[0], whole[0], 1.0), distance(found[1:, 2:], short, 1.0))
    return apart


def run_parallel(names: Sequence[str]) -> dict[str, float]:
    """How far the steps of two processes that share heads and channels are from one that takes whole sequences."""
    with tempfile.TemporaryDirectory() as folder:
        parallel_tools.together(2, Path(folder), stepped_together, list(names))
        found: dict[str, float] = json.loads(Path(folder, "results.json").read_text())
    return found


def stepped_together(rank: int, folder: Path, names: Sequence[str]) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    found = {}
    for name in names:
        try:
            found[name] = _stepped(cases()[name](), mesh)
        except Exception as problem:  # the same in both
            found[name] = float("inf")
            if rank == 0:
                print(f"{name}: torch parallel: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _stepped(model: Model, mesh: Any) -> float:
    module: Any = load_source(emit(model, Extras(SECTIONS)))().eval()
    torch.manual_seed(0)
    widen(module)
    inputs = drawn(model)
    decoder, every = TorchDecoder(model, module), all_outputs(module, inputs)
    sys.modules[type(module).__module__].parallelize(module, mesh)
    if decoder.step is not module:  # bound before it was sharded
        decoder.step = getattr(module, decoder.step.__name__)
    return furthest(decoder.run(inputs, CHUNKS), [every[i] for i in decoder.results])


# --- the list ---------------------------------------------------------------------------------------------------------


def listed() -> dict[str, set[str]]:
    """The modes of each spec, as they are written: `torch chunks`, and `!torch chunks` where that fails."""
    found: dict[str, set[str]] = {}
    for line in LIST.read_text(encoding="utf-8").partition(WHY)[0].splitlines():
        if line and not line.startswith("#"):
            name, *words = line.split()
            back_end, found[name] = "", set()
            for word in words:
                if word in MODES:
                    back_end = word
                else:
                    found[name].add("!" * word.startswith("!") + f"{back_end} {word.removeprefix('!')}")
    return found


def text(modes: Mapping[str, set[str]], verdicts: Mapping[str, Verdict]) -> str:
    """The file: a line for each spec, and why some have no more."""
    lines = [HEAD, *_table(modes), "", WHY, ""]
    for reason, names in sorted(_reasons(verdicts).items()):
        lines += [reason, *textwrap.wrap(" ".join(names), 116, initial_indent="    ", subsequent_indent="    ")]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _table(modes: Mapping[str, set[str]]) -> Iterator[str]:
    width = max(map(len, modes))
    for name, own in modes.items():
        parts = []
        for back_end, all_modes in MODES.items():
            words = [("!" if f"!{back_end} {m}" in own else "") + m for m in all_modes if _has(own, f"{back_end} {m}")]
            room = len(" ".join((back_end, *all_modes)))
            parts.append(" ".join((back_end, *words) if words else ()).ljust(room))
        yield f"{name:{width}}  {'  '.join(parts)}"


def _has(modes: set[str], mode: str) -> bool:
    return bool({mode, f"!{mode}"} & modes)


def _reasons(verdicts: Mapping[str, Verdict]) -> dict[str, list[str]]:
    """The specs that are refused, by what is refused and the first words of why."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, verdict in verdicts.items():
        refused = verdict.refused if verdict.modes else {"all": verdict.refused["torch"]}
        for what, why in refused.items():
            found[f"{what}: {re.split(': |, (?=and|so|in a way|which)', why)[0]}"].append(name)
    return found


def measured(asked: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Run these modes of these specs; each as it is listed, marked where it fails."""
    modes = {name: {mode.removeprefix("!") for mode in own} for name, own in asked.items()}
    apart = {name: run(cases()[name](), own) for name, own in modes.items() if own - {PARALLEL}}
    shared = [name for name, own in modes.items() if PARALLEL in own]
    for name, difference in run_parallel(shared).items() if shared else ():
        apart.setdefault(name, {})[PARALLEL] = difference
    for name, found in apart.items():
        for mode, difference in found.items():
            if not difference < TOLERANCE:
                print(f"{name}: {mode}: {difference:.1e} from the whole", flush=True)
    return {n: {m if d < TOLERANCE else f"!{m}" for m, d in apart.get(n, {}).items()} for n in modes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", help="those to be run, where the others are as they were")
    asked = parser.parse_args().specs
    verdicts = {name: accepted(make()) for name, make in cases().items()}
    modes = (listed() if asked else {}) | measured({name: verdicts[name].modes for name in asked or cases()})
    LIST.write_text(text({name: modes[name] for name in cases()}, verdicts), encoding="utf-8")
    print(f"{sum(map(bool, modes.values()))} of {len(modes)} specs decode, in {sum(map(len, modes.values()))} modes")


if __name__ == "__main__":
    main()
