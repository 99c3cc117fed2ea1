"""What the processes of a test of the section `parallel` run: here, where little is imported, because each starts anew."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

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


def curves(world: int, folder: Path, jobs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What each job gives on the first of `world` processes, which do one after the other together."""
    mp.start_processes(work, args=(world, free_port(), str(folder), list(jobs)), nprocs=world, start_method="spawn")
    return list(json.loads((folder / "results.json").read_text()))


def work(rank: int, world: int, port: int, folder: str, jobs: Sequence[Mapping[str, Any]]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo")
    results = [one(job) for job in jobs]
    if rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def one(job: Mapping[str, Any]) -> Any:
    """The losses of each step, by step; or what was said where the work was refused."""
    train = trainer()
    module = load(Path(job["model"]))
    plan, layout = train.Plan(**job["plan"]), train.Layout(**job["layout"])
    try:
        run = train.Run(module, train.synthetic(4096), plan, layout, torch.device("cpu"))
    except (ValueError, SystemExit) as problem:
        return str(problem)
    losses = train.train_together(run, Path(job["checkpoint"]) if "checkpoint" in job else None)
    found = {}
    for step, loss in losses:
        found[step] = loss
        if step + 1 == job.get("stop"):
            break
    return found


def load(path: Path) -> ModuleType:
    """An emitted file."""
    module: ModuleType = trainer().load_module(path)
    return module
