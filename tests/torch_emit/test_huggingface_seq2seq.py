"""Folders of encoder-decoders: the logits, greedy tokens and losses of the plain PyTorch, by what transformers does
with its own; what a source gives is computed once, or in each step where the cache has no place for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from decode_tools import widen
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import archdsl
from archdsl.backends.huggingface.module import LibraryWriter
from archdsl.backends.torch import emit
from archdsl.backends.torch.validate import InvalidError, validate
from archdsl.diagnostics import ArchError
from archdsl.interop.convert import convert_from
from archdsl.ir import verify
from archdsl.ir.graph import Model
from archdsl.run.load import load_source
from torch_emit.test_huggingface import SPECS, TOLERANCE, difference, pytestmark, settings_of

__all__ = ["pytestmark"]
SETTINGS = {
    "layers": 2, "decoder_layers": 2, "width": 32, "heads": 4, "decoder_heads": 4, "kv_heads": 2, "head_dim": 8,
    "hidden": 48, "decoder_hidden": 48, "window": 4, "vocab": 97, "context": 64,
}  # fmt: skip
TRANSFORMER, T5GEMMA = "transformer.arch:transformer_base", "hf/t5gemma.arch:t5gemma"
FAMILIES = [
    TRANSFORMER,  # sines; one table for both sequences and the head
    "deepnet.arch:deepnet_200",
    "hf/bart.arch:bart",  # learned positions of each, a bias behind the head
    "hf/bart.arch:blenderbot_small",  # written out, without slots
    "t5.arch:t5_small",  # a table of distances for each stack, a scale behind the head
    T5GEMMA,  # windows, rope, scores that are capped, a table for each
]
START, NEW = 1, 6
GREEDY = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


class Folder(NamedTuple):
    """A folder, the module of the plain file on the same weights, whether it takes padding; sources [3, 8] with padding
    on the left, on the right and none, what of them is none, and targets [3, 5]."""

    path: Path
    plain: Any
    source: Tensor
    real: Tensor
    target: Tensor
    padded: bool

    @property
    def given(self) -> dict[str, Tensor]:
        """A source as `generate` takes it."""
        return {"input_ids": self.source} | ({"attention_mask": self.real} if self.padded else {})

    def logits(self, target: Tensor) -> Tensor:
        """The logits of the plain module."""
        with torch.no_grad():
            made: Tensor = self.plain(self.source, target, *[self.real.bool()] * self.padded)
        return made

    def greedy(self) -> Tensor:
        """The likeliest tokens, by the whole target each time."""
        found = torch.full((3, 1), START)
        for _ in range(NEW):
            found = torch.cat((found, self.logits(found)[:, -1:].argmax(-1)), dim=1)
        return found


def written(model: Model, folder: Path) -> Folder:
    """Write a folder with weights drawn wide."""
    plain: Any = load_source(emit(model))().eval()
    torch.manual_seed(0)
    widen(plain)
    save_file({k: v.contiguous() for k, v in plain.state_dict().items()}, folder / "own.safetensors")
    archdsl.to_huggingface(
        model, folder / "hf", weights=folder / "own.safetensors", native=False, bos_token_id=START, pad_token_id=0
    )
    source, target = torch.randint(2, 97, (3, 8)), torch.randint(2, 97, (3, 5))
    real = torch.ones_like(source)
    real[0, :2] = real[1, 5:] = 0
    return Folder(folder / "hf", plain, source, real, target, any(v.dtype == "padding" for _, v in model.inputs))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def made(name: str) -> Folder:
        spec = f"{SPECS}/{name}"
        return written(archdsl.load(spec, set=settings_of(spec, SETTINGS)), tmp_path_factory.mktemp("folder"))

    return made


def loaded(folder: Path, **options: Any) -> Any:
    from transformers import AutoModelForSeq2SeqLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True, **options).eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_an_encoder_decoder_is_itself_in_transformers(folders: Any, name: str) -> None:
    folder: Folder = folders(name)
    model = loaded(folder.path, attn_implementation="eager")
    want = folder.logits(folder.target)
    with torch.no_grad():
        assert difference(model(**folder.given, decoder_input_ids=folder.target).logits, want) < TOLERANCE
        if name != T5GEMMA:
            sdpa = loaded(folder.path, attn_implementation="sdpa")
            assert difference(sdpa(**folder.given, decoder_input_ids=folder.target).logits, want) < TOLERANCE
        encoded = model.get_encoder()(**folder.given)
        rest = {"attention_mask": folder.real, "encoder_outputs": encoded}
        first = model(**rest, decoder_input_ids=folder.target[:, :3])
        later = model(**rest, decoder_input_ids=folder.target[:, 3:], past_key_values=first.past_key_values)
    assert first.encoder_last_hidden_state.equal(encoded.last_hidden_state)
    assert difference(torch.cat((first.logits, later.logits), dim=1), want) < TOLERANCE
    found = folder.greedy()
    assert model.generate(**folder.given, **GREEDY).equal(found)
    static = {"cache_implementation": "static", "disable_compile": True}
    assert model.generate(**folder.given, **GREEDY, **static).equal(found)
    beams = {**folder.given, **GREEDY, "num_beams": 3}
    assert model.generate(**beams).equal(model.generate(**beams, use_cache=False))


@pytest.mark.parametrize("name", [TRANSFORMER, "hf/bart.arch:bart"])
def test_labels_are_what_follows_in_a_target(folders: Any, name: str) -> None:
    folder: Folder = folders(name)
    model = loaded(folder.path)
    labels = folder.target.clone()
    labels[1, 3:] = -100
    before = torch.cat((torch.full((3, 1), START), labels[:, :-1]), dim=1).masked_fill(labels.roll(1, 1) == -100, 0)
    before[:, 0] = START
    assert model.prepare_decoder_input_ids_from_labels(labels).equal(before)
    with torch.no_grad():
        found = model(**folder.given, labels=labels)
        shared = model(**folder.given, labels=labels, num_items_in_batch=26)
    want = nn.functional.cross_entropy(folder.logits(before).flatten(0, 1), labels.flatten())
    assert difference(found.loss, want) < TOLERANCE
    assert difference(shared.loss * 2, want) < TOLERANCE
    model.config.decoder_start_token_id = None
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        model(**folder.given, labels=labels)


def test_what_is_saved_is_loaded(folders: Any, tmp_path: Path) -> None:
    folder: Folder = folders(TRANSFORMER)
    loaded(folder.path).save_pretrained(tmp_path / "again")
    again = loaded(tmp_path / "again")
    with torch.no_grad():
        found = again(**folder.given, decoder_input_ids=folder.target).logits
    assert difference(found, folder.logits(folder.target)) < TOLERANCE
    spec = f"{SPECS}/{TRANSFORMER}"
    convert_from(archdsl.load(spec, set=settings_of(spec, SETTINGS)), tmp_path / "again", tmp_path / "back.safetensors")
    back, state = load_file(tmp_path / "back.safetensors"), folder.plain.state_dict()
    assert back.keys() == state.keys()
    assert all(back[n].equal(t) for n, t in state.items())
    config = json.loads((folder.path / "config.json").read_text())
    assert (config["is_encoder_decoder"], config["decoder_start_token_id"]) == (True, START)
    assert "AutoModelForSeq2SeqLM" in config["auto_map"]


def test_layers_of_both_stacks_are_recomputed(folders: Any) -> None:
    folder: Folder = folders(TRANSFORMER)
    model = loaded(folder.path).train()
    for module in model.modules():
        module.training &= not isinstance(module, nn.Dropout)
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    grads = []
    for _ in range(2):
        model.zero_grad()
        model(**folder.given, labels=folder.target).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
        model.gradient_checkpointing_enable()
    assert max(difference(a, b) for a, b in zip(*grads, strict=True)) < TOLERANCE
    assert {type(m).__name__ for m in model.modules() if getattr(m, "gradient_checkpointing", False)} >= {
        "EncoderLayer",
        "DecoderLayer",
    }


def test_parts_are_handed_out(folders: Any) -> None:
    from transformers import AutoModel

    folder: Folder = folders(TRANSFORMER)
    model = loaded(folder.path)
    encoder = model.get_encoder()
    names = {n.partition(".")[0] for n, _ in encoder.named_parameters()}
    assert names == {"token_embedding", "encoder"}
    assert {*map(id, encoder.parameters())} < {*map(id, model.parameters())}
    with torch.no_grad():
        made = model(**folder.given, decoder_input_ids=folder.target, output_hidden_states=True)
        base = AutoModel.from_pretrained(folder.path, trust_remote_code=True).eval()
        plain = base(**folder.given, decoder_input_ids=folder.target)
        embedded = model.get_input_embeddings()(folder.target)
        assert difference(model(**folder.given, decoder_inputs_embeds=embedded).logits, made.logits) < TOLERANCE
        last = model(**folder.given, decoder_input_ids=folder.target, logits_to_keep=1).logits
    assert len(made.decoder_hidden_states) == 3
    assert made.decoder_hidden_states[-1].equal(plain.last_hidden_state)
    assert difference(last, made.logits[:, -1:]) < TOLERANCE


def test_t5_is_transformers_own(tmp_path: Path) -> None:
    """As remote code it is what it is as the type that transformers has."""
    spec = f"{SPECS}/hf/t5.arch:t5"
    model = archdsl.load(spec, set=settings_of(spec, SETTINGS))
    folder = written(model, tmp_path)
    archdsl.to_huggingface(model, tmp_path / "t5", weights=tmp_path / "own.safetensors", native=True)
    ours, theirs = loaded(folder.path), loaded(tmp_path / "t5")
    assert type(theirs).__module__.startswith("transformers.")
    theirs.config.decoder_start_token_id = theirs.generation_config.decoder_start_token_id = START
    with torch.no_grad():
        a, b = (m(**folder.given, labels=folder.target) for m in (ours, theirs))
    assert difference(a.logits, b.logits) < TOLERANCE
    assert difference(a.loss, b.loss) < TOLERANCE
    for options in (GREEDY, {**GREEDY, "num_beams": 3, "length_penalty": 2.0}):
        assert ours.generate(**folder.given, **options).equal(theirs.generate(**folder.given, **options))


# --- where layers attend to a source ----------------------------------------------------------------------------------

READER = """
block reader(heads)(x: [batch, n, width]) -> [batch, n, width] {
  return x + (x -> layernorm -> mha(heads: heads, mask: full))
}
block lone(heads)(x: [batch, time, width], memory: [batch, source, memory_width]) -> [batch, time, width] {
  return x + (x -> layernorm -> mha(heads: heads, mask: causal))
}
block looking(heads)(x: [batch, time, width], memory: [batch, source, memory_width]) -> [batch, time, width] {
  return x + (x -> layernorm -> mha(memory: memory, heads: heads, mask: full))
}
block m_encoder(heads, f)(x: [batch, time, width], memory: [batch, source, memory_width]) -> [batch, time, width] {
  x += x -> layernorm -> mha(heads: heads, mask: causal)
  x += x -> layernorm -> mha(memory: memory, heads: heads, mask: full)
  return x + (x -> f)
}
block apart(heads)(x: [batch, time, width], memory: [batch, source, memory_width]) -> [batch, time, width] {
  x += x -> layernorm -> mha(heads: heads, mask: causal)
  k = memory -> linear(width) -> split_heads(heads)
  q = x -> linear(width) -> split_heads(heads)
  return x + (sdpa(q, k, k, mask: full) -> merge_heads)
}
block within(heads)(x: [batch, time, width], memory: [batch, source, memory_width]) -> [batch, time, width] {
  x = x -> lone(memory: memory, heads: heads) -> lone(memory: memory, heads: heads) as second
  return x -> looking(memory: memory, heads: heads) as first -> looking(memory: memory, heads: heads)
}
block shown(heads)(x: [batch, time, width], memory: [batch, source, memory_width]) -> [batch, time, width] {
  x += x -> layernorm -> mha(heads: heads, mask: causal)
  k = memory -> linear(width) -> split_heads(heads)
  x = x + mean(k -> merge_heads, axis: 1, keep: true)
  q = x -> linear(width) -> split_heads(heads)
  return x + (sdpa(q, k, k, mask: full) -> merge_heads)
}
block without_heads(x: [batch, time, width], memory: [batch, source, memory_width]) -> [batch, time, width] {
  x += x -> layernorm -> mha(heads: 4, mask: causal)
  return x + sdpa(x -> linear(width), memory -> linear(width), memory -> linear(width), mask: full)
}
model m(layers = 2, width = 32, heads = 4, vocab = 97)
       (source: token[batch, frames], target: token[batch, time]) -> [batch, time, vocab] {
  let words = shared(embedding(vocab, width))
  let f = shared(mlp(hidden: 48, act: relu))
  memory = source -> words
  for layer in layers * reader(heads: heads) { memory = memory -> layer as read }
  memory = memory + (memory -> f)
  x = target -> words
  for layer in LAYERS { x = x -> layer(memory: memory) as write }
  return x -> layernorm -> linear(vocab, bias: false) as head
}"""
FULL = "layers * m_encoder(heads: heads, f: f)"
STACKS: dict[str, tuple[str, dict[int, bool]]] = {
    "each once": (FULL, {0: True, 1: True}),
    "every second": (
        "layers * (m_encoder(heads: heads, f: f) + lone(heads: heads))",
        {0: True, 1: False, 2: True, 3: False},
    ),
    "the first alone": ("m_encoder(heads: heads, f: f) + 2 * lone(heads: heads)", {0: True, 1: False, 2: False}),
    "layers of two": ("layers * within(heads: heads)", dict.fromkeys(range(4), True)),
    "a list of them": (
        "2 * lone(heads: heads) { x = x -> layer(memory: memory) as first } for layer in 2 * looking(heads: heads)",
        {0: False, 1: False},
    ),
    "keys that are values": ("layers * apart(heads: heads)", {0: True, 1: True}),
    "keys that others read": ("layers * shown(heads: heads)", {0: False, 1: False}),
    "no heads": ("layers * without_heads", {0: False, 1: False}),
}


def of_layers(layers: str, more: str = "") -> Model:
    return archdsl.load(text=more + READER.replace("LAYERS", layers))


@pytest.mark.parametrize("what", STACKS)
def test_wherever_a_layer_attends_to_a_source(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values are kept where the cache has places for them: one for each of the layer's own at most."""
    monkeypatch.setattr(verify, "enabled", True)
    layers, kept = STACKS[what]
    folder = written(of_layers(layers), tmp_path)
    model = loaded(folder.path)
    with torch.no_grad():
        found = model(**folder.given, decoder_input_ids=folder.target).logits
    assert difference(found, folder.logits(folder.target)) < TOLERANCE
    made = model.generate(**folder.given, **GREEDY, return_dict_in_generate=True)
    assert made.sequences.equal(folder.greedy())
    assert made.past_key_values.is_updated == kept


