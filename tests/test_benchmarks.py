"""Whatever judges in `benchmarks/`, and `make size`, has been seen to fail; `test_gpu_benchmark.py` and `test_trust.py`
plant more."""

import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
NAN, INF = math.nan, math.inf


def script(path: str) -> ModuleType:
    """A script as a module; what it does to the path of imports is undone."""
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(f"judged_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    before = sys.path[:]
    sys.modules[spec.name] = made  # for its dataclasses
    try:
        spec.loader.exec_module(made)
    finally:
        sys.path[:] = before
        del sys.modules[spec.name]
    return made


# --- clients ----------------------------------------------------------------------------------------------------------


def case(**outputs: list[float]) -> dict[str, Any]:
    return {"outputs": {n: {"data": data, "dims": [len(data)], "type": "float32"} for n, data in outputs.items()}}


@pytest.mark.parametrize(
    ("found", "apart"),
    [
        ({"a": [1.0, 2.0], "b": [3.0]}, 0.0),
        ({"a": [1.0, 2.5], "b": [3.0]}, 0.5),
        ({"a": [1.0, 2.0], "b": [NAN]}, INF),
        ({"a": [NAN, 2.0], "b": [3.0]}, INF),
    ],
)
def test_a_client_that_gives_nan_differs(found: dict[str, list[float]], apart: float) -> None:
    worker = script("benchmarks/client_workers/worker.py")
    assert worker.largest(found, case(a=[1, 2], b=[3])) == apart


def test_a_client_gives_every_output_in_its_shape() -> None:
    worker = script("benchmarks/client_workers/worker.py")
    with pytest.raises(ValueError, match=r"has \(1,\), not \(2,\)"):
        worker.largest({"a": [1.0]}, case(a=[1, 1]))
    with pytest.raises(KeyError):
        worker.largest({"b": [1.0]}, case(a=[1, 1]))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"difference": NAN}, "differs by nan"),
        ({"difference": INF}, "differs by inf"),
        ({"difference": 1e-4}, "differs by 1.0e-04"),
        ({"difference": 0.0, "same": False}, "other tokens"),
        ({"more": 1}, "nothing was compared"),
        ({"matrices": 0, "left": 0}, "no matrices"),
        ({"matrices": 2, "left": 0}, "ok"),
        ({"same": True}, "ok"),
    ],
)
def test_a_verdict_is_ok_only_where_something_was_compared(found: dict[str, Any], said: str) -> None:
    assert script("benchmarks/clients.py").verdict(found) == said


def test_a_client_that_says_nothing_is_not_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = script("benchmarks/clients.py")
    (tmp_path / "case.json").write_text(json.dumps({"tokens": []}))
    silent = SimpleNamespace(stdout="", stderr="", returncode=0)
    monkeypatch.setattr(clients.subprocess, "run", lambda *_, **__: silent)
    assert clients.verdict(clients.run(clients.CLIENTS["onnxruntime"], tmp_path)) == "nothing was said"


# --- tokens, logits, FLOPs, losses ------------------------------------------------------------------------------------


def test_tokens_of_a_server_are_as_many_as_ours() -> None:
    judged = script("benchmarks/serving.py").judged
    want = [[1, 2, 3], [4, 5, 6]]
    assert judged(want, want) == "equal"
    assert judged([[1, 2, 3], [4, 5, 7]], want) == "1 of 2 rows equal"
    assert judged([[1, 2, 3]], want) == judged([[], []], want) == "another number of tokens"
    assert judged("it stopped", want) == "it stopped"


