"""Names of classes: a block may be called like whatever else stands in the file."""

import ast
from collections import Counter

import pytest
import torch

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.backends.torch.features import Name
from archdsl.backends.torch.helpers import helper_names
from archdsl.backends.torch.text import first_sentence

HOSTILE = sorted(name for name in helper_names() if name[0].isupper())
BLOCKS = "\n".join(
    f"block {name}(x: [batch, time, width]) -> [batch, time, width] {{ x += x -> mha(heads: 2, mask: MASK) }}"
    for name in HOSTILE
).replace("MASK", "causal & window(4)")
SPEC = f"""
{BLOCKS}
block layer(x: [batch, time, width]) -> [batch, time, width] {{
  x += x -> layernorm -> moe(experts: 4, top_k: 2, expert: swiglu(hidden: 8)) as ffn
  {" ".join(f"x += x -> {name}" for name in HOSTILE)}
}}
model NAME(layers = 2) {{
  vocab:   64
  context: 16
  width:   32
  blocks:  layers * layer
  head:    lm
}}
"""


SECTIONS: list[list[Name]] = [["parallel", "generate"], ["loss", "float8"], ["generate", "cpu"], ["varlen"]]
OWN = zip(("AllToAll", "Float8Linear", "Cache", "Spans"), SECTIONS, strict=True)


@pytest.mark.parametrize(("name", "features"), [*(("hostile", sections) for sections in SECTIONS), *OWN])
def test_blocks_called_like_helpers(name: str, features: list[Name]) -> None:
    blocks = SPEC if name == "hostile" else SPEC.replace(name, "other")
    source = emit(archdsl.load(text=blocks.replace("NAME", name)), Extras(frozenset(features)))
    defined = Counter(s.name for s in ast.parse(source).body if isinstance(s, ast.ClassDef | ast.FunctionDef))
    assert not [name for name, count in defined.items() if count > 1]


APART = {
    # How one block is used in several ways, and what its classes are called.
    "by what the spec calls them": (
        "x = (x -> map(act: tanh) as decay) + (x -> map(act: sigmoid) as gate)",
        ["DecayMap", "GateMap"],
    ),
    "one has several names": (
        "x = (x -> map(act: tanh) as decay) + (x -> map(act: gelu) as p) + (x -> map(act: gelu) as q)",
        ["DecayMap", "Map"],
    ),
    "by who alone has them": ("x = x -> map(act: tanh) -> reader", ["Map", "ReaderMap"]),
    "by number": ("x = x -> map(act: tanh) -> map(act: gelu)", ["Map", "Map2"]),
}


@pytest.mark.parametrize("how", APART)
def test_classes_of_one_block_are_told_apart(how: str) -> None:
    body, wanted = APART[how]
    text = f"""
    block map(act: block)(x: [batch, time, width]) -> [batch, time, width] {{ return x -> linear(width) -> act }}
    block reader(x: [batch, time, width]) -> [batch, time, width] {{ return x -> map(act: gelu) }}
    model m(width = 8)(x: [batch, time, width]) -> [batch, time, width] {{
      {body}
      return x
    }}"""
    source = archdsl.torch_source(text=text)
    assert [s.name for s in ast.parse(source).body if isinstance(s, ast.ClassDef) and "Map" in s.name] == wanted


HANDED = """
block inner(hidden: size)(x: [batch, n, d]) -> [batch, n, d] {
  y = x -> linear(hidden) -> gelu -> linear(d)
  return x + y * hidden
}
block outer(f: block)(x: [batch, n, d]) -> [batch, n, d] { return x -> f -> gelu -> f }
model m(width = 8, hidden = 5)(x: [batch, time, width], z: [batch, other, width]) {
  let f = shared(inner(hidden: hidden))
  return x -> outer(f), z -> outer(f)
}
"""


def test_a_shared_block_that_is_handed_on_meets_other_lengths() -> None:
    """The numbers of its constructor are known to each block that it stands for."""
    module = archdsl.to_torch(text=HANDED)
    x = torch.randn(2, 3, 8)
    first, second = module(x, x[:, :2])
    torch.testing.assert_close(second, first[:, :2])
    assert archdsl.estimate(text=HANDED).params.total == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("doc", "first"),
    [
        ("One sentence. Another.", "One sentence."),
        ("Without an end", "Without an end"),
        ("By Su et al. It turns pairs. Another.", "By Su et al. It turns pairs."),
        ("See Fig. A vs. B cf. `C` of it", "See Fig. A vs. B cf. `C` of it"),
        ("Is it `a` or e.g. B? Yes.", "Is it `a` or e.g. B?"),
    ],
)
def test_abbreviations_end_no_sentence_of_a_doc(doc: str, first: str) -> None:
    assert first_sentence(doc) == first
