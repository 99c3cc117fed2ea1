"""Names in emitted code that could be taken for others mean what they mean in the spec."""

import re
import sys

import pytest
import torch

import archdsl
from archdsl.estimates.counts import total
from archdsl.run.load import load_source


def test_a_size_is_read_off_its_tensor_before_another_takes_the_name() -> None:
    """The scores have no name in the spec and are bound as `h`, while `time` is still to be read off the input h."""
    text = """
        block pairs(q: [batch, heads, time, width]) -> [batch, heads, time, time] {
          return einsum("b h q d, b h k d -> b h q k", q, q)
        }
        block layer(h: [batch, time, width]) -> [batch, time, width] {
          q = h -> linear(width) -> split_heads(2)
          k = h -> linear(width) -> split_heads(2)
          return sdpa(q, k, k, pairs(q), position: transformer_xl) -> merge_heads
        }
        model m(width = 8)(x: [batch, time, width]) { return x -> layer }"""
    source = archdsl.torch_source(text=text)
    assert source.index("time = h.size(1)") < source.index("h = self.pairs(q)")
    assert archdsl.to_torch(text=text)(torch.randn(3, 5, 8)).shape == (3, 5, 8)


def test_a_number_of_a_shared_block_is_not_the_reader_s_own_of_that_name() -> None:
    """`mlm` has a `rank` of its own, which is that of the table it is given: the model's `rank`."""
    text = """
        model m(layers = 1, dim = 32, rank = 16) {
          vocab: 97  context: 32  width: dim
          embedding: words(rank: rank)
          blocks: layers * mlp(hidden: 8)
          head: mlm(tied: true)
        }"""
    source = archdsl.torch_source(text=text)
    assert "nn.Linear(config.dim, config.rank)" in source
    assert " rank = " not in source
    assert archdsl.to_torch(text=text, set={"rank": 4})(torch.zeros(1, 5, dtype=torch.long)).shape == (1, 5, 97)


def test_a_let_of_the_model_is_a_local_of_its_constructor() -> None:
    """By its name; methods write it out."""
    text = """model m(n = 8, k = 4)(x: [batch, time, 8]) {
      let inner = 2 * n * k // 3 + 1
      let twice = inner * 2
      let product = n * k
      return (x -> linear(inner) -> linear(twice) -> linear(twice) -> linear(product) -> linear(8)) * inner
    }"""
    source = archdsl.torch_source(text=text)
    assert "        inner = 2 * config.n * config.k // 3 + 1\n        twice = inner * 2\n" in source
    assert "nn.Linear(inner, twice)" in source
    assert "nn.Linear(twice, product)" in source
    assert "2 * self.config.n * self.config.k // 3 + 1" in source.partition("def forward")[2]
    made = load_source(source)
    config = sys.modules[made.__module__].Config(n=5)
    counted = archdsl.load(text=text, set={"n": 5})
    assert sum(p.numel() for p in made(config).parameters()) == total(counted)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("let ff = 4 * width  x = x -> mlp(hidden: ff)", ["ff = 4 * config.width", "hidden=ff"]),
        ("let ff = h // 2  for i in n { x = x -> mlp(hidden: ff) }", ["ff = config.h // 2", "hidden=ff"]),
        ("x = x -> narrow(2)", ["mid = config.width // 2", "nn.Linear(config.width, mid)"]),
        ("x = x -> narrow(2) -> narrow(2)", ["mid = config.width // 2", "nn.Linear(mid, config.width)"]),
        ("x = x -> around", ["mid = config.width // 2", "outer = 2 * mid", "nn.Linear(mid, outer)"]),
        ("for i in n { let ff = h // 2  x = x -> mlp(hidden: ff) }", ["ff = config.h // 2", "hidden=ff"]),
        ("if n > 1 { let ff = h // 2  x = x -> mlp(hidden: ff) }", ["ff = config.h // 2", "hidden=ff"]),
        # A `let` that is another number in each iteration is no name.
        ("for i in [3, 5] { let k = i * h  x = x -> mlp(hidden: k) }", ["hidden=3 * config.h", "hidden=5 * config.h"]),
        ("for i in [3, 5] { let k = i * h  let l = k + 1  x = x -> mlp(hidden: l) }", ["hidden=3 * config.h + 1"]),
        # Nor one of an inline block where the name is taken, or was given to another number.
        ("x = x -> called_h", ["nn.Linear(config.width, config.width // 4)"]),
        ("x = x -> narrow(2) -> narrow(4)", ["mid = config.width // 2", "nn.Linear(config.width, config.width // 4)"]),
        ("let mid = 3 * h  x = x -> narrow(2) -> mlp(hidden: mid)", ["mid = 3 * config.h", "hidden=mid"]),
        (
            "x = x -> narrow(2)  let mid = 3 * h  x = x -> mlp(hidden: mid)",
            ["mid = config.width // 2", "hidden=3 * config.h"],
        ),
    ],
)
def test_a_let_is_a_name_where_it_has_one_meaning(body: str, said: list[str]) -> None:
    text = f"""
inline block narrow(by: size)(x: [..., width]) {{ let mid = width // by  return x -> linear(mid) -> linear(width) }}
inline block called_h(x: [..., width]) {{ let h = width // 4  return x -> linear(h) -> linear(width) }}
inline block around(x: [..., width]) {{
  let mid = width // 2
  let outer = 2 * mid
  return x -> linear(mid) -> linear(outer) -> linear(width) -> narrow(2)
}}
model m(h = 6, n = 2, width = 8)(x: [batch, time, width]) {{ {body}  return x }}
block inner(h: size, n: size)(x: [..., width]) {{ {body}  return x }}
model other(h = 6, n = 2, width = 8)(x: [batch, time, width]) {{ return x -> inner(h: h, n: n) }}
"""
    source = archdsl.torch_source(text=text, model="m")
    for line in said:
        assert line in source
    for name in ("m", "other"):
        made = load_source(archdsl.torch_source(text=text, model=name))
        for sizes in ({}, {"h": 10, "width": 16}):
            module = made(sys.modules[made.__module__].Config(**sizes))
            state = {k: tuple(v.shape) for k, v in module.state_dict().items()}
            there = archdsl.to_torch(text=text, model=name, set=sizes).state_dict()
            assert state == {k: tuple(v.shape) for k, v in there.items()}
            assert module(torch.zeros(1, 2, sizes.get("width", 8))).shape == (1, 2, sizes.get("width", 8))


