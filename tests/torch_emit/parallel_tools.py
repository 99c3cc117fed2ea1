"""Processes of tests of training. Each is forked from one that has imported PyTorch and done nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def trainer() -> Any:
    """`examples/train.py` as a module."""
    if "train" not in sys.modules:
        spec = importlib.util.spec_from_file_location("train", EXAMPLES / "train.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules["train"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["train"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def results(world: int, folder: Path, jobs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What each job gives on the first of `world` processes, which do one after the other together."""
    together(world, folder, work, list(jobs))
    return list(json.loads((folder / "results.json").read_text()))


def script(name: str, *arguments: str, folder: Path, world: int = 1, **environment: str) -> str:
    """What a script of `examples/` says, run in a folder by processes as torchrun starts them."""
    together(world, folder, *script_of(name, *arguments, **environment))
    return "".join((folder / f"said_{rank}.txt").read_text() for rank in range(world))


def script_of(name: str, *arguments: str, **environment: str) -> tuple[Any, ...]:
    """A script of `examples/`, as `together` takes it."""
    return run_script, str(EXAMPLES / name), arguments, environment


def together(world: int, folder: Path, function: Callable[..., None], *given: Any, join: bool = True) -> Any:
    """Run a function in several processes that find each other, each of which is told its rank and the folder."""
    mp.set_forkserver_preload(["torch.distributed.checkpoint.state_dict", "torch.distributed.tensor"])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    told = (function, shared, folder, given)
    return mp.start_processes(begun, args=told, nprocs=world, join=join, start_method="forkserver")


def begun(rank: int, function: Callable[..., None], shared: dict[str, str], folder: Path, given: Any) -> None:
    os.environ |= shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    function(rank, folder, *given)


def run_script(rank: int, folder: Path, path: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
    os.chdir(folder)
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"} | environment
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(EXAMPLES))
    with Path(f"said_{rank}.txt").open("w") as said, redirect_stdout(said):
        runpy.run_path(path, run_name="__main__")


def work(rank: int, folder: Path, jobs: Sequence[Mapping[str, Any]]) -> None:
    dist.init_process_group("gloo")
    found = [one(job) for job in jobs]
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def one(job: Mapping[str, Any]) -> Any:
    """What a job gives; or what was said where it was refused."""
    try:
        if "drawn" in job:
            return spreads(parallelized(job)[0])
        if "generated" in job:
            return generated(job)
        return curve(job) if "plan" in job else gradients(job)
    except (AssertionError, ValueError, SystemExit) as problem:
        return str(problem)


def curve(job: Mapping[str, Any]) -> dict[int, float]:
    """The loss of each step, by step."""
    train = trainer()
    run = train.Run(
        load(Path(job["model"])),
        train.synthetic(4096),
        train.Plan(**job["plan"]),
        train.Layout(**job["layout"]),
        torch.device("cpu"),
    )
    found = {}
    for step, loss in train.train_together(run, Path(job["checkpoint"]) if "checkpoint" in job else None):
        found[step] = loss
        if step + 1 == job.get("stop"):
            break
    return found


def parallelized(job: Mapping[str, Any]) -> tuple[torch.nn.Module, Any]:
    """The model of a job, and the mesh that it is spread over."""
    train = trainer()
    module = load(Path(job["model"]))
    layout = train.Layout(**job["layout"])
    mesh = layout.mesh("cpu")
    torch.manual_seed(0)
    model = train.model_class(module)()
    if "meta" not in job:
        return module.parallelize(model.eval(), mesh), mesh
    with torch.device("meta"):
        empty = train.model_class(module)()
    module.parallelize(empty.eval(), mesh).to_empty(device="cpu")
    if "drawn" in job:
        empty.init_weights()
    else:
        set_model_state_dict(empty, model.state_dict(), options=StateDictOptions(full_state_dict=True))
    return empty, mesh


def gradients(job: Mapping[str, Any]) -> dict[str, list[float]]:
    """Of every weight: two numbers that tell its gradient. Each process has its part of the batch."""
    model, mesh = parallelized(job)
    part, parts = 0, 1
    for name in ("dp", "ep"):
        if name in mesh.mesh_dim_names:
            part, parts = part * mesh[name].size() + mesh[name].get_local_rank(), parts * mesh[name].size()
    given = torch.load(job["inputs"])
    loss_of(call(model, given, part, parts)).backward()
    return told({name: weight.grad for name, weight in model.named_parameters()})


def generated(job: Mapping[str, Any]) -> list[list[int]]:
    """Tokens that follow prompts; each process of `dp` or `ep` has its part of the batch."""
    model, mesh = parallelized(job)
    axes = [mesh[name] for name in ("dp", "ep") if name in mesh.mesh_dim_names]
    part, parts = 0, 1
    for axis in axes:
        part, parts = part * axis.size() + axis.get_local_rank(), parts * axis.size()
    own = model.generate(prompts().tensor_split(parts)[part], **job["generated"])
    found: list[torch.Tensor] = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    every = dist.get_world_size() // parts  # those of `tp`, the innermost axis, have the same
    return torch.cat(found[::every]).tolist()


def prompts() -> torch.Tensor:
    return torch.randint(60, (4, 5), generator=torch.Generator().manual_seed(1))


def call(model: torch.nn.Module, given: Mapping[str, torch.Tensor], part: int = 0, parts: int = 1) -> Any:
    return model(**{name: tensor.tensor_split(parts)[part] for name, tensor in given.items()})


def loss_of(outputs: Any) -> torch.Tensor:
    """A mean over the batch in which every number of every output counts differently."""
    total = torch.zeros(())
    for y in outputs if isinstance(outputs, tuple) else (outputs,):
        if y.dim() == 0:  # the model's own
            return y
        weigh = torch.arange(y[0].numel()).float().mul(0.7).cos().view_as(y[0])
        total = total + (y.float() * weigh).sum() / y.size(0)
    return total


def spreads(model: torch.nn.Module) -> dict[str, float]:
    """The standard deviation of each weight, the mean of one that has none."""
    whole = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in model.named_parameters()}
    return {n: float(p.std()) or float(p.mean()) for n, p in whole.items()}


def told(found: Mapping[str, torch.Tensor | None]) -> dict[str, list[float]]:
    """Norm and one projection of each tensor."""
    result = {}
    for name, tensor in found.items():
        if tensor is not None:
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            line = torch.arange(whole.numel()).float().mul(0.3).sin()
            result[name] = [whole.norm().item(), (whole.flatten() * line).sum().item()]
    return result


def load(path: Path) -> ModuleType:
    """An emitted file."""
    module: ModuleType = trainer().load_module(path)
    return module
