"""Programs of others on our ONNX graphs: which of 16 tiny models each loads, with which numbers and tokens.

    make clients                        # once: install them into .clients (and .runtimes)
    python benchmarks/clients.py        # a table; --json FILE for all of it

Each client runs in a process of its own, one for each model, so that a crash is that model's alone. Weights are random
and wide, and what counts is what the emitted PyTorch gives for the same weights: outputs that differ by less than 1e-4,
and the same 12 greedy tokens. For quantizers it is that the product of every linear layer is found and the result runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(ROOT / "tests")]  # for the folder of this script, whose onnx.py is not onnx

import torch  # noqa: E402
from decode_tools import widen  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from zoo import tiny  # noqa: E402

import archdsl  # noqa: E402
from archdsl.backends.onnx.names import names_of  # noqa: E402
from archdsl.diagnostics import ArchError  # noqa: E402
from archdsl.ir.graph import Model  # noqa: E402
from archdsl.passes.step import stepped  # noqa: E402

HERE, RUNTIMES = ROOT / ".clients", ROOT / ".runtimes"
WORKERS = Path(__file__).parent / "client_workers"
EQUAL = 1e-4
COUNT = 12
WHISPER = {"layers": 2, "width": 32, "heads": 4, "hidden": 48, "features": 10, "frames": 12, "vocab": 97, "context": 64}
WHISPER |= {"decoder_layers": 2, "decoder_heads": 4, "decoder_hidden": 48}

MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2": ("gpt2:gpt2", {}),
    "llama3": ("llama3:llama3_8b", {}),
    "mixtral": ("mixtral:mixtral_8x7b", {}),
    "mixtral 32": ("mixtral:mixtral_8x7b", {"experts": 32}),
    "deepseek_v3": ("deepseek_v3:deepseek_v3", {}),
    "mamba": ("mamba:mamba_130m", {}),
    "lstm": ("rnn_lm:lstm_lm_small", {}),
    "gru": ("rnn_lm:gru_lm", {}),
    "bert": ("bert:bert_base", {}),
    "bert classifier": ("bert:bert_sequence_classifier", {}),
    "vit": ("vit:vit_b16", {}),
    "conformer": ("conformer:conformer_s", {}),
    "ntm": ("ntm:ntm_copy", {}),
    "t5": ("t5:t5_small", {"heads": 2, "head_dim": 8}),
    "transformer": ("transformer:transformer_base", {}),
    "whisper": ("hf/whisper", WHISPER),
}


@dataclass(frozen=True)
class Client:
    """`paths` of packages that stand before those of .venv; `worker` is what worker.py or worker.mjs call it."""

    worker: str
    paths: tuple[Path, ...] = ()
    opset: int = 24
    node: bool = False


CLIENTS = {
    "onnxruntime": Client("onnxruntime"),
    "onnxruntime 1.24": Client("onnxruntime", (HERE / "onnxruntime-1.24.4",)),
    "onnxruntime 1.20, `--opset 21`": Client("onnxruntime", (HERE / "onnxruntime-1.20.1",), opset=21),
    "onnxruntime-node": Client("onnxruntime-node", node=True),
    "onnxruntime-web": Client("onnxruntime-web", node=True),
    "OpenVINO": Client("openvino", (HERE / "python",)),
    "onnx's evaluator": Client("evaluator"),
    "onnxsim": Client("onnxsim", (HERE / "python",)),
    "onnxslim": Client("onnxslim", (HERE / "python",)),
    "onnxruntime-genai": Client("genai", (RUNTIMES,)),
    "optimum": Client("optimum", (RUNTIMES,)),
    "transformers.js": Client("transformers.js", node=True),
    "`quantize_dynamic`": Client("quantize_dynamic"),
    "`MatMulNBitsQuantizer`": Client("matmul_nbits"),
}
PACKAGES = {
    "onnxruntime": "onnxruntime-gpu",
    "OpenVINO": "openvino",
    "onnx's evaluator": "onnx",
    "optimum": "optimum_onnx",
    "onnxruntime-genai": "onnxruntime_genai",
    "transformers.js": "@huggingface/transformers",
}


# --- files ------------------------------------------------------------------------------------------------------------


def loaded(name: str) -> Model:
    spec, settings = MODELS[name]
    return tiny.graph(spec, **settings) if spec in tiny.tables() else archdsl.load(spec, set=settings)


def packed(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    kinds = {torch.float32: "float32", torch.int64: "int64", torch.bool: "bool"}
    return {n: {"type": kinds[x.dtype], "dims": [*x.shape], "data": x.flatten().tolist()} for n, x in tensors.items()}


def write(name: str, folder: Path) -> None:
    """The graphs of a model at both opsets, its inputs, and what PyTorch makes of them."""
    model = loaded(name)
    names = names_of(model, "hf")
    torch.manual_seed(0)
    module = archdsl.to_torch(model).eval()
    widen(module)
    folder.mkdir()
    weights = folder / "weights.safetensors"
    save_file({k: x.contiguous() for k, x in module.state_dict().items()}, weights)
    given = tiny.inputs(model)
    with torch.no_grad():
        found = module(**given)
    outputs = dict(zip(names.outputs, found if isinstance(found, tuple) else (found,), strict=True))

    def called(inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        kinds = dict(model.inputs)
        return packed(
            {names.inputs.get(n, n): x.long() if names.is_mask(n, kinds[n]) else x for n, x in inputs.items()}
        )

    case: dict[str, Any] = {"inputs": called(given), "outputs": packed(outputs)}
    case |= {"prompt": [], "tokens": [], "source": {}, "state": {}}
    ids = [n for n, v in model.inputs if v.dtype == "token"]
    steps = ids if generates(model) else []
    for opset in {c.opset for c in CLIENTS.values()}:
        archdsl.to_onnx(model, folder / f"graph-{opset}", weights=weights, store="inline", opset=opset)
        if steps:
            archdsl.to_onnx(
                model, folder / f"steps-{opset}", weights=weights, store="onnx_data", opset=opset, decode=True
            )
    if steps:
        source = {n: torch.ones_like(x[:1]) if x.dtype == torch.bool else x[:1] for n, x in given.items()}
        tokens = source.pop(ids[-1])[:, :5]
        case["prompt"] = tokens[0].tolist()
        for _ in range(COUNT):
            with torch.no_grad():
                logits = module(**source, **{ids[-1]: tokens})
            logits = logits[0] if isinstance(logits, tuple) else logits
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
        case |= {"tokens": tokens[0, 5:].tolist(), "source": called(source), "state": states(folder)}
        if len(ids) > 1:
            with suppress(ArchError):  # optimum and transformers.js cannot run it
                options: dict[str, Any] = {"store": "inline", "decode": True, "target": "transformers.js"}
                start = case["prompt"][0]
                archdsl.to_onnx(model, folder / "pair", weights=weights, bos_token_id=start, **options)
    (folder / "case.json").write_text(json.dumps(case))


def generates(model: Model) -> bool:
    try:
        stepped(model)
    except ArchError:
        return False
    return True


def states(folder: Path) -> dict[str, list[Any]]:
    """The sizes of what a step keeps."""
    import onnx

    graph = onnx.load(folder / "steps-24" / "model.onnx").graph
    return {i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in graph.input}


# --- runs -------------------------------------------------------------------------------------------------------------


def run(client: Client, folder: Path) -> dict[str, Any]:
    """What a client makes of a model: {} where it is given nothing that it could run."""
    if client.worker == "genai" and not (folder / "steps-24" / "genai_config.json").exists():
        return {}
    configs = [folder / kind / "config.json" for kind in ("steps-24", "graph-24", "pair")]
    if client.worker in ("optimum", "transformers.js") and not any(c.exists() for c in configs):
        return {}
    program = ["node", "worker.mjs"] if client.node else [sys.executable, "worker.py"]
    paths = os.pathsep.join(str(p) for p in client.paths)
    settings = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    settings |= {"PYTHONPATH": paths, "NODE_MODULES": str(HERE / "node")}
    command = [program[0], str(WORKERS / program[1]), client.worker, str(folder), str(client.opset)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=os.environ | settings)
    case = json.loads((folder / "case.json").read_text())
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
    if not found and not done.returncode:
        found["error"] = "nothing was said"
    tokens = found.pop("tokens", None)
    if tokens is not None:
        found["same"] = tokens == case["tokens"]
    if done.returncode:
        found["error"] = reason(done.stderr) or f"ended by signal {-done.returncode}"
    return found


def reason(text: str) -> str:
    """The line of an error that says most, without paths."""
    lines = [re.sub(r"/\S+/", "", line).strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Fail)\b|.*not supported", line)]
    return (said or lines or [""])[-1][-120:]


def verdict(found: Mapping[str, Any]) -> str:
    """`ok`, or what is wrong."""
    if not found:
        return "no file beside the graph"
    if "error" in found:
        return str(found["error"])
    if not found.keys() & {"difference", "same", "matrices"}:
        return "nothing was compared"
    if not found.get("difference", 0.0) < EQUAL:
        return f"differs by {found['difference']:.1e}"
    if found.get("same") is False:
        return "other tokens"
    if found.get("matrices") == 0:
        return "no matrices"
    if found.get("left"):
        return f"{found['left']} of {found['matrices']} matrices are not found"
    return "ok"


def of(client: str) -> str:
    """The version of a client."""
    known = CLIENTS[client]
    package = PACKAGES.get(client, client.split()[0])
    if known.node:
        return str(json.loads((HERE / "node" / "node_modules" / package / "package.json").read_text())["version"])
    for path in known.paths:
        for info in path.glob(f"{package}-*.dist-info"):
            return info.name.removesuffix(".dist-info").split("-")[1]
    return version("onnxruntime-gpu" if client.startswith("`") else package)


def markdown(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The table: how many models each client is right for, and what is wrong with the others."""
    heads = ["client", "version", "models", "largest difference", "same tokens", "not right"]
    rows = [heads, ["---", "---", "--:", "--:", "--:", "---"]]
    for client, models in results.items():
        said = {name: verdict(found) for name, found in models.items()}
        wrong: dict[str, list[str]] = {}
        for name, text in said.items():
            if text != "ok":
                wrong.setdefault(text, []).append(name)
        differences = [f["difference"] for f in models.values() if f.get("difference", EQUAL) < EQUAL]
        same = [f["same"] for f in models.values() if "same" in f]
        rows.append(
            [
                client,
                of(client),
                f"{sum(v == 'ok' for v in said.values())} of {len(said)}",
                f"{max(differences):.0e}" if differences else "–",
                f"{sum(same)} of {len(same)}" if same else "–",
                "; ".join(f"{text}: {', '.join(names)}" for text, names in wrong.items()) or "–",
            ]
        )
    return "\n".join(f"| {' | '.join(c.replace('|', '/') for c in row)} |" for row in rows)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--client", action="append", metavar="NAME", help="only those whose name has this in it")
    parser.add_argument("--model", action="append", choices=MODELS, metavar="NAME", help="only these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found")
    return parser.parse_args(arguments)


def main() -> None:
    options = parsed()
    if not HERE.is_dir():
        raise SystemExit(f"{HERE} is missing: `make clients` makes it")
    wanted = [c for c in CLIENTS if not options.client or any(part in c for part in options.client)]
    results: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="archdsl-") as folder:
        folders = {name: Path(folder) / re.sub(r"\W+", "_", name) for name in options.model or MODELS}
        for name, path in folders.items():
            write(name, path)
        for client in wanted:
            results[client] = {name: run(CLIENTS[client], path) for name, path in folders.items()}
            print(markdown({client: results[client]}).splitlines()[-1], file=sys.stderr, flush=True)
    print(markdown(results))
    if options.json:
        text = json.dumps({c: {"version": of(c), "models": r} for c, r in results.items()}, indent=2)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
