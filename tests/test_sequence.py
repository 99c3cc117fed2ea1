"""What devices may cut along the sequence between maps that they share: read off the graph."""

import re
from collections.abc import Iterator

import pytest

import archdsl
from archdsl.api import list_zoo
from archdsl.ir.graph import Model
from archdsl.passes.placement import sharding
from archdsl.passes.sequence_parallel import Spread, spread


def found(model: Model) -> Spread:
    return spread(model, sharding(model))


def of_text(body: str, head: str = "", ffn: str = "x += x -> layernorm -> swiglu(hidden: 64)") -> Spread:
    """Of two layers with a body, followed by a feed-forward block."""
    text = f"""
    block layer(x: [batch, time, width]) -> [batch, time, width] {{ {body} {ffn} }}
    model m {{ vocab: 64  context: 16  width: 32  blocks: 2 * layer  {head} norm: layernorm  head: lm }}
    """
    return found(archdsl.load(text=text, allow_noncausal=True))


def alike(paths: object) -> set[str]:
    """Paths, layers of a list taken together."""
    assert isinstance(paths, dict | frozenset | tuple)
    return {re.sub(r"\.\d+", ".*", path) for path in paths}


def test_llama() -> None:
    llama = found(archdsl.load("llama3_8b"))
    assert llama.inputs == {f"blocks.{i}.{name}": {0: "hand"} for i in range(32) for name in ("attention", "ffn")}
    assert llama.results == {}
    assert alike(llama.maps) == {"token_embedding", "blocks.*.attention.out", "blocks.*.ffn.down", "head"}
    assert alike(llama.shared) == {"blocks.*.attention_norm", "blocks.*.ffn_norm", "norm"}
    assert llama.lengths == (("tokens", 0, 1),)


def test_learned_positions_and_a_tied_head() -> None:
    gpt2 = found(archdsl.load("gpt2"))
    assert gpt2.results == {"position": {0: ("divide", 0)}, "norm": {0: ("hand", 1)}}
    assert alike(gpt2.dropouts) == {"", "blocks.*"}


def test_what_is_added_before_the_first_layer_is_whole() -> None:
    """Sinusoids are no module whose result could be cut: the first layer of each stack takes its part."""
    transformer = found(archdsl.load("transformer_base"))
    divided = {path for path, of in transformer.inputs.items() if of == {0: "divide"}}
    assert divided == {"encoder.0", "decoder.0"}
    assert transformer.results == {"encoder.5": {0: ("hand", 1)}, "decoder.5": {0: ("hand", 1)}}
    assert "token_embedding" not in transformer.maps
    assert [name for name, _, _ in transformer.lengths] == ["source", "target"]


def test_one_norm_for_attention_and_feed_forward() -> None:
    """What several blocks read is put together once."""
    gptj = found(archdsl.load("gptj_6b"))
    assert gptj.inputs == {}
    assert gptj.results == {f"blocks.{i}.ln": {0: ("hand", 1)} for i in range(28)}


def test_keys_that_all_heads_share_are_made_in_parts() -> None:
    palm = found(archdsl.load("palm_8b"))
    assert {p: c for p, c in palm.results.items() if p.startswith("blocks.3.")} == {
        "blocks.3.attention.k": {0: ("gather", 1)},
        "blocks.3.attention.v": {0: ("gather", 1)},
    }
    assert {"blocks.*.attention.k", "blocks.*.attention.v"} <= alike(palm.shared)
    assert "blocks.*.attention.q" in alike(palm.maps)


def test_experts() -> None:
    """Each device sends the tokens of its places; a router with losses of its own needs all of them."""
    mixtral = found(archdsl.load("mixtral_8x7b"))
    assert alike(mixtral.inputs) == {"blocks.*.attention"}
    assert {"blocks.*.ffn.router.gate", "blocks.*.ffn.experts.up"} <= alike(mixtral.shared)
    switch = found(archdsl.load("switch_base_8"))
    assert switch.inputs["encoder.1.ffn.router"] == {0: "gather"}
    assert switch.results["encoder.1.ffn.router"] == {0: ("divide", 1), 1: ("divide", 1)}
    assert switch.counts["encoder.1.ffn.router"] == 2
    assert "encoder.*.ffn.experts.up" in alike(switch.shared)


