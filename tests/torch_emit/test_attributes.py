"""Names of attributes: a layer may be called like whatever else its class has, here or in the libraries."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.backends.torch.features import Name
from archdsl.backends.torch.module import FileWriter
from archdsl.backends.torch.validate import InvalidError, validate
from archdsl.ir.paths import RESERVED, safe_name
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


def test_two_layers_of_one_private_name() -> None:
    """The second gets out of the way of the libraries, too."""
    text = "model m(x: [batch, 8]) { _apply = x -> linear(8)  _apply = _apply -> linear(8)  return _apply }"
    steps = {name.split(".")[0] for name in load_source(emit(archdsl.load(text=text)))().state_dict()}
    assert steps == {"_apply_", "_apply__2_"}
    assert {safe_name(step) for step in steps} == steps


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


def part(n: int, d: int) -> Fraction:
    return Fraction(n, d) % 1


WIDE = 3_100_000
INEXACT = {
    "return x * ((width / 17) % 1)": part(WIDE, 17),
    "return x * (((width - 3_000_000) / 11) % 1)": part(WIDE - 3_000_000, 11),
    "return x -> once(width)": part(WIDE, 17),
    "return x -> once(width) -> once(width + 17) as b": part(WIDE, 17) ** 2,
    "return x -> twice(width) -> twice(2 * width) as b": part(WIDE, 17) ** 2
    * part(WIDE, 13)
    * 3
    * part(2 * WIDE, 17) ** 2
    * part(2 * WIDE, 13)
    * 3,
    "let t = width + 1\n return x -> deep(t) -> deep(t + 1) as b": part(WIDE + 2, 17) * part(WIDE + 3, 17),
}
"""What a model returns for ones: numbers of which Python's own arithmetic has fewer than 12 digits right."""
INEXACT_BLOCKS = """
block once(n)(x: [batch, 4]) { return x * ((n / 17) % 1) }
block twice(n, number = 3)(x: [batch, 4]) { return x * ((n / 17) % 1) * ((n / 17) % 1) * ((n / 13) % 1) * number }
block deep(k)(x: [batch, 4]) { let n = k + 1
  return x -> once(n) }
"""


@pytest.mark.parametrize("body", INEXACT)
def test_numbers_that_python_computes_inexactly_are_written_out(body: str) -> None:
    """Then the Config is held to the number that they were made of."""
    spec = f"{INEXACT_BLOCKS}model m(width = {WIDE})(x: [batch, 4]) {{ {body} }}"
    source = archdsl.torch_source(text=spec)
    made, config = load_source(source, "M"), load_source(source, "Config")
    x = torch.ones(1, 4, dtype=torch.float64)
    torch.testing.assert_close(made()(x), x * float(INEXACT[body]), rtol=1e-14, atol=0)
    with pytest.raises(AssertionError, match=r"`[a-z]+` is written out as a number: compile again with --set"):
        made(config(width=WIDE + 1))


RUNNING = {
    "let u = time / 3": "u",
    "let u = time * width / 3": "u",
    "let u = time * width / 3 + 2": "2 * u",
    "let t = time * width\n let u = t / 3 + 2": "t * u",
    "let t = time * width\n let u = (t + 3) / 2\n let v = u * 2": "v * u",
    "let t = (time + 1) / width\n let u = t / 2\n let v = (u + 1) / 2": "v - u",
}
"""Numbers that a block computes of a run-time size, which need not be whole; the factor that is made of them."""


@pytest.mark.parametrize("width", [3, 4])
@pytest.mark.parametrize("lets", RUNNING)
def test_fractions_of_run_time_sizes(lets: str, width: int) -> None:
    """They are not rounded where they meet a tensor, for whatever Config."""
    text = f"model m(width = 3)(x: [batch, time, 4]) {{\n {lets}\n return x * ({RUNNING[lets]}) }}"
    source = archdsl.torch_source(text=text)
    made = load_source(source, "M")(load_source(source, "Config")(width=width))
    for time in (2, 5, 6):
        names: dict[str, Any] = {"time": Fraction(time), "width": width}
        exec(lets.replace("let ", "").replace("\n ", "\n"), {}, names)
        x = torch.randn(2, time, 4, dtype=torch.float64)
        expected = x * float(eval(RUNNING[lets], {}, names))
        torch.testing.assert_close(made(x), expected)
        torch.testing.assert_close(archdsl.to_torch(text=text, set={"width": width})(x), expected)