def test_what_a_loop_goes_over_is_bound_before_it() -> None:
    """Even where the spec has no name for it, and the states of the loop are called as it would be."""
    text = """
        model m(x: [batch, time, 8]) -> [batch, time, 8] {
          y = scan h: [batch, 8] = 0 for a, b in sigmoid(x -> linear(8)), x * 2 { h = 0.5 * h + a * b  emit h }
          return y
        }"""
    module, x = archdsl.to_torch(text=text), torch.randn(2, 5, 8)
    state, gates = torch.zeros(2, 8), torch.sigmoid(module.linear(x))
    for i in range(5):
        state = 0.5 * state + gates[:, i] * 2 * x[:, i]
        torch.testing.assert_close(module(x)[:, i], state)


@pytest.mark.parametrize("features", [(), ("generate",)])
@pytest.mark.parametrize("mask", ["causal", "causal & window(4)", "full"])
@pytest.mark.parametrize("position", ["d", "d * (mask & causal)"])
def test_no_statement_gives_another_name_alone(position: str, mask: str, features: tuple[str, ...]) -> None:
    """Positions that a mask has a name for, and the spec another, are read by the one that they have."""
    text = f"""
        inline block near(mask: mask)(i: int[time], j: int[source]) {{
          d = abs(unsqueeze(i, 1) - j)
          return -log(1 + {position})
        }}
        block layer(mask: mask) {{ attention: mha(heads: 2)  mask: mask  position: near }}
        model m {{
          vocab: 16  context: 16  width: 8
          blocks: 2 * layer(mask: {mask})
          head: lm
        }}"""
    allow = mask == "full"
    if allow and features:
        pytest.skip("is not decoded")
    source = archdsl.torch_source(text=text, features=features, allow_noncausal=allow)
    source = source[source.index("class M(") :]
    assert not re.findall(r"^ +(?!rows|new)\w+ = (?!None|True|False)[a-z]\w*$", source, re.M)
    if not allow:
        assert archdsl.verify(text=text, seq=9).agrees


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("linear_recurrence(sigmoid(x), 2 * x)", ["a", "b"]),
        ("selective_scan(x, softplus(x), -exp(rates), tanh(x)[..., :4], tanh(x)[..., 4:])", ["delta", "a", "b", "c"]),
    ],
)
def test_what_a_recurrence_reads_is_called_as_its_signature_says(call: str, names: list[str]) -> None:
    """Where the spec gives no name, and both ways of a `forward` with a cache read it."""
    text = f"""
        block layer(x: [batch, time, 8]) -> [batch, time, 8] {{
          param rates: [8, 4] = ones
          return {call}{" * mean(rates)" * ("rates" not in call)}
        }}
        model m(tokens: token[batch, time]) {{ return tokens -> embedding(16, 8) -> layer -> linear(16) }}"""
    source = archdsl.torch_source(text=text, features=["generate"])
    bound = re.findall(r"^ +(\w+) = ", source[source.index("class Layer") :], re.MULTILINE)
    assert {*names} <= {*bound}
    assert not any(name.startswith("h_") for name in bound)


