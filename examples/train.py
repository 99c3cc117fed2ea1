"""Train a language model that archdsl has emitted on the bytes of a text; on one device, or on many.

    archdsl compile examples/tiny_llama.arch --to torch --with loss -o tiny_llama.py
    python examples/train.py tiny_llama.py README.md docs/*.md --checkpoint run.safetensors -o tiny_llama.safetensors

    torchrun --nproc-per-node 8 examples/train.py llama.arch text.txt --tp 2 --checkpoint run/

The model is an emitted file, or a spec, which is compiled on the fly. Its vocabulary needs 256 entries or more: its
tokens are bytes. With the section `loss` logits are made for 1,024 tokens at a time, and never all there. Without texts
it is trained on a synthetic stream. The checkpoint holds weights, optimizer, and where the data stand; run again with
the same one, training goes on from there, through the same batches as if it had never stopped. What `-o` writes are the
weights alone, under their names in the spec: `archdsl run SPEC --weights` reads them.

Under torchrun the processes share the work: `--tp` and `--ep` say along which axes, and what is left are
batches. The file then has the section `parallel` (`--with loss,parallel`), and the checkpoint is a folder, which any
other number of processes can go on from.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import math
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm


@dataclass(frozen=True)
class Plan:
    """How to train. The learning rate rises over `warmup` steps and falls as a cosine to a tenth."""

    steps: int = 400
    batch: int = 16
    seq: int = 128
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


def load_module(path: Path, parallel: bool = False) -> ModuleType:
    """Import an emitted file by its path; or compile a spec, with the section `parallel` if that is needed, and its
    loss."""
    if path.suffix != ".py":
        import archdsl

        module = ModuleType(path.stem)
        sys.modules[path.stem] = module
        exec(archdsl.torch_source(path, features=["loss", "parallel"] if parallel else ["loss"]), vars(module))
        return module
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def model_class(module: ModuleType) -> type[nn.Module]:
    """The model of an emitted file: the class that needs no argument but a `config`, and has a default for it."""
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, nn.Module)]
    own = [c for c in classes if c.__module__ == module.__name__]
    configs = [(c, inspect.signature(c).parameters.get("config")) for c in own]
    return [c for c, config in configs if config is not None and config.default is not config.empty][-1]


# --- the data ---------------------------------------------------------------------------------------------------------


def read_bytes(paths: list[Path]) -> Tensor:
    """The files' bytes, one after the other, as tokens."""
    return torch.frombuffer(bytearray(b"\n".join(p.read_bytes() for p in paths)), dtype=torch.uint8).long()


def synthetic(length: int, seed: int = 0) -> Tensor:
    """Bytes of which each follows from the one before, but for one in eight."""
    draw = torch.Generator().manual_seed(seed)
    follows = torch.randperm(256, generator=draw).tolist()
    surprises = torch.randint(256, (length,), generator=draw).tolist()
    surprised = (torch.rand(length, generator=draw) < 0.125).tolist()
    found = [0]
    for surprise, now in zip(surprises[1:], surprised[1:], strict=True):
        found.append(surprise if now else follows[found[-1]])
    return torch.tensor(found)


class Loader:
    """Windows of a text from random positions, and the same one byte later: batch after batch. `state` says where it
    stands; the batches that come do not depend on where training began, nor on how many processes share them."""

    def __init__(self, data: Tensor, plan: Plan) -> None:
        self.data, self.plan = data, plan
        self.state = {"step": 0, "seed": plan.seed}

    def next(self) -> tuple[Tensor, Tensor]:
        """Tokens and targets [batch, time]; it seeds what is random in a step, dropout too."""
        torch.manual_seed(self.state["seed"] + self.state["step"])
        self.state["step"] += 1
        starts = torch.randint(len(self.data) - self.plan.seq, (self.plan.batch,))
        windows = torch.stack([self.data[s : s + self.plan.seq + 1] for s in starts.tolist()])  # [batch, time + 1]
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


# --- training ---------------------------------------------------------------------------------------------------------


def optimizer_for(model: nn.Module, plan: Plan) -> torch.optim.AdamW:
    """AdamW that decays matrices, not the gains of norms and biases. Weights on different meshes of devices are in
    groups of their own: a fused step takes those of one."""
    groups: dict[object, list[Tensor]] = {}
    for weight in model.parameters():
        mesh = weight.device_mesh if isinstance(weight, DTensor) else None
        groups.setdefault((weight.dim() >= 2, mesh), []).append(weight)
    made = [{"params": found, "weight_decay": plan.decay if key[0] else 0.0} for key, found in groups.items()]
    return torch.optim.AdamW(made, lr=plan.rate, betas=(0.9, 0.95), fused=True)


