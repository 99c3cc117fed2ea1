"""Surgery on a checkpoint: `weights --from … --init-missing` keeps what fits to the bit, draws the rest as `init` does,
and says of each which it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli_tools import Run
from interop.cases import CASES
from safetensors.torch import load_file, save_file
from torch import Tensor

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.frontend.load import load
from archdsl.interop.convert import fit_from, import_folder
from archdsl.interop.fitting import modules_of
from archdsl.weights.safetensors import arrays

FFN = "swiglu(hidden: hidden, bias: mlp_bias)"
SEED = 7


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `NAME` with `NAME.arch` and `NAME.safetensors` beside it, of a Llama in bfloat16 and of a GPT-2."""
    root = tmp_path_factory.mktemp("surgery")
    for name in ("llama", "gpt2"):
        model = CASES[name].made()
        (model.bfloat16() if name == "llama" else model).save_pretrained(root / name)
        import_folder(root / name, root / f"{name}.arch")
    return root


def edited(spec: Path, target: Path, *changes: tuple[str, str]) -> Path:
    text = spec.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    target.write_text(text)
    return target


def fitted(
    model: Any, source: Path, folder: Path, dtype: Any = "bfloat16", **options: Any
) -> tuple[Any, dict[str, Tensor]]:
    """What became of each weight, judged against the checkpoint in the spec's names and against `init`."""
    report = fit_from(model, source, folder / "out.safetensors", seed=SEED, **options)
    found = load_file(folder / "out.safetensors")
    archdsl.init_weights(model, folder / "drawn.safetensors", seed=SEED, dtype=dtype)
    drawn = load_file(folder / "drawn.safetensors")
    assert found.keys() == drawn.keys() == {*report.kept, *report.rows, *report.drawn}
    assert all(found[n].equal(drawn[n]) for n in report.drawn)
    module = archdsl.to_torch(model)
    module.load_state_dict({n: t.float() for n, t in found.items()})
    assert module(torch.arange(1, 9)[None]).isfinite().all()
    return report, found


SURGERIES = {
    "another FFN": ((FFN, "moe(experts: 4, top_k: 2, expert: swiglu(hidden: hidden))"),),
    "an FFN with some of the names": ((FFN, "mlp(hidden: hidden)"),),
    "a layer added": (("layers = 2", "layers = 3"),),
}


@pytest.mark.parametrize("name", SURGERIES)
@pytest.mark.parametrize("form", ["folder", "file"])
def test_what_fits_is_kept_and_the_rest_is_drawn(name: str, form: str, imported: Path, tmp_path: Path) -> None:
    spec = edited(imported / "llama.arch", tmp_path / "m.arch", *SURGERIES[name])
    source = imported / ("llama" if form == "folder" else "llama.safetensors")
    report, found = fitted(load(spec), source, tmp_path)
    before = load_file(imported / "llama.safetensors")
    assert {*report.kept} == {n for n, t in before.items() if n in found and found[n].shape == t.shape}
    assert all(found[n].equal(before[n]) for n in report.kept)
    assert (report.rows, {*report.left}) == ({}, before.keys() - {*report.kept})
    assert {t.dtype for t in found.values()} == {torch.bfloat16}
    lines = {
        "another FFN": ["initialized: blocks.{0,1}.ffn", "not taken from the checkpoint: blocks.{0,1}.ffn"],
        "an FFN with some of the names": [
            "initialized: blocks.{0,1}.ffn.up.bias, blocks.{0,1}.ffn.down.bias",
            "not taken from the checkpoint: blocks.{0,1}.ffn.gate",
        ],
        "a layer added": ["initialized: blocks.2"],
    }
    assert [*report.lines()][1:] == lines[name]
    assert (tmp_path / "out.hf" / "config.json").is_file() is (form == "folder")


@pytest.mark.parametrize("size", [101, 90])
@pytest.mark.parametrize(
    ("name", "sizes", "tables"),
    [
        ("llama", {"hidden": 81}, {"token_embedding.weight", "head.weight"}),
        ("gpt2", {"context": 70}, {"token_embedding.weight", "position.weight"}),  # whose head is tied
    ],
)
def test_rows_of_a_vocabulary_are_kept(
    name: str, sizes: dict[str, int], tables: set[str], size: int, imported: Path, tmp_path: Path
) -> None:
    """Those of positions, too. What else is of another size is drawn whole."""
    model = load(imported / f"{name}.arch", set={"vocab": size, **sizes})
    report, found = fitted(model, imported / name, tmp_path, dtype="bfloat16" if name == "llama" else "float32")
    before, drawn = load_file(imported / f"{name}.safetensors"), load_file(tmp_path / "drawn.safetensors")
    assert report.rows.keys() == tables
    told = [f"kept: the first {rows} of {whole} rows of {path}" for path, (rows, whole) in report.rows.items()]
    assert [line for line in report.lines() if "rows" in line] == told
    for path, (rows, whole) in report.rows.items():
        assert (rows, whole) == (min(len(before[path]), whole), len(found[path]))
        assert found[path][:rows].equal(before[path][:rows])
        assert found[path][rows:].equal(drawn[path][rows:])
    assert {*report.drawn} == {n for n in found if ".ffn." in n and name == "llama"}


