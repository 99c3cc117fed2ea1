"""Names of attributes: a layer may be called like whatever else its class has, here or in the libraries."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.backends.torch.features import Name
from archdsl.backends.torch.module import FileWriter
from archdsl.backends.torch.validate import InvalidError, validate
from archdsl.ir.paths import RESERVED
from archdsl.ir.weights import weights
from archdsl.run.load import load_source

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "torch"
PRIVATE = ("step", "logits", "prepare", "compute_logits")
"""What emitted classes call themselves: names that layers may keep."""
HOSTILE = ("base_model", "dtype", "num_parameters", "generate", "stream", "half", "type", "_apply", "config")
SPEC = """
block layer(step: number)(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> layernorm as step -> mha(heads: 4, mask: causal) as prepare -> linear(width) as scaling
  x += (x -> layernorm as gradient_checkpointing -> linear(width) as layer_idx -> linear(width) as forward) * step
}
model m(layers = 2, vocab = 97, width = 16)(tokens: token[batch, time]) -> [batch, time, vocab] {
  x = tokens -> embedding(vocab, width) as device
  LAYERS
  for i in layers { x = x -> layer(step: 0.1) as blocks }
  x = x -> layernorm as norm -> layernorm as norm_2
  assert causal(x)
  return x -> linear(vocab, bias: false) as logits
}
""".replace("LAYERS", "\n  ".join(f"x = x -> linear(width) as {name}" for name in HOSTILE))


def test_methods_of_emitted_classes_are_reserved() -> None:
    """All but those that get out of the way of a layer."""
    found = set()
    for text in (
        emit(archdsl.load("gpt2"), Extras(frozenset({"generate"}))),
        emit(archdsl.load("deepseek_v3"), Extras(frozenset({"loss"}))),
        *(path.read_text() for path in GOLDENS.glob("*.py")),
    ):
        classes = [s for s in ast.parse(text).body if isinstance(s, ast.ClassDef)]
        modules = [c for c in classes if [ast.unparse(b) for b in c.bases] == ["nn.Module"]]
        found |= {f.name for c in modules for f in c.body if isinstance(f, ast.FunctionDef)}
    assert {"forward", "generate", "stream", "init_weights", "update_bias", "prepare"} <= found
    assert found - RESERVED - {*PRIVATE, "advance", "between", "__init__"} == set()


@pytest.mark.parametrize("sections", [[], ["generate", "loss"], ["generate", "parallel"], ["loss", "float8"]])
def test_layers_called_like_methods(sections: list[Name]) -> None:
    model = archdsl.load(text=SPEC)
    made: Any = load_source(emit(model, Extras(frozenset(sections))))().eval()
    assert [*made.state_dict()] == [w.path for w in weights(model)]
    tokens = torch.randint(97, (2, 5))
    logits = made(tokens)
    if "loss" in sections:
        assert made(tokens, targets=tokens).dim() == 0
    if "generate" in sections:
        assert torch.equal(made.generate(tokens, 1)[:, 0], logits[:, -1].argmax(-1))
    assert sum(p.numel() for p in made.half().parameters()) == sum(w.size for w in weights(model))


def test_the_validator_finds_what_hides_a_method() -> None:
    file = FileWriter(archdsl.load(text=SPEC))
    text = file.write()
    for name, message in (("blocks", "blocks is a method and an attribute"), ("forward", "two methods of one name")):
        with pytest.raises(InvalidError, match=message):
            validate(f"{text}\n    def {name}(self) -> None:\n        pass\n", file.classes)


def test_modules_of_other_numbers_have_names_of_their_own() -> None:
    text = """model m(x: [batch, time, 8]) -> [batch, time, 8] {
      return x -> dropout(0.1) -> linear(8) -> dropout(0.2) -> dropout(0.1) -> dropout(0.3)
    }"""
    made: Any = archdsl.to_torch(text=text)
    assert {name: m.p for name, m in made.named_modules() if isinstance(m, torch.nn.Dropout)} == {
        "dropout": 0.1,
        "dropout_2": 0.2,
        "dropout_3": 0.3,
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("_parameters", "_modules"),
        ("_buffers", "_forward_hooks"),
        ("_call_impl", "_version"),
        ("_modules", "num_modules"),
        ("training", "num_training"),
        ("forward", "num_forward"),
        ("num_forward", "num_num_forward"),
    ],
)
def test_numbers_called_like_what_modules_have(one: str, other: str) -> None:
    """Each is kept under a name of its own, though it is read several times."""
    text = f"""
block f({one}, {other})(x: [batch, time, 8]) -> [batch, time, 8] {{ return x * {one} + {other} + ({one} - {one}) * x }}
model m({one} = 3)(x: float[batch, time, 8]) -> [batch, time, 8] {{
  return (x -> f({one}, 5) as a) + (x -> f(2, 4) as b) * {one}
}}"""
    made: Any = archdsl.to_torch(text=text)
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(made(x), (x * 3 + 5) + (x * 2 + 4) * 3)
    assert [*made.state_dict()] == []
    assert {name for name, _ in made.named_modules()} == {"", "a", "b"}
