"""Train a spec in a plain loop on one device: bfloat16, a warm-up and a cosine, tokens from a memory-mapped file; the
progress bar shows the loss, tokens/s and, with the device's --peak in FLOP/s, MFU by the spec's own FLOPs.

    python examples/tokenize_text.py tokens.bin openwebtext.txt --tokenizer tokenizer.json --end 50256
    python examples/train_loop.py gpt2 tokens.bin -o gpt2.safetensors --peak 989e12

`tokens.bin` holds token ids as unsigned 32-bit numbers, one after another."""

import argparse
import math
import time

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import save_model

import archdsl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("spec")
parser.add_argument("tokens")
for name, default in {"steps": 1000, "batch": 8, "seq": 1024, "warmup": 100}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--rate", type=float, default=3e-4)
parser.add_argument("--peak", type=float, default=0)
parser.add_argument("-o", "--output", default="weights.safetensors")
parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
spec = archdsl.load(args.spec, set=dict(item.split("=", 1) for item in args.set))
flops = archdsl.flops(spec, batch=args.batch, seq=args.seq).training
torch.manual_seed(0)
model = archdsl.to_torch(spec, features=["loss"], device=device)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, fused=device == "cuda")
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min((step + 1) / args.warmup, 0.55 + 0.45 * math.cos(math.pi * step / args.steps))
)
tokens = np.memmap(args.tokens, dtype=np.uint32, mode="r")
compiled = torch.compile(model) if device == "cuda" else model

columns = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn()]
with Progress(*columns) as progress:
    task = progress.add_task("", total=args.steps)
    for step in range(args.steps):
        began = time.perf_counter()
        starts = np.random.default_rng(step).integers(len(tokens) - args.seq, size=args.batch)
        rows = np.stack([tokens[i : i + args.seq + 1] for i in starts]).astype(np.int64)
        batch = torch.from_numpy(rows).to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = compiled(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        told, seconds = loss.item(), time.perf_counter() - began  # item() waits for the device
        rate = f"{args.batch * args.seq / seconds:,.0f} tokens/s"
        rate += f"  MFU {flops / seconds / args.peak:.1%}" if args.peak else ""
        progress.update(task, advance=1, description=f"loss {told:.6f}  {rate}")
save_model(model, args.output)
