"""Train a spec with Lightning: its Trainer takes the emitted module as it is, with a loss in `forward`; DDP or FSDP,
precision, gradient accumulation, checkpoints and loggers are its options.

    python examples/train_lightning.py gpt2 tokens.bin --devices 8 --strategy ddp --precision bf16-mixed

`tokens.bin` holds token ids as unsigned 32-bit numbers, one after another (`examples/tokenize_text.py`)."""

import argparse

import lightning
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import archdsl


class Windows(Dataset[Tensor]):
    """Windows of tokens [seq + 1], side by side in a memory-mapped file."""

    def __init__(self, path: str, seq: int) -> None:
        self.tokens, self.seq = np.memmap(path, dtype=np.uint32, mode="r"), seq

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq

    def __getitem__(self, i: int) -> Tensor:
        return torch.from_numpy(self.tokens[i * self.seq : (i + 1) * self.seq + 1].astype(np.int64))


class LanguageModel(lightning.LightningModule):
    def __init__(self, spec: str, rate: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = archdsl.to_torch(spec, features=["loss"])

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = self.model(batch[:, :-1], batch[:, 1:])
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["rate"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("tokens")
    for name, default in {"steps": 1000, "batch": 8, "seq": 1024, "accumulate": 1, "devices": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Windows(args.tokens, args.seq), batch_size=args.batch, shuffle=True, drop_last=True)
    how = {name: getattr(args, name) for name in ("strategy", "precision", "devices")}
    trainer = lightning.Trainer(max_steps=args.steps, accumulate_grad_batches=args.accumulate, **how)
    trainer.fit(LanguageModel(args.spec, rate=3e-4), loader)
