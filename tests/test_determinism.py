"""The same spec gives the same bytes: in every process, whatever order its hashes give, and on every machine."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from zoo.sizes import SPECS, sample, tables

import archdsl
from archdsl import api

# Of the first model of every third family, tiny, the texts; of every sixth the graphs with initialized weights, decode
# steps and all that goes beside.
SCRIPT = """
import hashlib, json, pathlib, sys
import archdsl
from archdsl.diagnostics import ArchError
from archdsl.ir.text import print_model

def told(name, *contents):
    print(name, *(hashlib.sha256(c if isinstance(c, bytes) else c.encode()).hexdigest() for c in contents), flush=True)

for i, (name, settings) in enumerate(json.load(open(sys.argv[1])).items()):
    file, _, model = name.partition(":")
    spec = dict(spec=pathlib.Path(sys.argv[2]) / (file + ".arch"), model=model, set=settings, allow_noncausal=True)
    model_text, report = print_model(archdsl.load(**spec)), archdsl.estimate(**spec).model_dump_json()
    told(name, model_text, report, archdsl.torch_source(**spec))
    if i % 2:
        continue
    folder = pathlib.Path(model)
    try:
        archdsl.to_onnx(output=folder, seed=3, decode=True, **spec)
    except ArchError as e:
        told(name, str(e))
        archdsl.to_onnx(output=folder, seed=3, **spec)
    for path in sorted(folder.rglob("*")):
        told(f"{name} {path}", path.read_bytes())
"""


def run(script: str, *arguments: str, seed: str, cwd: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_the_zoo_is_the_same_in_every_process(tmp_path: Path) -> None:
    wanted = tmp_path / "wanted.json"
    wanted.write_text(json.dumps({name: tables()[name] for name in sample()[::3]}))
    told = []
    for seed in ("0", "4242"):
        folder = tmp_path / seed
        folder.mkdir()
        told.append(run(SCRIPT, str(wanted), str(SPECS), seed=seed, cwd=folder))
    assert told[0] == told[1]
    assert told[0].count("\n") >= len(sample()) // 3 + 2 * (len(sample()) // 6)


@pytest.mark.slow
def test_graphs_and_weights_are_the_same_in_every_process(tmp_path: Path) -> None:
    script = (
        "import sys, archdsl\n"
        "archdsl.to_onnx('gpt2', 'a.onnx', set={'layers': 2, 'width': 48}, seed=3)\n"
        "archdsl.to_onnx('gpt2', 'd.onnx', set={'layers': 2, 'width': 48}, seed=3, decode=True, store='onnx_data')\n"
        "archdsl.to_onnx(sys.argv[1], 'm.onnx', seed=3, target='ort-cpu', quantize='int8')\n"
    )
    spec = tmp_path / "moe.arch"
    spec.write_text(MOE)
    found = []
    for seed in ("0", "7"):
        folder = tmp_path / seed
        folder.mkdir()
        run(script, str(spec), seed=seed, cwd=folder)
        found.append({p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())})
    assert found[0] == found[1]
    assert len(found[0]) >= 6


MOE = """\
block layer {
  attention: gqa(heads: 4, kv_heads: 2)
  mask:      causal
  position:  rope
  ffn:       moe(experts: 4, top_k: 2, expert: swiglu(hidden: 32))
  norm:      rmsnorm
}

model tiny_moe {
  vocab:   64
  context: 32
  width:   32
  blocks:  2 * layer
  head:    lm
}
"""

# The sum of each drawn file, by the scheme of its spec: drawing goes through no library whose rounding differs.
DRAWN = {
    "zeros": "b4e8a1d8d3e105da09328469382c10711143556af4436d69d3782470fe817c79",
    "ones": "cb6e8ac6216b58460459d066eec758a48ee1efd78db3db970b9f08a51bf6912f",
    "constant(0.5)": "96aea7a5912de25136aa39d377e54ddc4194f1d3e23565b1289f38f89a51c8c1",
    "normal(0.02)": "cd296a377f57e90df894ee2fa0775ac1ae04ae93ed7b5ec82c96503489086bb5",
    "truncated_normal(0.02)": "1ae6b728d3e2394a9b716b560e83a274874826fd69d114c5c45e1366db230437",
    "uniform(0.1)": "86e068535abd75959c924b4831e223611ac7f185dcc00fc8aff74b6529c9b2b0",
    "xavier": "a1bef773bfca9d8fdcff09a31d8a19f773a1063759a9df80e49b83f5b0f17bd9",
    "xavier_normal": "4f79b26f69849022f1e256128bb5aa25b7a7287d6bb8885c537f3ca76e8289f0",
    "kaiming": "e62f305a2b9a7810dba9ff9f6cce185b92970eabc22e7a038587ad1ffe95a331",
    "kaiming_normal": "200e5965bff6098e6f76f3bf0d77d7f462d51bc8631da6d6cfc49bd0f74324d5",
    "small": "2217449bed6e6a526fd20aa67f912928f58aa9def1663d0a983d6a042246282e",
    "depth_scaled(0.02, 2)": "c07df1f3af99bac81cbbc9f3a915fa0ec3b64320bb57d2e4b15fd2f8c771c79d",
    "deepnorm(2)": "ce46ef0e41074368d6178dd6887def3a15ca9ed14525cd0b202559ada22e187d",
}


def drawn(scheme: str, folder: Path) -> str:
    text = (
        "model m {\n  vocab: 61\n  context: 8\n  width: 24\n  blocks: 2 * layer\n  head: lm\n"
        f"  init: {scheme}\n}}\n"
        "block layer {\n  attention: mha(heads: 2)\n  mask: causal\n  ffn: mlp(hidden: 40)\n}\n"
    )
    path = folder / "w.safetensors"
    api.init_weights(archdsl.load(text=text), path, seed=5, dtype="float32")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("scheme", DRAWN)
def test_weights_are_the_same_on_every_machine(scheme: str, tmp_path: Path) -> None:
    assert drawn(scheme, tmp_path) == DRAWN[scheme]
