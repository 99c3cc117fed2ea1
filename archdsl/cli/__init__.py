"""The command line. Each command reads its arguments, asks `archdsl.api` or an analysis, and prints; what it prints for
people is in `archdsl.report.tables`.

Exit status: 0 fine · 1 the spec is wrong, or `verify` found a difference · 2 the command line is · 70 an error in the
compiler itself · 130 interrupted."""

# isort: off
from archdsl.cli import inspect, estimating, backends, interop  # noqa: F401 (they register the commands, in this order)

# isort: on
from archdsl.cli.frame import app, main

__all__ = ["app", "main"]