TABLES = """
block place(width: size)(i: int[time]) -> [time, width] { return i -> embedding(64, width) }
block tilt(heads: size)(i: int[time], j: int[source]) -> [heads, time, source] {
  param slope: [heads, 1, 1] = normal(1)
  return slope * (unsqueeze(i, 1) - j * j)
}
block biased(heads, bias)(x: [batch, time, width], memory: [batch, source, memory_width]) -> [batch, time, width] {
  x += x -> layernorm -> mha(heads: heads, mask: causal, position: bias)
  return x + (x -> layernorm -> mha(memory: memory, heads: heads, mask: full))
}
"""
POSITIONS = {
    "a block's table of pairs": ("let bias = shared(tilt)\n  x = target -> words", "bias"),
    "and one of positions": (
        "let bias = shared(tilt)\n  x = (target -> words) + place(indices(time), width: width)",
        "bias",
    ),
    "sines of one": ("x = (target -> words) + sin(place(indices(time), width: width))", "rope"),
    "alibi": ("x = target -> words", "alibi"),
}


@pytest.mark.parametrize("what", POSITIONS)
def test_positions_of_a_target(what: str, tmp_path: Path) -> None:
    before, bias = POSITIONS[what]
    text = READER.replace("LAYERS", f"layers * biased(heads: heads, bias: {bias})")
    folder = written(archdsl.load(text=TABLES + text.replace("x = target -> words", before)), tmp_path)
    model = loaded(folder.path)
    with torch.no_grad():
        found = model(**folder.given, decoder_input_ids=folder.target).logits
    assert difference(found, folder.logits(folder.target)) < TOLERANCE
    assert model.generate(**folder.given, **GREEDY).equal(folder.greedy())


