"""The files of a tokenizer and the like that lie beside weights and go along with them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from archdsl.files import open_regular, write_text, written_beside

CARRIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def carried(weights: Path | None) -> dict[str, Path]:
    """The files that go along with a file of weights, by the name that programs look for: `tokenizer.json` in the same
    folder or, as `archdsl import` writes it beside `x.safetensors`, `x.tokenizer.json`."""
    if weights is None:
        return {}
    found = {name: (weights.with_name(f"{weights.stem}.{name}"), weights.with_name(name)) for name in CARRIED}
    return {name: file for name, files in found.items() for file in reversed(files) if file.is_file()}


def copy(files: Mapping[str, Path], folder: Path) -> list[Path]:
    """Copy files into a folder, and say how a tokenizer is read that comes without that; what lies there then. Raises
    OSError."""
    copies = []
    for name, source in files.items():
        target = folder / name
        copies.append(target)
        if not (target.exists() and target.samefile(source)):
            with open_regular(source) as file, written_beside(target) as beside, beside.open("wb") as copied:
                shutil.copyfileobj(file, copied)
    if CARRIED[0] in files and CARRIED[1] not in files:
        copies.append(folder / CARRIED[1])
        write_text(copies[-1], '{\n  "tokenizer_class": "PreTrainedTokenizerFast"\n}\n')
    return copies
