"""Train an emitted module with Hugging Face accelerate: DDP, mixed precision, gradient accumulation. The loss is
computed in `forward`, so that DDP sees all of it.

    archdsl compile gpt2 --to torch --with loss -o gpt2.py
    accelerate launch examples/train_accelerate.py gpt2.py tokens.bin

`tokens.bin` holds token ids as unsigned 32-bit numbers, one after another."""

import argparse
import runpy
import time

import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("tokens")
for name, default in {"steps": 1000, "batch": 8, "seq": 1024, "accumulate": 1}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
args = parser.parse_args()

accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
torch.manual_seed(0)
model = next(c for c in runpy.run_path(args.model).values() if hasattr(c, "init_weights"))()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
tokens = np.memmap(args.tokens, dtype=np.uint32, mode="r")
count = args.steps * args.batch * accelerator.num_processes
starts = np.random.default_rng(0).integers(len(tokens) - args.seq, size=count).tolist()


def rows(starts: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.stack([tokens[i : i + args.seq + 1] for i in starts]).astype(np.int64))


loader = DataLoader(starts, batch_size=args.batch, collate_fn=rows)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
began = time.perf_counter()
for step, batch in enumerate(loader):
    with accelerator.accumulate(model):
        loss = model(batch[:, :-1], batch[:, 1:])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    mean = accelerator.reduce(loss.detach(), reduction="mean")
    rate = (step + 1) * batch.numel() * accelerator.num_processes / (time.perf_counter() - began)
    accelerator.print(f"step {step + 1}  loss {mean.item():.6f}  {rate:,.0f} tokens/s", flush=True)
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), "weights.pt")
