"""The IR as an ONNX graph: built node by node, never traced, without torch."""

from __future__ import annotations

from archdsl.diagnostics import error
from archdsl.packages import install


def demand_packages(what: str, *names: str) -> None:
    """Raises ArchError E0502 where one of these packages is not installed."""
    from importlib.util import find_spec as installed

    missing = [name for name in names if installed(name) is None]
    if missing:
        raise error(
            "E0502",
            f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            help=install("onnx"),
        )
