"""The recipes of CONTRIBUTING.md: what each shows is added here, and works everywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from decode_tools import differences, torch_differences
from docs.reference_pages import primitives_page
from onnx_tools import distance, onnx_bytes
from onnx_tools import run as run_onnx

import archdsl
from archdsl.api import to_torch
from archdsl.dependence.causality import prove
from archdsl.estimates import mask_density
from archdsl.ir.dims import num
from archdsl.ir.masks import RULES, Mask, PositionRule
from archdsl.ops import index, registry
from archdsl.ops.elementwise import REAL, Function
from archdsl.report.reference import explain
from archdsl.run.load import load_source

ROOT = Path(__file__).resolve().parents[1]


def shown(recipe: str) -> list[str]:
    """The blocks of code in a section of CONTRIBUTING.md, without indentation."""
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition(f"\n## {recipe}\n")
    assert rest, f"CONTRIBUTING.md has no section {recipe!r}"
    blocks = re.finditer(r"^ *(`{3,})\w+\n(.*?)^ *\1$", rest.partition("\n## Add ")[0], re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block[2]) for block in blocks]


MASKED = """model m(vocab = 30, width = 8)(tokens: token[batch, time]) {
  x = tokens -> embedding(vocab, width)
  x += x -> mha(heads: 2, mask: causal & band(1, 4))
  return x -> linear(vocab) as head
}"""


@pytest.mark.slow
def test_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = shown("Add a mask")
    for name, rule in eval(f"{{{row}}}", {"PositionRule": PositionRule}).items():
        monkeypatch.setitem(RULES, name, rule)
    time = 11
    seen = torch.tensor([[1 <= abs(q - k) < 4 for k in range(time)] for q in range(time)])
    one = archdsl.load(
        text=f"model m(x: [batch, time, 4], v: [batch, time, {time}]) {{ return sdpa(x, x, v, mask: band(1, 4)) }}"
    )
    module, inputs = to_torch(one), {"x": torch.zeros(1, time, 4), "v": torch.eye(time)[None]}
    assert torch.equal(module(**inputs)[0] > 0, seen)
    assert distance(run_onnx(onnx_bytes(one, module), inputs)[0], module(**inputs)) < 1e-6
    assert mask_density.count(Mask("band", (num(1), num(4))), time, time) == int(seen.sum())

    model = archdsl.load(text=MASKED)
    assert prove(model) == []
    assert [k.window for k in archdsl.memory(model, seq=16, dtype="float32").kept] == [4, 4]
    assert max((differences(model) | torch_differences(model)).values()) < 1e-5


@pytest.mark.slow
def test_a_primitive(monkeypatch: pytest.MonkeyPatch) -> None:
    row, flip = shown("Add a primitive")
    monkeypatch.setitem(registry.primitives(), "snake", eval(row, {"Function": Function, "REAL": REAL}))
    names = dict(vars(index))
    exec(flip, names)
    monkeypatch.setitem(registry.primitives(), "flip", names["Flip"]())
    model = archdsl.load(text="model m(x: [2, 5]) { return x -> snake -> flip }")
    module, x = to_torch(model), torch.randn(2, 5)
    torch.testing.assert_close(module(x), (x + torch.sin(x) ** 2).flip(1))
    assert distance(run_onnx(onnx_bytes(model, module), {"x": x})[0], module(x)) < 1e-6
    assert "`x + sin(x) ** 2` (Ziyin et al., 2020)." in explain("snake")
    assert "## snake" in primitives_page()


# --- recipes that add files, in a copy of the repository --------------------------------------------------------------


class Checkout:
    """A copy of what the package is made of, and commands that are run there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("archdsl", "grammars", "specs/std", "specs/hf"):
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))

    def add(self, path: str, text: str) -> None:
        assert not (self.root / path).exists(), path
        (self.root / path).write_text(text, encoding="utf-8")

    def insert(self, path: str, after: str, text: str) -> None:
        """Put a text behind the only place where another stands."""
        file = self.root / path
        before, found, rest = file.read_text(encoding="utf-8").partition(after)
        assert found, f"{path} has no {after!r}"
        file.write_text(f"{before}{found}{text}{rest}", encoding="utf-8")

    def run(self, folder: Path, *commands: str) -> list[str]:
        """What `archdsl` prints for each of the commands, all in one process."""
        script = f"""
import json, shlex, archdsl
from typer.testing import CliRunner
from archdsl.cli import app
assert archdsl.__file__.startswith({str(self.root)!r})
print(json.dumps([CliRunner().invoke(app, shlex.split(c), prog_name="archdsl").output for c in {commands!r}]))
"""
        environment = {**os.environ, "PYTHONPATH": str(self.root), "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        printed: list[str] = json.loads(done.stdout)
        return printed


SPEC = """block layer { attention: mha(heads: 2)  mask: causal  ffn: adapter(hidden: 8) }
model m(layers = 1) { vocab: 1024  context: 64  width: 64  blocks: layers * layer  head: lm }
"""
CONFIG = {
    "model_type": "squared",
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.mark.slow
def test_what_has_files_of_its_own(tmp_path: Path) -> None:
    """A block of the library, a section, a type of checkpoints, a report's field and a lint."""
    checkout = Checkout(tmp_path / "checkout")

    (block,) = shown("Add a block to the library")
    checkout.insert("specs/std/ffn.arch", "\n\n", f"{block}\n")

    (section,) = shown("Add a section of the emitted file")
    checkout.add("archdsl/backends/torch/features/size.py", section)
    table = "archdsl/backends/torch/features/__init__.py"
    checkout.insert(table, "Name = Literal[", '"size", ')
    checkout.insert(table, "SECTIONS: dict[Name, str] = {\n", '    "size": "size:Size",\n')

    (mapping,) = shown("Add a type of Hugging Face checkpoints")
    checkout.add("specs/hf/squared.checkpoint", mapping)
    arcee = (ROOT / "specs" / "hf" / "arcee.arch").read_text(encoding="utf-8")
    checkout.add("specs/hf/squared.arch", arcee.replace("model arcee", "model squared"))

    field, value = shown("Add a field to a report")
    counts = "archdsl/estimates/params.py"
    checkout.insert(counts, "class Params(BaseModel):", "")
    checkout.insert(counts, "    total: int\n    non_embedding: int\n", textwrap.indent(field, "    "))
    checkout.insert(counts, "params=Params(\n", textwrap.indent(value, "            "))

    page, lint = shown("Add a lint")
    checkout.add("archdsl/diagnostics/pages/W0499.md", page)
    checkout.insert("archdsl/frontend/lint.py", "\n\n\n", f"{lint}\n\n")
    checkout.insert("archdsl/frontend/lint.py", "        *_widened(model),\n", "        *_once(model),\n")

    (tmp_path / "m.arch").write_text(SPEC)
    wrong, right = re.findall(r"```arch\n(.*?)```", page, re.DOTALL)
    (tmp_path / "wrong.arch").write_text(wrong)
    (tmp_path / "right.arch").write_text(right)
    (tmp_path / "squared.hf").mkdir()
    (tmp_path / "squared.hf" / "config.json").write_text(json.dumps(CONFIG))
    (
        of_block, source, estimated, described, of_lint, warned, silent, imported, *_, again,
    ) = checkout.run(
        tmp_path,
        "explain adapter",
        "compile m.arch --to torch --with size",
        "estimate m.arch --json",
        "schema estimate",
        "explain W0499",
        "check wrong.arch",
        "check right.arch",
        "import squared.hf --no-weights -o squared.arch",
        "init squared.arch -o squared.safetensors",
        "weights squared.arch --to hf --weights squared.safetensors --map squared -o back.hf",
        "import back.hf -o again.arch",
    )  # fmt: skip
    assert "Houlsby et al., 2019" in of_block
    made = load_source(source)()
    assert made.size() == sum(p.numel() for p in made.parameters())
    assert json.loads(estimated)["params"]["largest"] == 1024 * 64
    assert "Numbers in its largest weight." in described
    assert of_lint == page
    assert "warning[W0499]" in warned
    assert "warning" not in silent
    assert "squared.arch" in imported
    assert "again.safetensors" in again
