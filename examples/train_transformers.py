"""Train a folder of `archdsl compile --to hf` with the Trainer of transformers, whole or, with --lora, by adapters of
PEFT. Gradient checkpointing, bfloat16, DDP (under torchrun) and logging are options of the Trainer.

    archdsl compile gpt2 --to hf --seed 0 -o gpt2
    python examples/train_transformers.py gpt2 tokens.bin --output run

`tokens.bin` holds token ids as unsigned 32-bit numbers, one after another (`examples/tokenize_text.py`)."""

import argparse

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("tokens")
parser.add_argument("--output", default="run")
for name, default in {"steps": 1000, "batch": 8, "seq": 1024, "accumulate": 1, "lora": 0}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--rate", type=float, default=3e-4)
args = parser.parse_args()


class Windows(Dataset[dict[str, Tensor]]):
    """Windows of tokens [seq], side by side in a memory-mapped file; the model shifts its labels by one itself."""

    def __init__(self, path: str, seq: int) -> None:
        self.tokens, self.seq = np.memmap(path, dtype=np.uint32, mode="r"), seq

    def __len__(self) -> int:
        return len(self.tokens) // self.seq

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        row = torch.from_numpy(self.tokens[i * self.seq : (i + 1) * self.seq].astype(np.int64))
        return {"input_ids": row, "labels": row}


model = AutoModelForCausalLM.from_pretrained(args.model, trust_remote_code=True)
if args.lora:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=args.lora, target_modules="all-linear", task_type="CAUSAL_LM"))
settings = TrainingArguments(
    args.output,
    max_steps=args.steps,
    per_device_train_batch_size=args.batch,
    gradient_accumulation_steps=args.accumulate,
    gradient_checkpointing=True,
    learning_rate=args.rate,
    bf16=torch.cuda.is_available(),
    logging_steps=max(1, args.steps // 100),
    report_to="none",
)
trainer = Trainer(model, settings, train_dataset=Windows(args.tokens, args.seq))
trainer.train()
trainer.save_model()
