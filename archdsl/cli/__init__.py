"""The command line. Each command reads its arguments, asks `archdsl.api` or an analysis, and prints; what it prints for
people is in `archdsl.report.tables`.

Exit status: 0 fine · 1 the spec is wrong, or `verify` found a difference · 2 the command line is · 70 an error in the
compiler itself · 130 interrupted."""

import atexit
import gc

# Modules, classes and the nodes of a graph are many objects, and nearly all live to the end of the command: cycles are
# looked for rarely, from the first import on, and not once more when the interpreter ends.
gc.set_threshold(100_000)
atexit.register(gc.freeze)

# isort: off
from archdsl.cli import inspect, estimating, comparing, backends, interop, lifting  # noqa: E402, F401 (they register commands, in order)

# isort: on
from archdsl.cli.frame import app, main  # noqa: E402

__all__ = ["app", "main"]
