"""Hugging Face folders: `config.json`, safetensors in one file or several, and their tensors as weights of a spec.

A folder is untrusted: it names things and never runs them. Pickles are not read, and `auto_map` is ignored.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from archdsl.diagnostics import ArchError, Diagnostic, error, nearest, shortened
from archdsl.diagnostics.source import Source, printable
from archdsl.files import MAX_CONFIG, MAX_JSON, make_folder, read_bytes, read_json, write_text, written_beside
from archdsl.interop.checkpoint_file import CheckpointFile, MappedField, shipped
from archdsl.interop.importing import CONSTANTS, MOST_LAYERS, Layers, counts_of, numbers_of, whole, worth
from archdsl.interop.mapping import Mapper, Shape, pattern
from archdsl.passes.outline import OWN_TYPE
from archdsl.syntax.parse import parse_expression, read_source
from archdsl.weights.carried import files_beside_tensors
from archdsl.weights.safetensors import READABLE, Checkpoint, Progress, kind_of, saved, write_raw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archdsl.ir.graph import Model

SHARD = 5_000_000_000
"""Bytes of a file, of which a folder holds several where there is more."""

INDEX_FILE = "model.safetensors.index.json"
"""Which tensor is in which file of a folder of several."""

NEUTRAL = re.compile(
    r"(.*_)?(bos|eos|pad|sep|cls|unk|mask|decoder_start)_token_id|.*dropout.*|.*_pdrop|drop_path_rate|architectures|"
    r"auto_map.*|quantization_config.*|_.*|transformers_version|(torch_)?dtype|use_cache|init.*|output_.*|return_.*|summary_.*|"
    r"(id2label|label2id).*|num_labels|problem_type|task_specific_params.*|is_encoder_decoder|chunk_size_feed_forward|"
    r"gradient_checkpointing|pretraining_tp|finetuning_task|prefix|tokenizer_class|model_type|"
    r"use_return_dict|torchscript|max_length|embd_init|cross_attention_hidden_size|tie_encoder_decoder|"
    r"output_router_logits|router_\w+_loss_coef|router_jitter_noise|type_vocab_size|use_bfloat16|"
    r"forced_.*|(encoder_)?no_repeat_ngram_size|diversity_penalty|num_beams|early_stopping|length_penalty|min_length|"
    r".*layerdrop|.*suppress_tokens|"
    r"num_beam_groups|num_return_sequences|repetition_penalty|temperature|top_p|typical_p|\w+_config\.top_k|"
    r"cache_implementation|sbert_.*|sentence_transformers.*|is_llama_config|force_bos_token_to_be_generated|"
    r"time_step_init_scheme|time_step_scale"
)
"""Fields of a config that say nothing of what an inference computes, or what the tensors themselves say."""


RUNS_CODE = (
    "auto_map",
    "trust_remote_code",
    "attn_implementation",
    "_attn_implementation",
    "experts_implementation",
    "_experts_implementation",
    "quantization_config",
)
"""Fields of a config that name code: classes in the folder, kernels of a hub, packages that quantize."""


def without_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config for transformers without the fields `RUNS_CODE`, at any depth."""
    return {
        name: without_code(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if name not in RUNS_CODE
    }


def is_neutral(name: str) -> bool:
    """Return whether a field, by its dotted name, says nothing of what an inference computes."""
    parts = name.split(".")
    return any(NEUTRAL.fullmatch(".".join(parts[i:])) for i in range(len(parts)))


# --- folders ----------------------------------------------------------------------------------------------------------


def read_config(file: Path, code: str = "E0533") -> dict[str, Any]:
    """The fields of a config.json. Raises ArchError, E0533 or this code, for a file that cannot be read or is none."""
    try:
        config = read_json(file, MAX_CONFIG, _number)
    except OSError as problem:
        raise error(code, f"`{file}` cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise error(code, f"`{file}` is not JSON: {problem}") from None
    if not isinstance(config, dict):
        raise error(code, f"`{file}` is not a JSON object")
    return config


class Folder:
    """A checkpoint as `save_pretrained` writes it, or a safetensors file. As a context, its files are open within.

    Raises ArchError E0533 where the folder holds no `config.json` or no safetensors."""

    def __init__(self, path: Path, weights: bool = True) -> None:
        self.path = path if path.is_dir() else path.parent
        self.stack = ExitStack()
        self.config: dict[str, Any] = {}
        self.index: dict[str, str] = {}
        """The name of the file that each tensor is in, where there are several."""
        if path.suffix == ".safetensors":
            self.files = [Checkpoint(path)]
        else:
            self.config = read_config(path / "config.json" if path.is_dir() else path)
            if weights and "quantization_config" in self.config:
                raise error("E0533", "the checkpoint is quantized", help="save it in bfloat16, or ask for --no-weights")
            self.files = [Checkpoint(p) for p in self._paths()] if weights else []
        self.owner = self._owners()

    def _owners(self) -> dict[str, Checkpoint]:
        """The file that holds each tensor. Raises ArchError E0533 where two do, of which transformers takes the last,
        and where the index names one that does not."""
        owner: dict[str, Checkpoint] = {}
        for file in self.files:
            for name in file.entries:
                if (other := owner.setdefault(name, file)) is not file:
                    text = f"`{shortened(name)}` is in `{other.path.name}` and in `{file.path.name}`"
                    raise error("E0533", text, help="leave the files of one checkpoint in the folder, and its index")
        for name, shard in self.index.items():
            if name not in owner or owner[name].path.name != shard:
                text = f"`{INDEX_FILE}` says that `{shortened(name)}` is in `{shard}`, which does not hold it"
                raise error("E0533", text)
        return owner

    def _paths(self) -> list[Path]:
        whole, index = self.path / "model.safetensors", self.path / INDEX_FILE
        if whole.is_file():  # what transformers reads, whatever lies beside it
            return [whole]
        if index.is_file():
            try:
                self.index = {str(k): str(v) for k, v in read_json(index)["weight_map"].items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                raise error("E0533", f"`{index}` has no `weight_map` of tensors to files") from None
            names = {*self.index.values()}
            if bad := sorted(n for n in names if Path(n).name != n):
                raise error("E0533", f"`{index}` names a file outside of its folder: `{shortened(bad[0])}`")
            return [self.path / n for n in sorted(names)]
        found = sorted(self.path.glob("*.safetensors"))
        if len(found) != 1:
            pickles = [*self.path.glob("*.bin"), *self.path.glob("*.pt"), *self.path.glob("*.pth")]
            raise error(
                "E0533",
                f"`{self.path}` holds {len(found)} safetensors files and no index",
                help="pickles run code and are never read: save the model with `safe_serialization=True`"
                if pickles and not found
                else "",
            )
        return found

    @property
    def shapes(self) -> dict[str, Shape]:
        return {name: file.entries[name].shape for name, file in self.owner.items()}

    def type_of(self, name: str) -> str:
        """The type of a tensor as safetensors calls it. Raises ArchError E0532 for one that no weight has."""
        found = self.owner[name].entries[name].dtype
        if found not in READABLE:
            raise error("E0532", f"`{name}` holds numbers of type {found}", help=f"{', '.join(READABLE)} can be read")
        return found

    def tensor(self, name: str) -> NDArray[Any]:
        return self.owner[name].bits(name)

    def beside(self) -> dict[str, bytes]:
        """The files that are carried along, by name."""
        return {name: read_bytes(path, MAX_JSON) for name, path in files_beside_tensors(self.path).items()}

    def __enter__(self) -> Folder:
        for file in self.files:
            self.stack.enter_context(file)
        return self

    def __exit__(self, *problem: object) -> None:
        self.stack.close()


def numbers_read(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with infinities and NaN as floats, which transformers writes as `{"__float__": "Infinity"}`."""
    fields: dict[str, Any] = json.loads(json.dumps(config), object_hook=_number)
    return fields


def _number(fields: dict[str, Any]) -> Any:
    """Return the float that an object stands for, or the object itself."""
    return float(str(fields["__float__"])) if [*fields] == ["__float__"] else fields


# --- configs ----------------------------------------------------------------------------------------------------------


def mapping_of(config: Mapping[str, Any]) -> CheckpointFile:
    """The mapping of a config's `model_type` that ships with the compiler. Raises ArchError E0533 without one."""
    kind = config.get("model_type")
    known = shipped()
    if not isinstance(kind, str):
        raise error("E0533", "config.json has no `model_type`", help=f"there are {', '.join(sorted(known))}")
    if kind in known:
        return known[kind]
    if kind.startswith(OWN_TYPE):
        text = "`archdsl weights SPEC --from hf FOLDER` reads its weights"
        raise error("E0533", "this folder is one that `compile --to hf` wrote: its spec is not in it", help=text)
    near, left = _nearest(config, known)
    reads = f"most of its fields, but not {', '.join(left[:12])}" if left else "all of its fields"
    raise error(
        "E0533",
        f"there is no mapping for `model_type` {shortened(kind, 60)}",
        notes=[f"the mapping of `{near}` reads {reads}"] if near else [],
        help="`--lift` makes a spec of transformers' own class of that type, where it has one; "
        f"`--map {nearest(kind, known) or near or 'NAME'} --check` tries the mapping of a known type, "
        "`--map FILE.checkpoint` takes one of your own",
    )


def _nearest(config: Mapping[str, Any], known: Mapping[str, CheckpointFile]) -> tuple[str, list[str]]:
    """Return the type whose mapping reads most of the fields of a config, and the fields that it does not read. Types
    are compared with those of the same kind where the config says one: a decoder with decoders. Of two as near, the
    one with fewer fields of its own is nearer, and then the one of the more similar name."""
    names = {n for n, v in config_fields(config) if not is_neutral(n) and v not in (None, [], {})}
    decoder = re.search(r"CausalLM|LMHead", str(config.get("architectures"))) is not None
    kind = str(config.get("model_type"))

    def nearness(name: str) -> tuple[bool, int, int, float]:
        mapping = known[name]
        read = {n for f in mapping.fields for n in f.names}
        same = not decoder or re.search(r"head:\s*lm\b", read_source(mapping.spec, mapping.spec.name).text) is not None
        return same, len(names & read), -len(read - names), difflib.SequenceMatcher(None, kind, name).ratio()

    best = max(known, key=nearness)
    read = {n for f in known[best].fields for n in f.names} | {*known[best].ignored}
    return (best, sorted(names - read)) if nearness(best)[1] else ("", [])


def config_fields(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field by its dotted name."""
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from config_fields(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@dataclass
class Settings:
    """What a config says in the names of a spec."""

    model: str
    spec: Path
    values: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    """Which field of the config says each value."""
    demands: list[tuple[MappedField, Any]] = field(default_factory=list)
    """Fields that the spec has fixed, and what they are."""


def settings_of(mapping: CheckpointFile, config: Mapping[str, Any]) -> Settings:
    """The hyper-parameters that a config gives. Raises ArchError E0533 for a field that has no place in the spec."""
    if config.get("rope_scaling") and config.get("rope_parameters"):
        text = "config.json has `rope_parameters` and `rope_scaling`, and transformers reads the latter alone"
        raise error("E0533", text, help="remove the one that the model was not trained with")
    leaves = dict(config_fields(config))
    items = {f"{n}.{i}": item for n, v in leaves.items() if isinstance(v, list) for i, item in enumerate(v)}
    if isinstance(config.get("id2label"), dict):
        leaves["num_labels"] = len(config["id2label"])
    if isinstance(config.get("architectures"), list):
        leaves["architectures"] = _class(
            mapping, str(config.get("model_type")), next(iter(config["architectures"]), None)
        )
    model = mapping.types.get(str(config.get("model_type")), next(iter(mapping.types.values()), ""))
    found = Settings(model, mapping.spec)
    placed = {*mapping.ignored, *(name for f in mapping.fields for name in f.names)}
    lists = {n: v for n, v in leaves.items() if isinstance(v, list) and v}
    placed |= {n for n, v in lists.items() if all(f"{n}.{i}" in placed for i in range(len(v)))}
    said = [n for n, v in leaves.items() if n not in placed and _says(n, v) and not is_neutral(n)]
    said = [n for n in said if not any(n.startswith(f"{whole}.") for whole in mapping.ignored)]
    leaves |= items
    for above, below, ours in mapping.quotients:
        a, b = leaves.get(above), leaves.get(below)
        if isinstance(a, int) and isinstance(b, int) and b > 0:
            found.values[ours], found.fields[ours] = a / b, f"{above} / {below}"
    counts = counts_of(mapping.spec, model) if any(f.kinds for f in mapping.fields) else {}
    first = {f.names[0] for f in mapping.fields}
    given: set[str] = set()
    """What a field of the config says, and not its default."""
    for f in mapping.fields:
        empty: tuple[Any, ...] = (None,) if f.by_index else (None, [])
        name = next((n for n in f.names if leaves.get(n) not in empty), None)
        if name is None and f.default is None:
            raise error("E0533", f"config.json has no `{f.names[0]}`")
        there = [n for n in f.names if n in leaves]
        if name is None and f.ours in found.values and not f.kinds:
            before, own = found.values[f.ours], json.loads(f.default or "null")
            if f.ours in given and own is not None and (there or own != before):
                text = f"config.json has no `{f.names[0]}`, which is {json.dumps(own)} then"
                if there:
                    text = f"`{there[0]}` of config.json is {json.dumps(leaves[there[0]])}"
                other = f"`{found.fields[f.ours]}` is {shortened(json.dumps(before), 60)}"
                raise error("E0533", f"{text}, and {other}: the spec has one `{f.ours}` for both")
            continue  # the first default counts, and what the config says
        if name is not None and name != there[0] and isinstance(leaves[name], bool):
            name = None  # transformers takes null for false there, and not for what another field says
        default = "null" if there and not f.kinds else f.default
        value = leaves[name] if name is not None else json.loads(default or "null")
        for n in there:  # another name of the field, where it is none of another field
            # Kinds of layers may be a list and a word, which are not compared.
            silent = type(leaves[n]) is not type(value) if f.kinds else leaves[n] in empty
            if n not in first and not silent and leaves[n] not in (value, *f.also):
                text = f"`{name}` of config.json is {shortened(json.dumps(value), 60)}"
                raise error("E0533", f"{text}, and `{n}`, its other name, {shortened(json.dumps(leaves[n]), 60)}")
        if f.kinds and value is not None:
            count = counts.get(f.ours, "layers")
            layers = _layers(f, name or f.names[0], value, _number_of_layers(found, count))
            earlier = found.values.get(f.ours)
            found.values[f.ours] = layers if earlier is None else earlier.both(layers, name or f.names[0])
            found.values.setdefault(count, len(layers.names))
            found.fields.setdefault(count, name or f.names[0])
        elif f.ours.isidentifier() and f.ours not in CONSTANTS:
            said_by = found.fields.setdefault(f.ours, name or f.names[0])
            given |= {f.ours} if name is not None else set()
            if found.values.setdefault(f.ours, value) not in (None, value):
                text = f"`{name or f.names[0]}` of config.json is {shortened(json.dumps(value), 60)}"
                other = shortened(json.dumps(found.values[f.ours]), 60)
                raise error("E0533", f"{text}, `{said_by}` is {other}, and the spec has one `{f.ours}` for both")
            if found.values[f.ours] is None and f.default in (None, "null"):
                del found.values[f.ours]
        elif value is not None or there:
            found.demands.append((f, value))
    _demand_both(mapping, leaves)
    if said:
        shown = ", ".join(f"`{n}: {shortened(json.dumps(leaves[n]), 40)}`" for n in said[:8])
        options = " ".join(dict.fromkeys(f"--ignore {shlex.quote(printable(n.partition('.')[0]))}" for n in said))
        help_ = f"where they do not change what is computed: `{shortened(options, 200)}`"
        raise error("E0533", f"the mapping of `{config.get('model_type')}` has no place for {shown}", help=help_)
    return found


def _demand_both(mapping: CheckpointFile, leaves: Mapping[str, Any]) -> None:
    """Raise ArchError E0533 where several fields say one number, which may be absent, and a config has only some of
    them."""
    shared: dict[str, list[MappedField]] = {}
    for f in mapping.fields:
        if f.ours.isidentifier() and f.ours not in CONSTANTS and not f.kinds:
            shared.setdefault(f.ours, []).append(f)
    for fields in shared.values():
        absent = [f for f in fields if all(leaves.get(n) is None for n in f.names)]
        if all(f.default == "null" for f in fields) and 0 < len(absent) < len(fields):
            there = next(f for f in fields if f not in absent)
            text = f"config.json has `{there.names[0]}` and no `{absent[0].names[0]}`"
            raise error("E0533", f"{text}, and the spec has one number for both")


def _says(name: str, value: Any) -> bool:
    """Whether a field that a mapping has no place for says something: what is false, null or empty does not, but for
    `is_causal`, which is true in transformers where it is not there."""
    return bool(value) or type(value) in (int, float) or name.rpartition(".")[2] == "is_causal"


def _class(mapping: CheckpointFile, kind: str, name: Any, back: bool = False) -> Any:
    """The name of a class without what those of this `model_type` begin with, or the other way round."""
    prefix = mapping.prefixes.get(kind, "")
    if not isinstance(name, str):
        return name
    return prefix + name if back else name.removeprefix(prefix)


def _number_of_layers(settings: Settings, name: str) -> int | None:
    """Return how many layers a config has, by the name of that in the spec; None where no field before says so. Raises
    ArchError E0533 for what is no such number."""
    count = whole(settings.values.get(name))
    if count is None or (type(count) is int and 0 < count <= MOST_LAYERS):
        return count
    text = f"`{settings.fields[name]}` of config.json is {shortened(json.dumps(count), 60)}"
    raise error("E0533", f"{text}, and the family has 1 to {MOST_LAYERS:,} layers")


def _layers(f: MappedField, name: str, value: Any, count: int | None) -> Layers:
    """The kinds of `count` layers that a field says: by a list with one for each, a word with a letter for each, the
    indices of those that are `at`, or a number n where every nth is of the last kind. Raises ArchError E0533 for what
    is none of these, and where there are more or fewer layers."""
    known = [kind for kind, _ in f.kinds]
    value = [*value] if isinstance(value, str) else value
    indices = range(count or 0)
    if type(value) is int and value > 0:
        value = [known[0] if (i + 1) % value else known[-1] for i in indices]
    elif f.by_index and isinstance(value, list) and all(type(i) is int and i in indices for i in value):
        chosen = {*value}
        value = [known[-1] if i in chosen else known[0] for i in indices]
    wrong = [k for k in value if str(k) not in known] if isinstance(value, list) else [value]
    if wrong:
        said = f"`{name}` of config.json has {shortened(json.dumps(wrong[0]), 60)}"
        legal = f"{len(indices)} layers" if f.by_index else ", ".join(sorted({*known}))
        raise error("E0533", f"{said}, and the family has {legal}")
    if len(value) != (count or len(value)) or not 0 < len(value) <= MOST_LAYERS:
        most = f"{count} layers" if count else f"1 to {MOST_LAYERS:,} layers"
        raise error("E0533", f"`{name}` of config.json has {len(value)} kinds of layers for {most}")
    first = dict(reversed(f.kinds))
    return Layers(tuple(first[str(k)] for k in value), {name: first[kind] for kind, name in f.kinds})


def demand_fixed(settings: Settings, model: Model) -> None:
    """Raise ArchError E0533 where a config says something else than the spec has fixed."""
    wrong, known = [], settings.values | numbers_of(model)
    for f, value in settings.demands:
        own = _worth(f, known)
        if value is None and f.default == "null" and not isinstance(own, bool):
            continue
        value = False if value is None and isinstance(own, bool) else value
        if isinstance(own, list):
            words = value.split("|") if isinstance(value, str) else value
            value = own if words in [own, *map(json.loads, f.also)] else value
        numbers = isinstance(own, int | float) and isinstance(value, int | float)
        if value not in f.also and not (math.isclose(own, value) if numbers else own == value):
            text = f"`{f.names[0]}` of config.json is {shortened(json.dumps(value), 60)}"
            wrong.append(Diagnostic("E0533", f"{text}, and the spec has {f.ours}"))
    if wrong:
        raise ArchError(wrong)


def _worth(f: MappedField, known: Mapping[str, Any]) -> Any:
    """What an expression of a mapping comes to in a spec. Raises ArchError E0531 where that is not known."""
    if f.ours.startswith("["):
        return json.loads(f.ours)
    found = worth(parse_expression(Source(f.span.source.name, f.ours)), known)
    if found is None and f.ours != "none":
        raise error("E0531", f"`{f.ours}` is no number of the spec", f.span)
    return found


def config_of(mapping: CheckpointFile, kind: str, model: Model) -> dict[str, Any]:
    """The config.json of a model: every field that the mapping knows, under the first of its names. Raises ArchError
    E0531 for one that the spec does not say."""
    known = numbers_of(model, mapping.spec)
    found: dict[str, Any] = {"model_type": kind}
    for f in mapping.fields:
        fixed = f.ours[0] == "[" or f.ours in {*known, *CONSTANTS}
        if f.default == "null" and not fixed and worth(parse_expression(Source("", f.ours)), known) is None:
            continue  # of a branch that the spec does not take
        value = known[f.ours] if f.ours in known else _worth(f, known)
        if f.kinds:
            kinds = {name: int(kind) if kind.isdigit() else kind for kind, name in reversed(f.kinds)}
            value = [kinds.get(name) for name in value]
            value = [i for i, kind in enumerate(value) if kind == "at"] if f.by_index else value
        *around, last = f.names[0].split(".")
        into = found
        for name in around:
            into = into.setdefault(name, {})
        if isinstance(value, int) and isinstance(json.loads(f.default or "null"), float):
            value = float(value)  # transformers is strict about it
        into.setdefault(last, [_class(mapping, kind, value, back=True)] if last == "architectures" else value)
    if not any(f.names[0] == "architectures" for f in mapping.fields):
        found.setdefault("pad_token_id", None)  # decoders need none, and a class may have one beyond this vocabulary
    return {n: [*v.values()] if isinstance(v, dict) and all(map(str.isdigit, v)) else v for n, v in found.items()}


# --- weights ----------------------------------------------------------------------------------------------------------


class TensorSource(Protocol):
    """Where tensors of a checkpoint are read: a context within which it is open."""

    @property
    def shapes(self) -> dict[str, Shape]: ...

    def type_of(self, name: str) -> str: ...

    def tensor(self, name: str) -> NDArray[Any]: ...

    def __enter__(self) -> object: ...

    def __exit__(self, *problem: object) -> None: ...


class Renamed:
    """Tensors of a checkpoint under other names: of each, the first prefix that fits is replaced by the one beside it,
    and then the whole name by that which `names` has for it.

    Raises ArchError E0532 where a prefix fits none, or two tensors would have one name."""

    def __init__(
        self, source: TensorSource, prefixes: Sequence[tuple[str, str]], names: Mapping[str, str] | None = None
    ) -> None:
        self.source = source
        self.names: dict[str, str] = {}
        unused = dict(prefixes)
        for name in source.shapes:
            old, new = next(((a, b) for a, b in prefixes if name.startswith(a)), ("", ""))
            unused.pop(old, None)
            renamed = new + name.removeprefix(old)
            renamed = (names or {}).get(renamed, renamed)
            if (other := self.names.setdefault(renamed, name)) != name:
                raise error("E0532", f"`{other}` and `{name}` would both be `{renamed}`")
        if unused:
            raise error("E0532", f"no tensor of the checkpoint starts with `{shortened(next(iter(unused)), 80)}`")

    @property
    def shapes(self) -> dict[str, Shape]:
        shapes = self.source.shapes
        return {new: shapes[old] for new, old in self.names.items()}

    def type_of(self, name: str) -> str:
        return self.source.type_of(self.names[name])

    def tensor(self, name: str) -> NDArray[Any]:
        return self.source.tensor(self.names[name])

    def __enter__(self) -> Renamed:
        self.source.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self.source.__exit__(*problem)


HOLDS = {"float": "real numbers", "int64": "whole numbers", "bool": "true and false"}


def weights_from(folder: TensorSource, mapper: Mapper, output: Path, progress: Progress | None = None) -> None:
    """Write the weights of a checkpoint as a safetensors file in the spec's names, tensor by tensor, in their types.

    Raises ArchError E0532 before a byte is read where names, shapes or kinds of numbers disagree."""
    named = mapper.demand(folder.shapes)
    _demand_ties(folder, mapper)
    entries = [
        (path, folder.type_of(named[t.theirs[0]]), shape)
        for t in mapper.transfers
        for path, shape in zip(t.ours, t.shapes, strict=True)
    ]
    own = {w.path: w.weight.dtype for w in saved(mapper.model)}
    for path, kind, _ in entries:
        if kind_of(kind) != own[path]:
            text = f"the checkpoint holds {HOLDS[kind_of(kind)]} for `{path}`, which is of {HOLDS[own[path]]}"
            raise error("E0532", text)
    with folder, written_beside(output) as beside, beside.open("wb") as file:
        writing = write_raw(file, entries)
        for t in mapper.transfers:
            tensors = [folder.tensor(named[n]) for n in t.theirs]
            for path, weight in zip(t.ours, t.to_ours(tensors), strict=True):
                if t.value is not None:
                    weight = t.value.to_ours(weight, folder.type_of(named[t.theirs[0]]), path)
                writing(weight)
                if progress is not None:
                    progress(path, weight.size)


def _demand_ties(folder: TensorSource, mapper: Mapper) -> None:
    """Raise ArchError E0532 where a tensor that a spec ties to another is not the same in the checkpoint."""
    shapes = folder.shapes
    with folder:
        for copy, of in mapper.mapping.ties:
            for name in shapes:
                if (met := pattern(copy).fullmatch(name)) is None:
                    continue
                other = of + (met.groups()[-1] or "")
                other = other if other in shapes else other.removeprefix(mapper.mapping.base)
                if other not in shapes or name in mapper.taken:
                    continue
                if shapes[name] != shapes[other] or (folder.tensor(name) != folder.tensor(other)).any():
                    raise error(
                        "E0532",
                        f"`{name}` and `{other}` differ, and the spec has one tensor for both",
                        help="a spec whose head is not tied",
                    )


def weights_to(
    model: Model, mapper: Mapper, weights: Path, output: Path, kind: str = "", progress: Progress | None = None
) -> None:
    """Write a model's weights as a folder of safetensors in their names, in files of at most 5 GB with an index. A
    `kind` of model without a head leaves out the prefix of the mapping."""
    bare = mapper.mapping.base if re.fullmatch(r".*(?<!LMHead)(?<!MT)(Model|Encoder)", kind) else ""
    checkpoint = Checkpoint(weights)
    checkpoint.demand(saved(model))
    shards: list[list[Any]] = [[]]
    filled = 0
    for t in mapper.transfers:
        size = sum(checkpoint.entries[n].end - checkpoint.entries[n].start for n in t.ours)
        if filled and filled + size > SHARD:
            shards.append([])
            filled = 0
        shards[-1].append(t)
        filled += size
    make_folder(output)
    where: dict[str, str] = {}
    with checkpoint:
        for i, shard in enumerate(shards):
            name = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
            entries = [
                (n.removeprefix(bare), checkpoint.entries[t.ours[0]].dtype, t.shape) for t in shard for n in t.theirs
            ]
            where |= {n: name for n, _, _ in entries}
            with written_beside(output / name) as beside, beside.open("wb") as file:
                writing = write_raw(file, entries)
                for t in shard:
                    kinds = {checkpoint.entries[n].dtype for n in t.ours}
                    if len(kinds) > 1:
                        raise error("E0532", f"`{t.ours[0]}` and `{t.ours[1]}` are one tensor there, of one type")
                    for theirs, tensor in zip(t.theirs, t.to_theirs([checkpoint.bits(n) for n in t.ours]), strict=True):
                        if t.value is not None:
                            tensor = t.value.to_theirs(tensor, *kinds, theirs)
                        writing(tensor)
                        if progress is not None:
                            progress(theirs, tensor.size)
    if len(shards) > 1:
        total = sum(e.end - e.start for e in checkpoint.entries.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        write_text(output / INDEX_FILE, json.dumps(index, indent=2) + "\n")