def test_a_size_that_is_made_of_fractions_is_rounded_once() -> None:
    lets = "let t = (time + 3) / 2\n let u = t * 2"
    made = archdsl.to_torch(text=f"model m(x: [batch, time, 4]) {{\n {lets}\n return x + max(indices(u)) }}")
    for time in (2, 3):
        x = torch.randn(2, time, 4)
        torch.testing.assert_close(made(x), x + time + 2)


TRAINING = {
    "if training { x = x } else { x = x * 2 }": (lambda x: x, lambda x: x * 2),
    "if training { x = x * 3 } else { x = x }": (lambda x: x * 3, lambda x: x),
    "if training { x = relu(x) } else {\n x = exp(x * 2) - x - 3\n x = relu(x) }": (
        torch.relu,
        lambda x: torch.relu(torch.exp(x * 2) - x - 3),
    ),
    "if training {\n x = exp(x * 2) - x - 3\n x = relu(x) } else { x = relu(x) }": (
        lambda x: torch.relu(torch.exp(x * 2) - x - 3),
        torch.relu,
    ),
    "if training { x = relu(x) } else { x = relu(x) }": (torch.relu, torch.relu),
}
"""What a model does while it is trained, and what it does else."""


@pytest.mark.parametrize("body", TRAINING)
def test_arms_of_training(body: str) -> None:
    """One of which may do nothing, or more than what both do."""
    made = archdsl.to_torch(text=f"model m(x: float[batch, time, 4]) {{ {body}\n return x }}")
    x = torch.randn(2, 3, 4)
    for training, expected in zip((True, False), TRAINING[body], strict=True):
        torch.testing.assert_close(made.train(training)(x), expected(x))


def test_signs_of_numbers_of_several_modules() -> None:
    blocks = "block b(n)(x: [batch, 4]) { return x * (sign(n - 5) + 2) }"
    made = archdsl.to_torch(text=f"{blocks}\nmodel m(w = 7)(x: [batch, 4]) {{ return x -> b(w) -> b(w - 4) -> b(w) }}")
    x = torch.randn(2, 4)
    torch.testing.assert_close(made(x), x * 3 * 1 * 3)


@pytest.mark.parametrize(("one", "other"), [("layer", "layer_"), ("layer", "config"), ("f", "_")])
def test_numbers_called_like_the_variable_of_a_list(one: str, other: str) -> None:
    """The variable gets out of the way of what the class is given."""
    text = f"""
block c(p)(x: [batch, 4]) {{ return x * p }}
block d(p)(x: [batch, 4]) {{ return x + p }}
block b({one}, {other}, n)(x: [batch, 4]) {{
  for f in n * (c({one}) + d({other})) {{ x = x -> f }}
  return x
}}
model m(n = 2)(x: [batch, 4]) {{ return x -> b(2, 3, n) -> b(3, 5, n) as more }}"""
    x = torch.randn(2, 4)
    torch.testing.assert_close(archdsl.to_torch(text=text)(x), (((x * 2 + 3) * 2 + 3) * 3 + 5) * 3 + 5)


def test_a_number_that_all_uses_give_alike_is_written_where_it_is_read() -> None:
    """One that may be left out, as a scale: where uses differ, each gives its own. Sizes stay arguments."""
    text = """
block f(hidden: size = none, scale: number = none)(x: [batch, time, width]) -> [...] {
  x = if hidden == none then x else x -> linear(hidden) -> linear(width)
  return if scale == none then x else x * scale
}
model m(x: [batch, time, 8]) { return x -> f(hidden: 5, scale: 0.5) as a -> f(hidden: 5, scale: SCALE) as b }"""
    alike, apart = (emit(archdsl.load(text=text.replace("SCALE", s))) for s in ("0.5", "2"))
    assert "self.a = F_(hidden=5, width=8)" in alike
    assert "* 0.5" in alike
    assert "self.b = F_(hidden=5, scale=2, width=8)" in apart
