"""Folders for transformers: every decoder gives the logits and the greedy tokens of its plain PyTorch; what the library
cannot hold is refused, and the message says why."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from decode_tools import widen
from near import distance
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from zoo.tiny_decoders import TINY

import archdsl
from archdsl.backends.huggingface.folder import other_dropout
from archdsl.backends.huggingface.module import LibraryWriter
from archdsl.backends.torch import Extras, emit
from archdsl.backends.torch.validate import InvalidError, validate
from archdsl.diagnostics import ArchError
from archdsl.interop.convert import convert_from, import_folder
from archdsl.ir import verify
from archdsl.ir.paths import is_reserved
from archdsl.ir.weights import weights
from archdsl.run.load import load_source
from torch_emit.test_attributes import SPEC as HOSTILE_SPEC

WRITTEN_FOR = (5, 19)
"""The oldest transformers that the files are written for."""
pytestmark = pytest.mark.skipif(
    tuple(map(int, version("transformers").split(".")[:2])) < WRITTEN_FOR, reason="an older transformers"
)
SPECS = Path(__file__).resolve().parents[2] / "specs"
TOLERANCE = 1e-5
LENGTH, PROMPT, NEW = 13, 6, 9
GREEDY = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

_GPT = {"layers": 2, "width": 32, "heads": 4, "vocab": 97, "context": 64, "hidden": 48}
_LLAMA = dict(_GPT, kv_heads=2)
_TWO_KINDS = dict(_LLAMA, layers=4, head_dim=8, window=5)
FAMILIES: dict[str, dict[str, Any]] = {
    **{
        f"{name}.arch:{model}": TINY[f"{name}:{model}"]
        for name, model in (
            ("gpt2", "gpt2"),  # learned positions, a tied head, biases
            ("gpt3", "gpt3_small"),  # layers of two kinds
            ("gptj", "gptj_6b"),  # one norm for both branches, a part of each head turned
            ("llama3", "llama3_8b"),
            ("mistral", "mistral_7b"),  # windows
            ("bloom", "bloom_560m"),  # ALiBi
            ("mixtral", "mixtral_8x7b"),
            ("deepseek_v3", "deepseek_v3"),  # latent attention; dense layers, then experts
            ("palm", "palm_8b"),
        )
    },
    "hf/ctrl.arch:ctrl": dict(_GPT),  # sines
    "hf/falcon.arch:falcon": dict(_GPT),
    "hf/gpt_neox.arch:gpt_neox": dict(_GPT),
    "hf/phi.arch:phi": dict(_LLAMA),
    "hf/olmo2.arch:olmo2": dict(_LLAMA),
    "hf/qwen3_moe.arch:qwen3_moe": dict(_LLAMA, head_dim=8, experts=4, top_k=2),
    "hf/gemma2.arch:gemma2": dict(_TWO_KINDS),
    "hf/gemma3_text.arch:gemma3_text": dict(_TWO_KINDS),
    "hf/gpt_oss.arch:gpt_oss": dict(_TWO_KINDS, experts=4, top_k=2),
}
NO_SDPA = ("gemma2", "gpt_oss")
"""Scores that are capped, or have a sink: no fused kernel of torch has them."""


class Folder(NamedTuple):
    """A folder, the module of the plain file on the same weights, and tokens [2, 13]."""

    path: Path
    plain: Any
    tokens: Tensor


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def made(name: str) -> Folder:
        spec, settings = f"{SPECS}/{name}", FAMILIES[name]
        model = archdsl.load(spec, set=settings_of(spec, settings))
        folder = tmp_path_factory.mktemp(model.name)
        plain: Any = load_source(emit(model, Extras(frozenset({"generate"}))))().eval()
        torch.manual_seed(0)
        widen(plain)
        save_file({k: v.contiguous() for k, v in plain.state_dict().items()}, folder / "own.safetensors")
        archdsl.to_huggingface(model, folder / "hf", weights=folder / "own.safetensors", native=False)
        return Folder(folder / "hf", plain, torch.randint(1, 97, (2, LENGTH)))  # 0 is padding

    return made


def settings_of(spec: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those that the model has."""
    names = {f.name for f in archdsl.load(spec).config}
    return {k: v for k, v in settings.items() if k in names}


def loaded(folder: Path, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options).eval()


