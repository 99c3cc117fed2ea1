"""The command that compiles a model again, as the head of an emitted file and the metadata of a graph give it."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable
from pathlib import PurePath

from archdsl.ir.graph import Model


def portable(source: str) -> str:
    """Return the name of a source as written files give it: of an absolute path, which another machine does not have,
    the last part."""
    path = PurePath(source)
    return path.name if path.is_absolute() else source


def compile_command(model: Model, options: Iterable[str]) -> list[str]:
    """Return the words of the command: the spec, the options of the back end, and what the model was loaded with."""
    words = ["archdsl", "compile", f"{portable(model.source_name)}:{model.name}", *options]
    if model.origin is not None:
        words += [f"--set={name}={value}" for name, value in model.origin.set.items()]
        words += ["--allow-noncausal"] * model.origin.allow_noncausal
    return words


def shell_lines(words: Iterable[str], width: int) -> list[str]:
    """Return a command as a shell takes it, in lines of at most that many characters where none of its words is longer:
    all but the last end with a backslash."""
    joined = " ".join(shlex.quote(word).replace(" ", "\0") for word in words)
    lines = textwrap.wrap(joined, width - 2, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") + " \\" * (line is not lines[-1]) for line in lines]
