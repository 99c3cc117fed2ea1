"""IR -> PyTorch source: one file that reads as if it had been typed by hand.

`lower` makes of each block the modules of its class and what its `forward` does, as trees over values of the IR:
nothing has a name yet. `classes` finds which blocks are one class and spells their numbers, `schedule` decides what
stands within what, `loops` iterations iterations over layers into Python's, `names` gives locals by liveness, `text`
prints, `module` puts the file together, and `validate` runs it on terms against what was meant. `runtime` holds the
helpers that files are given, `features` the sections that a file may have beside the plain model.
"""

from __future__ import annotations

from archdsl.backends.torch.features import PLAIN, Extras
from archdsl.backends.torch.module import emit

__all__ = ["PLAIN", "Extras", "emit"]
