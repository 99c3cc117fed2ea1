"""Where weights lie when devices share a model: read off the graph, not off names."""

import re

import pytest
from zoo.sizes import sample

import archdsl
from archdsl.ir.weights import weights
from archdsl.passes.flatten import flatten
from archdsl.passes.partition import Placement, _Partitioner, partition, sharded

KINDS = ("column", "row", "vocab", "expert")


def kinds(spec: str, **given: object) -> dict[str, str]:
    """The placement of each weight that is cut, layers of a list taken together."""
    found: dict[str, str] = {}
    for path, placement in partition(archdsl.load(spec, **given)).placements.items():  # type: ignore[arg-type]
        if placement.kind != "replicated":
            found[re.sub(r"\.\d+\.", ".*.", path)] = f"{placement.kind} {placement.axis}"
    return found


LLAMA = {
    "token_embedding.weight": "vocab 0",
    "blocks.*.attention.q.weight": "column 0",
    "blocks.*.attention.k.weight": "column 0",
    "blocks.*.attention.v.weight": "column 0",
    "blocks.*.attention.out.weight": "row 1",
    "blocks.*.ffn.gate.weight": "column 0",
    "blocks.*.ffn.up.weight": "column 0",
    "blocks.*.ffn.down.weight": "row 1",
    "head.weight": "vocab 0",
}
ATTENTION = {k: v for k, v in LLAMA.items() if ".ffn." not in k}
EXPERTS = {f"blocks.*.ffn.experts.{name}.weight": "expert 0" for name in ("gate", "up", "down")}
SHARED = {k.replace(".ffn.", ".ffn.shared."): v for k, v in LLAMA.items() if ".ffn." in k}
TABLES = {k: v for k, v in LLAMA.items() if v.startswith("vocab")}
FEED_FORWARD = {k: v for k, v in LLAMA.items() if ".ffn." in k}


def test_llama() -> None:
    assert kinds("llama3_8b") == LLAMA
    found = partition(archdsl.load("llama3_8b")).placements
    assert found["blocks.3.attention.q.weight"] == Placement("column", 0, "blocks.3.attention")
    assert found["blocks.3.ffn.down.weight"] == Placement("row", 1, "blocks.3.ffn")
    assert found["blocks.3.attention_norm.weight"] == Placement("replicated", None, "")


def test_experts() -> None:
    assert kinds("mixtral_8x7b") == ATTENTION | EXPERTS


def test_latent_attention() -> None:
    """It is whole: the norms of latents read every channel, and the rotated part of keys is of all heads."""
    assert kinds("deepseek_v3") == TABLES | FEED_FORWARD | SHARED | EXPERTS


def test_biases_and_tied_tables() -> None:
    found = kinds("gpt2")
    assert "token_embedding.weight" not in found  # the head's, too
    assert found["blocks.*.attention.q.bias"] == "column 0"
    assert "blocks.*.attention.out.bias" not in found  # it is added once, to the sum
    assert "position.weight" not in found


def test_one_head_of_keys_is_whole() -> None:
    """Gradients of the shared head would be sums over the heads of queries of all ranks."""
    found = kinds("palm_8b")
    assert not any(".attention." in path for path in found)
    assert found["blocks.*.ffn.down.weight"] == "row 1"


def test_biases_of_heads() -> None:
    """A bias for each head is whole, and each rank would take its shard, which no style of a module can say."""
    found = kinds("t5_small")
    assert found["decoder.*.cross_attention.k.weight"] == "column 0"
    assert "decoder.*.attention.k.weight" not in found


def test_mamba_is_whole() -> None:
    assert kinds("mamba_130m") == {}


def test_one_set_of_weights_for_all_layers() -> None:
    found = partition(archdsl.load("albert_base")).placements
    assert found["blocks.attention.q.weight"] == Placement("column", 0, "blocks.attention")


