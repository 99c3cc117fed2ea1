"""vLLM on the CPU beside our own `generate`: the greedy tokens of decoders that `--to hf` has written.

For each family a small model with random weights is written as a folder, as remote code and, where transformers has
such a type, with `--native`; vLLM serves it through its backend for transformers, and its tokens are compared with
those that the emitted `generate` gives. vLLM has an environment of its own (`make serving`, 3.5 GB), where each folder
is loaded in a process of its own; a row takes about a minute. `--write FILE` puts the table into a page between its two
comments.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".serving" / "bin" / "python"
BEGIN, END = "<!-- benchmarks/serving.py -->", "<!-- end -->"
PROMPTS, NEW = (2, 6), 9

_GPT = {"layers": 2, "width": 128, "heads": 4, "vocab": 97, "context": 64, "hidden": 192, "head_dim": 32}
_LLAMA = dict(_GPT, kv_heads=2)
_TWO_KINDS = dict(_LLAMA, layers=4, window=5)
_LATENT = {
    "q_rank": 48,
    "kv_rank": 32,
    "nope_dim": 24,
    "rope_dim": 8,
    "v_dim": 32,
    "dense_layers": 1,
    "sparse_layers": 1,
}
_EXPERTS = {"experts": 8, "top_k": 2, "expert_hidden": 64, "groups": 4, "top_groups": 2}
FAMILIES: dict[str, tuple[str, dict[str, int]]] = {
    "GPT-2": ("gpt2.arch:gpt2", _GPT),
    "GPT-3": ("gpt3.arch:gpt3_small", dict(_GPT, layers=4, band=5)),
    "GPT-J": ("gptj.arch:gptj_6b", dict(_GPT, rotary=16)),
    "Llama 3": ("llama3.arch:llama3_8b", _LLAMA),
    "Mistral": ("mistral.arch:mistral_7b", dict(_LLAMA, window=6)),
    "Mixtral": ("mixtral.arch:mixtral_8x7b", dict(_LLAMA, experts=4)),
    "PaLM": ("palm.arch:palm_8b", _GPT),
    "Falcon": ("hf/falcon.arch", _GPT),
    "GPT-NeoX": ("hf/gpt_neox.arch", _GPT),
    "OLMo 2": ("hf/olmo2.arch", _LLAMA),
    "Qwen3-MoE": ("hf/qwen3_moe.arch", dict(_LLAMA, experts=4, top_k=2)),
    "Gemma 2": ("hf/gemma2.arch", _TWO_KINDS),
    "Gemma 3": ("hf/gemma3_text.arch", _TWO_KINDS),
    "gpt-oss": ("hf/gpt_oss.arch", dict(_TWO_KINDS, experts=4, top_k=2)),
    "DeepSeek-V3": ("deepseek_v3.arch:deepseek_v3", {**_GPT, **_LATENT, **_EXPERTS}),
    "Bloom": ("bloom.arch:bloom_560m", _GPT),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--write", metavar="FILE", type=Path, help="the page that gets the table")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="some of them alone")
    given = parser.parse_args(arguments)
    if given.serve:
        serve(given.serve)
        return
    if unknown := {*given.families} - FAMILIES.keys():
        parser.error(f"there is no family {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    if given.write is not None and given.families:
        parser.error("a page gets all families: give --write or some of them")
    if not PYTHON.is_file():
        raise SystemExit("there is no .serving: `make serving` makes it")
    rows = [row(name) for name in given.families or FAMILIES]
    table = "\n".join(["| family | remote code | `--native` |", "|---|---|---|", *rows])
    print(table)
    if given.write is not None:
        text = given.write.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        given.write.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def row(name: str) -> str:
    """Write one family both ways, and say what vLLM makes of it."""
    import torch
    from safetensors.torch import save_file
    from torch import nn

    import archdsl
    from archdsl.diagnostics import ArchError
    from archdsl.run.load import load_source

    spec, settings = f"{ROOT / 'specs'}/{FAMILIES[name][0]}", FAMILIES[name][1]
    known = {field.name for field in archdsl.load(spec).config}
    model = archdsl.load(spec, set={k: v for k, v in settings.items() if k in known})
    plain: Any = load_source(archdsl.torch_source(model, features=["generate"]))().eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for p in plain.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.2)
            else:
                p.add_(0.1 * torch.randn_like(p))
    prompts = torch.randint(1, 97, PROMPTS)
    want = plain.generate(prompts, NEW).tolist()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "own.safetensors"
        save_file({k: v.contiguous() for k, v in plain.state_dict().items()}, weights)
        for native in (False, True):
            into = Path(folder) / ("native" if native else "remote")
            try:
                archdsl.to_huggingface(model, into, weights=weights, native=native)
            except ArchError:
                found.append("no such type")
                continue
            found.append(judged(served(into, prompts.tolist()), want))
    line = f"| {name} | {' | '.join(found)} |"
    print(line, file=sys.stderr, flush=True)
    return line


def judged(tokens: Any, want: list[list[int]]) -> str:
    if isinstance(tokens, str):
        return tokens
    if [*map(len, tokens)] != [*map(len, want)]:
        return "another number of tokens"
    same = sum(a == b for a, b in zip(tokens, want, strict=True))
    return "equal" if same == len(want) else f"{same} of {len(want)} rows equal"


def served(folder: Path, prompts: list[list[int]]) -> list[list[int]] | str:
    """The tokens of vLLM, or the last line of what it says."""
    command = [str(PYTHON), __file__, "--serve", str(folder)]
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        command, input=json.dumps(prompts), env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        tokens: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
        return tokens
    raised = [line for line in done.stderr.splitlines() if "Error: " in line or "Value error, " in line]
    if not raised:
        return "it stopped"
    said = raised[-1].rpartition("Value error, ")[2].rpartition("Error: ")[2]
    for end in (". ", ": {", " [type=", " in Transformers"):
        said = said.partition(end)[0]
    return said.strip().rstrip(".")


def serve(folder: str) -> None:
    """Within `.serving`: load a folder, and print the greedy tokens of the prompts on standard input."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    prompts = json.load(sys.stdin)
    remote = "auto_map" in json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    llm = LLM(
        folder,
        trust_remote_code=remote,
        model_impl="transformers",
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=64,
    )
    greedy = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], greedy)
    print(json.dumps([list(o.outputs[0].token_ids) for o in outputs]))


if __name__ == "__main__":
    main()
