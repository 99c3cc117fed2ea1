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
        numbers = ", ".join(RULES.get(topic, ("tensor",)))
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


# --- the pages of the documentation -----------------------------------------------------------------------------------


def primitives_page() -> str:
    """`docs/primitives.md`: every primitive with its signature and what it says of itself."""
    from archdsl.ops import registry

    # What has no example of its use is never written: other primitives put it into a graph.
    names = sorted(name for name in registry.names() if registry.get(name).examples)
    parts = [
        "# Primitives",
        "The ops of the compiler. A primitive knows its shapes, its weights, which other positions it reads, and how\n"
        "it is written in PyTorch; everything else is [the standard library](library.md). `archdsl explain NAME`\n"
        "prints an entry with examples. Operators are primitives too: `a + b` is `plus(a, b)`.",
        " · ".join(f"[{name}](#{name})" for name in names),
    ]
    for name in names:
        op = registry.get(name)
        parts += [f"## {name}", f"```arch\n{_broken(op.signature)}\n```", inspect.cleandoc(op.__doc__ or "")]
    return "\n\n".join(parts) + "\n"


def _broken(signature: str) -> str:
    """A signature with its two lists and its results on lines of their own where one line is too long."""
    if len(signature) <= 120:
        return signature
    hypers, between, rest = signature.partition(")(")
    indent = " " * hypers.index("(")
    return f"{hypers}{between[0]}\n{indent}({rest}" if between else signature


def library_page() -> str:
    """`docs/library.md`: every block of the standard library with its signature, by file."""
    from archdsl.frontend.modules import find_in_library
    from archdsl.resources import library_files, library_index
    from archdsl.syntax import ast

    index = library_index()
    parts = [
        "# The standard library",
        "Blocks written in the language itself: `specs/std/*.arch`, to be read, copied and changed. `archdsl explain\n"
        "NAME` prints one with its body. What has no equations here is [a primitive](primitives.md).",
        " · ".join(f"[{name}](#{name})" for name in sorted(index)),
    ]
    for stem in library_files():
        parts.append(f"## std/{stem}.arch")
        for name in (n for n, s in index.items() if s == stem):
            found = find_in_library(name)
            assert found is not None, name
            module, declaration = found
            text = module.source.text
            parts.append(f"### {name}")
            if isinstance(declaration, ast.BlockDecl):
                header = declaration.header.span
                shown = text[declaration.span.start : header.end]
                if not isinstance(declaration.body, ast.Body):
                    shown = text[declaration.span.start : declaration.span.end]
                parts += [f"```arch\n{shown}\n```", declaration.doc]
            else:
                parts.append(f"```arch\n{declaration.span.text}\n```")
    return "\n\n".join(p for p in parts if p) + "\n"
