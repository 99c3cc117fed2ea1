"""Broken and hostile checkpoints: each is refused with a code, or what is written is right.

    python -m tests.fuzz.strangers --count 20000 --seed 1 [--jobs 2]

An input is a number, as in `broken.py`, whose children, limits and counts these are. A tiny Llama (its config, index,
tensors, GGUF file, mapping and tokenizer) is changed in one of them. Of what is accepted the files are judged: the spec
declares what its family does, is printable and without errors, and the tensors are those of the spec."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzz import broken
from fuzz.broken import Case, Verdict

SECONDS = 4.0
"""Processor time of an import."""
SET = {"layers": 2, "width": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "hidden": 24, "vocab": 32, "context": 16}


@cache
def files() -> dict[str, bytes]:
    """A folder of a tiny Llama, whole and in two files, and beside it what else is read."""
    from archdsl.api import init_weights
    from archdsl.frontend.load import load
    from archdsl.interop.convert import convert_to
    from archdsl.resources import mapping_files
    from archdsl.weights.safetensors import Checkpoint

    folder = Path(tempfile.mkdtemp(prefix="strangers"))
    mapping = next(path for path in mapping_files() if path.stem == "llama")
    try:
        model = load("hf/llama", set=SET)
        init_weights(model, folder / "w.safetensors")
        convert_to(model, folder / "w.safetensors", folder / "hf", "llama")
        whole = (folder / "hf" / "model.safetensors").read_bytes()
        names = [*Checkpoint(folder / "hf" / "model.safetensors").entries]
        index = {"weight_map": {n: f"{'ab'[i % 2]}.safetensors" for i, n in enumerate(names)}}
        found = {
            "config.json": (folder / "hf" / "config.json").read_bytes(),
            "model.safetensors": whole,
            "model.safetensors.index.json": json.dumps(index).encode(),
            "m.gguf": _gguf(model, folder),
            "m.checkpoint": f'spec "{mapping.with_suffix(".arch")}"\n{_flat(mapping)}'.encode(),
            "tokenizer.json": json.dumps(TOKENIZER).encode(),
        }
    finally:
        shutil.rmtree(folder)
    return found


def _gguf(model: Any, folder: Path) -> bytes:
    from archdsl.interop.gguf_write import write_gguf

    (folder / "w.tokenizer.json").write_text(json.dumps(TOKENIZER))
    write_gguf(model, folder / "w.safetensors", folder / "m.gguf")
    return (folder / "m.gguf").read_bytes()


def _flat(path: Path) -> str:
    lines = []
    for line in path.read_text().splitlines():
        inner = line.split('"')[1] if line.startswith("include ") else ""
        lines.append(_flat(path.with_name(inner)) if inner else line)
    return "\n".join([*lines, ""])


TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {chr(97 + i): i for i in range(26)} | {"ab": 26}, "merges": [["a", "b"]]},
}

TEXTS_OF_FIELDS = ("", "llama", "../x", "/etc/passwd", "a\nb", 'x"\nblock a() {}', "\x1b[31m", "\ud800", "\u202e")
VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda r: r.choice((None, True, 0, -1, 0.5, 1e-300, 1e308, float("inf"), float("nan"), -0.0)),
    lambda r: r.choice((2**31, 2**63, 10**18, 10**150, 10**159, 10**400, -(2**64))),
    lambda r: r.choice(TEXTS_OF_FIELDS),
    lambda r: "a" * r.choice((100, 10**6)),
    lambda r: r.choice(([], ["x\n"] * 3, [0] * r.choice((1, 3, 10**5)), {})),
    lambda r: {"__float__": r.choice(("Infinity", "x", 3))},
    lambda r: r.randrange(1, 100),
)


def case(seed: int, number: int) -> Case:
    """The input of that number."""
    rng = random.Random(f"strangers {seed}:{number}")
    name = rng.choice([*files()])
    made = whole(name).beside
    how = rng.choice(("json", "json", "bytes", "cut", "deep") if name.endswith(".json") else OF_BYTES)
    if name == "model.safetensors" and rng.random() < 0.5:
        how = "header"
    if name == "m.checkpoint":
        how = "text"
    content = made[name]
    assert isinstance(content, bytes)
    made[name] = CHANGES[how](rng, content)
    return Case(f"{name} {how}", name, made)


OF_BYTES = ("bytes", "cut", "numbers")


def whole(name: str) -> Case:
    """The files around one that is read, none of them changed."""
    made: dict[str, str | bytes] = dict(files())
    index = made.pop("model.safetensors.index.json")
    if name == "model.safetensors.index.json":
        made |= {name: index, **{f"{shard}.safetensors": made["model.safetensors"] for shard in "ab"}}
    return Case(f"{name} whole", name, made)


def _bytes(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        changed[rng.randrange(min(len(changed), rng.choice((16, 300, 3_000))))] = rng.randrange(256)
    return bytes(changed)


def _numbers(rng: random.Random, data: bytes) -> bytes:
    """A count or a length is another."""
    at = rng.randrange(min(len(data) - 8, rng.choice((32, 1_000))))
    size = rng.choice((4, 8))
    value = rng.choice((0, 1, 2, 2**16, 2**31, 10**8, 2**40, 2**60, 2**63, 2**64 - 1)) % 2 ** (8 * size)
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _deep(rng: random.Random, data: bytes) -> bytes:
    depth = rng.choice((90, 150, 10_000, 100_000))
    start = data.rstrip()[:-1] + b', "deep": '
    return start + rng.choice((b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth)) + b"}"


def _json(rng: random.Random, data: bytes) -> bytes:
    """Values of some fields are others, or are missing, or stand under another name."""
    value = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        into: Any = value
        while True:
            keys = [*into] if isinstance(into, dict) else [*range(len(into))]
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(into[key], dict | list) and into[key] and rng.random() < 0.7:
                into = into[key]
                continue
            roll = rng.random()
            if roll < 0.15:
                del into[key]
            elif roll < 0.25 and isinstance(into, dict):
                into[str(rng.choice(VALUES)(rng))[:2_000]] = into.pop(key)
            else:
                into[key] = rng.choice(VALUES)(rng)
            break
    return json.dumps(value).encode()


def _header(rng: random.Random, data: bytes) -> bytes:
    """The JSON at the beginning of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    start = _json(rng, data[8 : 8 + length])
    return len(start).to_bytes(8, "little") + start + data[8 + length :]


