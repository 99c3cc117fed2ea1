"""An imported model against transformers: the same weights, the same inputs, the same outputs?"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import ArchError, error, shortened
from archdsl.interop.huggingface import INDEX_FILE, Folder, without_code
from archdsl.interop.mapping import pattern
from archdsl.ir.dims import Num

if TYPE_CHECKING:
    from torch import Tensor

    from archdsl.ir.graph import Model

TOKENS = 32
SAMPLES = 4_000
"""Of raw sound."""

NAMES = {
    "token": ("input_ids", "decoder_input_ids"),
    "int": ("token_type_ids", "bbox"),
    "padding": ("attention_mask",),
    "float": ("pixel_values", "input_features", "input_values"),
}
"""What transformers calls inputs of each kind, of which a class has one or, of several inputs, these in order."""


def demand_packages(option: str) -> None:
    """Raise ArchError E0502, which says that an `option` needs it, where transformers or torch is not installed."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            help_ = "pip install transformers torch"
            raise error("E0502", f"`{option}` needs {name}, which is not installed", help=help_)


def difference(source: Path, model: Model, weights: Path, unread: Sequence[str] = ()) -> float:
    """The largest difference between the outputs of a model and those of transformers for random inputs, relative to
    the largest of theirs, in float32. Their tensors that are `unread` (templates) may be missing.

    Raises ArchError E0502 where transformers or torch is not installed, E0533 where an input is none of theirs, an
    output has no counterpart, all outputs are zero, or their class has weights that the checkpoint lacks."""
    demand_packages("--check")
    import torch
    import transformers
    from safetensors.torch import load_file

    from archdsl.backends.torch import emit
    from archdsl.run.difference import IncomparableError, farthest
    from archdsl.run.load import load_source

    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    with TemporaryDirectory(prefix="archdsl.") as folder:
        theirs, read = _loaded(source, Path(folder))
    if missing := [n for n in sorted(read["missing_keys"]) if not any(pattern(u).fullmatch(n) for u in unread)]:
        raise error("E0533", f"by its config, {type(theirs).__name__} has `{missing[0]}`, which the checkpoint lacks")
    theirs.eval()
    ours = load_source(emit(model))().eval()
    ours.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in load_file(weights).items()})
    inputs = _inputs(model, theirs)
    with torch.no_grad():
        given = {k: v.long() if v.dtype == torch.bool else v for k, v in inputs.items()}
        wanted, found = theirs(**given), ours(*inputs.values())
    left = [t for t in wanted.to_tuple() if isinstance(t, torch.Tensor)]
    own = (found,) if isinstance(found, torch.Tensor) else tuple(found)
    expected = []
    for output in own:
        other = next((i for i, t in enumerate(left) if t.shape == output.shape), None)
        if other is None:
            raise error("E0533", f"{type(theirs).__name__} returns nothing of shape {list(output.shape)}")
        expected.append(left.pop(other))
    try:
        return farthest(own, expected)
    except IncomparableError as problem:
        raise error(
            "E0533", f"the outputs cannot be compared with those of {type(theirs).__name__}: {problem}"
        ) from None


def own_class(architectures: Any) -> Any:
    """Return the class of transformers that the `architectures` of a config name first; None where it has none."""
    import transformers

    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        return None
    found = getattr(transformers, name, None)
    return found if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) else None


def class_name(config: Mapping[str, Any]) -> str:
    """Return the name of the class of transformers that a config is of: the first of its `architectures`, or else the
    decoder of its `model_type`. Raises ArchError E0533 where the package that is installed has neither."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if (named := own_class(config.get("architectures"))) is not None:
        return str(named.__name__)
    kind = config.get("model_type")
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) if isinstance(kind, str) else None
    if isinstance(known, str):
        return known
    raise error(
        "E0533",
        f"transformers {transformers.__version__} has no decoder of `model_type` {shortened(str(kind), 60)}",
        help="code that lies in the folder is not run; `archdsl lift FILE.py:CLASS` runs a file that you have read",
    )


def converted(source: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, in its types, under the names that its class in transformers has for them:
    the folders of some types keep apart what the class holds as one. Raises ArchError E0502 and E0533."""
    with TemporaryDirectory(prefix="archdsl.") as folder:
        module, read = _loaded(source, Path(folder), "auto")
    if missing := sorted(read["missing_keys"]):
        raise error("E0533", f"by its config, {type(module).__name__} has `{missing[0]}`, which the checkpoint lacks")
    state: dict[str, Tensor] = module.state_dict()
    return state


