"""Train a language model that archdsl has emitted on the bytes of a text.

    archdsl compile examples/tiny_llama.arch --to torch -o tiny_llama.py
    python examples/train.py tiny_llama.py README.md docs/*.md --checkpoint run.safetensors -o tiny_llama.safetensors

The model's vocabulary needs 256 entries or more: its tokens are bytes. The checkpoint holds weights, optimizer and
step;
run again with the same one, training goes on from there, through the same batches as if it had never stopped. What `-o`
writes are the weights alone, under their names in the spec: `archdsl run SPEC --weights` reads them.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Plan:
    """How to train. The learning rate rises over `warmup` steps and falls as a cosine to a tenth."""

    steps: int = 400
    batch: int = 16
    time: int = 128
    rate: float = 1e-3
    warmup: int = 20
    decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    bf16: bool = False
    save_every: int = 100

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = min(1.0, (step + 1) / self.warmup)
        done = step / max(1, self.steps)
        return self.rate * rising * (0.55 + 0.45 * math.cos(math.pi * done))


# --- the model --------------------------------------------------------------------------------------------------------


def load_module(path: Path) -> ModuleType:
    """Import an emitted file by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def model_class(module: ModuleType) -> type[nn.Module]:
    """The model of an emitted file: its last class."""
    return [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__][-1]


# --- the data ---------------------------------------------------------------------------------------------------------


def read_bytes(paths: list[Path]) -> Tensor:
    """The files' bytes, one after the other, as tokens."""
    return torch.frombuffer(bytearray(b"\n".join(p.read_bytes() for p in paths)), dtype=torch.uint8).long()


def batch_of(data: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Windows of the text from random places, and the same one byte later."""
    starts = torch.randint(len(data) - plan.time, (plan.batch,))
    windows = torch.stack([data[s : s + plan.time + 1] for s in starts.tolist()])  # [batch, time + 1]
    return windows[:, :-1], windows[:, 1:]


# --- training ---------------------------------------------------------------------------------------------------------


def optimizer_for(model: nn.Module, plan: Plan) -> torch.optim.AdamW:
    """AdamW that decays matrices, not the gains of norms and biases."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": plan.decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.95), fused=True)


def train(model: nn.Module, data: Tensor, plan: Plan, checkpoint: Path | None = None) -> Iterator[tuple[int, float]]:
    """Train, and give each step's number and loss; with a checkpoint, go on from what it holds and keep it up to date.

    The loss is the mean cross entropy of the next byte in nats; terms that the spec adds by `loss` are trained on
    too."""
    device = next(model.parameters()).device
    optimizer = optimizer_for(model, plan)
    first = resume(checkpoint, model, optimizer) if checkpoint is not None and checkpoint.exists() else 0
    extra = "losses" in inspect.signature(model.forward).parameters
    model.train()
    for step in range(first, plan.steps):
        torch.manual_seed(plan.seed + step)  # the batch and the dropout of a step do not depend on where training began
        tokens, targets = (t.to(device) for t in batch_of(data, plan))
        for group in optimizer.param_groups:
            group["lr"] = plan.rate_at(step)
        losses: dict[str, Tensor] = {}
        with torch.autocast(device.type, torch.bfloat16, enabled=plan.bf16):
            logits = model(tokens, losses=losses) if extra else model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        optimizer.zero_grad()
        (loss + sum(losses.values())).backward()
        nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
        if checkpoint is not None and ((step + 1) % plan.save_every == 0 or step + 1 == plan.steps):
            save(checkpoint, model, optimizer, step + 1)
        yield step, loss.item()


# --- checkpoints ------------------------------------------------------------------------------------------------------


def save(path: Path, model: nn.Module, optimizer: torch.optim.AdamW, step: int) -> None:
    """Write weights, both moments and the step; whoever looks at `path` sees the old file or the new one."""
    state = model.state_dict()
    for name, weight in model.named_parameters():
        for moment in ("exp_avg", "exp_avg_sq"):
            state[f"{moment}/{name}"] = optimizer.state[weight][moment]
    write(path, state, {"step": str(step)})


def resume(path: Path, model: nn.Module, optimizer: torch.optim.AdamW) -> int:
    """Read a checkpoint into a model and its optimizer; gives the number of steps it has seen."""
    try:
        with safe_open(path, framework="pt") as file:
            step = int(file.metadata()["step"])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        model.load_state_dict({name: tensor for name, tensor in state.items() if "/" not in name})
        for name, weight in model.named_parameters():
            moments = {m: state[f"{m}/{name}"].to(weight.device) for m in ("exp_avg", "exp_avg_sq")}
            optimizer.state[weight] = {"step": torch.tensor(float(step), device=weight.device), **moments}
    except (SafetensorError, KeyError, TypeError, RuntimeError) as problem:
        raise SystemExit(f"{path}: not a checkpoint of this model: {' '.join(str(problem).split())[:200]}") from None
    return step


def write(path: Path, state: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file beside its place and rename it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, beside, metadata)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


# --- what has been learned --------------------------------------------------------------------------------------------


@torch.no_grad()
def sample(model: nn.Module, prompt: str, length: int, temperature: float = 0.7, seed: int = 0) -> str:
    """The prompt, continued by `length` bytes drawn one at a time."""
    model.eval()
    device = next(model.parameters()).device
    draw = torch.Generator().manual_seed(seed)
    tokens = list(prompt.encode())
    for _ in range(length):
        seen = torch.tensor([tokens[-model.config.context :]], device=device)
        chances = (model(seen)[0, -1].float() / temperature).softmax(-1)
        tokens.append(int(torch.multinomial(chances[:256].cpu(), 1, generator=draw)))
    return bytes(tokens).decode(errors="replace")


# --- the command ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("model", type=Path, help="an emitted file")
    parser.add_argument("texts", type=Path, nargs="+", help="what to train on")
    parser.add_argument("--checkpoint", type=Path, help="where to keep, and find, the state of training")
    parser.add_argument("-o", "--output", type=Path, help="where to write the trained weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sample", metavar="PROMPT", help="continue this when done")
    for name, default in vars(Plan()).items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, metavar="N")
    given = parser.parse_args()
    plan = Plan(**{name: getattr(given, name) for name in vars(Plan())})

    data = read_bytes(given.texts)
    if len(data) <= plan.time + 1:
        raise SystemExit(f"the text has {len(data)} bytes: too few for sequences of {plan.time}")
    torch.manual_seed(plan.seed)
    with torch.device(given.device):
        model = model_class(load_module(given.model))()
    if model.config.vocab < 256:
        raise SystemExit(f"{given.model}: its vocabulary has {model.config.vocab} entries; bytes need 256")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=plan.steps, loss="")
        for step, loss in train(model, data, plan, given.checkpoint):
            progress.update(task, completed=step + 1, loss=f"{loss:.3f}")
            if step % 50 == 0 or step + 1 == plan.steps:
                progress.print(f"step {step:5}  loss {loss:.3f}")
    if given.output is not None:
        write(given.output, model.state_dict())
    if given.sample is not None:
        print(sample(model, given.sample, 400))


if __name__ == "__main__":
    main()
