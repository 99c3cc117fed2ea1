"""An imported model against transformers: the same weights, the same tokens, the same logits?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from archdsl.diagnostics import error, shortened

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

TOKENS = 32


def difference(source: Path, model: Model, weights: Path) -> float:
    """The largest difference between the outputs of a model and those of transformers for random tokens, relative to
    the largest of theirs, in float32. Raises ArchError E0502 where transformers or torch is not installed."""
    try:
        import torch
        import transformers
    except ImportError as problem:
        raise error(
            "E0502", f"`--check` needs {problem.name}, which is not installed", help="pip install transformers torch"
        ) from None
    from safetensors.torch import load_file

    from archdsl.backends.torch import emit
    from archdsl.run.load import load_source

    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    where = {"gguf_file": source.name} if source.suffix == ".gguf" else {}
    folder = source.parent if where else source
    config = transformers.AutoConfig.from_pretrained(folder, **where)
    cls = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModelForCausalLM)
    try:
        theirs = cls.from_pretrained(folder, dtype=torch.float32, **where).eval()
    except (ImportError, ValueError) as problem:  # a package that they need
        raise error("E0502", f"transformers cannot read `{source}`: {shortened(str(problem), 200)}") from None
    ours = load_source(emit(model))().eval()
    ours.load_state_dict({k: v.float() for k, v in load_file(weights).items()})
    sizes = {f.name: int(f.value) for f in model.config if isinstance(f.value.value, int)}
    generator = torch.Generator().manual_seed(0)
    time = min(TOKENS, sizes.get("context", TOKENS))
    tokens = torch.randint(0, sizes["vocab"], (2, time), generator=generator)
    with torch.no_grad():
        wanted, found = theirs(input_ids=tokens), ours(tokens)
    first = wanted.logits if "logits" in wanted else wanted[0]
    found = found if isinstance(found, torch.Tensor) else found[0]
    return float((found - first).abs().max() / first.abs().max())
