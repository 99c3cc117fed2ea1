"""Checkpoints of strangers: nothing of a folder is run, and what it says stays a text."""

from __future__ import annotations

import io
import json
import shlex
import struct
import time
import tracemalloc
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from cli_tools import run
from interop.cases import CASES
from safetensors.torch import load_file, save_file

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.diagnostics.source import Source
from archdsl.interop.checkpoint_file import read
from archdsl.interop.gguf import GgufFile
from archdsl.interop.importing import worth
from archdsl.interop.mapping import pattern
from archdsl.syntax import ast
from archdsl.syntax.parse import parse, parse_expression, read_source

CODE = """
from pathlib import Path

Path({ran!r}).touch()
from transformers import LlamaConfig as C, LlamaForCausalLM as M
"""
HOSTILE = [
    "llama\nblock swiglu(hidden) { return x }\n#",
    "llama\rmodel m(x: [batch, 8]) { return x }",
    "\x1b]0;owned\x07\x1b[31m",
    "[/red] [link=http://x]",
    "\u202e\u2028 \x85 \x9b31m",
    "a" * 100_000,
]
"""Names with line ends, escape sequences, marks of rich, and too many characters."""


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strangers") / "llama"
    CASES["llama"].made().save_pretrained(folder)
    return folder


def changed(folder: Path, target: Path, **fields: Any) -> Path:
    """A copy of a folder with other fields in its config."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **fields}))
    return target


def control(text: str) -> list[str]:
    return [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def declared(path: Path) -> list[str]:
    """What a spec declares, in order, whatever its model is called."""
    tree = parse(read_source(path, path.name))
    return ["model" if isinstance(d, ast.ModelDecl) else getattr(d, "name", "import") for d in tree.declarations]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "unknown", "own"])
def test_no_code_of_a_folder_is_run(kind: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the config's `auto_map` and `architectures` name, an adapter says, and somebody answers a question."""
    ran = tmp_path / "ran"
    where = {"AutoConfig": "code.C", "AutoModel": "code.M", "AutoModelForCausalLM": "code.M"}
    fields: dict[str, Any] = {"model_type": kind, "auto_map": where}
    if kind == "own":
        fields |= {"model_type": "llama", "architectures": ["pipeline"], "_attn_implementation": "hub/kernels"}
    folder = changed(llama, tmp_path / "folder", **fields)
    (folder / "code.py").write_text(CODE.format(ran=str(ran)))
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/else", "peft_type": "LORA"}')
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    status, said = run("import", folder, "-o", tmp_path / "m.arch", "--map", "llama", "--check")
    assert not ran.exists()
    assert (status, "E0502" in said) == ((2, True) if kind == "unknown" else (0, False)), said


def test_transformers_is_told_nowhere_to_run_code() -> None:
    """Each call of `from_pretrained` in the product is given what forbids it."""
    assert archdsl.__file__ is not None
    for path in Path(archdsl.__file__).parent.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "from_pretrained(" in source:
            assert '"trust_remote_code": False, "local_files_only": True' in source, path
            assert 'options["use_safetensors"] = True' in source, path


@pytest.mark.parametrize("text", HOSTILE)
def test_names_of_a_checkpoint_stay_texts(text: str, llama: Path, tmp_path: Path) -> None:
    """A `model_type`, a folder's name and the spec's, in the spec and on the terminal."""
    run("import", llama, "-o", tmp_path / "twin.arch")
    folder = changed(llama, tmp_path / text.replace("/", "_")[:100], model_type=text)
    spec = tmp_path / f"{text.replace('/', '_')[:100]}m.arch"
    status, said = run("import", folder, "-o", spec, "--map", "llama")
    assert status == 0, said
    assert control(said) == []
    assert control(spec.read_text()) == []
    assert declared(spec) == declared(tmp_path / "twin.arch")
    assert len(spec.read_text().partition("\n")[0]) < 400
    status, said = run("import", folder, "-o", spec)
    assert status == 2
    assert control(said) == []


def test_a_checkpoint_without_tensors_is_refused(llama: Path, tmp_path: Path) -> None:
    folder = changed(llama, tmp_path / "folder")
    save_file({}, folder / "model.safetensors")
    status, said = run("import", folder, "-o", tmp_path / "m.arch")
    assert (status, "holds no tensors" in said) == (2, True), said
    assert not (tmp_path / "m.arch").exists()
    assert run("import", folder, "-o", tmp_path / "m.arch", "--no-weights")[0] == 0