def test_a_head_that_reads_one_place() -> None:
    bert = found(archdsl.load("bert_base"))
    assert bert.inputs["next_sentence"] == {0: "gather"}
    assert bert.results["mlm.norm"] == {0: ("hand", 1)}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("x += (x -> layernorm -> cumsum(1))", "sums of all places before"),
        ("x += (x -> layernorm -> flip(1))", "places change places"),
        ("x += (x -> layernorm -> mean(1, keep: true))", "a mean over places"),
        ("x += x * (indices(time) -> unsqueeze(-1) -> cast_like(x))", "places by number"),
        ("x += (x[:, 0] -> unsqueeze(1))", "the first place"),
        ("x += x -> noise", "devices would draw the same"),
        ("assert time % 4 == 0  x += gelu(x)", "the length is checked"),
    ],
)
def test_what_reads_other_places_is_whole(body: str, why: str) -> None:
    spread = of_text(body)
    # The layer's tensor is whole: what is left is the table of words, and what comes before the layers and after them.
    assert not any(path.startswith("blocks.") for path in spread.maps), why
    assert not any(path.startswith("blocks.") for path in spread.shared), why


@pytest.mark.parametrize(
    ("body", "shared"),
    [
        ("param g: [width] = ones  x = x * g", True),
        ("param g: [width] = ones  param h: [64] = ones  x = x * g", False),
        ("param g: [width] = ones  x = x * (g -> softmax)", False),
    ],
)
def test_raw_weights(body: str, shared: bool) -> None:
    """Gradients of a block's raw weights are added up where it uses all of them for parts, as they are."""
    used = "x += ((x -> layernorm -> linear(64)) * h) -> linear(width)" if "h:" in body else ""
    spread = of_text(f"{body} {used}")
    assert ("blocks.*" in alike(spread.shared)) == shared
    assert ("blocks.*.swiglu.down" in alike(spread.maps)) == shared


@pytest.mark.parametrize(
    ("aside", "whole"),
    [
        ("", set()),
        ("loss second = (x -> head) -> square -> flatten(0, -1) -> mean", {"head"}),
        ("if training { x = x -> norm }", {"head", "norm"}),
    ],
)
def test_what_only_training_does_is_whole(aside: str, whole: set[str]) -> None:
    """A module has the same hooks wherever it is used: also in losses, and where training does something else."""
    text = f"""
    block watch(head: block, norm: block)(x: [batch, time, width]) -> [batch, time, width] {{ {aside} return x }}
    block layer(x: [batch, time, width]) -> [batch, time, width] {{ x += x -> layernorm -> swiglu(hidden: 64) }}
    model m(tokens: token[batch, time]) -> [batch, time, 64] {{
      let head = shared(linear(64, bias: false))
      let norm = shared(rmsnorm)
      x = tokens -> embedding(64, 32) as words
      for each in 2 * layer {{ x = x -> each as blocks }}
      return x -> norm -> watch(head: head, norm: norm) -> head
    }}
    """
    spread = found(archdsl.load(text=text, allow_noncausal=True))
    assert alike(spread.maps) == {"blocks.*.swiglu.down", "words", "head"} - whole
    assert alike(spread.shared) == {"blocks.*.layernorm", "norm"} - whole
    assert all("divide" not in of.values() for of in spread.inputs.values())


def samples() -> Iterator[str]:
    """One model of each family of the zoo."""
    seen: set[str] = set()
    for entry in list_zoo():
        if entry.file not in seen:
            seen.add(entry.file)
            yield entry.name


@pytest.mark.slow
@pytest.mark.parametrize("name", list(samples()))
def test_zoo(name: str) -> None:
    """What is in parts comes from sums over parts; what is shared is trained; lengths are those of inputs."""
    model = archdsl.load(name)
    placed = sharding(model)
    spread = found(model)
    if not spread.maps:
        assert spread == Spread()
        return
    assert spread.lengths
    for path in spread.maps:
        assert any(p.rpartition(".")[0] == path and c.kind != "replicated" for p, c in placed.placements.items())
    for path in spread.shared:
        kinds = {c.kind for p, c in placed.placements.items() if p.rpartition(".")[0] == path}
        assert kinds <= {"replicated", "expert"}
    assert set(spread.inputs) | set(spread.results) | set(spread.shared) <= set(spread.modules)