def test_one_table_for_both_sequences(tmp_path: Path) -> None:
    text = TABLES + READER.replace("LAYERS", "layers * biased(heads: heads, bias: bias)")
    text = text.replace(
        "  let words", "  let bias = shared(relative_bias(buckets: 8, bidirectional: true))\n  let words"
    )
    text = text.replace("block reader(heads)", "block reader(heads, bias)").replace(
        "mha(heads: heads, mask: full)", "mha(heads: heads, mask: full, position: bias)"
    )
    folder = written(
        archdsl.load(text=text.replace("reader(heads: heads)", "reader(heads: heads, bias: bias)")), tmp_path
    )
    assert loaded(folder.path).generate(**folder.given, **GREEDY).equal(folder.greedy())


def test_names_that_the_classes_of_a_folder_have(tmp_path: Path) -> None:
    """Layers called `encode`, memory called `self`, and a block called like the class that `generate` takes."""
    text = READER.replace("LAYERS", FULL).replace("as read", "as encode").replace("as write", "as forward")
    text = text.replace("  memory =", "  self =").replace("{ memory =", "{ self =").replace("= memory", "= self")
    text = text.replace("(memory -> f)", "(self -> f)").replace("memory -> layer", "self -> layer")
    folder = written(archdsl.load(text=text.replace("layer(memory: memory)", "layer(memory: self)")), tmp_path)
    made = (folder.path / "modeling_m.py").read_text()
    assert "def encode_source(self" in made
    assert "class M_Encoder(nn.Module)" in made
    assert "class MEncoder(GradientCheckpointingLayer)" in made
    assert loaded(folder.path).generate(**folder.given, **GREEDY).equal(folder.greedy())


