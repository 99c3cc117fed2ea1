"""What a graph says of itself: the command that makes it again, and the modules that its nodes belong to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import onnx_ir as ir

from archdsl.ir.command import compile_command
from archdsl.ir.graph import Model
from archdsl.passes.flatten import FlatOp, Unrolled, unroll

DEFAULTS = {
    "dtype": "float32",
    "target": "portable",
    "store": "safetensors",
    "opset": 24,
    "names": "hf",
    "logits": "all",
}


def described(model: Model, options: Mapping[str, Any]) -> dict[str, str]:
    """The `metadata_props` of a graph that was written with these options of `compile --to onnx`, by their names."""
    given = {name: value for name, value in options.items() if DEFAULTS.get(name) != value}
    flags = [part for name, value in given.items() for part in _option(name, value)]
    command = shlex.join(compile_command(model, ["--to", "onnx", *flags]))
    found = {"command": command, "dtype": options["dtype"]}
    named = {"seed": options["seed"], "quantization": options["quantize"]}
    return found | {name: str(value) for name, value in named.items() if value is not None}


def _option(name: str, value: Any) -> Iterator[str]:
    flag = f"--{name.replace('_', '-')}"
    for each in value if isinstance(value, list | tuple) else (value,):
        if each is True:
            yield flag
        elif each is not None and each is not False:
            yield f"{flag}={each}"


class Scopes:
    """The modules of a model, by path: what PyTorch's exporter writes on each node, and viewers group nodes by."""

    def __init__(self, model: Model) -> None:
        flat, root = unroll(model)
        self.classes = {"": model.name, **dict(_classes(root))}
        self.classes |= {n.path: n.node.op.name for n in flat.nodes if isinstance(n, FlatOp) and n.weights}
        self.of = cache(self._of)

    def annotate(self, node: ir.Node) -> None:
        """Write on a node which modules it is in."""
        path, _, own = (node.name or "").rpartition("/")
        names, classes = self.of(path)
        whole = [*(f"{name}: {kind}" for name, kind in zip(names, classes, strict=True)), f"{own}: {node.op_type}"]
        node.metadata_props.update(
            {
                "namespace": "/".join(whole),
                "pkg.torch.onnx.class_hierarchy": str([*classes, node.op_type]),
                "pkg.torch.onnx.name_scopes": str([*names, own]),
            }
        )

    def _of(self, path: str) -> tuple[list[str], list[str]]:
        steps = path.split(".")
        names = ["", *(".".join(steps[: i + 1]) for i in range(len(steps)))]
        names = [name for name in dict.fromkeys(names) if name in self.classes]
        return names, [self.classes[name] for name in names]


def _classes(call: Unrolled) -> Iterator[tuple[str, str]]:
    for inner in (one for calls in call.calls.values() for one in calls):
        if inner.path != call.path:
            yield inner.path, inner.block.name
        yield from _classes(inner)
