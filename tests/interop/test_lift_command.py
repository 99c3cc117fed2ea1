"""`archdsl lift`: what is asked for wrongly ends in one diagnostic and nothing is written; else it is the module's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner, Result

import archdsl
from archdsl.cli import app
from archdsl.interop.lift.compare import Drawn, Measured, _scheme
from archdsl.interop.lift.module import chosen, found, hollow, is_hollow, role
from archdsl.interop.lift.table import Row, Table, _shortest, _starred

pytestmark = pytest.mark.slow

FILE = '''\
"""A language model of few lines, and modules that are wrong in some way."""
import sys
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

print("what the file prints")


@dataclass
class Sizes:
    vocab: int = 40
    context: int = 48
    width: int = 16


@dataclass
class Config:
    sizes: Sizes = field(default_factory=Sizes)
    depth: int = 2
    heads: int = 2


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, w = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (p.view(b, t, self.heads, w // self.heads).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, w))


class Net(nn.Module):
    def __init__(self, vocab: int = 40, width: int = 16, depth: int = 2, heads: int = 2):
        super().__init__()
        assert width % heads == 0, "heads divide the width"
        self.words = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("unused", torch.zeros(3))

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        print("what forward prints")
        return {"logits": self.head(x), "states": x}


class Nested(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        assert isinstance(config.sizes, Sizes)
        self.net = Net(config.sizes.vocab, config.sizes.width, config.depth, config.heads)

    def forward(self, tokens):
        return self.net(tokens)


def made(depth: int = 2):
    return Net(depth=depth)


def number():
    return 3


class Unbuilt(nn.Module):
    def __init__(self):
        super().__init__()
        raise ValueError("no \\x1b[31m such\\nsecond line")


class Leaving(nn.Module):
    def __init__(self):
        super().__init__()
        sys.exit(0)


class Uncallable(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def forward(self, x):
        return self.words(x) @ torch.zeros(3, 3)


class Mute(Exception):
    def __str__(self):
        raise ZeroDivisionError


class Silent(nn.Module):
    def forward(self, x):
        raise Mute


class Two(nn.Module):
    def forward(self, a, b):
        return a + b


class Nothing(nn.Module):
    def forward(self, x):
        return 1


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def forward(self, x):
        y = self.words(x)
        return y if y.sum() > 0 else -y


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def forward(self, x):
        y = self.words(x)
        return torch.stack([y[:, i] for i in range(y.shape[1])], 1)


value = 7
'''

Asked = tuple[str, ...]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(FILE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("def f(:\n", encoding="utf-8")
    (tmp_path / "zero.py").write_bytes(b"x = 1\0")
    (tmp_path / "importing.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    (tmp_path / "bert.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    (tmp_path / "wrong.json").write_text("{", encoding="utf-8")
    return tmp_path


def lift(*arguments: str) -> Result:
    done = CliRunner().invoke(app, ["lift", *arguments, "-o", "out.arch"], prog_name="archdsl")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


WRONG: dict[str, tuple[Asked, str]] = {
    "no name": (("model.py",), "E0543"),
    "nothing": ((":",), "E0543"),
    "no file": (("none.py:Net",), "E0543]: `none.py` cannot be read"),
    "a folder": ((".:Net",), "E0543"),
    "no class": (("model.py:Nett",), "E0543]: `model.py` has no `Nett`"),
    "a number": (("model.py:value",), "E0543"),
    "another class": (("model.py:Config",), "E0543"),
    "no syntax": (("broken.py:Net",), "E0544]: `broken.py` cannot be executed: SyntaxError"),
    "a zero byte": (("zero.py:Net",), "E0544]: `zero.py` cannot be executed: SyntaxError"),
    "no import": (("importing.py:Net",), "E0544]: `importing.py` cannot be executed: ModuleNotFoundError"),
    "no module": (("model.py:number",), "E0543]: `number` returns int"),
    "raises": (("model.py:Unbuilt",), "E0544]: `Unbuilt` cannot be built: ValueError"),
    "exits": (("model.py:Leaving",), "E0544]: `Leaving` cannot be built: SystemExit"),
    "cannot be called": (("model.py:Uncallable",), "E0544]: `Uncallable` cannot be called"),
    "raises what has no text": (("model.py:Silent",), "E0544]: `Silent` cannot be called"),
    "returns no tensor": (("model.py:Nothing",), "E0544]: `Nothing` returns no tensor"),
    "two inputs": (("model.py:Two",), "E0545"),
    "needs arguments": (("model.py:Nested",), "E0543]: `Nested` needs `config`"),
    "an unknown argument": (("model.py:Net", "--args", '{"widht": 3}'), "E0543]: `Net` has no parameter"),
    "an unknown field": (("model.py:Nested", "--args", '{"config": {"dept": 3}}'), "E0543]: `Config` has no field"),
    "sizes that do not fit": (("model.py:Net", "--args", '{"heads": 3}'), "E0544]: `Net` cannot be built"),
    "args are no object": (("model.py:Net", "--args", "[1]"), "--args"),
    "args are no JSON": (("model.py:Net", "--args", "{"), "--args"),
    "deep args": (("model.py:Net", "--args", "[" * 100_000), "--args"),
    "an unknown number": (("model.py:Net", "--vary", "dpeth=3"), "E0543]: `Net` has no number `dpeth`"),
    "values of no number": (("model.py:Net", "--vary", "depth=a"), "--vary"),
    "several lengths": (("model.py:Net", "--vary", "depth=3", "--vary", "width=32,48"), "E0543"),
    "values that do not fit": (("model.py:Net", "--vary", "heads=3"), "E0544]: `Net` cannot be built with heads=3"),
    "an input without axes": (("model.py:Net", "--input", "tokens=token"), "E0545"),
    "an input of no kind": (("model.py:Net", "--input", "tokens=tokn[batch,time]"), "E0545"),
    "an unknown input": (("model.py:Net", "--input", "x=token[batch,time]"), "E0545]: `forward` of `Net` has no input"),
    "an unknown axis": (("model.py:Net", "--input", "tokens=token[batch,tiem]"), "E0545"),
    "axes of no input": (("model.py:Net", "--axes", "x=batch,time"), "E0545"),
    "other axes": (("model.py:Net", "--axes", "tokens=batch"), "E0545"),
    "a config of a file": (("model.py:Net", "--config", "bert.json"), "E0543"),
    "a config of another type": (("transformers:LlamaForCausalLM", "--config", "bert.json"), "E0543"),
    "a config that is none": (("transformers:LlamaForCausalLM", "--config", "wrong.json"), "E0543"),
    "a config that is a list": (("transformers:LlamaForCausalLM", "--config", "list.json"), "E0543"),
    "no config": (("transformers:LlamaForCausalLM", "--config", "none.json"), "E0543"),
    "no class of transformers": (("transformers:LlamaForCausalML",), "E0543"),
    "a function of transformers": (("transformers:set_seed",), "E0543"),
    "a path in transformers": (("transformers:models.llama",), "E0543"),
    "no weights": (("model.py:Net", "--weights", "none.pt"), "E0503"),
    "two weights": (("model.py:Net", "--weights", "none.pt", "--own-weights"), "--weights"),
    "control by numbers": (("model.py:Deciding",), "E0540]: `Deciding` cannot be traced"),
    "a loop over time": (("model.py:Loop",), "E0541"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_once_and_nothing_is_written(name: str, folder: Path) -> None:
    arguments, said = WRONG[name]
    before = sorted(p.name for p in folder.iterdir())
    done = lift(*arguments)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert "Traceback" not in done.output
    assert "\x1b[31m" not in done.output
    assert done.stdout == ""
    assert len(re.findall(r"^error", done.stderr, re.MULTILINE)) <= 1
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == before


def test_a_folder_that_is_not_there_is_said_before_the_work(folder: Path) -> None:
    command = [sys.executable, "-m", "archdsl", "lift", "model.py:Net", "-o", "no/out.arch"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "No such file or directory" in done.stderr
    assert "building" not in done.stderr


# --- what is written --------------------------------------------------------------------------------------------------


def test_a_module_is_lifted_with_its_weights(folder: Path) -> None:
    """A spec, its table, and its weights, which `archdsl weights` makes of the same state dict by that table."""
    torch.manual_seed(1)
    module = found("model.py:Net", {}).made()
    torch.save({"model": {f"_orig_mod.{k}": v for k, v in module.state_dict().items()}}, "theirs.pt")
    done = lift("model.py:Net", "--weights", "theirs.pt", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["files"] == ["out.arch", "out.checkpoint", "out.safetensors"]
    assert report["causal"]
    assert {c["what"] for c in report["checks"]} == {"parameters", "outputs", "decode steps", "checkpoint"}
    assert len(report["configurations"]) == 2
    assert Path("out.arch").read_text(encoding="utf-8") == report["text"]
    assert report["text"].startswith("# Lifted from model.py:Net.\n")
    loaded = archdsl.load("out.arch")
    assert archdsl.estimate(loaded).params.total == sum(p.numel() for p in module.parameters())
    assert {f.name for f in loaded.config} >= {"vocab", "width", "depth", "heads"}

    ours = archdsl.to_torch(loaded).eval()
    ours.load_state_dict(load_file("out.safetensors"))
    tokens = torch.randint(0, 40, (2, 9))
    torch.testing.assert_close(ours(tokens), module(tokens)["logits"], rtol=1e-4, atol=1e-5)

    state = {k: v.clone() for k, v in module.state_dict().items()}
    save_file(state, "theirs.safetensors")
    archdsl.import_weights("out.arch", "theirs.safetensors", "again.safetensors", mapping="out.checkpoint")
    again = load_file("again.safetensors")
    assert again.keys() == load_file("out.safetensors").keys()
    assert all(torch.equal(again[k], v) for k, v in load_file("out.safetensors").items())


def test_weights_of_another_module_leave_no_file(folder: Path) -> None:
    torch.save({"w": torch.zeros(2)}, "other.pt")
    done = lift("model.py:made", "--vary", "depth=3", "--weights", "other.pt")
    assert done.exit_code != 0
    assert "E0532" in done.stderr
    assert not [*folder.glob("out.*")]


def test_a_pickle_that_runs_code_is_not_read(folder: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return (Path("ran").write_text, ("",))

    Path("evil.pt").write_bytes(pickle.dumps(Evil()))
    done = lift("model.py:made", "--vary", "depth=3", "--weights", "evil.pt")
    assert done.exit_code != 0
    assert "E0503" in done.stderr
    assert not Path("ran").exists()
    assert not [*folder.glob("out.*")]


def test_a_module_in_python_is_left_as_it_was(folder: Path) -> None:
    module = found("model.py:Net", {}).build({}).train()
    module.config = SimpleNamespace(use_cache=True)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    example = torch.randint(0, 40, (2, 5))
    torch.manual_seed(5)
    report = archdsl.lift(module, example, fold=True)
    assert module.config.use_cache is True
    assert torch.equal(torch.rand(3), expected), "the random numbers of the program are its own"
    assert report.verified
    assert report.files == []
    assert all(part.training for part in module.modules())
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert any("every size of the spec is a number" in remark for remark in report.remarks)
    assert archdsl.estimate(text=report.text).params.total == sum(p.numel() for p in module.parameters())


class Local(nn.Module):
    """Attention within pieces of a sequence; `demanded` is what it checks of a length."""

    def __init__(self, demanded: Callable[[int], bool], piece: int, causal: bool) -> None:
        super().__init__()
        self.demanded, self.piece, self.causal = demanded, piece, causal
        self.embed = nn.Embedding(40, 8)
        self.qkv = nn.Linear(8, 24)

    def forward(self, tokens: torch.Tensor) -> Any:
        assert self.demanded(tokens.shape[1])
        x = self.embed(tokens)
        pieces = self.qkv(x).unflatten(1, (tokens.shape[1] // self.piece, self.piece)) if self.piece else self.qkv(x)
        q, k, v = pieces.chunk(3, -1)
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).reshape(x.shape)


@pytest.mark.parametrize(
    ("demanded", "piece", "causal", "said"),
    [
        (lambda n: n % 4 == 0 and n <= 96, 4, True, ["time <= 96", "time % 4 == 0"]),
        (lambda n: n >= 5, 0, True, ["time >= 5"]),
        (lambda n: n % 6 == 0, 3, True, ["time % 6 == 0"]),
        (lambda n: n > 1, 0, False, []),
    ],
)
def test_what_a_module_demands_of_a_length_is_asserted(
    demanded: Callable[[int], bool], piece: int, causal: bool, said: list[str]
) -> None:
    report = archdsl.lift(Local(demanded, piece, causal), torch.randint(0, 40, (2, 48)))
    assert report.verified
    assert report.causal == causal
    assert any(remark.startswith("not proved causal: ") for remark in report.remarks) != causal
    assert re.findall(r"assert (time .*)", report.text) == said


def test_a_spec_that_differs_says_so_and_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the module that is compared one number is other than in that which was recorded."""
    from archdsl.interop.lift import compare

    call = compare.Side.call
    monkeypatch.setattr(compare.Side, "call", lambda *args: [t + 0.1 for t in call(*args)])
    done = lift("model.py:Net", "--vary", "depth=3")
    assert done.exit_code == 1, done.output
    assert "E0548" in done.stderr
    assert Path("out.arch").read_text(encoding="utf-8").startswith("# unverified: outputs differ by ")
    assert list(archdsl.check("out.arch")) == []