def test_rows_of_float64_are_drawn_in_float64(imported: Path, tmp_path: Path) -> None:
    model = load(imported / "llama.arch", set={"vocab": 101})
    before = {name: tensor.double() for name, tensor in load_file(imported / "llama.safetensors").items()}
    save_file(before, tmp_path / "in.safetensors")
    fit_from(model, tmp_path / "in.safetensors", tmp_path / "out.safetensors", seed=SEED)
    found, drawn = load_file(tmp_path / "out.safetensors"), dict(arrays(model, SEED))
    for name, tensor in found.items():
        kept = torch.cat([before[name], torch.from_numpy(drawn[name])[len(before[name]) :]])
        assert (tensor.dtype, tensor.equal(kept)) == (torch.float64, True), name


def test_a_layer_goes_between_two(imported: Path, tmp_path: Path) -> None:
    model = load(imported / "llama.arch", set={"layers": 3})
    source = imported / "llama.safetensors"
    report, found = fitted(model, source, tmp_path, renames=[("blocks.1.", "blocks.2.")])
    before = load_file(source)
    assert all(found[n.replace("blocks.1", "blocks.2")].equal(t) for n, t in before.items())
    assert [*report.lines()][1:] == ["initialized: blocks.1"]


def test_a_folder_of_remote_code(imported: Path, tmp_path: Path) -> None:
    stored = imported / "llama.safetensors"
    archdsl.to_huggingface(imported / "llama.arch", tmp_path / "hf", weights=stored, native=False)
    report, found = fitted(load(imported / "llama.arch", set={"layers": 3}), tmp_path / "hf", tmp_path)
    before = load_file(imported / "llama.safetensors")
    assert {*report.kept} == before.keys()
    assert all(found[n].equal(t) for n, t in before.items())


def test_a_native_folder_of_what_was_changed(imported: Path, tmp_path: Path) -> None:
    """The config is the changed spec's, and has the ids that the checkpoint had."""
    from transformers import AutoModelForCausalLM

    model = load(imported / "llama.arch", set={"layers": 3, "vocab": 101})
    _, found = fitted(model, imported / "llama", tmp_path)
    archdsl.to_huggingface(model, tmp_path / "hf", weights=tmp_path / "out.safetensors", native=True)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert (theirs.config.vocab_size, theirs.config.num_hidden_layers, theirs.config.eos_token_id) == (101, 3, 2)
    assert theirs.config.dtype == torch.bfloat16
    ours = archdsl.to_torch(model).eval()
    ours.load_state_dict({n: t.float() for n, t in found.items()})
    tokens = torch.arange(1, 17).view(2, 8)
    with torch.no_grad():
        assert (theirs.float()(tokens).logits - ours(tokens)).abs().max() < 1e-4


def test_what_cannot_be_fitted(imported: Path, tmp_path: Path, run: Run) -> None:
    llama, out = str(imported / "llama"), str(tmp_path / "out.safetensors")
    spec = str(imported / "llama.arch")
    pairs = str(edited(imported / "llama.arch", tmp_path / "pairs.arch", ("rope(", "rope(interleaved: true, ")))
    wide = (spec, "--set", "width=64", "--set", "hidden=96", "--set", "vocab=97")
    before = load_file(f"{llama}.safetensors")
    save_file({f"own.{name}": tensor for name, tensor in before.items()}, tmp_path / "own.safetensors")
    save_file({}, tmp_path / "none.safetensors")
    for words, message in (
        ((spec, "--from", "hf", tmp_path / "own.safetensors", "--init-missing"), "the checkpoint has `own.blocks.0"),
        ((spec, "--from", "hf", tmp_path / "none.safetensors", "--init-missing"), "the checkpoint holds no tensors"),
        (
            (*wide, "--from", "hf", llama, "--init-missing"),
            "`token_embedding.weight` is [96, 48] in the checkpoint, and",
        ),
        ((*wide, "--from", "hf", llama, "--init-missing"), "has the name and the shape of a weight"),
        ((pairs, "--from", "hf", llama, "--init-missing"), "turns `pairs` of channels together"),
        ((spec, "--from", "hf", llama, "--seed", "1"), "goes with --init-missing"),
        ((spec, "--to", "hf", "--weights", f"{llama}.safetensors", "--init-missing"), "goes with --from"),
        ((spec, "--from", "hf", f"{llama}/model.safetensors", "--map", "llama", "--init-missing"), "config.json"),
        ((spec, "--from", "hf", f"{llama}.safetensors", "--set", "layers=3"), "`archdsl weights --init-missing` keeps"),
    ):
        done = run("weights", *words, "-o", out)
        assert (done.status, message in " ".join(done.err.split())) == (2, True), done.err
    assert not Path(out).exists()
    save_file({"token_embedding.weight": torch.ones(96, 48, dtype=torch.int64)}, tmp_path / "ints.safetensors")
    with pytest.raises(ArchError, match="has the name and the shape"):
        fit_from(load(spec), tmp_path / "ints.safetensors", Path(out))


def test_modules_are_the_largest_that_hold_nothing_else() -> None:
    paths = ["a.0.b.w", "a.0.c.w", "a.1.b.w", "a.1.c.w", "a.1.d.w", "head.weight", "x"]
    assert modules_of(paths, ["a.0.d.w", "head.bias"]) == ["a.0.b", "a.0.c", "a.1", "head.weight", "x"]
    assert modules_of([f"a.{i}.b.w" for i in range(3)], ["a.0.c"]) == ["a.0.b", "a.{1,2}"]
