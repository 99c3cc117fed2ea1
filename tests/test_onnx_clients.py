"""The newest and the oldest onnxruntime on graphs of tiny models, by the script that asks all clients
(`benchmarks/clients.py`, after `make clients`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import clients  # noqa: E402

MODELS = ["mixtral 32", "mamba", "bert classifier", "t5"]
INSTALLED = pytest.mark.skipif(not clients.HERE.is_dir(), reason="`make clients` installs it")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("clients")
    found = {name: folder / str(i) for i, name in enumerate(MODELS)}
    for name, path in found.items():
        clients.write(name, path)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "client",
    [
        "onnxruntime",
        pytest.param("onnxruntime 1.20, `--opset 21`", marks=INSTALLED),
        pytest.param("OpenVINO", marks=INSTALLED),
    ],
)
def test_clients_give_what_pytorch_gives(client: str, folders: dict[str, Path]) -> None:
    found = {name: clients.run(clients.CLIENTS[client], path) for name, path in folders.items()}
    assert {name: clients.verdict(x) for name, x in found.items()} == dict.fromkeys(MODELS, "ok")
    assert sum(x.get("same", False) for x in found.values()) == 3
    assert all(x["difference"] < clients.EQUAL for x in found.values())


def test_what_is_wrong_is_told() -> None:
    assert clients.verdict({}) == "no file beside the graph"
    assert clients.verdict({"difference": 0.5}) == "differs by 5.0e-01"
    assert clients.verdict({"difference": 0.0, "same": False}) == "other tokens"
    assert clients.verdict({"matrices": 9, "left": 2}) == "2 of 9 matrices are not found"
    assert clients.reason("x\nValueError: /a/b/c.py is wrong\n") == "ValueError: c.py is wrong"
    ended = clients.markdown({"onnxruntime": {"a": {"error": "ended by signal 6"}, "b": {"difference": 1e-6}}})
    assert "1 of 2 | 1e-06 | – | ended by signal 6: a |" in ended