# --- parts ------------------------------------------------------------------------------------------------------------


def test_a_nested_config_becomes_its_classes(folder: Path) -> None:
    subject = found("model.py:Nested", {"config": {"sizes": {"width": 32}, "depth": 3}})
    module = subject.made()
    assert module.net.words.weight.shape == (40, 32)
    assert len(module.net.layers) == 3
    assert len(subject.made({"depth": 5}).net.layers) == 5


def test_a_large_module_takes_no_memory() -> None:
    wide = 1 << 14
    built = hollow(lambda: nn.Sequential(*(nn.Linear(wide, wide) for _ in range(100)), nn.BatchNorm1d(3)))
    assert built is not None
    assert is_hollow(built)
    assert sum(p.numel() for p in built.parameters()) == 100 * (wide * wide + wide) + 6
    assert built[-1].running_var.tolist() == [1.0, 1.0, 1.0]
    assert not is_hollow(nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("kind", "names"),
    {
        "layers": ("n_layer", "num_hidden_layers", "depth", "layers"),
        "heads": ("n_head", "num_attention_heads", "heads"),
        "kv": ("num_key_value_heads", "n_kv_head", "n_kv_heads"),
        "width": ("n_embd", "hidden_size", "d_model", "dim", "width"),
        "vocab": ("vocab_size", "n_vocab", "vocab"),
        "context": ("block_size", "max_position_embeddings", "n_positions", "max_seq_len", "context_length"),
        "window": ("sliding_window", "window"),
        "": ("intermediate_size", "rank", "rms_norm_eps"),
    }.items(),
)
def test_fields_are_known_by_their_names(kind: str, names: tuple[str, ...]) -> None:
    assert [role(name) for name in names] == [kind] * len(names)