def test_a_shared_block_that_the_target_comes_to_first(tmp_path: Path) -> None:
    text = READER.replace("LAYERS", FULL).replace("  x = target -> words\n", "")
    text = text.replace("  memory = source -> words\n", "  x = target -> words -> f\n  memory = source -> words\n")
    folder = written(archdsl.load(text=text), tmp_path)
    assert loaded(folder.path).generate(**folder.given, **GREEDY).equal(folder.greedy())


def test_weights_are_drawn_as_the_spec_says(folders: Any) -> None:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    config = AutoConfig.from_pretrained(folders(TRANSFORMER).path, trust_remote_code=True)
    model: Any = AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=True)
    assert 0.019 < float(model.model.token_embedding.weight.detach().std()) < 0.021
    assert model.lm_head.weight is model.model.token_embedding.weight


def test_both_sequences_may_have_padding(tmp_path: Path) -> None:
    text = READER.replace("LAYERS", FULL).replace("mask: full", "mask: full & padding")
    text = text.replace("mask: causal", "mask: causal & padding").replace(
        "target: token[batch, time])",
        "target: token[batch, time], real: padding[batch, frames], known: padding[batch, time])",
    )
    model = archdsl.load(text=text)
    folder = written(model, tmp_path)
    known = torch.ones_like(folder.target)
    known[1, 3:] = 0
    with torch.no_grad():
        want = folder.plain(folder.source, folder.target, folder.real.bool(), known.bool())
        found = loaded(folder.path)(**folder.given, decoder_input_ids=folder.target, decoder_attention_mask=known)
    assert difference(found.logits[known.bool()], want[known.bool()]) < TOLERANCE


