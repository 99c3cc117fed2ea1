"""The limits that keep a hostile or broken input from costing more than an error message."""

from __future__ import annotations

MAX_FILE_BYTES = 4 * 1024 * 1024
"""A larger `.arch` file is refused unread."""

MAX_NESTING = 100
"""How deep the nodes of a syntax tree may stand in each other; whatever walks the tree may therefore recurse."""

MAX_OPEN = 5 * MAX_NESTING
"""How many symbols the parser may hold unfinished, which bounds brackets without content: `((((…`."""

MAX_SYNTAX_ERRORS = 20
"""After so many syntax errors of one file the rest is not looked at."""

MAX_IMPORTS = 200
"""How many files one spec may import, directly or not."""

MAX_BLOCK_DEPTH = 60
"""How deep blocks may be applied within blocks; a block that applies itself ends here."""

MAX_LIST = 20_000
"""How many elements a list may have (`126 * layer` has 126)."""

MAX_NODES = 400_000
"""How many nodes the distinct blocks of a model may have together."""

MAX_DIGITS = 160
"""A number of a spec may have so many digits; no size comes near."""