def test_each_tensor_is_in_the_one_file_that_the_index_names(llama: Path, tmp_path: Path) -> None:
    folder = changed(llama, tmp_path / "folder")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    norm, head = "model.norm.weight", "lm_head.weight"
    save_file({name: t for name, t in tensors.items() if name != norm}, folder / "a.safetensors")
    save_file({norm: tensors[norm]}, folder / "b.safetensors")

    def imported(**where: str) -> str:
        index = dict.fromkeys(tensors, "a.safetensors") | where
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        status, said = run("import", folder, "-o", tmp_path / "m.arch")
        assert status in (0, 2)
        return said if status else ""

    assert imported(**{norm: "b.safetensors"}) == ""
    assert "does not hold it" in imported(**{norm: "b.safetensors", head: "b.safetensors"})
    assert "does not hold it" in imported()
    save_file({norm: tensors[norm] + 1, head: tensors[head]}, folder / "b.safetensors")
    assert f"`{head}` is in `a.safetensors` and in `b.safetensors`" in imported(**{norm: "b.safetensors"})
    save_file(tensors, folder / "model.safetensors")  # what transformers reads, though the folder has an index
    assert imported(**{norm: "b.safetensors"}) == ""
    assert load_file(tmp_path / "m.safetensors")["norm.weight"].equal(tensors[norm])


def test_a_field_to_ignore_is_there_and_is_not_read(llama: Path, tmp_path: Path) -> None:
    status, said = run("import", llama, "-o", tmp_path / "m.arch", "--ignore", "rope_scalin")
    assert (status, "has no field `rope_scalin`" in said) == (2, True), said
    status, said = run("import", llama, "-o", tmp_path / "m.arch", "--ignore", "hidden_size")
    assert (status, "it reads `hidden_size`" in said) == (2, True), said


@pytest.mark.parametrize("name", ["x; touch ran #", "$(id)", "`id`", "a'b", "two\nlines"])
def test_a_command_that_a_message_proposes_runs_no_field(name: str, llama: Path, tmp_path: Path) -> None:
    source = changed(llama, tmp_path / "source", **{name: 1})
    _, said = run("import", source, "-o", tmp_path / "m.arch")
    proposed = said.partition("what is computed: `")[2].removesuffix("`\n")
    shown = "".join("\N{REPLACEMENT CHARACTER}" if c in control(name) or c == "\n" else c for c in name)
    assert shlex.split(proposed) == ["--ignore", shown]


# --- GGUF -------------------------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(tensors: int, fields: int, *parts: bytes) -> bytes:
    """A file of llama.cpp's that says it has so many tensors, and so many fields beside its architecture."""
    start = b"GGUF" + struct.pack("<IQQ", 3, tensors, fields + 1)
    return start + text("general.architecture") + struct.pack("<I", 8) + text("llama") + b"".join(parts)


def tensor(*axes: int, kind: int = 0, start: int = 0) -> bytes:
    return text("t") + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, start) + bytes(100)


BOMBS = {
    "an array of bytes": gguf(0, 1, text("a"), struct.pack("<IIQ", 9, 0, 10**8)),
    "an array of texts": gguf(0, 1, text("a"), struct.pack("<IIQ", 9, 8, 10**8), bytes(80)),
    "arrays in arrays": gguf(0, 1, text("a"), struct.pack("<IIQ", 9, 9, 4), bytes(80)),
    "a field twice": gguf(0, 2, *2 * (text("a"), struct.pack("<II", 4, 1))),
    "tensors": gguf(2**60, 0),
    "fields": gguf(0, 2**60),
    "a name": gguf(0, 1, struct.pack("<Q", 2**60), bytes(80)),
    "no axes": gguf(1, 0, tensor()),
    "many axes": gguf(1, 0, tensor(*5 * (1,))),
    "an axis of 0": gguf(1, 0, tensor(0)),
    "numbers": gguf(1, 0, tensor(2**40, 2**40)),
    "a place": gguf(1, 0, tensor(4, start=2**63)),
    "an unknown type": gguf(1, 0, tensor(4, kind=999)),
    "half a block": gguf(1, 0, tensor(31, kind=2)),
    "no power of two": gguf(0, 1, text("general.alignment"), struct.pack("<II", 4, 0)),
    "another version": b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
    "the other byte order": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "nothing": b"",
    "its name": b"GGUF",
    "another name": b"GGML" + struct.pack("<IQQ", 3, 0, 0),
    "a tensor twice": gguf(2, 0, tensor(4)[:-100], tensor(4, start=32)),
    "a field of an unknown type": gguf(0, 1, text("a"), struct.pack("<IQ", 77, 0)),
}
"""Headers that promise what the file does not have."""
SAID = {
    "another name": "it does not begin with `GGUF`",
    "a field twice": "it has the field `a` twice",
    "a tensor twice": "it has the tensor `t` twice",
    "a field of an unknown type": "a field is of an unknown type, 77",
    "arrays in arrays": "an array holds values of an unknown type, 9",
    "an unknown type": "the tensor `t` is of an unknown type, 999",
    "another version": "its version is 9, and 2 and 3 are read",
}
"""What is said of some of them."""


@pytest.mark.parametrize("name", BOMBS)
def test_a_gguf_header_costs_no_more_than_its_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(BOMBS[name])
    tracemalloc.start()
    with pytest.raises(ArchError, match="is no GGUF file") as raised:
        GgufFile(tmp_path / "m.gguf")
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
    [found] = raised.value.diagnostics
    assert found.code == "E0533"
    assert found.message.endswith(SAID.get(name, ""))


