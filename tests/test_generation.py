"""`archdsl generate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import archdsl
from archdsl.cli import app

pytestmark = pytest.mark.slow

SPEC = str(Path(__file__).resolve().parents[1] / "examples" / "tiny_llama.arch")
SMALL = ["--set", "layers=1", "--set", "width=32", "--set", "hidden=64"]


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["generate", *args])
    return result.exit_code, result.stdout, result.stderr


def test_rows_go_on_from_their_prompts() -> None:
    options = ("--prompt", "1 2 3", "--prompt", "7, 8", "--max-new-tokens", "5", "--json")
    status, out, _ = run(SPEC, *options)
    report = json.loads(out)
    assert (status, report["prompts"], [len(t) for t in report["tokens"]]) == (0, [[1, 2, 3], [7, 8]], [5, 5])
    assert report["texts"] is None
    alone = json.loads(run(SPEC, "--prompt", "7 8", "--max-new-tokens", "5", "--json")[1])
    assert alone["tokens"][0] == report["tokens"][1]
    assert json.loads(run(SPEC, *options)[1])["tokens"] == report["tokens"]


def test_a_single_row_is_shown_as_it_grows() -> None:
    status, out, _ = run(SPEC, "--prompt", "1 2 3", "--max-new-tokens", "4")
    shown = [int(n) for n in out.splitlines()[0].split()]
    report = json.loads(run(SPEC, "--prompt", "1 2 3", "--max-new-tokens", "4", "--json")[1])
    assert (status, shown) == (0, report["tokens"][0])
    assert "tokens/s" in out


def test_a_stop_ends_a_row() -> None:
    free = json.loads(run(SPEC, "--prompt", "1 2 3", "--max-new-tokens", "6", "--json")[1])["tokens"][0]
    found = json.loads(run(SPEC, "--prompt", "1 2 3", "--max-new-tokens", "6", "--stop", str(free[2]), "--json")[1])
    assert found["tokens"][0] == free[: free.index(free[2]) + 1]


def test_a_row_ends_at_its_own_stop_and_others_go_on() -> None:
    options = ("--prompt", "1 2 3", "--prompt", "7 8", "--max-new-tokens", "6", "--json")
    free = json.loads(run(SPEC, *options)[1])["tokens"]
    ends = [next(t for t in free[i] if t not in free[1 - i]) for i in (0, 1)]
    for row, end in enumerate(ends):
        found = json.loads(run(SPEC, *options, "--stop", str(end))[1])["tokens"]
        assert found[row] == free[row][: free[row].index(end) + 1]
        assert found[1 - row] == free[1 - row]


def test_a_text_without_tokens_is_no_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"w": 0}, unk_token="w")).save(str(path))
    status, _, err = run(SPEC, "--prompt", "", "--tokenizer", str(path))
    assert (status, err) == (2, "error[E0503]: a prompt has at least one token\n")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    status, _, err = run(SPEC, "--prompt", "w", "--tokenizer", str(path))
    assert (status, "error[E0502]: a tokenizer needs the package `tokenizers`" in err) == (2, True)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("to_torch", {}),
        ("generate", {"prompt": "1"}),
        ("verify", {}),
        ("memory", {"measure": True}),
        ("estimate", {"measure": True}),
    ],
)
def test_what_needs_pytorch_says_so(name: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch", "archdsl.run.measure"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(archdsl.ArchError, match=r"E0502.*needs PyTorch, which is not installed"):
        getattr(archdsl, name)("gpt2", **more)


def test_an_input_that_is_no_text_is_refused(tmp_path: Path) -> None:
    spec = tmp_path / "m.arch"
    spec.write_text("""model m(tokens: token[batch, time], g: [batch, 8]) {
      x = tokens -> embedding(9, 8)
      y = (x -> mha(heads: 2, mask: causal)) + unsqueeze(g, 1)
      return y -> linear(9) as head
    }""")
    said = "the model also reads `g`, which is no text\n= help: `archdsl.to_torch` gives a module that takes it\n"
    assert run(str(spec), "--prompt", "1 2") == (2, "", f"error[E0503]: {said}")


def test_text_goes_through_a_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {f"w{i}": i for i in range(256)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    status, out, _ = run(SPEC, "--prompt", "w1 w2", "--tokenizer", str(path), "--max-new-tokens", "3", "--json")
    report = json.loads(out)
    assert (status, report["prompts"]) == (0, [[1, 2]])
    assert report["texts"] == [" ".join(f"w{t}" for t in report["tokens"][0])]


def test_an_encoder_is_given_its_tokens() -> None:
    tiny = [f"--set={s}" for s in ("layers=1", "width=32", "heads=4", "head_dim=8", "hidden=64")]
    options = ("--prompt", "0", "--max-new-tokens", "3", "--json")
    status, out, err = run("t5_small", *tiny, *options, "--input", "source=5 6 7")
    assert (status, err) == (0, "")
    assert len(json.loads(out)["tokens"][0]) == 3
    status, _, err = run("t5_small", *tiny, "--prompt", "0")
    assert (status, "also reads `source`" in err) == (2, True)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([SPEC, "--prompt", "hello"], "without a tokenizer a prompt is token ids"),
        ([SPEC, "--prompt", "1", "--weights", "missing.safetensors"], "there is no file"),
        ([SPEC, "--prompt", "1", "--tokenizer", "missing.json"], "is no tokenizer"),
        ([SPEC, "--prompt", "1", "--device", "cuda:77"], "there is no device"),
        ([SPEC, "--prompt", "1", "--input", "other=1"], "no further input of tokens"),
        ([SPEC, "--prompt", "99999"], "there is no token 99999: `tiny_llama` has 256, from 0 on"),
        ([SPEC, "--prompt", "1", "--max-new-tokens", "99999999"], "at most `context` tokens"),
        (["bert_base", "--prompt", "1"], "cannot be decoded step by step"),
        (["pixel_rnn_mnist", "--prompt", "1"], "does not go from tokens to logits"),
    ],
)
def test_what_cannot_be_is_said_in_one_diagnostic(args: list[str], said: str) -> None:
    status, out, err = run(*args)
    assert status in (1, 2)
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert out == ""


def test_a_prompt_that_the_model_itself_refuses(tmp_path: Path) -> None:
    """A step asks for the least length of all positions so far."""
    spec = tmp_path / "m.arch"
    spec.write_text("""model m(tokens: token[batch, time]) {
      x = tokens -> embedding(32, 8)
      k = x -> linear(8) as keys
      later = unsqueeze(indices(time), 0) > unsqueeze(indices(time), 1)
      scores = where(later, -inf, einsum("b i d, b j d -> b i j", x, k))
      best, at = topk(scores, 4)
      w = softmax(where(scores < best[..., 3:], -inf, scores))
      return matmul(w, x -> linear(8) as values) -> linear(32) as head
    }""")
    status, _, err = run(str(spec), "--prompt", "1 2", "--max-new-tokens", "2")
    assert status == 2
    message = "k of `topk` must be at most the length of the axis, as `minimum(4, time)` is"
    assert f"the model refused its inputs: {message}" in " ".join(err.split())
    assert run(str(spec), "--prompt", "1 2 3 4", "--max-new-tokens", "2")[0] == 0


def test_a_refusal_names_the_tensor_that_may_be_assumed_causal(tmp_path: Path) -> None:
    spec = tmp_path / "m.arch"
    spec.write_text("""model m(tokens: token[batch, time]) {
      x = tokens -> embedding(32, 8)
      later = unsqueeze(indices(time), 0) > unsqueeze(indices(time), 1)
      scores = where(later, -inf, einsum("b i d, b j d -> b i j", x, x -> linear(8) as keys))
      best, at = topk(scores, 4)
      w = softmax(where(max(one_hot(time)(at), 2) == 0, -inf, scores))
      return matmul(w, x -> linear(8) as values) -> linear(32) as head
    }""")
    status, _, err = run(str(spec), "--prompt", "1 2 3 4")
    assert status == 1
    assert "`at` points at any: mask them again behind it, and `assume causal(at)`" in " ".join(err.split())
