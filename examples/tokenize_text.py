"""Write texts as token ids, for the training scripts: by a tokenizer of Hugging Face, or their bytes. A text is a file,
or a dataset of the Hub with a column `text` (--dataset).

    python examples/tokenize_text.py tokens.bin README.md docs/*.md
    python examples/tokenize_text.py tokens.bin roneneldan/TinyStories --dataset --tokenizer tokenizer.json"""

import argparse
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from rich.progress import track

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("output", type=Path)
parser.add_argument("texts", nargs="+")
parser.add_argument("--tokenizer", help="a tokenizer.json; else bytes are tokens")
parser.add_argument("--dataset", action="store_true")
parser.add_argument("--end", type=int, help="the token that stands behind each text")
args = parser.parse_args()


def texts() -> Iterator[str]:
    if not args.dataset:
        return (Path(name).read_text(encoding="utf-8") for name in args.texts)
    from datasets import load_dataset

    return chain.from_iterable((row["text"] for row in load_dataset(n, split="train")) for n in args.texts)


def encode(text: str) -> list[int]:
    return list(text.encode()) if tokenizer is None else tokenizer.encode(text).ids


tokenizer = None
if args.tokenizer is not None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(args.tokenizer)
count, end = 0, [] if args.end is None else [args.end]
with args.output.open("wb") as file:
    for text in track(texts(), description="tokenizing"):
        ids = np.array(encode(text) + end, dtype=np.uint32)
        ids.tofile(file)
        count += len(ids)
print(f"{count:,} tokens: {args.output}")