def test_the_state_of_a_scan_leaves_its_input_the_name_that_this_has() -> None:
    text = """
        block layer(x: [batch, time, 8]) -> [batch, time, 8] {
          param rates: [8, 4] = ones
          h = x -> silu
          return selective_scan(h, softplus(h), -exp(rates), h[..., :4], h[..., 4:])
        }
        model m(tokens: token[batch, time]) { return tokens -> embedding(16, 8) -> layer -> linear(16) }"""
    source = archdsl.torch_source(text=text, features=["generate"])
    assert "state = cache.state(" in source
    assert "cache.set_state(state)" in source
    assert "h_2" not in source


@pytest.mark.parametrize("features", [(), ("generate",)])
@pytest.mark.parametrize("layers", ["2 * near + 2 * far", "2 * (near + far)", "near + 3 * far + near"])
def test_what_layers_of_several_names_read_is_called_after_them(layers: str, features: tuple[str, ...]) -> None:
    text = f"""
        block layer(mask: mask, theta: number) {{
          attention: mha(heads: 2)  mask: mask  position: rope(theta: theta)
        }}
        model m {{
          let near = layer(mask: causal & window(3), theta: 100)
          let far = layer(mask: causal & window(5), theta: 1000)
          vocab: 16  context: 16  width: 8
          blocks: {layers}
          head: lm
        }}"""
    source = archdsl.torch_source(text=text, features=features)
    source = source[source.index("class M(") : source.index("def stream") if features else None]
    bound = {*re.findall(r"^ +(\w*(?:mask|rope)\w*) = ", source, re.MULTILINE)}
    assert bound == {"near_mask", "far_mask", "near_rope", "far_rope"}
    assert {*re.findall(r"\blayer_\w+", source)} <= {"layer_mask", "layer_rope"}
    assert archdsl.verify(text=text, seq=9).agrees
    # One name alone, or one reader for both, is as it was.
    one = archdsl.torch_source(text=text.replace("window(5)", "window(3)").replace("1000", "100"), features=features)
    assert {*re.findall(r"(\w+_)?(?:mask|rope) = ", one[one.index("class M(") :])} <= {"", "attention_"}


@pytest.mark.parametrize(
    ("name", "read", "lines"),
    [
        ("h", "h", ["return self.down(F.gelu(self.up(x)))"]),
        ("hidden", "hidden", ["hidden = F.gelu(self.up(x))", "return self.down(hidden)"]),
        ("h", "h * h", ["h = F.gelu(self.up(x))", "return self.down(h * h)"]),
    ],
)
def test_what_a_spec_calls_h_has_a_statement_where_several_read_it(name: str, read: str, lines: list[str]) -> None:
    """Whatever has no name is called `h`, too; any other name of the spec is kept."""
    text = f"""
        block wide(x: [batch, time, width]) -> [batch, time, width] {{
          {name} = x -> linear(2 * width) as up -> gelu
          return ({read}) -> linear(width) as down
        }}
        model m(width = 8)(x: [batch, time, width]) {{ return x -> wide }}"""
    source = archdsl.torch_source(text=text)
    assert "Tensor:\n" + "".join(f"        {line}\n" for line in lines) in source