def difference(a: Tensor, b: Tensor) -> float:
    return distance(a, b, least=1.0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_decoder_is_itself_in_transformers(folders: Any, name: str) -> None:
    folder, plain, tokens = folders(name)
    eager = loaded(folder, attn_implementation="eager")
    with torch.no_grad():
        want = plain(tokens)
        assert difference(eager(tokens).logits, want) < TOLERANCE
        if not any(n in name for n in NO_SDPA):
            assert difference(loaded(folder, attn_implementation="sdpa")(tokens).logits, want) < TOLERANCE
        prompt, rest = tokens[:, :PROMPT], tokens[:, PROMPT:]
        cache = eager(prompt).past_key_values  # the loop that people write, which asks for no cache
        assert difference(eager(rest, past_key_values=cache).logits, want[:, PROMPT:]) < TOLERANCE
        assert eager(prompt, use_cache=False).past_key_values is None
    assert eager.generate(prompt, **GREEDY)[:, PROMPT:].equal(plain.generate(prompt, NEW))
    mask = torch.ones_like(prompt)
    mask[0, :2] = 0  # padding on the left
    found = eager.generate(prompt, attention_mask=mask, **GREEDY)[:, PROMPT:]
    assert found.equal(plain.generate(prompt, NEW, attention_mask=mask.bool()))

    numbers = {n: getattr(eager.config, n) for n, v in vars(type(eager.config)).items() if isinstance(v, property)}
    assert all(numbers.values()), numbers
    assert {m.head_dim for m in eager.modules() if hasattr(m, "layer_idx") and hasattr(m, "head_dim")} <= {
        eager.config.head_dim
    }


@pytest.mark.parametrize("name", ["llama3.arch:llama3_8b", "gpt3.arch:gpt3_small", "deepseek_v3.arch:deepseek_v3"])
def test_hidden_states_are_handed_out_where_asked_for(folders: Any, name: str) -> None:
    folder, _, tokens = folders(name)
    model = loaded(folder, attn_implementation="eager")
    with torch.no_grad():
        made, plain = model(tokens, output_hidden_states=True), model(tokens)
        base = model.model(tokens)
        layers = [m for m in model.model.modules() if type(m).__name__ in model._no_split_modules]
        whole = layers[0].register_forward_hook(lambda _m, _i, x: seen.append(x))
        seen: list[Tensor] = []
        model(tokens)
        whole.remove()
    assert plain.hidden_states is None
    assert len(made.hidden_states) == model.config.num_hidden_layers + 1
    assert made.hidden_states[0].equal(model.model.token_embedding(tokens)) or name.startswith("gpt3")
    assert made.hidden_states[1].equal(seen[0])
    assert made.hidden_states[-1].equal(base.last_hidden_state)


LLAMA = "llama3.arch:llama3_8b"
KINDS = "gpt3.arch:gpt3_small"
MIXTRAL, DEEPSEEK, QWEN = "mixtral.arch:mixtral_8x7b", "deepseek_v3.arch:deepseek_v3", "hf/qwen3_moe.arch:qwen3_moe"


@pytest.mark.parametrize("name", [LLAMA, KINDS, "bloom.arch:bloom_560m"])
def test_a_static_cache_holds_the_same(folders: Any, name: str) -> None:
    folder, plain, tokens = folders(name)
    prompt = tokens[:, :PROMPT]
    static = {"cache_implementation": "static", "disable_compile": True}
    found = loaded(folder, attn_implementation="eager").generate(prompt, **GREEDY, **static)
    assert found[:, PROMPT:].equal(plain.generate(prompt, NEW))


def test_flex_attention_computes_the_same(folders: Any) -> None:
    folder, plain, tokens = folders(LLAMA)
    with torch.no_grad():
        found = loaded(folder, attn_implementation="flex_attention")(tokens).logits
        assert difference(found, plain(tokens)) < TOLERANCE


def test_beams_are_those_of_whole_sequences(folders: Any) -> None:
    folder, _, tokens = folders(LLAMA)
    model, prompt = loaded(folder), tokens[:, :PROMPT]
    options = dict(GREEDY, num_beams=3)
    assert model.generate(prompt, **options).equal(model.generate(prompt, **options, use_cache=False))


@pytest.mark.parametrize(
    "name", [LLAMA, KINDS, "mixtral.arch:mixtral_8x7b", "deepseek_v3.arch:deepseek_v3", "hf/qwen3_moe.arch:qwen3_moe"]
)
def test_what_is_saved_is_loaded(folders: Any, name: str, tmp_path: Path) -> None:
    folder, plain, tokens = folders(name)
    loaded(folder).save_pretrained(tmp_path / "again")
    again = loaded(tmp_path / "again")
    with torch.no_grad():
        assert difference(again(tokens).logits, plain(tokens)) < TOLERANCE
    spec = archdsl.load(f"{SPECS}/{name}", set=settings_of(f"{SPECS}/{name}", FAMILIES[name]))
    convert_from(spec, tmp_path / "again", tmp_path / "back.safetensors")
    back, state = load_file(tmp_path / "back.safetensors"), plain.state_dict()
    assert back.keys() == state.keys()
    modules = {n.rpartition(".")[0] for n in load_file(folder / "model.safetensors")}
    assert not [m for m in modules if any(other.startswith(f"{m}_") for other in modules)]  # vLLM takes it for a part
    assert all(back[n].equal(t) for n, t in state.items())
    with pytest.raises(ArchError, match="its spec is not in it"):
        import_folder(tmp_path / "again", tmp_path / "spec.arch")
    own = json.loads((folder / "config.json").read_text())
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {k: saved[k] for k in own if k not in ("auto_map", "dtype")} == {
        k: v for k, v in own.items() if k not in ("auto_map", "dtype")
    }


def test_labels_give_the_mean_loss_of_the_next_tokens(folders: Any) -> None:
    folder, plain, tokens = folders(LLAMA)
    model = loaded(folder)
    with torch.no_grad():
        found = model(tokens, labels=tokens).loss
        want = nn.functional.cross_entropy(plain(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        last = model(tokens, logits_to_keep=1).logits
    assert difference(found, want) < TOLERANCE
    assert last.shape[1] == 1


@pytest.mark.parametrize("name", [LLAMA, KINDS])
@pytest.mark.parametrize("tokenwise", [False, True])
def test_a_classifier_takes_the_place_of_the_head(folders: Any, name: str, tokenwise: bool) -> None:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    folder, _, tokens = folders(name)
    tokens = tokens.clone()
    tokens[0, -3:] = 0
    real = (tokens != 0).long()
    of = AutoModelForTokenClassification if tokenwise else AutoModelForSequenceClassification
    model = of.from_pretrained(folder, trust_remote_code=True, num_labels=3, pad_token_id=0).eval()
    last = torch.tensor([LENGTH - 4, LENGTH - 1])
    labels = real + 1 if tokenwise else torch.tensor([2, 0])
    with torch.no_grad():
        found = model(tokens, attention_mask=real, labels=labels)
        states = loaded(folder).model(tokens, attention_mask=real).last_hidden_state
        want = model.score(states if tokenwise else states[range(2), last])
    assert difference(found.logits, want) < TOLERANCE
    assert difference(found.loss, nn.functional.cross_entropy(want.flatten(0, -2), labels.flatten())) < TOLERANCE


def test_embeddings_may_stand_for_tokens(folders: Any) -> None:
    folder, plain, tokens = folders(LLAMA)
    model = loaded(folder)
    embedded = model.get_input_embeddings()(tokens)
    assert difference(model(inputs_embeds=embedded).logits, plain(tokens)) < TOLERANCE


def test_the_whole_model_compiles_as_one_graph(folders: Any) -> None:
    folder, plain, tokens = folders(LLAMA)
    compiled = torch.compile(loaded(folder), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert difference(compiled(tokens).logits, plain(tokens)) < TOLERANCE


@pytest.mark.parametrize("name", [LLAMA, KINDS])
def test_layers_that_are_recomputed_keep_nothing(folders: Any, name: str) -> None:
    """As in transformers: a cache is made in training too, but under checkpointing, which would fill it twice."""
    from transformers import DynamicCache

    folder, _, tokens = folders(name)
    model = loaded(folder).train()

    def gradients(**options: Any) -> tuple[list[Tensor], Any]:
        model.zero_grad()
        out = model(tokens, labels=tokens, **options)
        out.loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None], out.past_key_values

    want, cache = gradients()
    assert cache.get_seq_length() == LENGTH
    model.gradient_checkpointing_enable()
    for options in ({}, {"use_cache": True}, {"past_key_values": DynamicCache(config=model.config)}):
        found, cache = gradients(**options)
        assert cache is None or cache.get_seq_length() == 0
        assert max(difference(a, b) for a, b in zip(found, want, strict=True)) < TOLERANCE
    model.eval()
    assert model(tokens).past_key_values.get_seq_length() == LENGTH


def test_a_trainer_checkpoints_its_layers(folders: Any, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    folder, _, tokens = folders(LLAMA)
    model = loaded(folder)
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        tmp_path / "run", max_steps=3, per_device_train_batch_size=2, gradient_checkpointing=True, learning_rate=1e-2,
        report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, logging_steps=1,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]


def test_lora_learns_on_top_of_it(folders: Any) -> None:
    from peft import LoraConfig, get_peft_model

    folder, plain, tokens = folders(LLAMA)
    config = LoraConfig(r=4, target_modules=["q", "v"], task_type="CAUSAL_LM")
    model = get_peft_model(loaded(folder), config)
    assert difference(model(input_ids=tokens).logits, plain(tokens)) < TOLERANCE
    model(input_ids=tokens, labels=tokens).loss.backward()
    learned = {n for n, p in model.named_parameters() if p.grad is not None}
    assert learned
    assert all("lora_" in n for n in learned)


def test_weights_that_a_checkpoint_lacks_are_drawn_and_the_rest_are_kept(folders: Any, tmp_path: Path) -> None:
    folder, _, _ = folders(LLAMA)
    for file in folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    kept = weights["model.token_embedding.weight"]
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = loaded(tmp_path)
    assert model.model.token_embedding.weight.equal(kept)
    assert model.lm_head.weight.isfinite().all()
    assert 0 < float(model.lm_head.weight.abs().max()) <= 32**-0.5


@pytest.mark.parametrize("name", [LLAMA, "hf/gemma2.arch:gemma2", "hf/gpt_oss.arch:gpt_oss"])
def test_attention_weights_are_refused_aloud(folders: Any, name: str) -> None:
    folder, _, tokens = folders(name)
    model = loaded(folder, attn_implementation="eager")
    with pytest.raises(ValueError, match="no attention weights"):
        model(tokens, output_attentions=True)
    model.config.output_attentions = True
    with pytest.raises(ValueError, match="no attention weights"):
        model(tokens)
    assert model(tokens, output_attentions=False).attentions is None


def test_random_weights_are_those_of_init(tmp_path: Path) -> None:
    name = "gpt2.arch:gpt2"
    model = archdsl.load(f"{SPECS}/{name}", set=FAMILIES[name])
    archdsl.init_weights(model, tmp_path / "own.safetensors", seed=3)
    files = archdsl.to_huggingface(model, tmp_path / "hf", seed=3, eos_token_id=[5], native=False)
    own, theirs = load_file(tmp_path / "own.safetensors"), load_file(tmp_path / "hf" / "model.safetensors")
    assert {f"model.{k}": v.tolist() for k, v in own.items()} == {k: v.tolist() for k, v in theirs.items()}
    assert json.loads((tmp_path / "hf" / "generation_config.json").read_text()) == {"eos_token_id": 5}
    again = archdsl.to_huggingface(model, tmp_path / "again", seed=3, eos_token_id=[5], native=False)
    assert [f.name for f in files] == [f.name for f in again]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(files, again, strict=True))


@pytest.mark.parametrize("name", ["gpt2.arch:gpt2", LLAMA, MIXTRAL])
def test_weights_without_a_file_are_drawn_as_those_of_init(folders: Any, name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    path = folders(name).path
    spec = f"{SPECS}/{name}"
    archdsl.to_huggingface(archdsl.load(spec, set=settings_of(spec, FAMILIES[name])), tmp_path, seed=0, native=False)
    want = load_file(tmp_path / "model.safetensors")
    config = AutoConfig.from_pretrained(path, trust_remote_code=True)
    found = AutoModelForCausalLM.from_config(config, trust_remote_code=True).state_dict()
    for key, w in want.items():
        assert w.numel() < 500 or 0.8 < float(found[key].std() / w.std()) < 1.25, key
    # what a file has is kept, the rest is drawn
    large = next(key for key, w in want.items() if w.numel() >= 500)
    del want[large]
    save_file(want, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = loaded(tmp_path).state_dict()
    assert all(again[key].equal(w) for key, w in want.items())
    assert 0.8 < float(again[large].std() / found[large].std()) < 1.25


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import AutoTokenizer

    words = Tokenizer(WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    (tmp_path / "own.hf").mkdir()
    words.save(str(tmp_path / "own.hf" / "tokenizer.json"))
    (tmp_path / "own.hf" / "generation_config.json").write_text('{"eos_token_id": 2, "top_k": 7}')
    model = archdsl.load(f"{SPECS}/{LLAMA}", set=FAMILIES[LLAMA])
    archdsl.init_weights(model, tmp_path / "own.safetensors")
    archdsl.to_huggingface(model, tmp_path / "hf", weights=tmp_path / "own.safetensors", pad_token_id=0, native=False)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    assert tokenizer("a b b")["input_ids"] == [1, 2, 2]
    settings = loaded(tmp_path / "hf").generation_config
    assert (settings.eos_token_id, settings.pad_token_id, settings.top_k) == (2, 0, 7)


REFUSED = {
    "mamba.arch:mamba_130m": "`conv1d` hands a state from each position to the next",
    "hf/rwkv.arch": "`shift` hands a state from each position to the next",
    "gopher.arch:gopher_44m": "`transformer_xl` adds to its attention what depends on the text",
    "hf/whisper.arch": "it takes `mel`, `tokens`, and a language model takes the tokens of one sequence",
    "deepseek_v3.arch:deepseek_v3_mtp": "it has more than one output",
    "bert.arch": "more than one output",
    "sparse_transformer.arch": "it has the mask",
}


ODD = {
    "a block of its own looks the tokens up": (
        "x = tokens -> looked(vocab)\n for b in 2 * layer { x = x -> b }",
        "its tokens are not looked up by an embedding of its own",
    ),
    "a block comes before them": (
        "param start: [16] = normal(1)\n s = start -> scaled\n x = (tokens -> embedding(vocab, 16)) * s\n"
        " for b in 2 * layer { x = x -> b }",
        "its tokens are not looked up by an embedding of its own",
    ),
    "an op comes before them": (
        "param start: [16] = normal(1)\n s = tanh(start)\n x = (tokens -> embedding(vocab, 16)) * s\n"
        " for b in 2 * layer { x = x -> b }",
        "`tanh` comes before the embedding of the tokens",
    ),
    "they are looked up twice": (
        "x = (tokens -> embedding(vocab, 16)) + (tokens -> embedding(vocab, 16))\n for b in 2 * layer { x = x -> b }",
        "its tokens are read by more than their embedding",
    ),
}
ODD_BLOCKS = """
block looked(vocab)(ids: int[batch, time]) -> [batch, time, 16] { return ids -> embedding(vocab, 16) }
block scaled(x: [width]) -> [width] { return x * 2 }
block layer { attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) }
"""


@pytest.mark.parametrize("what", ODD)
def test_what_stands_before_the_layers_is_the_librarys(what: str, tmp_path: Path) -> None:
    body, words = ODD[what]
    text = f"{ODD_BLOCKS}model m(vocab = 40)(tokens: token[batch, time]) {{ {body}\n return x -> linear(vocab) }}"
    with pytest.raises(ArchError) as caught:
        archdsl.to_huggingface(archdsl.load(text=text), tmp_path / "hf", native=False)
    (problem,) = caught.value.diagnostics
    assert problem.code == "E0534"
    assert words in problem.message


NO_HEAD = "its output is not made by an LM head: one linear layer over the vocabulary"
ENDS = {
    "x -> linear(vocab) -> softmax": NO_HEAD,
    "x -> linear(vocab) -> flip(-1)": NO_HEAD,
    "(x -> linear(vocab)) + (x -> linear(vocab))": NO_HEAD,
    'einsum("b t d, v d -> b t v", x, table)': "`einsum` reads a weight of another module",
}


@pytest.mark.parametrize("end", ENDS)
def test_what_stands_behind_the_layers_is_an_lm_head(end: str, tmp_path: Path) -> None:
    body = (
        f"let table = shared(embedding(vocab, 16)) x = tokens -> table for b in 2 * layer {{ x = x -> b }} return {end}"
    )
    text = f"{ODD_BLOCKS}model m(vocab = 40)(tokens: token[batch, time]) -> [batch, time, vocab] {{ {body} }}"
    with pytest.raises(ArchError) as caught:
        archdsl.to_huggingface(archdsl.load(text=text), tmp_path / "hf", native=False)
    (problem,) = caught.value.diagnostics
    assert problem.code == "E0534"
    assert ENDS[end] in problem.message


BEHIND = """
block capped(cap = 30.0)(x: [batch, time, v]) -> [batch, time, v] { return tanh(x / cap) * cap }
block mapped(x: [batch, time, v]) -> [batch, time, v] { return x -> linear(v) -> layernorm }
block scaled(x: [batch, time, v], s: [v]) -> [batch, time, v] { return tanh(x) * s }
block holding(part: block)(x: [batch, time, v]) -> [batch, time, v] { return tanh(x) -> part }
block layer { attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) }
"""
KEPT_BEHIND = {
    "a block": "return x -> linear(vocab) as head -> capped",
    "a layer": "return x -> linear(vocab) as head -> mapped",
    "a shared layer": "let f = shared(mapped)\n return x -> linear(vocab) as head -> f -> f",
    "one that is handed on": "let f = shared(mapped)\n return x -> linear(vocab) as head -> holding(part: f)",
    "claims": "y = x -> linear(vocab) as head\n assume causal(y)\n z = 2 * y\n assert causal(z)\n return z",
    "what nothing reads": "y = x -> linear(vocab) as head\n other = y -> linear(3)\n return y",
}
NOT_BEHIND = {
    "a weight": ("param s: [vocab] = normal(1)\n return (x -> linear(vocab)) * s", "reads `s` too, and only logits"),
    "one of a block": ("param s: [vocab] = normal(1)\n return scaled(x -> linear(vocab), s)", "reads `s` too"),
    "what others make": ("return (x -> linear(vocab)) * mean(x, axis: [0, 1, 2])", "reads another tensor too"),
    "a loss of the whole": (
        "y = x -> linear(vocab)\n loss l = mean(y, axis: [0, 1, 2])\n return y",
        "a loss of its own",
    ),
    "the head": ("let f = shared(linear(width))\n return x -> f -> holding(part: f)", "`f` is one layer for two"),
    "a layer from before": ("let f = shared(mapped)\n return x -> f -> linear(width) -> f", "`f` is one layer for two"),
    "the head before": (
        "let f = shared(linear(width))\n return x -> f -> gelu -> f",
        "`f` is one layer for two",
    ),
}


def with_end(end: str) -> Any:
    text = f"{BEHIND}model m(vocab = 40, width = 16)(tokens: token[batch, time]) {{\n"
    return archdsl.load(
        text=f"{text}  x = tokens -> embedding(vocab, width)\n  for b in 2 * layer {{ x = x -> b }}\n  {end}\n}}"
    )


@pytest.mark.parametrize("what", KEPT_BEHIND)
def test_what_reads_logits_alone_stands_behind_the_head(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "enabled", True)
    model = with_end(KEPT_BEHIND[what])
    archdsl.init_weights(model, tmp_path / "w.safetensors")
    archdsl.to_huggingface(model, tmp_path / "hf", weights=tmp_path / "w.safetensors", native=False)
    ours: Any = load_source(emit(model))().eval()
    ours.load_state_dict(load_file(tmp_path / "w.safetensors"))
    tokens = torch.randint(40, (2, 7), generator=torch.Generator().manual_seed(0))
    assert difference(loaded(tmp_path / "hf")(tokens).logits, ours(tokens)) < TOLERANCE


@pytest.mark.parametrize("what", NOT_BEHIND)
def test_what_reads_more_than_logits_does_not(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "enabled", True)
    end, words = NOT_BEHIND[what]
    with pytest.raises(ArchError) as caught:
        archdsl.to_huggingface(with_end(end), tmp_path / "hf", native=False)
    (problem,) = caught.value.diagnostics
    assert (problem.code, words in problem.message) == ("E0534", True), problem.message


def test_a_layer_with_two_attentions_has_two_places_in_the_cache(tmp_path: Path) -> None:
    text = """
block two(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> layernorm -> mha(heads: 2, mask: causal, position: rope) as first
  x += x -> layernorm -> mha(heads: 2, mask: causal, position: rope) as second
  return x
}
model m(vocab = 40, width = 16, layers = 2, normed = true)(tokens: token[batch, time]) {
  x = tokens -> embedding(vocab, width)
  for b in layers * two { x = x -> b as blocks }
  if normed { x = x -> layernorm as norm }
  assert causal(x)
  return x -> linear(vocab) as head
}"""
    archdsl.to_huggingface(archdsl.load(text=text), tmp_path / "hf", native=False)
    assert "normed: bool = True" in (tmp_path / "hf" / "configuration_m.py").read_text()
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=True).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    tokens = torch.randint(1, 40, (2, 9))
    first = model(tokens[:, :5], use_cache=True)
    second = model(tokens[:, 5:], past_key_values=first.past_key_values, use_cache=True)
    assert difference(torch.cat((first.logits, second.logits), 1), model(tokens).logits) < TOLERANCE


BLOCKS = """
block near(heads = 2)(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> rmsnorm -> mha(heads: heads, mask: causal & window(4), position: rope)
  return x
}
block m_model(heads = 2)(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> rmsnorm -> mha(heads: heads, mask: causal, position: rope)
  return x
}
block plain(x: [batch, time, width]) -> [batch, time, width] { return x + (x -> linear(width) -> gelu) }
block biased(x: [batch, time, width]) -> [batch, time, width] {
  return x + (x -> mha(heads: 2, mask: causal & window(4), position: alibi))
}
block two(again: block)(x: [batch, time, width]) -> [batch, time, width] {
  return x -> m_model as first -> again as second
}
block even(x: [batch, time, width]) -> [batch, time, width] {
  q, k, v = x -> linear(3 * width) -> chunk(3)
  y = sdpa(q -> split_heads(2), k -> split_heads(2), v -> split_heads(2), mask: causal) -> merge_heads
  q, k, v = y -> linear(3 * width) -> chunk(3)
  return x + (sdpa(q -> split_heads(2), k -> split_heads(2), v -> split_heads(2), mask: causal) -> merge_heads)
}
block odd(x: [batch, time, width]) -> [batch, time, width] {
  q, k, v = x -> linear(3 * width) -> chunk(3)
  y = sdpa(q -> split_heads(2), k -> split_heads(2), v -> split_heads(2), mask: causal) -> merge_heads
  q, k, v = y -> linear(3 * width) -> chunk(3)
  return x + (sdpa(q -> split_heads(4), k -> split_heads(4), v -> split_heads(4), mask: causal) -> merge_heads)
}
block headless(x: [batch, time, width]) -> [batch, time, width] {
  return x + sdpa(x -> linear(width), x -> linear(width), x -> linear(width), mask: causal)
}
block looped(x: [batch, time, width]) -> [batch, time, width] {
  for i in 2 {
    q, k, v = x -> linear(3 * width) as parts -> chunk(3)
    x += sdpa(q -> split_heads(2), k -> split_heads(2), v -> split_heads(2), mask: causal) -> merge_heads
  }
  return x
}
block keys(x: [batch, time, width]) -> [batch, heads, time, dim] { return x -> linear(width) -> split_heads(2) }
block called(x: [batch, time, width]) -> [batch, time, width] {
  k = x -> keys as first
  v = x -> keys as second
  return x + (sdpa(x -> linear(width) -> split_heads(2), k, v, mask: causal) -> merge_heads) + (k -> merge_heads)
}
block trained(x: [batch, time, width]) -> [batch, time, width] {
  k = x -> linear(width) -> split_heads(2)
  if training { y = sdpa(k, k, k, mask: causal) } else { y = sdpa(k, k, k, mask: causal) }
  return x + merge_heads(y)
}
block shared_keys(x: [batch, time, width], k: [batch, heads, time, dim]) -> [batch, time, width] {
  return x + (sdpa(x -> linear(width) -> split_heads(heads), k, k, mask: causal) -> merge_heads)
}
"""


def of_blocks(body: str, more: str = "") -> Any:
    text = f"{BLOCKS}{more}model m(vocab = 40, width = 16, layers = 2)(tokens: token[batch, time]) {{\n"
    text += f"  x = tokens -> embedding(vocab, width)\n  {body}\n  return x -> linear(vocab) as head\n}}"
    return archdsl.load(text=text)


FLAT = "x = x -> flatten(0, 1) -> linear(width) as flat -> unflatten(0, batch, time)"
STANDING = {
    "in unlike iterations": "for b in [m_model, m_model(heads: 4)] { x = x -> b\n x = concat(x, x) }\n x = x -> near",
    "of two kinds in such": "x = x -> near\n for b in 2 * (near + m_model) { x = x -> b as bs\n x = concat(x, x) }",
    "in two lists": "for b in layers * m_model { x = x -> b as bs }\n for b in 2 * near { x = x -> b }\n x = x -> near",
    "two in a layer": "for b in layers * (two(again: m_model) + near) { x = x -> b as bs }",
    "two in a block": "for b in layers * even { x = x -> b as bs\n x = x -> plain as ps }",
    "before sizes of the sequence": f"x = x -> near\n {FLAT}",
    "where training has another": "if training { x = x -> plain } else { x = x -> m_model }\n x = x -> m_model",
    "of keys that blocks make": "for b in layers * called { x = x -> b as bs }",
    "beside sines": "x += cast_like(sinusoid(time, width), x)\n x = x -> near\n t = sinusoid(time, 8)\n"
    " x += ((x -> split_heads(2)) + cast_like(t, x)) -> merge_heads",
    "between such": f"for i in 2 {{ {FLAT} }}\n x = x -> near\n {FLAT}",
}


@pytest.mark.parametrize("name", STANDING)
def test_wherever_attention_stands_it_has_a_place_in_the_cache(name: str, tmp_path: Path) -> None:
    """Also where a block is called as the library's class of the model would be."""
    model = of_blocks(STANDING[name])
    archdsl.init_weights(model, tmp_path / "w.safetensors")
    archdsl.to_huggingface(model, tmp_path / "hf", weights=tmp_path / "w.safetensors", native=False)
    ours: Any = load_source(emit(model))().eval()
    ours.load_state_dict(load_file(tmp_path / "w.safetensors"))
    theirs = loaded(tmp_path / "hf")
    tokens = torch.randint(40, (2, 11), generator=torch.Generator().manual_seed(0))
    first = theirs(tokens[:, :5], use_cache=True)
    second = theirs(tokens[:, 5:], past_key_values=first.past_key_values, use_cache=True)
    assert difference(theirs(tokens).logits, ours(tokens)) < TOLERANCE
    assert difference(torch.cat((first.logits, second.logits), 1), ours(tokens)) < TOLERANCE


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("for b in layers * plain { x = x -> b }", "it has no attention whose keys and values a cache could hold"),
        ("for b in 2 * (m_model + plain) { x = x -> b }", "with attention and layers without it stand in one loop"),
        ("for b in 2 * two(again: near) { x = x -> b }", "its layers attend in several ways each"),
        ("x = x -> near -> mha(heads: 2, mask: causal & window(5))", "windows of several sizes, and a Config has one"),
        ("x = x -> biased", "its attention has both a window and a bias of scores"),
        ("x = x -> odd", "a block of it attends in two ways, of different scale"),
        ("x = x -> headless", "`sdpa` is attention without an axis of heads"),
        ("k = x -> linear(width) -> split_heads(2)\n for b in 2 * shared_keys { x = b(x, k) }", "`k`, of which all"),
        ("q = x -> linear(width) -> split_heads(2)\n x += sdpa(q, x -> linear(width) -> split_heads(2), "
         "x -> linear(width) -> split_heads(2), mask: causal) -> merge_heads", "`sdpa` stands outside of a block"),
        ("x = x -> looped", "`sdpa` stands in a loop, and not in a block that the loop calls"),
        ("x = x -> trained", "`sdpa` attends where `if training` holds, and has no place in the cache there"),
        ("if training { x = x -> near as n } else { x = x -> plain }\n x = x -> near",
         "`sdpa` attends where `if training` holds"),
        ("buffer b: [time] = 0.1 * indices(time)\n x = x -> near -> transpose(1, 2)\n x = (x * b) -> transpose(1, 2)",
         "it makes biases, masks or tables of positions itself"),
        ("x = x -> near\n t = indices(time) + ones(time)\n x += t -> cast_like(x) -> unsqueeze(-1)",
         "`indices` makes a table of all positions, in a way that has no decode step"),
        ("x = (x -> pad(2, axis: 1) -> near)[:, 2:]", "places in front of the tokens go through its layers"),
        ("x += x -> near -> cumsum(axis: 1)", "`cumsum` hands a state from each position to the next"),
        ("assert time % 2 == 0\n x = x -> near", "it has a condition on the length of a sequence: `time % 2 == 0`"),
        ("x = x -> near\n loss size = mean(x * x, axis: [0, 1, 2])", "it has a loss of its own, `size`"),
        ("let s = shared(near)\n x = x -> s -> s", "`near` is one layer that is used several times: it has one place"),
        ("x = x -> near\n t = indices(time) -> embedding(64, width)\n x += t -> cumsum(axis: 0)",
         "`indices` makes a table of all positions, in a way that has no decode step"),
        ("x = x -> near\n t = indices(time) -> embedding(64, width)\n x += t -> roll(1, axis: 0)",
         "`m` cannot be decoded step by step: the result of `roll` changes with each position that follows"),
    ],
    ids=str,
)  # fmt: skip
def test_attention_that_the_library_cannot_hold_is_refused(body: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ArchError) as caught:
        archdsl.to_huggingface(of_blocks(body), tmp_path / "hf", native=False)
    (problem,) = caught.value.diagnostics
    assert (problem.code, why in problem.message) == ("E0534", True), problem.message
    assert not (tmp_path / "hf").exists()
    if "decodes it" in problem.help:
        assert archdsl.torch_source(of_blocks(body), features=["generate"])


def test_a_number_may_be_called_as_the_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "enabled", True)
    text = "block layer { attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 16) }\n"
    text += "model m(time = 3) { vocab: 32 context: 8 * time width: 8 blocks: time * layer head: lm }"
    model = archdsl.load(text=text)
    archdsl.to_huggingface(model, tmp_path / "hf", seed=0, native=False)
    theirs, tokens = loaded(tmp_path / "hf"), torch.arange(10)[None]
    first = theirs(tokens[:, :5], use_cache=True)
    assert len(first.past_key_values.layers) == 3
    second = theirs(tokens[:, 5:], past_key_values=first.past_key_values)
    assert difference(second.logits, theirs(tokens).logits[:, 5:]) < TOLERANCE


NORMED = """
block normed(x: [batch, time, width]) -> [batch, time, width] {
  return x + (x -> linear(width) as q -> rmsnorm as q_norm)
}
block step(x: [batch, width], h: [batch, width], z: [batch, width]) -> [batch, width] {
  return tanh((x -> linear(width) as w) + (h -> linear(width) as u) + (z -> linear(width) as w_r))
}
block scanned(z: [rows, channels]) -> [rows, channels] {
  parts = z -> unflatten(-1, 4, 4)
  ys = scan h: [rows, 4] = parts[:, 1] for x in parts { h = step(x, h, parts[:, 0])
    emit h
  }
  return ys -> flatten(1, 2)
}
"""
ONE_BLOCK = {
    "applied twice": "let s = shared(normed)\n x = x -> near -> s -> s",
    "handed on": "let s = shared(normed)\n for b in 2 * two(again: s) { x = x -> b as bs }",
    "split by a scan": "x = x -> near\n x = x -> flatten(0, 1) -> scanned -> unflatten(0, batch, time)",
}


@pytest.mark.parametrize("what", ONE_BLOCK)
def test_a_block_in_several_places_is_one_class(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has layers that are called otherwise in a folder."""
    monkeypatch.setattr(verify, "enabled", True)
    model = of_blocks(ONE_BLOCK[what], NORMED)
    archdsl.init_weights(model, tmp_path / "w.safetensors")
    archdsl.to_huggingface(model, tmp_path / "hf", weights=tmp_path / "w.safetensors", native=False)
    text = (tmp_path / "hf" / "modeling_m.py").read_text()
    assert text.count("class Normed(") + text.count("class Step(") == 1
    assert text.count("Normed(") + text.count("Step(") == 2
    ours: Any = load_source(emit(model))().eval()
    ours.load_state_dict(load_file(tmp_path / "w.safetensors"))
    tokens = torch.randint(40, (2, 7), generator=torch.Generator().manual_seed(0))
    assert difference(loaded(tmp_path / "hf")(tokens).logits, ours(tokens)) < TOLERANCE


def test_rates_of_dropout_that_a_checkpoint_says_otherwise_are_told() -> None:
    text = "block layer {{ attention: mha(heads: 2) mask: causal ffn: mlp(hidden: 8) dropout: {rate} }}\n"
    text += "model m {{ vocab: 32 context: 16 width: 8 blocks: 2 * layer head: lm }}"
    dropped, plain = (archdsl.load(text=text.format(rate=rate)) for rate in ("0.1", "0.0"))
    said = {"attn_pdrop": 0.1, "dropout_kind": "rows", "hidden_size": 3, "classifier_dropout": None, "resid_pdrop": 0}
    assert other_dropout(dropped, said) == ""
    assert "the spec's, none; the checkpoint's config has attn_pdrop 0.1" in other_dropout(plain, said)
    assert "the spec's, 0.1; the checkpoint's config has none" in other_dropout(dropped, {"hidden_size": 0.1})
    assert "the checkpoint's config has dropout 1" in other_dropout(dropped, {"dropout": 1})


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_cannot_hold_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArchError) as caught:
        archdsl.to_huggingface(f"{SPECS}/{name}", tmp_path / "hf", native=False)
    (problem,) = caught.value.diagnostics
    assert problem.code == "E0534"
    assert REFUSED[name] in problem.message
    assert problem.help
    assert not (tmp_path / "hf").exists()


LAYERS = """
block near() {
  attention: gqa(heads: 4, kv_heads: 2)
  mask:      causal & window(8)
  ffn:       swiglu(hidden: 64)
  norm:      rmsnorm
}
block far() {
  attention: gqa(heads: 4, kv_heads: 2)
  mask:      causal
  position:  rope
  ffn:       swiglu(hidden: 64)
  norm:      rmsnorm
}
block two(x: [batch, time, width]) -> [batch, time, width] {
  return x -> mha(heads: 2, mask: causal) as a -> mha(heads: 2, mask: causal) as b
}
model mixed(layers = 2, last = 1) {
  vocab:   50
  context: 64
  width:   32
  blocks:  LIST
  norm:    rmsnorm
  head:    lm
}
"""


def places(layers: str) -> tuple[str, str]:
    """The configuration of a model with a list of layers, and what makes the list."""
    from archdsl.backends.huggingface.module import LibraryWriter

    model = archdsl.load(text=LAYERS.replace("LIST", layers))
    configuration, modeling = LibraryWriter(model, "mixed").written()
    (made,) = re.findall(r"self\.blocks = (.*?)\n        self\.norm", modeling, re.DOTALL)
    return configuration, " ".join(made.split())


@pytest.mark.parametrize(
    "layers",
    [
        "layers * (2 * (2 * (far + near) + two) + far)",
        "2 * (layers * (last * near + far) + two)",
        "2 * (layers * (last * near)) + layers * two",
    ],
)
def test_layers_of_repetitions_know_their_places(layers: str) -> None:
    """Each is given the next place, one of two attentions the next two; Python adds and multiplies lists as specs
    do."""
    numbers = {"layers": 2, "last": 1}
    given: list[tuple[str, int]] = []
    for name in eval(layers, numbers | {name: [name] for name in ("near", "far", "two")}):
        given.append((name, given[-1][1] + 1 + (given[-1][0] == "two") if given else 0))
    classes: Any = {n.capitalize(): lambda config, i, n=n: (n, i) for n in ("near", "far", "two")}
    scope = classes | {"nn": SimpleNamespace(ModuleList=list), "config": SimpleNamespace(**numbers)}
    configuration, made = places(layers)
    assert eval(made, scope) == given
    kinds = [["sliding_attention"] if n == "near" else (1 + (n == "two")) * ["full_attention"] for n, _ in given]
    (said,) = re.findall(r"def layer_types.*?\n        return (.*?)\n(?:\n|$)", configuration, re.DOTALL)
    assert eval(f"({said})", {"self": SimpleNamespace(**numbers)}) == [kind for each in kinds for kind in each]


def test_layers_know_their_places() -> None:
    configuration, made = places("layers * (5 * near + far) + last * far")
    assert "return self.layers * 6 + self.last" in configuration
    assert 'self.layers * (5 * ["sliding_attention"] + ["full_attention"])' in configuration
    assert made == (
        "nn.ModuleList( [ *( layer for i in range(0, config.layers * 6, 6) for layer in "
        "(*(Near(config, j) for j in range(i, i + 5)), Far(config, i + 5)) ), "
        "*(Far(config, i) for i in range(config.layers * 6, config.layers * 6 + config.last)), ] )"
    )


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("past_key_values.update(k, v, self.layer_idx)", "past_key_values.update(v, k, self.layer_idx)"),
        ("k, v = past_key_values.update", "v, k = past_key_values.update"),
        ("        if past_key_values is not None:", "        if past_key_values is None:"),
        ("Attention(config, layer_idx)", "Attention(config, 0)"),
        ("Decoder(config, i) for i", "Decoder(config, i + 1) for i"),
        ("self.scaling = self.head_dim**-0.5", "self.scaling = self.head_dim**-1"),
        ("config.heads // config.kv_heads", "config.heads // config.heads"),
        ("q, k = rotate(q, rope), rotate(k, rope)", "q, k = rotate(q, rope), rotate(q, rope)"),
        ("y.reshape(*x.shape[:-1], -1)", "y.reshape(*x.shape[1:], -1)"),
        ("dropout=0.0, **kwargs)", "dropout=0.0)"),
        (
            "attention_mask=attention_mask,\n            past_key_values=past",
            "attention_mask=None,\n            past_key_values=past",
        ),
        ("[None] + past", "[None]"),
        ("out.last_hidden_state[:, keep]", "out.last_hidden_state"),
        ("vocab_size=self.config.vocab, **kwargs", "vocab_size=self.config.width, **kwargs"),
        ("vocab: int = 97", "vocab: int = 96"),
    ],
)
def test_a_file_that_is_not_what_was_meant_is_never_written(right: str, wrong: str) -> None:
    from archdsl.backends.huggingface.module import LibraryWriter
    from archdsl.backends.torch.validate import InvalidError, validate

    writer = LibraryWriter(archdsl.load(f"{SPECS}/{LLAMA}", set=FAMILIES[LLAMA]), "llama")
    text = "\n\n".join(writer.written())
    assert right in text
    validate(text, writer.classes)
    with pytest.raises(InvalidError):
        validate(text.replace(right, wrong), writer.classes)


# --- names that are taken ---------------------------------------------------------------------------------------------


def test_attributes_of_the_libraries_are_reserved() -> None:
    """What a submodule would hide, in this PyTorch and this transformers."""
    from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
    from transformers.modeling_layers import GradientCheckpointingLayer

    class Decoder(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
        config_class = PreTrainedConfig

    for module in (nn.Module(), Decoder(PreTrainedConfig()), GradientCheckpointingLayer()):
        attributes = {name for name in dir(module) if not name.startswith("__")}
        assert not [name for name in attributes if not is_reserved(name)]


def test_a_folder_of_layers_called_like_methods(tmp_path: Path) -> None:
    model = archdsl.load(text=HOSTILE_SPEC)
    archdsl.init_weights(model, tmp_path / "w.safetensors")
    archdsl.to_huggingface(model, tmp_path / "hf", weights=tmp_path / "w.safetensors", native=False)
    plain: Any = load_source(emit(model))()
    plain.load_state_dict(load_file(tmp_path / "w.safetensors"))
    made = loaded(tmp_path / "hf")
    tokens = torch.randint(97, (2, 5))
    torch.testing.assert_close(made(tokens).logits, plain.eval()(tokens))
    assert made.device.type == "cpu"
    assert made.num_parameters() == sum(w.size for w in weights(model))
    assert made.generate(tokens, **GREEDY).size(1) > 5


def test_unnamed_norms_make_a_folder(tmp_path: Path) -> None:
    text = """
block layer(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> layernorm -> mha(heads: 4, mask: causal)
  x += x -> layernorm -> linear(width) -> relu -> linear(width)
  x += x -> mlp(hidden: 4) as weights -> linear(width) as weights_init
}
model m(layers = 2) {
  vocab:   64
  context: 16
  width:   16
  blocks:  layers * layer
  norm:    layernorm
  head:    lm
}
"""
    archdsl.to_huggingface(archdsl.load(text=text), tmp_path / "hf", native=False)
    assert "layernorm_2" in (tmp_path / "hf" / "modeling_m.py").read_text()


def test_a_hyper_parameter_called_like_what_layers_are_given(tmp_path: Path) -> None:
    text = HOSTILE_SPEC.replace("(step: number)", "(layer_idx: number)").replace("* step", "* layer_idx")
    model = archdsl.load(text=text.replace("(step: 0.1)", "(layer_idx: 0.1)"))
    with pytest.raises(ArchError) as raised:
        archdsl.to_huggingface(model, tmp_path / "hf", native=False)
    assert raised.value.diagnostics[0].code == "E0534"
    assert "`layer_idx` of `layer`" in str(raised.value)


@pytest.mark.parametrize("name", ["tie_word_embeddings", "use_cache", "pad_token_id"])
def test_a_configuration_with_another_field_of_the_library_is_refused(name: str) -> None:
    writer = LibraryWriter(archdsl.load("gpt2"), "gpt2")
    configuration, modeling = writer.written()
    (line,) = re.findall(rf"    {name}: .* = .*\n", configuration)
    with pytest.raises(InvalidError, match=f"the Config's `{name}` is not "):
        validate(configuration.replace(line, f"    {name}: int = 3\n") + "\n\n\n" + modeling, writer.classes)


ONE = """
model one(width = 8, vocab = 11)(tokens: token[batch, time]) -> [batch, time, vocab] {
  x = tokens -> embedding(vocab, width)
  x += x -> mha(heads: 1, mask: causal)
  return x -> linear(vocab, bias: false) as out
}"""


def test_a_model_that_devices_could_not_share_has_no_plans(tmp_path: Path) -> None:
    """Neither a list of layers nor heads: it is written, and computes what it does in plain PyTorch."""
    plain: Any = archdsl.to_torch(text=ONE)
    save_file({k: v.contiguous() for k, v in plain.state_dict().items()}, tmp_path / "own.safetensors")
    archdsl.to_huggingface(archdsl.load(text=ONE), tmp_path / "hf", weights=tmp_path / "own.safetensors", native=False)
    assert "_plan" not in (tmp_path / "hf" / "configuration_one.py").read_text()
    tokens = torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(0))
    assert difference(loaded(tmp_path / "hf")(tokens).logits, plain.eval()(tokens)) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "nearest"), [("gpt3_small", r" \(the nearest: `\w+` computes `sdpa` with another mask\)"), ("one", "")]
)
def test_why_classes_are_written_is_told(name: str, nearest: str, tmp_path: Path) -> None:
    model = archdsl.load(name) if nearest else archdsl.load(text=ONE)
    told: list[str] = []
    archdsl.to_huggingface(model, tmp_path / "hf", remark=told.append)
    (said,) = told
    assert re.fullmatch(f"`{name}` is not a known type of transformers{nearest}: written as remote code", said)
    assert (tmp_path / "hf" / f"modeling_{name}.py").exists()
