"""Python text: names, layout, the look of what is emitted."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterable
from functools import lru_cache

WIDTH = 120
"""Lines are broken beyond this."""

SPELLED = {
    "mha": "Attention",
    "gqa": "Attention",
    "mqa": "Attention",
    "mla": "LatentAttention",
    "mlp": "MLP",
    "glu": "GLU",
    "swiglu": "SwiGLU",
    "geglu": "GEGLU",
    "reglu": "ReGLU",
    "moe": "MoE",
    "lm": "LM",
    "mlm": "MaskedLM",
    "ffn": "FFN",
    "cnn": "CNN",
    "rnn": "RNN",
    "gru": "GRU",
    "lstm": "LSTM",
    "ssm": "SSM",
    "rwkv": "RWKV",
    "lora": "LoRA",
    "vit": "ViT",
    "bert": "BERT",
    "gpt": "GPT",
    "t5": "T5",
}
TAKEN = {
    *keyword.kwlist,
    *dir(builtins),
    "self",
    "torch",
    "nn",
    "F",
    "Tensor",
    "math",
    "config",
    "Config",
    "dataclass",
    "NamedTuple",
}


def class_name(name: str) -> str:
    """`encoder_layer` is EncoderLayer, `gpt3_175b` GPT3_175B, `mixtral_8x7b` Mixtral8x7B."""
    words = [w for w in re.split(r"[_.]+", name) if w]
    out = ""
    for word in words:
        stem = re.match(r"([a-z]+)(\d*[a-z]?)$", word.lower())
        if word.lower() in SPELLED:
            text = SPELLED[word.lower()]
        elif stem and stem[1] in SPELLED and not SPELLED[stem[1]].endswith("Attention"):
            text = SPELLED[stem[1]] + stem[2].upper()
        elif word[:1].isdigit():
            text = re.sub(r"(?<=\d)X(?=\d)", "x", word.upper())
        else:
            text = word[:1].upper() + word[1:]
        out += f"_{text}" if out[-1:].isdigit() and text[:1].isdigit() else text
    if not out or out[0].isdigit():
        out = f"Block{out}"
    return f"{out}_" if out in TAKEN or keyword.iskeyword(out) else out


def field_name(name: str) -> str:
    """A name of the spec as a field of the Config: as it is, but for what Python cannot say."""
    return f"{name}_" if keyword.iskeyword(name) else name


def local_name(name: str) -> str:
    """A name of the spec as a Python local."""
    name = re.sub(r"\W", "_", name)
    if not name.strip("_"):  # `_` counts loops
        return "value"
    if name[0].isdigit():
        name = f"_{name}"
    return f"{name}_" if name in TAKEN else name


def any_of(classes: Iterable[str]) -> str:
    """The second argument of `isinstance`."""
    names = list(classes)
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def singular(name: str) -> str:
    """What one element of `blocks` is called."""
    if name.endswith("ies"):
        return name[:-3] + "y"
    return name[:-1] if name.endswith("s") and len(name) > 2 and not name.endswith("ss") else name


def lines_laid_out(source: str) -> str:
    """A source with a statement on each line, as `black` lays it out. It is asked about those lines alone that are too
    long, raise to a power or may have slices, since it takes its time."""
    found: list[str] = []
    in_docstring = False
    for line in source.split("\n"):
        quotes = line.count('"""')
        power, slices = " ** " in line, "[" in line and ":" in line[line.index("[") : -1]
        fits = len(line) <= WIDTH and (line.endswith("(") or not (power or slices))  # a statement goes on behind `(`
        if in_docstring or quotes or fits:
            found.append(line)
        else:
            statement = line.lstrip()
            indent = line[: -len(statement)]
            if statement.startswith("assert "):
                parts = _assertion_laid_out(statement, WIDTH - len(indent)).splitlines()
                found += (f"{indent}{part}" for part in parts)
                continue
            head = statement.startswith(("class ", "def ", "for ", "if "))
            parts = laid_out(f"{statement}\n    pass" if head else statement, WIDTH - len(indent)).splitlines()
            found += (f"{indent}{part}" for part in parts[: -1 if head else None])
        in_docstring ^= quotes % 2 == 1
    return "\n".join(found)


def _assertion_laid_out(statement: str, width: int) -> str:
    """Lay out an assertion with a message as `ruff` does; `black` breaks the test where the message is too long."""
    (node,) = ast.parse(statement).body
    assert isinstance(node, ast.Assert)
    assert node.msg is not None
    data = statement.encode()
    message = data[node.msg.col_offset :].decode()
    test = laid_out(f"{data[: node.msg.col_offset].decode()}0", width).removesuffix("0")
    if len(test.rpartition("\n")[2] + message) <= width:
        return test + message
    return f"{test}(\n    {message}\n)"


@lru_cache(maxsize=1024)  # many files of a process have the same parts
def laid_out(source: str, width: int = WIDTH) -> str:
    """A source as `black` lays it out."""
    import black
    from black.mode import TargetVersion

    mode = black.Mode(line_length=width, target_versions={TargetVersion.PY311})
    return black.format_str(source, mode=mode).rstrip("\n")
