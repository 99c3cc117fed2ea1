"""Loops of every shape: the emitted module has the weights that the IR says, and each turn uses its own."""

import ast
import re
import sys
from typing import Any

import pytest
import torch
from torch_versions import since

import archdsl
from archdsl import api
from archdsl.backends.torch import emit
from archdsl.diagnostics import ArchError
from archdsl.ir.weights import weights
from archdsl.run.load import load_source
from archdsl.syntax.limits import MAX_STEPS

HEAD = """
block a(x: [batch, time, width]) -> [batch, time, width] { return x + (x -> linear(width)) }
block tower(depth)(x: [batch, time, width]) -> [batch, time, width] {
  for i in depth { x = x -> a as f }
  return x
}
"""
INPUT = "(x: [batch, time, width]) -> [batch, time, width]"
LOOPS = {
    "raw weights in unequal turns": "for f in [a, gelu, a] { param w: [width] = ones  x = (x -> f) * w + w }",
    "raw weights in a period": "for f in 3 * [a, gelu] { param w: [width] = ones  x = (x -> f) * w + w }",
    "loops within loops": "for i in n { for j in 2 { x += x -> linear(width) as p } x = x -> linear(width) as q }",
    "three deep": "for i in 2 { for j in 2 { for k in 2 { x += x -> linear(width) as deep } } }",
    "a list within a list": "for f in a + n * (2 * [a] + [gru(8), a]) + [gelu] { x = x -> f }",
    "the turn's number": "for i in n { x = x -> mlp(hidden: i + 1) as f }",
    "two of a kind a turn": "for i in n { x = x -> linear(width) as f -> linear(width) as f }",
    "skips": "skips = for f in n * a { x = f(x)  emit x }\n"
    "for i in n { x = concat(x, skips[n - 1 - i]) -> linear(width) as m }",
    "several of a kind in a loop within": "for i in n { for j in k { x = x -> a as f } x = x -> mlp(hidden: 4) as f }",
    "two lists": "for i in n { for j in k { x = x -> a as f -> mlp(hidden: 2) as g } }",
    "a list twice a turn": "for f in n * (a + k * mlp(hidden: 5)) { x = x -> f -> a as f }",
    "the inner turn's number": "for i in n { for j in k { x = x -> mlp(hidden: j + 1) as f } }",
    "kinds by remainder": "for f in [if i % 3 == 1 then a else mlp(hidden: 4) for i in 6] { x = x -> f }",
    "depths of one block": "x = x -> tower(depth: n) as f -> tower(depth: k) as g -> tower(depth: 1) as h",
    "depths in a loop": "for d in [n, k, 3] { x = x -> tower(depth: d) as f }",
    "an instance among others": "let s = shared(a)\n for f in 2 * [s, a] { x = x -> f }",
    "runs in a loop": "for i in n { for f in [a, a, mlp(hidden: 4), a, a] { x = x -> f } }",
    "runs two deep": "for i in 2 { for j in n { for f in [a, a, mlp(hidden: 4)] { x = x -> f } } }",
    "a repetition of repetitions": "for f in n * (k * (a + mlp(hidden: 3))) { x = x -> f }",
    "a plural in ies": "for f in n * a { x = x -> f as entries }",
    "equal sizes by two spellings": "for h in [4, width // 2, 4] { x = x -> mlp(hidden: h) as f }",
}