def test_other_configurations_keep_what_must_divide() -> None:
    for which in (0, 1):
        first = next(iter(chosen({"n_embd": 64, "n_head": 4, "n_kv_heads": 2, "n_layer": 2}, which, False)))
        assert first["n_embd"] % (2 * first["n_head"]) == 0
        assert first["n_head"] % first["n_kv_heads"] == 0
        assert 1 < first["n_kv_heads"] < first["n_head"]


def test_a_table_tells_the_weights_of_more_layers() -> None:
    table = Table(
        [
            Row("first.w", "layers.0.w"),
            Row("rest.0.w", "layers.1.w"),
            Row("rest.1.w", "layers.2.w"),
            Row("far.0.w", "blocks.1.w"),
            Row("far.1.w", "blocks.3.w"),
            Row("head.w", "lm_head.w", True),
        ]
    )
    assert table.of("rest.5.w") == Row("rest.5.w", "layers.6.w")
    assert table.of("far.4.w") == Row("far.4.w", "blocks.9.w")
    assert table.of("first.w") == Row("first.w", "layers.0.w")
    assert table.of("head.w") == Row("head.w", "lm_head.w", True)
    assert table.of("rest.0.v") is None


def test_numbers_that_only_the_module_has_stay_in_its_names() -> None:
    ends = {"mlp_0.weight": "mlp.0.weight", "mlp_2.weight": "mlp.2.weight", "attn.qkv.weight": "attn.qkv.weight"}
    rows = [Row(f"blocks.{i}.{ours}", f"blocks.{i}.{theirs}") for i in range(3) for ours, theirs in ends.items()]
    starred = _starred(rows)
    assert {_shortest(row, starred) for row in starred} == {
        Row("blocks.*.mlp_0", "blocks.*.mlp.0"),
        Row("blocks.*.mlp_2", "blocks.*.mlp.2"),
        Row("blocks.*.attn", "blocks.*.attn"),
    }


def test_a_scheme_that_is_named_can_be_written() -> None:
    """GPT-2's last maps, in configurations of other depths."""
    drawn = [Drawn("normal", 0.0, 0.02 / (2 * n) ** 0.5, 100_000) for n in (2, 8)]
    own = Drawn("normal", 0.0, 0.5, 100_000)
    pairs = [Measured(d, own, (n, n), float(n)) for d, n in zip(drawn, (2, 8), strict=True)]
    scheme = _scheme(pairs, "n_layer")
    assert scheme == "depth_scaled(0.02, n_layer)"
    archdsl.load(text=f"model m(n_layer = 2)(x: [batch, 4]) -> [batch, 4] {{ return x -> linear(4, init: {scheme}) }}")