@pytest.mark.parametrize("given", [["Lama 3"], ["Llama 3", "--write", "page.md"]])
def test_a_page_is_not_overwritten_with_a_table_of_few_families(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text("a page")
    with pytest.raises(SystemExit):
        script("benchmarks/serving.py").main(given)
    assert (tmp_path / "page.md").read_text() == "a page"


@pytest.mark.parametrize(
    ("eager", "ours", "said"),
    [(1.0, 1.1, "1.0e-01"), (1.0, NAN, "inf"), (NAN, NAN, "0.0e"), (0.0, 0.0, "0.0e"), (1.0, 1.0001, "")],
)
def test_logits_that_differ_or_are_nan_or_zero_are_not_equal(
    eager: float, ours: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # what it exports with is not needed here
    bench = script("benchmarks/onnx.py")
    wrong: list[Exception] = []
    made = SimpleNamespace(name="gpt2", fail=lambda way, problem: wrong.append(problem), of=lambda way: {})
    ways = {n: lambda x=x: np.full((1, 3, 5), x, np.float32) for n, x in {"torch eager": eager, "ours": ours}.items()}
    if not said:
        bench.Bench.measure(made, ways, "prefill", 1, 1)
    else:
        with pytest.raises(SystemExit, match=f"differs from PyTorch by {said}"):
            bench.Bench.measure(made, ways, "prefill", 1, 1)
    assert wrong == []


TINY = {"layers": 1, "width": 32, "heads": 4, "vocab": 64, "context": 64}
SMALL = {
    "gpt2": TINY,
    "llama": {**TINY, "kv_heads": 2, "hidden": 48},
    "mixtral": {**TINY, "kv_heads": 2, "hidden": 48},
}


def exchanged(module: nn.Module) -> None:
    """Exchange two weights of the same shape that mean different things."""
    shapes: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for weight in module.parameters():
        shapes.setdefault(tuple(weight.shape), []).append(weight)
    a, b = next(those for shape, those in shapes.items() if len(shape) > 1 and len(those) > 1)[:2]
    a.data, b.data = b.data, a.data


def with_nan(module: nn.Module) -> None:
    next(module.parameters()).data[:, 0] = NAN


def zeros(module: nn.Module) -> None:
    for weight in module.parameters():
        weight.data.zero_()


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("fault", [None, exchanged, with_nan, zeros])
def test_an_implementation_that_is_not_ours_is_not_measured(
    name: str, fault: Callable[[nn.Module], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = script("benchmarks/torch_models.py")
    case = bench.CASES[name]
    monkeypatch.setitem(bench.CASES, name, bench.Case(case.spec, SMALL[name], case.theta))
    package, maker, way = bench.OTHERS["transformers"]

    def faulty(*given: Any) -> nn.Module:
        module: nn.Module = maker(*given)
        if fault is not None:
            fault(module)
        return module

    monkeypatch.setattr(bench, "OTHERS", {"transformers": (package, faulty, way)})
    options = SimpleNamespace(device="cpu", no_cpu=True, compiled=None)
    if fault is None:
        assert set(bench.made(name, "float32", options)) == {"archdsl", "transformers"}
    else:
        with pytest.raises(SystemExit, match="transformers differs from ours by"):
            bench.made(name, "float32", options)


@pytest.mark.parametrize(
    ("params", "flops", "seconds", "said"),
    [
        (7, 50, 9.0, ""),
        (8, 50, 9.0, "PyTorch says otherwise"),
        (7, 40, 9.0, "PyTorch says otherwise"),
        (None, None, 9.0, "PyTorch says otherwise"),
        (7, 50, 0.1, "takes 0.10 s"),
    ],
)
def test_an_estimator_that_is_wrong_or_slower_is_named(
    params: int | None,
    flops: int | None,
    seconds: float,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench = script("benchmarks/estimators.py")
    monkeypatch.setattr(bench, "TOOLS", {"FlopCounterMode": ("torch", None)})
    monkeypatch.setattr(bench, "ours", lambda name: bench.Found(7, 40, 0.5, 90.0, dense=50))
    monkeypatch.setattr(bench, "theirs", lambda tool, name: bench.Found(params, flops, seconds, 900.0))
    assert bench.main([next(iter(bench.CASES))], 1, False) == bool(said)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("plain", "full", "megabytes", "status"),
    [(240.0, 900.0, 140.0, 0), (260.0, 900.0, 140.0, 1), (240.0, 1100.0, 140.0, 1), (240.0, 900.0, 160.0, 1)],
)
def test_commands_that_are_slow_or_large_are_found(
    plain: float, full: float, megabytes: float, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = script("benchmarks/startup.py")
    taken = {tuple(arguments): (100.0, 50.0) for arguments in bench.COMMANDS.values()}
    taken |= {tuple(arguments): (plain, 60.0) for arguments in bench.PLAIN.values()}
    taken |= {tuple(arguments): (full, megabytes) for arguments in bench.FULL.values()}
    monkeypatch.setattr(bench, "run", lambda arguments, _: taken[tuple(arguments)])
    assert bench.main(1) == status


def test_a_command_that_fails_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="exit status 3"):
        script("benchmarks/startup.py").run(["-c", "raise SystemExit(3)"], str(tmp_path))


def test_flops_that_differ_are_found_and_so_are_no_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flops = script("benchmarks/flops.py")
    assert flops.main(["no_such_model"]) == 1
    assert "no model of the zoo is called no_such_model" in capsys.readouterr().err
    monkeypatch.setattr(flops, "predicted", lambda *_: (5, 15))
    for counted, status in (((5, 15), 0), ((5, 16), 1)):
        monkeypatch.setattr(flops, "counted", lambda *_, found=counted: found)
        assert flops.main(["self_attention"]) == status
    monkeypatch.setattr(flops, "predicted", lambda *_: (0, 0))
    monkeypatch.setattr(flops, "counted", lambda *_: (0, 0))
    assert flops.main(["self_attention"]) == 1


def test_of_lines_those_above_the_budget_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    size = script("tests/size.py")
    assert size.too_many(size.EMITTED) == {}
    counts = size.EMITTED | {"gpt2": size.EMITTED["gpt2"] + 3}
    assert size.too_many(counts) == {"gpt2": 3}
    for found, status in ((size.EMITTED, 0), (counts, 1)):
        monkeypatch.setattr(size, "emitted", lambda found=found: found)
        assert size.main() == status