def train(model: nn.Module, data: Tensor, plan: Plan, checkpoint: Path | None = None) -> Iterator[tuple[int, float]]:
    """Train on one device, and give each step's number and loss; with a checkpoint, go on from what it holds and keep
    it up to date.

    The loss is the mean cross entropy of the next byte in nats; terms that the spec adds by `loss` are trained on
    too."""
    device = next(model.parameters()).device
    optimizer = optimizer_for(model, plan)
    loader = Loader(data, plan)
    if checkpoint is not None and checkpoint.exists():
        loader.state["step"] = resume(checkpoint, model, optimizer)
    model.train()
    for step in range(loader.state["step"], plan.steps):
        tokens, targets = (t.to(device) for t in loader.next())
        set_rate(optimizer, plan.rate_at(step))
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=plan.bf16):
            loss = loss_of(model, tokens, targets)
        nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
        if checkpoint is not None and saves(plan, step):
            save(checkpoint, model, optimizer, step + 1)
        yield step, loss.item()


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """The cross entropy of a batch, when its gradients, and those of the spec's own terms, have been added up."""
    losses: dict[str, Tensor] = {}
    parameters = inspect.signature(model.forward).parameters
    extra = {"losses": losses} if "losses" in parameters else {}
    if "targets" in parameters:
        loss = model(tokens, targets=targets, **extra)
    else:  # without the section `loss`
        logits = model(tokens, **extra)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()) + sum(losses.values())
    loss.backward()
    return loss.detach() - sum(term.detach() for term in losses.values())


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def saves(plan: Plan, step: int) -> bool:
    """Whether there is a checkpoint after a step."""
    return (step + 1) % plan.save_every == 0 or step + 1 == plan.steps


# --- training on many devices -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The size of each axis of the mesh: `ep` shards experts, `tp` heads and channels. Batches go over the rest, and
    over `ep`."""

    ep: int = 1
    tp: int = 1

    def mesh(self, device: str) -> DeviceMesh:
        """A mesh of all processes, with the axes that have more than one device."""
        world, inner = dist.get_world_size(), self.ep * self.tp
        if world % inner:
            raise SystemExit(f"{world} processes are no multiple of {self.ep} x {self.tp}")
        sizes = {"dp": world // inner, "ep": self.ep, "tp": self.tp}
        axes = {name: size for name, size in sizes.items() if size > 1 or name == "dp"}
        return init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))


class Run:
    """One process's share of training a model on a mesh of devices."""

    def __init__(self, module: ModuleType, data: Tensor, plan: Plan, layout: Layout, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self.mesh = layout.mesh(device.type)
        axes = self.mesh.mesh_dim_names or ()
        torch.manual_seed(plan.seed)
        with device:
            model = model_class(module)()
        self.model = module.parallelize(model, self.mesh)
        self.model.train()
        self.optimizer = optimizer_for(self.model, plan)
        self.loader = Loader(data, plan)
        self.groups = [self.mesh[name].get_group() for name in ("dp", "ep") if name in axes]
        self.part, self.parts = 0, 1
        for name in ("dp", "ep"):
            if name in axes:
                self.part = self.part * self.mesh[name].size() + self.mesh[name].get_local_rank()
                self.parts *= self.mesh[name].size()
        if plan.batch % self.parts:
            raise SystemExit(f"a batch of {plan.batch} is no multiple of {self.parts}")

    def step(self) -> float:
        """One step; the loss over the batch of all processes."""
        rate = self.plan.rate_at(self.loader.state["step"])
        tokens, targets = (t.tensor_split(self.parts)[self.part].to(self.device) for t in self.loader.next())
        if self.parts > 1:  # each part of the batch has dropout of its own
            torch.manual_seed(torch.initial_seed() * self.parts + self.part)
        set_rate(self.optimizer, rate)
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.plan.bf16):
            loss = loss_of(self.model, tokens, targets)
        for group in self.groups:
            dist.all_reduce(loss, group=group)
        self.clip()
        self.optimizer.step()
        return loss.item() / self.parts

    def clip(self) -> None:
        """Scale the gradients where their norm, over all processes, is more than `plan.clip`."""
        found: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
        for weight in self.model.parameters():
            gradient = weight.grad
            if gradient is None:
                continue
            cut: tuple[dist.ProcessGroup, ...] = ()  # those who have the other parts
            if isinstance(gradient, DTensor):
                groups = gradient.device_mesh.get_all_groups()
                cut = tuple(g for g, p in zip(groups, gradient.placements, strict=True) if not p.is_replicate())
                gradient = gradient.to_local()
            found.setdefault(cut, []).append(gradient)
        square = torch.zeros((), device=self.device)
        for cut, gradients in found.items():
            part = get_total_norm(gradients) ** 2
            for group in cut:
                dist.all_reduce(part, group=group)
            square += part
        scale = (self.plan.clip / (square.sqrt() + 1e-6)).clamp(max=1.0)
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(scale)

    # --- its checkpoints ---

    def state(self) -> dict[str, Tensor]:
        """Weights, both moments, and where the loader stands, by name: the same names on any mesh."""
        state = dict(self.model.state_dict())
        for name, weight in self.model.named_parameters():
            moments = self.optimizer.state[weight]
            if not moments:
                moments |= {m: torch.zeros_like(weight.detach()) for m in MOMENTS}
                moments["step"] = torch.zeros((), device=self.device)
            state |= {f"{m}/{name}": moments[m] for m in MOMENTS}
        return state | {f"loader/{name}": torch.tensor(value) for name, value in self.loader.state.items()}

    def save(self, folder: Path) -> None:
        """Write a checkpoint beside the others and give it its name when it is whole; then remove those before it."""
        beside = folder / "unfinished"
        if dist.get_rank() == 0:
            shutil.rmtree(beside, ignore_errors=True)
        dist.barrier()
        dcp.save(self.state(), checkpoint_id=beside)
        if dist.get_rank() == 0:
            older = checkpoints(folder)
            beside.rename(folder / f"step-{self.loader.state['step']:08}")
            for path in older:
                shutil.rmtree(path)
        dist.barrier()

    def resume(self, folder: Path) -> None:
        """Go on from the latest checkpoint of a folder, if there is one, whatever mesh it was written on."""
        found = checkpoints(folder)
        if not found:
            return
        state = self.state()
        dcp.load(state, checkpoint_id=found[-1])
        self.model.load_state_dict({name: tensor for name, tensor in state.items() if "/" not in name})
        self.loader.state = {name: int(state[f"loader/{name}"]) for name in self.loader.state}
        for weight in self.model.parameters():
            self.optimizer.state[weight]["step"].fill_(self.loader.state["step"])


