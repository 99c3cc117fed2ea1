"""IR -> PyTorch source: one file that reads as if it had been typed by hand.

Blocks are written twice.  First each in its own names, which groups them: blocks whose text is equal are one class,
whatever their sizes.  Then, callers first, every name of a class finds its meaning: a field of the Config, a number, or
an argument; and the text is written for good.  Structure is resolved here: no flag of the Config is ever asked in a
`forward`.

`block` writes one block, with `locals` for its local names, `numbers` for sizes and `modules` for what `__init__`
makes; `loops`, `scan` and `conditions` write the nodes with graphs inside; `scope` is what ops write themselves
through.  `classes` groups blocks into classes, `file` lays the classes out, with `imports` above them; `extras` are the
sections that a file may have beside the plain model.
"""

from __future__ import annotations

from archdsl.ir.graph import Model
from archdsl.lower.torch.extras import PLAIN, Extras
from archdsl.lower.torch.file import FileWriter

__all__ = ["PLAIN", "Extras", "emit"]


def emit(model: Model, extras: Extras = PLAIN, *, layout: bool = True) -> str:
    """The model as one Python file that imports the standard library and torch only.

    Class of the model: `class_name(model.name)`; its `Config` holds the spec's own numbers.  `extras` adds sections
    beside the plain model.  Without `layout` its lines are as they come, for who runs them and reads none.
    """
    return FileWriter(model, extras).write(layout)
