"""From rules of the grammar to nodes: one function a rule, called as the parser finishes it. Most rules have the
children that their node has fields: `_node` makes them.

Each gets the rule's children, which are nodes, tokens (only those the grammar keeps) or what another function here
returned, and the span of all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from archdsl.diagnostics import ArchError, error
from archdsl.diagnostics.source import Source, Span
from archdsl.syntax import ast
from archdsl.syntax.parser_tables import tables


class Token(NamedTuple):
    """A word of the text: its terminal, and where it stands."""

    type: str
    text: str
    start: int
    end: int


Kids = list[Any]
Builder = Callable[[Kids, Span], Any]


def _span(token: Token, like: Span) -> Span:
    return Span(like.source, token.start, token.end)


def _node(cls: type[ast.Node], rest: int | None = None) -> Builder:
    """What makes nodes of a class: the children are its fields in their order, a word as its text, None for what is not
    written; from number `rest` on they are one field. A field `…_span` is where the word of that field stands."""
    fields = [name for name in cls.__dataclass_fields__ if name not in ("span", "doc")]
    names = [name for name in fields if not name.endswith("_span")]
    spans = {name: names.index(name.removesuffix("_span")) for name in fields if name.endswith("_span")}

    def build(kids: Kids, span: Span) -> ast.Node:
        values = [_text(kid) if type(kid) is Token else kid for kid in kids]
        if rest is not None:
            values[rest:] = [tuple(values[rest:])]
        values += [None] * (len(names) - len(values))
        return cls(*values, span=span, **{name: _span(kids[i], span) for name, i in spans.items()})

    return build


def _text(token: Token) -> str:
    return token.text[1:-1] if token.type == "STRING" else token.text


# --- declarations -------------------------------------------------------------------------------------------------


def _file(kids: Kids, span: Span) -> ast.File:
    text = span.source.text
    return ast.File(tuple(kids), span=Span(span.source, 0, len(text)), doc=_comments_from(text, 0))


def _block(kids: Kids, span: Span) -> ast.BlockDecl:
    name, header = kids[-2]
    doc = _comments_above(span.source, span.start)
    return ast.BlockDecl(name.text, len(kids) == 3, header, kids[-1], span=span, name_span=_span(name, span), doc=doc)


def _model(kids: Kids, span: Span) -> ast.ModelDecl:
    name, header = kids[0]
    doc = _comments_above(span.source, span.start)
    return ast.ModelDecl(name.text, header, kids[1], span=span, name_span=_span(name, span), doc=doc)


def _comments_from(text: str, start: int) -> str:
    """The comment lines that begin here, without their `#`."""
    lines = []
    start += text.startswith("\ufeff", start)
    while text.startswith("#", start):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        lines.append(_comment(text[start:end]))
        start = end + 1
    return "\n".join(lines)


def _comments_above(source: Source, start: int) -> str:
    """The comment lines right above a declaration, without their `#`."""
    text = source.text
    lines: list[str] = []
    end = text.rfind("\n", 0, start)
    while end >= 0:
        begin = text.rfind("\n", 0, end) + 1
        line = text[begin:end].strip(" \t\r\ufeff")
        if not line.startswith("#"):
            break
        lines.append(_comment(line))
        end = begin - 1
    return "\n".join(reversed(lines))


def _comment(line: str) -> str:
    return line[1:].removeprefix(" ").rstrip()


# --- signatures ---------------------------------------------------------------------------------------------------


class _Hypers(tuple[ast.Hyper, ...]):
    """The first list of a signature."""


class _Tensors(tuple[ast.TensorParam, ...]):
    """The list of a signature whose entries have shapes."""


class _Results(tuple[ast.Result, ...]):
    """What stands right of the arrow."""


class _Kind(str):
    """The word before a shape, or after the colon of a hyper-parameter."""


def _header(kids: Kids, span: Span) -> tuple[Token, ast.Header]:
    hypers = tensors = results = None
    for kid in kids[1:]:
        if type(kid) is _Hypers:
            hypers = tuple(kid)
        elif type(kid) is _Tensors:
            tensors = tuple(kid)
        else:
            results = tuple(kid)
    return kids[0], ast.Header(hypers, tensors, results, span=span)


def _results(kids: Kids, span: Span) -> _Results:
    if type(kids[0]) is ast.TensorType:
        return _Results((ast.Result(None, kids[0], span=kids[0].span),))
    return _Results(kids)


def _hyper(kids: Kids, span: Span) -> ast.Hyper:
    kind = default = None
    for kid in kids[1:]:
        if type(kid) is _Kind:
            kind = str(kid)
        else:
            default = kid
    return ast.Hyper(kids[0].text, kind, default, span=span)


def _tensor_type(kids: Kids, span: Span) -> ast.TensorType:
    if kids and type(kids[0]) is _Kind:
        return ast.TensorType(str(kids[0]), tuple(kids[1:]), span=span)
    return ast.TensorType(None, tuple(kids), span=span)


# --- bodies -------------------------------------------------------------------------------------------------------


def _if(kids: Kids, span: Span) -> ast.If:
    otherwise = kids[2] if len(kids) > 2 else ()
    return ast.If(kids[0], kids[1], (otherwise,) if type(otherwise) is ast.If else otherwise, span=span)


# --- expressions --------------------------------------------------------------------------------------------------


def _binary(kids: Kids, span: Span) -> ast.Binary:
    return ast.Binary(kids[1].text, kids[0], kids[2], span=span)


def _name(kids: Kids, span: Span) -> ast.Name:
    word = kids[0]
    if word.type == "DOTTED":
        for part in word.text.split("."):
            if part in tables().keywords:
                raise reserved(part, span)
    return ast.Name(word.text, span=span)


def reserved(word: str, span: Span) -> ArchError:
    """A reserved word where a name is meant."""
    return error(
        "E0104",
        f"`{word}` is a reserved word and cannot be a name",
        span,
        help=f"choose another name, such as `{word}_` or a longer one",
    )


def _slice(kids: Kids, span: Span) -> ast.Slice:
    low = kids[0] if type(kids[0]) is not Token else None
    high = kids[-1] if type(kids[-1]) is not Token else None
    return ast.Slice(low, high, span=span)


BUILDERS: dict[str, Builder] = {
    "file": _file,
    "import": _node(ast.Import),
    "let": _node(ast.Let),
    "block": _block,
    "model": _model,
    "variant": _node(ast.Variant),
    "header": _header,
    "hypers": lambda kids, span: _Hypers(kids),
    "tensors": lambda kids, span: _Tensors(kids),
    "results": _results,
    "hyper": _hyper,
    "tensor_param": _node(ast.TensorParam),
    "result": _node(ast.Result),
    "tensor_type": _tensor_type,
    "type": lambda kids, span: _Kind(kids[0].text),
    "kind": lambda kids, span: _Kind(kids[0].text),
    "body": _node(ast.Body, 0),
    "slot": _node(ast.Slot),
    "steps": lambda kids, span: tuple(kids),
    "assign": _node(ast.Assign),
    "update": _node(ast.Update),
    "param": _node(ast.Param),
    "loss": _node(ast.Loss),
    "emit": _node(ast.Emit),
    "return": _node(ast.Return, 0),
    "assert": _node(ast.Assert),
    "assume": _node(ast.Assume),
    "names": lambda kids, span: tuple(token.text for token in kids),
    "if": _if,
    "for": _node(ast.For),
    "scan": lambda kids, span: ast.Scan(tuple(kids[:-3]), *kids[-3:], span=span),
    "carry": _node(ast.Carry),
    "sequences": lambda kids, span: tuple(kids),
    "if_else": _node(ast.IfElse),
    "pipeline": _node(ast.Pipeline, 1),
    "stage_as": _node(ast.As),
    "as": _node(ast.As),
    "or": _binary,
    "and": _binary,
    "not": _node(ast.Unary),
    "comparison": _binary,
    "union": _binary,
    "both": _binary,
    "sum": _binary,
    "product": _binary,
    "unary": _node(ast.Unary),
    "power": _binary,
    "call": _node(ast.Call, 1),
    "arg": lambda kids, span: ast.Arg(kids[0].text if len(kids) > 1 else None, kids[-1], span=span),
    "index": _node(ast.Index, 1),
    "slice": _slice,
    "list": _node(ast.List, 0),
    "comprehension": _node(ast.Comprehension),
    "rules": _node(ast.Rules, 0),
    "rule": _node(ast.Rule),
    "name": _name,
    "number": _node(ast.Number),
    "string": _node(ast.String),
    "ellipsis": _node(ast.Ellipsis),
}
