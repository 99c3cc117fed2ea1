"""`archdsl explain`: the page of an error, the line of a primitive, the signature of a library block. Markdown."""

from __future__ import annotations

import inspect
import re

from archdsl.diagnostics import ArchError, did_you_mean, error

_CODE = re.compile(r"[EW]\d{3,4}")


def explain(topic: str) -> str:
    """The page of a code (`E0301`), a primitive (`sdpa`) or a library block (`mha`).

    Raises ArchError (E0206) where nothing is called so."""
    from archdsl.ops import registry
    from archdsl.resources import error_codes, error_page, library_index

    if _CODE.fullmatch(topic.upper()):
        page = error_page(topic.upper())
        if page is None:
            raise error(
                "E0206", f"there is no error `{topic.upper()}`", help=f"the codes are {', '.join(error_codes())}"
            )
        return page
    if topic in library_index():
        return _library(topic)
    if topic in registry.names():
        return _primitive(topic)
    raise _unknown(topic)


def _unknown(topic: str) -> ArchError:
    from archdsl.frontend.schemes import SCHEMES
    from archdsl.ir.masks import RULES, TENSOR_RULES
    from archdsl.ops import registry
    from archdsl.resources import library_index

    if topic in RULES or topic in TENSOR_RULES:
        numbers = ", ".join(RULES[topic].numbers if topic in RULES else ("tensor",))
        help_ = f"`{topic}{f'({numbers})' if numbers else ''}` is a mask, a set of pairs of positions"
    elif topic in SCHEMES:
        numbers = ", ".join(SCHEMES[topic])
        help_ = f"`{topic}{f'({numbers})' if numbers else ''}` is a scheme, a way to initialize weights"
    else:
        help_ = (
            did_you_mean(topic, {*library_index(), *registry.names()})
            or "give the code of an error, a primitive or a block of the library"
        )
    return error("E0206", f"there is no page about `{topic}`", help=help_)


def _primitive(name: str) -> str:
    from archdsl.ops import registry

    op = registry.get(name)
    doc = inspect.cleandoc(op.__doc__ or "")
    parts = [f"# `{name}`, a primitive", f"```arch\n{op.signature}\n```", doc]
    if op.examples:
        lines = [f"{e.expression}  # {e.inputs}" if e.inputs else e.expression for e in op.examples]
        parts.append("## Examples\n\n```arch\n" + "\n".join(lines) + "\n```")
    return "\n\n".join(p for p in parts if p) + "\n"


def _library(name: str) -> str:
    from archdsl.frontend.modules import find_in_library
    from archdsl.syntax import ast

    found = find_in_library(name)
    assert found is not None, name
    module, declaration = found
    text = module.source.text
    if isinstance(declaration, ast.BlockDecl | ast.ModelDecl):
        text = text[declaration.span.start : declaration.span.end]
        doc, where = declaration.doc, declaration.name_span
    else:
        text, doc, where = declaration.span.text, "", declaration.span
    parts = [
        f"# `{name}`, a block of the standard library",
        doc,
        f"```arch\n{text.strip()}\n```",
        f"Declared in {where}.",
    ]
    return "\n\n".join(p for p in parts if p) + "\n"
