"""How a drawing writes what a spec says: names as the field writes them, numbers by their value, options in a word or
two."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from archdsl.ir.dims import Bin, Expr, Fn, Lit, Num, Poly, expr_text, is_sayable
from archdsl.ir.graph import Value
from archdsl.ir.masks import INPUTS, Mask
from archdsl.ir.static import BlockValue, EnumValue, SharedModule
from archdsl.syntax import ast

# --- names ------------------------------------------------------------------------------------------------------------

_WHOLE = {
    "gelu_tanh": "GELU",
    "geglu": "GeGLU",
    "glu_mlp": "gated MLP",
    "gqa": "grouped-query attention",
    "l2_normalize": "L2 norm",
    "linear_recurrence": "linear recurrence",
    "matmul": "product",
    "mha": "multi-head attention",
    "mla": "multi-head latent attention",
    "moe": "mixture of experts",
    "mqa": "multi-query attention",
    "quick_gelu": "quick GELU",
    "reglu": "ReGLU",
    "relative_bias": "relative position bias",
    "relu_squared": "ReLU²",
    "sdpa": "scaled dot-product attention",
    "swiglu": "SwiGLU",
    "times": "×",
    "transformer_xl": "relative position",
    "unembed": "unembedding",
}
_PARTS = {
    "alibi": "ALiBi",
    "batchnorm": "BatchNorm",
    "conv1d": "conv 1D",
    "conv2d": "conv 2D",
    "delta": "Delta",
    "ffn": "FFN",
    "gelu": "GELU",
    "glu": "GLU",
    "groupnorm": "GroupNorm",
    "gru": "GRU",
    "kv": "KV",
    "layernorm": "LayerNorm",
    "lm": "LM",
    "lru": "LRU",
    "lsh": "LSH",
    "lstm": "LSTM",
    "mamba2": "Mamba-2",
    "mlm": "MLM",
    "mlp": "MLP",
    "pool2d": "pool 2D",
    "qk": "QK",
    "relu": "ReLU",
    "rmsnorm": "RMSNorm",
    "rnn": "RNN",
    "rope": "RoPE",
    "silu": "SiLU",
    "swiglu": "SwiGLU",
    "theta": "θ",
    "vgg": "VGG",
}


def written(name: str) -> str:
    """An identifier as the field writes it: `RMSNorm`, `token embedding`, `QK norm`."""
    return _WHOLE.get(name) or " ".join(_PARTS.get(part, part) for part in name.split("_") if part)


def headed(text: str) -> str:
    """The text with a capital in front, where its first word has none of its own."""
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if len(first) > 1 and first.islower() else text


# --- numbers ----------------------------------------------------------------------------------------------------------


def number_text(n: Num) -> str:
    """A number by its value, `50,257`; a size that only the running model knows by its name."""
    if isinstance(n.value, Poly):
        return str(n)
    if isinstance(n.value, int):
        return f"{n.value:,}"
    return f"{float(n.value):g}"


def shape_text(value: Value) -> str:
    return f"[{', '.join(number_text(d) for d in value.shape)}]"


def constant_text(n: Num) -> str:
    """A number of an equation: `0.5`, `√width`; by its value where it was written so, or where its names are not the
    block's own."""
    foreign = not is_sayable(n.expr)
    if n.static and (isinstance(n.value, int) or foreign or isinstance(n.expr, Lit)):
        return number_text(n)
    return _formula(n.expr)


def _formula(expr: Expr) -> str:
    if isinstance(expr, Fn) and expr.name == "sqrt":
        inner = expr_text(expr.args[0])
        return f"√({inner})" if isinstance(expr.args[0], Bin) else f"√{inner}"
    if isinstance(expr, Bin) and expr.op == "/":
        return f"{_formula(expr.left)} / {_formula(expr.right)}"
    if isinstance(expr, Bin) and expr.op == "**":
        return f"{expr_text(expr.left, 100)}^{expr_text(expr.right)}"
    return expr_text(expr)


# --- options ----------------------------------------------------------------------------------------------------------

UNTOLD = frozenset({"eps", "momentum", "dropout", "rate", "start", "axis", "keep", "padding"})
"""Options that a drawing does not say."""
SAYS_ITSELF = frozenset({"act", "mask", "position"})
"""Options whose value says what it is of."""
LONG = 44
"""Characters of a block given as an option, beyond which only its name is told."""

_GROUPED = re.compile(r"(?<=\d)_(?=\d)")


def mask_text(mask: Mask) -> str:
    """`causal, window 4,096`; '' where every query sees every key."""
    if mask.rule in ("&", "|"):
        return {"&": ", ", "|": " or "}[mask.rule].join(mask_text(part) for part in mask.parts)
    if mask.rule == "~":
        return f"not {mask_text(mask.parts[0])}"
    if mask.rule == "full":
        return ""
    if mask.rule in INPUTS and mask.tensor is None:
        return f"{mask.rule.removesuffix('s')} mask"
    told = [mask.tensor.name] if mask.tensor is not None and mask.tensor.name else []
    return " ".join([written(mask.rule), *told, *map(number_text, mask.numbers)])


def option_text(value: Any) -> str:
    """A hyper-parameter as a drawing says it; '' for what it leaves out."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, Num):
        return number_text(value)
    if isinstance(value, SharedModule):
        return f"{written(value.name)}, shared"
    if isinstance(value, Mask):
        return mask_text(value)
    if isinstance(value, BlockValue):
        inner = [_said(k, option_text(v), v) for k, v in value.args.items() if k not in UNTOLD and option_text(v)]
        name = written(value.name)
        text = f"{name}({', '.join(inner)})" if inner else name
        return text if len(text) <= LONG else name
    if isinstance(value, tuple):
        texts = [option_text(v) for v in value]
        return ", ".join(texts) if all(texts) else ""
    return str(value) if isinstance(value, str | EnumValue) and str(value) else ""


def options_text(header: ast.Header, options: Mapping[str, Any], computed: Iterable[str] = ()) -> list[str]:
    """What was given, one line each: options that differ from what the signature says of them."""
    found = []
    for hyper in header.hypers or ():
        value = options.get(hyper.name)
        if hyper.name in UNTOLD or hyper.name in computed:
            continue
        text = option_text(value)
        default = _GROUPED.sub("", hyper.default.span.text) if hyper.default is not None else ""
        if not text or text.replace(",", "") in (default, written(default.partition("(")[0])):
            continue
        found.append(_said(hyper.name, text, value))
    return found


def _said(name: str, text: str, value: Any) -> str:
    """`12 heads`, `RoPE(θ 10,000)`, `top 8`, `→ 768`; a text as it is."""
    label = written(name)
    if isinstance(value, str) or name in SAYS_ITSELF or label in text:
        return text
    if isinstance(value, BlockValue) and label.endswith(" norm"):
        return f"{label.removesuffix(' norm')} {text}"
    if not isinstance(value, Num):
        return f"{label} {text}"
    if name == "features":
        return f"→ {text}"
    if name == "top_k":
        return f"top {text}"
    if name == "scale" and value.value == 1:
        return "unscaled"
    return f"{text} {label}" if value.static and name.endswith("s") and text != "1" else f"{label} {text}"


def rounded(n: float, digits: int = 3) -> str:
    """`12,300`, `0.0123`: without an exponent where it is large."""
    return f"{float(f'{n:.{digits}g}'):,}".removesuffix(".0")