def _text(rng: random.Random, data: bytes) -> bytes:
    text = data.decode()
    for _ in range(rng.choice((1, 1, 2, 5))):
        text = rng.choice(TEXTS)(rng, text)
    return text.encode("utf-8", "surrogatepass")


def _place_of(rng: random.Random, text: str) -> str:
    """A piece of a rule that costs much, or leads out."""
    lines = text.split("\n")
    alternatives = f"a{'.{b,c}' * 30} = d"
    pieces = ('include "../x"', "a [0 b] = c [b 0]", alternatives, "a {" * 200, "config { a | +5 = b }")
    lines.insert(rng.randrange(len(lines)), rng.choice(pieces))
    return "\n".join(lines)


TEXTS: tuple[Callable[[random.Random, str], str], ...] = (
    *(broken._characters, broken._dropped, broken._doubled, broken._swapped, broken._cut, broken._number, _place_of),
)
CHANGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "bytes": _bytes, "numbers": _numbers, "cut": _cut, "deep": _deep, "json": _json, "header": _header, "text": _text,
}  # fmt: skip


# --- verdicts ---------------------------------------------------------------------------------------------------------


def judge(made: Case, folder: Path) -> Verdict:
    """What becomes of a checkpoint. `folder` is where its files may lie."""
    step = ["import"]
    root = Path(tempfile.mkdtemp(dir=folder))
    try:
        return _judged(made, root, step)
    except broken.TooLong as problem:
        return Verdict("slow", step[0] + " " + broken._place(problem), broken._trace(problem))
    except MemoryError as problem:
        return Verdict("memory", step[0] + " " + broken._place(problem), made.kind)
    except BaseException as problem:  # a panic of Rust is no Exception
        return Verdict(f"internal {type(problem).__name__}", broken._place(problem), broken._trace(problem))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _judged(made: Case, root: Path, step: list[str]) -> Verdict:
    from archdsl.diagnostics import ArchError
    from archdsl.diagnostics.render import render_concise
    from archdsl.interop.convert import import_folder
    from archdsl.run.generate import Text

    folder, out = root / "folder", root / "out"
    folder.mkdir()
    out.mkdir()
    for name, data in made.beside.items():
        assert isinstance(data, bytes)
        (folder / name).write_bytes(data)
    before = sorted(folder.iterdir())
    name = str(made.text)
    try:
        with broken.within(SECONDS, "import"):
            if name == "tokenizer.json":
                Text(folder / name).tokens("ab")
                return Verdict("fine")
            source = folder / name if name == "m.gguf" else folder
            mapping = str(folder / name) if name == "m.checkpoint" else None
            import_folder(source, out / "m.arch", mapping=mapping)
    except ArchError as problem:
        said = render_concise(problem.diagnostics)
        if not problem.diagnostics or not all(line.isprintable() for line in said.splitlines()):
            return Verdict("not printable", made.kind, said)
        if [*out.iterdir()]:
            return Verdict("half written", made.kind, f"{[*out.iterdir()]} {said}")
        return Verdict("refused", codes=tuple(d.code for d in problem.diagnostics))
    step[0] = "what is written"
    if sorted(folder.iterdir()) != before:
        return Verdict("written elsewhere", made.kind)
    wrong = _wrong(out)
    return Verdict(wrong, made.kind, (out / "m.arch").read_text()) if wrong else Verdict("fine")


def _wrong(out: Path) -> str:
    """What is wrong with a spec and its tensors; nothing where they are right."""
    import archdsl
    from archdsl.resources import declared_names, imported_files
    from archdsl.weights.safetensors import Checkpoint, saved

    text = (out / "m.arch").read_text(encoding="utf-8")
    if not all(line.isprintable() for line in text.split("\n")):
        return "control characters in the spec"
    family = declared_names(imported_files()["hf/llama"].read_text(encoding="utf-8"))
    if extra := [n for n in declared_names(text) if n not in (*family, "m")]:
        return f"declares {extra[0]}"
    if [d for d in archdsl.check(out / "m.arch") if d.is_error]:
        return "an error in the spec"
    Checkpoint(out / "m.safetensors").demand(saved(archdsl.load(out / "m.arch")))
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    started = time.monotonic()
    summary = broken.run(args.seed, args.count, args.jobs, lambda line: print(line, file=sys.stderr), case, judge)
    print(f"seed {args.seed}: {summary.count:,} inputs in {time.monotonic() - started:.0f} s")
    print("outcomes:", dict(summary.outcomes.most_common()))
    print("kinds:   ", dict(summary.kinds.most_common()))
    print("codes:   ", dict(sorted(summary.codes.items())))
    return 1 if summary.findings else 0


if __name__ == "__main__":
    sys.exit(main())
