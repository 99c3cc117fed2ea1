"""`docs/primitives.md`, `docs/library.md` and `docs/api.md`, from what compiler and library say of themselves."""

import inspect
from collections.abc import Callable

import archdsl
from archdsl.frontend.modules import find_in_library
from archdsl.ops import registry
from archdsl.resources import library_files, library_index
from archdsl.syntax import ast


def primitives_page() -> str:
    """`docs/primitives.md`: every primitive with its signature and what it says of itself."""
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


def api_page() -> str:
    """`docs/api.md`: every public name of the package, with its signature and its docstring."""
    names = [name for name in archdsl.__all__ if not name.startswith("_")]
    parts = [
        "# Python",
        "What `import archdsl` offers; each command of the command line is one of these functions. A report is a\n"
        "pydantic model: `report.model_dump_json()` is what the command prints with `--json`, and `archdsl schema\n"
        "COMMAND` its JSON Schema. A loaded model prints itself, in a notebook as a table.",
        '```python\nimport archdsl\n\nmodel = archdsl.load("gpt2", set={"layers": 2})\nprint(model)\n'
        "print(archdsl.estimate(model).params.total)\nmodule = archdsl.to_torch(model)\n```",
        " · ".join(f"[{name}](#{name.lower()})" for name in names),
    ]
    for name in names:
        public = getattr(archdsl, name)
        text = _signature(name, public) if inspect.isfunction(public) else f"class {name}"
        parts += [f"## {name}", f"```text\n{text}\n```", inspect.cleandoc(public.__doc__ or "")]
    return "\n\n".join(parts) + "\n"


def _signature(name: str, function: Callable[..., object]) -> str:
    """A function's signature, a parameter a line."""
    signature = inspect.signature(function)
    lines = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "    *," not in lines:
            lines.append("    *,")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    inside = "\n".join(["", *lines, ""]) if lines else ""
    return f"archdsl.{name}({inside}) -> {signature.return_annotation}"
