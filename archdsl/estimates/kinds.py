"""What kind of model it is, told from its graph and not from its name.

Each model is of the first kind that fits:

* **encoder-decoder**: an output follows the positions of a sequence of tokens and depends on another input too, an
  image or a sequence with positions of its own.
* **vision**: an image comes in: real numbers with two axes beside those of batch and channels, or a grid of ids.
* **recurrent**: a state goes from position to position (a scan, a recurrent primitive), and nothing attends.
* **convolutional**: convolutions bring positions together, and nothing attends.
* **layer**: vectors come in and no layers are stacked: a part of a model.
* **decoder**: no later token reaches an earlier place of the output, as the model claims of its head or as can be
  proved.
* **encoder**: everything else; positions are read from both sides.
"""

from __future__ import annotations

from typing import Literal, get_args

from archdsl.dependence.causality import proved
from archdsl.estimates.layers import layer_count
from archdsl.ir.dims import Symbol
from archdsl.ir.graph import (
    BOOLEANS,
    CausalNode,
    Model,
    Node,
    OpNode,
    ScanNode,
    Value,
)
from archdsl.ir.walk import above, nodes_below

Kind = Literal["decoder", "encoder", "encoder-decoder", "recurrent", "convolutional", "vision", "layer"]
KINDS: tuple[str, ...] = get_args(Kind)

ATTENTION = frozenset({"attention", "linear attention"})
CONVOLUTIONS = frozenset({"convolution", "transposed convolution"})


def kind_of_model(model: Model) -> Kind:
    """The first kind that fits a model which has been checked: its claims of causality hold."""
    data = [v for _, v in model.inputs if v.dtype not in (*BOOLEANS, "documents")]
    nodes = list(nodes_below(model.block.graph))
    ops = [n.op for n in nodes if isinstance(n, OpNode)]
    families = {op.family for op in ops}
    attends = bool(families & ATTENTION) or any(op.makes_mask for op in ops)  # equations of attention have a mask
    if _decodes(model, data):
        return "encoder-decoder"
    if any(_is_image(v) for v in data):
        return "vision"
    if not attends and ("recurrence" in families or any(isinstance(n, ScanNode) for n in nodes)):
        return "recurrent"
    if not attends and families & CONVOLUTIONS:
        return "convolutional"
    if all(v.is_float for v in data) and layer_count(model.block) == 0:
        return "layer"
    return "decoder" if _looks_back(model, data, nodes) else "encoder"


def _positions(value: Value) -> frozenset[Symbol]:
    """The sizes of its axes, but the batch's, that only the running model knows."""
    return frozenset(s for d in value.shape[1:] for s in d.symbols)


def _is_image(value: Value) -> bool:
    return value.rank >= 4 if value.is_float else value.rank >= 3


def _decodes(model: Model, data: list[Value]) -> bool:
    for _, output in model.outputs:
        before = above(model.block.graph, output)
        used = [v for v in data if v in before]
        targets = [v for v in used if v.dtype == "token" and not _is_image(v) and _positions(v) & _positions(output)]
        if any(
            _is_image(other) or (_positions(other) and not _positions(other) & _positions(target))
            for target in targets
            for other in used
            if other is not target
        ):
            return True
    return False


def _looks_back(model: Model, data: list[Value], nodes: list[Node]) -> bool:
    if any(isinstance(n, CausalNode) for n in nodes):
        return True
    tokens = [v for v in data if v.dtype == "token" and v.rank == 2]
    along = (output for _, output in model.outputs if any(_positions(v) & _positions(output) for v in tokens))
    return any(proved(model, output) for output in along)