@pytest.mark.parametrize(("kind", "name"), [(15, "Q8_K"), (28, "F64")])
def test_a_quantization_that_cannot_be_read_is_said(kind: int, name: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf(1, 0, tensor(256, kind=kind), bytes(3000)))
    with pytest.raises(ArchError, match=rf"E0532\]: `t` is quantized as {name}: .*not yet implemented"):
        GgufFile(tmp_path / "m.gguf").tensor("t")


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": [3]},
        {"tokens": "a", "merges": ["a b"]},
        {"tokens": ["a", "b"], "merges": [1]},
        {"tokens": ["a"], "token_type": [1, 3]},
        {"tokens": ["a"], "token_type": "3"},
    ],
    ids=str,
)
def test_a_tokenizer_in_a_gguf_file_that_is_none(fields: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf(0, 0))
    read = GgufFile(tmp_path / "m.gguf")
    read.fields |= {"tokenizer.ggml.model": "gpt2"} | {f"tokenizer.ggml.{name}": v for name, v in fields.items()}
    with pytest.raises(ArchError, match=r"E0533.*the tokenizer in .* cannot be read"):
        read.beside()


def test_tensors_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A thousand entries of one region would be a thousand times the file."""
    entries = [tensor(4)[:-100].replace(b"t", b"%d" % i, 1) for i in range(9)]
    (tmp_path / "m.gguf").write_bytes(gguf(9, 0, *entries, bytes(100)))
    with pytest.raises(ArchError, match="its tensors overlap"):
        GgufFile(tmp_path / "m.gguf")


# --- mappings ---------------------------------------------------------------------------------------------------------

RULES = {
    "a file elsewhere": 'include "../secret"',
    "a file of the system": 'include "/etc/passwd"',
    "a link to elsewhere": 'include "link"',
    "a spec elsewhere": 'spec "../../secret"',
    "a zero byte": 'include "a\0b"',
    "itself": 'include "m.checkpoint"',
    "twice as many each time": 'include "0.checkpoint"',
    "alternatives": f"a{'.{x,y}' * 26} = b{'.{x,y}' * 26}",
    "pieces": f"a [i {{}}] = b{'.{x,y}' * 26} [{{}} i]",
    "blocks": "a { " * 3_000 + "b = c" + " }" * 3_000,
    "alternatives of alternatives": "a {" + "else b = c\n" * 3 + "}" + "d { else " * 60 + "b = c" + "}" * 60,
    "products": f"a [{'(' * 3_000}i{')' * 3_000} o] = b [o i]",
    "an axis of 0": "a [0 i] = b [i 0]",
    "an axis of many digits": f"a [{'9' * 5_000} i] = b [i {'9' * 5_000}]",
    "a default with a sign": "config { a | +5 = b }",
    "a default with two points": "config { a | 1.2.3 = b }",
    "a default of many digits": f"config {{ a | {'9' * 5_000} = b }}",
    "a default without end": "config { a | 1e999 = b }",
    "a list that is none": "config { a = [1, }",
    "an escape that is none": 'config { a | "\\q" = b }',
    "an infinite number": "a -> add(1e999) = b",
}
"""Mappings that cost much, read what lies elsewhere, or hold numbers that are none."""


@pytest.mark.parametrize("name", RULES)
def test_mappings_are_confined_and_limited(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret = spy\n")
    (folder / "link").symlink_to(tmp_path / "secret")
    for i in range(40):
        (folder / f"{i}.checkpoint").write_text(f'include "{i + 1}.checkpoint"\n' * 2)
    (folder / "40.checkpoint").write_text("a = b\n")
    (folder / "m.checkpoint").write_text(f"type llama = llama\n{RULES[name]}\n")
    started = time.process_time()
    with pytest.raises(ArchError) as raised:
        read(folder / "m.checkpoint")
    assert time.process_time() - started < 2
    (found,) = raised.value.diagnostics
    assert found.code == "E0531"
    assert found.span is not None
    assert "secret = " not in str(raised.value)


@pytest.mark.parametrize(
    "ours",
    [
        '"a" * 1_000_000_000',
        "1 / 0",
        "log(0 - 1)",
        "log()",
        '"a" - 1',
        "true * none",
        "1e300 * 1e300 * 0",
        f"1{'0' * 400} / 3",
    ],
)
def test_an_expression_of_a_mapping_is_a_number_or_none(ours: str) -> None:
    """None, where there is no such number; never an error, or a text of a gigabyte."""
    value = worth(parse_expression(Source("m.checkpoint", ours)), {})
    assert value is None or value != value


def test_templates_of_many_stars_are_matched_in_time() -> None:
    started = time.process_time()
    assert pattern("*1" * 30).fullmatch("1" * 500 + "x") is None
    assert pattern("a." + "*" * 30).fullmatch("a." + "1" * 500 + "x") is None
    assert time.process_time() - started < 1
