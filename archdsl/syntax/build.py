"""From rules of the grammar to nodes: one function a rule, called as the parser finishes it.

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


# --- declarations -------------------------------------------------------------------------------------------------


def _file(kids: Kids, span: Span) -> ast.File:
    text = span.source.text
    return ast.File(tuple(kids), span=Span(span.source, 0, len(text)), doc=_comments_from(text, 0))


def _import(kids: Kids, span: Span) -> ast.Import:
    return ast.Import(kids[0].text[1:-1], kids[1].text if len(kids) > 1 else None, span=span)


def _let(kids: Kids, span: Span) -> ast.Let:
    return ast.Let(kids[0].text, kids[1], span=span)


def _block(kids: Kids, span: Span) -> ast.BlockDecl:
    name, header = kids[-2]
    doc = _comments_above(span.source, span.start)
    return ast.BlockDecl(name.text, len(kids) == 3, header, kids[-1], span=span, name_span=_span(name, span), doc=doc)


def _model(kids: Kids, span: Span) -> ast.ModelDecl:
    name, header = kids[0]
    doc = _comments_above(span.source, span.start)
    return ast.ModelDecl(name.text, header, kids[1], span=span, name_span=_span(name, span), doc=doc)


def _variant(kids: Kids, span: Span) -> ast.Variant:
    return ast.Variant(kids[0].text, kids[1], span=span, name_span=_span(kids[0], span))


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


def _tensor_param(kids: Kids, span: Span) -> ast.TensorParam:
    return ast.TensorParam(kids[0].text, kids[1], kids[2] if len(kids) > 2 else None, span=span)


def _result(kids: Kids, span: Span) -> ast.Result:
    return ast.Result(kids[0].text, kids[1], span=span)


def _tensor_type(kids: Kids, span: Span) -> ast.TensorType:
    if kids and type(kids[0]) is _Kind:
        return ast.TensorType(str(kids[0]), tuple(kids[1:]), span=span)
    return ast.TensorType(None, tuple(kids), span=span)


# --- bodies -------------------------------------------------------------------------------------------------------


def _slot(kids: Kids, span: Span) -> ast.Slot:
    return ast.Slot(kids[0].text, kids[1], span=span, key_span=_span(kids[0], span))


def _assign(kids: Kids, span: Span) -> ast.Assign:
    return ast.Assign(kids[0], kids[1], kids[2] if len(kids) > 2 else None, span=span)


def _update(kids: Kids, span: Span) -> ast.Update:
    return ast.Update(kids[0].text, kids[1], kids[2] if len(kids) > 2 else None, span=span)


def _param(kids: Kids, span: Span) -> ast.Param:
    return ast.Param(kids[0].text, kids[1].text, kids[2], kids[3], span=span)


def _loss(kids: Kids, span: Span) -> ast.Loss:
    return ast.Loss(kids[0].text, kids[1], span=span)


def _assert(kids: Kids, span: Span) -> ast.Assert:
    return ast.Assert(kids[0], kids[1].text[1:-1] if len(kids) > 1 else None, span=span)


def _names(kids: Kids, span: Span) -> tuple[str, ...]:
    return tuple(token.text for token in kids)


def _if(kids: Kids, span: Span) -> ast.If:
    otherwise = kids[2] if len(kids) > 2 else ()
    return ast.If(kids[0], kids[1], (otherwise,) if type(otherwise) is ast.If else otherwise, span=span)


def _for(kids: Kids, span: Span) -> ast.For:
    return ast.For(kids[0].text, kids[1], kids[2], span=span)


def _scan(kids: Kids, span: Span) -> ast.Scan:
    return ast.Scan(tuple(kids[:-3]), kids[-3], kids[-2], kids[-1], span=span)


def _carry(kids: Kids, span: Span) -> ast.Carry:
    return ast.Carry(kids[0].text, kids[1], kids[2], span=span)


# --- expressions --------------------------------------------------------------------------------------------------


def _stage_as(kids: Kids, span: Span) -> ast.As:
    return ast.As(kids[0], kids[1].text, span=span, name_span=_span(kids[1], span))


def _binary(kids: Kids, span: Span) -> ast.Binary:
    return ast.Binary(kids[1].text, kids[0], kids[2], span=span)


def _unary(kids: Kids, span: Span) -> ast.Unary:
    return ast.Unary(kids[0].text, kids[1], span=span)


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


def _call(kids: Kids, span: Span) -> ast.Call:
    return ast.Call(kids[0], tuple(kids[1:]), span=span)


def _arg(kids: Kids, span: Span) -> ast.Arg:
    return ast.Arg(kids[0].text if len(kids) > 1 else None, kids[-1], span=span)


def _index(kids: Kids, span: Span) -> ast.Index:
    return ast.Index(kids[0], tuple(kids[1:]), span=span)


def _slice(kids: Kids, span: Span) -> ast.Slice:
    low = kids[0] if type(kids[0]) is not Token else None
    high = kids[-1] if type(kids[-1]) is not Token else None
    return ast.Slice(low, high, span=span)


BUILDERS: dict[str, Builder] = {
    "file": _file,
    "import": _import,
    "let": _let,
    "block": _block,
    "model": _model,
    "variant": _variant,
    "header": _header,
    "hypers": lambda kids, span: _Hypers(kids),
    "tensors": lambda kids, span: _Tensors(kids),
    "results": _results,
    "hyper": _hyper,
    "tensor_param": _tensor_param,
    "result": _result,
    "tensor_type": _tensor_type,
    "type": lambda kids, span: _Kind(kids[0].text),
    "kind": lambda kids, span: _Kind(kids[0].text),
    "body": lambda kids, span: ast.Body(tuple(kids), span=span),
    "slot": _slot,
    "steps": lambda kids, span: tuple(kids),
    "assign": _assign,
    "update": _update,
    "param": _param,
    "loss": _loss,
    "emit": lambda kids, span: ast.Emit(kids[0], span=span),
    "return": lambda kids, span: ast.Return(tuple(kids), span=span),
    "assert": _assert,
    "assume": lambda kids, span: ast.Assume(kids[0], span=span),
    "names": _names,
    "if": _if,
    "for": _for,
    "scan": _scan,
    "carry": _carry,
    "sequences": lambda kids, span: tuple(kids),
    "if_else": lambda kids, span: ast.IfElse(*kids, span=span),
    "pipeline": lambda kids, span: ast.Pipeline(kids[0], tuple(kids[1:]), span=span),
    "stage_as": _stage_as,
    "as": _stage_as,
    "or": _binary,
    "and": _binary,
    "not": _unary,
    "comparison": _binary,
    "union": _binary,
    "both": _binary,
    "sum": _binary,
    "product": _binary,
    "unary": _unary,
    "power": _binary,
    "call": _call,
    "arg": _arg,
    "index": _index,
    "slice": _slice,
    "list": lambda kids, span: ast.List(tuple(kids), span=span),
    "comprehension": lambda kids, span: ast.Comprehension(kids[0], kids[1].text, kids[2], span=span),
    "name": _name,
    "number": lambda kids, span: ast.Number(kids[0].text, span=span),
    "string": lambda kids, span: ast.String(kids[0].text[1:-1], span=span),
    "ellipsis": lambda kids, span: ast.Ellipsis(span=span),
}
