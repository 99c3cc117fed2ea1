"""Train an emitted module over several devices: FSDP, and with --tp tensor parallelism, from the meta device, so that
no process ever holds the whole model. A run that stops goes on from its last (sharded) checkpoint.

    archdsl compile llama3_8b --to torch --with loss,parallel -o llama3.py
    torchrun --nproc-per-node 8 examples/train_fsdp.py llama3.py tokens.bin run --tp 2

`tokens.bin` holds token ids as unsigned 32-bit numbers (`examples/tokenize_text.py`)."""

import argparse
import os
import runpy
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name in ("model", "tokens", "run"):
    parser.add_argument(name)
for name, default in {"tp": 1, "steps": 1000, "batch": 4, "seq": 2048, "every": 100}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
args = parser.parse_args()

device, ranks = "cuda" if torch.cuda.is_available() else "cpu", int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh(device, (ranks // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
emitted = runpy.run_path(args.model)
with torch.device("meta"):
    model = next(c for c in emitted.values() if hasattr(c, "init_weights"))()
model = emitted["parallelize"](model, mesh).to_empty(device=device)
torch.manual_seed(0)
model.init_weights()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")

last = Path(args.run, "last")
start = int(last.read_text()) if last.exists() else 0
if start:
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=Path(args.run, str(start)))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
tokens = np.memmap(args.tokens, dtype=np.uint32, mode="r")
rows, began = args.batch * ranks // args.tp, time.perf_counter()
for step in range(start, args.steps):
    starts = np.random.default_rng(step).integers(len(tokens) - args.seq, size=rows)
    own = starts[mesh["dp"].get_local_rank() * args.batch :][: args.batch]
    batch = torch.from_numpy(np.stack([tokens[i : i + args.seq + 1] for i in own]).astype(np.int64)).to(device)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        loss = model(batch[:, :-1], batch[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(mean := loss.detach() / ranks)
    rate = (step + 1 - start) * rows * args.seq / (time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(f"step {step + 1}  loss {mean.item():.6f}  {rate:,.0f} tokens/s", flush=True)
    if (step + 1) % args.every == 0 or step + 1 == args.steps:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=Path(args.run, str(step + 1)))
        if dist.get_rank() == 0:
            last.write_text(str(step + 1))
dist.destroy_process_group()