@pytest.mark.parametrize("name", LOOPS)
def test_every_turn_has_its_weights(name: str) -> None:
    import torch

    text = f"{HEAD}model m(width = 8, n = 3, k = 2){INPUT} {{ {LOOPS[name]}\n return x }}"
    model = api.load(text=text)
    module = api.to_torch(text=text)
    assert {w.path: w.shape for w in weights(model)} == {k: tuple(v.shape) for k, v in module.state_dict().items()}
    module(torch.randn(2, 5, 8)).square().mean().backward()
    unused = [k for k, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not unused


def test_loops_in_loops_compute_what_onnxruntime_computes() -> None:
    """Each turn with its own weights, in the order of the spec."""
    deep = ("loops within loops", "runs in a loop", "runs two deep", "a repetition of repetitions", "two lists")
    body = "\n ".join(LOOPS[name].replace(" as ", f" as n{i}") for i, name in enumerate(deep))
    idle = "for f in n * [half, more] { x = x -> f }"
    text = f"""{HEAD}
inline block half(x: [..., width]) -> [...] {{ return x * 0.5 }}
inline block more(x: [..., width]) -> [...] {{ return x + 1 }}
model m(width = 8, n = 3, k = 2){INPUT} {{ {body}\n {idle}\n return x }}"""
    assert archdsl.verify(text=text, batch=2, seq=3, decode=False).agrees


@pytest.mark.parametrize("name", LOOPS)
def test_another_config_is_the_spec_with_it_or_refused(name: str) -> None:
    import torch

    from archdsl.run.load import load_source

    text = f"{HEAD}model m(width = 8, n = 3, k = 2){INPUT} {{ {LOOPS[name]}\n return x }}"
    cls = load_source(emit(api.load(text=text)))
    config = __import__(cls.__module__).Config
    equal = 0
    for other in ({"width": 6}, {"n": 1}, {"n": 4}, {"k": 1}, {"k": 3}, {"n": 2, "k": 4}):
        try:
            module = cls(config(**other))
        except (AssertionError, ValueError):
            continue
        fresh = api.to_torch(text=text, set=other)
        fresh.load_state_dict(module.state_dict())
        x = torch.randn(2, 5, other.get("width", 8))
        torch.testing.assert_close(module(x), fresh(x))
        equal += 1
    assert equal


def test_the_emitted_module_follows_its_config() -> None:
    """Sizes that are equal by chance keep their own spelling."""
    from archdsl.run.load import load_source

    text = f"model m(width = 8){INPUT} {{ for h in [4, width // 2] {{ x = x -> mlp(hidden: h) as f }} return x }}"
    cls = load_source(emit(api.load(text=text)))
    config = __import__(cls.__module__).Config(width=16)
    assert cls(config).f[0].up.weight.shape == (4, 16)
    assert cls(config).f[1].up.weight.shape == (8, 16)


COUNTED = {
    "a number for each": ("x = x + s[i] * (x -> linear(8) as f)", "for i, f in enumerate(self.f):"),
    "several numbers": ("y = (x -> linear(8) as f) + t[i]  x = y * t[i + 3]", "for i, f in enumerate(self.f):"),
    "up to a number": ("x = x * (t[:i + 1] -> sum(axis: 0)) + (x -> linear(8) as f)", "for i, f in enumerate(self.f):"),
    "no modules": ("x = x + s[i]", "for i in range(5):"),
    "two lists": (
        "x = s[i] * (x -> linear(8) as f -> linear(8) as g)",
        "for i, f, g in zip(range(5), self.f, self.g):",
    ),
    "all but the first": (
        "if i == 0 { x = x -> linear(8) as f } else { x = x + s[i - 1] * (x -> linear(8) as f) }",
        "for i, f in enumerate(self.f[1:], 1):",
    ),
    "all but the last": (
        "if i == 4 { x = x -> linear(8) as f } else { x = x + s[i] * (x -> linear(8) as f) }",
        "for i, f in enumerate(self.f[:4]):",
    ),
    "another in the midst": ("if i == 2 { x = -x } else { x = x + s[i] * (x -> linear(8) as f) }", ""),
    "three at the end": (
        "if i < 2 { x = x + s[2 * i] * (x -> linear(8) as f) } else { x = x + s[i] * (x -> linear(8) as f) }",
        "for i, f in enumerate(self.f[2:], 2):",
    ),
    "steps of two": ("x = x + t[2 * i] * (x -> linear(8) as f)", ""),
    "another order": ("x = x + s[2 * i % 5] * (x -> linear(8) as f)", ""),
    "numbers that come again": ("x = x + s[p[i]]", ""),
    "fractions": ("x = x * r[i] + (x -> linear(8) as f)", ""),
    "one number": ("if i == 0 { x = x -> linear(8) as f } else { x = s[3] * (x -> linear(8) as f) }", ""),
    "one number in several": ("x = if i == 1 then x else x + s[if i == 4 then 4 else 3]", ""),
    "other names": (
        "if i < 3 { y = x -> linear(8) as f  x = y * s[i] + y } else { z = x -> linear(8) as f  x = z * s[i] + z }",
        "for i, f in enumerate(self.f[:3]):",
    ),
    "a number from a number": ("x = x + s[minimum(i, 2)] * (x -> linear(8) as f)", "for i, f in enumerate(self.f):"),
    "another computation": ("x = if i == 1 then x * s[i] else x + s[i]", "for i in range(2, 5):"),
    "several modules of a list": ("for _ in 2 { x = s[i] * (x -> linear(8) as f) }", ""),
    "a loop within": ("for j in 3 { x = x + s[j] * t[i] }", ""),
}


@pytest.mark.parametrize("name", COUNTED)
def test_turns_that_only_count_are_a_loop_with_a_number(name: str) -> None:
    """It computes what the turns do when they are written one after the other."""
    body, line = COUNTED[name]
    head = f"""model m{INPUT.replace("width", "8")} {{ let p = [0, 1, 0, 3, 4]  let r = [0.5, 1.5, 2.5, 3.5, 4.5]
    param s: [5] = normal(1)  param t: [12, 8] = normal(1) """
    text = head + f"for i in 5 {{ {body} }} return x }}"
    one_by_one = " ".join(re.sub(r"\bi\b", str(i), body) for i in range(5))
    module, plain = api.to_torch(text=text), api.to_torch(text=f"{head} {one_by_one} return x }}")
    own, others = (sorted(m.state_dict(), key=lambda k: k[0]) for m in (module, plain))
    plain.load_state_dict({other: module.state_dict()[k] for k, other in zip(own, others, strict=True)})
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(module(x), plain(x))
    assert re.findall(r"for i\b.* in .*:", emit(api.load(text=text)).split("def forward")[-1]) == [line] * bool(line)


BUFFERS = {
    "in order": "for i in 2 { buffer w: [width, width] = indices(width)  buffer r: [width] = normal(1)\n"
    "x = x * sum(w, axis: -1) + r }",
    "in unequal turns": "for f in [a, gelu, a] { buffer w: [width] = indices(width)  buffer r: [width] = normal(1)\n"
    "x = (x -> f) * w + r }",
    "in a period": "for f in 2 * [a, gelu] { buffer w: [width] = indices(width)  buffer r: [width] = normal(1)\n"
    "x = (x -> f) * w + r }",
    "in a loop within a loop": "for i in n { for j in 2 { buffer w: [width] = indices(width)\n"
    "buffer r: [width] = normal(1)  x = x * w + r } x = x -> linear(width) }",
    "a parameter in another turn": "for i in 2 { if i == 0 { param w: [width] = ones  x = x * w }\n"
    "else { buffer w: [width] = indices(width)  x = x * w } buffer r: [width] = normal(1)  x = x + r }",
}


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_of_a_loop_are_buffers(name: str) -> None:
    """None is a parameter; those that are drawn are saved, the others made anew."""

    text = f"{HEAD}model m(width = 8, n = 3, k = 2){INPUT} {{ {BUFFERS[name]}\n return x }}"
    model, module = api.load(text=text), api.to_torch(text=text)
    declared = list(weights(model))
    assert {w.path for w in declared if w.weight.trained} == {k for k, _ in module.named_parameters()}
    assert {w.path: w.shape for w in declared if not w.weight.trained} == {
        k: tuple(b.shape) for k, b in module.named_buffers()
    }
    kept = {w.path for w in declared if w.weight.trained or w.weight.saved}
    assert kept == module.state_dict().keys()
    assert any(w.weight.saved for w in declared if not w.weight.trained)
    assert kept != {w.path for w in declared}


@since(2, 7, "what it exports are lists of buffers, too")
@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_of_a_loop_are_exported(name: str) -> None:
    import torch

    module = api.to_torch(text=f"{HEAD}model m(width = 8, n = 3, k = 2){INPUT} {{ {BUFFERS[name]}\n return x }}")
    x = torch.randn(2, 5, 8)
    exported = torch.export.export(module, (x,)).module()
    torch.testing.assert_close(exported(x), module(x))


@pytest.mark.parametrize(
    "body",
    [
        "for i in n { x = x -> mlp(hidden: i + 1) as f }",
        "for f in [mlp(hidden: i + 1) for i in n] { x = f(x) }",
        "ys = scan h: [batch, width] = 0 for x_t in x { hs = for i in n {\n"
        "h = h + (x_t -> linear(width) as f) * (i + 1)  emit h } emit stack(hs, axis: 1) -> sum(axis: 1) }\n x = ys",
    ],
    ids=["the turn's number", "a list", "in a scan"],
)
@pytest.mark.parametrize("n", [1, 3])
def test_a_count_that_is_written_out_is_refused_where_it_changes(body: str, n: int) -> None:
    from archdsl.run.load import load_source

    cls = load_source(emit(api.load(text=f"model m(width = 8, n = {n}){INPUT} {{ {body}\n return x }}")))
    config = __import__(cls.__module__).Config
    assert sum(p.numel() for p in cls(config(width=16)).parameters()) > sum(p.numel() for p in cls().parameters())
    with pytest.raises(AssertionError, match="is written for"):
        cls(config(n=n + 1))


NOTHING = {
    "of no turns": "for _ in n { x += linear(x, width) }",
    "whose turns switch everything off": "for _ in 2 { if n > 0 { x += linear(x, width) } }",
    "within a loop": "for i in 2 { for j in 2 { for _ in n { x = x * (i + j) } } }",
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_loop_that_changes_nothing_leaves_nothing(name: str) -> None:
    """The tensor that it would have changed is the result all the same."""
    text = f"model m(width = 8, n = 0){INPUT} {{ {NOTHING[name]} }}"
    graph = api.load(text=text).block.graph
    assert not graph.nodes
    assert graph.outputs == graph.inputs
    assert api.load(text=text, set={"n": 1}).block.graph.nodes


def test_what_the_first_iteration_does_not_read_is_not_emitted() -> None:
    """A name that a loop begins with, where the first iteration makes its value."""
    body = "first = x  for i in 3 { if i == 0 { first = linear(x, 4) } else { x = x + linear(first, width) } }"
    text = f"model m(width = 8){INPUT} {{ {body} }}"
    lines = [line.strip() for line in api.torch_source(text=text).splitlines()]
    assert "first = x" not in lines
    assert any(line.startswith("first = self.") for line in lines)


def test_what_the_first_iteration_reads_is_emitted() -> None:
    text = f"model m(width = 8, n = 3){INPUT} {{ first = x  for _ in n {{ first = gelu(first) + x }} return first }}"
    assert "first = x" in [line.strip() for line in api.torch_source(text=text).splitlines()]


def test_a_list_of_layers_that_all_differ_is_far_from_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama-Nemotron Ultra has 162, and twenty times as many may be listed; here are sixteen, for the sake of time."""
    monkeypatch.setattr("archdsl.frontend.base.MAX_STEPS", MAX_STEPS * 16 // (20 * 162))

    def codes(count: int) -> list[str]:
        layers = ", ".join(f"layer(kv: {2 ** (i % 3)}, hidden: {64 * (i + 1)})" for i in range(count))
        text = f"""block layer(kv: size, hidden: size) {{
          attention: gqa(heads: 8, kv_heads: kv) mask: causal position: rope ffn: swiglu(hidden: hidden) norm: rmsnorm
        }}
        model m {{ vocab: 64 context: 64 width: 64 blocks: [{layers}] norm: rmsnorm head: lm }}"""
        return [d.code for d in api.check(text=text) if d.code.startswith("E")]

    assert codes(16) == []
    assert codes(32) == ["E0404"]


def test_repetitions_that_are_alike_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are elaborated once, and later passes take each of them."""
    monkeypatch.setattr("archdsl.frontend.base.MAX_STEPS", 200)

    def codes(count: int) -> list[str]:
        text = f"model m(width = 8){INPUT} {{ for _ in {count} {{ x = x * 2 }} return x }}"
        return [d.code for d in api.check(text=text) if d.code.startswith("E")]

    assert codes(20) == []
    assert codes(400) == ["E0404"]


def test_the_mistakes_of_each_element_are_reported_once() -> None:
    """One after the other of a count makes the same ones; what stands in a list may make its own."""
    body = "y = x -> b\n z = y + x[..., :3]"
    text = f"model m(x: [batch, time, 8]) {{ for b in [relu, gelu, linear(5)] {{ {body} }}\n return x }}"
    with pytest.raises(ArchError) as wrong:
        archdsl.load(text=text)
    assert [re.findall(r"time, (\d)\]", d.message) for d in wrong.value.diagnostics] == [["8", "3"], ["5", "3"]]
    text = "model m(x: [batch, time, 8]) { for i in 200 { z = x * i + x[..., :3] }\n return x }"
    with pytest.raises(ArchError) as wrong:
        archdsl.load(text=text)
    assert [d.code for d in wrong.value.diagnostics] == ["E0301"]


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4])
def test_loops_in_loops_have_names_of_their_own(depth: int) -> None:
    """Each takes its slices of lists, by the numbers of all that it stands in."""
    body = ""
    for level in reversed(range(depth + 2)):
        two = f"x = x -> step as p{level}  x = x -> step as q{level}"
        body = f"for v{level} in 2 {{ {two} {body} }}"
    block = "block step(x: [batch, time, 4]) -> [batch, time, 4] { return x + (x -> linear(4)) }"
    text = f"{block}\nmodel m(x: [batch, time, 4]) {{ {body} return x }}"
    written = emit(archdsl.load(text=text))
    assert re.findall(r"for (\w+) in range\(2\):", written) == ["i", "j", "k", "k_2", "k_3"][: depth + 1]
    module = archdsl.to_torch(text=text)

    def run(level: int, place: int, x: torch.Tensor) -> torch.Tensor:
        for i in range(2):
            for name in ("p", "q"):
                x = getattr(module, f"{name}{level}")[2 * place + i](x)
            x = run(level + 1, 2 * place + i, x) if level < depth + 1 else x
        return x

    x = torch.randn(1, 3, 4)
    with torch.no_grad():
        assert torch.equal(module(x), run(0, 0, x))


