"""What a step of training keeps in memory besides weights: activations saved for the backward pass, the temporaries of
the objective and of the passes, and when the most is alive.

The emitted file itself is run, over tensors without numbers (`archdsl.eager`): what is counted is what the code does. So
saved bytes are those that autograd saves for the emitted module, to the byte, and the peak is that of the tensors alive.
"""

from __future__ import annotations

from typing import Literal

from archdsl.eager.modules import Module
from archdsl.eager.tensors import CPU, CUDA, DTYPES, DType, Node, Tensor
from archdsl.eager.world import model_of
from archdsl.ir.cost import whole_at
from archdsl.ir.graph import Model
from archdsl.lower.torch import emit

Backend = Literal["cpu-eager", "cuda-eager", "compiled"]
Recompute = Literal["none", "selective", "full"]

PROFILES = {"cpu-eager": CPU, "cuda-eager": CUDA}


def module_of(model: Model) -> Module:
    return model_of(emit(model))


def inputs_of(model: Model, sizes: dict[str, int], dtype: DType) -> dict[str, Tensor]:
    found = {}
    for name, value in model.inputs:
        shape = [whole_at(d.value, sizes) for d in value.shape]
        kind = DTYPES["bool"] if value.is_bool else DTYPES["int64"] if value.is_int else dtype
        if value.dtype in DTYPES:
            kind = DTYPES[value.dtype]
        found[name] = Tensor(shape, kind)
    return found


def saved(results: list[Tensor]) -> dict[int, tuple[int, str, str]]:
    """Every storage that the graph behind these tensors keeps: its bytes, the path of the module that saved it first,
    and the step that did."""
    found: dict[int, tuple[int, str, str]] = {}
    nodes: list[Node] = []
    seen: set[int] = set()
    stack = [t.node for t in results if t.node is not None]
    while stack:
        node = stack.pop()
        if node.sequence in seen:
            continue
        seen.add(node.sequence)
        nodes.append(node)
        stack += [edge[0] for edge in node.edges if isinstance(edge, tuple)]
    for node in sorted(nodes, key=lambda n: n.sequence):
        for t in node.saved:
            if not t.storage.fixed:
                found.setdefault(t.storage.serial, (t.storage.nbytes, node.where, node.name))
    return found
