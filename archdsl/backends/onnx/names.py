"""What the inputs, outputs and open sizes of a graph are called: as in the spec, or as programs that run models of
Hugging Face expect them (`transformers`, optimum, transformers.js).

Tokens and masks are known by their kinds, other inputs by the names that the specs of the zoo have for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

from archdsl.frozen import Frozen
from archdsl.ir.graph import Model, Value

Convention = Literal["hf", "spec"]

INPUTS = {"segments": "token_type_ids", "pixels": "pixel_values", "mel": "input_features"}
SIZES = {"batch": "batch_size", "time": "sequence_length"}


class Names(Frozen):
    """Other names of inputs and of open sizes, by those of the spec; those of outputs, in order."""

    outputs: Sequence[str]
    inputs: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)

    def is_mask(self, name: str, value: Value) -> bool:
        """Whether an input is fed as numbers of int64 and read as booleans."""
        return value.dtype == "padding" and name in self.inputs


def names_of(model: Model, convention: Convention) -> Names:
    """The names in a graph of the whole model. Two that would be the same stay as the spec has them."""
    found = [*model.outputs]
    plain = ["output"] if len(found) == 1 else [f"output_{i}" for i in range(len(found))]
    if convention == "spec":
        return Names([name or other for (name, _), other in zip(found, plain, strict=True)])
    inputs: dict[str, str] = {}
    decodes = False
    for name, value in model.inputs:
        if value.dtype == "token":
            inputs[name] = "decoder_input_ids" if decodes else "input_ids"
        elif value.dtype == "padding":
            inputs[name] = "attention_mask"
        else:
            inputs[name] = INPUTS.get(name, name)
        decodes |= value.dtype in ("token", "float")
    count = Counter(inputs.values())
    width = next((f.value.value for f in model.config if f.name == "width"), None)
    outputs: list[str] = []
    for (given, value), other in zip(found, plain, strict=True):
        hidden = value.rank == 3 and value.shape[-1].value == width
        called = given or ("last_hidden_state" if hidden else "logits")
        outputs.append(other if called in outputs else called)
    taken = {s.name for s in model.symbols}
    return Names(
        outputs,
        {old: new for old, new in inputs.items() if old != new and count[new] == 1},
        {old: new for old, new in SIZES.items() if new not in taken},
    )