def test_padding_is_refused_where_no_mask_takes_it(tmp_path: Path) -> None:
    folder = written(of_layers(FULL), tmp_path)
    model, takes = loaded(folder.path), {"input_ids": folder.source, "decoder_input_ids": folder.target}
    with torch.no_grad():
        whole = model(**takes, attention_mask=torch.ones_like(folder.source))
        assert difference(whole.logits, folder.logits(folder.target)) < TOLERANCE
    padded = {"input_ids": folder.source, "attention_mask": folder.real}
    ways: list[Callable[[], Any]] = [
        lambda: model(**takes, attention_mask=folder.real),
        lambda: model.get_encoder()(**padded),
        lambda: model.generate(**padded, **GREEDY),
    ]
    for way in ways:
        with pytest.raises(ValueError, match="attends to all of a source, and some of it is padding"):
            way()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert difference(compiled(**takes).logits, whole.logits) < TOLERANCE


def test_a_source_of_other_lengths_is_refused_by_the_folder_too(tmp_path: Path) -> None:
    model = archdsl.load(
        text=READER.replace("LAYERS", FULL).replace(
            "  memory = source", '  assert frames % 4 == 0, "frames come in fours"\n  memory = source'
        )
    )
    folder = written(model, tmp_path)
    module = loaded(folder.path)
    assert module.generate(**folder.given, **GREEDY).equal(folder.greedy())
    with pytest.raises(AssertionError, match="frames come in fours"):
        module.generate(folder.source[:, :7], **GREEDY)