@pytest.mark.parametrize("turns", [2, 3])
def test_a_loop_may_do_nothing_but_exchange_tensors(turns: int) -> None:
    made: Any = archdsl.to_torch(
        text=f"""model m(x: [batch, 4], y: [batch, 4]) -> [batch, 4] {{
          for i in {turns} {{
            kept = x
            x = y
            y = kept
          }}
          return x - 2 * y
        }}"""
    )
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    wanted = y - 2 * x if turns % 2 else x - 2 * y
    assert torch.equal(made(x, y), wanted)


def test_a_name_around_a_loop_is_suggested() -> None:
    text = """model m(x: [batch, time, 8]) -> [batch, time, 8] {
      let parts_of_it = 2
      for i in 2 { x = x -> mha(heads: parts_of_its) }
      return x
    }"""
    (found,) = archdsl.check(text=text)
    assert found.help == "did you mean `parts_of_it`?"


def test_each_step_of_a_scan_draws_for_itself() -> None:
    """Also in a block within a block, of whose inputs no step changes any."""
    text = """
block fixed(m: [batch, 8]) -> [batch, 8] { return m -> dropout(0.5) }
block cell(h: [batch, 8], m: [batch, 8]) -> [batch, 8] { return h + (m -> linear(8) -> fixed) }
model m(x: float[batch, time, 8], m: float[batch, 8]) -> [batch, time, 8] {
  y = scan h: [batch, 8] = 0 for x_t in x { h = cell(x_t + 0 * h, m)  emit h }
  return y - x
}"""
    torch.manual_seed(0)
    made = archdsl.to_torch(text=text)
    x, m = torch.randn(2, 6, 8), torch.randn(2, 8)
    drawn = (made.train()(x, m).abs() < 1e-6).flatten(1).float().mean()
    assert 0.2 < drawn < 0.8
    steps = (made(x, m).abs() < 1e-6).transpose(0, 1).flatten(1)
    assert len({tuple(step.tolist()) for step in steps}) == 6