def _loaded(source: Path, folder: Path, dtype: Any = None) -> tuple[Any, dict[str, Any]]:
    """Load a checkpoint with transformers, in float32 by default; its model, and what was said of its tensors.

    transformers reads `folder`, which holds the config and the tensors alone: code, adapters and settings of generation
    that lie beside them are not there, and what names code is left out of the config. Raises ArchError E0502 where it
    has no such class or cannot make it, E0533 where the class that the config names is of another type."""
    import torch
    import transformers

    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    if source.suffix == ".gguf":
        options["gguf_file"] = source.name
        (folder / source.name).symlink_to(source.resolve())
    else:
        files = Folder(source)
        (folder / "config.json").write_text(json.dumps(without_code(files.config)), encoding="utf-8")
        for file in (*(c.path for c in files.files), source / INDEX_FILE):
            if file.is_file():
                (folder / file.name).symlink_to(file.resolve())
        options["use_safetensors"] = True
    try:
        theirs = transformers.AutoConfig.from_pretrained(folder, **options)
        cls: Any = own_class(theirs.architectures) or transformers.AutoModelForCausalLM
        kind = getattr(cls, "config_class", None)
        if kind is not None and not isinstance(theirs, kind):
            text = f"`{cls.__name__}` of its config is of `{kind.model_type}`, and the config of `{theirs.model_type}`"
            raise error("E0533", text)
        loaded: tuple[Any, dict[str, Any]] = cls.from_pretrained(
            folder, config=theirs, dtype=dtype or torch.float32, output_loading_info=True, **options
        )
    except (ArchError, MemoryError, RecursionError):
        raise
    except Exception as problem:  # whatever the package meets in a config, or needs and has not
        raise error("E0502", f"transformers cannot read `{source}`: {shortened(str(problem), 200)}") from None
    return loaded


def _inputs(model: Model, theirs: Any) -> dict[str, Tensor]:
    """Random inputs in the order of ours, by the names of theirs. Axes that are open have another size each where they
    lead, and `TOKENS` places (`SAMPLES` of sound) where they do not; the second row ends early where padding tells."""
    import torch

    generator = torch.Generator().manual_seed(0)
    known = [*inspect.signature(theirs.forward).parameters]
    names = {kind: [n for n in wanted if n in known] for kind, wanted in NAMES.items()}
    config = theirs.config.get_text_config() if hasattr(theirs.config, "get_text_config") else theirs.config
    ends = (getattr(config, name, None) for name in ("pad_token_id", "eos_token_id"))
    special = [i for i in ends if isinstance(i, int)]
    context = model.block.hypers.get("context", model.context)
    places = min(TOKENS, int(context)) if isinstance(context, Num) and context.static else TOKENS
    found: dict[str, Tensor] = {}
    leading: list[str] = []
    for name, value in model.inputs:
        kind = value.dtype if value.dtype in names else "float"
        if not names[kind]:
            raise error("E0533", f"{type(theirs).__name__} has no input for `{name}`")
        if not value.shape[0].static and str(value.shape[0]) not in leading:
            leading.append(str(value.shape[0]))
        open_ = SAMPLES if kind == "float" and len(value.shape) == 2 else places
        sizes = [int(d) if d.static else open_ for d in value.shape]
        if not value.shape[0].static:
            sizes[0] = 2 + leading.index(str(value.shape[0]))
        if kind == "float":
            made = torch.randn(sizes, generator=generator)
        elif kind == "padding":
            made = torch.arange(sizes[1]) < sizes[1] - 3 * torch.arange(sizes[0]).unsqueeze(1)
        else:
            high = getattr(config, "type_vocab_size", 2) if kind == "int" else config.vocab_size
            made = torch.randint(0, high, sizes, generator=generator)
            made = made.sort(-1).values if len(sizes) > 2 else made  # edges of boxes are in order
            for i in special if kind == "token" else ():  # places, and ends of texts, are found by these
                made = torch.where(made == i, (max(special) + 1) % high, made)
        found[names[kind].pop(0)] = made
    return found