MOMENTS = ("exp_avg", "exp_avg_sq")


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder that are whole, the latest last."""
    return sorted(folder.glob("step-*"))


def train_together(run: Run, checkpoint: Path | None = None) -> Iterator[tuple[int, float]]:
    """The same as `train`, by all processes of a group together; the checkpoint is a folder."""
    plan = run.plan
    if checkpoint is not None:
        checkpoint.mkdir(parents=True, exist_ok=True)
        run.resume(checkpoint)
    for step in range(run.loader.state["step"], plan.steps):
        loss = run.step()
        if checkpoint is not None and saves(plan, step):
            run.save(checkpoint)
        yield step, loss


# --- checkpoints ------------------------------------------------------------------------------------------------------


def save(path: Path, model: nn.Module, optimizer: torch.optim.AdamW, step: int) -> None:
    """Write weights, both moments and the step; whoever looks at `path` sees the old file or the new one."""
    state = model.state_dict()
    for name, weight in model.named_parameters():
        for moment in MOMENTS:
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
            moments = {m: state[f"{m}/{name}"].to(weight.device) for m in MOMENTS}
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
    parser.add_argument("model", type=Path, help="an emitted file, or a spec")
    parser.add_argument("texts", type=Path, nargs="*", help="what to train on; nothing: a synthetic stream")
    parser.add_argument("--checkpoint", type=Path, help="where to keep, and find, the state of training")
    parser.add_argument("-o", "--output", type=Path, help="where to write the trained weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sample", metavar="PROMPT", help="continue this when done")
    for kind in (Plan(), Layout()):
        for name, default in vars(kind).items():
            option = f"--{name.replace('_', '-')}"
            if isinstance(default, bool):
                parser.add_argument(option, action="store_true")
            else:
                parser.add_argument(option, type=type(default), default=default, metavar="N")
    given = parser.parse_args()
    plan = Plan(**{name: getattr(given, name) for name in vars(Plan())})
    layout = Layout(**{name: getattr(given, name) for name in vars(Layout())})

    data = read_bytes(given.texts) if given.texts else synthetic(1 << 16, plan.seed)
    if len(data) <= plan.seq + 1:
        raise SystemExit(f"the text has {len(data)} bytes: too few for sequences of {plan.seq}")
    together = "WORLD_SIZE" in os.environ
    warnings.filterwarnings("ignore", message=".*returned a view tensor")  # nothing here writes to logits in place
    device = torch.device(given.device)
    if together:
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        dist.init_process_group()
    elif layout != Layout():
        raise SystemExit("--tp and --ep are for several processes: see torchrun")
    module = load_module(given.model, parallel=together)
    if together and given.sample is not None:
        raise SystemExit("--sample is for one process: go on from the checkpoint with one")
    if not together:
        torch.manual_seed(plan.seed)
        with device:
            model = model_class(module)()
        if getattr(module.Config(), "vocab", 0) < 256:
            raise SystemExit(f"{given.model}: its vocabulary has {module.Config().vocab} entries; bytes need 256")
        losses = train(model, data, plan, given.checkpoint)
    else:
        run = Run(module, data, plan, layout, device)
        model, losses = run.model, train_together(run, given.checkpoint)

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    shown = not together or dist.get_rank() == 0
    with Progress(*columns, disable=not shown) as progress:
        task = progress.add_task("training", total=plan.steps, loss="")
        for step, loss in losses:
            progress.update(task, completed=step + 1, loss=f"{loss:.3f}")
            if shown and (step % 50 == 0 or step + 1 == plan.steps):
                progress.print(f"step {step:5}  loss {loss:.3f}")
    if given.output is not None:
        state = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in model.state_dict().items()}
        if shown:
            write(given.output, state)
    if together:
        dist.destroy_process_group()
    if given.sample is not None:
        print(sample(model, given.sample, 400))


if __name__ == "__main__":
    main()
