"""Specs that were once emitted as another network, or accepted though wrong: the first line of each says what it must.

`# must: right`            it checks, and what is emitted is what was counted
`# must: right width=12`   and that holds for a Config with such fields, too, unless the Config refuses them
`# must: right -layer.0`   and weights of these paths have a gradient of 0: the spec multiplies them by it
`# must: refuse E0304`     `check` ends in one error, of that code
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from decode_tools import inputs_for, widen
from onnx_tools import distance, onnx_bytes, run
from torch import Tensor, nn

from archdsl import api
from archdsl.backends.torch import emit
from archdsl.diagnostics import ArchError
from archdsl.estimates.params import estimate
from archdsl.ir.dims import evaluate
from archdsl.ir.graph import Model
from archdsl.ir.weights import shape_of, weights
from archdsl.run.load import load_source

SPECS = sorted(Path(__file__).parent.glob("*.arch"))
MUST = re.compile(r"# must: (?:refuse (?P<code>E\d{4})|right(?P<fields>(?: \w+=\S+)*)(?: -(?P<still>\S+))?)\n")
SIZES = {"batch": 2, "time": 6}
TOLERANCE = 2e-4


def meant(path: Path) -> re.Match[str]:
    found = MUST.match(path.read_text(encoding="utf-8"))
    assert found is not None, f"{path.name} does not begin with `# must: right` or `# must: refuse E…`"
    return found


def those(refused: bool) -> list[Any]:
    return [pytest.param(p, id=p.stem) for p in SPECS if bool(meant(p)["code"]) == refused]


@pytest.mark.parametrize("path", those(refused=True))
def test_refused(path: Path) -> None:
    with pytest.raises(ArchError) as caught:
        api.load(path)
    (problem,) = caught.value.diagnostics
    assert problem.code == meant(path)["code"], problem
    assert problem.span is not None
    assert problem.span.source.name.endswith(path.name), "shown where the user wrote it"


@pytest.mark.parametrize("path", those(refused=False))
def test_right(path: Path) -> None:
    model = api.load(path)
    cls = load_source(emit(model))
    same_counts(model, cls)
    module = cls()
    every_weight_learns(model, module, meant(path)["still"])
    same_numbers(model, module)
    if meant(path)["fields"]:
        other_config(path, cls, dict(f.split("=") for f in meant(path)["fields"].split()))


def same_counts(model: Model, cls: Any) -> None:
    """Built without numbers, the module has the weights that were counted, by their names, and no others."""
    with torch.device("meta"):
        module = cls()
    assert sum(p.numel() for p in module.parameters()) == estimate(model).params.total
    said = {w.path: shape_of(w.weight) for w in weights(model) if w.weight.saved}
    assert {k: tuple(t.shape) for k, t in module.state_dict(keep_vars=True).items()} == said


def every_weight_learns(model: Model, module: nn.Module, still: str | None) -> None:
    torch.manual_seed(1)
    widen(module)
    results = [y for y in results_of(module.train(), inputs_for(model, SIZES)) if y.requires_grad]
    if results:
        torch.stack([(y * torch.randn_like(y)).sum() for y in results]).sum().backward()
    for name, p in module.named_parameters():
        assert p.grad is not None, name
        assert bool(p.grad.abs().sum() > 0) != (still is not None and name.startswith(still)), name


def same_numbers(model: Model, module: nn.Module) -> None:
    """onnxruntime computes the same from the graph, which knows nothing of the emitted text."""
    inputs = inputs_for(model, SIZES)
    with torch.no_grad():
        expected = results_of(module.eval(), inputs)
    for (name, value), found in zip(model.outputs, expected, strict=True):
        assert list(found.shape) == [evaluate(d.value, SIZES) for d in value.shape], name
    found = run(onnx_bytes(model, module), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        assert distance(ours, theirs) <= TOLERANCE


def other_config(path: Path, cls: Any, fields: Mapping[str, str]) -> None:
    """Another Config makes what the spec says with these settings, or is refused."""
    config = vars(sys.modules[cls.__module__])["Config"]
    try:
        module = cls(config(**{k: float(v) if "." in v else int(v) for k, v in fields.items()}))
    except (AssertionError, ValueError):
        return
    model = api.load(path, set=fields)
    torch.manual_seed(1)
    widen(module)
    assert sum(p.numel() for p in module.parameters()) == estimate(model).params.total
    same_numbers(model, module)


def results_of(module: nn.Module, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    found = module(**inputs)
    if isinstance(found, Tensor):
        return [found]
    return list(found.values() if isinstance(found, Mapping) else found)