REFUSED = {
    "its decoder reads the tokens of the source beside what its encoder makes of them": (
        "x = x -> layer(memory: memory) as write",
        "x = x -> layer(memory: memory) as write -> copying(tokens: source)",
    ),
    "layers with attention and layers without it stand in one loop": (
        "LAYERS",
        "2 * (lone(heads: 4) + looking(heads: 4))",
    ),
    "its decoder reads `memory`, `other` of its encoder": (
        "x = target -> words",
        "other = mean(memory, axis: 1, keep: true)\n  x = (target -> words) + other",
    ),
    "its decoder reads nothing of its encoder": (
        "for layer in LAYERS { x = x -> layer(memory: memory)",
        "for layer in 2 * lone(heads: heads) { x = x -> layer(memory: x)",
    ),
    "`scale` is read by its encoder and its decoder": (
        "x = target -> words",
        "param scale: [width] = ones\n  memory = memory * scale\n  x = (target -> words) * scale",
    ),
    "it makes biases, masks or tables of positions itself": ("LAYERS", "2 * biased(heads: 4, bias: tilt)"),
    "it has a loss of its own, `size`": (
        "x = target -> words",
        "loss size = mean(memory * memory, axis: [0, 1, 2])\n  x = target -> words",
    ),
    "it takes `source`, `target`, `more`, and a language model takes": (
        "target: token[batch, time])",
        "target: token[batch, time], more: token[batch, places])",
    ),
}
COPYING = """
block copying(x: [batch, time, width], tokens: token[batch, source]) -> [batch, time, width] {
  keys = tokens -> embedding(97, width)
  return x + (sdpa(unsqueeze(x, 1), unsqueeze(keys, 1), unsqueeze(keys, 1), mask: full) -> squeeze(1))
}"""


@pytest.mark.parametrize("why", REFUSED)
def test_an_encoder_decoder_that_is_otherwise_is_refused(why: str, tmp_path: Path) -> None:
    right, wrong = REFUSED[why]
    assert right in READER
    model = archdsl.load(text=TABLES + COPYING + READER.replace(right, wrong).replace("LAYERS", FULL))
    with pytest.raises(ArchError) as caught:
        archdsl.to_huggingface(model, tmp_path / "hf", native=False)
    (problem,) = caught.value.diagnostics
    assert (problem.code, why in problem.message) == ("E0534", True), problem.message


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("self.before(query[:, 0], key)", "self.before(key, query[:, 0])"),
        ("self.before(query[:, 0], key)", "self.before(query[:, 0], query[:, 0])"),
        ("self.before(query[:, 0], key)", "self.around(query[:, 0], key)"),
        ("k, v = past_key_values.cross_attention_cache.update", "v, k = past_key_values.cross_attention_cache.update"),
        ("cache.layers[self.layer_idx].keys", "cache.layers[self.layer_idx].values"),
        ("is_updated[self.layer_idx] = True", "is_updated[self.layer_idx] = False"),
        ("past_key_values.is_updated.get(self.layer_idx)", "past_key_values.is_updated.get(0)"),
        ("CrossAttention(config, layer_idx)", "CrossAttention(config, layer_idx + 1)"),
        ("past_key_values.self_attention_cache.update", "past_key_values.cross_attention_cache.update"),
        ("self.cross_attention(x, memory, mask_2, past", "self.cross_attention(x, x, mask_2, past"),
        ("self.encode(input_ids, attention_mask)", "self.encode(input_ids, None)"),
        ("else encoder_outputs[0]", "else encoder_outputs[1]"),
        ("if attention_mask is None else attention_mask.bool()", "if attention_mask is None else attention_mask"),
        ("memory.new_ones(", "memory.new_zeros("),
        ("past_key_values=cache,", "past_key_values=past_key_values,"),
        ("memory = encoder(memory, mask)", "memory = encoder(memory, padding)"),
        ("shift_labels=labels", "shift_labels=decoder_input_ids"),
        ("labels is not None and decoder_input_ids is None", "labels is not None and decoder_input_ids is not None"),
        ("decoder_input_ids=decoder_input_ids,", "decoder_input_ids=input_ids,"),
        ("is_encoder_decoder: bool = True", "is_encoder_decoder: bool = False"),
    ],
)
def test_a_file_that_is_not_what_was_meant_is_never_written(right: str, wrong: str) -> None:
    spec = f"{SPECS}/{'t5.arch:t5_small' if 'self.before' in right else TRANSFORMER}"
    writer = LibraryWriter(archdsl.load(spec, set=settings_of(spec, SETTINGS)), "t")
    text = "\n\n".join(writer.written())
    assert right in text
    validate(text, writer.classes)
    with pytest.raises(InvalidError):
        validate(text.replace(right, wrong), writer.classes)
