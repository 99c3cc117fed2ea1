"""The files by which programs know a graph: `config.json`, which optimum and transformers.js read, and
`genai_config.json` of onnxruntime-genai.

Runtimes that generate hold keys and values of one shape for all layers and feed token ids, a mask and positions; none
knows the architecture. What they must be told is read off the graph and the step that it is of.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
from pydantic import BaseModel, Field

from archdsl.backends.onnx.builder import CONTRIB
from archdsl.backends.onnx.seq2seq import DECODER, unlike, write_pair
from archdsl.backends.onnx.step import write_steps
from archdsl.backends.onnx.store import OnnxFiles, Storage, Store, graph_path, save
from archdsl.backends.onnx.targets import TARGETS, GraphOptions, Target
from archdsl.backends.onnx.tokens import Tokens, with_those_of
from archdsl.backends.onnx.write import Written, write
from archdsl.diagnostics import error
from archdsl.estimates.params import vocabulary
from archdsl.files import together, write_text
from archdsl.frozen import Frozen
from archdsl.ir.graph import Model
from archdsl.passes.flat_step import FlatStep, decode_step, unroll_step
from archdsl.passes.flatten import FlatOp
from archdsl.passes.step import stepped
from archdsl.weights.carried import carried, copy, demand_tokens

FED = ("input_ids", "attention_mask", "position_ids")
"""What both runtimes feed, beside keys and values."""

PORTABLE = "`--target portable` writes the graph, which a program of your own feeds"

_PAST = re.compile(r"past_key_values\.(\d+)\.(.+)")


class Configs(Frozen):
    """The files, by name; and why one or both are missing, "" where none is."""

    files: Mapping[str, BaseModel]
    missing: str


class JavaScriptConfig(BaseModel):
    """What transformers.js must be told of a graph."""

    use_external_data_format: bool
    """Whether weights are in `model.onnx_data`."""


class CausalConfig(BaseModel):
    """`config.json`. optimum reads the number of heads of keys and values off it, and their size, where it expects them
    by `model_type`: a name from its list, chosen by these sizes alone. Ids that are not known are written as null,
    since each such name has defaults of its own."""

    model_type: str
    """`llama`: the heads of queries make up the width. `gemma`: they need not. `deepseek_v3`: keys and values differ in
    size."""
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int | None
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    javascript: JavaScriptConfig = Field(serialization_alias="transformers.js_config")


class UnevenConfig(CausalConfig):
    """The same, where keys and values differ in size."""

    qk_nope_head_dim: int
    qk_rope_head_dim: int = 0
    v_head_dim: int


class EncoderConfig(BaseModel):
    """`config.json` of a model that does not generate. Programs find the class of a model by `model_type` and
    `architectures`, and read the number of classes off `id2label`."""

    model_type: str
    """`bert` or `distilbert`, with and without segments; `vit`."""
    architectures: list[str]
    hidden_size: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    id2label: dict[int, str] | None = None
    label2id: dict[str, int] | None = None
    javascript: JavaScriptConfig = Field(serialization_alias="transformers.js_config")


class EncoderDecoderConfig(BaseModel):
    """`config.json` of an encoder beside a decoder. Programs know it as T5, whose fields have all that they ask for:
    the number of heads, their size and that of the vocabulary."""

    model_type: str = "t5"
    architectures: list[str] = Field(default=["T5ForConditionalGeneration"])
    is_encoder_decoder: bool = True
    d_model: int
    d_kv: int
    num_heads: int
    num_layers: int
    num_decoder_layers: int
    vocab_size: int
    decoder_start_token_id: int
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int
    javascript: JavaScriptConfig = Field(serialization_alias="transformers.js_config")


class GenaiInputs(BaseModel):
    """Names of inputs; `%d` is the layer."""

    input_ids: str = "input_ids"
    attention_mask: str | None = None
    position_ids: str | None = None
    past_key_names: str = "past_key_values.%d.key"
    past_value_names: str = "past_key_values.%d.value"


class GenaiOutputs(BaseModel):
    """Names of outputs."""

    logits: str
    present_key_names: str = "present.%d.key"
    present_value_names: str = "present.%d.value"


class GenaiDecoder(BaseModel):
    """The graph: its file, its sizes and its names."""

    filename: str
    head_size: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    inputs: GenaiInputs
    outputs: GenaiOutputs


class GenaiModel(BaseModel):
    """The model: `decoder` is any that generates token by token."""

    type: str = "decoder"
    bos_token_id: int | None
    eos_token_id: list[int] | None
    """Without one, the runtime takes the padding for it."""
    pad_token_id: int
    context_length: int
    vocab_size: int
    decoder: GenaiDecoder


class GenaiSearch(BaseModel):
    """Greedy, as long as the context: a program sets what it wants."""

    do_sample: bool = False
    max_length: int
    past_present_share_buffer: bool
    """Whether keys and values of all places may be written where those before lie: only attention that appends to its
    caches itself does it."""


class GenaiConfig(BaseModel):
    """`genai_config.json`."""

    model: GenaiModel
    search: GenaiSearch


class _Sizes(Frozen):
    layers: int
    kv_heads: int
    key: int
    value: int
    heads: int
    width: int
    vocab: int
    logits: str
    inputs: frozenset[str]
    in_place: bool


class _UnlikeError(Exception):
    """The runtimes cannot feed the graph."""


@together()
def save_graph(model: Model, output: str | Path, options: GraphOptions, storage: Storage) -> OnnxFiles:
    """Write the graph of a model for whole sequences, its weights, and, into a directory, what optimum and
    transformers.js must be told of a model that does not generate. Errors as of `write` and `save`."""
    path = graph_path(output)
    written = write(model, options)
    whole = path != Path(output)
    config = encoder_config(model, written, storage.store) if whole else None
    if decode_step(model)[0] is not None:
        why, instead = "the model generates: it runs decode steps", "`--decode`"
    else:
        why, instead = "it feeds `input_ids`, `attention_mask` and `token_type_ids`, or `pixel_values`", PORTABLE
    files_too = ["config.json"] if config is not None else []
    _demand_files(TARGETS[options.target], files_too, whole, why, instead, storage.store)
    files = save({path: written}, model, storage)
    if not whole:
        return files
    found = copy(carried(model, storage.weights), path.parent)
    if config is not None:
        found.insert(0, path.with_name("config.json"))
        write_text(found[0], text(config))
    return replace(files, configs=tuple(found))


@together()
def save_steps(model: Model, output: str | Path, tokens: Tokens, options: GraphOptions, storage: Storage) -> OnnxFiles:
    """Write the graphs that generate, their weights in one file, and, into a directory, what runtimes must be told.

    Errors as of `write_steps` and `save`; ArchError E0504 also where `tokens` says something and no file would hold it,
    or names none of the vocabulary."""
    path, target, store = graph_path(output), TARGETS[options.target], storage.store
    whole = path != Path(output)
    if tokens != Tokens() and not whole:
        raise error(
            "E0504",
            "ids of tokens go into config.json and genai_config.json, which only a directory gets",
            help=f"`-o {path.with_suffix('')}/`",
        )
    steps = unroll_step(stepped(model))
    along = carried(model, storage.weights) if whole else {}
    paired = bool(target.pair_stores and steps.before.outputs and whole and not unlike(steps))
    if paired:
        if store not in target.pair_stores:
            why = f"{target.name} looks for the weights of each of the two graphs beside it"
            raise error("E0504", why, help=f"`--store {target.pair_stores[0]}`")
        graphs = write_pair(steps, options)
        found = Configs({"config.json": _paired(graphs, tokens, along, store)}, "")
    else:
        graphs = write_steps(model, options, steps)
        found = configs(model, steps, graphs, path.name, tokens, along, store) if whole else Configs({}, "")
    _demand_files(target, found.files, whole, found.missing, PORTABLE, store)
    paths = {path: graphs["model"]} if not paired else {path.with_name(f"{n}.onnx"): g for n, g in graphs.items()}
    if "encoder" in graphs:
        name = f"{path.stem}_encoder.onnx" if path.stem != "model" else "encoder.onnx"
        paths[path.with_name(name)] = graphs["encoder"]
    files = save(paths, model, storage)
    written = copy(along, path.parent)
    for name, config in found.files.items():
        written.append(path.with_name(name))
        write_text(written[-1], text(config))
    return replace(files, configs=tuple(written), remark=found.missing)


def configs(
    model: Model,
    steps: FlatStep,
    graphs: Mapping[str, Written],
    filename: str,
    tokens: Tokens,
    along: Mapping[str, Path],
    store: Store,
) -> Configs:
    """The files for the graphs of a model, whose step lies in `filename` beside them; `along` are those that go with
    its weights.

    Raises ArchError E0504 where an id of `tokens` is not of the vocabulary."""
    try:
        sizes = _sizes(model, steps, graphs)
    except _UnlikeError as problem:
        return Configs({}, f"no config.json and no genai_config.json, {problem}: a program feeds the graph itself")
    _demand(tokens, sizes.vocab)
    tokens = with_those_of(tokens, along, sizes.vocab)
    context = _context(model)
    files: dict[str, BaseModel] = {}
    missing = []
    if sizes.logits == "logits":
        files["config.json"] = _causal(sizes, context, tokens, store)
    else:
        missing.append(f"no config.json, since optimum expects an output called logits, not {sizes.logits}")
    if sizes.key != sizes.value:
        text = f"its keys and values have one size, and these have {sizes.key} and {sizes.value}"
        missing.append(f"no genai_config.json for onnxruntime-genai: {text}")
    elif context is None:
        missing.append("no genai_config.json, since onnxruntime-genai needs a context and the model has none")
    else:
        files["genai_config.json"] = _genai(sizes, context, filename, tokens)
        if not tokens.end:
            end = f"token {_padding(tokens)}, which pads"
            missing.append(f"no token is known to end a text: onnxruntime-genai ends at {end}; `--eos-token-id N`")
    return Configs(files, "; ".join(missing))


def _paired(
    graphs: Mapping[str, Written], tokens: Tokens, along: Mapping[str, Path], store: Store
) -> EncoderDecoderConfig:
    graph = graphs[DECODER].model.graph
    pasts = [x for x in graph.inputs if str(x.name).endswith("decoder.key")]
    (_, heads, _, size), vocab = _shape(pasts[0]), int(_shape(graph.outputs[0])[-1])
    _demand(tokens, vocab)
    tokens = with_those_of(tokens, along, vocab)
    return EncoderDecoderConfig(
        d_model=int(heads) * int(size),
        d_kv=int(size),
        num_heads=int(heads),
        num_layers=len(pasts),
        num_decoder_layers=len(pasts),
        vocab_size=vocab,
        decoder_start_token_id=_padding(tokens) if tokens.begin is None else tokens.begin,
        bos_token_id=tokens.begin,
        eos_token_id=_end(tokens),
        pad_token_id=_padding(tokens),
        javascript=_javascript(store),
    )


def encoder_config(model: Model, written: Written, store: Store) -> EncoderConfig | None:
    """`config.json` for a graph of whole sequences; None where programs cannot feed it, or where it generates, which
    is for `--decode`."""
    graph = written.model.graph
    inputs, output = {str(x.name) for x in graph.inputs}, graph.outputs[0]
    if not (inputs <= {*FED, "token_type_ids"} and "input_ids" in inputs) and inputs != {"pixel_values"}:
        return None
    shape, vocab = _shape(output), vocabulary(model)
    last = shape[-1]
    if not isinstance(last, int) or decode_step(model)[0] is not None:
        return None
    kind = "vit" if "pixel_values" in inputs else "bert" if "token_type_ids" in inputs else "distilbert"
    base = {"vit": "ViT", "bert": "Bert", "distilbert": "DistilBert"}[kind]
    fields: dict[str, Any] = {"model_type": kind, "vocab_size": vocab, "hidden_size": _width(model)}
    fields |= {"max_position_embeddings": _context(model), "javascript": _javascript(store)}
    if output.name == "last_hidden_state":
        return EncoderConfig(architectures=[f"{base}Model"], **fields)
    if last == vocab and len(shape) == 3:
        return EncoderConfig(architectures=[f"{base}ForMaskedLM"], **fields)
    task = "TokenClassification" if len(shape) == 3 else "ImageClassification" if kind == "vit" else None
    labels = [f"LABEL_{i}" for i in range(last)]
    fields |= {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    return EncoderConfig(architectures=[f"{base}For{task or 'SequenceClassification'}"], **fields)


def _demand_files(target: Target, files: Collection[str], whole: bool, why: str, instead: str, store: Store) -> None:
    """Raise ArchError E0504 where the program that a target names could not run what would be written."""
    if store not in target.stores:
        raise error(
            "E0504", f"{target.name} does not read weights from safetensors", help=f"`--store {target.stores[0]}`"
        )
    if not target.reads or target.reads in files:
        return
    if not whole:
        raise error("E0504", f"{target.name} looks for {target.reads} beside the graph", help="`-o DIRECTORY/`")
    raise error("E0504", f"{target.name} cannot run this graph", notes=[why], help=instead)


def _javascript(store: Store) -> JavaScriptConfig:
    return JavaScriptConfig(use_external_data_format=store == "onnx_data")


def _width(model: Model) -> int | None:
    return next((int(f.value) for f in model.config if f.name == "width" and f.value.static), None)


def _context(model: Model) -> int | None:
    return int(model.context) if model.context is not None and model.context.static else None


def text(config: BaseModel) -> str:
    """The file of a configuration. optimum has defaults of its own for what a decoder does not say, which are null;
    other fields that say nothing are left out."""
    silent = not isinstance(config, CausalConfig | EncoderDecoderConfig)
    return config.model_dump_json(indent=2, exclude_none=silent, by_alias=True) + "\n"


def _demand(tokens: Tokens, vocab: int) -> None:
    ids = {"bos_token_id": tokens.begin, "eos_token_id": tokens.end, "pad_token_id": tokens.padding}
    demand_tokens("E0504", ids, vocab)


def _sizes(model: Model, steps: FlatStep, graphs: Mapping[str, Written]) -> _Sizes:
    if "encoder" in graphs:
        why = unlike(steps)
        raise _UnlikeError(why or "since the model has an encoder, for which `--target optimum` has graphs of its own")
    if steps.of.led:
        raise _UnlikeError("since the cache holds places in front of the tokens, which no runtime counts")
    graph = graphs["model"].model.graph
    kept: dict[int, dict[str, tuple[int, ...]]] = {}
    inputs = {str(x.name): x for x in graph.inputs}
    if "input_ids" not in inputs:
        raise _UnlikeError("since the model reads no token ids")
    for name, x in inputs.items():
        past = _PAST.fullmatch(name)
        if past is None:
            if name not in FED:
                raise _UnlikeError(f"since nothing feeds `{name}`")
            continue
        layer, role = int(past[1]), past[2]
        shape = _shape(x)
        fits = len(shape) == 4 and isinstance(shape[1], int) and isinstance(shape[3], int)
        if role not in ("key", "value") or not fits:
            raise _UnlikeError(f"since `{name}` holds neither keys nor values")
        kept.setdefault(layer, {})[role] = (int(shape[1]), int(shape[3]))
    if not kept:
        raise _UnlikeError("since the model keeps nothing of the tokens before")
    if sorted(kept) != [*range(len(kept))] or any(len(roles) != 2 for roles in kept.values()):
        raise _UnlikeError("since not every layer keeps keys and values of its own")
    shapes = {(roles["key"], roles["value"]) for roles in kept.values()}
    if len(shapes) > 1 or any(key[0] != value[0] for key, value in shapes):
        raise _UnlikeError("since keys and values differ in size from layer to layer")
    ((kv_heads, key), (_, value)) = next(iter(shapes))
    logits, presents = graph.outputs[0], graph.outputs[len(steps.of.results) :]
    vocab = _shape(logits)[-1]
    if len(_shape(logits)) != 3 or not isinstance(vocab, int):
        raise _UnlikeError(f"since `{logits.name}` is not a number for each token of a vocabulary")
    heads = _heads(steps)
    width = _width(model) or heads * key
    in_place = all(_appended(x) for x in presents)
    return _Sizes(len(kept), kv_heads, key, value, heads, width, vocab, str(logits.name), frozenset(inputs), in_place)


def _shape(x: ir.Value) -> tuple[int | str, ...]:
    assert x.shape is not None
    return tuple(d if isinstance(d, int) else str(d) for d in x.shape)


def _heads(steps: FlatStep) -> int:
    """The most heads of queries that a layer has."""
    found = [1]
    for node in steps.step.nodes:
        if isinstance(node, FlatOp) and node.node.op.cached_inputs(node.node) and node.outputs[0].rank == 4:
            found.append(int(node.outputs[0].shape[1]))
    return max(found)


def _appended(present: ir.Value) -> bool:
    """Whether an output comes from an operator that writes behind what it is given."""
    x: ir.Value | None = present
    node = x.producer() if x is not None else None
    while node is not None and node.op_type == "Identity":
        x = node.inputs[0]
        node = x.producer() if x is not None else None
    return node is not None and node.domain == CONTRIB


def _causal(sizes: _Sizes, context: int | None, tokens: Tokens, store: Store) -> CausalConfig:
    whole = sizes.heads * sizes.key == sizes.width
    found = CausalConfig(
        model_type="llama" if whole else "gemma",
        hidden_size=sizes.width,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        num_hidden_layers=sizes.layers,
        head_dim=sizes.key,
        vocab_size=sizes.vocab,
        max_position_embeddings=context,
        bos_token_id=tokens.begin,
        eos_token_id=_end(tokens),
        pad_token_id=_padding(tokens),
        javascript=_javascript(store),
    )
    if sizes.key == sizes.value:
        return found
    fields = dict(found) | {"model_type": "deepseek_v3"}
    return UnevenConfig(**fields, qk_nope_head_dim=sizes.key, v_head_dim=sizes.value)


def _genai(sizes: _Sizes, context: int, filename: str, tokens: Tokens) -> GenaiConfig:
    has = sizes.inputs
    return GenaiConfig(
        model=GenaiModel(
            bos_token_id=tokens.begin,
            eos_token_id=list(tokens.end) or None,
            pad_token_id=_padding(tokens),
            context_length=context,
            vocab_size=sizes.vocab,
            decoder=GenaiDecoder(
                filename=filename,
                head_size=sizes.key,
                hidden_size=sizes.width,
                num_attention_heads=sizes.heads,
                num_key_value_heads=sizes.kv_heads,
                num_hidden_layers=sizes.layers,
                inputs=GenaiInputs(
                    attention_mask="attention_mask" if "attention_mask" in has else None,
                    position_ids="position_ids" if "position_ids" in has else None,
                ),
                outputs=GenaiOutputs(logits=sizes.logits),
            ),
        ),
        search=GenaiSearch(max_length=context, past_present_share_buffer=sizes.in_place),
    )


def _end(tokens: Tokens) -> int | list[int] | None:
    return None if not tokens.end else tokens.end[0] if len(tokens.end) == 1 else list(tokens.end)


def _padding(tokens: Tokens) -> int:
    return tokens.padding if tokens.padding is not None else tokens.end[0] if tokens.end else 0