def test_what_is_computed_before_a_scan_may_have_the_name_of_what_its_steps_read() -> None:
    text = """
block cell(h: [batch, 8], m: [batch, 4, 8]) -> [batch, 8] {
  raw = m
  m = m -> linear(8) -> tanh
  weights = softmax(matmul(m, h -> unsqueeze(-1)) -> squeeze(-1))
  return tanh(h + sum(raw * unsqueeze(weights, -1), 1))
}
model m(x: float[batch, time, 8], m: float[batch, 4, 8]) -> [batch, time, 8] {
  y = scan h: [batch, 8] = 0 for x_t in x { h = cell(h + x_t, m) as cell  emit h }
  return y
}"""
    torch.manual_seed(0)
    made: Any = archdsl.to_torch(text=text)
    x, m, h = torch.randn(2, 5, 8), torch.randn(2, 4, 8), torch.zeros(2, 8)
    keys, found = made.cell.m(m).tanh(), made(x, m)
    for t in range(5):
        h = h + x[:, t]
        h = torch.tanh(h + ((keys @ h[..., None]).softmax(1) * m).sum(1))
        torch.testing.assert_close(found[:, t], h)


MADE = """
block one(s: size)(x: [batch, time, width]) -> [batch, time, width] { return x + (x -> linear(s) -> linear(width)) }
block two(s: size)(x: [batch, time, width]) -> [batch, time, width] { return x * (x -> linear(s) -> linear(width)) }
model m(n = 2, kind = 4, s = 5)(x: [batch, time, 8]) -> [batch, time, 8] {
  let same = shared(one(6))
  for layer in LAYERS { x = x -> layer }
  return x
}
"""


