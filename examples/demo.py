"""The tour: check, estimate, compile and run a spec, then train what was compiled on this project's own texts."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from collections import deque
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from train import Plan, load_module, model_class, read_bytes, sample, train, write

ROOT = Path(__file__).resolve().parent.parent
SPEC = "examples/tiny_llama.arch"
EMITTED = "build/demo/tiny_llama.py"
WEIGHTS = "build/demo/tiny_llama.safetensors"
PLAN = Plan(steps=500, batch=6, seq=128, rate=3e-3)

console = Console(highlight=False, soft_wrap=True)


def title(text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def archdsl(*arguments: str) -> None:
    """Run a command as the user would type it, and stop where it fails."""
    console.print(f"\n[green]$[/green] archdsl {' '.join(arguments)}")
    sys.stdout.flush()
    done = subprocess.run([sys.executable, "-m", "archdsl", *arguments], cwd=ROOT, check=False)
    if done.returncode != 0:
        raise SystemExit(done.returncode)


def show_class(path: Path, name: str) -> None:
    """Print one class of an emitted file."""
    source = path.read_text(encoding="utf-8")
    found = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    console.print(ast.get_source_segment(source, found), style="cyan", markup=False)


def texts() -> list[Path]:
    """What the model is trained on: specs, the standard library, and the pages that explain them."""
    pages = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", ROOT / "docs" / "language.md"]
    return sorted([*ROOT.glob("examples/*.arch"), *ROOT.glob("specs/std/*.arch"), *pages])


def learn(path: Path) -> None:
    """Train the emitted model, show the loss falling and what it writes then."""
    data = read_bytes(texts())
    torch.manual_seed(PLAN.seed)
    model = model_class(load_module(path))()
    console.print(
        f"{len(data):,} bytes of specs and documents · {PLAN.steps} steps of {PLAN.batch} × {PLAN.seq} bytes · "
        f"{torch.get_num_threads()} threads\n"
        f"Without learning anything, the loss is that of an even guess among 256 bytes: ln 256 = {math.log(256):.2f}\n"
    )
    start = perf_counter()
    columns = TextColumn("training"), BarColumn(), TextColumn("loss {task.fields[loss]}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=PLAN.steps, loss="")
        recent: deque[float] = deque(maxlen=20)
        for step, loss in train(model, data, PLAN):
            recent.append(loss)
            progress.update(task, completed=step + 1, loss=f"{loss:.3f}")
            if step == 0 or (step + 1) % 100 == 0:
                console.print(f"step {step + 1:4}   loss {sum(recent) / len(recent):.3f}")
    write(ROOT / WEIGHTS, model.state_dict())
    console.print(f"\n{perf_counter() - start:.0f} s. What it writes now after `block `:\n")
    console.print(sample(model, "block ", 300, temperature=0.5).rstrip(), style="cyan", markup=False)


def main() -> None:
    (ROOT / EMITTED).parent.mkdir(parents=True, exist_ok=True)
    title("A spec")
    console.print((ROOT / SPEC).read_text(encoding="utf-8").rstrip(), style="cyan", markup=False)
    title("Checked and counted, without torch; a model of 671 billion parameters as fast as a small one")
    archdsl("check", SPEC)
    archdsl("estimate", SPEC)
    archdsl("estimate", "deepseek_v3")
    title("Compiled to PyTorch")
    archdsl("compile", SPEC, "--to", "torch", "-o", EMITTED)
    show_class(ROOT / EMITTED, "Decoder")
    title("Run: one step forwards and backwards")
    archdsl("run", SPEC)
    title(f"Trained: {EMITTED} needs nothing but torch")
    learn(ROOT / EMITTED)
    title("And run with the weights it has learned")
    archdsl("run", SPEC, "--weights", WEIGHTS)


if __name__ == "__main__":
    main()
