"""archdsl beside transformers' own classes: training from the same weights, and the models that can be imported.

    python benchmarks/trust.py [--only training|types|published] [--steps N] [-o trust.json]

`training`: a GPT-2 and a Llama are made by transformers, imported as specs, and each is trained beside the class it
comes from, on the same batches of the project's own documents, with AdamW in float32, without dropout. Every loss is
compared; the largest difference must be at most 1e-4. The learning rate is one at which training does not amplify
rounding: where it does, two runs in float32 of any two programs drift apart.

`types`: of each `model_type` that can be imported, tiny models of transformers are drawn at random, imported, and
compared: the number of weights with that of the class, without those that no result depends on (the mapping drops them
by name), and the logits, or whatever else it returns, within the tolerance of the tests, a share of the largest.

`published`: configs as they were published are imported, and the number of weights is compared with that of the class
that the config names, made without memory on the meta device.

`-o` writes what was measured, with date and versions, and keeps the other parts of that file; `trust.json` beside
this script is what the documentation quotes.
The exit status is 1 where a loss or a type differs. Configs that differ are named, and do not change the status."""

# ruff: noqa: E402

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Else `import onnx` would find the script of that name here.
sys.path[:] = [
    str(ROOT / "tests"),
    *(p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent),
]

import argparse
import json
import math
import os
import platform
import re
from collections.abc import Iterable
from datetime import date
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
import transformers
from interop.cases import CASES
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file

import archdsl
from archdsl.interop.convert import import_folder, named_mapping
from archdsl.interop.mapping import pattern

BATCH, SEQ, RATE = 4, 128, 1e-4
CLOSE = 1e-4
"""The largest difference of two losses of the same step that passes."""
SHAPES: dict[str, transformers.PretrainedConfig] = {
    "gpt2": transformers.GPT2Config(
        vocab_size=256,
        n_positions=SEQ,
        n_embd=256,
        n_layer=4,
        n_head=4,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=None,
        eos_token_id=None,
    ),
    "llama": transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=SEQ,
    ),
}
"""What is trained: bytes are tokens, and 200 steps take a CPU about a minute."""
CLASSES: dict[str, Any] = {"gpt2": transformers.GPT2LMHeadModel, "llama": transformers.LlamaForCausalLM}
PUBLISHED = ROOT / "tests" / "interop" / "published.json"
PARTS = ("training", "types", "published")

console = Console(highlight=False, soft_wrap=True)


# --- training ---------------------------------------------------------------------------------------------------------


def imported(theirs: Any, folder: Path) -> torch.nn.Module:
    """Return what archdsl emits for a model of transformers, with its weights and without dropout."""
    theirs.save_pretrained(folder / "theirs")
    import_folder(folder / "theirs", folder / "m.arch")
    text = re.sub(r"(dropout: +)[\d.]+", r"\g<1>0", (folder / "m.arch").read_text(encoding="utf-8"))
    ours = archdsl.to_torch(text=text)
    ours.load_state_dict(load_file(folder / "m.safetensors"))
    return ours