@pytest.mark.parametrize(
    ("layers", "text", "made"),
    [
        ("n * (one(3) + one(s))", "for s in config.n * [3, config.s]", "one3 one5 one3 one5"),
        (
            "n * (2 * one(3) + one(kind)) + one(3)",
            "for s in config.n * (2 * [3] + [config.kind]) + [3]",
            "one3 one3 one4 one3 one3 one4 one3",
        ),
        ("n * (one(s) + two(s))", "for kind in config.n * [One, Two]", "one5 two5 one5 two5"),
        ("one(s) + n * two(s)", "for kind in [One] + config.n * [Two]", "one5 two5 two5"),
        ("n * (one(3) + one(s) + two(s))", "for layer in (One(s=3, width=8)", "one3 one5 two5 one3 one5 two5"),
        ("n * one(s)", "One(config, width=8) for _ in range(config.n)", "one5 one5"),
        ("n * same + n * (one(3) + one(s))", "for s in config.n * [3, config.s]", "one3 one5 one3 one5"),
        ("one(3) + n * one(s) + n * (same + same)", "for s in [3] + config.n * [config.s]", "one3 one5 one5"),
        ("n * same + 2 * one(s) + one(s)", "for _ in range(2)), One(s=config.s, width=8)])", "one5 one5 one5"),
        ("one(3) + one(s)", "[One(s=3, width=8), One(s=config.s, width=8)]", "one3 one5"),
    ],
)
def test_layers_that_differ_by_one_thing_are_one_generator(layers: str, text: str, made: str) -> None:
    source = api.torch_source(text=MADE.replace("LAYERS", layers))
    module = load_source(source)()
    blocks = next(m for m in module.children() if isinstance(m, torch.nn.ModuleList))
    found = [f"{type(b).__name__.lower()}{next(b.children()).out_features}" for b in blocks]
    assert " ".join(found) == made
    assert text in " ".join(source.split()).replace("( ", "(").replace(" )", ")")


