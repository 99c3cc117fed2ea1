"""Names that a spec may give and that what is emitted may give, too.

Strategies write a spec under tame names, a kind and a number: `t_3`, `own_7`. `renamed` gives each of them another one
that means the same there, from few hostile ones, so that they meet each other across blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

LOCALS = """
    h x y q k v a b c e g i j m n s t w z out found layer layers dim dims eps inner outer cell cls first last new past
    at mask bias scale shift weight head heads head_dim tokens tensor tensors value values index table total size shape
    dtype device memory query key keys positions place place_2 cos sin start start_2 rest part parts rows row groups
    experts expert chosen scores gate gates up down hidden length lengths padding_2 batch_2 time_2 width_2
    h_2 h_3 x_2 x_3 y_2 mask_2 layer_2 block_2 out_2 t_1 self_2 state_2 _h h_ _x x_ _ _1 _2 X H O0 l
    aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
"""
PYTHON = """
    class def del from global lambda nonlocal pass raise try while with yield async await break continue elif except
    finally is True False None match case type print range len list dict tuple set int float str bool object super id
    input sum min max abs round zip map any all next iter enumerate isinstance property staticmethod Exception
    AssertionError NotImplemented annotations
"""
TORCH = """
    torch nn F Tensor math re dist dataclass NamedTuple Any Callable Iterator Iterable Config config self cls Module
    forward training_2 parameters modules children buffers named_parameters state_dict load_state_dict train eval to
    half double cuda cpu apply register_buffer register_parameter add_module zero_grad requires_grad_ compile weight
    bias dump_patches T_destination _parameters _modules _buffers _forward_hooks _call_impl _version _get_name
"""
EMITTED = """
    losses state State Cache step stream generate attention_mask stop seed temperature top_k top_p compiled sample
    Sampling advance
    rotate rope rope_table frequencies dispatch grouped_mm ends GroupedLinear GroupedAffine attend linear plain few_rows
    for_decoding prepacked scaled_rope_table use_float8 float8_product Float8Product Float8Linear
    Spans spans_of varlen_attention varlen_attn masked_attention
    causal_mask mask_of block_counts block_order alibi slopes sinusoid relative_bias buckets run_scan
    checkpoint checkpointed parallelize AllToAll shard_experts plan fully_shard norm blocks block_mask causal window
    chunked full embed pair pairs token head_logits memory_mask reset_parameters init_weights reset
"""
LANGUAGE = """
    linear mlp gelu relu softmax layernorm embedding dropout mean sum sqrt log exp floor ceil option given pre post same
    full causal lm words frames patches normal zeros ones learned rope alibi attention ffn norm placement residual init
    vocab context input position encoder decoder
"""
"""Of the language itself; a tensor of that name does not hide what is applied."""
POOL = tuple(" ".join((LOCALS, PYTHON, TORCH, EMITTED, LANGUAGE)).split())
_SLOTS = """
    vocab context width input embedding position dropout blocks encoder decoder norm head heads init attention mask ffn
    cross_attention placement topology residual memory training
"""
SLOTS = frozenset(_SLOTS.split())
"""What a slot or a layer is known by: no hyper-parameter and no constant."""

TAME = r"(?<![.\w])[a-z]+_\d+(?!\w)"
_TOKEN = re.compile(rf'(?P<text>"[^"\n]*"|#[^\n]*)|(?P<tame>{TAME})|(?P<word>[A-Za-z_]\w*)')
_OF_FILE = re.compile(r"^(?:inline )?(?:block|let|model) (\w+)", re.MULTILINE)
_HEADER = re.compile(r"^(?:inline )?(?:block|model) [^{]*", re.MULTILINE)
STATIC = ("arg", "let", "field")
"""Kinds of names that stand for numbers and blocks."""


def kind(tame: str) -> str:
    return tame.rpartition("_")[0]


@dataclass
class _Uses:
    """What one declaration mentions."""

    tame: frozenset[str]
    values: frozenset[str]
    """Words of the language that stand for a value."""
    applied: frozenset[str]
    """Words that are applied."""


def _uses(declaration: str) -> _Uses:
    tame, values, applied = set(), set(), set()
    for found in _TOKEN.finditer(declaration):
        before, after = declaration[: found.start()].rstrip(" "), declaration[found.end() :]
        if found["tame"] and not _is_label_elsewhere(found[0], declaration, after):
            tame.add(found[0])
        elif found["word"] and (after[:1] == "(" or before.endswith("->")):
            applied.add(found[0])
        elif found["word"] and not after.startswith(":"):
            values.add(found[0])
    header = _HEADER.search(declaration)
    if header is not None and "[" not in header[0]:
        values |= {"x", "memory"}  # what a block of slots calls its tensors
    return _Uses(frozenset(tame), frozenset(values), frozenset(applied))


def _is_label_elsewhere(name: str, declaration: str, after: str) -> bool:
    """Whether a hyper-parameter is mentioned as the argument of a call of a block that another declaration declares."""
    header = _HEADER.search(declaration)
    own = header is not None and re.search(rf"\b{name}\b", header[0])
    return kind(name) == "arg" and after.startswith(": ") and not own


def renamed(declarations: Sequence[str], choose: Callable[[Sequence[str]], str]) -> list[str]:
    """Give the tame names of declarations other ones. `choose` takes one of several; the first is always the tame one.

    Two names differ where one text mentions both; no name is a word that the text uses otherwise, but a tensor may be
    called like what is only applied there: that is looked up past it."""
    uses = [_uses(d) for d in declarations]
    of_file = {name for d in declarations for name in _OF_FILE.findall(d)}
    every = sorted({n for u in uses for n in u.tame} | of_file, key=lambda n: int(n.rpartition("_")[2]))
    pool = [choose(POOL) for _ in range(6)]
    given: dict[str, str] = {}
    for name in every:
        allowed = [p for p in pool if _allowed(p, name, name in of_file, uses, of_file, given)]
        given[name] = choose([name, *allowed, *allowed])
    return [_replaced(d, given) for d in declarations]


def _allowed(
    hostile: str, name: str, is_of_file: bool, uses: Sequence[_Uses], of_file: set[str], given: dict[str, str]
) -> bool:
    static = is_of_file or kind(name) in STATIC
    if static and hostile in SLOTS:
        return False
    for use in uses:
        if name not in use.tame and not is_of_file:
            continue
        neighbours = use.tame | of_file if is_of_file else use.tame
        if any(given.get(n) == hostile for n in neighbours if n != name):
            return False
        if hostile in use.values or (hostile in use.applied and static):
            return False
    return True


def _replaced(declaration: str, given: dict[str, str]) -> str:
    return _TOKEN.sub(lambda m: given.get(m[0], m[0]) if m["tame"] else m[0], declaration)


def tame_names(text: str) -> Iterator[str]:
    """The tame names of a text, in order."""
    return (m[0] for m in _TOKEN.finditer(text) if m["tame"])