def losses(ours: torch.nn.Module, theirs: Any, about: str, steps: int) -> list[tuple[float, float]]:
    """Train both on the same batches, [BATCH, SEQ] bytes each, and return the losses of each step, ours first.

    Each loss is computed by its own side: theirs by the class, ours from the logits."""
    texts = sorted((ROOT / "docs").glob("*.md"))
    data = torch.frombuffer(bytearray(b"\n".join(t.read_bytes() for t in texts)), dtype=torch.uint8).long()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=RATE) for m in (ours.train(), theirs.train())]
    draw = torch.Generator().manual_seed(0)
    found = []
    for step in range(steps):
        starts = torch.randint(len(data) - SEQ, (BATCH,), generator=draw)
        tokens = torch.stack([data[i : i + SEQ] for i in starts])
        both = (
            F.cross_entropy(ours(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()),
            theirs(input_ids=tokens, labels=tokens).loss,
        )
        for optimizer, loss in zip(optimizers, both, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append((both[0].item(), both[1].item()))
        if step % 20 == 19:
            console.print(
                f"{about}, step {step + 1} of {steps}: loss {found[-1][0]:.4f}, transformers' {found[-1][1]:.4f}"
            )
    return found


def farther(apart: float) -> float:
    """Return a difference, infinity for NaN, which `max` may lose."""
    return math.inf if math.isnan(apart) else apart


def trained(name: str, steps: int) -> dict[str, Any]:
    """Return how far apart the losses are of a shape that is trained by both."""
    torch.manual_seed(0)
    start = perf_counter()
    theirs = CLASSES[name](SHAPES[name])
    with TemporaryDirectory(prefix="archdsl.") as folder:
        ours = imported(theirs, Path(folder))
    found = losses(ours, theirs, f"training {name}", steps)
    apart = [farther(abs(o - t)) for o, t in found]
    row = {
        "shape": name,
        "class": type(theirs).__name__,
        "parameters": sum(p.numel() for p in ours.parameters()),
        "steps": steps,
        "batch": BATCH,
        "seq": SEQ,
        "optimizer": f"AdamW, learning rate {RATE}",
        "first_loss": {"archdsl": found[0][0], "transformers": found[0][1]},
        "last_loss": {"archdsl": found[-1][0], "transformers": found[-1][1]},
        "largest_difference": max(apart),
        "at_step": 1 + apart.index(max(apart)),
    }
    console.print(
        f"{row['class']:18} {row['parameters']:>11,} parameters, {steps} steps in {perf_counter() - start:.0f} s: "
        f"loss {found[0][0]:.4f} to {found[-1][0]:.4f}, transformers' {found[0][1]:.4f} to {found[-1][1]:.4f}; "
        f"largest difference {max(apart):.1e}, at step {row['at_step']}"
    )
    return row


# --- what can be imported ---------------------------------------------------------------------------------------------


def counted(sizes: dict[str, int], kind: str) -> int:
    """Return the sum of the sizes of tensors, without those that the mapping of a type drops by name: no result depends
    on them."""
    mapping = named_mapping(kind)
    drops = [pattern(d) for d in mapping.drops]
    dropped = {n for n in sizes if any(d.fullmatch(m) for d in drops for m in (n, mapping.base + n))}
    return sum(size for n, size in sizes.items() if n not in dropped)


def of_a_class(name: str) -> tuple[bool, float]:
    """Return whether a tiny model of transformers has as many weights as what is imported, and how far apart the two
    compute: the largest difference, as a share of the largest result."""
    theirs, kind = CASES[name].made(), CASES[name].kind
    learned = {n: p.numel() for n, p in theirs.named_parameters() if p.requires_grad}
    with TemporaryDirectory(prefix="archdsl.") as folder:
        theirs.save_pretrained(Path(folder) / "theirs")
        stored = {n: t.numel() for n, t in load_file(Path(folder) / "theirs" / "model.safetensors").items()}
        report = import_folder(Path(folder) / "theirs", Path(folder) / "m.arch", check=True)
    assert report.difference is not None
    # What their class holds as a buffer, or never trains, stands in the checkpoint alone.
    counts = [count for sizes in (learned, stored) for count in (sum(sizes.values()), counted(sizes, kind))]
    return report.parameters in counts, report.difference


def types(names: Iterable[str]) -> dict[str, Any]:
    """Return how many model types of transformers have the same number of weights and the same logits here."""
    kinds: dict[str, list[tuple[bool, bool]]] = {}
    worst = 0.0
    for number, name in enumerate(names, 1):
        case = CASES[name]
        same, apart = of_a_class(name)
        kinds.setdefault(case.kind, []).append((same, apart < case.tolerance))
        worst = max(worst, farther(apart))
        if not same or not apart < case.tolerance:
            console.print(f"{name}: number of weights {'equal' if same else 'different'}, results apart {apart:.1e}")
        if number % 20 == 0:
            console.print(f"types: {number} tiny models compared")
    found = {
        "types": len(kinds),
        "models": sum(map(len, kinds.values())),
        "counts_equal": sum(all(same for same, _ in rows) for rows in kinds.values()),
        "logits_equal": sum(all(near for _, near in rows) for rows in kinds.values()),
        "largest_difference": worst,
    }
    console.print(
        f"{found['types']} model types of transformers, {found['models']} tiny models: parameter counts equal "
        f"{found['counts_equal']}/{found['types']}, logits equal {found['logits_equal']}/{found['types']}; "
        f"largest difference {worst:.1e} of the largest logit"
    )
    return found


def class_counts(config: dict[str, Any]) -> list[int]:
    """Return the number of weights of the class that a config names, none of them made: all, first; those that are
    learned; and both without those that no result depends on."""
    numbers = json.dumps(config).replace('{"__float__": "Infinity"}', "Infinity")  # Mamba-2's have one
    made = transformers.AutoConfig.for_model(**json.loads(numbers))
    with torch.device("meta"):
        theirs = getattr(transformers, config["architectures"][0])(made)
    every = {n: p.numel() for n, p in theirs.named_parameters()}
    learned = {n: p.numel() for n, p in theirs.named_parameters() if p.requires_grad}
    kind = config["model_type"]
    return [sum(every.values()), sum(learned.values()), counted(every, kind), counted(learned, kind)]


def published() -> dict[str, Any]:
    """Return how many published configs become specs with as many weights as the class of transformers has."""
    known = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    configs = {n: p["config"] for n, p in known.items() if isinstance(p["imported"], int)}
    differ: dict[str, dict[str, int]] = {}
    for name, config in track([*configs.items()], "published configs", console=console, transient=True):
        with TemporaryDirectory(prefix="archdsl.") as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(config), encoding="utf-8")
            ours = import_folder(path, Path(folder) / "m.arch").parameters
        theirs = class_counts(config)
        if ours not in theirs:
            differ[name] = {"archdsl": ours, "transformers": theirs[0]}
            console.print(f"{name}: {ours:,}, transformers' class {theirs[0]:,}")
    found = {"configs": len(configs), "counts_equal": len(configs) - len(differ), "differ": differ}
    console.print(f"{found['configs']} published configs: parameter counts equal {found['counts_equal']}")
    return found


# --- all --------------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument("--steps", type=int, default=200, help="of training (200)")
    parser.add_argument("-o", "--output", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    told = {
        "date": date.today().isoformat(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "device": f"CPU, {platform.machine()}, float32",
    }
    console.print(
        f"{told['date']}, torch {torch.__version__}, transformers {transformers.__version__}, {told['device']}"
    )
    parts = PARTS if options.only is None else (options.only,)
    found: dict[str, Any] = {}
    wrong = False
    if "training" in parts:
        rows = [trained(name, options.steps) for name in SHAPES]
        found["training"] = told | {"runs": rows}
        wrong |= not all(row["largest_difference"] <= CLOSE for row in rows)
    if "types" in parts:
        found["types"] = told | types(CASES)
        wrong |= not 0 < found["types"]["types"] == found["types"]["counts_equal"] == found["types"]["logits_equal"]
    if "published" in parts:
        found["published"] = told | published()
    if options.output is not None:
        before = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else {}
        text = json.dumps(before | found, indent=1, ensure_ascii=False)
        options.output.write_text(text + "\n", encoding="utf-8")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
