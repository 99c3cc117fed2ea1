"""The emitted PyTorch of the zoo: clean, and that of many models kept in the repository."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from difflib import unified_diff
from functools import cache
from pathlib import Path

import pytest
from zoo.sizes import sample

import archdsl

GOLDENS = Path(__file__).parent / "goldens" / "torch"
ZOO = [name.partition(":")[2] for name in sample()]

# What is kept: one model of each way of writing code. All others are compiled, checked below and run by tests/zoo.
KEPT = (
    *("gpt2", "llama3", "mistral_7b", "mixtral_8x7b", "deepseek_v3"),  # decoders: dense, windowed, of experts, latent
    *("gptj_6b", "bloom_176b", "gopher_280b", "glm_130b_prefix"),  # positions: turned, biased, relative
    *("moe_256", "switch_base_8"),  # gates with noise, experts of a capacity
    *("bert_base", "albert_base", "xlnet_large", "post_deepnorm"),  # encoders: plain, shared, of two streams, deep
    *("transformer_base", "t5_base"),  # encoders with decoders
    *("linformer", "performer", "reformer_enwik8", "bigbird_base", "sparse_transformer_cifar10"),  # sparse, linear
    *("mamba_130m", "graph_mamba", "lstm_lm_small", "bilstm_tagger", "ctc_3l_250h"),  # states and cells
    *("cho_2014", "seq2seq", "ntm_copy", "show_attend_tell"),  # scans
    *(
        "wavenet",
        "bytenet",
        "pixel_rnn_cifar",
        "convmixer_1536_20",
        "mixer_b16",
        "vit_b16",
        "conformer_l",
    ),  # sound, images
    "self_attention",
)

# ruff's default rules, but for the length of lines, which names of the user's may exceed.
RULES = ("E4", "E7", "E9", "F")


@cache
def emitted(name: str) -> str:
    return archdsl.torch_source(name)


SECTIONS = {
    "generate": ("llama3", "mistral_7b", "deepseek_v3", "mamba_130m", "lstm_lm_small", "t5_base"),
    "parallel": ("llama3", "deepseek_v3"),
}
"""Sections, and the models of which it is kept what they add to the plain file."""


@pytest.mark.parametrize(("section", "name"), [(s, n) for s, names in SECTIONS.items() for n in names])
def test_what_a_section_adds(section: str, name: str, golden: Callable[[Path, str], None]) -> None:
    plain, made = (t.splitlines() for t in (emitted(name), archdsl.torch_source(name, features=[section])))
    added = unified_diff(plain, made, "plain", section, lineterm="", n=0)
    golden(GOLDENS / section / f"{name}.diff", "\n".join(added) + "\n")


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDENS.glob("*.py")} == set(KEPT)


def clean(source: str, folder: Path) -> None:
    """It needs PyTorch alone, fits into lines, has no module that does nothing, asks in no `forward` how the model is
    configured, and ruff has nothing to say."""
    assert [i for i, line in enumerate(source.splitlines(), 1) if len(line) > 120] == []
    assert not re.search(r"Identity|Dropout\(0(\.0)?\)", source)
    for node in ast.walk(ast.parse(source)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names | {"torch"}
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            for asked in ast.walk(node):
                if isinstance(asked, ast.If | ast.IfExp):
                    assert "config" not in ast.unparse(asked.test), f"line {asked.lineno}"
    (folder / "emitted.py").write_text(source, encoding="utf-8")
    for arguments in (["check", "--select", ",".join(RULES)], ["format", "--check", "--config", "line-length = 120"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--isolated", "--no-cache", "."]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [*KEPT, *(pytest.param(n, marks=pytest.mark.slow) for n in ZOO if n not in KEPT)])
def test_code(name: str, golden: Callable[[Path, str], None], tmp_path: Path) -> None:
    source = emitted(name)
    if name in KEPT:
        golden(GOLDENS / f"{name}.py", source)
    clean(source, tmp_path)
