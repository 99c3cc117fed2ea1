"""What is said about a wrong spec: a code, the span, the origin of everything involved, and a hint."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from archdsl.diagnostics.findings import Diagnostic as Diagnostic
from archdsl.diagnostics.findings import Label as Label
from archdsl.diagnostics.findings import Proposal as Proposal
from archdsl.diagnostics.findings import shortened as shortened
from archdsl.diagnostics.source import Span

REPORT = "please report it with the spec"
"""The request that follows an internal error."""


class ArchError(Exception):
    """Raised when a spec is wrong; carries every diagnostic that was found."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        """Return what the command line prints: each finding with its code, the lines it is about and its help."""
        from archdsl.diagnostics.render import render_text

        return render_text(self.diagnostics).rstrip()


class InternalError(Exception):
    """A fault of the compiler, whatever the spec says."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.add_note(REPORT)


def error(
    code: str,
    message: str,
    span: Span | None = None,
    *,
    label: str = "",
    labels: Iterable[Label] = (),
    notes: Iterable[str] = (),
    help: str = "",
) -> ArchError:
    """An exception with one diagnostic, ready to be raised."""
    return ArchError([Diagnostic(code, message, span, label, tuple(labels), tuple(notes), help)])


# What other libraries and papers call the things of this language, written as `_plain` writes a name.
KNOWN_AS = {
    "attention": ("mha",),
    "attn": ("attention",),
    "selfattention": ("mha",),
    "selfattn": ("attention",),
    "mixer": ("attention",),
    "tokenmixer": ("attention",),
    "sequencemixer": ("attention",),
    "multiheadattention": ("mha",),
    "groupedqueryattention": ("gqa",),
    "multiqueryattention": ("mqa",),
    "multiheadlatentattention": ("mla",),
    "dense": ("linear",),
    "fc": ("linear",),
    "proj": ("linear",),
    "feedforward": ("ffn", "mlp"),
    "ff": ("ffn", "mlp"),
    "ln": ("layernorm",),
    "normalization": ("norm",),
    "rotary": ("rope",),
    "rotaryembedding": ("rope",),
    "positionalencoding": ("position", "sinusoidal"),
    "positionembedding": ("position", "learned"),
    "embed": ("embedding",),
    "lmhead": ("lm",),
    "languagemodel": ("lm",),
    "prenorm": ("pre",),
    "postnorm": ("post",),
    "preln": ("pre",),
    "postln": ("post",),
    "swish": ("silu",),
    "gelunew": ("gelu_tanh",),
    "gelupytorchtanh": ("gelu_tanh",),
    "causalmask": ("causal",),
    "slidingwindow": ("window",),
    "local": ("window",),
    "mixtureofexperts": ("moe",),
    "dmodel": ("width",),
    "hiddensize": ("width", "hidden"),
    "hiddendim": ("width", "hidden"),
    "nembd": ("width",),
    "embeddim": ("width",),
    "embeddingdim": ("width",),
    "dim": ("width",),
    "dff": ("hidden",),
    "ffndim": ("hidden",),
    "ffdim": ("hidden",),
    "intermediatesize": ("hidden",),
    "nhead": ("heads",),
    "numheads": ("heads",),
    "nheads": ("heads",),
    "numattentionheads": ("heads",),
    "numkeyvalueheads": ("kv_heads",),
    "numkvheads": ("kv_heads",),
    "nkvheads": ("kv_heads",),
    "headsize": ("head_dim",),
    "dhead": ("head_dim",),
    "dk": ("head_dim",),
    "vocabsize": ("vocab",),
    "nvocab": ("vocab",),
    "contextlength": ("context",),
    "maxseqlen": ("context",),
    "seqlen": ("context", "time"),
    "blocksize": ("context",),
    "npositions": ("context",),
    "maxpositionembeddings": ("context",),
    "nlayers": ("layers", "blocks"),
    "numlayers": ("layers", "blocks"),
    "nlayer": ("layers", "blocks"),
    "numhiddenlayers": ("layers", "blocks"),
    "layers": ("blocks",),
    "depth": ("layers", "blocks"),
    "activation": ("act",),
    "actfn": ("act",),
    "hiddenact": ("act",),
    "numexperts": ("experts",),
    "nexperts": ("experts",),
    "capacityfactor": ("capacity",),
    "expertcapacity": ("capacity",),
    "moeexpertcapacityfactor": ("capacity",),
    "k": ("top_k",),
    "base": ("theta",),
    "ropetheta": ("theta",),
    "epsilon": ("eps",),
    "tieweights": ("tied",),
    "tiewordembeddings": ("tied",),
    "tie": ("tied",),
    "bf16": ("bfloat16",),
    "fp16": ("float16",),
    "f16": ("float16",),
    "half": ("float16",),
    "fp32": ("float32",),
    "f32": ("float32",),
    "float": ("float32",),
    "cat": ("concat",),
    "view": ("rearrange",),
    "reshape": ("rearrange",),
    "yes": ("true",),
    "on": ("true",),
    "no": ("false",),
    "off": ("false",),
    "null": ("none",),
    "nil": ("none",),
}


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """A help line that offers the nearest of the candidates, or nothing."""
    near = nearest(name, candidates)
    return f"did you mean `{near}`?" if near else ""


def nearest(name: str, candidates: Iterable[str], preferred: Iterable[str] = ()) -> str:
    """The candidate that was probably meant, or "": the same but for case and what stands between words, one known
    under the other name, or one a few slips of the keyboard away; of two as near, one that is preferred."""
    first = frozenset(preferred)
    names = sorted({*candidates, *first} - {name}, key=lambda c: (c not in first, c))
    plain = plain_name(name)
    for candidate in names:
        if plain_name(candidate) == plain:
            return candidate
    for candidate in names:  # a prefix too few or too many
        if candidate.endswith(f".{name}") or name.endswith(f".{candidate}"):
            return candidate
    for other in KNOWN_AS.get(plain, ()):
        if other in names:
            return other
    slips = min(max(len(plain) // 3, 1), 3)
    found = [(d, c) for c in names if (d := _distance(plain, plain_name(c), slips)) <= slips and d < len(plain_name(c))]
    # Of two as near the one with the same letters in another order, then one with the same beginning.
    order = {c: i for i, c in enumerate(names)}
    found.sort(key=lambda f: (f[0], sorted(plain_name(f[1])) != sorted(plain), f[1][:1] != name[:1], order[f[1]]))
    if found:
        return found[0][1]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return close[0] if close else ""


_BETWEEN = str.maketrans("", "", "_-. ")


def plain_name(name: str) -> str:
    """Return a name in small letters, without what stands between its words: `qwen38b` for `Qwen3-8B`."""
    return name.translate(_BETWEEN).lower()


def _distance(a: str, b: str, most: int) -> int:
    """How many slips make one word of the other: a letter too few, too many, another, or two exchanged (Damerau,
    1964); more than `most` is only known to be more."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        last, before, row = before, row, [i + 1]
        for j, y in enumerate(b):
            cost = min(row[j] + 1, before[j + 1] + 1, before[j] + (x != y))
            if i and j and x == b[j - 1] and y == a[i - 1]:
                cost = min(cost, last[j - 1] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]