def test_gains_within_heads() -> None:
    text = """
    block layer {
      attention: mha(heads: 4, qk_norm: rmsnorm, mask: causal)
    }
    model m { vocab: 64  context: 16  width: 32  blocks: 2 * layer  head: lm }
    """
    model = archdsl.load(text=text)
    found = partition(model)
    on_shards = sharded(flatten(model), found.placements)
    paths = {f"blocks.{i}.attention.{n}_norm.weight": 1 for i in (0, 1) for n in "qk"}
    assert {path: axis for path, (_, axis) in on_shards.partial.items()} == paths
    assert {(group, int(size)) for group, size in found.sizes} == {(f"blocks.{i}.attention", 4) for i in (0, 1)}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("x += x -> linear(64) -> softmax -> linear(width)", "softmax reads every channel"),
        ("x += x -> linear(64) -> layernorm -> linear(width)", "so does a norm"),
        ("x += x -> linear(64) -> flip(-1) -> linear(width)", "the parts change places"),
        ("x += x -> linear(width)", "the sum is with a tensor that is whole"),
        ("x += x -> mha(heads: 4, fused: true)", "the parts of one map are not those of q, k and v"),
        ("param g: [64] = ones  x += ((x -> linear(64)) * g) -> linear(width)", "the weight would have to be cut"),
        ("let f = shared(linear(width))  x += x -> f -> gelu -> f", "one weight cannot be both"),
    ],
)
def test_what_cannot_be_cut(body: str, why: str) -> None:
    text = f"""
    block layer(x: [batch, time, width]) -> [batch, time, width] {{ {body} }}
    model m {{ vocab: 64  context: 16  width: 32  blocks: 2 * layer  norm: layernorm  head: lm }}
    """
    found = partition(archdsl.load(text=text, allow_noncausal=True)).placements
    assert all(p.kind in ("replicated", "vocab") for p in found.values()), why


@pytest.mark.parametrize(
    "body",
    [
        "h = x -> linear(64)  y = cast(h, float32) -> gelu  x += y -> cast_like(x) -> linear(width)",
        "h = x -> linear(64)  y = (x -> linear(64)) -> cast_like(h)  x += (y * h) -> linear(width)",
    ],
)
def test_what_is_cut_in_another_type(body: str) -> None:
    text = f"""
    block layer(x: [batch, time, width]) -> [batch, time, width] {{ {body} }}
    model m {{ vocab: 60  context: 16  width: 32  blocks: layer  norm: layernorm  head: lm }}
    """
    found = partition(archdsl.load(text=text)).placements
    weights = {path: p.kind for path, p in found.items() if path.startswith("blocks") and path.endswith("weight")}
    assert weights == dict.fromkeys(weights, "column") | {"blocks.0.linear.weight": "row"}


DIVIDED = {
    "linear(64) -> gelu -> linear(width)": True,
    "linear(width)": False,
    "linear(64) -> layernorm -> linear(width)": False,
    "layernorm -> linear(64) -> gelu -> linear(width)": False,
    "linear(64) -> gelu -> linear(width) -> gelu": False,
}


@pytest.mark.parametrize("vocab", [60, 64, 32])
@pytest.mark.parametrize("body", DIVIDED)
def test_experts_are_cut_as_a_whole_or_not_at_all(body: str, vocab: int) -> None:
    """Also where their matrices have as many rows as there are tokens."""
    text = f"""
    block expert(x: [..., width]) -> [..., width] {{ return x -> {body} }}
    block layer(x: [..., width]) -> [..., width] {{ x += x -> moe(experts: 4, top_k: 2, expert: expert) }}
    model m {{ vocab: {vocab}  context: 16  width: 32  blocks: layer  norm: layernorm  head: lm }}
    """
    found = partition(archdsl.load(text=text)).placements
    hidden = {path: p.hidden for path, p in found.items() if ".experts." in path}
    cut = {"linear.weight": 1, "linear.bias": 1, "linear_2.weight": 2} if DIVIDED[body] else {}
    assert hidden == {path: cut.get(path.partition(".experts.")[2]) for path in hidden}
    assert {p.kind for path, p in found.items() if ".experts." in path} == {"expert"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name.partition(":")[2] for name in sample()])
def test_zoo(name: str) -> None:
    """Every weight has a place; what is cut has that axis, a group, and partners."""
    model = archdsl.load(name)
    found = partition(model).placements
    shapes = {w.path: w.shape for w in weights(model)}
    assert found.keys() == shapes.keys()
    groups: dict[str, set[str]] = {}
    for path, placement in found.items():
        assert (placement.axis is None) == (placement.kind == "replicated")
        if placement.axis is not None:
            assert shapes[path][placement.axis] > 1
            assert path.startswith(placement.group)
            groups.setdefault(placement.group, set()).add(placement.kind)
    for group, members in groups.items():
        assert members in ({"column", "row"}, {"vocab"}, {"expert"}), group


def test_looking_takes_time_in_proportion_to_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer after the other is taken back; of each turn only what differs is looked at again."""
    looked = 0
    at = _Partitioner._looked_at

    def counted(partitioner: _Partitioner, number: int, node: object) -> object:
        nonlocal looked
        looked += 1
        return at(partitioner, number, node)  # type: ignore[arg-type]

    monkeypatch.setattr(_Partitioner, "_looked_at", counted)
    found = []
    for layers in (16, 32, 64):
        looked = 0
        partition(archdsl.load("deepseek_v3", set={"sparse_layers": layers}))
        found.append(looked)
    assert found[2] - found[1] == 2 * (found[1] - found[0])