@pytest.mark.parametrize(
    ("layers", "loop"),
    [
        (
            "n * (3 * near + far)",
            "for i in range(0, len(self.blocks), 4): for block in self.blocks[i:i + 3]: x = block(x, rope) "
            "x = self.blocks[i + 3](x)",
        ),
        (
            "n * (far + 2 * near + far)",
            "for i in range(0, len(self.blocks), 4): x = self.blocks[i](x) "
            "for block in self.blocks[i + 1:i + 3]: x = block(x, rope) x = self.blocks[i + 3](x)",
        ),
        (
            "n * (near + far)",
            "for block_1, block_2 in zip(self.blocks[::2], self.blocks[1::2]): x = block_1(x, rope) x = block_2(x)",
        ),
    ],
)
def test_layers_that_follow_themselves_in_a_period_are_a_loop(layers: str, loop: str) -> None:
    text = f"""
        block layer(position: position) {{ attention: mha(heads: 2)  mask: causal  position: position }}
        model m(n = 2) {{
          let near = layer(position: rope)
          let far = layer(position: none)
          vocab: 16  context: 16  width: 8
          blocks: {layers}
          head: lm
        }}"""
    source = api.torch_source(text=text)
    forward = ast.unparse(ast.parse(source)).rpartition("def forward")[2]
    assert loop in " ".join(forward.split())
    assert archdsl.verify(text=text, seq=9).agrees
    made = load_source(source)
    more = made(sys.modules[made.__module__].Config(n=3)).eval()
    meant = archdsl.to_torch(text=text, set={"n": 3}).eval()
    meant.load_state_dict(more.state_dict())
    tokens = torch.randint(16, (2, 7))
    torch.testing.assert_close(more(tokens), meant(tokens))
